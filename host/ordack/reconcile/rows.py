"""What was sent, exported and loaded, as data frames of Spark with one vocabulary.

A message is known by its message key (segments.MESSAGE_KEY), which a packet tells, too. Nothing is collected here but
the names of files.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError
from mqqb import guids
from mqqb.confirm import CLASS_NEGATIVE, CLASS_RECEIVING
from mqqb.names import NULL_GUID
from pyiceberg.table.snapshots import Operation
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own manual has it
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from ordack.pipeline import folders
from ordack.pipeline.delta_files import open_table
from ordack.pipeline.folders import Found, Serials
from ordack.pipeline.iceberg import read_table
from ordack.pipeline.ingest import ICEBERG, format_of
from ordack.pipeline.lake import first_line
from ordack.pipeline.packets import DAMAGE, UNREADABLE
from ordack.pipeline.progress import IngestUnusable
from ordack.pipeline.segment_source import Rows, Settings
from ordack.pipeline.segments import SCHEMA
from ordack.pipeline.writing import open_folder

Task = TypeVar("Task")
NO_GUID = guids.guid_text(NULL_GUID)
PORT = ":1801"  # of the end that was connected to
BODY = "body_crc"  # the CRC-32 of a body
LACKS = ("hole", "malformed", DAMAGE, UNREADABLE)  # of captures: what was not seen whole
PACKETS = ("file", "frame", "time", "connection", "direction", "receiver", "packet", "size", "source_queue_manager",
           "queue_manager_address", "message_id", "destination_queue", "tx_sequence_ordinal", "tx_sequence_time_stamp",
           "tx_sequence_number", "message_class", "ack_tx_sequence_ordinal", "ack_tx_sequence_time_stamp",
           "ack_tx_sequence_number", "ack_source", "ack_message_id", "client_guid", "server_guid", BODY)  # fmt: skip
MESSAGE = ("queue_manager", "queue", "message_key", "source_queue_manager", "message_id", "arrived", "sent_time",
           "destination_queue", "over_http", "tx_sequence_ordinal", "tx_sequence_time_stamp", "tx_sequence_number",
           "previous_tx_sequence_number")  # fmt: skip
NAMED_BY_INGEST = re.compile(r"part-[0-9a-f-]{36}-[0-9a-f-]{36}\.parquet")  # those of optimize have other times
FILES_OF_TASK = 16
RECEIVED, REFUSED = CLASS_RECEIVING, CLASS_NEGATIVE  # of FinalAcks: received, and from here on not (wire.md 6)


# ---- captures


def packets(spark: SparkSession, captures: str) -> DataFrame:
    """What the packets of captures say of messages and who has them; each is read once."""
    wanted = ("EstablishConnection", "UserMessage", "OrderAck", "FinalAck", "older", *LACKS)
    frame = spark.read.format("mqqb").option("columns", ",".join(PACKETS)).load(captures)
    return frame.where(F.col("packet").isin(*wanted)).persist()


def sent(packets: DataFrame) -> DataFrame:
    """One row for each message and queue manager that it was sent to: what it is called, `first`, the packet that has
    shown it first, `acknowledged`, that of the first acknowledgement, `outcome`, the class of its FinalAck, and
    `bodies`, the CRC of each body that it was sent with.

    receiver: GUID; null if the capture does not tell whose connection it was."""
    of_packet = F.struct("time", "file", "frame")
    owners = _owners(packets)
    messages = (
        packets.where("packet = 'UserMessage'")
        .join(owners, "connection", "left")
        .groupBy(
            _key("source_queue_manager", "tx_", F.col("message_id")).alias("message_key"),
            _other_end().alias("receiver_manager"),
        )
        .agg(
            *(F.min(name).alias(name) for name in ("source_queue_manager", "message_id", "destination_queue",
              "tx_sequence_ordinal", "tx_sequence_time_stamp", "tx_sequence_number")),
            F.min(of_packet).alias("first"),
            F.collect_set(BODY).alias("bodies"),
        )
    )  # fmt: skip
    return _with_finals(_with_order_acks(messages, _order_acks(packets, owners)), packets)


def _key(source: str, prefix: str, message_id: Column) -> Column:
    """As segments.message_keys has it."""
    stamp, ordinal, number = (F.col(f"{prefix}{name}") for name in (
        "sequence_time_stamp", "sequence_ordinal", "sequence_number"))  # fmt: skip
    sequence = stamp.cast("decimal(20,0)") * F.lit(1 << 32).cast("decimal(20,0)") + ordinal
    place = F.concat(sequence.cast("decimal(20,0)").cast("string"), F.lit("/"), number.cast("string"))
    return F.concat(F.col(source), F.lit("\\"), F.coalesce(place, message_id.cast("string")))


def _owners(packets: DataFrame) -> DataFrame:
    """The queue managers at the ends of each connection, where its EstablishConnection was seen."""
    told = (F.max(F.when(F.col(name) != NO_GUID, F.col(name))).alias(name) for name in ("client_guid", "server_guid"))
    return packets.where("packet = 'EstablishConnection'").groupBy("connection").agg(*told).withColumnsRenamed(
        {"client_guid": "client", "server_guid": "server"})  # fmt: skip


def _other_end() -> Column:
    """Who gets a packet."""
    return F.when(F.col("receiver").endswith(PORT), F.col("server")).otherwise(F.col("client"))


def _order_acks(packets: DataFrame, owners: DataFrame) -> DataFrame:
    """OrderAcks with the queue manager whose sequence it is: that which it is addressed to, or at the other end; if
    neither is known, the only one whose messages came on this connection (B-079)."""
    alone = (
        packets.where("packet = 'UserMessage'")
        .groupBy("connection", (1 - F.col("direction")).alias("direction"))
        .agg(F.min("source_queue_manager").alias("least"), F.max("source_queue_manager").alias("most"))
        .select("connection", "direction", F.when(F.col("least") == F.col("most"), F.col("least")).alias("alone"))
    )
    addressed = F.when(F.col("queue_manager_address") != NO_GUID, F.col("queue_manager_address"))
    return (
        packets.where("packet = 'OrderAck'")
        .join(owners, "connection", "left")
        .join(alone, ["connection", "direction"], "left")
        .select(
            F.coalesce(addressed, _other_end(), "alone").alias("source_queue_manager"),
            F.col("ack_tx_sequence_ordinal").alias("tx_sequence_ordinal"),
            F.col("ack_tx_sequence_time_stamp").alias("tx_sequence_time_stamp"),
            F.col("ack_tx_sequence_number").alias("tx_sequence_number"),
            F.struct("time", "file", "frame").alias("ack"),
        )
    )


def _with_order_acks(messages: DataFrame, acks: DataFrame) -> DataFrame:
    """Messages with `ordered`: the first OrderAck of their number or a higher one of their sequence."""
    sequence = ("source_queue_manager", "tx_sequence_time_stamp", "tx_sequence_ordinal")
    behind = Window.partitionBy(*sequence).orderBy(F.desc("tx_sequence_number"))
    both = messages.unionByName(acks, allowMissingColumns=True)
    in_order = behind.rangeBetween(Window.unboundedPreceding, Window.currentRow)
    transactional = F.col("tx_sequence_number").isNotNull()
    return both.withColumn("ordered", F.when(transactional, F.min("ack").over(in_order))).where(
        F.col("message_key").isNotNull()).drop("ack")  # fmt: skip


def _with_finals(messages: DataFrame, packets: DataFrame) -> DataFrame:
    finals = (
        packets.where("packet = 'FinalAck'")
        .groupBy(_key("ack_source", "ack_tx_", F.col("ack_message_id")).alias("message_key"))
        .agg(
            F.min("message_class").alias("outcome"),
            F.min(F.when(F.col("message_class") == RECEIVED, F.struct("time", "file", "frame"))).alias("final"),
        )
    )
    joined = messages.join(finals, "message_key", "left")
    return joined.withColumn("acknowledged", F.coalesce("ordered", "final")).drop("ordered", "final")


# ---- segments


def exported(spark: SparkSession, found: Sequence[Found], read: Serials) -> DataFrame:
    """The rows of these segments; `due`: their segment is one that the table has taken, by its `read`."""
    whole = from_arrow_schema(SCHEMA)
    due = [[one for one in found if (one.serial <= read.get(one.place, 0)) is there] for there in (True, False)]
    tasks = [(part, there) for of, there in zip(due, (True, False)) for part in folders.parts(of)]
    rows = Rows(Settings.of({"path": str(found[0].segment.path.parent)}), whole) if found else None

    def read_part(task: tuple[folders.Part, bool]) -> Iterator[pa.RecordBatch]:
        part, there = task
        assert rows is not None
        for piece in rows.read(part):
            kept = piece.select(list(MESSAGE)).append_column(BODY, _crcs(piece.column("body")))
            yield kept.append_column("due", pa.array([there] * kept.num_rows))

    schema = StructType([whole[name] for name in MESSAGE]).add(BODY, "long").add("due", "boolean")
    return _read_in_tasks(spark, tasks, read_part, schema)


def _crcs(bodies: pa.Array) -> pa.Array:
    return pa.array([None if body is None else zlib.crc32(body) for body in bodies.to_pylist()], pa.int64())


def _read_in_tasks(
    spark: SparkSession, tasks: Sequence[Task], read: Callable[[Task], Iterable[pa.RecordBatch]], schema: StructType
) -> DataFrame:
    """What `read` gives for each of these, in a task of its own."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read(tasks[number])

    return spark.range(0, len(tasks), 1, max(len(tasks), 1)).mapInArrow(task, schema)


