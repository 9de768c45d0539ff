"""The commands `ordack send` and `ordack receive`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ordack.cli.common import JsonOption, StoreOption, complain, local, report_done
from ordack.cli.output import OutputError, save, write, write_bytes
from ordack.cli.queues import QueueArgument
from ordack.store import StoreError
from ordack.text import counted

if TYPE_CHECKING:
    from ordack.broker.message import Message
    from ordack.broker.peer_names import PeerNames


DestinationArgument = Annotated[
    str,
    typer.Argument(
        help="Name of a local queue, or a format name: DIRECT=TCP:10.0.0.5\\private$\\line1, "
        "DIRECT=OS:plant\\private$\\line1, PRIVATE=<GUID of a queue manager>\\<number of its queue>."
    ),
]
FileOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        parser=local,
        help="Read the body from a file; - is standard input, which is also the default.",
    ),
]
DeliveryOption = Annotated[
    str | None,
    typer.Option(help="express, recoverable or transactional. Default: what a local queue takes, else transactional."),
]
TtrqOption = Annotated[
    int | None, typer.Option(help="Seconds to reach its queue. 0 counts as 10, one attempt. Default: four days.")
]
DeadLetterOption = Annotated[
    bool,
    typer.Option("--dead-letter", help="Keep the message in a dead-letter queue if it is not known to be delivered."),
]
JournalOption = Annotated[
    bool, typer.Option("--journal", help="Keep a copy in the journal when the message is delivered.")
]
DeadLetterQueueOption = Annotated[
    str | None,
    typer.Option(help="A transactional queue here that takes the place of the system's dead-letter queue."),
]
AcknowledgeOption = Annotated[
    list[str] | None,
    typer.Option(help="reach-queue, receive, nack-reach-queue or nack-receive: what to tell the administration queue."),
]
AdministrationQueueOption = Annotated[
    str | None,
    typer.Option(help="Where acknowledgements go: a queue here that is not transactional, or a format name."),
]


def send(
    destination: DestinationArgument,
    store: StoreOption,
    more: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    body: Annotated[str | None, typer.Option(help="The body.")] = None,
    file: FileOption = None,
    empty: Annotated[bool, typer.Option("--empty", help="Take a body of 0 bytes from standard input, too.")] = False,
    label: Annotated[str, typer.Option(help="At most 249 characters.")] = "",
    priority: Annotated[int, typer.Option(min=0, max=7, help="7 is received first.")] = 3,
    delivery: DeliveryOption = None,
    ttrq: TtrqOption = None,
    ttbr: Annotated[int | None, typer.Option(help="Seconds to be received. Default: no limit.")] = None,
    dead_letter: DeadLetterOption = False,
    journal: JournalOption = False,
    dead_letter_queue: DeadLetterQueueOption = None,
    acknowledge: AcknowledgeOption = None,
    administration_queue: AdministrationQueueOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send one message. It is on disk when the command ends; it travels to another machine when `ordack serve` runs."""
    from ordack.broker.peer_names import PeerNames
    from ordack.client import Client

    if more:
        raise typer.BadParameter(
            f"{' '.join(more)!r}: the body is given as --body TEXT, --file FILE, or standard input"
        )
    content = _content(body, file, empty)
    with Client(store) as client:
        try:
            # asked before: `serve` may have lost this very message by the time that send() returns
            discarded = 0 if dead_letter else client.last_discarded(destination)
            sent = client.send(
                destination,
                content,
                label,
                priority,
                delivery,
                ttrq=ttrq,
                ttbr=ttbr,
                dead_letter=dead_letter,
                journal=journal,
                dead_letter_queue=dead_letter_queue,
                acknowledge=acknowledge or (),
                administration_queue=administration_queue,
            )
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        named = PeerNames.kept(client.store.names()).added(destination)
    if discarded:
        _warn(destination, named, discarded)
    report_done(
        as_json,
        f"sent message {sent.message_id} to {named}, {sent.delivery}",
        destination=destination,
        **{**sent._asdict(), "identifier": sent.identifier.hex()},
    )


