"""Stores on small file systems, mounted for the test: full, emptied, filled by somebody else. What was full once takes
messages again by itself (B-285, B-398, B-424)."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ordack.client import Client
from ordack.store import StoreFull
from ordack.store.backup import make_backup
from ordack.store.disk import RESERVE_BYTES, Disk, room

from tests.support.command import DEADLINE_S, ENVIRONMENT, Serve, as_json, ordack

pytestmark = pytest.mark.slow

MB = 1_000_000
BODY = bytes(200_000)
DISKS = [("tmpfs", 40), ("ext4", 60)]  # MiB


@pytest.fixture
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system of that kind and so many MiB. It is not below tmp_path: a test that is killed leaves it mounted,
    and pytest, which cannot remove that, would fail from then on."""
    kind, size = request.param
    folder = Path(tempfile.mkdtemp(prefix="ordack-disk-"))
    image = tmp_path / "image"
    if kind == "tmpfs":
        steps = [["mount", "-t", "tmpfs", "-o", f"size={size}m", "tmpfs", str(folder)]]
    else:
        with image.open("wb") as file:
            file.truncate(size << 20)
        steps = [["mkfs.ext4", "-q", str(image)], ["mount", "-o", "loop", str(image), str(folder)]]
    for step in steps:
        try:
            done = subprocess.run(step, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        except FileNotFoundError as error:
            pytest.skip(f"no {error.filename} here")
        if done.returncode:
            pytest.skip(f"this process cannot mount a file system: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=DEADLINE_S)
    folder.rmdir()


on_two = pytest.mark.parametrize("disk", DISKS, ids=str, indirect=True)
on_one = pytest.mark.parametrize("disk", DISKS[:1], ids=str, indirect=True)


def _fill(client: Client, destination: str, body: bytes = BODY, **properties: Any) -> tuple[int, str]:
    """Send until nothing more is accepted: how many, and what was said then."""
    count = 0
    while True:
        try:
            client.send(destination, body, **properties)
        except StoreFull as error:
            return count, str(error)
        count += 1


def _empty(client: Client, name: str) -> int:
    count = 0
    queue = client.queue(name)
    while True:
        with queue.receive_batch(100) as messages:
            count += len(messages)
        if not messages:
            return count


def _until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def _ballast(folder: Path) -> None:
    """Somebody else's file takes all that is left."""
    with (folder / "ballast").open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1 << 12):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)):
                    pass
            os.fsync(file.fileno())  # what was promised and is not needed is free after this


@pytest.mark.rule("B-285", "B-398", "B-424")
@pytest.mark.parametrize(("disk", "way"), [*zip(DISKS, ("purge", "receive"))], ids=str, indirect=["disk"])
def test_emptied_store_accepts_as_much_as_before(disk: Path, way: str) -> None:
    store = disk / "store"
    ordack("init", "--store", store)
    ordack("queue", "create", "--store", store, "line1", "--transactional")
    with Client(store) as client:
        first, said = _fill(client, "line1")
        assert first * len(BODY) > 0.6 * os.statvfs(disk).f_blocks * os.statvfs(disk).f_frsize
        assert "disk nearly full: " in said
        assert " kept back" in said
        for _ in range(2):
            if way == "receive":
                assert _empty(client, "line1") == first
            else:
                assert as_json("message", "purge", "--yes", "--store", store, "line1")[0]["removed"] == first
            again, _ = _fill(client, "line1")
            assert again >= first - 1  # what the numbers, outcomes and the log of the store have taken
            first = again
        done = ordack("send", "--store", store, "line1", stdin=BODY)
        assert done.returncode == 1
        assert "disk nearly full: " in done.stderr


@on_two
def test_serve_says_that_a_store_is_in_memory(disk: Path, request: pytest.FixtureRequest) -> None:
    process = Serve(disk / "store").process
    process.terminate()
    _, said = process.communicate(DEADLINE_S)
    in_memory = f"{disk}/store is in memory, not on a disk: a power cut loses what was acknowledged"
    assert (in_memory in said) == ("tmpfs" in request.node.callspec.id)


@on_two
@pytest.mark.rule("B-285", "B-098")
def test_serve_resumes_when_full_disk_is_freed(disk: Path, tmp_path: Path) -> None:
    store = disk / "store"
    ordack("init", "--store", store)
    ordack("queue", "create", "--store", store, "line1", "--transactional")
    serve = Serve(store)
    with Client(tmp_path / "sender", create=True) as sender, Client(store) as client:
        away = Serve(tmp_path / "sender", "--next-hop", f"127.0.0.1=127.0.0.1:{serve.port}")
        _ballast(disk)
        try:
            for number in range(40):
                sender.send("DIRECT=TCP:127.0.0.1\\private$\\line1", b"%d " % number + BODY)
            with pytest.raises(StoreFull):
                client.send("line1", BODY)
            assert as_json("queue", "list", "--store", store)[0]["messages"] == 0
            (disk / "ballast").unlink()
            _until(lambda: client.store.queues.named("line1").messages == 40, "what waited arrives")
            client.send("line1", BODY)
        finally:
            away.stop()
            errors = serve.stop()[2]
        queue = client.queue("line1")
        with queue.receive_batch(100) as messages:
            assert [int(message.body.partition(b" ")[0]) for message in messages[:40]] == list(range(40))
    assert "disk nearly full: 0.0 MB free" in errors


