"""What a node refuses and says: arguments, names, bodies, a damaged outbox, and calls after its end."""

from __future__ import annotations

import random
from array import array
from pathlib import Path
from typing import Any

import power
import pytest
from mqqb import build, compose, core
from ordack.node import DestinationQueue, Node, OutboxDamaged, OutboxError

from tests.node.destination import ALARMS, LINE, Destination


async def test_a_damaged_outbox_stops_the_node_and_says_where() -> None:
    disk = power.Disk()
    destination = await Destination().start()
    node = Node("", files=disk, connect=("127.0.0.1", destination.port))
    message = await node.queue(LINE).send(b"reading")
    disk.files["00000001.log"].data[message.offset + message.size] ^= 1
    with pytest.raises(OutboxDamaged, match=r"00000001\.log at byte"):
        await node.run()
    with pytest.raises(OutboxDamaged):
        await node.queue(LINE).send(b"no more")
    await node.close()
    await destination.stop()


async def test_reason_is_empty_until_a_message_fails() -> None:
    destination = await Destination().start()
    node = Node("", files=power.Disk(), connect=("127.0.0.1", destination.port))
    message = await node.queue(LINE).send(b"reading")
    assert message.reason == ""
    node.start()
    assert await message.stored()
    assert message.reason == ""
    unsent = await node.queue("DIRECT=TCP:127.0.0.1\\private$\\line2").send(b"reading")
    node.delete(unsent)
    assert unsent.reason == "deleted (class 0x8001)"
    await node.close()
    await destination.stop()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("PRIVATE=00000000-0000-0000-0000-000000000001\\2", "a queue is DIRECT=TCP"),
        ("DIRECT=HTTP://plant/msmq/private$/line1", "a queue is DIRECT=TCP"),
        ("line1", "a queue is DIRECT=TCP"),
        ("DIRECT=TCP:10.0.0.5", "a queue is DIRECT=TCP"),
        ("DIRECT=TCP:10.0.0.5\\private$\\one\\two", "two': .* is not allowed"),
        ("DIRECT=TCP:10.0.0.5\\private$\\a+b", r"name 'a\+b': '\+' is not allowed"),
        ("DIRECT=TCP:10.0.0.5\\private$\new", r"'\\n' is not allowed"),
        ("DIRECT=TCP:10.0.0.5:1801\\private$\\line1", "without a port"),
        ("DIRECT=TCP: 10.0.0.5\\private$\\line1", "without a port"),
        ("DIRECT=OS:" + "x" * 500 + "\\private$\\line1", "at most 486 bytes"),
    ],
)
def test_a_queue_that_cannot_be_reached_is_refused_at_once(name: str, why: str) -> None:
    node = Node("", files=power.Disk())
    with pytest.raises(ValueError, match=why):
        node.queue(name)


@pytest.mark.parametrize("address", ["10.0.0.5:1801", ("10.0.0.5", "1801"), ("10.0.0.5", 65536), ["10.0.0.5", 1801]])
@pytest.mark.parametrize("where", ["connect", "listen"])
def test_node_refuses_invalid_address(where: str, address: Any) -> None:
    with pytest.raises(ValueError, match=where + " is "):
        Node("", files=power.Disk(), **{where: address})


@pytest.mark.parametrize(
    "wrong",
    [
        {"capacity": 0},
        {"capacity": -1},
        {"capacity": 1023},
        {"capacity": "1MB"},
        {"capacity": None},
        {"capacity": 1e6},
        {"segment_size": 0},
        {"hold": -1},
        {"hold": "3"},
        {"quota": -1},
        {"guid": b"abc"},
        {"guid": "a text of 16 let"},
        {"guid": 5},
        {"name": 5},
        {"name": b"press 3"},
        {"accept": bytes(16)},
        {"accept": None},
        {"name": "\u00fc" * 51},
        {"inbox_quota": 5},
        {"inbox_quota": (1000,)},
        {"inbox_quota": (1000, -1)},
        {"inbox_quota": ("1 MB", 10)},
    ],
)
def test_node_refuses_invalid_argument_with_name_and_value(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=name + " is .*, not ") as raised:
        Node("", files=power.Disk(), **wrong)
    wrong_one = [one for one in value if one not in (10, 1000)] if isinstance(value, tuple) else []
    assert str(raised.value).endswith(", not " + repr(wrong_one[0] if wrong_one else value))


