"""The board as a destination, on MicroPython and CPython: a node with an inbox, senders over wires in memory, a disk
that loses power. Prints `N passed, N failed`.
"""

import asyncio
import sys

sys.path.insert(0, "tests/mp")

import packet_build
import power
from engine_cases import run_calls, tests_of
from inbox_world import BOARD, Sender, taker, world_of
from mqqb import core, headers, names, parse
from ordack.node import OutboxError
from virtual import Started

NOWHERE = "DIRECT=TCP:10.0.0.7\\private$\\nowhere"
T0 = 1800000000


def test_an_order_ack_comes_early():
    """As soon as a message is stored, if no other has begun to arrive."""
    sender = Sender(1, window=8)
    world = world_of(sender)
    sender.send(b"on")
    world.run(200)
    assert sender.stored == [1]
    sender.seen.clear()
    for number in range(1, 9):
        sender.send(b"on")
        for _ in range(4):
            world.step()
        assert len(sender.seen) == number, sender.seen


def test_a_message_is_handled_and_both_acknowledgements_go_back():
    sender = Sender(1)
    world = world_of(sender)
    world.node.inboxes.early_order_ack = 0
    sender.send(b"on", label="lamp", sent_time=T0)
    world.run(500)
    assert sender.seen == [], "the OrderAck may come together with others (B-045)"
    world.run(100)
    assert sender.seen == [("order", 1)]
    assert sender.stored == [1]
    assert len(world.inbox) == 1
    message = world.inbox.get()
    assert (message.body, message.label, message.message_id, message.source) == (b"on", "lamp", 1, sender.guid)
    assert (message.sent_time, message.message_class, message.again) == (T0, 0, False)
    assert world.inbox.get() is message, "the same one until it is taken"
    assert message.again
    world.run(1000)
    assert sender.said == {}
    world.inbox.take(message)
    assert world.inbox.get() is None
    assert len(world.inbox) == 0
    world.run(200)
    assert sender.said == {1: 0x4000}
    assert sender.is_settled
    inboxes = world.node.inboxes
    world.run(2000)
    assert (inboxes.bytes, inboxes.messages, inboxes.owed.final_acks) == (0, 0, []), "nothing is left of it"
    assert world.node.outbox.arrivals == 0


def test_acknowledgements_have_other_message_ids_after_each_start():
    """A router between keeps only one of the same MessageID (B-020, B-248)."""
    sender = Sender(1)
    world = world_of(sender)
    for _ in range(5):
        for _ in range(2):
            sender.send(b"on")
            world.run(2000, taker(world, []))
        world.run(61000)  # that the FinalAcks have arrived is durable: else they go out again
        world.restart()
    assert len(sender.acknowledged_by) == 20, "an OrderAck and a FinalAck for each"
    assert len(set(sender.acknowledged_by)) == 20, sender.acknowledged_by


def test_who_does_not_ask_gets_no_final_ack():
    sender = Sender(1)
    world = world_of(sender)
    sender.send(b"on", journal=0)
    bodies = []
    world.run(2000, taker(world, bodies))
    assert bodies == [b"on"]
    assert sender.seen == [("order", 1)]
    assert sender.is_settled
    assert world.node.inboxes.messages == 0


def test_one_that_is_missing_holds_up_the_others():
    sender = Sender(1)
    world = world_of(sender)
    for k in range(3):
        sender.send(b"%d" % k)
    original = sender.stream.prepare
    sender.stream.prepare = lambda entry, packet, offset: None  # the numbers before are not bridged
    missing = sender.stream.table.pop(0)
    bodies = []
    world.run(1000, taker(world, bodies))
    assert (bodies, sender.seen) == ([], []), "nothing is accepted, so nothing can be acknowledged (B-359)"
    sender.stream.prepare = original
    sender.stream.table.insert(0, missing)
    world.cut(sender)
    world.run(1000, taker(world, bodies))
    assert bodies == [b"0", b"1", b"2"]


def test_one_that_is_refused_ahead_of_its_gap_is_told():
    """B-262, A-15, A-33: so that its sender need not send again what can only be refused."""
    sender = Sender(1)
    world = world_of(sender, time=T0 + 100)
    sender.send(b"1", sent_time=T0)
    sender.send(b"2", sent_time=T0, ttrq=99)
    sender.send(b"3", sent_time=T0)
    original = sender.stream.prepare
    sender.stream.prepare = lambda entry, packet, offset: None  # the numbers before are not bridged
    missing = sender.stream.table.pop(0)
    bodies = []
    world.run(1000, taker(world, bodies))
    assert (bodies, sender.seen) == ([], [("final", 2, 0x8002)]), sender.seen
    sender.stream.prepare = original
    sender.stream.table.insert(0, missing)
    world.cut(sender)
    world.run(1000, taker(world, bodies))
    assert bodies == [b"1", b"3"]
    assert sender.said == {1: 0x4000, 2: 0x8002, 3: 0x4000}


