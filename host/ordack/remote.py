"""Access to a store through the `ordack serve` that runs on it, and without it where none runs.

A commit is asked for under a number. If the connection breaks before its answer, it is asked for again, of the `serve`
that has started since, or done directly when none runs any more: by its number it happens once. Messages that were
taken on the connection are back in their queues by then, so a commit with such ones has happened already, or fails.
What was taken without a `serve` stays in this program's hands, whichever starts or ends: it says so to each.
"""

from __future__ import annotations

import functools
import secrets
import socket
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from ordack import service
from ordack.commits import LOOK_AGAIN_S, Commit, Direct, Emptying, Request, Wanted, asked_again, unknown
from ordack.one_thread import Turn, one_thread
from ordack.orders import Order
from ordack.sending import Sent, SentRun, each
from ordack.store import Store, StoreBusy, StoreError, StoreServed, StoreUnknown
from ordack.store.database import BUSY_TIMEOUT_S
from ordack.store.messages import Stored

ANSWER_S = 60.0  # after that long no answer is expected any more: `serve` hangs, or was stopped
HELLO_S = 5.0  # the same for the first one
WAIT_S = 10.0  # a question for messages that are to come is asked again after this
RECEIVE_BYTES = 96 << 10  # at once: for more, malloc asks the kernel for pages each time
PAUSE_S = 0.02  # between two attempts to connect
ATTEMPTS = 5  # to have a commit done, with as many connections


class Lost(Exception):
    """The connection is gone, before an answer has come. asked: the question may have reached the other end."""

    def __init__(self, asked: bool, why: Exception | None = None) -> None:
        super().__init__(asked)
        self.asked = asked
        self.why = why


class Connection:
    """A connection to `serve`. guid: of its queue manager."""

    def __init__(self, connected: socket.socket, application: bytes, patience: float = HELLO_S) -> None:
        self._socket = connected
        self._buffer = bytearray()
        self.guid: bytes = self.ask(service.frame(service.HELLO, service.VERSION, application), patience)

    def ask(self, question: bytes, patience: float | None = None) -> Any:
        """Ask, and wait for the answer, ANSWER_S or so many seconds. Raises what it says went wrong, and Lost; after
        whatever leaves it before the answer has come, the connection is of no use, and closed.
        """
        answer: list[Any] | None = None
        asked = False
        try:
            self._socket.settimeout(ANSWER_S if patience is None else patience)
            self._socket.sendall(question)
            asked = True
            while answer is None:
                data = self._socket.recv(RECEIVE_BYTES)
                if not data:
                    raise Lost(asked)
                self._buffer += data
                answer = next(service.frames(self._buffer), None)
        except (OSError, service.Malformed) as error:
            raise Lost(asked, error) from None
        finally:
            if answer is None:
                self._socket.close()
        return service.result_of(answer)

    def has_ended(self, waits: tuple[type[OSError], ...]) -> bool:
        """Has the other end closed it, while nothing was asked? waits: what `recv` raises as long as it has not."""
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
        """Say that nothing more comes, and close it."""
        try:
            self._socket.settimeout(ANSWER_S)
            self._socket.sendall(service.frame(service.BYE))
        except OSError:
            pass  # then its last answer is kept for a day
        finally:
            self._socket.close()


def silence(folder: Path) -> str:
    """What to say of a `serve` that has this store and does not answer for as long as anybody waits for a store; "" if
    it answers, and if none can be asked: none runs, it begins or ends just now, or this user may not."""
    connected = service.connect(folder)
    if connected:
        try:
            Connection(connected, secrets.token_bytes(service.APPLICATION_SIZE), BUSY_TIMEOUT_S).close()
        except Lost as lost:
            if isinstance(lost.why, TimeoutError):
                return f"it has not answered for {BUSY_TIMEOUT_S:.0f} s; if it hangs, end it and start it again"
        except StoreError:  # it says why it takes nobody
            connected.close()
    return ""


