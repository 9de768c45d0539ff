"""The confirmation process at the source: the test cases of confirmation.md section 9 (in tests/mp/confirm_cases.py, so
that MicroPython runs the same ones), each row of its tables, and random histories against a model of the tables.
"""

from __future__ import annotations

from array import array
from typing import Any

import confirm_cases as cases
import pytest
from confirm_cases import JN, JP, T0, UNSET, Source
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mqqb import confirm
from mqqb.confirm import (
    DEAD_LETTER,
    DEAD_LETTERED,
    DELETE,
    DISCARDED,
    JOURNAL,
    LOG,
    NACK,
    RECEIVED,
    STORE,
    STORED,
    WAITING,
)

from tests.support.confirm_rules import RULES

BOTH = JN | JP
DEFAULT_TTRQ = 345600


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case[0], marks=pytest.mark.rule(*RULES[case[0].split()[0]])) for case in cases.CASES]
)
def test_case(case: Any) -> None:
    cases.check(case)


@pytest.mark.rule("A-44", "C-21", "C-22", "C-23")
def test_the_three_undecided_classes_are_settings() -> None:
    values = confirm.Settings(class_never_sent=0x8002, class_sent=0x8005, class_stored=0x8006)
    found = []
    for events in ((), (SENT,), (SENT, ORDER)):
        source = Source(values, journal=JN, ttrq=100, ttbr=10)
        for event in events:
            source.event(*event)
        source.run(1000)
        found.append((source.log[-1][3], source.confirmation.conclusion().in_doubt))
    assert found == [(0x8002, False), (0x8005, True), (0x8006, True)], "a class the source wrote proves nothing"


@pytest.mark.rule("C-18", "C-21", "C-22", "B-403")
def test_case_6_not_sent_when_the_link_comes_up() -> None:
    cases.not_sent_when_the_link_comes_up()


@pytest.mark.rule("C-02")
def test_case_11_jn_is_in_the_packet() -> None:
    cases.jn_is_in_the_packet()


@pytest.mark.rule("C-33")
def test_case_14_dead_lettered_at_start_up() -> None:
    cases.dead_lettered_at_start_up()


@pytest.mark.rule("B-406")
def test_case_16_transaction_takes_times_of_first_message() -> None:
    cases.one_transaction_takes_the_times_of_its_first_message()


# ---- deadlines ------------------------------------------------------------------------------------


@pytest.mark.rule("C-11", "C-12", "C-13", "C-14", "C-16", "A-48")
@pytest.mark.parametrize(
    ("ttbr", "ttrq", "delay", "expected"),
    [
        (UNSET, UNSET, None, None),
        (UNSET, 60, None, None),
        (UNSET, 60, 30, None),
        (600, UNSET, None, 1200),
        (600, 60, None, 660),
        (600, 3600, None, 1200),
        (600, 600, None, 1200),
        (600, 60, 30, 630),
        (600, 3600, 30, 630),
        (600, UNSET, 30, 630),
        (600, UNSET, 0, 600),
        (600, 60, 0xFFFFFFFE, 0x100000256),
        (0, UNSET, None, 0),
        (0, 60, None, 0),
        (0, UNSET, 30, 30),
        (400000, UNSET, None, 800000),  # above the default of TTRQ: the page, not the registry value's text
        (0xFFFFFFFE, UNSET, None, 0x1FFFFFFFC),
        (0xFFFFFFFE, UNSET, 0xFFFFFFFE, 0x1FFFFFFFC),
    ],
)
def test_the_confirmation_deadline_is_ttbr_and_an_extension(
    ttbr: int, ttrq: int, delay: int | None, expected: int | None
) -> None:
    source = Source(confirm.Settings(xact_delay_receive_nack=delay), journal=JN, ttbr=ttbr, ttrq=ttrq)
    found = source.confirmation.confirmation_deadline()
    assert found == (None if expected is None else T0 + expected)
    source.event("sent")
    source.event("order_ack")
    assert source.confirmation.next_deadline() == found, "it is what ends the wait in O, and all that does"


