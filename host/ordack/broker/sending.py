"""Sending: checks, numbers and stores messages in the caller's transaction."""

from __future__ import annotations

import functools
import itertools
from array import array
from collections.abc import Callable, Iterable, Sequence
from struct import pack_into
from typing import TYPE_CHECKING, Any, NamedTuple

from mqqb import build, compose, confirm, core, guids, headers, parse
from mqqb.confirm import Confirmation
from mqqb.guids import parse_format_name
from mqqb.names import QueueName, terminated

from ordack.config import names
from ordack.config.config import check_host, split_direct
from ordack.config.names import JOURNAL, BadName, counted
from ordack.store import Store, StoreError, StoreFull, packet_fields
from ordack.store.messages import NewMessage, correlation_of, expires_of, wants_of
from ordack.store.numbers import RUN_MESSAGES
from ordack.store.outgoing import RUN_BYTES as ROW_BYTES
from ordack.store.outgoing import Added, NewOutgoing, Outgoing
from ordack.store.packet_fields import TRANSACTION_ID_MAX, TRANSACTION_ID_SHIFT
from ordack.store.queues import QueueState
from ordack.store.schema import CLOSED_QUEUES, PRIVATE, SUBQUEUE, SYSTEM

if TYPE_CHECKING:
    from ordack.broker.message import Letter
    from ordack.broker.outcome import Settlements

if core.implementation == "c":
    from _mqqb import ffi, lib

    BYTES = ffi.typeof("uint8_t[]")
    OUTGOING = ffi.typeof("mqqb_outgoing[]")

EARLIEST_S = 1_704_067_200  # in 2024: a clock below this is not set


RUN_BYTES = 1 << 20  # of packets built together
PATTERNS_KEPT = 64  # cached patterns,
KEPT_BODY = 64 << 10  # for bodies up to this many bytes
_Numbers = tuple[int, int, range]  # ordinal, time stamp, TxSequenceNumbers


class Sent(NamedTuple):
    """The result of a send: identifiers, and the position in the stream if transactional. The position can change until
    the message is transmitted. identifier: 20 bytes, as in `Message`; answers carry it as correlation_id."""

    message_id: int
    delivery: str
    tx_sequence_id: int | None
    tx_sequence_number: int | None
    identifier: bytes


_SENT: Callable[[tuple[Any, ...]], Sent] = functools.partial(tuple.__new__, Sent)  # faster, unchecked


class SentRun(NamedTuple):
    """The result for consecutive messages: that of the first as in `Sent`, and the number of `messages`. Identifiers
    and numbers of the others follow."""

    message_id: int
    delivery: str
    tx_sequence_id: int | None
    tx_sequence_number: int | None
    messages: int


def each(source: bytes, runs: Iterable[SentRun]) -> list[Sent]:
    """Return the result of each message. source: the queue manager's GUID."""
    found: list[Sent] = []
    for first, delivery, tx_sequence_id, number, count in runs:
        message_ids = range(first, first + count)
        numbers = itertools.repeat(None) if number is None else range(number, number + count)
        identifiers = [packet_fields.identifier(source, message_id) for message_id in message_ids]
        same = itertools.repeat(delivery), itertools.repeat(tx_sequence_id)
        found += map(_SENT, zip(message_ids, *same, numbers, identifiers, strict=False))
    return found


_Place = tuple[QueueState | None, str]  # local queue, or None for a remote one; format name


def number_run(
    record: array[int],
    previous: int,
    packets: bytearray | memoryview,
    size: int,
    transaction_at: int,
    message_ids: range,
) -> int:
    """Number packets that differ in their bodies only, as core.stamp does (B-317), and set these MessageIDs. The
    packets follow each other in `packets`, `size` bytes each, with the TransactionHeader at transaction_at. record,
    previous: as in core.stamp. Return how many were numbered: fewer if the numbers run out (A-24)."""
    if core.implementation == "c":
        last = ffi.new("uint32_t *", previous)
        octets = ffi.from_buffer(BYTES, packets, True)
        stream = ffi.from_buffer(OUTGOING, record, True)
        count = len(message_ids)
        done: int = lib.mqqb_run_number(stream, last, octets, size, transaction_at, count, message_ids.start)
        return done
    header = array("I", bytes(4 * core.part_words(core.TRANSACTION_HEADER)))
    for place, message_id in enumerate(message_ids):
        at = place * size + transaction_at
        core.unpack(core.TRANSACTION_HEADER, header, packets, at, len(packets))
        if core.stamp(record, previous, header) != core.OK:
            return place
        core.pack(core.TRANSACTION_HEADER, header, packets, at)
        pack_into("<I", packets, place * size + core.USER_MESSAGE_ID_AT, message_id)
        previous = header[core.TX_NUMBER]
    return len(message_ids)


