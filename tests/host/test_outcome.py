"""What becomes of messages that end at their destination: FinalAcks, administration acknowledgements, reports, copies
in dead-letter queues; and of those whose destination is on the machine that sent them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import packet_build
import pytest
from hypothesis import given
from mqqb import compose, confirm, core, headers, names, rare
from mqqb.session import Session
from ordack.config.config import Access, Config
from ordack.config.names import DEAD_LETTER, DEAD_XACT, JOURNAL
from ordack.store import packet_fields

from tests.host.outcomes import (
    ADMIN,
    JN,
    JP,
    NA,
    NR,
    PA,
    PR,
    Sender,
    application,
    copies,
    received,
    rejected,
    run,
    sender_to,
)
from tests.support.host_world import WALL, Host, World, exchange, world_of
from tests.support.layouts import user_messages

UNSETTLED = 0  # class of no message: nothing came


def send_raw(world: World, sender: Sender, packet: bytearray) -> None:
    """Send a packet on the sender's session, past its stream."""
    assert sender.session
    sender.session.send(None, packet, bool(packet[60] & core.USER_DM), world.now)
    exchange(world)


@given(user_messages())
def test_a_body_is_found_without_a_look_at_all_headers(message: headers.UserMessage) -> None:
    packet = bytes(packet_build.build(message))
    where = packet_fields.body_in(packet)
    if where is None:
        assert message.security or (message.transaction and message.transaction.connector_qm_guid)
    else:
        assert packet[where] == bytes(message.properties.body)


# ---- a message leaves its queue -------------------------------------------------------------------


def given_back(world: World, host: Host) -> None:
    with application(world, host) as client, contextlib.suppress(KeyError), client.queue("line1").receive():
        raise KeyError


def purged(world: World, host: Host) -> None:
    with application(world, host) as client:
        assert client.purge_queue("line1") == 1


def _purge_while_locked(world: World, host: Host, end: BaseException | None) -> None:
    with application(world, host) as client, contextlib.suppress(KeyError), client.queue("line1").receive():
        with application(world, host) as operator:
            assert operator.purge_queue("line1") == 1
        run(world, 2000)
        if end:
            raise end


def purged_and_given_back(world: World, host: Host) -> None:
    _purge_while_locked(world, host, KeyError())


def purged_and_received(world: World, host: Host) -> None:
    _purge_while_locked(world, host, None)


def deleted(world: World, host: Host) -> None:
    with application(world, host) as client:
        assert client.delete_queue("line1") == 1


def expired(world: World, _host: Host) -> None:
    run(world, 11_000)


def _expire_while_locked(world: World, host: Host, end: BaseException | None) -> None:
    with application(world, host) as client, contextlib.suppress(KeyError), client.queue("line1").receive():
        run(world, 15_000)
        assert len(host.store.queues.all("name = 'line1' AND messages = 1")) == 1
        if end:
            raise end


def expired_and_given_back(world: World, host: Host) -> None:
    _expire_while_locked(world, host, KeyError())


def expired_and_received(world: World, host: Host) -> None:
    _expire_while_locked(world, host, None)


REMOVALS = [
    pytest.param(received, 0x4000, marks=pytest.mark.rule("B-338", "B-369", "C-50"), id="received"),
    pytest.param(given_back, UNSETTLED, marks=pytest.mark.rule("B-343"), id="aborted"),
    pytest.param(rejected, 0xC004, marks=pytest.mark.rule("B-342", "B-387", "C-54"), id="rejected"),
    pytest.param(purged, 0xC001, marks=pytest.mark.rule("B-340", "B-384", "C-53"), id="purged"),
    pytest.param(purged_and_given_back, 0xC001, marks=pytest.mark.rule("B-340"), id="purged while locked, aborted"),
    pytest.param(purged_and_received, 0x4000, marks=pytest.mark.rule("B-340"), id="purged while locked, committed"),
    pytest.param(deleted, 0xC000, marks=pytest.mark.rule("B-339", "B-383", "C-52"), id="queue deleted"),
    pytest.param(expired, 0xC002, marks=pytest.mark.rule("B-288", "B-341", "B-385", "C-51", "A-50"), id="expired"),
    pytest.param(
        expired_and_given_back,
        0xC002,
        marks=pytest.mark.rule("B-341", "B-407", "C-51"),
        id="expired while locked, aborted",
    ),
    pytest.param(
        expired_and_received, 0x4000, marks=pytest.mark.rule("B-407", "C-51"), id="expired while locked, committed"
    ),
]


