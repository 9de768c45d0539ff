"""A gateway without a clock of its own: what was sent before the time was known lives as long as it was given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mqqb import acks, build, compose, confirm, headers, parse
from ordack.store.clock import hide_limits

from tests.support.host_world import START, WALL, Host, World, exchange, two_hosts

LINE1 = "DIRECT=OS:plant\\private$\\line1"
FOUR_DAYS = 345_600  # the time that a message has by default
NOT_SET = START // 1000 + 1  # what a clock without a battery shows, that began in 1970 when the machine was switched on


def _boot(world: World, sender: Host, shown: int) -> None:
    """The machine boots, its clock shows that time; so does nobody else's."""
    sender.manager.close()
    sender.store.close()
    sender.behind = world.wall - shown
    sender._open(world.now)


def _send(world: World, sender: Host, **properties: Any) -> int:
    with sender.client(world.wall) as client:
        return client.send(LINE1, b"x", **properties).message_id


def _poll(world: World, sender: Host, seconds: int = 0) -> None:
    world.now += 1000 * seconds
    sender.manager.poll(world.now, world.wall - sender.behind)
    while sender.manager.is_behind:
        sender.manager.poll(world.now, world.wall - sender.behind)


def _said(sender: Host, message_id: int) -> str:
    with sender.client() as client:
        found = client.state(message_id)
    assert found
    return found.answer


@pytest.mark.rule("B-311", "B-265", "B-314", "C-20")
@pytest.mark.parametrize("shown", [NOT_SET, WALL - 5 * FOUR_DAYS])
@pytest.mark.parametrize("serves", [True, False])
def test_what_was_sent_before_the_clock_was_set_does_not_expire_by_that(
    tmp_path: Path, shown: int, serves: bool
) -> None:
    """The clock shows 1970, or the time when the machine was switched off, twenty days ago."""
    world, receiver, sender = two_hosts(tmp_path)
    _boot(world, sender, shown)
    _poll(world, sender, 5)
    waits = _send(world, sender)
    short = _send(world, sender, ttrq=100, dead_letter=True)
    if not serves:
        sender.store.close()
    else:
        _poll(world, sender, 5)
    sender.behind = 0
    if not serves:
        if shown > NOT_SET:
            return  # nothing tells then when it was sent
        sender._open(world.now)
    _poll(world, sender, 5)
    assert [_said(sender, each) for each in (waits, short)] == [confirm.WAITING] * 2
    _poll(world, sender, 100)
    assert [_said(sender, each) for each in (waits, short)] == [confirm.WAITING, confirm.DEAD_LETTERED]
    exchange(world)
    assert receiver.content("line1") == [b"x"]
    world.pass_time(600)
    exchange(world)
    world.pass_time(600)
    assert _said(sender, waits) == confirm.STORED


@pytest.mark.rule("B-265", "B-266")
def test_a_peer_takes_what_is_sent_before_the_clock_was_set(tmp_path: Path) -> None:
    world, receiver, sender = two_hosts(tmp_path)
    _boot(world, sender, 1)
    sent = _send(world, sender)
    for _ in range(3):
        exchange(world)
        world.pass_time(600)
    assert receiver.content("line1") == [b"x"]
    assert _said(sender, sent) == confirm.STORED


@pytest.mark.rule("B-265")
def test_no_peer_is_told_a_time_that_is_none() -> None:
    name = acks.order_queue("h")
    for sent_time, ttrq, ttbr in ((0, compose.FOREVER, compose.FOREVER), (WALL, 9, 10)):
        packet = build.user_message(bytes(16), 1, name, b"", sent_time=sent_time, ttrq=9, ttbr=10)
        hide_limits(packet)
        message = parse.parse(packet)
        assert isinstance(message, headers.UserMessage)
        assert (message.base.time_to_reach_queue, message.user.time_to_be_received) == (ttrq, ttbr)


@pytest.mark.rule("B-288", "B-402")
def test_what_came_before_the_clock_was_set_can_still_be_received(tmp_path: Path) -> None:
    world, _, sender = two_hosts(tmp_path)
    _boot(world, sender, 100)
    _poll(world, sender, 5)
    with sender.client(world.wall) as client:
        client.send("line1", b"here", ttbr=60)
    sender.store._database.all("UPDATE messages SET arrived = ?", (1_000_000 * (world.wall - sender.behind),))
    sender.behind = 0
    _poll(world, sender, 5)
    with sender.client(world.wall) as client, client.queue("line1").receive() as message:
        assert message.body == b"here"
