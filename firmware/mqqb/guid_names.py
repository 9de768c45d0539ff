"""Public and private format names: queues by GUIDs and numbers (wire.md 1.5)."""

from struct import pack, unpack, unpack_from

from mqqb import names
from mqqb.names import QueueName, check_guid


def guid_text(guid: bytes) -> str:
    """16 wire bytes as {D1-D2-D3-D4}, upper case (wire.md 1.1)."""
    return "{%08X-%04X-%04X-%04X-%04X%08X}" % (unpack("<IHH", guid[:8]) + unpack(">HHI", guid[8:16]))


class PrivateQueueFormatNameId(QueueName):
    """A private queue on a host that the selector names (wire.md 1.5)."""

    __slots__ = ()
    kind = names.ID
    selector = 2

    def __init__(self, private_queue_identifier: int) -> None:
        super().__init__(pack("<I", private_queue_identifier))

    @property
    def private_queue_identifier(self) -> int:
        """The queue's number on its host."""
        return int(unpack_from("<I", self.raw, 0)[0])


class PublicQueueFormatName(QueueName):
    """A queue by its directory GUID (wire.md 1.5)."""

    __slots__ = ()
    kind = names.PUBLIC
    selector = 5

    def __init__(self, public_queue_identifier: bytes) -> None:
        super().__init__(check_guid(public_queue_identifier))

    @property
    def public_queue_identifier(self) -> bytes:
        """The queue's GUID."""
        return self.raw


class PrivateQueueFormatName(QueueName):
    """A private queue of a host given by its GUID (wire.md 1.5)."""

    __slots__ = ()
    kind = names.PRIVATE
    selector = 6

    def __init__(self, source_queue_manager: bytes, private_queue_identifier: int) -> None:
        super().__init__(check_guid(source_queue_manager) + pack("<I", private_queue_identifier))

    @property
    def source_queue_manager(self) -> bytes:
        """GUID of the host."""
        return self.raw[:16]

    @property
    def private_queue_identifier(self) -> int:
        """The queue's number on its host."""
        return int(unpack_from("<I", self.raw, 16)[0])
