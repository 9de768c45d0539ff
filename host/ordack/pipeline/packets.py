"""The data source "mqqb": the packets of captures, one row each.

    spark.read.format("mqqb").load("/captures/*.pcapng")

`ordack.pipeline.spark.register` registers it. The path is a file, a pattern or a folder; in a folder, all pcap
and pcapng files are read, whatever their names. All files form one capture, ordered by the frames' times.

| option | meaning |
|---|---|
| `columns` | columns to read, separated by commas: each column costs time even if the query ignores it |
| `partitions` | number of reading tasks; default: one for each 128 MiB of captures, at most 16 |

One task reads all packets between two hosts, or all packets of a connection if few hosts have most of the traffic.
`packet` is the kind of a row: the packet's kind, or

| `packet` | meaning |
|---|---|
| `malformed` | an unreadable packet; `reason` |
| `hole` | `size` bytes of the connection were not captured; the bytes up to the next packet are lost, too |
| `begin` | the connection's SYN was captured |
| `older` | the connection has earlier data that was not captured |
| `foreign` | the connection begins with another protocol, `reason`; its only other row is `end` |
| `end` | the direction ends: `reason`; `size` is that of an incomplete last packet |
| `damage` | this file is damaged, `reason`; frames behind `frame` were not read |
| `unreadable` | in all files, `size` frames have an unsupported link type or truncated headers |

Columns have the names of the protocol's specification. A field that a packet lacks is null.
"""

from __future__ import annotations

import gc
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from _mqqb import lib
from mqqb import guids, problems
from numpy.typing import NDArray
from pyspark.sql import types
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from ordack.capture import columnar, reading
from ordack.capture.columnar import Decoder, PacketColumns, Words
from ordack.config.names import first_of, legible
from ordack.config.paths import AnyPath, NotLocal, each, is_pattern, matching, path_of, total_size
from ordack.pipeline.segments import OptionError

OPTIONS = ("path", "columns", "partitions")
PART_BYTES = 128 << 20  # of captures for each task, unless `partitions` is set
PARTS_MAX = 16  # each task reads all captures, so more tasks mostly read other tasks' packets
NAMED_MAX = 10  # files of a folder that are passed over
BATCH_ROWS = 16384  # columns of a batch fit the processor's L2 cache

KINDS = (
    "malformed", "EstablishConnection", "ConnectionParameters", "SessionAck", "UserMessage", "OrderAck", "FinalAck",
    "hole", "begin", "older", "end", "foreign",
)  # fmt: skip
DAMAGE, UNREADABLE = "damage", "unreadable"
_ENDS = ("closed", "reset", "replaced by a new connection", "end of the capture")
_SCAN_PROBLEMS = {
    lib.MQQB_SCAN_BAD_KIND: ("B-174", "BaseHeader.Flags", "SH is not set in a SessionAck"),
    lib.MQQB_SCAN_BAD_CHAIN: ("B-430", "BaseHeader.PacketSize", "a header, its data or its padding runs past it"),
    lib.MQQB_SCAN_BAD_NAME: ("B-431", "UserHeader", "a direct name does not end at its one and only NUL"),
    lib.MQQB_SCAN_BAD_LABEL: ("B-431", "MessagePropertiesHeader.Label", "does not end at its one and only NUL"),
    lib.MQQB_SCAN_BAD_SOAP: ("wire.md 2.7", "SoapHeader", "wrong section id, or unterminated text"),
    lib.MQQB_SCAN_BAD_LIST: ("wire.md 2.8", "MultiQueueFormatHeader", "wrong id, HeaderSize or ElementCount"),
}


# ---- columns ------------------------------------------------------------------------------------

Mask = NDArray[np.bool_]


