"""What one task of an audit has found out about its connections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from mqqb.guid_names import PrivateQueueFormatNameId
from mqqb.guids import format_name, guid_text
from numpy.typing import NDArray

from ordack.audit.result import StreamKey
from ordack.capture.columnar import QueueName
from ordack.capture.reading import end_text

Structure = NDArray[Any]


def queue_text(queue: QueueName, host: bytes) -> str:
    """The destination of a stream. host: GUID of its queue manager, or b"" if the name says which."""
    if host:  # DQ 3: a number on a host
        return format_name(PrivateQueueFormatNameId(int.from_bytes(queue.raw[:4], "little")), host)
    return queue.text


@dataclass(slots=True)
class Partial:
    """What a task has found out. flows, connections, findings, latencies: structures of mqqb_audit.h.

    sequences: those that are kept, by flow and in the order in which they follow on one another. latencies: by flow.

    ends: as of Decoder.ends; host_pairs: of connections, a number for their two hosts. guids: by code, of none
    b""; queues: by code, those of flows. missed: by code, how often something of that queue manager was missed;
    pair_missed: the same by hosts, two for each of pairs. strays: (GUID or b"", ordinal, time stamp) of
    acknowledgements of sequences that this task has not seen. forgotten: connections that are not among these any more.
    foreign: connections that never spoke the protocol.
    """

    flows: Structure
    sequences: Structure
    latencies: Structure
    connections: Structure
    findings: Structure
    ends: NDArray[np.uint32]
    host_pairs: NDArray[np.uint64]
    guids: list[bytes]
    queues: dict[int, QueueName]
    missed: NDArray[np.uint32]
    forgotten: int
    pairs: list[tuple[bytes, bytes]]
    pair_missed: NDArray[np.uint32]
    strays: set[tuple[bytes, int, int]]
    kind_counts: NDArray[np.int64]
    packets: int
    holes: int
    malformed: int
    foreign: int
    frames: int
    unread: int
    last_time: int
    paths: list[str]
    damages: list[tuple[str, str]]
    gaps: list[tuple[str, str]]

    def stream(self, index: int) -> StreamKey:
        """The stream of a flow."""
        source, destination, address, hops = self.flows["key"][index].tolist()
        text = queue_text(self.queues[destination], self.guids[address])
        return StreamKey(guid_text(self.guids[source]), text, hops)

    def ends_of(self, connection: int) -> tuple[str, str]:
        """Addresses and ports."""
        one, other = self.ends[connection]
        return end_text(one.tobytes()), end_text(other.tobytes())

    def missed_sources(self) -> set[bytes]:
        """GUIDs of the queue managers of which something was missed."""
        return {self.guids[code] for code in np.flatnonzero(self.missed).tolist()}

    def missed_pairs(self) -> set[tuple[bytes, bytes]]:
        """Hosts between which something was missed."""
        return {self.pairs[place // 2] for place in np.flatnonzero(self.pair_missed).tolist()}
