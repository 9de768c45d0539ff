"""Bodies of messages in JSON or CBOR, decoded into columns.

The types are strict: a value fits a column, or the body is malformed and says why; nothing is guessed, rounded or cut
off, with the exceptions named here. A field that is missing is null, as null is; other fields are passed over; of one
that is there twice, the last counts.

| column | JSON | CBOR |
|---|---|---|
| BOOLEAN | true, false | the same |
| TINYINT, SMALLINT, INT, BIGINT | a number without fraction and exponent, in range | an integer in range |
| FLOAT, DOUBLE | a number; one that rounds to infinity does not fit | a number, also NaN and the infinities |
| DECIMAL(p, s) | a number with at most s decimals and p - s digits in front of them | an integer or tag 4, likewise |
| STRING | a string | a text string |
| BINARY | base64 in a string | a byte string |
| DATE | `2026-11-21` | the same, or a tag for dates |
| TIMESTAMP | ISO 8601 with `Z` or an offset; what is below a microsecond is cut off | the same, or tag 0 or 1 |
| TIMESTAMP_NTZ | ISO 8601 without them | the same |
| ARRAY, STRUCT, MAP<STRING, ...> | an array, an object, an object | an array, a map, a map with text keys |
"""

from __future__ import annotations

import base64
import binascii
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

from ordack.text import counted

JSON, CBOR = "json", "cbor"
FORMATS = (JSON, CBOR)

SHOWN_MAX = 60  # characters of a value in a reason

_INTEGERS: dict[type[types.DataType], int] = {
    types.ByteType: 8,
    types.ShortType: 16,
    types.IntegerType: 32,
    types.LongType: 64,
}
_SIMPLE = (
    types.BooleanType,
    types.FloatType,
    types.DoubleType,
    types.DecimalType,
    types.StringType,
    types.BinaryType,
    types.DateType,
    types.TimestampType,
    types.TimestampNTZType,
    *_INTEGERS,
)
_EXTENDED_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_EXTENDED_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d", re.ASCII)
_SELF_DESCRIBED = b"\xd9\xd9\xf7"  # a tag in front of CBOR that says that it is CBOR, and nothing of the value
_NAMES = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    Decimal: "a number",
    bytes: "a byte string",
    type(None): "null",
}


class Misfit(Exception):
    """A body, or a value in it, does not fit the schema; the text says what and why."""


class SchemaError(Exception):
    """The schema asks for what no body can be decoded into; the text names the column."""


class Bodies:
    """Decodes bodies into the columns `fields`, in either format. A column's name is `prefix` and the field's name in
    the body. Raises SchemaError.
    """

    def __init__(self, fields: Sequence[types.StructField], body_format: str = JSON, prefix: str = "") -> None:
        if body_format not in FORMATS:
            raise SchemaError(f"there is no format {body_format!r} of bodies; there are {' and '.join(FORMATS)}")
        for field in fields:
            if not field.name.startswith(prefix) or field.name == prefix:
                raise SchemaError(f"column {field.name}: the name must be the prefix {prefix!r} and a field's name")
            _check(field.name, field)
        _check_names("", fields)
        self.fields = list(fields)
        self._names = [field.name[len(prefix) :] for field in fields]
        self._types = [to_arrow_type(field.dataType, timezone="UTC") for field in fields]
        exact = any(_has_decimal(field.dataType) for field in fields)
        self._load = _json_loader(exact) if body_format == JSON else _load_cbor
        self._cbor = body_format == CBOR

    def decode(self, bodies: Sequence[bytes]) -> tuple[list[pa.Array], pa.Array]:
        """The columns of these bodies, and for each body null or the reason why it is malformed; then all its columns
        are null."""
        reasons: list[str | None] = [None] * len(bodies)
        documents: list[dict[Any, Any]] = []
        for row, body in enumerate(bodies):
            try:
                documents.append(self._load(body))
            except Misfit as misfit:
                reasons[row] = str(misfit)
                documents.append({})
        columns = []
        for field, name, arrow in zip(self.fields, self._names, self._types, strict=True):
            columns.append(self._column(field, arrow, [document.get(name) for document in documents], reasons))
        if any(reasons):
            rows = pa.array([None if reason else row for row, reason in enumerate(reasons)], pa.int64())
            columns = [column.take(rows) for column in columns]
        return columns, pa.array(reasons, pa.string())

    def _column(
        self, field: types.StructField, arrow: pa.DataType, values: list[Any], reasons: list[str | None]
    ) -> pa.Array:
        """A column value by value, noting the first reason of each body."""
        converted: list[Any] = [None] * len(values)
        for row, value in enumerate(values):
            if reasons[row] is None:
                try:
                    converted[row] = _convert(field.name, field.dataType, value, self._cbor)
                except Misfit as misfit:
                    reasons[row] = str(misfit)
        return pa.array(converted, arrow)


