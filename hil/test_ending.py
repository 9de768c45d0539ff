"""How the commands of the rig end: every reason is a sentence and a status."""

import asyncio
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from hil import ending
from hil.boards import BoardMissing, RigFailed

RIG = (sys.executable, "-m", "hil.rig")


def raising(error: BaseException) -> Callable[[], int]:
    def do() -> int:
        raise error

    return do


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (BoardMissing("no board [red]pico-7[/]"), 2, "no board [red]pico-7[/]\n"),
        (OSError(28, "No space left on device", "ledger"), 2, "[Errno 28] No space left on device: 'ledger'\n"),
        (RigFailed("board bench: no hub"), 3, "board bench: no hub\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (asyncio.CancelledError(), 130, "interrupted\n"),
    ],
)
def test_command_failure_prints_message_and_status(error: BaseException, status: int, said: str) -> None:
    out = io.StringIO()
    assert ending.ending(Console(file=out, width=80), raising(error)) == status
    assert out.getvalue() == said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_runs_cleanup_and_restores_signal_handler(number: signal.Signals) -> None:
    before = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    outside = signal.signal(number, before)  # a shell's job in the background has SIGINT ignored
    put_away: list[str] = []

    async def work() -> int:
        try:
            os.kill(os.getpid(), number)
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(0)  # as for a process to end
            put_away.append("everything")
        return 0

    out = io.StringIO()
    try:
        assert ending.ending(Console(file=out), lambda: ending.to_the_end(work())) == 130
        assert (put_away, out.getvalue()) == (["everything"], "interrupted\n")
        assert signal.getsignal(number) == before
    finally:
        signal.signal(number, outside)


DRIVERS = "MicroPythonDriver: {}, ManualPowerDriver: {}, NodeDriver: {host: LAN}"
ONE = f"  one: {{resources: {{RawSerialPort: {{port: /dev/ttyS9}}}}, drivers: {{{DRIVERS}}}}}\n"
FILE = f"imports: [hil.drivers]\ntargets:\n{ONE}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (FILE + ONE, "{path}: one stands there twice: give one another name"),
        (FILE + ONE.replace("one", "two"), "{path}: boards one and two are described alike"),
        (FILE.replace("LAN", "1"), "'host' must be <class 'str'> (got 1 that is a <class 'int'>).\n"),
    ],
)
def test_invalid_rig_file_gives_error_message_without_traceback(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "rig.yaml"
    path.write_text(text)
    done = subprocess.run([*RIG, "check", "--lg-env", path], capture_output=True, text=True, check=False)
    assert done.returncode in (1, 2)
    assert said.format(path=path) in done.stdout + done.stderr


def test_a_full_disk_is_no_fault_of_a_board_and_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "rig.yaml"
    path.write_text(FILE)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*RIG, "check", "--lg-env", path], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    said = "rig: cannot write to standard output: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, said)
