"""What the outbox writes to the flash for each message, and the blocks that are erased for it: the table of
firmware/docs/storage.md. Runs on MicroPython only: micropython tests/mp/wear.py
"""

import sys
from array import array

sys.path.insert(0, "tests/mp")

import flash
import vfs
from mqqb import confirm
from node import log, outbox

PACKET = 300  # bytes: a body of about 64, a label, a queue's name
MESSAGES = 512
SIZE = 524288
KINDS = (
    flash.LITTLEFS,
    flash.LITTLEFS_256,
    flash.FAT,
    flash.Kind("FAT, sectors of 4096", vfs.VfsFat, 4096),
)
BATCHES = (1, 8, 64)


def measure(kind, batch, count=MESSAGES):
    """(bytes written to the flash for each message, blocks erased for 1,000): sent in batches, one sync for each, and
    acknowledged, with no sync of its own.
    """
    device = kind.make(SIZE)
    files = log.Files(kind.mount(device, flash.LIFE))
    box = outbox.Outbox(files, bytes(16), segment_size=16384, capacity=SIZE // 2)
    queue = box.queue("DIRECT=TCP:10.0.0.5\\private$\\line1")
    counters = array("I", queue.record)
    packet = bytes(range(50)) * (PACKET // 50)
    device.written = device.erased = 0
    waiting = []
    for number in range(count):
        handle = log.Stored(box.next_message_id, confirm.new(1, confirm.Settings()))
        counters[2] += 1
        box.append(handle, queue, log.TRANSACTIONAL | log.RECOVERABLE, counters, packet)
        waiting.append(handle)
        if (number + 1) % batch == 0:
            box.sync()
            for handle in waiting:
                handle.record[confirm.STATE] = confirm.GONE
            box.change(waiting)
            waiting = []
    box.close()
    vfs.umount(flash.LIFE)
    return device.written // count, device.erased * 1000 // count


def main():
    print("| file system | erase block | batch | bytes written per message | blocks erased per 1,000 messages |")
    print("|---|---|---|---|---|")
    for kind in KINDS:
        for batch in BATCHES:
            written, erased = measure(kind, batch)
            print("| %s | %d | %d | %d | %d |" % (kind.name, kind.block_size, batch, written, erased))


if __name__ == "__main__":
    main()
