"""Settles outgoing messages, sent here or forwarded, by acknowledgements, deadlines and operators' orders.

Times: `now` monotonic milliseconds, `wall` seconds since 1970.
"""

from __future__ import annotations

import itertools
import secrets
from array import array
from typing import TYPE_CHECKING

from mqqb import confirm, connection, core, headers, lives, parse
from mqqb.confirm import Confirmation
from mqqb.streams import Entry

from ordack.broker.sending import number_run
from ordack.broker.streams import key_of
from ordack.config import classes
from ordack.config.config import Config
from ordack.config.names import JOURNAL
from ordack.config.settings import NEVER
from ordack.store import Store, packet_fields
from ordack.store.disk import first_piece, ranges
from ordack.store.outgoing import Run, Unsent, Waiting

if TYPE_CHECKING:
    from ordack.broker.acceptance import Batch
    from ordack.broker.incoming import IncomingStreams
    from ordack.broker.links import PeerLink
    from ordack.broker.outgoing import OutgoingQueue, OutgoingQueues
    from ordack.broker.serve_log import Operator


class _Answers:
    """The answers of acknowledgements in one batch; see mqqb.confirm.Storage."""

    def __init__(self, settling: Settling, batch: Batch) -> None:
        self.strangers = settling.strangers
        self.ended: list[OutgoingQueue] = []  # queues with ended messages
        self.covered: list[tuple[OutgoingQueue, Entry]] = []  # the last message that each OrderAck covers
        self._settling = settling
        self._batch = batch

    def answer(self, queue: OutgoingQueue, entries: list[Entry], message_class: int) -> None:
        if message_class:
            self.ended.append(queue)
        elif entries:
            self.covered.append((queue, entries[-1]))
        if entries:
            self._settling.remember(entries[0].tx_sequence_id, entries[-1].tx_sequence_id)
            self._batch.answer(queue, entries, message_class)
        self._batch.moved[queue] = None

    def outrun(self, time_stamp: int, _queue: OutgoingQueue | None) -> None:
        self._settling.outrun(time_stamp)

    def came_late(self, message_id: int, message_class: int) -> None:
        self._settling.came_late(message_id, message_class)


