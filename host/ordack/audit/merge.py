"""What the tasks of an audit have found out, put together.

Streams of which two tasks saw something (a sender with a new address, an acknowledgement through another host) are
settled afterwards: their connections are replayed once more, all in one place, in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ordack.audit.findings import STRAY, finding
from ordack.audit.identities import Identities
from ordack.audit.partial import Partial
from ordack.audit.reports import Part, Streams, Sums
from ordack.audit.result import KINDS, Result, Unknown, Violation

WORST_MAX = 1000


class Merged:
    """What the tasks found, put together. split: which streams have to be settled, by Identities' numbers."""

    def __init__(self, paths: Sequence[str], partials: Sequence[Partial]) -> None:
        self._paths = list(paths)
        self._partials = list(partials)
        self._settled: Partial | None = None
        self._base = np.cumsum([0] + [len(partial.connections) for partial in partials])
        self._names = Identities(partials)
        self.split = self._find_split() if len(partials) > 1 else np.zeros(self._names.streams, bool)

    def _find_split(self) -> NDArray[np.bool_]:
        """Streams of which more than one task knows something, or that another task's holes may concern."""
        names = self._names
        split = np.bincount(np.concatenate(names.stream_of), minlength=names.streams) > 1
        strays = set().union(*(partial.strays for partial in self._partials))
        identifiers = np.array([_identifier(ordinal, stamp) for _, ordinal, stamp in strays], np.uint64)
        elsewhere = zip(*self._missed_elsewhere())
        for partial, streams, (sources, pairs) in zip(self._partials, names.stream_of, elsewhere):
            kept = partial.sequences
            flow = kept["flow"].astype(np.int64) - 1
            source = partial.flows["key"]["source"][flow]
            concerned = sources[source] | pairs[kept["pair"] // 2]
            known = _identifier(kept["ordinal"].astype(np.uint64), kept["time_stamp"].astype(np.uint64))
            for row in np.flatnonzero(np.isin(known, identifiers)).tolist():
                named = int(kept["ordinal"][row]), int(kept["time_stamp"][row])
                concerned[row] |= not strays.isdisjoint(((partial.guids[source[row]], *named), (b"", *named)))
            split[streams[flow[concerned]]] = True
            # Its task does not know what others have seen of the sequence.
            judged = partial.findings["flow"][np.isin(partial.findings["detail"], STRAY)]
            split[streams[judged.astype(np.int64) - 1]] = True
        return split

    def _missed_elsewhere(self) -> tuple[list[NDArray[np.bool_]], list[NDArray[np.bool_]]]:
        """By task: of which of its queue managers, and between which of its hosts, others have missed something."""
        sources = Counter(guid for partial in self._partials for guid in partial.missed_sources())
        pairs = Counter(hosts for partial in self._partials for hosts in partial.missed_pairs())
        return (
            [_more(sources, partial.guids, partial.missed_sources()) for partial in self._partials],
            [_more(pairs, partial.pairs, partial.missed_pairs()) for partial in self._partials],
        )

    def wanted(self) -> set[int]:
        """The pairs of hosts whose connections have to be replayed again for the split streams."""
        sources = np.zeros(len(self._names.guids), bool)
        for partial, streams, managers in zip(self._partials, self._names.stream_of, self._names.manager_of):
            sources[managers[partial.flows["key"]["source"][self.split[streams]]]] = True
        return self._pairs_of(sources)

    def _pairs_of(self, sources: NDArray[np.bool_]) -> set[int]:
        # What is forwarded may be acknowledged to who does that, at another address.
        for carried, partial, managers in zip([*self._carrying(sources)], self._partials, self._names.manager_of):
            owners = partial.connections["direction"]["owner"][carried]
            sources[managers[owners[owners != 0]]] = True
        wanted: set[int] = set()
        for carried, partial in zip(self._carrying(sources), self._partials):
            wanted.update(partial.host_pairs[carried.any(axis=1)].tolist())
        return wanted

    def _carrying(self, sources: NDArray[np.bool_]) -> Iterator[NDArray[np.bool_]]:
        """By task: which directions of its connections are of these queue managers, or have carried what they sent."""
        for partial, managers in zip(self._partials, self._names.manager_of):
            codes = np.flatnonzero(sources[managers])
            direction = partial.connections["direction"]
            known = np.isin(direction["owner"], codes) | np.isin(direction["sources"], codes).any(axis=2)
            yield known | (direction["more"] != 0)

    def settle(self, again: Partial) -> None:
        """What replaying them again has shown."""
        before, marked = self._names, self.split
        self._settled, self._names = again, Identities([*self._partials, again])
        self.split = np.zeros(self._names.streams, bool)
        for old, new in zip(before.stream_of, self._names.stream_of):
            self.split[new[marked[old]]] = True

    def _parts(self) -> Iterator[tuple[Part, Callable[[int], int]]]:
        """Each partial, with those of its flows that count, and what number its connections have in the result."""
        for number, partial in enumerate(self._partials):
            mask = ~self.split[self._names.stream_of[number]]
            yield Part(partial, mask, self._names, number), int(self._base[number]).__add__
        if self._settled is not None:
            places: dict[tuple[bytes, int], int] = {}
            for base, partial in zip(self._base.tolist(), self._partials):
                keys = zip(map(bytes, partial.ends), partial.connections["first_time"].tolist())
                places.update((key, base + connection) for connection, key in enumerate(keys))
            settled = self._settled
            times = settled.connections["first_time"]
            mask = self.split[self._names.stream_of[-1]]
            yield (
                Part(settled, mask, self._names, -1),
                lambda connection: places.get((bytes(settled.ends[connection]), int(times[connection])), 0),
            )

    def result(self) -> Result:
        """What the files show."""
        parts: list[Part] = []
        found: list[Violation | Unknown] = []
        for part, place in self._parts():
            parts.append(part)
            found += [
                finding(part.partial, row, place(int(row["connection"])))
                for row in part.partial.findings
                if (part.mask[row["flow"] - 1] if row["flow"] else part.partial is not self._settled)
            ]
        sums, streams = Sums(parts, self._names), Streams(parts)
        found.sort(key=lambda item: (isinstance(item, Unknown), item.packets[-1].time if item.packets else 0))
        gaps = max((partial.gaps for partial in self._partials), key=len)
        result = Result(
            summary=self._summary(parts, sums, len(gaps)),
            paths=self._paths,
            damages=[],
            violations=[item for item in found if isinstance(item, Violation)],
            unknowns=[item for item in found if isinstance(item, Unknown)],
            streams=streams,
            worst=streams.worst(WORST_MAX),
            senders=sums.senders,
            connections=self._ends_of(found),
            histograms=sums.histograms,
            latency=sums.latency,
        )
        # Each task has read all files; one that saw no row does not tell.
        damages = max((partial.damages for partial in self._partials), key=len)
        result.add_damages(damages)
        result.add_damages(gaps)
        return result

    def _summary(self, parts: Sequence[Part], sums: Sums, gaps: int) -> dict[str, Any]:
        """Without what Result.add_damages says."""
        counts = np.sum([partial.kind_counts for partial in self._partials], axis=0)
        violations, unknowns = (Counter(dict(zip(KINDS, of_kinds))) for of_kinds in counts.tolist())
        flows = [part.partial.flows[part.chosen] for part in parts]
        for own in flows:
            violations.update(dict(zip(KINDS, own["violations"].sum(axis=0).tolist())))
            unknowns.update(dict(zip(KINDS, own["unknowns"].sum(axis=0).tolist())))
        total = sums.total
        foreign = sum(partial.foreign for partial in self._partials)
        return {
            "packets": sum(partial.packets for partial in self._partials),
            "connections": int(self._base[-1]) + sum(partial.forgotten for partial in self._partials) - foreign,
            "foreign_connections": foreign,
            "streams": sum(map(len, flows)),
            "sequences": sum(int(own["sequences"].sum()) for own in flows),
            "messages": total["messages"],
            "resends": total["resends"],
            "rejects": total["rejects"],
            "settled": total["messages"] - total["unsettled"],
            "unsettled": total["unsettled"],
            "holes": sum(partial.holes for partial in self._partials) + gaps,
            "malformed": sum(partial.malformed for partial in self._partials),
            "unsupported_frames": max(partial.unread for partial in self._partials),
            "violations": dict(violations),
            "unknown": dict(unknowns),
            "latency_ms": {kind: value.as_json() for kind, value in sums.latency.items()},
        }

    def _ends_of(self, items: Sequence[Violation | Unknown]) -> dict[int, tuple[str, str]]:
        """Addresses and ports of the connections of these findings."""
        ends = {}
        for number in {item.connection for item in items}:
            task = int(np.searchsorted(self._base, number, "right")) - 1
            ends[number] = self._partials[task].ends_of(number - int(self._base[task]))
        return ends


def _identifier(ordinal: Any, time_stamp: Any) -> Any:
    """Of a sequence."""
    return ordinal << 32 | time_stamp


def _more(counts: Counter[Any], names: Sequence[Any], own: set[Any]) -> NDArray[np.bool_]:
    """Which of these names count more than its own."""
    if not counts:
        return np.zeros(len(names), bool)
    return np.array([counts[name] > (name in own) for name in names], bool)
