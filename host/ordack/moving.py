"""Messages that were kept are sent again: dead letters, journal copies, and what else is in a queue.

Each leaves its queue and begins its new life in one transaction: it is never in both, nor in none. It is a new message,
sent from here, with an identifier, a place in a stream and times of its own, for its destination would take it for one
that it has had already (B-248, B-271). What its application has written goes with it: body, label, correlation
identifier, properties, and what it asked for. A poison message is no new one: it goes back into its queue as it is.

A dead letter that is in doubt may have been received (C-84 to C-86). Sent again it can come twice.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import NamedTuple

from mqqb import confirm, core, guid_names, guids
from mqqb.names import QueueName

from ordack import outcome
from ordack.message import Message
from ordack.outcome import Outcomes
from ordack.sending import Letter, Sending, delivery_to, open_queue, target
from ordack.store import Store, StoreError
from ordack.store.queues import NoSuchQueue, Queue
from ordack.store.schema import NEVER, POISON


class Selection(NamedTuple):
    """Which messages are meant. classes: any if empty. label: a pattern with * and ?. sent_from, sent_before: seconds
    since 1970. in_doubt: also dead letters that are in doubt."""

    classes: frozenset[int] = frozenset()
    label: str = "*"
    sent_from: float = 0
    sent_before: float = NEVER
    in_doubt: bool = False

    def means(self, message: Message) -> bool:
        """Is this message meant, in doubt or not?"""
        return (
            (not self.classes or message.message_class in self.classes)
            and fnmatchcase(message.label, self.label)
            and self.sent_from <= message.sent_time < self.sent_before
        )


class Move(NamedTuple):
    """The message with this lookup id in the queue with this identifier is to go to this destination, as Letter has it;
    None: to the one that it had. in_doubt: even if it may have been received."""

    queue: int
    lookup_id: int
    destination: str | None = None
    in_doubt: bool = False


class Moved(NamedTuple):
    """What became of a message. destination: where it was to go. message_id: of the new one; None: it is still where it
    was, for it is in doubt."""

    message: Message
    destination: str
    message_id: int | None


def move_one(outcomes: Outcomes, wanted: Move) -> Moved | None:
    """Move one message in the running transaction: what became of it; None if it is not there any more or somebody
    is receiving it. Raises what Client.send does, and StoreError for one that is in doubt
    unless that is wanted too."""
    store = outcomes.store
    queue = store.queues.find(wanted.queue)
    if queue is None:
        raise NoSuchQueue(f"there is no queue {wanted.queue} any more")
    open_queue(store, queue.name)
    stored = store.messages.find(queue.identifier, wanted.lookup_id, outcomes.now)
    if stored is None:
        return None
    message = Message(stored)
    if message.in_doubt and not wanted.in_doubt:
        raise StoreError("it is in doubt: it may have been received, and sent again it can come twice")
    if queue.name.endswith(POISON):
        return _return(store, queue, message, wanted.destination)
    destination = message.destination if wanted.destination is None else wanted.destination
    to, format_name = target(store, destination)
    if to is not None and to.identifier == queue.identifier:
        raise StoreError(f"a message of {queue.name} was sent to this very queue: name another one for it to go to")
    letter = _letter(store, message, destination, delivery_to(to, message.delivery if to is None else None))
    sending = Sending(outcomes)
    sent = sending.send(letter)
    sending.write()
    outcomes.remove([message.lookup_id], confirm.ACK_RECEIVE)
    return Moved(message, guids.format_name(*outcome.destination(format_name)), sent.message_id)


def _return(store: Store, queue: Queue, message: Message, destination: str | None) -> Moved | None:
    """Put a poison message back into the queue that its sub-queue belongs to."""
    home = open_queue(store, queue.name.removesuffix(POISON))
    if destination is not None and open_queue(store, destination).identifier != home.identifier:
        raise StoreError(f"messages of {queue.name} can go to {home.name} only, where they came from")
    is_moved = store.messages.move(message.lookup_id, queue.identifier, home.identifier)
    return Moved(message, home.name, message.message_id) if is_moved else None


def _letter(store: Store, message: Message, destination: str, delivery: str) -> Letter:
    """A new message with what the application has written in this one."""
    content = message.content
    user, properties = content.user, content.properties
    return Letter(
        destination,
        properties.body,
        properties.label,
        content.base.flags & core.BASE_PR,
        delivery,
        content.base.time_to_reach_queue,
        user.time_to_be_received,
        bool(user.flags & core.USER_JN),
        bool(user.flags & core.USER_JP),
        acknowledge=properties.flags if user.admin_queue is not None else 0,
        administration_queue=_seen_from(store, user.admin_queue, message),
        correlation_id=bytes(properties.correlation_id),
        response_queue=_seen_from(store, user.response_queue, message),
        body_type=properties.body_type,
        application_tag=properties.application_tag,
        extension=bytes(properties.extension),
    )


def _seen_from(store: Store, name: QueueName | None, message: Message) -> QueueName | None:
    """The same queue in a message that is sent from here: a number alone is one of the machine that has sent it."""
    source = bytes(message.content.user.source_queue_manager)
    if isinstance(name, guid_names.PrivateQueueFormatNameId) and source != store.guid:
        return guid_names.PrivateQueueFormatName(source, name.private_queue_identifier)
    return name
