"""What becomes of a message that has come: it goes into a queue here, or on to another queue manager, or is refused.

One that is refused is answered, a transactional one with a negative FinalAck. That stays in an acknowledgement queue,
an outgoing queue named by the GUID of the peer that the message came from, until a session with that peer has
acknowledged it. A message for another queue manager is put in an outgoing queue as it is, if this one routes, and has
no stream here: only sessions acknowledge it (B-012, B-077).

Every decision returns a text: "" if it was made, else why the queue manager has no room for the message (B-285), and
nothing was decided. Times: `now` monotonic milliseconds, `wall` seconds since 1970.
"""

from __future__ import annotations

from mqqb import build, compose, confirm, core, guids, headers, reader

from ordack import classes, outcome, returns
from ordack.batch import Batch
from ordack.config import Config
from ordack.duplicates import Duplicates
from ordack.incoming import IncomingState, IncomingStreams
from ordack.links import Link
from ordack.log import Operator
from ordack.outcome import Back
from ordack.outgoing import OutgoingQueues
from ordack.routing import Routing
from ordack.store import NewMessage, Queue, Store

LOWEST_PRIORITY_RANK = 7
PRIVACY_LEVELS = (0, 1, 3, 5)  # wire.md 1.9
FINAL_ACK_BYTES = 512  # at most, with the longest address
NOT_NOW = "too many FinalAcks wait for the peer already"  # the message is dropped, and comes again (B-151)


