"""The model of one transactional stream, checked with spin: the short form of tests/engine/spin/check.py."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

CHECK = Path(__file__).parent / "spin" / "check.py"
PROPERTIES = {
    "once",
    "in_order",
    "durable_first",
    "order_ack_durable",
    "settled_is_stored",
    "window",
    "no_deadlock",
    "ends",
}


@pytest.mark.timeout(300)
def test_the_properties_hold_and_each_of_them_can_fail() -> None:
    for program in ("spin", "gcc"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    done = subprocess.run([sys.executable, CHECK, "--json"], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    for expected in ("holds", "fails"):
        assert {line["property"] for line in lines if line["expected"] == expected} == PROPERTIES
    assert all(line["ok"] and line["states"] for line in lines)
