"""The confirmation process at the source: the fate of one transactional message (confirmation.md, C-nn).

Sans I/O: events and `now` go in; the owner's duties come out as bits, STORE to LOG. Times are whole seconds since
1970, the specification's wall clock, because deadlines must survive a restart. The module reads no clock.

When a transaction commits, the owner calls `record = new(...)` for each of its transactional messages, and stores the
record (six 32-bit words) with the packet. `journal_of` gives the packet's JN and JP. All messages of a transaction
share the three times of the first one (B-406). The owner reports events by `sent`, `order_ack`, `final_ack` and
`failed`, and asks `may_send` before each transmission. It calls `handle_deadline` at `next_deadline`, after
acknowledgements of the same instant, and first of all at start-up (C-33). One commit covers the changed record and the
duties:

    action = confirmation.final_ack(message_class)
    if action & confirm.DEAD_LETTER: ...  # move the packet, with its class, record[CLASS], to the queue of C-36
    if action & confirm.STORE: ...        # the record too

A lost connection is no event (C-32). `sent` must be durable before the bytes go. Otherwise the owner calls `sent` at
start-up for each message in Q, and reports a few unsent messages as "in doubt". A queue above its quota takes no copy,
without further effect (C-37). A message to a local queue begins in O: its removal from the queue is `final_ack`, and
`handle_deadline` waits while a receive locks the message (B-407). Non-transactional messages and aborted transactions
have no record (C-07, C-08).
"""

from array import array

from mqqb import const, core

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Protocol

    from mqqb.headers import FinalAck
    from mqqb.streams import Entry, OrderAckBody, OutgoingStream

    class SourceQueue(Protocol):
        """A queue of messages for one destination."""

        @property
        def stream(self) -> OutgoingStream:
            """The stream of the pending messages."""

    class Storage(Protocol):
        """Keeps the messages of all queues, and numbers them. strangers: unexplained OrderAcks, {} at first."""

        strangers: "dict[int, int]"

        def answer(self, queue: "Any", entries: "list[Entry]", message_class: int) -> None:
            """An acknowledgement settles messages that have left a queue's table. message_class 0: the destination has
            stored them. Otherwise the class that ended them: they have left the stream."""

        def outrun(self, time_stamp: int, queue: "Any") -> None:
            """An OrderAck names an unknown number with this TimeStamp, of this queue, or of an unknown one (None). New
            numbers have to be later, if possible."""

        def came_late(self, message_id: int, message_class: int) -> None:
            """A FinalAck names a message that has left all streams."""


UNSET = const(0xFFFFFFFF)  # TTRQ: the machine's default; TTBR: infinite
LONG_LIVE_TIME = const(345600)  # B-401

# States of the copy, as character codes (confirmation.md section 1).
Q = const(0x51)  # committed, never transmitted
S = const(0x53)  # transmitted, not order-acknowledged
O = const(0x4F)  # noqa: E741 - order-acknowledged, or in a queue of this machine: it is stored at its destination
J = const(0x4A)  # confirmed, copy in the journal
X = const(0x58)  # dead-lettered
GONE = const(0x2D)  # "-"

# Words of a record.
STATE = const(0)
MARKS = const(1)
SENT_TIME = const(2)  # T0
TTRQ = const(3)
TTBR = const(4)
CLASS = const(5)  # 0 until the end; then the final class
RECORD_WORDS = const(6)
_NO_RECORD = b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"  # a literal takes no memory of a board

# The owner's duties, as bits. 0: none.
STORE = const(0x01)  # the record has changed
JOURNAL = const(0x02)  # move the message to the journal, its class unchanged (C-25)
DEAD_LETTER = const(0x04)  # move the message, with message_class, to a dead-letter queue (C-36)
DELETE = const(0x08)  # delete the message
NACK = const(0x10)  # send an administration acknowledgement of class NACK_REACH_QUEUE_TIMEOUT
HOLD = const(0x40)  # of too_late: stop sending; a FinalAck may settle the message until C (C-22)
LOG = const(0x20)  # log a positive FinalAck that came too late (C-34)

# Answers of `conclusion`.
WAITING = const("waiting")
STORED = const("stored at destination")
RECEIVED = const("received")
DEAD_LETTERED = const("dead-lettered")
DISCARDED = const("discarded")

