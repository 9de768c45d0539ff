"""A queue manager with its application on a disk with accidents, for power_cuts.py."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING

import apsw
from ordack.broker.applications import Question
from ordack.broker.message import Request
from ordack.client import Client
from ordack.config.config import Config
from ordack.store import StoreError
from ordack.store.schema import FILE_NAME

from tests.host.applications import Asking
from tests.host.power_cuts_notes import Contents, Note, Violation
from tests.support.beside import client_beside
from tests.support.host_world import Crash, Host
from tests.support.power import Machine

if TYPE_CHECKING:
    from tests.host.power_cuts import Episode

FAILURES = (StoreError, Crash, apsw.Error)  # the last as a connection is closed: there SQLite goes on, apsw tells


class Powered(Host):
    """A queue manager, and an application, on a disk with accidents."""

    def __init__(self, episode: Episode, index: int, config: Config, address: str) -> None:
        self.episode = episode
        self.index = index
        self.life = 0
        self.identifier = bytes([1 + index] * 16)  # the application's,
        self.number = 0  # and its last commit's
        self.held: list[tuple[int, Note]] = []  # keys and messages in the application's unfinished receive
        self.base = episode.folder / str(index)
        super().__init__(self.base, config, address)
        self.application = self._client()
        self._close()
        self.machine = Machine(self._life, episode.dice)
        self._goes_on({FILE_NAME: (self._life / FILE_NAME).read_bytes()})
        episode.power.machines.append(self.machine)
        super()._open(episode.now)
        self.application = self._client()

    def _client(self) -> Client:
        client = client_beside(self._life, lambda: self.episode.wall)
        if self.episode.asks:
            client.access = Asking(self.manager, self._hand_over, client.store, self.identifier, self.number)
        return client

    def _hand_over(self, question: Question) -> None:
        _, asked = question
        if isinstance(asked, Request):
            self.number = asked.number
        self.manager.receive([], self.episode.now, self.episode.wall, [question])

    def _goes_on(self, left: dict[str, bytes]) -> None:
        self.life += 1
        folder = self.base / str(self.life)
        self.machine.goes_on(left, folder)
        shutil.rmtree(self._life)
        self._life = folder

    def _close(self) -> None:
        """As the kernel does when the process ends, or more gently."""
        self.held = []
        with contextlib.suppress(*FAILURES):
            self.application.close()
        with contextlib.suppress(*FAILURES):
            self.store.messages.close()
        self.store.messages._receive_locks.close()
        self.store._lock.close()
        with contextlib.suppress(*FAILURES):
            self.store._database.close()

    def restart(self, now: int, snapshot: bool = False) -> None:
        """The power is gone: look at what may be found, and go on with one of it."""
        while self.machine.off:
            self.crashes += 1
            for wire in list(self.wires.values()):
                wire.cut()
            self._close()
            self._goes_on(self.episode.look_at_disks(self))
            self.episode.plan(self)
            self.start(now)
            if not self.machine.off:
                self.episode.settle_doubts(self)

    def start(self, now: int) -> None:
        """Open what is there, as often as it takes; the power may go meanwhile."""
        for attempt in range(20):
            if attempt == 10:
                self.machine.repaired()
            try:
                super()._open(now)
                self.application = self._client()
            except FAILURES as error:
                self._close()
                if self.machine.off:
                    return
                last = error
            else:
                return
        raise Violation(f"host {self.index} does not start on a disk that is well: {last!r}")

    def stop(self) -> None:
        """Close everything in order."""
        for wire in list(self.wires.values()):
            wire.cut()
        self.manager.close()
        self._close()

    def contents(self) -> Contents:
        """What its store shows now."""
        return Contents(self.store._database.connection)
