"""The board's confirmation process on MicroPython and CPython: a node over a disk that loses power, without a network.

Prints `N passed, N failed`.
"""

import asyncio
import os
import sys

sys.path.insert(0, "tests/mp")

import confirm_cases
import power
from confirm_cases import JN, JP, T0
from engine_cases import run_calls, tests_of
from mqqb import build, compose, confirm, core, names
from node_board import LINE, Board
from ordack.node import Node, clock, node
from ordack.node.storage import log


def check(case, restarts=False):
    """One case of confirmation.md section 9; with a restart after every step, or none."""
    _, settings, properties, events, end, log, answer, in_doubt = case
    board = Board(confirmation=confirm.Settings(**settings))
    message = board.send(**properties)
    seen = []

    def step():
        nonlocal message
        board.node.notices.deliver()
        record = message.current()
        now = (board.time, chr(record[confirm.STATE]), record[confirm.CLASS])
        if now[1:] != (seen[-1][1:] if seen else ("Q", 0)):
            seen.append(now)
        if restarts:
            board.node.commit_now()
            board.restart()
            message = board.node.find(1) or message

    step()
    for event in events:
        board.run(event[0], step)
        if event[1] == "sent":
            assert len(board.transmit()) == 1
        elif event[1] == "order_ack":
            board.order_ack(board.queue.stream.table[0].tx_sequence_id, 1)
        elif event[1] == "final_ack":
            late = chr(message.current()[confirm.STATE]) == "X"
            assert board.final_ack(1, event[2])
            assert board.node.stats.late == late
        else:
            board.node.delete(message)
        step()
    board.run(end, step)
    board.node.deadlines.check()
    step()
    assert seen == [entry[:1] + entry[2:] for entry in log if entry[1] != confirm.LOG], seen
    conclusion = message.conclusion()
    assert (conclusion.answer, conclusion.in_doubt) == (answer, in_doubt), (conclusion.answer, conclusion.in_doubt)
    failed = answer in (confirm.DEAD_LETTERED, confirm.DISCARDED)
    assert board.told == ([(1, conclusion.message_class)] if failed else [])
    kept = [message] if answer == confirm.DEAD_LETTERED else []
    assert board.node.dead_letters() == kept
    assert board.node.journal() == ([message] if seen and seen[-1][1] == "J" else [])
    if kept:
        properties = board.node.read(message).properties
        assert properties.fields[core.PROPERTIES_MESSAGE_CLASS] == conclusion.message_class  # B-394
    assert board.node.waiting == (answer == confirm.WAITING)


def test_case_6_not_sent_when_the_link_comes_up():
    for journal in (JN, 0):
        board = Board()
        board.send(journal=journal, ttrq=60, ttbr=10)
        board.time = 11
        assert board.transmit() == []
        assert board.told == [(1, 0xC003)]
        assert board.queue.stream.table == []


def test_case_11_jn_is_in_the_packet():
    board = Board(confirmation=confirm.Settings(xact_dead_letter_always=True))
    board.send(ttbr=10)
    assert board.transmit()[0].user.fields[core.USER_FLAGS] & core.USER_JN
    board.store()
    assert board.state() == "O"


def test_case_14_dead_lettered_at_start_up():
    """And in each state, whatever of it was durable."""
    for how in power.WAYS:
        for state in "QSO":
            board = Board()
            board.send(journal=JN, ttrq=1000, ttbr=100)
            if state != "Q":
                board.transmit()
            if state == "O":
                board.store()
                board.node.commit_now()
            board.time = 3600
            board.restart(how)
            letter = board.node.dead_letters()[0]
            found = (letter.conclusion().message_class, letter.conclusion().in_doubt)
            # T0 + TTRQ is over too: it is after C, and after T0 + TTBR
            assert found == {"Q": (0xC003, False), "S": (0xC003, True), "O": (0xC002, True)}[state], found
            assert board.told == [(1, found[0])]


def test_what_is_held_is_not_sent_any_more_and_its_gap_is_bridged():
    board = Board()
    board.send(b"1", journal=JN, ttbr=10)
    board.send(b"2", journal=JN)
    assert [packet.transaction.fields[core.TX_PREVIOUS] for packet in board.transmit()] == [0, 1]
    board.time = 11
    packets_ = board.transmit()
    assert [packet.user.fields[core.USER_MESSAGE_ID] for packet in packets_] == [2]
    assert packets_[0].transaction.fields[core.TX_PREVIOUS] == 0
    assert board.state() == "S", "C is later"
    assert board.node.waiting == 2
    board.restart()
    assert [packet.user.fields[core.USER_MESSAGE_ID] for packet in board.transmit()] == [2]
    board.time = 19
    board.node.deadlines.check()
    assert board.told == []
    board.time = 20
    board.node.deadlines.check()
    assert board.told == [(1, 0xC003)]
    assert board.node.dead_letters()[0].conclusion().in_doubt
    assert board.node.waiting == 1


