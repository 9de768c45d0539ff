"""The log of `ordack serve`: one line for each new fact, with time and level, as text or as JSON.

What repeats is counted and reported together, less and less often.
"""

from __future__ import annotations

import contextlib
import enum
import json
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

from ordack.config.names import legible, printable

INFO, WARNING, ERROR = "info", "warning", "error"
AGAIN_S = 60.0  # in which the same fact is not told again; twice as long each time that it keeps coming,
AGAIN_MAX_S = 3600.0  # up to this
FACTS_MAX = 1000  # that are remembered
FACTS_OF_PEER = 30  # of them about one peer: it chooses what is in them, and more are told as one
SAME_AGAIN_S = 10  # an operator is told at most that often of one kind of excess


class Form(enum.StrEnum):
    """The forms of the log: a line of text, or a JSON object."""

    TEXT = "text"
    JSON = "json"


class LogLine(str):
    """A line for the log. level: INFO, WARNING, ERROR. fact: what makes it the same as another one, although numbers in
    the text differ; by default the text. about: what it is about, for programs: the `peer` (address or name), the
    `queue` (format name), the `rule` of the specification, the message `class`."""

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
    """Who is told what he should know. write: takes each line; nothing depends on whether it works. named: adds to a
    text what people call those who are in it."""

    def __init__(self, write: Callable[[str], None], named: Callable[[str], str] = str) -> None:
        self._write = write
        self._named = named
        self._told: dict[str, int] = {}  # kind -> not again before this second

    def tell(self, text: str, level: str = WARNING, fact: str = "", **about: str) -> None:
        """Tell him something; level, fact, about: see LogLine."""
        with contextlib.suppress(Exception):
            line = text if isinstance(text, LogLine) else LogLine(text, level, fact, **about)
            self._write(
                LogLine(
                    legible(self._named(line)),
                    line.level,
                    line.fact,
                    **{name: legible(value) for name, value in line.about.items()},
                )
            )

    def tell_seldom(self, kind: str, wall: int, text: str, **about: str) -> None:
        """Tell him something of this kind, unless that was done a moment ago. wall: seconds since 1970."""
        if wall >= self._told.get(kind, 0):
            self._told[kind] = wall + SAME_AGAIN_S
            self.tell(text, **about)


class _Fact:
    """When it was told last, how long it is not told again, and what has come meanwhile."""

    def __init__(self, told: float, peer: str) -> None:
        self.told = told
        self.peer = peer
        self.quiet = AGAIN_S
        self.count = 0
        self.last: LogLine | None = None


class ServeLog:
    """Takes lines, also plain text, which is a warning. write: takes each line as it is to appear. clock: gives seconds
    since 1970. `tick` is to be called now and then, `close` at the end:
    both tell what has come again."""

    def __init__(
        self, write: Callable[[str], None], clock: Callable[[], float] = time.time, form: Form = Form.TEXT
    ) -> None:
        self._write = write
        self._clock = clock
        self._form = form
        self._facts: dict[str, _Fact] = {}
        self._of_peer: Counter[str] = Counter()

    def __call__(self, text: str) -> None:
        line = text if isinstance(text, LogLine) else LogLine(text)
        peer = line.about.get("peer", "")
        name = line.fact
        if peer and name not in self._facts and self._of_peer[peer] >= FACTS_OF_PEER:
            name = f"{peer}: more"
        fact = self._facts.get(name)
        if fact:
            fact.count += 1
            fact.last = line
            return
        if len(self._facts) >= FACTS_MAX:
            self._tell_again(next(iter(self._facts)))
        self._remember(name, _Fact(self._clock(), peer))
        self._tell(line)

    def _remember(self, name: str, fact: _Fact) -> None:
        self._facts[name] = fact
        self._of_peer[fact.peer] += 1

    def tick(self) -> None:
        """Tell what has come again for long enough; forget what has not."""
        now = self._clock()
        for name in [name for name, fact in self._facts.items() if not 0 <= now - fact.told < fact.quiet]:
            fact = self._facts[name]
            if self._tell_again(name):
                fact.told, fact.count, fact.quiet = now, 0, min(2 * fact.quiet, AGAIN_MAX_S)
                self._remember(name, fact)

    def close(self) -> None:
        """Tell all that has come again."""
        for name in list(self._facts):
            self._tell_again(name)

    def _tell_again(self, name: str) -> bool:
        fact = self._facts.pop(name)
        self._of_peer[fact.peer] -= 1
        if not self._of_peer[fact.peer]:
            del self._of_peer[fact.peer]
        if fact.last:
            self._tell(fact.last, fact.count, fact.told)
        return fact.count > 0

    def _tell(self, line: LogLine, again: int = 0, since: float = 0.0) -> None:
        """Write a line; again: how often it has come since that time, in seconds since 1970, when it was told last."""
        when = _moment(self._clock())
        if self._form is Form.JSON:
            more = {"again": again, "since": _moment(since)} if again else {}
            self._write(json.dumps({"time": when, "level": line.level, "text": line, **line.about, **more}))
            return
        text = printable(line, "\n    ")
        if again:
            text += f" ({'once' if again == 1 else f'{again} times'} more since {_moment(since)[11:19]})"
        self._write(f"{when} {line.level}: {text}")


def _moment(seconds: float) -> str:
    """A time since 1970 as ISO 8601 has it, in UTC, with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
