"""SIGHUP: a running `ordack serve` reads its configuration file again, and goes by it from then on, all or nothing."""

from __future__ import annotations

import asyncio
import itertools
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ordack.broker.serve_log import ERROR, INFO, WARNING, LogLine
from ordack.config.config import EVERY_QUEUE
from ordack.config.config_file import BadConfigFile, ConfigFile, Listen, is_loopback
from ordack.config.settings import LISTEN
from ordack.config.tls import BadTls, Tls
from ordack.server.listener import sessions_for_files
from ordack.server.monitor import BadToken, read_token
from ordack.store import Store, StoreError

if TYPE_CHECKING:
    from ordack.broker.manager import Manager
    from ordack.broker.serve_log import ServeLog
    from ordack.config.config import SerialSettings
    from ordack.config.config_file import Running
    from ordack.server.listener import Listener, Listeners
    from ordack.server.monitor import Monitor
    from ordack.server.notify import Notifier
    from ordack.server.record import Recorder


@dataclass
class Serving:
    """What `serve` has open. read: gives the file, with what the options say, as it is at a later time. running: what
    is gone by. web: where HTTP is answered, if that is wanted; token: for that. devices: serial lines with their ports,
    None for one that is not there."""

    store: Store
    running: Running
    read: Callable[[], ConfigFile]
    listeners: Listeners
    applications: Listeners
    web: Listener | None
    token: bytes
    tls: Tls | None
    devices: list[tuple[SerialSettings, Any]]
    recorder: Recorder | None
    log: ServeLog


class _RefusedError(Exception):
    """Nothing is taken up; the arguments say why, a sentence each."""


class Reload:
    """Takes up what has changed. notifier: is told when it begins and when it is over."""

    def __init__(self, serving: Serving, manager: Manager, web: Monitor | None, notifier: Notifier) -> None:
        self.asked = asyncio.Event()
        self._serving = serving
        self._manager = manager
        self._web = web
        self._notifier = notifier

    async def run(self) -> None:
        """Do it each time that it is asked for, one after the other."""
        for number in itertools.count(1):
            await self.asked.wait()
            self.asked.clear()
            self._notifier.reloading()
            try:
                told = self._take_up(*self._checked())
            except _RefusedError as error:
                told = [LogLine(text, ERROR) for text in (*error.args, "the running settings stay as they were")]
            except Exception as error:  # noqa: BLE001 - the queue manager goes on with what it has
                told = [LogLine("".join(traceback.format_exception(error)).rstrip(), ERROR)]
            for line in told:
                self._serving.log(LogLine(line, line.level, f"reload {number}: {line}"))  # told each time
            self._notifier.ready(f"reload {number}: {told[0]}")

    def _checked(self) -> tuple[ConfigFile, Running, Tls | None, bytes]:
        """What the file says now, what is gone by then, certificates and token. Raises _RefusedError."""
        before = self._serving.running
        try:
            file = self._serving.read()
            if before.file.path and not file.path:
                raise BadConfigFile([f"{before.file.path} is not there any more: put it back, or start `serve` again"])
            return file, before.taking_up(file), self._new_tls(file), self._new_token(file)
        except BadConfigFile as error:
            raise _RefusedError(*error.problems) from None
        except (ValueError, StoreError) as error:
            raise _RefusedError(str(error)) from None

    def _take_up(self, file: ConfigFile, running: Running, tls: Tls | None, token: bytes) -> list[LogLine]:
        """Go by it; what there is to tell of that."""
        serving, manager, before = self._serving, self._manager, self._serving.running
        serving.running = running
        if serving.tls and tls:
            serving.tls.become(tls)
        serving.applications.admit(running.file.applications)
        serving.listeners.admit(running.file.listen or [Listen(*LISTEN)])
        config = running.config(serving.listeners.places)
        manager.config.become(config)
        manager.links.limits_changed()
        manager.outgoing.find_ways()
        manager.links.max_sessions = sessions_for_files(config.max_sessions, self._web.files if self._web else 0)
        manager.about["quota"] = config.quota
        later = running.differences(file)
        taken_up = [name for name in before.differences(file) if name not in later]
        if self._web and self._web.token != token:
            self._web.token = token
            taken_up += ["the token in http-token-file"] if "http-token-file" not in taken_up else []
        taken = ", ".join(taken_up) or "nothing has changed that can be"
        told = [LogLine(f"read {file.path or 'the settings'} again; taken up: {taken}", INFO)]
        if later:
            told.append(
                LogLine(f"{', '.join(later)}: what is new there counts from the next start of `serve`", WARNING)
            )
        told += worth_telling(file, serving.store)
        try:
            serving.store.keep_names(config.to_keep())
        except StoreError as error:
            told.append(LogLine(f"applications go by the old names and numbers until the next start: {error}", ERROR))
        return told

    def _new_tls(self, file: ConfigFile) -> Tls | None:
        """What the files of certificates say now, also those of the same names: they are renewed that way. Raises
        ValueError."""
        if bool(file.tls) != bool(self._serving.tls):
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


def worth_telling(file: ConfigFile, store: Store) -> list[LogLine]:
    """What there is to tell of a file: queues that it names and that are not there, a token that others may read on its
    way, and a certificate of this side that is over, or is soon."""
    known = {queue.name.lower() for queue in store.queues.all()}
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
    return [LogLine(text, WARNING) for text in told]
