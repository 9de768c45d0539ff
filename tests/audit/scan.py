"""One call of mqqb_scan, with guard words behind what it may write; and packets of every layout to scan."""

from __future__ import annotations

import struct

from _mqqb import ffi, lib
from hypothesis import strategies as st
from mqqb import core

COLUMNS = [
    name.removeprefix("MQQB_SCAN_")
    for name in dir(lib)
    if name.startswith("MQQB_SCAN_") and not name.startswith(("MQQB_SCAN_BAD_", "MQQB_SCAN_FULL", "MQQB_SCAN_COLUMNS"))
]
Row = dict[str, int]


def scan(data: bytes, capacity: int, wanted: list[str] = COLUMNS) -> tuple[list[Row], int, int]:
    """One call of mqqb_scan, of the columns wanted, with a guard word behind each."""
    columns = ffi.new("mqqb_scan_columns *")
    arrays = {name: ffi.new("uint32_t[]", [0xA5A5A5A5] * (capacity + 1)) for name in wanted}
    for name, values in arrays.items():
        columns.column[getattr(lib, f"MQQB_SCAN_{name}")] = values
    consumed, status = ffi.new("size_t *"), ffi.new("int32_t *")
    count = lib.mqqb_scan(data, len(data), columns, capacity, consumed, status)
    assert count <= capacity
    for values in arrays.values():
        assert all(value == 0xA5A5A5A5 for value in values[count : capacity + 1]), "written behind the last row"
    rows = [{name: values[i] for name, values in arrays.items()} for i in range(count)]
    for row in rows:
        if row.get("STATUS"):
            row["STATUS"] -= 1 << 32
    return rows, consumed[0], status[0]


WORD = st.integers(0, 0xFFFFFFFF)


def base(flags: int, size: int) -> bytes:
    return struct.pack("<BBHIII", 0x10, 0, flags, 0x524F494C, size, 0x54600)


@st.composite
def session_headers(draw: st.DrawFn) -> bytes:
    return struct.pack("<HHIHHHH", 3, 1, draw(WORD), 2, 1, draw(st.sampled_from([1, 64, 0xFFFF])), 0)


@st.composite
def internals(draw: st.DrawFn) -> bytes:
    flags = core.BASE_IN | 3
    kind = draw(st.integers(1, 3))
    header = struct.pack("<HH", 0, kind)
    if kind == 1:
        return base(flags | core.BASE_SH, 36) + header + draw(session_headers())
    if kind == 2:
        return base(flags, 572) + header + struct.pack("<32sIHH512s", b"g" * 32, 5, 0x0310, 0, b"\x5a" * 512)
    return base(flags, 32) + header + struct.pack("<IIHH", 500, 20000, 0, draw(st.integers(0, 64)))


def pad(raw: bytes) -> bytes:
    return raw + bytes(-len(raw) % 4)


def wide(text: str) -> bytes:
    return text.encode("utf-16-le") + b"\0\0"


DIRECT = [
    "OS:h\\q",
    "TCP:10.0.0.5\\PRIVATE$\\order_queue$",
    "SPX:1.2\\PRIVATE$\\order_queue$",
    "tcp:::1\\private$\\ORDER_QUEUE$",
    "TCP:\\PRIVATE$\\order_queue$",
]


