"""`ordack table export` that is killed, or whose disk fails: each message is in one segment or in its queue."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from mqqb import confirm
from ordack.client import Client
from ordack.pipeline.export import Exporter, Folder
from ordack.pipeline.segments import FolderError, segments
from ordack.store import Store, StoreError, StoreUnknown
from ordack.store.messages import singles

from tests.pipeline.exports import (
    MEMORY,
    acknowledged_ids,
    exported_ids,
    fill,
    ids_of,
    make_store,
    queued_ids,
    run_export,
    store_messages,
)
from tests.support.beside import outcomes_of
from tests.support.command import Serve
from tests.support.faulty_disk import FaultyDisk, after_power_cut, faulty_disk


class _Instants:
    """Kills this process at the n-th instant: before and after each change of the folder, in the middle of a write,
    before each statement of the store. `between` is called at each instant at which the store is free."""

    def __init__(self, fatal: int, between: Callable[[], None] = lambda: None) -> None:
        self.left = fatal
        self.between = between
        self.store: Store | None = None
        for name in ("open", "write", "fsync", "replace", "link", "unlink", "mkdir", "close"):
            setattr(os, name, self._around(name, getattr(os, name)))

    def arm(self, store: Store) -> None:
        self.store = store

        def trace(_cursor: Any, _statement: str, _bindings: Any) -> bool:
            self.now()
            return True

        store._database.connection.exec_trace = trace

    def now(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left, self.left = self.left, 0  # what arrives between is not the exporter's
        if self.store is None or self.store._database.connection.get_autocommit():
            self.between()
        self.left = left

    def _around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def around(*arguments: Any, **names: Any) -> Any:
            if self.left <= 0:
                return function(*arguments, **names)
            self.now()
            if name == "write" and self.left == 1:
                function(arguments[0], arguments[1][: len(arguments[1]) // 2])
            result = function(*arguments, **names)
            self.now()
            return result

        return around


def _killed(work: Callable[[], None]) -> bool:
    """Do the work in a child; whether that was killed."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException as error:  # noqa: BLE001 - the parent tells
            sys.__stderr__.write(f"{type(error).__name__}: {error}\n")  # type: ignore[union-attr]
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def _check_visible(to: Path, seen: dict[str, tuple[bytes, list[int]]]) -> list[int]:
    """MessageIDs in the visible segments; none that was ever seen has changed or gone."""
    found = segments(to) if to.exists() else []
    names = [segment.path.name for segment in found]
    assert set(seen) <= set(names)
    assert [segment.serial for segment in found] == list(range(1, len(found) + 1))
    for segment in found:
        content = segment.path.read_bytes()
        if segment.path.name not in seen:
            seen[segment.path.name] = content, ids_of(segment.path)
        assert seen[segment.path.name][0] == content
    return [number for name in names for number in seen[name][1]]


@pytest.mark.timeout(300)
def test_killed_at_every_instant_while_messages_arrive(memory: Path) -> None:
    store, to, note, numbers = (
        make_store(memory / "store"),
        memory / "segments",
        memory / "accepted",
        memory / "numbers",
    )
    fill(store, 20)
    numbers.write_text("21")
    note.write_text("".join(f"{number}\n" for number in range(1, 21)))

    def export(fatal: int) -> None:
        calls = 0
        with Client(store) as client, Store(store) as other, note.open("a") as accepted:
            number = int(numbers.read_text())

            def arrive() -> None:
                nonlocal calls, number
                calls += 1
                if (calls + fatal) % 13 == 0:  # as from a board: it is accepted when the transaction is over
                    store_messages(other, [number])
                    accepted.write(f"{number}\n")
                    accepted.flush()
                    number += 1
                    numbers.write_text(str(number))

            instants = _Instants(fatal, arrive)
            instants.arm(client.store)
            with Exporter(client, ["line1"], to, rows=2) as exporter:
                assert len(list(islice(exporter.run(), 2))) == 2
            instants.left = 0

    seen: dict[str, tuple[bytes, list[int]]] = {}
    fatal = 1
    while _killed(partial(export, fatal)):
        accepted = set(map(int, note.read_text().split()))
        visible = _check_visible(to, seen)
        assert not set(visible) & set(queued_ids(store)), f"instant {fatal}: exported and still there"
        if fatal % 2:  # else the next one finds things as this one has left them
            with Client(store) as client, Exporter(client, ["line1"], to):
                pass
            assert not [path for path in to.iterdir() if path.name.startswith(".")]
            visible = _check_visible(to, seen)
            queued = queued_ids(store)
            assert Counter(visible + queued) == Counter(accepted), f"instant {fatal}"
            if fatal % 11 == 0:
                assert sorted(acknowledged_ids(store)) == sorted(visible)
        fatal += 1
    print("instants:", fatal)
    assert fatal > 80
    run_export(store, to)
    visible = _check_visible(to, seen)
    assert visible == sorted(map(int, note.read_text().split())), "each once, and in order"
    assert sorted(acknowledged_ids(store)) == visible
    assert queued_ids(store) == []


