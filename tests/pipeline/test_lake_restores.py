"""Tables restored to an older version, or rolled back: what they have lost comes again, or they are refused."""

from __future__ import annotations

import datetime
import subprocess
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from ordack.client import Client
from ordack.pipeline.iceberg import _catalog
from ordack.pipeline.lake import IngestError, IngestUnusable
from ordack.pipeline.prune import serials

from tests.pipeline.lake import both, job, load, numbers, read_by_polars
from tests.support.command import ordack
from tests.support.segment_files import key, make_folder, row, write, write_rows


@pytest.mark.parametrize("moment", ["create_write_transaction", "update_incremental"])
def test_a_running_ingest_goes_on_from_what_delta_is_restored_to(
    folder: Path, table: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    what = job(folder, table, segments_max=1)
    for serial in (1, 2):
        write(folder, serial, serial, serial)
        load(what).run(False)
    write(folder, 3, 3, 3)
    write(folder, 4, 4, 4)
    running = load(what)
    there = getattr(DeltaTable, moment)

    def restored(opened: DeltaTable, *words: Any, **named: Any) -> Any:  # before a commit, and right behind it
        monkeypatch.undo()
        DeltaTable(table).restore(1)
        return there(opened, *words, **named)

    monkeypatch.setattr(DeltaTable, moment, restored)
    running.run(False)
    assert numbers(table) == [1, 2, 3, 4]


def test_a_table_of_delta_to_which_an_ingest_wrote_that_did_not_heed_a_restore_is_refused(
    folder: Path, table: Path
) -> None:
    what = job(folder, table)
    for serial in (1, 2):
        write(folder, serial, serial, serial)
        load(what).run(False)
    opened = DeltaTable(table)
    opened.restore(1)
    place, name = next(iter(serials(str(table)))), "ordack/{0.folder}/{0.queue}"
    told = CommitProperties({"ordack.heeded": 2}, app_transactions=[Transaction(name.format(place), 3)])
    opened.create_write_transaction([], "append", opened.schema(), [], commit_properties=told)
    for look in (lambda: load(what).run(False), lambda: serials(str(table))):
        with pytest.raises(IngestUnusable, match="restore it once more, to version 1"):
            look()
    DeltaTable(table).restore(1)
    assert load(what).run(False).rows == 1
    assert numbers(table) == [1, 2]


def test_a_restored_table_of_delta_whose_log_is_gone_is_refused(folder: Path, table: Path) -> None:
    what = job(folder, table)
    for serial in (1, 2):
        write(folder, serial, serial, serial)
        load(what).run(False)
    DeltaTable(table).restore(1)
    DeltaTable(table).create_checkpoint()
    for number in (0, 1, 2):
        for old in (table / "_delta_log").glob(f"{number:020}.*"):
            old.unlink()
    with pytest.raises(IngestUnusable, match="Begin a new table"):
        load(what).run(False)


def test_a_table_of_delta_that_was_restored_to_a_time_is_refused(folder: Path, table: Path) -> None:
    write(folder, 1, 1, 1)
    what = job(folder, table)
    load(what).run(False)
    begun = DeltaTable(table).history()[-1]["timestamp"]
    DeltaTable(table).restore(datetime.datetime.fromtimestamp(begun / 1000 + 0.001, datetime.UTC))
    with pytest.raises(IngestUnusable, match="restored to the state of a time: restore it once more, to a version"):
        load(what).run(False)


def test_a_table_of_iceberg_goes_on_after_a_rollback_though_snapshots_were_expired(folder: Path, table: Path) -> None:
    what = job(folder, table, "iceberg", segments_max=1)
    catalog, name = _catalog(str(table))
    for serial in (1, 2):
        write(folder, serial, serial, serial)
        load(what).run(False)
    opened = catalog.load_table(name)
    opened.manage_snapshots().rollback_to_snapshot(opened.snapshots()[0].snapshot_id).commit()
    catalog.load_table(name).delete("lookup_id = 1")
    opened = catalog.load_table(name)
    opened.maintenance.expire_snapshots().older_than(datetime.datetime.now(datetime.UTC)).commit()
    assert len(catalog.load_table(name).snapshots()) == 1
    assert load(what).run(False).rows == 1
    assert numbers(table, "iceberg") == [2]


def test_a_table_of_iceberg_that_cannot_tell_what_is_in_it_is_refused(folder: Path, table: Path) -> None:
    what = job(folder, table, "iceberg")
    snapshots = []
    for serial in (1, 2):
        write(folder, serial, serial, serial)
        load(what).run(False)
        catalog, name = _catalog(str(table))
        snapshots.append(catalog.load_table(name).metadata.current_snapshot_id)
    catalog.load_table(name).manage_snapshots().rollback_to_snapshot(snapshots[0]).commit()
    log = catalog.load_table(name).metadata.metadata_log
    Path(log[-1].metadata_file.removeprefix("file://")).write_text("no JSON")
    with pytest.raises(IngestError, match="cannot read what the table"):
        serials(str(table))
    for old in log:
        Path(old.metadata_file.removeprefix("file://")).unlink()
    for look in (lambda: load(what).run(False), lambda: serials(str(table))):
        with pytest.raises(IngestUnusable, match=f"set its property ordack.snapshot to {snapshots[0]}"):
            look()
    with catalog.load_table(name).transaction() as transaction:
        transaction.set_properties({"ordack.snapshot": str(snapshots[0])})
    assert list(serials(str(table)).values()) == [2], "as its owner said"


@both
@pytest.mark.parametrize("at_once", [False, True])
def test_what_a_restored_store_exports_again_is_in_the_table_once(
    tmp_path: Path, table: Path, table_format: str, at_once: bool
) -> None:
    """The first two messages were exported before the backup, three after it; two came after the restore."""
    name = "o'clock&{1}=%s"
    store, backup, old, new = (tmp_path / name for name in ("store", "backup", "old", "new"))
    with Client(store, create=True) as client:
        client.create_queue(name, transactional=True)

    def send(*bodies: str) -> None:
        for body in bodies:
            assert not ordack("send", "--store", store, name, "--body", body).returncode

    def export(folder: Path) -> subprocess.CompletedProcess[str]:
        return ordack("export", name, "--store", store, "--to", folder, "--rows", "2")

    send("1", "2")
    export(old)
    send("3", "4", "5")
    ordack("backup", "--store", store, backup)
    send("6")
    export(old)
    what = job(old, table, table_format)
    if not at_once:
        load(what).run(False)
        if table_format == "delta":  # of others who delete rows, in a way that not all readers of deltalake know
            DeltaTable(table).alter.set_table_properties({"delta.enableDeletionVectors": "true"})
    store.rename(tmp_path / "lost")
    ordack("init", "--from", backup, "--store", store)
    refused = export(old)
    assert refused.returncode == 1
    assert "an ingest of both puts them into a table once" in refused.stderr
    send("7", "8")
    assert export(new).stdout.endswith("5 messages exported\n")
    said: list[str] = []
    for folders in ([old, new], [new]) if at_once else ([new], [old, new]):
        what = job(folders, table, table_format)
        ingest = load(what)
        ingest.warn = said.append
        ingest.run(False)
        assert sorted(read_by_polars(table, table_format)["body"]) == [b"%d" % number for number in range(1, 9)]
    assert sum(int(text.split()[0]) for text in said) == 3
    assert all("left out: the table has them from another folder" in text for text in said)


@both
def test_folders_of_other_queue_managers_and_later_messages_are_no_copies(
    tmp_path: Path, folder: Path, table: Path, table_format: str
) -> None:
    """Their lookup ids, and after a restore those of new messages, are the same."""
    write(folder, 1, 1, 3)
    other = make_folder(tmp_path / "other", "folder-2", "22222222-2222-2222-2222-222222222222")
    write(other, 1, 1, 3)
    restored = make_folder(tmp_path / "restored", "folder-3")
    write_rows(restored, 1, [row(number, message_key=key(number + (number > 2) * 10)) for number in (2, 3, 4)])
    load(job([folder, other, restored], table, table_format)).run(False)
    assert numbers(table, table_format) == [1, 1, 2, 2, 3, 3, 3, 4]


@both
def test_two_ingests_of_two_folders_at_once_load_what_both_have_once(
    tmp_path: Path, folder: Path, table: Path, table_format: str
) -> None:
    restored = make_folder(tmp_path / "restored", "folder-2")
    for serial in (1, 2):
        write(folder, serial, 2 * serial - 1, 2 * serial)
        write(restored, serial, 2 * serial - 1, 2 * serial)
    ingests = [load(job(one, table, table_format, segments_max=1)) for one in (restored, folder)]
    for _ in range(3):
        for ingest in ingests:
            ingest.batch(None)
    assert numbers(table, table_format) == [1, 2, 3, 4]
