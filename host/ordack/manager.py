"""The queue manager: queues, sessions and streams tied to the store. No sockets, no clock, no threads.

Whoever has the connections hands in what came on all of them as one batch (`receive`). The batch is decided and stored
in one transaction, and only when that is durable do the sessions hear of it, so that nothing is acknowledged before
(B-098). Then `output` says what to write where. If the store fails, nothing of the batch happened: every session is
closed without an acknowledgement, the state is read again from the store, and the peers keep their messages.

Times: `now` monotonic milliseconds, `wall` seconds since 1970.

A transactional message to a queue that does not exist, or is for the other kind of message, is answered with a negative
FinalAck (B-256, B-257, B-260). That stays in an acknowledgement queue, an outgoing queue named by the GUID of the peer
that the message came from, until a session with that peer has acknowledged it. An OrderAck that covers the message too
must not overtake it, else the sender concludes that it was stored: no OrderAck goes to a peer unless every FinalAck for
it is on the wire in front, on the same connection, or on the peer's disk. A destination that is not on this queue
manager counts as a queue that does not exist: messages are not forwarded.
"""

from __future__ import annotations

import contextlib
import hashlib
import traceback
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mqqb import core, packets
from mqqb.session import OPEN, Acknowledged, Closed, MessageReceived, Opened, Session
from mqqb.streams import Entry, IncomingStream, OutgoingStream

from ordack.config import PORT, Config, split_direct
from ordack.store import (
    ORDER_QUEUE_ID,
    PRIVATE,
    Incoming,
    NewMessage,
    NewOutgoing,
    Outgoing,
    Queue,
    Store,
    StoreError,
    legible,
)

NACK_BAD_DST_Q = 0x8000
NACK_NOT_TRANSACTIONAL_Q = 0x8009
EVERYDAY_ENDS = ("B-147", "B-163", "B-298")  # idle, stopped, the peer went away: nothing to tell an operator
MESSAGE_ID_BLOCK = 256  # reserved at once for acknowledgements, so that not each of them costs a commit
LOWEST_PRIORITY_RANK = 7
LONGEST_KEY = 512  # any name of a queue that can be here fits
QUOTA = "the quota of the queue manager is reached"
SAME_AGAIN_MS = 10_000  # an operator is told at most that often of connections that are refused

Hop = tuple[str, int]


