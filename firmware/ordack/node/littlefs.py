"""The log's files on LittleFS, which copies the last block of a file that is appended to and synced: an erase for each
message. So what a sync makes durable goes to small files, `00.tail` and so on, which LittleFS keeps in the folder's
blocks. When they have what fills a block of the segment's file, that gets it. docs/storage.md has the format.

* An entry is what one sync makes durable, or one of several messages, in up to ten parts, a file each. It counts if all
  its parts are there. Nothing is deleted: entries before the end of the segment's file are stale.
* An entry may be packed: as what differs from an earlier one, its model. Messages to one queue are alike.
* A part's CRC begins with the segment's own header, so that none counts for another log's file.
"""

import struct
from array import array
from binascii import crc32

from mqqb import const, core
from ordack.node import log

os = log.os  # type: ignore[attr-defined]  # it is looked for on the flash each time that a module is loaded later
TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from collections.abc import Callable

    from ordack.node.log import Buffer

# CRC of what follows; segment, offset, bytes of the entry; of its model, so many before it, and its bytes (0: the entry
# is not packed), and _FRONT; which part, of how many
_HEAD = const("<IIIHHHBB")
_HEAD_BYTES = const(20)
_BODY_BYTES = const(108)
_ENOSPC = const(28)
_PART_BYTES = const(128)  # LittleFS keeps files of so much in a folder's blocks, whatever its caches
_ENTRY_BYTES = const(540)
_PACKED_BYTES = const(216)
_LARGE_HEAP = const(100000)  # with so much of it free, both are twice as large
_FRONT = const(0x8000)  # alike are the begins of the entry and of its model, not their ends
_DISTANCE_MAX = const(0xFFFF)
_BATCH_MAX = const(9)  # where so many messages are made durable at once, and less, each has an entry
_SLOTS = const(48)
_PACKED = const(0x80)  # with a slot
_HOLE = const(0x7F)  # in place of one
_CLOSED_MAX = const(12)  # so many of them a close leaves as they are
_BLOCK_MIN = const(1024)  # bytes: eight times those of a part
_RUN_MAX = const(255)
_RAW = const(-0x10000)  # in place of where a model begins: what is in `_packed` is an entry as it is
_SAME_MIN = const(3)  # so many bytes that are the same end a run: it costs two


def block_end(end: int, block: int) -> int:
    """The last place not behind end where LittleFS begins another block of a file. block: bytes.

    Each block but the first has a pointer to the one before, and more, as often as its number can be halved.
    """
    count = end // (block - 8) + 1
    while True:
        before = count - 1
        place = count * block - 4 * (2 * before - bin(before).count("1"))
        if not count or place <= end:
            return place if count else 0
        count -= 1


def _has_moved(move: "Callable[[int], None]", end: int) -> bool:
    """As move; False: there was no room for it. OSError."""
    try:
        move(end)
    except OSError as error:
        if error.errno != _ENOSPC:
            raise
        return False
    return True