# Message classes (B-365 to B-387), and their bits by topic. ORDER_ACK is in packets.
CLASS_NEGATIVE = const(0x8000)
CLASS_RECEIVING = const(0x4000)  # about receiving, not arriving
REPORT = const(0x0001)
ACK_REACH_QUEUE = const(0x0002)
ACK_RECEIVE = const(0x4000)
NACK_BAD_DST_Q = const(0x8000)
NACK_DELETED = const(0x8001)
NACK_REACH_QUEUE_TIMEOUT = const(0x8002)
NACK_Q_EXCEED_QUOTA = const(0x8003)
NACK_ACCESS_DENIED = const(0x8004)
NACK_HOP_COUNT_EXCEEDED = const(0x8005)
NACK_BAD_SIGNATURE = const(0x8006)
NACK_BAD_ENCRYPTION = const(0x8007)
NACK_COULD_NOT_ENCRYPT = const(0x8008)
NACK_NOT_TRANSACTIONAL_Q = const(0x8009)
NACK_NOT_TRANSACTIONAL_MSG = const(0x800A)
NACK_UNSUPPORTED_CRYPTO_PROVIDER = const(0x800B)
NACK_SOURCE_COMPUTER_GUID_CHANGED = const(0x800C)
NACK_Q_DELETED = const(0xC000)
NACK_Q_PURGED = const(0xC001)
NACK_RECEIVE_TIMEOUT = const(0xC002)
NACK_RECEIVE_TIMEOUT_AT_SENDER = const(0xC003)
NACK_RECEIVE_REJECTED = const(0xC004)

# By class; the first is for any other class.
_WORDS = const(
    "failed;8000 no such queue;8001 deleted;8002 not delivered in time;8003 queue full;8004 access denied;"
    "8009 queue not transactional;800C sender changed;C000 queue deleted;C001 queue purged;C002 not received in time;"
    "C003 expired before arrival;C004 rejected"
)

JOURNAL_BITS = const(0x03)  # MARKS: 1 JN, 2 JP (B-389)
_NACK_REQUESTED = const(0x04)
_LOCAL = const(0x08)
_TRANSMITTED = const(0x10)
_CONFIRMED = const(0x20)  # CLASS came in a FinalAck: distinguishes C-85 from C-86

# Events. An event by the source has the class that it causes; the low byte of any other holds the marks it sets.
_MARKS_LEFT = const(0x30)
_SENT = const(0x110)
_ORDER_ACKED = const(0x210)
_POSITIVE = const(0x330)  # a FinalAck
_NEGATIVE = const(0x430)
_REACH = const(0x500)  # T0 + TTRQ
_LIFETIME = const(0x600)  # T0 + TTBR
_CONFIRMATION = const(0x700)  # C

# Rows: states, event, next state by journal value (none, JN, JP, JN and JP). An event without a row is ignored (C-35);
# frequent events come first. "." is impossible: a message without journal is not held, and only such a message ends in
# S at T0 + TTBR. A row without a change of state logs. A literal takes no memory on boards.
_TABLE = (
    (b"Q", _SENT, b"SSSS"),
    (b"QS", _ORDER_ACKED, b"-OOO"),  # C-27, C-40, C-04 to C-06; Q: the transmission was not recorded (inferred)
    (b"QSO", _POSITIVE, b"--JJ"),  # C-25, C-43, C-70
    (b"X", _POSITIVE, b"XXXX"),  # C-34
    (b"QSO", _NEGATIVE, b"-X-X"),  # C-26, C-42, C-44, C-73
    (b"QS", _REACH, b"-X-X"),  # C-20, C-41, B-312
    (b"QO", _LIFETIME, b"-X-X"),  # C-21, C-41, C-71
    (b"S", _LIFETIME, b"-..."),  # C-41
    (b"SO", _CONFIRMATION, b".X-X"),  # C-22, C-23, C-45
    (b"QSO", NACK_DELETED, b"-X-X"),  # C-29; O: an administrator can end the wait of C-24 (test case 13)
    (b"Q", NACK_COULD_NOT_ENCRYPT, b"-X-X"),  # C-28
    (b"QSO", NACK_SOURCE_COMPUTER_GUID_CHANGED, b"-X-X"),  # C-30
)


