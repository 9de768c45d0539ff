"""The native modules for boards with a stock firmware: each is for its processor, and does what the core must do."""

import functools
import json
import re
import runpy
import shutil
import subprocess
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from mpremote import mip

from firmware.ports.modules import BOARD
from tests import on_mps2
from tests.conformance import ROOT

MICROPYTHON = ROOT / "build" / "micropython"
NATIVE = ROOT / "build" / "natmod"
NUMBERS = {"x64": 2, "armv6m": 4, "armv7m": 5}  # MP_NATIVE_ARCH_*
LARGEST = 8192  # bytes of flash and of heap


def run(*arguments: str, path: str, cwd: Path = ROOT) -> str:
    """What a MicroPython for x64 without the C core prints."""
    result = subprocess.run(
        [MICROPYTHON / "unix-twin" / "micropython", *arguments],
        cwd=cwd,
        env={"MICROPYPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stdout
    return result.stdout


@pytest.mark.parametrize(("arch", "number"), NUMBERS.items())
def test_a_module_is_for_its_processor_and_small(arch: str, number: int) -> None:
    data = (NATIVE / arch / "_mqqb.mpy").read_bytes()
    assert data[:2] == b"M\x06"  # the format that MicroPython 1.25 loads
    assert data[2] >> 2 == number
    assert len(data) <= LARGEST


def test_the_checks_of_the_core_pass_on_a_native_module() -> None:
    output = run("tests/mp/test_core.py", path=f".frozen:{NATIVE / 'x64'}:.:tests/mp", cwd=BOARD)
    assert output.startswith("core: c-module\n")
    assert re.search(r"\n\d\d+ passed, 0 failed\s*\Z", output), output


FRAMES = """
import line_cases
from engine_cases import run_calls
names = [name for name in sorted(dir(line_cases)) if name.startswith("test_") and ("frame" in name or "twin" in name)]
run_calls([(name, getattr(line_cases, name), (), {}) for name in names])
"""


def test_the_checks_of_the_line_pass_on_a_native_module() -> None:
    """Those of frames, which the core makes."""
    output = run("-c", FRAMES, path=f".frozen:{NATIVE / 'x64'}:.:tests/mp", cwd=BOARD)
    assert re.search(r"\n\d+ passed, 0 failed\s*\Z", "\n" + output), output


@pytest.mark.parametrize("arch", ["armv6m", "armv7m"])
def test_core_checks_pass_on_cortex_m3_with_stock_firmware(monkeypatch: pytest.MonkeyPatch, arch: str) -> None:
    stock = ROOT / "build" / "firmware" / "mps2-an385-stock" / "firmware.elf"
    monkeypatch.setattr(on_mps2, "DATA", (*on_mps2.DATA, f"build/natmod/{arch}/_mqqb.mpy"))
    checks = (ROOT / "tests" / "mp" / "test_core.py").read_text()
    script = f"import sys\nsys.path[:0] = ['tests/mp', 'build/natmod/{arch}']\n{checks}"
    result = on_mps2.run(script, 100, firmware=stock)
    assert result.returncode == 0, result.stdout
    assert "core: c-module\n" in result.stdout
    assert re.search(r"\n\d\d+ passed, 0 failed\s*\Z", result.stdout), result.stdout


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The folder lib of a board: the package with all native modules beside it."""
    shutil.copytree(BOARD / "mqqb", tmp_path / "mqqb")
    for arch in NUMBERS:
        shutil.copy(NATIVE / arch / "_mqqb.mpy", tmp_path / "mqqb" / f"core_{arch}.mpy")
    return tmp_path


def test_a_board_takes_the_module_for_its_processor(installed: Path) -> None:
    code = "from mqqb import core; print(core.implementation, core.functions)"
    implementation, _, module = run("-c", code, path=f".frozen:{installed}").partition(" ")
    assert implementation == "native-module"
    assert "mqqb.core_x64'" in module


def test_the_twin_serves_where_no_module_is_for_this_micropython(installed: Path) -> None:
    module = installed / "mqqb" / "core_x64.mpy"
    code = "from mqqb import core; print(core.implementation)"
    module.write_bytes(b"M\x05" + module.read_bytes()[2:])  # for another version
    assert run("-c", code, path=f".frozen:{installed}") == "python\n"
    module.unlink()
    assert run("-c", code, path=f".frozen:{installed}") == "python\n"


BOUNDS = """
import sys
from array import array
import _mqqb
def refused(error, function, *arguments):
    try:
        function(*arguments)
    except error:
        return
    print("not refused:", arguments)
big = 1 << 31
assert _mqqb.tx_compare(0xFFFFFFFF, 1, 0xFFFFFFFE, 1) == 1 and _mqqb.tx_compare(big, True, big, 1) == 0
for wrong in (-1, -big, -big * 4, 1 << 32, (1 << 32) + 5, 1 << 70, -(1 << 70)):
    refused(ValueError, _mqqb.tx_compare, wrong, 0, 0, 0)
    refused(ValueError, _mqqb.tx_compare, 0, 0, 0, wrong)
    refused(ValueError, _mqqb.session_init, array("I", bytes(400)), wrong)
for wrong in (1.5, None, "1", b"1"):
    refused(TypeError, _mqqb.tx_compare, wrong, 0, 0, 0)
print("done")
"""


def test_numbers_beyond_a_word_are_refused() -> None:
    assert run("-c", BOUNDS, path=f".frozen:{NATIVE / 'x64'}") == "done\n"


# ---- what mip copies --------------------------------------------------------------------------------

PACKAGE = runpy.run_path(str(ROOT / "firmware" / "ports" / "natmod" / "package.py"))


def test_the_package_of_the_checkout_lists_every_module() -> None:
    assert (ROOT / "package.json").read_text() == PACKAGE["listing"](), "run package.py --list in firmware/ports/natmod"
    for _, source in json.loads((ROOT / "package.json").read_text())["urls"]:
        assert (ROOT / source).is_file()


def test_the_sources_of_the_package_run_as_they_are(tmp_path: Path) -> None:
    """mip copies them without the step that writes constants into them."""
    for place, source in json.loads((ROOT / "package.json").read_text())["urls"]:
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / source, tmp_path / place)
    program = (
        "from ordack.node import board, inbox; from ordack.node.storage import replay\n"
        "from mqqb import acks, core, names, parse\n"
        "ack = parse.parse(bytes(acks.order_ack(acks.order_queue('10.0.0.1'), bytes(16), 8, 1234, 1, 2, 3)))\n"
        "print(ack.body.tx_sequence_number, ack.body.fields[core.ACK_NUMBER], core.implementation)"
    )
    assert run("-c", program, path=f".frozen:{tmp_path}", cwd=tmp_path) == "3 3 python\n"


def test_the_compiled_package_holds_all_that_it_lists() -> None:
    folder = ROOT / "build" / "mip"
    places = [place for place, source in json.loads((folder / "package.json").read_text())["urls"] if place == source]
    assert {f"mqqb/core_{arch}.mpy" for arch in NUMBERS} < set(places)
    assert "ordack/node/storage/outbox.mpy" in places
    assert {str(path.relative_to(folder)) for path in folder.rglob("*.mpy")} == set(places)


class Folder:
    """What mpremote's mip asks of a board: its files."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def fs_exists(self, path: str) -> bool:
        return (self.root / path).exists()

    def fs_mkdir(self, path: str) -> None:
        (self.root / path).mkdir()

    def fs_writefile(self, path: str, data: bytes, progress_callback: object) -> None:
        (self.root / path).write_bytes(data)


@pytest.mark.parametrize(
    ("package", "core", "ending"), [("build/mip", "native-module", ".mpy"), (".", "python", ".py")]
)
def test_mip_installs_the_package_from_a_server(package: str, core: str, ending: str, tmp_path: Path) -> None:
    """Compiled, or as the checkout has it: what mpremote's mip fetches runs in the unix port."""
    handler = functools.partial(SimpleHTTPRequestHandler, directory=ROOT / package)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}/package.json"
        mip._install_package(Folder(tmp_path), address, "http://127.0.0.1:9", "lib", None, True)
        server.shutdown()
    program = (
        "from ordack import node; from ordack.node import board, inbox; from mqqb import core\n"
        "print(core.implementation, node.__file__)"
    )
    output = run("-c", program, path=f".frozen:{tmp_path / 'lib'}", cwd=tmp_path)
    assert output.split() == [core, f"{tmp_path}/lib/ordack/node/__init__{ending}"]
