"""A capture that several files read in their own ways."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nothing is wrong in it."""
    pytest.importorskip("pyarrow", reason="the pipeline is not installed")
    from tests.support import capture_generator

    folder = tmp_path_factory.mktemp("plain")
    return Path(capture_generator.generate(10, folder, violations=False, faults=[], length=1500).paths[0])
