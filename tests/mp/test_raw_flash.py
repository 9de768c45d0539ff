"""Segments on bare flash, without a file system: what a start finds, and what it refuses. Prints `N passed, N failed`.

Runs on MicroPython and CPython. Power cuts of an outbox on it are in test_flash.py.
"""

import sys

sys.path.insert(0, "tests/mp")

import chip
import power
from bare_flash import BLOCK, BLOCKS, UNIT, blank, open_flash
from engine_cases import run_calls, tests_of
from ordack.node.storage import log, raw_flash
from power import raises

SEED = 21
_HEAD = 20  # bytes of a block's header


def content(files, name):
    """All of a segment; and that nothing comes behind it."""
    data = bytearray(files.size(name) + 9)
    assert files.read_into(name, 0, memoryview(data)) == files.size(name)
    return bytes(data[: files.size(name)])


def write(files, number, data, space=0):
    """A segment of these bytes; its name."""
    name = log.file_name(number)
    files.begin(name, max(space, len(data)))
    files.append(data, len(data))
    files.sync()
    return name


def starts(data, expected):
    assert data[: len(expected)] == expected
    assert data[len(expected) :] == b"\xff" * (len(data) - len(expected)), "what is not written is blank"


def test_rounds_of_the_ring():
    """Whatever is begun, appended to, removed, at any start: every segment has its bytes, and all blocks wear alike."""
    print("seed", SEED)
    dice = power.Dice(SEED)
    device = blank()
    erased = [0] * BLOCKS

    def count(block, offset, data):
        if data is None:
            erased[block] += 1
            start = block * BLOCK
            assert device.data[start : start + _HEAD] == bytes(_HEAD), "it was wiped before"

    device.before = count
    files = open_flash(device)
    expected = {}
    number = 0
    for _ in range(1500):
        what = dice.below(6)
        names = sorted(expected)
        if what < 2:
            data = dice.data(dice.below(3 * BLOCK))
            space = len(data) + dice.below(BLOCK)
            try:
                name = write(files, number + 1, data, space)
                number += 1
                expected[name] = data
            except OSError:
                needed = sum([files.size(name) for name in names])
                assert needed + space + files.unit > files.unit * (BLOCKS - 6), "there was room"
                what = 3
        elif what == 2 and names:
            data = dice.data(dice.below(40))
            try:
                files.append(data, len(data))
                expected[names[-1]] += data
            except OSError:  # the ring is full; a part of it is there
                part = content(files, names[-1])
                assert len(part) < len(expected[names[-1]]) + len(data)
                expected[names[-1]] += data[: len(part) - len(expected[names[-1]])]
        if what in (3, 4) and len(names) > 1:
            files.remove(names[0])
            del expected[names[0]]
        elif what == 5:
            files = open_flash(device)
            assert sorted(files.names()) == names
            if names:
                files.resume(names[-1], len(expected[names[-1]]))
        for name in expected:
            starts(content(files, name), expected[name])
    print("blocks erased", sum(erased), "units programmed", device.most, "times")
    assert min(erased) > 20
    assert max(erased) - min(erased) <= 2


def test_nothing_of_an_earlier_round_passes():
    """The same number twice: blocks of the one that was removed do not become those of the other."""
    device = blank()
    files = open_flash(device)
    old = write(files, 1, bytes(3 * BLOCK))
    files.remove(old)
    assert open_flash(device).names() == []
    files = open_flash(device)
    write(files, 1, b"new")
    starts(content(open_flash(device), old), b"new")
    # And where the new one lies just before the old one's second block, with any sequence that a start can give it.
    kept = bytes(device.view[2 * BLOCK : 3 * BLOCK])
    for _ in range(4):
        write(files, 1, b"new")
        device.put(files._next, 0, kept)
        assert open_flash(device).size(old) == files.unit
        device.put(files._next, 0, b"\xff" * BLOCK)
    files.remove(old)
    assert open_flash(device).names() == [], "the ones before it are gone as well"


def test_the_later_of_two_counts():
    """A segment that could not be removed, and was begun again: its number stands twice."""
    for place in (0, BLOCKS - 1):
        device = blank()
        files = open_flash(device)
        name = write(files, 1, b"before")
        before = bytes(device.view[BLOCK : 2 * BLOCK])
        write(files, 1, b"after")
        device.data[place * BLOCK : (place + 1) * BLOCK] = before
        starts(content(open_flash(device), name), b"after")


def test_a_segment_ends_where_another_block_follows():
    """One was begun behind it, and removed: blocks of a segment follow one another."""
    device = blank()
    files = open_flash(device)
    first = write(files, 1, b"one")
    write(files, 2, b"")
    files.remove(log.file_name(2))
    files.resume(first, 3)
    assert raises(OSError, files.append, bytes(BLOCK), BLOCK).args[0] == 28
    assert content(files, first) == content(open_flash(device), first) == b"one" + bytes(files.unit - 3)


