"""`ordack message purge` at any moment: whatever `serve` is doing, what was withdrawn comes to its end at once, and
what had not left is never sent (C-29)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mqqb import confirm
from mqqb.session import Session
from ordack.config.config import Config
from ordack.config.settings import NEVER
from ordack.store import Store
from ordack.store.database import Database

from tests.support.beside import unserved
from tests.support.host_world import HERE, Host, World, exchange, world_of

LINE1 = "DIRECT=OS:plant\\private$\\line1"
LATER = "DIRECT=OS:plant\\private$\\later"  # a queue that is paused


class Operator:
    """Purges all outgoing queues of a store between two transactions of its queue manager, as another process.

    left: MessageIDs that were handed to a session so far. unsent: of what was purged, those that were not. busy: what
    happens now is no moment for it.
    """

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path, moment: int) -> None:
        self.moments = 0
        self.left: set[int] = set()
        self.purged: set[int] = set()
        self.unsent: set[int] = set()
        self.busy = False
        statement, send = Database.all, Session.send

        def watched(database: Database, sql: str, arguments: Any = ()) -> list[Any]:
            if not self.busy and folder in database.path.parents and database.connection.get_autocommit():
                self.moments += 1
                if self.moments == moment:
                    self._purge(database.folder)
            return statement(database, sql, arguments)

        def noted(session: Session, entry: Any, packet: bytearray, recoverable: bool, now: int) -> None:
            if entry is not None and entry.tx_sequence_number:
                self.left.add(entry.message_id)
            send(session, entry, packet, recoverable, now)

        patch.setattr(Database, "all", watched)
        patch.setattr(Session, "send", noted)

    def _purge(self, folder: Path) -> None:
        self.busy = True
        with unserved(Store(folder)) as store:
            self.purged = {entry.message_id for entry in store.outgoing.messages()}
            self.unsent = self.purged - self.left
            for queue in store.outgoing.queues():
                store.outgoing.request_purge(queue.identifier)
        self.busy = False


def _pass(world: World) -> None:
    exchange(world)
    world.pass_time(500)
    exchange(world)


def _life(folder: Path, patch: pytest.MonkeyPatch, moment: int, held: bool) -> tuple[Operator, Host, Host]:
    """A sender starts with messages of an earlier life, which had a session when it died, sends, settles, stops and
    starts again. held: an OrderAck comes for each message, and no FinalAck: they wait without limit (C-24)."""
    receiver = Host(folder / "receiver")
    sender = Host(folder / "sender", Config(next_hops={"plant": HERE}), "10.0.0.9")
    world = world_of([receiver, sender], [])
    with sender.client() as client:
        for body in (b"1", b"2"):
            client.send(LINE1, body, dead_letter=True)
        client.send(LATER, b"paused", dead_letter=True)
        assert client.order("set_on_hold", LATER, True)
    sender.manager.poll(world.now, world.wall)
    world.connect_all()
    world.collect()
    world.deliver(1 << 20)
    for queue in sender.store.outgoing.queues():
        sender.store.outgoing.set_sent_to(queue.identifier, NEVER)
    operator = Operator(patch, folder / "sender", moment)
    sender.restart(world.now, snapshot=True)
    with sender.client() as client:
        client.send(LINE1, b"3", dead_letter=True)
    for _ in range(3):
        _pass(world)
    if not held:
        with receiver.client(world.wall) as client, client.queue("line1").receive_batch(9):
            pass
    _pass(world)
    sender.manager.close()
    world.collect()
    sender.restart(world.now, snapshot=True)
    _pass(world)
    operator.busy = True  # with this
    for _ in range(4):
        _pass(world)
    return operator, sender, receiver


@pytest.mark.slow
@pytest.mark.rule("C-29", "C-33")
@pytest.mark.parametrize("held", [False, True])
def test_purge_outgoing_survives_crash_at_any_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    moment = 1
    while True:
        with monkeypatch.context() as patch:
            operator, sender, receiver = _life(tmp_path / str(moment), patch, moment, held)
        if operator.moments < moment:
            break
        with sender.client() as client:
            said = {identifier: client.state(identifier) for identifier in operator.purged}
        left = [entry.message_id for entry in sender.store.outgoing.messages() if entry.message_id in operator.purged]
        assert left == [], f"moment {moment}: withdrawn, and still there"
        assert not operator.unsent & operator.left, f"moment {moment}: sent after it was withdrawn"
        for identifier in operator.unsent:
            known = said[identifier]
            assert known, f"moment {moment}"
            assert (known.answer, known.message_class) == (confirm.DEAD_LETTERED, confirm.NACK_DELETED)
        receiver.store.close()
        sender.store.close()
        moment += 1
    assert moment > 30, "too few moments: nothing was interleaved"
    print(f"{moment - 1} moments")