@pytest.mark.parametrize(
    "clock", [lambda: 1 << 32, lambda: 0xF0000000, lambda: (1 << 32) - 1, lambda: 1 << 40, lambda: 0, lambda: -5]
)
@pytest.mark.rule("B-401")
def test_clock_beyond_packet_range_counts_as_unset(clock: Any) -> None:
    """A SentTime has 32 bits, until 2106, and no TimeStamp may be so late that none after it is left (B-056)."""
    node = Node("", files=power.Disk(), clock=clock)
    queue = node.queue(LINE)
    for body in (b"1", b"2"):
        message = queue.put(body, ttrq=5)
        assert node.read(message).user.fields[core.USER_SENT_TIME] == 0
    assert queue.stream.tx_sequence_id >> 32 < 1700000000
    node.poll()
    assert node.waiting == 2, "they do not expire"


async def test_closed_node_error_says_to_make_a_new_node(tmp_path: Path) -> None:
    folder = str(tmp_path / "outbox")
    node = Node(folder)
    queue = node.queue(LINE)
    waits = queue.put(b"waits")
    dead = queue.put(b"dead", dead_letter=True)
    node.delete(dead)
    await node.close()

    def refuses(error: OutboxError) -> None:
        assert type(error) is OutboxError
        assert str(error) == "this Node is closed: make a new one"

    for _ in range(2):
        for use in (
            lambda: queue.put(b"no"),
            lambda: queue.put_all([b"no"]),
            node.poll,
            lambda: node.wait(waits.is_settled, 5000),
            lambda: node.take(dead),
            lambda: node.delete(waits),
        ):
            with pytest.raises(OutboxError) as raised:
                use()
            refuses(raised.value)
        for coroutine in (queue.send(b"no"), queue.send_all([b"no"]), waits.stored()):
            with pytest.raises(OutboxError) as raised:
                await coroutine
            refuses(raised.value)
        await node.close()  # once more does no harm
    again = Node(folder)
    assert [bytes(again.read(message).properties.body) for message in again.outbox.handles()] == [b"waits", b"dead"]
    again.close_now()


async def test_non_bytes_body_is_refused_without_using_a_number() -> None:
    node = Node("", files=power.Disk())
    queue: DestinationQueue = node.queue(LINE)
    with pytest.raises(ValueError, match="a body is bytes"):
        await queue.send("21.5")  # type: ignore[arg-type]
    samples = array("H", (1, 2, 3))
    for words in (samples, memoryview(samples)):
        with pytest.raises(ValueError, match=r"a body is bytes: give bytes\(array\)"):
            queue.put(words)  # type: ignore[arg-type]
    for wrong in ({"ttrq": -1}, {"ttbr": 1 << 32}, {"label": "x" * 250}):
        (name,) = wrong
        with pytest.raises(ValueError, match=name + " .*[0-9]$"):
            queue.put(b"21.5", **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at most 4194304 bytes"):
        await queue.send(bytes(4 << 20))
    assert node.next_message_id == 1
    assert (await queue.send(b"21.5")).message_id == 1


@pytest.mark.parametrize("more", range(5))
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: array("B", data)])
def test_body_written_directly_to_log_gives_same_packet(more: int, kind: Any) -> None:
    """Its body goes to the log from where it is, for a small heap may have no piece for all of it."""
    disk = power.Disk()
    node = Node("", files=disk, clock=lambda: 0)
    queue: DestinationQueue = node.queue(LINE)
    body = random.Random(more).randbytes(len(node.outbox.log.out) + more)
    pieces = []
    disk.before = lambda disk, step, data: pieces.append(bytes(data))
    message = queue.put(kind(body), label="r")
    assert body in pieces, "as it is"
    packet = node.outbox.log.load(message)
    expected = build.user_message(
        node.guid, 1, queue.destination, body, label="r", delivery="transactional", ttrq=compose.FOREVER
    )
    begin = queue.draft.transaction_at
    end = begin + core.TRANSACTION_HEADER_SIZE
    assert (packet[:begin], packet[end:]) == (expected[:begin], expected[end:])
    disk.before = None
    again = Node("", files=disk.after_cut(power.KEEP_SYNCED, power.Dice(1)))
    assert [again.outbox.log.load(one) for one in again.outbox.handles()] == [packet]
    assert again.damage == []


@pytest.mark.rule("B-056", "A-22")
def test_new_stream_gets_newer_sequence_id_than_lost_outbox() -> None:
    node = Node("", files=power.Disk())
    identifier = node.queue(LINE).stream.tx_sequence_id
    assert identifier >> 32 > 1700000000
    assert node.queue(ALARMS).stream.tx_sequence_id >> 32 > identifier >> 32
