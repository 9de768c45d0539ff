"""The file that a Pico takes when its BOOTSEL button is held has the bytes of its firmware, at their places."""

import runpy
import struct

import pytest

from tests.conformance import ROOT

UF2 = runpy.run_path(str(ROOT / "firmware" / "ports" / "rp2" / "uf2.py"))["uf2"]
FLASH = 0x10000000
RP2040 = 0xE48BFF56


def content(data: bytes) -> bytes:
    """What a Pico's boot ROM would write to the begin of its flash; every block is as Microsoft's text has it."""
    assert len(data) % 512 == 0
    flash = bytearray()
    for place in range(0, len(data), 512):
        block = data[place : place + 512]
        second, flags, address, size, number, count, family = struct.unpack_from("<7I", block, 4)
        assert (block[:4], second, block[-4:]) == (b"UF2\n", 0x9E5D5157, bytes.fromhex("306fb10a"))
        assert (flags, size, family) == (0x2000, 256, RP2040)
        assert (number, count) == (place // 512, len(data) // 512)
        assert address == FLASH + 256 * number
        assert not any(block[32 + size : -4])
        flash += block[32 : 32 + size]
    return bytes(flash)


@pytest.mark.parametrize("size", [1, 256, 257, 70000])
def test_a_uf2_has_the_bytes_it_was_made_from(size: int) -> None:
    flash = bytes(number * 7 % 251 for number in range(size))
    found = content(UF2(flash))
    assert found[:size] == flash
    assert len(found) < size + 256
    assert not any(found[size:])
