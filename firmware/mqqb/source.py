"""The source's role, on a queue manager and on a board alike (sans I/O): until when a message may go out, and what
acknowledgements say of the messages that wait.
"""

from mqqb import const, core

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from collections.abc import Iterable

    from mqqb.confirm import Confirmation
    from mqqb.headers import FinalAck
    from mqqb.lives import SourceQueue, Storage
    from mqqb.reader import OrderAckBody

HOLD = const(0x40)  # beside the actions of confirm: send it no more; a FinalAck may settle it until C (C-22)


def too_late(confirmation: "Confirmation", time: int, until: int) -> int:
    """What becomes of a message that is due at `time`, or would be sent: the action. 0: nothing, it may go out.

    until: T0 + the smaller of TTRQ and TTBR, as the packet has them, or later. All in s since 1970 (C-18 to C-22,
    B-311).
    """
    action = confirmation.handle_deadline(time)
    if not action and time > until:
        action = confirmation.overdue(until) or HOLD
    return action


def order_ack(
    storage: "Storage",
    body: "OrderAckBody",
    queues: "Iterable[SourceQueue]",
    of_peer: "Iterable[SourceQueue]",
    now: int,
) -> None:
    """An OrderAck has come (B-230 to B-237). queues: all. of_peer: those for the peer that it came from; they are
    looked at once at most. now: monotonic ms.
    """
    for queue in queues:  # ids are unique among all of them (B-230)
        stream = queue.stream
        if stream.is_progress(body):
            storage.answer(queue, stream.order_ack(body, now), 0)
            return
    from mqqb import lives  # not before one says something else

    lives.explain(storage, body, queues, of_peer, now)


def final_ack(storage: "Storage", packet: "FinalAck", guid: bytes, queues: "Iterable[SourceQueue]", now: int) -> None:
    """A FinalAck has come (B-241 to B-245). guid: of this queue manager. queues: those that may have its message."""
    body = packet.body
    if body.source_guid != guid:  # B-241
        return
    message_class = packet.message.properties.fields[core.PROPERTIES_MESSAGE_CLASS]
    for queue in queues:
        entry = queue.stream.final_ack(body, now)
        if entry is not None:
            storage.answer(queue, [entry], message_class)
            return
    storage.came_late(body.fields[core.ACK_MESSAGE_ID], message_class)
