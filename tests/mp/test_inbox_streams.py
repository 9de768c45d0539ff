"""Streams of a board's inbox when room, memory, addresses or power fail. Prints `N passed, N failed`."""

import sys

sys.path.insert(0, "tests/mp")

import power
from engine_cases import run_calls, tests_of
from inbox_world import BOARD, Application, Sender, Wire, World, taker, world_of
from mqqb import connection, guids, headers, names, parse, session
from ordack.node import OutboxError
from ordack.node.talk.peer import Peer

STRIDE, LIVES = (32, 4) if sys.implementation.name == "micropython" else (8, 12)
NUMBERED = "PRIVATE=" + guids.guid_text(BOARD)[1:-1] + "\\7"
OTHER = "DIRECT=OS:board\\private$\\Commands"
NOWHERE = "DIRECT=TCP:10.0.0.7\\private$\\nowhere"
DAY = 86400000  # ms


def test_memory_that_runs_out_loses_no_message():
    for is_logged in (False, True):
        for number in (1, 2):
            sender = Sender(1)
            world = world_of(sender)
            log = world.node.outbox
            arrive = log.arrive

            def fail(handle, source, packet, log=log, arrive=arrive, number=number, is_logged=is_logged):
                if handle.message_id == number:
                    log.arrive = arrive
                    if is_logged:
                        arrive(handle, source, packet)
                    raise MemoryError
                arrive(handle, source, packet)

            log.arrive = fail
            for k in range(3):
                sender.send(b"%d" % k)
            bodies = []
            world.run(5000, taker(world, bodies))
            assert bodies == [b"0", b"1", b"2"], (is_logged, number, bodies)
            assert log.arrive == arrive, "it did not fail"


def test_a_log_that_is_full_acknowledges_nothing_and_ends_that_session_alone():
    """B-285. What the session carries the other way goes on for a while. The node opens no session of another."""
    sender = Sender(1)
    other = Sender(2, OTHER)
    world = world_of(other, sender, capacity=3000, segment_size=1000, inbox_quota=(100000, 100))
    other.send(b"other")
    world.run(1000)
    bodies = [b"%d" % k + bytes(300) for k in range(12)]
    for body in bodies:
        sender.send(body)
    first, quiet = world.wires[sender], world.wires[other]
    world.run(4000)
    there = len(world.inbox) - 1
    assert 1 < there < 12
    assert sender.stored == list(range(1, there + 1))
    left = [entry for entry in sender.stream.table if entry.message_id not in sender.stored]
    assert len(left) == 12 - there
    assert not [entry for entry in left if entry.received_session_ack], "a router would not keep it (B-109)"
    assert not first.is_cut
    assert world.node.inboxes.left == 1
    world.run(1500)
    assert first.is_cut
    assert world.node.inboxes.left == 2, "once in each session"
    second = world.wires[sender]
    taken = []
    world.run(2000, taker(world, taken))
    assert second.is_cut, "there is room, so it need not wait for 5 s"
    assert taken[:2] == [b"other", bodies[0]]
    assert len(taken) > there + 1
    world.run(4000, taker(world, taken))
    assert taken[1:] == bodies
    assert sender.is_settled
    assert other.is_settled
    assert world.wires[other] is quiet
    assert sender.said == dict.fromkeys(range(1, 13), 0x4000)


def test_what_can_never_find_room_is_refused():
    """What has more than half of the capacity."""
    sender = Sender(1)
    size = len(sender.packets[sender.send(bytes(1200))])
    sender.send(bytes(1204))
    world = world_of(sender, capacity=2 * size, segment_size=1000, inbox_quota=(100000, 100))
    taken = []
    world.run(3000, taker(world, taken))
    assert [len(body) for body in taken] == [1200]
    assert sender.said == {1: 0x4000, 2: 0x8003}


def test_who_never_fetches_an_acknowledgement_keeps_nobody_out():
    """B-435: anybody can send as somebody who never comes back."""
    world = world_of(inbox_quota=(100000, 4))
    room = world.node.outbox.arrivals_max
    for k in range(room + 5):
        world.senders = [Sender(100 + k, time_stamp=100)]
        world.senders[0].send(b"%d" % k)
        world.node.inboxes._sources_max = 1000
        for _ in range(40):
            if world.inbox.waiting:
                break
            world.run(100)
        world.cut(world.senders[0])
        world.node.poll()
        world.inbox.take(world.inbox.get())
    assert world.node.outbox.arrivals <= room
    good = Sender(1)
    world.senders = [good]
    good.send(b"good")
    taken = []
    world.run(3000, taker(world, taken))
    assert taken == [b"good"]
    assert good.said == {1: 0x4000}
    assert world.node.inboxes.forgotten > 0


