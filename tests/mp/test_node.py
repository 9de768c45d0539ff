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
from engine_cases import run_calls
from mqqb import build, compose, confirm, core, lives, names
from node_board import LINE, Board, aside
from ordack.node import Node, clock, node, outcomes
from ordack.node.storage import log
from virtual import Nowhere, Started


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


def case_6_not_sent_when_the_link_comes_up():
    for journal in (JN, 0):
        board = Board()
        board.send(journal=journal, ttrq=60, ttbr=10)
        board.time = 11
        assert board.transmit() == []
        assert board.told == [(1, 0xC003)]
        assert board.queue.stream.table == []


def case_11_jn_is_in_the_packet():
    board = Board(confirmation=confirm.Settings(xact_dead_letter_always=True))
    board.send(ttbr=10)
    assert board.transmit()[0].user.fields[core.USER_FLAGS] & core.USER_JN
    board.store()
    assert board.state() == "O"


def case_14_dead_lettered_at_start_up():
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


def what_is_held_is_not_sent_any_more_and_its_gap_is_bridged():
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


def what_is_held_can_still_be_confirmed():
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


def what_is_held_does_not_come_back_in_the_way_of_a_newer_sequence():
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


def nothing_expires_by_a_clock_that_is_not_set():
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
    assert [times(packet) for packet in seen] == [
        (5, 10),
        (5, compose.FOREVER),
    ]
    board.time = 5
    board.node.deadlines.check()
    assert sorted(board.told) == [(1, 0x8002), (2, 0x8002)]


def a_clock_that_is_lost_again_ends_nothing():
    board = Board()
    board.send(b"1", journal=JN, ttrq=5)
    board.time = 100 - T0
    board.restart()
    assert len(board.transmit()) == 1
    assert board.told == []
    board.time = 5
    board.node.deadlines.check()
    assert board.told == [(1, 0x8002)]


def a_full_quota_discards_the_copy_and_says_so():
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


def a_dead_letter_stays_until_it_is_taken():
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


def what_is_on_its_way_cannot_be_taken_and_what_has_ended_not_deleted():
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


def a_final_ack_is_acknowledged_only_when_its_outcome_is_durable():
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


def each_start_begins_a_sequence_and_the_older_one_goes_first():
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


def a_copy_that_is_put_back_is_told_by_what_its_destination_has():
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


def what_an_old_copy_has_of_an_ended_sequence_ended_in_a_way_that_is_not_known():
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


def what_an_old_copy_has_of_an_earlier_start_does_not_wait_for_ever():
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


def two_copies_never_use_the_same_numbers():
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


def a_second_node_of_a_program_takes_the_outbox_and_the_first_accepts_nothing_more():
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


def an_emptied_folder_is_another_queue_manager():
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


def who_is_ahead_is_told_once_and_overtaken():
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


def what_cannot_be_held_is_taken_later_in_order():
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


def the_handle_of_a_message_on_the_flash_says_what_became_of_it():
    """Asked before, while, and after it is in memory; one is given up, one dead-lettered, one discarded."""
    board = Board(hold=4)
    sent = [board.send(b"%d" % k, journal=JN if k == 7 else 0) for k in range(12)]
    early, found, given_up = sent[6], board.node.find(9), sent[10]
    assert not early.is_settled()
    assert bytes(board.node.read(found).properties.body) == b"8"
    assert board.node.find(99) is None
    board.node.delete(given_up)
    assert (given_up.conclusion().answer, given_up.is_stored()) == ("discarded", False)
    assert board.told == [(11, 0x8001)]
    assert board.node.waiting == 11
    for _ in range(40):
        for packet in board.transmit():
            number = packet.transaction.tx_sequence_id, packet.transaction.fields[core.TX_NUMBER]
            message_id = packet.user.fields[core.USER_MESSAGE_ID]
            if message_id == 5:
                board.node.backlog.refill()
                assert sent[6].is_settled() is False
            board.order_ack(*number)
            if message_id == 8:
                board.final_ack(8, 0xC001)
        board.node.backlog.refill()
    assert board.node.waiting == 0
    for k, message in enumerate(sent):
        assert (message.is_settled(), message.is_ended()) == (True, True), k
        assert message.is_stored() == (k != 10), k
    assert found.is_stored()
    assert board.node.find(9) is None
    assert sent[7].conclusion().answer == "dead-lettered"
    assert [letter.message_id for letter in board.node.dead_letters()] == [8]
    board.node.take(sent[7])
    assert board.node.dead_letters() == []
    assert board.transmit() == []


