"""Tables of Delta Lake and Iceberg: each row once, many writers, what is refused, and how others read them.

Without Spark, but for its types: what tasks do is done here. test_ingest.py has the way through Spark.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from ordack.pipeline import delta_files, segments, writing
from ordack.pipeline.delta import Delta
from ordack.pipeline.folders import Part
from ordack.pipeline.iceberg import Iceberg, _catalog
from ordack.pipeline.ingest import Job
from ordack.pipeline.lake import DECODING, PROPERTY
from ordack.pipeline.progress import Batch, IngestError, IngestUnusable
from ordack.pipeline.segment_source import MALFORMED, OptionError, SchemaError
from ordack.pipeline.segments import ADDED, SCHEMA, FolderError, FolderMissing
from ordack.pipeline.upkeep import optimize, serials
from ordack.reconcile.rows import pieces
from pyiceberg.catalog import load_catalog
from pyiceberg.utils.config import Config
from pyspark.sql.types import DoubleType, StructField

from tests.conformance import ROOT
from tests.pipeline.lake_kills import load
from tests.support.segment_files import BEGIN, SOURCE, key, make_folder, row, write, write_rows

both = pytest.mark.parametrize("table_format", ["delta", "iceberg"])
DAY = datetime.timedelta(days=1)


def job(folder: Path, table: Path | str, table_format: str | None = None, **others: Any) -> Job:
    options = {name: others.pop(name) for name in ("queue", "paths", "maxSegmentsPerTrigger") if name in others}
    return Job({**({} if "paths" in options else {"path": str(folder)}), **options}, str(table), table_format, **others)


def decoding(what: Job, *columns: str) -> None:
    """Bodies with columns of DOUBLE; what parses DDL is in Spark."""
    what.given = lambda: [StructField(name, DoubleType()) for name in columns]  # type: ignore[method-assign]


def read(table: Path, table_format: str = "delta") -> pa.Table:
    if table_format == "delta":
        return DeltaTable(table).to_pyarrow_table()
    catalog, name = _catalog(str(table))
    return catalog.load_table(name).scan().to_arrow()


def read_by_polars(table: Path, table_format: str) -> polars.DataFrame:
    if table_format == "delta":
        return polars.read_delta(str(table))
    catalog, name = _catalog(str(table))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a package of theirs would be faster
        made: Any = polars.scan_iceberg(catalog.load_table(name)).collect()
    return cast("polars.DataFrame", made)


def numbers(table: Path, table_format: str = "delta") -> list[int]:
    return sorted(read(table, table_format)["lookup_id"].to_pylist())


@both
def test_each_run_adds_what_is_new_and_nothing_else(folder: Path, table: Path, table_format: str) -> None:
    write(folder, 1, 1, 3)
    write(folder, 1, 10, 10, "other")
    what = job(folder, table, table_format, maxSegmentsPerTrigger="1")
    done = load(what).run(False)
    assert (done.batches, done.rows, done.segments, done.malformed) == (2, 4, 2, None)
    assert load(what).run(False).rows == 0
    write(folder, 2, 4, 5)
    write(folder, 1, 20, 20, "late")
    assert load(job(folder, table)).run(False).rows == 3, "the table's format is found"
    assert numbers(table, table_format) == [1, 2, 3, 4, 5, 10, 20]
    assert set(read(table, table_format)["queue_manager"].to_pylist()) == {SOURCE}
    figures = done.arrived_to_table.figures()
    assert figures is not None
    assert figures.p50 > 0


def test_a_queue_without_segments_is_told_with_those_that_have_some(folder: Path, table: Path) -> None:
    assert [*job(folder, table, queue="lime1").settings.folders.passed_over()] == []
    write(folder, 1, 1, 1)
    write(folder, 1, 2, 2, "other")
    assert [*job(folder, table, queue="lime1").settings.folders.passed_over()] == [
        f"{folder}: there is no segment of the queue lime1 so far, but of line1, other"
    ]
    assert [*job(folder, table, queue="LINE1").settings.folders.passed_over()] == []


def test_a_segment_that_was_copied_to_the_next_number_is_refused(folder: Path, table: Path) -> None:
    first = write(folder, 1, 1, 2)
    what = job(folder, table)
    assert load(what).run(False).rows == 2
    copy = folder / first.name.replace("-0000000001-", "-0000000002-")
    shutil.copy(first, copy)
    for _ in range(2):
        with pytest.raises(FolderError, match=f"{first.name} and {copy.name} hold the same message, so one was copied"):
            load(what).run(False)
    first.unlink()
    copy.unlink()
    write(folder, 2, 3, 4)
    assert load(what).run(False).rows == 2
    assert numbers(table) == [1, 2, 3, 4]


def test_what_a_table_of_delta_has_lost_when_it_was_restored_comes_again(folder: Path, table: Path) -> None:
    write(folder, 1, 1, 2)
    what = job(folder, table)
    load(what).run(False)
    version = DeltaTable(table).version()
    for serial in (2, 3):
        write(folder, serial, 2 * serial, 2 * serial)
        load(what).run(False)
    write(folder, 1, 10, 10, "later")
    load(what).run(False)
    DeltaTable(table).restore(version)
    assert numbers(table) == [1, 2]
    assert {place.queue: serial for place, serial in serials(str(table)).items()} == {"line1": 1}, "as `prune` asks"
    assert load(what).run(False).rows == 3
    assert load(what).run(False).rows == 0
    assert numbers(table) == [1, 2, 4, 6, 10]
    opened = DeltaTable(table)
    opened.delete("lookup_id = 1")
    opened.restore(opened.version() - 1)  # of which no ingest has changed anything
    assert load(what).run(False).rows == 0
    DeltaTable(table).restore(0)  # before the first batch
    opened = DeltaTable(table)
    opened.alter.set_table_properties({"delta.logRetentionDuration": "interval 30 days"})
    opened.restore(opened.version() - 1)  # to what was restored, and has not been gone on with
    assert load(what).run(False).rows == 5
    assert numbers(table) == [1, 2, 4, 6, 10]
    begun = DeltaTable(table).history()[-1]["timestamp"]
    DeltaTable(table).restore(datetime.datetime.fromtimestamp(begun / 1000 + 0.001, datetime.UTC))
    with pytest.raises(IngestUnusable, match="restored to the state of a time: restore it once more, to a version"):
        load(what).run(False)


def reached(table: Path) -> dict[str, int]:
    """The serial of the last segment of each queue that is in a table."""
    return {place.queue: serial for place, serial in serials(str(table)).items()}


def loaded_in_turns(folder: Path, what: Job, state: Callable[[], Any]) -> Any:
    """Two queues are loaded, then more of both and of a third one. The table's state behind the first load."""
    write(folder, 1, 1, 2)
    write(folder, 1, 10, 10, "other")
    load(what).run(False)
    found = state()
    write(folder, 2, 3, 3)
    for serial in (2, 3):
        write(folder, serial, 9 + serial, 9 + serial, "other")
        load(what).run(False)
    write(folder, 1, 20, 20, "late")
    load(what).run(False)
    return found


