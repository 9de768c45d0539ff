"""`ordack export`: what is in a segment, and that each message is in one segment or in its queue, whatever happens."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from mqqb import build, confirm, core, guid_names, guids, headers, parse, reader
from mqqb.names import DirectQueueFormatName, QueueName
from ordack.client import Client
from ordack.outcome import DIRECT, FINAL_ACK
from ordack.pipeline import export as export_module
from ordack.pipeline.columns import Columns
from ordack.pipeline.export import Exporter, Folder
from ordack.pipeline.segments import (
    MARKER,
    SCHEMA,
    FolderError,
    Segment,
    file_name,
    hidden,
    parse_name,
    reach,
    segments,
)
from ordack.store import Store, StoreError, StoreUnknown
from ordack.store import messages as messages_module
from ordack.store.messages import NewMessage, Stored
from ordack.store.schema import SYSTEM_QUEUES

from tests.support.beside import outcomes_of
from tests.support.command import DEADLINE_S, ENVIRONMENT, Serve, as_json, ordack
from tests.support.faulty_disk import FaultyDisk, after_power_cut, faulty_disk
from tests.support.layouts import acknowledgments, user_messages

PEER = b"p" * 16
HERE = DirectQueueFormatName("TCP:10.0.0.5\\private$\\line1")


MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # a kill needs no disk, and a disk is slow


@pytest.fixture
def memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return _make(tmp_path / "store")


def _make(folder: Path) -> Path:
    with Client(folder, create=True) as client:
        client.create_queue("line1", transactional=True)
        client.create_queue("plain", transactional=False)
    return folder


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "segments"


def _fill(store: Path, count: int, first: int = 1, queue: str = "line1") -> list[int]:
    """Messages from another machine that want a FinalAck when they are received; their MessageIDs."""
    ids = list(range(first, first + count))
    with Client(store) as client:
        _arrive(client.store, ids, queue)
    return ids


def _arrive(opened: Store, ids: list[int], queue: str = "line1", **columns: Any) -> None:
    identifier = opened.queues.named(queue).identifier
    opened.messages.add(
        [
            NewMessage(
                identifier,
                7,
                build.user_message(PEER, number, HERE, b"%d" % number, delivery="transactional", journal=core.USER_JN),
                wants=FINAL_ACK | DIRECT,
                peer=PEER,
                address="10.0.0.9",
                **columns,
            )
            for number in ids
        ]
    )


def _export(store: Path, to: Path, *queues: str, **options: Any) -> list[Any]:
    with Client(store) as client, Exporter(client, queues or ["line1"], to, **options) as exporter:
        return list(exporter.run())


def _exported(to: Path) -> list[int]:
    """MessageIDs in the visible segments, in order."""
    return [number for segment in segments(to) for number in _ids(segment.path)]


def _ids(path: Path) -> list[int]:
    found: list[int] = pq.read_table(path, columns=["message_id"], partitioning=None)["message_id"].to_pylist()
    return found


def _queued(store: Path, queue: str = "line1") -> list[int]:
    """MessageIDs in a queue, in its order."""
    with Store(store) as opened:
        found = opened.messages.peek(opened.queues.named(queue).identifier, sys.maxsize)
    return [int.from_bytes(message.packet[56:60], "little") for message in found]  # wire.md 2.2


def _acknowledged(store: Path) -> list[int]:
    """MessageIDs of which a FinalAck waits to leave."""
    with Store(store) as opened:
        found = [parse.parse(bytes(opened.outgoing.packet(entry.key)[0])) for entry in opened.outgoing.messages()]
    assert all(isinstance(packet, headers.FinalAck) for packet in found)
    return [packet.body.message_id for packet in found if isinstance(packet, headers.FinalAck)]


# ---- what is in a segment -------------------------------------------------------------------------


def _guid(value: bytes | None) -> str | None:
    return None if value is None else guids.guid_text(bytes(value))


def _text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _time(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _expected(stored: Stored) -> dict[str, Any]:
    """The row by the parser, field by field (wire.md 2)."""
    found = parse.parse(stored.packet)
    assert isinstance(found, (headers.UserMessage, reader.OrderAck, headers.FinalAck))
    message = found if isinstance(found, headers.UserMessage) else found.message
    user, properties, transaction = message.user, message.properties, message.transaction
    source, address = bytes(user.source_queue_manager), bytes(user.queue_manager_address)
    hosts = {2: source, 3: address}
    aq, rq = user.flags >> 13 & 7, user.flags >> 16 & 7
    if rq == 4:
        admin = user.admin_queue
        hosts[4] = hosts.get(aq, address)
        if isinstance(admin, guid_names.PrivateQueueFormatName):
            hosts[4] = admin.source_queue_manager

    def name(queue: QueueName | None, kind: int) -> str | None:
        return None if queue is None else _text(guids.format_name(queue, hosts.get(kind, address)))

    administration = name(user.admin_queue, aq)
    lists: list[Any] = [None] * 3
    if message.multi_queue_format is not None:
        parts = message.multi_queue_format
        lists = [
            ",".join(_text(guids.format_name(element)) for element in part.elements())
            for part in (parts.destination, parts.administration, parts.response)
        ]
    life, limit = message.base.time_to_reach_queue, user.time_to_be_received
    flags = transaction.flags if transaction else 0
    place = f"{transaction.tx_sequence_id}/{transaction.tx_sequence_number}" if transaction else user.message_id
    row = {
        "queue_manager": OURS,
        "queue": "line1",
        "lookup_id": stored.lookup_id,
        "arrived": _time(0) + timedelta(microseconds=stored.arrived),
        "in_doubt": bool(stored.in_doubt),
        "message_key": f"{_guid(source)}\\{place}",
        "source_queue_manager": _guid(source),
        "message_id": user.message_id,
        "destination_queue": name(user.destination_queue, user.flags >> 10 & 7),
        "queue_manager_address": None if address == bytes(16) else _guid(address),
        "tx_sequence_ordinal": transaction and transaction.tx_sequence_ordinal,
        "tx_sequence_time_stamp": transaction and transaction.tx_sequence_time_stamp,
        "tx_sequence_number": transaction and transaction.tx_sequence_number,
        "previous_tx_sequence_number": transaction and transaction.previous_tx_sequence_number,
        "first_in_transaction": bool(flags & 4) if transaction else None,
        "last_in_transaction": bool(flags & 8) if transaction else None,
        "label": _text(properties.label),
        "body": bytes(properties.body),
        "body_type": properties.body_type,
        "priority": 0 if transaction else message.base.flags & 7,
        "delivery": "transactional" if transaction else "recoverable" if user.flags & 0x60 else "express",
        "message_class": properties.message_class,
        "correlation_id": bytes(properties.correlation_id),
        "application_tag": properties.application_tag,
        "extension": bytes(properties.extension),
        "sent_time": _time(user.sent_time),
        "time_to_reach_queue": None if life == 0xFFFFFFFF else life,
        "time_to_be_received": None if limit == 0xFFFFFFFF else limit,
        "journal": bool(user.flags & 0x200),
        "dead_letter": bool(user.flags & 0x100),
        "acknowledge": properties.flags,
        "administration_queue": administration,
        "response_queue": administration if rq == 1 else name(user.response_queue, rq),
        "connector_type": _guid(user.connector_type),
        "hop_count": user.flags & 0x1F,
        "over_http": bool(user.flags & 0x02000000),
        "report_queue": message.debug and _guid(message.debug.queue_identifier),
        "privacy_level": properties.privacy_level,
        "sender_id": message.security and (bytes(message.security.security_id) or None),
        **dict(zip(("destination_queues", "administration_queues", "response_queues"), lists)),
    }
    assert list(row) == SCHEMA.names
    return row


OURS = "11111111-1111-1111-1111-111111111111"
COLUMNS = Columns(OURS)  # one for all examples: what it remembers of some messages must not be told of others


def _alike(packet: bytes) -> list[bytes]:
    """The same names, of another source, on another host, and of another kind."""
    flags = int.from_bytes(packet[60:64], "little")
    if flags >> 13 & 7 in (2, 3):
        flags ^= 1 << 13
    return [
        packet[:16] + b"s" * 16 + packet[32:],
        packet[:32] + b"h" * 16 + packet[48:],
        packet[:60] + flags.to_bytes(4, "little") + packet[64:],
    ]


@given(
    st.lists(
        st.tuples(
            st.one_of(user_messages().map(build.build), acknowledgments()).map(bytes),
            st.integers(0, 2**32),
            st.booleans(),
        ),
        min_size=1,
        max_size=5,
    )
)
@settings(max_examples=150)
def test_every_property_of_a_message_has_its_column(found: list[tuple[bytes, int, bool]]) -> None:
    messages = [
        Stored(7, 3 * index + 1, arrived, int(in_doubt), packet)
        for index, (packet, arrived, in_doubt) in enumerate(found)
    ]
    messages += [message._replace(packet=packet) for message in messages for packet in _alike(message.packet)]
    rows = COLUMNS.table("line1", messages).to_pylist()
    assert rows == [_expected(message) for message in messages]


def test_what_the_columns_remember_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ordack.pipeline.columns.CACHE_MAX", 2)
    columns = Columns(OURS)
    for number in range(1, 20):
        name = DirectQueueFormatName(f"TCP:10.0.0.{number % 7}\\private$\\q")
        packet = bytes(build.user_message(bytes([number]) * 16, number, name, b"", label=f"label {number % 5}"))
        stored = Stored(7, number, 0, 0, packet)
        assert columns.table("line1", [stored]).to_pylist() == [_expected(stored)]
        assert max(map(len, (columns._guids, columns._labels, columns._names))) <= 3


def test_a_damaged_message_is_named_and_stays(store: Path, to: Path) -> None:
    with Store(store) as opened:
        _arrive(opened, [1])
        good = build.user_message(PEER, 2, HERE, b"2")
        opened.messages.add([NewMessage(opened.queues.named("line1").identifier, 7, good[:-4])])
    with Client(store) as client, Exporter(client, ["line1"], to) as exporter, Store(store) as other:
        with pytest.raises(StoreError, match="lookup id 2 is damaged"):
            list(exporter.run())
        assert len(other.messages.peek(other.queues.named("line1").identifier, 9)) == 2, (
            "available at once, not when the exporter ends"
        )


def test_what_differs_is_compressed_and_all_else_is_small_without(store: Path, to: Path) -> None:
    with Client(store) as client:
        for number in range(1000):
            client.send("line1", b'{"temperature": 21.5, "device": "press-%03d"}' % number, label="täglich")
    largest = max(_export(store, to), key=lambda one: one.messages)
    assert largest.messages >= 100
    group = pq.ParquetFile(to / largest.segment).metadata.row_group(0)
    columns = [group.column(number) for number in range(len(SCHEMA))]
    assert {one.path_in_schema for one in columns if one.compression == "ZSTD"} == {"message_key", "label", "body"}
    plain = sum(one.total_compressed_size for one in columns if one.compression != "ZSTD")
    assert plain < 15_000, "more than 200,000 as they are"


# ---- names ----------------------------------------------------------------------------------------

queue_names = st.text(
    st.characters(min_codepoint=0x21, max_codepoint=0x7F, exclude_characters='\\;+,"'), min_size=1, max_size=40
) | st.sampled_from(SYSTEM_QUEUES).map(lambda queue: queue[1])


@given(queue_names, st.integers(1, 10**12), st.integers(1, 2**63 - 1), st.integers(1, 2**63 - 1))
def test_names_of_segments_there_and_back(queue: str, serial: int, first: int, last: int) -> None:
    name = file_name(queue, serial, first, last)
    assert parse_name(name) == (queue, serial, first, last)
    assert name.isascii()
    assert not set(name) & set('/\\:*?[]{}"<>|,; \x7f')
    assert name[0] not in "._"
    assert hidden(name)[0] == "."
    assert parse_name(hidden(name)) is None


def test_a_name_too_long_for_a_file_is_refused_before_anything_is_taken(store: Path, to: Path) -> None:
    name = "/" * 120
    with Client(store) as client:
        client.create_queue(name, transactional=False)
        client.send(name, b"x")
    with pytest.raises(FolderError, match="too long"):
        _export(store, to, name)
    assert len(_queued(store, name)) == 1


@given(st.sets(st.integers(1, 12)), st.integers(0, 12))
def test_a_reader_reaches_as_far_as_nothing_is_missing(serials: set[int], read: int) -> None:
    found = [Segment(Path("x"), "n", "q", serial, 1, 1) for serial in sorted(serials)]
    begin = read or min(serials, default=1)
    expected = begin - 1
    while expected + 1 in serials:
        expected += 1
    if read:
        expected = max(read, expected if read in serials else read)
        while expected + 1 in serials:
            expected += 1
    assert reach(found, {"q": read} if read else {}).get("q", 0) == (expected if serials or read else 0)


# ---- killed at any instant ------------------------------------------------------------------------


class _Instants:
    """Kills this process at the n-th instant: before and after each change of the folder, in the middle of a write,
    before each statement of the store. `between` is called at each instant at which the store is free."""

    def __init__(self, fatal: int, between: Callable[[], None] = lambda: None) -> None:
        self.left = fatal
        self.between = between
        self.store: Store | None = None
        for name in ("open", "write", "fsync", "rename", "link", "unlink", "mkdir", "close"):
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
            seen[segment.path.name] = content, _ids(segment.path)
        assert seen[segment.path.name][0] == content
    return [number for name in names for number in seen[name][1]]


@pytest.mark.timeout(300)
def test_killed_at_every_instant_while_messages_arrive(memory: Path) -> None:
    store, to, note, numbers = _make(memory / "store"), memory / "segments", memory / "accepted", memory / "numbers"
    _fill(store, 20)
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
                    _arrive(other, [number])
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
        assert not set(visible) & set(_queued(store)), f"instant {fatal}: exported and still there"
        if fatal % 2:  # else the next one finds things as this one has left them
            with Client(store) as client, Exporter(client, ["line1"], to):
                pass
            assert not [path for path in to.iterdir() if path.name.startswith(".")]
            visible = _check_visible(to, seen)
            queued = _queued(store)
            assert Counter(visible + queued) == Counter(accepted), f"instant {fatal}"
            if fatal % 11 == 0:
                assert sorted(_acknowledged(store)) == sorted(visible)
        fatal += 1
    print("instants:", fatal)
    assert fatal > 80
    _export(store, to)
    visible = _check_visible(to, seen)
    assert visible == sorted(map(int, note.read_text().split())), "each once, and in order"
    assert sorted(_acknowledged(store)) == visible
    assert _queued(store) == []


@pytest.mark.rule("B-098")
def test_each_step_is_durable_before_the_next(store: Path, to: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No kill shows it, only a power cut: nothing is recorded that is not synced, and a name is synced before it is
    said to be final."""
    _fill(store, 2)
    steps: list[str] = []

    def name_of(file: int) -> str:
        return Path(os.readlink(f"/proc/self/fd/{file}")).name  # noqa: PTH115

    with Client(store) as client, Exporter(client, ["line1"], to) as exporter:
        with client.queue("line1").receive_batch(0):  # what a first receive makes is not looked at
            pass
        sync, rename, save = os.fsync, os.rename, client.store.exports.save

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
        monkeypatch.setattr(os, "rename", noted_rename)
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


