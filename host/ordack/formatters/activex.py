"""Bodies of COM components and .NET's ActiveXMessageFormatter: one value, with its type in the body type.

A BSTR is UTF-16 without a terminator; LPSTR and LPWSTR have one. A DATE counts days from 30 December 1899, in the
writer's local time. It is read and written as a naive datetime, truncated to milliseconds.
"""

from __future__ import annotations

import datetime
import math
import struct
import uuid

from ordack.config.names import counted
from ordack.formatters import common
from ordack.formatters.common import BodyError, Kind, packed

NAME = "ActiveX"
VECTOR, ARRAY = 0x1000, 0x2000  # added to the element's type
_EPOCH = datetime.datetime(1899, 12, 30)  # noqa: DTZ001 - a DATE has no zone
_DAY = datetime.timedelta(days=1)
_FIRST_YEAR = 100
_BYTES = (bytes, bytearray, memoryview)
_TEXT_ADVICE = "take `body` and decode it as its sender encoded it"


def _utf16(data: bytes) -> str:
    try:
        return data.decode("utf-16-le")
    except UnicodeDecodeError as error:
        raise ValueError(f"no UTF-16 at byte {error.start}; {_TEXT_ADVICE}") from None


def _ascii(data: bytes) -> str:
    try:
        return data.decode("ascii")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"byte {error.start} is 0x{data[error.start]:02X}, whose meaning depends on the sender's code page; "
            f"{_TEXT_ADVICE}"
        ) from None


def _write_ascii(text: str) -> bytes:
    try:
        return text.encode("ascii") + b"\0"
    except UnicodeEncodeError as error:
        raise ValueError(f"{text[error.start]!r} is not ASCII; VT_BSTR holds it") from None


def _without_end(data: bytes, end: bytes) -> bytes:
    return data[: -len(end)] if data.endswith(end) and len(data) % len(end) == 0 else data


def _read_bool(data: bytes) -> bool:
    if len(data) not in (1, 2):
        raise ValueError(f"it has {counted(len(data), 'byte')}, and should have 2")
    return any(data)


def _write_date(when: datetime.datetime) -> bytes:
    if when.tzinfo is not None:
        raise ValueError("a DATE has no zone: convert it with .astimezone(...).replace(tzinfo=None)")
    if when.year < _FIRST_YEAR:
        raise ValueError(f"a DATE begins with the year {_FIRST_YEAR}")
    since = when.replace(microsecond=when.microsecond // 1000 * 1000) - _EPOCH
    days, fraction = since.days, (since - since.days * _DAY) / _DAY
    return struct.pack("<d", days + fraction if days >= 0 else days - fraction)  # only the whole days carry the sign


def _read_date(data: bytes) -> datetime.datetime:
    number: float = _DOUBLE.read(data)
    if not math.isfinite(number):
        raise ValueError(f"{number} is no time")
    days = math.trunc(number)
    milliseconds = round(abs(number - days) * (_DAY / datetime.timedelta(milliseconds=1)))
    found = _EPOCH + days * _DAY + datetime.timedelta(milliseconds=milliseconds)
    if found.year < _FIRST_YEAR:
        raise ValueError(f"a DATE begins with the year {_FIRST_YEAR}")
    return found


def _write_nothing(_value: None) -> bytes:
    return b""


def _read_nothing(data: bytes) -> None:
    if data:
        raise ValueError(f"it has {counted(len(data), 'byte')}, and should have none")


def _read_guid(data: bytes) -> uuid.UUID:
    if len(data) != 16:
        raise ValueError(f"it has {counted(len(data), 'byte')}, and should have 16")
    return uuid.UUID(bytes_le=data)


_DOUBLE = packed("d", (float, int))
_BLOB: Kind[bytes] = Kind(_BYTES, bytes, bytes)
_KINDS: dict[str, tuple[int, Kind[bytes]]] = {
    "VT_BSTR": (8, Kind((str,), lambda text: common.unicode(text).encode("utf-16-le"), _utf16)),
    "VT_LPSTR": (30, Kind((str,), _write_ascii, lambda data: _ascii(_without_end(data, b"\0")))),
    "VT_LPWSTR": (
        31,
        Kind(
            (str,),
            lambda text: common.unicode(text).encode("utf-16-le") + b"\0\0",
            lambda data: _utf16(_without_end(data, b"\0\0")),
        ),
    ),
    "VT_BOOL": (11, Kind((bool,), lambda value: b"\xff\xff" if value else b"\0\0", _read_bool)),
    "VT_I1": (16, packed("b")),
    "VT_I2": (2, packed("h")),
    "VT_I4": (3, packed("i")),
    "VT_I8": (20, packed("q")),
    "VT_UI1": (17, packed("B")),
    "VT_UI2": (18, packed("H")),
    "VT_UI4": (19, packed("I")),
    "VT_UI8": (21, packed("Q")),
    "VT_R4": (4, packed("f", (float, int))),
    "VT_R8": (5, _DOUBLE),
    "VT_DATE": (7, Kind((datetime.datetime,), _write_date, _read_date)),
    "VT_CLSID": (72, Kind((uuid.UUID,), lambda value: value.bytes_le, _read_guid)),
    "VT_NULL": (1, Kind((type(None),), _write_nothing, _read_nothing)),
    "VT_ARRAY|VT_UI1": (ARRAY | 17, _BLOB),
    "VT_VECTOR|VT_UI1": (VECTOR | 17, _BLOB),
    "VT_BLOB": (65, _BLOB),
}
_USUAL = (
    "VT_BSTR", "VT_BOOL", "VT_I4", "VT_I8", "VT_UI8", "VT_R8", "VT_DATE", "VT_CLSID", "VT_NULL",
    "VT_ARRAY|VT_UI1",
)  # fmt: skip
KINDS = {name: kind for name, (_, kind) in _KINDS.items()}
NAMES = {code: name for name, (code, _) in _KINDS.items()}


def write(value: object, kind: str | None) -> tuple[bytes, int]:
    """Return a value's bytes and body type. Raises TypeError, ValueError."""
    name, data = common.write(NAME, value, kind, KINDS, _USUAL)
    return data, _KINDS[name][0]


def read(data: bytes, body_type: int) -> object:
    """Return the value of a body. Raises BodyError."""
    if body_type not in NAMES:
        raise BodyError(f"the body type is {body_type} (0x{body_type:X}), which is not read here: take `body`")
    name = NAMES[body_type]
    return common.read(NAME, name, KINDS[name], data)
