"""Power cuts of an outbox on LittleFS, FAT and raw flash, at the writes of a device. Prints `N passed, N failed`.

Arguments: cuts (about so many in all; default CUTS), seed (default: fixed ones; the one used is printed).
"""

import asyncio
import gc
import os
import sys
import time

import vfs

sys.path.insert(0, "tests/mp")

import flash
import power
from ordack.node import Node
from ordack.node.storage import log, outbox

LINE = power.NAMES[0]
CUTS = 1000
_FLASHES_BYTES = 8000000  # of heap, for a full flash in RAM, what is written to it, and its copy at a cut
SIZES = (0, 17, 200, 300)
FULL = {
    "sizes": (300, 900, 2000),
    "segment_size": 4096,
    "capacity": 90000,
    "warm": 60,
    "write_bytes": 520,
}  # more than the flash has room for


class Share:
    """One kind of cuts, its share of all, and what came of it."""

    def __init__(self, what, share, kind, positions, actions, **options):
        self.what = what
        self.share = share
        self.kind = kind
        self.positions = positions
        self.actions = actions
        self.options = options
        options.setdefault("sizes", SIZES)

    def run(self, cuts, seed):
        """About so many cuts, in workloads of `actions`."""
        wanted = cuts * self.share // 100
        done = writes = silent = loud = refused = 0
        while done < wanted:
            cutter = flash.Cutter(self.kind, seed, self.positions, wanted - done, **self.options)
            done += cutter.run(self.actions)
            writes += cutter.writes
            silent += len(cutter.silent)
            loud += len(cutter.loud)
            refused += cutter.refused
            seed += 1
            del cutter
            gc.collect()
        more = ""
        if self.options.get("size"):
            more += ", %d times refused" % refused
            assert refused or done < 100
        if self.options.get("count_losses"):
            more += ", %d lost and reported, %d silently" % (loud, silent)
        print("%s, %s: %d cuts at %d writes%s" % (self.kind.name, self.what, done, writes, more))
        assert silent == 0
        assert loud * 100 <= (done if self.options.get("count_losses") else 0)
        return done


SHARES = (
    Share("every byte of every write", 13, flash.LITTLEFS, flash.every_byte, 12, segment_size=600, capacity=20000),
    Share("some bytes, most on the flash only", 8, flash.LITTLEFS, flash.some_bytes(4), 60, segment_size=1500, hold=2),
    Share("some bytes", 4, flash.LITTLEFS_256, flash.some_bytes(4), 60, segment_size=4096),
    Share("some bytes, where blocks are filled", 4, flash.LITTLEFS, flash.some_bytes(2), 40, segment_size=9000, warm=5),
    Share("the same", 4, flash.LITTLEFS_256, flash.some_bytes(2), 40, segment_size=9000, warm=25),
    Share(
        "every byte of every write",
        12,
        flash.RAW_SMALL,
        flash.every_byte,
        8,
        segment_size=1500,
        capacity=10000,
        warm=60,
    ),
    Share(
        "some bytes, most on the flash only",
        6,
        flash.RAW_SMALL,
        flash.some_bytes(4),
        40,
        segment_size=500,
        capacity=10000,
        warm=30,
        hold=2,
    ),
    Share("some bytes", 8, flash.RAW, flash.some_bytes(4), 40, segment_size=4096, capacity=36000, warm=90),
    Share("sectors are written or not", 8, flash.FAT, flash.whole_writes, 200, segment_size=1500, capacity=40000),
    Share(
        "the same, files grow", 5, flash.FAT, flash.whole_writes, 200, segment_size=1500, capacity=15000, fixed=False
    ),
    Share(
        "some bytes of a sector",
        8,
        flash.FAT,
        flash.some_bytes(8),
        60,
        segment_size=4096,
        garbage=False,
        count_losses=True,
    ),
    Share("the flash is full", 3, flash.LITTLEFS, flash.some_bytes(4), 40, size=10 * 4096, **FULL),
    Share("the flash is full", 3, flash.RAW, flash.some_bytes(4), 40, size=9 * 4096, **FULL),
    Share("the flash is full", 3, flash.FAT, flash.whole_writes, 200, size=120 * 512, **FULL),
)


