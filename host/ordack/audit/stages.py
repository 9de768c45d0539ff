"""An audit in Spark tasks. Each capture file is read once.

1. A task reads files and packs frames of port 1801 by connection.
2. Connections are divided among tasks. One task gets all connections of a board, from any address.
3. If several tasks have data on one stream, one task replays all connections.

Frames lie in Spark's storage on the executors' disks.
"""

from __future__ import annotations

import gc
import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from _mqqb import ffi, lib
from numpy.typing import NDArray

from ordack.audit.replay import BATCH_ROWS, COLUMNS, Auditor
from ordack.audit.reports import OF_NUMBERS, STRAY, Partial
from ordack.capture.columnar import HEAD_BYTES, Chunk, Damage, Decoder, Gathered, Routed, Router

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FRAMES = 1 << 18  # frames held before packing
_ROUTED_SQL = "part long, low long, connections binary, packed binary, report binary"
_DIVIDED_SQL = "low long, part long, share int, size long, packed binary"
_PARTIAL_SQL = "size long, packed binary"
_BATCH_BYTES = 4 << 20  # of packed frames sent to Spark at once
_PIECE_BYTES = 4 << 20  # of frames packed together, unless one connection has more
_PIECE_BITS = 20  # bits of a piece's number, below the file's number


class Report(NamedTuple):
    """Findings about a file. connections: rows of key and bytes. managers: rows of key and two queue managers."""

    read: Gathered
    connections: NDArray[np.uint64]
    managers: NDArray[np.uint64]


class Places(NamedTuple):
    """Sorted keys of connections, and the share of each connection."""

    keys: NDArray[np.uint64]
    shares: NDArray[np.int64]


def partials(spark: SparkSession, files: Sequence[str], start: int, shares: int) -> list[Partial]:
    """Audit files in Spark tasks and return their results. No stream is in two results. Raise OSError if a file cannot
    be read."""
    from pyspark.storagelevel import StorageLevel

    tasks = min(len(files), 4 * shares)
    routed = spark.range(0, tasks, 1, tasks).mapInArrow(partial(_route_task, files, tasks), _ROUTED_SQL)
    routed = routed.persist(StorageLevel.DISK_ONLY)
    try:
        found = routed.where("report is not null").select("part", "report").collect()
        reports = [pickle.loads(row["report"]) for row in sorted(found, key=lambda row: row["part"])]
        pieces = routed.where("report is null").select("part", "low", "connections", "packed")

        def replayed(count: int) -> list[Partial]:
            rows = pieces.mapInArrow(partial(_divide_task, places(reports, count)), _DIVIDED_SQL)
            rows = rows.repartitionById(count, "share").select("low", "part", "size", "packed")
            rows = rows.sortWithinPartitions("low", "part")
            read = [report.read for report in reports]
            work = partial(_replay_task, files, start, read, count > 1)
            return list(_partials(rows.mapInArrow(work, _PARTIAL_SQL).collect()))

        told = replayed(shares)
        return replayed(1) if divides_streams(told) else told
    finally:
        routed.unpersist()


# ---- frames of a file, by connection


def route(file: int, path: str) -> Iterator[tuple[int, int, NDArray[np.uint64], bytes] | Report]:
    """Yield pieces of a file (number, first moment, connections as (key, bytes), packed frames), then the report."""
    router = Router(file, path)
    connections, managers = [np.zeros((0, 2), np.uint64)], [np.zeros((0, 3), np.uint64)]
    number, waiting = 0, list[Routed]()
    while not router.ended:
        waiting.append(router.more())
        if not router.ended and sum(map(len, waiting)) < FRAMES:
            continue
        rows = np.concatenate(waiting)
        waiting.clear()
        named = rows[["key", "managers"]][rows["managers"].any(axis=1)]
        told = np.column_stack([named["key"], np.sort(named["managers"], axis=1)])
        managers.append(np.unique(told, axis=0))
        for low, own, packed in _pieces(router, rows):
            connections.append(own)
            yield number, low, own, packed
            number += 1
        router.release(rows[:0])
    c = router.c
    damage = Damage(path, router.damage, int(c.frame), router.latest) if router.damage else None
    span = (router.first, router.latest) if router.latest >= 0 else None
    router.close()
    yield Report(
        Gathered(int(c.frames), int(c.unread), span, damage), np.concatenate(connections), np.concatenate(managers)
    )


