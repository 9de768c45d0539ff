"""A board that sends to another board, without a queue manager in between: see neighbour_receives.py."""

import asyncio

from ordack.node import Node


async def main():
    async with Node("outbox", capacity=65536) as node:
        valve = node.queue("DIRECT=TCP:192.168.1.31\\private$\\valve")
        command = await valve.send(b"open", dead_letter=True, ttrq=60, ttbr=60)
        print("received" if await command.received() else "not received: " + command.conclusion().answer)


asyncio.run(main())
