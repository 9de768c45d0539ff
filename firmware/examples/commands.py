"""A board that receives commands in a private queue, over its own outgoing connection."""

import asyncio

from ordack.node import Node


async def main():
    node = Node("outbox", connect=("192.168.1.20", 1801), name="press-7")
    commands = node.inbox("commands", 7)  # before start(): messages for unknown queues are refused
    node.start()
    async for command in commands:
        print(command.body, command.label, command.again)  # handle the command here


asyncio.run(main())
