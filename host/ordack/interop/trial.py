"""The scenario of a trial: what is sent both ways, what is asked of the other side, and how each claim is judged."""

from __future__ import annotations

import contextlib
import hashlib
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from mqqb import confirm

from ordack import classes, outcome
from ordack.interop.claims import BROKEN, CLAIMS, HELD, UNJUDGED, Row, out_of_sequence
from ordack.interop.exchange import RECEIVE_S, SIZE, Broken, Exchange, Unjudged
from ordack.interop.far import Far, NoAnswer, Refused
from ordack.interop.here import Here
from ordack.interop.language import body_of
from ordack.sending import Letter
from ordack.text import counted

AT_ONCE = 200  # messages that one command or one commit is about
FEW = 20  # messages of a kind that is not the point
LARGE = 1_000_000
LABEL = "Gr\u00f6\u00dfe \u2192 \u6e29\u5ea6"
TTRQ_S = 3
MARGIN_S = 4.0  # that the other side has, beyond it, to send what is to expire
ATTEMPTS = 3

LOST = "keep the folder: its capture shows what was acknowledged; send it to the makers of ordack"
CAPTURED = "the capture in the folder shows what came: send the folder to the makers of ordack"


class Plan(NamedTuple):
    """messages: of the large rows. cuts: in each direction. only: keys of the claims to judge; empty: all. clocks: do
    they agree, so that times can be judged?"""

    messages: int
    cuts: int
    only: frozenset[str]
    clocks: bool


