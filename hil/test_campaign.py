"""The campaign against the stand-in pair: it comes to its end when all is well, and to the right complaint when not."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ordack.node import Node

from hil import campaign, part
from hil.boards import POWER, RESET, ROOT, Line, Log, ProcessBoard
from hil.campaign import main
from hil.conftest import STANDIN, RunStandin
from hil.emulated import M3, Mps2Board
from hil.faults import GOES_ON, UP, Cut, CutSchedule
from hil.part import Mishaps
from hil.progress import Progress, Starts
from hil.scenario import ORDACK, Kill, Settings
from hil.signals import heed
from hil.victims import Victim

# Victims


class StandinEnd:
    """Something that can be killed."""

    def __init__(self) -> None:
        self.alive = True
        self.resets = 0
        self.log = Log()

    def kill(self) -> None:
        self.alive = False

    def power_up(self) -> None:
        self.alive = True

    def reset(self) -> None:
        self.resets += 1


def test_victim_is_killed_at_count_and_restarts_after_delay() -> None:
    end = StandinEnd()
    victim = Victim("board", end, [Kill(10, 0.5, 2.0), Kill(10, 0.0, 0.0)])
    steps = [
        (9, 0.0, True, 0),
        (10, 1.0, True, 0),
        (10, 1.4, True, 0),
        (10, 1.5, False, 1),
        (10, 3.4, False, 1),
        (10, 3.5, True, 1),
        (11, 3.6, False, 2),
    ]
    for count, now, alive, kills in steps:
        victim.tick(count, now)
        assert (end.alive, victim.kills) == (alive, kills)
        assert not victim.finished
    victim.tick(11, 3.6)
    assert victim.finished
    victim.tick(99, 9.0)
    assert (end.alive, victim.kills) == (True, 2)


def test_power_cut_happens_at_its_byte_or_after_timeout() -> None:
    end, schedule = StandinEnd(), CutSchedule(())
    victim = Victim("board", end, [Kill(10, 5.0, 1.0, POWER, 100), Kill(20, 5.0, 1.0, POWER, 100)], schedule=schedule)
    passage = schedule.open()
    assert passage.passed(UP, passage.allowed(UP, 70)) is False
    victim.tick(10, 0.0)
    for size in (60, 40):
        assert passage.allowed(UP, 4096) == (100 if size == 60 else 40)
        assert end.alive
        passage.passed(UP, size)
    assert not end.alive
    now = time.monotonic()
    victim.tick(20, now + 1.0)
    victim.tick(20, now + 1.0)
    victim.tick(20, now + 6.1)
    assert (victim.kills, victim.at_bytes) == (2, 1)
    assert passage.allowed(UP, 4096) == 4096, "nobody waits for its byte any more"
    victim.tick(20, now + 7.2)
    assert (victim.kills, victim.finished) == (2, True)


def test_progress_keeps_highest_figures_and_ignores_invalid_json() -> None:
    log = Log()
    progress = Progress("a1")
    for text in (
        "Traceback:",
        '{"event": "started", "accepted": 3, "stored": 1, "core": "c-module"}',
        '{"accepted": 9, "stored": 4, "sessions": 2}',
        '{"accepted": 10, "sto',
        "[1]",
        "7",
        '{"accepted": 20, "stored": 20}',
        '{"event": "error", "reason": "of a program that was here before", "accepted": 20, "campaign": "b2"}',
    ):
        log.append(Line(1, text.replace("{", '{"campaign": "a1", ', "b2" not in text and "20" not in text)))
    progress.read(log)
    log.append(Line(2, '{"campaign": "a1", "event": "started", "accepted": 9, "stored": 2, "sessions": 0}'))
    log.append(Line(2, '{"campaign": "a1", "accepted": 9, "stored": 2, "sessions": 3}'))
    progress.read(log)
    assert progress.sessions == 5
    assert (progress.accepted, progress.stored, progress.core, progress.started) == (9, 4, "c-module", True)
    log.append(Line(2, '{"campaign": "a1", "event": "error", "reason": "flash is full"}'))
    assert progress.error is None
    progress.read(log)
    assert progress.error == "flash is full"


# Whole campaigns of the stand-in pair


def test_everything_well(run_standin: RunStandin, tmp_path: Path) -> None:
    figures = run_standin(messages=60, cuts=12, kills=2)
    assert figures.shortcomings() == []
    assert figures.comparison is not None
    assert figures.comparison.line() == "60 sent, 60 received once, in order, 0 lost, 0 duplicated"
    assert len(figures.cuts) == 12
    assert (figures.board_kills, figures.manager_kills) == (2, 2)
    assert figures.connections > sum(cut.kind not in GOES_ON for cut in figures.cuts)
    assert figures.core == "stand-in"
    assert figures.bytes_up > Settings(60, 12, 2, 5, "cpython", 4096, header_bytes=8).traffic()
    assert [cut.planned for cut in figures.cuts] == [Cut(**cut) for cut in figures.plan["cuts"]]
    assert list((tmp_path / "campaign").iterdir()) == []
    assert (figures.accepted, figures.acknowledged) == (60, 60)


@pytest.mark.parametrize(("messages", "cuts", "kills"), [(0, 0, 2), (1, 6, 1)])
def test_small_campaigns(run_standin: RunStandin, messages: int, cuts: int, kills: int) -> None:
    figures = run_standin(messages=messages, cuts=cuts, kills=kills)
    assert figures.shortcomings() == []


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("deaf:20", r"no progress for 3 s: stored 19 of 30, acknowledged \d+ of 30"),  # a cut may take the last ones
        ("port:1", "was to listen on port"),
        ("dirty:1", "ended with status 3 after SIGTERM"),
        ("slow:1", "the queue manager does not say that it is listening"),
        ("crash:20", "the queue manager ended by itself"),
    ],
)
def test_a_queue_manager_that_misbehaves(
    run_standin: RunStandin, fault: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "slow:1":
        monkeypatch.setattr(part, "LISTENING_DEADLINE_S", 1.0)
    patience_s = 3.0 if fault == "deaf:20" else 60.0
    figures = run_standin(fault=fault, patience_s=patience_s, cuts=2)
    while "stored 19 of 30" not in str(figures.failure) and fault == "deaf:20" and patience_s < 300:
        patience_s *= 3  # a machine that is busy with something else has not come to the fault yet
        reason = reason.replace(" 3 s", r" \d+ s")
        figures = run_standin(fault=fault, patience_s=patience_s, cuts=2)
    assert figures.failure is not None
    assert re.search(reason, figures.failure.splitlines()[0])
    assert "--- the last lines of the queue manager:" in figures.failure
    assert not figures.ok
    if fault == "deaf:20":
        assert figures.comparison is not None, "a stalled campaign compares the ledger with the queue, too"
        assert figures.comparison.lost == []
        assert figures.comparison.missing[0] == 20
        assert "reading 20 is the first of" in " ".join(figures.shortcomings())


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("raise SystemExit(1)", "the board ended by itself"),
        ("import time; time.sleep(60)", "no progress for 1 s: "),
        (
            """import json, time
