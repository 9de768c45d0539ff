"""Decode JSON or CBOR bodies of messages into columns.

Types are strict: a value that does not fit its column makes the body malformed, with a reason. Nothing is guessed,
rounded or truncated, except as listed here. A missing field is null, like null itself. Other fields are ignored. Of
duplicate fields, the last one counts.

| column | JSON | CBOR |
|---|---|---|
| BOOLEAN | true, false | the same |
| TINYINT, SMALLINT, INT, BIGINT | a number without fraction and exponent, in range | an integer in range |
| FLOAT, DOUBLE | a number that does not round to infinity | a number, also NaN and the infinities |
| DECIMAL(p, s) | a number with at most s decimals and p - s integer digits | an integer or tag 4, likewise |
| STRING | a string | a text string |
| BINARY | base64 in a string | a byte string |
| DATE | `2026-11-21` | the same, or a tag for dates |
| TIMESTAMP | ISO 8601 with `Z` or an offset, truncated to microseconds | the same, or tag 0 or 1 |
| TIMESTAMP_NTZ | ISO 8601 without `Z` and offset | the same |
| ARRAY, STRUCT, MAP<STRING, ...> | an array, an object, an object | an array, a map, a map with text keys |
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import io
import json
import re
from collections.abc import Callable, Sequence
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any

import cbor2
import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_type

from ordack.config.names import counted

JSON, CBOR = "json", "cbor"
FORMATS = (JSON, CBOR)

SHOWN_MAX = 60  # characters of a value in a reason
INFINITE = float("inf"), float("-inf")

_BITS: dict[type[types.DataType], int] = {
    types.ByteType: 8, types.ShortType: 16, types.IntegerType: 32, types.LongType: 64,
}  # fmt: skip
# Classes of JSON values that fit a column.
_ACCEPTED: dict[type[types.DataType], tuple[type, ...]] = {
    **dict.fromkeys(_BITS, (int,)),
    types.BooleanType: (bool,),
    types.FloatType: (int, float, Decimal),
    types.DoubleType: (int, float, Decimal),
    types.DecimalType: (int, Decimal),
    **dict.fromkeys((types.StringType, types.BinaryType, types.DateType, types.TimestampType), (str,)),
    types.TimestampNTZType: (str,),
    types.StructType: (dict,),
    types.MapType: (dict,),
    types.ArrayType: (list,),
}
# Classes of CBOR values that fit a column.
_ACCEPTED_CBOR: dict[type[types.DataType], tuple[type, ...]] = {
    **_ACCEPTED,
    types.BinaryType: (bytes,),
    types.DateType: (str, datetime.date),
    **dict.fromkeys((types.TimestampType, types.TimestampNTZType), (str, datetime.datetime)),
}
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d", re.ASCII)
_SELF_DESCRIBED = b"\xd9\xd9\xf7"  # tag that marks CBOR data
_NAMES = {
    dict: "an object", list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number",
    Decimal: "a number", bytes: "a byte string", type(None): "null",
}  # fmt: skip


class Misfit(Exception):
    """A body, or a value in it, does not fit the schema. The text names the value and the reason."""


class SchemaError(Exception):
    """The schema has a column that no body can fill. The text names the column."""


class Bodies:
    """Decodes JSON or CBOR bodies into the columns `fields`. A column's name is `prefix` followed by the name of the
    body's field. Raises SchemaError."""

    def __init__(self, fields: Sequence[types.StructField], body_format: str = JSON, prefix: str = "") -> None:
        if body_format not in FORMATS:
            raise SchemaError(f"there is no format {body_format!r} of bodies; there are {' and '.join(FORMATS)}")
        for field in fields:
            if not field.name.startswith(prefix) or field.name == prefix:
                raise SchemaError(f"column {field.name}: the name must be the prefix {prefix!r} and a field's name")
        _check("", types.StructType(list(fields)))
        self._fields = [(field.name, field.name[len(prefix) :], field.dataType) for field in fields]
        self._types = [to_arrow_type(field.dataType, timezone="UTC") for field in fields]
        self._load = _json_loader("decimal" in str(fields).lower()) if body_format == JSON else _load_cbor
        self._cbor = body_format == CBOR
        self._accepted = _ACCEPTED if body_format == JSON else _ACCEPTED_CBOR

    def decode(self, bodies: Sequence[bytes]) -> tuple[list[pa.Array], pa.Array]:
        """Return the columns, and for each body null or the reason why it is malformed. All columns of a malformed body
        are null."""
        reasons: list[str | None] = []
        columns: list[list[Any]] = [[] for _ in self._fields]
        for body in bodies:
            reason, row = None, [None] * len(columns)
            try:
                document = self._load(body)
                row = [self._convert(name, kind, document.get(inside)) for name, inside, kind in self._fields]
            except Misfit as misfit:
                reason = str(misfit)
            reasons.append(reason)
            for column, value in zip(columns, row):
                column.append(value)
        return [pa.array(*one) for one in zip(columns, self._types)], pa.array(reasons, pa.string())

    def _convert(self, path: str, kind: types.DataType, value: Any) -> Any:
        """Convert a value for pyarrow. Raises Misfit."""
        if value is None or value is cbor2.undefined:
            return None
        if type(value) not in self._accepted[type(kind)]:
            fraction = " with a fraction or an exponent" if isinstance(value, (float, Decimal)) else ""
            raise Misfit(f"{path}: {_shown(value)} is {_kind(value)}{fraction}, the column is {_name(kind)}")
        if isinstance(kind, types.StructType):
            return {
                field.name: self._convert(f"{path}.{field.name}", field.dataType, value.get(field.name))
                for field in kind.fields
            }
        if isinstance(kind, types.ArrayType):
            return [self._convert(f"{path}[{at}]", kind.elementType, one) for at, one in enumerate(value)]
        if isinstance(kind, types.MapType):
            return [
                (
                    self._convert(f"{path}, a key", kind.keyType, key),
                    self._convert(f"{path}[{key!r}]", kind.valueType, one),
                )
                for key, one in value.items()
            ]
        return _scalar(path, kind, value, self._cbor)


