"""The log of `ordack serve`: one line for each new fact, with time and level, as text or as JSON.

Repeated facts are counted and reported at growing intervals.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime

from ordack.config.names import counted, legible, printable

INFO, WARNING, ERROR = "info", "warning", "error"
AGAIN_S = 60.0  # before a repeated fact is reported; doubles each time,
AGAIN_MAX_S = 3600.0  # up to this
FACTS_MAX = 1000  # facts remembered
FACTS_OF_PEER = 30  # facts remembered of one peer, which chooses their content; more count as one
SAME_AGAIN_S = 10  # between two reports of one kind of excess
NEWS = "news"  # the fact of a line that repeats no other, whatever its text


class Form(enum.StrEnum):
    """The forms of the log: a line of text, or a JSON object."""

    TEXT = "text"
    JSON = "json"


class LogLine(str):
    """A line for the log. level: INFO, WARNING, ERROR. fact: identity of lines whose numbers differ; default: the text.
    about: facts for programs: the `peer` (address or name), the `queue` (format name), the `rule` of the specification,
    the message `class`."""

    __slots__ = ("about", "fact", "level")

    about: dict[str, str]
    fact: str
    level: str

    def __new__(cls, text: str, level: str = WARNING, fact: str = "", **about: str) -> LogLine:
        line = super().__new__(cls, text)
        line.level = level
        line.fact = fact or text
        line.about = about
        return line


class Operator:
    """Reports to the operator. write: takes each line; its errors are ignored. named: adds display names of peers to a
    text."""

    def __init__(self, write: Callable[[str], None], named: Callable[[str], str] = str) -> None:
        self._write = write
        self._named = named
        self._told: dict[str, int] = {}  # kind -> not again before this second

    def tell(self, text: str, level: str = WARNING, fact: str = "", **about: str) -> None:
        """Report a line; level, fact, about: see LogLine."""
        with contextlib.suppress(Exception):
            line = text if isinstance(text, LogLine) else LogLine(text, level, fact, **about)
            about = {name: legible(value) for name, value in line.about.items()}
            self._write(LogLine(legible(self._named(line)), line.level, line.fact, **about))

    def tell_seldom(self, kind: str, wall: int, text: str, **about: str) -> None:
        """Report a line, at most once in SAME_AGAIN_S per kind. wall: seconds since 1970."""
        if wall >= self._told.get(kind, 0):
            self._told[kind] = wall + SAME_AGAIN_S
            self.tell(text, **about)


class _Fact:
    """A fact: time of its last report, interval to the next, repetitions since, and the last line with its time."""

    def __init__(self, told: float, last: LogLine) -> None:
        self.told = self.seen = told
        self.quiet = AGAIN_S
        self.count = 0
        self.last = last


class ServeLog:
    """Takes lines; plain text is a warning. write: takes each formatted line. clock: gives seconds since 1970. Call
    `tick` now and then and `close` at the end: both report repetitions."""

    def __init__(
        self, write: Callable[[str], None], clock: Callable[[], float] = time.time, form: Form = Form.TEXT
    ) -> None:
        self._write = write
        self._clock = clock
        self._form = form
        self._facts: dict[str, _Fact] = {}
        self._news = itertools.count()

    def __call__(self, text: str) -> None:
        line = text if isinstance(text, LogLine) else LogLine(text)
        peer = line.about.get("peer")
        name = line.fact if line.fact != NEWS else f"{NEWS} {next(self._news)}"
        peers = (fact.last.about.get("peer") for fact in self._facts.values())
        if peer and name not in self._facts and sum(other == peer for other in peers) >= FACTS_OF_PEER:
            name = f"{peer}: more"
        if fact := self._facts.get(name):
            fact.count += 1
            fact.last, fact.seen = line, self._clock()
            return
        if len(self._facts) >= FACTS_MAX:
            self._tell_again(next(iter(self._facts)))
        self._facts[name] = _Fact(self._clock(), line)
        self._tell(line)

    def tick(self) -> None:
        """Report repetitions that are due; forget facts without any."""
        now = self._clock()
        for name in [name for name, fact in self._facts.items() if not 0 <= now - fact.told < fact.quiet]:
            fact = self._facts[name]
            if self._tell_again(name):
                fact.told, fact.count, fact.quiet = now, 0, min(2 * fact.quiet, AGAIN_MAX_S)
                self._facts[name] = fact

    def close(self) -> None:
        """Report all repetitions."""
        for name in list(self._facts):
            self._tell_again(name)

    def _tell_again(self, name: str) -> bool:
        fact = self._facts.pop(name)
        if fact.count:
            self._tell(fact.last, fact)
        return fact.count > 0

    def _tell(self, line: LogLine, past: _Fact | None = None) -> None:
        """Write a line. past: the fact that it repeats, which may be true no more."""
        when = _moment(self._clock())
        if self._form is Form.JSON:
            more = {"again": past.count, "since": _moment(past.told), "until": _moment(past.seen)} if past else {}
            self._write(json.dumps({"time": when, "level": line.level, "text": line, **line.about, **more}))
            return
        text = printable(line, "\n    ")
        if past:
            span = f"from {_moment(past.told)[11:19]} until {_moment(past.seen)[11:19]}"
            text = f"{counted(past.count, 'time')} more {span}: {text}"
        self._write(f"{when} {line.level}: {text}")


def _moment(seconds: float) -> str:
    """Return a time since 1970 in ISO 8601, UTC, with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