said = {"event": "error", "reason": "flash is full", "campaign": json.load(open("config.json"))["campaign"]}
print(json.dumps(said), flush=True)
time.sleep(60)""",
            "the board gave up: flash is full",
        ),
    ],
)
def test_a_board_that_fails(run_standin: RunStandin, tmp_path: Path, script: str, reason: str) -> None:
    application = tmp_path / "application.py"
    application.write_text(script)
    patience_s = 1.0 if reason.startswith("no progress") else 60.0
    figures = run_standin(application=application, patience_s=patience_s, cuts=0, kills=0)
    assert figures.failure is not None
    assert figures.failure.startswith(reason)
    assert "--- the last lines of the board:" in figures.failure


def heard(starts: Starts, *said: tuple[int, int]) -> Starts:
    """The same, after lines of these lives with these numbers of starts."""
    for life, count in said:
        starts.said(life, count)
    return starts


def test_each_end_of_a_life_is_seen_by_the_start_after_it() -> None:
    starts = heard(Starts(), (2, 1), (2, 1))  # the life before was that of a deploy
    starts.end(2, POWER)
    assert heard(starts, (2, 1)).unseen == [POWER]
    assert heard(starts, (3, 2), (2, 1)).unseen == []
    starts.end(3, RESET)
    assert heard(starts, (3, 2)).unseen == [RESET]
    assert heard(starts, (3, 3)).unseen == []
    starts.end(3, POWER)
    starts.end(4, POWER)  # so short a life says nothing, whether it has counted its start or not
    assert heard(starts, (5, 5)).unseen == []
    assert starts.wrong == ""


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ([(1, 1), (2, 1)], "did not start again, it says start 1 before and after"),
        ([(1, 1), (1, 2)], "has started by itself: it says start 2, and 1 were planned"),
        ([(1, 2)], "has started by itself"),
        ([(1, 1), (2, 3)], "has started by itself: it says start 3, and 2 were planned"),
    ],
)
def test_missing_cut_and_unplanned_start_are_reported(said: list[tuple[int, int]], wrong: str) -> None:
    starts = Starts()
    starts.end(1, POWER)
    assert wrong in heard(starts, *said).wrong


def test_a_board_that_only_says_it_sent_is_found_out(run_standin: RunStandin, tmp_path: Path) -> None:
    application = tmp_path / "liar.py"
    application.write_text(
        """import json, time
