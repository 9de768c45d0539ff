"""Sessions and peers: which connections there are and whose, how they begin and end, and how many there may be.

Times: `now` monotonic milliseconds.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from mqqb import guids
from mqqb.connection import OPEN
from mqqb.session import Session
from mqqb.streams import Entry, OutgoingStream

from ordack.broker.serve_log import ERROR, SAME_AGAIN_S, Operator
from ordack.broker.streams import PredictingSession
from ordack.config import classes
from ordack.config.config import Config
from ordack.config.names import PeerNames
from ordack.store import ALLOW_LIST, LIMIT, Counters, CountsByPeer, PeerCounts, StoreError

PATIENCE = 16


class Turns:
    """Which of the outgoing queues that share a connection sends its next message (B-305): that with the highest
    priority, of equal ones that whose last turn was longest ago. Transactional messages have priority 0 (B-287), so
    each PATIENCE-th turn belongs to the queue that has waited longest. count: how many there have been; a queue that
    joins sets its `turn` to that."""

    def __init__(self) -> None:
        self.count = 0

    def among(self, queues: Iterable[Any]) -> Iterator[tuple[Any, Entry]]:
        """What to send next, and from which queue, until none has anything. Whoever asks for the one after has sent
        this one, or taken it out of its stream."""
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
                yield queue, entry
                self.count += 1
                queue.turn = self.count
                _join(waiting, queue, place)


def _join(waiting: list[tuple[int, int, int, Any]], queue: Any, place: int) -> None:
    entry = queue.stream.next_to_send()
    if entry is not None:
        heapq.heappush(waiting, (-entry.priority, queue.turn, place, queue))


AHEAD_BYTES = 1 << 20  # given to a transport at once, before it has said whether it takes more; and a packet


class Pace:
    """What was written to one connection, and how much of it has left. A long packet on a slow line is no silence: the
    times of B-148 and B-151 count from when the message has left."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._written = 0
        self._held = 0  # of them, when that was told last; then
        self._seen = 0  # so many had been written
        self._waiting = 0  # bytes of messages that are about to be written
        # When it is over, and what has to have left before.
        self._timers: WeakKeyDictionary[OutgoingStream, tuple[int, int]] = WeakKeyDictionary()
        self._come = 0
        self._packet = -1  # where in what has come the unfinished packet begins; it has
        self._half = 0  # so many bytes of it,
        self._began = 0  # the first of them since then

    @property
    def room(self) -> int:
        """Another message may be sent before what was sent has been written, if this is above 0; it counts down by the
        bytes of each."""
        return AHEAD_BYTES - self._waiting

    @property
    def is_under_way(self) -> bool:
        """Has not all left that was written, as far as `holds` was told?"""
        return self._held > 0 or self._seen < self._written

    def sends(self, count: int, stream: OutgoingStream | None = None) -> None:
        """Messages of so many bytes were given to the session. stream: of which they are the oldest that waits for its
        OrderAck. Its timer may run since something that is gone by now, and counts once these have left."""
        self._waiting += count
        if stream is not None:
            self._timers.pop(stream, None)

    def wrote(self, count: int) -> None:
        """So many bytes were given to the transport, all that the session had."""
        self._written += count
        self._waiting = 0

    def holds(self, count: int) -> None:
        """So many of the bytes that were written are still on this machine; as long as nothing is told, none."""
        if self._held and self._written - count > self._seen - self._held:
            self._session.progressed()
        self._held = count
        self._seen = self._written

    def run_timer(self, stream: OutgoingStream, now: int) -> None:
        """Run the timer of a stream that this connection serves; its time counts once what was written has left."""
        due = stream.next_timeout()
        if due is None:
            self._timers.pop(stream, None)
            return
        known, mark = self._timers.get(stream, (None, 0))
        if due != known:  # it has been started since
            mark = self._written
        if self._written - self._held < mark:
            stream.postpone(now)
            due = stream.next_timeout()
            assert due is not None
        self._timers[stream] = due, mark
        stream.handle_timeout(now)  # what is sent again because of it counts the next time

    def came(self, count: int, now: int) -> None:
        """So many bytes have come, and the session has taken them."""
        self._come += count
        self._half = self._session.reader.end - self._session.reader.begin
        if self._come - self._half != self._packet:
            self._packet = self._come - self._half
            self._began = now

    def too_slow_at(self, timeout: int, rate: int) -> int | None:
        """When the packet that is arriving will have taken more than `timeout` ms, and come at less than `rate` bytes a
        second, if nothing more of it comes; None if there is none."""
        return self._began + timeout + 1000 * self._half // rate + 1 if self._half else None


