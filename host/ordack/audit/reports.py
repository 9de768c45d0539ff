"""Tables of the C core as the reports of a result: streams, their senders, connections."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from _mqqb import lib
from mqqb.guids import guid_text
from numpy.typing import NDArray

from ordack.audit.partial import Partial
from ordack.audit.result import (
    KINDS,
    OUTCOMES,
    REJECTS,
    ConnectionReport,
    Event,
    Latency,
    SenderReport,
    SequenceId,
    SequenceReport,
    StreamReport,
    Unknown,
    Violation,
)

LATENCIES = ("session", "order", "final")

_BOUNDS = np.array([lib.mqqb_audit_bucket_end(bucket) / 1000 for bucket in range(lib.MQQB_AUDIT_BUCKETS)])  # ms


def _latencies(histograms: NDArray[Any], longest: NDArray[Any]) -> list[dict[str, Latency]]:
    """Percentiles of many histograms at once. longest: ns."""
    reports: list[dict[str, Latency]] = []
    shares = np.array([0.5, 0.9, 0.99])
    for begin in range(0, len(histograms), 1024):
        cumulated = histograms[begin : begin + 1024].cumsum(axis=2, dtype=np.int64)
        counts = cumulated[:, :, -1]
        ranks = np.ceil(counts[:, :, None] * shares).astype(np.int64)
        buckets = (cumulated[:, :, None, :] < ranks[..., None]).sum(axis=3)
        most = longest[begin : begin + 1024] / 1e6
        values = np.minimum(_BOUNDS[np.minimum(buckets, len(_BOUNDS) - 1)], most[:, :, None])
        for count, value, top in zip(counts.tolist(), values.round(6).tolist(), most.round(6).tolist()):
            reports.append(
                {
                    kind: Latency(number, p50, p90, p99, maximum) if number else Latency(0, 0.0, 0.0, 0.0, 0.0)
                    for kind, number, (p50, p90, p99), maximum in zip(LATENCIES, count, value, top)
                }
            )
    return reports


def histograms(rows: NDArray[Any]) -> dict[str, dict[float, int]]:
    """By kind of latency: {upper bound in ms: messages}."""
    used = map(np.flatnonzero, rows)
    return {kind: dict(zip(_BOUNDS[at].tolist(), row[at].tolist())) for kind, row, at in zip(LATENCIES, rows, used)}


class Latencies:
    """Those of several streams, added up."""

    def __init__(self) -> None:
        self.histogram = np.zeros((len(LATENCIES), lib.MQQB_AUDIT_BUCKETS), np.int64)
        self.longest = np.zeros(len(LATENCIES), np.int64)

    def add(self, histogram: NDArray[Any], longest: NDArray[Any]) -> None:
        self.histogram += histogram
        self.longest = np.maximum(self.longest, longest)

    def report(self) -> dict[str, Latency]:
        return _latencies(self.histogram[None], self.longest[None])[0]


class Sender:
    """All streams of a source queue manager."""

    def __init__(self) -> None:
        self._streams: list[StreamReport] = []
        self.latencies = Latencies()

    def add(self, report: StreamReport, histogram: NDArray[Any], longest: NDArray[Any]) -> None:
        self._streams.append(report)
        self.latencies.add(histogram, longest)

    def report(self, guid: bytes) -> SenderReport:
        streams = self._streams
        names = ("messages", "resends", "unsettled")
        sums = {name: sum(getattr(stream, name) for stream in streams) for name in names}
        names = ("rejects", "violations", "unknowns")
        sums |= {name: sum(sum(getattr(stream, name).values()) for stream in streams) for name in names}
        return SenderReport(guid_text(guid), len(streams), latency=self.latencies.report(), **sums)


_COUNTS = ("messages", "first_transmissions", "resends", "order_acked", "final_acked", "unsettled")


def _used(names: Sequence[str], counts: Iterable[int]) -> dict[str, int]:
    return {name: count for name, count in zip(names, counts) if count}


def _sequence_reports(partial: Partial, mask: NDArray[np.bool_]) -> defaultdict[int, list[SequenceReport]]:
    """Of each flow in mask, in the order in which sequences follow each other."""
    table = partial.sequences
    order = np.lexsort((table["ordinal"], table["time_stamp"]))
    order = order[mask[table["flow"][order] - 1]]
    names = ("flow", "ordinal", "time_stamp", "highest", "covered", "first_time", "last_time")
    fields = zip(*(table[name][order].tolist() for name in names))
    counts = zip(*(table["counts"][name][order].tolist() for name in _COUNTS))
    rejects = table["counts"]["rejects"][order].tolist()
    reports: defaultdict[int, list[SequenceReport]] = defaultdict(list)
    for (flow, ordinal, stamp, highest, covered, first, last), own, rejected in zip(fields, counts, rejects):
        reports[flow - 1].append(
            SequenceReport(
                SequenceId(ordinal, stamp),
                **dict(zip(_COUNTS, own)),
                rejects=_used(REJECTS, rejected),
                highest=highest,
                acknowledged=covered,
                first_time=first,
                last_time=last,
            )
        )
    return reports


def stream_reports(partial: Partial, mask: NDArray[np.bool_]) -> list[StreamReport]:
    """Of the flows in mask, in their order."""
    flows = partial.flows
    chosen = np.flatnonzero(mask)
    sequences = _sequence_reports(partial, mask)
    latencies = _latencies(flows["histogram"][chosen], flows["latency_max"][chosen])
    reports = []
    for index, latency in zip(chosen.tolist(), latencies):
        flow, details = flows[index], sequences[index]
        folded = flow["folded"]
        rejects = Counter(dict(zip(REJECTS, folded["rejects"].tolist())))
        for detail in details:
            rejects.update(detail.rejects)
        outcomes = _used(OUTCOMES, flow["outcomes"].tolist())
        for code, count in zip(flow["classes"].tolist(), flow["class_counts"].tolist()):
            if code:
                outcomes[f"0x{code:04X}"] = count
                if not code & 0x4000:
                    rejects[f"0x{code:04X}"] = count
        outcomes["other"] = int(flow["class_rest"])
        reports.append(
            StreamReport(
                stream=partial.stream(index),
                sequence=details[-1].sequence if details else SequenceId(0, 0),
                sequences=tuple(details),
                sequence_count=int(flow["sequences"]),
                connections=int(flow["connections"]),
                rejects=_used(tuple(rejects), rejects.values()),
                holes=int(partial.missed[flow["key"]["source"]]),
                violations=_used(KINDS, flow["violations"].tolist()),
                unknowns=_used(KINDS, flow["unknowns"].tolist()),
                first_time=int(flow["first_time"]),
                last_time=int(flow["last_time"]),
                latency=latency,
                histograms=histograms(flow["histogram"]),
                outcomes=_used(tuple(outcomes), outcomes.values()),
                **{name: int(folded[name]) + sum(getattr(detail, name) for detail in details) for name in _COUNTS},
            )
        )
    return reports


_ENDS = {
    lib.MQQB_END_FIN: "closed",
    lib.MQQB_END_RST: "reset",
    lib.MQQB_END_REPLACED: "replaced",
    lib.MQQB_END_CAPTURE: "end of the capture",
}
_MARKS = {"first_message": "first_message", "first_hole": "hole", "last_hole": "hole", "first_malformed": "malformed"}
_COUNTED = ("packets", "messages", "holes", "malformed")


def connection_report(partial: Partial, number: int, found: Sequence[Violation | Unknown]) -> ConnectionReport:
    """found: what concerns it, in the order of the result."""
    row = partial.connections[number]
    ends, syn = partial.ends[number]
    directions = row["direction"]
    first, last = int(row["first_time"]), int(row["last_time"])
    events = [Event(first, "begin" if syn else "older", 0, "")]
    if row["established"]:
        events.append(Event(int(row["established"]), "established", 1, ""))
    managers = []
    for side in (0, 1):
        own = directions[side]
        for name, what in _MARKS.items():
            if own[name] and not (name == "last_hole" and own["holes"] < 2):
                events.append(Event(int(own[name]), what, side, ""))
        codes = [int(code) for code in own["sources"] if code] or [int(own["owner"])]
        managers.append("several" if len(codes) > 1 else guid_text(partial.guids[codes[0]]) if codes[0] else "")
    events += [
        Event(item.packets[-1].time, "violation" if isinstance(item, Violation) else "unknown", 0, item.kind)
        for item in found[:32]
        if item.packets
    ]
    ended = [side for side in (0, 1) if directions[side]["ended"]]
    ending = ", ".join(dict.fromkeys(_ENDS[int(directions[side]["ending"])] for side in ended))
    events.sort()
    events.append(Event(last, "end", 0, ending))
    return ConnectionReport(
        ends=ends,
        syn=syn,
        first_time=first,
        last_time=last,
        queue_managers=(managers[0], managers[1]),
        end=ending,
        events=tuple(events),
        **{name: (int(directions[0][name]), int(directions[1][name])) for name in _COUNTED},
    )
