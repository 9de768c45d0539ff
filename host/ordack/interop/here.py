"""This side of a trial: a queue manager with a store of its own, whose connections can be cut, in a thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ordack.client import Client
from ordack.config import Config, format_address
from ordack.links import Hop
from ordack.manager import Manager
from ordack.net import tcp
from ordack.net.cuts import Cuts
from ordack.net.listener import Listener, Listeners
from ordack.net.record import Recorder
from ordack.serve_log import Log
from ordack.store import Store

CAPTURE_SIZE = 1 << 30  # bytes
START_S = 60.0

_Result = TypeVar("_Result")


class TrialError(Exception):
    """The trial cannot begin, or go on; the text says why and what to do."""


def address_towards(host: str) -> str:
    """The address of this machine that its way to this one leads over; nothing is sent. Raises TrialError."""
    try:
        family, _, _, _, place = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as asker:
            asker.connect(place)
            return str(asker.getsockname()[0])
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TrialError(
            f"{host}: {why}; is the name right? Try the IP address of the Windows machine, as `ipconfig` there shows it"
        ) from None


class Here:
    """Runs from `start` to `stop`. client: of the calling thread. cuts: of all its connections.

    folder: gets the store, the log and the capture. listen: where it takes connections. peer: the other machine in
    direct names, in lower case; hop: where that is.
    """

    client: Client

    def __init__(self, folder: Path, listen: Hop, peer: str, hop: Hop, seed: int) -> None:
        self.folder = folder
        self.cuts = Cuts(seed)
        self._listen = listen
        self._hops = {peer: hop}
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="ordack interop", daemon=True)
        self._manager: Manager | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def start(self) -> None:
        """Returns when it takes connections. Raises TrialError."""
        try:
            self._listener = Listener(*self._listen)
        except OSError as error:
            raise TrialError(
                f"cannot listen on {format_address(*self._listen)}: {error.strerror or error}; the other side connects "
                "there. Stop the queue manager that has the port (`ordack serve`), or name an address of this machine "
                "with --listen"
            ) from None
        self._thread.start()
        if not self._ready.wait(START_S) or self._failure:
            raise TrialError(f"the queue manager here does not start: {self._failure or 'it is too slow'}")
        self.client = Client(self.store)

    def stop(self) -> None:
        """End all sessions in order. May be called at any time, and again."""
        if self._loop and self._stop and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
        if hasattr(self, "client"):
            self.client.close()

    def check(self) -> None:
        """Raises TrialError if it does not run any more."""
        if self._failure:
            raise TrialError(f"the queue manager here has ended: {self._failure}")

    def way(self) -> dict[str, Any]:
        """What is told of the connections that this side opens; empty before the first."""

        def told(manager: Manager) -> dict[str, Any]:
            return dict(next(iter(manager.connections().values()), {}))

        return self._ask(told) or {}

    def _ask(self, question: Callable[[Manager], _Result]) -> _Result | None:
        """What the queue manager says, in its own thread; None if it does not run."""
        answer: concurrent.futures.Future[_Result] = concurrent.futures.Future()
        if not self._loop or not self._manager or not self._thread.is_alive():
            return None
        manager = self._manager
        self._loop.call_soon_threadsafe(lambda: answer.set_result(question(manager)))
        try:
            return answer.result(START_S)
        except TimeoutError:
            return None

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - whatever it is, the other thread tells it
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        with (self.folder / "serve.log").open("a", encoding="utf-8") as file:

            def write(line: str) -> None:
                file.write(f"{line}\n")
                file.flush()

            log = Log(write)
            recorder = Recorder(self.folder / "capture.pcapng", CAPTURE_SIZE, log)
            listeners = Listeners([self._listener])
            config = Config(next_hops=self._hops, listening=listeners.places)  # else as `ordack serve` has it
            with Store(self.store, create=True) as store:
                store.lock_manager()
                self._manager = Manager(store, tcp.now(), config, log)
                self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
                await tcp.serve(
                    self._manager, listeners, self._stop, self._ready.set, recorder=recorder, between=self.cuts.between
                )
            log.close()


def connects(host: str, port: int, seconds: float) -> str:
    """Why no TCP connection comes up; "" if one does."""
    try:
        socket.create_connection((host, port), timeout=seconds).close()
    except TimeoutError:
        return "no answer"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""
