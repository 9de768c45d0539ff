"""Every firmware boots, says which core it uses, and does what a board must: files, lines, network, resets."""

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hil.emulated import M3
from tests.conformance import ROOT
from tests.support.command import ordack, own_port
from tests.support.emulated import DEADLINE_S, Machine

FAULT_STATUS = 3

pytestmark = pytest.mark.timeout(300)


# ---- microcontrollers


def test_a_board_has_its_core_and_its_settings(mps2: Callable[..., Machine]) -> None:
    machine = mps2(
        "import gc, machine, math, mps2, os, sys, time\n"
        "from mqqb import core\n"
        "from ordack import node\n"
        "print(core.implementation, os.getcwd(), machine.unique_id(), mps2.setting('port'), mps2.setting('por'))\n"
        "gc.collect()\n"
        "print('heap', gc.mem_free() + gc.mem_alloc(), 'year', time.localtime()[0])\n"
        "print(sys.implementation._machine, math.sqrt(2.25) * 3)\n"
        "mps2.power_off(7)\n",
        settings="heap=96 id=e660c0ffee port=1234",
    )
    assert machine.ended() == 7, machine.output
    assert "c-module /flash b'\\xe6`\\xc0\\xff\\xee' 1234 None" in machine.output
    heap = int(machine.output.split("heap ")[1].split()[0])
    assert 90 << 10 < heap <= 96 << 10
    assert f"with {M3.processor} 4.5" in machine.output
    assert "year 2000" in machine.output  # no clock, and nobody told it the time


def test_mps2_starts_with_a_blank_flash_and_without_semihosting(machines: Callable[..., Machine]) -> None:
    machine = machines(
        *("qemu-system-arm", "-machine", "mps2-an385", "-display", "none", "-monitor", "none"),
        *("-kernel", M3.firmware, "-serial", "stdio"),
    )
    machine.until("MicroPython v")


def test_a_board_resets_and_knows_why(mps2: Callable[..., Machine]) -> None:
    machine = mps2(
        "import machine, mps2, time\n"
        "names = {getattr(machine, n): n for n in dir(machine) if n.endswith('_RESET')}\n"
        "cause = names[machine.reset_cause()]\n"
        "print('cause', cause)\n"
        "if cause == 'PWRON_RESET': machine.reset()\n"
        "if cause == 'HARD_RESET': machine.deepsleep(20)\n"
        "if cause == 'DEEPSLEEP_RESET':\n"
        "    dog = machine.WDT(timeout=1000)\n"
        "    for _ in range(150):\n"
        "        time.sleep_ms(10); dog.feed()\n"
        "    print('fed')\n"
        "    time.sleep(600)\n"
        "if cause == 'WDT_RESET': machine.soft_reset()\n"
        "machine.RTC().datetime((2026, 11, 21, 0, 12, 34, 56, 0))\n"
        "print(time.localtime()[:5])\n"
        "machine.mem32[0xf0000000]\n",
        *("-icount", "shift=6,sleep=off"),  # its time goes by instructions, however busy this machine is
    )
    assert machine.ended() == FAULT_STATUS
    causes = [line.split()[1] for line in machine.output.splitlines() if line.startswith("cause ")]
    assert causes == ["PWRON_RESET", "HARD_RESET", "DEEPSLEEP_RESET", "WDT_RESET", "SOFT_RESET"]
    assert "fed" in machine.output
    assert "(2026, 11, 21, 12, 34)" in machine.output
    assert "FAULT pc" in machine.output
    assert "bfar f0000000" in machine.output


def with_uart(
    mps2: Callable[..., Machine], program: str, place: Path, serial: Sequence[str], **options: Any
) -> tuple[Machine, socket.socket]:
    """A machine with this program, and the other end of its UART 1, through a socket at this place."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(place))
        server.listen()
        server.settimeout(DEADLINE_S)
        machine = mps2(program, "-chardev", f"socket,id=uart1,path={place}", *serial, **options)
        line, _ = server.accept()
    return machine, line


DEAF_MAIN = """\
import machine, mps2, time
uart = machine.UART(1, 115200, rxbuf=4096)
flash = mps2.Flash()
print("ready")
while not uart.any():
    pass
begin = time.ticks_ms()
flash.ioctl(6, 500)
print("took", time.ticks_diff(time.ticks_ms(), begin) >= 1000)
print("has lost", "overruns=0" not in str(uart), uart.any() < 2000)
"""


def test_mps2_hears_nothing_while_it_erases_if_that_takes_time(mps2: Callable[..., Machine], tmp_path: Path) -> None:
    """As on an RP2, which stops interrupts meanwhile. 2000 bytes at 115200 baud take less than a second."""
    for settings, lost in (("heap=64 erase_ms=1000", True), ("heap=64", False)):
        place, serial = tmp_path / f"uart1-{lost}", ("-serial", "chardev:uart1")
        machine, line = with_uart(mps2, DEAF_MAIN, place, serial, settings=settings)
        with line:
            machine.until("ready")
            line.sendall(bytes(2000))
            if lost:
                machine.until("took True")
            machine.until(f"has lost {lost}")


def test_the_walk_through_with_no_board_works(tmp_path: Path) -> None:
    """And with a typo in the queue's name the program says so."""
    page = (ROOT / "firmware" / "docs" / "tutorial.md").read_text(encoding="utf-8")
    commands = page.partition("### A Cortex-M3 in QEMU")[2].partition("```sh\n")[2].partition("```")[0]
    program = (ROOT / "firmware" / "examples" / "no_board.py").read_text(encoding="utf-8")
    port = str(own_port())
    examples = tmp_path / "firmware" / "examples"
    examples.mkdir(parents=True)
    program = program.replace("1801", port)
    make, flash, init, create, serve, qemu, receive = commands.replace("\\\n", "").replace("1801", port).splitlines()
    assert make == "make firmware"
    (tmp_path / "build").symlink_to(ROOT / "build")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def run(command: str) -> str:
        if command.startswith("ordack "):
            done = ordack(*shlex.split(command)[1:], folder=tmp_path)
        else:
            shell = ["bash", "-ec", command]
            done = subprocess.run(
                shell, cwd=tmp_path, env=environment, timeout=DEADLINE_S, stdout=subprocess.PIPE, text=True
            )
        assert done.returncode == 0, done.stdout
        return done.stdout

    run(init)
    run(create)
    with subprocess.Popen(
        shlex.split(serve.rstrip("& ")), cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == f"listening on 127.0.0.1:{port}\n"
            for queue, end in (("lime1", "refused"), ("line1", "in the queue")):
                (examples / "no_board.py").write_text(program.replace('line1"', f'{queue}"'), encoding="utf-8")
                shutil.rmtree(tmp_path / "files", ignore_errors=True)
                run(flash)
                assert run(qemu).splitlines()[-2:] == ["on flash", end]
            received = [json.loads(line) for line in run(receive).splitlines()]
        finally:
            server.terminate()
    assert [(message["label"], message["body_base64"]) for message in received] == [("temperature", "MjEuNQ==")]