class Remote:
    """Access through `serve`, and where none runs through `direct`, which has the same store. turn: as `one_thread` has
    it."""

    def __init__(self, store: Store, direct: Direct, turn: Turn) -> None:
        self.turn = turn
        self._store = store
        self._direct = direct
        self._application = secrets.token_bytes(service.APPLICATION_SIZE)
        self._number = 0
        self._connection: Connection | None = None
        self._taken_directly: set[int] = set()

    @one_thread
    def take(self, wanted: Wanted, timeout: float) -> list[Stored]:
        """As Access has it."""
        deadline = time.monotonic() + timeout
        lost = 0
        while lost < ATTEMPTS:
            left = max(deadline - time.monotonic(), 0)
            connection = self._connected()
            try:
                if connection is None:
                    stored = self._direct.take(wanted, min(left, LOOK_AGAIN_S))
                    self._taken_directly.update(message.lookup_id for message in stored)
                else:
                    wait = min(left, WAIT_S)
                    rows = connection.ask(service.take_question(wanted, wait), wait + ANSWER_S)
                    stored = service.messages_in(rows)
            except StoreServed:
                continue
            except Lost:
                self._connection = None
                lost += 1
                continue
            lost = 0
            if stored or left <= 0:
                return stored
        raise self._unreachable("it ends the connection before it answers")

    @one_thread
    def commit(self, commit: Commit) -> list[Sent]:
        """As Access has it."""
        sent, _ = self._carry_out(commit)
        return each(self._store.guid, (SentRun(*run) for run in sent))

    @one_thread
    def order(self, order: Order) -> Any:
        """As Access has it."""
        return self._carry_out(Commit(order=order))[1]

    def _carry_out(self, commit: Commit) -> tuple[Sequence[Any], Any]:
        try:
            return self._ask_for(commit)
        except BaseException:
            if here := self._taken_directly.intersection(commit.taken):
                self._direct.put_back(here)
            raise
        finally:
            self._store.messages.let_go(commit.taken)
            self._taken_directly.difference_update(commit.taken)

    def _ask_for(self, commit: Commit) -> tuple[Sequence[Any], Any]:
        request = Request(self._application, 0, commit)
        question = b""
        asked = False  # somebody may have done it
        for _ in range(ATTEMPTS):
            connection = None
            try:
                connection = self._connected()
                if connection is None:
                    done = self._direct.carry_out(request)
                    return done.sent, done.result
                if not question:
                    self._number += 1
                    request = request._replace(number=self._number)
                    question = service.commit_question(request)
                sent, result = connection.ask(question)
                return sent, result
            except StoreServed:
                continue
            except Lost as lost:
                self._connection = None
                asked = asked or lost.asked
            except StoreUnknown as error:
                raise (unknown(commit, [], error) if connection else error) from None
            except StoreError as error:
                raise (asked_again(commit, error) if asked else error) from None
            except ValueError:
                if not question:
                    self._put_back(commit.taken)
                raise
        ended = self._unreachable("it ends the connection before it answers")
        raise asked_again(commit, ended) if asked else ended

    def put_back(self, keys: Collection[int]) -> None:
        """As Access has it."""
        self.turn.soon(functools.partial(self._put_back, keys))

    def _put_back(self, keys: Collection[int]) -> None:
        here = self._taken_directly.intersection(keys)
        if here:
            self._taken_directly -= here
            self._direct.put_back(here)
        if keys and self._connection:
            try:
                self._connection.ask(service.frame(service.PUT_BACK, list(keys)))
            except Lost:  # they are back
                self._connection = None

    @one_thread
    def empty(self, emptying: Emptying) -> int:
        """As Access has it. `serve` removes a piece between what others want of it."""
        removed: int = 0
        question = service.empty_question(emptying)
        for _ in range(ATTEMPTS):
            try:
                while connection := self._connected():
                    count, is_all = connection.ask(question)
                    removed += count
                    if is_all:
                        return removed
                return removed + self._direct.empty(emptying)
            except (Lost, StoreServed):  # what it has removed is not counted
                self._connection = None
        raise self._unreachable("it ends the connection before it answers")

    @one_thread
    def close(self) -> None:
        """As Access has it; the store is closed, too."""
        if self._connection:
            self._connection.close()
            self._connection = None
        self._store.close()

    def _connected(self) -> Connection | None:
        """The connection to `serve`; None if none runs. Raises StoreBusy if one runs, and takes no applications for as
        long as anybody waits for a store."""
        deadline = time.monotonic() + BUSY_TIMEOUT_S
        why: object = "there is no socket in the store's folder"
        while self._connection is None and self._store.is_served:
            connected = service.connect(self._store.folder)
            if connected:
                try:
                    self._connection = Connection(connected, self._application)
                    if self._taken_directly:
                        self._connection.ask(service.frame(service.CLAIM, list(self._taken_directly)))
                except (Lost, StoreError) as error:  # it stops, hangs, has too many, is of another version
                    self._connection = None
                    connected.close()
                    why = "it does not answer" if isinstance(error, Lost) else error
            if self._connection is None:
                if time.monotonic() >= deadline:
                    raise self._unreachable(why)
                time.sleep(PAUSE_S)
        return self._connection

    def _unreachable(self, why: object) -> StoreBusy:
        return StoreBusy(
            f"{self._store.manager} has the store {self._store.folder}, and could not be asked: {why}. Try again; "
            "if it hangs, end it"
        )
