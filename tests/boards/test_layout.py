"""Boards that have the modules as they lay before: `node` at the top of lib. Nothing that waits there is lost."""

from __future__ import annotations

import binascii
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ordack.boards import deploy as deploying
from ordack.boards import layout
from ordack.boards.deploy import deploy
from ordack.boards.doctor import examine
from ordack.boards.repl import Board, BoardError
from ordack.client import Client

from firmware.ports import modules
from tests.boards.unix_board import UnixBoard
from tests.conformance import ROOT
from tests.support import command as commands
from tests.support.command import Serve

QUEUE = "DIRECT=TCP:127.0.0.1\\private$\\line1"
OLD = "import time\nfrom node import Node\n\nnode = Node('outbox')\n"
MANIFEST = "lib/ordack.json"


@pytest.fixture
def make_board(tmp_path: Path) -> Iterator[Callable[..., UnixBoard]]:
    made: list[UnixBoard] = []

    def make(*, stock: bool = True) -> UnixBoard:
        made.append(UnixBoard(tmp_path / "flash", stock=stock))
        return made[-1]

    yield make
    for board in made:
        board.close()


@pytest.fixture
def board(make_board: Callable[..., UnixBoard]) -> UnixBoard:
    return make_board()


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The modules of today, laid out and named as they were."""
    folder = tmp_path_factory.mktemp("before")
    names = modules.of_boards(twin=False)
    for name in names:
        path = folder / name.removeprefix("ordack/")
        path.parent.mkdir(exist_ok=True)
        path.write_text((modules.BOARD / name).read_text().replace("ordack.node", "node"))
    places = [name.removeprefix("ordack/") for name in names]
    (folder / "package.json").write_text(modules.package([(place, place) for place in places]))
    return folder / "package.json"


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As few modules as let a layout be known, laid out as they were; those of today are what is deployed."""
    listings = []
    for top in ("", "ordack/"):
        folder = tmp_path / f"small{len(top)}"
        texts = {"mqqb/__init__.py": "", "mqqb/core.py": "implementation = 'python'\n"}
        texts |= {f"{top}node/{name}.py": "" for name in ("outbox", "peer", "queue", "replay")}
        texts[f"{top}node/__init__.py"] = "class Node: pass\n"
        for place, text in texts.items():
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            (folder / place).write_text(text)
        listings.append(folder / "package.json")
        listings[-1].write_text(modules.package([(place, place) for place in texts]))
    monkeypatch.setattr(deploying, "default_package", lambda _: listings[1])
    return listings[0]


def lay(board: UnixBoard, listing: Path) -> None:
    """What a deploy of before has left in lib."""
    files: dict[str, tuple[int, int]] = {}
    for place, source in json.loads(listing.read_text())["urls"]:
        data = (listing.parent / source).read_bytes()
        path = board.folder / "lib" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        files[str(path)] = len(data), binascii.crc32(data)
    (board.folder / MANIFEST).write_text(json.dumps({"version": "0.1.0", "complete": True, "files": files}))


def looked(board: UnixBoard) -> Board:
    return Board(board.port).look(reset=True)


def old_files(board: UnixBoard) -> list[str]:
    return sorted(path.name for path in (board.folder / "lib" / "node").glob("*"))


def tree(board: UnixBoard) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(board.folder.rglob("*")) if path.is_file()}


def checks(board: UnixBoard) -> dict[str, Any]:
    with looked(board) as opened:
        return {check.name: check for check in examine(opened)}


def program(port: int, first: int, count: int, name: str = "ordack.node") -> str:
    """Puts messages with these numbers and waits until all have arrived that wait on the board."""
    return (
        f"from {name} import Node\n"
        f"node = Node('outbox', connect=('127.0.0.1', {port}))\n"
        f"queue = node.queue({QUEUE!r})\n"
        f"for k in range({first}, {first + count}):\n"
        "    queue.put(b'%d' % k)\n"
        "node.wait(lambda: not node.waiting, 20000)\n"
        "open('waiting', 'w').write(str(node.waiting))\n"
        "node.close_now()\n"
    )


