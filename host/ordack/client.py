"""The Python API of an application on the queue manager's machine. It opens the store itself and needs no `ordack
serve` to read and write local queues; messages to other machines leave when `serve` runs.

    with Client("/var/lib/ordack") as client:
        client.send("line1", b"21.5", label="temperature")
        with client.queue("line1").receive(timeout=5) as message:
            print(message.body)          # removed from the queue when the block ends, put back if it raises
"""

from __future__ import annotations

import base64
import contextlib
import os
import time
from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

from mqqb import core, packets

from ordack.config import check_host, split_direct
from ordack.store import CLOSED_QUEUES, BadName, NewMessage, NewOutgoing, Outgoing, Store, Stored, StoreError, legible
from ordack.store import Queue as QueueState

LABEL_MAX = 249
LOOK_AGAIN_S = 1.0  # while waiting: what a process had received when it died comes back without a change of the store


def _closed(name: str) -> StoreError:
    return StoreError(f"{name} is the queue manager's own queue: it is not open to applications (B-085)")


class Empty(Exception):  # noqa: N818: an answer, as in the standard library's queue
    """No message came in time."""


class Message:
    """A message as an application sees it. Times: seconds since 1970."""

    def __init__(self, stored: Stored) -> None:
        self.lookup_id = stored.lookup_id
        self.arrived = stored.arrived
        message = packets.parse(stored.packet)
        assert isinstance(message, packets.UserMessage)
        self._message = message
        user, transaction = message.user, message.transaction
        self.source = packets.guid_text(user.source_queue_manager)
        self.message_id = user.message_id
        self.sent_time = user.sent_time
        self.label = legible(message.properties.label)
        self.message_class = message.properties.message_class
        self.delivery = "transactional" if transaction else "recoverable" if user.flags & core.USER_DM else "express"
        self.priority = 0 if transaction else message.base.flags & core.BASE_PR
        self.tx_sequence_id = transaction.tx_sequence_id if transaction else None
        self.tx_sequence_number = transaction.tx_sequence_number if transaction else None

    @property
    def body(self) -> bytes:
        """The message's content."""
        return bytes(self._message.properties.body)

    def as_json(self) -> dict[str, Any]:
        """The object that `ordack receive --json` prints."""
        return {
            "source": self.source, "message_id": self.message_id, "label": self.label,
            "body_base64": base64.b64encode(self._message.properties.body).decode(),
            "class": self.message_class, "priority": self.priority, "delivery": self.delivery,
            "tx_sequence_id": self.tx_sequence_id, "tx_sequence_number": self.tx_sequence_number,
            "sent_time": self.sent_time, "arrived": self.arrived, "lookup_id": self.lookup_id,
        }


class Sent(NamedTuple):
    """What became of a send: its identifiers, and the place in its stream if it is transactional."""

    message_id: int
    delivery: str
    tx_sequence_id: int | None
    tx_sequence_number: int | None


class Queue:
    """A local queue, to receive from and to send to."""

    def __init__(self, client: Client, state: QueueState) -> None:
        self._client = client
        self._store = client.store
        self.identifier = state.identifier
        self.name = state.name
        self.transactional = state.transactional

    def send(self, body: bytes | bytearray | memoryview, **properties: Any) -> Sent:
        """As Client.send, to this queue."""
        return self._client.send(self.name, body, **properties)

    @contextlib.contextmanager
    def receive(self, timeout: float = 0.0) -> Iterator[Message]:
        """Receive one message in a transaction: removed for good when the block ends, put back in its old place if the
        block raises or the process dies. Waits up to `timeout` seconds, then raises Empty."""
        with self.receive_batch(1, timeout) as messages:
            if not messages:
                raise Empty(f"no message in {self.name}")
            yield messages[0]

    @contextlib.contextmanager
    def receive_batch(self, limit: int, timeout: float = 0.0) -> Iterator[list[Message]]:
        """Receive up to `limit` messages in one transaction; an empty list if none came within `timeout` seconds."""
        stored = self._wait_for_messages(limit, time.monotonic() + timeout)
        keys = [message.lookup_id for message in stored]
        try:
            yield [Message(message) for message in stored]
        except BaseException:
            self._store.end_receive(keys, remove=False)
            raise
        if keys:
            self._store.end_receive(keys, remove=True)

    def _wait_for_messages(self, limit: int, deadline: float) -> list[Stored]:
        while True:
            self._store.changed()  # before looking, so that nothing slips in between
            stored = self._store.begin_receive(self.identifier, limit)
            left = deadline - time.monotonic()
            if stored or left <= 0:
                return stored
            self._store.wait(min(left, LOOK_AGAIN_S))

    def peek(self) -> Iterator[Message]:
        """The messages in the queue, in its order, without removing them."""
        place = (-1, -1)
        while stored := self._store.peek(self.identifier, 256, place):
            for message in stored:
                yield Message(message)
            place = (stored[-1].rank, stored[-1].lookup_id)


