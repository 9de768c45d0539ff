"""The destination's role: what is refused whatever its place, and one stream against a plain model of a destination."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from mqqb import acks, build, core, guids, headers, names, parse, rare
from mqqb.destination import IncomingStream, may_acknowledge, rejection_of

SOURCE = bytes(range(16))
NAME = names.parse_format_name("DIRECT=OS:host\\private$\\line1")
SENT = 1000
EXPIRED, OVER_QUOTA = 0x8002, 0x8003


def message(delivery: str = "transactional", **changes: Any) -> headers.UserMessage:
    properties = {name: changes.pop(name) for name in ("ttrq",) if name in changes}
    packet = build.user_message(SOURCE, 1, NAME, b"body", delivery=delivery, sent_time=SENT, **properties)
    found = parse.parse(packet)
    assert isinstance(found, headers.UserMessage)
    for name, value in changes.items():
        setattr(found, name, value)
    return found


def secured(flags: int = 0, privacy: int = 0, signature: int = 0) -> headers.UserMessage:
    found = message(security=headers.SecurityHeader())
    assert found.security is not None
    found.security.flags = flags
    found.security.signature_size = signature
    found.properties.privacy_level = privacy
    return found


def several(signature: bytes) -> headers.UserMessage:
    address = rare.MQFAddressHeader
    return message(multi_queue_format=rare.MultiQueueFormatHeader(address([NAME]), address(), address(), signature))


@pytest.mark.rule("B-256", "B-257", "B-258", "B-329", "B-330", "B-332", "B-334", "A-33")
@pytest.mark.parametrize(
    ("subject", "is_here", "is_transactional", "expected"),
    [
        (message(), True, True, 0),
        (message("recoverable"), True, False, 0),
        (secured(signature=1), False, True, 0x8000),
        (secured(signature=1), True, False, 0x8009),
        (message("express"), True, True, 0x800A),
        (several(b""), True, True, 0),
        (several(b"s"), True, True, 0x8006),
        (secured(), True, True, 0),
        (secured(0x20, 2, 1), True, True, 0x8006),
        (secured(0x20, 2), True, True, 0x8007),
        (secured(0x1F), True, True, 0),
        *((secured(0, privacy), True, True, 0 if privacy in (0, 1, 3, 5) else 0x8006) for privacy in range(8)),
    ],
)
def test_first_rejection_reason_is_reported(
    subject: headers.UserMessage, is_here: bool, is_transactional: bool, expected: int
) -> None:
    assert rejection_of(subject, is_here, is_transactional, SENT, 0) == expected


@pytest.mark.rule("B-265", "B-266", "B-267", "A-42")
@pytest.mark.parametrize(
    ("time", "ttrq", "skew", "expected"),
    [
        (SENT + 5, 5, 0, 0),
        (SENT + 6, 5, 0, EXPIRED),
        (SENT + 6, 5, 1, 0),
        (SENT + 7, 5, 1, EXPIRED),
        (SENT + 1, 0, 0, EXPIRED),
        (SENT - 1, 0, 0, 0),
        (0, 0, 0, 0),
        (0xFFFFFFFF, 0xFFFFFFFF, 0, 0),
        (0x1FFFFFFFF, 0xFFFFFFFF, 0, 0),
    ],
)
def test_a_message_is_too_late_after_its_time(time: int, ttrq: int, skew: int, expected: int) -> None:
    assert rejection_of(message(ttrq=ttrq), True, True, time, skew) == expected


@pytest.mark.rule("B-361", "B-362")
def test_an_acknowledgement_goes_to_an_address_or_to_the_source() -> None:
    destination, address = acks.to_source(SOURCE, "10.0.0.9")
    assert guids.format_name(destination) == "DIRECT=TCP:10.0.0.9\\PRIVATE$\\order_queue$"
    assert address == names.NULL_GUID
    assert guids.format_name(*acks.to_source(SOURCE, "")) == "PRIVATE=03020100-0504-0706-0809-0A0B0C0D0E0F\\00000004"


class Destination(RuleBasedStateMachine):
    """A stream, a storage with plain lists, and a source that sends each message again until it is told of it.

    table: what the source has: number -> the class that the destination has for it, 0 for a good one. there: numbers in
    the queue. filed: FinalAcks that wait, (number, class). lost: FinalAcks that were given up.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stream = IncomingStream()
        self.table: dict[int, int] = {}
        self.sequence = 1
        self.next = 1
        self.there: list[tuple[int, int]] = []
        self.filed: list[tuple[int, int]] = []
        self.rejected: set[tuple[int, int]] = set()
        self.told: dict[tuple[int, int], int] = {}
        self.is_full = self.is_over = False

    # ---- the storage

    def over_quota(self, number: int) -> int:
        assert number in self.table
        return OVER_QUOTA if self.is_over else 0

    def keep(self, number: int, rejection: int) -> str:
        if self.is_full:
            return "full"
        if rejection:
            self.filed.append((number, rejection))
            if rejection != EXPIRED:
                self.rejected.add((self.sequence, number))
        else:
            self.there.append((self.sequence, number))
        return ""

    # ---- what happens

    @rule(rejections=st.lists(st.sampled_from((0, 0x8006)), min_size=1, max_size=4))
    def send(self, rejections: list[int]) -> None:
        for rejection in rejections:
            self.table[self.next] = rejection
            self.next += 1

    @rule()
    @precondition(lambda self: not self.table)
    def begin(self) -> None:
        self.sequence += 0xFFFFFFFF
        self.next = 1
        self.filed.clear()

    @rule(full=st.sampled_from((False, False, False, True)), over=st.booleans())
    def fill(self, full: bool, over: bool) -> None:
        self.is_full, self.is_over = full, over

    @rule(places=st.lists(st.integers(0, 3), min_size=1, max_size=6))
    @precondition(lambda self: self.table)
    def some_come(self, places: list[int]) -> None:
        """Some of the first messages, next or not."""
        for place in places:
            self.come(place)

    def come(self, place: int) -> None:
        numbers = sorted(self.table)
        place = min(place, len(numbers) - 1)
        number = numbers[place]
        header = headers.TransactionHeader()
        header.tx_sequence_ordinal = self.sequence & 0xFFFFFFFF
        header.tx_sequence_time_stamp = self.sequence >> 32
        header.tx_sequence_number = number
        header.previous_tx_sequence_number = numbers[place - 1] if place else 0
        stream = self.stream
        before, limit = array("I", stream.record), stream.limit
        there, filed = len(self.there), len(self.filed)
        refusal = stream.decide(header, self.table[number], self, number)
        if refusal:
            assert self.is_full
            assert (stream.record, stream.limit) == (before, limit), "nothing was decided"
            return
        assert len(self.there) - there + len(self.filed) - filed <= 1
        last = before[core.INCOMING_TIME_STAMP] << 32 | before[core.INCOMING_ORDINAL], before[core.INCOMING_NUMBER]
        has_moved = (stream.tx_sequence_id, stream.tx_sequence_number) != last
        if has_moved:
            assert (stream.tx_sequence_id, stream.tx_sequence_number) == (self.sequence, number) > last
            assert len(self.there) + len(self.filed) == there + filed + 1, "each that is passed has one answer"
        elif (self.sequence, number) > last:
            assert len(self.there) == there, "one ahead of its gap is in no queue"
            assert len(self.filed) - filed == (self.table[number] != 0)
        else:
            assert len(self.there) == there, "exactly once"
            known = limit is None or number <= limit
            assert len(self.filed) == filed or not known, "it was answered before"

    @rule(place=st.integers(0, 3))
    @precondition(lambda self: self.filed)
    def give_up(self, place: int) -> None:
        number, _ = self.filed.pop(min(place, len(self.filed) - 1))
        self.stream.give_up(self.sequence, number)

    def final_ack(self) -> None:
        number, message_class = self.filed.pop(0)
        if number in self.table:
            del self.table[number]
            self.told[self.sequence, number] = message_class

    @rule(final_acks=st.integers(0, 4))
    def acknowledge(self, final_acks: int) -> None:
        for _ in self.filed[:final_acks]:
            self.final_ack()
        if not self.filed:
            self.order_ack()

    def order_ack(self) -> None:
        """Goes behind all FinalAcks."""
        while self.filed:
            self.final_ack()
        number = self.stream.order_ack_number
        if number and self.stream.tx_sequence_id == self.sequence:
            for covered in [one for one in self.table if one <= number]:
                del self.table[covered]
                self.told[self.sequence, covered] = 0

    # ---- what holds

    @invariant()
    def what_is_told_is_true(self) -> None:
        assert len(set(self.there)) == len(self.there)
        for which, message_class in self.told.items():
            if message_class == 0:
                assert which in self.there, "called stored"
            elif message_class != EXPIRED:  # then nobody knows
                assert which not in self.there

    def teardown(self) -> None:
        """In the end the source is told of every message."""
        self.is_full = self.is_over = False
        for _ in range(2 * len(self.table) + 2):
            for place in range(len(self.table)):
                self.come(min(place, len(self.table) - 1))
            self.order_ack()
        assert not self.table


