"""Applications ask `ordack serve` (service.py): over the Unix socket in the store's folder, and over the TCP sockets of
`gate.py`."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable, Iterable
from typing import Any

from ordack.broker import service
from ordack.broker.applications import Application, Claim, PutBack, Question, Take
from ordack.broker.commits import AS_CONFIGURED
from ordack.broker.manager import Manager
from ordack.broker.serve_log import ERROR
from ordack.server.looking import Reading, looking_in
from ordack.store import StoreBusy, StoreError

APPLICATIONS_MAX = 256  # at a time: each may have a frame of service.FRAME_MAX on the way; and
SHARE_OF_FILES = 8  # of the files that this process may have, one in so many


class Door:
    """Takes the connections, gathers questions, and writes the answers. come: is called when something has, such as
    what `questions` gives; wake: when there is something else for the manager to do. most: so many connections at a
    time."""

    def __init__(self, manager: Manager, come: Callable[[], None], wake: Callable[[], None]) -> None:
        self.manager = manager
        self.come = come
        self.wake = wake
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        self.most = (
            APPLICATIONS_MAX if files == resource.RLIM_INFINITY else min(APPLICATIONS_MAX, files // SHARE_OF_FILES)
        )
        self.reading = Reading(manager.store.folder)
        self._asked: list[Question] = []
        self._connections: dict[Application, Connection] = {}
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Take connections from now on, unless there can be no socket."""
        store = self.manager.store
        try:
            listener = service.listen(store.folder)
        except OSError as error:
            self.manager.operator.tell(
                f"no application can use the store: no socket in {store.folder}, {error.strerror or error}", ERROR
            )
            return
        self._server = await asyncio.get_running_loop().create_unix_server(lambda: Connection(self), sock=listener)

    def close(self) -> None:
        """Take no connections any more, and end those that there are."""
        if self._server:
            (self.manager.store.folder / service.SOCKET).unlink(missing_ok=True)
            self._server.close()
        for connection in list(self._connections.values()):
            connection.transport.close()
        self.reading.close()

    def enter(self, connection: Connection, identifier: bytes) -> Application:
        """An application has said who it is. If it has been here, and that has not been seen to end, it ends now: what
        it has asked for there, and is still on its way, would else happen behind what it asks for here. Raises
        StoreBusy, StoreError."""
        for application, other in list(self._connections.items()):
            if application.identifier == identifier:
                other.end()
        if sum(type(other) is type(connection) for other in self._connections.values()) >= self.most:
            raise StoreBusy(f"{self.most} applications are connected to `ordack serve` this way: no more are taken")
        application = self.manager.applications.connected(identifier)
        self._connections[application] = connection
        return application

    def leave(self, application: Application, for_good: bool) -> None:
        """It has gone."""
        del self._connections[application]
        self.manager.applications.ended(application, for_good)
        if self.manager.applications.has_work:
            self.wake()

    def ask(self, question: Question) -> None:
        """It wants something."""
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
            if connection := self._connections.get(application):
                connection.transport.abort()

    def flush(self) -> None:
        """Write what there is to answer."""
        for application, answer in self.manager.applications.answers():
            if connection := self._connections.get(application):
                connection.answer(answer)
        self.reading.again()


class Connection(asyncio.Protocol):
    """One application's connection. It asks the next question when it has the answer to the one before. is_over: no
    more is taken from it, nor told to it. is_here: it is on this machine, and may do to queues what their owner may."""

    transport: asyncio.Transport
    is_here = True

    def __init__(self, door: Door) -> None:
        self.is_over = False
        self._door = door
        self._buffer = bytearray()
        self._application: Application | None = None
        self._has_asked = False
        self._for_good = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.came(data)
        self._door.come()

    def came(self, data: bytes) -> None:
        """Take a part of a question, or more."""
        if not self.is_over:
            self._buffer += data
            self._next()

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
        if why:
            self.tell(why)
        if self._application:
            self._door.leave(self._application, self._for_good)
        self.transport.abort()

    def tell(self, why: str) -> None:
        """Tell the operator why it ends."""
        self._door.manager.operator.tell_seldom(
            "applications", int(time.time()), f"an application is disconnected: {why}"
        )

    def refusal(self) -> str:
        """Why it may not enter; "" if it may."""
        return ""

    def _next(self) -> None:
        try:
            for question in service.frames(self._buffer, service.FRAME_MAX if self._application else service.HELLO_MAX):
                if self._has_asked:
                    raise service.Malformed("it asks before it has its answer")
                self._take(question)
        except service.Malformed as error:
            if not self._has_asked:  # else it would take this for the answer that it waits for
                self.transport.write(service.failed(ValueError(f"`ordack serve` does not take this: {error}")))
            self.end(str(error))

    def _take(self, question: list[Any]) -> None:
        kind = question[0]
        if self._application is None:
            self._hello(question)
        elif kind == service.BYE:
            self._for_good = True
            self.transport.close()
        else:
            self._ask(self._application, kind, question)

    def _hello(self, question: list[Any]) -> None:
        if len(question) != 3 or question[0] != service.HELLO or not isinstance(question[2], bytes):
            raise service.Malformed("it does not begin with `hello`")
        try:
            if question[1] != service.VERSION or len(question[2]) != service.APPLICATION_SIZE:
                raise StoreBusy("this `ordack serve` is of another version: install the same one at both ends")
            if refusal := self.refusal():
                raise StoreError(f"this `ordack serve` refuses the application: {refusal}")
            self._application = self._door.enter(self, question[2])
        except StoreError as error:
            self.refused(error)
        else:
            self.transport.write(service.frame(service.DONE, self._door.manager.store.guid))

    def refused(self, error: StoreError) -> None:
        """It may not enter, and is told why."""
        self.transport.write(service.failed(error))
        self.transport.close()

    def _ask(self, application: Application, kind: str, question: list[Any]) -> None:
        if kind == service.TAKE:
            wanted, wait = service.wanted_in(question)
            if wanted.poison_after == AS_CONFIGURED:
                wanted = wanted._replace(poison_after=self._door.manager.config.poison_after)
            self._door.ask((application, Take(wanted, time.monotonic_ns() // 1_000_000 + wait)))
        elif kind == service.COMMIT:
            request = service.request_in(question, application.identifier)
            if request.commit.order and not self.is_here:
                raise service.Malformed("an order comes from another machine")
            self._door.ask((application, request))
        elif kind == service.EMPTY and self.is_here:
            self._door.ask((application, service.emptying_in(question)))
        elif kind == service.CLAIM and self.is_here and len(question) == 2:
            self._door.ask((application, Claim(service.keys_in(question[1]))))
        elif kind == service.PUT_BACK and len(question) == 2:
            self._door.ask((application, PutBack(service.keys_in(question[1]))))
        elif looking := looking_in(question):
            self._door.reading.ask(self, *looking)
        else:
            raise service.Malformed(f"there is no question {kind!r:.40}")
        self._has_asked = True