# ---- tables


@dataclass
class Piece:
    """A file of a table, values of columns that are not in it, and when its rows became part of the table, in
    milliseconds since 1970; None: nobody knows."""

    path: str
    values: dict[str, Any]
    in_table: int | None


def pieces(table: str) -> list[Piece]:
    """The files of a table. Raises IngestError, IngestUnusable."""
    kind = format_of(table)
    if kind == ICEBERG or (kind is None and not Path(table).exists() and "/" not in table):
        return _pieces_of_iceberg(table)
    return _pieces_of_delta(table)


def _pieces_of_delta(table: str) -> list[Piece]:
    try:
        opened = open_table(table)
        unread = {"deletionVectors", "columnMapping"} & set(opened.protocol().reader_features or ())
        actions = pa.table(opened.get_add_actions(flatten=True)).to_pylist()
    except (DeltaError, OSError) as error:
        raise IngestUnusable(f"cannot open the table {table}: {first_line(error)}") from None
    if unread:
        raise IngestUnusable(f"the table {table} has {', '.join(sorted(unread))}, which this does not read")
    return [
        Piece(
            f"{table.removeprefix('file://')}/{unquote(one['path'])}",
            {name.removeprefix("partition."): value for name, value in one.items() if name.startswith("partition.")},
            one["modification_time"] if NAMED_BY_INGEST.fullmatch(one["path"].rpartition("/")[2]) else None,
        )
        for one in actions
    ]


