"""`ordack message move` sends dead letters, copies and poison messages again, each once; nothing is lost."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mqqb import build, confirm, core, guids, headers
from mqqb.names import parse_format_name
from ordack.broker.commits import Moved
from ordack.broker.outcome import Settlements
from ordack.cli.messages import move_all
from ordack.client import Client
from ordack.config.names import DEAD_LETTER, DEAD_XACT, JOURNAL
from ordack.store import StoreError, StoreFull
from ordack.store.messages import NewMessage

from tests.support import command
from tests.support.beside import outcomes_of
from tests.support.host_world import Host, World, exchange, two_hosts

AWAY = "DIRECT=OS:plant\\private$\\line1"


def move(client: Client, name: str, target: str | None, in_doubt: bool = True) -> Iterator[Moved]:
    return move_all(client, name, target, in_doubt=in_doubt)


class Clock:
    """Seconds since 1970, as a test says."""

    def __init__(self) -> None:
        self.now = float(int(time.time()))

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def client(tmp_path: Path, clock: Clock) -> Iterator[Client]:
    with Client(tmp_path / "store", create=True, clock=clock) as opened:
        opened.create_queue("line1", transactional=True)
        opened.create_queue("plain", transactional=False)
        yield opened


def bodies(client: Client, name: str) -> list[bytes]:
    return [message.body for message in client.queue(name).peek()]


def expire(client: Client, clock: Clock, name: str, *bodies_: bytes, label: str = "") -> None:
    """Let messages of a queue here end as dead letters."""
    for body in bodies_:
        client.send(name, body, label, ttbr=5, dead_letter=True)
    clock.now += 10
    while outcomes_of(client).remove_over():
        pass


def test_move_resends_dead_letter_to_its_queue_as_new_message(client: Client, clock: Clock) -> None:
    expire(client, clock, "line1", b"1", b"2", label="press 3")
    kept = list(client.queue(DEAD_XACT).peek())
    assert [message.body for message in kept] == [b"1", b"2"]
    moved = list(move(client, DEAD_XACT, None))
    assert bodies(client, DEAD_XACT) == []
    found = list(client.queue("line1").peek())
    assert [message.body for message in found] == [b"1", b"2"]
    assert [message.label for message in found] == ["press 3"] * 2
    assert [message.message_class for message in found] == [0, 0]
    assert [message.message_id for message in found] == [one.message_id for one in moved]
    assert not {message.message_key for message in found} & {message.message_key for message in kept}
    assert [message.sent_time for message in found] == [int(clock.now)] * 2


def test_moved_message_keeps_ttbr_and_expires_again(client: Client, clock: Clock) -> None:
    """Its time to be received begins anew, and it is dead-lettered again when that is over."""
    expire(client, clock, "line1", b"1")
    list(move(client, DEAD_XACT, None))
    clock.now += 10
    assert bodies(client, "line1") == []
    while outcomes_of(client).remove_over():
        pass
    assert bodies(client, DEAD_XACT) == [b"1"]


@pytest.mark.parametrize("target", ["plain", "line1"])
def test_move_adapts_delivery_to_target_queue(client: Client, clock: Clock, target: str) -> None:
    for source in ("plain", "line1"):
        expire(client, clock, source, source.encode())
    for name in (DEAD_LETTER, DEAD_XACT):
        list(move(client, name, target))
    assert sorted(bodies(client, target)) == [b"line1", b"plain"]
    transactional = target == "line1"
    assert {message.delivery for message in client.queue(target).peek()} == {
        "transactional" if transactional else "recoverable"
    }


def test_move_selects_by_class_time_and_count(client: Client, clock: Clock) -> None:
    expire(client, clock, "line1", b"0")
    since = clock.now
    expire(client, clock, "line1", b"1", b"2", b"3")
    assert list(move_all(client, DEAD_XACT, None, classes=frozenset({confirm.NACK_Q_PURGED}))) == []
    moved = list(move_all(client, DEAD_XACT, None, 1, frozenset({confirm.NACK_RECEIVE_TIMEOUT}), since=since))
    assert [one.message.body for one in moved] == [b"1"]
    assert bodies(client, DEAD_XACT) == [b"0", b"2", b"3"]


def seconds(world: World, count: int) -> None:
    for _ in range(2 * count):
        exchange(world)
        world.pass_time(500)


def undelivered(world: World, sender: Host, *bodies_: bytes) -> None:
    """Let messages to the other queue manager become dead letters in doubt: they were sent, and nobody answered."""
    with sender.client() as client:
        for body in bodies_:
            client.send(AWAY, body, ttrq=20, ttbr=40, dead_letter=True)
    seconds(world, 2)
    for wire in list(world.wires):
        wire.cut()


@pytest.mark.rule("C-84", "B-391")
def test_a_dead_letter_in_doubt_stays_unless_one_asks_for_it(tmp_path: Path) -> None:
    world, receiver, sender = two_hosts(tmp_path)
    undelivered(world, sender, b"1")
    world.hosts.remove(receiver)
    seconds(world, 200)
    with sender.client() as client:
        [letter] = client.queue(DEAD_XACT).peek()
        assert letter.in_doubt
        [stayed] = move(client, DEAD_XACT, None, in_doubt=False)
        assert stayed.message_id is None
        assert bodies(client, DEAD_XACT) == [b"1"]
        [moved] = move(client, DEAD_XACT, None)
        assert moved.destination.lower() == AWAY.lower()
        assert bodies(client, DEAD_XACT) == []
        assert len(client.store.outgoing.messages()) == 1


def test_journal_copy_can_be_moved_to_another_queue(client: Client) -> None:
    client.create_queue("archive", transactional=True)
    client.send("line1", b"1", journal=True)
    with client.queue("line1").receive():
        pass
    assert bodies(client, JOURNAL) == [b"1"]
    list(move(client, JOURNAL, "archive"))
    assert (bodies(client, JOURNAL), bodies(client, "archive")) == ([], [b"1"])


def test_poison_message_moves_back_unchanged_to_its_queue_only(client: Client) -> None:
    command.set_numbers(client.store, PoisonAfter=2)
    key = client.send("line1", b"1").message_id
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), client.queue("line1").receive():
            raise ZeroDivisionError
    with client.queue("line1").receive_batch(1) as messages:
        assert messages == []
    assert bodies(client, "line1;poison") == [b"1"]
    with pytest.raises(StoreError, match="can go to line1 only"):
        list(move(client, "line1;poison", "plain"))
    [moved] = move(client, "line1;poison", None)
    assert moved.message_id == key
    with client.queue("line1").receive() as message:
        assert (message.body, message.message_id, message.abort_count) == (b"1", key, 0)


def test_move_skips_message_being_received(client: Client, clock: Clock) -> None:
    expire(client, clock, "line1", b"1", b"2")
    with Client(client.store.folder, clock=clock) as other, other.queue(DEAD_XACT).receive() as taken:
        assert taken.body == b"1"
        moved = list(move(client, DEAD_XACT, None))
        assert [one.message.body for one in moved] == [b"2"]
    assert bodies(client, DEAD_XACT) == []
    assert bodies(client, "line1") == [b"2"]


def test_move_skips_messages_received_or_added_meanwhile(client: Client, clock: Clock) -> None:
    expire(client, clock, "line1", b"1", b"2", b"3")
    moves = move(client, DEAD_XACT, "line1")
    assert next(moves).message.body == b"1"
    with Client(client.store.folder, clock=clock) as other, other.queue(DEAD_XACT).receive() as taken:
        assert taken.body == b"2"
        expire(client, clock, "line1", b"4")
        assert [one.message.body for one in moves] == [b"3"]
    left = set(bodies(client, DEAD_XACT))
    assert b"4" in left
    assert b"3" not in left


@pytest.mark.parametrize("own", [True, False])
def test_move_keeps_all_message_properties(client: Client, own: bool) -> None:
    """own: it was sent from here. A queue that it names by number alone is one of the machine that has sent it."""
    source = client.store.guid if own else bytes(range(16))
    asked = {
        "label": "press 3",
        "priority": 6,
        "ttrq": 77,
        "ttbr": 88,
        "journal": core.USER_JN | core.USER_JP,
        "acknowledge": headers.WANT_PR | headers.WANT_NR,
        "admin": headers.PrivateQueueFormatNameId(7),
        "response": parse_format_name("DIRECT=OS:desk\\private$\\answers"),
        "correlation": bytes(range(20)),
        "body_type": 8,
        "application_tag": 99,
        "extension": b"more",
    }
    away = parse_format_name("DIRECT=OS:plant\\private$\\plain")
    packet = build.user_message(
        source, 5, away, b"21.5", delivery="recoverable", sent_time=client.now(), message_class=0x8002, **asked
    )
    queue = client.store.queues.find(DEAD_LETTER)
    assert queue
    client.store.messages.add([NewMessage(queue.identifier, 1, packet)])
    list(move(client, DEAD_LETTER, "plain"))
    [found] = client.queue("plain").peek()
    user, properties = found.content.user, found.content.properties
    assert (found.body, found.label, found.priority, found.message_class) == (b"21.5", "press 3", 6, 0)
    assert (found.content.base.time_to_reach_queue, user.time_to_be_received) == (77, 88)
    assert user.flags & (core.USER_JN | core.USER_JP) == asked["journal"]
    assert properties.flags == asked["acknowledge"]
    assert (properties.correlation_id, properties.body_type) == (asked["correlation"], 8)
    assert (properties.application_tag, bytes(properties.extension)) == (99, b"more")
    assert user.response_queue is not None
    assert guids.format_name(user.response_queue) == "DIRECT=OS:desk\\private$\\answers"
    assert user.admin_queue is not None
    assert guids.format_name(user.admin_queue, source) == guids.format_name(headers.PrivateQueueFormatName(source, 7))
    assert isinstance(user.admin_queue, headers.PrivateQueueFormatNameId) == own
    assert user.source_queue_manager == client.store.guid


def test_a_message_that_finds_no_room_stays_where_it_was(client: Client, clock: Clock) -> None:
    expire(client, clock, "line1", b"1", b"2")
    client.store.queues.set_quota("line1", 300)
    with pytest.raises(StoreFull, match="line1 has a quota"):
        list(move(client, DEAD_XACT, None))
    assert bodies(client, "line1") + bodies(client, DEAD_XACT) == [b"1", b"2"]


def test_failed_move_leaves_message_in_one_queue(client: Client, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    expire(client, clock, "line1", b"1")
    remove = Settlements.remove
    with monkeypatch.context() as patch:
        patch.setattr(Settlements, "remove", lambda self, *of: remove(self, *of) or 1 // 0)  # at the very end
        with pytest.raises(ZeroDivisionError):
            list(move(client, DEAD_XACT, None))
    assert (bodies(client, "line1"), bodies(client, DEAD_XACT)) == ([], [b"1"])


# ---- the command


def ordack(client: Client, *arguments: str) -> subprocess.CompletedProcess[str]:
    return command.ordack("message", "move", "--store", client.store.folder, *arguments)


def test_the_command_moves_one_and_says_which(client: Client, clock: Clock) -> None:
    expire(client, clock, "line1", b"1", b"2")
    done = ordack(client, DEAD_XACT, "--back", "--class", "nack_receive_timeout")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "1 message moved"
    assert bodies(client, DEAD_XACT) == [b"2"]
    done = ordack(client, DEAD_XACT, "--back", "--all", "--json")
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    with Client(client.store.folder) as now:  # by the machine's clock, as the command
        [message] = [message for message in now.queue("line1").peek() if message.body == b"2"]
    assert json.loads(line)["message_id"] == message.message_id
    assert json.loads(line)["class_name"] == "NACK_RECEIVE_TIMEOUT"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((DEAD_XACT,), "say where the messages go"),
        ((DEAD_XACT, "line1", "--back"), "say where the messages go"),
        ((DEAD_XACT, "--back", "--all", "--count", "2"), "--count and --all do not go together"),
        ((DEAD_XACT, "--back", "--class", "NACK_LATE"), "there is no such class"),
        ((DEAD_XACT, "--back", "--sent-from", "yesterday"), "'yesterday' is no time"),
        ((DEAD_XACT, DEAD_LETTER, "--all"), "only the queue manager writes to it"),
        (("line1", "--back", "--all"), "was sent to this very queue"),
        (("line9", "--back"), "line9"),
        ((DEAD_XACT, "DIRECT=OS:plant", "--all"), "is not of the form"),
    ],
)
def test_invalid_move_is_refused_and_moves_nothing(
    client: Client, clock: Clock, arguments: tuple[str, ...], said: str
) -> None:
    expire(client, clock, "line1", b"1")
    client.send("line1", b"2")
    done = ordack(client, *arguments)
    assert done.returncode not in (0, 4)
    assert said in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr
    assert (bodies(client, DEAD_XACT), bodies(client, "line1")) == ([b"1"], [b"2"])
