"""Numbers of queue managers and streams that mean the same in all tasks of an audit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ordack.audit.partial import Partial, queue_text

_AS_TEXT = [3, 2, 1, 0, 5, 4, 7, 6, *range(8, 16)]  # the bytes of a GUID, in the order of its text


class Identities:
    """guids: of all queue managers, in the order of their texts; streams: how many there are. By partial: manager_of:
    of each code of a queue manager, its place in guids; stream_of: of each flow, its stream's number, in the order of
    keys."""

    def __init__(self, partials: Sequence[Partial]) -> None:
        raw = b"".join(guid or bytes(16) for partial in partials for guid in partial.guids)
        texts = np.frombuffer(raw, np.uint8).reshape(-1, 16)[:, _AS_TEXT].copy().view("S16").ravel()
        found, managers = np.unique(texts, return_inverse=True)
        self.guids = [bytes(one) for one in found.view(np.uint8).reshape(-1, 16)[:, np.argsort(_AS_TEXT)]]
        self.manager_of = _by_partial(managers, [len(partial.guids) for partial in partials])
        keys = [partial.flows["key"] for partial in partials]
        sources = [own["source"] for own in keys]
        queues: list[NDArray[np.int64]] = []
        queue_texts: list[str] = []
        for partial, own in zip(partials, keys):
            pairs, where = np.unique(_both(own["destination"], own["address"]), return_inverse=True)
            queues.append(where + len(queue_texts))
            codes = zip((pairs >> 32).tolist(), (pairs & 0xFFFFFFFF).tolist())
            queue_texts += [queue_text(partial.queues[queue], partial.guids[host]) for queue, host in codes]
        ranks = {text: rank for rank, text in enumerate(sorted(set(queue_texts)))}
        rank_of = np.array([ranks[text] for text in queue_texts], np.int64)
        of_source = np.concatenate([managers[source] for managers, source in zip(self.manager_of, sources)])
        named = np.unique(_both(of_source, rank_of[np.concatenate(queues)]), return_inverse=True)[1]
        hops = np.concatenate([own["hops"] for own in keys])
        keys_found, streams = np.unique(_both(named, hops), return_inverse=True)
        self.streams = len(keys_found)
        self.stream_of = _by_partial(streams, [len(own) for own in keys])


def _both(high: NDArray[np.int64], low: NDArray[np.int64]) -> NDArray[np.int64]:
    """Numbers below 2 to the power of 31, two in one."""
    return high.astype(np.int64) << 32 | low


def _by_partial(values: NDArray[np.int64], lengths: Sequence[int]) -> list[NDArray[np.int64]]:
    return np.split(values, np.cumsum(lengths)[:-1])
