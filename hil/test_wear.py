"""What a campaign writes to a board's flash, against the model of that flash in tests/mp: an outbox with one message at
a time, and a ledger to which a line is appended for each.
"""

import pytest

from hil import sensor
from hil.conftest import Play
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


def test_a_campaign_wears_the_flash_as_the_model_says(play: Play) -> None:
    """Starts after power cuts cost a little."""
    figures, _ = play("mps2-eth@140", messages=READINGS, cuts=6, kills=2, max_size=MAX_SIZE, others=False)
    assert figures.wear is not None
    programmed, erases = predicted()
    print(figures.wear, "predicted:", programmed, erases)
    assert figures.wear.erases == pytest.approx(erases, rel=0.1)
    assert figures.wear.programmed == pytest.approx(programmed, rel=0.2)
