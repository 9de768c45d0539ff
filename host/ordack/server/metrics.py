"""The metrics of a running queue manager, for Prometheus. What is counted is in counters.py; nothing is counted here.

A collection is made in a thread of its own: it reads the counters, and the store on a connection of that thread. Labels
are bounded: NAMED_MAX queues, destinations and peers have their own, and all others are summed as "other".
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ordack.broker.manager import Manager
from ordack.broker.peer_names import PeerNames
from ordack.broker.status import incoming
from ordack.config import classes
from ordack.server.health import glance
from ordack.store import Store
from ordack.store.counters import OTHER, PEERS_MAX, Spread
from ordack.text import printable

NAMED_MAX = PEERS_MAX
LABEL_MAX = 120  # signs of a label
NO_ROOM = "no room"

Numbers = dict[str, float]  # by label


class About(NamedTuple):
    """A metric: "counter", "gauge" or "histogram", its label or "", and what it says."""

    kind: str
    label: str
    meaning: str


METRICS = {
    "ordack_healthy": About("gauge", "", "1 if /healthz answers with status 200, else 0"),
    "ordack_commit_seconds": About("histogram", "", "Time that the disk took to make a transaction durable"),
    "ordack_syncs_total": About("counter", "", "Waits for the disk, of commits and checkpoints"),
    "ordack_checkpoints_total": About("counter", "", "Copies of the write-ahead log into the database's file"),
    "ordack_wal_bytes": About("gauge", "", "Content of the write-ahead log"),
    "ordack_store_room_bytes": About("gauge", "", "What may still be stored, within the quota and on the disk"),
    "ordack_store_failures_total": About("counter", "", "Times that the store could not be read or written"),
    "ordack_batch_messages": About("histogram", "", "Messages from the network that one transaction has stored"),
    "ordack_refused_total": About("counter", "reason", "Messages that were refused; repetitions included"),
    "ordack_order_ack_seconds": About(
        "histogram",
        "",
        "Time from the first transmission of a message to its OrderAck, one message a destination at once",
    ),
    "ordack_applications": About("gauge", "", "Applications that are connected to serve"),
    "ordack_application_sent_total": About("counter", "", "Messages that applications have sent through serve"),
    "ordack_application_removed_total": About("counter", "", "Messages that applications have received and removed"),
    "ordack_queue_messages": About("gauge", "queue", "Messages in a local queue"),
    "ordack_queue_bytes": About("gauge", "queue", "Bytes of the messages in a local queue"),
    "ordack_queue_oldest_seconds": About("gauge", "queue", "Age of the oldest message that can be received"),
    "ordack_outgoing_messages": About("gauge", "destination", "Messages in an outgoing queue"),
    "ordack_outgoing_bytes": About("gauge", "destination", "Bytes of the messages in an outgoing queue"),
    "ordack_outgoing_oldest_seconds": About(
        "gauge", "destination", "Age of the oldest message that is still to be sent"
    ),
    "ordack_outgoing_unacknowledged": About("gauge", "destination", "Transactional messages without an OrderAck"),
    "ordack_incoming_refused": About(
        "gauge", "stream", "Messages of an incoming stream that were not the next one, since its last accepted message"
    ),
    "ordack_incoming_idle_seconds": About("gauge", "stream", "Time since the last message of an incoming stream"),
    "ordack_sessions_refused_total": About(
        "counter",
        "reason",
        "Connections that were refused: too many (limit), not from there (allow-list), no TLS (tls)",
    ),
    "ordack_sessions_ended_total": About("counter", "rule", "Sessions that are over, by the rule that ended them"),
    "ordack_peer_sessions": About("gauge", "peer", "Sessions with a peer, those in their handshake included"),
    "ordack_peer_in_flight": About(
        "gauge", "peer", "Messages and OrderAcks on the wire that the peer has not acknowledged"
    ),
    "ordack_peer_received_total": About("counter", "peer", "Messages from a peer, repetitions included"),
    "ordack_peer_received_bytes_total": About("counter", "peer", "Bytes from a peer"),
    "ordack_peer_sent_total": About("counter", "peer", "Messages that were sent to a peer, repetitions included"),
    "ordack_peer_sent_bytes_total": About("counter", "peer", "Bytes to a peer"),
    "ordack_peer_resent_total": About("counter", "peer", "Transactional messages that were sent to a peer again"),
    "ordack_peer_refused_total": About("counter", "peer", "Messages from a peer that were refused"),
}


class Metrics:
    """Collects the metrics of one queue manager. Not for use by several threads at once."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._process = ProcessCollector(registry=None)

    def text(self, store: Store) -> tuple[bytes, str]:
        """All metrics in Prometheus' text format, and its media type. store: on a connection of the thread that calls.
        Raises StoreError."""
        registry = (
            CollectorRegistry()
        )  # not the global one: a program may run several queue managers, and others' metrics
        registry.register(_Collected([*self._families(store), *self._process.collect()]))
        encode, media_type = choose_encoder("")
        return encode(registry), media_type

    def _families(self, store: Store) -> Iterator[Metric]:
        for name, found in {**self._of_store(store), **self._of_queues(store), **self._of_peers()}.items():
            about = METRICS[name]
            if isinstance(found, Spread):
                yield _as_histogram(name, about, found)
                continue
            make = CounterMetricFamily if about.kind == "counter" else GaugeMetricFamily
            family = make(name, about.meaning, labels=[about.label] if about.label else [])
            for label, number in found.items() if isinstance(found, dict) else [("", found)]:
                family.add_metric([label] if about.label else [], number)
            yield family

    def _of_store(self, store: Store) -> dict[str, float | Spread | Numbers]:
        work, counters = self._manager.store.work, self._manager.links.counters
        applications = self._manager.applications
        return {
            "ordack_healthy": not glance(self._manager, store)["problems"],
            "ordack_commit_seconds": work.commits,
            "ordack_syncs_total": work.syncs,
            "ordack_checkpoints_total": work.checkpoints,
            "ordack_wal_bytes": work.log_bytes,
            "ordack_store_room_bytes": max(store.room(self._manager.config.quota).bytes, 0),
            "ordack_store_failures_total": counters.store_failures,
            "ordack_batch_messages": counters.batches,
            "ordack_order_ack_seconds": counters.order_acks,
            "ordack_applications": len(applications),
            "ordack_application_sent_total": applications.sent,
            "ordack_application_removed_total": applications.removed,
        }

    def _of_queues(self, store: Store) -> dict[str, float | Spread | Numbers]:
        now = time.time()
        names = PeerNames(self._manager.config.names)
        with store.snapshot():
            queues = sorted(store.queues.all(), key=lambda queue: -queue.messages)
            named = queues[:NAMED_MAX]
            oldest = [store.messages.oldest(queue.identifier) if queue.messages else None for queue in named]
            waiting = sorted(store.outgoing.depths(), key=lambda depth: -depth.messages)
            streams = sorted(incoming(store), key=lambda stream: -stream["reject_count"])
        without_ack = {told["format_name"]: told["no_ack_count"] for told in self._manager.shown.get("outgoing", ())}
        sent = waiting[:NAMED_MAX]
        of = [f"{stream['peer_name'] or stream['source']} {stream['destination']}" for stream in streams]
        return {
            "ordack_incoming_refused": _labelled(zip(of, (stream["reject_count"] for stream in streams))),
            "ordack_incoming_idle_seconds": _labelled(
                zip(of[:NAMED_MAX], (max(now - stream["last_access"], 0) for stream in streams))
            ),
            "ordack_queue_messages": _labelled((queue.name, queue.messages) for queue in queues),
            "ordack_queue_bytes": _labelled((queue.name, queue.bytes) for queue in queues),
            "ordack_queue_oldest_seconds": _labelled(
                (queue.name, max(now - arrived / 1e6, 0))
                for queue, arrived in zip(named, oldest)
                if arrived is not None
            ),
            "ordack_outgoing_messages": _labelled(
                (names.added(depth.format_name), depth.messages) for depth in waiting
            ),
            "ordack_outgoing_bytes": _labelled((names.added(depth.format_name), depth.bytes) for depth in waiting),
            "ordack_outgoing_oldest_seconds": _labelled(
                (names.added(depth.format_name), max(now - depth.oldest_sent, 0))
                for depth in sent
                if depth.oldest_sent is not None
            ),
            "ordack_outgoing_unacknowledged": _labelled(
                (names.added(depth.format_name), without_ack.get(depth.format_name, 0)) for depth in waiting
            ),
        }

    def _of_peers(self) -> dict[str, float | Spread | Numbers]:
        counters = self._manager.links.counters
        peers = list(counters.peers)
        refused = [(name, counts.refused.copy()) for name, counts in peers]
        return {
            "ordack_refused_total": _labelled(
                (_reason(message_class), count) for _, by_class in refused for message_class, count in by_class.items()
            ),
            "ordack_sessions_refused_total": _labelled(counters.sessions_refused.items()),
            "ordack_sessions_ended_total": _labelled(counters.ends.copy().items()),
            "ordack_peer_sessions": _labelled((name, counts.sessions) for name, counts in peers),
            "ordack_peer_in_flight": _labelled(
                (told["peer_name"] or told["name"], told["in_flight"])
                for told in self._manager.shown.get("sessions", ())
            ),
            "ordack_peer_received_total": _labelled((name, counts.received) for name, counts in peers),
            "ordack_peer_received_bytes_total": _labelled((name, counts.received_bytes) for name, counts in peers),
            "ordack_peer_sent_total": _labelled((name, counts.sent) for name, counts in peers),
            "ordack_peer_sent_bytes_total": _labelled((name, counts.sent_bytes) for name, counts in peers),
            "ordack_peer_resent_total": _labelled((name, counts.resent) for name, counts in peers),
            "ordack_peer_refused_total": _labelled((name, sum(by_class.values())) for name, by_class in refused),
        }


class _Collected(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _as_histogram(name: str, about: About, spread: Spread) -> Metric:
    """Cumulative, in seconds if the name says so."""
    counts, total = spread.counts.copy(), spread.total
    unit = {"ordack_commit_seconds": 1_000_000, "ordack_order_ack_seconds": 1000}.get(name, 1)
    buckets = []
    so_far = 0
    for bound, count in zip((*spread.bounds, None), counts):
        so_far += count
        buckets.append(("+Inf" if bound is None else f"{bound / unit:g}", float(so_far)))
    family = HistogramMetricFamily(name, about.meaning)
    family.add_metric([], buckets, total / unit)
    return family


def _labelled(rows: Iterable[tuple[str, float]]) -> Numbers:
    """The sums by label: of the first NAMED_MAX that differ each, of all others together."""
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
    """A name that anybody may have chosen, as a label: nothing in it that cannot be printed, and LABEL_MAX signs at
    most."""
    shown = printable(text[:LABEL_MAX])
    return shown if len(text) <= LABEL_MAX and len(shown) <= LABEL_MAX else shown[: LABEL_MAX - 3] + "..."