def require_final_ack(message: headers.UserMessage) -> None:
    assert message.transaction is not None
    message.transaction.flags |= core.TX_FA


@pytest.mark.rule("B-116", "B-337", "B-343", "B-360")
@pytest.mark.parametrize(
    ("journal", "change"), [(0, None), (JN, None), (JP, None), (0, require_final_ack)], ids=["", "JN", "JP", "FA"]
)
@pytest.mark.parametrize(("remove", "message_class"), REMOVALS)
def test_removal_sends_final_ack_if_jn_jp_or_fa_is_set(
    host: Host,
    remove: Callable[[World, Host], None],
    message_class: int,
    journal: int,
    change: Callable[[headers.UserMessage], None] | None,
) -> None:
    sender = sender_to()
    world = world_of([host], [sender])
    sender.send(b"x", journal=journal, ttbr=10, sent_time=world.wall)
    if change:
        sender.edit(1, change)
    run(world, 1000)
    assert (sender.acked, sender.classes) == ([1], [])  # stored, and not yet received
    remove(world, host)
    run(world, 2000)
    assert sender.classes == ([message_class] if (journal or change) and message_class else [])
    for ack in sender.final_acks:
        body = ack.body
        assert (body.tx_sequence_id, body.tx_sequence_number, body.previous_tx_sequence_number) == (100 << 32 | 1, 1, 0)
        assert (body.source_guid, body.message_id) == (sender.guid, 1)
        assert ack.message.user.flags & core.USER_DM
    assert sender.received == []
    left = sum(queue.messages for queue in host.store.queues.all())
    assert left == (remove is given_back)


# ---- a message is refused on arrival --------------------------------------------------------------

SIGNER = bytes(16)  # of type 2: a queue manager


def secured(flags: int = 0, privacy: int = 0, **items: bytes) -> Callable[[headers.UserMessage], None]:
    """Gives a message a SecurityHeader."""

    def change(message: headers.UserMessage) -> None:
        message.security = headers.SecurityHeader()
        message.security.flags = flags | 2
        message.properties.privacy_level = privacy
        for name, value in ({"security_id": SIGNER} | items).items():
            setattr(message.security, name, value)

    return change


def signed_for_several(message: headers.UserMessage) -> None:
    name = names.DirectQueueFormatName("TCP:127.0.0.1\\private$\\line1")
    message.multi_queue_format = rare.MultiQueueFormatHeader(
        rare.MQFAddressHeader([name]), rare.MQFAddressHeader(), rare.MQFAddressHeader(), b"signature bytes!"
    )


EB = 0x20
REFUSALS = [
    pytest.param("nowhere", None, {}, 0x8000, True, marks=pytest.mark.rule("C-55", "B-370"), id="no queue"),
    pytest.param("plain", None, {}, 0x8009, False, marks=pytest.mark.rule("C-56", "B-379", "B-257"), id="not tx queue"),
    pytest.param("small", None, {}, 0x8003, False, marks=pytest.mark.rule("C-57", "B-284", "B-373"), id="queue quota"),
    pytest.param("closed", None, {}, 0x8004, True, marks=pytest.mark.rule("C-58", "B-374"), id="no right"),
    pytest.param(
        "line1",
        secured(signature=b"s" * 64),
        {},
        0x8006,
        True,
        marks=pytest.mark.rule("C-59", "B-330", "B-376"),
        id="signature",
    ),
    pytest.param(
        "line1",
        signed_for_several,
        {},
        0x8006,
        True,
        marks=pytest.mark.rule("C-59", "B-330"),
        id="signature of a message to several",
    ),
    pytest.param("line1", secured(privacy=2), {}, 0x8006, True, marks=pytest.mark.rule("B-334"), id="privacy level"),
    pytest.param(
        "line1",
        secured(EB, 5, encryption_key=b"k" * 76),
        {},
        0x8007,
        True,
        marks=pytest.mark.rule("C-60", "B-332", "B-377"),
        id="encrypted",
    ),
    pytest.param(
        "line1",
        secured(EB, 2, encryption_key=b"k" * 76),
        {},
        0x8007,
        True,
        marks=pytest.mark.rule("B-332", "B-334"),
        id="encrypted, privacy level",
    ),
    pytest.param(
        "line1",
        None,
        {"ttrq": 10, "sent_time": WALL - 11},
        0x8002,
        False,
        marks=pytest.mark.rule("C-62", "B-265", "B-266", "B-372", "A-33"),
        id="too late",
    ),
]


