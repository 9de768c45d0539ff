"""Messages that are stored while nobody has received them yet: they take no place in memory, and each ends once."""

from __future__ import annotations

import random
from typing import Any

import power
import pytest
from confirm_cases import JN, JP
from mqqb import confirm, core
from node_board import Board, aside
from ordack.node.storage import log

HOLD = 40
COUNT = 120
PURGED, RECEIVED = 0xC001, 0x4000


def filled(count: int = COUNT, properties: dict[str, Any] | None = None, **options: Any) -> Board:
    """A board whose destination has all of so many messages, while no application takes them there."""
    board = Board(**{"hold": HOLD, "segment_size": 4000, "quota": 1 << 20, **options})
    for k in range(count):
        board.send(b"%d" % k, journal=JN, **properties or {})
    deliver(board)
    return board


def deliver(board: Board) -> list[int]:
    """What went out, by MessageIDs; all of it is stored."""
    seen: list[int] = []
    board.node.backlog.refill()
    while True:
        packets = board.transmit()
        if not packets:
            return seen
        seen += [packet.user.fields[core.USER_MESSAGE_ID] for packet in packets]
        last = packets[-1].transaction
        board.order_ack(last.tx_sequence_id, last.fields[core.TX_NUMBER])
        board.node.backlog.refill()


def expire(board: Board) -> None:
    """All that is due, and it is told."""
    while board.told is not None and board.node.deadlines.check():
        assert len(board.node.outbox.handles()) <= HOLD + len(letters(board))


def letters(board: Board) -> list[int]:
    return [letter.message_id for letter in board.node.dead_letters()]


@pytest.mark.rule("C-01", "C-04", "C-09", "C-24")
@pytest.mark.parametrize("journal", [JN, JP])
def test_unreceived_messages_do_not_block_later_messages(journal: int) -> None:
    board = Board(hold=HOLD)
    for k in range(COUNT):
        board.send(b"%d" % k, journal=journal)
    assert deliver(board) == list(range(1, COUNT + 1))
    assert board.node.waiting == 0
    assert board.queue.held() == 0
    assert board.node.outbox.handles() == []
    assert board.node.outbox.live == COUNT
    assert board.state(1) == board.state(COUNT) == "O"
    assert aside(board.node, board.queue) == list(range(1, COUNT + 1))
    assert board.queue.peer._is_needed(), "a FinalAck is awaited"


@pytest.mark.rule("C-26", "C-33", "C-35", "B-391")
@pytest.mark.parametrize("how", power.WAYS)
def test_each_purge_makes_one_dead_letter_over_restarts(how: str) -> None:
    board = filled()
    dice = power.Dice(5)
    left = list(range(1, COUNT + 1))
    ended: dict[int, int] = {}
    while left:
        number = left.pop(dice.below(len(left)) if len(left) % 3 else 0)
        board.final_ack(number, PURGED if number % 2 else RECEIVED)
        if number % 2:
            ended[number] = PURGED
            assert board.told[-1] == (number, PURGED)
            assert letters(board) == [number]
            assert board.node.read(board.node.dead_letters()[0]).properties.body == b"%d" % (number - 1)
            board.node.take(board.node.dead_letters()[0])
        board.final_ack(number, PURGED)  # once more
        if len(left) % 29 == 0:
            board.restart(how)
            assert board.node.outbox.live == len(left)
            assert board.node.waiting == 0
    assert len(board.told) == len(ended) == COUNT // 2
    assert dict(board.told) == ended
    assert board.node.outbox.live == 0
    assert not board.queue.peer._is_needed()


@pytest.mark.rule("C-26", "B-391")
def test_dead_letters_stand_in_the_order_of_their_numbers() -> None:
    board = filled(20, hold=100)
    for number in (9, 3, 17, 4):
        board.final_ack(number, PURGED)
    assert letters(board) == [3, 4, 9, 17]
    board.restart()
    assert letters(board) == [3, 4, 9, 17]


