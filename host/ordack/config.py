"""Configuration of a queue manager: limits, names, addresses. Defaults are MSMQ's where it has one.

The store keeps what applications need, too, or what must hold whoever starts the queue manager, under the names of the
Windows registry (SETTINGS; behaviour.md 23.4). `Config.of` makes a Config of these values.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mqqb import confirm, guids, names
from mqqb.confirm import LONG_LIVE_TIME, UNSET
from mqqb.core import HOP_COUNT_MAX
from mqqb.destination import (
    EARLY_ORDER_ACK,
    MAXIMUM_ORDER_ACK_DELAY,
    ORDER_ACK_TIMEOUT,
)
from mqqb.session import Settings
from mqqb.streams import RESEND_INTERVALS

from ordack import machine
from ordack.names import BadName, destination, queue_name
from ordack.store.schema import NEVER

PORT = 1801  # B-001
EVERY_ADDRESS = ("0.0.0.0", "::")  # to listen on
SERIAL_PORT = 0  # stands for the port of a hop that is a serial line: nobody connects there
CONNECT_TIMEOUT_S = 10  # for an attempt to connect; also what a TimeToReachQueue of 0 counts as (B-405)
BAUD = 115200
_SERIAL = re.compile(r"(?:([\w.-]+)=)?(.+?)(?:@([^@/]*))?", re.DOTALL)
_DIRECT = re.compile(r"(?:DIRECT=)?(TCP|OS):([^\\]{1,255})\\(?:(private\$)\\)?(.+)", re.IGNORECASE)


class Setting(NamedTuple):
    """One value that the store keeps. `absent`: what holds without it, None for a meaning of its own."""

    absent: int | None
    minimum: int
    maximum: int
    meaning: str


SETTINGS = {
    "AckTimeout": Setting(20000, 20000, 120000, "ms without any packet before a session counts as dead (B-043)"),
    "CleanupInterval": Setting(300000, 1, NEVER, "ms after which an idle session is closed (B-132)"),
    "ClockSkew": Setting(0, 0, NEVER, "s that a sender's clock may be behind when TimeToReachQueue is tested (B-267)"),
    "EarlyOrderAck": Setting(
        EARLY_ORDER_ACK,
        0,
        NEVER,
        "ms without a message after which an OrderAck goes out early; 0: only IdleAckDelay and SeqMaxAckDelay decide",
    ),
    "EnablePingService": Setting(0, 0, 1, "1: answer pings (B-202)"),
    "EnableReportMessages": Setting(0, 0, 1, "1: make the report messages that traced messages ask for (B-294)"),
    "HopLimit": Setting(15, 1, HOP_COUNT_MAX, "queue managers that a message may pass, when this one forwards (B-259)"),
    "IdleAckDelay": Setting(500, 1, NEVER, "ms that an OrderAck waits for more messages (B-045)"),
    "LongLiveTime": Setting(LONG_LIVE_TIME, 0, UNSET - 1, "s of TimeToReachQueue, if a message has none (B-401)"),
    "MaxInSessions": Setting(
        1024, 1, NEVER, "sessions at once, whoever began them; one more that others begin is refused (B-206)"
    ),
    "MaxUnackedPacket": Setting(64, 1, 0xFFFF, "window size in packets (B-039)"),
    "MinimumRate": Setting(50, 1, NEVER, "bytes a second that a packet must arrive with, once PacketTimeout is over"),
    "MsmqIpPingPort": Setting(3527, 0, 0xFFFF, "UDP port of pings (B-006)"),
    "PacketTimeout": Setting(60000, 1000, NEVER, "ms that every packet may take to arrive"),
    "PermitInsecureNacks": Setting(0, 0, 1, "1: tell senders that a queue or a right is missing (B-349, B-409)"),
    "PoisonAfter": Setting(
        None,
        1,
        NEVER,
        "receives by an application that end without a commit, after which a "
        "message moves to the sub-queue NAME;poison; absent: no limit",
    ),
    "QosCleanupIntervalMultiplier": Setting(2, 1, 100, "the Ack Wait timer, as a multiple of AckTimeout (B-134)"),
    "Quota": Setting(8 << 30, 0, NEVER, "bytes of all packets kept (B-084, B-285)"),
    "RemoveDuplicateCleanup": Setting(1800000, 1000, NEVER, "ms that the duplicate filter remembers (B-138)"),
    "RemoveDuplicateSize": Setting(10000, 0, 1 << 32, "messages that the duplicate filter remembers (B-019)"),
    "RoundTripDelay": Setting(0, 0, 3600000, "ms added to the timers of a session (B-131, B-133)"),
    "RouteMessages": Setting(0, 0, 1, "1: forward messages for other queue managers (B-264)"),
    "SendPings": Setting(0, 0, 1, "1: ping before connecting (B-198)"),
    "SeqMaxAckDelay": Setting(10, 0, NEVER, "s that an OrderAck may wait at most (B-047)"),
    "SeqResend13Time": Setting(30, 1, NEVER, "s before the first three resends of a sequence (B-015)"),
    "SeqResend46Time": Setting(300, 1, NEVER, "s before the next three (B-016)"),
    "SeqResend79Time": Setting(1800, 1, NEVER, "s before three more (B-017)"),
    "SeqResend10Time": Setting(21600, 1, NEVER, "s before every later one (B-018)"),
    "TryConnectInterval": Setting(5000, 1, NEVER, "ms between attempts to connect (B-133)"),
    "XactDeadLetterAlways": Setting(0, 0, 1, "1: every transactional message asks for dead-lettering (B-400)"),
    "XactDelayReceiveNack": Setting(None, 0, UNSET - 1, "s that a confirmation may come after TimeToBeReceived (C-12)"),
}


def setting_name(text: str) -> str:
    """The name of a setting with its capitals; raises ValueError if there is none."""
    found = {known.lower(): known for known in SETTINGS}.get(text.lower())
    if found is None:
        raise ValueError(f"there is no setting {text!r}; `ordack config` lists them")
    return found


def check_setting(name: str, text: str) -> int:
    """A new value for a setting; raises ValueError that says what is wrong with it."""
    setting = SETTINGS[name]
    try:
        value = int(text, 0)
    except ValueError:
        raise ValueError(f"{name}: {text!r} is not a whole number") from None
    if not setting.minimum <= value <= setting.maximum:
        raise ValueError(f"{name}: {value} is not in {setting.minimum} to {setting.maximum}")
    return value


@dataclass(frozen=True)
class Config:
    """Settings of one queue manager.

    own_names: host parts of direct names that mean this queue manager; empty: messages to any are taken, and what goes
    out to this machine's addresses stays here (B-416). listening: where it takes connections. next_hops: address as in
    a direct name, or GUID of a queue manager -> (host, port) to connect to instead of port 1801 there; with SERIAL_PORT
    it is the name of a serial line, over which that machine connects. public_queues:
    GUID of a public queue -> format name, in place of a directory. quota: bytes of all packets kept, local and outgoing
    (B-084, B-285). history_size, history_lifetime: bound of the duplicate filter, entries and seconds (B-019).
    max_sessions*: from one address, with one queue manager GUID, and in all (B-435). max_unknown_streams: incoming
    streams remembered that lead to no transactional queue, or of which nothing was accepted. max_ack_queues: peers
    without a session for which FinalAcks wait; max_final_acks: how many wait in all, and max_peer_final_acks for one
    peer, before the next message of it is rejected (returns.py). max_unwritten: bytes a peer may leave unread before it
    is cut off. max_half_received: bytes of unfinished packets in all. packet_timeout: ms in which a packet has to
    come, or after that minimum_rate bytes of it a second. refusals_told: messages of a stream refused in a
    row before an operator hears (B-426).
    outcomes_kept: ended messages of which a sender can still ask (C-80). route: forward messages for other queue
    managers, as many as hop_limit hops. clock_skew: s. order_ack_timeout: ms, maximum_order_ack_delay: ms,
    resend_intervals: ms (B-045, B-047, B-136). early_order_ack: ms of quiet after which an OrderAck goes out before
    these ask for it; 0: never. ping_port: UDP (B-006). try_connect_interval,
    round_trip_delay: ms; their sum is the longest wait between two attempts to connect (B-133). poison_after: receives
    without a commit after which a message is poison; None: never.
    """

    own_names: frozenset[str] = frozenset()
    listening: tuple[str, int] | None = None
    next_hops: Mapping[str, tuple[str, int]] = field(default_factory=dict)
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
    session: Settings = field(default_factory=Settings)
    confirmation: confirm.Settings = field(default_factory=confirm.Settings)

    @classmethod
    def of(cls, configuration: Mapping[str, int], **others: Any) -> Config:
        """The Config that the store's configuration means; `others`: fields that are not in it, or override it."""
        value = {name: setting.absent for name, setting in SETTINGS.items()} | dict(configuration)
        delay = value["RoundTripDelay"] or 0
        fields: dict[str, Any] = {
            "quota": value["Quota"],
            "history_size": value["RemoveDuplicateSize"],
            "history_lifetime": (value["RemoveDuplicateCleanup"] or 0) // 1000,
            "max_sessions": value["MaxInSessions"],
            "route": bool(value["RouteMessages"]),
            "hop_limit": value["HopLimit"],
            "clock_skew": value["ClockSkew"],
            "send_insecure_nacks": bool(value["PermitInsecureNacks"]),
            "report_messages": bool(value["EnableReportMessages"]),
            "order_ack_timeout": value["IdleAckDelay"],
            "maximum_order_ack_delay": 1000 * (value["SeqMaxAckDelay"] or 0),
            "early_order_ack": value["EarlyOrderAck"],
            "packet_timeout": value["PacketTimeout"],
            "minimum_rate": value["MinimumRate"],
            "resend_intervals": tuple(
                1000 * (value[f"SeqResend{which}Time"] or 0) for which in 3 * ["13"] + 3 * ["46"] + 3 * ["79"] + ["10"]
            ),
            "ping_port": value["MsmqIpPingPort"],
            "answer_pings": bool(value["EnablePingService"]),
            "send_pings": bool(value["SendPings"]),
            "try_connect_interval": value["TryConnectInterval"],
            "round_trip_delay": delay,
            "poison_after": value["PoisonAfter"],
            "session": Settings(
                window_size=value["MaxUnackedPacket"] or 1,
                ack_wait_timeout=value["AckTimeout"] or 0,
                ack_wait_multiple=value["QosCleanupIntervalMultiplier"] or 1,
                cleanup_timeout=value["CleanupInterval"] or 1,
                round_trip_delay=delay,
            ),
            "confirmation": confirmation_settings(configuration),
        }
        return cls(**(fields | others))

    def is_own(self, address: str) -> bool:
        """Does this host part of a direct name mean this queue manager, whatever port it listens on (B-416)? Those of
        next_hops do not, and with own_names no others than these."""
        if address in self.next_hops:
            return False
        return address in self.own_names if self.own_names else machine.has(address)

    def way(self, address: str) -> tuple[str, int]:
        """Where to connect to for a direct name with this host part: to itself if that is its own."""
        known = self.next_hops.get(address)
        if known is None and self.listening and self.is_own(address):
            host, port = self.listening
            return (address if host in EVERY_ADDRESS else host), port
        return known or (address, PORT)


def confirmation_settings(configuration: Mapping[str, int]) -> confirm.Settings:
    """What the store's configuration says of the confirmation process (B-400, B-401, C-12)."""
    return confirm.Settings(
        configuration.get("XactDelayReceiveNack"),
        bool(configuration.get("XactDeadLetterAlways", 0)),
        configuration.get("LongLiveTime", LONG_LIVE_TIME),
    )


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
    host, port = parse_address(target)
    if port == SERIAL_PORT:
        raise ValueError(f"{text!r}: port 0 accepts no connections")
    return address.lower(), (host, port)


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
    names.parse_format_name(name)
    return guids.guid_text(guids.guid_bytes(guid))[1:-1].lower(), name


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
