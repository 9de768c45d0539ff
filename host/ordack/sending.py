"""A message is sent: checked, numbered and stored, in one transaction of the caller's."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, NamedTuple

from mqqb import build, confirm, core, guid_names, guids, headers, parse
from mqqb.confirm import Confirmation
from mqqb.names import QueueName, parse_format_name, utf16_encode

from ordack import names, outcome
from ordack.config import Config, check_host, split_direct
from ordack.names import JOURNAL, BadName
from ordack.outcome import Outcomes
from ordack.store import Store, StoreError, StoreFull
from ordack.store.database import legible
from ordack.store.messages import NewMessage
from ordack.store.outgoing import NewOutgoing, Outgoing
from ordack.store.queues import Queue
from ordack.store.schema import CLOSED_QUEUES, PRIVATE, SUBQUEUE, SYSTEM

TIME_MAX = 0xFFFFFFFE  # seconds
LABEL_MAX = 249


class Sent(NamedTuple):
    """What became of a send: its identifiers, and the place in its stream if it is transactional."""

    message_id: int
    delivery: str
    tx_sequence_id: int | None
    tx_sequence_number: int | None


class Sending:
    """How messages are sent from a store. now: gives seconds since 1970; config: what the store's configuration means.
    What writes does so in the caller's transaction."""

    def __init__(self, store: Store, now: Callable[[], int], config: Callable[[], Config]) -> None:
        self._store = store
        self._now = now
        self._config = config

    def target(self, destination: str) -> tuple[Queue | None, str]:
        """Where a message goes: to this queue here, or away; and its format name."""
        destination = names.destination(destination)
        if destination[:7].upper() == "DIRECT=":
            address, name = split_direct(destination) or ("", "")
            if not name:
                raise BadName(
                    f"{destination!r} is not of the form DIRECT=TCP:address\\private$\\queue "
                    "or DIRECT=OS:host\\private$\\queue"
                )
            if address != ".":
                check_host(address)
                if name in CLOSED_QUEUES:
                    raise closed(name)
                return None, destination
            queue, format_name = open_queue(self._store, name), destination
        elif destination[:8].upper() == "PRIVATE=":
            return None, self._private(destination)
        else:
            queue = open_queue(self._store, destination)
            format_name = f"DIRECT=OS:.\\private$\\{queue.name}"
        if queue.kind == SYSTEM:
            raise StoreError(f"{queue.name} is a system queue: only the queue manager writes to it (B-395)")
        if queue.kind == SUBQUEUE:
            raise StoreError(f"{queue.name} is a sub-queue: only messages of its queue are moved there")
        return queue, format_name

    def dead_letter_queue(self, name: str, delivery: str, dead_letter: bool) -> str:
        """The queue here that is to take the dead letter of a message. Raises ValueError."""
        if delivery != "transactional" or not dead_letter:
            raise ValueError(
                "a dead-letter queue can be named only for a transactional message that asks for dead-lettering (B-396)"
            )
        named = open_queue(self._store, name)
        if named.kind != PRIVATE or not named.transactional:
            raise ValueError(f"{named.name} is no transactional private queue: it takes no dead letters (B-396)")
        return named.name

    def _private(self, destination: str) -> str:
        """The format name of a private queue on another queue manager, as there is only one."""
        try:
            format_name = guids.format_name(parse_format_name(destination))
        except ValueError as error:
            raise BadName(str(error)) from None
        if outcome.is_return_queue(format_name):
            raise closed(format_name)
        if outcome.destination(format_name)[1] == self._store.guid:
            raise BadName(f"{destination} is a queue here: use its name")
        return format_name

    def administration_queue(self, name: str | None, wanted: bool) -> QueueName | None:
        """Where acknowledgements of a message go, if some are wanted. Raises BadName, ValueError."""
        if wanted != (name is not None):
            raise ValueError("acknowledgements and an administration queue go together")
        if name is None:
            return None
        name = names.destination(name)
        if "=" in name:
            try:
                return parse_format_name(name)
            except ValueError as error:
                raise BadName(str(error)) from None
        queue = open_queue(self._store, name)
        if queue.kind != PRIVATE or queue.transactional:
            raise ValueError(
                f"{queue.name} is transactional or a system queue: it takes no administration acknowledgements"
            )
        return guid_names.PrivateQueueFormatNameId(queue.identifier)

    def packet(self, format_name: str, delivery: str, journal: int, **properties: Any) -> bytearray:
        """A new message to this destination. journal: of core.USER_JN and USER_JP; the other properties as
        mqqb.build.user_message takes them."""
        settings = self._config().confirmation
        name, address = outcome.destination(format_name)
        return build.user_message(
            self._store.guid,
            self._store.numbers.reserve_message_ids(),
            name,
            address=address,
            delivery=delivery,
            sent_time=self._now(),
            journal=confirm.journal_of(journal, settings) if delivery == "transactional" else journal,
            **properties,
        )

    def put(
        self,
        queue: Queue | None,
        format_name: str,
        packet: bytearray,
        delivery: str,
        ttrq: int | None,
        dead_letter_queue: str | None = None,
    ) -> Sent:
        """Number a packet, and put it in this queue, or without one in the outgoing queue of that format name. Raises
        StoreFull."""
        room = self._store.room(self._config().quota)
        if room.bytes < len(packet):
            raise StoreFull(f"the message of {len(packet)} bytes is not accepted: {room.reason} (B-398, B-424)")
        if queue is not None:
            return self._put_here(queue, format_name, packet, delivery, dead_letter_queue)
        return self._put_away(format_name, packet, delivery, ttrq, dead_letter_queue)

    def _put_here(
        self, queue: Queue, format_name: str, packet: bytearray, delivery: str, dead_letter_queue: str | None
    ) -> Sent:
        now = self._now()
        place: tuple[int | None, int | None] = None, None
        if delivery == "transactional":
            stream = self._store.outgoing.queue(format_name.lower(), now)
            ordinal, time_stamp, number = self._number(stream, packet)
            place = time_stamp << 32 | ordinal, number
        message = outcome.parse(packet)
        if not queue.has_room(len(packet)):
            raise StoreFull(f"the queue {queue.name} has a quota of {queue.quota} bytes: not accepted (C-73)")
        rank = 7 - (packet[2] & core.BASE_PR)
        own = message.user.message_id if message.transaction is not None else None
        self._store.messages.add(
            [
                NewMessage(
                    queue.identifier,
                    rank,
                    packet,
                    outcome.expires(message, now),
                    outcome.wants(message, own is not None),
                    own=own,
                    dead_letter=dead_letter_queue,
                )
            ]
        )
        outcomes = Outcomes(self._store, self._now(), self._config())
        if message.properties.flags & headers.WANT_PA:
            outcomes.administer(message, confirm.ACK_REACH_QUEUE, None)
        if own is None and message.user.flags & core.USER_JP:
            outcomes.copy(JOURNAL, packet, None)
        return Sent(message.user.message_id, delivery, *place)

    def _put_away(
        self, format_name: str, packet: bytearray, delivery: str, ttrq: int | None, dead_letter_queue: str | None
    ) -> Sent:
        stream = self._store.outgoing.queue(format_name.lower(), self._now())  # names do not differ by case
        place: tuple[int | None, int | None] = None, None
        ordinal = time_stamp = number = 0
        if delivery == "transactional":
            ordinal, time_stamp, number = self._number(stream, packet)
            place = time_stamp << 32 | ordinal, number
        message = outcome.parse(packet)
        user = message.user
        journal = (user.flags & (core.USER_JN | core.USER_JP)) // core.USER_JN
        until = outcome.send_until(message)
        record = None
        due: int | None = until + 1
        if number:
            settings = self._config().confirmation
            confirmation = Confirmation(
                confirm.new(
                    user.sent_time,
                    settings,
                    user.flags & (core.USER_JN | core.USER_JP),
                    confirm.UNSET if ttrq is None else ttrq,
                    user.time_to_be_received,
                    bool(message.properties.flags & headers.WANT_NA),
                ),
                settings,
            )
            record = confirmation.record.tobytes()
            due = outcome.due(confirmation, until, held=False)
        self._store.outgoing.add(
            [
                NewOutgoing(
                    stream.identifier,
                    user.message_id,
                    ordinal,
                    time_stamp,
                    number,
                    delivery != "express",
                    journal,
                    packet,
                    packet[2] & core.BASE_PR,
                    send_until=until,
                    due=due,
                    confirmation=record,
                    dead_letter=dead_letter_queue,
                )
            ]
        )
        return Sent(user.message_id, delivery, *place)

    def _number(self, outgoing: Outgoing, packet: bytearray) -> tuple[int, int, int]:
        """Number a transactional packet in place, for the first and only time, in the running transaction (B-317)."""
        offset = parse.transaction_offset(packet)
        header = array("I", bytes(4 * core.part_words(core.TRANSACTION_HEADER)))
        core.unpack(core.TRANSACTION_HEADER, header, packet, offset, len(packet))
        outgoing = self._store.outgoing.number_in(outgoing, self._now())
        record = array("I", outgoing.record)
        ordinal, time_stamp = record[core.OUTGOING_ORDINAL], record[core.OUTGOING_TIME_STAMP]
        previous = self._store.outgoing.last_number(outgoing.identifier, ordinal, time_stamp)
        if core.stamp(record, previous, header) != core.OK:  # the numbers are used up: the next sequence
            record = array("I", self._store.numbers.new_sequence(self._now()))
            ordinal, time_stamp = record[core.OUTGOING_ORDINAL], record[core.OUTGOING_TIME_STAMP]
            core.stamp(record, 0, header)
        core.pack(core.TRANSACTION_HEADER, header, packet, offset)
        self._store.outgoing.save([outgoing._replace(record=tuple(record))])
        return ordinal, time_stamp, header[core.TX_NUMBER]