class Settings:
    """The machine's values under Windows' names. Raises ValueError for a value out of range.

    xact_delay_receive_nack: s, 0 to 0xFFFFFFFE, or None where it is absent (C-12 to C-14). long_live_time: s, replaces
    an unset TTRQ. The classes are those of C-21, C-22 and C-23; no document defines them (section 10, A-44).
    """

    def __init__(
        self,
        xact_delay_receive_nack: "int | None" = None,
        xact_dead_letter_always: bool = False,
        long_live_time: int = LONG_LIVE_TIME,
        class_never_sent: int = NACK_RECEIVE_TIMEOUT_AT_SENDER,
        class_sent: int = NACK_RECEIVE_TIMEOUT_AT_SENDER,
        class_stored: int = NACK_RECEIVE_TIMEOUT,
    ) -> None:
        for least, most, values in (
            (0, UNSET - 1, (xact_delay_receive_nack or 0, long_live_time)),
            (CLASS_NEGATIVE, 0xFFFF, (class_never_sent, class_sent, class_stored)),
        ):
            for value in values:
                if not least <= value <= most:
                    raise ValueError("{} is not in {} to {}".format(value, least, most))
        self.xact_delay_receive_nack = xact_delay_receive_nack
        self.xact_dead_letter_always = xact_dead_letter_always
        self.long_live_time = long_live_time
        self.class_never_sent = class_never_sent
        self.class_sent = class_sent
        self.class_stored = class_stored


class Conclusion:
    """The answer for the application (C-80 to C-87).

    answer: WAITING, STORED (final without JN and JP, C-40), RECEIVED, DEAD_LETTERED, or DISCARDED (failed, without
    JN). message_class: the final class, 0 before the end. in_doubt: a failed message may have been received all the
    same. text: the answer, or the cause of the failure, in words. deadline: C, s since 1970: receipt is decided by then
    (C-81); None: never (C-40, C-87), or T0 is unknown.
    is_final: nothing will change.
    """

    __slots__ = ("answer", "deadline", "in_doubt", "is_final", "message_class", "text")

    def __init__(
        self,
        answer: str,
        message_class: int,
        in_doubt: bool = False,
        deadline: "int | None" = None,
        is_final: bool = False,
    ) -> None:
        self.answer = answer
        self.message_class = message_class
        self.in_doubt = in_doubt
        self.deadline = deadline
        self.is_final = is_final
        text = words(message_class) if message_class & CLASS_NEGATIVE else answer
        self.text = text + ", in doubt" if in_doubt else text


def words(message_class: int) -> str:
    """The words for the class of a failed message, and its number."""
    text = _WORDS.split("{:X} ".format(message_class))[-1].split(";")[0]
    return "{} (class 0x{:X})".format(text, message_class)


def journal_of(journal: int, settings: Settings) -> int:
    """The JN and JP (core.USER_JN, core.USER_JP) of an outgoing transactional message (C-02, B-400)."""
    return journal | core.USER_JN if settings.xact_dead_letter_always else journal


def new(
    sent_time: int,
    settings: Settings,
    journal: int = 0,
    ttrq: int = UNSET,
    ttbr: int = UNSET,
    nack: bool = False,
    local: bool = False,
) -> "array[int]":
    """The record of a transactional message whose transaction commits.

    sent_time: T0, s since 1970. ttrq, ttbr: s, or UNSET. journal: core.USER_JN, core.USER_JP. nack: the application
    asked for a negative arrival acknowledgement (NA). local: the destination is a local queue, which is always reached
    (C-72).
    """
    marks = journal_of(journal, settings) // core.USER_JN
    if nack:
        marks |= _NACK_REQUESTED
    if local:
        marks |= _LOCAL
    record = array("I", _NO_RECORD)
    record[STATE] = O if local else Q
    record[MARKS] = marks
    record[SENT_TIME] = sent_time
    record[TTRQ] = ttrq
    record[TTBR] = ttbr
    return record