@pytest.mark.parametrize("between", ["an ingest of one queue", "others"])
def test_after_a_restore_of_delta_each_queue_goes_on_however_many_commits_later(
    folder: Path, table: Path, between: str
) -> None:
    def others_commit() -> None:
        opened = DeltaTable(table)
        for number in range(101):
            opened.alter.set_table_properties({"delta.logRetentionDuration": f"interval {30 + number} days"})

    what = job(folder, table)
    version = loaded_in_turns(folder, what, lambda: DeltaTable(table).version())
    DeltaTable(table).restore(version)
    assert reached(table) == {"line1": 1, "other": 1}
    if between == "an ingest of one queue":
        assert load(job(folder, table, queue="line1")).run(False).rows == 1
        others_commit()
        assert reached(table) == {"line1": 2, "other": 1}
    else:
        others_commit()
        assert reached(table) == {"line1": 1, "other": 1}
    load(what).run(False)
    assert reached(table) == {"line1": 2, "other": 3, "late": 1}
    assert load(what).run(False).rows == 0
    assert numbers(table) == [1, 2, 3, 10, 11, 12, 20]


@pytest.mark.parametrize("moment", ["create_write_transaction", "update_incremental"])
def test_a_running_ingest_goes_on_from_what_delta_is_restored_to(
    folder: Path, table: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    what = job(folder, table, maxSegmentsPerTrigger="1")
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


def test_what_a_table_of_iceberg_has_lost_when_it_was_rolled_back_comes_again(folder: Path, table: Path) -> None:
    what = job(folder, table, "iceberg")
    snapshots = []
    for serial in (1, 2, 3):
        write(folder, serial, serial, serial)
        assert load(what).run(False).rows == 1
        catalog, name = _catalog(str(table))
        snapshots.append(catalog.load_table(name).metadata.current_snapshot_id)
    with catalog.load_table(name).transaction() as transaction:
        transaction.remove_properties("ordack.snapshot")  # as an ingest of an older version leaves it
    for place in (1, 0):  # and further back, before an ingest has gone on
        catalog.load_table(name).manage_snapshots().rollback_to_snapshot(snapshots[place]).commit()
        assert numbers(table, "iceberg") == list(range(1, place + 2))
        assert list(serials(str(table)).values()) == [place + 1], "as `prune` asks"
    for _ in range(2):
        assert load(what).run(False).rows == 2
        assert load(what).run(False).rows == 0
        assert numbers(table, "iceberg") == [1, 2, 3]
        again = catalog.load_table(name)
        again.manage_snapshots().rollback_to_snapshot(snapshots[0]).commit()


@pytest.mark.parametrize("expired", [False, True])
@pytest.mark.parametrize("between", ["an ingest of one queue", "a delete by others"])
def test_after_a_rollback_of_iceberg_each_queue_goes_on_whoever_commits_first(
    folder: Path, table: Path, between: str, expired: bool
) -> None:
    what = job(folder, table, "iceberg")
    catalog, name = _catalog(str(table))
    first = loaded_in_turns(folder, what, lambda: catalog.load_table(name).metadata.current_snapshot_id)
    assert numbers(table, "iceberg") == [1, 2, 3, 10, 11, 12, 20]
    opened = catalog.load_table(name)
    opened.manage_snapshots().rollback_to_snapshot(first).commit()
    assert reached(table) == {"line1": 1, "other": 1}
    if between == "an ingest of one queue":
        assert load(job(folder, table, "iceberg", queue="line1")).run(False).rows == 1
        assert reached(table) == {"line1": 2, "other": 1}
    else:
        catalog.load_table(name).delete("lookup_id = 1")
        assert reached(table) == {"line1": 1, "other": 1}
    if expired:
        opened = catalog.load_table(name)
        opened.maintenance.expire_snapshots().older_than(datetime.datetime.now(datetime.UTC)).commit()
        assert len(catalog.load_table(name).snapshots()) == 1
    load(what).run(False)
    assert reached(table) == {"line1": 2, "other": 3, "late": 1}
    assert load(what).run(False).rows == 0
    assert numbers(table, "iceberg") == [1, 2, 3, 10, 11, 12, 20][between == "a delete by others" :]


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
def test_others_read_the_table(folder: Path, table: Path, table_format: str) -> None:
    rows = [row(number, body=b'{"t": 1.5}' if number < 3 else b"?") for number in range(1, 5)]
    write_rows(folder, 1, rows)
    what = job(folder, table, table_format)
    decoding(what, "t")
    assert load(what).run(False).malformed == 2
    (table / "part-of-a-batch-that-was-killed.parquet").write_bytes(b"")
    made = read_by_polars(table, table_format)
    if table_format == "delta":
        opened = DeltaTable(table)
        arrow = opened.to_pyarrow_dataset()
        (stats,) = pa.table(opened.get_add_actions(flatten=True)).to_pylist()
        assert (stats["num_records"], stats["min.lookup_id"], stats["max.lookup_id"]) == (4, 1, 4)
        assert (stats["min.arrived"], stats["max.queue"]) == (rows[0]["arrived"], "line1")
    else:
        arrow = read(table, table_format)
    assert made.sort("lookup_id")["t"].to_list() == [1.5, 1.5, None, None]
    found = duckdb.from_arrow(arrow).query("t", "SELECT lookup_id, t, message_key FROM t ORDER BY 1").fetchall()
    assert found == [(number, 1.5 if number < 3 else None, key(number)) for number in range(1, 5)]
    own = read(table, table_format).select(SCHEMA.names).sort_by("lookup_id").to_pylist()
    assert own == [{name: one[name] for name in SCHEMA.names} for one in rows]


@both
def test_of_two_ingests_of_the_same_segments_each_batch_is_taken_once(
    folder: Path, table: Path, table_format: str
) -> None:
    for serial in range(1, 5):
        write(folder, serial, serial, serial)
    what = job(folder, table, table_format, maxSegmentsPerTrigger="2")
    slow, fast = load(what), load(what)
    write_slowly = slow.write

    def behind(parts: list[Part]) -> list[writing.Written]:
        done = write_slowly(parts)
        slow.write = write_slowly
        assert fast.run(False).rows == 4, "the other one is at its end before this one commits"
        return done

    slow.write = behind
    assert slow.run(False).rows == 0
    assert numbers(table, table_format) == [1, 2, 3, 4]
    write(folder, 5, 5, 5)
    assert (slow.run(False).rows, fast.run(False).rows) == (1, 0), "each goes on from what is in the table"
    assert numbers(table, table_format) == [1, 2, 3, 4, 5]


@both
def test_ingests_that_make_the_table_at_the_same_time_share_it(folder: Path, table: Path, table_format: str) -> None:
    write(folder, 1, 1, 1)
    with ThreadPoolExecutor(4) as pool:
        taken = pool.map(lambda _: load(job(folder, table, table_format)).run(False).rows, range(4))
    assert sorted(taken) == [0, 0, 0, 1]
    assert numbers(table, table_format) == [1]


@both
def test_ingests_of_different_queues_and_folders_share_a_table(
    folder: Path, table: Path, tmp_path: Path, table_format: str
) -> None:
    other = make_folder(tmp_path / "other", "folder-2", "22222222-2222-2222-2222-222222222222")
    write(folder, 1, 1, 1)
    write(folder, 1, 2, 2, "second")
    write(other, 1, 1, 1)
    jobs = [job(folder, table, table_format, queue="line1"), job(folder, table, table_format, queue="second"),
            job(other, table, table_format)]  # fmt: skip
    loads = [load(one) for one in jobs]  # all have looked at the table before the first one commits
    assert [one.run(False).rows for one in loads] == [1, 1, 1]
    found = read(table, table_format)
    assert sorted(zip(found["queue_manager"].to_pylist(), found["queue"].to_pylist())) == [
        (SOURCE, "line1"), (SOURCE, "second"), ("22222222-2222-2222-2222-222222222222", "line1")]  # fmt: skip


def test_one_ingest_takes_many_folders_also_those_that_appear_later(folder: Path, table: Path, tmp_path: Path) -> None:
    write(folder, 1, 1, 1)
    (tmp_path / "plant-notes").mkdir()
    first = make_folder(tmp_path / "plant-1", "folder-2", "2")
    write(first, 3, 30, 30)  # older ones were deleted before this table was begun
    what = job(folder, table, paths=f'["{folder}", "{tmp_path}/plant-*"]')
    going = load(what)
    assert going.run(False).rows == 2
    second = make_folder(tmp_path / "plant-2", "folder-3", "3")
    write(second, 1, 100, 100)
    assert going.run(False).rows == 1
    write(first, 4, 40, 40)
    write(first, 2, 5, 5, "late")
    with pytest.raises(FolderError, match=r"segment 1 of the queue late is missing in .*plant-1"):
        load(what).run(False)
    write(first, 1, 4, 4, "late")
    assert load(what).run(False).rows == 3
    assert numbers(table) == [1, 4, 5, 30, 40, 100]
    copy = shutil.copytree(first, tmp_path / "plant-3")
    with pytest.raises(FolderError, match=r"plant-3 is a copy of .*plant-1, whose messages it holds, too"):
        load(what).run(False)
    shutil.rmtree(copy)
    first.rename(tmp_path / "plant-moved")
    assert load(what).run(False).rows == 0


@both
def test_where_each_queue_of_a_folder_begins_is_in_the_table_with_its_first_batch(
    folder: Path, table: Path, table_format: str
) -> None:
    for queue in ("line1", "line2"):
        for serial in (3, 4):
            write(folder, serial, serial, serial, queue)
    what = job(folder, table, table_format, maxSegmentsPerTrigger="1")
    assert load(what).batch(None) == 3
    assert load(what).run(False).rows == 3
    write(folder, 1, 1, 1, "line3")
    (folder / "line2-0000000004-4-4.parquet").unlink()
    assert load(what).run(False).rows == 1


@both
def test_a_folder_that_is_deleted_behind_what_was_read_is_gone_on_with(
    folder: Path, table: Path, table_format: str
) -> None:
    path = write(folder, 1, 1, 1)
    assert load(job(folder, table, table_format)).run(False).rows == 1
    path.unlink()
    assert load(job(folder, table)).run(False).rows == 0
    write(folder, 3, 3, 3)
    with pytest.raises(FolderError, match="segment 2 of the queue line1 is missing"):
        load(job(folder, table)).run(False)
    write(folder, 2, 2, 2)
    assert load(job(folder, table)).run(False).rows == 2


@both
def test_a_table_that_begins_behind_deleted_segments_says_so_once(folder: Path, table: Path, table_format: str) -> None:
    write(folder, 3, 5, 6)
    write(folder, 1, 9, 9, "whole")
    told: list[str] = []
    for _ in range(2):
        going = load(job(folder, table, table_format))
        going.warn = told.append
        going.run(False)
        write(folder, 4, 7, 7)
    (text,) = told
    assert text.startswith(f"{folder}: the first segments of line1 were deleted before this ingest")
    assert numbers(table, table_format) == [5, 6, 7, 9]


@both
def test_a_segment_that_was_given_up_is_counted_without_rows(folder: Path, table: Path, table_format: str) -> None:
    """`ordack export --anew` leaves an empty one in the place of one that is lost."""
    pq.write_table(SCHEMA.empty_table(), folder / segments.file_name("line1", 1, 1, 9))
    what = job(folder, table, table_format)
    assert load(what).run(False).segments == 1
    write(folder, 2, 10, 10)
    done = load(what).run(False)
    assert (done.segments, numbers(table, table_format)) == (1, [10])


@both
def test_segments_of_older_versions_get_the_columns_that_they_lack(
    folder: Path, table: Path, monkeypatch: pytest.MonkeyPatch, table_format: str
) -> None:
    for serial, lacking in enumerate((ADDED, {segments.QUEUE_MANAGER}), 1):
        with monkeypatch.context() as older:
            older.setattr(segments, "SCHEMA", pa.schema([field for field in SCHEMA if field.name not in lacking]))
            write(folder, serial, serial, serial)
    load(job(folder, table, table_format)).run(False)
    found = read(table, table_format).select(["queue_manager", "message_key"]).to_pylist()
    assert found == [{"queue_manager": SOURCE, "message_key": key(number)} for number in (1, 2)]


@both
def test_a_table_is_divided_by_day_and_queue_manager(
    folder: Path, table: Path, tmp_path: Path, table_format: str
) -> None:
    other = make_folder(tmp_path / "segments-2", "folder-2", "22222222")
    days = [row(1)["arrived"] + DAY * number for number in (0, 0, 1, 0)]
    write_rows(folder, 1, [row(number, arrived=day) for number, day in enumerate(days)])
    write(other, 1, 5, 5)
    what = job(folder, table, table_format, paths=f'["{folder}", "{other}"]', by=("day", "queue_manager"))
    assert load(what).run(False).rows == 5
    write(other, 2, 6, 6)
    assert load(job(other, table)).run(False).rows == 1, "it stays divided"
    assert numbers(table, table_format) == [0, 1, 2, 3, 5, 6]
    if table_format == "delta":
        assert set(read(table)["day"].to_pylist()) == {days[0].date(), days[2].date()}
        actions = pa.table(DeltaTable(table).get_add_actions(flatten=True)).to_pylist()
        made = [(one["partition.day"], one["partition.queue_manager"], one["num_records"]) for one in actions]
        first, second = days[0].date(), days[2].date()
        assert sorted(made) == [(first, SOURCE, 3), (first, "22222222", 1), (first, "22222222", 1), (second, SOURCE, 1)]
    else:
        catalog, name = _catalog(str(table))
        found = catalog.load_table(name)
        assert [field.name for field in found.spec().fields] == ["day", "queue_manager"]
        kept = found.scan(row_filter=f"arrived >= '{(days[2]).isoformat()}'")
        assert len([*kept.plan_files()]) == 1
        assert kept.to_arrow()["lookup_id"].to_pylist() == [2]
    with pytest.raises(IngestUnusable, match="is divided by day, queue_manager, not by queue: leave --partition-by"):
        load(job(folder, table, by=("queue",)))


@both
def test_others_read_by_what_a_table_is_divided(folder: Path, table: Path, table_format: str) -> None:
    """polars takes the values for Delta Lake from the paths of files, where queues may have any name."""
    names = ["line1", "Line1", "a/b=c%d", "x y:", "ü", "..", "2026-01-01"]
    for number, name in enumerate(names):
        write(folder, 1, number, number, name)
        write(folder, 2, len(names) + number, len(names) + number, name)
    load(job(folder, table, table_format, by=("queue", "day"), maxSegmentsPerTrigger=str(len(names)))).run(False)
    for files in (2 * len(names), len(names)):
        rows = read_by_polars(table, table_format).sort("lookup_id")
        assert rows["queue"].to_list() == names * 2
        assert rows.get_column("day", default=rows["arrived"].dt.date()).to_list() == [BEGIN.date()] * len(names) * 2
        there = pieces(str(table))
        assert (len(there), all(Path(piece.path).exists() for piece in there)) == (files, True)
        assert [piece.in_table is not None for piece in there] == [files > len(names)] * files
        optimize(str(table))


def test_polars_reads_a_table_below_a_folder_with_any_name(folder: Path, tmp_path: Path) -> None:
    """By the path alone it does not find the files: it takes the name as the URL has it."""
    write(folder, 1, 1, 3)
    for name in ("a b", "ä#20"):
        load(job(folder, tmp_path / name / "table")).run(False)
        table = DeltaTable(tmp_path / name / "table")
        assert polars.scan_pyarrow_dataset(table.to_pyarrow_dataset()).collect()["lookup_id"].to_list() == [1, 2, 3]


@both
def test_columns_are_added_when_that_is_asked_for(folder: Path, table: Path, table_format: str) -> None:
    write(folder, 1, 1, 1, body=b'{"t": 1, "u": 2}')
    load(job(folder, table, table_format)).run(False)
    write(folder, 2, 2, 2, body=b'{"t": 1, "u": 2}')
    what = job(folder, table)
    decoding(what, "t", "u")
    with pytest.raises(IngestUnusable, match=r"has no column t, u, _malformed: .* Say --add-columns to add"):
        load(what)
    what.add_columns = True
    before = load(job(folder, table))
    assert load(what).run(False).rows == 1
    write(folder, 3, 3, 3, body=b'{"t": 1, "u": 2}')
    assert load(job(folder, table)).run(False).rows == 1, "the table says what is decoded"
    found = read(table, table_format).sort_by("lookup_id").select(["t", "u"]).to_pylist()
    assert found == [{"t": None, "u": None}, {"t": 1.0, "u": 2.0}, {"t": 1.0, "u": 2.0}]
    write(folder, 4, 4, 4)
    with pytest.raises(IngestError, match="another ingest has added columns"):
        before.run(False)
    for names, said in (
        (("T", "u"), "it lacks t double"),
        (("t",), "it lacks u double"),
        (("t", "u", "U"), "column U"),
    ):
        decoding(what, *names)
        with pytest.raises((IngestUnusable, SchemaError), match=said):
            load(what)


@both
def test_an_ingest_that_has_a_table_open_to_which_columns_are_added_writes_no_rows_without_them(
    folder: Path, table: Path, table_format: str
) -> None:
    """Whenever that is."""
    write(folder, 1, 1, 1, body=b'{"t": 1}')
    going, what = load(job(folder, table, table_format)), job(folder, table, table_format, add_columns=True)
    decoding(what, "t")
    write_files = going.write

    def meanwhile(parts: list[Part]) -> list[writing.Written]:
        done = write_files(parts)
        load(what)
        return done

    going.write = meanwhile
    with pytest.raises(IngestError, match="another ingest has added columns"):
        going.run(False)
    assert load(job(folder, table)).run(False).rows == 1
    assert read(table, table_format)["t"].to_pylist() == [1.0]
    going.write = write_files
    write(folder, 2, 2, 2)
    with pytest.raises(IngestError, match="another ingest has added columns"):
        going.run(False)


@both
def test_a_table_with_decoded_columns_that_does_not_say_how_is_refused_without_a_schema(
    folder: Path, table: Path, table_format: str
) -> None:
    write(folder, 1, 1, 1, body=b'{"t": 1}')
    what = job(folder, table, table_format)
    decoding(what, "t")
    load(what).run(False)
    if table_format == "delta":
        DeltaTable(table).alter.set_table_properties({DECODING: "?"}, raise_if_not_exists=False)
    else:
        catalog, name = _catalog(str(table))
        with catalog.load_table(name).transaction() as transaction:
            transaction.set_properties({DECODING: "?"})
    with pytest.raises(IngestUnusable, match="does not say how bodies are decoded"):
        load(job(folder, table))


def test_a_table_of_its_owner_is_gone_on_with_and_keeps_how_bodies_are_decoded(folder: Path, table: Path) -> None:
    DeltaTable.create(table, pa.schema([SCHEMA.field("lookup_id"), pa.field(MALFORMED, pa.string()),
                                        pa.field("t", pa.float64()), pa.field("site", pa.string())]))  # fmt: skip
    write(folder, 1, 1, 1, body=b'{"t": 1}')
    with pytest.raises(IngestUnusable, match="it decodes bodies, and has no property"):
        load(job(folder, table))
    what = job(folder, table)
    decoding(what, "t")
    load(what).run(False)
    write(folder, 2, 2, 2, body=b'{"t": 2}')
    assert load(job(folder, table)).run(False).rows == 1
    assert sorted(read(table)["t"].to_pylist()) == [1.0, 2.0]


def test_a_table_without_a_column_that_is_new_of_messages_is_gone_on_with(folder: Path, table: Path) -> None:
    """One whose owner made it, with the columns that are wanted."""
    kept = ["lookup_id", "body", "queue"]
    write(folder, 1, 1, 2)
    DeltaTable.create(table, pa.schema([SCHEMA.field(name) for name in kept]), partition_by=["queue"])
    assert load(job(folder, table)).run(False).rows == 2
    write(folder, 2, 3, 3)
    assert load(job(folder, table)).run(False).rows == 1, "again"
    assert [*read(table).column_names] == kept


@both
def test_what_does_not_belong_together_is_refused(folder: Path, table: Path, table_format: str) -> None:
    write(folder, 1, 1, 1)
    table.mkdir()
    (table / "readme.txt").touch()
    with pytest.raises(IngestUnusable, match="table holds files that no ingest has written: name a new folder"):
        load(job(folder, table, table_format))
    with pytest.raises(IngestUnusable, match="holds files that no ingest has written"):
        load(job(folder, folder, table_format))
    with pytest.raises(IngestUnusable, match="is no folder: name a new one"):
        load(job(folder, table / "readme.txt", table_format))
    assert sorted(path.name for path in table.iterdir()) == ["readme.txt"]
    (table / "readme.txt").unlink()
    with pytest.raises(OptionError, match=r"not divided by 'hour' \(--partition-by\): say day, queue_manager, queue"):
        job(folder, table, table_format, by=("hour",))
    load(job(folder, table, table_format)).run(False)
    with pytest.raises(IngestUnusable, match=f"is a table of the format {table_format}, and goes on as that: leave"):
        job(folder, table, "iceberg" if table_format == "delta" else "delta")


def test_a_table_that_others_have_written_is_refused_until_its_owner_agrees(folder: Path, table: Path) -> None:
    write(folder, 1, 2, 2)
    rows = pa.Table.from_pylist([row(1)], SCHEMA)
    write_deltalake(str(table), rows)
    with pytest.raises(IngestUnusable, match="holds rows, and does not say which segments they are from"):
        load(job(folder, table))
    DeltaTable(table).alter.set_table_properties({PROPERTY: "1"}, raise_if_not_exists=False)
    assert load(job(folder, table)).run(False).rows == 1
    assert numbers(table) == [1, 2]


@pytest.mark.parametrize(
    ("schema", "configuration", "said"),
    [
        ([pa.field("lookup_id", pa.string())], {}, r"lookup_id long, which is string there"),
        ([pa.field("lookup_id", pa.int64()), pa.field("site", pa.string(), False)], {}, "site, which may not be null"),
        ([pa.field("LOOKUP_ID", pa.int64())], {}, "lookup_id, which is LOOKUP_ID there"),
        ([pa.field("site", pa.string())], {}, "none of its own is among them"),
        ([pa.field("lookup_id", pa.int64())], {"delta.setTransactionRetentionDuration": "interval 1 days"},
         "has delta.setTransactionRetentionDuration, which an ingest does not heed"),
    ],
)  # fmt: skip
def test_a_table_of_somebody_elses_schema_is_refused_with_what_does_not_fit(
    folder: Path, table: Path, schema: list[pa.Field], configuration: dict[str, str | None], said: str
) -> None:
    DeltaTable.create(table, pa.schema(schema), configuration=configuration)
    write(folder, 1, 1, 1)
    with pytest.raises(IngestUnusable, match=said):
        load(job(folder, table))


@pytest.mark.parametrize("place", ["other/table", "renamed"])
@pytest.mark.parametrize("move", [shutil.move, shutil.copytree])
def test_a_table_of_iceberg_in_another_folder_is_refused(
    folder: Path, table: Path, tmp_path: Path, place: str, move: Callable[[Path, Path], object]
) -> None:
    """Delta's goes on there. An ingest of Iceberg began a new table in it, or wrote to that which was copied."""
    write(folder, 1, 1, 2)
    load(job(folder, table, "iceberg")).run(False)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    assert load(job(folder, link / "table")).run(False).rows == 0, "it is the same one"
    other = tmp_path / place
    other.parent.mkdir(exist_ok=True)
    move(table, other)
    write(folder, 2, 3, 3)
    for use in (lambda: load(job(folder, other)), lambda: optimize(str(other)), lambda: serials(str(other))):
        with pytest.raises(IngestUnusable, match=f"{other} cannot be read there: it was made in another folder"):
            use()
    if table.exists():
        shutil.rmtree(other)
    else:
        shutil.move(other, table)
    assert load(job(folder, table)).run(False).rows == 1
    assert numbers(table, "iceberg") == [1, 2, 3]


def test_names_that_delta_rs_or_pyiceberg_cannot_take_are_refused(folder: Path, tmp_path: Path) -> None:
    write(folder, 1, 1, 1)
    with pytest.raises(IngestUnusable, match="has a % in its path"):
        load(job(folder, tmp_path / "50%25"))
    with pytest.raises(
        IngestUnusable, match=r"neither CATALOG\.NAMESPACE\.TABLE nor a folder of this machine without %"
    ):
        load(job(folder, tmp_path / "a#b", "iceberg"))
    with pytest.raises(IngestUnusable, match=r"pyiceberg knows no catalog lake: .* PYICEBERG_CATALOG__LAKE__URI"):
        load(job(folder, "lake.plant.readings", "iceberg"))
    for name, table_format in (("plant 1's ü?#", "delta"), ("plant 1's ü", "iceberg")):
        assert load(job(folder, tmp_path / name, table_format)).run(False).rows == 1
        assert numbers(tmp_path / name, table_format) == [1]


def test_a_table_in_a_catalog_that_the_user_configures(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, 1, 1, 2)
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/lake.sqlite")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", f"file://{tmp_path}/warehouse")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # it has read the environment when it was imported
    made = load(job(folder, "lake.plant.readings", "iceberg"))
    assert (made.run(False).rows, made.run(False).rows) == (2, 0)
    assert load_catalog("lake").load_table("plant.readings").scan().to_arrow().num_rows == 2
    assert [*serials("lake.plant.readings").values()] == [1]


