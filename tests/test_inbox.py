"""The board as a destination: tests/mp/test_inbox.py on CPython."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.test_services import load

BOARDS = load("test_inbox")


@pytest.mark.parametrize("test", BOARDS.TESTS, ids=lambda test: str(test.__name__))
def test_inbox(test: Callable[[], None]) -> None:
    test()