class Trial(Exchange):
    """Judges the claims, one after the other. Raises Stopped when somebody wants it to end, and TrialError."""

    def __init__(self, here: Here, far: Far, plan: Plan, show: Callable[[str], None]) -> None:
        super().__init__(here, far)
        self.rows: list[Row] = []
        self._plan = plan
        self._show = show
        self._key = ""
        self._echoed = ""  # the queue here that the script sends a message back to
        self._there: dict[str, str] = {}  # key of a claim -> queue there that is to be empty by now
        self._back: dict[str, str] = {}  # the same here

    def run(self) -> None:
        silent = ""
        steps = self._steps()
        for number, (key, step) in enumerate(steps, 1):
            if silent:
                self._row(key, UNJUDGED, silent)
                continue
            self._key = key
            self._tell(f"{number} of {len(steps)}: {CLAIMS[key].title}")
            try:
                self._row(key, HELD, step())
            except Broken as error:
                self._row(key, BROKEN, str(error), LOST if "lost" in str(error) else CAPTURED)
            except Unjudged as error:
                self._row(key, UNJUDGED, str(error), error.advice)
            except Refused as error:
                self._row(key, UNJUDGED, f"the script there says: {error}")
            except NoAnswer as error:
                self._row(
                    key, UNJUDGED, str(error), "does the script still run there? Start it, and then the trial again"
                )
                silent = "the script there does not answer any more"
            finally:
                self._here.cuts.forget()
                self._here.cuts.unblock()
        if not silent:
            self._look_for_more()

    def _steps(self) -> list[tuple[str, Callable[[], str]]]:
        few, many, cuts = min(FEW, self._plan.messages), self._plan.messages, self._plan.cuts
        steps: list[tuple[str, Callable[[], str]]] = []
        for way, carry in (("to", self._carry_there), ("from", self._carry_back)):
            steps += [
                (f"{way}-express", partial(carry, "express", few)),
                (f"{way}-recoverable", partial(carry, "recoverable", few)),
                (f"{way}-transactional", partial(carry, "transactional", many)),
                (f"{way}-large", partial(carry, "transactional", 1, size=LARGE, first=0)),
                (f"{way}-cuts", partial(self._cut, carry, many, cuts)),
            ]
        steps += [
            ("to-properties", self._properties),
            ("from-properties", self._properties_back),
            ("to-no-queue", partial(self._dead_letter_here, confirm.NACK_BAD_DST_Q)),
            ("to-plain-queue", partial(self._dead_letter_here, confirm.NACK_NOT_TRANSACTIONAL_Q)),
            ("from-no-queue", partial(self._dead_letter_there, confirm.NACK_BAD_DST_Q)),
            ("from-plain-queue", partial(self._dead_letter_there, confirm.NACK_NOT_TRANSACTIONAL_Q)),
            ("to-ttrq", self._expires_here),
            ("from-ttrq", self._expires_there),
            ("to-received", self._received_there),
            ("from-received", self._received_here),
            ("to-purged", self._purged_there),
            ("acknowledgements", self._acknowledgements),
        ]
        return [step for step in steps if not self._plan.only or step[0] in self._plan.only]

    # ---- messages both ways

    def _cut(self, carry: Callable[..., str], count: int, cuts: int) -> str:
        if not cuts:
            raise Unjudged("no connection was to be cut", "more --messages, or --cuts")
        return carry("transactional", count, cuts=cuts)

    def _carry_there(self, delivery: str, count: int, size: int = SIZE, first: int = 1, cuts: int = 0) -> str:
        queue = self._queue_there(transactional=delivery == "transactional")
        numbers = range(first, first + count)
        self._plan_cuts(cuts, numbers, size)
        for some in _portions(numbers):
            self._client.send_many(
                Letter(self._far.there(queue), body_of(n, size), self._label(n), delivery=delivery, ttrq=self._far.life)
                for n in some
            )
        labels, damaged = self._received(queue, count, size)
        self._there[self._key] = queue
        return self._judged(numbers, labels, damaged, cuts)

    def _received(self, queue: str, count: int, size: int) -> tuple[list[str], str]:
        """The labels of what comes there until it is all, or nothing comes any more; and what is damaged in it."""
        labels: list[str] = []
        damaged = ""
        last = time.monotonic()
        while len(labels) < count and time.monotonic() - last < self._far.patience:
            found = self._far.ask("receive", queue=queue, count=min(AT_ONCE, count - len(labels)), seconds=RECEIVE_S)
            if found["labels"]:
                last = time.monotonic()
                right = hashlib.sha256(b"".join(body_of(_number(label), size) for label in found["labels"]))
                if right.hexdigest() != str(found["sha256"]).lower():
                    damaged = f"a body among those from {found['labels'][0]} on is not as it was sent"
            labels += found["labels"]
            self._tell(f"{CLAIMS[self._key].title}: {len(labels):,} of {count:,}")
        return labels, damaged

    def _carry_back(self, delivery: str, count: int, size: int = SIZE, first: int = 1, cuts: int = 0) -> str:
        queue = self._queue_here(transactional=delivery == "transactional")
        numbers = range(first, first + count)
        self._plan_cuts(cuts, numbers, size)
        labels: list[str] = []
        damaged = ""
        for some in _portions(numbers):
            self._send_back(queue, delivery, some, size=size)
            for message in self._come(queue, len(some)):
                labels.append(message.label)
                if message.body != body_of(_number(message.label), size):
                    damaged = f"the body of {message.label} is not as it was sent"
                elif message.delivery != delivery:
                    damaged = f"{message.label} is {message.delivery}"
            self._tell(f"{CLAIMS[self._key].title}: {len(labels):,} of {count:,}")
        self._back[self._key] = queue
        return self._judged(numbers, labels, damaged, cuts)

    def _plan_cuts(self, cuts: int, numbers: range, size: int) -> None:
        self._cut_before = len(self._here.cuts.made)
        if cuts:
            self._here.cuts.plan(cuts, sum(len(body_of(n, size)) + 100 for n in numbers))

    def _judged(self, numbers: range, labels: Sequence[str], damaged: str, cuts: int) -> str:
        if wrong := out_of_sequence([self._label(n) for n in numbers], labels) or damaged:
            raise Broken(wrong)
        made = len(self._here.cuts.made) - self._cut_before
        if made < cuts:
            raise Unjudged(f"all there, but only {made} of {cuts} cuts fell", "send more messages, with --messages")
        return counted(len(labels), "message") + (f", {counted(made, 'cut')}" if cuts else "")

    def _look_for_more(self) -> None:
        """What was to be empty at the end of a claim still is: nothing has come again."""
        self._tell("has anything come again?")
        for key, queue in self._there.items():
            try:
                self._more(key, self._far.ask("receive", queue=queue, count=AT_ONCE, seconds=0)["labels"])
            except (Refused, NoAnswer) as error:
                self._change(key, UNJUDGED, f"whether something has come again is not known: {error}")
        for key, queue in self._back.items():
            self._more(key, [message.label for message in self._client.queue(queue).peek()])

    def _more(self, key: str, labels: Sequence[str]) -> None:
        if labels:
            self._change(key, BROKEN, f"{counted(len(labels), 'message')} more afterwards (first: {labels[0]})")

    # ---- what is written on a message

    def _properties(self) -> str:
        queue, back = self._queue_there(transactional=False), self._queue_here(transactional=False)
        body, extension, correlation = bytes(range(256)), b"\0\1\xff", bytes(range(1, 21))
        self._client.send(
            self._far.there(queue),
            body,
            label=LABEL,
            priority=6,
            delivery="recoverable",
            correlation_id=correlation,
            application_tag=4711,
            extension=extension,
            ttrq=self._far.life,
        )
        found = self._far.ask("echo", queue=queue, to=self._far.back(back), seconds=RECEIVE_S, ttrq=self._far.life)
        self._echoed = back
        wanted = {
            "label": LABEL,
            "priority": 6,
            "tag": 4711,
            "extension": extension.hex(),
            "correlation": identifier_text(correlation),
            "recoverable": True,
            "sha256": hashlib.sha256(body).hexdigest(),
        }
        return _same(wanted, {name: found[name] for name in wanted} | {"sha256": str(found["sha256"]).lower()})

    def _properties_back(self) -> str:
        if not self._echoed:
            with contextlib.suppress(Broken):
                self._properties()
        messages = self._come(self._echoed, 1)
        if not messages:
            raise Broken("the message that the script sends back is lost")
        message = messages[0]
        wanted = {"label": LABEL, "priority": 6, "tag": 4711, "extension": "0001ff", "delivery": "recoverable"}
        found = {
            "label": message.label,
            "priority": message.priority,
            "tag": message.application_tag,
            "extension": message.extension.hex(),
            "delivery": message.delivery,
        }
        wanted |= {"correlation": bytes(range(1, 21)).hex(), "body": bytes(range(256)).hex()}
        return _same(wanted, {**found, "correlation": message.correlation_id.hex(), "body": message.body.hex()})

    # ---- dead letters

    def _dead_letter_here(self, wanted: int) -> str:
        queue = self._far.queue("nowhere")
        if wanted == confirm.NACK_NOT_TRANSACTIONAL_Q:
            queue = self._queue_there(transactional=False)
        message = self._send_one(queue)
        return self._ended(message, wanted)

    def _dead_letter_there(self, wanted: int) -> str:
        queue = self._far.queue("nowhere")
        if wanted == confirm.NACK_NOT_TRANSACTIONAL_Q:
            queue = self._queue_here(transactional=False)
        self._send_back(queue, "transactional", range(1, 2), deadletter=True)
        return self._is_dead_there(self._look("deadletters"), wanted)

    def _is_dead_there(self, found: Sequence[int], wanted: int) -> str:
        if not found:
            raise Broken("it is not in the dead-letter queue there")
        if wanted not in found:
            raise Broken(f"class {', '.join(map(classes.label, found))} there, not {classes.label(wanted)}")
        return f"class {classes.label(wanted)} there"

    # ---- times

    def _expires_here(self) -> str:
        queue = self._queue_there(transactional=True)
        self._here.cuts.block(opened_here=True)
        found = self._ended(self._send_one(queue, ttrq=1), confirm.NACK_REACH_QUEUE_TIMEOUT)
        self._here.cuts.unblock()
        if labels := self._far.ask("receive", queue=queue, count=1, seconds=1)["labels"]:
            raise Broken(f"it has come there all the same: {labels[0]}")
        self._there[self._key] = queue
        return found

    def _expires_there(self) -> str:
        if not self._plan.clocks:
            raise Unjudged("the clocks of both sides differ too much", "see the row of the clocks")
        margin = MARGIN_S
        for _ in range(ATTEMPTS):
            queue = self._queue_here(transactional=True)
            self._here.cuts.block(opened_here=False)
            number = self._post_back(queue, "transactional", range(1, 2), deadletter=True, ttrq=TTRQ_S)
            deadline = time.monotonic() + TTRQ_S + margin
            while time.monotonic() < deadline:
                self._far.pause()
            self._here.cuts.unblock()
            self._far.answer(number, self._far.patience)
            if not list(self._client.queue(queue).peek()):
                found = self._look_unless_arrived(queue)
                if found is not None:
                    self._back[self._key] = queue
                    return self._is_dead_there(found, confirm.NACK_REACH_QUEUE_TIMEOUT)
            message = next(iter(self._client.queue(queue).peek()))
            if message.arrived - message.sent_time > TTRQ_S + 1:  # SentTime is in whole seconds
                raise Broken(f"it has come here {message.arrived - message.sent_time:.0f} s after it was sent")
            margin *= 2
            self._client.delete_queue(queue)
        raise Unjudged(
            "its message always came in time: it is slow, or sends over sessions that this side has opened",
            "run the trial again",
        )

    def _look_unless_arrived(self, queue: str) -> list[int] | None:
        """What is in the dead-letter queue there; None if the message comes here after all."""
        last = time.monotonic()
        while time.monotonic() - last < self._far.patience:
            if found := self._far.ask("look", place="deadletters", key=self._key)["classes"]:
                return list(map(int, found))
            if list(self._client.queue(queue).peek()):
                return None
            self._far.pause()
        return []

    # ---- FinalAcks and administration acknowledgements

    def _received_there(self) -> str:
        queue = self._queue_there(transactional=True)
        message = self._send_one(queue)
        state = self._await(message, lambda answer: answer != confirm.WAITING)
        if state is None or state.answer != confirm.STORED:
            raise Broken(f"before the receive it is {state.answer if state else 'unknown'}, not {confirm.STORED}")
        self._take_there(queue)
        state = self._await(message, lambda answer: answer != confirm.STORED)
        if state is None or state.answer != confirm.RECEIVED:
            raise Broken(f"after the receive it is {state.answer if state else 'unknown'}, not {confirm.RECEIVED}")
        return f"class {classes.label(confirm.ACK_RECEIVE)}"

    def _received_here(self) -> str:
        queue = self._queue_here(transactional=True)
        self._send_back(queue, "transactional", range(1, 2), journal=True)
        deadline = time.monotonic() + self._far.patience
        while not list(self._client.queue(queue).peek()):
            if time.monotonic() > deadline:
                raise Unjudged("its message does not come")
            self._far.pause()
        if self._far.ask("look", place="journal", key=self._key)["classes"]:
            raise Broken("the copy is in the journal there before the message was received here")
        self._come(queue, 1)
        if not self._look("journal"):
            raise Broken("no copy comes into the journal there after the receive")
        return "the copy is in the journal there"

    def _purged_there(self) -> str:
        queue = self._queue_there(transactional=True)
        message = self._send_one(queue)
        self._await(message, lambda answer: answer != confirm.WAITING)
        self._far.ask("purge", queue=queue)
        return self._ended(message, confirm.NACK_Q_PURGED)

    def _acknowledgements(self) -> str:
        queue, told = self._queue_there(transactional=True), self._queue_here(transactional=False)
        message = self._send_one(
            queue,
            dead_letter=False,
            acknowledge=("reach-queue", "receive"),
            administration_queue=self._far.back(told),
        )
        wanted = [confirm.ACK_REACH_QUEUE, confirm.ACK_RECEIVE]
        came = self._come(told, 1)
        if came:
            self._take_there(queue)
            came += self._come(told, 1)
        found = [one.message_class for one in came]
        if found != wanted:
            raise Broken(f"{' and '.join(map(classes.label, found)) or 'none'} came")
        right = outcome.identifier(self._client.store.guid, message)
        if any(one.correlation_id != right for one in came):
            raise Broken("an acknowledgement does not name the message that it is about")
        return " and ".join(map(classes.label, found))

    # ---- rows

    def _tell(self, text: str) -> None:
        self._far.check()
        self._show(text)

    def _row(self, key: str, verdict: str, found: str, advice: str = "") -> None:
        self.rows.append(Row(CLAIMS[key], verdict, found, advice))

    def _change(self, key: str, verdict: str, found: str) -> None:
        """A row that held does so no more."""
        self.rows = [
            Row(row.claim, verdict, found, CAPTURED) if row.claim.key == key and row.verdict == HELD else row
            for row in self.rows
        ]


def identifier_text(identifier: bytes) -> str:
    """A message identifier as Windows writes it: GUID, backslash, number."""
    return f"{uuid.UUID(bytes_le=identifier[:16])}\\{int.from_bytes(identifier[16:], 'little')}"


def _number(label: str) -> int:
    """The number at the end of a label; of one that is not of a trial, some other."""
    last = label.rpartition(" ")[2]
    return int(last) if last.isascii() and last.isdigit() else 0


def _portions(numbers: range) -> Iterable[range]:
    for first in range(numbers.start, numbers.stop, AT_ONCE):
        yield range(first, min(first + AT_ONCE, numbers.stop))


def _same(wanted: dict[str, Any], found: dict[str, Any]) -> str:
    wrong = [f"{name} is {found[name]!r}, not {wanted[name]!r}" for name in wanted if found[name] != wanted[name]]
    if wrong:
        raise Broken("; ".join(wrong))
    return ", ".join(wanted)
