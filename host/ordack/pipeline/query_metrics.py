"""What queries of one's own have done, for Prometheus: a StreamingQueryListener of Spark.

    prometheus_client.start_http_server(9108)
    spark.streams.addListener(QueryMetrics())

`ordack pipeline ingest --metrics` needs none: gauges says more, and of batches that no query of Spark's writes, too.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge
from pyspark.sql.streaming.listener import StreamingQueryListener

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )


class QueryMetrics(StreamingQueryListener):
    """Counts what all streaming queries of a session do. Their label is the query's name, without one its id.

    registry: of Prometheus, in which each metric can be once: one listener a registry.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._names: dict[str, str] = {}
        label = ("query",)
        self._batches = Counter("ordack_query_batches", "Batches that had rows", label, registry=registry)
        self._rows = Counter("ordack_query_rows", "Rows that were read", label, registry=registry)
        self._failures = Counter("ordack_query_failures", "How often it ended by an error", label, registry=registry)
        self._running = Gauge("ordack_query_running", "1: it runs; 0: it has ended", label, registry=registry)
        self._seconds = Gauge("ordack_query_batch_seconds", "How long the last batch took", label, registry=registry)
        self._last = Gauge(
            "ordack_query_last_batch_timestamp_seconds", "When the last batch was done", label, registry=registry
        )

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name, as those below
        """A query begins, or goes on after a restart."""
        name = self._names[str(event.id)] = event.name or str(event.id)
        self._running.labels(name).set(1)
        self._failures.labels(name)  # is 0 from the beginning

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """A batch is done. Of one without rows Spark tells too, while a query waits."""
        progress = event.progress
        if progress.numInputRows:
            name = progress.name or str(progress.id)
            self._batches.labels(name).inc()
            self._rows.labels(name).inc(progress.numInputRows)
            self._seconds.labels(name).set(progress.batchDuration / 1000)
            self._last.labels(name).set(time.time())

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing has come."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """A query was stopped, or has ended by an error."""
        name = self._names.pop(str(event.id), str(event.id))
        self._running.labels(name).set(0)
        if event.exception is not None:
            self._failures.labels(name).inc()
