"""The verdict of a campaign: compares the application's ledger with the queue, and shows the figures."""

import base64
import binascii
import json
import re
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self

from rich.console import Console
from rich.table import Table

from hil.boards import BoardMissing
from hil.faults import CutMade

_SHOWN = 5
RIG_FAILED: Final = 3
"""The exit status of a run that the rig could not bring to its end, and that found no fault in what it tests."""


@dataclass(frozen=True)
class Entry:
    """One accepted reading in the application's ledger: its number, size and CRC-32 of the body, MessageID."""

    k: int
    size: int
    crc32: int
    message_id: int
    found: bool = False


@dataclass(frozen=True)
class Received:
    """One message of the queue, in receiving order. `k` is None if the label is not that of a reading."""

    k: int | None
    label: str
    source: str
    message_id: int
    delivery: str
    message_class: int
    tx: tuple[int, int]
    size: int
    crc32: int

    @classmethod
    def with_body(cls, label: str, body: bytes, **properties: Any) -> Self:
        """A message with this label and body; properties: the other fields."""
        match = re.fullmatch(r"reading (\d+)", label)
        number = int(match[1]) if match else None
        return cls(k=number, label=label, size=len(body), crc32=binascii.crc32(body), **properties)


def read_ledger(data: bytes) -> list[Entry]:
    """The ledger's entries, without an unfinished last line. Raises ValueError for a malformed line."""
    entries = []
    for line in data.split(b"\n")[:-1]:
        match = re.fullmatch(rb"(\d+) (\d+) ([0-9a-f]{8}) (\d+)( found)?", line)
        if match is None:
            raise ValueError(f"not a line of a ledger: {line!r}")
        entries.append(Entry(int(match[1]), int(match[2]), int(match[3], 16), int(match[4]), match[5] is not None))
    return entries


def read_received(text: str) -> list[Received]:
    """The messages in the output of `ordack receive --json`. Raises ValueError or KeyError for other text."""
    messages = []
    for line in text.splitlines():
        message = json.loads(line)
        body = base64.b64decode(message["body_base64"], validate=True)
        messages.append(
            Received.with_body(
                message["label"],
                body,
                source=message["source"],
                message_id=message["message_id"],
                delivery=message["delivery"],
                message_class=message["class"],
                tx=(message["tx_sequence_id"] or 0, message["tx_sequence_number"] or 0),
            )
        )
    return messages


@dataclass(frozen=True)
class Erased:
    """The known content of erased outboxes. held: readings that waited there. bases: last readings accepted before the
    erasures. claimed: all readings that the board reported as stored."""

    held: frozenset[int] = frozenset()
    bases: frozenset[int] = frozenset()
    claimed: frozenset[int] = frozenset()


@dataclass
class Comparison:
    """The outcome of each accepted reading. Empty lists mean exactly once, in order.

    `unrecorded` (missing in the ledger), `misrecorded` (entries out of order), `false` (reported as stored, but not in
    the queue) and `forgotten` (neither received nor in the outbox) accuse the board; the other lists accuse the queue.
    `erased`: readings lost with an outbox or a store; no fault.
    """

    sent: int
    received: int
    once: int
    unrecorded: list[int] = field(default_factory=list)
    misrecorded: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    duplicated: list[int] = field(default_factory=list)
    reordered: list[int] = field(default_factory=list)
    corrupt: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    false: list[int] = field(default_factory=list)
    forgotten: list[int] = field(default_factory=list)
    erased: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)

    @property
    def faults(self) -> dict[str, list[int] | list[str]]:
        """The lists that are not empty, by name."""
        names = ("unrecorded", "misrecorded", "lost", "duplicated", "reordered", "corrupt", "unexpected", "false")
        return {name: getattr(self, name) for name in (*names, "forgotten") if getattr(self, name)}

    def line(self) -> str:
        """The final sentence of the campaign."""
        order = "not in order" if self.reordered else "in order"
        text = f"{self.sent} sent, {self.once} received once, {order}"
        text += f", {len(self.lost)} lost, {len(self.duplicated)} duplicated"
        text += f", {len(self.erased)} gone with an outbox or a store" if self.erased else ""
        said = ("lost", "duplicated", "reordered")
        return ", ".join([text, *(f"{len(found)} {name}" for name, found in self.faults.items() if name not in said)])