def test_what_is_held_can_still_be_confirmed():
    board = Board()
    board.send(b"1", journal=JN, ttbr=10)
    board.send(b"2", journal=JN)
    sequence = board.transmit()[0].transaction.tx_sequence_id
    board.time = 11
    assert not board.node.backlog.transmit(board.queue, board.queue.stream.table[0], memoryview(b""))
    board.order_ack(sequence, 2)
    assert (board.state(1), board.state(2), board.node.waiting) == ("O", "O", 0)
    board.send(b"3", journal=JN, ttbr=10)
    board.transmit()
    board.time = 22
    assert board.transmit() == []
    assert board.final_ack(3, 0x4000)
    assert (board.state(3), board.node.waiting) == ("-", 0)


def test_what_is_held_does_not_come_back_in_the_way_of_a_newer_sequence():
    """Without a clock after the restart nothing else would keep it out of the table."""
    board = Board()
    board.send(b"1", journal=JN, ttbr=10)
    board.transmit()
    board.time = 11
    board.transmit()
    board.send(b"2")
    board.transmit()
    board.time = -T0
    board.restart()
    assert [packet.user.fields[core.USER_MESSAGE_ID] for packet in board.transmit()] == [2]
    assert board.state() == "S"


def times(packet):
    """TimeToReachQueue and TimeToBeReceived of a message."""
    return packet.base.fields[core.BASE_TIME_TO_REACH_QUEUE], packet.user.fields[core.USER_TIME_TO_BE_RECEIVED]


def test_nothing_expires_by_a_clock_that_is_not_set():
    board = Board(time=-T0)
    board.send(b"1", journal=JN, ttrq=5, ttbr=10)
    board.send(b"2", ttrq=5)
    board.time += 1000
    board.node.deadlines.check()
    seen = board.transmit()
    assert [times(packet) for packet in seen] == [(compose.FOREVER, compose.FOREVER)] * 2, "nobody could measure them"
    board.restart()
    board.time += 1000
    board.node.deadlines.check()
    assert board.told == []
    board.time = 0  # somebody sets it
    assert len(board.transmit()) == 2
    board.node.deadlines.check()
    board.node.commit_now()
    board.time = 3
    board.restart()
    seen = board.transmit()
    assert [packet.user.fields[core.USER_SENT_TIME] for packet in seen] == [T0, T0], "T0 is known, and stays"
    assert [times(packet) for packet in seen] == [(5, 10), (5, compose.FOREVER)]
    board.time = 5
    board.node.deadlines.check()
    assert sorted(board.told) == [(1, 0x8002), (2, 0x8002)]


def test_a_clock_that_is_lost_again_ends_nothing():
    board = Board()
    board.send(b"1", journal=JN, ttrq=5)
    board.time = 100 - T0
    board.restart()
    assert len(board.transmit()) == 1
    assert board.told == []
    board.time = 5
    board.node.deadlines.check()
    assert board.told == [(1, 0x8002)]


def test_a_full_quota_discards_the_copy_and_says_so():
    """C-37, B-397: of each queue by itself, by bytes and by count, over restarts; the rest goes on."""
    size = len(build.user_message(power.GUID, 1, names.parse_format_name(LINE), b"", delivery="transactional"))
    for options in ({"quota": 2 * size}, {"hold": 8}):
        board = Board(**options)
        for k in range(4):
            board.send(journal=JN | JP)
            board.send(journal=JN | JP)
            board.store()
            board.final_ack(2 * k + 1, 0xC001)
            board.final_ack(2 * k + 2, 0x4000)
            if k == 0:
                board.restart()
        node = board.node
        assert [message.message_id for message in node.dead_letters()] == [1, 3]
        assert [message.message_id for message in node.journal()] == [2, 4]
        assert board.told == [(1, 0xC001), (3, 0xC001), (5, 0xC001), (7, 0xC001)]
        assert node.outbox.live == 4
        node.take(node.dead_letters()[0])
        for message_id in (9, 10):
            board.send(journal=JN)
            board.store()
            board.final_ack(message_id, 0xC001)
        assert [message.message_id for message in board.node.dead_letters()] == [3, 9]


