"""Tables that were restored to an older version, or rolled back, are refused. Messages that a restored store exports
again are in a table once."""

from __future__ import annotations

import datetime
import subprocess
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from ordack.client import Client
from ordack.pipeline import delta
from ordack.pipeline.iceberg import _catalog
from ordack.pipeline.lake import IngestUnusable
from ordack.pipeline.prune import serials

from tests.pipeline.lake import both, job, load, numbers, read_by_polars
from tests.support.command import ordack
from tests.support.segment_files import key, make_folder, row, write, write_rows


def refused(folder: Path, table: Path, said: str) -> None:
    """By an ingest, and by what prunes segments."""
    for look in (lambda: load(job(folder, table)).run(False), lambda: serials(str(table))):
        with pytest.raises(IngestUnusable, match=said):
            look()


@pytest.mark.parametrize("moment", ["write_deltalake", "update_incremental", ""])
def test_a_restored_table_of_delta_is_refused(
    folder: Path, table: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Restored before a commit of an ingest, right behind it, or before an ingest begins."""
    what = job(folder, table, segments_max=1)
    for serial in (1, 2):
        write(folder, serial, serial, serial)
        load(what).run(False)
    write(folder, 3, 3, 3)
    write(folder, 4, 4, 4)
    running = load(what)

    def restored(*words: Any, **named: Any) -> Any:
        monkeypatch.undo()
        DeltaTable(table).restore(1)
        return there(*words, **named)

    if moment:
        where: Any = delta if moment == "write_deltalake" else DeltaTable
        there = getattr(where, moment)
        monkeypatch.setattr(where, moment, restored)
        with pytest.raises(IngestUnusable, match="was restored to an older version"):
            running.run(False)
    else:
        DeltaTable(table).restore(1)
    refused(folder, table, "was restored to an older version, .*: begin a new table")


def test_a_table_of_iceberg_that_was_rolled_back_is_refused(folder: Path, table: Path) -> None:
    what = job(folder, table, "iceberg")
    catalog, name = _catalog(str(table))
    for serial in (1, 2):
        write(folder, serial, serial, serial)
        load(what).run(False)
    catalog.load_table(name).delete("lookup_id = 1")
    opened = catalog.load_table(name)
    opened.maintenance.expire_snapshots().older_than(datetime.datetime.now(datetime.UTC)).commit()
    write(folder, 3, 3, 3)
    assert load(what).run(False).rows == 1, "others may delete rows, and snapshots"
    opened = catalog.load_table(name)
    opened.manage_snapshots().rollback_to_snapshot(opened.snapshots()[0].snapshot_id).commit()
    catalog.load_table(name).delete("lookup_id = 2")
    now = catalog.load_table(name).metadata.last_sequence_number
    refused(folder, table, f"set its property ordack.sequence to {now}")
    with catalog.load_table(name).transaction() as transaction:
        transaction.set_properties({"ordack.sequence": str(now)})
    assert list(serials(str(table)).values()) == [3], "as its owner said"


@pytest.mark.parametrize(("table_format", "at_once"), [("delta", False), ("iceberg", True)])
def test_rows_exported_again_by_restored_store_are_loaded_once(
    tmp_path: Path, table: Path, table_format: str, at_once: bool
) -> None:
    """The first two messages were exported before the backup, three after it; two came after the restore."""
    name = "o'clock&{1}=%s"
    store, backup, old, new = (tmp_path / name for name in ("store", "backup", "old", "new"))
    with Client(store, create=True) as client:
        client.create_queue(name, transactional=True)

    def send(*bodies: str) -> None:
        with Client(store) as client:
            for body in bodies:
                client.send(name, body.encode())

    def export(folder: Path) -> subprocess.CompletedProcess[str]:
        return ordack("table", "export", name, "--store", store, "--to", folder, "--rows", "2")

    send("1", "2")
    export(old)
    send("3", "4", "5")
    ordack("store", "backup", "--store", store, backup)
    send("6")
    export(old)
    what = job(old, table, table_format)
    if not at_once:
        load(what).run(False)
        if table_format == "delta":  # of others who delete rows, in a way that not all readers of deltalake know
            DeltaTable(table).alter.set_table_properties({"delta.enableDeletionVectors": "true"})
    store.rename(tmp_path / "lost")
    ordack("store", "restore", backup, "--store", store)
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
def test_equal_lookup_ids_do_not_make_folders_copies(
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
def test_concurrent_ingests_of_two_folders_load_shared_rows_once(
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
