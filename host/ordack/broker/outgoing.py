"""Outgoing queues: messages for other queue managers, and the sessions that serve them.

`refresh` reads changes by operators from the store. Times: `now` monotonic milliseconds.
"""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mqqb import confirm, core, guids, headers, hosts
from mqqb.confirm import Confirmation
from mqqb.streams import Entry

from ordack.broker.streams import LongStream, Rows, key_of
from ordack.config import names
from ordack.config.config import SERIAL_PORT, Config, split_direct
from ordack.store import Store, packet_fields
from ordack.store.at_hand import AtHand, Row
from ordack.store.outgoing import Added, NewOutgoing, Outgoing, OutgoingEntry, Waiting

if TYPE_CHECKING:
    from ordack.broker.links import Hop, Links, PeerLink

ROWS = 500  # read or marked as sent at once, to bound memory
SENT_AHEAD = 10_000  # keys announced to the store at once as possibly transmitted


class Way(NamedTuple):
    """How a queue is served: by a session to its hop, or by any session with its peer. With both, the queue manager at
    the hop must be that peer, unless its messages are `routed` there."""

    hop: Hop | None
    peer: bytes | None = None
    routed: bool = False


class OutgoingQueue:
    """One outgoing queue; way: see Way.

    holds_acks: the queue holds acknowledgements for a peer instead of messages sent here. rejections: key of its last
    FinalAck that rejects a message. turn: see FairSchedule. transmitted: keys of transactional messages sent since the
    store was told that keys up to `sent_to` may be sent.
    """

    def __init__(self, row: Outgoing, way: Way, config: Config, rows: Rows) -> None:
        self.identifier = row.identifier
        self.format_name = row.format_name
        self.address = row.address
        self.stream = LongStream(array("I", row.record), config.resend_intervals, rows)
        _, self.peer, self.routed = way
        self.hop: Hop | None = None
        self.holds_acks = packet_fields.is_return_queue(row.format_name)
        self.link: PeerLink | None = None
        self.turn = 0
        self.on_hold = row.on_hold
        self.resends = row.resends
        self.rejections = 0
        self.transmitted: set[int] = set()
        self.sent_to = 0
        self._highest = 0  # highest key of the sent transactional messages

    def leave(self, keys: Sequence[int]) -> int:
        """Note that the messages with these rising keys are sent; return how many are resent."""
        self.transmitted.update(keys)
        again = bisect_right(keys, self._highest)
        if again < len(keys):
            self._highest = keys[-1]
        return again

    def report(self, connection: Mapping[str, Any] | None, zero: int) -> dict[str, Any]:
        """Return the state of the queue for operators (B-082, B-239). connection: the network's state of its hop; zero:
        time of monotonic 0, in ms since 1970."""
        info = self.stream.transfer_info()
        state = connection["state"] if connection else "Inactive"
        return {
            "format_name": self.format_name,
            "state": "OnHold" if self.on_hold else "Connected" if self.link else state,
            "first_non_ack": info.first_non_ack,
            "last_non_ack": info.last_non_ack,
            "last_ack": info.last_ack,
            "next_seq": info.next_seq,
            "last_ack_count": info.last_ack_count,
            "no_ack_count": info.no_ack_count,
            "no_read_count": info.no_read_count,
            "resend_count": info.resend_count,
            "last_ack_time": info.last_ack_time and (zero + info.last_ack_time) // 1000,
            "resend_interval_ms": info.resend_interval,
            "resend_time": info.resend_time and (zero + info.resend_time) // 1000,
            "connection": connection,
        }

    @property
    def is_needed(self) -> bool:
        """Does it need a session, to send or to get an answer that the peer may be unable to bring unasked (B-414)?"""
        return bool(self.stream.waiting or self.stream.awaiting_final_ack or self.stream.aside)

    @property
    def rejecting(self) -> list[PeerLink | None]:
        """The links that carry the messages up to the last FinalAck that rejects; None for a message not sent yet."""
        table = self.stream.table
        carriers = [
            self.link if entry.awaiting_ack or entry.received_session_ack else None
            for entry in itertools.takewhile(lambda entry: key_of(entry) <= self.rejections, table)
        ]
        return [*carriers, None] if self.stream.behind and len(carriers) == len(table) else carriers


