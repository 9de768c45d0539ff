"""What OrderAcks tell of another life of their source (sans I/O): of a store or a folder that was put back from a copy,
or of a copy that sends under the same identifier.

A destination knows a message of the copy by its number, however often it comes. But it may
have accepted later numbers or sequences of which the copy does not know. It then refuses older ones for ever (B-275),
and its OrderAcks name what it has (B-269). There are two cases:

* The number was never given here, and is later than any in its sequence, or its sequence is later than any of this
  life. Then the clock is behind, or a twin is at work (B-413). From then on numbers are given above it (B-426).
* The sequence is later than one that still waits here. What waits is over, because a sequence is sent only when the one
  before has drained (B-093). Its messages arrived, were refused, or were ended by an operator, and only the other life
  was told. They are not sent again and are in doubt: exactly once forbids to number them again (A-08).

An OrderAck names no queue. Its TimeStamp tells which stream it is for, if that stream has or had one like it. If no
stream had, or its sequence is later than that stream's, the OrderAck proves nothing at first: it may have come late,
for a sequence that has drained, or be wrong. It counts when it comes again after a resend, which causes it.
"""

from mqqb import MICROPYTHON, confirm, const, core

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from collections.abc import Iterable

    from mqqb.confirm import SourceQueue, Storage
    from mqqb.streams import Entry, OrderAckBody, OutgoingStream

# OrderAcks whose sequence nobody began here: as many queues may have been put back, and anybody can send more (B-411).
REMEMBERED = 8 if MICROPYTHON else 10000
_ROLLS = const(1048576)  # as often may a stream have drained since its TimeStamp was given


def explain(
    storage: "Storage",
    body: "OrderAckBody",
    queues: "Iterable[SourceQueue]",
    of_peer: "Iterable[SourceQueue]",
    now: int,
) -> None:
    """An OrderAck acknowledges nothing that is pending, as confirm.order_ack has found.

    of_peer: the queues for the peer that it came from, read once at most. The other arguments are those of
    confirm.order_ack.
    """
    acked = body.tx_sequence_id
    number = body.fields[core.ACK_NUMBER]
    queue = _queue_of(acked >> 32, queues)
    if queue is None or not _is_given(queue.stream, acked, number):
        storage.outrun(acked >> 32, queue)
    if queue is not None and acked <= queue.stream.tx_sequence_id:
        stream = queue.stream
        # Where new numbers have become later by now, what has one of this sequence had it before the copy was made.
        over = _end(storage, queue, acked, 0 if _is_given(stream, acked, number) else number)
        covered = stream.order_ack(body, now)
        storage.answer(queue, covered, 0)
        if over or covered or 0 <= stream.tx_sequence_id - acked < _ROLLS:
            return  # a late one, for what this stream has drained: ordinals of another life are far away (B-096)
    for one in _refused(storage.strangers, acked, queue, of_peer, now):
        storage.outrun(acked >> 32, one)
        _end(storage, one, acked, 0)


def _refused(
    strangers: "dict[int, int]", acked: int, likely: "SourceQueue | None", of_peer: "Iterable[SourceQueue]", now: int
) -> "list[SourceQueue]":
    """Those which the peer refuses: what they have sent is older, and they have heard nothing of their own since
    such an OrderAck came for the first time, before it was sent again. likely: the one with its TimeStamp; none of
    the others, while something waits there that it can be about.
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
    """What the destination refuses for ever, having passed on to this number, is over. Is there any?"""
    over = refused_for_ever(queue.stream, tx_sequence_id, number)
    if over:
        queue.stream.remove(over)
        storage.answer(queue, over, confirm.NACK_REACH_QUEUE_TIMEOUT)
    return len(over) > 0


def refused_for_ever(stream: "OutgoingStream", tx_sequence_id: int, number: int) -> "list[Entry]":
    """What waits up to this number, or below this sequence where number is 0."""
    found = []
    for entry in stream.table:
        if entry.tx_sequence_number:
            if (entry.tx_sequence_id, entry.tx_sequence_number) > (tx_sequence_id, number):
                break  # they rise along the table
            found.append(entry)
    return found


def _queue_of(time_stamp: int, queues: "Iterable[SourceQueue]") -> "SourceQueue | None":
    """The queue that an OrderAck with this TimeStamp is for: it is at such a sequence, or an older one waits there."""
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
    """Was this number given in the stream, as far as that knows?"""
    return (tx_sequence_id, number) < (stream.tx_sequence_id, stream.record[core.OUTGOING_NUMBER])
