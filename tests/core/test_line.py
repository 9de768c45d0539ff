"""The line protocol: its cases that MicroPython runs too, and any accidents that hypothesis can think of."""

from __future__ import annotations

import line_cases
import line_world as worlds
from cobs import cobs
from hypothesis import given, settings
from hypothesis import strategies as st
from mqqb import line

globals().update({name: case for name, case in vars(line_cases).items() if name.startswith("test_")})


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
    st.sampled_from([0, 1, 2, 3, 4, 5, 6, 10, 14, 15, 16, 17, 18, 6, 10, 18]),
    st.integers(0, 1),
    st.integers(0, 600),
    st.integers(1, 40),
    st.integers(0, 255),
)


@settings(max_examples=300)
@given(
    st.lists(actions, max_size=60),
    st.sampled_from([64, 200, 4000]),
    st.sampled_from([64, 500, 32767]),
    st.integers(0, 255),
    st.sampled_from([0, 0, 0, 1, 2, 3]),
)
def test_whatever_happens_a_prefix_arrives_and_the_line_comes_back(
    steps: list[tuple[int, int, int, int, int]], up: int, down: int, number: int, old: int
) -> None:
    world = worlds.World(up, down, number, old=old)
    world.recover()
    for step in steps:
        worlds.act(world, *step)
    world.recover()


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
