"""A message that comes back again and again is counted, and after as many times as an operator says, put aside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from ordack.client import Client, Empty
from ordack.pipeline.export import Exporter
from ordack.store import StoreError

from tests.support.command import DEADLINE_S, ENVIRONMENT, Serve, as_json, ordack, write_settings

pytestmark = pytest.mark.slow

# Receives in a transaction; dies with the message in its hands if its body is the second argument.
CONSUMER = """
import os, sys
from ordack.client import Client
with Client(sys.argv[1]) as client:
    while True:
        with client.queue("line1").receive_batch(3) as messages:
            if not messages:
                break
            if any(message.body == sys.argv[2].encode() for message in messages):
                os.kill(os.getpid(), 9)
            print(*[message.body.decode() for message in messages], flush=True)
"""


def _fill(store: Path, count: int) -> None:
    with Client(store) as client:
        for number in range(count):
            client.send("line1", b"%d" % number)


def _consume(store: Path, poison: str) -> tuple[int, list[int]]:
    done = subprocess.run(
        [sys.executable, "-c", CONSUMER, str(store), poison],
        env=ENVIRONMENT,
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return done.returncode, [int(body) for body in done.stdout.split()]


def _poison_after(store: Path, receives: int) -> None:
    write_settings(store, PoisonAfter=receives)
    Serve(store).stop()


def test_poison_message_moves_aside_and_others_arrive_in_order(store: Path) -> None:
    _fill(store, 8)
    _poison_after(store, 3)
    got: list[int] = []
    for died in (True, True, True, False):
        status, bodies = _consume(store, "4")
        assert (status == -9) is died
        got += bodies
    assert got == [0, 1, 2, 3, 5, 6, 7]
    queues = {queue["name"]: queue for queue in as_json("queue", "list", "--store", store)}
    assert (queues["line1"]["messages"], queues["line1;poison"]["messages"]) == (0, 1)
    assert queues["line1;poison"]["transactional"]
    [poison] = as_json("receive", "--store", store, "private$\\line1;poison")
    assert (poison["body"], poison["abort_count"]) == ("4", 3)
    assert as_json("queue", "list", "--store", store)[-1]["bytes"] == 0


def test_without_a_limit_it_stays_in_its_place_and_is_counted(store: Path) -> None:
    _fill(store, 3)
    for _ in range(2):
        assert _consume(store, "0") == (-9, [])
    lines = as_json("receive", "--store", store, "line1", "--peek")
    assert [(line["body"], line["abort_count"]) for line in lines] == [("0", 2), ("1", 2), ("2", 2)]
    assert " came back 2 times " in ordack("receive", "--store", store, "line1", "--peek").stdout
    assert [queue["name"] for queue in as_json("queue", "list", "--store", store)] == ["line1", "plain"]


def test_only_application_exception_raises_abort_count(store: Path, tmp_path: Path) -> None:
    _fill(store, 2)
    with Client(store) as client:
        with pytest.raises(ZeroDivisionError), client.queue("line1").receive():
            raise ZeroDivisionError
        (tmp_path / "to").mkdir()
        client.store._database.connection.execute(
            "CREATE TEMP TRIGGER no BEFORE DELETE ON messages BEGIN SELECT raise(FAIL, 'no'); END"
        )
        with Exporter(client, ["line1"], tmp_path / "to") as exporter, pytest.raises(StoreError):
            list(exporter.run())
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        subprocess.run(
            [sys.executable, "-m", "ordack", "receive", "--store", str(store), "line1"],
            env=ENVIRONMENT,
            stdout=full,
            stderr=subprocess.DEVNULL,
            timeout=DEADLINE_S,
            check=False,
        )
    assert [line["abort_count"] for line in as_json("receive", "--store", store, "line1", "--peek")] == [1, 0]


@pytest.mark.rule("B-338", "B-339")
def test_sender_sees_poison_message_received_or_deleted(store: Path) -> None:
    _poison_after(store, 1)
    with Client(store) as client:
        sent = [client.send("line1", b"%d" % number, dead_letter=True).message_id for number in range(2)]
        for _ in sent:
            with pytest.raises(ZeroDivisionError), client.queue("line1").receive():
                raise ZeroDivisionError
        with pytest.raises(Empty), client.queue("line1").receive():
            pass
        with client.queue("line1;poison").receive() as message:
            assert message.message_id == sent[0]
        for _ in range(3):  # from there it goes nowhere
            with pytest.raises(ZeroDivisionError), client.queue("line1;poison").receive() as message:
                raise ZeroDivisionError
        with pytest.raises(StoreError, match="line1;poison is a sub-queue"):
            client.send("line1;poison", b"x")
        assert client.delete_queue("line1") == 1
        answers = [client.state(number) for number in sent]
    assert [answer and answer.answer for answer in answers] == ["received", "dead-lettered"]
    left = [queue["name"] for queue in as_json("queue", "list", "--store", store)]
    assert left == ["system$;deadxact", "plain"]  # which has the one that was deleted
