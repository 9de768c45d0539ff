"""The commands `ordack queue`, `ordack message purge`, and those of `ordack store` for streams."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from ordack.cli.common import (
    JsonOption,
    StoreOption,
    YesOption,
    confirm,
    print_table,
    report,
    report_change,
    report_done,
)
from ordack.config.names import HERE, counted
from ordack.store import StoreError
from ordack.store.look import open_to_look
from ordack.store.queues import QueueExists, QueueNotEmpty
from ordack.store.schema import SYSTEM

app = typer.Typer(no_args_is_help=True, help="Create, list, pause or delete queues.")
QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue: line1 or .\\private$\\line1.")]
FormatNameArgument = Annotated[
    str,
    typer.Argument(metavar="QUEUE", help="Outgoing queue: press-7/commands, or a format name from `ordack status`."),
]
NO_OUTGOING = "there is no outgoing queue {}; `ordack status` shows them"


@app.command("create")
def queue_create(
    name: QueueArgument,
    store: StoreOption,
    transactional: Annotated[
        bool,
        typer.Option(
            "--transactional/--non-transactional",
            help="Kind of message that the queue accepts. Boards send transactional messages.",
        ),
    ] = True,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if a queue of this kind exists.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Create a queue."""
    from ordack.client import Client

    with Client(store) as client:
        created = True
        try:
            client.create_queue(name, transactional)
        except QueueExists:
            if not if_not_exists:
                raise
            created = False
        queue = client.store.queues.named(name)
        if queue.transactional != transactional:
            raise StoreError(
                f"the queue {queue.name} exists and is {'' if queue.transactional else 'not '}"
                "transactional: delete it first, or use it as it is"
            )
        values = {"name": queue.name, "created": created, "transactional": transactional, "id": queue.identifier}
        if created:
            report_change(client, queue.name, as_json, f"created {queue.name}", **values)
        else:
            report_done(as_json, f"{queue.name} exists", **values)


@app.command("list")
def queue_list(store: StoreOption, as_json: JsonOption = False) -> None:
    """List queues with their messages, bytes and quotas.

    Empty system queues are omitted.
    """
    with open_to_look(store) as opened:
        queues = [queue for queue in opened.queues.all() if queue.kind != SYSTEM or queue.messages]
        receiving = opened.messages.receiving()
    rows = []
    for queue in queues:
        values = {"name": queue.name, "id": queue.identifier, "transactional": queue.transactional}
        values |= {"system": queue.kind == SYSTEM, "quota": queue.quota}
        values |= {"messages": queue.messages, "receiving": receiving[queue.identifier], "bytes": queue.bytes}
        if as_json:
            report(True, "", **values)
        kind, quota = "transactional" if queue.transactional else "", "" if queue.quota is None else str(queue.quota)
        rows.append((queue.name, kind, *(str(values[key]) for key in ("messages", "receiving", "bytes")), quota))
    if not as_json:
        print_table(("queue", "kind"), ("messages", "receiving", "bytes", "quota"), rows)


