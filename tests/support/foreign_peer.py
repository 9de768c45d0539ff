"""A peer that speaks by hand: bytes from struct, written after the specification alone, and the command that it meets.

Nothing of mqqb is imported.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import queue
import select
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.command import Running, write_settings
from tests.support.command import as_json as ordack

DEADLINE_S = 60.0
QUIET_S = 0.3  # nothing comes for so long: nothing comes. Longer than any batch takes; OrderAcks are waited for longer
NULL = bytes(16)
FOR_EVER = 0xFFFFFFFF
SIGNATURE = 0x524F494C
ESTABLISH, PARAMETERS, SESSION_ACK, ORDER_ACK, FINAL_ACK, MESSAGE = range(6)
LINE1 = "OS:here\\private$\\line1"
PLAIN = "OS:here\\private$\\plain"
NOWHERE = "OS:here\\private$\\nowhere"
GUIDS = (struct.pack("<QQ", 0x1122334455667788, number) for number in itertools.count(1))
NUMBERS = itertools.count(1)  # of messages; a peer may leave gaps


# ---- bytes, after wire.md -------------------------------------------------------------------------


def base(
    size: int, flags: int, reserved: int = 0, ttrq: int = FOR_EVER, version: int = 0x10, signature: int = SIGNATURE
) -> bytes:
    return struct.pack("<BBHIII", version, reserved, flags, signature, size, ttrq)


def establish(
    client: bytes,
    server: bytes = NULL,
    *,
    reserved: int = 0xC0,
    system: int = 0x0310,
    padding: bytes = b"\x5a" * 512,
    time_stamp: int = 0x1DDECA4E,
    pt: int = 2,
) -> bytes:
    return (
        base(572, 0x000B, reserved)
        + struct.pack("<HH", 0, pt)
        + client
        + server
        + struct.pack("<IHH", time_stamp, system, 0)
        + padding
    )


def parameters(recoverable: int = 500, ack: int = 20000, window: int = 64, reserved: int = 0xC0) -> bytes:
    return base(32, 0x000B, reserved) + struct.pack("<HHIIHH", 0, 3, recoverable, ack, 0, window)


def session_header(
    ack: int, first: int = 0, bits: int = 0, sent: int = 0, recoverable: int = 0, window: int = 64
) -> bytes:
    return struct.pack("<HHIHHHH", ack, first, bits, sent & 0xFFFF, recoverable & 0xFFFF, window, 0xABCD)


def session_ack(header: bytes, reserved: int = 0xCD) -> bytes:
    return base(36, 0x001B, reserved) + struct.pack("<HH", 0, 1) + header


def align(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def direct(name: str) -> bytes:
    text = (name + "\0").encode("utf-16-le")
    return align(struct.pack("<H", len(text)) + text)


def properties(
    body: bytes,
    label: str = "",
    message_class: int = 0,
    ack: int = 0,
    *,
    label_length: int | None = None,
    size: int | None = None,
    allocated: int | None = None,
    extension: int = 0,
    body_type: int = 0x1011,
) -> bytes:
    text = (label + "\0").encode("utf-16-le") if label else b""
    length = len(text) // 2 if label_length is None else label_length
    size = len(body) if size is None else size
    return align(
        struct.pack(
            "<BBH20sIIIIIIII",
            ack,
            length,
            message_class,
            bytes(20),
            body_type,
            0,
            size,
            size if allocated is None else allocated,
            0,
            0x8004,
            0x6801,
            extension,
        )
        + text
        + body
    )


class Tx(NamedTuple):
    """The place in a stream: TimeStamp and Ordinal of the TxSequenceID, number, previous number."""

    time_stamp: int
    ordinal: int
    number: int
    previous: int

    def header(self, flags: int = 0x0000001C) -> bytes:
        return struct.pack("<IIIII", flags, self.ordinal, self.time_stamp, self.number, self.previous)


def message(
    source: bytes,
    destination: str | int,
    body: bytes = b"",
    tx: Tx | None = None,
    *,
    delivery: int = 1,
    message_id: int | None = None,
    header: bytes = b"",
    flags: int = 3,
    user_flags: int = 0,
    address: bytes = NULL,
    names: bytes = b"",
    props: bytes | None = None,
    between: bytes = b"",
    after: bytes = b"",
    ttrq: int = 345600,
    reserved: int = 0,
    size: int | None = None,
    transaction: bytes = b"",
    label: str = "",
    clear: int = 0,
) -> bytes:
    """A UserMessage. destination: a direct format name without DIRECT=, or the identifier of a private queue here.

    user_flags: set in UserHeader.Flags too, `clear` is cleared. names: behind the destination. between: headers before
    the properties, after: behind them. header: a SessionHeader.
    """
    where = direct(destination) if isinstance(destination, str) else struct.pack("<I", destination)
    bits = 0x00200000 | (7 if isinstance(destination, str) else 3) << 10 | delivery << 5
    if tx is not None:
        transaction = transaction or tx.header()
        flags &= ~7
    if transaction:
        bits |= 0x00100000
    user = (
        struct.pack(
            "<16s16sIIII",
            source,
            address,
            FOR_EVER,
            int(time.time()),
            next(NUMBERS) if message_id is None else message_id,
            (bits | user_flags) & ~clear,
        )
        + where
        + names
    )
    rest = user + transaction + between + (properties(body, label) if props is None else props) + after
    return (
        base(16 + len(rest) if size is None else size, flags | (0x10 if header else 0), reserved, ttrq) + rest + header
    )


def acknowledgement(
    source: bytes,
    tx: Tx,
    message_class: int = 0x00FF,
    of: tuple[bytes, int] = (NULL, 0),
    *,
    delivery: int = 0,
    flags: int = 0,
    header: bytes = b"",
    direct_name: bool = True,
    address: bytes = NULL,
    size: int | None = None,
) -> bytes:
    """An OrderAck, or with another class a FinalAck `of` (source, message id)."""
    body = struct.pack("<IIII", tx.ordinal, tx.time_stamp, tx.number, tx.previous) + struct.pack("<16sI", *of)
    return message(
        source,
        "TCP:127.0.0.1\\PRIVATE$\\order_queue$" if direct_name else 4,
        delivery=delivery,
        flags=flags,
        header=header,
        ttrq=FOR_EVER,
        address=address,
        props=properties(body, "QM Ordering Ack", message_class, size=size, body_type=0),
    )


class Seen:
    """A packet of the queue manager, taken apart. kind: one of ESTABLISH to MESSAGE."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        version, _, self.flags, signature, self.size, self.ttrq = struct.unpack_from("<BBHIII", data)
        assert (version, signature) == (0x10, SIGNATURE)
        self.header: tuple[int, ...] = ()
        if self.flags & 0x10:
            self.header = struct.unpack_from("<HHIHHHH", data, 20 if self.flags & 8 else self.size)
        if self.flags & 8:
            assert self.size == len(data)
            self.internal = struct.unpack_from("<H", data, 18)[0]
            self.kind = {1: SESSION_ACK, 2: ESTABLISH, 3: PARAMETERS}[self.internal & 15]
            assert self.size == {SESSION_ACK: 36, ESTABLISH: 572, PARAMETERS: 32}[self.kind]
            assert self.ttrq == FOR_EVER
            return
        assert self.size + len(self.header and data[self.size :]) == len(data)
        self.source, self.address, self.ttbr, self.sent_time, self.message_id, self.user_flags = struct.unpack_from(
            "<16s16sIIII", data, 16
        )
        assert self.user_flags >> 13 & 7 == 0  # AQ
        self.offset = 64
        self.destination = self._queue(self.user_flags >> 10 & 7)
        self.response = self._queue(self.user_flags >> 16 & 7)
        offset = self.offset
        self.recoverable = bool(self.user_flags & 0x60)
        self.tx: Tx | None = None
        if self.user_flags & 0x00100000:
            _, ordinal, time_stamp, number, previous = struct.unpack_from("<IIIII", data, offset)
            self.tx = Tx(time_stamp, ordinal, number, previous)
            offset += 20
        (self.ack, length, self.message_class, self.correlation, self.body_type, _, size, allocated, *_, extension) = (
            struct.unpack_from("<BBH20sIIIIIIII", data, offset)
        )
        assert (extension, allocated) == (0, size)
        offset += 56
        self.label = data[offset : offset + 2 * length].decode("utf-16-le").rstrip("\0")
        self.body = data[offset + 2 * length : offset + 2 * length + size]
        assert self.size == (offset + 2 * length + size + 3) & ~3
        self.kind = MESSAGE
        if self.label == "QM Ordering Ack":
            self.kind = ORDER_ACK if self.message_class == 0x00FF else FINAL_ACK
            ordinal, time_stamp, number, previous = struct.unpack_from("<IIII", self.body)
            self.tx = Tx(time_stamp, ordinal, number, previous)

    def _queue(self, kind: int) -> str | int | None:
        """The queue name at `offset`, of one of the kinds 7, 3 and 0, for none."""
        if kind == 0:
            return None
        if kind == 3:
            self.offset += 4
            return int(struct.unpack_from("<I", self.data, self.offset - 4)[0])
        assert kind == 7
        count = struct.unpack_from("<H", self.data, self.offset)[0]
        text = self.data[self.offset + 2 : self.offset + 2 + count].decode("utf-16-le")
        assert text.endswith("\0")
        self.offset += (2 + count + 3) & ~3
        return text[:-1]