def test_a_dead_letter_stays_until_it_is_taken():
    """B-391, B-394, C-34, C-35, C-85, C-86: the whole message, its class, its mark; nothing else changes it."""
    board = Board()
    board.send(b"one", journal=JN, label="first", ttbr=10)
    board.send(b"two", journal=JN, label="second", ttbr=10)
    board.store()
    assert board.final_ack(1, 0xC002)
    board.time = 20
    board.node.deadlines.check()
    for _ in range(2):
        letters = board.node.dead_letters()
        assert [letter.conclusion().in_doubt for letter in letters] == [False, True], "one class, two conclusions"
        text = "not received in time (class 0xC002)"
        assert [letter.conclusion().text for letter in letters] == [text, text + ", in doubt"]
        for letter, label in zip(letters, ("first", "second")):
            packet = board.node.read(letter)
            assert (packet.properties.fields[core.PROPERTIES_MESSAGE_CLASS], packet.properties.label) == (0xC002, label)
        assert bytes(packet.properties.body) == b"two"
        board.node.commit_now()
        board.restart()
    for message_class, late in ((0x4000, 1), (0xC001, 1), (0x4000, 2)):
        assert board.final_ack(2, message_class)
        assert board.node.stats.late == late
        assert len(board.node.dead_letters()) == 2
    letter = board.node.dead_letters()[1]
    board.node.take(letter)
    assert letter.conclusion().answer == confirm.DEAD_LETTERED
    for _ in range(2):
        assert [letter.message_id for letter in board.node.dead_letters()] == [1]
        assert board.node.find(2) is None
        assert board.final_ack(2, 0x4000)
        assert board.node.stats.late in (0, 2)
        board.restart()
    assert board.node.outbox.live == 1


def test_what_is_on_its_way_cannot_be_taken_and_what_has_ended_not_deleted():
    board = Board()
    message = board.send(journal=JN)
    for state in "QSO":
        assert board.state() == state
        try:
            board.node.take(message)
            raise AssertionError("it should be refused")
        except ValueError:
            pass
        if state == "Q":
            board.transmit()
        if state == "S":
            board.store()
    board.node.delete(message)
    try:
        board.node.delete(message)
        raise AssertionError("it should be refused")
    except ValueError:
        pass
    board.restart()
    assert board.state() == "X"
    assert board.node.dead_letters()[0].conclusion().message_class == 0x8001
    for k in range(2):
        board.node.delete(board.send())
        assert board.state(2 + k) == "-"
        board.restart()


def test_a_final_ack_is_acknowledged_only_when_its_outcome_is_durable():
    for message_class, journal in ((0x4000, JP), (0x4000, JN), (0x8003, JN), (0x8003, 0)):
        board = Board()
        board.send(journal=journal)
        board.transmit()

        def full(disk, step, data):
            if step in ("append", "sync"):
                raise OSError(28)

        board.disk.before = full
        for _ in range(2):
            assert not board.final_ack(1, message_class)
        board.disk.before = None
        assert board.final_ack(1, message_class), "it came again"
        board.restart()
        assert board.state() == {(0x4000, JP): "J", (0x8003, JN): "X"}.get((message_class, journal), "-")


def test_each_start_begins_a_sequence_and_the_older_one_goes_first():
    """A-22, B-079, B-093, B-426."""
    for time in (0, -T0):
        board = Board(time=time)
        for body in (b"1", b"2"):
            board.send(body)
        board.restart()
        board.send(b"3")
        board.send(b"4")
        numbers = []
        while board.node.waiting:
            seen = board.transmit()
            headers = [packet.transaction for packet in seen]
            numbers += [(header.tx_sequence_id, header.fields[core.TX_NUMBER]) for header in headers]
            board.order_ack(*numbers[-1])
        assert [number[1] for number in numbers] == [1, 2, 1, 2]
        assert numbers == sorted(numbers)
        assert numbers[1][0] == numbers[0][0] < numbers[2][0] == numbers[3][0]
        if not time:
            assert numbers[0][0] >> 32 >= T0


