"""The outgoing stream against a plain model: what goes next, what an acknowledgement covers, how gaps are bridged."""

from __future__ import annotations

from array import array

import engine_ends as ends
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from mqqb import build, core, parse, streams
from mqqb.destination import IncomingStream
from mqqb.hosts import TransferInfo
from ordack.broker.streams import LongStream, key_of

PACKET = bytes(build.user_message(ends.SENDER, 1, ends.DESTINATION, b"", delivery="transactional"))
OFFSET = parse.transaction_offset(PACKET)


def _number(stream: streams.OutgoingStream, message_id: int, journal: bool = False) -> streams.Entry:
    entry = stream.number(bytearray(PACKET), OFFSET, message_id, message_id, journal)
    assert entry is not None
    return entry


def _previous(stream: streams.OutgoingStream, entry: streams.Entry) -> int:
    packet = bytearray(PACKET)
    stream.prepare(entry, packet, OFFSET)
    return int(parse.parse(packet).transaction.previous_tx_sequence_number)


def _ids(entries: list[streams.Entry]) -> list[int]:
    return [entry.message_id for entry in entries]


class Model(RuleBasedStateMachine):
    """The stream, and beside it plain lists in which everything is looked for anew each time.

    receiver: the number that a receiver has got to, by sequence, which takes what it is sent by B-270, so that an
    OrderAck claims what is true. stored: MessageIDs that it has taken.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stream = streams.OutgoingStream(streams.OutgoingStream.new(5))
        self.table: list[streams.Entry] = []
        self.awaiting: list[streams.Entry] = []
        self.numbers: dict[int, list[int]] = {}
        self.incoming = IncomingStream()
        self.stored: set[int] = set()
        self.highest = self.stream.tx_sequence_id
        self.last_id = 0

    def _key(self) -> int:
        self.last_id += 1
        return self.last_id

    def _pick(self, picks: list[int], entries: list[streams.Entry]) -> list[streams.Entry]:
        return [entry for place, entry in enumerate(entries) if place in picks]

    def _drop(self, entries: list[streams.Entry]) -> None:
        self.table = [entry for entry in self.table if entry not in entries]

    @rule(priority=st.integers(0, 7), count=st.integers(1, 3))
    def append(self, priority: int, count: int) -> None:
        for _ in range(count):
            key = self._key()
            entry = streams.Entry(key, key, False, priority=priority)
            self.stream.append(entry)
            self.table.append(entry)

    @rule(journal=st.booleans(), count=st.integers(1, 5))
    def number(self, journal: bool, count: int) -> None:
        for _ in range(count):
            entry = _number(self.stream, self._key(), journal)
            given = self.numbers.setdefault(entry.tx_sequence_id, [])
            assert entry.tx_sequence_number == len(given) + 1
            given.append(entry.message_id)
            self.table.append(entry)

    @rule(count=st.integers(1, 3))
    def withdraw(self, count: int) -> None:
        entries = [_number(self.stream, 0) for _ in range(count)]
        self.stream.next_to_send()
        for entry in reversed(entries):
            self.stream.withdraw(entry)

    @rule(count=st.integers(1, 12), arrives=st.booleans())
    def send(self, count: int, arrives: bool) -> None:
        for _ in range(count):
            unsent = [entry for entry in self.table if not entry.awaiting_ack and not entry.received_session_ack]
            oldest = next((entry.tx_sequence_id for entry in self.table if entry.tx_sequence_number), 0)
            expected = None
            for entry in sorted(unsent, key=lambda entry: -entry.priority):
                if not entry.tx_sequence_number or entry.tx_sequence_id == oldest:
                    expected = entry
                    break
                unsent = [other for other in unsent if other.priority != entry.priority]
                expected = max(unsent, key=lambda entry: entry.priority, default=None)
                break
            entry_or_none = self.stream.next_to_send()
            assert entry_or_none is expected
            if expected is None:
                return
            expected.awaiting_ack = True
            if expected.tx_sequence_number:
                previous = _previous(self.stream, expected)
                before = [
                    other.tx_sequence_number
                    for other in self.table[: self.table.index(expected)]
                    if other.tx_sequence_number and other.tx_sequence_id == expected.tx_sequence_id
                ]
                assert previous == (before[-1] if before else 0)
                self.stream.sent(expected, 0)
                header = ends.transaction(expected.tx_sequence_id, expected.tx_sequence_number, previous)
                if arrives and self.incoming.accept(header):
                    self.stored.add(expected.message_id)

    @rule(picks=st.lists(st.integers(0, 12)))
    def session_acknowledges(self, picks: list[int]) -> None:
        for entry in self._pick(picks, self.table):
            if entry.awaiting_ack:
                entry.awaiting_ack = False
                entry.received_session_ack = True

    @rule(picks=st.lists(st.integers(0, 12)), size=st.integers(0, 3))
    def remove(self, picks: list[int], size: int) -> None:
        entries = self.table[:size] or self._pick(picks, self.table)
        self._drop(entries)
        waiting = [] if entries else self._pick(picks, self.awaiting)
        self.awaiting = [entry for entry in self.awaiting if entry not in waiting]
        self.stream.remove(entries + waiting)

    @rule(picks=st.lists(st.integers(0, 12)))
    def hold(self, picks: list[int]) -> None:
        entries = [entry for entry in self._pick(picks, self.table) if entry.tx_sequence_number and entry.journal]
        self._drop(entries)
        self.awaiting += entries
        self.stream.hold(entries)

    @precondition(lambda self: self.incoming.tx_sequence_number)
    @rule(behind=st.integers(0, 2))
    def order_ack(self, behind: int) -> None:
        record = self.incoming.record
        identifier = record[core.INCOMING_TIME_STAMP] << 32 | record[core.INCOMING_ORDINAL]
        number = max(record[core.INCOMING_NUMBER] - behind, 1)
        in_table = [entry for entry in self.table if entry.tx_sequence_number and entry.tx_sequence_id == identifier]
        known = identifier == self.stream.tx_sequence_id or in_table
        fresh = identifier != self.stream.tx_sequence_id or number > self.stream.record[core.OUTGOING_LAST_ACK]
        expected = [entry for entry in in_table if entry.tx_sequence_number <= number] if known and fresh else []
        covered = self.stream.order_ack(ends.order_ack_body(identifier, number), 0)
        assert [entry for entry in covered if entry not in self.awaiting] == expected
        assert [entry.tx_sequence_number for entry in covered] == sorted(entry.tx_sequence_number for entry in covered)
        for entry in covered:
            assert entry.received_order_ack
            assert entry.tx_sequence_id == identifier
            assert entry.tx_sequence_number <= number
            assert entry.message_id in self.stored or entry in expected, "a held one that was bridged"
        self._drop(covered)
        self.awaiting += [entry for entry in covered if entry.journal and entry not in self.awaiting]

    @rule(pick=st.integers(0, 12))
    def final_ack(self, pick: int) -> None:
        for entries in (self.table, self.awaiting):
            if pick < len(entries):
                entry = entries[pick]
                if entry.tx_sequence_number:
                    entries.remove(entry)
                    for wrong in (0, 1, 2):  # of another sequence, number, or message
                        body = ends.final_ack_body(entry)
                        body.fields[(core.ACK_ORDINAL, core.ACK_TIME_STAMP, core.ACK_NUMBER)[wrong]] += 1000
                        assert self.stream.final_ack(body, 0) is None
                    assert self.stream.final_ack(ends.final_ack_body(entry), 0) is entry
                    assert self.stream.final_ack(ends.final_ack_body(entry), 0) is None

    @rule()
    def reconnect(self) -> None:
        self.stream.restart()
        assert not any(entry.awaiting_ack or entry.received_session_ack for entry in self.table)

    @rule()
    def resend(self) -> None:
        expected = [entry for entry in self.table if entry.awaiting_ack and not entry.tx_sequence_number]
        self.stream.resend(0)
        assert [entry for entry in self.table if entry.awaiting_ack] == expected

    @rule(step=st.integers(1, 3))
    def renew(self, step: int) -> None:
        self.stream.renew((self.highest >> 32) + step)

    @invariant()
    def both_agree(self) -> None:
        assert self.stream.table == self.table
        assert sorted(_ids(self.stream.awaiting_final_ack)) == sorted(_ids(self.awaiting))
        assert self.stream.tx_sequence_id >= self.highest, "ids never fall"
        self.highest = self.stream.tx_sequence_id
        numbered = [entry for entry in self.table if entry.tx_sequence_number]
        if not numbered:
            assert self.stream.record[core.OUTGOING_NUMBER] == 1, "a drained stream begins anew"
            assert self.stream.next_timeout() is None
        stream = self.stream
        info = stream.transfer_info() if isinstance(stream, LongStream) else TransferInfo(stream)
        assert (info.no_ack_count, info.no_read_count) == (len(numbered), len(self.awaiting))


Model.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@pytest.mark.untraced
@pytest.mark.rule(
    "B-092", "B-093", "B-096", "B-220", "B-235", "B-238", "B-240", "B-305", "B-310", "B-316", "B-318", "B-319"
)
class TestModel(Model.TestCase):  # type: ignore[misc,name-defined]
    pass


class TailModel(Model):
    """The stream of a queue manager, whose owner rolls it, and numbers elsewhere: with almost nothing of what waits in
    memory, the rest is in `rows`; or with all of it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stream = LongStream(streams.OutgoingStream.new(5), streams.RESEND_INTERVALS, self)
        self.rows: list[streams.Entry] = []  # in the store

    @initialize(is_long=st.sampled_from((True, True, False)))
    def begin(self, is_long: bool) -> None:
        if is_long:
            self.stream.ahead, self.stream.low = 3, 2

    def after(self, key: int, limit: int) -> list[streams.Entry]:
        return [row for row in self.rows if key_of(row) > key][:limit]

    def last(self) -> list[streams.Entry]:
        return self.rows[-2:]

    @precondition(lambda self: False)
    @rule()
    def withdraw(self) -> None:  # type: ignore[override]
        pass

    def _append(self, entry: streams.Entry) -> None:
        count = self.stream.admit(1, entry.tx_sequence_number > 0, entry.priority)
        self.stream.extend([entry][:count])
        self.table.append(entry)
        self.rows.append(entry)

    @rule(priority=st.integers(0, 7), count=st.integers(1, 3))
    def append(self, priority: int, count: int) -> None:
        for _ in range(count):
            key = self._key()
            self._append(streams.Entry(key, key, False, priority=priority))

    @rule(journal=st.booleans(), count=st.integers(1, 9))
    def number(self, journal: bool, count: int) -> None:
        for _ in range(count):
            record = self.stream.record
            number = record[core.OUTGOING_NUMBER]
            record[core.OUTGOING_NUMBER] += 1
            key = self._key()
            self._append(streams.Entry(key, key, True, journal, self.stream.tx_sequence_id, number))

    @invariant()
    def both_agree(self) -> None:
        self.rows = list(self.table)
        stream = self.stream
        size = len(stream.table)
        in_memory, behind = self.table[:size], self.table[size:]
        assert stream.table == in_memory
        assert stream.behind == len(behind)
        assert all(entry.stream is None for entry in behind)
        assert len({(entry.tx_sequence_number > 0, entry.priority) for entry in behind}) <= 1
        assert not behind or stream.newest() == key_of(behind[-1])
        self.highest = stream.tx_sequence_id
        numbered = [entry for entry in self.table if entry.tx_sequence_number]
        assert stream.numbered == len(numbered)
        if not numbered:
            core.roll(stream.record)
            assert stream.next_timeout() is None
        assert sorted(_ids(stream.awaiting_final_ack)) == sorted(_ids(self.awaiting))
        entries = [*self.table, *self.awaiting]
        found = stream.entries({key_of(entry): entry for entry in entries}, lambda entry: entry)
        assert sorted(_ids(found)) == sorted(_ids(entries))
        info = stream.transfer_info()
        assert (info.no_ack_count, info.no_read_count) == (len(numbered), len(self.awaiting))
        last = numbered[-1] if numbered else None
        assert (info.last_non_ack or (0, 0))[:2] == ((last.tx_sequence_id, last.tx_sequence_number) if last else (0, 0))


