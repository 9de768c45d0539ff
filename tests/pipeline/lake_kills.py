"""Ingests into a table that are killed by SIGKILL again and again; then each row is in the table once.

    python -m tests.pipeline.lake_kills [--kills 20] [--seed N] [--format delta|iceberg]

Without Spark. Each life is a process of its own, forked from this one, which has everything imported. It kills
itself at a planned step of the way (segments read, commit about to be made, commit made, batch told) or after a planned
time, also in the midst of a commit. A last life goes to the end. Exit status: 0 so it is; 1 not so.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from ordack.pipeline import delta, iceberg
from ordack.pipeline.ingest import FORMATS, Job, Load
from ordack.pipeline.lake import Decoding

from hil.dice import new_seed
from tests.pipeline.lake import read_here
from tests.support.segment_files import make_folder, write

STEPS = ("read", "to be committed", "committed", "told")
QUEUES = ("line1", "line2")
SEGMENTS_MIN, ROWS = 12, 5  # of each queue, for more kills more; of each segment
LIFE_S = 0.15  # in which a life is killed that is killed by the clock, at the latest


def life(job: Job, turn: int, fatal: str, seconds: float) -> None:
    """Ingests until it is killed at the `turn`th of these steps, or after some time."""
    left = turn

    def step(name: str) -> None:
        nonlocal left
        left -= name == fatal
        if fatal and left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def read(decoding: Decoding, paths: Sequence[str]) -> pa.Table:
        rows = read_here(decoding, paths)
        step("read")
        return rows

    for owner, name in ((delta, "write_deltalake"), (iceberg.Table, "_do_commit")):
        commit = getattr(owner, name)

        def told(*words: Any, commit: Any = commit, **named: Any) -> None:
            step("to be committed")
            commit(*words, **named)
            step("committed")

        setattr(owner, name, told)
    if not fatal:
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
    Load(job, read, lambda batch: step("told")).run(False)


def rows(job: Job) -> list[tuple[str, int]]:
    """What is in the table, in the order of its files."""
    table: Any = job.open()[0]
    whole = table._table.to_pyarrow_table() if job.table_format == "delta" else table._table.scan().to_arrow()
    return [*zip(whole["queue"].to_pylist(), whole["lookup_id"].to_pylist())]


def in_child(call: Callable[[], object]) -> int:
    """Runs it in a process of its own; the signal that has ended that, or 0. Raises RuntimeError if it has failed."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            call()
            status = 0
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status > 0:
        raise RuntimeError("a life has failed by itself")
    return -status


def check(job: Job, count: int) -> None:
    """Raises AssertionError if a row is missing or there twice. count: segments of a queue."""
    expected = [(queue, number) for queue in QUEUES for number in range(1, count * ROWS + 1)]
    assert sorted(rows(job)) == sorted(expected), "a row is missing, or there twice"


def run(folder: Path, table_format: str, kills: int, seed: int) -> dict[str, int]:
    """How many kills came at which step. Raises AssertionError, RuntimeError."""
    dice = random.Random(seed)
    source = make_folder(folder / "segments")
    count = max(SEGMENTS_MIN, kills)
    for queue in QUEUES:
        for serial in range(1, count + 1):
            write(source, serial, ROWS * (serial - 1) + 1, ROWS * serial, queue)
    job = Job([str(source)], str(folder / "table"), table_format, segments_max=2)
    made: dict[str, int] = {}
    for number in range(kills):
        # Few batches in a life, so that some are left for the next.
        fatal = ("", *STEPS)[number % (len(STEPS) + 1)]
        turn, seconds = 0 if number < kills - 2 else dice.randrange(2), dice.uniform(0, LIFE_S)
        ended = in_child(partial(life, job, turn, fatal, seconds))
        made[fatal or "by the clock"] = made.get(fatal or "by the clock", 0) + (ended == signal.SIGKILL)
    in_child(lambda: Load(job, read_here).run(False))
    in_child(lambda: check(job, count))
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description="Ingests killed again and again: each row is in the table once.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=new_seed())
    parser.add_argument("--format", dest="formats", choices=FORMATS, action="append")
    chosen = parser.parse_args()
    print("seed", chosen.seed)
    for table_format in chosen.formats or FORMATS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                made = run(Path(folder), table_format, chosen.kills, chosen.seed)
            except (AssertionError, RuntimeError) as error:
                print(f"FAILED: {table_format}: {error}")
                return 1
        told = ", ".join(f"{count} {step}" for step, count in made.items())
        print(f"{table_format}: each row once; kills: {told}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
