"""Bodies in JSON and CBOR become columns; what does not fit says why, and disturbs no other body."""

from __future__ import annotations

import base64
import datetime
import json
import math
import struct
from decimal import Decimal
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ordack.pipeline.bodies import CBOR, JSON, Bodies, SchemaError
from pyspark.sql import types

UTC = datetime.UTC
NEW_YEAR = datetime.datetime(2026, 1, 1, 12, 30, 15, 250_000)  # noqa: DTZ001 - some columns have no zone
INTEGERS = [(types.ByteType(), 8), (types.ShortType(), 16), (types.IntegerType(), 32), (types.LongType(), 64)]


def column(kind: types.DataType) -> types.StructField:
    return types.StructField("v", kind)


def decode(bodies: list[bytes], kind: types.DataType, body_format: str = JSON) -> list[tuple[Any, str | None]]:
    """(value, reason) of each body, of the one column `v`."""
    columns, reasons = Bodies([column(kind)], body_format).decode(bodies)
    assert len(columns) == 1
    return list(zip(columns[0].to_pylist(), reasons.to_pylist(), strict=True))


def decode_json(kind: types.DataType, *values: str) -> list[tuple[Any, str | None]]:
    return decode([f'{{"v": {value}}}'.encode() for value in values], kind)


def decode_cbor(kind: types.DataType, *values: Any) -> list[tuple[Any, str | None]]:
    return decode([cbor2.dumps({"v": value}) for value in values], kind, CBOR)


@pytest.mark.parametrize(("kind", "bits"), INTEGERS)
def test_integers_fit_to_their_last_value_and_not_one_further(kind: types.DataType, bits: int) -> None:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    name = kind.simpleString().upper()
    assert decode_json(kind, str(low), str(high), "0") == [(low, None), (high, None), (0, None)]
    assert decode_cbor(kind, low, high) == [(low, None), (high, None)]
    for one in (low - 1, high + 1):
        assert decode_json(kind, str(one), "1") == [(None, f"v: {one} is out of the range of {name}"), (1, None)]
        assert decode_cbor(kind, one, 1) == [(None, f"v: {one} is out of the range of {name}"), (1, None)]


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (types.IntegerType(), "1.0", "v: 1.0 is a number with a fraction or an exponent, the column is INT"),
        (types.IntegerType(), '"1"', 'v: "1" is a string, the column is INT'),
        (types.BooleanType(), "1", "v: 1 is a number, the column is BOOLEAN"),
        (types.StringType(), '"\\ud800"', 'v: "\\ud800" holds half a character'),
        (types.DoubleType(), '"1.5"', 'v: "1.5" is a string, the column is DOUBLE'),
        (types.DoubleType(), "1e400", "v: inf is out of the range of DOUBLE"),
        (types.FloatType(), "1e39", "v: 1e+39 is out of the range of FLOAT"),
        (types.DecimalType(5, 2), "1.234", "v: 1.234 has more decimals than DECIMAL(5,2)"),
        (types.DecimalType(5, 2), "1234.5", "v: 1234.5 is out of the range of DECIMAL(5,2)"),
        (types.BinaryType(), '"?"', 'v: "?" is not base64'),
        (types.DateType(), '"2026-02-29"', 'v: "2026-02-29" is no date of the form 2026-11-21'),
        (types.TimestampType(), '"2026-01-01T12:30:15"',
         'v: "2026-01-01T12:30:15" has no offset from UTC, a TIMESTAMP has one'),
        (types.TimestampType(), '"2026-01-01"', 'v: "2026-01-01" is no time of the form 2026-11-21T18:30:00Z'),
        (types.TimestampType(), '"0001-01-01T00:00:00+14:00"',
         'v: "0001-01-01T00:00:00+14:00" is out of the range of TIMESTAMP'),
        (types.TimestampNTZType(), '"2026-01-01T12:30:15Z"',
         'v: "2026-01-01T12:30:15+00:00" has an offset from UTC, a TIMESTAMP_NTZ has none'),
        (types.ArrayType(types.IntegerType()), "{}", "v: {} is an object, the column is ARRAY<INT>"),
        (types.ArrayType(types.IntegerType()), '[1, "2"]', 'v[1]: "2" is a string, the column is INT'),
        (types.StructType([types.StructField("a", types.ByteType())]), '{"a": 128}',
         "v.a: 128 is out of the range of TINYINT"),
        (types.MapType(types.StringType(), types.BooleanType()), '{"k": 0}',
         "v['k']: 0 is a number, the column is BOOLEAN"),
    ],
)  # fmt: skip
def test_body_mismatch_error_names_field_value_and_type(kind: types.DataType, value: str, said: str) -> None:
    assert decode_json(kind, "null", value) == [(None, None), (None, said)]


