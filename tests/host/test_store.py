"""The store: queue order, transactions, several processes, damaged files; and a model of all of it."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import random
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import apsw
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from ordack.client import Client
from ordack.store import Store, StoreBusy, StoreError, disk
from ordack.store.disk import LOG_BYTES, log_bytes
from ordack.store.look import ReadOnlyStore
from ordack.store.messages import FIRST, NewMessage, singles
from ordack.store.queues import NoSuchQueue, QueueExists
from ordack.store.receive_locks import RECEIVE_LOCK, ReceiveLocks
from ordack.store.schema import FILE_NAME

from tests.support.beside import unserved
from tests.support.command import ENVIRONMENT, Serve

SPAWN = multiprocessing.get_context("forkserver")


def _add(store: Store, queue: str, *packets: bytes, priority: int = 0) -> None:
    identifier = store.queues.named(queue).identifier
    store.messages.add([NewMessage(identifier, 7 - priority, packet) for packet in packets])


def _content(store: Store, queue: str) -> list[bytes]:
    return [message.packet for message in store.messages.peek(store.queues.named(queue).identifier, -1)]


def _packet(body: bytes) -> bytes:
    """A packet with its size: such messages may share a row."""
    return struct.pack("<8xII", 16 + len(body), 0) + body


def _rows(store: Store) -> list[tuple[int, int]]:
    rows: list[tuple[int, int]] = store._database.all("SELECT lookup_id, count FROM messages ORDER BY lookup_id")
    return rows


PACKETS = st.one_of(st.binary(max_size=40).map(_packet), st.binary(max_size=40).map(_packet), st.binary(max_size=40))


class StoreMachine(RuleBasedStateMachine):
    """One store, several openings of it, against lists in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.stores = [Store(self.folder, create=True), Store(self.folder)]
        self.model: dict[str, list[tuple[int, int, bytes]]] = {}  # queue -> (rank, order, packet)
        self.held: dict[int, tuple[str, list[tuple[int, int, bytes]], list[int]]] = {}  # by opening: what it received
        self.order = 0
        self.purged: set[int] = set()  # order of those purged while they were held

    def teardown(self) -> None:
        for store in self.stores:
            store.close()
        shutil.rmtree(self.folder)

    @initialize()
    def one_queue(self) -> None:
        self.create(0, "Line")

    @rule(which=st.integers(0, 1), name=st.sampled_from(["Line", "line", "b$", "c"]))
    def create(self, which: int, name: str) -> None:
        if name.lower() in self.model:
            with pytest.raises(QueueExists):
                self.stores[which].queues.create(name, transactional=False)
        else:
            self.stores[which].queues.create(name, transactional=which == 1)
            self.model[name.lower()] = []

    @rule(
        data=st.data(),
        which=st.integers(0, 1),
        messages=st.lists(
            st.tuples(
                st.sampled_from([0, 0, 4, 7]), st.sampled_from([1, 1, 1, 0]), st.lists(PACKETS, min_size=1, max_size=3)
            ),
            max_size=6,
        ),
        abort=st.sampled_from(["", "transaction", "attempt"]),
    )
    def add(self, data: st.DataObject, which: int, messages: list[tuple[int, int, list[bytes]]], abort: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.model)))
        store = self.stores[which]
        identifier = store.queues.named(name).identifier
        rows = [  # one with a dead-letter queue shares no row
            NewMessage(identifier, 7 - rank, first, dead_letter=None if is_plain else "x", more=more)
            for rank, is_plain, (first, *more) in messages
        ]
        if abort:
            before = store.usage()
            with store.transaction() if abort == "attempt" else contextlib.nullcontext():
                with contextlib.suppress(ZeroDivisionError), getattr(store, abort)():
                    store.messages.add(rows)
                    assert store.usage() == before + sum(len(part) for row in rows for part in (row.packet, *row.more))
                    raise ZeroDivisionError
                assert store.usage() == before
            return
        store.messages.add(rows)
        for row in rows:
            for packet in (row.packet, *row.more):
                self.order += 1
                self.model[name].append((row.rank, self.order, bytes(packet)))
        self.model[name].sort()

    @rule(data=st.data(), which=st.integers(0, 1), rank=st.sampled_from([0, 4]), bodies=st.lists(st.binary(max_size=9)))
    def add_run(self, data: st.DataObject, which: int, rank: int, bodies: list[bytes]) -> None:
        name = data.draw(st.sampled_from(sorted(self.model)))
        store = self.stores[which]
        packets = list(map(_packet, bodies))
        store.messages.add_run(store.queues.named(name).identifier, rank, b"".join(packets), list(map(len, packets)))
        for packet in packets:
            self.order += 1
            self.model[name].append((rank, self.order, packet))
        self.model[name].sort()

    @rule(data=st.data(), which=st.integers(0, 1), limit=st.integers(1, 9))
    def begin_receive(self, data: st.DataObject, which: int, limit: int) -> None:
        if which in self.held:
            return
        name = data.draw(st.sampled_from(sorted(self.model)))
        store = self.stores[which]
        got = singles(store.messages.begin_receive(store.queues.named(name).identifier, limit))
        expected = self.model[name][:limit]
        if 8 * len(got) >= limit:  # a run behind them is left whole
            expected = expected[: len(got)]
        assert [message.packet for message in got] == [packet for _, _, packet in expected]
        if got:
            del self.model[name][: len(got)]
            self.held[which] = (name, expected, [message.lookup_id for message in got])

    @rule(which=st.integers(0, 1), remove=st.booleans())
    def end_receive(self, which: int, remove: bool) -> None:
        if which in self.held:
            name, messages, keys = self.held.pop(which)
            store = self.stores[which]
            if remove:
                store.messages.delete(keys, is_receive=True)
            else:
                store.messages.put_back(keys)
                self._back(store, name, messages)

    @rule(data=st.data(), which=st.integers(0, 1), counted=st.booleans(), fails_at=st.integers(1, 12))
    def end_a_part(self, data: st.DataObject, which: int, counted: bool, fails_at: int) -> None:
        if which not in self.held:
            return
        name, messages, keys = self.held[which]
        store = self.stores[which]
        removed = data.draw(st.sets(st.sampled_from(keys)))
        before = store._database.all("SELECT * FROM messages ORDER BY lookup_id")
        statements = itertools.count(1)

        def fail(_: object, sql: str, __: object) -> bool:
            if sql != "ROLLBACK" and next(statements) == fails_at:
                raise ZeroDivisionError
            return True

        for trace in (fail, None):
            store._database.connection.exec_trace = trace
            with contextlib.suppress(ZeroDivisionError), store.transaction():
                store.messages.delete(removed, is_receive=True)
                if counted:
                    store.messages._count_abort(set(keys) - removed)
                if trace:
                    raise ZeroDivisionError
            store._database.connection.exec_trace = None
            if trace:
                assert store._database.all("SELECT * FROM messages ORDER BY lookup_id") == before
        del self.held[which]
        store.messages.put_back(keys)
        self._back(store, name, [each for each, key in zip(messages, keys, strict=True) if key not in removed])

    @rule(data=st.data(), which=st.integers(0, 1))
    def move(self, data: st.DataObject, which: int) -> None:
        name, to = (data.draw(st.sampled_from(sorted(self.model))) for _ in range(2))
        if name == to or not self.model[name]:
            return
        store = self.stores[which]
        place = data.draw(st.integers(0, len(self.model[name]) - 1))
        queue = store.queues.named(name).identifier
        stored = store.messages.peek(queue, -1)[place]
        assert store.messages.find(queue, stored.lookup_id, 0) == stored
        assert store.messages.move(stored.lookup_id, queue, store.queues.named(to).identifier)
        self.model[to].append(self.model[name].pop(place))
        self.model[to].sort()

    def _back(self, store: Store, name: str, messages: list[tuple[int, int, bytes]]) -> None:
        kept = [message for message in messages if message[1] not in self.purged]
        expired, purged = store.messages.over(1 << 40, 1000)
        assert expired == []
        assert len(purged) == len(messages) - len(kept)
        store.messages.delete(purged)
        self.model[name] = sorted(self.model[name] + kept)

    @rule(which=st.integers(0, 1))
    def reopen(self, which: int) -> None:
        self.stores[which].close()
        store = self.stores[which] = Store(self.folder)
        if which in self.held:
            name, messages, _ = self.held.pop(which)
            self._back(store, name, messages)

    @rule(data=st.data(), which=st.integers(0, 1))
    def purge_up_to(self, data: st.DataObject, which: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.model)))
        store = self.stores[which]
        identifier = store.queues.named(name).identifier
        there = [stored.lookup_id for stored in store.messages.peek(identifier, -1)]
        held = {key for _, _, keys in self.held.values() for key in keys}
        last = data.draw(st.sampled_from([0, *there, *held]))
        gone = store.messages.unlocked(identifier, 1000, last)
        assert gone == [key for key in there if key <= last]
        store.messages.delete(gone)
        self.model[name] = [each for each, key in zip(self.model[name], there, strict=True) if key > last]
        marked = {
            each[1]
            for queue, messages, keys in self.held.values()
            for each, key in zip(messages, keys, strict=True)
            if queue == name and key <= last
        }
        assert store.messages.mark_purged(identifier, last) == len(marked)
        self.purged |= marked

    @rule(data=st.data(), which=st.integers(0, 1), delete=st.booleans())
    def purge_or_delete(self, data: st.DataObject, which: int, delete: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.model)))
        store = self.stores[which]
        identifier = store.queues.named(name).identifier
        store.messages.delete(store.messages.unlocked(identifier, 1000))
        self.model[name] = []
        locked = [message for queue, messages, _ in self.held.values() if queue == name for message in messages]
        assert store.messages.locked(identifier) == len(locked) == store.messages.mark_purged(identifier)
        self.purged.update(order for _, order, _ in locked)
        store.queues.remove(identifier)  # not while messages are in it
        if locked or not delete or name == "line":
            assert (store.queues.find(name) is None) == (not locked)
            if not locked:
                store.queues.create(name, transactional=False)
        else:
            del self.model[name]

    @invariant()
    def same_content(self) -> None:
        for store in self.stores:
            queues = {queue.name.lower(): queue for queue in store.queues.all() if not queue.kind}
            assert queues.keys() == self.model.keys()
            for name, expected in self.model.items():
                assert _content(store, name) == [packet for _, _, packet in expected]
                places = [message[:2] for message in store.messages.peek(queues[name].identifier, -1)]
                assert places == sorted(places)
                for one, place in zip(expected, [FIRST, *places], strict=False):
                    (found,) = store.messages.peek(queues[name].identifier, 1, place)
                    assert found.packet == one[2]
                assert store.messages.peek(queues[name].identifier, 1, places[-1] if places else FIRST) == []
                held = [message for queue, messages, _ in self.held.values() if queue == name for message in messages]
                assert queues[name].messages == len(expected) + len(held)
                assert queues[name].bytes == sum(len(packet) for _, _, packet in expected + held)
            assert store.usage() == sum(queue.bytes for queue in queues.values())
            rows = _rows(store)
            assert all(before <= last - count for (before, _), (last, count) in itertools.pairwise(rows))
            assert store.messages.last_lookup_id() == self.order


