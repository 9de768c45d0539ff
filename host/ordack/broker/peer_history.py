"""The peers of this run, present and past: when each was last heard, and its messages of the last hours."""

from __future__ import annotations

from array import array

PEERS_MAX = 10_000  # bounds the memory, to some 430 bytes a peer: anybody may connect under new GUIDs
SPAN_S = 600
SPANS = 36  # 6 hours


class PeerHistory:
    """received: messages since the start, which only the working thread counts. name, address, heard (monotonic ms): of
    the latest session that ended. spans: messages by time, a ring of SPANS."""

    __slots__ = ("address", "heard", "name", "received", "sampled", "spans")

    def __init__(self) -> None:
        self.received = self.sampled = self.heard = 0
        self.name = self.address = ""
        self.spans: array[int] | None = None  # of the thread that samples


class PeerHistories:
    """The histories of up to PEERS_MAX peers. The longest unchanged one gives way."""

    def __init__(self) -> None:
        self._by_guid: dict[bytes, PeerHistory] = {}
        self._span = 0

    def of(self, guid: bytes) -> PeerHistory:
        """The history of a peer whose session begins or ends."""
        history = self._by_guid.pop(guid, None) or PeerHistory()
        self._by_guid[guid] = history
        if len(self._by_guid) > PEERS_MAX:
            del self._by_guid[next(iter(self._by_guid))]
        return history

    def copy(self) -> dict[bytes, PeerHistory]:
        """The histories by GUID, for another thread."""
        return self._by_guid.copy()

    def sample(self, now: float) -> None:
        """Add the messages since the last call to the span of now, in seconds. For one thread."""
        before, self._span = self._span, int(now // SPAN_S)
        begun = [number % SPANS for number in range(max(before, self._span - SPANS) + 1, self._span + 1)]
        for history in self.copy().values():
            spans = history.spans = history.spans or array("I", bytes(4 * SPANS))
            for place in begun:
                spans[place] = 0
            received = history.received
            spans[self._span % SPANS] += received - history.sampled
            history.sampled = received

    def spans(self, history: PeerHistory) -> list[int]:
        """Messages of a peer in each span, the latest last."""
        at = self._span % SPANS + 1
        return [*history.spans[at:], *history.spans[:at]] if history.spans else []
