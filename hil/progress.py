"""The progress of a campaign's board, from its output."""

import json
import secrets
from contextlib import suppress
from dataclasses import dataclass, field

from hil.boards import RESET, Log

AHEAD = "ahead"
"""What the node says that has heard of numbers that its outbox never gave."""


class Starts:
    """The starts that a board reports, compared with the ends of its lives.

    A power cut is confirmed when the next life reports a higher number, a reset when the same life does. A board starts
    once per life, and once per reset; otherwise `wrong` has the message.
    """

    def __init__(self) -> None:
        self.count = 0
        self.wrong = ""
        self._life = 0
        self._ended: list[tuple[int, str]] = []

    @property
    def unseen(self) -> list[str]:
        """The ways in which lives ended that no reported start has confirmed yet."""
        return [way for _, way in self._ended]

    def end(self, life: int, way: str) -> None:
        """Record that this life ends now, in this way."""
        self._ended.append((life, way))

    def said(self, life: int, count: int) -> None:
        """Record the number of starts that the board reports in this life."""
        if not count or life < self._life:  # a line of an ended life may come late
            return
        planned = self.count + life - self._life + self.unseen.count(RESET)
        if life > self._life and count <= self.count:
            self.wrong = (
                f"the board was switched off and on and did not start again, it says start {count} before and after: "
                "does the switch switch this board?"
            )
        elif count > planned:
            self.wrong = f"the board has started by itself: it says start {count}, and {planned} were planned"
        elif count > self.count:
            self._ended = [(when, way) for when, way in self._ended if when >= life and way != RESET]
        self._life, self.count = life, max(self.count, count)


@dataclass
class Progress:
    """The content of the board's output: the highest figures of all lives, its core, and its error, if any.

    Only lines with the identity `campaign` count; lines of an earlier program do not.
    """

    campaign: str = field(default_factory=lambda: secrets.token_hex(4))
    accepted: int = 0
    stored: int = 0
    core: str = "unknown"
    started: bool = False
    error: str | None = None
    mark: int = 0
    base: int = 0
    bases: set[int] = field(default_factory=set)
    claimed: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    starts: Starts = field(default_factory=Starts)
    told: set[str] = field(default_factory=set)
    sessions_before: int = 0
    sessions_now: int = 0
    full: bool = False

    @property
    def sessions(self) -> int:
        """Sessions of the board, in all its lives."""
        return self.sessions_before + self.sessions_now

    def read(self, log: Log) -> None:
        """Read the new lines of the log. Ignores lines that are no JSON objects of this campaign: torn lines,
        tracebacks, other programs."""
        lines = log.since(self.mark)
        self.mark += len(lines)
        for line in lines:
            with suppress(ValueError):
                said = json.loads(line.text)
                if not isinstance(said, dict) or said.get("campaign") != self.campaign:
                    continue
                self.base = said.get("base", self.base)
                self.bases.update({self.base} - {0})
                self.claimed.update(range(self.base + 1, said.get("stored", 0) + 1))
                self.accepted = max(self.accepted, said.get("accepted", 0))
                self.stored = max(self.stored, said.get("stored", 0))
                self.core = said.get("core", self.core)
                self.failed.update({said.get("message_id", 0)} - {0})
                self.told.update(said.get("damage", ()), [AHEAD] if said.get("ahead") else ())
                self.full = self.full or bool(said.get("full"))
                self.started = self.started or "accepted" in said
                self.starts.said(line.life, said.get("starts", 0))
                if said.get("event") == "started":
                    self.sessions_before, self.sessions_now = self.sessions, 0
                self.sessions_now = said.get("sessions", self.sessions_now)
                self.error = said.get("reason", self.error)
