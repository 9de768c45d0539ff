"""A flash chip or memory card in RAM that loses power or fails at any write. Runs on MicroPython and CPython."""

ERASED = 0xFF
_EIO = 5
_COUNT = 4  # ioctl
_SIZE = 5
_ERASE = 6
_NOISE_BYTES = 8192


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

    def tear(self, block, offset, data, count, dice):
        """What a cut after count bytes of a write leaves; data None: of an erase. dice: None, or the byte at which the
        power went may be any.
        """
        data = bytes((ERASED,)) * self.block_size if data is None else data
        self.put(block, offset, memoryview(data)[:count])
        if dice is not None and count and dice.below(3) == 0:
            self.put(block, offset + count, bytes((dice.below(256),)))

    def copy(self, to=None):
        """Another chip with the same content; to: one that may be overwritten."""
        if to is None:
            return Flash(self.block_size, bytearray(self.data))
        to.view[:] = self.view
        return to


class Nor(Flash):
    """NOR flash: programming clears bits, only an erase sets them. Lost: a 1 was programmed where a 0 is, or a part of
    a unit. `most`: so often a unit was programmed between two erases.
    """

    noise = b""

    def __init__(self, size, data, unit):
        super().__init__(size, data)
        self.unit = unit
        self.times = bytearray(len(data) // unit)
        self.most = 0

    def _write(self, block, offset, data, erases):
        if self.off:
            return -_EIO
        if data is None or erases:
            first = block * self.block_size // self.unit
            self.times[first : first + self.block_size // self.unit] = bytes(self.block_size // self.unit)
        if data is not None:
            start = block * self.block_size + offset
            if start % self.unit or len(data) % self.unit:
                raise Lost("%d bytes at %d: a part of a unit" % (len(data), start))
            for unit in range(start // self.unit, (start + len(data)) // self.unit):
                self.times[unit] = min(self.times[unit] + 1, 255)
                self.most = max(self.most, self.times[unit])
            if not erases and _both(self.view[start : start + len(data)], data) != bytes(data):
                raise Lost("%d bytes at %d: a bit would have to go from 0 to 1" % (len(data), start))
        return super()._write(block, offset, data, erases)

    def tear(self, block, offset, data, count, dice):
        """As Flash.tear. dice: a program may also have cleared some of all its bits, an erase have left anything."""
        start = block * self.block_size + offset
        size = self.block_size if data is None else len(data)
        old = bytes(self.view[start : start + size])
        if dice is None or dice.below(3):
            done = (bytes((ERASED,)) * size if data is None else bytes(data))[:count] + old[count:]
        else:
            if len(Nor.noise) < _NOISE_BYTES:
                Nor.noise = dice.data(_NOISE_BYTES)
            place = dice.below(_NOISE_BYTES - size + 1)
            noise = Nor.noise[place : place + size]
            if data is not None:
                done = _both(old, _either(data, noise))
            else:
                done = (noise, _both(old, noise), _either(old, noise))[dice.below(3)]
        self.put(block, offset, done)

    def copy(self, to=None):
        if to is None:
            to = Nor(self.block_size, bytearray(self.data), self.unit)
        return super().copy(to)


def _both(one, other):
    """The bits that are set in both."""
    return (int.from_bytes(one, "big") & int.from_bytes(other, "big")).to_bytes(len(one), "big")


def _either(one, other):
    return (int.from_bytes(one, "big") | int.from_bytes(other, "big")).to_bytes(len(one), "big")
