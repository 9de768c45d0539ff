"""The marks of a sender's transaction: its index, its first and its last message (wire.md 2.3)."""

from __future__ import annotations

from pathlib import Path

import pytest
from ordack.broker.message import Letter
from ordack.broker.sending import RUN_BYTES
from ordack.client import Client

from tests.support.command import Serve, as_json, serve_applications

AWAY = "DIRECT=OS:plant\\private$\\q"
Mark = tuple[str, bool | None, bool | None]


def _received(store: Path, queue: str) -> tuple[list[Mark], set[int | None]]:
    """Body, first and last of each message that is in a queue, and the indices of transactions."""
    rows = as_json("receive", "--store", store, queue, "--all")
    marks = [(row["body"], row["first_in_transaction"], row["last_in_transaction"]) for row in rows]
    return marks, {row["transaction_id"] for row in rows}


@pytest.mark.parametrize("served", [False, True], ids=["store", "serve"])
def test_the_ends_of_a_transaction_of_several_sends_are_marked(store: Path, served: bool) -> None:
    serve = Serve(store) if served else None
    with Client(store) as client:
        with client.transaction() as transaction:
            transaction.send("plain", b"0")
            for body in (b"1", b"2", b"3"):
                transaction.send("line1", body)
            transaction.send("plain", b"4")
        client.send_many([Letter("line1", b"5"), Letter("line1", b"6 is longer")])
        client.send("line1", b"7")
    assert _received(store, "plain") == ([("0", None, None), ("4", None, None)], {None})
    found, several = _received(store, "line1")
    assert found == [
        ("1", True, False), ("2", False, False), ("3", False, True), ("5", True, False), ("6 is longer", False, True),
        ("7", True, True),
    ]  # fmt: skip
    assert len(several) == 3
    if serve:
        serve.stop()


def test_the_ends_are_marked_wherever_the_messages_go(store: Path, tmp_path: Path) -> None:
    with Client(tmp_path / "plant", create=True) as client:
        client.create_queue("q", transactional=True)
    plant = Serve(tmp_path / "plant")
    serve, place = serve_applications(store, f"[next-hops]\nplant = '127.0.0.1:{plant.port}'\n")
    with Client(place) as client, client.transaction() as transaction:
        for destination, body in ((AWAY, b"1"), ("line1", b"2"), (AWAY, b"3")):
            transaction.send(destination, body)
    here, index = _received(store, "line1")
    assert here == [("2", False, False)]
    with Client(tmp_path / "plant") as client:
        for body, first, last in ((b"1", True, False), (b"3", False, True)):
            with client.queue("q").receive(timeout=60) as message:
                assert (message.body, message.first_in_transaction, message.last_in_transaction) == (body, first, last)
                assert {message.transaction_id} == index
    plant.stop()
    serve.stop()


def test_multi_run_transaction_has_one_first_and_one_last(store: Path) -> None:
    size = RUN_BYTES // 3
    with Client(store) as client:
        client.send_many([Letter("line1", bytes(size))] * 7)
        found = [(one.first_in_transaction, one.last_in_transaction) for one in client.queue("line1").peek()]
        indices = {one.transaction_id for one in client.queue("line1").peek()}
    assert found == [(True, False), *[(False, False)] * 5, (False, True)]
    assert len(indices) == 1
