"""A file that was large once gives back what nobody needs any more, and keeps what is used."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from ordack import store as store_module
from ordack.broker import pieces
from ordack.config.config import Config
from ordack.store import KEPT_BYTES

from tests.support.host_world import HERE, Host, World, world_of

pytestmark = pytest.mark.slow

BODY = bytes(60_000)
MANY = 600  # 36 MB
WATCHED_MS = 20_000  # instead of ten minutes


@pytest.fixture(autouse=True)
def _short_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "WATCHED_MS", WATCHED_MS)


class Opened(NamedTuple):
    host: Host
    world: World

    def poll(self, milliseconds: int) -> None:
        """Let so much time pass, a second at a time."""
        for _ in range(milliseconds // 1000):
            self.world.now += 1000
            self.host.manager.poll(self.world.now, self.world.wall)

    def free(self) -> int:
        """Bytes of the file that nothing is in."""
        store = self.host.store._database
        return int(store.one("PRAGMA freelist_count") * store.one("PRAGMA page_size"))

    def file(self) -> int:
        """Bytes of the file when all of the log is in it."""
        self.host.store._database._log.empty()
        return self.host.store.path.stat().st_size


def _opened(folder: Path, was_made_for_it: bool = True) -> Opened:
    host = Host(folder, Config(next_hops={"plant": HERE}), "10.0.0.9")
    if not was_made_for_it:
        host.store._database.connection.execute(
            "PRAGMA journal_mode = delete; PRAGMA auto_vacuum = 0; VACUUM; PRAGMA journal_mode = wal"
        ).fetchall()
    opened = Opened(host, world_of([host], []))
    with host.client() as client:
        client.create_queue("line2", transactional=False)
        client.send("line2", b"first")
        with client.store.transaction():
            for _ in range(MANY):
                client.send("line2", BODY)
        client.send("line2", b"last")
    return opened


def _emptied(opened: Opened) -> None:
    """What is large was received."""
    with opened.host.client() as client:
        queue = client.queue("line2")
        large = [message.lookup_id for message in queue.peek() if len(message.body) == len(BODY)]
        with client.store.transaction():
            for key in large:
                with queue.receive(lookup_id=key):
                    pass


def test_what_nobody_has_needed_for_long_is_given_back(tmp_path: Path) -> None:
    opened = _opened(tmp_path / "store")
    large = opened.file()
    assert large > MANY * len(BODY)
    _emptied(opened)
    opened.poll(WATCHED_MS // 2)
    assert opened.file() == large  # it may be needed again
    opened.poll(3 * WATCHED_MS)
    assert opened.free() <= KEPT_BYTES
    assert opened.file() < 1.5 * KEPT_BYTES
    with opened.host.client() as client:
        assert [message.body for message in client.queue("line2").peek()] == [b"first", b"last"]
    assert opened.host.store._database.all("PRAGMA integrity_check") == [("ok",)]


def test_it_goes_in_pieces_and_messages_have_their_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much there is to give back, each transaction gives back a little; what comes meanwhile is taken, and what
    it needs is not given back."""
    monkeypatch.setattr(pieces, "PIECE_S", 0.0)  # the smallest pieces, however fast this machine is
    opened = _opened(tmp_path / "store")
    opened.file()
    _emptied(opened)
    while not opened.host.manager.is_behind:
        opened.poll(1000)
    sent = 0
    turns = 0
    while opened.host.manager.is_behind:
        before = opened.free()
        opened.world.now += 10
        opened.host.manager.poll(opened.world.now, opened.world.wall)
        assert before - opened.free() <= pieces.CHUNK * 4096
        turns += 1
        if turns % 20 == 0:
            with opened.host.client() as client:
                client.send("line2", BODY)
            sent += 1
    assert turns > 40
    assert KEPT_BYTES - 2 * len(BODY) < opened.free() <= KEPT_BYTES
    with opened.host.client() as client:
        assert [len(message.body) for message in client.queue("line2").peek()] == [5, 4] + [len(BODY)] * sent
    assert opened.host.store._database.all("PRAGMA integrity_check") == [("ok",)]