def compare(messages: int, ledger: list[Entry], received: list[Received], erased: Erased = Erased()) -> Comparison:
    """Compare the queue with the ledger of an application that was to send readings 1 to `messages`.

    The label identifies a reading. It must be there once, with the ledger's size, CRC-32 and MessageID, from one
    source, as a normal transactional message. Reading numbers and (TxSequenceID, TxSequenceNumber) must both rise. Each
    erased outbox starts a new source; the reading in flight at that moment may come from the old source too.
    """
    recorded = {entry.k: entry for entry in ledger}
    received = [
        message
        for message in received
        if message.k is None
        or message.k - 1 not in erased.bases
        or message.k not in recorded
        or message.message_id == recorded[message.k].message_id
    ]
    times = Counter(message.k for message in received if message.k in recorded)
    result = Comparison(len(ledger), len(received), sum(count == 1 for count in times.values()))
    result.unrecorded = [k for k in range(1, messages + 1) if k not in recorded]
    result.misrecorded = [entry.k for turn, entry in enumerate(ledger, 1) if entry.k != turn]
    missing = {k for k in recorded if not times[k]}
    result.erased = sorted(missing & erased.held)
    result.lost = sorted(missing - erased.held)
    result.false = sorted(missing & erased.claimed)
    result.duplicated = sorted(k for k, count in times.items() if count > 1 and k is not None)
    highest = 0
    last_tx: tuple[int, int] | None = None
    source = received[0].source if received else ""
    sources = {source}
    for message in received:
        if message.source not in sources and len(sources) <= len(erased.bases):
            source, last_tx = message.source, None
            sources.add(source)
        if message.k is None or message.k not in recorded:
            result.unexpected.append(f"{message.label!r} with MessageID {message.message_id} from {message.source}")
            continue
        if message.k < highest or (last_tx is not None and message.tx <= last_tx):
            result.reordered.append(message.k)
        highest, last_tx = max(highest, message.k), message.tx
        for reason in _differences(recorded[message.k], message, source):
            result.corrupt.append(f"reading {message.k}: {reason}")
    return result


def _differences(entry: Entry, message: Received, source: str) -> Iterable[str]:
    """The differences between the sent and the received message, a sentence each."""
    if message.size != entry.size:
        yield f"{message.size} bytes instead of {entry.size}"
    elif message.crc32 != entry.crc32:
        yield f"CRC-32 {message.crc32:08x} instead of {entry.crc32:08x}"
    if message.message_id != entry.message_id:
        yield f"MessageID {message.message_id}"
    if message.source != source:
        yield f"source {message.source} instead of {source}"
    if (message.delivery, message.message_class) != ("transactional", 0):
        yield f"{message.delivery}, class {message.message_class}"
    if 0 in message.tx:
        yield f"transactional sequence {message.tx}"


@dataclass
class Run:
    """The results that every campaign has. failure: the reason of an early end; rig_failed: the rig caused it."""

    seed: int
    messages: int
    comparison: Comparison | None = field(default=None, kw_only=True)
    traffic: list[str] = field(default_factory=list, kw_only=True)
    seconds: float = field(default=0.0, kw_only=True)
    failure: str | None = field(default=None, kw_only=True)
    rig_failed: bool = field(default=False, kw_only=True)
    artefacts: str | None = field(default=None, kw_only=True)

    def fail(self, error: Exception, logs: str = "") -> None:
        """Record the error that ended the campaign; the first one counts. An OSError is the rig's. logs: their ends."""
        if self.failure is None:
            self.failure, self.rig_failed = f"{error}\n{logs}".rstrip(), isinstance(error, (OSError, BoardMissing))

    def shortcomings(self) -> list[str]:
        """Why this campaign proves nothing, or what it disproves, a sentence each; empty if all is well."""
        return [] if self.failure is None else [self.failure]

    @property
    def ok(self) -> bool:
        return not self.shortcomings()

    @property
    def status(self) -> int:
        """The exit status: 0 all is well; 1 not so; RIG_FAILED."""
        found = {*self.traffic, *(self.comparison.faults if self.comparison else ())}
        found -= {"unrecorded"}  # an early end leaves readings unrecorded
        return 0 if self.ok else RIG_FAILED if self.rig_failed and not found else 1

    def line(self) -> str | None:
        """The final sentence of the campaign; None without a verdict."""
        return self.comparison.line() if self.comparison else None

    def to_json(self) -> str:
        """One JSON object in one line: the fields of this class and its parts, `ok`, `shortcomings`, and `line`."""
        return json.dumps({"ok": self.ok, "line": self.line(), "shortcomings": self.shortcomings(), **asdict(self)})


