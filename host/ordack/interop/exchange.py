"""What the claims of a trial have in common: queues on both sides, messages each way, and what became of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from mqqb import confirm

from ordack import classes
from ordack.client import Message
from ordack.interop.far import SLICE_S, Far
from ordack.interop.here import Here
from ordack.interop.language import body_of, label_of

RECEIVE_S = 5  # that a command to receive may take
SIZE = 500  # bytes of a body at most


class Broken(Exception):
    """A claim did not hold: what was found."""


class Unjudged(Exception):
    """A claim cannot be judged: why, and what to do."""

    def __init__(self, found: str, advice: str = "") -> None:
        super().__init__(found)
        self.advice = advice


class Exchange:
    """Both sides, for the claim with the key `_key`. Raises Broken, and what Far does."""

    _key: str

    def __init__(self, here: Here, far: Far) -> None:
        self._here = here
        self._far = far
        self._client = here.client

    def _come(self, queue: str, count: int) -> list[Message]:
        """What comes here until it is all, or nothing comes any more."""
        found: list[Message] = []
        last = time.monotonic()
        while len(found) < count and time.monotonic() - last < self._far.patience:
            self._far.check()
            with self._client.queue(queue).receive_batch(count - len(found), SLICE_S) as messages:
                found += messages
            if messages:
                last = time.monotonic()
        return found

    def _ended(self, message: int, wanted: int) -> str:
        """The message ends as a dead letter here, with this class."""
        state = self._await(message, lambda answer: answer not in (confirm.WAITING, confirm.STORED))
        if state is None or state.answer != confirm.DEAD_LETTERED:
            raise Broken(f"no dead letter here: the message is {state.answer if state else 'unknown'}")
        if state.message_class != wanted:
            raise Broken(f"class {classes.label(state.message_class)}, not {classes.label(wanted)}")
        return f"class {classes.label(wanted)}"

    def _look(self, place: str) -> list[int]:
        """The classes of this claim's messages that are in this place there, once there is one."""
        last = time.monotonic()
        while True:
            found = list(map(int, self._far.ask("look", place=place, key=self._key)["classes"]))
            if found or time.monotonic() - last >= self._far.patience:
                return found
            self._far.pause()

    def _send_one(self, queue: str, **properties: Any) -> int:
        """Send a transactional message of this claim there; its number."""
        wanted = {"dead_letter": True, "ttrq": self._far.life} | properties
        return self._client.send(
            self._far.there(queue), body_of(1, SIZE), label=self._label(1), delivery="transactional", **wanted
        ).message_id

    def _await(self, message: int, is_right: Callable[[str], bool]) -> confirm.Conclusion | None:
        """What is known of a message, once this is right, or when patience has ended."""
        deadline = time.monotonic() + self._far.patience
        while True:
            state = self._client.state(message)
            if state is None or is_right(state.answer) or time.monotonic() >= deadline:
                return state
            self._far.pause(SLICE_S / 5)

    def _take_there(self, queue: str) -> None:
        """Let an application there receive a message."""
        last = time.monotonic()
        while not self._far.ask("receive", queue=queue, count=1, seconds=RECEIVE_S)["labels"]:
            if time.monotonic() - last >= self._far.patience:
                raise Broken("the message is lost: it does not come there")

    def _send_back(self, queue: str, delivery: str, numbers: range, **wanted: Any) -> None:
        """Let the script send these messages here."""
        self._far.answer(self._post_back(queue, delivery, numbers, **wanted), self._far.patience)

    def _post_back(self, queue: str, delivery: str, numbers: range, **wanted: Any) -> int:
        fields = {"size": SIZE, "deadletter": False, "journal": False, "ttrq": self._far.life} | wanted
        return self._far.post(
            "send",
            to=self._far.back(queue),
            key=self._key,
            delivery=delivery,
            first=numbers.start,
            count=len(numbers),
            **fields,
        )

    def _queue_there(self, transactional: bool) -> str:
        queue = self._far.queue(self._key)
        self._far.ask("create", queue=queue, transactional=transactional)
        return queue

    def _queue_here(self, transactional: bool) -> str:
        return self._client.create_queue(self._far.queue(self._key), transactional).name

    def _label(self, number: int) -> str:
        return label_of(self._far.run, self._key, number)
