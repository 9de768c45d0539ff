"""A session whose queue is on hold or goes elsewhere; only hosts have this file."""

from collections import deque

from mqqb import connection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mqqb.session import Session
    from mqqb.streams import OutgoingStream


def pause(session: "Session", now: int) -> None:
    """The queue is put on hold (B-128, B-345): what is stored is acknowledged, and from now on each SessionHeader
    asks the peer for one message at a time. The owner sends nothing of the queue; the session may go idle.
    """
    if session.state == connection.OPEN:
        session.window.is_paused = True
        session.send_session_ack(now)
        session.is_active = False


def resume(session: "Session", now: int) -> None:
    """The queue is taken off hold (B-346): tell the peer that the whole window is open again."""
    if session.state == connection.OPEN and session.window.is_paused:
        session.window.is_paused = False
        session.send_session_ack(now)
        session.is_active = True


def forget(session: "Session", stream: "OutgoingStream") -> None:
    """Another session sends what is in this stream: nobody waits for what this one's peer acknowledges of it."""
    window = session.window
    entries = (None if entry is None or entry.stream is stream else entry for entry in window.in_flight)
    window.in_flight = deque(entries, window.in_flight.maxlen)
    window.awaiting_bits = [entry for entry in window.awaiting_bits if entry.stream is not stream]