class _Entries(log.Files):
    """What the entries of a folder say, as they are read."""

    _entry_bytes: int  # of an entry that is written, at most
    _model: memoryview
    _packed: memoryview
    _parts: "dict[int, bytearray]"  # of those that a start has read
    _names: "list[str] | None"  # of all files, as a start has found them
    _writes: bool  # here entries are added
    _block: int  # bytes of a block of the file system; 0: not known yet
    _found: "dict[str, int]"  # seeds of segments whose header has a flipped bit, as the parts tell

    def _begin_entries(self, name: str, size: int) -> None:
        """A file of that size, which has no entries, is the one that is written."""
        self._name = name
        self._moved = size  # bytes that the file has,
        self._end = size  # and with the entries
        self._starts = array("I")  # where each of the entries begins,
        self._slots = array("B")  # and the number of its first part's file
        self._next = 0  # the number of the next one; but
        self._kept = self._kept_end = 0  # those between these are in use
        self._seed: "int | None" = None
        self._is_dirty = False  # the file has what is not durable
        self._added = 0  # bytes of entries since the last sync
        self._model_start = self._model_bytes = 0  # of the entry that is in `_model`,
        self._model_mended: "list[tuple[str, int, int]]" = []  # with these flipped bits as they were
        self._packed_start = self._packed_bytes = 0  # of the entry that `_packed` tells
        self._packed_skip = self._packed_size = 0
        self._like = 0, 0  # where an earlier message begins, and its bytes, that may be a model: as a start found it

    def _block_end(self, end: int) -> int:
        """As block_end, here."""
        if end < _BLOCK_MIN:  # the first block of a file has no pointers
            return 0
        if not self._block:
            self._block = os.statvfs(self.folder)[0]
        return block_end(end, self._block)

    def _index(self, place: int) -> int:
        """Of the entry that has this byte of the segment."""
        index = len(self._starts) - 1
        while self._starts[index] > place:
            index -= 1
        return index

    def _read(self, place: int, view: memoryview) -> None:
        """Fill view with the segment from there on, which has so much. OSError: it is not there any more."""
        while view:
            count = len(view)
            if place < self._moved:
                count = super().read_into(self._name, place, view[: self._moved - place])
            else:
                index = self._index(place)
                start = self._starts[index]
                count = min((self._starts[index + 1] if index + 1 < len(self._starts) else self._end) - place, count)
                slot = self._slots[index]
                if start == self._model_start and self._model_bytes and not self._model_mended:
                    view[:count] = self._model[place - start : place - start + count]
                elif slot & _PACKED:
                    self._unpack(slot & ~_PACKED, start, place - start, view[:count])
                elif slot == _HOLE:
                    view[:count] = bytes(count)
                else:
                    count = self._read_part(slot, place - start, view[:count])
            if not count:
                raise OSError(log.EIO)
            view = view[count:]
            place += count

    def _read_part(self, slot: int, begin: int, view: memoryview) -> int:
        """Read from byte begin of what an entry consists of, at most to the end of its part; how much."""
        part, begin = divmod(begin, _BODY_BYTES)
        begin += _HEAD_BYTES
        if slot + part in self._parts:
            piece = self._parts[slot + part][begin : begin + len(view)]
            view[: len(piece)] = piece
            return len(piece)
        with open(self._path(_file_name(slot + part)), "rb", 0) as file:
            file.seek(begin)
            return file.readinto(view[: _PART_BYTES - begin]) or 0

    def _unpack(self, slot: int, start: int, begin: int, view: memoryview) -> None:
        """Fill view with the entry that begins at start, from its byte begin on."""
        packed = self._packed
        if self._model_mended != self.mended:  # it was read before a bit was found flipped, or while one was only tried
            self._model_mended = self.mended[:]
            self._model_bytes = self._packed_bytes = 0
        if self._packed_start != start or not self._packed_bytes:
            _, _, _, size, distance, model, _, parts = _words(self._part(slot))
            self._packed_size = size
            self._packed_skip = 0 if model & _FRONT else model - size
            model &= ~_FRONT
            if self._model_start != start - distance or not self._model_bytes:
                self._model_bytes = 0
                if model > len(self._model):  # of a start that had more memory
                    self._model = memoryview(bytearray(model))
                self._read(start - distance, self._model[:model])
                for name, place, mask in self.mended:
                    place -= start - distance
                    if name == self._name and 0 <= place < model:
                        self._model[place] ^= mask
                self._model_start = start - distance
                self._model_bytes = model
            self._packed_bytes = fill = 0  # until all of it is there
            if parts * _BODY_BYTES > len(packed):
                packed = self._packed = memoryview(bytearray(parts * _BODY_BYTES))
            for part in range(parts):
                fill += self._read_part(slot + part, 0, packed[fill:])
            self._packed_start = start
            self._packed_bytes = fill
        skip = self._packed_skip
        end = begin + len(view)
        low = min(max(begin, -skip), end)
        high = max(min(end, self._model_bytes - skip), low)
        view[low - begin : high - begin] = self._model[low + skip : high + skip]
        at = place = 0
        while at + 2 <= self._packed_bytes:
            place += packed[at]
            count = packed[at + 1]
            at += 2
            low = max(place, begin)
            high = min(place + count, end)
            if low < high and at + count <= self._packed_bytes:
                core.copy(view, low - begin, packed, at + low - place, at + high - place)
            at += count
            place += count
        if at != self._packed_bytes or place != self._packed_size:
            view[:] = bytes(len(view))  # else it might read as its model: as a record that is whole

    # ---- the start --------------------------------------------------------------------------------

    def _find(self) -> None:
        """Find the entries that count: of the last segment that has any, those that its file does not have."""
        last = max([name for name in self.names() if name.endswith(".log")], default="")
        heads = self._chain(last) if last and self._writes else None
        if heads is None:
            heads = self._heads()
        number = max([head[1] for head in heads.values()]) if heads else 0
        name = log.file_name(number)
        if not number:
            return
        self._begin_entries(name, super().size(name))
        for start, slot in sorted([(heads[slot][2], slot) for slot in heads if heads[slot][1] == number]):
            _, _, _, size, distance, model, part, parts = heads[slot]
            if not slot:
                self._like = (start - distance, model & ~_FRONT) if distance else (start, size)
            if part or start + size <= self._end or (self._starts and start < self._end):
                continue
            if [heads.get(slot + k, ())[1:7] for k in range(parts)] != [heads[slot][1:6] + (k,) for k in range(parts)]:
                continue
            while self._end < start:
                self._starts.append(self._end)
                self._slots.append(_HOLE)
                self._end = min(start, self._end + _ENTRY_BYTES)
            self._starts.append(start)
            self._slots.append(slot | _PACKED if distance else slot)
            self._next = max(self._next, slot + parts)
            self._end = start + size

    def _chain(self, name: str) -> "dict[int, tuple[int, ...]] | None":
        """As _heads, of this segment, the last one. None: they may be others than those that are read here.

        As long as none is kept behind, they are written in the order of their numbers: the first stale one ends them.
        """
        heads: "dict[int, tuple[int, ...]]" = {}
        end = super().size(name)
        is_kept = end == self._block_end(end)
        last = int(name[:8], 16)
        seed = self._seed_of(name)
        for slot in range(_SLOTS):
            try:
                data = self._part(slot)
            except OSError:
                return None  # it was removed, or more have never been made
            head = _words(data)
            _, number, start, size, _, _, part, parts = head
            is_old = number < last
            if not parts or number > last or is_old == (_crc((0, last) + head[2:], seed) == head[0]):
                return None  # broken: one of a file that is gone has another seed
            is_next = start == end or (not slot and start < end < start + size)
            if part:
                is_next = heads.get(slot - 1, ())[1:7] == head[1:6] + (part - 1,)
            if is_old or not is_next:
                if (is_kept and not slot) or (not is_old and start + size > end):
                    return None
                if not slot and not is_old:
                    heads[0] = head
                break
            heads[slot] = head
            self._parts[slot] = data
            if part + 1 == parts:
                end = start + size
        return heads

    def _find_model(self) -> None:
        """What an earlier start has written here is the model of what comes."""
        start, size = self._like
        if (
            _BODY_BYTES < size <= len(self._model)
            and start + size <= self._end
            and not (self._model_bytes or self.mended)
        ):
            self._read(start, self._model[:size])
            self._model_start = start
            self._model_bytes = size
            self._model_mended = []

    def _heads(self) -> "dict[int, tuple[int, ...]]":
        """What the heads of all parts say, by the numbers of their files; not of those that belong to no segment."""
        heads = {}
        seeds: "dict[str, int]" = {}
        names = self._names = super().names()
        for file in names:
            slot = _slot_of(file)
            if slot >= 0:
                data = self._part(slot)
                head = _words(data)
                name = log.file_name(head[1])
                if not head[7] or name not in names:
                    continue
                seed = seeds.get(name) or self._seed_for(name, head)
                if _crc(head, seed) == head[0]:
                    seeds[name] = seed
                    heads[slot] = head
                    if self._writes and head[2] + head[3] > super().size(name):
                        self._parts[slot] = data
        return heads

    def _part(self, slot: int) -> bytearray:
        """What the file of a part holds."""
        data = self._parts.get(slot)
        if data is None:
            data = bytearray(_PART_BYTES)
            with open(self._path(_file_name(slot)), "rb", 0) as file:
                data = data[: file.readinto(data)]
        return data

    def _seed_of(self, name: str) -> int:
        """With which the CRCs of its parts begin: of what tells this segment from all others."""
        head = memoryview(bytearray(log.HEADER_BYTES))
        seed: int = crc32(head[: super().read_into(name, 0, head)])
        return seed

    def _seed_for(self, name: str, head: "tuple[int, ...]") -> int:
        """The same, for a part: where a bit of the segment's header has been flipped since, the part tells which."""
        seed = self._found.get(name)
        if seed is None:
            seed = self._seed_of(name)
            if _crc(head, seed) != head[0] and not self._is_whole(name):
                start = bytearray(log.HEADER_BYTES)
                super().read_into(name, 0, memoryview(start))
                for bit in range(8 * log.HEADER_BYTES):
                    start[bit >> 3] ^= 1 << (bit & 7)
                    other: int = crc32(start)
                    start[bit >> 3] ^= 1 << (bit & 7)
                    if _crc(head, other) == head[0]:
                        self._found[name] = seed = other
                        break
        return seed

    def _is_whole(self, name: str) -> bool:
        """Has the header of the segment its CRC?"""
        piece = memoryview(bytearray(log.HEADER_BYTES))
        super().read_into(name, 0, piece)
        left = struct.unpack_from("<I", piece, 8)[0] - 4
        value = place = 0
        while 0 < left <= super().size(name):
            count = super().read_into(name, place, piece[: min(left, log.HEADER_BYTES)])
            value = crc32(piece[:count], value)
            place += count
            left -= count
            if not left:
                return super().read_into(name, place, piece[:4]) == 4 and struct.unpack_from("<I", piece)[0] == value
        return False


