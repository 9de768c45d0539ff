"""State that outlives a connection: transactional streams and the outgoing message table.

An OutgoingStream belongs to one outgoing queue (a destination format name), an IncomingStream to one pair of source
queue manager and destination queue (B-099, A-21). Neither knows connections: a Session carries their messages and
reports acknowledgements. The record, one `array('I')` of four words, is persistent (mqqb_outgoing, mqqb_incoming in
mqqb.h). The owner commits it with the message that changed it (B-098).

Times: `now` is monotonic milliseconds, intervals are milliseconds.
"""

from array import array

from mqqb import const, core
from mqqb.compose import word

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from typing import Any

    from mqqb.headers import FinalAckBody

# ResendTimerTable, in milliseconds: three short, three medium, three long intervals, then the final one for ever
# (B-014 to B-018). Made from a list, because on a board a sum with a number of a constant tuple takes memory.
RESEND_INTERVALS = tuple([30000] * 3 + [300000] * 3 + [1800000] * 3 + [21600000])


class OrderAckBody:
    """wire.md section 6. The 20 reserved bytes are written as 0."""

    __slots__ = ("fields",)
    part = core.ORDER_ACK
    tx_sequence_ordinal = word(core.ACK_ORDINAL)
    tx_sequence_time_stamp = word(core.ACK_TIME_STAMP)
    tx_sequence_number = word(core.ACK_NUMBER)
    tx_previous_sequence_number = word(core.ACK_PREVIOUS)

    def __init__(self, fields: "array[int] | None" = None) -> None:
        self.fields = core.words(core.ORDER_ACK) if fields is None else fields

    @property
    def tx_sequence_id(self) -> int:
        """TxSequenceID as a comparable 64-bit number: TimeStamp high, Ordinal low (wire.md 1.2)."""
        return self.fields[core.ACK_TIME_STAMP] << 32 | self.fields[core.ACK_ORDINAL]


class Entry:
    """One message in an outgoing message table (OutgoingMessagePosition, B-069 to B-076).

    `key` is the owner's handle of the stored packet; the engine holds no bodies. `tx_sequence_id` is the 64-bit
    identifier. `tx_sequence_number` is 0 for a non-transactional or forwarded message (B-012, B-077). `journal`: JN or
    JP is set, so that an OrderAck does not settle the message (B-237). `priority`: of queue and message together
    (B-305); 0 for a transactional message.
    """

    __slots__ = (
        "awaiting_ack", "journal", "key", "message_id", "priority", "received_order_ack", "received_session_ack",
        "recoverable", "recoverable_sequence_number", "sequence_number", "stream", "tx_sequence_id",
        "tx_sequence_number",
    )  # fmt: skip

    def __init__(
        self,
        key: object,
        message_id: int,
        recoverable: bool = True,
        journal: bool = False,
        tx_sequence_id: int = 0,
        tx_sequence_number: int = 0,
        priority: int = 0,
    ) -> None:
        self.stream: "OutgoingStream | None" = None
        self.key = key
        self.message_id = message_id
        self.recoverable = recoverable
        self.journal = journal
        self.tx_sequence_id = tx_sequence_id
        self.tx_sequence_number = tx_sequence_number
        self.priority = priority
        self.sequence_number = 0
        self.recoverable_sequence_number = 0
        self.awaiting_ack = False
        self.received_session_ack = False
        self.received_order_ack = False  # stored at its destination (B-075)


def position(entry: "Any") -> "tuple[int, int]":
    """The sending order of numbered objects."""
    return entry.tx_sequence_id, entry.tx_sequence_number


def _without(entries: "list[Entry]", others: "list[Entry]") -> "list[Entry]":
    gone = {id(entry) for entry in others}
    return [entry for entry in entries if id(entry) not in gone]


def previous_number(table: "list[Entry]", index: int, tx_sequence_id: int) -> int:
    """The number before index `index` of the table, in this sequence; 0: there is none (B-318, B-319)."""
    while index > 0:
        index -= 1
        entry = table[index]
        if entry.tx_sequence_number:
            return entry.tx_sequence_number if entry.tx_sequence_id == tx_sequence_id else 0
    return 0


