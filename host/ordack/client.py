"""The Python API for applications on the queue manager's machine. host/docs/api.md introduces it.

    with Client("/var/lib/ordack") as client:
        client.send("line1", b"21.5", label="temperature")
        with client.queue("line1").receive(timeout=5) as message:
            print(message.body)          # removed from the queue when the block ends, put back if it raises

The client opens the store itself. It needs no `ordack serve` for local queues; messages to other machines leave when
`serve` runs. When the block ends, the sender is acknowledged if it asked for that. `Reject` raised in the block tells
the sender that nobody will receive the message (B-338, B-342, B-343).
"""

from __future__ import annotations

import base64
import contextlib
import os
import time
from array import array
from collections.abc import Callable, Collection, Iterator
from typing import Any

from mqqb import compose, confirm, core, guids, headers, parse
from mqqb.confirm import Confirmation

from ordack import classes, names, outcome
from ordack.config import CONNECT_TIMEOUT_S, Config
from ordack.outcome import Outcomes
from ordack.pieces import CHUNK, in_pieces
from ordack.sending import Sending, Sent, check, delivery_to, open_queue
from ordack.store import Store, StoreError, StoreUnknown
from ordack.store.database import counted, legible
from ordack.store.look import open_to_look
from ordack.store.messages import Stored
from ordack.store.queues import Queue as QueueState
from ordack.store.queues import QueueNotEmpty
from ordack.store.schema import POISON, PRIVATE, SYSTEM

ACKNOWLEDGE = {  # administration acknowledgements that a sender can ask for (MessagePropertiesHeader.Flags)
    "reach-queue": headers.WANT_PA,
    "receive": headers.WANT_PR,
    "nack-reach-queue": headers.WANT_NA,
    "nack-receive": headers.WANT_NR,
}
LOOK_AGAIN_S = 1.0  # while waiting: what a process had received when it died comes back without a change of the store


def _deletable(store: Store, name: str) -> list[QueueState]:
    """A private queue and its sub-queue, of which no message is being received."""
    queue = store.queues.named(name)
    if queue.kind == SYSTEM:
        raise StoreError(f"{queue.name} is a system queue: it cannot be deleted")
    poison = store.queues.find(queue.name + POISON)
    queues = [queue, poison] if poison else [queue]
    for one in queues:
        if store.messages.locked(one.identifier):
            raise StoreError(f"messages of {one.name} are being received: delete the queue when that has ended")
    return queues


def _wanted(acknowledge: Collection[str]) -> int:
    wanted = 0
    for name in acknowledge:
        if name not in ACKNOWLEDGE:
            raise ValueError(f"there is no acknowledgement {name!r}; there are {', '.join(ACKNOWLEDGE)}")
        wanted |= ACKNOWLEDGE[name]
    return wanted


class Empty(Exception):
    """No message came in time."""


class Reject(Exception):
    """Raised inside a receive: the messages are removed as rejected (B-342), and nothing else is raised."""