TailModel.TestCase.settings = Model.TestCase.settings


@pytest.mark.untraced
@pytest.mark.rule("B-093", "B-096", "B-220", "B-235", "B-240", "B-305", "B-310", "B-316", "B-318")
class TestTailModel(TailModel.TestCase):  # type: ignore[misc,name-defined]
    pass


@pytest.mark.rule("B-096", "B-235")
def test_long_stream_holds_only_next_messages_in_memory() -> None:
    count = 20_000
    rows = [streams.Entry(key, key, True, False, 5 << 32 | 1, key) for key in range(1, count + 1)]

    class Store:
        def after(self, key: int, limit: int) -> list[streams.Entry]:
            return rows[key : key + limit]

        def last(self) -> list[streams.Entry]:
            return rows[-2:]

    stream = LongStream(array("I", (1, 5, count + 1, 0)), streams.RESEND_INTERVALS, Store())
    stream.extend(rows[: stream.admit(count, True, 0)])
    assert stream.transfer_info().no_ack_count == count
    unacknowledged = 200
    for key in range(1, count + 1):
        entry = stream.next_to_send()
        assert entry is rows[key - 1]
        entry.awaiting_ack = True
        if key % unacknowledged == 0:
            covered = stream.order_ack(ends.order_ack_body(5 << 32 | 1, key), 0)
            assert covered == rows[key - unacknowledged : key]
        assert len(stream.table) <= stream.ahead + stream.low + unacknowledged
    assert (stream.numbered, stream.behind, stream.next_to_send()) == (0, 0, None)


