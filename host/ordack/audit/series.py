"""Points for plots of the streams with most trouble."""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from typing import IO, Any

import numpy as np
from _mqqb import lib
from mqqb import core
from mqqb.guids import guid_text
from numpy.typing import NDArray

from ordack.audit.partial import queue_text
from ordack.audit.result import Result, SequenceId, Series, StreamKey, StreamReport
from ordack.capture.columnar import Batch, Decoder

SERIES_STREAMS = 12
SERIES_POINTS = 4000
_ACK_RECEIVE = 0x4000
_READ_ROWS = 1 << 16  # of what was kept, at once

# A message, or an acknowledgement, of which source is the queue manager to which it goes. Other numbers are codes of a
# decoder; what: as in Series.points.
_ROW = np.dtype(
    [
        ("time", "i8"), ("connection", "u4"), ("source", "u4"), ("queue", "u4"), ("host", "u4"), ("ordinal", "u4"),
        ("time_stamp", "u4"), ("number", "u4"), ("hops", "u1"), ("what", "u1"),
    ]
)  # fmt: skip


def _trouble(report: StreamReport) -> tuple[int, int, int]:
    return (sum(report.violations.values()) + sum(report.unknowns.values()), report.resends, report.unsettled)


class _Line:
    """Points of one stream."""

    def __init__(self) -> None:
        self.points: list[tuple[int, int, int]] = []
        self.boundaries: list[tuple[int, int, SequenceId]] = []
        self.connections: set[int] = set()
        self.thinned = False
        self._bases: dict[SequenceId, int] = {}
        self._next = 0
        self._kept_every = 1
        self._skipped = 0

    def place(self, sequence: SequenceId, number: int, time: int) -> int:
        if sequence not in self._bases:
            base = self._next
            self._bases[sequence] = base
            self.boundaries.append((time, base, sequence))
            del self.boundaries[:-SERIES_POINTS]
        position = self._bases[sequence] + number
        self._next = max(self._next, position)
        return position

    def knows(self, sequence: SequenceId) -> bool:
        return sequence in self._bases

    def add(self, time: int, position: int, what: int) -> None:
        """What happens often is thinned out; resends and what is not accepted stay longer."""
        if what not in (1, 2):
            self._skipped += 1
            if self._skipped % self._kept_every:
                self.thinned = True
                return
        self.points.append((time, position, what))
        if len(self.points) > SERIES_POINTS:
            self.thinned = True
            self._kept_every *= 2
            common = 0
            kept: list[tuple[int, int, int]] = []
            for point in self.points:
                common += point[2] not in (1, 2)
                if (point[2] not in (1, 2) and common % 2) or (point[2] in (1, 2) and len(kept) % 2):
                    kept.append(point)
            self.points = kept


def _rows(batch: Batch, verdicts: NDArray[np.uint8]) -> NDArray[Any]:
    """What a plot may need of a batch, and of what an auditor says of it."""
    order, final = (batch["kind"] == kind for kind in (lib.MQQB_KIND_ORDER_ACK, lib.MQQB_KIND_FINAL_ACK))
    messages, acks = np.flatnonzero(batch["tx_sequence_number"]), np.flatnonzero(order | final)
    both = np.concatenate([messages, acks])
    rows = np.empty(len(both), _ROW)
    rows["time"], rows["connection"] = batch.time[both], batch["connection"][both]
    sent, told = rows[: len(messages)], rows[len(messages) :]
    flags, verdict = batch["user_flags"][messages], verdicts[messages]
    private = (flags & core.USER_DQ) == 3 << 10
    sent["source"], sent["queue"] = batch["source_queue_manager"][messages], batch["destination_queue"][messages]
    sent["host"] = np.where(private, batch["queue_manager_address"][messages], 0)
    sent["hops"] = flags & core.USER_RC
    sent["what"] = np.where(verdict & lib.MQQB_AUDIT_RESENT, 1, np.where(verdict & lib.MQQB_AUDIT_REJECTED, 2, 0))
    named, address = batch["ack_source"][acks], batch["queue_manager_address"][acks]
    told["source"], told["queue"], told["host"], told["hops"] = np.where(named, named, address), 0, 0, 0
    told["what"] = np.where(order[acks], 3, np.where(batch["message_class"][acks] == _ACK_RECEIVE, 4, 5))
    for name in ("ordinal", "time_stamp", "number"):
        column = f"tx_sequence_{name}"
        sent[name], told[name] = batch[column][messages], batch[f"ack_{column}"][acks]
    return rows[np.argsort(both, kind="stable")]


