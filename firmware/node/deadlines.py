"""Deadlines of messages. Each queue manager measures TTRQ and TTBR from SentTime by its own clock, so this board's must
be right.

While it is not set (below CLOCK_SET) nothing expires here, and what was accepted then goes out without limits. T0 of
such a message is the moment in which the clock becomes known: it may live longer than it was told, never shorter.
"""

from mqqb import compose, confirm, const, source

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from mqqb import streams

    from node.commits import Commits
    from node.interfaces import Stream
    from node.outcomes import Outcomes

ENDLESS = const(0xFFFFFFFE)  # a LongLiveTime: without TTRQ a message waits for ever
HELD = const(0x80)  # of a record's MARKS, ours: TTBR is over, it is not transmitted any more (C-22)


class Deadlines:
    """When those messages of these queues are over that are in memory.

    `due`: s since 1970, no deadline is earlier; 0: some T0 is not known; None: there is no deadline.
    """

    def __init__(self, commits: "Commits", outcomes: "Outcomes", queues: "Sequence[Stream]") -> None:
        self.due: "int | None" = None
        self._commits = commits
        self._outcomes = outcomes
        self._queues = queues

    def expect(self, message: "Any") -> None:
        """Take a deadline into account, once its T0 is known."""
        record = message.record
        if not record[confirm.SENT_TIME]:
            self.due = 0
            return
        if (
            self._outcomes.settings.long_live_time == ENDLESS
            and record[confirm.TTRQ] == compose.FOREVER
            and record[confirm.TTBR] == compose.FOREVER
        ):
            return
        due = self._outcomes.of(message).next_deadline()
        if due is not None and (self.due is None or due < self.due):
            self.due = due

    def check(self) -> bool:
        """Act on all deadlines that are due, if the clock is set. Has any message ended?"""
        if self.due is None:
            return False
        now = self._commits.clock.time()
        return now != 0 and now >= self.due and self._expire(now)

    def is_over(self, queue: "Stream", entry: "streams.Entry") -> bool:
        """Is it too late to send a message (C-18, C-22)? Then it leaves the stream."""
        confirmation = self._outcomes.of(entry.key)
        record = confirmation.record
        now = self._commits.clock.time()
        if self.due is None or not now or not record[confirm.SENT_TIME] or confirmation.may_send(now):
            return False
        before = record[confirm.STATE]
        action = source.too_late(confirmation, now, now - 1)
        queue.sending = 0
        if action == source.HOLD:
            record[confirm.MARKS] |= HELD
            queue.stream.hold([entry])
            self._commits.log([entry.key])
        else:
            queue.stream.remove([entry])
            self._outcomes.count(entry.key, before, action)
            self._outcomes.tell([entry.key])
        return True

    def _expire(self, now: int) -> bool:
        """Act on the deadlines of what is in memory. Has any message ended?"""
        message: "Any"
        has_ended = False
        commits = self._commits
        outcomes = self._outcomes
        commits.commit_now()  # what is not durable cannot change yet; if that fails it is gone
        if not self.due:  # the clock has become known: that is T0 of all messages that have none
            undated = [message for message in commits.outbox.handles() if not message.record[confirm.SENT_TIME]]
            for message in undated:
                message.record[confirm.SENT_TIME] = now
            commits.log(undated, True)
        self.due = None
        for queue in self._queues:
            ended = []
            for entry in queue.stream.table + queue.stream.awaiting_final_ack:
                message = entry.key
                confirmation = outcomes.of(message)
                before = confirmation.record[confirm.STATE]
                action = confirmation.handle_deadline(now)
                if action:
                    ended.append(entry)
                    outcomes.count(message, before, action)
                else:
                    self.expect(message)
            if ended:
                queue.sending = 0
                has_ended = True
            queue.stream.remove(ended)
            outcomes.tell([entry.key for entry in ended])
        return has_ended
