"""Bodies as programs on Windows write and read them: the bytes are those of the published formats, what is written is
read back, and no body, whoever has made it, does more than to be refused."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import struct
import tracemalloc
import uuid
from collections.abc import Callable
from pathlib import Path

import ordack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from ordack import Body, BodyError
from ordack.client import Client, Letter
from ordack.formatters import Form, activex, dotnet_xml, value_of

UTC = datetime.UTC
GUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
DECLARATION = b'<?xml version="1.0"?>\r\n'


def naive(*parts: int) -> datetime.datetime:
    """A time whose zone nobody says."""
    return datetime.datetime(*parts)  # type: ignore[arg-type]  # noqa: DTZ001


def read(body: Body, form: Form | None = None) -> object:
    return value_of(bytes(body), body.body_type, form)


# ---- bytes worked out by hand


@pytest.mark.parametrize(
    ("value", "kind", "document"),
    [
        ("text", None, "<string>text</string>"),
        ("", None, "<string />"),
        ("a < b & c > d\r\n", None, "<string>a &lt; b &amp; c &gt; d&#xD;\n</string>"),
        ("grüße 😀", None, "<string>grüße 😀</string>"),
        (True, None, "<boolean>true</boolean>"),
        (5, None, "<int>5</int>"),
        (-(1 << 31), None, "<int>-2147483648</int>"),
        (1 << 31, None, "<long>2147483648</long>"),
        (1 << 63, None, "<unsignedLong>9223372036854775808</unsignedLong>"),
        (5, "unsignedByte", "<unsignedByte>5</unsignedByte>"),
        (21.5, None, "<double>21.5</double>"),
        (0.1, "float", "<float>0.1</float>"),
        (16777216.0, "float", "<float>16777216</float>"),
        (math.inf, None, "<double>INF</double>"),
        (-math.inf, "float", "<float>-INF</float>"),
        (5, "double", "<double>5.0</double>"),
        (naive(2026, 11, 23, 19, 0), None, "<dateTime>2026-11-23T19:00:00</dateTime>"),
        (datetime.datetime(2026, 11, 23, 19, 0, 0, 120000, UTC), None, "<dateTime>2026-11-23T19:00:00.12Z</dateTime>"),
        (
            datetime.datetime(2026, 11, 23, 19, tzinfo=datetime.timezone(datetime.timedelta(hours=-3, minutes=-30))),
            None,
            "<dateTime>2026-11-23T19:00:00-03:30</dateTime>",
        ),
        (GUID, None, "<guid>00112233-4455-6677-8899-aabbccddeeff</guid>"),
        (b"\0\1\xff", None, "<base64Binary>AAH/</base64Binary>"),
        (None, None, '<string xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:nil="true" />'),
    ],
)
def test_xml_body_matches_xmlserializer_for_simple_types(value: object, kind: str | None, document: str) -> None:
    body = Body.xml(value, kind)
    assert (bytes(body), body.body_type) == (DECLARATION + document.encode(), 0)
    found = read(body, "xml")
    assert found == (struct.unpack("f", struct.pack("f", value))[0] if kind == "float" else value)
    if isinstance(value, datetime.datetime) and isinstance(found, datetime.datetime):
        assert found.utcoffset() == value.utcoffset()


@pytest.mark.parametrize(
    ("document", "value"),
    [
        ('<?xml version="1.0" encoding="UTF-8" standalone="yes"?><!-- a --><int> \n5\t</int><?b?>\n', 5),
        ("\ufeff<string>a&#x41;<![CDATA[<b>]]></string>", "aA<b>"),
        ('<?xml version="1.0" encoding="utf-16"?><string>ü😀</string>'.encode("utf-16"), "ü😀"),
        ("<boolean>0</boolean>", False),
        ("<double>1E+20</double>", 1e20),
        ("<base64Binary>AA\r\n H/</base64Binary>", b"\0\1\xff"),
        ("<dateTime>2026-11-23T19:00:00.1234567+01:00</dateTime>",
         datetime.datetime(2026, 11, 23, 19, 0, 0, 123456, datetime.timezone(datetime.timedelta(hours=1)))),
        ('<int d1p1:nil="true" xmlns:d1p1="http://www.w3.org/2001/XMLSchema-instance" />', None),
        ("<string></string>", ""),
    ],
)  # fmt: skip
def test_xml_is_read_however_another_writer_forms_it(document: str | bytes, value: object) -> None:
    body = document.encode() if isinstance(document, str) else document
    assert value_of(body, 0, "xml") == value
    assert type(value_of(body, 0, "xml")) is type(value)


@pytest.mark.parametrize(
    ("value", "kind", "body_type", "content"),
    [
        ("aü", None, 8, "6100 fc00"),
        ("", None, 8, ""),
        ("a", "VT_LPSTR", 30, "61 00"),
        ("a", "VT_LPWSTR", 31, "6100 0000"),
        (True, None, 11, "ffff"),
        (False, None, 11, "0000"),
        (5, None, 3, "05000000"),
        (5, "VT_I2", 2, "0500"),
        (-1, "VT_I1", 16, "ff"),
        (200, "VT_UI1", 17, "c8"),
        (1 << 40, None, 20, "0000000000010000"),
        (1 << 63, None, 21, "0000000000000080"),
        (21.5, None, 5, "0000000000803540"),
        (21.5, "VT_R4", 4, "0000ac41"),
        (naive(1899, 12, 31, 12), None, 7, "000000000000f83f"),  # 1.5
        (naive(1899, 12, 29, 6), None, 7, "000000000000f4bf"),  # -1.25: six o'clock is the fraction
        (GUID, None, 72, "33221100 5544 7766 8899 aabbccddeeff"),
        (None, None, 1, ""),
        (b"\0\1", None, 0x2011, "0001"),
        (b"\0\1", "VT_VECTOR|VT_UI1", 0x1011, "0001"),
        (b"\0\1", "VT_BLOB", 65, "0001"),
    ],
)
def test_activex_is_the_value_and_its_type(value: object, kind: str | None, body_type: int, content: str) -> None:
    body = Body.activex(value, kind)
    assert (bytes(body), body.body_type) == (bytes.fromhex(content), body_type)
    assert read(body) == value


def test_activex_reads_unterminated_text_and_one_byte_bool() -> None:
    assert value_of(b"ab", 30) == "ab"
    assert value_of("ab".encode("utf-16-le"), 31) == "ab"
    assert value_of(b"\xff", 11) is True


# ---- what is written is read


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
TIMES = st.datetimes()
SIMPLE = st.one_of(
    TEXTS, st.booleans(), st.integers(-(1 << 63), (1 << 64) - 1), st.floats(allow_nan=False), TIMES,
    st.uuids(), st.binary(),
)  # fmt: skip


@given(SIMPLE.filter(lambda value: not isinstance(value, str) or not dotnet_xml._NOT_XML.search(value)))
@example("\r\n\r \t")
@example(5e-324)
def test_xml_body_round_trip_keeps_value_and_type(value: object) -> None:
    found = read(Body.xml(value), "xml")
    assert (found, type(found)) == (value, type(value))


@given(
    TEXTS | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False) | st.uuids()
    | st.binary() | st.none()
)  # fmt: skip
def test_activex_value_round_trips(value: object) -> None:
    found = read(Body.activex(value))
    assert (found, type(found)) == (value, type(value))


@given(TIMES.filter(lambda when: when.year >= 100))
@example(naive(1899, 12, 29, 23, 59, 59, 999000))
@example(naive(1899, 12, 30, 0, 0, 0, 1000))
def test_a_time_of_activex_is_read_to_the_millisecond(when: datetime.datetime) -> None:
    assert read(Body.activex(when)) == when.replace(microsecond=when.microsecond // 1000 * 1000)


@pytest.mark.parametrize(("write", "kinds"), [(Body.xml, dotnet_xml.KINDS), (Body.activex, activex.KINDS)])
def test_every_formatter_kind_round_trips(write: Callable[[object, str], Body], kinds: dict[str, object]) -> None:
    values: dict[type, object] = {
        str: "text", bool: True, int: 100, float: 0.5, bytes: b"\0\xff", uuid.UUID: GUID,
        datetime.datetime: naive(2026, 11, 23, 1, 2, 3), type(None): None,
    }  # fmt: skip
    for name, kind in kinds.items():
        value = values[kind.types[0]]  # type: ignore[attr-defined]
        found = read(write(value, name), "xml" if write == Body.xml else None)
        assert (found, type(found)) == (value, type(value)), name


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=10,
)


@given(JSON_VALUES)
def test_json_body_round_trips(value: object) -> None:
    body = Body.json(value)
    assert read(body, "json") == value == json.loads(body)
    assert body.body_type == 0


def test_json_is_read_as_net_writes_it_with_a_byte_order_mark() -> None:
    assert Body.json({"t": "21 °C"}) == '{"t": "21 °C"}'.encode()
    for encoding in ("utf-8-sig", "utf-16", "utf-16-le"):
        assert value_of('{"t": 1}'.encode(encoding), 0, "json") == {"t": 1}


# ---- what is not read, and not written


HOSTILE = [
    b"",
    b"<",
    b"<string>",
    b"<string>text</int>",
    b"<int>5.0</int>",
    b"<int>2147483648</int>",
    b"<int>" + b"9" * 100_000 + b"</int>",
    b"<int>" + b"0" * 100 + b"5</int>",
    "<int>\N{ARABIC-INDIC DIGIT FIVE}</int>".encode(),
    b"<unsignedInt>-1</unsignedInt>",
    b"<double>0x1p3</double>",
    b"<double>nan</double>",
    b"<float>1e39</float>",
    b"<decimal>1.5</decimal>",
    b"<boolean>True</boolean>",
    b"<dateTime>2026-13-23T19:00:00</dateTime>",
    b"<dateTime>2026-11-23T24:00:00</dateTime>",
    b"<dateTime>2026-11-23T19:00:00+99:99</dateTime>",
    b"<guid>{00112233-4455-6677-8899-aabbccddeeff}</guid>",
    b"<base64Binary>****</base64Binary>",
    b"<string>a</string><string>b</string>",
    b"<string>&other;</string>",
    b"<string>\xff</string>",
    b"<Order><Id>5</Id></Order>",
    b'<int xmlns="http://elsewhere">5</int>',
    b'<?xml version="1.0" encoding="windows-1252"?><string>\xfc</string>',
    b'<?xml version="1.0" encoding="hex_codec"?><string>41</string>',
    b"\xff\xfe<",
    b'<!DOCTYPE a [<!ENTITY b "' + b"b" * 99 + b'"><!ENTITY c "' + b"&b;" * 999 + b'">]><string>&c;</string>',
    b'<!DOCTYPE string SYSTEM "file:///etc/passwd"><string>a</string>',
    b'<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><string>&b;</string>',
]


@pytest.mark.parametrize("body", HOSTILE, ids=lambda body: repr(body[:30]))
def test_xml_document_of_non_simple_type_is_refused(body: bytes) -> None:
    with pytest.raises(BodyError):
        value_of(body, 0, "xml")


@pytest.mark.parametrize(
    ("body", "body_type"),
    [
        (b"a", 8), (b"\0\xd8", 8), (b"abc", 31), (b"\xfc", 30), (b"", 3), (b"12345", 3), (b"", 11), (b"123", 11),
        (b"a", 1), (b"1234", 5), (b"", 72), (b"1" * 17, 72), (struct.pack("<d", math.nan), 7),
        (struct.pack("<d", 1e300), 7), (struct.pack("<d", -800_000.0), 7), (b"", 68), (b"", 69), (b"", 0x100C),
        (b"", 0xFFFFFFFF), (b"", 768), (b"text", 0),
    ],
)  # fmt: skip
def test_a_value_that_its_body_type_does_not_have_is_refused(body: bytes, body_type: int) -> None:
    with pytest.raises(BodyError):
        value_of(body, body_type)


@pytest.mark.parametrize("body", [b"", b"{", b"NaN", b"[Infinity]", b"\xff", b"[" * 100_000, b'{"a":1}x', b"9" * 5000])
def test_invalid_json_body_is_refused(body: bytes) -> None:
    with pytest.raises(BodyError, match="no JSON"):
        value_of(body, 0, "json")


def _broken(draw: st.DrawFn) -> tuple[bytes, int, Form | None]:
    """A body that was right before it was cut off, or changed."""
    value = draw(SIMPLE | st.none())
    form = draw(st.sampled_from(["xml", "json", None]))
    write = {"xml": Body.xml, "json": Body.json, None: Body.activex}[form]
    try:
        body = write(value)
    except (TypeError, ValueError):
        body = Body.xml("text")
    data = bytearray(body)
    for _ in range(draw(st.integers(0, 4))):
        if data:
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    start = draw(st.integers(0, len(data)))
    data[start:] = draw(st.binary(max_size=20)) + data[draw(st.integers(start, len(data))) :]
    body_type = draw(st.sampled_from([body.body_type, *(code for code, _ in activex._KINDS.values()), 768, 0]))
    return bytes(data), body_type, form


@given(st.composite(_broken)())
def test_random_body_gives_a_value_or_body_error(made: tuple[bytes, int, Form | None]) -> None:
    with contextlib.suppress(BodyError):
        value_of(*made)


def test_malicious_xml_body_is_refused_in_bounded_memory() -> None:
    bomb = (
        b'<!DOCTYPE a [<!ENTITY a "' + b"a" * 10_000 + b'"><!ENTITY b "' + b"&a;" * 10_000 + b'">]><string>&b;</string>'
    )
    deep = b"<a>" * 1_000_000
    tracemalloc.start()
    try:
        for body, form in ((bomb, "xml"), (deep, "xml")):
            with pytest.raises(BodyError):
                value_of(body, 0, form)
        assert tracemalloc.get_traced_memory()[1] < len(deep)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("write", "error", "words"),
    [
        (lambda: Body.xml(1 << 64), ValueError, "is no int or long or unsignedLong"),
        (lambda: Body.xml(128, "byte"), ValueError, "128 is no byte: -128 to 127 fit"),
        (lambda: Body.xml(5, "string"), TypeError, "5 is int, which string does not hold: convert it to str"),
        (lambda: Body.xml(True, "int"), TypeError, "True is bool, which int does not hold"),
        (lambda: Body.xml([1]), TypeError, "is list, which XML does not hold: convert it to str or bool or int"),
        (lambda: Body.xml(5, "integer"), ValueError, "XML has no 'integer'; it has string, boolean"),
        (lambda: Body.xml("a\0"), ValueError, "XML has no '.x00', at 1"),
        (lambda: Body.xml(1e39, "float"), ValueError, "is no float"),
        (lambda: Body.activex("\ud800"), ValueError, "half a character"),
        (lambda: Body.activex("ü", "VT_LPSTR"), ValueError, "VT_BSTR holds it"),
        (lambda: Body.activex(datetime.datetime.now(UTC)), ValueError, "a DATE has no zone"),
        (lambda: Body.activex(naive(99, 1, 1)), ValueError, "begins with the year 100"),
        (lambda: Body.json(math.nan), ValueError, "JSON"),
        (lambda: Body.json({1, 2}), TypeError, "set"),
        (lambda: Body.json("\ud800"), ValueError, "half a character"),
        (lambda: value_of(b"", 0, "yaml"), ValueError, "there is no form 'yaml'; there are xml, json"),
    ],
)  # fmt: skip
def test_a_value_that_a_format_does_not_have_is_said(
    write: Callable[[], object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        write()


# ---- in messages


def test_body_sets_message_body_and_type_and_value_decodes_it(store: Path) -> None:
    with ordack.connect(store) as client:
        queue = client.queue("plain")
        queue.send(Body.activex("grüße"))
        client.send_many([Letter("plain", Body.activex(5)), Letter("plain", Body.xml(21.5))])
        with client.transaction() as transaction:
            transaction.send("plain", Body.json({"t": 21.5}))
        messages = list(queue.peek())
        assert [message.body_type for message in messages] == [8, 3, 0, 0]
        assert messages[0].body == "grüße".encode("utf-16-le")
        assert [message.value() for message in messages[:2]] == ["grüße", 5]
        assert messages[2].value("xml") == 21.5
        assert messages[3].value("json") == {"t": 21.5}
        with pytest.raises(BodyError, match=r'ask for value\("xml"\), value\("json"\)'):
            messages[3].value()


def test_a_body_type_that_contradicts_the_body_is_refused(store: Path) -> None:
    with Client(store) as client:
        client.send("plain", Body.activex("a"), body_type=8)
        with pytest.raises(ValueError, match="the body is of type 8, and body_type says 768"):
            client.send("plain", Body.activex("a"), body_type=768)
        with pytest.raises(ValueError, match="body type is -1"):
            client.send("plain", Body(b"a", -1))
        client.send("plain", bytes(Body.activex("a")), body_type=768)
        assert len(list(client.queue("plain").peek())) == 2


def test_a_body_shows_its_size_and_type_and_not_its_content() -> None:
    assert repr(Body.activex("secret")) == "<Body of 12 bytes, body type 8>"
