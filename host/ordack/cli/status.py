"""The commands `ordack status` and `ordack message`: the state of a store, and single messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer

from ordack.cli.common import JsonOption, StoreOption, report, table_text
from ordack.cli.messages import move
from ordack.cli.output import write
from ordack.cli.queues import purge
from ordack.config.names import first_of, printable
from ordack.store.look import open_to_look

app = typer.Typer(no_args_is_help=True, help="Track, move or purge messages.")
_SERIAL_FIGURES = ("baud", "connections", "faults", "resent", "damaged")


@app.command("state")
def state(
    store: StoreOption,
    message_id: Annotated[
        int, typer.Argument(min=1, max=0xFFFFFFFF, metavar="MESSAGEID", help="MessageID from `ordack send`.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Show the outcome of a message that this store sent.

    A pending message has a reason. The command knows transactional messages only. Exit status: 1 the store knows
    nothing of the message.
    """
    from ordack.broker import status
    from ordack.client import Client

    with Client(store, look=True) as client:
        told = status.of_message(client.store, message_id, client.state(message_id))
    if told is None:
        nothing = f"nothing is known of a transactional message {message_id} sent from here"
        report(as_json, nothing, message_id=message_id, state=None)
        raise typer.Exit(1)
    until = "final" if told["final"] else "not final"
    if not told["final"] and told["deadline"] is not None:
        at = datetime.fromtimestamp(told["deadline"]).astimezone().isoformat(" ")
        until = f"not final; known at {at} at the latest"
    report(as_json, f"{told['why']}; {until}", **told)


app.command("move")(move)
app.command("purge")(purge)


def status(
    store: StoreOption,
    as_json: JsonOption = False,
    with_guids: Annotated[bool, typer.Option("--guids", help="Show GUIDs beside names.")] = False,
) -> None:
    """Show connections, queues, pending messages and problems.

    The last lines name each problem and the next step. Exit status: 1 a problem, or no `ordack serve` runs on the
    store.
    """
    from ordack.api import remote
    from ordack.broker import status

    silence = remote.silence(store)
    with open_to_look(store) as opened:
        told = status.glance(opened, silence=silence)
    if as_json:
        report(True, "", **told)
    else:
        write("".join(_parts(told, with_guids)))
    if told["problems"]:
        raise typer.Exit(1)


def sessions(shown: Mapping[str, Any], with_guids: bool = False) -> list[str]:
    """The tables of sessions and serial lines."""
    rows = []
    for session in shown["sessions"]:
        name = session.get("peer_name") or session["guid"]
        name += f" {session['guid']}" if with_guids and name != session["guid"] else ""
        name += f", certificate of {session['certificate']}" if session.get("certificate") else ""
        opened_by = "this side" if session["initiator"] else "it"
        in_flight = str(session.get("in_flight", ""))
        rows.append((session["name"], session["address"], name, session["state"], opened_by, in_flight))
    headings = ("session with", "address", "queue manager", "state", "opened by")
    found = [table_text(headings, ("in flight",), rows)]
    if shown["serial"]:
        keys = ("host", "serial", "state", "last_end", *_SERIAL_FIGURES)
        lines = [[str(line[key]) for key in keys] for line in shown["serial"]]
        found.append(table_text(("serial line", "port", "state", "last end"), _SERIAL_FIGURES, lines))
    return found


def _outgoing(queues: Sequence[Mapping[str, Any]], with_guids: bool) -> list[str]:
    """The table of outgoing queues, and why their messages wait."""
    from ordack.broker.status import named

    figures = ("messages", "bytes", "not_order_acked", "not_read")
    names = [f"{named(queue)} {queue['format_name']}" if with_guids else named(queue) for queue in queues]
    rows = [
        (name, queue["state"], *(str(queue[figure]) for figure in figures))
        for name, queue in zip(names, queues, strict=True)
    ]
    return [
        table_text(("outgoing queue", "state"), ("messages", "bytes", "not acknowledged", "not read"), rows),
        *(_line(f"{named(queue)}: {queue['why']}") for queue in queues if queue["why"]),
    ]


def _parts(told: Mapping[str, Any], with_guids: bool) -> list[str]:
    """The lines of status.glance, in order."""
    from ordack.broker import status

    rows = []
    for queue in told["queues"]:
        kind = "system" if queue["system"] else "transactional" if queue["transactional"] else ""
        quota = "" if queue["quota"] is None else str(queue["quota"])
        rows.append((queue["name"], kind, str(queue["messages"]), str(queue["receiving"]), str(queue["bytes"]), quota))
    found = [
        _line(status.served_text(told)),
        table_text(("queue", "kind"), ("messages", "receiving", "bytes", "quota"), rows),
    ]
    if told["served"]:
        found += sessions(told, with_guids)
        if told["offline"]:
            found.append(_line(f"not connected: {first_of(told['offline'], 20)}"))
    waiting = [queue for queue in told["outgoing"] if queue["messages"] or queue["on_hold"]]
    if waiting:
        found += _outgoing(waiting, with_guids)
    found += (_line(text) for text in told["lost"] if text not in told["problems"])
    if refused := status.refused_text(told):
        found.append(_line(f"refused since the start: {refused}"))
    for problem in told["problems"]:
        if not any(problem.endswith(f": {queue['why']}") for queue in waiting):  # already in the table
            found.append(_line(problem))
    return found


def _line(text: str) -> str:
    return printable(text) + "\n"
