"""An audit in shares, as Spark's tasks do it, without Spark: the rows of a data frame lie in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pyarrow as pa
from ordack.audit import tasks
from ordack.audit.result import AuditResult


class Rows:
    """What stages uses of a session, and of a data frame with these partitions."""

    def __init__(self, partitions: Sequence[pa.Table] = ()) -> None:
        self._partitions = list(partitions)

    def range(self, start: int, end: int, step: int, count: int) -> Rows:
        assert (start, step, end) == (0, 1, count)
        return Rows([pa.table({"id": [number]}) for number in range(count)])

    def mapInArrow(self, work: Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]], schema: str) -> Rows:  # noqa: N802
        names = [part.split()[0] for part in schema.split(", ")]
        made = [list(work(iter(own.to_batches()))) for own in self._partitions]
        empty = pa.table({name: pa.array([], pa.int64()) for name in names})
        return Rows([pa.Table.from_batches(batches) if batches else empty for batches in made])

    def persist(self, _level: object) -> Rows:
        return self

    def unpersist(self) -> None:
        self._partitions.clear()

    def where(self, text: str) -> Rows:
        name, _, test = text.partition(" is ")
        return Rows(
            [own.filter(own[name].is_null() if test == "null" else own[name].is_valid()) for own in self._partitions]
        )

    def select(self, *names: str) -> Rows:
        return Rows([own.select(list(names)) for own in self._partitions])

    def repartitionById(self, count: int, name: str) -> Rows:  # noqa: N802
        parts = [own for own in self._partitions if len(own)] or self._partitions[:1]
        whole = pa.concat_tables(parts)
        shares = whole[name].to_pylist()
        return Rows([whole.filter(pa.array([share == at for share in shares], pa.bool_())) for at in range(count)])

    def sortWithinPartitions(self, *names: str) -> Rows:  # noqa: N802
        return Rows([own.sort_by([(name, "ascending") for name in names]) for own in self._partitions])

    def collect(self) -> list[dict[str, Any]]:
        return [row for own in self._partitions for row in own.to_pylist()]


def run(paths: Sequence[str | Path], parts: int) -> AuditResult:
    """The audit in so many shares."""
    with mock.patch("gc.freeze"):  # each task has a process of its own: in this one, memory would never be freed
        return tasks.run(paths, spark=cast("Any", Rows()), parts=parts)
