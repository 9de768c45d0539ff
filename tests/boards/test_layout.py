"""What of a checkout and of a board's folders keeps `ordack board deploy` from copying."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ordack.boards.deploy import deploy
from ordack.boards.doctor import examine
from ordack.boards.repl import Board, BoardError

from tests.boards.unix_board import UnixBoard
from tests.conformance import ROOT
from tests.support import command as commands


@pytest.fixture
def make_board(tmp_path: Path) -> Iterator[Callable[..., UnixBoard]]:
    made: list[UnixBoard] = []

    def make(*, stock: bool = True) -> UnixBoard:
        made.append(UnixBoard(tmp_path / "flash", stock=stock))
        return made[-1]

    yield make
    for board in made:
        board.close()


@pytest.mark.parametrize("stock", [True, False])
def test_a_folder_of_that_name_hides_the_modules(make_board: Callable[..., UnixBoard], *, stock: bool) -> None:
    board = make_board(stock=stock)
    (board.folder / "ordack").mkdir()
    (board.folder / "ordack" / "00000001.log").write_bytes(b"")
    with Board(board.port).look(reset=True) as opened:
        with pytest.raises(BoardError, match=r"ordack hides the package ordack.*another name"):
            deploy(opened)
        assert {check.name: check.verdict for check in examine(opened)}["layout"] == "bad"


def test_compiled_modules_older_than_their_sources_are_refused(
    make_board: Callable[..., UnixBoard], tmp_path: Path
) -> None:
    """In a copy of the checkout, whose build/mip is of before a change."""
    board = make_board()
    copied = tmp_path / "checkout"
    for name in ("c_core", "firmware", "build/mip"):
        shutil.copytree(ROOT / name, copied / name, ignore=shutil.ignore_patterns("__pycache__"))
    before = f"from ordack.boards import deploy\ndeploy.CHECKOUT = deploy.Path({str(copied)!r})\n"
    source = copied / "firmware" / "mqqb" / "lives.py"
    source.write_text(source.read_text() + "\nadded = 1\n")
    for path in (source, copied / "build" / "mip" / "package.json"):
        os.utime(path, (1, 1))  # what says which is older is what is in them
    done = commands.ordack("board", "deploy", "--port", board.port, seconds=90, before=before)
    assert done.returncode == 1, done.stdout
    assert "make firmware" in done.stderr
    assert not [path for path in board.folder.rglob("*") if path.is_file()]
    source.write_text(source.read_text().removesuffix("\nadded = 1\n"))
    done = commands.ordack("board", "deploy", "--port", board.port, seconds=90, before=before)
    assert done.returncode == 0, done.stderr
    assert (board.folder / "lib" / "mqqb" / "lives.mpy").exists()
