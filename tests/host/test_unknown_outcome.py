"""A disk that fails while a transaction is made durable: the log may hold all of it. Nothing is told stored or removed
that is not, the rest is called unknown, and what is done again is done once (B-098)."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ordack.client import Client
from ordack.store import StoreError, StoreUnknown

from tests.support.command import DEADLINE_S, ENVIRONMENT
from tests.support.faulty_disk import FaultyDisk, after_power_cut, faulty_disk
from tests.support.host_world import Host, exchange, peer_of, world_of

pytestmark = pytest.mark.rule("B-098")


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    with faulty_disk() as faulty:
        yield faulty


@pytest.fixture
def client(disk: FaultyDisk, tmp_path: Path) -> Iterator[Client]:
    with Client(tmp_path / "store", create=True) as opened:
        opened.create_queue("line1", transactional=True)
        opened.send("line1", b"1")
        yield opened
        disk.fail = ""


def _bodies(client: Client, name: str = "line1") -> list[bytes]:
    return [message.body for message in client.queue(name).peek()]


def _bodies_after_power_cut(client: Client, disk: FaultyDisk) -> list[bytes]:
    folder = client.store.folder
    with disk.repaired(), Client(after_power_cut(folder, folder.parent / "cut")) as opened:
        return _bodies(opened)


@pytest.mark.parametrize("fail", ["sync-once", "write-once"])
def test_a_commit_that_fails_once_has_not_happened_for_good(disk: FaultyDisk, client: Client, fail: str) -> None:
    disk.fail = fail
    with pytest.raises(StoreError) as raised:
        client.send("line1", b"2")
    assert disk.failed == 1
    assert not isinstance(raised.value, StoreUnknown)
    assert _bodies_after_power_cut(client, disk) == [b"1"]
    client.send("line1", b"2")
    assert _bodies_after_power_cut(client, disk) == _bodies(client) == [b"1", b"2"]


def test_send_sync_failure_raises_store_unknown_and_allows_retry(disk: FaultyDisk, client: Client) -> None:
    disk.fail = "sync"
    for _ in range(2):
        with pytest.raises(StoreUnknown, match=r"message( \d+)? to line1 was sent, or not: .*not known"):
            client.send("line1", b"2")
    assert _bodies_after_power_cut(client, disk) == [b"1", b"2"], "the log has it: this test shows the doubt"
    disk.fail = ""
    client.send("line1", b"2")
    assert _bodies_after_power_cut(client, disk) == _bodies(client) == [b"1", b"2"]


def test_receive_sync_failure_raises_store_unknown(disk: FaultyDisk, client: Client) -> None:
    taken = client.queue("line1").receive()
    assert taken.__enter__().body == b"1"
    disk.fail = "sync"
    with pytest.raises(StoreUnknown):
        taken.__exit__(None, None, None)
    assert _bodies_after_power_cut(client, disk) == [], "the log has its removal: this test shows the doubt"
    disk.fail = ""
    with client.queue("line1").receive() as message:
        assert message.body == b"1"
    assert _bodies_after_power_cut(client, disk) == _bodies(client) == []


@pytest.mark.rule("B-098", "B-285")
@pytest.mark.parametrize("fail", ["sync", "sync-once", "write", "write-once"])
@pytest.mark.parametrize("cut", [False, True], ids=["goes on", "power cut"])
def test_batch_with_unknown_commit_result_is_stored_once(
    disk: FaultyDisk, tmp_path: Path, fail: str, cut: bool
) -> None:
    host = Host(tmp_path)
    peer = peer_of(1)
    world = world_of([host], [peer])
    peer.send(b"1")
    world.settle()
    for number in (b"2", b"3", b"4"):
        peer.send(number)
    disk.fail = fail
    exchange(world)
    assert disk.failed
    assert host.content("line1")[:1] == [b"1"]
    assert fail.endswith("-once") or len(peer.acked) == 1, "nothing is acknowledged that may be lost"
    if cut:
        host._snapshot()
        disk.fail = ""
        host.restart(world.now)
    disk.fail = ""
    world.settle()
    assert host.content("line1") == [b"1", b"2", b"3", b"4"]
    assert peer.is_settled
    host.store.close()


def _on_a_disk_that_fails_after(function: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, on a disk that fails as soon as it calls this function of ordack."""
    of, _, name = function.rpartition(".")
    program = (
        "import sys\nfrom tests.support.faulty_disk import FaultyDisk\n"
        "from ordack import cli, store\nfrom ordack.broker import sending\n"
        f"disk = FaultyDisk()\nreal = {function}\n"
        f"def failing(*arguments):\n    disk.fail = 'sync'\n    return real(*arguments)\n"
        f"{of}.{name} = failing\ncli.main()\n"
    )
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{ENVIRONMENT['PYTHONPATH']}:{Path(__file__).parents[2]}"}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=DEADLINE_S,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done


def test_the_command_says_that_it_is_not_known_and_exits_with_6(client: Client) -> None:
    done = _on_a_disk_that_fails_after(
        "sending.Sending._put_here", "send", "--store", str(client.store.folder), "line1", "--body", "2"
    )
    assert done.returncode == 6, done.stderr
    assert re.search(r"message \d+ to line1 was sent, or not: .* not known whether .* before another", done.stderr)
