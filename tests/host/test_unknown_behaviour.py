"""Settings for what no document says of Windows (host/docs/how-to/windows.md), on a socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import DEADLINE_S
from tests.support.foreign_peer import PLAIN, Server, message


@pytest.fixture
def lenient(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "store", CloseOnMismatch=False)
    yield server
    server.stop()


@pytest.mark.rule("A-13", "B-227")
def test_lenient_setting_keeps_session_despite_wrong_count(lenient: Server) -> None:
    with lenient.connect() as line:
        line.confirm()
        header = bytearray(line.header(more=1))
        header[8] += 2  # UserMsgSequenceNumber
        line.write(message(line.guid, PLAIN, b"wrong count", delivery=0, header=bytes(header)))
        line.write(message(line.guid, PLAIN, b"after that", delivery=0))
        line.sent += 2
        line.works()
    assert lenient.received("plain") == [b"wrong count", b"after that", b"alive"]
    while "B-227" not in lenient.said.get(timeout=DEADLINE_S):
        pass