CLOSED = {"closed": Access(sources=frozenset())}


def small_queue(host: Host) -> None:
    with host.client() as client:
        client.create_queue("small", transactional=True)
        client.store.queues.set_quota("small", 100)
        client.create_queue("closed", transactional=True)


@pytest.mark.rule("B-115", "B-260", "B-261", "B-262", "B-349", "B-022", "B-409", "B-354", "A-15")
@pytest.mark.parametrize("insecure", [False, True])
@pytest.mark.parametrize("wanted", [NA, PA | PR | NR])
@pytest.mark.parametrize(("queue", "change", "properties", "message_class", "is_insecure"), REFUSALS)
def test_transactional_reject_sends_final_ack_and_requested_nack(
    tmp_path: Path,
    queue: str,
    change: Callable[[headers.UserMessage], None] | None,
    properties: dict[str, int],
    message_class: int,
    is_insecure: bool,
    wanted: int,
    insecure: bool,
) -> None:
    host = Host(tmp_path, Config(send_insecure_nacks=insecure, access=CLOSED))
    small_queue(host)
    sender = sender_to(queue)
    world = world_of([host], [sender])
    sender.send(b"body", acknowledge=wanted, admin=ADMIN, label="l", **properties)
    if change:
        sender.edit(1, change)
    sender.send(b"next")
    exchange(world)
    assert sender.classes[:1] == [message_class]
    assert sender.told == ([message_class] if wanted == NA and (insecure or not is_insecure) else [])
    for told in sender.received:
        assert told.properties.body == (b"" if message_class == 0x8007 else b"body")
    if queue == "line1":
        assert host.content("line1") == [b"next"]  # the stream has moved on
        run(world, 1000)
        assert sender.is_settled
        assert host.store.memory.incoming()[0].record[2] == 2
    assert copies(host, DEAD_XACT) == copies(host, DEAD_LETTER) == []
    host.store.close()


@pytest.mark.rule("B-258", "B-256", "B-260", "B-380", "B-390", "B-394", "B-284", "B-350")
@pytest.mark.parametrize("delivery", ["recoverable", "express"])
@pytest.mark.parametrize("journal", [0, JN, JP])
@pytest.mark.parametrize(("queue", "message_class"), [("nowhere", 0x8000), ("line1", 0x800A), ("small", 0x8003)])
def test_refused_nontransactional_message_gets_nack_and_copy(
    tmp_path: Path, queue: str, message_class: int, journal: int, delivery: str
) -> None:
    host = Host(tmp_path, Config(send_insecure_nacks=True))
    with host.client() as client:
        client.create_queue("small", transactional=False)
        client.store.queues.set_quota("small", 100)
        client.create_queue("closed", transactional=True)
    sender = sender_to(queue)
    world = world_of([host], [sender])
    sender.send(b"body", delivery, journal=journal, acknowledge=NA, admin=ADMIN)
    exchange(world)
    assert (sender.told, sender.classes) == ([message_class], [])
    assert bool(sender.received[0].user.flags & core.USER_DM) == (delivery == "recoverable")
    assert copies(host, DEAD_LETTER) == ([(message_class, b"body")] if journal == JN else [])
    run(world, 15_000)
    assert sender.is_settled
    host.store.close()


@pytest.mark.rule("B-283", "B-285", "C-64", "B-282")
@pytest.mark.parametrize("journal", [0, JN])
@pytest.mark.parametrize("delivery", ["transactional", "recoverable"])
def test_the_quota_of_the_machine_comes_before_that_of_the_queue(tmp_path: Path, delivery: str, journal: int) -> None:
    """Above both, nothing is said, so that the sender keeps the message."""
    host = Host(tmp_path, Config(quota=1000))
    with host.client() as client:
        client.create_queue("small", transactional=delivery == "transactional")
        client.store.queues.set_quota("small", 500)
    sender = sender_to("small")
    world = world_of([host], [sender])
    sender.send(b"x" * 900, delivery, journal=journal, acknowledge=NA | PA, admin=ADMIN)
    exchange(world)
    assert sender.session is None
    assert (sender.classes, sender.told, sender.is_settled) == ([], [], False)
    assert host.store.usage() == 0
    assert "quota" in host.log[0]
    host.store.close()