@app.command("quota")
def queue_quota(
    name: QueueArgument,
    store: StoreOption,
    quota: Annotated[
        str | None, typer.Argument(metavar="[BYTES]", help='New quota, or "none". Default: show the quota.')
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show or set the quota of a queue in bytes.

    Journals and dead-letter queues have quotas, too.
    """
    from ordack.client import Client
    from ordack.config.config import parse_quota
    from ordack.store.schema import CLOSED_QUEUES

    try:
        limit = parse_quota(quota) if quota is not None else None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    with Client(store, look=quota is None) as client:
        queue = client.store.queues.named(name)
        if quota is None:
            limit = queue.quota
        elif queue.name in CLOSED_QUEUES:
            raise StoreError(f"{queue.name} is the queue manager's own queue: it has no quota (B-085)")
        else:
            client.order("set_quota", name, limit)
        text = f"{name}: {'no limit' if limit is None else counted(limit, 'byte')}"
        if quota is None:
            report(as_json, text, name=name, quota=limit)
        else:
            report_change(client, name, as_json, text, name=name, quota=limit)


@app.command("delete")
def queue_delete(name: QueueArgument, store: StoreOption, yes: YesOption = False, as_json: JsonOption = False) -> None:
    """Delete a queue and its messages.

    The command asks for confirmation if there are messages. Senders that requested acknowledgements get negative ones.
    """
    from ordack.client import Client

    with Client(store) as client:
        try:
            removed = client.delete_queue(name, only_empty=not yes)
        except QueueNotEmpty as error:
            confirm(str(error), "delete")
            removed = client.delete_queue(name)
        text = f"deleted {name} with {counted(removed, 'message')}"
        report_change(client, name, as_json, text, name=name, removed=removed)


def purge(
    name: Annotated[
        str, typer.Argument(metavar="QUEUE", help="Queue, or outgoing queue: press-7/commands, or its format name.")
    ],
    store: StoreOption,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove all messages from a queue or an outgoing queue.

    The command asks for confirmation. Senders that requested acknowledgements get negative ones. From an outgoing
    queue, messages with --dead-letter go to the dead-letter queue; the destination may have received them.
    Acknowledgements in an outgoing queue are removed too: their receivers then do not learn the outcome of their
    messages.
    """
    from ordack.api.remote import purge_outgoing
    from ordack.broker.sending import address
    from ordack.client import Client

    kept = held = 0
    with Client(store) as client:
        format_name = address(client.store, name)
        outgoing = client.store.outgoing.find(format_name)
        is_away = format_name.upper().startswith(("DIRECT=", "PRIVATE=")) and not format_name.startswith(HERE)
        if outgoing is None and is_away:
            raise StoreError(NO_OUTGOING.format(format_name))
        whose = client.store.peer_names().added(name)
        count = outgoing.messages if outgoing else client.store.queues.named(name).messages
        if count and not yes:
            confirm(f"{counted(count, 'message')} in {whose} would be removed", "remove")
        if outgoing:
            removed, kept = purge_outgoing(client.store, client.access, outgoing.identifier)
        else:
            held = client.store.messages.receiving()[client.store.queues.named(name).identifier]
            removed = client.purge_queue(name)
        text = f"removed {counted(removed, 'message')} from {whose}"
        if held:
            text += f"; {held} being received: gone unless that receive commits"
        if kept:
            text += f"; {counted(kept, 'acknowledgement')} of refused messages only pass through, and stay"
        report_change(client, format_name, as_json, text, name=name, removed=removed, kept=kept)


def _change_outgoing(store: Path, name: str, as_json: bool, done: str, *orders: tuple[Any, ...]) -> None:
    from ordack.broker.sending import address
    from ordack.client import Client

    with Client(store) as client:
        format_name = address(client.store, name)
        if not all(client.order(order, format_name, *arguments) for order, *arguments in orders):
            raise StoreError(NO_OUTGOING.format(format_name))
        named = client.store.peer_names().added(format_name)
        report_change(client, format_name, as_json, f"{named}: {done}", name=name, done=done)


@app.command("pause")
def queue_pause(name: FormatNameArgument, store: StoreOption, as_json: JsonOption = False) -> None:
    """Stop sending from an outgoing queue."""
    _change_outgoing(store, name, as_json, "on hold", ("set_on_hold", True))


@app.command("resume")
def queue_resume(name: FormatNameArgument, store: StoreOption, as_json: JsonOption = False) -> None:
    """Send from a paused outgoing queue again.

    The command also ends the wait for the resend interval.
    """
    _change_outgoing(store, name, as_json, "resumed", ("set_on_hold", False), ("request_resend",))


def streams(store: StoreOption, as_json: JsonOption = False) -> None:
    """List incoming transactional streams.

    Each line shows the last accepted message of a stream. "refused" counts messages since then that were not the next
    one, including duplicates.
    """
    from ordack.broker import status

    with open_to_look(store) as opened:
        streams = status.incoming(opened)
    rows = []
    for stream in streams:
        if as_json:
            report(True, "", **stream)
        source = f"{stream['source']} ({stream['peer_name']})" if stream["peer_name"] else stream["source"]
        accessed = datetime.fromtimestamp(stream["last_access"], UTC).strftime("%Y-%m-%d %H:%M:%S")
        figures = f"{stream['sequence_id']:X}", str(stream["sequence_number"]), str(stream["reject_count"])
        rows.append((source, stream["destination"], accessed, *figures))
    if not as_json:
        print_table(("source", "destination", "last access (UTC)"), ("sequence", "number", "refused"), rows)


def reset_stream(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Source from `ordack store streams`: GUID or name.")],
    destination: Annotated[str, typer.Argument(metavar="DESTINATION", help="Destination from `ordack store streams`.")],
    store: StoreOption,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Forget an incoming stream that refuses every message.

    The next accepted message begins a new sequence. Messages that the source resends are received twice. A source in
    the middle of a sequence must begin a new one: purge its outgoing queue.
    """
    from mqqb import guids

    from ordack.broker import status
    from ordack.client import Client

    with Client(store) as client:
        found = [
            stream
            for stream in status.incoming(client.store)
            if source.strip("{}").lower() in (stream["source"].strip("{}").lower(), (stream["peer_name"] or "").lower())
            and stream["destination"] == destination.lower()
        ]
        if not found:
            raise StoreError(
                f"there is no stream from {source} to {destination}; `ordack store streams` shows those there are"
            )
        if not yes:
            confirm(f"messages that the source resends to {destination} would be received twice", "reset", "the stream")
        for stream in found:
            client.order("reset_incoming", guids.guid_bytes(stream["source"]), stream["destination"])
        text = f"reset {source} to {destination}"
        report_change(client, destination, as_json, text, source=source, destination=destination)