class Link:
    """One connection: its session, the peer's IP address, and for one that this side opened the hop it leads to.

    Set `writable` False while the transport takes no more: acknowledgements still go out, messages wait.
    """

    def __init__(self, session: Session, address: str, hop: Hop | None) -> None:
        self.session = session
        self.address = address
        self.hop = hop
        self.writable = True
        self.was_open = False
        self.outgoing: list[_Outgoing] = []
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
    of the queue that it means here, "" for none.
    """

    def __init__(self, source: bytes, key: str, target: str | int, stream: IncomingStream, last_access: int) -> None:
        self.source = source
        self.key = key
        self.target = target
        self.stream = stream
        self.last_access = last_access
        self.complained = False
        self.link: Link | None = None
        self.final_acks: _Outgoing | None = None  # where its last one waits or waited
        self.waits_for = b""  # GUID of the peer whose session an overdue OrderAck waits for


class _Outgoing:
    """One outgoing queue. A session to its hop serves it, or, if it holds acknowledgements, any with its peer."""

    def __init__(self, row: Outgoing, hop: Hop | None, peer: bytes | None) -> None:
        self.identifier = row.identifier
        self.format_name = row.format_name
        self.stream = OutgoingStream(array("I", row.record), rolls=False)
        self.hop = hop
        self.peer = peer
        self.link: Link | None = None


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
        with store.transaction():
            self._load(now)

    def log(self, text: str) -> None:
        """Tell the operator. Nothing depends on whether it works."""
        with contextlib.suppress(Exception):
            self._log(legible(text))

    # ---- what the store holds

    def _load(self, now: int) -> None:
        for link in self.links:
            link.incoming.clear()
        self._incoming = {(row.source, row.destination): self._restored(row, now) for row in self.store.incoming()}
        self._owed: dict[_IncomingState, None] = {}  # streams with an OrderAck to send in time
        self._overdue: dict[bytes, dict[_IncomingState, None]] = {}  # and those that wait for a session, by its peer
        self._history = {(source, message_id): time for source, message_id, time in self.store.history()}
        self._outgoing: dict[int, _Outgoing] = {}
        self._ack_queues: dict[bytes, _Outgoing] = {}  # those with FinalAcks, by peer
        self._by_hop: dict[Hop, list[_Outgoing]] = {}  # the others
        self._last_key = 0
        self.store.changed()
        self._refresh()
        self._delete_drained(self._ack_queues.values())

    def _refresh(self) -> None:
        """Take up what other processes have changed: queues, what is in outgoing queues, how far that is numbered."""
        queues = self.store.queues()
        self._queues: dict[str | int, Queue] = {queue.name.lower(): queue for queue in queues}
        self._queues.update((queue.identifier, queue) for queue in queues)
        self._strays = {state: None for state in self._incoming.values() if self._is_stray(state)}
        for row in self.store.outgoing_queues():
            known = self._outgoing.get(row.identifier)
            if known:
                known.stream.record[:] = array("I", row.record)
            else:
                self._add_outgoing(row)
        self._load_entries()

    def _add_outgoing(self, row: Outgoing) -> None:
        kind, _, rest = row.format_name.partition("=")
        hop = peer = None
        if kind.upper() == "PRIVATE":
            peer = packets.guid_bytes(rest.partition("\\")[0])
        else:
            address = (split_direct(row.format_name) or ("", ""))[0]
            hop = self.config.next_hops.get(address, (address, PORT))
        outgoing = self._outgoing[row.identifier] = _Outgoing(row, hop, peer)
        if peer:
            self._ack_queues[peer] = outgoing
        elif hop:
            self._by_hop.setdefault(hop, []).append(outgoing)
        self._attach(outgoing)

    def _load_entries(self) -> None:
        for row in self.store.outgoing_messages(self._last_key):
            self._last_key = row.key
            outgoing = self._outgoing[row.outgoing]
            entry = Entry(row.key, row.message_id, bool(row.recoverable), bool(row.journal),
                          row.time_stamp << 32 | row.ordinal, row.number)
            if row.awaiting_final_ack:
                entry.stream = outgoing.stream
                outgoing.stream.awaiting_final_ack.append(entry)
            else:
                outgoing.stream.append(entry)

    @contextlib.contextmanager
    def _guard(self, now: int) -> Iterator[None]:
        """If the store fails, nothing was done: all sessions end, and the state is again what the store holds."""
        try:
            yield
        except StoreError as error:
            self.log(f"all sessions are closed: {error}")
            for link in list(self.links):
                self._close(link, "B-285", "the store failed")
            with self.store.transaction():
                self._load(now)

    @contextlib.contextmanager
    def _isolated(self, link: Link) -> Iterator[None]:
        """A defect of ours that something on this link has met ends this link, not the queue manager."""
        try:
            yield
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the other sessions have no part in it
            self._defect(link, error)

    def _defect(self, link: Link, error: Exception) -> None:
        self.log("".join(traceback.format_exception(error)).rstrip())
        self._close(link, "B-435", f"defect in the queue manager, {error!r}")

    # ---- connections

    def accept(self, address: str, now: int) -> Link | None:
        """A peer has connected from this IP address; None: it is one too many, shut the connection (B-435)."""
        config = self.config
        same = sum(link.address == address for link in self.links)
        if len(self.links) >= config.max_sessions or same >= config.max_sessions_per_address:
            self._refused += 1
            if now >= self._refusals_due:
                self._refusals_due = now + SAME_AGAIN_MS
                self.log(f"{address}: refused, {same} sessions from there, {len(self.links)} in all; "
                         f"{self._refused} refused since this was last told")
                self._refused = 0
            return None
        return self._add(Link(Session(False, self.store.guid, now, settings=config.session), address, None), now)

    def connect(self, hop: Hop, address: str, now: int) -> Link:
        """This side has connected to a hop, whose IP address is `address`."""
        return self._add(Link(Session(True, self.store.guid, now, settings=self.config.session), address, hop), now)

    def _add(self, link: Link, now: int) -> Link:
        self.links.append(link)
        link.session.connected(now)
        self._touched[link] = None
        return link

    def lost(self, link: Link) -> None:
        """The transport of this link is gone (B-298)."""
        link.session.transport_closed()
        self._end(link)

    def wanted_hops(self) -> set[Hop]:
        """Where messages wait for a connection that nobody has opened yet (B-302)."""
        there = {link.hop for link in self.links}
        return {hop for hop, queues in self._by_hop.items()
                if hop not in there and any(outgoing.stream.table for outgoing in queues)}

    def output(self) -> list[tuple[Link, bytes, bool]]:
        """For each link with news: the bytes to write to it, and whether its transport is to be shut after that."""
        news = [(link, link.session.data_to_send(), link.session.closed is not None) for link in self._touched]
        self._touched.clear()
        return news

    def _opened(self, link: Link) -> None:
        if link.was_open or link not in self.links:
            return
        link.was_open = True
        guid = link.session.remote_guid
        same = self._by_guid.setdefault(guid, [])
        same.append(link)
        if len(same) > self.config.max_sessions_per_guid:
            self._close(same[0], "B-435", "too many sessions with one queue manager: the oldest gives way")
        for outgoing in self._by_hop.get(link.hop, []) if link.hop else []:
            self._attach(outgoing)
        if guid in self._ack_queues:
            self._attach(self._ack_queues[guid])

    def _attach(self, outgoing: _Outgoing) -> None:
        """Let a session serve an outgoing queue that none serves, if one is open."""
        if outgoing.link is not None:
            return
        candidates = self.links if outgoing.peer is None else self._by_guid.get(outgoing.peer, ())
        for link in candidates:
            if link.is_open and (outgoing.peer is not None or link.hop == outgoing.hop):
                outgoing.link = link
                outgoing.stream.restart()
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
            self.log(f"{link.address}: session closed, {closed.reason} ({closed.rule})")
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
        with self._guard(now):
            work: list[tuple[Link, object]] = []
            links: dict[Link, None] = {}
            for link, data in arrivals:
                links[link] = None
                with self._isolated(link):
                    work += [(link, event) for event in link.session.receive_data(data, now)]
                if link in self.links:
                    self._half_received[link] = link.session.half_received
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
                        self._defect(link, cause)
            while sum(self._half_received.values()) > self.config.max_half_received:
                largest = max(self._half_received, key=self._half_received.__getitem__)
                self._close(largest, "B-435", "unfinished packets take too much memory: the largest gives way")
            for link in links:
                self._dispatch(link, now, wall)

    def _handle(self, work: list[tuple[Link, object]], now: int, wall: int) -> None:
        """Decide about events and store the outcome. If anything raises, nothing was decided and nothing stored."""
        if not any(isinstance(event, (MessageReceived, Acknowledged)) for _, event in work):
            for link, event in work:
                self._decide(_Batch(), link, event, now, wall)
            return
        batch = _Batch()
        last_key = self._last_key
        try:
            with self.store.transaction():
                if self.store.changed():
                    self._refresh()
                    last_key = self._last_key
                batch.room = self.config.quota - self.store.usage()
                for link, event in work:
                    self._decide(batch, link, event, now, wall)
                self._write(batch, wall)
        except StoreError:
            raise
        except Exception:
            self._undo(batch, last_key, now)
            raise
        for link, recoverable in batch.stored:
            link.session.stored(recoverable, now)

    def _undo(self, batch: _Batch, last_key: int, now: int) -> None:
        """Bring what a batch has changed in memory back to what the store holds, without touching the sessions."""
        with self.store.transaction():
            records = {(row.source, row.destination): row for row in self.store.incoming()}
            for place, row in records.items():
                if place not in self._incoming:
                    self._incoming[place] = self._restored(row, now)
            for place, state in self._incoming.items():
                state.stream.record[:] = array("I", records[place].record if place in records else (0, 0, 0, 0))
            self._history = {(source, message_id): time for source, message_id, time in self.store.history()}
            self._last_key = last_key
            for outgoing, (table, awaiting, record) in batch.before.items():
                outgoing.stream.table = table
                outgoing.stream.awaiting_final_ack = awaiting
                outgoing.stream.record[:] = record
            there = {row.identifier for row in self.store.outgoing_queues()}
            for outgoing in [outgoing for outgoing in self._outgoing.values() if outgoing.identifier not in there]:
                self._remove_outgoing(outgoing)
            self._refresh()

    def _restored(self, row: Incoming, now: int) -> _IncomingState:
        return _IncomingState(row.source, row.destination, self._meaning(row.destination),
                              IncomingStream(array("I", row.record), now), row.last_access)

    def _remove_outgoing(self, outgoing: _Outgoing) -> None:
        del self._outgoing[outgoing.identifier]
        if outgoing.peer:
            del self._ack_queues[outgoing.peer]
        elif outgoing.hop:
            self._by_hop[outgoing.hop].remove(outgoing)
        if outgoing.link:
            outgoing.link.outgoing.remove(outgoing)

    def _decide(self, batch: _Batch, link: Link, event: object, now: int, wall: int) -> None:
        if link in batch.refused:
            return
        if isinstance(event, MessageReceived):
            packet = event.packet
            if isinstance(packet, packets.OrderAck):
                self._order_ack(batch, packet, now)
            elif isinstance(packet, packets.FinalAck):
                self._final_ack(batch, packet, now)
            else:
                refusal = self._message(batch, link, packet, event.raw, now, wall)
                if refusal:
                    batch.refused.add(link)
                    self._close(link, "B-285", refusal)
                    return
            batch.stored.append((link, event.recoverable))
        elif isinstance(event, Acknowledged):
            for outgoing in link.outgoing:
                entries = [entry for entry in event.entries if entry.stream is outgoing.stream]
                batch.keep(outgoing)
                outgoing.stream.remove(entries)
                batch.settled += [entry.key for entry in entries]
        elif isinstance(event, Opened):
            self._opened(link)
        elif isinstance(event, Closed):
            self._end(link)

    def _write(self, batch: _Batch, wall: int) -> None:
        store = self.store
        if batch.messages:
            store.add_messages(batch.messages)
        if batch.forgotten:
            store.delete_incoming(batch.forgotten)  # before the next: a stream may have come back in the same batch
        if batch.incoming:
            store.save_incoming(
                [Incoming(state.source, state.key, tuple(state.stream.record), state.last_access)
                 for state in batch.incoming if state.stream.tx_sequence_number])
        if batch.settled:
            store.delete_outgoing(batch.settled)
        if batch.delivered:
            store.keep_for_final_ack(batch.delivered)
        for outgoing in batch.outgoing:
            if not any(entry.tx_sequence_number for entry in outgoing.stream.table):
                core.roll(outgoing.stream.record)  # B-096, in the transaction that finds the stream empty
        if batch.outgoing:
            store.save_outgoing([Outgoing(outgoing.identifier, outgoing.format_name, tuple(outgoing.stream.record))
                                 for outgoing in batch.outgoing])
        if batch.history:
            self._save_history(batch)
        if batch.final_acks:
            self._send_final_acks(batch, wall)
        self._delete_drained(batch.before)

    # ---- messages

    def _message(self, batch: _Batch, link: Link, message: packets.UserMessage, raw: bytes, now: int,
                 wall: int) -> str:
        """Decide about one message. A text: why the queue manager has no room for it (B-285), nothing was decided."""
        user = message.user
        source = bytes(user.source_queue_manager)
        key, target = self._target(user)
        queue = self._private(target)
        transaction = message.transaction
        if transaction is None:
            identifier = (source, user.message_id)
            if identifier in self._history:  # B-248
                self._note(batch, identifier, wall)
                return ""
            accepted = queue is not None and not queue.transactional  # B-258
            if accepted and batch.room < len(raw):
                return QUOTA
            self._note(batch, identifier, wall)  # B-254
        else:
            state = self._incoming_state(batch, source, key, target, now)
            if state.link is not link:
                if state.link:
                    del state.link.incoming[state]
                state.link = link
                link.incoming[state] = None
            state.last_access = wall  # B-274
            stream = state.stream
            before = stream.record[:]
            accepted = stream.accept(transaction)
            rejection = NACK_BAD_DST_Q if queue is None else 0 if queue.transactional else NACK_NOT_TRANSACTIONAL_Q
            # The stream has moved on if this was the next message (B-262, A-15). One that it had passed before had
            # its answer then, or was in the queue before that was deleted: it was not rejected.
            last = before[core.INCOMING_TIME_STAMP] << 32 | before[core.INCOMING_ORDINAL]
            place = (transaction.tx_sequence_id, transaction.tx_sequence_number)
            refusal = ""
            if rejection and place > (last, before[core.INCOMING_NUMBER]):
                refusal = self._reject(batch, state, link, message, rejection, wall)
            elif accepted and batch.room < len(raw):
                refusal = QUOTA
            if refusal:
                stream.record[:] = before
                return refusal
            stream.schedule_order_ack(now)  # B-269
            self._take_off(state)
            self._owed[state] = None
            batch.incoming[state] = None
            if accepted:
                state.complained = False
            elif last != place[0] or place[1] > before[core.INCOMING_NUMBER]:  # else it is only sent again
                self._complain_of_refusals(state, transaction)
            if rejection:
                accepted = False
            elif accepted:
                self._strays.pop(state, None)
        if accepted:
            assert queue is not None
            priority = 0 if transaction is not None else message.base.flags & core.BASE_PR  # B-287
            batch.messages.append(NewMessage(queue.identifier, LOWEST_PRIORITY_RANK - priority, wall, raw))
            batch.room -= len(raw)
        return ""

    def _complain_of_refusals(self, state: _IncomingState, transaction: packets.TransactionHeader) -> None:
        record = state.stream.record
        if record[core.INCOMING_REJECT_COUNT] >= self.config.refusals_told and not state.complained:
            state.complained = True
            last = record[core.INCOMING_TIME_STAMP] << 32 | record[core.INCOMING_ORDINAL]
            count = record[core.INCOMING_REJECT_COUNT]
            self.log(f"{packets.guid_text(state.source)} to {state.key}: {count} messages refused in a row, the last "
                     f"{transaction.tx_sequence_id}/{transaction.tx_sequence_number} after "
                     f"{transaction.previous_tx_sequence_number}, while the last accepted is "
                     f"{last}/{record[core.INCOMING_NUMBER]}: was the source restored from an older copy? (B-426)")

    def _target(self, user: packets.UserHeader) -> tuple[str, str | int]:
        """What a message's stream is filed under, and the queue that it means here, "" if none (B-264).

        Zero and the own GUID as QueueManagerAddress both mean here (A-38).
        """
        name = user.destination_queue
        here = user.queue_manager_address in (packets.NULL_GUID, self.store.guid)
        if isinstance(name, packets.DirectQueueFormatName):
            key = legible("DIRECT=" + name.direct_format_name).lower()
            if len(key) > LONGEST_KEY:
                key = key[:LONGEST_KEY - 64] + hashlib.sha256(key.encode()).hexdigest()
        elif isinstance(name, packets.PrivateQueueFormatNameId) and here:
            key = f"#{name.private_queue_identifier}"
        else:
            return packets.format_name(name, user.queue_manager_address) if name is not None else "", ""
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
            state = self._incoming[source, key] = _IncomingState(source, key, target, IncomingStream(None, now), 0)
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
        self.store.delete_history(identifiers)

    # ---- acknowledgements that come

    def _message_queues(self) -> Iterator[_Outgoing]:
        return (outgoing for queues in self._by_hop.values() for outgoing in queues)

    def _order_ack(self, batch: _Batch, packet: packets.OrderAck, now: int) -> None:
        body = packet.body
        for outgoing in self._message_queues():
            if outgoing.stream.tx_sequence_id == body.tx_sequence_id:  # B-230
                batch.keep(outgoing)
                for entry in outgoing.stream.order_ack(body, now):
                    (batch.delivered if entry.journal else batch.settled).append(entry.key)
                batch.outgoing[outgoing] = None
                return

    def _final_ack(self, batch: _Batch, packet: packets.FinalAck, now: int) -> None:
        body = packet.body
        if body.source_guid != self.store.guid:  # B-241
            return
        for outgoing in self._message_queues():
            stream = outgoing.stream
            if not any(entry.message_id == body.message_id for entry in (*stream.awaiting_final_ack, *stream.table)):
                continue
            batch.keep(outgoing)
            entry = stream.final_ack(body.message_id, now)
            if entry is not None:
                message_class = packet.message.properties.message_class
                if message_class != packets.CLASS_FINAL_ACK:
                    self.log(f"message {body.message_id} to {outgoing.format_name} was rejected: "
                             f"class 0x{message_class:04X}")
                batch.settled.append(entry.key)
                batch.outgoing[outgoing] = None
                return

    # ---- acknowledgements that go

    def _message_id(self) -> int:
        if not self._message_ids:
            first = self.store.reserve_message_ids(MESSAGE_ID_BLOCK)
            self._message_ids = range(first, first + MESSAGE_ID_BLOCK)
        identifier, self._message_ids = self._message_ids[0], self._message_ids[1:]
        return identifier

    @staticmethod
    def _order_queue(link: Link, source: bytes) -> tuple[packets.QueueName, bytes]:
        """Destination and QueueManagerAddress of an acknowledgement to `source` (B-361, B-362)."""
        if link.session.direct_format_session:
            return packets.order_queue(link.address), packets.NULL_GUID
        return packets.PrivateQueueFormatNameId(ORDER_QUEUE_ID), source

    def _reject(self, batch: _Batch, state: _IncomingState, link: Link, message: packets.UserMessage,
                message_class: int, wall: int) -> str:
        """Make a negative FinalAck (B-260). A text: why there is no room for it.

        It is filed under the peer, the next hop back, even where it is addressed to another source (B-011, B-362).
        """
        peer = link.session.remote_guid
        if len(self._ack_queues.keys() | batch.peers | {peer}) > self.config.max_ack_queues:
            return "FinalAcks wait for too many peers already"
        transaction = message.transaction
        assert transaction is not None
        destination, address = self._order_queue(link, state.source)
        message_id = self._message_id()
        packet = packets.final_ack(
            destination, self.store.guid, message_id, wall, transaction.tx_sequence_ordinal,
            transaction.tx_sequence_time_stamp, transaction.tx_sequence_number,
            transaction.previous_tx_sequence_number, state.source, message.user.message_id, message_class, address)
        if batch.room < len(packet):
            return QUOTA
        batch.room -= len(packet)
        batch.peers.add(peer)
        batch.final_acks.append((state, peer, message_id, packet))
        return ""

    def _send_final_acks(self, batch: _Batch, wall: int) -> None:
        rows = []
        for state, peer, message_id, packet in batch.final_acks:
            name = packets.format_name(packets.PrivateQueueFormatName(peer, ORDER_QUEUE_ID))
            queue = self.store.outgoing_queue(name, wall)
            if queue.identifier not in self._outgoing:
                self._add_outgoing(queue)
            outgoing = self._outgoing[queue.identifier]
            batch.keep(outgoing)
            state.final_acks = outgoing
            rows.append(NewOutgoing(queue.identifier, message_id, 0, 0, 0, True, False, packet))
        self.store.add_outgoing(rows)
        self._load_entries()

    def _delete_drained(self, queues: Iterable[_Outgoing]) -> None:
        for queue in [queue for queue in queues if queue.peer and not queue.stream.table]:
            self.store.delete_outgoing_queue(queue.identifier)
            self._remove_outgoing(queue)

    def _send_order_ack(self, state: _IncomingState, now: int, wall: int) -> None:
        """Send a due OrderAck on the session its messages came on, else on any with their sender (B-011, B-414); behind
        the FinalAcks of messages that it covers."""
        stream = state.stream
        self._take_off(state)
        if stream.tx_sequence_number:  # B-359
            final_acks = state.final_acks if state.final_acks and state.final_acks.stream.table else None
            peer = state.link.session.remote_guid if state.link else state.source
            if final_acks:
                assert final_acks.peer
                peer = final_acks.peer
                candidates = [final_acks.link] if final_acks.link else []
            else:
                candidates = [state.link] if state.link else []
                candidates += self._by_guid.get(peer, []) + self._by_guid.get(state.source, [])
            for link in candidates:
                if link.session.can_send() and self._final_acks_are_ahead(link):
                    destination, address = self._order_queue(link, state.source)
                    record = stream.record
                    packet = packets.order_ack(
                        destination, self.store.guid, self._message_id(), wall, record[core.INCOMING_ORDINAL],
                        record[core.INCOMING_TIME_STAMP], record[core.INCOMING_NUMBER], address)
                    link.session.send(None, packet, False, now)
                    self._touched[link] = None
                    break
            else:
                self._wait_for(state, peer)
                return
        stream.order_ack_sent(now)

    def _final_acks_are_ahead(self, link: Link) -> bool:
        """Is every FinalAck for this link's peer on its disk already, or on the wire of this very link?"""
        queue = self._ack_queues.get(link.session.remote_guid)
        if queue is None or not queue.stream.table:
            return True
        return queue.link is link and queue.stream.next_to_send() is None

    def _dispatch(self, link: Link, now: int, wall: int) -> None:
        """Send on a link what waits for it: FinalAcks, then overdue OrderAcks, then messages; each queue in order."""
        if not link.is_open:
            return
        with self._isolated(link):
            self._send_what_waits(link, now, wall)

    def _send_what_waits(self, link: Link, now: int, wall: int) -> None:
        for outgoing in link.outgoing:
            if outgoing.peer:
                self._send_entries(link, outgoing, now)
        for state in self._overdue.pop(link.session.remote_guid, ()):
            self._send_order_ack(state, now, wall)
        for outgoing in link.outgoing:
            if not outgoing.peer:
                self._send_entries(link, outgoing, now)

    def _send_entries(self, link: Link, outgoing: _Outgoing, now: int) -> None:
        session = link.session
        stream = outgoing.stream
        while session.can_send() and (link.writable or outgoing.peer):
            entry = stream.next_to_send()
            if entry is None:
                break
            packet = self.store.outgoing_packet(_key(entry))
            if entry.tx_sequence_number:
                stream.prepare(entry, packet, packets.transaction_offset(packet))
            session.send(entry, packet, entry.recoverable, now)
            self._touched[link] = None

    # ---- time

    def poll(self, now: int, wall: int) -> None:
        """To be called every few tens of milliseconds: due timers, and what other processes have put in the store."""
        with self._guard(now):
            for link in list(self.links):
                with self._isolated(link):
                    if link.session.handle_timeout(now):
                        self._end(link)
                self._touched[link] = None
            for state in list(self._owed):
                due = state.stream.next_timeout()
                if due is not None and due <= now:
                    self._send_order_ack(state, now, wall)
            for link in self.links:
                for outgoing in link.outgoing:
                    outgoing.stream.handle_timeout(now)
            if now >= self._history_due:  # B-154
                self._history_due = now + 1000 * self.config.history_lifetime
                self._forget_history([identifier for identifier, time in self._history.items()
                                      if time < wall - self.config.history_lifetime])
            if self.store.changed():
                with self.store.transaction():
                    self._refresh()
            for link in list(self.links):
                self._dispatch(link, now, wall)

    def resume(self, link: Link, now: int, wall: int) -> None:
        """The transport of this link takes bytes again."""
        link.writable = True
        with self._guard(now):
            self._dispatch(link, now, wall)

    def close(self) -> None:
        """End all sessions (B-163)."""
        for link in list(self.links):
            self._close(link, "B-163", "the queue manager stops")