def _ask_while_one_fails(asks, expire):
    board = Board(hold=8)
    first = [board.send(b"%d" % k, ttrq=5 if expire else 1000) for k in range(10)]
    seen = []
    board.node.notices._on_failed = lambda one: asks and seen.extend([message.is_stored() for message in first])
    for _ in range(20):
        packets = board.transmit()
        if expire:
            board.time = 10
            board.node.deadlines.check()
        elif packets:
            lives._end(board.node.outcomes, board.queue, board.queue.stream.tx_sequence_id + 1, 0)
        board.node.backlog.refill()
        board.node.notices.deliver()
    assert board.node.waiting == board.node.outbox.live == 0
    assert not any(seen)
    assert [message.is_stored() for message in first] == [False] * 10


def who_asks_about_others_while_one_fails_gets_the_same_answer_as_later():
    """Several end at once: by their time, and because the destination has passed on to a later sequence."""
    for asks in (False, True):
        for expire in (False, True):
            _ask_while_one_fails(asks, expire)


def two_handles_of_one_message_say_the_same():
    board = Board(hold=4)
    sent = [board.send(b"%d" % k) for k in range(8)]
    found = board.node.find(8)
    assert found is not sent[7]
    assert not sent[7].is_settled()
    told = []
    board.node._tasks = Started()

    async def wait(message):
        told.append(await message.stored())

    async def deliver():
        waiting = [asyncio.create_task(wait(message)) for message in (found, sent[7], sent[6])]
        await asyncio.sleep(0)
        while board.node.waiting:
            board.store()
            board.node.backlog.refill()
        for task in waiting:
            await task

    asyncio.run(deliver())
    assert told == [True] * 3


def a_start_with_less_memory_hears_of_what_it_has_on_the_flash():
    """The OrderAck of the last one comes before that is in memory: it is sent again, and then it counts."""
    board = Board(hold=10)
    for k in range(5):
        board.send(b"%d" % k)
    sequence = board.transmit()[0].transaction.tx_sequence_id
    board.restart(hold=8)
    assert board.queue.logged.deferred == 1
    board.order_ack(sequence, 5)
    board.node.backlog.refill()
    assert [packet.properties.body for packet in board.transmit()] == [b"4"]
    board.order_ack(sequence, 5)
    assert board.node.waiting == 0


def _be_short_of_memory(where, nth):
    """Deliver six messages, in a node whose method `where` fails at its nth call; their bodies as they went out."""
    board = Board(hold=4)
    for k in range(6):
        board.send(b"%d" % k, ttrq=1000)
    part, _, where = where.partition(".")
    owner = board.node.outbox.flash_only if part == "flash_only" else getattr(board.node, part)
    does = getattr(owner, where)
    calls = [0]

    def short(*arguments):
        calls[0] += 1
        if calls[0] == nth:
            raise MemoryError("memory allocation failed")
        return does(*arguments)

    bodies = []
    for _ in range(20):
        bodies += [bytes(packet.properties.body) for packet in board.transmit()]
        for entry in list(board.queue.stream.table):
            board.order_ack(entry.tx_sequence_id, entry.tx_sequence_number)
        setattr(owner, where, short)
        try:
            is_done = board.node.backlog.refill()
        except MemoryError:  # before anything was taken
            is_done = False
        setattr(owner, where, does)
        if not is_done:
            board.send(b"between")
    assert board.node.waiting == 0
    return bodies


def want_of_memory_while_one_is_taken_from_the_flash_changes_nothing():
    """Wherever it strikes: all are sent once, in order, and a message that comes in between goes behind them."""
    for where in ("backlog._take", "deadlines.expect", "backlog._take_coming", "flash_only.next", "backlog._share"):
        for nth in range(1, 5):
            bodies = _be_short_of_memory(where, nth)
            assert bodies[:6] == [b"%d" % k for k in range(6)], (where, nth, bodies)
            assert bodies[6:] in ([], [b"between"]), (where, nth, bodies)


