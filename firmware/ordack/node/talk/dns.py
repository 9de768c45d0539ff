"""Resolves host names to IPv4 addresses without waiting: a DNS client over UDP (RFC 1035), loaded for the first name.

Addresses are kept for their TTL, within TTL_MIN and TTL_MAX, and longer while no server answers.
"""

import errno
import os
import socket

from mqqb import const
from ordack.node.clock import ticks_diff, ticks_ms

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from typing import Any

RESOLV = "/etc/resolv.conf"  # of Linux; a board asks the server from its network
SERVERS: "list[tuple[str, int]]" = []  # (address, port) set by an application, instead of those

TTL_MIN = const(30)  # s without another query, whatever the server's TTL
TTL_MAX = const(86400)
_FIRST_MS = const(1000)  # timeout of each server's first answer; doubles each round
_ROUNDS = const(3)  # 7 s with one server
_ANSWER_BYTES = const(512)
_QUERY = b"\1\0\0\1\0\0\0\0\0\0"  # behind the id: recursion desired, one question
_TYPE_A = const(1)
_TYPE_CNAME = const(5)

_cache: "dict[str, tuple[list[str], Any, int]]" = {}  # name -> (addresses, ticks of the answer, ms of validity)


class Lookup:
    """Resolves a name: call `poll` until it returns the address, and `close` to stop early.

    last: the address used before. again: it failed, so the next address is taken; addresses older than TTL_MIN are
    queried again.
    """

    def __init__(self, name: str, last: str = "", again: bool = False) -> None:
        self._last, self._again = last, again
        name = name.lower()
        self._name = name[:-1] if name.endswith(".") else name
        self._socket: "Any" = None
        self._servers: "list[tuple[str, int]]" = []
        self._attempt = 0
        self._query = b""
        self._began: "Any" = 0  # ticks
        self._wait_ms = 0
        self._stale, since, good = _cache.get(self._name, ([], 0, 0))
        is_fresh = 0 <= ticks_diff(ticks_ms(), since) < (1000 * TTL_MIN if again else good)
        self._found = ["127.0.0.1"] if self._name == "localhost" else self._stale if is_fresh else []
        if not self._found:
            self._servers = SERVERS or _of_system() or _of_network()

    def poll(self) -> "str | None":
        """Return the address; None: no answer yet. Raises OSError with the reason if the name cannot be resolved."""
        while not self._found:
            try:
                if self._socket is None:
                    self._ask()
                answer = self._hear()
            except OSError as error:
                self.close()
                self._go_on(error)
                continue
            if answer is None:
                return None
            self.close()
            self._keep(answer[0], max(answer[1], TTL_MIN))
        at = self._found.index(self._last) + self._again if self._last in self._found else 0
        return self._found[at % len(self._found)]

    def close(self) -> None:
        """Stop waiting for an answer."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _keep(self, found: "list[str]", seconds: int) -> None:
        self._found = found
        _cache[self._name] = (found, ticks_ms(), 1000 * seconds)

    def _ask(self) -> None:
        """Query the next server. Raises OSError."""
        count = len(self._servers)
        if not count:
            raise OSError(errno.EIO, "no name server is known")
        server = self._servers[self._attempt % count]
        self._wait_ms = _FIRST_MS << self._attempt // count
        self._began = ticks_ms()
        self._query = os.urandom(2) + _QUERY + _question(self._name)
        entry = socket.getaddrinfo(server[0], server[1])[0]  # an address: does not wait
        self._socket = socket.socket(entry[0], socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.connect(entry[-1])  # drops packets from other sources
        self._socket.send(self._query)

    def _hear(self) -> "tuple[list[str], int] | None":
        """Return the server's answer, if any. Raises OSError if it is useless or too late."""
        try:
            found = _read(self._socket.recv(_ANSWER_BYTES), self._query)
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
            found = None
        if found is not None:
            return found
        if ticks_diff(ticks_ms(), self._began) >= self._wait_ms:
            raise OSError(errno.ETIMEDOUT, "no name server has answered")
        return None

    def _go_on(self, error: OSError) -> None:
        """Turn to the next server. Raises OSError if there is none, or the name does not exist."""
        self._attempt += 1
        is_unknown = error.errno == errno.ENOENT
        if is_unknown or self._attempt >= len(self._servers) * (1 if self._stale else _ROUNDS):
            if is_unknown or not self._stale:
                raise OSError(error.errno, self._name + ": " + str(error.args[-1]))
            self._keep(self._stale, TTL_MIN)


