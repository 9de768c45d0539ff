"""What one task of an audit has found out: tables of the C core, and reports of streams and senders."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from mqqb.guids import format_name, guid_text
from mqqb.headers import PrivateQueueFormatNameId
from numpy.typing import NDArray

from ordack.audit.result import (
    KINDS,
    OUTCOMES,
    REJECTS,
    SenderReport,
    SequenceId,
    SequenceReport,
    StreamKey,
    StreamReport,
)
from ordack.capture.columnar import PacketQueue
from ordack.capture.reading import end_text

COUNTS = ("messages", "first_transmissions", "resends", "order_acked", "final_acked", "unsettled")

Structure = NDArray[Any]


@dataclass(slots=True)
class Partial:
    """What a task has found out. flows, connections, findings: structures of mqqb_audit.h.

    sequences: those that are kept, by flow and in the order in which they follow on one another.

    ends: as of Decoder.ends. guids: by code, of none b""; queues: by code, those of flows. missed: by code, how often
    something of that queue manager was missed; pair_missed: the same by hosts, two for each of pairs. strays: (GUID or
    b"", ordinal, time stamp) of acknowledgements of sequences that this task has not seen. forgotten: connections that
    are not among these any more. foreign: connections that never spoke the protocol.
    """

    flows: Structure
    sequences: Structure
    connections: Structure
    findings: Structure
    ends: NDArray[np.uint32]
    guids: list[bytes]
    queues: dict[int, PacketQueue]
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
    paths: list[str]
    damages: list[tuple[str, str]]
    gaps: list[tuple[str, str]]

    def stream(self, index: int) -> StreamKey:
        """The stream of a flow."""
        source, destination, address, hops = self.flows["key"][index].tolist()
        queue, text = self.queues[destination], self.queues[destination].text
        if host := self.guids[address]:  # DQ 3: a number on a host
            text = format_name(PrivateQueueFormatNameId(int.from_bytes(queue.raw[:4], "little")), host)
        return StreamKey(guid_text(self.guids[source]), text, hops)

    def streams(self) -> Iterator[StreamKey]:
        """Of all flows."""
        return map(self.stream, range(len(self.flows)))

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

    def reports(self) -> Iterator[StreamReport]:
        """Of all flows."""
        sequences = _sequence_reports(self.sequences)
        for index, key in enumerate(self.streams()):
            yield self._report(index, key, sequences[index + 1])

    def _report(self, index: int, key: StreamKey, details: list[SequenceReport]) -> StreamReport:
        flow = self.flows[index]
        folded = flow["folded"]
        rejects = Counter(_used(REJECTS, folded["rejects"]))
        for one in details:
            rejects.update(one.rejects)
        outcomes = _used(OUTCOMES, flow["outcomes"])
        for code, count in zip(flow["classes"].tolist(), flow["class_counts"].tolist()):
            if code and count:
                outcomes[f"0x{code:04X}"] = count
                if not code & 0x4000:
                    rejects[f"0x{code:04X}"] = count
        outcomes |= _used(("other",), flow["class_rest"][None])
        return StreamReport(
            stream=key,
            sequence=details[-1].sequence if details else SequenceId(0, 0),
            sequences=tuple(details),
            sequence_count=int(flow["sequences"]),
            rejects=dict(rejects),
            outcomes=outcomes,
            violations=_used(KINDS, flow["violations"]),
            unknowns=_used(KINDS, flow["unknowns"]),
            holes=int(self.missed[flow["key"]["source"]]),
            **{name: int(flow[name]) for name in ("connections", "first_time", "last_time")},
            **{name: int(folded[name]) + sum(getattr(one, name) for one in details) for name in COUNTS},
        )


def _used(names: Sequence[str], counts: NDArray[Any]) -> dict[str, int]:
    return {name: count for name, count in zip(names, counts.tolist()) if count}


def _sequence_reports(table: Structure) -> defaultdict[int, list[SequenceReport]]:
    """By flow, from 1, in the order of the table."""
    reports: defaultdict[int, list[SequenceReport]] = defaultdict(list)
    for row in table:
        counts = row["counts"]
        reports[int(row["flow"])].append(
            SequenceReport(
                SequenceId(int(row["ordinal"]), int(row["time_stamp"])),
                **{name: int(counts[name]) for name in COUNTS},
                rejects=_used(REJECTS, counts["rejects"]),
                highest=int(row["highest"]),
                acknowledged=int(row["covered"]),
                first_time=int(row["first_time"]),
                last_time=int(row["last_time"]),
            )
        )
    return reports


def sender_reports(streams: Sequence[StreamReport]) -> Iterator[SenderReport]:
    """streams: in the order of their keys."""
    for source, grouped in groupby(streams, key=lambda report: report.stream.source_queue_manager):
        own = list(grouped)
        yield SenderReport(
            source,
            len(own),
            **{name: sum(getattr(one, name) for one in own) for name in ("messages", "resends", "unsettled")},
            **{
                name: sum(sum(getattr(one, name).values()) for one in own)
                for name in ("rejects", "violations", "unknowns")
            },
        )