class _Stream:
    """An outgoing queue whose messages are numbered. is_of_this_run: this run began its sequence."""

    def __init__(self, store: Store, row: Outgoing) -> None:
        self.row = row
        self.record = array("I", row.record)
        self.is_of_this_run = False
        self._previous = 0  # last unacknowledged number
        self._store = store

    def number(
        self, packets: bytearray | memoryview, size: int, at: int, message_ids: range, now: int
    ) -> list[_Numbers]:
        """Number transactional packets as `number_run` does, once and for all (B-317). Return (ordinal, time stamp,
        numbers), several if the sequence changes."""
        if not self.is_of_this_run:
            self.record = array("I", self._store.outgoing.number_in(self.row, now).record)
            ordinal, time_stamp = self.record[core.OUTGOING_ORDINAL], self.record[core.OUTGOING_TIME_STAMP]
            self._previous = self._store.outgoing.last_number(self.row.identifier, ordinal, time_stamp)
            self.is_of_this_run = True
        first = self.record[core.OUTGOING_NUMBER]
        done = number_run(self.record, self._previous, packets, size, at, message_ids)
        ordinal, time_stamp = self.record[core.OUTGOING_ORDINAL], self.record[core.OUTGOING_TIME_STAMP]
        places = [(ordinal, time_stamp, range(first, first + done))] if done else []
        if done:
            self._previous = first + done - 1
        if done < len(message_ids):  # numbers used up: next sequence
            self.record = array("I", self._store.numbers.new_sequence(now))
            self._previous = 0
            places += self.number(memoryview(packets)[done * size :], size, at, message_ids[done:], now)
        return places


class _Pattern:
    """The common part of messages that differ in their body bytes only: a packet to copy, and its meaning.
    confirmation, due: of a transactional message to a remote queue."""

    def __init__(self, letter: Letter, delivery: str, dead_letter: str | None, packet: bytearray, now: int) -> None:
        self.delivery = delivery
        self.dead_letter = dead_letter
        self.packet = packet
        message = packet_fields.parse(packet)
        user = message.user
        self.transaction_at = parse.transaction_offset(packet)
        self.body_at = (
            parse.names_end(packet, user.flags)
            + (core.TRANSACTION_HEADER_SIZE if self.transaction_at else 0)
            + core.MESSAGE_PROPERTIES_HEADER_SIZE
            + (len(terminated(letter.label)) if letter.label else 0)
            + len(letter.extension)
        )
        self.rank = 7 - (packet[core.BASE_FLAGS_AT] & core.BASE_PR)
        self.expires = expires_of(message, now)
        self.wants = wants_of(message, own=bool(self.transaction_at))
        self.correlation = correlation_of(message)
        self.is_told = bool(message.properties.flags & headers.WANT_PA)
        self.is_copied = bool(not self.transaction_at and user.flags & core.USER_JP)
        self.journal = (user.flags & (core.USER_JN | core.USER_JP)) // core.USER_JN
        self.send_until = packet_fields.send_until(message)
        self.confirmation: bytes | None = None
        self.due: int | None = self.send_until + 1

    def make(self, bodies: bytes | memoryview, message_ids: range, flags: int) -> bytearray:
        """Return consecutive packets with these bodies of equal length. Transactional ones get their MessageIDs when
        they are numbered. flags: of the TransactionHeader; FM goes to the first packet, LM to the last."""
        count, size = len(message_ids), len(self.packet)
        body_size = len(bodies) // count
        common = self.packet[:]
        if at := self.transaction_at:
            pack_into("<I", common, at, flags & ~(core.TX_FM | core.TX_LM))
        packets = bytearray(count * size)
        if core.implementation == "c":
            out, octets, all_bodies = (ffi.from_buffer(BYTES, buffer) for buffer in (packets, common, bodies))
            lib.mqqb_run_make(out, octets, size, self.body_at, all_bodies, body_size, count)
        else:
            for place in range(count):
                begin = place * size + self.body_at
                packets[place * size : (place + 1) * size] = common
                packets[begin : begin + body_size] = bodies[place * body_size : (place + 1) * body_size]
        if at:
            packets[at] |= flags & core.TX_FM
            packets[at + len(packets) - size] |= flags & core.TX_LM
        else:
            for place, message_id in enumerate(message_ids):
                pack_into("<I", packets, place * size + core.USER_MESSAGE_ID_AT, message_id)
        return packets


