"""Messages as applications read and write them; host/docs/reference/client.md lists their properties."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypedDict

from mqqb import compose, confirm, core, guids, headers, parse
from mqqb.names import QueueName, utf16_encode

from ordack.config import classes
from ordack.config.config import CONNECT_TIMEOUT_S
from ordack.config.names import counted, legible
from ordack.formatters import Body, Form, value_of
from ordack.store import Store, packet_fields
from ordack.store.messages import Selection, StoredMessage
from ordack.store.packet_fields import TRANSACTION_ID_MAX, TRANSACTION_ID_SHIFT

# administration acknowledgements for senders (MessagePropertiesHeader.Flags)
ACKNOWLEDGE = {
    "reach-queue": headers.WANT_PA,
    "receive": headers.WANT_PR,
    "nack-reach-queue": headers.WANT_NA,
    "nack-receive": headers.WANT_NR,
}
TIME_MAX = 0xFFFFFFFE  # seconds
LABEL_MAX = 249
Bytes = bytes | bytearray | memoryview


def _limit(seconds: int) -> int | None:
    return None if seconds == compose.FOREVER else seconds


class Message:
    """A message as an application reads it. Times: seconds since 1970; arrival to the microsecond.
    in_doubt: this dead letter may have been received (C-84 to C-86). content: headers and body.

    message_key: identifies the message, so that an application can process it once. The key of a transactional message
    is its position in its stream, `{GUID}\\SEQUENCE/NUMBER`: the GUID of the sending queue manager, the TxSequenceID
    (unique to one stream and one start, B-079) and the number in it. The key is unique across all stores; a message
    keeps its key when it comes again after an aborted receive or a restored backup. The key of any other message is
    MSMQ's message identifier, `{GUID}\\NNN` with its MessageID, which repeats after some 2**32 messages or, by chance,
    after a restart (B-020). A journal copy or dead letter has the key of its message: in a table with several queues,
    use (queue, message_key). An acknowledgement has a key of its own, and names its message by correlation_id.
    lookup_id is no such key: it counts arrivals in this store, and a restored store repeats its numbers.

    identifier: MSMQ's message identifier as in packets, 20 bytes; answers carry it as correlation_id. response_queue:
    the format name of the queue for answers, or None.

    abort_count: receives by a Client that ended without a commit, as MSMQ's AbortCount: the application raised an
    exception or died. At PoisonAfter, the message moves into the sub-queue `NAME;poison`.
    """

    def __init__(self, stored: StoredMessage) -> None:
        self._stored = stored

    @property
    def lookup_id(self) -> int:
        """The message's number in this store."""
        return self._stored.lookup_id

    @property
    def arrived(self) -> float:
        """Time of the arrival."""
        return self._stored.arrived / 1e6

    @property
    def in_doubt(self) -> bool:
        """May this dead letter have been received?"""
        return bool(self._stored.in_doubt)

    @property
    def abort_count(self) -> int:
        """Receives that ended without a commit."""
        return self._stored.aborts

    @cached_property
    def content(self) -> headers.UserMessage:
        """Headers and body, parsed at first use."""
        message = parse.parse(self._stored.packet)
        assert isinstance(message, headers.UserMessage)
        return message

    @cached_property
    def source(self) -> str:
        """GUID of the queue manager that sent the message."""
        return guids.guid_text(self.content.user.source_queue_manager)

    @property
    def message_id(self) -> int:
        """MessageID."""
        return self.content.user.message_id

    @property
    def sent_time(self) -> int:
        """Time of sending, by the sender's clock."""
        return self.content.user.sent_time

    @property
    def destination(self) -> str:
        """The destination's format name."""
        return packet_fields.format_name(self.content.user)

    @property
    def identifier(self) -> bytes:
        """MSMQ's message identifier, 20 bytes."""
        return packet_fields.identifier(bytes(self.content.user.source_queue_manager), self.message_id)

    @property
    def correlation_id(self) -> bytes:
        """The identifier of the message that this one answers, 20 bytes; zeros if none."""
        return bytes(self.content.properties.correlation_id)

    @property
    def response_queue(self) -> str | None:
        """The format name of the queue for answers; None if none."""
        return self._named(self.content.user.response_queue)

    @property
    def administration_queue(self) -> str | None:
        """The format name of the queue for administration acknowledgements; None if none."""
        return self._named(self.content.user.admin_queue)

    def _named(self, name: QueueName | None) -> str | None:
        if name is None:
            return None
        return legible(guids.format_name(name, bytes(self.content.user.source_queue_manager)))

    @property
    def acknowledge(self) -> tuple[str, ...]:
        """The acknowledgements that the administration queue gets, of ACKNOWLEDGE."""
        return tuple(name for name, bit in ACKNOWLEDGE.items() if self.content.properties.flags & bit)

    @property
    def dead_letter(self) -> bool:
        """Does the sender keep the message in a dead-letter queue if delivery fails (JN)?"""
        return bool(self.content.user.flags & core.USER_JN)

    @property
    def journal(self) -> bool:
        """Does the sender keep a copy in the journal (JP)?"""
        return bool(self.content.user.flags & core.USER_JP)

    @property
    def ttrq(self) -> int | None:
        """TimeToReachQueue in seconds from sent_time; None: no limit."""
        return _limit(self.content.base.time_to_reach_queue)

    @property
    def ttbr(self) -> int | None:
        """TimeToBeReceived in seconds from sent_time; None: no limit."""
        return _limit(self.content.user.time_to_be_received)

    @property
    def body_type(self) -> int:
        """Type code of the body (wire.md 1.8)."""
        return self.content.properties.body_type

    @property
    def application_tag(self) -> int:
        """A number for the application alone."""
        return self.content.properties.application_tag

    @property
    def extension(self) -> bytes:
        """Bytes for the application alone."""
        return bytes(self.content.properties.extension)

    @property
    def label(self) -> str:
        """The label, at most 249 characters."""
        return legible(self.content.properties.label)

    @property
    def message_class(self) -> int:
        """The message class; 0: sent by an application."""
        return self.content.properties.message_class

    @property
    def delivery(self) -> str:
        """ "transactional", "recoverable" or "express"."""
        if self.content.transaction:
            return "transactional"
        return "recoverable" if self.content.user.flags & core.USER_DM else "express"

    @property
    def priority(self) -> int:
        """0 to 7; transactional messages have 0."""
        return 0 if self.content.transaction else self.content.base.flags & core.BASE_PR

    @property
    def tx_sequence_id(self) -> int | None:
        """TxSequenceID of a transactional message."""
        return self.content.transaction.tx_sequence_id if self.content.transaction else None

    @property
    def transaction_id(self) -> int | None:
        """Identifier that the messages of one transaction share, 20 bits; None: not transactional."""
        flags = self._transaction_flags
        return None if flags is None else flags >> TRANSACTION_ID_SHIFT & TRANSACTION_ID_MAX

    @property
    def first_in_transaction(self) -> bool | None:
        """Is the message the first of its transaction? None: not transactional."""
        flags = self._transaction_flags
        return None if flags is None else bool(flags & core.TX_FM)

    @property
    def last_in_transaction(self) -> bool | None:
        """Is the message the last of its transaction? None: not transactional."""
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
        """The message's identity; see the class."""
        place = f"{self.tx_sequence_id}/{self.tx_sequence_number}" if self.content.transaction else self.message_id
        return f"{self.source}\\{place}"

    def __repr__(self) -> str:
        name = f" {self.label!r}" if self.label else ""
        size = len(self.content.properties.body)
        return f"<{type(self).__name__} {self.message_key}{name}, {counted(size, 'byte')}, {self.delivery}>"

    @property
    def body(self) -> bytes:
        """The body as bytes."""
        packet = self._stored.packet
        where = packet_fields.body_in(packet)
        return bytes(self.content.properties.body) if where is None else packet[where]

    def text(self) -> str | None:
        """The body as text, if it is UTF-8."""
        try:
            return self.body.decode()
        except UnicodeDecodeError:
            return None

    def value(self, form: Form | None = None) -> Any:
        """The body decoded by its body type, as ActiveXMessageFormatter or a COM component wrote it. form: "xml" or
        "json" for bodies whose type does not tell. Raises BodyError if the body does not decode."""
        return value_of(self.body, self.body_type, form)

    def as_json(self) -> dict[str, Any]:
        """Return the object that `ordack receive --json` prints. body: None if it is not UTF-8."""
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


