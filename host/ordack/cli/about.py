"""The commands that say what a store is and does: state, status and identity."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from ordack.cli import glance
from ordack.cli.common import JsonOption, StoreOption, report, report_done
from ordack.cli.output import write
from ordack.store import Store, StoreBusy, StoreError
from ordack.store.look import open_to_look


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
    from ordack.broker import status
    from ordack.client import Client

    if message_id is None:
        with open_to_look(store) as opened:
            shown = opened.status()
        if shown is None:
            raise StoreError(f"no queue manager runs on {store}")
        if as_json:
            report(True, "", sessions=shown["sessions"], serial=shown["serial"])
        else:
            write(glance.text(glance.sessions(shown)))
        return
    with Client(store, look=True) as client:
        told = status.of_message(client.store, message_id, client.state(message_id))
    if told is None:
        report(
            as_json,
            f"nothing is known of a transactional message {message_id} sent from here",
            message_id=message_id,
            state=None,
        )
        raise typer.Exit(1)
    report(as_json, f"{told['why']}; {_until(told['final'], told['deadline'])}", **told)


def _until(is_final: bool, deadline: int | None) -> str:
    if is_final or deadline is None:
        return "final" if is_final else "not final"
    return f"not final; known at {datetime.fromtimestamp(deadline).astimezone().isoformat(' ')} at the latest"


def status(
    store: StoreOption,
    seconds: Annotated[
        float | None,
        typer.Argument(help="With --watch: so many seconds from one look to the next; 1 if absent."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it again and again, until Ctrl-C or another signal ends that.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the whole store: whether it is served, who is connected, what is in the queues, what waits and why.

    Exit status: 0 all is well; 1 somebody has to look at something, or the store is not served. The last lines say what
    is wrong. With --watch: 0.
    """
    from ordack.api import remote
    from ordack.broker import status

    if seconds is not None and not watch:
        raise typer.BadParameter(f"{seconds:g}: seconds go with --watch")
    if seconds is not None and not glance.LEAST_S <= seconds <= glance.MOST_S:
        raise typer.BadParameter(f"{seconds:g}: --watch takes {glance.LEAST_S} to {glance.MOST_S:.0f} seconds")
    if watch:
        glance.watch(store, 1.0 if seconds is None else seconds, as_json)
        return
    with open_to_look(store) as opened:
        told = status.glance(opened, silence=remote.silence(store))
    if as_json:
        report(True, "", **told)
    else:
        write(glance.text(glance.parts(told)))
    if told["problems"]:
        raise typer.Exit(1)


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
    (report_done if renew else report)(as_json, guid, guid=guid, renewed=renew)
