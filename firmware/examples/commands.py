"""A board that receives commands in a private queue, over the connection that it opens itself."""

import asyncio

from ordack.node import Node


async def main():
    node = Node("outbox", connect=("192.168.1.20", 1801))
    commands = node.inbox("commands", 7)  # before start(): what comes for a queue that is not open is refused
    node.start()
    async for command in commands:
        print(command.body, command.label, command.again)  # whatever handling it means


asyncio.run(main())
