"""The protocol between `ordack serve` and applications: frames over the Unix socket in the store's folder, and over TCP
by `[[applications]]`. Only users who may write to the store can connect to the Unix socket.

A frame is its length, four bytes little-endian, and that many bytes of CBOR: an array that begins with the frame's
kind. The application asks, `serve` answers, one question at a time; only TAKE may follow COMMIT before its answer. When
the connection ends, or the same application says hello on another one, messages taken but not committed return to their
queues.

Messages are an array: empty, or numbers and packets. The numbers are eight bytes each, little-endian: the ranks of all
messages and runs, then their lookup ids, arrivals, doubts, aborts and counts, as in `store.messages.StoredMessage`.
Keys are such numbers, too.

| question | answer |
|---|---|
| HELLO, VERSION, application | DONE, GUID of the queue manager |
| TAKE, queue, limit, counted, poison_after, lookup id, correlation id, milliseconds to wait | DONE, messages |
| COMMIT, number, keys taken, class, runs of letters, order or nothing | DONE, results of the letters and the order |
| PUT_BACK, keys | DONE |
| EMPTY, queue, class, last lookup id, also mark | DONE, messages removed, whether none is left (else ask again) |
| QUEUE, its name or identifier | DONE, fields of `store.queues.Queue` |
| LOOK, queue, rank, lookup id, limit | DONE, messages after that position, which stay |
| STATE, message id | DONE, fields of `confirm.Conclusion`; DONE alone if unknown |
| NOTE, queue, text | DONE: the log has a line of what an operator has done |
| BYE | none: the application will not ask about its last commit |
| any | FAILED, kind of error, text |
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mqqb import confirm

from ordack.broker.commits import ORDERS
from ordack.broker.message import KINDS, Letter, Order, Request, Run, Wanted, misfit
from ordack.config.names import BadName
from ordack.store import StoreError, StoreUnknown
from ordack.store.messages import StoredMessage, singles

VERSION = 9
# TCP options: a connection whose peer or path is gone ends after a minute.
KEEP_ALIVE = {
    "TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000, "TCP_NODELAY": 1,
}  # fmt: skip
SOCKET = "serve.sock"
HELLO, TAKE, COMMIT, PUT_BACK, BYE = "hello", "take", "commit", "put back", "bye"
EMPTY = "empty"
STOP = "stop"
QUEUE, LOOK, STATE, NOTE = "queue", "look", "state", "note"
DONE, FAILED = "done", "failed"
LENGTH = struct.Struct("<I")
FRAME_MAX = 64 << 20  # bytes; bounds one commit
RECEIVE_BYTES = 96 << 10  # per read: larger buffers make malloc ask the kernel for pages each time
HELLO_MAX = 256  # bytes of a frame before the application is known
SHORT = 64  # bytes of a question that may come again
NAME_MAX = 1000  # characters of a queue's name
TEXT_MAX = 5000  # of an order's argument, which may be a path
PAGE = 256  # messages per LOOK
WAIT_MAX_MS = 60_000
APPLICATION_SIZE = 16
CONNECT_S = 5.0  # that a busy `serve` may need to accept a connection

_OTHERS: dict[str, type[Exception]] = {"name": BadName, "value": ValueError}  # further errors reported to applications
_NOTHING = Letter("")
DONE_WITH = b"\x82\x64done"  # the begin of DONE with a value: an array of two, and the text


class MalformedFrame(Exception):
    """The data is no frame of this protocol."""


def frame(*content: Any) -> bytes:
    """Encode a frame. Raises ValueError above FRAME_MAX."""
    import cbor2  # direct work on a store does not load it

    return _in_frame(cbor2.dumps(content, encoders=_arrays()))


def _in_frame(data: bytes) -> bytes:
    if len(data) > FRAME_MAX:
        raise ValueError(f"the commit has {len(data)} bytes; one takes at most {FRAME_MAX}: send it in several")
    return LENGTH.pack(len(data)) + data


@functools.cache
def _arrays() -> dict[type, Callable[..., None]]:
    """The encoders of types that cbor2 must write as arrays. For other types cbor2 asks Python, and swallows exceptions
    that a signal handler raises there."""
    import cbor2

    return dict.fromkeys((list, tuple, Order), cbor2.CBOREncoder.encode_array)


def frame_in(buffer: bytearray, most: int = FRAME_MAX) -> bytes | None:
    """Remove a complete frame from the buffer and return what follows its length; None without one. most: bytes of a
    frame. Raises MalformedFrame."""
    if len(buffer) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack_from(buffer)
    if size > most:
        raise MalformedFrame(f"a frame of {size} bytes is announced; {most} are allowed")
    end = LENGTH.size + size
    if len(buffer) < end:
        return None
    data = bytes(memoryview(buffer)[LENGTH.size : end])
    del buffer[:end]
    return data


def content_of(data: bytes) -> list[Any]:
    """The content of a frame. Raises MalformedFrame."""
    import cbor2

    try:
        content = cbor2.loads(data)
    except Exception as error:  # noqa: BLE001 - any error means that the bytes are no frame
        raise MalformedFrame(f"a frame is no CBOR: {error}") from None
    if not isinstance(content, list) or not content or not isinstance(content[0], str):
        raise MalformedFrame("a frame is no array that begins with what it is")
    return content


# ---- questions


def commit_question(request: Request) -> bytes:
    """Encode COMMIT; omitted properties are Letter's defaults. Raises ValueError if the frame is too large."""
    return frame(
        COMMIT,
        request.number,
        packed(request.commit.taken),
        request.commit.message_class,
        [_short(run) for run in request.commit.letters],
        request.commit.order,
    )