def mounted(folder: Path, kind: str) -> str:
    """What the kernel says of a folder's file system; others are mounted, too."""
    device = folder.stat().st_dev
    own = f"{os.major(device)}:{os.minor(device)} / /mnt/with\\040blank rw,relatime shared:1"
    return f"24 30 0:22 / /proc rw - proc proc rw\n25 30 {own} - {kind} server:/ rw\n26 30 8:1 / / rw - ext4 a rw\n"


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs"])
def test_a_store_is_not_on_a_disk_of_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    Store(tmp_path / "old", create=True).close()
    monkeypatch.setattr(disk, "MOUNTS", tmp_path / "mounts")
    (tmp_path / "mounts").write_text(mounted(tmp_path, kind))
    for name, create in (("old", False), ("old", True), ("new", True)):
        with pytest.raises(StoreError, match=rf"{name} is on {kind}, a file system of another machine, .* a disk of"):
            Store(tmp_path / name, create=create)
    assert not (tmp_path / "new").exists()
    with ReadOnlyStore(tmp_path / "old") as copy:  # of a backup, say
        assert copy.usage() == 0


TestStoreMachine = pytest.mark.rule("B-287", "B-343", "B-340", "B-084")(StoreMachine.TestCase)
TestStoreMachine.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


def test_a_queue_made_again_does_not_get_the_old_identifier(tmp_path: Path) -> None:
    with Store(tmp_path, create=True) as store:
        old = store.queues.create("q", transactional=False)
        store.queues.remove(old.identifier)
        assert store.queues.create("q", transactional=False).identifier > old.identifier
        with pytest.raises(NoSuchQueue):
            store.queues.named("other")


