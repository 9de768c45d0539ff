"""Bodies of Windows programs: .NET's XmlMessageFormatter, COM and .NET's ActiveXMessageFormatter, and JSON. `Body`
writes them, `Message.value` reads them. host/docs/reference/client.md has a table.

Input is untrusted. Reading ends in a value or in BodyError. It executes and expands nothing, and allocates nothing by
an unchecked length.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from ordack.config.names import counted
from ordack.formatters import activex, dotnet_xml
from ordack.formatters.common import BodyError

__all__ = ["FORMS", "NAMES", "Body", "BodyError", "Form", "value_of"]

Form = Literal["xml", "json"]
FORMS: tuple[Form, ...] = ("xml", "json")
ANY = 0  # body type of raw bytes, XML and JSON
NAMES = {ANY: "VT_EMPTY", 6: "VT_CY", 768: "BinaryMessageFormatter", **activex.NAMES}  # of body types


class Body(bytes):
    """Bytes of a message body, with the body type that tells Windows programs how to read them.

    queue.send(Body.xml("text"))       for .NET's XmlMessageFormatter
    queue.send(Body.activex("text"))   for COM and .NET's ActiveXMessageFormatter
    queue.send(Body.json({"t": 21.5})) for readers of JSON
    queue.send(Body(data, 65))         for readers of another format

    The methods take str, bool, int, float, datetime, UUID and bytes. kind: name of the format's type; by default an
    int becomes a 32-bit integer if it fits, else a 64-bit one. They raise TypeError for a value that the format lacks,
    ValueError for one out of range.

    body_type: 0 to 2**32 - 1.
    """

    body_type: int

    def __new__(cls, content: bytes | bytearray | memoryview, body_type: int = ANY) -> Body:
        body = super().__new__(cls, content)
        body.body_type = body_type
        return body

    def __repr__(self) -> str:
        return f"<Body of {counted(len(self), 'byte')}, body type {self.body_type}>"

    @classmethod
    def xml(cls, value: object, kind: str | None = None) -> Body:
        """Write a simple type as XmlSerializer does. kind: the name in XML Schema, such as "short" or "float". None
        becomes a null string."""
        return cls(dotnet_xml.write(value, kind))

    @classmethod
    def activex(cls, value: object, kind: str | None = None) -> Body:
        """Write a value as COM does: str as BSTR, bytes as array, None as VT_NULL. kind: "VT_I2", "VT_LPSTR" and so
        on."""
        return cls(*activex.write(value, kind))

    @classmethod
    def json(cls, value: object) -> Body:
        """Write JSON in UTF-8. Takes the values of `json.dumps` except NaN and the infinities."""
        try:
            return cls(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
        except UnicodeEncodeError:
            raise ValueError("a text holds half a character: it is no JSON") from None
        except RecursionError:
            raise ValueError("it is nested too deeply for JSON") from None


def value_of(body: bytes, body_type: int, form: Form | None = None) -> object:
    """Return the value of a body, read by `form` or by its body type. Raise BodyError if the body has no such value or
    the type is unknown, ValueError for an unknown form."""
    if form is not None and form not in FORMS:
        raise ValueError(f"there is no form {form!r}; there are {', '.join(FORMS)}")
    if form == "xml":
        return dotnet_xml.read(body)
    if form == "json":
        return _read_json(body)
    if body_type == ANY:
        raise BodyError(
            'the body type 0 does not say what the body is: take `body`, or ask for value("xml"), value("json")'
        )
    return activex.read(body, body_type)


def _read_json(body: bytes) -> Any:
    """Parse JSON in UTF-8, UTF-16 or UTF-32. NaN and the infinities are refused, because JSON has none."""
    if not body:
        raise BodyError("no JSON: the body is empty")
    try:
        return json.loads(body.decode(json.detect_encoding(body)), parse_constant=_refuse)
    except UnicodeDecodeError as error:
        raise BodyError(f"no JSON: not {error.encoding} text at byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        raise BodyError(f"no JSON: {str(error) or type(error).__name__}") from None


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no value of JSON")
