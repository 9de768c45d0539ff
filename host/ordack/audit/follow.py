"""The audit of a folder in which captures keep arriving, across interruptions (`ordack audit --follow`).

    follower = Follower(Path("/captures"), Path("/var/lib/audit"))
    for step, result in follower.reports(once=True):
        print(result.summary)

Files are read in steps, in the order of their first frames. Each step leaves its state on disk: the files that were
read, decoder and auditor with all their streams. After a kill, the step is done again from the state before it.

A file that comes late, or has grown since it was read, belongs in front of others that were read. Then an earlier state
is taken, or none, and the others are read again: the result is always that of one `ordack audit` over all the files. If
one that must be read again is gone, the late file is left out, and every verdict that depends on it is unknown.
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

MARK = "follow.json"  # in the checkpoint: what it is for
STATE_FORMAT = 1  # of states, but for the structures of C
STEP_BYTES = 1 << 30  # of files in a step, if it is more than one: what is read again after a kill
SETTLED_S = 5.0  # a file that has not changed for so long is taken for complete
POLL_S = 1
ENDED_S = 3600.0  # of the captures' time: a connection that has ended is forgotten so long after its last packet
QUIET_S = 2 * 86400.0  # and one that has not, as of a board that lost its power
WINDOW_S = WINDOW_NS / 1e9
STATES_KEPT = 4


class FollowError(Exception):
    """The folder or the checkpoint cannot be used; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class File:
    """A capture. size: of what was read. time: of its first frame, s since 1970. missed: it came too late. last: the
    greatest time in it, 0 if it was never read."""

    path: str
    size: int
    time: float
    missed: bool = False
    last: float = field(default=0.0, compare=False)

    @property
    def place(self) -> tuple[float, str]:
        """What files are ordered by, here and in `columnar.in_order`."""
        return self.time, self.path


@dataclass(slots=True)
class State:
    """How far the audit is. step: from 1, 0 before the first one. files: that were read, in order. missed: (path, why)
    of those that were not."""

    step: int
    files: list[File]
    decoder: columnar.Decoder
    auditor: replay.Auditor
    missed: list[tuple[str, str]]

    def read(self, files: Sequence[File]) -> None:
        """Take the next files."""
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
        """What the audit says if the capture ends here. Nothing can be read afterwards. Raises CaptureUnusable."""
        self._feed(finish=True)
        result = tasks.result_of(self.decoder.paths, [self.auditor.partial()])
        result.add_damages(self.missed)
        return result

    def _feed(self, finish: bool = False, hold: bool = True) -> None:
        batches = self.decoder.batches(replay.BATCH_ROWS, replay.COLUMNS, finish=finish, hold=hold)
        self.auditor.take(batches)


