"""What a session tells its owner."""

from mqqb import const

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from mqqb import reader, streams
    from mqqb.headers import FinalAck, UserMessage


class Opened:
    """The handshake is done: both sides may send (B-003)."""

    __slots__ = ()


class MessageReceived:
    """A UserMessage, OrderAck or FinalAck (`packet`) has come; `raw` is it without its SessionHeader.

    The owner calls Session.stored once for each, in order, when its outcome is durable.
    """

    __slots__ = ("packet", "raw", "recoverable")

    def __init__(self, packet: "UserMessage | reader.OrderAck | FinalAck", raw: bytes, recoverable: bool) -> None:
        self.packet = packet
        self.raw = raw
        self.recoverable = recoverable


class Acknowledged:
    """The session acknowledged these entries for good: express ones received, recoverable ones on the peer's disk
    (B-221 to B-223).
    """

    __slots__ = ("entries",)

    def __init__(self, entries: "list[streams.Entry]") -> None:
        self.entries = entries


class Noted:
    """The peer broke `rule` in a way that is let through, told once for a session (A-13)."""

    __slots__ = ("reason", "rule")

    def __init__(self, rule: str, reason: str) -> None:
        self.rule = rule
        self.reason = reason


class Closed:
    """The session is over: shut the transport. `rule` and `reason` say why (B-004, B-297)."""

    __slots__ = ("reason", "rule")

    def __init__(self, rule: str, reason: str) -> None:
        self.rule = rule
        self.reason = reason
