"""What the tasks of an audit have found out, put together.

Streams of which two tasks saw something (a sender with a new address, an acknowledgement through another host) are
settled afterwards: their connections are replayed once more, all in one place, in order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from _mqqb import lib
from numpy.typing import NDArray

from ordack.audit.findings import STRAY, finding
from ordack.audit.partial import Partial, StreamName
from ordack.audit.reports import Part, Streams, Sums, connection_report
from ordack.audit.result import KINDS, ConnectionReport, Result, Unknown, Violation

CONNECTIONS_MAX = 10_000
WORST_MAX = 20


class Merged:
    """What the tasks found, put together."""

    def __init__(self, paths: Sequence[str], partials: Sequence[Partial]) -> None:
        self._paths = list(paths)
        self._partials = list(partials)
        self._settled: Partial | None = None
        self._base = np.cumsum([0] + [len(partial.ends) for partial in partials])
        self._receivers: set[bytes] = set()  # of split streams, where they count
        self.split = self._find_split() if len(partials) > 1 else set()

    def _find_split(self) -> set[StreamName]:
        """Streams of which more than one task knows something, or that another task's holes may concern."""
        places: dict[StreamName, int] = {}
        split: set[StreamName] = set()
        sequences: defaultdict[tuple[bytes, int, int], set[StreamName]] = defaultdict(set)
        missed: Counter[bytes] = Counter()
        pair_missed: Counter[tuple[str, str]] = Counter()
        for partial in self._partials:
            missed.update(partial.missed_sources())
            pair_missed.update(partial.missed_pairs())
        for task, partial in enumerate(self._partials):
            for name in partial.names:
                if places.setdefault(name, task) != task:
                    split.add(name)
            own_pairs, own_missed = partial.missed_pairs(), partial.missed_sources()
            kept = partial.sequences
            fields = (kept[key].tolist() for key in ("flow", "ordinal", "time_stamp", "pair"))
            for flow, ordinal, stamp, pair in zip(*fields):
                name = partial.names[flow - 1]
                sequences[name.source, ordinal, stamp].add(name)
                sequences[b"", ordinal, stamp].add(name)
                hosts = partial.pairs[pair // 2]
                if pair_missed[hosts] > (hosts in own_pairs) or missed[name.source] > (name.source in own_missed):
                    split.add(name)
        strays = set().union(*(partial.strays for partial in self._partials))
        for stray in strays & sequences.keys():
            split |= sequences[stray]
        unseen = strays - sequences.keys()
        rolled = self._rolled() if unseen else {}
        for source, ordinal, stamp in unseen:
            split |= {name for name, lowest in rolled.get(source, ()) if lowest < (stamp, ordinal)}
        for partial in self._partials:
            # Its task does not know what others have seen of the sequence.
            judged = partial.findings["flow"][np.isin(partial.findings["detail"], STRAY)]
            split |= {partial.names[flow - 1] for flow in judged.tolist()}
            # Whether a message was accepted twice depends on what was seen of its receiver, too.
            twice = partial.findings[partial.findings["detail"] == lib.MQQB_AUDIT_TWO_ACCEPTED]
            own_missed = partial.missed_sources()
            for flow, connection, side in twice[["flow", "connection", "direction"]].tolist():
                direction = partial.connections["direction"][connection, side]
                codes = {int(direction["owner"]), *direction["sources"].tolist()} - {0}
                receivers = {partial.guids[code] for code in codes}
                if any(missed[guid] > (guid in own_missed) for guid in receivers):
                    split.add(partial.names[flow - 1])
                    self._receivers |= receivers
        return split

    def _rolled(self) -> defaultdict[bytes, list[tuple[StreamName, tuple[int, int]]]]:
        """By source: streams of several sequences, which may tell when one began, and the lowest kept: time stamp,
        ordinal."""
        rolled: defaultdict[bytes, list[tuple[StreamName, tuple[int, int]]]] = defaultdict(list)
        for partial in self._partials:
            lowest: dict[int, tuple[int, int]] = {}
            for flow, stamp, ordinal in partial.sequences[["flow", "time_stamp", "ordinal"]].tolist():
                lowest[flow] = min(lowest.get(flow, (stamp, ordinal)), (stamp, ordinal))
            for flow in (np.flatnonzero(partial.flows["sequences"] > 1) + 1).tolist():
                name = partial.names[flow - 1]
                rolled[name.source].append((name, lowest[flow]))
        return rolled

    def wanted(self) -> set[int]:
        """The pairs of hosts whose connections have to be replayed again for the split streams."""
        sources = {name.source for name in self.split} | self._receivers
        wanted: set[int] = set()
        for partial in self._partials:
            codes = [code for code, guid in enumerate(partial.guids) if guid in sources]
            direction = partial.connections["direction"]
            concerned = (
                np.isin(direction["owner"], codes)
                | (direction["more"] != 0)
                | np.isin(direction["sources"], codes).any(axis=2)
            ).any(axis=1)
            wanted.update(partial.host_pairs[concerned].tolist())
        return wanted

    def settle(self, again: Partial) -> None:
        """What replaying them again has shown."""
        self._settled = again

    def _parts(self) -> Iterator[tuple[Partial, NDArray[np.bool_], Callable[[int], int]]]:
        """Each partial, which of its flows count, and what number its connections have in the result."""
        for number, partial in enumerate(self._partials):
            base = int(self._base[number])
            mask = np.array([name not in self.split for name in partial.names], bool)
            yield partial, mask, base.__add__
        if self._settled is not None:
            places: dict[tuple[Any, int], int] = {}
            for number, partial in enumerate(self._partials):
                for connection, first in enumerate(partial.connections["first_time"].tolist()):
                    places[partial.ends[connection], first] = int(self._base[number]) + connection
            settled = self._settled
            times = settled.connections["first_time"]
            mask = np.array([name in self.split for name in settled.names], bool)
            yield settled, mask, lambda connection: places.get((settled.ends[connection], int(times[connection])), 0)

    def result(self) -> Result:
        """What the files show."""
        parts: list[Part] = []
        found: list[Violation | Unknown] = []
        for partial, mask, place in self._parts():
            parts.append(Part(partial, mask))
            found += [
                finding(partial, row, place(int(row["connection"])))
                for row in partial.findings
                if (mask[row["flow"] - 1] if row["flow"] else partial is not self._settled)
            ]
        sums, streams = Sums(parts), Streams(parts)
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
            connections=self._connections(found),
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
        return {
            "packets": sum(partial.packets for partial in self._partials),
            "connections": int(self._base[-1]),
            "streams": sum(int(own["sequences"].sum()) for own in flows),
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

    def _connections(self, items: Sequence[Violation | Unknown]) -> dict[int, ConnectionReport]:
        found: defaultdict[int, list[Violation | Unknown]] = defaultdict(list)
        for item in items:
            found[item.connection].append(item)
        directions = [partial.connections["direction"] for partial in self._partials]
        points = np.concatenate(
            [own["holes"].sum(1, np.int64) + own["malformed"].sum(1, np.int64) for own in directions]
        )
        for number, of_connection in found.items():
            points[number] += 1000 * len(of_connection)
        chosen = np.sort(np.argsort(-points, kind="stable")[:CONNECTIONS_MAX])
        reports = {}
        for number in chosen.tolist():
            task = int(np.searchsorted(self._base, number, "right")) - 1
            reports[number] = connection_report(self._partials[task], number - int(self._base[task]), found[number])
        return reports
