"""Options and reports that several commands share."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ordack.cli.output import Interrupted, OutputError, interruptible, write
from ordack.config.names import legible, printable
from ordack.config.paths import NotLocal, local_path, path_of
from ordack.store import StoreError

if TYPE_CHECKING:
    from ordack.client import Client


def local(text: str) -> Path:
    """Parse an option that names a file or folder, before the command does anything."""
    try:
        return Path(local_path(text))
    except NotLocal as error:
        raise typer.BadParameter(str(error)) from None


def anywhere(text: str) -> str:
    """Parse an option that names files or folders of this machine or in a bucket, before the command does anything."""
    try:
        path_of(text)
    except NotLocal as error:
        raise typer.BadParameter(str(error)) from None
    return text


def local_file(text: str) -> Path:
    """Parse an option that names an existing file."""
    path = local(text)
    if path.is_dir():
        raise typer.BadParameter(f"'{path}' is a folder: name a file")
    if not path.is_file():
        raise typer.BadParameter(f"the file '{path}' does not exist")
    return path


def report_file(text: str) -> Path:
    """For typer: the file of a report, in an existing folder."""
    path = local(text)
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a folder: name a file in it")
    if not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.parent} to write {path.name} to: make it first")
    return path


HtmlOption = Annotated[
    Path | None, typer.Option(metavar="FILE", parser=report_file, help="Write a report with plots to FILE.")
]
NamesOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", parser=local_file, help="Show the names from [names] of this ordack.toml."),
]


def default_store() -> str:
    """The store of a command without --store: ORDACK_STORE, else one folder for each user."""
    if folder := os.environ.get("ORDACK_STORE"):
        return folder
    service = Path("/var/lib/ordack")  # of the Debian package, whose user owns it
    if os.geteuid() == 0 or (service.is_dir() and service.stat().st_uid == os.geteuid()):
        return str(service)
    data = Path(os.environ.get("XDG_DATA_HOME", ""))
    return str((data if data.is_absolute() else Path.home() / ".local/share") / "ordack")


StoreOption = Annotated[
    Path,
    typer.Option(
        "--store",
        metavar="FOLDER",
        parser=local,
        default_factory=default_store,
        show_default="ORDACK_STORE, else a folder of the user",
        help="Folder of the store.",
    ),
]
MasterOption = Annotated[str | None, typer.Option(metavar="URL", help="Master URL of Spark. Default: local[*].")]
ConfOption = Annotated[list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="Spark setting. Repeatable.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


def spark_settings(conf: list[str] | None) -> dict[str, str]:
    """The Spark settings of --conf."""
    settings = {}
    for pair in conf or ():
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"--conf {pair} is not of the form KEY=VALUE")
        settings[key] = value
    return settings


def report(as_json: bool, text: str, **values: Any) -> None:
    write((json.dumps(values) if as_json else text) + "\n")


def report_done(as_json: bool, text: str, **values: Any) -> None:
    """Report the completed work. If standard output fails, the exit status is 4, so that nobody repeats the command."""
    try:
        report(as_json, text, **values)
    except (OSError, OutputError):
        complain(f"{text}; standard output did not take this report")
        sys.exit(4)


def note(client: Client, queue: str, text: str) -> None:
    """Write what an operator has done to a queue to the log of a running `serve`."""
    user = os.environ.get("SUDO_USER") or os.environ.get("USER") or f"user {os.getuid()}"
    client.access.note(queue, f"{user} by command: {text}")


def report_change(client: Client, queue: str, as_json: bool, text: str, **values: Any) -> None:
    """As `note` and report_done."""
    note(client, queue, text)
    report_done(as_json, text, **values)


WIDEST = 1 << 16  # characters in a line of a table that is not for a terminal


def print_table(texts: Sequence[str], numbers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    write(table_text(texts, numbers, rows))


def table_text(texts: Sequence[str], numbers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as text for standard output. texts, numbers: the column headings; columns of numbers come last."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for heading in texts:
        table.add_column(heading, overflow="fold")  # a truncated name is useless
    for heading in numbers:
        table.add_column(heading, justify="right", overflow="fold")
    for row in rows:
        table.add_row(*(printable(cell, "\n") for cell in row))
    text = io.StringIO()
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    width = None if is_terminal else WIDEST  # for a program, an identifier stays on one line
    # names may contain markup and emoji codes
    Console(file=text, force_terminal=is_terminal, width=width, markup=False, emoji=False).print(table)
    return text.getvalue()


@contextlib.contextmanager
def activity(description: str) -> Iterator[Callable[[str], None]]:
    """Show the activity and its duration on standard error, if that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as shown:
        task = shown.add_task(description)
        yield lambda text: shown.update(task, description=text)


@contextlib.contextmanager
def interrupted_with(say: Callable[[], str]) -> Iterator[None]:
    """On a signal, end the command with the text of `say` and exit status 128 + number."""
    try:
        with interruptible():
            yield
    except Interrupted as error:
        complain(f"interrupted: {say()}")
        raise typer.Exit(128 + error.number) from None


@contextlib.contextmanager
def needs(extra: Literal["boards", "spark", "hil"], what: str = "this command") -> Iterator[None]:
    """Wrap imports from the packages of an extra. Missing packages end the command with status 2."""
    try:
        yield
    except ModuleNotFoundError as error:
        advice = f"run `pip install '.[{extra}]'` in a checkout"
        complain(f"{what} needs the Python module {error.name}, which is not installed: {advice}")
        raise typer.Exit(2) from None


def confirm(lost: str, verb: str, what: str = "them") -> None:
    """Ask whether to lose the data; status 1 if not. Raises StoreError if there is no terminal to ask at."""
    if not (sys.stdin is not None and sys.stdin.isatty()):
        raise StoreError(f"{lost}; --yes {verb}s {what}")
    typer.echo(f"{lost}. {verb.capitalize()} {what}? [y/N] ", nl=False, err=True)  # a prompt: not on standard output
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise typer.Exit(1)


@contextlib.contextmanager
def written(option: str, path: Path) -> Iterator[None]:
    """End the command with status 2 and a message if the file of the option cannot be written."""
    try:
        yield
    except OSError as error:
        complain(f"cannot write {option} {path}: {error.strerror or error}; name a place that can be written to")
        raise typer.Exit(2) from None


def in_words(error: Exception) -> str:
    """The text of an exception; for OSError without the error number."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return f"cannot use {error.filename}: {error.strerror}" if error.filename else error.strerror


def complain(text: str) -> None:
    """Write to standard error. If that fails, the command goes on."""
    log_line(f"ordack: {text}")


def log_line(text: str) -> None:
    if sys.stderr is not None:  # None: closed at start; descriptor 2 may belong to the store by now
        with contextlib.suppress(OSError, ValueError):
            os.write(sys.stderr.fileno(), f"{legible(text)}\n".encode())
