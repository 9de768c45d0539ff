"""What a queue manager can be told: limits, names, addresses. Defaults are MSMQ's where it has one."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from mqqb.session import Settings

from ordack.store import BadName, queue_name

PORT = 1801  # B-001
_DIRECT = re.compile(r"(?:DIRECT=)?(TCP|OS):([^\\]{1,255})\\(?:(private\$)\\)?(.+)", re.IGNORECASE)


@dataclass(frozen=True)
class Config:
    """Settings of one queue manager.

    own_names: host parts of direct names that mean this machine; empty accepts any (B-416). next_hops: address as in a
    direct name -> (host, port) to connect to instead of port 1801 there. quota: bytes of all packets kept, local and
    outgoing (B-084, B-285). history_size, history_lifetime: bound of the duplicate filter, entries and seconds (B-019).
    max_sessions*: from one address, with one queue manager GUID, and in all (B-435). max_unknown_streams: incoming
    streams remembered that lead to no transactional queue, or of which nothing was accepted. max_ack_queues: peers for
    which FinalAcks wait. max_unwritten: bytes a peer may leave unread before it is cut off. max_half_received: bytes of
    unfinished packets in all. refusals_told: messages of a stream refused in a row before an operator hears (B-426).
    ping_port: UDP (B-006). try_connect_interval, round_trip_delay: ms; their sum is the longest wait between two
    attempts to connect (B-133).
    """

    own_names: frozenset[str] = frozenset()
    next_hops: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    quota: int = 8 << 30
    history_size: int = 10000
    history_lifetime: int = 1800
    max_sessions_per_address: int = 256
    max_sessions_per_guid: int = 32
    max_sessions: int = 1024
    max_unknown_streams: int = 1000
    max_ack_queues: int = 1000
    max_unwritten: int = 16 << 20
    max_half_received: int = 256 << 20
    refusals_told: int = 100
    ping_port: int = 3527
    answer_pings: bool = False
    send_pings: bool = False
    try_connect_interval: int = 5000
    round_trip_delay: int = 0
    session: Settings = field(default_factory=Settings)


def check_host(address: str) -> None:
    """Raise BadName unless this is an IP address or a name that can be one of a machine."""
    try:
        ipaddress.ip_address(address)
    except ValueError:
        try:
            name = address.encode("idna").decode()
        except UnicodeError:
            name = ""
        if len(name) > 253 or not re.fullmatch(r"[\w-]+(\.[\w-]+)*\.?", name, re.ASCII):
            raise BadName(f"{address!r} is neither an IP address nor the name of a machine") from None


def parse_address(text: str) -> tuple[str, int]:
    """`HOST:PORT` or `[IPV6]:PORT` as (host, port); raises ValueError that says what is wrong."""
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        raise ValueError(f"{text!r} is not HOST:PORT")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: write an IPv6 address in brackets, [::1]:1801")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r}: the port is a number from 0 to 65535")
    return host, int(port)


def format_address(host: str, port: int) -> str:
    """The reverse of `parse_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_next_hop(text: str) -> tuple[str, tuple[str, int]]:
    """`ADDRESS=HOST:PORT` as (address, (host, port)); raises ValueError."""
    address, equals, target = text.partition("=")
    if not equals or not address:
        raise ValueError(f"{text!r} is not ADDRESS=HOST:PORT")
    return address.lower(), parse_address(target)


def split_direct(name: str) -> tuple[str, str] | None:
    """(address, queue name) of a direct name of a private queue, `DIRECT=` or not; None for any other (wire.md 1.5).

    Both in lower case: neither part distinguishes case. The queue name keeps to the rules of queue names.
    """
    match = _DIRECT.fullmatch(name)
    if not match or not match[3]:
        return None
    try:
        return match[2].lower(), queue_name(match[4]).lower()
    except BadName:
        return None
