"""The command `ordack`. host/docs/commands.md has the exit statuses.

What only one command needs is imported when that command runs: a receive in a script should cost milliseconds.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ordack.look import open_to_look
from ordack.names import BadName, destination
from ordack.output import OutputError, save, write, write_bytes
from ordack.paths import NotLocal, local_path
from ordack.store import (
    SYSTEM,
    QueueExists,
    QueueNotEmpty,
    Store,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreUnknown,
    counted,
    legible,
)

if TYPE_CHECKING:
    from ordack.audit.result import Result
    from ordack.client import Message
    from ordack.config import Config, SerialSettings
    from ordack.log import Log

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
queue_app = typer.Typer(no_args_is_help=True, help="Create, list, limit, purge or delete queues.")
app.add_typer(queue_app, name="queue")
outgoing_app = typer.Typer(
    no_args_is_help=True, help="List, pause, resume, resend or purge what waits for other machines."
)
app.add_typer(outgoing_app, name="outgoing")
board_app = typer.Typer(no_args_is_help=True, help="Set up, check or rescue a board with MicroPython on a serial port.")
app.add_typer(board_app, name="board")
pipeline_app = typer.Typer(no_args_is_help=True, help="Load exported messages into a table with Spark.")
app.add_typer(pipeline_app, name="pipeline")


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        try:
            write(f"ordack {metadata.version('ordack')}\n")
        except metadata.PackageNotFoundError:
            write("ordack, run from a folder and not installed\n")
        raise typer.Exit


@app.callback()
def ordack(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """A queue manager for the MSMQ binary protocol."""


def local(text: str) -> Path:
    """Parse an option that names a file or folder, before the command does anything."""
    try:
        return Path(local_path(text))
    except NotLocal as error:
        raise typer.BadParameter(str(error)) from None


def _local_file(text: str) -> Path:
    """Parse an option that names an existing file."""
    path = local(text)
    if not path.is_file():
        raise typer.BadParameter(f"the file '{path}' does not exist")
    return path


StoreOption = Annotated[
    Path, typer.Option("--store", metavar="FOLDER", parser=local, envvar="ORDACK_STORE", help="Folder of the store.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
FormatNameArgument = Annotated[
    str, typer.Argument(help="Format name of the outgoing queue, as `ordack outgoing list` shows it.")
]
NameArgument = Annotated[str, typer.Argument(help="Queue name: line1, or in MSMQ's form .\\private$\\line1.")]


def _report(as_json: bool, text: str, **values: Any) -> None:
    write((json.dumps(values) if as_json else text) + "\n")


def _done(as_json: bool, text: str, **values: Any) -> None:
    """Report what was done. If standard output fails, the exit status is 4, so that nobody repeats the command."""
    try:
        _report(as_json, text, **values)
    except (OSError, OutputError):
        _complain(f"{text}; standard output did not take this report")
        sys.exit(4)


@queue_app.command("create")
def queue_create(
    name: NameArgument,
    store: StoreOption,
    transactional: Annotated[
        bool, typer.Option("--transactional", help="Take only transactional messages, which boards send.")
    ] = False,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if the queue exists and is of the same kind.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Create a private queue, and the store if there is none."""
    with Store(store, create=True) as opened:
        _tell_if_new(opened)
        try:
            queue = opened.create_queue(name, transactional)
            created = True
        except QueueExists:
            queue = opened.queue(name)
            if not if_not_exists:
                raise
            if queue.transactional != transactional:
                raise StoreError(
                    f"the queue {queue.name} exists and is {'' if queue.transactional else 'not '}"
                    "transactional: delete it first, or use it as it is"
                ) from None
            created = False
    _done(
        as_json,
        f"created {queue.name}" if created else f"{queue.name} exists",
        name=queue.name,
        created=created,
        transactional=queue.transactional,
        id=queue.identifier,
    )


@queue_app.command("list")
def queue_list(
    store: StoreOption,
    as_json: JsonOption = False,
    system: Annotated[bool, typer.Option("--system", help="Include system queues.")] = False,
) -> None:
    """List the queues with the number and size of their messages."""
    with open_to_look(store) as opened:
        queues = [queue for queue in opened.queues() if system or queue.kind != SYSTEM]
    if as_json:
        for queue in queues:
            _report(
                True,
                "",
                name=queue.name,
                id=queue.identifier,
                transactional=queue.transactional,
                system=queue.kind == SYSTEM,
                quota=queue.quota,
                messages=queue.messages,
                bytes=queue.bytes,
            )
        return
    _table(
        ("queue", "kind"),
        ("messages", "bytes", "quota"),
        [
            (
                queue.name,
                "transactional" if queue.transactional else "",
                str(queue.messages),
                str(queue.bytes),
                "" if queue.quota is None else str(queue.quota),
            )
            for queue in queues
        ],
    )


def _table(texts: Sequence[str], numbers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for heading in texts:
        table.add_column(heading, overflow="fold")  # a name that is cut is of no use
    for heading in numbers:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*row)
    text = io.StringIO()
    Console(file=text, force_terminal=sys.stdout is not None and sys.stdout.isatty()).print(table)
    write(text.getvalue())


