"""Reading and auditing generated captures: every packet comes out, every planted violation is found, none is invented.

python -m tests.audit.test_audit_generated [--seed N] [--count N]    # make audits: as many captures as you like
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support import capture_generator, shares
from tests.support.capture_generator import FORMS
from tests.support.capture_model import CONSEQUENCES, STANDING_ALONE, Capture, Planted

pytest.importorskip("pyarrow", reason="the pipeline is not installed")

SEED = int(os.environ.get("SEED") or 1)
COUNT = 80  # captures in make test
CHUNK = 20
# Captures that were once judged wrongly.
PINNED = [
    589755965, 710001704, 710001975, 710004496, 710004696, 720000277, 720004312, 730001210, 900016942, 1000006329,
    1000008340, 1000017777, 1100003927, 1100014443, 1200002445, 1610012310, 1610025058, 1610026299,
    1630024003,
]  # fmt: skip
MALFORMED, HOLE = 0, 7  # kinds of rows (mqqb_scan.h, mqqb_capture.h)
KINDS = {"handshake": 0, "session": 3, "message": 4, "order": 5, "final": 6}


class Judgement(NamedTuple):
    """What an audit made of one capture. problems: of the audit; tally: how the planted violations came out."""

    seed: int
    problems: list[str]
    tally: Counter[str]


def _places(found: Any, paths: list[int]) -> set[tuple[int, int]]:
    return {(paths[packet.file], packet.frame) for packet in found.packets}


def _explains(capture: Capture, planted: Planted, found: Any, places: set[tuple[int, int]]) -> bool:
    """Is it this violation, or something that follows from it?"""
    if found.kind != planted.kind and found.kind not in CONSEQUENCES.get(planted.kind, ()):
        return False
    if planted.line is None:
        return bool(places & capture.connection_frames(planted.connection))
    return bool(places & capture.line_frames(planted.line))


def _unclear(capture: Capture) -> set[tuple[int, int]]:
    """The frames of connections that cannot be told from those before them, and of all lines that used one."""
    packets = [packet for packet in capture.packets if (packet.connection.number, packet.direction) in capture.unclear]
    lines = [capture.line_frames(line) for line in {packet.line for packet in packets} if line is not None]
    return set().union(*lines, *(capture.connection_frames(one) for one in {packet.connection for packet in packets}))


def judge(capture: Capture, result: Any) -> Judgement:
    """Compares an audit's result with what was planted."""
    problems = []
    tally: Counter[str] = Counter()
    paths = [[str(path) for path in capture.paths].index(path) for path in result.paths]
    violations = [(found, _places(found, paths)) for found in result.violations]
    unknowns = [(found, _places(found, paths)) for found in result.unknowns]
    unclear = _unclear(capture)
    for planted in capture.planted:
        name = f"{planted.kind} {planted.variant}".strip()
        if any(found.kind == planted.kind and places & planted.frames for found, places in violations):
            tally[f"{planted.kind}: found"] += 1
        elif planted.certain:
            problems.append(f"missed: {name}, number {planted.number}, shown by {sorted(planted.frames)}")
        elif any(found.kind == planted.kind and places & planted.frames for found, places in unknowns):
            tally[f"{planted.kind}: unknown"] += 1
        elif planted.shown:
            tally[f"{planted.kind}: silent"] += 1
        else:
            tally[f"{planted.kind}: not in the capture"] += 1
    for found, places in violations:
        if "lost file" in capture.faults and found.kind not in STANDING_ALONE:
            continue  # whole connections were in it, and nothing that is left tells of them
        if places & unclear:
            continue
        if not any(_explains(capture, planted, found, places) for planted in capture.planted):
            problems.append(f"invented: {found.kind}, {found.text} (frames {sorted(places)})")
    if capture.whole:
        for found, places in unknowns:
            if not any(_explains(capture, planted, found, places) for planted in capture.planted):
                problems.append(f"unknown, though nothing is missing: {found.kind}, {found.reason} ({sorted(places)})")
        if not capture.planted:
            for name, value in capture.expected().items():
                if result.summary[name] != value:
                    problems.append(f"summary: {name} is {result.summary[name]}, not {value}")
    return Judgement(capture.seed, problems, tally)


