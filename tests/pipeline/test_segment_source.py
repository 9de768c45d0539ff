"""The data source "ordack": batch and stream over folders of segments."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ordack.pipeline import columns, folders, segments
from ordack.pipeline.bodies import SchemaError
from ordack.pipeline.folders import Folders, Part
from ordack.pipeline.options import OptionError
from ordack.pipeline.segment_source import SegmentSource, SegmentStreamReader
from ordack.pipeline.segments import SCHEMA, FolderError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles
from pyspark.sql.types import StringType, StructField, StructType

from tests.support.segment_files import BEGIN, make_folder, row, write, write_rows

OWN = from_arrow_schema(SCHEMA)


def stream(folder: Path, **options: str) -> SegmentStreamReader:
    """The driver's half of a stream, without Spark."""
    reader = SegmentSource({"path": str(folder), **options}).streamReader(OWN)
    assert isinstance(reader, SegmentStreamReader)
    return reader


def numbers(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [number for batch in batches for number in batch.column("lookup_id").to_pylist()]


def read(reader: SegmentStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    return [number for part in reader.partitions(start, end) for number in numbers(reader.read(part))]


def queues(offset: dict[str, Any], folder: str = "folder-1") -> dict[str, int]:
    found: dict[str, int] = offset["folders"][folder]
    return found


def everything() -> ReadAllAvailable:
    return ReadAllAvailable()


# Without Spark: what the driver and the tasks do.


def test_available_now_ends_with_what_was_there_when_it_began(folder: Path) -> None:
    write(folder, 1, 1, 1)
    reader = stream(folder)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    write(folder, 2, 2, 2)
    write(folder, 1, 1, 1, "new")
    end = reader.latestOffset(start, everything())
    assert queues(end) == {"line1": 1}
    assert reader.latestOffset(end, everything()) == end


def test_available_now_goes_no_way_back_if_old_segments_were_deleted(folder: Path) -> None:
    path = write(folder, 1, 1, 1)
    reader = stream(folder)
    offset = reader.latestOffset(reader.initialOffset(), everything())
    path.unlink()
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(offset, everything()) == offset
    write(folder, 2, 2, 2)
    assert queues(stream(folder).latestOffset(offset, everything())) == {"line1": 2}


def test_a_queue_begins_with_its_oldest_segment_for_stream_and_batch(folder: Path) -> None:
    write(folder, 7, 70, 71)
    write(folder, 8, 80, 80)
    reader = stream(folder)
    start = reader.initialOffset()
    assert queues(start) == {"line1": 6}
    assert read(reader, start, reader.latestOffset(start, everything())) == [70, 71, 80]
    assert batch_read(folder) == [70, 71, 80]


def test_a_segment_that_was_deleted_unread_fails_the_stream_and_the_batch(folder: Path) -> None:
    paths = [write(folder, serial, serial, serial) for serial in (1, 2, 3)]
    reader = stream(folder)
    start = reader.initialOffset()
    end = reader.latestOffset(start, everything())
    paths[1].unlink()
    for attempt in (lambda: reader.latestOffset(start, everything()), lambda: reader.partitions(start, end),
                    lambda: batch_read(folder)):  # fmt: skip
        with pytest.raises(
            FolderError,
            match=r"segment 2 of the queue line1 is missing in .*: the file line1-0{9}2-\*"
            r"\.parquet was deleted.* lookup ids above 1 and below 3, .* Put the",
        ):
            attempt()
    with pytest.raises(FolderError, match=r"line1-0{9}2-2-2\.parquet was .* with the lookup ids 2 to 2, are in no"):
        numbers(reader.read(Part([str(paths[1])])))
    paths[2].unlink()
    with pytest.raises(FolderError, match="segment 2 of the queue line1 is missing"):
        reader.partitions(start, end)
    write(folder, 2, 2, 2, "late")  # a queue that was not there at the start begins with 1
    with pytest.raises(FolderError, match="segment 1 of the queue late is missing"):
        reader.latestOffset(end, everything())


def test_a_listing_that_missed_a_new_segment_is_not_believed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two segments become visible while the folder is read: the listing may show the later one only."""
    write(folder, 1, 1, 1)
    write(folder, 2, 2, 2)
    whole = segments.names
    calls = 0

    def racing(place: Path) -> list[str]:
        nonlocal calls
        calls += 1
        found = sorted(whole(place))
        return [name for name in found if "-0000000001-" not in name] if calls % 2 else found

    monkeypatch.setattr(segments, "names", racing)
    reader = stream(folder)
    start = reader.initialOffset()
    assert queues(start) == {"line1": 0}
    end = reader.latestOffset(start, everything())
    assert queues(end) == {"line1": 2}
    assert read(reader, start, end) == [1, 2]


def test_a_segment_that_is_there_twice_or_went_between_looks_is_noticed(folder: Path) -> None:
    paths = [write(folder, serial, serial, serial) for serial in (1, 2, 3)]
    source = Folders([str(folder)])
    assert [one.serial for one in source.waiting({})] == [1, 2, 3]
    write(folder, 4, 4, 4)
    other = write(folder, 1, 1, 1, "other")
    assert [one.serial for one in source.waiting({})] == [1, 2, 3, 4, 1]
    other.unlink()
    twin = paths[1].rename(folder / segments.file_name("line1", 1, 2, 2))
    with pytest.raises(FolderError, match="segment 2 of the queue line1 is missing"):
        source.waiting({})
    assert source.last() == {folders.Place("folder-1", "line1"): 4}
    twin.rename(paths[1])
    assert [one.serial for one in source.waiting({})] == [1, 2, 3, 4]


def test_a_folder_that_appears_later_is_read_from_its_oldest_segment(folder: Path, tmp_path: Path) -> None:
    write(folder, 1, 1, 1)
    reader = stream(tmp_path / "seg*")
    start = reader.latestOffset(reader.initialOffset(), everything())
    other = make_folder(tmp_path / "segments-2", "folder-2")
    path = write(other, 5, 50, 50)
    write(other, 6, 60, 60)
    begun = reader.latestOffset(start, everything())
    assert queues(begun, "folder-2") == {"line1": 4}, "where it begins is written down before it is read"
    assert read(stream(tmp_path / "seg*"), start, begun) == []
    end = reader.latestOffset(begun, everything())
    assert read(reader, begun, end) == [50, 60]
    path.unlink()
    with pytest.raises(FolderError, match=r"segment 5 of the queue line1 is missing in .*segments-2"):
        read(reader, begun, end)
    other.rename(tmp_path / "elsewhere")
    with pytest.raises(FolderError, match=r"the folder with the identifier folder-2 in its .* is not among .*seg"):
        reader.partitions(begun, end)
    assert queues(reader.latestOffset(end, everything()), "folder-2") == {"line1": 6}, "it is not forgotten"


def test_a_stream_does_not_go_on_with_another_folder(folder: Path, tmp_path: Path) -> None:
    write(folder, 1, 1, 1)
    reader = stream(folder)
    end = reader.latestOffset(reader.initialOffset(), everything())
    other = make_folder(tmp_path / "other", "folder-2")
    write(other, 1, 1, 1)
    with pytest.raises(FolderError, match=r"other is not the folder that this stream has read before.*new table"):
        stream(other).latestOffset(end, everything())
    moved = folder.rename(tmp_path / "moved")
    assert stream(moved).latestOffset(end, everything()) == end


@settings(max_examples=30)
@given(st.integers(0, 1 << 32))
def test_whatever_restarts_and_bounds_there_are_each_message_is_read_once(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    dice = random.Random(seed)
    folder = make_folder(tmp_path_factory.mktemp("model") / "segments")
    written: dict[str, int] = {}
    lookup = 0
    reader = stream(folder)
    offset = reader.initialOffset()
    got: list[int] = []
    for _ in range(dice.randrange(1, 12)):
        for _ in range(dice.randrange(3)):
            queue = dice.choice(["a", "b-1", "_c", "d ü%"])
            written[queue] = written.get(queue, 0) + 1
            lookup += 1
            write(folder, written[queue], lookup, lookup, queue)
        if dice.random() < 0.3:
            reader = stream(folder)
        if dice.random() < 0.2:
            reader.prepareForTriggerAvailableNow()
        end = reader.latestOffset(offset, ReadMaxFiles(dice.randrange(1, 4)) if dice.random() < 0.5 else everything())
        if dice.random() < 0.7:  # else the driver is killed before the offset is on disk
            planner = stream(folder)
            for _ in range(dice.randrange(1, 3)):  # the batch is done, perhaps twice
                batch = read(planner, offset, end)
            got += batch
            offset = end
    reader = stream(folder)
    got += read(reader, offset, reader.latestOffset(offset, everything()))
    assert sorted(got) == list(range(1, lookup + 1))


def batch_read(folder: Path, **options: str) -> list[int]:
    reader = SegmentSource({"path": str(folder), **options}).reader(OWN)
    return [number for part in reader.partitions() for number in numbers(reader.read(part))]  # type: ignore[arg-type]


@pytest.fixture
def two_queues(folder: Path) -> Path:
    for serial in range(3):
        rows = [row(number, in_doubt=number % 2 == 0) for number in range(10 * serial, 10 * serial + 10)]
        write_rows(folder, serial + 1, rows, row_group_size=5)
    write(folder, 1, 0, 4, "Line2")
    return folder


def test_a_segment_is_read_as_it_was_written_or_called_damaged(folder: Path) -> None:
    rows = [row(number, body=random.randbytes(30)) for number in range(40)]
    path = write_rows(folder, 1, rows)
    path.write_bytes(columns.parquet(pa.Table.from_pylist(rows, SCHEMA)))
    content = path.read_bytes()
    reader = SegmentSource({"path": str(folder)}).reader(OWN)
    [part] = reader.partitions()

    def read() -> pa.Table:
        return pa.Table.from_batches(reader.read(part), SCHEMA)  # type: ignore[arg-type]

    whole = read()
    broken = [content[:at] for at in range(0, len(content), 1000)]
    for at in random.sample(range(len(content)), 500):
        changed = bytearray(content)
        changed[at] ^= 1 << random.randrange(8)
        broken.append(bytes(changed))
    named = rf"the segment {re.escape(str(path))} is damaged: \S"
    told = []
    for one in broken:
        path.write_bytes(one)
        try:
            assert read().equals(whole)
        except FolderError as error:
            told.append(str(error))
    assert all(re.match(named, text) for text in told)
    path.unlink()
    path.mkdir()
    with pytest.raises(FolderError, match=f"cannot read the segment {re.escape(str(path))}: Is a directory"):
        read()


def test_the_option_queue_leaves_segments_of_others_unopened(two_queues: Path) -> None:
    for path in two_queues.glob("line1-*"):
        path.write_bytes(b"not Parquet")
    assert batch_read(two_queues, queue="LINE2") == [0, 1, 2, 3, 4]
    with pytest.raises(FolderError, match=r"segment .*line1-0000000001-0-9.parquet is damaged"):
        batch_read(two_queues)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "say which folder of segments to read"),
        ({"path": "nowhere"}, "there is no folder .*/nowhere: `ordack export` makes it"),
        ({"path": "."}, "is no folder of segments: it has no _ordack.json"),
        ({"path": "segments", "queues": "a"}, "there is no option 'queues'; there are path, paths, queue"),
        ({"path": "segm*ts?"}, "no folder of segments matches .*segm.*: `ordack export` makes them"),
        ({"paths": "segments"}, "option paths is 'segments'; it is a list of texts in JSON"),
        ({"paths": '["segments", "nowhere"]'}, "there is no folder .*/nowhere"),
        ({"path": "segments", "format": "xml"}, r"option format \(--bodies\) is 'xml'; bodies are json or cbor"),
        ({"path": "segments", "maxSegmentsPerTrigger": "0"}, "maxSegmentsPerTrigger is '0'; it is a number from 1"),
        ({"path": "segments", "maxSegmentsPerTrigger": "many"}, "is 'many'"),
    ],
)
def test_options_that_make_no_sense_are_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], said: str
) -> None:
    monkeypatch.chdir(folder.parent)
    with pytest.raises((OptionError, FolderError), match=said):
        SegmentSource(options).schema()


def test_a_column_that_is_there_already_asks_for_a_prefix(folder: Path) -> None:
    schema = StructType([StructField("Label", StringType()), StructField("_malformed", StringType()), *OWN.fields])
    with pytest.raises(SchemaError, match=r"column Label of the schema is there already: .* `body_Label`"):
        SegmentSource({"path": str(folder), "schema": "Label STRING"}).reader(schema)
    with pytest.raises(OptionError, match="those of the bodies belong in the option schema"):
        SegmentSource({"path": str(folder)}).reader(StructType([StructField("a", StringType())]))


# Through Spark.


def load(spark: SparkSession, folder: Path, **options: str) -> DataFrame:
    return spark.read.format("ordack").options(**options).load(str(folder))


def test_spark_sees_every_property_in_every_type(spark: SparkSession, two_queues: Path) -> None:
    frame = load(spark, two_queues)
    assert frame.columns == SCHEMA.names
    rows = frame.where("queue = 'line1' and arrived < timestamp '2026-01-01 00:00:03Z'").orderBy("lookup_id").collect()
    assert [one.lookup_id for one in rows] == [0, 1, 2]
    expected = row(2, in_doubt=True)
    found = rows[2].asDict()
    for name in ("arrived", "sent_time"):
        assert found.pop(name) == expected.pop(name).replace(tzinfo=None)
    assert found == expected
    assert load(spark, two_queues).count() == 35
    assert load(spark, two_queues).where("queue in ('line1', 'Line2') and label like '%4'").count() == 4


def test_a_frame_that_was_filtered_has_all_its_rows_afterwards(spark: SparkSession, two_queues: Path) -> None:
    frame = load(spark, two_queues)
    frame.createOrReplaceTempView("read_twice")
    for few, count in (("queue = 'Line2'", 5), ("lookup_id > 27", 2), ("queue = 'none'", 0)):
        assert frame.where(few).count() == count
        assert frame.count() == 35
        assert spark.sql(f"SELECT * FROM read_twice WHERE {few}").count() == count
        assert spark.sql("SELECT count(*) FROM read_twice").first() == (35,)


def test_bodies_become_columns_and_malformed_ones_a_reason(spark: SparkSession, folder: Path) -> None:
    bodies = [b'{"t": 21.5, "at": "2026-01-01T00:00:00Z", "tags": ["a"], "label": {"x": 1}}', b'{"t": "warm"}', b""]
    write_rows(folder, 1, [row(number, body=body) for number, body in enumerate(bodies)])
    schema = "b_t DOUBLE, b_at TIMESTAMP, b_tags ARRAY<STRING>, b_label STRUCT<x: INT>"
    frame = load(spark, folder, schema=schema, prefix="b_")
    assert frame.columns == ["b_t", "b_at", "b_tags", "b_label", "_malformed", *SCHEMA.names]
    rows = frame.orderBy("lookup_id").select("body", "b_t", "b_at", "b_tags", "b_label.x", "_malformed").collect()
    assert [tuple(one) for one in rows] == [
        (bodies[0], 21.5, BEGIN.replace(tzinfo=None), ["a"], 1, None),
        (bodies[1], None, None, None, None, 'b_t: "warm" is a string, the column is DOUBLE'),
        (bodies[2], None, None, None, None, "no JSON: the body is empty"),
    ]
