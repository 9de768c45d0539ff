"""Points for plots of the streams with most trouble."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from _mqqb import lib
from mqqb import core
from mqqb.guids import guid_text
from numpy.typing import NDArray

from ordack.audit.partial import queue_text
from ordack.audit.replay import BATCH_ROWS, COLUMNS, Auditor, start_of
from ordack.audit.result import Result, SequenceId, Series, StreamKey, StreamReport
from ordack.capture import columnar

SERIES_STREAMS = 12
SERIES_POINTS = 4000
_ACK_RECEIVE = 0x4000


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

    def message(self, time: int, sequence: SequenceId, number: int, verdict: int) -> None:
        what = 1 if verdict & lib.MQQB_AUDIT_RESENT else 2 if verdict & lib.MQQB_AUDIT_REJECTED else 0
        self.add(time, self.place(sequence, number, time), what)

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


class _Lines:
    """The lines of some streams, and which rows of a capture are theirs."""

    def __init__(self, streams: Iterable[StreamKey]) -> None:
        self.lines = {stream: _Line() for stream in streams}
        self._sources = {stream.source_queue_manager for stream in self.lines}
        self._of_keys: dict[tuple[int, int, int, int], _Line | None] = {}
        self._of_codes: dict[int, bool] = {}

    def _is_source(self, decoder: columnar.Decoder, code: int) -> bool:
        if code not in self._of_codes:
            self._of_codes[code] = bool(code) and guid_text(decoder.queue_manager(code)) in self._sources
        return self._of_codes[code]

    def _line(self, batch: columnar.Batch, row: int) -> _Line | None:
        user_flags = int(batch["user_flags"][row])
        private = (user_flags & core.USER_DQ) == 3 << 10
        key = (
            int(batch["source_queue_manager"][row]),
            int(batch["destination_queue"][row]),
            int(batch["queue_manager_address"][row]) if private else 0,
            user_flags & core.USER_RC,
        )
        if key not in self._of_keys:
            decoder = batch.decoder
            queue = decoder.queue(key[1])
            host = decoder.queue_manager(key[2]) if key[2] else b""
            source = guid_text(decoder.queue_manager(key[0]))
            self._of_keys[key] = self.lines.get(StreamKey(source, queue_text(queue, host), key[3]))
        return self._of_keys[key]

    def add(self, batch: columnar.Batch, verdicts: NDArray[np.uint8]) -> None:
        """The rows of a batch, and what an auditor says of them."""
        kinds, sources = batch["kind"], batch["source_queue_manager"]
        own = [code for code in np.unique(sources).tolist() if self._is_source(batch.decoder, code)]
        messages = (batch["tx_sequence_number"] != 0) & np.isin(sources, own)
        acks = (kinds == lib.MQQB_KIND_ORDER_ACK) | (kinds == lib.MQQB_KIND_FINAL_ACK)
        sent = {sequence for line in self.lines.values() for _, _, sequence in line.boundaries}
        for row in np.flatnonzero(messages | acks).tolist():
            if not messages[row]:
                sequence = _sequence(batch, "ack_tx", row)
                if sequence in sent:
                    self._acknowledge(batch, row, sequence)
            elif line := self._line(batch, row):
                sequence = _sequence(batch, "tx", row)
                sent.add(sequence)
                line.connections.add(int(batch["connection"][row]))
                line.message(int(batch.time[row]), sequence, int(batch["tx_sequence_number"][row]), int(verdicts[row]))

    def _acknowledge(self, batch: columnar.Batch, row: int, sequence: SequenceId) -> None:
        time, number = int(batch.time[row]), int(batch["ack_tx_sequence_number"][row])
        addressed = int(batch["ack_source"][row]) or int(batch["queue_manager_address"][row])
        guid = guid_text(batch.decoder.queue_manager(addressed)) if addressed else ""
        positive = batch["message_class"][row] == _ACK_RECEIVE
        what = 3 if batch["kind"][row] == lib.MQQB_KIND_ORDER_ACK else 4 if positive else 5
        for stream, line in self.lines.items():
            if line.knows(sequence) and (
                stream.source_queue_manager == guid or int(batch["connection"][row]) in line.connections
            ):
                line.add(time, line.place(sequence, number, time), what)


def _sequence(batch: columnar.Batch, prefix: str, row: int) -> SequenceId:
    return SequenceId(int(batch[f"{prefix}_sequence_ordinal"][row]), int(batch[f"{prefix}_sequence_time_stamp"][row]))


def series_of(files: Sequence[str], result: Result) -> list[Series]:
    """The streams with most trouble, read and replayed once more."""
    chosen = sorted(result.streams, key=_trouble, reverse=True)[:SERIES_STREAMS]
    plot = _Lines(report.stream for report in chosen)
    auditor = Auditor(start_of(files), verdicts=True)
    for batch in columnar.batches(files, rows=BATCH_ROWS, columns=COLUMNS, ordered=True):
        auditor.feed(batch)
        if auditor.verdicts is not None:
            plot.add(batch, auditor.verdicts)
    return [
        Series(stream, tuple(sorted(line.points)), tuple(line.boundaries), line.thinned)
        for stream, line in plot.lines.items()
    ]
