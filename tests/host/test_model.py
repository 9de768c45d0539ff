"""Queue managers in a world of accidents (model.py), in a short random walk; and that the model notices when they are
broken."""

from __future__ import annotations

import contextlib
import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from mqqb import core, lives
from mqqb.connection import MessageReceived
from mqqb.destination import IncomingStream
from mqqb.session import Session
from mqqb.streams import Entry, OutgoingStream
from ordack.broker import incoming
from ordack.broker.incoming import IncomingState, OrderAcks
from ordack.broker.links import FairSchedule
from ordack.broker.manager import Manager
from ordack.broker.pace import Pace
from ordack.broker.streams import FastSession
from ordack.config.settings import NEVER
from ordack.store import StoreError
from ordack.store.at_hand import Row
from ordack.store.database import Database
from ordack.store.numbers import Numbers
from ordack.store.outgoing import OutgoingQueues

from hil.dice import new_seed
from tests.host import model, model_hosts

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _templates() -> Iterator[None]:
    yield
    model.clean()


@pytest.mark.rule("B-098", "B-281", "B-271", "A-01", "A-08", "B-248", "B-103")
def test_a_short_walk() -> None:
    """Of twenty episodes at least, and until each of these has happened."""
    kinds = ("received", "rejected", "dead-lettered", "cuts", "crashes", "put back", "emptied")
    walk = model.Walk(new_seed(), 0)
    for episode in range(120):
        if episode >= 20 and all(walk.figures[kind] for kind in kinds):
            break
        try:
            walk.episode(episode)
        except BaseException as error:
            error.add_note(f"again: python -m tests.host.model --seed {walk.seed} --episode {episode} --trace")
            raise
    assert all(walk.figures[kind] for kind in kinds)


def test_late_order_ack_for_own_sequence_puts_nothing_in_doubt() -> None:
    """In this episode one comes for a sequence that a FinalAck has ended, while others wait for the same peer."""
    model.Walk(1, 0).episode(1416)


def test_message_is_not_resent_while_its_bytes_still_leave() -> None:
    """In this episode an older message of its stream waits for an OrderAck, and the line is slow."""
    model.Walk(1, 0).episode(2699)


def test_steady_traffic_on_slow_line_does_not_postpone_resend() -> None:
    """A message of 500 bytes each 50 ms gets no OrderAck; the line holds those of the last 100 ms."""
    session = Session(True, bytes(16), 0)
    pace, stream = Pace(session), OutgoingStream(OutgoingStream.new(1))
    number = resent_at = 0
    for now in range(0, 60_000, 50):
        if stream not in pace.overdue:
            number += 1
            entry = Entry(number, number, tx_sequence_id=stream.tx_sequence_id, tx_sequence_number=number)
            stream.append(entry)
            if stream.next_to_send() is not entry:
                resent_at = now
                break
            entry.awaiting_ack = True
            stream.sent(entry, now)
            pace.sends(500, stream, entry is stream.table[0])
            pace.wrote(500)
        pace.holds(0 if stream in pace.overdue else 1000)
        pace.run_timer(stream, now)
    assert 30_000 <= resent_at <= 31_000


# ---- the model can fail: broken on purpose, a walk finds it ----------------------------------------


def _advance_on_rejection(patch: pytest.MonkeyPatch) -> None:
    accept = IncomingStream.accept

    def broken(self: IncomingStream, header: Any) -> bool:
        accepted = accept(self, header)
        self.record[:3] = array(
            "I", (header.tx_sequence_ordinal, header.tx_sequence_time_stamp, header.tx_sequence_number)
        )
        return accepted

    patch.setattr(IncomingStream, "accept", broken)


def _renumber(patch: pytest.MonkeyPatch) -> None:
    restart, prepare = OutgoingStream.restart, OutgoingStream.prepare

    def broken(self: OutgoingStream) -> None:
        restart(self)
        for entry in self.table:
            if entry.tx_sequence_number:
                entry.tx_sequence_number = self.record[core.OUTGOING_NUMBER]
                self.record[core.OUTGOING_NUMBER] += 1

    def write(self: OutgoingStream, entry: Any, packet: bytearray, offset: int) -> None:
        prepare(self, entry, packet, offset)
        packet[offset + 12 : offset + 16] = entry.tx_sequence_number.to_bytes(4, "little")

    patch.setattr(OutgoingStream, "restart", broken)
    patch.setattr(OutgoingStream, "prepare", write)


