"""The command `ordack capture audit`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ordack.cli import common
from ordack.cli.config import read_file
from ordack.cli.output import write
from ordack.config.names import PeerNames, legible
from ordack.config.paths import total_size

if TYPE_CHECKING:
    from ordack.audit.result import AuditResult


def _new_folder(text: str) -> Path:
    path = common.local(text)
    if path.exists() and not path.is_dir():
        raise typer.BadParameter(f"{path} is a file: name a folder")
    return path


CapturesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH...",
        parser=common.anywhere,
        help="Files, patterns or folders, also s3a://BUCKET/..., judged together.",
    ),
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        parser=_new_folder,
        help="Write streams, sequences and violations as Parquet and JSON.",
    ),
]
MasterOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="Master URL of Spark. Default: local Spark for captures over 1 GiB on 8 processors or more."
    ),
]


def audit(
    captures: CapturesArgument,
    out: OutOption = None,
    html: common.HtmlOption = None,
    names: common.NamesOption = None,
    master: MasterOption = None,
    conf: common.ConfOption = None,
    no_spark: Annotated[bool, typer.Option("--no-spark", help="Audit in this process, without Spark.")] = False,
    as_json: common.JsonOption = False,
) -> None:
    """Check captures: was every stream exactly once, in order?

    Exit status: 0 no violations; 1 violations; 3 no violations, but incomplete evidence.
    """
    with common.needs("spark"):
        from pyspark.errors import PySparkException

        from ordack.audit import tasks
        from ordack.pipeline.packets import find_files
        from ordack.pipeline.segments import OptionError
        from ordack.pipeline.spark import SparkMissing, spark_session, words

    if no_spark and (master is not None or conf):
        raise typer.BadParameter("--no-spark excludes --master and --conf")
    known, settings = PeerNames(read_file(None, names).names), common.spark_settings(conf)
    try:
        files = list(dict.fromkeys(file for path in captures for file in find_files(path, common.complain)))
        size = total_size(files)
        alone = master is None and tasks.shares(size, os.cpu_count() or 1) == 1
        with _audit_progress() as show:
            spark = None if no_spark or alone else spark_session(master, "ordack capture audit", settings)
            result = tasks.run(files, spark=spark, progress=show)
        tasks.require_packets(result)
        result = replace(result, names=known)
        _save_audit(result, out, html)
    except (tasks.CaptureUnusable, OptionError, SparkMissing, OSError) as error:
        common.complain(common.in_words(error))
        raise typer.Exit(2) from None
    except PySparkException as error:
        common.complain(words(error))
        raise typer.Exit(2) from None
    _show_audit(result, as_json)
    raise typer.Exit(result.verdict.status)


def _save_audit(result: AuditResult, out: Path | None, html: Path | None) -> None:
    """Write the files that --out and --html name."""
    from ordack.audit import files

    for option, path in (("--out", out), ("--html", html)):
        if path is None:
            continue
        with common.written(option, path):
            if option == "--out":
                files.save(result, path)
            else:
                from ordack.audit import html_page

                html_page.write(result, path)


def _show_audit(result: AuditResult, as_json: bool) -> None:
    from ordack.audit import files

    if as_json:
        common.report(True, "", **result.summary)
    else:
        lines = [*files.streams_text(result), *files.text_of(result)]
        write("\n".join(map(legible, lines)) + "\n")


@contextlib.contextmanager
def _audit_progress() -> Iterator[Callable[[int], None]]:
    """Count packets, and show the count."""
    with common.activity("auditing") as show:
        total = 0

        def told(packets: int) -> None:
            nonlocal total
            total += packets
            show(f"{total:,} packets")

        yield told