@pytest.mark.rule("B-098")
def test_each_step_is_durable_before_the_next(store: Path, to: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No kill shows it, only a power cut: nothing is recorded that is not synced, and a name is synced before it is
    said to be final."""
    fill(store, 2)
    steps: list[str] = []

    def name_of(file: int) -> str:
        return Path(os.readlink(f"/proc/self/fd/{file}")).name  # noqa: PTH115

    with Client(store) as client, Exporter(client, ["line1"], to) as exporter:
        with client.queue("line1").receive_batch(0):  # what a first receive makes is not looked at
            pass
        sync, rename, save = os.fsync, os.replace, client.store.exports.save

        def noted_sync(file: int) -> None:
            sync(file)
            steps.append(f"sync {name_of(file)}")

        def noted_rename(*names: str, **folders: int) -> None:
            rename(*names, **folders)
            steps.append("rename")

        def trace(_cursor: Any, statement: str, _bindings: Any) -> bool:
            if statement == "COMMIT" and steps:
                steps.append("commit")
            return True

        monkeypatch.setattr(os, "fsync", noted_sync)
        monkeypatch.setattr(os, "replace", noted_rename)
        monkeypatch.setattr(client.store.exports, "save", lambda export: (save(export), steps.append("record"))[0])
        client.store._database.connection.exec_trace = trace
        list(exporter.run())
    assert steps == [
        "sync .line1-0000000001-1-2.parquet.new",
        "sync segments",
        "record",
        "commit",
        "rename",
        "sync segments",
        "record",
        "commit",
    ]


class ExportMachine(RuleBasedStateMachine):
    """A queue whose messages are exported, received, put back, purged and expire, against a list in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY))
        self.now = 1000
        self.clients = [
            Client(self.folder / "store", create=True, clock=lambda: self.now),
            Client(self.folder / "store", clock=lambda: self.now),
        ]
        self.clients[0].create_queue("line1", transactional=True)
        self.sent = 0
        self.waiting: dict[int, int | None] = {}  # MessageID -> when it expires
        self.held: list[int] = []
        self.purged: set[int] = set()
        self.gone: dict[str, list[int]] = {"exported": [], "received": [], "purged": []}

    def teardown(self) -> None:
        for client in self.clients:
            client.close()
        shutil.rmtree(self.folder)

    @rule(count=st.integers(1, 6), life=st.none() | st.integers(1, 20))
    def arrive(self, count: int, life: int | None) -> None:
        ids = list(range(self.sent + 1, self.sent + count + 1))
        self.sent += count
        expires = None if life is None else self.now + life
        store_messages(self.clients[0].store, ids, expires=expires)
        self.waiting |= dict.fromkeys(ids, expires)

    def live(self) -> list[int]:
        return [
            number
            for number, expires in sorted(self.waiting.items())
            if number not in self.held and number not in self.purged and (expires is None or expires > self.now)
        ]

    @rule(seconds=st.integers(1, 10))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule(rows=st.integers(1, 5), limit=st.integers(1, 3))
    def export(self, rows: int, limit: int) -> None:
        live = self.live()
        with Exporter(self.clients[0], ["LINE1"], self.folder / "segments", rows=rows) as exporter:
            made = list(islice(exporter.run(), limit))
        taken = sum(one.messages for one in made)
        assert taken == min(rows * limit, len(live))
        assert [one.messages for one in made] == [min(rows, taken - at) for at in range(0, taken, rows)]
        self.gone["exported"] += live[:taken]
        self.drop(live[:taken])

    def drop(self, ids: list[int]) -> None:
        for number in ids:
            del self.waiting[number]

    @rule(count=st.integers(1, 4))
    def hold(self, count: int) -> None:
        if self.held:
            return
        live = self.live()
        store = self.clients[1].store
        taken = singles(store.messages.begin_receive(store.queues.named("line1").identifier, count, self.now))
        self.held = live[:count]
        self.keys = [message.lookup_id for message in taken]
        assert len(taken) == len(self.held)

    @rule(commit=st.booleans())
    def release(self, commit: bool) -> None:
        if not self.held:
            return
        client = self.clients[1]
        if commit:
            with client.store.transaction():
                outcomes_of(client).remove(self.keys, confirm.ACK_RECEIVE, is_receive=True)
            self.gone["received"] += self.held
            self.purged -= set(self.held)
            self.drop(self.held)
        else:
            client.store.messages.put_back(self.keys)
        self.held = []

    @rule()
    def purge(self) -> None:
        self.clients[1].purge_queue("line1")
        gone = [number for number in self.waiting if number not in self.held and number not in self.purged]
        gone += [number for number in self.purged if number not in self.held]
        self.purged = set(self.held)
        self.gone["purged"] += gone
        self.drop(gone)

    @invariant()
    def each_is_in_one_place(self) -> None:
        folder = self.folder / "segments"
        assert (exported_ids(folder) if folder.exists() else []) == self.gone["exported"]
        with Store(self.folder / "store") as store:
            assert store.queues.named("line1").messages == len(self.waiting)
        everything = [*chain(*self.gone.values()), *self.waiting]
        assert sorted(everything) == list(range(1, self.sent + 1))


