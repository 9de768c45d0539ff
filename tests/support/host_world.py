"""Queue managers over wires that only exist in memory, and that can die at any statement of their stores: what the
tests of the queue manager have in common."""

from __future__ import annotations

import functools
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from struct import unpack_from
from typing import Any

import apsw
from mqqb import connection, core, headers, parse
from ordack.broker.links import Hop, PeerLink
from ordack.broker.manager import Manager
from ordack.client import Client
from ordack.config.config import Config
from ordack.store import Store
from ordack.store.messages import correlation_of as correlation_of_message
from ordack.store.messages import packets_of
from ordack.store.schema import FILE_NAME

from tests.support.beside import HearingManager, client_beside
from tests.support.host_peer import Peer, body_of, direct

WALL = 1_800_000_000
START = 1_000_000_000  # ms: a monotonic clock counts from when the machine was switched on


def wall_at(now: int) -> int:
    """Seconds since 1970 at that millisecond of the monotonic clock."""
    return WALL + (now - START) // 1000


HERE = ("10.0.0.1", 1801)


class Crash(BaseException):
    """The process is dead: nothing in it may react."""


class Host:
    """A queue manager that can be killed at any statement of its store, and goes on with the files as they were."""

    def __init__(self, folder: Path, config: Config | None = None, address: str = HERE[0]) -> None:
        self.config = config
        self.address = address
        self.wires: dict[PeerLink, Wire] = {}
        self.log: list[str] = []
        self.crashes = 0
        self.behind = 0  # seconds that its clock is
        self._life = folder / "life"
        self._left: dict[str, bytes] = {}
        with Store(self._life, create=True) as store:
            store.queues.create("line1", transactional=True)
            store.queues.create("plain", transactional=False)
        self._open(START)

    def _open(self, now: int) -> None:
        self.store = Store(self._life, clock=lambda: wall_at(now) - self.behind)
        self.store.lock_manager()
        self.manager = HearingManager(self.store, now, self.config, self.log.append)
        self.manager.poll(now, wall_at(now) - self.behind)

    def arm(self, statements: int) -> None:
        """Die before so many more statements have been run."""
        left = statements

        def trace(_cursor: Any, _statement: str, _bindings: Any) -> bool:
            nonlocal left
            left -= 1
            if left == 0:
                self._snapshot()
                raise Crash
            return True

        self.store._database.connection.exec_trace = trace

    def _snapshot(self) -> None:
        """The files as a power cut would leave them: what was not committed is at most in the log, without its end."""
        self.crashes += 1
        self._left = {suffix: Path(f"{self._life / FILE_NAME}{suffix}").read_bytes() for suffix in ("", "-wal")}

    def restart(self, now: int, snapshot: bool = False) -> None:
        """Come up again from the last snapshot, or from one taken now."""
        self.store._database.connection.exec_trace = None
        if snapshot:
            self._snapshot()
        for wire in list(self.wires.values()):
            wire.cut()
        self.store.close()
        for suffix, content in self._left.items():  # in place: another file would be a backup that was put back
            Path(f"{self._life / FILE_NAME}{suffix}").write_bytes(content)
        Path(f"{self._life / FILE_NAME}-shm").unlink(missing_ok=True)
        self._open(now)

    def back_up(self) -> None:
        """Copy the store while it runs."""
        backup = self._life.with_name("backup")
        shutil.rmtree(backup, ignore_errors=True)
        shutil.copytree(self._life, backup)

    def put_back(self, world: World) -> None:
        """Stop, put the backup in the place of the store, and start."""
        for wire in list(self.wires.values()):
            wire.cut()
        self.store.close()
        shutil.rmtree(self._life)
        shutil.copytree(self._life.with_name("backup"), self._life)
        self.log.clear()
        self._open(world.now)

    def client(self, wall: int = WALL) -> Client:
        """An application on this machine, at that time."""
        return client_beside(self._life, lambda: wall - self.behind)

    def content(self, queue: str) -> list[bytes]:
        return [
            body_of(message.packet)
            for message in self.store.messages.peek(self.store.queues.named(queue).identifier, -1)
        ]


def check_alarms(manager: Manager) -> None:
    """A queue manager that has given its output will look at each link before anything of it is due."""
    for link in manager.links:
        slow = link.pace.too_slow_at(manager.config.packet_timeout, manager.config.minimum_rate)
        for due in (link.session.next_timeout(), slow):
            assert due is None or link.alarms[-1] <= due


