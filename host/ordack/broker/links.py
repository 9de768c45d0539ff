"""Connections of the queue manager: their sessions and peers, their start and end, and their limits.

Times: `now` monotonic milliseconds.
"""

from __future__ import annotations

import heapq
import itertools
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from mqqb import guids
from mqqb.connection import OPEN
from mqqb.streams import Entry

from ordack.broker.announced import Announced
from ordack.broker.pace import Pace
from ordack.broker.peer_history import PeerHistories, PeerHistory
from ordack.broker.serve_log import ERROR, SAME_AGAIN_S, Operator
from ordack.broker.streams import FastSession
from ordack.config import classes
from ordack.config.config import Config
from ordack.store import ALLOW_LIST, LIMIT, Counters, CountsByPeer, PeerCounts, StoreError
from ordack.store.database import Handled

PATIENCE = 16


class FairSchedule:
    """Chooses the outgoing queue that sends next on a shared connection (B-305): the highest priority, then the longest
    wait. Transactional messages have priority 0 (B-287), so each PATIENCE-th turn goes to the queue with the longest
    wait. count: turns so far; a joining queue starts with this `turn`. is_highest: no waiting queue has a higher
    priority than the message in turn, so that messages behind it may leave with it."""

    def __init__(self) -> None:
        self.count = 0
        self.is_highest = True

    def among(self, queues: Iterable[Any]) -> Iterator[tuple[Any, Entry]]:
        """Yield each next message with its queue until all queues are empty. Before asking for another one, the caller
        sends the message or removes it from its stream."""
        waiting: list[tuple[int, int, int, Any]] = []
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
                self.is_highest = not waiting or waiting[0][0] >= -entry.priority
                yield queue, entry
                self.count += 1
                queue.turn = self.count
                _join(waiting, queue, place)


def _join(waiting: list[tuple[int, int, int, Any]], queue: Any, place: int) -> None:
    entry = queue.stream.next_to_send()
    if entry is not None:
        heapq.heappush(waiting, (-entry.priority, queue.turn, place, queue))


# Normal ends that no operator needs to hear of. The Connector reports hops that lead back here.
EVERYDAY_ENDS = ("B-147", "B-163", "B-298", "B-413")

Hop = tuple[str, int]


class PeerLink:
    """One connection with its session. address: the peer's IP address, or the name of its serial line. hop: set if this
    side opened the connection or it is a serial line. heard: time of the last received data, ms. certificate: the name
    in the peer's certificate, "" without TLS. peer_name: the peer's configured name, once the session is open. history:
    of the peer, once the session is open. number: unique.

    Set `writable` False while the transport is full: acknowledgements still go out, messages wait.
    """

    __slots__ = (
        "_schedule", "_shown", "address", "alarms", "certificate", "counts", "heard", "history", "hop", "is_split",
        "learned", "number", "owner", "pace", "peer_name", "session", "slot", "was_direct", "was_open", "writable",
    )  # fmt: skip

    def __init__(
        self, number: int, session: FastSession, address: str, hop: Hop | None, peers: CountsByPeer, now: int
    ) -> None:
        self.number = number
        self.session = session
        self.address = address
        self.hop = hop
        self.heard = now
        self.certificate = ""
        self.history = PeerHistory()
        self.peer_name: str | None = None
        self.counts = peers.of(self.name)
        self.counts.sessions += 1
        self.writable = True
        self.was_open = False
        self.alarms: list[int] = []  # deadlines to check, ms; the last one is the earliest
        self.pace = Pace(session)
        self.slot = -1  # of the fast path
        self.owner = -1  # of the slot; -1: this link's acknowledgements are part of its session's output
        self.is_split = False  # the session has the beginning of a packet; the fast path may take the packet
        self.learned = 0  # streams since the last message on the fast path
        self.was_direct = False  # direct_format_session when streams were learned
        self._schedule: FairSchedule | None = None
        self._shown: dict[str, Any] = {}

    def report(self) -> dict[str, Any]:
        """Return the state of the session; the same object as before if nothing has changed."""
        session, shown = self.session, self._shown
        in_flight = len(session.window.in_flight)
        if not shown or shown["state"] != session.state:
            self._shown = {
                "name": self.name,
                "address": self.address,
                "guid": guids.guid_text(self.peer),
                "peer_name": self.peer_name,
                "certificate": self.certificate,
                "state": session.state,
                "initiator": session.initiator,
                "in_flight": in_flight,
            }
        elif shown["in_flight"] != in_flight:
            self._shown = {**shown, "in_flight": in_flight}
        return self._shown

    @property
    def schedule(self) -> FairSchedule:
        """Chooses among the outgoing queues of the link."""
        self._schedule = self._schedule or FairSchedule()
        return self._schedule

    @property
    def name(self) -> str:
        """The display name of the peer."""
        return self.hop[0] if self.hop else self.address

    def count_as(self, counts: PeerCounts) -> None:
        """Count in `counts` from now on."""
        self.counts.sessions -= 1
        self.counts = counts
        self.counts.sessions += 1

    @property
    def is_open(self) -> bool:
        """May the link carry messages?"""
        return self.session.state == OPEN

    @property
    def peer(self) -> bytes:
        """The GUID of the peer."""
        return self.session.remote_guid


