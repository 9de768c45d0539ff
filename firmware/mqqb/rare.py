"""Rare headers that boards skip: the items of SecurityData, and the headers of tracing, SOAP and queue lists behind the
body (wire.md 2.4, 2.6 to 2.8).
"""

from struct import unpack_from

from mqqb import core, guids, headers, names
from mqqb.compose import word
from mqqb.headers import Header, SecurityHeader, UserMessage, check_text, find_nul, take, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from array import array

    Buffer = bytes | bytearray | memoryview

_SOAP_HEADER_ID = 0x0320
_SOAP_BODY_ID = 0x0384
_ADDRESS_IDS = (0x0064, 0x00C8, 0x012C)  # Destination, Administration, Response
_SIGNATURE_ID = 0x015E


class DebugHeader(Header):
    """wire.md 2.6. queue_identifier: 16 bytes or None."""

    __slots__ = ("queue_identifier",)
    part = core.DEBUG_HEADER
    flags = word(core.DEBUG_FLAGS)
    reserved = word(core.DEBUG_RESERVED)

    def __init__(self, fields: "array[int] | None" = None) -> None:
        super().__init__(fields)
        self.queue_identifier: "bytes | None" = None


class SoapHeader:
    """wire.md 2.7. header_raw, body_raw: WCHARs with the NUL.

    aligned: the second part begins on a 4-byte boundary. Unspecified (OP-8): both forms are read, aligned is written.
    """

    __slots__ = ("aligned", "body_raw", "header_raw", "reserved", "reserved1")

    def __init__(self, header: str = "", body: str = "") -> None:
        self.header_raw = names.terminated(header)
        self.body_raw = names.terminated(body)
        self.reserved = 0
        self.reserved1 = 0
        self.aligned = True

    @property
    def header(self) -> str:
        """The first text."""
        return names.utf16_decode(self.header_raw[:-2])

    @property
    def body(self) -> str:
        """The second text."""
        return names.utf16_decode(self.body_raw[:-2])


class MQFAddressHeader:
    """One list of a MultiQueueFormatHeader (wire.md 2.8). raw: FormatNameList as on the wire; elements() makes objects.

    aligned: a public name's GUID begins on a 4-byte boundary like other GUIDs. Unspecified (OP-9): both forms are
    read, aligned is written. HeaderSize may count the final padding (OP-10): both forms are read; it is not counted.
    """

    __slots__ = ("aligned", "element_count", "raw", "reserved")

    def __init__(
        self,
        elements: "list[names.QueueName] | tuple[names.QueueName, ...]" = (),
        raw: bytes = b"",
        element_count: int = 0,
    ) -> None:
        self.reserved = 0
        self.aligned = True
        self.element_count = element_count or len(elements)
        self.raw = raw
        for name in elements:
            self.raw += self._element(name)

    def _element(self, name: names.QueueName) -> bytes:
        if isinstance(name, names.DirectQueueFormatName):
            return b"\3\0" + name.raw
        gap = bytes(-(len(self.raw) + 2) & 3)
        if isinstance(name, headers.PublicQueueFormatName):
            return b"\1\0" + gap + name.raw
        if isinstance(name, headers.PrivateQueueFormatName):
            return b"\2\0" + gap + name.raw
        if isinstance(name, guids.DistributionListFormatName):
            return b"\6\0" + gap + name.raw
        raise ValueError("a name in a list has to name its host")

    def elements(self) -> "list[names.QueueName]":
        """The names."""
        raw = self.raw
        found: "list[names.QueueName]" = []
        end = 0
        for _ in range(self.element_count):
            kind, at, end = _element(raw, end, self.aligned)
            if kind == 1:
                found.append(headers.PublicQueueFormatName(raw[at:end]))
            elif kind == 2:
                found.append(headers.PrivateQueueFormatName(raw[at : at + 16], unpack_from("<I", raw, at + 16)[0]))
            elif kind == 3:
                found.append(names.DirectQueueFormatName("", raw[at:end]))
            else:
                found.append(guids.DistributionListFormatName(raw[at:end]))
        return found


