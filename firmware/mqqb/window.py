"""What one session has sent and received: its counters, what the window lets through, what is acknowledged."""

from array import array
from collections import deque

from mqqb import const, core

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from mqqb import streams

IN_FLIGHT_MAX = const(0x7FFF)
_ONE_MESSAGE = const(1)  # the window that asks the peer to wait


class Window:
    """Both message sequences of one connection.

    counts: the words of core.session_*. in_flight: what was sent and is not yet covered by an AckSequenceNumber, oldest
    first; None stands for what nobody waits for.
    awaiting_bits: recoverable entries that are not transactional, until a bit covers them. is_paused: the peer is asked
    for one message at a time.
    """

    __slots__ = ("_full", "awaiting_bits", "counts", "in_flight", "is_paused")

    def __init__(self, size: int) -> None:
        self.counts = array("I", bytes(4 * core.SESSION_WORDS))
        core.session_init(self.counts, size)
        self.in_flight: "deque[streams.Entry | None]" = deque((), min(size, IN_FLIGHT_MAX))  # noqa: RUF037
        self.awaiting_bits: "list[streams.Entry]" = []
        self.is_paused = False
        self._full = 0  # the peer's window, as negotiated

    def open(self, size: int) -> None:
        """The peer has told its window in the handshake (B-213)."""
        self._full = max(size, 1)
        self.counts[core.SESSION_RECEIVED_WINDOW_SIZE] = self._full

    def is_small(self) -> bool:
        """Has the peer made its window smaller than it was (B-129)?"""
        return self.counts[core.SESSION_RECEIVED_WINDOW_SIZE] < self._full

    def grow(self) -> None:
        """Double a window that the peer has made small (B-129)."""
        counts = self.counts
        counts[core.SESSION_RECEIVED_WINDOW_SIZE] = min(2 * counts[core.SESSION_RECEIVED_WINDOW_SIZE], self._full)

    @property
    def half(self) -> int:
        """Messages of the peer after which it should hear of them (B-124)."""
        counts = self.counts
        window = _ONE_MESSAGE if self.is_paused else counts[core.SESSION_WINDOW_SIZE]
        return max(min(window, counts[core.SESSION_RECEIVED_WINDOW_SIZE]) // 2, 1)

    def sent(self, entry: "streams.Entry | None", recoverable: bool, now: int) -> None:
        """The message that was counted last is the entry's: it has these numbers on this connection (B-320)."""
        if entry is not None:
            entry.sequence_number = self.counts[core.SESSION_SENT]
            entry.recoverable_sequence_number = self.counts[core.SESSION_RECOVERABLE_SENT] if recoverable else 0
            entry.awaiting_ack = True
            if entry.stream is not None:
                entry.stream.sent(entry, now)
            if recoverable and not entry.tx_sequence_number:
                self.awaiting_bits.append(entry)
        self.in_flight.append(entry)

    def fill(self, header: "array[int]") -> bool:
        """Make the words of a SessionHeader that goes out now. True: it does not acknowledge all that has come."""
        core.session_fill(self.counts, header)
        if self.is_paused:
            header[core.ACKS_WINDOW_SIZE] = _ONE_MESSAGE
        return core.session_unacked_received(self.counts) != 0

    def acknowledge(self, heard: "array[int]") -> "list[streams.Entry] | None":
        """Apply a SessionHeader that has been checked: in-flight entries first, then the bits (B-219 to B-225).

        The entries that it acknowledges for good, if there are any.
        """
        settled: "list[streams.Entry] | None" = None
        in_flight = self.in_flight
        acked = self.counts[core.SESSION_PEER_ACKED]
        left = core.session_unacked_sent(self.counts)
        while len(in_flight) > left:
            entry = in_flight.popleft()
            # not one that waits to be sent again, or was, behind what is acknowledged (B-151)
            if entry is not None and entry.awaiting_ack and not core.serial_after(entry.sequence_number, acked):
                entry.awaiting_ack = False
                entry.received_session_ack = True
                if not entry.recoverable:
                    if settled is None:
                        settled = []
                    settled.append(entry)
        if self.awaiting_bits:
            base = heard[core.ACKS_BASE]
            flags = heard[core.ACKS_FLAGS]
            waiting: "list[streams.Entry]" = []
            settled = settled or []
            for entry in self.awaiting_bits:
                (settled if core.is_acked(base, flags, entry.recoverable_sequence_number) else waiting).append(entry)
            self.awaiting_bits = waiting
        return settled
