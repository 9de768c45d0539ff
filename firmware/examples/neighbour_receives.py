"""A board that receives from another board: see neighbour_sends.py."""

import asyncio

from ordack.node import Node


async def main():
    node = Node("outbox", listen=("0.0.0.0", 1801), capacity=65536)
    valve = node.inbox("valve")  # before the start: messages for unknown queues are refused
    async with node:
        async for command in valve:
            print(command.body)  # handle the command here; the next iteration takes it


asyncio.run(main())