@pytest.mark.parametrize("state", ["recorded", "written", "renamed"])
def test_killed_at_every_instant_of_taking_up_what_a_killed_one_left(memory: Path, state: str) -> None:
    """recorded: the transaction is durable, the file hidden; written: it is not; renamed: only the record lags."""
    store, to = _make(memory / "store"), memory / "segments"
    ids = _fill(store, 30)
    _export(store, to, rows=20)
    more = _fill(store, 12, 31)

    def die() -> None:
        with Client(store) as client, Exporter(client, ["line1"], to) as exporter:

            def kill(*_: Any, **__: Any) -> None:
                os.kill(os.getpid(), signal.SIGKILL)

            if state == "written":
                client.store.messages.received = kill  # type: ignore[method-assign, assignment]
            elif state == "recorded":
                Folder.rename = kill  # type: ignore[method-assign]
            else:
                save = client.store.exports.save
                client.store.exports.save = (  # type: ignore[method-assign]
                    lambda export: save(export) if export.pending else kill()
                )
            list(exporter.run())

    assert _killed(die)
    assert len(segments(to)) == (3 if state == "renamed" else 2)
    fatal = 1
    while True:
        place = memory / f"at{fatal}"
        shutil.copytree(store, place / "store")
        shutil.copytree(to, place / "segments")

        def again(place: Path = place, fatal: int = fatal) -> None:
            with Client(place / "store") as client:
                _Instants(fatal).arm(client.store)
                with Exporter(client, ["line1"], place / "segments"):
                    pass

        killed = _killed(again)
        with Client(place / "store") as client, Exporter(client, ["line1"], place / "segments"):
            pass
        visible = _exported(place / "segments")
        assert visible + _queued(place / "store") == ids + more
        assert len(visible) == (30 if state == "written" else 42)
        assert not [path for path in (place / "segments").iterdir() if path.name.startswith(".")]
        shutil.rmtree(place)
        if not killed:
            break
        fatal += 1
    assert fatal > 10


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
        _arrive(self.clients[0].store, ids, expires=expires)
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
        taken = store.messages.begin_receive(store.queues.named("line1").identifier, count, self.now)
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
                client.store.messages.received(self.keys)
                outcomes_of(client).remove(self.keys, confirm.ACK_RECEIVE)
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
        assert (_exported(folder) if folder.exists() else []) == self.gone["exported"]
        with Store(self.folder / "store") as store:
            assert store.queues.named("line1").messages == len(self.waiting)
        everything = [*chain(*self.gone.values()), *self.waiting]
        assert sorted(everything) == list(range(1, self.sent + 1))


