"""The stages of an audit that many tasks do: each byte of the captures is read once.

1. A task reads a range of a file (capture.byte_ranges): the frames of port 1801 go on, packed, by connection.
2. They go where their connection is replayed: those of one queue manager to one task (shares), whatever its address.
3. Streams of which several tasks know something are replayed again, in one task, from the same packed frames.

The frames lie in Spark's own storage on the disks of its executors, or without Spark in this process's memory.
"""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from ordack.audit.partial import Partial
from ordack.audit.replay import BATCH_ROWS, COLUMNS, Auditor
from ordack.audit.shares import Connections
from ordack.capture import byte_ranges, columnar
from ordack.capture.byte_ranges import Piece, Places, Range, Report
from ordack.capture.merging import WINDOW_NS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RANGE_BYTES = 128 << 20
_ROUTED = pa.schema(
    [
        ("part", pa.int64()),
        ("low", pa.int64()),
        ("connections", pa.binary()),
        ("packed", pa.binary()),
        ("report", pa.binary()),
    ]
)
_ROUTED_SQL = "part long, low long, connections binary, packed binary, report binary"
_DIVIDED = pa.schema(
    [("low", pa.int64()), ("part", pa.int64()), ("share", pa.int32()), ("size", pa.int64()), ("packed", pa.binary())]
)
_DIVIDED_SQL = "low long, part long, share int, size long, packed binary"
_PARTIAL_SQL = "size long, packed binary"
_BATCH_BYTES = 4 << 20  # of packed frames that go to Spark at once
_ATTEMPTS = 1 << 12  # of a range at most
_CHUNK_BITS = 20  # of the number of a range's chunk, behind that of the range


class Share(NamedTuple):
    """What a task needs to replay: all parts of the capture, and their numbers among the routed rows. strays: other
    tasks know more."""

    paths: Sequence[str]
    start: int
    parts: Sequence[columnar.Gathered]
    numbers: Sequence[int]
    strays: bool

    def lows(self) -> dict[int, int]:
        """Of each routed row, what no frame of it has a moment before."""
        return {number: part.before - WINDOW_NS for number, part in zip(self.numbers, self.parts, strict=True)}


def whole(files: Sequence[str], start: int, progress: Callable[[int], None] | None = None) -> Partial:
    """The audit of these files, in order, in one go. OSError if a file cannot be read."""
    batches = columnar.batches(files, rows=BATCH_ROWS, columns=COLUMNS, ordered=True)
    return _fed(Auditor(start), batches, progress)


def _fed(auditor: Auditor, batches: Iterable[columnar.Batch], progress: Callable[[int], None] | None) -> Partial:
    for batch in batches:
        auditor.feed(batch)
        if progress is not None:
            progress(batch.rows)
    return auditor.partial()


def replay(
    share: Share, pieces: Iterable[tuple[int, int, int, bytes]], progress: Callable[[int], None] | None
) -> Partial:
    """pieces: low, number of a part and chunk of it, size, packed frames; in order."""
    places = {row: place for place, row in enumerate(share.numbers)}
    chunks = (
        columnar.Chunk(low, places[part >> _CHUNK_BITS], byte_ranges.unpacked(size, packed))
        for low, part, size, packed in pieces
    )
    batches = columnar.gathered(share.paths, share.parts, chunks, BATCH_ROWS, COLUMNS)
    return _fed(Auditor(share.start, share.strays), batches, progress)


