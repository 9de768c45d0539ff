"""The commands `ordack queue`, `ordack message purge`, and those of `ordack store` for streams."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from ordack.cli.common import JsonOption, StoreOption, YesOption, confirm, print_table, report, report_done
from ordack.config.names import HERE, PeerNames, counted
from ordack.store import StoreError
from ordack.store.look import open_to_look
from ordack.store.queues import QueueExists, QueueNotEmpty
from ordack.store.schema import SYSTEM

app = typer.Typer(no_args_is_help=True, help="Create, list, pause or delete queues.")
QueueArgument = Annotated[str, typer.Argument(help="Queue name: line1, or in MSMQ's form .\\private$\\line1.")]
FormatNameArgument = Annotated[
    str, typer.Argument(help="An outgoing queue: its format name as `ordack status` shows it, or press-7/commands.")
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
            help="Take only transactional messages, which boards send, or others.",
        ),
    ] = True,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if the queue exists and is of the same kind.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Create a private queue."""
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
    text = f"created {queue.name}" if created else f"{queue.name} exists"
    values = {"transactional": queue.transactional, "id": queue.identifier}
    report_done(as_json, text, name=queue.name, created=created, **values)


@app.command("list")
def queue_list(store: StoreOption, as_json: JsonOption = False) -> None:
    """List the queues with the number and size of their messages. System queues that are empty are not shown."""
    with open_to_look(store) as opened:
        queues = [queue for queue in opened.queues.all() if queue.kind != SYSTEM or queue.messages]
    rows = []
    for queue in queues:
        values = {"name": queue.name, "id": queue.identifier, "transactional": queue.transactional}
        values |= {"system": queue.kind == SYSTEM, "quota": queue.quota}
        values |= {"messages": queue.messages, "bytes": queue.bytes}
        if as_json:
            report(True, "", **values)
        kind, quota = "transactional" if queue.transactional else "", "" if queue.quota is None else str(queue.quota)
        rows.append((queue.name, kind, str(queue.messages), str(queue.bytes), quota))
    if not as_json:
        print_table(("queue", "kind"), ("messages", "bytes", "quota"), rows)


@app.command("quota")
def queue_quota(
    name: QueueArgument,
    store: StoreOption,
    quota: Annotated[
        str | None, typer.Argument(help='New limit in bytes, or "none". Without it the command shows the limit.')
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show or set the limit of a queue in bytes, also of a journal or dead-letter queue."""
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
    (report if quota is None else report_done)(
        as_json, f"{name}: " + ("no limit" if limit is None else f"{counted(limit, 'byte')}"), name=name, quota=limit
    )


@app.command("delete")
def queue_delete(name: QueueArgument, store: StoreOption, yes: YesOption = False) -> None:
    """Delete a queue. Asks first if it holds messages. Senders who asked for it are told."""
    from ordack.client import Client

    with Client(store) as client:
        try:
            removed = client.delete_queue(name, only_empty=not yes)
        except QueueNotEmpty as error:
            confirm(str(error), "delete")
            removed = client.delete_queue(name)
    report_done(False, f"deleted {name} with {counted(removed, 'message')}")


def purge(
    name: Annotated[
        str, typer.Argument(help="A queue, or the format name of an outgoing queue as `ordack status` shows it.")
    ],
    store: StoreOption,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove all messages from a queue, or give up those that wait for another machine. Asks first if there are any.

    Senders who asked for it are told. From an outgoing queue `ordack serve` removes the messages, and moves those that
    ask for it to the dead-letter queue. A message that has arrived may still be received. If the outgoing queue holds
    acknowledgements for another queue manager, that one will not learn what became of its messages. Acknowledgements
    that only pass through, and tell that a message was refused, stay: without them its sender would take the message
    for stored.
    """
    from ordack.api.remote import purge_outgoing
    from ordack.broker.sending import address
    from ordack.client import Client

    kept = 0
    with Client(store) as client:
        format_name = address(client.store, name)
        outgoing = client.store.outgoing.find(format_name)
        is_away = format_name.upper().startswith(("DIRECT=", "PRIVATE=")) and not format_name.startswith(HERE)
        if outgoing is None and is_away:
            raise StoreError(NO_OUTGOING.format(format_name))
        whose = PeerNames.kept(client.store.names()).added(name)
        count = outgoing.messages if outgoing else client.store.queues.named(name).messages
        if count and not yes:
            confirm(f"{counted(count, 'message')} in {whose} would be removed", "remove")
        if outgoing:
            removed, kept = purge_outgoing(client.store, client.access, outgoing.identifier)
        else:
            removed = client.purge_queue(name)
    text = f"removed {counted(removed, 'message')} from {whose}"
    if kept:
        text += f"; {counted(kept, 'acknowledgement')} of refused messages only pass through, and stay"
    report_done(as_json, text, name=name, removed=removed, kept=kept)


def _change_outgoing(store: Path, name: str, done: str, *orders: tuple[Any, ...]) -> None:
    from ordack.broker.sending import address
    from ordack.client import Client

    with Client(store) as client:
        format_name = address(client.store, name)
        if not all(client.order(order, format_name, *arguments) for order, *arguments in orders):
            raise StoreError(NO_OUTGOING.format(format_name))
        named = PeerNames.kept(client.store.names()).added(format_name)
    report_done(False, f"{named}: {done}")


@app.command("pause")
def queue_pause(name: FormatNameArgument, store: StoreOption) -> None:
    """Stop sending from an outgoing queue until it is resumed."""
    _change_outgoing(store, name, "on hold", ("set_on_hold", True))


@app.command("resume")
def queue_resume(name: FormatNameArgument, store: StoreOption) -> None:
    """Continue sending from an outgoing queue now: paused, or waiting for the resend interval."""
    _change_outgoing(store, name, "resumed", ("set_on_hold", False), ("request_resend",))


def streams(store: StoreOption, as_json: JsonOption = False) -> None:
    """List the streams of transactional messages from other queue managers, each with its latest accepted message.

    "refused": messages since then that were not the next one of their stream. What is sent again is among them.
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
    source: Annotated[str, typer.Argument(help="GUID or name of the source, as `ordack store streams` shows it.")],
    destination: Annotated[str, typer.Argument(help="Destination, as `ordack store streams` shows it.")],
    store: StoreOption,
    yes: YesOption = False,
) -> None:
    """Forget a stream that refuses everything, so that its source can begin anew. Asks first.

    The next message that is accepted is the first one of a sequence. Messages that the source has sent before and sends
    again are received twice. A source in the middle of a sequence has to begin another one: purge its outgoing queue.
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
    report_done(False, f"reset {source} to {destination}")
