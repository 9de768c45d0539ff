"""What was accepted of a stream, and the OrderAck that is owed."""

from array import array

from mqqb import const, core

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from mqqb.headers import TransactionHeader
    from mqqb.session import Session

ORDER_ACK_TIMEOUT = 500  # B-045
MAXIMUM_ORDER_ACK_DELAY = 10000  # B-047
EARLY_ORDER_ACK = 20


class IncomingStream:
    """What this queue manager has accepted from one source for one queue, and the OrderAck it owes (B-058 to B-060,
    B-113).

    record: the mqqb_incoming words, persistent; the owner stores it in one step with each message that `accept`
    admitted (B-098).
    """

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
    def tx_sequence_number(self) -> int:
        """IncomingTxSequenceNumber: the last accepted number, the one that an OrderAck names (B-358)."""
        return self.record[core.INCOMING_NUMBER]

    def accept(self, header: "TransactionHeader") -> bool:
        """Is this message the next one (B-270)? True: the record has advanced (B-271); else only its reject count has
        (B-272, A-01).
        """
        return core.accept(self.record, header.fields)

    def schedule_order_ack(self, now: int, session: "Session | None" = None, early: int = EARLY_ORDER_ACK) -> None:
        """A transactional message has come, accepted or not: start or push back the Order Ack Send Timer (B-113,
        B-269).

        session: the one that it came on, if the OrderAck may go out before that timer asks for it: at once when half of
        the window has come, and after a quiet of `early` ms or of a round trip, whichever is longer (early: 0 for
        never). Senders take one at any time (B-230 to B-237).
        """
        self._come += 1
        timeout = self._order_ack_timeout
        if session is not None and early:
            if self._come >= session.window.half:
                timeout = 0
            timeout = min(timeout, max(early, session.round_trip))
        if not timeout or self._due is None or now - self.last_order_ack_send_time < self._maximum_order_ack_delay:
            self._due = now + timeout

    def next_timeout(self) -> "int | None":
        """When the OrderAck is due, or None. It stays owed when a session closes: the next one sends it
        at once (A-30).
        """
        return self._due

    def order_ack_sent(self, now: int) -> None:
        """The OrderAck has been handed to a session, or none can be made yet (B-153, B-359)."""
        self._due = None
        self._come = 0
        self.last_order_ack_send_time = now