def _identifiers(rows: NDArray[Any]) -> NDArray[np.uint64]:
    return (rows["ordinal"].astype(np.uint64) << np.uint64(32)) | rows["time_stamp"].astype(np.uint64)


class Lines:
    """The lines of some streams."""

    def __init__(self, streams: Collection[StreamKey]) -> None:
        self._lines = {stream: _Line() for stream in streams}
        self._sources = {stream.source_queue_manager for stream in streams}
        self._of_keys: dict[tuple[int, ...], _Line | None] = {}
        self._names: list[str] = [""]  # of queue managers, by code
        self._known = np.zeros(0, np.uint64)  # sequences

    def add(self, batch: Batch, verdicts: NDArray[np.uint8]) -> None:
        """The rows of a batch, and what an auditor says of them."""
        self.take(_rows(batch, verdicts), batch.decoder)

    def take(self, rows: NDArray[Any], decoder: Decoder) -> None:
        """The next ones; what their codes mean."""
        codes = range(len(self._names), decoder.queue_managers + 1)
        self._names += [guid_text(decoder.queue_manager(code)) for code in codes]
        own = [code for code, name in enumerate(self._names) if name in self._sources]
        messages = (rows["what"] < 3) & np.isin(rows["source"], own)
        sequences = _identifiers(rows)
        self._known = np.union1d(self._known, sequences[messages])
        acks = (rows["what"] >= 3) & np.isin(sequences, self._known)
        for row in rows[messages | acks].tolist():
            self._take(row, decoder)

    def _take(self, row: tuple[int, ...], decoder: Decoder) -> None:
        time, connection, source, queue, host, ordinal, time_stamp, number, hops, what = row
        sequence = SequenceId(ordinal, time_stamp)
        if what < 3:
            if line := self._line(decoder, source, queue, host, hops):
                line.connections.add(connection)
                line.add(time, line.place(sequence, number, time), what)
            return
        for stream, line in self._lines.items():
            if line.knows(sequence) and (
                stream.source_queue_manager == self._names[source] or connection in line.connections
            ):
                line.add(time, line.place(sequence, number, time), what)

    def _line(self, decoder: Decoder, *key: int) -> _Line | None:
        if key not in self._of_keys:
            source, queue, host, hops = key
            text = queue_text(decoder.queue(queue), decoder.queue_manager(host) if host else b"")
            self._of_keys[key] = self._lines.get(StreamKey(self._names[source], text, hops))
        return self._of_keys[key]

    def series(self) -> list[Series]:
        """What they show."""
        return [
            Series(stream, tuple(sorted(line.points)), tuple(line.boundaries), line.thinned)
            for stream, line in self._lines.items()
        ]


class Kept:
    """What plots may need, while it is not known of which streams: in a temporary file, 38 bytes a message.

    lost: there was no room for it.
    """

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._decoder: Decoder | None = None
        self.lost = False

    def add(self, batch: Batch, verdicts: NDArray[np.uint8]) -> None:
        """As Lines.add."""
        data = _rows(batch, verdicts).tobytes()
        self._decoder = batch.decoder
        try:
            self._file = self._file or tempfile.TemporaryFile("w+b", 0, prefix="ordack-")  # noqa: SIM115 - for all rows
            self.lost = self.lost or self._file.write(data) < len(data)
        except OSError:
            self.lost = True

    def close(self) -> None:
        """It is not needed any more."""
        if self._file is not None:
            self._file.close()

    def into(self, lines: Lines) -> None:
        """All that was added."""
        if self._file is not None and self._decoder is not None:
            self._file.seek(0)
            while data := self._file.read(_READ_ROWS * _ROW.itemsize):
                lines.take(np.frombuffer(data, _ROW), self._decoder)


def most_trouble(result: Result) -> list[StreamKey]:
    """The streams that have plots."""
    return [report.stream for report in sorted(result.streams, key=_trouble, reverse=True)[:SERIES_STREAMS]]
