"""Which task of an audit replays which connections: those of one queue manager together, whatever its address."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ordack.capture.byte_ranges import Places, Report

_NONE = np.zeros((0, 3), np.uint64)


class Connections:
    """What all ranges of a capture say of its connections. Numbers are those of mqqb_capture_routed."""

    def __init__(self, reports: Iterable[Report]) -> None:
        told = [(_NONE, _NONE), *((report.connections, report.managers) for report in reports)]
        connections, managers = map(np.concatenate, zip(*told))
        self._keys, first, places = np.unique(connections[:, 0], return_index=True, return_inverse=True)
        self._pairs = connections[first, 1]
        self._bytes = np.bincount(places, connections[:, 2], len(self._keys)).astype(np.int64)
        self._managers = managers

    def shares(self, count: int) -> Places:
        """Of so many shares, that of each connection.

        All connections of a queue manager meet that has fewer others to talk to than the one at their other end: a
        board's, not those of the server of all boards. This is for speed: what is missed is settled afterwards.
        """
        homes, home_of = np.unique(self._homes(), return_inverse=True)
        weights = np.bincount(home_of, self._bytes, len(homes))
        loads, share_of = [0.0] * count, np.zeros(len(homes), np.int64)
        for home in np.lexsort((homes, -weights)).tolist():
            share = loads.index(min(loads))
            loads[share] += weights[home]
            share_of[home] = share
        return Places(self._keys, share_of[home_of])

    def _homes(self) -> NDArray[np.uint64]:
        """Of each connection, the queue manager by which it is divided; without one itself."""
        found, where = np.unique(self._managers[:, 1:], return_inverse=True)
        one, other = where.reshape(-1, 2).T
        met = np.unique(one << 32 | other)
        others = np.bincount(np.concatenate([met >> 32, met & 0xFFFFFFFF]), minlength=len(found))
        place = np.tile(np.searchsorted(self._keys, self._managers[:, 0]), 2)
        manager = np.concatenate([one, other])
        keep = found[manager] != 0
        place, manager = place[keep], manager[keep]
        homes = self._keys.copy()
        order = np.lexsort((manager, others[manager], place))[::-1]
        homes[place[order]] = found[manager[order]]  # the last one stays
        return homes

    def between(self, pairs: set[int]) -> Places:
        """The connections between these pairs of hosts, as one share."""
        keys = self._keys[np.isin(self._pairs, np.fromiter(pairs, np.uint64, len(pairs)))]
        return Places(keys, np.zeros(len(keys), np.int64))