@st.composite
def queue_names(draw: st.DrawFn, kind: int, order_queue: bool = False) -> bytes:
    if order_queue:
        text = wide(draw(st.sampled_from(DIRECT[1:3])))
        return b"\4\0\0\0" if kind == 3 else pad(struct.pack("<H", len(text)) + text)
    if kind < 7:
        return [b"", b"", struct.pack("<I", draw(st.integers(3, 5))), b"\4\0\0\0", b"\4\0\0\0", b"p" * 16, b"q" * 20][
            kind
        ]
    text = wide(draw(st.sampled_from(DIRECT)))
    return pad(struct.pack("<H", len(text)) + text)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """A UserMessage, OrderAck or FinalAck with any optional headers."""
    flags = core.USER_MP | draw(st.sampled_from([0, 0x20]))
    ack = draw(st.booleans())
    names = b""
    for shift, kinds in ((10, (0, 3, 5, 7, 3, 7)), (13, (0, 0, 2, 3, 5, 6, 7)), (16, (0, 0, 1, 2, 3, 4, 5, 6, 7))):
        order_queue = ack and shift == 10 and draw(st.booleans())
        kind = draw(st.sampled_from((3, 7) if order_queue else kinds))
        flags |= kind << shift
        names += draw(queue_names(kind, order_queue))
    chain = b""
    if draw(st.booleans()) and flags & core.USER_DM:
        flags |= core.USER_TH
        connector = draw(st.booleans())
        number = draw(st.integers(1, 0xFFFFFFFF))
        chain += struct.pack("<IIIII", 0x0C | connector, 1, 7, number, number - 1) + b"c" * 16 * connector
    if draw(st.integers(0, 3)) == 0:
        flags |= core.USER_SH
        sizes = draw(st.lists(st.integers(0, 9), min_size=5, max_size=5).filter(any))
        chain += struct.pack("<HHHHII", 1, *sizes) + b"".join(pad(b"s" * size) for size in sizes)
    if draw(st.integers(0, 5)) == 0:
        flags |= core.USER_CQ
        names += b"t" * 16
    label = wide(
        "QM Ordering Ack" if ack else draw(st.sampled_from(["x", "QM Ordering Ack", "\U0001f600", "abcdefgh"]))
    )
    label = draw(st.sampled_from([label, label, label, b""]))
    body = struct.pack("<IIII16sI", 1, 7, 4, 3, b"g" * 16, 9) if ack else b"b" * draw(st.integers(0, 40))
    extension = b"e" * draw(st.sampled_from([0, 0, 1, 5]))
    surplus = draw(st.sampled_from([0, 0, 0, 4]))
    message_class = draw(st.sampled_from([0, 0x00FF, 0x4000, 0x8003, 1]))
    chain += struct.pack(
        "<BBH20sIIIIIIII",
        0,
        len(label) // 2,
        message_class,
        b"",
        0,
        0,
        len(body),
        len(body) + surplus,
        0,
        0,
        0,
        len(extension),
    )
    chain = pad(chain + label + extension + body + bytes(surplus))
    base_flags = 3
    if draw(st.integers(0, 3)) == 0:
        base_flags |= core.BASE_DH
        queue = draw(st.booleans())
        chain += struct.pack("<HH", queue, 0) + b"d" * 16 * queue
    if draw(st.integers(0, 3)) == 0:
        flags |= core.USER_HH
        for number, aligned in ((0x320, draw(st.booleans())), (0x384, True)):
            text = wide("s" * draw(st.integers(0, 3)))
            chain += struct.pack("<HHI", number, 0, len(text) // 2) + text
            chain = pad(chain) if aligned else chain
    if draw(st.integers(0, 3)) == 0:
        flags |= core.USER_MQ
        for number in (0x64, 0xC8, 0x12C):
            count = draw(st.integers(0, 2))
            chain += struct.pack("<IHHI", 12 + 8 * count, number, 0, count) + b"f" * 8 * count
        chain += struct.pack("<HHI", 0x15E, 0, 4) + b"sign"
    chain += draw(st.sampled_from([b"", b"", b"", b"trailing"]))  # OP-2
    user = struct.pack("<16s16sIIII", b"s" * 16, b"d" * 16, 0xFFFFFFFF, 1700000000, draw(WORD), flags)
    packet = user + names + chain
    if draw(st.booleans()):
        return base(base_flags | core.BASE_SH, 16 + len(packet)) + packet + draw(session_headers())
    return base(base_flags, 16 + len(packet)) + packet