@queue_app.command("quota")
def queue_quota(
    name: NameArgument,
    store: StoreOption,
    quota: Annotated[
        str | None, typer.Argument(help='New limit in bytes, or "none". Without it the command shows the limit.')
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show or set the limit of a queue in bytes, also of a journal or dead-letter queue."""
    from ordack.config import parse_quota
    from ordack.store import CLOSED_QUEUES

    try:
        limit = parse_quota(quota) if quota is not None else None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    with open_to_look(store) if quota is None else Store(store) as opened:
        queue = opened.queue(name)
        if quota is None:
            limit = queue.quota
        elif queue.name in CLOSED_QUEUES:
            raise StoreError(f"{queue.name} is the queue manager's own queue: it has no quota (B-085)")
        else:
            opened.set_quota(name, limit)
    (_report if quota is None else _done)(
        as_json, f"{name}: " + ("no limit" if limit is None else f"{limit} bytes"), name=name, quota=limit
    )


@queue_app.command("purge")
def queue_purge(name: NameArgument, store: StoreOption, as_json: JsonOption = False) -> None:
    """Remove all messages from a queue. Senders who asked for it are told."""
    from ordack.client import Client

    with Client(store) as client:
        removed = client.purge_queue(name)
    _done(as_json, f"removed {counted(removed, 'message')}", name=name, removed=removed)


@queue_app.command("delete")
def queue_delete(
    name: NameArgument,
    store: StoreOption,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask, also if the queue holds messages.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete a queue. Asks first if it holds messages. Senders who asked for it are told."""
    from ordack.client import Client

    with Client(store) as client:
        try:
            removed = client.delete_queue(name, only_empty=not yes)
        except QueueNotEmpty as error:
            if not (sys.stdin is not None and sys.stdin.isatty()):
                raise StoreError(f"{error}; --yes deletes them") from None
            typer.echo(f"{error}. Delete them? [y/N] ", nl=False, err=True)  # a prompt would write to standard output
            if sys.stdin.readline().strip().lower() not in ("y", "yes"):
                raise typer.Exit(1) from None
            removed = client.delete_queue(name)
    _done(as_json, f"deleted {name} with {counted(removed, 'message')}", name=name, removed=removed)


@outgoing_app.command("list")
def outgoing_list(store: StoreOption, as_json: JsonOption = False) -> None:
    """List what waits for other queue managers, and why.

    "not acknowledged": not known to have arrived. "not read": arrived, and kept until it is known to be received. The
    state of connections comes from a running `ordack serve`; --json shows all of it.
    """
    import time

    from ordack import status

    with open_to_look(store) as opened:
        queues = status.outgoing(opened, opened.status(), time.time())
    if as_json:
        for queue in queues:
            _report(True, "", **queue)
        return
    _table_of_outgoing(queues)


def _table_of_outgoing(queues: Sequence[dict[str, Any]]) -> None:
    _table(
        ("outgoing queue", "state"),
        ("messages", "bytes", "not acknowledged", "not read"),
        [
            (
                queue["format_name"],
                queue["state"],
                *(str(queue[name]) for name in ("messages", "bytes", "not_order_acked", "not_read")),
            )
            for queue in queues
        ],
    )
    for queue in queues:
        if queue["why"]:
            write(f"{queue['format_name']}: {queue['why']}\n")


def _change_outgoing(
    store: Path, format_name: str, done: str, as_json: bool, change: Callable[[Store, str], bool]
) -> None:
    format_name = destination(format_name)
    with Store(store) as opened:
        if not change(opened, format_name):
            raise StoreError(f"there is no outgoing queue {format_name}; `ordack outgoing list` shows them")
    _done(as_json, f"{format_name}: {done}", format_name=format_name, done=done)


@outgoing_app.command("pause")
def outgoing_pause(name: FormatNameArgument, store: StoreOption, as_json: JsonOption = False) -> None:
    """Stop sending from an outgoing queue until it is resumed."""
    _change_outgoing(store, name, "on hold", as_json, lambda opened, queue: opened.set_on_hold(queue, True))


@outgoing_app.command("resume")
def outgoing_resume(name: FormatNameArgument, store: StoreOption, as_json: JsonOption = False) -> None:
    """Continue sending from a paused outgoing queue."""
    _change_outgoing(store, name, "resumed", as_json, lambda opened, queue: opened.set_on_hold(queue, False))


@outgoing_app.command("resend")
def outgoing_resend(name: FormatNameArgument, store: StoreOption, as_json: JsonOption = False) -> None:
    """Resend now what is not acknowledged, instead of waiting for the resend interval."""
    _change_outgoing(store, name, "resend requested", as_json, lambda opened, queue: opened.request_resend(queue))


@outgoing_app.command("purge")
def outgoing_purge(name: FormatNameArgument, store: StoreOption, as_json: JsonOption = False) -> None:
    """Give up all messages of an outgoing queue.

    `ordack serve` removes them, and moves those that ask for it to the dead-letter queue. A message that has arrived
    may still be received. If the queue holds acknowledgements for another queue manager, that one will not learn what
    became of its messages.
    """
    from ordack.pieces import purge_outgoing

    name = destination(name)
    with Store(store) as opened:
        queue = opened.find_outgoing_queue(name)
        if queue is None:
            raise StoreError(f"there is no outgoing queue {name}; `ordack outgoing list` shows them")
        removed = purge_outgoing(opened, queue.identifier)
    _done(as_json, f"{counted(removed, 'message')} will be removed from {name}", format_name=name, removed=removed)


@app.command()
def state(
    store: StoreOption,
    message_id: Annotated[
        int | None, typer.Argument(min=1, max=0xFFFFFFFF, help="MessageID that `ordack send` printed.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what became of a transactional message sent from here, and why it waits.

    Without a MessageID: show the sessions and serial lines of a running `ordack serve`. Exit status 1: nothing is known
    of the message, or no `ordack serve` runs.
    """
    from ordack import status
    from ordack.client import Client

    if message_id is None:
        with open_to_look(store) as opened:
            shown = opened.status()
        if shown is None:
            raise StoreError(f"no queue manager runs on {store}")
        if as_json:
            _report(True, "", sessions=shown["sessions"], serial=shown["serial"])
        else:
            _tables_of_sessions(shown)
        return
    with Client(store, look=True) as client:
        told = status.of_message(client, message_id)
    if told is None:
        _report(
            as_json,
            f"nothing is known of a transactional message {message_id} sent from here",
            message_id=message_id,
            state=None,
        )
        raise typer.Exit(1)
    _report(as_json, told["why"], **told)


@app.command("status")
def status_command(store: StoreOption, as_json: JsonOption = False) -> None:
    """Show the whole store: whether it is served, who is connected, what is in the queues, what waits and why.

    Exit status: 0 everything moves; 1 something keeps messages from moving, or the store is not served. The last lines
    say what.
    """
    from ordack import status

    with open_to_look(store) as opened:
        told = status.glance(opened)
    if as_json:
        _report(True, "", **told)
    else:
        write(status.served_text(told) + "\n")
        _table(
            ("queue", "kind"),
            ("messages", "bytes", "quota"),
            [
                (
                    queue["name"],
                    "system" if queue["system"] else "transactional" if queue["transactional"] else "",
                    str(queue["messages"]),
                    str(queue["bytes"]),
                    "" if queue["quota"] is None else str(queue["quota"]),
                )
                for queue in told["queues"]
            ],
        )
        if told["served"]:
            _tables_of_sessions(told)
        waiting = [queue for queue in told["outgoing"] if queue["messages"]]
        if waiting:
            _table_of_outgoing(waiting)
        for problem in told["problems"]:
            if not any(problem.endswith(f": {queue['why']}") for queue in waiting):  # these stand there already
                write(f"{problem}\n")
    if told["problems"]:
        raise typer.Exit(1)


def _tables_of_sessions(shown: dict[str, Any]) -> None:
    _table(
        ("session with", "address", "queue manager", "state", "opened by"),
        (),
        [
            (
                session["name"],
                session["address"],
                session["guid"],
                session["state"],
                "this side" if session["initiator"] else "it",
            )
            for session in shown["sessions"]
        ],
    )
    if shown["serial"]:
        _table(
            ("serial line", "port", "state", "last end"),
            ("baud", "connections", "faults"),
            [
                (
                    line["host"],
                    line["serial"],
                    line["state"],
                    line["last_end"],
                    str(line["baud"]),
                    str(line["connections"]),
                    str(line["faults"]),
                )
                for line in shown["serial"]
            ],
        )


@app.command()
def config(
    store: StoreOption,
    name: Annotated[str | None, typer.Argument(help="Name of a setting. Without it the command lists all.")] = None,
    value: Annotated[str | None, typer.Argument(help='New value, or "default".')] = None,
    as_json: JsonOption = False,
) -> None:
    """Show or change settings of the queue manager, under their names in the Windows registry.

    Applications use a new value at once, `ordack serve` from its next start.
    """
    from ordack.config import SETTINGS, check_setting, setting_name

    if name is None:
        with open_to_look(store) as opened:
            changed = opened.configuration()
        rows = [(known, changed.get(known, setting.absent), setting) for known, setting in SETTINGS.items()]
        if as_json:
            for known, held, _ in rows:
                _report(True, "", **_setting(known, held))
        else:
            _table(
                ("setting", "meaning"),
                ("value",),
                [(known, setting.meaning, "absent" if held is None else str(held)) for known, held, setting in rows],
            )
        return
    try:
        known = setting_name(name)
        number = None if value is None or value == "default" else check_setting(known, value)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    with open_to_look(store) if value is None else Store(store, create=True) as opened:
        _tell_if_new(opened)
        if value is not None:
            opened.configure(known, number)
        held = opened.configuration().get(known, SETTINGS[known].absent)
    (_report if value is None else _done)(
        as_json, f"{known} {'absent' if held is None else held}", **_setting(known, held)
    )


def _setting(name: str, value: int | None) -> dict[str, Any]:
    from ordack.config import SETTINGS

    setting = SETTINGS[name]
    return {
        "name": name,
        "value": value,
        "default": setting.absent,
        "minimum": setting.minimum,
        "maximum": setting.maximum,
        "meaning": setting.meaning,
    }


@app.command()
def identity(
    store: StoreOption,
    as_json: JsonOption = False,
    renew: Annotated[bool, typer.Option("--renew", help="Give a copied store an identity of its own.")] = False,
) -> None:
    """Show the queue manager's GUID, or give it a new one.

    Messages that wait under the old GUID end, because nobody can acknowledge them. Those that ask for it go to the
    dead-letter queue.
    """
    from mqqb import guids

    with Store(store) if renew else open_to_look(store) as opened:
        try:
            guid = guids.guid_text(opened.renew_identity() if renew else opened.guid)
        except StoreBusy as error:
            raise StoreError(f"{error}: stop it first") from None
    (_done if renew else _report)(as_json, guid, guid=guid, renewed=renew)


@app.command()
def send(
    destination: Annotated[
        str,
        typer.Argument(
            help="Name of a local queue, or a format name: DIRECT=TCP:10.0.0.5\\private$\\line1, "
            "DIRECT=OS:plant\\private$\\line1, PRIVATE=<GUID of a queue manager>\\<number of its queue>."
        ),
    ],
    store: StoreOption,
    body: Annotated[str | None, typer.Option(help="The body.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=local,
            help="Read the body from a file; - is standard input, which is also the default.",
        ),
    ] = None,
    label: Annotated[str, typer.Option(help="At most 249 characters.")] = "",
    priority: Annotated[int, typer.Option(min=0, max=7, help="7 is received first.")] = 3,
    delivery: Annotated[
        str | None,
        typer.Option(
            help="express, recoverable or transactional. Default: what a local queue takes, else transactional."
        ),
    ] = None,
    ttrq: Annotated[
        int | None, typer.Option(help="Seconds to reach its queue. 0 counts as 10, one attempt. Default: four days.")
    ] = None,
    ttbr: Annotated[int | None, typer.Option(help="Seconds to be received. Default: no limit.")] = None,
    dead_letter: Annotated[
        bool,
        typer.Option(
            "--dead-letter", help="Keep the message in a dead-letter queue if it is not known to be delivered."
        ),
    ] = False,
    journal: Annotated[
        bool, typer.Option("--journal", help="Keep a copy in the journal when the message is delivered.")
    ] = False,
    dead_letter_queue: Annotated[
        str | None,
        typer.Option(help="A transactional queue here that takes the place of the system's dead-letter queue."),
    ] = None,
    acknowledge: Annotated[
        list[str] | None,
        typer.Option(
            help="reach-queue, receive, nack-reach-queue or nack-receive: what to tell the administration queue."
        ),
    ] = None,
    administration_queue: Annotated[
        str | None,
        typer.Option(help="Where acknowledgements go: a queue here that is not transactional, or a format name."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Send one message. It is on disk when the command ends; it travels to another machine when `ordack serve` runs."""
    if body is not None and file is not None:
        raise typer.BadParameter("give --body or --file, not both")
    from ordack.client import Client

    if body is not None:
        content = os.fsencode(body)
    elif file is not None and str(file) != "-":
        try:
            content = file.read_bytes()
        except OSError as error:
            raise typer.BadParameter(f"cannot read {file}: {error.strerror}") from None
    elif sys.stdin is not None:
        content = sys.stdin.buffer.read()
    else:
        raise typer.BadParameter("standard input is closed: give --body or --file")
    with Client(store) as client:
        try:
            sent = client.send(
                destination,
                content,
                label,
                priority,
                delivery,
                ttrq=ttrq,
                ttbr=ttbr,
                dead_letter=dead_letter,
                journal=journal,
                dead_letter_queue=dead_letter_queue,
                acknowledge=acknowledge or (),
                administration_queue=administration_queue,
            )
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        discarded = 0 if dead_letter else client.last_discarded(destination)
    if discarded:
        from ordack import classes, names

        named = names.destination(destination)
        _complain(
            f"the latest message to {destination} is lost: {classes.words(discarded, named)}. This one asks "
            "for no dead letter either: --dead-letter keeps it if it is not delivered"
        )
    _done(
        as_json,
        f"sent message {sent.message_id} to {destination}, {sent.delivery}",
        destination=destination,
        **sent._asdict(),
    )


@app.command()
def receive(
    name: NameArgument,
    store: StoreOption,
    as_json: JsonOption = False,
    count: Annotated[int | None, typer.Option(min=0, help="Take at most this many messages.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Take all messages that are in the queue.")] = False,
    peek: Annotated[
        bool, typer.Option("--peek", help="Leave the messages in the queue. Shows all of them unless --count is given.")
    ] = False,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Take all messages, then those that arrive, until --count or a signal ends it."),
    ] = False,
    raw: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=local,
            help="Write the body of one message, byte by byte, to this new file, and "
            "print nothing; - is standard output.",
        ),
    ] = None,
) -> None:
    """Take one message from a queue, or more: print it, then remove it.

    A message is removed only after its line was written: to disk, if standard output is a file; to the reader, if it is
    a pipe. If the command ends early, the other messages stay in the queue, and standard error says how many were
    removed and which was the last. If it is killed in between, the next receive prints the last line again.
    """
    if peek and follow:
        raise typer.BadParameter("--peek and --follow do not go together")
    if count is not None and everything:
        raise typer.BadParameter("--count and --all do not go together")
    if raw is not None and (as_json or everything or follow or count is not None):
        raise typer.BadParameter(
            "--raw takes the body of one message: it does not go with --json, --count, --all, --follow"
        )
    from itertools import islice

    from ordack.client import Client
    from ordack.drain import Drain, Interrupted

    one = 1 if raw is not None or not (everything or peek or follow) else sys.maxsize
    left = one if count is None else min(count, sys.maxsize)
    show = _shown(raw, as_json)
    with Client(store, look=peek) as client:
        queue = client.queue(name)
        if peek:
            shown = [show(message) for message in islice(queue.peek(), left)]
            if raw is not None and not shown:
                raise StoreError(f"there is no message in {queue.name}")
            return
        drain = Drain(queue, show)
        try:
            drain.run(left, float("inf") if follow else 0.0)
        except BrokenPipeError:
            _complain(f"the reader of standard output has gone; {drain}")
            raise typer.Exit(1) from None
        except OutputError as error:
            raise StoreError(f"{error}; {drain}") from None
        except StoreError as error:
            raise type(error)(f"{error}; {drain}") from None
        except Interrupted as error:
            _complain(str(drain))
            raise typer.Exit(128 + error.number) from None
        if raw is not None and not drain.removed:
            raise StoreError(f"there is no message in {queue.name}")


@app.command()
def export(
    names: Annotated[list[str], typer.Argument(metavar="QUEUE...", help="Names of queues.")],
    store: StoreOption,
    to: Annotated[
        Path, typer.Option(metavar="FOLDER", parser=local, help="Folder for the segments, created if there is none.")
    ],
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more when the queues are empty.")] = False,
    rows: Annotated[int, typer.Option(min=1, max=1_000_000, help="Largest number of messages in a segment.")] = 10_000,
    age: Annotated[
        float, typer.Option(min=0, help="With --follow: seconds that a message waits for others to share its segment.")
    ] = 1.0,
    anew: Annotated[
        bool,
        typer.Option(
            "--anew",
            help="Give up a recorded segment whose file or folder is lost, or let FOLDER replace one that is gone.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Move messages from queues to Parquet files (segments), each message to exactly one.

    A segment never changes. Export is the message's receipt: senders who asked for it are told. Nothing is lost or
    doubled if the command is killed; the next export continues. SIGTERM, SIGINT and SIGHUP end it after a whole
    segment. Exit status: 0 done; 1 not everything, the rest is still in its queue; 2 wrong usage, or a package is
    missing; 6 the disk failed, and nobody knows whether the last messages are in a segment: the same export does it
    again without doubling any.
    """
    import signal

    with _pipeline_packages():
        from ordack.pipeline.export import Exporter
        from ordack.pipeline.segments import FolderError
    from ordack.client import Client

    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: stopped.append(number))
    messages = 0
    try:
        with Client(store) as client, Exporter(client, names, to, rows=rows, anew=anew, tell=_complain) as exporter:

            def stop() -> bool:
                return bool(stopped)

            for made in exporter.follow(stop, age) if follow else exporter.run(stop):
                messages += made.messages
                count = counted(made.messages, "message")
                _done(
                    as_json,
                    f"{made.queue}: {count}, {made.bytes} bytes, in {made.segment}"
                    + (", of an earlier export" if made.recovered else ""),
                    **made._asdict(),
                )
    except FolderError as error:
        raise StoreError(str(error)) from None
    if not as_json:
        write(f"{counted(messages, 'message')} exported\n")


@pipeline_app.command("ingest")
def pipeline_ingest(
    segments: Annotated[
        Path, typer.Argument(metavar="SEGMENTS", parser=local, help="Folder that `ordack export` has written.")
    ],
    table: Annotated[
        str,
        typer.Option(
            "--to", metavar="TABLE", help="Folder or URL of the table. With --format iceberg: its name in the catalog."
        ),
    ],
    table_format: Annotated[
        str, typer.Option("--format", help="parquet or orc; delta or iceberg if Spark has the package.")
    ] = "parquet",
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="DDL",
            help='Columns to decode from the bodies, as in "temperature DOUBLE, at TIMESTAMP". A body that '
            "does not fit leaves them null, and the column _malformed has the reason.",
        ),
    ] = None,
    bodies: Annotated[str, typer.Option(help="Format of the bodies: json or cbor.")] = "json",
    prefix: Annotated[str, typer.Option(help="Text before the names of the schema's columns in the body.")] = "",
    queue: Annotated[str | None, typer.Option(help="Take only this queue. Default: all.")] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER", help="Folder that records what is in the table. Default: in the table's folder."
        ),
    ] = None,
    continuous: Annotated[
        bool,
        typer.Option(
            "--continuous/--once",
            help="Continue with what arrives, until SIGTERM, SIGINT or SIGHUP; or end when "
            "everything that is there is in the table.",
        ),
    ] = False,
    interval: Annotated[
        float, typer.Option(min=0, help="With --continuous: seconds between two looks at the folder.")
    ] = 1.0,
    segments_max: Annotated[int, typer.Option(min=1, help="Largest number of segments in a micro-batch.")] = 256,
    master: Annotated[
        str | None,
        typer.Option(help="Spark's master URL, or sc://HOST:PORT. Default: the variable SPARK_REMOTE, else local[*]."),
    ] = None,
    conf: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of Spark's own.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Load exported messages into a table, each exactly once.

    Nothing is lost or doubled if the command is killed; the next ingest continues. It reports how long messages took
    from arrival in the queue, and from sending, until they were in the table; sending times are whole seconds. Exit
    status: 0 done; 1 not everything, the next ingest continues; 2 wrong usage, Spark is missing, or unusable input: a
    folder with other files, a table of another checkpoint or with other columns.
    """
    with _pipeline_packages():
        from ordack.pipeline import ingest
        from ordack.pipeline.bodies import SchemaError
        from ordack.pipeline.options import OptionError
        from ordack.pipeline.segments import FolderError
        from ordack.pipeline.session import SparkMissing, session
    import signal

    settings = {}
    for pair in conf or ():
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"--conf {pair} is not of the form KEY=VALUE")
        settings[key] = value
    options = {
        "path": str(segments),
        "format": bodies,
        "prefix": prefix,
        "maxSegmentsPerTrigger": str(segments_max),
        **({} if schema is None else {"schema": schema}),
        **({} if queue is None else {"queue": queue}),
    }
    try:
        job = ingest.Job(options, table, table_format, checkpoint)
        stopped: list[int] = []
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: stopped.append(number))
        spark = session(master, "ordack pipeline ingest", settings)
        signal.signal(signal.SIGINT, lambda number, _: stopped.append(number))  # pyspark has set one of its own
        with _ingest_progress() as show:

            def tell(batch: ingest.Batch) -> None:
                show(batch)
                if as_json:
                    _report(True, "", **batch.as_json())

            done = ingest.ingest(
                spark, job, continuous=continuous, interval=interval, tell=tell, stop=lambda: bool(stopped)
            )
    except (SparkMissing, OptionError, SchemaError, FolderError, ingest.IngestUnusable) as error:
        _complain(str(error))
        raise typer.Exit(2) from None
    except ingest.IngestError as error:
        raise StoreError(str(error)) from None
    _report(as_json, str(done), **done.as_json())


@contextlib.contextmanager
def _ingest_progress() -> Iterator[Callable[[Any], None]]:
    """Shows the last micro-batch."""
    with _activity("starting") as show:
        total = 0

        def told(batch: Any) -> None:
            nonlocal total
            total += batch.rows
            rate = batch.rows / max(batch.seconds, 1e-3)
            show(
                f"batch {batch.number}: {rate:,.0f} rows/s, {total:,} rows in all, "
                f"{counted(batch.behind, 'segment')} to go"
            )

        yield told


def _new_folder(text: str) -> Path:
    path = local(text)
    if path.exists() and not path.is_dir():
        raise typer.BadParameter(f"{path} is a file: name a folder")
    return path


def _report_file(text: str) -> Path:
    path = local(text)
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a folder: name a file in it")
    if not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.parent} to write {path.name} to: make it first")
    return path


AUDIT_STATUS = {"no violations": 0, "violations": 1, "incomplete": 3}
SMALL_CAPTURE = 256 << 20  # bytes that one process audits sooner than Spark starts


@app.command("audit")
def audit_command(
    captures: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATH...",
            parser=local,
            help="Captures: files, patterns or folders. All of them together are one capture.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            parser=_new_folder,
            help="Write streams, sequences, senders and violations there as Parquet and JSON.",
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", parser=_report_file, help="Write a report with plots, one file.")
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(
            help="Spark's master URL, or sc://HOST:PORT. "
            "Default: Spark on this machine, or where SPARK_REMOTE says, for "
            "captures of more than 256 MiB."
        ),
    ] = None,
    no_spark: Annotated[bool, typer.Option("--no-spark", help="Do everything in this process.")] = False,
    follow: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            parser=local,
            help="Instead of PATH: audit a folder in which captures keep arriving, until SIGTERM or SIGINT. Uses Spark "
            "only with --master.",
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            parser=local,
            help="With --follow: folder that records the progress. The next start continues from it.",
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="With --follow: end when everything that is there has been read.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check from captures that every transactional stream was exactly once and in order.

    Exit status: 0 no violations; 1 violations; 2 wrong usage, Spark is missing, or unusable input, such as one without
    a packet of the protocol; 3 no violations, but the evidence is incomplete: verdicts are unknown, or packets were
    not captured or could not be read. With --follow the status covers everything that was read.
    """
    if (follow is None) == (not captures):
        raise typer.BadParameter("give either captures or --follow FOLDER")
    if (follow is None) != (checkpoint is None) or (once and follow is None):
        raise typer.BadParameter("--follow FOLDER and --checkpoint FOLDER go together, and --once with them")
    with _pipeline_packages():
        from pyspark.errors import PySparkException

        from ordack.audit import replay
        from ordack.pipeline.options import OptionError
        from ordack.pipeline.packets import find_files
        from ordack.pipeline.session import SparkMissing, session, words

        if html is not None:
            from ordack.audit import html_page  # noqa: F401 - needs packages of its own
    if no_spark and master is not None:
        raise typer.BadParameter("--no-spark and --master exclude each other")
    if follow is not None and checkpoint is not None:
        _follow_audit(follow, checkpoint, once, None if no_spark else master, out, html, as_json)
        return
    try:
        files = list(dict.fromkeys(file for path in captures or () for file in find_files(str(path), _complain)))
        small = sum(Path(file).stat().st_size for file in files) <= SMALL_CAPTURE
        with _audit_progress() as show:
            spark = None if no_spark or (small and master is None) else session(master, "ordack audit")
            result = replay.run(files, spark=spark, series=html is not None, progress=show)
        replay.require_packets(result)
        _save_audit(result, out, html)
    except (replay.CaptureUnusable, OptionError, SparkMissing, OSError) as error:
        _complain(_in_words(error))
        raise typer.Exit(2) from None
    except PySparkException as error:
        _complain(words(error))
        raise typer.Exit(2) from None
    _show_audit(result, as_json)
    raise typer.Exit(AUDIT_STATUS[result.summary["verdict"]])


def _in_words(error: Exception) -> str:
    """What an exception says; of one of the operating system, without its number."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return f"cannot use {error.filename}: {error.strerror}" if error.filename else error.strerror


def _save_audit(result: Result, out: Path | None, html: Path | None) -> None:
    """Write what --out and --html ask for."""
    from ordack.audit import files

    for option, path in (("--out", out), ("--html", html)):
        if path is None:
            continue
        try:
            if option == "--out":
                files.save(result, path)
            else:
                from ordack.audit import html_page

                html_page.write(result, path)
        except OSError as error:
            _complain(f"cannot write {option} {path}: {error.strerror or error}; name a place that can be written to")
            raise typer.Exit(2) from None


def _show_audit(result: Result, as_json: bool) -> None:
    from ordack.audit import files

    if as_json:
        _report(True, "", **result.summary)
    else:
        lines = [*files.streams_text(result), *files.text_of(result)]
        write("\n".join(map(legible, lines)) + "\n")


def _follow_audit(
    folder: Path, checkpoint: Path, once: bool, master: str | None, out: Path | None, html: Path | None, as_json: bool
) -> None:
    """Audit a folder that grows, and report whenever there is something new."""
    import signal
    import threading

    with _pipeline_packages():
        from pyspark.errors import PySparkException

        from ordack.audit import files, replay
        from ordack.audit.follow import Follower, FollowError
        from ordack.audit.result import count_text
        from ordack.pipeline.session import SparkMissing, session, words

        if html is not None:
            from ordack.audit import html_page  # noqa: F401 - needs packages of its own
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stopped.set())
    verdict, named = "no violations", set[str]()
    try:
        follower = Follower(folder, checkpoint)
        with follower.lock():
            if going_on := follower.going_on():
                _complain(going_on)
            spark = None if master is None else session(master, "ordack audit")
            for step, result in follower.reports(once, spark, stopped.is_set):
                verdict = result.summary["verdict"]
                for path in sorted(follower.passed_over - named):
                    _complain(f"passed over: {path} is no pcap or pcapng file, packed with gzip or zstd or not")
                named |= follower.passed_over
                if once:
                    replay.require_packets(result)
                _save_audit(result, out, html)
                if once:
                    _show_audit(result, as_json)
                else:
                    lines = files.text_of(result, 0)
                    _report(
                        as_json,
                        f"{count_text(len(result.paths), 'file')}: " + "; ".join([*lines[:2], lines[-1]]),
                        step=step.number,
                        files=len(result.paths),
                        **result.summary,
                    )
    except (replay.CaptureUnusable, FollowError, SparkMissing, OSError) as error:
        _complain(_in_words(error))
        raise typer.Exit(2) from None
    except PySparkException as error:
        _complain(words(error))
        raise typer.Exit(2) from None
    raise typer.Exit(AUDIT_STATUS[verdict])


@contextlib.contextmanager
def _audit_progress() -> Iterator[Callable[[int], None]]:
    """Counts packets."""
    with _activity("auditing") as show:
        total = 0

        def told(packets: int) -> None:
            nonlocal total
            total += packets
            show(f"{total:,} packets")

        yield told


@contextlib.contextmanager
def _activity(description: str) -> Iterator[Callable[[str], None]]:
    """Show what happens, and for how long, on standard error, if that is a terminal."""
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
def _pipeline_packages() -> Iterator[None]:
    """Wrap imports that need the packages of the extra "spark"."""
    try:
        yield
    except ModuleNotFoundError as error:
        _complain(f"this command needs the package {error.name}: pip install ordack[spark]")
        raise typer.Exit(2) from None


def _shown(raw: Path | None, as_json: bool) -> Callable[[Message], None]:
    """How one message is shown."""
    if raw is None:
        line = _json_of if as_json else _text_of
        return lambda message: write(line(message))
    if str(raw) == "-":
        return lambda message: write_bytes(message.body)
    return lambda message: save(raw, message.body)


def _json_of(message: Message) -> str:
    return json.dumps(message.as_json()) + "\n"


def _text_of(message: Message) -> str:
    """Arrival, identifier, delivery, place in its stream, label, size; the body, if readable, or its first bytes."""
    from datetime import datetime

    arrived = datetime.fromtimestamp(message.arrived).astimezone().isoformat(" ", "milliseconds")
    place = "" if message.tx_sequence_number is None else f" {message.tx_sequence_id}/{message.tx_sequence_number}"
    came_back = f" came back {counted(message.abort_count, 'time')}" if message.abort_count else ""
    text = message.text()
    shown = text[:200] if text is not None and text[:200].isprintable() else message.body[:64].hex(" ")
    return (
        f"{arrived} {message.source}\\{message.message_id} {message.delivery}{place}{_reason_of(message)}"
        f"{came_back} {message.label!r} {len(message.body)} bytes\n    {shown}\n"
    )


def _reason_of(message: Message) -> str:
    """Of a dead letter, where it should have gone and why it has not; of an acknowledgement, what it says of which."""
    from mqqb import guids

    from ordack import classes

    if not message.message_class:
        return ""
    doubt = ", in doubt" if message.in_doubt else ""
    if any(message.correlation_id):
        guid, number = message.correlation_id[:16], int.from_bytes(message.correlation_id[16:], "little")
        return f" {classes.words(message.message_class)}{doubt} about {guids.guid_text(guid)}\\{number}"
    return f" to {message.destination}: {classes.words(message.message_class, message.destination)}{doubt}"


@app.command()
def serve(
    store: StoreOption,
    listen: Annotated[
        str, typer.Option(help="HOST:PORT to accept connections on; port 0 picks a free one.")
    ] = "0.0.0.0:1801",
    next_hop: Annotated[
        list[str] | None,
        typer.Option(
            help="ADDRESS=HOST:PORT: connect there for destinations at ADDRESS, a host or the GUID of a queue manager, "
            "instead of its port 1801."
        ),
    ] = None,
    own_name: Annotated[
        list[str] | None,
        typer.Option(
            help="Address in direct names that means this queue manager. "
            "Without this option it accepts messages for every "
            "address, and messages to this machine's own addresses stay here."
        ),
    ] = None,
    public_queue: Annotated[
        list[str] | None,
        typer.Option(help="GUID=FORMATNAME: where the public queue with this GUID is, in place of a directory."),
    ] = None,
    serial: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]PORT[@BAUD]",
            help="A serial port with a board at its other end: a path or a pyserial URL. "
            "NAME addresses the board in direct names. Default: the last part of the path, 115200 baud.",
        ),
    ] = None,
    quota: Annotated[
        int | None,
        typer.Option(min=0, help="Limit of the store in bytes, for this `serve` alone; the setting Quota is for all."),
    ] = None,
    capture: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", parser=local, help="Record all traffic in this pcap file, then in numbered ones beside it."
        ),
    ] = None,
    capture_size: Annotated[
        int, typer.Option(min=1 << 20, help="Limit of all captures in bytes. The oldest are removed first.")
    ] = 1 << 30,
    as_json: JsonOption = False,
) -> None:
    """Run the queue manager until SIGTERM or SIGINT. It continues when its terminal closes (SIGHUP)."""
    import signal

    from ordack.config import (
        SERIAL_PORT,
        Config,
        format_address,
        parse_address,
        parse_next_hop,
        parse_public_queue,
        parse_serial,
    )
    from ordack.net.record import Recorder
    from ordack.net.tcp import listen as open_listener

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        address = parse_address(listen)
        hops = dict(parse_next_hop(text) for text in next_hop or ())
        public = dict(parse_public_queue(text) for text in public_queue or ())
        lines = [parse_serial(text) for text in serial or ()]
        for line in lines:
            if line.name in hops:
                raise ValueError(f"{line.name}: there are two ways to it; NAME=PORT gives a serial line another name")
            hops[line.name] = line.name, SERIAL_PORT
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        listener = open_listener(*address)  # before a store is made for nothing
    except OSError as error:
        raise StoreError(f"cannot listen on {listen}: {error.strerror or error}") from None
    devices = [(line, _open_serial(line)) for line in lines]
    with listener, _open_when_there_is_room(store) as opened:
        others = {} if quota is None else {"quota": quota}
        host, port = listener.getsockname()[:2]
        config = Config.of(
            opened.configuration(),
            own_names=frozenset(name.lower() for name in own_name or ()),
            listening=(host, port),
            next_hops=hops,
            public_queues=public,
            **others,
        )
        text = format_address(host, port)
        import asyncio

        def ready() -> None:
            _report(as_json, f"listening on {text}", listening=text)
            for line in lines:
                _report(
                    as_json,
                    f"listening on serial {line.name} ({line.port})",
                    serial=line.name,
                    port=line.port,
                    baud=line.baud,
                )

        recorder = None
        if capture:
            try:
                recorder = Recorder(capture, capture_size, _complain)
            except OSError as error:
                raise StoreError(f"cannot write the capture {capture}: {error.strerror or error}") from None
        asyncio.run(_serve(opened, config, listener, ready, devices, recorder))