class _View:
    """A batch with data shared by its columns: the rows that have a header, as Arrow's validity bits.

    part, parts: number of the task, and number of tasks.
    """

    def __init__(self, batch: PacketColumns, cache: _Texts, part: int, parts: int) -> None:
        self.batch = batch
        self.cache = cache
        self.part, self.parts = part, parts
        self._bits: dict[str, tuple[pa.Buffer | None, int]] = {}

    def bits(self, group: str) -> tuple[pa.Buffer | None, int]:
        """Return the validity of a header's columns, and the number of rows without the header."""
        found = self._bits.get(group)
        if found is None:
            mask = _GROUPS[group][1](self.batch)
            missing = self.batch.rows - int(np.count_nonzero(mask))
            found = (pa.py_buffer(np.packbits(mask, bitorder="little")) if missing else None), missing
            self._bits[group] = found
        return found

    def array(self, kind: pa.DataType, group: str, *buffers: Any) -> pa.Array:
        bits, missing = self.bits(group) if group else (None, 0)
        return pa.Array.from_buffers(kind, self.batch.rows, [bits, *map(pa.py_buffer, buffers)], missing)


def _between(low: int, high: int) -> Callable[[PacketColumns], Mask]:
    span = np.uint32(high - low)
    return lambda batch: (batch["kind"] - np.uint32(low)) <= span


def _has(name: str) -> tuple[tuple[str, ...], Callable[[PacketColumns], Mask]]:
    return (name,), lambda batch: batch[name] != 0


# {header: (capture columns that show the header, test for it)}
_GROUPS: dict[str, tuple[tuple[str, ...], Callable[[PacketColumns], Mask]]] = {
    "packet": (("kind", "total_size"), lambda batch: (batch["kind"] < lib.MQQB_KIND_HOLE) & (batch["total_size"] != 0)),
    "internal": (("kind",), _between(lib.MQQB_KIND_ESTABLISH_CONNECTION, lib.MQQB_KIND_SESSION_ACK)),
    "establish": (("kind",), _between(*[lib.MQQB_KIND_ESTABLISH_CONNECTION] * 2)),
    "parameters": (("kind",), _between(*[lib.MQQB_KIND_CONNECTION_PARAMETERS] * 2)),
    "message": _has("source_offset"),
    "session": _has("session_offset"),
    "transaction": _has("tx_sequence_number"),
    "label": _has("label_offset"),
    "security": (("user_flags",), lambda batch: (batch["user_flags"] & np.uint32(lib.MQQB_USER_SH)) != 0),
    "ack": (("kind",), _between(lib.MQQB_KIND_ORDER_ACK, lib.MQQB_KIND_FINAL_ACK)),
    "final": _has("ack_source_offset"),
}


