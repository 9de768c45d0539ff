"""Audit a folder that receives captures, across interruptions (`ordack capture audit --follow`).

    follower = Follower(Path("/captures"), Path("/var/lib/audit"))
    for step, result in follower.reports(once=True):
        print(result.summary)

Files are read in steps, in the order of their first frames. Each step saves its state: the files read, the decoder and
the auditor with all streams. After a kill, the step is repeated from the preceding state.

A late or grown file belongs before files already read. The audit returns to an earlier state, or to the beginning, and
reads the later files again: the result always equals one audit of all files. If a file to be read again is gone,
 the late file is skipped, and every verdict that depends on it is unknown.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from _mqqb import ffi

from ordack.audit import replay, tasks
from ordack.audit.result import AuditResult, count_text
from ordack.capture import columnar
from ordack.capture.columnar import WINDOW_NS
from ordack.capture.reading import SUFFIXES

MARK = "follow.json"  # in the checkpoint: names its folder of captures
STATE_FORMAT = 1  # of states; C structures are checked separately
STEP_BYTES = 1 << 30  # of a step with several files; bounds the work repeated after a kill
SETTLED_S = 5.0  # an unchanged file is complete after this time
POLL_S = 1
ENDED_S = 3600.0  # capture time after which an ended connection is forgotten
QUIET_S = 2 * 86400.0  # the same for an open connection, as of a board without power
WINDOW_S = WINDOW_NS / 1e9
STATES_KEPT = 4


class FollowError(Exception):
    """The folder or the checkpoint is unusable. The text gives the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class File:
    """A capture. size: bytes read. time: of its first frame, s since 1970. missed: too late to be read. last: greatest
    time, 0 if never read."""

    path: str
    size: int
    time: float
    missed: bool = False
    last: float = field(default=0.0, compare=False)

    @property
    def place(self) -> tuple[float, str]:
        """Sort key, as in `columnar.in_order`."""
        return self.time, self.path


@dataclass(slots=True)
class State:
    """The progress of the audit. step: from 1; 0 before the first step. files: files read, in order. missed: (path,
    reason) of files not read."""

    step: int
    files: list[File]
    decoder: columnar.Decoder
    auditor: replay.Auditor
    missed: list[tuple[str, str]]

    def read(self, files: Sequence[File]) -> None:
        """Read the next files."""
        for file in files:
            if not file.missed and Path(file.path).exists():
                self.decoder.paths.append(file.path)
                continue
            late = "came when what follows it had been read, and was there no more"
            self.missed.append((file.path, late if file.missed else "was removed before it was read"))
            self._feed(hold=False)
            self.auditor.interrupt()
        self._feed()
        lasts = {self.decoder.paths[number]: latest / 1e9 for number, (_, latest) in self.decoder.spans.items()}
        self.files += [File(*_key(file), file.missed, lasts.get(file.path, file.time)) for file in files]
        self.auditor.forget(ENDED_S, QUIET_S)
        self.step += 1

    def result(self) -> AuditResult:
        """Return the result as if the capture ended here. The state cannot read more then. Raises CaptureUnusable."""
        self._feed(finish=True)
        result = tasks.result_of(self.decoder.paths, [self.auditor.partial()])
        result.add_damages(self.missed)
        return result

    def _feed(self, finish: bool = False, hold: bool = True) -> None:
        batches = self.decoder.batches(replay.BATCH_ROWS, replay.COLUMNS, finish=finish, hold=hold)
        self.auditor.take(batches)