@both
def test_a_commit_that_failed_is_made_again_if_nobody_else_was_faster(
    folder: Path, table: Path, table_format: str
) -> None:
    """Somebody else changes the table between a look and a commit."""
    write(folder, 1, 1, 1)
    going = load(job(folder, table, table_format))
    write_first = going.write

    def disturbed(parts: list[Part]) -> list[writing.Written]:
        lake: Any = load(job(folder, table)).table
        if isinstance(lake, Delta):
            lake._table.alter.set_table_properties({"delta.appendOnly": "true"})
        else:
            assert isinstance(lake, Iceberg)
            with lake._table.transaction() as transaction:
                transaction.set_properties({"owner": "somebody"})
        return write_first(parts)

    going.write = disturbed
    assert going.run(False).rows == 1
    assert numbers(table, table_format) == [1]


@pytest.fixture
def disk() -> Iterator[Path]:
    """A file system of 4 MiB."""
    folder = Path(tempfile.mkdtemp(prefix="ordack-disk-"))
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this process cannot mount a file system: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
    folder.rmdir()


def test_a_commit_that_fails_says_why(folder: Path, disk: Path) -> None:
    """delta-rs has the reason in a line of its own. There is room for the rows' file, and for no other."""
    write(folder, 1, 1, 1)
    load(job(folder, disk / "table")).run(False)
    write(folder, 2, 2, 2)
    going = load(job(folder, disk / "table"))
    status = os.statvfs(disk)
    for files in (status.f_files - status.f_ffree + 1, status.f_files):
        subprocess.run(["mount", "-o", f"remount,nr_inodes={files}", str(disk)], check=True)
        if files != status.f_files:
            with pytest.raises(IngestError, match=r"cannot commit to the table .*: No space left on device"):
                going.run(False)
    assert going.run(False).rows == 1
    assert numbers(disk / "table") == [1, 2]