TestExportMachine = ExportMachine.TestCase
TestExportMachine.settings = settings(max_examples=25, stateful_step_count=20)


@pytest.mark.parametrize("another", [False, True])
def test_an_export_goes_on_when_the_serve_that_gave_it_messages_is_killed(
    store: Path, to: Path, monkeypatch: pytest.MonkeyPatch, another: bool
) -> None:
    _fill(store, 5)
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
    made = _export(store, to)
    for serve in serves[1:]:
        serve.stop()
    assert serves[0].process.returncode == -signal.SIGKILL
    assert [segment.messages for segment in made] == [5]
    assert (_exported(to), _queued(store)) == ([1, 2, 3, 4, 5], [])


# ---- what follows from the export of a message ------------------------------------------------------


@pytest.mark.rule("B-338")
def test_an_export_is_a_receipt(store: Path, to: Path) -> None:
    """FinalAcks leave, journals fill, the sender here learns it, and room is made under the quota."""
    ids = _fill(store, 3)
    with Client(store) as client:
        sent = client.send("line1", b"own", dead_letter=True, journal=True)
        client.store.queues.set_quota("line1", client.store.queues.named("line1").bytes)
        assert not client.store.queues.named("line1").has_room(1)
        _export(store, to)
        assert client.store.queues.named("line1").has_room(1)
        conclusion = client.state(sent.message_id)
        assert conclusion is not None
        assert conclusion.answer == "received"
        assert [message.body for message in client.queue("system$;journal").peek()] == [b"own"]
    assert _acknowledged(store) == ids


