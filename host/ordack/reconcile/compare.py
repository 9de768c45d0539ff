"""Join captures, segments and table message by message, and find the differences.

All joins use the message key (segments.MESSAGE_KEY), which packets show, too. They run in Spark; the driver gets sums
and the first FINDINGS_MAX findings.

A finding is unknown, not a violation, if it depends on a gap in the captures or on a later export or ingest.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

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
from ordack.pipeline.folders import Folders, FoundSegment, Serials
from ordack.pipeline.iceberg import is_name, read_table
from ordack.pipeline.ingest import rows_of
from ordack.pipeline.lake import ICEBERG, Decoding, IngestUnusable, first_line, format_of
from ordack.pipeline.packets import DAMAGE, UNREADABLE
from ordack.pipeline.prune import serials
from ordack.pipeline.segments import SCHEMA
from ordack.pipeline.spark import task_count
from ordack.reconcile.result import FINDINGS_MAX, KINDS, Result, finding_of

Task = TypeVar("Task")
NO_GUID = guids.guid_text(NULL_GUID)
PORT = ":1801"  # of the end that accepts connections
BODY = "body_crc"  # CRC-32 of a body
LACKS = ("hole", "malformed", DAMAGE, UNREADABLE)  # gaps in captures
PACKETS = ("file", "frame", "time", "connection", "direction", "receiver", "packet", "size", "source_queue_manager",
           "queue_manager_address", "message_id", "destination_queue", "tx_sequence_ordinal", "tx_sequence_time_stamp",
           "tx_sequence_number", "message_class", "ack_tx_sequence_ordinal", "ack_tx_sequence_time_stamp",
           "ack_tx_sequence_number", "ack_source", "ack_message_id", "client_guid", "server_guid", BODY)  # fmt: skip
MESSAGE = ("queue_manager", "queue", "message_key", "source_queue_manager", "message_id", "arrived",
           "destination_queue", "over_http", "tx_sequence_ordinal", "tx_sequence_time_stamp",
           "tx_sequence_number")  # fmt: skip
RECEIVED, REFUSED = CLASS_RECEIVING, CLASS_NEGATIVE  # FinalAck classes: received; refused from here on (wire.md 6)
MARGIN_S = 1  # after the captures' begin: a message sent before it may be stored after it


class Compared(NamedTuple):
    """Lazy data frames. messages: one row for each message and queue, with its `sent` packets and its number of copies
    in segments and table. findings: see result.KINDS."""

    packets: DataFrame
    messages: DataFrame
    findings: DataFrame


def compare(spark: SparkSession, captures: str, source: Folders, table: str, *, queue: str | None = None) -> Compared:
    """captures: a file, a pattern or a folder. queue: compare only this queue. Raises FolderError, IngestError,
    IngestUnusable, OptionError."""
    markers = source.now().values()
    managers = [marker.queue_manager for marker in markers]
    read = serials(table)
    found = source.waiting(source.beginning(()))
    packets = read_packets(spark, captures)
    sent = sent_messages(packets).persist()
    exported = read_segments(spark, found, read)
    others = {place.folder for place in read} - {marker.folder for marker in markers}
    loaded = read_rows(spark, table)
    if others:
        loaded = loaded.where(F.col("queue_manager").isin(managers))
    if queue is not None:
        loaded = loaded.where(F.lower("queue") == queue.lower())
    loaded = loaded.persist()
    messages = _messages(sent, exported, loaded, managers)
    if queue is not None:
        messages = messages.where(F.coalesce(F.lower("queue"), _place(F.col("destination_queue"))) == queue.lower())
    messages = messages.persist()
    kinds = _Kinds(spark, packets, sent, exported.persist(), messages)
    findings = kinds.findings(_pruned(spark, source, read), bool(others))
    return Compared(packets, messages, findings.persist())


def collect(compared: Compared, names: dict[str, Any]) -> Result:
    """Return the report. names: further content (captures, segments, table)."""
    found = dict.fromkeys(KINDS, 0) | {
        one["kind"]: one["count"] for one in compared.findings.groupBy("kind").count().collect()
    }
    violations = [kind for kind, about in KINDS.items() if about.violation]
    first = (
        compared.findings.orderBy(F.col("kind").isin(violations).desc(), "kind", "at", "message_key")
        .limit(FINDINGS_MAX)
        .collect()
    )
    span = compared.packets.agg(F.min("time").alias("begin"), F.max("time").alias("end"))
    totals = (
        compared.messages.join(F.broadcast(span))
        .agg(
            *(
                F.countDistinct(F.when(F.col("ours") & F.col(shows).isNotNull(), F.col("message_key"))).alias(name)
                for name, shows in (("captured", "first"), ("acknowledged", "acknowledged"))
            ),
            F.coalesce(F.sum("segments"), F.lit(0)).alias("in_segments"),
            F.coalesce(F.sum("table"), F.lit(0)).alias("in_table"),
            F.count(F.when(F.col("arrived").between(F.col("begin"), F.col("end")), 1)).alias("stored_meanwhile"),
        )
        .collect()[0]
    )
    times = F.sum(F.when(F.col("packet") == UNREADABLE, F.col("size")).otherwise(1)).alias("times")
    lacks = compared.packets.where(F.col("packet").isin(*LACKS)).groupBy("packet").agg(times).collect()
    return Result(
        names,
        totals.asDict(),
        found,
        [finding_of(one) for one in first],
        {one["packet"]: one["times"] for one in lacks},
    )


# ---- places of each message


def _messages(sent: DataFrame, exported: DataFrame, loaded: DataFrame, managers: Sequence[str]) -> DataFrame:
    """Join by message. receiver: GUID from the captures. ours: the receiver may be a queue manager of the segments."""
    copies = exported.select(*MESSAGE, BODY, "due", F.lit(1).alias("segments"), F.lit(0).alias("table")).unionByName(
        loaded.select(*MESSAGE, BODY, F.lit(False).alias("due"), F.lit(0).alias("segments"), F.lit(1).alias("table"))
    )
    there = copies.groupBy("queue_manager", "queue", "message_key").agg(
        F.sum("segments").alias("segments"),
        F.sum("table").alias("table"),
        F.max("due").alias("due"),
        F.max("over_http").alias("over_http"),
        *(
            F.collect_set(F.when(F.col(side) > 0, F.col(BODY))).alias(f"{side}_bodies")
            for side in ("segments", "table")
        ),
        *(F.min(name).alias(f"stored_{name}") for name in ("source_queue_manager", "message_id", "destination_queue")),
        F.min("arrived").alias("arrived"),
    )
    ours = F.col("receiver_manager").isNull() | F.col("receiver_manager").isin(*managers)
    seen = sent.groupBy("message_key").agg(
        *(F.min(name).alias(name) for name in ("source_queue_manager", "message_id", "destination_queue",
          "tx_sequence_ordinal", "tx_sequence_time_stamp", "tx_sequence_number", "first", "outcome")),
        F.min("acknowledged").alias("acknowledged"),
        F.array_distinct(F.flatten(F.collect_list("bodies"))).alias("sent_bodies"),
        F.max(ours).alias("ours"),
        F.min(F.when(ours, F.col("receiver_manager"))).alias("receiver"),
    )  # fmt: skip
    joined = there.join(seen, "message_key", "full")
    for name in ("source_queue_manager", "message_id", "destination_queue"):
        joined = joined.withColumn(name, F.coalesce(f"stored_{name}", name)).drop(f"stored_{name}")
    return joined.fillna(0, ["segments", "table"]).fillna(False, ["due", "ours", "over_http"])


def _pruned(spark: SparkSession, source: Folders, read: Serials) -> DataFrame:
    """Return (queue_manager, queue) of queues with deleted segments."""
    markers = {marker.folder: marker.queue_manager for marker in source.now().values()}
    oldest = source.beginning(())
    pruned = {place for place, before in oldest.items() if before} | {place for place in read if place not in oldest}
    names = sorted((markers[place.folder], place.queue) for place in pruned if place.folder in markers)
    return spark.createDataFrame(names, "queue_manager string, queue string").distinct()


# ---- findings


class _Kinds:
    """Judges each row of `messages`."""

    def __init__(
        self, spark: SparkSession, packets: DataFrame, sent: DataFrame, exported: DataFrame, messages: DataFrame
    ) -> None:
        self._exported = exported
        self._spark = spark
        self._span = packets.agg(
            F.min("time").alias("begin"),
            F.max("time").alias("end"),
            F.coalesce(F.max(F.col("packet").isin(*LACKS)), F.lit(False)).alias("lossy"),
        )
        self._seen = sent.select("source_queue_manager").distinct().withColumn("seen", F.lit(True))
        self._messages = messages

    def findings(self, pruned: DataFrame, others: bool) -> DataFrame:
        """others: the table has further folders."""
        whole = self._messages.join(F.broadcast(self._span)).join(
            F.broadcast(pruned.withColumn("pruned", F.lit(True))), ["queue_manager", "queue"], "left"
        )
        whole = whole.join(F.broadcast(self._seen), "source_queue_manager", "left").fillna(False, ["pruned", "seen"])
        whole = self._with_progress(whole)
        kinds = F.filter(
            F.array(
                F.when(F.col("segments") > 1, "twice_in_segments"),
                F.when(F.col("table") > 1, "twice_in_table"),
                self._not_in_table(),
                self._in_no_segment(others),
                self._never_sent(),
                self._missing(),
                *self._bodies(),
            ),
            lambda kind: kind.isNotNull(),
        )
        at = F.coalesce(F.col("first.time"), "arrived").alias("at")
        return whole.select(
            F.explode(kinds).alias("kind"), "source_queue_manager", "message_id", "message_key",
            F.coalesce("queue_manager", "receiver").alias("queue_manager"), "queue", "destination_queue", "segments",
            "table", "arrived", "first", "acknowledged", at,
        )  # fmt: skip

    def _with_progress(self, whole: DataFrame) -> DataFrame:
        """Add `newest`, the last exported arrival in the destination queue, and `reached`, the highest exported number
        of the message's sequence."""
        arrivals = self._exported.select(
            "arrived", F.col("queue_manager").alias("at_manager"),
            F.explode(F.array(F.lower("queue"), _place(F.col("destination_queue")))).alias("place"),
        )  # fmt: skip
        known = arrivals.groupBy("at_manager", "place").agg(F.max("arrived").alias("newest_there"))
        somewhere = known.groupBy("place").agg(F.min("newest_there").alias("newest_somewhere"))
        sequence = ["source_queue_manager", "tx_sequence_time_stamp", "tx_sequence_ordinal"]
        reached = self._exported.groupBy(*sequence).agg(F.max("tx_sequence_number").alias("reached"))
        absent = whole.withColumn("place", F.when(F.col("queue").isNull(), _place(F.col("destination_queue"))))
        absent = absent.join(
            F.broadcast(known),
            (absent["receiver"] == known["at_manager"]) & (absent["place"] == known["place"]),
            "left",
        ).drop(known["place"])
        absent = absent.join(F.broadcast(somewhere), "place", "left")
        newest = F.when(F.col("receiver").isNotNull(), F.col("newest_there")).otherwise(F.col("newest_somewhere"))
        return absent.withColumn("newest", newest).join(reached, sequence, "left")

    @staticmethod
    def _not_in_table() -> Column:
        absent = (F.col("segments") > 0) & (F.col("table") == 0)
        return F.when(absent, F.when(F.col("due"), "missing_in_table").otherwise("not_ingested_yet"))

    @staticmethod
    def _in_no_segment(others: bool) -> Column:
        absent = (F.col("segments") == 0) & (F.col("table") > 0) & ~F.col("pruned")
        return F.when(absent, F.lit("of_other_folder" if others else "in_no_segment"))

    @staticmethod
    def _bodies() -> Iterator[Column]:
        """Compare bodies with the sent ones; for the table, with the segments' if the captures have none."""
        sent, segments, table = (F.col(f"{name}_bodies") for name in ("sent", "segments", "table"))
        shown = F.coalesce(F.size(sent), F.lit(0)) > 0
        for name, these, reference in (
            ("segments", segments, sent), ("table", table, F.when(shown, sent).otherwise(segments)),
        ):  # fmt: skip
            others = F.size(F.array_except(these, reference))
            yield F.when((F.size(reference) > 0) & (others > 0), F.lit(f"other_body_in_{name}"))
        yield F.when((F.col("table") > 0) & (F.size(table) == 0), F.lit("body_not_compared"))

    @staticmethod
    def _never_sent() -> Column:
        margin = F.col("begin") + F.expr(f"INTERVAL {MARGIN_S} SECONDS")
        in_span = (F.col("arrived") >= margin) & (F.col("arrived") <= F.col("end"))
        foreign = (F.col("source_queue_manager") != F.col("queue_manager")) & ~F.col("over_http")
        why = (
            F.when(~F.col("seen"), "source_not_captured")
            .when(F.col("lossy"), "perhaps_not_captured")
            .otherwise("never_sent")
        )
        return F.when(F.col("first").isNull() & in_span & foreign, why)

    @staticmethod
    def _missing() -> Column:
        refused = F.coalesce(F.col("outcome") >= REFUSED, F.lit(False))
        expected = F.col("queue").isNull() & F.col("ours") & F.col("acknowledged").isNotNull() & ~refused
        passed = (F.col("newest") >= F.col("acknowledged.time")) | (F.col("reached") > F.col("tx_sequence_number"))
        why = (
            F.when(F.coalesce(passed, F.lit(False)), "missing")
            .when(F.col("newest").isNull(), "queue_not_exported")
            .otherwise("not_exported_yet")
        )
        return F.when(expected, why)


