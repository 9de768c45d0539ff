"""mqqb_scan against a model: the same walk in plain Python, on the twin's checks of the parts (wire.md 3 and 4)."""

from __future__ import annotations

import json
import re
import struct
from array import array
from typing import Any

import pytest
from _mqqb import lib
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mqqb import core, core_py

from tests.audit.scan import COLUMNS, Row, base, internals, messages, scan
from tests.conformance import ROOT


class Bad(Exception):
    """The model finds the packet malformed."""


def u16(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<H", data, at)[0])


def u32(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])


class Walk:
    """A cursor in a header chain that refuses to leave the packet (B-430)."""

    def __init__(self, data: bytes, at: int, limit: int) -> None:
        self.data, self.at, self.limit = data, at, limit

    def take(self, size: int) -> int:
        """Where the next size bytes are."""
        at, self.at = self.at, self.at + size
        if self.at > self.limit:
            raise Bad
        return at

    def align(self, start: int) -> None:
        self.take(-(self.at - start) % 4)

    def part(self, part: int) -> array[int]:
        fields = array("I", bytes(4 * core_py.part_words(part)))
        if core_py.unpack(part, fields, self.data, self.at, self.limit) != core.OK:
            raise Bad
        self.take(core_py.part_size(part))
        return fields

    def text(self, length: int) -> str:
        at = self.take(2 * length)
        text = self.data[at : at + 2 * length].decode("utf-16-le", "surrogatepass") if self.units(at, length) else ""
        return text[:-1]

    def units(self, at: int, length: int) -> bool:
        """The last WCHAR, and no other, is 0."""
        if 0 in (units := struct.unpack_from(f"<{length}H", self.data, at))[:-1] or units[-1] != 0:
            raise Bad
        return True