def what_nobody_followed_and_nobody_remembers_is_not_guessed():
    board = Board(hold=4)
    sent = [board.send(b"", ttrq=5) for _ in range(outcomes.OUTCOMES_MAX + 20)]
    board.time = 10
    while board.node.backlog.expire_more():
        pass
    assert board.node.waiting == 0
    assert len(board.told) == len(sent)
    assert sent[-1].conclusion().answer == "discarded"
    told = ""
    try:
        sent[5].is_stored()
    except log.OutboxError as error:
        told = str(error)
    assert "message 6 has ended" in told


def what_has_expired_on_the_flash_makes_room():
    """C-33: more than fits, all too late: the first that is refused room has it made."""
    board = Board(hold=4, capacity=8000, segment_size=1000)
    count = 0
    try:
        while True:
            board.send(bytes(60), ttrq=50)
            count += 1
    except log.OutboxFull:
        pass
    assert (count > 20, board.queue.held() <= 3, board.told) == (True, True, [])
    board.time = 60
    board.send(b"new")
    assert board.told == [(k + 1, 0x8002) for k in range(len(board.told))], board.told
    assert 0 < len(board.told) < count, "a segment's worth is enough"
    board.node.backlog.refill()
    while board.node.backlog.expire_more():
        pass
    assert len(board.told) == count
    assert board.node.waiting == 1


def who_sends_again_what_has_expired_goes_no_deeper_than_a_call():
    """On a full flash, from within on_failed: each attempt that is refused stays one refusal."""
    board = Board(hold=4, capacity=30000, segment_size=4000)
    depth = [0, 0]

    def again(message):
        depth[0] += 1
        depth[1] = max(depth)
        try:
            board.node._queues[0].put(bytes(9000), ttrq=50)
        except log.OutboxFull:
            pass
        depth[0] -= 1

    board.node.notices._on_failed = again
    accepted = 0
    for _ in range(3):
        try:
            while True:
                board.send(bytes(60), ttrq=50)
                accepted += 1
        except log.OutboxFull:
            board.time += 60
    assert accepted > 20
    assert depth == [0, 1], depth


def a_sequence_that_is_used_up_is_followed_by_another():
    """A-24."""
    board = Board()
    board.send(b"1")
    board.queue.stream.record[core.OUTGOING_NUMBER] = 0xFFFFFFFF
    board.send(b"2")
    table = board.queue.stream.table
    assert table[1].tx_sequence_number in (1, 0xFFFFFFFF)
    board.send(b"3")
    ids = [(entry.tx_sequence_id, entry.tx_sequence_number) for entry in table]
    assert ids == sorted(set(ids))
    assert len({number[0] for number in ids}) == 2


def a_node_closes_although_its_link_becomes_ready_at_that_moment():
    board = Board()

    async def wake():
        board.node.touch()

    async def main():
        board.node.start()
        for _ in range(3):
            await asyncio.sleep(0)  # the node has nothing to do, and sleeps
        closing = asyncio.create_task(board.node.close())
        waking = asyncio.create_task(wake())  # behind close(), and before the task that this has cancelled
        await asyncio.wait_for(closing, 20)
        await waking

    asyncio.run(main())


# ---- callbacks


def _fail(board, count=1, **properties):
    """So many messages that have failed, and nobody has been told."""
    messages = [board.send(b"%d" % k, ttrq=5, **properties) for k in range(count)]
    board.time += 6
    board.node.work()
    return messages


