"""How far a campaign's board is, as its output says."""

import json
import secrets
from contextlib import suppress
from dataclasses import dataclass, field

from hil.boards import Log

AHEAD = "ahead"
"""What the node says that has heard of numbers that its outbox never gave."""


@dataclass
class Progress:
    """What the board's output says: the highest figures of all lives, its core, and its error if it gave one.

    Only lines with the identity `campaign` count: lines of an earlier program, before it is replaced, do not.
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
    cores: set[str] = field(default_factory=set)
    starts: int = 0
    told: set[str] = field(default_factory=set)
    sessions_before: int = 0
    sessions_now: int = 0
    associations: int = 0
    full: bool = False
    commanded: int = 0

    @property
    def sessions(self) -> int:
        """Sessions that the board has had, in all its lives."""
        return self.sessions_before + self.sessions_now

    def read(self, log: Log) -> None:
        """Take in what the log has got since the last time. Lines that are no JSON objects of this campaign
        (torn, tracebacks, of another program) are passed over.
        """
        lines = log.since(self.mark)
        self.mark += len(lines)
        for line in lines:
            with suppress(ValueError):
                said = json.loads(line.text)
                if not isinstance(said, dict) or said.get("campaign") != self.campaign:
                    continue
                self.associations += "associated" in said
                self.base = said.get("base", self.base)
                self.bases.update({self.base} - {0})
                self.claimed.update(range(self.base + 1, said.get("stored", 0) + 1))
                self.accepted = max(self.accepted, said.get("accepted", 0))
                self.stored = max(self.stored, said.get("stored", 0))
                self.core = said.get("core", self.core)
                self.cores.add(self.core)
                self.failed.update({said.get("message_id", 0)} - {0})
                self.told.update(said.get("damage", ()), [AHEAD] if said.get("ahead") else ())
                self.full = self.full or bool(said.get("full"))
                self.commanded = max(self.commanded, said.get("commanded", 0))
                self.started = self.started or "accepted" in said
                if said.get("event") == "started":
                    self.starts += 1
                    self.sessions_before, self.sessions_now = self.sessions, 0
                self.sessions_now = said.get("sessions", self.sessions_now)
                self.error = said.get("reason", self.error)
