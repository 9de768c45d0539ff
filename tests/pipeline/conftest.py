"""Where the tests of the pipeline have their segments and their table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.segment_files import make_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for segments, with its marker."""
    return make_folder(tmp_path / "segments")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Where a table is to be made."""
    return tmp_path / "table"
