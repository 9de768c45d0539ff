"""The log on bare flash: as boards test it, and under a node."""

from __future__ import annotations

from collections.abc import Callable

import bare_flash
import pytest
import test_raw_flash as boards
from ordack.node import Node, OutboxFull

NUMBER = "DIRECT=TCP:127.0.0.1\\private$\\line1"


@pytest.mark.parametrize("test", boards.TESTS, ids=lambda test: str(test.__name__))
def test_as_on_boards(test: Callable[[], None]) -> None:
    test()


def test_a_node_needs_no_folder_and_keeps_to_the_flash() -> None:
    device = bare_flash.blank(64)
    files = bare_flash.open_flash(device)
    node = Node(files=files)
    assert node.outbox.log.capacity == files.bytes_max < 64 * bare_flash.BLOCK
    queue = node.queue(NUMBER)
    sent = 0
    try:
        while True:
            queue.put(b"reading %d" % sent)
            sent += 1
    except OutboxFull as error:
        refusal = str(error)
    assert "bytes are in use" in refusal
    node.close_now()
    node = Node(files=bare_flash.open_flash(device))
    assert node.waiting == sent > 50
    node.close_now()
