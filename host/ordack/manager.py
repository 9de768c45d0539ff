"""The queue manager: queues, sessions and streams tied to the store. No sockets, no clock, no threads.

Whoever has the connections hands in what came on all of them as one batch (`receive`). The batch is decided and stored
in one transaction, and only when that is durable do the sessions hear of it, so that nothing is acknowledged before
(B-098). Then `output` says what to write where. If the store fails, nothing of the batch happened: every session is
closed without an acknowledgement, the state is read again from the store, and the peers keep their messages.

Times: `now` monotonic milliseconds, `wall` seconds since 1970.

A message that this queue manager refuses is answered (`_reject`): a transactional one with a negative FinalAck. That
stays in an acknowledgement queue, an outgoing queue named by the GUID of the peer that the message came from, until a
session with that peer has acknowledged it. An OrderAck that covers the message too must not overtake it, else the
sender concludes that it was stored: no OrderAck goes to a peer unless every such FinalAck for it is on the wire in
front, on the same connection, or on the peer's disk.

A message for another queue manager is put in an outgoing queue as it is, if this one routes, and has no stream here:
only sessions acknowledge it (B-012, B-077).
"""

from __future__ import annotations

import contextlib
import hashlib
import traceback
from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from mqqb import acks, build, compose, confirm, core, guid_names, guids, headers, names, parse, reader
from mqqb.confirm import Confirmation
from mqqb.incoming import IncomingStream
from mqqb.session import OPEN, Acknowledged, Closed, MessageReceived, Noted, Opened, Session
from mqqb.streams import Entry

from ordack import classes, clock, lives, outcome, returns
from ordack.config import PORT, SERIAL_PORT, Config, split_direct
from ordack.log import ERROR, WARNING, Line
from ordack.names import JOURNAL
from ordack.outcome import Back, Outcomes
from ordack.pieces import CHUNK, piece
from ordack.store import (
    PRIVATE,
    Incoming,
    NewMessage,
    NewOutgoing,
    Outgoing,
    OutgoingEntry,
    Queue,
    Store,
    StoreError,
    Waiting,
    first_piece,
    legible,
)
from ordack.tables import LongStream
from ordack.tables import key_of as _key
from ordack.transfer import Transfer
from ordack.turns import Turns

EVERYDAY_ENDS = ("B-147", "B-163", "B-298")  # idle, stopped, the peer went away: nothing to tell an operator
MESSAGE_ID_BLOCK = 256  # reserved at once for OrderAcks, so that not each of them costs a commit
LOWEST_PRIORITY_RANK = 7
PRIVACY_LEVELS = (0, 1, 3, 5)  # wire.md 1.9
FINAL_ACK_BYTES = 512  # at most, with the longest address
TRACED = core.BASE_TR >> 8  # BaseHeader.Flags.TR, in the byte at packet offset 3
LONGEST_KEY = 512  # any name of a queue that can be here fits
NOT_NOW = "too many FinalAcks wait for the peer already"  # the message is dropped, and comes again (B-151)
DUE = 10_000  # messages that are found due at once: what is near each other in the store ends together
ROWS = 500  # that are read at once, to bound memory, or of which one transaction notes how far they have come
SAME_AGAIN_MS = 10_000  # an operator is told at most that often of connections that are refused

Hop = tuple[str, int]


class Link:
    """One connection: its session, the peer's IP address or the name of its serial line, and the hop that it leads to,
    if this side opened it or it is a serial line.

    Set `writable` False while the transport takes no more: acknowledgements still go out, messages wait.
    """

    def __init__(self, session: Session, address: str, hop: Hop | None) -> None:
        self.session = session
        self.address = address
        self.hop = hop
        self.writable = True
        self.was_open = False
        self.transfer = Transfer(session)
        self.outgoing: list[_Outgoing] = []
        self.turns = Turns()
        self.incoming: dict[_IncomingState, None] = {}

    @property
    def is_open(self) -> bool:
        """May messages travel on it?"""
        return self.session.state == OPEN


class _IncomingState:
    """One incoming stream, and the session that its last message came on.

    key: the destination's format name as the source uses it, in lower case. The source numbers its messages for each
    name (B-099), so two names of one queue are two streams: under one key the one with the lower sequence would be
    refused for ever. The name outlives the queue, so that one made again gets nothing twice. target: name or identifier
    of the queue that it means here, "" for none. limit: as in Incoming.
    """

    def __init__(self, source: bytes, key: str, target: str | int, stream: IncomingStream, last_access: int,
                 limit: int | None) -> None:
        self.source = source
        self.key = key
        self.target = target
        self.stream = stream
        self.last_access = last_access
        self.limit = limit
        self.complained = False
        self.link: Link | None = None
        self.final_acks: _Outgoing | None = None  # where the last one that rejected a message waits or waited
        self.waits_for = b""  # GUID of the peer whose session an overdue OrderAck waits for

    @property
    def order_ack_number(self) -> int:
        """What an OrderAck may name; 0: there can be none yet (B-359)."""
        number = self.stream.tx_sequence_number
        return number if self.limit is None else min(number, self.limit)


class _Outgoing:
    """One outgoing queue. A session to its hop serves it, or any with its peer if it is for one by GUID; then whoever
    answers at its hop must be that peer, unless messages for it are routed there.

    returns: it holds what goes back to a peer, rather than messages sent here. rejections: key of the last FinalAck in
    it that rejected a message. transmitted: keys of transactional messages that were sent since the store was told that
    any may be.
    """

    def __init__(self, row: Outgoing, peer: bytes | None, routed: bool, config: Config) -> None:
        self.identifier = row.identifier
        self.format_name = row.format_name
        self.stream = LongStream(array("I", row.record), config.resend_intervals, rolls=False)
        self.hop: Hop | None = None
        self.peer = peer
        self.returns = outcome.is_return_queue(row.format_name)
        self.routed = routed
        self.link: Link | None = None
        self.turn = 0  # see Turns
        self.on_hold = row.on_hold
        self.resends = row.resends
        self.rejections = 0
        self.transmitted: set[int] = set()
        self.told_open = False

    @property
    def is_needed(self) -> bool:
        """Is there something to send, or an answer to wait for, which a peer may be unable to bring unasked (B-414)?"""
        return bool(self.stream.table or self.stream.awaiting_final_ack)


