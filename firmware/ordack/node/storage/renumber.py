"""Gives messages that were never transmitted one sequence together, once an OrderAck has ended the one before them.

A board that wakes to accept a message, and sleeps again, begins a sequence each time. A sequence leaves only when the
one before it has drained (B-093). The OrderAck names the sequence that the destination is at. So no life of this log
has delivered anything of a later one, not even a life that began from the same copy (A-08). A board imports this when
several sequences wait.
"""

from array import array

from mqqb import const
from ordack.node.storage import log

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from typing import Any

    from ordack.node.backlog import Commits
    from ordack.node.queue import DestinationQueue

_FAR = const(0x2000000)  # above every Ordinal that DestinationQueue.renew gives
_NUMBERS_IN_PART = const(4)  # of a TransactionHeader: its TxSequenceID, its number and the one before it


def renumber(commits: "Commits", queue: "DestinationQueue") -> None:
    """Renumber the messages in memory that wait behind an OrderAck, as whole sequences, as far as half a segment holds
    them. The last sequence stays, for messages may be added to it. Raises OutboxError, MemoryError: it was not done.

    The last message is logged first: whatever a power cut leaves, their order is the same. Until all of it is durable,
    nothing is transmitted.
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
    outbox.to_note = noted or []  # nothing leaves before this is None again, or what was written is cut off
    try:
        for place in range(count, 0, -1):
            message = table[place - 1].key
            commits.packets.let_go(message)
            counters[2] = place + 1
            outbox.copied.append((message, opened.copy_message(message, counters, at), opened.segments[-1]))
        opened.sync()
    except (MemoryError, OSError, log.OutboxError):
        opened.give_up()
    for place in range(count):  # nothing takes memory here
        table[place].tx_sequence_id = last
        table[place].tx_sequence_number = place + 1
    try:
        outbox.sync_tail()
    except MemoryError as error:
        commits.error = error  # only a restart finds the packets that have these numbers
    outbox.to_note = noted
