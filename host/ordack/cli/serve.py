"""The command `ordack serve`."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ordack.broker.serve_log import ERROR, INFO, WARNING, Form, LogLine, ServeLog
from ordack.cli.common import JsonOption, StoreOption, local, log_line, needs, report
from ordack.cli.config import ConfigOption, read_file
from ordack.cli.output import OutputError
from ordack.store import Store, StoreError, StoreFull, StoreUnknown, refuse_served

if TYPE_CHECKING:
    from ordack.broker.manager import Manager
    from ordack.config.config import SerialSettings
    from ordack.config.config_file import ConfigFile, Listen
    from ordack.config.tls import Tls
    from ordack.server.listener import Listener, Listeners
    from ordack.server.monitor import Monitor
    from ordack.server.record import Recorder


ListenOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Listen on this address. Port 0 picks a free port. Repeatable. Default: 127.0.0.1:1801, for this machine "
        "only. 0.0.0.0:1801 serves the network.",
    ),
]
NextHopOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ADDRESS=HOST:PORT",
        help="Connect to HOST:PORT for destinations at ADDRESS: a host, or the GUID of a queue manager. "
        "tls://HOST:PORT uses TLS. Repeatable. Default: port 1801 of ADDRESS.",
    ),
]
SerialOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[NAME=]PORT[@BAUD]",
        help="Serial port of a board: a path or pyserial URL. NAME is the board's host name in direct names. "
        "Repeatable. Default: last part of the path, 115200 baud.",
    ),
]
CaptureOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", parser=local, help="Record all traffic in this pcapng file and numbered files beside it."
    ),
]
HttpOption = Annotated[
    str | None,
    typer.Option(
        metavar="[HOST:]PORT",
        help="Serve the web page, /metrics for Prometheus, /healthz and /status over HTTP. Default host: this machine "
        "only.",
    ),
]


def serve(
    store: StoreOption,
    config: ConfigOption = None,
    listen: ListenOption = None,
    next_hop: NextHopOption = None,
    serial: SerialOption = None,
    capture: CaptureOption = None,
    http: HttpOption = None,
    create: Annotated[bool, typer.Option("--create", help="Create the store if there is none.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run the queue manager until SIGTERM or SIGINT.

    Options override the configuration file.
    """
    import signal

    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the terminal may close

    try:
        file = _with_options(read_file(store, config), listen or [], next_hop or [], serial or [], capture, http)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if file.serial:
        with needs("boards", "a serial port"):
            from serial import Serial  # noqa: F401 - fails before anything is opened
    log = ServeLog(log_line, form=Form(file.log_format or Form.TEXT))
    try:
        _open_and_run(store, create, file, log, as_json)
    except (StoreError, OutputError) as error:  # the last line of the log
        log(LogLine(str(error), ERROR))
        raise typer.Exit(6 if isinstance(error, StoreUnknown) else 1) from None
    finally:
        log.close()


class _Serving(NamedTuple):
    """All resources that `serve` has opened. file: the settings, overridden by the options. web: the socket of the HTTP
    port, or None. devices: serial lines with their ports; None for an absent port."""

    store: Store
    file: ConfigFile
    listeners: Listeners
    applications: Listeners
    web: Listener | None
    token: bytes
    tls: Tls | None
    devices: list[tuple[SerialSettings, Any]]
    recorder: Recorder | None
    log: ServeLog


def _open_and_run(store: Path, create: bool, file: ConfigFile, log: ServeLog, as_json: bool) -> None:
    import asyncio

    from ordack.server.record import Recorder
    from ordack.store.disk import IN_MEMORY, file_system

    refuse_served(store)  # the running `serve` may use the same ports
    with contextlib.ExitStack() as stack:
        listeners = stack.enter_context(_open_listeners(file.listen, log))  # fails before a store is made
        applications = stack.enter_context(_all_open(file.applications))
        web = next(iter(stack.enter_context(_all_open([file.http] if file.http else []))), None)
        token = _token(file.http_token_file) if web else b""
        devices = [(line, _open_serial(line, log)) for line in file.serial]
        tls = _tls(file, log)
        opened = stack.enter_context(_open_when_there_is_room(store, create, log))
        if file_system(opened.folder) in IN_MEMORY:
            log(LogLine(f"{store} is in memory, not on a disk: a power cut loses what was acknowledged", WARNING))
        with _or_store_error(f"cannot write the capture {file.capture}"):
            recorder = Recorder(file.capture, file.capture_size, log) if file.capture else None
        serving = _Serving(opened, file, listeners, applications, web, token, tls, devices, recorder, log)
        asyncio.run(_serve(serving, as_json))


