"""Messages that follow each other on a link leave as if each had been looked at by itself.

Two pairs of queue managers get the same letters, bytes, times, cuts and orders; in one of them each message takes the
full path. After each step all bytes on the way, all rows, and what sessions and streams know are compared.
"""

from __future__ import annotations

import random
import secrets
from pathlib import Path
from struct import pack_into
from typing import Any

import packet_samples as samples  # type: ignore[import-not-found]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqqb import build, core
from mqqb.parse import transaction_offset
from mqqb.session import Settings
from ordack.broker.manager import Departures
from ordack.broker.message import Letter
from ordack.broker.prediction import ready_to_follow
from ordack.client import Client
from ordack.config.config import Config

from tests.support.host_world import HERE, Host, World, world_of

PLANT = "DIRECT=OS:plant\\private$\\"
MESSAGES = "lookup_id, queue, rank, expires, wants, peer, address, own, purged, in_doubt, packet"  # not when they came
TABLES = {"messages": MESSAGES} | dict.fromkeys(
    ("queues", "incoming", "outgoing", "outgoing_messages", "outcomes", "history"), "*"
)
STEPS = 60


class Pair:
    """A sender and a receiver. follows: whether messages may leave, and end, without the full path; followed: how many
    left so; settled: how often some ended so."""

    def __init__(self, folder: Path, seed: int, follows: bool) -> None:
        session = Settings(window_size=random.Random(seed).choice((7, 64)))
        self.receiver = Host(folder / "receiver", Config(session=session))
        self.sender = Host(folder / "sender", Config(next_hops={"plant": HERE}, session=session), "10.0.0.9")
        self.world: World = world_of([self.receiver, self.sender], [])
        self.world.random = random.Random(seed)
        self.follows = follows
        self.followed = self.settled = 0
        self._watch()

    def _watch(self) -> None:
        departures: Any = self.sender.manager._departures
        send: Any = Departures._send_following

        def watch(link: Any, *arguments: Any) -> None:
            if self.follows:
                before = link.counts.sent
                send(departures, link, *arguments)
                self.followed += link.counts.sent - before

        departures._send_following = watch
        settling: Any = self.sender.manager._settling
        settle: Any = settling._settle_alike

        def watch_too(batch: Any) -> bool:
            settled = self.follows and settle(batch)
            self.settled += settled
            return settled

        settling._settle_alike = watch_too

    def restart(self) -> None:
        self.sender.restart(self.world.now, snapshot=True)
        self._watch()

    def client(self) -> Client:
        return self.sender.client(self.world.wall)

    def state(self) -> object:
        """All that the two pairs have to have in common."""
        tables = [
            list(host.store._database.connection.execute(f"SELECT {columns} FROM {table} ORDER BY 1, 2"))
            for host in self.world.hosts
            for table, columns in TABLES.items()
        ]
        sessions = [
            (
                list(link.session.window.counts),
                link.session.due,
                link.session._ack_send_duration,
                link.session.is_active,
                [entry and (entry.key, entry.sequence_number) for entry in link.session.window.in_flight],
                (link.turns.count, link.pace._waiting, link.counts.sent, link.counts.resent),
            )
            for host in self.world.hosts
            for link in host.manager.links
        ]
        queues = [
            (
                queue.format_name,
                list(queue.stream.record),
                queue.stream.next_timeout(),
                (queue.turn, queue.sent_to, queue.watched, sorted(queue.transmitted)),
                [
                    (
                        entry.key,
                        entry.awaiting_ack,
                        entry.received_session_ack,
                        entry.sequence_number,
                        entry.recoverable_sequence_number,
                    )
                    for entry in queue.stream.table
                ],
                len(queue.stream.awaiting_final_ack),
            )
            for queue in self.sender.manager.outgoing
        ]
        wires = [(bytes(wire.to_host), bytes(wire.to_initiator)) for wire in self.world.wires]
        return tables, sessions, queues, wires, self.sender.log, self.receiver.log


