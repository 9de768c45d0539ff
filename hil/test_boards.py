"""Boards: power, logs over all lives, emulated. The board of these tests is a small script under CPython."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from firmware.ports.modules import BOARD
from hil import boards, targets
from hil.boards import Board, BoardMissing, Line, ProcessBoard
from hil.targets import interpreter, open_board

DEADLINE_S = 60.0

APPLICATION = """
import json, os, subprocess, sys, time
config = json.load(open(sys.argv[1]))
lives = open("lives").read() if os.path.exists("lives") else ""
with open("lives", "w") as file:
    file.write(lives + "x")
    file.flush()
    os.fsync(file.fileno())
print("life", len(lives) + 1, "of", config["name"])
print("to stderr", file=sys.stderr)
for word in config.get("then", []):
    if word == "end":
        sys.exit(4)
    if word == "child":
        print("child", subprocess.Popen(["sleep", "600"]).pid)
    if word == "stubborn":
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def board(tmp_path: Path, application: Path) -> Iterator[ProcessBoard]:
    board = ProcessBoard("cpython", [sys.executable], tmp_path / "flash", application)
    yield board
    board.close()


def is_running(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def ready(board: Board, mark: int = 0) -> Line:
    return board.log.wait_for(lambda text: text == "ready", DEADLINE_S, mark)


def lives(board: ProcessBoard) -> bool:
    return board.alive


def test_a_board_lives_dies_and_lives_again_on_the_same_flash(board: ProcessBoard) -> None:
    assert not lives(board)
    board.start({"name": "bench"})
    assert ready(board).life == 1
    assert lives(board)
    board.kill()
    assert not lives(board)
    mark = board.log.mark()
    board.power_up()
    assert ready(board, mark).life == 2
    board.kill()
    assert board.read_file("lives") == b"xx"
    texts = [(line.life, line.text) for line in board.log.since(0)]
    expected = [(life, text) for life in (1, 2) for text in (f"life {life} of bench", "ready", "to stderr")]
    assert sorted(texts) == sorted(expected)
    assert all(line.life == 2 for line in board.log.since(mark))


def test_kill_is_sigkill_and_takes_the_whole_process_group(board: ProcessBoard) -> None:
    board.start({"name": "bench", "then": ["stubborn", "child"]})
    child = int(board.log.wait_for(lambda text: text.startswith("child"), DEADLINE_S).text.split()[1])
    ready(board)
    assert is_running(child)
    board.kill()
    assert not board.alive
    end = time.monotonic() + DEADLINE_S
    while is_running(child):
        assert time.monotonic() < end


def test_board_is_not_alive_after_its_application_ends(board: ProcessBoard) -> None:
    board.start({"name": "bench", "then": ["end"]})
    end = time.monotonic() + DEADLINE_S
    while board.alive:
        assert time.monotonic() < end


UNSYNCED = """
import os
def written(name, synced, rest):
    file = open(name, "wb", 0)
    file.write(synced)
    if synced:
        file.flush()
        getattr(os, "fsync", abs)(file.fileno())
    file.write(rest)
    return file
files = [written("first", b"synced", b", not"), written("second", b"", b"not")]
files += [open("third", "ab", 0)]
files[-1].write(b"not")
print("ready")
while True:
    pass
"""


@pytest.mark.parametrize("target", ["unix", "unix-twin", "cpython"])
def test_power_cut_discards_unsynced_data(target: str, tmp_path: Path) -> None:
    script = tmp_path / "unsynced.py"
    script.write_text(UNSYNCED)
    try:
        board = open_board(target, tmp_path / "flash", script)
    except BoardMissing as reason:
        pytest.skip(str(reason))
    try:
        board.deploy({})
        (tmp_path / "flash" / "third").write_bytes(b"an earlier life, ")
        board.power_up()
        ready(board)
        assert board.read_file("first") == b"synced, not"
        board.kill()
        assert [board.read_file(name) for name in ("first", "second", "third")] == [
            b"synced",
            b"",
            b"an earlier life, ",
        ]
        assert not (tmp_path / "flash" / "second").exists()
    finally:
        board.close()


def test_only_the_firmware_of_the_environment_reaches_the_board(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_CALLER", "1")
    script = tmp_path / "environment.py"
    script.write_text("import json, os\nprint(json.dumps(dict(os.environ)))\n")
    board = open_board("cpython", tmp_path / "flash", script)
    try:
        board.start({})
        environment = json.loads(board.log.wait_for(lambda text: text.startswith("{"), DEADLINE_S).text)
    finally:
        board.close()
    assert "SECRET_OF_THE_CALLER" not in environment
    assert environment["PYTHONPATH"] == str(boards.FIRMWARE)
    assert environment["MICROPYPATH"].split(":") == [".frozen", str(BOARD)]


# What a name means


@pytest.mark.parametrize("target", ["unix", "unix-twin"])
def test_a_missing_binary_says_how_to_build_it(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(targets.MICROPYTHON, target, boards.ROOT / "build" / "none" / "micropython")
    with pytest.raises(BoardMissing, match=r"build/none/micropython is missing; `make firmware`"):
        open_board(target, tmp_path / "flash")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("pico", f"no board 'pico': give one of {', '.join(targets.EMULATED)} or exec:COMMAND"),
        ("exec:", "no such program"),
        ("exec:nowhere/micropython", "no such program; give a path to one"),
        ("exec:micropython 'x", "No closing quotation"),
    ],
)
def test_an_unknown_target_names_the_known_ones(target: str, reason: str) -> None:
    with pytest.raises(BoardMissing, match=reason):
        interpreter(target)
