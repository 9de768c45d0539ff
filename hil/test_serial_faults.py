"""Faults on a serial line: each byte meets the fate that the plan has for it, and the line comes back."""

import asyncio
import os
import socket
import termios
import tty
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hil.boards import BoardMissing
from hil.faults import DOWN, LASTS_S, ONE_WAY, UP, Cut, CutSchedule, plan_cuts
from hil.serial_faults import (
    BYTES_MAX,
    FLIP,
    GARBAGE,
    LOSE,
    SERIAL_KINDS,
    UNPLUG,
    UNPLUGGED_MAX_S,
    Damage,
    SerialFaultProxy,
)

DEADLINE_S = 60.0


def pattern(count: int) -> bytes:
    """Bytes in which every place looks different from its neighbours at any power of two."""
    return bytes((i * 167 + i // 251) & 0xFF for i in range(count))


def within_deadline(body: Coroutine[Any, Any, None]) -> None:
    async def run() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await body

    asyncio.run(run())


# Damage


def carried(damage: Damage, direction: str, data: bytes, sizes: list[int], now: float = 0.0) -> bytes:
    """All of `data`, offered in chunks of `sizes` in turn."""
    arrived = b""
    turn = 0
    while data:
        size = sizes[turn % len(sizes)]
        arrived += damage.carry(direction, data[:size], now)
        data = data[size:]
        turn += 1
    return arrived


sizes = st.lists(st.integers(1, 300), min_size=1, max_size=9)
seeds = st.integers(0, 2**31)


@given(sizes, seeds)
def test_without_a_plan_everything_passes(chunks: list[int], seed: int) -> None:
    schedule = CutSchedule([])
    damage = Damage(schedule, seed)
    assert carried(damage, UP, pattern(1000), chunks) == pattern(1000)
    assert carried(damage, DOWN, pattern(500), chunks) == pattern(500)
    assert schedule.forwarded == {UP: 1000, DOWN: 500}


@given(st.sampled_from([UP, DOWN]), st.integers(1, 800), sizes, seeds)
def test_lost_bytes_are_those_behind_the_position(direction: str, position: int, chunks: list[int], seed: int) -> None:
    schedule = CutSchedule([Cut(0, direction, position, LOSE, position)])
    sent = pattern(1000)
    arrived = carried(Damage(schedule, seed), direction, sent, chunks)
    lost = len(sent) - len(arrived)
    assert 1 <= lost <= BYTES_MAX
    assert arrived == sent[:position] + sent[position + lost :]
    assert [(made.position, made.kind) for made in schedule.made] == [(position, LOSE)]


@given(st.sampled_from([UP, DOWN]), st.integers(1, 900), sizes, seeds)
def test_one_byte_is_changed(direction: str, position: int, chunks: list[int], seed: int) -> None:
    schedule = CutSchedule([Cut(0, direction, position, FLIP, position)])
    sent = pattern(1000)
    arrived = carried(Damage(schedule, seed), direction, sent, chunks)
    assert [i for i, (one, other) in enumerate(zip(sent, arrived, strict=True)) if one != other] == [position]


@given(st.sampled_from([UP, DOWN]), st.integers(1, 900), sizes, seeds)
def test_garbage_comes_between_whole_bytes(direction: str, position: int, chunks: list[int], seed: int) -> None:
    schedule = CutSchedule([Cut(0, direction, position, GARBAGE, position)])
    sent = pattern(1000)
    arrived = carried(Damage(schedule, seed), direction, sent, chunks)
    more = len(arrived) - len(sent)
    assert 1 <= more <= BYTES_MAX
    assert arrived[:position] + arrived[position + more :] == sent
    assert arrived == carried(
        Damage(CutSchedule([Cut(0, direction, position, GARBAGE, position)]), seed), direction, sent, [1000]
    )


@given(st.sampled_from([UP, DOWN]), st.integers(1, 900), sizes)
def test_an_unplugged_line_drops_both_directions_for_a_while(direction: str, position: int, chunks: list[int]) -> None:
    schedule = CutSchedule([Cut(0, direction, position, UNPLUG, position)])
    damage = Damage(schedule, 7)
    assert carried(damage, direction, pattern(1000), chunks) == pattern(1000)[:position]
    other = DOWN if direction == UP else UP
    assert damage.carry(other, b"lost", 0.0) == b""
    assert damage.carry(direction, b"here", UNPLUGGED_MAX_S) == b"here"
    assert damage.carry(other, b"there", UNPLUGGED_MAX_S) == b"there"


@given(st.sampled_from([UP, DOWN]), st.integers(1, 900), sizes)
def test_a_broken_wire_drops_its_own_direction_for_a_while(direction: str, position: int, chunks: list[int]) -> None:
    damage = Damage(CutSchedule([Cut(0, direction, position, ONE_WAY, position, 5.0)]), 7)
    assert carried(damage, direction, pattern(1000), chunks) == pattern(1000)[:position]
    assert damage.carry(DOWN if direction == UP else UP, b"there", 0.0) == b"there"
    assert damage.carry(direction, b"not yet", 4.9) == b""
    assert damage.carry(direction, b"here", 5.0) == b"here"


def test_a_fault_in_one_direction_leaves_the_other_alone() -> None:
    for kind in (LOSE, FLIP, GARBAGE, ONE_WAY):
        damage = Damage(CutSchedule([Cut(0, UP, 4, kind, 4)]), 1)
        damage.carry(UP, b"1234", 0.0)
        assert damage.carry(DOWN, pattern(200), 0.0) == pattern(200)


def test_power_cut_ends_active_fault_and_keeps_unused_fault() -> None:
    first, second = Cut(0, UP, 4, LOSE, 4), Cut(0, UP, 50, FLIP, 50)
    schedule = CutSchedule([first, second])
    damage = Damage(schedule, 1)
    assert damage.carry(UP, b"1234", 0.0) == b"1234"
    damage.restart()
    assert damage.carry(UP, pattern(49), 0.0) == pattern(49)
    damage.restart()
    assert damage.carry(UP, pattern(50), 0.0) == pattern(50)
    assert [made.planned for made in schedule.made] == [first, second]


@settings(deadline=None, max_examples=30)
@given(seeds, sizes)
def test_all_faults_of_a_plan_fall_when_the_expected_bytes_pass(seed: int, chunks: list[int]) -> None:
    cuts = plan_cuts(seed, 12, 20_000, 0, SERIAL_KINDS)
    schedule = CutSchedule(cuts)
    damage = Damage(schedule, seed)
    now = 0.0
    for start in range(0, 20_000 + 12 * 620 + 12 * BYTES_MAX, 200):
        carried(damage, UP, pattern(200), chunks, now)
        carried(damage, DOWN, pattern(20), chunks, now)
        now += LASTS_S[ONE_WAY] * (start % 3)
    assert [made.planned for made in schedule.made] == cuts
    assert {made.kind for made in schedule.made} <= set(SERIAL_KINDS)


# The proxy, with a real pseudo-terminal and a real socket


@asynccontextmanager
async def proxied(line: Path, cuts: list[Cut]) -> AsyncIterator[SerialFaultProxy]:
    proxy = SerialFaultProxy(CutSchedule(cuts), line, 1)
    await proxy.open(("127.0.0.1", 1))
    try:
        yield proxy
    finally:
        await proxy.close()
    assert not line.exists()


@asynccontextmanager
async def board_on(line: Path) -> AsyncIterator[socket.socket]:
    """The board is on: its end of the line."""
    with socket.socket(socket.AF_UNIX) as end:
        end.setblocking(False)
        await asyncio.get_running_loop().sock_connect(end, str(line))
        yield end


@contextmanager
def manager_on(proxy: SerialFaultProxy) -> Iterator[int]:
    """The queue manager has the terminal open."""
    terminal = os.open(proxy.port, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    try:
        tty.setraw(terminal)
        yield terminal
    finally:
        os.close(terminal)


async def read_terminal(terminal: int, count: int) -> bytes:
    data = b""
    while len(data) < count:
        try:
            data += os.read(terminal, count - len(data))
        except BlockingIOError:
            await asyncio.sleep(0.001)
    return data


async def read_board(board: socket.socket, count: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < count:
        chunk = await loop.sock_recv(board, count - len(data))
        assert chunk, "the proxy has hung up"
        data += chunk
    return data


def test_every_byte_value_passes_in_both_directions(tmp_path: Path) -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        async with proxied(tmp_path / "uart", []) as proxy, board_on(tmp_path / "uart") as board:
            assert proxy.serve_arguments() == ["--serial", f"board={proxy.port}"]
            assert proxy.board_settings("10.0.2.2") == {"serial": True}
            with manager_on(proxy) as terminal:
                sending = asyncio.create_task(loop.sock_sendall(board, pattern(20_000)))
                assert await read_terminal(terminal, 20_000) == pattern(20_000)
                await sending
                os.write(terminal, pattern(2000))
                assert await read_board(board, 2000) == pattern(2000)
                assert proxy.schedule.forwarded == {UP: 20_000, DOWN: 2000}

    within_deadline(body())


def test_a_planned_fault_falls_on_the_line(tmp_path: Path) -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        cuts = [Cut(0, UP, 5, GARBAGE, 5)]
        async with proxied(tmp_path / "uart", cuts) as proxy, board_on(tmp_path / "uart") as board:
            with manager_on(proxy) as terminal:
                await loop.sock_sendall(board, b"12345")
                assert len(await read_terminal(terminal, 6)) == 6
                assert [made.kind for made in proxy.schedule.made] == [GARBAGE]

    within_deadline(body())


def test_serial_data_sent_while_an_end_is_off_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[bytes] = []

    async def lose(data: bytes) -> None:
        lost.append(data)

    monkeypatch.setattr("hil.serial_faults._nowhere", lose)

    async def body() -> None:
        loop = asyncio.get_running_loop()
        async with proxied(tmp_path / "uart", []) as proxy:
            async with board_on(tmp_path / "uart") as board:
                await loop.sock_sendall(board, pattern(10_000))
                while proxy.schedule.forwarded[UP] < 10_000:
                    await asyncio.sleep(0.001)
                with manager_on(proxy) as terminal:
                    await loop.sock_sendall(board, b"heard")
                    assert await read_terminal(terminal, 5) == b"heard"
                with manager_on(proxy) as terminal:
                    await loop.sock_sendall(board, b"again")
                    assert await read_terminal(terminal, 5) == b"again"
            with manager_on(proxy) as terminal:
                while not lost:  # until the proxy knows that the board is off
                    os.write(terminal, b"to nobody")
                    await asyncio.sleep(0.001)
                os.write(terminal, b"!")
                while not lost[-1].endswith(b"!"):
                    await asyncio.sleep(0.001)
                connections = proxy.schedule.connections
                async with board_on(tmp_path / "uart") as board:
                    while proxy.schedule.connections == connections:
                        await asyncio.sleep(0.001)
                    os.write(terminal, b"hello")
                    assert await read_board(board, 5) == b"hello"

    within_deadline(body())


def test_queue_manager_that_reads_nothing_does_not_block_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hil.serial_faults._FULL_DEADLINE_S", 0.02)

    async def body() -> None:
        loop = asyncio.get_running_loop()
        async with proxied(tmp_path / "uart", []) as proxy, board_on(tmp_path / "uart") as board:
            with manager_on(proxy):
                await loop.sock_sendall(board, bytes(100_000))
                while proxy.schedule.forwarded[UP] < 100_000:
                    await asyncio.sleep(0.001)

    within_deadline(body())


@pytest.mark.parametrize("turns", range(6))
def test_close_releases_board_that_has_just_connected(tmp_path: Path, turns: int) -> None:
    """In whatever turn of the event loop. A socket that is left to the garbage collector fails the test."""

    async def body() -> None:
        async with proxied(tmp_path / "uart", []):
            await asyncio.sleep(0)
            with socket.socket(socket.AF_UNIX) as board:
                board.connect(str(tmp_path / "uart"))
                for _ in range(turns):
                    await asyncio.sleep(0)

    within_deadline(body())


def test_a_real_serial_port_can_be_the_line(tmp_path: Path) -> None:
    async def body() -> None:
        master, slave = os.openpty()
        os.set_blocking(master, False)
        proxy = SerialFaultProxy(CutSchedule([]), Path(os.ttyname(slave)), 1)
        try:
            await proxy.open(("127.0.0.1", 1))
            with manager_on(proxy) as terminal:
                os.write(master, b"from the board")
                assert await read_terminal(terminal, 14) == b"from the board"
                os.write(terminal, b"\x03\x0d\x0a\x11\x13")
                assert await read_terminal(master, 5) == b"\x03\x0d\x0a\x11\x13"
        finally:
            await proxy.close()
            os.close(master)
            os.close(slave)
        assert not list(tmp_path.iterdir())

    within_deadline(body())


def test_proxy_finds_port_again_at_each_power_up(tmp_path: Path) -> None:
    """It has another name each time."""
    port = tmp_path / "uart"

    def find() -> Path:
        if not port.is_symlink():
            raise BoardMissing("board bench: no port uart within 0 s")
        return port.readlink()

    async def body() -> None:
        proxy = SerialFaultProxy(CutSchedule([]), port, 1, find)
        await proxy.open(("127.0.0.1", 1))
        try:
            with manager_on(proxy) as terminal:
                for life in range(3):
                    master, slave = os.openpty()
                    os.set_blocking(master, False)
                    port.symlink_to(os.ttyname(slave))
                    while termios.tcgetattr(slave)[3] & termios.ICANON:  # until the proxy has it
                        await asyncio.sleep(0.001)
                    os.close(slave)
                    os.write(master, b"life %d" % life)
                    assert await read_terminal(terminal, 6) == b"life %d" % life
                    os.write(terminal, b"heard %d" % life)
                    assert await read_terminal(master, 7) == b"heard %d" % life
                    port.unlink()
                    os.close(master)
        finally:
            await proxy.close()
        assert not list(tmp_path.iterdir())

    within_deadline(body())
