"""Readings taken in an interrupt, 50 a second: it writes them down, and a task sends what it has written."""

import asyncio
from array import array

from machine import ADC, Timer
from ordack.node import Node, OutboxFull

SIZE = 256  # readings: five seconds, for an erase of flash or a slow callback
readings = array("H", bytes(2 * SIZE))
taken = 0  # so many since the start, of which the last SIZE stand in `readings`
sensor = ADC(4)
ready = asyncio.ThreadSafeFlag()


def take(_):  # in an interrupt: it takes no memory, and does not call the node
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
