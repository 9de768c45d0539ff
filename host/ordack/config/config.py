"""Configuration of a queue manager: limits, names, addresses. Defaults are MSMQ's where MSMQ has them.

`Config.of` builds a Config from the configuration file's numbers (settings.NUMBERS).
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
from mqqb.destination import EARLY_ORDER_ACK, MAXIMUM_ORDER_ACK_DELAY, ORDER_ACK_TIMEOUT
from mqqb.session import Settings
from mqqb.streams import RESEND_INTERVALS

from ordack.config.names import BadName, destination, is_own_address, queue_name
from ordack.config.settings import BAUD, FLAG, LISTEN, NEVER, NUMBERS

PORT = LISTEN[1]  # B-001
LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # loopback of each wildcard address
TLS_SCHEME = "tls://"
EVERY_QUEUE = "*"  # means queues without rights of their own
SERIAL_PORT = 0  # pseudo-port of a next hop on a serial line
NAMES_KEPT = 1024  # of each cache of recent names: consecutive batches repeat names
CONNECT_TIMEOUT_S = 10  # for an attempt to connect; also the effective TimeToReachQueue of 0 (B-405)
_SERIAL = re.compile(r"(?:([\w.-]+)=)?(.+?)(?:@([^@/]*))?", re.DOTALL)
_DIRECT = re.compile(r"(?:DIRECT=)?(TCP|OS):([^\\]{1,255})\\(?:(private\$)\\)?(.+)", re.IGNORECASE)
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


# ---- rights to write to a queue


def parse_network(text: str) -> Network:
    """Parse an address or a network in CIDR notation. Raise ValueError with the correct form."""
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
    """Addresses in any of these networks."""

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
        """Return why a source may not write; "" if it may. address: IP address, or name of a serial line. certificate:
        name in the certificate; "" without TLS."""
        if self.networks is not None and address not in self.networks and address not in self.lines:
            return f"{address} is not in allow-addresses"
        if self.sources is not None and source not in self.sources:
            return f"{guids.guid_text(source)} is not in allow-sources"
        return certificate_refusal(self.certificates, certificate)


def certificate_refusal(allowed: Collection[str] | None, certificate: str) -> str:
    """Return why a certificate's name is not allowed; "" if it is. allowed: None allows all. certificate: "" for a peer
    without one."""
    if allowed is None or certificate.lower() in allowed:
        return ""
    if certificate:
        return f"the certificate of {certificate} is not in allow-certificates"
    return "it has no certificate, and allow-certificates asks for one: TLS alone brings it"


# ---- the configuration


@dataclass
class Config:
    """Settings of one queue manager, shared by all its parts. settings.NUMBERS describes the numbers.

    own_names: host parts of direct names that mean this queue manager. If empty, messages to any host part are
    accepted, and messages to this machine's addresses stay here (B-416). listening: addresses for incoming connections.
    next_hops: {address in a direct name, or GUID: (host, port)} instead of port 1801 of the address. SERIAL_PORT marks
    host as the name of a serial line, over which the machine connects. tls_hops: next hops with TLS. public_queues:
    {GUID of a public queue: format name}, instead of a directory. history_size, history_lifetime: limits of the
    duplicate filter, entries and seconds (B-019). max_unknown_streams: incoming streams remembered without a
    transactional queue or an accepted message. max_ack_queues: peers without a session that have waiting FinalAcks.
    max_final_acks, max_peer_final_acks: waiting FinalAcks in all and for one peer; above them, messages are rejected.
    acknowledgement_lifetime: s until an unfetched acknowledgement is discarded. max_unwritten: unread bytes of a peer
    before it is disconnected. max_half_received: bytes of unfinished packets in all. minimum_rate: bytes a second of a
    packet that takes longer than packet_timeout. refusals_told: consecutive refusals in a stream before an operator is
    told (B-426). outcomes_kept: ended messages that a sender can still query (C-80). try_connect_interval +
    round_trip_delay: longest wait between attempts to connect, ms (B-133). numbers: those stated in the configuration
    file, by name, also for applications. access: rights by queue name in lower case; EVERY_QUEUE: all other queues.
    names: display names of queue managers, by GUID in lower case.
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
        """Build a Config from numbers of settings.NUMBERS. others: fields that override them. Raises KeyError."""
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
        """Build the Config for applications from the `to_keep` of the last `serve`."""
        return cls.of(
            {name: value for name, value in names.get("numbers", {}).items() if name in NUMBERS},
            own_names=frozenset(names.get("own", ())),
            next_hops={name: tuple(hop) for name, hop in names.get("hops", {}).items()},
            public_queues=names.get("public", {}),
        )

    def to_keep(self) -> dict[str, Any]:
        """Return the argument of `kept`, ready for JSON."""
        return {
            "own": sorted(self.own_names),
            "hops": dict(self.next_hops),
            "public": dict(self.public_queues),
            "numbers": dict(self.numbers),
            "names": dict(self.names),
        }

    def is_own(self, address: str) -> bool:
        """Test whether a host part of a direct name means this queue manager, on any port (B-416)."""
        if address in self.next_hops:
            return False
        return address in self.own_names if self.own_names else is_own_address(address)

    def access_to(self, queue: str) -> Access:
        """Return the rights to write to a queue."""
        return self.access.get(queue.lower()) or self.access.get(EVERY_QUEUE, Access())

    @property
    def own_hop(self) -> tuple[str, int] | None:
        """Address and port of this queue manager for this machine; None if it does not listen."""
        if not self.listening:
            return None
        host, port = self.listening[0]
        return LOOPBACK.get(host, host), port

    def way(self, address: str) -> tuple[str, int]:
        """Return address and port to connect to for a host part of a direct name."""
        known = self.next_hops.get(address)
        if known is None and self.own_hop and self.is_own(address):
            for host, port in self.listening:
                if host == address or (host in LOOPBACK and _is_of_family(address, host)):
                    return address, port
            return self.own_hop
        return known or (address, PORT)