TestDestination = pytest.mark.untraced(Destination.TestCase)
TestDestination.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@pytest.mark.rule("B-262", "B-270", "B-284", "B-285", "A-15")
def test_rejection_advances_stream_only_if_it_can_be_stored() -> None:
    destination = Destination()
    destination.send([0x8006, 0, 0])
    destination.is_full = True
    destination.come(0)
    assert list(destination.stream.record) == [0, 0, 0, 0]
    destination.is_full = False
    destination.come(0)
    destination.come(1)
    destination.is_over = True
    destination.come(2)
    assert (destination.filed, destination.there) == ([(1, 0x8006), (3, OVER_QUOTA)], [(1, 2)])
    destination.come(1)  # again
    assert (len(destination.filed), len(destination.there)) == (2, 1)
    assert destination.stream.order_ack_number == 3


@pytest.mark.rule("B-262", "A-15", "A-33")
def test_one_ahead_of_its_gap_is_refused_where_it_is() -> None:
    destination = Destination()
    destination.send([0, 0x8006, 0])
    destination.come(1)
    destination.come(2)
    assert (destination.filed, destination.there) == ([(2, 0x8006)], [])
    assert destination.stream.order_ack_number == 0


@pytest.mark.rule("C-84")
def test_rejection_purged_while_storing_another_is_in_doubt() -> None:
    """A storage that has no room for another FinalAck gives up an older one."""

    class Small(Destination):
        def keep(self, number: int, rejection: int) -> str:
            if self.stream.limit is not None:
                self.stream.give_up(self.sequence, self.filed.pop(0)[0])
            return super().keep(number, rejection)

    destination = Small()
    destination.send([0x8006, 0x8006])
    destination.come(0)
    destination.come(1)
    destination.give_up(1)
    assert destination.stream.limit == 1
    destination.come(1)
    assert destination.filed == [(2, EXPIRED)]
    assert destination.stream.limit == 0


