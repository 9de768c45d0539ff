"""OrderAcks that show another life of their source (sans I/O): a store or folder restored from a copy, or a copy that
sends under the same identifier.

A destination recognises a copy's message by its number. But the destination may have accepted later numbers or
sequences that the copy does not know. It then refuses older ones for ever (B-275), and its OrderAcks name its last
number (B-269). There are two cases:

* The number is unknown here, and later than any of its sequence, or its sequence is later than any of this life. Then
the clock is behind, or a twin is sending (B-413). New numbers then start above it (B-426).
* The sequence is later than that of a pending message. The pending message is settled, because a sequence is sent only
after the one before has drained (B-093). It was received, rejected, or ended by an operator, and only the other life
was told. It is in doubt and not resent: exactly once forbids to renumber it (A-08).

An OrderAck names no queue. Its TimeStamp identifies the stream, if the stream has or had the same one. If no stream
had it, or the sequence is later than the stream's, the OrderAck proves nothing at first. It may be late, for a drained
sequence, or wrong. It counts when a resend causes it again.

One mistake is left. After a restart, an OrderAck for a sequence that ended before it may come late, twice, while older
messages in another queue for that peer are pending. These are then in doubt, too.
"""

from mqqb import MICROPYTHON, confirm, const, core

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from collections.abc import Iterable

    from mqqb.confirm import SourceQueue, Storage
    from mqqb.streams import Entry, OrderAckBody, OutgoingStream

# Remembered OrderAcks of unknown sequences: one for each restored queue; the limit is needed because anybody can send
# them (B-411).
REMEMBERED = 8 if MICROPYTHON else 10000
_ROLLS = const(1048576)  # limit of a stream's sequences under one TimeStamp


def explain(
    storage: "Storage",
    body: "OrderAckBody",
    queues: "Iterable[SourceQueue]",
    of_peer: "Iterable[SourceQueue]",
    now: int,
) -> None:
    """Handle an OrderAck that acknowledges no pending message, as found by confirm.order_ack.

    of_peer: the queues for the sending peer, read once at most. Other arguments: see confirm.order_ack.
    """
    acked = body.tx_sequence_id
    number = body.fields[core.ACK_NUMBER]
    queue = _queue_of(acked >> 32, queues)
    if queue is None or not _is_given(queue.stream, acked, number):
        storage.outrun(acked >> 32, queue)
    if queue is not None and acked <= queue.stream.tx_sequence_id:
        stream = queue.stream
        # If new numbers have become later, messages of this sequence had their numbers before the copy was made.
        over = _end(storage, queue, acked, 0 if _is_given(stream, acked, number) else number)
        covered = stream.order_ack(body, now)
        storage.answer(queue, covered, 0)
        if over or covered or 0 <= stream.tx_sequence_id - acked < _ROLLS:
            return  # late, for a drained sequence of this stream: ordinals of another life are far away (B-096)
    for one in _refused(storage.strangers, acked, queue, of_peer, now):
        storage.outrun(acked >> 32, one)
        _end(storage, one, acked, 0)


def _refused(
    strangers: "dict[int, int]", acked: int, likely: "SourceQueue | None", of_peer: "Iterable[SourceQueue]", now: int
) -> "list[SourceQueue]":
    """The queues that the peer refuses. Their pending messages are older, and no OrderAck of their own has arrived
    since this one first came, before the last resend. likely: the queue with its TimeStamp; while it has such pending
    messages, no other queue counts.
    """
    if likely is not None and refused_for_ever(likely.stream, acked, 0):
        of_peer = [likely]
    first = strangers.setdefault(acked, now)
    if len(strangers) > REMEMBERED:
        del strangers[next(iter(strangers))]
    found = []
    for queue in of_peer:
        stream = queue.stream
        due = stream.next_timeout()
        if (
            due is not None
            and first < due - stream.resend_interval
            and stream.time_of_last_ack <= first
            and refused_for_ever(stream, acked, 0)
        ):
            found.append(queue)
    return found


def _end(storage: "Storage", queue: "SourceQueue", tx_sequence_id: int, number: int) -> bool:
    """End the messages that the destination, already at this number, refuses for ever. Were there any?"""
    over = refused_for_ever(queue.stream, tx_sequence_id, number)
    if over:
        queue.stream.remove(over)
        storage.answer(queue, over, confirm.NACK_REACH_QUEUE_TIMEOUT)
    return len(over) > 0


def refused_for_ever(stream: "OutgoingStream", tx_sequence_id: int, number: int) -> "list[Entry]":
    """The pending messages up to this number, or below this sequence where number is 0."""
    found = []
    for entry in stream.table:
        if entry.tx_sequence_number:
            if (entry.tx_sequence_id, entry.tx_sequence_number) > (tx_sequence_id, number):
                break  # numbers rise along the table
            found.append(entry)
    return found


def _queue_of(time_stamp: int, queues: "Iterable[SourceQueue]") -> "SourceQueue | None":
    """The queue of an OrderAck with this TimeStamp: the queue uses such a sequence, or a pending message has it."""
    for queue in queues:
        if queue.stream.record[core.OUTGOING_TIME_STAMP] == time_stamp:
            return queue
    for queue in queues:
        table = queue.stream.table
        for entry in table:
            if entry.tx_sequence_number and entry.tx_sequence_id >> 32 >= time_stamp:
                if entry.tx_sequence_id >> 32 == time_stamp:
                    return queue
                break
    return None


def _is_given(stream: "OutgoingStream", tx_sequence_id: int, number: int) -> bool:
    """Was this number assigned in the stream, as far as the stream knows?"""
    return (tx_sequence_id, number) < (stream.tx_sequence_id, stream.record[core.OUTGOING_NUMBER])
