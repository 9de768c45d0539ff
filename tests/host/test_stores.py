"""Backup, restore and check of a store through the commands, while it is used, on full disks, over kills."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
from ordack.client import Client, Letter
from ordack.store import Store, StoreBusy, StoreError
from ordack.store.backup import SEAL, SEAL_BYTES, inspect_backup
from ordack.store.database import ServeLock
from ordack.store.look import ReadOnlyStore
from ordack.store.schema import FILE_NAME, FORMAT_VERSION

from tests.support.command import DEADLINE_S, ENVIRONMENT, Running, Serve, as_json, ordack

pytestmark = pytest.mark.slow

BODY = bytes(100_000)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Three messages in a queue, two that wait for another queue manager."""
    folder = tmp_path / "store"
    with Client(folder, create=True) as client:
        client.create_queue("line1", transactional=False)
        for number in range(3):
            client.send("line1", b"%d" % number)
        for number in range(2):
            client.send("DIRECT=OS:plant\\private$\\line1", b"away %d" % number)
    return folder


def _bodies(store: Path, queue: str = "line1") -> list[bytes]:
    with Client(store) as client:
        return [message.body for message in client.queue(queue).peek()]


def _refused(text: str, *arguments: object, status: int = 1) -> str:
    done = ordack(*arguments)
    assert done.returncode == status, done
    assert text in done.stderr, done.stderr
    assert done.stdout == ""
    return done.stderr


def _start(*arguments: object, limits: dict[int, int] | None = None) -> Running:
    return Running(*map(str, arguments), limits=limits)


def _in_the_middle(store: Path, folder: Path) -> tuple[Running, Path]:
    """`store backup` into an empty folder, stopped (SIGSTOP) when it has begun to write, and before its end."""
    for number in range(100):
        to = folder / f"backup{number}"
        process = _start("store", "backup", "--store", store, to)
        while process.poll() is None and not to.exists():
            with contextlib.suppress(FileNotFoundError):  # it has its name by now
                if any(path.stat().st_size for path in folder.glob(".ordack-*.partial")):
                    break
        process.send_signal(signal.SIGSTOP)
        if process.poll() is None and not to.exists():
            return process, to
        process.send_signal(signal.SIGCONT)
        process.communicate(timeout=DEADLINE_S)
        to.unlink()
    raise AssertionError("the backup was always quicker")


@pytest.fixture
def large(store: Path) -> Path:
    """The store with 10 MB more in it, so that a copy takes a while."""
    with Client(store) as client:
        client.create_queue("large", transactional=False)
        client.send_many([Letter("large", BODY)] * 100)
    return store


def test_a_backup_is_restored_with_all_that_was_in_it(store: Path, tmp_path: Path) -> None:
    (made,) = as_json("store", "backup", "--store", store, tmp_path / "b.ordack")
    assert {name: made[name] for name in ("messages", "outgoing", "queues", "format_version")} == {
        "messages": 3,
        "outgoing": 2,
        "queues": 1,
        "format_version": FORMAT_VERSION,
    }
    assert 0 <= (tmp_path / "b.ordack").stat().st_size - made["bytes"] < 100  # its checksum is behind the database
    done = ordack("store", "restore", tmp_path / "b.ordack", "--store", tmp_path / "again")
    assert done.returncode == 0
    assert "3 messages in 1 queue, 2 messages on the way to others" in done.stdout
    assert "are back in their queues" in done.stdout
    assert "message_key" in done.stdout
    assert _bodies(tmp_path / "again") == [b"0", b"1", b"2"]
    with Client(tmp_path / "again") as client:
        assert len(client.store.outgoing.messages()) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "b.ordack", "store"]
    with Client(tmp_path / "again") as restored, Client(store) as original:
        assert restored.store.guid == original.store.guid