def _ready(serving: _Serving, own_token: bytes, as_json: bool) -> None:
    """Report the listening addresses. own_token: as Monitor's."""
    for listener in serving.listeners:
        report(as_json, f"listening on {listener}", listening=str(listener))
    for line, device in serving.devices:
        if device is not None:
            text = f"listening on serial {line.name} ({line.port})"
            report(as_json, text, serial=line.name, port=line.port, baud=line.baud)
    for listener in serving.applications:
        report(as_json, f"applications on {listener}", applications=str(listener))
    if web := serving.web:
        report(as_json, f"web page on http://{web}/, metrics on http://{web}/metrics", http=str(web))
    if own_token:
        token = own_token.decode()
        report(as_json, f"token for changes on the web page, until this serve ends: {token}", token=token)


def _with_options(
    file: ConfigFile, listen: list[str], next_hop: list[str], serial: list[str], capture: Path | None, http: str | None
) -> ConfigFile:
    """The file's settings, overridden by the options. Raises ValueError."""
    import dataclasses

    from ordack.config.config import parse_address, parse_local_address, parse_next_hop, parse_serial, tls_places
    from ordack.config.config_file import Listen, with_serial

    try:
        web = file.http if http is None else Listen(*parse_local_address(http))
    except ValueError as error:
        raise ValueError(f"--http: {error}") from None
    lines = tuple(map(parse_serial, serial)) or file.serial
    return dataclasses.replace(
        file,
        listen=tuple(Listen(*parse_address(text)) for text in listen) or file.listen,
        next_hops=with_serial({**file.next_hops, **dict(map(parse_next_hop, next_hop))}, lines),
        tls_hops=file.tls_hops | tls_places(next_hop),
        serial=lines,
        capture=capture or file.capture,
        http=web,
    )


@contextlib.contextmanager
def _or_store_error(what: str) -> Iterator[None]:
    """Turn an OSError into a StoreError, which ends the command."""
    try:
        yield
    except OSError as error:
        used = error.errno == errno.EADDRINUSE
        advice = "; `ss -ltnp` shows by whom: end that program, or choose another port" if used else ""
        raise StoreError(f"{what}: {error.strerror or error}{advice}") from None
    except ValueError as error:
        raise StoreError(f"{what}: {error}") from None


def _open_listeners(places: Sequence[Listen], log: ServeLog) -> Listeners:
    from ordack.config.config_file import Listen
    from ordack.config.settings import LISTEN

    if not places:
        way = f"`--listen 0.0.0.0:{LISTEN[1]}`, or [[listen]] in ordack.toml"
        log(LogLine(f"connections are taken from this machine alone; to take them from the network, say {way}", INFO))
    return _all_open(places or [Listen(*LISTEN)])


def _all_open(places: Sequence[Listen]) -> Listeners:
    from ordack.server.listener import Listener, Listeners

    with contextlib.ExitStack() as opened:
        listeners = []
        for place in places:
            with _or_store_error(f"cannot listen on {place}"):
                listeners.append(opened.enter_context(contextlib.closing(Listener(*place))))
        opened.pop_all()
        return Listeners(listeners)


def _token(file: Path | None) -> bytes:
    from ordack.server.monitor import read_token  # slow to import

    with _or_store_error("http-token-file"):
        return read_token(file)


def _tls(file: ConfigFile, log: ServeLog) -> Tls | None:
    """The certificates of the file, or None."""
    from ordack.config.tls import Tls

    if file.tls_hops and not file.tls:
        raise StoreError("--next-hop with tls:// needs the table [tls] in the configuration file; see `ordack tls`")
    with _or_store_error("[tls]"):
        return Tls(file.tls, lambda text: log(LogLine(text, ERROR))) if file.tls else None