def _open_when_there_is_room(folder: Path) -> Store:
    """Open the store and lock it for this queue manager. While its disk is full, wait."""
    import time

    told = False
    while True:
        opened = None
        try:
            opened = Store(folder, create=True)
            _tell_if_new(opened)
            opened.lock_manager()
            return opened
        except StoreError as error:
            if opened:
                opened.close()
            if not isinstance(error, StoreFull):
                raise
            if not told:
                _complain(f"{error}; waiting for it")
            told = True
        time.sleep(1)


def _open_serial(line: SerialSettings) -> Any:
    from ordack.net.serial import open_device

    try:
        return open_device(line)
    except OSError as error:
        raise StoreError(f"cannot open serial port {line.port}: {error.strerror or error}") from None


async def _serve(store: Store, config: Config, listener: Any, ready: Any, serial: Any, recorder: Any) -> None:
    import asyncio
    import signal

    from ordack.config import format_address
    from ordack.log import Log
    from ordack.manager import Manager
    from ordack.net import tcp

    log = Log(_log_line)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    manager = Manager(store, tcp.now(), config, log)
    manager.about = {
        "since": tcp.wall(),
        "process": os.getpid(),
        "quota": config.quota,
        "listening": format_address(*listener.getsockname()[:2]),
    }
    counting = asyncio.create_task(_count(log))
    try:
        await tcp.serve(manager, listener, stop, ready, serial, recorder)
    finally:
        counting.cancel()
        log.close()


