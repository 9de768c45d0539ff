"""SIGHUP: a running `ordack serve` reads its configuration file again, and goes by it from then on, all or nothing."""

from __future__ import annotations

import asyncio
import itertools
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from ordack.broker.serve_log import ERROR, INFO, WARNING, Line, Log
from ordack.config.config import EVERY_QUEUE
from ordack.config.config_file import BadConfigFile, ConfigFile, Listen, Running, is_loopback
from ordack.config.settings import LISTEN
from ordack.config.tls import BadTls, Tls
from ordack.server.listener import Listeners, sessions_for_files
from ordack.server.monitor import BadToken, read_token
from ordack.server.notify import Notifier
from ordack.store import Store, StoreError

if TYPE_CHECKING:
    from ordack.broker.manager import Manager
    from ordack.server.monitor import Monitor


class Reload:
    """Takes up what has changed. read: gives what the file and the options say now, raises BadConfigFile. running: what
    is gone by; files: that this process may open besides sessions. notifier: is told
    when it begins and when it is over."""

    def __init__(
        self,
        read: Callable[[], ConfigFile],
        running: Running,
        store: Store,
        manager: Manager,
        listeners: Listeners,
        applications: Listeners,
        tls: Tls | None,
        web: Monitor | None,
        log: Log,
        files: int,
        notifier: Notifier,
    ) -> None:
        self.asked = asyncio.Event()
        self._read = read
        self._running = running
        self._store = store
        self._manager = manager
        self._listeners = listeners
        self._applications = applications
        self._tls = tls
        self._web = web
        self._log = log
        self._files = files
        self._notifier = notifier
        self._number = itertools.count(1)

    async def run(self) -> None:
        """Do it each time that it is asked for, one after the other."""
        while True:
            await self.asked.wait()
            self.asked.clear()
            number = next(self._number)
            self._notifier.reloading()
            try:
                told = self._take_up()
            except Exception as error:  # noqa: BLE001 - the queue manager goes on with what it has
                told = [("".join(traceback.format_exception(error)).rstrip(), ERROR)]
            for text, level in told:
                self._log(Line(text, level, f"reload {number}: {text}"))  # told each time
            self._notifier.ready(f"reload {number}: {told[0][0]}")

    def _take_up(self) -> list[tuple[str, str]]:
        """What there is to tell of it, with levels."""
        before = self._running
        try:
            file = self._read()
            if before.file.path and not file.path:
                raise BadConfigFile([f"{before.file.path} is not there any more: put it back, or start `serve` again"])
            running = before.taking_up(file)
            tls, token = self._new_tls(file), self._new_token(file)
        except (ValueError, StoreError) as error:
            said = error.problems if isinstance(error, BadConfigFile) else [str(error)]
            return [*((problem, ERROR) for problem in said), ("the running settings stay as they were", ERROR)]
        self._running = running
        if self._tls and tls:
            self._tls.become(tls)
        self._applications.admit(running.file.applications)
        self._listeners.admit(running.file.listen or [Listen(*LISTEN)])
        manager, config = self._manager, running.config(self._listeners.places)
        manager.config.become(config)
        manager.links.limits_changed()
        manager.outgoing.find_ways()
        manager.links.max_sessions = sessions_for_files(config.max_sessions, self._files)
        manager.about["quota"] = config.quota
        changed, later = before.differences(file), running.differences(file)
        taken_up = [name for name in changed if name not in later]
        if self._web and self._web.token != token:
            self._web.token = token
            taken_up += ["the token in http-token-file"] if "http-token-file" not in taken_up else []
        told = [
            (
                f"read {file.path or 'the settings'} again; taken up: "
                + (", ".join(taken_up) or "nothing has changed that can be"),
                INFO,
            )
        ]
        if later:
            told.append((f"{', '.join(later)}: what is new there counts from the next start of `serve`", WARNING))
        known = {queue.name.lower() for queue in self._store.queues.all()}
        told += worth_telling(file, known)
        try:
            self._store.keep_names(config.to_keep())
        except StoreError as error:
            told.append((f"applications go by the old names and numbers until the next start: {error}", ERROR))
        return told

    def _new_tls(self, file: ConfigFile) -> Tls | None:
        """What the files of certificates say now, also those of the same names: they are renewed that way. Raises
        ValueError."""
        if bool(file.tls) != bool(self._tls):
            raise ValueError("[tls] comes and goes only at a start of `serve`")
        try:
            return Tls(file.tls) if file.tls else None
        except BadTls as error:
            raise ValueError(f"[tls]: {error}") from None

    def _new_token(self, file: ConfigFile) -> bytes:
        """What must be given over HTTP now. Raises ValueError."""
        try:
            return read_token(file.http_token_file) if self._web else b""
        except BadToken as error:
            raise ValueError(f"http-token-file: {error}") from None


def worth_telling(file: ConfigFile, known: set[str]) -> list[tuple[str, str]]:
    """What there is to tell of a file, with levels: queues that it names and that are not among the known ones, a token
    that others may read on its way, and a certificate of this side that is over, or is soon."""
    told = [
        f"{file.path}: [queues.{name}]: there is no such queue here; is its name right?"
        for name in sorted(file.queues.keys() - known - {EVERY_QUEUE})
    ]
    if file.http and file.http_token_file and not is_loopback(file.http.address):
        told.append(
            f"http = {file.http} is not for this machine alone, and HTTP is not encrypted: whoever is on the way reads "
            "the token of the web page; put a reverse proxy with TLS before it"
        )
    if file.tls:
        from ordack.server.certificates import ending

        told += ending(file.tls.certificate)
    return [(text, WARNING) for text in told]
