"""Packets of every layout as strategies of hypothesis."""

from array import array
from typing import Any

from hypothesis import strategies as st
from mqqb import acks, core, handshake, headers, rare
from mqqb.guids import DistributionListFormatName
from mqqb.headers import PrivateQueueFormatName, PrivateQueueFormatNameId, PublicQueueFormatName
from mqqb.names import ORDER_QUEUE_ID, DirectQueueFormatName, utf16_encode

u8 = st.integers(0, 0xFF)
u16 = st.integers(0, 0xFFFF)
u32 = st.integers(0, 0xFFFFFFFF)
guids = st.binary(min_size=16, max_size=16)
chars = st.characters(min_codepoint=1, codec=None)  # lone surrogates too
short_texts = st.text(chars, min_size=1, max_size=20)
direct_names = st.builds(DirectQueueFormatName, short_texts)
ids = st.builds(PrivateQueueFormatNameId, u32)
public_names = st.builds(PublicQueueFormatName, guids)
private_names = st.builds(PrivateQueueFormatName, guids, u32)
lists = st.builds(DistributionListFormatName, guids)
listed_names = st.lists(st.one_of(direct_names, public_names, private_names, lists), max_size=4)


def fill(header: Any, **values: int) -> Any:
    for name, value in values.items():
        setattr(header, name, value)
    return header


def base_headers(flags: int) -> st.SearchStrategy[headers.BaseHeader]:
    def make(reserved: int, junk: int, priority: int, time: int) -> headers.BaseHeader:
        return fill(  # type: ignore[no-any-return]
            headers.BaseHeader(),
            version_number=0x10,
            reserved=reserved,
            flags=flags | priority | (junk & 0xFEC0),
            signature=core.SIGNATURE,
            time_to_reach_queue=time,
        )

    return st.builds(make, u8, u16, st.integers(0, 7), u32)


@st.composite
def session_headers(draw: st.DrawFn) -> headers.SessionHeader:
    fields = [draw(u16), draw(u16), draw(u32), draw(u16), draw(u16), draw(st.integers(1, 0xFFFF)), draw(u16)]
    return headers.SessionHeader(array("I", fields))


@st.composite
def security_headers(draw: st.DrawFn) -> headers.SecurityHeader:
    header = headers.SecurityHeader()
    kind = draw(st.integers(0, 2))
    header.flags = kind | draw(u16) & 0xFFF0
    if kind == 1:
        count = draw(st.integers(0, 15))
        header.security_id = bytes([1, count]) + draw(st.binary(min_size=6 + 4 * count, max_size=6 + 4 * count))
    elif kind == 2:
        header.security_id = draw(guids)
    header.encryption_key = draw(st.binary(max_size=9))
    header.signature = draw(st.binary(min_size=not header.security_id, max_size=9))
    header.sender_cert = draw(st.binary(max_size=9))
    if draw(st.booleans()):
        name = utf16_encode(draw(short_texts)) + bytes(2)
        header.provider_info = draw(st.binary(min_size=4, max_size=4)) + name
    return header


