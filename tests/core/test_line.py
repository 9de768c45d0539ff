"""The line protocol: its cases that MicroPython runs too, and any accidents that hypothesis can think of."""

from __future__ import annotations

import line_cases
import line_world as worlds
import pytest
from cobs import cobs
from hypothesis import given, settings
from hypothesis import strategies as st
from mqqb import line

globals().update({name: case for name, case in vars(line_cases).items() if name.startswith("test_")})
for case in (line_cases.test_a_world_of_accidents, line_cases.test_losing_one_byte_in_1000_keeps_connection_open):
    pytest.mark.untraced(case)


def test_a_few_accidents_reach_every_line() -> None:
    for seed in range(4):
        line_cases.accidents(seed, 150)


@given(st.binary(min_size=7, max_size=249) | st.lists(st.sampled_from([0, 0, 0, 1, 255]), min_size=7).map(bytes))
def test_a_frame_is_cobs_and_a_zero(content: bytes) -> None:
    content = content[:249]
    sealed = line_cases.frame(content)
    assert sealed[-1] == 0
    decoded = cobs.decode(sealed[:-1])
    assert decoded[:-4] == content
    again = bytearray(cobs.encode(decoded))
    assert line.unseal(again, memoryview(again), 0, len(again))
    assert again[1:-4] == content


actions = st.tuples(
    st.sampled_from([0, 1, 2, 3, 4, 5, 6, 10, 14, 15, 16, 17, 18, 19, 6, 10, 18]),
    st.integers(0, 1),
    st.integers(0, 600),
    st.integers(1, 40),
    st.integers(0, 255),
)


@pytest.mark.untraced
@settings(max_examples=150)
@given(
    st.lists(actions, max_size=60),
    st.sampled_from([64, 200, 4000]),
    st.sampled_from([64, 500, 32767]),
    st.integers(0, 255),
)
def test_line_delivers_prefix_and_recovers_after_any_events(
    steps: list[tuple[int, int, int, int, int]], up: int, down: int, number: int
) -> None:
    world = worlds.World(up, down, number)
    world.recover()
    for step in steps:
        worlds.act(world, *step)
    world.recover()


@pytest.mark.untraced
@given(st.lists(st.integers(1, 700), min_size=1), st.lists(st.integers(1, 700), min_size=1))
def test_any_split_of_the_bytes_is_the_same(emitted: list[int], delivered: list[int]) -> None:
    world = line_cases.joined(2000, 2000)
    before = len(world.ends[1].read)
    for one, other in zip(emitted * 5, (delivered * 5 * len(emitted))[: 5 * len(emitted)]):
        world.ends[0].write(one, world.now)
        world.emit(0, one)
        world.deliver(0, other)
        world.emit(1)
        world.deliver(1)
    world.emit(0)
    world.deliver(0)
    assert len(world.ends[1].read) == before
    assert world.ends[1].read[-1][1] == world.ends[0].written[-1][1]


STEPS = 4  # of the simulated wire in a millisecond


def speed(baud: int, rxbuf: int, sender: int, board_ms: int, host_ms: int, kept: int = 8) -> float:
    """What part of the line's speed is payload from end `sender` (0 the board), in 3 s of simulated time.

    Each end looks at its port every so many ms only. kept: frames of the board.
    """
    ends = line.Line(True, rxbuf - line.RESERVE, 0, 510, kept), line.Line(False, 16384, 0, 1 << 16, 64)
    outgoing, arrived = (bytearray(), bytearray()), (bytearray(), bytearray())
    buffer = bytearray(2000)
    got, credit = 0, [0.0, 0.0]
    ends[0].open(0)
    for step in range(3000 * STEPS):
        now = step // STEPS
        for which, period in enumerate((board_ms, host_ms)):
            if step % (period * STEPS) == 0:
                got += heard(ends[which], arrived[1 - which], buffer, now)
                while len(outgoing[which]) < 1024:
                    if data := ends[which].output(now):
                        outgoing[which].extend(data)
                        ends[which].written(len(data))
                    elif which != sender or not ends[which].write(bytes(range(1, 201)) * 4, now):
                        break
            credit[which] = min(credit[which], 1) + baud / 10000 / STEPS
            count = int(credit[which])
            credit[which] -= count
            arrived[which].extend(outgoing[which][:count])
            assert which == 0 or len(arrived[1]) <= rxbuf, "the board's buffer is full"
            del outgoing[which][:count]
    return got / 3 / (baud / 10)


def heard(end: line.Line, arrived: bytearray, buffer: bytearray, now: int) -> int:
    """All that has arrived is read: how many bytes of payload."""
    got = 0
    while True:
        while count := end.read(buffer, now):
            got += max(count, 0)
        if not arrived:
            assert not end.check(now)
            return got
        room = end.room()
        count = min(len(room), len(arrived))
        room[:count] = arrived[:count]
        del arrived[:count]
        end.received(count)


@pytest.mark.parametrize(
    ("baud", "rxbuf", "board_ms", "host_ms"),
    [
        (9600, 256, 20, 20),
        (115200, 256, 2, 2),
        (115200, 1024, 20, 15),
        (230400, 1024, 8, 8),
        (460800, 1024, 4, 4),
        (921600, 1024, 1, 2),
        (921600, 1024, 2, 2),
        (921600, 4096, 8, 8),
    ],
)
def test_a_line_carries_four_fifths_of_its_speed_either_way(baud: int, rxbuf: int, board_ms: int, host_ms: int) -> None:
    for sender in (0, 1):
        part = speed(baud, rxbuf, sender, board_ms, host_ms)
        print(("board to host", "host to board")[sender], round(part, 3))
        assert part >= 0.8


def test_line_is_silent_when_closed_or_awaiting_answer() -> None:
    end = line.Line(True, 256)
    assert end.output(0) is None
    end.open(0)
    asked = end.output(0)
    assert asked
    end.written(len(asked))
    assert end.output(line.OPEN_MS - 1) is None
    assert end.output(line.OPEN_MS)
