"""What the modules of a node require of each other, for readers and type checkers. Boards do not need it."""

from typing import Any, Protocol

from mqqb import compose, headers, session, streams
from ordack.node.log import LoggedQueue, Restored
from ordack.node.message import Message
from ordack.node.notices import Notices


class Waitable(Protocol):
    """stream: what select.poll waits on until there is something to read, always the same; None while closed, and while
    a name is looked up. wants_write: it also waits until `stream` can be written.
    """

    stream: Any
    wants_write: bool


class Link(Waitable, Protocol):
    """How bytes reach the peer, without waiting. OSError: it is broken, and only close and then open are of use.

    While it is opening or open, is_open or readinto is called at least every TICK_MS: its timers run inside them.
    failed: the node sets it to False when there is a session.
    """

    failed: bool

    def open(self) -> None:
        """Begin to open it."""

    def is_open(self) -> bool:
        """Go on opening it: is it open? OSError too if nobody has answered for too long."""

    def readinto(self, buffer: memoryview) -> int:
        """Bytes that were read; 0: there are none now. OSError too if the peer has closed."""

    def write(self, data: memoryview) -> int:
        """So many of the bytes were taken; 0: there is no room now."""

    def close(self) -> None:
        """Let go of it, whatever its state; what was not sent yet is dropped."""


class Carrier(Protocol):
    """What a receiver sees of the peer whose session carries a message: `remote_guid` of the queue manager there;
    `room`, the bytes that a packet may have; `session`, None while there is none; `reason`: why the last one has ended;
    `address`, "" if the link has none.
    """

    remote_guid: bytes
    room: int
    reason: str
    session: "session.Session | None"

    @property
    def address(self) -> str:
        """The host at the other end as the link knows it."""


class Receiver(Protocol):
    """Takes what others send to this node. All is called from Node.poll; now: monotonic ms.

    Arrivals are written to the outbox, without a sync: the node makes it, once for all that came together, and only
    then does the session acknowledge them (B-098).
    """

    def closed(self, peer: Carrier) -> None:
        """A session is over; what was in flight is not acknowledged."""

    def arrived(self, peer: Carrier, message: headers.UserMessage, raw: bytes, now: int) -> bool:
        """A message has come, `raw` is its packet without SessionHeader. If anything of it goes to the log, set
        Commits.must_commit. True: there is no room for it now; nothing that comes behind it is given to this receiver,
        the session ends in a while, and they come again. OutboxError: it cannot be taken, the session ends at once.
        """

    def settled(self) -> None:
        """The sync is over: arrivals whose handle has a `segment` are durable, the others are as if they never came."""

    def next_packet(self, peer: Carrier, now: int) -> "tuple[streams.Entry | None, bytearray, bool] | None":
        """What is to be sent to that peer now, before the messages of the queues: (entry that waits for its session
        acknowledgement, packet, recoverable). It counts as sent then. The packet has at most Peer.room bytes.
        """

    def acknowledged(self, entries: "list[streams.Entry]") -> None:
        """The session has acknowledged these entries of next_packet for good."""

    def next_timeout(self, now: int) -> "int | None":
        """When next_packet will have something for a peer with a session, or None."""


class Stream(Protocol):
    """A queue of messages for a peer, as what carries them sees it. `sending`: the TxSequenceID of what was sent last.
    `renewed`: its sequence has been begun since the start. `followed`: those on the flash only about which somebody has
    asked. `peer`: who carries it.
    """

    logged: LoggedQueue
    stream: streams.OutgoingStream
    draft: compose.Draft
    sending: int
    renewed: bool
    followed: "dict[int, Message]"

    @property
    def peer(self) -> Carrier:
        """Where its messages go."""

    def held(self) -> int:
        """So many of its messages are in memory, and under way."""

    def renew(self) -> None:
        """Begin a sequence that nobody can have seen."""

    def hand_over(self, restored: Restored) -> None:
        """The handle about which somebody has asked takes the place of the one with which it came from the flash."""

    def miss(self) -> None:
        """A part of what has been passed over on the flash cannot be read."""

    def follow(self, message: Message) -> None:
        """See message.Follower."""


class Polled(Protocol):
    """What a task calls again and again. `links`: all that may become ready. `notices`: what
    is to be told after that."""

    links: "list[Waitable]"
    notices: Notices

    def work(self) -> int:
        """Do what can be done now; ms until it wants to be called again at the latest."""
