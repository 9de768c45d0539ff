"""Three sides of the same messages, joined: which are where, which are not, and what each sensor's stream looks like.

All joins are by the message key, and run in Spark; the driver gets sums, and the first FINDINGS_MAX findings.

What the captures have missed makes no violation: a finding that depends on it is unknown. So is what an export or an
ingest may not have reached yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own manual has it

from ordack.pipeline.folders import Folders, Serials
from ordack.pipeline.packets import UNREADABLE
from ordack.pipeline.prune import serials
from ordack.reconcile import rows
from ordack.reconcile.result import FINDINGS_MAX, KINDS, Result, finding_of, sensor_of

MARGIN_S = 1  # of the captures' begin: a message may have passed before, and be stored behind it
VIEWS = ("messages", "findings", "sensors")  # of SQL, with reconcile_ in front


class Compared(NamedTuple):
    """Data frames; nothing is read before they are asked for. messages: one row a message and queue, with `sent`, the
    packets that show it, and how often it is in segments and table. findings: result.KINDS. sensors: one row a source
    and queue of the table."""

    packets: DataFrame
    messages: DataFrame
    findings: DataFrame
    sensors: DataFrame

    def views(self) -> None:
        """Make them known to SQL, as reconcile_messages and so on."""
        for name in VIEWS:
            getattr(self, name).createOrReplaceTempView(f"reconcile_{name}")


def compare(spark: SparkSession, captures: str, source: Folders, table: str, *, queue: str | None = None) -> Compared:
    """captures: a file, a pattern or a folder. queue: only this one. Raises FolderError, IngestError,
    IngestUnusable, OptionError."""
    markers = source.now().values()
    managers = [marker.queue_manager for marker in markers]
    read = serials(table)
    found = source.waiting(source.beginning(()))
    packets = rows.packets(spark, captures)
    sent = rows.sent(packets).persist()
    exported = rows.exported(spark, found, read)
    others = {place.folder for place in read} - {marker.folder for marker in markers}
    loaded = rows.loaded(spark, table)
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
    return Compared(packets, messages, findings.persist(), _sensors(loaded).persist())


def collect(compared: Compared, names: dict[str, Any]) -> Result:
    """What a report says. names: what else is in it (captures, segments, table)."""
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
    lacks = compared.packets.where(F.col("packet").isin(*rows.LACKS)).groupBy("packet").agg(times).collect()
    return Result(
        names,
        totals.asDict(),
        found,
        [finding_of(one) for one in first],
        [sensor_of(one) for one in compared.sensors.orderBy("source_queue_manager", "queue").collect()],
        {one["packet"]: one["times"] for one in lacks},
    )


# ---- where each message is


def _messages(sent: DataFrame, exported: DataFrame, loaded: DataFrame, managers: Sequence[str]) -> DataFrame:
    """receiver: the queue manager that had it, as the captures say; ours: it is, or may be, one of the segments'."""
    copies = exported.select(
        *rows.MESSAGE, rows.BODY, "due", F.lit(1).alias("segments"), F.lit(0).alias("table")
    ).unionByName(
        loaded.select(
            *rows.MESSAGE, rows.BODY, F.lit(False).alias("due"), F.lit(0).alias("segments"), F.lit(1).alias("table")
        )
    )
    there = copies.groupBy("queue_manager", "queue", "message_key").agg(
        F.sum("segments").alias("segments"),
        F.sum("table").alias("table"),
        F.max("due").alias("due"),
        F.max("over_http").alias("over_http"),
        *(
            F.collect_set(F.when(F.col(side) > 0, F.col(rows.BODY))).alias(f"{side}_bodies")
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
    """Queues of which older segments have been deleted: (queue_manager, queue)."""
    markers = {marker.folder: marker.queue_manager for marker in source.now().values()}
    oldest = source.beginning(())
    pruned = {place for place, before in oldest.items() if before} | {place for place in read if place not in oldest}
    names = sorted((markers[place.folder], place.queue) for place in pruned if place.folder in markers)
    return spark.createDataFrame(names, "queue_manager string, queue string").distinct()


# ---- what is wrong with that


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
            F.coalesce(F.max(F.col("packet").isin(*rows.LACKS)), F.lit(False)).alias("lossy"),
        )
        self._seen = sent.select("source_queue_manager").distinct().withColumn("seen", F.lit(True))
        self._messages = messages

    def findings(self, pruned: DataFrame, others: bool) -> DataFrame:
        """others: the table has more folders than those that were given."""
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
        """`newest`: the last arrival that was exported of the queue that the message was sent to. `reached`: the
        highest number that was exported of its sequence."""
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
        """Those in a table are compared with what was sent, or, if the captures do not show that, with the segments."""
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
        refused = F.coalesce(F.col("outcome") >= rows.REFUSED, F.lit(False))
        expected = F.col("queue").isNull() & F.col("ours") & F.col("acknowledged").isNotNull() & ~refused
        passed = (F.col("newest") >= F.col("acknowledged.time")) | (F.col("reached") > F.col("tx_sequence_number"))
        why = (
            F.when(F.coalesce(passed, F.lit(False)), "missing")
            .when(F.col("newest").isNull(), "queue_not_exported")
            .otherwise("not_exported_yet")
        )
        return F.when(expected, why)


def _place(name: Column) -> Column:
    """The queue's name, if a format name tells it, else all of that."""
    small = F.lower(name)
    return F.when(small.startswith("direct="), F.substring_index(small, "\\", -1)).otherwise(small)


# ---- sensors


def _sensors(loaded: DataFrame) -> DataFrame:
    """Of each source and queue of the table: rows, copies of them that are too many, gaps in its sequences, messages
    that are lacking there, and seconds from acquisition to the table."""
    sequence = ("queue_manager", "queue", "source_queue_manager", "tx_sequence_time_stamp", "tx_sequence_ordinal")
    once = loaded.groupBy(*sequence, "message_key", "tx_sequence_number").agg(
        F.count("*").alias("copies"),
        F.min("previous_tx_sequence_number").alias("previous"),
        F.min("sent_time").alias("sent"),
    )
    number = F.col("tx_sequence_number")
    before = F.lag(number).over(Window.partitionBy(*sequence).orderBy(number))
    # the first that is there of a sequence says nothing: what was before may have been deleted
    lacking = F.when(number.isNotNull() & before.isNotNull() & (F.col("previous") > before), F.col("previous") - before)
    measured = once.withColumn("lacking", lacking)
    return measured.groupBy("queue_manager", "queue", "source_queue_manager").agg(
        F.sum("copies").alias("rows"),
        F.sum(F.col("copies") - 1).alias("duplicates"),
        F.count("lacking").alias("gaps"),
        F.coalesce(F.sum("lacking"), F.lit(0)).alias("lacking"),
        F.min("sent").alias("first"),
        F.max("sent").alias("last"),
    )
