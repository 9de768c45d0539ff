"""Captures of a queue manager's traffic as pcapng files, for Wireshark and `ordack capture`.

    recorder = Recorder(Path("plant.pcapng"), 1 << 30, log)
    connection = recorder.connection(("10.0.0.7", 50123), ("10.0.0.1", 1801), opened_here=False)
    connection.received(data)
    recorder.flush()

The queue manager records the bytes itself, so a capture needs no special rights and covers serial lines. The recorder
makes up the headers with valid checksums and sequence numbers: a handshake, a segment per read and write, FIN or RST.
The accepting side always has port 1801, because readers recognize the protocol by that port. Both ends of a serial line
have link-local addresses; the log maps names to addresses.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import ipaddress
import os
import platform
import re
import struct
import time
from collections.abc import Callable
from pathlib import Path

from ordack.broker.serve_log import INFO, LogLine
from ordack.config.config import PORT

PARTS = 8  # files that share the total size

_FILES_MAX = 100  # of any size

# Block and option types (draft-ietf-opsawg-pcapng, sections 3 and 4).
_SECTION_HEADER, _INTERFACE, _PACKET = 0x0A0D0D0A, 1, 6
_COMMENT, _APPLICATION, _NAME, _DESCRIPTION, _RESOLUTION = 1, 4, 2, 3, 9
_ETHERNET, _SNAP = 1, 262144
_BUFFER = 1 << 16
_SEGMENT_MAX = 65_000  # bytes of data: the length field of an IP packet has 16 bits
_FIN, _SYN, _RST, _PSH, _ACK = 1, 2, 4, 8, 16
_WINDOW = 65535
_OPTIONS = b"\1\3\3\x0e"  # the greatest window scale, so that readers accept large writes
_LINE_ADDRESS = "169.254.0.1"  # this side of a serial line
_LINE_ADDRESSES = int(ipaddress.ip_address("169.254.1.0"))
_PORTS = range(49152, 65536)

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _block(kind: int, *parts: bytes) -> bytes:
    """A block of a pcapng file."""
    body = b"".join(parts)
    body += bytes(-len(body) & 3)
    size = struct.pack("<I", 12 + len(body))
    return b"".join((struct.pack("<I", kind), size, body, size))


def _option(code: int, value: bytes) -> bytes:
    """An option of a block."""
    return struct.pack("<HH", code, len(value)) + value + bytes(-len(value) & 3)


def _head() -> bytes:
    """The head of each file: its writer and the one interface. Timestamps are in ns."""
    comment = f"sent and received by ordack serve on {platform.node()}"
    section = (
        struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1),  # byte order, version 1.0, no length
        _option(_COMMENT, comment.encode()),
        _option(_APPLICATION, f"ordack {importlib.metadata.version('ordack')}".encode()),
        bytes(4),
    )
    interface = (
        struct.pack("<HHI", _ETHERNET, 0, _SNAP),
        _option(_NAME, b"ordack"),
        _option(_DESCRIPTION, b"taken in the queue manager: Ethernet, IP and TCP headers are made up"),
        _option(_RESOLUTION, b"\x09"),
        bytes(4),
    )
    return _block(_SECTION_HEADER, *section) + _block(_INTERFACE, *interface)


class _Sender:
    """One end of a connection: builds its segments. sequence: number of its next byte."""

    def __init__(
        self, source: _Address, port: int, destination: _Address, destination_port: int, sequence: int
    ) -> None:
        self.sequence = sequence
        self._ports = port, destination_port
        addresses = source.packed + destination.packed
        self._addresses = addresses
        self._sum = int.from_bytes(addresses) % 0xFFFF
        self._link = b"\2\0\0\0\0\1\2\0\0\0\0\2" + (b"\x86\xdd" if source.version == 6 else b"\x08\x00")
        self._six = source.version == 6

    def segment(self, flags: int, acknowledged: int, data: bytes | memoryview = b"") -> bytes:
        """A frame. The checksums of IP and TCP are sums modulo 2^16 - 1."""
        options = _OPTIONS if flags & _SYN else b""
        offset = 5 + len(options) // 4
        size = 4 * offset + len(data)
        total = self._sum + 6 + size + sum(self._ports) + self.sequence + acknowledged + (offset << 12 | flags)
        total += _WINDOW + int.from_bytes(options) + (int.from_bytes(data) << 8 * (len(data) & 1))
        if self._six:
            ip = struct.pack(">IHBB", 6 << 28, size, 6, 64)
        else:
            ip = struct.pack(
                ">BBHHHBBH",
                0x45,
                0,
                20 + size,
                0,
                0x4000,
                64,
                6,
                -(0x4500 + 20 + size + 0x4000 + 0x4006 + self._sum) % 0xFFFF,
            )
        tcp = struct.pack(
            ">HHIIBBHHH", *self._ports, self.sequence, acknowledged, offset << 4, flags, _WINDOW, -total % 0xFFFF, 0
        )
        self.sequence = self.sequence + len(data) + bool(flags & (_SYN | _FIN)) & 0xFFFFFFFF
        return b"".join((self._link, ip, self._addresses, tcp, options, data))


class RecordedConnection:
    """One connection, from its beginning to `closed`."""

    def __init__(
        self,
        recorder: Recorder,
        here: _Sender,
        there: _Sender,
        opened_here: bool,
        key: tuple[_Address, int, _Address, int],
    ) -> None:
        self.key = key
        self._recorder = recorder
        self._here, self._there = here, there
        first, second = (here, there) if opened_here else (there, here)
        recorder.add(first.segment(_SYN, 0))
        recorder.add(second.segment(_SYN | _ACK, first.sequence))
        recorder.add(first.segment(_ACK, second.sequence))

    def sent(self, data: bytes | bytearray | memoryview) -> None:
        """Record written bytes."""
        self._data(self._here, self._there, data)

    def received(self, data: bytes | bytearray | memoryview) -> None:
        """Record read bytes."""
        self._data(self._there, self._here, data)

    def closed(self, here: bool, reset: bool) -> None:
        """Record the end. here: this side closed the connection. reset: the connection did not end in order."""
        first, second = (self._here, self._there) if here else (self._there, self._here)
        self._recorder.add(first.segment((_RST if reset else _FIN) | _ACK, second.sequence))
        if not reset:
            self._recorder.add(second.segment(_FIN | _ACK, first.sequence))
            self._recorder.add(first.segment(_ACK, second.sequence))
        self._recorder.forget(self)

    def _data(self, sender: _Sender, other: _Sender, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        for at in range(0, len(view), _SEGMENT_MAX):
            self._recorder.add(sender.segment(_PSH | _ACK, other.sequence, view[at : at + _SEGMENT_MAX]))


class Recorder:
    """Writes the frames of its connections to `file`, then to numbered files beside it: plant.pcapng,
    plant-000002.pcapng.

    Existing files are never overwritten: the next number follows. The oldest files are removed to keep the total within
    `size` bytes, 1 MiB or more. `flush` writes whole frames, so a killed process leaves readable files. If writing
    fails, the recorder calls log with the reason and stops recording. Raises OSError if the first file cannot be made.
    """

    def __init__(self, file: Path, size: int, log: Callable[[str], None]) -> None:
        self._file = file
        self._size = size
        self._log = log
        self._buffer = bytearray()
        self._head = _head()
        self._written = 0  # bytes in the file that is open
        self._begun = 0  # bytes of the head
        self._descriptor = -1
        self._live: set[tuple[_Address, int, _Address, int]] = set()
        self._lines: dict[str, str] = {}
        self._next_port = 0
        file.parent.mkdir(parents=True, exist_ok=True)
        self._next_file()

    def connection(self, peer: tuple[str, int], local: tuple[str, int] | None, opened_here: bool) -> RecordedConnection:
        """Begin a connection. local: address and port; None: a serial line named by peer."""
        here = _address(_LINE_ADDRESS if local is None else local[0])
        there = _address(self._line(peer[0]) if local is None else peer[0])
        port = (local if opened_here and local else peer)[1]
        while port == 0 or self._key(here, there, port, opened_here) in self._live:
            port = _PORTS[self._next_port]  # a serial line has no port, and two calls may share one
            self._next_port = (self._next_port + 1) % len(_PORTS)
        key = self._key(here, there, port, opened_here)
        self._live.add(key)
        first = time.time_ns() >> 10 & 0xFFFFFFFF  # differs per connection, as with any TCP
        here_port, there_port = (port, PORT) if opened_here else (PORT, port)
        return RecordedConnection(
            self,
            _Sender(here, here_port, there, there_port, first),
            _Sender(there, there_port, here, here_port, first ^ 0x80000000),
            opened_here,
            key,
        )

    def add(self, frame: bytes) -> None:
        """Record a frame at the current time."""
        if self._descriptor >= 0:
            now = time.time_ns()
            size = len(frame)
            place = struct.pack("<IIIII", 0, now >> 32, now & 0xFFFFFFFF, size, size)
            self._buffer += _block(_PACKET, place, frame)
            if len(self._buffer) >= _BUFFER:
                self.flush()

    def forget(self, connection: RecordedConnection) -> None:
        """A connection has ended."""
        self._live.discard(connection.key)

    def flush(self) -> None:
        """Write the buffered frames."""
        if not self._buffer:
            return
        buffer, self._buffer = self._buffer, bytearray()
        try:
            if self._written > self._begun and self._written + len(buffer) > self._size // PARTS:
                self._next_file()
            self._write(buffer)
        except OSError as error:
            self._log(
                f"the capture ends here, {self._file}: {error.strerror or error}; everything else goes on, and "
                "the next start of serve begins a new file"
            )
            self.close()

    def close(self) -> None:
        """Write the buffered frames and stop recording."""
        if self._descriptor >= 0:
            self.flush()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._buffer.clear()

    # ---- inside

    @staticmethod
    def _key(here: _Address, there: _Address, port: int, opened_here: bool) -> tuple[_Address, int, _Address, int]:
        return (here, port, there, PORT) if opened_here else (there, port, here, PORT)

    def _line(self, name: str) -> str:
        """The address of a board on a serial line."""
        if name not in self._lines:
            self._lines[name] = str(ipaddress.ip_address(_LINE_ADDRESSES + len(self._lines)))
            text = f"in the capture, the serial line {name} has the address {self._lines[name]}"
            self._log(LogLine(text, INFO, peer=name))
        return self._lines[name]

    def _next_file(self) -> None:
        pattern = re.compile(re.escape(self._file.stem) + r"(?:-(\d{6,}))?" + re.escape(self._file.suffix))
        there: list[tuple[int, Path, int]] = []
        for path in self._file.parent.iterdir():
            if match := pattern.fullmatch(path.name):
                with contextlib.suppress(FileNotFoundError):  # another process may remove files too
                    there.append((int(match[1] or 1), path, path.stat().st_size))
        there.sort()
        number = there[-1][0] + 1 if there else 1
        path = self._file.with_name(f"{self._file.stem}-{number:06}{self._file.suffix}") if number > 1 else self._file
        total = sum(size for _, _, size in there) + self._size // PARTS
        while there and (total > self._size or len(there) >= _FILES_MAX):
            _, old, size = there.pop(0)
            old.unlink(missing_ok=True)
            total -= size
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = descriptor
        self._written = 0
        try:
            self._write(self._head)
        except OSError:
            path.unlink()
            raise
        self._begun = self._written

    def _write(self, data: bytes | bytearray) -> None:
        """Write all of `data`, or nothing and raise OSError."""
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._written)
            raise
        self._written += len(data)


def _address(text: str) -> _Address:
    return ipaddress.ip_address(text.partition("%")[0])
