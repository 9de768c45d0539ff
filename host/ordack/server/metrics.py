"""The metrics of a running queue manager, for Prometheus, from the counts of counters.py.

A separate thread collects them, with its own connection to the store. Labels are bounded: NAMED_MAX queues,
destinations and peers have their own; the label "other" sums the rest.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ordack.broker.status import incoming
from ordack.config import classes
from ordack.config.names import printable
from ordack.store import OTHER, PEERS_MAX, Store
from ordack.store.disk import Spread

if TYPE_CHECKING:
    from ordack.broker.manager import Manager

NAMED_MAX = PEERS_MAX
LABEL_MAX = 120  # characters
NO_ROOM = "no room"

Numbers = dict[str, float]  # by label


def _plain(name: str, meaning: str, value: float | Numbers, label: str = "") -> Metric:
    """A counter if the name ends in _total, else a gauge. value: a number, or numbers by label."""
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    family = kind(name, meaning, labels=[label] if label else [])
    for one, number in value.items() if isinstance(value, dict) else [(None, value)]:
        family.add_metric([] if one is None else [one], number)
    return family


class Metrics:
    """Collects the metrics of one queue manager, for one thread at a time. problems: the problems of `/healthz`."""

    def __init__(self, manager: Manager, problems: Callable[[Store], list[str]]) -> None:
        self._manager = manager
        self._problems = problems
        self._process = ProcessCollector(registry=None)

    def text(self, store: Store) -> tuple[bytes, str]:
        """All metrics in Prometheus' text format, and its media type. store: on a connection of the calling thread.
        Raises StoreError."""
        # not the global registry: a program may run several queue managers
        registry = CollectorRegistry()
        families = [*self._of_store(store), *self._of_queues(store), *self._of_peers(), *self._process.collect()]
        registry.register(_Collected(families))
        encode, media_type = choose_encoder("")
        return encode(registry), media_type

    def _of_store(self, store: Store) -> Iterator[Metric]:
        work, counters = self._manager.store.work, self._manager.links.counters
        apps = self._manager.applications
        healthy = not self._problems(store)
        room = max(store.room(self._manager.config.quota).bytes, 0)
        text = "Time of a commit until the transaction is on the disk"
        yield _histogram("ordack_commit_seconds", text, work.commits, 1_000_000)
        text = "Messages from the network that one transaction stores"
        yield _histogram("ordack_batch_messages", text, counters.batches)
        for name, value, meaning in (
            ("healthy", healthy, "1 if /healthz answers with status 200, else 0"),
            ("syncs_total", work.syncs, "Syncs of the disk, by commits and checkpoints"),
            ("checkpoints_total", work.checkpoints, "Copies of the write-ahead log into the database's file"),
            ("wal_bytes", work.log_bytes, "Content of the write-ahead log"),
            ("store_room_bytes", room, "Bytes that the store can still take, within the quota and on the disk"),
            ("store_failures_total", counters.store_failures, "Failed reads and writes of the store"),
            ("applications", len(apps), "Connected applications"),
            ("application_sent_total", apps.sent, "Messages that connected applications sent"),
            ("application_removed_total", apps.removed, "Messages that connected applications received and removed"),
        ):
            yield _plain(f"ordack_{name}", meaning, value)

    def _of_queues(self, store: Store) -> Iterator[Metric]:
        now = time.time()
        added = self._manager.announced.names.added
        with store.snapshot():
            queues = sorted(store.queues.all(), key=lambda queue: -queue.messages)
            oldest = [
                (queue.name, max(now - arrived / 1e6, 0))
                for queue in queues[:NAMED_MAX]
                if queue.messages and (arrived := store.messages.oldest(queue.identifier)) is not None
            ]
            waiting = sorted(store.outgoing.counts(), key=lambda depth: -depth.messages)
            streams = sorted(incoming(store), key=lambda stream: -stream["reject_count"])
        without_ack = {told["format_name"]: told["no_ack_count"] for told in self._manager.shown.get("outgoing", ())}
        sent = [(one.format_name, one.oldest_sent) for one in waiting[:NAMED_MAX] if one.oldest_sent is not None]
        of = [f"{stream['peer_name'] or stream['source']} {stream['destination']}" for stream in streams]

        def shown(name: str, rows: Iterable[tuple[str, float]], meaning: str, label: str = "destination") -> Metric:
            return _plain(f"ordack_{name}", meaning, _labelled((added(text), number) for text, number in rows), label)

        yield shown("queue_messages", ((q.name, q.messages) for q in queues), "Messages in a local queue", "queue")
        text = "Bytes of the messages in a local queue"
        yield shown("queue_bytes", ((queue.name, queue.bytes) for queue in queues), text, "queue")
        yield shown("queue_oldest_seconds", oldest, "Age of the oldest message in a local queue", "queue")
        by_name = [(one.format_name, one) for one in waiting]
        yield shown(
            "outgoing_messages", ((name, one.messages) for name, one in by_name), "Messages in an outgoing queue"
        )
        text = "Bytes of the messages in an outgoing queue"
        yield shown("outgoing_bytes", ((name, one.bytes) for name, one in by_name), text)
        text = "Age of the oldest message to send in an outgoing queue"
        yield shown("outgoing_oldest_seconds", ((name, max(now - at, 0)) for name, at in sent), text)
        text = "Transactional messages without an OrderAck"
        yield shown("outgoing_unacknowledged", ((name, without_ack.get(name, 0)) for name, _ in by_name), text)
        text = "Refused messages of an incoming stream since its last accepted message"
        yield shown("incoming_refused", zip(of, (stream["reject_count"] for stream in streams)), text, "stream")
        idle = zip(of[:NAMED_MAX], (max(now - stream["last_access"], 0) for stream in streams))
        yield shown("incoming_idle_seconds", idle, "Time since the last message of an incoming stream", "stream")

    def _of_peers(self) -> Iterator[Metric]:
        counters = self._manager.links.counters
        peers = list(counters.peers)
        refused = [(name, counts.refused.copy()) for name, counts in peers]
        classes_of = [(_reason(number), count) for _, by_class in refused for number, count in by_class.items()]
        text = "Refused messages, repetitions included"
        yield _plain("ordack_refused_total", text, _labelled(classes_of), "reason")
        text = "Refused connections: too many (limit), address not listed (allow-list), failed TLS handshake (tls)"
        yield _plain("ordack_sessions_refused_total", text, _labelled(counters.sessions_refused.items()), "reason")
        text = "Ended sessions, by the rule that ended them"
        yield _plain("ordack_sessions_ended_total", text, _labelled(counters.ends.copy().items()), "rule")
        sessions = _labelled((name, counts.sessions) for name, counts in peers)
        text = "Sessions with a peer, handshakes included"
        yield _plain("ordack_peer_sessions", text, sessions, "peer")
        shown = self._manager.shown.get("sessions", ())
        flying = _labelled((told["peer_name"] or told["name"], told["in_flight"]) for told in shown)
        text = "Messages and OrderAcks on the wire that the peer has not acknowledged"
        yield _plain("ordack_peer_in_flight", text, flying, "peer")
        for name, meaning in _OF_PEER.items():
            rows = _labelled((peer, getattr(counts, name)) for peer, counts in peers)
            yield _plain(f"ordack_peer_{name}_total", meaning, rows, "peer")
        rows = _labelled((name, sum(by_class.values())) for name, by_class in refused)
        yield _plain("ordack_peer_refused_total", "Refused messages from a peer", rows, "peer")


_OF_PEER = {
    "received": "Messages from a peer, repetitions included",
    "received_bytes": "Bytes from a peer",
    "sent": "Messages to a peer, repetitions included",
    "sent_bytes": "Bytes to a peer",
    "resent": "Resent transactional messages to a peer",
}


class _Collected(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _histogram(name: str, meaning: str, spread: Spread, unit: int = 1) -> Metric:
    """A cumulative histogram. unit: the spread's units per unit of the metric."""
    counts, total = spread.counts.copy(), spread.total
    bounds = [*(f"{bound / unit:g}" for bound in spread.bounds), "+Inf"]
    family = HistogramMetricFamily(name, meaning)
    family.add_metric([], list(zip(bounds, map(float, itertools.accumulate(counts)))), total / unit)
    return family


def _labelled(rows: Iterable[tuple[str, float]]) -> Numbers:
    """Sums by label for the first NAMED_MAX labels; OTHER sums the rest."""
    found: Numbers = {}
    for text, number in rows:
        label = safe_label(text)
        if label not in found and len(found) >= NAMED_MAX:
            label = OTHER
        found[label] = found.get(label, 0) + number
    return found


def _reason(message_class: int) -> str:
    return (classes.name(message_class) or f"0x{message_class:04X}") if message_class else NO_ROOM


def safe_label(text: str) -> str:
    """A label from an untrusted name: printable, LABEL_MAX characters at most."""
    shown = printable(text[:LABEL_MAX])
    return shown if len(text) <= LABEL_MAX and len(shown) <= LABEL_MAX else shown[: LABEL_MAX - 3] + "..."
