"""The confirmation process at the source: what becomes of one transactional message (confirmation.md, C-nn).

Sans I/O. Events and `now` go in; what the owner has to do comes out, as bits of STORE to LOG. Times are whole seconds
since 1970, the spec's wall clock, because the deadlines must survive a restart. Nothing here reads a clock.

How an owner uses it. When a transaction commits: `record = new(...)` for each of its transactional messages, with
`journal_of` giving the JN and JP that its packet must carry; the record (six 32-bit words) is stored with the packet.
Every message of one transaction gets the three times of its first one (B-406). Then it calls `sent`, `order_ack`,
`final_ack` and `failed` as these things happen, asks `may_send` before each transmission, and calls `handle_deadline`
at `next_deadline`: after the acknowledgements that came at the same instant, and at start-up before anything else
(C-33). It makes the changed record durable in one step with what the result asks for:

    action = confirmation.final_ack(message_class)
    if action & confirm.DEAD_LETTER: ...  # move the packet, with confirmation.message_class, to the queue of C-36
    if action & confirm.STORE: ...        # the record too

A lost connection is no event (C-32). `sent` must be durable before the bytes go: otherwise the owner calls `sent`, at
start-up, for each message that it finds in Q, and will say "in doubt" of a few that were never sent. A queue whose
quota is exceeded takes no copy, and nothing else happens (C-37). A message to a queue of this machine begins in O: its
removal from that queue is `final_ack`, `handle_deadline` waits while a receive has it locked (B-407). Messages that
are not transactional, and transactions that were aborted, have no record (C-07, C-08).
"""

from array import array

from mqqb import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

UNSET = const(0xFFFFFFFF)  # of TTRQ: the machine's default; of TTBR: infinite
LONG_LIVE_TIME = const(345600)  # B-401

_USER_JN = const(0x00000100)  # of constants.py (a test compares them)

# States of the copy (section 1).
Q = const("Q")  # committed, never transmitted
S = const("S")  # transmitted, not order-acknowledged
O = const("O")  # noqa: E741 - order-acknowledged, or in a queue of this machine: it is stored at its destination
J = const("J")  # confirmed, copy in the journal
X = const("X")  # dead-lettered
GONE = const("-")

# Words of a record.
STATE = const(0)  # the character code of the state
MARKS = const(1)
SENT_TIME = const(2)  # T0
TTRQ = const(3)
TTBR = const(4)
CLASS = const(5)  # 0 until the end; then what ended it
RECORD_WORDS = const(6)

_JOURNAL = const(0x03)  # MARKS: 1 JN, 2 JP (B-389)
_NACK_REQUESTED = const(0x04)
_LOCAL = const(0x08)
_TRANSMITTED = const(0x10)
_CONFIRMED = const(0x20)  # CLASS came in a FinalAck: what tells C-85 from C-86

# What the owner has to do, bits. 0: nothing.
STORE = const(0x01)  # the record has changed
JOURNAL = const(0x02)  # move the message to the journal, its class unchanged (C-25)
DEAD_LETTER = const(0x04)  # move the message, with message_class, to a dead-letter queue (C-36)
DELETE = const(0x08)  # delete the message
NACK = const(0x10)  # send an administration acknowledgement of class NACK_REACH_QUEUE_TIMEOUT
LOG = const(0x20)  # say that a positive FinalAck came too late (C-34)

# Of classes.py (a test compares them).
_ACK_RECEIVE = const(0x4000)
_NACK_DELETED = const(0x8001)
_NACK_REACH_QUEUE_TIMEOUT = const(0x8002)
_NACK_COULD_NOT_ENCRYPT = const(0x8008)
_NACK_SOURCE_COMPUTER_GUID_CHANGED = const(0x800C)
_NACK_RECEIVE_TIMEOUT = const(0xC002)
_NACK_RECEIVE_TIMEOUT_AT_SENDER = const(0xC003)

# Answers of `conclusion`.
WAITING = "waiting"
STORED = "stored at destination"
RECEIVED = "received"
DEAD_LETTERED = "dead-lettered"
DISCARDED = "discarded"

# Events.
_SENT = const("sent")
_ORDER_ACK = const("order ack")
_POSITIVE = const("positive FinalAck")
_NEGATIVE = const("negative FinalAck")
_REACH = const("T0 + TTRQ")
_LIFETIME = const("T0 + TTBR")
_CONFIRMATION = const("C")