def test_what_waits_in_the_outbox_of_before_arrives_once_in_order(
    board: UnixBoard, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Compiled modules are for real processors; what is deployed here is the board's form of the sources.
    monkeypatch.setattr(deploying, "default_package", lambda _: modules.write() / "package.json")
    store = tmp_path / "store"
    with Client(store, create=True) as client:
        client.create_queue("line1", transactional=True)
    lay(board, package)
    assert "outbox.py" in old_files(board)
    running = Serve(store)
    with looked(board) as opened:
        opened.run(program(running.port, 0, 10, "node"), 60)
    running.stop()
    assert (board.folder / "waiting").read_text() == "0"
    with looked(board) as opened:  # nobody takes these; the power fails before the node has closed
        opened.run(program(running.port, 10, 40, "node").partition("node.wait")[0] + "node.poll()\nnode.commit_now()\n")
    board.cut()
    (board.folder / "main.py").write_text(OLD)
    board.start()
    before = tree(board)
    done = commands.ordack("board", "deploy", "--port", board.port, seconds=90)
    assert (done.returncode, done.stdout) == (1, "")
    assert "nothing was copied" in done.stderr
    assert "main.py, line 2: node is ordack.node now" in done.stderr
    assert {place: data for place, data in tree(board).items() if "/outbox/" not in place} == {
        place: data for place, data in before.items() if "/outbox/" not in place
    }
    main = tmp_path / "new.py"
    running = Serve(store, listen=f"127.0.0.1:{running.port}")
    main.write_text(program(running.port, 50, 10))
    (board.folder / "waiting").unlink()
    with looked(board) as opened:
        done_now = deploy(opened, main=main)
    assert (done_now.problem, done_now.left) == ("", "")
    assert not (board.folder / "lib" / "node").exists()
    assert {path for path in done_now.removed if "/lib/node/" in path}
    with Client(store) as client:
        bodies: list[bytes] = []
        while len(bodies) < 60:
            with client.queue("line1").receive(timeout=60) as message:
                bodies.append(message.body)
        assert bodies == [b"%d" % k for k in range(60)]
        assert list(client.queue("line1").peek()) == []
    running.stop()
    assert "layout" not in checks(board)


def test_only_what_was_deployed_goes(board: UnixBoard, small: Path) -> None:
    lay(board, small)
    theirs = ("lib/node/mine.py", "lib/other.py", "outbox.py")
    for place in theirs:
        (board.folder / place).write_text("x = 1\n")
    with looked(board) as opened:
        done = deploy(opened)
    assert old_files(board) == ["mine.py"]
    assert all((board.folder / place).exists() for place in theirs)
    assert [path.rpartition("/")[0] for path in done.removed] == 5 * [f"{board.folder}/lib/node"]
    with looked(board) as opened:  # what is left is theirs: a program that imports it is not ours to judge
        (board.folder / "main.py").write_text("from node import mine\n")
        assert deploy(opened).copied == []


def test_modules_that_nobody_deployed_are_named_and_left(board: UnixBoard, small: Path) -> None:
    lay(board, small)
    (board.folder / MANIFEST).unlink()  # as mip leaves a board
    files = old_files(board)
    new = deploying.default_package(None)  # type: ignore[arg-type]
    done = commands.ordack("board", "deploy", "--port", board.port, "--package", new, seconds=90)
    assert done.returncode == 0, done.stderr
    old = f"{board.folder}/lib/node"
    assert f"remove {old}, the modules of before: mpremote rm -r :{old}" in done.stdout
    assert old_files(board) == files
    check = checks(board)["layout"]
    assert check.verdict == "warning"
    assert check.advice.startswith(f"remove {board.folder}/lib/node")
    (board.folder / "main.py").write_text("import json, node\n")  # it would get old and new modules mixed
    check = checks(board)["layout"]
    assert (check.verdict, check.text) == ("bad", f"{board.folder}/main.py, line 1: node is ordack.node now")


def test_a_cut_among_the_removals_is_made_good(board: UnixBoard, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(board, small)

    class Cut(Exception):
        """The power failed."""

    def cut(self: Board, code: str, seconds: float = 10) -> Any:
        if "os.rmdir" in code and "lib/node/outbox.py" in code:
            run(self, code.replace("/lib/node/q", "/lib/no/q").replace("/lib/node/r", "/lib/no/r"))
            board.cut()
            raise Cut
        return run(self, code, seconds)

    run = Board.run
    with monkeypatch.context() as patch:
        patch.setattr(Board, "run", cut)
        with pytest.raises(Cut), looked(board) as opened:
            deploy(opened)
    board.start()
    assert old_files(board) == ["queue.py", "replay.py"]
    assert "a deploy was cut" in checks(board)["modules"].text
    with looked(board) as opened:
        deploy(opened)
    assert not (board.folder / "lib" / "node").exists()
    assert checks(board)["modules"].verdict == "ok"


def test_a_firmware_that_has_them_needs_no_copies_of_before(make_board: Callable[..., UnixBoard], small: Path) -> None:
    first = make_board()
    lay(first, small)
    first.cut()
    flashed = make_board(stock=False)
    with looked(flashed) as opened:
        done = deploy(opened)
    assert (done.copied, done.frozen, done.problem) == ([], True, "")
    assert [path.name for path in flashed.folder.rglob("*") if path.is_file()] == []


def test_a_firmware_of_before_is_told(board: UnixBoard, tmp_path: Path) -> None:
    """With mqqb frozen in, and node."""
    (board.folder / "boot.py").write_text(
        "import sys\nclass Frozen: pass\nmqqb = sys.modules['mqqb'] = Frozen()\n"
        "mqqb.__file__ = 'mqqb/__init__.py'\nmqqb.core = Frozen()\nmqqb.core.implementation = 'c-module'\n"
    )
    main = tmp_path / "new.py"
    main.write_text("from ordack.node import Node\n")
    with looked(board) as opened, pytest.raises(BoardError, match=r"firmware has the modules of before.*flash"):
        deploy(opened, main=main)
    assert not (board.folder / "main.py").exists()
    assert checks(board)["layout"].verdict == "bad"


def test_what_is_no_program_is_not_read(board: UnixBoard, small: Path, tmp_path: Path) -> None:
    (board.folder / "data.py").mkdir()
    (board.folder / "binary.py").write_bytes(bytes(range(256)))
    assert "layout" not in checks(board)
    with looked(board) as opened:
        deploy(opened)
        with pytest.raises(BoardError, match=r"no_such\.py"):
            deploy(opened, main=tmp_path / "no_such.py")


@pytest.mark.parametrize("stock", [True, False])
def test_a_folder_of_that_name_hides_the_modules(make_board: Callable[..., UnixBoard], *, stock: bool) -> None:
    board = make_board(stock=stock)
    (board.folder / "ordack").mkdir()
    (board.folder / "ordack" / "00000001.log").write_bytes(b"")
    with looked(board) as opened, pytest.raises(BoardError, match=r"ordack hides the package ordack.*another name"):
        deploy(opened)
    assert checks(board)["layout"].verdict == "bad"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("from node import Node\n", 1),
        ("import asyncio\nif True:\n    from node.board import Wifi\n", 3),
        ("import json as j, node\n", 1),
        ("import node.uart\n", 1),
        ("import node as n\n", 1),
        ("try:\n    from ordack.node import Node\nexcept ImportError:\n    from node import Node\n", 0),
        ("from nodes import Node\nimport node_2, x.node\nfrom my import node\n# from node import Node\n", 0),
        ("import other as node\nnode = 3\n", 0),
        ("", 0),
    ],
)
def test_the_old_name_is_found_where_it_is_imported(text: str, line: int) -> None:
    assert layout.line_of_old_import(text) == line


def test_a_namesake_on_the_board_is_no_concern_of_ours(board: UnixBoard, small: Path, tmp_path: Path) -> None:
    """That is what the name is for."""
    (board.folder / "node.py").write_text("mine = 'mine'\n")
    main = tmp_path / "main.py"
    main.write_text(
        "from node import mine\nfrom ordack.node import Node\nopen('said', 'w').write(mine + Node.__name__)\n"
    )
    with looked(board) as opened:
        assert deploy(opened, main=main).problem == ""
    with looked(board):
        assert (board.folder / "said").read_text() == "mineNode"


def test_compiled_modules_older_than_their_sources_are_refused(board: UnixBoard, tmp_path: Path) -> None:
    """In a copy of the checkout, whose build/mip is of before a change."""
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
    assert "make setup-firmware" in done.stderr
    assert tree(board) == {}
    source.write_text(source.read_text().removesuffix("\nadded = 1\n"))
    done = commands.ordack("board", "deploy", "--port", board.port, seconds=90, before=before)
    assert done.returncode == 0, done.stderr
    assert (board.folder / "lib" / "mqqb" / "lives.mpy").exists()