def _cover(covered: "list[Entry]", entries: "list[Entry]", tx_sequence_id: int, tx_sequence_number: int) -> None:
    """Collect the entries of this sequence up to this number."""
    for entry in entries:
        number = entry.tx_sequence_number
        if number and entry.tx_sequence_id >= tx_sequence_id:
            if entry.tx_sequence_id > tx_sequence_id or number > tx_sequence_number:
                break  # ids and numbers rise along the table
            covered.append(entry)


def _read(header: "array[int]", packet: "bytearray | memoryview", offset: int) -> None:
    status = core.unpack(core.TRANSACTION_HEADER, header, packet, offset, len(packet))
    assert status == core.OK, "there is no TransactionHeader at this offset"


class OutgoingStream:
    """The outgoing message table of one queue, its numbering, its resends (B-054 to B-057, B-062 to B-068).

    record: the mqqb_outgoing words, persistent, initially from `new`. After changes other than core.roll, call
    `adopt`. rolls: the stream begins a new sequence when its table has drained (B-096). An owner that shares numbers
    with other processes sets False and calls core.roll in the transaction that finds the stream empty. An owner with
    messages outside the table sets False meanwhile. awaiting_final_ack: entries outside the table that a FinalAck may
    still settle (B-055): those with an OrderAck, and those of `hold`. At start-up the owner appends the stored ones.
    """

    _ordinal: int  # of _tx_sequence_id

    def __init__(
        self, record: "array[int]", intervals: "tuple[int, ...]" = (), rolls: bool = True, now: int = 0
    ) -> None:
        self.record = record
        self.table: "list[Entry]" = []
        self.awaiting_final_ack: "list[Entry]" = []
        self.time_of_last_ack = now  # B-062
        self.last_ack_count = 0
        self.resend_interval_index = 0
        self.rolls = rolls
        self._intervals = intervals or RESEND_INTERVALS
        self._resend_time: "int | None" = None
        # For each priority, highest first: [priority, index before which no entry of it is to be sent].
        self._cursors: "list[list[int]]" = []
        self._tx_sequence_id: "int | None" = None  # one object for all entries of a sequence saves memory on boards
        self._covered_now: "list[Entry]" = []  # by the last OrderAck
        self._held: "list[Entry]" = []  # part of awaiting_final_ack, by number: an OrderAck can still prove them stored
        self._header = core.words(core.TRANSACTION_HEADER)

    @staticmethod
    def new(time_stamp: int, ordinal: int = 1) -> "array[int]":
        """The record of a stream that has sent nothing (B-056): number 1 comes next.

        time_stamp: 32 bits, greater than any that this queue manager has used (B-079, A-22): seconds since 1970, or,
        without a clock, a count of starts in the high part.
        """
        return array("I", (ordinal, time_stamp, 1, 0))

    def renew(self, time_stamp: int, ordinal: int = 1) -> None:
        """Begin a new sequence at once: after a restore (B-426, A-22), or because the numbers are used up (A-24).

        Numbered messages keep their ids and are sent first (B-093); an OrderAck for their id still covers them. Raises
        ValueError if the new id is not greater than the current one (B-079).
        """
        record = self.record
        if core.tx_compare(ordinal, time_stamp, record[core.OUTGOING_ORDINAL], record[core.OUTGOING_TIME_STAMP]) <= 0:
            raise ValueError("a new TxSequenceID must exceed the one before")
        self.adopt(self.new(time_stamp, ordinal))

    def adopt(self, record: "array[int]") -> None:
        """Continue from another record, copied into `record`."""
        self.record[:] = record
        self._tx_sequence_id = None

    @property
    def tx_sequence_id(self) -> int:
        """The current OutgoingTxSequenceID as one 64-bit number (B-078)."""
        ordinal = self.record[core.OUTGOING_ORDINAL]
        if self._tx_sequence_id is None:
            self._tx_sequence_id = self.record[core.OUTGOING_TIME_STAMP] << 32 | ordinal
        elif ordinal != self._ordinal:
            self._tx_sequence_id += 1  # core.roll; an increment takes less memory
        self._ordinal = ordinal
        return self._tx_sequence_id

    @property
    def resend_interval(self) -> int:
        """ResendInterval, in milliseconds (B-065)."""
        return self._intervals[self.resend_interval_index]

    def number(
        self,
        packet: "bytearray | memoryview",
        offset: int,
        key: object,
        message_id: int,
        journal: bool = False,
        entry: "Entry | None" = None,
    ) -> "Entry | None":
        """Number a transactional message, for the first and only time, and append it (B-317, A-08).

        packet: the serialised message, its TransactionHeader at offset; patched in place. The caller commits packet
        and record in one step before the message is sent (B-098). entry: an unused entry to reuse. None: the sequence
        is used up, wait until the table is empty, or `renew` (A-24).
        """
        _read(self._header, packet, offset)
        previous = previous_number(self.table, len(self.table), self.tx_sequence_id)
        if core.stamp(self.record, previous, self._header) != core.OK:
            return None
        core.pack(core.TRANSACTION_HEADER, self._header, packet, offset)
        number = self._header[core.TX_NUMBER]
        if entry is None:
            entry = Entry(key, message_id, True, journal, self.tx_sequence_id, number)
        else:
            Entry.__init__(entry, key, message_id, True, journal, self.tx_sequence_id, number)
        self.append(entry)
        return entry

    def withdraw(self, entry: Entry) -> None:
        """Undo `number` for the newest entry: its message was not made durable, and the number was not used.

        Takes no memory, because lack of memory may be the reason.
        """
        assert entry.stream is None or self.table[-1] is entry, "only the newest number can be taken back"
        self.leave_out(entry)
        self.record[core.OUTGOING_NUMBER] = entry.tx_sequence_number

    def leave_out(self, entry: Entry) -> None:
        """Remove the newest entry, whose message waits outside the table; its owner appends it later. `rolls` has to be
        off."""
        if entry.stream is not None:
            entry.stream = None
            self.table.pop()

    def append(self, entry: Entry) -> None:
        """Append an entry: an unnumbered one, or at start-up each stored one, in table order."""
        record = self.record
        number = entry.tx_sequence_number
        if number <= record[core.OUTGOING_LAST_ACK] and entry.tx_sequence_id == self.tx_sequence_id:
            record[core.OUTGOING_LAST_ACK] = number - 1  # the OrderAck came before the owner appended its entry
        entry.stream = self
        place = 0
        for cursor in self._cursors:
            cursor[1] = min(cursor[1], len(self.table))  # an entry may have been withdrawn
            if cursor[0] >= entry.priority:
                place += 1
        if not place or self._cursors[place - 1][0] != entry.priority:
            self._cursors.insert(place, [entry.priority, len(self.table)])
        self.table.append(entry)

    def restart(self, now: int = 0) -> None:
        """Prepare for a new connection: resend everything in the table, under the same numbers (B-157 to B-160,
        A-09).
        """
        for entry in self.table:
            entry.awaiting_ack = False
            entry.received_session_ack = False
            entry.sequence_number = 0
            entry.recoverable_sequence_number = 0
        for cursor in self._cursors:
            cursor[1] = 0
        self._resend_time = None
        self.resend_interval_index = 0
        self.time_of_last_ack = now  # a new TxOutgoingSequence (B-061 to B-066)
        self.last_ack_count = 0

    def next_to_send(self) -> "Entry | None":
        """The next entry to send, or None. Candidates are neither in flight nor acknowledged on this connection (B-220,
        B-310). The highest priority is first, equal ones in table order (B-305).

        A transactional entry, and its priority with it, waits while an older sequence is in the table (B-093).
        """
        table = self.table
        for cursor in self._cursors:
            priority, place = cursor
            while place < len(table):
                entry = table[place]
                if entry.priority == priority and not entry.awaiting_ack and not entry.received_session_ack:
                    break
                place += 1
            cursor[1] = place
            if place < len(table):
                if not entry.tx_sequence_number:
                    return entry
                oldest = 0
                while not table[oldest].tx_sequence_number:
                    oldest += 1
                if table[oldest].tx_sequence_id == entry.tx_sequence_id:
                    return entry
        return None

    def prepare(self, entry: Entry, packet: bytearray, offset: int) -> None:
        """Patch PreviousTxSequenceNumber of a transactional packet from the table, at every transmission (B-318,
        B-319).

        offset: of the TransactionHeader. Id and own number never change.
        """
        table = self.table
        for cursor in self._cursors:
            index = cursor[1]
            if index < len(table) and table[index] is entry:
                break
        else:
            index = table.index(entry)
        _read(self._header, packet, offset)
        previous = previous_number(table, index, entry.tx_sequence_id)
        if self._held:
            self._bridge(entry, previous)
        self._header[core.TX_PREVIOUS] = previous
        core.pack(core.TRANSACTION_HEADER, self._header, packet, offset)

    def _bridge(self, entry: Entry, previous: int) -> None:
        """Forget held entries in the bridged gap: a receiver that acknowledges this number may lack them."""
        self._held = [
            held
            for held in self._held
            if held.tx_sequence_id != entry.tx_sequence_id
            or not previous < held.tx_sequence_number < entry.tx_sequence_number
        ]

    def sent(self, entry: Entry, now: int) -> None:
        """A Session has sent the entry: start the Transactional Ack Wait Timer (B-136)."""
        if entry.tx_sequence_number and self._resend_time is None:
            self._resend_time = now + self.resend_interval

    def remove(self, entries: "list[Entry]") -> None:
        """Drop entries from all lists: settled by the session (B-109, B-221 to B-223), expired or deleted (B-316).

        The next transmission bridges a gap among transactional numbers (B-318). A drained stream begins a new sequence
        (B-096).
        """
        left = len(entries) - self._take(entries)
        if left:
            self.awaiting_final_ack = _without(self.awaiting_final_ack, entries)
            self._held = _without(self._held, entries)

    def hold(self, entries: "list[Entry]") -> None:
        """Move entries out of the table: they are not sent any more, but a FinalAck can settle them (C-22).

        An OrderAck covers them like entries of the table, until a later transmission bridges their gap.
        """
        self._take(entries)
        self.awaiting_final_ack += entries
        self._held = sorted(self._held + entries, key=position)

    def _take(self, entries: "list[Entry]") -> int:
        """Remove those entries that are in the table. Returns their number."""
        count = len(entries)
        table = self.table
        size = len(table)
        first = 0
        while first < count and first < size and table[first] is entries[first]:
            first += 1
        if not count:
            return 0
        if first == count:  # the usual case: the oldest, in time independent of the table's length
            core.drop(table, count)
            for cursor in self._cursors:
                cursor[1] = max(cursor[1] - count, 0)
        else:
            self._take_here_and_there(entries)
            table = self.table
        for entry in table:
            if entry.tx_sequence_number:
                break
        else:
            self._resend_time = None  # B-240
            if self.rolls:
                core.roll(self.record)  # B-238
        return size - len(table)

    def _take_here_and_there(self, entries: "list[Entry]") -> None:
        # A method of its own: in _take its closures would cost each call memory for shared variables.
        gone = {id(entry) for entry in entries}
        places = [place for place, entry in enumerate(self.table) if id(entry) in gone]
        for cursor in self._cursors:
            cursor[1] -= sum(1 for place in places if place < cursor[1])
        self.table = _without(self.table, entries)

    def is_progress(self, body: OrderAckBody) -> bool:
        """Does an OrderAck name an assigned number of the current sequence, later than any before, while no older
        sequence waits? An older one excludes it: the current sequence is sent only after the older has drained
        (B-093).
        """
        record = self.record
        last_ack = record[core.OUTGOING_LAST_ACK]
        if core.order_ack_received(record, body.fields) != core.OK:
            return False
        record[core.OUTGOING_LAST_ACK] = last_ack
        if not self.table:
            return True
        oldest = self.table[0]
        return not oldest.tx_sequence_number or oldest.tx_sequence_id == self.tx_sequence_id

    def order_ack(self, body: OrderAckBody, now: int) -> "list[Entry]":
        """Apply an OrderAck for this stream. Returns the newly covered entries, in order (B-230 to B-237).

        Covered entries are stored at the destination, `received_order_ack`. They leave the table. Those with `journal`
        wait in `awaiting_final_ack`; the others are settled, and the owner deletes them durably. Held entries may be
        among them. An empty list: stale, or of another stream. The stream reuses the list in the next call.
        """
        self.time_of_last_ack = now
        self.last_ack_count += 1
        covered = self._covered_now
        covered.clear()
        last_ack = self.record[core.OUTGOING_LAST_ACK]
        try:
            is_current = core.order_ack_received(self.record, body.fields) == core.OK
            tx_sequence_id = self.tx_sequence_id if is_current else body.tx_sequence_id
            number = body.fields[core.ACK_NUMBER]
            if is_current or tx_sequence_id < self.tx_sequence_id:  # else B-230, A-04
                _cover(covered, self.table, tx_sequence_id, number)
            if is_current or covered:
                self._progress(now)
                for entry in covered:
                    if entry.journal and not entry.received_order_ack:
                        self.awaiting_final_ack.append(entry)
                    entry.received_order_ack = True  # B-235
                self._take(covered)
        except MemoryError:
            self.record[core.OUTGOING_LAST_ACK] = last_ack  # the same OrderAck then counts when it is repeated
            raise
        return self._with_held(covered, tx_sequence_id, number) if self._held else covered

    def _with_held(self, covered: "list[Entry]", tx_sequence_id: int, number: int) -> "list[Entry]":
        """Add the held entries that the OrderAck also covers."""
        held: "list[Entry]" = []
        _cover(held, self._held, tx_sequence_id, number)
        for entry in held:
            entry.received_order_ack = True
            self._held.remove(entry)
            if not entry.journal:
                self.awaiting_final_ack.remove(entry)
            covered.append(entry)
        return sorted(covered, key=position)

    def final_ack(self, body: "FinalAckBody", now: int) -> "Entry | None":
        """Settle the message of a FinalAck, regardless of other pending messages (B-241, B-244, B-245). The number must
        match too, because MessageIDs may repeat (B-020). None: not in this stream.
        """
        fields = body.fields  # number 0, of other messages (A-18, B-012), cannot occur
        for entries in (self.awaiting_final_ack, self.table):
            for entry in entries:
                if (
                    entry.message_id == fields[core.ACK_MESSAGE_ID]
                    and entry.tx_sequence_number == fields[core.ACK_NUMBER]
                    and entry.tx_sequence_id == body.tx_sequence_id
                ):
                    if entries is self.table:
                        self._progress(now)
                    self.remove([entry])
                    return entry
        return None

    def next_timeout(self) -> "int | None":
        """When `handle_timeout` is due, or None."""
        return self._resend_time

    def handle_timeout(self, now: int) -> None:
        """The Transactional Ack Wait Timer: resend every transactional entry, with a longer interval next time (B-151,
        B-152).
        """
        if self._resend_time is not None and now >= self._resend_time:
            self.resend_interval_index = min(self.resend_interval_index + 1, len(self._intervals) - 1)
            self.resend(now)

    def postpone(self, now: int) -> None:
        """Sent packets are still queued for the wire: restart the Transactional Ack Wait Timer."""
        if self._resend_time is not None:
            self._resend_time = now + self.resend_interval

    def resend(self, now: int) -> None:
        """Resend every transactional entry, like the timer, on request of an operator (B-425)."""
        for entry in self.table:
            if entry.tx_sequence_number:
                entry.awaiting_ack = False
                entry.received_session_ack = False
                self._resend_time = now + self.resend_interval
        for cursor in self._cursors:
            cursor[1] = 0

    def _progress(self, now: int) -> None:
        self.resend_interval_index = 0
        self.postpone(now)