def open_queue(store: Store, name: str) -> Queue:
    """A queue here that is open to applications. Raises BadName, NoSuchQueue, StoreError."""
    queue = store.queues.named(name)
    if queue.name in CLOSED_QUEUES:
        raise closed(queue.name)
    return queue


def closed(name: str) -> StoreError:
    """The error of who means a queue of the queue manager's own."""
    return StoreError(f"{name} is the queue manager's own queue: it is not open to applications (B-085)")


def check(label: str, ttrq: int | None, ttbr: int | None) -> None:
    """Raises ValueError if no message can have these."""
    if legible(label) != label:
        raise ValueError(f"the label {legible(label)} is not valid text: it holds half a character")
    length = len(utf16_encode(label)) // 2
    if length > LABEL_MAX:
        raise ValueError(f"the label has {length} UTF-16 characters; at most {LABEL_MAX} are allowed (wire.md 2.5)")
    for name, value in (("TimeToReachQueue", ttrq), ("TimeToBeReceived", ttbr)):
        if value is not None and not 0 <= value <= TIME_MAX:
            raise ValueError(f"{name} is {value} s; 0 to {TIME_MAX} are allowed")


def delivery_to(queue: Queue | None, delivery: str | None) -> str:
    """How a message goes to this queue, or elsewhere, where nobody says how. Raises ValueError."""
    if delivery is None:
        delivery = "transactional" if queue is None or queue.transactional else "recoverable"
    if queue is not None and queue.transactional != (delivery == "transactional"):
        raise ValueError(
            f"the queue {queue.name} is {'' if queue.transactional else 'not '}transactional: "
            f"it does not take {delivery} messages"
        )
    return delivery
