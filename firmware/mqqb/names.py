"""Queue names: direct format names, the base of all names, and text on the wire (wire.md 1.5, 2.2)."""

import struct

from mqqb import MICROPYTHON, const

NULL_GUID: bytes = b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"  # a literal takes no memory of a board
ORDER_QUEUE_ID = const(4)  # the order queue as a private queue of the destination host (wire.md 4.3)
ORDER_QUEUE_PATH = "\\PRIVATE$\\order_queue$"

# The kinds of names by the selectors DQ, AQ, RQ (wire.md 2.2).
NONE = const(0)
ID = const(1)
PUBLIC = const(2)
PRIVATE = const(3)
DIRECT = const(4)
KINDS = (NONE, NONE, ID, ID, ID, PUBLIC, PRIVATE, DIRECT)

# ---- texts and GUIDs ----------------------------------------------------------------------------


def utf16_decode(raw: bytes) -> str:
    """Text of little-endian WCHARs. A lone surrogate stays a character: utf16_encode gives back the same bytes."""
    if not MICROPYTHON:  # MicroPython has no codecs
        return raw.decode("utf-16-le", "surrogatepass")
    units = struct.unpack("<{}H".format(len(raw) >> 1), raw)
    if max(units, default=0) < 0x80:
        return bytes(units).decode()
    chars = []
    at = 0
    while at < len(units):
        unit = units[at]
        at += 1
        if unit & 0xFC00 == 0xD800 and at < len(units) and units[at] & 0xFC00 == 0xDC00:
            unit = 0x10000 + ((unit & 0x3FF) << 10 | units[at] & 0x3FF)
            at += 1
        chars.append(chr(unit))
    return "".join(chars)


def utf16_encode(text: str) -> bytes:
    """Little-endian WCHARs of a text, without a NUL."""
    if not MICROPYTHON:
        return text.encode("utf-16-le", "surrogatepass")
    if max(text, default="") < "\x80":
        return struct.pack("<{}H".format(len(text)), *text.encode())
    raw = bytearray()
    for char in text:
        unit = ord(char)
        if unit >= 0x10000:
            unit -= 0x10000
            raw.append(unit >> 10 & 0xFF)
            raw.append(0xD8 | unit >> 18)
            unit = 0xDC00 | unit & 0x3FF
        raw.append(unit & 0xFF)
        raw.append(unit >> 8)
    return bytes(raw)


def terminated(text: str) -> bytes:
    """A text's WCHARs and a NUL. Raises ValueError if the text contains a NUL."""
    if "\0" in text:
        raise ValueError("a text on the wire ends at its first NUL: " + repr(text))
    return utf16_encode(text) + b"\0\0"


def check_guid(guid: bytes) -> bytes:
    """The GUID. Raises ValueError unless it has 16 bytes."""
    if len(guid) != 16:
        raise ValueError("a GUID has 16 bytes")
    return guid


def guid_text(guid: bytes) -> str:
    """16 wire bytes as {D1-D2-D3-D4}, upper case (wire.md 1.1)."""
    return "{%08X-%04X-%04X-%04X-%04X%08X}" % (struct.unpack("<IHH", guid[:8]) + struct.unpack(">HHI", guid[8:16]))


# ---- queue names --------------------------------------------------------------------------------


class QueueName:
    """The base of all queue names. raw: the name's bytes without count and padding."""

    __slots__ = ("raw",)
    kind = NONE
    selector = 0  # of DQ, AQ and RQ; UserHeader.Flags gives the rest

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def wire(self) -> bytes:
        """The bytes in a UserHeader."""
        return self.raw


class DirectQueueFormatName(QueueName):
    """A queue by address and path, without the leading DIRECT= (wire.md 1.5). raw: its WCHARs with the NUL."""

    __slots__ = ()
    kind = DIRECT
    selector = 7

    def __init__(self, direct_format_name: str, raw: "bytes | None" = None) -> None:
        self.raw = terminated(direct_format_name) if raw is None else raw
        if not 4 <= len(self.raw) <= 0xFFFE:  # B-431
            raise ValueError("a direct name has 1 to 32766 characters")

    @property
    def direct_format_name(self) -> str:
        """The text."""
        return utf16_decode(self.raw[:-2])

    def wire(self) -> bytes:
        """Count, WCHARs, padding."""
        size = len(self.raw)
        return bytes((size & 0xFF, size >> 8)) + self.raw + bytes(-(2 + size) & 3)


def check_queue(name: str) -> None:
    """Raise ValueError if no queue can have this name."""
    wrong: "str | None" = None if 0 < len(name) <= 124 else "length"
    for char in name:
        if char < " " or char in '\\;+,"':
            wrong = char
    if wrong:
        raise ValueError("queue name {!r}: {!r} is not allowed".format(name, wrong))


def parse_format_name(text: str) -> QueueName:
    r"""Parse a direct format name in the form of applications: DIRECT=OS:host\private$\name. guids.py parses all kinds.

    Raises ValueError with the reason.
    """
    kind, _, rest = text.partition("=")
    protocol, _, path = rest.partition(":")
    if kind.upper() != "DIRECT" or protocol.upper() not in ("TCP", "OS"):
        raise ValueError("not DIRECT=TCP: or OS:: " + text)
    address, _, queue = path.partition("\\")
    if queue[:9].lower() == "private$\\":
        queue = queue[9:]
    if not address:
        raise ValueError("no address: " + text)
    for part in queue.split(";", 1):  # a sub-queue may follow
        check_queue(part)
    return DirectQueueFormatName(rest)