def test_what_is_in_a_table_that_may_only_be_read_is_told(folder: Path, disk: Path) -> None:
    """reconcile and `prune --dry-run` need to write to no table. Some serials are in a checkpoint, some behind it."""
    write(folder, 1, 1, 1)
    write(folder, 1, 7, 7, "line2")
    load(job(folder, disk / "table")).run(False)
    for serial in (2, 3):
        write(folder, serial, serial, serial)
    assert load(job(folder, disk / "table", maxSegmentsPerTrigger="1")).run(False).batches == 2
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    told = {place.queue: serial for place, serial in serials(str(disk / "table")).items()}
    assert told == {"line1": 3, "line2": 1}


@both
def test_a_full_disk_ends_the_ingest_and_when_there_is_room_it_goes_on(
    folder: Path, disk: Path, table_format: str
) -> None:
    table = disk / "table"
    write(folder, 1, 1, 1)
    load(job(folder, table, table_format)).run(False)
    write_rows(folder, 2, [row(number, body=os.urandom(50_000)) for number in range(2, 32)])
    going = load(job(folder, table))
    filler = disk / "filler"
    filler.write_bytes(bytes(3_000_000))
    with pytest.raises(writing.WriteError, match=r"cannot write to the table .*No space left on device"):
        going.run(False)
    filler.unlink()
    assert len([*table.rglob("part-*.parquet")]) == 1, "what was written for nothing is deleted"
    write_first = going.write

    def filled(parts: list[Part]) -> list[writing.Written]:
        done = write_first(parts)
        with contextlib.suppress(OSError), filler.open("wb", 0) as file:
            while True:
                file.write(bytes(512))
        return done

    going.write = filled
    with pytest.raises(IngestError, match="cannot commit to the table"):
        going.run(False)
    filler.unlink()
    assert load(job(folder, table)).run(False).rows == 30
    assert numbers(table, table_format) == [*range(1, 32)]


