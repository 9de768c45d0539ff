"""What an application receives and sends in one transaction happens together, or not at all; and a message has all the
properties that its sender gave it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from ordack.api.remote import Conversation
from ordack.client import Client, Empty, Letter
from ordack.store.queues import NoSuchQueue

from tests.support.command import DEADLINE_S, serve_applications

AWAY = "DIRECT=OS:plant\\private$\\line1"


@pytest.fixture
def own(store: Path) -> Iterator[Client]:
    """A client of that store itself."""
    with Client(store) as opened:
        opened.create_queue("line2", transactional=True)
        yield opened


@pytest.fixture(params=["alone", "at an address"])
def client(request: pytest.FixtureRequest, store: Path, own: Client) -> Iterator[Client]:
    serve, place = (None, str(store)) if request.param == "alone" else serve_applications(store)
    with Client(place) as opened:
        yield opened
        assert isinstance(opened.access, Conversation)
        known = own.store.answers.find(opened.access._application)
    if serve:
        assert known, "serve has done nothing"
        serve.stop()


def _bodies(client: Client, name: str) -> list[bytes]:
    return [message.body for message in client.queue(name).peek()]


def test_transaction_over_several_queues_is_atomic(client: Client, own: Client) -> None:
    client.send_many([Letter("line1", b"1"), Letter("line1", b"2"), Letter("plain", b"3")])
    with client.transaction() as transaction:
        assert transaction.receive("line1").body == b"1"
        assert transaction.receive(client.queue("plain")).body == b"3"
        transaction.send("line2", b"4", label="of 1")
        transaction.send("plain", b"5", priority=7)
        transaction.send(AWAY, b"6")
        assert _bodies(client, "line2") == []
        assert _bodies(client, "line1") == [b"2"]  # what is in somebody's hands is hidden
    assert _bodies(client, "line1") == [b"2"]
    assert _bodies(client, "line2") == [b"4"]
    assert _bodies(client, "plain") == [b"5"]
    assert [sent.delivery for sent in transaction.sent] == ["transactional", "recoverable", "transactional"]
    assert own.store.outgoing.waiting_own(transaction.sent[2].message_id)


@pytest.mark.parametrize("end", ["raises", "no such queue", "out of range", "empty"])
def test_failed_transaction_sends_nothing_and_requeues_messages(client: Client, end: str) -> None:
    client.send_many([Letter("line1", b"1"), Letter("line2", b"2")])
    expected: dict[str, type[Exception]] = {
        "raises": RuntimeError, "no such queue": NoSuchQueue, "out of range": ValueError, "empty": Empty,
    }  # fmt: skip

    def work() -> None:
        with client.transaction() as transaction:
            transaction.receive("line1")
            transaction.receive("line2")
            transaction.send("plain", b"3")
            if end == "raises":
                raise RuntimeError
            if end == "no such queue":
                transaction.send("nowhere", b"4")
            if end == "out of range":
                transaction.send("plain", b"4", ttbr=-1)
            if end == "empty":
                transaction.receive("line1")

    with pytest.raises(expected[end]):
        work()
    assert (_bodies(client, "line1"), _bodies(client, "line2"), _bodies(client, "plain")) == ([b"1"], [b"2"], [])
    with client.queue("line1").receive() as message:
        assert message.abort_count == 1


@pytest.mark.rule("B-317", "B-318")
def test_send_many_keeps_order_and_numbers_without_gap(client: Client) -> None:
    letters = [
        Letter(("line1", "line2", AWAY)[number % 3], b"%d" % number, label="x" * (number % 2)) for number in range(60)
    ]
    sent = client.send_many(letters)
    sent += client.send_many(letters)
    for place, name in enumerate(("line1", "line2")):
        assert _bodies(client, name) == [b"%d" % number for number in range(place, 60, 3)] * 2
    for place in range(3):
        assert [one.tx_sequence_number for one in sent[place::3]] == list(range(1, 41))
        assert len({one.tx_sequence_id for one in sent[place::3]}) == 1
    assert len({one.message_id for one in sent}) == 120
    message = next(client.queue("line1").peek())
    assert (message.tx_sequence_id, message.tx_sequence_number) == (sent[0].tx_sequence_id, 1)


def test_message_keeps_sender_properties_and_accepts_reply(client: Client, own: Client) -> None:
    asked = client.send(
        "line1", b"?", label="question", response_queue="plain", body_type=8, application_tag=77, extension=b"\1\2"
    )
    with client.queue("line1").receive() as question:
        assert question.identifier == asked.identifier
        assert (question.body_type, question.application_tag, question.extension) == (8, 77, b"\1\2")
        client.reply(question, b"!", label="answer")
    with client.queue("plain").receive() as answer:
        assert answer.correlation_id == question.identifier
        assert (answer.body, answer.label, answer.response_queue) == (b"!", "answer", None)
        with pytest.raises(ValueError, match="no response queue"):
            client.reply(answer, b"!!")
        shown = question.as_json()
        assert shown["extension"] == "0102"
        assert shown["response_queue"] == question.response_queue
    own.delete_queue("plain")
    with pytest.raises(NoSuchQueue, match="not there any more"):
        client.reply(question, b"!")


def test_message_shows_requested_acks_and_time_limits(own: Client) -> None:
    own.send("line1", b"?")
    own.queue("line1").send_many(
        [b"1", b"2"],
        ttrq=100,
        ttbr=200,
        dead_letter=True,
        acknowledge=["nack-receive", "reach-queue"],
        administration_queue="plain",
        response_queue="plain",
    )
    own.send("line1", b"3", journal=True)
    told = [
        (message.body, message.ttrq, message.ttbr, message.dead_letter, message.journal, message.acknowledge)
        for message in own.queue("line1").peek()
    ]
    asked = (100, 200, True, False, ("reach-queue", "nack-receive"))
    assert told == [
        (b"?", 345600, None, False, False, ()),
        (b"1", *asked),
        (b"2", *asked),
        (b"3", 345600, None, False, True, ()),
    ]
    shown = [message.as_json() for message in own.queue("line1").peek()]
    assert shown[0]["administration_queue"] is None
    assert shown[1]["administration_queue"] == shown[1]["response_queue"] is not None


def test_receive_selects_by_correlation_id_or_lookup_id(client: Client) -> None:
    questions = [client.send("line1", b"?%d" % number, response_queue="plain") for number in range(3)]
    with client.queue("line1").receive_batch(3) as received:
        for question in reversed(received):
            client.send("plain", question.identifier)  # has it in its body, and is no answer
            client.reply(question, b"!" + question.body)
    plain = client.queue("plain")
    for number in (1, 2, 0):
        identifier = questions[number].identifier
        with plain.receive(correlation_id=identifier) as answer:
            assert answer.body == b"!?%d" % number
        with pytest.raises(Empty), plain.receive(timeout=0.01, correlation_id=identifier):
            pass
    assert len(_bodies(client, "plain")) == 3
    last = list(plain.peek())[-1]
    with plain.receive(lookup_id=last.lookup_id) as message:
        assert message.body == last.body
    with pytest.raises(Empty), plain.receive(lookup_id=last.lookup_id):
        pass
    with pytest.raises(Empty), client.queue("line2").receive(lookup_id=next(plain.peek()).lookup_id):
        pass
    assert len(_bodies(client, "plain")) == 2


def test_receive_by_correlation_id_ignores_other_messages(client: Client, store: Path) -> None:
    identifier = bytes(range(20))

    def send_later() -> None:
        with Client(store) as other:
            other.send("plain", b"other")
            other.send("plain", b"answer", correlation_id=identifier)

    sender = threading.Timer(0.1, send_later)
    sender.start()
    with client.queue("plain").receive(timeout=DEADLINE_S, correlation_id=identifier) as answer:
        assert answer.body == b"answer"
    sender.join()
    assert _bodies(client, "plain") == [b"other"]
