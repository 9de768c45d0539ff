"""The command `ordack move`."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from ordack.cli.common import JsonOption, StoreOption, complain, report, report_done
from ordack.cli.queues import QueueArgument
from ordack.config.settings import NEVER
from ordack.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ordack.broker.commits import Moved, Selection
    from ordack.broker.peer_names import PeerNames
    from ordack.client import Client


def _moment(text: str) -> datetime:
    """A time that a person means, of this machine's time zone unless it names one. Raises BadParameter."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no time: write it as 2026-11-23 or 2026-11-23T14:30") from None


TargetArgument = Annotated[
    str | None,
    typer.Argument(help="Where they go: a queue here or a format name, as `ordack send` takes it.", show_default=False),
]
ClassOption = Annotated[
    list[str] | None,
    typer.Option(
        "--class",
        metavar="CLASS",
        help="Only those that ended for this reason: NACK_REACH_QUEUE_TIMEOUT or 0x8002. May be given several times.",
    ),
]
SentFromOption = Annotated[
    datetime | None,
    typer.Option(
        metavar="TIME", parser=_moment, help="Only those sent at this time or later, as 2026-11-23 or 2026-11-23T14:30."
    ),
]
SentBeforeOption = Annotated[
    datetime | None, typer.Option(metavar="TIME", parser=_moment, help="Only those sent before this time.")
]


def move(
    name: QueueArgument,
    store: StoreOption,
    target: TargetArgument = None,
    back: Annotated[bool, typer.Option("--back", help="Each goes to the destination that it was sent to.")] = False,
    classes: ClassOption = None,
    label: Annotated[str, typer.Option(help="Only those with this label; * and ? stand for any characters.")] = "*",
    sent_from: SentFromOption = None,
    sent_before: SentBeforeOption = None,
    in_doubt: Annotated[
        bool, typer.Option("--in-doubt", help="Also dead letters that may have been received: they can come twice.")
    ] = False,
    count: Annotated[int | None, typer.Option(min=0, help="Move at most this many messages.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Move all of them.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Send a message again that was kept, or more: a dead letter, a copy in the journal, a poison message.

    Each leaves its queue and is sent in one step. It is a new message, with what its application has written in it.
    """
    if (target is None) != back:
        raise typer.BadParameter("say where the messages go: name a destination, or --back for the one they had")
    if count is not None and everything:
        raise typer.BadParameter("--count and --all do not go together")
    from ordack.broker.commits import Selection
    from ordack.broker.peer_names import PeerNames
    from ordack.client import Client

    selection = Selection(
        frozenset(_number_of(one) for one in classes or ()),
        label,
        0 if sent_from is None else sent_from.timestamp(),
        NEVER if sent_before is None else sent_before.timestamp(),
        in_doubt,
    )
    limit = sys.maxsize if everything else 1 if count is None else count
    moved = left = 0
    with Client(store) as client:
        names = PeerNames.kept(client.store.names())
        try:
            for one in move_all(client, name, target, selection, limit):
                if one.message_id is None:
                    left += 1
                else:
                    moved += 1
                    _tell(one, as_json, names)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    if left:
        complain(
            f"{counted(left, 'dead letter')} in doubt stayed: they may have been received. --in-doubt moves them too"
        )
    if not as_json:
        report(False, f"{counted(moved, 'message')} moved")


def move_all(client: Client, name: str, target: str | None, selection: Selection, limit: int) -> Iterator[Moved]:
    """Move up to `limit` messages of the queue of that name, in its order, of those that are in it now.

    target: as Client.send takes it; None: each goes to the destination that it was sent to. One that somebody is
    receiving stays. Raises what Client.send raises, about the message that cannot be moved: it stays, and the others.
    """
    from ordack.broker.commits import Moved

    queue = client.queue(name)
    last = client.store.messages.last_lookup_id()  # one that is sent and fails at once is not taken again
    count = 0
    for message in queue.peek():
        if count == limit:
            return
        if message.lookup_id > last or not selection.means(message):
            continue
        if message.in_doubt and not selection.in_doubt:
            yield Moved(message, target or message.destination, None)
            continue
        done = client.order("move", queue.identifier, message.lookup_id, target, message.in_doubt)
        if done:
            count += 1
            yield Moved(message, *done)


def _tell(moved: Moved, as_json: bool, names: PeerNames) -> None:
    message = moved.message
    report_done(
        as_json,
        names.added(f"{message.message_key} to {moved.destination} as message {moved.message_id}"),
        message_key=message.message_key,
        source_name=names.of(message.source),
        label=message.label,
        class_name=message.as_json()["class_name"],
        destination=moved.destination,
        message_id=moved.message_id,
    )


def _number_of(text: str) -> int:
    """The class that a person means. Raises BadParameter."""
    from ordack.config.classes import NAMES

    numbers: dict[str, int] = {name: number for number, name in NAMES.items()}
    if text.upper() in numbers:
        return numbers[text.upper()]
    try:
        return int(text, 0)
    except ValueError:
        raise typer.BadParameter(
            f"--class {text}: there is no such class. Classes of failures: "
            + ", ".join(name for name in NAMES.values() if name.startswith("NACK"))
        ) from None