def test_an_ingest_that_is_killed_at_any_step_puts_each_row_into_the_table_once() -> None:
    """`make pipeline` has the long form. In a process that has not used delta-rs: that does not survive a fork."""
    command = [sys.executable, "-m", "tests.pipeline.lake_kills", "--kills=5", "--format=delta", "--format=iceberg"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False,
                          env=os.environ | {"PYTHONPATH": f"{ROOT}/host:{ROOT}/firmware"})  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("left", ["nothing", "an empty file"])
def test_a_loss_of_power_before_the_newest_commit_was_on_disk_takes_rows_and_serials_alike(
    folder: Path, table: Path, left: str
) -> None:
    write(folder, 1, 1, 1)
    load(job(folder, table)).run(False)
    write(folder, 2, 2, 2)
    load(job(folder, table)).run(False)
    newest = max((table / "_delta_log").glob("*.json"))
    newest.unlink()
    if left != "nothing":
        newest.touch()
    assert numbers(table) == [1]
    write(folder, 3, 3, 3)
    assert load(job(folder, table)).run(False).rows == 2
    assert numbers(table) == [1, 2, 3]


def _away(path: Path) -> None:
    path.rename(path.with_name("away"))


def _unmounted(path: Path) -> None:
    _away(path)
    path.mkdir()


