"""Serves applications over the Unix socket in the store's folder and over the TCP sockets of `[[applications]]`.

Applications on other machines have limits: connections, seconds per part of a question, bytes of incomplete questions,
one unread answer. Breaking a limit disconnects the application, and the log says why. A thread with its own store
connection answers read-only questions, so that no writer waits for a reader.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ordack.api.reads import ClientLock, LocalReader
from ordack.broker import service
from ordack.broker.applications import Application, PutBack, Question, Take
from ordack.broker.commits import Current
from ordack.broker.message import AS_CONFIGURED, Commit, Emptying, Request, Wanted
from ordack.broker.serve_log import ERROR, INFO, NEWS
from ordack.config.tls import name_in
from ordack.store import StoreBusy, StoreError
from ordack.store.look import StoreBeside, StoreReader

if TYPE_CHECKING:
    from ordack.broker.manager import Manager
    from ordack.config.tls import Tls
    from ordack.server.listener import Listener, Listeners

APPLICATIONS_MAX = 256  # at a time: each may have a frame of service.FRAME_MAX in flight
SHARE_OF_FILES = 8  # applications get an eighth of this process's file limit
REFUSED_MAX = 16  # connections beyond the limit that get a refusal
HELLO_S = 10.0  # for the first question
PART_S = 60.0  # to complete a question, or to read an answer; one second more per RATE bytes
RATE = 100_000  # bytes/s
LOOKING_FILES = 8  # files of the reading thread
STOP_FRAME = service.frame(service.STOP)


class ApplicationServer:
    """Accepts connections, gathers questions and writes answers. wake: called when the manager has work. listeners: for
    other machines. tls: for listeners with TLS. most: maximum connections from this machine, and from other machines.
    """

    def __init__(
        self, manager: Manager, wake: Callable[[], None], listeners: Listeners, tls: Tls | None = None
    ) -> None:
        self.manager = manager
        self.wake = wake
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        self.most = (
            APPLICATIONS_MAX if files == resource.RLIM_INFINITY else min(APPLICATIONS_MAX, files // SHARE_OF_FILES)
        )
        self.half = 0  # bytes of incomplete questions from other machines
        self.connections: set[Connection] = set()
        self._reader = StoreReader(manager.store.folder, "ordack-reading")
        self._here: LocalReader | None = None  # belongs to the reader's thread
        self._listeners = listeners
        self._tls = tls
        self._asked: list[Question] = []
        self._of: dict[Application, Connection] = {}
        self._server: asyncio.Server | None = None
        self._handshakes = 0  # TLS handshakes in progress

    async def open(self) -> None:
        """Start accepting. Without a socket in the store's folder, accept applications of other machines only."""
        store = self.manager.store
        try:
            listener = service.listen(store.folder)
        except OSError as error:
            self.manager.operator.tell(
                f"no application can use the store: no socket in {store.folder}, {error.strerror or error}", ERROR
            )
        else:
            make = asyncio.get_running_loop().create_unix_server
            self._server = await make(lambda: Connection(self, None), sock=listener)
        await self._listeners.start(self, self._tls)

    async def close(self) -> None:
        """Stop accepting and end every connection."""
        self._listeners.close()
        if self._server:
            (self.manager.store.folder / service.SOCKET).unlink(missing_ok=True)
            self._server.close()
        for connection in list(self.connections):
            connection.transport.close()
        self._reader.close()

    # ---- connections

    def protocol(self, listener: Listener) -> asyncio.Protocol:
        return Connection(self, listener)

    def listen(self, _listener: Listener) -> None:
        return None

    def expect(self, address: str, listener: Listener) -> bool:
        if not self.has_room(listener):
            self.tell(address, "too many are connected")
            return False
        self._handshakes += 1
        return True

    def expected(self, _address: str) -> None:
        self._handshakes -= 1

    def shut_out(self, address: str, why: str, _kind: str) -> None:
        self.tell(address, why)

    def has_room(self, listener: Listener | None) -> bool:
        """May another application connect, if only to be refused?"""
        there = sum((one.listener is None) is (listener is None) for one in self.connections)
        return there + self._handshakes < self.most + REFUSED_MAX

    def tell(self, address: str, why: str) -> None:
        """Tell the operator that an application was disconnected. address: "" for this machine."""
        operator, text = self.manager.operator, f"an application is disconnected: {why}"
        if address:
            operator.tell(f"{address}: {text}", peer=address)
        else:
            operator.tell_seldom("applications", int(time.time()), text)

    def has_too_much(self) -> Connection | None:
        """The connection with the largest incomplete question, if the sum of all exceeds the limit."""
        if self.half <= self.manager.config.max_half_received:
            return None
        return max(self.connections, key=lambda one: one.half)

    def enter(self, connection: Connection, identifier: bytes) -> Application:
        """Register an application and end its older connection. Otherwise pending questions of the old connection would
        be answered behind those of the new one. Raises StoreBusy, StoreError."""
        for application, other in list(self._of.items()):
            if application.identifier == identifier:
                other.end()
        if sum((one.listener is None) is (connection.listener is None) for one in self._of.values()) >= self.most:
            raise StoreBusy(f"{self.most} applications are connected to `ordack serve` this way: no more are taken")
        application = self.manager.applications.connected(identifier)
        self._of[application] = connection
        return application

    def leave(self, application: Application, for_good: bool) -> None:
        """The application's connection has ended."""
        del self._of[application]
        self.manager.applications.ended(application, for_good)
        if self.manager.applications.has_work:
            self.wake()

    # ---- questions and answers

    def ask(self, question: Question) -> None:
        """Keep a question for the manager."""
        self._asked.append(question)

    def wake_for_questions(self) -> None:
        """Call `wake` if there are questions."""
        if self._asked:
            self.wake()

    def stop(self, application: Application) -> None:
        """Answer the application's Take now, whether the manager knows of it yet or not."""
        for place, (asker, asked) in enumerate(self._asked):
            if asker is application and isinstance(asked, Take):
                self._asked[place] = asker, asked._replace(until=0)
        self.manager.applications.stop_waiting(application)

    def look(self, asker: Connection, kind: str, parts: Sequence[Any]) -> None:
        """Answer a read-only question in the reader's thread."""
        found = self._reader.read(lambda store: service.frame(service.DONE, _LOOKS[kind](self._in(store), *parts)))
        asyncio.wrap_future(found).add_done_callback(lambda done: asker.answer(_answer(done)))

    def _in(self, store: StoreBeside) -> LocalReader:
        if self._here is None or self._here.store is not store:
            self._here = LocalReader(store, lambda: int(time.time()), Current(store), ClientLock())
        return self._here

    def questions(self) -> list[Question]:
        """The questions since the last call."""
        asked, self._asked = self._asked, []
        return asked

    def fail(self, questions: Iterable[Question], error: Exception) -> None:
        """Disconnect the applications, which then ask again: the error hides which questions were answered."""
        if questions:
            self.manager.operator.tell(f"applications are disconnected: a defect, {error!r}", ERROR)
        for application, _ in questions:
            if connection := self._of.get(application):
                connection.transport.abort()

    def flush(self) -> None:
        """Write the manager's answers."""
        found: dict[Connection, list[bytes]] = {}  # one write for each: the first one wakes the application
        for application, answer in self.manager.applications.answers():
            if connection := self._of.get(application):
                try:
                    found.setdefault(connection, []).append(service.answered(answer))
                except ValueError as error:
                    connection.end(str(error))
        for connection, answers in found.items():
            connection.answer(*answers)


