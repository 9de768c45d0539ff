"""What tests import: never another test, and of other folders only what several share. Of the scripts in tests/mp they
import the lists of what MicroPython runs, to run that on CPython, and nothing else."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance import ROOT

MODULES = [
    path.relative_to(ROOT)
    for path in sorted((ROOT / "tests").rglob("*.py"))
    if path.parts[-2] not in ("c", "mp", "spin")
]
LISTS = {"TESTS", "CASES", "OTHERS"}  # what a script in tests/mp runs


def imported(tree: ast.AST) -> Iterator[str]:
    """Full names of modules, and of what is taken out of them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def faults(module: Path, source: str) -> list[str]:
    """What it may not import: tests, and, if it is no bench, what stands beside the tests of another folder."""
    allowed = {"support", *module.parts[1:-1]}
    found = []
    for name in imported(ast.parse(source)):
        first, *rest = name.split(".")
        if first == "tests" and any(part.startswith("test_") for part in rest):
            found.append(f"{module} imports the test {name}")
        elif first == "tests" and (ROOT / "tests" / rest[0]).is_dir() and not allowed & {rest[0], "bench"}:
            found.append(f"{module} imports {name}, which is for tests/{rest[0]}: move it to tests/support")
    return found + [f"{module} takes {name} from a script: move it to a module beside that" for name in taken(source)]


def taken(source: str) -> Iterator[str]:
    """What a module takes out of scripts besides their lists."""
    tree = ast.parse(source)
    imports = [alias for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    scripts = {alias.asname or alias.name for alias in imports if alias.name.startswith("test_")}
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("test_"):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute) and getattr(node.value, "id", "") in scripts:
            names.append(node.attr)
    yield from (name for name in names if name not in LISTS)


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_no_test_needs_another(module: Path) -> None:
    found = faults(module, (ROOT / module).read_text(encoding="utf-8"))
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    ["from tests.host.test_cli import run", "import tests.host.test_cli", "from tests.host import test_cli",
     "from tests.node.destination import Destination", "from tests.node import destination",
     "from test_node import Board", "import test_node as boards\nboards.Board()"],
)  # fmt: skip
def test_forbidden_test_import_is_detected(line: str) -> None:
    assert len(faults(Path("tests/host/test_some.py"), line)) == 1
