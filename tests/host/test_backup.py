"""A store that is copied and put back as people do it, under real `ordack serve` processes: no new message is called
stored that the destination has not, and nothing waits for ever."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mqqb import confirm
from ordack.client import Client
from ordack.store import Store

from tests.support.command import Running, write_settings

pytestmark = pytest.mark.slow

DEADLINE_S = 90
TO = "DIRECT=OS:plant\\private$\\line1"


class _Serve:
    """`ordack serve` on a store, at the port that it had before."""

    def __init__(self, store: Path, *arguments: str) -> None:
        self.store = store
        self.arguments = arguments
        self.port = 0
        self.log = ""
        self.process: Running | None = None
        with Client(store, create=True):
            self.set()

    def set(self, **numbers: int) -> None:
        """What its next start goes by."""
        write_settings(self.store, SeqResend13Time=1, TryConnectInterval=100, **numbers)

    def start(self) -> None:
        listen = f"127.0.0.1:{self.port}"
        self.process = Running("serve", "--json", "--store", str(self.store), "--listen", listen, *self.arguments)
        self.port = int(json.loads(self.process.stdout.readline())["listening"].rpartition(":")[2])

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self.process:
            self.process.send_signal(how)
            self.log += self.process.communicate(timeout=DEADLINE_S)[1]
            self.process = None


class _Plant:
    """A sender and its destination."""

    def __init__(self, folder: Path) -> None:
        self.backup = folder / "backup"
        self.destination = _Serve(folder / "destination")
        with Client(self.destination.store) as client:
            client.create_queue("line1", transactional=True)
        self.destination.set(IdleAckDelay=50)
        self.destination.start()
        self.sender = _Serve(folder / "store", "--next-hop", f"plant=127.0.0.1:{self.destination.port}")

    def acknowledge_after(self, milliseconds: int) -> None:
        """The destination waits so long with its OrderAcks."""
        self.destination.stop()
        self.destination.set(IdleAckDelay=milliseconds)
        self.destination.start()

    def send(self, *bodies: bytes) -> list[int]:
        with Client(self.sender.store) as client:
            return [client.send(TO, body).message_id for body in bodies]

    def content(self) -> list[bytes]:
        with Client(self.destination.store) as client:
            return [message.body for message in client.queue("line1").peek()]

    def said(self, message_ids: list[int]) -> list[tuple[str, bool]]:
        with Client(self.sender.store) as client:
            found = [client.state(message_id) for message_id in message_ids]
        return [(state.answer, state.in_doubt) for state in found if state]

    def has_ended(self, message_ids: list[int]) -> bool:
        return all(answer != confirm.WAITING for answer, _ in self.said(message_ids))


def _until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[_Plant]:
    made = _Plant(tmp_path)
    yield made
    for one in (made.sender, made.destination):
        one.stop(signal.SIGKILL)


def _shell(line: str, plant: _Plant) -> None:
    subprocess.run(["/bin/sh", "-ec", line], check=True, cwd=plant.sender.store.parent)


MAKE = {
    "cp -a over": "cp -a store backup",
    "rm -rf, cp -a": "cp -a store backup",
    "rm -rf, cp": "cp -r store backup",
    "tar": "tar cf backup.tar store",
}
PUT_BACK = {
    "cp -a over": "cp -a backup/. store/",
    "rm -rf, cp -a": "rm -rf store; cp -a backup store",
    "rm -rf, cp": "rm -rf store; cp -r backup store",
    "tar": "tar xf backup.tar",
}


def _nothing(_plant: _Plant) -> list[int]:
    return []


def _settled(plant: _Plant) -> list[int]:
    sent = plant.send(b"before 1", b"before 2")
    _until(lambda: plant.has_ended(sent))
    return sent


def _waiting(plant: _Plant) -> list[int]:
    """Numbered, and never on the wire before the backup was made."""
    plant.destination.stop()
    return plant.send(b"before 1", b"before 2")


def _transmitted(plant: _Plant) -> list[int]:
    """At the destination, whose OrderAck has not come."""
    plant.acknowledge_after(60_000)
    sent = plant.send(b"before 1", b"before 2")
    _until(lambda: len(plant.content()) == 2)
    return sent


STAGES = {"nothing": _nothing, "settled": _settled, "waiting": _waiting, "transmitted": _transmitted}


@pytest.mark.rule("B-426", "B-056", "B-079", "A-22", "B-093", "A-08")
@pytest.mark.parametrize(
    ("stage", "how", "hot", "restarted"),
    [
        ("nothing", "cp -a over", False, False),
        ("settled", "cp -a over", False, True),
        ("settled", "rm -rf, cp -a", True, False),
        ("settled", "cp -a over", True, True),
        ("waiting", "tar", False, False),
        ("waiting", "cp -a over", True, True),
        ("transmitted", "rm -rf, cp", False, False),
        ("transmitted", "cp -a over", True, True),
    ],
)
def test_restored_backup_loses_no_new_message(plant: _Plant, stage: str, how: str, hot: bool, restarted: bool) -> None:
    """hot: the backup is made while the queue manager runs. restarted: that is restarted in the life that is lost."""
    plant.sender.start()
    before = STAGES[stage](plant)
    if not hot:
        plant.sender.stop()
    # A file that is only there for a moment may go while cp copies: it says so, and goes on.
    _shell(MAKE[how] + (" || test -f backup/ordack.sqlite" if hot else ""), plant)
    if not hot:
        plant.sender.start()
    if plant.destination.process is None:
        plant.destination.start()
    if stage == "transmitted":
        plant.acknowledge_after(50)
    for number in range(2 if restarted else 1):
        lost = plant.send(b"lost %d" % (2 * number), b"lost %d" % (2 * number + 1))
        _until(lambda lost=lost: plant.has_ended(lost))
        plant.sender.stop()
        plant.sender.start()
    plant.sender.stop()
    with Store(plant.sender.store) as store:  # each start takes a second as its TimeStamp, also where they come faster
        last = max(queue.record[1] for queue in store.outgoing.queues())
    _until(lambda: time.time() > last + 1)  # else the clock is behind that life's, and what is new is in doubt
    _shell(PUT_BACK[how], plant)
    sent = plant.send(b"new 1")  # before it runs
    plant.sender.start()
    sent += plant.send(b"new 2", b"new 3")
    _until(lambda: plant.has_ended(before + sent))
    expected = [b"before 1", b"before 2"] if before else []
    expected += [b"lost %d" % number for number in range(4 if restarted else 2)]
    assert plant.content() == [*expected, b"new 1", b"new 2", b"new 3"]
    assert plant.said(sent) == [(confirm.STORED, False)] * 3
    for answer, in_doubt in plant.said(before):
        assert answer == confirm.STORED or in_doubt
