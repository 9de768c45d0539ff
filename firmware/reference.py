"""Writes the lists of calls in docs/reference.md from docstrings; `make format` runs it."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("docs") / "reference.md"
_LIST = re.compile(r"(<!-- calls: (\S+)\.(\w+): (.+) -->\n\n)(?:\* .*\n)*")
_RULES = re.compile(r" \([ABC]-\d+(?:(?:, | to )[ABC]-\d+)*\)")


def page() -> str:
    """The page with renewed lists."""
    return _LIST.sub(_list, PAGE.read_text(encoding="utf-8"))


def _list(found: re.Match[str]) -> str:
    owner = getattr(importlib.import_module(found[2]), found[3])
    rows = (_line(name, inspect.getattr_static(owner, name)) for name in found[4].split())
    return found[1] + "".join(rows)


def _line(name: str, member: Any) -> str:
    if not isinstance(member, property):
        parameters = list(inspect.signature(member).parameters.values())[1:]
        words = [one.name + ("" if one.default is inspect.Parameter.empty else "=") for one in parameters]
        name = f"{'await ' if inspect.iscoroutinefunction(member) else ''}{name}({', '.join(words)})"
    text = _RULES.sub("", " ".join((inspect.getdoc(member) or "").split())).replace("<", "\\<")
    return f"* `{name}`: {text}\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