def test_a_refusal_that_is_given_up_is_not_called_stored():
    """C-84: of what was passed above it nobody knows, until the next start."""
    world = world_of(inbox_quota=(100000, 0))
    inboxes = world.node.inboxes
    inboxes._sources_max = 1000
    absent = Sender(1)
    senders = [absent] + [Sender(100 + k) for k in range(world.node.outbox.arrivals_max)]
    for sender in senders:
        sender.send(b"refused")
        refused = inboxes.refused
        world.connect(sender)
        while inboxes.refused == refused:  # its session ends before it hears of that
            sender.receive(bytes(world.wires[sender].to_sender), world.clock.ms)
            world.wires[sender].to_sender = bytearray()
            world.wires[sender].to_board += sender.output(world.clock.ms)
            world.node.poll()
        world.cut(sender)
        world.node.poll()
    assert inboxes.forgotten == 1
    inboxes._quota = (100000, 4)
    absent.send(b"2")
    world.senders = [absent]
    taken = []
    world.run(3000, taker(world, taken))
    assert taken == [b"2"]
    assert absent.stored == []
    assert absent.said == {1: 0x8002, 2: 0x4000}, absent.said


def test_what_is_not_durable_is_not_handed_out():
    """B-098: what a session has brought that died before the commit waits for one, and for one that succeeds."""
    sender = Sender(1)
    world = world_of()
    packet = bytes(sender.packets[sender.send(b"1")])
    peer = Peer(world.node, Wire(), None)
    inboxes = world.node.inboxes
    inboxes.arrived(peer, parse.parse(packet), packet, 0)

    def fail(disk, step, data):
        if step == "sync":
            raise OSError(5)

    world.disk.before = fail
    assert inboxes.next_packet(peer, 0) is None
    assert world.inbox.get() is None
    world.disk.before = None
    inboxes.next_packet(peer, 0)
    assert world.inbox.get() is None, "it was given up, and comes again"
    inboxes.arrived(peer, parse.parse(packet), packet, 0)
    inboxes.next_packet(peer, 0)
    assert world.inbox.get().body == b"1"