async def _count(log: Log) -> None:
    import asyncio

    while True:
        await asyncio.sleep(1)
        log.tick()


PortOption = Annotated[
    str,
    typer.Option(
        "--port",
        metavar="PORT",
        help="Serial port, pseudo-terminal or pyserial URL: /dev/ttyACM0, COM3, socket://HOST:PORT.",
    ),
]
BaudOption = Annotated[int, typer.Option(help="Speed of a serial line; USB ports ignore it.")]


@board_app.command("deploy")
def board_deploy(
    port: PortOption,
    main: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=_local_file, help="Copy this file to the board as main.py, which it runs."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=_local_file, help="Copy this file to the board under its own name."),
    ] = None,
    package: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=_local_file,
            help="The package.json to copy from. Default: what `make natmod` compiled, else the sources.",
        ),
    ] = None,
    baud: BaudOption = 115200,
    as_json: JsonOption = False,
) -> None:
    """Copy ordack's modules and your program to a board. Copies only what the board does not have yet.

    The command stops the board's program and starts it again. If it is interrupted, the board keeps its old modules, or
    `ordack board doctor` reports files of two versions; the next deploy repairs them. Exit status: 0 a node can run
    there; 1 not done, or a node cannot run; 5 no board with MicroPython answers.
    """
    from ordack.boards.deploy import deploy
    from ordack.boards.repl import attended

    with _board_errors(), _progress() as progress:
        version, done = attended(
            port,
            baud,
            lambda board: (".".join(map(str, board.version)), deploy(board, package, main, config, progress)),
            reset=True,
        )
    text = f"{port}: copied {len(done.copied)} files, {done.bytes} bytes; {done.unchanged} were there"
    text += f"; removed {len(done.removed)}" if done.removed else ""
    text += "; the modules are frozen into the firmware" if done.frozen else ""
    text += f"; MicroPython {version}, core: {done.core or 'none'}"
    _done(
        as_json,
        text + (f"; a node cannot start: {done.problem}" if done.problem else ""),
        port=port,
        version=version,
        **done._asdict(),
    )
    if done.problem:
        raise typer.Exit(1)