def test_dead_letters_can_be_exported(store: Path, to: Path) -> None:
    now = 1000
    with Client(store, clock=lambda: now) as client:
        client.send("plain", b"late", dead_letter=True, ttbr=5)
        now = 2000
        with client.store.transaction():
            assert outcomes_of(client).remove_over() == 1
    (made,) = _export(store, to, "system$;deadletter")
    assert made.segment.startswith("system$%3Bdeadletter-")
    (row,) = pq.read_table(to / made.segment, partitioning=None).to_pylist()
    assert (row["queue"], row["body"]) == ("system$;deadletter", b"late")
    assert row["message_class"] & 0x8000


def test_the_queue_managers_own_queues_are_refused(store: Path, to: Path) -> None:
    with pytest.raises(StoreError, match="not open to applications"):
        _export(store, to, "order_queue$")
    assert not to.exists()


def test_priorities_do_not_disturb_the_order_of_rows(store: Path, to: Path) -> None:
    with Client(store) as client:
        for priority in (3, 7, 0, 5):
            client.send("plain", b"%d" % priority, priority=priority)
    _export(store, to, "plain", rows=3)
    found = segments(to)
    bodies = [pq.read_table(segment.path, partitioning=None)["body"].to_pylist() for segment in found]
    assert bodies == [[b"3", b"7", b"5"], [b"0"]]
    assert [(segment.first_lookup_id, segment.last_lookup_id) for segment in found] == [(1, 4), (3, 3)]


def test_segments_are_bounded_by_bytes(store: Path, to: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_module, "SEGMENT_BYTES", 2500)
    monkeypatch.setattr(messages_module, "RECEIVE_BYTES", 1000)
    with Client(store) as client:
        for _ in range(10):
            client.send("line1", bytes(500))
    assert [made.messages for made in _export(store, to)] == [4, 4, 2]


