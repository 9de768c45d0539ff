"""Rows of outgoing messages in memory."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

AT_HAND_BYTES = 16 << 20  # of the packets of rows just stored
Packet = bytes | bytearray | memoryview


class Row(NamedTuple):
    """The packets of a row, of equal length. key: of its last message. until: last second for sending, -1 after a
    withdrawal."""

    key: int
    messages: int
    packet: Packet
    until: int

    def packets(self, key: int, count: int) -> bytearray:
        """`count` packets, from the message with this key on."""
        size = len(self.packet) // self.messages
        end = self.messages - (self.key - key + 1) + count
        return bytearray(memoryview(self.packet)[(end - count) * size : end * size])


class AtHand:
    """Rows just stored, which leave next, by outgoing queue. Rows above AT_HAND_BYTES are only in the store."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all rows, because the store may have others."""
        self._rows: dict[int, deque[Row]] = {}
        self._bytes = 0

    def forget(self, outgoing: int) -> None:
        """Forget the rows of an outgoing queue."""
        self._bytes -= sum(len(row.packet) for row in self._rows.pop(outgoing, ()))

    def add(self, outgoing: int, row: Row) -> None:
        """Keep a row with keys above all others of its queue."""
        if self._bytes < AT_HAND_BYTES:
            self._rows.setdefault(outgoing, deque()).append(row)
            self._bytes += len(row.packet)

    def find(self, outgoing: int, key: int) -> Row | None:
        """The row of a message, if it is here. Forget the rows before it, which have left."""
        rows = self._rows.get(outgoing)
        while rows and rows[0].key < key:
            self._bytes -= len(rows.popleft().packet)
        return rows[0] if rows and key > rows[0].key - rows[0].messages else None

    def sent(self, outgoing: int, key: int) -> None:
        """Forget the rows up to a sent message."""
        self.find(outgoing, key + 1)
