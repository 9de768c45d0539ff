"""What the formats of bodies have in common: which kinds of values each has, and what is said of a value or a body that
does not fit."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from ordack.config.names import counted

Form = TypeVar("Form", str, bytes)

SHOWN_MAX = 40  # characters of a value in an error


class BodyError(ValueError):
    """A body cannot be read as it was asked for. The text says why, and what to do."""


class Kind(NamedTuple, Generic[Form]):
    """A type of values in a format. types: of Python that it takes. write: from such a value, raises ValueError if it
    is out of range; read: back, raises ValueError or OverflowError if there is no such value."""

    types: tuple[type, ...]
    write: Callable[[Any], Form]
    read: Callable[[Form], Any]


def write(
    what: str, value: object, kind: str | None, kinds: Mapping[str, Kind[Form]], usual: Iterable[str]
) -> tuple[str, Form]:
    """The kind that a value is written as, and what is written. kind: None for the first of the usual ones that holds
    it. what: the format, for an error. Raises TypeError for a type that the format or the kind has not; ValueError for
    a value out of range and a kind that there is not.
    """
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
    """A bool is an int of Python's, but not meant as one."""
    return isinstance(value, kind.types) and (not isinstance(value, bool) or bool in kind.types)


def _is_meant(kind: Kind[Form], value: object) -> bool:
    """An integer that is too large for integers does not become a fraction unasked."""
    return kind.types[0] is int or not isinstance(value, int) or isinstance(value, bool)


def _advice(kind: str | None, kinds: Mapping[str, Kind[Form]]) -> str:
    types = kinds[kind].types[:1] if kind else {one.types[0]: None for one in kinds.values()}
    return f"convert it to {' or '.join(of.__name__ for of in types)}"


def read(what: str, name: str, kind: Kind[Form], written: Form) -> Any:
    """The value. Raises BodyError."""
    try:
        return kind.read(written)
    except (ValueError, OverflowError, struct.error) as error:
        raise BodyError(f"the body is no {name} of {what}: {error}") from None


def shown(value: object) -> str:
    """A value in an error, not longer than it has to be."""
    try:
        text = repr(value[:SHOWN_MAX] if isinstance(value, (str, bytes, bytearray)) else value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, or deep in something
        text = "this value"
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 3] + "..."


def whole(code: str) -> Callable[[Any], int]:
    """Checks that an integer has the range of that code of `struct`. Raises ValueError."""
    bits = 8 * struct.calcsize(code)
    low, high = (-1 << bits - 1, (1 << bits - 1) - 1) if code.islower() else (0, (1 << bits) - 1)

    def check(value: int) -> int:
        if not low <= value <= high:
            raise ValueError(f"{low} to {high} fit")
        return int(value)

    return check


def packed(code: str, types: tuple[type, ...] = (int,)) -> Kind[bytes]:
    """Numbers as that code of `struct` has them, little-endian."""
    form = struct.Struct("<" + code)
    check = float if code in "fd" else whole(code)

    def from_bytes(data: bytes) -> Any:
        if len(data) != form.size:
            raise ValueError(f"it has {counted(len(data), 'byte')}, and should have {form.size}")
        return form.unpack(data)[0]

    return Kind(types, lambda value: form.pack(check(value)), from_bytes)


def unicode(text: str) -> str:
    """The text, if it is valid. Raises ValueError."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"it holds half a character at {error.start}") from None
    return text