class Message:
    """A message as an application sees it. Times: seconds since 1970; that of arrival to the microsecond.
    in_doubt: of a dead letter, it may have been received all the same (C-84 to C-86). content: its headers and body.

    message_key: what to know a message by, to process each once. Of a transactional one, its place in its stream as
    text, `{GUID}\\SEQUENCE/NUMBER`: the GUID of the queue manager that it was sent on, its TxSequenceID, which no other
    stream or start of that queue manager has (B-079), and its number there. No two messages have the same, in whatever
    store they are; one that comes again, because a receive did not end or a store was put back from a backup, has its
    own. Of another one, MSMQ's message identifier, `{GUID}\\NNN` with its MessageID, which may be given again after
    some 2**32 messages or, by chance, after a restart (B-020). A journal copy or dead letter has the key of its
    message, so with several queues in one table the key is (queue, message_key). An acknowledgement is a message with
    a key of its own, and names the other by correlation_id.
    lookup_id is no such key: it counts what arrived in this store, and a store that was put back from a backup gives
    the same numbers again.

    abort_count: how often a receive of it by a Client has ended without a commit before, as MSMQ's AbortCount has it:
    the application has raised an exception, or died. With the setting PoisonAfter so many put it into the sub-queue
    `NAME;poison`.
    """

    def __init__(self, stored: Stored) -> None:
        self.lookup_id = stored.lookup_id
        self.arrived = stored.arrived / 1e6
        self.in_doubt = bool(stored.in_doubt)
        self.abort_count = stored.aborts
        message = parse.parse(stored.packet)
        assert isinstance(message, headers.UserMessage)
        self.content = message
        user, transaction = message.user, message.transaction
        self.source = guids.guid_text(user.source_queue_manager)
        self.message_id = user.message_id
        self.sent_time = user.sent_time
        self.destination = outcome.format_name(user)
        self.correlation_id = bytes(message.properties.correlation_id)
        self.label = legible(message.properties.label)
        self.message_class = message.properties.message_class
        self.delivery = "transactional" if transaction else "recoverable" if user.flags & core.USER_DM else "express"
        self.priority = 0 if transaction else message.base.flags & core.BASE_PR
        self.tx_sequence_id = transaction.tx_sequence_id if transaction else None
        self.tx_sequence_number = transaction.tx_sequence_number if transaction else None
        place = f"{self.tx_sequence_id}/{self.tx_sequence_number}" if transaction else self.message_id
        self.message_key = f"{self.source}\\{place}"

    @property
    def body(self) -> bytes:
        """The message's content."""
        return bytes(self.content.properties.body)

    def text(self) -> str | None:
        """The body as text, if it is UTF-8."""
        try:
            return self.body.decode()
        except UnicodeDecodeError:
            return None

    def as_json(self) -> dict[str, Any]:
        """The object that `ordack receive --json` prints. body: None if it is not UTF-8."""
        return {
            "message_key": self.message_key,
            "source": self.source,
            "message_id": self.message_id,
            "destination": self.destination,
            "correlation_id": self.correlation_id.hex(),
            "label": self.label,
            "body": self.text(),
            "body_base64": base64.b64encode(self.content.properties.body).decode(),
            "class": self.message_class,
            "class_name": classes.name(self.message_class),
            "in_doubt": self.in_doubt,
            "priority": self.priority,
            "delivery": self.delivery,
            "tx_sequence_id": self.tx_sequence_id,
            "tx_sequence_number": self.tx_sequence_number,
            "sent_time": self.sent_time,
            "arrived": self.arrived,
            "lookup_id": self.lookup_id,
            "abort_count": self.abort_count,
        }


class Queue:
    """A local queue, to receive from and to send to."""

    def __init__(self, client: Client, state: QueueState) -> None:
        self._client = client
        self._store = client.store
        self.identifier = state.identifier
        self.name = state.name
        self.transactional = state.transactional
        self._has_poison = state.kind == PRIVATE

    def send(self, body: bytes | bytearray | memoryview, **properties: Any) -> Sent:
        """As Client.send, to this queue."""
        return self._client.send(self.name, body, **properties)

    @contextlib.contextmanager
    def receive(self, timeout: float = 0.0) -> Iterator[Message]:
        """Receive one message in a transaction: removed for good when the block ends, put back in its old place if the
        block raises or the process dies, removed as rejected if it raises Reject. Waits up to `timeout` seconds, then
        raises Empty."""
        with self.receive_batch(1, timeout) as messages:
            if not messages:
                raise Empty(f"no message in {self.name}")
            yield messages[0]

    @contextlib.contextmanager
    def receive_batch(self, limit: int, timeout: float = 0.0) -> Iterator[list[Message]]:
        """Receive up to `limit` messages in one transaction; an empty list if none came within `timeout` seconds."""
        stored = self.begin_receive(limit, timeout, counted=True)
        keys = [message.lookup_id for message in stored]
        try:
            yield [Message(message) for message in stored]
        except Reject:
            if not self.transactional:
                self.put_back(keys)
                raise ValueError(f"{self.name} is not transactional: its messages cannot be rejected") from None
            self.end_receive(keys, confirm.NACK_RECEIVE_REJECTED)
        except BaseException:
            self.put_back(keys)
            raise
        else:
            self.end_receive(keys, confirm.ACK_RECEIVE)

    def begin_receive(self, limit: int, timeout: float, counted: bool = False) -> list[Stored]:
        """The first part of receive_batch; `end_receive` or `put_back` is the other, for all of them or for some.
        counted: a message that comes back from it may be the reason."""
        deadline = time.monotonic() + timeout
        while True:
            self._store.changed()  # before looking, so that nothing slips in between
            stored = self._store.messages.begin_receive(
                self.identifier,
                limit,
                self._client.now(),
                counted,
                self._client.config().poison_after if counted and self._has_poison else None,
            )
            left = deadline - time.monotonic()
            if stored or left <= 0:
                return stored
            self._store.wait(min(left, LOOK_AGAIN_S))

    def end_receive(self, keys: list[int], message_class: int) -> None:
        """Remove messages of a receive for good, for the reason that the class says; all are put back if it fails."""
        if not keys:
            return
        try:
            with self._store.transaction():
                self._store.messages.received(keys)
                self._client.outcomes().remove(keys, message_class)
        except BaseException:
            self.put_back(keys)
            raise

    def put_back(self, keys: list[int]) -> None:
        """Put messages of a receive back in their old places."""
        with contextlib.suppress(StoreError):  # later, then: what the application raises matters more
            self._store.messages.put_back(keys)

    def peek(self) -> Iterator[Message]:
        """The messages in the queue, in its order, without removing them."""
        place = (-1, -1)
        while stored := self._store.messages.peek(self.identifier, 256, place, self._client.now()):
            for message in stored:
                yield Message(message)
            place = (stored[-1].rank, stored[-1].lookup_id)


