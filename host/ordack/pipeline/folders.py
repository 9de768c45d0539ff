"""Folders of segments that one reader reads: their list, and the segments not read yet.

A pattern (`/data/plant-*`) is expanded at each look, so new folders are found. A reader's progress is one serial for
each queue in each folder. A folder keeps its identifier when it is moved.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from ordack.config.names import BadName, first_of, local_queue
from ordack.config.paths import AnyPath, NotLocal, is_pattern, matching, path_of
from ordack.pipeline import segments
from ordack.pipeline.segments import MARKER, SUFFIX, ExportedSegment, FolderError, FolderMissing, Marker, OptionError

NAMED_MAX = 10  # of the files passed over


class Place(NamedTuple):
    """A queue in a folder, with segments of consecutive serials. folder: its identifier."""

    folder: str
    queue: str


Serials = Mapping[Place, int]  # such as the last one read


class FoundSegment(NamedTuple):
    """A segment with the marker of its folder."""

    marker: Marker
    segment: ExportedSegment

    @property
    def place(self) -> Place:
        return Place(self.marker.folder, self.segment.queue)

    @property
    def serial(self) -> int:
        return self.segment.serial


class Folders:
    """Folders that have a given name or match a pattern at each look. queue: only this queue.

    Raises OptionError, and FolderError for a name without a folder of segments, a pattern without matches, and two
    copies of one folder.
    """

    def __init__(self, named: Sequence[str], queue: str | None = None) -> None:
        try:
            # tasks may have another current folder
            self._named = [str(path_of(name).absolute()) for name in named]
            self._queue = None if queue is None else local_queue(queue).lower()
        except NotLocal as error:
            raise OptionError(str(error)) from None
        except BadName as error:
            raise OptionError(f"option queue (--queue): {error}") from None
        self._queues: dict[Place, list[FoundSegment]] = {}  # at the last look
        self._others: dict[AnyPath, list[str]] = {}
        self.now()

    def __str__(self) -> str:
        return ", ".join(self._named)

    def now(self) -> dict[AnyPath, Marker]:
        """Return the folders present now. Other matches of a pattern are ignored."""
        try:
            found = dict(self._look())
        except OSError as error:
            raise segments.unreadable(error.filename, error) from None
        if not found:
            raise FolderMissing(f"no folder of segments matches {self}: `ordack table export` makes them")
        paths: dict[str, AnyPath] = {}
        for path, marker in found.items():
            other = paths.setdefault(marker.folder, path)
            if other != path and not (isinstance(other, Path) and isinstance(path, Path) and other.samefile(path)):
                raise FolderError(f"{path} is a copy of {other}, whose messages it holds, too: name one of them")
        return {path: marker for path, marker in found.items() if paths[marker.folder] == path}

    def _look(self) -> Iterator[tuple[AnyPath, Marker]]:
        for name in self._named:
            if not is_pattern(name):
                yield path_of(name), _marker(path_of(name))
                continue
            for match in matching(name):
                marker = segments.read_marker(match) if match.is_dir() else None
                if marker is not None:
                    yield match, marker

    def look(self) -> None:
        """List the segments of the folders present now. Raises FolderError."""
        self._queues, self._others = {}, {}
        for path, marker in self.now().items():
            firsts: dict[tuple[Place, int], str] = {}
            for name in segments.names(path):
                segment = segments.of_name(path, name)
                if segment is None:
                    self._others.setdefault(path, []).append(name)
                    continue
                one = FoundSegment(marker, segment)
                other = firsts.setdefault((one.place, segment.first_lookup_id), name)
                if other != name:
                    raise FolderError(
                        f"{path}: {' and '.join(sorted((name, other)))} hold the same message, so one was copied to "
                        "another name: remove the copy, which has the higher number as a rule"
                    )
                self._queues.setdefault(one.place, []).append(one)
        for queue in self._queues.values():
            queue.sort(key=_serial)

    def _wanted(self) -> dict[Place, list[FoundSegment]]:
        return {place: queue for place, queue in self._queues.items() if self._queue in (None, place.queue.lower())}

    def listed(self, read: Serials, until: Serials | None = None) -> list[FoundSegment]:
        """Return the segments after `read`, up to `until`, as of the last look. They are ordered by queue and
        serial."""
        found = []
        for place, queue in sorted(self._wanted().items()):
            last = len(queue) if until is None else bisect_right(queue, until.get(place, 0), key=_serial)
            found += queue[bisect_right(queue, read.get(place, 0), key=_serial) : last]
        return found

    def passed_over(self) -> Iterator[str]:
        """Yield messages about files ignored in each folder, and about a queue without segments."""
        self.look()
        if self._queues and not self._wanted():
            queues = first_of(sorted({place.queue for place in self._queues}), NAMED_MAX)
            yield f"{self}: there is no segment of the queue {self._queue} so far, but of {queues}"
        for path, names in self._others.items():
            others = sorted(name for name in names if name[0] not in "._")
            if others:
                named = first_of(others, NAMED_MAX)
                yield f"passed over in {path}: {named} (no name that `ordack table export` gives)"

    def last(self) -> dict[Place, int]:
        """Return the newest serial of each queue."""
        self.look()
        return {place: queue[-1].serial for place, queue in self._wanted().items()}

    def beginning(self, known: Collection[str]) -> dict[Place, int]:
        """Return the serial before the oldest segment of each queue, in the folders that are not known."""
        for _ in range(2):  # a listing may miss a segment that has just become visible
            self.look()
            queues = self._wanted().items()
            oldest = {place: queue[0].serial - 1 for place, queue in queues if place.folder not in known}
            if not any(oldest.values()):
                break
        return oldest

    def begun_late(self, beginning: Serials) -> Iterator[str]:
        """Yield messages about folders with queues that begin after serial 1. beginning: result of `beginning`."""
        for path, marker in self.now().items() if any(beginning.values()) else ():  # skipped at most batches
            late = sorted(
                place.queue for place, serial in beginning.items() if serial and place.folder == marker.folder
            )
            if late:
                yield (
                    f"{path}: the first segments of {first_of(late, NAMED_MAX)} were deleted before this "
                    "ingest, and their messages will not be in the table"
                )

    def waiting(self, read: Serials, until: Serials | None = None) -> list[FoundSegment]:
        """Return the segments after `read`, up to `until`, ordered by queue and serial. Raise FolderError for a gap.

        Segments become visible in the order of their serials. A segment missed by one listing is in the next one;
        otherwise it was deleted."""
        for last_try in (False, True):
            self.look()
            found = self.listed(read, until)
            gap = _gap(found, read)
            if gap is None:
                break
            if last_try:
                raise missing(gap[0].segment.folder, gap[0].segment.queue, gap[1])
        return found


_place, _serial = attrgetter("place"), attrgetter("serial")


def _by_queue(found: Sequence[FoundSegment]) -> Iterator[Sequence[FoundSegment]]:
    """Split segments, ordered by queue and serial, by queue."""
    end = 0
    while end < len(found):
        begin, end = end, bisect_right(found, found[end].place, lo=end, key=_place)
        yield found[begin:end]


def _gap(found: Sequence[FoundSegment], read: Serials) -> tuple[FoundSegment, int] | None:
    """Return the first segment after a gap or of a duplicate serial, with the expected serial."""
    for queue in _by_queue(found):
        due = range(read.get(queue[0].place, 0) + 1, queue[-1].serial + 1)
        if [one.segment.serial for one in queue] != [*due]:
            return next((one, serial) for one, serial in zip(queue, due) if one.serial != serial)
    return None


def _marker(folder: AnyPath) -> Marker:
    if folder.is_file():
        raise FolderError(f"{folder} is a file: name the folder of segments")
    try:
        folder.stat()
    except OSError as error:
        raise FolderMissing(
            f"there is no folder {folder}, which `ordack table export` makes: {error.strerror}"
        ) from None
    marker = segments.read_marker(folder)
    if marker is None:
        raise FolderMissing(
            f"{folder} is no folder of segments: it has no {MARKER}, which `ordack table export` writes"
        )
    return marker


def in_turn(waiting: Sequence[FoundSegment], at_most: int, bytes_max: float = math.inf) -> list[FoundSegment]:
    """Take one segment of each queue in turn, up to `at_most` segments or `bytes_max` bytes, but at least one, so that
    no queue starves. The result is ordered by queue and serial. Raises FolderError."""
    taken: list[FoundSegment] = []
    queues = [*_by_queue(waiting)]
    turn = 0
    while len(taken) < at_most and queues:
        taken += [queue[turn] for queue in queues][: at_most - len(taken)]
        turn += 1
        queues = [queue for queue in queues if len(queue) > turn]
    if bytes_max < math.inf:
        ends = itertools.accumulate(map(_size, taken))
        taken = taken[: max(1, sum(end <= bytes_max for end in ends))]
    return sorted(taken, key=attrgetter("place", "serial"))


def _size(one: FoundSegment) -> int:
    try:
        return one.segment.path.stat().st_size
    except FileNotFoundError:
        raise missing(one.segment.folder, one.segment.queue, one.serial, one.segment.name) from None
    except OSError as error:
        raise FolderError(f"cannot read the segment {one.segment.path}: {error.strerror}") from None


def missing(folder: AnyPath, queue: str, serial: int, name: str = "") -> FolderError:
    """Return the error for a missing segment before later ones. name: its file's name, if known; else the neighbouring
    segments give the approximate lookup ids."""
    if segments.read_marker(folder) is None:
        return FolderMissing(f"{folder} is no folder of segments any more: it has no {MARKER}")
    known = segments.parse_name(name)
    if known:
        ids = f", with the lookup ids {known[2]} to {known[3]}"
    else:
        name = f"{segments.encode(queue)}-{serial:010d}-*{SUFFIX}"
        there = segments.segments(folder, [queue])
        before = [f"above {one.last_lookup_id}" for one in there if one.serial == serial - 1]
        after = [f"below {one.first_lookup_id}" for one in there if one.serial > serial][:1]
        ids = f", with lookup ids {' and '.join(before + after)}" if before or after else ""
    return FolderError(
        f"segment {serial} of the queue {queue} is missing in {folder}: the file {name} was deleted or "
        f"moved before it was read. Its messages{ids}, are in no queue any more. Put the file back; if "
        "it is lost for good, move the older segments of this queue elsewhere, and begin a new table "
        "with those behind it"
    )
