"""The command `ordack serve`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ordack.cli.common import JsonOption, StoreOption, complain, local, log_line, report, tell_if_new
from ordack.store import Store, StoreError, StoreFull

if TYPE_CHECKING:
    from ordack.config import Config, SerialSettings
    from ordack.log import Log
    from ordack.net.record import Recorder


NextHopOption = Annotated[
    list[str] | None,
    typer.Option(
        help="ADDRESS=HOST:PORT: connect there for destinations at ADDRESS, a host or the GUID of a queue manager, "
        "instead of its port 1801."
    ),
]
OwnNameOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Address in direct names that means this queue manager. "
        "Without this option it accepts messages for every "
        "address, and messages to this machine's own addresses stay here."
    ),
]
SerialOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[NAME=]PORT[@BAUD]",
        help="A serial port with a board at its other end: a path or a pyserial URL. "
        "NAME addresses the board in direct names. Default: the last part of the path, 115200 baud.",
    ),
]
CaptureOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", parser=local, help="Record all traffic in this pcap file, then in numbered ones beside it."
    ),
]


def serve(
    store: StoreOption,
    listen: Annotated[
        str, typer.Option(help="HOST:PORT to accept connections on; port 0 picks a free one.")
    ] = "0.0.0.0:1801",
    next_hop: NextHopOption = None,
    own_name: OwnNameOption = None,
    public_queue: Annotated[
        list[str] | None,
        typer.Option(help="GUID=FORMATNAME: where the public queue with this GUID is, in place of a directory."),
    ] = None,
    serial: SerialOption = None,
    quota: Annotated[
        int | None,
        typer.Option(min=0, help="Limit of the store in bytes, for this `serve` alone; the setting Quota is for all."),
    ] = None,
    capture: CaptureOption = None,
    capture_size: Annotated[
        int, typer.Option(min=1 << 20, help="Limit of all captures in bytes. The oldest are removed first.")
    ] = 1 << 30,
    as_json: JsonOption = False,
) -> None:
    """Run the queue manager until SIGTERM or SIGINT. It continues when its terminal closes (SIGHUP)."""
    import signal

    from ordack.net.tcp import listen as open_listener

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    address, hops, public, lines = _addresses(listen, next_hop or [], public_queue or [], serial or [])
    try:
        listener = open_listener(*address)  # before a store is made for nothing
    except OSError as error:
        raise StoreError(f"cannot listen on {listen}: {error.strerror or error}") from None
    devices = [(line, _open_serial(line)) for line in lines]
    settings: dict[str, Any] = {"next_hops": hops, "public_queues": public}
    settings["own_names"] = frozenset(name.lower() for name in own_name or ())
    if quota is not None:
        settings["quota"] = quota
    with listener, _open_when_there_is_room(store) as opened:
        recorder = _recorder(capture, capture_size) if capture else None
        _run(opened, settings, listener, devices, recorder, as_json)


def _addresses(
    listen: str, next_hop: list[str], public_queue: list[str], serial: list[str]
) -> tuple[tuple[str, int], dict[str, tuple[str, int]], dict[str, str], list[SerialSettings]]:
    """What the options name: where to listen, the next hops, the public queues, the serial lines."""
    from ordack.config import SERIAL_PORT, parse_address, parse_next_hop, parse_public_queue, parse_serial

    try:
        address = parse_address(listen)
        hops = dict(parse_next_hop(text) for text in next_hop)
        public = dict(parse_public_queue(text) for text in public_queue)
        lines = [parse_serial(text) for text in serial]
        for line in lines:
            if line.name in hops:
                raise ValueError(f"{line.name}: there are two ways to it; NAME=PORT gives a serial line another name")
            hops[line.name] = line.name, SERIAL_PORT
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return address, hops, public, lines


def _recorder(capture: Path, size: int) -> Recorder:
    from ordack.net.record import Recorder

    try:
        return Recorder(capture, size, complain)
    except OSError as error:
        raise StoreError(f"cannot write the capture {capture}: {error.strerror or error}") from None


def _run(
    store: Store, settings: dict[str, Any], listener: Any, devices: Any, recorder: Recorder | None, as_json: bool
) -> None:
    import asyncio

    from ordack.config import Config, format_address

    host, port = listener.getsockname()[:2]
    text = format_address(host, port)

    def ready() -> None:
        report(as_json, f"listening on {text}", listening=text)
        for line, _ in devices:
            report(
                as_json,
                f"listening on serial {line.name} ({line.port})",
                serial=line.name,
                port=line.port,
                baud=line.baud,
            )

    config = Config.of(store.configuration(), listening=(host, port), **settings)
    asyncio.run(_serve(store, config, listener, ready, devices, recorder))


def _open_when_there_is_room(folder: Path) -> Store:
    """Open the store and lock it for this queue manager. While its disk is full, wait."""
    import time

    told = False
    while True:
        opened = None
        try:
            opened = Store(folder, create=True)
            tell_if_new(opened)
            opened.lock_manager()
            return opened
        except StoreError as error:
            if opened:
                opened.close()
            if not isinstance(error, StoreFull):
                raise
            if not told:
                complain(f"{error}; waiting for it")
            told = True
        time.sleep(1)


def _open_serial(line: SerialSettings) -> Any:
    from ordack.net.serial import open_device

    try:
        return open_device(line)
    except OSError as error:
        raise StoreError(f"cannot open serial port {line.port}: {error.strerror or error}") from None


async def _serve(store: Store, config: Config, listener: Any, ready: Any, serial: Any, recorder: Any) -> None:
    import asyncio
    import signal

    from ordack.config import format_address
    from ordack.log import Log
    from ordack.manager import Manager
    from ordack.net import tcp

    log = Log(log_line)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    manager = Manager(store, tcp.now(), config, log)
    manager.about = {
        "since": tcp.wall(),
        "process": os.getpid(),
        "quota": config.quota,
        "listening": format_address(*listener.getsockname()[:2]),
    }
    counting = asyncio.create_task(_count(log))
    try:
        await tcp.serve(manager, listener, stop, ready, serial, recorder)
    finally:
        counting.cancel()
        log.close()


async def _count(log: Log) -> None:
    import asyncio

    while True:
        await asyncio.sleep(1)
        log.tick()
