"""Configuration of a queue manager: limits, names, addresses. Defaults are MSMQ's where it has one.

`Config.of` makes a Config of the numbers that the configuration file has (settings.NUMBERS).
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from mqqb import confirm, guids
from mqqb.destination import (
    EARLY_ORDER_ACK,
    MAXIMUM_ORDER_ACK_DELAY,
    ORDER_ACK_TIMEOUT,
)
from mqqb.session import Settings
from mqqb.streams import RESEND_INTERVALS

from ordack.config.names import BadName, destination, is_own_address, queue_name
from ordack.config.settings import BAUD, FLAG, LISTEN, NEVER, NUMBERS

PORT = LISTEN[1]  # B-001
LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # of those that stand for every address, to listen on
TLS_SCHEME = "tls://"
EVERY_QUEUE = "*"  # stands for the queues without rights of their own
SERIAL_PORT = 0  # stands for the port of a hop that is a serial line: nobody connects there
NAMES_KEPT = 1024  # that were read last, in each way: a batch has the names of the one before it
CONNECT_TIMEOUT_S = 10  # for an attempt to connect; also what a TimeToReachQueue of 0 counts as (B-405)
_SERIAL = re.compile(r"(?:([\w.-]+)=)?(.+?)(?:@([^@/]*))?", re.DOTALL)
_DIRECT = re.compile(r"(?:DIRECT=)?(TCP|OS):([^\\]{1,255})\\(?:(private\$)\\)?(.+)", re.IGNORECASE)
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


# ---- who may write to a queue


def parse_network(text: str) -> Network:
    """An address or a network in CIDR notation; raises ValueError that says what to write."""
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        pass
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError(
            f"{text!r} is neither an address nor a network: write it as 10.0.0.5, 10.0.0.0/8 or fd00::/8"
        ) from None
    address = text.partition("/")[0]
    raise ValueError(f"{text!r} is not the beginning of a network: write {network}, or {address} for this one address")


@functools.lru_cache(4096)
def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None  # the name of a serial line


@dataclass(frozen=True)
class Networks:
    """Addresses that are in any of these networks."""

    networks: tuple[Network, ...] = ()

    def __contains__(self, address: str) -> bool:
        known = _address(address)
        return known is not None and any(known in network for network in self.networks)

    def __iter__(self) -> Iterator[Network]:
        return iter(self.networks)

    def __str__(self) -> str:
        return ", ".join(map(str, self.networks)) or "nobody"


@dataclass(frozen=True)
class Access:
    """The rights to write to a queue. networks: of senders. lines: names of serial lines. sources: GUIDs of queue
    managers. certificates: names in lower case. None allows all."""

    networks: Networks | None = None
    lines: frozenset[str] = field(default_factory=frozenset)
    sources: frozenset[bytes] | None = None
    certificates: frozenset[str] | None = None

    def refusal(self, address: str, source: bytes, certificate: str = "") -> str:
        """Why this source may not write; "" if it may. address: or the name of a serial line. certificate: the name in
        it, "" without TLS."""
        if self.networks is not None and address not in self.networks and address not in self.lines:
            return f"{address} is not in allow-addresses"
        if self.sources is not None and source not in self.sources:
            return f"{guids.guid_text(source)} is not in allow-sources"
        return certificate_refusal(self.certificates, certificate)


def certificate_refusal(allowed: Collection[str] | None, certificate: str) -> str:
    """Why the certificate of this name is not allowed; "" if it is. allowed: None allows all. certificate: "" for a
    peer without one."""
    if allowed is None or certificate.lower() in allowed:
        return ""
    if certificate:
        return f"the certificate of {certificate} is not in allow-certificates"
    return "it has no certificate, and allow-certificates asks for one: TLS alone brings it"


# ---- the configuration


@dataclass
class Config:
    """Settings of one queue manager. All parts of it have the same Config. settings.NUMBERS says what its numbers mean.

    own_names: host parts of direct names that mean this queue manager; empty: messages to any are taken, and what goes
    out to this machine's addresses stays here (B-416). listening: where it takes connections. next_hops: address as in
    a direct name, or GUID of a queue manager -> (host, port) to connect to instead of port 1801 there; with SERIAL_PORT
    it is the name of a serial line, over which that machine connects. tls_hops: of both, those with TLS. public_queues:
    GUID of a public queue -> format name, in place of a directory. history_size, history_lifetime: bound of the
    duplicate filter, entries and seconds (B-019). max_unknown_streams: incoming streams remembered that lead to no
    transactional queue, or of which nothing was accepted. max_ack_queues: peers without a session for which FinalAcks
    wait; max_final_acks: how many wait in all, and max_peer_final_acks for one peer, before the next message of it is
    rejected; acknowledgement_lifetime: s until one is discarded that nobody has fetched. max_unwritten: bytes a peer
    may leave unread before it is cut off. max_half_received: bytes of unfinished packets in all. minimum_rate: bytes a
    second of a packet that takes longer than packet_timeout. refusals_told: messages of a stream refused in a row
    before an operator hears (B-426). outcomes_kept: ended messages of which a sender can still ask (C-80). The sum of
    try_connect_interval and round_trip_delay, in ms, is the longest wait between two attempts to connect (B-133).
    numbers: those that the configuration file states, by name, for applications to go by, too. access: who may write
    to a queue, by its name in lower case; EVERY_QUEUE: to others. names: what people call queue managers, by GUID in
    lower case.
    """

    own_names: frozenset[str] = frozenset()
    listening: tuple[tuple[str, int], ...] = ()
    next_hops: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    tls_hops: frozenset[tuple[str, int]] = frozenset()
    public_queues: Mapping[str, str] = field(default_factory=dict)
    quota: int = 8 << 30
    history_size: int = 10000
    history_lifetime: int = 1800
    max_sessions_per_address: int = 256
    max_sessions_per_guid: int = 32
    max_sessions: int = 1024
    max_unknown_streams: int = 1000
    max_ack_queues: int = 1000
    max_final_acks: int = 100_000
    max_peer_final_acks: int = 1000
    acknowledgement_lifetime: int = 30 * 86400
    max_unwritten: int = 16 << 20
    max_half_received: int = 256 << 20
    packet_timeout: int = 60000
    minimum_rate: int = 50
    refusals_told: int = 100
    outcomes_kept: int = 100_000
    route: bool = False
    hop_limit: int = 15
    clock_skew: int = 0
    send_insecure_nacks: bool = False
    report_messages: bool = False
    order_ack_timeout: int = ORDER_ACK_TIMEOUT
    maximum_order_ack_delay: int = MAXIMUM_ORDER_ACK_DELAY
    early_order_ack: int = EARLY_ORDER_ACK
    resend_intervals: tuple[int, ...] = RESEND_INTERVALS
    ping_port: int = 3527
    answer_pings: bool = False
    send_pings: bool = False
    try_connect_interval: int = 5000
    round_trip_delay: int = 0
    poison_after: int | None = None
    numbers: Mapping[str, int] = field(default_factory=dict)
    access: Mapping[str, Access] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    session: Settings = field(default_factory=Settings)
    confirmation: confirm.Settings = field(default_factory=confirm.Settings)

    @classmethod
    def of(cls, numbers: Mapping[str, int], **others: Any) -> Config:
        """The Config for numbers of settings.NUMBERS, by name. others: fields that override them. Raises KeyError."""
        made: dict[str, dict[str, Any]] = {"": {}, "session": {}, "confirmation": {}}
        for name, value in numbers.items():
            setting = NUMBERS[name]
            part, _, field_name = setting.field.rpartition(".")
            if field_name:
                made[part][field_name] = bool(value) if setting.kind == FLAG else value
        top = made[""]
        if "history_lifetime" in top:
            top["history_lifetime"] //= 1000
        if "SeqResend13Time" in numbers:
            top["resend_intervals"] = (*3 * [1000 * numbers["SeqResend13Time"]], *RESEND_INTERVALS[3:])
        top |= {
            "numbers": numbers,
            "session": Settings(**made["session"]),
            "confirmation": confirm.Settings(**made["confirmation"]),
        }
        return cls(**(top | others))

    @classmethod
    def kept(cls, names: Mapping[str, Any]) -> Config:
        """The Config for applications, from the `to_keep` of the last `serve`."""
        return cls.of(
            {name: value for name, value in names.get("numbers", {}).items() if name in NUMBERS},
            own_names=frozenset(names.get("own", ())),
            next_hops={name: tuple(hop) for name, hop in names.get("hops", {}).items()},
            public_queues=names.get("public", {}),
        )

    def to_keep(self) -> dict[str, Any]:
        """The argument of `kept`, ready for JSON."""
        return {
            "own": sorted(self.own_names),
            "hops": dict(self.next_hops),
            "public": dict(self.public_queues),
            "numbers": dict(self.numbers),
            "names": dict(self.names),
        }

    def is_own(self, address: str) -> bool:
        """Does this host part of a direct name mean this queue manager, on any port (B-416)?"""
        if address in self.next_hops:
            return False
        return address in self.own_names if self.own_names else is_own_address(address)

    def access_to(self, queue: str) -> Access:
        """The rights to write to a queue."""
        return self.access.get(queue.lower()) or self.access.get(EVERY_QUEUE, Access())

    @property
    def own_hop(self) -> tuple[str, int] | None:
        """Address and port that reach this queue manager from this machine; None: it does not listen."""
        if not self.listening:
            return None
        host, port = self.listening[0]
        return LOOPBACK.get(host, host), port

    def way(self, address: str) -> tuple[str, int]:
        """Address and port to connect to for a direct name with this host part."""
        known = self.next_hops.get(address)
        if known is None and self.own_hop and self.is_own(address):
            for host, port in self.listening:
                if host == address or (host in LOOPBACK and _is_of_family(address, host)):
                    return address, port
            return self.own_hop
        return known or (address, PORT)


def _is_of_family(address: str, other: str) -> bool:
    """Is this of the same version of IP as the other, or a name?"""
    try:
        return ipaddress.ip_address(address).version == ipaddress.ip_address(other).version
    except ValueError:
        return True


@functools.lru_cache(NAMES_KEPT)
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


def parse_local_address(text: str) -> tuple[str, int]:
    """As `parse_address`; a PORT alone is one of the loopback address."""
    return parse_address(f"127.0.0.1:{text}" if text.isdigit() else text)


def format_address(host: str, port: int) -> str:
    """The reverse of `parse_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_next_hop(text: str) -> tuple[str, tuple[str, int]]:
    """`ADDRESS=HOST:PORT` or `ADDRESS=tls://HOST:PORT` as (address, (host, port)); raises ValueError."""
    address, equals, target = text.partition("=")
    if not equals or not address:
        raise ValueError(f"{text!r} is not ADDRESS=HOST:PORT")
    host, port = parse_address(target.removeprefix(TLS_SCHEME))
    if port == SERIAL_PORT:
        raise ValueError(f"{text!r}: port 0 accepts no connections")
    return address.lower(), (host, port)


