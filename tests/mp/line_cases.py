"""The line protocol: what both ends promise. Plain functions; MicroPython and pytest both run them."""

import struct

import line_world as worlds
from mqqb import line, line_py


def joined(window_up=512, window_down=200, number=0, size=512):
    """A world with a connection that has carried bytes both ways."""
    world = worlds.World(window_up, window_down, number, size)
    world.recover()
    return world


def settled():
    """The same, and nothing is under way."""
    world = joined(2000, 2000)
    for _ in range(4):
        world.turn(1, 0)
    world.wait(line.ASK_MS)
    for _ in range(4):
        world.turn(1, 0)
    return world


def frame(content):
    """A whole frame."""
    buffer = bytearray(line.FRAME_MAX + 1)
    buffer[1 : 1 + len(content)] = content
    end = line.seal(buffer, memoryview(buffer), 0, 1 + len(content))
    return bytes(buffer[:end])


def kinds(wire):
    """The kinds of the frames in these bytes, with rounds; None: no frame."""
    found = []
    for sealed in bytes(wire).split(b"\0"):
        content = bytearray(sealed)
        if content:
            found.append(content[1] if line.unseal(content, memoryview(content), 0, len(content)) else None)
    return found


def raises(kind, function, *arguments):
    try:
        function(*arguments)
    except kind:
        return True
    return False


def test_the_core_and_its_twin_make_the_same_of_everything():
    numbers = worlds.Random(2)
    for turn in range(2000):
        size = 1 + numbers.below(256)
        zeros = 1 + turn % 4
        one = bytearray(numbers.below(256) if numbers.below(zeros) == 0 else 0 for _ in range(size + 12))
        if turn % 2 and size <= 250:
            other = bytearray(one)
            end = line.seal(one, memoryview(one), 3, 3 + size)
            assert end == line_py.seal(other, memoryview(other), 3, 3 + size) == 3 + size + 5
            assert one == other
            one[end - 1 - numbers.below(end - 3)] ^= numbers.below(2)
            size = end - 4
        for at in range(3, 3 + size):
            one[at] = one[at] or 1
        other = bytearray(one)
        is_frame = line.unseal(one, memoryview(one), 3, 3 + size)
        assert is_frame == line_py.unseal(other, memoryview(other), 3, 3 + size)
        assert one == other or not is_frame


def test_the_core_and_its_twin_make_the_same_frames_of_a_stream():
    numbers = worlds.Random(3)
    one, other = bytearray(2000), bytearray(2000)
    heads = [bytearray(b"\2\7\11\xfe\xff\0\3"), bytearray(b"\2\7\11\xfe\xff\0\3")]
    data = memoryview(bytes(numbers.below(256) if numbers.below(2) else 0 for _ in range(900)))
    for _ in range(300):
        start = numbers.below(100)
        count, most = numbers.below(800), 30 + numbers.below(213)
        if numbers.below(4) == 0:
            count = numbers.below(3)
        end = line._put(one, memoryview(one), 1, heads[0], data, start, count, most)
        assert end == line_py.frames(other, memoryview(other), 1, heads[1], data, start, count, most)
        assert one[1:end] == other[1:end]
        assert heads[0] == heads[1]


def test_a_range_that_no_frame_can_have_is_a_mistake():
    if line._put is line_py.frames:
        return
    buffer = bytearray(300)
    view = memoryview(buffer)
    for start, end in ((0, 251), (0, 296), (5, 5), (6, 5), (-1, 5), (300, 300)):
        assert raises(ValueError, line.seal, buffer, view, start, end), (start, end)
    for start, end in ((0, 301), (6, 5), (-1, 5)):
        assert raises(ValueError, line.unseal, buffer, view, start, end), (start, end)
    assert line.seal(buffer, view, 45, 295) == 300
    head = bytearray(7)
    for at, start, count, most in (
        (1, 0, 288, 242),
        (2, 27, 273, 242),
        (301, 0, 1, 1),
        (-1, 0, 1, 1),
        (1, 1, 300, 242),
        (1, 0, 1, 0),
        (1, 0, 1, 243),
        (1, 301, 0, 1),
        (1, -1, 1, 1),
    ):
        wrong = buffer, view, at, head, bytes(300), start, count, most
        assert raises(ValueError, line._put, *wrong), wrong[4:]
    assert raises(ValueError, line._put, buffer, view, 1, bytearray(6), b"x", 0, 1, 1)
    assert line._put(buffer, view, 1, head, bytes(300), 27, 273, 242) == 300
    buffer = bytearray(1 + 4 * 255)
    assert line._put(buffer, memoryview(buffer), 1, head, bytes(968), 0, 968, 242) == len(buffer)
    assert raises(ValueError, line._put, buffer, memoryview(buffer), 1, head, bytes(969), 0, 969, 242)


