"""The datagram that asks whether a queue manager takes a session, and its answer (wire.md section 7)."""

from mqqb import core, names
from mqqb.compose import word
from mqqb.headers import Header, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from array import array

    Buffer = bytes | bytearray | memoryview


class Ping(Header):
    """The 24-byte datagram (wire.md section 7)."""

    __slots__ = ("qm_guid",)
    part = core.PING
    flags = word(core.PING_FLAGS)
    signature = word(1)
    cookie = word(core.PING_COOKIE)

    def __init__(self, fields: "array[int] | None" = None) -> None:
        super().__init__(fields)
        self.qm_guid = names.NULL_GUID


def parse(datagram: "Buffer") -> Ping:
    """Read a ping datagram. Malformed: ignore it, answer nothing, close nothing (B-200, B-202)."""
    if len(datagram) != core.part_size(core.PING):
        raise core.Malformed("wire.md 7", "PingPacket", "a ping has 24 bytes")
    ping = Ping(unpack(core.PING, datagram, 0, len(datagram)))
    ping.qm_guid = bytes(datagram[8:24])
    return ping


def build(ping: Ping) -> bytearray:
    """The datagram. ValueError if a field is out of range."""
    out = bytearray(core.part_size(core.PING))
    core.pack(core.PING, ping.fields, out, 0)
    out[8:24] = names.check_guid(ping.qm_guid)
    return out