TestExportMachine = ExportMachine.TestCase


TestExportMachine.settings = settings(max_examples=25, stateful_step_count=20)


@pytest.mark.parametrize("another", [False, True])
def test_export_survives_kill_of_serve(store: Path, to: Path, monkeypatch: pytest.MonkeyPatch, another: bool) -> None:
    fill(store, 5)
    serves = [Serve(store)]
    write = Folder.write

    def write_and_kill(folder: Folder, name: str, content: bytes) -> None:
        write(folder, name, content)
        if bytes(content[:4]) == b"PAR1" and serves[0].process.poll() is None:
            serves[0].process.kill()
            serves[0].process.wait()
            if another:
                serves.append(Serve(store))

    monkeypatch.setattr(Folder, "write", write_and_kill)
    made = run_export(store, to)
    for serve in serves[1:]:
        serve.stop()
    assert serves[0].process.returncode == -signal.SIGKILL
    assert [segment.messages for segment in made] == [5]
    assert (exported_ids(to), queued_ids(store)) == ([1, 2, 3, 4, 5], [])


@pytest.mark.parametrize("call", ["open", "write", "fsync"])
def test_a_full_or_failing_folder_loses_nothing(
    store: Path, to: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    ids = fill(store, 5)
    real = getattr(os, call)
    with Client(store) as client, Exporter(client, ["line1"], to, rows=2) as exporter:
        running = exporter.run()
        next(running)

        def fail(*arguments: Any, **names: Any) -> Any:
            if call == "open" and arguments[1] & os.O_CREAT == 0:
                return real(*arguments, **names)
            if call == "write":
                real(arguments[0], arguments[1][:10])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patched:
            patched.setattr(os, call, fail)
            with pytest.raises(FolderError, match=r"cannot write to the folder .*No space"):
                next(running)
    assert exported_ids(to) == ids[:2]
    assert queued_ids(store) == ids[2:]
    assert acknowledged_ids(store) == ids[:2]
    if call != "fsync":
        assert not [path for path in to.iterdir() if path.name.startswith(".")]
    run_export(store, to)
    assert exported_ids(to) == ids


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    with faulty_disk() as faulty:
        yield faulty


@pytest.mark.parametrize("fail", ["sync", "sync-once", "write", "write-once"])
@pytest.mark.parametrize("cut", [False, True], ids=["again", "power cut"])
@pytest.mark.rule("B-098")
def test_failed_export_commit_reports_state_and_allows_retry(
    disk: FaultyDisk, tmp_path: Path, fail: str, cut: bool
) -> None:
    doubts = 0
    for spare in range(0, 500, 1 if fail.startswith("sync") else 5):
        place = tmp_path / str(spare)
        store, to = place / "store", place / "to"
        with Client(store, create=True) as client:
            client.create_queue("line1", transactional=True)
        ids = fill(store, 4)
        with Client(store) as client:
            exporter = Exporter(client, ["line1"], to, rows=3)
            disk.fail, disk.spare, failed = fail, spare, disk.failed
            reported = []
            error = None
            try:
                reported.extend(made.segment for made in exporter.run())
            except StoreError as raised:
                error = raised
            assert error is not None or disk.failed == failed or len(reported) == 2
            assert [segment.path.name for segment in segments(to)] == reported, (spare, error)
            unknown = isinstance(error, StoreUnknown)
            doubts += unknown
            with disk.repaired():
                if cut:
                    store, to = after_power_cut(store, place / "cut"), Path(shutil.copytree(to, place / "cut to"))
                    if not unknown:
                        assert exported_ids(to) + queued_ids(store) == ids, (spare, error)
            disk.fail, disk.spare = "", 0
            if not cut and fail.endswith("-once"):
                list(exporter.run())
            exporter.close()
        made_now = run_export(store, to)
        assert exported_ids(to) == acknowledged_ids(store) == ids, (spare, error)
        assert queued_ids(store) == []
        if disk.failed == failed:
            break
        assert not error or unknown or not any(made.recovered for made in made_now), "it was not said that it is there"
    assert disk.failed == failed, "each commit has failed once"
    assert bool(doubts) == (not fail.endswith("-once"))
