"""GUIDs and format names as text (wire.md 1.1, 1.5, 1.6)."""

from struct import pack_into

from mqqb import names
from mqqb.headers import PrivateQueueFormatName, PrivateQueueFormatNameId, PublicQueueFormatName
from mqqb.names import DirectQueueFormatName, QueueName, check_guid
from mqqb.names import guid_text as guid_text


def guid_bytes(text: str) -> bytes:
    """The 16 wire bytes of a GUID's text, with or without braces. Raises ValueError."""
    parts = text[1:-1].split("-") if text[:1] == "{" and text[-1:] == "}" else text.split("-")
    if [len(part) for part in parts] != [8, 4, 4, 4, 12]:
        raise ValueError("not a GUID: " + text)
    digits = "".join(parts)
    for char in digits:
        if char not in "0123456789abcdefABCDEF":
            raise ValueError("not a GUID: " + text)
    guid = bytearray(16)
    pack_into("<IHH", guid, 0, int(parts[0], 16), int(parts[1], 16), int(parts[2], 16))
    for index in range(8):
        guid[8 + index] = int(digits[16 + 2 * index : 18 + 2 * index], 16)
    return bytes(guid)


class DistributionListFormatName(QueueName):
    """A distribution list by its GUID; only in a MultiQueueFormatHeader (wire.md 1.6)."""

    __slots__ = ()

    def __init__(self, distribution_list: bytes) -> None:
        super().__init__(check_guid(distribution_list))


def parse_format_name(text: str) -> QueueName:
    r"""Parse a format name in the form of applications: DIRECT=OS:host\private$\name, PUBLIC=guid, PRIVATE=guid\hex.

    Raises ValueError with the reason.
    """
    kind, _, rest = text.partition("=")
    kind = kind.upper()
    protocol, _, path = rest.partition(":")
    if kind == "DIRECT" and protocol.upper() in ("TCP", "OS"):
        return names.parse_format_name(text)
    if kind == "PUBLIC":
        return PublicQueueFormatName(guid_bytes(rest))
    if kind == "PRIVATE":
        guid, _, number = rest.partition("\\")
        if not 1 <= len(number) <= 8:
            raise ValueError("PRIVATE= needs a GUID, a backslash and up to 8 hex digits: " + rest)
        return PrivateQueueFormatName(guid_bytes(guid), int(number, 16))
    if kind != "DIRECT":
        raise ValueError("a format name begins with DIRECT=, PUBLIC= or PRIVATE=: " + kind)
    if protocol.upper() in ("IPX", "SPX"):
        names.parse_format_name("DIRECT=OS:" + path)  # the path has the same form
    elif protocol.upper() not in ("HTTP", "HTTPS"):
        raise ValueError("a direct name begins with TCP:, OS:, HTTP:, HTTPS:, IPX: or SPX:: " + rest)
    return DirectQueueFormatName(rest)


def format_name(name: QueueName, host: bytes = names.NULL_GUID) -> str:
    """The text of a queue name. host: GUID of the queue manager with a PrivateQueueFormatNameId."""
    if isinstance(name, DirectQueueFormatName):
        return "DIRECT=" + name.direct_format_name
    if isinstance(name, PrivateQueueFormatName):
        return "PRIVATE=%s\\%08X" % (guid_text(name.source_queue_manager)[1:-1], name.private_queue_identifier)
    if isinstance(name, PrivateQueueFormatNameId):
        return "PRIVATE=%s\\%08X" % (guid_text(host)[1:-1], name.private_queue_identifier)
    return ("PUBLIC=" if isinstance(name, PublicQueueFormatName) else "DL=") + guid_text(name.raw)[1:-1]
