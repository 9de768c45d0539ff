"""Messages that were exported twice: a store was restored from a backup, and exports again, to another folder.

Such a message has the lookup id and the message key that it had before. An ingest looks for them where a table has
segments of another folder with the same queue, and leaves them out. As a rule, new messages have higher lookup ids than
those in the table, and nothing is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ordack.config.paths import AnyPath, RemoteError
from ordack.pipeline import folders, segments
from ordack.pipeline.folders import Found, Place, Serials
from ordack.pipeline.segments import MESSAGE_KEY, QUEUE_MANAGER, FolderError, Marker

ID = "lookup_id"
NEEDED = (QUEUE_MANAGER, "queue", ID, MESSAGE_KEY)  # columns of a table in which they are looked for

Find = Callable[[str, list[str]], Iterable[pa.RecordBatch]]  # of the rows where this holds: these columns


def apart(found: Sequence[Found]) -> list[Found]:
    """Without what has to wait for the next batch: a second folder with the same queue of a queue manager."""
    first: dict[tuple[str, str], Place] = {}
    return [one for one in found if first.setdefault(_whose(one), one.place) == one.place]


class Doubles:
    """find: looks into the table."""

    def __init__(self, find: Find) -> None:
        self._find = find
        # The highest lookup id that the table had, with these segments of other folders.
        self._last: dict[Place, tuple[int, Serials]] = {}

    def among(self, taken: Sequence[Found], loaded: Serials, now: Mapping[AnyPath, Marker]) -> dict[str, list[int]]:
        """Lookup ids that the table has, by the path of the segment. loaded: what is in the table. now: the folders
        that are read. Raises FolderError."""
        managers = {marker.folder: marker.queue_manager for marker in now.values()}
        others: dict[str, dict[Place, int]] = {}
        for place, serial in loaded.items():
            others.setdefault(place.queue, {})[place] = serial
        doubles = {}
        for one in taken:
            manager, queue = _whose(one)
            seen = {
                place: serial
                for place, serial in others.get(queue, {}).items()
                if place.folder != one.place.folder and managers.get(place.folder, manager) == manager
            }
            if one.place not in self._last:
                self._last[one.place] = self._highest(manager, queue) if seen else -1, seen
            last, before = self._last[one.place]
            may_be_there = one.segment.first_lookup_id <= last or seen != before  # another ingest has gone on
            if may_be_there and (known := self._known(one)):
                doubles[str(one.segment.path)] = known
        return doubles

    def _highest(self, manager: str, queue: str) -> int:
        found = self._find(_where(manager, queue), [ID])
        return max((pc.max(batch[ID]).as_py() for batch in found if batch.num_rows), default=-1)

    def _known(self, one: Found) -> list[int]:
        first, last = one.segment.first_lookup_id, one.segment.last_lookup_id
        found = self._find(f"{_where(*_whose(one))} AND {ID} >= {first} AND {ID} <= {last}", [ID, MESSAGE_KEY])
        there = {pair for batch in found for pair in _pairs(batch)}
        return [pair[0] for pair in _pairs(_read(one)) if pair in there] if there else []


def _whose(one: Found) -> tuple[str, str]:
    return one.marker.queue_manager, one.segment.queue


def _where(manager: str, queue: str) -> str:
    """As SQL, and pyiceberg, have it."""
    quoted = queue.replace("'", "''")
    return f"{QUEUE_MANAGER} = '{manager}' AND queue = '{quoted}'"


def _pairs(rows: pa.Table | pa.RecordBatch) -> Iterable[tuple[int, str]]:
    return zip(rows[ID].to_pylist(), rows[MESSAGE_KEY].to_pylist(), strict=True)


def _read(one: Found) -> pa.Table:
    path = one.segment.path
    try:
        with path.open("rb") as file:
            return pq.read_table(pa.BufferReader(file.read()), columns=[ID, MESSAGE_KEY])
    except FileNotFoundError:
        raise folders.missing(one.segment.folder, one.segment.queue, one.serial, one.segment.name) from None
    except RemoteError as error:
        raise segments.refused(error) from None
    except (OSError, pa.ArrowException) as error:
        raise FolderError(f"cannot read the segment {path}: {error}") from None