def test_half_erased_blocks_are_nothing():
    """Whatever bits a cut leaves of a block that is erased, the segments are as before, and the ring goes on."""
    print("seed", SEED)
    dice = power.Dice(SEED)
    device = blank()
    files = open_flash(device)
    expected = {}
    for number in range(1, 301):
        if len(expected) > 3:
            oldest = min(expected)
            files.remove(oldest)
            del expected[oldest]
        left = device.copy()
        cuts = [dice.below(12)]

        def before(block, offset, data, cuts=cuts, left=left):
            cuts[0] -= 1
            if cuts[0] < 0:
                left.copy(device)
                raise power.PowerCut
            size = BLOCK if data is None else len(data)
            left.tear(block, offset, data, dice.below(size), dice) if cuts[0] == 0 else left._write(
                block, offset, data, data is None
            )

        device.before = before
        data = dice.data(200)
        try:
            expected[write(files, number, data)] = data
        except power.PowerCut:
            device.before = None
            files = open_flash(device)
            new = log.file_name(number)
            if new in files.names():
                files.remove(new)
        device.before = None
        assert sorted(files.names()) == sorted(expected)
        for name in expected:
            starts(content(files, name), expected[name])


class Worn(chip.Nor):
    """One byte of the second block always reads the same."""

    at = BLOCK + 100
    kept = 0x7F

    def put(self, block, offset, data):
        super().put(block, offset, data)
        self.data[self.at] = self.kept


def test_worn_blocks_are_passed_over():
    """What cannot be erased, or does not read back, ends the segment; the next one is begun behind it."""
    for at, kept in ((BLOCK + 100, 0x7F), (BLOCK + 20, 0xFF), (BLOCK + 5, 0xFF)):
        device = Worn(BLOCK, blank().data, UNIT)
        files = open_flash(device)
        device.at = at
        device.kept = kept
        assert raises(OSError, write, files, 1, b"one").args[0] == 5
        first = write(files, 1, b"two")
        second = write(files, 2, b"three")
        for found in (files, open_flash(device)):
            assert sorted(found.names()) == [first, second]
            starts(content(found, first), b"two")
            starts(content(found, second), b"three")


def test_what_the_device_refuses_is_an_error():
    device = blank()
    files = open_flash(device)
    for refused in (None, b"ORDF", b"not whole"):
        device.before = lambda block, offset, data, refused=refused: (
            data is None if refused is None else bytes(data or b"").find(refused) >= 0
        )
        assert raises(OSError, write, files, 1, b"not whole").args[0] == 5
    device.before = None
    write(files, 1, b"whole")
    starts(content(open_flash(device), log.file_name(1)), b"whole")
    device.off = True
    assert raises(OSError, files.read_into, log.file_name(1), 0, memoryview(bytearray(1))).args[0] == 5
    assert raises(OSError, open_flash, device).args[0] == 5


def test_a_full_ring_overwrites_nothing():
    device = blank()
    files = open_flash(device)
    sizes = (BLOCKS - 2) * files.unit
    write(files, 1, bytes(sizes))
    assert raises(OSError, files.begin, log.file_name(2), 3 * files.unit).args[0] == 28
    write(files, 2, b"", 2 * files.unit)
    assert raises(OSError, files.append, bytes(3 * BLOCK), 3 * BLOCK).args[0] == 28
    starts(content(open_flash(device), log.file_name(1)), bytes(sizes))


def test_a_claim_is_made_again_wherever_it_was_cut():
    dice = power.Dice(SEED)
    whole = blank()
    open_flash(whole)
    for cut in range(3 * UNIT):
        device = blank()
        device.tear(0, 0, bytes(whole.view[:UNIT]), cut // 3, dice)
        write(open_flash(device), 1, b"there")
        assert open_flash(device).names() == [log.file_name(1)]


class Card(chip.Flash):
    """Without the extended interface."""

    def readblocks(self, block, buffer):
        return super().readblocks(block, buffer)


def test_other_devices_are_refused():
    """Nothing is written to a device that holds anything else, or is unfit; and it is said what to do."""
    for place in (0, 1, 99, BLOCKS * BLOCK - 1):
        device = blank()
        device.data[place] = 0
        error = raises(log.OutboxError, open_flash, device)
        assert "file system" in str(error)
        assert "ioctl(6, n)" in str(error)
        assert device.written + device.erased == 0
    for head in (b"\x01\0\0\0\xf0\x0f\xff\xf7littlefs", b"\xeb\xfe\x90MSDOS5.0"):
        device = blank()
        write(open_flash(device), 1, b"there")
        device.put(0, 0, head)  # made over one of ours
        assert "file system" in str(raises(log.OutboxError, open_flash, device))
    device = blank()
    write(open_flash(device), 1, b"there")
    larger = chip.Nor(BLOCK, device.data + b"\xff" * BLOCK, UNIT)
    assert "16 blocks" in str(raises(log.OutboxError, open_flash, larger))
    assert "8 to 65535 blocks, here are 7" in str(raises(ValueError, open_flash, blank(7)))
    assert "extended interface" in str(raises(ValueError, open_flash, Card(BLOCK, bytearray(8192))))
    assert "part of the block" in str(raises(ValueError, raw_flash.RawFlash, blank(), 96))


TESTS = tests_of(globals())


if __name__ == "__main__":
    run_calls([(test.__name__, test, (), {}) for test in TESTS])
