"""Every setting once: name, kind, default, unit, limits and meaning.

NUMBERS is the table `settings` of `ordack.toml`, with MSMQ's registry names where they exist (behaviour.md 23.4).
TABLES describes the whole `ordack.toml`. The file's reader, `ordack` output and documentation use these tables.
`config.py` describes the effect of a value on the queue manager.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, NamedTuple

from mqqb.confirm import CLASS_NEGATIVE, NACK_RECEIVE_TIMEOUT, NACK_RECEIVE_TIMEOUT_AT_SENDER, UNSET
from mqqb.destination import EARLY_ORDER_ACK

NEVER = 1 << 62  # seconds since 1970; also means no limit


NUMBER, FLAG = "whole number", "flag"
HOST, HOSTS = "host", "list of hosts"
TEXT, PATH = "text", "path"
FORM = "`text` or `json`"
WAY, NAME = "`HOST:PORT` or `tls://HOST:PORT`", "format name"
PLACE = "`[HOST:]PORT`"
NETWORKS, PLACES = "list of networks", "list of networks and serial lines"
SOURCES, LABEL = "list of GUIDs and names", "text of up to 64 characters"
CERTIFICATES = "list of names"


class Setting(NamedTuple):
    """One value. default: effective if the key is absent; None for nothing or a special meaning. minimum, maximum: of
    numbers. field: of Config, or of its `session` or `confirmation`; "" if set separately."""

    kind: str
    default: Any
    meaning: str
    unit: str = ""
    minimum: int = 0
    maximum: int = NEVER
    field: str = ""

    def checked(self, value: object) -> int:
        """Return a number within the limits. Raises ValueError."""
        if type(value) is not int or not self.minimum <= value <= self.maximum:
            raise ValueError
        return value


class Table(NamedTuple):
    """A table of the file. keys: settings by name. needed: mandatory keys. many: the table may be repeated as
    `[[name]]`. each: kind of the table's free keys, which map to a Setting's values or to tables with these keys."""

    meaning: str
    keys: dict[str, Setting]
    needed: tuple[str, ...] = ()
    many: bool = False
    each: str = ""


def _number(field: str, default: int | None, minimum: int, maximum: int, unit: str, meaning: str) -> Setting:
    return Setting(NUMBER, default, meaning, unit, minimum, maximum, field)


def _flag(field: str, meaning: str, default: int = 0) -> Setting:
    return Setting(FLAG, default, meaning, "", 0, 1, field)


def _timeout_class(field: str, default: int, which: str) -> Setting:
    meaning = f"class of a message that expires while it {which}; empty: 0x{default:04X}"
    return _number(field, default, CLASS_NEGATIVE, 0xFFFF, "", meaning)


NUMBERS = {
    "AckTimeout": _number(
        "session.ack_wait_timeout",
        20000,
        20000,
        120000,
        "ms",
        "a session without traffic for this long is dead (B-043)",
    ),
    "ClockSkew": _number("clock_skew", 0, 0, NEVER, "s", "tolerated lag of a sender's clock (B-267)"),
    "CloseOnMismatch": _flag(
        "session.close_on_mismatch", "close a session if the peer's message count differs (A-13)", 1
    ),
    "EarlyOrderAck": _number(
        "early_order_ack",
        EARLY_ORDER_ACK,
        0,
        NEVER,
        "ms",
        "longest wait of an OrderAck for the rest of a packet; 0: IdleAckDelay (B-045)",
    ),
    "EnablePingService": _flag("answer_pings", "answer pings (B-202)"),
    "EnableReportMessages": _flag("report_messages", "send report messages for traced messages (B-294)"),
    "IdleAckDelay": _number(
        "order_ack_timeout", 500, 1, NEVER, "ms", "longest wait of an OrderAck for more messages (B-045)"
    ),
    "MaxInSessions": _number("max_sessions", 1024, 1, NEVER, "", "open sessions, incoming and outgoing (B-206)"),
    "MaxInSessionsPerAddress": _number(
        "max_sessions_per_address", 256, 1, NEVER, "", "sessions from one IP address (B-435)"
    ),
    "MaxUnackedPacket": _number("session.window_size", 64, 1, 0xFFFF, "packets", "window size (B-039)"),
    "PacketTimeout": _number("packet_timeout", 60000, 1000, NEVER, "ms", "longest time for one packet to arrive"),
    "PermitInsecureNacks": _flag("send_insecure_nacks", "tell senders about missing queues and rights (B-349, B-409)"),
    "PoisonAfter": _number(
        "poison_after", None, 1, NEVER, "", "rolled back receives before a message moves to `NAME;poison`; empty: never"
    ),
    "Quota": _number("quota", 8 << 30, 0, NEVER, "bytes", "size of all stored packets (B-084, B-285)"),
    "RemoveDuplicateCleanup": _number(
        "history_lifetime", 1800000, 1000, NEVER, "ms", "memory of the duplicate filter (B-138)"
    ),
    "RouteMessages": _flag("route", "forward messages for other queue managers (B-264)"),
    "SendPings": _flag("send_pings", "ping before connecting (B-198)"),
    "SeqResend13Time": _number("", 30, 1, NEVER, "s", "interval of the first three resends (B-015)"),
    "TimeoutClassNeverSent": _timeout_class(
        "confirmation.class_never_sent", NACK_RECEIVE_TIMEOUT_AT_SENDER, "was never transmitted (C-21, A-44)"
    ),
    "TimeoutClassSent": _timeout_class(
        "confirmation.class_sent", NACK_RECEIVE_TIMEOUT_AT_SENDER, "waits for its OrderAck (C-22, A-44)"
    ),
    "TimeoutClassStored": _timeout_class(
        "confirmation.class_stored", NACK_RECEIVE_TIMEOUT, "waits for its FinalAck (C-23, A-44)"
    ),
    "TryConnectInterval": _number(
        "try_connect_interval", 5000, 1, NEVER, "ms", "interval between connection attempts (B-133)"
    ),
    "XactDeadLetterAlways": _flag(
        "confirmation.xact_dead_letter_always", "dead-letter every failed transactional message (B-400)"
    ),
    "XactDelayReceiveNack": _number(
        "confirmation.xact_delay_receive_nack", None, 0, UNSET - 1, "s", "wait for a confirmation after `ttbr` (C-12)"
    ),
}

FILE_NAME = "ordack.toml"  # in the store's folder, unless --config names another
LISTEN = ("127.0.0.1", 1801)  # default listener of `serve`; the port is B-001's
CAPTURE_SIZE = 1 << 30  # bytes
CAPTURE_SIZE_MIN = 1 << 20
LONGEST_LABEL = 64  # characters
BAUD = 115200
BAUD_MAX = 1 << 30

_ACCESS = {
    "allow-addresses": Setting(PLACES, None, "allowed networks and `[[serial]]` names; an empty list allows none"),
    "allow-sources": Setting(SOURCES, None, "allowed senders, as GUID or name; a GUID is no proof of identity"),
    "allow-certificates": Setting(CERTIFICATES, None, "allowed TLS peers, by the name in their certificate"),
}
_LISTENER = {
    "address": Setting(HOST, LISTEN[0], "address of this machine; `0.0.0.0`: all IPv4, `::`: all IPv6 addresses"),
    "port": _number("", LISTEN[1], 0, 65535, "", "TCP port; 0 picks a free one (B-001)"),
    "allow": Setting(NETWORKS, None, "allowed networks; default: all; an empty list allows none"),
    "tls": _flag("", "require TLS with certificates of both sides; needs `[tls]`"),
    "allow-certificates": Setting(
        CERTIFICATES, None, "allowed TLS peers, by the name in their certificate; default: all"
    ),
}

TABLES = {
    "": Table(
        "At the top, before any table",
        {
            "own-names": Setting(
                HOSTS,
                None,
                "host names and addresses of this queue manager in direct names; default: any",
            ),
            "http": Setting(
                PLACE, None, "address of the web page, `/metrics`, `/healthz` and `/status`; a port alone: loopback"
            ),
            "http-token-file": Setting(
                PATH,
                None,
                "file with the web page's token (16 to 256 characters, readable by its owner only); "
                "default: `serve` prints a new token at each start",
            ),
            "log-format": Setting(FORM, "text", "format of the log on standard error"),
        },
    ),
    "listen": Table("Addresses for boards and queue managers; default: 127.0.0.1, port 1801", _LISTENER, many=True),
    "applications": Table(
        "Addresses for applications on other machines, which get all rights; default: none",
        _LISTENER
        | {
            "port": _number("", None, 0, 65535, "", "TCP port; 0 picks a free one"),
            "allow-plain": _flag(
                "", "accept applications without TLS: anybody on the network can read and take messages"
            ),
        },
        needed=("port",),
        many=True,
    ),
    "tls": Table(
        "Identity and trust for TLS; `ordack tls` creates the files",
        {
            "certificate": Setting(PATH, None, "PEM file of this queue manager's certificate"),
            "key": Setting(PATH, None, "PEM file of its private key, without a password"),
            "authority": Setting(PATH, None, "PEM file of the plant's certificate authority; not a public one"),
        },
        needed=("certificate", "key", "authority"),
    ),
    "queues": Table(
        "Senders that may write to a queue; applications of this machine always may. "
        '`[queues."*"]` covers all other queues',
        _ACCESS,
        each="queue",
    ),
    "names": Table(
        "Names of boards and queue managers",
        {"": Setting(LABEL, None, "the name that is shown with the GUID")},
        each="GUID",
    ),
    "serial": Table(
        "Boards on serial ports",
        {
            "port": Setting(TEXT, None, "path of the port, or a pyserial URL"),
            "name": Setting(HOST, None, "name of the board in direct names; default: last part of `port`"),
            "baud": _number("", BAUD, 1, BAUD_MAX, "bits a second", "speed of the line"),
        },
        needed=("port",),
        many=True,
    ),
    "next-hops": Table(
        "Addresses to connect to instead of port 1801 of a host",
        {"": Setting(WAY, None, "connect there for this host or queue manager")},
        each="host or GUID",
    ),
    "public-queues": Table(
        "Addresses of public queues, instead of a directory service",
        {"": Setting(NAME, None, "address of this public queue")},
        each="GUID",
    ),
    "capture": Table(
        "Record of all traffic",
        {
            "file": Setting(PATH, None, "first pcapng file; further files get numbers"),
            "size": _number(
                "",
                CAPTURE_SIZE,
                CAPTURE_SIZE_MIN,
                NEVER,
                "bytes",
                "limit of all files together; the oldest are deleted",
            ),
        },
        needed=("file",),
    ),
    "settings": Table("Numbers and flags", NUMBERS),
}


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known word most similar to a typed one; "" if none is similar."""
    by_form = {_form(name): name for name in known}
    found = difflib.get_close_matches(_form(word), by_form, 1)
    return by_form[found[0]] if found else ""


def _form(word: str) -> str:
    return word.lower().replace("_", "-")
