"""The command `ordack pipeline reconcile`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from ordack.broker.peer_names import PeerNames
from ordack.cli.common import (
    ConfOption,
    JsonOption,
    MasterOption,
    NamesOption,
    activity,
    anywhere,
    complain,
    in_words,
    needs,
    report,
    spark_settings,
)
from ordack.cli.config import read_file
from ordack.cli.output import write

CapturesArgument = Annotated[
    str, typer.Argument(metavar="CAPTURES", help="A capture, a quoted pattern, or a folder: all is one capture.")
]
SegmentsArgument = Annotated[
    str, typer.Argument(metavar="SEGMENTS", parser=anywhere, help="Folder of `ordack export`, or a quoted pattern.")
]


def reconcile(
    captures: CapturesArgument,
    segments: SegmentsArgument,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Table of `ordack pipeline ingest`.")],
    queue: Annotated[str | None, typer.Option(help="Only messages to this queue. Default: all.")] = None,
    names: NamesOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check that every acknowledged message of captures is in segments and table, once, and none that was never sent.

    It names messages by source and message id, with the packets that show them. Exit status: 0 all is there, once; 1
    not so; 2 wrong usage, Spark is missing, or unusable input; 3 nothing is wrong, but something cannot be known:
    captures have holes, or messages are not exported or ingested yet.
    """
    with needs("spark"):
        from pyspark.errors import PySparkException

        from ordack.pipeline.folders import Folders
        from ordack.pipeline.lake import IngestError
        from ordack.pipeline.packets import find_files
        from ordack.pipeline.segments import FolderError, OptionError
        from ordack.pipeline.spark import SparkMissing, spark_session, words
        from ordack.reconcile.compare import collect, compare
        from ordack.reconcile.result import STATUS
    known, settings = PeerNames(read_file(None, names).names), spark_settings(conf)
    try:
        source = Folders([segments], queue)
        find_files(captures, complain)
        places = {"captures": captures, "segments": segments, "table": table}
        with activity("reconciling"):
            spark = spark_session(master, "ordack pipeline reconcile", settings)
            result = collect(compare(spark, captures, source, table, queue=queue), places)
        result = replace(result, peer_names=known)
    except (SparkMissing, OptionError, FolderError, IngestError, OSError) as error:
        complain(in_words(error))
        raise typer.Exit(2) from None
    except PySparkException as error:
        complain(words(error))
        raise typer.Exit(2) from None
    if not result.totals["captured"]:
        whose = f"the queue managers of {segments}" if queue is None else f"the queue {queue} of {segments}"
        where = f"there is no message to {whose} in {captures}"
        complain(f"{where}: capture TCP port 1801 where their messages come in")
        raise typer.Exit(2)
    if as_json:
        report(True, "", **result.as_json())
    else:
        write("\n".join(result.lines()) + "\n")
    raise typer.Exit(STATUS[result.verdict])
