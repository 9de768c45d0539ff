"""Replay every transactional stream of a capture by the receiver's rule, in C, and report what that shows.

    result = run(["a.pcap", "b.pcap"])              # in this process
    result = run(paths, spark=session(master))      # in Spark's tasks

What the result says, and when, is in result. With Spark, a task takes the connections of a share of the hosts,
opens the files itself, and returns one report for each of its streams. Streams of which two tasks saw something (a
sender with a new address, an acknowledgement through another host) are settled afterwards: their connections are read
once more, all in one place, in order.
"""

from __future__ import annotations

import os
import pickle
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from functools import partial as partial_function
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from _mqqb import ffi, lib
from mqqb import core
from mqqb.guid_names import PrivateQueueFormatNameId
from mqqb.guids import format_name, guid_text
from numpy.typing import NDArray

from ordack.audit.result import (
    KINDS,
    OUTCOMES,
    REJECTS,
    ConnectionReport,
    Event,
    Latency,
    Packet,
    Result,
    SenderReport,
    SequenceId,
    SequenceReport,
    Series,
    StreamKey,
    StreamReport,
    Unknown,
    Violation,
    count_text,
)
from ordack.audit.rotation import missing_between
from ordack.capture import columnar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LATENCIES = ("session", "order", "final")
COLUMNS = (*columnar.SCAN_COLUMNS, *columnar.PLACE_COLUMNS, "queue_manager_address", "client_guid", "server_guid")
BATCH_ROWS = 8192  # what a batch's columns take stays in the processor's second cache
FILES_NAMED = 3  # in a complaint
FINDINGS_MAX = 1000  # of a kind, for a stream
CONNECTIONS_MAX = 10_000
SERIES_STREAMS = 12
SERIES_POINTS = 4000
_ACK_RECEIVE = 0x4000
_LINE = 64  # bytes of the processor's cache lines

_FREED = np.uint32(0xFFFFFFFF)  # pair of a connection that is not looked at

Progress = Callable[[int], None]
Wanted = Callable[[tuple[str, str]], bool]
Structure = NDArray[Any]


class CaptureUnusable(Exception):
    """Nothing of the input can be audited; the text names the file and says why."""


# ---- one task -----------------------------------------------------------------------------------


@cache
def _dtype(name: str) -> np.dtype[Any]:
    """The numpy type of a structure of mqqb_audit.h."""
    return _numpy(ffi.typeof(name))


def _numpy(kind: Any) -> np.dtype[Any]:
    if kind.kind == "primitive":
        return np.dtype(("i" if kind.cname.startswith("int") else "u") + str(ffi.sizeof(kind)))
    if kind.kind == "array":
        return np.dtype((_numpy(kind.item), (kind.length,)))
    fields = dict(kind.fields)
    return np.dtype(
        {
            "names": list(fields),
            "formats": [_numpy(item.type) for item in fields.values()],
            "offsets": [item.offset for item in fields.values()],
            "itemsize": ffi.sizeof(kind),
        }
    )


@dataclass(frozen=True, slots=True)
class StreamName:
    """What names a stream in every task: GUID of the source, queue as (selector, bytes), GUID of its host or b"",
    hops."""

    source: bytes
    queue: tuple[int, bytes]
    host: bytes
    hops: int


@dataclass(slots=True)
class Partial:
    """What a task has found out. flows, sequences, connections, findings: structures of mqqb_audit.h.

    names, ends: of flows and connections. guids: by code. missed: by code, how often something of that queue manager
    was missed; pair_missed: the same by hosts, two for each of pairs. strays: (GUID or b"", ordinal, time stamp) of
    acknowledgements of sequences that this task has not seen.
    """

    flows: Structure
    sequences: Structure
    connections: Structure
    findings: Structure
    names: list[StreamName]
    texts: dict[tuple[int, bytes], str]
    ends: list[tuple[tuple[str, str], bool]]
    guids: list[bytes]
    missed: NDArray[np.uint32]
    pairs: list[tuple[str, str]]
    pair_missed: NDArray[np.uint32]
    strays: set[tuple[bytes, int, int]]
    kind_counts: NDArray[np.int64]
    packets: int
    holes: int
    malformed: int
    frames: int
    unread: int
    last_time: int
    paths: list[str]
    damages: list[tuple[str, str]]
    gaps: list[tuple[str, str]]
    suppressed: int = 0