@pytest.mark.parametrize("us", [4, 50, 80, 400])
def test_no_segment_holds_the_store_for_50_ms(store: Path, to: Path, monkeypatch: pytest.MonkeyPatch, us: int) -> None:
    """Whatever a message costs here, from the first segment on, by a clock that goes on in commits only."""
    seconds = 0.0
    held: list[float] = []
    monkeypatch.setattr(export_module, "time", SimpleNamespace(monotonic=lambda: seconds))
    _fill(store, 3000)
    with Client(store) as client, Exporter(client, ["line1"], to) as exporter:
        commit = client.access.commit

        def slow(asked: Any) -> Any:
            nonlocal seconds
            held.append(0.005 + len(asked.taken) * us / 1e6)  # a sync by itself
            seconds += held[-1]
            return commit(asked)

        monkeypatch.setattr(client.access, "commit", slow)
        made = [one.messages for one in exporter.run()]
    assert max(held) <= 0.05
    assert sum(made) == 3000
    assert max(made) >= min(1500, 0.03 / us * 1e6)  # nor are they smaller than that asks for


def test_an_export_ends_although_messages_go_on_arriving(store: Path, to: Path) -> None:
    _fill(store, 10)
    made = 0
    with Client(store) as client, Exporter(client, ["line1"], to, rows=4) as exporter:
        for segment in exporter.run():
            made += segment.messages
            _fill(store, 10, 1000 * segment.serial)
    assert made == 10


def test_a_queue_made_again_goes_on_where_the_one_before_ended(store: Path, to: Path) -> None:
    _fill(store, 1)
    _export(store, to)
    with Client(store) as client:
        client.delete_queue("line1")
        client.create_queue("Line1", transactional=True)
    _fill(store, 1, 2)
    (made,) = _export(store, to)
    assert (made.queue, made.serial) == ("line1", 2)
    assert _exported(to) == [1, 2]


def test_a_recorded_segment_of_a_deleted_queue_becomes_visible(store: Path, to: Path) -> None:
    ids = _fill(store, 2)
    _leave_pending(store, to)
    with Client(store) as client:
        client.delete_queue("line1")
    assert [(made.queue, made.recovered) for made in _export(store, to, "plain")] == [("line1", True)]
    assert _exported(to) == ids