class Client:
    """An application's access to the store in `folder`, which is made if `create`. Raises StoreError and its kinds.

    Not for use by several threads at once.
    """

    def __init__(self, folder: str | os.PathLike[str], create: bool = False) -> None:
        self.store = Store(folder, create=create)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store; an unfinished receive is put back."""
        self.store.close()

    def create_queue(self, name: str, transactional: bool = False) -> Queue:
        """Make a private queue; raises BadName, QueueExists."""
        return Queue(self, self.store.create_queue(name, transactional))

    def queue(self, name: str) -> Queue:
        """An existing queue; raises BadName, NoSuchQueue, StoreError for one that is not open to applications."""
        return Queue(self, self._open(name))

    def _open(self, name: str) -> QueueState:
        queue = self.store.queue(name)
        if queue.name in CLOSED_QUEUES:
            raise _closed(queue.name)
        return queue

    def send(self, destination: str, body: bytes | bytearray | memoryview, label: str = "", priority: int = 3,
             delivery: str | None = None) -> Sent:
        r"""Send one message; it is durable, with its number, when this returns.

        destination: a local queue's name, or a direct format name such as `DIRECT=TCP:10.0.0.5\private$\line1`.
        label: at most 249 characters; priority: 0 to 7, ignored for transactional messages; delivery: "express",
        "recoverable" or "transactional", by default as the local queue needs it, and transactional to other machines.
        Raises NoSuchQueue, BadName, ValueError (which says what is out of range), StoreError.
        """
        if legible(label) != label:
            raise ValueError(f"the label {legible(label)} is not text: it holds half a character")
        length = len(packets.utf16_encode(label)) // 2
        if length > LABEL_MAX:
            raise ValueError(f"the label has {length} UTF-16 characters; at most {LABEL_MAX} are allowed (wire.md 2.5)")
        queue = None
        if destination[:7].upper() == "DIRECT=":
            address, name = split_direct(destination) or ("", "")
            if not name:
                raise BadName(f"{destination!r} is not of the form DIRECT=TCP:address\\private$\\queue "
                              "or DIRECT=OS:host\\private$\\queue")
            format_name = destination
            if address == ".":
                queue = self._open(name)
            else:
                check_host(address)
                if name in CLOSED_QUEUES:
                    raise _closed(name)
        else:
            queue = self._open(destination)
            format_name = f"DIRECT=OS:.\\private$\\{queue.name}"
        if delivery is None:
            delivery = "transactional" if queue is None or queue.transactional else "recoverable"
        if queue is not None and queue.transactional != (delivery == "transactional"):
            raise ValueError(f"the queue {queue.name} is {'' if queue.transactional else 'not '}transactional: "
                             f"it does not take {delivery} messages")
        return self._send(queue, format_name, body, label, priority, delivery)

    def _send(self, queue: QueueState | None, format_name: str, body: bytes | bytearray | memoryview, label: str,
              priority: int, delivery: str) -> Sent:
        now = int(time.time())
        tx_sequence_id = tx_sequence_number = None
        ordinal = time_stamp = 0
        with self.store.transaction():
            message_id = self.store.reserve_message_ids()
            packet = packets.user_message(
                self.store.guid, message_id, packets.parse_format_name(format_name), body, label=label,
                priority=priority, delivery=delivery, sent_time=now)
            outgoing = self.store.outgoing_queue(format_name.lower(), now)  # names do not differ by case
            if delivery == "transactional":
                ordinal, time_stamp, tx_sequence_number = self._number(outgoing, packet)
                tx_sequence_id = time_stamp << 32 | ordinal
            if queue is not None:
                rank = 7 - (packet[2] & core.BASE_PR)
                self.store.add_messages([NewMessage(queue.identifier, rank, now, packet)])
            else:
                self.store.add_outgoing([NewOutgoing(
                    outgoing.identifier, message_id, ordinal, time_stamp, tx_sequence_number or 0,
                    delivery != "express", False, packet)])
        return Sent(message_id, delivery, tx_sequence_id, tx_sequence_number)

    def _number(self, outgoing: Outgoing, packet: bytearray) -> tuple[int, int, int]:
        """Number a transactional packet in place, for the first and only time, in the running transaction (B-317)."""
        offset = packets.transaction_offset(packet)
        header = array("I", bytes(4 * core.part_words(core.TRANSACTION_HEADER)))
        core.unpack(core.TRANSACTION_HEADER, header, packet, offset, len(packet))
        record = array("I", outgoing.record)
        ordinal, time_stamp = record[core.OUTGOING_ORDINAL], record[core.OUTGOING_TIME_STAMP]
        previous = self.store.last_outgoing_number(outgoing.identifier, ordinal, time_stamp)
        if core.stamp(record, previous, header) != core.OK:
            raise StoreError(f"{outgoing.format_name}: all numbers of the sequence are used; "
                             "wait until its messages have arrived (A-24)")
        core.pack(core.TRANSACTION_HEADER, header, packet, offset)
        self.store.save_outgoing([outgoing._replace(record=tuple(record))])
        return ordinal, time_stamp, header[core.TX_NUMBER]
