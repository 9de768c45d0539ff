"""What a board accepted in many starts without a connection leaves as one sequence, once, in order."""

from __future__ import annotations

import contextlib
import copy
import errno

import power
import pytest
from ordack.node import Node

from hil.dice import new_seed
from tests.node.destination import LINE, Destination, elsewhere

LONG_MS = 240000


def _wake(disk: power.Disk, count: int, size: int = 0) -> list[bytes]:
    """So many starts, in each of which one message is accepted, and nothing leaves."""
    bodies = [b"%d" % number + bytes(size) for number in range(count)]
    for body in bodies:
        node = Node("", files=disk)
        node.queue(LINE).put(body)
        node.close_now()
    return bodies


def _drain(disk: power.Disk, destination: Destination, limit_ms: int = LONG_MS) -> None:
    node = Node("", files=disk, connect=("127.0.0.1", destination.port), random=lambda: 0.99)
    node.queue(LINE)
    try:
        assert node.wait(lambda: not node.waiting, limit_ms)
        assert not node.stats.failed
        node.close_now()
    finally:
        for link in node.links:
            link.close()  # type: ignore[attr-defined]


def _sequences(destination: Destination) -> int:
    return len({sequence for sequence, _ in destination.numbers})


@pytest.mark.rule("B-093", "B-096", "B-317")
def test_messages_of_480_starts_leave_in_few_sequences() -> None:
    """As many as are in memory, and behind them what has come into memory meanwhile. Each waits for an OrderAck."""
    disk = power.Disk()
    bodies = _wake(disk, 480)
    with elsewhere() as destination:
        _drain(disk, destination)
        print(f"{_sequences(destination)} sequences")
        assert destination.bodies == bodies
        assert _sequences(destination) <= 20


@pytest.mark.rule("A-08", "B-098")
@pytest.mark.parametrize("how", power.WAYS)
def test_a_power_cut_at_any_write_repeats_nothing(how: str) -> None:
    """The destination goes on from what it has got before."""
    seed = new_seed()
    stored = power.Disk()
    bodies = _wake(stored, 6, 3000)  # not all of them fit into the buffer of the log
    done = 0
    for place in range(4000):
        step = place // 4
        disk = copy.deepcopy(stored)
        with elsewhere() as destination:
            if not _cut_at(disk, step, destination):
                done = step
                break
            _drain(disk.after_cut(how, power.Dice(seed + place)), destination)
            assert destination.bodies == bodies, place
    assert done > 10


def _cut_at(disk: power.Disk, step: int, destination: Destination) -> bool:
    """Drain until the power fails at this step of the disk. False: it has not failed."""
    left = step

    def before(_disk: power.Disk, _step: str, _data: bytes) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise power.PowerCut

    disk.before = before
    try:
        _drain(disk, destination)
    except power.PowerCut:
        return True
    return False


@pytest.mark.rule("A-08", "B-098")
@pytest.mark.parametrize("lasts", [False, True])
def test_a_write_that_fails_repeats_nothing(lasts: bool) -> None:
    """At any step, once or until the power fails some steps later. The node goes on, and then starts again."""
    seed = new_seed()
    stored = power.Disk()
    bodies = _wake(stored, 6, 3000)
    done = 0
    for place in range(4000):
        step = place // 4
        disk = copy.deepcopy(stored)
        dice = power.Dice(seed + place)
        with elsewhere() as destination:
            if not _fail_at(disk, step, lasts, dice, destination):
                done = step
                break
            _drain(disk.after_cut(power.WAYS[dice.below(4)], dice), destination)
            assert destination.bodies == bodies, place
    assert done > 10


def _fail_at(disk: power.Disk, step: int, lasts: bool, dice: power.Dice, destination: Destination) -> bool:
    """Drain, while writes fail from this step on, or this one alone, until the power fails. False: none has failed,
    and all of it has left."""
    left, end = step, dice.below(12) + 1

    def before(disk: power.Disk, _step: str, _data: bytes) -> None:
        nonlocal left
        left -= 1
        if left < -end:
            raise power.PowerCut
        if left == -1 or (left < 0 and lasts):
            if disk.tail is not None:
                disk.tail.unreliable = True
            raise OSError(errno.EIO)

    disk.before = before
    with contextlib.suppress(power.PowerCut, OSError, AssertionError):  # a start fails, or nothing goes on
        _drain(disk, destination, 500)
        return left < 0
    return True


@pytest.mark.rule("A-08", "B-426")
def test_message_in_restored_outbox_is_delivered_once() -> None:
    """All of it has arrived in the life that is lost."""
    disk = power.Disk()
    bodies = _wake(disk, 6)
    copied = copy.deepcopy(disk)
    with elsewhere() as destination:
        _drain(disk, destination)
        assert destination.bodies == bodies
        node = Node("", files=copied, connect=("127.0.0.1", destination.port), random=lambda: 0.99)
        message = node.queue(LINE).put(b"new")
        try:
            assert node.wait(message.is_settled, LONG_MS)
            assert destination.bodies == [*bodies, b"new"]
            node.close_now()
        finally:
            for link in node.links:
                link.close()  # type: ignore[attr-defined]
