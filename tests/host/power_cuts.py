"""Power cuts and failing disks under the stores of two queue managers at work.

    .venv/bin/python -m tests.host.power_cuts --cuts 100000 --seed 7   episodes of a seed, until there were so many cuts
    .venv/bin/python -m tests.host.power_cuts --seed 7 --episode 31    one of them again

In an episode, applications send, alone and in batches, receive, commit, and put back; queues are purged; messages
expire, die, and are moved; a peer and the two queue managers exchange messages; stores are closed, opened and
backed up. In most episodes the applications have the queue managers do it, and ask again for what the power took the
answer to; in the others they do it themselves. The power goes in the middle of it, or the disk fails and the power goes
later (`../support/power.py`). Each cut leaves several disks that may be found then. Every one of them is opened as
`serve` opens it, and looked through:
  - SQLite finds no damage, and what the store counts is there;
  - a send that has returned, a commit that was answered, and what was acknowledged to a peer are there, once, in order;
  - what has failed is not there; of what nobody was told of there is all or nothing;
  - how far a stream has come is as its messages are; no number and no MessageID names two messages.
The episode goes on with one of these disks. In the end everything has arrived once, or is a dead letter.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from mqqb import confirm
from ordack.broker import outcome
from ordack.broker.message import Commit, Letter, Wanted, in_runs
from ordack.cli.messages import move_all
from ordack.config.config import Config
from ordack.config.names import DEAD_XACT
from ordack.store import Store, StoreError, StoreUnknown
from ordack.store import disk as disk_module
from ordack.store.backup import make_backup
from ordack.store.messages import NotTaken, StoredMessage
from ordack.store.schema import FILE_NAME, POISON

from tests.host.applications import Asking
from tests.host.power_cuts_hosts import Powered
from tests.host.power_cuts_notes import Contents, Ledger, Note, Violation, damage, tag_of
from tests.support.host_world import HERE, Crash, World, peer_of, wall_at
from tests.support.power import CUT, FULL, IO_ERROR, WAYS, Accident, Power, power

THERE = ("10.0.0.9", 1801)
STEPS = 120
DISKS = 24  # that are looked through after each cut, at most
AFTER = (1, 3, 8, 20, 40, 80, 160)  # operations until the next accident: up to one of these
LASTS = (1, 1, 1, 2, 6, 40)
SIZES = (0, 10, 300, 3000, 9000)
LOGS = (24 << 10, 48 << 10, 128 << 10, 4 << 20)  # as disk.LOG_BYTES
SMALL_DISK = 1 << 20
NOWHERE = "nosuch"
QUEUES = ("line1", "plain")
TICKS = (20, 100, 600, 1100, 3000)  # ms


class Episode:
    """One, of a seed and a number. cuts: disks that were looked through."""

    def __init__(self, vfs: Power, folder: Path, seed: int, number: int) -> None:
        self.power = vfs
        self.folder = folder
        self.dice = random.Random(f"{seed}/{number}")
        self.asks = self.dice.random() < 0.7  # the applications have the queue managers work, or do it themselves
        self.figures: Counter[str] = Counter()
        self.trace: list[str] = []
        self.is_calm = True
        self.world = World(0, [], [])
        self.world.random = self.dice
        self.peer = peer_of(9)
        self.world.peers.append(self.peer)
        self.tags: dict[int, int] = {}  # of the peer's messages
        self.ledger = Ledger(
            lambda: self.wall, self.peer.guid, lambda: {self.tags[entry.message_id] for entry in self.peer.stream.table}
        )
        self.hosts = [
            Powered(self, 0, Config(next_hops={"origin": THERE}), HERE[0]),
            Powered(self, 1, Config(next_hops={"plant": HERE}), THERE[0]),
        ]
        self.world.hosts += self.hosts

    @property
    def now(self) -> int:
        """Milliseconds."""
        return self.world.now

    @property
    def wall(self) -> int:
        """Seconds since 1970."""
        return wall_at(self.world.now)

    # ---- accidents

    def plan(self, host: Powered) -> None:
        """What is to happen to the disk of this host next."""
        if self.is_calm:
            return
        plan = []
        if self.dice.random() < 0.4:
            what = self.dice.choice((IO_ERROR, IO_ERROR, FULL))
            plan.append(Accident(self._soon(), what, self.dice.choice(LASTS)))
        plan.append(Accident(self._soon(), CUT))
        host.machine.plan = plan

    def _soon(self) -> int:
        return self.dice.randint(1, self.dice.choice(AFTER))

    def look_at_disks(self, host: Powered) -> dict[str, bytes]:
        """Look through the disks that may be found after a cut; one of them."""
        disks: list[dict[str, bytes]] = []
        for place in range(DISKS):
            disk = host.machine.left(WAYS[place] if place < len(WAYS) else self.dice.choice(WAYS[2:]))
            if disk not in disks:
                disks.append(disk)
        self.look_at(host, disks)
        self.figures["cuts"] += len(disks)
        self.figures["moments"] += 1
        self.figures[f"at {host.machine.cut_at.replace(FILE_NAME, '')}"] += 1
        return self.dice.choice(disks)

    def look_at(self, host: Powered, disks: Iterable[dict[str, bytes]]) -> None:
        """Raise Violation unless each of these disks has what it must have."""
        others = [other.contents() for other in self.hosts if other is not host]
        for disk in disks:
            contents = self.contents_of(disk)
            self.ledger.check(host.index, contents, [*others[: host.index], contents, *others[host.index :]])

    def contents_of(self, disk: dict[str, bytes]) -> Contents:
        """What is shown by a store whose disk is found so. Raises Violation."""
        folder = self.folder / "look"
        folder.mkdir()
        for name, content in disk.items():
            (folder / name).write_bytes(content)
        try:
            with self.power.aside(), Store(folder, clock=lambda: self.wall) as store:
                if found := damage(store._database.connection):
                    raise Violation(f"the store is damaged: {found}")
                return Contents(store._database.connection)
        except StoreError as error:
            raise Violation(f"the store cannot be opened: {error}") from error
        finally:
            shutil.rmtree(folder)

    def settle_doubts(self, host: Powered) -> None:
        """Whoever asks this store now learns what is so."""
        self.ledger.settle(host.index, host.contents())

    def act(self, host: Powered, action: Callable[[], object]) -> bool:
        """Do something at a host; did it end well? The power may go, its store may fail."""
        try:
            action()
        except Crash:
            assert host.machine.off
        except StoreError:
            if not host.machine.off:
                self.figures["refused"] += 1
                return False
        if host.machine.off:
            host.restart(self.now)
            return False
        return True

    # ---- what applications do

    def commit(
        self, host: Powered, taken: list[tuple[int, Note]], letters: list[tuple[Note, Letter]], again: bool = False
    ) -> None:
        """Have the application make a commit, and note what it is told. again: the power took the answer to it."""
        doubt = self.ledger.doubt(host.index, [note for _, note in taken], [note for note, _ in letters])
        commit = Commit(tuple(key for key, _ in taken), confirm.ACK_RECEIVE, in_runs(letter for _, letter in letters))
        try:
            access = host.application.access
            sent = access.ask_again(commit) if again and isinstance(access, Asking) else access.commit(commit)
        except StoreUnknown:
            self.figures["unknown"] += 1
            if not host.machine.off:
                return
        except StoreError as error:
            if not host.machine.off:
                if not again or isinstance(error, NotTaken):
                    self.ledger.told(doubt, False)
                self.figures["not taken" if isinstance(error, NotTaken) else "refused"] += 1
                return
        except Crash:
            pass
        if host.machine.off:
            host.restart(self.now)
            if self.asks:
                self.figures["asked again"] += 1
                self.commit(host, taken, letters, again=True)
            return
        self.ledger.told(doubt, True)
        self.settle_doubts(host)
        for answer, (note, _) in zip(sent, letters, strict=True):
            self._numbered(host, note, answer.message_id, answer.tx_sequence_id, answer.tx_sequence_number)

    def _numbered(self, host: Powered, note: Note, message_id: int, sequence: int | None, number: int | None) -> None:
        guid = host.store.guid
        given: list[tuple[object, ...]] = [(guid, "MessageID", message_id)]
        if number is not None:
            given.append((guid, sequence, number))
        for one in given:
            if self.ledger.numbers.setdefault(one, note.tag) != note.tag:
                raise Violation(f"messages {note.tag} and {self.ledger.numbers[one]} have the number {one}")

    def letter(self, host: Powered) -> tuple[Note, Letter]:
        """A message that its application may send."""
        dice = self.dice
        if dice.random() < 0.4:
            queue = dice.choice(QUEUES)
            note = self.ledger.note(host.index, host.index, queue)
            letter = Letter(queue, self.body(note.tag))
            if queue == "plain" and dice.random() < 0.3:
                ttbr = dice.choice((1, 2, 30))
                note.expires = self.wall + ttbr
                letter = letter._replace(ttbr=ttbr)
            return note, letter
        far = 1 - host.index
        queue = dice.choice(("line1", "line1", "line1", NOWHERE))
        note = self.ledger.note(host.index, far, queue)
        ttrq = dice.choice((None, None, None, 2))
        dies = queue == NOWHERE or ttrq is not None
        name = ("plant", "origin")[far]
        return note, Letter(f"DIRECT=OS:{name}\\private$\\{queue}", self.body(note.tag), ttrq=ttrq, dead_letter=dies)

    def body(self, tag: int) -> bytes:
        """Of the message with this tag."""
        return b"<%d>" % tag + bytes(self.dice.randint(0, self.dice.choice(SIZES)))

    def send(self, host: Powered) -> None:
        """One message, or a batch."""
        self.commit(host, [], [self.letter(host) for _ in range(self.dice.choice((1, 1, 2, 5)))])

    def take(self, host: Powered) -> None:
        """Begin a receive."""
        if host.held:
            return
        queue = host.application.queue(self.dice.choice(QUEUES))
        counted = self.dice.random() < 0.5
        wanted = Wanted(queue.identifier, self.dice.choice((1, 2, 6)), counted, 2 if counted else None)
        taken: list[StoredMessage] = []
        if self.act(host, lambda: taken.extend(host.application.access.take(wanted, 0))):
            self.settle_doubts(host)
            host.held = [(one.lookup_id, self.received(one)) for one in taken]

    def received(self, stored: StoredMessage) -> Note:
        """What is known of a message that was received."""
        tag = tag_of(stored.packet)
        assert tag is not None
        note = self.ledger.notes[tag]
        if note.ended is True or note.sent is False:
            raise Violation(f"it is received: {note}")
        return note

    def finish(self, host: Powered) -> None:
        """End a receive, one way or the other."""
        held, host.held = host.held, []
        if self.dice.random() < 0.3:
            self.act(host, lambda: host.application.access.put_back([key for key, _ in held]))
        elif held:
            self.commit(host, held, [self.letter(host) for _ in range(self.dice.choice((0, 1, 2)))])

    def purge(self, host: Powered) -> None:
        """Empty a queue."""
        if self.dice.random() < 0.7 or host.held:
            return
        contents = host.contents().inbox
        gone = [note for note in self.ledger.in_queue(host.index, "plain") if contents[note.tag]]
        self.ledger.doubt(host.index, gone, [], together=False)
        if self.act(host, lambda: host.application.purge_queue("plain")):
            if host.store.messages.peek(host.store.queues.named("plain").identifier):
                raise Violation("a queue that was emptied is not empty")
            for note in gone:
                note.expires = 0  # what is in a receive that could not be ended
            self.settle_doubts(host)

    def move(self, host: Powered) -> None:
        """Send dead letters again, to where they can arrive."""
        name = ("origin", "plant")[host.index]
        dead = host.contents().dead
        for tag in dead:
            note = self.ledger.notes[tag]
            note.queue, note.moved = "line1", True
        moved = move_all(host.application, DEAD_XACT, f"DIRECT=OS:{name}\\private$\\line1", 3)
        self.act(host, lambda: list(moved))

    def reopen(self, host: Powered) -> None:
        """Stop and start."""
        if not self.act(host, host.stop):
            return
        host.start(self.now)
        if host.machine.off:
            host.restart(self.now)
        else:
            self.settle_doubts(host)

    def back_up(self, host: Powered) -> None:
        """Make a backup, and look through it."""
        to = self.folder / "backup"
        if self.act(host, lambda: make_backup(host._life, to, lambda _done, _all: None)):
            self.look_at(host, [{FILE_NAME: to.read_bytes()}])
            self.figures["backups"] += 1
        to.unlink(missing_ok=True)

    # ---- the network and time

    def peer_sends(self, _host: Powered) -> None:
        """A peer has something to say."""
        note = self.ledger.note(None, 0, "line1")
        message_id = self.peer.send(self.body(note.tag))
        self.tags[message_id] = note.tag
        note.place = self.peer.stream.tx_sequence_id, self.peer.stream.table[-1].tx_sequence_number
        note.sent = True

    def flow(self, _host: Powered) -> None:
        """Bytes arrive."""
        self.world.connect_all()
        for _ in range(self.dice.choice((1, 3, 8))):
            self.world.collect()
            self.world.deliver(self.dice.choice((200, 3000, 1 << 20)))
            self.revive()

    def tick(self, _host: Powered) -> None:
        """Time passes."""
        self.world.pass_time(self.dice.choice(TICKS))
        self.revive()

    def break_wire(self, _host: Powered) -> None:
        """A connection is lost."""
        if self.world.wires:
            self.dice.choice(self.world.wires).cut()

    def revive(self) -> None:
        """Whoever is without power starts again."""
        for host in self.hosts:
            host.restart(self.now)

    # ---- all of it

    def play(self) -> None:
        """Play it; raises Violation."""
        self.is_calm = False
        for host in self.hosts:
            self.plan(host)
        actions, weights = zip(*ACTIONS, strict=True)
        for action in self.dice.choices(actions, weights, k=STEPS):
            host = self.dice.choice(self.hosts)
            self.trace.append(f"{len(self.trace)} {action.__name__} {host.index}")
            for one in self.hosts:
                if not one.machine.plan:
                    self.plan(one)
            action(self, host)
        self.is_calm = True
        self.trace.append("the end")
        self.end()
        self.figures["operations"] += sum(host.machine.operations for host in self.hosts)
        self.figures["failed"] += sum(host.machine.failed for host in self.hosts)

    def end(self) -> None:
        """No more accidents: everything must have arrived once, or be a dead letter."""
        for host in self.hosts:
            host.machine.repaired()
            host.held = []
            self.reopen_calmly(host)
        self.world.settle(lambda: not any(host.contents().to_send for host in self.hosts))
        stores = [host.contents() for host in self.hosts]
        for host in self.hosts:
            self.ledger.check(host.index, stores[host.index], stores)
        for host in self.hosts:
            self.receive_all(host)
        stores = [host.contents() for host in self.hosts]
        for note in self.ledger.notes.values():
            dead = note.source is not None and stores[note.source].dead[note.tag]
            if note.sent and note.ended is False and not dead and note.expires is None:
                raise Violation(f"it has not arrived: {note}")

    def reopen_calmly(self, host: Powered) -> None:
        """Stop and start."""
        self.act(host, host.stop)
        host.start(self.now)
        self.settle_doubts(host)

    def receive_all(self, host: Powered) -> None:
        """Empty the queues of a host."""
        for name in (*QUEUES, *(queue + POISON for queue in QUEUES)):
            queue = host.store.queues.find(name)
            if queue is None:
                continue
            while taken := host.application.access.take(Wanted(queue.identifier, 100), 0):
                self.commit(host, [(one.lookup_id, self.received(one)) for one in taken], [])

    def close(self) -> None:
        """Leave nothing behind."""
        for host in self.hosts:
            host.machine.repaired()
            host._close()


ACTIONS: Sequence[tuple[Callable[[Episode, Powered], None], int]] = (
    (Episode.send, 10),
    (Episode.take, 6),
    (Episode.finish, 6),
    (Episode.peer_sends, 5),
    (Episode.flow, 14),
    (Episode.tick, 5),
    (Episode.break_wire, 1),
    (Episode.purge, 2),
    (Episode.move, 1),
    (Episode.reopen, 2),
    (Episode.back_up, 1),
)


@contextlib.contextmanager
def _settings(dice: random.Random) -> Iterator[None]:
    """Logs so short that there are checkpoints; numbers, and pieces of long work, that are the same each time."""
    looks = itertools.count()
    ticking = SimpleNamespace(monotonic=lambda: outcome.PIECE_S * next(looks), sleep=lambda _: None)
    log = dice.choice(LOGS)
    real, for_log = disk_module.disk_bytes, (SMALL_DISK, dice.choice((0, 1 << 30, 2 << 30)))
    with (
        mock.patch.object(disk_module, "LOG_BYTES", log),
        mock.patch.object(disk_module, "disk_bytes", lambda path: for_log if path.name == FILE_NAME else real(path)),
        mock.patch.object(disk_module, "file_system", return_value=""),
        mock.patch.object(outcome, "time", ticking),
        mock.patch("secrets.randbelow", dice.randrange),
        mock.patch("secrets.token_bytes", dice.randbytes),
    ):
        yield


def play(seed: int, number: int) -> Counter[str]:
    """Play an episode: its figures. Raises Violation, with the command that plays it again."""
    folder = Path(tempfile.mkdtemp(prefix="ordack-cuts-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    episode: Episode | None = None
    try:
        with power() as vfs, _settings(random.Random(f"{seed}/{number}/settings")):
            episode = Episode(vfs, folder, seed, number)
            try:
                episode.play()
            finally:
                episode.close()
        return episode.figures
    except BaseException as error:
        if episode:
            machines = [f"host {host.index}: the power went {host.machine.cut_at}" for host in episode.hosts]
            error.add_note("\n".join([*episode.trace[-6:], *machines]))
        error.add_note(f"again: .venv/bin/python -m tests.host.power_cuts --seed {seed} --episode {number}")
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuts", type=int, default=10_000)
    parser.add_argument("--seed", type=int, help="of the episodes; by default another each time")
    parser.add_argument("--episode", type=int, help="only this one")
    parser.add_argument("--json", action="store_true", help="the figures as one JSON object")
    return parser.parse_args()


def main() -> int:
    arguments = _arguments()
    seed = arguments.seed if arguments.seed is not None else int.from_bytes(os.urandom(4), "big")
    print("seed", seed, file=sys.stderr)
    began = time.monotonic()
    figures: Counter[str] = Counter()
    number = arguments.episode or 0
    while figures["cuts"] < arguments.cuts:
        figures += play(seed, number)
        figures["episodes"] += 1
        if arguments.episode is not None:
            break
        number += 1
    seconds = time.monotonic() - began
    shown = {"seed": seed, **figures, "seconds": round(seconds, 1), "cuts_per_s": round(figures["cuts"] / seconds)}
    print(json.dumps(shown) if arguments.json else "\n".join(f"{name:>24}  {value}" for name, value in shown.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
