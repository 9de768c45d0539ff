"""The fault proxy: its plan is reproducible and within its bounds, and its cuts fall at exactly the byte they name."""

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hil.faults import (
    ACKNOWLEDGEMENT_BYTES,
    DOWN,
    FIN,
    GOES_ON,
    HALF_OPEN,
    LATE,
    ONE_WAY,
    OPENING_BYTES,
    RST,
    SHARE_OF_CUTS,
    SHARE_OF_PAUSES,
    SLOW,
    SLOW_BYTES,
    SLOW_STEP_S,
    TCP_KINDS,
    UP,
    Cut,
    CutSchedule,
    Passage,
    TcpFaultProxy,
    plan_cuts,
)

DEADLINE_S = 60.0
NO_LINGER = struct.pack("ii", 1, 0)


def pattern(count: int) -> bytes:
    """Bytes in which every place looks different from its neighbours at any power of two."""
    return bytes((i * 167 + i // 251) & 0xFF for i in range(count))


# The plan


@given(st.integers(0, 2**31), st.integers(0, 80), st.integers(0, 10**7), st.integers(0, 20))
def test_plan_is_reproducible_and_within_its_bounds(seed: int, count: int, traffic: int, interruptions: int) -> None:
    cuts = plan_cuts(seed, count, traffic, interruptions)
    assert cuts == plan_cuts(seed, count, traffic, interruptions)
    assert len(cuts) == count
    earlier = 0
    for cut in cuts:
        assert cut.kind in TCP_KINDS
        assert cut.position >= 1
        assert cut.up_limit >= 1
        if cut.direction == UP:
            assert cut.position == cut.up_limit
        else:
            assert cut.position <= OPENING_BYTES + ACKNOWLEDGEMENT_BYTES
        assert cut.after >= earlier
        earlier = cut.after


@settings(deadline=None)
@given(
    st.integers(0, 2**31),
    st.integers(0, 20),
    st.integers(1, 10**6),
    st.lists(st.integers(0, 100_000), max_size=10),
    st.integers(4096, 65536),
)
def test_planned_cuts_all_happen_before_traffic_ends(
    seed: int, count: int, traffic: int, kills: list[int], chunk: int
) -> None:
    """Without a single acknowledgement; `kills` end connections after so many bytes."""
    cuts = plan_cuts(seed, count, traffic, len(kills))
    schedule = CutSchedule(cuts)
    wasted = count + len(kills) * (max((cut.up_limit for cut in cuts), default=0) + chunk)  # a byte each at least
    messages_passed = 0
    while len(schedule.made) < count:
        passage = schedule.open()
        kill_at = kills.pop() if kills else None
        while (
            not passage.is_cut and len(schedule.made) < count and (kill_at is None or passage.forwarded[UP] < kill_at)
        ):
            if offer(passage, UP, chunk)[1]:
                passage.cut_made(UP)
        messages_passed += max(0, passage.forwarded[UP] - OPENING_BYTES)
        passage.close()
    assert messages_passed <= (SHARE_OF_CUTS + SHARE_OF_PAUSES) * traffic + wasted


# Counting

chunks = st.lists(st.tuples(st.sampled_from((UP, DOWN)), st.integers(1, 50)), max_size=60)


def offer(passage: Passage, direction: str, count: int) -> tuple[int, bool]:
    """Forward as much of `count` bytes as is allowed, as a proxy does; how many, and whether that made the cut."""
    forwarded = 0
    while forwarded < count:
        allowed = passage.allowed(direction, count - forwarded)
        if not allowed:
            break
        forwarded += allowed
        if passage.passed(direction, allowed):
            return forwarded, True
    return forwarded, False


@given(chunks, st.integers(1, 50), chunks, st.sampled_from((UP, DOWN)), st.integers(1, 300), st.integers(1, 300))
def test_a_passage_is_cut_at_the_byte_and_only_once(
    before: list[tuple[str, int]],
    last: int,
    offered: list[tuple[str, int]],
    direction: str,
    position: int,
    up_limit: int,
) -> None:
    """The cut's turn comes with the last upstream byte of `before` and `last`."""
    before = [*before, (UP, last)]
    if direction == UP:
        up_limit = position
    base = {way: sum(count for one, count in before if one == way) for way in (UP, DOWN)}
    schedule = CutSchedule([Cut(base[UP], direction, position, RST, up_limit)])
    passage = schedule.open()
    for way, count in before:
        assert offer(passage, way, count) == (count, False)
    limits = {UP: base[UP] + up_limit, DOWN: base[DOWN] + position if direction == DOWN else 10**9}
    asked = dict(base)
    cuts = 0
    for way, count in offered:
        was_cut = passage.is_cut
        allowed, made = offer(passage, way, count)
        cuts += made
        if was_cut:
            assert (allowed, made) == (0, False)
        else:
            asked[way] += count
            assert passage.forwarded[way] == min(asked[way], limits[way])
            assert made == (asked[way] >= limits[way])
    assert passage.is_cut == (cuts == 1)
    passage.close()
    assert schedule.open().planned is not None, "nobody has said that the cut was made"
    assert schedule.forwarded == passage.forwarded


def test_unreached_cut_moves_to_next_connection_in_order() -> None:
    first, second = Cut(0, UP, 10, RST, 10), Cut(0, UP, 20, FIN, 20)
    schedule = CutSchedule([first, second])
    passage = schedule.open()
    assert offer(passage, UP, 9) == (9, False)
    passage.close()
    again = schedule.open()
    assert (again.number, again.planned) == (2, first)
    assert offer(again, UP, 99) == (10, True)
    again.cut_made(UP)
    again.close()
    assert schedule.open().planned == second
    assert schedule.open().planned is None
    assert [(made.connection, made.position, made.planned) for made in schedule.made] == [(2, 10, first)]


# The proxy on real sockets


def within_deadline(body: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine; it fails when it hangs."""

    async def guarded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await body

    asyncio.run(guarded())


async def receive_all(link: socket.socket) -> tuple[bytes, str]:
    """Everything up to the connection's end, and how it ended: `FIN` or `RST`."""
    data = bytearray()
    loop = asyncio.get_running_loop()
    try:
        while chunk := await loop.sock_recv(link, 65536):
            data += chunk
    except ConnectionError:
        return bytes(data), RST
    return bytes(data), FIN


async def receive(link: socket.socket, count: int) -> bytes:
    """So many bytes."""
    data = b""
    while len(data) < count:
        data += await asyncio.get_running_loop().sock_recv(link, count - len(data))
    return data


async def send_all(link: socket.socket, data: bytes) -> None:
    """Send until done or the connection is cut."""
    with suppress(ConnectionError):
        await asyncio.get_running_loop().sock_sendall(link, data)


@asynccontextmanager
async def proxied(cuts: list[Cut] | CutSchedule) -> AsyncIterator[tuple[TcpFaultProxy, socket.socket]]:
    """A proxy with its target, a listening socket that the test accepts from."""
    with socket.create_server(("127.0.0.1", 0)) as target:
        target.setblocking(False)
        proxy = TcpFaultProxy(cuts if isinstance(cuts, CutSchedule) else CutSchedule(cuts))
        await proxy.open(target.getsockname())
        try:
            yield proxy, target
        finally:
            await proxy.close()


@asynccontextmanager
async def connected(proxy: TcpFaultProxy, target: socket.socket) -> AsyncIterator[tuple[socket.socket, socket.socket]]:
    """One connection through the proxy: the board's end and the target's end."""
    loop = asyncio.get_running_loop()
    with socket.socket() as near:
        near.setblocking(False)
        await loop.sock_connect(near, proxy.address)
        far, _ = await loop.sock_accept(target)
        with far:
            far.setblocking(False)
            yield near, far


@pytest.mark.parametrize("kind", [RST, FIN])
@pytest.mark.parametrize("direction", [UP, DOWN])
@pytest.mark.parametrize("position", [1, 36, 65535, 65536, 65537, 200_001])
def test_a_cut_is_byte_exact_and_both_ends_see_it(direction: str, position: int, kind: str) -> None:
    async def body() -> None:
        cut = Cut(0, direction, position, kind, position if direction == UP else 1000)
        data = pattern(300_000)
        async with proxied([cut]) as (proxy, target), connected(proxy, target) as (near, far):
            sender, receiver = (near, far) if direction == UP else (far, near)
            sending = asyncio.create_task(send_all(sender, data))
            assert await receive_all(receiver) == (data[:position], kind)
            # The sender's end is over as well: with a FIN it can still write for a while, into nothing.
            received, ending = await receive_all(sender)
            assert received == b""
            assert ending == kind
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            (made,) = proxy.schedule.made
            assert (made.direction, made.position, made.kind) == (direction, position, kind)
            assert made.planned == cut

    within_deadline(body())


def test_cut_missed_by_reset_moves_to_next_connection() -> None:
    async def body() -> None:
        cut = Cut(0, UP, 100_000, RST, 100_000)
        async with proxied([cut]) as (proxy, target):
            target.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            async with connected(proxy, target) as (near, far):
                await send_all(near, pattern(100_000))
                while proxy.schedule.forwarded[UP] < 100_000:
                    await asyncio.sleep(0)
                assert proxy.schedule.made == []
                far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
                far.close()
                assert (await receive_all(near))[1] == RST
            async with connected(proxy, target) as (near, far):
                await send_all(near, pattern(100_001))
                assert await receive_all(far) == (pattern(100_000), RST)
            assert [made.connection for made in proxy.schedule.made] == [2]

    within_deadline(body())


def test_downstream_cut_without_acks_uses_upstream_limit() -> None:
    async def body() -> None:
        cut = Cut(0, DOWN, 500, RST, 2000)
        async with proxied([cut]) as (proxy, target), connected(proxy, target) as (near, far):
            await send_all(far, pattern(499))
            await send_all(near, pattern(5000))
            assert await receive_all(far) == (pattern(2000), RST)
            (made,) = proxy.schedule.made
            assert (made.direction, made.position, made.planned) == (UP, 2000, cut)

    within_deadline(body())


@pytest.mark.parametrize("direction", [UP, DOWN])
def test_half_open_connection_delivers_nothing_more(direction: str) -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        async with proxied([Cut(0, direction, 5, HALF_OPEN, 5 if direction == UP else 1000)]) as (proxy, target):
            async with connected(proxy, target) as (near, far):
                await send_all(near if direction == UP else far, b"0123456789")
                arrived, ending = await receive_all(near)
                assert (arrived, ending) == (b"" if direction == UP else b"01234", RST)
                async with connected(proxy, target) as (again, far_again):
                    await send_all(again, b"again")
                    again.shutdown(socket.SHUT_WR)
                    assert await receive_all(far_again) == (b"again", FIN)
                    await send_all(far, b"to nobody")
                    if direction == UP:
                        assert await loop.sock_recv(far, 100) == b"01234"
                    with pytest.raises(BlockingIOError):
                        far.recv(100)
            assert [(made.kind, made.position) for made in proxy.schedule.made] == [(HALF_OPEN, 5)]

    within_deadline(body())


@asynccontextmanager
async def held_after_five(
    kind: str, direction: str
) -> AsyncIterator[tuple[TcpFaultProxy, socket.socket, socket.socket, socket.socket]]:
    """A proxy that holds a direction up behind five bytes for longer than a test lasts, its target, and the ends of a
    connection."""
    cut = Cut(0, direction, 5, kind, 5 if direction == UP else 1000, for_s=10 * DEADLINE_S)
    async with proxied([cut]) as (proxy, target), connected(proxy, target) as (near, far):
        yield proxy, target, near, far


@pytest.mark.parametrize("kind", [LATE, ONE_WAY])
@pytest.mark.parametrize("direction", [UP, DOWN])
def test_delay_fault_affects_only_its_own_direction(direction: str, kind: str) -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        async with held_after_five(kind, direction) as (_, _, near, far):
            sender, receiver = (near, far) if direction == UP else (far, near)
            await send_all(sender, b"0123456789")
            assert await loop.sock_recv(receiver, 100) == b"01234"
            await send_all(receiver, b"other way")
            assert await loop.sock_recv(sender, 100) == b"other way"
            with pytest.raises(BlockingIOError):
                receiver.recv(100)

    within_deadline(body())


class Counting(CutSchedule):
    """Notes how much is forwarded at a time."""

    def __init__(self, cuts: list[Cut]) -> None:
        super().__init__(cuts)
        self.counts: list[int] = []

    def count(self, direction: str, count: int) -> None:
        super().count(direction, count)
        self.counts.append(count)


@pytest.mark.parametrize("direction", [UP, DOWN])
@pytest.mark.parametrize("for_s", [10 * DEADLINE_S, 0.001])
def test_a_slow_direction_trickles_for_its_time_and_no_longer(direction: str, for_s: float) -> None:
    """By the least time that it may take, and by how much passes at once: a slow machine makes neither less."""

    async def body() -> None:
        schedule = Counting([Cut(0, direction, 5, SLOW, 5 if direction == UP else 1000, for_s=for_s)])
        async with proxied(schedule) as (proxy, target), connected(proxy, target) as (near, far):
            sender, receiver = (near, far) if direction == UP else (far, near)
            await send_all(sender, b"01234")
            assert await receive(receiver, 5) == b"01234"
            while not schedule.made:
                await asyncio.sleep(0)
            schedule.counts.clear()
            await asyncio.sleep(0.002)
            begun, sent = time.monotonic(), pattern(30 * SLOW_BYTES)
            await send_all(sender, sent)
            assert await receive(receiver, len(sent)) == sent
            if for_s < 1:
                assert max(schedule.counts) > SLOW_BYTES
            else:
                assert max(schedule.counts) <= SLOW_BYTES
                assert time.monotonic() - begun >= 0.9 * 29 * SLOW_STEP_S

    within_deadline(body())


@pytest.mark.parametrize("direction", [UP, DOWN])
def test_one_way_partition_blocks_that_direction_until_it_ends(direction: str) -> None:
    """Also of one that is begun meanwhile: it comes into being at the far end, or it does not."""

    async def body() -> None:
        loop = asyncio.get_running_loop()
        async with held_after_five(ONE_WAY, direction) as (proxy, target, near, far):
            sender, receiver = (near, far) if direction == UP else (far, near)
            await send_all(sender, b"01234")
            assert await loop.sock_recv(receiver, 100) == b"01234"
            while not proxy.schedule.made:
                await asyncio.sleep(0)
            with socket.socket() as again:
                again.setblocking(False)
                await loop.sock_connect(again, proxy.address)
                await send_all(again, b"again")
                accepting = asyncio.create_task(loop.sock_accept(target))
                if direction == UP:
                    await send_all(far, b"the other way")
                    assert await loop.sock_recv(near, 100) == b"the other way"
                    assert not accepting.done()
                    accepting.cancel()
                    return
                far_again, _ = await accepting
                with far_again:
                    assert await loop.sock_recv(far_again, 100) == b"again"
                    await send_all(far_again, b"no answer")
                    await send_all(far, b"nor here")
                    await send_all(near, b"up")
                    assert await loop.sock_recv(far, 100) == b"up"
                    for end in (again, near):
                        with pytest.raises(BlockingIOError):
                            end.recv(100)

    within_deadline(body())


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([UP, DOWN]), st.integers(1, 400), st.sampled_from(GOES_ON)), max_size=6))
def test_delayed_or_slow_data_arrives_unchanged_without_cut(planned: list[tuple[str, int, str]]) -> None:
    cuts = [Cut(0, direction, position, kind, 2000, 0.01) for direction, position, kind in planned]

    async def body() -> None:
        up, down = pattern(15_000), pattern(15_000)[::-1]
        async with proxied(cuts) as (proxy, target), connected(proxy, target) as (near, far):
            at_board, at_target, *_ = await asyncio.gather(
                receive(near, len(down)), receive(far, len(up)), send_all(near, up), send_all(far, down)
            )
            assert (at_board, at_target) == (down, up)
            assert [made.planned for made in proxy.schedule.made] == cuts
            assert proxy.schedule.connections == 1

    within_deadline(body())


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 40_000), max_size=5), st.lists(st.integers(1, 40_000), max_size=5))
def test_after_the_last_cut_everything_passes_unchanged(up: list[int], down: list[int]) -> None:
    async def exchange(link: socket.socket, outgoing: bytes, sizes: list[int]) -> bytes:
        async def send() -> None:
            start = 0
            for size in sizes:
                await send_all(link, outgoing[start : start + size])
                start += size
            link.shutdown(socket.SHUT_WR)

        (data, ending), _ = await asyncio.gather(receive_all(link), send())
        assert ending == FIN
        return data

    async def body() -> None:
        to_target, to_board = pattern(sum(up)), pattern(sum(down))[::-1]
        async with proxied([Cut(0, UP, 3, RST, 3)]) as (proxy, target):
            async with connected(proxy, target) as (near, far):
                await send_all(near, b"abcdef")
                assert await receive_all(far) == (b"abc", RST)
            async with connected(proxy, target) as (near, far):
                at_board, at_target = await asyncio.gather(exchange(near, to_target, up), exchange(far, to_board, down))
            assert (at_board, at_target) == (to_board, to_target)
            assert len(proxy.schedule.made) == 1
            assert proxy.schedule.forwarded == {UP: 3 + sum(up), DOWN: sum(down)}

    within_deadline(body())


