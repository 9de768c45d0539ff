"""Our part of a firmware keeps to firmware/budgets.toml: flash, heap, garbage. Each test prints what it measured."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from firmware.ports import modules
from tests.conformance import ROOT
from tests.support.emulated import MPS2, Machine

FIRMWARE = ROOT / "firmware"
SOURCE = ROOT / "build" / "micropython" / "source"
MPY_CROSS = ROOT / "build" / "micropython" / "mpy-cross" / "mpy-cross"
BUDGETS = tomllib.loads((FIRMWARE / "budgets.toml").read_text(encoding="utf-8"))
SEND_ONLY = MPS2.with_name("mps2-an385-send-only")
ASKS = """\
from ordack import node
import mps2
board = node.Node("/flash/outbox")
queue = board.queue("DIRECT=TCP:10.0.2.2\\\\private$\\\\line1")
message = queue.put(b"21.5")
for ask in (
    lambda: board.inbox("here"),
    lambda: board.dead_letters(),
    lambda: board.take(message),
    lambda: queue.put(b"21.5", dead_letter=True),
    lambda: queue.put(b"21.5", journal=True),
    lambda: message.conclusion(),
    lambda: node.Node("/flash/other", listen=("0.0.0.0", 1801)),
):
    try:
        ask()
    except NotImplementedError as error:
        print(error)
print("waiting", board.waiting)
mps2.power_off(0)
"""
FIGURE = re.compile(r"^(\w+) (-?[\d.]+)\r?$", re.MULTILINE)

Start = Callable[..., Machine]


def keep(part: str, measured: dict[str, float]) -> None:
    """All that a part of the budgets names has been measured and is not above it."""
    budget = BUDGETS[part]
    print(f"{part}: " + ", ".join(f"{name} {measured[name]:g} of {budget[name]}" for name in budget))
    above = {name: measured[name] for name in budget if measured[name] > budget[name]}
    assert not above, f"{part}: above firmware/budgets.toml: {above}"


# ---- flash


def frozen(folder: Path, names: list[str], board: Path = modules.BOARD) -> dict[str, int]:
    """What mpy-tool counts of modules."""
    compiled = []
    for name in names:
        compiled.append(folder / name.replace("/", "-").replace(".py", ".mpy"))
        subprocess.run([MPY_CROSS, "-O3", "-s", name, "-o", compiled[-1], board / name], check=True)
    known = SOURCE.parent / "unix-twin" / "genhdr" / "qstrdefs.preprocessed.h"
    tool = [sys.executable, SOURCE / "tools" / "mpy-tool.py", "-f", "-q", known, "-mlongint-impl=mpz", *compiled]
    text = subprocess.run(tool, check=True, capture_output=True, text=True).stdout
    sizes = text[text.index("byte sizes:") :]

    def number(pattern: str) -> int:
        found = re.search(pattern, sizes)
        assert found, sizes
        return int(found[1])

    identifiers = number(r"qstr content: \d+ unique, (\d+)")
    return {"names": identifiers, "code": number(r"total: (\d+)") - identifiers}


def test_flash(tmp_path: Path) -> None:
    keep("flash", dict(frozen(tmp_path, modules.of_boards(twin=False, tls=False, raw_flash=False))))


def test_flash_of_raw_flash(tmp_path: Path) -> None:
    keep("raw_flash", dict(frozen(tmp_path, sorted(modules.RAW_FLASH))))


def in_flash(firmware: Path) -> int:
    """Bytes of our modules in a firmware, without raw_flash.py."""
    command = ["arm-none-eabi-size", "-A", firmware / "frozen_content.o"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    sections = re.findall(r"^\.(\S*(?:mqqb|ordack|rom_|__wrap)\S*) +(\d+)", text, re.MULTILINE)
    return sum(int(size) for name, size in sections if "raw_flash" not in name)


def test_flash_of_a_firmware() -> None:
    keep("firmware", {"flash": in_flash(MPS2)})


# ---- constants


def test_a_board_has_values_where_the_sources_have_names() -> None:
    """No module of a board states a public constant, names one, or has the table of the core's."""
    stated = modules.stated()
    assert len(stated["mqqb.core"]) > 100
    assert "mqqb/constants.py" not in modules.of_boards()
    named = 0
    for name in modules.of_boards():
        own = stated.get(name.removesuffix(".py").replace("/", "."), {})
        imported = {}
        source, board = (ast.parse((folder / name).read_text(encoding="utf-8")) for folder in (FIRMWARE, modules.BOARD))
        for node in ast.walk(source):
            if isinstance(node, ast.ImportFrom):
                imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        for tree in (source, board):
            for node in ast.walk(tree):
                of = own
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    of = stated.get(imported.get(node.value.id, ""), {})
                if isinstance(node, ast.Attribute | ast.Name) and getattr(node, "attr", getattr(node, "id", "")) in of:
                    named += 1
                    assert tree is source, (name, ast.unparse(node), node.lineno)
                if tree is board and isinstance(node, ast.ImportFrom):
                    assert node.module != "mqqb.constants", name
                    assert "constants" not in [alias.name for alias in node.names], name
    assert named > 500