class _Counting(list[streams.Entry]):
    """A table that counts how often somebody looks at one of its places."""

    looks = 0

    def __getitem__(self, place: object) -> streams.Entry:  # type: ignore[override]
        self.looks += 1
        return super().__getitem__(place)  # type: ignore[call-overload,no-any-return]


@pytest.mark.rule("B-305")
def test_sending_by_priority_scans_table_once_per_priority() -> None:
    stream = streams.OutgoingStream(streams.OutgoingStream.new(1))
    table = stream.table = _Counting()
    count = 3000
    for key in range(count):
        stream.append(streams.Entry(key, key, False, priority=key * 7 % 8))
    sent = []
    while (entry := stream.next_to_send()) is not None:
        entry.awaiting_ack = True
        sent.append(entry.key)
    assert sent == sorted(range(count), key=lambda key: -(key * 7 % 8))
    assert table.looks <= 10 * count


@pytest.mark.rule("B-056", "B-079", "B-093", "B-230", "B-426", "A-04", "A-22")
def test_a_renewed_stream_drains_the_older_sequence_first() -> None:
    stream = streams.OutgoingStream(streams.OutgoingStream.new(5))
    old = [_number(stream, key) for key in (1, 2)]
    stream.renew(6)
    new = [_number(stream, key) for key in (3, 4)]
    assert [(entry.tx_sequence_id >> 32, entry.tx_sequence_number) for entry in old + new] == [
        (5, 1),
        (5, 2),
        (6, 1),
        (6, 2),
    ]
    assert [_previous(stream, entry) for entry in old + new] == [0, 1, 0, 1]
    for entry in old:
        assert stream.next_to_send() is entry
        entry.awaiting_ack = True
    assert stream.next_to_send() is None, "not before the older sequence has left the table"
    assert stream.order_ack(ends.order_ack_body(4 << 32 | 1, 9), 0) == []
    assert stream.order_ack(ends.order_ack_body(5 << 32 | 1, 1), 0) == old[:1]
    assert stream.next_to_send() is None
    assert stream.order_ack(ends.order_ack_body(5 << 32 | 1, 2), 0) == old[1:]
    assert stream.tx_sequence_id == 6 << 32 | 1
    assert stream.next_to_send() is new[0]
    assert stream.order_ack(ends.order_ack_body(5 << 32 | 1, 2), 0) == [], "that sequence is over"


