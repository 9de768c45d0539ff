"""The log on bare NOR flash without a file system: `Node(files=RawFlash(device))` instead of a folder.

The device is a ring of erase blocks, used in order, so all wear alike. A segment consists of consecutive whole blocks.
Each block begins with a header; the segment's bytes fill the rest.

* A sync programs new data and erases nothing. The next sync programs the last program unit again, with more bits
  cleared. Flash with ECC, encrypted flash and NAND do not allow that: they need a file system.
* The end of a segment is not recorded: blank bytes read 0xFF, and the log finds the last record by its CRC. A start
  adds no block to an old segment.
* To reuse a block, its header is programmed to zeros (wiped), the block is erased and checked to be blank, and then
  gets its new header. So a half-erased block never looks valid. Wiping its first block deletes a segment.
* The header's sequence counts all blocks ever begun: block n of a segment has the sequence of its first block + n, so
  blocks of an earlier round never match. The ring continues after the highest sequence.
* A block that cannot be erased or read back raises OSError. The log then begins a segment in the next block.
"""

import struct
from binascii import crc32

from mqqb import const, core
from ordack.node.storage import files, log

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from typing import Any

    from ordack.node.storage.log import Buffer

_MAGIC = b"ORDF"
# magic, index in its segment, blocks of the device, sequence, segment number (0: none), CRC of everything before
_HEADER = const("<4sHHIII")
_HEADER_BYTES = const(20)
_BLOCKS_MIN = const(8)
_RESERVE = const(5)  # one of this many blocks stays free for copies of a full log: the maximum size of a segment
_SYNC = const(3)  # ioctl
_COUNT = const(4)
_SIZE = const(5)
_ERASE = const(6)
_ENOSPC = const(28)


