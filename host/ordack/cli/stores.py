"""The commands `ordack init` and `ordack store`: a store as a whole."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from mqqb import guids

from ordack.cli.common import (
    JsonOption,
    StoreOption,
    activity,
    complain,
    default_store,
    interrupted_with,
    local,
    report,
    report_done,
)
from ordack.cli.queues import reset_stream, streams
from ordack.config.names import counted, printable

if TYPE_CHECKING:
    from ordack.store.backup import Contents

CONFIGURATION = "ordack.toml"

app = typer.Typer(no_args_is_help=True, help="Check, back up or restore a store.")


@contextlib.contextmanager
def _copying(nothing: str) -> Iterator[Callable[[int, int], None]]:
    """Show the progress. A signal ends the command with exit status 128 + number and the text `nothing`."""
    from ordack.store.disk import megabytes

    with activity("reading the store") as show, interrupted_with(lambda: nothing):
        yield lambda done, size: show(
            f"{megabytes(done)} of {megabytes(size)} copied" if done < size else "checking the copy"
        )


def init(store: StoreOption, as_json: JsonOption = False) -> None:
    """Create a store in an empty or new folder."""
    from ordack.store import Store, StoreError

    with Store(store, create=True) as opened:
        if not opened.is_new:
            raise StoreError(f"{store} already contains a store: choose another folder with --store")
        guid = guids.guid_text(opened.guid)
    option = f" --store {shlex.quote(str(store))}" if str(store) != default_store() else ""
    text = f"store created in {store}; next: `ordack queue create NAME{option}`, then `ordack serve{option}`"
    report_done(as_json, text, store=str(store), guid=guid)


@app.command("check")
def store_check(store: StoreOption, as_json: JsonOption = False) -> None:
    """Check the store for damage, while it is in use.

    The command reads every page, and counts queues and messages.
    """
    from ordack.store.backup import inspect_backup
    from ordack.store.disk import megabytes

    with activity("reading the store"):
        contents = inspect_backup(store)
    fate = "damaged" if contents.problems else "whole"
    size = f"{megabytes(contents.size)}, format version {contents.version}"
    problems = contents.problems
    text = "\n".join(map(printable, [f"{store}: {fate}, {_amount(contents)}, {size}", *problems]))
    report(as_json, text, store=str(store), whole=not problems, problems=problems, **_values(contents))
    if problems:
        complain("restore a backup; until then, receive what can still be received")
        raise typer.Exit(1)


@app.command("backup")
def backup(
    to: Annotated[Path, typer.Argument(metavar="TO", parser=local, help="New file for the copy.")],
    store: StoreOption,
    as_json: JsonOption = False,
) -> None:
    """Copy the store to one new file, while it is in use.

    The copy shows the store at one moment, and is checked. Nobody waits. Back up ordack.toml yourself.
    """
    from ordack.store.backup import make_backup

    with _copying("no backup was made") as progress:
        contents = make_backup(store, to, progress)
    text = f"backup of {store} made: {to}, {_amount(contents)}"
    report_done(as_json, text, store=str(store), backup=str(to), **_values(contents))
    if (store / CONFIGURATION).exists():
        complain(f"{store / CONFIGURATION} is not in the backup: copy it, too")


@app.command("restore")
def restore(
    backup: Annotated[Path, typer.Argument(metavar="BACKUP", parser=local, help="A file of `ordack store backup`.")],
    store: StoreOption,
    as_json: JsonOption = False,
) -> None:
    """Create a store from a backup, in an empty or new folder."""
    from ordack.store import backup as backups

    with _copying("nothing was restored") as progress:
        contents = backups.restore(backup, store, progress)
    lost = (
        "Messages received after the backup are back in their queues; messages sent or accepted after it are missing. "
        "Consumers recognize a repeated message by its message_key"
    )
    text = f"restored {store} from {backup}: {_amount(contents)}\n{lost}"
    report_done(as_json, text, store=str(store), backup=str(backup), note=lost, **_values(contents))


@app.command("renew-identity")
def renew_identity(store: StoreOption, as_json: JsonOption = False) -> None:
    """Give a copied store its own GUID. Stop `ordack serve` first.

    Pending messages end, because nobody can acknowledge them under the old GUID. Messages with --dead-letter go to the
    dead-letter queue.
    """
    from ordack.store import Store, StoreBusy, StoreError

    with Store(store) as opened:
        try:
            guid = guids.guid_text(opened.renew_identity())
        except StoreBusy as error:
            raise StoreError(f"{error}: stop it first") from None
    report_done(as_json, f"{store} has the GUID {guid}", store=str(store), guid=guid)


def _amount(contents: Contents) -> str:
    return (
        f"{counted(contents.messages, 'message')} in {counted(contents.queues, 'queue')}, "
        f"{counted(contents.outgoing, 'message')} on the way to others"
    )


def _values(contents: Contents) -> dict[str, int]:
    return {
        "messages": contents.messages,
        "outgoing": contents.outgoing,
        "queues": contents.queues,
        "bytes": contents.size,
        "format_version": contents.version,
    }


app.command("streams")(streams)
app.command("reset-stream")(reset_stream)
