"""The command `ordack`. Exit status: 0 done, 1 negative answer or a store that cannot be used, 2 wrong usage or input.

What only one command needs is imported when that one runs: a receive in a script should cost milliseconds.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ordack.store import BadName, Store, StoreError, legible

if TYPE_CHECKING:
    from ordack.client import Message
    from ordack.config import Config

RECEIVE_BATCH = 256  # messages that `receive` removes with one commit

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False,
                  help="A queue manager for the MSMQ binary protocol.")
queue_app = typer.Typer(no_args_is_help=True, help="Create, list, purge, delete queues.")
app.add_typer(queue_app, name="queue")

def _named(folder: str) -> str:
    if not folder:
        raise typer.BadParameter("the folder has no name")
    return folder


StoreOption = Annotated[str, typer.Option("--store", metavar="FOLDER", callback=_named, help="Folder of the store.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
NameArgument = Annotated[str, typer.Argument(help="Queue name, with or without private$\\.")]


class _OutputError(Exception):
    """Standard output does not take what is written."""


def _write(text: str) -> None:
    """Write all of it to standard output, or raise. With PYTHONUNBUFFERED set, sys.stdout would drop what a pipe does
    not take at once, without a word."""
    if sys.stdout is None:  # closed from the start; descriptor 1 may be the store's by now
        raise _OutputError("it is closed")
    left = memoryview(legible(text).encode())
    try:
        while left:
            left = left[os.write(sys.stdout.fileno(), left):]
    except BrokenPipeError:  # the reader has seen enough
        raise
    except OSError as error:
        raise _OutputError(error.strerror) from None


def _report(as_json: bool, text: str, **values: Any) -> None:
    _write((json.dumps(values) if as_json else text) + "\n")


@queue_app.command("create")
def queue_create(
    name: NameArgument, store: StoreOption,
    transactional: Annotated[bool, typer.Option(
        "--transactional", help="For transactional messages, and only them.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a private queue, and the store if there is none."""
    with Store(store, create=True) as opened:
        queue = opened.create_queue(name, transactional)
    _report(as_json, f"created {queue.name}", name=queue.name, transactional=queue.transactional, id=queue.identifier)


@queue_app.command("list")
def queue_list(
    store: StoreOption, as_json: JsonOption = False,
    system: Annotated[bool, typer.Option("--system", help="System queues too.")] = False,
) -> None:
    """Show the queues and what is in them."""
    with Store(store) as opened:
        queues = [queue for queue in opened.queues() if system or not queue.kind]
    if as_json:
        for queue in queues:
            _report(True, "", name=queue.name, id=queue.identifier, transactional=queue.transactional,
                    system=bool(queue.kind), messages=queue.messages, bytes=queue.bytes)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("queue", "kind", "messages", "bytes")
    for column in table.columns[2:]:
        column.justify = "right"
    for queue in queues:
        table.add_row(queue.name, "transactional" if queue.transactional else "", str(queue.messages), str(queue.bytes))
    text = io.StringIO()
    Console(file=text, force_terminal=sys.stdout is not None and sys.stdout.isatty()).print(table)
    _write(text.getvalue())


@queue_app.command("purge")
def queue_purge(name: NameArgument, store: StoreOption, as_json: JsonOption = False) -> None:
    """Remove all messages of a queue."""
    with Store(store) as opened:
        removed = opened.purge_queue(name)
    _report(as_json, f"removed {removed} messages", name=name, removed=removed)


@queue_app.command("delete")
def queue_delete(name: NameArgument, store: StoreOption, as_json: JsonOption = False) -> None:
    """Remove a queue and its messages."""
    with Store(store) as opened:
        removed = opened.delete_queue(name)
    _report(as_json, f"deleted {name} with {removed} messages", name=name, removed=removed)


