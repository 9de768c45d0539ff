"""What the rig's tests share: the stand-in pair, and a quick campaign of it."""

import asyncio
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from rich.console import Console

from hil.campaign import Settings, run_campaign
from hil.report import Figures

# As in tests/conftest.py: what a busy machine makes slow has not failed.
settings.register_profile("ordack", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("ordack")

STANDIN = Path(__file__).with_name("standin.py")

RunStandin = Callable[..., Figures]


@pytest.fixture
def run_standin(tmp_path: Path) -> RunStandin:
    """Run a small campaign of the stand-in pair: `run(fault="lose:7", messages=30)`; its figures."""

    def run(fault: str = "none:0", **settings: Any) -> Figures:
        wanted: dict[str, Any] = {
            "messages": 30,
            "cuts": 4,
            "kills": 1,
            "seed": 5,
            "board": "cpython",
            "max_size": 4096,
            "header_bytes": 8,
            "patience_s": 60.0,
            "ordack": (sys.executable, str(STANDIN), "--fault", fault),
            "application": STANDIN,
            "artefacts": tmp_path / "campaign",
            **settings,
        }
        return asyncio.run(run_campaign(Settings(**wanted), Console(file=io.StringIO())))

    return run