def _pieces(router: Router, rows: Routed) -> Iterator[tuple[int, NDArray[np.uint64], bytes]]:
    if not len(rows):
        return
    order = np.argsort(rows["key"], kind="stable").astype(np.uint32)
    keys, begins = np.unique(rows["key"][order], return_index=True)
    sizes = rows["size"][order].astype(np.int64) + HEAD_BYTES
    taken = np.add.reduceat(sizes, begins).astype(np.uint64)
    out = np.empty(int(sizes.sum()), np.uint8)
    lib.mqqb_capture_gather(
        router.file.pointer, ffi.from_buffer("mqqb_capture_routed[]", rows), ffi.from_buffer("uint32_t[]", order),
        len(rows), ffi.from_buffer("uint8_t[]", out),
    )  # fmt: skip
    behind = np.cumsum(taken)
    cuts = np.flatnonzero(np.diff((behind - taken) // np.uint64(_PIECE_BYTES))) + 1
    begin, low = 0, int(rows["moment"].min())
    for own in np.split(np.stack([keys, taken], axis=1), cuts):
        end = begin + int(own[:, 1].sum())
        yield low, own, _packed(out[begin:end])
        begin = end


def _packed(data: Any) -> bytes:
    raw: bytes = pa.Codec("lz4_raw").compress(data, asbytes=True)
    return raw


def _unpacked(size: int, data: bytes) -> bytes:
    raw: bytes = pa.Codec("lz4_raw").decompress(data, size, asbytes=True)
    return raw


# ---- division of connections among tasks


def places(reports: Iterable[Report], count: int) -> Places:
    """Divide the connections into `count` shares.

    A connection belongs to its queue manager with fewer peers: to the board, not to the server of all boards. All
    connections of that queue manager get one share.
    """
    told = [(report.connections, report.managers) for report in reports]
    connections, managers = map(np.concatenate, zip(*told))
    keys, where = np.unique(connections[:, 0], return_inverse=True)
    sizes = np.bincount(where, connections[:, 1], len(keys)).astype(np.int64)
    homes, home_of = np.unique(_homes(keys, managers), return_inverse=True)
    weights = np.bincount(home_of, sizes, len(homes))
    loads, share_of = [0.0] * count, np.zeros(len(homes), np.int64)
    for home in np.lexsort((homes, -weights)).tolist():
        share = loads.index(min(loads))
        loads[share] += weights[home]
        share_of[home] = share
    return Places(keys, share_of[home_of])


def _homes(keys: NDArray[np.uint64], managers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the queue manager by which each connection is divided, or its own key if it has none."""
    found, where = np.unique(managers[:, 1:], return_inverse=True)
    one, other = where.reshape(-1, 2).T
    met = np.unique(one << 32 | other)
    others = np.bincount(np.concatenate([met >> 32, met & 0xFFFFFFFF]), minlength=len(found))
    place = np.tile(np.searchsorted(keys, managers[:, 0]), 2)
    manager = np.concatenate([one, other])
    keep = found[manager] != 0
    place, manager = place[keep], manager[keep]
    homes = keys.copy()
    order = np.lexsort((manager, others[manager], place))[::-1]
    homes[place[order]] = found[manager[order]]  # the last assignment wins
    return homes


def divided(connections: NDArray[np.uint64], data: bytes, where: Places) -> Iterator[tuple[int, int, bytes]]:
    """Divide a piece. Yield share, size and packed frames."""
    sizes = connections[:, 1].astype(np.int64)
    shares = where.shares[np.searchsorted(where.keys, connections[:, 0])]
    used = np.unique(shares).tolist()
    if len(used) == 1:
        yield used[0], int(sizes.sum()), data
        return
    raw = memoryview(_unpacked(int(sizes.sum()), data))
    ends = np.cumsum(sizes)
    for share in used:
        own = np.flatnonzero(shares == share)
        found = b"".join(raw[end - size : end] for end, size in zip(ends[own].tolist(), sizes[own].tolist()))
        yield share, len(found), _packed(found)


def divides_streams(found: Sequence[Partial]) -> bool:
    """Test whether several tasks have data on one stream, or gaps of one task may concern another."""
    if len(found) < 2:
        return False
    streams = Counter(key for own in found for key in set(own.streams()))
    if any(count > 1 for count in streams.values()):
        return True
    strays = set().union(*(own.strays for own in found))
    sources = Counter(guid for own in found for guid in own.missed_sources())
    pairs = Counter(hosts for own in found for hosts in own.missed_pairs())
    for own in found:
        certain = own.findings["detail"][own.findings["unknown"] == 0]
        if np.isin(own.findings["detail"], STRAY).any() or (pairs and np.isin(certain, OF_NUMBERS).any()):
            return True  # other tasks may have seen the sequence, or the gap of a capture that makes ends uncertain
        sources_elsewhere = sources - Counter(own.missed_sources())
        pairs_elsewhere = pairs - Counter(own.missed_pairs())
        kept = own.sequences
        source = own.flows["key"]["source"][kept["flow"].astype(np.int64) - 1]
        for code, pair, ordinal, stamp in zip(
            source.tolist(), kept["pair"].tolist(), kept["ordinal"].tolist(), kept["time_stamp"].tolist()
        ):
            guid = own.guids[code]
            if guid in sources_elsewhere or own.pairs[pair // 2] in pairs_elsewhere:
                return True
            if not strays.isdisjoint(((guid, ordinal, stamp), (b"", ordinal, stamp))):
                return True
    return False


# ---- tasks


def _route_task(files: Sequence[str], tasks: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    gc.freeze()  # imports; else pyspark's collection after each task takes 5 times as long as the task

    def rows() -> Iterator[tuple[Any, ...]]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                for file in range(task, len(files), tasks):
                    for item in route(file, files[file]):
                        if isinstance(item, Report):
                            yield file << _PIECE_BITS, None, None, None, pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
                        else:
                            number, low, connections, packed = item
                            yield file << _PIECE_BITS | number, low, connections.tobytes(), packed, None

    yield from _batches(rows(), _ROUTED_SQL)


def _divide_task(where: Places, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    gc.freeze()  # as in _route_task

    def rows() -> Iterator[tuple[Any, ...]]:
        for batch in batches:
            for part, low, connections, packed in zip(*(column.to_pylist() for column in batch.columns)):
                known = np.frombuffer(connections, np.uint64).reshape(-1, 2)
                for share, size, own in divided(known, packed, where):
                    yield low, part, share, size, own

    yield from _batches(rows(), _DIVIDED_SQL)


def _batches(rows: Iterable[tuple[Any, ...]], columns: str) -> Iterator[pa.RecordBatch]:
    """columns: names and types in Spark's form."""
    types = {"long": pa.int64(), "int": pa.int32(), "binary": pa.binary()}
    fields = [pa.field(name, types[kind]) for name, kind in (column.split() for column in columns.split(", "))]
    waiting: list[tuple[Any, ...]] = []
    size = 0

    def batch() -> pa.RecordBatch:
        arrays = [pa.array(values, field.type) for values, field in zip(zip(*waiting), fields)]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    for row in rows:
        waiting.append(row)
        size += sum(len(value) for value in row if isinstance(value, bytes))
        if size > _BATCH_BYTES:
            yield batch()
            waiting, size = [], 0
    if waiting:
        yield batch()


def _replay_task(
    files: Sequence[str], start: int, read: Sequence[Gathered], strays: bool, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """strays: other tasks have further data."""
    gc.freeze()  # as in _route_task
    chunks = (
        Chunk(low, part >> _PIECE_BITS, _unpacked(size, packed))
        for batch in batches
        for low, part, size, packed in zip(
            *(batch.column(name).to_pylist() for name in ("low", "part", "size", "packed"))
        )
    )
    auditor = Auditor(start, strays)
    auditor.take(Decoder(files).gathered(read, chunks, BATCH_ROWS, COLUMNS))
    # Split, because Spark's JVM holds several copies of a row for the driver. The last row has the size.
    data = pickle.dumps(auditor.partial(), pickle.HIGHEST_PROTOCOL)
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
