"""A disk in memory that loses power or fails wherever a test likes.

The disk promises only what log.Files demands: a sync makes the growing file and all names durable; without it any
suffix of the data may be gone or replaced by garbage, and any suffix of the changes of names may be undone.
"""

from ordack.node.storage import log

KEEP_ALL = "all"  # everything that was written survives
KEEP_SYNCED = "synced"  # only what was synced
TEAR = "tear"  # something in between, with garbage behind it
KILL = "kill"  # the process died, not the machine: all can be read, but what was not synced is not durable yet
WAYS = (KEEP_ALL, KEEP_SYNCED, TEAR, KILL)


class PowerCut(BaseException):
    """No code above the disk may catch it."""


class Dice:
    """A small generator of random numbers that gives the same ones on MicroPython and CPython."""

    def __init__(self, seed):
        self.state = seed * 2654435761 + 1 & 0xFFFFFFFF or 1

    def below(self, limit):
        self.state ^= self.state << 13 & 0xFFFFFFFF
        self.state ^= self.state >> 17
        self.state ^= self.state << 5 & 0xFFFFFFFF
        return self.state % limit

    def data(self, size):
        return bytes([self.below(256) for _ in range(size)])


class File:
    def __init__(self, data=b"", synced=0):
        self.data = bytearray(data)
        self.synced = synced
        self.unreliable = False  # a sync has failed: in this run, what is not durable by now never will be


class Disk(log.Files):
    """`before(disk, step, data)`, if set, is called before each change: it may raise PowerCut or OSError."""

    fixed = False

    def __init__(self):
        self.files = {}
        self.durable = {}
        self.changes = []  # of names, not durable: (name, File or None)
        self.tail = None
        self.before = None

    def names(self):
        return list(self.files)

    def size(self, name):
        return len(self.files[name].data)

    def begin(self, name, size):
        self._step("begin", b"")
        self.tail = self.files[name] = File()
        self.changes.append((name, self.tail))

    def resume(self, name, offset):
        self.tail = self.files[name]

    def append(self, data, size):
        data = bytes(memoryview(data)[:size])
        self._step("append", data)
        self.tail.data += data

    def sync(self):
        self._step("sync", b"")
        if not self.tail.unreliable:
            self.tail.synced = len(self.tail.data)
        self._settle_names(len(self.changes))

    def read_into(self, name, offset, buffer):
        data = self.files[name].data[offset : offset + len(buffer)]
        buffer[: len(data)] = data
        return len(data)

    def remove(self, name):
        self._step("remove", b"")
        del self.files[name]
        self.changes.append((name, None))

    def close(self):
        self.tail = None

    def after_cut(self, how, dice, partial=b""):
        """The disk as the next start finds it; partial: the part of the last write that had been handed over."""
        disk = Disk()
        if how == KILL:
            copies = {}
            for file in list(self.files.values()) + list(self.durable.values()) + [file for _, file in self.changes]:
                if file is not None and id(file) not in copies:
                    copies[id(file)] = copy = File(file.data, file.synced)
                    if file is self.tail:
                        copy.data += partial
            disk.files = {name: copies[id(self.files[name])] for name in self.files}
            disk.durable = {name: copies[id(self.durable[name])] for name in self.durable}
            disk.changes = [(name, None if file is None else copies[id(file)]) for name, file in self.changes]
            return disk
        names = dict(self.durable)
        changes = self.changes
        if how == KEEP_SYNCED:
            changes = []
        elif how == TEAR:
            changes = changes[: dice.below(len(changes) + 1)]
        for name, file in changes:
            if file is None:
                names.pop(name, None)
            else:
                names[name] = file
        for name in names:
            file = names[name]
            data = file.data + partial if file is self.tail else file.data
            if how == KEEP_SYNCED:
                data = data[: file.synced]
            elif how == TEAR:
                keep = file.synced + dice.below(len(data) - file.synced + 1)
                lost = len(data) - keep
                garbage = dice.below(4)
                fill = bytes(lost) if garbage == 0 else dice.data(lost) if garbage == 1 else b""
                if garbage == 2 and lost > 2:  # one sector in the middle did not make it
                    fill = bytes(lost // 2) + bytes(data[keep + lost // 2 :])
                data = data[:keep] + fill
            disk.files[name] = disk.durable[name] = File(data, len(data))
        return disk

    def _step(self, step, data):
        if self.before is not None:
            self.before(self, step, data)

    def _settle_names(self, count):
        for name, file in self.changes[:count]:
            if file is None:
                self.durable.pop(name, None)
            else:
                self.durable[name] = file
        del self.changes[:count]
