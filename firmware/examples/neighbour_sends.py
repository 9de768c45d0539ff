"""One board sends to another, without a queue manager between them: neighbour_receives.py is the other one."""

import asyncio

from ordack.node import Node


async def main():
    async with Node("outbox", capacity=65536) as node:
        valve = node.queue("DIRECT=TCP:192.168.1.31\\private$\\valve")
        command = await valve.send(b"open", dead_letter=True, ttrq=60, ttbr=60)
        print("received" if await command.received() else "not received: " + command.conclusion().answer)


asyncio.run(main())