@app.command()
def send(
    destination: Annotated[str, typer.Argument(
        help="Name of a local queue, or a direct format name: DIRECT=TCP:10.0.0.5\\private$\\line1.")],
    store: StoreOption,
    body: Annotated[str | None, typer.Option(help="The body, as the bytes of this argument.")] = None,
    file: Annotated[typer.FileBinaryRead | None, typer.Option(
        help="Read the body from a file; - is standard input, from where it comes without --body too.")] = None,
    label: Annotated[str, typer.Option(help="At most 249 characters.")] = "",
    priority: Annotated[int, typer.Option(min=0, max=7, help="7 is received first.")] = 3,
    delivery: Annotated[str | None, typer.Option(
        help="express, recoverable or transactional; by default what a local queue needs, else the last.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Send one message. It is on disk when this returns; to another machine it travels when `ordack serve` runs."""
    if body is not None and file is not None:
        raise typer.BadParameter("--body and --file do not go together")
    from ordack.client import Client

    if body is not None:
        content = os.fsencode(body)
    elif file is not None:
        content = file.read()
    elif sys.stdin is not None:
        content = sys.stdin.buffer.read()
    else:
        raise typer.BadParameter("standard input is closed: give --body or --file")
    with Client(store) as client:
        try:
            sent = client.send(destination, content, label, priority, delivery)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    _report(as_json, f"sent message {sent.message_id} to {destination}, {sent.delivery}", destination=destination,
            **sent._asdict())


@app.command()
def receive(
    name: NameArgument, store: StoreOption, as_json: JsonOption = False,
    count: Annotated[int | None, typer.Option(min=0, help="At most this many messages.")] = None,
    peek: Annotated[bool, typer.Option("--peek", help="Leave the messages in the queue.")] = False,
    follow: Annotated[bool, typer.Option(
        "--follow", help="Wait for more instead of ending when the queue is empty.")] = False,
) -> None:
    """Print the messages of a queue and remove them.

    A message is removed after its line was written and flushed: if this is killed in between, it is shown once more.
    """
    if peek and follow:
        raise typer.BadParameter("--peek and --follow do not go together")
    from itertools import islice

    from ordack.client import Client

    show = _show_json if as_json else _show_text
    left = sys.maxsize if count is None else min(count, sys.maxsize)
    with Client(store) as client:
        queue = client.queue(name)
        if peek:
            for message in islice(queue.peek(), left):
                show([message])
            return
        while left:
            with queue.receive_batch(min(left, RECEIVE_BATCH), float("inf") if follow else 0.0) as messages:
                show(messages)
            if not messages:
                return
            left -= len(messages)


def _show_json(messages: list[Message]) -> None:
    _write("".join([json.dumps(message.as_json()) + "\n" for message in messages]))


def _show_text(messages: list[Message]) -> None:
    lines = []
    for message in messages:
        body = message.body
        try:
            shown = body[:200].decode()
            readable = shown.isprintable()
        except UnicodeDecodeError:
            readable = False
        place = "" if message.tx_sequence_number is None else f" {message.tx_sequence_id}/{message.tx_sequence_number}"
        lines.append(f"{message.source}\\{message.message_id} {message.delivery}{place} {message.label!r} "
                     f"{len(body)} bytes\n    {shown if readable else body[:64].hex(' ')}\n")
    _write("".join(lines))


@app.command()
def serve(
    store: StoreOption,
    listen: Annotated[str, typer.Option(
        help="HOST:PORT to take connections on; port 0 picks a free one.")] = "0.0.0.0:1801",
    next_hop: Annotated[list[str] | None, typer.Option(
        help="ADDRESS=HOST:PORT: connect there for destinations on ADDRESS, instead of port 1801 on it.")] = None,
    own_name: Annotated[list[str] | None, typer.Option(
        help="Address in direct names that means this machine; without any, all do.")] = None,
    quota: Annotated[int | None, typer.Option(min=0, help="Bytes of packets to keep at most.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Run the queue manager until SIGTERM or SIGINT."""
    from ordack.config import Config, format_address, parse_address, parse_next_hop
    from ordack.net import listen as open_listener

    try:
        address = parse_address(listen)
        config = Config(own_names=frozenset(name.lower() for name in own_name or ()),
                        next_hops=dict(parse_next_hop(text) for text in next_hop or ()),
                        quota=Config.quota if quota is None else quota)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        listener = open_listener(*address)  # before a store is made for nothing
    except OSError as error:
        raise StoreError(f"cannot listen on {listen}: {error.strerror or error}") from None
    with listener, Store(store, create=True) as opened:
        opened.lock_manager()
        host, port = listener.getsockname()[:2]
        text = format_address(host, port)
        import asyncio

        asyncio.run(_serve(opened, config, listener, lambda: _report(as_json, f"listening on {text}", listening=text)))


async def _serve(store: Store, config: Config, listener: Any, ready: Any) -> None:
    import asyncio
    import signal

    from ordack import net
    from ordack.manager import Manager

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    manager = Manager(store, net.now(), config, _complain)
    await net.serve(manager, listener, stop, ready)


def _complain(text: str) -> None:
    """Tell on standard error, if that takes it: nothing ends because nobody listens."""
    if sys.stderr is not None:  # None: closed from the start; descriptor 2 may be the store's by now
        with contextlib.suppress(OSError, ValueError):
            os.write(sys.stderr.fileno(), f"ordack: {legible(text)}\n".encode())


def main() -> None:
    """Entry point of the console script. Typer ends it quietly, with 1, when the reader of a pipe has gone."""
    if not {"queue", "send", "receive", "serve"}.intersection(sys.argv[1:2]):
        from ordack.decode import command  # slow to import

        app.command("decode")(command)
    try:
        app()
    except StoreError as error:
        _complain(str(error))
        sys.exit(1)
    except _OutputError as error:
        _complain(f"cannot write to standard output: {error}")
        sys.exit(1)
    except BadName as error:
        _complain(str(error))
        sys.exit(2)
