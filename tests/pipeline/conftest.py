"""Where the tests of the pipeline have their segments and their table."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.exports import MEMORY, make_store
from tests.support.segment_files import make_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for segments, with its marker."""
    return make_folder(tmp_path / "segments")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Where a table is to be made."""
    return tmp_path / "table"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with the queues line1 and plain."""
    return make_store(tmp_path / "store")


@pytest.fixture
def to(tmp_path: Path) -> Path:
    """Where an export makes its folder."""
    return tmp_path / "segments"


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)
