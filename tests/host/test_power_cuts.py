"""Power cuts and failing disks under stores at work (power_cuts.py): 5,000 of them; what follows a sync that failed;
and that the cuts notice when something is broken."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest
from mqqb import confirm
from ordack.client import Client, Letter
from ordack.store import Answers, Memory, Store, StoreError
from ordack.store.database import Database
from ordack.store.disk import WriteAheadLog
from ordack.store.numbers import Numbers
from ordack.store.schema import FILE_NAME

from hil.dice import new_seed
from tests.host import power_cuts
from tests.host.power_cuts_notes import damage
from tests.support.beside import outcomes_of
from tests.support.power import CUT, IO_ERROR, WAYS, Accident, Inode, Machine, Piece, Power, PowerCut, power

pytestmark = [pytest.mark.slow, pytest.mark.rule("B-098", "B-285")]

BLOCKS = 2
CUTS = 2500  # in each
KINDS = ("refused", "unknown", "backups", "at sync -wal", "at write -wal", "at write ")  # the rarest: 0 to 16 of 1,000
TRIES = 4  # of each accident, with other dice


@pytest.mark.parametrize("block", range(BLOCKS))
def test_nothing_is_lost_doubled_or_torn_by_power_cuts(block: int) -> None:
    seed = new_seed()
    figures: Counter[str] = Counter()
    episode = block * 10 * CUTS  # other dice than those of the other blocks
    while figures["cuts"] < CUTS or (figures["cuts"] < 3 * CUTS and not all(figures[kind] for kind in KINDS)):
        figures += power_cuts.play(seed, episode)
        episode += 1
    print(f"block {block}, seed {seed}: {dict(figures)}")
    assert all(figures[kind] for kind in KINDS)


# ---- a sync fails, and what was to be synced is not on the disk, though everybody sees it


class Told:
    """What an application was told on a machine whose disk fails. sent: bodies of which it was told so."""

    def __init__(self, vfs: Power, folder: Path, seed: int) -> None:
        self.power = vfs
        self.folder = folder / str(seed)
        with Client(self.folder / "new", create=True) as client:
            client.create_queue("line1", transactional=True)
            client.create_queue("plain", transactional=False)
        self.sent: list[bytes] = []
        self.machine = Machine(self.folder, random.Random(seed))
        self.machine.goes_on({FILE_NAME: (self.folder / "new" / FILE_NAME).read_bytes()}, self.folder / "disk")

    def send(self, client: Client, body: bytes) -> None:
        """Send, and note it if it goes well."""
        with contextlib.suppress(StoreError):
            client.send("line1", body)
            self.sent.append(body)

    def fail(self, lasts: int = 1) -> None:
        """The next sync fails, and so many operations in turn."""
        self.machine.plan = [Accident(1, IO_ERROR, lasts, "sync")]

    def check(self) -> None:
        """Whatever of the disk is found when the power goes now."""
        for way in WAYS:
            folder = self.folder / way
            folder.mkdir()
            for name, content in self.machine.left(way).items():
                (folder / name).write_bytes(content)
            with self.power.aside(), Store(folder) as store:
                database = store._database.connection
                assert damage(database) == []
                bodies = [
                    body
                    for body in self.sent
                    if database.execute("SELECT 1 FROM messages WHERE instr(packet, ?)", (body,)).fetchone()
                ]
            assert bodies == self.sent, way


@contextlib.contextmanager
def told_on(folder: Path, seed: int) -> Iterator[Told]:
    """An application on a machine whose accidents begin now."""
    with power() as vfs:
        told = Told(vfs, folder, seed)
        vfs.machines.append(told.machine)
        yield told


def _other_commit(client: Client) -> None:
    client.send("plain", b"other")


def _checkpoint(client: Client) -> None:
    client.store._database._log.empty()


def _statement_alone(client: Client) -> None:
    client.store.keep_names({"own": ["press"]})


def _send_after_a_failure(tmp_path: Path, what: Callable[[Client], object]) -> None:
    for seed in range(TRIES):
        with told_on(tmp_path, seed) as told:
            with Client(told.machine.folder) as client:
                told.send(client, b"before")
                client.queue("line1").begin_receive(1, 0, True)  # which nobody syncs
                client.queue("plain").begin_receive(1, 0, True)
                told.fail()
                with contextlib.suppress(StoreError):
                    what(client)
                assert told.machine.failed == 1
                told.send(client, b"after")
                assert told.sent == [b"before", b"after"]
                told.check()


@pytest.mark.parametrize("what", [_other_commit, _checkpoint, _statement_alone])
def test_failed_sync_leaves_no_gap_before_next_send(tmp_path: Path, what: Callable[[Client], object]) -> None:
    _send_after_a_failure(tmp_path, what)


def _no_log_is_written_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WriteAheadLog, "write_again", lambda _self: None)


def _a_doubt_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    def broken(self: Database) -> None:
        self._is_unknown = self._has_gap = False

    patch.setattr(Database, "_settle_unknown", broken)


@pytest.mark.parametrize("break_it", [_no_log_is_written_again, _a_doubt_is_forgotten])
def test_a_gap_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, break_it: Callable[[pytest.MonkeyPatch], None]
) -> None:
    break_it(monkeypatch)
    with pytest.raises(AssertionError):
        _send_after_a_failure(tmp_path, _other_commit)


def test_failed_sync_leaves_no_gap_before_other_process_send(tmp_path: Path) -> None:
    for seed in range(TRIES):
        with told_on(tmp_path, seed) as told:
            client = Client(told.machine.folder)
            told.send(client, b"before")
            client.queue("line1").begin_receive(1, 0, True)
            told.fail(lasts=100)
            with pytest.raises(StoreError):
                client.send("line1", b"lost")
            with contextlib.suppress(apsw.Error):
                client.close()
            told.machine.repaired()
            with Client(told.machine.folder) as other:
                told.send(other, b"after")
                assert told.sent == [b"before", b"after"]
                told.check()


@pytest.mark.parametrize("syncs", [2, 3])
def test_store_closed_after_failed_sync_stays_intact(tmp_path: Path, syncs: int) -> None:
    """The gap is not copied to the database, of which then a part would be newer than all of the log."""
    found = 0
    for seed in range(2 * TRIES):
        with told_on(tmp_path, seed) as told:
            client = Client(told.machine.folder)
            for number in range(4):
                told.send(client, b"before %d" % number)
                client.send_many([Letter("plain", b"%d" % number * 3000) for number in range(4)])
            client.store._database._log.empty()  # so that the database has pages that are not in the log
            plain = client.queue("plain").identifier
            for _ in range(3):
                with client.store.transaction(durable=False):
                    outcomes_of(client).empty(plain, confirm.NACK_Q_PURGED, 4)
            told.fail(lasts=syncs)
            with pytest.raises(StoreError):
                client.send("plain", b"lost")
            told.machine.plan = [Accident(told.machine.dice.randint(1, 24), CUT)]
            with contextlib.suppress(apsw.Error, PowerCut):
                client.close()
            del client  # it is gone with the power
            found += told.machine.off
            told.check()
    assert found


# ---- the cuts can fail: broken on purpose, they find it ----------------------------------------------------------


def _no_sync_of_a_commit(patch: pytest.MonkeyPatch) -> None:
    transaction = Database.transaction
    patch.setattr(Database, "transaction", lambda self, durable=True, writes=True: transaction(self, False, writes))


def _a_disk_that_does_not_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Machine, "sync", lambda *_: None)


def _a_stream_is_not_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Memory, "save_incoming", lambda *_: None)


def _message_ids_are_given_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Numbers, "reserve_message_ids", lambda _self, count=1: count)


def _counts_are_not_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Database, "tally", lambda *_, **__: None)


def _answers_are_not_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Answers, "keep", lambda *_: None)


def _play(episodes: int) -> None:
    for episode in range(episodes):
        power_cuts.play(16, episode)


@pytest.mark.parametrize(
    "break_it",
    [
        _no_sync_of_a_commit,
        _a_disk_that_does_not_sync,
        _a_stream_is_not_kept,
        _message_ids_are_given_twice,
        _counts_are_not_kept,
        _answers_are_not_kept,
    ],
)
def test_power_cut_simulation_detects_planted_faults(
    monkeypatch: pytest.MonkeyPatch, break_it: Callable[[pytest.MonkeyPatch], None]
) -> None:
    break_it(monkeypatch)
    with pytest.raises(AssertionError) as raised:
        _play(150)
    assert "again: .venv/bin/python -m tests.host.power_cuts --seed 16 --episode" in "".join(raised.value.__notes__)


def test_power_cut_keeps_synced_data_and_any_part_of_the_rest() -> None:
    dice = random.Random(1)
    seen = set()
    for _ in range(300):
        inode = Inode()
        machine = Machine(Path("/"), dice)
        inode.loose += [Piece(0, b"first")]
        machine.sync(inode)
        inode.loose += [Piece(0, b"A" * 600), Piece(600, b"B" * 600)]
        for way in WAYS:
            left = inode.left(dice, way)
            assert way != "nothing" or left == b"first"
            assert way != "all" or left == b"A" * 600 + b"B" * 600
            seen.add((left[:5] == b"AAAAA", left[599:600] == b"A", left[600:601] == b"B", left[1199:] == b"B"))
    assert len(seen) > 8, "torn, and in any order"
