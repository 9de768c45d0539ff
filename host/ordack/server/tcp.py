"""The network side of a queue manager: TCP connections both ways, and pings, on the caller's event loop.

    manager = Manager(store, now(), config)
    await serve(manager, Listeners([Listener("127.0.0.1", 1801)]), stop=event)

All bytes that arrive in one turn of the loop, on all connections, form one batch and one commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import ipaddress
import socket
import ssl
import termios
import traceback
from array import array
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from mqqb.connection import OPEN, WAITING_CPR_MSG

from ordack.config.config import CONNECT_TIMEOUT_S, SERIAL_PORT, SerialSettings
from ordack.config.tls import Tls, words
from ordack.server.applications import LOOKING_FILES, ApplicationServer
from ordack.server.connect import TLS_FAILED, Connector, Step
from ordack.server.connection import TcpConnection, now, wall
from ordack.server.listener import HANDSHAKE_TIMEOUT_S, SHUT_TIMEOUT_S, Listener, Listeners, sessions_for_files
from ordack.server.ping import Pings
from ordack.server.record import Recorder
from ordack.server.serial import SerialPort
from ordack.server.sockets import AVAILABLE, Accepting, Sockets
from ordack.store import StoreError

if TYPE_CHECKING:
    from ordack.broker.links import Hop, PeerLink
    from ordack.broker.manager import Manager
    from ordack.broker.serve_log import ServeLog

POLL_INTERVAL_S = 0.05  # for timers
HOPS_REST = 100  # pause between two scans of all outgoing queues, as a multiple of the scan's duration
ORDER_ACKS_APART_MS = 5  # for all streams: each time costs a scan of the streams with a pending OrderAck
MAX_BATCH_BYTES = 16 << 20
FEW = 8  # busy connections, up to which no commit waits
WAIT_OF_ONE_S = 40e-6  # so long does a commit wait for each busy connection,
WAIT_MAX_S = 0.04  # but not longer than this, from the end of the commit before: fewer commits serve a fleet faster


class Net:
    def __init__(
        self,
        manager: Manager,
        listeners: Listeners,
        recorder: Recorder | None,
        tls: Tls | None,
        applications: Listeners | None,
        reads_in_c: bool,
    ) -> None:
        self.manager = manager
        self.tls = tls
        self.listeners = listeners
        self.recorder = recorder
        self.connectors: dict[Hop, Connector] = {}
        self.connections: dict[PeerLink, TcpConnection] = {}
        self.serial: dict[Hop, SerialPort] = {}
        self.application_server = ApplicationServer(manager, self._wake_now, applications or Listeners([]), tls)
        manager.answered = self.application_server.flush
        self._loop = asyncio.get_running_loop()
        self.sockets: Sockets | None = None  # of plain connections that peers open
        if AVAILABLE and recorder is None and reads_in_c:
            fast = manager.fast
            self.sockets = Sockets(manager.config.max_unwritten, fast.fast if fast.is_on else None, self._readable)
            fast.send = self.sockets.acknowledge
            self.sockets.watch(True)
        self._due: asyncio.Handle | None = None  # runs `handle`
        self._waits = False  # `_due` waits for more input
        self._is_handling = False
        self.handled_at = 0.0  # end of the last `handle`, by the loop's clock
        self._busy_second = self._busy = self._busy_before = 0
        self._arrivals: list[tuple[PeerLink, bytes]] = []
        self._bytes = 0
        self._wanted: set[Hop] = set()
        self._under_way: set[Hop] = set()  # hops with a step that may be due soon
        self._hops_due = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._pings = Pings(
            manager.store.guid, manager.config.ping_port, self._refuses, manager.operator.tell, self._ponged
        )
        self._order_acks: asyncio.TimerHandle | None = None  # sends OrderAcks when they are due
        manager.links.counters.turned = self._loop.time()

    def arrived(self, link: PeerLink, data: bytes) -> None:
        self._arrivals.append((link, data))
        self._bytes += len(data)
        if self._bytes >= MAX_BATCH_BYTES and not self._is_handling:
            self.handle()
        else:
            self._wake()

    def count_busy(self, second: int) -> None:
        """Count a connection of asyncio that was heard for the first time in this second."""
        if second != self._busy_second:
            self._busy_before = self._busy if second == self._busy_second + 1 else 0
            self._busy_second, self._busy = second, 0
        self._busy += 1

    def _wait(self) -> float:
        """How long the input should wait for more, so that one commit serves many connections, in seconds."""
        busy = max(self._busy, self._busy_before) + (self.sockets.busy if self.sockets else 0)
        if busy <= FEW:
            return 0.0
        return self.handled_at + min(busy * WAIT_OF_ONE_S, WAIT_MAX_S) - self._loop.time()

    def _wake(self) -> None:
        """Handle the input of a lone connection now. Otherwise handle it after this turn of the loop has read all
        connections, or later with more input."""
        if len(self.connections) == 1 and not self._is_handling:
            self.handle()
        elif self._due is None and not self._is_handling:
            wait = self._wait()
            self._waits = wait > 0
            self._due = self._loop.call_later(wait, self.handle) if wait > 0 else self._loop.call_soon(self.handle)

    def _wake_now(self) -> None:
        """Handle the input in this turn of the loop, that of a lone application now: an application waits."""
        if len(self.application_server.connections) == 1 and not self._is_handling:
            self.handle()
            return
        if self._due is not None and self._waits:
            self._due.cancel()
            self._due = None
        if self._due is None:
            self._waits = False
            self._due = self._loop.call_soon(self.handle)

    def _readable(self) -> None:
        """A socket of `sockets` has input."""
        assert self.sockets
        if self._due is not None or self._wait() > 0:
            self.sockets.watch(False)
            self._wake()
        else:
            self.handle()

    def handle(self) -> None:
        """Handle all input, and watch for more."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        self._is_handling = True
        try:
            came = self.sockets is not None and self.sockets.turn(wall())
            self._handle()
        finally:
            self._is_handling = False
            self.handled_at = self._loop.time()
        if came and self._wait() > 0:
            self._wake()
        elif self.sockets and self._due is None:
            self.sockets.watch(True)

    def _handle(self) -> None:
        questions = self.application_server.questions()
        if self._arrivals or questions or self.manager.applications.has_work or self.manager.fast.pending:
            arrivals, self._arrivals, self._bytes = self._arrivals, [], 0
            try:
                self.manager.receive(arrivals, now(), wall(), questions, lazily=True)
                for link in {link for link, _ in arrivals if link.hop}:
                    if link.hop in self.connectors:
                        self._observe(link, self.connectors[link.hop])
            except StoreError:
                raise
            except Exception as error:  # noqa: BLE001 - the error hides which input was handled
                for link in {link for link, _ in arrivals}:
                    self.manager.links.defect(link, error)
                self.application_server.fail(questions, error)
            self.flush()
            self._expect_order_acks()
            for hop in self.manager.outgoing.take_unreached():  # without waiting for the next poll
                self._wanted.add(hop)
                self._advance(hop)

    def _expect_order_acks(self) -> None:
        """Send OrderAcks when they are due, without waiting for the next poll."""
        due = self.manager.incoming.order_acks_due
        if due is not None and not self._order_acks:
            self._order_acks = self._loop.call_later(max(due - now(), ORDER_ACKS_APART_MS) / 1000, self._acknowledge)

    def _acknowledge(self) -> None:
        self._order_acks = None
        self.manager.acknowledge(now(), wall())
        self.flush()
        self._expect_order_acks()

    def flush(self) -> None:
        output = self.manager.output()
        if self.recorder:
            _record(self.recorder, self.connections, output)
        for link, data, shut in output:
            connection = self.connections.get(link)
            if connection is None:
                continue
            if data:
                connection.transport.write(data)
            if connection.transport.get_write_buffer_size() > self.manager.config.max_unwritten:
                connection.ended_here = True
                connection.transport.abort()  # B-435
            elif shut and not connection.transport.is_closing():
                if link.hop in self.connectors:
                    self.connectors[link.hop].closing()
                connection.ended_here = True
                connection.transport.close()
                self._loop.call_later(SHUT_TIMEOUT_S, connection.transport.abort)
        self.application_server.flush()  # last: a message for a peer has the longer way

    def lost(self, link: PeerLink, why: str = "") -> None:
        """The link's transport has ended. why: the reason that TLS gave."""
        self.handle()
        self.connections.pop(link, None)
        self.manager.lost(link)
        self.flush()
        if link.hop in self.connectors:
            closed = link.session.closed
            assert closed
            connector = self.connectors[link.hop]
            connector.closing()
            wanted = link.hop in self.manager.wanted_hops()
            connector.closed(TLS_FAILED if why else closed.rule, why or closed.reason, now(), wall(), wanted)
            self._under_way.add(link.hop)

    def _observe(self, link: PeerLink, connector: Connector) -> None:
        """Report the session's progress to the connector."""
        if link.was_open or link.session.state == OPEN:
            connector.opened(now(), wall())
        elif link.session.state == WAITING_CPR_MSG:
            connector.answered(wall())

    def _update_transfers(self) -> None:
        """Report to each link with unsent bytes how many bytes are still on this machine."""
        leaving = self.manager.links.leaving
        for link in list(leaving):
            connection = self.connections.get(link)
            if connection:
                link.pace.holds(_held(connection.transport))
            if not connection or not link.pace.is_under_way:
                del leaving[link]

    async def poll(self) -> None:
        """Run the work that is due, for ever. Raises StoreError."""
        while True:
            began = self.manager.links.counters.turned = self._loop.time()
            for step in (self._update_transfers, self._poll_manager, self._poll_ports, self._poll_connectors):
                try:
                    step()
                except StoreError:
                    raise
                except Exception as error:  # noqa: BLE001 - a defect must not stop the other steps, and may not recur
                    self.defect("what is done every 50 ms", error)
            took = self._loop.time() - began
            await asyncio.sleep(min(POLL_INTERVAL_S, took) if self.manager.is_behind else POLL_INTERVAL_S)

    def _poll_manager(self) -> None:
        self.manager.poll(now(), wall())
        self.flush()

    def _poll_ports(self) -> None:
        for port in self.serial.values():
            port.tick()

    def _poll_connectors(self) -> None:
        if (began := self._loop.time()) >= self._hops_due:
            self._wanted = self.manager.wanted_hops()
            self._hops_due = began + HOPS_REST * (self._loop.time() - began)
            for hop in list(self._wanted):
                self._advance(hop)
        for hop in self._under_way - self._wanted:
            self._advance(hop)

    def defect(self, of: str, error: Exception) -> None:
        """Tell the operator of a defect that belongs to no link."""
        self.manager.operator.tell_seldom(
            of, wall(), f"{of}: a defect, {''.join(traceback.format_exception(error)).rstrip()}"
        )

    def report(self) -> dict[Hop, dict[str, Any]]:
        """The state of the connections to hops, for `status`."""
        return {hop: connector.report() for hop, connector in self.connectors.items()} | {
            hop: port.report() for hop, port in self.serial.items()
        }

    def open_serial(self, settings: SerialSettings, device: object) -> None:
        """Accept connections over an open serial port."""
        hop = settings.name, SERIAL_PORT
        self.serial[hop] = SerialPort(settings, device, lambda: TcpConnection(self, hop), self.manager.operator.tell)

    # ---- opening sessions

    def _advance(self, hop: Hop) -> None:
        """Take the next step towards a session with this hop, if one is due."""
        if hop not in self.connectors:
            self.connectors[hop] = Connector(*hop, self.manager.config, self.manager.operator.tell)
        connector = self.connectors[hop]
        step = connector.next_step(now(), wall(), hop in self._wanted, not self._pings.waiting)
        if connector.rests:
            self._under_way.discard(hop)
        else:
            self._under_way.add(hop)
        if step is Step.PING:
            self._pings.ask(hop, connector.address)
        elif step:
            do = self._resolve if step is Step.RESOLVE else self._connect
            self._run(do(hop, connector), f"a connection to {connector.address}")

    def _refuses(self, address: str) -> bool | None:
        if any(listener.admits(address) for listener in self.listeners):
            return self.manager.links.would_refuse(address)
        return None

    def _ponged(self, hop: Hop, refused: bool | None) -> None:
        """The ping to this hop's address was answered; None: no answer."""
        self.connectors[hop].ponged(refused, now(), wall())
        self._advance(hop)

    def _run(self, doing: Coroutine[Any, Any, None], what: str) -> None:
        """Run a task, which `close` cancels."""
        task = self._loop.create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._done, what))

    def _done(self, what: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self.defect(what, error)

    async def _resolve(self, hop: Hop, connector: Connector) -> None:
        host, port = hop
        self.manager.outgoing.refresh_hop(hop)
        self._wanted = self.manager.wanted_hops()
        try:
            addresses = [str(ipaddress.ip_address(host))]  # skips the look-up threads, which slow names may occupy
        except ValueError:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except Exception as error:  # noqa: BLE001 - any error means that the name has no address
                connector.unresolved(str(error) or "no answer", now(), wall())
                return
            addresses = [str(info[4][0]) for info in found]
        connector.resolved(addresses, now(), wall())
        self._advance(hop)

    async def _connect(self, hop: Hop, connector: Connector) -> None:
        towards = self._tls_towards(hop)
        connector.tls = bool(towards)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._loop.create_connection(
                    lambda: TcpConnection(self, hop), connector.address, hop[1], **towards
                )
        except Exception as error:  # noqa: BLE001 - any error means that there is no connection
            is_tls = isinstance(error, ssl.SSLError) or (isinstance(error, ConnectionError) and error.errno is None)
            connector.unreachable(ConnectionError(words(error)) if is_tls else error, now(), wall())

    def _tls_towards(self, hop: Hop) -> dict[str, Any]:
        """Arguments of create_connection for a hop with TLS; {} for a hop without."""
        own = any(listener.tls and listener.is_at(hop) for listener in self.listeners)
        if not own and hop not in self.manager.config.tls_hops:
            return {}
        assert self.tls
        tls = self.tls.renewed()
        return {
            "ssl": tls.own if own else tls.client,
            "server_hostname": hop[0],
            "ssl_handshake_timeout": HANDSHAKE_TIMEOUT_S,
            "ssl_shutdown_timeout": SHUT_TIMEOUT_S,
        }

    # ---- connections that come

    def protocol(self, listener: Listener) -> asyncio.Protocol:
        return TcpConnection(self, None, listener)

    def listen(self, listener: Listener) -> Accepting | None:
        if self.sockets is None or listener.tls:
            return None
        return self.sockets.listen(listener.socket, functools.partial(self.protocol, listener))

    def expect(self, address: str, _listener: Listener) -> bool:
        return self.manager.links.expect(address, now())

    def expected(self, address: str) -> None:
        self.manager.links.expected(address)

    def shut_out(self, address: str, why: str, kind: str) -> None:
        self.manager.links.not_admitted(address, now(), why, kind)

    async def open(self, serial: Iterable[tuple[SerialSettings, object]]) -> None:
        """Start answering pings, and accepting serial lines and applications."""
        if self.manager.config.answer_pings:
            for address in dict.fromkeys(host for host, _ in self.listeners.places):
                self._pings.answer_at(address)
        for settings, device in serial:
            self.open_serial(settings, device)
        await self.application_server.open()

    async def close(self) -> None:
        """End every session and wait until the transports are shut."""
        self._pings.close()
        if self._order_acks:
            self._order_acks.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.handle()
        self.manager.close()
        self.flush()
        await self.application_server.close()
        if self.sockets:
            self.sockets.watch(True)
        deadline = self._loop.time() + SHUT_TIMEOUT_S
        while self.connections and self._loop.time() < deadline:
            await asyncio.sleep(0.01)
        for port in self.serial.values():
            port.close()
        if self._due is not None:
            self._due.cancel()
        if self.sockets:
            self.sockets.close()


def _record(
    recorder: Recorder, connections: dict[PeerLink, TcpConnection], output: list[tuple[PeerLink, bytes, bool]]
) -> None:
    """Record the output, and flush all earlier records, so that no capture holds less than the peers received."""
    for link, data, _ in output:
        connection = connections.get(link)
        if data and connection and connection.recorded:
            connection.recorded.sent(data)
    recorder.flush()


def _held(transport: asyncio.Transport) -> int:
    """Bytes written that have not left this machine, or that the peer's machine has not acknowledged."""
    count = transport.get_write_buffer_size()
    connected = transport.get_extra_info("socket")
    if connected is not None:
        in_kernel = array("i", (0,))
        with contextlib.suppress(OSError, ValueError):  # closed meanwhile
            fcntl.ioctl(connected.fileno(), termios.TIOCOUTQ, in_kernel)
        count += in_kernel[0]
    return count


async def tick_each_second(log: ServeLog) -> None:
    """Let the log report repeated lines."""
    while True:
        await asyncio.sleep(1)
        log.tick()


async def serve(
    manager: Manager,
    listeners: Listeners,
    stop: asyncio.Event,
    ready: Callable[[], None] = lambda: None,
    serial: Iterable[tuple[SerialSettings, object]] = (),
    recorder: Recorder | None = None,
    other_files: int = 0,
    tls: Tls | None = None,
    applications: Listeners | None = None,
    reads_in_c: bool = True,
) -> None:
    """Run the queue manager on these listeners until `stop` is set, then end its sessions.

    serial: lines and their open devices; the manager's Config has their names as next hops. recorder: records all
    connections. other_files: files reserved for other uses. tls: needed if a listener or the Config's tls_hops use TLS.
    applications: listeners for applications on other machines. reads_in_c: False leaves all connections to asyncio.
    ready: called when peers may connect. The listeners' addresses answer pings if the Config says so. Raises StoreError
    when the store becomes unreadable; other errors end at most one connection and are logged.
    """
    loop = asyncio.get_running_loop()
    failed: asyncio.Future[object] = loop.create_future()

    def fail(_loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        if isinstance(error, OSError):  # no free file, or a connection that broke early: accepting resumes in a second
            manager.operator.tell_seldom("a connection", wall(), f"a connection failed: {error}")
        elif not isinstance(error, StoreError):
            net.defect("serve", error if isinstance(error, Exception) else RuntimeError(str(context["message"])))
        elif not failed.done():
            failed.set_exception(error)

    net = Net(manager, listeners, recorder, tls, applications, reads_in_c)
    of_applications = net.application_server.most + (
        net.application_server.most + LOOKING_FILES if applications and applications.places else 0
    )
    manager.links.max_sessions = sessions_for_files(manager.config.max_sessions, other_files + of_applications)
    manager.connections = net.report
    previous = loop.get_exception_handler()
    loop.set_exception_handler(fail)
    await listeners.start(net, tls)
    poll: asyncio.Task[object] = loop.create_task(net.poll())
    stopped: asyncio.Task[object] = loop.create_task(stop.wait())
    waits: set[asyncio.Future[object]] = {failed, poll, stopped}
    try:
        await net.open(serial)
        ready()
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for future in done:
            future.result()
    finally:
        listeners.close()
        poll.cancel()
        stopped.cancel()
        await asyncio.gather(poll, stopped, return_exceptions=True)
        await net.close()
        if recorder:
            recorder.close()
        failed.cancel()
        loop.set_exception_handler(previous)