@pytest.mark.parametrize(
    ("kind", "value", "meant"),
    [
        (types.DoubleType(), "21", 21.0),
        (types.DoubleType(), "9007199254740993", 9007199254740992.0),
        (types.FloatType(), "0.5", 0.5),
        (types.DecimalType(5, 2), "-123.4", Decimal("-123.40")),
        (types.DecimalType(5, 2), "1.5000", Decimal("1.50")),
        (types.DecimalType(38, 0), "9" * 38, Decimal("9" * 38)),
        (types.BinaryType(), json.dumps(base64.b64encode(b"\x00\xff").decode()), b"\x00\xff"),
        (types.DateType(), '"2024-02-29"', datetime.date(2024, 2, 29)),
        (types.TimestampType(), '"2026-01-01T13:30:15.25+01:00"', NEW_YEAR.replace(tzinfo=UTC)),
        (types.TimestampType(), '"2026-01-01T12:30:15.250000999Z"', NEW_YEAR.replace(tzinfo=UTC)),
        (types.TimestampNTZType(), '"2026-01-01 12:30:15.25"', NEW_YEAR),
        (types.ArrayType(types.StringType()), '["a", null, ""]', ["a", None, ""]),
        (types.MapType(types.StringType(), types.IntegerType()), '{"a": 1, "b": null}', [("a", 1), ("b", None)]),
        (types.StructType([types.StructField("a", types.ByteType()), types.StructField("b", types.StringType())]),
         '{"a": 1, "c": 2}', {"a": 1, "b": None}),
        (types.IntegerType(), '1, "other": [1, {"x": null}]', 1),
        (types.IntegerType(), '1, "v": 2', 2),
    ],
)  # fmt: skip
def test_matching_json_body_becomes_typed_value(kind: types.DataType, value: str, meant: Any) -> None:
    assert decode_json(kind, value) == [(meant, None)]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "no JSON: the body is empty"),
        (b'{"v": 1', "no JSON: Expecting ',' delimiter: line 1 column 8 (char 7)"),
        (b'{"v": 1}{"v": 2}', "no JSON: Extra data: line 1 column 9 (char 8)"),
        (b'{"v": 1}\n,', "no JSON: Extra data: line 2 column 1 (char 9)"),
        (b'{"v": NaN}', "no JSON: NaN is no value of JSON"),
        (b'{"v": -Infinity}', "no JSON: -Infinity is no value of JSON"),
        (b'{"v": "\xff"}', "no JSON: not utf-8 text at byte 7"),
        (b"[1]", "the body is an array, no object"),
        (b"1", "the body is a number, no object"),
    ],
)
def test_body_without_json_object_gives_reason(body: bytes, said: str) -> None:
    assert decode([body, b'{"v": 7}'], types.IntegerType()) == [(None, said), (7, None)]


