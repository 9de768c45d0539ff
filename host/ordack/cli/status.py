"""The commands `ordack status` and `ordack state`: what a store is and does, and what became of a message."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from ordack.cli.common import JsonOption, Rows, StoreOption, make_table, report, table_text
from ordack.cli.output import write
from ordack.store import StoreBusy
from ordack.store.look import ReadOnlyStore, open_to_look
from ordack.text import printable

SECONDS = 1.0  # between two looks of --watch
REST = 4  # times as long as a look takes, nothing is read after it
TRIES = 10  # to look at a store that nobody serves, while others change it
OTHER_LINES = 12  # of a screen, besides rows: headings, sentences

Part = str | Rows
_SERIAL_FIGURES = ("baud", "connections", "faults", "resent", "damaged")


def state(
    store: StoreOption,
    message_id: Annotated[int, typer.Argument(min=1, max=0xFFFFFFFF, help="MessageID that `ordack send` printed.")],
    as_json: JsonOption = False,
) -> None:
    """Show what became of a transactional message sent from here, and why it waits.

    Exit status 1: nothing is known of the message.
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


def status(
    store: StoreOption,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it each second, until Ctrl-C or another signal ends that.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the whole store: whether it is served, who is connected, what is in the queues, what waits and why.

    Exit status: 0 all is well; 1 somebody has to look at something, or the store is not served. The last lines say what
    is wrong. With --watch: 0.
    """
    if watch:
        _watch(store, as_json)
        return
    told = _look(store)
    if as_json:
        report(True, "", **told)
    else:
        write(_text(_parts(told)))
    if told["problems"]:
        raise typer.Exit(1)


def _look(folder: Path, opener: type[ReadOnlyStore] | None = None) -> dict[str, Any]:
    from ordack.api import remote
    from ordack.broker import status

    silence = remote.silence(folder)
    with opener(folder) if opener else open_to_look(folder) as store:
        return status.glance(store, silence=silence)


def sessions(shown: Mapping[str, Any]) -> list[Rows]:
    """The tables of sessions and serial lines."""
    rows = []
    for session in shown["sessions"]:
        name = f" ({session['peer_name']})" if session.get("peer_name") else ""
        certificate = f", certificate of {session['certificate']}" if session.get("certificate") else ""
        opened_by = "this side" if session["initiator"] else "it"
        whom = f"{session['guid']}{name}{certificate}"
        in_flight = str(session.get("in_flight", ""))
        rows.append((session["name"], session["address"], whom, session["state"], opened_by, in_flight))
    headings = ("session with", "address", "queue manager", "state", "opened by")
    found = [Rows(headings, ("in flight",), rows)]
    if shown["serial"]:
        keys = ("host", "serial", "state", "last_end", *_SERIAL_FIGURES)
        lines = [[str(line[key]) for key in keys] for line in shown["serial"]]
        found.append(Rows(("serial line", "port", "state", "last end"), _SERIAL_FIGURES, lines))
    return found


def _outgoing(queues: Sequence[Mapping[str, Any]]) -> list[Part]:
    """The table of outgoing queues, and why their messages wait."""
    from ordack.broker.status import named

    figures = ("messages", "bytes", "not_order_acked", "not_read")
    rows = [(named(queue), queue["state"], *(str(queue[name]) for name in figures)) for queue in queues]
    return [
        Rows(("outgoing queue", "state"), ("messages", "bytes", "not acknowledged", "not read"), rows),
        *(f"{named(queue)}: {queue['why']}" for queue in queues if queue["why"]),
    ]


def _parts(told: Mapping[str, Any]) -> list[Part]:
    """All of status.glance, in order."""
    from ordack.broker import status

    rows = []
    for queue in told["queues"]:
        kind = "system" if queue["system"] else "transactional" if queue["transactional"] else ""
        quota = "" if queue["quota"] is None else str(queue["quota"])
        rows.append((queue["name"], kind, str(queue["messages"]), str(queue["bytes"]), quota))
    found: list[Part] = [status.served_text(told), Rows(("queue", "kind"), ("messages", "bytes", "quota"), rows)]
    if told["served"]:
        found += sessions(told)
    waiting = [queue for queue in told["outgoing"] if queue["messages"] or queue["on_hold"]]
    if waiting:
        found += _outgoing(waiting)
    if refused := status.refused_text(told["refused"]):
        found.append(f"refused since the start: {refused}")
        found += status.why_refused(told["refused"])
    for problem in told["problems"]:
        if not any(problem.endswith(f": {queue['why']}") for queue in waiting):  # these stand there already
            found.append(problem)
    return found


def _text(found: Sequence[Part]) -> str:
    """As lines."""
    return "".join(table_text(*part) if isinstance(part, Rows) else printable(part) + "\n" for part in found)


# ---- again and again


class _Stopped(BaseException):
    """A signal has ended it."""


@contextlib.contextmanager
def _until_a_signal() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP end what is inside, and nothing else, once."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def stop(_number: int, _frame: object) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise _Stopped

    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        with contextlib.suppress(_Stopped):
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _watch(folder: Path, as_json: bool) -> None:
    """Show the status each second, until a signal ends it. Raises StoreError, OutputError, and BrokenPipeError when the
    reader of a pipe has gone."""
    with open_to_look(folder):  # a mistake is told before the first picture
        pass
    with _until_a_signal():
        if not as_json and sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
            _draw(folder)
            return
        for told in _looks(folder):
            if as_json:
                report(True, "", **told)
            else:
                write(f"{told['time']}\n{_text(_parts(told))}\n")


def _looks(folder: Path) -> Iterator[dict[str, Any]]:
    failures = 0
    while True:
        began = time.monotonic()
        when = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            told = _look(folder, ReadOnlyStore)  # which never makes a writer wait
        except StoreBusy:
            failures += 1
            if failures == TRIES:
                raise
            continue
        failures = 0
        rest = REST * (time.monotonic() - began)
        yield {"time": when, **told}
        time.sleep(max(began + SECONDS - time.monotonic(), rest))


class _Terminal(io.StringIO):
    """Standard output, for rich."""

    def write(self, text: str) -> int:
        write(text)
        return len(text)

    def isatty(self) -> bool:
        return True


def _draw(folder: Path) -> None:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console = Console(file=_Terminal(), force_terminal=True, markup=False, emoji=False, highlight=False)
    with Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        for told in _looks(folder):
            for queues in (told["queues"], told["outgoing"]):
                queues.sort(key=lambda queue: -queue["messages"])
            shown: list[Any] = [Text(f"{told['time']}   (Ctrl-C ends this)")]
            most = max((console.size.height - OTHER_LINES) // 3, 3)
            for part in sorted(_parts(told), key=lambda part: isinstance(part, Rows)):  # a screen may be too small
                if isinstance(part, str):
                    shown.append(Text(printable(part)))
                    continue
                shown.append(make_table(part.texts, part.numbers, part.rows[:most]))
                if len(part.rows) > most:
                    shown.append(Text(f"and {len(part.rows) - most} more"))
            live.update(Group(*shown), refresh=True)
