"""What a queue manager has done since it began, as plain integers. No library of metrics, no clock, no lock.

Only the thread that does the work adds to them. Others read them at any moment, see metrics.py: each number is right by
itself, and two of them may be an instant apart. A message costs an addition or two.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

PEERS_MAX = 1000  # that are counted by name; what all others did is counted together
OTHER = "other"
LIMIT, ALLOW_LIST, TLS = "limit", "allow-list", "tls"  # why connections are refused
MICROSECONDS = tuple(digit * 10**power for power in range(2, 7) for digit in (1, 2, 5))  # 0.1 ms to 5 s
MILLISECONDS = (*(digit * 10**power for power in range(5) for digit in (1, 2, 5)), 100_000, 600_000)
MESSAGES = tuple(1 << power for power in range(13))


class Spread:
    """How often a number came, by ranges. bounds: the highest number of each range, rising; what is above all of them
    has a last range. counts: how often, by range. total: of all numbers."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[int, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0

    def add(self, number: int) -> None:
        """It came once more."""
        self.counts[bisect_left(self.bounds, number)] += 1
        self.total += number


class DiskWork:
    """What one open store has written. commits: transactions with a change, by microseconds that the disk took. syncs:
    how often SQLite has waited for the disk. commit_us: what the disk took for the last one. checkpoints: copies of the
    log into the database's file. log_bytes: in the write-ahead log now."""

    def __init__(self) -> None:
        self.commits = Spread(MICROSECONDS)
        self.commit_us = 0
        self.syncs = 0
        self.checkpoints = 0
        self.log_bytes = 0


class PeerCounts:
    """What went to and came from one peer. sessions: that stand now, those in their handshake too. received: messages
    that are stored, or were answered. sent: transmissions of messages; resent: those of them that were not the first.
    refused: messages, by their class, or 0 for want of room; one that is sent again is refused again."""

    __slots__ = ("received", "received_bytes", "refused", "resent", "sent", "sent_bytes", "sessions")

    def __init__(self) -> None:
        self.sessions = 0
        self.received = 0
        self.received_bytes = 0
        self.sent = 0
        self.sent_bytes = 0
        self.resent = 0
        self.refused: dict[int, int] = {}

    def refuse(self, message_class: int) -> None:
        """A message is refused."""
        self.refused[message_class] = self.refused.get(message_class, 0) + 1


class CountsByPeer:
    """The counts of the first PEERS_MAX peers by name, and of all others together: anybody may connect under a new
    address."""

    def __init__(self) -> None:
        self.other = PeerCounts()
        self._named: dict[str, PeerCounts] = {}

    def of(self, name: str) -> PeerCounts:
        """Where to count what this peer does."""
        found = self._named.get(name)
        if found is None:
            if len(self._named) >= PEERS_MAX:
                return self.other
            found = self._named[name] = PeerCounts()
        return found

    def __iter__(self) -> Iterator[tuple[str, PeerCounts]]:
        return iter([*self._named.copy().items(), (OTHER, self.other)])  # a copy: another thread may add one meanwhile


class Counters:
    """What a queue manager has done. batches: transactions with messages from the network, by how many. order_acks:
    milliseconds from the first transmission of a message to its OrderAck; of each destination one message is watched at
    a time. sessions_refused: connections, by LIMIT (there were too many), ALLOW_LIST (not from there) or TLS (it was
    not agreed on). last_refusal: when a message was refused, in seconds since 1970, and its class; not for want of
    room. ends: of sessions, by rule. store_failures: how often the
    store failed; failure: with these words, at `failed_at`, and nothing was committed since, else "". turned: when the
    loop last came round. Both are monotonic, the one in milliseconds, the other in seconds."""

    def __init__(self) -> None:
        self.peers = CountsByPeer()
        self.batches = Spread(MESSAGES)
        self.order_acks = Spread(MILLISECONDS)
        self.sessions_refused = {LIMIT: 0, ALLOW_LIST: 0, TLS: 0}
        self.ends: dict[str, int] = {}
        self.store_failures = 0
        self.failure = ""
        self.failed_at = 0
        self.last_refusal: tuple[int, int] | None = None
        self.turned = 0.0

    def ended(self, rule: str) -> None:
        """A session is over, by this rule."""
        self.ends[rule] = self.ends.get(rule, 0) + 1

    def store_failed(self, reason: str, now: int) -> None:
        """The store cannot do what was asked. now: monotonic milliseconds."""
        self.store_failures += 1
        self.failure = reason
        self.failed_at = now