def test_text_in_utf_16_is_read_as_msmq_applications_write_it() -> None:
    assert decode([b' \n{"v": 1} '], types.LongType()) == [(1, None)]
    assert decode(['{"v": "ü"}'.encode(code) for code in ("utf-8", "utf-8-sig", "utf-16", "utf-16-le")],
                  types.StringType()) == [("ü", None)] * 4  # fmt: skip


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "no CBOR: "),
        (b"\xa1", "no CBOR: "),
        (b"\xa1\x61v\x01\x00", "no CBOR: 1 byte"),
        (b"\x81\x01", "the body is an array, no map"),
        (b"\xa1\x61v\xc4\x82\x1b\x7f\xff\xff\xff\xff\xff\xff\xff\x01", ""),  # a decimal fraction without measure
        (b"\xa1\x61v\xc5\x82\x1b\x7f\xff\xff\xff\xff\xff\xff\xff\x01", ""),  # a big float without measure
        (b"\xa1\x61v\xd8\x23\x61(", ""),  # a regular expression that is none
        (b"\xbb\xff\xff\xff\xff\xff\xff\xff\xff", "no CBOR: "),
        (b"\x81" * 100_000, "no CBOR: "),
    ],
)
def test_body_without_cbor_map_gives_reason(body: bytes, said: str) -> None:
    (value, reason), after = decode([body, cbor2.dumps({"v": 7})], types.LongType(), CBOR)
    assert (value, after) == (None, (7, None))
    assert reason is not None
    assert reason.startswith(said)


def test_cbor_has_types_of_its_own() -> None:
    moment = NEW_YEAR.replace(tzinfo=UTC)
    assert decode_cbor(types.BinaryType(), b"\x00\xff", "AP8=") == [
        (b"\x00\xff", None), (None, 'v: "AP8=" is a string, the column is BINARY')]  # fmt: skip
    assert decode_cbor(types.TimestampType(), moment, moment.isoformat()) == [(moment, None)] * 2
    assert decode_cbor(types.TimestampType(), cbor2.CBORTag(1, moment.timestamp())) == [(moment, None)]
    assert decode_cbor(types.DecimalType(5, 2), Decimal("1.5"), 2) == [(Decimal("1.50"), None), (Decimal("2.00"), None)]
    assert decode_cbor(types.IntegerType(), cbor2.undefined) == [(None, None)]
    values = [value for value, reason in decode_cbor(types.DoubleType(), math.nan, math.inf, -math.inf, 1.5)
              if reason is None]  # fmt: skip
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, -math.inf, 1.5]
    described = cbor2.dumps(cbor2.CBORTag(55799, {"v": [1, 2]}))  # "this is CBOR", of which RFC 8949 says no more
    assert decode([described], types.ArrayType(types.LongType()), CBOR) == [([1, 2], None)]
    assert decode_cbor(types.FloatType(), 1e39) == [(None, "v: 1e+39 is out of the range of FLOAT")]


def test_malformed_body_has_null_columns_and_keeps_other_rows() -> None:
    fields = [types.StructField("a", types.IntegerType()), types.StructField("b", types.StringType()),
              types.StructField("c", types.ArrayType(types.LongType()))]  # fmt: skip
    bodies = [b'{"a": 1, "b": "x", "c": [1]}', b'{"a": 2, "b": "y", "c": ["z"]}', b'{"a": 3}', b'{"b": 4, "c": 5}']
    columns, reasons = Bodies(fields).decode(bodies)
    assert [one.to_pylist() for one in columns] == [[1, None, 3, None], ["x", *[None] * 3], [[1], *[None] * 3]]
    first = "b: 4 is a number, the column is STRING"
    assert reasons.to_pylist() == [None, 'c[0]: "z" is a string, the column is BIGINT', None, first]