def pass_name(walk: Walk, kind: int) -> str:
    """Steps over a queue name; the text of a direct one."""
    if kind < 7:
        walk.take([0, 0, 4, 4, 4, 16, 20][kind])
        return ""
    start = walk.take(2)
    count = u16(walk.data, start)
    if count < 4 or count % 2:
        raise Bad
    text = walk.text(count // 2)
    walk.align(start)
    return text


def pass_soap(walk: Walk, start: int) -> None:
    def section(number: int) -> None:
        at = walk.take(8)
        if u16(walk.data, at) != number or not (length := u32(walk.data, at + 4)):
            raise Bad
        walk.text(length)

    section(0x0320)
    if walk.at + 2 <= walk.limit and u16(walk.data, walk.at) != 0x0384:  # OP-8
        walk.align(start)
    section(0x0384)
    walk.align(start)


def pass_lists(walk: Walk) -> None:
    for number in (0x0064, 0x00C8, 0x012C):
        at = walk.take(12)
        size, count = u32(walk.data, at), u32(walk.data, at + 8)
        if u16(walk.data, at + 4) != number or size < 12 or 4 * count > size - 12:
            raise Bad
        walk.take((size + 3) // 4 * 4 - 12)
    at = walk.take(8)
    if u16(walk.data, at) != 0x015E:
        raise Bad
    walk.take(u32(walk.data, at + 4))


def pass_rest(walk: Walk, start: int, base_flags: int, user_flags: int) -> None:
    walk.align(start)
    if base_flags & core.BASE_DH and walk.part(core.DEBUG_HEADER)[core.DEBUG_FLAGS] & 3 == 1:
        walk.take(16)
    if user_flags & core.USER_HH:
        pass_soap(walk, start)
    if user_flags & core.USER_MQ:
        pass_lists(walk)


def session_columns(walk: Walk) -> Row:
    offset = walk.at
    h = walk.part(core.SESSION_HEADER)
    return {
        "SESSION_OFFSET": offset,
        "ACK_SEQUENCE_NUMBER": h[core.ACKS_SEQUENCE_NUMBER],
        "RECOVERABLE_MSG_ACK_SEQ_NUMBER": h[core.ACKS_BASE],
        "RECOVERABLE_MSG_ACK_FLAGS": h[core.ACKS_FLAGS],
        "USER_MSG_SEQUENCE_NUMBER": h[core.ACKS_SENT],
        "RECOVERABLE_MSG_SEQUENCE_NUMBER": h[core.ACKS_RECOVERABLE_SENT],
        "WINDOW_SIZE": h[core.ACKS_WINDOW_SIZE],
    }


def internal_columns(walk: Walk, start: int, base_flags: int) -> Row:
    flags = walk.part(core.INTERNAL_HEADER)[core.INTERNAL_FLAGS]
    kind = flags & core.INTERNAL_PT
    if walk.limit - start != {1: 36, 2: 572, 3: 32}[kind] or (kind == 1 and not base_flags & core.BASE_SH):
        raise Bad
    row = {"INTERNAL_FLAGS": flags}
    if kind == core.PT_SESSION_ACK:
        return row | session_columns(walk) | {"KIND": lib.MQQB_KIND_SESSION_ACK}
    if kind == core.PT_ESTABLISH_CONNECTION:
        walk.part(core.ESTABLISH_CONNECTION)
        return row | {"KIND": lib.MQQB_KIND_ESTABLISH_CONNECTION}
    walk.part(core.CONNECTION_PARAMETERS)
    return row | {"KIND": lib.MQQB_KIND_CONNECTION_PARAMETERS}


def message_columns(walk: Walk, start: int, base_flags: int) -> Row:
    row: Row = {"KIND": lib.MQQB_KIND_USER_MESSAGE, "SOURCE_OFFSET": walk.at}
    user = walk.part(core.USER_HEADER)
    flags = user[core.USER_FLAGS]
    row["MESSAGE_ID"] = user[core.USER_MESSAGE_ID]
    row["USER_FLAGS"] = flags
    row["SENT_TIME"] = user[core.USER_SENT_TIME]
    row["TIME_TO_BE_RECEIVED"] = user[core.USER_TIME_TO_BE_RECEIVED]
    name_at = walk.at
    name = pass_name(walk, flags >> 10 & 7)
    if walk.at > name_at:
        row["DESTINATION_OFFSET"], row["DESTINATION_SIZE"] = name_at, walk.at - name_at
    pass_name(walk, flags >> 13 & 7)
    pass_name(walk, flags >> 16 & 7)
    walk.take(16 if flags & core.USER_CQ else 0)
    if flags & core.USER_TH:
        tx = walk.part(core.TRANSACTION_HEADER)
        walk.take(16 if tx[core.TX_FLAGS] & core.TX_CG else 0)
        for column, place in (
            ("TX_FLAGS", core.TX_FLAGS),
            ("TX_SEQUENCE_ORDINAL", core.TX_ORDINAL),
            ("TX_SEQUENCE_TIME_STAMP", core.TX_TIME_STAMP),
            ("TX_SEQUENCE_NUMBER", core.TX_NUMBER),
            ("PREVIOUS_TX_SEQUENCE_NUMBER", core.TX_PREVIOUS),
        ):
            row[column] = tx[place]
    if flags & core.USER_SH:
        for size in walk.part(core.SECURITY_HEADER)[1:]:
            walk.take((size + 3) // 4 * 4)
    row["PROPERTIES_OFFSET"] = walk.at
    properties = walk.part(core.MESSAGE_PROPERTIES_HEADER)
    message_class = row["MESSAGE_CLASS"] = properties[core.PROPERTIES_MESSAGE_CLASS]
    row["PROPERTIES_FLAGS"] = properties[core.PROPERTIES_FLAGS]
    label = ""
    if length := properties[core.PROPERTIES_LABEL_LENGTH]:
        row["LABEL_OFFSET"], row["LABEL_LENGTH"] = walk.at, length
        label = walk.text(length)
    walk.take(properties[core.PROPERTIES_EXTENSION_SIZE])
    row["BODY_OFFSET"] = walk.at
    size = row["BODY_SIZE"] = properties[core.PROPERTIES_MESSAGE_SIZE]
    allocated = properties[core.PROPERTIES_ALLOCATION_BODY_SIZE]
    Walk(walk.data, walk.at, walk.limit).take(allocated)
    for candidate in (size, allocated):  # OP-4
        rest = Walk(walk.data, walk.at, walk.limit)
        rest.take(candidate)
        try:
            pass_rest(rest, start, base_flags, flags)
            break
        except Bad:
            if candidate == allocated:
                raise
    direct = re.fullmatch(r"(?:tcp|spx):[^\\]+\\private\$\\order_queue\$", name, re.IGNORECASE | re.ASCII)
    ours = u32(walk.data, name_at) == 4 if flags & core.USER_DQ == 3 << 10 else direct
    if ours and label == "QM Ordering Ack" and (message_class == 0xFF or message_class >= 0x4000):
        if size != 36:
            raise Bad
        final = message_class != 0xFF
        ack = walk.part(core.FINAL_ACK)
        row["KIND"] = lib.MQQB_KIND_FINAL_ACK if final else lib.MQQB_KIND_ORDER_ACK
        row["ACK_TX_SEQUENCE_ORDINAL"] = ack[core.ACK_ORDINAL]
        row["ACK_TX_SEQUENCE_TIME_STAMP"] = ack[core.ACK_TIME_STAMP]
        row["ACK_TX_SEQUENCE_NUMBER"] = ack[core.ACK_NUMBER]
        row["ACK_PREVIOUS_TX_SEQUENCE_NUMBER"] = ack[core.ACK_PREVIOUS]
        if final:
            row["ACK_SOURCE_OFFSET"], row["ACK_MESSAGE_ID"] = row["BODY_OFFSET"] + 16, ack[core.ACK_MESSAGE_ID]
    if base_flags & core.BASE_SH:
        row |= session_columns(Walk(walk.data, walk.limit, walk.limit + 16))
    return row


def model(data: bytes) -> tuple[list[Row], int, int]:
    """Rows (STATUS -1 for any malformed packet), bytes consumed, status (-1 for any negative one)."""
    rows: list[Row] = []
    at = 0
    total = array("I", [0])
    while at < len(data):
        status = core_py.frame(data, at, len(data), total)
        if status == core.NEED_MORE:
            return rows, at, status
        row = {"OFFSET": at, "BASE_FLAGS": u16(data, at + 2), "TIME_TO_REACH_QUEUE": u32(data, at + 12)}
        if status != core.OK:
            return [*rows, row | {"STATUS": -1}], at, -1
        walk = Walk(data, at + 16, at + u32(data, at + 8))
        columns = internal_columns if row["BASE_FLAGS"] & core.BASE_IN else message_columns
        try:
            found = columns(walk, at, row["BASE_FLAGS"])
        except Bad:
            found = {"STATUS": -1}
        rows.append(row | {"TOTAL_SIZE": total[0]} | found)
        at += total[0]
    return rows, at, core.OK


def scan_all(data: bytes, capacity: int) -> tuple[list[Row], int, int]:
    """As many calls as it takes, rows numbered as by one."""
    rows: list[Row] = []
    at = 0
    while True:
        found, consumed, status = scan(data[at:], capacity)
        for row in found:
            for column, value in row.items():
                if column == "OFFSET" or (column.endswith("_OFFSET") and value):
                    row[column] = value + at
        rows += found
        at += consumed
        if status != lib.MQQB_SCAN_FULL:
            return rows, at, status


# ---- packets to scan --------------------------------------------------------------------------------


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Packets in a row, some with bytes changed, the last one perhaps cut off."""
    data = b""
    for _ in range(draw(st.integers(1, 5))):
        packet = bytearray(draw(st.one_of(internals(), messages(), messages())))
        for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
            at = draw(st.integers(0, min(len(packet), 400) - 1))
            packet[at] = draw(st.sampled_from([0, 1, 2, 4, 0x10, 0x7F, 0x80, 0xFF, packet[at] ^ 1, packet[at] ^ 0x20]))
        data += packet
    return data[: len(data) - draw(st.sampled_from([0, 0, 0, 1, 16, 60]))]


CAPTURED = [
    bytes.fromhex(frame["raw_hex"])
    for frame in json.loads((ROOT / "tests/vectors.json").read_text())["frames"]
    if "BaseHeader" in frame["fields"]
]


def same(found: tuple[list[Row], int, int], expected: tuple[list[Row], int, int]) -> None:
    assert found[1] == expected[1]
    assert found[2] == expected[2] or (found[2] < 0 and expected[2] == -1)
    assert len(found[0]) == len(expected[0])
    for row, wanted in zip(*(result[0] for result in (found, expected))):
        if "STATUS" in wanted:
            assert row["STATUS"] < 0, row
            row = row | {"STATUS": -1}
        assert row == dict.fromkeys(COLUMNS, 0) | wanted


@pytest.mark.rule(
    "B-174", "B-175", "B-176", "B-429", "B-430", "B-431", "B-432", "B-433", "OP-2", "OP-4", "OP-8", "A-51"
)
@given(data=streams(), capacity=st.integers(1, 40))
@example(data=b"".join(CAPTURED), capacity=40)
@example(data=b"", capacity=1)
@example(data=b"".join(CAPTURED[:4]) * 20, capacity=33)
def test_scan_is_the_model(data: bytes, capacity: int) -> None:
    expected = model(data)
    same(scan_all(data, capacity), expected)
    found, consumed, status = scan(data, capacity)
    assert len(found) == min(capacity, len(expected[0]))
    if len(found) < len(expected[0]) or (len(found) == capacity and consumed < len(data) and status >= 0):
        assert status == lib.MQQB_SCAN_FULL
    assert scan(data, 0) == ([], 0, core.OK if not data else lib.MQQB_SCAN_FULL)


@pytest.mark.rule("B-168", "B-430")
@given(data=st.binary(max_size=700), start=st.sampled_from([b"", base(3, 120), base(11, 36), base(0x13, 300)]))
def test_any_bytes_at_all(data: bytes, start: bytes) -> None:
    same(scan_all(start + data, 3), model(start + data))


def test_most_generated_packets_are_well_formed() -> None:
    """The generator must reach the far end of the walk: no optional header, and no kind, may be missing."""
    kinds: set[Any] = set()
    bits = 0

    @settings(derandomize=True, max_examples=400)
    @given(packet=st.one_of(internals(), messages()))
    def collect(packet: bytes) -> None:
        nonlocal bits
        (row,), _, status = scan(packet, 1)
        assert status == core.OK
        if row["STATUS"] == core.OK:
            kinds.add(row["KIND"])
            bits |= row["USER_FLAGS"] | row["BASE_FLAGS"] << 32

    collect()
    assert kinds == set(range(1, 7))
    for bit in (
        core.USER_TH,
        core.USER_SH,
        core.USER_CQ,
        core.USER_HH,
        core.USER_MQ,
        core.BASE_SH << 32,
        core.BASE_DH << 32,
    ):
        assert bits & bit
