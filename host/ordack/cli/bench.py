"""The command `ordack bench`: rate and latency of this machine, in a store of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from mqqb import compose, connection, core, names
from mqqb.session import Session
from mqqb.streams import OutgoingStream

from ordack.cli.common import JsonOption, activity, interrupted_with, print_table, report
from ordack.client import Client
from ordack.config.names import counted
from ordack.store import StoreError
from ordack.store.disk import file_system

QUEUE, BOARDS_QUEUE = "bench", "boards"
TIMEOUT_S = 30


class Board:
    """A simulated board. It sends the next message after the OrderAck of the last one."""

    def __init__(self, body: bytes) -> None:
        self._guid = os.urandom(16)
        self._draft = compose.Draft(self._guid, names.DirectQueueFormatName(f"TCP:127.0.0.1\\private$\\{BOARDS_QUEUE}"))
        self._body = body
        self._stream = OutgoingStream(OutgoingStream.new(int(time.time())))
        self._packet = bytearray()
        self._sent = 0

    async def connect(self, port: int) -> None:
        """Open the session."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port)
        self._session = Session(True, self._guid, _now_ms())
        self._session.connected(_now_ms())
        while self._session.state != connection.OPEN:
            await self._turn()

    async def run(self, end: float) -> list[float]:
        """Send until the time `end`; returns the latency of each message, in seconds."""
        latencies = []
        while (begun := time.perf_counter()) < end:
            self._sent += 1
            self._packet = bytearray(self._draft.size(len(self._body)))
            self._draft.write_into(self._packet, 0, self._sent, self._body, sent_time=int(time.time()))
            self._stream.number(self._packet, self._draft.transaction_at, self._sent, self._sent)
            while self._stream.table:
                if time.perf_counter() > begun + TIMEOUT_S:
                    raise StoreError(f"a message was not acknowledged within {TIMEOUT_S} s: is the disk full?")
                await self._turn()
            latencies.append(time.perf_counter() - begun)
        self._writer.close()
        return latencies

    async def _turn(self) -> None:
        """Send what may be sent, then handle packets or a timeout."""
        session, stream, now = self._session, self._stream, _now_ms()
        session.handle_timeout(now)
        stream.handle_timeout(now)
        if session.closed is not None:
            raise StoreError(f"the session of a simulated board ended: {session.closed}")
        while session.can_send() and (entry := stream.next_to_send()):
            stream.prepare(entry, self._packet, self._draft.transaction_at)
            session.send(entry, bytearray(self._packet), True, now)
            stream.sent(entry, now)
        self._writer.write(session.data_to_send())
        due = min(time for time in (session.next_timeout(), stream.next_timeout()) if time is not None)
        try:
            data = await asyncio.wait_for(self._reader.read(core.PACKET_SIZE_MAX), max(0, due - now) / 1000)
        except TimeoutError:
            return
        events = session.receive_data(data, _now_ms())
        if not data:
            raise StoreError("`ordack serve` closed the connection of a simulated board")
        for event in events:
            if isinstance(event, connection.MessageReceived):
                if isinstance(event.packet, connection.OrderAck):
                    stream.order_ack(event.packet.body, _now_ms())
                session.stored(event.recoverable, _now_ms())


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


@contextlib.contextmanager
def _serving(store: Path) -> Iterator[int]:
    """Run `ordack serve` on the store; yields its port."""
    command = [sys.executable, "-m", "ordack", "serve", "--store", str(store), "--listen", "127.0.0.1:0", "--json"]
    with (
        (store / "log").open("w+") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, cwd=store) as process,
    ):
        try:
            assert process.stdout
            line = process.stdout.readline()
            if not line:
                log.seek(0)
                raise StoreError(f"`ordack serve` ended: {log.read().strip()}")
            yield int(json.loads(line)["listening"].rpartition(":")[2])
        finally:
            process.send_signal(signal.SIGTERM)


def _repeat(work: Callable[[], object], seconds: float) -> list[float]:
    """Do the work again and again; returns the latency of each, in seconds."""
    latencies = []
    end = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < end:
        if work() is None:
            break
        latencies.append(time.perf_counter() - begun)
    return latencies


def _measure(store: Path, boards: int, seconds: float, size: int) -> Iterator[tuple[str, list[float], float]]:
    """Name, latencies and duration of each measurement."""
    body = os.urandom(size)

    def receive() -> object:
        with queue.receive_batch(1) as messages:
            pass
        return messages or None

    async def run() -> tuple[list[float], float]:
        fleet = [Board(body) for _ in range(boards)]
        await asyncio.gather(*(board.connect(port) for board in fleet))
        begun = time.perf_counter()
        found = await asyncio.gather(*(board.run(begun + seconds) for board in fleet))
        return [latency for one in found for latency in one], time.perf_counter() - begun

    with Client(store, create=True) as client:
        client.create_queue(QUEUE)
        client.create_queue(BOARDS_QUEUE)
    (store / "ordack.toml").write_text("[settings]\nMaxInSessions = 2000\nMaxInSessionsPerAddress = 2000\n")
    with _serving(store) as port, Client(store) as client:
        queue = client.queue(QUEUE)
        for name, work in (("send", lambda: queue.send(body)), ("receive", receive)):
            latencies = _repeat(work, seconds)
            yield name, latencies, sum(latencies)
        latencies, duration = asyncio.run(run())
        stored = client.store.queues.named(BOARDS_QUEUE).messages
        if stored != len(latencies):
            raise StoreError(f"boards sent {len(latencies)} messages, and the queue holds {stored}: report this")
        yield f"{boards} boards", latencies, duration


def _figures(name: str, latencies: list[float], seconds: float) -> dict[str, Any]:
    ranked = sorted(latencies) or [0.0]
    p50, p99 = (round(ranked[len(ranked) * share // 100] * 1000, 2) for share in (50, 99))
    rate = round(len(latencies) / seconds) if seconds else 0
    return {"bench": name, "messages": len(latencies), "per_second": rate, "p50_ms": p50, "p99_ms": p99}


def bench(
    boards: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="Number of simulated boards.")] = 20,
    seconds: Annotated[float, typer.Option(min=0.1, max=60, metavar="S", help="Duration of each measurement.")] = 5.0,
    size: Annotated[int, typer.Option(min=0, max=100_000, metavar="BYTES", help="Size of a body.")] = 64,
    as_json: JsonOption = False,
) -> None:
    """Measure send, receive and simulated boards on this machine.

    The command runs `ordack serve` on a temporary store in the current folder, to measure its disk. Each message has
    its own commit. Boards send over TCP and wait for each acknowledgement.
    """
    found = []
    try:
        here = Path.cwd()
        with (
            activity("starting") as show,
            interrupted_with(lambda: "the temporary store is removed"),
            tempfile.TemporaryDirectory(prefix="ordack-bench-", dir=here) as folder,
        ):
            for measured in _measure(Path(folder), boards, seconds, size):
                found.append(_figures(*measured))
                show(f"measured {measured[0]}")
    except OSError as error:
        raise StoreError(
            f"cannot measure in the current folder: {error.strerror or error}; change to another"
        ) from None
    if as_json:
        for figures in found:
            report(True, "", **figures, bytes=size, boards=boards, file_system=file_system(here))
    else:
        report(False, f"bodies of {counted(size, 'byte')}, in {here} ({file_system(here)})")
        rows = [[str(value) for value in figures.values()] for figures in found]
        print_table(("measured",), ("messages", "messages/s", "p50 ms", "p99 ms"), rows)