def numbered(first: int, last: int, time_stamp: int = 100, ordinal: int = 1) -> list[Tx]:
    return [Tx(time_stamp, ordinal, number, number - 1) for number in range(first, last + 1)]


# ---- the command ----------------------------------------------------------------------------------


class Server:
    """`ordack serve` on a store of its own, with queues line1, transactional, and plain.

    early: ms of quiet before an OrderAck goes out early; 0: as the specification says, and Windows does.
    settings: others of its configuration file.
    """

    def __init__(self, store: Path, *options: str, early: int = 0, **settings: object) -> None:
        self.store = store
        if not store.exists():
            ordack("init", "--store", store)
        (line1,) = ordack("queue", "create", "--store", store, "line1", "--transactional")
        ordack("queue", "create", "--store", store, "plain", "--non-transactional")
        write_settings(store, EarlyOrderAck=early, **settings)
        self.line1_id: int = line1["id"]
        self.process = Running("serve", "--store", str(store), "--listen", "127.0.0.1:0", "--json", *options)
        self.port = int(json.loads(self.process.stdout.readline())["listening"].rpartition(":")[2])
        self.said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for line in self.process.stderr:
            self.said.put(line)

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(DEADLINE_S) == 0
        self.reader.join()
        self.process.stdout.close()
        self.process.stderr.close()
        while not self.said.empty():
            assert "Traceback" not in self.said.get()

    def received(self, name: str = "line1") -> list[bytes]:
        """Take what the queue holds, with the application's command."""
        taken = ordack("receive", "--store", self.store, name, "--all")
        return [base64.b64decode(line["body_base64"]) for line in taken]

    def connect(self, **handshake: Any) -> Line:
        """A session that is open."""
        line = Line(socket.create_connection(("127.0.0.1", self.port)))
        line.begin(**handshake)
        return line


