"""A running `ordack serve --http`, and what is asked of it."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from ordack.broker.manager import Manager
from ordack.server import monitor
from ordack.server.listener import Listener
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.support.command import DEADLINE_S, Serve

Samples = dict[tuple[str, str], float]  # (name, label) -> value


class Watched:
    """A running `ordack serve --http`."""

    def __init__(self, store: Path, *arguments: str) -> None:
        self.store = store
        self.serve = Serve(store, "--http", "0", *arguments)
        assert self.serve.process.stdout
        self.line = self.serve.process.stdout.readline()
        found = re.search(r"127\.0\.0\.1:(\d+)", self.line)
        assert found, self.line
        self.http = int(found[1])

    def get(self, path: str) -> tuple[int, str]:
        return get(self.http, path)

    def samples(self) -> Samples:
        return samples_of(self.get("/metrics")[1])


@contextlib.contextmanager
def watched_serve(store: Path, *arguments: str) -> Iterator[Watched]:
    """One that is killed in the end."""
    running = Watched(store, *arguments)
    try:
        yield running
    finally:
        running.serve.process.kill()
        running.serve.process.communicate()


def get(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    """Status and body."""
    with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)) as connection:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def families_of(text: str) -> list[Metric]:
    return list(text_string_to_metric_families(text))


def samples_of(text: str) -> Samples:
    return {
        (sample.name, next((value for name, value in sample.labels.items() if name != "le"), "")): sample.value
        for family in families_of(text)
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }


def until(true: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while not (found := true()):
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return found


@contextlib.contextmanager
def answering(manager: Manager, token: bytes = b"") -> Iterator[int]:
    """The port on which a queue manager of this process is watched."""
    told: list[str] = []
    watching = monitor.Monitor(manager, Listener("127.0.0.1", 0).socket, told.append, token)
    watching.start()
    try:
        yield int(watching.address.rpartition(":")[2])
    finally:
        watching.close()
    assert told == []
