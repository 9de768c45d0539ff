"""Messages are received in loops: whatever leaves a loop, no message is lost, none is removed that was
not dealt with, and no other application sees what somebody has in his hands."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ordack.client import Client, Letter, Message, Queue, Reject
from ordack.config.names import DEAD_XACT
from ordack.store import StoreError

from tests.support.command import DEADLINE_S, ENVIRONMENT, Serve, set_numbers


@pytest.fixture(params=["alone", "through serve"])
def client(request: pytest.FixtureRequest, store: Path) -> Iterator[Client]:
    serve = Serve(store) if request.param == "through serve" else None
    with Client(store) as opened:
        yield opened
    if serve:
        assert serve.stop()[0] == 0


@pytest.fixture
def alone(store: Path) -> Iterator[Client]:
    with Client(store) as opened:
        yield opened


def _fill(client: Client, count: int, name: str = "line1") -> Queue:
    client.send_many([Letter(name, b"%d" % number, dead_letter=name == "line1") for number in range(count)])
    return client.queue(name)


def _left(client: Client, name: str = "line1") -> list[bytes]:
    return [message.body for message in client.queue(name).peek()]


# ---- loops


def test_receive_loop_removes_each_message_and_ends_on_timeout(client: Client, store: Path) -> None:
    queue = _fill(client, 3)
    seen = []
    for message in queue.receive(timeout=0.01):
        seen.append(message.body)
        assert _left(client) == [b"%d" % number for number in range(len(seen), 3)]  # what is in hand is hidden
    assert seen == [b"0", b"1", b"2"]
    with Client(store) as other:
        assert _left(other) == []


def _break(messages: Iterator[Message]) -> None:
    for message in messages:
        if message.body == b"1":
            break


def _return(messages: Iterator[Message]) -> None:
    for message in messages:
        if message.body == b"1":
            return


def _raise(messages: Iterator[Message]) -> None:
    for message in messages:
        if message.body == b"1":
            raise RuntimeError


@pytest.mark.parametrize("leave", [_break, _return, _raise])
def test_leaving_receive_loop_returns_only_current_message(
    client: Client, leave: Callable[[Iterator[Message]], None]
) -> None:
    queue = _fill(client, 3)
    try:
        leave(iter(queue.receive()))
    except RuntimeError:
        assert leave == _raise
    assert _left(client) == [b"1", b"2"]
    assert [message.abort_count for message in queue.peek()] == [1, 0]
    for message in queue.receive():
        assert message.abort_count == (message.body == b"1")


def test_in_a_loop_each_message_can_end_for_itself(client: Client, store: Path) -> None:
    queue = _fill(client, 5)
    for message in queue.receive():
        with message:
            if message.body == b"1":
                raise Reject
            if message.body == b"3":
                break  # its block has ended without an exception: it is dealt with
        with Client(store) as other:
            assert message.body not in _left(other)
    assert _left(client) == [b"4"]
    assert _left(client, DEAD_XACT) == [b"1"]


def test_batches_of_a_loop_end_together(client: Client, store: Path) -> None:
    queue = _fill(client, 10)
    batches = queue.receive_batch(3)
    for number, batch in enumerate(batches):
        assert [message.body for message in batch] == [b"%d" % (3 * number + place) for place in range(len(batch))]
        if number == 1:
            with Client(store) as other:
                assert _left(other) == [b"6", b"7", b"8", b"9"]  # the first is removed, this one is hidden
            break  # it is put back
    assert _left(client) == [b"%d" % number for number in range(3, 10)]
    with queue.receive_batch(1) as [message]:
        assert (message.body, message.abort_count) == (b"3", 1)
    seen = []
    for batch in queue.receive_batch(4):
        with batch:
            seen += [message.body for message in batch]
            if len(seen) == 4:
                raise Reject
    assert seen == [b"%d" % number for number in range(4, 10)]
    assert _left(client) == []
    assert _left(client, DEAD_XACT) == [b"4", b"5", b"6", b"7"]
    with queue.receive_batch(4) as batch:
        assert batch == []


def test_reject_outside_message_block_raises_and_rejects_nothing(alone: Client) -> None:
    def work() -> None:
        for _ in queue.receive():
            raise Reject

    queue = _fill(alone, 1)
    with pytest.raises(Reject, match="in a loop over messages in `with message:`"):
        work()
    assert _left(alone) == [b"0"]
    assert _left(alone, DEAD_XACT) == []
    assert str(Reject("too hot")) == "too hot"


def test_reject_of_nontransactional_message_returns_it_to_queue(alone: Client) -> None:
    def work() -> None:
        for message in queue.receive():
            with message:
                raise Reject

    queue = _fill(alone, 1, "plain")
    with pytest.raises(ValueError, match="plain is not transactional"):
        work()
    assert _left(alone, "plain") == [b"0"]


def test_a_message_that_has_ended_cannot_end_again(alone: Client) -> None:
    queue = _fill(alone, 2)
    for message in queue.receive():
        with message:
            pass
        with pytest.raises(ValueError, match="is removed or back in its queue already"), message:
            pass
        break
    assert _left(alone) == [b"1"]
    iterator = iter(queue.receive())
    message = next(iterator)
    del iterator
    with pytest.raises(ValueError, match="is removed or back in its queue already"), message:
        pass
    assert _left(alone) == [b"1"]


def test_closing_client_returns_message_of_its_receive_loop(store: Path) -> None:
    with Client(store) as client:
        iterator = iter(_fill(client, 1).receive())
        next(iterator)
    assert repr(client) == f"<Client of {str(store)!r}, closed>"
    del iterator
    with Client(store) as client:
        assert _left(client) == [b"0"]


def test_a_poisonous_message_does_not_stop_a_loop_for_ever(alone: Client) -> None:
    set_numbers(alone.store, PoisonAfter=2)
    queue = _fill(alone, 3)
    seen: list[bytes] = []
    for _ in range(4):
        try:
            for message in queue.receive():
                seen.append(message.body)
                if message.body == b"1":
                    raise RuntimeError
        except RuntimeError:
            pass
    assert seen == [b"0", b"1", b"1", b"2"]
    assert _left(alone) == []
    assert _left(alone, "line1;poison") == [b"1"]


def test_receive_loop_raises_if_message_cannot_be_removed(alone: Client) -> None:
    queue = _fill(alone, 2)
    iterator = iter(queue.receive())
    alone.queue("line1").put_back([next(iterator).lookup_id])
    with pytest.raises(StoreError, match="cannot be completed"):
        next(iterator)
    assert _left(alone) == [b"0", b"1"]


def test_a_loop_over_answers_leaves_all_else(alone: Client) -> None:
    identifier = bytes(range(20))
    for number in range(3):
        alone.send("plain", b"other")
        alone.send("plain", b"%d" % number, correlation_id=identifier)
    queue = alone.queue("plain")
    assert [message.body for message in queue.receive(correlation_id=identifier)] == [b"0", b"1", b"2"]
    assert _left(alone, "plain") == [b"other"] * 3
    last = list(queue.peek())[-1].lookup_id
    assert [message.lookup_id for message in queue.receive(timeout=None, lookup_id=last)] == [last]  # and does not wait
    assert len(_left(alone, "plain")) == 2


LOOP = """
import sys
from ordack.client import Client
with Client(sys.argv[1]) as client:
    for message in client.queue("line1").receive():
        if message.body == b"1":
            print("has it", flush=True)
            sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("served", [False, True])
def test_process_killed_in_receive_loop_loses_no_message(store: Path, served: bool) -> None:
    serve = Serve(store) if served else None
    with Client(store) as client:
        queue = _fill(client, 3)
        process = subprocess.Popen(
            [sys.executable, "-c", LOOP, str(store)],
            env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "has it\n"
        assert _left(client) == [b"2"]
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=DEADLINE_S)
        found = []
        for message in queue.receive(timeout=DEADLINE_S):
            with message:
                found.append((message.body, message.abort_count))
                if len(found) == 2:
                    break
        assert sorted(found) == [(b"1", 1), (b"2", 0)]
        assert _left(client) == []
    if serve:
        serve.stop()