class MultiQueueFormatHeader:
    """wire.md 2.8. signature: bytes in the form of MSMQ 3.0."""

    __slots__ = ("administration", "destination", "response", "signature", "signature_reserved")

    def __init__(
        self,
        destination: MQFAddressHeader,
        administration: MQFAddressHeader,
        response: MQFAddressHeader,
        signature: bytes = b"",
    ) -> None:
        self.destination = destination
        self.administration = administration
        self.response = response
        self.signature = signature
        self.signature_reserved = 0


def read_security(security: SecurityHeader, data: "Buffer", at: int) -> None:
    """Read the items of SecurityData, whose presence is already checked."""
    fields = security.fields
    items = []
    for index in range(core.SECURITY_SENDER_ID_SIZE, core.SECURITY_PROVIDER_INFO_SIZE + 1):
        items.append(bytes(data[at : at + fields[index]]))
        at += fields[index] + 3 & ~3
    identifier, key, signature, certificate, provider = items
    security.security_id = identifier
    security.encryption_key = key
    security.signature = signature
    security.sender_cert = certificate
    security.provider_info = provider
    kind = fields[core.SECURITY_FLAGS] & 0xF
    if kind == 0:
        fits = not identifier
    elif kind == 1:
        fits = len(identifier) >= 8 and identifier[0] == 1 and identifier[1] <= 15
        fits = fits and len(identifier) == 8 + 4 * identifier[1]
    else:
        fits = len(identifier) == 16
    if not fits:
        raise core.Malformed("wire.md 2.4", "SecurityHeader.SecurityID", "not what ST announces")
    if provider:
        if len(provider) < 6:
            raise core.Malformed("wire.md 2.4", "SecurityHeader.ProviderInfo", "too short for a type and a name")
        check_text(provider[4:], "SecurityHeader.ProviderInfo")


def read_tail(message: UserMessage, data: "Buffer", at: int, limit: int) -> int:
    """Read the headers behind the body and its padding. Returns their end."""
    flags = message.user.fields[core.USER_FLAGS]
    if message.base.fields[core.BASE_FLAGS] & core.BASE_DH:
        message.debug = debug = DebugHeader(unpack(core.DEBUG_HEADER, data, at, limit))
        at += 4
        if debug.fields[core.DEBUG_FLAGS] & 3:
            debug.queue_identifier = take(data, at, 16, limit, "DebugHeader.QueueIdentifier")
            at += 16
    if flags & core.USER_HH:
        message.soap, at = _parse_soap(data, at, limit)
    if flags & core.USER_MQ:
        message.multi_queue_format, at = _parse_multi_queue_format(data, at, limit)
    return at


def _parse_section(data: "Buffer", at: int, limit: int, field: str) -> "tuple[int, bytes]":
    """(Reserved, text with NUL) of one half of a SoapHeader, whose ID is already checked."""
    _, reserved, length = unpack_from("<HHI", take(data, at, 8, limit, field), 0)
    raw = take(data, at + 8, 2 * length, limit, field)
    check_text(raw, field)
    return reserved, raw


def _is_section(data: "Buffer", at: int, limit: int, section: int) -> bool:
    return at + 2 <= limit and data[at] | data[at + 1] << 8 == section


def _parse_soap(data: "Buffer", at: int, limit: int) -> "tuple[SoapHeader, int]":
    soap = SoapHeader()
    if not _is_section(data, at, limit, _SOAP_HEADER_ID):
        raise core.Malformed("wire.md 2.7", "SoapHeader.HeaderSectionID", "not 0x0320")
    soap.reserved, soap.header_raw = _parse_section(data, at, limit, "SoapHeader.Header")
    first = 8 + len(soap.header_raw)
    second = at + (first + 3 & ~3)
    if not _is_section(data, second, limit, _SOAP_BODY_ID):
        second = at + first
        soap.aligned = False
        if not _is_section(data, second, limit, _SOAP_BODY_ID):
            raise core.Malformed("wire.md 2.7", "SoapHeader.BodySectionID", "not 0x0384")
    soap.reserved1, soap.body_raw = _parse_section(data, second, limit, "SoapHeader.Body")
    return soap, min(at + (second - at + 8 + len(soap.body_raw) + 3 & ~3), limit)


