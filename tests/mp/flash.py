"""A flash chip or memory card in RAM that loses power or fails at any write; power cuts of an outbox on a real LittleFS
or FAT file system over it. Runs on MicroPython only.

For each write of a workload, and for bytes of that write, the image that a cut there leaves is mounted, the outbox on
it opened, everything compared with what power.World knows, and then the application goes on from there.
"""

import sys

import vfs

sys.path.insert(0, "tests/mp")

import power
from node import log

ERASED = 0xFF
LIFE = "/life"
CUT = "/cut"
_EIO = 5
_COUNT = 4  # ioctl
_SIZE = 5
_ERASE = 6


class Lost(Exception):
    """What had to survive a cut did not. Nothing above the flash may catch it, as it does errors of the flash."""


class Flash:
    """A block device. `before(block, offset, data)`, if set, is called before each write, data None for an erase: it
    may raise PowerCut, or return True for an error; after `off` every call fails. `written` bytes, `erased` blocks.
    """

    def __init__(self, size, data):
        self.block_size = size
        self.data = data
        self.view = memoryview(data)
        self.before = None
        self.off = False
        self.written = 0
        self.erased = 0

    def readblocks(self, block, buffer, offset=0):
        if self.off:
            return -_EIO
        start = block * self.block_size + offset
        buffer[:] = self.view[start : start + len(buffer)]
        return 0

    def writeblocks(self, block, buffer, offset=None):
        """With an offset, what is written is erased; without one the device erases for itself, as a card does."""
        size = self.block_size
        if offset is not None or len(buffer) == size:
            return self._write(block, offset or 0, buffer, offset is None)
        for start in range(0, len(buffer), size):
            if self._write(block, 0, memoryview(buffer)[start : start + size], True):
                return -_EIO
            block += 1
        return 0

    def ioctl(self, operation, block):
        if operation == _COUNT:
            return len(self.data) // self.block_size
        if operation == _SIZE:
            return self.block_size
        if operation == _ERASE:
            return self._write(block, 0, None, True)
        return 0

    def _write(self, block, offset, data, erases):
        if self.off or (self.before is not None and self.before(block, offset, data)):
            return -_EIO
        self.erased += erases
        if data is not None:
            self.written += len(data)
        self.put(block, offset, bytes((ERASED,)) * self.block_size if data is None else data)
        return 0

    def put(self, block, offset, data):
        start = block * self.block_size + offset
        self.data[start : start + len(data)] = data

    def copy(self, to=None):
        """Another chip with the same content; to: one that may be overwritten."""
        if to is None:
            return Flash(self.block_size, bytearray(self.data))
        to.view[:] = self.view
        return to