@pytest.mark.rule("B-288", "B-402", "A-42", "A-43")
@pytest.mark.parametrize(("age", "left"), [(0, 100), (60, 40), (200, 0), (-50, 100)])
def test_time_to_be_received_starts_at_sending_and_is_capped(host: Host, age: int, left: int) -> None:
    sender = sender_to()
    world = world_of([host], [sender])
    sender.send(b"x", ttbr=100, sent_time=WALL - age, journal=JN)
    exchange(world)
    if left:
        run(world, 1000 * (left - 1))
        assert host.content("line1") == [b"x"]
    run(world, 2000)
    assert host.store.usage() == 0
    assert sender.classes == [0xC002]


# ---- a message is taken ---------------------------------------------------------------------------


@pytest.mark.rule("B-291", "B-367", "C-65", "C-63", "B-247", "B-248", "B-353", "B-354")
@pytest.mark.parametrize("delivery", ["transactional", "recoverable", "express"])
def test_arrival_acknowledgement_is_sent_exactly_once(host: Host, delivery: str) -> None:
    queue = "line1" if delivery == "transactional" else "plain"
    sender = sender_to(queue)
    world = world_of([host], [sender])
    for number in range(3):
        sender.send(b"%d" % number, delivery, acknowledge=PA, admin=ADMIN, label="the label")
    exchange(world)
    world.wires[0].cut()  # before anything was acknowledged: all of it comes again
    run(world, 3000)
    assert host.content(queue) == [b"0", b"1", b"2"]
    assert sender.told == [2, 2, 2]
    assert sender.classes == []
    for number, told in enumerate(sender.received[:3], 1):
        properties, user = told.properties, told.user
        assert properties.correlation_id == sender.guid + number.to_bytes(4, "little")
        assert (properties.body, properties.flags, properties.privacy_level) == (b"", 0, 0)
        assert not user.flags & (JN | JP)
        assert (told.base.time_to_reach_queue, user.time_to_be_received) == (compose.FOREVER, compose.FOREVER)
        assert (told.security, user.admin_queue) == (None, None)
        assert bool(user.flags & core.USER_DM) == (delivery != "express")


@pytest.mark.rule("B-287", "B-289")
def test_priority_orders_queue_except_transactional_messages(host: Host) -> None:
    def claim(message: headers.UserMessage) -> None:
        message.base.flags |= 7

    urgent = sender_to()
    plain = sender_to("plain", 2)
    world = world_of([host], [urgent, plain])
    for number in range(3):
        urgent.send(b"t%d" % number)
        plain.send(b"p%d" % number, "recoverable", priority=number)
    urgent.edit(3, claim)
    exchange(world)
    assert host.content("line1") == [b"t0", b"t1", b"t2"]
    assert host.content("plain") == [b"p2", b"p1", b"p0"]
    with application(world, host) as client, client.queue("plain").receive() as message:  # at once
        assert message.body == b"p2"


@pytest.mark.rule("B-274", "B-276", "B-272")
def test_incoming_stream_state_is_stored_with_last_access_time(host: Host) -> None:
    sender = sender_to()
    world = world_of([host], [sender])
    sender.send(b"1")
    exchange(world)
    (state,) = host.store.memory.incoming()
    assert (state.source, state.destination) == (sender.guid, "direct=tcp:127.0.0.1\\private$\\line1")
    assert (state.record, state.last_access) == ((1, 100, 1, 0), world.wall)
    world.pass_time(5000)
    send_raw(world, sender, sender.packets[1])  # a duplicate: refused, and noted
    (state,) = host.store.memory.incoming()
    assert (state.record, state.last_access) == ((1, 100, 1, 1), world.wall)
    sender.send(b"2")
    exchange(world)
    assert host.store.memory.incoming()[0].record == (2, 100, 1, 0)  # the first had its OrderAck: the next sequence


# ---- sent and received on one machine -------------------------------------------------------------


def send_here(world: World, host: Host, body: bytes = b"x", queue: str = "line1", **properties: Any) -> int:
    with application(world, host) as client:
        return client.send(queue, body, **properties).message_id


