"""Capture files, written byte by byte: pcap, and the blocks of pcapng, with frames of one connection."""

import struct
from collections.abc import Iterable

import dpkt
import packet_samples as samples  # type: ignore[import-not-found]

from tests.conformance import ROOT

FRAMES = samples.frames(str(ROOT / "tests/vectors.json"))
CLIENT, SERVER = b"\x0a\x00\x00\x01", b"\x0a\x00\x00\x02"
CLIENT_6, SERVER_6 = bytes(15) + b"\x01", bytes(15) + b"\x02"
PORT = 50000
NAME = "10.0.0.1:50000>10.0.0.2:1801"
START = 1_700_000_000.25


def segment(
    sequence: int, data: bytes = b"", flags: int = dpkt.tcp.TH_ACK, port: int = PORT, six: bool = False
) -> bytes:
    """An IP packet from the client."""
    tcp = dpkt.tcp.TCP(sport=port, dport=1801, seq=sequence & 0xFFFFFFFF, flags=flags, data=data)
    if six:
        return bytes(dpkt.ip6.IP6(src=CLIENT_6, dst=SERVER_6, nxt=6, hlim=64, plen=len(tcp), data=tcp))
    return bytes(dpkt.ip.IP(src=CLIENT, dst=SERVER, p=6, len=20 + len(tcp), data=tcp))


def syn(sequence: int, port: int = PORT) -> bytes:
    return segment(sequence, flags=dpkt.tcp.TH_SYN, port=port)


def pcap(records: Iterable[bytes], link: int = 101, order: str = "<", nano: bool = False) -> bytes:
    out = [struct.pack(order + "IHHiIII", 0xA1B23C4D if nano else 0xA1B2C3D4, 2, 4, 0, 0, 262144, link)]
    fraction = 250_000_000 if nano else 250_000
    for number, data in enumerate(records):
        out += struct.pack(order + "IIII", 1_700_000_000 + number, fraction, len(data), len(data)), data
    return b"".join(out)


def block(order: str, kind: int, body: bytes) -> bytes:
    body += bytes(-len(body) % 4)
    size = struct.pack(order + "I", 12 + len(body))
    return struct.pack(order + "I", kind) + size + body + size


def section(order: str = "<") -> bytes:
    return block(order, 0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))


def interface(link: int, options: bytes = b"", order: str = "<", snap: int = 0) -> bytes:
    return block(order, 1, struct.pack(order + "HHI", link, 0, snap) + options)


def enhanced(data: bytes, number: int = 0, units: int = 1_000_000, order: str = "<") -> bytes:
    moment = int(START * units)
    head = struct.pack(order + "IIIII", number, moment >> 32, moment & 0xFFFFFFFF, len(data), len(data))
    return block(order, 6, head + data)


ETHERNET = bytes(12)