@pytest.mark.rule("C-18", "C-20", "C-21", "C-22", "B-401", "B-402", "B-403")
@pytest.mark.parametrize(
    ("ttrq", "ttbr", "last"),
    [
        (UNSET, UNSET, DEFAULT_TTRQ),
        (UNSET, 10, 10),
        (5, UNSET, 5),
        (5, 10, 5),
        (10, 5, 5),
        (7, 7, 7),
        (0, UNSET, 0),
        (UNSET, 0, 0),
        (UNSET, 0xFFFFFFFE, DEFAULT_TTRQ),
        (0xFFFFFFFE, UNSET, 0xFFFFFFFE),
    ],
)
def test_nothing_is_transmitted_after_the_earlier_of_both_times(ttrq: int, ttbr: int, last: int) -> None:
    source = Source(journal=JN, ttrq=ttrq, ttbr=ttbr)
    assert source.confirmation.next_deadline() == T0 + last
    for _ in ("Q", "S"):
        assert source.confirmation.may_send(T0)
        assert source.confirmation.may_send(T0 + last)
        assert not source.confirmation.may_send(T0 + last + 1)
        source.event("sent")
    source.event("order_ack")
    assert not source.confirmation.may_send(T0)


SENT = ("sent",)
ORDER = ("order_ack",)


