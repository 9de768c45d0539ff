"""The conversation of a client with the queue manager.

A `Conversation` asks `serve` over a `ServeConnection`, or `commits.Direct` in this process if no `serve` runs. Both
answer the same questions. `Address` and `LocalStore` find the one to ask.

Each commit has a number. If the connection breaks before the answer, the client repeats the commit to the next `serve`
or to `Direct`; the number ensures that the commit happens once. When a connection ends, `serve` puts its messages back,
so a repeated commit of such messages has happened already, or fails. Messages taken without a `serve` stay with this
process, which claims them from each `serve`.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import select
import socket
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

from mqqb import confirm

from ordack.api.reads import ClientLock, one_thread
from ordack.broker import service
from ordack.broker.commits import LOOK_AGAIN_S, Current, Direct, Done, asked_again, unknown
from ordack.broker.incoming import indispensable
from ordack.broker.message import Commit, Emptying, Order, Request, Wanted
from ordack.broker.sending import Sent, SentRun, each
from ordack.config.config import TLS_SCHEME, Config, TlsFiles, check_host, format_address, parse_address
from ordack.config.names import legible
from ordack.store import Store, StoreBusy, StoreError, StoreServed, StoreUnknown
from ordack.store.database import BUSY_TIMEOUT_S
from ordack.store.messages import StoredMessage
from ordack.store.queues import QueueState

TCP_SCHEME = "tcp://"
ANSWER_S = 60.0  # s; a longer silence means that `serve` hangs or was stopped
HELLO_S = 5.0  # s, for the first answer
CONNECT_S = 10.0  # s, to connect to an address
RECONNECT_S = 20.0  # s, for the `serve` at an address to restart
WAIT_S = 10.0  # s, until a question for future messages is repeated
PAUSES_S = 0.02, 0.5  # between attempts to connect: first and longest
ATTEMPTS = 5  # per question, each with another connection
ENDED = "it ends the connection before it answers"

Result = TypeVar("Result")


class StoreUnreachable(StoreError):
    """The `ordack serve` at an address does not answer. The latest request has not happened."""


class Lost(Exception):
    """The connection ended before an answer. asked: the question may have reached the other end."""

    def __init__(self, asked: bool, why: Exception | None = None) -> None:
        super().__init__(asked)
        self.asked = asked
        self.why = why


class ServeConnection:
    """A connection to `serve`. guid: of its queue manager."""

    def __init__(self, connected: socket.socket, application: bytes, patience: float = HELLO_S) -> None:
        self._socket = connected
        self._buffer = bytearray()
        self._is_ahead = False  # TAKE was asked together with the last COMMIT
        self.guid: bytes = self.ask(service.frame(service.HELLO, service.VERSION, application), patience)

    def ask(self, question: bytes, patience: float | None = None, wake: socket.socket | None = None) -> Any:
        """Ask, and wait for the answer. patience: seconds, else ANSWER_S. wake: a byte on it makes `serve` answer TAKE
        at once. Raises the error in the answer, and Lost. A call without an answer closes the connection."""
        answer: list[Any] | None = None
        asked = False
        try:
            if self._is_ahead and question:  # an interrupt has come between the two answers
                raise Lost(asked)
            self._is_ahead = False
            if question:
                self._wait_for(patience)
                self._socket.sendall(question)
            asked = True
            while (data := service.frame_in(self._buffer)) is None:
                self._wait_for(patience)
                if wake and _is_first(wake, self._socket):
                    self._socket.sendall(service.frame(service.STOP))
                    wake = None
                came = self._socket.recv(service.RECEIVE_BYTES)
                if not came:
                    raise Lost(asked)
                self._buffer += came
            answer = service.content_of(data)
        except (OSError, service.MalformedFrame) as error:
            raise Lost(asked, error) from None
        finally:
            if answer is None:
                self._socket.close()
        return service.result_of(answer)

    def _wait_for(self, patience: float | None) -> None:
        """Set the socket's timeout, which costs a system call; None: ANSWER_S."""
        seconds = ANSWER_S if patience is None else patience
        if self._socket.gettimeout() != seconds:
            self._socket.settimeout(seconds)

    def take(self, wanted: Wanted, timeout: float, wake: socket.socket | None) -> list[StoredMessage]:
        """As Direct.take; the other methods likewise. wake: as `ask`."""
        question = b"" if self._is_ahead else service.take_question(wanted, timeout)
        return service.messages_in(self.ask(question, timeout + ANSWER_S, wake))

    def carry_out(self, request: Request, ahead: bytes = b"") -> Done:
        """ahead: TAKE; the next call has to be `take`."""
        question = service.commit_question(request) + ahead
        try:
            sent, result = self.ask(question)
        except Lost:
            raise
        except Exception:
            if ahead:
                self._decline()
            raise
        self._is_ahead = bool(ahead)
        return Done([SentRun(*run) for run in sent], result)

    def _decline(self) -> None:
        """Put back what the TAKE behind a failed COMMIT has taken."""
        with contextlib.suppress(Lost, StoreError):
            taken = service.messages_in(self.ask(service.frame(service.STOP)))
            if taken:
                self.ask(service.frame(service.PUT_BACK, service.packed([message.lookup_id for message in taken])))

    def empty(self, emptying: Emptying) -> tuple[int, bool]:
        removed, is_all = self.ask(service.frame(service.EMPTY, *emptying))
        return removed, is_all

    def has_ended(self, waits: tuple[type[OSError], ...]) -> bool:
        """Has the other end closed the idle connection? waits: errors of `recv` that mean "still open"."""
        if self._is_ahead:  # the answer may have arrived
            return False
        self._socket.settimeout(0)
        try:
            self._socket.recv(1)
        except waits:
            return False
        except OSError:
            pass
        self._socket.close()
        return True

    def close(self) -> None:
        """Say goodbye and close the connection."""
        try:
            self._socket.settimeout(ANSWER_S)
            self._socket.sendall(service.frame(service.BYE))
        except OSError:
            pass  # `serve` then keeps its last answer for a day
        finally:
            self._socket.close()