def files_know_their_file_system(cuts, seed):
    """On FAT they do not grow, nor does their folder: 16 names in a cluster, two of them its own."""
    for kind, fixed, files_max in ((flash.FAT, True, 14), (flash.LITTLEFS, False, 0), (flash.LITTLEFS_256, False, 0)):
        files = kind.open(kind.make(), flash.LIFE)
        kind.close(flash.LIFE)
        assert (files.fixed, files.files_max) == (fixed, files_max), kind.name
    return 0


def what_was_read_before_is_right_while_the_file_grows(cuts, seed):
    """LittleFS gives the last block of a file that is synced to others, also while somebody reads the file."""
    for kind in (flash.LITTLEFS, flash.LITTLEFS_256, flash.FAT):
        files = kind.open(kind.make(32 * 4096), flash.LIFE)
        files.begin("a", 40000)
        found = memoryview(bytearray(100))
        for written in range(300):
            files.append(bytes([written & 255]) * 100, 100)
            files.sync()
            for place in (0, min(written, 30), min(written, 59)):
                assert files.read_into("a", 100 * place, found) == 100, kind.name
                assert bytes(found) == bytes([place & 255]) * 100, kind.name
        kind.close(flash.LIFE)
    return 0


def cuts_at_writes(cuts, seed):
    return sum([share.run(cuts, seed) for share in SHARES])