def test_a_frame_with_any_byte_changed_lost_or_added_is_none():
    for content in (b"content", b"\1" + bytes(6), b"\1" + bytes(30) + b"\1\2\3" + bytes(50)):
        whole = frame(content)[:-1]
        for at in range(len(whole)):
            for wrong in (
                whole[:at] + bytes([whole[at] % 255 + 1]) + whole[at + 1 :],
                whole[:at] + whole[at + 1 :],
                whole[:at] + b"\1" + whole[at:],
                whole[:at],
            ):
                if wrong != whole:
                    sealed = bytearray(wrong)
                    assert not line.unseal(sealed, memoryview(sealed), 0, len(sealed)), (content, at)


def test_line_sender_stops_at_full_window_and_resumes_at_half():
    world = joined(200, 200)
    end = world.ends[0]
    world.emit(1)
    world.deliver(1)
    sent = 0
    while end.write(300, world.now):
        sent += len(end.line.output(world.now))
        world.emit(0)
    assert 0 < sent <= 200
    assert sent > 100
    assert not end.write(200, world.now)
    assert end.write(200 - sent - 13, world.now) == max(200 - sent - 13, 0)
    world.emit(0)
    assert not end.write(1, world.now)
    world.deliver(0)
    world.emit(1)
    assert len(world.wire[1]) == line.OVERHEAD + 1
    world.deliver(1)
    assert end.write(10, world.now) == 10


def test_frame_is_acked_after_small_buffer_reads_all_of_it():
    world = joined(400, 400)
    end, other = world.ends
    assert end.write(180, world.now) == 180
    world.emit(0)
    room = other.line.room()
    room[: len(world.wire[0])] = world.wire[0]
    other.line.received(len(world.wire[0]))
    small = bytearray(50)
    assert [other.line.read(small, world.now) for _ in range(3)] == [50, 50, 50]
    assert not other.line.output(world.now)
    assert other.line.read(memoryview(small), world.now) == 30
    assert other.line.read(small, world.now) == 0


def test_lost_open_is_retried_with_backoff_and_new_number():
    world = worlds.World()
    end = world.ends[0].line
    end.open(world.now)
    times, numbers = [], []
    while world.now < 20000:
        is_due = end.timeout(world.now) == 0
        sent = end.output(world.now)
        assert is_due == (sent is not None)
        if sent is not None:
            times.append(world.now)
            content = bytearray(sent[1:-1])
            assert line.unseal(content, memoryview(content), 0, len(content))
            numbers.append(content[2])
            end.written(len(sent))
        world.wait(50)
    assert times[:6] == [0, 250, 750, 1750, 3750, 5750]
    assert numbers == list(range(1, len(numbers) + 1))
    world.recover()


def test_a_close_is_heard_by_the_other_end():
    for which in (0, 1):
        world = joined()
        world.ends[which].line.close()
        assert world.ends[which].line.reason == "closed here"
        world.emit(which)
        world.deliver(which)
        other = world.ends[1 - which]
        assert other.events[-1] == line.ENDED
        assert other.line.reason == "closed by the other end"
        assert other.line.timeout(world.now) is None
        world.emit(1 - which)
        assert not world.wire[1 - which]
        world.recover()


def test_a_close_of_another_connection_is_passed_over():
    world = joined()
    opener, acceptor = world.ends[0].key()
    world.arrive(1, b"\0" + frame(bytes([3, opener, acceptor ^ 1, 0, 0, 0, 0])))
    world.arrive(1, b"\0" + frame(bytes([3, opener ^ 1, acceptor, 0, 0, 0, 0])))
    assert world.ends[1].line.state == line.OPEN
    world.arrive(1, b"\0" + frame(bytes([3, opener, acceptor, 0, 0, 0, 0])))
    assert world.ends[1].line.state == line.CLOSED