def test_what_is_secured_is_refused():
    """B-330, B-332, B-334: a board has no keys."""
    for flags, privacy, signature, said in (
        (0, 0, b"", 0x4000),
        (0, 0, b"sign", 0x8006),
        (0x20, 1, b"", 0x8007),
        (0, 2, b"", 0x8006),
        (0, 5, b"", 0x4000),
    ):
        sender = Sender(1)
        world = world_of(sender)
        message = parse.parse(bytes(sender.packets[sender.send(b"1")]))
        message.security = headers.SecurityHeader()
        message.security.fields[core.SECURITY_FLAGS] = flags | 2
        message.security.security_id = BOARD
        message.security.signature = signature
        message.properties.fields[core.PROPERTIES_PRIVACY_LEVEL] = privacy
        sender.packets[1] = packet_build.build(message)
        world.run(1000, taker(world, []))
        assert sender.said == {1: said}, (flags, privacy, signature, sender.said)


def test_a_clock_that_is_behind_is_allowed_for():
    """B-267."""
    for skew, said in ((0, 0x8002), (1, 0x4000)):
        sender = Sender(1)
        world = world_of(sender, time=T0 + 100)
        world.node.inboxes.clock_skew = skew
        sender.send(b"1", ttrq=99, sent_time=T0)
        world.run(900, taker(world, []))
        assert sender.said == {1: said}, (skew, sender.said)


def test_a_queue_that_is_not_here_is_told_again_and_again_and_leaves_no_trace():
    sender = Sender(1, NOWHERE)
    world = world_of(sender)
    for _ in range(40):
        sender.send(b"x")
    world.run(31000)
    assert sender.said == dict.fromkeys(range(1, 41), 0x8000)
    assert sender.is_settled
    assert [what[0] for what in sender.seen] == ["final"] * 40
    assert world.node.outbox.sources == []
    assert world.node.inboxes.owed.final_acks == []
    world.node.inbox("nowhere")
    sender.send(b"y")
    world.cut(sender)
    world.run(1000)
    assert len(world.node.inbox("nowhere")) == 1


def test_an_address_is_whatever_its_sender_calls_the_board_but_not_nothing():
    for address, is_here in (("OS:b", 1), ("os:B", 1), ("TCP:1", 1), ("TCP:", 0), ("OS:", 0), ("TCP", 0), ("IPX:b", 0)):
        sender = Sender(1)
        sender.name = names.DirectQueueFormatName(address + "\\private$\\commands")
        world = world_of(sender)
        sender.send(b"1")
        world.run(1000)
        assert len(world.inbox) == is_here, address
        assert sender.stored == [1] * is_here, address
        assert sender.said == ({} if is_here else {1: 0x8000}), address


def test_names_that_the_log_could_not_keep_are_not_here():
    for address in ("a" * 450, "\u4e00" * 120, chr(0xD800), "a\tb"):
        sender = Sender(1, "DIRECT=TCP:" + address + "\\private$\\commands")
        world = world_of(sender)
        sender.send(b"1")
        world.run(1000)
        assert sender.said == {1: 0x8000}
        assert world.node.outbox.sources == []
    sender = Sender(1, "DIRECT=TCP:" + "\u4e00" * 100 + "\\private$\\commands")
    world = world_of(sender)
    sender.send(b"1")
    world.run(1000)
    world.restart()
    assert world.inbox.get().body == b"1"


def test_what_is_not_transactional_is_dropped_and_the_session_goes_on():
    sender = Sender(1)
    world = world_of(sender)
    sender.send(b"1", delivery="express", journal=0)
    sender.send(b"2", delivery="recoverable", journal=0)
    sender.send(b"3")
    bodies = []
    world.run(2000, taker(world, bodies))
    assert bodies == [b"3"]
    assert world.node.inboxes.dropped == 2
    assert sender.is_settled


def test_a_full_inbox_refuses_before_it_acknowledges():
    """B-284: a quota takes what fits to the byte."""
    sender = Sender(1)
    size = len(sender.packets[sender.send(b"x")])
    for quota, fits in (((100000, 2), 2), ((3 * size, 100), 3), ((3 * size - 1, 100), 2)):
        sender = Sender(1)
        world = world_of(sender, inbox_quota=quota)
        for k in range(5):
            sender.send(b"%d" % k)
        world.run(1000)
        assert len(world.inbox) == fits
        refused = dict.fromkeys(range(fits + 1, 6), 32771)
        assert sender.said == refused
        assert sender.seen[-1] == ("order", 5), "the stream has moved on (B-262)"
        assert len(sender.seen) == len(refused) + 1
        bodies = []
        sender.send(b"5")
        world.run(1000, taker(world, bodies))
        sender.send(b"6")
        world.run(1000, taker(world, bodies))
        assert bodies == [b"%d" % k for k in range(fits)] + [b"6"], bodies
        assert sender.is_settled
        assert world.node.inboxes.messages == 0


