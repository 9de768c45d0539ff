"""Replay every transactional stream in batches of packets by the receiver's rule, in C.

    auditor = Auditor(start_of(files))
    auditor.take(columnar.batches(files, rows=BATCH_ROWS, columns=COLUMNS))
    partial = auditor.partial()

The auditor also reports missing files of a rotation, by names and times.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from _mqqb import ffi, lib
from numpy.typing import NDArray

from ordack.audit.reports import Partial, Structure, withdraw
from ordack.audit.result import count_text
from ordack.capture import columnar

COLUMNS = (*columnar.SCAN_COLUMNS, *columnar.PLACE_COLUMNS, "queue_manager_address", "client_guid", "server_guid")
BATCH_ROWS = 8192  # columns of a batch fit the processor's L2 cache
FINDINGS_MAX = 1000  # of a kind, for a stream
_LINE = 64  # bytes of a cache line


def start_of(paths: Sequence[str]) -> int:
    """Return the time of the capture's first frame, ns since 1970, rounded down by less than 2 us."""
    first = next((time for time in map(columnar.first_time, paths) if time < float("inf")), None)
    return 0 if first is None else int(first * 1e6) * 1000 - 1000


# Numbering of rotated files: tcpdump -C (a.pcap, a.pcap1; with -W from a.pcap0), dumpcap -b
# (a_00001_20261121210000.pcap), ordack (a.pcap, a-000002.pcap). Other digits in names may be times.
_ENDING = r"\.(?:p?cap|pcapng|dmp|dump)"
_OWN_NUMBERS = 2  # index of ordack's form
_NUMBERED = (
    re.compile(rf"(.+{_ENDING})(\d{{0,5}})"),
    re.compile(r"(.+_)(\d{5})_\d{14}(?:\.\w+)?"),
    re.compile(rf"(.+-)(000\d{{3}})(?:{_ENDING})?"),
)
_FILES_MISSING = 1000  # more is a different numbering, not a gap
_ROOM = 1000  # a pause below gap/1000 of the file's duration shows no gap


def _numbers(path: str) -> dict[str, str]:
    """Return {common part of the names in a rotation: number of this file}."""
    folder, name = os.path.split(path)
    found = {}
    for form, pattern in enumerate(_NUMBERED):
        match = pattern.fullmatch(name)
        if match is not None:
            found[f"{form} {folder} {match[1]}"] = match[2] or "0"
    stem, dot, _ = name.rpartition(".")
    if dot:  # ordack's first file
        found.setdefault(f"{_OWN_NUMBERS} {folder} {stem}-", "1")
    return found


def missing_between(before: str, its: tuple[int, int], after: str, others: tuple[int, int]) -> int:
    """Return the number of files missing between two files of a rotation. its, others: times of first and last frame,
    ns since 1970. The second file may be unread: only its first time counts.

    Return 0 if none is missing or the gap is uncertain: numbering restarts, the files overlap in time, or the pause is
    too short for the gap.
    """
    known = _numbers(before)
    for name, digits in _numbers(after).items():
        low, high = int(known.get(name, digits)), int(digits)
        if high > low:
            gap = high - low - 1
            pause = others[0] - its[1]
            small = pause * _ROOM < gap * (its[1] - its[0])
            return gap if gap <= _FILES_MISSING and pause >= 0 and not small else 0
    return 0


_SEQUENCE = ("flow", "ordinal", "time_stamp", "pair", "highest", "covered", "first_time", "last_time", "counts")


