"""Tables of Delta Lake and Iceberg on a walk: segments come, ingests load them, and others delete rows; each row is in
the table once, as a model in memory has it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from deltalake import DeltaTable
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from ordack.pipeline.iceberg import _catalog
from ordack.pipeline.ingest import Load
from ordack.pipeline.prune import serials

from tests.pipeline.exports import MEMORY
from tests.pipeline.lake import job, load, numbers
from tests.support.segment_files import make_folder, write

QUEUES = ("line1", "line2")


class State(NamedTuple):
    """Of a table: the rows that are in it, and the last segment of each queue."""

    rows: frozenset[int]
    reached: dict[str, int]


class Walk(RuleBasedStateMachine):
    table_format: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(dir=MEMORY))
        self.folder, self.table = make_folder(self.place / "segments"), self.place / "table"
        self.segments: dict[str, list[list[int]]] = {queue: [] for queue in QUEUES}
        self.sent = 0
        self.state = State(frozenset(), {})
        self.begun = False

    def teardown(self) -> None:
        shutil.rmtree(self.place)

    @initialize()
    def begin(self) -> None:
        """Ingests that were begun first know less and less of what others have done."""
        self.running: list[Load] = [
            load(job(self.folder, self.table, self.table_format, queue=queue, segments_max=most))
            for queue, most in ((None, 1), (None, 9), ("line1", 2))
        ]

    def opened(self) -> Any:
        if self.table_format == "delta":
            return DeltaTable(self.table)
        catalog, name = _catalog(str(self.table))
        return catalog.load_table(name)

    def export(self, queue: str, count: int) -> None:
        ids = list(range(self.sent + 1, self.sent + count + 1))
        self.sent += count
        self.segments[queue].append(ids)
        write(self.folder, len(self.segments[queue]), ids[0], ids[-1], queue)

    @rule(which=st.integers(0, 3), exported=st.lists(st.tuples(st.sampled_from(QUEUES), st.integers(1, 3)), max_size=3))
    def ingest(self, which: int, exported: list[tuple[str, int]]) -> None:
        """Of new segments, and of those that are there. which: 3: a new ingest."""
        for queue, count in exported:
            self.export(queue, count)
        going = load(job(self.folder, self.table)) if which == 3 else self.running[which]
        rows, reached = set(self.state.rows), dict(self.state.reached)
        for queue in QUEUES[:1] if which == 2 else QUEUES:
            for ids in self.segments[queue][reached.get(queue, 0) :]:
                rows.update(ids)
                reached[queue] = reached.get(queue, 0) + 1
        done = going.run(False)
        assert done.rows == len(rows) - len(self.state.rows)
        if done.batches:
            self.state, self.begun = State(frozenset(rows), reached), True

    @precondition(lambda self: self.state.rows)
    @rule(place=st.integers(0))
    def delete(self, place: int) -> None:
        """Others delete a row, which is not loaded again."""
        row = sorted(self.state.rows)[place % len(self.state.rows)]
        self.opened().delete(f"lookup_id = {row}")
        self.state = State(self.state.rows - {row}, self.state.reached)

    @invariant()
    def each_row_is_there_once(self) -> None:
        if self.begun:
            assert numbers(self.table, self.table_format) == sorted(self.state.rows)
            assert {place.queue: serial for place, serial in serials(str(self.table)).items()} == self.state.reached


class DeltaWalk(Walk):
    table_format = "delta"


class IcebergWalk(Walk):
    table_format = "iceberg"


TestDeltaWalk, TestIcebergWalk = DeltaWalk.TestCase, IcebergWalk.TestCase
TestDeltaWalk.settings = TestIcebergWalk.settings = settings(
    max_examples=5,
    stateful_step_count=10,
    deadline=None,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)
