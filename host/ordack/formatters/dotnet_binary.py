"""Bodies as .NET's BinaryMessageFormatter has them: one value of a simple type in the format of its BinaryFormatter
([MS-NRBF]): a header, one record, and the end.

A text is a record BinaryObjectString, a byte array ArraySinglePrimitive. Other values are objects of a system class,
whose members are listed in front of them; a record of theirs is always the same up to the values. A record
MemberPrimitiveTyped is read, too. Objects of other classes are not: what a BinaryFormatter makes of such bytes is up to
whoever wrote them.
"""

from __future__ import annotations

import datetime
import struct
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from ordack.formatters import common
from ordack.formatters.common import BodyError, Kind, packed

NAME = "BinaryFormatter"
BODY_TYPE = 0x300

_HEADER = struct.Struct("<Biiii")  # record, RootId, HeaderId, MajorVersion, MinorVersion
_ARRAY_HEAD = struct.Struct("<iB")  # length, type of its elements
_HEADER_RECORD, _VERSION = 0, (1, 0)
_ROOT = 1  # identifier of the only object
_NO_HEADERS = -1
_SYSTEM_CLASS, _STRING, _PRIMITIVE, _END, _ARRAY = 4, 6, 8, 11, 15
_BYTE = 2  # as the type of primitives
_PRIMITIVE_MEMBER = 0  # BinaryTypeEnumeration: a member is a primitive
_RECORDS = {
    1: "ClassWithId", 2: "SystemClassWithMembers", 3: "ClassWithMembers", 5: "ClassWithMembersAndTypes",
    7: "BinaryArray", 9: "MemberReference", 10: "ObjectNull", 12: "BinaryLibrary", 16: "ArraySingleObject",
    17: "ArraySingleString", 21: "MethodCall", 22: "MethodReturn",
}  # fmt: skip
_ADVICE = "have its sender use XmlMessageFormatter or JSON, or take `body`"
_LENGTH_BYTES = 5  # of the length of a text, at most: 7 bits in each, and 32 in all
_START = datetime.datetime(1, 1, 1)  # noqa: DTZ001 - the zone is said beside it
_TICKS_PER_MICROSECOND = 10
_KIND_BIT = 62  # of a time's two bits that say what it is relative to
_UTC = 1


def _length_prefixed(text: bytes) -> bytes:
    length, out = len(text), bytearray()
    while length >= 0x80:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out) + text


def _take_text(data: bytes) -> tuple[str, bytes]:
    """A text with its length in front, and what follows. Raises ValueError."""
    length = 0
    for place, byte in enumerate(data[:_LENGTH_BYTES]):
        length |= (byte & 0x7F) << 7 * place
        if not byte & 0x80:
            break
    else:
        raise ValueError("the length of a text does not end")
    start = place + 1
    if length > len(data) - start:
        raise ValueError(f"a text of {length} bytes is announced, and {len(data) - start} are left")
    try:
        return data[start : start + length].decode(), data[start + length :]
    except UnicodeDecodeError as error:
        raise ValueError(f"a text is no UTF-8 at byte {error.start}") from None


# ---- values of several members


def _write_time(when: datetime.datetime) -> bytes:
    kind = 0 if when.tzinfo is None else _UTC
    if kind:
        when = when.astimezone(datetime.UTC).replace(tzinfo=None)
    ticks = (when - _START) // datetime.timedelta(microseconds=1) * _TICKS_PER_MICROSECOND
    return struct.pack("<qQ", ticks, kind << _KIND_BIT | ticks)