def tls_places(hops: Iterable[str]) -> frozenset[tuple[str, int]]:
    """The (host, port) of those of these next hops, as `parse_next_hop` reads them, that have TLS. Raises ValueError
    for one that is there without it, too."""
    places: dict[bool, set[tuple[str, int]]] = {True: set(), False: set()}
    for text in hops:
        places[f"={TLS_SCHEME}" in text].add(parse_next_hop(text)[1])
    for place in places[True] & places[False]:
        where = format_address(*place)
        raise ValueError(f"{where} stands there with {TLS_SCHEME} and without it: write {TLS_SCHEME}{where} each time")
    return frozenset(places[True])


class TlsFiles(NamedTuple):
    """PEM files: the certificate of this queue manager, its private key, and the authority that signs those of its
    peers."""

    certificate: Path
    key: Path
    authority: Path


class SerialSettings(NamedTuple):
    """A serial line. name: of the machine at its other end, in direct names. port: a path, or a URL of pyserial."""

    name: str
    port: str
    baud: int


def parse_serial(text: str) -> SerialSettings:
    """`[NAME=]PORT[@BAUD]`; the name is the last part of the port's, if not given. Raises ValueError or BadName."""
    match = _SERIAL.fullmatch(text)
    if not match:
        raise ValueError("a serial port has a name")
    name, port, baud = match.groups()
    if baud is not None and not (baud.isascii() and baud.isdigit() and 0 < int(baud) <= 1 << 30):
        raise ValueError(f"{text!r}: the baud rate after @ is a number of bits per second")
    if name is None:
        name = port.rpartition("/")[2]
        try:
            check_host(name)
        except BadName:
            raise ValueError(f"{text!r}: {name!r} cannot be the name of a machine; write NAME={text}") from None
    check_host(name)
    return SerialSettings(name.lower(), port, BAUD if baud is None else int(baud))


def parse_quota(text: str) -> int | None:
    """Bytes, or None for `none`; raises ValueError."""
    if text.lower() == "none":
        return None
    if not text.isascii() or not text.isdigit() or int(text) > NEVER:
        raise ValueError(f"{text!r} is neither a number of bytes from 0 to {NEVER} nor none")
    return int(text)


def parse_public_queue(text: str) -> tuple[str, str]:
    """`GUID=FORMATNAME` as (GUID in lower case, format name); raises ValueError."""
    guid, equals, name = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} is not GUID=FORMATNAME")
    name = destination(name)
    guids.parse_format_name(name)
    return guids.guid_text(guids.guid_bytes(guid))[1:-1].lower(), name


@functools.lru_cache(NAMES_KEPT)
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