def lives(count, seed):
    released = 0
    done = 0
    each = min(20, max(count // 5, 3))
    while done < count:
        for kind in (flash.LITTLEFS, flash.LITTLEFS_256, flash.FAT, flash.RAW, flash.RAW_SMALL):
            capacity = min(30000, kind.size // 2)
            options = {"sizes": SIZES, "segment_size": 1500, "capacity": capacity}
            cuts, messages = flash.many_lives(kind, seed + done, each, **options)
            done += cuts
            released += messages
            gc.collect()
    print("lives, one after the other: %d, %d messages" % (done, released))
    return done


def a_second_node_sees_what_the_first_has_given_to_the_file_and_not_synced(cuts, seed):
    """LittleFS syncs what is closed: the second wrote over that, or behind it, and what it accepted was lost."""

    async def two(folder):
        first = Node(folder, capacity=300000)
        line = first.queue(LINE)
        line.put(b"1")
        task = asyncio.create_task(line.send(bytes(60000)))
        await asyncio.sleep(0)
        second = Node(folder, capacity=300000)
        for number in range(2, 6):
            second.queue(LINE).put(b"%d" % number)
        await task
        second.close_now()

    for kind in (flash.LITTLEFS, flash.LITTLEFS_256, flash.FAT):
        vfs.mount(kind.system(kind.make(400000 // 4096 * 4096), **kind.options), flash.LIFE)
        asyncio.run(two(flash.LIFE + "/box"))
        third = Node(flash.LIFE + "/box", capacity=300000)
        found = [bytes(third.read(message).properties.body) for message in third.outbox.handles()]
        assert found == [b"1", bytes(60000), b"2", b"3", b"4", b"5"], (kind.name, [one[:9] for one in found])
        third.close_now()
        vfs.umount(flash.LIFE)
    return 0


class _Closing:
    """Cuts the power before each write of a close, and looks at what is there then."""

    def __init__(self, kind, device, dice):
        self.kind = kind
        self.device = device
        self.dice = dice
        self.left = device.copy()
        self.cuts = 0
        self.begun = 0  # files, by a close

    def live(self):
        """One life of a board, to its end."""
        dice = self.dice
        box, first = self.start()
        for _ in range(dice.below(6)):
            power.put(box, dice.data(60 + dice.below(300)))
        if dice.below(3):
            handles = box.handles()
            if handles:
                power.end(box, handles[: len(handles) - dice.below(2)])
                box.sync()
        self.kept = [bytes(box.log.load(handle)) for handle in box.handles()]
        self.last = box.last_message_id
        self.device.before = self.cut
        self.close(box, first)
        self.device.before = None
        assert box.live or box.log.segments[-1].size <= 2048

    def start(self):
        """The outbox, and the number of its last file."""
        box = outbox.Outbox(self.kind.open(self.device, flash.LIFE), power.GUID)
        return box, box.log.segments[-1].number

    def close(self, box, first):
        box.close()
        self.begun += box.log.segments[-1].number > first
        self.kind.close(flash.LIFE)

    def compare(self, again):
        assert sorted(power.bodies(again)) == sorted(self.kept), (self.kind.name, self.cuts)
        assert again.last_message_id == self.last

    def cut(self, block, offset, data):
        size = self.kind.block_size if data is None else len(data)
        self.device.copy(self.left)
        self.left.tear(block, offset, data, self.dice.below(size), self.dice)
        again = outbox.Outbox(self.kind.open(self.left, flash.CUT), power.GUID)
        self.compare(again)
        again.close()
        self.kind.close(flash.CUT)
        self.cuts += 1


def closes(count, seed):
    """A board that sleeps closes its outbox: what is kept is there, and a start has little to read where nothing is."""
    done = begun = 0
    for kind in (flash.LITTLEFS, flash.LITTLEFS_256):
        board = _Closing(kind, kind.make(), power.Dice(seed))
        for _ in range(count):
            board.live()
        done += board.cuts
        begun += board.begun
    print("closes: %d, %d began a file, %d cuts" % (2 * count, begun, done))
    assert begun or count < 10
    return done


class _Filled:
    """A flash with an outbox that accepts until it has no room."""

    def __init__(self, kind, size, dice):
        self.kind = kind
        self.device = kind.make(size)
        self.dice = dice
        self.kept = 0
        self.start()

    def start(self):
        files = self.kind.open(self.device, flash.LIFE)
        self.box = outbox.Outbox(
            files, power.GUID, segment_size=8192, capacity=files.bytes_max or 1 << 20, hold=2000, write_bytes=520
        )
        assert self.box.live == self.kept, (self.kind.name, self.box.live, self.kept)

    def cut(self):
        self.device = self.device.copy()  # what is closed now concerns the other one
        self.box.close()
        self.kind.close(flash.LIFE)

    def fill(self):
        try:
            while True:
                power.put(self.box, self.dice.data(60 + self.dice.below(300)))
                self.kept += 1
        except log.OutboxFull:
            pass

    def go_on(self):
        """Accept what there is room for, and deliver it all."""
        self.fill()
        self.box.will_send()
        while self.box.live:
            power.end(self.box, self.box.handles()[:5])
            assert self.box.sync(), (self.kind.name, self.box.live)
        self.kept = 0


def a_full_flash_starts_delivers_and_makes_room(cuts, seed):
    """The capacity is more than the flash has."""
    for kind, size in ((flash.LITTLEFS, 131072), (flash.LITTLEFS_256, 131072), (flash.FAT, 131072), (flash.RAW, 0)):
        filled = _Filled(kind, size, power.Dice(seed))
        for _ in range(2):
            filled.fill()
            assert filled.kept > 40, (kind.name, filled.kept)
            filled.cut()
            filled.start()
            filled.go_on()
        filled.cut()
    return 0


def a_flash_that_others_fill_starts_and_goes_on_when_they_make_room(cuts, seed):
    filled = _Filled(flash.LITTLEFS, 131072, power.Dice(seed))
    for _ in range(25):
        power.put(filled.box, filled.dice.data(90))
        filled.kept += 1
    others = []
    try:
        while True:
            others.append(flash.LIFE + "/other%d" % len(others))
            with open(others[-1], "wb") as other:
                other.write(bytes(2000))
    except OSError:
        pass
    filled.cut()
    filled.start()
    power.raises(log.OutboxError, power.put, filled.box, filled.dice.data(3000))
    for other in others[:-1]:
        os.remove(other)
    filled.go_on()
    filled.cut()
    return 0


def main(cuts, seed):
    start = time.ticks_ms()
    done = 0
    failed = 0
    print("seed", seed)
    tests = [
        (files_know_their_file_system, 0),
        (what_was_read_before_is_right_while_the_file_grows, 0),
        (cuts_at_writes, cuts),
        (lives, cuts // 20),
        (closes, min(5 + cuts // 20, 50)),
    ]
    if gc.mem_free() > _FLASHES_BYTES:
        tests.append((a_second_node_sees_what_the_first_has_given_to_the_file_and_not_synced, 0))
        tests.append((a_full_flash_starts_delivers_and_makes_room, 0))
        tests.append((a_flash_that_others_fill_starts_and_goes_on_when_they_make_room, 0))
    for test, count in tests:
        try:
            done += test(count, seed)
        except Exception as error:  # noqa: BLE001 - the others go on
            failed += 1
            print("FAILED", test.__name__)
            sys.print_exception(error)
    print("%d power cuts in %d s" % (done, time.ticks_diff(time.ticks_ms(), start) // 1000))
    print("%d passed, %d failed" % (len(tests) - failed, failed))
    return failed


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else CUTS, int(sys.argv[2]) if len(sys.argv) > 2 else 1))