def spoiled(which, spoil):
    """Spoil what end `which` has on the wire, two frames of 63 bytes."""
    world = settled()
    for _ in range(2):
        world.ends[which].write(50, world.now)
        world.emit(which)
    assert len(world.wire[which]) == 126
    world.wire[which] = bytearray(spoil(bytes(world.wire[which])))
    world.deliver(which)
    return world


NO_FRAMES = (
    lambda wire: wire[:20] + bytes([wire[20] ^ 0x40]) + wire[21:],
    lambda wire: wire[:20] + wire[21:],
    lambda wire: wire[:62] + wire[63:],
    lambda wire: b"hello\0" + wire,
    lambda wire: b"\1" * 2000 + wire,
    lambda wire: wire[:62] + b"\1" * 2000 + wire[63:],
)
OUT_OF_TURN = (lambda wire: wire[63:], lambda wire: wire[:63] + wire, lambda wire: wire[63:] + wire[:63])


def test_damaged_or_misordered_frame_is_resent_at_once():
    for which in (0, 1):
        for number, spoil in enumerate(NO_FRAMES + OUT_OF_TURN):
            world = spoiled(which, spoil)
            end, other = world.ends[which], world.ends[1 - which]
            keys = end.key()
            for _ in range(2):
                world.emit(1 - which)
                world.deliver(1 - which)
                world.emit(which)
                world.deliver(which)
            assert other.read[-1][1] == end.written[-1][1], number
            assert world.connected()
            assert end.key() == keys
            assert (other.line.damaged > 0) == (number < len(NO_FRAMES)), number
            assert end.line.resent == (2, 2, 2, 0, 2, 2, 2, 0, 1)[number], number
            assert not end.line.damaged
            assert not other.line.resent


def test_line_asks_peer_about_lost_first_frames():
    world = settled()
    end, other = world.ends
    assert end.write(50, world.now) == 50
    world.emit(0)
    world.wire[0] = bytearray()  # all of it is lost, and nothing comes behind it
    world.wait(line.ASK_MS - 1)
    world.emit(0)
    assert not world.wire[0]
    assert end.line.timeout(world.now) == 1
    world.wait(1)
    world.emit(0)
    assert kinds(world.wire[0]) == [4]
    world.deliver(0)
    world.emit(1)
    assert kinds(world.wire[1]) == [0x85]
    world.deliver(1)
    world.emit(0)
    assert kinds(world.wire[0]) == [0x12]
    world.deliver(0)
    assert other.read[-1][1] == end.written[-1][1]
    assert end.line.resent == 1


def test_line_polls_less_often_and_ends_without_answer():
    world = settled()
    end = world.ends[0]
    assert end.write(50, world.now) == 50
    began = world.now
    heard = end.line._heard
    times = []
    while end.line.state == line.OPEN:
        world.emit(0)
        if 4 in kinds(world.wire[0]):
            times.append(world.now - began)
        world.wire[0] = bytearray()
        world.wait(50)
        world.check(0)
    assert times[:5] == [250, 750, 1750, 3750, 5750]
    assert end.line.reason == "nothing heard"
    assert 0 <= world.now - heard - line.SILENCE_MS < 50
    world.recover()


def test_an_answer_to_an_older_open_is_passed_over():
    world = worlds.World()
    end = world.ends[0].line
    end.open(world.now)
    world.emit(0)
    world.deliver(0)
    world.emit(1)
    world.wait(line.OPEN_MS)
    world.emit(0)
    world.deliver(1)
    assert end.state == line.OPENING
    world.deliver(0)
    world.emit(1)
    world.deliver(1)
    assert world.connected()
    assert world.ends[1].events == [line.OPENED, line.ENDED, line.OPENED]


