"""Several outgoing queues on one connection: whose message goes next (B-305)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mqqb import headers
from mqqb.session import Settings
from ordack.broker.message import Letter
from ordack.config.config import Config

from tests.support.host_world import HERE, Host, World, packets_in, world_of

WINDOW = 4


def _slow(tmp_path: Path) -> tuple[World, Host, Host]:
    """A sender to a receiver that takes WINDOW messages at a time, connected."""
    receiver = Host(tmp_path / "receiver", Config(session=Settings(window_size=WINDOW)))
    for number in range(6):
        receiver.store.queues.create(f"fast{number}", transactional=False)
    sender = Host(tmp_path / "sender", Config(next_hops={"plant": HERE}), "10.0.0.9")
    return world_of([receiver, sender], []), receiver, sender


def _send(sender: Host, queue: str, *bodies: str, **properties: Any) -> None:
    with sender.client() as client:
        client.send_many(
            [Letter(f"DIRECT=OS:plant\\private$\\{queue}", body.encode(), **properties) for body in bodies]
        )


def _leave(world: World, rounds: int, more: Any = None) -> list[str]:
    """Bodies in the order in which they go over the wire. more: called before each round."""
    left: list[str] = []
    for _ in range(rounds):
        if more:
            more()
        world.pass_time(20)
        world.connect_all()
        for _ in range(4):
            world.collect()
            for wire in world.wires:
                left += [
                    bytes(packet.properties.body).decode()
                    for packet in packets_in(wire.to_host)
                    if isinstance(packet, headers.UserMessage)
                ]
            world.deliver(1 << 20)
    return left


@pytest.mark.rule("B-305")
def test_an_urgent_message_passes_three_hundred_others_of_another_queue(tmp_path: Path) -> None:
    world, receiver, sender = _slow(tmp_path)
    _send(sender, "fast0", *[f"a{number}" for number in range(300)], delivery="recoverable")
    left = _leave(world, 3)
    assert 0 < len(left) < 100
    _send(sender, "plain", "urgent", delivery="recoverable", priority=7)
    left += _leave(world, 200)
    assert len(left) == 301
    assert receiver.content("plain") == [b"urgent"]
    behind = next(place for place, body in enumerate(left) if body == "urgent")
    assert behind < 100 + 2 * WINDOW
