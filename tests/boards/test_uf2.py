"""The file that a Pico takes when its BOOTSEL button is held has the bytes of its firmware, at their places."""

import runpy
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from tests.conformance import ROOT

PROGRAM = ROOT / "firmware" / "ports" / "rp2" / "uf2.py"
UF2 = runpy.run_path(str(PROGRAM))["uf2"]
PICO = ROOT / "build" / "rp2" / "firmware"  # `make firmware` makes it
SMALL = """
.text
.rept 20000
.word 0x01234567
.endr
.data
.ascii "what the start copies into the RAM"
"""
PLACES = "SECTIONS { .text 0x10000000 : { *(.text) } .data 0x20000000 : AT (0x10000000 + SIZEOF(.text)) { *(.data) } }"
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


def small(folder: Path) -> Path:
    """A program for a Pico that has nothing but bytes, built as its firmware is."""
    made = folder / "small"
    made.with_suffix(".s").write_text(SMALL)
    made.with_suffix(".ld").write_text(PLACES)
    elf, flash = made.with_suffix(".elf"), made.with_suffix(".bin")
    build = ["arm-none-eabi-gcc", "-mcpu=cortex-m0plus", "-nostdlib", "-Wl,--build-id=none"]
    for command in (
        [*build, "-T", made.with_suffix(".ld"), made.with_suffix(".s"), "-o", elf],
        ["arm-none-eabi-objcopy", "-O", "binary", elf, flash],
        [sys.executable, PROGRAM, flash, made.with_suffix(".uf2")],
    ):
        subprocess.run(command, check=True)
    return made


@pytest.mark.parametrize("board", ["small", "pico"])
def test_a_uf2_has_what_its_elf_has(tmp_path: Path, board: str) -> None:
    if board == "pico" and not PICO.with_suffix(".uf2").exists():
        pytest.skip(f"{PICO}.uf2 is missing: make firmware builds it")
    made = PICO if board == "pico" else small(tmp_path)
    flash = content(made.with_suffix(".uf2").read_bytes())
    loaded = 0
    with made.with_suffix(".elf").open("rb") as file:
        for segment in ELFFile(file).iter_segments("PT_LOAD"):
            data, place = segment.data(), segment["p_paddr"] - FLASH
            if data and 0 <= place < len(flash):
                assert flash[place : place + len(data)] == data
                loaded += len(data)
    assert len(flash) - 1024 < loaded <= len(flash)