class Client:
    """An application's access to the store in `folder`, which is made if `create`. look: only to look at, for who may
    not write it. Raises StoreError and its kinds.

    clock: gives seconds since 1970. Not for use by several threads at once.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        create: bool = False,
        clock: Callable[[], float] = time.time,
        look: bool = False,
    ) -> None:
        self.store = open_to_look(folder) if look else Store(folder, create=create, clock=clock)
        self.sending = Sending(self.store, self.now, self.config)
        self._clock = clock
        self._configuration: object = None
        self._config: Config | None = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store; an unfinished receive is put back."""
        self.store.close()

    def now(self) -> int:
        """Seconds since 1970."""
        return int(self._clock())

    def config(self) -> Config:
        """What the store's configuration means now."""
        configuration, names = self.store.configuration(), self.store.names()
        if self._config is None or self._configuration != (configuration, names):
            self._configuration = configuration, names
            self._config = Config.of(
                configuration,
                own_names=frozenset(names.get("own", ())),
                next_hops={name: tuple(hop) for name, hop in names.get("hops", {}).items()},
                public_queues=names.get("public", {}),
            )
        return self._config

    def outcomes(self) -> Outcomes:
        """What follows when messages end now."""
        return Outcomes(self.store, self.now(), self.config())

    def create_queue(self, name: str, transactional: bool = False) -> Queue:
        """Make a private queue; raises BadName, QueueExists."""
        return Queue(self, self.store.queues.create(name, transactional))

    def queue(self, name: str) -> Queue:
        """An existing queue; raises BadName, NoSuchQueue, StoreError for one that is not open to applications."""
        return Queue(self, open_queue(self.store, name))

    def purge_queue(self, name: str) -> int:
        """Remove all messages that a queue has now, those in an unfinished receive when that ends without a commit
        (B-340); how many. Senders that asked for it are told. Raises BadName, NoSuchQueue.

        In pieces (`pieces.py`): if it is killed, a part is gone, and its senders know.
        """
        queue = self.store.queues.named(name)
        last = self.store.messages.last_lookup_id()
        removed = in_pieces(self.store, lambda limit: self.outcomes().empty(queue, confirm.NACK_Q_PURGED, limit, last))
        return removed + self.store.messages.mark_purged(queue.identifier, last)

    def delete_queue(self, name: str, only_empty: bool = False) -> int:
        """Remove a private queue, its sub-queue and their messages; how many there were. Senders that asked for it are
        told (B-339).

        Raises BadName, NoSuchQueue, StoreError for a system queue or while messages are being received from it;
        QueueNotEmpty if only_empty and a message is in it. In pieces, as a purge: the queue goes with the last one.
        """
        removed = 0
        if not only_empty:
            last = self.store.messages.last_lookup_id()
            removed = sum(
                in_pieces(
                    self.store,
                    lambda limit, one=one: self.outcomes().empty(  # type: ignore[misc]
                        one, confirm.NACK_Q_DELETED, limit, last
                    ),
                )
                for one in _deletable(self.store, name)
            )
        with self.store.transaction():
            queues = _deletable(self.store, name)
            if only_empty and (count := sum(one.messages for one in queues)):
                raise QueueNotEmpty(f"{counted(count, 'message')} in {queues[0].name} would be deleted, too")
            for one in queues:
                while gone := self.outcomes().empty(one, confirm.NACK_Q_DELETED, CHUNK):  # what has come since
                    removed += gone
                self.store.queues.remove(one.identifier)
        return removed

    def send(
        self,
        destination: str,
        body: bytes | bytearray | memoryview,
        label: str = "",
        priority: int = 3,
        delivery: str | None = None,
        *,
        ttrq: int | None = None,
        ttbr: int | None = None,
        dead_letter: bool = False,
        journal: bool = False,
        dead_letter_queue: str | None = None,
        acknowledge: Collection[str] = (),
        administration_queue: str | None = None,
    ) -> Sent:
        r"""Send one message; it is durable, with its number, when this returns.

        destination: a local queue's name, or a format name: `DIRECT=TCP:10.0.0.5\private$\line1`, or `PRIVATE=` with
        GUID and queue number of a queue manager, which may be one that only connects here, as a board does.
        label: at most 249 characters; priority: 0 to 7, ignored for transactional messages; delivery: "express",
        "recoverable" or "transactional", by default as the local queue needs it, and transactional to other machines.

        ttrq, ttbr: TimeToReachQueue and TimeToBeReceived in seconds from now; by default four days and no limit. A
        ttrq of 0 is one attempt to deliver, and counts as the 10 s that connecting may take (B-405).
        dead_letter: keep it in a dead-letter queue if it is not delivered, or a transactional one not known to be
        received (JN); dead_letter_queue: in this local transactional queue instead of the system's. journal: keep a
        copy in the journal when it has arrived, or a transactional one when it was received (JP). acknowledge: of
        ACKNOWLEDGE, what is to be told to administration_queue, a local queue that is not transactional or a format
        name. Raises NoSuchQueue, BadName, ValueError (which says what is out of range), StoreError; StoreUnknown if the
        disk failed at the very end: sent again by this Client it is sent once, another must look for it first.
        """
        check(label, ttrq, ttbr)
        if ttrq == 0:  # one attempt to deliver it (B-405)
            ttrq = CONNECT_TIMEOUT_S
        sending = self.sending
        queue, format_name = sending.target(destination)
        delivery = delivery_to(queue, delivery)
        if dead_letter_queue is not None:
            dead_letter_queue = sending.dead_letter_queue(dead_letter_queue, delivery, dead_letter)
        journaling = (core.USER_JN if dead_letter else 0) | (core.USER_JP if journal else 0)
        sent = None
        try:
            with self.store.transaction():
                packet = sending.packet(
                    format_name,
                    delivery,
                    journaling,
                    body=body,
                    label=label,
                    priority=priority,
                    acknowledge=_wanted(acknowledge),
                    ttrq=self.config().confirmation.long_live_time if ttrq is None else ttrq,
                    ttbr=compose.FOREVER if ttbr is None else ttbr,
                    admin=sending.administration_queue(administration_queue, bool(acknowledge)),
                )
                sent = sending.put(queue, format_name, packet, delivery, ttrq, dead_letter_queue)
        except StoreUnknown as error:
            number = "" if sent is None else f" {sent.message_id}"
            raise StoreUnknown(
                f"the message{number} to {names.destination(destination)} was sent, or not: {error.reason}"
            ) from None
        return sent

    def last_discarded(self, destination: str) -> int:
        """The class that ended the latest transactional message to this destination elsewhere, if it was not delivered
        and is in no dead-letter queue; 0 if it was, or none has ended."""
        return self.store.outgoing.discarded(names.destination(destination).lower())

    def state(self, message_id: int) -> confirm.Conclusion | None:
        """What is known of a transactional message that was sent here (C-80 to C-87); None: nothing, it was never sent
        from this store, or ended longer ago than the store remembers."""
        settings = self.config().confirmation
        waiting = self.store.outgoing.waiting_own(message_id)
        if waiting is None and self.store.messages.own(message_id) is not None:
            return confirm.Conclusion(confirm.STORED, 0)
        # last: a message that ends between these questions has its outcome by now
        record = waiting.confirmation if waiting is not None else self.store.memory.outcome(message_id)
        if record is None:
            return None
        return Confirmation(array("I", record), settings).conclusion()
