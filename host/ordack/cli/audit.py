"""The command `ordack capture audit`."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
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
    list[str] | None,
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
        help="Write streams, sequences, senders and violations as Parquet and JSON.",
    ),
]
MasterOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="Master URL of Spark. Default: local Spark for captures over 1 GiB on 8 processors or more."
    ),
]
FollowOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        parser=common.local,
        help="Audit a folder with arriving captures until a signal. Replaces PATH.",
    ),
]
CheckpointOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        parser=common.local,
        help="With --follow: folder for the progress. The next audit continues there.",
    ),
]


def audit(
    captures: CapturesArgument = None,
    out: OutOption = None,
    html: common.HtmlOption = None,
    names: common.NamesOption = None,
    master: MasterOption = None,
    conf: common.ConfOption = None,
    no_spark: Annotated[bool, typer.Option("--no-spark", help="Audit in this process, without Spark.")] = False,
    follow: FollowOption = None,
    checkpoint: CheckpointOption = None,
    once: Annotated[bool, typer.Option("--once", help="With --follow: end when all files are audited.")] = False,
    as_json: common.JsonOption = False,
) -> None:
    """Check captures: was every stream exactly once, in order?

    Exit status: 0 no violations; 1 violations; 2 wrong usage, Spark is missing, or unusable input, such as captures
    without MSMQ packets; 3 no violations, but the evidence is incomplete: a verdict is unknown, or packets are missing
    or unreadable. With --follow the status covers all files.
    """
    if (follow is None) == (not captures):
        raise typer.BadParameter("give either captures or --follow FOLDER")
    if (follow is None) != (checkpoint is None) or (once and follow is None):
        raise typer.BadParameter("--follow FOLDER and --checkpoint FOLDER go together, and --once with them")
    with common.needs("spark"):
        from pyspark.errors import PySparkException

        from ordack.audit import tasks
        from ordack.pipeline.packets import find_files
        from ordack.pipeline.segments import OptionError
        from ordack.pipeline.spark import SparkMissing, spark_session, words

    if no_spark and (master is not None or conf):
        raise typer.BadParameter("--no-spark excludes --master and --conf")
    known, settings = PeerNames(read_file(None, names).names), common.spark_settings(conf)
    if follow is not None and checkpoint is not None:
        if master is not None or conf:
            raise typer.BadParameter("--follow works in this process: it excludes --master and --conf")
        _follow_audit(follow, checkpoint, once, out, html, known, as_json)
        return
    try:
        files = list(dict.fromkeys(file for path in captures or () for file in find_files(path, common.complain)))
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


def _follow_audit(
    folder: Path, checkpoint: Path, once: bool, out: Path | None, html: Path | None, names: PeerNames, as_json: bool
) -> None:
    """Audit a growing folder, and report each change."""
    with common.needs("spark"):
        from ordack.audit import files, tasks
        from ordack.audit.follow import Follower, FollowError
        from ordack.audit.result import count_text

    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stopped.set())
    result: AuditResult | None = None
    named = set[str]()
    try:
        follower = Follower(folder, checkpoint)
        with follower.lock():
            if going_on := follower.going_on():
                common.complain(going_on)
            for step, result in follower.reports(once, stopped.is_set):
                for path in sorted(follower.passed_over - named):
                    common.complain(f"passed over: {path} is no pcap or pcapng file, packed with gzip or zstd or not")
                named |= follower.passed_over
                if once:
                    tasks.require_packets(result)
                result = replace(result, names=names)
                _save_audit(result, out, html)
                if once:
                    _show_audit(result, as_json)
                else:
                    head, second, *_, last = files.text_of(result, 0)
                    text = f"{count_text(len(result.paths), 'file')}: {head}; {second}; {last}"
                    common.report(as_json, text, step=step, files=len(result.paths), **result.summary)
            if result is None:
                raise tasks.CaptureUnusable(f"there was nothing to judge: no packet of the protocol in {folder} so far")
            tasks.require_packets(result)
    except (tasks.CaptureUnusable, FollowError, OSError) as error:
        common.complain(common.in_words(error))
        raise typer.Exit(2) from None
    raise typer.Exit(result.verdict.status)


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
