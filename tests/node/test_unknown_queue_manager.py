"""A queue manager that a board has never seen answers at the address of one that it knows: the gateway's store was made
anew, or its disk is not mounted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mqqb import guids
from ordack import StoreError
from ordack.client import Client
from ordack.node import Node
from ordack.node.talk.link import Backoff

from tests.support.command import Serve

LINE = "DIRECT=TCP:127.0.0.1\\private$\\line1"
WAITING = [b"%d" % number for number in range(20)]
WAIT_MS = 60000


@contextmanager
def serving(store: Path, port: int = 0, queue: bool = True) -> Iterator[int]:
    """A queue manager with this store; its port."""
    with Client(store, create=True) as client:
        if queue:
            with contextlib.suppress(StoreError):
                client.create_queue("line1", transactional=True)
    serve = Serve(store, listen=f"127.0.0.1:{port}")
    try:
        yield serve.port
    finally:
        serve.stop()


def guid_of(store: Path) -> str:
    with Client(store) as client:
        return guids.guid_text(client.store.guid)


def bodies(store: Path) -> list[bytes]:
    """What is in the queue of a store."""
    with Client(store) as client:
        return [bytes(message.body) for message in client.queue("line1").peek()]


def delivered(node: Node) -> bool:
    """Wait until nothing waits any more."""
    return node.wait(lambda: not node.waiting, WAIT_MS)


def refused(node: Node) -> str:
    """Wait until the node has met a queue manager; why it sends it nothing."""
    peer = node.queue(LINE).peer
    assert node.wait(lambda: "A-39" in peer.reason or not node.waiting, WAIT_MS)
    return peer.reason


def left_waiting(folder: Path, store: Path) -> int:
    """A board has delivered a message, and then accepted others while nobody was there; the port."""
    with serving(store) as port:
        node = Node(str(folder), connect=("127.0.0.1", port))
        node.queue(LINE).put(b"first")
        assert delivered(node)
    node.queue(LINE).put_all(WAITING)
    node.close_now()
    return port


@pytest.mark.rule("A-39")
@pytest.mark.parametrize("has_queue", [False, True])
def test_pending_messages_wait_for_known_queue_manager(tmp_path: Path, has_queue: bool) -> None:
    folder, known, fresh = tmp_path / "board", tmp_path / "known", tmp_path / "fresh"
    port = left_waiting(folder, known)
    failed: list[int] = []
    for _ in range(2):  # a reset forgets nothing
        node = Node(
            str(folder), connect=("127.0.0.1", port), on_failed=lambda message: failed.append(message.message_id)
        )
        with serving(fresh, port, has_queue):
            reason = refused(node)
        assert (node.waiting, failed) == (len(WAITING), []), reason
        node.close_now()
    assert guid_of(fresh) in reason
    node = Node(str(folder), connect=("127.0.0.1", port))
    with serving(known, port):
        assert delivered(node)
    assert bodies(known) == [b"first", *WAITING]
    node.close_now()


def test_accepted_queue_manager_gets_pending_and_is_remembered(tmp_path: Path) -> None:
    folder, known, fresh = tmp_path / "board", tmp_path / "known", tmp_path / "fresh"
    port = left_waiting(folder, known)
    with serving(fresh, port):
        node = Node(str(folder), connect=("127.0.0.1", port), accept=guid_of(fresh).lower())
        assert delivered(node)
        node.close_now()
        node = Node(str(folder), connect=("127.0.0.1", port))
        node.queue(LINE).put(b"last")
        assert delivered(node)
    assert bodies(fresh) == [*WAITING, b"last"]
    node.queue(LINE).put(b"later")
    with serving(known, port):
        assert guid_of(known) in refused(node)
    assert node.waiting == 1
    node.close_now()


def test_idle_board_sends_nothing_to_unknown_queue_manager(tmp_path: Path) -> None:
    folder, known, fresh = tmp_path / "board", tmp_path / "known", tmp_path / "fresh"
    with serving(known) as port:
        node = Node(str(folder), connect=("127.0.0.1", port))
        inbox = node.inbox("commands")  # so it connects although nothing waits
        node.queue(LINE).put(b"first")
        assert delivered(node)
    with serving(fresh, port):
        peer = node.queue(LINE).peer
        assert node.wait(lambda: "A-39" in peer.reason, WAIT_MS)
        node.queue(LINE).put(b"second")
        open_link = peer.link.open
        opened = []

        def counted() -> None:
            opened.append(peer.session)
            open_link()

        peer.link.open = counted  # type: ignore[method-assign]
        assert node.wait(lambda: len(opened) > 1, WAIT_MS)
    assert (node.waiting, len(inbox)) == (1, 0)
    with serving(known, port):
        assert delivered(node)
    assert bodies(known) == [b"first", b"second"]
    node.close_now()


def test_board_backs_off_from_queue_manager_over_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "store"
    delays: list[int] = []
    following = Backoff.next

    def next_delay(backoff: Backoff) -> int:
        delays.append(following(backoff))
        return 1

    with serving(store):
        pass
    (store / "ordack.toml").write_text("[settings]\nQuota = 1\n")
    with serving(store) as port:
        monkeypatch.setattr(Backoff, "next", next_delay)
        node = Node(str(tmp_path / "board"), connect=("127.0.0.1", port), random=lambda: 0)
        node.queue(LINE).put(b"first")
        assert node.wait(lambda: len(delays) == 6, WAIT_MS)
    assert node.stats.connects == 6
    assert delays == [100, 200, 400, 800, 1600, 3200]
    node.close_now()
