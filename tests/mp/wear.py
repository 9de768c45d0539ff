"""What the outbox writes to the flash for each message, the blocks that are erased for it, and for how long: the tables
of host/docs/benchmarks.md. Runs on MicroPython only: micropython -X heapsize=16M tests/mp/wear.py [MESSAGES]
"""

import sys
from array import array

sys.path.insert(0, "tests/mp")

import flash
import power
import vfs
from mqqb import confirm
from ordack.node.storage import log, outbox

PACKET = 300  # bytes: a body of about 64, a label, a queue's name
MESSAGES = 512
SIZE = 524288
KINDS = (flash.LITTLEFS, flash.Kind("FAT", vfs.VfsFat, 4096), flash.RAW)
BATCHES = (1, 8, 64)
LIVES = (flash.LITTLEFS, flash.RAW)
PICO_W = 868352  # bytes: 848 KB
PACKETS = (300, 200)
BODIES = {300: 64, 200: 4}  # bytes of a packet that differ from message to message, besides eight of its numbers
CYCLES = 100000
PACES = (("a second", 1), ("a minute", 60))
YEAR = 31557600  # s
HEADS = " | ".join(["years at 1 " + name for name, _ in PACES])


def measure(kind, batch, count=MESSAGES, size=SIZE, packet_size=PACKET):
    """(bytes written to the flash for each message, blocks erased for 1,000): sent in batches, one sync for each, and
    acknowledged.
    """
    device = kind.make(size)
    files = kind.open(device, flash.LIFE)
    box = outbox.Outbox(files, bytes(16), segment_size=16384, capacity=size // 2)
    queue = box.queue("DIRECT=TCP:10.0.0.5\\private$\\line1")
    counters = array("I", queue.record)
    packet = bytearray(bytes(range(50)) * (packet_size // 50))
    body_size = BODIES[packet_size]
    dice = power.Dice(1)
    device.written = device.erased = 0
    waiting = []
    for number in range(count):
        handle = log.Stored(box.next_message_id, confirm.new(1, confirm.Settings()))
        counters[2] += 1
        packet[40:44] = packet[90:94] = number.to_bytes(4, "little")
        packet[packet_size - body_size :] = dice.data(body_size)
        box.append(handle, queue, log.TRANSACTIONAL | log.RECOVERABLE, counters, packet)
        waiting.append(handle)
        if (number + 1) % batch == 0:
            box.sync()
            for handle in waiting:
                handle.record[confirm.STATE] = confirm.GONE
            box.change(waiting)
            waiting = []
    box.close()
    kind.close(flash.LIFE)
    return device.written // count, device.erased * 1000 // count


def last(count):
    """How many years the flash of a Pico W lasts, one message at a time."""
    print()
    print("| file system | packet | " + HEADS + " |")
    print("|" + "---|" * 4)
    for kind in LIVES:
        for packet_size in PACKETS:
            erased = measure(kind, 1, count, PICO_W, packet_size)[1]
            years = [CYCLES * (PICO_W // kind.block_size) * 1000 / erased * pace / YEAR for _, pace in PACES]
            print("| %s | %d | %.1f | %.0f |" % (kind.name, packet_size, years[0], years[1]))


def main():
    print("| file system, erase block of 4096 | batch | bytes written per message | blocks erased per 1,000 messages |")
    print("|" + "---|" * 4)
    for kind in KINDS:
        for batch in BATCHES:
            written, erased = measure(kind, batch)
            print("| %s | %d | %d | %d |" % (kind.name, batch, written, erased))
    last(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)


if __name__ == "__main__":
    main()