def _back(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)
    path.with_name("away").rename(path)


@both
@pytest.mark.parametrize("leave", [_away, _unmounted])
@pytest.mark.parametrize("what", ["segments", "segments while they are read", "table", "table while files are written"])
def test_a_continuous_ingest_waits_for_a_file_system_that_is_not_mounted(
    folder: Path, table: Path, table_format: str, what: str, leave: Callable[[Path], None]
) -> None:
    place = folder if what.startswith("segments") else table
    write(folder, 1, 1, 1)
    going = load(job(folder, table, table_format))
    told: list[str] = []
    looks: list[str] = []
    done: list[int] = []
    write_files = going.write

    def written(parts: list[Part]) -> list[writing.Written]:
        if done and "while" in what and not told:
            if place == table:  # it goes behind that
                write_files(parts)
            leave(place)
            if place == table:
                return []
        return write_files(parts)

    def tell(batch: Batch) -> None:
        done.append(batch.rows)
        if len(done) == 1:
            write(folder, 2, 2, 3)
            if "while" not in what:
                leave(place)

    def warn(text: str) -> None:
        told.append(text)
        if len(told) == 1:
            looks.clear()
            _back(place)

    going.write, going.tell, going.warn, going.looked = written, tell, warn, lambda: looks.append("look")
    going.run(True, 0.001, lambda: len(done) == 2 and len(told) == 2)
    assert done == [1, 2]
    assert numbers(table, table_format) == [1, 2, 3]
    assert "Until it is there again, nothing is loaded" in told[0]
    assert told[1:] == ["it is there again: the ingest goes on"]
    assert looks