campaign = json.load(open("config.json"))["campaign"]
print(json.dumps({"event": "started", "accepted": 30, "stored": 30, "campaign": campaign, "starts": 1}), flush=True)
time.sleep(60)"""
    )
    figures = run_standin(application=application, cuts=3, kills=0)
    assert "0 sent instead of 30" in figures.shortcomings()
    assert "0 cuts instead of 3" in figures.shortcomings()


def test_failed_campaign_keeps_its_artefacts(run_standin: RunStandin, tmp_path: Path) -> None:
    figures = run_standin(fault="lose:7")
    assert figures.artefacts is not None
    folder = Path(figures.artefacts)
    assert folder.parent == tmp_path / "campaign"
    said = json.loads((folder / "figures.json").read_text())
    assert (said["ok"], said["comparison"]["lost"], said["artefacts"]) == (False, [7], str(folder))
    assert "listening on" in (folder / "queue_manager.log").read_text()
    assert '"started"' in (folder / "board.log").read_text()
    assert (folder / "board" / "ledger.txt").exists()
    assert (folder / "store").is_dir()


# The command


@pytest.mark.parametrize(
    "words", [["--messages", "-1"], ["--cuts", "x"], ["--messages", "0", "--cuts", "1"], ["--seed", "-1"], ["--what"]]
)
def test_wrong_use_is_status_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(words)
    assert raised.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--board", "exec:/nonexistent/micropython"], "no such program"),
        (["--board", "mps2-uart", "--tls"], "board mps2-uart has no network"),
        (["--board", "cpython", "--max-size", "70000"], "board cpython takes bodies of at most 65536 bytes"),
    ],
)
def test_impossible_rig_job_gives_status_2_and_releases_board(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    for kind in (ProcessBoard, Mps2Board):

        def close(board: Any, close: Callable[[Any], None] = kind.close) -> None:
            closed.append(board.target)
            close(board)

        monkeypatch.setattr(kind, "close", close)
    if "mps2-uart" in words and not M3.firmware.exists():
        pytest.skip("`make firmware` builds the firmware of this board")
    assert main(words) == 2
    assert reason in capsys.readouterr().out
    assert closed == ([] if "no such program" in reason else [words[1]])


def standin_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Make `main` run the stand-in pair."""

    def settings(**others: object) -> Settings:
        wanted = {"ordack": (sys.executable, str(STANDIN)), "application": STANDIN, "header_bytes": 8}
        return Settings(**{**others, **wanted, "max_size": 4096, "artefacts": tmp_path})  # type: ignore[arg-type]

    monkeypatch.setattr(campaign, "Settings", settings)


WORDS = ["--messages", "20", "--cuts", "3", "--kills", "1", "--seed", "11", "--board", "cpython"]


def test_main_prints_seed_figures_and_json_object(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    standin_settings(monkeypatch, tmp_path)
    assert main([*WORDS, "--json"]) == 0
    captured = capsys.readouterr()
    (line,) = captured.out.splitlines()
    said = json.loads(line)
    assert (said["ok"], said["seed"], said["messages"], len(said["plan"]["cuts"])) == (True, 11, 20, 3)
    lines = captured.err.splitlines()
    assert lines[0].startswith("seed 11: 20 messages, 3 cuts, 1 kills of either end")
    assert "sent 20/20, stored 20/20, acknowledged 20/20, cuts 3/3, restarts 2/2" in lines
    assert lines[-1] == "20 sent, 20 received once, in order, 0 lost, 0 duplicated"


def group_of(folder: Path) -> list[int]:
    """The processes that work in `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cwd").readlink().is_relative_to(folder):
                    found.append(int(entry.name))
            except OSError:
                pass
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    script = f"""
import asyncio, pathlib, sys
from hil import campaign
settings = campaign.Settings
def standin(**others):
    return settings(**{{**others, "max_size": 4096, "header_bytes": 8,
        "ordack": (sys.executable, {str(STANDIN)!r}, "--fault", "deaf:5"),
        "application": pathlib.Path({str(STANDIN)!r}), "artefacts": pathlib.Path({str(tmp_path)!r})}})
campaign.Settings = standin
sys.exit(campaign.main({WORDS!r}))
"""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", script],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed,
    )
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            if line.startswith("sent ") and not line.startswith("sent 0"):
                break
        end = time.monotonic() + 60
        while len(group_of(tmp_path)) < 2:  # one of them may have been killed just now, as planned
            assert time.monotonic() < end
        process.send_signal(number)
        assert process.wait(60) == (-number if number == signal.SIGKILL else 130)
        if number != signal.SIGKILL:
            assert process.stdout.read().splitlines()[-1] == "interrupted"
            assert list(tmp_path.iterdir()) == []
    while number == signal.SIGKILL and group_of(tmp_path):  # nobody has waited for them
        assert time.monotonic() < end + 60
    assert group_of(tmp_path) == []


def test_failed_readings_unreported_at_power_cut_count_as_held(tmp_path: Path) -> None:
    """The board would have told of them after its start; of the first it had."""

    def power_goes(_: object) -> None:
        raise InterruptedError

    seconds = 1_800_000_000
    node = Node(str(tmp_path), connect=("127.0.0.1", 9), clock=lambda: seconds, on_failed=power_goes)
    for k in (1, 2, 3):
        node.queue("DIRECT=TCP:127.0.0.1\\private$\\line1").put(b"", label=f"reading {k}", ttrq=5)
    seconds += 100
    with pytest.raises(InterruptedError):
        node.poll()
    node.commit_now()
    rig = SimpleNamespace(erased=[tmp_path], settings=SimpleNamespace(ordack=ORDACK))
    rig.rescued = partial(Mishaps.rescued, cast(Mishaps, rig))
    assert asyncio.run(Mishaps.held(cast(Mishaps, rig))) == {2, 3}
    asyncio.run(node.close())