@pytest.mark.rule("B-079", "B-078")
@pytest.mark.parametrize(("time_stamp", "ordinal"), [(5, 1), (4, 9), (5, 0)])
def test_sequence_renewal_requires_greater_id(time_stamp: int, ordinal: int) -> None:
    stream = streams.OutgoingStream(streams.OutgoingStream.new(5))
    _number(stream, 1)
    with pytest.raises(ValueError, match="exceed"):
        stream.renew(time_stamp, ordinal)
    assert _number(stream, 2).tx_sequence_number == 2
    stream.renew(5, 2)
    assert _number(stream, 3).tx_sequence_id == 5 << 32 | 2


@pytest.mark.rule("A-24")
def test_a_used_up_sequence_may_be_renewed_at_once() -> None:
    stream = streams.OutgoingStream(streams.OutgoingStream.new(5))
    stream.record[core.OUTGOING_NUMBER] = 0xFFFFFFFE
    _number(stream, 1)
    assert stream.number(bytearray(PACKET), OFFSET, 2, 2) is None
    stream.renew(6)
    assert _number(stream, 2).tx_sequence_number == 1


@pytest.mark.rule("B-055", "B-235", "B-241", "B-244", "B-318")
def test_a_held_message_is_sent_no_more_but_can_still_be_settled() -> None:
    stream = streams.OutgoingStream(streams.OutgoingStream.new(5))
    entries = [_number(stream, key, journal=True) for key in (1, 2, 3, 4)]
    for entry in entries[:3]:
        _previous(stream, entry)
        entry.awaiting_ack = True
    stream.hold([entries[2], entries[0]])
    assert stream.next_to_send() is entries[3]
    assert not entries[0].received_order_ack
    assert stream.order_ack(ends.order_ack_body(5 << 32 | 1, 2), 0) == entries[:2]
    assert entries[0].received_order_ack
    assert not entries[2].received_order_ack
    assert _previous(stream, entries[3]) == 0, "the gap is bridged"
    assert stream.order_ack(ends.order_ack_body(5 << 32 | 1, 4), 0) == [entries[3]], "4 proves nothing of 3 any more"
    assert not entries[2].received_order_ack
    assert stream.awaiting_final_ack == [entries[2], *entries[:2], entries[3]]
    for key in (3, 1):
        body = ends.final_ack_body(entries[key - 1])
        assert stream.final_ack(body, 0) is entries[key - 1]
        assert stream.final_ack(body, 0) is None
    stream.remove([entries[1], entries[3]])
    assert stream.awaiting_final_ack == []


