"""Both directions of one TCP connection, frame by frame, and files of such frames."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import dpkt
import packet_build
import packet_samples as samples  # type: ignore[import-not-found]
from mqqb import build

from tests.support.capture_files import FRAMES

SYN, FIN, RST, ACK = dpkt.tcp.TH_SYN, dpkt.tcp.TH_FIN, dpkt.tcp.TH_RST, dpkt.tcp.TH_ACK


def message(size: int, number: int = 1) -> bytes:
    return bytes(build.user_message(samples.SENDER, number, samples.DIRECT, bytes(size), label="Füllstand 😀"))


FULL = bytes(packet_build.build(samples.full_message()))


class End(NamedTuple):
    """One end of a connection."""

    address: bytes
    port: int


def ip(source: End, target: End, sequence: int, ack: int, flags: int, data: bytes = b"") -> bytes:
    """An IP packet. Checksums are nobody's business here."""
    tcp = struct.pack(">HHIIBBHHH", source.port, target.port, sequence & 0xFFFFFFFF, ack & 0xFFFFFFFF, 5 << 4, flags,
                      8192, 0, 0) + data  # fmt: skip
    if len(source.address) == 16:
        return struct.pack(">IHBB", 6 << 28, len(tcp), 6, 64) + source.address + target.address + tcp
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), 1, 0, 64, 6, 0)
    return head + source.address + target.address + tcp


def put(folder: Path, files: Sequence[bytes]) -> list[str]:
    paths = []
    for number, data in enumerate(files):
        paths.append(str(folder / f"{number}.pcap"))
        Path(paths[-1]).write_bytes(data)
    return paths


CLIENT, SERVER = End(b"\x0a\0\0\1", 50000), End(b"\x0a\0\0\2", 1801)
ONE, TWO, THREE = FRAMES[5], FRAMES[8], message(300)


def there(at: int, data: bytes = b"", flags: int = ACK, ack: int = 5001) -> bytes:
    return ip(CLIENT, SERVER, 1001 + at, ack, flags, data)


def back(at: int, data: bytes = b"", flags: int = ACK, acked: int = 0) -> bytes:
    return ip(SERVER, CLIENT, 5001 + at, 1001 + acked, flags, data)


OPENING = [there(-1, flags=SYN, ack=0), back(-1, flags=SYN | ACK)]