def nothing_is_told_before_the_node_has_done_its_work():
    """Neither by put() nor while it works; then in order. What fails in a callback is told behind the others."""
    board = Board(connect=Nowhere())
    told = []
    depth = [0]

    def failed(message):
        assert depth == [0]
        depth[0] += 1
        told.append(message.message_id)
        if len(told) == 1:
            board.node.delete(board.send(b"again"))
        depth[0] -= 1

    board.node.notices._on_failed = failed
    sent = _fail(board, 3)
    board.send(b"more")
    assert told == [], "it is message 4"
    assert [message.conclusion().answer for message in sent] == ["discarded"] * 3
    assert board.node.dead_letters() == []
    assert board.node.poll() == 0, "there may be something to do now"
    assert told == [1, 2, 3, 5]
    assert board.node.outbox.live == board.node.waiting == 1


def what_a_callback_raises_is_raised_by_poll_and_harms_nothing():
    board = Board(connect=Nowhere())
    told = []

    def failed(message):
        told.append(message.message_id)
        if message.message_id == 1:
            raise KeyError("a mistake of the application")

    board.node.notices._on_failed = failed
    _fail(board, 2)
    try:
        board.node.poll()
        raise AssertionError("it is not swallowed")
    except KeyError:
        pass
    assert told == [1]
    board.node.poll()
    assert (told, board.node.error, board.node.outbox.live) == ([1, 2], None, 0)
    board.send(b"next")
    board.node.poll()


def whoever_is_not_told_before_the_power_goes_is_told_after_it():
    for way in power.WAYS:
        board = Board(connect=Nowhere())
        _fail(board, 2)
        kept = board.send(b"", dead_letter=True)
        board.node.delete(kept)
        board.node.commit_now()
        board.restart(way)
        assert [letter.message_id for letter in board.node.dead_letters()] == [3], "the others stay only to be told"
        assert board.node.waiting == 0
        assert board.told == [(1, 0x8002), (2, 0x8002), (3, 0x8001)]
        board.node.commit_now()
        board.restart(way)
        assert len(board.told) == 3, "once more only if the power went in between"
        board.node.take(board.node.find(3))
        assert board.node.outbox.live == 0


def a_callback_may_take_and_ask_about_its_message():
    board = Board(connect=Nowhere())
    seen = []

    def failed(message):
        seen.append((message.conclusion().answer, bytes(board.node.read(message).properties.body)))
        if message.conclusion().answer == "dead-lettered":
            board.node.take(message)
        else:
            try:
                board.node.take(message)
                raise AssertionError("it is in no queue")
            except ValueError:
                pass

    board.node.notices._on_failed = failed
    _fail(board)
    _fail(board, dead_letter=True)
    board.node.poll()
    assert seen == [("discarded", b"0"), ("dead-lettered", b"0")]
    assert board.node.outbox.live == 0


def each_message_that_is_stored_is_told_once():
    stored = []
    board = Board(connect=Nowhere(), on_stored=lambda message: stored.append((message.message_id, message.is_stored())))
    for journal in (0, JN):
        board.send(b"", journal=journal)
    board.store()
    assert stored == []
    board.node.poll()
    assert stored == [(1, True), (2, True)]
    assert board.final_ack(2, confirm.ACK_RECEIVE)
    board.node.poll()
    assert len(stored) == 2


def an_asyncio_callback_is_refused_in_words():
    board = Board(connect=Nowhere())

    async def failed(message):
        raise AssertionError("nobody awaits it")

    board.node.notices._on_failed = failed
    _fail(board)
    said = ""
    try:
        board.node.poll()
    except ValueError as error:
        said = str(error)
    assert "asyncio" in said
    board.node.poll()
    assert board.node.error is None


def who_waits_for_a_node_that_is_not_started_is_told():
    """It would wait for ever, and on MicroPython the program would end without a word."""
    board = Board(connect=Nowhere())
    message = board.send(b"1", dead_letter=True)
    inbox = board.node.inbox("commands")
    for waiting in (
        message.stored,
        message.received,
        message.dead_lettered,
        inbox.arrived,
        inbox.__aiter__().__anext__,
    ):
        said = ""
        try:
            asyncio.run(waiting())
        except log.OutboxError as error:
            said = str(error)
        assert "node.start()" in said, waiting

    async def main():
        waiting = asyncio.create_task(message.stored())
        await asyncio.sleep(0)
        board.node.start()  # a task that waits may have been made before
        await asyncio.sleep(0)
        await board.node.close()
        said = ""
        try:
            await waiting
        except log.OutboxError as error:
            said = str(error)
        assert "closed" in said

    asyncio.run(main())