def test_a_copy_that_is_put_back_is_told_by_what_its_destination_has():
    board = Board()
    board.send(b"0")
    board.send(b"1")
    sequence = board.queue.stream.tx_sequence_id
    for behind in ((sequence, 1), (sequence, 2), (sequence, 2), (sequence - 1, 9), (1, 1)):
        board.order_ack(*behind)
    assert board.node.stats.ahead == 0
    for offset, number in ((0, 2), (1, 1), (5 << 32, 1)):
        board.send(b"1")
        sequence = board.queue.stream.tx_sequence_id
        board.node.commit_now()
        board.restart()
        board.order_ack(sequence + offset, number)
        assert board.node.stats.ahead == 1
        assert board.node.waiting == (offset > 1), "of this stream it has all that the copy knows"
        board.send(b"2")
        assert board.queue.stream.tx_sequence_id >> 32 > sequence >> 32
        board.store()
        board.store()
        assert board.node.waiting == 0, (offset, board.node.waiting)


def test_what_an_old_copy_has_of_an_ended_sequence_ended_in_a_way_that_is_not_known():
    """B-426: the destination has gone on to a later sequence; whether it took or refused these, nobody can say."""
    for journal in (0, JN):
        board = Board()
        board.send(b"refused", journal=journal)
        sequence = board.queue.stream.tx_sequence_id
        board.node.commit_now()
        copy = board.disk.after_cut(power.KEEP_SYNCED, power.Dice(1))
        board.transmit()
        board.final_ack(1, 0x8003)
        assert board.queue.stream.tx_sequence_id == sequence + 1, "it has rolled"
        board.told.clear()
        board.open(copy)
        message = board.node.find(1)
        board.transmit()
        board.order_ack(sequence + 1, 1)
        assert message.is_settled()
        assert not message.is_stored()
        conclusion = message.conclusion()
        assert (conclusion.message_class, conclusion.in_doubt) == (0x8002, True)
        assert board.state() == ("X" if journal else "-")
        assert board.told == [(1, 0x8002)]
        assert board.node.waiting == 0
        assert board.node.stats.stored == 0


def test_what_an_old_copy_has_of_an_earlier_start_does_not_wait_for_ever():
    """B-426: the life that is lost went on to a sequence of which the copy knows nothing, so its destination refuses
    what the copy sends again, and with it all that comes behind (B-093, B-275)."""
    board = Board()
    old = board.send(b"1").message_id
    copy = board.disk.after_cut(power.KEEP_SYNCED, power.Dice(1))
    board.time = 10
    board.restart()
    board.send(b"2")
    lost = board.queue.stream.tx_sequence_id
    board.time = 20
    board.open(copy)
    message = board.node.find(old)
    stream = board.queue.stream
    board.transmit()
    stream.sent(stream.table[0], board.node.clock.now())
    board.order_ack(lost, 1)
    assert not message.is_settled(), "it may have come late"
    stream._resend_time += 60000
    board.order_ack(lost, 1)
    assert message.is_settled()
    assert not message.is_stored()
    conclusion = message.conclusion()
    assert (conclusion.message_class, conclusion.in_doubt) == (0x8002, True)
    board.send(b"3")
    assert board.queue.stream.tx_sequence_id > lost
    board.store()
    assert board.node.waiting == 0


def test_two_copies_never_use_the_same_numbers():
    """Not even without a clock, when both have counted as many starts (B-020, B-079, A-22)."""
    board = Board(time=-T0)
    board.send(b"1")
    copy = board.disk.after_cut(power.KEEP_SYNCED, power.Dice(1))
    log.jump = os.urandom
    try:
        used = []
        for _ in range(2):
            for erased in (False, True):
                board.open(power.Disk() if erased else copy.after_cut(power.KEEP_ALL, power.Dice(1)))
                before = board.node.last_message_id
                assert before == (0 if erased else 1), "the last one that was accepted"
                message = board.send(b"2")
                assert board.node.last_message_id == message.message_id
                used.append((message.message_id, board.queue.stream.tx_sequence_id))
                board.restart()
                assert board.node.last_message_id == message.message_id, "it counts after a restart, too"
                board.restart()
                assert board.node.last_message_id == message.message_id
        assert len({one[0] for one in used}) == len({one[1] for one in used}) == 4, used
    finally:
        log.jump = bytes