def _pieces_of_iceberg(table: str) -> list[Piece]:
    opened = read_table(table)
    snapshots = {
        one.snapshot_id: one.timestamp_ms
        for one in opened.metadata.snapshots
        if one.summary is not None and one.summary.operation == Operation.APPEND  # else rows were there before
    }
    entries = opened.inspect.entries().to_pylist() if opened.current_snapshot() else []
    since = {one["data_file"]["file_path"]: snapshots.get(one["snapshot_id"]) for one in entries}
    found = []
    for task in opened.scan().plan_files():
        if task.delete_files:
            raise IngestUnusable(
                f"the table {table} has deleted rows, which this does not read: rewrite its data files"
            )
        path = task.file.file_path
        found.append(Piece(path.removeprefix("file://"), {}, since.get(path)))
    return found


def loaded(spark: SparkSession, table: str, acquired: str | None) -> DataFrame:
    """The rows of a table; `in_table`: when they became part of it; `acquired`: the value of that column, or the
    sending time; BODY: null if it has no column body. Raises IngestError, IngestUnusable."""
    found = pieces(table)
    columns = [*MESSAGE, *([acquired] if acquired else [])]
    kinds = _kinds(table, found, acquired)
    tasks = [found[at : at + FILES_OF_TASK] for at in range(0, len(found), FILES_OF_TASK)]
    schema = pa.schema(
        [
            *(pa.field(name, kinds[name]) for name in columns),
            pa.field(BODY, pa.int64()),
            pa.field("in_table", SCHEMA.field("arrived").type),
        ]
    )

    def read_files(task: Sequence[Piece]) -> Iterator[pa.RecordBatch]:
        for piece in task:
            yield from _read(piece, columns, schema)

    frame = _read_in_tasks(spark, tasks, read_files, from_arrow_schema(schema))
    return frame.withColumn("acquired", F.col(f"`{acquired}`" if acquired else "sent_time")).select(
        *MESSAGE, BODY, "in_table", "acquired")  # fmt: skip


def _kinds(table: str, found: Sequence[Piece], acquired: str | None) -> dict[str, pa.DataType]:
    """The types of the columns that are read. Raises IngestUnusable."""
    kinds = {field.name: field.type for field in SCHEMA}
    if not found:
        return {**kinds, **({acquired: kinds["arrived"]} if acquired else {})}
    system, path = open_folder(found[0].path)
    inside = pq.read_schema(path, filesystem=system)
    there = {*inside.names, *found[0].values}
    lacking = [name for name in (*MESSAGE, *([acquired] if acquired else [])) if name not in there]
    if lacking:
        raise IngestUnusable(f"the table {table} has no column {', '.join(lacking)}, by which it could be reconciled")
    if acquired:
        if not pa.types.is_timestamp(inside.field(acquired).type):
            raise IngestUnusable(
                f"the column {acquired} of {table} (--acquired) is {inside.field(acquired).type}, and no TIMESTAMP"
            )
        kinds[acquired] = kinds["arrived"]
    return kinds


def _read(piece: Piece, columns: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    system, path = open_folder(piece.path)
    inside = [name for name in columns if name not in piece.values]
    with pq.ParquetFile(path, filesystem=system, page_checksum_verification=True) as file:
        has_body = "body" in file.schema_arrow.names
        for batch in file.iter_batches(columns=[*inside, *(["body"] if has_body else [])], use_threads=False):
            size = batch.num_rows
            arrays = [
                pa.array([piece.values[name]] * size, schema.field(name).type)
                if name in piece.values
                else batch.column(name).cast(schema.field(name).type)
                for name in columns
            ]
            arrays.append(_crcs(batch.column("body")) if has_body else pa.nulls(size, pa.int64()))
            moment = None if piece.in_table is None else piece.in_table * 1000
            arrays.append(pa.array([moment] * size, pa.int64()).cast(schema.field("in_table").type))
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