class _Rows:
    """The messages of one outgoing queue in the store; see streams.Rows."""

    def __init__(self, queues: OutgoingQueues, store: Store, identifier: int) -> None:
        self._queues = queues
        self._store = store
        self._identifier = identifier

    def after(self, key: int, limit: int) -> list[Entry]:
        return _entries(self._store.outgoing.to_be_sent(self._identifier, key, self._queues.last_key, limit))

    def last(self) -> list[Entry]:
        return _entries(self._store.outgoing.last_to_be_sent(self._identifier, self._queues.last_key, 2))[-2:]


class OutgoingQueues:
    """All outgoing queues; `load` reads them from the store."""

    def __init__(self, store: Store, links: Links, config: Config) -> None:
        self._store = store
        self._links = links
        self._config = config
        self.at_hand = AtHand()
        self._accepts: dict[Hop, bytes] = {}  # peer of the last session opened from here, by hop
        self._forget_all()

    def _forget_all(self) -> None:
        self._queues: dict[int, OutgoingQueue] = {}
        self._by_peer: dict[bytes, list[OutgoingQueue]] = {}  # queues with a peer's GUID
        self._by_hop: dict[Hop, list[OutgoingQueue]] = {}  # queues with a hop
        self._ack_queues: dict[bytes, OutgoingQueue] = {}  # by peer
        self._served: dict[PeerLink, list[OutgoingQueue]] = {}
        self._busy: dict[OutgoingQueue, None] = {}  # all with messages to send on a session, and some more
        self._left: dict[OutgoingQueue, None] = {}  # queues whose session has ended
        self._orders: dict[OutgoingQueue, Outgoing] = {}  # rows that operators may have changed
        self._news: dict[OutgoingQueue, None] = {}  # queues with new messages
        self._unreached: set[Hop] = set()  # hops of new messages without a session
        self.last_key = 0
        self._is_loaded = False

    def report(self, connections: dict[Hop, dict[str, Any]], zero: int) -> list[dict[str, Any]]:
        """Return the state of each queue. connections: see Manager. zero: time of `now` = 0, ms since 1970."""
        return [queue.report(connections.get(queue.hop) if queue.hop else None, zero) for queue in self]

    def __iter__(self) -> Iterator[OutgoingQueue]:
        return iter(self._queues.values())

    def __len__(self) -> int:
        return len(self._queues)

    def __getitem__(self, identifier: int) -> OutgoingQueue:
        return self._queues[identifier]

    def __contains__(self, identifier: int) -> bool:
        return identifier in self._queues

    @property
    def ack_queues(self) -> Iterable[OutgoingQueue]:
        """Queues with acknowledgements for a peer."""
        return self._ack_queues.values()

    def to_peer(self, guid: bytes) -> OutgoingQueue | None:
        """Return the queue with acknowledgements for this peer."""
        return self._ack_queues.get(guid)

    def served_by(self, link: PeerLink) -> list[OutgoingQueue]:
        """Return the queues that this link serves."""
        return self._served.get(link, [])

    def busy(self) -> list[tuple[OutgoingQueue, PeerLink]]:
        """Return queues with messages to send or resend, and their links."""
        busy = [(queue, queue.link) for queue in self._busy if queue.link and queue.stream.waiting]
        self._busy = dict.fromkeys(queue for queue, _ in busy)
        return busy

    # ---- state from the store

    def load(self) -> None:
        """Start anew; `refresh` reads everything. Messages that may have been sent count as sent."""
        self._note_interrupted()
        self._accepts = self._store.outgoing.accepts()
        self._forget_all()

    def refresh(self) -> None:
        """Read operators' changes from the store: messages and sequences of the queues. A purge may have removed
        messages of the same transaction (C-29)."""
        self.at_hand.clear()
        if not self._is_loaded:
            self._begin()
            return
        for row in self._store.outgoing.queues():
            known = self._queues.get(row.identifier)
            if known:
                known.stream.adopt(array("I", row.record))
                self._reach(known, row.address)
                self._orders[known] = row
            else:
                self._add(row)
        self._load_entries()

    def _begin(self) -> None:
        """Read all outgoing queues; LongStream leaves later messages in the store."""
        self.last_key = self._store.outgoing.last_key()
        for row in self._store.outgoing.queues():
            self._add(row)
            queue = self._queues[row.identifier]
            self._news[queue] = None
            held, plain, lowest, highest = self._store.outgoing.aside(row.identifier)
            queue.stream.put_aside(held)
            waiting = row.messages - held
            if not waiting:
                continue
            are_alike = not plain or (plain == waiting and lowest == highest)
            rows = self._store.outgoing.to_be_sent(
                row.identifier, 0, self.last_key, LongStream.ahead if are_alike else -1
            )
            for _, alike in itertools.groupby(rows, _kind):
                queue.stream.extend(_entries(alike))
            queue.stream.more_behind(waiting - sum(row.messages for row in rows), not plain, lowest)
        self._is_loaded = True

    def take_up(self) -> None:
        """Read the messages stored in this transaction."""
        for row in self._store.outgoing.queues():
            if row.identifier not in self._queues:
                self._add(row)
            self._reach(self._queues[row.identifier], row.address)
        self._load_entries()

    def fed(self, stored: Collection[Added]) -> None:
        """Take over the messages that an application stored in this transaction."""
        for row in (row for _, _, rows in stored for row in rows):
            known = self._queues.get(row.identifier)
            if known:
                known.stream.adopt(array("I", row.record))
            else:
                self._add(row)
        for keys, messages, _ in stored:
            if keys.start != self.last_key + 1:  # other messages came in between, perhaps in new queues
                self.take_up()
                return
            for message in messages:
                its, keys = keys[: message.messages], keys[message.messages :]
                queue = self._queues[message.outgoing]
                self._news[queue] = None
                count = queue.stream.admit(message.messages, message.number > 0, message.priority)
                its_row = OutgoingEntry(its[0], *message[:7], message.priority, 0, count)
                queue.stream.extend(_entries([its_row]))
                self.last_key = its[-1]
                if queue.link:
                    kept = Row(its[-1], message.messages, message.packet, message.send_until)
                    self.at_hand.add(message.outgoing, kept)

    def forward(self, messages: Iterable[tuple[str, headers.UserMessage, bytearray]], wall: int) -> None:
        """Put forwarded messages into the outgoing queues of these names; `take_up` follows."""
        rows = []
        for name, message, packet in messages:
            there = self._links.with_peer(bytes(message.user.queue_manager_address))
            queue = self._store.outgoing.queue(name, wall, there[0].address if there else None)
            rows.append(_passing(queue.identifier, message, packet))
        self._store.outgoing.add(rows)

    @property
    def has_news(self) -> bool:
        """Are there queues with new messages?"""
        return bool(self._news)

    def take_news(self) -> list[OutgoingQueue]:
        """Return the queues with new messages since the last call."""
        news, self._news = self._news, {}
        self._busy.update(news)
        self._unreached.update(queue.hop for queue in news if queue.hop and queue.link is None)
        return list(news)

    def _add(self, row: Outgoing) -> None:
        way = _way(row.format_name, self._store.guid, self._config)
        rows = _Rows(self, self._store, row.identifier)
        queue = self._queues[row.identifier] = OutgoingQueue(row, way, self._config, rows)
        if queue.peer:
            self._by_peer.setdefault(queue.peer, []).append(queue)
            if queue.holds_acks:
                self._ack_queues[queue.peer] = queue
        self._lead(queue, way.hop)
        self._reach(queue, row.address)  # B-011
        self._attach(queue)

    def _load_entries(self) -> None:
        while rows := self._store.outgoing.rows_after(self.last_key, ROWS):
            for (outgoing, transactional, priority, held), group in itertools.groupby(rows, _kind):
                alike = _entries(group)
                queue = self._queues[outgoing]
                self._news[queue] = None
                if held:
                    queue.stream.put_aside(len(alike))
                else:
                    count = queue.stream.admit(len(alike), transactional, priority)
                    queue.stream.extend(alike[:count])
                self.last_key = key_of(alike[-1])

    def save(self, moved: Iterable[OutgoingQueue]) -> None:
        """Save these streams; an empty one begins a new sequence in the same transaction (B-096)."""
        rows = []
        for queue in moved:
            stream = queue.stream
            if stream.record[core.OUTGOING_NUMBER] != 1 and not stream.numbered:
                core.roll(stream.record)
            rows.append(Outgoing(queue.identifier, queue.format_name, tuple(stream.record)))
        self._store.outgoing.save(rows)

    def delete_drained(self, queues: Iterable[OutgoingQueue]) -> None:
        """Delete empty queues for acknowledgements."""
        for queue in [queue for queue in queues if queue.holds_acks and not queue.stream.waiting]:
            self._store.outgoing.remove_queue(queue.identifier)
            del self._queues[queue.identifier]
            if queue.peer:
                self._by_peer[queue.peer].remove(queue)
                del self._ack_queues[queue.peer]
            if queue.hop:
                self._by_hop[queue.hop].remove(queue)
            self._orders.pop(queue, None)
            if queue.link:
                self._served[queue.link].remove(queue)

    def entries(self, keys: Iterable[int], messages: Iterable[Waiting]) -> list[tuple[OutgoingQueue, list[Entry]]]:
        """Return the entries with these keys among these messages, by outgoing queue."""
        wanted = set(keys)
        by_queue: dict[int, dict[int, Waiting]] = {}
        for waiting in messages:
            if waiting.key in wanted:
                by_queue.setdefault(waiting.outgoing, {})[waiting.key] = waiting
        self.recall(waiting for its in by_queue.values() for waiting in reversed(its.values()))
        return [
            (self[identifier], self[identifier].stream.entries(its, _waiting_entry))
            for identifier, its in by_queue.items()
        ]

    def recall(self, messages: Iterable[Waiting]) -> None:
        """Load the held ones of these messages into memory, the last one first."""
        for waiting in messages:
            if waiting.held:
                self[waiting.outgoing].stream.recall(_waiting_entry(waiting))

    # ---- sessions

    def wanted_hops(self, hops: Iterable[Hop] | None = None) -> set[Hop]:
        """Return hops with waiting messages and no connection (B-302); hops: only among these."""
        there = self._links.hops
        return {
            hop
            for hop in (self._by_hop if hops is None else hops)
            if hop not in there
            and hop[1] != SERIAL_PORT
            and any(queue.is_needed and not queue.on_hold and queue.link is None for queue in self._by_hop[hop])
        }

    def take_unreached(self) -> set[Hop]:
        """Return the wanted hops with new messages since the last call."""
        unreached, self._unreached = self._unreached, set()
        return self.wanted_hops(unreached) if unreached else unreached

    def has_way(self, guid: bytes) -> bool:
        """Is there a session with this queue manager, or a way to open one?"""
        waiting = self.to_peer(guid)
        return bool(
            self._links.with_peer(guid)
            or (waiting and waiting.hop)
            or guids.guid_text(guid)[1:-1].lower() in self._config.next_hops
        )

    def opened(self, link: PeerLink) -> None:
        """Let a new session serve the queues of its hop and peer. It takes over queues of an older session with the
        peer, which may be dead without notice."""
        if link.hop and link.session.initiator and self._accepts.get(link.hop) != link.peer:
            self._accepts[link.hop] = link.peer
            self._store.outgoing.note_accepts(*link.hop, link.peer)
        for queue in list(self._by_hop.get(link.hop, ())) if link.hop else []:
            self._reach(queue, None)
            self._attach(queue)
        for queue in self._by_peer.get(link.peer, []):
            self._store.outgoing.queue(queue.format_name, 0, link.address)
            self._reach(queue, link.address)
            if queue.link is not link and queue.link and queue.link.peer == link.peer:
                self._detach(queue)
            self._attach(queue)

    def ended(self, link: PeerLink) -> None:
        """Move the queues of a closed session to another one, if any."""
        for queue in self._served.pop(link, []):
            queue.link = None
            self.at_hand.forget(queue.identifier)
            self._left[queue] = None
            self._attach(queue)

    def _detach(self, queue: OutgoingQueue) -> None:
        if queue.link:
            self._served[queue.link].remove(queue)
            hosts.forget(queue.link.session, queue.stream)
            queue.link = None
            self._left[queue] = None

    def _reach(self, queue: OutgoingQueue, address: str | None) -> None:
        """Note the address of an outgoing queue's peer."""
        queue.address = address or queue.address
        if queue.peer and not queue.routed:
            self._lead(queue, self._hop_of_peer(queue))

    def _hop_of_peer(self, queue: OutgoingQueue) -> Hop | None:
        """Return where the queue's peer accepts connections: from the configuration, or from a session opened here. A
        connection from the peer proves nothing (B-011)."""
        accepted = next((hop for hop, peer in self._accepts.items() if peer == queue.peer), None)
        return self._config.next_hops.get(queue.address or "") or accepted

    def _lead(self, queue: OutgoingQueue, hop: Hop | None) -> None:
        if hop == queue.hop:
            return
        if queue.hop:
            self._by_hop[queue.hop].remove(queue)
        queue.hop = hop
        if hop:
            self._by_hop.setdefault(hop, []).append(queue)

    def refresh_hop(self, hop: Hop) -> None:
        """Update the queues of a hop before a connection attempt: own addresses come and go."""
        for queue in [queue for queue in self._by_hop.get(hop, ()) if queue.link is None and not queue.peer]:
            self._lead(queue, _way(queue.format_name, self._store.guid, self._config).hop)
            self._attach(queue)

    def _attach(self, queue: OutgoingQueue) -> None:
        """Attach an idle outgoing queue to an open session, the newest one with its peer."""
        if queue.link is not None:
            return
        candidates = self._links.with_peer(queue.peer)[::-1] if queue.peer else []
        if queue.hop and (queue.routed or not queue.peer):
            candidates += [link for link in self._links if link.hop == queue.hop]
        for link in candidates:
            if link.is_open and (link.peer != self._store.guid or queue.peer in (None, link.peer)):
                queue.link = link
                queue.stream.restart()
                queue.turn = link.schedule.count
                self._served.setdefault(link, []).append(queue)
                self._busy[queue] = None
                return

    def obey(self, now: int) -> None:
        """Apply operators' changes: pause, resume, resend (B-345, B-346, B-425)."""
        for queue, row in self._orders.items():
            if row.resends != queue.resends:
                queue.resends = row.resends
                queue.stream.resend(now)
            if row.on_hold != queue.on_hold:
                queue.on_hold = row.on_hold
                if queue.link:
                    if row.on_hold:
                        hosts.pause(queue.link.session, now)
                    elif not any(other.on_hold for other in self.served_by(queue.link)):
                        hosts.resume(queue.link.session, now)
                    self._links.touch(queue.link)
        self._orders.clear()

    # ---- transmitted messages

    def confirmation(self, waiting: Waiting) -> Confirmation | None:
        """Return the confirmation process of a message; None if it has none."""
        if waiting.confirmation is None:
            return None
        return Confirmation(array("I", waiting.confirmation), self._config.confirmation)

    def may_transmit(self, queue: OutgoingQueue, key: int) -> None:
        """Tell the store that this transactional message may be sent, and some after it."""
        if key > queue.sent_to:
            queue.sent_to = key + SENT_AHEAD
            self._store.outgoing.set_sent_to(queue.identifier, queue.sent_to)

    def _note_interrupted(self) -> None:
        """Mark messages of interrupted sessions as sent: nobody can prove that they were not."""
        newest = self._store.outgoing.last_key()
        for row in self._store.outgoing.queues():
            if row.sent_to:
                after, last = 0, min(row.sent_to, newest)
                while messages := self._store.outgoing.waiting_in(row.identifier, after, last, ROWS):
                    self._save_sent(messages)
                    after = messages[-1].key
                self._store.outgoing.set_sent_to(row.identifier, 0)

    def note_closed(self) -> None:
        """Record the messages sent in closed sessions, so that no other one is in doubt (C-83)."""
        for queue in self._left:
            if queue.sent_to and queue.link is None:
                keys = sorted(queue.transmitted)
                for first in range(0, len(keys), ROWS):
                    self._save_sent(self._store.outgoing.waiting(keys[first : first + ROWS]))
                self._store.outgoing.set_sent_to(queue.identifier, 0)
                queue.sent_to = 0
                queue.transmitted.clear()
        self._left.clear()

    def _save_sent(self, messages: Iterable[Waiting]) -> None:
        kept = []
        for waiting in messages:
            confirmation = self.confirmation(waiting)
            if confirmation and confirmation.state == confirm.Q and confirmation.sent():
                due = packet_fields.due(confirmation, waiting.send_until, held=False)
                kept.append((confirmation.record.tobytes(), due, False, waiting.key))
        if kept:
            self._store.outgoing.keep(kept)


