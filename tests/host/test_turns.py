"""Several outgoing queues on one connection: whose message goes next (B-305)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqqb import headers
from mqqb.session import Settings
from mqqb.streams import Entry, OutgoingStream
from ordack.broker.links import PATIENCE, Turns
from ordack.broker.sending import Letter
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


def _queues(priorities: list[list[int]]) -> list[Any]:
    found = []
    for number, entries in enumerate(priorities):
        stream = OutgoingStream(OutgoingStream.new(1))
        for place, priority in enumerate(entries):
            stream.append(Entry((number, place), 1, priority=priority))
        found.append(SimpleNamespace(stream=stream, turn=0))
    return found


@pytest.mark.rule("B-305")
@given(st.lists(st.lists(st.integers(0, 7), max_size=20), max_size=8), st.data())
def test_the_highest_priority_goes_first_and_nothing_waits_for_ever(
    priorities: list[list[int]], data: st.DataObject
) -> None:
    queues = _queues(priorities)
    turns = Turns()
    sent: list[tuple[int, int, int]] = []
    while any(queue.stream.next_to_send() for queue in queues):
        at_most = data.draw(st.integers(1, 30))  # then the window is closed
        for queue, entry in turns.among(queues):
            if not at_most:
                break
            at_most -= 1
            waiting = {
                place: other.stream.next_to_send() for place, other in enumerate(queues) if other.stream.next_to_send()
            }
            if (turns.count + 1) % PATIENCE:
                assert entry.priority == max(head.priority for head in waiting.values())
                same = [queues[place] for place, head in waiting.items() if head.priority == entry.priority]
                assert queue.turn == min(other.turn for other in same)
            else:
                assert queue.turn == min(queues[place].turn for place in waiting)
            sent.append((entry.key[0], -entry.priority, entry.key[1]))
            queue.stream.remove([entry])
    assert len(sent) == sum(map(len, priorities))
    for number, entries in enumerate(priorities):
        own = [(priority, place) for of, priority, place in sent if of == number]
        assert own == sorted((-priority, place) for place, priority in enumerate(entries))