def _is_first(wake: socket.socket, connected: socket.socket) -> bool:
    """Wait until one of the two can be read. True: it is `wake`, whose bytes are read."""
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    poll.register(connected, select.POLLIN)
    timeout_s = connected.gettimeout()
    first = [file for file, _ in poll.poll(None if timeout_s is None else 1000 * timeout_s)] == [wake.fileno()]
    if first:
        wake.recv(service.RECEIVE_BYTES)
    return first


def silence(folder: Path) -> str:
    """Why a `serve` that holds this store does not answer; "" if it answers. Also "" if none can be asked: no `serve`
    runs, it starts or stops now, or this user lacks the permission."""
    connected = service.connect(folder)
    if connected:
        try:
            ServeConnection(connected, secrets.token_bytes(service.APPLICATION_SIZE), BUSY_TIMEOUT_S).close()
        except Lost as lost:
            if isinstance(lost.why, TimeoutError):
                return f"it has not answered for {BUSY_TIMEOUT_S:.0f} s; if it hangs, end it and start it again"
        except StoreError:  # it says why it refuses
            connected.close()
    return ""


# ---- where the work is done


class LocalStore:
    """A store opened by this process. Its running `serve` is asked, or `direct` if none runs. retried: an error of
    `connect` that justifies another attempt."""

    retried: type[StoreError] = StoreBusy

    def __init__(self, store: Store, direct: Direct) -> None:
        self.store = store
        self.direct: Direct | None = direct
        self.place = str(store.folder)
        self.guid = store.guid  # of the queue manager
        self.patience_s = BUSY_TIMEOUT_S  # for a `serve` that does not answer

    def connect(self, application: bytes) -> ServeConnection:
        """A connection to `serve`. Raises StoreBusy."""
        connected = service.connect(self.store.folder)
        if connected is None:
            raise self.unreachable("there is no socket in the store's folder")
        try:
            return ServeConnection(connected, application)
        except (Lost, StoreError) as error:  # it stops, hangs, is full, or has another version
            connected.close()
            raise self.unreachable("it does not answer" if isinstance(error, Lost) else error) from None

    def has_lost(self, _connection: ServeConnection) -> bool:
        """Has the connection ended? A store finds out with the next question."""
        return False

    def unreachable(self, why: object) -> StoreError:
        """The error after vain attempts to ask `serve`."""
        return StoreBusy(
            f"{self.store.manager} has the store {self.store.folder}, and could not be asked: {why or ENDED}. Try "
            "again; if it hangs, end it"
        )

    def close(self) -> None:
        """Close the store."""
        self.store.close()


