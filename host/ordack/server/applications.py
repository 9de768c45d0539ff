"""Applications ask `ordack serve` (service.py): over the Unix socket in the store's folder, and over the TCP sockets of
`[[applications]]` in the configuration file.

What those of other machines may cost is bounded: connections, seconds for each part of one, bytes of questions that are
not complete, one answer that is not read. Whoever breaks a bound is disconnected, with a sentence in the log. What an
application looks at is read in a thread, from the store on a connection of its own, so that no writer waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ordack.api.reads import Here, Turn
from ordack.broker import service
from ordack.broker.applications import Application, PutBack, Question, Take
from ordack.broker.commits import Current
from ordack.broker.message import AS_CONFIGURED, Commit, Emptying, Request, Wanted
from ordack.broker.serve_log import ERROR
from ordack.config.tls import name_in
from ordack.store import StoreBusy, StoreError
from ordack.store.look import StoreBeside, StoreReader

if TYPE_CHECKING:
    from ordack.broker.manager import Manager
    from ordack.config.tls import Tls
    from ordack.server.listener import Listener, Listeners

APPLICATIONS_MAX = 256  # at a time: each may have a frame of service.FRAME_MAX on the way; and
SHARE_OF_FILES = 8  # of the files that this process may have, one in so many
REFUSED_MAX = 16  # connections beyond those that are taken, to be told so
HELLO_S = 10.0  # until it is known who asks
PART_S = 60.0  # for a question that has begun, and for an answer that is not read; and one more for each
RATE = 100_000  # bytes of them
LOOKING_FILES = 8  # that the thread which reads and its store may have open


class Door:
    """Takes the connections, gathers questions, and writes the answers. wake: is called when there is something for
    the manager to do, such as what `questions` gives. listeners: for other machines; tls: what those with TLS go by.
    most: so many connections of each kind at a time."""

    def __init__(
        self,
        manager: Manager,
        wake: Callable[[], None],
        listeners: Listeners,
        tls: Tls | None = None,
    ) -> None:
        self.manager = manager
        self.wake = wake
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        self.most = (
            APPLICATIONS_MAX if files == resource.RLIM_INFINITY else min(APPLICATIONS_MAX, files // SHARE_OF_FILES)
        )
        self.half = 0  # bytes of questions from other machines that are not complete
        self.connections: set[Connection] = set()
        self.reading = Reading(manager.store.folder)
        self._listeners = listeners
        self._tls = tls
        self._asked: list[Question] = []
        self._of: dict[Application, Connection] = {}
        self._server: asyncio.Server | None = None
        self._handshakes = 0  # of TLS

    async def open(self) -> None:
        """Take connections from now on; none of this machine if there can be no socket."""
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
        """Take no connections any more, and end those that there are."""
        self._listeners.close()
        if self._server:
            (self.manager.store.folder / service.SOCKET).unlink(missing_ok=True)
            self._server.close()
        for connection in list(self.connections):
            connection.transport.close()
        self.reading.close()

    # ---- connections

    def protocol(self, listener: Listener) -> asyncio.Protocol:
        return Connection(self, listener)

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
        """May one more connect this way, if only to hear that it is one too many?"""
        there = sum((one.listener is None) is (listener is None) for one in self.connections)
        return there + self._handshakes < self.most + REFUSED_MAX

    def tell(self, address: str, why: str) -> None:
        """Tell the operator of an application that is shut out, or has broken a rule. address: "" for this machine."""
        operator, text = self.manager.operator, f"an application is disconnected: {why}"
        if address:
            operator.tell(f"{address}: {text}", peer=address)
        else:
            operator.tell_seldom("applications", int(time.time()), text)

    def has_too_much(self) -> Connection | None:
        """Who is to end, for questions that are not complete have too many bytes: the one with the most of them."""
        if self.half <= self.manager.config.max_half_received:
            return None
        return max(self.connections, key=lambda one: one.half)

    def enter(self, connection: Connection, identifier: bytes) -> Application:
        """An application has said who it is. If it has been here, and that has not been seen to end, it ends now: what
        it has asked for there, and is still on its way, would else happen behind what it asks for here. Raises
        StoreBusy, StoreError."""
        for application, other in list(self._of.items()):
            if application.identifier == identifier:
                other.end()
        if sum((one.listener is None) is (connection.listener is None) for one in self._of.values()) >= self.most:
            raise StoreBusy(f"{self.most} applications are connected to `ordack serve` this way: no more are taken")
        application = self.manager.applications.connected(identifier)
        self._of[application] = connection
        return application

    def leave(self, application: Application, for_good: bool) -> None:
        """It has gone."""
        del self._of[application]
        self.manager.applications.ended(application, for_good)
        if self.manager.applications.has_work:
            self.wake()

    # ---- questions and answers

    def ask(self, question: Question) -> None:
        """An application wants something."""
        self._asked.append(question)

    def questions(self) -> list[Question]:
        """What was asked since the last time."""
        asked, self._asked = self._asked, []
        return asked

    def fail(self, questions: Iterable[Question], error: Exception) -> None:
        """How much of what was asked was done, nobody knows: whoever has asked is to ask again."""
        if questions:
            self.manager.operator.tell(f"applications are disconnected: a defect, {error!r}", ERROR)
        for application, _ in questions:
            if connection := self._of.get(application):
                connection.transport.abort()

    def flush(self) -> None:
        """Write what there is to answer."""
        for application, answer in self.manager.applications.answers():
            if connection := self._of.get(application):
                try:
                    connection.answer(service.answered(answer))
                except ValueError as error:
                    connection.end(str(error))


class Connection(asyncio.Protocol):
    """One application's connection. It asks the next question when it has the answer to the one before. listener: where
    it has come from another machine; None: it is on this one, and may do to queues what their owner may. is_over: no
    more is taken from it, nor told to it. half: bytes of its question that is not complete, if it is elsewhere."""

    transport: asyncio.Transport

    def __init__(self, door: Door, listener: Listener | None) -> None:
        self.is_over = False
        self.half = 0
        self.listener = listener
        self._door = door
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._application: Application | None = None
        self._has_asked = False
        self._for_good = False
        self._address = ""
        self._certificate: str | None = None  # the name in the peer's; None without TLS
        self._late: asyncio.TimerHandle | None = None
        self._began = 0.0  # when the question did that is not complete
        self._is_unread = False  # is an answer that it does not read

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self.listener:
            peer = transport.get_extra_info("peername")  # None: it has gone already
            if transport.get_extra_info("sslcontext"):
                self._certificate = name_in(transport.get_extra_info("peercert"))
            self._address = peer[0] if peer else ""
            if not peer or not self._door.has_room(self.listener):
                self.end("too many are connected" if peer else "")
                return
            connected: socket.socket = transport.get_extra_info("socket")
            with contextlib.suppress(OSError):  # it has gone
                service.keep_alive(connected)
            self._within(HELLO_S, "it has not said who it is in time")
        self._door.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._is_unread:
            self.end("it asks before it has read its answer")
        elif not self.is_over:
            self._buffer += data
            self._next()
            if self.listener and not self.is_over:
                self._bound(len(data))
        self._door.wake()

    def answer(self, answer: bytes) -> None:
        """Answer its question."""
        if not self.is_over:
            self._has_asked = False
            self.transport.write(answer)

    def connection_lost(self, _error: Exception | None) -> None:
        self.end()

    def end(self, why: str = "") -> None:
        """It is over, now; why: what an operator is to be told."""
        if self.is_over:
            return
        self.is_over = True
        self._within(0, "")
        self._door.connections.discard(self)
        self._door.half -= self.half
        if why:
            self._door.tell(self._address, why)
        if self._application:
            self._door.leave(self._application, self._for_good)
        self.transport.abort()

    def refusal(self) -> str:
        """Why it may not enter; "" if it may."""
        return self.listener.refusal(self._address, self._certificate) if self.listener else ""

    # ---- bounds

    def _bound(self, came: int) -> None:
        """See to it that its question comes to an end, and that all such questions have not too many bytes."""
        before, self.half = self.half, len(self._buffer)
        self._door.half += self.half - before
        if self._application is None:
            return
        if not self.half:
            self._within(0, "")
            return
        if not before or self.half < before + came:
            self._began = self._loop.time()
        announced = service.LENGTH.unpack_from(self._buffer)[0] if self.half >= service.LENGTH.size else 0
        passed = self._loop.time() - self._began
        self._within(PART_S + announced / RATE - passed, "its question does not come to an end")
        if too_much := self._door.has_too_much():
            too_much.end(f"{too_much.half} bytes of a question that is not complete, and all have too many")

    def pause_writing(self) -> None:
        """It does not read."""
        self._is_unread = True
        if self.listener:
            size = self.transport.get_write_buffer_size()
            self._within(PART_S + size / RATE, "it does not read its answer")

    def resume_writing(self) -> None:
        """It does."""
        self._is_unread = False
        self._within(0, "")

    def _within(self, seconds: float, why: str) -> None:
        """It ends after so many seconds, for this reason; not at all without one."""
        if self._late:
            self._late.cancel()
        self._late = self._loop.call_later(max(seconds, 0.0), self.end, why) if why else None

    # ---- questions

    def _next(self) -> None:
        try:
            for question in service.frames(self._buffer, service.FRAME_MAX if self._application else service.HELLO_MAX):
                if self._has_asked:
                    raise service.MalformedFrame("it asks before it has its answer")
                if self._application is None:
                    self._hello(question)
                else:
                    self._ask(self._application, question[0], service.parts_of(question))
        except service.MalformedFrame as error:
            if not self._has_asked:  # else it would take this for the answer that it waits for
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
            self._application = self._door.enter(self, question[2])
        except StoreError as error:
            if self.listener:
                self._door.tell(self._address, str(error))
            self.transport.write(service.failed(error))
            self.transport.close()
        else:
            self._within(0, "")
            self.transport.write(service.frame(service.DONE, self._door.manager.store.guid))

    def _ask(self, application: Application, kind: str, parts: list[Any]) -> None:
        if kind == service.BYE:
            self._for_good = True
            self.transport.close()
            return
        if self.listener and (kind == service.EMPTY or (kind == service.COMMIT and parts[-1])):
            raise service.MalformedFrame(f"`{kind}` of an operator comes from another machine")
        self._has_asked = True
        if kind in _LOOKS:
            self._door.reading.ask(self, lambda here: _LOOKS[kind](here, *parts))
            return
        asked: Take | Request | Emptying | PutBack
        if kind == service.TAKE:
            wanted = Wanted(*parts[:-1])
            if wanted.poison_after == AS_CONFIGURED:
                wanted = wanted._replace(poison_after=self._door.manager.config.poison_after)
            asked = Take(wanted, time.monotonic_ns() // 1_000_000 + parts[-1])
        elif kind == service.COMMIT:
            asked = Request(application.identifier, parts[0], Commit(*parts[1:]))
        else:
            asked = {service.EMPTY: Emptying, service.PUT_BACK: PutBack}[kind](*parts)
        self._door.ask((application, asked))


# ---- what applications look at


def _state(here: Here, message_id: int) -> tuple[str, int, bool, int | None, bool] | None:
    found = here.state(message_id)
    if found is None:
        return None
    return (found.answer, found.message_class, found.in_doubt, found.deadline, found.is_final)


def _look(here: Here, queue: int, rank: int, lookup_id: int, limit: int) -> list[Any]:
    return service.rows_of(here.look(queue, (rank, lookup_id), limit))


_LOOKS: dict[str, Callable[..., Any]] = {
    service.QUEUE: Here.queue,
    service.STATE: _state,
    service.DISCARDED: Here.last_discarded,
    service.LOOK: _look,
}


class Reading:
    """Answers what is asked, one question after another."""

    def __init__(self, folder: Path) -> None:
        self._reader = StoreReader(folder, "ordack-reading")
        self._here: Here | None = None  # the thread's

    def ask(self, asker: Connection, look: Callable[[Here], Any]) -> None:
        """It wants to know."""
        answer = asyncio.wrap_future(
            self._reader.read(lambda store: service.frame(service.DONE, look(self._in(store))))
        )
        answer.add_done_callback(lambda done: asker.answer(self._told(done)))

    def close(self) -> None:
        """End what is under way, and answer no more."""
        self._reader.close()

    def _in(self, store: StoreBeside) -> Here:
        if self._here is None or self._here.store is not store:
            self._here = Here(store, lambda: int(time.time()), Current(store), Turn())
        return self._here

    @staticmethod
    def _told(done: asyncio.Future[bytes]) -> bytes:
        try:
            return done.result()
        except (StoreError, ValueError) as error:
            return service.failed(error)
        except Exception as error:  # noqa: BLE001 - a defect that one application has met is not the others' end
            return service.failed(StoreError(f"`ordack serve` has a defect: {error!r}"))
