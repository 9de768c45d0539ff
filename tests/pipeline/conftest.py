"""Where the tests of the pipeline have their segments and their table."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.segment_files import make_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A Python whose first process for a stream is too slow for Spark; it leaves a folder behind.
SLOW = """#!/bin/sh
case "$*" in *python_streaming_source_runner*) mkdir "$0.was-slow" 2>&- && exec sleep 15 ;; esac
exec {python} "$@"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for segments, with its marker."""
    return make_folder(tmp_path / "segments")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Where a table is to be made."""
    return tmp_path / "table"


@pytest.fixture
def slow_start(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The next stream starts too slowly at first; this is there when it has."""
    from ordack.pipeline.spark import register

    python = tmp_path / "python"
    python.write_text(SLOW.format(python=sys.executable))
    python.chmod(0o755)
    with monkeypatch.context() as slow:
        slow.setattr(spark.sparkContext, "pythonExec", str(python))
        register(spark)
        yield tmp_path / "python.was-slow"
    register(spark)