def _time(stamp: int) -> datetime.datetime:
    """Ticks and what they are relative to. Local time of the sender is as one whose zone nobody says."""
    ticks = stamp & (1 << _KIND_BIT) - 1
    found = _START + datetime.timedelta(microseconds=ticks // _TICKS_PER_MICROSECOND)
    return found.replace(tzinfo=datetime.UTC) if stamp >> _KIND_BIT == _UTC else found


def _read_time(data: bytes) -> datetime.datetime:
    ticks, stamp = struct.unpack("<qQ", data)
    if ticks != stamp & (1 << _KIND_BIT) - 1:
        raise ValueError("its two times differ")
    return _time(stamp)


_SIGN, _SCALE_BIT = 1 << 31, 16


def _write_decimal(value: Decimal) -> bytes:
    negative, mantissa, scale = common.decimal_parts(value)
    low, middle, high = (mantissa >> shift & 0xFFFFFFFF for shift in (0, 32, 64))
    return struct.pack("<4I", (_SIGN if negative else 0) | scale << _SCALE_BIT, high, low, middle)


def _read_decimal(data: bytes) -> Decimal:
    flags, high, low, middle = struct.unpack("<4I", data)
    scale = flags >> _SCALE_BIT & 0xFF
    if scale > common.SCALE_MAX or flags & ~(_SIGN | 0xFF << _SCALE_BIT):
        raise ValueError(f"its flags are 0x{flags:08X}")
    return common.decimal_of(bool(flags & _SIGN), high << 64 | middle << 32 | low, scale)


# ---- records


class _Class:
    """A system class: its members, each with its name, the number of its primitive type, and its size in bytes."""

    def __init__(self, name: str, *members: tuple[str, int, int]) -> None:
        self.size = sum(size for _, _, size in members)
        self.head = (
            _length_prefixed(name.encode())
            + struct.pack("<i", len(members))
            + b"".join(_length_prefixed(member.encode()) for member, _, _ in members)
            + bytes([_PRIMITIVE_MEMBER] * len(members))
            + bytes(number for _, number, _ in members)
        )

    def kind(self, inner: Kind[bytes]) -> Kind[bytes]:
        """Its record, with what is in front of it in the stream."""

        def write(value: Any) -> bytes:
            return struct.pack("<Bi", _SYSTEM_CLASS, _ROOT) + self.head + inner.write(value)

        return Kind(inner.types, write, inner.read)


def _one_member(name: str, number: int, kind: Kind[bytes]) -> tuple[_Class, Kind[bytes]]:
    return _Class(f"System.{name}", ("m_value", number, len(kind.write(0)))), kind


_OCTET = packed("B")
_BOOLEAN: Kind[bytes] = Kind((bool,), lambda value: bytes([bool(value)]), lambda data: bool(_OCTET.read(data)))
_PRIMITIVES: dict[str, tuple[int, Kind[bytes]]] = {  # with their numbers, PrimitiveTypeEnumeration
    "Boolean": (1, _BOOLEAN),
    "Byte": (_BYTE, _OCTET),
    "Double": (6, packed("d", (float, int))),
    "Int16": (7, packed("h")),
    "Int32": (8, packed("i")),
    "Int64": (9, packed("q")),
    "SByte": (10, packed("b")),
    "Single": (11, packed("f", (float, int))),
    "UInt16": (14, packed("H")),
    "UInt32": (15, packed("I")),
    "UInt64": (16, packed("Q")),
}
_INT16, _INT32, _INT64, _DATE_TIME, _UINT64 = 7, 8, 9, 13, 16
_CLASSES: dict[str, tuple[_Class, Kind[bytes]]] = {
    **{name: _one_member(name, number, kind) for name, (number, kind) in _PRIMITIVES.items()},
    "Decimal": (
        _Class("System.Decimal", *((name, _INT32, 4) for name in ("flags", "hi", "lo", "mid"))),
        Kind((Decimal, int), _write_decimal, _read_decimal),
    ),
    "DateTime": (
        _Class("System.DateTime", ("ticks", _INT64, 8), ("dateData", _UINT64, 8)),
        Kind((datetime.datetime,), _write_time, _read_time),
    ),
    "Guid": (
        _Class(
            "System.Guid", ("_a", _INT32, 4), ("_b", _INT16, 2), ("_c", _INT16, 2),
            *((f"_{letter}", _BYTE, 1) for letter in "defghijk"),
        ),
        Kind((uuid.UUID,), lambda value: value.bytes_le, lambda data: uuid.UUID(bytes_le=data)),
    ),
}  # fmt: skip


def _write_string(text: str) -> bytes:
    return struct.pack("<Bi", _STRING, _ROOT) + _length_prefixed(common.unicode(text).encode())


def _write_array(value: bytes) -> bytes:
    data = bytes(value)
    return struct.pack("<Bi", _ARRAY, _ROOT) + _ARRAY_HEAD.pack(len(data), _BYTE) + data


def _read_class(data: bytes) -> object:
    for made, kind in _CLASSES.values():
        if data.startswith(made.head):
            values = data[len(made.head) :]
            if len(values) != made.size:
                raise ValueError(f"its values have {len(values)} bytes, and should have {made.size}")
            return kind.read(values)
    name, _ = _take_text(data)
    raise ValueError(f"it is an object of the class {common.shown(name)}, or of another form of it: {_ADVICE}")


def _read_string(data: bytes) -> str:
    text, rest = _take_text(data)
    if rest:
        raise ValueError(f"{len(rest)} bytes follow its text")
    return text


def _read_array(data: bytes) -> bytes:
    length, element = _ARRAY_HEAD.unpack_from(data)
    if element != _BYTE:
        raise ValueError(f"it is an array of the primitive type {element}, not of bytes: {_ADVICE}")
    found = data[_ARRAY_HEAD.size :]
    if length != len(found):
        raise ValueError(f"an array of {length} bytes is announced, and there are {len(found)}")
    return found


def _read_primitive(data: bytes) -> object:
    number, value = data[0], data[1:]
    for known, kind in _PRIMITIVES.values():
        if known == number:
            return kind.read(value)
    if number == _DATE_TIME and len(value) == 8:
        return _time(int.from_bytes(value, "little"))
    raise ValueError(f"it is of the primitive type {number}, in {len(value)} bytes: {_ADVICE}")


_READERS: dict[int, Callable[[bytes], object]] = {
    _SYSTEM_CLASS: _read_class, _STRING: _read_string, _ARRAY: _read_array,
}  # fmt: skip
KINDS: dict[str, Kind[bytes]] = {
    "String": Kind((str,), _write_string, _read_string),
    **{name: made.kind(kind) for name, (made, kind) in _CLASSES.items()},
    "Byte[]": Kind((bytes, bytearray, memoryview), _write_array, _read_array),
}
_USUAL = ("String", "Boolean", "Int32", "Int64", "UInt64", "Double", "Decimal", "DateTime", "Guid", "Byte[]")


def write(value: object, kind: str | None) -> bytes:
    """A value as such a stream. Raises TypeError, ValueError."""
    _, record = common.write(NAME, value, kind, KINDS, _USUAL)
    return _HEADER.pack(_HEADER_RECORD, _ROOT, _NO_HEADERS, *_VERSION) + record + bytes([_END])


def read(data: bytes) -> object:
    """The value in such a stream. Raises BodyError."""
    try:
        return _read(data)
    except (ValueError, OverflowError, IndexError, struct.error) as error:
        raise BodyError(f"the body is no value of {NAME} that is read here: {error}") from None


def _read(data: bytes) -> object:
    if len(data) < _HEADER.size + 2:
        raise ValueError(f"it has only {len(data)} bytes")
    record, root, _, *version = _HEADER.unpack_from(data)
    if record != _HEADER_RECORD or tuple(version) != _VERSION:
        raise ValueError("it does not begin with a header of version 1.0")
    if data[-1] != _END:
        raise ValueError("it does not end with MessageEnd: it is cut off, or goes on")
    kind, content = data[_HEADER.size], data[_HEADER.size + 1 : -1]
    if kind == _PRIMITIVE:
        return _read_primitive(content)
    if kind not in _READERS:
        raise ValueError(f"it holds a record {_RECORDS.get(kind, kind)}: {_ADVICE}")
    (identifier,) = struct.unpack_from("<i", content)
    if identifier != root:
        raise ValueError(f"its root is the object {root}, and there is only {identifier}")
    return _READERS[kind](content[4:])