# Letters: messages to send.


class Letter(NamedTuple):
    r"""A message to send, with MSMQ's properties.

    destination: a local queue's name, or a format name: `DIRECT=TCP:10.0.0.5\private$\line1`, or `PRIVATE=` with GUID
    and queue number of a queue manager, even one that only connects here, such as a board; or its name and queue,
    `press-7/commands`.
    label: at most 249 characters; priority: 0 to 7, ignored for transactional messages; delivery: "express",
    "recoverable" or "transactional"; default: as the local queue requires, and transactional to other machines.

    ttrq, ttbr: TimeToReachQueue and TimeToBeReceived in seconds from now; default: four days and no limit. A ttrq of 0
    allows one attempt to deliver, and counts as the 10 s of a connection timeout (B-405). dead_letter: keep an
    undelivered message, or a transactional one not known to be received, in a dead-letter queue (JN);
    dead_letter_queue: a local transactional queue instead of the system's. journal: keep a copy of an arrived message,
    or of a received transactional one, in the journal (JP). acknowledge: bits of ACKNOWLEDGE, for administration_queue,
    a local queue that is not transactional or a format name.

    correlation_id: 20 bytes, usually `Message.identifier` of the answered message. response_queue: for answers, a local
    queue or a format name. body_type: code of wire.md 1.8; a `Body` brings its own.
    application_tag (0 to 2**32 - 1) and extension (bytes) are for the application alone.
    """

    destination: str
    body: bytes | bytearray | memoryview = b""
    label: str = ""
    priority: int = 3
    delivery: str | None = None
    ttrq: int | None = None
    ttbr: int | None = None
    dead_letter: bool = False
    journal: bool = False
    dead_letter_queue: str | None = None
    acknowledge: int = 0
    administration_queue: str | QueueName | None = None
    correlation_id: bytes = bytes(compose.CORRELATION_SIZE)
    response_queue: str | QueueName | None = None
    body_type: int = 0
    application_tag: int = 0
    extension: bytes = b""