def state_of(world: World, host: Host, message_id: int) -> confirm.Conclusion | None:
    with application(world, host) as client:
        return client.state(message_id)


JOURNALS = [{}, {"dead_letter": True}, {"journal": True}, {"dead_letter": True, "journal": True}]


@pytest.mark.rule("C-70", "C-71", "C-72", "B-391", "B-407", "B-243", "B-394", "C-80", "C-85")
@pytest.mark.parametrize("journal", JOURNALS)
@pytest.mark.parametrize(("remove", "message_class"), REMOVALS)
def test_local_message_is_settled_without_network(
    host: Host, remove: Callable[[World, Host], None], message_class: int, journal: dict[str, bool]
) -> None:
    world = world_of([host], [])
    message_id = send_here(world, host, ttrq=5, ttbr=10, **journal)
    run(world, 7000)  # past its TimeToReachQueue: it has been reached
    stored = state_of(world, host, message_id)
    assert stored is not None
    assert stored.answer == confirm.STORED
    remove(world, host)
    run(world, 1000)
    positive = message_class == 0x4000
    assert copies(host, DEAD_XACT) == (
        [(message_class, b"x")] if "dead_letter" in journal and not positive and message_class else []
    )
    assert copies(host, JOURNAL) == ([(0, b"x")] if "journal" in journal and positive else [])
    assert copies(host, DEAD_LETTER) == []
    assert host.store.outgoing.messages() == []
    assert host.manager.wanted_hops() == set()
    if message_class:
        ended = state_of(world, host, message_id)
        assert ended is not None
        assert ended.answer == (
            confirm.RECEIVED if positive else confirm.DEAD_LETTERED if "dead_letter" in journal else confirm.DISCARDED
        )
        assert not ended.in_doubt


@pytest.mark.rule("B-407", "B-390", "B-393", "B-336", "B-291")
@pytest.mark.parametrize("delivery", ["express", "recoverable"])
def test_local_nontransactional_message_gets_acks_and_copies(host: Host, delivery: str) -> None:
    world = world_of([host], [])
    with application(world, host) as client:
        client.create_queue("admin", transactional=False)
        client.create_queue("other", transactional=False)
    everything = {"acknowledge": ("reach-queue", "receive", "nack-receive"), "administration_queue": "admin"}
    for body in (b"1", b"2"):
        send_here(world, host, body, "other", delivery=delivery, ttbr=10, journal=True, dead_letter=True, **everything)
    with application(world, host) as client, client.queue("other").receive():
        pass
    run(world, 11_000)
    assert copies(host, "admin") == [(2, b""), (2, b""), (0x4000, b""), (0xC002, b"2")]
    assert copies(host, JOURNAL) == [(0, b"1"), (0, b"2")]
    assert copies(host, DEAD_LETTER) == [(0xC002, b"2")]
    assert copies(host, DEAD_XACT) == []


@pytest.mark.rule("B-011", "B-336")
@pytest.mark.parametrize("asked", [{"journal": JN}, {"acknowledge": PR, "admin": ADMIN}])
def test_acks_open_session_only_to_hop_opened_before(host: Host, asked: dict[str, Any]) -> None:
    sender = sender_to()
    world = world_of([host], [sender])
    sender.send(b"x", **asked)
    run(world, 1000)
    world.wires[0].cut()
    assert host.manager.wanted_hops() == set()
    received(world, host)
    world.pass_time(100)
    assert host.manager.wanted_hops() == set(), "it has connected from there, and may listen nowhere"
    _call(host, world, sender.guid)
    host.restart(world.now, snapshot=True)
    assert host.manager.wanted_hops() == {("10.0.0.9", 1801)}
    _call(host, world, b"\7" * 16)
    assert host.manager.wanted_hops() == set(), "another queue manager answers there now"


def _call(host: Host, world: World, answers: bytes) -> None:
    """This side opens a session, and the queue manager with this GUID answers; then it is over."""
    link = host.manager.connect(("10.0.0.9", 1801), "10.0.0.9", world.now)
    far = Session(False, answers, world.now)
    for _ in range(4):
        sent = [data for to, data, _ in host.manager.output() if to is link]
        far.receive_data(b"".join(sent), world.now)
        host.manager.receive([(link, far.data_to_send())], world.now, world.wall)
    assert link.is_open
    host.manager.lost(link)
