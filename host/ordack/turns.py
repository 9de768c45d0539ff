"""Which of the outgoing queues that share a connection sends its next message (B-305). No store, session or clock.

The highest priority on the connection goes first; among equal ones, the queue whose last turn was longest ago. Within a
queue its stream decides, so a transactional queue keeps its order. A transactional message has priority 0 and cannot
have another (B-287): a queue of other messages that never runs empty would starve it. Each PATIENCE-th turn therefore
belongs to the queue that has waited longest, whatever its priority.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

from mqqb.streams import Entry, OutgoingStream

PATIENCE = 16


class Sender(Protocol):
    """An outgoing queue; `turn`: when it had its last one, by the count of its connection's Turns."""

    turn: int

    @property
    def stream(self) -> OutgoingStream: ...


Queue = TypeVar("Queue", bound=Sender)


class Turns:
    """The turns of one connection. count: how many there have been; a queue that joins sets its `turn` to that.
    is_alone: has only the queue whose turn it is something to send?"""

    def __init__(self) -> None:
        self.count = 0
        self.is_alone = False

    def among(self, queues: Iterable[Queue]) -> Iterator[tuple[Queue, Entry]]:
        """What to send next, and from which queue, until none has anything. Whoever asks for the one after has sent
        this one, or taken it out of its stream."""
        waiting: list[tuple[int, int, int, Queue]] = []
        for place, queue in enumerate(queues):
            _join(waiting, queue, place)
        while waiting:
            if (self.count + 1) % PATIENCE:
                _, _, place, queue = heapq.heappop(waiting)
            else:
                longest = min(waiting, key=lambda item: item[1])
                _, _, place, queue = longest
                waiting.remove(longest)
                heapq.heapify(waiting)
            entry = queue.stream.next_to_send()
            if entry is not None:
                self.is_alone = not waiting
                yield queue, entry
                self.count += 1
                queue.turn = self.count
                _join(waiting, queue, place)


def _join(waiting: list[tuple[int, int, int, Queue]], queue: Queue, place: int) -> None:
    entry = queue.stream.next_to_send()
    if entry is not None:
        heapq.heappush(waiting, (-entry.priority, queue.turn, place, queue))
