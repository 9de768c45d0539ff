"""What leaves on a link, in which order: FinalAcks, overdue OrderAcks, messages. How long an answer may wait, and which
queue has its turn, is decided elsewhere (order_acks.py, turns.py).

Times: `now` monotonic milliseconds, `wall` seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mqqb import core, headers, parse
from mqqb.streams import Entry

from ordack import clock, outcome
from ordack.batch import Batch
from ordack.config import Config
from ordack.links import Link, Links
from ordack.order_acks import OrderAcks
from ordack.outgoing import OutgoingQueue, OutgoingQueues
from ordack.prediction import ready_to_follow
from ordack.settling import Settling
from ordack.store import Store
from ordack.store.outgoing import Reading
from ordack.tables import key_of

TRACED = core.BASE_TR >> 8  # BaseHeader.Flags.TR, in its second byte


class Departures:
    """Hands to sessions what waits for their peers. transact: Manager's transaction for one decision."""

    def __init__(
        self,
        store: Store,
        config: Config,
        links: Links,
        outgoing: OutgoingQueues,
        settling: Settling,
        order_acks: OrderAcks,
        transact: Callable[[int, int, Callable[[Batch], object]], object],
    ) -> None:
        self._store = store
        self._config = config
        self._links = links
        self._outgoing = outgoing
        self._settling = settling
        self._order_acks = order_acks
        self._transact = transact

    def dispatch(self, link: Link, now: int, wall: int) -> None:
        """Send on an open link what waits for it: FinalAcks, then overdue OrderAcks, then messages."""
        with self._links.isolated(link):
            queues = self._outgoing.served_by(link)
            self._send_from(link, [queue for queue in queues if queue.returns], now, wall)
            self._order_acks.send_overdue(link, now, wall)
            self._send_from(link, [queue for queue in queues if not queue.returns and not queue.on_hold], now, wall)

    def _send_from(self, link: Link, queues: list[OutgoingQueue], now: int, wall: int) -> None:
        session = link.session
        reading = Reading(self._store.outgoing, self._outgoing.at_hand)
        for queue, entry in link.turns.among(queues):
            if not session.can_send() or not (queue.returns or (link.writable and link.pace.room > 0)):
                break
            if entry.tx_sequence_number:
                self._outgoing.may_transmit(queue, key_of(entry))
            packet, until = reading.packet(queue.identifier, key_of(entry))
            if wall > until:
                due = self._store.outgoing.waiting([key_of(entry)])
                self._transact(now, wall, partial(self._settling.due, wall=wall, due=due))  # B-311, C-29
                reading = Reading(self._store.outgoing, self._outgoing.at_hand)
                continue
            if entry.tx_sequence_number:
                link.counts.resent += queue.leave([key_of(entry)], now)
                queue.stream.prepare(entry, packet, parse.transaction_offset(packet))
            clock.hide_limits(packet)
            session.send(entry, packet, entry.recoverable, now)
            link.counts.sent += 1
            is_oldest = entry.tx_sequence_number and entry is queue.stream.table[0]
            link.pace.sends(len(packet), queue.stream if is_oldest else None)
            self._links.touch(link)
            if packet[core.BASE_FLAGS_AT + 1] & TRACED and self._config.report_messages:
                self._report_leaving(link, outcome.parse(packet), now, wall)
            elif entry.tx_sequence_number and link.turns.is_alone:
                self._send_following(link, queue, entry, packet, reading, now, wall)

    def _send_following(
        self, link: Link, queue: OutgoingQueue, entry: Entry, first: bytearray, reading: Reading, now: int, wall: int
    ) -> None:
        """Behind a transactional message that has just been sent, while no other queue has anything to send, send those
        that are next and differ from it in no name: as `_send_from` does, without what it would find out again for
        each. Where one differs this ends, and `_send_from` decides."""
        session = link.session
        following = queue.stream.following(entry, session.room) if link.writable else []
        if not following:
            return
        self._outgoing.may_transmit(queue, key_of(following[-1]))
        keys = list(map(key_of, following))
        ahead = reading.following(queue.identifier, keys, wall, link.pace.room)
        transaction_at = parse.transaction_offset(first)
        packets, count = ready_to_follow(first, transaction_at, entry.tx_sequence_number, [row[0] for row in ahead])
        reading.put_back(queue.identifier, keys[count:], ahead[count:])
        if count:
            link.counts.resent += queue.leave(keys[:count], now)
            session.send_following(following[:count], packets)
            link.counts.sent += count
            link.pace.sends(len(packets))
            link.turns.count += count

    def _report_leaving(self, link: Link, message: headers.UserMessage, now: int, wall: int) -> None:
        self._transact(now, wall, lambda batch: batch.outcomes.report(message, link.address))  # B-294
