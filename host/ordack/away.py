"""Access to the store of an `ordack serve` at an address, `tcp://HOST:PORT` or `tls://HOST:PORT`, for a client that has
no store.

All is asked of that `serve`, and nothing is done without it. If the connection breaks, another one is tried for
RECONNECT_S, and what has no answer yet is asked for again: a commit under its number, by which it happens once. What
was taken on a connection that broke is back in its queues by then.
"""

from __future__ import annotations

import functools
import secrets
import socket
import time
from collections.abc import Collection
from typing import NamedTuple

from mqqb import confirm

from ordack import service
from ordack.commits import Commit, Current, Emptying, Request, Wanted, asked_again, unknown
from ordack.config import TLS_SCHEME, Config, TlsFiles, check_host, format_address, parse_address
from ordack.one_thread import Turn, one_thread
from ordack.orders import Order
from ordack.remote import ANSWER_S, ATTEMPTS, HELLO_S, WAIT_S, Connection, Lost
from ordack.sending import Sent, SentRun, each
from ordack.store import Store, StoreError, StoreUnknown
from ordack.store.messages import Stored
from ordack.store.queues import Queue

TCP_SCHEME = "tcp://"
CONNECT_S = 10.0  # that a connection may take
RECONNECT_S = 20.0  # that a `serve` may be away, as while it starts again
PAUSES_S = 0.05, 1.0  # between two attempts: the first one, and the longest
# A connection of which the other end, or the way there, is gone without a word ends after a minute.
KEEP_ALIVE = {
    "TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000, "TCP_NODELAY": 1,
}  # fmt: skip


class StoreUnreachable(StoreError):
    """The `ordack serve` at an address does not answer. What was asked for last has not happened."""


class Address(NamedTuple):
    """Where a `serve` takes applications. tls: what it is spoken with, None without."""

    host: str
    port: int
    tls: TlsFiles | None = None

    def __str__(self) -> str:
        return f"{TLS_SCHEME if self.tls else TCP_SCHEME}{format_address(self.host, self.port)}"


def address_of(place: object, tls: TlsFiles | None) -> Address | None:
    """The address that this is; None for the folder of a store. Raises ValueError if it can be neither."""
    scheme = next((known for known in (TCP_SCHEME, TLS_SCHEME) if str(place).startswith(known)), "")
    if not scheme:
        if tls:
            raise ValueError(f"{place}: certificates are for a {TLS_SCHEME} address; a folder needs none")
        return None
    try:
        host, port = parse_address(str(place).removeprefix(scheme))
        check_host(host)
    except ValueError as error:
        raise ValueError(f"{place}: write {scheme}HOST:PORT: {error}") from None
    if scheme == TLS_SCHEME and not tls:
        raise ValueError(f"{place} needs certificate, key and authority: `ordack tls certificate` makes them")
    if scheme == TCP_SCHEME and tls:
        raise ValueError(f"{place} speaks no TLS: write {TLS_SCHEME}, or leave the certificates out")
    return Address(host, port, tls)


