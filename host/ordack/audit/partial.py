"""What one task of an audit has found out about its connections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from mqqb.guid_names import PrivateQueueFormatNameId
from mqqb.guids import format_name, guid_text
from numpy.typing import NDArray

from ordack.audit.result import StreamKey

Structure = NDArray[Any]


def host_of(end: str) -> str:
    """The address of an end of a connection."""
    return end.rpartition(":")[0]


@dataclass(frozen=True, slots=True)
class StreamName:
    """What names a stream in every task: GUID of the source, queue as (selector, bytes), GUID of its host or b"",
    hops."""

    source: bytes
    queue: tuple[int, bytes]
    host: bytes
    hops: int

    def key(self, text: str) -> StreamKey:
        """text: of the queue."""
        if self.host:  # DQ 3: a number on a host
            queue = PrivateQueueFormatNameId(int.from_bytes(self.queue[1][:4], "little"))
            text = format_name(queue, self.host)
        return StreamKey(guid_text(self.source), text, self.hops)


@dataclass(slots=True)
class Partial:
    """What a task has found out. flows, connections, findings, latencies: structures of mqqb_audit.h.

    sequences: those that are kept, by flow and in the order in which they follow on one another. latencies: by flow.

    names, ends: of flows and connections; host_pairs: of connections, a number for their two hosts. guids: by code.
    missed: by code, how often something of that queue manager was missed; pair_missed: the same by hosts, two for each
    of pairs. strays: (GUID or b"", ordinal, time stamp) of acknowledgements of sequences that this task has not seen.
    """

    flows: Structure
    sequences: Structure
    latencies: Structure
    connections: Structure
    findings: Structure
    names: list[StreamName]
    texts: dict[tuple[int, bytes], str]
    ends: list[tuple[tuple[str, str], bool]]
    host_pairs: NDArray[np.uint64]
    guids: list[bytes]
    missed: NDArray[np.uint32]
    pairs: list[tuple[str, str]]
    pair_missed: NDArray[np.uint32]
    strays: set[tuple[bytes, int, int]]
    kind_counts: NDArray[np.int64]
    packets: int
    holes: int
    malformed: int
    frames: int
    unread: int
    last_time: int
    paths: list[str]
    damages: list[tuple[str, str]]
    gaps: list[tuple[str, str]]

    def stream(self, index: int) -> StreamKey:
        """The stream of a flow."""
        name = self.names[index]
        return name.key(self.texts[name.queue])

    def missed_sources(self) -> set[bytes]:
        """GUIDs of the queue managers of which something was missed."""
        return {self.guids[code] for code in np.flatnonzero(self.missed).tolist()}

    def missed_pairs(self) -> set[tuple[str, str]]:
        """Hosts between which something was missed."""
        return {self.pairs[place // 2] for place in np.flatnonzero(self.pair_missed).tolist()}
