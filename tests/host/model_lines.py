"""What one end of a connection of model.py has sent: in which order it may leave, and how a slow line takes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ordack.broker.links import PATIENCE


class Violation(AssertionError):
    """Something that must hold does not."""


class Sendable(Protocol):
    """A message, as far as its turn depends on it."""

    priority: int


class Sending:
    """One end's bytes and turns. unseen: how many messages of its host had a turn so far, at most, and were not sent,
    for they were withdrawn or too late."""

    def __init__(self, unseen: Callable[[], int]) -> None:
        self.is_slow = False
        self._held = bytearray()  # written, and a slow line has not taken it yet
        self._written = 0
        self._ends_at: dict[Sendable, int] = {}  # where in what was written a message ends that was sent
        self._turns = 0  # messages, FinalAcks, OrderAcks passed on, since one that was not the most urgent, and
        self._unseen = unseen
        self._unseen_then = unseen()

    @property
    def holds(self) -> int:
        """Bytes that have not left."""
        return len(self._held)

    def take(self, most: int | None = None) -> bytes:
        """The line takes so many bytes, or all."""
        taken = bytes(self._held[:most])
        del self._held[:most]
        return taken

    def lose(self) -> None:
        """The connection is gone, with what had not left."""
        self._held.clear()

    def writes(self, data: bytes, passed_on: bool) -> bytes:
        """These bytes were written; those of them that go over the line at once. passed_on: the other end is there."""
        self._written += len(data)
        if not passed_on:
            return b""
        if not self.is_slow:
            return data
        self._held += data
        return b""

    def turn(self) -> None:
        """Something had its turn. A dead letter is held no more, so the count of unseen messages may fall."""
        self._turns += 1
        self._unseen_then = min(self._unseen_then, self._unseen())

    def still_waits(self, urgent: dict[Sendable, int]) -> dict[Sendable, int]:
        """Those of the messages, with their priorities, that were not sent here before."""
        return {message: priority for message, priority in urgent.items() if message not in self._ends_at}

    def leaves(self, message: Sendable, end: int, is_own: bool, urgent: dict[Sendable, int]) -> bool:
        """A message is written, up to byte `end` of what is written now, while `urgent` waits too; was it one that is
        not the most urgent, whose turn it was? is_own: no router's, who passes on what comes twice twice."""
        if is_own and self._ends_at.get(message, 0) > self._written - len(self._held):
            raise Violation(f"it is sent again while it is still leaving: {message}")
        self._ends_at[message] = self._written + end
        urgent.pop(message, None)
        most = max(urgent.values(), default=0)
        if most <= message.priority:
            return False
        unseen = self._unseen()
        if self._turns + unseen - self._unseen_then < PATIENCE - 1:
            raise Violation(f"it leaves before others of priority {most}: {message}")
        self._turns = -1  # it counts itself
        self._unseen_then = unseen
        return True
