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
    meaning = f"class of a message whose TimeToBeReceived ends while it {which}; 0x{default:04X} if absent"
    return _number(field, default, CLASS_NEGATIVE, 0xFFFF, "", meaning)


NUMBERS = {
    "AckTimeout": _number(
        "session.ack_wait_timeout", 20000, 20000, 120000, "ms", "silence after which a session is dead (B-043)"
    ),
    "ClockSkew": _number(
        "clock_skew", 0, 0, NEVER, "s", "how far a sender's clock may be behind for TimeToReachQueue (B-267)"
    ),
    "CloseOnMismatch": _flag(
        "session.close_on_mismatch", "close a session whose peer counts other messages than arrived (A-13)", 1
    ),
    "EarlyOrderAck": _number(
        "early_order_ack",
        EARLY_ORDER_ACK,
        0,
        NEVER,
        "ms",
        "wait of an OrderAck while a packet is incomplete; 0: as B-045",
    ),
    "EnablePingService": _flag("answer_pings", "answer pings (B-202)"),
    "EnableReportMessages": _flag("report_messages", "make the report messages that traced messages ask for (B-294)"),
    "IdleAckDelay": _number(
        "order_ack_timeout", 500, 1, NEVER, "ms", "time that an OrderAck waits for more messages (B-045)"
    ),
    "MaxInSessions": _number("max_sessions", 1024, 1, NEVER, "", "sessions at once, of both directions (B-206)"),
    "MaxInSessionsPerAddress": _number(
        "max_sessions_per_address", 256, 1, NEVER, "", "sessions from one address, as that of a NAT (B-435)"
    ),
    "MaxUnackedPacket": _number("session.window_size", 64, 1, 0xFFFF, "packets", "window size (B-039)"),
    "PacketTimeout": _number("packet_timeout", 60000, 1000, NEVER, "ms", "time that every packet may take to arrive"),
    "PermitInsecureNacks": _flag(
        "send_insecure_nacks", "tell senders that a queue or a right is missing (B-349, B-409)"
    ),
    "PoisonAfter": _number(
        "poison_after", None, 1, NEVER, "", "receives without a commit until a message moves to `NAME;poison`"
    ),
    "Quota": _number("quota", 8 << 30, 0, NEVER, "bytes", "all packets kept (B-084, B-285)"),
    "RemoveDuplicateCleanup": _number(
        "history_lifetime", 1800000, 1000, NEVER, "ms", "time that the duplicate filter remembers a message (B-138)"
    ),
    "RouteMessages": _flag("route", "forward messages for other queue managers (B-264)"),
    "SendPings": _flag("send_pings", "ping before connecting (B-198)"),
    "SeqResend13Time": _number(
        "", 30, 1, NEVER, "s", "time before each of the first three resends of a sequence (B-015)"
    ),
    "TimeoutClassNeverSent": _timeout_class(
        "confirmation.class_never_sent", NACK_RECEIVE_TIMEOUT_AT_SENDER, "was never transmitted (C-21, A-44)"
    ),
    "TimeoutClassSent": _timeout_class(
        "confirmation.class_sent", NACK_RECEIVE_TIMEOUT_AT_SENDER, "is transmitted, without OrderAck (C-22, A-44)"
    ),
    "TimeoutClassStored": _timeout_class(
        "confirmation.class_stored", NACK_RECEIVE_TIMEOUT, "is stored, without FinalAck (C-23, A-44)"
    ),
    "TryConnectInterval": _number(
        "try_connect_interval", 5000, 1, NEVER, "ms", "time between attempts to connect (B-133)"
    ),
    "XactDeadLetterAlways": _flag(
        "confirmation.xact_dead_letter_always", "every transactional message asks for dead-lettering (B-400)"
    ),
    "XactDelayReceiveNack": _number(
        "confirmation.xact_delay_receive_nack", None, 0, UNSET - 1, "s", "delay of a confirmation after `ttbr` (C-12)"
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
    "allow-addresses": Setting(
        PLACES, None, "from where messages may come: networks, names of `[[serial]]`; empty: nowhere"
    ),
    "allow-sources": Setting(
        SOURCES, None, "who may have sent them, by GUID or name of `[names]`; a GUID alone proves nothing"
    ),
    "allow-certificates": Setting(
        CERTIFICATES, None, "over whose TLS connections they may come, by the name in a certificate"
    ),
}
_LISTENER = {
    "address": Setting(HOST, LISTEN[0], "one of this machine; `0.0.0.0`: every IPv4, `::`: every IPv6 address"),
    "port": _number("", LISTEN[1], 0, 65535, "", "TCP port; 0 picks a free one (B-001)"),
    "allow": Setting(NETWORKS, None, "who may connect; without it everybody, with an empty list nobody"),
    "tls": _flag("", "TLS, with a certificate of either side; it needs the table `[tls]`"),
    "allow-certificates": Setting(
        CERTIFICATES, None, "with TLS, whose certificates may connect; without it all that are signed"
    ),
}

TABLES = {
    "": Table(
        "At the top, before any table",
        {
            "own-names": Setting(
                HOSTS,
                None,
                "addresses in direct names that mean this queue manager; without it all do, and "
                "what is sent to an address of this machine stays here",
            ),
            "http": Setting(
                PLACE, None, "of the web page, `/metrics`, `/healthz`, `/status`; a port alone: of loopback"
            ),
            "http-token-file": Setting(
                PATH,
                None,
                "a line of 16 to 256 characters that only its owner may read: the token for changes on the web page, "
                "and for the page from other machines. Without it, `serve` makes a token for changes at each start",
            ),
            "log-format": Setting(
                FORM, "text", "of the log on standard error: lines of text, or one JSON object a line"
            ),
        },
    ),
    "listen": Table(
        "Where connections are taken; without any: 127.0.0.1, port 1801, for this machine alone", _LISTENER, many=True
    ),
    "applications": Table(
        "Where applications of other machines are taken, which may do what those of this machine may; else nowhere",
        _LISTENER
        | {
            "port": _number("", None, 0, 65535, "", "TCP port; 0 picks a free one"),
            "allow-plain": _flag(
                "", "take them without TLS, where anybody on the way reads, changes and takes messages"
            ),
        },
        needed=("port",),
        many=True,
    ),
    "tls": Table(
        "Who this queue manager is, and whom it believes, where TLS is spoken; `ordack tls` makes such files",
        {
            "certificate": Setting(PATH, None, "PEM file: its certificate, for connections of both directions"),
            "key": Setting(PATH, None, "PEM file: the private key of the certificate, without a password"),
            "authority": Setting(PATH, None, "PEM file: whose signature it believes: of the plant, no public one"),
        },
        needed=("certificate", "key", "authority"),
    ),
    "queues": Table(
        "Who may write to a queue, whether it is there yet or not; applications of this machine always may. "
        '`[queues."*"]` is for all queues without a table of their own',
        _ACCESS,
        each="queue",
    ),
    "names": Table(
        "What people call boards and queue managers",
        {"": Setting(LABEL, None, "the name that is shown with the GUID")},
        each="GUID",
    ),
    "serial": Table(
        "Boards on serial ports",
        {
            "port": Setting(TEXT, None, "the path of the port, or a URL of pyserial"),
            "name": Setting(HOST, None, "of the board in direct names; else the last part of `port`"),
            "baud": _number("", BAUD, 1, BAUD_MAX, "bits a second", "the speed of the line"),
        },
        needed=("port",),
        many=True,
    ),
    "next-hops": Table(
        "Where to connect to, instead of port 1801 of that address",
        {"": Setting(WAY, None, "for a host in direct names, or the GUID of a queue manager")},
        each="host or GUID",
    ),
    "public-queues": Table(
        "Where public queues are, in place of a directory",
        {"": Setting(NAME, None, "for the GUID of a public queue")},
        each="GUID",
    ),
    "capture": Table(
        "Records all traffic",
        {
            "file": Setting(PATH, None, "the first pcapng file, then numbered ones beside it"),
            "size": _number("", CAPTURE_SIZE, CAPTURE_SIZE_MIN, NEVER, "bytes", "all captures; the oldest go first"),
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