def _place(name: Column) -> Column:
    """Return the queue's name from a direct format name; return other format names whole."""
    small = F.lower(name)
    return F.when(small.startswith("direct="), F.substring_index(small, "\\", -1)).otherwise(small)


# ---- captures


def read_packets(spark: SparkSession, captures: str) -> DataFrame:
    """Read the packets that show messages and their receipt. Each capture is read once."""
    wanted = ("EstablishConnection", "UserMessage", "OrderAck", "FinalAck", "older", *LACKS)
    frame = spark.read.format("mqqb").option("columns", ",".join(PACKETS)).load(captures)
    return frame.where(F.col("packet").isin(*wanted)).persist()


def sent_messages(packets: DataFrame) -> DataFrame:
    """Return a row for each message and receiving queue manager. first: its first packet. acknowledged: packet of the
    first acknowledgement. outcome: class of its FinalAck. bodies: CRCs of all bodies sent.

    receiver_manager: GUID, null if the captures do not show the receiver.
    """
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
    """Compute the message key as segments.message_keys does."""
    stamp, ordinal, number = (F.col(f"{prefix}{name}") for name in (
        "sequence_time_stamp", "sequence_ordinal", "sequence_number"))  # fmt: skip
    sequence = stamp.cast("decimal(20,0)") * F.lit(1 << 32).cast("decimal(20,0)") + ordinal
    place = F.concat(sequence.cast("decimal(20,0)").cast("string"), F.lit("/"), number.cast("string"))
    return F.concat(F.col(source), F.lit("\\"), F.coalesce(place, message_id.cast("string")))