# What an event leads to: the next state by journal value (none, JN, JP, JN and JP), and whether it makes an
# administration NACK where one is asked for, by the same. What is not here is ignored (C-35); "." cannot be: a message
# without journal is not held, and in S only such a one ends at T0 + TTBR. A row that stays in its state is logged.
TABLE = {
    (Q, _SENT): ("SSSS", "...."),
    (Q, _ORDER_ACK): ("-OOO", "...."),  # a record that did not learn of the transmission (inferred)
    (S, _ORDER_ACK): ("-OOO", "...."),  # C-27, C-40, C-04 to C-06
    (Q, _POSITIVE): ("--JJ", "...."),  # C-25, C-43
    (S, _POSITIVE): ("--JJ", "...."),
    (O, _POSITIVE): ("--JJ", "...."),  # and C-70
    (X, _POSITIVE): ("XXXX", "...."),  # C-34
    (Q, _NEGATIVE): ("-X-X", "...."),  # C-26, C-42, C-44
    (S, _NEGATIVE): ("-X-X", "...."),
    (O, _NEGATIVE): ("-X-X", "...."),  # and C-73
    (Q, _REACH): ("-X-X", "NNNN"),  # C-20, C-41, B-312
    (S, _REACH): ("-X-X", "NNNN"),
    (Q, _LIFETIME): ("-X-X", "N.N."),  # C-21, C-41
    (S, _LIFETIME): ("-...", "N..."),  # C-41
    (O, _LIFETIME): ("-X-X", "...."),  # C-71
    (S, _CONFIRMATION): (".X-X", "...."),  # C-22, C-45
    (O, _CONFIRMATION): (".X-X", "...."),  # C-23, C-45
    (Q, _NACK_DELETED): ("-X-X", "...."),  # C-29
    (S, _NACK_DELETED): ("-X-X", "...."),
    (O, _NACK_DELETED): ("-X-X", "...."),  # test case 13: an administrator can end the wait of C-24
    (Q, _NACK_COULD_NOT_ENCRYPT): ("-X-X", "...."),  # C-28
    (Q, _NACK_SOURCE_COMPUTER_GUID_CHANGED): ("-X-X", "...."),  # C-30
    (S, _NACK_SOURCE_COMPUTER_GUID_CHANGED): ("-X-X", "...."),
    (O, _NACK_SOURCE_COMPUTER_GUID_CHANGED): ("-X-X", "...."),
}
_MARKS_OF: "dict[str | int, int]" = {
    _SENT: _TRANSMITTED,
    _ORDER_ACK: _TRANSMITTED,
    _POSITIVE: _TRANSMITTED | _CONFIRMED,
    _NEGATIVE: _TRANSMITTED | _CONFIRMED,
}
_ACTIONS = {S: STORE, O: STORE, J: STORE | JOURNAL, X: STORE | DEAD_LETTER, GONE: STORE | DELETE}


class Settings:
    """The machine's values under Windows' names. Raises ValueError for one out of range.

    xact_delay_receive_nack: s, 0 to 0xFFFFFFFE, or None where it is absent (C-12 to C-14). long_live_time: s, stands
    for an unset TTRQ. The three classes are those of C-21, C-22 and C-23, which no document settles (section 10, A-44).
    """

    __slots__ = ("classes", "long_live_time", "xact_dead_letter_always", "xact_delay_receive_nack")

    def __init__(
        self,
        xact_delay_receive_nack: "int | None" = None,
        xact_dead_letter_always: bool = False,
        long_live_time: int = LONG_LIVE_TIME,
        class_never_sent: int = _NACK_RECEIVE_TIMEOUT_AT_SENDER,
        class_sent: int = _NACK_RECEIVE_TIMEOUT_AT_SENDER,
        class_stored: int = _NACK_RECEIVE_TIMEOUT,
    ) -> None:
        if xact_delay_receive_nack is not None and not 0 <= xact_delay_receive_nack < UNSET:
            raise ValueError("XactDelayReceiveNack is 0 to 0xFFFFFFFE")
        if not 0 <= long_live_time < UNSET:
            raise ValueError("LongLiveTime is 0 to 0xFFFFFFFE")
        for message_class in (class_never_sent, class_sent, class_stored):
            if not 0x8000 <= message_class <= 0xFFFF:
                raise ValueError("the class of a time-out is a negative one, 0x8000 to 0xFFFF")
        self.xact_delay_receive_nack = xact_delay_receive_nack
        self.xact_dead_letter_always = xact_dead_letter_always
        self.long_live_time = long_live_time
        self.classes = {
            (Q, _LIFETIME): class_never_sent,
            (S, _CONFIRMATION): class_sent,
            (O, _CONFIRMATION): class_stored,
            (O, _LIFETIME): _NACK_RECEIVE_TIMEOUT,
        }