@functools.lru_cache(10_000)
def correlation_of(packet: bytes) -> bytes | None:
    """Of a message, or of the one in an acknowledgement of an order queue."""
    try:
        found = parse.parse(packet)
    except ValueError:
        return None
    message = found.message if isinstance(found, (connection.OrderAck, headers.FinalAck)) else found
    return correlation_of_message(message) if isinstance(message, headers.UserMessage) else None


def each_message(store: apsw.Connection, columns: str, rest: str = "ORDER BY lookup_id") -> Iterator[tuple[Any, ...]]:
    """The messages in the queues of a store: lookup id, packet, and other columns."""
    rows = store.execute(f"SELECT lookup_id, count, packet, {columns} FROM messages {rest}").fetchall()
    for last, count, row, *others in rows:
        for key, packet in enumerate(packets_of(row, count), last - count + 1):
            yield key, packet, *others


def each_packet(packets: bytes) -> Iterator[bytes]:
    """The packets in a row of a table."""
    while packets:
        (size,) = unpack_from("<I", packets, core.BASE_PACKET_SIZE_AT)
        yield packets[:size]
        packets = packets[size:]


def wrong_columns(store: apsw.Connection) -> list[str]:
    """What the database of a store says of its messages and of how full its queues are, and is not so."""
    wrong = [
        f"correlation of {key}: {correlation!r}"
        for key, packet, correlation in each_message(store, "correlation")
        if correlation_of(packet) != correlation
    ]
    return wrong + [
        f"{queues}: {row}"
        for queues, messages, of in (("queues", "messages", "queue"), ("outgoing", "outgoing_messages", "outgoing"))
        for row in store.execute(
            f"SELECT id, messages, bytes FROM {queues} EXCEPT SELECT q.id, total(m.count), total(length(m.packet)) "
            f"FROM {queues} AS q LEFT JOIN {messages} AS m ON m.{of} = q.id GROUP BY q.id"
        )
    ]


class Wire:
    """A connection from a peer, or another host, to a host. What is on the way is lost when it is cut."""

    def __init__(self, world: World, initiator: Peer | Host, host: Host, hop: Hop = HERE) -> None:
        self.world = world
        self.initiator = initiator
        self.host = host
        link = host.manager.accept(initiator.address if isinstance(initiator, Host) else "10.0.0.9", world.now)
        assert link is not None
        self.link = link
        host.wires[link] = self
        self.to_host = bytearray()
        self.to_initiator = bytearray()
        if isinstance(initiator, Host):
            self.far = initiator.manager.connect(hop, host.address, world.now)
            initiator.wires[self.far] = self
        else:
            initiator.connect(world.now)
        world.wires.append(self)

    def cut(self) -> None:
        if self not in self.world.wires:
            return
        self.world.wires.remove(self)
        del self.host.wires[self.link]
        self.host.manager.lost(self.link)
        if isinstance(self.initiator, Host):
            del self.initiator.wires[self.far]
            self.initiator.manager.lost(self.far)
        else:
            self.initiator.disconnect()


