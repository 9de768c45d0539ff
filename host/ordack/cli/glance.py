"""What `ordack status` shows: as text once, or again and again (`--watch`), as text, as JSON or live on a terminal."""

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
from typing import Any

from ordack.cli.common import Rows, make_table, report, table_text
from ordack.cli.output import write
from ordack.store import StoreBusy
from ordack.store.look import ReadOnlyStore, open_to_look
from ordack.text import printable

LEAST_S, MOST_S = 0.1, 86400.0  # between two looks
REST = 4  # times as long as a look takes, nothing is read after it
TRIES = 10  # to look at a store that nobody serves, while others change it
OTHER_LINES = 12  # of a screen, besides rows: headings, sentences

Part = str | Rows
_SERIAL_FIGURES = ("baud", "connections", "faults", "resent", "damaged")


def _whom(session: Mapping[str, Any]) -> str:
    """The queue manager at the other end: its identifier, what people call it, and the name in its certificate."""
    name = f" ({session['peer_name']})" if session.get("peer_name") else ""
    certificate = f", certificate of {session['certificate']}" if session.get("certificate") else ""
    return f"{session['guid']}{name}{certificate}"


def sessions(shown: Mapping[str, Any]) -> list[Rows]:
    """The tables of sessions and serial lines."""
    found = [
        Rows(
            ("session with", "address", "queue manager", "state", "opened by"),
            ("in flight",),
            [
                (
                    session["name"],
                    session["address"],
                    _whom(session),
                    session["state"],
                    "this side" if session["initiator"] else "it",
                    str(session.get("in_flight", "")),
                )
                for session in shown["sessions"]
            ],
        )
    ]
    if shown["serial"]:
        found.append(
            Rows(
                ("serial line", "port", "state", "last end"),
                _SERIAL_FIGURES,
                [
                    [str(line[key]) for key in ("host", "serial", "state", "last_end", *_SERIAL_FIGURES)]
                    for line in shown["serial"]
                ],
            )
        )
    return found


def outgoing(queues: Sequence[Mapping[str, Any]]) -> list[Part]:
    """The table of outgoing queues, and why their messages wait."""
    from ordack.broker.status import named

    rows = [
        (
            named(queue),
            queue["state"],
            *(str(queue[name]) for name in ("messages", "bytes", "not_order_acked", "not_read")),
        )
        for queue in queues
    ]
    return [
        Rows(("outgoing queue", "state"), ("messages", "bytes", "not acknowledged", "not read"), rows),
        *(f"{named(queue)}: {queue['why']}" for queue in queues if queue["why"]),
    ]


def parts(told: Mapping[str, Any]) -> list[Part]:
    """All of status.glance, in order."""
    from ordack.broker import status

    queues = Rows(
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
    found: list[Part] = [status.served_text(told), queues]
    if told["served"]:
        found += sessions(told)
    waiting = [queue for queue in told["outgoing"] if queue["messages"]]
    if waiting:
        found += outgoing(waiting)
    if refused := status.refused_text(told["refused"]):
        found.append(f"refused since the start: {refused}")
        found += status.why_refused(told["refused"])
    for problem in told["problems"]:
        if not any(problem.endswith(f": {queue['why']}") for queue in waiting):  # these stand there already
            found.append(problem)
    return found


def text(found: Sequence[Part]) -> str:
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


def watch(folder: Path, seconds: float, as_json: bool) -> None:
    """Show the status every so many seconds, until a signal ends it. Raises StoreError, OutputError, and
    BrokenPipeError when the reader of a pipe has gone."""
    with open_to_look(folder):  # a mistake is told before the first picture
        pass
    with _until_a_signal():
        if not as_json and sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
            _draw(folder, seconds)
            return
        for told in _looks(folder, seconds):
            if as_json:
                report(True, "", **told)
            else:
                write(f"{told['time']}\n{text(parts(told))}\n")


def _looks(folder: Path, seconds: float) -> Iterator[dict[str, Any]]:
    while True:
        began = time.monotonic()
        when = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        told = _look(folder)
        rest = REST * (time.monotonic() - began)
        yield {"time": when, **told}
        time.sleep(max(began + seconds - time.monotonic(), rest))


def _look(folder: Path) -> dict[str, Any]:
    from ordack.api import remote
    from ordack.broker import status

    silence = remote.silence(folder)
    for left in reversed(range(TRIES)):
        try:
            with ReadOnlyStore(folder) as store:  # which never makes a writer wait
                return status.glance(store, silence=silence)
        except StoreBusy:
            if not left:
                raise
    raise AssertionError


class _Terminal(io.StringIO):
    """Standard output, for rich."""

    def write(self, text: str) -> int:
        write(text)
        return len(text)

    def isatty(self) -> bool:
        return True


def _draw(folder: Path, seconds: float) -> None:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console = Console(file=_Terminal(), force_terminal=True, markup=False, emoji=False, highlight=False)
    with Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        for told in _looks(folder, seconds):
            for queues in (told["queues"], told["outgoing"]):
                queues.sort(key=lambda queue: -queue["messages"])
            shown: list[Any] = [Text(f"{told['time']}   (Ctrl-C ends this)")]
            for part in _first_what_is_wrong(told):
                if isinstance(part, str):
                    shown.append(Text(printable(part)))
                    continue
                most = max((console.size.height - OTHER_LINES) // 3, 3)
                shown.append(make_table(part.texts, part.numbers, part.rows[:most]))
                if len(part.rows) > most:
                    shown.append(Text(f"and {len(part.rows) - most} more"))
            live.update(Group(*shown), refresh=True)


def _first_what_is_wrong(told: Mapping[str, Any]) -> list[Part]:
    """The sentences before the tables: a screen may be too small for all."""
    first, *others = parts(told)
    return [
        first,
        *(part for part in others if isinstance(part, str)),
        *(part for part in others if isinstance(part, Rows)),
    ]
