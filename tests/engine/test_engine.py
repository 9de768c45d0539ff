"""The protocol engine: its tests that MicroPython runs too, and a model of two ends."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import cast

import engine_cases
import engine_ends as ends
import pytest
import test_session
import test_traces
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from mqqb import build, connection, core, hosts, parse, streams
from mqqb.connection import Closed, Window
from mqqb.destination import IncomingStream
from mqqb.session import Session

for function, numbers, names, values in engine_cases.TESTS:
    marked = pytest.mark.rule(*numbers)(function)
    if names is not None:
        marked = pytest.mark.parametrize(names, values)(marked)
    name = "test_" + function.__name__.removeprefix("test_")
    assert name not in globals(), name
    globals()[name] = marked
assert {test_session, test_traces}, "imported, so that their tests are known"


def test_session_ack_settles_nothing_moved_to_other_session() -> None:
    stays, goes = (streams.OutgoingStream(streams.OutgoingStream.new(5), streams.RESEND_INTERVALS) for _ in range(2))
    window = Window(64)
    for number in range(8):
        stream, recoverable = (stays, goes)[number % 2], number > 3
        entry = streams.Entry(None, number, recoverable)
        stream.append(entry)
        core.session_sent(window.counts, recoverable)
        window.sent(entry, recoverable, 0)
    hosts.forget(cast(Session, SimpleNamespace(window=window)), goes)
    heard = core.words(core.SESSION_HEADER)
    heard[core.ACKS_BASE], heard[core.ACKS_FLAGS] = 1, 0xFFFFFFFF
    window.counts[core.SESSION_PEER_ACKED] = 8
    assert [entry.message_id for entry in window.acknowledge(heard) or []] == [0, 2, 4, 6]
    assert not window.in_flight


@pytest.mark.rule("B-136")
def test_resend_intervals_are_those_of_windows() -> None:
    minutes = [0.5] * 3 + [5] * 3 + [30] * 3 + [360]
    assert [interval / 60_000 for interval in streams.RESEND_INTERVALS] == minutes


def test_new_entry_is_recoverable_unnumbered_and_unsent() -> None:
    entry = streams.Entry("key", 1)
    assert entry.recoverable
    assert not entry.journal
    assert (entry.tx_sequence_id, entry.sequence_number, entry.recoverable_sequence_number) == (0, 0, 0)
    packet = build.user_message(ends.SENDER, 1, ends.DESTINATION, b"", delivery="transactional")
    numbered = streams.OutgoingStream(streams.OutgoingStream.new(5)).number(
        packet, parse.transaction_offset(packet), 1, 1
    )
    assert numbered is not None
    assert not numbered.journal


# ---- the model ------------------------------------------------------------------------------------


class TwoEnds(RuleBasedStateMachine):
    """A sender and a receiver, a wire that loses its tail, power that fails at any step (behaviour.md section 27.1)."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.sender = ends.Sender()
        self.receiver = ends.Receiver()
        self.up = bytearray()
        self.down = bytearray()
        self.connected = False

    @initialize()
    def start(self) -> None:
        self.connect(True)

    @precondition(lambda self: not self.connected)
    @rule(opens=st.sampled_from([True, True, True, False]))
    def connect(self, opens: bool) -> None:
        self.sender.connect(self.now)
        self.sender.session.is_needed = lambda: bool(self.sender.stream.table)
        self.receiver.held = []
        self.receiver.accept(self.now)
        self.up.clear()
        self.down.clear()
        self.connected = True
        self.collect()
        while opens and self.connected and self.sender.session.state != connection.OPEN:
            self.deliver_up(1)
            self.deliver_down(1)

    @rule(count=st.integers(1, 40))
    def send(self, count: int) -> None:
        for _ in range(count):
            self.sender.send(b"%d" % self.sender.next_message_id)
        self.collect()

    @precondition(lambda self: self.connected)
    @rule(fraction=st.one_of(st.just(1.0), st.floats(0, 1)))
    def deliver_up(self, fraction: float) -> None:
        size = int(len(self.up) * fraction + 0.5)
        data, self.up = bytes(self.up[:size]), self.up[size:]
        self.check(self.receiver.receive(data, self.now))

    @precondition(lambda self: self.connected)
    @rule(fraction=st.one_of(st.just(1.0), st.floats(0, 1)))
    def deliver_down(self, fraction: float) -> None:
        size = int(len(self.down) * fraction + 0.5)
        data, self.down = bytes(self.down[:size]), self.down[size:]
        self.check(self.sender.receive(data, self.now))

    @rule(hold=st.booleans())
    def disk_is_slow(self, hold: bool) -> None:
        self.receiver.hold = hold
        if self.connected and not hold:
            self.receiver.store(self.now)
            self.collect()

    @precondition(lambda self: self.connected)
    @rule()
    def cut(self) -> None:
        self.connected = False
        self.receiver.held = []
        self.receiver.incoming = IncomingStream(array("I", self.receiver.record), self.now)

    @rule()
    def sender_loses_power(self) -> None:
        if self.connected:
            self.cut()
        self.sender.crash()

    @rule()
    def receiver_loses_power(self) -> None:
        if self.connected:
            self.cut()
        self.receiver.crash(self.now)

    @rule(step=st.sampled_from([1, 100, 400, 600, 5000, 31000]))
    def time_passes(self, step: int) -> None:
        self.now += step
        if self.connected:
            self.sender.stream.handle_timeout(self.now)
            self.check(self.sender.session.handle_timeout(self.now))
            self.collect()

    def check(self, events: list[object]) -> None:
        for event in events:
            if isinstance(event, Closed):
                assert event.rule in ("B-147", "B-148", "B-155"), (event.rule, event.reason)
                assert event.rule != "B-147" or not self.sender.stream.table, "not idle, but needed (A-28)"
                self.cut()
        self.collect()

    def collect(self) -> None:
        if self.connected and self.receiver.session.closed is None:
            self.sender.pump(self.now)
            self.up += self.sender.session.data_to_send()
            self.receiver.tick(self.now)
            self.down += self.receiver.session.data_to_send()

    @invariant()
    def once_in_order_and_settled_only_when_stored(self) -> None:
        inserted = [message_id for message_id, _, _ in self.receiver.queue]
        assert inserted == list(range(1, len(inserted) + 1)), "exactly once, in order"
        assert all(message_id <= len(inserted) for message_id in self.sender.settled), "settled only what is stored"
        for message_id, _, body in self.receiver.queue:
            assert body == b"%d" % message_id
        numbers = [number for _, number, _ in self.receiver.queue]
        assert numbers == sorted(set(numbers)), "no number names two messages"

    def teardown(self) -> None:
        if self.connected:
            self.cut()
        self.receiver.hold = False
        for _ in range(3):
            ends.open_pair(self.now, self.sender, self.receiver)
            self.now = ends.run(self.sender, self.receiver, self.now, self.now + 31000)
        assert self.sender.stream.table == [], "nothing in progress for ever once the link stays up"
        assert self.sender.disk == {}
        assert len(self.receiver.queue) == self.sender.next_message_id - 1


TwoEnds.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.mark.untraced
@pytest.mark.rule(
    "A-28", "B-099", "B-110", "B-158", "B-270", "B-271", "A-01", "A-04", "A-08", "A-09", "A-10", "A-30", "A-31"
)
class TestModel(TwoEnds.TestCase):  # type: ignore[misc,name-defined]
    pass