@pytest.mark.rule(
    "B-080", "B-062", "B-063", "B-065", "B-066", "B-067", "B-068", "B-095", "B-231", "B-234", "B-239", "B-423"
)
def test_transfer_info_reports_stream_state() -> None:
    stream = streams.OutgoingStream(streams.OutgoingStream.new(5), now=77)
    info = TransferInfo(stream)
    assert (info.first_non_ack, info.last_non_ack, info.no_ack_count, info.no_read_count) == (None, None, 0, 0)
    assert (info.resend_count, info.resend_interval, info.resend_time) == (0, 30000, 0)
    assert (info.last_ack_count, info.last_ack_time) == (0, 77)
    current = 5 << 32 | 1
    assert info.last_ack == (current, 0, 0)
    assert info.next_seq == (current, 1, 0)
    entries = [_number(stream, key, journal=key < 3) for key in range(1, 8)]
    stream.append(streams.Entry(8, 8))
    for entry in entries:
        stream.sent(entry, 1000)
    stream.order_ack(ends.order_ack_body(current, 3), 2000)
    stream.remove([entries[4]])
    stream.handle_timeout(32000)
    info = TransferInfo(stream)
    assert info.first_non_ack == (current, 4, 0)
    assert info.last_non_ack == (current, 7, 6)
    assert info.last_ack == (current, 3, 2)
    assert info.next_seq == (current, 8, 7)
    assert (info.last_ack_count, info.last_ack_time) == (1, 2000)
    assert (info.no_ack_count, info.no_read_count) == (3, 2)
    assert (info.resend_count, info.resend_interval, info.resend_time) == (1, 30000, 62000)
    stream.order_ack(ends.order_ack_body(current, 2), 33000)
    info = TransferInfo(stream)
    assert info.last_ack == (current, 3, 2), "an older OrderAck counts, and lowers nothing"
    assert (info.last_ack_count, info.last_ack_time) == (2, 33000)


