"""Administration acknowledgements go where a message says, and reports of traced messages to the report queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mqqb import build, core, guids, headers, names, parse, rare
from ordack.config.config import Config

from tests.host.outcomes import ADMIN, NA, NR, PA, PR, Sender, copies, received, rejected, run, sender_to
from tests.support.host_world import Host, World, exchange, world_of

OFFICE = ("10.0.0.7", 1801)
PUBLIC = {name: headers.PublicQueueFormatName(name.encode() * 16) for name in ("h", "s", "o", "u")}


def private(host: Host, queue: str) -> headers.PrivateQueueFormatNameId:
    return headers.PrivateQueueFormatNameId(host.store.queues.named(queue).identifier)


def at(host: Host, queue: str) -> headers.PrivateQueueFormatName:
    return headers.PrivateQueueFormatName(host.store.guid, host.store.queues.named(queue).identifier)


def text_of(guid: bytes) -> str:
    return guids.guid_text(guid)[1:-1].lower()


@pytest.fixture
def places(tmp_path: Path) -> Iterator[tuple[World, Host, Host, Sender]]:
    """A sender, the host that it sends to, called plant, and a third machine, office."""
    office = Host(tmp_path / "office", Config(send_insecure_nacks=True), OFFICE[0])
    sender = sender_to()
    host = Host(
        tmp_path / "plant",
        Config(
            own_names=frozenset({"plant", "127.0.0.1"}),
            send_insecure_nacks=True,
            next_hops={"office": OFFICE, text_of(office.store.guid): OFFICE},
            public_queues={
                text_of(PUBLIC["h"].public_queue_identifier): "DIRECT=OS:plant\\private$\\plain",
                text_of(PUBLIC["s"].public_queue_identifier): f"PRIVATE={text_of(sender.guid)}\\{77:08X}",
                text_of(PUBLIC["o"].public_queue_identifier): "DIRECT=OS:office\\private$\\plain",
            },
        ),
    )
    yield world_of([host, office], [sender]), host, office, sender
    host.store.close()
    office.store.close()


FORMS: list[tuple[str, Callable[[Host, Host, Sender], names.QueueName], int, str]] = [
    ("on the source", lambda host, office, sender: ADMIN, 2, "sender"),
    ("on the destination", lambda host, office, sender: private(host, "plain"), 3, "plant"),
    ("public here", lambda host, office, sender: PUBLIC["h"], 5, "plant"),
    ("public at the source", lambda host, office, sender: PUBLIC["s"], 5, "sender"),
    ("public elsewhere", lambda host, office, sender: PUBLIC["o"], 5, "office"),
    ("public and unknown", lambda host, office, sender: PUBLIC["u"], 5, ""),
    (
        "private at the source",
        lambda host, office, sender: headers.PrivateQueueFormatName(sender.guid, 77),
        6,
        "sender",
    ),
    ("private here", lambda host, office, sender: at(host, "plain"), 6, "plant"),
    ("private elsewhere", lambda host, office, sender: at(office, "plain"), 6, "office"),
    ("direct here", lambda host, office, sender: names.DirectQueueFormatName("OS:PLANT\\private$\\plain"), 7, "plant"),
    (
        "direct elsewhere",
        lambda host, office, sender: names.DirectQueueFormatName("OS:office\\private$\\plain"),
        7,
        "office",
    ),
    ("no such queue here", lambda host, office, sender: names.DirectQueueFormatName("OS:plant\\private$\\no"), 7, ""),
    ("transactional here", lambda host, office, sender: at(host, "line1"), 6, ""),
    ("a system queue", lambda host, office, sender: headers.PrivateQueueFormatNameId(4), 3, ""),
    ("no private queue", lambda host, office, sender: names.DirectQueueFormatName("OS:plant\\plain"), 7, ""),
    (
        "no such protocol",
        lambda host, office, sender: names.DirectQueueFormatName("HTTP://plant/msmq/private$/plain"),
        7,
        "",
    ),
    (
        "half a character",
        lambda host, office, sender: names.DirectQueueFormatName("OS:of\ud800\\private$\\plain"),
        7,
        "",
    ),
    ("transactional elsewhere", lambda host, office, sender: at(office, "line1"), 6, ""),
    (
        "no such queue elsewhere",
        lambda host, office, sender: names.DirectQueueFormatName("OS:office\\private$\\no"),
        7,
        "",
    ),
]


@pytest.mark.rule("B-348", "B-351", "B-352", "B-353", "B-354", "B-355", "B-010", "B-011", "B-293", "B-336", "B-389")
@pytest.mark.parametrize(("form", "selector", "where"), [pytest.param(*form, id=name) for name, *form in FORMS])
def test_admin_acks_go_to_named_administration_queue(
    places: tuple[World, Host, Host, Sender],
    form: Callable[[Host, Host, Sender], names.QueueName],
    selector: int,
    where: str,
) -> None:
    """Of the arrival from the queue manager, of the receipt and of a rejection from the application's process."""
    world, host, office, sender = places

    def select(message: headers.UserMessage) -> None:
        message.user.flags = message.user.flags & ~(7 << 13) | selector << 13

    for _ in range(2):
        sender.edit(sender.send(b"body", acknowledge=PA | PR | NR, admin=form(host, office, sender)), select)
    run(world, 2000)
    received(world, host)
    rejected(world, host)
    run(world, 3000)
    expected = [(2, b""), (2, b""), (0x4000, b""), (0xC004, b"body")]
    told = [(message.properties.message_class, bytes(message.properties.body)) for message in sender.received]
    assert told == (expected if where == "sender" else [])
    assert copies(host, "plain") == (expected if where == "plant" else [])
    assert copies(office, "plain") == (expected if where == "office" else [])
    assert (sender.acked, host.content("line1"), sender.classes) == ([1, 2], [], [])
    if where:
        stored = (
            sender.received
            if where == "sender"
            else [
                parse.parse(message.packet)
                for there in (host, office)
                for message in there.store.messages.peek(there.store.queues.named("plain").identifier, -1)
            ]
        )
        for message, number in zip(stored, (1, 2, 1, 2), strict=True):
            assert isinstance(message, headers.UserMessage)
            assert message.properties.correlation_id == sender.guid + number.to_bytes(4, "little")
            assert isinstance(message.user.response_queue, names.DirectQueueFormatName)
            assert message.user.response_queue.direct_format_name == "TCP:127.0.0.1\\private$\\line1"
            assert message.user.source_queue_manager == host.store.guid
    run(world, 20_000)
    assert host.store.outgoing.messages() == []
    assert office.store.outgoing.messages() == []