def _way(format_name: str, guid: bytes, config: Config) -> Way:
    """Return how an outgoing queue is served from the queue manager `guid`."""
    kind, _, rest = format_name.partition("=")
    text = rest.partition("\\")[0]
    if kind.upper() != "PRIVATE":
        text = (split_direct(format_name) or ("", ""))[0]
        if not names.is_guid(text):
            return Way(config.way(text))
    peer = guids.guid_bytes(text)
    hop = config.own_hop if peer == guid else config.next_hops.get(text.lower())
    return Way(hop, peer, hop is not None)  # includes this queue manager itself


def _passing(outgoing: int, message: headers.UserMessage, packet: bytearray) -> NewOutgoing:
    """Return the row of a forwarded message."""
    until = packet_fields.send_until(message)
    return NewOutgoing(
        outgoing,
        message.user.message_id,
        0,
        0,
        0,
        bool(message.user.flags & core.USER_DM),
        0,
        packet,
        0 if message.transaction is not None else message.base.flags & core.BASE_PR,
        own=False,
        send_until=until,
        due=until + 1,
    )


def _kind(row: OutgoingEntry) -> tuple[int, bool, int, int]:
    """Return the properties that rows of one group share."""
    return row.outgoing, row.number > 0, row.priority, row.held


def _waiting_entry(waiting: Waiting) -> Entry:
    return Entry(
        waiting.key,
        waiting.message_id,
        journal=bool(waiting.journal),
        tx_sequence_id=waiting.time_stamp << 32 | waiting.ordinal,
        tx_sequence_number=waiting.number,
    )


def _entries(rows: Iterable[OutgoingEntry]) -> list[Entry]:
    """Return the entries of all messages of these rows."""
    found: list[Entry] = []
    for key, _, message_id, ordinal, time_stamp, number, recoverable, journal, priority, _, count in rows:
        found += map(
            Entry,
            range(key, key + count),
            range(message_id, message_id + count),
            itertools.repeat(bool(recoverable)),
            itertools.repeat(bool(journal)),
            itertools.repeat(time_stamp << 32 | ordinal),
            range(number, number + count) if number else itertools.repeat(0),
            itertools.repeat(priority),
        )
    return found
