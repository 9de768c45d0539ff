"""The audit of a folder in which captures keep arriving, across interruptions (`ordack audit --follow`).

    follower = Follower(Path("/captures"), Path("/var/lib/audit"))
    for step in follower.steps(once=True):
        print(follower.result(step).summary)

Files are read in steps. A step starts from the state that an earlier step left, reads more files in the order of their
first frames, and leaves a new state: decoder and auditor with all their streams. A step is written down once, before it
is done; after a kill it is done again from the same state. One process does all of it: one core replays more than
capture points write.

A file that comes late, or has grown since it was read, belongs in front of others that were read. The next step then
goes back to a state from before its place, so the result is always that of one `ordack audit` over all the files. If
what must be read again is gone, the file is left out, and every verdict that depends on it is unknown. So does a file
that overlaps with others that were read, as those of a tap: a state holds back the frames of its last two seconds, so
that a little does no harm.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from _mqqb import ffi

from ordack.audit import replay, tasks
from ordack.audit.result import Result, count_text
from ordack.capture import columnar, reading
from ordack.capture.merging import WINDOW_NS
from ordack.capture.packed import SUFFIXES

MARK = "follow.json"  # in the checkpoint: what it is for
FORMAT = 1  # of checkpoints, but for the states
STATE_FORMAT = 9  # of what is not in structures of C: modules and names of its classes too
STEP_BYTES = 1 << 30  # of files in a step, if it is more than one: what is read again after a kill
SETTLED_S = 5.0  # a file that has not changed for so long is taken for complete
POLL_S = 1
ENDED_S = 3600.0  # of the captures' time: a connection that has ended is forgotten so long after its last packet
QUIET_S = 2 * 86400.0  # and one that has not, as of a board that lost its power
WINDOW_S = WINDOW_NS / 1e9
STATES_KEPT = 4  # the last ones; of older ones ever fewer


class FollowError(Exception):
    """The folder or the checkpoint cannot be used; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class File:
    """A capture. size: of what was read. time: of its first frame, s since 1970. missed: it came too late. last: the
    greatest time in it, if it was read."""

    path: str
    size: int
    time: float
    missed: bool = False
    last: float = field(default=0.0, compare=False)

    @property
    def place(self) -> tuple[float, str]:
        """What files are ordered by, here and in `columnar.in_order`."""
        return self.time, self.path


@dataclass(frozen=True, slots=True)
class Step:
    """number: from 1. origin: the step from whose state it goes on; 0: from nothing. behind: how many files were
    waiting besides these when this was decided.
    """

    number: int
    origin: int
    files: tuple[File, ...]
    behind: int