class RawFlash(files.Files):
    """Segments on a block device with the extended interface: readblocks and writeblocks with an offset, and an ioctl
    that erases, as in esp32.Partition and rp2.Flash.

    program_bytes: a multiple of the flash's program unit that divides the block. The device must be blank or a former
    RawFlash; other content is never overwritten. Raises ValueError: unfit; OutboxError: it holds other content;
    OSError.
    """

    fixed = True
    blank = b"\xff"

    def __init__(self, device: "Any", program_bytes: int = 256) -> None:
        self._device = self.place = device
        self._page = bytearray(program_bytes)
        self._check = bytearray(program_bytes)
        self._zeros = bytes(_HEADER_BYTES)
        self._blocks = device.ioctl(_COUNT, 0) or 0
        self._block_bytes = device.ioctl(_SIZE, 0) or 512
        if program_bytes < _HEADER_BYTES or self._block_bytes % program_bytes:
            raise ValueError("program_bytes is at least {}, and a part of the block".format(_HEADER_BYTES))
        if not _BLOCKS_MIN <= self._blocks <= 0xFFFF:
            raise ValueError("RawFlash needs {} to 65535 blocks, here are {}".format(_BLOCKS_MIN, self._blocks))
        try:
            self._read(0, 0, self._page)
        except TypeError:
            raise ValueError("RawFlash needs a device with the extended interface, which is NOR flash")  # noqa: B904
        self.unit = self._block_bytes - _HEADER_BYTES
        self.bytes_max = (self._blocks - self._blocks // _RESERVE - 1) * self.unit
        self._next = 0  # the next block to begin,
        self._sequence = 0  # with its sequence
        self._segments: "dict[str, list[int]]" = {}  # name: sequence and place of the first block, blocks, number
        self._written = [0, 0, 0, 0]  # the segment being written,
        self._block = 0  # its block,
        self._offset = self._block_bytes  # and the offset in that
        self._mount()

    def names(self) -> "list[str]":
        """Return the segments, in any order."""
        return list(self._segments)

    def size(self, name: str) -> int:
        """Return the bytes of all blocks of a segment, blank ones included."""
        return self._segments[name][2] * self.unit

    def begin(self, name: str, size: int) -> None:
        """As Files.begin; OSError: no room for size bytes. All blocks but the first begin when needed."""
        if name in self._segments:
            self.remove(name)
        if size > self._free() * self.unit:
            raise OSError(_ENOSPC)
        self._written = [self._sequence, self._next, 0, int(name[:8], 16)]
        self._begin_block()
        self._segments[name] = self._written

    def resume(self, name: str, offset: int) -> None:
        """As Files.resume; everything after offset must be blank."""
        self._written = self._segments[name]
        index = min(offset // self.unit, self._written[2] - 1)
        self._block = self._place(self._written, index)
        self._offset = _HEADER_BYTES + offset - index * self.unit

    def append(self, data: "Buffer", size: int) -> None:
        """As Files.append."""
        done = 0
        while done < size:
            if self._offset == self._block_bytes:
                self._begin_block()
            count = min(self._block_bytes - self._offset, size - done)
            self._program(self._block, self._offset, data, done, done + count)
            self._offset += count
            done += count

    def sync(self) -> None:
        """As Files.sync. Everything is programmed already, unless the device has a cache."""
        self._device.ioctl(_SYNC, 0)

    def read_into(self, name: str, offset: int, buffer: memoryview) -> int:
        """As Files.read_into."""
        segment = self._segments[name]
        size = min(len(buffer), segment[2] * self.unit - offset)
        done = 0
        while done < size:
            index, start = divmod(offset + done, self.unit)
            count = min(self.unit - start, size - done)
            self._read(self._place(segment, index), _HEADER_BYTES + start, buffer[done : done + count])
            done += count
        return done

    def remove(self, name: str) -> None:
        """Delete a segment."""
        self._wipe(self._segments[name][1])
        del self._segments[name]

    def close(self) -> None:
        """Do nothing: no file is open."""

    def _mount(self) -> None:
        """Find the segments. Raises OutboxError."""
        for place in range(self._blocks):
            header = self._header(place)
            if header is not None:
                index, sequence, number = header
                if sequence >= self._sequence:
                    self._sequence = sequence + 1
                    self._next = (place + 1) % self._blocks
                name = log.file_name(number)
                if number and not index and sequence >= self._segments.get(name, (0,))[0]:
                    self._segments[name] = [sequence, place, 1, number]
        if not self._sequence:
            self._claim()
        for segment in self._segments.values():
            while self._header(self._place(segment, segment[2])) == (segment[2], segment[0] + segment[2], segment[3]):
                segment[2] += 1

    def _header(self, place: int) -> "tuple[int, int, int] | None":
        """Return (index in its segment, sequence, segment number) of a block; None without a valid header."""
        head = memoryview(self._check)[:_HEADER_BYTES]
        self._read(place, 0, head)
        magic, index, blocks, sequence, number, crc = struct.unpack(_HEADER, head)
        if magic == _MAGIC and crc == crc32(head[: _HEADER_BYTES - 4]):
            if blocks != self._blocks:
                raise files.OutboxError(
                    "this flash was divided into {} blocks when its log began, now into {}: give RawFlash the same "
                    "part of it as before".format(blocks, self._blocks)
                )
            return index, sequence, number
        if bytes(head[8:16]) == b"littlefs" or bytes(head[3:8]) == b"MSDOS":
            self._refuse(place)
        return None

    def _claim(self) -> None:
        """Claim a blank device by a header without a segment, valid until others exist. Raises OutboxError."""
        claim = self._pack(0, 0)
        self._read(0, 0, self._page)
        is_cut = all(have | bit == have for have, bit in zip(self._page, claim))
        for place in range(self._blocks):
            if not self._is_blank(place, 0 if place else is_cut * _HEADER_BYTES):
                self._refuse(place)
        self._program(0, 0, claim, 0, _HEADER_BYTES)
        self._sequence = self._next = 1

    def _refuse(self, place: int) -> None:
        raise files.OutboxError(
            "block {} of this flash is neither blank nor part of a log: it may hold a file system. If nothing on it is "
            "needed, call ioctl(6, n) of the device for each n from 0 to {}, which erases it".format(
                place, self._blocks - 1
            )
        )

    def _place(self, segment: "list[int]", index: int) -> int:
        """Return the place of a segment's block."""
        return (segment[1] + index) % self._blocks

    def _free(self) -> int:
        """Return the number of blocks from the next one to the oldest needed one."""
        if not self._segments:
            return self._blocks
        return (min(self._segments.values())[1] - self._next) % self._blocks

    def _pack(self, index: int, number: int) -> bytes:
        """Return a header for the next block."""
        head = struct.pack(_HEADER, _MAGIC, index, self._blocks, self._sequence, number, 0)[: _HEADER_BYTES - 4]
        return head + struct.pack("<I", crc32(head))

    def _begin_block(self) -> None:
        """Append the next block of the ring to the segment being written."""
        tail = self._written
        if not self._free() or self._sequence != tail[0] + tail[2]:
            raise OSError(_ENOSPC)
        place = self._next
        head = self._pack(tail[2], tail[3])
        self._next = (place + 1) % self._blocks  # even if this block fails
        self._sequence += 1
        self._wipe(place)
        if self._device.ioctl(_ERASE, place) or not self._is_blank(place, 0):
            raise OSError(files.EIO)
        try:
            self._program(place, 0, head, 0, _HEADER_BYTES)
        except OSError:
            self._wipe(place)  # the whole header may be there
            raise
        tail[2] += 1
        self._block = place
        self._offset = _HEADER_BYTES

    def _is_blank(self, place: int, begin: int) -> bool:
        """Is a block blank from byte `begin` on?"""
        self._page[:] = self.blank * len(self._page)
        for offset in range(0, self._block_bytes, len(self._check)):
            self._read(place, offset, self._check)
            if not offset:
                core.copy(self._check, 0, self._page, 0, begin)
            if self._check != self._page:
                return False
        return True

    def _wipe(self, place: int) -> None:
        """Invalidate a block's header."""
        self._program(place, 0, self._zeros, 0, _HEADER_BYTES)

    def _program(self, place: int, offset: int, data: "Buffer", begin: int, end: int) -> None:
        """Program data[begin:end], keeping the rest of the units. Raises OSError if it does not read back."""
        page = self._page
        while begin < end:
            start = offset % len(page)
            count = min(len(page) - start, end - begin)
            self._read(place, offset - start, page)
            core.copy(page, start, data, begin, begin + count)
            failed = self._device.writeblocks(place, page, offset - start)
            self._read(place, offset - start, self._check)
            if failed or self._check != page:
                raise OSError(files.EIO)
            offset += count
            begin += count

    def _read(self, place: int, offset: int, buffer: "Buffer") -> None:
        if self._device.readblocks(place, buffer, offset):
            raise OSError(files.EIO)
