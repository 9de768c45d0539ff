"""What only boards or Spark need is an extra: all else works without it, and what needs it says what to install."""

from __future__ import annotations

import functools
import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from ordack.client import Client
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conformance import ROOT
from tests.support.command import DEADLINE_S, ENVIRONMENT

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# The packages whose modules may need what is named behind them.
NEEDY = {
    "boards": ("ordack.boards.",),
    "spark": ("ordack.pipeline.", "ordack.audit.", "ordack.reconcile.", "ordack.capture.columnar"),
}
ABSENT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
"""


def needed(lines: list[str]) -> set[str]:
    """The distributions that these requirements bring, with what those need in turn."""
    found: set[str] = set()
    while lines:
        one = Requirement(lines.pop())
        name = canonicalize_name(one.name)
        if name not in found and (one.marker is None or one.marker.evaluate({"extra": ""})):
            found.add(name)
            lines.extend(importlib.metadata.requires(name) or ())
    return found


@functools.cache
def absent() -> frozenset[str]:
    """The modules that are here, but not where ordack is installed without an extra."""
    base = {"ordack", *needed(list(SETTINGS["dependencies"]))}
    return frozenset(
        module
        for module, owners in importlib.metadata.packages_distributions().items()
        if base.isdisjoint(map(canonicalize_name, owners))
    )


def alone(program: str, *arguments: object, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """A program in an interpreter that has ordack and what it needs."""
    return subprocess.run(
        [sys.executable, "-c", ABSENT.format(absent=set(absent())) + program, *map(str, arguments)],
        cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip


def test_base_install_excludes_board_and_spark_packages() -> None:
    assert {
        "mpremote",
        "serial",
        "cobs",
        "littlefs",
        "pyspark",
        "pyarrow",
        "numpy",
        "pandas",
        "pytest",
        "dpkt",
    } <= absent()
    assert not {"cbor2", "rich", "typer", "apsw", "h11", "prometheus_client"} & absent()


def test_modules_import_without_optional_extras() -> None:
    modules = sorted(
        ".".join(path.relative_to(ROOT / "host").with_suffix("").parts).removesuffix(".__init__")
        for path in (ROOT / "host" / "ordack").rglob("*.py")
    )
    done = alone(
        "from importlib import import_module\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n"
        "        import_module(name)\n"
        "    except ModuleNotFoundError as error:\n"
        "        print(name, error.name)\n",
        *(name for name in modules if name != "ordack.__main__"),
    )
    assert done.returncode == 0, done.stderr
    failed = dict(line.split() for line in done.stdout.splitlines())
    assert {"ordack.boards.repl": "serial", "ordack.pipeline.export": "pyarrow"}.items() <= failed.items()
    needy = tuple(name for names in NEEDY.values() for name in names)
    assert {name: module for name, module in failed.items() if not name.startswith(needy)} == {}


def test_a_program_waits_for_no_module_that_it_may_not_use() -> None:
    done = alone("import ordack; print(*sys.modules)")
    slow = {"asyncio", "cbor2", "cryptography", "email", "http.client", "prometheus_client", "rich", "ssl", "typer"}
    assert slow.intersection(done.stdout.split()) == set(), done.stderr


@pytest.mark.parametrize("command", ["--help", "send line1 --body x", "receive line1", "status --json"])
def test_frequent_commands_do_not_import_slow_modules(command: str, tmp_path: Path) -> None:
    """A script that sends each second pays for every import."""
    with Client(tmp_path, create=True) as client:
        client.create_queue("line1")
        client.send("line1", b"x")
    program = "import sys; from ordack.cli import main\ntry:\n    main()\nfinally:\n    print(*sys.modules)"
    done = alone(program, "--store", tmp_path, *command.split())
    modules = done.stdout.split()
    assert "ordack.cli" in modules, done.stderr
    slow = {"asyncio", "cryptography", "h11", "numpy", "pandas", "prometheus_client", "pyarrow", "pydantic", "pyspark"}
    slow |= {"ordack.broker.manager", "ordack.cli.serve", "ordack.server.tcp", "rich", "ssl"}
    assert slow.intersection(modules) == set()


@pytest.mark.parametrize(
    ("command", "what", "module", "extra"),
    [
        ("board deploy --port /dev/null", "this command", "serial", "boards"),
        ("board doctor --port /dev/null --json", "this command", "serial", "boards"),
        ("board rescue .", "this command", "serial", "boards"),
        ("serve --store new --listen 127.0.0.1:0 --serial a=/dev/null", "a serial port", "serial", "boards"),
        ("table export line1 --store new --to segments --json", "this command", "pyarrow", "spark"),
        ("table ingest . --to table", "this command", "numpy", "spark"),
        ("table prune . --in table --json", "this command", "pyarrow", "spark"),
        ("table reconcile . . table", "this command", "pyspark", "spark"),
        ("capture audit .", "this command", "pyspark", "spark"),
    ],
)
def test_command_without_its_extra_names_package_to_install(
    command: str, what: str, module: str, extra: str, tmp_path: Path
) -> None:
    done = alone("from ordack.cli import main; main()", *command.split(), folder=tmp_path)
    sentence = (
        f"{what} needs the Python module {module}, which is not installed: run `pip install '.[{extra}]'` in a checkout"
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"ordack: {sentence}\n")
    assert list(tmp_path.iterdir()) == []  # nothing was begun
