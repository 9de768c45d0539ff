"""The C core on CPython, through the cffi module `_mqqb`: the functions of mqqb.core.

Conditions that C asserts are checked here and raise ValueError.
"""
# mypy: disable-error-code="no-any-return"

import fcntl
import os
from array import array
from typing import Any

from _mqqb import ffi, lib

from mqqb.constants import PACKET_SIZE_MAX, PARTS
from mqqb.core_py import _check_number, _check_part, copy, copy_words, drop, put_crc, put_words  # noqa: F401 - as fast

_BYTES = ffi.typeof("uint8_t[]")
_WORDS = ffi.typeof("uint32_t[]")
_SESSION = ffi.typeof("mqqb_session[]")
_SESSION_HEADER = ffi.typeof("mqqb_session_header[]")
_INCOMING = ffi.typeof("mqqb_incoming[]")
_OUTGOING = ffi.typeof("mqqb_outgoing[]")
_TRANSACTION_HEADER = ffi.typeof("mqqb_transaction_header[]")
_ORDER_ACK = ffi.typeof("mqqb_order_ack[]")
_SIZES = tuple([lib.mqqb_part_size(part) for part in range(PARTS)])
_PART_WORDS = tuple([lib.mqqb_part_words(part) for part in range(PARTS)])
_from_buffer = ffi.from_buffer
os.register_at_fork(after_in_child=lambda: _locks.clear())  # the parent holds these locks
_locks: "dict[str, int]" = {}  # descriptors of locked files; they stay open, because closing one ends the file's lock


def _structure(kind: Any, words: "array[int]", written: bool = False) -> Any:
    structures = _from_buffer(kind, words, written)
    if len(structures) < 1:
        raise ValueError("array too short")
    return structures


def part_size(part: int) -> int:
    _check_part(part)
    return _SIZES[part]


def part_words(part: int) -> int:
    _check_part(part)
    return _PART_WORDS[part]


def unpack(part: int, fields: "array[int]", data: "bytes | bytearray | memoryview", offset: int, end: int) -> int:
    _check_part(part)
    words = _from_buffer(_WORDS, fields, True)
    octets = _from_buffer(_BYTES, data)
    if len(words) < _PART_WORDS[part]:
        raise ValueError("array too short")
    if not 0 <= offset <= end <= len(octets):
        raise ValueError("range outside the buffer")
    return lib.mqqb_unpack(part, words, octets + offset, end - offset)


def pack(part: int, fields: "array[int]", data: "bytearray | memoryview", offset: int) -> None:
    _check_part(part)
    words = _from_buffer(_WORDS, fields)
    octets = _from_buffer(_BYTES, data, True)
    if len(words) < _PART_WORDS[part]:
        raise ValueError("array too short")
    if not 0 <= offset <= len(octets) - _SIZES[part]:
        raise ValueError("range outside the buffer")
    if not lib.mqqb_pack_checked(part, words, octets + offset):
        raise ValueError("field out of range")


def packet_total(flags: int, packet_size: int) -> int:
    _check_number(flags, 0, 0xFFFF)
    _check_number(packet_size, 0, PACKET_SIZE_MAX)
    return lib.mqqb_packet_total(flags, packet_size)


def frame(data: "bytes | bytearray | memoryview", offset: int, end: int, total: "array[int]") -> int:
    words = _from_buffer(_WORDS, total, True)
    octets = _from_buffer(_BYTES, data)
    if len(words) < 1:
        raise ValueError("array too short")
    if not 0 <= offset <= end <= len(octets):
        raise ValueError("range outside the buffer")
    return lib.mqqb_frame(octets + offset, end - offset, words)


def serial_after(a: int, b: int) -> bool:
    _check_number(a, 0, 0xFFFF)
    _check_number(b, 0, 0xFFFF)
    return lib.mqqb_serial_after(a, b) != 0


def is_acked(base: int, flags: int, seq: int) -> bool:
    _check_number(base, 0, 0xFFFF)
    _check_number(flags, 0, 0xFFFFFFFF)
    _check_number(seq, 0, 0xFFFF)
    return lib.mqqb_is_acked(base, flags, seq) != 0


def session_init(s: "array[int]", window_size: int) -> None:
    _check_number(window_size, 1, 0xFFFF)
    lib.mqqb_session_init(_structure(_SESSION, s, True), window_size)


def session_can_send(s: "array[int]") -> bool:
    return lib.mqqb_session_can_send(_structure(_SESSION, s)) != 0


def session_sent(s: "array[int]", recoverable: bool) -> None:
    lib.mqqb_session_sent(_structure(_SESSION, s, True), bool(recoverable))


def session_received(s: "array[int]", recoverable: bool) -> None:
    lib.mqqb_session_received(_structure(_SESSION, s, True), bool(recoverable))


def session_stored(s: "array[int]", recoverable: bool) -> int:
    sessions = _structure(_SESSION, s, True)
    session = sessions[0]
    if session.message_stored_count == session.message_received_count:
        raise ValueError("nothing left to store")
    if recoverable and session.recoverable_message_stored_count == session.recoverable_message_received_count:
        raise ValueError("nothing recoverable left to store")
    return lib.mqqb_session_stored(sessions, bool(recoverable))


def session_unacked_received(s: "array[int]") -> int:
    return lib.mqqb_session_unacked_received(_structure(_SESSION, s))


def session_unacked_sent(s: "array[int]") -> int:
    return lib.mqqb_session_unacked_sent(_structure(_SESSION, s))


def session_fill(s: "array[int]", h: "array[int]") -> None:
    lib.mqqb_session_fill(_structure(_SESSION, s, True), _structure(_SESSION_HEADER, h, True))


def session_check(s: "array[int]", h: "array[int]", carried: bool) -> int:
    return lib.mqqb_session_check(_structure(_SESSION, s, True), _structure(_SESSION_HEADER, h), bool(carried))


def tx_compare(ordinal_a: int, time_stamp_a: int, ordinal_b: int, time_stamp_b: int) -> int:
    for number in (ordinal_a, time_stamp_a, ordinal_b, time_stamp_b):
        _check_number(number, 0, 0xFFFFFFFF)
    return lib.mqqb_tx_compare(ordinal_a, time_stamp_a, ordinal_b, time_stamp_b)


def accept(incoming: "array[int]", h: "array[int]") -> bool:
    return lib.mqqb_accept(_structure(_INCOMING, incoming, True), _structure(_TRANSACTION_HEADER, h)) != 0


def stamp(outgoing: "array[int]", previous: int, h: "array[int]") -> int:
    stream = _structure(_OUTGOING, outgoing, True)
    header = _structure(_TRANSACTION_HEADER, h, True)
    _check_number(previous, 0, stream[0].tx_sequence_number - 1)
    return lib.mqqb_stamp(stream, previous, header)


def order_ack_received(outgoing: "array[int]", ack: "array[int]") -> int:
    return lib.mqqb_order_ack_received(_structure(_OUTGOING, outgoing, True), _structure(_ORDER_ACK, ack))


def roll(outgoing: "array[int]") -> None:
    lib.mqqb_roll(_structure(_OUTGOING, outgoing, True))


def lock(name: str) -> None:
    if name in _locks and os.path.exists(name) and os.path.samestat(os.fstat(_locks[name]), os.stat(name)):
        return
    file = os.open(name, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as error:
        os.close(file)
        raise OSError(f"another program holds {name}: end it, or use another folder") from error
    if name in _locks:
        os.close(_locks[name])  # of a deleted file
    _locks[name] = file