@pytest.mark.rule("C-84", "B-151", "B-115")
def test_purged_rejection_is_not_reported_as_stored() -> None:
    destination = Destination()
    destination.send([0, 0x8006, 0, 0])
    for place in range(3):
        destination.come(place)
    stream = destination.stream
    destination.give_up(0)
    stream.give_up(destination.sequence, 3)
    stream.give_up(destination.sequence + 1, 1)
    destination.come(3)
    old = headers.TransactionHeader()
    old.tx_sequence_number = 1
    assert stream.decide(old, 0, destination, 1) == ""
    assert (stream.order_ack_number, stream.tx_sequence_number) == (1, 4)
    destination.order_ack()
    destination.table[1] = 0  # it comes again, late
    destination.come(0)
    assert not destination.filed
    del destination.table[1]
    for place in range(3):
        destination.come(place)
        assert destination.filed[-1] == (place + 2, EXPIRED)
        assert stream.order_ack_number == place + 2
    destination.order_ack()
    assert destination.told == {(1, 1): 0, (1, 2): EXPIRED, (1, 3): EXPIRED, (1, 4): EXPIRED}
    destination.begin()
    destination.send([0])
    destination.come(0)
    assert stream.limit is None


@pytest.mark.rule("B-235")
def test_order_ack_never_overtakes_rejecting_final_ack() -> None:
    one, other = object(), object()
    for rejecting, expected in (([], True), ([one, one], True), ([one, None], False), ([other], False)):
        assert may_acknowledge(rejecting, one) == expected


@pytest.mark.rule("C-84", "B-262", "B-426")
@pytest.mark.parametrize(("limit", "previous", "expected"), [(0, 0, True), (0, 4, True), (4, 3, False), (5, 4, False)])
def test_old_sequence_message_expires_at_ack_limit_zero(limit: int, previous: int, expected: bool) -> None:
    destination = Destination()
    destination.sequence = 7
    destination.send([0])
    destination.come(0)
    destination.stream.limit = limit
    old = headers.TransactionHeader()
    old.tx_sequence_ordinal, old.tx_sequence_number, old.previous_tx_sequence_number = 3, 5, previous
    assert destination.stream.decide(old, 0, destination, 5) == ""
    assert destination.filed == ([(5, EXPIRED)] if expected else [])
    assert destination.stream.limit == limit


@pytest.mark.rule("B-113", "B-153")
def test_half_of_the_window_is_counted_from_the_last_order_ack() -> None:
    reader = SimpleNamespace(begin=0, end=1)
    session: Any = SimpleNamespace(window=SimpleNamespace(half=3), round_trip=0, reader=reader)
    stream = IncomingStream()
    for begun in (0, 1000):
        for now in (begun, begun + 1):
            stream.schedule_order_ack(now, session)
            assert stream.next_timeout() == now + 20
        stream.schedule_order_ack(begun + 2, session)
        assert stream.next_timeout() == begun + 2
        stream.order_ack_sent(begun + 2)


@pytest.mark.rule("B-113", "B-153")
@pytest.mark.parametrize(
    ("unread", "round_trip", "early", "expected"),
    [(0, 0, 20, 0), (1, 0, 20, 20), (0, 63, 20, 63), (1, 63, 99, 99), (0, 0, 0, 500)],
)
def test_order_ack_leaves_at_once_if_no_packet_is_unfinished(
    unread: int, round_trip: int, early: int, expected: int
) -> None:
    reader = SimpleNamespace(begin=7, end=7 + unread)
    session: Any = SimpleNamespace(window=SimpleNamespace(half=3), round_trip=round_trip, reader=reader)
    stream = IncomingStream()
    stream.schedule_order_ack(1000, session, early)
    assert stream.next_timeout() == 1000 + expected