def test_file_systems_that_lack_links_or_cannot_sync_folders_will_do(
    store: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of Hadoop and of cloud stores, when they are mounted."""
    ids = _fill(store, 2)
    real = os.fsync

    def unknown(*arguments: Any, **_: Any) -> None:
        if len(arguments) == 1 and not os.path.isdir(arguments[0]):  # noqa: PTH112
            return real(arguments[0])
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "link", unknown)
    with Client(store) as client:
        monkeypatch.setattr(os, "fsync", unknown)
        with Exporter(client, ["line1"], to) as exporter:
            assert len(list(exporter.run())) == 1
        monkeypatch.setattr(os, "fsync", real)
    assert _exported(to) == ids
    assert not [path for path in to.iterdir() if path.name.startswith(".")]


def test_old_segments_may_be_deleted(store: Path, to: Path) -> None:
    for number in (1, 2, 3):
        _fill(store, 1, number)
        _export(store, to)
        for segment in segments(to)[:-1] if number < 3 else segments(to):
            segment.path.unlink()
    _fill(store, 1, 4)
    assert [made.serial for made in _export(store, to)] == [4]


# ---- several at once ------------------------------------------------------------------------------


def test_one_exporter_at_a_time_works_on_a_queue(store: Path, to: Path, tmp_path: Path) -> None:
    ids = _fill(store, 4)
    _fill(store, 2, 100, "plain")
    with Client(store) as client, Exporter(client, ["line1"], to, rows=1) as exporter:
        running = exporter.run()
        next(running)
        for folder in (to, tmp_path / "other"):
            done = ordack("export", "line1", "--store", store, "--to", folder)
            assert done.returncode == 1
            assert "another `ordack export` is working on the queue line1" in done.stderr
        assert not (tmp_path / "other").exists()
        assert [made["messages"] for made in as_json("export", "plain", "--store", store, "--to", to)] == [2]
        list(running)
    assert [number for number in _exported(to) if number < 100] == ids
    assert ordack("export", "line1", "--store", store, "--to", to).returncode == 0


def test_exporters_that_make_the_folder_at_the_same_time_agree(store: Path, to: Path) -> None:
    _fill(store, 3)
    _fill(store, 3, 11, "plain")
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "ordack", "export", queue, "--store", store, "--to", to],
            env=ENVIRONMENT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for queue in ("line1", "plain")
    ]
    for process in running:
        _, errors = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, errors) == (0, "")
    assert _exported(to) == [1, 2, 3, 11, 12, 13]
    assert not [path for path in to.iterdir() if path.name.startswith(".")]


# ---- folders that cannot be used --------------------------------------------------------------------


def _refused(store: Path, to: Path, text: str, *options: str) -> None:
    """The export says this, and the messages stay."""
    with Store(store) as opened:
        before = opened.queues.named("line1").messages
    done = ordack("export", "line1", "--store", store, "--to", to, *options)
    assert done.returncode == 1
    assert text in done.stderr, done.stderr
    with Store(store) as opened:
        assert opened.queues.named("line1").messages == before


def test_the_folder_of_another_queue_manager_is_refused(store: Path, to: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    with Client(other, create=True) as client:
        client.create_queue("line1", transactional=False)
        client.send("line1", b"x")
        owner = guids.guid_text(client.store.guid)
    _export(other, to)
    _fill(store, 1)
    _refused(store, to, f"holds segments of the queue manager {owner}")
    assert len(segments(to)) == 1


def test_a_new_identity_needs_a_new_folder_but_finishes_the_old_one(store: Path, to: Path) -> None:
    _fill(store, 2)
    _leave_pending(store, to)
    with Store(store) as opened:
        opened.renew_identity()
    _fill(store, 1, 3)
    _refused(store, to, "was given a new identifier since: export to a new folder")
    assert _exported(to) == [1, 2]


@pytest.mark.parametrize(
    ("content", "text"),
    [(b"", "is damaged"), (b"[]", "is damaged"), (b'{"version": 2}', "version 2"), (b"\xff", "is damaged")],
)
def test_a_folder_whose_marker_cannot_be_read_is_refused(store: Path, to: Path, content: bytes, text: str) -> None:
    to.mkdir()
    (to / MARKER).write_bytes(content)
    _fill(store, 1)
    _refused(store, to, text)


def test_segments_without_a_marker_are_refused(store: Path, to: Path) -> None:
    _fill(store, 1)
    _export(store, to)
    (to / MARKER).unlink()
    _fill(store, 1, 2)
    _refused(store, to, "that says whose they are")


def test_a_folder_that_is_none_is_refused(store: Path, to: Path) -> None:
    to.write_text("a file")
    _fill(store, 1)
    _refused(store, to, f"cannot open the folder {to}: Not a directory")
    _refused(store, Path("/proc/self"), "holds other files")


def test_a_folder_of_other_files_is_refused(store: Path, to: Path) -> None:
    to.mkdir()
    (to / "thesis.txt").touch()
    _fill(store, 1)
    _refused(store, to, f"{to} holds other files, such as thesis.txt, and no {MARKER} of an export")
    assert [path.name for path in to.iterdir()] == ["thesis.txt"]
    (to / "thesis.txt").unlink()
    (to / "lost+found").mkdir()  # the root of a new file system
    _export(store, to)
    (to / "notes.txt").touch()
    _fill(store, 1, 2)
    _export(store, to)
    assert _exported(to) == [1, 2], "what comes into a folder of ours does not matter"


@pytest.mark.parametrize("call", ["open", "write", "fsync"])
def test_a_full_or_failing_folder_loses_nothing(
    store: Path, to: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    ids = _fill(store, 5)
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
    assert _exported(to) == ids[:2]
    assert _queued(store) == ids[2:]
    assert _acknowledged(store) == ids[:2]
    if call != "fsync":
        assert not [path for path in to.iterdir() if path.name.startswith(".")]
    _export(store, to)
    assert _exported(to) == ids


@pytest.mark.parametrize("reason", ["quota", "disk"])
def test_while_the_folder_is_full_messages_stay_in_their_queue(
    store: Path, to: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    ids = _fill(store, 9)
    told: list[str] = []
    stopped: list[bool] = []
    writing = Folder.write

    def look(_: float) -> None:
        """The folder is full, the first time for good, the second until it has room."""
        assert _exported(to) == ids[:4]
        assert _queued(store) == ids[4:]
        assert not [path for path in to.iterdir() if path.name.startswith(".")]
        if len(told) == 1:
            stopped.append(True)
        elif reason == "disk":
            monkeypatch.setattr(Folder, "write", writing)
        else:  # as prune does, which keeps the newest
            segments(to)[0].path.unlink()

    def full(self: Folder, name: str, content: Any) -> None:
        writing(self, name, bytes(content)[:10])
        with self._errors("write to the folder"):
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    # Of this module alone: threads of others sleep, too.
    monkeypatch.setattr(export_module, "time", SimpleNamespace(monotonic=time.monotonic, sleep=look))
    monkeypatch.setattr(export_module, "FULL_STOPS", 1)
    quota = 10 if reason == "quota" else None
    with Client(store) as client, Exporter(client, ["line1"], to, rows=2, quota=quota, tell=told.append) as exporter:
        running = exporter.follow(lambda: bool(stopped), age=0)
        assert [next(running).messages for _ in range(2)] == [2, 2]
        if reason == "disk":
            monkeypatch.setattr(Folder, "write", full)
        assert list(running) == []
        assert len(told) == 1
        assert ("--quota is 10" if reason == "quota" else "Disk quota exceeded") in told[0]
        assert told[0].endswith("Until there is room, nothing is taken from the queues")
        stopped.clear()
        assert next(exporter.follow(lambda: bool(stopped), age=0)).messages == 2
        assert told[2:] == [f"{to} has room again: the export goes on"]
    assert _queued(store) == ids[6:]


def test_a_commit_of_which_nobody_heard_is_believed(store: Path, to: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception after the commit, such as Ctrl-C: the file must stay, its messages are nowhere else."""
    ids = _fill(store, 3)
    steps: list[str] = []
    with Client(store) as client, Exporter(client, ["line1"], to) as exporter:
        real = client.store.transaction

        @contextlib.contextmanager
        def interrupted() -> Iterator[None]:
            outermost = client.store._database.connection.get_autocommit()
            with real():
                yield
            if outermost and not steps and client.store.exports.all("line1"):
                steps.append("interrupted")
                raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(client.store, "transaction", interrupted)
            with pytest.raises(KeyboardInterrupt):
                list(exporter.run())
        assert _exported(to) == []
        _arrive(client.store, [4])
        with pytest.raises(StoreError, match="recorded already: begin the export again"):
            list(exporter.run())
    assert [made.recovered for made in _export(store, to)] == [True, False]
    assert _exported(to) == [*ids, 4]


def _leave_pending(store: Path, to: Path) -> Path:
    """A segment that is recorded and not visible; its hidden file."""
    real = os.rename

    def fail(*names: Any, **folders: Any) -> None:
        if folders:  # else it is the store's
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(*names)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "rename", fail)
        with pytest.raises(FolderError, match="no longer in the queue"):
            _export(store, to)
    (path,) = [path for path in to.iterdir() if path.name.endswith(".parquet.new")]
    return path