def _check(path: str, field: types.StructField) -> None:
    if not field.nullable:
        raise SchemaError(f"column {path} is NOT NULL, but the columns of a malformed body are null: leave it out")
    _check_type(path, field.dataType)


def _check_names(path: str, fields: Sequence[types.StructField]) -> None:
    """Tables and SQL do not tell names apart by case."""
    seen: dict[str, str] = {}
    for name in (field.name for field in fields):
        if name.lower() in seen:
            other = seen[name.lower()]
            raise SchemaError(f"column {path}{name} is there already, as {path}{other}: case does not tell names apart")
        seen[name.lower()] = name


def _check_type(path: str, kind: types.DataType) -> None:
    if isinstance(kind, types.StructType):
        _check_names(f"{path}.", kind.fields)
        for inner in kind.fields:
            _check(f"{path}.{inner.name}", inner)
    elif isinstance(kind, types.ArrayType):
        _check_type(f"{path}[]", kind.elementType)
    elif isinstance(kind, types.MapType):
        if not isinstance(kind.keyType, types.StringType):
            raise SchemaError(f"column {path} is a {kind.simpleString()}: keys of a map are STRING")
        _check_type(f"{path}[]", kind.valueType)
    elif type(kind) not in _SIMPLE:
        raise SchemaError(f"column {path} is of the type {_name(kind)}, which bodies are not decoded into")


def _has_decimal(kind: types.DataType) -> bool:
    if isinstance(kind, types.StructType):
        return any(_has_decimal(field.dataType) for field in kind.fields)
    if isinstance(kind, types.ArrayType):
        return _has_decimal(kind.elementType)
    if isinstance(kind, types.MapType):
        return _has_decimal(kind.valueType)
    return isinstance(kind, types.DecimalType)


def _name(kind: types.DataType) -> str:
    return kind.simpleString().upper()


