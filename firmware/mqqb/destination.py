"""The destination's role, on queue managers and boards (sans I/O): accept or reject messages, and schedule OrderAcks.

A Storage keeps the decisions: SQLite in one transaction, or a log on flash.
"""

from array import array

from mqqb import compose, confirm, const, core

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Protocol

    from mqqb.headers import TransactionHeader, UserMessage
    from mqqb.session import Session

    class Storage(Protocol):
        """Keeps accepted messages, and the FinalAcks of rejected ones. arriving: the message as its owner passed it to
        `IncomingStream.decide`."""

        def over_quota(self, arriving: "Any") -> int:
            """The class that rejects the message if its queue is full. 0: the queue has room, or all queues lack room,
            which takes precedence (B-283)."""

        def keep(self, arriving: "Any", rejection: int) -> str:
            """Put the message in its queue (B-282), or store the answer to its rejection with this class (B-115).
            Return a reason if there is no room: then nothing is stored (B-285)."""


ORDER_ACK_TIMEOUT = 500  # B-045
MAXIMUM_ORDER_ACK_DELAY = 10000  # B-047
EARLY_ORDER_ACK = 20
ENCRYPTED_BODY = const(0x20)  # SecurityHeader.Flags.EB
_PRIVACY_LEVELS = (0, 1, 3, 5)  # wire.md 1.9


def rejection_of(message: "UserMessage", is_here: bool, is_transactional: bool, time: int, clock_skew: int) -> int:
    """The class that rejects a message at any place of its stream (A-33); 0 for a good message.

    is_here: its queue exists; is_transactional: the queue's type. Other arguments: see `is_too_late`.
    """
    if not is_here:
        return confirm.NACK_BAD_DST_Q  # B-256
    if (message.transaction is not None) != is_transactional:  # B-258, B-257
        return confirm.NACK_NOT_TRANSACTIONAL_MSG if is_transactional else confirm.NACK_NOT_TRANSACTIONAL_Q
    several = message.multi_queue_format
    if several is not None and several.signature:
        return confirm.NACK_BAD_SIGNATURE  # B-330: no key to verify it
    security = message.security
    if security is not None:
        if security.fields[core.SECURITY_SIGNATURE_SIZE]:
            return confirm.NACK_BAD_SIGNATURE
        if security.fields[core.SECURITY_FLAGS] & ENCRYPTED_BODY:
            return confirm.NACK_BAD_ENCRYPTION  # B-332: no key to decrypt it
        if message.properties.fields[core.PROPERTIES_PRIVACY_LEVEL] not in _PRIVACY_LEVELS:
            return confirm.NACK_BAD_SIGNATURE  # B-334
    return confirm.NACK_REACH_QUEUE_TIMEOUT if is_too_late(message, time, clock_skew) else 0


def is_too_late(message: "UserMessage", time: int, clock_skew: int) -> bool:
    """Has the time to reach the queue expired (B-265 to B-267, A-42)? time: s since 1970, 0 for an unset clock.
    clock_skew: s that the sender's clock may be behind."""
    life = message.base.fields[core.BASE_TIME_TO_REACH_QUEUE]
    return life != compose.FOREVER and time - message.user.fields[core.USER_SENT_TIME] > life + clock_skew


def may_acknowledge(rejecting: "Iterable[object]", connection: object) -> bool:
    """May an OrderAck be sent on this connection? The OrderAck also covers rejected messages. If it overtook a
    FinalAck, the source would take the rejected message for stored (B-235). So each such FinalAck has to precede it on
    the wire, or be on the peer's disk.

    rejecting: for each rejecting FinalAck that is not on the peer's disk, the connection that carries it, or None.
    """
    return all(carrier is connection for carrier in rejecting)


