"""Queues on hold, queues moved to another session, and stream states for operators. Only hosts have this file."""

from collections import deque

from mqqb import connection, core
from mqqb.streams import Entry, OutgoingStream, previous_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mqqb.session import Session


def pause(session: "Session", now: int) -> None:
    """Put the queue on hold (B-128, B-345): acknowledge stored messages; each SessionHeader then asks the peer for one
    message at a time. The owner sends no message of the queue; the session may go idle.
    """
    if session.state == connection.OPEN:
        session.window.is_paused = True
        session.send_session_ack(now)
        session.is_active = False


def resume(session: "Session", now: int) -> None:
    """Take the queue off hold (B-346): open the whole window to the peer."""
    if session.state == connection.OPEN and session.window.is_paused:
        session.window.is_paused = False
        session.send_session_ack(now)
        session.is_active = True


def forget(session: "Session", stream: OutgoingStream) -> None:
    """Another session takes over this stream: ignore this peer's acknowledgements of the stream's messages."""
    window = session.window
    entries = (None if entry is None or entry.stream is stream else entry for entry in window.in_flight)
    window.in_flight = deque(entries, window.in_flight.maxlen)
    window.awaiting_bits = [entry for entry in window.awaiting_bits if entry.stream is not stream]


class TransferInfo:
    """The state of an outgoing stream for operators: OutgoingTransferInfo (B-080, B-239, B-423).

    A SEQUENCE_INFO is (64-bit TxSequenceID, number, previous number) or None. Times: in ms like `now`; resend_time is
    0 while no timer runs. no_ack_count: without OrderAck, sent or not; no_read_count: without FinalAck. numbered:
    transactional messages in the table, if known.
    """

    def __init__(self, stream: OutgoingStream, numbered: "int | None" = None) -> None:
        if numbered is None:
            numbered = sum(1 for entry in stream.table if entry.tx_sequence_number)
        record = stream.record
        current = stream.tx_sequence_id
        number = record[core.OUTGOING_NUMBER]
        last_ack = record[core.OUTGOING_LAST_ACK]
        size = len(stream.table) if numbered else 0
        self.first_non_ack = _sequence_info(stream.table, range(size))
        self.last_non_ack = _sequence_info(stream.table, range(size - 1, -1, -1))
        self.last_ack = (current, last_ack, max(last_ack - 1, 0))
        self.next_seq = (current, number, number - 1)  # B-290
        self.last_ack_count = stream.last_ack_count
        self.last_ack_time = stream.time_of_last_ack
        self.no_ack_count = numbered
        self.no_read_count = len(stream.awaiting_final_ack)
        self.resend_count = stream.resend_interval_index
        self.resend_interval = stream.resend_interval
        self.resend_time = stream.next_timeout() or 0


def _sequence_info(table: "list[Entry]", places: range) -> "tuple[int, int, int] | None":
    for place in places:
        entry = table[place]
        if entry.tx_sequence_number:
            return (entry.tx_sequence_id, entry.tx_sequence_number, previous_number(table, place, entry.tx_sequence_id))
    return None