@on_one
def test_serve_started_on_full_disk_waits_for_free_space(disk: Path) -> None:
    store = disk / "store"
    ordack("init", "--store", store)
    ordack("queue", "create", "--store", store, "line1", "--transactional")
    _ballast(disk)
    done = ordack("receive", "--store", store, "line1")
    assert (done.returncode, "disk is full" in done.stderr) == (1, True)
    done = ordack("status", "--store", store)
    assert "line1" in done.stdout
    assert "disk nearly full: 0.0 MB free" in done.stdout
    process = subprocess.Popen(
        [sys.executable, "-m", "ordack", "serve", "--store", str(store), "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    assert process.stdout
    assert process.stderr
    try:
        assert "the disk is full" in process.stderr.readline()
        (disk / "ballast").unlink()
        assert process.stdout.readline().startswith("listening on")
    finally:
        process.terminate()
        process.communicate(timeout=DEADLINE_S)


@on_one
@pytest.mark.rule("C-20", "C-36")
def test_expired_messages_on_full_disk_are_dead_lettered(disk: Path) -> None:
    """The copies are made in pieces that the disk has room for."""
    store = disk / "store"
    with Client(store, create=True, clock=lambda: time.time() - 3600) as client:
        count, _ = _fill(client, "DIRECT=TCP:127.0.0.1\\private$\\line1", ttrq=1, dead_letter=True)
    serve = Serve(store, "--next-hop", "127.0.0.1=127.0.0.1:9")
    try:
        with Client(store) as client:
            _until(lambda: client.store.queues.named("system$;deadxact").messages == count, "all are dead-lettered")
            assert client.store.outgoing.messages() == []
    finally:
        errors = serve.stop()[2]
    assert "all sessions are closed" not in errors


@contextlib.contextmanager
def _reader(store: Path) -> Iterator[int]:
    """A program that reads from the store and hangs: its process. It pins the write-ahead log."""
    read = "c = sqlite3.connect(sys.argv[1]); c.execute('BEGIN'); print(c.execute('SELECT * FROM settings').fetchall())"
    process = subprocess.Popen(
        [sys.executable, "-uc", f"import sqlite3, sys; {read}; sys.stdin.read()", store / "ordack.sqlite"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout
    try:
        assert b"guid" in process.stdout.readline()
        yield process.pid
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE_S)


@on_one
@pytest.mark.rule("B-285", "B-398")
@pytest.mark.parametrize("served", [False, True], ids=["alone", "served"])
@pytest.mark.parametrize("size", [1_000, 200_000])
def test_a_reader_that_hangs_stops_sends_and_no_receives(disk: Path, size: int, served: bool) -> None:
    """It keeps the write-ahead log, which each receive makes longer, from beginning anew."""
    store = disk / "store"
    ordack("init", "--store", store)
    ordack("queue", "create", "--store", store, "line1", "--transactional")
    serve = Serve(store) if served else None
    try:
        with Client(store) as client:
            queue = client.queue("line1")
            for unused in (False, True):  # pages that messages have left are room, but not while somebody reads
                if unused:
                    _fill(client, "line1")
                    _empty(client, "line1")
                _until(lambda: _sends(client), "there is room")
                with _reader(store) as reader:
                    count, said = _fill(client, "line1", bytes(size))
                    assert re.search("disk nearly full: .*write-ahead log.*status", said), said
                    assert count > 0 or unused  # the log may have been long when the reader began
                    for _ in range(count + 1):
                        with queue.receive(timeout=0) as message:
                            assert message
                    assert f"process {reader} (" in ordack("status", "--store", store).stdout
                _until(lambda: _sends(client), "there is room again")
                _empty(client, "line1")
    finally:
        if serve:
            serve.stop()


def _sends(client: Client) -> bool:
    try:
        client.send("line1", b"21.5")
    except StoreFull:
        return False
    return True


@on_one
@pytest.mark.rule("B-285", "B-398")
def test_a_slow_backup_stops_before_the_store_has_no_room(disk: Path, tmp_path: Path) -> None:
    store = disk / "store"
    with Client(store, create=True) as client:
        client.create_queue("line1", transactional=True)
        for _ in range(20):
            client.send("line1", BODY)
        sent = []
        with pytest.raises(StoreFull, match="stopped"):
            make_backup(store, tmp_path / "backup", lambda _done, _of: sent.append(_fill(client, "line1")[0]))
        assert not list(tmp_path.iterdir())
        _until(lambda: _sends(client), "there is room again")
        assert _empty(client, "line1") == 20 + sum(sent) + 1


@pytest.mark.rule("B-285", "B-398")
def test_disk_reserve_is_computed_from_free_and_planned_space() -> None:
    def of(
        free: int, unused: int = 0, size: int = 1 << 40, planned: int = 0, used: int = 0, log: int = 0
    ) -> tuple[int, str]:
        return room(1 << 30, used, Disk(size, free, 0, planned, unused, log))

    assert of(100 * MB)[0] == 100 * MB - RESERVE_BYTES
    assert of(13 * MB) == (13 * MB - RESERVE_BYTES, "disk nearly full: 13 MB free, 17 MB kept back")
    assert of(13 * MB, unused=20 * MB)[0] > 13 * MB - RESERVE_BYTES
    assert of(0, unused=200 * MB)[0] <= 0  # what goes to unused pages goes to the log first
    assert of(96 * MB, log=4 * MB) == of(100 * MB)  # the log gives that back
    assert of(0, log=200 * MB)[0] <= 0  # but has it still
    assert of(30 * MB, planned=30 * MB)[0] < 0  # the log will make the file longer
    assert of(9 * MB, size=40 * MB)[0] == 4 * MB
    assert of(1 << 39, used=1 << 30)[1].startswith(f"the quota is {1 << 30} bytes, and {1 << 30} are kept")
