"""Messages of 2 and 4 KiB come to a board whose heap has no piece as large as one, and leave it: main.py of an MPS2
whose host has a queue manager at `port`. Prints `NAME NUMBER`: the largest piece of the heap while they go, and how
many are stored.
"""

import gc
import time

import mps2
import network
from ordack import node

MESSAGES = 8
BODY_BYTES = 2048
LARGEST_PIECE = 640

lan = network.LAN()
lan.active(True)
while not lan.isconnected():
    time.sleep_ms(5)
board = node.Node("/flash/outbox", connect=("10.0.2.2", int(mps2.setting("port"))))
queue = board.queue("DIRECT=TCP:10.0.2.2\\private$\\line1")
queue.put(b"first")
while board.waiting:
    board.poll()
    time.sleep_ms(5)
larger = b"y" * (2 * BODY_BYTES)
queue.put_all([b"x" * BODY_BYTES] * MESSAGES)
fillers = []
try:
    while True:
        fillers.append(bytearray(480))
except MemoryError:
    pass
for place in range(0, len(fillers), 2):
    fillers[place] = None  # as after a long run: half of it is free, in pieces
gc.collect()
try:
    for place in range(0, len(fillers), 2):
        fillers[place] = bytearray(LARGEST_PIECE)  # and where two pieces met, one that is too large is none either
except MemoryError:
    pass
largest = 4096
while True:
    try:
        bytearray(largest)
        break
    except MemoryError:
        largest -= 16
print("largest", largest)
for _ in range(3):
    while board.waiting:
        board.poll()
        time.sleep_ms(5)
    queue.put(larger)  # when those before it are settled there is room, in pieces
while board.waiting:
    board.poll()
    time.sleep_ms(5)
print("done", board.stats.stored)
mps2.power_off(0)
