"""Sends one reading from a Cortex-M3 in QEMU. 10.0.2.2 is the machine that runs QEMU."""

import asyncio

import mps2
import network
from ordack.node import Node

network.LAN().active(True)


async def main():
    node = Node("outbox", capacity=65536, connect=("10.0.2.2", 1801))
    node.start()
    line1 = node.queue("DIRECT=TCP:10.0.2.2\\private$\\line1")
    reading = await line1.send(b"21.5", label="temperature")
    print("on flash")
    print("in the queue" if await reading.stored() else "refused")
    await node.close()


asyncio.run(main())
mps2.power_off()