class Acceptance:
    """Decides about messages; what it has decided is in the batch."""

    def __init__(
        self,
        store: Store,
        config: Config,
        routing: Routing,
        incoming: IncomingStreams,
        outgoing: OutgoingQueues,
        duplicates: Duplicates,
        operator: Operator,
    ) -> None:
        self._store = store
        self._config = config
        self._routing = routing
        self._incoming = incoming
        self._outgoing = outgoing
        self._duplicates = duplicates
        self._operator = operator

    def message(self, batch: Batch, link: Link, message: headers.UserMessage, raw: bytes, now: int, wall: int) -> str:
        """Decide about one message."""
        user = message.user
        forward = self._config.route and not self._routing.is_here(user)
        if message.transaction is not None:  # B-247: no look-up, the ordering knows
            return (
                self._forward(batch, link, message, raw, wall)
                if forward
                else self._transactional(batch, link, message, raw, now, wall)
            )
        identifier = (bytes(user.source_queue_manager), user.message_id)
        refusal = ""
        if identifier not in self._duplicates:  # B-248
            refusal = (self._forward if forward else self._other)(batch, link, message, raw, wall)
        if not refusal:
            self._duplicates.note(identifier, wall)  # B-254
            batch.noted[identifier] = None
        return refusal

    def acknowledgement(
        self, batch: Batch, link: Link, packet: reader.OrderAck | headers.FinalAck, raw: bytes, now: int, wall: int
    ) -> str:
        """Decide about an acknowledgement for another queue manager (B-363). If its source still waits for an OrderAck
        that goes nowhere, it sends again and gets another."""
        source = bytes(packet.message.user.queue_manager_address)
        if not self._config.route or (isinstance(packet, reader.OrderAck) and not self._outgoing.has_way(source)):
            return ""
        return self.message(batch, link, packet.message, raw, now, wall)

    # ---- messages that end here

    def _other(self, batch: Batch, link: Link, message: headers.UserMessage, raw: bytes, wall: int) -> str:
        """Decide about a message that is not transactional."""
        queue = self._incoming.queue(self._routing.target(message.user)[1])
        rejection = self._rejection(message, queue, wall)
        if batch.outcomes.room < len(raw) and (not rejection or message.user.flags & core.USER_JN):
            return batch.outcomes.why_full  # B-283: before the queue's
        if not rejection and not self._has_room(batch, queue, raw):
            rejection = confirm.NACK_Q_EXCEED_QUOTA
        if rejection:
            self._fail(batch, link, message, raw, rejection)
        else:
            self._insert(batch, link, message, raw, queue, wall)
        return ""

    def _transactional(
        self, batch: Batch, link: Link, message: headers.UserMessage, raw: bytes, now: int, wall: int
    ) -> str:
        user, transaction = message.user, message.transaction
        assert transaction is not None
        key, target = self._routing.target(user)
        queue = self._incoming.queue(target)
        state = self._state(batch, bytes(user.source_queue_manager), key, target, now)
        self._incoming.came_on(link, state)
        state.last_access = wall  # B-274
        before = state.stream.record[:]
        accepted = state.stream.accept(transaction)
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
            state.stream.record[:] = before
            return refusal
        if is_unknown:
            state.limit = transaction.tx_sequence_number
        elif accepted and place[0] != last:
            state.limit = None
        state.stream.schedule_order_ack(now, link.session, self._config.early_order_ack)  # B-269
        self._incoming.owe(state)
        batch.incoming[state] = None
        if accepted:
            state.complained = False
            if not rejection:
                self._incoming.accepted(state)
                self._insert(batch, link, message, raw, queue, wall)
        elif last != place[0] or place[1] > before[core.INCOMING_NUMBER]:  # else it is only sent again
            self._complain_of_refusals(state, transaction)
        return ""

    def _state(self, batch: Batch, source: bytes, key: str, target: str | int, now: int) -> IncomingState:
        state = self._incoming.find(source, key)
        if state is None:
            state, forgotten = self._incoming.add(source, key, target, now)
            for stray in forgotten:
                batch.incoming.pop(stray, None)
                batch.forgotten.append((stray.source, stray.key))
        return state

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
        if life != compose.FOREVER and outcome.elapsed(message, wall) > life + self._config.clock_skew:
            return confirm.NACK_REACH_QUEUE_TIMEOUT
        return 0

    def _has_room(self, batch: Batch, queue: Queue | None, raw: bytes) -> bool:
        assert queue is not None
        if queue.quota is None:
            return True
        now = self._store.find_queue(queue.identifier)
        return now is None or now.has_room(batch.queued.get(queue.identifier, 0) + len(raw))

    def _insert(
        self, batch: Batch, link: Link, message: headers.UserMessage, raw: bytes, queue: Queue | None, wall: int
    ) -> None:
        """Put a message in its queue (B-282, B-288), and say so if that is asked for (B-291)."""
        assert queue is not None
        wanted = outcome.wants(message, own=False)
        back = _way_back(link, message.user)
        if wanted and back.direct:
            wanted |= outcome.DIRECT
        priority = 0 if message.transaction is not None else message.base.flags & core.BASE_PR  # B-287
        batch.messages.append(
            NewMessage(
                queue.identifier,
                LOWEST_PRIORITY_RANK - priority,
                raw,
                outcome.expires(message, wall),
                wanted,
                back.peer if wanted else None,
                back.address if wanted else None,
            )
        )
        batch.queued[queue.identifier] = batch.queued.get(queue.identifier, 0) + len(raw)
        batch.outcomes.room -= len(raw)
        if message.properties.flags & headers.WANT_PA:
            batch.outcomes.administer(message, confirm.ACK_REACH_QUEUE, back)
        if message.base.flags & core.BASE_TR:
            batch.outcomes.report(message)

    # ---- messages for another queue manager

    def _forward(self, batch: Batch, link: Link, message: headers.UserMessage, raw: bytes, wall: int) -> str:
        """Decide about a message, or acknowledgement, that goes on (B-012, B-259, B-264)."""
        hops = (message.user.flags & core.USER_RC) + 1
        target = self._routing.onward(message.user)
        rejection = confirm.NACK_HOP_COUNT_EXCEEDED if hops > self._config.hop_limit else self._too_late(message, wall)
        if not target:
            rejection = confirm.NACK_BAD_DST_Q
        if rejection:
            if message.transaction is not None:
                return self._reject(batch, None, link, message, rejection)
            self._fail(batch, link, message, raw, rejection)
            return ""
        if batch.outcomes.room < len(raw):
            return batch.outcomes.why_full  # B-251
        batch.outcomes.room -= len(raw)
        packet = bytearray(raw)
        build.set_hop_count(packet, hops)
        batch.forwarded.append((target, message, packet))
        if message.base.flags & core.BASE_TR:
            batch.outcomes.report(message)
        return ""

    # ---- messages that are refused

    def _reject(
        self, batch: Batch, state: IncomingState | None, link: Link, message: headers.UserMessage, message_class: int
    ) -> str:
        """Refuse a transactional message (B-260).

        The FinalAck is filed under the peer, the next hop back, even where it is addressed to another source (B-011,
        B-362). state: of its stream, if it ends here.
        """
        back = _way_back(link, message.user)
        waiting = self._outgoing.to_peer(back.peer)
        if waiting and len(waiting.stream.table) >= self._config.max_peer_final_acks:
            return NOT_NOW
        if batch.outcomes.room < FINAL_ACK_BYTES:
            return batch.outcomes.why_full
        self._tell_of_refusal(link, message, message_class)
        batch.outcomes.final_ack(message, message_class, back)
        batch.rejected.append((state, back.peer))
        if message.properties.flags & headers.WANT_NA:
            batch.outcomes.administer(message, message_class, back)
        return ""

    def _fail(self, batch: Batch, link: Link, message: headers.UserMessage, raw: bytes, message_class: int) -> None:
        """Refuse a message that is not transactional."""
        self._tell_of_refusal(link, message, message_class)
        batch.outcomes.undelivered(raw, message_class, _way_back(link, message.user))

    def _tell_of_refusal(self, link: Link, message: headers.UserMessage, message_class: int) -> None:
        name = outcome.format_name(message.user)
        self._operator.tell(
            f"{link.address}: a message for {name} is refused: {classes.words(message_class, name)}",
            fact=f"{link.address} {name}: {message_class}",
        )

    def _complain_of_refusals(self, state: IncomingState, transaction: headers.TransactionHeader) -> None:
        record = state.stream.record
        if record[core.INCOMING_REJECT_COUNT] >= self._config.refusals_told and not state.complained:
            state.complained = True
            last = record[core.INCOMING_TIME_STAMP] << 32 | record[core.INCOMING_ORDINAL]
            count = record[core.INCOMING_REJECT_COUNT]
            self._operator.tell(
                f"{guids.guid_text(state.source)} to {state.key}: {count} messages refused in a row, the last "
                f"{transaction.tx_sequence_id}/{transaction.tx_sequence_number} after "
                f"{transaction.previous_tx_sequence_number}, while the last accepted is "
                f"{last}/{record[core.INCOMING_NUMBER]}: was the source restored from an older copy? (B-426)"
            )


def _way_back(link: Link, user: headers.UserHeader) -> Back:
    return Back(
        link.peer, link.address, link.session.direct_format_session and bytes(user.source_queue_manager) == link.peer
    )
