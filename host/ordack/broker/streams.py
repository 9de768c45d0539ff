"""Outgoing message tables of a million messages, and sessions with messages that come and leave together."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Protocol, TypeVar

from mqqb import connection, core
from mqqb.connection import ACK_WAIT, OPEN
from mqqb.headers import FinalAckBody, UserMessage
from mqqb.hosts import TransferInfo
from mqqb.names import NULL_GUID
from mqqb.session import Session
from mqqb.streams import Entry, OrderAckBody, OutgoingStream, position

if core.implementation == "c":
    from _mqqb import ffi, lib

    SESSION = ffi.typeof("mqqb_session[]")


_ANNOUNCED = re.compile(rb"ordack name:([^\0]{1,100})\0")


class _InFlight(list[Any]):
    """A window's messages in flight. An empty deque takes ten times the memory, and a window is short."""

    __slots__ = ()
    maxlen = None

    def popleft(self) -> Any:
        """Remove and return the oldest message."""
        return self.pop(0)


class _Window(connection.Window):
    """A window that settles the messages of a SessionHeader together."""

    __slots__ = ()

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.in_flight = _InFlight()  # type: ignore[assignment]

    def acknowledge(self, heard: array[int]) -> list[Entry] | None:
        """As Window.acknowledge."""
        in_flight: Any = self.in_flight
        if self.awaiting_bits or not isinstance(in_flight, _InFlight):
            return super().acknowledge(heard)
        first_left = self.counts[core.SESSION_PEER_ACKED] + 1
        count = max(len(in_flight) - core.session_unacked_sent(self.counts), 0)
        settled = []
        for entry in in_flight[:count]:
            # the last condition is core.serial_after
            if entry is not None and entry.awaiting_ack and (entry.sequence_number - first_left) & 0xFFFF >= 0x7FFF:
                entry.awaiting_ack = False
                entry.received_session_ack = True
                if not entry.recoverable:
                    settled.append(entry)
        del in_flight[:count]
        return settled or None


