"""The line protocol: what both ends promise. Plain functions; MicroPython and pytest both run them."""

import struct

import line_world as worlds
from mqqb import line, line_py


def joined(window_up=512, window_down=200, number=0, size=512):
    """A world with a connection that has carried bytes both ways."""
    world = worlds.World(window_up, window_down, number, size)
    world.recover()
    return world


def frame(content):
    """A whole frame."""
    buffer = bytearray(line.FRAME_MAX + 1)
    buffer[1 : 1 + len(content)] = content
    end = line.seal(buffer, memoryview(buffer), 0, 1 + len(content))
    return bytes(buffer[:end])


def raises(kind, function, *arguments):
    try:
        function(*arguments)
    except kind:
        return True
    return False


def test_frames_come_back_whatever_is_in_them():
    numbers = worlds.Random(1)
    for size in list(range(7, 20)) + [100, 248, 249]:
        for zeros in (1, 2, 5, 300):
            mixed = bytes(numbers.below(256) if numbers.below(zeros) == 0 else 0 for _ in range(size))
            for content in (mixed, bytes(size), b"\xff" * size):
                sealed = bytearray(frame(content))
                assert sealed.find(b"\0") == len(sealed) - 1 == size + 5
                assert line.unseal(sealed, memoryview(sealed), 0, len(sealed) - 1)
                assert sealed[1:-5] == content


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
        end = line._put(one, memoryview(one), heads[0], data, start, count, most)
        assert end == line_py.frames(other, memoryview(other), heads[1], data, start, count, most)
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
    for start, count, most in ((0, 288, 242), (1, 300, 242), (0, 1, 0), (0, 1, 243), (301, 0, 1), (-1, 1, 1)):
        assert raises(ValueError, line._put, buffer, view, head, bytes(300), start, count, most), (start, count, most)
    assert raises(ValueError, line._put, buffer, view, bytearray(6), b"x", 0, 1, 1)
    assert line._put(buffer, view, head, bytes(300), 27, 273, 242) == 300
    buffer = bytearray(1 + 4 * 255)
    assert line._put(buffer, memoryview(buffer), head, bytes(968), 0, 968, 242) == len(buffer)
    assert raises(ValueError, line._put, buffer, memoryview(buffer), head, bytes(969), 0, 969, 242)


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


def test_bytes_go_both_ways_and_the_windows_hold():
    for up, down in ((64, 64), (200, 512), (32767, 64), (512, 32767)):
        world = joined(up, down)
        keys = world.ends[0].key()
        for _ in range(60):
            world.turn(1, 300)
        for _ in range(10):
            world.turn(1, 0)
        assert world.ends[0].key() == keys
        for end, other in (world.ends, world.ends[::-1]):
            assert other.read[-1][1] == end.written[-1][1]
            assert len(other.read[-1][1]) > 60 * 19


def test_a_sender_stops_when_the_window_is_used_up_and_goes_on_when_half_is_taken():
    world = joined(200, 200)
    end = world.ends[0]
    world.emit(1)
    world.deliver(1)
    sent = 0
    while end.write(300, world.now):
        sent += end.line.output(world.now)
        world.emit(0)
    assert 0 < sent <= 200
    assert sent > 100
    assert not end.write(200, world.now)
    assert end.write(200 - sent - 13, world.now) == max(200 - sent - 13, 0)
    world.emit(0)
    assert not end.write(1, world.now)
    world.deliver(0)
    world.emit(1)
    assert len(world.wire[1]) == line.OVERHEAD
    world.deliver(1)
    assert end.write(10, world.now) == 10


def test_a_reader_with_a_small_buffer_gets_a_frame_in_pieces_and_only_then_it_counts_as_taken():
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


def test_an_open_that_is_lost_is_sent_again_with_another_number_less_and_less_often():
    world = worlds.World()
    end = world.ends[0].line
    end.open(world.now)
    times, numbers = [], []
    while world.now < 20000:
        assert (end.timeout(world.now) == 0) == (end.output(world.now) > 0)
        if end.output(world.now):
            times.append(world.now)
            sent = bytearray(end.out[1 : end.out_end - 1])
            assert line.unseal(sent, memoryview(sent), 0, len(sent))
            numbers.append(sent[2])
            end.written(end.out_end)
        world.wait(50)
    assert times[:6] == [0, 250, 750, 1750, 3750, 5750]
    assert numbers == list(range(1, len(numbers) + 1))
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


def ends_with(reason, which, spoil):
    """Spoil what end `which` has on the wire, two frames of 63 bytes: the connection ends at once, for this reason."""
    world = joined(2000, 2000)
    for _ in range(2):
        world.ends[which].write(50, world.now)
        world.emit(which)
    world.wire[which] = bytearray(spoil(bytes(world.wire[which])))
    world.deliver(which)
    other = world.ends[1 - which]
    assert other.line.reason == reason, (other.line.reason, reason)
    world.emit(1 - which)
    world.deliver(1 - which)
    assert world.ends[which].line.reason == "closed by the other end"
    assert world.recover() < 300


def test_what_is_spoiled_on_the_wire_ends_the_connection_at_once_and_both_ends_hear():
    for which in (0, 1):
        for spoil in (
            lambda wire: wire[:20] + bytes([wire[20] ^ 0x40]) + wire[21:],
            lambda wire: wire[:20] + wire[21:],
            lambda wire: wire[:62] + wire[63:],
            lambda wire: b"hello\0" + wire,
            lambda wire: b"\1" * 2000 + wire,
        ):
            ends_with("no frame", which, spoil)
        for spoil in (
            lambda wire: wire[63:],
            lambda wire: wire[:63] + wire,
            lambda wire: wire[63:] + wire[:63],
        ):
            ends_with("frames are missing", which, spoil)