KINDS: tuple[tuple[type, ...], ...] = (  # types of each field, for applications and `serve`
    (str,), (bytes, bytearray, memoryview), (str,), (int,), (str, type(None)), (int, type(None)), (int, type(None)),
    (bool,), (bool,), (str, type(None)), (int,), (str, type(None)), (bytes,), (str, type(None)), (int,), (int,),
    (bytes,),
)  # fmt: skip


class Run(NamedTuple):
    """Consecutive letters that differ in their bodies only: the letter, and the sizes of all bodies, which follow each
    other in `bodies`."""

    letter: Letter
    sizes: Sequence[int]
    bodies: bytes

    @classmethod
    def of(cls, letter: Letter, bodies: Sequence[Bytes]) -> Run:
        """The letters of these bodies."""
        if len(bodies) == 1:
            return cls(letter, (len(body := bytes(bodies[0])),), body)
        return cls(letter, tuple(map(len, bodies)), b"".join(bodies))


class Further(TypedDict, total=False):
    """Optional arguments of Client.send, for type checkers: fields of Letter; acknowledge takes names of
    ACKNOWLEDGE."""

    ttrq: int | None
    ttbr: int | None
    dead_letter: bool
    journal: bool
    dead_letter_queue: str | None
    acknowledge: Collection[str]
    administration_queue: str | None
    correlation_id: bytes
    response_queue: str | None
    body_type: int
    application_tag: int
    extension: bytes


class Properties(Further, total=False):
    """Optional arguments of Queue.send, Transaction.send and Client.reply: all except destination and body."""

    label: str
    priority: int
    delivery: str | None


def letter_of(
    destination: str, body: bytes | bytearray | memoryview, *, acknowledge: Collection[str] = (), **properties: Any
) -> Letter:
    """Return a checked letter from the arguments of Client.send. Raises ValueError, TypeError."""
    for name in properties:
        if name not in Letter._fields:
            raise TypeError(f"a message has no {name!r}; it has {', '.join(Letter._fields[2:])}")
    wanted = 0
    for name in (acknowledge,) if isinstance(acknowledge, str) else acknowledge:
        if name not in ACKNOWLEDGE:
            raise ValueError(f"there is no acknowledgement {name!r}; there are {', '.join(ACKNOWLEDGE)}")
        wanted |= ACKNOWLEDGE[name]
    return checked(Letter(destination, body, acknowledge=wanted, **properties))


def in_runs(letters: Iterable[Letter]) -> tuple[Run, ...]:
    """Check letters as `checked` does, and group consecutive ones that differ in their bodies only."""
    runs: list[tuple[Letter, list[Bytes]]] = []
    last: Letter | None = None
    for letter in letters:
        if last is not None and (letter is last or _differ_in_body(letter, last)):
            runs[-1][1].append(letter.body)
        else:
            fine = checked(letter)
            runs.append((fine, [fine.body]))
            last = letter if type(letter.body) is bytes else None
    return tuple(Run.of(letter, bodies) for letter, bodies in runs)


def _differ_in_body(letter: Letter, other: Letter) -> bool:
    """Does a letter with a bytes body differ from the other in its body only?"""
    return (
        isinstance(letter, Letter)
        and type(letter.body) is bytes
        and letter.destination == other.destination
        and letter[2:] == other[2:]
    )


