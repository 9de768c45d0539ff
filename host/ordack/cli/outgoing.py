"""The commands `ordack outgoing`: what waits for other machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ordack.broker.peer_names import PeerNames
from ordack.cli import glance
from ordack.cli.common import JsonOption, StoreOption, YesOption, confirm, report, report_done
from ordack.cli.output import write
from ordack.config.names import destination
from ordack.store import StoreError
from ordack.store.look import open_to_look
from ordack.text import counted

app = typer.Typer(no_args_is_help=True, help="List, pause, resume or purge what waits for other machines.")
FormatNameArgument = Annotated[
    str, typer.Argument(help="Format name of the outgoing queue, as `ordack outgoing list` shows it.")
]


@app.command("list")
def outgoing_list(store: StoreOption, as_json: JsonOption = False) -> None:
    """List what waits for other queue managers, and why.

    "not acknowledged": not known to have arrived. "not read": arrived, and kept until it is known to be received. The
    state of connections comes from a running `ordack serve`; --json shows all of it.
    """
    import time

    from ordack.broker import status

    with open_to_look(store) as opened:
        queues = status.outgoing(opened, opened.status(), time.time())
    if as_json:
        for queue in queues:
            report(True, "", **queue)
        return
    write(glance.text(glance.outgoing(queues)))


def _change_outgoing(store: Path, format_name: str, done: str, as_json: bool, *orders: tuple[Any, ...]) -> None:
    from ordack.client import Client

    format_name = destination(format_name)
    with Client(store) as client:
        if not all(client.order(order, format_name, *arguments) for order, *arguments in orders):
            raise StoreError(f"there is no outgoing queue {format_name}; `ordack outgoing list` shows them")
        named = PeerNames.kept(client.store.names()).added(format_name)
    report_done(as_json, f"{named}: {done}", format_name=format_name, done=done)


@app.command("pause")
def outgoing_pause(name: FormatNameArgument, store: StoreOption, as_json: JsonOption = False) -> None:
    """Stop sending from an outgoing queue until it is resumed."""
    _change_outgoing(store, name, "on hold", as_json, ("set_on_hold", True))


@app.command("resume")
def outgoing_resume(name: FormatNameArgument, store: StoreOption, as_json: JsonOption = False) -> None:
    """Continue sending from an outgoing queue now: paused, or waiting for the resend interval."""
    _change_outgoing(store, name, "resumed", as_json, ("set_on_hold", False), ("request_resend",))


@app.command("purge")
def outgoing_purge(
    name: FormatNameArgument, store: StoreOption, yes: YesOption = False, as_json: JsonOption = False
) -> None:
    """Give up all messages of an outgoing queue. Asks first if it holds any.

    `ordack serve` removes them, and moves those that ask for it to the dead-letter queue. A message that has arrived
    may still be received. If the queue holds acknowledgements for another queue manager, that one will not learn what
    became of its messages. Those that only pass through, and tell that a message was refused, stay: without them its
    sender would take the message for stored.
    """
    from ordack.api.remote import purge_outgoing
    from ordack.client import Client

    name = destination(name)
    with Client(store) as client:
        queue = client.store.outgoing.find(name)
        if queue is None:
            raise StoreError(f"there is no outgoing queue {name}; `ordack outgoing list` shows them")
        named = PeerNames.kept(client.store.names()).added(name)
        if queue.messages and not yes:
            confirm(f"{counted(queue.messages, 'message')} for {named} would be given up", "remove")
        removed, kept = purge_outgoing(client.store, client.access, queue.identifier)
    report_done(
        as_json,
        f"{counted(removed, 'message')} will be removed from {named}"
        + (f"; {counted(kept, 'acknowledgement')} of refused messages only pass through, and stay" if kept else ""),
        format_name=name,
        removed=removed,
        kept=kept,
    )
