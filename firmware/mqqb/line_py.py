"""The twin of the C core's line functions (c_core/mqqb_line.h): encode and decode frames."""

import struct
from binascii import crc32

from mqqb import const

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    Buffer = bytes | bytearray | memoryview

_HEADER = const(7)
_FRAME_MAX = const(255)
_ZERO = b"\0"
_CRC_OF_ALL = 0x2144DF1C  # CRC-32 of any bytes followed by their own CRC-32


def seal(buffer: bytearray, view: memoryview, start: int, end: int) -> int:
    """Make a frame of the content in buffer[start + 1 : end], at `start`; returns its end, including the zero.

    view: of the whole buffer. The content and its CRC take at most 253 bytes.
    """
    struct.pack_into("<I", buffer, end, crc32(view[start + 1 : end]))
    end += 4
    buffer[end] = 0
    find = buffer.find
    while start < end:
        zero = find(_ZERO, start + 1)
        buffer[start] = zero - start
        start = zero
    return end + 1


def unseal(buffer: bytearray, view: memoryview, start: int, end: int) -> bool:
    """Decode buffer[start:end], which contains no zero, in place. False: not a frame, and spoiled.

    The content is then buffer[start + 1 : end - 4].
    """
    if not 5 <= end - start < _FRAME_MAX:
        return False
    code = start
    while code < end:
        step = buffer[code]
        buffer[code] = 0
        code += step
    return code == end and crc32(view[start + 1 : end]) == _CRC_OF_ALL


def frames(
    out: bytearray, view: memoryview, at: int, head: bytearray, data: "Buffer", start: int, count: int, most: int
) -> int:
    """Put data[start : start + count] into out[at:], as DATA with up to `most` bytes of payload each; returns the end.

    head: their header; its number advances. Without data one frame is made. view: of the whole of `out`.
    """
    while True:
        size = min(count, most)
        out[at + 1 : at + 1 + _HEADER] = head
        if size:
            out[at + 1 + _HEADER : at + 1 + _HEADER + size] = data[start : start + size]
        at = seal(out, view, at, at + 1 + _HEADER + size)
        number = (head[3] | head[4] << 8) + 1
        head[3] = number & 0xFF
        head[4] = number >> 8 & 0xFF
        start += size
        count -= size
        if not count:
            return at
