"""Faults planted in copies of the node and of the queue manager, one line each: one campaign finds each,
whatever its seed and however busy the machine is.
"""

import asyncio
import compileall
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from rich.console import Console

from hil.boards import MISHAP, ROOT
from hil.campaign import run_campaign
from hil.dice import new_seed
from hil.report import Figures
from hil.scenario import ERASE_FIXED, MANAGER, OFFLINE, ORDACK, Event, Kill, Settings
from hil.targets import interpreter

PATIENCE_S = 120.0
"""What a destination refuses for ever ends when it is sent again, half a minute later: a node without a fault waits."""
MESSAGES_PLANNED = 104
"""Of a campaign with a plan of its own; eight divides it."""


class Planted(NamedTuple):
    """In `file`, `line` becomes `instead` at its first place behind `behind`.

    is_at_manager: the queue manager runs the copy, whatever the file. Else the board does, on MicroPython if is_unix.
    resends_soon: the board resends after 1 s in place of 30 s. The other fields are settings of the campaign; with a
    plan, `ahead` lets each life of the board accept some readings.
    """

    file: str
    behind: str
    line: str
    instead: str
    mishap: str = ""
    plan: tuple[Event, ...] | None = None
    ahead: int = 4
    is_at_manager: bool = False
    is_unix: bool = False
    max_size: int | None = 200
    resends_soon: bool = False


PLANTED = {
    # The last one before the power cut, when all readings wait on the board, is of them.
    "the node skips every eighth sync": Planted(
        *("firmware/ordack/node/storage/log.py", "def sync(self) -> bool", "self.files.sync()"),
        "self._owner.last_message_id % 8 == 0 or self.files.sync()",
        mishap=OFFLINE,
        plan=(),
        ahead=MESSAGES_PLANNED,
        is_unix=True,
    ),
    "the node sends every tenth message under the number of the one before": Planted(
        *("firmware/mqqb/streams.py", "def prepare(", "self._header[core.TX_PREVIOUS] = previous"),
        "self._header[core.TX_NUMBER] -= not self._header[core.TX_NUMBER] % 10; "
        "self._header[core.TX_PREVIOUS] = max(0, previous - (previous % 10 in (0, 9)))",
        mishap=OFFLINE,
        plan=(),
        ahead=MESSAGES_PLANNED,
    ),
    "the node sends one message more than the window": Planted(
        *("firmware/mqqb/session.py", "def can_send(", "core.session_can_send(self.window.counts)"),
        "core.session_unacked_sent(self.window.counts) <= self.window.counts[core.SESSION_WINDOW_SIZE]",
    ),
    "the queue manager drops the lowest acknowledgement bit": Planted(
        *("firmware/mqqb/connection.py", "def fill(", "core.session_fill(self.counts, header)"),
        "core.session_fill(self.counts, header); header[core.ACKS_FLAGS] &= ~1",
        plan=(),
        is_at_manager=True,
    ),
    "compaction loses one message": Planted(
        *("firmware/ordack/node/storage/outbox.py", "some_of(", "_copy(opened, owner, some)"),
        "log.drop(some.pop()); _copy(opened, owner, some)",
        max_size=None,
    ),
    "the node forgets what was in flight": Planted(
        *(
            "firmware/ordack/node/storage/outbox.py",
            "def __init__(",
            "self.restored = found.restored",
            "self.restored = []",
        ),
        mishap=OFFLINE,
        plan=(),
        ahead=MESSAGES_PLANNED,
    ),
    # What the destination had under these numbers before the folder was erased is taken for what waits under them now.
    "the node trusts an erased folder": Planted(
        *("firmware/mqqb/lives.py", "def _end(", "confirm.NACK_REACH_QUEUE_TIMEOUT", "0", ERASE_FIXED),
        plan=(Kill(20, 0.0, 0.1), Kill(40, 0.0, 0.1, MISHAP)),
        resends_soon=True,
    ),
    "the queue manager commits after acknowledging": Planted(
        "host/ordack/store/database.py",
        "def _transaction(",
        "self.commit()",
        "__import__('threading').Timer(5, self.commit).start() "  # not in the command that makes the queue
        "if 'serve' in __import__('sys').argv else self.commit()",
        plan=(Kill(20, 0.0, 0.1, victim=MANAGER),),
    ),
}


def copied(top: str, folder: Path) -> Path:
    """A copy of a folder of the checkout."""
    ignored = shutil.ignore_patterns("ports", "*.so", "build")
    return Path(shutil.copytree(ROOT / top, folder / top, ignore=ignored))


def resend_soon(firmware: Path) -> None:
    """Let the nodes of a copy resend after 1 s in place of 30 s."""
    streams = firmware / "mqqb" / "streams.py"
    text = streams.read_text()
    assert "tuple([30000]" in text
    streams.write_text(text.replace("tuple([30000]", "tuple([1000]"))


def on_unix(firmware: Path) -> str:
    """The board that is MicroPython's unix port with this copy."""
    return f"exec:{shlex.join(['env', f'MICROPYPATH=.frozen:{firmware}', *interpreter('unix')])}"


def plant(fault: Planted, folder: Path) -> tuple[str, str]:
    """A copy of the folder with the fault in it; the board and the queue manager that run on it."""
    top = fault.file.split("/")[0]
    copy = copied(top, folder)
    path = folder / fault.file
    text = path.read_text()
    at = text.index(fault.line, text.index(fault.behind))
    path.write_text(text[:at] + fault.instead + text[at + len(fault.line) :])
    if fault.resends_soon:
        resend_soon(copy)
    compileall.compile_dir(copy, quiet=1)  # what has changed: once, for the board writes none at its starts
    if fault.is_unix:
        return on_unix(copy), shlex.join(ORDACK)
    python = shlex.join([shutil.which("env") or "env", f"PYTHONPATH={copy}", sys.executable])
    is_at_manager = fault.is_at_manager or top == "host"
    return ("cpython", f"{python} -m ordack") if is_at_manager else (f"exec:{python}", shlex.join(ORDACK))


@pytest.fixture
def campaign(tmp_path: Path) -> Callable[[Planted], Figures]:
    """Run the short campaign with this fault in it."""
    if not Path(ORDACK[0]).exists():
        pytest.skip(f"{ORDACK[0]} is missing; `make setup` installs it")

    def run(fault: Planted) -> Figures:
        seed = new_seed()
        print(f"seed {seed}")
        board, ordack = plant(fault, tmp_path)
        settings = Settings(200, 4, 4, seed, board, fault.max_size, PATIENCE_S, 240.0, mishap=fault.mishap)
        settings = replace(settings, ordack=tuple(shlex.split(ordack)))
        if fault.plan is not None:
            settings = replace(settings, messages=MESSAGES_PLANNED, cuts=0, ahead=fault.ahead, plan=fault.plan)
        settings = replace(settings, artefacts=tmp_path / "campaign")
        return asyncio.run(run_campaign(settings, Console()))

    return run


@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str, campaign: Callable[[Planted], Figures]) -> None:
    figures = campaign(PLANTED[name])
    print(figures.shortcomings())
    assert figures.symptoms()
    is_at_manager = PLANTED[name].is_at_manager or PLANTED[name].file.startswith("host/")
    assert figures.acknowledged if is_at_manager else figures.accepted, (
        "but for the fault the copy does what it is to do"
    )
