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


@pytest.fixture(scope="module", params=(0, 20), ids=("session", "fast path"))
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One whose sessions take every packet, and one with the fast path, which acknowledges at once."""
    running = Server(tmp_path_factory.mktemp("foreign") / "store", early=request.param)
    yield running
    running.stop()