class Settling:
    """Decides about messages in outgoing queues; the batch holds the decisions."""

    def __init__(
        self, store: Store, config: Config, incoming: IncomingStreams, outgoing: OutgoingQueues, operator: Operator
    ) -> None:
        self._store = store
        self._config = config
        self._incoming = incoming
        self._outgoing = outgoing
        self._operator = operator
        self.strangers: dict[int, int] = {}  # see mqqb.lives
        self._told_of_newer = False

    # ---- acknowledgements

    def order_ack(self, batch: Batch, link: PeerLink, packet: connection.OrderAck, now: int) -> None:
        """Apply an OrderAck (B-230 to B-237)."""
        while True:
            answers = _Answers(self, batch)
            if not confirm.order_ack(answers, packet.body, self._outgoing, now):
                of_peer = (queue for queue in self._outgoing if queue.link and queue.link.peer == link.peer)
                lives.explain(answers, packet.body, self._outgoing, of_peer, now)
            for queue, acked in answers.covered:
                renumber(self._store, self._outgoing, queue, acked)
            if not any(queue.stream.behind for queue in answers.ended):  # else more messages may be covered
                return

    def remember(self, *tx_sequence_ids: int) -> None:
        """Remember sequences begun here: a late OrderAck for one is no sign of another life of the store."""
        for one in tx_sequence_ids:
            self.strangers[one] = NEVER
        while len(self.strangers) > lives.REMEMBERED:
            del self.strangers[next(iter(self.strangers))]

    def final_ack(self, batch: Batch, packet: headers.FinalAck, now: int) -> None:
        """Apply a FinalAck (B-241 to B-245)."""
        waiting = self._store.outgoing.waiting_own(packet.body.message_id)
        queues = []
        if waiting is not None and waiting.confirmation is not None and waiting.outgoing in self._outgoing:
            queues.append(self._outgoing[waiting.outgoing])
            if waiting.key not in batch.queue_of:  # else it may have ended, still unknown to the store
                self._outgoing.recall([waiting])
        confirm.final_ack(_Answers(self, batch), packet, self._store.guid, queues, now)

    def outrun(self, time_stamp: int) -> None:
        """Number above this foreign TimeStamp from now on, and report it once (B-426, B-413)."""
        if self._store.numbers.outrun(time_stamp) and not self._told_of_newer:
            self._told_of_newer = True
            self._operator.tell(
                f"an OrderAck names a number with the TimeStamp {time_stamp}, newer than any given here: this store "
                "was put back from a backup and the clock is behind, or a copy of it sends under the same identifier. "
                "What is sent from now on is numbered above that. If there is a copy: `ordack store renew-identity` "
                "gives it an identifier of its own (B-426, B-413)"
            )

    def came_late(self, message_id: int, message_class: int) -> None:
        """Report a FinalAck that came after the message was dead-lettered (C-34); it changes nothing."""
        record = self._store.memory.outcome(message_id)
        if record is None:
            return
        confirmation = Confirmation(array("I", record), self._config.confirmation)
        if confirmation.final_ack(message_class) & confirm.LOG:
            self._operator.tell(
                f"message {message_id} was dead-lettered, but it was received: its FinalAck came too late (C-34)"
            )

    def write(self, batch: Batch) -> None:
        """Write the answers of acknowledgements."""
        if batch.passed_on:
            self._store.outgoing.delete(batch.passed_on)
        if batch.journaled:
            self._journal(batch)
        if batch.answers:
            self._settle(batch)

    def _journal(self, batch: Batch) -> None:
        """Journal delivered messages with JP that are not transactional (B-226, B-393)."""
        for waiting in self._store.outgoing.waiting(batch.journaled):
            if waiting.own and waiting.journal * core.USER_JN & core.USER_JP:
                batch.outcomes.copy(JOURNAL, self._store.outgoing.packet(waiting.key)[0], None)
        self._store.outgoing.delete(batch.journaled)

    def _settle(self, batch: Batch) -> None:
        """Apply acknowledgements to the confirmation process of their messages, in order of arrival."""
        answers = self._settle_runs(batch)
        if not answers:
            return
        found = {waiting.key: waiting for waiting in self._store.outgoing.waiting(key for key, _ in answers)}
        settled: dict[int, tuple[Confirmation, int]] = {}
        covered: dict[bytes | None, tuple[Confirmation, int]] = {}  # results of an OrderAck by record
        for key, message_class in answers:
            waiting = found[key]
            if not message_class and key not in settled and waiting.confirmation in covered:
                settled[key] = covered[waiting.confirmation]
                continue
            confirmation, action = self._outgoing.confirmation(waiting), 0
            if key in settled:
                known, action = settled[key]
                confirmation = Confirmation(known.record[:], self._config.confirmation)  # others share it
            if confirmation is not None:
                more = confirmation.final_ack(message_class) if message_class else confirmation.order_ack()
                if not message_class and key not in settled and not more & confirm.DEAD_LETTER:
                    covered[waiting.confirmation] = confirmation, more
                settled[key] = confirmation, action | more
                if message_class >= confirm.NACK_BAD_DST_Q and more:
                    name = batch.queue_of[key].format_name
                    said = (
                        "in doubt, it may have arrived"
                        if confirmation.conclusion().in_doubt
                        else f"not received: {classes.words(message_class, name)}"
                    )
                    self._operator.tell(
                        f"message {waiting.message_id} to {name}: {said}",
                        fact=f"{name}: {message_class}",
                        queue=name,
                        **{"class": classes.label(message_class)},
                    )
        batch.outcomes.settle((found[key], confirmation, action) for key, (confirmation, action) in settled.items())

    def _settle_runs(self, batch: Batch) -> list[tuple[int, int]]:
        """Settle runs that OrderAcks cover from their first message on. Return the answers for other messages."""
        if any(message_class for _, message_class in batch.answers):
            return batch.answers
        keys = sorted({key for key, _ in batch.answers})
        settled: list[tuple[Run, int, Confirmation]] = []
        done: set[int] = set()
        for first, last in ranges(keys):
            for run in self._store.outgoing.runs(first, last):
                confirmation = self._outgoing.confirmation(run.state)
                begin = run.state.key - run.messages + 1
                if begin >= first and confirmation and confirmation.order_ack() & ~confirm.STORE == confirm.DELETE:
                    covered = range(begin, min(run.state.key, last) + 1)
                    settled.append((run, len(covered), confirmation))
                    done.update(covered)
        batch.outcomes.settle_runs(settled)
        return [answer for answer in batch.answers if answer[0] not in done]

    # ---- deadlines and orders

    def due(self, batch: Batch, wall: int, due: list[Waiting]) -> None:
        """Apply deadlines and purges to outgoing messages (B-314, B-316, C-20 to C-24, C-33)."""
        settled, kept, gone, held, given_up = [], [], [], [], []
        for waiting in due:
            confirmation = self._outgoing.confirmation(waiting)
            queue = self._outgoing[waiting.outgoing]
            if confirmation is None:
                packet = batch.outcomes.give_up(
                    waiting, confirm.NACK_DELETED if waiting.deleted else confirm.NACK_REACH_QUEUE_TIMEOUT
                )
                if queue.holds_acks:
                    given_up.append(packet)
                gone.append(waiting.key)
                continue
            if waiting.key in queue.transmitted and confirmation.state == confirm.Q:
                confirmation.sent()
            action = _end_of(waiting, confirmation, wall)
            stop = action == confirm.HOLD
            if action and not stop:
                settled.append((waiting, confirmation, action))
                self.remember(waiting.time_stamp << 32 | waiting.ordinal)
            else:
                kept.append(
                    (
                        confirmation.record.tobytes(),
                        packet_fields.due(confirmation, waiting.send_until, stop),
                        stop,
                        waiting.key,
                    )
                )
                if stop:
                    held.append(waiting.key)
        batch.incoming.update(dict.fromkeys(self._incoming.give_up(given_up)))
        self._store.outgoing.keep(kept)
        gone += batch.outcomes.settle(settled)
        for queue, number in {self._outgoing[one.outgoing]: one.message_id for one in due if one.key in gone}.items():
            name = queue.format_name
            said = "acknowledgements are discarded that nobody has fetched"
            if not queue.holds_acks:
                said = "messages have ended without a known delivery or receipt"
                said += f"; `ordack message state {number}` tells of the last one"
            self._operator.tell_seldom(name, wall, f"{name}: {said}", fact=name, queue=name)
        self._take_out(batch, gone, due)
        for queue, entries in self._outgoing.entries(held, due):
            queue.stream.hold(entries)

    def forsake(self, batch: Batch, messages: list[Waiting]) -> None:
        """Fail messages sent under a former identifier of this queue manager: their acknowledgements cannot reach it
        (C-30)."""
        foreign = []
        for waiting in messages:
            confirmation = self._outgoing.confirmation(waiting)
            assert confirmation
            foreign.append((waiting, confirmation, confirmation.failed(confirm.NACK_SOURCE_COMPUTER_GUID_CHANGED)))
        self._take_out(batch, batch.outcomes.settle(foreign), messages)

    def _take_out(self, batch: Batch, keys: list[int], messages: list[Waiting]) -> None:
        for queue, entries in self._outgoing.entries(keys, messages):
            self._outgoing.at_hand.forget(queue.identifier)
            batch.take_out(queue, entries)

    def give_up_final_acks(self, batch: Batch, wall: int, surplus: list[tuple[int, int]], limit: int) -> int:
        """Give up the first `limit` acknowledgements of the surplus; return the count. The rest stays in `surplus`."""
        messages: list[Waiting] = []
        while surplus and len(messages) < limit:
            identifier, count = surplus[0]
            found = self._store.outgoing.acknowledgements(identifier, min(count, limit - len(messages)))
            messages += [message._replace(deleted=1) for message in found]
            if found and len(found) < count:
                surplus[0] = identifier, count - len(found)
                break
            del surplus[0]
        if messages:
            name = self._outgoing[messages[0].outgoing].format_name
            self._operator.tell_seldom(
                "FinalAcks",
                wall,
                "too many FinalAcks wait for peers that do not come back; the oldest are given up, "
                f"now those of {name}",
                queue=name,
            )
            self.due(batch, wall, messages)
        return len(messages)


