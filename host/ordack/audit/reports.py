"""Tables of the C core as the reports of a result: streams, their senders, connections."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
from _mqqb import lib
from mqqb.guids import guid_text
from numpy.typing import NDArray

from ordack.audit.identities import Identities
from ordack.audit.partial import Partial, Structure
from ordack.audit.result import (
    KINDS,
    OUTCOMES,
    REJECTS,
    Latency,
    SenderReport,
    SequenceId,
    SequenceReport,
    StreamReport,
)

LATENCIES = ("session", "order", "final")

_BUCKETS = lib.MQQB_AUDIT_BUCKETS
_BOUNDS = np.array([lib.mqqb_audit_bucket_end(bucket) / 1000 for bucket in range(_BUCKETS)])  # ms
_GROUPS = _BUCKETS * len(LATENCIES)  # of an owner
_SHARES = np.array([0.5, 0.9, 0.99])
_NONE = Latency(0, 0.0, 0.0, 0.0, 0.0)
_COUNTS = ("messages", "first_transmissions", "resends", "order_acked", "final_acked", "unsettled")
_TROUBLE = ("violations", "unknowns")
_CHUNK = 1024  # streams whose reports are made at once


def _latencies(groups: NDArray[Any], messages: NDArray[Any], longest: NDArray[Any]) -> list[dict[str, Latency]]:
    """Percentiles by owner. groups: of entries, in order: _GROUPS * owner + _BUCKETS * kind + bucket. messages: in
    each. longest: ns, by owner and kind."""
    kinds = len(LATENCIES)
    ends = np.searchsorted(groups, np.arange(1, len(longest) * kinds + 1) * _BUCKETS)
    cumulated = np.concatenate([[0], messages.cumsum(dtype=np.int64)])
    before = cumulated[np.concatenate([[0], ends[:-1]])] if len(ends) else ends
    counts = cumulated[ends] - before
    ranks = before[:, None] + np.ceil(counts[:, None] * _SHARES).astype(np.int64)
    at = np.searchsorted(cumulated[1:], ranks)
    buckets = groups[np.minimum(at, len(groups) - 1)] % _BUCKETS if len(groups) else np.zeros_like(at)
    most = longest.reshape(-1) / 1e6
    values = np.minimum(_BOUNDS[buckets], most[:, None])
    found = [
        Latency(count, p50, p90, p99, top) if count else _NONE
        for count, (p50, p90, p99), top in zip(counts.tolist(), values.round(6).tolist(), most.round(6).tolist())
    ]
    return [dict(zip(LATENCIES, found[first : first + kinds])) for first in range(0, len(found), kinds)]


def _histograms(groups: NDArray[Any], messages: NDArray[Any], owners: int) -> list[dict[str, dict[float, int]]]:
    """By owner and kind: {upper bound in ms: messages}. groups: as for _latencies."""
    found: list[dict[str, dict[float, int]]] = [{kind: {} for kind in LATENCIES} for _ in range(owners)]
    bounds = _BOUNDS[groups % _BUCKETS].tolist()
    for group, bound, count in zip(groups.tolist(), bounds, messages.tolist()):
        found[group // _GROUPS][LATENCIES[group % _GROUPS // _BUCKETS]][bound] = count
    return found


def _added(groups: NDArray[Any], messages: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Entries in order, those of one group as one."""
    unique, where = np.unique(groups, return_inverse=True)
    return unique, np.bincount(where, messages, len(unique)).astype(np.int64)


def _used(names: Sequence[str], counts: Iterable[int]) -> dict[str, int]:
    return {name: count for name, count in zip(names, counts) if count}


