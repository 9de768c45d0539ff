"""Sequences that were never transmitted become one sequence, as soon as an OrderAck has ended the one before them.

Each run of `serve`, and each process that sends without `serve`, numbers in a sequence of its own. A sequence leaves
only when the one before it has drained (B-093). So the messages of 200 processes would wait for 200 OrderAcks.

**A transmitted message keeps its number** (A-08). This life of the store has transmitted nothing of a later sequence,
because messages of the oldest one were still in the table. No other life has delivered a later one, because the
OrderAck names the sequence that the destination is at (B-269). So the rule also holds in a store that was put back from
a backup or a copy. If the oldest sequence ends without an OrderAck, the next one keeps its number and brings the proof.
"""

from __future__ import annotations

import itertools
import secrets
from array import array

from mqqb import core, parse
from mqqb.streams import Entry

from ordack.outgoing import OutgoingQueue, OutgoingQueues
from ordack.prediction import number_run
from ordack.store import Store
from ordack.store.database import first_piece
from ordack.store.outgoing import Unsent
from ordack.tables import key_of

LONG = 1000  # messages of a sequence that is worth the wait for an OrderAck; one transaction renumbers no more
FAR_ORDINALS = 1 << 20, 1 << 30  # see mqqb.lives: a sequence drains less often than the first number says


def renumber(store: Store, outgoing: OutgoingQueues, queue: OutgoingQueue, acked: Entry) -> None:
    """An OrderAck has covered messages of an outgoing queue, `acked` is the last one: renumber the sequences behind its
    sequence if that has drained. In the transaction that removes what is covered."""
    stream = queue.stream  # in whose table `acked` was: no held message of an older sequence is covered (mqqb.lives)
    if acked.tx_sequence_id == stream.tx_sequence_id:
        return
    if any(entry.tx_sequence_id == acked.tx_sequence_id for entry in stream.table[:1]):
        return
    unsent = store.outgoing.unsent(queue.identifier, key_of(acked), outgoing.last_key, LONG)
    fitting = len(first_piece((message.key, message.size) for message in unsent))
    sequences = [list(its) for _, its in itertools.groupby(unsent[:fitting], _sequence)]
    if fitting == LONG or fitting < len(unsent):
        sequences.pop()  # it may go on
    if len(sequences) > 1 and _sequence(sequences[0][0]) != acked.tx_sequence_id:
        _renumber(store, outgoing, queue, [message for its in sequences for message in its])


def _sequence(message: Unsent) -> int:
    return message.time_stamp << 32 | message.ordinal


def _renumber(store: Store, outgoing: OutgoingQueues, queue: OutgoingQueue, messages: list[Unsent]) -> None:
    """Give them one sequence, behind that of the last one and before all that follow it."""
    least, most = FAR_ORDINALS
    ordinal, time_stamp = messages[-1].ordinal + least + secrets.randbelow(most), messages[-1].time_stamp
    record, previous = array("I", (ordinal, time_stamp, 1, 0)), 0
    numbers = {}
    for message in messages:
        packet, _ = store.outgoing.packet(message.key)
        number = numbers[message.key] = record[core.OUTGOING_NUMBER]
        its_id = range(message.message_id, message.message_id + 1)
        number_run(record, previous, packet, len(packet), parse.transaction_offset(packet), its_id)
        store.outgoing.renumber(message.key, ordinal, time_stamp, number, packet)
        outgoing.at_hand.pop(message.key, None)
        previous = number
    queue.stream.renumber(time_stamp << 32 | ordinal, numbers)
    if queue.stream.record[core.OUTGOING_TIME_STAMP] == time_stamp:
        queue.stream.adopt(record)