@pytest.mark.rule("C-12")
@pytest.mark.parametrize(
    "values",
    [
        {"xact_delay_receive_nack": -1},
        {"xact_delay_receive_nack": 0xFFFFFFFF},
        {"long_live_time": -1},
        {"long_live_time": 0xFFFFFFFF},
    ],
)
def test_settings_out_of_range_are_refused(values: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        confirm.Settings(**values)  # type: ignore[arg-type]


# ---- the tables -----------------------------------------------------------------------------------

ADMINISTRATOR, UNENCRYPTED, OTHER_GUID = 0x8001, 0x8008, 0x800C
REACH = {
    "Q": (),
    "S": (SENT,),
    "O": (SENT, ORDER),
    "J": (SENT, ORDER, ("final_ack", 0x4000)),
    "X": (SENT, ORDER, ("final_ack", 0xC001)),
    "-": (SENT, ORDER, ("final_ack", 0x4000)),
}
ALL = (0, JN, JP, BOTH)


def reached(state: str, journal: int, **properties: Any) -> Source | None:
    """A message in that state, or None where its journal value never comes there."""
    source = Source(journal=journal, **properties)
    for event in REACH[state]:
        source.event(*event)
    return source if chr(source.confirmation.state) == state else None


@pytest.mark.parametrize("message_class", [0, 0x0002, 0x00FF, 0x3FFF])
def test_a_class_below_0x4000_is_no_final_ack(message_class: int) -> None:
    with pytest.raises(ValueError, match="0x4000"):
        Source().event("final_ack", message_class)


@pytest.mark.parametrize("message_class", [0, 0x4000, 0x8002, 0xC002])
def test_the_source_ends_a_message_for_three_reasons_only(message_class: int) -> None:
    with pytest.raises(ValueError):
        Source(journal=JN).event("failed", message_class)


def test_a_record_of_another_length_is_refused() -> None:
    for words in (0, 5, 7):
        with pytest.raises(ValueError, match="six words"):
            confirm.Confirmation(array("I", bytes(4 * words)), confirm.Settings())


# ---- a queue of this machine ----------------------------------------------------------------------


@pytest.mark.rule("C-70", "C-71", "C-72", "C-73")
def test_a_local_destination() -> None:
    source = Source(journal=JN, ttrq=5, ttbr=10, local=True, nack=True)
    confirmation = source.confirmation
    assert confirmation.conclusion().answer == STORED
    assert not confirmation.may_send(T0)
    assert confirmation.next_deadline() == T0 + 10, "neither TTRQ nor an extension"
    assert confirmation.confirmation_deadline() == T0 + 10
    source.run(100)
    assert source.log == [(10, STORE | DEAD_LETTER, "X", 0xC002)]
    assert not confirmation.conclusion().in_doubt, "nothing had to travel"

    source = Source(confirm.Settings(30), journal=JN, ttbr=10, local=True)
    source.run(100)
    assert source.log == [(10, STORE | DEAD_LETTER, "X", 0xC002)], "no value of the network's case counts"
    assert Source(journal=JN, ttrq=5, local=True).confirmation.next_deadline() is None


# ---- what the application is told -----------------------------------------------------------------


@pytest.mark.rule("C-82", "C-84", "C-85")
@pytest.mark.parametrize("journal", [JN, JP])
def test_nack_class_decides_if_outcome_is_in_doubt(journal: int) -> None:
    definite = {*range(0x8000, 0x800D), 0xC000, 0xC001, 0xC002, 0xC004} - {0x8002}
    for message_class in (0x4001, 0x7FFF, *range(0x8000, 0x8011), *range(0xBFFF, 0xC007), 0xFFFF):
        for state in "QSO":
            source = reached(state, journal)
            assert source is not None
            source.event("final_ack", message_class)
            conclusion = source.confirmation.conclusion()
            assert conclusion.answer == (DEAD_LETTERED if journal & JN else DISCARDED)
            assert conclusion.message_class == message_class
            assert conclusion.in_doubt == (message_class not in definite), hex(message_class)


# ---- random histories against a model -------------------------------------------------------------


class Model:
    """The tables of confirmation.md, read row by row, once in every second. Times are relative to T0; None is unset."""

    def __init__(
        self, journal: int, ttrq: int | None, ttbr: int | None, delay: int | None, always: bool, nack: bool
    ) -> None:
        self.jn = bool(journal & JN) or always  # C-02
        self.jp = bool(journal & JP)
        self.ttrq = DEFAULT_TTRQ if ttrq is None else ttrq
        self.ttbr = ttbr
        self.nack = nack
        self.c: int | None
        if ttbr is None:  # C-11
            self.c = None
        elif delay is not None:  # C-12
            self.c = ttbr + delay
        elif ttrq is None:  # C-13
            self.c = 2 * ttbr
        else:  # C-14
            self.c = ttbr + (ttbr if ttbr < ttrq else ttrq)
        self.state = "Q"
        self.message_class = 0
        self.transmitted = False
        self.heard = False
        self.nacked = False
        self.ends: list[int] = []
        self.time = 0

    def end(self, to: str, message_class: int, nack: bool = False) -> None:
        self.state = to
        self.message_class = message_class
        self.nacked = nack and self.nack
        self.ends.append(self.time)

    def fail(self, message_class: int, nack: bool = False) -> None:
        self.end("X" if self.jn else "-", message_class, nack)

    def passed(self, limit: int | None) -> bool:
        return limit is not None and self.time >= limit

    def second(self) -> None:
        """Whatever the clock does at this second."""
        before = self.ttbr is not None and self.ttbr < self.ttrq
        if self.state in "QS" and self.passed(self.ttrq):  # C-20, C-41
            self.fail(0x8002, nack=True)
        elif self.state == "Q" and before and self.passed(self.ttbr):  # C-21, C-41
            self.fail(0xC003, nack=not self.jn)
        elif self.state == "S" and not self.jn and not self.jp and self.passed(self.ttbr):  # C-41
            self.fail(0x8002, nack=True)
        elif self.state == "S" and (self.jn or self.jp) and before and self.passed(self.c):  # C-22, C-45
            self.fail(0xC003)
        elif self.state == "O" and self.passed(self.c):  # C-23, C-45
            self.fail(0xC002)

    def may_send(self) -> bool:
        limits = [self.ttrq] if self.ttbr is None else [self.ttrq, self.ttbr]  # C-18
        return self.state in "QS" and all(self.time <= limit for limit in limits)

    def sent(self) -> None:
        self.transmitted = True
        if self.state == "Q":
            self.state = "S"

    def order_ack(self) -> None:
        if self.state in "QS":
            self.transmitted = True
            if self.jn or self.jp:  # C-27
                self.state = "O"
            else:  # C-40
                self.end("-", 0)

    def final_ack(self, message_class: int) -> None:
        if self.state in "QSO":
            self.transmitted = self.heard = True
            if message_class != 0x4000:  # C-26, C-42, C-44
                self.fail(message_class)
            else:  # C-25, C-43
                self.end("J" if self.jp else "-", message_class)

    def failed(self, message_class: int) -> None:
        if self.state in ("Q" if message_class == UNENCRYPTED else "QSO"):  # C-28 to C-30, case 13
            self.fail(message_class)

    def told(self) -> tuple[str, bool]:
        k = self.message_class
        if not self.ends:
            return (STORED if self.state == "O" else WAITING), False
        if k == 0:
            return STORED, False
        if k == 0x4000:
            return RECEIVED, False
        if not self.transmitted:  # C-82, C-83
            doubt = False
        elif k in (0x8002, 0xC003) or not self.heard:  # C-84, C-86
            doubt = True
        else:  # C-82, C-85
            doubt = False
        return (DEAD_LETTERED if self.state == "X" else DISCARDED), doubt


SECONDS = st.integers(0, 15)
LIMIT = st.one_of(SECONDS, SECONDS, SECONDS, st.none())
FINAL = st.sampled_from([0x4000, 0x4000, 0x8000, 0x8002, 0x8003, 0xC000, 0xC001, 0xC002, 0xC004])
WAIT = st.tuples(st.just("wait"), st.integers(1, 30))
STEP = st.one_of(
    WAIT,
    WAIT,
    WAIT,
    st.tuples(st.just("off"), st.integers(0, 60)),
    st.just(("send",)),
    st.just(ORDER),
    st.tuples(st.just("final_ack"), FINAL),
    st.tuples(st.just("failed"), st.sampled_from([ADMINISTRATOR, UNENCRYPTED, OTHER_GUID])),
)
BEGUN = st.sampled_from([[], [("send",)], [("send",), ORDER]])  # else most end before a deadline matters


@pytest.mark.rule(
    "C-11", "C-12", "C-13", "C-14", "C-18", "C-20", "C-21", "C-22", "C-23", "C-24", "C-25", "C-26", "C-27", "C-29",
    "C-30", "C-32", "C-33", "C-34", "C-35", "C-40", "C-41", "C-42", "C-43", "C-44", "C-45", "C-80", "C-81", "C-82",
    "C-83", "C-84", "C-85", "C-86", "C-87", "C-01", "C-04", "C-05", "C-06", "C-28", "A-16", "A-17", "A-44", "B-378",
)  # fmt: skip
@settings(max_examples=400)
@given(
    journal=st.sampled_from(ALL),
    ttrq=LIMIT,
    ttbr=LIMIT,
    delay=st.none() | SECONDS,
    always=st.sampled_from([False, False, False, True]),
    nack=st.booleans(),
    begun=BEGUN,
    steps=st.lists(STEP, min_size=2, max_size=12),
)
@example(journal=0, ttrq=9, ttbr=3, delay=None, always=False, nack=True, begun=[("send",)], steps=[("wait", 5)])
def test_any_history(
    journal: int,
    ttrq: int | None,
    ttbr: int | None,
    delay: int | None,
    always: bool,
    nack: bool,
    begun: list[Any],
    steps: list[Any],
) -> None:
    """Two sources get the same history; one of them loses power at every step, and is off while the other waits."""
    model = Model(journal, ttrq, ttbr, delay, always, nack)
    values = confirm.Settings(delay, always)
    times = {"ttrq": UNSET if ttrq is None else ttrq, "ttbr": UNSET if ttbr is None else ttbr}
    steady = Source(values, journal=journal, nack=nack, **times)
    mortal = Source(values, journal=journal, nack=nack, **times)
    for name, *arguments in [*begun, *steps, ("wait", 1)]:
        if name in ("wait", "off"):
            for _ in range(arguments[0]):
                model.second()
                model.time += 1
            steady.run(model.time)
            if name == "wait":
                mortal.run(model.time)
            mortal.time = model.time
            mortal.restart()
            if name == "off":  # overdue deadlines act at start-up, before anything else
                model.second()
                steady.settle()
                mortal.settle()
        else:
            if name == "send":
                may = steady.confirmation.may_send(T0 + model.time)
                assert may == model.may_send()
                if not may:
                    continue
                name = "sent"
            getattr(model, name)(*arguments)
            steady.event(name, *arguments)
            mortal.event(name, *arguments)
            mortal.restart()
        agree(model, steady, mortal)

    steady.run(10**6)
    ended = sum(bool(entry[1] & (JOURNAL | DEAD_LETTER | DELETE)) for entry in steady.log)
    assert ended == (0 if chr(steady.confirmation.state) == "O" else 1)
    assert ended or ttbr is None, "C-24: nothing else is in progress for ever"


def agree(model: Model, steady: Source, mortal: Source) -> None:
    """Everything that can be seen of the two is what the model says."""
    found = steady.confirmation
    assert bytes(found.record) == bytes(mortal.confirmation.record), "a restart makes no difference"
    assert (chr(found.state), found.record[confirm.CLASS]) == (model.state, model.message_class)
    conclusion = found.conclusion()
    assert (conclusion.answer, conclusion.in_doubt) == model.told()
    assert conclusion.message_class == model.message_class
    wishes = found.record[confirm.MARKS] & confirm.JOURNAL_BITS
    assert wishes == model.jn + 2 * model.jp, "whatever happens, what was asked for stays"

    ends = [entry for entry in steady.log if entry[1] & (JOURNAL | DEAD_LETTER | DELETE)]
    assert [entry[0] for entry in ends] == model.ends, "it ends once, when it is due"
    assert len(ends) == (chr(found.state) in "JX-")
    assert [entry[1:] for entry in mortal.log] == [entry[1:] for entry in steady.log], "apart from the time"
    if ends:
        moves = {"J": JOURNAL, "X": DEAD_LETTER, "-": DELETE}
        assert ends[0][1] == STORE | moves[chr(found.state)] | (NACK if model.nacked else 0)
        assert found.next_deadline() is None
    elif chr(found.state) == "O" and model.ttbr is None:
        assert found.next_deadline() is None, "C-24: the only reason to have no deadline"
    else:
        due = found.next_deadline()
        assert due is not None
        assert due >= T0 + model.time, "what was due has been done"
    assert all(entry[2] == "X" for entry in steady.log if entry[1] & LOG)
    deadline = found.confirmation_deadline()
    assert (deadline is None) == (model.ttbr is None)
    if model.jn and deadline is not None and model.time > deadline - T0 and chr(found.state) != "X":
        assert conclusion.answer == RECEIVED, "C-81: the copy is absent after C"


@pytest.mark.rule(
    *(f"B-{number}" for number in (366, 367, *range(369, 374), 375, 376, 377, 379, 380, *range(382, 388)))
)
def test_message_classes_have_the_values_of_the_specification() -> None:
    names = [name for name in vars(confirm) if name.startswith(("CLASS_", "REPORT", "ACK_", "NACK_"))]
    assert {name: getattr(confirm, name) for name in names} == {
        "CLASS_NEGATIVE": 0x8000,
        "CLASS_RECEIVING": 0x4000,
        "REPORT": 0x0001,
        "ACK_REACH_QUEUE": 0x0002,
        "ACK_RECEIVE": 0x4000,
        "NACK_BAD_DST_Q": 0x8000,
        "NACK_DELETED": 0x8001,
        "NACK_REACH_QUEUE_TIMEOUT": 0x8002,
        "NACK_Q_EXCEED_QUOTA": 0x8003,
        "NACK_ACCESS_DENIED": 0x8004,
        "NACK_HOP_COUNT_EXCEEDED": 0x8005,
        "NACK_BAD_SIGNATURE": 0x8006,
        "NACK_BAD_ENCRYPTION": 0x8007,
        "NACK_COULD_NOT_ENCRYPT": 0x8008,
        "NACK_NOT_TRANSACTIONAL_Q": 0x8009,
        "NACK_NOT_TRANSACTIONAL_MSG": 0x800A,
        "NACK_UNSUPPORTED_CRYPTO_PROVIDER": 0x800B,
        "NACK_SOURCE_COMPUTER_GUID_CHANGED": 0x800C,
        "NACK_Q_DELETED": 0xC000,
        "NACK_Q_PURGED": 0xC001,
        "NACK_RECEIVE_TIMEOUT": 0xC002,
        "NACK_RECEIVE_TIMEOUT_AT_SENDER": 0xC003,
        "NACK_RECEIVE_REJECTED": 0xC004,
    }


@pytest.mark.rule("C-20", "C-41", "C-22", "B-401")
@pytest.mark.parametrize("journal", ALL)
def test_ttrq_in_packet_overrides_changed_default(journal: int) -> None:
    for sent in (False, True):
        for limit, ends in ((99, True), (100, False), (101, False)):
            record = confirm.new(T0, confirm.Settings(), journal, UNSET, 100, nack=True)
            process = confirm.Confirmation(record, confirm.Settings())
            if sent:
                process.sent()
            state = chr(process.state)
            action = process.overdue(T0 + limit)
            if not ends:  # TTBR is over first: C has the say
                assert (action, chr(process.state)) == (0, state)
                continue
            kept = journal & JN
            assert chr(process.state) == ("X" if kept else "-")
            assert action == STORE | confirm.NACK | (DEAD_LETTER if kept else DELETE)
            assert process.record[confirm.CLASS] == 0x8002
            assert process.conclusion().in_doubt == sent
