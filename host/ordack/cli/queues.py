"""The commands `ordack queue`: create, list, quota, purge and delete."""

from __future__ import annotations

from typing import Annotated

import typer

from ordack.cli.common import JsonOption, StoreOption, YesOption, confirm, print_table, report, report_done
from ordack.store import StoreError
from ordack.store.look import open_to_look
from ordack.store.queues import QueueExists, QueueNotEmpty
from ordack.store.schema import SYSTEM
from ordack.text import counted

app = typer.Typer(no_args_is_help=True, help="Create, list, limit, purge or delete queues.")
QueueArgument = Annotated[str, typer.Argument(help="Queue name: line1, or in MSMQ's form .\\private$\\line1.")]


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
        try:
            client.create_queue(name, transactional)
            created = True
        except QueueExists:
            queue = client.store.queues.named(name)
            if not if_not_exists:
                raise
            if queue.transactional != transactional:
                raise StoreError(
                    f"the queue {queue.name} exists and is {'' if queue.transactional else 'not '}"
                    "transactional: delete it first, or use it as it is"
                ) from None
            created = False
        queue = client.store.queues.named(name)
    report_done(
        as_json,
        f"created {queue.name}" if created else f"{queue.name} exists",
        name=queue.name,
        created=created,
        transactional=queue.transactional,
        id=queue.identifier,
    )


@app.command("list")
def queue_list(
    store: StoreOption,
    as_json: JsonOption = False,
    system: Annotated[bool, typer.Option("--system", help="Include system queues that are empty.")] = False,
) -> None:
    """List the queues with the number and size of their messages."""
    with open_to_look(store) as opened:
        queues = [queue for queue in opened.queues.all() if system or queue.kind != SYSTEM or queue.messages]
    if as_json:
        for queue in queues:
            report(
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
    print_table(
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


@app.command("purge")
def queue_purge(name: QueueArgument, store: StoreOption, yes: YesOption = False, as_json: JsonOption = False) -> None:
    """Remove all messages from a queue. Asks first if it holds any. Senders who asked for it are told."""
    from ordack.client import Client

    with Client(store) as client:
        count = client.store.queues.named(name).messages
        if count and not yes:
            confirm(f"{counted(count, 'message')} in {name} would be removed", "remove")
        removed = client.purge_queue(name)
    report_done(as_json, f"removed {counted(removed, 'message')}", name=name, removed=removed)


@app.command("delete")
def queue_delete(
    name: QueueArgument,
    store: StoreOption,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete a queue. Asks first if it holds messages. Senders who asked for it are told."""
    from ordack.client import Client

    with Client(store) as client:
        try:
            removed = client.delete_queue(name, only_empty=not yes)
        except QueueNotEmpty as error:
            confirm(str(error), "delete")
            removed = client.delete_queue(name)
    report_done(as_json, f"deleted {name} with {counted(removed, 'message')}", name=name, removed=removed)