@pytest.mark.rule("C-25", "C-26", "C-33", "B-245")
@pytest.mark.parametrize("message_class", [RECEIVED, PURGED])
def test_final_ack_settles_message_with_order_ack_lost(message_class: int) -> None:
    """It waits on the flash again, behind as many as are in memory, and would never hear of its FinalAck once more."""
    board = filled()
    board.restart()
    assert board.queue.logged.deferred
    waiting = board.node.waiting
    board.final_ack(COUNT, message_class)
    assert board.node.waiting == waiting - 1
    assert letters(board) == [COUNT] * (message_class == PURGED)
    board.restart()
    assert COUNT not in deliver(board)
    assert board.state(COUNT) == ("X" if message_class == PURGED else "-")
    assert board.node.waiting == 0


@pytest.mark.rule("B-020", "B-241", "B-245", "C-35")
def test_a_final_ack_for_another_message_of_that_number_is_none() -> None:
    for is_cut in (False, True):
        board = filled()
        if is_cut:
            board.restart()
        assert (board.queue.logged.deferred > 0) == is_cut
        board.numbers[COUNT] = board.numbers[COUNT][0], 7777
        board.final_ack(COUNT, PURGED)
        assert (board.told, board.node.outbox.live) == ([], COUNT)


@pytest.mark.rule("C-14", "C-23", "C-33", "C-86", "B-391")
@pytest.mark.parametrize("restarts", [False, True])
def test_each_expires_once_in_the_order_of_numbers(restarts: bool) -> None:
    """Those with other times between them, or none, stay; and few are in memory at once."""
    board = Board(hold=HOLD, segment_size=4000, quota=1 << 20)
    for k in range(COUNT):
        board.send(b"", journal=JN, ttbr=(100, 500, confirm.UNSET)[k % 3])
    deliver(board)
    board.node.commit_now()
    for time, every in ((199, []), (200, [0]), (999, [0]), (1000, [0, 1]), (5000, [0, 1])):
        board.time = time
        if restarts:
            board.node.commit_now()  # it was told
            board.restart()
        expire(board)
        expected = [k + 1 for rest in every for k in range(COUNT) if k % 3 == rest]
        found = [number for number, _ in board.told]
        assert sorted(found) == sorted(expected)
        assert found == expected or not expected, "out of order"
    assert {message_class for _, message_class in board.told} == {0xC002}
    assert board.node.outbox.live == len(letters(board)) + COUNT // 3


@pytest.mark.rule("C-23")
def test_expiry_waits_until_earlier_failures_are_reported() -> None:
    board = filled(properties={"ttbr": 10})
    board.time = 100
    counts = []
    while len(board._told) < COUNT:
        assert board.node.deadlines.check()
        assert not board.node.deadlines.check(), "nobody has heard of those"
        counts.append(len(board.told))
    assert max(second - first for first, second in zip([0, *counts], counts, strict=False)) < 32
    assert [number for number, _ in board.told] == list(range(1, COUNT + 1))


@pytest.mark.rule("C-09", "C-23", "C-37")
def test_unreceived_messages_fill_log_until_they_expire() -> None:
    board = Board(hold=HOLD, segment_size=2000, capacity=20000)
    accepted = 0
    try:
        while accepted < 1000:
            board.send(b"", journal=JN, ttbr=100)
            accepted += 1
            deliver(board)
    except log.OutboxFull:
        pass
    assert 40 < accepted < 100
    assert board.node.waiting == 0
    board.time = 300
    board.send(b"", journal=JN, ttbr=100)
    assert len(board.told) > 10, "that has made room"


# ---- whoever asks -----------------------------------------------------------------------------------


