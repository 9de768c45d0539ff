"""A message as an application sees it. host/docs/api.md lists what it has."""

from __future__ import annotations

import base64
from functools import cached_property
from typing import Any

from mqqb import compose, core, guids, headers, parse
from mqqb.names import QueueName

from ordack.broker import outcome
from ordack.broker.sending import ACKNOWLEDGE, TRANSACTION_ID_MAX, TRANSACTION_ID_SHIFT
from ordack.config import classes
from ordack.formatters import Form, value_of
from ordack.store.messages import Stored
from ordack.text import counted, legible


def _limit(seconds: int) -> int | None:
    return None if seconds == compose.FOREVER else seconds


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

    identifier: MSMQ's message identifier as it stands in messages, 20 bytes; what answers this one has it as its
    correlation_id. response_queue: the format name of the queue where an answer is expected, None if none is.

    abort_count: how often a receive of it by a Client has ended without a commit before, as MSMQ's AbortCount has it:
    the application has raised an exception, or died. With the setting PoisonAfter so many put it into the sub-queue
    `NAME;poison`.
    """

    def __init__(self, stored: Stored) -> None:
        self.lookup_id = stored.lookup_id
        self.arrived = stored.arrived / 1e6
        self.in_doubt = bool(stored.in_doubt)
        self.abort_count = stored.aborts
        self._packet = stored.packet

    @cached_property
    def content(self) -> headers.UserMessage:
        """Its headers and body, read when somebody wants one of them."""
        message = parse.parse(self._packet)
        assert isinstance(message, headers.UserMessage)
        return message

    @cached_property
    def source(self) -> str:
        """GUID of the queue manager that it was sent on."""
        return guids.guid_text(self.content.user.source_queue_manager)

    @property
    def message_id(self) -> int:
        """MessageID."""
        return self.content.user.message_id

    @property
    def sent_time(self) -> int:
        """When it was sent, by the clock there."""
        return self.content.user.sent_time

    @property
    def destination(self) -> str:
        """The format name that it was sent to."""
        return outcome.format_name(self.content.user)

    @property
    def identifier(self) -> bytes:
        """MSMQ's message identifier, 20 bytes."""
        return outcome.identifier(bytes(self.content.user.source_queue_manager), self.message_id)

    @property
    def correlation_id(self) -> bytes:
        """The identifier of the message that it answers, 20 bytes; zeros if none."""
        return bytes(self.content.properties.correlation_id)

    @property
    def response_queue(self) -> str | None:
        """The format name of the queue where an answer is expected; None if none is."""
        return self._named(self.content.user.response_queue)

    @property
    def administration_queue(self) -> str | None:
        """The format name of the queue that is told what becomes of it; None if none is."""
        return self._named(self.content.user.admin_queue)

    def _named(self, name: QueueName | None) -> str | None:
        if name is None:
            return None
        return legible(guids.format_name(name, bytes(self.content.user.source_queue_manager)))

    @property
    def acknowledge(self) -> tuple[str, ...]:
        """What that queue is told, of ACKNOWLEDGE."""
        return tuple(name for name, bit in ACKNOWLEDGE.items() if self.content.properties.flags & bit)

    @property
    def dead_letter(self) -> bool:
        """It is kept in a dead-letter queue if it is not delivered (JN)."""
        return bool(self.content.user.flags & core.USER_JN)

    @property
    def journal(self) -> bool:
        """A copy of it is kept in the journal (JP)."""
        return bool(self.content.user.flags & core.USER_JP)

    @property
    def ttrq(self) -> int | None:
        """TimeToReachQueue in seconds from sent_time; None: it has no limit."""
        return _limit(self.content.base.time_to_reach_queue)

    @property
    def ttbr(self) -> int | None:
        """TimeToBeReceived in seconds from sent_time; None: it has no limit."""
        return _limit(self.content.user.time_to_be_received)

    @property
    def body_type(self) -> int:
        """What the body is, by the codes of wire.md 1.8."""
        return self.content.properties.body_type

    @property
    def application_tag(self) -> int:
        """For the application alone, as is extension."""
        return self.content.properties.application_tag

    @property
    def extension(self) -> bytes:
        """Bytes for the application alone."""
        return bytes(self.content.properties.extension)

    @property
    def label(self) -> str:
        """At most 249 characters."""
        return legible(self.content.properties.label)

    @property
    def message_class(self) -> int:
        """Its class: 0 of what an application has sent."""
        return self.content.properties.message_class

    @property
    def delivery(self) -> str:
        """ "transactional", "recoverable" or "express"."""
        if self.content.transaction:
            return "transactional"
        return "recoverable" if self.content.user.flags & core.USER_DM else "express"

    @property
    def priority(self) -> int:
        """0 to 7; 0 of a transactional message."""
        return 0 if self.content.transaction else self.content.base.flags & core.BASE_PR

    @property
    def tx_sequence_id(self) -> int | None:
        """TxSequenceID of a transactional message."""
        return self.content.transaction.tx_sequence_id if self.content.transaction else None

    @property
    def transaction_id(self) -> int | None:
        """What the messages of one transaction of its sender have in common, 20 bits; None: it is not transactional."""
        flags = self._transaction_flags
        return None if flags is None else flags >> TRANSACTION_ID_SHIFT & TRANSACTION_ID_MAX

    @property
    def first_in_transaction(self) -> bool | None:
        """Did its sender send it as the first one of a transaction? None: it is not transactional."""
        flags = self._transaction_flags
        return None if flags is None else bool(flags & core.TX_FM)

    @property
    def last_in_transaction(self) -> bool | None:
        """Did its sender send it as the last one of a transaction? None: it is not transactional."""
        flags = self._transaction_flags
        return None if flags is None else bool(flags & core.TX_LM)

    @property
    def _transaction_flags(self) -> int | None:
        return self.content.transaction.flags if self.content.transaction else None

    @property
    def tx_sequence_number(self) -> int | None:
        """TxSequenceNumber of a transactional message."""
        return self.content.transaction.tx_sequence_number if self.content.transaction else None

    @property
    def message_key(self) -> str:
        """What to know it by."""
        place = f"{self.tx_sequence_id}/{self.tx_sequence_number}" if self.content.transaction else self.message_id
        return f"{self.source}\\{place}"

    def __repr__(self) -> str:
        name = f" {self.label!r}" if self.label else ""
        size = len(self.content.properties.body)
        return f"<{type(self).__name__} {self.message_key}{name}, {counted(size, 'byte')}, {self.delivery}>"

    @property
    def body(self) -> bytes:
        """The message's content."""
        where = None if "content" in self.__dict__ else outcome.body_in(self._packet)
        return bytes(self.content.properties.body if where is None else self._packet[where])

    def text(self) -> str | None:
        """The body as text, if it is UTF-8."""
        try:
            return self.body.decode()
        except UnicodeDecodeError:
            return None

    def value(self, form: Form | None = None) -> Any:
        """What the body says, as its body type has it: a value as ActiveXMessageFormatter or a COM component has
        written it. form: "xml" or "json" for bodies of those kinds, whose body type says nothing.
        Raises BodyError if it says no such thing."""
        return value_of(self.body, self.body_type, form)

    def as_json(self) -> dict[str, Any]:
        """The object that `ordack receive --json` prints. body: None if it is not UTF-8."""
        return {
            "message_key": self.message_key,
            "source": self.source,
            "message_id": self.message_id,
            "destination": self.destination,
            "correlation_id": self.correlation_id.hex(),
            "response_queue": self.response_queue,
            "administration_queue": self.administration_queue,
            "acknowledge": self.acknowledge,
            "dead_letter": self.dead_letter,
            "journal": self.journal,
            "ttrq": self.ttrq,
            "ttbr": self.ttbr,
            "body_type": self.body_type,
            "application_tag": self.application_tag,
            "extension": self.extension.hex(),
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
            "transaction_id": self.transaction_id,
            "first_in_transaction": self.first_in_transaction,
            "last_in_transaction": self.last_in_transaction,
            "sent_time": self.sent_time,
            "arrived": self.arrived,
            "lookup_id": self.lookup_id,
            "abort_count": self.abort_count,
        }
