"""What a running node takes of a board's heap: main.py of an MPS2 whose host has a queue manager at `port`.

Prints `NAME BYTES`: the heap above what the board and its network had, with the modules imported, and with an open
session after 4 messages; then what `put` of one more takes, handle and garbage, and a `poll` with nothing to do.
"""

import gc
import time

import mps2
import network

MESSAGES = 4

lan = network.LAN()
lan.active(True)
while not lan.isconnected():
    time.sleep_ms(5)
gc.collect()
before = gc.mem_alloc()

from ordack import node  # noqa: E402 - after the measurement

gc.collect()
print("modules", gc.mem_alloc() - before)
body = b"x" * 64
board = node.Node("/flash/outbox", connect=("10.0.2.2", int(mps2.setting("port"))))
queue = board.queue("DIRECT=TCP:10.0.2.2\\private$\\line1")
for _ in range(MESSAGES):
    message = queue.put(body)
    while board.waiting:
        pause = board.poll()
        if pause:
            time.sleep_ms(min(pause, 5))
message = None
gc.collect()
print("node", gc.mem_alloc() - before)
print("done", board.stats.stored)
taken = 0
for _ in range(MESSAGES):
    gc.collect()
    gc.disable()
    before = gc.mem_alloc()
    queue.put(body)
    taken += gc.mem_alloc() - before
    gc.enable()
    while board.waiting:
        time.sleep_ms(min(board.poll(), 5))
print("put", taken / MESSAGES)
board.poll()
gc.disable()
before = gc.mem_alloc()
board.poll()
print("idle", gc.mem_alloc() - before)
mps2.power_off(0)