@pytest.mark.rule("C-80", "C-85", "B-371", "C-29")
def test_flash_only_message_reports_its_outcome() -> None:
    board = Board(hold=8)
    sent = [board.send(b"%d" % k, journal=JN) for k in range(20)]
    assert not sent[3].is_settled()  # asked before
    deliver(board)
    assert sent[5].conclusion().answer == "stored at destination"  # asked meanwhile
    found = board.node.find(7)
    assert found is not None
    assert not found.is_ended()
    assert [board.node.read(one).properties.body for one in (found, sent[5], sent[14])] == [b"6", b"5", b"14"]
    for number, message_class in ((4, PURGED), (6, RECEIVED), (7, PURGED), (8, PURGED), (9, RECEIVED)):
        board.final_ack(number, message_class)
    answers = [sent[k].conclusion().answer for k in (3, 5, 6, 7, 8)]
    assert answers == ["dead-lettered", "received", "dead-lettered", "discarded", "received"], "a quarter of `hold`"
    assert [sent[k].is_received() for k in (3, 5, 6, 7, 8)] == [False, True, False, False, True]
    assert found.conclusion().message_class == PURGED
    board.node.delete(sent[11])
    assert (sent[11].conclusion().message_class, board.told[-1]) == (0x8001, (12, 0x8001))
    with pytest.raises(ValueError, match="not on its way"):
        board.node.delete(sent[11])
    assert not any(board.queue.followed.get(number) for number in (4, 6, 7, 8, 9, 12)), "memory"


# ---- the clock, memory, damage ----------------------------------------------------------------------


@pytest.mark.rule("C-23", "C-33")
def test_message_accepted_before_clock_set_never_expires_early() -> None:
    board = Board(hold=HOLD, segment_size=4000, quota=1 << 20)
    known = board.node.clock.time
    board.node.clock.time = lambda: 0
    for _ in range(10):
        board.send(b"", journal=JN, ttbr=100)
    board.node.clock.time = known
    board.time = 50
    board.node.deadlines.check()  # T0 is now
    deliver(board)
    board.node.commit_now()
    for time, count in ((249, 0), (250, 10)):
        board.time = time
        board.restart()
        expire(board)
        assert len(board.told) == count


def test_corrupt_record_loses_only_itself() -> None:
    """It is said that it is lost; the others end as ever."""
    dice = random.Random(4)
    for _ in range(12):
        board = filled(60, segment_size=2000)
        board.node.commit_now()
        name = sorted(board.disk.files)[2]
        data = board.disk.files[name].data
        place = dice.randrange(400, len(data) - 10)
        data[place] ^= 0x5A
        for number in range(1, 61):
            board.final_ack(number, PURGED)
        lost = 60 - len(board.told)
        assert lost <= 1
        assert board.node.damage
        if lost:
            (number,) = set(range(1, 61)) - {number for number, _ in board.told}
            assert f"message {number} cannot be read" in " ".join(board.node.damage)
        assert sum(segment.flash_only for segment in board.node.outbox.log.segments) == 0


@pytest.mark.parametrize("seed", range(6))
def test_a_board_with_messages_of_all_kinds_ends_each_once(seed: int) -> None:
    """Accept, send, hear, expire, restart, in any order; a few queues' worth of segments, so that they are copied."""
    dice = random.Random(seed)
    board = Board(hold=dice.choice((4, 8, 20)), segment_size=dice.choice((900, 2500)), capacity=14000, quota=1 << 20)
    open_: set[int] = set()
    stored: set[int] = set()
    ended: dict[int, int] = {}
    for _ in range(250):
        what = dice.randrange(10)
        if what < 4:
            journal = dice.choice((0, JN, JP))
            try:
                message = board.send(bytes(dice.randrange(60)), journal=journal)
            except log.OutboxFull:
                continue
            if journal:
                open_.add(message.message_id)
        elif what < 7:
            stored |= open_.intersection(deliver(board)) - set(ended)
        elif what < 9 and stored:
            for number in dice.sample(sorted(stored), min(len(stored), dice.randrange(1, 6))):
                stored.remove(number)
                ended[number] = dice.choice((RECEIVED, PURGED))
                board.final_ack(number, ended[number])
        else:
            board.restart(dice.choice(power.WAYS))
            for letter in board.node.dead_letters() + board.node.journal():
                board.node.take(letter)
        there = set(aside(board.node, board.queue))
        assert there <= open_ - set(ended)
        assert board.told is not None
    board.node.backlog.refill()
    deliver(board)
    assert set(aside(board.node, board.queue)) == open_ - set(ended)
    told = [number for number, _ in board.told]
    assert sorted(set(told)) == sorted(number for number in ended if ended[number] == PURGED)
