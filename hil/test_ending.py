"""How the commands of the rig end: every reason is a sentence and a status."""

import asyncio
import io
import os
import signal
from collections.abc import Callable

import pytest
from rich.console import Console

from hil import ending
from hil.boards import BoardMissing, RigFailed


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
