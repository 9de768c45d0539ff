"""A board to which another one sends: see neighbour_sends.py."""

import asyncio

from ordack.node import Node


async def main():
    node = Node("outbox", listen=("0.0.0.0", 1801), capacity=65536)
    valve = node.inbox("valve")  # before the node is started: what comes for a queue that is not open is refused
    async with node:
        async for command in valve:
            print(command.body)  # whatever handling it means; asking for the next one says that this one is handled


asyncio.run(main())