class _Texts:
    """A decoder's dictionaries as Arrow arrays. Index 0 is null."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._managers = pa.array([None], pa.string())
        self._queues = pa.array([None], pa.string())
        self._senders = pa.array([], pa.string())
        self.paths = pa.array(decoder.paths, pa.string())
        self.kinds = pa.array(KINDS, pa.string())

    def managers(self) -> pa.Array:
        known, count = len(self._managers), self._decoder.queue_managers
        if known <= count:
            texts = [guids.guid_text(self._decoder.queue_manager(code)) for code in range(known, count + 1)]
            self._managers = pa.concat_arrays([self._managers, pa.array(texts, pa.string())])
        return self._managers

    def queues(self) -> pa.Array:
        known, count = len(self._queues), self._decoder.queues
        if known <= count:
            texts = [legible(self._decoder.queue(code).text) for code in range(known, count + 1)]
            self._queues = pa.concat_arrays([self._queues, pa.array(texts, pa.string())])
        return self._queues

    def senders(self) -> pa.Array:
        """Index: 2 * connection + direction."""
        known, count = len(self._senders) // 2, self._decoder.connections
        if known < count:
            texts = [end for number in range(known, count) for end in self._decoder.connection(number).ends]
            self._senders = pa.concat_arrays([self._senders, pa.array(texts, pa.string())])
        return self._senders


Make = Callable[[_View], pa.Array]


class Column(NamedTuple):
    """A column: Spark type, required capture columns, and constructor."""

    name: str
    kind: types.DataType
    needs: tuple[str, ...]
    make: Make


def _number(
    name: str, group: str, source: str, kind: types.DataType, arrow: pa.DataType, made: Callable[[Words], NDArray[Any]]
) -> Column:
    needs = (source or name, *(_GROUPS[group][0] if group else ()))
    return Column(name, kind, needs, lambda view: view.array(arrow, group, made(view.batch[source or name])))


def _int(name: str, group: str) -> Column:
    """A number of at most 31 bits."""
    return _number(name, group, "", types.IntegerType(), pa.int32(), lambda words: words)


def _long(name: str, group: str, source: str = "") -> Column:
    return _number(name, group, source, types.LongType(), pa.int64(), lambda words: words.astype(np.int64))


def _each(make: Callable[[str, str], Column], group: str, names: str) -> list[Column]:
    return [make(name, group) for name in names.split()]


def _seconds(name: str, group: str) -> Column:
    kind = pa.timestamp("us", "UTC")
    return _number(name, group, "", types.TimestampType(), kind, lambda words: words.astype(np.int64) * 1_000_000)


def _guid(name: str) -> Column:
    return Column(name, types.StringType(), (name,), lambda view: _coded(view.batch[name], view.cache.managers))


def _queue(name: str) -> Column:
    return Column(name, types.StringType(), (name,), lambda view: _coded(view.batch[name], view.cache.queues))


def _coded(codes: Words, texts: Callable[[], pa.Array]) -> pa.Array:
    """Most batches have no value in many of these columns."""
    return texts().take(_places(codes)) if codes.any() else pa.nulls(len(codes), pa.string())


def _places(words: NDArray[Any]) -> pa.Array:
    return pa.Array.from_buffers(pa.int32(), len(words), [None, pa.py_buffer(np.ascontiguousarray(words))])


def _kind(view: _View) -> pa.Array:
    return view.cache.kinds.take(_places(view.batch["kind"]))


def _reason_text(kind: int, status: int) -> str:
    if kind == reading.END:
        return _ENDS[status]
    rule, field, reason = _SCAN_PROBLEMS.get(status) or problems.PROBLEMS[status]
    return f"{rule}, {field}: {reason}"


def _reason(view: _View) -> pa.Array:
    kinds, statuses = view.batch["kind"], view.batch["status"]
    rows = np.flatnonzero(np.isin(kinds, (reading.MALFORMED, reading.END, reading.FOREIGN)))
    if not len(rows):
        return pa.nulls(view.batch.rows, pa.string())
    pairs = kinds[rows].astype(np.int64) << 32 | statuses[rows]
    values, places = np.unique(pairs, return_inverse=True)
    texts = [_reason_text(value >> 32, (value & 0xFFFFFFFF ^ 1 << 31) - (1 << 31)) for value in values.tolist()]
    chosen = np.zeros(view.batch.rows, np.int32)
    chosen[rows] = places + 1
    return pa.array([None, *texts], pa.string()).take(_places(chosen))


def _end(name: str, other: int) -> Column:
    def make(view: _View) -> pa.Array:
        batch = view.batch
        return view.cache.senders().take(_places(2 * batch["connection"] + (batch["direction"] ^ np.uint32(other))))

    return Column(name, types.StringType(), ("connection", "direction"), make)


def _connection(view: _View) -> pa.Array:
    """Make the numbers unique across tasks."""
    return view.array(pa.int64(), "", view.batch["connection"].astype(np.int64) * view.parts + view.part)


def _time(view: _View) -> pa.Array:
    return view.array(pa.timestamp("us", "UTC"), "", view.batch.time // 1000)


def _label(view: _View) -> pa.Array:
    batch = view.batch
    assert batch.label_end is not None
    assert batch.label_text is not None
    return view.array(pa.string(), "label", batch.label_end, batch.label_text)


def _correlation(view: _View) -> pa.Array:
    batch = view.batch
    assert batch.correlation_id is not None
    ends = np.arange(0, 20 * batch.rows + 1, 20, dtype=np.int32)
    return view.array(pa.binary(), "message", ends, batch.correlation_id)


_FILE = Column("file", types.StringType(), ("file",), lambda view: view.cache.paths.take(_places(view.batch["file"])))
COLUMNS = (
    _FILE,
    _int("frame", ""),
    Column("time", types.TimestampType(), (), _time),
    Column("connection", types.LongType(), ("connection",), _connection),
    _int("direction", ""),
    _end("sender", 0),
    _end("receiver", 1),
    _long("offset", ""),
    Column("packet", types.StringType(), ("kind",), _kind),
    _long("size", "", "total_size"),
    Column("reason", types.StringType(), ("kind", "status"), _reason),
    _int("base_flags", "packet"),
    _long("time_to_reach_queue", "packet"),
    _int("internal_flags", "internal"),
    *_each(_int, "session", "ack_sequence_number recoverable_msg_ack_seq_number"),
    _long("recoverable_msg_ack_flags", "session"),
    *_each(_int, "session", "user_msg_sequence_number recoverable_msg_sequence_number window_size"),
    *map(_guid, ("source_queue_manager", "queue_manager_address")),
    _long("time_to_be_received", "message"),
    _seconds("sent_time", "message"),
    *_each(_long, "message", "message_id user_flags"),
    *map(_queue, ("destination_queue", "administration_queue", "response_queue")),
    *_each(_long, "transaction", "tx_flags tx_sequence_ordinal tx_sequence_time_stamp"),
    *_each(_long, "transaction", "tx_sequence_number previous_tx_sequence_number"),
    _guid("connector_queue_manager"),
    *_each(_int, "security", "security_flags sender_id_size encryption_key_size signature_size sender_cert_size"),
    _long("provider_info_size", "security"),
    *_each(_int, "message", "properties_flags message_class"),
    Column("correlation_id", types.BinaryType(), ("source_offset",), _correlation),
    *_each(_long, "message", "body_type application_tag"),
    *_each(_int, "message", "body_offset body_size allocation_body_size"),
    *_each(_long, "message", "body_crc privacy_level hash_algorithm encryption_algorithm"),
    _int("extension_size", "message"),
    Column("label", types.StringType(), ("label_offset",), _label),
    *_each(_long, "ack", "ack_tx_sequence_ordinal ack_tx_sequence_time_stamp"),
    *_each(_long, "ack", "ack_tx_sequence_number ack_previous_tx_sequence_number"),
    _guid("ack_source"),
    _long("ack_message_id", "final"),
    *map(_guid, ("client_guid", "server_guid")),
    _long("time_stamp", "establish"),
    _int("operating_system", "establish"),
    *_each(_long, "parameters", "recoverable_ack_timeout ack_timeout"),
    _int("parameters_window_size", "parameters"),
)
_BY_NAME = {column.name: column for column in COLUMNS}


# ---- batches of rows ----------------------------------------------------------------------------


def _damage_rows(decoder: Decoder, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    told: list[dict[str, Any]] = [
        {"file": damage.path, "frame": damage.frame, "packet": DAMAGE, "reason": damage.text}
        for damage in decoder.damages
    ]
    if decoder.unread:
        told.append({"packet": UNREADABLE, "size": decoder.unread})
    for said in told:
        values = [pa.array([said.get(field.name)], field.type) for field in schema]
        yield pa.RecordBatch.from_arrays(values, schema=schema)


def arrow_batches(part: Part, columns: Sequence[Column], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task."""
    names = {column.name for column in columns}
    needs = tuple(dict.fromkeys(["kind", *(need for column in columns for need in column.needs)]))
    decoder = Decoder(part.paths, part.number, part.of)
    cache = _Texts(decoder)
    wanted = {"labels": "label" in names, "correlations": "correlation_id" in names}
    for batch in decoder.batches(BATCH_ROWS, needs, **wanted):
        view = _View(batch, cache, part.number, part.of)
        yield pa.RecordBatch.from_arrays([column.make(view) for column in columns], schema=schema)
    if part.number == 0:  # all tasks know the damages; one reports them
        yield from _damage_rows(decoder, schema)


