"""What OrderAcks tell a queue manager of a life of its store that it knows nothing of: a backup was put back, or there
is a copy. Numbers that it gives anew must be taken for new ones; what cannot be known must be said to be in doubt."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from mqqb import acks, confirm, guids
from ordack.broker.sending import Sent
from ordack.config.config import PORT

from tests.support.host_world import Host, World, exchange, two_hosts

LINE1 = "DIRECT=OS:plant\\private$\\line1"
IN_DOUBT = (confirm.DISCARDED, 0x8002, True)
STORED = (confirm.STORED, 0, False)


def _send(sender: Host, *bodies: bytes) -> list[Sent]:
    with sender.client() as client:
        return [client.send(LINE1, body) for body in bodies]


def _seconds(world: World, count: int) -> None:
    for _ in range(2 * count):
        exchange(world)
        world.pass_time(500)


def _states(sender: Host, sent: list[Sent]) -> list[tuple[str, int, bool]]:
    with sender.client() as client:
        found = [client.state(one.message_id) for one in sent]
    return [(one.answer, one.message_class, one.in_doubt) for one in found if one]


def _reopen(world: World, sender: Host) -> None:
    """An orderly stop, and another start."""
    for wire in list(world.wires):
        wire.cut()
    sender.manager.close()
    sender.store.close()
    sender._open(world.now)


def _from_destination(receiver: Host, packet: bytearray, world: World) -> None:
    [link] = receiver.wires
    link.session.send(None, packet, False, world.now)
    receiver.manager.links.touch(link)


def _newer(sender: Host) -> int:
    return sum("newer than any given here" in line for line in sender.log)


@pytest.mark.rule("B-426", "A-22", "B-079", "B-230", "A-04", "B-413")
def test_clock_behind_after_restore_puts_messages_in_doubt(tmp_path: Path) -> None:
    world, receiver, sender = two_hosts(tmp_path)
    _send(sender, b"1")
    _seconds(world, 2)
    sender.back_up()
    _send(sender, b"2", b"3")
    _seconds(world, 2)
    _reopen(world, sender)
    _send(sender, b"4")
    _seconds(world, 2)
    sender.behind = 1000
    sender.put_back(world)
    refused = _send(sender, b"5", b"6")
    _seconds(world, 2)
    assert _newer(sender) == 1
    later = _send(sender, b"7")
    _seconds(world, 40)  # two OrderAcks, and a resend between them
    assert receiver.content("line1") == [b"1", b"2", b"3", b"4", b"7"]
    assert _states(sender, refused) == [IN_DOUBT] * 2
    assert _states(sender, later) == [STORED]
    assert sum("in doubt, it may have arrived" in line for line in sender.log) == 2
    _send(sender, b"8")
    _seconds(world, 2)
    assert receiver.content("line1")[-1] == b"8"
    assert sender.store.outgoing.messages() == []
    packet = acks.order_ack(acks.order_queue("10.0.0.9"), receiver.store.guid, 1, 0, 1, 1_900_000_000, 1)
    _from_destination(receiver, packet, world)  # once more, as of a twin that is at work
    _seconds(world, 1)
    assert _newer(sender) == 1, "told once"


@pytest.mark.rule("B-413", "B-426", "B-230")
def test_running_copies_report_no_false_stored_message(tmp_path: Path) -> None:
    world, receiver, sender = two_hosts(tmp_path)
    _send(sender, b"0")
    _seconds(world, 2)
    twin = Host(tmp_path / "twin", sender.config, "10.0.0.10")
    twin.store.close()
    shutil.rmtree(twin._life)
    shutil.copytree(sender._life, twin._life)
    twin._open(world.now)
    world.hosts.append(twin)
    sent: list[tuple[Host, Sent, bytes]] = []
    for number in range(6):
        for host, name in ((sender, b"sender"), (twin, b"twin")):
            body = b"%s %d" % (name, number)
            sent += [(host, one, body) for one in _send(host, body)]
            _seconds(world, 40)
    assert (_newer(sender), _newer(twin)) == (1, 1)
    arrived = receiver.content("line1")
    assert len(set(arrived)) == len(arrived)
    states = [(_states(host, [one])[0], body in arrived) for host, one, body in sent]
    assert set(states) == {(STORED, True), (IN_DOUBT, False)}
    assert states.count((STORED, True)) >= 6


@pytest.mark.rule("B-241", "B-020", "B-426")
@pytest.mark.parametrize("same_id", [False, True])
def test_final_ack_from_before_restore_settles_no_new_message(tmp_path: Path, same_id: bool) -> None:
    """same_id: by chance, or because MessageIDs have rolled over."""
    world, receiver, sender = two_hosts(tmp_path)
    receiver.manager.config.next_hops = {guids.guid_text(sender.store.guid)[1:-1].lower(): ("10.0.0.9", PORT)}
    sender.back_up()
    with sender.client() as client:
        lost = client.send(LINE1, b"lost", dead_letter=True)
    _seconds(world, 2)
    world.wires[0].cut()
    with receiver.client() as client, client.queue("line1").receive():
        pass  # its FinalAck waits for a session
    sender.put_back(world)
    if same_id:
        sender.store._database.all(
            "UPDATE settings SET value = ? WHERE name = 'message_id_ordinal'", (lost.message_id - 1,)
        )
    with sender.client() as client:
        new = client.send("DIRECT=TCP:10.0.0.66\\private$\\line1", b"new", dead_letter=True)
    assert (new.message_id == lost.message_id) == same_id
    _seconds(world, 3)
    assert receiver.store.outgoing.messages() == [], "the FinalAck has come"
    assert _states(sender, [new]) == [(confirm.WAITING, 0, False)]