@pytest.mark.rule("B-055", "B-230", "B-235")
def test_unrelated_resend_leaves_held_message_provable() -> None:
    stream = streams.OutgoingStream(streams.OutgoingStream.new(5))
    first, held = (_number(stream, key, journal=True) for key in (1, 2))
    stream.renew(6)
    other = [_number(stream, key) for key in (3, 4, 5)]
    stream.hold([held])
    for entry in (first, *other):
        _previous(stream, entry)
    assert stream.order_ack(ends.order_ack_body(4 << 32 | 1, 2), 0) == []
    assert stream.order_ack(ends.order_ack_body(5 << 32 | 1, 2), 0) == [first, held]
    assert stream.awaiting_final_ack == [held, first]


@pytest.mark.rule("B-055", "B-244")
def test_removed_messages_leave_every_stream_table() -> None:
    stream = streams.OutgoingStream(streams.OutgoingStream.new(5))
    entries = [_number(stream, key, journal=True) for key in range(1, 6)]
    stream.hold(entries[:3])
    stream.remove(entries[:2])
    assert stream.awaiting_final_ack == [entries[2]]
    assert stream.order_ack(ends.order_ack_body(5 << 32 | 1, 4), 0) == entries[2:4]
    stream.hold([entries[4]])
    assert stream.awaiting_final_ack == entries[2:]
    stream.remove([])
    stream.append(streams.Entry(6, 6))
    stream.remove(entries[2:4])  # as many as twice the table
    assert stream.awaiting_final_ack == [entries[4]]
    assert _ids(stream.table) == [6]


@pytest.mark.rule("B-093", "B-230", "B-232")
def test_order_ack_is_progress_only_for_later_given_number() -> None:
    stream = streams.OutgoingStream(streams.OutgoingStream.new(5))
    first, second = (_number(stream, key) for key in (1, 2))
    acks = [ends.order_ack_body(5 << 32 | 1, number) for number in (1, 2, 3)]
    assert [stream.is_progress(body) for body in acks] == [True, True, False]
    assert stream.order_ack(acks[0], 0) == [first]
    assert [stream.is_progress(body) for body in acks] == [False, True, False]
    stream.rolls = False
    stream.leave_out(second)
    assert stream.is_progress(acks[1]), "what was numbered waits elsewhere"
    old = _number(stream, 3)
    stream.renew(6)
    _number(stream, 4)
    newer = ends.order_ack_body(6 << 32 | 1, 1)
    assert not stream.is_progress(newer), "the older sequence goes first"
    stream.remove([old])
    assert stream.is_progress(newer)
    plain = streams.Entry(5, 5, True)
    stream.table.insert(0, plain)
    assert stream.is_progress(newer), "a message that is not transactional belongs to no sequence"