class _Batch:
    """What one batch decides, until it is written."""

    def __init__(self) -> None:
        self.room = 0  # bytes that may still be stored
        self.messages: list[NewMessage] = []
        self.incoming: dict[_IncomingState, None] = {}
        self.forgotten: list[tuple[bytes, str]] = []
        self.outgoing: dict[_Outgoing, None] = {}  # streams that an acknowledgement has moved
        self.before: dict[_Outgoing, tuple[list[Entry], list[Entry], array[int]]] = {}
        self.settled: list[Any] = []  # keys of entries
        self.delivered: list[Any] = []
        self.history: dict[tuple[bytes, int], int] = {}
        self.final_acks: list[tuple[_IncomingState, bytes, int, bytearray]] = []
        self.peers: set[bytes] = set()  # for which these are
        self.stored: list[tuple[Link, bool]] = []  # what the sessions are to hear of, in order
        self.refused: set[Link] = set()

    def keep(self, outgoing: _Outgoing) -> None:
        """Remember what the outgoing queue has in memory, before it is changed."""
        if outgoing not in self.before:
            stream = outgoing.stream
            self.before[outgoing] = list(stream.table), list(stream.awaiting_final_ack), stream.record[:]


def _key(entry: Entry) -> int:
    assert isinstance(entry.key, int)
    return entry.key
