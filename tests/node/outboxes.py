"""Outboxes in tests: messages that arrive, changes of state, errors of the file system."""

from __future__ import annotations

import errno
from array import array
from collections.abc import Callable
from typing import Any

import power
from mqqb import confirm
from ordack.node.storage import log, sources

PEER = bytes(range(16, 32))


def record_of(journal: int = 0) -> array[int]:
    return confirm.new(1, power.CONFIRMATION, journal)


def failing(step: str, part: int = 0) -> Callable[[Any, str, bytes], None]:
    """A hook that makes one kind of change fail, an append after `part` of its bytes."""

    def before(disk: Any, what: str, data: bytes) -> None:
        if what == step:
            if step == "append":
                disk.tail.data += data[:part]
            raise OSError(errno.ENOSPC, "no space")

    return before


def change(box: Any, handle: Any, state: str) -> None:
    handle.record[confirm.STATE] = ord(state)
    box.change([handle])


def come(box: Any, body: bytes, name: str = "commands", guid: bytes = PEER) -> Any:
    """A message arrives; not durable yet."""
    source = box.source(guid, name)
    record = record_of()
    record[confirm.STATE] = log.RECEIVED
    handle = sources.Arrival(box.next_arrival, record, source)
    for i, word in enumerate((1, 77, source.record[2] + 1, 0)):
        source.record[i] = word
    box.arrive(handle, source, body)
    return handle


def arrived(box: Any) -> list[tuple[str, bytes]]:
    return [(handle.source.name, bytes(box.log.load(handle))) for handle in box.restored_arrivals]