class _Tables:
    """The memory of a mqqb_audit."""

    def __init__(self, start: int, strays: bool) -> None:
        self.c = ffi.new("mqqb_audit *")
        self.c.start = start
        self._held: dict[str, NDArray[Any]] = {}
        self._kinds: dict[str, str] = {}
        for name, kind, size in (
            ("sources", "mqqb_audit_source", 1 << 12),
            ("pairs", "mqqb_audit_pair", 1 << 12),
            ("connections", "mqqb_audit_connection", 1 << 12),
            ("flows", "mqqb_audit_flow", 1 << 10),
            ("sequences", "mqqb_audit_sequence", 1 << 11),
            ("slots", "mqqb_audit_slot", 1 << 20),
            ("sent", "mqqb_audit_sent", 1 << 15),
            ("findings", "mqqb_audit_finding", 1 << 14),
        ):
            self.grow(name, kind, size)
        if strays:
            self.grow("strays", "mqqb_audit_stray", 1 << 12)
        self._index()

    def __getstate__(self) -> dict[str, Any]:
        c, used = self.c, {"findings": 0, "strays": 0}  # Auditor takes these out
        used |= {name: int(getattr(c, f"{name}_used")) for name in ("flows", "sequences", "slots", "sent")}
        return {
            "c": bytes(ffi.buffer(c)),
            "tables": [
                (name, kind, len(self._held[name]), self._held[name][: used.get(name)])
                for name, kind in self._kinds.items()
            ],
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.c = ffi.new("mqqb_audit *")
        ffi.memmove(self.c, state["c"], ffi.sizeof("mqqb_audit"))
        self._held, self._kinds = {name: array for name, _, _, array in state["tables"]}, {}
        for name, kind, size, _ in state["tables"]:
            self.grow(name, kind, size)
        self.rehash()

    def grow(self, name: str, kind: str, size: int) -> None:
        self._kinds[name] = kind
        item = _dtype(kind).itemsize
        memory = np.zeros(size * item + _LINE, np.uint8)
        begin = -memory.ctypes.data % _LINE
        array = memory[begin : begin + size * item].view(_dtype(kind))
        before = self._held.get(name)
        if before is not None:
            array.view(np.uint8)[: before.nbytes] = before.view(np.uint8)
        self._held[name] = array
        setattr(self.c, name, ffi.from_buffer(f"{kind}[]", array))
        if name != "pairs":
            setattr(self.c, f"{name}_size", size)

    def double(self, name: str, kind: str) -> None:
        self.grow(name, kind, 2 * len(self._held[name]))

    def _index(self) -> None:
        for name, size in (("flow", self.c.flows_size), ("sequence", self.c.sequences_size)):
            index = self._held[f"{name}_index"] = np.zeros(2 * size, np.uint32)
            setattr(self.c, f"{name}_index", ffi.from_buffer("uint32_t[]", index))
            setattr(self.c, f"{name}_index_size", 2 * size)

    def rehash(self) -> None:
        self._index()
        lib.mqqb_audit_rehash(self.c)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._held[name]


_GROWTH = {
    lib.MQQB_AUDIT_GROW_CONNECTIONS: ("connections", "mqqb_audit_connection"),
    lib.MQQB_AUDIT_GROW_SOURCES: ("sources", "mqqb_audit_source"),
    lib.MQQB_AUDIT_GROW_FLOWS: ("flows", "mqqb_audit_flow"),
    lib.MQQB_AUDIT_GROW_SEQUENCES: ("sequences", "mqqb_audit_sequence"),
    lib.MQQB_AUDIT_GROW_SLOTS: ("slots", "mqqb_audit_slot"),
    lib.MQQB_AUDIT_GROW_SENT: ("sent", "mqqb_audit_sent"),
}


def host_of(end: str) -> str:
    """The address of an end of a connection."""
    return end.rpartition(":")[0]


class Auditor:
    """Takes batches in order; `partial` says what they show.

    start: of the capture, ns since 1970. strays: keep acknowledgements of sequences that are not seen, for another
    task. wanted: which connections to look at, by their ends; None: all. gaps: (path, text) of files whose numbers show
    that others before them are missing. verdicts: of the last batch's rows, if asked for: MQQB_AUDIT_MESSAGE and so on.
    """

    verdicts: NDArray[np.uint8] | None = None

    def __init__(self, start: int, strays: bool = False, wanted: Wanted | None = None, verdicts: bool = False) -> None:
        self._tables = _Tables(start, strays)
        self._wanted = wanted
        self._pairs: dict[tuple[str, str], int] = {}
        self._ends: list[tuple[tuple[str, str], bool]] = []
        self._findings: list[Structure] = []
        self._seen: Counter[tuple[int, int, int]] = Counter()
        self._suppressed = 0
        self._strays: set[tuple[int, int, int]] = set()
        self._damages = 0
        self._files = 1  # whose names were compared with the one before
        self._verdicts = verdicts
        self.gaps: list[tuple[str, str]] = []
        self._interrupted: list[int] = []  # files of which something is missing, and nothing of a later one was seen
        self._decoder: columnar.Decoder | None = None
        self._done = ffi.new("uint32_t *")
        self.last_time = start

    def __getstate__(self) -> dict[str, Any]:
        """To go on elsewhere, with the same decoder: pickle both together."""
        self._take()
        return {name: value for name, value in vars(self).items() if name != "_done"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _done=ffi.new("uint32_t *"))

    def feed(self, batch: columnar.Batch) -> None:
        """The next rows of the capture."""
        self._decoder = batch.decoder
        self._connect(batch.decoder)
        if not batch.rows:
            return
        if self._verdicts:
            self.verdicts = np.zeros(batch.rows, np.uint8)
            self._tables.c.verdicts = ffi.from_buffer("uint8_t[]", self.verdicts)
        begin = 0
        damaged = batch.decoder.damages[self._damages :]
        self._damages += len(damaged)
        marks = [
            *self._interrupted,
            *(batch.decoder.paths.index(damage.path) for damage in damaged),
            *self._missing(batch),
        ]
        self._interrupted = []
        for number in sorted(set(marks)):
            # What follows in this file is missing: from the first row of a later one on, everything may have been.
            later = np.flatnonzero(batch["file"] > number)
            if len(later):
                self._rows(batch, begin, int(later[0]))
                begin = int(later[0])
                lib.mqqb_audit_interrupted(self._tables.c, int(batch.time[begin]))
            else:
                self._interrupted.append(number)
        self._rows(batch, begin, batch.rows)
        self.last_time = max(self.last_time, int(batch.time[: batch.rows].max()))

    def _missing(self, batch: columnar.Batch) -> Iterator[int]:
        """Files behind which others are missing, by names and times: of those that this batch has reached."""
        paths, spans = batch.decoder.paths, batch.decoder.spans
        last = int(batch["file"].max())
        for number in range(self._files, last + 1):
            if number - 1 not in spans or number not in spans:
                continue  # has no frame
            missing = missing_between(paths[number - 1], spans[number - 1], paths[number], spans[number])
            if missing:
                name, verb = Path(paths[number - 1]).name, "is" if missing == 1 else "are"
                self.gaps.append(
                    (
                        paths[number],
                        f"by their numbers, {count_text(missing, 'file')} between {name} and this one {verb} missing",
                    )
                )
                yield number - 1
        self._files = max(self._files, last + 1)

    def _rows(self, batch: columnar.Batch, begin: int, end: int) -> None:
        tables, done = self._tables, self._done
        done[0] = begin
        while True:
            status = lib.mqqb_audit_rows(tables.c, batch.pointers, end, done)
            if status == lib.MQQB_AUDIT_DONE:
                return
            if status == lib.MQQB_AUDIT_FINDINGS_FULL:
                self._take()
                continue
            tables.double(*_GROWTH[status])
            if status in (lib.MQQB_AUDIT_GROW_FLOWS, lib.MQQB_AUDIT_GROW_SEQUENCES):
                tables.rehash()
            elif status == lib.MQQB_AUDIT_GROW_CONNECTIONS:
                self._connect(batch.decoder)

    def _connect(self, decoder: columnar.Decoder) -> None:
        """Which two hosts each new connection is of."""
        known = len(self._ends)
        if decoder.connections == known:
            return
        while len(self._tables["connections"]) < decoder.connections:
            self._tables.double("connections", "mqqb_audit_connection")
        pairs = self._tables["connections"]["pair"]
        for number in range(known, decoder.connections):
            ends, syn = decoder.connection(number)
            self._ends.append((ends, syn))
            hosts = host_of(ends[0]), host_of(ends[1])
            turned = hosts[0] > hosts[1]
            pair = self._pairs.setdefault((hosts[1], hosts[0]) if turned else hosts, len(self._pairs))
            pairs[number] = 2 * pair + turned if self._wanted is None or self._wanted(ends) else _FREED
        while len(self._tables["pairs"]) < 2 * len(self._pairs):
            self._tables.double("pairs", "mqqb_audit_pair")

    def _take(self) -> None:
        """Move findings and strays out of C's tables."""
        c = self._tables.c
        found = self._tables["findings"][: c.findings_used]
        keep = np.ones(len(found), bool)
        for row, key in enumerate(zip(found["flow"].tolist(), found["kind"].tolist(), found["unknown"].tolist())):
            if found["detail"][row] < lib.MQQB_AUDIT_LATE_CONNECTION:
                self._seen[key] += 1
                keep[row] = self._seen[key] <= FINDINGS_MAX
        self._suppressed += int(np.count_nonzero(~keep))
        if len(found):
            self._findings.append(found[keep])
        c.findings_used = 0
        if c.strays != ffi.NULL:
            strays = self._tables["strays"][: c.strays_used]
            self._strays.update(zip(*(strays[name].tolist() for name in ("source", "ordinal", "time_stamp"))))
            c.strays_used = 0

    def interrupt(self) -> None:
        """What was captured at about this time is missing."""
        lib.mqqb_audit_interrupted(self._tables.c, self.last_time)

    def partial(self) -> Partial:
        """After the last batch."""
        decoder, tables = self._decoder, self._tables
        c = tables.c
        lib.mqqb_audit_finish(c, self.last_time)
        self._take()
        guids = [b""]
        if decoder is not None:
            guids += [decoder.queue_manager(code) for code in range(1, decoder.queue_managers + 1)]
        flows = tables["flows"][: c.flows_used].copy()
        names, texts = [], {}
        for key in flows["key"]:
            queue = decoder.queue(int(key["destination"])) if decoder and key["destination"] else None
            raw = (queue.selector, queue.raw) if queue else (0, b"")
            texts[raw] = queue.text if queue else ""
            names.append(StreamName(guids[key["source"]], raw, guids[key["address"]], int(key["hops"])))
        sequences = tables["sequences"][: c.sequences_used]
        kind_counts = np.array([list(c.violations), list(c.unknowns)], np.int64)
        findings = np.concatenate(self._findings) if self._findings else np.zeros(0, _dtype("mqqb_audit_finding"))
        findings = _withdraw(findings, flows, kind_counts, self._ends)
        return Partial(
            flows=flows,
            sequences=sequences[sequences["flow"] != 0].copy(),
            connections=tables["connections"][: len(self._ends)].copy(),
            findings=findings,
            names=names,
            texts=texts,
            ends=self._ends,
            guids=guids,
            missed=tables["sources"]["missed"]["missed"][: len(guids)].copy(),
            pairs=list(self._pairs),
            pair_missed=tables["pairs"]["missed"]["missed"][: 2 * len(self._pairs)].copy(),
            strays={(guids[source], ordinal, stamp) for source, ordinal, stamp in self._strays},
            kind_counts=kind_counts,
            packets=int(c.packets),
            holes=int(c.holes),
            malformed=int(c.malformed),
            frames=decoder.frames if decoder else 0,
            unread=decoder.unread if decoder else 0,
            last_time=self.last_time,
            paths=decoder.paths if decoder else [],
            damages=[(damage.path, damage.text) for damage in decoder.damages] if decoder else [],
            suppressed=self._suppressed,
            gaps=self.gaps,
        )


_STRAY = (lib.MQQB_AUDIT_ORDER_ACK_STRAY, lib.MQQB_AUDIT_FINAL_ACK_STRAY)
_OF_NUMBERS = (
    lib.MQQB_AUDIT_ORDER_ACK_UNSENT,
    lib.MQQB_AUDIT_ORDER_ACK_SKIPS,
    lib.MQQB_AUDIT_FINAL_ACK_UNSENT,
    lib.MQQB_AUDIT_FINAL_ACK_SKIPS,
    lib.MQQB_AUDIT_FINAL_ACK_OTHER,
    *_STRAY,
)
_OF_COUNTS = (lib.MQQB_AUDIT_SESSION_ACK, lib.MQQB_AUDIT_RECOVERABLE_ACK)


def _withdraw(
    findings: Structure, flows: Structure, kind_counts: NDArray[np.int64], ends: Sequence[tuple[tuple[str, str], bool]]
) -> Structure:
    """What was found too early becomes unknown; counts follow. Returns the findings, without the marks that tell so."""
    late = findings["detail"] >= lib.MQQB_AUDIT_LATE_CONNECTION
    times = findings["packet"]["time"][np.arange(len(findings)), findings["packets"].astype(np.int64) - 1]
    of_numbers = np.isin(findings["detail"], _OF_NUMBERS)
    of_counts = np.isin(findings["detail"], _OF_COUNTS)
    accepted = findings["detail"] == lib.MQQB_AUDIT_TWO_ACCEPTED  # depends on what the receiver sent, too
    sources = flows["key"]["source"][np.maximum(findings["flow"].astype(np.int64) - 1, 0)] if len(flows) else None
    for mark in np.flatnonzero(late).tolist():
        found = findings[mark]
        if found["detail"] == lib.MQQB_AUDIT_LATE_REJECT:
            late |= _rejected(findings, accepted & ~late, mark, flows)
            continue
        concerned = (findings["unknown"] == 0) & (times >= times[mark])
        concerned[mark:] = False
        if found["detail"] == lib.MQQB_AUDIT_LATE_CONNECTION:
            concerned &= of_counts & (findings["connection"] == found["connection"])
        elif found["detail"] == lib.MQQB_AUDIT_LATE_SOURCE and sources is not None:
            concerned &= of_numbers & (sources == found["a"]) | accepted
        else:
            hosts = set(map(host_of, ends[found["connection"]][0]))
            concerned &= of_numbers | accepted
            for row in np.flatnonzero(concerned & of_numbers).tolist():
                concerned[row] = set(map(host_of, ends[findings["connection"][row]][0])) == hosts
        for row in np.flatnonzero(concerned).tolist():
            kind, flow = findings["kind"][row], findings["flow"][row]
            findings["unknown"][row] = 1
            if flow:
                flows["violations"][flow - 1, kind] -= 1
                flows["unknowns"][flow - 1, kind] += 1
            else:
                kind_counts[:, kind] += (-1, 1)
    kept: Structure = findings[~late]
    return kept


def _rejected(findings: Structure, accepted: NDArray[np.bool_], mark: int, flows: Structure) -> NDArray[np.bool_]:
    """Which findings, that a message was accepted twice, a FinalAck that came later disproves. They are not counted."""
    found = findings[mark]
    wrong: NDArray[np.bool_] = accepted & (findings["flow"] == found["flow"]) & (findings["a"] == found["a"])
    wrong &= (findings["number"] == found["number"]) | (findings["b"] == found["number"])
    wrong[mark:] = False
    for finding in findings[wrong]:
        flows["unknowns" if finding["unknown"] else "violations"][finding["flow"] - 1, finding["kind"]] -= 1
    return wrong


def start_of(paths: Sequence[str]) -> int:
    """Time of the capture's first frame, ns since 1970; not later, by less than a microsecond."""
    first = next((time for time in map(columnar.first_time, paths) if time < float("inf")), None)
    return 0 if first is None else int(first * 1e6) * 1000 - 1000


def audit_part(
    paths: Sequence[str],
    start: int,
    part: int = 0,
    parts: int = 1,
    by_ports: bool = False,
    wanted: Wanted | None = None,
    progress: Progress | None = None,
) -> Partial:
    """One task's share. paths: in their order. progress: called with the packets of each batch."""
    auditor = Auditor(start, parts > 1, wanted)
    for batch in columnar.batches(paths, part, parts, BATCH_ROWS, COLUMNS, by_ports=by_ports, ordered=True):
        auditor.feed(batch)
        if progress is not None:
            progress(batch.rows)
    return auditor.partial()


# ---- all tasks ----------------------------------------------------------------------------------


def run(
    paths: Sequence[str | Path],
    *,
    spark: SparkSession | None = None,
    parts: int | None = None,
    series: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Audit files that are one capture together.

    spark: its tasks do it; None: this process does. parts: into how many shares the hosts are divided; by default as
    many as Spark has places, and one without Spark. series: points for plots of the streams with most trouble, which
    takes another pass. progress: called with numbers of packets as this process has done them. Raises
    CaptureUnusable, and OSError for a file that cannot be read.
    """
    files = columnar.in_order(paths)
    if not files:
        raise CaptureUnusable("there is no capture")
    start = start_of(files)
    parts = parts or (1 if spark is None else _places(spark))
    by_ports = columnar.divides_by_ports(files, parts)
    if spark is None:
        partials = [audit_part(files, start, part, parts, by_ports, progress=progress) for part in range(parts)]
    else:
        partials = _in_tasks(spark, files, start, parts, by_ports)
    result = result_of(files, partials, lambda wanted: audit_part(files, start, wanted=wanted, progress=progress))
    if series:
        result.series.extend(_series(files, result))
    return result


def _problem(path: str) -> str:
    """Why there is nothing to look at in this file."""
    decoder = columnar.Decoder([path], 0, 1, False)
    for _ in columnar.read_on(decoder, BATCH_ROWS, COLUMNS, finish=True):
        pass
    why = [damage.text for damage in decoder.damages]
    if decoder.unread:
        why.append(f"{count_text(decoder.unread, 'frame')} of a link type that is not supported")
    if decoder.frames:
        why.append(f"none of its {count_text(decoder.frames, 'frame')} is of TCP port 1801")
    return f"{path}: {'; '.join(why) or 'there is no frame in it'}"


def require_packets(result: Result) -> None:
    """Raises CaptureUnusable if there was no packet of the protocol, so that nothing could be judged."""
    if result.summary["packets"]:
        return
    files = ", ".join(result.paths[:FILES_NAMED])
    if len(result.paths) > FILES_NAMED:
        files += f" and {len(result.paths) - FILES_NAMED:,} more"
    summary = result.summary
    seen = (
        f"{count_text(summary['connections'], 'connection')} to TCP port 1801, "
        f"{count_text(summary['malformed'], 'malformed packet')}, {count_text(summary['holes'], 'hole')}"
    )
    damages = "".join(f"; {path}: {text}" for path, text in result.damages)
    raise CaptureUnusable(f"there was nothing to judge: no packet of the protocol in {files} ({seen}){damages}")


def result_of(
    paths: Sequence[str],
    partials: Sequence[Partial],
    again: Callable[[Wanted], Partial] | None = None,
) -> Result:
    """What all tasks together say of the files.

    again: reads the wanted connections once more, all in one place, for streams of which several tasks know
    something; not needed for one task. Raises CaptureUnusable.
    """
    if not any(partial.frames for partial in partials):
        raise CaptureUnusable("; ".join(map(_problem, paths)) or "there is no capture")
    merged = _Merged(paths, partials)
    if merged.split and again is not None:
        merged.settle(again(merged.wanted()))
    return merged.result()


def _places(spark: SparkSession) -> int:
    try:
        return max(1, spark.sparkContext.defaultParallelism)
    except (AttributeError, NotImplementedError):  # Spark Connect does not tell
        return os.cpu_count() or 1


def _in_tasks(spark: SparkSession, files: list[str], start: int, parts: int, by_ports: bool) -> list[Partial]:
    """One task for each part; only what it has found out comes here."""
    work = partial_function(_task, files, start, parts, by_ports)
    rows = spark.range(0, parts, 1, parts).mapInArrow(work, "id long, size long, packed binary").collect()
    codec = pa.Codec("zstd")
    return [
        pickle.loads(codec.decompress(row["packed"], row["size"], asbytes=True))
        for row in sorted(rows, key=lambda row: row["id"])
    ]


def _task(
    files: list[str],
    start: int,
    parts: int,
    by_ports: bool,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    codec = pa.Codec("zstd", 1)
    for batch in batches:
        for part in batch.column(0).to_pylist():
            data = pickle.dumps(audit_part(files, start, part, parts, by_ports), pickle.HIGHEST_PROTOCOL)
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([part], pa.int64()),
                    pa.array([len(data)], pa.int64()),
                    pa.array([codec.compress(data, asbytes=True)], pa.binary()),
                ],
                names=["id", "size", "packed"],
            )


class _Merged:
    """What the tasks found, put together."""

    def __init__(self, paths: Sequence[str], partials: Sequence[Partial]) -> None:
        self._paths = list(paths)
        self._partials = list(partials)
        self._settled: Partial | None = None
        self._base = np.cumsum([0] + [len(partial.ends) for partial in partials])
        self.split = self._find_split() if len(partials) > 1 else set()

    def _find_split(self) -> set[StreamName]:
        """Streams of which more than one task knows something, or that another task's holes may concern."""
        places: dict[StreamName, int] = {}
        split: set[StreamName] = set()
        sequences: defaultdict[tuple[bytes, int, int], set[StreamName]] = defaultdict(set)
        missed: Counter[bytes] = Counter()
        pair_missed: Counter[tuple[str, str]] = Counter()
        for partial in self._partials:
            missed.update({partial.guids[code]: 1 for code in np.flatnonzero(partial.missed).tolist()})
            pair_missed.update(dict.fromkeys(_missed_pairs(partial), 1))
        for task, partial in enumerate(self._partials):
            for name in partial.names:
                if places.setdefault(name, task) != task:
                    split.add(name)
            own_pairs = set(_missed_pairs(partial))
            own_missed = {partial.guids[code] for code in np.flatnonzero(partial.missed).tolist()}
            kept = partial.sequences
            fields = (kept[key].tolist() for key in ("flow", "ordinal", "time_stamp", "pair"))
            for flow, ordinal, stamp, pair in zip(*fields):
                name = partial.names[flow - 1]
                sequences[name.source, ordinal, stamp].add(name)
                sequences[b"", ordinal, stamp].add(name)
                hosts = partial.pairs[pair // 2]
                if pair_missed[hosts] > (hosts in own_pairs) or missed[name.source] > (name.source in own_missed):
                    split.add(name)
        strays = set().union(*(partial.strays for partial in self._partials))
        for stray in strays & sequences.keys():
            split |= sequences[stray]
        unseen = strays - sequences.keys()
        rolled = self._rolled() if unseen else {}
        for source, ordinal, stamp in unseen:
            split |= {name for name, lowest in rolled.get(source, ()) if lowest < (stamp, ordinal)}
        for partial in self._partials:
            # Its task does not know what others have seen of the sequence.
            judged = partial.findings["flow"][np.isin(partial.findings["detail"], _STRAY)]
            split |= {partial.names[flow - 1] for flow in judged.tolist()}
        return split

    def _rolled(self) -> defaultdict[bytes, list[tuple[StreamName, tuple[int, int]]]]:
        """By source: streams of several sequences, which may tell when one began, and the lowest kept: time stamp,
        ordinal."""
        rolled: defaultdict[bytes, list[tuple[StreamName, tuple[int, int]]]] = defaultdict(list)
        for partial in self._partials:
            lowest: dict[int, tuple[int, int]] = {}
            for flow, stamp, ordinal in partial.sequences[["flow", "time_stamp", "ordinal"]].tolist():
                lowest[flow] = min(lowest.get(flow, (stamp, ordinal)), (stamp, ordinal))
            for flow in (np.flatnonzero(partial.flows["sequences"] > 1) + 1).tolist():
                name = partial.names[flow - 1]
                rolled[name.source].append((name, lowest[flow]))
        return rolled

    def wanted(self) -> Wanted:
        """The connections that have to be read again for the split streams: by their hosts."""
        sources = {name.source for name in self.split}
        hosts: set[frozenset[str]] = set()
        for partial in self._partials:
            codes = [code for code, guid in enumerate(partial.guids) if guid in sources]
            direction = partial.connections["direction"]
            concerned = (
                np.isin(direction["owner"], codes)
                | (direction["more"] != 0)
                | np.isin(direction["sources"], codes).any(axis=2)
            ).any(axis=1)
            for number in np.flatnonzero(concerned).tolist():
                hosts.add(frozenset(map(host_of, partial.ends[number][0])))
        return lambda ends: frozenset(map(host_of, ends)) in hosts

    def settle(self, again: Partial) -> None:
        """What reading them again has shown."""
        self._settled = again

    def _parts(self) -> Iterator[tuple[Partial, NDArray[np.bool_], Callable[[int], int]]]:
        """Each partial, which of its flows count, and what number its connections have in the result."""
        for number, partial in enumerate(self._partials):
            base = int(self._base[number])
            mask = np.array([name not in self.split for name in partial.names], bool)
            yield partial, mask, base.__add__
        if self._settled is not None:
            places: dict[tuple[Any, int], int] = {}
            for number, partial in enumerate(self._partials):
                for connection, first in enumerate(partial.connections["first_time"].tolist()):
                    places[partial.ends[connection], first] = int(self._base[number]) + connection
            settled = self._settled
            times = settled.connections["first_time"]
            mask = np.array([name in self.split for name in settled.names], bool)
            yield settled, mask, lambda connection: places.get((settled.ends[connection], int(times[connection])), 0)

    def result(self) -> Result:
        streams: list[StreamReport] = []
        violations: list[Violation] = []
        unknowns: list[Unknown] = []
        totals = np.zeros((len(LATENCIES), lib.MQQB_AUDIT_BUCKETS), np.int64)
        longest = np.zeros(len(LATENCIES), np.int64)
        senders: dict[bytes, _Sender] = {}
        sequences = 0
        for partial, mask, place in self._parts():
            reports = _stream_reports(partial, mask)
            streams += reports
            sequences += int(partial.flows["sequences"][mask].sum())
            for index, report in zip(np.flatnonzero(mask).tolist(), reports):
                sender = senders.setdefault(partial.names[index].source, _Sender())
                sender.add(report, partial.flows["histogram"][index], partial.flows["latency_max"][index])
            if mask.any():
                totals += partial.flows["histogram"][mask].sum(axis=0, dtype=np.int64)
                longest = np.maximum(longest, partial.flows["latency_max"][mask].max(axis=0))
            of_connections = partial is not self._settled
            for found in partial.findings:
                flow = int(found["flow"])
                if mask[flow - 1] if flow else of_connections:
                    item = _finding(partial, found, place(int(found["connection"])))
                    if isinstance(item, Unknown):
                        unknowns.append(item)
                    else:
                        violations.append(item)
        kinds = np.zeros((2, len(KINDS)), np.int64)
        for partial in self._partials:
            kinds += partial.kind_counts
        counted, open_verdicts = (dict(zip(KINDS, counts)) for counts in kinds.tolist())
        for report in streams:
            for counts, those in ((counted, report.violations), (open_verdicts, report.unknowns)):
                for kind, count in those.items():
                    counts[kind] += count
        streams.sort(key=lambda report: report.stream)
        violations.sort(key=lambda item: item.packets[-1].time if item.packets else 0)
        unknowns.sort(key=lambda item: item.packets[-1].time if item.packets else 0)
        latency = _latencies(totals[None], longest[None])[0]
        gaps = max((partial.gaps for partial in self._partials), key=len)
        messages = sum(report.messages for report in streams)
        unsettled = sum(report.unsettled for report in streams)
        summary = {
            "packets": sum(partial.packets for partial in self._partials),
            "connections": int(self._base[-1]),
            "streams": sequences,
            "messages": messages,
            "resends": sum(report.resends for report in streams),
            "rejects": sum(sum(report.rejects.values()) for report in streams),
            "settled": messages - unsettled,
            "unsettled": unsettled,
            "holes": sum(partial.holes for partial in self._partials) + len(gaps),
            "malformed": sum(partial.malformed for partial in self._partials),
            "unsupported_frames": max(partial.unread for partial in self._partials),
            "violations": counted,
            "unknown": open_verdicts,
            "latency_ms": {kind: value.as_json() for kind, value in latency.items()},
        }
        result = Result(
            summary=summary,
            paths=self._paths,
            damages=[],
            violations=violations,
            unknowns=unknowns,
            streams=streams,
            senders=sorted(
                (sender.report(guid) for guid, sender in senders.items()),
                key=lambda report: report.source_queue_manager,
            ),
            connections=self._connections(violations, unknowns),
            histograms={kind: _histogram(row) for kind, row in zip(LATENCIES, totals)},
            latency=latency,
        )
        # Each task has read all files; one that saw no row does not tell.
        damages = max((partial.damages for partial in self._partials), key=len)
        result.add_damages(damages)
        result.add_damages(gaps)
        return result

    def _connections(self, violations: Iterable[Violation], unknowns: Iterable[Unknown]) -> dict[int, ConnectionReport]:
        found: defaultdict[int, list[Violation | Unknown]] = defaultdict(list)
        for violation in violations:
            found[violation.connection].append(violation)
        for unknown in unknowns:
            found[unknown.connection].append(unknown)
        trouble = []
        for partial in self._partials:
            direction = partial.connections["direction"]
            trouble.append(
                direction["holes"].sum(axis=1, dtype=np.int64) + direction["malformed"].sum(axis=1, dtype=np.int64)
            )
        points = np.concatenate(trouble) if trouble else np.zeros(0, np.int64)
        for number, items in found.items():
            points[number] += 1000 * len(items)
        chosen = np.sort(np.argsort(-points, kind="stable")[:CONNECTIONS_MAX])
        reports = {}
        for number in chosen.tolist():
            task = int(np.searchsorted(self._base, number, "right")) - 1
            reports[number] = _connection_report(self._partials[task], number - int(self._base[task]), found[number])
        return reports


def _missed_pairs(partial: Partial) -> list[tuple[str, str]]:
    return [partial.pairs[place // 2] for place in np.flatnonzero(partial.pair_missed).tolist()]


# ---- what it says -------------------------------------------------------------------------------


_BOUNDS = np.array([lib.mqqb_audit_bucket_end(bucket) / 1000 for bucket in range(lib.MQQB_AUDIT_BUCKETS)])  # ms


def _latencies(histograms: NDArray[Any], longest: NDArray[Any]) -> list[dict[str, Latency]]:
    """Percentiles of many histograms at once. longest: ns."""
    reports: list[dict[str, Latency]] = []
    shares = np.array([0.5, 0.9, 0.99])
    for begin in range(0, len(histograms), 1024):
        cumulated = histograms[begin : begin + 1024].cumsum(axis=2, dtype=np.int64)
        counts = cumulated[:, :, -1]
        ranks = np.ceil(counts[:, :, None] * shares).astype(np.int64)
        buckets = (cumulated[:, :, None, :] < ranks[..., None]).sum(axis=3)
        most = longest[begin : begin + 1024] / 1e6
        values = np.minimum(_BOUNDS[np.minimum(buckets, len(_BOUNDS) - 1)], most[:, :, None])
        for count, value, top in zip(counts.tolist(), values.round(6).tolist(), most.round(6).tolist()):
            reports.append(
                {
                    kind: Latency(number, p50, p90, p99, maximum) if number else Latency(0, 0.0, 0.0, 0.0, 0.0)
                    for kind, number, (p50, p90, p99), maximum in zip(LATENCIES, count, value, top)
                }
            )
    return reports


def _histogram(row: NDArray[Any]) -> dict[float, int]:
    used = np.flatnonzero(row)
    return dict(zip(_BOUNDS[used].tolist(), row[used].tolist()))


class _Sender:
    """Sums of a source queue manager."""

    def __init__(self) -> None:
        self._streams = self._messages = self._resends = self._rejects = self._unsettled = 0
        self._violations = self._unknowns = 0
        self._histogram = np.zeros((len(LATENCIES), lib.MQQB_AUDIT_BUCKETS), np.int64)
        self._longest = np.zeros(len(LATENCIES), np.int64)

    def add(self, report: StreamReport, histogram: NDArray[Any], longest: NDArray[Any]) -> None:
        self._streams += 1
        self._messages += report.messages
        self._resends += report.resends
        self._rejects += sum(report.rejects.values())
        self._unsettled += report.unsettled
        self._violations += sum(report.violations.values())
        self._unknowns += sum(report.unknowns.values())
        self._histogram += histogram
        self._longest = np.maximum(self._longest, longest)

    def report(self, guid: bytes) -> SenderReport:
        return SenderReport(
            guid_text(guid),
            self._streams,
            self._messages,
            self._resends,
            self._rejects,
            self._unsettled,
            self._violations,
            self._unknowns,
            _latencies(self._histogram[None], self._longest[None])[0],
        )


def _key(partial: Partial, index: int) -> StreamKey:
    name = partial.names[index]
    return _stream_key(name, partial.texts[name.queue])


def _stream_key(name: StreamName, text: str) -> StreamKey:
    if name.host:  # DQ 3: a number on a host
        queue = PrivateQueueFormatNameId(int.from_bytes(name.queue[1][:4], "little"))
        text = format_name(queue, name.host)
    return StreamKey(guid_text(name.source), text, name.hops)


_COUNTS = ("messages", "first_transmissions", "resends", "order_acked", "final_acked", "unsettled")


def _stream_reports(partial: Partial, mask: NDArray[np.bool_]) -> list[StreamReport]:
    """Of the flows in mask, in their order."""
    flows = partial.flows
    chosen = np.flatnonzero(mask)
    of_flow: defaultdict[int, list[int]] = defaultdict(list)
    order = np.lexsort((partial.sequences["ordinal"], partial.sequences["time_stamp"]))
    for place in order.tolist():
        of_flow[int(partial.sequences["flow"][place]) - 1].append(place)
    counts = partial.sequences["counts"]
    rows = {name: counts[name].tolist() for name in (*_COUNTS, "rejects")}
    fields = {
        name: partial.sequences[name].tolist()
        for name in ("ordinal", "time_stamp", "highest", "covered", "first_time", "last_time")
    }
    latencies = _latencies(flows["histogram"][chosen], flows["latency_max"][chosen])
    reports = []
    for index, latency in zip(chosen.tolist(), latencies):
        flow = flows[index]
        details = []
        sums = {name: int(flow["folded"][name]) for name in _COUNTS}
        rejects = Counter(dict(zip(REJECTS, flow["folded"]["rejects"].tolist())))
        for place in of_flow[index]:
            own = {name: rows[name][place] for name in _COUNTS}
            own_rejects = dict(zip(REJECTS, rows["rejects"][place]))
            details.append(
                SequenceReport(
                    SequenceId(fields["ordinal"][place], fields["time_stamp"][place]),
                    **own,
                    rejects={reason: count for reason, count in own_rejects.items() if count},
                    highest=fields["highest"][place],
                    acknowledged=fields["covered"][place],
                    first_time=fields["first_time"][place],
                    last_time=fields["last_time"][place],
                )
            )
            for name in _COUNTS:
                sums[name] += own[name]
            rejects.update(own_rejects)
        outcomes = dict(zip(OUTCOMES, flow["outcomes"].tolist()))
        for code, count in zip(flow["classes"].tolist(), flow["class_counts"].tolist()):
            if code:
                outcomes[f"0x{code:04X}"] = count
                if not code & 0x4000:
                    rejects[f"0x{code:04X}"] = count
        if flow["class_rest"]:
            outcomes["other"] = int(flow["class_rest"])
        reports.append(
            StreamReport(
                stream=_key(partial, index),
                sequence=details[-1].sequence if details else SequenceId(0, 0),
                sequences=tuple(details),
                sequence_count=int(flow["sequences"]),
                connections=int(flow["connections"]),
                rejects={reason: count for reason, count in rejects.items() if count},
                holes=int(partial.missed[flow["key"]["source"]]),
                violations={kind: count for kind, count in zip(KINDS, flow["violations"].tolist()) if count},
                unknowns={kind: count for kind, count in zip(KINDS, flow["unknowns"].tolist()) if count},
                first_time=int(flow["first_time"]),
                last_time=int(flow["last_time"]),
                latency=latency,
                histograms={kind: _histogram(row) for kind, row in zip(LATENCIES, flow["histogram"])},
                outcomes={what: count for what, count in outcomes.items() if count},
                **sums,
            )
        )
    return reports


# By detail: text of a violation, and the rules.
_TEXTS: dict[int, tuple[str, str]] = {
    lib.MQQB_AUDIT_TWO_IDS: ("number {number} came with MessageID {a}, and then with {b}", "A-08, B-317, B-318"),
    lib.MQQB_AUDIT_TWO_NUMBERS: ("MessageID {a} came under number {b}, and then under {number}", "A-08, B-309"),
    lib.MQQB_AUDIT_LOWER_SEQUENCE: (
        "a message of sequence {sequence} after sequence {a}/{b} had begun",
        "B-078, B-093",
    ),
    lib.MQQB_AUDIT_ORDER_ACK_UNSENT: (
        "an OrderAck names number {number}, which was not sent; the highest that was is {a}",
        "B-110, B-230",
    ),
    lib.MQQB_AUDIT_ORDER_ACK_SKIPS: (
        "an OrderAck names number {number}, whose previous one is {b}; the receiver cannot have come further than {a}",
        "B-110, B-270",
    ),
    lib.MQQB_AUDIT_FINAL_ACK_UNSENT: (
        "a FinalAck names number {number}, which was not sent; the highest that was is {a}",
        "B-241, B-360",
    ),
    lib.MQQB_AUDIT_FINAL_ACK_SKIPS: (
        (
            "a FinalAck says that number {number}, whose previous one is {b}, was in its queue; the receiver cannot "
            "have "
            "come further than {a}"
        ),
        "B-270, B-337",
    ),
    lib.MQQB_AUDIT_FINAL_ACK_OTHER: (
        "a FinalAck names number {number} with MessageID {a}; that number was sent with {b}",
        "B-241, B-360",
    ),
    lib.MQQB_AUDIT_SESSION_ACK: ("AckSequenceNumber is {a}; the other side has sent {b} messages", "B-101, B-229"),
    lib.MQQB_AUDIT_RECOVERABLE_ACK: (
        (
            "RecoverableMsgAckSeqNumber is {a}, and with its flags it names more than the {b} recoverable messages "
            "that "
            "the other side has sent"
        ),
        "B-102, B-103, B-229",
    ),
    lib.MQQB_AUDIT_USER_COUNT: ("UserMsgSequenceNumber is {a}; counted were {b} messages", "B-104, B-227"),
    lib.MQQB_AUDIT_RECOVERABLE_COUNT: (
        "RecoverableMsgSeqNumber is {a}; counted were {b} recoverable messages",
        "B-105, B-227",
    ),
    lib.MQQB_AUDIT_USER_STEP: (
        "UserMsgSequenceNumber is {a}; by an earlier SessionHeader and the messages counted since, it is {b}",
        "B-104, B-227",
    ),
    lib.MQQB_AUDIT_RECOVERABLE_STEP: (
        (
            "RecoverableMsgSeqNumber is {a}; by an earlier SessionHeader and the recoverable messages counted since, "
            "it "
            "is {b}"
        ),
        "B-105, B-227",
    ),
    lib.MQQB_AUDIT_RESENT_ORDERED: (
        "number {number} was sent again after its sender had shown that it had the OrderAck for {a}",
        "B-235, B-236",
    ),
    lib.MQQB_AUDIT_RESENT_FINAL: (
        "number {number} was sent again after its sender had shown that it had the FinalAck, class 0x{a:04X}",
        "B-244",
    ),
    lib.MQQB_AUDIT_TWO_FINAL_ACKS: (
        "two FinalAcks, MessageIDs {a} and {b}, say that number {number} was removed from its queue",
        "B-116",
    ),
    lib.MQQB_AUDIT_WENT_BACK: (
        "the OrderAcks went back from {a}, and number {number} was accepted once more",
        "A-01, B-271",
    ),
    lib.MQQB_AUDIT_TWO_ACCEPTED: (
        "MessageID {a} was accepted twice: OrderAcks cover it under number {b}, and under number {number}",
        "A-08, B-271, B-309",
    ),
    lib.MQQB_AUDIT_ORDER_ACK_STRAY: (
        (
            "an OrderAck names number {number} of sequence {sequence}, of which nothing was sent: it is above sequence "
            "{a}/{b}, which began in this capture"
        ),
        "B-079, B-110, B-230",
    ),
    lib.MQQB_AUDIT_FINAL_ACK_STRAY: (
        (
            "a FinalAck names number {number} of sequence {sequence}, of which nothing was sent: it is above sequence "
            "{a}/{b}, which began in this capture"
        ),
        "B-079, B-241, B-360",
    ),
}


def _reason(partial: Partial, found: Any) -> str:
    connection = partial.connections[found["connection"]]
    if not found["flow"]:
        side = found["direction"] ^ (found["detail"] in (lib.MQQB_AUDIT_SESSION_ACK, lib.MQQB_AUDIT_RECOVERABLE_ACK))
        own = connection["direction"][side]
        if own["holes"]:
            return "not all of this connection was captured"
        if own["malformed"]:
            return "a packet of this connection is malformed"
        if connection["begun"]:
            return "a part of the capture is missing"
        return "the connection is older than the capture"
    if found["detail"] == lib.MQQB_AUDIT_TWO_ACCEPTED:
        return "a FinalAck that rejects one of the two, or a transmission between them, may be missing in the capture"
    source = partial.flows[found["flow"] - 1]["key"]["source"]
    if found["detail"] in _STRAY and found["time_stamp"] != found["b"]:
        return "sequence identifiers with another time stamp need not be younger"
    if partial.missed[source] or partial.pair_missed.any():
        return "something of this sender's may be missing in the capture"
    return "the sequence may be older than the capture"


def _finding(partial: Partial, found: Any, connection: int) -> Violation | Unknown:
    flow = int(found["flow"])
    sequence = SequenceId(int(found["ordinal"]), int(found["time_stamp"])) if flow else None
    stream = _key(partial, flow - 1) if flow else None
    kind, number = KINDS[found["kind"]], int(found["number"])
    shown = tuple(
        Packet(int(packet["file"]), int(packet["frame"]), int(packet["time"]))
        for packet in found["packet"][: found["packets"]]
    )
    if found["unknown"]:
        return Unknown(kind, stream, sequence, connection, number, _reason(partial, found), shown)
    text, rule = _TEXTS[int(found["detail"])]
    name = f"{sequence.ordinal}/{sequence.time_stamp}" if sequence else ""
    return Violation(
        kind,
        stream,
        sequence,
        connection,
        number,
        text.format(number=number, a=int(found["a"]), b=int(found["b"]), sequence=name),
        rule,
        shown,
    )


_ENDS = {
    lib.MQQB_END_FIN: "closed",
    lib.MQQB_END_RST: "reset",
    lib.MQQB_END_REPLACED: "replaced",
    lib.MQQB_END_CAPTURE: "end of the capture",
}


def _connection_report(partial: Partial, number: int, found: Sequence[Violation | Unknown]) -> ConnectionReport:
    row = partial.connections[number]
    ends, syn = partial.ends[number]
    directions = row["direction"]
    first, last = int(row["first_time"]), int(row["last_time"])
    events = [Event(first, "begin" if syn else "older", 0, "")]
    if row["established"]:
        events.append(Event(int(row["established"]), "established", 1, ""))
    managers = []
    for side in (0, 1):
        own = directions[side]
        for name, what in (
            ("first_message", "first_message"),
            ("first_hole", "hole"),
            ("last_hole", "hole"),
            ("first_malformed", "malformed"),
        ):
            if own[name] and not (name == "last_hole" and own["holes"] < 2):
                events.append(Event(int(own[name]), what, side, ""))
        codes = [int(code) for code in own["sources"] if code]
        managers.append(
            "several"
            if len(codes) > 1
            else guid_text(partial.guids[codes[0] if codes else own["owner"]])
            if codes or own["owner"]
            else ""
        )
    events += [
        Event(item.packets[-1].time, "violation" if isinstance(item, Violation) else "unknown", 0, item.kind)
        for item in found[:32]
        if item.packets
    ]
    ended = [side for side in (0, 1) if directions[side]["ended"]]
    ending = ", ".join(dict.fromkeys(_ENDS[int(directions[side]["ending"])] for side in ended))
    events.sort()
    events.append(Event(last, "end", 0, ending))

    def both(name: str) -> tuple[int, int]:
        return int(directions[0][name]), int(directions[1][name])

    return ConnectionReport(
        ends=ends,
        syn=syn,
        first_time=first,
        last_time=last,
        packets=both("packets"),
        messages=both("messages"),
        holes=both("holes"),
        malformed=both("malformed"),
        queue_managers=(managers[0], managers[1]),
        end=ending,
        events=tuple(events),
    )


# ---- plots --------------------------------------------------------------------------------------


def _trouble(report: StreamReport) -> tuple[int, int, int]:
    return (sum(report.violations.values()) + sum(report.unknowns.values()), report.resends, report.unsettled)


class _Line:
    """Points of one stream."""

    def __init__(self, report: StreamReport) -> None:
        self.report = report
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


def _series(files: Sequence[str], result: Result) -> list[Series]:
    """The streams with most trouble, read and replayed once more."""
    chosen = sorted(result.streams, key=_trouble, reverse=True)[:SERIES_STREAMS]
    lines = {report.stream: _Line(report) for report in chosen}
    sources = {stream.source_queue_manager for stream in lines}
    keys: dict[tuple[int, int, int, int], _Line | None] = {}
    codes: dict[int, bool] = {}
    auditor = Auditor(start_of(files), verdicts=True)
    for batch in columnar.batches(files, rows=BATCH_ROWS, columns=COLUMNS, ordered=True):
        auditor.feed(batch)
        _points(batch, auditor.verdicts, lines, sources, keys, codes)
    return [
        Series(stream, tuple(sorted(line.points)), tuple(line.boundaries), line.thinned)
        for stream, line in lines.items()
    ]


def _points(
    batch: columnar.Batch,
    verdicts: NDArray[np.uint8] | None,
    lines: dict[StreamKey, _Line],
    sources: set[str],
    keys: dict[tuple[int, int, int, int], _Line | None],
    codes: dict[int, bool],
) -> None:
    decoder = batch.decoder

    def wanted(code: int) -> bool:
        if code not in codes:
            codes[code] = bool(code) and guid_text(decoder.queue_manager(code)) in sources
        return codes[code]

    def line_of(row: int) -> _Line | None:
        user_flags = int(batch["user_flags"][row])
        private = (user_flags & core.USER_DQ) == 3 << 10
        key = (
            int(batch["source_queue_manager"][row]),
            int(batch["destination_queue"][row]),
            int(batch["queue_manager_address"][row]) if private else 0,
            user_flags & core.USER_RC,
        )
        if key not in keys:
            queue = decoder.queue(key[1])
            name = StreamName(
                decoder.queue_manager(key[0]),
                (queue.selector, queue.raw),
                decoder.queue_manager(key[2]) if key[2] else b"",
                key[3],
            )
            keys[key] = lines.get(_stream_key(name, queue.text))
        return keys[key]

    if verdicts is None:
        return
    kinds = batch["kind"]
    used = np.unique(batch["source_queue_manager"]).tolist()
    codes_wanted = [code for code in used if wanted(code)]
    messages = (batch["tx_sequence_number"] != 0) & np.isin(batch["source_queue_manager"], codes_wanted)
    acknowledged = {
        (sequence.ordinal, sequence.time_stamp) for line in lines.values() for _, _, sequence in line.boundaries
    }
    acks = (kinds == lib.MQQB_KIND_ORDER_ACK) | (kinds == lib.MQQB_KIND_FINAL_ACK)
    for row in np.flatnonzero(messages | acks).tolist():
        time = int(batch.time[row])
        if messages[row]:
            line = line_of(row)
            if line is not None:
                sequence = SequenceId(int(batch["tx_sequence_ordinal"][row]), int(batch["tx_sequence_time_stamp"][row]))
                line.connections.add(int(batch["connection"][row]))
                line.message(time, sequence, int(batch["tx_sequence_number"][row]), int(verdicts[row]))
                acknowledged.add(sequence)
            continue
        sequence = SequenceId(int(batch["ack_tx_sequence_ordinal"][row]), int(batch["ack_tx_sequence_time_stamp"][row]))
        if sequence not in acknowledged:
            continue
        addressed = int(batch["ack_source"][row]) or int(batch["queue_manager_address"][row])
        guid = guid_text(decoder.queue_manager(addressed)) if addressed else ""
        for stream, line in lines.items():
            if line.knows(sequence) and (
                stream.source_queue_manager == guid or int(batch["connection"][row]) in line.connections
            ):
                number = int(batch["ack_tx_sequence_number"][row])
                positive = batch["message_class"][row] == _ACK_RECEIVE
                what = 3 if kinds[row] == lib.MQQB_KIND_ORDER_ACK else 4 if positive else 5
                line.add(time, line.place(sequence, number, time), what)
