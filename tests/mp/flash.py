"""Power cuts of an outbox on a flash chip or memory card in RAM (chip.py): on a real LittleFS or FAT file system over
it, or without one. Runs on MicroPython only.

For each write of a workload, and for bytes of that write, the image that a cut there leaves is mounted, the outbox on
it opened, everything compared with what power.World knows, and then the application goes on from there.
"""

import gc
import sys

import vfs

sys.path.insert(0, "tests/mp")

import power
from chip import ERASED, Flash, Lost, Nor
from ordack.node.storage import log, raw_flash

LIFE = "/life"
CUT = "/cut"
_NAMES = 62  # four clusters, without "." and ".."


class Kind:
    """A file system: `name`, how it is made and mounted. block_size: of the flash, bytes. unit: of NOR flash, the bytes
    that are programmed at once; 0: a card, which writes over what is there. `size` of the flash in tests of cuts.
    """

    size = 131072

    def __init__(self, name, system, block_size, unit=0, **options):
        self.name = name
        self.system = system
        self.block_size = block_size
        self.unit = unit
        self.options = options

    def blank(self, size):
        data = bytearray(size)
        for start in range(0, size, self.block_size):
            data[start : start + self.block_size] = bytes((ERASED,)) * self.block_size
        return Nor(self.block_size, data, self.unit) if self.unit else Flash(self.block_size, data)

    def make(self, size=0):
        """A flash with an empty file system, size in bytes."""
        flash = self.blank(size or self.size)
        self.system.mkfs(flash, **self.options)
        flash.written = flash.erased = 0
        return flash

    def open(self, flash, place, fixed=None):
        """The files of the outbox on that flash, until `close(place)`."""
        vfs.mount(self.system(flash, **self.options), place)
        gc.collect()
        try:
            return log.Files(place + "/box", fixed)
        except BaseException:
            vfs.umount(place)
            raise

    def close(self, place):
        vfs.umount(place)

    def widen(self, flash):
        """Give the outbox's folder room for many names: FAT's never shrinks."""
        files = self.open(flash, LIFE)
        for number in range(_NAMES):
            files.begin(str(number), 0)
        files.close()
        for number in range(_NAMES):
            files.remove(str(number))
        self.close(LIFE)


class Raw(Kind):
    """No file system. blocks: so few that the ring goes round."""

    def __init__(self, name, block_size, unit, blocks):
        super().__init__(name, None, block_size, unit)
        self.size = blocks * block_size

    def make(self, size=0):
        return self.blank(size or self.size)

    def open(self, flash, place, fixed=None):
        return raw_flash.RawFlash(flash, self.unit)

    def close(self, place):
        pass


LITTLEFS = Kind("LittleFS", vfs.VfsLfs2, 4096, 32)
LITTLEFS_256 = Kind("LittleFS, progsize=256", vfs.VfsLfs2, 4096, 256, progsize=256, readsize=256)
FAT = Kind("FAT", vfs.VfsFat, 512)
RAW = Raw("Raw flash", 4096, 256, 12)
RAW_SMALL = Raw("Raw flash, blocks of 512", 512, 32, 32)


class Cutter:
    """Runs a workload on a flash, and sees what a cut would leave before each write, and after some of its bytes.

    positions(size, dice): after how many bytes of a write of that size to cut. garbage: see Flash.tear. fixed: see
    log.Files. limit: of cuts. count_losses: those that the outbox or the file system reports go to `loud`, the others
    to `silent`; else they raise Lost. warm: so many actions come before the first cut. size: of the flash. `cuts` so
    far, `writes`, `refused` messages.
    """

    def __init__(
        self, kind, seed, positions, limit, garbage=True, fixed=None, count_losses=False, warm=0, size=0, **options
    ):
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
        self.refused = 0
        self.flash = kind.make(size)
        if fixed is False:
            kind.widen(self.flash)  # nobody survives that a folder grows, and files that grow may become many
        self.left = self.flash.copy()
        files = kind.open(self.flash, LIFE, fixed)
        try:
            self.world = power.World(files, self.dice, **options)
            for _ in range(warm):
                self.world.act()
        except BaseException:
            kind.close(LIFE)
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
            self.refused = self.world.refused
            self.world.outbox.close()
            self.kind.close(LIFE)
        return self.cuts

    def cut(self, block, offset, data):
        self.writes += 1
        size = self.kind.block_size if data is None else len(data)
        for count in self.positions(size, self.dice):
            if self.cuts >= self.limit:
                return
            self.cuts += 1
            self.flash.copy(self.left)
            self.left.tear(block, offset, data, count, self.dice if self.garbage else None)
            try:
                self.survives()
            except (AssertionError, log.OutboxError, OSError) as error:
                if not self.count_losses:
                    place = "cut at write %d of block %d after %d of %d" % (self.writes, block, count, size)
                    raise Lost("seed %d, %s: %r" % (self.seed, place, error)) from error
                (self.silent if isinstance(error, AssertionError) else self.loud).append((block, count, error))

    def survives(self):
        """What is left holds everything that it must, and the application can go on with it, for two more starts."""
        files = self.kind.open(self.left, CUT, self.fixed)
        world = self.world.fork()
        world.outbox = self.world.outbox
        try:
            world.open(files)
            if self.dice.below(4) == 0:
                world.send(power.NAMES[self.dice.below(2)], 1)
                world.receive(1)
                world.act()
                world.outbox.close()
                self.kind.close(CUT)
                files = self.kind.open(self.left, CUT, self.fixed)
                world.open(files)
        finally:
            if world.outbox is not self.world.outbox:
                world.outbox.close()
            self.kind.close(CUT)


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
        if self.tears:
            size = self.flash.block_size if data is None else len(data)
            self.flash.tear(block, offset, data, self.dice.below(size), self.dice)
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
        files = None
        try:
            files = kind.open(flash, LIFE)
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
        flash.off = kind is not FAT  # let go of the old one: what its files have not written yet, it will not
        flash.before = None
        try:
            if files is not None:
                files.close()
        except OSError:
            pass
        if files is not None:
            kind.close(LIFE)
        gc.collect()  # also of a file that the cut left open
        flash.off = False
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