def test_of_too_many_senders_nobody_is_forgotten_who_may_send_again_soon():
    world = world_of()
    world.node.inboxes._sources_max = 2
    world.senders = [Sender(number) for number in range(1, 4)]
    for sender in world.senders:
        sender.send(b"%d" % sender.guid[0], journal=0)
    bodies = []
    world.run(1000, taker(world, bodies))
    assert sorted(bodies) == [b"1", b"2"]
    assert len(world.node.outbox.sources) == 2
    assert world.node.inboxes.left > 0
    for source in world.node.inboxes._sources:
        source.heard = -DAY
    third = world.senders[2]
    wire = world.wires[third]
    world.run(31000, taker(world, bodies))
    assert len(bodies) == 2, "their sessions are open"
    assert world.wires[third] is wire, "the log has room for others that come this way"
    world.senders = []
    for source in world.node.inboxes._sources:
        source.heard = world.clock.ms
    for sender in list(world.wires):
        world.cut(sender)
    world.node.poll()
    for ms, count in ((DAY // 2, 2), (DAY // 2, 3)):
        world.clock.ms += ms
        world.senders = [third]
        world.run(1000, taker(world, bodies))
        world.cut(third)
        world.node.poll()
        assert len(bodies) == count, bodies
    assert third.stored == [1]
    assert (len(world.node.outbox.sources), world.node.inboxes.streams_forgotten) == (2, 1)


def addresses(count):
    """A sender as it calls a board that gets another address each time, with a sequence for each."""
    return [Sender(1, "DIRECT=TCP:10.0.1.{}\\private$\\commands".format(k), time_stamp=100 + k) for k in range(count)]


def test_a_board_whose_address_changes_hears_from_all_of_them():
    """DHCP: to its senders a queue at another address is another queue (B-099)."""
    world = world_of()
    senders = addresses(40)
    bodies = []
    for k, sender in enumerate(senders):
        world.senders = [sender]
        for number in range(2):
            sender.send(b"%d %d" % (k, number))
        world.run(2000, taker(world, bodies))
        assert bodies[-2:] == [b"%d 0" % k, b"%d 1" % k], (k, bodies[-2:])
        assert sender.is_settled
        world.restart(power.WAYS[k & 3])
    assert len(world.node.outbox.sources) == 32
    assert len(bodies) == 80
    for twin in addresses(40)[-32:]:  # what is sent again to one of the last 32 is known
        twin.send(b"again")
        twin.send(b"again")
        world.senders = [twin]
        world.run(1000, taker(world, bodies))
        assert twin.stored == [1, 2]
        world.cut(twin)
    assert len(bodies) == 80, bodies[80:]


def test_a_stream_with_a_message_that_waits_is_not_forgotten():
    first, second, third = addresses(3)
    world = world_of(second)
    second.send(b"1", journal=0)
    world.run(1000, taker(world, []))
    world.senders = [first]
    first.send(b"0")
    world.run(1000)
    world.restart()
    world.node.inboxes._sources_max = 2
    world.senders = [third]
    third.send(b"2")
    world.run(1000)
    assert [source.name for source in world.node.outbox.sources] == [
        sender.name.direct_format_name.lower() for sender in (third, first)
    ]
    world.restart()
    world.node.inboxes._sources_max = 2
    fourth = addresses(4)[3]
    world.senders = [fourth]
    fourth.send(b"3")
    world.run(1000)
    assert (fourth.seen, world.node.inboxes.left) == ([], 1), "both have one"
    bodies = []
    world.run(400000, taker(world, bodies))
    assert bodies == [b"0", b"2", b"3"], bodies


def test_a_cut_while_a_stream_is_forgotten_leaves_the_old_one_or_the_new_one():
    """At every eighth byte that is written, on MicroPython at every 32nd. Both use the same numbers: with the counters
    of the old one none is new.
    """
    cuts = 0
    for start, how in enumerate((power.KEEP_ALL, power.KEEP_SYNCED, power.TEAR, "error")):
        for is_owed in (False, True):
            at = -STRIDE * (start % 3)
            is_through = False
            while not is_through:
                at += 3 * STRIDE if how != "error" else 1
                first = Sender(1)
                second = Sender(2)
                world = world_of(first, segment_size=700, capacity=8000)
                world.node.inboxes._sources_max = 1
                for _ in range(3):
                    first.send(b"first")
                world.run(1000, None if is_owed else taker(world, []))
                while is_owed and world.inbox.waiting:
                    world.cut(first)
                    world.node.poll()
                    world.inbox.take(world.inbox.get())
                world.restart()
                world.node.inboxes._sources_max = 1
                world.senders = [second]
                second.send(b"second")
                left = [at]

                def fail(disk, step, data, left=left, how=how):
                    if how == "error":
                        left[0] -= 1
                        if left[0] == 0:
                            raise OSError(5)
                        return
                    size = len(data) + 1
                    if 0 < left[0] <= size:
                        raise power.PowerCut(data[: left[0] - 1])
                    left[0] -= size

                world.disk.before = fail
                bodies = []
                try:
                    world.run(1000 if how != "error" else 8000, taker(world, bodies))
                    is_through = left[0] > 0
                except power.PowerCut as cut:
                    world.disk.before = None
                    world.restart(how, power.Dice(at), cut.args[0])
                    (source,) = world.node.outbox.sources
                    counters = list(source.record)
                    if source.guid == first.guid:
                        assert (counters, bodies) == ([1, 100, 3, 0], []), (how, at)
                    else:
                        assert source.guid == second.guid
                        assert counters in ([0, 0, 0, 0], [1, 100, 1, 0]), (how, at, counters)
                    cuts += 1
                except OutboxError:
                    assert how == "error", "taken, but not durably"
                world.disk.before = None
                world.node.inboxes._sources_max = 1
                world.run(3000, taker(world, bodies))
                again = how != "error" and len(bodies) == 2  # handled, and not taken before the cut
                assert bodies == [b"second"] * (1 + again), (how, at, bodies)
                assert second.said == {1: 0x4000}, (how, at, second.seen)
    print(cuts, "cuts while a stream is forgotten")
    assert cuts * STRIDE > 320


def put_behind_router(sender):
    """What it sends comes on the session of another queue manager."""

    def open_session(now):
        sender.session = session.Session(True, bytes([9]) * 16, now)
        sender.session.connected(now)
        sender.stream.restart(now)

    sender.connect = open_session


def test_acknowledgements_go_back_the_way_the_message_came():
    """A router stands between: FinalAcks are for the sender, on the router's session, also after a reset."""
    sender = Sender(1, NUMBERED)
    world = world_of(sender)
    put_behind_router(sender)
    sender.send(b"1")
    sender.send(b"2")
    world.run(1000)
    assert sender.stored == [1, 2]
    world.inbox.take(world.inbox.get())
    for _ in range(2):
        world.run(61000)
        assert sender.said == {1: 0x4000}
        world.restart()
    world.inbox.take(world.inbox.get())
    stranger = Sender(3, NUMBERED)
    world.senders = [stranger]
    world.run(1000)
    assert stranger.seen == [], "a stranger could not pass it on"
    assert len(world.node.inboxes.owed.final_acks) == 1
    world.senders = [sender]
    world.run(1000)
    assert sender.said == {1: 0x4000, 2: 0x4000}
    assert world.node.inboxes.owed.final_acks == []


def test_acknowledgements_for_a_sender_behind_a_router_are_addressed_to_the_sender():
    """By its GUID, also where it names the queue directly, for the router's address means that (A-20, B-361, B-362)."""
    for behind in (True, False):
        sender = Sender(1)
        world = world_of(sender)
        if behind:
            put_behind_router(sender)
        told = {}
        take = sender._message

        def note(packet, now, told=told, take=take):
            told[type(packet)] = bytes(packet.message.user.queue_manager_address)
            take(packet, now)

        sender._message = note
        sender.send(b"on")
        world.run(2000, taker(world, []))
        address = sender.guid if behind else names.NULL_GUID
        assert told == {connection.OrderAck: address, headers.FinalAck: address}, told


def test_names_and_numbers_are_checked():
    world = world_of()
    node = world.node
    assert node.inbox("COMMANDS") is world.inbox
    assert node.inbox("commands", 7) is world.inbox
    assert node.inbox("H\u00f6he 2").name == "H\u00f6he 2"
    for name, number in (
        ("", 1),
        ("a\\b", 1),
        ("a+b", 1),
        ("a", -1),
        ("a", 1 << 32),
        ("a", 7),
        ("commands", 8),
        ("a", 4),
    ):
        try:
            node.inbox(name, number)
        except ValueError:
            continue
        raise AssertionError((name, number))


def test_a_sender_that_lost_its_memory_begins_anew():
    sender = Sender(1)
    world = world_of(sender)
    bodies = []
    for time_stamp in (100, 101, 99):
        sender = Sender(1, time_stamp=time_stamp)
        sender.send(b"%d" % time_stamp)
        for old in list(world.wires):
            world.cut(old)
        world.senders = [sender]
        world.run(1000, taker(world, bodies))
    assert (bodies, sender.said) == ([b"100", b"101"], {}), "an older sequence is never accepted (B-275)"


def life(seed):
    """A random history with broken links and power cuts. Every message is handled once and in order, or refused."""
    dice = power.Dice(seed)
    senders = [Sender(1, window=4), Sender(2, OTHER), Sender(3, NUMBERED), Sender(4, NOWHERE)]
    world = World(senders, inbox_quota=(2000, 8), segment_size=700, capacity=8000)
    application = Application()
    left = [0]

    def count_down(disk, step, data):
        left[0] -= 1
        if left[0] == 0:
            raise power.PowerCut(bytes(data[: dice.below(len(data) + 1)]))

    cuts = 0
    for _ in range(120):
        world.disk.before = count_down
        if left[0] <= 0:
            left[0] = 1 + dice.below(60)
        try:
            what = dice.below(12)
            sender = senders[dice.below(4)]
            if what < 3:
                for _ in range(1 + dice.below(4)):
                    sender.send(bytes(dice.below(200)), journal=(0, 0x100, 0x200)[dice.below(3)])
            elif what == 3:
                world.cut(sender)
            elif what == 4:
                world.clock.ms += 300 * dice.below(30)
            elif what < 8:
                application.look(world, dice)
            else:
                world.connect(sender)
                for _ in range(4):
                    world.step(1 + dice.below(600))
        except power.PowerCut as cut:
            cuts += 1
            world.disk.before = None
            world.restart(power.WAYS[dice.below(4)], dice, cut.args[0])
            application.restarted(world)
    world.disk.before = None

    def handle(message):
        what = (message.source, message.message_id)
        if what != application.open:
            assert what not in application.handled, ("handled before", what)
            application.handled.append(what)
        application.open = None
        world.inbox.take(message)

    for _ in range(40):
        world.run(31000 if _ else 3000, handle)
        if all(sender.is_settled for sender in senders) and not world.node.outbox.arrivals:
            break
    for sender in senders:
        assert sender.is_settled, (sender.guid, len(sender.stream.table), sender.said)
        handled = [what[1] for what in application.handled if what[0] == sender.guid]
        assert handled == sorted(handled), ("out of order", handled)
        for message_id in sender.sent:
            said = sender.said.get(message_id, 0)
            what = (sender.guid, message_id)
            if message_id in handled:
                assert said in (0, 0x4000) or (said == 0xC004 and what in application.rejected), (what, said)
            else:
                assert said in (0x8000, 0x8003), (what, said, "neither handled nor refused")
    inboxes = world.node.inboxes
    assert (inboxes.bytes, inboxes.messages) == (0, 0)
    assert world.node.outbox.arrivals == 0
    return cuts


def test_random_lives(first=1, count=LIVES):  # noqa: PT028 - more by hand
    cuts = sum([life(seed) for seed in range(first, first + count)])
    print(cuts, "cuts")
    assert cuts > count


TESTS = tests_of(globals())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        test_random_lives(int(sys.argv[1]), int(sys.argv[2]))
    run_calls([(test.__name__, test, (), {}) for test in TESTS])
