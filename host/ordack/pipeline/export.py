"""`ordack export`: from queues to segments, each message in exactly one of them.

A segment comes to be in this order, so that a kill at any instant leaves no message missing, and none in two places:

1. Messages are received: they stay on disk, hidden from other receivers; if this process dies they are available again.
2. The segment's file is written under its hidden name and synced, then the folder.
3. One store transaction removes the messages as received, with all that follows from it (FinalAcks, journals), and
   records the segment as pending. This is the instant that counts.
4. The file gets its final name, the folder is synced, the record is no longer pending.

Whoever exports this queue next finishes step 4 of a pending segment, and removes hidden files that are not recorded.
The folder's marker is read before step 1 and after step 2: a segment lands in no folder that took its place.
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
from ordack.pipeline.columns import Columns, parquet
from ordack.pipeline.segments import (
    MARKER,
    SCHEMA,
    FolderError,
    Marker,
    file_name,
    hidden,
    marker_content,
    names,
    parse_name,
    read_marker,
)
from ordack.store import StoreError, StoreUnknown
from ordack.store.messages import NotTaken, StoredMessage
from ordack.store.queues import Export

ROWS = 10_000  # of a segment, at most
SEGMENT_BYTES = 32 << 20  # of packets in a segment; one is begun when it has less, to bound memory
LOCKED_S = 0.04  # that one segment may keep others from writing; design: nothing holds the writer for 50 ms
LEAST_ROWS = 100  # of the first one; then it is known how long the store is locked for a message
LOST = "lost+found"  # is in every file system of some kinds
AGE_S = 1.0  # that a message waits for others when exports go on
POLL_S = 0.02  # while messages wait for others
STOP_S = 0.5  # until a stop is heeded while nothing comes
CLAIM_S = 1.0  # after which no other export to a new folder in a bucket puts its marker there

# Values of Export.pending. A segment that was given up becomes visible all the same if its folder is there again.
DONE, PENDING, GIVEN_UP = 0, 1, 2


class Exported(NamedTuple):
    """A segment that has become visible. `bytes`: of the file. `recovered`: an earlier export had recorded it."""

    queue: str
    serial: int
    segment: str
    messages: int
    bytes: int
    first_lookup_id: int
    last_lookup_id: int
    recovered: bool


class Folder:
    """An export folder, here or in a bucket. Raises FolderError where the operating system or the server refuses.

    In a bucket an object is there as a whole or not at all, and to rename it is to copy it and delete it then. So a
    segment's final name means that it is complete there, too.
    """

    def __init__(self, path: AnyPath) -> None:
        """Open it; make it first if there is none."""
        self.path = path
        self.name = legible(str(self.path))
        with self._errors("open the folder"):
            if isinstance(path, RemotePath):
                RemotePath(path.parts[0]).stat()
            else:
                with contextlib.suppress(FileExistsError):  # if it is none, iterdir() says so
                    path.mkdir(parents=True)
                next(path.iterdir(), None)

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FolderError(f"cannot {what} {self.name}: {error.strerror or error}") from None

    def _file(self, name: str) -> AnyPath:
        """As it is now, whatever was listed before."""
        return RemotePath(self.path, name) if isinstance(self.path, RemotePath) else self.path / name

    def check_in_place(self, marker: Marker) -> None:
        """Raises FolderError if the folder is not under its name any more: nobody would find what is put there."""
        if read_marker(self.path) != marker:
            raise FolderError(
                f"{self.name} was moved, deleted or replaced while it was exported to. Nothing more was "
                "taken from the queues; begin again with the folder where it is now"
            )

    def claim(self, content: bytes) -> None:
        """Put a marker there, unless another export is faster."""
        if isinstance(self.path, RemotePath):  # a server has no lock: the last one that is put there counts
            with self._errors("write to the folder"):
                self._file(MARKER).write_bytes(content)
            time.sleep(CLAIM_S)
            return
        new = self.path / hidden(f"{MARKER}.{secrets.token_hex(8)}")
        self.write(new.name, content)
        with self._errors("write to the folder"):
            try:
                os.link(new, self.path / MARKER)
                new.unlink()
            except FileExistsError:
                new.unlink()
            except OSError:  # a file system that has no links
                new.rename(self.path / MARKER)
        self.sync()

    def names(self) -> list[str]:
        """All files, hidden ones too."""
        with self._errors("read the folder"):
            return names(self.path) if self.path.exists() else []

    def write(self, name: str, content: pa.Buffer | bytes) -> None:
        """Write a file durably, in place of an older one."""
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
        """Make the names durable, where the file system knows of that."""
        if isinstance(self.path, RemotePath):
            return
        with self._errors("write to the folder"):
            try:
                sync(self.path)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):  # mounted ones may not
                    raise

    def remove(self, name: str) -> None:
        """Delete a file."""
        with self._errors(f"delete {name} in the folder"):
            self._file(name).unlink()

    def size(self, name: str) -> int | None:
        """Bytes of a file; None if there is none; -1 if it is no file."""
        with self._errors(f"look at {name} in the folder"):
            path = self._file(name)
            return path.stat().st_size if path.is_file() else -1 if path.exists() else None

    def rows(self, name: str) -> int | None:
        """Rows of a segment's file; None if it is none."""
        try:
            with self._file(name).open("rb") as file:
                return int(pq.read_metadata(file).num_rows)
        except (OSError, pa.ArrowException):
            return None