class Follower:
    """The audit of one folder, and its checkpoint: a folder for this alone, made if it is not there.

    settled: seconds. step_bytes: see STEP_BYTES. Raises FollowError, OSError.
    """

    def __init__(
        self, folder: Path, checkpoint: Path, settled: float = SETTLED_S, step_bytes: int = STEP_BYTES
    ) -> None:
        if not folder.is_dir():
            raise FollowError(f"there is no folder {folder}")
        self.folder, self.checkpoint = folder.absolute(), checkpoint.absolute()
        self.settled, self.step_bytes = settled, step_bytes
        self.passed_over: set[str] = set()  # what is no capture
        self._first_times: dict[tuple[str, int], float] = {}
        self._lasts: dict[str, float] = {}  # of files that were read once
        self._claim(checkpoint)

    def _claim(self, named: Path) -> None:
        """Mark the checkpoint, before anything else is in it. Raises FollowError if it is none, or another folder's."""
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
        """A file that is to be kept open while this process works on the checkpoint. Raises FollowError."""
        file = (self.checkpoint / "lock").open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise FollowError(f"another process works on the checkpoint {self.checkpoint}") from None
        return file

    def going_on(self) -> str:
        """Where an earlier process has come to, if there was one; else ""."""
        number = max(self._steps(), default=0)
        if not number:
            return ""
        files = count_text(len(self._files(number)[1]), "file")
        return f"going on in {self.checkpoint} behind step {number}: {files} read"

    def reports(self, once: bool, stop: Callable[[], bool] = lambda: False) -> Iterator[tuple[int, AuditResult]]:
        """Do what there is to do in this process; the step and what it shows, whenever nothing more waits and at the
        end. once: only with the files that are there now, complete or not; else until `stop` says so. Raises
        CaptureUnusable if there is nothing to say at the end of `once`.
        """
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
        """Nothing while other captures may come, if none so far has a frame of ours."""
        try:
            yield step, self._load(step).result()
        except tasks.CaptureUnusable:
            if once:
                raise

    # ---- what there is to do

    def present(self) -> list[File]:
        """The captures in the folder that are complete, as far as one can tell."""
        found, now = [], time.time()
        for entry in sorted(os.scandir(self.folder), key=lambda entry: entry.name):
            try:
                if entry.name.startswith(".") or not entry.is_file():
                    continue
                size, changed = entry.stat().st_size, entry.stat().st_mtime
                if 0 <= now - changed < self.settled:  # in the future: by the clock of another machine
                    continue
                first = self._first_time(entry.path, size)
            except FileNotFoundError:
                continue  # the capturing program has removed it just now
            if first is not None:
                found.append(File(entry.path, size, first))
        return sorted(found, key=lambda file: file.place)

    def _first_time(self, path: str, size: int) -> float | None:
        """None: it is no capture, or has no frame yet."""
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
        """From which state to read which files next, and how many files wait behind them. None: nothing waits."""
        known = {file.path: file for file in state.files}
        gone = {(file.time, file.size) for file in state.files if not Path(file.path).exists()}
        new = {file.path: file for file in present if file.path not in known or file.size != known[file.path].size}
        # Those that only have another name now, or are packed beside what they were made of, were read.
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
            # Cannot go back: what is late is left out, and said to be missing.
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
        """The latest state in which only the first of these files were read, in this order."""
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
        """Can the first of these files be read without the others, which begin later?"""
        last = max((self._lasts.get(file.path, 0.0) for file in files[:count]), default=0.0)
        return count == len(files) or last - WINDOW_S <= files[count].time

    # ---- states on disk: layout and files as JSON behind its length, and a pickle; packed

    def _path(self, step: int) -> Path:
        return self.checkpoint / f"state-{step:010}"

    def _steps(self) -> list[int]:
        return [int(path.name.removeprefix("state-")) for path in self.checkpoint.glob("state-*")]

    def _fresh(self, files: Sequence[File]) -> State:
        start = replay.start_of([file.path for file in files if Path(file.path).exists()])
        return State(0, [], columnar.Decoder([]), replay.Auditor(start), [])

    def _latest(self) -> State:
        """The last state; a new one if it is of another version and all its files are there."""
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
        """Is a state of this version, and which files were read."""
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
    """Is this another file, packed?"""
    return any(
        file.path.endswith(suffix)
        and file.path.removesuffix(suffix) in known
        and known[file.path.removesuffix(suffix)].time == file.time
        for suffix in SUFFIXES
    )


def _layout() -> str:
    """Tells states of this version from those of others, whose structures in C may differ."""
    types = {name: ffi.typeof(name) for name in ffi.list_types()[0]}
    said = [
        (name, [(field, item.offset, str(item.type)) for field, item in kind.fields])
        for name, kind in types.items()
        if kind.kind == "struct" and kind.fields
    ]
    return hashlib.sha256(repr((STATE_FORMAT, sorted(said))).encode()).hexdigest()[:12]


def _named(part: Any) -> tuple[str, str]:
    return part.__module__, part.__qualname__


# The parts of a state. numpy names the functions that make arrays differently from version to version: one for arrays
# that are a piece of memory, one for others.
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
    """Makes nothing but the parts of a state: a pickle may name any function, and others may write there.

    It does not help against wrong tables for the C core: protect the checkpoint as what it audits.
    """

    def find_class(self, module: str, name: str) -> Any:
        """Raises UnpicklingError for what is no part of a state."""
        if (module, name) not in _PARTS:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a state")
        return super().find_class(module, name)


def _publish(aside: Path, path: Path) -> None:
    """Give a file its name when it is on disk."""
    with aside.open("rb") as file:
        os.fsync(file.fileno())
    aside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