def keep_alive(connected: socket.socket) -> None:
    """Have the kernel find out that the other end is gone."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Away:
    """Access, as `commits.Access` and `reads.Reads` have it. Raises StoreUnreachable if nobody is there to begin with,
    StoreError if that one refuses, ValueError for files that TLS cannot be spoken with. turn: as in `one_thread`."""

    def __init__(self, address: Address, turn: Turn) -> None:
        self.turn = turn
        self.place = str(address)
        self.guid = b""
        self._address = address
        self._waits: tuple[type[OSError], ...] = (BlockingIOError,)
        self._tls = None
        if address.tls:
            import ssl  # who does not speak TLS does not wait for it

            from ordack.tls import Tls

            self._tls = Tls(address.tls).client
            self._waits = BlockingIOError, ssl.SSLWantReadError
        self._application = secrets.token_bytes(service.APPLICATION_SIZE)
        self._number = 0
        self._is_open = True
        self._connection: Connection | None = self._connect()

    # ---- the connection

    def _connect(self) -> Connection:
        try:
            connected = socket.create_connection(self._address[:2], CONNECT_S)
        except OSError as error:
            raise self._unreachable(error) from None
        try:
            keep_alive(connected)
            if self._tls:
                connected.settimeout(HELLO_S)
                connected = self._tls.wrap_socket(connected, server_hostname=self._address.host)
            made = Connection(connected, self._application)
        except OSError as error:
            connected.close()
            raise self._unreachable(error) from None
        except Lost as lost:
            raise self._unreachable(lost.why) from None
        except BaseException:
            connected.close()
            raise
        if self.guid not in (b"", made.guid):
            made.close()
            raise StoreError(f"another queue manager answers at {self.place} than before: open it again")
        self.guid = made.guid
        return made

    def _unreachable(self, error: Exception | None) -> StoreUnreachable:
        why = getattr(error, "strerror", None) or str(error or "it closes the connection before it answers")
        if self._tls:
            import ssl

            from ordack.tls import words

            why = words(error) if isinstance(error, ssl.SSLError) else why
        return StoreUnreachable(f"{self.place} cannot be reached: {why}; does `ordack serve` run there?")

    def _reached(self) -> Connection:
        """The connection, if need be a new one."""
        if not self._is_open:
            raise StoreError(f"{self.place} is closed: open it again")
        if self._connection and self._connection.has_ended(self._waits):
            self._connection = None
        deadline = time.monotonic() + RECONNECT_S
        pause = PAUSES_S[0]
        while self._connection is None:
            try:
                self._connection = self._connect()
            except StoreUnreachable:
                if time.monotonic() + pause > deadline:
                    raise
                time.sleep(pause)
                pause = min(2 * pause, PAUSES_S[1])
        return self._connection

    def _ask(self, question: bytes, wait: float = 0.0) -> object:
        """Ask what may be asked twice. wait: seconds that the other end may take before it answers."""
        why: Exception | None = None
        for _ in range(ATTEMPTS):
            connection = self._reached()
            try:
                return connection.ask(question, wait + ANSWER_S)
            except Lost as lost:
                self._connection, why = None, lost.why
        raise self._unreachable(why)

    def _messages(self, question: bytes, wait: float) -> list[Stored]:
        rows = self._ask(question, wait)
        assert isinstance(rows, list)
        return service.messages_in(rows)

    # ---- Access

    @one_thread
    def take(self, wanted: Wanted, timeout: float) -> list[Stored]:
        """As Access has it, and all that follows."""
        deadline = time.monotonic() + timeout
        while True:
            left = max(deadline - time.monotonic(), 0.0)
            found = self._messages(service.take_question(wanted, min(left, WAIT_S)), min(left, WAIT_S))
            if found or left <= WAIT_S:
                return found

    @one_thread
    def commit(self, commit: Commit) -> list[Sent]:
        self._number += 1
        try:
            question = service.commit_question(Request(self._application, self._number, commit))
        except ValueError:
            self._put_back(commit.taken)
            raise
        asked = False
        for _ in range(ATTEMPTS):
            try:
                sent, _ = self._reached().ask(question)
                return each(self.guid, (SentRun(*run) for run in sent))
            except Lost as lost:
                self._connection = None
                asked = asked or lost.asked
            except StoreUnknown as error:
                raise unknown(commit, [], error) from None
            except StoreError as error:
                raise (asked_again(commit, error) if asked else error) from None
        if asked:
            raise asked_again(commit, StoreError(f"{self.place} ends the connection before it answers"))
        raise self._unreachable(None)

    def put_back(self, keys: Collection[int]) -> None:
        self.turn.soon(functools.partial(self._put_back, keys))

    def _put_back(self, keys: Collection[int]) -> None:
        if keys and self._connection:
            try:
                self._connection.ask(service.frame(service.PUT_BACK, list(keys)))
            except Lost:  # they are back
                self._connection = None

    def order(self, order: Order) -> object:  # noqa: ARG002 - Access has it
        raise self._not_here()

    def empty(self, emptying: Emptying) -> int:  # noqa: ARG002 - Access has it
        raise self._not_here()

    @one_thread
    def close(self) -> None:
        self._is_open = False
        if self._connection:
            self._connection.close()
            self._connection = None

    # ---- Reads

    @property
    def store(self) -> Store:
        raise self._not_here()

    def _not_here(self) -> StoreError:
        return StoreError(
            f"{self.place} is the address of an `ordack serve`: what is done to its store itself, as to make, empty or "
            "delete queues and to back it up, is done on its own machine, with the command `ordack`"
        )

    def config(self) -> Config:
        return Current(self.store)()

    @one_thread
    def queue(self, name: str | int) -> Queue:
        fields = self._ask(service.frame(service.QUEUE, name))
        assert isinstance(fields, list)
        return Queue(*fields)

    @one_thread
    def look(self, queue: int, place: tuple[int, int], limit: int, timeout: float) -> list[Stored]:
        deadline = time.monotonic() + timeout
        while True:
            left = max(deadline - time.monotonic(), 0.0)
            wait = min(left, WAIT_S)
            found = self._messages(service.look_question(queue, place, limit, wait), wait)
            if found or left <= WAIT_S:
                return found

    @one_thread
    def state(self, message_id: int) -> confirm.Conclusion | None:
        fields = self._ask(service.frame(service.STATE, message_id))
        return confirm.Conclusion(*fields) if isinstance(fields, list) else None

    @one_thread
    def last_discarded(self, destination: str) -> int:
        found = self._ask(service.frame(service.DISCARDED, destination))
        assert isinstance(found, int)
        return found