# ---- heap and garbage, on a Cortex-M3


def figures(machine: Machine) -> dict[str, float]:
    """The lines `NAME NUMBER` that a program has printed."""
    assert machine.ended() == 0, machine.output
    found = {name: float(value) for name, value in FIGURE.findall(machine.output)}
    assert "done" in found, machine.output
    return found


def test_a_steady_session_takes_no_memory(mps2: Start) -> None:
    program = (modules.BOARD / "tests" / "mp" / "steady.py").read_text(encoding="utf-8")
    # Without a collection in between, and with both ends in it, the heap has to be larger than a board's.
    found = figures(mps2(program + "\nimport mps2\nmps2.power_off(0)\n", settings="heap=192"))
    found["live"] -= found["warm"]
    keep("allocation", found)


@pytest.fixture
def served(mps2: Start, tmp_path: Path) -> "Iterator[Callable[..., dict[str, float]]]":
    """Runs a program of tests/mp on a board with 64 KiB of heap, while `ordack serve` runs on the host."""
    ordack = str(Path(sys.executable).parent / "ordack")
    store = str(tmp_path / "store")
    for words in (["init"], ["queue", "create", "line1", "--transactional"]):
        command = [ordack, *words, "--store", store]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)
    serve = [ordack, "serve", "--store", store, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = server.stdout.readline().rpartition(":")[2].strip()

        def start(name: str, firmware: "Path | None" = None) -> dict[str, float]:
            program = (modules.BOARD / "tests" / "mp" / name).read_text(encoding="utf-8")
            settings = f"heap=64 id=0102030405 rtc=1 port={port}"
            return figures(mps2(program, "-nic", "user,model=lan9118", settings=settings, firmware=firmware))

        yield start
        server.terminate()


def test_heap_of_a_running_node(served: Callable[[str], dict[str, float]]) -> None:
    found = served("node_heap.py")
    assert found["done"] == 4
    keep("heap", found)


def test_firmware_that_only_sends_is_smaller(served: Callable[..., dict[str, float]], tmp_path: Path) -> None:
    found = served("node_heap.py", SEND_ONLY / "firmware.elf")
    assert found["done"] == 4
    chosen = modules.of_boards(twin=False, tls=False, raw_flash=False, uart=False, send_only=True)
    found |= frozen(tmp_path, chosen, modules.write(modules.BOARD.with_name("board-send-only"), (), send_only=True))
    keep("send_only", found | {"flash": in_flash(SEND_ONLY)})


def test_firmware_that_only_sends_refuses_what_receives(mps2: Start) -> None:
    board = mps2(ASKS, firmware=SEND_ONLY / "firmware.elf")
    assert board.ended() == 0, board.output
    assert board.output.count(modules.SENDS_ONLY) == 7
    assert "waiting 1" in board.output  # it still takes messages


def test_large_messages_come_to_a_heap_in_pieces_and_leave_it(served: Callable[[str], dict[str, float]]) -> None:
    found = served("large_messages.py")
    assert found["largest"] < 1024
    assert found["done"] == 12


def test_measured_firmware_exists() -> None:
    assert (MPS2 / "firmware.elf").exists(), "make firmware"