class LittleFiles(_Entries):
    """The files of a folder on LittleFS, or of one that was copied from there: then nothing is added to its entries.

    As log.Files, but that what it appends is durable at once if it is little. free: bytes of the heap.
    """

    tails = log.TAILS
    heap_bytes = 6144
    left = 700  # it takes long to find each tail
    unseen = 3072  # tails have room in the blocks of the folder

    def __init__(self, folder: str, fixed: "bool | None", writes: bool, free: int = 0) -> None:
        super().__init__(folder, fixed)
        self._started()
        self.mended = []
        self._block = 0  # LittleFS takes long to say it
        self._writes = writes
        names = self._names = self.names()
        self._has_tails = log.TAIL in " ".join(names)
        if not self._has_tails:
            if writes:
                self._block = os.statvfs(folder)[0]
                self._writes = self._block >= _BLOCK_MIN
            else:
                self.tails = 0
        is_large = writes and free > _LARGE_HEAP
        self._entry_bytes = _ENTRY_BYTES << is_large
        self._model = memoryview(bytearray(self._entry_bytes))
        self._packed = memoryview(bytearray(_PACKED_BYTES << is_large))
        self._found = {}
        self._begin_entries("", 0)
        self._find()

    # ---- as log.Files -----------------------------------------------------------------------------

    def names(self) -> "list[str]":
        """As Files.names; of the tails only the first: LittleFS has all in order, and takes long for each."""
        names = self._names or []
        if not names and self._writes and hasattr(os, "ilistdir"):
            for entry in os.ilistdir(self.folder):
                if entry[0] > "01" and names and names[-1] < "00f":
                    break
                names.append(entry[0])
        return names or super().names()

    def size(self, name: str) -> int:
        """As Files.size, with the entries."""
        return self._end if name == self._name else super().size(name)

    def begin(self, name: str, size: int) -> None:
        """As Files.begin. First the file before gets what it does not have yet, if anybody needs it."""
        if not self.is_over:
            self._move(self._end)
        self._started()
        self._begin_entries("", 0)
        if self._writes and not self._has_tails:
            self._open(_file_name(0), "wb")  # before a segment with the flag: a start with less memory then takes it
            self._has_tails = True
        super().begin(name, size)
        if self._writes:
            self._begin_entries(name, 0)
            self._is_dirty = True

    def resume(self, name: str, offset: int) -> bool:
        """As Files.resume. Where no entries are written, the file gets all of them, which were durable before."""
        if self._name != name or not self._writes:
            if not _has_moved(self._move, self._end):
                return True
            self._begin_entries(name if self._writes else "", super().size(name))
        if self._writes:
            self._find_model()
        self._started()
        if not self._writes:
            self._model = self._packed = self._model[:0]  # a small board needs the memory
            super().resume(name, offset)
        return False

    def append(self, data: "Buffer", size: int) -> None:
        """As Files.append. What is little since the last sync is durable when this returns."""
        record = self.record_bytes or size
        if not self._writes:
            super().append(data, size)
        elif self._is_dirty or record > self._entry_bytes or self._added + size > _BATCH_MAX * record:
            self._move(self._end)
            if self._tail is None:
                self._open(self._name, "ab")
            super().append(data, size)
            self._is_dirty = True
            self._moved = self._end = self._end + size
        else:
            self._added += size
            view = memoryview(data)
            begin = 0
            count = size % record  # of what comes before whole records of that size
            if not count or (size > record and count + record <= self._entry_bytes):
                count += record
            while begin < size:
                self._add(view[begin : begin + count], count)
                begin += count
                count = record

    def sync(self) -> None:
        """As Files.sync."""
        if self._is_dirty or not self._writes:
            super().sync()
        self._is_dirty = False
        self._added = 0

    def read_into(self, name: str, offset: int, buffer: memoryview) -> int:
        """As Files.read_into."""
        if name != self._name or offset + len(buffer) <= self._moved:
            return super().read_into(name, offset, buffer)
        count: int = min(len(buffer), max(self._end - offset, 0))
        self._read(offset, buffer[:count])
        return count

    def remove(self, name: str) -> None:
        """As Files.remove."""
        if name == self._name:
            self._begin_entries("", 0)  # those that a cut left between the next file and this
        super().remove(name)

    def close(self) -> None:
        """As Files.close. First the file gets all, if that is much: a board that sleeps then wakes sooner."""
        try:
            if self._writes and max(self._next, self._kept_end) > _CLOSED_MAX:
                self._move(self._end)
        except (OSError, MemoryError):
            pass  # they are durable as they are
        super().close()

    def _started(self) -> None:
        """The files are about to change: what was remembered, for LittleFS takes long to find a file, may be wrong."""
        self._names = None
        self._parts = {}

    # ---- entries ----------------------------------------------------------------------------------

    def _add(self, data: memoryview, size: int) -> None:
        """Write an entry. Before that the file gets what fills its blocks."""
        self._move(self._block_end(self._end))
        if self._is_joined(data, size):
            return
        slot = self._take(_parts(size))
        model, packed = self._pack(data, size)
        body = self._packed if packed else data
        parts = _parts(packed or size)
        for part in range(parts):
            begin = part * _BODY_BYTES
            place = self._end, size, self._end - self._model_start if packed else 0, model, part, parts
            self._put(slot + part, "wb", place, body[begin : min(begin + _BODY_BYTES, packed or size)])
        self._next = slot + parts
        self._starts.append(self._end)
        self._slots.append(slot | _PACKED if packed else slot)
        if parts == 1 and not packed:
            core.copy(self._packed, 0, data, 0, size)
            self._packed_start = self._end
            self._packed_bytes = self._packed_size = size
            self._packed_skip = _RAW
        if parts > 1 and not packed:
            core.copy(self._model, 0, data, 0, size)
            self._model_start = self._end
            self._model_bytes = size
            self._model_mended = self.mended[:]
        self._end += size

    def _is_joined(self, data: memoryview, size: int) -> bool:
        """Is it added to the entry before, whose part has room for it? Then a start has one file less to read.

        What that holds is durable: it is written over at once, by a longer one, or LittleFS keeps what is there.
        """
        packed = self._packed_bytes
        is_raw = self._packed_skip == _RAW
        end = packed + size if is_raw else packed + 2 + size
        if (
            not (packed and self._starts)
            or end > _BODY_BYTES
            or (self._packed_skip and not is_raw)
            or self._packed_start != self._starts[-1]
        ):
            return False
        self._packed_bytes = 0  # until it is there
        start = self._packed_start
        place = start, self._end - start + size, 0, 0, 0, 1
        if not is_raw:
            place = place[:2] + (start - self._model_start, self._model_bytes | _FRONT, 0, 1)
            self._packed[packed] = 0
            self._packed[packed + 1] = size
        core.copy(self._packed, end - size, data, 0, size)
        self._put(self._slots[-1] & ~_PACKED, "r+b", place, self._packed[:end])
        self._end += size
        self._packed_size += size
        self._packed_bytes = end
        return True

    def _put(self, slot: int, mode: str, place: "tuple[int, ...]", body: memoryview) -> None:
        if self._seed is None:
            self._seed = self._found.get(self._name) or self._seed_of(self._name)
        size = _HEAD_BYTES + len(body)
        part = bytearray(size)
        struct.pack_into(_HEAD, part, 0, 0, int(self._name[:8], 16), *place)
        core.put_crc(part, 0, 4, _HEAD_BYTES, self._seed)
        core.copy(part, _HEAD_BYTES, body, 0, len(body))
        self._open(_file_name(slot), mode)
        self._tail_is_new = False
        super().append(part, size)  # at once: what an interrupt leaves open, LittleFS writes as it is
        super().sync()
        self._close_tail()  # now: what stays in a small heap where memory was free parts it

    def _take(self, parts: int) -> int:
        """The first of so many files that hold nothing that counts."""
        for _ in range(2):
            if self._next < self._kept_end and self._next + parts > self._kept:
                self._next = self._kept_end
            if self._next + parts <= _SLOTS:
                break
            self._move(self._end)
        return self._next

    def _move(self, end: int) -> None:
        """Give the file what it does not have until there, and forget the entries that it has wholly then."""
        if end <= self._moved:
            return
        self._open(self._name, "r+b" if self.fixed else "ab")  # anew: a write that has failed leaves it unusable
        assert self._tail is not None
        self._moved = self._tail.seek(0, 2)  # all of it, if only the answer was lost
        place = self._moved
        part = memoryview(bytearray(_BODY_BYTES))
        while place < end:
            count = min(end - place, _BODY_BYTES)
            self._read(place, part[:count])
            super().append(part, count)
            place += count
        super().sync()
        self._moved = place
        count = self._index(place) if place < self._end else len(self._starts)
        slots = self._slots[count:]  # both, or want of memory ends it before anything has changed
        self._starts = self._starts[count:]
        self._slots = slots
        if len(self._starts) <= 1:
            self._kept_end = self._next if self._starts else 0
            self._kept = self._slots[0] & ~_PACKED if self._starts else 0
            self._next = 0

    def _pack(self, data: memoryview, size: int) -> "tuple[int, int]":
        """The word of the model, as in _HEAD, and how many bytes of `_packed` tell the entry; 0, 0: not packed."""
        self._packed_bytes = 0
        model = self._model_bytes if self._model_mended == self.mended and size > _BODY_BYTES else 0
        if model and self._end - self._model_start <= _DISTANCE_MAX:
            for skip in (model - size, 0) if model != size else (0,):
                packed = _differences(self._packed, data, size, self._model, model, skip)
                if packed and _parts(packed) < _parts(size):
                    self._packed_start = self._end
                    self._packed_bytes = packed
                    self._packed_size = size
                    self._packed_skip = skip
                    return (model if skip else model | _FRONT), packed
        return 0, 0


