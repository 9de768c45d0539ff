"""What tests import: never another test, and of other folders only what several share."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance import ROOT

MODULES = [
    path.relative_to(ROOT)
    for path in sorted((ROOT / "tests").rglob("*.py"))
    if path.parts[-2] not in ("c", "mp", "spin")
]


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
    return found


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_no_test_needs_another(module: Path) -> None:
    found = faults(module, (ROOT / module).read_text(encoding="utf-8"))
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    ["from tests.host.test_cli import run", "import tests.host.test_cli", "from tests.host import test_cli",
     "from tests.node.destination import Destination", "from tests.node import destination"],
)  # fmt: skip
def test_what_may_not_be_imported_is_found(line: str) -> None:
    assert len(faults(Path("tests/host/test_some.py"), line)) == 1


def test_the_bench_of_boards_starts_by_itself() -> None:
    """Without what pytest adds to the path."""
    subprocess.run([sys.executable, "-c", "import tests.bench.bench_board"], cwd=ROOT, check=True, timeout=120)