# Idle, stopped, the peer went away: nothing to tell an operator. Of a hop that leads here its Connector tells.
EVERYDAY_ENDS = ("B-147", "B-163", "B-298", "B-413")

GONE_MAX = 1000
Hop = tuple[str, int]


class PeerLink:
    """One connection: its session, the peer's IP address or the name of its serial line, and the hop that it leads to,
    if this side opened it or it is a serial line. heard: when something came over it last, ms. certificate: the name in
    the peer's, "" without TLS. peer_name: what people call the peer, once the session is open. number: no other has
    it.

    Set `writable` False while the transport takes no more: acknowledgements still go out, messages wait.
    """

    def __init__(
        self, number: int, session: PredictingSession, address: str, hop: Hop | None, peers: CountsByPeer, now: int
    ) -> None:
        self.number = number
        self.session = session
        self.address = address
        self.hop = hop
        self.heard = now
        self.certificate = ""
        self.peer_name: str | None = None
        self.counts = peers.of(self.name)
        self.counts.sessions += 1
        self.writable = True
        self.was_open = False
        self.alarms: list[int] = []  # when it is to be looked at, ms; the first is the last here
        self.pace = Pace(session)
        self.turns = Turns()

    @property
    def name(self) -> str:
        """What people call its peer."""
        return self.hop[0] if self.hop else self.address

    def count_as(self, counts: PeerCounts) -> None:
        """From now on what it does is counted there."""
        self.counts.sessions -= 1
        self.counts = counts
        self.counts.sessions += 1

    @property
    def is_open(self) -> bool:
        """May messages travel on it?"""
        return self.session.state == OPEN

    @property
    def peer(self) -> bytes:
        """The GUID of the queue manager at its other end."""
        return self.session.remote_guid


class Gone(NamedTuple):
    """A peer without a session: what people called it and its address in its last one, and when it was last heard,
    ms."""

    name: str
    address: str
    heard: int


