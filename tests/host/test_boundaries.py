"""Limits and borders of which a change went unnoticed: who gives way, what is forgotten, what a purge leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
from ordack.client import Empty
from ordack.config.names import DEAD_LETTER, DEAD_XACT

from tests.support.host_world import WALL, Host, exchange, peer_of, two_hosts, world_of


@pytest.mark.rule("B-402", "B-144")
@pytest.mark.parametrize("delivery", ["transactional", "recoverable"])
@pytest.mark.parametrize(("ttbr", "late", "there"), [(5, 4, True), (5, 5, False), (0, 0, False)])
def test_message_is_available_until_last_second_before_expiry(
    tmp_path: Path, delivery: str, ttbr: int, late: int, there: bool
) -> None:
    """Also if nothing has removed it yet."""
    host = Host(tmp_path)
    queue = "line1" if delivery == "transactional" else "plain"
    with host.client() as client:
        client.send(queue, b"x", delivery=delivery, ttbr=ttbr)
    with host.client(WALL + late) as client:
        assert [message.body for message in client.queue(queue).peek()] == [b"x"] * there
        taken = client.queue(queue).receive()
        if there:
            with taken as message:
                assert message.body == b"x"
        else:
            with pytest.raises(Empty):
                taken.__enter__()
    host.store.close()


@pytest.mark.rule("B-284")
@pytest.mark.parametrize("missing", [0, 1])
def test_quota_is_exact_to_the_byte(tmp_path: Path, missing: int) -> None:
    host = Host(tmp_path)
    peer = peer_of(1)
    peer.send(b"x", sent_time=WALL)
    size = len(peer.packets[1])
    with host.client() as client:
        client.store.queues.set_quota("line1", 2 * size - missing)
    for _ in range(2):
        peer.send(b"x", sent_time=WALL)
    world = world_of([host], [peer])
    world.settle()
    assert len(host.content("line1")) == 2 - missing
    assert peer.rejected == dict.fromkeys(range(3 - missing, 4), 0x8003)
    host.store.close()


@pytest.mark.rule("B-405", "B-265", "B-311")
@pytest.mark.parametrize(("queue", "delivery"), [("line1", "transactional"), ("plain", "recoverable")])
@pytest.mark.parametrize("seconds", [3, 11])
def test_zero_ttrq_lasts_as_long_as_connect_timeout(tmp_path: Path, queue: str, delivery: str, seconds: int) -> None:
    """The peer is reached after three seconds, or is off."""
    world, receiver, sender = two_hosts(tmp_path)
    with sender.client() as client:
        sent = client.send(f"DIRECT=OS:plant\\private$\\{queue}", b"x", delivery=delivery, ttrq=0, dead_letter=True)
    for _ in range(seconds):
        world.pass_time(1000)
    for _ in range(4):
        exchange(world)
        world.pass_time(600)
    dead = sender.content(DEAD_LETTER) + sender.content(DEAD_XACT)
    assert (receiver.content(queue), dead) == (([b"x"], []) if seconds == 3 else ([], [b"x"]))
    assert any(str(sent.message_id) in line for line in sender.log) == (seconds == 11), "the log names the message"
