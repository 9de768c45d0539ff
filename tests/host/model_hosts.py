"""The hosts, applications, messages and wires of model.py, as real stores and managers, and what is seen of them."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
from mqqb import core, headers, parse
from ordack.broker.links import PeerLink
from ordack.broker.manager import Manager
from ordack.config.config import Config
from ordack.config.settings import NEVER
from ordack.store import Store
from ordack.store.schema import FILE_NAME

from tests.host.model_lines import Sendable, Sending, Violation
from tests.support.beside import HearingManager, client_beside
from tests.support.host_peer import Peer
from tests.support.host_world import each_message, each_packet

if TYPE_CHECKING:
    from tests.host.model import World

QUEUES = ("tx", "tx2", "plain", "later")
ADMIN = "admin"
MADE = {ADMIN: False, "tx": True, "tx2": True, "plain": False}
CLOSED = re.compile(r"session closed, .* \((B-\d+)\)$")
ACCIDENTS = ("B-147", "B-148", "B-155", "B-163", "B-285", "B-298", "B-435")  # between two of us nothing else ends one
DEFECTS = ("defect", "Traceback", "handled again")
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
        store.messages._receive_locks.close()
        store._lock.close()
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
        if statement != "ROLLBACK" and "synchronous" not in statement:  # which touch no disk
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
        self.links: dict[PeerLink, tuple[Wire, int]] = {}
        self.stranger: tuple[PeerLink, Peer] | None = None
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
        manager = HearingManager(self.store, self.now, self.config, self._log)
        manager.fast.is_on &= self.index != 1  # both paths in every episode
        return manager

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
        for key, packet, queue, rank, expires, purged in each_message(self.monitor, "queue, rank, expires, purged"):
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
        for key, _, expires in each_message(self.monitor, "expires"):
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
        behind = f"WHERE lookup_id > {self.last_lookup} ORDER BY lookup_id"
        for key, packet, queue, rank, expires in each_message(self.monitor, "queue, rank, expires", behind):
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
        rows = self.monitor.execute(
            "SELECT id - count + 1, packet FROM outgoing_messages WHERE id > ? ORDER BY id", (self.last_key,)
        ).fetchall()
        for key, packet in (one for first, packets in rows for one in enumerate(each_packet(packets), first)):
            self.last_key = key
            parsed = parse.parse(packet)
            if self._is_for_nobody(parsed):
                continue
            message, message_class = self.world.identify(parsed)
            self.outgoing[key] = None if message_class else message
            if message := self.outgoing[key]:
                message.holders[self.index] += 1
        rows = self.monitor.execute("SELECT id, count FROM outgoing_messages").fetchall()
        there = {key - back for key, count in rows for back in range(count)}
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

    def urgent(self, link: PeerLink) -> dict[Sendable, int]:
        """What waits for this link, and the queue manager knows of, with a priority above the lowest."""
        served = self.manager.outgoing.served_by(link)
        queues = {outgoing.identifier for outgoing in served if not (outgoing.holds_acks or outgoing.on_hold)}
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
        self, world: World, hosts: tuple[Host, Host], links: tuple[PeerLink, PeerLink], start: tuple[int, ...]
    ) -> None:
        self.world = world
        self.hosts = hosts
        self.guids = [host.guid for host in hosts]
        self.links: list[PeerLink | None] = list(links)
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
