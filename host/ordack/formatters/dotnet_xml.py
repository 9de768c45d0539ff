"""Bodies of .NET's XmlMessageFormatter: one value of a simple type as XmlSerializer writes it, such as `<?xml
version="1.0"?>` and `<int>5</int>`. The .NET reader must be given the type, for example `typeof(int)`.

Input is UTF-8 or UTF-16. A document type is refused, because it can expand a small body to a huge text. Nested elements
are refused, because they are no simple type.
"""

from __future__ import annotations

import base64
import datetime
import math
import re
import struct
import uuid
from collections.abc import Callable
from html import escape
from xml.parsers import expat

from ordack.formatters import common
from ordack.formatters.common import BodyError, Kind

NAME = "XML"
_SCHEMA_INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
_ENCODINGS = ("utf-8", "utf-16", "us-ascii")
_SPACES = " \t\r\n"  # ignored by XML Schema around values, and in base64
_NUMBER_MAX = 64  # characters of a number
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_WHOLE = re.compile(r"[+-]?[0-9]+")
_FRACTION = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)")
_FLOAT = re.compile(_FRACTION.pattern + r"([eE][+-]?[0-9]+)?")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})?")
_GUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_FLOATS = {"INF": math.inf, "-INF": -math.inf, "NaN": math.nan}


def _matched(form: re.Pattern[str], text: str) -> str:
    text = text.strip(_SPACES)
    if len(text) > _NUMBER_MAX or not form.fullmatch(text):
        raise ValueError(common.shown(text))
    return text


def _write_string(text: str) -> str:
    if wrong := _NOT_XML.search(text):
        raise ValueError(f"XML has no {wrong[0]!r}, at {wrong.start()}")
    return escape(text, quote=False).replace("\r", "&#xD;")


def _whole(code: str) -> Kind[str]:
    check = common.whole(code)
    return Kind((int,), lambda value: str(check(value)), lambda text: check(int(_matched(_WHOLE, text))))


def _read_bool(text: str) -> bool:
    values = {"true": True, "1": True, "false": False, "0": False}
    text = text.strip(_SPACES)
    if text not in values:
        raise ValueError(common.shown(text))
    return values[text]


def _write_float(value: float, digits: Callable[[float], str] = repr) -> str:
    value = float(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "INF" if value > 0 else "-INF"
    return digits(value)


def _read_float(text: str) -> float:
    text = text.strip(_SPACES)
    return _FLOATS[text] if text in _FLOATS else float(_matched(_FLOAT, text))


def _single(value: float) -> float:
    """Round to .NET's float. Raises OverflowError."""
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


def _single_digits(value: float) -> str:
    """Return the shortest digits that identify the float."""
    exact = _single(value)
    return next(text for text in (f"{exact:.{count}g}" for count in range(6, 18)) if _single(float(text)) == exact)


def _write_time(when: datetime.datetime) -> str:
    offset = when.utcoffset()
    if offset is not None and offset % datetime.timedelta(minutes=1):
        raise ValueError(f"its offset from UTC is {offset}; whole minutes fit")
    text = when.replace(tzinfo=None).isoformat()
    if when.microsecond:
        text = text.rstrip("0")
    if offset is None:
        return text
    return text + ("Z" if not offset else when.replace(microsecond=0).isoformat()[-6:])


def _read_time(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(_matched(_TIME, text))


def _read_base64(text: str) -> bytes:
    return base64.b64decode(text.translate(dict.fromkeys(map(ord, _SPACES))), validate=True)


KINDS: dict[str, Kind[str]] = {
    "string": Kind((str,), _write_string, str),
    "boolean": Kind((bool,), lambda value: "true" if value else "false", _read_bool),
    "byte": _whole("b"),
    "unsignedByte": _whole("B"),
    "short": _whole("h"),
    "unsignedShort": _whole("H"),
    "int": _whole("i"),
    "unsignedInt": _whole("I"),
    "long": _whole("q"),
    "unsignedLong": _whole("Q"),
    "float": Kind(
        (float, int),
        lambda value: _write_float(_single(value), _single_digits),
        lambda text: _single(_read_float(text)),
    ),
    "double": Kind((float, int), _write_float, _read_float),
    "dateTime": Kind((datetime.datetime,), _write_time, _read_time),
    "guid": Kind((uuid.UUID,), str, lambda text: uuid.UUID(_matched(_GUID, text))),
    "base64Binary": Kind((bytes, bytearray, memoryview), lambda value: base64.b64encode(value).decode(), _read_base64),
}
_USUAL = (
    "string", "boolean", "int", "long", "unsignedLong", "double", "dateTime", "guid", "base64Binary",
)  # fmt: skip


def write(value: object, kind: str | None) -> bytes:
    """Write a value as a document. None becomes a nil string. Raises TypeError, ValueError."""
    head = '<?xml version="1.0"?>\r\n'
    if value is None and kind in (None, "string"):
        return f'{head}<string xmlns:xsi="{_SCHEMA_INSTANCE}" xsi:nil="true" />'.encode()
    name, text = common.write(NAME, value, kind, KINDS, _USUAL)
    return (head + (f"<{name}>{text}</{name}>" if text else f"<{name} />")).encode()


def read(data: bytes) -> object:
    """Return the value of a document. Raises BodyError."""
    element = _Element()
    element.parse(data)
    if element.name not in KINDS:
        raise BodyError(
            f"the body is an element {common.shown(element.name)}, no simple type that is read here: take `body` and "
            "read it with an XML parser that expands no entities"
        )
    if element.is_nil:
        return None
    return common.read(NAME, element.name, KINDS[element.name], "".join(element.text))


class _Element:
    """The only element of a document, without a namespace, as XmlSerializer writes a simple type."""

    def __init__(self) -> None:
        self.name = ""
        self.is_nil = False
        self.text: list[str] = []

    def parse(self, data: bytes) -> None:
        """Parse a document. Raises BodyError."""
        wide = data[:2] in (b"\xff\xfe", b"\xfe\xff")
        parser = expat.ParserCreate("utf-16" if wide else "utf-8", " ")
        parser.buffer_text = True  # otherwise each line end is a list item
        parser.XmlDeclHandler = self._declared
        parser.StartDoctypeDeclHandler = self._refuse_document_type
        parser.StartElementHandler = self._started
        parser.CharacterDataHandler = self.text.append
        try:
            parser.Parse(data, True)
        except expat.ExpatError as error:
            raise BodyError(f"the body is no XML: {error}; take `body`") from None

    @staticmethod
    def _declared(_version: str, encoding: str | None, _standalone: int) -> None:
        if encoding is not None and encoding.lower() not in _ENCODINGS:
            raise BodyError(f"the body is XML in {common.shown(encoding)}; {' and '.join(_ENCODINGS)} are read")

    @staticmethod
    def _refuse_document_type(*_declaration: object) -> None:
        raise BodyError("the body is XML with a document type, which could make it large: it is not read")

    def _started(self, name: str, attributes: dict[str, str]) -> None:
        if self.name:
            raise BodyError(
                f"the body is an element {common.shown(self.name)} with others in it, no simple type: take `body` and "
                "read it with an XML parser that expands no entities"
            )
        self.name = name
        self.is_nil = attributes.get(f"{_SCHEMA_INSTANCE} nil", "").strip(_SPACES) in ("true", "1")