class Manager:
    """One queue manager on an open store, which the caller has locked for it (`Store.lock_manager`).

    log: called with a line of text for whatever an operator should know, with more of them for a defect of ours.
    """

    def __init__(self, store: Store, now: int, config: Config | None = None,
                 log: Callable[[str], None] = lambda _line: None) -> None:
        self.store = store
        self.config = config or Config()
        self._log = log
        self.links: list[Link] = []
        self._touched: dict[Link, None] = {}
        self._by_guid: dict[bytes, list[Link]] = {}
        self._half_received: dict[Link, int] = {}  # bytes of an unfinished packet
        self._message_ids = range(0)
        self._refused = 0
        self._refusals_due = now
        self._history_due = now + 1000 * self.config.history_lifetime
        self._looked_at = -1  # the second when what is due was last looked for
        self.is_behind = False  # not all of it was ended then: poll again soon
        self._shown: object = None
        self._has_failed = False
        self._strangers = lives.Strangers()
        self._clock = clock.Clock()
        self._told_of_newer = False
        self._told: dict[str, int] = {}  # of what an operator hears -> not again before this second
        self.about: dict[str, Any] = {}
        self.connections: Callable[[], dict[Hop, dict[str, Any]]] = dict  # what the network tells of its hops
        store.keep_names({"own": sorted(self.config.own_names), "hops": dict(self.config.next_hops),
                          "public": dict(self.config.public_queues)})
        self._load(now)

    def log(self, text: str, level: str = WARNING, fact: str = "") -> None:
        """Tell the operator; see log.Line. Nothing depends on whether it works."""
        with contextlib.suppress(Exception):
            line = text if isinstance(text, Line) else Line(text, level, fact)
            self._log(Line(legible(line), line.level, line.fact))

    # ---- what the store holds

    def _load(self, now: int) -> None:
        self._note_transmitted()
        for link in self.links:
            link.incoming.clear()
        self._incoming = {(row.source, row.destination): self._restored(row, now) for row in self.store.incoming()}
        self._owed: dict[_IncomingState, None] = {}  # streams with an OrderAck to send in time,
        self.order_acks_due: int | None = None  # the first of them not before this
        self._overdue: dict[bytes, dict[_IncomingState, None]] = {}  # and those that wait for a session, by its peer
        self._history = {(source, message_id): time for source, message_id, time in self.store.history()}
        self._outgoing: dict[int, _Outgoing] = {}
        self._ack_queues: dict[bytes, _Outgoing] = {}  # those with FinalAcks, by peer
        self._by_peer: dict[bytes, list[_Outgoing]] = {}  # these, and those with messages for a peer by its GUID
        self._by_hop: dict[Hop, list[_Outgoing]] = {}  # those that a hop is known for
        self._held_or_resent: dict[_Outgoing, None] = {}  # what an operator has asked for
        self._last_key = 0
        self._old_outcomes: list[int] = []  # to be forgotten
        self._due: list[tuple[int, int]] = []  # as Store.due_outgoing, what is due later first
        self.store.changed()
        with self.store.snapshot():
            self._refresh()
        sequences = returns.by_sequence(self._incoming.values())
        for outgoing in self._ack_queues.values():
            outgoing.rejections = self._last_key  # nothing says which of them reject
            for entry in outgoing.stream.table:
                found = returns.rejected(self.store.outgoing_packet(_key(entry))[0])
                if found and found[0] in sequences:
                    sequences[found[0]].final_acks = outgoing
        self._delete_drained(self._ack_queues.values())

    def _note_transmitted(self) -> None:
        """What the last run may have sent: nobody can say of it any more that it was never sent."""
        last = self.store.last_outgoing_key()
        for row in self.store.outgoing_queues():
            if row.session_open:
                after = 0
                while messages := self.store.waiting_in(row.identifier, after, last, ROWS):
                    self._save_sent(messages)
                    after = messages[-1].key
                self.store.set_session_open(row.identifier, False)

    def _save_sent(self, messages: Iterable[Waiting]) -> None:
        kept = []
        for waiting in messages:
            confirmation = self._confirmation(waiting)
            if confirmation and confirmation.state == confirm.Q and confirmation.sent():
                kept.append((confirmation.record.tobytes(), outcome.due(confirmation, waiting.send_until, held=False),
                             False, waiting.key))
        if kept:
            self.store.keep_outgoing(kept)

    def _confirmation(self, waiting: Waiting) -> Confirmation | None:
        if waiting.confirmation is None:
            return None
        return Confirmation(array("I", waiting.confirmation), self.config.confirmation)

    def _hear(self) -> None:
        """Take up what other processes have changed, if anything."""
        if self.store.changed():
            with self.store.snapshot():
                self._refresh()

    def _refresh(self) -> None:
        """Take up queues, what is in outgoing queues, how far that is numbered."""
        queues = self.store.queues()
        self._queues: dict[str | int, Queue] = {queue.name.lower(): queue for queue in queues}
        self._queues.update((queue.identifier, queue) for queue in queues)
        self._strays = {state: None for state in self._incoming.values() if self._is_stray(state)}
        for row in self.store.outgoing_queues():
            known = self._outgoing.get(row.identifier)
            if known:
                known.stream.adopt(array("I", row.record))
                self._reach(known, row.address)
                if (known.on_hold, known.resends) != (row.on_hold, row.resends):
                    self._held_or_resent[known] = None
            else:
                self._add_outgoing(row)
        self._load_entries()

    def _add_outgoing(self, row: Outgoing) -> None:
        kind, _, rest = row.format_name.partition("=")
        peer = None
        routed = False
        if kind.upper() == "PRIVATE":
            guid = rest.partition("\\")[0]
            peer = guids.guid_bytes(guid)
            hop = self.config.listening if peer == self.store.guid else self.config.next_hops.get(guid.lower())
            routed = hop is not None  # to this queue manager itself, too
        else:
            address = (split_direct(row.format_name) or ("", ""))[0]
            hop = self.config.way(address)
        outgoing = self._outgoing[row.identifier] = _Outgoing(row, peer, routed, self.config)
        if peer:
            self._by_peer.setdefault(peer, []).append(outgoing)
            if outgoing.returns:
                self._ack_queues[peer] = outgoing
        if hop:
            self._lead(outgoing, hop)
        self._reach(outgoing, row.address)  # B-011
        self._attach(outgoing)

    def _load_entries(self, batch: _Batch | None = None) -> None:
        while rows := self.store.outgoing_messages(self._last_key, ROWS):
            for row in rows:
                if batch:
                    batch.touch(self._outgoing[row.outgoing])
                self._put(self._outgoing[row.outgoing], row)
            self._last_key = rows[-1].key

    @staticmethod
    def _put(outgoing: _Outgoing, row: OutgoingEntry, known: Entry | None = None) -> Entry:
        entry = known or Entry(row.key, row.message_id, bool(row.recoverable), bool(row.journal),
                               row.time_stamp << 32 | row.ordinal, row.number, row.priority)
        entry.received_order_ack = bool(row.stored)
        if row.held:
            entry.stream = outgoing.stream
            outgoing.stream.awaiting_final_ack.append(entry)  # no OrderAck can prove it stored any more
        else:
            outgoing.stream.append(entry)
        return entry

    @contextlib.contextmanager
    def _guard(self, now: int) -> Iterator[None]:
        """If the store fails, nothing was done: all sessions end, and the state is again what the store holds."""
        try:
            yield
        except StoreError as error:
            self.log(f"all sessions are closed: {error}", ERROR)
            for link in list(self.links):
                self._close(link, "B-285", "the store failed")
            self._recover(now)

    def _recover(self, now: int) -> bool:
        """Read the state again; if the store fails with that too, no session is served until it does not (`poll`)."""
        self._looked_at = -1
        try:
            with self.store.transaction():  # can it be written?
                pass
            self._load(now)
            self._has_failed = False
        except StoreError:
            self._has_failed = True
        return not self._has_failed

    @contextlib.contextmanager
    def _isolated(self, link: Link) -> Iterator[None]:
        """A defect of ours that something on this link has met ends this link, not the queue manager."""
        try:
            yield
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the other sessions have no part in it
            self.defect(link, error)

    def defect(self, link: Link, error: Exception) -> None:
        """End this link, for something that it has met has failed in a way that nobody thought of."""
        self.log("".join(traceback.format_exception(error)).rstrip(), ERROR)
        self._close(link, "B-435", f"defect in the queue manager, {error!r}")

    # ---- connections

    def accept(self, address: str, now: int, hop: Hop | None = None) -> Link | None:
        """A peer has connected from this IP address, or over the serial line that is this hop; None: it is one too
        many, shut the connection (B-435)."""
        if self.would_refuse(address):
            same = sum(link.address == address for link in self.links)
            self._refused += 1
            if now >= self._refusals_due:
                self._refusals_due = now + SAME_AGAIN_MS
                self.log(f"{address}: refused, {same} sessions from there, {len(self.links)} in all; "
                         f"{self._refused} refused since this was last told")
                self._refused = 0
            return None
        return self._add(Link(Session(False, self.store.guid, now, settings=self.config.session), address, hop), now)

    def would_refuse(self, address: str) -> bool:
        """Would a connection from this IP address be one too many now (B-202, B-206)?"""
        config = self.config
        return (len(self.links) >= config.max_sessions
                or sum(link.address == address for link in self.links) >= config.max_sessions_per_address)

    def connect(self, hop: Hop, address: str, now: int, pinged: bool = False) -> Link:
        """This side has connected to a hop, whose IP address is `address`; pinged: a ping had found it willing."""
        return self._add(Link(Session(True, self.store.guid, now, settings=self.config.session), address, hop), now,
                         pinged)

    def _add(self, link: Link, now: int, pinged: bool = False) -> Link:
        self.links.append(link)
        link.session.is_needed = lambda: any(outgoing.is_needed for outgoing in link.outgoing)
        link.session.connected(now, pinged)
        self._touched[link] = None
        return link

    def lost(self, link: Link) -> None:
        """The transport of this link is gone (B-298)."""
        link.session.transport_closed()
        self._end(link)

    def wanted_hops(self) -> set[Hop]:
        """Where messages wait for a connection that nobody has opened yet (B-302)."""
        there = {link.hop for link in self.links}
        return {hop for hop, queues in self._by_hop.items() if hop not in there and hop[1] != SERIAL_PORT and any(
            outgoing.is_needed and not outgoing.on_hold and outgoing.link is None for outgoing in queues)}

    def output(self) -> list[tuple[Link, bytes, bool]]:
        """For each link with news: the bytes to write to it, and whether its transport is to be shut after that."""
        news = [(link, link.session.data_to_send(), link.session.closed is not None) for link in self._touched]
        self._touched.clear()
        for link, data, _ in news:
            link.transfer.wrote(len(data))
        return news

    def _opened(self, link: Link) -> None:
        if link.was_open or link not in self.links:
            return
        link.was_open = True
        guid = link.session.remote_guid
        same = self._by_guid.setdefault(guid, [])
        same.append(link)
        elsewhere = [other.address for other in same
                     if other.address != link.address and (other.hop is None) == (link.hop is None)]
        if elsewhere:
            self.log(f"{link.address} and {elsewhere[0]}: both say that they are {guids.guid_text(guid)}; is one a "
                     "copy of the other? (B-413)")
        if len(same) > self.config.max_sessions_per_guid:
            self._close(same[0], "B-435", "too many sessions with one queue manager: the oldest gives way")
        for outgoing in self._by_hop.get(link.hop, []) if link.hop else []:
            self._attach(outgoing)
        for waiting in self._by_peer.get(guid, ()):
            self.store.outgoing_queue(waiting.format_name, 0, link.address)
            self._reach(waiting, link.address)
            self._attach(waiting)

    def _reach(self, outgoing: _Outgoing, address: str | None) -> None:
        """Note where the peer is that an outgoing queue is for, unless the configuration says that."""
        hop = self.config.next_hops.get(address, (address, PORT)) if address else None
        if outgoing.peer and not outgoing.routed and hop:
            self._lead(outgoing, hop)

    def _lead(self, outgoing: _Outgoing, hop: Hop) -> None:
        if hop == outgoing.hop:
            return
        if outgoing.hop:
            self._by_hop[outgoing.hop].remove(outgoing)
        outgoing.hop = hop
        self._by_hop.setdefault(hop, []).append(outgoing)

    def look_for_ways(self, hop: Hop) -> None:
        """A connection to this hop is about to be tried: own addresses come and go, and what waits for it with them."""
        for outgoing in [outgoing for outgoing in self._by_hop.get(hop, ()) if outgoing.link is None]:
            address = split_direct(outgoing.format_name)
            if address:
                self._lead(outgoing, self.config.way(address[0]))
                self._attach(outgoing)

    def _attach(self, outgoing: _Outgoing) -> None:
        """Let a session serve an outgoing queue that none serves, if one is open."""
        if outgoing.link is not None:
            return
        candidates = [*self._by_guid.get(outgoing.peer, ())] if outgoing.peer else []
        if outgoing.hop and (outgoing.routed or not outgoing.peer):
            candidates += [link for link in self.links if link.hop == outgoing.hop]
        for link in candidates:
            if link.is_open:
                outgoing.link = link
                outgoing.stream.restart()
                outgoing.turn = link.turns.count
                link.outgoing.append(outgoing)
                return

    def _close(self, link: Link, rule: str, reason: str) -> None:
        link.session.close(rule, reason)
        self._end(link)

    def _end(self, link: Link) -> None:
        """Forget a link whose session is closed. What it served goes to another session, or waits for one."""
        self._touched[link] = None
        if link not in self.links:
            return
        closed = link.session.closed
        if closed and closed.rule not in EVERYDAY_ENDS:
            self.log(f"{link.address}: session closed, {closed.reason} ({closed.rule})",
                     fact=f"{link.address}: {closed.rule}")
        self.links.remove(link)
        self._half_received.pop(link, None)
        same = self._by_guid.get(link.session.remote_guid, [])
        if link in same:
            same.remove(link)
            if not same:
                del self._by_guid[link.session.remote_guid]
        for outgoing in link.outgoing:
            outgoing.link = None
            self._attach(outgoing)
        link.outgoing = []
        for state in link.incoming:
            state.link = None
            if self._take_off(state):
                self._wait_for(state, link.session.remote_guid)  # at once on the next session
            if not state.stream.tx_sequence_number:  # nothing accepted: nothing to remember
                self._forget(state)
        link.incoming = {}

    def _take_off(self, state: _IncomingState) -> bool:
        """Take the stream off the lists of those with an OrderAck to send; was it on one?"""
        for group in (self._owed, self._overdue.get(state.waits_for, {})):
            if state in group:
                del group[state]
                return True
        return False

    def _owe(self, state: _IncomingState) -> None:
        """Its OrderAck is to be sent in time."""
        self._owed[state] = None
        due = state.stream.next_timeout()
        if due is not None and (self.order_acks_due is None or due < self.order_acks_due):
            self.order_acks_due = due

    def _wait_for(self, state: _IncomingState, guid: bytes) -> None:
        """Its OrderAck is overdue: to be sent as soon as a session with this peer takes it."""
        state.waits_for = guid
        self._overdue.setdefault(guid, {})[state] = None

    def _forget(self, state: _IncomingState) -> None:
        del self._incoming[state.source, state.key]
        self._take_off(state)
        self._strays.pop(state, None)

    # ---- a batch

    def receive(self, arrivals: Iterable[tuple[Link, bytes]], now: int, wall: int) -> None:
        """Take what came on any number of links: one transaction, then acknowledgements and what else may be sent."""
        if self._has_failed:  # what has come is not taken, so these sessions cannot go on
            for link, _ in arrivals:
                self._close(link, "B-285", "the store fails")
            return
        with self._guard(now):
            self._watch_clock(now, wall)
            work: list[tuple[Link, object]] = []
            links: dict[Link, None] = {}
            for link, data in arrivals:
                links[link] = None
                with self._isolated(link):
                    work += [(link, event) for event in link.session.receive_data(data, now)]
                if link in self.links:
                    self._half_received[link] = link.session.half_received
                    link.transfer.came(len(data), now)
            self._touched.update(links)
            try:
                self._handle(work, now, wall)
            except StoreError:
                raise
            except Exception as error:  # noqa: BLE001 - a defect that one link has met is not the others' end
                self.log(f"a batch is handled again, link by link, after {error!r}")
                for link in links:
                    try:
                        self._handle([(of, event) for of, event in work if of is link], now, wall)
                    except StoreError:
                        raise
                    except Exception as cause:  # noqa: BLE001
                        self.defect(link, cause)
            while sum(self._half_received.values()) > self.config.max_half_received:
                largest = max(self._half_received, key=self._half_received.__getitem__)
                self._close(largest, "B-435", "unfinished packets take too much memory: the largest gives way")
            for link in links:
                self._dispatch(link, now, wall)
            self._send_order_acks(now, wall)

    def _handle(self, work: list[tuple[Link, object]], now: int, wall: int) -> None:
        """Decide about events and store the outcome. If anything raises, nothing was decided and nothing stored."""
        if not any(isinstance(event, (MessageReceived, Acknowledged)) for _, event in work):
            batch = _Batch(Outcomes(self.store, wall, self.config))
            for link, event in work:
                self._decide(batch, link, event, now, wall)
            return
        def decide(batch: _Batch) -> None:
            for link, event in work:
                self._decide(batch, link, event, now, wall)

        batch = self._transact(now, wall, decide)
        for link, recoverable in batch.stored:
            link.session.stored(recoverable, now)

    def _transact(self, now: int, wall: int, decide: Callable[[_Batch], object]) -> _Batch:
        """Run `decide` on a new batch and write what it has decided, in one transaction. If anything raises, nothing
        was decided and nothing stored."""
        batch = _Batch(Outcomes(self.store, wall, self.config))
        self._hear()  # what there is while others may still write
        last_key = self._last_key
        try:
            with self.store.transaction():
                self._hear()
                last_key = self._last_key
                decide(batch)
                self._write(batch, wall)
        except StoreError:
            raise
        except Exception:
            self._undo(batch, last_key, now)
            raise
        for key, outgoing in batch.outgoing_of.items():
            outgoing.transmitted.discard(key)  # the store knows it now
        return batch

    def _undo(self, batch: _Batch, last_key: int, now: int) -> None:
        """Bring what a batch has changed in memory back to what the store holds, without touching the sessions."""
        with self.store.transaction():
            records = {(row.source, row.destination): row for row in self.store.incoming()}
            for place, row in records.items():
                if place not in self._incoming:
                    self._incoming[place] = self._restored(row, now)
            for place, state in self._incoming.items():
                state.stream.record[:] = array("I", records[place].record if place in records else (0, 0, 0, 0))
                state.limit = records[place].limit if place in records else None
            self._history = {(source, message_id): time for source, message_id, time in self.store.history()}
            self._last_key = last_key
            self._put_again(batch, last_key, now)
            there = {row.identifier for row in self.store.outgoing_queues()}
            for outgoing in [outgoing for outgoing in self._outgoing.values() if outgoing.identifier not in there]:
                self._remove_outgoing(outgoing)
            self._refresh()

    def _put_again(self, batch: _Batch, last_key: int, now: int) -> None:
        """Fill the streams that a batch has changed from the store, with the entries that sessions know."""
        known: dict[int, Entry] = {}
        for outgoing, taken in batch.before.items():
            stream = outgoing.stream
            known.update((_key(entry), entry) for entry in (*stream.table, *stream.awaiting_final_ack, *taken))
            outgoing.stream = LongStream(stream.record, self.config.resend_intervals, rolls=False)
        for row in self.store.outgoing_messages():
            changed = self._outgoing.get(row.outgoing)
            if changed in batch.before and row.key <= last_key:
                entry = self._put(changed, row, known.get(row.key))
                if entry.awaiting_ack and not row.held:
                    changed.stream.sent(entry, now)

    def _restored(self, row: Incoming, now: int) -> _IncomingState:
        return _IncomingState(row.source, row.destination, self._meaning(row.destination),
                              self._incoming_stream(array("I", row.record), now), row.last_access, row.limit)

    def _incoming_stream(self, record: array[int] | None, now: int) -> IncomingStream:
        return IncomingStream(record, now, self.config.order_ack_timeout, self.config.maximum_order_ack_delay)

    def _remove_outgoing(self, outgoing: _Outgoing) -> None:
        del self._outgoing[outgoing.identifier]
        if outgoing.peer:
            self._by_peer[outgoing.peer].remove(outgoing)
            if outgoing.returns:
                del self._ack_queues[outgoing.peer]
        if outgoing.hop:
            self._by_hop[outgoing.hop].remove(outgoing)
        self._held_or_resent.pop(outgoing, None)
        if outgoing.link:
            outgoing.link.outgoing.remove(outgoing)

    def _decide(self, batch: _Batch, link: Link, event: object, now: int, wall: int) -> None:
        if link in batch.refused:
            return
        if isinstance(event, MessageReceived):
            refusal = self._packet(batch, link, event, now, wall)
            if refusal == NOT_NOW:
                self._seldom(link.address, wall, f"{link.address}: a message was not rejected, {refusal}")
            elif refusal:
                batch.refused.add(link)
                self._close(link, "B-285", refusal)
                return
            batch.stored.append((link, event.recoverable))
        elif isinstance(event, Acknowledged):
            for outgoing in link.outgoing:
                entries = [entry for entry in event.entries if entry.stream is outgoing.stream]
                if entries:
                    batch.touch(outgoing, entries)
                    outgoing.stream.remove(entries)
                    batch.passed_on += [_key(entry) for entry in entries if not entry.journal]
                    batch.journaled += [_key(entry) for entry in entries if entry.journal]
        elif isinstance(event, Opened):
            self._opened(link)
        elif isinstance(event, Noted):
            self.log(f"{link.address}: {event.reason} ({event.rule}); let through")
        elif isinstance(event, Closed):
            self._end(link)

    def _packet(self, batch: _Batch, link: Link, event: MessageReceived, now: int, wall: int) -> str:
        """Decide about one packet. A text: why the queue manager has no room for it, and nothing was decided."""
        packet = event.packet
        if isinstance(packet, headers.UserMessage):
            return self._message(batch, link, packet, event.raw, now, wall)
        source = bytes(packet.message.user.queue_manager_address)
        if source not in (names.NULL_GUID, self.store.guid):
            if not self.config.route or (isinstance(packet, reader.OrderAck) and not self._leads_to(source)):
                return ""  # B-363; if the source still waits for an OrderAck, it sends again and gets another
            return self._message(batch, link, packet.message, event.raw, now, wall)
        if isinstance(packet, reader.OrderAck):
            self._order_ack(batch, link, packet, now)
        else:
            self._final_ack(batch, packet, now)
        return ""

    def _leads_to(self, guid: bytes) -> bool:
        """Is there a session with this queue manager, or a way to one?"""
        waiting = self._ack_queues.get(guid)
        return guid in self._by_guid or bool(waiting and waiting.hop) \
            or guids.guid_text(guid)[1:-1].lower() in self.config.next_hops

    def _write(self, batch: _Batch, wall: int) -> None:
        store = self.store
        if batch.messages:
            store.add_messages(batch.messages)
        if batch.forgotten:
            store.delete_incoming(batch.forgotten)  # before the next: a stream may have come back in the same batch
        if batch.incoming:
            store.save_incoming(
                [Incoming(state.source, state.key, tuple(state.stream.record), state.last_access, state.limit)
                 for state in batch.incoming if state.stream.tx_sequence_number])
        if batch.passed_on:
            store.delete_outgoing(batch.passed_on)
        if batch.journaled:
            self._journal(batch)
        if batch.answers:
            self._settle(batch)
        if batch.forwarded:
            self._file_forwarded(batch, wall)
        if batch.outcomes.sent:
            self._take_up(batch)
        for outgoing in batch.outgoing:
            stream = outgoing.stream
            if stream.record[core.OUTGOING_NUMBER] != 1 and not stream.numbered:
                core.roll(stream.record)  # B-096, in the transaction that finds the stream empty
        if batch.outgoing:
            store.save_outgoing([Outgoing(outgoing.identifier, outgoing.format_name, tuple(outgoing.stream.record))
                                 for outgoing in batch.outgoing])
        if batch.history:
            self._save_history(batch)
        self._delete_drained(batch.before)

    def _journal(self, batch: _Batch) -> None:
        """Messages that are not transactional, and have arrived: copies for those with JP (B-226, B-393)."""
        for waiting in self.store.waiting(batch.journaled):
            if waiting.own and waiting.journal * core.USER_JN & core.USER_JP:
                batch.outcomes.copy(JOURNAL, self.store.outgoing_packet(waiting.key)[0], None)
        self.store.delete_outgoing(batch.journaled)

    def _settle(self, batch: _Batch) -> None:
        """Apply acknowledgements to the confirmation process of the messages that they name, in order of arrival."""
        found = {waiting.key: waiting for waiting in self.store.waiting(batch.outgoing_of)}
        settled = {}
        for key, message_class in batch.answers:
            waiting = found[key]
            if key not in settled:
                settled[key] = self._confirmation(waiting), 0
            confirmation, action = settled[key]
            if confirmation is not None:
                more = confirmation.final_ack(message_class) if message_class else confirmation.order_ack()
                settled[key] = confirmation, action | more
                if message_class >= confirm.NACK_BAD_DST_Q and more:
                    name = batch.outgoing_of[key].format_name
                    said = "in doubt, it may have arrived" if confirmation.conclusion().in_doubt \
                        else f"not received: {classes.words(message_class, name)}"
                    self.log(f"message {waiting.message_id} to {name}: {said}", fact=f"{name}: {message_class}")
        batch.gone += batch.outcomes.settle(
            (found[key], confirmation, action) for key, (confirmation, action) in settled.items() if confirmation)

    def _take_up(self, batch: _Batch) -> None:
        """Have in memory what this batch has put in outgoing queues."""
        for row in self.store.outgoing_queues():
            if row.identifier not in self._outgoing:
                self._add_outgoing(row)
            self._reach(self._outgoing[row.identifier], row.address)
        self._load_entries(batch)
        for peer in batch.peers:
            queue = self._ack_queues[peer]
            queue.rejections = self._last_key
        for state, peer in batch.rejected:
            state.final_acks = self._ack_queues[peer]

    # ---- messages

    def _message(self, batch: _Batch, link: Link, message: headers.UserMessage, raw: bytes, now: int,
                 wall: int) -> str:
        """Decide about one message. A text: why the queue manager has no room for it (B-285), nothing was decided."""
        user = message.user
        forward = self.config.route and not self._is_here(user)
        if message.transaction is not None:  # B-247: no look-up, the ordering knows
            return self._forward(batch, link, message, raw, wall) if forward \
                else self._transactional(batch, link, message, raw, now, wall)
        identifier = (bytes(user.source_queue_manager), user.message_id)
        refusal = ""
        if identifier not in self._history:  # B-248
            refusal = (self._forward if forward else self._other)(batch, link, message, raw, wall)
        if not refusal:
            self._note(batch, identifier, wall)  # B-254
        return refusal

    def _other(self, batch: _Batch, link: Link, message: headers.UserMessage, raw: bytes, wall: int) -> str:
        """Decide about a message that is not transactional and that ends here."""
        queue = self._private(self._target(message.user)[1])
        rejection = self._rejection(message, queue, wall)
        if batch.outcomes.room < len(raw) and (not rejection or message.user.flags & core.USER_JN):
            return batch.outcomes.why_full  # B-283: before the queue's
        if not rejection and not self._has_room(batch, queue, raw):
            rejection = confirm.NACK_Q_EXCEED_QUOTA
        if rejection:
            self._tell_of_refusal(link, message, rejection)
            batch.outcomes.undelivered(raw, rejection, self._way_back(link, message.user))
        else:
            self._insert(batch, link, message, raw, queue, wall)
        return ""

    def _transactional(self, batch: _Batch, link: Link, message: headers.UserMessage, raw: bytes, now: int,
                       wall: int) -> str:
        """Decide about a transactional message that ends here."""
        user, transaction = message.user, message.transaction
        assert transaction is not None
        key, target = self._target(user)
        queue = self._private(target)
        state = self._incoming_state(batch, bytes(user.source_queue_manager), key, target, now)
        if state.link is not link:
            if state.link:
                del state.link.incoming[state]
            state.link = link
            link.incoming[state] = None
        state.last_access = wall  # B-274
        stream = state.stream
        before = stream.record[:]
        accepted = stream.accept(transaction)
        rejection = self._rejection(message, queue, wall)
        # The stream has moved on if this was the next message (B-262, A-15). One that it had passed before had
        # its answer then, or was in the queue before that was deleted: it was not rejected.
        last = before[core.INCOMING_TIME_STAMP] << 32 | before[core.INCOMING_ORDINAL]
        place = (transaction.tx_sequence_id, transaction.tx_sequence_number)
        is_new = place > (last, before[core.INCOMING_NUMBER])
        refusal = ""
        if accepted and not rejection:
            if batch.outcomes.room < len(raw):
                refusal = batch.outcomes.why_full
            elif not self._has_room(batch, queue, raw):
                rejection = confirm.NACK_Q_EXCEED_QUOTA  # B-284
        is_unknown = not accepted and returns.is_unknown(state.limit, before, transaction)
        if is_unknown:
            rejection = confirm.NACK_REACH_QUEUE_TIMEOUT
        if rejection and (is_new or is_unknown):
            refusal = self._reject(batch, state, link, message, rejection)
        if refusal:
            stream.record[:] = before
            return refusal
        if is_unknown:
            state.limit = transaction.tx_sequence_number
        elif accepted and place[0] != last:
            state.limit = None
        stream.schedule_order_ack(now, link.session, self.config.early_order_ack)  # B-269
        self._take_off(state)
        self._owe(state)
        batch.incoming[state] = None
        if accepted:
            state.complained = False
            if not rejection:
                self._strays.pop(state, None)
                self._insert(batch, link, message, raw, queue, wall)
        elif last != place[0] or place[1] > before[core.INCOMING_NUMBER]:  # else it is only sent again
            self._complain_of_refusals(state, transaction)
        return ""

    def _rejection(self, message: headers.UserMessage, queue: Queue | None, wall: int) -> int:
        """The class for a message that its destination must refuse before ordering, 0 for a good one."""
        if queue is None:
            return confirm.NACK_BAD_DST_Q  # B-256
        if message.transaction is not None and not queue.transactional:
            return confirm.NACK_NOT_TRANSACTIONAL_Q  # B-257
        if message.transaction is None and queue.transactional:
            return confirm.NACK_NOT_TRANSACTIONAL_MSG  # B-258
        security = message.security
        several = message.multi_queue_format
        if (security is not None and security.signature) or (several is not None and several.signature):
            return confirm.NACK_BAD_SIGNATURE  # B-330: no key here to match it with
        if security is not None and security.flags & outcome.ENCRYPTED_BODY:
            return confirm.NACK_BAD_ENCRYPTION  # B-332: no key here to decrypt it with
        if security is not None and message.properties.privacy_level not in PRIVACY_LEVELS:
            return confirm.NACK_BAD_SIGNATURE  # B-334
        return self._too_late(message, wall)

    def _too_late(self, message: headers.UserMessage, wall: int) -> int:
        """NACK_REACH_QUEUE_TIMEOUT if it has come too late (B-265 to B-267), else 0."""
        life = message.base.time_to_reach_queue
        if life != compose.FOREVER and outcome.elapsed(message, wall) > life + self.config.clock_skew:
            return confirm.NACK_REACH_QUEUE_TIMEOUT
        return 0

    def _has_room(self, batch: _Batch, queue: Queue | None, raw: bytes) -> bool:
        assert queue is not None
        if queue.quota is None:
            return True
        now = self.store.find_queue(queue.identifier)
        return now is None or now.has_room(batch.queued.get(queue.identifier, 0) + len(raw))

    def _insert(self, batch: _Batch, link: Link, message: headers.UserMessage, raw: bytes, queue: Queue | None,
                wall: int) -> None:
        """Put a message in its queue (B-282, B-288), and say so if that is asked for (B-291)."""
        assert queue is not None
        wanted = outcome.wants(message, own=False)
        back = self._way_back(link, message.user)
        if wanted and back.direct:
            wanted |= outcome.DIRECT
        priority = 0 if message.transaction is not None else message.base.flags & core.BASE_PR  # B-287
        batch.messages.append(NewMessage(
            queue.identifier, LOWEST_PRIORITY_RANK - priority, raw, outcome.expires(message, wall), wanted,
            back.peer if wanted else None, back.address if wanted else None))
        batch.queued[queue.identifier] = batch.queued.get(queue.identifier, 0) + len(raw)
        batch.outcomes.room -= len(raw)
        if message.properties.flags & headers.WANT_PA:
            batch.outcomes.administer(message, confirm.ACK_REACH_QUEUE, back)
        if message.base.flags & core.BASE_TR:
            batch.outcomes.report(message)

    @staticmethod
    def _way_back(link: Link, user: headers.UserHeader) -> Back:
        peer = link.session.remote_guid
        return Back(peer, link.address,
                    link.session.direct_format_session and bytes(user.source_queue_manager) == peer)

    def _forward(self, batch: _Batch, link: Link, message: headers.UserMessage, raw: bytes, wall: int) -> str:
        """Decide about a message, or acknowledgement, for another queue manager (B-012, B-259, B-264)."""
        user = message.user
        name = user.destination_queue
        hops = (user.flags & core.USER_RC) + 1
        rejection = confirm.NACK_HOP_COUNT_EXCEEDED if hops > self.config.hop_limit else self._too_late(message, wall)
        if not isinstance(name, guid_names.PrivateQueueFormatNameId) and not (
                isinstance(name, names.DirectQueueFormatName) and split_direct(legible(name.direct_format_name))):
            rejection = confirm.NACK_BAD_DST_Q  # nowhere to send it to
        if rejection:
            if message.transaction is not None:
                return self._reject(batch, None, link, message, rejection)
            self._tell_of_refusal(link, message, rejection)
            batch.outcomes.undelivered(raw, rejection, self._way_back(link, user))
            return ""
        if batch.outcomes.room < len(raw):
            return batch.outcomes.why_full  # B-251
        batch.outcomes.room -= len(raw)
        packet = bytearray(raw)
        build.set_hop_count(packet, hops)
        target = guids.format_name(name).lower() if isinstance(name, names.DirectQueueFormatName) \
            else outcome.return_queue(bytes(user.queue_manager_address))
        batch.forwarded.append((target, message, packet))
        if message.base.flags & core.BASE_TR:
            batch.outcomes.report(message)
        return ""

    def _file_forwarded(self, batch: _Batch, wall: int) -> None:
        rows = []
        for target, message, packet in batch.forwarded:
            until = outcome.send_until(message)
            there = self._by_guid.get(bytes(message.user.queue_manager_address))
            queue = self.store.outgoing_queue(target, wall, there[0].address if there else None)
            rows.append(NewOutgoing(
                queue.identifier, message.user.message_id, 0, 0, 0, bool(message.user.flags & core.USER_DM), 0, packet,
                0 if message.transaction is not None else message.base.flags & core.BASE_PR, own=False,
                send_until=until, due=until + 1))
        self.store.add_outgoing(rows)
        batch.outcomes.sent = True

    def _complain_of_refusals(self, state: _IncomingState, transaction: headers.TransactionHeader) -> None:
        record = state.stream.record
        if record[core.INCOMING_REJECT_COUNT] >= self.config.refusals_told and not state.complained:
            state.complained = True
            last = record[core.INCOMING_TIME_STAMP] << 32 | record[core.INCOMING_ORDINAL]
            count = record[core.INCOMING_REJECT_COUNT]
            self.log(f"{guids.guid_text(state.source)} to {state.key}: {count} messages refused in a row, the last "
                     f"{transaction.tx_sequence_id}/{transaction.tx_sequence_number} after "
                     f"{transaction.previous_tx_sequence_number}, while the last accepted is "
                     f"{last}/{record[core.INCOMING_NUMBER]}: was the source restored from an older copy? (B-426)")

    def _is_here(self, user: headers.UserHeader) -> bool:
        """Does the message end here, as far as its destination says (B-264)? Zero and the own GUID as
        QueueManagerAddress both mean here (A-38)."""
        if user.queue_manager_address not in (names.NULL_GUID, self.store.guid):
            return False
        name = user.destination_queue
        if not isinstance(name, names.DirectQueueFormatName):
            return True
        address = (split_direct(legible(name.direct_format_name)) or ("", ""))[0]
        return not address or not self.config.own_names or address in self.config.own_names  # B-416

    def _target(self, user: headers.UserHeader) -> tuple[str, str | int]:
        """What a message's stream is filed under, and the queue that it means here, "" if none (B-264)."""
        name = user.destination_queue
        here = user.queue_manager_address in (names.NULL_GUID, self.store.guid)
        if isinstance(name, names.DirectQueueFormatName):
            key = legible("DIRECT=" + name.direct_format_name).lower()
            if len(key) > LONGEST_KEY:
                key = key[:LONGEST_KEY - 64] + hashlib.sha256(key.encode()).hexdigest()
        elif isinstance(name, guid_names.PrivateQueueFormatNameId) and here:
            key = f"#{name.private_queue_identifier}"
        else:
            return guids.format_name(name, user.queue_manager_address) if name is not None else "", ""
        return key, self._meaning(key) if here else ""

    def _meaning(self, key: str) -> str | int:
        """Name or identifier of the queue that a stream's key means here, "" if none."""
        if key.startswith("#"):
            return int(key[1:])
        address, queue_name = split_direct(key) or ("", "")
        return queue_name if not self.config.own_names or address in self.config.own_names else ""  # B-416

    def _private(self, target: str | int) -> Queue | None:
        queue = self._queues.get(target)
        return queue if queue and queue.kind == PRIVATE else None  # B-085, B-395

    def _is_stray(self, state: _IncomingState) -> bool:
        queue = self._private(state.target)
        return not (queue and queue.transactional and state.stream.tx_sequence_number)

    def _incoming_state(self, batch: _Batch, source: bytes, key: str, target: str | int, now: int) -> _IncomingState:
        state = self._incoming.get((source, key))
        if state is None:
            if len(self._strays) >= self.config.max_unknown_streams:
                self._forget_strays(batch)  # before this one joins them
            state = self._incoming[source, key] = _IncomingState(
                source, key, target, self._incoming_stream(None, now), 0, None)
            self._strays[state] = None
        return state

    def _forget_strays(self, batch: _Batch) -> None:
        """Drop the older half of the streams that lead nowhere: anybody can make more (B-435)."""
        strays = sorted(self._strays, key=lambda state: state.last_access)
        for state in strays[:len(strays) // 2 + 1]:
            if state.link:
                del state.link.incoming[state]
            self._forget(state)
            batch.incoming.pop(state, None)
            batch.forgotten.append((state.source, state.key))

    def _note(self, batch: _Batch, identifier: tuple[bytes, int], wall: int) -> None:
        self._history.pop(identifier, None)  # so that the oldest is first
        self._history[identifier] = wall
        batch.history[identifier] = wall

    def _save_history(self, batch: _Batch) -> None:
        self.store.save_history([(*identifier, time) for identifier, time in batch.history.items()])
        surplus = len(self._history) - self.config.history_size
        if surplus > 0:
            self._forget_history([identifier for identifier, _ in zip(self._history, range(surplus), strict=False)])

    def _forget_history(self, identifiers: list[tuple[bytes, int]]) -> None:
        for identifier in identifiers:
            del self._history[identifier]
        for first in range(0, len(identifiers), ROWS):
            self.store.delete_history(identifiers[first:first + ROWS])

    # ---- acknowledgements that come

    def _order_ack(self, batch: _Batch, link: Link, packet: reader.OrderAck, now: int) -> None:
        body = packet.body
        acked, number = body.tx_sequence_id, body.tx_sequence_number
        outgoing = self._stream_of(acked >> 32)
        is_given = outgoing is not None and lives.is_given(outgoing.stream, acked, number)
        if not is_given and self.store.outrun(acked >> 32) and not self._told_of_newer:
            self._told_of_newer = True
            self.log(f"an OrderAck names the number {acked}/{number}, newer than any given here: this store was put "
                     "back from a backup and the clock is behind, or a copy of it sends under the same identifier. "
                     "What is sent from now on is numbered above that. If there is a copy: `ordack identity --renew` "
                     "gives it an identifier of its own (B-426, B-413)")
        if outgoing is not None and acked <= outgoing.stream.tx_sequence_id:
            over = lives.over(outgoing.stream, acked, 0 if is_given else number)
            self._is_over(batch, outgoing, over)
            batch.touch(outgoing)
            covered = outgoing.stream.order_ack(body, now)
            batch.touch(outgoing, covered)
            for entry in covered:
                if entry.tx_sequence_id == acked:
                    batch.answer(outgoing, entry, 0)
                else:
                    self._is_over(batch, outgoing, [entry])
            batch.outgoing[outgoing] = None
            if over or covered or acked == outgoing.stream.tx_sequence_id:
                return
        served = {one.stream: one for one in self._outgoing.values() if one is outgoing or (
            one.link and one.link.session.remote_guid == link.session.remote_guid)}
        for stream in self._strangers.refused(acked, outgoing.stream if outgoing else None, served, now):
            self.store.outrun(acked >> 32)
            self._is_over(batch, served[stream], lives.over(stream, acked))

    def _stream_of(self, time_stamp: int) -> _Outgoing | None:
        """The outgoing queue that an OrderAck with this time stamp is for."""
        for outgoing in self._outgoing.values():
            if outgoing.stream.record[core.OUTGOING_TIME_STAMP] == time_stamp:
                return outgoing
        return next((outgoing for outgoing in self._outgoing.values() if lives.has_sent(outgoing.stream, time_stamp)),
                    None)

    def _is_over(self, batch: _Batch, outgoing: _Outgoing, entries: list[Entry]) -> None:
        """These messages have ended in another life of this store; how, nobody knows (B-426)."""
        if entries:
            batch.touch(outgoing, entries)
            outgoing.stream.remove(entries)
            for entry in entries:
                batch.answer(outgoing, entry, confirm.NACK_REACH_QUEUE_TIMEOUT)
            batch.outgoing[outgoing] = None

    def _final_ack(self, batch: _Batch, packet: headers.FinalAck, now: int) -> None:
        body = packet.body
        if body.source_guid != self.store.guid:  # B-241
            return
        message_class = packet.message.properties.message_class
        waiting = self.store.waiting_own(body.message_id)
        if waiting is None:
            self._late_final_ack(body.message_id, message_class)
        elif waiting.confirmation is not None and waiting.outgoing in self._outgoing:
            outgoing = self._outgoing[waiting.outgoing]
            entry = outgoing.stream.final_ack(body, now)
            if entry is not None:
                batch.touch(outgoing, [entry])
                batch.answer(outgoing, entry, message_class)
                batch.outgoing[outgoing] = None

    def _late_final_ack(self, message_id: int, message_class: int) -> None:
        """A FinalAck for a message that has ended changes nothing; an operator may want to know of one (C-34)."""
        record = self.store.outcome(message_id)
        if record is None:
            return
        confirmation = Confirmation(array("I", record), self.config.confirmation)
        if confirmation.final_ack(message_class) & confirm.LOG:
            self.log(f"message {message_id} was dead-lettered, but it was received: its FinalAck came too late (C-34)")

    # ---- acknowledgements that go

    def _message_id(self) -> int:
        if not self._message_ids:
            first = self.store.reserve_message_ids(MESSAGE_ID_BLOCK)
            self._message_ids = range(first, first + MESSAGE_ID_BLOCK)
        identifier, self._message_ids = self._message_ids[0], self._message_ids[1:]
        return identifier

    def _reject(self, batch: _Batch, state: _IncomingState | None, link: Link, message: headers.UserMessage,
                message_class: int) -> str:
        """Refuse a transactional message (B-260). A text: why there is no room to say so.

        The FinalAck is filed under the peer, the next hop back, even where it is addressed to another source (B-011,
        B-362). state: of its stream, if it ends here.
        """
        back = self._way_back(link, message.user)
        peer = back.peer
        waiting = self._ack_queues.get(peer)
        if waiting and len(waiting.stream.table) >= self.config.max_peer_final_acks:
            return NOT_NOW
        if batch.outcomes.room < FINAL_ACK_BYTES:
            return batch.outcomes.why_full
        self._tell_of_refusal(link, message, message_class)
        batch.outcomes.final_ack(message, message_class, back)
        batch.peers.add(peer)
        if state:
            batch.rejected.append((state, peer))
        if message.properties.flags & headers.WANT_NA:
            batch.outcomes.administer(message, message_class, back)
        return ""

    def _tell_of_refusal(self, link: Link, message: headers.UserMessage, message_class: int) -> None:
        name = outcome.format_name(message.user)
        self.log(f"{link.address}: a message for {name} is refused: {classes.words(message_class, name)}",
                 fact=f"{link.address} {name}: {message_class}")

    def _delete_drained(self, queues: Iterable[_Outgoing]) -> None:
        for queue in [queue for queue in queues if queue.returns and not queue.stream.table]:
            self.store.delete_outgoing_queue(queue.identifier)
            self._remove_outgoing(queue)

    def _send_order_ack(self, state: _IncomingState, now: int, wall: int) -> None:
        """Send a due OrderAck on the session its messages came on, else on any with their sender (B-011, B-414); behind
        the FinalAcks of messages that it covers."""
        stream = state.stream
        self._take_off(state)
        if state.order_ack_number:
            final_acks = state.final_acks
            peer = state.link.session.remote_guid if state.link else state.source
            if final_acks and returns.rejections(final_acks):
                assert final_acks.peer
                peer = final_acks.peer
                candidates = [final_acks.link] if final_acks.link else []
            else:
                candidates = [state.link] if state.link else []
                candidates += self._by_guid.get(peer, []) + self._by_guid.get(state.source, [])
            for link in candidates:
                if link.session.can_send() and (final_acks is None or self._final_acks_are_ahead(link)):
                    direct = link.session.direct_format_session and state.source == link.session.remote_guid
                    destination, host = outcome.order_queue(link.address if direct else None, state.source)
                    record = stream.record
                    packet = acks.order_ack(
                        destination, self.store.guid, self._message_id(), wall, record[core.INCOMING_ORDINAL],
                        record[core.INCOMING_TIME_STAMP], state.order_ack_number, host)
                    link.session.send(None, packet, False, now)
                    self._touched[link] = None
                    break
            else:
                self._wait_for(state, peer)
                return
        stream.order_ack_sent(now)

    def acknowledge(self, now: int, wall: int) -> None:
        """To be called when `order_acks_due` is over: what is due then goes out."""
        with self._guard(now):
            self._send_order_acks(now, wall)

    def _send_order_acks(self, now: int, wall: int) -> None:
        if self.order_acks_due is None or now < self.order_acks_due:
            return
        self.order_acks_due = None
        for state in list(self._owed):
            due = state.stream.next_timeout()
            if due is not None and due <= now:
                self._send_order_ack(state, now, wall)
            else:
                self._owe(state)

    def _final_acks_are_ahead(self, link: Link) -> bool:
        """Is every FinalAck for this link's peer that rejects a message on its disk already, or on the wire of this
        very link?"""
        queue = self._ack_queues.get(link.session.remote_guid)
        rejections = returns.rejections(queue) if queue else []
        return not rejections or (queue is not None and queue.link is link and all(
            entry.awaiting_ack or entry.received_session_ack for entry in rejections))

    def _dispatch(self, link: Link, now: int, wall: int) -> None:
        """Send on a link what waits for it: FinalAcks, then overdue OrderAcks, then messages."""
        if not link.is_open or self._looked_at < 0:
            return
        with self._isolated(link):
            self._send_what_waits(link, now, wall)

    def _send_what_waits(self, link: Link, now: int, wall: int) -> None:
        self._send_from(link, [outgoing for outgoing in link.outgoing if outgoing.returns], now, wall)
        for state in self._overdue.pop(link.session.remote_guid, ()):
            self._send_order_ack(state, now, wall)
        self._send_from(link, [outgoing for outgoing in link.outgoing if not outgoing.returns and not outgoing.on_hold],
                        now, wall)

    def _send_from(self, link: Link, queues: list[_Outgoing], now: int, wall: int) -> None:
        session = link.session
        for outgoing, entry in link.turns.among(queues):
            if not session.can_send() or not (outgoing.returns or (link.writable and link.transfer.has_room)):
                break
            if entry.tx_sequence_number and not outgoing.told_open:
                self.store.set_session_open(outgoing.identifier, True)  # before anything leaves
                outgoing.told_open = True
            packet, until = self.store.outgoing_packet(_key(entry))
            if wall > until:
                due = self.store.waiting([_key(entry)])
                self._transact(now, wall, partial(self._decide_what_is_due, wall=wall, due=due))  # B-311, C-29
                continue
            if entry.tx_sequence_number:
                outgoing.transmitted.add(_key(entry))
                outgoing.stream.prepare(entry, packet, parse.transaction_offset(packet))
            clock.hide_limits(packet)
            session.send(entry, packet, entry.recoverable, now)
            link.transfer.sends(len(packet))
            self._touched[link] = None
            if packet[3] & TRACED:
                self._report_leaving(link, packet, now, wall)

    def _report_leaving(self, link: Link, packet: bytearray, now: int, wall: int) -> None:
        if self.config.report_messages:
            message = outcome.parse(packet)
            self._transact(now, wall, lambda batch: batch.outcomes.report(message, link.address))  # B-294

    # ---- time

    def poll(self, now: int, wall: int) -> None:
        """To be called every few tens of milliseconds: due timers, and what other processes have put in the store.

        Nothing is sent before the first call."""
        if self._has_failed and not self._recover(now):
            return
        with self._guard(now):
            self._watch_clock(now, wall)
            for link in list(self.links):
                with self._isolated(link):
                    if link.transfer.is_too_slow(self.config.packet_timeout, self.config.minimum_rate, now):
                        self._close(link, "B-435", "a packet comes too slowly")
                    elif link.session.handle_timeout(now):
                        self._end(link)
                self._touched[link] = None
            self._send_order_acks(now, wall)
            for link in self.links:
                for outgoing in link.outgoing:
                    link.transfer.run_timer(outgoing.stream, now)
            if now >= self._history_due:  # B-154
                self._history_due = now + 1000 * self.config.history_lifetime
                self._forget_history([identifier for identifier, time in self._history.items()
                                      if time < wall - self.config.history_lifetime])
                self._old_outcomes = self.store.old_outcomes(self.config.outcomes_kept)
            self._hear()
            for outgoing in list(self._held_or_resent):
                self._obey(outgoing, now)
            if self._looked_at < 0:
                self._forsake_foreign(now, wall)
            for link in list(self.links):
                self._dispatch(link, now, wall)
            if self._looked_at < 0:
                return
            if wall != self._looked_at:
                self._look_around(now, wall)
            elif self.is_behind:
                self._end_what_is_due(now, wall)

    def _watch_clock(self, now: int, wall: int) -> None:
        def move(first: int, last: int, step: int) -> None:
            self.store.move(first, last, step)
            self._history = {(source, message_id): time for source, message_id, time in self.store.history()}

        self._clock.watch(now, wall, move)

    def _obey(self, outgoing: _Outgoing, now: int) -> None:
        """Do what an operator has asked for: pause, resume, resend (B-345, B-346, B-425)."""
        del self._held_or_resent[outgoing]
        row = next(row for row in self.store.outgoing_queues() if row.identifier == outgoing.identifier)
        if row.resends != outgoing.resends:
            outgoing.resends = row.resends
            outgoing.stream.resend(now)
        if row.on_hold != outgoing.on_hold:
            outgoing.on_hold = row.on_hold
            if outgoing.link:
                if row.on_hold:
                    outgoing.link.session.pause(now)
                elif not any(other.on_hold for other in outgoing.link.outgoing):
                    outgoing.link.session.resume(now)
                self._touched[outgoing.link] = None

    def _look_around(self, now: int, wall: int) -> None:
        """Once in a second: what time itself does to messages, and what others may see of it."""
        self._looked_at = wall
        self._give_up_final_acks(wall)
        self._end_what_is_due(now, wall)
        self._note_closed()
        status = self.report()
        if status != self._shown:
            self._shown = status
            with contextlib.suppress(StoreError):  # a full disk: nothing depends on it
                self.store.write_status(status)

    def _give_up_final_acks(self, wall: int) -> None:
        """Those for peers that have not come back, the oldest, if too many wait (B-435)."""
        known = (state.source for state in self._incoming.values() if state not in self._strays)
        for identifier, count in returns.surplus(self._ack_queues.values(), known, self.config):
            self.store.give_up_acknowledgements(identifier, count)
            self._seldom("FinalAcks", wall, "too many FinalAcks wait for peers that do not come back; the oldest are "
                         f"given up, now those of {self._outgoing[identifier].format_name}")

    def _seldom(self, kind: str, wall: int, text: str) -> None:
        """Tell the operator something of this kind, unless that was done a moment ago."""
        if wall >= self._told.get(kind, 0):
            self._told[kind] = wall + SAME_AGAIN_MS // 1000
            self.log(text)

    def _forsake_foreign(self, now: int, wall: int) -> None:
        """Messages that were sent under an identifier that this queue manager no longer has: nobody can acknowledge
        them to it (C-30). Some of them; nothing is sent before there are none."""
        messages = self.store.foreign_outgoing(CHUNK)
        self.is_behind = len(messages) == CHUNK
        if not self.is_behind:
            self._looked_at = 0

        def decide(batch: _Batch) -> None:
            foreign = []
            for waiting in messages:
                confirmation = self._confirmation(waiting)
                assert confirmation
                foreign.append((waiting, confirmation, confirmation.failed(confirm.NACK_SOURCE_COMPUTER_GUID_CHANGED)))
            self._take_out(batch, batch.outcomes.settle(foreign), messages)

        if messages:
            self._transact(now, wall, decide)

    def _end_what_is_due(self, now: int, wall: int) -> None:
        """A piece of it, `is_behind` if there may be more: sessions and other processes have their turn in between."""
        self.is_behind = False

        def end(work: Callable[[_Batch, int], int]) -> None:
            def decide(batch: _Batch) -> None:
                _, is_more = piece(lambda limit: work(batch, limit))
                self.is_behind |= is_more

            self._transact(now, wall, decide)

        self._due = self._due or self.store.due_outgoing(wall, DUE)[::-1]
        if self._due:
            end(lambda batch, limit: self._decide_some(batch, wall, limit))
            self.is_behind = True  # there may be more than that
        if any(self.store.over(wall, 1)):
            end(lambda batch, limit: batch.outcomes.remove_over(limit))
        if self._old_outcomes:
            end(lambda _batch, limit: self.store.forget_outcomes(self._old_outcomes, limit))

    def _decide_some(self, batch: _Batch, wall: int, limit: int) -> int:
        keys = first_piece(self._due[:-limit - 1:-1])
        del self._due[len(self._due) - len(keys):]
        self._decide_what_is_due(batch, wall, [
            waiting for waiting in self.store.waiting(keys) if waiting.due is not None and waiting.due <= wall])
        return len(keys)

    def _decide_what_is_due(self, batch: _Batch, wall: int, due: list[Waiting]) -> None:
        """Apply deadlines to outgoing messages (B-314, B-316, C-20 to C-24, C-33)."""
        settled, kept, gone, held, given_up = [], [], [], [], []
        for waiting in due:
            confirmation = self._confirmation(waiting)
            if confirmation is None:
                packet = batch.outcomes.give_up(
                    waiting, confirm.NACK_DELETED if waiting.deleted else confirm.NACK_REACH_QUEUE_TIMEOUT)
                if self._outgoing[waiting.outgoing].returns:
                    given_up.append(packet)
                gone.append(waiting.key)
                continue
            if waiting.key in self._outgoing[waiting.outgoing].transmitted and confirmation.state == confirm.Q:
                confirmation.sent()
            action = confirmation.failed(confirm.NACK_DELETED) if waiting.deleted \
                else confirmation.handle_deadline(wall)
            if not action and wall > waiting.send_until:
                action = confirmation.overdue(waiting.send_until)
            if action:
                settled.append((waiting, confirmation, action))
            else:  # it has been sent, and may not be again (C-22)
                stop = wall > waiting.send_until
                kept.append((confirmation.record.tobytes(), outcome.due(confirmation, waiting.send_until, stop), stop,
                             waiting.key))
                if stop:
                    held.append(waiting.key)
        batch.incoming.update(dict.fromkeys(returns.given_up(given_up, self._incoming.values())))
        self.store.keep_outgoing(kept)
        gone += batch.outcomes.settle(settled)
        for name in {self._outgoing[waiting.outgoing].format_name for waiting in due if waiting.key in gone}:
            self._seldom(name, wall, f"{name}: messages were not delivered, or not received, in time; `ordack state` "
                         "tells of each")
        self._take_out(batch, gone, due)
        for outgoing, entries in self._entries(batch, held, due):
            outgoing.stream.hold(entries)

    def _take_out(self, batch: _Batch, keys: list[int], messages: list[Waiting]) -> None:
        for outgoing, entries in self._entries(batch, keys, messages):
            outgoing.stream.remove(entries)
            batch.outgoing[outgoing] = None
        batch.gone += keys

    def _entries(self, batch: _Batch, keys: list[int],
                 messages: list[Waiting]) -> list[tuple[_Outgoing, list[Entry]]]:
        """The entries with these keys, by outgoing queue; it is about to be changed."""
        wanted = set(keys)
        by_queue: dict[int, list[int]] = {}
        for waiting in messages:
            if waiting.key in wanted:
                by_queue.setdefault(waiting.outgoing, []).append(waiting.key)
        found = []
        for identifier, its_keys in by_queue.items():
            outgoing = self._outgoing[identifier]
            entries = outgoing.stream.entries(its_keys)
            batch.touch(outgoing, entries)
            batch.outgoing_of.update((_key(entry), outgoing) for entry in entries)
            found.append((outgoing, entries))
        return found

    def report(self) -> dict[str, Any]:
        """What it is doing, for operators: sessions, and the state of outgoing queues (B-082, B-239). `about`: what
        whoever runs it wants to be shown too."""
        connections = self.connections()
        queues = []
        for outgoing in self._outgoing.values():
            connection = connections.get(outgoing.hop) if outgoing.hop else None
            info = outgoing.stream.transfer_info()
            queues.append({
                "format_name": outgoing.format_name,
                "state": "OnHold" if outgoing.on_hold else "Connected" if outgoing.link
                else connection["state"] if connection else "Inactive",
                "first_non_ack": info.first_non_ack, "last_non_ack": info.last_non_ack, "last_ack": info.last_ack,
                "next_seq": info.next_seq, "last_ack_count": info.last_ack_count, "no_ack_count": info.no_ack_count,
                "no_read_count": info.no_read_count, "resend_count": info.resend_count,
                "resend_interval_ms": info.resend_interval,
                "connection": connection,
            })
        return {**self.about,
                "sessions": [{"name": link.hop[0] if link.hop else link.address, "address": link.address,
                              "guid": guids.guid_text(link.session.remote_guid), "state": link.session.state,
                              "initiator": link.session.initiator} for link in self.links],
                "serial": [connection for connection in connections.values() if "serial" in connection],
                "outgoing": queues}

    def resume(self, link: Link, now: int, wall: int) -> None:
        """The transport of this link takes bytes again."""
        link.writable = True
        if not self._has_failed:
            with self._guard(now):
                self._dispatch(link, now, wall)

    def close(self) -> None:
        """End all sessions (B-163), in the records too: what is sent until the next start was never transmitted."""
        for link in list(self.links):
            self._close(link, "B-163", "the queue manager stops")
        with contextlib.suppress(StoreError):  # then it is as after a crash
            self._note_closed()

    def _note_closed(self) -> None:
        """Note which messages were transmitted in sessions that are over, so that no other one is in doubt (C-83)."""
        for outgoing in self._outgoing.values():
            if outgoing.told_open and outgoing.link is None:
                keys = sorted(outgoing.transmitted)
                for first in range(0, len(keys), ROWS):
                    self._save_sent(self.store.waiting(keys[first:first + ROWS]))
                self.store.set_session_open(outgoing.identifier, False)
                outgoing.told_open = False
                outgoing.transmitted.clear()


class _Batch:
    """What one batch decides, until it is written."""

    def __init__(self, outcomes: Outcomes) -> None:
        self.outcomes = outcomes
        self.messages: list[NewMessage] = []
        self.queued: dict[int, int] = {}  # bytes of these, by queue
        self.incoming: dict[_IncomingState, None] = {}
        self.forgotten: list[tuple[bytes, str]] = []
        self.forwarded: list[tuple[str, headers.UserMessage, bytearray]] = []  # with their outgoing queue
        self.outgoing: dict[_Outgoing, None] = {}  # streams that have moved
        self.before: dict[_Outgoing, list[Entry]] = {}  # whose table is changed, with what was taken out of it
        self.passed_on: list[int] = []  # keys of what sessions have acknowledged, not transactional
        self.journaled: list[int] = []  # those of it with JN or JP
        self.answers: list[tuple[int, int]] = []  # key, class of a FinalAck or 0 for an OrderAck; in order of arrival
        self.outgoing_of: dict[int, _Outgoing] = {}  # by these keys
        self.gone: list[int] = []  # keys of what has ended
        self.history: dict[tuple[bytes, int], int] = {}
        self.rejected: list[tuple[_IncomingState, bytes]] = []  # with the peer under which the FinalAck is filed
        self.peers: set[bytes] = set()  # all of these
        self.stored: list[tuple[Link, bool]] = []  # what the sessions are to hear of, in order
        self.refused: set[Link] = set()

    def touch(self, outgoing: _Outgoing, taken: Iterable[Entry] = ()) -> None:
        """Remember that what the outgoing queue has in memory is changed, and which entries may be gone from there."""
        self.before.setdefault(outgoing, []).extend(taken)

    def answer(self, outgoing: _Outgoing, entry: Entry, message_class: int) -> None:
        """Note what an acknowledgement says of a message."""
        self.answers.append((_key(entry), message_class))
        self.outgoing_of[_key(entry)] = outgoing
