"""The commands `ordack interop`: trials of other queue managers."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from ordack.cli.common import JsonOption, activity, complain, local, report, table_text
from ordack.cli.output import write

if TYPE_CHECKING:
    from ordack.interop.run import Outcome, Settings

app = typer.Typer(no_args_is_help=True, help="Try how this queue manager and another one get on.")
STATUS = {"held": 0, "did not hold": 1, "not judged": 3}
NO_MEETING = 5


@app.callback()
def interop() -> None:
    """Try how this queue manager and another one get on."""


@app.command("windows")
def windows(
    host: Annotated[
        str,
        typer.Argument(metavar="HOST[:PORT]", help="The Windows machine, by an IP address or name that is its own."),
    ],
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST[:PORT]",
            help="Where Windows is to connect to here. Default: the address that the way there leads over, port 1801, "
            "the only one that Windows knows.",
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(help="What Windows calls this machine, if that is not the address of --listen, as behind a NAT."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            parser=local,
            help="New folder for capture, log, audit and report. Default: ordack-interop-DATE-TIME, in this one.",
        ),
    ] = None,
    messages: Annotated[int, typer.Option(min=1, max=100_000, help="Transactional messages, each way.")] = 1000,
    cuts: Annotated[
        int | None,
        typer.Option(
            min=0, help="Connections to cut while they move, each way. Default: 10, but one for 10 messages at most."
        ),
    ] = None,
    patience: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="How long anything that is expected may take.")
    ] = 60,
    seed: Annotated[int | None, typer.Option(help="Seed of the cuts, to make the same ones again.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="CLAIM", help="Judge this claim alone, by its name in --json; may be repeated."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Try MSMQ on a Windows machine, where host/examples/windows/ordack-interop.ps1 must run.

    Messages of all kinds go both ways, connections are cut, dead letters and acknowledgements are asked for. A table
    says of each claim whether it held. The folder has all that is needed to find out why one did not.

    Exit status: 0 all claims held; 1 one did not; 2 wrong usage, or this side cannot start; 3 none was broken, but one
    could not be judged; 5 the other side does not answer; above 128 ended by a signal.
    """
    from ordack.interop.run import settings_of

    with _mistakes():
        settings = settings_of(host, listen, address, out, messages, cuts, patience, seed, only or ())
    outcome = _try(settings, as_json)
    raise typer.Exit(_status(outcome))


@contextlib.contextmanager
def _mistakes() -> Iterator[None]:
    """An option that cannot be, and a trial that cannot begin or go on, end the command with a sentence."""
    from ordack.interop.here import TrialError

    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    except TrialError as error:
        complain(str(error))
        raise typer.Exit(2) from None


def _try(settings: Settings, as_json: bool) -> Outcome:
    """The trial, saved and shown."""
    from ordack.interop.run import run
    from ordack.interop.verdict import save, summary

    try:
        with _mistakes():
            with _signals() as stopped, activity("trying") as show:
                outcome = run(settings, show, stopped)
            table = _table(outcome)
            save(outcome, settings, table)
    except OSError as error:
        complain(f"cannot write {error.filename or 'the report'}: {error.strerror or error}")
        raise typer.Exit(2) from None
    _show(outcome, settings, table, summary(outcome), as_json)
    return outcome


def _status(outcome: Outcome) -> int:
    if outcome.stopped:
        return 128 + outcome.stopped
    return STATUS[outcome.verdict] if outcome.greeting else NO_MEETING


def _table(outcome: Outcome) -> str:
    """The rows that say something."""
    from ordack.interop.run import NOT_MET, STOPPED

    return table_text(
        ("claim", "verdict", "found", "what to do"),
        (),
        [
            (row.claim.title, row.verdict, row.found, row.advice)
            for row in outcome.rows
            if row.found not in (NOT_MET, STOPPED)
        ],
    )


def _show(outcome: Outcome, settings: Settings, table: str, text: str, as_json: bool) -> None:
    if as_json:
        for row in outcome.rows:
            report(True, "", **row.as_json())
        report(True, "", **outcome.as_json(settings))
        return
    write(table)
    write(f"{text}\nseed {settings.seed}; capture, log and report are in {settings.folder}\n")
    for note in outcome.notes:
        write(f"{note}\n")


@contextlib.contextmanager
def _signals() -> Iterator[Callable[[], int]]:
    """The number of the signal that is to end the trial, 0 before. The first is heeded in order, a second at once."""
    came = 0

    def note(number: int, _frame: FrameType | None) -> None:
        nonlocal came
        if came:
            sys.exit(128 + number)
        came = number
        complain("stopping in order, which takes some seconds; once more stops at once")

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