def test_frames_that_cannot_be_end_the_connection():
    for at, value, reason in (
        (1, 77, "of another connection"),
        (2, 77, "of another connection"),
        (0, 5, "of another connection"),
        (0, 0x82, "of another connection"),  # its own, that an echo brings back
        (5, 77, "more taken than sent"),
        (0, 1, "another version"),
    ):
        world = joined()
        end = world.ends[1].line
        content = bytearray([2]) + bytearray(world.ends[0].key()) + struct.pack("<HH", end._number_in, end._acked)
        content[at] = value
        world.arrive(1, frame(content))
        assert end.reason == reason
        world.recover()


def test_an_accept_that_comes_twice_ends_the_connection():
    world = joined()
    opener, acceptor = world.ends[0].key()
    world.arrive(0, frame(bytes([0x81, opener, acceptor, 1, 0, 0, 1])))
    assert world.ends[0].line.reason == "accepted again"
    world.recover()


def test_an_open_with_another_version_or_a_window_that_is_none_is_not_answered():
    for content in ([1, 1, 0, 2, 0, 0, 1], [1, 1, 0, 1, 0, 63, 0], [1, 1, 0, 1, 0, 0, 0x80]):
        world = worlds.World()
        world.arrive(1, b"\0" + frame(bytes(content)))
        world.emit(1)
        assert not world.wire[1]
    assert raises(ValueError, line.Line, True, 63)
    assert raises(ValueError, line.Line, True, 32768)
    assert raises(ValueError, line.Line, True, 64, 0, 509)


def test_an_end_that_has_started_anew_is_told_of_connections_that_it_does_not_have():
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


def test_an_open_that_comes_twice_gives_two_connections():
    world = worlds.World()
    seen = []
    for _ in range(2):
        world.arrive(1, frame(b"\1\5\0\1\0\0\2"))
        assert world.ends[1].line.write(b"not before it is accepted", world.now) == 0
        world.emit(1)
        sent = world.wire[1][1:-1]
        assert line.unseal(sent, memoryview(sent), 0, len(sent))
        seen.append(bytes(sent[1:4]))
        world.wire[1] = bytearray()
    assert seen == [b"\x81\5\x08", b"\x81\5\x09"]


def test_what_was_not_sent_when_a_connection_ends_is_not_sent():
    for which in (0, 1):
        world = joined(2000, 2000)
        end, other = world.ends[which], world.ends[1 - which]
        assert end.write(50, world.now) == 50
        world.emit(which, 20)
        other.line.close()
        world.emit(1 - which)
        world.deliver(1 - which)
        assert end.line.reason == "closed by the other end"
        assert end.line.output(world.now) == 0
        assert end.line.out_end == 0
        world.recover()


def test_an_accept_that_was_not_sent_when_its_connection_ends_is_not_sent():
    for closed_here in (True, False):
        world = worlds.World()
        world.arrive(1, frame(b"\1\5\0\1\0\0\2"))
        end = world.ends[1].line
        assert end.state == line.OPEN
        if closed_here:
            end.close()
        else:
            world.arrive(1, frame(bytes([3, 5, end._acceptor, 0, 0, 0, 0])))
        assert end.state == line.CLOSED
        world.emit(1)
        kinds = []
        for sent in bytes(world.wire[1]).split(b"\0"):
            content = bytearray(sent)
            if content:
                assert line.unseal(content, memoryview(content), 0, len(content))
                kinds.append(content[1])
        assert kinds == [0x83] * closed_here
        world.wire[1] = bytearray()
        world.recover()


def test_a_frame_without_an_end_ends_the_connection_when_it_is_too_long():
    world = joined()
    world.arrive(1, bytes([1]) * (line.FRAME_MAX - 1))
    assert world.ends[1].line.state == line.OPEN
    world.arrive(1, b"\1")
    assert world.ends[1].line.state == line.CLOSED


def test_silence_ends_a_connection_and_sending_now_and_then_keeps_it():
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


def test_the_next_thing_that_is_due_is_told():
    world = joined()
    end = world.ends[0].line
    world.emit(0)
    spoke = end._spoke
    assert end.timeout(spoke) == line.KEEPALIVE_MS
    assert end.timeout(spoke + 1500) == 500
    world.now = spoke + 2000
    assert end.timeout(world.now) == 0
    world.emit(0)
    assert end.timeout(world.now) == 2000
    end.close()
    assert end.timeout(world.now) is None


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


def test_numbers_may_wrap():
    world = joined(512, 512, 250)
    for _ in range(300):
        world.ends[0].line.close()
        world.turn()
        world.turn()
        for end in world.ends:
            assert end.read[-1][1]
            del end.read[:-1], end.written[:-1]
    world = joined(32767, 32767)
    for end in world.ends:
        end.line._head[3:5] = struct.pack("<H", 65500)
        end.line._number_in = 65500
    for _ in range(300):
        world.turn(1, 17)
    assert world.ends[1].line._number_in < 30000
    assert len(world.ends[0].events) == 1


def test_a_world_of_accidents():
    for seed in range(30):
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
            action = numbers.below(19)
            if action <= 5 and numbers.below(3):
                action = 18
            worlds.act(world, action, numbers.below(2), numbers.below(600), 1 + numbers.below(30), numbers.below(256))
        world.recover()
    except AssertionError:
        print("seed", seed)
        raise