def misfit(fields: Sequence[object]) -> int | None:
    """Return the index of the first field whose type is not in KINDS; `fields` may be a prefix of a letter."""
    if all(map(isinstance, fields, KINDS)):
        return None
    return next(at for at, (value, kinds) in enumerate(zip(fields, KINDS)) if not isinstance(value, kinds))


def checked(letter: Letter) -> Letter:
    """Return the letter with its shorthands resolved. Raises ValueError for properties that no message can have, and
    TypeError for wrong types; the store is not read."""
    if not isinstance(letter, Letter):
        raise TypeError(f"{letter!r:.40} is {type(letter).__name__}; it has to be a Letter, with destination and body")
    if not isinstance(letter.body, (bytes, bytearray, memoryview)):
        raise TypeError(
            f"the body is {type(letter.body).__name__}; it has to be bytes: encode it, or use Body.json or "
            "another form of Body that its reader expects"
        )
    if (wrong := misfit(letter)) is not None:
        fitting = " or ".join("None" if kind is type(None) else kind.__name__ for kind in KINDS[wrong])
        raise TypeError(f"{Letter._fields[wrong]} is {letter[wrong]!r:.40}; it has to be {fitting}")
    if legible(letter.label) != letter.label:
        raise ValueError(f"the label {legible(letter.label)} is not valid text: it holds half a character")
    if isinstance(letter.body, Body):
        if letter.body_type not in (0, letter.body.body_type):
            raise ValueError(
                f"the body is of type {letter.body.body_type}, and body_type says {letter.body_type}: "
                "leave body_type out"
            )
        letter = letter._replace(body_type=letter.body.body_type)
    length = len(utf16_encode(letter.label)) // 2
    if length > LABEL_MAX:
        raise ValueError(f"the label has {length} UTF-16 characters; at most {LABEL_MAX} are allowed (wire.md 2.5)")
    for name, value in (("TimeToReachQueue", letter.ttrq), ("TimeToBeReceived", letter.ttbr)):
        if value is not None and not 0 <= value <= TIME_MAX:
            raise ValueError(f"{name} is {value} s; 0 to {TIME_MAX} are allowed")
    if len(letter.correlation_id) != compose.CORRELATION_SIZE:
        raise ValueError(
            f"the correlation identifier has {len(letter.correlation_id)} bytes; it has {compose.CORRELATION_SIZE}: "
            "use the identifier of the message that this one answers"
        )
    for name, value in (("body type", letter.body_type), ("application tag", letter.application_tag)):
        if not 0 <= value <= 0xFFFFFFFF:
            raise ValueError(f"the {name} is {value}; 0 to {0xFFFFFFFF} are allowed")
    return letter._replace(ttrq=CONNECT_TIMEOUT_S) if letter.ttrq == 0 else letter  # one attempt (B-405)


# Requests of applications.

AS_CONFIGURED = 0  # for Wanted.poison_after: PoisonAfter of the store, or of the `serve` that receives


class Wanted(NamedTuple):
    """A receive: up to `limit` messages of a queue. counted, poison_after: see Messages.begin_receive. lookup_id,
    correlation_id (20 bytes): only these messages; None: any."""

    queue: int
    limit: int
    counted: bool = False
    poison_after: int | None = None
    lookup_id: int | None = None
    correlation_id: bytes | None = None


class Emptying(NamedTuple):
    """A removal of the queue's messages with lookup ids up to `last`; message_class gives the reason. marks: a message
    that is being received goes when its receive ends without a commit."""

    queue: int
    message_class: int
    last: int
    marks: bool


class Order(NamedTuple):
    """The name of one of ORDERS, with arguments."""

    name: str
    arguments: tuple[Any, ...] = ()


class Commit(NamedTuple):
    """Work that is done completely or not at all: removes received messages with the reason message_class, sends
    letters, and runs an operator's order."""

    taken: tuple[int, ...] = ()
    message_class: int = confirm.ACK_RECEIVE
    letters: tuple[Run, ...] = ()
    order: Order | None = None

    @property
    def messages(self) -> int:
        """The number of messages sent."""
        return sum(len(run.sizes) for run in self.letters)


class Request(NamedTuple):
    """A commit with the application's identifier, 16 bytes, and a rising number."""

    application: bytes
    number: int
    commit: Commit


def take(store: Store, wanted: Wanted, now: int) -> list[StoredMessage]:
    """Take the messages that are there. now: seconds since 1970."""
    selection = Selection(wanted.lookup_id, wanted.correlation_id)
    return store.messages.begin_receive(wanted.queue, wanted.limit, now, wanted.counted, wanted.poison_after, selection)
