"""An interrupt takes 50 readings a second into a ring buffer; a task sends them."""

import asyncio
from array import array

from machine import ADC, Timer
from ordack.node import Node, OutboxFull

SIZE = 256  # readings, for five seconds of flash erase or a slow callback
readings = array("H", bytes(2 * SIZE))
taken = 0  # readings since the start; the last SIZE are in `readings`
sensor = ADC(4)
ready = asyncio.ThreadSafeFlag()


def take(_):  # runs in an interrupt: allocates nothing, and does not call the node
    global taken
    readings[taken % SIZE] = sensor.read_u16()
    taken += 1
    ready.set()


async def main():
    async with Node("outbox", connect=("192.168.1.20", 1801), capacity=262144) as node:
        line1 = node.queue("DIRECT=TCP:192.168.1.20\\private$\\line1")
        Timer(-1, period=20, callback=take)
        sent = 0
        while True:
            await ready.wait()
            now = taken
            if now - sent > SIZE:
                print("too late for", now - sent - SIZE, "readings")
                sent = now - SIZE
            bodies = [b"%d" % readings[number % SIZE] for number in range(sent, now)]
            sent = now
            try:
                await line1.send_all(bodies, ttrq=86400)
            except OutboxFull:
                print("no room for", len(bodies), "readings at most")


asyncio.run(main())