class FastSession(Session):
    """A session that follows the fast path, and sends runs of messages. announced: the peer's name in UTF-8, which it
    has written into the padding of its request (wire.md 5.2)."""

    announced = b""
    _latest: tuple[bytes, UserMessage | None] = b"", None  # OrderAck for this queue manager

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.window = _Window(self.settings.window_size)

    def _establish_request(self, buffer: bytearray, start: int, now: int, events: list[object]) -> None:
        if found := _ANNOUNCED.match(buffer, start + core.ESTABLISH_END):
            self.announced = found[1]
        super()._establish_request(buffer, start, now, events)

    def _packet(self, raw: bytes, now: int, events: list[object]) -> None:
        """As Session._packet. OrderAcks mostly differ from the one before in their numbers and times."""
        (like, message), body, at = self._latest, OrderAckBody(), len(raw) - core.ORDER_ACK_SIZE
        if (
            message
            and len(raw) == len(like)
            and raw[: core.USER_SENT_TIME_AT] == like[: core.USER_SENT_TIME_AT]
            and raw[core.USER_FLAGS_AT : at] == like[core.USER_FLAGS_AT : at]
            and core.unpack(core.ORDER_ACK, body.fields, raw, at, len(raw)) == core.OK
        ):
            self._message(connection.OrderAck(message, body), message, raw, now, events)
            return
        super()._packet(raw, now, events)
        found = getattr(events[-1], "packet", None) if events else None
        if (
            isinstance(found, connection.OrderAck)
            and connection.order_ack_body(raw) == at
            and bytes(found.message.user.queue_manager_address) in (NULL_GUID, self.own_guid)
        ):
            self._latest = raw, found.message

    @property
    def has_output(self) -> bool:
        """Does output wait for `data_to_send`?"""
        return bool(self._out)

    def put(self, packets: bytes) -> None:
        """Append packets that the fast path made to the output."""
        self._out.append(packets)

    def went_fast(self, order_acks: int, flags: int, now: int) -> bool:
        """Follow the fast path, which has changed the counts: OrderAcks sent, and MQQB_FAST flags. True: a timer has
        started."""
        due, counts, in_flight = self.due, self.window.counts, self.window.in_flight
        self._received_ack = True  # B-167
        if flags & lib.MQQB_FAST_CAME:
            self.is_active = True
        if flags & lib.MQQB_FAST_ACKED:
            due[connection.ACK_SEND] = None
            if counts[core.SESSION_RECEIVED] != counts[core.SESSION_ACKED]:
                self._start_ack_send(self.ack_wait_timeout // 2, now)
        if order_acks:
            in_flight.extend((None,) * order_acks)
        started = order_acks > 0 and due[connection.ACK_WAIT] is None
        if flags & lib.MQQB_FAST_HEARD:
            left = (counts[core.SESSION_SENT] - counts[core.SESSION_PEER_ACKED]) & 0xFFFF
            while len(in_flight) > left:
                in_flight.popleft()
            if due[connection.WINDOW_GROWTH] is not None:
                self._start_window_growth(now)
        if started or (in_flight and flags & lib.MQQB_FAST_HEARD):
            self._start_ack_wait(now)
        return started

    def begin_run(self, count: int, now: int) -> int:
        """Count up to `count` recoverable messages that leave together, as the window allows; `send_run` follows. 0:
        call `send`."""
        if core.implementation != "c" or self.state != OPEN or self._piggybacks(now):
            return 0
        sent: int = lib.mqqb_run_sent(ffi.from_buffer(SESSION, self.window.counts, True), count)
        return sent

    def send_run(self, entries: list[Entry], packets: bytearray, now: int) -> None:
        """As `send`, for the entries of one stream that `begin_run` has counted, with their packets in a row."""
        counts = self.window.counts
        behind = len(entries)
        for entry in entries:
            behind -= 1
            entry.sequence_number = (counts[core.SESSION_SENT] - behind) & 0xFFFF
            entry.recoverable_sequence_number = (counts[core.SESSION_RECOVERABLE_SENT] - behind) & 0xFFFF
            entry.awaiting_ack = True
        self.window.in_flight.extend(entries)
        self.is_active = True
        self._out.append(packets)
        if entries[0].stream:
            entries[0].stream.sent(entries[0], now)
        if self.due[ACK_WAIT] is None:
            self._start_ack_wait(now)


# An outgoing message table for a million entries: removing entries never walks over the rest. Messages far from being
# sent stay in the store, so that memory and startup time depend on the next messages only.

Message = TypeVar("Message")


class Rows(Protocol):
    """The known messages of an outgoing queue in the store."""

    def after(self, key: int, limit: int) -> list[Entry]:
        """Return up to `limit` messages to send after this key, in order."""

    def last(self) -> list[Entry]:
        """Return the last two messages to send, in order."""


key_of: Callable[[Entry], int] = attrgetter("key")  # of the message in the store
_number_of: Callable[[Entry], int] = attrgetter("tx_sequence_number")


class LongStream(OutgoingStream):
    """An OutgoingStream whose entries have rising keys of the store. It does not begin new sequences by itself.

    behind: messages after the table that are only in the store. They are alike, transactional or not and of one
    priority, and the table has none of a lower priority. numbered: transactional messages in the table and behind it.
    ahead: unsent messages kept in memory; below `low`, as many more are read. aside: messages only in the store that
    await their FinalAck, besides `awaiting_final_ack`.
    """

    ahead = 1000
    low = 500

    def __init__(self, record: array[int], intervals: tuple[int, ...], rows: Rows) -> None:
        super().__init__(record, intervals, rolls=False)
        self.numbered = 0
        self.behind = 0
        self.aside = 0
        self._awaiting: set[int] = set()  # keys of awaiting_final_ack while `aside` counts any
        self._kind = False, 0  # of the messages behind: transactional, priority
        self._rows = rows
        self._end = 0  # highest key ever in the table

    @property
    def waiting(self) -> int:
        """Messages to send, or perhaps to resend."""
        return len(self.table) + self.behind

    def newest(self) -> int:
        """Return the key of the last waiting message; at least one must wait."""
        return key_of(self._rows.last()[-1] if self.behind else self.table[-1])

    def admit(self, count: int, transactional: bool, priority: int) -> int:
        """Announce `count` more messages that are alike; return how many go into the table (`extend`). The others are
        behind it."""
        if self.behind and self._kind != (transactional, priority):
            self._fetch(self.behind)
        if not self.table:
            self._cursors.clear()
        room = count
        if self.behind:
            room = 0
        elif not self._cursors or self._cursors[-1][0] >= priority:
            room = min(count, max(self.ahead - self._unsent(priority), 0))
        self.more_behind(count - room, transactional, priority)
        return room

    def more_behind(self, count: int, transactional: bool, priority: int) -> None:
        """Add `count` messages of the same kind behind the table."""
        if count:
            self._kind = transactional, priority
            self.behind += count
            self.numbered += count * transactional

    def append(self, entry: Entry) -> None:
        """As OutgoingStream.append."""
        super().append(entry)
        self.numbered += entry.tx_sequence_number > 0
        self._end = key_of(entry)

    def extend(self, entries: list[Entry]) -> None:
        """As `append`, for entries of one priority, transactional or not."""
        if entries:
            self.append(entries[0])
            for entry in entries:
                entry.stream = self
            self.table += entries[1:]
            self.numbered += (len(entries) - 1) * (entries[0].tx_sequence_number > 0)
            self._end = key_of(entries[-1])

    def _unsent(self, priority: int) -> int:
        """Return the unsent messages from the first of this priority on, which must be the lowest."""
        if not self._cursors or self._cursors[-1][0] != priority:
            return 0
        return len(self.table) - self._cursors[-1][1]

    def _fetch(self, count: int = 0) -> None:
        """Read `count` messages into the table; 0: `ahead`."""
        count = count or self.ahead
        entries = self._rows.after(self._end, count)
        gone = self.behind if len(entries) < count else len(entries)
        self.behind -= gone
        self.numbered -= gone * self._kind[0]
        self.extend(entries)

    def _reach(self, tx_sequence_id: int, number: int) -> None:
        """Read messages into the table up to this number."""
        given = self._kind[0] and (tx_sequence_id, number) < (self.tx_sequence_id, self.record[core.OUTGOING_NUMBER])
        while self.behind and given and (not self.table or position(self.table[-1]) <= (tx_sequence_id, number)):
            self._fetch()

    def next_to_send(self) -> Entry | None:
        """As OutgoingStream.next_to_send."""
        if self.behind and self._unsent(self._kind[1]) < self.low:
            self._fetch()
        entry = super().next_to_send()
        if entry is None and self.behind and not self._unsent(self._kind[1]):  # other messages lie in between
            self._fetch()
            entry = super().next_to_send()
        return entry

    def following(self, entry: Entry, limit: int) -> list[Entry]:
        """Return the entry, which is next to send, and up to `limit` - 1 others with the keys after it, if these are to
        be sent, too."""
        for _, place in self._cursors:
            run = self.table[place : place + limit]
            if run and run[0] is entry:
                break
        else:
            return [entry]
        first = key_of(entry)
        for place, other in enumerate(run):
            if other.key != first + place or other.awaiting_ack or other.received_session_ack:
                return run[:place]
        return run

    def pass_over(self, entries: list[Entry]) -> None:
        """Look for the next message to send behind these sent ones, which follow each other."""
        for cursor in self._cursors:
            if self.table[cursor[1] : cursor[1] + 1] == entries[:1]:
                cursor[1] += len(entries)

    def order_ack(self, body: OrderAckBody, now: int) -> list[Entry]:
        """As OutgoingStream.order_ack. Messages sent before a start may not be in the table yet."""
        if self.behind:
            self._reach(body.tx_sequence_id, body.fields[core.ACK_NUMBER])
        covered = super().order_ack(body, now)
        if self.aside:
            self._awaiting.update(key_of(entry) for entry in covered if entry.journal)
        return covered

    def renumber(self, tx_sequence_id: int, numbers: Mapping[int, int]) -> None:
        """Set the numbers, by key, of messages that the store has renumbered into one sequence."""
        for entry in self.table:
            if key_of(entry) in numbers:
                entry.tx_sequence_id, entry.tx_sequence_number = tx_sequence_id, numbers[key_of(entry)]

    def final_ack(self, body: FinalAckBody, now: int) -> Entry | None:
        """As OutgoingStream.final_ack, for messages in the store, too."""
        found = super().final_ack(body, now)
        if found is None and self.behind:
            self._reach(body.tx_sequence_id, body.fields[core.ACK_NUMBER])
            found = super().final_ack(body, now)
        return found

    def hold(self, entries: list[Entry]) -> None:
        """As OutgoingStream.hold."""
        super().hold(entries)
        if self.aside:
            self._awaiting.update(map(key_of, entries))

    def put_aside(self, count: int) -> None:
        """At the start, count messages in the store that are not to be sent and that no OrderAck can prove stored."""
        if not self.aside:
            self._awaiting = set(map(key_of, self.awaiting_final_ack))
        self.aside += count

    def recall(self, entry: Entry) -> None:
        """Load a held message of the store into memory."""
        if self.aside and key_of(entry) not in self._awaiting:
            entry.stream = self
            self.awaiting_final_ack.insert(0, entry)  # usually removed at once
            self._awaiting.add(key_of(entry))
            self.aside -= 1

    def remove(self, entries: list[Entry]) -> None:
        """As OutgoingStream.remove."""
        self._awaiting.difference_update(map(key_of, entries))
        count = len(entries)
        if self._held or self.awaiting_final_ack[:count] != entries:
            super().remove(entries)
        else:
            del self.awaiting_final_ack[:count]  # usually the oldest

    def is_progress(self, body: OrderAckBody) -> bool:
        """As OutgoingStream.is_progress. Called for many streams; the first comparison usually decides."""
        if self.record[core.OUTGOING_TIME_STAMP] != body.fields[core.ACK_TIME_STAMP]:
            return False
        self._have_the_first()
        return super().is_progress(body)

    def _have_the_first(self) -> None:
        if self.behind and not self.table:
            self._fetch()

    def entries(self, messages: Mapping[int, Message], entry: Callable[[Message], Entry]) -> list[Entry]:
        """Return the entries of these messages by key: in the table, then awaiting their FinalAck, then new ones made
        by `entry` for messages behind the table, which are about to be removed or held."""
        others = set(messages)
        found = [self.table[place] for place in self._places(sorted(others))]
        others.difference_update(key_of(entry) for entry in found)
        for awaiting in self.awaiting_final_ack if others else ():
            if awaiting.key in others:
                found.append(awaiting)
                others.remove(key_of(awaiting))
                if not others:
                    break
        return found + [entry(messages[key]) for key in sorted(others) if key > self._end] if self.behind else found

    def transfer_info(self) -> TransferInfo:
        """Return the stream's progress, for an operator."""
        self._have_the_first()
        info = TransferInfo(self, self.numbered)
        info.no_read_count += self.aside
        if self.behind and self._kind[0] and (last := self._rows.last()):
            number = last[-1].tx_sequence_number
            same = len(last) > 1 and last[0].tx_sequence_id == last[1].tx_sequence_id
            info.last_non_ack = last[-1].tx_sequence_id, number, last[0].tx_sequence_number if same else 0
        return info

    def _take(self, entries: list[Entry]) -> int:
        table, count = self.table, len(entries)
        if table[:count] == entries:  # usually the oldest
            del table[:count]
            for cursor in self._cursors:
                cursor[1] = max(cursor[1] - count, 0)
            self.numbered -= count - list(map(_number_of, entries)).count(0)
            if not self.numbered:
                self._resend_time = None  # B-240
            return count
        places = self._places(sorted(map(key_of, entries)))
        if places:
            first, end = places[0], places[-1] + 1
            gone = set(places)
            self.numbered -= sum(table[place].tx_sequence_number > 0 for place in places)
            for cursor in self._cursors:
                cursor[1] -= bisect_left(places, cursor[1])
            table[first:end] = [table[place] for place in range(first, end) if place not in gone]
        behind = self._take_behind(entries) if self.behind else 0
        if not self.numbered:
            self._resend_time = None  # B-240
        return len(places) + behind

    def _take_behind(self, entries: list[Entry]) -> int:
        """Count the entries that `entries` made for messages behind the table."""
        unknown = [entry for entry in entries if entry.stream is None]
        for entry in unknown:
            entry.stream = self
        self.behind -= len(unknown)
        self.numbered -= len(unknown) * self._kind[0]
        return len(unknown)

    def _places(self, keys: list[int]) -> list[int]:
        """Return the table indexes of entries with these rising keys; unknown keys are skipped."""
        table = self.table
        places = []
        place = 0
        for key in keys:
            if place == len(table) or table[place].key != key:  # usually the next one
                place = bisect_left(table, key, place, key=key_of)
            if place < len(table) and table[place].key == key:
                places.append(place)
                place += 1
        return places