def _owners(packets: DataFrame) -> DataFrame:
    """Return the queue managers at both ends of each connection with a captured EstablishConnection."""
    told = (F.max(F.when(F.col(name) != NO_GUID, F.col(name))).alias(name) for name in ("client_guid", "server_guid"))
    return packets.where("packet = 'EstablishConnection'").groupBy("connection").agg(*told).withColumnsRenamed(
        {"client_guid": "client", "server_guid": "server"})  # fmt: skip


def _other_end() -> Column:
    """Return the receiving queue manager of a packet."""
    return F.when(F.col("receiver").endswith(PORT), F.col("server")).otherwise(F.col("client"))


def _order_acks(packets: DataFrame, owners: DataFrame) -> DataFrame:
    """Return OrderAcks with the queue manager of their sequence: the addressee, or the queue manager at the other end.
    If both are unknown, take the only source of messages on this connection (B-079)."""
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
    """Add `ordered`: the first OrderAck of the message's number or of a higher number in its sequence."""
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


def read_segments(spark: SparkSession, found: Sequence[FoundSegment], read: Serials) -> DataFrame:
    """Read segments. due: the table's serials, `read`, include the row's segment."""
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
    """Call `read` for each of `tasks`, in Spark tasks."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read(tasks[number])

    return spark.range(0, len(tasks), 1, task_count(spark, len(tasks))).mapInArrow(task, schema)


# ---- tables


def read_rows(spark: SparkSession, table: str) -> DataFrame:
    """Read a table. BODY is null if the table has no column body. Raises IngestError, IngestUnusable."""
    if format_of(table) == ICEBERG or is_name(table):
        names, count, read = _iceberg(table)
    else:
        names, count, read = _delta(table)
    lacking = [name for name in MESSAGE if name not in names]
    if lacking:
        raise IngestUnusable(f"the table {table} has no column {', '.join(lacking)}, by which it could be reconciled")
    columns = [*MESSAGE, *(["body"] if "body" in names else [])]
    shares = min(count, task_count(spark, count))  # 0 without files

    def read_share(share: int) -> Iterator[pa.RecordBatch]:
        for batch in read(columns, share, shares):
            crcs = _crcs(batch.column("body")) if "body" in columns else pa.nulls(batch.num_rows, pa.int64())
            kept = [batch.column(name).cast(SCHEMA.field(name).type) for name in MESSAGE]
            yield pa.RecordBatch.from_arrays([*kept, crcs], [*MESSAGE, BODY])

    whole = from_arrow_schema(SCHEMA)
    schema = StructType([StructField(name, whole[name].dataType) for name in MESSAGE]).add(BODY, "long")
    return _read_in_tasks(spark, range(shares), read_share, schema)


Read = Callable[[list[str], int, int], Iterable[pa.RecordBatch]]  # of columns; share `share` of `shares` of the rows


def _delta(table: str) -> tuple[list[str], int, Read]:
    """Return the names of columns, the number of files, and their reader."""
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