class Address:
    """The address of a `serve`, for a client without a store. tls: the TLS files, None without TLS."""

    retried: type[StoreError] = StoreUnreachable
    direct: Direct | None = None

    def __init__(self, host: str, port: int, tls: TlsFiles | None = None) -> None:
        self.place = f"{TLS_SCHEME if tls else TCP_SCHEME}{format_address(host, port)}"
        self.guid = b""
        self._where = host, port
        self.patience_s = RECONNECT_S
        self._is_open = True
        self._waits: tuple[type[OSError], ...] = (BlockingIOError,)
        self._tls = None
        if tls:
            import ssl  # slow to import; needed for TLS only

            from ordack.config.tls import Tls

            self._tls = Tls(tls).client
            self._waits = BlockingIOError, ssl.SSLWantReadError

    @property
    def store(self) -> Store:
        raise StoreError(
            f"{self.place} is the address of an `ordack serve`: what is done to its store itself, as to make, empty or "
            "delete queues and to back it up, is done on its own machine, with the command `ordack`"
        )

    def connect(self, application: bytes) -> ServeConnection:
        """Connect to `serve`. Raises StoreUnreachable, StoreError."""
        if not self._is_open:
            raise StoreError(f"{self.place} is closed: open it again")
        try:
            connected = socket.create_connection(self._where, CONNECT_S)
        except OSError as error:
            raise self.unreachable(error) from None
        try:
            service.keep_alive(connected)
            if self._tls:
                connected.settimeout(HELLO_S)
                connected = self._tls.wrap_socket(connected, server_hostname=self._where[0])
            made = ServeConnection(connected, application)
        except (OSError, Lost) as error:
            connected.close()
            raise self.unreachable(error.why if isinstance(error, Lost) else error) from None
        except BaseException:
            connected.close()
            raise
        if self.guid not in (b"", made.guid):
            made.close()
            raise StoreError(f"another queue manager answers at {self.place} than before: open it again")
        self.guid = made.guid
        return made

    def has_lost(self, connection: ServeConnection) -> bool:
        return connection.has_ended(self._waits)

    def unreachable(self, why: object) -> StoreError:
        text = getattr(why, "strerror", None) or str(why or ENDED.replace("ends", "closes"))
        if self._tls:
            import ssl

            from ordack.config.tls import words

            text = words(why) if isinstance(why, ssl.SSLError) else text
        return StoreUnreachable(f"{self.place} cannot be reached: {text}; does `ordack serve` run there?")

    def close(self) -> None:
        self._is_open = False


def address_of(place: object, tls: TlsFiles | None) -> Address | None:
    """The address in `place`; None for the folder of a store. Raises ValueError if `place` is neither, or for unusable
    TLS files."""
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


# ---- the conversation


