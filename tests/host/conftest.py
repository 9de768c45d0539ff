"""What several files here share: a queue manager for a peer that speaks by hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.command import as_json as ordack
from tests.support.foreign_peer import Server


@pytest.fixture
def server(running: Server) -> Server:
    """The server, with queues that are empty."""
    for one in ordack("queue", "list", "--store", running.store):
        if one["messages"]:
            running.received(one["name"])
    return running


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("foreign") / "store")
    yield running
    running.stop()