def _check(path: str, kind: types.DataType) -> None:
    """Raise SchemaError for a type that bodies cannot fill."""
    if isinstance(kind, types.StructType):
        seen: dict[str, str] = {}  # tables and SQL ignore case in names
        for field in kind.fields:
            name = f"{path}.{field.name}".lstrip(".")
            if not field.nullable:
                raise SchemaError(
                    f"column {name} is NOT NULL, but the columns of a malformed body are null: leave it out"
                )
            if other := seen.get(name.lower()):
                raise SchemaError(f"column {name} is there already, as {other}: case does not tell names apart")
            seen[name.lower()] = name
            _check(name, field.dataType)
    elif isinstance(kind, types.ArrayType):
        _check(f"{path}[]", kind.elementType)
    elif isinstance(kind, types.MapType):
        if not isinstance(kind.keyType, types.StringType):
            raise SchemaError(f"column {path} is a {kind.simpleString()}: keys of a map are STRING")
        _check(f"{path}[]", kind.valueType)
    elif type(kind) not in _ACCEPTED:
        raise SchemaError(f"column {path} is of the type {_name(kind)}, which bodies are not decoded into")


def _name(kind: types.DataType) -> str:
    return kind.simpleString().upper()


def _json_loader(exact: bool) -> Callable[[bytes], dict[Any, Any]]:
    """exact: read fractions as Decimal, for DECIMAL columns."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no value of JSON")

    decoder = json.JSONDecoder(parse_constant=refuse, parse_float=Decimal if exact else None)

    def load(body: bytes) -> dict[Any, Any]:
        if not body:
            raise Misfit("no JSON: the body is empty")
        try:
            document = decoder.decode(body.decode(json.detect_encoding(body)))
        except UnicodeDecodeError as error:
            raise Misfit(f"no JSON: not {error.encoding} text at byte {error.start}") from None
        except InvalidOperation:
            raise Misfit("no JSON: the exponent of a number is too large") from None
        except (ValueError, RecursionError) as error:
            raise Misfit(f"no JSON: {str(error) or type(error).__name__}") from None
        if not isinstance(document, dict):
            raise Misfit(f"the body is {_kind(document)}, no object")
        return document

    return load


def _load_cbor(body: bytes) -> dict[Any, Any]:
    stream = io.BytesIO(body)
    stream.seek(len(_SELF_DESCRIBED) if body.startswith(_SELF_DESCRIBED) else 0)
    try:
        document = cbor2.CBORDecoder(stream).decode()
    except Exception as error:  # noqa: BLE001 - tags have many decoders, and no error of theirs may stop a stream
        raise Misfit(f"no CBOR: {str(error) or type(error).__name__}") from None
    if stream.tell() != len(body):
        raise Misfit(f"no CBOR: {counted(len(body) - stream.tell(), 'byte')} behind the first item")
    if not isinstance(document, dict):
        raise Misfit(f"the body is {_kind(document)}, no map")
    return document


def _kind(value: Any) -> str:
    return _NAMES.get(type(value), f"a {type(value).__name__}")


def _scalar(path: str, kind: types.DataType, value: Any, cbor: bool) -> Any:
    """Convert a value of an accepted class."""
    if (bits := _BITS.get(type(kind))) and not -1 << bits - 1 <= value < 1 << bits - 1:
        raise _out_of_range(path, kind, value)
    if isinstance(kind, (types.FloatType, types.DoubleType)):
        return _float(path, kind, value, cbor)
    if isinstance(kind, types.DecimalType):
        return _decimal(path, kind, value)
    if isinstance(kind, types.StringType):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Misfit(f"{path}: {_shown(value)} holds half a character") from None
    elif isinstance(kind, types.BinaryType) and isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except ValueError:
            raise Misfit(f"{path}: {_shown(value)} is not base64") from None
    elif isinstance(kind, types.DateType) and isinstance(value, str):
        with contextlib.suppress(ValueError):
            if _DATE.fullmatch(value):
                return datetime.date.fromisoformat(value)
        raise Misfit(f"{path}: {_shown(value)} is no date of the form 2026-11-21")
    elif isinstance(kind, (types.TimestampType, types.TimestampNTZType)):
        return _time(path, kind, value)
    return value


def _float(path: str, kind: types.DataType, value: float | Decimal, cbor: bool) -> float:
    try:
        number = float(value)
    except OverflowError:
        raise _out_of_range(path, kind, value) from None
    single = isinstance(kind, types.FloatType)
    rounded = pa.scalar(number, pa.float64()).cast(pa.float32()).as_py() if single else number
    if rounded in INFINITE and not (cbor and value in INFINITE):
        raise _out_of_range(path, kind, value)
    return number


def _decimal(path: str, kind: types.DecimalType, value: int | Decimal) -> Decimal:
    # this context never rounds: too many digits raise Inexact
    context = Context(prec=kind.precision, Emax=999999, Emin=-999999, traps=[Inexact, InvalidOperation])
    number = Decimal(value)
    if not number.is_finite():
        raise _out_of_range(path, kind, value)
    try:
        return number.quantize(Decimal(1).scaleb(-kind.scale), context=context)
    except Inexact:
        raise Misfit(f"{path}: {_shown(value)} has more decimals than {_name(kind)}") from None
    except InvalidOperation:
        raise _out_of_range(path, kind, value) from None


def _time(path: str, kind: types.DataType, value: str | datetime.datetime) -> datetime.datetime:
    zoned = isinstance(kind, types.TimestampType)
    if isinstance(value, str):
        try:
            if not _TIME.match(value):
                raise ValueError
            value = datetime.datetime.fromisoformat(value)
        except ValueError:
            form = "2026-11-21T18:30:00" + ("Z" if zoned else "")
            raise Misfit(f"{path}: {_shown(value)} is no time of the form {form}") from None
    if zoned != (value.tzinfo is not None):
        lacks, has = ("no", "one") if zoned else ("an", "none")
        raise Misfit(f"{path}: {_shown(value.isoformat())} has {lacks} offset from UTC, a {_name(kind)} has {has}")
    try:
        return value.astimezone(datetime.UTC) if zoned else value
    except OverflowError:
        raise _out_of_range(path, kind, value.isoformat()) from None


def _out_of_range(path: str, kind: types.DataType, value: Any) -> Misfit:
    return Misfit(f"{path}: {_shown(value)} is out of the range of {_name(kind)}")


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value) if isinstance(value, (str, bool)) else str(value)
    except (ValueError, RecursionError):  # an integer with thousands of digits, or deep nesting
        text = "this"
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 3] + "..."