@pytest.mark.parametrize(
    ("to", "text", "status"),
    [
        ("s3a://bucket/x", "is a URL of s3a, and only files and folders of this machine", 2),
        ("store/backup", "store's own folder", 1),
        ("store/sub/../backup", "store's own folder", 1),
        ("link/backup", "store's own folder", 1),
        ("store", "is a folder: name a new file in it", 1),
        ("file", "is there already, and would be lost", 1),
        ("dangling", "is there already, and would be lost", 1),
        ("file/backup", "Not a directory", 1),
        ("none/backup", "No such file or directory", 1),
        ("x" * 300, "File name too long", 1),
        ("", "it has no name", 2),
    ],
)
def test_where_no_backup_can_be_made_none_is_and_nothing_changes(store: Path, to: str, text: str, status: int) -> None:
    folder = store.parent
    (store / "sub").mkdir()
    (folder / "file").write_text("mine")
    (folder / "link").symlink_to(store)
    (folder / "dangling").symlink_to(folder / "nowhere")
    before = sorted(folder.rglob("*"))
    done = ordack(
        "store", "backup", "--store", "store", to, folder=folder, environment={**ENVIRONMENT, "COLUMNS": "400"}
    )
    assert done.returncode == status
    assert text in done.stderr
    assert sorted(folder.rglob("*")) == before
    assert (folder / "file").read_text() == "mine"


def test_backup_refuses_missing_or_damaged_store(large: Path, tmp_path: Path) -> None:
    _refused("there is no store in", "store", "backup", "--store", tmp_path / "none", tmp_path / "b")
    with (large / FILE_NAME).open("r+b") as file:
        file.seek(20 * 4096)
        file.write(bytes(range(256)) * 16 * 4)
    assert "damaged" in _refused("", "store", "backup", "--store", large, tmp_path / "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


def test_backup_blocks_no_sender_and_excludes_later_messages(large: Path, tmp_path: Path) -> None:
    """The backup stands still in the middle, while `serve` and an application work."""
    serve = Serve(large)
    folder = tmp_path / "backups"
    folder.mkdir()
    try:
        process, to = _in_the_middle(large, folder)
        with Client(large) as client:
            for _ in range(100):
                client.send("large", BODY)
        assert not to.exists()
        process.send_signal(signal.SIGCONT)
        assert process.wait(DEADLINE_S) == 0
        process.communicate()
    finally:
        serve.stop()
    as_json("store", "restore", to, "--store", tmp_path / "again")
    assert len(_bodies(tmp_path / "again", "large")) == 100
    assert len(_bodies(large, "large")) == 200


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=str)
def test_next_backup_removes_files_of_interrupted_backup(large: Path, tmp_path: Path, how: signal.Signals) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    process, to = _in_the_middle(large, folder)
    process.send_signal(how)
    process.send_signal(signal.SIGCONT)
    errors = process.communicate(timeout=DEADLINE_S)[1]
    assert not to.exists()
    if how == signal.SIGKILL:
        assert [path.suffix for path in folder.iterdir()] == [".partial"]
    else:
        assert process.returncode == 128 + how
        assert "no backup was made" in errors
        assert list(folder.iterdir()) == []
    as_json("store", "backup", "--store", large, to)
    assert list(folder.iterdir()) == [to]


# ---- restore ----------------------------------------------------------------------------------------


def test_restore_requires_empty_folder_and_names_next_step(store: Path, tmp_path: Path) -> None:
    backup = tmp_path / "b"
    as_json("store", "backup", "--store", store, backup)
    assert f"mv {store} {store}.old" in _refused("is not empty", "store", "restore", backup, "--store", store)
    again = tmp_path / "again"
    again.mkdir()
    as_json("store", "restore", backup, "--store", again)
    with Client(again) as client:
        client.send("line1", b"new")
    _refused("is not empty", "store", "restore", backup, "--store", again)
    assert _bodies(again)[-1] == b"new"
    _refused("is no folder", "store", "restore", backup, "--store", backup)
    _refused("No such file", "store", "restore", backup, "--store", tmp_path / "no" / "parent")
    serve = Serve(store)
    try:
        _refused(f"a queue manager runs on {store}: stop it", "store", "restore", backup, "--store", store)
    finally:
        serve.stop()


def _sealed(path: Path, sql: str) -> None:
    """The statement changes the database of a backup, whose checksum is right again."""
    os.truncate(path, path.stat().st_size - SEAL_BYTES)
    database = apsw.Connection(str(path))
    database.execute(sql)
    database.pragma("journal_mode", "delete")
    database.close()
    path.write_bytes(path.read_bytes() + SEAL + hashlib.sha256(path.read_bytes()).digest())


