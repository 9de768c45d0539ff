"""`ordack table export`: what is in a segment, what follows from it, and the command."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import packet_build
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mqqb import build, connection, guids, headers, parse
from mqqb.names import QueueName
from ordack.client import Client
from ordack.pipeline import export as export_module
from ordack.pipeline.columns import Columns
from ordack.pipeline.export import Exporter
from ordack.pipeline.segments import SCHEMA, FolderError, file_name, hidden, parse_name, segments
from ordack.store import Store, StoreError
from ordack.store import messages as messages_module
from ordack.store.files import SYSTEM_QUEUES
from ordack.store.messages import NewMessage, StoredMessage

from tests.pipeline.exports import (
    HERE,
    PEER,
    acknowledged_ids,
    exported_ids,
    fill,
    queued_ids,
    run_export,
    store_messages,
)
from tests.support.beside import outcomes_of
from tests.support.command import DEADLINE_S, ENVIRONMENT, as_json, ordack
from tests.support.layouts import acknowledgments, user_messages


def _guid(value: bytes | None) -> str | None:
    return None if value is None else guids.guid_text(bytes(value))


def _text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _time(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _expected(stored: StoredMessage) -> dict[str, Any]:
    """The row by the parser, field by field (wire.md 2)."""
    found = parse.parse(stored.packet)
    assert isinstance(found, (headers.UserMessage, connection.OrderAck, headers.FinalAck))
    message = found if isinstance(found, headers.UserMessage) else found.message
    user, properties, transaction = message.user, message.properties, message.transaction
    source, address = bytes(user.source_queue_manager), bytes(user.queue_manager_address)
    hosts = {2: source, 3: address}
    aq, rq = user.flags >> 13 & 7, user.flags >> 16 & 7
    if rq == 4:
        admin = user.admin_queue
        hosts[4] = hosts.get(aq, address)
        if isinstance(admin, headers.PrivateQueueFormatName):
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
            st.one_of(user_messages().map(packet_build.build), acknowledgments()).map(bytes),
            st.integers(0, 2**32),
            st.booleans(),
        ),
        min_size=1,
        max_size=5,
    )
)
@settings(max_examples=60)
def test_every_property_of_a_message_has_its_column(found: list[tuple[bytes, int, bool]]) -> None:
    messages = [
        StoredMessage(7, 3 * index + 1, arrived, int(in_doubt), packet)
        for index, (packet, arrived, in_doubt) in enumerate(found)
    ]
    messages += [message._replace(packet=packet) for message in messages for packet in _alike(message.packet)]
    rows = COLUMNS.table("line1", messages).to_pylist()
    assert rows == [_expected(message) for message in messages]


def test_a_damaged_message_is_named_and_stays(store: Path, to: Path) -> None:
    with Store(store) as opened:
        store_messages(opened, [1])
        good = build.user_message(PEER, 2, HERE, b"2")
        opened.messages.add([NewMessage(opened.queues.named("line1").identifier, 7, good[:-4])])
    with Client(store) as client, Exporter(client, ["line1"], to) as exporter, Store(store) as other:
        with pytest.raises(StoreError, match="lookup id 2 is damaged"):
            list(exporter.run())
        assert len(other.messages.peek(other.queues.named("line1").identifier, 9)) == 2, (
            "available at once, not when the exporter ends"
        )


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


def test_export_refuses_queue_name_too_long_for_a_file(store: Path, to: Path) -> None:
    name = "/" * 120
    with Client(store) as client:
        client.create_queue(name, transactional=False)
        client.send(name, b"x")
    with pytest.raises(FolderError, match="too long"):
        run_export(store, to, name)
    assert len(queued_ids(store, name)) == 1


@pytest.mark.rule("B-338")
def test_an_export_is_a_receipt(store: Path, to: Path) -> None:
    """FinalAcks leave, journals fill, the sender here learns it, and room is made under the quota."""
    ids = fill(store, 3)
    with Client(store) as client:
        sent = client.send("line1", b"own", dead_letter=True, journal=True)
        client.store.queues.set_quota("line1", client.store.queues.named("line1").bytes)
        assert not client.store.queues.named("line1").has_room(1)
        run_export(store, to)
        assert client.store.queues.named("line1").has_room(1)
        conclusion = client.state(sent.message_id)
        assert conclusion is not None
        assert conclusion.answer == "received"
        assert [message.body for message in client.queue("system$;journal").peek()] == [b"own"]
    assert acknowledged_ids(store) == ids


def test_dead_letters_can_be_exported(store: Path, to: Path) -> None:
    now = 1_800_000_000
    with Client(store, clock=lambda: now) as client:
        client.send("plain", b"late", dead_letter=True, ttbr=5)
        now += 1000
        with client.store.transaction():
            assert outcomes_of(client).remove_over() == 1
    (made,) = run_export(store, to, "system$;deadletter")
    assert made.segment.startswith("system$%3Bdeadletter-")
    (row,) = pq.read_table(to / made.segment, partitioning=None).to_pylist()
    assert (row["queue"], row["body"]) == ("system$;deadletter", b"late")
    assert row["message_class"] & 0x8000


def test_the_queue_managers_own_queues_are_refused(store: Path, to: Path) -> None:
    with pytest.raises(StoreError, match="not open to applications"):
        run_export(store, to, "order_queue$")
    assert not to.exists()


def test_priorities_do_not_disturb_the_order_of_rows(store: Path, to: Path) -> None:
    with Client(store) as client:
        for priority in (3, 7, 0, 5):
            client.send("plain", b"%d" % priority, priority=priority)
    run_export(store, to, "plain", rows=3)
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
    assert [made.messages for made in run_export(store, to)] == [4, 4, 2]


@pytest.mark.parametrize("us", [4, 50, 80, 400])
def test_no_segment_holds_the_store_for_50_ms(store: Path, to: Path, monkeypatch: pytest.MonkeyPatch, us: int) -> None:
    """Whatever a message costs here, from the first segment on, by a clock that goes on in commits only."""
    seconds = 0.0
    held: list[float] = []
    monkeypatch.setattr(export_module, "time", SimpleNamespace(monotonic=lambda: seconds))
    fill(store, 3000)
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


def test_one_exporter_at_a_time_works_on_a_queue(store: Path, to: Path, tmp_path: Path) -> None:
    ids = fill(store, 4)
    fill(store, 2, 100, "plain")
    with Client(store) as client, Exporter(client, ["line1"], to, rows=1) as exporter:
        running = exporter.run()
        next(running)
        for folder in (to, tmp_path / "other"):
            done = ordack("table", "export", "line1", "--store", store, "--to", folder)
            assert done.returncode == 1
            assert "another `ordack table export` runs on the queue line1" in done.stderr
        assert not (tmp_path / "other").exists()
        assert [made["messages"] for made in as_json("table", "export", "plain", "--store", store, "--to", to)] == [2]
        list(running)
    assert [number for number in exported_ids(to) if number < 100] == ids
    assert ordack("table", "export", "line1", "--store", store, "--to", to).returncode == 0


def test_export_follow_runs_until_sigterm(store: Path, to: Path) -> None:
    """The lines are the synchronisation: each is printed when its segment is visible."""
    ids = fill(store, 2)
    command = [
        sys.executable,
        "-m",
        "ordack",
        *f"table export line1 plain --store {store} --to {to} --follow --age 0 --json".split(),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        assert process.stdout
        assert json.loads(process.stdout.readline())["messages"] == 2
        for number in (3, 4):
            ids += fill(store, 1, number)
            assert json.loads(process.stdout.readline())["serial"] == number - 1
        fill(store, 1, 9, "plain")
        assert json.loads(process.stdout.readline())["queue"] == "plain"
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, output, errors) == (0, "", "")
    assert exported_ids(to) == [*ids, 9]
    assert not [path for path in to.iterdir() if path.name.startswith(".")]


def test_follow_waits_for_more_but_not_for_a_full_segment(store: Path, to: Path) -> None:
    fill(store, 5)
    stopped: list[bool] = []
    with Client(store) as client, Exporter(client, ["line1"], to, rows=2) as exporter:
        running = exporter.follow(lambda: bool(stopped), age=1e9)
        assert [next(running).messages, next(running).messages] == [2, 2]
        assert queued_ids(store) == [5]
        stopped.append(True)
        assert list(running) == []
    assert queued_ids(store) == [5]


def test_follow_ends_in_words_when_its_queue_is_deleted(store: Path, to: Path) -> None:
    fill(store, 1)
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
    done = ordack("table", "export", "--store", store, "--to", to, *arguments)
    assert done.returncode == status
    assert text in done.stderr
    assert not to.exists()