# ---- the data source ----------------------------------------------------------------------------


@dataclass
class Part(InputPartition):  # type: ignore[misc, unused-ignore]
    """The share of one task: some connections of all files."""

    paths: list[str]
    number: int
    of: int

    def __init__(self, paths: list[str], number: int, of: int) -> None:
        super().__init__(None)
        self.paths, self.number, self.of = paths, number, of


def _is_capture(path: str) -> bool:
    try:
        return columnar.is_capture(path)
    except OSError as error:
        raise OptionError(f"cannot read the capture {path}: {error.strerror}; mend that, or leave it out") from None


def find_files(path: str, tell: Callable[[str], None] = lambda _: None) -> list[str]:
    """Return the captures at a path, pattern or folder, here or in a bucket. Raise OptionError if there are none.

    tell: receives a message about files ignored in a folder.
    """
    try:
        where = path_of(path)
        found = _in_folder(where, tell) if where.is_dir() else _like(path, where)
    except NotLocal as error:
        raise OptionError(str(error)) from None
    except OSError as error:
        raise OptionError(f"cannot read {error.filename}: {error.strerror}") from None
    if not found:
        raise OptionError(f"there are no pcap or pcapng files at {path}")
    return [str(path_of(file).absolute()) for file in found]  # workers may have another current folder