def test_connections_reset_and_planned_cut_waits_for_target() -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        async with proxied([Cut(0, UP, 4, FIN, 4)]) as (proxy, target):
            address = target.getsockname()
            target.close()
            for attempt in (1, 2):
                with socket.socket() as near:
                    near.setblocking(False)
                    await loop.sock_connect(near, proxy.address)
                    assert await receive_all(near) == (b"", RST)
                assert proxy.refused == attempt
            assert proxy.schedule.connections == 0
            with socket.create_server(address) as target_again:
                target_again.setblocking(False)
                async with connected(proxy, target_again) as (near, far):
                    await send_all(near, b"123456")
                    assert await receive_all(far) == (b"1234", FIN)

    within_deadline(body())


def test_close_ends_connections_and_frees_the_port() -> None:
    async def body() -> None:
        async with proxied([Cut(0, UP, 2, FIN, 2)]) as (proxy, target), connected(proxy, target) as (near, _):
            await send_all(near, b"abc")
            async with connected(proxy, target) as (other, _):
                await send_all(other, b"x")
                await proxy.close()
                assert (await receive_all(other))[0] == b""
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(proxy.address)
            assert len(asyncio.all_tasks()) == 1

    within_deadline(body())


@pytest.mark.parametrize("turns", range(6))
def test_a_connection_that_comes_just_before_close_is_closed_too(turns: int) -> None:
    """In whatever turn of the event loop. A socket that is left to the garbage collector fails the test."""

    async def body() -> None:
        async with proxied([]) as (proxy, _):
            await asyncio.sleep(0)
            with socket.create_connection(proxy.address) as near:
                for _ in range(turns):
                    await asyncio.sleep(0)
                await proxy.close()
                near.setblocking(False)
                assert (await receive_all(near))[0] == b""

    within_deadline(body())
