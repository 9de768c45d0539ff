"""What an ingest has done, for Prometheus: `ordack pipeline ingest --metrics`.

Every batch that is in the table is counted.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from ordack.pipeline.options import OptionError
from ordack.pipeline.progress import Batch, Figures


class Gauges:
    """Counts batches. Nothing of it is a label but quantiles."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counted = {"batches": "Batches", "rows": "Rows", "segments": "Segments"}
        self._counters = {
            name: Counter(f"ordack_ingest_{name}", f"{what} that are in the table since this ingest began",
                          registry=self.registry)
            for name, what in counted.items()
        }  # fmt: skip
        self._malformed = Counter(
            "ordack_ingest_malformed", "Rows of them whose body does not fit the schema", registry=self.registry
        )
        self._behind = self._gauge("segments_behind", "Segments that were there and not read yet at the last batch")
        self._last = self._gauge("last_batch_timestamp_seconds", "When the last batch was in the table; 0: none was")
        self._looked = self._gauge(
            "last_look_timestamp_seconds", "When a continuous ingest has looked for segments; not while it has to wait"
        )
        self._seconds = self._gauge("batch_seconds", "How long the last batch took")
        self._latencies = {
            "arrived": self._gauge("arrival_to_table_seconds", "Of rows of the last batch", "quantile"),
            "sent": self._gauge("sending_to_table_seconds", "Of rows of the last batch; whole seconds", "quantile"),
        }

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(f"ordack_ingest_{name}", meaning, labels, registry=self.registry)

    def looked(self) -> None:
        """The segments were looked at."""
        self._looked.set(time.time())

    def tell(self, batch: Batch) -> None:
        """Count a batch that is in the table."""
        for name, count in (("batches", 1), ("rows", batch.rows), ("segments", batch.segments)):
            self._counters[name].inc(count)
        self._malformed.inc(batch.malformed or 0)
        self._behind.set(batch.behind)
        self._seconds.set(batch.seconds)
        self._last.set(time.time())
        self._set("arrived", batch.arrived_to_table)
        self._set("sent", batch.sent_to_table)

    def _set(self, which: str, figures: Figures | None) -> None:
        if figures is not None:
            for quantile, value in (("0.5", figures.p50), ("0.9", figures.p90), ("0.99", figures.p99)):
                self._latencies[which].labels(quantile).set(value)

    @contextlib.contextmanager
    def served(self, address: tuple[str, int]) -> Iterator[int]:
        """Answer /metrics over HTTP meanwhile, on this port. Raises OptionError if that cannot be."""
        try:
            server, thread = start_http_server(address[1], address[0], self.registry)
        except OSError as error:
            raise OptionError(f"cannot listen on {address[0]}:{address[1]} (--metrics): {error.strerror}") from None
        try:
            yield int(server.server_port)
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
