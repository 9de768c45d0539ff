"""What outlives a connection: transactional streams and the outgoing message table.

An OutgoingStream belongs to one outgoing queue (a destination format name), an IncomingStream to one pair of source
queue manager and destination queue (B-099, A-21). Neither knows of connections: a Session carries their messages and
tells what the peer acknowledged. The persistent elements are one `array('I')` of four words, the record
(mqqb_outgoing, mqqb_incoming in mqqb.h): the owner makes it durable in the same step as the message that changed it
(B-098).

Times: `now` is monotonic milliseconds, intervals are milliseconds.
"""

from array import array

from mqqb import core, packets

RESEND_INTERVALS = (30000, 30000, 30000, 300000, 300000, 300000, 1800000, 1800000, 1800000, 21600000)  # B-014 to B-018
ORDER_ACK_TIMEOUT = 500  # B-045
MAXIMUM_ORDER_ACK_DELAY = 10000  # B-047


class Entry:
    """One message in an outgoing message table (OutgoingMessagePosition, B-069 to B-076).

    `key` is the owner's handle of the stored packet; the engine holds no bodies. `tx_sequence_id` is the 64-bit
    identifier, `tx_sequence_number` is 0 for a message that is not transactional. `journal`: JN or JP is set, so that
    an OrderAck does not settle it (B-237).
    """

    __slots__ = (
        "awaiting_ack",
        "journal",
        "key",
        "message_id",
        "received_session_ack",
        "recoverable",
        "recoverable_sequence_number",
        "sequence_number",
        "stream",
        "tx_sequence_id",
        "tx_sequence_number",
    )

    def __init__(
        self,
        key: object,
        message_id: int,
        recoverable: bool = True,
        journal: bool = False,
        tx_sequence_id: int = 0,
        tx_sequence_number: int = 0,
    ) -> None:
        self.stream: "OutgoingStream | None" = None
        self.key = key
        self.message_id = message_id
        self.recoverable = recoverable
        self.journal = journal
        self.tx_sequence_id = tx_sequence_id
        self.tx_sequence_number = tx_sequence_number
        self.sequence_number = 0
        self.recoverable_sequence_number = 0
        self.awaiting_ack = False
        self.received_session_ack = False