class Kind:
    """A file system: `name`, how it is made and mounted. block_size: of the flash, bytes."""

    def __init__(self, name, system, block_size, **options):
        self.name = name
        self.system = system
        self.block_size = block_size
        self.options = options

    def make(self, size=131072):
        """A flash with an empty file system, size in bytes."""
        flash = Flash(self.block_size, bytearray(size))
        for block in range(size // self.block_size):
            flash.put(block, 0, bytes((ERASED,)) * self.block_size)
        self.system.mkfs(flash, **self.options)
        flash.written = flash.erased = 0
        return flash

    def mount(self, flash, place):
        """Where the outbox's folder will be, on that flash, until `vfs.umount(place)`."""
        vfs.mount(self.system(flash, **self.options), place)
        return place + "/box"


LITTLEFS = Kind("LittleFS", vfs.VfsLfs2, 4096)
LITTLEFS_256 = Kind("LittleFS, progsize=256", vfs.VfsLfs2, 4096, progsize=256, readsize=256)
FAT = Kind("FAT", vfs.VfsFat, 512)


class Cutter:
    """Runs a workload on a flash, and sees what a cut would leave before each write, and after some of its bytes.

    positions(size, dice): after how many bytes of a write of that size to cut. garbage: the byte at which the power
    went may be any. fixed: see log.Files. limit: of cuts. count_losses: those that the outbox or the file system
    reports go to `loud`, the others to `silent`; else they raise Lost. `cuts` so far, `writes`.
    """

    def __init__(self, kind, seed, positions, limit, garbage=True, fixed=None, count_losses=False, **options):
        self.kind = kind
        self.seed = seed
        self.dice = power.Dice(seed)
        self.positions = positions
        self.limit = limit
        self.garbage = garbage
        self.fixed = fixed
        self.count_losses = count_losses
        self.cuts = 0
        self.writes = 0
        self.silent = []
        self.loud = []
        self.flash = kind.make()
        self.left = self.flash.copy()
        folder = kind.mount(self.flash, LIFE)
        try:
            self.world = power.World(log.Files(folder, fixed), self.dice, **options)
        except BaseException:
            vfs.umount(LIFE)
            raise
        self.flash.before = self.cut

    def run(self, actions):
        """So many actions of the workload; fewer if the limit comes first. Returns the number of cuts."""
        try:
            for _ in range(actions):
                if self.cuts >= self.limit:
                    break
                self.world.act()
        finally:
            self.flash.before = None
            self.world.outbox.close()
            vfs.umount(LIFE)
        return self.cuts

    def cut(self, block, offset, data):
        self.writes += 1
        if data is None:
            data = bytes((ERASED,)) * self.kind.block_size
        size = len(data)
        for count in self.positions(size, self.dice):
            if self.cuts >= self.limit:
                return
            self.cuts += 1
            self.flash.copy(self.left)
            self.left.put(block, offset, memoryview(data)[:count])
            if self.garbage and count and self.dice.below(3) == 0:
                self.left.put(block, offset + count, bytes((self.dice.below(256),)))
            try:
                self.survives()
            except (AssertionError, log.OutboxError, OSError) as error:
                if not self.count_losses:
                    place = "cut at write %d of block %d after %d of %d" % (self.writes, block, count, size)
                    raise Lost("seed %d, %s: %r" % (self.seed, place, error)) from error
                (self.silent if isinstance(error, AssertionError) else self.loud).append((block, count, error))

    def survives(self):
        """What is left holds everything that it must, and the application can go on with it, for two more starts."""
        folder = self.kind.mount(self.left, CUT)
        world = self.world.fork()
        world.outbox = self.world.outbox
        try:
            world.open(log.Files(folder, self.fixed))
            if self.dice.below(4) == 0:
                world.send(power.NAMES[self.dice.below(2)], 1)
                world.receive(1)
                world.act()
                world.outbox.close()
                world.open(log.Files(folder, self.fixed))
        finally:
            if world.outbox is not self.world.outbox:
                world.outbox.close()
            vfs.umount(CUT)


class _Death:
    """Ends a life at a write that is so many away. tears: part of it may happen."""

    def __init__(self, flash, tears, dice, writes):
        self.flash = flash
        self.tears = tears
        self.dice = dice
        self.writes = writes
        self.fails = dice.below(3) == 0

    def __call__(self, block, offset, data):
        self.writes -= 1
        if self.writes:
            return False
        if data is not None and self.tears:
            self.flash.put(block, offset, memoryview(data)[: self.dice.below(len(data) + 1)])
        self.flash.off = True
        if not self.fails:
            raise power.PowerCut
        return True


def many_lives(kind, seed, lives, **options):
    """One life after the other on the same flash. Each ends at some write: it does not happen, or half of it, and the
    power is off; or the flash fails, and the application tries on for a while.

    Returns (cuts, messages released).
    """
    dice = power.Dice(seed)
    flash = kind.make()
    other = flash.copy()
    world = None
    for life in range(lives):
        flash.before = death = _Death(flash, kind is not FAT, dice, 1 + dice.below(60 if life else 600))
        folder = kind.mount(flash, LIFE)
        files = None
        try:
            files = log.Files(folder)
            if world is None:
                world = power.World(files, dice, **options)
            else:
                world.open(files)
            while death.writes > -20:
                world.act()
                death.writes -= flash.off
        except (power.PowerCut, OSError, log.OutboxWriteFailed):
            if not flash.off:
                raise
        flash.copy(other)
        flash.off = False  # only to let go of the old one
        flash.before = None
        try:
            if files is not None:
                files.close()
        except OSError:
            pass
        vfs.umount(LIFE)
        flash, other = other, flash
    return lives, len(world.by_id)


def every_byte(size, dice):
    """Of writes; of an erase, some."""
    if size >= 4096:
        return (0, 1, 512, size // 2, size - 1)
    return range(size)


def some_bytes(count):
    """So many places in each write, the first among them."""

    def positions(size, dice):
        return [0] + [dice.below(size) for _ in range(count - 1)]

    return positions


def whole_writes(size, dice):
    """A write happens or does not: what cards and translation layers promise of a sector."""
    return (0,)