def _element(raw: bytes, at: int, aligned: bool) -> "tuple[int, int, int]":
    """(FormatType, begin, end) of the element at raw[at] (wire.md 1.6). A FormatNameList is 4-aligned in its header."""
    if at + 2 > len(raw):
        raise core.Malformed("B-431", "MQFAddressHeader.ElementCount", "more elements than HeaderSize has room for")
    kind = raw[at] | raw[at + 1] << 8
    at += 2
    if kind == 3:
        end = find_nul(raw, at) + 2
        if end < at + 4:
            raise core.Malformed("B-431", "MQFAddressHeader.FormatNameList", "a direct name is empty or has no NUL")
        return kind, at, end
    if kind not in (1, 2, 6):
        raise core.Malformed("wire.md 1.6", "MQFAddressHeader.FormatType", "not 1, 2, 3 or 6")
    if aligned or kind != 1:
        at += -at & 3
    end = at + (20 if kind == 2 else 16)
    if end > len(raw):
        raise core.Malformed("B-431", "MQFAddressHeader.HeaderSize", "ends inside an element")
    return kind, at, end


def _aligned(raw: bytes, count: int) -> bool:
    """The reading of OP-9 in which the elements end at HeaderSize, with or without its padding (OP-10, B-431)."""
    error = core.Malformed("B-431", "MQFAddressHeader.HeaderSize", "not what the elements take")
    for aligned in (True, False):
        end = 0
        try:
            for _ in range(count):
                _, _, end = _element(raw, end, aligned)
        except core.Malformed as reason:
            error = reason
            continue
        if end <= len(raw) <= end + (-end & 3):
            return aligned
    raise error


def _parse_address(data: "Buffer", at: int, limit: int, header_id: int) -> "tuple[MQFAddressHeader, int]":
    size, found, reserved, count = unpack_from("<IHHI", take(data, at, 12, limit, "MQFAddressHeader"), 0)
    if found != header_id:
        raise core.Malformed("wire.md 2.8", "MQFAddressHeader.HeaderID", "not 0x%04X" % header_id)
    if size < 12 or size > limit - at:
        raise core.Malformed("B-431", "MQFAddressHeader.HeaderSize", "below 12 or beyond PacketSize")
    raw = bytes(data[at + 12 : at + size])
    address = MQFAddressHeader((), raw, count)
    address.reserved = reserved
    address.aligned = _aligned(raw, count)
    return address, min(at + (size + 3 & ~3), limit)


def _parse_multi_queue_format(data: "Buffer", at: int, limit: int) -> "tuple[MultiQueueFormatHeader, int]":
    destination, at = _parse_address(data, at, limit, _ADDRESS_IDS[0])
    administration, at = _parse_address(data, at, limit, _ADDRESS_IDS[1])
    response, at = _parse_address(data, at, limit, _ADDRESS_IDS[2])
    found, reserved, size = unpack_from("<HHI", take(data, at, 8, limit, "MQFSignatureHeader"), 0)
    if found != _SIGNATURE_ID:
        raise core.Malformed("wire.md 2.8", "MQFSignatureHeader.ID", "not 0x015E")
    signature = take(data, at + 8, size, limit, "MQFSignatureHeader.Signature")
    header = MultiQueueFormatHeader(destination, administration, response, signature)
    header.signature_reserved = reserved
    return header, min(at + (8 + size + 3 & ~3), limit)  # OP-10: its padding may be missing
