"""What was sent, exported and loaded, as data frames of Spark with one vocabulary.

A message is known by its message key (segments.MESSAGE_KEY), which a packet tells, too. Nothing is collected here but
the names of files.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from mqqb import guids
from mqqb.confirm import CLASS_NEGATIVE, CLASS_RECEIVING
from mqqb.names import NULL_GUID
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own manual has it
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from ordack.pipeline.delta import open_table, uri_of
from ordack.pipeline.folders import Found, Serials
from ordack.pipeline.iceberg import is_name, read_table
from ordack.pipeline.ingest import rows_of
from ordack.pipeline.lake import ICEBERG, Decoding, IngestUnusable, first_line, format_of
from ordack.pipeline.packets import DAMAGE, UNREADABLE
from ordack.pipeline.segments import SCHEMA

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
    tasks = [(str(one.segment.path), one.serial <= read.get(one.place, 0)) for one in found]

    def read_one(task: tuple[str, bool]) -> Iterator[pa.RecordBatch]:
        (rows,) = rows_of(Decoding([]), [task[0]])
        kept = rows.select(list(MESSAGE)).append_column(BODY, _crcs(rows["body"]))
        yield from kept.append_column("due", pa.array([task[1]] * len(kept))).to_batches()

    whole = from_arrow_schema(SCHEMA)
    schema = StructType([whole[name] for name in MESSAGE]).add(BODY, "long").add("due", "boolean")
    return _read_in_tasks(spark, tasks, read_one, schema)


def _crcs(bodies: pa.Array | pa.ChunkedArray) -> pa.Array:
    return pa.array([None if body is None else zlib.crc32(body) for body in bodies.to_pylist()], pa.int64())


def _read_in_tasks(
    spark: SparkSession, tasks: Sequence[Task], read: Callable[[Task], Iterable[pa.RecordBatch]], schema: StructType
) -> DataFrame:
    """What `read` gives for each of these, in a task of its own."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read(tasks[number])

    parts = max(1, min(len(tasks), spark.sparkContext.defaultParallelism))
    return spark.range(0, len(tasks), 1, parts).mapInArrow(task, schema)


# ---- tables


def loaded(spark: SparkSession, table: str) -> DataFrame:
    """The rows of a table; BODY: null if it has no column body. Raises IngestError, IngestUnusable."""
    if format_of(table) == ICEBERG or is_name(table):
        names, count, read = _iceberg(table)
    else:
        names, count, read = _delta(table)
    lacking = [name for name in MESSAGE if name not in names]
    if lacking:
        raise IngestUnusable(f"the table {table} has no column {', '.join(lacking)}, by which it could be reconciled")
    columns = [*MESSAGE, *(["body"] if "body" in names else [])]
    shares = min(count, spark.sparkContext.defaultParallelism)

    def read_share(share: int) -> Iterator[pa.RecordBatch]:
        for batch in read(columns, share, shares):
            crcs = _crcs(batch.column("body")) if "body" in columns else pa.nulls(batch.num_rows, pa.int64())
            kept = [batch.column(name).cast(SCHEMA.field(name).type) for name in MESSAGE]
            yield pa.RecordBatch.from_arrays([*kept, crcs], [*MESSAGE, BODY])

    whole = from_arrow_schema(SCHEMA)
    schema = StructType([StructField(name, whole[name].dataType) for name in MESSAGE]).add(BODY, "long")
    return _read_in_tasks(spark, range(shares), read_share, schema)


Read = Callable[[list[str], int, int], Iterable[pa.RecordBatch]]  # of columns, one of so many shares of the rows


def _delta(table: str) -> tuple[list[str], int, Read]:
    """Names of columns, how many files there are, and what reads them."""
    version = open_table(table).version()

    def dataset() -> ds.Dataset:
        try:
            return DeltaTable(uri_of(table), version).to_pyarrow_dataset()
        except (DeltaError, OSError) as error:
            raise IngestUnusable(f"cannot read the table {table}: {first_line(error)}") from None

    def read(columns: list[str], share: int, shares: int) -> Iterator[pa.RecordBatch]:
        whole = dataset()
        for fragment in [*whole.get_fragments()][share::shares]:
            yield from fragment.to_batches(schema=whole.schema, columns=columns, use_threads=False)

    return dataset().schema.names, len([*dataset().get_fragments()]), read


def _iceberg(table: str) -> tuple[list[str], int, Read]:
    opened = read_table(table)
    snapshot = opened.metadata.current_snapshot_id

    def read(columns: list[str], share: int, shares: int) -> Iterator[pa.RecordBatch]:
        there = read_table(table)
        scan = there.scan(selected_fields=tuple(columns), snapshot_id=snapshot)
        files = sorted(scan.plan_files(), key=lambda task: task.file.file_path)[share::shares]
        reader = ArrowScan(there.metadata, there.io, scan.projection(), AlwaysTrue())
        for batch in reader.to_record_batches(files):
            yield batch.select(columns)

    return opened.schema().column_names, len([*opened.scan().plan_files()]), read