class Follower:
    """The audit of one folder with its checkpoint, a separate folder that is made if missing.

    settled: seconds. step_bytes: see STEP_BYTES. Raises FollowError, OSError.
    """

    def __init__(
        self, folder: Path, checkpoint: Path, settled: float = SETTLED_S, step_bytes: int = STEP_BYTES
    ) -> None:
        if not folder.is_dir():
            raise FollowError(f"there is no folder {folder}")
        self.folder, self.checkpoint = folder.absolute(), checkpoint.absolute()
        self.settled, self.step_bytes = settled, step_bytes
        self.passed_over: set[str] = set()  # files that are not captures
        self._first_times: dict[tuple[str, int], float] = {}
        self._lasts: dict[str, float] = {}  # greatest times of files read before
        self._claim(checkpoint)

    def _claim(self, named: Path) -> None:
        """Mark the new checkpoint. Raise FollowError if it is unusable or belongs to another folder."""
        path = self.checkpoint / MARK
        try:
            self.checkpoint.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise FollowError(f"the checkpoint {named} is no folder, or is below a file: name a folder") from None
        if self.checkpoint.samefile(self.folder):
            raise FollowError(f"the checkpoint {named} is the folder of the captures, where others write: name another")
        if not path.exists():
            if any(not entry.name.startswith(f".{MARK}") for entry in self.checkpoint.iterdir()):
                raise FollowError(
                    f"{named} holds other files, and is no checkpoint of this command: name a new or empty folder"
                )
            aside = path.with_name(f".{MARK}")
            aside.write_text(json.dumps({"folder": str(self.folder)}))
            _publish(aside, path)
        try:
            found = json.loads(path.read_bytes())["folder"]
        except (ValueError, KeyError, TypeError):
            raise FollowError(f"{path} does not say what the checkpoint {named} is for: name a new folder") from None
        if found != str(self.folder):
            raise FollowError(f"{named} is the checkpoint for the folder {found}; take another one for {self.folder}")

    def lock(self) -> Any:
        """Lock the checkpoint. The caller keeps the returned file open meanwhile. Raises FollowError."""
        file = (self.checkpoint / "lock").open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise FollowError(f"another process works on the checkpoint {self.checkpoint}") from None
        return file

    def going_on(self) -> str:
        """Describe the progress of an earlier process, or return ""."""
        number = max(self._steps(), default=0)
        if not number:
            return ""
        files = count_text(len(self._files(number)[1]), "file")
        return f"going on in {self.checkpoint} behind step {number}: {files} read"

    def reports(self, once: bool, stop: Callable[[], bool] = lambda: False) -> Iterator[tuple[int, AuditResult]]:
        """Read waiting captures. Yield step and result whenever none waits, and at the end. once: read only files
        present now, complete or not; else continue until `stop` returns true. Raise CaptureUnusable if `once` ends
        without a result."""
        if once:
            self.settled = 0.0
        target = self.present() if once else None
        state, told = self._latest(), 0
        while not stop():
            planned = self._plan(state, self.present() if target is None else target)
            if planned is None:
                if once:
                    break
                time.sleep(POLL_S)
                continue
            origin, files, behind = planned
            number, state = state.step, origin
            state.step = number
            state.read(files)
            self._save(state)
            self._lasts |= {file.path: file.last for file in state.files}
            if not behind:
                told = state.step
                yield from self._report(state.step, once)
        if told < state.step:
            yield from self._report(state.step, once)
        elif once and not state.step:
            raise tasks.CaptureUnusable(f"there is no capture with a frame in {self.folder}")

    def _report(self, step: int, once: bool) -> Iterator[tuple[int, AuditResult]]:
        """Yield the result. While captures may still arrive, yield nothing if none has a frame of the protocol."""
        try:
            yield step, self._load(step).result()
        except tasks.CaptureUnusable:
            if once:
                raise

    # ---- planning

    def present(self) -> list[File]:
        """Return the captures in the folder that seem complete."""
        found, now = [], time.time()
        for entry in sorted(os.scandir(self.folder), key=lambda entry: entry.name):
            try:
                if entry.name.startswith(".") or not entry.is_file():
                    continue
                size, changed = entry.stat().st_size, entry.stat().st_mtime
                if 0 <= now - changed < self.settled:  # a time in the future comes from another machine's clock
                    continue
                first = self._first_time(entry.path, size)
            except FileNotFoundError:
                continue  # removed by the capturing program
            if first is not None:
                found.append(File(entry.path, size, first))
        return sorted(found, key=lambda file: file.place)

    def _first_time(self, path: str, size: int) -> float | None:
        """Return None if the file is not a capture or has no frame yet."""
        if (path, size) not in self._first_times:
            if not columnar.is_capture(path):
                self.passed_over.add(path)
                return None
            first = columnar.first_time(path)
            if first == float("inf"):
                return None
            self._first_times[path, size] = first
        return self._first_times[path, size]

    def _plan(self, state: State, present: Sequence[File]) -> tuple[State, list[File], int] | None:
        """Return the state to start from, the files to read next, and the number of later files, or None."""
        known = {file.path: file for file in state.files}
        gone = {(file.time, file.size) for file in state.files if not Path(file.path).exists()}
        new = {file.path: file for file in present if file.path not in known or file.size != known[file.path].size}
        # Renamed files, and files packed next to their originals, have been read.
        new = {
            path: file
            for path, file in new.items()
            if path in known or ((file.time, file.size) not in gone and not _was_packed(file, {**known, **new}))
        }
        if not new:
            return None
        wanted = [file for file in state.files if not file.missed and file.path not in new]
        wanted = sorted([*wanted, *new.values()], key=lambda file: file.place)
        origin = self._origin(state, wanted)
        rest = wanted[sum(not file.missed for file in origin.files) :]
        if any(not Path(file.path).exists() for file in rest if file.path not in new):
            # Going back is impossible: skip the late files and report them as missing.
            begin = max(file.last for file in state.files) - WINDOW_S
            origin = state
            rest = [File(*_key(file), missed=file.time < begin) for file in new.values()]
            rest.sort(key=lambda file: (not file.missed, file.place))
        taken, total = 0, 0
        for file in rest:
            total += 0 if file.missed else file.size
            if taken and total > self.step_bytes and self._follow_on(rest, taken):
                break
            taken += 1
        return origin, rest[:taken], len(rest) - taken

    def _origin(self, state: State, wanted: Sequence[File]) -> State:
        """Return the latest state whose files are the first of `wanted`, in the same order."""
        if state.files and self._is_begin([file for file in state.files if not file.missed], wanted):
            return state
        for step in sorted(self._steps(), reverse=True):
            current, files = self._files(step)
            if current and self._is_begin(files, wanted):
                return self._load(step)
        return self._fresh(wanted)

    def _is_begin(self, files: Sequence[File], wanted: Sequence[File]) -> bool:
        return list(files) == list(wanted[: len(files)]) and self._follow_on(wanted, len(files))

    def _follow_on(self, files: Sequence[File], count: int) -> bool:
        """Test whether the first `count` files can be read before the others, which begin later."""
        last = max((self._lasts.get(file.path, 0.0) for file in files[:count]), default=0.0)
        return count == len(files) or last - WINDOW_S <= files[count].time

    # ---- states on disk: length, JSON with layout and files, pickle; compressed

    def _path(self, step: int) -> Path:
        return self.checkpoint / f"state-{step:010}"

    def _steps(self) -> list[int]:
        return [int(path.name.removeprefix("state-")) for path in self.checkpoint.glob("state-*")]

    def _fresh(self, files: Sequence[File]) -> State:
        start = replay.start_of([file.path for file in files if Path(file.path).exists()])
        return State(0, [], columnar.Decoder([]), replay.Auditor(start), [])

    def _latest(self) -> State:
        """Return the last state. If another version wrote it, return a new one; then all its files must exist."""
        step = max(self._steps(), default=0)
        if not step:
            return self._fresh(())
        current, files = self._files(step)
        self._lasts = {file.path: file.last for file in files}
        if current:
            return self._load(step)
        lost = [file.path for file in files if not Path(file.path).exists()]
        if lost:
            raise FollowError(
                f"the checkpoint {self.checkpoint} is of another version of ordack, and {lost[0]} is no more there to "
                "be read again: begin a new one"
            )
        state = self._fresh(())
        state.step = step
        return state

    def _save(self, state: State) -> None:
        path = self._path(state.step)
        aside = path.with_name(f".{path.name}")
        head = json.dumps({"layout": _layout(), "files": [asdict(file) for file in state.files]}).encode()
        with pa.CompressedOutputStream(str(aside), "lz4") as target:
            target.write(len(head).to_bytes(8) + head)
            pickle.dump(state, target, pickle.HIGHEST_PROTOCOL)
        _publish(aside, path)
        for step in sorted(self._steps())[:-STATES_KEPT]:
            self._path(step).unlink()

    def _files(self, step: int) -> tuple[bool, list[File]]:
        """Return whether this version wrote the state, and its files."""
        with self._opened(step) as source:
            head = _head(source)
            return head["layout"] == _layout(), [File(**file) for file in head["files"]]

    def _load(self, step: int) -> State:
        with self._opened(step) as source:
            _head(source)
            state: State = _Unpickler(source).load()
            return state

    @contextlib.contextmanager
    def _opened(self, step: int) -> Iterator[Any]:
        try:
            with pa.CompressedInputStream(str(self._path(step)), "lz4") as source:
                yield source
        except (OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
            raise FollowError(
                f"the checkpoint {self.checkpoint} is damaged: the state behind step {step} cannot be read, {error}; "
                "begin a new one"
            ) from None


def _head(source: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(source.read(int.from_bytes(source.read(8))))
    return found


def _key(file: File) -> tuple[str, int, float]:
    return file.path, file.size, file.time


def _was_packed(file: File, known: Mapping[str, File]) -> bool:
    """Test whether the file is a packed copy of a known file."""
    return any(
        file.path.endswith(suffix)
        and file.path.removesuffix(suffix) in known
        and known[file.path.removesuffix(suffix)].time == file.time
        for suffix in SUFFIXES
    )


NOT_OF_CAPTURES = "mqqb_fast", "mqqb_sockets"  # some of these structures are opaque


def _layout() -> str:
    """Hash the C structures, to tell this version's states from others."""
    types = {name: ffi.typeof(name) for name in ffi.list_types()[0] if not name.startswith(NOT_OF_CAPTURES)}
    said = [
        (name, [(field, item.offset, str(item.type)) for field, item in kind.fields])
        for name, kind in types.items()
        if kind.kind == "struct" and kind.fields
    ]
    return hashlib.sha256(repr((STATE_FORMAT, sorted(said))).encode()).hexdigest()[:12]


def _named(part: Any) -> tuple[str, str]:
    return part.__module__, part.__qualname__


# Classes and functions in states. Versions of numpy name their array constructors differently: one constructor for
# contiguous arrays, one for others.
_PARTS = {
    _named(part)
    for part in (
        State,
        File,
        columnar.Decoder,
        columnar.Damage,
        replay.Auditor,
        Counter,
        np.dtype,
        np.ndarray,
        np.zeros(1).__reduce_ex__(pickle.HIGHEST_PROTOCOL)[0],
        np.zeros((2, 2))[:, :1].__reduce_ex__(pickle.HIGHEST_PROTOCOL)[0],
    )
} | {(replay.__name__, "_Tables")}


class _Unpickler(pickle.Unpickler):
    """Loads only the parts of a state, because a pickle may name any function and others may write the file.

    Wrong tables for the C core are not detected: protect the checkpoint like the captures.
    """

    def find_class(self, module: str, name: str) -> Any:
        """Raise UnpicklingError for anything that is not part of a state."""
        if (module, name) not in _PARTS:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a state")
        return super().find_class(module, name)


def _publish(aside: Path, path: Path) -> None:
    """Sync a file to disk, then rename it."""
    with aside.open("rb") as file:
        os.fsync(file.fileno())
    aside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
