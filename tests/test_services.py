"""What a board needs around the node: tests/mp/test_services.py, on CPython."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "mp"))


def load(name: str) -> Any:
    """A script of tests/mp, whose name pytest takes for another file's."""
    specification = importlib.util.spec_from_file_location(f"{name}_on_boards", Path(__file__).parent / f"mp/{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize("test", load("test_services").TESTS, ids=lambda test: str(test.__name__))
def test_service(test: Callable[[], None]) -> None:
    test()
