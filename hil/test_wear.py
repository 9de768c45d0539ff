"""What a campaign writes to a board's flash, against the model of that flash in tests/mp: an outbox with one message at
a time, and a ledger to which a line is appended for each.
"""

import asyncio
from pathlib import Path

import pytest
from rich.console import Console

from hil import sensor
from hil.boards import BoardMissing
from hil.campaign import run_campaign
from hil.dice import new_seed
from hil.scenario import ORDACK, Settings
from tests import run_mp

READINGS = 200
MAX_SIZE = 32
MODEL = f"""
import flash, wear
written, erased = wear.measure(flash.LITTLEFS, 1, {READINGS}, 2097152, 250, False, 40)
device = flash.LITTLEFS.make(2097152)
flash.LITTLEFS.open(device, flash.LIFE)
device.written = device.erased = 0
for k in range({READINGS}):
    with open(flash.LIFE + "/ledger", "ab") as ledger:
        ledger.write(LINE)
        ledger.flush()
print(written * {READINGS} + device.written, erased * {READINGS} // 1000 + device.erased)
"""


def predicted() -> tuple[int, int]:
    """Bytes that are programmed, and blocks that are erased."""
    line = sensor.line_of(READINGS // 2, bytes(20), 1 << 31)
    done = run_mp.micropython("unix-c", "-X", "heapsize=16M", "-c", MODEL.replace("LINE", repr(line)))
    assert done.returncode == 0, done.stdout
    programmed, erases = map(int, done.stdout.split())
    return programmed, erases


def test_a_campaign_wears_the_flash_as_the_model_says(tmp_path: Path) -> None:
    """With the heap of a board that keeps the end of its log in small files; starts after power cuts cost a little."""
    if not Path(ORDACK[0]).exists():
        pytest.skip(f"{ORDACK[0]} is missing; `make setup` installs it")
    seed = new_seed()
    print(f"seed {seed}")
    settings = Settings(READINGS, 6, 2, seed, "mps2-eth@140", MAX_SIZE, 180.0, 280.0, artefacts=tmp_path, others=False)
    try:
        figures = asyncio.run(run_campaign(settings, Console()))
    except BoardMissing as reason:
        pytest.skip(str(reason))
    assert figures.shortcomings() == [], f"seed {seed}"
    assert figures.wear is not None
    programmed, erases = predicted()
    print(figures.wear, "predicted:", programmed, erases)
    assert figures.wear.erases == pytest.approx(erases, rel=0.1)
    assert figures.wear.programmed == pytest.approx(programmed, rel=0.2)