@st.composite
def user_messages(draw: st.DrawFn) -> headers.UserMessage:
    user = headers.UserHeader()
    user.source_queue_manager = draw(guids)
    user.queue_manager_address = draw(guids)
    user.time_to_be_received, user.sent_time, user.message_id = draw(u32), draw(u32), draw(u32)
    user.destination_queue = draw(st.none() | ids | public_names | direct_names)
    user.admin_queue = draw(st.none() | ids | public_names | private_names | direct_names)
    user.response_queue = draw(st.none() | ids | public_names | private_names | direct_names)
    user.connector_type = draw(st.none() | guids)
    transactional = draw(st.booleans())
    selectors = draw(st.sampled_from([0, 2, 3])) << 13 | draw(st.integers(0, 4)) << 16
    user.flags = draw(st.integers(0, 0x1D)) | (0x20 if transactional else 0) | selectors | draw(u32) & 0xED000380
    properties = headers.MessagePropertiesHeader()
    properties.flags, properties.message_class = draw(u8), draw(u16)
    properties.correlation_id = draw(st.binary(min_size=20, max_size=20))
    for name in ("body_type", "application_tag", "privacy_level", "hash_algorithm", "encryption_algorithm"):
        setattr(properties, name, draw(u32))
    properties.label = draw(st.text(chars, max_size=20))
    properties.extension = draw(st.binary(max_size=9))
    properties.body = draw(st.binary(max_size=40))
    debug = draw(st.none() | st.just(rare.DebugHeader()))
    message = headers.UserMessage(draw(base_headers(0)), user, properties)
    if debug is not None:
        message.debug = debug = rare.DebugHeader()
        debug.reserved = draw(u16)
        debug.queue_identifier = draw(st.none() | guids)
    else:
        message.base.flags &= ~core.BASE_TR
    if transactional:
        message.transaction = headers.TransactionHeader(
            array(
                "I",
                [draw(u32), draw(u32), draw(u32), draw(st.integers(1, 0xFFFFFFFF)), draw(st.integers(0, 0xFFFFFFFE))],
            )
        )
        message.transaction.connector_qm_guid = draw(st.none() | guids)
    message.security = draw(st.none() | security_headers())
    if draw(st.booleans()):
        message.soap = rare.SoapHeader(draw(st.text(chars, max_size=9)), draw(st.text(chars, max_size=9)))
        message.soap.reserved, message.soap.reserved1 = draw(u16), draw(u16)
    if draw(st.booleans()):
        parts = [rare.MQFAddressHeader(tuple(draw(listed_names))) for _ in range(3)]
        parts[0].reserved = draw(u16)
        message.multi_queue_format = rare.MultiQueueFormatHeader(
            parts[0], parts[1], parts[2], draw(st.binary(max_size=9))
        )
        message.multi_queue_format.signature_reserved = draw(u16)
    message.session = draw(st.none() | session_headers())
    message.trailing = draw(st.binary(max_size=3)) * 4
    return message


@st.composite
def internal_packets(draw: st.DrawFn) -> Any:
    internal = handshake.InternalHeader(array("I", [draw(u16), 0]))
    kind = draw(st.integers(1, 3))
    internal.flags = kind | draw(u16) & 0xFFE0
    if kind == 1:
        return handshake.SessionAck(draw(base_headers(core.BASE_IN | core.BASE_SH)), internal, draw(session_headers()))
    base = draw(base_headers(core.BASE_IN))
    internal.flags |= draw(st.sampled_from([0, core.INTERNAL_CS]))
    if kind == 3:
        fields = [draw(st.integers(500, 120000)), draw(st.integers(20000, 120000)), draw(u16), draw(u16)]
        return handshake.ConnectionParameters(base, internal, handshake.ConnectionParametersHeader(array("I", fields)))
    header = handshake.EstablishConnectionHeader()
    header.client_guid, header.server_guid = draw(guids), draw(guids)
    header.time_stamp, header.operating_system, header.reserved = draw(u32), draw(u8) << 8 | 0x10, draw(u16)
    return handshake.EstablishConnection(base, internal, header, draw(st.binary(min_size=512, max_size=512)))


@st.composite
def acknowledgments(draw: st.DrawFn) -> bytearray:
    destination = draw(st.sampled_from([acks.order_queue("10.0.0.1"), acks.order_queue("fe80::1"), None]))
    name = destination or PrivateQueueFormatNameId(ORDER_QUEUE_ID)
    own = (name, draw(guids), draw(u32), draw(u32))
    number = draw(st.integers(1, 0xFFFFFFFF))
    if draw(st.booleans()):
        return acks.order_ack(*own, draw(u32), draw(u32), number, address=draw(guids))
    previous, message_class = draw(st.integers(0, 0xFFFFFFFE)), draw(st.integers(0x4000, 0xFFFF))
    return acks.final_ack(
        *own, draw(u32), draw(u32), number, previous, draw(guids), draw(u32), message_class, address=draw(guids)
    )
