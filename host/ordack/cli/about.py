"""The commands that say what a store is and does, and set what it keeps: state, status, config and identity."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ordack.cli.common import JsonOption, StoreOption, print_table, report, report_done, tell_if_new
from ordack.cli.outgoing import table_of_outgoing
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
    from ordack import status
    from ordack.client import Client

    if message_id is None:
        with open_to_look(store) as opened:
            shown = opened.status()
        if shown is None:
            raise StoreError(f"no queue manager runs on {store}")
        if as_json:
            report(True, "", sessions=shown["sessions"], serial=shown["serial"])
        else:
            _tables_of_sessions(shown)
        return
    with Client(store, look=True) as client:
        told = status.of_message(client, message_id)
    if told is None:
        report(
            as_json,
            f"nothing is known of a transactional message {message_id} sent from here",
            message_id=message_id,
            state=None,
        )
        raise typer.Exit(1)
    report(as_json, told["why"], **told)


def status(store: StoreOption, as_json: JsonOption = False) -> None:
    """Show the whole store: whether it is served, who is connected, what is in the queues, what waits and why.

    Exit status: 0 everything moves; 1 something keeps messages from moving, or the store is not served. The last lines
    say what.
    """
    from ordack import status

    with open_to_look(store) as opened:
        told = status.glance(opened)
    if as_json:
        report(True, "", **told)
    else:
        write(status.served_text(told) + "\n")
        print_table(
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
            table_of_outgoing(waiting)
        for problem in told["problems"]:
            if not any(problem.endswith(f": {queue['why']}") for queue in waiting):  # these stand there already
                write(f"{problem}\n")
    if told["problems"]:
        raise typer.Exit(1)


def _tables_of_sessions(shown: dict[str, Any]) -> None:
    print_table(
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
        print_table(
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


def config(
    store: StoreOption,
    name: Annotated[str | None, typer.Argument(help="Name of a setting. Without it the command lists all.")] = None,
    value: Annotated[str | None, typer.Argument(help='New value, or "default".')] = None,
    as_json: JsonOption = False,
) -> None:
    """Show or change settings of the queue manager, under their names in the Windows registry where MSMQ has them.

    Applications use a new value at once, `ordack serve` from its next start.
    """
    from ordack.config import SETTINGS, check_setting, setting_name

    if name is None:
        with open_to_look(store) as opened:
            changed = opened.configuration()
        rows = [(known, changed.get(known, setting.absent), setting) for known, setting in SETTINGS.items()]
        if as_json:
            for known, held, _ in rows:
                report(True, "", **_setting(known, held))
        else:
            print_table(
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
        tell_if_new(opened)
        if value is not None:
            opened.configure(known, number)
        held = opened.configuration().get(known, SETTINGS[known].absent)
    (report if value is None else report_done)(
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
