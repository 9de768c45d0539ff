"""Numbers that a store gives once: MessageIDs, and the TimeStamps of sequences."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ordack.store.database import Database

RUN_MESSAGES = 64  # in a row of outgoing messages, at most
LAST_TIME_STAMP = 0xF0000000  # in 2097: forgeable OrderAcks (B-411) raise TimeStamps no further
FIRST_ORDINALS = 1 << 31
MESSAGE_IDS = 0xFFFFFFFF  # from 1 to this


class Numbers:
    """Counters in the table `settings`. is_served: does any queue manager, this process included, run on the store?
    clock: returns seconds since 1970. ahead: MessageIDs reserved at once; above 1, this object is the only one that
    begins runs."""

    ahead = 1

    def __init__(self, database: Database, is_served: Callable[[], bool], clock: Callable[[], float]) -> None:
        self._db = database
        self._is_served = is_served
        self._clock = clock
        # Database.rolled_back when the run began or was joined: a rollback undoes the join
        self._joined: int | None = None
        self._spare = range(0)  # reserved MessageIDs,
        self._kept: int | None = None  # until Database.rolled_back changes, as the number of the run
        self._number = 0

    def begin_run(self, above: int = 0) -> None:
        """Begin new sequences, and continue MessageIDs at another place.

        A restored backup or a copy of a store does not know all used numbers. So `ordack serve` begins a run at its
        start; without it, each sending process begins one. Numbered messages keep their numbers.

        A TimeStamp comes from the clock, and is later than `above` and all TimeStamps in the store (B-056, B-079,
        A-22). The first Ordinal is random, not 1 (B-056), so that equal TimeStamps do not make equal sequences.
        MessageIDs continue at random: 20,000 ids hit one of 10,000 in a duplicate filter with a probability of 1 in
        140,000.
        """
        with self._db.transaction():
            self._joined = self._db.rolled_back
            self._spare, self._kept = range(0), None
            self._db.all("UPDATE settings SET value = max(value, ?) WHERE name = 'tx_time_stamp'", (above,))
            self._db.many(
                "INSERT OR REPLACE INTO settings VALUES (?, ?)",
                [
                    ("run", self.new_time_stamp(int(self._clock()))),
                    ("message_id_ordinal", secrets.randbelow(MESSAGE_IDS)),
                ],
            )

    def outrun(self, time_stamp: int) -> bool:
        """Begin a run with TimeStamps after a foreign one; False if the foreign one is earlier than this run."""
        with self._db.transaction():
            if not self._run() < time_stamp < LAST_TIME_STAMP:
                return False
            self.begin_run(time_stamp)
            return True

    def _run(self) -> int:
        return self._db.number("SELECT value FROM settings WHERE name = 'run'")

    def _join_run(self) -> None:
        """Join the queue manager's run; without a queue manager, begin a run for this process."""
        if self._joined != self._db.rolled_back:
            if not self._is_served():
                self.begin_run()
            self._joined = self._db.rolled_back

    def is_of_this_run(self, time_stamp: int) -> bool:
        """Did the sequence with this TimeStamp begin in this run? Call it in the transaction that numbers a message."""
        self._join_run()
        if self.ahead == 1 or self._kept != self._db.rolled_back:
            self._keep(range(0))
        return time_stamp > self._number

    def _keep(self, spare: range) -> None:
        self._spare, self._kept, self._number = spare, self._db.rolled_back, self._run()

    def reserve_message_ids(self, count: int = 1) -> int:
        """The first of `count` consecutive unused MessageIDs (B-020; never 0, A-46). No other message gets them; see
        `begin_run`."""
        if len(self._spare) >= count and self._kept == self._db.rolled_back:
            spare, self._spare = self._spare, self._spare[count:]
            return spare.start
        with self._db.transaction():
            self._join_run()
            wanted, count = count, max(count, self.ahead)
            last: int | None = self._db.one("SELECT value FROM settings WHERE name = 'message_id_ordinal'")
            while last is not None:
                first = 1 if last + count > MESSAGE_IDS else last + 1
                last = self._db.one(
                    "SELECT max(id) FROM (SELECT message_id AS id FROM outcomes WHERE message_id BETWEEN ?1 AND ?3 "
                    "AND message_id - count < ?2 UNION ALL SELECT message_id FROM outgoing_messages "
                    "WHERE own AND message_id BETWEEN ?1 AND ?3 AND message_id - count < ?2 "
                    "UNION ALL SELECT own FROM messages WHERE own BETWEEN ?1 AND ?2)",
                    (first, first + count - 1, first + count + RUN_MESSAGES - 2),
                )
            self._db.all("UPDATE settings SET value = ? WHERE name = 'message_id_ordinal'", (first + count - 1,))
            self._keep(range(first + wanted, first + count))
            return first

    def new_time_stamp(self, now: int) -> int:
        """A TimeStamp for a new sequence, later than all earlier ones (B-056, B-079)."""
        return self._db.number(
            "UPDATE settings SET value = max(value + 1, ?) WHERE name = 'tx_time_stamp' RETURNING value", (now,)
        )

    def new_sequence(self, now: int) -> tuple[int, ...]:
        """The record of a new sequence (mqqb_outgoing). now: seconds since 1970."""
        return 1 + secrets.randbelow(FIRST_ORDINALS), self.new_time_stamp(now), 1, 0