def test_a_prefix_is_not_part_of_the_name_in_the_body() -> None:
    columns, reasons = Bodies([types.StructField("body_label", types.StringType())], JSON, "body_").decode(
        [b'{"label": "x", "body_label": "y"}']
    )
    assert (columns[0].to_pylist(), reasons.to_pylist()) == (["x"], [None])


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (types.StructField("v", types.IntegerType(), False), "column v is NOT NULL"),
        (column(types.StructType([types.StructField("a", types.IntegerType(), False)])), "column v.a is NOT NULL"),
        (column(types.MapType(types.IntegerType(), types.IntegerType())), "keys of a map are STRING"),
        (column(types.VariantType()), "column v is of the type VARIANT"),
        (column(types.ArrayType(types.DayTimeIntervalType())), r"column v\[\] is of the type INTERVAL"),
        (column(types.VarcharType(5)), r"column v is of the type VARCHAR\(5\)"),
    ],
)
def test_a_schema_that_no_body_can_fill_is_refused(field: types.StructField, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        Bodies([field])


def test_a_format_and_a_prefix_must_make_sense() -> None:
    with pytest.raises(SchemaError, match="no format 'xml' of bodies; there are json and cbor"):
        Bodies([column(types.StringType())], "xml")
    with pytest.raises(SchemaError, match="column v: the name must be the prefix 'x' and a field's name"):
        Bodies([column(types.StringType())], JSON, "x")


# Values of every type, and others beside them.
LEAVES: list[tuple[types.DataType, st.SearchStrategy[Any]]] = [
    *((kind, st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)) for kind, bits in INTEGERS),
    (types.BooleanType(), st.booleans()),
    (types.DoubleType(), st.floats(allow_nan=False, allow_infinity=False)),
    (types.FloatType(), st.floats(allow_nan=False, allow_infinity=False, width=32)),
    (types.StringType(), st.text(st.characters(codec="utf-8"), max_size=5)),
]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abv"), inner, max_size=3),
    max_leaves=5,
)


def _typed() -> st.SearchStrategy[tuple[types.DataType, st.SearchStrategy[Any]]]:
    def grow(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        arrays = inner.map(lambda one: (types.ArrayType(one[0]), st.lists(st.none() | one[1], max_size=3)))
        structs = st.tuples(inner, inner).map(
            lambda both: (
                types.StructType([types.StructField(name, one[0]) for name, one in zip("ab", both)]),
                st.fixed_dictionaries({name: st.none() | one[1] for name, one in zip("ab", both)}),
            )
        )
        return arrays | structs

    return st.recursive(st.sampled_from(LEAVES), grow, max_leaves=3)


@settings(max_examples=100)
@given(st.data(), st.sampled_from([JSON, CBOR]))
def test_values_of_a_type_come_back_and_others_are_reasons(data: st.DataObject, body_format: str) -> None:
    kind, values = data.draw(_typed())
    good = data.draw(st.lists(st.none() | values, max_size=5))
    write = cbor2.dumps if body_format == CBOR else lambda document: json.dumps(document).encode()
    bodies = [write({"v": value}) for value in good]
    decoded = decode(bodies, kind, body_format)
    assert [reason for _, reason in decoded] == [None] * len(good)
    assert _same([value for value, _ in decoded], good)
    strange = data.draw(st.lists(ANYTHING, min_size=1, max_size=3))
    mixed = [write({"v": value}) for value in [*strange, *good]]
    # Each alone, and all together, is the same.
    alone = [decode([body], kind, body_format)[0] for body in mixed]
    assert repr(decode(mixed, kind, body_format)) == repr(alone)
    assert alone[len(strange):] == decoded  # fmt: skip


def _same(found: Any, meant: Any) -> bool:
    """Equal; -0.0 and 0.0 are not."""
    if isinstance(meant, list):
        return len(found) == len(meant) and all(_same(*pair) for pair in zip(found, meant))
    if isinstance(meant, dict):
        return found.keys() == meant.keys() and all(_same(found[name], meant[name]) for name in meant)
    if isinstance(meant, float):
        return struct.pack("d", found) == struct.pack("d", meant)
    return type(found) is type(meant) and bool(found == meant)


@settings(max_examples=100)
@given(st.lists(st.binary(max_size=40), max_size=4), st.sampled_from([JSON, CBOR]))
def test_no_bytes_stop_a_stream(bodies: list[bytes], body_format: str) -> None:
    fields = [column(types.DecimalType(10, 2)), types.StructField("w", types.TimestampType())]
    columns, reasons = Bodies(fields, body_format).decode(bodies)
    assert [len(one) for one in (*columns, reasons)] == [len(bodies)] * 3