class Conversation:
    """The commits and questions of a client. All methods raise StoreError and its subclasses. turn: the lock."""

    def __init__(self, place: LocalStore | Address, turn: ClientLock) -> None:
        self.turn = turn
        self._place = place
        self._application = secrets.token_bytes(service.APPLICATION_SIZE)
        self._number = 0
        self._held: set[int] = set()  # messages taken without a `serve`
        self._wake: tuple[socket.socket, socket.socket] | None = None
        self._wait: object = None  # of the running `take`, for `interrupt`
        self._interrupted: object = self
        self._connection = place.connect(self._application) if isinstance(place, Address) else None

    @one_thread
    def take(self, wanted: Wanted, timeout: float) -> list[StoredMessage]:
        """Take messages, hidden from others until `commit` or `put_back`; an empty list if none arrived within the
        timeout, in seconds. If this process dies, they are available again."""
        return self._take(wanted, timeout)

    @one_thread
    def commit_and_take(self, commit: Commit, wanted: Wanted, timeout: float) -> list[StoredMessage]:
        """As `commit`, then as `take`; `serve` is asked for both at once."""
        self._carry_out(commit, service.take_question(wanted, min(timeout, WAIT_S)))
        return self._take(wanted, timeout)

    def _take(self, wanted: Wanted, timeout: float) -> list[StoredMessage]:
        deadline = time.monotonic() + timeout

        def once(there: ServeConnection | Direct) -> tuple[list[StoredMessage], bool]:
            left = 0.0 if self._interrupted is self._wait else max(deadline - time.monotonic(), 0.0)
            if isinstance(there, Direct):
                wait = min(left, LOOK_AGAIN_S)
                found = there.take(wanted, wait)
                self._held.update(message.lookup_id for message in found)
            else:
                wait = min(left, WAIT_S)
                found = there.take(wanted, wait, self._wake[0] if self._wake else None)
            return found, wait == left

        while True:
            found, is_last = self.ask(once)
            if found or is_last:
                return found

    def may_interrupt(self, wait: object) -> None:
        """Give the next `take` a name for `interrupt`. Call it in the thread of the `take`."""
        if self._wake is None:
            self._wake = socket.socketpair()
            self._wake[1].setblocking(False)
        self._wait = wait

    def interrupt(self, wait: object) -> None:
        """Have the `take` with this name return soon, also without a message. For other threads."""
        self._interrupted = wait
        if self._wake:
            with contextlib.suppress(BlockingIOError):  # it is full of earlier ones
                self._wake[1].send(b"!")

    @one_thread
    def commit(self, commit: Commit) -> list[Sent]:
        """Commit durably; returns the outcome of each letter. On an error, the taken messages are put back. Also raises
        NoSuchQueue, BadName, ValueError for a letter."""
        return each(self._place.guid, self._carry_out(commit).sent)

    @one_thread
    def order(self, order: Order) -> Any:
        """Execute the order durably; returns its result. Raises the order's errors."""
        _ = self._place.store  # raises at an address
        return self._carry_out(Commit(order=order)).result

    def put_back(self, keys: Collection[int]) -> None:
        """Put taken messages back in their old places."""
        self.turn.soon(functools.partial(self._put_back, keys))

    @one_thread
    def empty(self, emptying: Emptying) -> int:
        """Remove messages in pieces; returns the number, marked messages included. If it raises or this process dies,
        some messages are gone, and their senders know. Other writers run between two pieces."""
        _ = self._place.store  # raises at an address
        removed, is_all = 0, False
        while not is_all:
            count, is_all = self.ask(lambda there: there.empty(emptying))
            removed += count
        return removed

    @one_thread
    def close(self) -> None:
        """Put taken messages back, and close the store."""
        if self._connection:
            self._connection.close()
            self._connection = None
        wake, self._wake = self._wake, None
        for end in wake or ():
            end.close()
        self._place.close()

    @one_thread
    def note(self, queue: str, text: str) -> None:
        """Have `serve`, if it runs and answers, log what an operator has done to a queue."""
        question = service.frame(service.NOTE, legible(queue)[: service.NAME_MAX], legible(text)[: service.NAME_MAX])
        with contextlib.suppress(StoreError):
            self.ask(lambda there: isinstance(there, Direct) or there.ask(question))

    def ask(self, question: Callable[[Any], Result]) -> Result:
        """Ask a repeatable question of a ServeConnection or Direct."""
        why: Exception | None = None
        for _ in range(ATTEMPTS):
            there = self._reached()
            try:
                return question(there)
            except StoreServed:
                continue
            except Lost as lost:
                self._connection, why = None, lost.why
        raise self._place.unreachable(why)

    def _carry_out(self, commit: Commit, ahead: bytes = b"") -> Done:
        direct = self._place.direct
        try:
            return self._ask_for(commit, ahead)
        except BaseException:
            if direct and (here := self._held.intersection(commit.taken)):
                direct.put_back(here)
            raise
        finally:
            if direct:
                direct.let_go(commit.taken)
            self._held.difference_update(commit.taken)

    def _ask_for(self, commit: Commit, ahead: bytes) -> Done:
        request = Request(self._application, 0, commit)
        asked = False  # the other end may have committed
        why: Exception | None = None
        for _ in range(ATTEMPTS):
            there: ServeConnection | Direct | None = None
            try:
                there = self._reached()
                if isinstance(there, Direct):
                    return there.carry_out(request)
                if not request.number:
                    self._number += 1
                    request = request._replace(number=self._number)
                return there.carry_out(request, ahead)
            except StoreServed:
                continue
            except Lost as lost:
                self._connection, why = None, lost.why
                asked = asked or lost.asked
            except StoreUnknown as error:
                raise (unknown(commit, [], error) if isinstance(there, ServeConnection) else error) from None
            except StoreError as error:
                raise (asked_again(commit, error) if asked else error) from None
            except ValueError:  # such as a question that is too large
                self._put_back(commit.taken)
                raise
        ended = self._place.unreachable(None if asked else why)
        raise asked_again(commit, ended) if asked else ended

    def _put_back(self, keys: Collection[int]) -> None:
        direct = self._place.direct
        if direct and (here := self._held.intersection(keys)):
            self._held -= here
            direct.put_back(here)
        if keys and self._connection:
            try:
                self._connection.ask(service.frame(service.PUT_BACK, service.packed(tuple(keys))))
            except Lost:  # `serve` has put them back
                self._connection = None

    def _reached(self) -> ServeConnection | Direct:
        """The one to ask: `serve`, reconnecting if needed, or Direct if none runs."""
        if self._connection and self._place.has_lost(self._connection):
            self._connection = None
        deadline = time.monotonic() + self._place.patience_s
        pause = PAUSES_S[0]
        while self._connection is None:
            if self._place.direct and not self._place.store.is_served:
                return self._place.direct
            try:
                self._connection = self._place.connect(self._application)
            except self._place.retried:
                if time.monotonic() + pause > deadline:
                    raise
                time.sleep(pause)
                pause = min(2 * pause, PAUSES_S[1])
        return self._connection


