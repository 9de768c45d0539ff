"""`ordack table export`: moves messages from queues to segments, each message to exactly one segment.

A segment is made in this order, so that a kill at any instant neither loses nor duplicates a message:

1. Messages are received: they stay on disk, hidden from other receivers. If the process dies, they are available again.
2. The segment's file is written under a hidden name and synced, then the folder is synced.
3. One store transaction removes the messages as received, with FinalAcks and journal copies, and records the segment
   as pending. This transaction decides.
4. The file gets its final name, the folder is synced, and the record is no longer pending.

The next export of the queue finishes step 4 of a pending segment and removes unrecorded hidden files. The folder's
marker is read before step 1 and after step 2, so that no segment lands in a replacement folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from mqqb import guids

from ordack.broker.commits import LOOK_AGAIN_S
from ordack.broker.message import Commit, Order, Wanted
from ordack.client import Client, Queue
from ordack.config.names import counted, legible
from ordack.config.paths import AnyPath, NotLocal, RemotePath, path_of, sync
from ordack.pipeline import segments
from ordack.pipeline.columns import Columns, parquet
from ordack.store import StoreError, StoreUnknown
from ordack.store.messages import NotTaken, StoredMessage
from ordack.store.queues import Export

ROWS = 10_000  # of a segment
SEGMENT_BYTES = 32 << 20  # of packets, after which a segment takes no further batch; bounds memory
LOCKED_S = 0.04  # lock time of one segment: nothing may hold the store's writer for 50 ms
LEAST_ROWS = 100  # of the first segment, before the lock time per message is known
LOST = "lost+found"  # exists in new file systems of some kinds
AGE_S = 1.0  # time that a message waits for others in follow()
POLL_S = 0.02  # while messages wait for others
STOP_S = 0.5  # until an idle export notices a stop
CLAIM_S = 1.0  # until concurrent exports to a new bucket folder have written their markers

# Values of Export.pending. A segment given up still becomes visible if its folder returns.
DONE, PENDING, GIVEN_UP = 0, 1, 2


class Exported(NamedTuple):
    """A segment that became visible. bytes: of the file. recovered: an earlier export had recorded it."""

    queue: str
    serial: int
    segment: str
    messages: int
    bytes: int
    first_lookup_id: int
    last_lookup_id: int
    recovered: bool


class Folder:
    """An export folder, here or in a bucket. Raises FolderError if the operating system or the server refuses.

    An object in a bucket appears atomically; renaming copies and then deletes it. So a final name means a complete
    segment there, too.
    """

    def __init__(self, path: AnyPath) -> None:
        """Open the folder, or make it."""
        self.path = path
        self.name = legible(str(self.path))
        with self._errors("open the folder"):
            if isinstance(path, RemotePath):
                RemotePath(path.parts[0]).stat()
            else:
                with contextlib.suppress(FileExistsError):  # iterdir() reports a path that is not a folder
                    path.mkdir(parents=True)
                next(path.iterdir(), None)

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise segments.FolderError(f"cannot {what} {self.name}: {error.strerror or error}") from None

    def _file(self, name: str) -> AnyPath:
        """Return the path without cached listing data."""
        return RemotePath(self.path, name) if isinstance(self.path, RemotePath) else self.path / name

    def check_in_place(self, marker: segments.Marker) -> None:
        """Raise FolderError if the folder has lost its name, because readers would not find a new segment."""
        if segments.read_marker(self.path) != marker:
            raise segments.FolderError(
                f"{self.name} was moved, deleted or replaced while it was exported to. Nothing more was "
                "taken from the queues; begin again with the folder where it is now"
            )

    def claim(self, content: bytes) -> None:
        """Write the marker unless another export was faster."""
        if isinstance(self.path, RemotePath):  # a server has no lock: the last marker wins
            with self._errors("write to the folder"):
                self._file(segments.MARKER).write_bytes(content)
            time.sleep(CLAIM_S)
            return
        new = self.path / segments.hidden(f"{segments.MARKER}.{secrets.token_hex(8)}")
        self.write(new.name, content)
        with self._errors("write to the folder"):
            try:
                os.link(new, self.path / segments.MARKER)
                new.unlink()
            except FileExistsError:
                new.unlink()
            except OSError:  # a file system without links
                new.rename(self.path / segments.MARKER)
        self.sync()

    def names(self) -> list[str]:
        """Return all names, including hidden files."""
        with self._errors("read the folder"):
            return segments.names(self.path) if self.path.exists() else []

    def write(self, name: str, content: pa.Buffer | bytes) -> None:
        """Write a file durably, replacing an older one."""
        with self._errors("write to the folder"):
            path = self._file(name)
            if isinstance(path, RemotePath):
                path.write_bytes(content)
                return
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                left = memoryview(content)
                while left:
                    left = left[os.write(file, left) :]
                os.fsync(file)
            finally:
                os.close(file)
        self.sync()

    def rename(self, old: str, new: str) -> None:
        """Rename a file durably."""
        with self._errors("rename a file in the folder"):
            source: Any = self._file(old)
            source.replace(self._file(new))
        self.sync()

    def sync(self) -> None:
        """Make the names durable, if the file system supports it."""
        if isinstance(self.path, RemotePath):
            return
        with self._errors("write to the folder"):
            try:
                sync(self.path)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):  # some mounted file systems cannot
                    raise

    def remove(self, name: str) -> None:
        """Delete a file."""
        with self._errors(f"delete {name} in the folder"):
            self._file(name).unlink()

    def size(self, name: str) -> int | None:
        """Return a file's size; None if it is missing; -1 if it is not a file."""
        with self._errors(f"look at {name} in the folder"):
            path = self._file(name)
            return path.stat().st_size if path.is_file() else -1 if path.exists() else None

    def rows(self, name: str) -> int | None:
        """Return the number of a segment's rows; None if the file is unreadable."""
        try:
            with self._file(name).open("rb") as file:
                return int(pq.read_metadata(file).num_rows)
        except (OSError, pa.ArrowException):
            return None