def _short(run: Run) -> list[Any]:
    values = [run.letter.destination, [run.bodies, struct.pack(f"<{len(run.sizes)}I", *run.sizes)], *run.letter[2:]]
    while len(values) > 2 and values[-1] == _NOTHING[len(values) - 1]:
        values.pop()
    return values


@functools.lru_cache(maxsize=64)
def take_question(wanted: Wanted, timeout: float) -> bytes:
    """Encode TAKE. timeout: seconds."""
    return frame(TAKE, *wanted, min(round(1000 * timeout), WAIT_MAX_MS))


def number(value: Any, least: int = 0) -> int:
    """Return a valid number for the store. Raises MalformedFrame."""
    if not isinstance(value, int) or not least <= value < 1 << 62:
        raise MalformedFrame(
            f"{type(value).__name__} is no number from {least} to 2**62"
        )  # the value may be too long to show
    return value


def _number_or_none(value: Any) -> int | None:
    return None if value is None else number(value)


def _wait(value: Any) -> int:
    return min(number(value), WAIT_MAX_MS)


def _place(value: Any) -> int:
    return number(value, -1)


def _limit(value: Any) -> int:
    return min(number(value, 1), PAGE)


def _correlation(value: Any) -> bytes | None:
    if not isinstance(value, (bytes, type(None))):
        raise MalformedFrame("a correlation identifier is no bytes")
    return value


def packed(numbers: Sequence[int]) -> bytes:
    """Return numbers as frames carry many of them; cbor2 takes longer for a number than for a packet."""
    return struct.pack(f"<{len(numbers)}q", *numbers)


def _numbers(keys: Any) -> tuple[int, ...]:
    if not isinstance(keys, list) or not set(map(type, keys)) <= {int}:
        raise MalformedFrame("keys are no array of numbers")
    if keys:
        number(min(keys))
        number(max(keys))
    return tuple(keys)


def _keys(keys: Any) -> tuple[int, ...]:
    if not isinstance(keys, bytes) or len(keys) % 8:
        raise MalformedFrame("keys are no bytes, eight for each")
    return _numbers(list(struct.unpack(f"<{len(keys) // 8}q", keys)))


def _emptying(value: Any) -> int:
    if value not in (confirm.NACK_Q_PURGED, confirm.NACK_Q_DELETED):
        raise MalformedFrame("the class of `empty` says neither that the queue is purged nor that it is deleted")
    return int(value)


def _name(value: Any) -> str:
    if not isinstance(value, str) or len(value) > NAME_MAX:
        raise MalformedFrame(f"a name is no text of up to {NAME_MAX} characters")
    return value


def _queue(value: Any) -> str | int:
    return _name(value) if isinstance(value, str) else number(value)


def _runs(letters: Any) -> tuple[Run, ...]:
    if not isinstance(letters, list):
        raise MalformedFrame("the letters of a commit are no array")
    return tuple(map(_run, letters))


def _run(fields: object) -> Run:
    if not isinstance(fields, list) or not 2 <= len(fields) <= len(KINDS):
        raise MalformedFrame("a letter is no array of its properties")
    parts = fields[1]
    if not isinstance(parts, list) or list(map(type, parts)) != [bytes, bytes] or not parts[1] or len(parts[1]) % 4:
        raise MalformedFrame("the bodies of a letter are no array of bytes and their sizes")
    bodies, sizes = parts[0], struct.unpack(f"<{len(parts[1]) // 4}I", parts[1])
    if sum(sizes) != len(bodies):
        raise MalformedFrame("the bodies of a letter have other sizes")
    fields[1] = b""
    if (wrong := misfit(fields)) is not None:
        raise MalformedFrame(f"{Letter._fields[wrong]} of a letter is {type(fields[wrong]).__name__}")
    return Run(Letter(*fields), sizes, bodies)


def _order(fields: object) -> Order | None:
    if fields is None:
        return None
    if not isinstance(fields, list) or len(fields) != 2 or not isinstance(fields[1], list):
        raise MalformedFrame("an order is no array of its name and its arguments")
    name, arguments = fields
    if not isinstance(name, str) or name not in ORDERS:
        raise MalformedFrame(f"there is no order {name!r:.40}")
    types = ORDERS[name][1]
    if len(arguments) != len(types):
        raise MalformedFrame(f"the order {name} with {len(arguments)} arguments")
    for value, of in zip(arguments, types, strict=True):
        if not isinstance(value, of):
            raise MalformedFrame(f"an argument of the order {name} is {type(value).__name__}")
        if isinstance(value, int):
            number(value)
        elif isinstance(value, str) and len(value) > TEXT_MAX:
            raise MalformedFrame(f"an argument of the order {name} has more than {TEXT_MAX} characters")
        elif isinstance(value, list):
            _numbers(value)
    return Order(name, tuple(arguments))