def an_interrupt_that_calls_the_node_at_work_is_refused_in_words():
    """As micropython.schedule does it: between any two steps. Nothing is half done, and the node goes on."""
    link = Nowhere()
    board = Board(connect=link)
    said = []

    def interrupt(*_):
        for call in (lambda: board.queue.put(b"interrupt"), board.node.poll):
            try:
                call()
            except RuntimeError as error:
                said.append(str(error))

    link.open = interrupt
    board.disk.sync = lambda: (interrupt(), power.Disk.sync(board.disk))
    message = board.queue.put(b"1")
    assert len(said) == 2, "while it is made durable"
    board.node.poll()
    assert len(said) == 4, "while the node works"
    assert all("no interrupt" in text for text in said)
    assert (board.node.waiting, board.node.next_message_id, board.node.error) == (1, 2, None)
    board.store()
    assert message.is_stored()


def _press_ctrl_c(within, name, call):
    board = Board()
    board.disk.place = "/outbox"
    board.queue.put(b"1")

    def pressed(*_):
        raise KeyboardInterrupt

    setattr(within(board.node), name, pressed)
    said = []
    for one in (call, call, lambda board: board.queue.put(b"lost"), lambda board: board.node.poll()):
        try:
            one(board)
        except (KeyboardInterrupt, RuntimeError) as error:
            said.append(str(error))
    assert ["make a new one" in text for text in said] == [False, True, True, True], said
    board.open(board.disk)
    assert (board.node.waiting, board.node.last_message_id) == (1, 1)
    board.queue.put(b"2")
    assert board.node.waiting == 2
    board.node.close_now()


def after_ctrl_c_a_new_node_goes_on_with_what_was_accepted():
    """The old one, in which a message is half accepted, or a poll half done, does nothing more, and says why."""
    _press_ctrl_c(lambda node: node.outbox, "append", lambda board: board.queue.put(b"lost"))
    _press_ctrl_c(lambda node: node.peers, "poll", lambda board: board.node.poll())


def power_goes_at_every_change_of_the_disk():
    """Messages in all states: whatever is left, each is where its record says, in a state that it has had.

    On MicroPython the power goes at every ninth place.
    """
    states = {}  # MessageID -> states it has had since they were last durable
    counts = [0]
    board = Board(segment_size=600, capacity=5000)

    def before(disk, step, data):
        for how, partial in power.cuts_within(data, 32):
            counts[0] += 1
            if counts[0] % 9 and sys.implementation.name == "micropython":
                continue
            left = Node("", files=disk.after_cut(how, power.Dice(counts[0]), partial), guid=power.GUID)
            found = {}
            for queue in left._queues:
                for entry in queue.stream.table:
                    found[entry.message_id] = "QS"
                for message_id in aside(left, queue):
                    found[message_id] = "O"
            for kind, some in (("X", left.dead_letters()), ("J", left.journal())):
                for message in some:
                    found[message.message_id] = kind
            assert left.outbox.live == len(found)
            assert left.waiting == sum([state == "QS" for state in found.values()])
            for message_id in states:
                had = states[message_id]
                if message_id in found:
                    message = left.find(message_id)
                    state = chr(message.record[confirm.STATE])
                    assert state in found[message_id]
                    assert state in had or (state == "S" and "Q" in had), (message_id, state, had)
                else:
                    assert "-" in had, (message_id, had)
            for message_id in found:
                assert message_id in states or message_id == board.node.next_message_id - 1, "came from nowhere"

    def expect(message_id, state):
        states[message_id] = states.get(message_id, "") + state

    def durable():
        board.node.notices.deliver()
        board.node.commit_now()
        for message_id in states:
            states[message_id] = states[message_id][-1]

    board.disk.before = before
    for _ in range(3):
        first = board.node.next_message_id
        for k, journal in enumerate((0, JN, JP, JN | JP, JN, 0)):
            board.send(b"%d" % k, journal=journal, ttbr=100 if k == 4 else confirm.UNSET)
            expect(first + k, "Q")
        for k in range(6):
            expect(first + k, "S")
        sent = board.transmit()
        for k in range(5):
            expect(first + k, "-" if k == 0 else "O")
        board.order_ack(sent[4].transaction.tx_sequence_id, sent[4].transaction.fields[core.TX_NUMBER])
        durable()
        for k, message_class, state in ((1, 0x8003, "X"), (2, 0x4000, "J"), (3, 0x4000, "J"), (5, 0x8004, "-")):
            expect(first + k, state)
            board.final_ack(first + k, message_class)
            durable()
        expect(first + 4, "X")
        board.time += 200
        board.node.deadlines.check()
        durable()
        expect(first + 1, "-")
        board.node.take(board.node.find(first + 1))
        durable()
    print(counts[0], "cuts")
    assert counts[0] > 1000