def test_a_recorded_segment_goes_with_its_folder(store: Path, to: Path, tmp_path: Path) -> None:
    ids = _fill(store, 3)
    _leave_pending(store, to)
    to.rename(tmp_path / "moved")
    _refused(store, to, "was it moved?")
    _refused(
        store,
        tmp_path / "other",
        "3 messages of the queue line1, lookup ids 1 to 3: in the segment "
        f"line1-0000000001-1-3.parquet, which has not become visible: its folder was {to}, and this is another",
    )
    assert as_json("export", "line1", "--store", store, "--to", tmp_path / "moved")[0]["recovered"] is True
    assert _exported(tmp_path / "moved") == ids


def test_a_recorded_segment_that_is_lost_is_told_and_given_up_when_asked(store: Path, to: Path, tmp_path: Path) -> None:
    _fill(store, 3)
    _leave_pending(store, to).unlink()
    _fill(store, 1, 4)
    _refused(
        store,
        to,
        "3 messages of the queue line1, lookup ids 1 to 3: in the segment "
        "line1-0000000001-1-3.parquet, which has not become visible: the file",
    )
    _refused(store, tmp_path / "other", "its folder was")
    done = ordack("export", "line1", "--store", store, "--to", to, "--anew")
    assert done.returncode == 0
    assert "given up: 3 messages of the queue line1, lookup ids 1 to 3" in done.stderr
    assert [segment.serial for segment in segments(to)] == [1, 2], "readers that wait for the next one go on"
    assert _exported(to) == [4]


def test_a_folder_that_is_gone_can_be_replaced_when_asked_and_may_come_back(
    store: Path, to: Path, tmp_path: Path
) -> None:
    _fill(store, 3)
    _leave_pending(store, to)
    to.rename(tmp_path / "away")
    _fill(store, 1, 4)
    _refused(store, to, "that folder is not there any more")
    assert not to.exists(), "where it is looked for, nothing is made"
    done = ordack("export", "line1", "--store", store, "--to", to, "--anew")
    assert (done.returncode, "given up: 3 messages" in done.stderr) == (0, True)
    assert _exported(to) == [4]
    _fill(store, 1, 5)
    assert [made.serial for made in _export(store, to)] == [2]
    _fill(store, 1, 6)
    _export(store, tmp_path / "away")
    assert _exported(tmp_path / "away") == [1, 2, 3, 6], "it had not been lost"


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(bytes(path.stat().st_size)),
        lambda path: pq.write_table(pq.read_table(path, partitioning=None), path, compression="none"),
        lambda path: (path.unlink(), path.mkdir()),
    ],
    ids=["short", "zeros", "another", "folder"],
)
def test_an_unreadable_recorded_file_is_told(store: Path, to: Path, damage: Callable[[Path], Any]) -> None:
    _fill(store, 3)
    path = _leave_pending(store, to)
    damage(path)
    _refused(store, to, f"the file {path.name} in {to} is damaged")
    assert path.exists()


def test_an_unrecorded_file_is_removed_whatever_is_in_it(store: Path, to: Path) -> None:
    _fill(store, 1)
    _export(store, to)
    garbage = to / hidden(file_name("line1", 2, 7, 9))
    foreign = to / hidden(file_name("plain", 1, 7, 9))
    for path in (garbage, foreign):
        path.write_bytes(b"garbage")
    _export(store, to)
    assert (garbage.exists(), foreign.exists()) == (False, True), "another queue's may be in the making"
    garbage.mkdir()
    _fill(store, 1, 2)
    _refused(store, to, f"cannot delete {garbage.name} in the folder")


def test_a_folder_that_is_moved_during_the_export_gets_nothing_more(store: Path, to: Path, tmp_path: Path) -> None:
    ids = _fill(store, 4)
    with Client(store) as client, Exporter(client, ["line1"], to, rows=2) as exporter:
        running = exporter.run()
        next(running)
        to.rename(tmp_path / "moved")
        to.mkdir()
        with pytest.raises(FolderError, match="was moved, deleted or replaced"):
            next(running)
    assert list(to.iterdir()) == []
    assert _queued(store) == ids[2:]