# The readers of each question's parts.
QUESTIONS: dict[str, tuple[Callable[[Any], Any], ...]] = {
    TAKE: (number, number, bool, _number_or_none, _number_or_none, _correlation, _wait),
    COMMIT: (number, _keys, number, _runs, _order),
    PUT_BACK: (_keys,),
    EMPTY: (number, _emptying, number, bool),
    QUEUE: (_queue,),
    LOOK: (number, _place, _place, _limit),
    STATE: (number,),
    NOTE: (_name, _name),
    BYE: (),
    STOP: (),
}


def question_in(data: bytes) -> tuple[str, Sequence[Any]]:
    """Return the kind of the question in a frame, and its checked parts. Raises MalformedFrame."""
    return _repeated(data) if len(data) <= SHORT else _question(data)


def _question(data: bytes) -> tuple[str, Sequence[Any]]:
    kind, *parts = content_of(data)
    if kind not in QUESTIONS:
        raise MalformedFrame(f"there is no question {kind!r:.40}")
    if len(parts) != len(QUESTIONS[kind]):
        raise MalformedFrame(f"`{kind}` with {len(parts) + 1} parts")
    return kind, tuple([read(part) for read, part in zip(QUESTIONS[kind], parts)])


_repeated = functools.lru_cache(maxsize=64)(_question)  # a consumer asks for each message with the same TAKE


# ---- answers


def failed(error: Exception) -> bytes:
    """Encode FAILED."""
    others = (kind for kind, of in _OTHERS.items() if isinstance(error, of))
    kind = error.kind if isinstance(error, StoreError) else next(others, StoreError.kind)
    return frame(FAILED, kind, error.reason if isinstance(error, StoreUnknown) else str(error))


def answered(result: Any) -> bytes:
    """Encode an answer: DONE with messages or other values, or FAILED. Bytes are a value that is CBOR already. Raises
    ValueError above FRAME_MAX."""
    if isinstance(result, Exception):
        return failed(result)
    if isinstance(result, bytes):
        return _in_frame(DONE_WITH + result)
    return frame(DONE, rows_of(result) if isinstance(result, list) else result)


def rows_of(messages: Sequence[StoredMessage]) -> list[Any]:
    """Return messages as DONE carries them."""
    if not messages:
        return []
    ranks, lookup_ids, arrivals, doubts, packets, aborts, counts = zip(*messages, strict=True)
    numbers = (*ranks, *lookup_ids, *arrivals, *doubts, *aborts, *counts)
    return [packed(numbers), packets]


def messages_in(rows: list[Any]) -> list[StoredMessage]:
    """Return the messages of `rows_of`."""
    if not rows:
        return []
    numbers, packets = rows
    values = struct.unpack(f"<{6 * len(packets)}q", numbers)
    ranks, lookup_ids, arrivals, doubts, aborts, counts = (
        values[first : first + len(packets)] for first in range(0, len(values), len(packets))
    )
    return singles(map(StoredMessage, ranks, lookup_ids, arrivals, doubts, packets, aborts, counts))


def result_of(answer: list[Any]) -> Any:
    """Return the value of DONE, None if absent. Raises the error of FAILED, and MalformedFrame."""
    if answer[0] == DONE:
        return answer[1] if len(answer) > 1 else None
    if answer[0] == FAILED and len(answer) == 3:
        raise (StoreError.KINDS.get(answer[1]) or _OTHERS.get(answer[1], StoreError))(str(answer[2]))
    raise MalformedFrame(f"an answer begins with {answer[0]!r:.40}")


# ---- the socket


@contextlib.contextmanager
def _reached(folder: Path) -> Iterator[str]:
    """Yield a short name of the socket: the kernel limits the length."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        short = Path(f"/proc/self/fd/{descriptor}")
        yield str((short if short.is_dir() else folder) / SOCKET)
    finally:
        os.close(descriptor)


def listen(folder: Path) -> socket.socket:
    """Create the socket with access for its owner only. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        (folder / SOCKET).unlink(missing_ok=True)  # of a killed `serve`: we hold its lock
        with _reached(folder) as name:
            before = os.umask(0o177)
            try:
                listener.bind(name)
            finally:
                os.umask(before)
        listener.listen(64)
    except OSError:
        listener.close()
        raise
    return listener


def is_there(folder: Path) -> bool:
    """Does the socket exist? It may have no listener."""
    return (folder / SOCKET).exists()


def connect(folder: Path) -> socket.socket | None:
    """Connect to the `serve` of this store; None if none accepts."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(CONNECT_S), 0))
        with _reached(folder) as name:
            connection.connect(name)
    except OSError:
        connection.close()
        return None
    return connection


def keep_alive(connected: socket.socket) -> None:
    """Let the kernel detect a dead peer."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
