"""A reader holds a class of 400 lines and a function of 60: no more, in what is shipped and in the rig."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.conformance import ROOT

CLASS_LINES, FUNCTION_LINES = 400, 60
FOLDERS = ("firmware", "hil", "host")


def definitions() -> Iterator[tuple[str, ast.stmt]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not path.name.startswith("test_"):
                for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                    if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                        yield f"{path.relative_to(ROOT)}: {node.name}", node


def test_no_class_and_no_function_is_longer() -> None:
    found = list(definitions())
    assert len(found) > 1000
    for name, node in found:
        assert node.end_lineno is not None
        lines = node.end_lineno - node.lineno + 1
        assert lines <= (CLASS_LINES if isinstance(node, ast.ClassDef) else FUNCTION_LINES), f"{name} has {lines} lines"
