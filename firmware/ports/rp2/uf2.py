"""Makes the UF2 file for a Raspberry Pi Pico's BOOTSEL drive: uf2.py FIRMWARE.bin FIRMWARE.uf2

Microsoft's UF2: blocks of 512 bytes, each with 256 bytes of the flash and their address.
"""

import struct
import sys
from pathlib import Path

FLASH = 0x10000000
PAYLOAD = 256
RP2040 = 0xE48BFF56
_FAMILY_PRESENT = 0x2000
_BEGIN = (0x0A324655, 0x9E5D5157)
_END = 0x0AB16F30


def uf2(flash: bytes) -> bytes:
    """The UF2 file for these bytes at the beginning of the flash."""
    count = -(-len(flash) // PAYLOAD)
    blocks = []
    for number in range(count):
        data = flash[number * PAYLOAD : (number + 1) * PAYLOAD].ljust(PAYLOAD, b"\0")
        head = struct.pack("<8I", *_BEGIN, _FAMILY_PRESENT, FLASH + number * PAYLOAD, PAYLOAD, number, count, RP2040)
        blocks.append(head + data.ljust(476, b"\0") + struct.pack("<I", _END))
    return b"".join(blocks)


if __name__ == "__main__":
    Path(sys.argv[2]).write_bytes(uf2(Path(sys.argv[1]).read_bytes()))