class Exporter:
    """Exports queues of a store to a folder of segments. Makes the folder if missing.

    Raises NoSuchQueue, BadName, and StoreBusy if another export has one of the queues. Raises FolderError if the folder
    is unusable, belongs to another queue manager, or lacks a recorded segment; the text names the segment's messages.
    anew: give up such a segment, and allow a new folder in place of a missing one.

    rows: maximum of a segment; a segment has fewer if removing its messages would lock the store for long. tell:
    receives messages for the operator.
    """

    def __init__(
        self,
        client: Client,
        queues: Sequence[str],
        folder: str | os.PathLike[str],
        *,
        rows: int = ROWS,
        anew: bool = False,
        tell: Callable[[str], None] = print,
    ) -> None:
        self._client = client
        self._store = client.store
        self._rows = rows
        self._anew = anew
        self._tell = tell
        self._columns = Columns(guids.guid_text(client.store.guid))
        self._affordable = LEAST_ROWS
        self._queues = list({queue.identifier: queue for queue in map(client.queue, queues)}.values())
        self._last: dict[int, Export] = {}  # by queue; serial 0 before the first segment
        self._recovered: list[Exported] = []
        with contextlib.ExitStack() as held:
            held.enter_context(self._store.exports.lock({queue.identifier: queue.name for queue in self._queues}))
            try:
                path = path_of(os.fspath(folder)).absolute()
                if not path.exists():
                    self._check_replacement(legible(str(path)))
            except NotLocal as error:
                raise segments.FolderError(str(error)) from None
            except OSError as error:
                raise segments.FolderError(f"cannot open the folder {error.filename}: {error.strerror}") from None
            self._folder = Folder(path)
            self._guid = guids.guid_text(self._store.guid)
            self._marker = self._claim()
            for queue in self._queues:
                self._take_up(queue)
            self._take_up_deleted()
            self._check_owner("was given a new identifier since: export to a new folder")
            for queue in self._queues:
                self._clean(queue)
            self._held = held.pop_all()

    def __enter__(self) -> Exporter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the queues for other exports."""
        self._held.close()

    # ---- state of earlier exports

    def _claim(self) -> segments.Marker:
        """Read the folder's marker. Write one if the folder has no segments."""
        marker = segments.read_marker(self._folder.path) or self._mark()
        self._marker = marker
        if all(export.folder != marker.folder for export in self._store.exports.all()):
            self._check_owner("is another one: export to another folder")
        return marker

    def _check_replacement(self, name: str) -> None:
        """Raise FolderError if a folder of this name would replace a missing one."""
        if not self._anew and any(export.path == name for export in self._store.exports.all()):
            raise segments.FolderError(
                f"this store has exported to {name} before, and that folder is not there any more: is it "
                "not mounted, or was it moved? If another is to take its place, say --anew"
            )

    def _mark(self) -> segments.Marker:
        names = self._folder.names()
        if any(map(segments.parse_name, names)):
            raise segments.FolderError(
                f"{self._folder.name} holds segments, but no {segments.MARKER} that says whose they are: export "
                "to another folder"
            )
        self._check_replacement(self._folder.name)
        foreign = min(
            (name for name in names if name != LOST and not name.startswith(f".{segments.MARKER}.")), default=None
        )
        if foreign is not None:
            raise segments.FolderError(
                f"{self._folder.name} holds other files, such as {legible(foreign)}, and no {segments.MARKER} of "
                "an export: name a new or empty folder"
            )
        self._folder.claim(segments.marker_content(segments.Marker(self._guid, secrets.token_hex(8))))
        marker = segments.read_marker(self._folder.path)  # another export may have been faster
        if marker is None:
            raise segments.FolderError(f"cannot make {segments.MARKER} in the folder {self._folder.name}")
        return marker

    def _check_owner(self, instead: str) -> None:
        if self._marker.queue_manager != self._guid:
            raise segments.FolderError(
                f"{self._folder.name} holds segments of the queue manager {self._marker.queue_manager}; "
                f"this one, {self._guid}, {instead}"
            )

    def _take_up(self, queue: Queue) -> None:
        """Finish the pending segments of earlier exports of a queue."""
        self._last[queue.identifier] = Export(queue.name, self._marker.folder, self._folder.name, 0, "", 0, 0, 0)
        for export in self._store.exports.all(queue.name):
            if export.folder == self._marker.folder:
                self._last[queue.identifier] = self._finish(export._replace(path=self._folder.name))
            elif export.pending == PENDING:
                self._give_up(export, f"its folder was {export.path}, and this is another one")
                self._save(export._replace(pending=GIVEN_UP))

    def _take_up_deleted(self) -> None:
        """Finish the pending segments of deleted queues, because no later export does."""
        for export in self._store.exports.all():
            if export.pending and export.folder == self._marker.folder and not self._store.queues.find(export.queue):
                self._finish(export)

    def _finish(self, export: Export) -> Export:
        """Make a pending segment visible. Return its new record."""
        name = segments.hidden(export.name)
        if not export.pending:
            pass
        elif self._folder.size(export.name) is not None:
            self._folder.sync()
        else:
            size = self._folder.size(name)
            problem = ""
            if size is None:
                problem = f"the file {name} is gone from {self._folder.name}"
            elif size != export.size or self._folder.rows(name) != export.messages:
                problem = f"the file {name} in {self._folder.name} is damaged"
            if problem:
                self._give_up(export, problem)
                self._folder.write(name, parquet(segments.SCHEMA.empty_table()))  # readers expect this serial
            self._folder.rename(name, export.name)
            if not problem:
                self._recovered.append(_exported(export, True))
        export = export._replace(pending=DONE)
        self._save(export)
        return export

    def _save(self, export: Export) -> None:
        self._client.order("save_export", *export)

    def _give_up(self, export: Export, problem: str) -> None:
        """Give up a recorded segment if the operator allows it."""
        _, _, first, last = segments.parse_name(export.name) or ("", 0, 0, 0)
        text = (
            f"{counted(export.messages, 'message')} of the queue {export.queue}, lookup ids {first} to {last}: in "
            f"the segment {export.name}, which has not become visible: {problem}"
        )
        if not self._anew:
            raise segments.FolderError(
                f"{text}. Bring it back, or export to the folder where it is now; if it is lost for good, say --anew"
            )
        self._tell(f"given up: {text}")

    def _clean(self, queue: Queue) -> None:
        """Remove a queue's hidden files that no transaction recorded. Their messages are still in the queue."""
        last = self._last[queue.identifier]
        serials = [last.serial]
        for name in self._folder.names():
            inner = segments.parse_name(name[1:-4]) if name.startswith(".") and name.endswith(".new") else None
            if inner and inner[0].lower() == queue.name.lower():
                self._folder.remove(name)
            visible = segments.parse_name(name)
            if visible and visible[0].lower() == queue.name.lower():
                serials.append(visible[1])
        if max(serials) != last.serial:
            raise segments.FolderError(
                f"{self._folder.name} has segment {max(serials)} of the queue {queue.name}, and this store knows of "
                f"{last.serial or 'none'}: the store was restored from a backup, or is a copy. Export to a new folder; "
                "messages exported since the backup are in both, and an ingest of both puts them into a table once"
            )

    # ---- exporting

    def run(self, stop: Callable[[], bool] = lambda: False) -> Iterator[Exported]:
        """Export the messages now in the queues; later arrivals may stay. Yield each segment when it is visible,
        segments of earlier exports first. Stop after a whole segment when stop() is true. Raises FolderError, for
        example for a full disk; messages then stay in their queues."""
        while self._recovered:
            yield self._recovered.pop(0)
        for queue in self._queues:
            left = self._state(queue)[0]
            while left > 0 and not stop():
                exported = self._export(queue, min(left, self._rows))
                if exported is None:
                    break
                left -= exported.messages
                yield exported

    def follow(self, stop: Callable[[], bool], age: float = AGE_S) -> Iterator[Exported]:
        """Export arrivals until stop() is true. A segment is made when it is full, or when a message has been known for
        `age` seconds."""
        while self._recovered:
            yield self._recovered.pop(0)
        known: dict[int, float] = {}  # first sight of messages, by queue
        while not stop():
            self._store.changed()  # before looking, so that no change is missed
            moved = waiting = False
            for queue in self._queues:
                messages, size = self._state(queue)
                if not messages:
                    known.pop(queue.identifier, None)
                    continue
                since = known.setdefault(queue.identifier, time.monotonic())
                enough = messages >= min(self._rows, self._affordable) or size >= SEGMENT_BYTES
                if not enough and time.monotonic() < since + age:
                    waiting = True
                    continue
                exported = self._export(queue, self._rows)
                if exported is None or exported.messages >= messages:  # else the rest has waited too
                    del known[queue.identifier]
                if exported is not None:  # else other receivers hold them, or they have expired
                    moved = True
                    yield exported
                if stop():
                    return
            if waiting and not moved:
                time.sleep(min(POLL_S, age))
            elif not moved:
                self._store.wait(min(LOOK_AGAIN_S, STOP_S))

    def _state(self, queue: Queue) -> tuple[int, int]:
        """Return the number and bytes of a queue's messages."""
        state = self._store.queues.find(queue.identifier)
        if state is None:
            raise StoreError(f"the queue {queue.name} was deleted")
        return state.messages, state.bytes

    def _export(self, queue: Queue, limit: int) -> Exported | None:
        """Make one segment of up to `limit` messages; None if none are available. Repeat if a `serve` ends meanwhile,
        because its messages return to the queue."""
        while True:
            with contextlib.suppress(NotTaken):
                return self._export_once(queue, limit)

    def _export_once(self, queue: Queue, limit: int) -> Exported | None:
        self._folder.check_in_place(self._marker)
        if self._last[queue.identifier].pending:
            self._last[queue.identifier] = self._finish(self._last[queue.identifier])
        keys: list[int] = []
        try:
            messages = self._receive(queue, min(limit, self._affordable), keys)
            if not messages:
                return None
            messages.sort(key=lambda message: message.lookup_id)
            last = self._last[queue.identifier]
            name = segments.file_name(last.queue, last.serial + 1, messages[0].lookup_id, messages[-1].lookup_id)
            content = parquet(self._columns.table(last.queue, messages))
            export = last._replace(
                serial=last.serial + 1, name=name, messages=len(messages), size=len(content), pending=PENDING
            )
        except BaseException:
            self._client.access.put_back(keys)
            raise
        try:
            self._folder.write(segments.hidden(name), content)
            self._folder.check_in_place(self._marker)
            began = time.monotonic()
            self._client.access.commit(Commit(tuple(keys), order=Order("add_export", tuple(export))))
            pace = len(keys) / max(time.monotonic() - began, 1e-6)
            self._affordable = max(int(pace * LOCKED_S), LEAST_ROWS)
        except StoreUnknown as error:
            raise self._unknown(export, error.reason) from None
        except (segments.FolderError, StoreError):  # after other errors, the next export cleans up
            self._client.access.put_back(keys)
            if export not in self._store.exports.all(export.queue):
                with contextlib.suppress(segments.FolderError):
                    self._folder.remove(segments.hidden(name))
            raise
        except BaseException:
            self._client.access.put_back(keys)
            raise
        try:
            self._folder.rename(segments.hidden(name), name)
        except segments.FolderError as error:
            count = counted(export.messages, "message")
            raise segments.FolderError(
                f"{error}. {count} of the queue {export.queue}: in {segments.hidden(name)} there, no longer in "
                "the queue: the next export to this folder makes them visible"
            ) from None
        self._last[queue.identifier] = export
        with contextlib.suppress(StoreError):  # already visible; if saving fails, the next segment repeats it
            self._save(export._replace(pending=DONE))
            self._last[queue.identifier] = export._replace(pending=DONE)
        return _exported(export, False)

    def _unknown(self, export: Export, reason: str) -> StoreUnknown:
        """Return the error for a commit of unknown outcome."""
        return StoreUnknown(
            f"{counted(export.messages, 'message')} of the queue {export.queue} moved to the segment "
            f"{export.name}, or did not: {reason}",
            f"export to {self._folder.name} again, and each is in one segment",
        )

    def _receive(self, queue: Queue, limit: int, keys: list[int]) -> list[StoredMessage]:
        messages: list[StoredMessage] = []
        size = 0
        while len(messages) < limit and size < SEGMENT_BYTES:
            taken = self._client.access.take(Wanted(queue.identifier, limit - len(messages)), 0.0)
            if not taken:
                break
            keys += [message.lookup_id for message in taken]
            messages += taken
            size += sum(len(message.packet) for message in taken)
        return messages


def _exported(export: Export, recovered: bool) -> Exported:
    _, _, first, last = segments.parse_name(export.name) or ("", 0, 0, 0)
    return Exported(export.queue, export.serial, export.name, export.messages, export.size, first, last, recovered)