Arrived = tuple[PeerLink, object, int]  # link, event of its session, arrival time


class Links:
    """All connections. guid: of this queue manager. ended: called once with each removed link. max_sessions: may be set
    below the Config's value. counters: of this queue manager. histories: of its peers."""

    def __init__(
        self, guid: bytes, config: Config, operator: Operator, announced: Announced, ended: Callable[[PeerLink], None]
    ) -> None:
        self.max_sessions = config.max_sessions
        self.counters = Counters()
        self.histories = PeerHistories()
        self._guid = guid
        self._config = config
        self._operator = operator
        self._announced = announced
        self._ended = ended
        self._links: dict[PeerLink, None] = {}
        self._with_hop: dict[PeerLink, None] = {}  # links with a hop
        self.leaving: dict[PeerLink, None] = {}  # links with bytes that may not have left yet
        self._alarms: list[tuple[int, int]] = []  # a heap of deadlines and link numbers
        self._by_number: dict[int, PeerLink] = {}
        self._numbers = itertools.count()
        self._by_guid: dict[bytes, list[PeerLink]] = {}
        self._half_received: dict[PeerLink, int] = {}  # bytes of unfinished packets
        self._touched: dict[PeerLink, None] = {}  # links with data to write, or to shut
        self._at: Counter[str] = Counter()  # links, and expected ones, by address
        self._expected = 0
        self._refused_last: dict[str, tuple[int, str]] = {}  # by kind: time, address and reason
        self._told: dict[str, tuple[int, int]] = {}  # by kind: count when last reported, time of the next report

    def __iter__(self) -> Iterator[PeerLink]:
        return iter(self._links)

    def __getitem__(self, place: int) -> PeerLink:
        return list(self._links)[place]

    def snapshot(self) -> list[PeerLink]:
        """Copy the list of links for another thread."""
        return list(self._links)

    def __len__(self) -> int:
        return len(self._links)

    @property
    def peers(self) -> Set[bytes]:
        """GUIDs of all peers with an opened link."""
        return self._by_guid.keys()

    def with_peer(self, guid: bytes) -> list[PeerLink]:
        """Return the opened links with this peer."""
        return self._by_guid.get(guid, [])

    @property
    def hops(self) -> set[Hop]:
        """The hops of all links."""
        return {link.hop for link in self._with_hop if link.hop}

    # ---- for operators

    def report(self, zero: int) -> dict[str, Any]:
        """Return refusals, the last failure, and the state of each session. zero: ms since 1970 of `now` = 0."""
        return {
            "refused": self.refusals(),
            "refused_at": self.counters.refused_at
            | {kind: (zero + at) // 1000 for kind, (at, _) in self._refused_last.items()},
            "refused_last": {kind: said for kind, (_, said) in self._refused_last.items()},
            "failure": self.counters.failure,
            "sessions": [link.report() for link in self],
        }

    def refusals(self) -> dict[str, dict[str, int]]:
        """Count refusals since the start: of connections by reason, of messages by class, repetitions included."""
        messages: Counter[str] = Counter()
        for _, counts in self.counters.peers:
            for number, count in counts.refused.items():
                messages[classes.reason(number)] += count
        connections = {reason: count for reason, count in self.counters.sessions_refused.items() if count}
        return {"connections": connections, "messages": dict(messages)}

    # ---- begin

    def accept(self, address: str, now: int, hop: Hop | None = None) -> PeerLink | None:
        """Accept a connection from this IP address, or over the serial line `hop`; None: over the limit (B-435)."""
        return None if self._is_too_many(address, now) else self._add(False, address, hop, now)

    def not_admitted(self, address: str, now: int, reason: str, kind: str = ALLOW_LIST) -> None:
        """Refuse a connection from this IP address by policy. kind: ALLOW_LIST or TLS."""
        self._refuse(kind, address, now, reason)

    def expect(self, address: str, now: int) -> bool:
        """Count a connection whose TLS handshake runs as a session until `expected`. False: over the limit (B-435)."""
        if self._is_too_many(address, now):
            return False
        self._at[address] += 1
        self._expected += 1
        return True

    def expected(self, address: str) -> None:
        """End the count of `expect`: the connection is a session or gone."""
        self._expected -= 1
        self._leave(address)

    def _is_too_many(self, address: str, now: int) -> bool:
        """Refuse the connection if it is over the limit; return whether it is."""
        if not self.would_refuse(address):
            return False
        self._refuse(LIMIT, address, now, f"{self._at[address]} sessions from there, {len(self)} in all")
        return True

    def _refuse(self, kind: str, address: str, now: int, reason: str) -> None:
        """Count a refused connection, and report it at intervals."""
        refused = self.counters.sessions_refused
        refused[kind] += 1
        self._refused_last[kind] = now, f"from {address}: {reason}"
        told, due = self._told.get(kind, (0, now))
        if now >= due:
            self._told[kind] = refused[kind], now + 1000 * SAME_AGAIN_S
            self._operator.tell(
                f"{address}: refused, {reason}; {refused[kind] - told} refused since this was last told",
                peer=address,
                rule="B-435",
            )

    def would_refuse(self, address: str) -> bool:
        """Would a connection from this IP address be over the limit (B-202, B-206)?"""
        return (
            len(self) + self._expected >= self.max_sessions
            or self._at[address] >= self._config.max_sessions_per_address
        )

    def connect(self, hop: Hop, address: str, now: int, pinged: bool) -> PeerLink:
        """Add a connection that this side opened to a hop at `address`; pinged: a ping was answered before."""
        return self._add(True, address, hop, now, pinged)

    def _add(self, initiator: bool, address: str, hop: Hop | None, now: int, pinged: bool = False) -> PeerLink:
        session = FastSession(initiator, self._guid, now, settings=self._config.session)
        link = PeerLink(next(self._numbers), session, address, hop, self.counters.peers, now)
        self._links[link] = None
        self._by_number[link.number] = link
        if hop:
            self._with_hop[link] = None
        self._at[address] += 1
        link.session.connected(now, pinged)
        self.touch(link)
        return link

    def opened(self, link: PeerLink, wall: int) -> bool:
        """Register the peer of a link after its handshake; return whether the link is newly open. wall: seconds since
        1970."""
        if link.was_open or link not in self._links:
            return False
        link.was_open = True
        self._announced.take(link, wall)
        names, guid = self._announced.names, guids.guid_text(link.peer)
        link.peer_name = names.of(guid)
        if link.peer_name:
            link.count_as(self.counters.peers.of(link.peer_name))
        if board := names.of_chip(guid):
            self._operator.tell(
                f"{link.address}: {guid} has connected: if the outbox of {board} was erased, what waited there is "
                "lost; give the name to this one by `ordack board provision --replace`, or in [names]",
                peer=link.address,
            )
        link.history = self.histories.of(link.peer)
        same = self._by_guid.setdefault(link.peer, [])
        same.append(link)
        elsewhere = [
            other.address
            for other in same
            if other.address != link.address and (other.hop is None) == (link.hop is None)
        ]
        if elsewhere:
            self._operator.tell(
                f"{link.address} and {elsewhere[0]}: both say that they are {guid}; is one a copy of the other? "
                "(B-413)",
                peer=link.address,
                rule="B-413",
            )
        if len(same) > self._config.max_sessions_per_guid:
            self.close(same[0], "B-435", "too many sessions with one queue manager: the oldest gives way")
        return True

    def _leave(self, address: str) -> None:
        self._at[address] -= 1
        if not self._at[address]:
            del self._at[address]

    # ---- input and output

    def receive(self, link: PeerLink, data: bytes, now: int) -> list[object]:
        """Return the session's events for these bytes; none after a defect, which ends the link."""
        self.touch(link)
        link.heard = now
        link.counts.received_bytes += len(data)
        events: list[object] = []
        with self.isolated(link):
            events = link.session.receive_data(data, now)
        if link in self._links:
            self._half_received.pop(link, None)
            reader = link.session.reader
            if half := reader.end - reader.begin:
                self._half_received[link] = half
            else:
                reader.clear()  # an idle link holds no buffer
            link.pace.came(len(data), now)
        return events

    def completed(self, link: PeerLink, data: bytes, now: int) -> bytes:
        """Take the unfinished packet out of the session, and return it with the bytes that complete it; b"" if they do
        not."""
        reader = link.session.reader
        half = reader.end - reader.begin
        if half + len(data) < reader.total[0]:
            return b""
        whole = bytes(reader.data[reader.begin : reader.end]) + data
        reader.clear()
        self._half_received.pop(link, None)
        link.pace.came(0, now)
        link.counts.received_bytes -= half  # they are counted again
        return whole

    def stored(self, messages: Iterable[tuple[PeerLink, bool]], now: int) -> None:
        """Let sessions acknowledge stored messages: link, recoverable or not."""
        for link, recoverable in messages:
            link.session.stored(recoverable, now)
            self.touch(link)

    def limit_half_received(self) -> None:
        """Close links until unfinished packets fit into their memory limit (B-435)."""
        while self._half_received and sum(self._half_received.values()) > self._config.max_half_received:
            largest = max(self._half_received, key=self._half_received.__getitem__)
            self.close(largest, "B-435", "unfinished packets take too much memory: the largest gives way")

    @property
    def touched(self) -> Iterable[PeerLink]:
        """Links that may have data to write."""
        return self._touched

    def touch(self, link: PeerLink) -> None:
        """Mark a link that may have data to write."""
        self._touched[link] = None

    def output(self) -> list[tuple[PeerLink, bytes, bool]]:
        """Return links with data or an end: link, bytes to write, and whether to shut its transport afterwards."""
        news = [(link, link.session.data_to_send(), link.session.closed is not None) for link in self._touched]
        self._touched.clear()
        for link, data, _ in news:
            link.pace.wrote(len(data))
            link.counts.sent_bytes += len(data)
            if link in self._links:
                self._set_alarm(link)
                if data:
                    self.leaving[link] = None
        return news

    def _set_alarm(self, link: PeerLink) -> None:
        """Set the link's earliest deadline in the heap. Every change of a deadline has touched the link."""
        config = self._config
        times = (link.session.next_timeout(), link.pace.too_slow_at(config.packet_timeout, config.minimum_rate))
        due = min((time for time in times if time is not None), default=None)
        if due is not None and (not link.alarms or due < link.alarms[-1]):
            link.alarms.append(due)
            heapq.heappush(self._alarms, (due, link.number))

    def run_timers(self, now: int) -> None:
        """Close slow links, and run due session timers."""
        while self._alarms and self._alarms[0][0] <= now:
            link = self._by_number.get(heapq.heappop(self._alarms)[1])
            if link is None:
                continue
            link.alarms.pop()
            with self.isolated(link):
                slow = link.pace.too_slow_at(self._config.packet_timeout, self._config.minimum_rate)
                if slow is not None and slow <= now:
                    self.close(link, "B-435", "a packet comes too slowly")
                elif link.session.handle_timeout(now):
                    self.end(link)
            self.touch(link)

    # ---- end

    def isolated(self, link: PeerLink) -> AbstractContextManager[None]:
        """Let a defect end this link only, not the queue manager."""
        return Handled(partial(self.defect, link), Exception)

    def defect(self, link: PeerLink, error: Exception) -> bool:
        """Report a defect, and close the link that met it. False: it is none, but the store's."""
        if isinstance(error, StoreError):
            return False
        self._operator.tell("".join(traceback.format_exception(error)).rstrip(), ERROR, peer=link.address)
        self.close(link, "B-435", f"defect in the queue manager, {error!r}")
        return True

    def close_all(self, rule: str, reason: str) -> None:
        """Close all sessions with this reason."""
        for link in list(self._links):
            self.close(link, rule, reason)

    def close(self, link: PeerLink, rule: str, reason: str) -> None:
        """Close a session with this reason."""
        link.session.close(rule, reason)
        self.end(link)

    def lost(self, link: PeerLink) -> None:
        """End a link whose transport is closed (B-298)."""
        link.session.transport_closed()
        self.end(link)

    def end(self, link: PeerLink) -> None:
        """Remove a link whose session is closed."""
        self.touch(link)
        if link not in self._links:
            return
        link.counts.sessions -= 1
        closed = link.session.closed
        if closed:
            self.counters.ended(closed.rule)
        if closed and closed.rule not in EVERYDAY_ENDS:
            self._operator.tell(
                f"{link.address}: session closed, {closed.reason} ({closed.rule})",
                fact=f"{link.address}: {closed.rule}",
                peer=link.address,
                rule=closed.rule,
            )
        del self._links[link], self._by_number[link.number]
        if len(self._alarms) > 1000 + 16 * len(self._links):  # most belong to removed links
            self._alarms = [alarm for alarm in self._alarms if alarm[1] in self._by_number]
            heapq.heapify(self._alarms)
        self._with_hop.pop(link, None)
        self.leaving.pop(link, None)
        self._leave(link.address)
        self._half_received.pop(link, None)
        same = self._by_guid.get(link.peer, [])
        if link in same:
            same.remove(link)
            if not same:
                del self._by_guid[link.peer]
            history = self.histories.of(link.peer)
            history.name, history.address, history.heard = link.name, link.address, link.heard
        self._ended(link)