class Links:
    """All connections. guid: of this queue manager. ended: is called with each link whose session is over, once, when
    it is here no more. max_sessions: may be set lower than the Config says. counters: what this queue manager has done.
    gone: peers that had a session, by GUID; the GONE_MAX that went last. Another thread may copy it.
    """

    def __init__(self, guid: bytes, config: Config, operator: Operator, ended: Callable[[PeerLink], None]) -> None:
        self.max_sessions = config.max_sessions
        self.counters = Counters()
        self.gone: dict[bytes, Gone] = {}
        self._guid = guid
        self._config = config
        self._operator = operator
        self._ended = ended
        self._links: dict[PeerLink, None] = {}
        self._with_hop: dict[PeerLink, None] = {}  # of them
        self.leaving: dict[PeerLink, None] = {}  # their bytes have not all left, as far as is known
        self._alarms: list[tuple[int, int]] = []  # a heap: when to look at the latest at which link, by its number
        self._by_number: dict[int, PeerLink] = {}
        self._numbers = itertools.count()
        self._by_guid: dict[bytes, list[PeerLink]] = {}
        self._half_received: dict[PeerLink, int] = {}  # bytes of an unfinished packet
        self._touched: dict[PeerLink, None] = {}  # these have something to write, or are to be shut
        self._at: Counter[str] = Counter()  # how many there are with each address, or are to be
        self._expected = 0
        self._told: dict[str, tuple[int, int]] = {}  # of each kind: how many when it was last told, when to tell again

    def __iter__(self) -> Iterator[PeerLink]:
        return iter(self._links)

    def __getitem__(self, place: int) -> PeerLink:
        return list(self._links)[place]

    def snapshot(self) -> list[PeerLink]:
        """All that there are, for another thread."""
        return list(self._links)

    def __len__(self) -> int:
        return len(self._links)

    @property
    def peers(self) -> Set[bytes]:
        """The queue managers that any have been open with."""
        return self._by_guid.keys()

    def with_peer(self, guid: bytes) -> list[PeerLink]:
        """Those with this queue manager that have been open."""
        return self._by_guid.get(guid, [])

    @property
    def hops(self) -> set[Hop]:
        """Those that links lead to."""
        return {link.hop for link in self._with_hop if link.hop}

    # ---- for operators

    def report(self) -> list[dict[str, Any]]:
        """Return the state of each session."""
        return [
            {
                "name": link.name,
                "address": link.address,
                "guid": guids.guid_text(link.peer),
                "peer_name": link.peer_name,
                "certificate": link.certificate,
                "state": link.session.state,
                "initiator": link.session.initiator,
                "in_flight": len(link.session.window.in_flight),
            }
            for link in self
        ]

    def refusals(self) -> dict[str, dict[str, int]]:
        """Count refusals since the start: of connections by reason, of messages by class, repetitions included."""
        messages: Counter[str] = Counter()
        for _, counts in self.counters.peers:
            for number, count in counts.refused.items():
                messages[classes.label(number) if number else "no room"] += count
        connections = {reason: count for reason, count in self.counters.sessions_refused.items() if count}
        return {"connections": connections, "messages": dict(messages)}

    # ---- how they begin

    def accept(self, address: str, now: int, hop: Hop | None = None) -> PeerLink | None:
        """A peer has connected from this IP address, or over the serial line that is this hop; None: it is one too
        many (B-435)."""
        return None if self._is_too_many(address, now) else self._add(False, address, hop, now)

    def not_admitted(self, address: str, now: int, reason: str, kind: str = ALLOW_LIST) -> None:
        """A peer that has connected from this IP address may not connect there. kind: ALLOW_LIST or TLS."""
        self._refuse(kind, address, now, reason)

    def expect(self, address: str, now: int) -> bool:
        """A connection from this IP address may become a session, once TLS is agreed on: it counts as one until
        `expected`. False: it is one too many (B-435)."""
        if self._is_too_many(address, now):
            return False
        self._at[address] += 1
        self._expected += 1
        return True

    def expected(self, address: str) -> None:
        """Something has come of what `expect` was told of: it is a session or gone."""
        self._expected -= 1
        self._leave(address)

    def _is_too_many(self, address: str, now: int) -> bool:
        """Is a connection from this IP address one too many? Then it is refused."""
        if not self.would_refuse(address):
            return False
        self._refuse(LIMIT, address, now, f"{self._at[address]} sessions from there, {len(self)} in all")
        return True

    def _refuse(self, kind: str, address: str, now: int, reason: str) -> None:
        """Count a connection that is refused, and tell of it now and then."""
        refused = self.counters.sessions_refused
        refused[kind] += 1
        told, due = self._told.get(kind, (0, now))
        if now >= due:
            self._told[kind] = refused[kind], now + 1000 * SAME_AGAIN_S
            self._operator.tell(
                f"{address}: refused, {reason}; {refused[kind] - told} refused since this was last told",
                peer=address,
                rule="B-435",
            )

    def would_refuse(self, address: str) -> bool:
        """Would a connection from this IP address be one too many now (B-202, B-206)?"""
        return (
            len(self) + self._expected >= self.max_sessions
            or self._at[address] >= self._config.max_sessions_per_address
        )

    def connect(self, hop: Hop, address: str, now: int, pinged: bool) -> PeerLink:
        """This side has connected to a hop, whose IP address is `address`; pinged: a ping had found it willing."""
        return self._add(True, address, hop, now, pinged)

    def _add(self, initiator: bool, address: str, hop: Hop | None, now: int, pinged: bool = False) -> PeerLink:
        session = PredictingSession(initiator, self._guid, now, settings=self._config.session)
        link = PeerLink(next(self._numbers), session, address, hop, self.counters.peers, now)
        self._links[link] = None
        self._by_number[link.number] = link
        if hop:
            self._with_hop[link] = None
        self._at[address] += 1
        link.session.connected(now, pinged)
        self.touch(link)
        return link

    def opened(self, link: PeerLink) -> bool:
        """Its handshake is over, so that its peer is known. Is that news?"""
        if link.was_open or link not in self._links:
            return False
        link.was_open = True
        names, guid = PeerNames(self._config.names), guids.guid_text(link.peer)
        link.peer_name = names.of(guid)
        if link.peer_name:
            link.count_as(self.counters.peers.of(link.peer_name))
        if board := names.of_chip(guid):
            self._operator.tell(
                f"{link.address}: {guid} has connected: if the outbox of {board} was erased, what waited there is "
                "lost; give the name to this one by `ordack board provision --replace`, or in [names]",
                peer=link.address,
            )
        self.gone.pop(link.peer, None)
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

    # ---- what comes and goes

    def receive(self, link: PeerLink, data: bytes, now: int) -> list[object]:
        """The events of the session that these bytes make; none if they meet a defect, which ends the link."""
        self.touch(link)
        link.heard = now
        link.counts.received_bytes += len(data)
        events: list[object] = []
        with self.isolated(link):
            events = link.session.receive_data(data, now)
        if link in self._links:
            self._half_received.pop(link, None)
            if half := link.session.reader.end - link.session.reader.begin:
                self._half_received[link] = half
            link.pace.came(len(data), now)
        return events

    def limit_half_received(self) -> None:
        """Close links until unfinished packets take no more memory than they may (B-435)."""
        while sum(self._half_received.values()) > self._config.max_half_received:
            largest = max(self._half_received, key=self._half_received.__getitem__)
            self.close(largest, "B-435", "unfinished packets take too much memory: the largest gives way")

    def touch(self, link: PeerLink) -> None:
        """It may have something to write."""
        self._touched[link] = None

    def output(self) -> list[tuple[PeerLink, bytes, bool]]:
        """For each link with news: the bytes to write to it, and whether its transport is to be shut after that."""
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
        """See that it is looked at when something of it is due. Whatever moves that forward has touched it."""
        config = self._config
        times = (link.session.next_timeout(), link.pace.too_slow_at(config.packet_timeout, config.minimum_rate))
        due = min((time for time in times if time is not None), default=None)
        if due is not None and (not link.alarms or due < link.alarms[-1]):
            link.alarms.append(due)
            heapq.heappush(self._alarms, (due, link.number))

    def run_timers(self, now: int) -> None:
        """Close what is too slow, and do what is due in the sessions."""
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

    # ---- how they end

    @contextlib.contextmanager
    def isolated(self, link: PeerLink) -> Iterator[None]:
        """A defect of ours that something on this link has met ends this link, not the queue manager."""
        try:
            yield
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the other sessions have no part in it
            self.defect(link, error)

    def defect(self, link: PeerLink, error: Exception) -> None:
        """End this link, for something that it has met has failed in a way that nobody thought of."""
        self._operator.tell("".join(traceback.format_exception(error)).rstrip(), ERROR, peer=link.address)
        self.close(link, "B-435", f"defect in the queue manager, {error!r}")

    def close_all(self, rule: str, reason: str) -> None:
        """End all sessions, for this reason."""
        for link in list(self._links):
            self.close(link, rule, reason)

    def close(self, link: PeerLink, rule: str, reason: str) -> None:
        """End a session, for this reason."""
        link.session.close(rule, reason)
        self.end(link)

    def lost(self, link: PeerLink) -> None:
        """The transport of this link is gone (B-298)."""
        link.session.transport_closed()
        self.end(link)

    def end(self, link: PeerLink) -> None:
        """Forget a link whose session is closed."""
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
        if len(self._alarms) > 1000 + 16 * len(self._links):  # most are of links that are gone
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
                if len(self.gone) >= GONE_MAX:
                    del self.gone[next(iter(self.gone))]
                self.gone[link.peer] = Gone(link.name, link.address, link.heard)
        self._ended(link)