def _zero_matches(patch: pytest.MonkeyPatch) -> None:
    is_acked = core.is_acked
    patch.setattr(
        core,
        "is_acked",
        lambda base, flags, number: (
            is_acked(base, flags, number) or (not flags and not core.serial_after(number, base))
        ),
    )


def _wrong_base(patch: pytest.MonkeyPatch) -> None:
    fill = core.session_fill

    def broken(counts: Any, header: Any) -> None:
        fill(counts, header)
        if header[core.ACKS_FLAGS]:
            header[core.ACKS_BASE] = (header[core.ACKS_BASE] - 1) & 0xFFFF

    patch.setattr(core, "session_fill", broken)


def _no_transaction(patch: pytest.MonkeyPatch) -> None:
    for index in range(3):
        model_hosts._template(index)  # which needs them

    def broken(*_: object, **__: object) -> Iterator[None]:
        yield

    patch.setattr(Database, "transaction", contextlib.contextmanager(broken))


def _acknowledge_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """What was received counts as stored at once; and that the store failed ends no session."""
    receive = Session.receive_data

    def broken(self: Session, data: bytes, now: int) -> list[object]:
        events = receive(self, data, now)
        for event in events:
            if isinstance(event, MessageReceived):
                self.stored_early(event.recoverable, now)
        return events

    patch.setattr(Session, "stored_early", Session.stored, raising=False)
    patch.setattr(FastSession, "receive_data", broken, raising=False)
    patch.setattr(FastSession, "stored", lambda self, recoverable, now: None, raising=False)

    def guard(self: Manager, now: int) -> Iterator[None]:
        try:
            yield
        except StoreError:
            self._load(now)

    patch.setattr(Manager, "_guard", contextlib.contextmanager(guard))


def _order_ack_overtakes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OrderAcks, "_final_acks_are_ahead", lambda self, link: True)
    patch.setattr(IncomingState, "final_acks", property(lambda self: None, lambda self, value: None), raising=False)


def _go_on_with_the_numbers_of_a_backup(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Numbers, "begin_run", lambda self, above=0: setattr(self, "_joined", self._db.rolled_back))


def _wait_for_lives_that_are_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lives, "refused_for_ever", lambda stream, tx_sequence_id, number: [])


def _wait_for_the_begin_of_a_sequence(patch: pytest.MonkeyPatch) -> None:
    accept = IncomingStream.accept

    def broken(self: IncomingStream, header: Any) -> bool:
        return (header.tx_sequence_number == 1 or self.tx_sequence_number != 0) and accept(self, header)

    patch.setattr(IncomingStream, "accept", broken)


def _send_what_was_withdrawn(patch: pytest.MonkeyPatch) -> None:
    rows = OutgoingQueues.rows

    def broken(self: OutgoingQueues, *place: int) -> list[Row]:
        return [row._replace(until=NEVER) for row in rows(self, *place)]

    patch.setattr(OutgoingQueues, "rows", broken)


def _give_up_without_a_word(patch: pytest.MonkeyPatch) -> None:
    """OrderAcks cover what a FinalAck has rejected that was given up."""
    patch.setattr(incoming, "rejected", lambda packet: None)


def _one_queue_after_the_other(patch: pytest.MonkeyPatch) -> None:
    def among(self: FairSchedule, queues: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        for queue in queues:
            while (entry := queue.stream.next_to_send()) is not None:
                yield queue, entry

    patch.setattr(FairSchedule, "among", among)


def _take_a_slow_line_for_silence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Session, "progressed", lambda self: None)


def _send_again_what_is_leaving(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Pace, "run_timer", lambda self, stream, now: stream.handle_timeout(now))


def _walk(says: str, seed: int, often: dict[str, int]) -> None:
    """Until the model says this; one seed may never come by what is broken."""
    for walk in [model.Walk(seed + more, 0, often) for more in range(5)]:
        print(f"seed {walk.seed}")
        for episode in range(60):
            try:
                walk.episode(episode)
            except model.Violation as error:
                if re.search(says, str(error)):
                    raise


