"""The Python API for applications on the queue manager's machine. host/docs/reference/client.md introduces it.

    with Client("/var/lib/ordack") as client:
        client.send("line1", b"21.5", label="temperature")
        with client.queue("line1").receive(timeout=5) as message:
            print(message.body)          # removed from the queue when the block ends, put back if it raises
        for message in client.queue("line1").receive():
            print(message.body)          # removed when the loop asks for the next, put back if the loop exits

A running `ordack serve` on the store does the client's work. Otherwise the client works alone, for local queues;
messages to other machines leave when `serve` runs. When the block ends, the sender gets the acknowledgement that it
asked for. `Reject` raised in the block tells the sender that nobody will receive the message (B-338, B-342, B-343).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack

from mqqb import confirm
from mqqb.headers import PrivateQueueFormatNameId

from ordack.api import Empty, Reject, Taken, Which, cannot_reject, patience
from ordack.api.reads import ClientLock, LocalReader
from ordack.api.remote import Conversation, LocalStore, RemoteReader, address_of
from ordack.broker.commits import Current, Direct, deletable
from ordack.broker.message import (
    AS_CONFIGURED,
    Commit,
    Emptying,
    Further,
    Letter,
    Message,
    Order,
    Properties,
    Run,
    Wanted,
    in_runs,
    letter_of,
)
from ordack.broker.sending import Sent
from ordack.broker.service import PAGE
from ordack.config.config import Config, TlsFiles
from ordack.store import Store, packet_fields
from ordack.store.look import open_to_look
from ordack.store.messages import FIRST, StoredMessage
from ordack.store.queues import NoSuchQueue
from ordack.store.queues import QueueState as QueueState
from ordack.store.schema import PRIVATE

__all__ = [
    "Batch", "Client", "Empty", "Letter", "Message", "Queue", "Received", "Receiving", "Reject", "Sent", "Transaction",
]  # fmt: skip


class _Ended:
    """What `with` does to received messages."""

    _taken: Taken

    def __enter__(self) -> Self:
        self._taken.check()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        return self.end(error)

    def end(self, error: BaseException | None) -> bool:
        """As Taken.end."""
        return self._taken.end(error)

    def ended(self) -> Sequence[int]:
        """As Taken.ended."""
        return self._taken.ended()


class Received(_Ended, Message):
    """A message received by a `Receiving`. `with message:` ends it, as `with queue.receive()` does: removed, put back
    if the block raises, removed as rejected if it raises Reject."""

    def __init__(self, found: Sequence[StoredMessage], source: Queue) -> None:
        if not found:
            raise Empty(f"no message in {source.name}")
        super().__init__(found[0])
        self._taken = Taken(source, (found[0].lookup_id,))


class Batch(_Ended, list[Message]):
    """Messages received together. `with batch:` ends them, as `with message:` does a Received."""

    def __init__(self, found: Sequence[StoredMessage], source: Queue) -> None:
        super().__init__(map(Message, found))
        self._taken = Taken(source, [stored.lookup_id for stored in found])


Kind = TypeVar("Kind", Received, Batch)


class Receiving(Generic[Kind]):
    """The result of `Queue.receive` and `Queue.receive_batch`, for a `with` or a `for`. timeout: seconds to wait for
    each message or batch; None: forever. which: as `Queue.receive`.

    In a `for`, a message is removed for good when the loop asks for the next one. The last message is removed when no
    other arrives in time. Leaving the loop by an exception, `return` or `break` puts the current message back, because
    nothing says that the program has processed it. CPython puts it back at once; a program that keeps the iterator
    keeps the message until the iterator is destroyed. `with message:` in the loop is explicit: its end removes the
    message, also on `break`. Reject in that block rejects the message, and the loop goes on.
    """

    def __init__(
        self, source: Queue, kind: type[Kind], limit: int, timeout: float | None, **which: Unpack[Which]
    ) -> None:
        self._source = source
        self._kind: type[Kind] = kind
        self._limit = limit
        self._timeout = timeout
        self._which = which
        self._entered: list[Kind] = []

    def __repr__(self) -> str:
        return f"<Receiving from {self._source.name!r}: use it in a `with` or a `for`>"

    def __enter__(self) -> Kind:
        self._entered.append(self._kind(self._take(), self._source))
        return self._entered[-1]

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        return self._entered.pop().end(error)

    def __iter__(self) -> Iterator[Kind]:
        found = self._take()
        while found:
            received = self._kind(found, self._source)
            try:
                yield received
            except BaseException as error:  # the loop was left
                received.end(error)
                raise
            if self._which.get("lookup_id") is not None:
                received.end(None)
                return
            found = self._take(received.ended())

    def _take(self, ended: Sequence[int] = ()) -> list[StoredMessage]:
        return self._source.begin_receive(self._limit, self._timeout, True, ended, **self._which)


class Queue:
    """A local queue, to receive from and to send to."""

    def __init__(self, client: Client, state: QueueState) -> None:
        self._client = client
        self.identifier = state.identifier
        self.name = state.name
        self.transactional = state.transactional
        self._has_poison = state.kind == PRIVATE

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}{', transactional' if self.transactional else ''}>"

    def send(self, body: bytes | bytearray | memoryview, **properties: Unpack[Properties]) -> Sent:
        """As Client.send, to this queue."""
        return self._client.send(self.name, body, **properties)

    def send_many(
        self, bodies: Iterable[bytes | bytearray | memoryview], **properties: Unpack[Properties]
    ) -> list[Sent]:
        """As Client.send_many, one message to this queue per body; all share the properties."""
        return self._client.send_many([letter_of(self.name, body, **properties) for body in bodies])

    def receive(self, timeout: float | None = 0.0, **which: Unpack[Which]) -> Receiving[Received]:
        """Receive messages, each in a transaction. Waits up to `timeout` seconds for each, None: forever.

        with queue.receive() as message: one, removed for good when the block ends. It is put back in its old place if
        the block raises or the process dies, and removed as rejected on Reject. Raises Empty on timeout.
        for message in queue.receive(): one after another, until a timeout. Each is removed when the loop asks for the
        next. Leaving the loop, also by `break`, puts the current message back (see `Receiving`).

        which: selects messages; earlier messages stay in the queue. Both raise StoreError.
        """
        return Receiving(self, Received, 1, timeout, **which)

    def receive_batch(self, limit: int, timeout: float | None = 0.0) -> Receiving[Batch]:
        """Receive up to `limit` messages in one transaction; waits up to `timeout` seconds for one, None: forever.

        with queue.receive_batch(100) as messages: one list, empty on timeout.
        for messages in queue.receive_batch(100): one list after another, until a timeout. Otherwise both treat a list
        as `receive` treats a message."""
        return Receiving(self, Batch, limit, timeout)

    def begin_receive(
        self,
        limit: int,
        timeout: float | None,
        counted: bool = False,
        ended: Sequence[int] = (),
        **which: Unpack[Which],
    ) -> list[StoredMessage]:
        """Take messages for a receive; `end_receive` or `put_back` ends all or some of them. counted: count an abort
        for each message put back, to detect poison messages. ended: messages of the receive before, removed first."""
        poison_after = AS_CONFIGURED if counted and self._has_poison else None
        wanted = Wanted(self.identifier, limit, counted, poison_after, **which)
        access = self._client.access
        if ended:
            return access.commit_and_take(Commit(tuple(ended)), wanted, patience(timeout))
        return access.take(wanted, patience(timeout))

    def end_receive(self, keys: Sequence[int], message_class: int) -> None:
        """Remove messages of a receive for good, for the reason in the class; a failure puts all back."""
        if keys:
            self._client.access.commit(Commit(tuple(keys), message_class))

    def put_back(self, keys: Sequence[int]) -> None:
        """Put messages of a receive back in their old places."""
        if self._client.is_open:  # a closed client has put them back
            self._client.access.put_back(keys)

    def peek(self) -> Iterator[Message]:
        """The messages in the queue, in its order. They stay in the queue."""
        place = FIRST
        while stored := self.look(place):
            for message in stored:
                yield Message(message)
            place = (stored[-1].rank, stored[-1].lookup_id)

    def look(self, place: tuple[int, int], limit: int = PAGE) -> list[StoredMessage]:
        """Up to `limit` messages behind the position `place`, (rank, lookup id). The messages stay in the queue."""
        return self._client.reads.look(self.identifier, place, limit)


class Transaction:
    """The receives and sends of a `Client.transaction`: all of them happen, or none.

    sent: after the end, the outcome of each sent message, in order.
    """

    def __init__(self, client: Client) -> None:
        self.sent: list[Sent] = []
        self._client = client
        self._taken: list[int] = []
        self._queues: dict[str, bool] = {}  # queues received from -> whether transactional
        self._letters: list[Letter] = []

    def __repr__(self) -> str:
        ended = f", {len(self.sent)} sent" if self.sent else ""
        return f"<Transaction: {len(self._taken)} received, {len(self._letters)} to send{ended}>"

    def receive(self, queue: Queue | str, timeout: float | None = 0.0, **which: Unpack[Which]) -> Message:
        """Receive one message of a local queue, as Queue.receive. Raises Empty on timeout; uncaught, it rolls the
        transaction back. Raises BadName, NoSuchQueue, StoreError."""
        messages = self.receive_batch(queue, 1, timeout, **which)
        if not messages:
            raise Empty(f"no message in {queue if isinstance(queue, str) else queue.name}")
        return messages[0]

    def receive_batch(
        self, queue: Queue | str, limit: int, timeout: float | None = 0.0, **which: Unpack[Which]
    ) -> list[Message]:
        """Receive up to `limit` messages of a local queue; an empty list if none arrived within `timeout` seconds."""
        if isinstance(queue, str):
            queue = self._client.queue(queue)
        stored = queue.begin_receive(limit, timeout, True, **which)
        self._taken += [message.lookup_id for message in stored]
        self._queues[queue.name] = queue.transactional
        return [Message(message) for message in stored]

    def send(self, destination: str, body: bytes | bytearray | memoryview, **properties: Unpack[Properties]) -> None:
        """Send a message when the block ends. Arguments: as Client.send. The commit checks them against the store.
        Raises ValueError for an argument out of range."""
        self._letters.append(letter_of(destination, body, **properties))

    def commit(self) -> None:
        """Commit the transaction; raises the errors of Client.send, and StoreError."""
        taken, self._taken = tuple(self._taken), []
        if taken or self._letters:
            self.sent = self._client.access.commit(Commit(taken, confirm.ACK_RECEIVE, in_runs(self._letters)))

    def reject(self) -> None:
        """Remove the received messages as rejected (B-342), and send nothing. Raises ValueError if impossible."""
        for name, transactional in self._queues.items():
            if not transactional:
                self.put_back()
                raise cannot_reject(name) from None
        taken, self._taken = tuple(self._taken), []
        if taken:
            self._client.access.commit(Commit(taken, confirm.NACK_RECEIVE_REJECTED))

    def release(self, messages: Collection[Message]) -> None:
        """Put these received messages back now: the transaction goes on without them."""
        keys = [message.lookup_id for message in messages]
        self._taken = [key for key in self._taken if key not in keys]
        if keys:
            self._client.access.put_back(keys)

    def put_back(self) -> None:
        """Put the received messages back, and send nothing."""
        taken, self._taken = self._taken, []
        if taken:
            self._client.access.put_back(taken)


class Client:
    """An application's access to the store in `folder`. create: make a missing store. look: read only, for users
    without write permission. Instead of a folder, an open store, which `close` closes; or the address of an `ordack
    serve`: `tcp://HOST:PORT`, or `tls://HOST:PORT` with TLS files; `store` is unavailable there. Raises StoreError and
    its subclasses, ValueError for an unusable address or file.

    clock: returns seconds since 1970. One thread at a time may use a client, and no forked process: a concurrent call
    does nothing and raises RuntimeError.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | Store,
        create: bool = False,
        clock: Callable[[], float] = time.time,
        look: bool = False,
        tls: TlsFiles | None = None,
    ) -> None:
        self.is_open = True
        self.turn = ClientLock()
        self._clock = clock
        self.reads: LocalReader | RemoteReader
        if address := address_of(folder, tls):
            if create or look:
                raise ValueError(f"{address}: `create` and `look` are for the folder of a store, not for an address")
            self.access = Conversation(address, self.turn)
            self.reads = RemoteReader(address, self.access)
            return
        if isinstance(folder, Store):
            store = folder
        else:
            store = open_to_look(folder) if look else Store(folder, create=create, clock=clock)
        config = Current(store)
        self.reads = LocalReader(store, self.now, config, self.turn)
        self.access = Conversation(LocalStore(store, Direct(store, self.now, config)), self.turn)

    def __repr__(self) -> str:
        return f"<Client of {self.reads.place!r}{'' if self.is_open else ', closed'}>"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store; an unfinished receive is put back. In a forked process the parent keeps the store."""
        if not self.turn.is_inherited:
            self.access.close()
        self.is_open = False

    @property
    def store(self) -> Store:
        """The store itself. Raises StoreError for a client of an address."""
        return self.reads.store

    def config(self) -> Config:
        """The current configuration. Raises StoreError for a client of an address."""
        return self.reads.config()

    def now(self) -> int:
        """Seconds since 1970."""
        return int(self._clock())

    def order(self, name: str, *arguments: object) -> Any:
        """Execute one of orders.ORDERS in one transaction, by `serve` if it runs; returns the result. Raises the
        order's errors, StoreError for a client of an address."""
        return self.access.order(Order(name, arguments))

    def create_queue(self, name: str, transactional: bool = True) -> Queue:
        """Make a private queue; raises BadName, QueueExists."""
        return Queue(self, QueueState(*self.order("create_queue", name, transactional)))

    def queue(self, name: str) -> Queue:
        """An existing queue; raises BadName, NoSuchQueue, StoreError for one that is not open to applications."""
        return Queue(self, self.reads.queue(name))

    def purge_queue(self, name: str) -> int:
        """Remove all messages that are in the queue now; returns the number. Messages of an unfinished receive follow
        unless it commits (B-340). Senders that asked for it are told. Raises BadName, NoSuchQueue.

        Works in pieces: if the process dies, some messages are gone, and their senders know.
        """
        queue = self.store.queues.named(name)
        last = self.store.messages.last_lookup_id()
        return self.access.empty(Emptying(queue.identifier, confirm.NACK_Q_PURGED, last, marks=True))

    def delete_queue(self, name: str, only_empty: bool = False) -> int:
        """Remove a private queue, its sub-queue and their messages; returns the number of messages. Senders that asked
        for it are told (B-339).

        Raises BadName, NoSuchQueue, StoreError for a system queue or during a receive, QueueNotEmpty if only_empty and
        the queue holds a message. Works in pieces, as a purge: the queue goes with the last piece.
        """
        removed = 0
        if not only_empty:
            last = self.store.messages.last_lookup_id()
            for one in deletable(self.store, name):
                removed += self.access.empty(Emptying(one.identifier, confirm.NACK_Q_DELETED, last, marks=False))
        rest: int = self.order("delete_queue", name, only_empty)
        return removed + rest

    def send(
        self,
        destination: str,
        body: bytes | bytearray | memoryview,
        label: str = "",
        priority: int = 3,
        delivery: str | None = None,
        **properties: Unpack[Further],
    ) -> Sent:
        """Send one message; it is durable, with its number, when this returns.

        The arguments are the fields of Letter. acknowledge: any of "reach-queue", "receive", "nack-reach-queue",
        "nack-receive". Raises NoSuchQueue, BadName, ValueError for an argument out of range, StoreError; the message is
        not sent then. Raises StoreUnknown if the disk failed at the end or `serve` did not answer; the text says who
        must look for the message before a resend.
        """
        letter = letter_of(destination, body, label=label, priority=priority, delivery=delivery, **properties)
        return self.access.commit(Commit(letters=(Run.of(letter, (letter.body,)),)))[0]

    def send_many(self, letters: Iterable[Letter]) -> list[Sent]:
        """Send messages in one transaction: all of them, in this order, or none on an error, as `send` raises it. They
        share the cost of the commit."""
        return self.access.commit(Commit(letters=in_runs(letters)))

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Receive and send in one transaction, over any number of local and remote queues. It commits when the block
        ends. If the block raises, nothing is sent, and the received messages are put back, or rejected on Reject. If
        the process dies, all or nothing has happened."""
        transaction = Transaction(self)
        try:
            yield transaction
        except Reject:
            transaction.reject()
        except BaseException:
            transaction.put_back()
            raise
        else:
            transaction.commit()

    def reply(self, message: Message, body: bytes | bytearray | memoryview, **properties: Unpack[Properties]) -> Sent:
        """Send an answer to a message's response queue, with the message's identifier as correlation identifier.
        Arguments: as `send`. Raises ValueError if the message expects no answer, and the errors of `send`."""
        if "correlation_id" in properties:
            raise ValueError("an answer has the identifier of its message as correlation_id: leave that out")
        properties["correlation_id"] = message.identifier
        return self.send_many([letter_of(self.response_queue(message), body, **properties)])[0]

    def response_queue(self, message: Message) -> str:
        """The response queue of a message, as `send` takes it. Raises ValueError if the message expects no answer."""
        if message.response_queue is None:
            raise ValueError(f"the message {message.message_key} names no response queue: no answer is expected")
        name, host = packet_fields.destination(message.response_queue)
        if isinstance(name, PrivateQueueFormatNameId) and host == self.reads.guid:
            try:
                return self.reads.queue(name.private_queue_identifier).name
            except NoSuchQueue:
                said = f"the response queue of the message {message.message_key} is not there any more"
                raise NoSuchQueue(said) from None
        return message.response_queue

    def state(self, message_id: int) -> confirm.Conclusion | None:
        """The known state of a transactional message sent here (C-80 to C-87). None: never sent from this store, or
        ended longer ago than the store remembers."""
        return self.reads.state(message_id)