def _open_when_there_is_room(folder: Path, create: bool, log: ServeLog) -> Store:
    """Open and lock the store for this queue manager. Wait while the disk is full or the clock is not set."""
    import time

    from ordack.broker.sending import EARLIEST_S

    while True:
        opened = None
        if time.time() < EARLIEST_S:
            log("the clock of this machine is not set: waiting until it is")
            time.sleep(1)
            continue
        try:
            opened = Store(folder, create)
            if opened.is_new:
                log(LogLine(f"new store made in {folder}", INFO))
            opened.lock_manager()
            return opened
        except StoreError as error:
            if opened:
                opened.close()
            if not isinstance(error, StoreFull):
                raise
            log(f"{error}; waiting for it")
        time.sleep(1)
        log.tick()


def _open_serial(line: SerialSettings, log: ServeLog) -> Any:
    """The open device, or None if it is absent: after a power cut, an unplugged adapter must not delay the other lines.
    Raises StoreError for an unusable port."""
    from ordack.server.serial import ABSENT, open_device

    try:
        return open_device(line)
    except OSError as error:
        why = f"cannot open serial port {line.port}: {error.strerror or error}"
        if error.errno not in ABSENT:
            raise StoreError(why) from None
        log(LogLine(f"{line.name}: {why}; trying again each second", WARNING, peer=line.name))
        return None


def _warnings(file: ConfigFile, store: Store) -> list[str]:
    """Warnings of queues in the file that the store lacks, a token sent over the network, and certificates that expire
    soon."""
    from ordack.config.config import EVERY_QUEUE
    from ordack.config.config_file import is_loopback

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
        from ordack.server.certificates import warnings

        told += warnings(file.tls.certificate, file.tls.authority)
    return told


async def _serve(serving: _Serving, as_json: bool) -> None:
    import asyncio
    import gc
    import signal

    from ordack.broker.manager import Manager
    from ordack.server import health, notify, tcp
    from ordack.server.connection import now, wall

    store, log, listeners = serving.store, serving.log, serving.listeners
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    notifier = notify.from_environment(os.environ, log)

    def end() -> None:
        notifier.stopping()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    config = serving.file.config(listeners.places)
    for text in _warnings(serving.file, store):
        log(LogLine(text, WARNING))
    manager = Manager(store, now(), config, log)
    listening = ", ".join(map(str, listeners))
    manager.about = {"since": wall(), "process": os.getpid(), "quota": config.quota, "listening": listening}

    def begun() -> None:
        gc.freeze()  # exempts imported objects from collection; each full collection cost 60 ms without service
        gc.set_threshold(10_000)  # a turn of many boards makes more objects than the usual 700, and frees them
        _ready(serving, monitor.own_token if monitor else b"", as_json)
        notifier.ready(health.sentence(manager))
        pings = notifier.run(lambda: health.restart_helps(manager, loop.time()), lambda: health.sentence(manager))
        tasks.append(asyncio.create_task(pings))

    with contextlib.closing(notifier), _watched(manager, serving) as monitor:
        tasks = [asyncio.create_task(tcp.tick_each_second(log))]
        try:
            await tcp.serve(
                manager,
                listeners,
                stop,
                begun,
                serving.devices,
                serving.recorder,
                monitor.files if monitor else 0,
                tls=serving.tls,
                applications=serving.applications,
            )
        finally:
            for task in tasks:
                task.cancel()


@contextlib.contextmanager
def _watched(manager: Manager, serving: _Serving) -> Iterator[Monitor | None]:
    """Run the HTTP port if there is a socket for it."""
    if serving.web is None:
        yield None
        return
    import asyncio

    from ordack.server.monitor import Monitor

    loop = asyncio.get_running_loop()

    def tell(text: str) -> None:
        loop.call_soon_threadsafe(manager.operator.tell, text, ERROR)

    monitor = Monitor(manager, serving.web.socket, tell, serving.token)
    monitor.start()
    try:
        yield monitor
    finally:
        monitor.close()