def audit_one(seed: int) -> Judgement:
    """Makes a capture, in any form, and audits it, in any number of shares."""
    from ordack.audit import tasks

    folder = Path(tempfile.mkdtemp(prefix="capture-"))
    try:
        capture = capture_generator.generate(seed, folder, form=FORMS[seed // 3 % len(FORMS)], power_cuts=seed % 2 == 0)
        try:
            paths = [str(path) for path in reversed(capture.paths)]
            result = shares.run(paths, 1 + seed % 3)
        except tasks.CaptureUnusable as problem:
            usable = any(packet.visible for packet in capture.packets)
            return Judgement(seed, [f"unusable: {problem}"] if usable else [], Counter())
        return judge(capture, result)
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("seeds", [PINNED, *(range(one, one + CHUNK) for one in range(SEED, SEED + COUNT, CHUNK))])
def test_planted_violations_are_found_and_none_is_invented(seeds: Sequence[int]) -> None:
    found: Counter[str] = Counter()
    for seed in seeds:
        judgement = audit_one(seed)
        assert not judgement.problems, f"capture with seed {seed}: " + "; ".join(judgement.problems)
        found += judgement.tally
    print(found)


def read_one(seed: int) -> list[str]:
    """Makes a capture and reads it in two parts: what is wrong with the packets that come out."""
    from ordack.capture import columnar

    folder = Path(tempfile.mkdtemp(prefix="capture-"))
    try:
        capture = capture_generator.generate(seed, folder)
        found: set[tuple[Any, ...]] = set()
        odd = 0
        for part in (0, 1):
            for batch in columnar.batches(capture.paths, part, 2, rows=1000):
                odd += int((batch["kind"] == MALFORMED).sum() + (batch["kind"] == HOLE).sum())
                names = ("file", "frame", "kind", "message_id", "tx_sequence_number", "offset")
                for file, *rest in zip(*(batch[name].tolist() for name in names)):
                    if MALFORMED < rest[1] < HOLE:
                        found.add((batch.decoder.paths[file], *rest))
    finally:
        shutil.rmtree(folder)
    missing, unclear = 0, 0
    for packet in capture.packets:
        way = packet.connection.number, packet.direction
        kind = KINDS.get(packet.kind) or (1 if len(packet.data) == 572 else 2)
        number = packet.number if packet.kind == "message" else 0
        place = kind, packet.own_id, number, packet.start - capture.begins.get(way, 0)
        starts = [f for f in packet.frames if f.sequence <= packet.start < f.sequence + f.kept]
        there = {(str(capture.paths[f.file]), f.number, *place) for f in starts} & found
        found -= there
        missing += packet.visible and not there and way not in capture.unclear
        unclear += way in capture.unclear
    if unclear:
        found.clear()  # what is of an unclear connection has its place in the one before
    problems = [f"{missing} packets are missing"] if missing else []
    problems += [f"this is no packet of the capture: {place}" for place in found]
    if capture.whole and odd:
        problems.append(f"{odd} holes or malformed packets, though nothing is missing")
    return problems


@pytest.mark.parametrize("first", [810005349, *range(SEED, SEED + COUNT // 2, CHUNK)])
def test_every_packet_of_a_capture_comes_out_once(first: int) -> None:
    for seed in range(first, first + CHUNK):
        problems = read_one(seed)
        assert not problems, f"capture with seed {seed}: " + "; ".join(problems[:5])


def main() -> int:
    """Audits many captures with both processors; 1 if the audit was wrong about one."""
    parser = argparse.ArgumentParser(description="The audit over generated captures.")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--count", type=int, default=2000)
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}, {arguments.count} captures", flush=True)
    wrong = 0
    tally: Counter[str] = Counter()
    with ProcessPoolExecutor() as pool:
        seeds = range(arguments.seed, arguments.seed + arguments.count)
        for judgement in pool.map(audit_one, seeds, chunksize=8):
            tally += judgement.tally
            wrong += bool(judgement.problems)
            for problem in judgement.problems:
                print(f"capture with seed {judgement.seed}: {problem}", flush=True)
    print(json.dumps({"captures": arguments.count, "wrong": wrong, "planted": dict(sorted(tally.items()))}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