@pytest.mark.rule("B-020", "A-46")
def test_message_ids_are_never_given_twice_and_skip_zero(tmp_path: Path) -> None:
    with Store(tmp_path, create=True) as store, unserved(Store(tmp_path)) as other:
        store.lock_manager()
        first = store.numbers.reserve_message_ids()
        assert other.numbers.reserve_message_ids(256) == first + 1
        assert store.numbers.reserve_message_ids() == first + 257

        def go_on_at(last: int) -> None:
            with store.transaction():
                store._database.all("UPDATE settings SET value = ? WHERE name = 'message_id_ordinal'", (last,))

        go_on_at(0xFFFFFFFE)
        assert other.numbers.reserve_message_ids() == 0xFFFFFFFF
        assert store.numbers.reserve_message_ids() == 1
        store.memory.add_outcomes([(7, b"", 0, None, 1), (300, b"", 0, None, 1)])  # of earlier messages
        go_on_at(6)
        assert store.numbers.reserve_message_ids() == 8
        assert store.numbers.reserve_message_ids(256) == 9
        assert store.numbers.reserve_message_ids(256) == 301


@pytest.mark.rule("B-056", "B-079", "B-426")
def test_a_sequence_of_an_earlier_run_is_not_gone_on_with(tmp_path: Path) -> None:
    with Store(tmp_path, create=True) as store:
        queue = store.outgoing.number_in(store.outgoing.queue("DIRECT=TCP:10.0.0.1\\private$\\a", 500), 500)
        assert store.outgoing.number_in(queue, 500) == queue
    with Store(tmp_path) as again:
        with contextlib.suppress(KeyError), again.transaction():
            again.outgoing.number_in(queue, 500)
            raise KeyError
        assert again.outgoing.number_in(queue, 500).record[1] > queue.record[1], "the run that began there has not"