class IncomingStream:
    """The accepted messages of one source for one queue, and the OrderAck that is due (B-058 to B-060, B-113).

    record: the mqqb_incoming words; the owner commits it with each message that `accept` admitted (B-098). limit:
    above this number, rejections are unknown, because FinalAcks were discarded; None: none was. A queue manager stores
    the limit with the record; a board loses it at its next start.
    """

    limit: "int | None" = None

    def __init__(
        self,
        record: "array[int] | None" = None,
        now: int = 0,
        order_ack_timeout: int = ORDER_ACK_TIMEOUT,
        maximum_order_ack_delay: int = MAXIMUM_ORDER_ACK_DELAY,
    ) -> None:
        self.record = array("I", (0, 0, 0, 0)) if record is None else record
        self.last_order_ack_send_time = now  # B-046
        self._order_ack_timeout = order_ack_timeout
        self._maximum_order_ack_delay = maximum_order_ack_delay
        self._due: "int | None" = None
        self._come = 0  # messages since the last OrderAck

    @property
    def tx_sequence_id(self) -> int:
        """IncomingTxSequenceID as one 64-bit number (B-078)."""
        return self.record[core.INCOMING_TIME_STAMP] << 32 | self.record[core.INCOMING_ORDINAL]

    @property
    def tx_sequence_number(self) -> int:
        """IncomingTxSequenceNumber: the last accepted number (B-358)."""
        return self.record[core.INCOMING_NUMBER]

    @property
    def order_ack_number(self) -> int:
        """The number that an OrderAck may name; 0: no OrderAck is possible yet (B-359)."""
        number = self.tx_sequence_number
        return number if self.limit is None else min(number, self.limit)

    # ---- incoming messages

    def decide(self, header: "TransactionHeader", rejection: int, storage: "Storage", arriving: "Any") -> str:
        """Accept or reject a transactional message. Return a reason if there is no room: the stream is then unchanged
        (B-285). Otherwise `schedule_order_ack` has to follow.

        rejection: from `rejection_of`. The next message advances the stream even if rejected. A message beyond a gap
        is rejected where it is (B-262, A-15). An older message was answered before, or is in its queue. Raises the
        storage's errors; the storage has to restore the record then.
        """
        before = array("I", self.record)
        last = self.tx_sequence_id
        limit = self.limit
        sequence = header.tx_sequence_id
        number = header.fields[core.TX_NUMBER]
        is_unknown = False
        is_next = self.accept(header)
        if is_next:
            rejection = rejection or storage.over_quota(arriving)  # B-284
        elif (sequence, number) <= (last, self.tx_sequence_number):
            # Unknown is the first message above the limit that its source still has. If no number of this sequence may
            # be named, so that no OrderAck settles older messages, each of them is unknown.
            if limit is not None:
                is_unknown = header.fields[core.TX_PREVIOUS] <= limit < number if sequence == last else not limit
            rejection = confirm.NACK_REACH_QUEUE_TIMEOUT if is_unknown else 0
        if rejection or is_next:
            refusal = storage.keep(arriving, rejection)
            if refusal:
                core.copy_words(self.record, before)
                return refusal
        if is_unknown and sequence == last and self.limit == limit:  # else the storage has discarded FinalAcks below it
            self.limit = number
        elif is_next and sequence != last:
            self.limit = None
        return ""

    def accept(self, header: "TransactionHeader") -> bool:
        """Is this message the next one (B-270)? True: the record has advanced (B-271). False: its reject count has
        (B-272, A-01).
        """
        return core.accept(self.record, header.fields)

    def give_up(self, tx_sequence_id: int, number: int) -> None:
        """Record that the FinalAck that rejects this message is discarded. OrderAcks then stay below its number, so
        that no source takes the message for stored. The source resends from there (B-151), and gets an answer for each
        unknown message (C-84).
        """
        if tx_sequence_id == self.tx_sequence_id:
            self.limit = number - 1 if self.limit is None else min(self.limit, number - 1)

    # ---- the OrderAck

    def schedule_order_ack(self, now: int, session: "Session | None" = None, early: int = EARLY_ORDER_ACK) -> None:
        """Start or delay the Order Ack Send Timer for a transactional message, accepted or not (B-113, B-269).

        session: of the message, if the OrderAck may be sent before the timer (early: 0 for never). It is due at once
        if no other packet has begun to arrive, or after half of the window; else after a quiet of `early` ms. On a slow
        line each OrderAck takes long, so it waits for a quiet of one round trip instead. Senders accept an OrderAck at
        any time (B-230 to B-237).
        """
        self._come += 1
        timeout = self._order_ack_timeout
        if session is not None and early:
            come = session.reader
            is_quiet = come.begin == come.end and not session.round_trip
            if is_quiet or self._come >= session.window.half:
                timeout = 0
            timeout = min(timeout, max(early, session.round_trip))
        if not timeout or self._due is None or now - self.last_order_ack_send_time < self._maximum_order_ack_delay:
            self._due = now + timeout

    def next_timeout(self) -> "int | None":
        """When the OrderAck is due, or None. It stays due when a session closes: the next session sends it at once
        (A-30).
        """
        return self._due

    def order_ack_sent(self, now: int) -> None:
        """The OrderAck was passed to a session, or none is possible yet (B-153, B-359)."""
        self._due = None
        self._come = 0
        self.last_order_ack_send_time = now
