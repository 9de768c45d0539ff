"""Handles of messages, callbacks and cuts of a node, on MicroPython and CPython. Prints `N passed, N failed`."""

import asyncio
import sys

sys.path.insert(0, "tests/mp")

import power
from confirm_cases import JN, JP
from engine_cases import run_calls, tests_of
from mqqb import confirm, core, lives
from node_board import Board, aside
from ordack.node import Node, outcomes
from ordack.node.storage import log
from virtual import Nowhere, Started


def test_the_handle_of_a_message_on_the_flash_says_what_became_of_it():
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


def test_who_asks_about_others_while_one_fails_gets_the_same_answer_as_later():
    """Several end at once: by their time, and because the destination has passed on to a later sequence."""
    for asks in (False, True):
        for expire in (False, True):
            _ask_while_one_fails(asks, expire)


def test_two_handles_of_one_message_say_the_same():
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


def test_a_start_with_less_memory_hears_of_what_it_has_on_the_flash():
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


def test_want_of_memory_while_one_is_taken_from_the_flash_changes_nothing():
    """Wherever it strikes: all are sent once, in order, and a message that comes in between goes behind them."""
    for where in ("backlog._take", "deadlines.expect", "backlog._take_coming", "flash_only.next", "backlog._share"):
        for nth in range(1, 5):
            bodies = _be_short_of_memory(where, nth)
            assert bodies[:6] == [b"%d" % k for k in range(6)], (where, nth, bodies)
            assert bodies[6:] in ([], [b"between"]), (where, nth, bodies)


def test_what_nobody_followed_and_nobody_remembers_is_not_guessed():
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


def test_what_has_expired_on_the_flash_makes_room():
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


def test_who_sends_again_what_has_expired_goes_no_deeper_than_a_call():
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


def test_a_sequence_that_is_used_up_is_followed_by_another():
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


def test_a_node_closes_although_its_link_becomes_ready_at_that_moment():
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


def test_nothing_is_told_before_the_node_has_done_its_work():
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


def test_what_a_callback_raises_is_raised_by_poll_and_harms_nothing():
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


def test_whoever_is_not_told_before_the_power_goes_is_told_after_it():
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


def test_a_callback_may_take_and_ask_about_its_message():
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


def test_each_message_that_is_stored_is_told_once():
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


def test_an_asyncio_callback_is_refused_in_words():
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


def test_who_waits_for_a_node_that_is_not_started_is_told():
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


def test_an_interrupt_that_calls_the_node_at_work_is_refused_in_words():
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


def test_after_ctrl_c_a_new_node_goes_on_with_what_was_accepted():
    """The old one, in which a message is half accepted, or a poll half done, does nothing more, and says why."""
    _press_ctrl_c(lambda node: node.outbox, "append", lambda board: board.queue.put(b"lost"))
    _press_ctrl_c(lambda node: node.peers, "poll", lambda board: board.node.poll())


def test_power_goes_at_every_change_of_the_disk():
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


TESTS = tests_of(globals())


if __name__ == "__main__":
    run_calls([(test.__name__, test, (), {}) for test in TESTS])