@dataclass
class Figures(Run):
    """The results of a campaign with boards."""

    board: str
    description: str
    cuts_asked: int
    board_kills_asked: int
    manager_kills_asked: int
    core: str = "unknown"
    modules: str = ""
    mishaps: int = 0
    told: list[str] = field(default_factory=list)
    cuts: list[CutMade] = field(default_factory=list)
    plan: dict[str, Any] = field(default_factory=dict)
    accepted: int = 0
    acknowledged: int = 0
    at_bytes: int = 0
    board_kills: int = 0
    manager_kills: int = 0
    connections: int = 0
    sessions: int = 0
    refused: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    found_at_restart: int = 0

    def shortcomings(self) -> list[str]:
        """As Run.shortcomings."""
        reasons = super().shortcomings()
        if self.comparison is None:
            reasons.append("the queue was not compared with the ledger")
        else:
            for name, found in self.comparison.faults.items():
                shown = ", ".join(str(one) for one in found[:_SHOWN])
                reasons.append(f"{len(found)} {name}: {shown}{', ...' if len(found) > _SHOWN else ''}")
            if missing := self.comparison.missing:
                reasons.append(f"reading {missing[0]} is the first of {len(missing)} that the queue does not have yet")
            if self.comparison.sent != self.messages:
                reasons.append(f"{self.comparison.sent} sent instead of {self.messages}")
            expected = self.messages - len(self.comparison.erased)
            if self.comparison.once != expected:
                reasons.append(f"{self.comparison.once} received once instead of {expected}")
        reasons += self.traffic
        if len(self.cuts) < self.cuts_asked:
            reasons.append(f"{len(self.cuts)} cuts instead of {self.cuts_asked}")
        for name, kills, asked in (
            ("board", self.board_kills, self.board_kills_asked),
            ("queue manager", self.manager_kills, self.manager_kills_asked),
        ):
            if kills != asked:
                reasons.append(f"the {name} was killed {kills} times instead of {asked}")
        return reasons

    def symptoms(self) -> set[str]:
        """The kinds of broken promises, without figures. A planned fault that was not made is none."""
        begin = {self.failure.splitlines()[0].split(":")[0]} if self.failure else set()
        found = {"traffic"} if self.traffic else set()
        return begin | found | set(self.comparison.faults if self.comparison else ())

    def table(self) -> Table:
        """The final table of the campaign."""
        table = Table(title=f"Campaign, seed {self.seed}", show_header=False, title_justify="left")
        table.add_row("board", f"{self.description}; core {self.core}, modules {self.modules[:16] or 'not copied'}")
        for what in self.told:
            table.add_row("the board says", what)
        if self.comparison:
            found = f"{self.comparison.sent}, {self.found_at_restart} of them found at a restart"
            table.add_row("accepted by send()", found)
        cuts = Counter((cut.kind, cut.direction) for cut in self.cuts)
        detail = ", ".join(f"{count} {way} {kind}" for (kind, way), count in sorted(cuts.items()))
        table.add_row("link cut", f"{len(self.cuts)} of {self.cuts_asked} asked ({detail})")
        table.add_row("board killed", f"{self.board_kills} of {self.board_kills_asked} asked")
        table.add_row("queue manager killed", f"{self.manager_kills} of {self.manager_kills_asked} asked")
        table.add_row("time", f"{self.seconds:.1f} s")
        return table


class View:
    """Live progress as plain lines, at most one a second per board. name: identifies one of several boards."""

    def __init__(self, console: Console, totals: dict[str, int], name: str = "") -> None:
        self._console = console
        self._before = f"{name}: " if name else ""
        self._shown: dict[str, int] = {}
        self._next = 0.0
        self._totals = totals

    def update(self, figures: dict[str, int]) -> None:
        """Show the figures, named as in `totals`."""
        now = time.monotonic()
        if figures != self._shown and (now >= self._next or figures == self._totals):
            self._shown, self._next = dict(figures), now + 1.0
            shown = ", ".join(f"{name} {figure}/{self._totals[name]}" for name, figure in figures.items())
            self._console.print(f"{self._before}{shown}", markup=False)
