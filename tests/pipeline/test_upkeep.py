"""`ordack pipeline optimize` and `prune`: which files go, which stay, and what ingests and readers see of it."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from ordack import cli
from ordack.pipeline import compaction, delta_files, iceberg, lake
from ordack.pipeline.folders import Part
from ordack.pipeline.ingest import Job
from ordack.pipeline.progress import IngestError
from ordack.pipeline.segments import FolderError
from ordack.pipeline.upkeep import optimize
from ordack.pipeline.writing import Written

from tests.pipeline.lake_kills import load
from tests.support.segment_files import make_folder, write

WEEK_S = 7 * 86_400


def job(folder: Path, table: Path, table_format: str | None = None, **options: str) -> Job:
    return Job({"path": str(folder), **options}, str(table), table_format)


def numbers(table: Path) -> list[int]:
    return sorted(DeltaTable(table).to_pyarrow_table()["lookup_id"].to_pylist())


def in_iceberg(table: Path) -> pa.Table:
    return (
        iceberg.read_table(str(table)).scan().to_arrow().sort_by([("queue", "ascending"), ("lookup_id", "ascending")])
    )


def files_of(table: Path) -> list[str]:
    return [Path(task.file.file_path).name for task in iceberg.read_table(str(table)).scan().plan_files()]


def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: object) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["ordack", "pipeline", *map(str, words)])
    try:
        cli.main()
        status = 0
    except SystemExit as ended:
        status = int(ended.code or 0)
    return (status, *capfd.readouterr())


def test_small_files_are_put_together_and_those_that_nobody_needs_are_deleted(
    folder: Path, table: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for serial in range(1, 6):
        write(folder, serial, serial, serial)
    what = job(folder, table, maxSegmentsPerTrigger="1")
    going = load(what)
    going.run(False)
    orphan, new_orphan = (table / f"part-{name}.parquet" for name in ("orphan", "new-orphan"))
    for path in (orphan, new_orphan):
        shutil.copy(next(table.glob("part-*")), path)
    os.utime(orphan, (time.time() - WEEK_S - 60,) * 2)
    status, output, _ = run(capfd, monkeypatch, "optimize", table, "--json")
    done = json.loads(output)
    assert (status, done["files_removed"], done["files_added"], done["files_deleted"]) == (0, 5, 1, 1)
    assert (orphan.exists(), new_orphan.exists()) == (False, True)
    assert numbers(table) == [1, 2, 3, 4, 5]
    write(folder, 6, 6, 6)
    assert going.run(False).rows == 1, "an ingest that has the table open goes on"
    assert load(what).run(False).rows == 0, "the table still knows what is in it"
    assert run(capfd, monkeypatch, "optimize", folder)[::2] == (
        2, f"ordack: there is no table of Delta Lake or Iceberg in {folder}\n")  # fmt: skip


@pytest.mark.parametrize(("kept", "stays"), [("0 hours", False), ("30 days", True)])
def test_files_that_are_not_committed_yet_are_kept_for_a_week_whatever_a_table_says(
    folder: Path, table: Path, kept: str, stays: bool
) -> None:
    for serial in range(1, 4):
        write(folder, serial, serial, serial)
    what = job(folder, table, maxSegmentsPerTrigger="1")
    load(what).run(False)
    orphan = table / "part-orphan.parquet"
    shutil.copy(next(table.glob("part-*")), orphan)
    os.utime(orphan, (time.time() - WEEK_S - 60,) * 2)
    DeltaTable(table).alter.set_table_properties({"delta.deletedFileRetentionDuration": f"interval {kept}"})
    write(folder, 4, 4, 4)
    going = load(what)
    write_files = going.write

    def written(parts: list[Part]) -> list[Written]:
        done = write_files(parts)
        optimize(str(table))
        return done

    going.write = written
    assert going.run(False).rows == 1
    assert (numbers(table), orphan.exists()) == ([1, 2, 3, 4], stays)


def test_an_ingest_goes_on_when_optimize_has_deleted_the_log_that_it_knew(folder: Path, table: Path) -> None:
    write(folder, 1, 1, 1)
    load(job(folder, table)).run(False)
    DeltaTable(table).alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
    going = load(job(folder, table))
    for serial in (2, 3):
        write(folder, serial, serial, serial)
    load(job(folder, table, maxSegmentsPerTrigger="1")).run(False)
    for commit in (table / "_delta_log").iterdir():
        os.utime(commit, (time.time() - 60,) * 2)
    optimize(str(table))
    assert len([*(table / "_delta_log").glob("*.json")]) == 1
    write(folder, 4, 4, 4)
    going.run(False)
    assert numbers(table) == [1, 2, 3, 4]


def test_small_files_of_iceberg_are_put_together_by_partition(
    folder: Path, table: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for serial in range(1, 4):
        for queue in ("line1", "line2"):
            write(folder, serial, serial, serial, queue)
    write(folder, 1, 1, 1, "alone")
    what = Job({"path": str(folder), "maxSegmentsPerTrigger": "1"}, str(table), "iceberg", by=("queue",))
    going = load(what)
    going.run(False)
    before = in_iceberg(table)
    status, output, errors = run(capfd, monkeypatch, "optimize", table, "--json")
    assert status == 0, errors
    done = json.loads(output)
    assert (done["files_removed"], done["files_added"], done["files_deleted"]) == (6, 2, 0)
    assert (in_iceberg(table), len(files_of(table))) == (before, 3)
    assert compaction.optimize(str(table)) == (0, 0, 0)
    write(folder, 4, 4, 4)
    assert going.run(False).rows == 1, "an ingest that has the table open goes on"
    assert load(what).run(False).rows == 0, "the table still knows what is in it"


def test_files_are_put_together_until_they_are_no_longer_small(
    folder: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for serial in range(1, 6):
        write(folder, serial, serial, serial)
    load(job(folder, table, "iceberg", maxSegmentsPerTrigger="1")).run(False)
    size = max(path.stat().st_size for path in (table / "data").iterdir())
    monkeypatch.setattr(lake, "SMALL", size + 1)
    assert compaction.optimize(str(table)) == (4, 2, 0), "two and two, and the fifth alone"
    monkeypatch.setattr(lake, "SMALL", 1)
    assert compaction.optimize(str(table)) == (0, 0, 0)


@pytest.mark.parametrize(("deleted", "left"), [(None, [1, 2, 3, 4]), (1, [2, 3]), (3, [1, 2])])
def test_what_others_commit_while_files_are_put_together_stays(
    folder: Path, table: Path, monkeypatch: pytest.MonkeyPatch, deleted: int | None, left: list[int]
) -> None:
    """An ingest adds rows. An engine deletes one, which must not come back; it may do so by a file of its own that says
    which, so its commit is not looked through."""
    for serial, queue in enumerate(("line1", "line1", "line2"), 1):
        write(folder, serial, serial, serial, queue)
    what = Job({"path": str(folder), "maxSegmentsPerTrigger": "1"}, str(table), "iceberg", by=("queue",))
    load(what).run(False)
    together = compaction._together

    def meanwhile(*words: Any) -> Any:
        made = together(*words)
        if deleted is None:
            write(folder, 4, 4, 4, "line2")
            load(what).run(False)
        else:
            iceberg.read_table(str(table)).delete(f"lookup_id = {deleted}")
        return made

    monkeypatch.setattr(compaction, "_together", meanwhile)
    if deleted is None:
        assert compaction.optimize(str(table)) == (2, 1, 0)
    else:
        with pytest.raises(IngestError, match=r"cannot optimize .*; what is in it is whole"):
            optimize(str(table))
    assert sorted(in_iceberg(table)["lookup_id"].to_pylist()) == left


def test_what_is_in_no_snapshot_of_the_last_week_is_deleted(
    folder: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for serial in (1, 2):
        write(folder, serial, serial, serial)
    load(job(folder, table, "iceberg", maxSegmentsPerTrigger="1")).run(False)
    killed, new = (table / "data" / f"part-{uuid.uuid4()}-{uuid.uuid4()}.parquet" for _ in range(2))
    of_others = table / "data" / "of-others.parquet"
    for path in (killed, new, of_others):
        path.touch()
    assert compaction.optimize(str(table)) == (2, 1, 0), "readers of a version of this week have its files"
    (row_file,) = files_of(table)
    later = time.time() + WEEK_S + 60
    os.utime(new, (later - 60,) * 2)
    monkeypatch.setattr("ordack.pipeline.compaction.time.time", lambda: later)
    for name, value in (("gc.enabled", "false"), ("history.expire.max-snapshot-age-ms", str(30 * WEEK_S * 1000))):
        opened = iceberg.read_table(str(table))
        opened.transaction().set_properties({name: value}).commit_transaction()
        assert compaction.optimize(str(table)) == (0, 0, 0), name
        opened.refresh().transaction().remove_properties(name).commit_transaction()
    assert compaction.optimize(str(table))[2] > 3, "row files, and the manifests that name them"
    assert {path.name for path in (table / "data").iterdir()} == {row_file, new.name, of_others.name}
    assert len(iceberg.read_table(str(table)).snapshots()) == 1
    assert sorted(in_iceberg(table)["lookup_id"].to_pylist()) == [1, 2]


def test_segments_that_are_in_every_table_are_deleted_the_oldest_first(
    folder: Path, table: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = table.with_name("other")
    for serial in range(1, 5):
        write(folder, serial, serial, serial)
    load(job(folder, other, "iceberg")).run(False)
    for serial in (1, 2):
        write(folder, serial, serial, serial, "late")
    write(folder, 5, 5, 5)
    load(job(folder, table)).run(False)
    write(folder, 6, 6, 6)
    before = sorted(folder.iterdir())
    words = ["prune", folder, "--in", table, "--in", other]
    status, output, _ = run(capfd, monkeypatch, *words)
    assert (status, sorted(folder.iterdir())) == (0, before), "all of them are new"
    assert output.endswith("0 segments deleted, 0 bytes; what stays: 4 not in every table, 4 too new\n")
    words += ["--days", "0"]
    assert "4 segments would be deleted" in run(capfd, monkeypatch, *words, "--dry-run")[1]
    assert sorted(folder.iterdir()) == before
    done = json.loads(run(capfd, monkeypatch, *words, "--json")[1])
    assert (done["segments"], done["missing_in_table"], done["too_new"], done["newest"]) == (4, 4, 0, 0)
    assert [path.name[:16] for path in sorted(folder.glob("*.parquet"))] == [
        "late-0000000001-", "late-0000000002-", "line1-0000000005", "line1-0000000006"]  # fmt: skip
    load(job(folder, table)).run(False)
    done = json.loads(run(capfd, monkeypatch, "prune", folder, "--in", table, "--days", "0", "--json")[1])
    assert (done["segments"], done["newest"]) == (2, 2), "the newest of each queue stays"
    with pytest.raises(FolderError, match="segment 1 of the queue late is missing"):
        load(job(folder, other)).run(False)  # this table was not named, and says what it has missed
    assert numbers(table) == [1, 1, 2, 2, 3, 4, 5, 6]


def test_a_segment_behind_one_that_is_too_new_stays(
    folder: Path, table: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file may have been copied later than the next one's: without the older, readers would miss it."""
    paths = [write(folder, serial, serial, serial) for serial in (1, 2, 3)]
    load(job(folder, table)).run(False)
    day = paths[1].stat().st_ctime - 1e-3
    monkeypatch.setattr("ordack.pipeline.upkeep.time.time", lambda: day + 7 * 86_400)
    paths[0].chmod(0o600)  # it has changed last
    done = json.loads(run(capfd, monkeypatch, "prune", folder, "--in", table, "--json")[1])
    assert (done["segments"], done["too_new"], done["newest"]) == (0, 2, 1)


