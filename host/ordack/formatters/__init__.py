"""Bodies as programs on Windows write and read them: .NET's XmlMessageFormatter, COM and .NET's
ActiveXMessageFormatter, and JSON. `Body` writes them, `Message.value` reads them. host/docs/api.md has a table.

What is read has come from anybody. It ends in a value or in BodyError; nothing is executed, expanded, or allocated by a
length that nobody has checked.
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
ANY = 0  # body type of what nobody says more of: raw bytes, XML, JSON
NAMES = {ANY: "VT_EMPTY", 6: "VT_CY", 768: "BinaryMessageFormatter", **activex.NAMES}  # of body types


class Body(bytes):
    """Bytes for a message, with the body type by which programs on Windows know how to read them.

    queue.send(Body.xml("text"))       for .NET's XmlMessageFormatter
    queue.send(Body.activex("text"))   for COM and .NET's ActiveXMessageFormatter
    queue.send(Body.json({"t": 21.5})) for whoever reads JSON
    queue.send(Body(data, 65))         for whoever knows what it is

    They take str, bool, int, float, datetime, UUID and bytes. kind: as which type of the format, if not as the
    usual one: an int is a 32-bit one if that holds it, then one of 64 bits. All raise TypeError for a value that the
    format has not, ValueError for one out of range.

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
        """As XmlSerializer writes a simple type. kind: "short", "float" and the others that XML Schema calls so. None
        is a string that is null."""
        return cls(dotnet_xml.write(value, kind))

    @classmethod
    def activex(cls, value: object, kind: str | None = None) -> Body:
        """As COM has it: str is a BSTR, bytes an array, None VT_NULL. kind:
        "VT_I2", "VT_LPSTR" and so on."""
        return cls(*activex.write(value, kind))

    @classmethod
    def json(cls, value: object) -> Body:
        """As JSON in UTF-8, of what `json.dumps` takes, but for NaN and the infinities."""
        try:
            return cls(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
        except UnicodeEncodeError:
            raise ValueError("a text holds half a character: it is no JSON") from None
        except RecursionError:
            raise ValueError("it is nested too deeply for JSON") from None


def value_of(body: bytes, body_type: int, form: Form | None = None) -> object:
    """The value that a body holds, in that form or, if none is said, by its body type. Raises BodyError if it holds
    none, or the body type does not say how to read it; ValueError for a form that there is not."""
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
    """The value of a text in UTF-8, UTF-16 or UTF-32. NaN and the infinities are no JSON, though many write them."""
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