def _of_system() -> "list[tuple[str, int]]":
    """Return the servers that Linux knows."""
    try:
        with open(RESOLV) as file:
            lines = [line.split() for line in file]
    except OSError:
        return []
    return [(words[1], 53) for words in lines if len(words) > 1 and words[0] == "nameserver"]


def _of_network() -> "list[tuple[str, int]]":
    """Return the server that the board's network announced."""
    try:
        import network  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return []
    if hasattr(network, "ipconfig"):
        address = network.ipconfig("dns")
    else:
        address = network.WLAN(network.STA_IF).ifconfig()[3]
    return [(address, 53)] if address.strip("0.:") else []


def _question(name: str) -> bytes:
    """Encode a question for the IPv4 address of a name. Raises OSError for an invalid name."""
    question = b""
    for label in name.encode().split(b"."):
        if not 0 < len(label) < 64:
            raise OSError(errno.ENOENT, "it is not a host name")
        question += bytes([len(label)]) + label
    return question + b"\0\0\1\0\1"


def _read(answer: bytes, query: bytes) -> "tuple[list[str], int] | None":
    """Return an answer's addresses and their TTL in s; None: the answer is for another question.

    Raises OSError: no address. ENOENT: no server has one.
    """
    size = len(query)
    flags = answer[2:4]
    if answer[:2] != query[:2] or answer[4:6] != b"\0\1" or answer[12:size].lower() != query[12:].lower():
        return None
    if not flags[0] & 0x80:  # a question, not an answer
        return None
    if flags[0] & 2:
        raise OSError(errno.EIO, "the answer of the name server is truncated")
    if flags[1] & 15 == 3:
        raise OSError(errno.ENOENT, "there is no such name")
    if flags[1] & 15:
        raise OSError(errno.EIO, "the name server refuses, code " + str(flags[1] & 15))
    try:
        found = _follow(answer, size)
    except IndexError:
        raise OSError(errno.EIO, "the answer of the name server is malformed") from None
    if found is None:
        raise OSError(errno.ENOENT, "there is no IPv4 address of that name")
    return found


def _follow(answer: bytes, at: int) -> "tuple[list[str], int] | None":
    """Return the addresses at the end of the aliases from `at` on, and the lowest TTL, at most TTL_MAX."""
    records = []
    for _ in range(_word(answer, 6)):
        name, at = _labels(answer, at)
        size = _word(answer, at + 8)
        records.append((name, _word(answer, at), int.from_bytes(answer[at + 4 : at + 8], "big"), at + 10, size))
        at += 10 + size
        if at > len(answer):
            raise IndexError
    wanted = _labels(answer, 12)[0]
    least = TTL_MAX
    found = []
    while True:  # each alias is followed once
        for record in records:
            name, kind, ttl, start, size = record
            if name == wanted and (kind == _TYPE_CNAME or (kind == _TYPE_A and size == 4)):
                least = min(least, ttl)
                if kind == _TYPE_CNAME:
                    wanted = _labels(answer, start)[0]
                    records.remove(record)
                    break
                found.append("%d.%d.%d.%d" % tuple(answer[start : start + 4]))
        else:
            return (found, least) if found else None


def _word(data: bytes, at: int) -> int:
    return data[at] << 8 | data[at + 1]


def _labels(data: bytes, at: int) -> "tuple[bytes, int]":
    """Return the name at an offset in lower case, and its end. Raises IndexError if it is invalid."""
    name = b""
    end = 0
    first = at  # a pointer must lead backwards, so there are no loops
    while data[at]:
        size = data[at]
        if size >= 0xC0:
            end = end or at + 2
            at = (size & 0x3F) << 8 | data[at + 1]
            if at >= first:
                raise IndexError
            first = at
        else:
            if size > 63:
                raise IndexError
            at += 1 + size
            name += data[at - size - 1 : at]
    return name.lower(), end or at + 1