class Exporter:
    """Exports queues of a store to a folder of segments, which is made if there is none.

    Raises NoSuchQueue and BadName; StoreBusy if another export works on one of the queues; FolderError if the folder
    cannot be used, belongs to another queue manager, or if a segment is recorded that is not to be found: it says which
    messages are in it. With `anew` that one is given up, and a folder may take the place of one that is gone.

    rows: at most so many messages are in one segment; fewer if their removal would keep others from the store for long.
    tell: takes what an operator should know.
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
        self._last: dict[int, Export] = {}  # by queue; serial 0 if there is none yet
        self._recovered: list[Exported] = []
        with contextlib.ExitStack() as held:
            held.enter_context(self._store.exports.lock({queue.identifier: queue.name for queue in self._queues}))
            try:
                path = path_of(os.fspath(folder)).absolute()
                if not path.exists():
                    self._check_replacement(legible(str(path)))
            except NotLocal as error:
                raise FolderError(str(error)) from None
            except OSError as error:
                raise FolderError(f"cannot open the folder {error.filename}: {error.strerror}") from None
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
        """Let others export these queues."""
        self._held.close()

    # ---- what was there before

    def _claim(self) -> Marker:
        """Read the folder's marker, or make it, if nobody's segments are there."""
        marker = read_marker(self._folder.path) or self._mark()
        self._marker = marker
        if all(export.folder != marker.folder for export in self._store.exports.all()):
            self._check_owner("is another one: export to another folder")
        return marker

    def _check_replacement(self, name: str) -> None:
        """Raises FolderError if a folder of this name would take the place of one that is gone."""
        if not self._anew and any(export.path == name for export in self._store.exports.all()):
            raise FolderError(
                f"this store has exported to {name} before, and that folder is not there any more: is it "
                "not mounted, or was it moved? If another is to take its place, say --anew"
            )

    def _mark(self) -> Marker:
        names = self._folder.names()
        if any(map(parse_name, names)):
            raise FolderError(
                f"{self._folder.name} holds segments, but no {MARKER} that says whose they are: export "
                "to another folder"
            )
        self._check_replacement(self._folder.name)
        foreign = min((name for name in names if name != LOST and not name.startswith(f".{MARKER}.")), default=None)
        if foreign is not None:
            raise FolderError(
                f"{self._folder.name} holds other files, such as {legible(foreign)}, and no {MARKER} of "
                "an export: name a new or empty folder"
            )
        self._folder.claim(marker_content(Marker(self._guid, secrets.token_hex(8))))
        marker = read_marker(self._folder.path)  # another export may have been faster
        if marker is None:
            raise FolderError(f"cannot make {MARKER} in the folder {self._folder.name}")
        return marker

    def _check_owner(self, instead: str) -> None:
        if self._marker.queue_manager != self._guid:
            raise FolderError(
                f"{self._folder.name} holds segments of the queue manager {self._marker.queue_manager}; "
                f"this one, {self._guid}, {instead}"
            )

    def _take_up(self, queue: Queue) -> None:
        """Finish what earlier exports of a queue have left."""
        self._last[queue.identifier] = Export(queue.name, self._marker.folder, self._folder.name, 0, "", 0, 0, 0)
        for export in self._store.exports.all(queue.name):
            if export.folder == self._marker.folder:
                self._last[queue.identifier] = self._finish(export._replace(path=self._folder.name))
            elif export.pending == PENDING:
                self._give_up(export, f"its folder was {export.path}, and this is another one")
                self._save(export._replace(pending=GIVEN_UP))

    def _take_up_deleted(self) -> None:
        """Finish what is pending of queues that are gone: nobody else will."""
        for export in self._store.exports.all():
            if export.pending and export.folder == self._marker.folder and not self._store.queues.find(export.queue):
                self._finish(export)

    def _finish(self, export: Export) -> Export:
        """Make the last segment visible, if it is not known to be; what is to be recorded of it."""
        name = hidden(export.name)
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
                self._folder.write(name, parquet(SCHEMA.empty_table()))  # readers wait for the next serial
            self._folder.rename(name, export.name)
            if not problem:
                self._recovered.append(_exported(export, True))
        export = export._replace(pending=DONE)
        self._save(export)
        return export

    def _save(self, export: Export) -> None:
        self._client.order("save_export", *export)

    def _give_up(self, export: Export, problem: str) -> None:
        """Do without a segment that was recorded, if that is what the operator wants."""
        _, _, first, last = parse_name(export.name) or ("", 0, 0, 0)
        text = (
            f"{counted(export.messages, 'message')} of the queue {export.queue}, lookup ids {first} to {last}: in "
            f"the segment {export.name}, which has not become visible: {problem}"
        )
        if not self._anew:
            raise FolderError(
                f"{text}. Bring it back, or export to the folder where it is now; if it is lost for good, say --anew"
            )
        self._tell(f"given up: {text}")

    def _clean(self, queue: Queue) -> None:
        """Remove hidden files of a queue that no transaction has recorded; their messages are in the queue."""
        last = self._last[queue.identifier]
        serials = [last.serial]
        for name in self._folder.names():
            inner = parse_name(name[1:-4]) if name.startswith(".") and name.endswith(".new") else None
            if inner and inner[0].lower() == queue.name.lower():
                self._folder.remove(name)
            visible = parse_name(name)
            if visible and visible[0].lower() == queue.name.lower():
                serials.append(visible[1])
        if max(serials) != last.serial:
            raise FolderError(
                f"{self._folder.name} has segment {max(serials)} of the queue {queue.name}, and this store knows of "
                f"{last.serial or 'none'}: the store was restored from a backup, or is a copy. Export to a new folder; "
                "messages exported since the backup are in both, and an ingest of both puts them into a table once"
            )

    # ---- exporting

    def run(self, stop: Callable[[], bool] = lambda: False) -> Iterator[Exported]:
        """Export what is in the queues now; what arrives meanwhile may be left there. Gives each segment when it is
        visible, those of earlier exports first. Ends early, with a whole segment, when stop() is true. Raises
        FolderError, for example if there is no room in the folder: messages stay in their queues."""
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
        """Export what comes, until stop() is true: when there is enough for a segment, or when this has known of a
        message for `age` seconds."""
        while self._recovered:
            yield self._recovered.pop(0)
        known: dict[int, float] = {}  # when messages were first seen in a queue
        while not stop():
            self._store.changed()  # before looking, so that nothing slips in between
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
                if exported is None or exported.messages >= messages:  # else the rest has waited, too
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
        """How many messages are in a queue, and their bytes."""
        state = self._store.queues.find(queue.identifier)
        if state is None:
            raise StoreError(f"the queue {queue.name} was deleted")
        return state.messages, state.bytes

    def _export(self, queue: Queue, limit: int) -> Exported | None:
        """Make one segment of up to `limit` messages; None if there is none to be had. When a `serve` ends meanwhile,
        what it had given is in the queue again: this begins anew."""
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
            name = file_name(last.queue, last.serial + 1, messages[0].lookup_id, messages[-1].lookup_id)
            content = parquet(self._columns.table(last.queue, messages))
            export = last._replace(
                serial=last.serial + 1, name=name, messages=len(messages), size=len(content), pending=PENDING
            )
        except BaseException:
            self._client.access.put_back(keys)
            raise
        try:
            self._folder.write(hidden(name), content)
            self._folder.check_in_place(self._marker)
            began = time.monotonic()
            self._client.access.commit(Commit(tuple(keys), order=Order("add_export", tuple(export))))
            pace = len(keys) / max(time.monotonic() - began, 1e-6)
            self._affordable = max(int(pace * LOCKED_S), LEAST_ROWS)
        except StoreUnknown as error:
            raise self._unknown(export, error.reason) from None
        except (FolderError, StoreError):  # after any other error, the next export finds out
            self._client.access.put_back(keys)
            if export not in self._store.exports.all(export.queue):
                with contextlib.suppress(FolderError):
                    self._folder.remove(hidden(name))
            raise
        except BaseException:
            self._client.access.put_back(keys)
            raise
        try:
            self._folder.rename(hidden(name), name)
        except FolderError as error:
            count = counted(export.messages, "message")
            raise FolderError(
                f"{error}. {count} of the queue {export.queue}: in {hidden(name)} there, no longer in "
                "the queue: the next export to this folder makes them visible"
            ) from None
        self._last[queue.identifier] = export
        with contextlib.suppress(StoreError):  # it is visible, and told so; if this fails, the next segment comes to it
            self._save(export._replace(pending=DONE))
            self._last[queue.identifier] = export._replace(pending=DONE)
        return _exported(export, False)

    def _unknown(self, export: Export, reason: str) -> StoreUnknown:
        """The store did not say whether these messages have left it."""
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
    _, _, first, last = parse_name(export.name) or ("", 0, 0, 0)
    return Exported(export.queue, export.serial, export.name, export.messages, export.size, first, last, recovered)
