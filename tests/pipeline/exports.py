"""Stores that are exported, for tests: filled as a board does it, and read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from mqqb import build, core, headers, parse
from mqqb.names import DirectQueueFormatName
from ordack.client import Client
from ordack.pipeline.export import Exporter
from ordack.pipeline.segments import segments
from ordack.store import Store
from ordack.store.messages import DIRECT, FINAL_ACK, NewMessage

PEER = b"p" * 16


HERE = DirectQueueFormatName("TCP:10.0.0.5\\private$\\line1")


MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # a kill needs no disk, and a disk is slow


def make_store(folder: Path) -> Path:
    with Client(folder, create=True) as client:
        client.create_queue("line1", transactional=True)
        client.create_queue("plain", transactional=False)
    return folder


def fill(store: Path, count: int, first: int = 1, queue: str = "line1") -> list[int]:
    """Messages from another machine that want a FinalAck when they are received; their MessageIDs."""
    ids = list(range(first, first + count))
    with Client(store) as client:
        store_messages(client.store, ids, queue)
    return ids


def store_messages(opened: Store, ids: list[int], queue: str = "line1", **columns: Any) -> None:
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


def run_export(store: Path, to: Path, *queues: str, **options: Any) -> list[Any]:
    with Client(store) as client, Exporter(client, queues or ["line1"], to, **options) as exporter:
        return list(exporter.run())


def exported_ids(to: Path) -> list[int]:
    """MessageIDs in the visible segments, in order."""
    return [number for segment in segments(to) for number in ids_of(segment.path)]


def ids_of(path: Path) -> list[int]:
    found: list[int] = pq.read_table(path, columns=["message_id"], partitioning=None)["message_id"].to_pylist()
    return found


def queued_ids(store: Path, queue: str = "line1") -> list[int]:
    """MessageIDs in a queue, in its order."""
    with Store(store) as opened:
        found = opened.messages.peek(opened.queues.named(queue).identifier, sys.maxsize)
    return [int.from_bytes(message.packet[56:60], "little") for message in found]  # wire.md 2.2


def acknowledged_ids(store: Path) -> list[int]:
    """MessageIDs of which a FinalAck waits to leave."""
    with Store(store) as opened:
        found = [parse.parse(bytes(opened.outgoing.packet(entry.key)[0])) for entry in opened.outgoing.messages()]
    assert all(isinstance(packet, headers.FinalAck) for packet in found)
    return [packet.body.message_id for packet in found if isinstance(packet, headers.FinalAck)]