def _is_of_family(address: str, other: str) -> bool:
    """Test whether an address has the IP version of `other`, or is a name."""
    try:
        return ipaddress.ip_address(address).version == ipaddress.ip_address(other).version
    except ValueError:
        return True


@functools.lru_cache(NAMES_KEPT)
def check_host(address: str) -> None:
    """Raise BadName unless this is an IP address or a valid host name."""
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
    """Parse `HOST:PORT` or `[IPV6]:PORT` to (host, port). Raise ValueError with the mistake."""
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
    """Parse like `parse_address`, but a PORT alone means the loopback address."""
    return parse_address(f"127.0.0.1:{text}" if text.isdigit() else text)


def format_address(host: str, port: int) -> str:
    """Format an address for `parse_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_next_hop(text: str) -> tuple[str, tuple[str, int]]:
    """Parse `ADDRESS=HOST:PORT` or `ADDRESS=tls://HOST:PORT` to (address, (host, port)). Raises ValueError."""
    address, equals, target = text.partition("=")
    if not equals or not address:
        raise ValueError(f"{text!r} is not ADDRESS=HOST:PORT")
    host, port = parse_address(target.removeprefix(TLS_SCHEME))
    if port == SERIAL_PORT:
        raise ValueError(f"{text!r}: port 0 accepts no connections")
    return address.lower(), (host, port)


def tls_places(hops: Iterable[str]) -> frozenset[tuple[str, int]]:
    """Return the (host, port) of next hops with TLS, in the form of `parse_next_hop`. Raise ValueError for a place that
    is listed both with and without TLS."""
    places: dict[bool, set[tuple[str, int]]] = {True: set(), False: set()}
    for text in hops:
        places[f"={TLS_SCHEME}" in text].add(parse_next_hop(text)[1])
    for place in places[True] & places[False]:
        where = format_address(*place)
        raise ValueError(f"{where} stands there with {TLS_SCHEME} and without it: write {TLS_SCHEME}{where} each time")
    return frozenset(places[True])


class TlsFiles(NamedTuple):
    """PEM files: certificate and private key of this queue manager, and the authority that signs its peers'
    certificates."""

    certificate: Path
    key: Path
    authority: Path


class SerialSettings(NamedTuple):
    """A serial line. name: of the machine at its other end, in direct names. port: a path or a pyserial URL."""

    name: str
    port: str
    baud: int


def parse_serial(text: str) -> SerialSettings:
    """Parse `[NAME=]PORT[@BAUD]`. The default name is the last part of PORT. Raises ValueError, BadName."""
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
    """Parse bytes; `none` gives None. Raises ValueError."""
    if text.lower() == "none":
        return None
    if not text.isascii() or not text.isdigit() or int(text) > NEVER:
        raise ValueError(f"{text!r} is neither a number of bytes from 0 to {NEVER} nor none")
    return int(text)


def parse_public_queue(text: str) -> tuple[str, str]:
    """Parse `GUID=FORMATNAME` to (GUID in lower case, format name). Raises ValueError."""
    guid, equals, name = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} is not GUID=FORMATNAME")
    name = destination(name)
    guids.parse_format_name(name)
    return guids.guid_text(guids.guid_bytes(guid))[1:-1].lower(), name


@functools.lru_cache(NAMES_KEPT)
def split_direct(name: str) -> tuple[str, str] | None:
    """Split a private queue's direct name into (address, queue name); None for other names (wire.md 1.5).

    The prefix `DIRECT=` is optional. Both parts are in lower case, because case is ignored. The queue name is valid.
    """
    match = _DIRECT.fullmatch(name)
    if not match or not match[3]:
        return None
    try:
        return match[2].lower(), queue_name(match[4]).lower()
    except BadName:
        return None