class Sending:
    """Sends messages in the running transaction. outcomes: the transaction's other effects, its time and room; count:
    expected messages. `write` stores all at once.

    stored: entries of outgoing queues after `write`, with their keys.
    """

    def __init__(self, outcomes: Settlements, count: int = 1) -> None:
        self.stored: list[Added] = []
        self._outcomes = outcomes
        self._store = outcomes.store
        self._now = outcomes.now
        self._config = outcomes.config
        self._left = count
        self._ids = range(0)
        self._places: dict[str, _Place] = {}
        self._streams: dict[str, _Stream] = {}
        self._patterns: dict[tuple[object, ...], tuple[_Place, _Pattern]] = {}
        self._queued: dict[int, int] = {}  # bytes by queue, not yet in the store
        self._messages: list[NewMessage] = []
        self._outgoing: list[NewOutgoing] = []

    def send(self, letter: Letter) -> Sent:
        """Number a message, and put it into its local queue or an outgoing queue. Raises NoSuchQueue, BadName,
        ValueError, StoreFull and StoreError with the reason."""
        body = bytes(letter.body)
        return each(self._store.guid, self.send_all([(letter, (len(body),), body)]))[0]

    def send_all(self, runs: Sequence[tuple[Letter, Sequence[int], bytes]]) -> list[SentRun]:
        """As `send`, for each letter of message.Runs in order. The transactional letters form one transaction."""
        blocks: list[tuple[_Place, _Pattern, int, memoryview]] = []
        if runs and self._now < EARLIEST_S:
            raise StoreError(
                f"the clock shows {self._now} s since 1970: set it first, or messages expire when it is set"
            )
        for letter, sizes, bodies in runs:
            rest = memoryview(bodies)
            for size, alike in itertools.groupby(sizes):
                place, pattern = self._pattern(letter, size)
                left = len(list(alike))
                while left:
                    count = min(left, max(RUN_BYTES // len(pattern.packet), 1))
                    blocks.append((place, pattern, count, rest[: count * size]))
                    rest, left = rest[count * size :], left - count
        within = [number for number, (_, pattern, _, _) in enumerate(blocks) if pattern.transaction_at]
        sent: list[SentRun] = []
        transaction = 0
        for number, (place, pattern, count, same) in enumerate(blocks):
            message_ids = self._room_for(pattern, count)
            flags = 0
            if within and number == within[0]:
                transaction = (message_ids.start & TRANSACTION_ID_MAX) << TRANSACTION_ID_SHIFT
                flags = core.TX_FM
            if within and number == within[-1]:
                flags |= core.TX_LM
            packets = pattern.make(same, message_ids, transaction | flags)
            sent += self._send_run(place, pattern, packets, message_ids)
        return sent

    def _pattern(self, letter: Letter, size: int) -> tuple[_Place, _Pattern]:
        """Return the destination of a letter, and the common part of such letters with a body of `size` bytes."""
        key = (letter.destination, size, letter[2:])
        found = self._patterns.get(key)
        if found is None:
            store = self._store
            queue, format_name = place = self._place(letter.destination)
            delivery = delivery_to(queue, letter.delivery)
            dead_letter = _dead_letter_queue(store, letter, delivery)
            admin = _administration_queue(store, letter.administration_queue, bool(letter.acknowledge))
            response = _response_queue(store, letter.response_queue)
            is_kept = size <= KEPT_BODY and admin is None and response is None  # equal names need not compare equal
            make = _make_pattern if is_kept else _make_pattern.__wrapped__
            of_all = store.guid, self._now, self._config.confirmation
            bare = letter._replace(destination="", body=b"")
            pattern = make(*of_all, format_name, queue is None, bare, size, delivery, dead_letter, admin, response)
            found = self._patterns[key] = place, pattern
        return found

    def _room_for(self, pattern: _Pattern, count: int) -> range:
        """Reserve space and MessageIDs for `count` messages. Raises StoreFull."""
        size = len(pattern.packet)
        if self._outcomes.room < size * count:
            raise StoreFull(
                f"the message of {counted(size, 'byte')} is not accepted: {self._outcomes.why_full} (B-398, B-424)"
            )
        self._outcomes.room -= size * count
        return self._message_ids(count)

    def _send_run(self, place: _Place, pattern: _Pattern, block: bytearray, message_ids: range) -> list[SentRun]:
        queue, format_name = place
        size, count = len(pattern.packet), len(message_ids)
        numbers: list[_Numbers] = []
        if pattern.transaction_at:
            stream = self._stream(format_name)
            numbers = stream.number(block, size, pattern.transaction_at, message_ids, self._now)
        if queue is None:
            self._put_away(format_name, pattern, message_ids, numbers, block)
        else:
            packets = [block] if count == 1 else [bytes(block[at : at + size]) for at in range(0, len(block), size)]
            self._put_here(queue, pattern, message_ids, packets)
        if not numbers:
            return [SentRun(message_ids.start, pattern.delivery, None, None, count)]
        sent = []
        for ordinal, time_stamp, its in numbers:
            sent.append(SentRun(message_ids.start, pattern.delivery, time_stamp << 32 | ordinal, its.start, len(its)))
            message_ids = message_ids[len(its) :]
        return sent

    def write(self) -> None:
        """Store the messages sent since the last call."""
        if self._messages:
            self._store.messages.add(self._messages)
        rows = [stream.row._replace(record=tuple(stream.record)) for stream in self._streams.values()]
        if self._outgoing:
            self.stored.append((self._store.outgoing.add(self._outgoing), self._outgoing, rows))
        numbered = (stream.is_of_this_run for stream in self._streams.values())
        self._store.outgoing.save(list(itertools.compress(rows, numbered)))
        self._messages, self._outgoing = [], []
        self._queued.clear()

    def _message_ids(self, count: int) -> range:
        if len(self._ids) < count:
            reserved = max(self._left, count)
            first = self._store.numbers.reserve_message_ids(reserved)
            self._ids = range(first, first + reserved)
        self._left -= count
        message_ids, self._ids = self._ids[:count], self._ids[count:]
        return message_ids

    # ---- the message

    def _place(self, destination: str) -> _Place:
        if destination not in self._places:
            self._places[destination] = target(self._store, destination)
        return self._places[destination]

    # ---- destination

    def _stream(self, format_name: str) -> _Stream:
        name = format_name.lower()  # names are case-insensitive
        if name not in self._streams:
            self._streams[name] = _Stream(self._store, self._store.outgoing.queue(name, self._now))
        return self._streams[name]

    def _put_here(
        self, queue: QueueState, pattern: _Pattern, message_ids: range, packets: Sequence[bytes | bytearray]
    ) -> None:
        are_alone = queue.quota is not None or pattern.is_told or pattern.is_copied
        for message_id, packet in zip(message_ids if are_alone else message_ids[:1], packets, strict=False):
            queued = self._queued.get(queue.identifier, 0) + len(packet)
            if queue.quota is not None and not self._now_of(queue).has_room(queued):
                raise StoreFull(
                    f"the queue {queue.name} has a quota of {counted(queue.quota, 'byte')}: not accepted (C-73)"
                )
            self._queued[queue.identifier] = queued
            self._messages.append(
                NewMessage(
                    queue.identifier,
                    pattern.rank,
                    packet,
                    pattern.expires,
                    pattern.wants,
                    own=message_id if pattern.transaction_at else None,
                    dead_letter=pattern.dead_letter,
                    correlation=pattern.correlation,
                    more=() if are_alone else packets[1:],
                )
            )
            if pattern.is_told or pattern.is_copied:
                self.write()  # acknowledgement and copy need it stored
                if pattern.is_told:
                    self._outcomes.administer(packet_fields.parse(packet), confirm.ACK_REACH_QUEUE, None)
                if pattern.is_copied:
                    self._outcomes.copy(JOURNAL, packet, None)

    def _now_of(self, queue: QueueState) -> QueueState:
        """Read the queue's current state from the store."""
        return self._store.queues.find(queue.identifier) or queue

    def _put_away(
        self, format_name: str, pattern: _Pattern, message_ids: range, numbers: Sequence[_Numbers], packets: bytearray
    ) -> None:
        """Put packets of equal length into rows of an outgoing queue."""
        outgoing = self._stream(format_name).row.identifier
        recoverable = pattern.delivery != "express"
        priority = pattern.packet[core.BASE_FLAGS_AT] & core.BASE_PR
        size = len(pattern.packet)
        at_once = max(min(RUN_MESSAGES, ROW_BYTES // size), 1) if numbers else 1
        view = memoryview(packets)
        first = 0
        for ordinal, time_stamp, its in numbers or [(0, 0, range(len(message_ids)))]:
            for begin in range(0, len(its), at_once):
                count = min(at_once, len(its) - begin)
                self._outgoing.append(
                    NewOutgoing(
                        outgoing,
                        message_ids[first],
                        ordinal,
                        time_stamp,
                        its[begin] if numbers else 0,
                        recoverable,
                        pattern.journal,
                        view[first * size : (first + count) * size],
                        priority,
                        True,
                        pattern.send_until,
                        pattern.due,
                        pattern.confirmation,
                        pattern.dead_letter,
                        count,
                    )
                )
                first += count


@functools.lru_cache(PATTERNS_KEPT)
def _make_pattern(
    guid: bytes,
    now: int,
    settings: confirm.Settings,
    format_name: str,
    is_away: bool,
    letter: Letter,
    size: int,
    delivery: str,
    dead_letter: str | None,
    admin: QueueName | None,
    response: QueueName | None,
) -> _Pattern:
    """Return the common part of messages to a format name. letter: without destination and body of `size` bytes. admin,
    response: its other queue names."""
    journal = (core.USER_JN if letter.dead_letter else 0) | (core.USER_JP if letter.journal else 0)
    name, address = packet_fields.destination(format_name)
    packet = build.user_message(
        guid,
        0,
        name,
        bytes(size),
        label=letter.label,
        priority=letter.priority,
        delivery=delivery,
        ttrq=settings.long_live_time if letter.ttrq is None else letter.ttrq,
        ttbr=compose.FOREVER if letter.ttbr is None else letter.ttbr,
        sent_time=now,
        journal=confirm.journal_of(journal, settings) if delivery == "transactional" else journal,
        acknowledge=letter.acknowledge,
        admin=admin,
        response=response,
        correlation=letter.correlation_id,
        body_type=letter.body_type,
        application_tag=letter.application_tag,
        extension=letter.extension,
        address=address,
    )
    pattern = _Pattern(letter, delivery, dead_letter, packet, now)
    if is_away and pattern.transaction_at:
        pattern.confirmation, pattern.due = _confirmation(letter, pattern, now, settings)
    return pattern


def _confirmation(letter: Letter, pattern: _Pattern, now: int, settings: confirm.Settings) -> tuple[bytes, int | None]:
    """Return the confirmation record of a transactional message to a remote queue, and its deadline."""
    confirmation = Confirmation(
        confirm.new(
            now,
            settings,
            pattern.journal * core.USER_JN,
            confirm.UNSET if letter.ttrq is None else letter.ttrq,
            compose.FOREVER if letter.ttbr is None else letter.ttbr,
            bool(letter.acknowledge & headers.WANT_NA),
        ),
        settings,
    )
    return confirmation.record.tobytes(), packet_fields.due(confirmation, pattern.send_until, held=False)


def address(store: Store, text: str) -> str:
    """Return a local queue's name or a format name for a person's destination. `press-7/commands` is a local queue of
    exactly that name, else the queue `commands` of the board or queue manager `press-7`, wherever it connects from.
    Of names, those in [names] come first, then those of next hops, then announced ones. Raises BadName."""
    named = names.split_address(text)
    if named is None or store.queues.find(text):
        return names.destination(text)
    host, queue = named[0], names.queue_name(named[1])
    kept = store.names()
    if host.lower() in kept.get("hops", {}) and not names.PeerNames(kept.get("names", {})).guid_of(host):
        return names.destination(f"OS:{host}\\private$\\{queue}")
    guid = store.guid_named(host)
    is_here = guid == guids.guid_text(store.guid)[1:-1].lower()
    return queue if is_here else f"DIRECT=OS:{guid}\\private$\\{queue}"


def target(store: Store, destination: str) -> tuple[QueueState | None, str]:
    """Return a destination's local queue, or None for a remote one, and its format name. Raises BadName, NoSuchQueue,
    StoreError."""
    destination = address(store, destination)
    if destination[:7].upper() == "DIRECT=":
        host, name = split_direct(destination) or ("", "")
        if not name:
            raise BadName(
                f"{destination!r} is not of the form DIRECT=TCP:address\\private$\\queue "
                "or DIRECT=OS:host\\private$\\queue"
            )
        if host != ".":
            check_host(host)
            if name in CLOSED_QUEUES:
                raise closed(name)
            return None, destination
        queue, format_name = open_queue(store, name), destination
    elif destination[:8].upper() == "PRIVATE=":
        return None, _private(store, destination)
    else:
        queue = open_queue(store, destination)
        format_name = names.HERE + queue.name
    if queue.kind == SYSTEM:
        raise StoreError(f"{queue.name} is a system queue: only the queue manager writes to it (B-395)")
    if queue.kind == SUBQUEUE:
        raise StoreError(f"{queue.name} is a sub-queue: only messages of its queue are moved there")
    return queue, format_name


def _private(store: Store, destination: str) -> str:
    """Return the canonical format name of a private queue on another queue manager."""
    try:
        format_name = guids.format_name(parse_format_name(destination))
    except ValueError as error:
        raise BadName(str(error)) from None
    if packet_fields.is_return_queue(format_name):
        raise closed(format_name)
    if packet_fields.destination(format_name)[1] == store.guid:
        raise BadName(f"{destination} is a queue here: use its name")
    return format_name


def _dead_letter_queue(store: Store, letter: Letter, delivery: str) -> str | None:
    """Return the local dead-letter queue that the message names, if any."""
    if letter.dead_letter_queue is None:
        return None
    if delivery != "transactional" or not letter.dead_letter:
        raise ValueError(
            "a dead-letter queue can be named only for a transactional message that asks for dead-lettering (B-396)"
        )
    named = open_queue(store, letter.dead_letter_queue)
    if named.kind != PRIVATE or not named.transactional:
        raise ValueError(f"{named.name} is no transactional private queue: it takes no dead letters (B-396)")
    return named.name


def _administration_queue(store: Store, name: str | QueueName | None, wanted: bool) -> QueueName | None:
    """Return the queue for administration acknowledgements, if some are wanted."""
    if wanted != (name is not None):
        raise ValueError("acknowledgements and an administration queue go together")
    found = _queue_named(store, name)
    if isinstance(found, QueueState):
        if found.kind != PRIVATE or found.transactional:
            raise ValueError(
                f"{found.name} is transactional or a system queue: it takes no administration acknowledgements"
            )
        return headers.PrivateQueueFormatNameId(found.identifier)
    return found


def _response_queue(store: Store, name: str | QueueName | None) -> QueueName | None:
    found = _queue_named(store, name)
    if isinstance(found, QueueState):
        if found.kind != PRIVATE:
            raise ValueError(f"{found.name} is no private queue: it takes no answers")
        return headers.PrivateQueueFormatNameId(found.identifier)
    return found


def _queue_named(store: Store, name: str | QueueName | None) -> QueueState | QueueName | None:
    """Return a local or remote queue that a message names besides its destination."""
    if name is None or isinstance(name, QueueName):
        return name
    name = address(store, name)
    if "=" not in name:
        return open_queue(store, name)
    try:
        return parse_format_name(name)
    except ValueError as error:
        raise BadName(str(error)) from None


def open_queue(store: Store, name: str) -> QueueState:
    """Return a local queue open to applications. Raises BadName, NoSuchQueue, StoreError."""
    queue = store.queues.named(name)
    if queue.name in CLOSED_QUEUES:
        raise closed(queue.name)
    return queue


def closed(name: str) -> StoreError:
    """Return the error for the use of a queue manager's own queue."""
    return StoreError(f"{name} is the queue manager's own queue: it is not open to applications (B-085)")


def delivery_to(queue: QueueState | None, delivery: str | None) -> str:
    """Return the delivery for this queue (None: remote), or its default. Raises ValueError."""
    if delivery is None:
        delivery = "transactional" if queue is None or queue.transactional else "recoverable"
    if queue is not None and queue.transactional != (delivery == "transactional"):
        raise ValueError(
            f"the queue {queue.name} is {'' if queue.transactional else 'not '}transactional: "
            f"it does not take {delivery} messages"
        )
    return delivery
