"""Packets, TCP segments and link headers, byte by byte from the protocol's layouts (wire.md 2 to 6)."""

import struct

NEVER = 0xFFFFFFFF
NULL = bytes(16)
IN, SH = 0x0008, 0x0010  # BaseHeader.Flags
DM, JN, JP, TH, MP = 0x20, 0x100, 0x200, 0x100000, 0x200000  # UserHeader.Flags
FA = 0x2  # TransactionHeader.Flags
ORDER_ACK, ACK_RECEIVE, NACK_Q_EXCEED_QUOTA, NACK_Q_PURGED = 0x00FF, 0x4000, 0x8003, 0xC001
ORDER_LABEL = "QM Ordering Ack"
ORDER_QUEUE_ID = 4


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def utf16(text: str) -> bytes:
    return (text + "\0").encode("utf-16-le")


def base_header(size: int, flags: int, ttrq: int = NEVER) -> bytes:
    """wire.md 2.1."""
    return struct.pack("<BBHIII", 0x10, 0x5A, flags, 0x524F494C, size, ttrq)


def direct_name(text: str) -> bytes:
    """wire.md 1.5: Count in bytes with the NUL."""
    raw = utf16(text)
    return padded(struct.pack("<H", len(raw)) + raw)


def establish_connection(client: bytes, server: bytes, stamp: int, refused: bool = False) -> bytes:
    """wire.md 5.2."""
    flags = 2 | (0x10 if refused else 0)
    body = struct.pack("<HH16s16sIHH", 0, flags, client, server, stamp, 0x0310, 0) + b"\x5a" * 512
    return base_header(16 + len(body), IN | 3) + body


def connection_parameters(window: int) -> bytes:
    """wire.md 5.3."""
    return base_header(32, IN | 3) + struct.pack("<HHIIHH", 0, 3, 1496, 120000, 0, window)


def session_header(ack: int, base: int, bits: int, sent: int, recoverable: int, window: int) -> bytes:
    """wire.md 2.9."""
    return struct.pack(
        "<HHIHHHH", ack & 0xFFFF, base & 0xFFFF, bits, sent & 0xFFFF, recoverable & 0xFFFF, window, 0xCDCD
    )


def session_ack(header: bytes) -> bytes:
    """wire.md 5.4: PacketSize counts the SessionHeader here."""
    return base_header(36, IN | SH | 3) + struct.pack("<HH", 0, 1) + header


def user_message(
    source: bytes,
    address: bytes,
    message_id: int,
    selector: int,
    name: bytes,
    *,
    flags: int = 0,
    transaction: bytes = b"",
    label: str = "",
    body: bytes = b"",
    body_type: int = 0,
    message_class: int = 0,
    sent_time: int = 0,
    header: bytes = b"",
    priority: int = 0,
) -> bytes:
    """wire.md 3. header: a SessionHeader, which PacketSize does not count."""
    text = utf16(label) if label else b""
    user = struct.pack(
        "<16s16sIIII",
        source,
        address,
        NEVER,
        sent_time,
        message_id,
        flags | MP | selector << 10 | (TH if transaction else 0),
    )
    properties = struct.pack(
        "<BBH20sIIIIIIII",
        0,
        len(text) // 2,
        message_class,
        bytes(20),
        body_type,
        0,
        len(body),
        len(body),
        0,
        0x8004,
        0x6801,
        0,
    )
    rest = user + name + transaction + padded(properties + text + body)
    return base_header(16 + len(rest), priority | (SH if header else 0)) + rest + header


def acknowledgement(
    source: bytes, address: bytes, selector: int, name: bytes, message_id: int, message_class: int, body: bytes
) -> bytes:
    """OrderAck or FinalAck, wire.md 6; body: 36 bytes."""
    flags = 0 if message_class == ORDER_ACK else DM
    return user_message(
        source,
        address,
        message_id,
        selector,
        name,
        flags=flags,
        label=ORDER_LABEL,
        body=body,
        message_class=message_class,
    )


def ping(cookie: int, guid: bytes) -> bytes:
    """wire.md 7."""
    return struct.pack("<HHI16s", 0x7D00, 0x5548, cookie, guid)


SYN, ACK, PSH, FIN, RST = 0x02, 0x10, 0x08, 0x01, 0x04  # of TCP


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def ip_packet(source: bytes, target: bytes, protocol: int, payload: bytes, number: int) -> bytes:
    if len(source) == 16:
        return struct.pack(">IHBB", 0x60000000, len(payload), protocol, 64) + source + target + payload
    head = struct.pack(
        ">BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), number & 0xFFFF, 0x4000, 64, protocol, 0, source, target
    )
    return head[:10] + struct.pack(">H", _checksum(head)) + head[12:] + payload


def _link(kind: int, packet: bytes, vlan: int) -> bytes:
    six = packet[0] >> 4 == 6
    ethertype = 0x86DD if six else 0x0800
    if kind == 1:
        tag = struct.pack(">HH", 0x8100, vlan) if vlan else b""
        return (b"\x02\0\0\0\0\1\x02\0\0\0\0\2" + tag + struct.pack(">H", ethertype) + packet).ljust(60, b"\0")
    if kind == 113:
        return struct.pack(">HHH8sH", 0, 1, 6, b"\x02\0\0\0\0\1\0\0", ethertype) + packet
    if kind == 276:
        return struct.pack(">HHIHBB8s", ethertype, 0, 2, 1, 0, 6, b"\x02\0\0\0\0\1\0\0") + packet
    if kind == 0:
        return struct.pack("<I", 10 if six else 2) + packet
    return packet