@board_app.command("doctor")
def board_doctor(
    port: PortOption,
    queue_manager: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Let the board connect to this queue manager.")
    ] = None,
    outbox: Annotated[str, typer.Option(metavar="FOLDER", help="Folder of the node's outbox on the board.")] = "outbox",
    baud: BaudOption = 115200,
    as_json: JsonOption = False,
) -> None:
    """Check a board and say what to do: firmware, core, heap, flash, clock, network, what waits and why.

    The command stops the board's program and starts it again. It changes nothing on the board. Exit status: 0 nothing
    is bad; 1 something is; 5 no board with MicroPython answers.
    """
    from ordack.boards.doctor import examine
    from ordack.boards.repl import attended
    from ordack.config import parse_address

    try:
        address = None if queue_manager is None else parse_address(queue_manager)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    with _board_errors(), _progress() as progress:
        checks = attended(port, baud, lambda board: list(examine(board, address, outbox, progress)), reset=False)
    if as_json:
        for check in checks:
            _report(True, "", **check.as_json())
    else:
        _table(
            ("check", "verdict", "found", "what to do"),
            (),
            [(check.name, check.verdict, check.text, check.advice) for check in checks],
        )
    if any(check.verdict == "bad" for check in checks):
        raise typer.Exit(1)


@board_app.command("rescue")
def board_rescue(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[FOLDER]", parser=local, help="An outbox on this machine, instead of a board."),
    ] = None,
    port: Annotated[
        str | None, typer.Option(metavar="PORT", help="The board: serial port, pseudo-terminal or pyserial URL.")
    ] = None,
    to: Annotated[Path | None, typer.Option(metavar="DIR", parser=local, help="New folder for the copy.")] = None,
    outbox: Annotated[str, typer.Option(metavar="FOLDER", help="Folder of the node's outbox on the board.")] = "outbox",
    baud: BaudOption = 115200,
    as_json: JsonOption = False,
) -> None:
    """Copy an outbox off a board, and list its messages with their states, and what cannot be read.

    `ordack board rescue FOLDER` does the same with a copy on this machine. The command changes nothing there or on the
    board. Exit status: 0 everything could be read; 1 something could not, or nothing was done; 5 no board with
    MicroPython answers.
    """
    from ordack.boards import rescue
    from ordack.boards.repl import attended

    if (port is None) == (folder is None) or (port is not None and to is None):
        raise typer.BadParameter("name a board with --port PORT and the folder for the copy with --to DIR, or a FOLDER")
    with _board_errors(), _progress() as progress:
        if to is not None:
            rescue.make_folder(to)
        if folder is not None and to is not None:
            rescue.copy_of(folder, to)
        elif port is not None and to is not None:
            attended(port, baud, lambda board: rescue.copy_from_board(board, outbox, to, progress), reset=False)
        found = list(rescue.listing(to or folder or Path()))
    summary = found.pop()
    for message in found:
        state = message["state"] + (f", class 0x{message['class']:04X}" if message.get("class") else "")
        what = f"{message['message_id']} {message['queue']} {message['label']!r}: {message['size']} bytes"
        _report(as_json, f"{what}, {state}", **message)
    about = f"{summary['name']}, GUID {summary['guid']}" if summary["name"] else f"GUID {summary['guid']}"
    _report(as_json, "\n".join([f"{len(found)} messages; {about}", *summary["damage"]]), **summary, messages=len(found))
    if summary["damage"]:
        raise typer.Exit(1)


