"""Merges untransmitted messages of several sequences into one, after an OrderAck has ended the sequence before them.

A board that wakes, accepts a message and sleeps begins a sequence each time. A sequence leaves only when the one before
has drained (B-093). The OrderAck names the destination's current sequence. So no life of this log has delivered a later
one, not even a life begun from the same copy (A-08). A board imports this module when several sequences wait.
"""

from array import array

from mqqb import const
from ordack.node.storage import log

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from typing import Any

    from ordack.node.backlog import Commits
    from ordack.node.queue import DestinationQueue

_FAR = const(0x2000000)  # above every Ordinal of DestinationQueue.renew
_NUMBERS_IN_PART = const(4)  # of a TransactionHeader: TxSequenceID, number, previous number


def renumber(commits: "Commits", queue: "DestinationQueue") -> None:
    """Renumber whole sequences of messages in memory that wait behind an OrderAck, up to half a segment. The last
    sequence stays, because it may grow. Raises OutboxError, MemoryError if nothing was renumbered.

    The last message is logged first, so that the order survives a power cut. Nothing is transmitted until all is
    durable.
    """
    outbox = commits.outbox
    opened = outbox.log
    table = queue.stream.table
    message: "Any"
    count = 0
    need = opened.segment_size // -2
    for place in range(len(table)):
        if table[place].tx_sequence_id != table[place - 1].tx_sequence_id:
            count = place
        message = table[place].key
        need += log.HEAD_BYTES + message.size
        if need > 0:
            break
    last = table[count - 1].tx_sequence_id + _FAR
    if table[0].tx_sequence_id + _FAR >= last or not commits.commit_now():
        return
    counters = array("I", (last & 0xFFFFFFFF, last >> 32, 0, 0))
    at = queue.draft.transaction_at + _NUMBERS_IN_PART
    outbox.prepare(opened.segment_size // 2)
    noted = outbox.to_note
    outbox.to_note = noted or []  # blocks transmission until None, or the new records are cut off
    try:
        for place in range(count, 0, -1):
            message = table[place - 1].key
            commits.packets.let_go(message)
            counters[2] = place + 1
            outbox.copied.append((message, opened.copy_message(message, counters, at), opened.segments[-1]))
        opened.sync()
    except (MemoryError, OSError, log.OutboxError):
        opened.give_up()
    for place in range(count):  # allocates nothing
        table[place].tx_sequence_id = last
        table[place].tx_sequence_number = place + 1
    try:
        outbox.sync_tail()
    except MemoryError as error:
        commits.error = error  # only a restart finds the renumbered packets
    outbox.to_note = noted
