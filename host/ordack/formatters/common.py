"""Common parts of the formats of bodies: kinds of values, and errors for values and bodies that do not fit."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from ordack.config.names import counted

Form = TypeVar("Form", str, bytes)

SHOWN_MAX = 40  # characters of a value in an error


class BodyError(ValueError):
    """A body cannot be read as requested. The text gives the reason and the remedy."""


class Kind(NamedTuple, Generic[Form]):
    """A type of a format. types: accepted Python types. write: converts a value; raises ValueError if out of range.
    read: converts back; raises ValueError or OverflowError."""

    types: tuple[type, ...]
    write: Callable[[Any], Form]
    read: Callable[[Form], Any]


def write(
    what: str, value: object, kind: str | None, kinds: Mapping[str, Kind[Form]], usual: Iterable[str]
) -> tuple[str, Form]:
    """Return a value's kind and its written form. kind: None selects the first usual kind that holds the value. what:
    name of the format, for errors. Raise TypeError if the format or kind lacks the type, ValueError for a value out of
    range or an unknown kind."""
    if kind is not None and kind not in kinds:
        raise ValueError(f"{what} has no {kind!r}; it has {', '.join(kinds)}")
    if kind:
        fitting = [kind] if _takes(kinds[kind], value) else []
    else:
        fitting = [name for name in usual if _takes(kinds[name], value) and _is_meant(kinds[name], value)]
    if not fitting:
        holds = kind or what
        raise TypeError(
            f"{shown(value)} is {type(value).__name__}, which {holds} does not hold: {_advice(kind, kinds)}"
        )
    reason = ""
    for name in fitting:
        try:
            return name, kinds[name].write(value)
        except (ValueError, OverflowError, struct.error) as error:
            reason = str(error)
    raise ValueError(f"{shown(value)} is no {' or '.join(fitting)}: {reason}")


def _takes(kind: Kind[Form], value: object) -> bool:
    """Test the type. A Python bool is an int, but is not meant as one."""
    return isinstance(value, kind.types) and (not isinstance(value, bool) or bool in kind.types)


def _is_meant(kind: Kind[Form], value: object) -> bool:
    """Exclude fractional kinds for integers: an integer too large for integer kinds must not become a float."""
    return kind.types[0] is int or not isinstance(value, int) or isinstance(value, bool)


def _advice(kind: str | None, kinds: Mapping[str, Kind[Form]]) -> str:
    types = kinds[kind].types[:1] if kind else {one.types[0]: None for one in kinds.values()}
    return f"convert it to {' or '.join(of.__name__ for of in types)}"


def read(what: str, name: str, kind: Kind[Form], written: Form) -> Any:
    """Return the value. Raises BodyError."""
    try:
        return kind.read(written)
    except (ValueError, OverflowError, struct.error) as error:
        raise BodyError(f"the body is no {name} of {what}: {error}") from None


def shown(value: object) -> str:
    """Format a value for an error, shortened."""
    try:
        text = repr(value[:SHOWN_MAX] if isinstance(value, (str, bytes, bytearray)) else value)
    except (ValueError, RecursionError):  # an integer with thousands of digits, or deep nesting
        text = "this value"
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 3] + "..."


def whole(code: str) -> Callable[[Any], int]:
    """Return a check that an integer fits a `struct` code. The check raises ValueError."""
    bits = 8 * struct.calcsize(code)
    low, high = (-1 << bits - 1, (1 << bits - 1) - 1) if code.islower() else (0, (1 << bits) - 1)

    def check(value: int) -> int:
        if not low <= value <= high:
            raise ValueError(f"{low} to {high} fit")
        return int(value)

    return check


def packed(code: str, types: tuple[type, ...] = (int,)) -> Kind[bytes]:
    """Return a little-endian number of a `struct` code."""
    form = struct.Struct("<" + code)
    check = float if code in "fd" else whole(code)

    def from_bytes(data: bytes) -> Any:
        if len(data) != form.size:
            raise ValueError(f"it has {counted(len(data), 'byte')}, and should have {form.size}")
        return form.unpack(data)[0]

    return Kind(types, lambda value: form.pack(check(value)), from_bytes)


def unicode(text: str) -> str:
    """Return the text. Raise ValueError for a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"it holds half a character at {error.start}") from None
    return text
