"""Tables of Delta Lake and Iceberg: each row once, many writers, what is refused, and how others read them.

Without Spark, but for its types: what tasks do is done here. test_ingest.py has the way through Spark.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from ordack.pipeline import columns, segments
from ordack.pipeline.iceberg import _catalog
from ordack.pipeline.lake import MALFORMED, PROPERTY, IngestUnusable
from ordack.pipeline.prune import serials
from ordack.pipeline.segments import SCHEMA, FolderError, read_segment
from pyiceberg.catalog import load_catalog
from pyiceberg.transforms import DayTransform
from pyiceberg.utils.config import Config

from tests.pipeline.lake import both, decoding, job, load, numbers, read, read_by_polars
from tests.support.segment_files import key, make_folder, row, write, write_rows


def test_queue_without_segments_is_reported_with_existing_queues(folder: Path, table: Path) -> None:
    assert [*job(folder, table, queue="lime1").folders.passed_over()] == []
    write(folder, 1, 1, 1)
    write(folder, 1, 2, 2, "other")
    assert [*job(folder, table, queue="lime1").folders.passed_over()] == [
        f"{folder}: there is no segment of the queue lime1 so far, but of line1, other"
    ]
    assert [*job(folder, table, queue="LINE1").folders.passed_over()] == []


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
def test_two_ingests_of_same_segments_write_each_batch_once(folder: Path, table: Path, table_format: str) -> None:
    for serial in range(1, 5):
        write(folder, serial, serial, serial)
    what = job(folder, table, table_format, segments_max=2)
    slow, fast = load(what), load(what)
    read_slowly = slow.read

    def behind(*given: Any) -> pa.Table:
        done = read_slowly(*given)
        slow.read = read_slowly
        assert fast.run(False).rows == 4, "the other one is at its end before this one commits"
        return done

    slow.read = behind
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


def test_ingest_reads_many_folders_and_later_ones(folder: Path, table: Path, tmp_path: Path) -> None:
    write(folder, 1, 1, 1)
    (tmp_path / "plant-notes").mkdir()
    first = make_folder(tmp_path / "plant-1", "folder-2", "2")
    write(first, 3, 30, 30)  # older ones were deleted before this table was begun
    what = job([folder, f"{tmp_path}/plant-*"], table)
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
def test_ingest_continues_after_read_segments_are_deleted(folder: Path, table: Path, table_format: str) -> None:
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
def test_ingest_warns_once_about_deleted_first_segments(folder: Path, table: Path, table_format: str) -> None:
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
    """`ordack table export --anew` leaves an empty one in the place of one that is lost."""
    pq.write_table(SCHEMA.empty_table(), folder / segments.file_name("line1", 1, 1, 9))
    what = job(folder, table, table_format)
    assert load(what).run(False).segments == 1
    write(folder, 2, 10, 10)
    done = load(what).run(False)
    assert (done.segments, numbers(table, table_format)) == (1, [10])


@both
def test_a_table_that_its_owner_has_divided_is_gone_on_with(folder: Path, table: Path, table_format: str) -> None:
    """polars takes the values for Delta Lake from the paths of files, where queues may have any name."""
    names = ["line1", "Line1", "a/b=c%d", "x y:", "ü", "..", "2026-01-01"]
    for number, name in enumerate(names):
        write(folder, 1, number, number, name)
        write(folder, 2, len(names) + number, len(names) + number, name)
    if table_format == "delta":
        columns = pa.schema([field.with_nullable(True) for field in SCHEMA])
        DeltaTable.create(table, columns, partition_by=["queue", "queue_manager"])
    else:
        load(job(make_folder(table.parent / "none"), table, table_format))
        catalog, name = _catalog(str(table))
        with catalog.load_table(name).update_spec() as spec:
            spec.add_identity("queue")
            spec.add_field("arrived", DayTransform(), "day")
    load(job(folder, table, segments_max=len(names))).run(False)
    rows = read_by_polars(table, table_format).sort("lookup_id")
    assert rows["queue"].to_list() == names * 2


@both
def test_a_table_keeps_its_columns(folder: Path, table: Path, table_format: str) -> None:
    write(folder, 1, 1, 1, body=b'{"t": 1, "u": 2}')
    load(job(folder, table, table_format)).run(False)
    what = job(folder, table)
    decoding(what, "t", "u")
    with pytest.raises(IngestUnusable, match=r"it lacks t; it lacks u; it lacks _malformed"):
        load(what)


def test_ingest_appends_to_owner_table_and_keeps_decoding(folder: Path, table: Path) -> None:
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


@both
def test_ingest_refuses_mismatched_folder_and_table(folder: Path, table: Path, table_format: str) -> None:
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
    load(job(folder, table, table_format)).run(False)
    with pytest.raises(IngestUnusable, match=f"is a table of the format {table_format}, and goes on as that: leave"):
        job(folder, table, "iceberg" if table_format == "delta" else "delta")


def test_ingest_refuses_foreign_rows_until_property_is_set(folder: Path, table: Path) -> None:
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
def test_ingest_refuses_table_with_foreign_schema(
    folder: Path, table: Path, schema: list[pa.Field], configuration: dict[str, str | None], said: str
) -> None:
    DeltaTable.create(table, pa.schema(schema), configuration=configuration)
    write(folder, 1, 1, 1)
    with pytest.raises(IngestUnusable, match=said):
        load(job(folder, table))


@pytest.mark.parametrize(("place", "move"), [("other/table", shutil.move), ("renamed", shutil.copytree)])
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
    for use in (lambda: load(job(folder, other)), lambda: serials(str(other))):
        with pytest.raises(IngestUnusable, match=f"{other} cannot be read there: it was made in another folder"):
            use()
    if table.exists():
        shutil.rmtree(other)
    else:
        shutil.move(other, table)
    assert load(job(folder, table)).run(False).rows == 1
    assert numbers(table, "iceberg") == [1, 2, 3]


def test_ingest_refuses_unsupported_table_names(folder: Path, tmp_path: Path) -> None:
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


def test_damaged_segment_reads_correctly_or_is_reported_corrupt(folder: Path) -> None:
    rows = [row(number, body=random.randbytes(30)) for number in range(40)]
    path = write_rows(folder, 1, rows)
    path.write_bytes(columns.parquet(pa.Table.from_pylist(rows, SCHEMA)))
    content = path.read_bytes()
    whole = read_segment(path)
    broken = [content[:at] for at in range(0, len(content), 1000)]
    for at in random.sample(range(len(content)), 500):
        changed = bytearray(content)
        changed[at] ^= 1 << random.randrange(8)
        broken.append(bytes(changed))
    told = []
    for one in broken:
        path.write_bytes(one)
        try:
            assert read_segment(path).equals(whole)
        except FolderError as error:
            told.append(str(error))
    assert all(re.match(rf"the segment {re.escape(str(path))} is damaged: \S", text) for text in told)
    path.unlink()
    path.mkdir()
    with pytest.raises(FolderError, match=f"cannot read the segment {re.escape(str(path))}: Is a directory"):
        read_segment(path)


def test_ingest_continues_after_compact_and_vacuum(folder: Path, table: Path) -> None:
    """As how-to/tables.md has it. Of Iceberg, the procedures of engines do it."""
    for serial in (1, 2, 3):
        write(folder, serial, serial, serial)
    what = job(folder, table, segments_max=1)
    going = load(what)
    going.run(False)
    opened = DeltaTable(table)
    assert opened.optimize.compact()["numFilesRemoved"] == 3
    opened.vacuum(0, dry_run=False, full=True, enforce_retention_duration=False)
    assert len([*table.glob("*.parquet")]) == 1
    write(folder, 4, 4, 4)
    assert (going.run(False).rows, load(what).run(False).rows) == (1, 0)
    assert numbers(table) == [1, 2, 3, 4]
