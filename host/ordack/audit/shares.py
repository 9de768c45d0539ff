"""Which task of an audit replays which connections: those of one queue manager together, whatever its address."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from ordack.capture.routing import Places, Report

_NONE = np.zeros((0, 3), np.uint64)


class Connections:
    """What all ranges of a capture say of its connections. Numbers are those of mqqb_capture_routed."""

    def __init__(self, reports: Iterable[Report]) -> None:
        told = [(_NONE, _NONE), *((report.connections, report.managers) for report in reports)]
        connections, managers = map(np.concatenate, zip(*told))
        keys, first, places = np.unique(connections[:, 0], return_index=True, return_inverse=True)
        sizes = np.bincount(places, connections[:, 2], len(keys)).astype(np.int64)
        self.pairs = dict(zip(keys.tolist(), connections[first, 1].tolist()))
        self._bytes = dict(zip(keys.tolist(), sizes.tolist()))
        self._managers: defaultdict[int, set[int]] = defaultdict(set)
        for key, *named in np.unique(managers, axis=0).tolist():
            self._managers[key].update(filter(None, named))

    def shares(self, count: int) -> Places:
        """Of so many shares, that of each connection.

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
        return _places({key: share_of[home] for key, home in homes.items()})

    def between(self, pairs: set[int]) -> Places:
        """The connections between these pairs of hosts, as one share."""
        return _places({key: 0 for key, pair in self.pairs.items() if pair in pairs})


def _places(share_of: dict[int, int]) -> Places:
    keys = np.fromiter(share_of, np.uint64, len(share_of))
    order = np.argsort(keys)
    return Places(keys[order], np.fromiter(share_of.values(), np.int64, len(share_of))[order])
