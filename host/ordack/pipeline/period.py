"""Which messages of segments are read, by when they arrived: the options `since` and `until`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ordack.pipeline.options import OptionError

OPTIONS = ("since", "until")
_ARRIVED = "arrived"
_DAY = len("2026-11-26")
CLOCKS = timedelta(days=1)  # by which those of a queue manager and of what keeps its segments may differ


@dataclass(frozen=True)
class Period:
    """From `since` on, and before `until`; None has no such end."""

    since: datetime | None
    until: datetime | None

    @staticmethod
    def of(options: Mapping[str, str]) -> Period:
        """Raises OptionError."""
        since, until = (_moment(name, options.get(name)) for name in OPTIONS)
        if since is not None and until is not None and until <= since:
            raise OptionError(f"option until is {options['until']!r}, which is not after since, {options['since']!r}")
        return Period(since, until)

    @property
    def is_open(self) -> bool:
        """Whether all messages are in it."""
        return self.since is None and self.until is None

    def begins_after(self, modified: float) -> bool:
        """Whether a file that was modified last at this time, in s since 1970, is too old to have such messages."""
        return self.since is not None and modified + CLOCKS.total_seconds() < self.since.timestamp()

    def groups(self, file: pq.FileMetaData) -> list[int]:
        """The groups of rows in which there may be such messages, by what the file says of their times."""
        return [number for number in range(file.num_row_groups) if self.is_open or self._may_have(file, number)]

    def _may_have(self, file: pq.FileMetaData, number: int) -> bool:
        [told] = [
            column.statistics
            for column in map(file.row_group(number).column, range(file.num_columns))
            if column.path_in_schema == _ARRIVED
        ] or [None]
        if told is None or not told.has_min_max:
            return True
        return (self.since is None or told.max >= self.since) and (self.until is None or told.min < self.until)

    def among(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Those of the messages that are in it."""
        arrived = rows.column(_ARRIVED)
        if self.since is not None:
            rows = rows.filter(pc.greater_equal(arrived, pa.scalar(self.since, arrived.type)))
            arrived = rows.column(_ARRIVED)
        if self.until is not None:
            rows = rows.filter(pc.less(arrived, pa.scalar(self.until, arrived.type)))
        return rows


def _moment(name: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is not None and moment.tzinfo is None and len(text) == _DAY:
        moment = moment.replace(tzinfo=UTC)
    if moment is None or moment.tzinfo is None:
        raise OptionError(
            f"option {name} is {text!r}; it is a time with its zone, 2026-11-26T08:00:00Z, or a day of UTC, 2026-11-26"
        )
    return moment