def _one_bit(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda path: _sealed(path, f"PRAGMA user_version = {FORMAT_VERSION + 1}"), "use a newer one"),
        (lambda path: _sealed(path, "PRAGMA application_id = 1"), "is a database of another program"),
        (
            lambda path: _sealed(path, "UPDATE queues SET messages = 7 WHERE name = 'large'"),
            "large: 100 messages are there, 7 are counted",
        ),
        (lambda path: os.truncate(path, path.stat().st_size // 2), "is no whole backup"),
        (
            lambda path: _one_bit(path, path.read_bytes().find(bytes(5000))),
            "not as `ordack store backup` wrote it",
        ),
        (lambda path: _one_bit(path, -1), "not as `ordack store backup` wrote it"),
        (lambda path: _one_bit(path, -48), "is no whole backup"),
        (lambda path: path.write_bytes(b""), "is no whole backup"),
        (_folder, "Is a directory"),
        (Path.unlink, "No such file"),
    ],
)
def test_incomplete_backup_is_not_restored(
    large: Path, tmp_path: Path, spoil: Callable[[Path], None], text: str
) -> None:
    backup, again = tmp_path / "b", tmp_path / "again"
    as_json("store", "backup", "--store", large, backup)
    spoil(backup)
    assert ".partial" not in _refused(text, "store", "restore", backup, "--store", again)
    assert not again.exists()


VERSION_1 = "PRAGMA user_version = 1; DROP TABLE claims;" + "".join(
    f"ALTER TABLE {table} DROP COLUMN count;" for table in ("messages", "outgoing_messages", "outcomes")
)


def test_a_store_of_version_1_is_upgraded_when_no_other_program_has_it_open(store: Path) -> None:
    earlier = apsw.Connection(str(store / FILE_NAME))
    earlier.execute(VERSION_1)
    with pytest.raises(StoreBusy, match="stop the other programs that use the store, and try again"):
        Store(store, busy_timeout=0.1)
    with pytest.raises(StoreError, match="a command that may write the store upgrades it"):
        ReadOnlyStore(store)
    earlier.close()
    with contextlib.closing(ServeLock(store)) as lock:
        lock.acquire()
        with pytest.raises(StoreBusy, match="is running on"):
            Store(store, busy_timeout=0.1)
    assert _bodies(store) == [b"0", b"1", b"2"]
    found = inspect_backup(store)
    assert (found.version, found.messages, found.outgoing, found.problems) == (FORMAT_VERSION, 3, 2, ())


def test_a_backup_of_version_1_is_restored_as_this_version(store: Path, tmp_path: Path) -> None:
    backup, again = tmp_path / "b", tmp_path / "again"
    as_json("store", "backup", "--store", store, backup)
    _sealed(backup, VERSION_1)
    (restored,) = as_json("store", "restore", backup, "--store", again)
    assert (restored["format_version"], restored["messages"]) == (FORMAT_VERSION, 3)
    assert _bodies(again) == [b"0", b"1", b"2"]


def test_the_file_of_a_store_is_no_backup(store: Path, tmp_path: Path) -> None:
    with Client(store) as client:
        client.send("line1", b"in the log")
        again = tmp_path / "again"
        _refused(
            "name a file that `ordack store backup` has made", "store", "restore", store / FILE_NAME, "--store", again
        )


def test_killed_restore_can_be_retried(large: Path, tmp_path: Path) -> None:
    as_json("store", "backup", "--store", large, tmp_path / "b")
    again = tmp_path / "again"
    process = _start("store", "restore", tmp_path / "b", "--store", again)
    while process.poll() is None and not list(again.glob(".ordack-*.partial")):
        pass
    process.kill()
    process.communicate()
    if (again / FILE_NAME).exists():
        shutil.rmtree(again)
    as_json("store", "restore", tmp_path / "b", "--store", again)
    assert [path.name for path in again.iterdir()] == [FILE_NAME]


# ---- check --------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("serve", "--listen", "127.0.0.1:0"), ("status",), ("queue", "create", "q")])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_log_without_its_file_is_an_error_and_stays(tmp_path: Path, words: tuple[str, ...], is_there: bool) -> None:
    """SQLite takes such a log for one of another file, and deletes it with all that it holds."""
    store = tmp_path / "store"
    with Client(store, create=True) as client:
        client.create_queue("line1", transactional=False)
        client.queue("line1").send(b"reading")
        log = store / f"{FILE_NAME}-wal"
        content = log.read_bytes()
    assert content
    log.write_bytes(content)
    (store / FILE_NAME).unlink()
    if is_there:
        (store / FILE_NAME).touch()
    done = ordack(*words, "--store", store)
    assert done.returncode == 1
    assert f"{FILE_NAME}-wal" in done.stderr
    assert log.read_bytes() == content
    assert (store / FILE_NAME).exists() is is_there