@dataclass(slots=True)
class State:
    """How far the audit is. missed: (path, why) of files that were not read."""

    decoder: columnar.Decoder
    auditor: replay.Auditor
    missed: list[tuple[str, str]]

    def read(self, files: Sequence[File]) -> int:
        """Take the next files; how many packets they have."""
        packets = 0
        for file in files:
            if not file.missed and Path(file.path).exists():
                self.decoder.paths.append(file.path)
                continue
            late = "came when what follows it had been read, and was there no more"
            self.missed.append((file.path, late if file.missed else "was removed before it was read"))
            packets += self.feed(hold=False)
            self.auditor.interrupt()
        return packets + self.feed()

    def feed(self, finish: bool = False, hold: bool = True) -> int:
        """What the decoder has to say now; how many packets."""
        packets = 0
        for batch in columnar.read_on(self.decoder, replay.BATCH_ROWS, replay.COLUMNS, finish, hold=hold):
            self.auditor.feed(batch)
            packets += int(np.count_nonzero(batch["kind"] < reading.HOLE))
        return packets


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
        self._states = self.checkpoint / f"states-{_layout()}"
        mark = {"format": FORMAT, "folder": str(self.folder)}
        found = self._claim(checkpoint, mark)
        for made in (self._states, self.checkpoint / "steps", self.checkpoint / "done"):
            made.mkdir(exist_ok=True)
        if found != mark:
            raise FollowError(
                f"{checkpoint} is the checkpoint for the folder {found['folder']} in format "
                f"{found['format']}; take another one for {folder}"
            )
        self.passed_over: set[str] = set()  # what is no capture
        self._first_times: dict[tuple[str, int], float] = {}
        self._order: tuple[int, list[File]] = 0, []  # behind the last step that was asked for

    def _claim(self, named: Path, mark: dict[str, Any]) -> dict[str, Any]:
        """What the checkpoint is marked with: before anything else is in it. Raises FollowError if it is none."""
        path = self.checkpoint / MARK
        try:
            self.checkpoint.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise FollowError(f"the checkpoint {named} is no folder, or is below a file: name a folder") from None
        if self.checkpoint.samefile(self.folder):
            raise FollowError(f"the checkpoint {named} is the folder of the captures, where others write: name another")
        foreign = any(not entry.name.startswith(f".{MARK}") for entry in self.checkpoint.iterdir())
        if foreign and not path.exists():  # looked for last: another process may be making it
            raise FollowError(
                f"{named} holds other files, and is no checkpoint of this command: name a new or empty folder"
            )
        _write_once(path, json.dumps(mark).encode())
        try:
            found: dict[str, Any] = json.loads(path.read_bytes())
            if not {"folder", "format"} <= found.keys():
                raise KeyError
        except (ValueError, KeyError, AttributeError):
            raise FollowError(f"{path} does not say what the checkpoint {named} is for: name a new folder") from None
        return found

    def going_on(self) -> str:
        """Where an earlier process has come to, if there was one; else ""."""
        number = self.last_done()
        begun = (self.checkpoint / "steps" / f"{number + 1:010}.json").exists()
        if not number and not begun:
            return ""
        said = f"going on in {self.checkpoint} behind step {number}: {count_text(len(self.order(number)), 'file')} read"
        if begun:
            files = count_text(len(self.step(number + 1).files), "file")
            said += f"; step {number + 1} with {files} was begun and is done again"
        return said

    def reports(self, once: bool, stop: Callable[[], bool] = lambda: False) -> Iterator[tuple[Step, Result]]:
        """Do what there is to do, and say what it shows whenever nothing more waits and at the end; see `steps`. Raises
        CaptureUnusable if there is nothing to say at the end of `once`.
        """
        told = 0
        for step in self.steps(once, stop):
            if not step.behind:
                told = step.number
                yield from self._report(step.number, once)
        number = self.last_done()
        if told < number:
            yield from self._report(number, once)
        elif once and not number:
            raise tasks.CaptureUnusable(f"there is no capture with a frame in {self.folder}")

    def _report(self, number: int, once: bool) -> Iterator[tuple[Step, Result]]:
        """Nothing while other captures may come, if none so far has a frame of ours."""
        try:
            result = self.result(number)
        except tasks.CaptureUnusable:
            if once:
                raise
            return
        yield self.step(number), result

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

    def plan(self, after: int, target: Sequence[File] | None = None) -> Step | None:
        """The step behind this one, which is done: as it was decided before, or now, once and for all.

        None: there is nothing to do. target: only these files count.
        """
        number = after + 1
        path = self.checkpoint / "steps" / f"{number:010}.json"
        if not path.exists():
            step = self._decide(number, self.present() if target is None else target)
            if step is None:
                return None
            self._tidy(after, step.origin)
            _write_once(
                path,
                json.dumps(
                    {
                        "origin": step.origin,
                        "behind": step.behind,
                        "files": [[file.path, file.size, file.time, file.missed] for file in step.files],
                    }
                ).encode(),
            )
        return self.step(number)

    def step(self, number: int) -> Step:
        """One that has been decided."""
        found = json.loads((self.checkpoint / "steps" / f"{number:010}.json").read_bytes())
        return Step(number, found["origin"], tuple(File(*file) for file in found["files"]), found["behind"])

    def order(self, number: int) -> list[File]:
        """All files behind this step, as they were read."""
        found: list[tuple[File, ...]] = []
        begin = number
        while begin and begin != self._order[0]:
            step = self.step(begin)
            lasts = (self.done(begin) or {}).get("lasts", {})
            found.append(tuple(replace(file, last=lasts.get(file.path, file.time)) for file in step.files))
            begin = step.origin
        files = [*(self._order[1] if begin else ()), *(file for files in reversed(found) for file in files)]
        if not self._order[0] or begin:
            self._order = number, files
        return files

    def _decide(self, number: int, present: Sequence[File]) -> Step | None:
        before = self.order(number - 1)
        known = {file.path: file for file in before}
        new = {file.path: file for file in present if file.path not in known or file.size != known[file.path].size}
        if new:  # those that only have another name now, or are packed beside what they were made of, were read
            gone = {(file.time, file.size) for file in before if not Path(file.path).exists()}
            new = {
                path: file
                for path, file in new.items()
                if path in known or ((file.time, file.size) not in gone and not _was_packed(file, {**known, **new}))
            }
        whole = number == 1 or self._state(number - 1).exists()  # not if another version has written it
        if not new and whole:
            return None
        read = [file for file in before if not file.missed]
        wanted = sorted([*(file for file in read if file.path not in new), *new.values()], key=lambda file: file.place)
        same = next((at for at, (one, other) in enumerate(zip(read, wanted)) if one != other), len(read))
        while not _follow_on(wanted, same):
            same -= 1
        origin, prefix = number - 1, before
        if same < len(read) or not whole:
            origin, prefix = self._origin(number - 1, wanted, same)
        rest = wanted[len([file for file in prefix if not file.missed]) :]
        lost = [file for file in rest if not Path(file.path).exists()]
        if lost and not whole:
            raise FollowError(
                f"the checkpoint {self.checkpoint} is of another version of ordack, and {lost[0].path} "
                "is no more there to be read again: begin a new one"
            )
        if lost:  # cannot go back: what is late is left out, and said to be missing
            begin = max(file.last for file in read) - WINDOW_S
            late = {file.path for file in new.values() if file.time < begin}
            origin = number - 1
            rest = [File(file.path, file.size, file.time, file.path in late) for file in new.values()]
            rest.sort(key=lambda file: (not file.missed, file.place))
        taken: list[File] = []
        total = 0
        for file in rest:
            total += 0 if file.missed else file.size
            if taken and total > self.step_bytes and _follow_on(rest, len(taken)):
                break
            taken.append(file)
        return Step(number, origin, tuple(taken), len(rest) - len(taken))

    def _origin(self, number: int, wanted: Sequence[File], most: int) -> tuple[int, list[File]]:
        """The latest step whose state is kept, behind which only the first of these files were read in this order, so
        many at most; its files."""
        while number:
            order = self.order(number)
            read = [file for file in order if not file.missed]
            is_prefix = len(read) == len(order) <= most and read == list(wanted[: len(read)])
            if is_prefix and _follow_on(wanted, len(read)) and self._state(number).exists():
                return number, order
            number = self.step(number).origin
        return 0, []

    # ---- doing it

    def _state(self, number: int) -> Path:
        return self._states / f"{number:010}"

    def done(self, number: int) -> dict[str, Any] | None:
        """{"packets": read in this step, "seconds": taken for it, "lasts": {path: File.last}}, if it is done."""
        path = self.checkpoint / "done" / f"{number:010}.json"
        return json.loads(path.read_bytes()) if path.exists() else None

    def last_done(self) -> int:
        """The highest step that is done."""
        return max((int(path.stem) for path in (self.checkpoint / "done").glob("*.json")), default=0)

    def run(self, step: Step) -> dict[str, Any]:
        """Do a step whose origin is done, if it is not; what `done` says."""
        found = self.done(step.number)
        if found is not None:
            return found
        begin = time.monotonic()
        live = _live.get(self._state(step.origin))
        _live.clear()
        state = live or self._load(step)
        packets = state.read(step.files)
        state.auditor.forget(ENDED_S, QUIET_S)
        aside = self._state(step.number).with_name(f".{step.number:010}-{os.getpid()}")
        with pa.CompressedOutputStream(str(aside), "lz4") as target:
            pickle.dump(state, target, pickle.HIGHEST_PROTOCOL)
        _publish(aside, self._state(step.number))
        _live[self._state(step.number)] = state
        lasts = {state.decoder.paths[number]: latest / 1e9 for number, (_, latest) in state.decoder.spans.items()}
        said = {"packets": packets, "seconds": round(time.monotonic() - begin, 3), "lasts": lasts}
        _write_once(self.checkpoint / "done" / f"{step.number:010}.json", json.dumps(said).encode())
        return said

    def _load(self, step: Step) -> State:
        if step.origin:
            return self._read(step.origin)
        start = replay.start_of([file.path for file in step.files if Path(file.path).exists()])
        return State(columnar.Decoder([], 0, 1, False), replay.Auditor(start), [])

    def _read(self, number: int) -> State:
        try:
            with pa.CompressedInputStream(str(self._state(number)), "lz4") as file:
                state: State = _Unpickler(file).load()
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise FollowError(
                f"the checkpoint {self.checkpoint} is damaged: the state behind step {number} cannot be "
                f"read, {error}; begin a new one"
            ) from None
        return state

    def _tidy(self, number: int, origin: int) -> None:
        """Remove the states that nobody will go back to: the older, the fewer are kept."""
        for path in self._states.iterdir():
            if path.name.startswith("."):
                path.unlink(missing_ok=True)  # of a process that was killed
            else:
                own = int(path.name)
                if own not in (number, origin) and number - own >= STATES_KEPT * (own & -own):
                    path.unlink(missing_ok=True)

    def result(self, number: int) -> Result:
        """What the audit says behind this step, as if the capture ended there."""
        state = self._read(number)
        state.feed(finish=True)
        result = tasks.result_of(state.decoder.paths, [state.auditor.partial()])
        result.add_damages(state.missed)
        return result

    def steps(self, once: bool, stop: Callable[[], bool] = lambda: False) -> Iterator[Step]:
        """Do what there is to do, in this process; each step when it is done. once: only with the files that are there
        now, complete or not; else until `stop` says so."""
        if once:
            self.settled = 0.0
        target = self.present() if once else None
        number = self.last_done() + 1
        while not stop():
            step = self.plan(number - 1, target)
            if step is not None:
                self.run(step)
                yield step
                number += 1
            elif once:
                return
            else:
                time.sleep(POLL_S)

    def lock(self) -> Any:
        """A file that is to be kept open while this process works on the checkpoint. Raises FollowError."""
        file = (self.checkpoint / "lock").open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise FollowError(f"another process works on the checkpoint {self.checkpoint}") from None
        return file


