"""Decode captures and raw packets to fields for `ordack capture decode`."""

import re
import struct
from array import array
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, BinaryIO, NamedTuple

from mqqb import compose, connection, core, core_py, guids, handshake, headers, parse, rare, streams
from mqqb.handshake import Ping, parse_ping
from mqqb.names import DirectQueueFormatName, QueueName, utf16_decode

from ordack import formatters
from ordack.capture import reading
from ordack.config import classes

Packet = (
    handshake.EstablishConnection
    | handshake.ConnectionParameters
    | handshake.SessionAck
    | headers.UserMessage
    | connection.OrderAck
    | headers.FinalAck
    | Ping
)
Bits = tuple[tuple[str, int], ...]
Warn = Callable[[str], None]
_UNREAD = {
    reading.CUT: "headers of the first of them were not captured whole",
    reading.WRAPPED: "the first of them is in a tunnel (VXLAN, GRE), or a fragment of IP: capture behind that",
}

# ---- names of bits, lowest first, with their widths (wire.md) -----------------------------------

BASE_FLAGS: Bits = (
    ("PR", 3), ("IN", 1), ("SH", 1), ("DH", 1), ("X9", 1), ("X8", 1), ("TR", 1),
    ("X6", 1), ("X5", 1), ("X4", 1), ("X3", 1), ("X2", 1), ("X1", 1), ("X0", 1),
)  # fmt: skip
INTERNAL_FLAGS: Bits = (("PT", 4), ("CS", 1), ("X5_X15", 11))
OPERATING_SYSTEM: Bits = (("RE", 8), ("SE", 1), ("OS", 1), ("QS", 1), ("X11_X15", 5))
USER_FLAGS: Bits = (
    ("RC", 5), ("DM", 2), ("X1", 1), ("JN", 1), ("JP", 1), ("DQ", 3), ("AQ", 3), ("RQ", 3), ("SH", 1), ("TH", 1),
    ("MP", 1), ("CQ", 1), ("MQ", 1), ("X2", 1), ("AH", 1), ("X3", 2), ("HH", 1), ("X4", 3),
)  # fmt: skip
TRANSACTION_FLAGS: Bits = (("CG", 1), ("FA", 1), ("FM", 1), ("LM", 1), ("ID", 20), ("X1_X8", 8))
SECURITY_FLAGS: Bits = (("ST", 4), ("AU", 1), ("EB", 1), ("DE", 1), ("AI", 1), ("AS", 4), ("X12_X15", 4))
PROPERTIES_FLAGS: Bits = (("PA", 1), ("PR", 1), ("NA", 1), ("NR", 1), ("X", 4))
DEBUG_FLAGS: Bits = (("QT", 2), ("X2_X15", 14))
PING_FLAGS: Bits = (("RC", 1), ("RF", 1), ("X", 14))

# Offsets come from mqqb.h. The function of a header adds Fields that are computed or have no fixed offset, as
# `_properties` does. Fields about the whole packet end the first section, which `_message` or `sections` builds.
# `core.packet_total` gives the size of a whole packet; `packet_size` excludes a message's SessionHeader.
#
# Fields with lower-case names are not on the wire. The dissector (except `padding_length`, its Padding) and
# vectors.json omit them; tests/audit/test_decode.py ignores them and `MessageClass_name`.