def test_receive_locks_are_visible_and_freed_on_release_or_death(tmp_path: Path) -> None:
    dice = random.Random(8)
    database = tmp_path / "database"
    database.touch(0o640)
    owners = [ReceiveLocks(database) for _ in range(4)]
    looker = ReceiveLocks(database)
    assert looker.all() == set()
    has: list[set[int]] = [set() for _ in owners]
    for _ in range(500):
        at = dice.randrange(len(owners))
        keys = {dice.randrange(60) * dice.choice((1, 1 << 40)) for _ in range(dice.randrange(9))}
        if dice.random() < 0.6:
            keys -= set().union(*has)
            owners[at].take(keys)
            has[at] |= keys
        elif dice.random() < 0.9:
            owners[at].let_go(keys)  # also what others have
            has[at] -= keys
        else:
            owners[at].close()  # as when its process dies
            owners[at], has[at] = ReceiveLocks(database), set()
        taken = set().union(*has)
        assert looker.all() == taken
        assert [one.all() for one in owners] == [taken] * len(owners)
        assert [one.mine for one in owners] == has
    assert stat.S_IMODE((tmp_path / RECEIVE_LOCK).stat().st_mode) == 0o640
    for one in owners:
        one.close()


# ---- what can be wrong with a store --------------------------------------------------------------