def _content(body: str | None, file: Path | None, may_be_empty: bool) -> bytes:
    """The body of a message, from where the options say. may_be_empty: also if it comes from standard input."""
    if body is not None and file is not None:
        raise typer.BadParameter("give --body or --file, not both")
    if body is not None:
        return os.fsencode(body)
    if file is not None and str(file) != "-":
        try:
            return file.read_bytes()
        except OSError as error:
            raise typer.BadParameter(f"cannot read {file}: {error.strerror}") from None
    if sys.stdin is None:
        raise typer.BadParameter("standard input is closed: give --body or --file")
    if sys.stdin.isatty():
        complain(
            "the body is read from standard input, until Ctrl-D; --body TEXT or --file FILE give it in the command"
        )
    found = sys.stdin.buffer.read()
    if not found and not may_be_empty:
        raise typer.BadParameter("standard input is empty: give --body or --file, or --empty for an empty body")
    return found


def _warn(destination: str, named: str, discarded: int) -> None:
    from ordack.config import classes, names

    complain(
        f"the latest message to {named} is lost: {classes.words(discarded, names.destination(destination))}. "
        "This one asks for no dead letter either: --dead-letter keeps it if it is not delivered"
    )


RawOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        parser=local,
        help="Write the body of one message, byte by byte, to this new file, and print nothing; - is standard output.",
    ),
]


def receive(
    name: QueueArgument,
    store: StoreOption,
    as_json: JsonOption = False,
    count: Annotated[int | None, typer.Option(min=0, help="Take at most this many messages.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Take all messages that are in the queue.")] = False,
    peek: Annotated[
        bool, typer.Option("--peek", help="Leave the messages in the queue. Shows all of them unless --count is given.")
    ] = False,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Take all messages, then those that arrive, until --count or a signal ends it."),
    ] = False,
    raw: RawOption = None,
) -> None:
    """Take one message from a queue, or more: print it, then remove it.

    A message is removed only after its line was written: to disk, if standard output is a file; to the reader, if it is
    a pipe. If the command ends early, the other messages stay in the queue, and standard error says how many were
    removed and which was the last. If it is killed in between, the next receive prints the last line again.
    """
    if peek and follow:
        raise typer.BadParameter("--peek and --follow do not go together")
    if count is not None and everything:
        raise typer.BadParameter("--count and --all do not go together")
    if raw is not None and (as_json or everything or follow or count is not None):
        raise typer.BadParameter(
            "--raw takes the body of one message: it does not go with --json, --count, --all, --follow"
        )
    from itertools import islice

    from ordack.broker.peer_names import PeerNames
    from ordack.cli.drain import Drain, Interrupted
    from ordack.client import Client

    one = 1 if raw is not None or not (everything or peek or follow) else sys.maxsize
    left = one if count is None else min(count, sys.maxsize)
    with Client(store, look=peek) as client:
        queue = client.queue(name)
        show = _shown(raw, as_json, names := PeerNames.kept(client.store.names()))
        if peek:
            shown = [show(message) for message in islice(queue.peek(), left)]
            if raw is not None and not shown:
                raise StoreError(f"there is no message in {queue.name}")
            return
        drain = Drain(queue, show, names.added)
        try:
            drain.run(left, float("inf") if follow else 0.0)
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
        if raw is not None and not drain.removed:
            raise StoreError(f"there is no message in {queue.name}")


def _shown(raw: Path | None, as_json: bool, names: PeerNames) -> Callable[[Message], None]:
    """How one message is shown. names: what people call those who have sent it."""
    if raw is None:
        line = _json_of if as_json else _text_of
        return lambda message: write(line(message, names))
    if str(raw) == "-":
        return lambda message: write_bytes(message.body)
    return lambda message: save(raw, message.body)


def _json_of(message: Message, names: PeerNames) -> str:
    return json.dumps({**message.as_json(), "source_name": names.of(message.source)}) + "\n"


def _text_of(message: Message, names: PeerNames) -> str:
    """Arrival, identifier, delivery, place in its stream, label, size; the body, if readable, or its first bytes."""
    from datetime import datetime

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
    """Of a dead letter, where it should have gone and why it has not; of an acknowledgement, what it says of which."""
    from mqqb import guids

    from ordack.config import classes

    if not message.message_class:
        return ""
    doubt = ", in doubt" if message.in_doubt else ""
    if any(message.correlation_id):
        guid, number = message.correlation_id[:16], int.from_bytes(message.correlation_id[16:], "little")
        return f" {classes.words(message.message_class)}{doubt} about {guids.guid_text(guid)}\\{number}"
    return f" to {message.destination}: {classes.words(message.message_class, message.destination)}{doubt}"