def test_resend_stops_at_acked_bytes_and_keeps_frames_intact():
    for part in range(0, 200, 3):
        world = settled()
        end, other = world.ends
        acked = end.line._acked
        for _ in range(3):
            end.write(50, world.now)
            world.emit(0)
        first, world.wire[0] = world.wire[0], bytearray()
        head = bytes(end.key()) + struct.pack("<H", other.line._number_in)
        world.arrive(0, frame(b"\x85" + head + struct.pack("<H", acked)))
        world.emit(0, part)
        world.arrive(1, first)  # they come after all
        head = bytes(end.key()) + struct.pack("<H", other.line._head[3] | other.line._head[4] << 8)
        world.arrive(0, frame(b"\x82" + head + struct.pack("<H", acked + 126 & 0xFFFF)))
        world.emit(0)
        sent = kinds(world.wire[0])
        assert sent == [0x12] * min(3, 1 + (part + 61) // 63), (part, sent)
        world.deliver(0)
        world.turn(1, 50)
        assert not other.line.damaged, part
        assert other.read[-1][1] == end.written[-1][1]


def test_missing_frame_is_reported_and_resent_once_per_round():
    world = settled()
    end, other = world.ends
    for _ in range(5):
        end.write(50, world.now)
        world.emit(0)
    world.wire[0] = world.wire[0][63:]
    while world.wire[0]:
        world.deliver(0, 63)
        world.emit(1)
    assert kinds(world.wire[1]) == [0x85]
    world.wire[1] = world.wire[1] + world.wire[1]
    world.deliver(1)
    world.emit(0)
    assert kinds(world.wire[0]) == [0x12] * 5
    assert world.wire[0][0] == 0  # whatever stands on the line is ended
    world.wire[0] = world.wire[0][64:]  # the first one again
    world.deliver(0)
    world.emit(1)
    assert kinds(world.wire[1]) == [0x95]
    world.deliver(1)
    world.emit(0)
    assert kinds(world.wire[0]) == [0x22] * 5
    world.deliver(0)
    assert other.read[-1][1] == end.written[-1][1]
    assert end.line.resent == 10


def test_a_frame_that_never_arrives_ends_the_connection():
    world = settled()
    end, other = world.ends
    assert end.write(50, world.now) == 50
    tries = 0
    while end.line.state == line.OPEN:
        world.emit(0)
        if any(kind & 0x8F == 2 for kind in kinds(world.wire[0])):
            tries += 1
            world.wire[0] = bytearray()
        world.deliver(0)
        world.emit(1)
        world.deliver(1)
        world.wait(50)
    assert tries == 1 + line.TRIES
    assert end.line.reason == "sent again and again, and never taken"
    world.emit(0)
    world.deliver(0)
    assert other.line.reason == "closed by the other end"
    world.recover()


class Decay:
    """A wire on which one byte in a thousand is lost (kind 0), changed (1), or has another one in front (2)."""

    def __init__(self, kind):
        self.kind = kind
        self.numbers = worlds.Random(7 + kind)

    def __call__(self, data):
        left = bytearray()
        for value in data:
            if self.numbers.below(1000):
                left.append(value)
            elif self.kind:
                left.append(value ^ 1 << self.numbers.below(8))
                if self.kind == 2:
                    left.append(value)
        return left


def test_losing_one_byte_in_1000_keeps_connection_open():
    for kind in range(3):
        world = joined(1000, 500)
        decay = Decay(kind)
        for _ in range(300):
            world.turn(10, 100, decay)
        for _ in range(100):
            world.turn(100, 0)
        assert world.ends[0].events == world.ends[1].events == [line.OPENED]
        for end, other in (world.ends, world.ends[::-1]):
            assert other.read[-1][1] == end.written[-1][1]
            assert len(other.read[-1][1]) > 10000
            assert end.line.resent > 20
            assert end.line.damaged > 20


def test_frames_that_cannot_be_end_the_connection():
    for at, value, reason in (
        (1, 77, "of another connection"),
        (2, 77, "of another connection"),
        (0, 6, "of another connection"),
        (0, 0x82, "of another connection"),  # its own, that an echo brings back
        (6, 77, "more taken than sent"),
        (0, 1, "line protocol: version %d at the other end, version 1 here"),
    ):
        world = joined()
        end = world.ends[1].line
        content = bytearray([2]) + bytearray(world.ends[0].key()) + struct.pack("<HH", end._number_in, end._acked)
        content[at] = value
        world.arrive(1, frame(content))
        number = content[3] | content[4] << 8
        assert end.reason == (reason % number if "%" in reason else reason)
        world.recover()


def test_an_accept_that_comes_twice_ends_the_connection():
    world = joined()
    opener, acceptor = world.ends[0].key()
    world.arrive(0, frame(bytes([0x81, opener, acceptor, 1, 0, 0, 1])))
    assert world.ends[0].line.reason == "accepted again"
    world.recover()


def test_open_with_bad_version_or_window_gets_no_answer():
    for content in ([1, 1, 0, 2, 0, 0, 1], [1, 1, 0, 1, 0, 63, 0], [1, 1, 0, 1, 0, 0, 0x80]):
        world = worlds.World()
        world.arrive(1, b"\0" + frame(bytes(content)))
        world.emit(1)
        assert not world.wire[1]
        is_other = content[3] == 2
        assert world.ends[1].events == [line.ENDED] * is_other
        assert ("version 2" in world.ends[1].line.reason) == is_other
    assert raises(ValueError, line.Line, True, 63)
    assert raises(ValueError, line.Line, True, 32768)
    assert raises(ValueError, line.Line, True, 64, 0, 509)
    assert raises(ValueError, line.Line, True, 64, 0, 510, 3)


def test_restarted_line_end_closes_former_connection():
    for which in (0, 1):
        world = joined(2000, 2000)
        fresh = worlds.End(which == 0, 200, 50, 512)
        world.ends[which] = fresh
        world.wire = [bytearray(), bytearray()]
        other = world.ends[1 - which]
        assert other.write(10, world.now)
        world.emit(1 - which)
        world.deliver(1 - which)
        world.emit(which)
        world.deliver(which)
        assert other.line.reason == "closed by the other end"
        world.recover()


def test_one_way_dead_wire_closes_both_ends_with_reason():
    for which in (0, 1):
        world = settled()
        began = world.now
        ends = world.ends[which], world.ends[1 - which]
        keys = ends[0].key()
        while ends[0].line.state == line.OPEN and ends[0].key() == keys:
            world.turn(50, 20, lambda data: b"", (which,))
            assert world.now - began <= line.SILENCE_MS + 200
        assert ends[1].line.reason == "nothing heard"
        assert ends[0].line.reason == "closed by the other end"
        world.recover()


def test_an_opener_that_has_started_anew_is_heard_at_once():
    world = joined()
    world.ends[0] = worlds.End(True, 200, 50, 512)
    world.ends[0].line.open(world.now)
    world.emit(0)
    world.deliver(0)
    assert world.ends[1].events[-2:] == [line.ENDED, line.OPENED]
    assert world.ends[1].line.reason == "opened again"
    world.emit(1)
    world.deliver(1)
    assert world.connected()


def test_silence_ends_line_connection_and_traffic_keeps_it():
    world = joined()
    for _ in range(100):
        world.wait(700)
        for which in (0, 1):
            world.emit(which)
            world.deliver(which)
            world.check(which)
    assert world.connected()
    assert len(world.ends[0].events) == 1
    world.wait(line.KEEPALIVE_MS)
    world.emit(1)
    world.deliver(1)
    for _ in range(9):
        world.wait(700)
        world.check(0)
        assert world.ends[0].line.state == line.OPEN
    world.wait(700)
    world.check(0)
    assert world.ends[0].line.reason == "nothing heard"
    world.recover()


def test_without_a_connection_noise_is_passed_over():
    world = worlds.World()
    for which in (0, 1):
        for noise in (b"MicroPython v1.25.0\r\n>>> ", b"\0\0\0", bytes(range(256)) * 8, b"\xff" * 3000, b"\0a\0"):
            world.arrive(which, noise)
            world.emit(which)
            assert not world.wire[which]
    world.recover()


def test_nothing_of_a_connection_is_read_after_its_end():
    world = joined(400, 400)
    end, other = world.ends
    end.write(150, world.now)
    world.emit(0)
    room = other.line.room()
    room[: len(world.wire[0])] = world.wire[0]
    other.line.received(len(world.wire[0]))
    small = bytearray(10)
    assert other.line.read(small, world.now) == 10
    room = other.line.room()  # there is room while payload waits
    assert len(room)
    world.wait(line.SILENCE_MS)
    assert other.line.check(world.now) == line.ENDED
    assert other.line.read(small, world.now) == 0
    assert other.line.check(world.now) == 0


def test_a_world_of_accidents():
    for seed in range(36):
        accidents(seed, 150)


def accidents(seed, steps):
    """So many steps, a good part of them faults; then the line comes back."""
    numbers = worlds.Random(seed)
    windows = (64, 100, 511, 4000, 32767)
    up, down = windows[numbers.below(5)], windows[numbers.below(5)]
    world = worlds.World(up, down, numbers.below(256), 512 + numbers.below(3000))
    try:
        world.recover()
        for _ in range(steps):
            action = numbers.below(20)
            if action <= 5 and numbers.below(3):
                action = 18
            worlds.act(world, action, numbers.below(2), numbers.below(600), 1 + numbers.below(30), numbers.below(256))
        world.recover()
    except AssertionError:
        print("seed", seed)
        raise
