"""The other side of a trial, as this side sees it: commands go there, answers come back."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from ordack.client import Empty
from ordack.interop.here import Here
from ordack.interop.language import ALWAYS, ANSWERS, COMMANDS, CONTROL

SLICE_S = 0.25  # after which a wait looks whether it is to end
LIFE_S = 600  # TimeToReachQueue of all that is sent for a trial: nothing of it stays for long where it is in the way


class NoAnswer(Exception):
    """The script there has not answered in time."""


class Refused(Exception):
    """The script there could not do it; the text is what its system says."""


class Stopped(Exception):
    """Somebody wants the trial to end: a signal of this number."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


class Far:
    """Asks the script on the other machine.

    prefix: what is in front of a queue's name in a direct name there, and own: the same of this machine.
    patience: seconds. stopped: the number of a signal that is to end the trial, 0 for none. life: of messages, in
    seconds, by which the clocks of both sides may differ.
    """

    def __init__(
        self, here: Here, run: str, prefix: str, own: str, patience: float, stopped: Callable[[], int]
    ) -> None:
        self.here = here
        self.run = run
        self.patience = patience
        self.life = LIFE_S
        self._prefix = prefix
        self._own = own
        self.stopped = stopped
        self._number = 0
        self._answers = here.client.create_queue(self.queue("answers"))

    def queue(self, key: str) -> str:
        """The name of a queue of this trial, on either side."""
        return f"{CONTROL}-{self.run}-{key}"

    def there(self, queue: str) -> str:
        """The format name of a queue there, as this side writes it."""
        return f"{self._prefix}\\private$\\{queue}"

    def back(self, queue: str) -> str:
        """The format name of a queue here, as the other side writes it."""
        return f"{self._own}\\private$\\{queue}"

    def pause(self, seconds: float = SLICE_S) -> None:
        """Wait a moment. Raises Stopped, and TrialError when this side has ended."""
        self.check()
        time.sleep(seconds)

    def check(self) -> None:
        if number := self.stopped():
            raise Stopped(number)
        self.here.check()

    def post(self, command: str, **fields: Any) -> int:
        """Send a command; its number. Nobody waits for the answer."""
        assert set(fields) == set(COMMANDS[command]), (command, fields)
        self._number += 1
        values = (self._number, self.run, self.back(self._answers.name), command)
        self.here.client.send(
            self.there(CONTROL),
            json.dumps({**dict(zip(ALWAYS, values, strict=True)), **fields}).encode(),
            label=f"{self.run} {command} {self._number}",
            delivery="recoverable",
        )
        return self._number

    def answer(self, number: int, seconds: float) -> dict[str, Any]:
        """The answer to this command, which has so long. Raises NoAnswer, Refused, Stopped."""
        deadline = time.monotonic() + seconds
        while True:
            self.check()
            try:
                with self._answers.receive(SLICE_S) as message:
                    body = message.body
            except Empty:
                if time.monotonic() >= deadline:
                    raise NoAnswer(f"the script there has not answered in {seconds:.0f} s") from None
                continue
            found = _understood(body)
            if found.get("number") == number:
                if not found.get("ok"):
                    raise Refused(str(found.get("error") or "the script there says only that it failed"))
                return found

    def ask(self, command: str, **fields: Any) -> dict[str, Any]:
        """The answer to a command. Raises NoAnswer, Refused, Stopped."""
        found = self.answer(self.post(command, **fields), self.patience + float(fields.get("seconds", 0)))
        missing = [name for name in ANSWERS[command] if name not in found]
        if missing:
            raise Refused(f"the answer to {command} says nothing of {', '.join(missing)}: is the script the right one?")
        return found


def _understood(body: bytes) -> dict[str, Any]:
    """An answer; empty if it is none."""
    try:
        found = json.loads(body.decode("utf-8-sig"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
