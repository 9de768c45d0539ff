"""`ordack bench`: what it measures, and that it leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import DEADLINE_S, ENVIRONMENT

pytestmark = pytest.mark.slow
BENCH = [sys.executable, "-m", "ordack", "bench", "--boards", "3", "--json"]


def test_bench_measures_and_removes_its_store(tmp_path: Path) -> None:
    done = subprocess.run(
        [*BENCH, "--seconds", "0.3", "--size", "100"],
        cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=DEADLINE_S, check=True,
    )  # fmt: skip
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [figures["bench"] for figures in found] == ["send", "receive", "3 boards"]
    for figures in found:
        assert figures["messages"] > 0
        assert figures["per_second"] > 0
        assert 0 < figures["p50_ms"] <= figures["p99_ms"]
    assert found[1]["messages"] <= found[0]["messages"]
    assert list(tmp_path.iterdir()) == []


def test_interrupted_bench_removes_its_store(tmp_path: Path) -> None:
    command = [*BENCH, "--seconds", "60"]
    with subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as process:
        while not list(tmp_path.glob("*/ordack.sqlite")):
            assert process.poll() is None
        process.terminate()  # SIGINT is ignored where the tests run in the background
        errors = process.communicate(timeout=DEADLINE_S)[1]
    assert (process.returncode, errors) == (143, "ordack: interrupted: the temporary store is removed\n")
    assert list(tmp_path.iterdir()) == []


def test_bench_reports_an_unusable_folder() -> None:
    done = subprocess.run(BENCH, cwd="/proc", env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, "cannot measure in the current folder" in done.stderr) == (1, "", True)