def test_no_order_ack_passes_a_refusal_on_another_session():
    """The sender has two sessions, and the refusal is under way on one that does not read."""
    sender = Sender(1)
    world = world_of(sender, inbox_quota=(100000, 1))
    sender.send(b"0")
    sender.send(b"1")
    world.connect(sender)
    sender.receive = lambda data, now: None
    for _ in range(9):
        heard = bytes(world.wires[sender].to_sender)
        world.step()
        if any(arrival.carrier is not None for arrival in world.node.inboxes.owed.final_acks):
            break
        Sender.receive(sender, heard, 0)
    twin = Sender(1)
    for k in range(3):
        twin.send(b"%d" % k)
    del twin.stream.table[:2]  # these are the other one's
    twin.stream.prepare = lambda entry, packet, offset: None
    world.senders = [twin]
    world.run(3000)
    assert twin.seen == [("final", 3, 0x8003)], twin.seen
    twin.stream.prepare = lambda entry, packet, offset: None
    world.cut(sender)
    world.run(1000)
    assert twin.seen == [("final", 3, 0x8003), ("final", 2, 0x8003), ("order", 3)], twin.seen


def test_a_final_ack_that_only_the_transaction_asks_for():
    sender = Sender(1)
    world = world_of(sender)
    packet = sender.packets[sender.send(b"1", journal=0)]
    packet[parse.transaction_offset(packet)] |= 2  # TransactionHeader.Flags.FA
    world.run(2000, taker(world, []))
    assert sender.said == {1: 0x4000}


def test_more_refusals_than_can_be_kept_are_left_with_the_sender():
    sender = Sender(1)
    world = world_of(sender, inbox_quota=(100000, 0))
    for k in range(40):
        sender.send(b"%d" % k)
    world.run(400000)
    assert sender.said == dict.fromkeys(range(1, 41), 0x8003)
    assert world.node.inboxes.left > 0
    assert sender.is_settled
    assert sender.stored == []


def test_a_refusal_survives_a_reset_and_goes_first():
    for how in power.WAYS:
        sender = Sender(1)
        world = world_of(sender, inbox_quota=(100000, 1))
        for k in range(3):
            sender.send(b"%d" % k + bytes(300))
        sender.receive = lambda data, now: None  # nothing gets back to it
        world.connect(sender)
        for _ in range(9):
            world.step()
            if world.node.outbox.arrivals == 3:
                break
            Sender.receive(sender, bytes(world.wires[sender].to_sender), 0)
            world.wires[sender].to_sender = bytearray()
        assert world.node.outbox.arrivals == 3
        assert all(arrival.size < 250 for arrival in world.node.inboxes.owed.final_acks), "nobody will read the body"
        del sender.receive
        world.restart(how)
        world.run(1500)
        assert sender.said == {2: 0x8003, 3: 0x8003}
        assert sender.stored == [1]
        assert [what[0] for what in sender.seen] == ["final", "final", "order"], sender.seen


def test_times_are_kept_if_the_clock_is_set():
    for time, bodies, said in (
        (T0 + 100, [b"2"], {1: 0x8002, 2: 0x4000, 3: 0xC002}),
        (0, [b"1", b"2", b"3"], {1: 0x4000, 2: 0x4000, 3: 0x4000}),
    ):
        sender = Sender(1)
        world = world_of(sender, time=time)
        sender.send(b"1", ttrq=99, sent_time=T0)
        sender.send(b"2", ttrq=100, ttbr=200, sent_time=T0)
        sender.send(b"3", ttbr=103, sent_time=T0)
        world.run(5000)
        taken = []
        world.run(1000, taker(world, taken))
        assert (taken, sender.said) == (bodies, said), (taken, sender.said)


def test_the_last_second_of_a_message_is_the_one_before_its_time_is_over():
    """B-402, B-341; a time of 0 is over at once (B-144). Also where nobody has polled since."""
    for ttbr, late, there in ((0, 0, False), (3, 0, True), (3, 2, True), (3, 3, False)):
        sender = Sender(1)
        world = world_of(sender, time=T0)
        sender.send(b"1", ttbr=ttbr, sent_time=T0)
        world.run(500)
        world.time = T0 + late
        assert (world.inbox.get() is not None) == there, (ttbr, late)
        world.run(400)
        assert sender.said == ({} if there else {1: 0xC002})
        assert len(world.inbox) == there