def _acknowledged_between_two() -> None:
    """Express and recoverable messages in turn, every 16 bytes of them answered, with high counts and a small
    window."""
    trace = [("begin", (20_000, 2, 0)), ("send", (0, 1, 3, 1, 4, 0, 300)), ("poll", (0,)), ("connect", (0,))]
    trace += [("deliver", (1, 6, 7)), ("deliver", (0, 6, 7))] * 2
    trace += [("deliver", (1, 1, 7)), ("deliver", (0, 6, 7))] * 100
    model.play(2, trace)


def _emptied_in_the_middle_of_a_sequence() -> None:
    """Two messages are on their way, a third one joins their sequence. Their destination's folder is emptied then."""
    send = ("send", (0, 1, 0, 0, 0, 0, 400))
    under_way = [("poll", (0,)), ("connect", (0,)), ("flow", (3,))]
    model.play(
        2,
        [
            ("begin", (0, 64, 0)),
            *(send, send, *under_way, send),
            ("deliver", (0, 6, 7)),
            ("empty", (1,)),
            ("settle", ()),
        ],
    )


def _passed_on_in_a_life_that_is_lost() -> None:
    """The backup has a message on its way; it arrived, and another one of the next sequence did, before the backup is
    put back."""
    send = [("send", (0, 1, 0, 0, 0, 0, 400))]
    settle = [("poll", (0,)), ("connect", (0,)), *[("flow", (4,)), ("tick", (5, 3))] * 3]
    model.play(
        2,
        [
            ("begin", (0, 64, 0)),
            *send,
            ("back_up", (0,)),
            *settle,
            *send,
            *settle,
            ("put_back", (0,)),
            *settle,
            ("settle", ()),
        ],
    )


def _rejected_and_withdrawn_before_it_is_told() -> None:
    """The acknowledgement of a message for a queue that is not there waits behind those for strangers, for as long as
    its source has no connection; an operator withdraws it."""
    model.play(
        2,
        [
            ("begin", (0, 1, 0)),
            ("stranger", (0, 1)),
            ("send", (1, 0, 23, 0, 0, 0, 0)),
            ("stranger", (0, 1)),
            ("tick", (0, 2)),
            ("connect", (1,)),
            ("flow", (4,)),
            ("withdraw", (0, 2, 0)),
            ("poll", (0,)),
        ],
    )


@pytest.mark.timeout(900)  # a walk ends when it meets what is broken
@pytest.mark.rule("C-29", "B-305", "B-148", "B-151")
@pytest.mark.parametrize(
    ("breakage", "says", "seed", "often"),
    [
        (_advance_on_rejection, "arrived twice|unasked|covers it", 5, {"change_queue": 4}),
        (_renumber, "another number", 1, {}),
        (_wrong_base, "which was not sent", 1, {}),
        (_no_transaction, ".", 7, {"arm": 4}),
        (_acknowledge_before_the_commit, "acknowledged, but is not on disk", 7, {"arm": 8}),
        (_order_ack_overtakes, "an OrderAck .* covers it", 1, {"change_queue": 4, "cut": 2}),
        (_send_what_was_withdrawn, "sent, and had been withdrawn", 2, {"withdraw": 8, "pause": 3}),
        (_go_on_with_the_numbers_of_a_backup, "two messages have", 1, {"back_up": 4, "put_back": 4}),
        (_one_queue_after_the_other, "leaves before others of priority", 1, {}),
        (_take_a_slow_line_for_silence, "closed whose bytes move", 5, {"slow": 8}),
        (_send_again_what_is_leaving, "while it is still leaving", 8, {"slow": 8}),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_broken_queue_manager_is_noticed(
    breakage: Callable[[pytest.MonkeyPatch], None], says: str, seed: int, often: dict[str, int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        breakage(patch)
        with pytest.raises(model.Violation, match=says):
            _walk(says, seed, often)


@pytest.mark.parametrize(
    ("breakage", "run"),
    [
        (_zero_matches, _acknowledged_between_two),
        (_give_up_without_a_word, _rejected_and_withdrawn_before_it_is_told),
        (_wait_for_lives_that_are_lost, _passed_on_in_a_life_that_is_lost),
        (_wait_for_the_begin_of_a_sequence, _emptied_in_the_middle_of_a_sequence),
    ],
)
def test_a_broken_queue_manager_is_noticed_at_once(
    breakage: Callable[[pytest.MonkeyPatch], None], run: Callable[[], None]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        breakage(patch)
        with pytest.raises(model.Violation):
            run()
    run()  # nothing is said of an honest one