class Connection(asyncio.Protocol):
    """One application's connection, with one question at a time. listener: None for an application on this machine,
    which has an operator's rights. half: bytes of the incomplete question of an application on another machine."""

    transport: asyncio.Transport

    def __init__(self, application_server: ApplicationServer, listener: Listener | None) -> None:
        self.is_over = False
        self.half = 0
        self.listener = listener
        self._owner = application_server
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._application: Application | None = None
        self._pending = 0  # questions without an answer
        self._may_take = False  # the pending question is COMMIT
        self._for_good = False
        self._address = ""
        self._certificate: str | None = None  # the name in the peer's certificate; None without TLS
        self._late: asyncio.TimerHandle | None = None
        self._began = 0.0  # time of the incomplete question's first bytes
        self._is_unread = False  # the write buffer is full

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.max_size = service.RECEIVE_BYTES  # type: ignore[attr-defined]
        if self.listener:
            peer = transport.get_extra_info("peername")  # None: the peer has disconnected already
            if transport.get_extra_info("sslcontext"):
                self._certificate = name_in(transport.get_extra_info("peercert"))
            self._address = peer[0] if peer else ""
            if not peer or not self._owner.has_room(self.listener):
                self.end("too many are connected" if peer else "")
                return
            connected: socket.socket = transport.get_extra_info("socket")
            with contextlib.suppress(OSError):  # the peer has disconnected
                service.keep_alive(connected)
            self._within(HELLO_S, "it has not said who it is in time")
        self._owner.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._is_unread and data != STOP_FRAME:
            self.end("it asks before it has read its answer")
        elif not self.is_over:
            self._buffer += data
            self._next()
            if self.listener and not self.is_over:
                self._bound(len(data))
        self._owner.wake_for_questions()

    def answer(self, *answers: bytes) -> None:
        """Answer the oldest pending questions."""
        if not self.is_over:
            self._pending -= len(answers)
            self.transport.write(b"".join(answers))

    def connection_lost(self, _error: Exception | None) -> None:
        self.end()

    def end(self, why: str = "") -> None:
        """End the connection now. why: logged for the operator; "" logs nothing."""
        if self.is_over:
            return
        self.is_over = True
        self._within(0, "")
        self._owner.connections.discard(self)
        self._owner.half -= self.half
        if why:
            self._owner.tell(self._address, why)
        if self._application:
            self._owner.leave(self._application, self._for_good)
        self.transport.abort()

    def refusal(self) -> str:
        """Why the application may not connect; "" if it may."""
        return self.listener.refusal(self._address, self._certificate) if self.listener else ""

    # ---- bounds

    def _bound(self, came: int) -> None:
        """Limit the time of one incomplete question and the bytes of all incomplete questions."""
        before, self.half = self.half, len(self._buffer)
        self._owner.half += self.half - before
        if self._application is None or self._is_unread:  # their timers go on
            return
        if not self.half:
            self._within(0, "")
            return
        if not before or self.half < before + came:
            self._began = self._loop.time()
        announced = service.LENGTH.unpack_from(self._buffer)[0] if self.half >= service.LENGTH.size else 0
        passed = self._loop.time() - self._began
        self._within(PART_S + announced / RATE - passed, "its question does not come to an end")
        if too_much := self._owner.has_too_much():
            too_much.end(f"{too_much.half} bytes of a question that is not complete, and all have too many")

    def pause_writing(self) -> None:
        self._is_unread = True
        if self.listener:
            size = self.transport.get_write_buffer_size()
            self._within(PART_S + size / RATE, "it does not read its answer")

    def resume_writing(self) -> None:
        self._is_unread = False
        self._within(0, "")

    def _within(self, seconds: float, why: str) -> None:
        """End the connection after `seconds` for the reason `why`; "" cancels the timeout."""
        if self._late:
            self._late.cancel()
        self._late = self._loop.call_later(max(seconds, 0.0), self.end, why) if why else None

    # ---- questions

    def _next(self) -> None:
        try:
            most = service.FRAME_MAX if self._application else service.HELLO_MAX
            while (data := service.frame_in(self._buffer, most)) is not None:
                if self._application is None:
                    self._hello(service.content_of(data))
                    continue
                kind, parts = service.question_in(data)
                if kind == service.STOP:
                    self._owner.stop(self._application)
                elif self._pending and not (self._may_take and kind == service.TAKE):
                    raise service.MalformedFrame("it asks before it has its answer")
                else:
                    self._ask(self._application, kind, parts)
        except service.MalformedFrame as error:
            if not self._pending:  # otherwise the application would take the error for its pending answer
                self.transport.write(service.failed(ValueError(f"`ordack serve` does not take this: {error}")))
            self.end(str(error))

    def _hello(self, question: list[Any]) -> None:
        if len(question) != 3 or question[0] != service.HELLO or not isinstance(question[2], bytes):
            raise service.MalformedFrame("it does not begin with `hello`")
        try:
            if question[1] != service.VERSION or len(question[2]) != service.APPLICATION_SIZE:
                raise StoreBusy("this `ordack serve` is of another version: install the same one at both ends")
            if refusal := self.refusal():
                raise StoreError(f"this `ordack serve` refuses the application: {refusal}")
            self._application = self._owner.enter(self, question[2])
        except StoreError as error:
            if self.listener:
                self._owner.tell(self._address, str(error))
            self.transport.write(service.failed(error))
            self.transport.close()
        else:
            self._within(0, "")
            self.transport.write(service.frame(service.DONE, self._owner.manager.store.guid))

    def _ask(self, application: Application, kind: str, parts: Sequence[Any]) -> None:
        if kind == service.BYE:
            self._for_good = True
            self.transport.close()
            return
        if self.listener and (kind in (service.EMPTY, service.NOTE) or (kind == service.COMMIT and parts[-1])):
            raise service.MalformedFrame(f"`{kind}` of an operator comes from another machine")
        self._pending += 1
        self._may_take = kind == service.COMMIT
        if kind in _LOOKS:
            self._owner.look(self, kind, parts)
            return
        if kind == service.NOTE:
            self._owner.manager.operator.tell(parts[1], INFO, NEWS, queue=parts[0])
            self.answer(service.frame(service.DONE))
            return
        asked: Take | Request | Emptying | PutBack
        if kind == service.TAKE:
            queue, limit, counted, poison_after, *which, wait = parts
            if poison_after == AS_CONFIGURED:
                poison_after = self._owner.manager.config.poison_after
            wanted = Wanted(queue, limit, counted, poison_after, *which)
            asked = Take(wanted, time.monotonic_ns() // 1_000_000 + wait)
        elif kind == service.COMMIT:
            asked = Request(application.identifier, parts[0], Commit(*parts[1:]))
        else:
            asked = {service.EMPTY: Emptying, service.PUT_BACK: PutBack}[kind](*parts)
        self._owner.ask((application, asked))


# ---- questions that only read


def _answer(done: asyncio.Future[bytes]) -> bytes:
    try:
        return done.result()
    except (StoreError, ValueError) as error:
        return service.failed(error)
    except Exception as error:  # noqa: BLE001 - a defect in one question must not end other connections
        return service.failed(StoreError(f"`ordack serve` has a defect: {error!r}"))


def _state(here: LocalReader, message_id: int) -> tuple[str, int, bool, int | None, bool] | None:
    found = here.state(message_id)
    if found is None:
        return None
    return (found.answer, found.message_class, found.in_doubt, found.deadline, found.is_final)


def _look(here: LocalReader, queue: int, rank: int, lookup_id: int, limit: int) -> list[Any]:
    return service.rows_of(here.look(queue, (rank, lookup_id), limit))


_LOOKS: dict[str, Callable[..., Any]] = {
    service.QUEUE: LocalReader.queue,
    service.STATE: _state,
    service.LOOK: _look,
}