Layout = list[tuple[str, int, str, Bits | None]]
_ATTRIBUTES = {"recoverable_msg_seq_number": "recoverable_msg_sequence_number"}
_WORDS = re.compile("(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def _layout(part: int, names: str, **bits: Bits) -> Layout:
    """names: fields in wire order; `/` precedes a number of mqqb.h words above 1. bits: tables of bit names."""
    found: Layout = []
    words, at = iter(core_py._FORMATS[part][1:]), 0  # noqa: SLF001 - made by c_core/layout.py
    for name, _, count in (item.partition("/") for item in names.split()):
        attribute = _WORDS.sub("_", name.removesuffix("_hex")).lower()
        found.append((name, at, attribute, bits.get(name)))
        at += sum(struct.calcsize(next(words)) for _ in range(int(count or 1)))
    return found


BASE = _layout(core.BASE_HEADER, "VersionNumber Reserved Flags Signature PacketSize TimeToReachQueue", Flags=BASE_FLAGS)
INTERNAL = _layout(core.INTERNAL_HEADER, "Reserved Flags", Flags=INTERNAL_FLAGS)
ESTABLISH = _layout(
    core.ESTABLISH_CONNECTION,
    "ClientGuid/4 ServerGuid/4 TimeStamp OperatingSystem Reserved",
    OperatingSystem=OPERATING_SYSTEM,
)
PARAMETERS = _layout(core.CONNECTION_PARAMETERS, "RecoverableAckTimeout AckTimeout Reserved WindowSize")
SESSION = _layout(
    core.SESSION_HEADER,
    "AckSequenceNumber RecoverableMsgAckSeqNumber RecoverableMsgAckFlags UserMsgSequenceNumber RecoverableMsgSeqNumber "
    "WindowSize Reserved",
)
USER = _layout(
    core.USER_HEADER,
    "SourceQueueManager/4 QueueManagerAddress/4 TimeToBeReceived SentTime MessageID Flags",
    Flags=USER_FLAGS,
)
SECURITY = _layout(
    core.SECURITY_HEADER,
    "Flags SenderIdSize EncryptionKeySize SignatureSize SenderCertSize ProviderInfoSize",
    Flags=SECURITY_FLAGS,
)
PROPERTIES = _layout(
    core.MESSAGE_PROPERTIES_HEADER,
    "Flags LabelLength MessageClass CorrelationID_hex/5 BodyType ApplicationTag MessageSize AllocationBodySize "
    "PrivacyLevel HashAlgorithm EncryptionAlgorithm ExtensionSize",
    Flags=PROPERTIES_FLAGS,
)
SECURITY_ITEMS = ("SecurityID_hex", "EncryptionKey_hex", "Signature_hex", "SenderCert_hex", "ProviderInfo")
DEBUG = _layout(core.DEBUG_HEADER, "Flags Reserved", Flags=DEBUG_FLAGS)
PING = _layout(core.PING, "Flags Signature Cookie QMGuid/4", Flags=PING_FLAGS)

# ---- meanings of values, for people -------------------------------------------------------------

PRIVACY_LEVELS = {0: "body in clear", 1: "Base", 3: "Enhanced", 5: "Advanced"}
HASHES = {0x8001: "MD2", 0x8002: "MD4", 0x8003: "MD5", 0x8004: "SHA-1", 0x800C: "SHA-256", 0x800E: "SHA-512"}
CIPHERS = {0x6602: "RC2", 0x660E: "AES 128", 0x660F: "AES 192", 0x6610: "AES 256", 0x6801: "RC4"}
BIT_VALUES = {
    "DM": ("express", "recoverable"),
    "PT": ("", "SessionAck", "EstablishConnection", "ConnectionParameters"),
    "ST": ("no sender", "SID", "queue manager GUID"),
    "DQ": ("none", "", "", "private", "", "public", "", "direct"),
    "AQ": ("none", "", "private, source", "private, destination", "", "public", "private, other", "direct"),
    "RQ": ("none", "as admin", "private, source", "private, destination", "private, admin host", "public",
           "private, other", "direct"),
}  # fmt: skip


def _duration(seconds: int) -> str:
    if seconds == compose.FOREVER:
        return "for ever"
    days, rest = divmod(seconds, 86400)
    return (f"{days} d " if days else "") + f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"


def _note(name: str, value: int) -> str:
    if name in ("TimeToReachQueue", "TimeToBeReceived"):
        return _duration(value)
    if name == "SentTime":
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    if name == "Signature":
        return '"LIOR"' if value == core.SIGNATURE else '"HU"'
    if name in ("RecoverableAckTimeout", "AckTimeout", "TimeStamp"):
        return "ms"
    tables: dict[str, dict[int, str]] = {
        "MessageClass": classes.NAMES,
        "BodyType": formatters.NAMES,
        "PrivacyLevel": PRIVACY_LEVELS,
        "HashAlgorithm": HASHES,
        "EncryptionAlgorithm": CIPHERS,
    }
    return tables.get(name, {}).get(value, "")


# ---- a packet as sections of fields -------------------------------------------------------------


class Field(NamedTuple):
    """A field with the name and value of the JSON. offset: in the packet. note: the value's meaning.

    A composite value is a tuple of Fields. A repeated composite is a list of tuples.
    """

    name: str
    offset: int
    value: Any
    note: str = ""


class Section(NamedTuple):
    """A header. offset: in the packet."""

    name: str
    offset: int
    fields: list[Field]


def _as_json(value: Any) -> Any:
    if isinstance(value, tuple):
        fields = {field.name: _as_json(field.value) for field in value}
        if "MessageClass" in fields:
            fields["MessageClass_name"] = classes.name(fields["MessageClass"])
        return fields
    return [_as_json(item) for item in value] if isinstance(value, list) else value


def _hex(raw: bytes | bytearray | memoryview) -> str:
    return bytes(raw).hex().upper()


def _bits(value: int, names: Bits) -> dict[str, int]:
    word = {"raw": value}
    for name, width in names:
        word[name] = value & (1 << width) - 1
        value >>= width
    return word


def _fixed(header: object, at: int, layout: Layout) -> list[Field]:
    fields = []
    for name, offset, attribute, bits in layout:
        value = getattr(header, _ATTRIBUTES.get(attribute, attribute))
        note = ""
        if bits is not None:
            value = _bits(value, bits)
        elif isinstance(value, int):
            note = _note(name, value)
        else:
            value = guids.guid_text(value) if len(value) == 16 else _hex(value)
        fields.append(Field(name, at + offset, value, note))
    return fields


def _queue(name: QueueName, at: int) -> tuple[Field, ...]:
    kind = Field("type", at, type(name).__name__)
    if isinstance(name, DirectQueueFormatName):
        end = at + 2 + len(name.raw)
        padding = Field("padding_length", end, at + len(name.wire()) - end)
        return kind, Field("Count", at, len(name.raw)), *_name_fields(name, at + 2), padding
    return kind, *_name_fields(name, at)


def _name_fields(name: QueueName, at: int) -> tuple[Field, ...]:
    if isinstance(name, headers.PublicQueueFormatName):
        return (Field("PublicQueueIdentifier", at, guids.guid_text(name.public_queue_identifier)),)
    if isinstance(name, headers.PrivateQueueFormatName):
        return (
            Field("SourceQueueManager", at, guids.guid_text(name.source_queue_manager)),
            Field("PrivateQueueIdentifier", at + 16, name.private_queue_identifier),
        )
    if isinstance(name, headers.PrivateQueueFormatNameId):
        return (Field("PrivateQueueIdentifier", at, name.private_queue_identifier),)
    if isinstance(name, DirectQueueFormatName):
        return (Field("DirectFormatName", at, name.direct_format_name),)
    return (Field("DistributionList", at, guids.guid_text(name.raw)),)


def _sid_text(raw: bytes) -> str:
    authority = int.from_bytes(raw[2:8], "big")
    parts = [int.from_bytes(raw[at : at + 4], "little") for at in range(8, len(raw), 4)]
    return "-".join(["S", str(raw[0]), str(authority), *map(str, parts)])


def _security(header: headers.SecurityHeader, at: int) -> Section:
    data: list[Field] = []
    item_at = at + 16
    for name, raw in zip(SECURITY_ITEMS, header.items(), strict=True):
        if raw and name == "ProviderInfo":
            kind = Field("ProviderType", item_at, int.from_bytes(raw[:4], "little"))
            text = Field("ProviderName", item_at + 4, utf16_decode(raw[4:-2]))
            data.append(Field(name, item_at, (kind, text)))
        elif raw:
            data.append(Field(name, item_at, _hex(raw)))
        if raw and name == "SecurityID_hex":
            sid = header.flags & 0xF == 1
            data.append(Field("SecurityID_text", item_at, (_sid_text if sid else guids.guid_text)(raw)))
        item_at += len(raw) + (-len(raw) & 3)
    fields = _fixed(header, at, SECURITY)
    return Section("SecurityHeader", at, [*fields, Field("SecurityData", at + 16, tuple(data))])


def _sequence(at: int, header: headers.TransactionHeader | streams.OrderAckBody | headers.FinalAckBody) -> list[Field]:
    identifier = (
        Field("Ordinal", at, header.tx_sequence_ordinal),
        Field("TimeStamp", at + 4, header.tx_sequence_time_stamp),
    )
    return [Field("TxSequenceID", at, identifier), Field("TxSequenceNumber", at + 8, header.tx_sequence_number)]


def _transaction(header: headers.TransactionHeader, at: int) -> Section:
    fields = [
        Field("Flags", at, _bits(header.flags, TRANSACTION_FLAGS)),
        *_sequence(at + 4, header),
        Field("PreviousTxSequenceNumber", at + 16, header.previous_tx_sequence_number),
    ]
    if header.connector_qm_guid is not None:
        fields.append(Field("ConnectorQMGuid", at + 20, guids.guid_text(header.connector_qm_guid)))
    return Section("TransactionHeader", at, fields)


def _properties(header: headers.MessagePropertiesHeader, at: int) -> tuple[Section, int]:
    label_at = at + 56
    extension_at = label_at + len(header.label_raw)
    body_at = extension_at + len(header.extension)
    body = {"length": len(header.body), "packet_offset": body_at, "hex": _hex(header.body)}
    used = body_at + len(header.body)
    end = used + len(header.surplus) + (-(used + len(header.surplus)) & 3)
    fields = [
        *_fixed(header, at, PROPERTIES),
        Field("Label", label_at, header.label),
        Field("ExtensionData_hex", extension_at, _hex(header.extension)),
        Field("MessageBody", body_at, body),
        Field("padding_length", used, end - used),
    ]
    return Section("MessagePropertiesHeader", at, fields), end


def _debug(header: rare.DebugHeader, at: int) -> tuple[Section, int]:
    fields = _fixed(header, at, DEBUG)
    if header.queue_identifier is None:
        return Section("DebugHeader", at, fields), at + 4
    fields.append(Field("QueueIdentifier", at + 4, guids.guid_text(header.queue_identifier)))
    return Section("DebugHeader", at, fields), at + 20


def _soap(header: rare.SoapHeader, at: int) -> tuple[Section, int]:
    second = at + 8 + len(header.header_raw)
    if header.aligned:
        second += -second & 3
    fields = [
        Field("HeaderSectionID", at, 0x0320),
        Field("Reserved", at + 2, header.reserved),
        Field("HeaderDataLength", at + 4, len(header.header_raw) // 2),
        Field("Header", at + 8, header.header),
        Field("BodySectionID", second, 0x0384),
        Field("Reserved1", second + 2, header.reserved1),
        Field("BodyDataLength", second + 4, len(header.body_raw) // 2),
        Field("Body", second + 8, header.body),
    ]
    end = second + 8 + len(header.body_raw)
    return Section("SoapHeader", at, fields), end + (at - end & 3)


def _multi_queue_format(header: rare.MultiQueueFormatHeader, at: int) -> tuple[Section, int]:
    fields = []
    begin = at
    for name, number, part in (
        ("Destination", 0x0064, header.destination),
        ("Administration", 0x00C8, header.administration),
        ("Response", 0x012C, header.response),
    ):
        value = (
            Field("HeaderSize", at, 12 + len(part.raw)),
            Field("HeaderID", at + 4, number),
            Field("Reserved", at + 6, part.reserved),
            Field("ElementCount", at + 8, part.element_count),
            Field("FormatNameList", at + 12, _elements(part, at + 12)),
        )
        fields.append(Field(name, at, value))
        at += 12 + len(part.raw) + (-len(part.raw) & 3)
    signature = (
        Field("ID", at, 0x015E),
        Field("Reserved", at + 2, header.signature_reserved),
        Field("Size", at + 4, len(header.signature)),
        Field("Signature_hex", at + 8, _hex(header.signature)),
    )
    fields.append(Field("Signature", at, signature))
    return Section("MultiQueueFormatHeader", begin, fields), at + 8 + len(header.signature) + (
        -len(header.signature) & 3
    )


def _elements(part: rare.MQFAddressHeader, begin: int) -> list[tuple[Field, ...]]:
    elements = []
    end = 0
    for name in part.elements():
        at = end + 2
        if isinstance(name, DirectQueueFormatName):
            kind, size = 3, len(name.raw)
        else:
            kind = {headers.PublicQueueFormatName: 1, headers.PrivateQueueFormatName: 2}.get(type(name), 6)
            size = len(name.wire())
            at += -at & 3 if part.aligned or kind != 1 else 0
        elements.append((Field("FormatType", begin + end, kind), *_name_fields(name, begin + at)))
        end = at + size
    return elements


def _user(header: headers.UserHeader) -> tuple[Section, int]:
    fields = _fixed(header, 16, USER)
    at = 64
    for name, queue in (
        ("DestinationQueue", header.destination_queue),
        ("AdminQueue", header.admin_queue),
        ("ResponseQueue", header.response_queue),
    ):
        if queue is not None:
            fields.append(Field(name, at, _queue(queue, at), guids.format_name(queue)))
            at += len(queue.wire())
    if header.connector_type is not None:
        fields.append(Field("ConnectorType", at, guids.guid_text(header.connector_type)))
        at += 16
    return Section("UserHeader", 16, fields), at


def _message(message: headers.UserMessage, ack: streams.OrderAckBody | headers.FinalAckBody | None) -> list[Section]:
    user, at = _user(message.user)
    sections = [Section("BaseHeader", 0, _fixed(message.base, 0, BASE)), user]
    if message.transaction is not None:
        sections.append(_transaction(message.transaction, at))
        at += 20 if message.transaction.connector_qm_guid is None else 36
    if message.security is not None:
        sections.append(_security(message.security, at))
        at += 16 + sum(len(item) + (-len(item) & 3) for item in message.security.items())
    properties, at = _properties(message.properties, at)
    sections.append(properties)
    if ack is not None:
        [body_at] = [field.offset for field in properties.fields if field.name == "MessageBody"]
        sections.append(_ack_body(ack, body_at))
    for header, read in (
        (message.debug, _debug), (message.soap, _soap), (message.multi_queue_format, _multi_queue_format),
    ):  # fmt: skip
        if header is not None:
            section, at = read(header, at)
            sections.append(section)
    if message.session is not None:
        size = message.base.packet_size
        sections.append(Section("SessionHeader", size, _fixed(message.session, size, SESSION)))
    return sections


def _ack_body(body: streams.OrderAckBody | headers.FinalAckBody, at: int) -> Section:
    fields = _sequence(at, body)
    if isinstance(body, streams.OrderAckBody):
        fields.append(Field("TxPreviousSequenceNumber", at + 12, body.tx_previous_sequence_number))
        return Section("OrderAckBody", at, fields)
    fields += [
        Field("PreviousTxSequenceNumber", at + 12, body.previous_tx_sequence_number),
        Field("SourceGUID", at + 16, guids.guid_text(body.source_guid)),
        Field("MessageID", at + 32, body.message_id),
    ]
    return Section("FinalAckBody", at, fields)


def sections(packet: Packet) -> list[Section]:
    """Return the packet's headers in wire order, with every field."""
    if isinstance(packet, Ping):
        return [Section("PingPacket", 0, _fixed(packet, 0, PING))]
    if isinstance(packet, headers.UserMessage):
        return _message(packet, None)
    if isinstance(packet, (connection.OrderAck, headers.FinalAck)):
        return _message(packet.message, packet.body)
    result = [
        Section("BaseHeader", 0, _fixed(packet.base, 0, BASE)),
        Section("InternalHeader", 16, _fixed(packet.internal, 16, INTERNAL)),
    ]
    if isinstance(packet, handshake.SessionAck):
        return [*result, Section("SessionHeader", 20, _fixed(packet.session, 20, SESSION))]
    if isinstance(packet, handshake.ConnectionParameters):
        return [*result, Section("ConnectionParametersHeader", 20, _fixed(packet.header, 20, PARAMETERS))]
    padding = bytes(packet.padding)
    content = {"all_bytes": padding[0]} if len(set(padding)) == 1 else {"hex": _hex(padding)}
    fields = [*_fixed(packet.header, 20, ESTABLISH), Field("Padding", 60, {"length": len(padding), **content})]
    return [*result, Section("EstablishConnectionHeader", 20, fields)]


# ---- a file as decoded packets ------------------------------------------------------------------


class InputError(Exception):
    """The file cannot be decoded. The text gives the reason."""


class Decoded(NamedTuple):
    """A packet or an error at one offset. Only captures give connection, frame and time (s since 1970)."""

    offset: int
    packet: Packet | None
    error: core.Malformed | None = None
    connection: str = ""
    frame: int = 0
    time: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the object that `ordack capture decode --json` prints."""
        kind = "malformed" if self.packet is None else type(self.packet).__name__
        fields: dict[str, Any]
        result: dict[str, Any] = {"packet": kind, "offset": self.offset}
        if self.connection:
            result |= {"connection": self.connection, "frame": self.frame, "time": self.time}
        if self.packet is not None:
            result["fields"] = fields = {
                section.name: _as_json(tuple(section.fields)) for section in sections(self.packet)
            }
            if trailing := trailing_hex(self.packet):
                fields["Trailing_hex"] = trailing
        elif self.error is not None:
            error = self.error
            result["error"] = {"rule": error.rule, "field": error.field, "reason": error.reason}
        return result


def trailing_hex(packet: Packet) -> str:
    if isinstance(packet, (connection.OrderAck, headers.FinalAck)):
        packet = packet.message
    return _hex(packet.trailing) if isinstance(packet, headers.UserMessage) else ""


def _parse(data: bytes, is_ping: bool, **place: Any) -> Decoded:
    try:
        return Decoded(packet=parse_ping(data) if is_ping else parse.parse(data), **place)
    except core.Malformed as error:
        return Decoded(packet=None, error=error, **place)
    except parse.NeedMore as more:
        return _problem(f"{len(data)} of {more.total} bytes of the packet are there", **place)


def _problem(reason: str, **place: Any) -> Decoded:
    return Decoded(packet=None, error=core.Malformed("B-429", "BaseHeader.PacketSize", reason), **place)


def _is_ping(data: bytes, at: int) -> bool:
    size = core.part_size(core.PING)
    return data[at + 2 : at + 4] == b"HU" and data[at + 4 : at + 8] != b"LIOR" and len(data) - at >= size


def decode_bytes(data: bytes) -> Iterator[Decoded]:
    """Decode adjacent packets. A ping is recognized by its signature."""
    at = 0
    total = array("I", [0])
    while at < len(data):
        is_ping = _is_ping(data, at)
        if is_ping:
            size = core.part_size(core.PING)
        else:
            size = total[0] if core.frame(data, at, len(data), total) == core.OK else len(data) - at
        yield _parse(data[at : at + size], is_ping, offset=at)
        at += size


def decode_capture(file: BinaryIO, first: bytes, warn: Warn) -> Iterator[Decoded]:
    """Yield the packets of a pcap or pcapng file. Raise InputError at the end if the file is damaged or unreadable.

    first: bytes already read from the file. warn receives a sentence if frames could not be read.
    """
    tally = reading.Tally()
    damage = ""
    try:
        for item in reading.packets(file, first, tally):
            place = {"connection": item.connection, "frame": item.frame, "time": item.time, "offset": item.offset}
            yield _problem(item.problem, **place) if item.problem else _parse(item.data, False, **place)
    except reading.CaptureError as error:
        damage = str(error)
    if tally.unread:
        why = _UNREAD.get(
            tally.unread_link, f"link type {tally.unread_link}, which the first of them has, is not supported"
        )
        warn(f"{tally.unread} of {tally.frames} frames could not be read: {why}")
    if damage:
        raise InputError(damage)
    if tally.frames and tally.unread == tally.frames:
        raise InputError("nothing of this capture could be read")


def decode(file: BinaryIO, warn: Warn) -> Iterator[Decoded]:
    """Decode a capture (by magic number), raw packets (LIOR at offset 4) or a raw ping.

    warn receives remarks. Raise InputError if the file has none of these formats or is damaged.
    """
    first = file.read(8)
    if reading.is_capture(first):
        yield from decode_capture(file, first, warn)
        return
    if not first:
        warn("the file is empty")
    elif first[4:8] == b"LIOR" or first[2:4] == b"HU":
        yield from decode_bytes(first + file.read())
    else:
        raise InputError("neither a capture nor raw packets; unpack a compressed capture first")