class Conclusion:
    """What the application may be told (C-80 to C-87).

    answer: WAITING, STORED (also for good: without JN and JP nobody will learn more, C-40), RECEIVED, DEAD_LETTERED,
    or DISCARDED (it failed, and had no JN to keep it). message_class: of what ended it, 0 before the end.
    in_doubt: of the last two, whether it may have been received all the same.
    """

    __slots__ = ("answer", "in_doubt", "message_class")

    def __init__(self, answer: str, message_class: int, in_doubt: bool = False) -> None:
        self.answer = answer
        self.message_class = message_class
        self.in_doubt = in_doubt


def journal_of(journal: int, settings: Settings) -> int:
    """The JN and JP (core.USER_JN, core.USER_JP) with which a transactional message goes out (C-02, B-400)."""
    return journal | _USER_JN if settings.xact_dead_letter_always else journal


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
    asked for a negative arrival acknowledgement (NA). local: the destination is a queue of this machine, which is
    always reached (C-72).
    """
    marks = journal_of(journal, settings) // _USER_JN
    if nack:
        marks |= _NACK_REQUESTED
    if local:
        marks |= _LOCAL
    return array("I", (ord(O if local else Q), marks, sent_time, ttrq, ttbr, 0))


def dead_letter_queue(named: "str | None", is_transactional: "Callable[[str], bool | None]") -> "str | None":
    """Where a copy that is dead-lettered goes: the application's queue, or None for the system's transactional one
    (C-36).

    named: the application's choice, if it made one. is_transactional: of a local queue; None if there is none.
    """
    return named if named is not None and is_transactional(named) else None


class Confirmation:
    """The process of one message. `record` comes from `new`, or from the disk as it was (C-33). Raises ValueError if it
    is not RECORD_WORDS long.
    """

    __slots__ = ("_settings", "record")

    def __init__(self, record: "array[int]", settings: Settings) -> None:
        if len(record) != RECORD_WORDS:
            raise ValueError("a record has six words")
        self.record = record
        self._settings = settings

    @property
    def state(self) -> str:
        """Q, S, O, J, X or GONE."""
        return chr(self.record[STATE])

    @property
    def message_class(self) -> int:
        """The class for the dead-letter copy (B-394): what ended the process; 0 before the end, and for one that an
        OrderAck ended.
        """
        return self.record[CLASS]

    # ---- what happens -------------------------------------------------------------------------

    def sent(self) -> int:
        """It is about to be put on the wire, or may have been. Returns the action."""
        return self._apply(_SENT, 0)

    def order_ack(self) -> int:
        """An OrderAck covers it, and where the owner wants that too, a SessionAck (C-27, A-17). Returns the action."""
        return self._apply(_ORDER_ACK, 0)

    def final_ack(self, message_class: int) -> int:
        """A FinalAck names it, whatever the time is; or it left a local queue for this reason (C-25, C-26, C-70, C-73).

        Returns the action. Raises ValueError for a class below 0x4000.
        """
        if message_class < _ACK_RECEIVE:
            raise ValueError("the class of a FinalAck is 0x4000 or above")
        return self._apply(_POSITIVE if message_class == _ACK_RECEIVE else _NEGATIVE, message_class)

    def failed(self, message_class: int) -> int:
        """The source ends it: NACK_DELETED, NACK_COULD_NOT_ENCRYPT or NACK_SOURCE_COMPUTER_GUID_CHANGED (C-28 to C-30).

        Returns the action: 0 in a state where that cannot end it. Raises ValueError for another class.
        """
        if message_class not in (_NACK_DELETED, _NACK_COULD_NOT_ENCRYPT, _NACK_SOURCE_COMPUTER_GUID_CHANGED):
            raise ValueError("the source ends no message for this reason")
        return self._apply(message_class, message_class)

    def discard(self) -> None:
        """The dead-letter queue took no copy: its quota is used up (C-37). The application is not told of a letter that
        is nowhere.
        """
        self.record[STATE] = ord(GONE)

    def handle_deadline(self, now: int) -> int:
        """Act on what is due at `now`, overdue or not (C-33). Returns the action."""
        time, event = self._next()
        if time is None or now < time:
            return 0
        return self._apply(event, self._settings.classes.get((self.state, event), _NACK_REACH_QUEUE_TIMEOUT))

    def overdue(self, limit: int) -> int:
        """The time to be sent is over. limit: T0 + the smaller of TTRQ and TTBR, as the packet has them: whatever the
        machine's default has become since, a message that ran out of TTRQ ends here (C-20, C-41). Returns the action;
        0: it is TTBR that ran out, and the message waits for C (C-22).
        """
        if limit >= self.record[SENT_TIME] + self.record[TTBR]:
            return 0
        return self._apply(_REACH, _NACK_REACH_QUEUE_TIMEOUT)

    # ---- what holds ---------------------------------------------------------------------------

    def may_send(self, now: int) -> bool:
        """May it be transmitted, or transmitted again, at `now` (C-18, C-22)? Not after T0 + TTRQ or T0 + TTBR."""
        # An unset TTBR is above every TTRQ.
        life = min(self._time_to_reach_queue(), self.record[TTBR])
        return self.state in (Q, S) and now <= self.record[SENT_TIME] + life

    def confirmation_deadline(self) -> "int | None":
        """C (C-11 to C-14, C-71): from then on an empty dead-letter queue proves receipt, if JN is set (C-80, C-81).

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
            extension = min(ttbr, record[TTRQ])  # TTBR also where TTRQ is unset, however long it is (C-13, C-16)
        return record[SENT_TIME] + ttbr + extension

    def next_deadline(self) -> "int | None":
        """When `handle_deadline` will act, or None: it has ended, or is at its destination with TTBR unset (C-24)."""
        return self._next()[0]

    def conclusion(self) -> Conclusion:
        """What the application may be told."""
        state = self.state
        message_class = self.record[CLASS]
        if state in (Q, S):
            return Conclusion(WAITING, 0)
        if message_class == 0:
            return Conclusion(STORED, 0)
        if message_class == _ACK_RECEIVE:
            return Conclusion(RECEIVED, message_class)
        marks = self.record[MARKS]
        # C-82 calls classes 0x8001 and 0x800C definite as well. Where the source wrote them on a message that it had
        # transmitted, the destination has not spoken: it may be received, as in C-84 (B-315).
        in_doubt = bool(marks & _TRANSMITTED) and not (marks & _CONFIRMED and _is_definite(message_class))
        return Conclusion(DEAD_LETTERED if state == X else DISCARDED, message_class, in_doubt)

    def _time_to_reach_queue(self) -> int:
        ttrq = self.record[TTRQ]
        return self._settings.long_live_time if ttrq == UNSET else ttrq

    def _next(self) -> "tuple[int | None, str]":
        record = self.record
        state = self.state
        if state not in (Q, S, O):
            return None, ""
        marks = record[MARKS]
        time: "int | None" = None
        if state != Q and marks & _JOURNAL and not marks & _LOCAL:
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

    def _apply(self, event: "str | int", message_class: int) -> int:
        row = TABLE.get((self.state, event))
        if row is None:
            return 0
        record = self.record
        journal = record[MARKS] & _JOURNAL
        state = row[0][journal]
        if state == self.state:
            return LOG
        action = _ACTIONS[state]
        if row[1][journal] == "N" and record[MARKS] & _NACK_REQUESTED:
            action |= NACK
        record[STATE] = ord(state)
        record[MARKS] |= _MARKS_OF.get(event, 0)
        record[CLASS] = message_class
        return action


def _is_definite(message_class: int) -> bool:
    """Does a FinalAck of this class say that nobody received it (C-82, C-85)? 0x8002 and unknown ones do not (C-84)."""
    if 0x8000 <= message_class <= 0x800C:
        return message_class != _NACK_REACH_QUEUE_TIMEOUT
    return message_class in (0xC000, 0xC001, _NACK_RECEIVE_TIMEOUT, 0xC004)


if TYPE_CHECKING:
    from mqqb.classes import *  # noqa: F403 - they are reached as names of this module
else:

    def __getattr__(name: str) -> int:
        """A message class; few boards ask for one."""
        from mqqb import classes

        return getattr(classes, name)
