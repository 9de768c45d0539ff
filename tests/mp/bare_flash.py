"""A small flash without a file system, for tests of the segments on it."""

import chip
from ordack.node.storage import raw_flash

BLOCK = 512
UNIT = 32
BLOCKS = 16


def blank(blocks=BLOCKS):
    return chip.Nor(BLOCK, bytearray(b"\xff" * (blocks * BLOCK)), UNIT)


def open_flash(device):
    return raw_flash.RawFlash(device, UNIT)