def _follow_on(files: Sequence[File], count: int) -> bool:
    """Whether the first ones of these files can be read without the others, which begin later."""
    last = max((file.last for file in files[:count]), default=0.0)
    return count == len(files) or last - WINDOW_S <= files[count].time


def _was_packed(file: File, known: Mapping[str, File]) -> bool:
    """Whether this is another file, packed."""
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


# What a state consists of. numpy names the functions that make arrays differently from version to version: one for
# arrays that are a piece of memory, one for others.
_PARTS = {
    _named(part)
    for part in (
        State,
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

    Against who writes wrong tables for the C core it does not help: the checkpoint is to be kept as what it audits is.
    """

    def find_class(self, module: str, name: str) -> Any:
        """Raises UnpicklingError for what is no part of a state."""
        if (module, name) not in _PARTS:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a state")
        return super().find_class(module, name)


# The state that this process has left behind its last step: what reads it need not.
_live: dict[Path, State] = {}


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


def _write_once(path: Path, data: bytes) -> None:
    """Make a file, whole, unless it is there."""
    if path.exists():
        return
    aside = path.with_name(f".{path.name}-{os.getpid()}")
    aside.write_bytes(data)
    try:
        with aside.open("rb") as file:
            os.fsync(file.fileno())
        os.link(aside, path)
    except FileExistsError:
        pass  # somebody else was first: that holds
    finally:
        aside.unlink()