def _end_of(waiting: Waiting, confirmation: Confirmation, wall: int) -> int:
    """Return the action of the confirmation process for a due message; 0: nothing yet."""
    if waiting.deleted:
        return confirmation.failed(confirm.NACK_DELETED)
    return confirm.too_late(confirmation, wall, waiting.send_until)


# Each run of `serve`, and each process that sends without it, has its own sequence. A sequence leaves only when the one
# before has drained (B-093), so messages of 200 processes would wait for 200 OrderAcks. When an OrderAck ends a
# sequence, the untransmitted sequences after it become one. A transmitted message keeps its number: this life of
# the store has sent nothing after the oldest sequence, and the OrderAck proves the same for other lives (B-269). If the
# oldest sequence ends without an OrderAck, the next one keeps its number and brings the proof.


LONG = 1000  # messages that justify the wait for an OrderAck; also the limit of one transaction
FAR_ORDINALS = 1 << 20, 1 << 30  # see mqqb.lives: fewer sequences drain than the first number


def renumber(store: Store, outgoing: OutgoingQueues, queue: OutgoingQueue, acked: Entry) -> None:
    """Renumber the sequences after that of `acked`, the last message that an OrderAck covers, if that sequence has
    drained. Call it in the transaction that removes the covered messages."""
    stream = queue.stream  # `acked` was in its table: no OrderAck covers held messages of older sequences (mqqb.lives)
    if acked.tx_sequence_id == stream.tx_sequence_id:
        return
    if any(entry.tx_sequence_id == acked.tx_sequence_id for entry in stream.table[:1]):
        return
    unsent = store.outgoing.unsent(queue.identifier, key_of(acked), outgoing.last_key, LONG)
    fitting = len(first_piece((message.key, message.size) for message in unsent))
    sequences = [list(its) for _, its in itertools.groupby(unsent[:fitting], _sequence)]
    if fitting == LONG or fitting < len(unsent):
        sequences.pop()  # it may continue
    if len(sequences) > 1 and _sequence(sequences[0][0]) != acked.tx_sequence_id:
        _renumber(store, outgoing, queue, [message for its in sequences for message in its])


def _sequence(message: Unsent) -> int:
    return message.time_stamp << 32 | message.ordinal


def _renumber(store: Store, outgoing: OutgoingQueues, queue: OutgoingQueue, messages: list[Unsent]) -> None:
    """Give the messages one sequence after that of the last one, and before all later ones."""
    least, most = FAR_ORDINALS
    ordinal, time_stamp = messages[-1].ordinal + least + secrets.randbelow(most), messages[-1].time_stamp
    record, previous = array("I", (ordinal, time_stamp, 1, 0)), 0
    numbers = {}
    outgoing.at_hand.clear()
    store.outgoing.waiting(message.key for message in messages)  # splits their rows
    for message in messages:
        packet, _ = store.outgoing.packet(message.key)
        number = numbers[message.key] = record[core.OUTGOING_NUMBER]
        its_id = range(message.message_id, message.message_id + 1)
        number_run(record, previous, packet, len(packet), parse.transaction_offset(packet), its_id)
        store.outgoing.renumber(message.key, ordinal, time_stamp, number, packet)
        previous = number
    queue.stream.renumber(time_stamp << 32 | ordinal, numbers)
    if queue.stream.record[core.OUTGOING_TIME_STAMP] == time_stamp:
        queue.stream.adopt(record)