@pytest.mark.rule("B-354", "B-013")
@pytest.mark.parametrize("label", ["", "\ud800"])
def test_body_too_large_for_negative_ack_is_not_returned(host: Host, label: str) -> None:
    """The acknowledgement names the destination by GUID, which is longer than the number that the message had."""
    sender = Sender(b"\1" * 16, private(host, "plain"))
    world = world_of([host], [sender])
    empty = build.user_message(sender.guid, 1, sender.destination, b"", label=label, admin=ADMIN)
    for size in (core.PACKET_SIZE_MAX - len(empty), 100):
        sender.send(bytes(size), "express", acknowledge=NA, admin=ADMIN, ttrq=0, sent_time=1, label=label)
    exchange(world)
    assert [len(message.properties.body) for message in sender.received] == [0, 100]
    assert all("did not reach its queue in time" in line for line in host.log)


# ---- reports --------------------------------------------------------------------------------------


def traced(message: headers.UserMessage) -> None:
    message.base.flags |= core.BASE_TR
    message.debug = rare.DebugHeader()
    message.debug.queue_identifier = PUBLIC["h"].public_queue_identifier


@pytest.mark.rule("B-294", "B-295", "B-366")
def test_a_traced_message_that_arrives_is_reported(host: Host) -> None:
    host.config = Config(
        report_messages=True,
        public_queues={text_of(PUBLIC["h"].public_queue_identifier): "DIRECT=OS:.\\private$\\plain"},
    )
    host.restart(0, snapshot=True)
    sender = sender_to()
    world = world_of([host], [sender])
    sender.edit(sender.send(b"x"), traced)
    exchange(world)
    run(world, 1000)
    assert host.content("line1") == [b"x"]
    (stored,) = host.store.messages.peek(host.store.queues.named("plain").identifier, -1)
    report = parse.parse(stored.packet)
    assert isinstance(report, headers.UserMessage)
    assert report.properties.message_class == 1
    assert not report.user.flags & core.USER_DM
    assert report.properties.label == (
        f"0101:00000001:00 received by {guids.guid_text(host.store.guid)} at 08:00:00 AM 01/15/2027"
    )
    assert bytes(report.properties.body).decode("utf-16-le") == (
        "<MESSAGE ID>00000001</MESSAGE ID>\r\n<TARGET QUEUE>DIRECT=TCP:127.0.0.1\\private$\\line1</TARGET QUEUE>\r\n"
    )