def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    db = apsw.Connection(str(path))
    db.execute("CREATE TABLE theirs (x)")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        Store(tmp_path, create=True)
    assert path.read_bytes() == before


def test_a_folder_that_cannot_be_written_is_reported() -> None:
    with pytest.raises(StoreError, match="cannot write /proc/self"):
        Store("/proc/self", create=True)  # where not even root can make a file


def test_the_log_begins_anew_again_and_again(tmp_path: Path) -> None:
    with Store(tmp_path, create=True) as store:
        store.queues.create("q", transactional=False)
        for _ in range(100):
            _add(store, "q", bytes(200_000))
            assert log_bytes(store.path) < LOG_BYTES + 500_000


def test_most_commits_leave_the_log_as_long_as_it_is(tmp_path: Path) -> None:
    with Store(tmp_path / "a", create=True) as store:
        store.queues.create("q", transactional=False)
        lengths, packets = [], [b"%d" % number for number in range(400)]
        for packet in packets:
            _add(store, "q", packet)
            lengths.append(log_bytes(store.path))
        assert len(set(lengths)) < 40
        assert max(lengths) < LOG_BYTES + 50_000
        shutil.copytree(tmp_path / "a", tmp_path / "b")  # as after a power cut
        with Store(tmp_path / "b") as recovered:
            assert _content(recovered, "q") == packets


def test_busy_store_error_names_lock_holder(tmp_path: Path) -> None:
    with Store(tmp_path, create=True) as store:
        holder = (
            "import sys\nfrom ordack.store import Store\nwith Store(sys.argv[1]) as store, store.transaction():\n"
            "    print('has it', flush=True)\n    sys.stdin.read()\n"
        )
        command = [sys.executable, "-c", holder, str(tmp_path)]
        with subprocess.Popen(
            command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout
            assert process.stdout.readline() == "has it\n"
            store._database.connection.set_busy_timeout(0)
            with pytest.raises(StoreBusy, match=rf"process {process.pid} \(.*import sys"):
                store.keep_names({})
            process.communicate()
        store.keep_names({})


def _send_many(folder: Path, count: int) -> None:
    with Client(folder) as client:
        for _ in range(count):
            client.send("DIRECT=TCP:10.0.0.9\\private$\\q", b"x")


@pytest.mark.rule("B-057", "B-317", "B-098")
@pytest.mark.parametrize("served", [True, False])
def test_processes_share_sequence_numbers_only_under_serve(tmp_path: Path, served: bool) -> None:
    """While `ordack serve` runs; without it each process has a sequence of its own."""
    with Store(tmp_path, create=True) as store:
        serve = Serve(tmp_path) if served else None
        processes = [SPAWN.Process(target=_send_many, args=(tmp_path, 15)) for _ in range(3)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if serve:
            serve.stop()
        entries = store.outgoing.messages()
        assert len({entry.message_id for entry in entries}) == 45
        if served:
            assert [entry.number for entry in entries] == list(range(1, 46))
            assert store.outgoing.queues()[0].record[2] == 46
            return
        sequences = [(entry.time_stamp, entry.ordinal) for entry in entries]
        assert sequences == sorted(sequences)
        assert 3 <= len(set(sequences)) <= 45
        for sequence in set(sequences):
            numbers = [entry.number for entry in entries if (entry.time_stamp, entry.ordinal) == sequence]
            assert numbers == list(range(1, len(numbers) + 1))
