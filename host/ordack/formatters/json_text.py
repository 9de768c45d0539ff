"""Bodies in JSON. What is written is UTF-8; what is read may be UTF-16 or UTF-32, too. NaN and the infinities are no
JSON, though many programs write them."""

from __future__ import annotations

import json
from typing import Any

from ordack.formatters.common import BodyError


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no value of JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def write(value: object) -> bytes:
    """A value as text. Raises TypeError for one that JSON does not have, ValueError."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise ValueError("a text holds half a character: it is no JSON") from None
    except RecursionError:
        raise ValueError("it is nested too deeply for JSON") from None


def read(body: bytes) -> Any:
    """The value that a body holds. Raises BodyError."""
    if not body:
        raise BodyError("no JSON: the body is empty")
    try:
        return _DECODER.decode(body.decode(json.detect_encoding(body)))
    except UnicodeDecodeError as error:
        raise BodyError(f"no JSON: not {error.encoding} text at byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        raise BodyError(f"no JSON: {str(error) or type(error).__name__}") from None