def _differences(
    packed: memoryview, data: memoryview, size: int, model: memoryview, model_bytes: int, skip: int
) -> int:
    """Put into packed where data differs from the model, from byte skip on: runs of u8 same, u8 other, the others. How
    much that is; 0: it has no room.
    """
    low = max(-skip, 0)  # from here to there it may be the same
    high = min(model_bytes - skip, size)
    fill = place = 0
    while place < size:
        begin = place
        stop = min(high, begin + _RUN_MAX) if low <= place else 0
        while place < stop and data[place] == model[place + skip]:
            place += 1
        first = end = place
        stop = min(size, first + _RUN_MAX)
        while place < stop and place - end < _SAME_MIN:
            if not low <= place < high or data[place] != model[place + skip]:
                end = place + 1
            place += 1
        if fill + 2 + end - first > len(packed):
            return 0
        packed[fill] = first - begin
        packed[fill + 1] = end - first
        core.copy(packed, fill + 2, data, first, end)
        fill += 2 + end - first
        place = end
    return fill


def _words(data: bytearray) -> "tuple[int, ...]":
    """Those at the begin of a part; zeros, if they are not there, or less follows than they say."""
    if len(data) > _HEAD_BYTES:
        words = struct.unpack_from(_HEAD, data)
        _, _, _, size, distance, _, part, parts = words
        whole = _BODY_BYTES if part + 1 < parts else 1 if distance else size - part * _BODY_BYTES
        if len(data) - _HEAD_BYTES >= whole:
            return words
    return struct.unpack_from(_HEAD, bytes(_HEAD_BYTES))


def _crc(head: "tuple[int, ...]", seed: int) -> int:
    """The one that a part with this head has."""
    packed = bytearray(_HEAD_BYTES)
    struct.pack_into(_HEAD, packed, 0, *head)
    core.put_crc(packed, 0, 4, _HEAD_BYTES, seed)
    value: int = struct.unpack_from("<I", packed)[0]
    return value


def _parts(size: int) -> int:
    return (size + _BODY_BYTES - 1) // _BODY_BYTES


def _file_name(slot: int) -> str:
    return "{:02d}{}".format(slot, log.TAIL)


def _slot_of(name: str) -> int:
    """The number of a part's file; -1: it is none."""
    return int(name[:2]) if len(name) == 7 and name.endswith(log.TAIL) and name[:2].isdigit() else -1