class Stages:
    """The audit of these files, in order, in so many shares. Has to be closed. OSError if a file cannot be read."""

    def __init__(
        self,
        files: Sequence[str],
        start: int,
        shares: int,
        range_bytes: int | None = None,
        spark: SparkSession | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._files, self._start, self._shares, self._progress = list(files), start, shares, progress
        self._storage: _Here | _InSpark = _Here() if spark is None else _InSpark(spark)
        self.bytes_read = 0
        self._route(range_bytes)

    def __enter__(self) -> Stages:
        return self

    def __exit__(self, *_: object) -> None:
        self._storage.close()

    def _route(self, range_bytes: int | None) -> None:
        most = range_bytes or RANGE_BYTES
        ranges = byte_ranges.ranges_of(self._files, self._shares, most)
        room = byte_ranges.range_bytes(sum(task.size for task in ranges), self._shares, most)
        todo = dict(enumerate(ranges))
        reports: dict[int, Report] = {}
        numbers: dict[int, int] = {}
        held: list[int] = []
        attempt = 0
        while todo:
            rows = {number * _ATTEMPTS + attempt: task for number, task in todo.items()}
            for row, report in self._storage.route(rows, room).items():
                numbers[row // _ATTEMPTS] = row
                reports[row // _ATTEMPTS] = report
                self.bytes_read += report.bytes_read
            todo, held = byte_ranges.again(ranges, reports)
            attempt += 1
        self._parts = byte_ranges.parts_of(ranges, reports, held)
        self._numbers = [numbers[number] for number in held]
        self._connections = Connections(reports[number] for number in held)

    def _replay(self, places: Places, shares: int) -> list[Partial]:
        share = Share(self._files, self._start, self._parts, self._numbers, shares > 1)
        return self._storage.replay(share, places, shares, self._progress)

    def partials(self) -> list[Partial]:
        """What each task has found out. A task without frames has none."""
        return self._replay(self._connections.shares(self._shares), self._shares)

    def again(self, pairs: set[int]) -> Partial:
        """What one task finds out about the connections of these pairs of hosts."""
        return self._replay(self._connections.between(pairs), 1)[0]


class _Here:
    """Does all in this process."""

    def __init__(self) -> None:
        self._pieces: dict[int, list[Piece]] = {}

    def route(self, tasks: Mapping[int, Range], room: int) -> dict[int, Report]:  # noqa: ARG002 - as _InSpark
        reports = {}
        for row, task in tasks.items():
            self._pieces[row] = []
            for item in byte_ranges.route(task):
                if isinstance(item, Report):
                    reports[row] = item
                else:
                    self._pieces[row].append(item)
        return reports

    def replay(
        self, share: Share, places: Places, shares: int, progress: Callable[[int], None] | None
    ) -> list[Partial]:
        found: list[list[tuple[int, int, int, bytes]]] = [[] for _ in range(shares)]
        lows = share.lows()
        for row in share.numbers:
            for piece in self._pieces[row]:
                for place, size, packed in byte_ranges.divided(piece.connections, piece.packed, places):
                    low = max(piece.low, lows[row])
                    found[place].append((low, row << _CHUNK_BITS | piece.chunk, size, packed))
        return [replay(share, sorted(pieces, key=itemgetter(0, 1)), progress) for pieces in found]

    def close(self) -> None:
        self._pieces.clear()


class _InSpark:
    """Does all in Spark's tasks; only what they have found out comes here."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._rows: list[DataFrame] = []

    def route(self, tasks: Mapping[int, Range], room: int) -> dict[int, Report]:
        from pyspark.storagelevel import StorageLevel

        bundles = _bundles(tasks, room)
        rows = self._spark.range(0, len(bundles), 1, len(bundles)).mapInArrow(
            partial(_route_task, bundles), _ROUTED_SQL
        )
        rows = rows.persist(StorageLevel.DISK_ONLY)
        self._rows.append(rows)
        found = rows.where("report is not null").select("part", "report").collect()
        return {row["part"]: pickle.loads(row["report"]) for row in found}

    def replay(
        self,
        share: Share,
        places: Places,
        shares: int,
        progress: Callable[[int], None] | None,  # noqa: ARG002 - tasks tell when they are done
    ) -> list[Partial]:
        from pyspark.sql import functions

        rows = self._rows[0]
        for more in self._rows[1:]:
            rows = rows.union(more)
        if len(self._rows) > 1:
            rows = rows.where(functions.expr(f"part >> {_CHUNK_BITS}").isin(list(share.numbers)))
        rows = rows.where("report is null").select("part", "low", "connections", "packed")
        rows = rows.mapInArrow(partial(_divide_task, places, share.lows()), _DIVIDED_SQL)
        rows = rows.repartitionById(shares, functions.col("share")).select("low", "part", "size", "packed")
        rows = rows.sortWithinPartitions("low", "part")
        return list(_partials(rows.mapInArrow(partial(_replay_task, share), _PARTIAL_SQL).collect()))

    def close(self) -> None:
        for rows in self._rows:
            rows.unpersist()


def _bundles(tasks: Mapping[int, Range], room: int) -> list[list[tuple[int, Range]]]:
    """Small files share a task, up to so many bytes."""
    bundles: list[list[tuple[int, Range]]] = []
    left = 0
    for row, task in tasks.items():
        if not bundles or left < task.size:
            bundles.append([])
            left = room
        bundles[-1].append((row, task))
        left -= task.size
    return bundles


def _route_task(
    bundles: Sequence[Sequence[tuple[int, Range]]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    gc.freeze()  # what is imported; pyspark collects garbage after each task, which took five times as long as the task

    def rows() -> Iterator[tuple[Any, ...]]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for row, task in bundles[number]:
                    for item in byte_ranges.route(task):
                        if isinstance(item, Report):
                            yield row, None, None, None, pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
                        else:
                            part = row << _CHUNK_BITS | item.chunk
                            yield part, item.low, item.connections.tobytes(), item.packed, None

    yield from _batches(rows(), _ROUTED)


def _divide_task(
    places: Places, lows: Mapping[int, int], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    gc.freeze()  # as above

    def rows() -> Iterator[tuple[Any, ...]]:
        for batch in batches:
            for part, low, connections, packed in zip(*(column.to_pylist() for column in batch.columns)):
                known = np.frombuffer(connections, np.uint64).reshape(-1, 2)
                for share, size, own in byte_ranges.divided(known, packed, places):
                    yield max(low, lows[part >> _CHUNK_BITS]), part, share, size, own

    yield from _batches(rows(), _DIVIDED)


def _batches(rows: Iterable[tuple[Any, ...]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    waiting: list[tuple[Any, ...]] = []
    size = 0
    for row in rows:
        waiting.append(row)
        size += sum(len(value) for value in row if isinstance(value, bytes))
        if size > _BATCH_BYTES:
            yield _batch(waiting, schema)
            waiting, size = [], 0
    if waiting:
        yield _batch(waiting, schema)


def _batch(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.array(column, field.type) for column, field in zip(zip(*rows), schema)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _replay_task(share: Share, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    gc.freeze()  # as above
    rows = (
        row
        for batch in batches
        for row in zip(*(batch.column(name).to_pylist() for name in ("low", "part", "size", "packed")))
    )
    yield from _packed(replay(share, rows, None))


def _packed(found: Partial) -> Iterator[pa.RecordBatch]:
    """In pieces: of what comes to the driver, Spark's JVM holds several copies of a row. size: with the last one."""
    data = pickle.dumps(found, pickle.HIGHEST_PROTOCOL)
    packed = pa.Codec("zstd", 1).compress(data, asbytes=True)
    for begin in range(0, len(packed), _BATCH_BYTES):
        end = begin + _BATCH_BYTES
        yield pa.RecordBatch.from_pydict(
            {"size": [0 if end < len(packed) else len(data)], "packed": [packed[begin:end]]}
        )


def _partials(rows: Iterable[Any]) -> Iterator[Partial]:
    pieces: list[bytes] = []
    for row in rows:
        pieces.append(row["packed"])
        if row["size"]:
            data = pa.Codec("zstd").decompress(b"".join(pieces), row["size"])
            pieces.clear()
            yield pickle.loads(data)