def test_what_cannot_be_is_said(
    folder: Path, table: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, 1, 1, 1)
    write(folder, 2, 2, 2)
    for words, text in (
        (["prune", folder, "--in", table], f"there is no table in {table}"),
        (["prune", table, "--in", table], "there is no folder"),
        (["prune", folder], "Missing option '--in'"),
        (["optimize", "C:\\table"], "is a path of Windows"),
    ):
        status, output, errors = run(capfd, monkeypatch, *words)
        assert (status, output) == (2, "")
        assert text in errors
    strange = make_folder(table.with_name("strange"), "folder-2")
    load(job(strange, table)).run(False)
    done = json.loads(run(capfd, monkeypatch, "prune", folder, "--in", table, "--days", "0", "--json")[1])
    assert (done["segments"], done["missing_in_table"]) == (0, 2), "a table that does not know the folder"


@pytest.mark.parametrize(("deleted", "left"), [(None, [1, 2, 3]), (1, [2])])
def test_what_others_commit_while_files_of_delta_are_put_together_stays(
    folder: Path, table: Path, monkeypatch: pytest.MonkeyPatch, deleted: int | None, left: list[int]
) -> None:
    for serial in (1, 2):
        write(folder, serial, serial, serial)
    what = job(folder, table, maxSegmentsPerTrigger="1")
    load(what).run(False)
    commit = DeltaTable.create_write_transaction

    def meanwhile(*words: Any, **named: Any) -> None:
        monkeypatch.undo()
        if deleted is None:
            write(folder, 3, 3, 3)
            load(what).run(False)
        else:
            DeltaTable(table).delete(f"lookup_id = {deleted}")
        commit(*words, **named)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", meanwhile)
    if deleted is None:
        assert optimize(str(table))[1:3] == (2, 1)
    else:
        with pytest.raises(IngestError, match=r"cannot optimize .*; what is in it is whole"):
            optimize(str(table))
    assert numbers(table) == left


def test_columns_that_are_added_while_others_delete_rows_bring_none_back(
    folder: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for serial in (1, 2):
        write(folder, serial, serial, serial)
    load(job(folder, table, maxSegmentsPerTrigger="1")).run(False)
    commit = DeltaTable.create_write_transaction

    def meanwhile(*words: Any, **named: Any) -> None:
        monkeypatch.undo()
        DeltaTable(table).delete("lookup_id = 1")
        commit(*words, **named)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", meanwhile)
    opened = DeltaTable(table)
    delta_files.complete_statistics(opened, str(table), pa.schema([pa.field("t", pa.float64())]))
    assert numbers(table) == [2]
