"""Queue managers, their applications, the wires between them and their power supply, with everything that can happen
to them as numbered actions, and what must hold whatever happens.

    .venv/bin/python -m tests.host.model --steps 1000000 --seed 7        a random walk
    .venv/bin/python -m tests.host.model --seed 7 --episode 31 --trace   one episode of it again

The managers, stores and clients are the real ones. The wires, the clocks and the deaths are the model's. What must come
out is kept in a plain record of each message (`Message`), which knows nothing of how the queue manager works.

After every action:
  - a message arrives at most once, in its own queue, and those of one stream in the order in which they were sent;
  - nothing is acknowledged that a second connection to the store does not see settled (B-098, B-281);
  - a packet keeps its number once it has left, and no number names two messages (A-08, B-079);
  - a source forgets a message only with an answer for its application, and the answer is true (C-80 to C-87);
  - journal, dead-letter and administration queues get what was asked for, once, and nothing else;
  - a queue hands out what is in it, in its order, and nothing leaves it unasked;
  - no session between two of us ends with a protocol error, nor for a line that takes its bytes slowly;
  - what an operator has withdrawn is gone when the queue manager has looked, and does not leave any more (C-29);
  - of what waits for one connection, the highest priority leaves first, but for each 16th turn (B-305).
Once a backup was put back somewhere, or a folder was emptied, less is asked of the messages sent before: some of them
are lost with a life.
When the accidents stop, everything comes to its end within a bounded time, and every accepted message has one.
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import dataclasses
import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
from mqqb import confirm, core, guids, handshake, headers, parse, reader
from mqqb.names import NULL_GUID, DirectQueueFormatName
from mqqb.session import Settings
from ordack.broker.links import Hop, Link
from ordack.broker.manager import Manager
from ordack.broker.order_acks import indispensable
from ordack.broker.sending import ACKNOWLEDGE
from ordack.broker.tables import LongStream
from ordack.client import Queue, Reject
from ordack.config.config import Config
from ordack.config.names import DEAD_XACT, JOURNAL
from ordack.config.settings import NEVER
from ordack.store import Store, StoreError
from ordack.store.schema import FILE_NAME

from tests.host.model_lines import Sendable, Sending, Violation
from tests.support.beside import HearingManager, client_beside
from tests.support.host_peer import Peer
from tests.support.host_world import check_alarms, wrong_columns

START = 1_800_000_000  # of the wall clock
QUEUES = ("tx", "tx2", "plain", "later")
ADMIN = "admin"
MADE = {ADMIN: False, "tx": True, "tx2": True, "plain": False}
SENT_TO = ("tx", "tx", "tx2", "plain", "tx", "plain", "tx2", "later")  # how often each is chosen
FITTING = 12  # so many of 15 sends are in a delivery mode that the queue had at first
# TTRQ, TTBR in s
TIMES = ((None, None), (None, None), (None, None), (None, None), (2, None), (30, 10), (None, 5), (60, 400))
COUNTS = (1, 1, 1, 1, 5)
AMOUNTS = (1, 16, 40, 200, 700, 3000, 1 << 22)  # bytes delivered at once
TICKS = (1, 20, 100, 500, 600, 3000, 11_000, 31_000, 45_000, 310_000, 2_000_000)  # ms
JUMPS = (-100_000, -3600, -61, -2, 2, 61, 3600, 100_000)  # s
STARTS = (0, 1, 5, 30, 20_000)
WINDOWS = (64, 64, 7, 2)
SETTLE = (0, *[600] * 40, *[5000] * 30, *[60_000] * 30, *[600_000] * 20, *[21_600_000] * 3)  # ms, until all is settled
STRANGE = "10.9.9.9"
TAG = re.compile(rb"<(\d+)>")
CLOSED = re.compile(r"session closed, .* \((B-\d+)\)$")
ACCIDENTS = ("B-147", "B-148", "B-155", "B-163", "B-285", "B-298", "B-435")  # between two of us nothing else ends one
DEFECTS = ("defect", "Traceback", "handled again")
EPISODE_STEPS = 300
LONG = 1150  # from this size on a body is so many times longer:
LONGER = 10
SPEEDS = (100, 960, 11_500)  # of a slow line, bytes in a second; a packet may come at 50
SLOW_STEP = 5000  # ms; looked at so often, and
SLOW_STEPS = 60  # so often at most
SILENCE = 50_000  # ms: whoever heard nothing for that long has closed the session (B-148)


class Crash(BaseException):
    """The process is dead: nothing in it may react."""


class Message:
    """What is known of one message: what was promised, and what has been seen of it. ttrq, ttbr: s, NEVER if unset."""

    def __init__(
        self,
        tag: int,
        source: Host,
        target: Host,
        name: str,
        queue: str,
        delivery: str,
        priority: int,
        ttrq: int,
        ttbr: int,
        journal: int,
    ) -> None:
        self.tag = tag
        self.source = source
        self.target = target
        self.name = name
        self.queue = queue
        self.delivery = delivery
        self.priority = priority
        self.ttrq = ttrq
        self.ttbr = ttbr
        self.journal = journal  # bits 1 dead-letter, 2 journal
        self.step = 0
        self.guid = source.guid
        self.sent_time = 0
        self.message_id = 0  # 0: not accepted
        self.number: tuple[int, int] | None = None  # TxSequenceID, TxSequenceNumber
        self.arrived = False
        self.received = False
        self.removed = False  # by a purge, or with its queue, or because its time was over
        self.refused = False  # by the application that received it
        self.rejected = 0  # class of the negative FinalAck that left its target
        self.told = ""  # what its source says of it after the end
        self.certain = False  # the source says that it was not received
        self.acknowledge = False
        self.acknowledgements: set[int] = set()  # classes of those that came
        self.copies: set[tuple[int, str]] = set()  # hosts and their system queues with a copy
        self.holders: Counter[int] = Counter()  # hosts with a copy in an outgoing queue
        self.transmitted = False  # by its source
        self.withdrawn = False  # somebody has purged an outgoing queue that it was in
        self.recalled = False  # before it was ever transmitted
        self.blurred = False  # a backup was put back since: what was promised may be lost with a life

    @property
    def can_come_again(self) -> bool:
        """May it arrive a second time? Its target has lost it, or the history that would tell."""
        return self.blurred and (not self.transactional or self.target.put_back_at > self.step)

    @property
    def orphaned(self) -> bool:
        """Is its sender not there any more? Nobody fetches what that is told."""
        return self.guid != self.source.guid

    @property
    def transactional(self) -> bool:
        return self.delivery == "transactional"

    def __repr__(self) -> str:
        facts = [name for name in ("arrived", "received", "removed", "refused", "rejected") if getattr(self, name)]
        return (
            f"message {self.tag} (id {self.message_id}, {self.delivery}, {self.source.index} to {self.target.index} "
            f"{self.name}, number {self.number}, journal {self.journal}, "
            f"times {self.sent_time} {self.ttrq} {self.ttbr}): {', '.join(facts) or 'accepted'}, "
            f"its source says {self.told or 'nothing yet'}, "
            f"copies {sorted(self.copies)}, rejected 0x{self.rejected:04X}"
        )


class Application:
    """One client of a host. `open`: its unfinished receive, and what that has."""

    def __init__(self, host: Host) -> None:
        self.client = client_beside(host.folder, lambda: host.world.wall)
        self.open: Any = None
        self.keys: list[int] = []

    def die(self) -> None:
        """The process is gone: its locks are free, nothing it had begun is finished."""
        store = self.client.store
        store._database.connection.exec_trace = _dead
        if self.open:
            with contextlib.suppress(Crash):
                self.open.__exit__(Crash, Crash(), None)
        store._locks.close()
        store._database.connection.close()


def _dead(_cursor: Any, _statement: str, _bindings: Any) -> bool:
    raise Crash


def _trap(
    store: Store, statements: int, error: type[BaseException], repeat: int, hear: Callable[[], None] = lambda: None
) -> None:
    """Before so many more statements of this store have run it raises error, `repeat` times, and tells that."""
    left = statements

    def trace(_cursor: Any, statement: str, _bindings: Any) -> bool:
        nonlocal left
        if statement != "ROLLBACK":
            left -= 1
            if -repeat < left <= 0:
                hear()
                raise error("model")
        return True

    store._database.connection.exec_trace = trace


def _between(store: Store, statements: int, act: Callable[[], None]) -> None:
    """Do this before so many more statements of this store have run, as soon as it is in no transaction."""
    left = statements

    def trace(_cursor: Any, _statement: str, _bindings: Any) -> bool:
        nonlocal left
        left -= 1
        if left < 0 and store._database.connection.get_autocommit():
            store._database.connection.exec_trace = None
            act()
        return True

    store._database.connection.exec_trace = trace


class Host:
    """A queue manager with its applications on one machine, and what the model sees in its store."""

    def __init__(self, world: World, index: int, folder: Path) -> None:
        self.world = world
        self.index = index
        self.folder = folder
        self.identities = 1  # that it has had
        self.address = f"10.0.0.{index + 1}"
        self.config = Config(
            own_names=frozenset({self.address, f"host{index}"}),
            history_lifetime=10**9,
            outcomes_kept=10**9,
            max_ack_queues=3,
        )
        self.boot = 0  # world time at which its monotonic clock was 0
        self.links: dict[Link, tuple[Wire, int]] = {}
        self.stranger: tuple[Link, Peer] | None = None
        self.given_up = False  # acknowledgements that waited here: what they said, nobody knows
        self.queues: dict[int, str] = {}
        self.kinds: dict[str, list[tuple[int, bool | None]]] = {name: [(0, MADE.get(name))] for name in QUEUES}
        self.content: dict[int, tuple[int, int, int, Message]] = {}  # lookup id -> queue, rank, expiry, message
        self.locked: dict[int, Application] = {}
        self.leaving: set[int] = set()  # lookup ids that an application is taking out of a queue
        self.last_lookup = 0
        self.outgoing: dict[int, Message | None] = {}  # key -> message; None: an acknowledgement
        self.last_key = 0
        self.known_key = 0  # what the queue manager has seen for certain
        self.timed_out = 0  # so many in its outgoing queues may have
        self.put_back_at = 0  # the step
        self.withdrawn: set[int] = set()  # keys of what an operator has withdrawn since the queue manager has looked
        self.looked_at = -1  # when that was, by the wall clock; it looks once in a second
        self.failed = False
        self.recalled: list[Message] = []  # what was withdrawn, and is not to leave any more if it has not yet
        self.is_busy = False  # something may be on its way out that nobody has seen yet
        self._watch()
        self._open()
        self.applications = [Application(self), Application(self)]

    @property
    def now(self) -> int:
        return self.world.now - self.boot

    def _open(self) -> None:
        self.store = Store(self.folder, clock=lambda: self.world.wall)
        self.store.lock_manager()
        self.guid = self.store.guid
        self.looked_at = -1
        self.manager = self._manager()

    def _manager(self) -> Manager:
        return HearingManager(self.store, self.now, self.config, self._log)

    def _log(self, line: str) -> None:
        self.given_up |= "the oldest are given up" in line
        closed = CLOSED.search(line)
        if (closed and closed[1] not in ACCIDENTS) or any(word in line for word in DEFECTS):
            self.world.problem = f"host {self.index}: {line}"

    def restart(self, reboot: bool) -> None:
        """The queue manager is dead, with all applications if the machine is; it comes up again from the disk."""
        self.world.figures["crashes"] += 1
        for link in list(self.links):
            wire, end = self.links.pop(link)
            wire.sever(end, tell=not reboot)
        if reboot:
            for application in self.applications:
                self.kill(application)
            self.boot = self.world.now
        self.store._database.connection.exec_trace = None
        self.store.close()
        self._open()
        self.look()

    def fails(self) -> None:
        """Its disk does; then it reads everything again, and has looked at nothing."""
        self.failed = True
        self.looked_at = -1

    def recall(self) -> None:
        """All that has left has been seen: what was withdrawn before must not follow."""
        for message in self.recalled:
            message.recalled |= not message.transmitted
        self.recalled.clear()

    def _watch(self) -> None:
        self.monitor = apsw.Connection(str(self.folder / FILE_NAME))
        self.seen_version = -1

    def back_up(self) -> None:
        """Copy the files as they are, while everything runs."""
        self.backup.mkdir(exist_ok=True)
        for name in (FILE_NAME, FILE_NAME + "-wal"):
            shutil.copy(self.folder / name, self.backup / name)

    @property
    def backup(self) -> Path:
        return self.folder.with_suffix(".backup")

    def put_back(self) -> None:
        """The machine is dead, and comes up again from the backup."""
        self.world.figures["put back"] += 1
        self._begin_with(self.backup)

    def empty(self) -> None:
        """The machine is dead, and comes up again with a new store and the same queues."""
        self.world.figures["emptied"] += 1
        self.identities += 1
        new = self.folder.with_suffix(".new")
        shutil.copytree(_template(self.index), new)
        _identify(new, bytes([0xA0 + self.index]) * 14 + self.identities.to_bytes(2, "little"))
        self._begin_with(new)
        shutil.rmtree(new)

    def _begin_with(self, folder: Path) -> None:
        for link in list(self.links):
            wire, end = self.links.pop(link)
            wire.sever(end, tell=True)
        self.close()
        shutil.rmtree(self.folder)
        shutil.copytree(folder, self.folder)
        self.boot = self.world.now
        self._watch()
        self._open()
        self.applications = [Application(self), Application(self)]
        self.locked.clear()
        self.leaving.clear()

    def look_anew(self) -> None:
        """What is in the store now has been there before."""
        for message in self.outgoing.values():
            if message:
                message.holders[self.index] -= 1
        self.content.clear()
        self.outgoing.clear()
        self.withdrawn.clear()
        self.last_lookup = self.last_key = self.known_key = 0
        self.queues = dict(self.monitor.execute("SELECT id, lower(name) FROM queues"))
        there = dict(self.monitor.execute("SELECT lower(name), transactional FROM queues"))
        for name in QUEUES:
            self.kinds[name].append((self.world.step, bool(there[name]) if name in there else None))
        for key, queue, rank, expires, purged, packet in self.monitor.execute(
            "SELECT lookup_id, queue, rank, expires, purged, packet FROM messages ORDER BY lookup_id"
        ).fetchall():
            self.last_lookup = key
            name = self.queues[queue]
            message, _ = self.world.identify(parse.parse(packet))
            assert message
            if name != ADMIN and not name.startswith("system$;"):
                message.received = message.refused = False
                message.removed = bool(purged)
                self.content[key] = queue, rank, NEVER if expires is None else expires, message

    def kill(self, application: Application) -> None:
        application.die()
        self.locked = {key: owner for key, owner in self.locked.items() if owner is not application}
        self.applications[self.applications.index(application)] = Application(self)

    def close(self) -> None:
        for application in self.applications:
            application.die()
        self.store._database.connection.exec_trace = None
        self.store.close()
        self.monitor.close()

    # ---- what a second connection sees in the store

    def look(self) -> None:
        version = self.monitor.execute("PRAGMA data_version").fetchone()[0]
        if version == self.seen_version:
            return
        self.seen_version = version
        self.queues = dict(self.monitor.execute("SELECT id, lower(name) FROM queues"))
        there = set()
        for key, expires in self.monitor.execute("SELECT lookup_id, expires FROM messages"):
            there.add(key)
            if expires is not None and key in self.content:  # it is moved with a clock that is put forward
                queue, rank, _, message = self.content[key]
                self.content[key] = queue, rank, expires, message
        for key in self.content.keys() - there:
            _, _, expires, message = self.content.pop(key)
            if key not in self.leaving and not message.removed:
                if expires > self.world.highest_wall(message.step):
                    raise Violation(f"it has vanished from its queue: {message}")
                message.removed = True
        self.leaving.clear()
        for key, queue, rank, expires, packet in self.monitor.execute(
            "SELECT lookup_id, queue, rank, expires, packet FROM messages WHERE lookup_id > ? ORDER BY lookup_id",
            (self.last_lookup,),
        ).fetchall():
            self.last_lookup = key
            name = self.queues[queue]
            message, message_class = self.world.identify(parse.parse(packet))
            assert message
            if name == ADMIN:
                self.world.acknowledged(self, message, message_class)
            elif name.startswith("system$;"):
                self.world.copied(self, message, name)
            else:
                self.content[key] = queue, rank, NEVER if expires is None else expires, message
                self.world.arrival(self, message, name)
        for key, packet in self.monitor.execute(
            "SELECT id, packet FROM outgoing_messages WHERE id > ? ORDER BY id", (self.last_key,)
        ).fetchall():
            self.last_key = key
            parsed = parse.parse(packet)
            if self._is_for_nobody(parsed):
                continue
            message, message_class = self.world.identify(parsed)
            self.outgoing[key] = None if message_class else message
            if message := self.outgoing[key]:
                message.holders[self.index] += 1
        there = {key for (key,) in self.monitor.execute("SELECT id FROM outgoing_messages")}
        for key in self.outgoing.keys() - there:
            gone = self.outgoing.pop(key)
            self.timed_out += gone is None or gone.withdrawn or self.world.may_be_late(gone)
            if gone:
                gone.holders[self.index] -= 1
                self.world.dropped(self, gone)

    def _is_for_nobody(self, packet: object) -> bool:
        """Is this an acknowledgement that nobody will fetch?"""
        if isinstance(packet, headers.FinalAck):
            return self.world.is_stranger(packet.body.source_guid)
        message, message_class = self.world.identify(packet)
        return message_class != 0 and message is not None and message.orphaned

    def forget_orphaned(self) -> None:
        """Acknowledgements for an identity that is gone wait for ever, until there are too many."""
        for key, packet in self.monitor.execute("SELECT id, packet FROM outgoing_messages").fetchall():
            if self.outgoing.get(key, self) is None and self._is_for_nobody(parse.parse(packet)):
                del self.outgoing[key]

    def turns_without_a_packet(self) -> int:
        """At most so many messages had a turn to be sent, and were too late or withdrawn."""
        held: int = self.monitor.execute("SELECT count(*) FROM outgoing_messages WHERE held").fetchone()[0]
        return self.timed_out + held

    def urgent(self, link: Link) -> dict[Sendable, int]:
        """What waits for this link, and the queue manager knows of, with a priority above the lowest."""
        served = self.manager.outgoing.served_by(link)
        queues = {outgoing.identifier for outgoing in served if not (outgoing.returns or outgoing.on_hold)}
        rows = self.monitor.execute(
            "SELECT id, outgoing, priority FROM outgoing_messages WHERE priority > 0 AND NOT deleted AND id <= ? "
            "AND send_until >= ?",
            (self.known_key, self.world.wall),
        ).fetchall()
        found = {self.outgoing.get(key): priority for key, queue, priority in rows if queue in queues}
        return {message: priority for message, priority in found.items() if message}

    def contents(self, queue: int) -> list[int]:
        """Lookup ids of what may be received from a queue, in its order."""
        return sorted(
            (
                key
                for key, (where, _, expires, message) in self.content.items()
                if where == queue and key not in self.locked and not message.removed and expires > self.world.wall
            ),
            key=lambda key: (self.content[key][1], key),
        )


class Wire:
    """One TCP connection: end 0 has connected, end 1 has accepted. `inbox`: what is on its way to an end."""

    def __init__(
        self, world: World, hosts: tuple[Host, Host], links: tuple[Link, Link], start: tuple[int, ...]
    ) -> None:
        self.world = world
        self.hosts = hosts
        self.guids = [host.guid for host in hosts]
        self.links: list[Link | None] = list(links)
        self.inbox = (bytearray(), bytearray())
        self.over = [False, False]  # the end of the stream follows what is in the inbox
        self.severed = False
        self.sent: tuple[list[Message | None], ...] = ([], [])  # by each end, in order
        self.recoverable: tuple[list[Message | None], ...] = ([], [])
        self.checked = [0, 0]
        self.start = start  # counts at the start: all and recoverable of end 0, of end 1
        self.sending = [Sending(host.turns_without_a_packet) for host in hosts]  # of each end
        for end, (host, link) in enumerate(zip(hosts, links)):
            host.links[link] = self, end
            counts = link.session.window.counts
            ours, theirs = start[2 * end], start[2 - 2 * end]
            ours_recoverable, theirs_recoverable = start[2 * end + 1], start[3 - 2 * end]
            counts[core.SESSION_SENT] = counts[core.SESSION_PEER_ACKED] = ours
            counts[core.SESSION_RECOVERABLE_SENT] = ours_recoverable
            for place in (core.SESSION_RECEIVED, core.SESSION_STORED, core.SESSION_ACKED):
                counts[place] = theirs
                counts[place + 1] = theirs_recoverable

    def sever(self, end: int, tell: bool) -> None:
        """This end is gone. What it had sent may still arrive; the other end may never learn why nothing follows."""
        self.links[end] = None
        self.inbox[end].clear()
        self.sending[end].lose()
        self.severed = True
        self.over[1 - end] |= tell
        self.forget()

    def forget(self) -> None:
        if self.links == [None, None] and self in self.world.wires:
            self.world.wires.remove(self)


def _crawl(world: World, wire: Wire, end: int, speed: int) -> None:
    """Let time pass while the line takes so many bytes a second of what this end writes, as long as it writes any."""
    sending = wire.sending[end]
    links = [link for link in wire.links if link]
    sending.is_slow = True
    moved = 0  # ms, without a pause
    for _ in range(SLOW_STEPS):
        world.now += SLOW_STEP
        world.walls.append((world.step, world.wall))
        taken = sending.take(speed * SLOW_STEP // 1000)
        moved = moved + SLOW_STEP if taken else 0
        wire.inbox[1 - end].extend(taken)
        for place, host in enumerate(wire.hosts):
            links[end].pace.holds(sending.holds)
            if links[place] in host.links:
                world._deliver(host, 1 << 22, [(links[place], (wire, place))])
            links[end].pace.holds(sending.holds)  # as a transport tells before each look
            world._poll(host)
        closed = [link.session.closed for link in links if link.session.closed]
        if closed and moved > SILENCE and closed[0].rule == "B-148":
            raise Violation(f"a session is closed whose bytes move: {closed[0].reason}")
        if closed or not sending.holds:
            break
    sending.is_slow = False
    wire.inbox[1 - end].extend(sending.take())
    links[end].pace.holds(0)


_templates: dict[int, Path] = {}


def _template(index: int) -> Path:
    """A folder with a new store that is always the same."""
    if index not in _templates:
        folder = Path(tempfile.mkdtemp(prefix="ordack-model-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        with Store(folder, create=True) as store:
            for name, transactional in MADE.items():
                store.queues.create(name, transactional)
        _identify(folder, bytes([0xA0 + index]) * 16)
        _templates[index] = folder
    return _templates[index]


def _identify(folder: Path, guid: bytes) -> None:
    with Store(folder) as store:
        store._database.connection.execute("UPDATE settings SET value = ? WHERE name = 'guid'", (guid,))


def clean() -> None:
    """Remove the templates."""
    for folder in _templates.values():
        shutil.rmtree(folder, ignore_errors=True)
    _templates.clear()


class World:
    """Everything. The public methods with integer arguments are the actions, listed in ACTIONS."""

    def __init__(self, size: int, figures: Counter[str] | None = None) -> None:
        self.size = size
        self.figures: Counter[str] = Counter() if figures is None else figures
        self.now = 0
        self.wall_offset = START
        self.step = 0
        self.problem = ""
        self.trace: list[tuple[str, tuple[int, ...]]] = []
        self.messages: dict[int, Message] = {}
        self.by_id: dict[tuple[bytes, int], Message] = {}
        self.numbers: dict[tuple[bytes, int, int], Message] = {}  # source's GUID, TxSequenceID, TxSequenceNumber
        self.sequences: dict[tuple[bytes, int], list[int]] = {}  # source's GUID, TxSequenceID -> numbers
        self.last_arrival: dict[tuple[Any, ...], int] = {}
        self.order_checked: dict[tuple[bytes, int], int] = {}
        self.wires: list[Wire] = []
        self.strangers = 0
        self.limited = False  # a quota was set: there may have been no room for an administration acknowledgement
        self.wrap = (0, 0, 0, 0)
        self.walls = [(0, START)]  # step, what the wall clock said then
        self._in_memory = LongStream.ahead, LongStream.low
        LongStream.ahead, LongStream.low = 2, 1  # so that much of what waits is in the stores alone
        self.folder = Path(tempfile.mkdtemp(prefix="ordack-model-", dir=_template(0).parent))
        self.hosts = []
        for index in range(size):
            shutil.copytree(_template(index), self.folder / str(index))
            self.hosts.append(Host(self, index, self.folder / str(index)))
        for host in self.hosts:
            host.look()

    def close(self) -> None:
        LongStream.ahead, LongStream.low = self._in_memory
        for host in self.hosts:
            host.close()
        shutil.rmtree(self.folder)

    @property
    def wall(self) -> int:
        return self.wall_offset + self.now // 1000

    def do(self, name: str, *arguments: int) -> None:
        """One action by its name, and everything that must hold after it."""
        self.step += 1
        self.trace.append((name, arguments))
        self.walls.append((self.step, self.wall))
        getattr(self, name)(*arguments)
        for host in self.hosts:
            host.look()
        if self.problem:
            raise Violation(self.problem)

    def highest_wall(self, step: int) -> int:
        """The latest time that the wall clock has shown since this step."""
        return max(self.wall, *(wall for _, wall in self.walls[step:]))

    def _pick(self, items: list[Any], number: int) -> Any:
        return items[number % len(items)] if items else None

    # ---- what must hold

    def arrival(self, host: Host, message: Message, queue: str) -> None:
        """A message is in a queue."""
        if message.target is not host or message.queue != queue:
            raise Violation(f"it is in {queue} of host {host.index}: {message}")
        if message.arrived and not message.can_come_again:
            raise Violation(f"it has arrived twice: {message}")
        if message.rejected and not message.blurred:
            raise Violation(f"it has arrived, but was rejected with 0x{message.rejected:04X}: {message}")
        if host.kinds[queue][-1][1] is not message.transactional:
            raise Violation(f"its queue is of the other kind: {message}")
        if not message.message_id:
            raise Violation(f"it was never accepted: {message}")
        message.arrived = True
        self.figures["arrived"] += 1
        if message.blurred:
            message.received = message.removed = message.refused = False
            return
        if message.certain:
            raise Violation(f"it has arrived after all: {message}")
        stream = (message.source.index, message.name, message.delivery, message.priority)
        if self.last_arrival.get(stream, 0) > message.tag:
            raise Violation(f"it comes after message {self.last_arrival[stream]}: {message}")
        self.last_arrival[stream] = message.tag

    def identify(self, packet: object) -> tuple[Message | None, int]:
        """The message that a packet is, and 0; or the one that it acknowledges, and its class."""
        if isinstance(packet, (reader.OrderAck, headers.FinalAck)):
            return None, packet.message.properties.message_class
        assert isinstance(packet, headers.UserMessage)
        if packet.user.admin_queue is None and packet.properties.message_class:
            related = packet.properties.correlation_id
            message = self.by_id.get((bytes(related[:16]), int.from_bytes(related[16:], "little")))
            if message:
                return message, packet.properties.message_class
        found = TAG.search(bytes(packet.properties.body))
        assert found
        return self.messages[int(found[1])], 0

    def acknowledged(self, host: Host, message: Message, message_class: int) -> None:
        """An administration acknowledgement is in its queue."""
        again = message_class in message.acknowledgements
        several = (confirm.NACK_REACH_QUEUE_TIMEOUT, confirm.NACK_DELETED)  # each hop that has a copy may say these
        if message.blurred:
            return
        if message.source is not host or not message.acknowledge or (again and message_class not in several):
            raise Violation(f"it is acknowledged unasked with 0x{message_class:04X}: {message}")
        message.acknowledgements.add(message_class)
        self.figures["administration"] += 1
        if message_class == confirm.ACK_REACH_QUEUE:
            right = message.arrived
        elif message_class == confirm.ACK_RECEIVE:
            right = message.received
        elif message_class == confirm.NACK_REACH_QUEUE_TIMEOUT:
            message.blurred |= message.target.given_up  # it may come before the FinalAck that says the same
            right = message.blurred or self.may_be_late(message)
        elif message_class == confirm.NACK_DELETED:
            right = message.withdrawn
        elif message_class & 0xC000 == 0x8000:
            right = self.may_be_unfit(message) and not message.arrived
        else:
            right = message.removed or message.refused
        if not right:
            raise Violation(f"it is acknowledged with 0x{message_class:04X}: {message}")

    def copied(self, host: Host, message: Message, queue: str) -> None:
        """A copy is in a journal or dead-letter queue."""
        if (host.index, queue) in message.copies and not message.blurred:
            raise Violation(f"{queue} of host {host.index} has it twice: {message}")
        message.copies.add((host.index, queue))
        asked = 2 if queue == JOURNAL else 1
        if not message.journal & asked or (message.transactional and host is not message.source):
            raise Violation(f"{queue} of host {host.index} has it unasked: {message}")
        self.figures["journaled" if asked == 2 else "dead-lettered"] += 1

    def dropped(self, host: Host, message: Message) -> None:
        """A host has a copy less in its outgoing queues."""
        if message.transactional:
            if host is message.source:
                self._told(message)
        elif not (
            message.blurred
            or message.withdrawn
            or message.arrived
            or any(message.holders.values())
            or self.may_be_unfit(message)
            or self.may_be_late(message)
        ):
            raise Violation(f"host {host.index} has dropped it: {message}")

    def _told(self, message: Message) -> None:
        """The source of a transactional message has no copy to send any more: what does it say?"""
        said = message.source.applications[0].client.state(message.message_id)
        if said is None:
            raise Violation(f"its source has forgotten it: {message}")
        message.told = f"{said.answer} 0x{said.message_class:04X}{' in doubt' if said.in_doubt else ''}"
        self.figures[said.answer] += 1
        if message.blurred:
            return
        reason = said.message_class
        dead = (message.source.index, DEAD_XACT) in message.copies
        journaled = (message.source.index, JOURNAL) in message.copies
        timed_out = reason in (
            confirm.NACK_REACH_QUEUE_TIMEOUT,
            confirm.NACK_RECEIVE_TIMEOUT_AT_SENDER,
            confirm.NACK_RECEIVE_TIMEOUT,
        )
        if said.answer == confirm.STORED:
            right = message.arrived and not message.journal
        elif said.answer == confirm.RECEIVED:
            right = message.received and journaled == bool(message.journal & 2)
        elif said.answer in (confirm.DEAD_LETTERED, confirm.DISCARDED):
            right = dead == (said.answer == confirm.DEAD_LETTERED) == bool(message.journal & 1)
            if reason == confirm.NACK_DELETED:
                right &= message.withdrawn and (said.in_doubt or not message.transmitted)
            elif said.in_doubt:  # a clock that is behind that of a life which is lost numbers what is refused
                right &= timed_out and (self.may_be_late(message) or message.source.put_back_at > 0)
            elif timed_out and reason != confirm.NACK_RECEIVE_TIMEOUT:
                right &= self.may_be_late(message) and not message.arrived
                message.certain = True
            elif reason & 0xC000 == 0x8000:
                right &= message.rejected == reason and not message.arrived
            else:
                right &= (
                    message.arrived
                    and not message.received
                    and (message.refused if reason == confirm.NACK_RECEIVE_REJECTED else message.removed)
                )
        else:
            right = False
        if not right:
            raise Violation(f"its source says what is not true at {self.wall}: {message}")

    def may_be_late(self, message: Message) -> bool:
        """Has the wall clock, since it was sent, shown a time at which it was not to be on its way any more?"""
        return self.highest_wall(message.step) >= message.sent_time + min(message.ttrq, message.ttbr)

    def may_be_unfit(self, message: Message) -> bool:
        """Was there, since the message was sent, a moment at which its queue would not have taken it?"""
        kinds = message.target.kinds.get(message.queue, [(0, None)])
        first = bisect.bisect_right(kinds, message.step, key=lambda change: change[0]) - 1
        return any(kind is not message.transactional for _, kind in kinds[max(first, 0) :])

    def _leaves(self, host: Host, wire: Wire, end: int, data: bytes) -> None:
        """Bytes go out: nothing in them may say more than what is on the disk."""
        if not host.store._database.connection.get_autocommit():
            raise Violation(f"host {host.index} sends with its transaction open")
        link = wire.links[end]
        sending = wire.sending[end]
        urgent = sending.still_waits(host.urgent(link) if link else {})
        at = 0
        while at < len(data):
            packet = parse.parse(data, at)
            at += core.packet_total(data[at + 2], int.from_bytes(data[at + 8 : at + 12], "little"))
            session: headers.SessionHeader | None = None
            if isinstance(packet, handshake.SessionAck):
                session = packet.session
            elif isinstance(packet, (headers.UserMessage, reader.OrderAck, headers.FinalAck)):
                outer = packet if isinstance(packet, headers.UserMessage) else packet.message
                session = outer.session
                message = None
                if isinstance(packet, reader.OrderAck):
                    self._order_ack_leaves(host, wire, end, packet)
                elif isinstance(packet, headers.FinalAck):
                    self._final_ack_leaves(host, packet)
                else:
                    message, message_class = self.identify(packet)
                    if message_class:
                        message = None
                    elif message:
                        self._message_leaves(host, message, packet)
                        self.figures["out of turn"] += sending.leaves(message, at, host is message.source, urgent)
                if not isinstance(packet, reader.OrderAck) or outer.user.source_queue_manager != host.guid:
                    sending.turn()  # an OrderAck of its own waits in no queue
                wire.sent[end].append(message)
                if outer.user.flags & core.USER_DM:
                    wire.recoverable[end].append(message)
            if session is not None:
                self._session_header_leaves(host, wire, end, session)

    def _message_leaves(self, host: Host, message: Message, packet: headers.UserMessage) -> None:
        self.figures["transmitted"] += 1
        may_be_renumbered = host is message.source and (message.blurred or not message.transmitted)
        if host is message.source:
            if message.recalled and not message.blurred:
                raise Violation(f"it is sent, and had been withdrawn: {message}")
            message.transmitted = True
        transaction = packet.transaction
        if transaction is not None:
            number = transaction.tx_sequence_id, transaction.tx_sequence_number
            if number != message.number:
                if not may_be_renumbered:
                    raise Violation(f"it has another number, {number}: {message}")
                self._number(message, number)

    def _number(self, message: Message, number: tuple[int, int]) -> None:
        """It is given when a message is sent, or before it leaves."""
        if self.numbers.setdefault((message.guid, *number), message) is not message:
            raise Violation(f"two messages have the number {number}: {message}")
        if message.number is not None:
            self.figures["renumbered"] += 1
        message.number = number
        numbers = self.sequences.setdefault((message.guid, number[0]), [])
        if number[1] not in numbers[-1000:]:
            bisect.insort(numbers, number[1])

    def _session_header_leaves(self, host: Host, wire: Wire, end: int, header: headers.SessionHeader) -> None:
        start, start_recoverable = wire.start[2 - 2 * end : 4 - 2 * end]
        theirs = wire.recoverable[1 - end]
        for bit in range(32):
            if header.recoverable_msg_ack_flags >> bit & 1:
                place = (header.recoverable_msg_ack_seq_number + bit - start_recoverable - 1) & 0xFFFF
                if place >= len(theirs):
                    raise Violation(f"host {host.index} acknowledges recoverable message {place}, which was not sent")
                self._must_be_settled(host, theirs[place])
        covered = (header.ack_sequence_number - start) & 0xFFFF
        if covered > len(wire.sent[1 - end]):
            raise Violation(f"host {host.index} acknowledges message {covered}, which was not sent")
        for message in wire.sent[1 - end][wire.checked[end] : covered]:
            if message and message.delivery == "express":
                self._must_be_settled(host, message)
        wire.checked[end] = max(covered, wire.checked[end])
        own = (len(wire.sent[end]) + wire.start[2 * end]) & 0xFFFF
        own_recoverable = (len(wire.recoverable[end]) + wire.start[2 * end + 1]) & 0xFFFF
        if (header.user_msg_sequence_number, header.recoverable_msg_sequence_number) != (own, own_recoverable):
            raise Violation(f"host {host.index} counts {header.user_msg_sequence_number} messages sent, not {own}")

    def _must_be_settled(self, host: Host, message: Message | None) -> None:
        if message is None or message.transactional or message.arrived or message.withdrawn or message.blurred:
            return
        elsewhere = any(count for index, count in message.holders.items() if index != message.source.index)
        if not (elsewhere or self.may_be_unfit(message) or self.may_be_late(message)):
            raise Violation(f"it is acknowledged, but is not on disk: {message}")

    def _order_ack_leaves(self, host: Host, wire: Wire, end: int, packet: reader.OrderAck) -> None:
        body = packet.body
        guid = packet.message.user.queue_manager_address
        key = bytes(guid) if guid != NULL_GUID else wire.guids[1 - end], body.tx_sequence_id
        numbers = self.sequences.get(key, [])
        if body.tx_sequence_number not in numbers[-1000:]:
            raise Violation(f"host {host.index} acknowledges {key} up to {body.tx_sequence_number}, which was not sent")
        first = self.order_checked.get(key, 0)
        for place in range(first, bisect.bisect_right(numbers, body.tx_sequence_number)):
            message = self.numbers[*key, numbers[place]]
            if not (
                message.arrived or message.rejected or message.told or message.blurred or self.may_be_late(message)
            ):
                raise Violation(f"an OrderAck up to {body.tx_sequence_number} covers it: {message}")
            self.order_checked[key] = place + 1

    def _final_ack_leaves(self, host: Host, packet: headers.FinalAck) -> None:
        message = self.by_id[bytes(packet.body.source_guid), packet.body.message_id]
        message_class = packet.message.properties.message_class
        if host.given_up and message_class == confirm.NACK_REACH_QUEUE_TIMEOUT:
            message.blurred = True
        if message.target is host and message_class & 0xC000 == 0x8000:
            reason = (
                self.may_be_late(message)
                if message_class == confirm.NACK_REACH_QUEUE_TIMEOUT
                else self.may_be_unfit(message)
            )
            if (message.arrived or not reason) and not message.blurred:
                raise Violation(f"it is rejected with 0x{message_class:04X} for no reason: {message}")
            message.rejected = message_class
            self.figures["rejected"] += 1

    # ---- applications

    def send(self, source: int, target: int, name: int, delivery: int, count: int, options: int, dies: int) -> None:
        """An application sends some messages. `name` chooses the queue and one of its names, `options` the times, the
        journal and the size. It dies in the middle, at statement `dies`, if that many are needed."""
        host = self.hosts[source % self.size]
        other = self.hosts[target % self.size]
        queue = SENT_TO[name % 8]
        if other is host:
            destination, stream = queue, f"direct=os:.\\private$\\{queue}"
        else:
            address = (f"TCP:{other.address}", f"OS:host{other.index}", f"OS:HOST{other.index}")[name // 8 % 3]
            destination = f"DIRECT={address}\\private$\\{queue}"
            stream = destination.lower()
        application = host.applications[dies % 2]
        _trap(application.client.store, dies, Crash, 1)
        try:
            for number in range(delivery, delivery + COUNTS[count]):
                kind = ("transactional", "recoverable", "express")[number % 3]
                if delivery < FITTING:
                    kind = "transactional" if queue != "plain" else ("recoverable", "express")[number % 2]
                if other is not host or host.kinds[queue][-1][1] is (kind == "transactional"):
                    self._send(application, host, other, stream, queue, kind, options, destination)
        except Crash:
            host.kill(application)
        except StoreError:
            application.client.store._database.connection.exec_trace = None
        else:
            application.client.store._database.connection.exec_trace = None

    def _send(
        self,
        application: Application,
        host: Host,
        target: Host,
        stream: str,
        queue: str,
        kind: str,
        options: int,
        destination: str,
    ) -> None:
        ttrq, ttbr = TIMES[options % len(TIMES)]
        journal = options // len(TIMES) % 8 if options // len(TIMES) % 8 < 4 else 0
        message = Message(
            len(self.messages) + 1,
            host,
            target,
            stream,
            queue,
            kind,
            0 if kind == "transactional" else (3, 3, 5)[options % 3],
            confirm.LONG_LIVE_TIME if ttrq is None else ttrq,
            NEVER if ttbr is None else ttbr,
            journal,
        )
        self.messages[message.tag] = message  # also if it is not accepted: then it must not arrive
        message.acknowledge = options % 5 == 0
        message.step = self.step
        message.sent_time = self.wall
        sent = application.client.send(
            destination,
            b"<%d>" % message.tag + bytes(options * (LONGER if options >= LONG else 1)),
            delivery=kind,
            priority=message.priority,
            ttrq=ttrq,
            ttbr=ttbr,
            dead_letter=bool(journal & 1),
            journal=bool(journal & 2),
            acknowledge=ACKNOWLEDGE if message.acknowledge else (),
            administration_queue=ADMIN if message.acknowledge else None,
            correlation_id=bytes([options % 3]) * 20,
        )
        self.figures["sent"] += 1
        message.message_id = sent.message_id
        if (host.guid, sent.message_id) in self.by_id:
            raise Violation(f"two messages have the MessageID: {message}")
        self.by_id[host.guid, sent.message_id] = message
        if sent.tx_sequence_id is not None and sent.tx_sequence_number is not None:
            self._number(message, (sent.tx_sequence_id, sent.tx_sequence_number))

    def _queue(self, host: Host, application: Application, number: int) -> Queue | None:
        name = QUEUES[number % 4]
        return application.client.queue(name) if host.kinds[name][-1][1] is not None else None

    def receive(self, where: int, queue_number: int, application_number: int, count: int) -> None:
        """An application begins a receive of up to `count` messages."""
        host = self.hosts[where % self.size]
        application = host.applications[application_number % 2]
        queue = self._queue(host, application, queue_number)
        if application.open or not queue:
            return
        expected = host.contents(queue.identifier)[:count]
        opened = queue.receive_batch(count)
        found = [message.lookup_id for message in opened.__enter__()]
        if found != expected:
            raise Violation(f"host {host.index} hands out {found} from {queue.name}, not {expected}")
        if found:
            application.open = opened
            application.keys = found
            host.locked.update(dict.fromkeys(found, application))
        else:
            opened.__exit__(None, None, None)

    def finish(self, where: int, application_number: int, how: int) -> None:
        """An application's receive ends: 0 to 4 it commits, 5 it rejects the messages, 6 it aborts, 7 it dies."""
        host = self.hosts[where % self.size]
        application = host.applications[application_number % 2]
        if not application.open:
            return
        if how == 7:
            host.kill(application)
            return
        messages = [host.content[key][3] for key in application.keys if key in host.content]
        for key in application.keys:
            del host.locked[key]
        opened, application.open = application.open, None
        if how == 6 or (how == 5 and not messages[0].transactional):
            opened.__exit__(Crash, Crash(), None)
            return
        opened.__exit__(*((Reject, Reject(), None) if how == 5 else (None, None, None)))
        host.leaving.update(application.keys)
        for message in messages:
            if (message.received or message.refused) and not message.blurred:
                raise Violation(f"it was received twice: {message}")
            message.received = how != 5
            message.refused = how == 5
            self.figures["received" if message.received else "refused"] += 1

    def peek(self, where: int, queue_number: int) -> None:
        """An application looks at a queue."""
        host = self.hosts[where % self.size]
        queue = self._queue(host, host.applications[0], queue_number)
        if queue:
            found = [message.lookup_id for message in queue.peek()]
            expected = host.contents(queue.identifier)
            if found != expected:
                raise Violation(f"host {host.index} shows {found} in {queue.name}, not {expected}")

    def _clear(self, host: Host, name: str) -> None:
        for queue, _, _, message in host.content.values():
            if host.queues[queue] == name:
                message.removed = True

    def purge(self, where: int, queue_number: int) -> None:
        """An operator purges a queue."""
        host = self.hosts[where % self.size]
        name = QUEUES[queue_number % 4]
        if host.kinds[name][-1][1] is not None:
            self._clear(host, name)
            host.applications[0].client.purge_queue(name)

    def withdraw(self, where: int, number: int, when: int) -> None:
        """An operator purges an outgoing queue. 0: now; 1, 2: and the queue manager dies before it has heard of it;
        from 3 on: before so many more of its statements have run, between two of its transactions."""
        host = self.hosts[where % self.size]
        if when < 3:
            self._withdraw(host, number)
            if when:
                self.crash(where, when == 1)
        else:
            _between(host.store, when - 3, lambda: self._withdraw(host, number))

    def _withdraw(self, host: Host, number: int) -> None:
        store = host.applications[0].client.store
        queue = self._pick(sorted(store.outgoing.queues(), key=lambda queue: queue.format_name), number)
        if queue is None:
            return
        host.look()
        self.figures["withdrawn"] += 1
        for key in store.outgoing.request_purge(queue.identifier, keep=indispensable(store, queue.identifier)):
            host.withdrawn.add(key)
            if key not in host.outgoing:
                continue
            message = host.outgoing[key]
            if message is None:
                host.given_up = self.limited = True
            else:
                message.withdrawn = True
                host.recalled.append(message)
        if not host.is_busy:
            host.recall()

    def pause(self, where: int, number: int) -> None:
        """An operator puts an outgoing queue on hold, or takes it off."""
        host = self.hosts[where % self.size]
        store = host.applications[0].client.store
        queue = self._pick(sorted(store.outgoing.queues(), key=lambda queue: queue.format_name), number)
        if queue is not None:
            store.outgoing.set_on_hold(queue.format_name, not queue.on_hold)

    def change_queue(self, where: int, queue_number: int, transactional: int) -> None:
        """An operator deletes a queue, or makes one that is not there."""
        host = self.hosts[where % self.size]
        name = QUEUES[queue_number % 4]
        client = host.applications[0].client
        kinds = host.kinds[name]
        if kinds[-1][1] is None:
            client.create_queue(name, bool(transactional))
            kinds.append((self.step, bool(transactional)))
        else:
            try:
                client.delete_queue(name)
            except StoreError:
                return  # messages are being received
            self._clear(host, name)
            kinds.append((self.step, None))

    # ---- the network

    def connect(self, where: int) -> None:
        """A queue manager makes the connections that it wants."""
        host = self.hosts[where % self.size]
        for hop in self._hops(host):
            other = next(other for other in self.hosts if other.address == hop[0])
            theirs = other.manager.accept(host.address, other.now)
            if theirs is not None:
                self.figures["connections"] += 1
                ours = host.manager.connect(hop, other.address, host.now)
                self.wires.append(Wire(self, (host, other), (ours, theirs), self.wrap))
        for other in self.hosts:
            self._collect(other)

    def _hops(self, host: Host) -> list[Hop]:
        """Where it wants to connect to; strangers are not there any more."""
        return sorted(hop for hop in host.manager.wanted_hops() if hop[0] != STRANGE)

    def is_stranger(self, guid: bytes) -> bool:
        """Is this none of the queue managers here?"""
        return all(host.guid != guid for host in self.hosts)

    def _collect(self, host: Host) -> None:
        host.look()
        for link, data, shut in host.manager.output():
            if host.stranger and link is host.stranger[0]:
                host.stranger[1].receive(data, self.now)
            if link not in host.links:
                continue
            wire, end = host.links[link]
            if data:
                self._leaves(host, wire, end, data)
                wire.inbox[1 - end].extend(wire.sending[end].writes(data, not wire.severed))
            if shut:
                del host.links[link]
                wire.sever(end, tell=not wire.severed)
        check_alarms(host.manager)

    def _act(self, host: Host, act: Callable[[], object]) -> None:
        """The queue manager does something; it may die of it."""
        host.is_busy = True
        try:
            act()
        except Crash:
            host.restart(reboot=self.step % 2 == 0)
        except StoreError:
            host.restart(reboot=False)
        self._collect(host)
        host.is_busy = False
        if wrong := wrong_columns(host.monitor):
            raise Violation(f"the counts of a store are wrong: {wrong}")
        host.recall()

    def deliver(self, where: int, amount: int, only: int) -> None:
        """Bytes reach a host: up to so many on each of its connections, or on one of them, in one batch."""
        host = self.hosts[where % self.size]
        self._deliver(
            host, AMOUNTS[amount], list(host.links.items())[only : only + 1] if only < 4 else list(host.links.items())
        )

    def _deliver(self, host: Host, most: int, links: list[tuple[Link, tuple[Wire, int]]]) -> bool:
        batch = []
        lost = []
        for link, (wire, end) in links:
            inbox = wire.inbox[end]
            if inbox:
                batch.append((link, bytes(inbox[:most])))
                del inbox[:most]
            if not inbox and wire.over[end]:
                lost.append(link)
        if batch:
            self._act(host, lambda: host.manager.receive(batch, host.now, self.wall, lazily=True))
        for link in lost:
            if link in host.links:
                wire, end = host.links.pop(link)
                self._act(host, lambda link=link: host.manager.lost(link))
                wire.links[end] = None
                wire.forget()
        return bool(batch or lost)

    def flow(self, rounds: int) -> None:
        """All that is on the way arrives everywhere, a few times."""
        for _ in range(rounds):
            for host in self.hosts:
                self._deliver(host, 1 << 22, list(host.links.items()))

    def cut(self, number: int, keep: int, keep_back: int, tell: int) -> None:
        """A connection breaks: of what is on the way only the first part arrives. An end that is not told does not
        learn of it."""
        wire = self._pick(self.wires, number)
        if wire is None:
            return
        self.figures["cuts"] += 1
        wire.severed = True
        for end, kept in ((0, keep), (1, keep_back)):
            inbox = wire.inbox[end]
            del inbox[len(inbox) * kept // 16 :]
            wire.over[end] |= bool(tell >> end & 1)

    def stranger(self, where: int, count: int) -> None:
        """Somebody that nobody will see again connects, sends messages to a queue that is not there, and is gone before
        it is answered."""
        host = self.hosts[where % self.size]
        self.strangers += 1
        self.figures["strangers"] += 1
        nowhere = DirectQueueFormatName(f"TCP:{host.address}\\private$\\none")
        peer = Peer(self.strangers.to_bytes(16, "big"), nowhere)
        link = host.manager.accept(STRANGE, host.now)
        if link is None:
            return
        host.stranger = link, peer
        peer.connect(self.now)
        for _ in range(8):
            if link.is_open:
                break
            self._collect(host)
            data = peer.output(self.now)
            self._act(host, lambda data=data: host.manager.receive([(link, data)], host.now, self.wall))
        for _ in range(count):
            peer.send(b"strange", sent_time=self.wall)
        if link in host.manager.links:
            data = peer.output(self.now)
            self._act(host, lambda: host.manager.receive([(link, data)], host.now, self.wall))
        host.stranger = None
        if link in host.manager.links:
            self._act(host, lambda: host.manager.lost(link))

    def block(self, number: int, end: int) -> None:
        """A connection takes no more bytes, or takes them again."""
        wire = self._pick(self.wires, number)
        link = wire.links[end] if wire else None
        if link is None or link not in wire.hosts[end].links:
            return
        if link.writable:
            link.writable = False
        else:
            host = wire.hosts[end]
            self._act(host, lambda: host.manager.resume(link, host.now, self.wall))

    def slow(self, number: int, end: int, speed: int, options: int) -> None:
        """A connection takes its bytes slowly, while an application sends something, until all has left: neither end
        may give it up."""
        wire = self._pick([wire for wire in self.wires if None not in wire.links and not wire.severed], number)
        if wire is not None:
            self.figures["slow"] += 1
            self.send(wire.hosts[end].index, wire.hosts[1 - end].index, options, options, 0, LONG + options, 400)
            wire.hosts[end].look()
            _crawl(self, wire, end, SPEEDS[speed])

    # ---- time and power

    def poll(self, where: int) -> None:
        """A queue manager looks at its timers and its store."""
        self._poll(self.hosts[where % self.size])

    def _poll(self, host: Host) -> None:
        """It looks, unless it dies or its disk fails: what was withdrawn is gone then, wherever it was (C-29)."""
        manager, withdrawn, host.failed = host.manager, frozenset(host.withdrawn), False
        host.known_key = host.last_key
        self._act(host, lambda: host.manager.poll(host.now, self.wall))
        if host.manager is not manager:
            return
        if self.wall != host.looked_at and not host.failed:
            left = [host.outgoing[key] for key in withdrawn & host.outgoing.keys()]
            if left:
                raise Violation(f"host {host.index} still has what was withdrawn: {left}")
            host.withdrawn -= withdrawn
        host.looked_at = self.wall  # also if its disk has failed: it may have looked before

    def tick(self, amount: int, who: int) -> None:
        """Time passes, and those of `who` notice."""
        self.now += TICKS[amount]
        for host in self.hosts:
            if who >> host.index & 1:
                self._poll(host)

    def jump(self, amount: int) -> None:
        """Somebody sets the clock."""
        self.wall_offset += JUMPS[amount]

    def crash(self, where: int, reboot: int) -> None:
        """A queue manager dies between two of its acts, alone or with the whole machine."""
        host = self.hosts[where % self.size]
        host.restart(reboot=bool(reboot))
        self._collect(host)

    def stop(self, where: int) -> None:
        """A queue manager is stopped in order, and started again."""
        host = self.hosts[where % self.size]
        self._act(host, lambda: host.manager.close())
        host.restart(reboot=False)

    def runs(self, where: int, target: int, count: int) -> None:
        """In each of several runs of a queue manager that has no connection, an application sends a message."""
        for _ in range(count):
            self.stop(where)
            self.send(where, target, 0, 0, 0, 0, 400)

    def back_up(self, where: int) -> None:
        """Somebody copies the store of a queue manager that runs."""
        self.hosts[where % self.size].back_up()

    def put_back(self, where: int) -> None:
        """Somebody puts the backup back; without one, the copy is made now, and started instead: nothing is lost."""
        host = self.hosts[where % self.size]
        if host.backup.exists():
            for message in self.messages.values():
                message.blurred = True
            host.put_back_at = self.step + 1  # nothing later is blurred by it
            host.put_back()
            host.look_anew()
            for other in self.hosts:
                other.forget_orphaned()  # it may have been another identity's
        else:
            for application in host.applications:
                host.kill(application)
            host.look()
            host.back_up()
            host.put_back()
        shutil.rmtree(host.backup)
        self._collect(host)

    def empty(self, where: int) -> None:
        """Somebody empties the folder of a queue manager, and makes its queues again: nobody knows it any more. Where
        messages are routed by GUID, operators would have to tell the others of its new one."""
        host = self.hosts[where % self.size]
        if host.config.route:
            return
        for message in self.messages.values():
            message.blurred |= host in (message.source, message.target)
        host.put_back_at = self.step + 1
        host.empty()
        host.look_anew()
        for other in self.hosts:
            other.forget_orphaned()
        self._collect(host)

    def arm(self, where: int, statements: int, how: int) -> None:
        """A queue manager will die, or its disk will fail, in the middle of something."""
        error, repeat = ((Crash, 1), (apsw.FullError, 1), (apsw.IOError, 2), (Crash, 1))[how]
        host = self.hosts[where % self.size]
        _trap(host.store, statements, error, repeat, host.fails)

    def quota(self, where: int, amount: int) -> None:
        """The quota of a queue manager changes: nothing more, a little more, or no limit."""
        host = self.hosts[where % self.size]
        self.limited |= amount < 2
        limit = (0, host.applications[0].client.store.usage() + 1500, 8 << 30)[amount]
        host.manager.config = host.config = dataclasses.replace(host.config, quota=limit)

    def begin(self, start: int, window: int, routed: int) -> None:
        """First action of an episode. Connections begin with counts so far below their end, and so do MessageIDs. If
        routed, the first and the last of three hosts reach each other through the second only."""
        self.wrap = ((0x10000 - start) & 0xFFFF, (0x10003 - start) & 0xFFFF, (0x10001 - 2 * start) & 0xFFFF, 0xFFFF)
        for host in self.hosts:
            hops = {}
            for other in self.hosts:
                via = self.hosts[1] if routed and abs(host.index - other.index) == 2 else other
                names = [other.address, f"host{other.index}"]
                if routed:
                    names.append(guids.guid_text(other.guid).lower().strip("{}"))
                hops |= dict.fromkeys(names, (via.address, 1801))
            host.config = dataclasses.replace(
                host.config, next_hops=hops, route=bool(routed), session=Settings(window_size=window)
            )
            host.manager = host._manager()
            host.store._database.connection.execute(
                "UPDATE settings SET value = ? WHERE name = 'message_id_ordinal'", (-3 * start % 0xFFFFFFFF,)
            )

    # ---- the end

    def settle(self) -> None:
        """No more accidents, and the clock is put forward to the latest time that it has shown: all must come to its
        end. Then every message must have one."""
        self.wall_offset += self.highest_wall(0) - self.wall
        for host in self.hosts:
            host.manager.config = host.config = dataclasses.replace(host.config, quota=8 << 30)
            host.store._database.connection.exec_trace = None
            for queue in host.store.outgoing.queues():
                host.applications[0].client.store.outgoing.set_on_hold(queue.format_name, False)
            for link in host.links:
                if not link.writable:
                    self._act(host, lambda host=host, link=link: host.manager.resume(link, host.now, self.wall))
        self._settle(lambda message: message.arrived and bool(message.journal))
        for host in self.hosts:
            self._receive_everything(host)
        self.now += 1000
        if any(host.given_up for host in self.hosts):  # some wait for what nobody will say: operators end that
            for host in self.hosts:
                for number in range(len(host.store.outgoing.queues())):
                    self._withdraw(host, number)
        self._settle(lambda message: False)
        for host in self.hosts:
            left = [message for *_, message in host.content.values() if not message.blurred]  # those may come late
            if left:
                raise Violation(f"host {host.index} still has {left}")
        for message in self.messages.values():
            if message.acknowledge and message.message_id and not (self.limited or message.blurred):
                self._must_be_acknowledged(message)
            ended = message.received or message.removed or message.refused or message.told or not message.message_id
            if (
                not ended
                and not message.blurred
                and (
                    message.arrived
                    or message.transactional
                    or not (message.withdrawn or self.may_be_unfit(message) or self.may_be_late(message))
                )
            ):
                raise Violation(f"it has no end: {message}")

    def _must_be_acknowledged(self, message: Message) -> None:
        wanted = set()
        if message.arrived:
            wanted.add(confirm.ACK_REACH_QUEUE)
        if message.received:
            wanted.add(confirm.ACK_RECEIVE)
        if wanted - message.acknowledgements or (
            (message.removed or message.refused)
            and not message.received
            and not any(message_class >= confirm.NACK_Q_DELETED for message_class in message.acknowledgements)
        ):
            raise Violation(f"it was not acknowledged, only with {message.acknowledgements}: {message}")

    def _settle(self, may_wait: Callable[[Message], bool]) -> None:
        for waited in SETTLE:
            self.now += waited
            self.walls.append((self.step, self.wall))
            for _ in range(100):
                if not self._everything_moves():
                    break
            else:
                raise Violation("the wires never fall silent")
            left = [
                message
                for host in self.hosts
                for message in host.outgoing.values()
                if message is None or not (may_wait(message) or (message.blurred and message.journal))
            ]
            if not left:
                return
        raise Violation(f"{len(left)} messages or acknowledgements (None) are not settled: {left[:5]}")

    def _everything_moves(self) -> bool:
        moved = False
        for host in self.hosts:
            self._poll(host)
            if self._hops(host):
                self.connect(host.index)
                moved = True
        for host in self.hosts:
            moved |= self._deliver(host, 1 << 22, list(host.links.items()))
        return moved

    def _receive_everything(self, host: Host) -> None:
        for application in range(2):
            self.finish(host.index, application, 0)
            host.look()
        for queue in range(4):
            self.receive(host.index, queue, 0, 1 << 20)
            self.finish(host.index, 0, 0)
            host.look()


# Each action: how often, and the bounds of its arguments.
ACTIONS: dict[str, tuple[int, tuple[tuple[int, int], ...]]] = {
    "send": (24, ((0, 2), (0, 2), (0, 23), (0, 14), (0, 4), (0, 1200), (1, 400))),
    "deliver": (30, ((0, 2), (0, 6), (0, 7))),
    "flow": (8, ((1, 4),)),
    "connect": (14, ((0, 2),)),
    "poll": (10, ((0, 2),)),
    "tick": (8, ((0, 10), (0, 7))),
    "receive": (6, ((0, 2), (0, 3), (0, 1), (1, 4))),
    "finish": (7, ((0, 2), (0, 1), (0, 7))),
    "cut": (4, ((0, 5), (0, 16), (0, 16), (0, 3))),
    "block": (2, ((0, 5), (0, 1))),
    "slow": (1, ((0, 5), (0, 1), (0, 2), (0, 49))),
    "peek": (1, ((0, 2), (0, 3))),
    "purge": (1, ((0, 2), (0, 3))),
    "change_queue": (2, ((0, 2), (0, 3), (0, 1))),
    "jump": (1, ((0, 7),)),
    "crash": (1, ((0, 2), (0, 1))),
    "stop": (1, ((0, 2),)),
    "runs": (1, ((0, 2), (0, 2), (1, 4))),
    "back_up": (1, ((0, 2),)),
    "put_back": (1, ((0, 2),)),
    "empty": (1, ((0, 2),)),
    "withdraw": (2, ((0, 2), (0, 7), (0, 20))),
    "pause": (2, ((0, 2), (0, 7))),
    "stranger": (1, ((0, 2), (1, 3))),
    "arm": (2, ((0, 2), (1, 30), (0, 3))),
    "quota": (2, ((0, 2), (0, 2))),
}


class Walk:
    """Random episodes of a seed, each from a new world. often: actions that are to be so many times more frequent."""

    def __init__(self, seed: int, managers: int, often: dict[str, int] | None = None) -> None:
        self.seed = seed
        self.managers = managers
        self.often = often or {}
        self.figures: Counter[str] = Counter()

    def episode(self, number: int, steps: int = EPISODE_STEPS) -> World:
        """Play one; raises Violation with its trace in `trace`."""
        pick = random.Random(f"{self.seed}/{number}")
        names = list(ACTIONS)
        weights = [ACTIONS[name][0] for name in names]
        for index, name in enumerate(names):  # every episode has its own weather
            if name not in ("send", "deliver", "connect", "poll", "flow", "tick"):
                weights[index] *= pick.choice((0, 1, 1, 2))
            weights[index] *= self.often.get(name, 1)
        world = World(self.managers or 2 + number % 2, self.figures)
        try:
            world.do("begin", pick.choice(STARTS), pick.choice(WINDOWS), number // 2 % 2)
            for name in pick.choices(names, weights, k=steps):
                world.do(name, *[pick.randint(low, high) for low, high in ACTIONS[name][1]])
            world.do("settle")
        except BaseException as error:
            error.trace = world.trace  # type: ignore[attr-defined]
            raise
        finally:
            self.figures["steps"] += world.step
            world.close()
        return world


def play(size: int, trace: list[tuple[str, tuple[int, ...]]]) -> None:
    """Do these actions again."""
    world = World(size)
    try:
        for name, arguments in trace:
            world.do(name, *arguments)
    finally:
        world.close()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, help="of the walk; by default another each time")
    parser.add_argument(
        "--managers", type=int, choices=(2, 3), help="in every episode; by default two and three in turn"
    )
    parser.add_argument("--episode", type=int, help="only this one")
    parser.add_argument("--trace", action="store_true", help="print the actions of the episode that failed")
    parser.add_argument("--json", action="store_true", help="the figures as one JSON object")
    return parser.parse_args()


def main() -> int:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    arguments = _arguments()
    seed = arguments.seed if arguments.seed is not None else int.from_bytes(os.urandom(4), "big")
    console = Console(stderr=True)
    console.print(f"seed {seed}")
    walk = Walk(seed, arguments.managers or 0)
    began = time.monotonic()
    failure: BaseException | None = None
    number = arguments.episode or 0
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=arguments.json) as progress:
        task = progress.add_task("steps", total=arguments.steps, speed="")
        while walk.figures["steps"] < arguments.steps:
            try:
                walk.episode(number)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the end of the walk, and is shown
                failure = error
                break
            speed = walk.figures["steps"] / (time.monotonic() - began)
            progress.update(task, completed=walk.figures["steps"], speed=f"{speed:,.0f}/s")
            if arguments.episode is not None:
                break
            number += 1
    clean()
    seconds = time.monotonic() - began
    figures: dict[str, Any] = {
        "seed": seed,
        "episodes": number + (failure is None),
        **walk.figures,
        "seconds": round(seconds, 1),
        "steps_per_s": round(walk.figures["steps"] / seconds),
    }
    if failure:
        trace = getattr(failure, "trace", [])
        figures |= {"violation": str(failure) or repr(failure), "episode": number, "step": len(trace)}
        if arguments.trace:
            for place, (name, values) in enumerate(trace, 1):
                console.print(f"{place:4} {name}{values}", highlight=False)
        if not isinstance(failure, Violation):
            console.print("".join(traceback.format_exception(failure)), highlight=False)
    if arguments.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            console.print(
                f"{name:>12}  {value:,}" if isinstance(value, (int, float)) else f"{name:>12}  {value}", highlight=False
            )
    if failure:
        again = f"--managers {arguments.managers} " if arguments.managers else ""
        console.print(f"again: .venv/bin/python -m tests.host.model --seed {seed} {again}--episode {number} --trace")
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main())