class OutgoingStream:
    """The outgoing message table of one queue, its numbering, its resends (B-054 to B-057, B-062 to B-068).

    record: the mqqb_outgoing words, persistent. A fresh one comes from `new`, whose time stamp is greater than any
    that this queue manager used before (B-056, B-079, A-22).
    rolls: whether the stream begins a new sequence by itself once nothing of it is left in the table (B-096). An
    owner whose numbers are given by other processes too says False and calls core.roll in the transaction that finds
    the stream empty.
    """

    def __init__(
        self, record: "array[int]", intervals: "tuple[int, ...]" = RESEND_INTERVALS, rolls: bool = True
    ) -> None:
        self.record = record
        self.table: "list[Entry]" = []
        self.awaiting_final_ack: "list[Entry]" = []
        self.time_of_last_ack = 0
        self.last_ack_count = 0
        self.resend_interval_index = 0
        self._intervals = intervals
        self._rolls = rolls
        self._resend_time: "int | None" = None
        self._cursor = 0  # every entry before it is in flight or session-acknowledged on this connection
        self._header = array("I", bytes(4 * core.part_words(core.TRANSACTION_HEADER)))

    @staticmethod
    def new(time_stamp: int, ordinal: int = 1) -> "array[int]":
        """The record of a stream that has sent nothing (B-056): number 1 comes next."""
        return array("I", (ordinal, time_stamp, 1, 0))

    @property
    def tx_sequence_id(self) -> int:
        """The current OutgoingTxSequenceID as one 64-bit number (B-078)."""
        return self.record[core.OUTGOING_TIME_STAMP] << 32 | self.record[core.OUTGOING_ORDINAL]

    def number(
        self, packet: bytearray, offset: int, key: object, message_id: int, journal: bool = False
    ) -> "Entry | None":
        """Number a transactional message, for the first and only time, and append it (B-317, A-08).

        packet: the serialised message, its TransactionHeader at offset; patched in place. The caller makes packet and
        record durable in one step before anything is sent (B-098). None: the sequence is used up, wait until the
        table is empty (A-24).
        """
        self._read(packet, offset)
        previous = self._previous(len(self.table), self.tx_sequence_id)
        if core.stamp(self.record, previous, self._header) != core.OK:
            return None
        core.pack(core.TRANSACTION_HEADER, self._header, packet, offset)
        number = self._header[core.TX_NUMBER]
        entry = Entry(key, message_id, True, journal, self.tx_sequence_id, number)
        self.append(entry)
        return entry

    def withdraw(self, entry: Entry) -> None:
        """Undo `number` for the newest entry: its message could not be made durable, and nobody has seen the number.

        Takes no memory, for lack of it may be the reason.
        """
        assert self.table[-1] is entry, "only the newest number can be taken back"
        self.table.pop()
        self.record[core.OUTGOING_NUMBER] = entry.tx_sequence_number

    def append(self, entry: Entry) -> None:
        """Add an entry at the end: one that has no number, or at start-up each stored one, in table order."""
        entry.stream = self
        self.table.append(entry)

    def restart(self) -> None:
        """A new connection: everything in the table is to be sent on it, under the numbers it has (B-157 to B-160,
        A-09).
        """
        for entry in self.table:
            entry.awaiting_ack = False
            entry.received_session_ack = False
            entry.sequence_number = 0
            entry.recoverable_sequence_number = 0
        self._cursor = 0
        self._resend_time = None
        self.resend_interval_index = 0

    def next_to_send(self) -> "Entry | None":
        """The first entry that is neither in flight nor acknowledged on this connection (B-220, B-310), or None."""
        table = self.table
        while self._cursor < len(table):
            entry = table[self._cursor]
            if not entry.awaiting_ack and not entry.received_session_ack:
                return entry
            self._cursor += 1
        return None

    def prepare(self, entry: Entry, packet: bytearray, offset: int) -> None:
        """Patch PreviousTxSequenceNumber of a transactional packet from the table, at every transmission (B-318,
        B-319).

        offset: of the TransactionHeader. Id and own number never change.
        """
        index = self._cursor
        if index >= len(self.table) or self.table[index] is not entry:
            index = self.table.index(entry)
        self._read(packet, offset)
        self._header[core.TX_PREVIOUS] = self._previous(index, entry.tx_sequence_id)
        core.pack(core.TRANSACTION_HEADER, self._header, packet, offset)

    def sent(self, entry: Entry, now: int) -> None:
        """A Session has put the entry on the wire: start the Transactional Ack Wait Timer (B-136)."""
        if entry.tx_sequence_number and self._resend_time is None:
            self._resend_time = now + self._intervals[self.resend_interval_index]

    def remove(self, entries: "list[Entry]") -> None:
        """Drop entries: acknowledged by the session for good (B-109, B-221 to B-223), or expired or deleted (B-316).

        A gap among transactional numbers is bridged by what is sent next (B-318). Also done here: the roll-over of a
        drained stream (B-096).
        """
        count = len(entries)
        if not count:
            return
        if self.table[:count] == entries:  # as a rule: the oldest, at once, however long the table is
            del self.table[:count]
            self._cursor = max(self._cursor - count, 0)
        else:
            gone = {id(entry) for entry in entries}
            self._cursor -= sum(1 for entry in self.table[: self._cursor] if id(entry) in gone)
            self.table = [entry for entry in self.table if id(entry) not in gone]
        if not any(entry.tx_sequence_number for entry in self.table):
            self._resend_time = None
            if self._rolls:
                core.roll(self.record)

    def order_ack(self, body: "packets.OrderAckBody", now: int) -> "list[Entry]":
        """An OrderAck for this stream has come: what it newly covers, in order (B-230 to B-237).

        Covered entries are stored at the destination. They leave the table; those with `journal` wait in
        `awaiting_final_ack`, the others are settled: the owner deletes them durably. An empty list: stale, or not ours.
        """
        self.time_of_last_ack = now
        self.last_ack_count += 1
        if core.order_ack_received(self.record, body.fields) != core.OK:
            return []
        tx_sequence_id = body.tx_sequence_id
        tx_sequence_number = body.tx_sequence_number
        covered = []
        for entry in self.table:
            if entry.tx_sequence_number and entry.tx_sequence_id == tx_sequence_id:
                if entry.tx_sequence_number > tx_sequence_number:
                    break  # numbers rise along the table
                covered.append(entry)
        self._progress(now)
        for entry in covered:
            if entry.journal:
                self.awaiting_final_ack.append(entry)
        self.remove(covered)
        return covered

    def final_ack(self, message_id: int, now: int) -> "Entry | None":
        """A FinalAck names this message: it is settled, whatever else is outstanding (B-241, B-244, B-245). None: not
        here.
        """
        for entry in self.awaiting_final_ack:
            if entry.message_id == message_id:
                self.awaiting_final_ack.remove(entry)
                return entry
        for entry in self.table:
            if entry.message_id == message_id:
                self._progress(now)
                self.remove([entry])
                return entry
        return None

    def next_timeout(self) -> "int | None":
        """When `handle_timeout` is due, or None."""
        return self._resend_time

    def handle_timeout(self, now: int) -> None:
        """The Transactional Ack Wait Timer: offer every transactional entry again, with a longer interval next time
        (B-151, B-152).
        """
        if self._resend_time is None or now < self._resend_time:
            return
        for entry in self.table:
            if entry.tx_sequence_number:
                entry.awaiting_ack = False
                entry.received_session_ack = False
        self._cursor = 0
        self.resend_interval_index = min(self.resend_interval_index + 1, len(self._intervals) - 1)
        self._resend_time = now + self._intervals[self.resend_interval_index]

    def _read(self, packet: bytearray, offset: int) -> None:
        status = core.unpack(core.TRANSACTION_HEADER, self._header, packet, offset, len(packet))
        assert status == core.OK, "there is no TransactionHeader at this offset"

    def _previous(self, index: int, tx_sequence_id: int) -> int:
        while index > 0:
            index -= 1
            entry = self.table[index]
            if entry.tx_sequence_number:
                return entry.tx_sequence_number if entry.tx_sequence_id == tx_sequence_id else 0
        return 0

    def _progress(self, now: int) -> None:
        self.resend_interval_index = 0
        if self._resend_time is not None:
            self._resend_time = now + self._intervals[0]


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

    @property
    def tx_sequence_number(self) -> int:
        """IncomingTxSequenceNumber: the last accepted number, the one that an OrderAck names (B-358)."""
        return self.record[core.INCOMING_NUMBER]

    def accept(self, header: "packets.TransactionHeader") -> bool:
        """Is this message the next one (B-270)? True: the record has advanced (B-271); else only its reject count has
        (B-272, A-01).
        """
        return core.accept(self.record, header.fields)

    def schedule_order_ack(self, now: int) -> None:
        """A transactional message has come, accepted or not: start or push back the Order Ack Send Timer (B-113,
        B-269).
        """
        if self._due is None or now - self.last_order_ack_send_time < self._maximum_order_ack_delay:
            self._due = now + self._order_ack_timeout

    def next_timeout(self) -> "int | None":
        """When the OrderAck is due, or None. It stays owed when a session closes: the next one sends it
        at once (A-30).
        """
        return self._due

    def order_ack_sent(self, now: int) -> None:
        """The OrderAck has been handed to a session, or none can be made yet (B-153, B-359)."""
        self._due = None
        self.last_order_ack_send_time = now