def _in_folder(folder: AnyPath, tell: Callable[[str], None]) -> list[str]:
    entries: list[AnyPath] = sorted(folder.iterdir())
    visible = [str(entry) for entry in entries if entry.is_file() and not entry.name.startswith(".")]
    found = [file for file, is_one in zip(visible, each(_is_capture, visible), strict=True) if is_one]
    known = set(found)
    others = [entry.name for entry in entries if str(entry) not in known]
    if others:
        tell(
            f"passed over in {folder}: {first_of(others, NAMED_MAX)} (no pcap or pcapng file, compressed, "
            "hidden, or a folder)"
        )
    return found


def _like(path: str, where: AnyPath) -> list[str]:
    found = matching(path) if is_pattern(path) else [where]
    for file in found:
        if not stat.S_ISREG(file.stat().st_mode):
            raise OptionError(f"{file} is no file: name captures")
    names = [str(file) for file in found]
    for name, is_one in zip(names, each(_is_capture, names), strict=True):
        if not is_one:
            raise OptionError(f"{name} is neither a pcap nor a pcapng file; unpack a compressed capture first")
    return names


def _columns(options: Mapping[str, str]) -> list[Column]:
    wanted = options.get("columns")
    if wanted is None:
        return list(COLUMNS)
    names = [name.strip() for name in wanted.split(",")]
    for name in names:
        if name not in _BY_NAME:
            raise OptionError(f"option columns: there is no column {name!r}; there are {', '.join(_BY_NAME)}")
    if len(set(names)) < len(names):
        raise OptionError(f"option columns is {wanted!r}: each column can be there once")
    return [_BY_NAME[name] for name in names]


def _partitions(options: Mapping[str, str], paths: Sequence[str]) -> int:
    """Divide by the captures' size: the planner does not know how many tasks a cluster runs at once."""
    text = options.get("partitions")
    if text is None:
        return max(1, min(PARTS_MAX, total_size(paths) // PART_BYTES))
    if not text.isdecimal() or int(text) < 1:
        raise OptionError(f"option partitions is {text!r}; it is a number from 1")
    return int(text)


class PacketSource(DataSource):
    """The data source "mqqb". See the module docstring."""

    @classmethod
    def name(cls) -> str:
        return "mqqb"

    def _options(self) -> dict[str, str]:
        names = {name.lower(): name for name in OPTIONS}
        for name in self.options:
            if name.lower() not in names:
                raise OptionError(f"there is no option {name.lower()!r}; there are {', '.join(OPTIONS)}")
        return {names[name.lower()]: value for name, value in self.options.items()}

    def schema(self) -> types.StructType:
        return types.StructType([types.StructField(column.name, column.kind) for column in _columns(self._options())])

    def reader(self, schema: types.StructType) -> DataSourceReader:
        """Return the reader of the files that the path means now."""
        options = self._options()
        if not options.get("path"):
            raise OptionError('say which captures to read: .load("/captures/*.pcap")')
        paths = find_files(options["path"])
        return PacketReader(paths, _partitions(options, paths), schema)


class PacketReader(DataSourceReader):
    """Reads the packets of captures in `count` tasks."""

    def __init__(self, paths: list[str], count: int, schema: types.StructType) -> None:
        self._paths = paths
        self._count = count
        self._names = schema.names
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> Sequence[InputPartition]:
        gc.freeze()  # imports; else pyspark's collection after each plan and task takes 20 ms
        paths = columnar.in_order(self._paths)
        return [Part(paths, number, self._count) for number in range(self._count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        gc.freeze()
        return arrow_batches(partition, [_BY_NAME[name] for name in self._names], self._schema)