def test_what_the_application_has_does_not_expire_under_it():
    sender = Sender(1)
    world = world_of(sender, time=T0)
    sender.send(b"1", ttbr=2, sent_time=T0)
    sender.send(b"2", ttbr=2, sent_time=T0)
    world.run(1000)
    message = world.inbox.get()
    world.run(5000)
    assert sender.said == {2: 0xC002}
    assert len(world.inbox) == 1
    world.inbox.take(message)
    world.run(1000)
    assert sender.said == {1: 0x4000, 2: 0xC002}


def test_what_the_application_rejects_is_told():
    sender = Sender(1)
    world = world_of(sender)
    sender.send(b"1")
    sender.send(b"2")
    world.run(1000)
    world.inbox.reject(world.inbox.get())
    world.run(1000)
    assert sender.said == {1: 0xC004}
    assert world.inbox.get().body == b"2"


def test_a_reset_before_it_is_handled_brings_it_again():
    for how in power.WAYS:
        sender = Sender(1)
        world = world_of(sender)
        for k in range(3):
            sender.send(b"%d" % k)
        world.run(1000)
        world.inbox.take(world.inbox.get())
        assert world.inbox.get().body == b"1"
        world.restart(how)
        assert len(world.inbox) == 2
        message = world.inbox.get()
        assert message.body == b"1"
        assert message.again
        world.inbox.take(message)
        message = world.inbox.get()
        assert (message.body, message.again) == (b"2", False), "nobody can have seen it"
        world.inbox.take(message)
        world.restart(how)
        assert world.inbox.get() is None
        world.run(1000)
        assert sender.said == {1: 0x4000, 2: 0x4000, 3: 0x4000}


def test_only_the_message_that_was_given_can_be_taken():
    sender = Sender(1)
    world = world_of(sender)
    sender.send(b"1")
    sender.send(b"2")
    world.run(1000)
    message = world.inbox.get()
    world.inbox.take(message)
    for wrong in (message, None):
        try:
            world.inbox.take(wrong)
        except ValueError:
            pass
        else:
            raise AssertionError("taken twice")
    assert world.inbox.get().body == b"2"


def test_a_loop_takes_what_it_has_handled_and_nothing_else():
    sender = Sender(1)
    world = world_of(sender)
    handled = []
    world.node._tasks = Started()

    async def handle(fails_at):
        async for message in world.inbox:
            handled.append((message.body, message.again))
            if message.body == fails_at:
                raise ArithmeticError

    async def main():
        for k in range(4):
            sender.send(b"%d" % k)
        world.run(1000)
        for fails_at in (b"1", b"2"):
            try:
                await handle(fails_at)
            except ArithmeticError:
                pass
        task = asyncio.create_task(handle(b""))
        for _ in range(20):
            await asyncio.sleep(0)
        sender.send(b"4")  # the loop waits for it
        world.run(1000)
        for _ in range(20):
            await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            pass

    asyncio.run(main())
    found = [(b"0", False), (b"1", False), (b"1", True), (b"2", False), (b"2", True), (b"3", False), (b"4", False)]
    assert handled == found, handled
    world.run(1000)
    assert sender.said == dict.fromkeys(range(1, 6), 0x4000)


def test_a_disk_that_fails_loses_no_message_and_tells_no_lie():
    for fails in ("append", "sync"):
        sender = Sender(1)
        world = world_of(sender)
        bodies = []
        sender.send(b"1")
        world.run(1000, taker(world, bodies))
        sender.send(b"2")
        sender.send(b"3")

        def refuse(disk, step, data, fails=fails):
            if step == fails:
                raise OSError(5)

        world.disk.before = refuse
        world.run(2000, taker(world, bodies))
        assert bodies == [b"1"]
        assert not [what for what in sender.seen if what[0] == "order" and what[1] > 1]
        world.disk.before = None
        world.run(6000)
        message = world.inbox.get()
        world.disk.before = refuse
        try:
            world.inbox.take(message)
        except OutboxError:
            pass
        else:
            raise AssertionError("it is not durable")
        world.run(500)
        assert 2 not in sender.said, "it may come again"
        world.disk.before = None
        bodies.append(message.body)
        world.run(6000, taker(world, bodies))
        assert bodies == [b"1", b"2", b"3"], bodies
        assert sender.said == {1: 0x4000, 2: 0x4000, 3: 0x4000}


TESTS = tests_of(globals())


if __name__ == "__main__":
    run_calls([(test.__name__, test, (), {}) for test in TESTS])
