"""Rows of outgoing messages in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from ordack.store.disk import StoreError

READ_AHEAD = 63  # rows per statement; with the row before them a window,
READ_AHEAD_BYTES = 16 << 10  # unless they are larger
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


class Reading:
    """Reads rows of outgoing messages ahead, several in one statement.

    Messages usually leave a queue in order of arrival. In another order, and with large packets and runs, nothing is
    read ahead. rows: OutgoingQueues.rows. at_hand: needs no reading.
    """

    def __init__(self, rows: Callable[[int, int, int], list[Row]], at_hand: AtHand) -> None:
        self._rows = rows
        self._at_hand = at_hand
        self._ahead: dict[int, deque[Row]] = {}  # by outgoing queue

    def packet(self, outgoing: int, key: int) -> tuple[bytearray, int]:
        """See OutgoingQueues.packet. outgoing: the message's queue."""
        row = self.row(outgoing, key)
        return row.packets(key, 1), row.until

    def row(self, outgoing: int, key: int) -> Row:
        """The row of a message. outgoing: the message's queue. Raises StoreError if the message is gone."""
        if kept := self._at_hand.find(outgoing, key):
            return kept
        ahead = self._ahead.get(outgoing, deque())
        last: Row | None = None
        while ahead and ahead[0].key < key:
            last = ahead.popleft()
        if not ahead or key <= ahead[0].key - ahead[0].messages:
            follows = last and not ahead and len(last.packet) <= READ_AHEAD_BYTES
            ahead = deque(self._rows(outgoing, key, READ_AHEAD if follows else 1))
        if not ahead or key <= ahead[0].key - ahead[0].messages:
            raise StoreError(f"outgoing message {key} is gone")
        self._ahead[outgoing] = ahead
        return ahead[0]