def _json_loader(exact: bool) -> Callable[[bytes], dict[Any, Any]]:
    """exact: fractions as Decimal, for columns that take them as they are written."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no value of JSON")

    decoder = json.JSONDecoder(parse_constant=refuse, parse_float=Decimal if exact else None)

    def load(body: bytes) -> dict[Any, Any]:
        if not body:
            raise Misfit("no JSON: the body is empty")
        if body[:1] == b"{" and body[1:2] != b"\0":  # in UTF-8, if it is JSON, and mostly nothing is in front or behind
            with contextlib.suppress(ValueError, RecursionError, InvalidOperation):
                text = body.decode()
                found, end = decoder.raw_decode(text)
                if end == len(text):
                    return found  # type: ignore[no-any-return]
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
    except Exception as error:  # noqa: BLE001 - tags are decoded by many hands, and none may stop a stream
        raise Misfit(f"no CBOR: {str(error) or type(error).__name__}") from None
    if stream.tell() != len(body):
        raise Misfit(f"no CBOR: {counted(len(body) - stream.tell(), 'byte')} behind the first item")
    if not isinstance(document, dict):
        raise Misfit(f"the body is {_kind(document)}, no map")
    return document


def _kind(value: Any) -> str:
    return _NAMES.get(type(value), f"a {type(value).__name__}")


def _convert(path: str, kind: types.DataType, value: Any, cbor: bool) -> Any:
    """The value as pyarrow takes it for a column of this type. Raises Misfit."""
    if value is None or value is cbor2.undefined:
        return None
    if isinstance(kind, types.StructType):
        _expect(path, kind, value, dict)
        return {
            field.name: _convert(f"{path}.{field.name}", field.dataType, value.get(field.name), cbor)
            for field in kind.fields
        }
    if isinstance(kind, types.ArrayType):
        _expect(path, kind, value, list)
        return [_convert(f"{path}[{number}]", kind.elementType, element, cbor) for number, element in enumerate(value)]
    if isinstance(kind, types.MapType):
        _expect(path, kind, value, dict)
        for key in value:
            _expect(f"{path}, a key", types.StringType(), key, str)
        return [
            (_text(path, key), _convert(f"{path}[{key!r}]", kind.valueType, inner, cbor))
            for key, inner in value.items()
        ]
    return _scalar(path, kind, value, cbor)


def _scalar(path: str, kind: types.DataType, value: Any, cbor: bool) -> Any:
    if isinstance(kind, types.BooleanType):
        _expect(path, kind, value, bool)
        return value
    if type(kind) in _INTEGERS:
        _expect(path, kind, value, int)
        bits = _INTEGERS[type(kind)]
        if not -1 << bits - 1 <= value < 1 << bits - 1:
            raise _out_of_range(path, kind, value)
        return value
    if isinstance(kind, (types.FloatType, types.DoubleType)):
        _expect(path, kind, value, int, float, Decimal)
        return _float(path, kind, value, cbor)
    if isinstance(kind, types.DecimalType):
        _expect(path, kind, value, int, Decimal)
        return _decimal(path, kind, value)
    if isinstance(kind, types.StringType):
        _expect(path, kind, value, str)
        return _text(path, value)
    if isinstance(kind, types.BinaryType):
        _expect(path, kind, value, bytes if cbor else str)
        if cbor:
            return value
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise Misfit(f"{path}: {_shown(value)} is not base64") from None
    if isinstance(kind, types.DateType):
        if type(value) is datetime.date and cbor:
            return value
        _expect(path, kind, value, str)
        try:
            if _EXTENDED_DATE.fullmatch(value):
                return datetime.date.fromisoformat(value)
        except ValueError:
            pass
        raise Misfit(f"{path}: {_shown(value)} is no date of the form 2026-11-21")
    return _time(path, kind, value, cbor)


def _float(path: str, kind: types.DataType, value: Any, cbor: bool) -> float:
    if cbor and isinstance(value, float) and value in (float("inf"), float("-inf")):
        return value
    try:
        number = float(value)
    except OverflowError:
        raise _out_of_range(path, kind, value) from None
    if isinstance(kind, types.FloatType):
        rounded = pa.scalar(number, pa.float64()).cast(pa.float32()).as_py()
    else:
        rounded = number
    if rounded in (float("inf"), float("-inf")):
        raise _out_of_range(path, kind, value)
    return number


def _decimal(path: str, kind: types.DecimalType, value: int | Decimal) -> Decimal:
    # a context that rounds nothing: what has more digits than the column raises Inexact
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


def _time(path: str, kind: types.DataType, value: Any, cbor: bool) -> datetime.datetime:
    zoned = isinstance(kind, types.TimestampType)
    if not (cbor and isinstance(value, datetime.datetime)):
        _expect(path, kind, value, str)
        try:
            if not _EXTENDED_TIME.match(value):
                raise ValueError
            value = datetime.datetime.fromisoformat(value)
        except ValueError:
            raise Misfit(
                f"{path}: {_shown(value)} is no time of the form 2026-11-21T18:30:00" + ("Z" if zoned else "")
            ) from None
    assert isinstance(value, datetime.datetime)
    if zoned != (value.tzinfo is not None):
        raise Misfit(
            f"{path}: {_shown(value.isoformat())} has {'no' if zoned else 'an'} offset from UTC, "
            f"a {_name(kind)} has {'one' if zoned else 'none'}"
        )
    try:
        return value.astimezone(datetime.UTC) if zoned else value
    except OverflowError:
        raise _out_of_range(path, kind, value.isoformat()) from None


def _text(path: str, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Misfit(f"{path}: {_shown(value)} holds half a character") from None
    return value


def _expect(path: str, kind: types.DataType, value: Any, *accepted: type) -> None:
    if type(value) not in accepted:
        raise Misfit(
            f"{path}: {_shown(value)} is {_kind(value)}"
            + (" with a fraction or an exponent" if isinstance(value, (float, Decimal)) else "")
            + f", the column is {_name(kind)}"
        )


def _out_of_range(path: str, kind: types.DataType, value: Any) -> Misfit:
    return Misfit(f"{path}: {_shown(value)} is out of the range of {_name(kind)}")


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value) if isinstance(value, (str, bool)) else str(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, or deep in something
        text = "this"
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 3] + "..."