def _letters(chance: random.Random, queues: tuple[str, ...]) -> list[Letter]:
    """Many that are alike, and some that are not."""
    letters = []
    queue = chance.choice(queues)
    strange = chance.choice((0, 0.05))
    for _ in range(chance.choice((1, 5, 40, 90))):
        odd = chance.random() < strange
        letters.append(
            Letter(
                PLANT + queue,
                bytes([chance.randrange(256)]) * chance.choice((0, 1, 7, 64, 1000)),
                label=chance.choice(("", "x", "reading")),
                delivery="recoverable" if queue == "plain" or chance.random() < 0.003 else "transactional",
                ttrq=chance.choice((1, 3, 60)) if odd else None,
                ttbr=chance.choice((2, 60)) if odd and chance.random() < 0.5 else None,
                dead_letter=chance.random() < strange,
                journal=chance.random() < strange,
                response_queue=chance.choice(("DIRECT=OS:far\\private$\\answers", "plain")) if odd else None,
            )
        )
    return letters


def _step(chance: random.Random, pairs: list[Pair], queues: tuple[str, ...]) -> None:
    what = chance.random()
    if what < 0.2:
        letters = _letters(chance, queues)
        for pair in pairs:
            with pair.client() as client:
                client.send_many(letters)
    elif what < 0.22:
        for pair in pairs:
            for wire in list(pair.world.wires):
                wire.cut()
    elif what < 0.24:
        for pair in pairs:
            pair.restart()
    elif what < 0.28:
        order = chance.choice(("pause", "resume", "resume", "resend"))
        for pair in pairs:
            for row in pair.sender.store.outgoing.queues():
                if order == "resend":
                    pair.sender.store.outgoing.request_resend(row.format_name)
                else:
                    pair.sender.store.outgoing.set_on_hold(row.format_name, order == "pause")
            pair.sender.manager.outgoing.refresh()
            pair.sender.manager.outgoing.obey(pair.world.now)
    elif what < 0.32:
        place = chance.randrange(1, 50)
        for pair in pairs:
            for row in pair.sender.store.outgoing.queues():
                keys = [entry.key for entry in pair.sender.store.outgoing.messages_in(row.identifier)]
                if keys:
                    key = keys[place % len(keys)]
                    pair.sender.store.outgoing.request_purge(row.identifier, 1, key - 1, key)
    elif what < 0.36:
        writable = chance.random() < 0.7
        for pair in pairs:
            for link in pair.sender.manager.links:
                link.writable = writable
    elif what < 0.45:
        milliseconds = chance.choice((1, 100, 300, 1000))
        for pair in pairs:
            pair.world.pass_time(milliseconds)
    else:
        most = chance.choice((1000, 1 << 20, 1 << 20))
        for pair in pairs:
            for _ in range(6):
                pair.world.connect_all()
                pair.world.collect()
                pair.world.deliver(most)
    for pair in pairs:
        pair.world.collect()
    assert pairs[0].state() == pairs[1].state()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_what_follows_leaves_as_on_the_full_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(secrets, "token_bytes", lambda size: b"\xab" * size)
    monkeypatch.setattr(secrets, "randbelow", lambda below: 77 % below)
    chance = random.Random(seed)
    pairs = [Pair(tmp_path / "follows", seed, True), Pair(tmp_path / "full", seed, False)]
    for pair in pairs:
        pair.receiver.store.queues.create("other", transactional=True)
    print(f"seed {seed}")
    for _ in range(STEPS):
        _step(chance, pairs, ("line1",) if seed % 2 else ("line1", "line1", "other", "plain"))
    assert pairs[0].followed > 50 or not seed % 2  # where several queues are busy, they take turns
    assert pairs[0].settled
    for pair in pairs:
        pair.sender.store.close()
        pair.receiver.store.close()


@pytest.mark.rule("B-318")
@given(st.data())
def test_c_and_its_twin_make_the_same_ready_to_follow(data: st.DataObject) -> None:
    first = build.user_message(samples.SENDER, 7, samples.DIRECT, b"first", delivery="transactional")
    at = transaction_offset(first)
    packets = []
    for number in range(8, 8 + data.draw(st.integers(0, 6))):
        body = bytes(data.draw(st.integers(0, 9)))
        packet = build.user_message(samples.SENDER, number, samples.DIRECT, body, delivery="transactional")
        pack_into("<I", packet, at + core.TX_NUMBER_IN_PART, number)
        if data.draw(st.integers(0, 3)) == 0:
            place = data.draw(st.sampled_from((2, 3, 12, 60, 64, at - 1, at, at + 20)))
            packet[place] ^= 1 << data.draw(st.integers(0, 7))
        packets.append(bytes(packet))
    found = ready_to_follow(first, at, 7, packets)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "implementation", "python")
        assert ready_to_follow(first, at, 7, packets) == found