def _kept(table: Structure) -> Structure:
    """Return the fields of kept sequences for the result, sorted by flow and sequence."""
    table = table[table["flow"] != 0] if (table["flow"] == 0).any() else table
    kept = np.empty(len(table), [(name, table.dtype[name]) for name in _SEQUENCE])
    for name in _SEQUENCE:
        kept[name] = table[name]
    return kept[np.lexsort((kept["ordinal"], kept["time_stamp"], kept["flow"]))]


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
            ("findings", "mqqb_audit_finding", 1 << 14),
        ):
            self.grow(name, kind, size)
        if strays:
            self.grow("strays", "mqqb_audit_stray", 1 << 12)
        self._index()

    def grow(self, name: str, kind: str, size: int) -> None:
        self._kinds[name] = kind
        item = columnar.structure(kind).itemsize
        memory = np.zeros(size * item + _LINE, np.uint8)
        begin = -memory.ctypes.data % _LINE
        array = memory[begin : begin + size * item].view(columnar.structure(kind))
        before = self._held.get(name)
        if before is not None:
            array.view(np.uint8)[: before.nbytes] = before.view(np.uint8)
        self._held[name] = array
        setattr(self.c, name, ffi.from_buffer(f"{kind}[]", array))
        if name != "pairs":
            setattr(self.c, f"{name}_size", size)

    def double(self, name: str) -> None:
        self.grow(name, self._kinds[name], 2 * len(self._held[name]))

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
    getattr(lib, f"MQQB_AUDIT_GROW_{name.upper()}"): name
    for name in ("connections", "sources", "flows", "sequences", "slots")
}