def test_a_second_node_of_a_program_takes_the_outbox_and_the_first_accepts_nothing_more():
    """Both wrote over each other: of ten messages that were accepted seven were left."""
    disk = power.Disk()
    disk.place = "/outbox"
    first = Node("", files=disk)
    line = first.queue(LINE)
    line.put(b"1")
    waits = line.put(b"2")
    said = ""
    second = Node("", files=disk)
    for refused in (lambda: line.put(b"lost"), first.poll, lambda: asyncio.run(line.send(b"lost"))):
        try:
            refused()
        except log.OutboxError as error:
            said = str(error)
        assert "another Node" in said, said
        said = ""
    assert "another Node" in str(waits.failure)
    second.queue(LINE).put(b"3")
    first.close_now()
    second.queue(LINE).put(b"4")
    second.close_now()
    third = Node("", files=disk)
    assert [bytes(third.read(message).properties.body) for message in third.outbox.handles()] == [
        b"1",
        b"2",
        b"3",
        b"4",
    ]
    third.close_now()
    assert "/outbox" not in node.opened


def test_an_emptied_folder_is_another_queue_manager():
    nodes = [Node("", files=power.Disk()) for _ in range(2)]
    assert nodes[0].guid != nodes[1].guid
    disk = power.Disk()
    named = Node("", files=disk, name="press 7")
    asyncio.run(named.queue(LINE).send(b"1"))
    asyncio.run(named.queue(LINE).send(b"2", label="own"))
    assert [named.read(named.find(k)).properties.label for k in (1, 2)] == ["press 7", "own"]
    again = Node("", files=disk.after_cut(power.KEEP_SYNCED, power.Dice(1)))
    assert (again.guid, again.outbox.name) == (named.guid, "press 7")
    try:
        said = str(Node("", files=power.Disk(), name="x" * 101))
    except ValueError as error:
        said = str(error)
    assert "100 bytes" in said


def test_who_is_ahead_is_told_once_and_overtaken():
    """B-426: also by a time stamp that is above the time; also after a restart."""
    board = Board()
    board.send(b"1")
    sequence = board.queue.stream.tx_sequence_id
    peer = board.queue.peer
    assert not peer.reason
    for ahead in ((sequence + (9 << 32), 5), (sequence + (9 << 32), 6)):
        board.order_ack(*ahead)
        assert board.node.stats.ahead == 1
        assert peer.reason == log.AHEAD
    peer.end(0, "a cut")
    assert peer.reason == log.AHEAD + "; a cut"
    board.send(b"2")
    assert board.queue.stream.tx_sequence_id > sequence + (9 << 32)
    board.restart()
    assert board.node.outbox.ahead, "doctor reads it"
    board.order_ack(0xFFFFFFFF << 32 | 5, 1)
    board.send(b"3")  # no such time stamp can be overtaken
    assert board.node.stats.ahead == 0


def test_what_cannot_be_held_is_taken_later_in_order():
    """Memory for two messages under way: the others wait on the flash, over a restart and in the order of numbers."""
    board = Board(segment_size=800, hold=4)
    sent = [board.send(b"%d" % k, journal=JN if k % 5 == 0 else 0).message_id for k in range(14)]
    assert len(board.queue.stream.table) <= 3
    numbers = []
    for turn in range(40):
        assert board.node.waiting == board.queue.logged.deferred + len(board.queue.stream.table)
        if not board.node.waiting:
            break
        for packet in board.transmit():
            number = packet.transaction.tx_sequence_id, packet.transaction.fields[core.TX_NUMBER]
            numbers.append(number + (bytes(packet.properties.body),))
            if turn != 3:
                board.order_ack(*number)
        if turn in (1, 3):
            board.restart()
        for k in sent:
            if board.state(k) == "O":
                board.final_ack(k, 0x4000)
        if turn == 5:
            sent.append(board.send(b"14").message_id)
        board.node.backlog.refill()
        assert board.queue.held() <= 4
    assert board.node.waiting == 0
    first = [number for k, number in enumerate(numbers) if number not in numbers[:k]]
    assert [number[1] for number in first] == list(range(1, 15)) + [1], (
        numbers
    )  # the last one after a start: another sequence
    assert [number[2] for number in first] == [b"%d" % k for k in range(15)]
    assert board.node.outbox.live == 0


# A board's clock says no time from 2097 on, and the others play until then.
PLAYED = [case for case in confirm_cases.CASES if T0 + case[4] < clock.CLOCK_END]
CASES = [(case[0], check, (case,)) for case in PLAYED]
CASES += [(case[0] + ", with restarts", check, (case, True)) for case in PLAYED]
OTHERS = tests_of(globals())


if __name__ == "__main__":
    calls = [(name, test, arguments, {}) for name, test, arguments in CASES]
    run_calls(calls + [(other.__name__, other, (), {}) for other in OTHERS])
