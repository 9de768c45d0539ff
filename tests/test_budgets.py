"""Our part of a firmware keeps to firmware/budgets.toml: flash, heap, garbage. Each test prints what it measured."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mqqb import constants

from tests.conformance import ROOT
from tests.test_firmware import MPS2, Machine, machines, mps2  # noqa: F401 - fixtures

FIRMWARE = ROOT / "firmware"
SOURCE = ROOT / "build" / "micropython" / "source"
MPY_CROSS = ROOT / "build" / "micropython" / "mpy-cross" / "mpy-cross"
BUDGETS = tomllib.loads((FIRMWARE / "budgets.toml").read_text(encoding="utf-8"))
# What manifest.py does not freeze beside the C core.
NOT_FROZEN = {
    "mqqb/constants.py", "mqqb/core_cffi.py", "mqqb/core_py.py", "mqqb/extras.py", "mqqb/line_py.py",
    "mqqb/transfer.py", "node/cpython.py", "node/interfaces.py",
}
FIGURE = re.compile(r"^(\w+) (-?[\d.]+)\r?$", re.MULTILINE)

Start = Callable[..., Machine]


def keep(part: str, measured: dict[str, float]) -> None:
    """All that a part of the budgets names has been measured and is not above it."""
    budget = BUDGETS[part]
    print(f"{part}: " + ", ".join(f"{name} {measured[name]:g} of {budget[name]}" for name in budget))
    above = {name: measured[name] for name in budget if measured[name] > budget[name]}
    assert not above, f"{part}: above firmware/budgets.toml: {above}"


# ---- flash


def frozen(folder: Path) -> dict[str, int]:
    """What mpy-tool counts of the modules that boards have."""
    compiled = []
    for path in sorted([*FIRMWARE.glob("mqqb/*.py"), *FIRMWARE.glob("node/*.py")]):
        name = path.relative_to(FIRMWARE).as_posix()
        if name not in NOT_FROZEN:
            compiled.append(folder / name.replace("/", "-").replace(".py", ".mpy"))
            subprocess.run([MPY_CROSS, "-O3", "-s", name, "-o", compiled[-1], path], check=True)
    names = SOURCE.parent / "unix-twin" / "genhdr" / "qstrdefs.preprocessed.h"
    tool = [sys.executable, SOURCE / "tools" / "mpy-tool.py", "-f", "-q", names, "-mlongint-impl=mpz", *compiled]
    text = subprocess.run(tool, check=True, capture_output=True, text=True).stdout
    sizes = text[text.index("byte sizes:") :]

    def number(pattern: str) -> int:
        found = re.search(pattern, sizes)
        assert found, sizes
        return int(found[1])

    identifiers = number(r"qstr content: \d+ unique, (\d+)")
    return {"names": identifiers, "code": number(r"total: (\d+)") - identifiers}


def test_flash(tmp_path: Path) -> None:
    keep("flash", dict(frozen(tmp_path)))


def test_the_manifest_freezes_what_is_measured() -> None:
    manifest = (FIRMWARE / "ports" / "manifest.py").read_text(encoding="utf-8")
    for name in NOT_FROZEN:
        assert f'"{Path(name).name}"' in manifest, name


# ---- constants


def private_constants() -> Iterator[tuple[str, str, int]]:
    """(file, name without underscore, value) of what is folded on boards."""
    for path in sorted([*FIRMWARE.glob("mqqb/*.py"), *FIRMWARE.glob("node/*.py")]):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Call)
                and isinstance(node.value.func, ast.Name)
                and node.value.func.id == "const"
                and isinstance(node.targets[0], ast.Name)
            ):
                name = node.targets[0].id
                value = ast.literal_eval(node.value.args[0]) if node.value.args else None
                if name.startswith("_") and hasattr(constants, name[1:]) and not isinstance(value, str):
                    yield path.name, name[1:], value


def test_private_constants_are_those_of_the_core() -> None:
    found = list(private_constants())
    assert len(found) > 100
    for file, name, value in found:
        assert value == getattr(constants, name), (file, name)


def test_the_twin_gives_constants_when_asked() -> None:
    """What a board does, which loads them only then."""
    program = (
        "import sys; from mqqb import core; assert core.implementation == 'python';"
        "assert 'mqqb.constants' not in sys.modules; assert core.USER_JN == 0x100; assert not hasattr(core, 'USER_XX')"
    )
    environment = os.environ | {"ORDACK_CORE": "python"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, timeout=60)


# ---- heap and garbage, on a Cortex-M3


def figures(machine: Machine) -> dict[str, float]:
    """The lines `NAME NUMBER` that a program has printed."""
    assert machine.ended() == 0, machine.output
    found = {name: float(value) for name, value in FIGURE.findall(machine.output)}
    assert "done" in found, machine.output
    return found


def test_a_steady_session_takes_no_memory(mps2: Start) -> None:  # noqa: F811
    program = (ROOT / "tests" / "mp" / "steady.py").read_text(encoding="utf-8")
    # Without a collection in between, and with both ends in it, the heap has to be larger than a board's.
    found = figures(mps2(program + "\nimport mps2\nmps2.power_off(0)\n", settings="heap=192"))
    found["live"] -= found["warm"]
    keep("allocation", found)


@pytest.fixture
def served(mps2: Start, tmp_path: Path) -> "Iterator[Callable[[str], dict[str, float]]]":  # noqa: F811
    """Runs a program of tests/mp on a board with 64 KiB of heap, while `ordack serve` runs on the host."""
    ordack = str(Path(sys.executable).parent / "ordack")
    store = str(tmp_path / "store")
    create = [ordack, "queue", "create", "--store", store, "line1", "--transactional"]
    subprocess.run(create, check=True, stdout=subprocess.DEVNULL, timeout=60)
    serve = [ordack, "serve", "--store", store, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = server.stdout.readline().rpartition(":")[2].strip()

        def start(name: str) -> dict[str, float]:
            program = (ROOT / "tests" / "mp" / name).read_text(encoding="utf-8")
            settings = f"heap=64 id=0102030405 rtc=1 port={port}"
            return figures(mps2(program, "-nic", "user,model=lan9118", settings=settings))

        yield start
        server.terminate()


def test_heap_of_a_running_node(served: Callable[[str], dict[str, float]]) -> None:
    found = served("node_heap.py")
    assert found["done"] == 4
    keep("heap", found)


def test_large_messages_leave_a_heap_in_pieces(served: Callable[[str], dict[str, float]]) -> None:
    found = served("large_messages.py")
    assert found["largest"] < 1024
    assert found["done"] == 9


def test_the_firmware_that_is_measured_is_there() -> None:
    assert (MPS2 / "firmware.elf").exists(), "make firmware"