class Confirmation:
    """The process of one message. `record` comes from `new`, or unchanged from the disk (C-33). Raises ValueError
    unless it has RECORD_WORDS words.
    """

    __slots__ = ("_settings", "record")

    def __init__(self, record: "array[int]", settings: Settings) -> None:
        if len(record) != RECORD_WORDS:
            raise ValueError("a record has six words")
        self.record = record
        self._settings = settings

    @property
    def state(self) -> int:
        """Q, S, O, J, X or GONE."""
        return self.record[STATE]

    # ---- events -----------------------------------------------------------------------------------

    def sent(self) -> int:
        """The message is about to be transmitted, or may have been. Returns the action."""
        return self._apply(_SENT, 0)

    def order_ack(self) -> int:
        """An OrderAck covers the message, and if required a SessionAck (C-27, A-17). Returns the action."""
        return self._apply(_ORDER_ACKED, 0)

    def final_ack(self, message_class: int) -> int:
        """A FinalAck names the message, at any time; or the message left a local queue with this class (C-25, C-26,
        C-70, C-73).

        Returns the action. Raises ValueError for a class below 0x4000.
        """
        if message_class < ACK_RECEIVE:
            raise ValueError("the class of a FinalAck is 0x4000 or above")
        return self._apply(_POSITIVE if message_class == ACK_RECEIVE else _NEGATIVE, message_class)

    def failed(self, message_class: int) -> int:
        """The source ends the message: NACK_DELETED, NACK_COULD_NOT_ENCRYPT or NACK_SOURCE_COMPUTER_GUID_CHANGED (C-28
        to C-30).

        Returns the action: 0 in a state where the class has no effect. Raises ValueError for another class.
        """
        if message_class not in (NACK_DELETED, NACK_COULD_NOT_ENCRYPT, NACK_SOURCE_COMPUTER_GUID_CHANGED):
            raise ValueError("the source ends no message for this reason")
        return self._apply(message_class, message_class)

    def handle_deadline(self, now: int) -> int:
        """Handle the event due at `now`, overdue or not (C-33). Returns the action."""
        time, event = self._next()
        if time is None or now < time:
            return 0
        settings = self._settings
        state = self.record[STATE]
        message_class = NACK_REACH_QUEUE_TIMEOUT
        if event == _CONFIRMATION:
            message_class = settings.class_sent if state == S else settings.class_stored
        elif event == _LIFETIME and state == Q:
            message_class = settings.class_never_sent
        elif event == _LIFETIME and state == O:
            message_class = NACK_RECEIVE_TIMEOUT
        return self._apply(event, message_class)

    def overdue(self, limit: int) -> int:
        """The time for sending has expired. limit: T0 + the smaller of TTRQ and TTBR in the packet; a later change of
        the machine's default has no effect (C-20, C-41). Returns the action; 0: TTBR has expired, and the message
        waits for C (C-22).
        """
        if limit >= self.record[SENT_TIME] + self.record[TTBR]:
            return 0
        return self._apply(_REACH, NACK_REACH_QUEUE_TIMEOUT)

    # ---- queries ----------------------------------------------------------------------------------

    def may_send(self, now: int) -> bool:
        """May the message be sent or resent at `now` (C-18, C-22)? Not after T0 + TTRQ or T0 + TTBR."""
        # an unset TTBR is above every TTRQ
        life = min(self._time_to_reach_queue(), self.record[TTBR])
        return self.record[STATE] in (Q, S) and now <= self.record[SENT_TIME] + life

    def confirmation_deadline(self) -> "int | None":
        """C (C-11 to C-14, C-71): from C on, an empty dead-letter queue proves receipt, if JN is set (C-80, C-81).

        None: never, TTBR is unset (C-87).
        """
        record = self.record
        ttbr = record[TTBR]
        if ttbr == UNSET:
            return None
        extension = self._settings.xact_delay_receive_nack
        if record[MARKS] & _LOCAL:
            extension = 0
        elif extension is None:
            extension = min(ttbr, record[TTRQ])  # TTBR of any length if TTRQ is unset (C-13, C-16)
        return record[SENT_TIME] + ttbr + extension

    def next_deadline(self) -> "int | None":
        """When `handle_deadline` acts next; None: the message has ended, or is stored with TTBR unset (C-24)."""
        return self._next()[0]

    def conclusion(self) -> Conclusion:
        """The answer for the application."""
        record = self.record
        state = record[STATE]
        message_class = record[CLASS]
        marks = record[MARKS]
        in_doubt = False
        answer = DEAD_LETTERED if state == X else DISCARDED
        if state in (Q, S):
            answer = WAITING
        elif message_class == 0:
            answer = STORED
        elif message_class == ACK_RECEIVE:
            answer = RECEIVED
        else:
            # C-82 also calls classes 0x8001 and 0x800C definite. From the source, on a transmitted message, they leave
            # receipt open, as in C-84 (B-315). A FinalAck of 0x8002 or of an unknown class leaves it open too (C-82,
            # C-84, C-85).
            is_definite = message_class in (0xC000, 0xC001, NACK_RECEIVE_TIMEOUT, 0xC004) or (
                0x8000 <= message_class <= 0x800C and message_class != NACK_REACH_QUEUE_TIMEOUT
            )
            in_doubt = bool(marks & _TRANSMITTED) and not (marks & _CONFIRMED and is_definite)
        is_known = marks & JOURNAL_BITS and record[SENT_TIME]
        deadline = self.confirmation_deadline() if is_known else None
        return Conclusion(answer, message_class, in_doubt, deadline, state not in (Q, S, O))

    def _time_to_reach_queue(self) -> int:
        ttrq = self.record[TTRQ]
        return self._settings.long_live_time if ttrq == UNSET else ttrq

    def _next(self) -> "tuple[int | None, int]":
        record = self.record
        state = record[STATE]
        if state not in (Q, S, O):
            return None, 0
        marks = record[MARKS]
        time: "int | None" = None
        if state != Q and marks & JOURNAL_BITS and not marks & _LOCAL:
            event = _CONFIRMATION
            time = self.confirmation_deadline()
        else:
            event = _LIFETIME
            if record[TTBR] != UNSET:
                time = record[SENT_TIME] + record[TTBR]
        if state != O:
            reach = record[SENT_TIME] + self._time_to_reach_queue()
            if time is None or reach <= time:
                return reach, _REACH
        return time, event

    def _apply(self, event: int, message_class: int) -> int:
        record = self.record
        before = record[STATE]
        for row in _TABLE:
            if row[1] == event and before in row[0]:
                break
        else:
            return 0
        journal = record[MARKS] & JOURNAL_BITS
        state = row[2][journal]
        if state == before:
            return LOG
        action = STORE
        if state == J:
            action = STORE | JOURNAL
        elif state == X:
            action = STORE | DEAD_LETTER
        elif state == GONE:
            action = STORE | DELETE
        has_failed = event == _REACH or (event == _LIFETIME and before != O and not journal & 1)  # C-20, C-21, C-41
        if has_failed and record[MARKS] & _NACK_REQUESTED:
            action |= NACK
        record[STATE] = state
        record[MARKS] |= event & _MARKS_LEFT
        record[CLASS] = message_class
        return action