# A board's clock says no time from 2097 on, and the others play until then.
PLAYED = [case for case in confirm_cases.CASES if T0 + case[4] < clock.CLOCK_END]
CASES = [(case[0], check, (case,)) for case in PLAYED]
CASES += [(case[0] + ", with restarts", check, (case, True)) for case in PLAYED]
OTHERS = (
    case_6_not_sent_when_the_link_comes_up,
    case_11_jn_is_in_the_packet,
    case_14_dead_lettered_at_start_up,
    what_is_held_is_not_sent_any_more_and_its_gap_is_bridged,
    what_is_held_can_still_be_confirmed,
    what_is_held_does_not_come_back_in_the_way_of_a_newer_sequence,
    nothing_expires_by_a_clock_that_is_not_set,
    a_clock_that_is_lost_again_ends_nothing,
    a_full_quota_discards_the_copy_and_says_so,
    a_dead_letter_stays_until_it_is_taken,
    what_is_on_its_way_cannot_be_taken_and_what_has_ended_not_deleted,
    a_final_ack_is_acknowledged_only_when_its_outcome_is_durable,
    each_start_begins_a_sequence_and_the_older_one_goes_first,
    a_copy_that_is_put_back_is_told_by_what_its_destination_has,
    what_an_old_copy_has_of_an_ended_sequence_ended_in_a_way_that_is_not_known,
    what_an_old_copy_has_of_an_earlier_start_does_not_wait_for_ever,
    two_copies_never_use_the_same_numbers,
    a_second_node_of_a_program_takes_the_outbox_and_the_first_accepts_nothing_more,
    an_emptied_folder_is_another_queue_manager,
    who_is_ahead_is_told_once_and_overtaken,
    what_cannot_be_held_is_taken_later_in_order,
    what_has_expired_on_the_flash_makes_room,
    who_sends_again_what_has_expired_goes_no_deeper_than_a_call,
    who_asks_about_others_while_one_fails_gets_the_same_answer_as_later,
    two_handles_of_one_message_say_the_same,
    a_start_with_less_memory_hears_of_what_it_has_on_the_flash,
    want_of_memory_while_one_is_taken_from_the_flash_changes_nothing,
    what_nobody_followed_and_nobody_remembers_is_not_guessed,
    the_handle_of_a_message_on_the_flash_says_what_became_of_it,
    a_sequence_that_is_used_up_is_followed_by_another,
    a_node_closes_although_its_link_becomes_ready_at_that_moment,
    nothing_is_told_before_the_node_has_done_its_work,
    what_a_callback_raises_is_raised_by_poll_and_harms_nothing,
    whoever_is_not_told_before_the_power_goes_is_told_after_it,
    a_callback_may_take_and_ask_about_its_message,
    each_message_that_is_stored_is_told_once,
    an_asyncio_callback_is_refused_in_words,
    who_waits_for_a_node_that_is_not_started_is_told,
    an_interrupt_that_calls_the_node_at_work_is_refused_in_words,
    after_ctrl_c_a_new_node_goes_on_with_what_was_accepted,
    power_goes_at_every_change_of_the_disk,
)


if __name__ == "__main__":
    calls = [(name, test, arguments, {}) for name, test, arguments in CASES]
    run_calls(calls + [(other.__name__, other, (), {}) for other in OTHERS])
