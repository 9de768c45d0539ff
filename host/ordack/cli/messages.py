"""The commands `ordack send`, `ordack receive` and `ordack message move`."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from ordack.cli.common import JsonOption, StoreOption, activity, complain, interrupted_with, note, report, report_done
from ordack.cli.output import Interrupted, OutputError, uninterrupted, write
from ordack.cli.queues import QueueArgument
from ordack.config.names import counted
from ordack.store import StoreError

if TYPE_CHECKING:
    from ordack.broker.commits import Moved
    from ordack.broker.message import Message
    from ordack.broker.sending import Sent
    from ordack.client import Client
    from ordack.config.names import PeerNames


DestinationArgument = Annotated[
    str,
    typer.Argument(
        metavar="DESTINATION",
        help="Local queue: line1. Queue of a board or queue manager: press-7/commands. Format name: "
        "'DIRECT=TCP:10.0.0.5\\private$\\line1' or 'PRIVATE=GUID\\NUMBER'.",
    ),
]
DeliveryOption = Annotated[
    str | None,
    typer.Option(
        metavar="KIND",
        help="express, recoverable or transactional. Default: the kind of a local queue, else transactional.",
    ),
]
TtrqOption = Annotated[
    int | None,
    typer.Option(metavar="SECONDS", help="Time to reach the queue. 0: one attempt within 10 s. Default: four days."),
]
DeadLetterOption = Annotated[
    bool,
    typer.Option(
        "--dead-letter", help="Move the message to the dead-letter queue if its delivery fails or is unknown."
    ),
]
JournalOption = Annotated[bool, typer.Option("--journal", help="Keep a copy in the journal after delivery.")]


def send(
    destination: DestinationArgument,
    store: StoreOption,
    body: Annotated[str | None, typer.Option(metavar="TEXT", help="Body. Default: standard input.")] = None,
    empty: Annotated[bool, typer.Option("--empty", help="Allow an empty body from standard input.")] = False,
    label: Annotated[str, typer.Option(metavar="TEXT", help="Label, at most 249 characters.")] = "",
    priority: Annotated[int, typer.Option(min=0, max=7, metavar="0-7", help="7 is received first.")] = 3,
    delivery: DeliveryOption = None,
    ttrq: TtrqOption = None,
    dead_letter: DeadLetterOption = False,
    journal: JournalOption = False,
    count: Annotated[int, typer.Option(min=1, metavar="N", help="Send the message N times.")] = 1,
    rate: Annotated[
        float | None, typer.Option(min=0.001, metavar="R", help="With --count: messages per second. Default: no limit.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Send a message to a queue, here or elsewhere.

    The message is on disk when the command ends. `ordack serve` delivers it to other machines. With --count, each
    message has its own commit, and an interrupted command reports the number of accepted messages.
    """
    from ordack.broker import status
    from ordack.client import Client

    if rate is not None and count == 1:
        raise typer.BadParameter("--rate needs --count")
    content = _content(body, empty)
    with Client(store) as client:

        def send_one() -> Sent:
            return client.send(
                destination, content, label, priority, delivery, ttrq=ttrq, dead_letter=dead_letter, journal=journal
            )

        def show(sent: Sent) -> None:
            text = f"sent message {sent.message_id} to {named}, {sent.delivery}"
            values = {**sent._asdict(), "identifier": sent.identifier.hex()}
            (report if count > 1 else report_done)(as_json, text, destination=destination, **values)

        named = client.store.peer_names().added(destination)
        try:
            # before sending: `serve` may have discarded this very message when send() returns
            lost = [] if dead_letter else status.lost_lately(client.store, destination)
            if count == 1:
                show(send_one())
            else:
                sent = _send_many(send_one, count, rate, show if as_json else None)
                text = f"sent {count} messages to {named}, {sent.delivery}; the last is message {sent.message_id}"
                if not as_json:
                    report_done(False, text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    for text in lost:
        complain(f"{text}. This one asks for no dead letter either: --dead-letter keeps it if it is not delivered")


def _send_many(
    send_one: Callable[[], Sent], count: int, rate: float | None, show: Callable[[Sent], None] | None
) -> Sent:
    """Send `count` messages, at most `rate` per second; returns the last. After a failure or a signal, report the
    number of accepted messages."""
    accepted = 0
    begun = time.monotonic()

    def told() -> str:
        return f"{accepted} of {count} messages accepted"

    with activity("sending") as progress, interrupted_with(told):
        try:
            for number in range(count):
                if rate is not None:
                    time.sleep(max(0.0, begun + number / rate - time.monotonic()))
                with uninterrupted():
                    sent = send_one()
                    accepted += 1
                progress(f"{told()}, {accepted / max(time.monotonic() - begun, 1e-9):,.0f} per second")
                if show:
                    show(sent)
        except StoreError as error:
            raise type(error)(f"{error}; {told()}") from None
        except (BrokenPipeError, OutputError):
            raise StoreError(f"standard output did not take the report; {told()}") from None
    return sent


def _content(body: str | None, may_be_empty: bool) -> bytes:
    """The body of a message from the options or standard input. may_be_empty: allow an empty standard input."""
    if body is not None:
        return os.fsencode(body)
    if sys.stdin is None:
        raise typer.BadParameter("standard input is closed: give --body")
    if sys.stdin.isatty():
        complain("the body is read from standard input, until Ctrl-D; --body TEXT gives it in the command")
    found = sys.stdin.buffer.read()
    if not found and not may_be_empty:
        raise typer.BadParameter("standard input is empty: give --body, or --empty for an empty body")
    return found


def receive(
    name: QueueArgument,
    store: StoreOption,
    as_json: JsonOption = False,
    count: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Receive at most N messages. Default: 1.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Receive all messages in the queue.")] = False,
    peek: Annotated[bool, typer.Option("--peek", help="Print messages without removing them. Default: all.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Receive all messages, then wait for more until a signal.")
    ] = False,
) -> None:
    """Receive messages from a queue: print them, then remove them.

    The command removes a message after its line is on disk, or in the pipe. An interrupted command leaves the other
    messages in the queue, and reports the last one that it removed. After a kill or the end of `ordack serve`, the
    last lines may be printed again.
    """
    if peek and follow:
        raise typer.BadParameter("--peek and --follow do not go together")
    if count is not None and everything:
        raise typer.BadParameter("--count and --all do not go together")
    from itertools import islice

    from ordack.cli.output import Drain
    from ordack.client import Client

    one = sys.maxsize if everything or peek or follow else 1
    left = one if count is None else min(count, sys.maxsize)
    with Client(store, look=peek) as client:
        queue = client.queue(name)
        names = client.store.peer_names()
        line = _json_of if as_json else _text_of

        def show(message: Message) -> None:
            write(line(message, names))

        drain = Drain(queue, show, names.added, complain)
        seen = 0
        try:
            if peek:
                for message in islice(queue.peek(), left):
                    show(message)
                    seen += 1
            else:
                drain.run(left, float("inf") if follow else 0.0)
            held = client.store.messages.receiving()[client.store.queues.named(name).identifier]
            if held and not (seen or drain.removed):
                complain(f"no message is free; other programs are receiving {counted(held, 'message')} of {name}")
        except BrokenPipeError:
            complain(f"the reader of standard output has gone; {drain}")
            raise typer.Exit(1) from None
        except OutputError as error:
            raise StoreError(f"{error}; {drain}") from None
        except StoreError as error:
            raise type(error)(f"{error}; {drain}") from None
        except Interrupted as error:
            complain(str(drain))
            raise typer.Exit(128 + error.number) from None


def _json_of(message: Message, names: PeerNames) -> str:
    return json.dumps({**message.as_json(), "source_name": names.of(message.source)}) + "\n"


def _text_of(message: Message, names: PeerNames) -> str:
    """Arrival, identifier, delivery, position in its stream, label, size; the readable body, or its first bytes."""
    arrived = datetime.fromtimestamp(message.arrived).astimezone().isoformat(" ", "milliseconds")
    place = "" if message.tx_sequence_number is None else f" {message.tx_sequence_id}/{message.tx_sequence_number}"
    came_back = f" came back {counted(message.abort_count, 'time')}" if message.abort_count else ""
    text = message.text()
    shown = text[:200] if text is not None and text[:200].isprintable() else message.body[:64].hex(" ")
    source = names.added(f"{message.source}\\{message.message_id}")
    return (
        f"{arrived} {source} {message.delivery}{place}{names.added(_reason_of(message))}"
        f"{came_back} {message.label!r} {counted(len(message.body), 'byte')}\n    {shown}\n"
    )


def _reason_of(message: Message) -> str:
    """Of a dead letter, its destination and the reason; of an acknowledgement, its meaning and its message."""
    from mqqb import guids

    from ordack.config import classes

    if not message.message_class:
        return ""
    doubt = ", in doubt" if message.in_doubt else ""
    if any(message.correlation_id):
        guid, number = message.correlation_id[:16], int.from_bytes(message.correlation_id[16:], "little")
        return f" {classes.words(message.message_class)}{doubt} about {guids.guid_text(guid)}\\{number}"
    return f" to {message.destination}: {classes.words(message.message_class, message.destination)}{doubt}"


TargetArgument = Annotated[
    str | None,
    typer.Argument(metavar="[DESTINATION]", help="New destination, as for `ordack send`.", show_default=False),
]
ClassOption = Annotated[
    list[str] | None,
    typer.Option(
        "--class",
        metavar="CLASS",
        help="Move only dead letters of this class: NACK_REACH_QUEUE_TIMEOUT or 0x8002. Repeatable.",
    ),
]


def _moment(text: str) -> datetime:
    """Parse a time, in this machine's time zone unless the text names one. Raises BadParameter."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no time: write it as 2026-11-23 or 2026-11-23T14:30") from None


def move(
    name: QueueArgument,
    store: StoreOption,
    target: TargetArgument = None,
    back: Annotated[bool, typer.Option("--back", help="Send each message to its original destination.")] = False,
    classes: ClassOption = None,
    sent_from: Annotated[
        datetime | None,
        typer.Option(
            metavar="TIME", parser=_moment, help="Move only messages sent at TIME or later: 2026-11-23T14:30."
        ),
    ] = None,
    in_doubt: Annotated[
        bool,
        typer.Option(
            "--in-doubt", help="Also move dead letters that may have been received. They may be received twice."
        ),
    ] = False,
    count: Annotated[int | None, typer.Option(min=0, metavar="N", help="Move at most N messages. Default: 1.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Move all messages.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Send kept messages again: dead letters, copies, poison.

    Each message is sent as a new one with the old content, in the transaction that removes it from its queue.
    """
    if (target is None) != back:
        raise typer.BadParameter("say where the messages go: name a destination, or --back for the one they had")
    if count is not None and everything:
        raise typer.BadParameter("--count and --all do not go together")
    from ordack.client import Client

    numbers = frozenset(_number_of(one) for one in classes or ())
    since = 0 if sent_from is None else sent_from.timestamp()
    limit = sys.maxsize if everything else 1 if count is None else count
    moved = left = 0
    with Client(store) as client:
        names = client.store.peer_names()
        try:
            for one in move_all(client, name, target, limit, numbers, in_doubt, since):
                if one.message_id is None:
                    left += 1
                else:
                    moved += 1
                    _tell(one, as_json, names)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        finally:
            if moved:
                note(client, name, f"{counted(moved, 'message')} moved from {name}")
    if left:
        complain(
            f"{counted(left, 'dead letter')} in doubt stayed: they may have been received. --in-doubt moves them too"
        )
    if not as_json:
        report(False, f"{counted(moved, 'message')} moved")


def move_all(
    client: Client,
    name: str,
    target: str | None,
    limit: int = sys.maxsize,
    classes: frozenset[int] = frozenset(),
    in_doubt: bool = False,
    since: float = 0,
) -> Iterator[Moved]:
    """Move up to `limit` messages that are in the named queue now, in the queue's order.

    target: as Client.send takes it; None: the original destination of each message. classes: move only these; empty:
    any. in_doubt: include dead letters in doubt. since: move messages sent at or after this time, in seconds since
    1970. Messages being received stay. Raises the errors of Client.send for a message that cannot be moved; that
    message and the rest stay.
    """
    from ordack.broker.commits import Moved

    queue = client.queue(name)
    last = client.store.messages.last_lookup_id()  # excludes messages that fail at once and come back
    count = 0
    for message in queue.peek():
        if count == limit:
            return
        is_meant = not classes or message.message_class in classes
        if message.lookup_id > last or message.sent_time < since or not is_meant:
            continue
        if message.in_doubt and not in_doubt:
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
    """Parse a message class. Raises BadParameter."""
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