class Auditor:
    """Replays batches in order; `partial` returns the result.

    start: of the capture, ns since 1970. strays: keep acknowledgements of unseen sequences, for other tasks. gaps:
    (path, text) of files behind missing files, by their numbers.
    """

    def __init__(self, start: int, strays: bool = False) -> None:
        self._tables = _Tables(start, strays)
        self._pairs: dict[tuple[bytes, bytes], int] = {}
        self._connections = 0  # with known hosts
        self._findings: list[Structure] = []
        self._seen: Counter[tuple[int, int, int]] = Counter()
        self._strays: set[tuple[int, int, int]] = set()
        self._damages = 0
        self._files = 1  # compared with the name of the preceding file
        self.gaps: list[tuple[str, str]] = []
        self._marks: dict[int, int] = {}  # {file with data missing at its end: last time}, not reached yet
        self._decoder: columnar.Decoder | None = None
        self._done = ffi.new("uint32_t *")

    def take(self, batches: Iterable[columnar.PacketColumns], progress: Callable[[int], None] | None = None) -> int:
        """Replay the next batches and return the number of packets. progress: called with numbers of rows."""
        packets = 0
        for batch in batches:
            self.feed(batch)
            packets += int(np.count_nonzero(batch["kind"] < lib.MQQB_KIND_HOLE))
            if progress is not None:
                progress(batch.rows)
        return packets

    def feed(self, batch: columnar.PacketColumns) -> None:
        """Replay the next rows of the capture."""
        first = self._decoder is None
        self._decoder = batch.decoder
        self._connect(batch.decoder)
        if not batch.rows:
            return
        if first:  # a file's first frame is not its earliest if queues of a network card wrote it in turn
            self._tables.c.start = min(self._tables.c.start, int(batch.time[0]))
        self._mark(batch.decoder)
        begin = 0
        for number, latest in sorted(self._marks.items(), key=itemgetter(1)):
            # The rest of this file is missing: after a later file's first frame, anything may be lost.
            later = np.flatnonzero(batch.time[begin : batch.rows] > latest)
            if len(later):
                at = begin + int(later[0])
                self._rows(batch, begin, at)
                begin = at
                firsts = [first for file, (first, _) in batch.decoder.spans.items() if file > number]
                since = max(latest, min(firsts, default=int(batch.time[at])))
                lib.mqqb_audit_interrupted(self._tables.c, since)
                del self._marks[number]
        self._rows(batch, begin, batch.rows)

    def _mark(self, decoder: columnar.Decoder) -> None:
        """Record files with missing data after their last frame: damaged files, and gaps in names or times."""
        for damage in decoder.damages[self._damages :]:
            if damage.latest >= 0:
                self._marks[decoder.paths.index(damage.path)] = damage.latest
        self._damages = len(decoder.damages)
        paths, spans = decoder.paths, decoder.spans
        while self._files <= max(spans, default=-1):
            number = self._files
            if number - 1 in spans and number - 1 not in decoder.closed:
                return
            self._files += 1
            if number - 1 not in spans or number not in spans:
                continue  # no frame
            missing = missing_between(paths[number - 1], spans[number - 1], paths[number], spans[number])
            if missing:
                name, verb = Path(paths[number - 1]).name, "is" if missing == 1 else "are"
                said = f"by their numbers, {count_text(missing, 'file')} between {name} and this one {verb} missing"
                self.gaps.append((paths[number], said))
                self._marks[number - 1] = spans[number - 1][1]

    def _rows(self, batch: columnar.PacketColumns, begin: int, end: int) -> None:
        tables, done = self._tables, self._done
        done[0] = begin
        while True:
            status = lib.mqqb_audit_rows(tables.c, batch.pointers, end, done)
            if status == lib.MQQB_AUDIT_DONE:
                return
            if status == lib.MQQB_AUDIT_FINDINGS_FULL:
                self._take()
                continue
            tables.double(_GROWTH[status])
            if _GROWTH[status] in ("flows", "sequences"):
                tables.rehash()
            elif status == lib.MQQB_AUDIT_GROW_CONNECTIONS:
                self._connect(batch.decoder)

    def _connect(self, decoder: columnar.Decoder) -> None:
        """Assign its pair of hosts to each new connection."""
        known, self._connections = self._connections, decoder.connections
        if decoder.connections == known:
            return
        while len(self._tables["connections"]) < decoder.connections:
            self._tables.double("connections")
        hosts = columnar.hosts_of(decoder.ends(known))
        pairs = [
            2 * self._pairs.setdefault((min(ends), max(ends)), len(self._pairs)) + (ends[0] > ends[1]) for ends in hosts
        ]
        self._tables["connections"]["pair"][known : decoder.connections] = pairs
        while len(self._tables["pairs"]) < 2 * len(self._pairs):
            self._tables.double("pairs")

    def _take(self) -> None:
        """Move findings and strays out of the C tables."""
        c = self._tables.c
        found = self._tables["findings"][: c.findings_used]
        keep = np.ones(len(found), bool)
        for row, key in enumerate(zip(found["flow"].tolist(), found["kind"].tolist(), found["unknown"].tolist())):
            if found["detail"][row] < lib.MQQB_AUDIT_LATE:
                self._seen[key] += 1
                keep[row] = self._seen[key] <= FINDINGS_MAX
        if len(found):
            self._findings.append(found[keep])
        c.findings_used = 0
        if c.strays != ffi.NULL:
            strays = self._tables["strays"][: c.strays_used]
            self._strays.update(zip(*(strays[name].tolist() for name in ("source", "ordinal", "time_stamp"))))
            c.strays_used = 0

    def partial(self) -> Partial:
        """Return the result after the last batch."""
        decoder, tables = self._decoder, self._tables
        c = tables.c
        lib.mqqb_audit_finish(c)
        self._take()
        guids = [b""]
        if decoder is not None:
            guids += [decoder.queue_manager(code) for code in range(1, decoder.queue_managers + 1)]
        flows, connections = tables["flows"][: c.flows_used].copy(), tables["connections"][: self._connections].copy()
        queues = {0: columnar.PacketQueue(0, b"", "")}
        if decoder is not None:
            queues |= {code: decoder.queue(code) for code in np.unique(flows["key"]["destination"]).tolist() if code}
        ends = decoder.ends() if decoder else np.zeros((0, 2, 5), np.uint32)
        kind_counts = np.array([list(c.violations), list(c.unknowns)], np.int64)
        findings = (
            np.concatenate(self._findings) if self._findings else np.zeros(0, columnar.structure("mqqb_audit_finding"))
        )
        findings = withdraw(findings, flows, kind_counts, connections)
        return Partial(
            flows=flows,
            sequences=_kept(tables["sequences"][: c.sequences_used]),
            connections=connections,
            findings=findings,
            ends=ends,
            guids=guids,
            queues=queues,
            missed=tables["sources"]["missed"]["missed"][: len(guids)].copy(),
            pairs=list(self._pairs),
            pair_missed=tables["pairs"]["missed"]["missed"][: 2 * len(self._pairs)].copy(),
            strays={(guids[source], ordinal, stamp) for source, ordinal, stamp in self._strays},
            kind_counts=kind_counts,
            packets=int(c.packets),
            holes=int(c.holes),
            malformed=int(c.malformed),
            foreign=int(c.foreign),
            frames=decoder.frames if decoder else 0,
            unread=decoder.unread if decoder else 0,
            paths=decoder.paths if decoder else [],
            damages=[(damage.path, damage.text) for damage in decoder.damages] if decoder else [],
            gaps=self.gaps,
        )
