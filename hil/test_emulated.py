"""Emulated boards: what the flash holds outlives a power cut, and a reset is none."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hil.boards import BoardMissing
from hil.emulated import Flash, Mps2Board

DEADLINE_S = 60.0

pytestmark = pytest.mark.timeout(180)

APPLICATION = """
import json
import time


async def main(path):
    with open(path) as file:
        print("configured", json.load(file)["name"])
    lives = b""
    try:
        with open("lives", "rb") as file:
            lives = file.read()
    except OSError:
        pass
    with open("lives", "wb") as file:
        file.write(lives + b"x")
        file.flush()
    try:
        with open("put/log", "r+b") as file:
            with open("put/another", "wb"):
                pass
            file.seek(0, 2)
            file.write(b"more")
    except OSError:
        pass
    with open("large", "wb") as file:
        file.write(bytes(9000))
    print("life", len(lives) + 1)
    while True:
        time.sleep(0.01)
"""

Open = Callable[[str], Mps2Board]


@pytest.fixture
def open_board(tmp_path: Path) -> Iterator[Open]:
    """Opens a board of a kind, with the application of these tests; skips the test if it is not here."""
    opened: list[Mps2Board] = []
    application = tmp_path / "application.py"
    application.write_text(APPLICATION)

    def board(kind: str) -> Mps2Board:
        try:
            opened.append(Mps2Board(kind, tmp_path / "board", True, application))
        except BoardMissing as reason:
            pytest.skip(str(reason))
        return opened[-1]

    yield board
    for one in opened:
        one.close()
        assert not one.sockets.exists()


def is_on(board: Mps2Board) -> bool:
    return board.alive


def test_a_board_lives_dies_and_lives_again_on_the_same_flash(open_board: Open) -> None:
    board = open_board("mps2-eth")
    assert not is_on(board)
    board.start({"name": "bench"})
    first = board.log.wait_for(lambda text: "life 1" in text, DEADLINE_S)
    assert first.life == 1
    assert is_on(board)
    board.kill()
    assert not is_on(board)
    assert board.read_file("lives") == b"x"
    mark = board.log.mark()
    board.power_up()
    second = board.log.wait_for(lambda text: "life 2" in text, DEADLINE_S, mark)
    assert second.life == 2
    board.kill()
    assert board.read_file("lives") == b"xx"
    assert board.read_file("nothing") == b""


def test_board_appends_intact_to_file_written_by_rig(open_board: Open, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "log").write_bytes(bytes(range(200)) * 2)
    board = open_board("mps2-eth")
    board.start({"name": "bench"})
    board.log.wait_for(lambda text: "life 1" in text, DEADLINE_S)
    board.kill()
    board.put("put", tmp_path / "files")
    board.power_up()
    board.log.wait_for(lambda text: "life 2" in text, DEADLINE_S)
    board.kill()
    assert board.read_file("put/log") == bytes(range(200)) * 2 + b"more"


def test_a_reset_begins_again_with_the_power_on(open_board: Open) -> None:
    board = open_board("mps2-eth")
    with pytest.raises(OSError):
        board.reset()
    board.start({"name": "bench"})
    board.log.wait_for(lambda text: "life 1" in text, DEADLINE_S)
    board.reset()
    assert board.log.wait_for(lambda text: "life 2" in text, DEADLINE_S).life == 1
    assert is_on(board)
    board.kill()
    board.power_up()
    board.reset()  # at once, before QEMU listens to the rig; on a busy machine a life may be over before it has said so
    assert board.log.wait_for(lambda text: "life 3" in text or "life 4" in text, DEADLINE_S).life == 2


def test_a_flash_keeps_files_as_they_were(tmp_path: Path) -> None:
    flash = Flash(tmp_path / "flash", 128 * 1024, 4096)
    files = {"a": b"", "b": bytes(range(256)) * 100, "main.py": b"print(1)\n"}
    flash.create(files, 1 << 20)
    assert (tmp_path / "flash").stat().st_size == 1 << 20
    assert {name: flash.read(name) for name in files} == files
    assert flash.read("c") == b""


def test_flash_take_moves_folder_and_fails_if_missing(tmp_path: Path) -> None:
    flash = Flash(tmp_path / "flash", 128 * 1024, 4096)
    flash.create({"outbox/a": b"1", "outbox/b": b"2", "main.py": b"print(1)\n"}, 1 << 20)
    flash.take("outbox", tmp_path / "taken")
    assert {file.name: file.read_bytes() for file in (tmp_path / "taken").iterdir()} == {"a": b"1", "b": b"2"}
    assert (flash.read("outbox/a"), flash.read("main.py")) == (b"", b"print(1)\n")
    with pytest.raises(FileNotFoundError):
        flash.take("outbox", tmp_path / "again")
    assert not (tmp_path / "again").exists()
    flash.put({"outbox/a": b"3", "main.py": b""})
    assert (flash.read("outbox/a"), flash.read("outbox/b"), flash.read("main.py")) == (b"3", b"", b"")