class World:
    """Hosts, peers, wires and one clock, driven by a seed."""

    def __init__(self, seed: int, hosts: list[Host], peers: list[Peer]) -> None:
        self.random = random.Random(seed)
        self.hosts = hosts
        self.peers = peers
        self.wires: list[Wire] = []
        self.now = START

    @property
    def wall(self) -> int:
        return wall_at(self.now)

    def collect(self) -> None:
        """Everything that the ends have to say is on the way."""
        for wire in self.wires:
            if isinstance(wire.initiator, Peer):
                wire.to_host += wire.initiator.output(self.now)
        for host in self.hosts:
            for link, data, shut in host.manager.output():
                there = host.wires.get(link)
                if there is not None:
                    if there.link is link:
                        there.to_initiator += data
                    else:
                        there.to_host += data
                    if shut:
                        there.cut()
            check_alarms(host.manager)

    def deliver(self, most: int) -> None:
        """Up to `most` bytes of each wire arrive; what reaches one host is one batch."""
        batches: dict[Host, list[tuple[PeerLink, bytes]]] = {}
        for wire in list(self.wires):
            size = self.random.randint(0, most)
            data, wire.to_host = bytes(wire.to_host[:size]), wire.to_host[size:]
            if data:
                batches.setdefault(wire.host, []).append((wire.link, data))
            size = self.random.randint(0, most)
            data, wire.to_initiator = bytes(wire.to_initiator[:size]), wire.to_initiator[size:]
            if data and isinstance(wire.initiator, Host):
                batches.setdefault(wire.initiator, []).append((wire.far, data))
            elif data and isinstance(wire.initiator, Peer):
                wire.initiator.receive(data, self.now)
        for host, batch in batches.items():
            wall = self.wall - host.behind
            self._survive(
                host, lambda host=host, batch=batch, wall=wall: host.manager.receive(batch, self.now, wall, lazily=True)
            )

    def pass_time(self, milliseconds: int) -> None:
        self.now += milliseconds
        for host in self.hosts:
            self._survive(host, lambda host=host: host.manager.poll(self.now, self.wall - host.behind))

    def _survive(self, host: Host, act: Any) -> None:
        try:
            act()
        except Crash:
            host.restart(self.now)

    def connect_all(self) -> None:
        connected = {wire.initiator for wire in self.wires}
        for peer in self.peers:
            if peer not in connected:
                Wire(self, peer, self.hosts[0])
        for host in self.hosts:
            for hop in host.manager.wanted_hops():
                for target in self.hosts:
                    if target.address == hop[0]:
                        Wire(self, host, target, hop)

    def settle(self, done: Any = None) -> None:
        """No more accidents: run until everybody is content."""
        for host in self.hosts:
            host.store._database.connection.exec_trace = None
        for _ in range(2000):
            self.connect_all()
            for _ in range(3):
                self.collect()
                self.deliver(1 << 20)
            self.pass_time(100)
            if all(peer.is_settled for peer in self.peers) and (done is None or done()):
                return
        raise AssertionError(f"not settled: {[len(peer.stream.table) for peer in self.peers]}, {self.hosts[0].log}")


def peer_of(number: int, queue: str = "line1", **properties: Any) -> Peer:
    """A peer that sends to a queue."""
    return Peer(bytes([number]) * 16, direct(queue), **properties)


def exchange(world: World) -> None:
    """Everything there and back, at once, without time passing."""
    world.connect_all()
    for _ in range(8):
        world.collect()
        world.deliver(1 << 22)
    world.collect()


def handshake(world: World) -> None:
    """Sessions are open; what the peers then sent is on the way, nothing has arrived."""
    world.connect_all()
    while any(not wire.link.is_open for wire in world.wires):
        world.collect()
        world.deliver(1 << 22)
    world.collect()
    for wire in world.wires:
        assert isinstance(wire.initiator, Peer)
        wire.initiator.receive(bytes(wire.to_initiator), world.now)
        wire.to_initiator.clear()
    world.collect()


class AtOnce(random.Random):
    """Delivers all there is."""

    def randint(self, a: int, b: int) -> int:
        return b


def world_of(hosts: list[Host], peers: list[Peer]) -> World:
    """A world in which everything arrives at once."""
    world = World(0, hosts, peers)
    world.random = AtOnce()
    return world


def packets_in(data: bytes | bytearray) -> list[object]:
    """The packets of these bytes."""
    found: list[object] = []
    at = 0
    while at < len(data):
        found.append(parse.parse(data, at))
        at += core.packet_total(data[at + 2], int.from_bytes(data[at + 8 : at + 12], "little"))
    return found


def two_hosts(tmp_path: Path) -> tuple[World, Host, Host]:
    """A world with a receiver, and a sender whose destination "plant" it is."""
    receiver = Host(tmp_path / "receiver")
    sender = Host(tmp_path / "sender", Config(next_hops={"plant": HERE}), "10.0.0.9")
    return world_of([receiver, sender], []), receiver, sender


def send_from(sender: Host, *bodies: bytes, queue: str = "line1") -> list[tuple[int | None, int | None]]:
    """An application sends to "plant"; TxSequenceID and number of each message."""
    with sender.client() as client:
        sent = [client.send(f"DIRECT=OS:plant\\private$\\{queue}", body) for body in bodies]
    return [(message.tx_sequence_id, message.tx_sequence_number) for message in sent]