class Line:
    """One connection as a foreign peer sees it, with the two counts of packets that it sends and receives."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""
        self.guid = next(GUIDS)
        self.server = NULL
        self.received = self.recoverable_received = 0
        self.sent = self.recoverable_sent = 0
        self.acked: set[int] = set()  # recoverable numbers that SessionHeaders have named
        self.ack = 0  # the last AckSequenceNumber

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def begin(self, window: int = 64, recoverable: int = 500, server: bytes = NULL) -> None:
        self.write(establish(self.guid, server))
        response = self.read()
        assert (response.kind, response.internal) == (ESTABLISH, 2)
        self.server = response.data[36:52]
        self.write(parameters(recoverable, window=window))
        assert self.read().kind == PARAMETERS

    def write(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self, *messages: bytes) -> None:
        """Messages in one segment, counted."""
        for data in messages:
            self.sent += 1
            self.recoverable_sent += bool(data[60] & 0x20)
        self.write(b"".join(messages))

    def take(self, wait: float = DEADLINE_S) -> Seen | None:
        """The next packet, or None: nothing came in time. Raises EOFError if the connection is closed."""
        deadline = time.monotonic() + wait
        while True:
            if len(self.buffer) >= 16:
                flags, size = struct.unpack_from("<H4xI", self.buffer, 2)
                total = size + (16 if flags & 0x18 == 0x10 else 0)
                if len(self.buffer) >= total:
                    seen, self.buffer = Seen(self.buffer[:total]), self.buffer[total:]
                    self._note(seen)
                    return seen
            if not select.select([self.socket], [], [], max(deadline - time.monotonic(), 0))[0]:
                return None
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                assert not self.buffer, "closed in the middle of a packet"
                raise EOFError
            self.buffer += data

    def _note(self, seen: Seen) -> None:
        if not seen.flags & 8:
            self.received += 1
            self.recoverable_received += seen.recoverable
        if seen.header:
            ack, first, bits, sent, recoverable, window, _ = seen.header
            assert (sent, recoverable) == (self.received, self.recoverable_received)
            assert window >= 1
            self.ack += (ack - self.ack) & 0xFFFF  # counts beyond 16 bits
            assert self.ack <= self.sent
            assert bool(bits & 1) == bool(bits) >= bool(first)
            top = max(self.acked, default=0)
            start = top + ((first - top) & 0xFFFF)
            named = {start + place for place in range(32) if bits >> place & 1}
            assert not named & self.acked
            self.acked |= named
            assert max(self.acked, default=0) <= self.recoverable_sent

    def read(self) -> Seen:
        seen = self.take()
        assert seen is not None, "nothing comes"
        return seen

    def until(self, kind: int) -> Seen:
        """The next packet of this kind; others before it are let pass."""
        while True:
            seen = self.read()
            if seen.kind == kind:
                return seen

    def messages(self, count: int) -> list[Seen]:
        """The next so many packets in the form of messages."""
        return [self.until(MESSAGE) for _ in range(count)]

    def silent(self, wait: float = QUIET_S) -> None:
        """Nothing but SessionAcks comes, and the connection stays."""
        deadline = time.monotonic() + wait
        while (left := deadline - time.monotonic()) > 0:
            seen = self.take(left)
            assert seen is None or seen.kind == SESSION_ACK

    def header(
        self,
        *,
        ack: int | None = None,
        first: int = 0,
        bits: int = 0,
        more: int = 0,
        more_recoverable: int = 0,
        window: int = 64,
    ) -> bytes:
        """A SessionHeader with the true counts, and so many more packets sent."""
        return session_header(
            self.received if ack is None else ack,
            first,
            bits,
            self.sent + more,
            self.recoverable_sent + more_recoverable,
            window,
        )

    def confirm(self, **values: int) -> None:
        """Acknowledge everything received."""
        self.write(session_ack(self.header(**values)))

    def ends(self) -> list[Seen]:
        """What comes until the connection is closed, which it must be."""
        seen = []
        with contextlib.suppress(EOFError):
            while True:
                packet = self.take()
                assert packet is not None, "the connection stays open"
                seen.append(packet)
        return seen

    def works(self) -> None:
        """What was sent is acknowledged: the session is alive, and all that has been handled.

        32 messages more fill half the window, and so no timer is waited for (B-124). They are one, sent again.
        """
        everything = self.sent
        self.send(*[message(self.guid, PLAIN, b"alive", delivery=0, message_id=next(NUMBERS))] * 32)
        while self.ack < everything + 1:
            self.read()


# ---- the other end: what `ordack send` and serve do -----------------------------------------------


class Hop:
    """A machine by name, on which a hand-made queue manager takes connections."""

    def __init__(self, number: int) -> None:
        self.name = f"hop{number}"
        self.guid = next(GUIDS)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.option = f"{self.name}=127.0.0.1:{self.listener.getsockname()[1]}"
        self.store = Path()

    def order(self, *bodies: bytes, **options: object) -> list[dict[str, Any]]:
        """Give messages for this machine to `ordack send`; what it printed."""
        arguments = [text for name, value in options.items() for text in (f"--{name}", value)]
        target = f"DIRECT=OS:{self.name}\\private$\\q"
        return [
            line
            for body in bodies
            for line in ordack("send", "--store", self.store, target, "--body", body.decode(), *arguments)
        ]

    def accept(self) -> Line:
        """The next connection, as it begins."""
        self.listener.settimeout(DEADLINE_S)
        line = Line(self.listener.accept()[0])
        line.guid = self.guid
        return line

    def open(self, window: int = 64) -> Line:
        """The next connection, after its handshake."""
        line = self.accept()
        request = line.read()
        assert (request.kind, request.internal) == (ESTABLISH, 2)
        assert request.data[36:52] in (NULL, self.guid)
        line.server = request.data[20:36]
        line.write(answer(request, self.guid))
        request = line.read()
        assert request.kind == PARAMETERS
        line.write(parameters(*struct.unpack_from("<II", request.data, 20), window=window))
        return line


def answer(request: Seen, server: bytes, client: bytes | None = None, internal: int = 2) -> bytes:
    data = request.data
    return (
        base(572, 0x000B, 0x5A)
        + struct.pack("<HH", 0, internal)
        + (data[20:36] if client is None else client)
        + server
        + data[52:60]
        + b"\x5a" * 512
    )