@contextlib.contextmanager
def _board_errors() -> Iterator[None]:
    from ordack.boards.repl import BoardError, NoBoard

    try:
        yield
    except NoBoard as error:
        _complain(str(error))
        raise typer.Exit(5) from None
    except BoardError as error:
        raise StoreError(str(error)) from None


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show the progress of a transfer on standard error, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as shown:
        tasks: dict[int, Any] = {}

        def told(what: str, done: int, total: int) -> None:
            if total not in tasks:
                tasks[total] = shown.add_task(what, total=total)
            shown.update(tasks[total], description=what, completed=done)

        yield told


def _tell_if_new(store: Store) -> None:
    if store.is_new:
        _complain(f"new store made in {store.folder}")


def _complain(text: str) -> None:
    """Write to standard error. If nobody reads it, the command goes on."""
    _log_line(f"ordack: {text}")


def _log_line(text: str) -> None:
    if sys.stderr is not None:  # None: closed from the start; descriptor 2 may be the store's by now
        with contextlib.suppress(OSError, ValueError):
            os.write(sys.stderr.fileno(), f"{legible(text)}\n".encode())


def main() -> None:
    """Entry point of the console script. Typer ends it quietly, with status 1, when the reader of a pipe has gone."""
    if not {
        "queue",
        "outgoing",
        "send",
        "receive",
        "state",
        "status",
        "config",
        "identity",
        "serve",
        "board",
        "export",
        "pipeline",
        "audit",
    }.intersection(sys.argv[1:2]):
        from ordack.capture.decoder import command  # slow to import

        app.command("decode")(command)
    for known in (
        one for group in (app, queue_app, outgoing_app, board_app, pipeline_app) for one in group.registered_commands
    ):
        if known.callback and known.callback.__doc__:  # rich breaks lines where the source does
            known.help = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(known.callback.__doc__))
    try:
        app()
    except StoreError as error:
        _complain(str(error))
        sys.exit(6 if isinstance(error, StoreUnknown) else 1)
    except OutputError as error:
        _complain(str(error))
        sys.exit(1)
    except BadName as error:
        _complain(str(error))
        sys.exit(2)