def test_an_ingest_that_is_not_continuous_does_not_wait(folder: Path, table: Path) -> None:
    write(folder, 1, 1, 1)
    going = load(job(folder, table))
    _unmounted(folder)
    with pytest.raises(FolderMissing, match="is no folder of segments"):
        going.run(False)
    with pytest.raises(FolderMissing, match="is no folder of segments"):
        job(folder, table)


def _empty(log: Path) -> None:
    _newest(log).write_bytes(b"")


def _torn(log: Path) -> None:
    _newest(log).write_bytes(_newest(log).read_bytes()[:-100])


def _gone(log: Path) -> None:
    _newest(log).unlink()


def _all_empty(log: Path) -> None:
    for path in (*log.glob("*.checkpoint.parquet"), log / "_last_checkpoint"):
        path.write_bytes(b"")


def _newest(log: Path) -> Path:
    return max(log.glob("*.checkpoint.parquet"))


@pytest.mark.parametrize("use", ["ingest", "optimize", "serials", "pieces", "decoding"])
@pytest.mark.parametrize("damage", [_empty, _torn, _gone, _all_empty])
def test_a_checkpoint_of_delta_that_a_loss_of_power_has_damaged_is_done_without(
    folder: Path, table: Path, damage: Callable[[Path], None], use: str
) -> None:
    """Every commit is whole."""
    for serial in (1, 2, 3):
        write(folder, serial, serial, serial)
    load(job(folder, table, maxSegmentsPerTrigger="1")).run(False)
    DeltaTable(table).create_checkpoint()
    damage(table / "_delta_log")
    write(folder, 4, 4, 4)
    if use == "ingest":
        assert load(job(folder, table)).run(False).rows == 1
    elif use == "optimize":
        assert optimize(str(table)).files_removed == 3
    elif use == "serials":
        assert [*serials(str(table)).values()] == [3]
    elif use == "pieces":
        assert len(pieces(str(table))) == 3
    else:
        assert job(folder, table).rows().decoded == []
    assert numbers(table)[:3] == [1, 2, 3], "others read it again, too"


