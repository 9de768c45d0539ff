"""What an ingest tells: each micro-batch that is in the table, the sum of a run, and why one cannot begin or go on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from pyspark.errors import PySparkException

from ordack.pipeline.segment_source import MALFORMED
from ordack.pipeline.segments import FolderError, FolderMissing, OtherFolder
from ordack.pipeline.spark import words
from ordack.text import counted

DIGITS = 3  # of a latency that are kept: it is told up to 1 % too long


class IngestError(Exception):
    """The ingest cannot begin, or has ended early; the text says why and what to do."""


class IngestUnusable(IngestError):
    """Somebody has to look: table and segments do not belong together, or a segment cannot be read."""


class IngestMissing(IngestUnusable):
    """A folder is not there: its file system may not be mounted, and come back."""


def ended(error: PySparkException) -> IngestError:
    """What to say of a job of Spark's that has failed."""
    if re.search(rf"\b{FolderMissing.__name__}: ", str(error)):
        return IngestMissing(words(error))
    ours = re.search(rf"\b({FolderError.__name__}|{OtherFolder.__name__}): ", str(error))
    return (IngestUnusable if ours else IngestError)(words(error))


class Figures(NamedTuple):
    """Seconds from an event until a row is in the table, of a number of rows: quantiles."""

    p50: float
    p90: float
    p99: float
    max: float


@dataclass
class Latency:
    """How long messages took, as a histogram, which does not grow with the messages: in milliseconds, rounded up to
    DIGITS digits. Of sending only the second is known, as the protocol has it: up to 1 s too long."""

    milliseconds: Counter[int] = field(default_factory=Counter)
    longest: int | None = None

    def add(self, times: Sequence[int], counts: Sequence[int], until: int) -> None:
        """Times of an event, how many rows have each, and when they were in the table: milliseconds since 1970."""
        if not times:
            return
        taken = until - np.array(times, np.int64)
        step = 10 ** np.maximum(0, np.floor(np.log10(np.maximum(np.abs(taken), 1))).astype(np.int64) + 1 - DIGITS)
        values, places = np.unique(-(-taken // step) * step, return_inverse=True)
        sums = np.zeros(len(values), np.int64)
        np.add.at(sums, places, np.array(counts, np.int64))
        self.merge(Latency(Counter(dict(zip(values.tolist(), sums.tolist()))), int(taken.max())))

    def merge(self, other: Latency) -> None:
        """Add what another one has counted."""
        self.milliseconds += other.milliseconds
        if other.longest is not None:
            self.longest = other.longest if self.longest is None else max(self.longest, other.longest)

    def figures(self) -> Figures | None:
        """None: of nothing."""
        if self.longest is None:
            return None
        values = np.array(sorted(self.milliseconds))
        reached = np.cumsum([self.milliseconds[value] for value in values.tolist()])
        at = np.searchsorted(reached, np.ceil(np.array([0.5, 0.9, 0.99]) * reached[-1]))
        p50, p90, p99 = (min(value, self.longest) / 1000 for value in values[at].tolist())
        return Figures(p50, p90, p99, self.longest / 1000)


@dataclass
class Batch:
    """One micro-batch that is in the table. `number`: counted from 0 in a run. `malformed`: None without a schema.
    `behind`: segments that were there and not read yet when it was looked."""

    number: int
    rows: int
    malformed: int | None
    segments: int
    behind: int
    seconds: float
    arrived_to_table: Figures | None
    sent_to_table: Figures | None

    def as_json(self) -> dict[str, Any]:
        """The object that `ordack pipeline ingest --json` prints."""
        return {
            "batch": self.number,
            "rows": self.rows,
            "malformed": self.malformed,
            "segments": self.segments,
            "behind": self.behind,
            "seconds": round(self.seconds, 3),
            "latency_s": {
                "arrived_to_table": _rounded(self.arrived_to_table),
                "sent_to_table": _rounded(self.sent_to_table),
            },
        }


def _rounded(figures: Figures | None) -> dict[str, float] | None:
    return None if figures is None else {name: round(value, 3) for name, value in figures._asdict().items()}


@dataclass
class Summary:
    """What one run has put into the table."""

    table: str
    batches: int = 0
    rows: int = 0
    malformed: int | None = None
    segments: int = 0
    seconds: float = 0.0
    arrived_to_table: Latency = field(default_factory=Latency)
    sent_to_table: Latency = field(default_factory=Latency)

    def __str__(self) -> str:
        """The report that `ordack pipeline ingest` prints."""
        text = f"{self.table}: {counted(self.rows, 'row')}"
        if self.batches:
            text += f" of {counted(self.segments, 'segment')}, in {counted(self.batches, 'batch')}"
        if self.malformed:
            text += f"; {self.malformed} with a body that does not fit the schema, the column {MALFORMED} says why"
        for name, latency in (("arrival in the queue", self.arrived_to_table), ("sending", self.sent_to_table)):
            if figures := latency.figures():
                text += f"\nfrom {name} to the table: " + ", ".join(
                    f"{label} {value:.2f} s" for label, value in figures._asdict().items()
                )
        return text + ("\n(of sending only the second is known: up to 1 s too long)" if self.rows else "")

    def as_json(self) -> dict[str, Any]:
        """The last object that `ordack pipeline ingest --json` prints."""
        return {
            "table": self.table,
            "batches": self.batches,
            "rows": self.rows,
            "malformed": self.malformed,
            "segments": self.segments,
            "seconds": round(self.seconds, 3),
            "latency_s": {
                "arrived_to_table": _rounded(self.arrived_to_table.figures()),
                "sent_to_table": _rounded(self.sent_to_table.figures()),
                "resolution": {"arrived_to_table": 0.001, "sent_to_table": 1},
            },
        }

    def add(self, batch: Batch, arrived: Latency, sent: Latency) -> None:
        """Count a batch that is in the table."""
        self.batches += 1
        self.rows += batch.rows
        self.segments += batch.segments
        if self.malformed is not None and batch.malformed is not None:
            self.malformed += batch.malformed
        self.arrived_to_table.merge(arrived)
        self.sent_to_table.merge(sent)
