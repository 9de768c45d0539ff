"""The commands that load messages into tables and verify the tables: `ordack table export`, `ordack table`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

import typer

from ordack.cli import common
from ordack.cli.config import read_file
from ordack.cli.output import write
from ordack.config.names import PeerNames, counted
from ordack.store import StoreError

app = typer.Typer(no_args_is_help=True, help="Export messages and load them into tables with Spark.")
AnewOption = Annotated[
    bool, typer.Option("--anew", help="Accept the loss of a recorded segment, or of the former folder.")
]
ToOption = Annotated[
    str,
    typer.Option(
        metavar="FOLDER", parser=common.anywhere, help="New or existing folder for segments, or s3a://BUCKET/FOLDER."
    ),
]


@app.command("export")
def export(
    names: Annotated[list[str], typer.Argument(metavar="QUEUE...", help="Queues to export.")],
    store: common.StoreOption,
    to: ToOption,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more messages until a signal.")] = False,
    rows: Annotated[
        int, typer.Option(min=1, max=1_000_000, metavar="N", help="Maximum number of messages per segment.")
    ] = 10_000,
    age: Annotated[
        float,
        typer.Option(
            min=0, metavar="SECONDS", help="With --follow: maximum age of a message before its segment is written."
        ),
    ] = 1.0,
    anew: AnewOption = False,
    as_json: common.JsonOption = False,
) -> None:
    """Move messages from queues to Parquet files (segments).

    Each message goes to exactly one segment, which never changes. After a kill, the next export continues. Senders that
    requested a receipt get one. A signal ends the command after a whole segment. Exit status: 1 incomplete, the other
    messages are in their queues; 6 the last segment may exist: repeat the same export, which duplicates nothing.
    """
    import signal

    with common.needs("spark"):
        from ordack.pipeline.export import Exporter
        from ordack.pipeline.segments import FolderError
    from ordack.client import Client

    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: stopped.append(number))
    messages = 0
    try:
        with (
            Client(store) as client,
            Exporter(client, names, to, rows=rows, anew=anew, tell=common.complain) as exporter,
        ):

            def stop() -> bool:
                return bool(stopped)

            for made in exporter.follow(stop, age) if follow else exporter.run(stop):
                messages += made.messages
                count = counted(made.messages, "message")
                common.report_done(
                    as_json,
                    f"{made.queue}: {count}, {counted(made.bytes, 'byte')}, in {made.segment}"
                    + (", of an earlier export" if made.recovered else ""),
                    **made._asdict(),
                )
    except FolderError as error:
        raise StoreError(str(error)) from None
    if not as_json:
        write(f"{counted(messages, 'message')} exported\n")


SegmentsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="SEGMENTS...",
        parser=common.anywhere,
        help="Folders written by `ordack table export`, or quoted patterns ('/data/plant-*').",
    ),
]
TableOption = Annotated[
    str,
    typer.Option(
        "--to", metavar="TABLE", help="Folder or URL of the table; for Iceberg a folder or CATALOG.NAMESPACE.TABLE."
    ),
]
TableFormatOption = Annotated[
    str | None,
    typer.Option("--format", metavar="FORMAT", help="delta or iceberg. Default: that of the table, else delta."),
]
SchemaOption = Annotated[
    str | None,
    typer.Option(
        metavar="DDL",
        help='Columns to decode from bodies: "temperature DOUBLE, at TIMESTAMP". If a body does not match, they are '
        "null, and _malformed holds the reason. Default: columns of the table.",
    ),
]
BodiesOption = Annotated[
    str | None, typer.Option(metavar="FORMAT", help="json or cbor. Default: that of the table, else json.")
]
PrefixOption = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Prefix of column names in --schema. Default: that of the table.")
]
ContinuousOption = Annotated[
    bool,
    typer.Option(
        "--continuous/--once", help="Wait for new segments until a signal, or end when all segments are loaded."
    ),
]
IntervalOption = Annotated[float, typer.Option(min=0, metavar="SECONDS", help="With --continuous: polling interval.")]


@app.command("ingest")
def pipeline_ingest(
    segments: SegmentsArgument,
    table: TableOption,
    table_format: TableFormatOption = None,
    schema: SchemaOption = None,
    bodies: BodiesOption = None,
    prefix: PrefixOption = None,
    queue: Annotated[str | None, typer.Option(metavar="QUEUE", help="Load only messages of this queue.")] = None,
    continuous: ContinuousOption = False,
    interval: IntervalOption = 1.0,
    master: common.MasterOption = None,
    conf: common.ConfOption = None,
    as_json: common.JsonOption = False,
) -> None:
    """Load exported messages into a table, each exactly once.

    After a kill, the next ingest continues. The command reports the latency from arrival and from sending. Exit status:
    1 incomplete, the next ingest continues; 2 also a missing or damaged segment, a folder with other files, a table
    with other columns or another writer.
    """
    with common.needs("spark"):
        from ordack.pipeline.ingest import Job, Progress, ingest
        from ordack.pipeline.spark import spark_session
    import signal

    settings = common.spark_settings(conf)
    with _problems():
        job = Job([*map(str, segments)], table, table_format, queue, schema, bodies, prefix)
        for text in job.folders.passed_over():
            common.complain(text)
        stopped: list[int] = []
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: stopped.append(number))
        spark = spark_session(master, "ordack table ingest", settings)
        signal.signal(signal.SIGINT, lambda number, _: stopped.append(number))  # pyspark has set its own handler
        with common.activity("starting") as show:

            def tell(batch: Progress) -> None:
                rate = batch.rows / max(batch.seconds, 1e-3)
                text = f"batch {batch.number}: {counted(batch.rows, 'row')}, {rate:,.0f} rows/s"
                show(f"{text}, {counted(batch.behind, 'segment')} to go")
                if as_json or continuous:
                    common.report(as_json, text, **batch.as_json())

            done = ingest(spark, job, continuous=continuous, interval=interval, tell=tell, warn=common.complain,
                          stop=lambda: bool(stopped))  # fmt: skip
    common.report(as_json, str(done), **done.as_json())


@app.command("optimize")
def optimize(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Folder or URL of a Delta Lake table.")],
    days: Annotated[float, typer.Option(min=1, metavar="DAYS", help="Delete only files that are older than DAYS.")] = 7,
    as_json: common.JsonOption = False,
) -> None:
    """Merge small files of a table, and delete unused files.

    Ingests may continue meanwhile. Readers lose versions of the table older than --days. For Iceberg, use your engine:
    rewrite_data_files, expire_snapshots, remove_orphan_files.
    """
    with common.needs("spark"):
        from ordack.pipeline import delta
    with _problems():
        done = delta.optimize(table, days)
    merged, deleted = counted(done["merged"], "file"), counted(done["deleted"], "unused file")
    common.report_done(as_json, f"{table}: {merged} merged into {done['new']}, {deleted} deleted", table=table, **done)


@app.command("prune")
def pipeline_prune(
    segments: SegmentsArgument,
    tables: Annotated[
        list[str], typer.Option("--in", metavar="TABLE", help="Table that must hold the messages. Repeatable.")
    ],
    days: Annotated[float, typer.Option(min=0, metavar="DAYS", help="Keep segments for DAYS after export.")] = 7,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report segments without deleting them.")] = False,
    as_json: common.JsonOption = False,
) -> None:
    """Delete segments whose messages are in all given tables.

    The command deletes the oldest segments of a queue first, and keeps the newest.
    """
    with common.needs("spark"):
        from ordack.pipeline import prune
        from ordack.pipeline.folders import Folders
    with _problems():
        for done in prune.prune(Folders([*map(str, segments)]), tables, days, dry_run):
            stay = {
                "not in every table": done.missing_in_table,
                "too new": done.too_new,
                "the newest of their queue": done.newest,
            }
            kept = ", ".join(f"{count} {why}" for why, count in stay.items() if count)
            deleted = "would be deleted" if dry_run else "deleted"
            text = f"{done.folder}: {counted(done.segments, 'segment')} {deleted}, {counted(done.bytes, 'byte', True)}"
            common.report(as_json, f"{text}; what stays: {kept or 'nothing'}", **done._asdict())


@contextlib.contextmanager
def _problems() -> Iterator[None]:
    """Report errors of Spark, tables and segments as messages."""
    from ordack.pipeline.bodies import SchemaError
    from ordack.pipeline.lake import IngestError, IngestUnusable
    from ordack.pipeline.segments import FolderBusy, FolderError, OptionError
    from ordack.pipeline.spark import SparkMissing

    try:
        yield
    except (SparkMissing, OptionError, SchemaError, FolderError, IngestUnusable) as error:
        if isinstance(error, FolderBusy):
            raise StoreError(str(error)) from None
        common.complain(str(error))
        raise typer.Exit(2) from None
    except IngestError as error:
        raise StoreError(str(error)) from None


CapturesArgument = Annotated[str, typer.Argument(metavar="CAPTURES", help="File, quoted pattern or folder.")]
OneSegmentsArgument = Annotated[
    str,
    typer.Argument(
        metavar="SEGMENTS", parser=common.anywhere, help="Folder of `ordack table export`, or a quoted pattern."
    ),
]


@app.command("reconcile")
def reconcile(
    captures: CapturesArgument,
    segments: OneSegmentsArgument,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Table of `ordack table ingest`.")],
    queue: Annotated[str | None, typer.Option(metavar="QUEUE", help="Compare only messages of this queue.")] = None,
    names: common.NamesOption = None,
    master: common.MasterOption = None,
    conf: common.ConfOption = None,
    as_json: common.JsonOption = False,
) -> None:
    """Compare captures, segments and table message by message.

    The command checks that segments and table hold every acknowledged message once, and no other message. It names
    messages by source and message id, with the packets that show them. Exit status: 1 differences; 3 none, but captures
    have holes, or messages are not exported or ingested yet.
    """
    with common.needs("spark"):
        from pyspark.errors import PySparkException

        from ordack.pipeline.folders import Folders
        from ordack.pipeline.lake import IngestError
        from ordack.pipeline.packets import find_files
        from ordack.pipeline.segments import FolderError, OptionError
        from ordack.pipeline.spark import SparkMissing, spark_session, words
        from ordack.reconcile.compare import collect, compare
        from ordack.reconcile.result import STATUS
    known, settings = PeerNames(read_file(None, names).names), common.spark_settings(conf)
    try:
        source = Folders([segments], queue)
        find_files(captures, common.complain)
        places = {"captures": captures, "segments": segments, "table": table}
        with common.activity("reconciling"):
            spark = spark_session(master, "ordack table reconcile", settings)
            result = collect(compare(spark, captures, source, table, queue=queue), places)
        result = replace(result, peer_names=known)
    except (SparkMissing, OptionError, FolderError, IngestError, OSError) as error:
        common.complain(common.in_words(error))
        raise typer.Exit(2) from None
    except PySparkException as error:
        common.complain(words(error))
        raise typer.Exit(2) from None
    if not result.totals["captured"]:
        whose = f"the queue managers of {segments}" if queue is None else f"the queue {queue} of {segments}"
        where = f"there is no message to {whose} in {captures}"
        common.complain(f"{where}: capture TCP port 1801 where their messages come in")
        raise typer.Exit(2)
    if as_json:
        common.report(True, "", **result.as_json())
    else:
        write("\n".join(result.lines()) + "\n")
    raise typer.Exit(STATUS[result.verdict])