def test_a_folder_moved_after_the_commit_still_gets_its_segment(
    store: Path, to: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = _fill(store, 2)
    with Client(store) as client, Exporter(client, ["line1"], to) as exporter:
        real = exporter._folder.rename

        def move(old: str, new: str) -> None:
            to.rename(tmp_path / "moved")
            real(old, new)

        monkeypatch.setattr(exporter._folder, "rename", move)
        list(exporter.run())
    assert _exported(tmp_path / "moved") == ids


def test_a_restored_store_does_not_go_on_in_the_folder(store: Path, to: Path, tmp_path: Path) -> None:
    ids = _fill(store, 3)
    backup = tmp_path / "backup"
    shutil.copytree(store, backup)
    _export(store, to, rows=2)
    _refused(backup, to, "has segment 2 of the queue line1, and this store knows of none: the store was restored")
    assert _exported(to) == ids
    assert [made.messages for made in _export(backup, tmp_path / "new")] == [3]


# ---- the command ----------------------------------------------------------------------------------


def test_follow_exports_what_comes_until_sigterm(store: Path, to: Path) -> None:
    """The lines are the synchronisation: each is printed when its segment is visible."""
    ids = _fill(store, 2)
    command = [
        sys.executable,
        "-m",
        "ordack",
        "export",
        "line1",
        "plain",
        "--store",
        store,
        "--to",
        to,
        "--follow",
        "--age",
        "0",
        "--json",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        assert process.stdout
        assert json.loads(process.stdout.readline())["messages"] == 2
        for number in (3, 4):
            ids += _fill(store, 1, number)
            assert json.loads(process.stdout.readline())["serial"] == number - 1
        _fill(store, 1, 9, "plain")
        assert json.loads(process.stdout.readline())["queue"] == "plain"
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, output, errors) == (0, "", "")
    assert _exported(to) == [*ids, 9]
    assert not [path for path in to.iterdir() if path.name.startswith(".")]


def test_follow_waits_for_more_but_not_for_a_full_segment(store: Path, to: Path) -> None:
    _fill(store, 5)
    stopped: list[bool] = []
    with Client(store) as client, Exporter(client, ["line1"], to, rows=2) as exporter:
        running = exporter.follow(lambda: bool(stopped), age=1e9)
        assert [next(running).messages, next(running).messages] == [2, 2]
        assert _queued(store) == [5]
        stopped.append(True)
        assert list(running) == []
    assert _queued(store) == [5]


def test_what_a_segment_had_no_room_for_has_waited_too(store: Path, to: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = 0.0

    def sleep(duration: float) -> None:
        nonlocal seconds
        if seconds < 0.5 <= seconds + duration:
            _fill(store, 2, 4)
        seconds += duration

    monkeypatch.setattr(export_module, "LEAST_ROWS", 4)
    monkeypatch.setattr(export_module, "time", SimpleNamespace(monotonic=lambda: seconds, sleep=sleep))
    _fill(store, 3)
    with Client(store) as client, Exporter(client, ["line1"], to, rows=4) as exporter:
        running = exporter.follow(lambda: False, age=1.0)
        assert next(running).messages == 4
        assert 0.5 <= seconds < 0.6
        assert next(running).messages == 1
        assert 1.0 <= seconds < 1.1


def test_a_stop_while_following_waits_for_one_segment_only(store: Path, to: Path) -> None:
    stopped: list[bool] = []
    for queue in ("line1", "plain"):
        _fill(store, 2, queue=queue)
    with Client(store) as client, Exporter(client, ["line1", "plain"], to, rows=2) as exporter:
        running = exporter.follow(lambda: bool(stopped))
        next(running)
        stopped.append(True)
        assert list(running) == []
    assert len(_queued(store, "plain")) == 2


def test_follow_ends_in_words_when_its_queue_is_deleted(store: Path, to: Path) -> None:
    _fill(store, 1)
    with Client(store) as client, Exporter(client, ["line1"], to) as exporter:
        running = exporter.follow(lambda: False, age=0)
        next(running)
        client.delete_queue("line1")
        with pytest.raises(StoreError, match="the queue line1 was deleted"):
            next(running)


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["none"], 1, "there is no queue none"),
        (["a+b"], 2, "'+' is not allowed"),
        (["line1", "--rows", "0"], 2, "--rows"),
        (["line1", "--age", "-1"], 2, "--age"),
        (["line1", "--to", ""], 2, "it has no name"),
        ([], 2, "QUEUE"),
    ],
)
def test_wrong_usage(store: Path, to: Path, arguments: list[str], status: int, text: str) -> None:
    done = ordack("export", "--store", store, "--to", to, *arguments)
    assert done.returncode == status
    assert text in done.stderr
    assert not to.exists()


# ---- a disk that fails while a transaction is made durable ------------------------------------------


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    with faulty_disk() as faulty:
        yield faulty


@pytest.mark.parametrize("fail", ["sync", "sync-once", "write", "write-once"])
@pytest.mark.parametrize("cut", [False, True], ids=["again", "power cut"])
@pytest.mark.rule("B-098")
def test_an_export_that_fails_at_any_commit_says_what_is_true_and_can_be_done_again(
    disk: FaultyDisk, tmp_path: Path, fail: str, cut: bool
) -> None:
    doubts = 0
    for spare in range(0, 500, 1 if fail.startswith("sync") else 5):
        place = tmp_path / str(spare)
        store, to = place / "store", place / "to"
        with Client(store, create=True) as client:
            client.create_queue("line1", transactional=True)
        ids = _fill(store, 4)
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
                        assert _exported(to) + _queued(store) == ids, (spare, error)
            disk.fail, disk.spare = "", 0
            if not cut and fail.endswith("-once"):
                list(exporter.run())
            exporter.close()
        made_now = _export(store, to)
        assert _exported(to) == _acknowledged(store) == ids, (spare, error)
        assert _queued(store) == []
        if disk.failed == failed:
            break
        assert not error or unknown or not any(made.recovered for made in made_now), "it was not said that it is there"
    assert disk.failed == failed, "each commit has failed once"
    assert bool(doubts) == (not fail.endswith("-once"))
