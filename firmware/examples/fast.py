"""A fast sensor: 100 readings a second, with one flash sync per second.

A batch takes 512 bytes of heap per reading until it is on flash. With less than 64 KB free, use smaller batches.
"""

import asyncio

from machine import ADC
from ordack.node import Node, OutboxFull

sensor = ADC(4)


async def main():
    async with Node("outbox", connect=("192.168.1.20", 1801), capacity=262144) as node:
        line1 = node.queue("DIRECT=TCP:192.168.1.20\\private$\\line1")
        while True:
            batch = []
            for _ in range(100):
                batch.append(b"%d" % sensor.read_u16())
                await asyncio.sleep(0.01)
            try:
                await line1.send_all(batch, ttrq=86400)  # on flash, in order, when it returns
            except OutboxFull:
                print("no room: yesterday's readings make some")


asyncio.run(main())