class RemoteReader:
    """Read-only access to the store of the `serve` at an address. Methods: as `reads.LocalReader`."""

    def __init__(self, address: Address, access: Conversation) -> None:
        self.turn = access.turn
        self.place = address.place
        self._address = address
        self._access = access

    @property
    def guid(self) -> bytes:
        return self._address.guid

    @property
    def store(self) -> Store:
        return self._address.store

    def config(self) -> Config:
        return Current(self.store)()

    def queue(self, name: str | int) -> QueueState:
        return QueueState(*self._ask(service.QUEUE, name))

    def look(self, queue: int, place: tuple[int, int], limit: int) -> list[StoredMessage]:
        return service.messages_in(self._ask(service.LOOK, queue, *place, limit))

    def state(self, message_id: int) -> confirm.Conclusion | None:
        fields = self._ask(service.STATE, message_id)
        return confirm.Conclusion(*fields) if fields else None

    @one_thread
    def _ask(self, *question: object) -> Any:
        return self._access.ask(lambda there: there.ask(service.frame(*question)))


def purge_outgoing(store: Store, access: Conversation, outgoing: int) -> tuple[int, int]:
    """Ask the queue manager to end all current messages of an outgoing queue (C-29); returns the number ended, and the
    number kept as `indispensable` says."""
    last = store.outgoing.last_key()
    keep = list(indispensable(store, outgoing))
    removed = 0
    after: int | None = 0
    while after is not None:
        done, after = access.order(Order("withdraw", (outgoing, after, last, keep)))
        removed += done
    return removed, len(keep)
