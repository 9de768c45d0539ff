"""Which numbers messages have when they leave: those that were transmitted keep theirs, others share a sequence."""

from __future__ import annotations

from pathlib import Path

import pytest
from mqqb import confirm
from ordack.client import Client
from ordack.config.config import Config

from tests.support.host_world import HERE, WALL, Host, World, exchange, world_of

LINE1 = "DIRECT=OS:plant\\private$\\line1"


def _hosts(tmp_path: Path) -> tuple[World, Host, Host]:
    receiver = Host(tmp_path / "receiver", Config(early_order_ack=0))  # an OrderAck leaves half a second later (B-045)
    sender = Host(tmp_path / "sender", Config(next_hops={"plant": HERE}), "10.0.0.9")
    return world_of([receiver, sender], []), receiver, sender


def _stop(sender: Host, orderly: bool = True) -> None:
    for wire in list(sender.wires.values()):
        wire.cut()
    if orderly:
        sender.manager.close()
    sender.store.close()


def _send_alone(sender: Host, body: bytes, ttrq: int | None = None) -> int:
    """As a process does that ends then, while no `serve` runs: the MessageID."""
    with Client(sender._life, clock=lambda: WALL) as client:
        return client.send(LINE1, body, ttrq=ttrq).message_id


def _drain(world: World, sender: Host) -> float:
    """Seconds until all is acknowledged."""
    began = world.now
    while sender.store.outgoing.messages():
        assert world.now < began + 1_000_000
        exchange(world)
        world.pass_time(50)
    return (world.now - began) / 1000


def _answers(sender: Host, sent: list[int]) -> list[tuple[str, bool]]:
    """What is said of each message, and whether it is in doubt."""
    with sender.client() as client:
        found = [client.state(message_id) for message_id in sent]
    return [(state.answer, state.in_doubt) for state in found if state]


@pytest.mark.rule("B-093", "B-096", "B-317")
def test_messages_of_200_processes_drain_in_a_few_seconds(tmp_path: Path) -> None:
    world, receiver, sender = _hosts(tmp_path)
    _stop(sender)
    bodies = [b"%d" % number for number in range(200)]
    for body in bodies:
        _send_alone(sender, body)
    sender._open(world.now)
    took = _drain(world, sender)
    print(f"drained in {took} s")
    assert receiver.content("line1") == bodies
    assert took < 5


@pytest.mark.rule("A-08", "B-098", "B-158")
@pytest.mark.parametrize("orderly", [True, False])
def test_a_transmitted_message_keeps_its_number_over_starts(tmp_path: Path, orderly: bool) -> None:
    """The receiver stores what each start transmits, and the sender never hears of it."""
    world, receiver, sender = _hosts(tmp_path)
    bodies = [b"%d" % number for number in range(20)]
    for start in range(5):
        _stop(sender, orderly)
        for body in bodies[4 * start : 4 * start + 4]:
            _send_alone(sender, body)
        sender._open(world.now)
        exchange(world)  # no time passes: no OrderAck leaves
    _drain(world, sender)
    assert receiver.content("line1") == bodies


@pytest.mark.rule("A-08", "B-426", "B-093")
@pytest.mark.parametrize("ttrq", [None, 50])
@pytest.mark.parametrize("starts", [1, 2])
def test_a_message_of_a_copied_folder_is_delivered_once(tmp_path: Path, ttrq: int | None, starts: int) -> None:
    """Five processes have sent before the folder was copied; all of it arrives in the life that is lost. ttrq: of the
    first message, which expires, so that no OrderAck for it shows the life that is lost. starts: before the connection
    is there again."""
    world, receiver, sender = _hosts(tmp_path)
    sent, bodies = _lose_a_life(world, receiver, sender, ttrq)
    sender.put_back(world)
    for _ in range(starts - 1):
        _stop(sender)
        sender._open(world.now)
    with sender.client() as client:
        sent.append(client.send(LINE1, b"new").message_id)
    _drain(world, sender)
    assert receiver.content("line1") == [*bodies, b"new"]
    answers = _answers(sender, sent)
    assert answers[-1] == (confirm.STORED, False)
    assert {in_doubt for _, in_doubt in answers[ttrq is not None : -1]} == {True}


def _lose_a_life(world: World, receiver: Host, sender: Host, ttrq: int | None = None) -> tuple[list[int], list[bytes]]:
    """Five processes send, a backup is made, and all is delivered. ttrq: of the first message."""
    _stop(sender)
    bodies = [b"%d" % number for number in range(5)]
    sent = [_send_alone(sender, body, None if number else ttrq) for number, body in enumerate(bodies)]
    sender.back_up()
    sender._open(world.now)
    _drain(world, sender)
    assert receiver.content("line1") == bodies
    world.pass_time(100_000)  # the clock is ahead of the TimeStamps of that life
    return sent, bodies