def test_a_damaged_checkpoint_of_delta_without_the_commits_before_it_is_told(folder: Path, table: Path) -> None:
    for serial in (1, 2, 3):
        write(folder, serial, serial, serial)
    load(job(folder, table, maxSegmentsPerTrigger="1")).run(False)
    DeltaTable(table).create_checkpoint()
    log = table / "_delta_log"
    newest = _newest(log)
    kept = newest.read_bytes()
    for path in (*log.glob("*0[012].json"), *(set(log.glob("*.checkpoint.parquet")) - {newest})):
        path.unlink()
    newest.write_bytes(kept[:100])
    for look in (lambda: load(job(folder, table)), lambda: serials(str(table)), lambda: optimize(str(table))):
        with pytest.raises(IngestUnusable, match=f"{newest.name} is damaged"):
            look()
        assert newest.read_bytes() == kept[:100], "as it was"


def test_a_checkpoint_of_delta_is_on_disk_before_the_commits_in_it_are_deleted(
    folder: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, 1, 1, 1)
    load(job(folder, table)).run(False)
    DeltaTable(table).alter.set_table_properties({"delta.checkpointInterval": "2"})
    steps: list[str] = []
    for name in ("create_checkpoint", "cleanup_metadata"):
        real = getattr(DeltaTable, name)

        def told(opened: DeltaTable, name: str = name, real: Any = real) -> None:
            steps.append(name)
            real(opened)

        monkeypatch.setattr(DeltaTable, name, told)
    real_sync = delta_files.sync
    monkeypatch.setattr(delta_files, "sync", lambda path: (steps.append(Path(path).name), real_sync(path)))
    going = load(job(folder, table, maxSegmentsPerTrigger="1"))
    for serial in (2, 3, 4):
        write(folder, serial, serial, serial)
    steps.clear()
    log = table / "_delta_log"
    there = {*log.iterdir()}
    going.run(False)
    made = [name for name in steps if name.endswith(".checkpoint.parquet")]
    assert sorted(made) == sorted(path.name for path in {*log.glob("*.checkpoint.parquet")} - there)
    for number, step in enumerate(steps):
        if step == "cleanup_metadata":
            before = steps[:number]
            begun = len(before) - 1 - before[::-1].index("create_checkpoint")
            assert {*before[begun + 1 :]} == {made[0], "_last_checkpoint", "_delta_log"}
    assert "cleanup_metadata" in steps


def test_rows_of_many_small_segments_share_row_groups(folder: Path, table: Path) -> None:
    for number in range(1, 21):
        write(folder, 1, number, number, f"line{number}")
    load(job(folder, table)).run(False)
    (file,) = table.glob("part-*")
    assert pq.read_metadata(file).num_row_groups == 1
    found = pq.read_table(file)["queue"].to_pylist()
    assert found == sorted(found)
