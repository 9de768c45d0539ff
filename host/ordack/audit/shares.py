"""Which task of an audit replays which connections: those of one queue manager together, whatever its address."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from ordack.capture.routing import Report


class Connections:
    """What all ranges of a capture say of its connections. Numbers are those of mqqb_capture_routed."""

    def __init__(self, reports: Iterable[Report]) -> None:
        self.pairs: dict[int, int] = {}  # of each key
        self._managers: defaultdict[int, set[int]] = defaultdict(set)
        self._bytes: defaultdict[int, int] = defaultdict(int)
        for report in reports:
            for key, pair, size in report.connections.tolist():
                self.pairs[key] = pair
                self._bytes[key] += size
            for key, *managers in report.managers.tolist():
                self._managers[key].update(filter(None, managers))

    def shares(self, count: int) -> dict[int, int]:
        """The share of each key, of so many shares.

        All connections of a queue manager meet that has fewer others to talk to than the one at their other end: a
        board's, not those of the server of all boards. This is for speed: what is missed is settled afterwards.
        """
        others: defaultdict[int, set[int]] = defaultdict(set)
        for managers in self._managers.values():
            for one in managers:
                others[one].update(managers)
        homes = {
            key: min(managers, key=lambda one: (len(others[one]), one)) if managers else key
            for key, managers in ((key, self._managers[key]) for key in self.pairs)
        }
        # A fragment of IP does not tell its connection: all between its hosts stay together.
        whole = {pair for key, pair in self.pairs.items() if key == pair}
        homes |= {key: pair for key, pair in self.pairs.items() if pair in whole}
        weights: defaultdict[int, int] = defaultdict(int)
        for key, home in homes.items():
            weights[home] += self._bytes[key]
        loads = [0] * count
        share_of = {}
        for home in sorted(weights, key=lambda home: (-weights[home], home)):
            share = loads.index(min(loads))
            loads[share] += weights[home]
            share_of[home] = share
        return {key: share_of[home] for key, home in homes.items()}

    def between(self, pairs: set[int]) -> set[int]:
        """Keys of the connections between these pairs of hosts."""
        return {key for key, pair in self.pairs.items() if pair in pairs}