@pytest.mark.rule("B-220", "B-316")
def test_removing_most_sent_messages_skips_no_pending_message() -> None:
    stream = streams.OutgoingStream(streams.OutgoingStream.new(5))
    entries = [_number(stream, key) for key in range(1, 21)]
    for entry in entries[:10]:
        assert stream.next_to_send() is entry
        entry.awaiting_ack = True
    assert stream.next_to_send() is entries[10]
    stream.remove(entries[1:9])
    for entry in entries[10:]:
        assert stream.next_to_send() is entry
        entry.awaiting_ack = True


def test_an_entry_can_be_used_again() -> None:
    stream = streams.OutgoingStream(streams.OutgoingStream.new(7), rolls=False)
    first = _number(stream, 1, True)
    first.awaiting_ack = first.received_session_ack = first.received_order_ack = True
    first.sequence_number = first.recoverable_sequence_number = 5
    stream.remove([first])
    again = stream.number(bytearray(PACKET), OFFSET, "key", 2, False, first)
    fresh = streams.Entry("key", 2, True, False, stream.tx_sequence_id, 2)
    fresh.stream = stream
    assert again is first
    assert stream.table == [first]
    for name in streams.Entry.__slots__:
        assert getattr(first, name) == getattr(fresh, name), name


class _Short(list[streams.Entry]):
    """There is memory for so many."""

    room = 0

    def append(self, entry: streams.Entry) -> None:
        if len(self) == self.room:
            self.room = 99
            raise MemoryError
        super().append(entry)


@pytest.mark.rule("B-230", "B-235")
@pytest.mark.parametrize("room", range(3))
@pytest.mark.parametrize("name", ["_covered_now", "awaiting_final_ack"])
def test_resent_order_ack_counts_after_memory_error(name: str, room: int) -> None:
    stream = streams.OutgoingStream(streams.OutgoingStream.new(5))
    for k in range(3):
        _number(stream, k + 1, journal=True)
    short = _Short()
    short.room = room
    setattr(stream, name, short)
    body = ends.order_ack_body(5 << 32 | 1, 3)
    with pytest.raises(MemoryError):
        stream.order_ack(body, 0)
    assert _ids(stream.table) == [1, 2, 3]
    assert _ids(stream.order_ack(body, 0)) == [1, 2, 3]
    assert stream.table == []
    assert _ids(stream.awaiting_final_ack) == [1, 2, 3]


def test_order_ack_does_not_prove_held_message_of_old_sequence() -> None:
    stream = streams.OutgoingStream(streams.OutgoingStream.new(7, 2))
    old = streams.Entry(1, 1, True, False, 7 << 32 | 1, 1)
    stream.append(old)
    held = _number(stream, 2)
    sent = _number(stream, 3)
    stream.hold([old, held])
    body = streams.OrderAckBody(array("I", (2, 7, 2, 0, 0, 0, 0, 0, 0)))
    assert stream.order_ack(body, 0) == [held, sent]
    assert (old.received_order_ack, stream.awaiting_final_ack) == (False, [old])


def test_final_ack_is_progress_only_beyond_last_order_ack() -> None:
    stream = streams.OutgoingStream(streams.OutgoingStream.new(5), (1000, 2000, 3000))
    entries = [_number(stream, key, journal=True) for key in (1, 2, 3)]
    for entry in entries:
        stream.sent(entry, 0)
    stream.order_ack(ends.order_ack_body(5 << 32 | 1, 1), 0)
    stream.handle_timeout(1000)
    assert stream.next_timeout() == 3000
    assert stream.final_ack(ends.final_ack_body(entries[0]), 1500) is entries[0]
    assert stream.next_timeout() == 3000
    assert stream.final_ack(ends.final_ack_body(entries[1]), 1500) is entries[1]
    assert (stream.next_timeout(), stream.resend_interval_index) == (2500, 0)