# ---- pending messages, on queue managers and boards ----------------------------------------------


def too_late(confirmation: Confirmation, time: int, until: int) -> int:
    """The action for a message that is due at `time`, or about to be sent. 0: it may be sent.

    until: T0 + the smaller of TTRQ and TTBR in the packet, or later. All in s since 1970 (C-18 to C-22, B-311).
    """
    action = confirmation.handle_deadline(time)
    if not action and time > until:
        action = confirmation.overdue(until) or HOLD
    return action


def order_ack(storage: "Storage", body: "OrderAckBody", queues: "Iterable[SourceQueue]", now: int) -> bool:
    """Apply an OrderAck (B-230 to B-237). now: monotonic ms. queues: all queues. False: it acknowledges no pending
    message of the queues; lives.explain gives the reason.
    """
    for queue in queues:  # TxSequenceIDs are unique among all queues (B-230)
        stream = queue.stream
        if stream.is_progress(body):
            storage.answer(queue, stream.order_ack(body, now), 0)
            return True
    return False


def final_ack(storage: "Storage", packet: "FinalAck", guid: bytes, queues: "Iterable[SourceQueue]", now: int) -> None:
    """Apply a FinalAck (B-241 to B-245). guid: of this queue manager. queues: those that may have its message."""
    body = packet.body
    if body.source_guid != guid:  # B-241
        return
    message_class = packet.message.properties.fields[core.PROPERTIES_MESSAGE_CLASS]
    for queue in queues:
        entry = queue.stream.final_ack(body, now)
        if entry is not None:
            storage.answer(queue, [entry], message_class)
            return
    storage.came_late(body.fields[core.ACK_MESSAGE_ID], message_class)