def _places(table: Structure, chosen: NDArray[Any], base: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Rows of a table, which is in order of flows from base on, that are of these flows; and whose, by place in
    chosen."""
    begins = np.searchsorted(table["flow"], chosen + base)
    counts = np.searchsorted(table["flow"], chosen + base, "right") - begins
    owners = np.repeat(np.arange(len(chosen)), counts)
    return np.arange(len(owners)) + np.repeat(begins - counts.cumsum() + counts, counts), owners


class Part:
    """The flows of a task that count in the result, and sums over their sequences, by flow. number: of the partial, in
    names."""

    def __init__(self, partial: Partial, mask: NDArray[np.bool_], names: Identities, number: int) -> None:
        flows, kept = partial.flows, partial.sequences
        self.partial, self.mask, self.chosen = partial, mask, np.flatnonzero(mask)
        self.senders = names.manager_of[number][flows["key"]["source"][self.chosen]]
        self.streams = names.stream_of[number][self.chosen]
        own = kept["flow"].astype(np.int64) - 1

        def total(of: Callable[[Structure], NDArray[Any]]) -> NDArray[np.int64]:
            return of(flows["folded"]) + np.bincount(own, of(kept["counts"]), len(flows)).astype(np.int64)

        self.totals = {name: total(lambda counts, name=name: counts[name]) for name in _COUNTS}  # type: ignore[misc]
        rejects = [total(lambda counts, k=k: counts["rejects"][:, k]) for k in range(len(REJECTS))]  # type: ignore[misc]
        self.rejects = np.stack(rejects, axis=1)
        classes = flows["classes"]
        self.negative = np.where((classes != 0) & (classes & 0x4000 == 0), flows["class_counts"], 0)

    def sums(self) -> dict[str, NDArray[Any]]:
        """Of each chosen flow."""
        flows = self.partial.flows[self.chosen]
        return {
            **{name: self.totals[name][self.chosen] for name in _COUNTS},
            "rejects": (self.rejects.sum(axis=1) + self.negative.sum(axis=1, dtype=np.int64))[self.chosen],
            **{name: flows[name].sum(axis=1, dtype=np.int64) for name in _TROUBLE},
        }

    def measured(self, owner_of: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Groups as for _latencies, and messages. owner_of: of each flow; -1: of none."""
        table = self.partial.latencies
        owners = owner_of[table["flow"]]
        keep = owners >= 0
        return (
            owners[keep].astype(np.int64) * _GROUPS + table["bucket"][keep],
            table["messages"][keep],
        )

    def reports(self, chosen: NDArray[Any]) -> list[StreamReport]:
        """Of these flows."""
        partial, flows = self.partial, self.partial.flows[chosen]
        rows, owners = _places(partial.sequences, chosen, 1)
        sequences = _sequence_reports(partial.sequences[rows], owners)
        rows, owners = _places(partial.latencies, chosen, 0)
        entries = partial.latencies[rows]
        groups = owners * _GROUPS + entries["bucket"]
        latencies = _latencies(groups, entries["messages"], flows["latency_max"])
        histograms = _histograms(groups, entries["messages"], len(chosen))
        names = ("sequences", "connections", "first_time", "last_time")
        columns = {name: flows[name].tolist() for name in (*names, "classes", "class_counts", "class_rest", "outcomes")}
        columns |= {name: self.totals[name][chosen].tolist() for name in _COUNTS}
        columns |= {name: flows[name].tolist() for name in _TROUBLE}
        columns["rejects"] = self.rejects[chosen].tolist()
        columns["holes"] = partial.missed[flows["key"]["source"]].tolist()
        reports = []
        for place, (index, values) in enumerate(zip(chosen.tolist(), zip(*columns.values()))):
            row, details = dict(zip(columns, values)), sequences[place]
            rejects = _used(REJECTS, row["rejects"])
            outcomes = _used(OUTCOMES, row["outcomes"])
            for code, count in zip(row["classes"], row["class_counts"]):
                if code and count:
                    outcomes[f"0x{code:04X}"] = count
                    if not code & 0x4000:
                        rejects[f"0x{code:04X}"] = count
            outcomes |= _used(("other",), (row["class_rest"],))
            reports.append(
                StreamReport(
                    stream=partial.stream(index),
                    sequence=details[-1].sequence if details else SequenceId(0, 0),
                    sequences=tuple(details),
                    sequence_count=row["sequences"],
                    rejects=rejects,
                    latency=latencies[place],
                    histograms=histograms[place],
                    outcomes=outcomes,
                    violations=_used(KINDS, row["violations"]),
                    unknowns=_used(KINDS, row["unknowns"]),
                    **{name: row[name] for name in (*_COUNTS, "connections", "holes", "first_time", "last_time")},
                )
            )
        return reports


def _sequence_reports(table: Structure, owners: NDArray[Any]) -> defaultdict[int, list[SequenceReport]]:
    """By owner, in the order of the table."""
    names = ("ordinal", "time_stamp", "highest", "covered", "first_time", "last_time")
    fields = zip(owners.tolist(), *(table[name].tolist() for name in names))
    counts = zip(*(table["counts"][name].tolist() for name in _COUNTS))
    rejects = table["counts"]["rejects"].tolist()
    reports: defaultdict[int, list[SequenceReport]] = defaultdict(list)
    for (owner, ordinal, stamp, highest, covered, first, last), own, rejected in zip(fields, counts, rejects):
        reports[owner].append(
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


class Streams(Sequence[StreamReport]):
    """The streams of a result, by key. A report is made when it is asked for: of a million, all take 4 GB."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = list(parts)
        lengths = [len(part.chosen) for part in parts]
        self._part = np.repeat(np.arange(len(parts)), lengths)
        self._flow = np.concatenate([np.zeros(0, np.int64), *(part.chosen for part in parts)])
        order = np.argsort(np.concatenate([np.zeros(0, np.int64), *(part.streams for part in parts)]), kind="stable")
        self._part, self._flow, self._order = self._part[order], self._flow[order], order

    def __len__(self) -> int:
        return len(self._flow)

    def _made(self, places: NDArray[Any]) -> list[StreamReport]:
        made: dict[int, StreamReport] = {}
        for number in np.unique(self._part[places]).tolist():
            own = places[self._part[places] == number]
            made.update(zip(own.tolist(), self._parts[number].reports(self._flow[own])))
        return [made[place] for place in places.tolist()]

    @overload
    def __getitem__(self, place: int) -> StreamReport: ...
    @overload
    def __getitem__(self, place: slice) -> list[StreamReport]: ...
    def __getitem__(self, place: int | slice) -> StreamReport | list[StreamReport]:
        if isinstance(place, slice):
            return self._made(np.arange(len(self))[place])
        return self._made(np.array([range(len(self))[place]]))[0]

    def __iter__(self) -> Iterator[StreamReport]:
        for first in range(0, len(self), _CHUNK):
            yield from self[first : first + _CHUNK]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def worst(self, count: int) -> list[StreamReport]:
        """Those with most violations, then unknown verdicts, then resends."""
        sums = [part.sums() for part in self._parts]
        columns = ("resends", "unknowns", "violations")
        keys = [-np.concatenate([own[name] for own in sums])[self._order] for name in columns if sums]
        return self._made(np.lexsort(keys)[:count] if keys else np.zeros(0, np.int64))


class Sums:
    """What is added up over streams: by source queue manager, and all."""

    def __init__(self, parts: Sequence[Part], names_of: Identities) -> None:
        guids = names_of.guids
        groups, messages = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        owners, sums, longest = [np.zeros(0, np.int64)], [], [np.zeros((0, len(LATENCIES)), np.int64)]
        for part in parts:
            partial = part.partial
            owner_of = np.full(len(partial.flows), -1, np.int64)
            owner_of[part.chosen] = part.senders
            for found, column in zip(part.measured(owner_of), (groups, messages)):
                column.append(found)
            owners.append(part.senders)
            longest.append(partial.flows["latency_max"][part.chosen])
            sums.append(part.sums())
        owner, most = np.concatenate(owners), np.zeros((len(guids), len(LATENCIES)), np.int64)
        np.maximum.at(most, owner, np.concatenate(longest))
        names = ("messages", "resends", "rejects", "unsettled", *_TROUBLE)
        columns = {name: np.concatenate([np.zeros(0, np.int64), *(own[name] for own in sums)]) for name in names}
        self.total = {name: int(column.sum()) for name, column in columns.items()}
        by_sender = {name: np.bincount(owner, column, len(guids)).astype(int) for name, column in columns.items()}
        counts = np.bincount(owner, minlength=len(guids)).tolist()
        own_groups, own_messages = _added(np.concatenate(groups), np.concatenate(messages))
        rows = zip(
            guids, counts, _latencies(own_groups, own_messages, most), *map(np.ndarray.tolist, by_sender.values())
        )
        self.senders = [
            SenderReport(guid_text(guid), streams, latency=latency, **dict(zip(names, values)))
            for guid, streams, latency, *values in rows
            if streams
        ]
        all_groups, all_messages = _added(own_groups % _GROUPS, own_messages)
        self.latency = _latencies(all_groups, all_messages, most.max(axis=0, initial=0)[None])[0]
        self.histograms = _histograms(all_groups, all_messages, 1)[0]
