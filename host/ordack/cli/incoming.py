"""The commands `ordack incoming`: how far the streams of other queue managers have come."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from ordack.cli.common import JsonOption, StoreOption, YesOption, confirm, print_table, report, report_done
from ordack.store import StoreError
from ordack.store.look import open_to_look

app = typer.Typer(no_args_is_help=True, help="List or reset the streams that come from other queue managers.")


@app.command("list")
def incoming_list(store: StoreOption, as_json: JsonOption = False) -> None:
    """List the streams of transactional messages from other queue managers, each with its latest accepted message.

    "refused": messages since then that were not the next one of their stream. What is sent again is among them.
    """
    from ordack.broker import status

    with open_to_look(store) as opened:
        streams = status.incoming(opened)
    if as_json:
        for stream in streams:
            report(True, "", **stream)
        return
    print_table(
        ("source", "destination", "last access (UTC)"),
        ("sequence", "number", "refused"),
        [
            (
                f"{stream['source']} ({stream['peer_name']})" if stream["peer_name"] else stream["source"],
                stream["destination"],
                datetime.fromtimestamp(stream["last_access"], UTC).strftime("%Y-%m-%d %H:%M:%S"),
                f"{stream['sequence_id']:X}",
                str(stream["sequence_number"]),
                str(stream["reject_count"]),
            )
            for stream in streams
        ],
    )


@app.command("reset")
def incoming_reset(
    source: Annotated[str, typer.Argument(help="GUID or name of the source, as `ordack incoming list` shows it.")],
    destination: Annotated[str, typer.Argument(help="Destination, as `ordack incoming list` shows it.")],
    store: StoreOption,
    yes: YesOption = False,
    as_json: JsonOption = False,
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
                f"there is no stream from {source} to {destination}; `ordack incoming list` shows those there are"
            )
        if not yes:
            confirm(f"messages that the source resends to {destination} would be received twice", "reset", "the stream")
        for stream in found:
            client.order("reset_incoming", guids.guid_bytes(stream["source"]), stream["destination"])
    report_done(as_json, f"reset {source} to {destination}", source=source, destination=destination)
