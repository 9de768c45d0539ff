"""The health of a running queue manager, for its HTTP port, its web page and its service manager."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mqqb import guids

from ordack.broker import status
from ordack.broker.peer_history import SPAN_S
from ordack.broker.status import is_full, is_kept, refused_text
from ordack.config.names import PeerNames, counted
from ordack.store import Store, StoreError, StoreFull
from ordack.store.schema import PRIVATE

if TYPE_CHECKING:
    from ordack.broker.manager import Manager

ROWS_MAX = 200  # of each kind
PROBLEMS_MAX = 50
SAMPLE_S = 5.0
SAMPLES_MAX = 180  # 15 minutes
STUCK_S = 10.0  # the event loop turns every 50 ms, even under load


def glance(manager: Manager, store: Store) -> dict[str, Any]:
    """As status.glance, for the queue manager of this process. Call it in another thread, with that thread's own
    connection to the store."""
    counters = manager.links.counters
    quiet = _quiet(manager, time.monotonic())
    return status.glance(store, quiet, {**manager.shown, "failure": counters.failure})


def _quiet(manager: Manager, now: float) -> str:
    """A text saying that the event loop is stuck; "" if it turns."""
    quiet = now - manager.links.counters.turned
    return f"its event loop has not run for {quiet:.0f} s" if quiet > STUCK_S else ""


def restart_helps(manager: Manager, now: float) -> str:
    """Why a restart may help, for a service manager's watchdog and /livez; "" without a reason. now: monotonic seconds.
    A full disk is no reason: a new process would wait too."""
    quiet = _quiet(manager, now)
    if quiet:
        return quiet
    if manager.failure and not isinstance(manager.failure, StoreFull):
        return f"the store cannot be read: {manager.failure}"
    return ""


def sentence(manager: Manager) -> str:
    """One sentence on the health, for the service manager. Call it in the event loop's thread."""
    store = manager.store
    try:
        queues = [queue for queue in store.queues.all() if queue.kind == PRIVATE]
        waiting = store.outgoing.total()
    except StoreError as error:
        return f"the store cannot be read: {error}"
    inside = counted(sum(queue.messages for queue in queues), "message")
    peers = counted(sum(link.is_open for link in manager.links), "peer")
    return f"{counted(len(queues), 'queue')} with {inside}; {peers} connected; {waiting} to be sent or acknowledged"


class Overview:
    """The overview of one queue manager, for one thread with its own connection to the store. samples: (seconds since
    1970, messages in local queues, messages to be sent or acknowledged, messages that came from peers and applications,
    messages that went to them)."""

    def __init__(self, manager: Manager) -> None:
        self.samples: deque[tuple[float, int, int, int, int]] = deque(maxlen=SAMPLES_MAX)
        self._manager = manager

    def sample(self, store: Store) -> None:
        """Keep a sample of now. Raises StoreError."""
        links, applications = self._manager.links, self._manager.applications
        links.histories.sample(time.monotonic())
        peers = [counts for _, counts in links.counters.peers]
        came = applications.sent + sum(counts.received for counts in peers)
        went = applications.removed + sum(counts.sent for counts in peers)
        self.samples.append((round(time.time(), 1), store.queues.total(), store.outgoing.total(), came, went))

    def shown(self, store: Store, find: Mapping[str, str]) -> dict[str, Any]:
        """The whole overview, ready for JSON. find: parts of names of `queues` and `peers`, to select them. Raises
        StoreError."""
        told = glance(self._manager, store)
        queues = sorted(told["queues"], key=lambda queue: (not is_full(queue), -queue["messages"], queue["name"]))
        waiting = sorted(
            (queue for queue in told["outgoing"] if queue["messages"] or queue["on_hold"]),
            key=lambda queue: (queue["oldest_sent"] is None, queue["oldest_sent"] or 0, queue["format_name"]),
        )
        peers, histories = self._peers(store.peer_names()), self._manager.links.histories
        queue_part, peer_part = find.get("queues", "").lower(), find.get("peers", "").lower()
        found = [queue for queue in queues if queue_part in queue["name"].lower()]
        there = [peer for peer in peers if peer_part in "{name} {via} {address} {guid}".format_map(peer).lower()]
        return {
            "time": time.time(),
            "span_s": SPAN_S,
            **{name: told[name] for name in ("store", "guid", "since", "process", "listening", "room", "serial")},
            "problems": told["problems"][:PROBLEMS_MAX],
            "problem_count": len(told["problems"]),
            "refused": refused_text(told),
            "queues": [{**queue, "oldest": _oldest(store, queue)} for queue in found[:ROWS_MAX]],
            "queue_count": len(found),
            "dead_letters": sum(queue["messages"] for queue in queues if is_kept(queue["name"])),
            "outgoing": [
                {name: queue.get(name) for name in ("format_name", "peer_name", "messages", "bytes", "on_hold", "why")}
                for queue in waiting[:ROWS_MAX]
            ],
            "outgoing_count": len(waiting),
            "peers": [{**peer, "history": histories.spans(peer["history"])} for peer in there[:ROWS_MAX]],
            "found_count": len(there),
            "peer_count": len(peers),
            "connected": sum(peer["sessions"] > 0 for peer in peers),
            "samples": list(self.samples),
        }

    def _peers(self, names: PeerNames) -> list[dict[str, Any]]:
        """Present and past peers: named peers first, then the longest silent."""
        now = time.monotonic() * 1000
        links = self._manager.links
        found: dict[bytes, dict[str, Any]] = {
            guid: {"via": past.name, "address": past.address, "sessions": 0, "heard": past.heard, "history": past}
            for guid, past in links.histories.copy().items()
        }
        for link in links.snapshot():
            if link.was_open:
                peer = found.setdefault(link.peer, {"heard": link.heard, "sessions": 0, "history": link.history})
                peer |= {
                    "via": link.name,
                    "address": link.address,
                    "sessions": peer["sessions"] + 1,
                    "heard": max(peer["heard"], link.heard),
                }
        told: list[dict[str, Any]] = []
        for identifier, peer in found.items():
            guid = guids.guid_text(identifier)
            silent = round(max(now - peer.pop("heard"), 0) / 1000, 1)
            told.append({"guid": guid, "name": names.of(guid), **peer, "silent_s": silent})
        return sorted(told, key=lambda peer: (peer["name"] is None, peer["name"] or "", -peer["silent_s"]))


def _oldest(store: Store, queue: dict[str, Any]) -> float | None:
    """Arrival time of the queue's oldest message, in seconds since 1970."""
    found = store.queues.find(queue["name"]) if queue["messages"] else None
    arrived = store.messages.oldest(found.identifier) if found else None
    return None if arrived is None else arrived / 1e6
