"""Serial ports: the accepting end of the line protocol (mqqb.line), as transports of an asyncio event loop.

A board opens connections, one at a time; each is a transport with its own protocol, as with TCP. When the port
disappears, its connection ends. The port is reopened as soon as it is back.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import socket
import termios
import time
import traceback
from collections.abc import Callable
from typing import Any

from mqqb.line import ENDED, OPENED, PAYLOAD_MAX, Line

from ordack.broker import serve_log
from ordack.config.config import SERIAL_PORT, SerialSettings
from ordack.store import StoreError

RETRY_S = 1.0  # between attempts to open a missing port
# Errors of a port that may appear later: an unplugged adapter, a socket without a listener.
ABSENT = (
    *(errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.EIO),
    *(errno.ECONNREFUSED, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, socket.EAI_AGAIN, socket.EAI_NONAME),
)
WINDOW = 16384  # less than the kernel's terminal buffer
BUFFER_BYTES = 1 << 16
FRAMES = 64  # largest frames kept until the board acknowledges them
WRITE_BYTES = 4 * PAYLOAD_MAX
WIRE_BYTES = 4096  # bytes encoded ahead of the port, roughly
HIGH_WATER = 8192  # bytes pending for the line before messages have to wait
LOW_WATER = 2048


def _now() -> int:
    return time.monotonic_ns() // 1_000_000


def open_device(settings: SerialSettings) -> Any:
    """Open a port: a non-blocking pyserial object with a file descriptor. Raises OSError with the reason; its errno is
    in ABSENT if the port may appear later. Raises ModuleNotFoundError without pyserial, which the extra "boards"
    installs."""
    import serial

    try:
        device = serial.serial_for_url(settings.port, settings.baud, timeout=0, do_not_open=True)
        if isinstance(device, serial.Serial):
            device.exclusive = True
        device.open()
        try:
            descriptor = device.fileno()
        except (AttributeError, OSError):
            device.close()
            why = "this kind of port cannot be waited for; use a device, a pseudo-terminal or socket://HOST:PORT"
            raise OSError(errno.ENOTSUP, why) from None
        os.set_blocking(descriptor, False)
        if os.isatty(descriptor):
            attributes = termios.tcgetattr(descriptor)
            attributes[6][termios.VMIN] = 1  # so that an empty read does not look like the end of the file
            termios.tcsetattr(descriptor, termios.TCSANOW, attributes)
    except (ValueError, termios.error) as error:
        raise OSError(errno.EINVAL, str(error)) from None
    except serial.SerialException as error:
        number = error.errno or getattr(error.__context__, "errno", None) or 0  # pyserial sets errno for devices only
        raise OSError(number, os.strerror(number) if number > 0 else str(error)) from None
    return device


class _Transport(asyncio.Transport):
    """One connection over a port."""

    def __init__(self, port: SerialPort) -> None:
        super().__init__({"peername": (port.settings.name, SERIAL_PORT)})
        self.protocol: asyncio.Protocol = port.factory()
        self.waiting = bytearray()
        self.closing = False
        self._port = port
        self._paused = False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if not self.closing:
            self.waiting += data
            self._port.pump()
            if not self._paused and len(self.waiting) > HIGH_WATER:
                self._paused = True
                self.protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return len(self.waiting)

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        """End the connection after the pending bytes are written."""
        self.closing = True
        self._port.pump()

    def abort(self) -> None:
        """End the connection now."""
        self.closing = True
        self._port.end(self)

    def drained(self) -> None:
        """Resume writing if there is room again."""
        if self._paused and not self.closing and len(self.waiting) <= LOW_WATER:
            self._paused = False
            self.protocol.resume_writing()


class SerialPort:
    """A serial port, from now until `close`. device: the open device; None: the port is absent.

    factory: makes the protocol of a connection. log: called with a line for an operator. Call `tick` every few tens of
    milliseconds. Create the object inside the event loop.
    """

    def __init__(
        self, settings: SerialSettings, device: Any, factory: Callable[[], asyncio.Protocol], log: Callable[[str], None]
    ) -> None:
        self.settings = settings
        self.factory = factory
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._line = Line(False, WINDOW, secrets.randbelow(256), BUFFER_BYTES, FRAMES)
        self._room = bytearray(PAYLOAD_MAX)
        self._wire = bytearray()
        self._device: Any = None
        self._fd = -1
        self._writing = False
        self._transport: _Transport | None = None
        self._opening: asyncio.Future[Any] | None = None
        self._retry_at = self._loop.time() + RETRY_S
        self._refusal = ""  # the last logged
        self._connections = 0
        self._faults = 0
        self._last_end = ""
        if device is not None:
            self._use(device)

    def report(self) -> dict[str, Any]:
        """The state of the port, ready for JSON. faults: connections that bad input or silence ended. resent, damaged:
        frames resent by this end and damaged frames received, since `serve` began."""
        state = "Disconnected" if self._device is None else "Connected" if self._transport else "Waiting"
        return {
            "host": self.settings.name,
            "port": SERIAL_PORT,
            "serial": self.settings.port,
            "baud": self.settings.baud,
            "state": state,
            "connections": self._connections,
            "faults": self._faults,
            "resent": self._line.resent,
            "damaged": self._line.damaged,
            "last_end": self._last_end,
            "next_hops": [],
            "history": [],
        }

    def tick(self) -> None:
        """Run the work that is due."""
        self._guarded(self._tick)

    def _tick(self) -> None:
        if self._device is None:
            self._reopen()
            return
        self._read()
        if self._device is not None:
            if self._line.check(_now()):
                self._faults += 1
                self._last_end = self._line.reason
                self._ended()
            self.pump()

    def close(self) -> None:
        """Release the port."""
        if self._opening:
            self._opening.cancel()
        if self._device is not None:
            self._line.close()
            self.pump()
            self._release()
        self._ended()

    def pump(self) -> None:
        """Write the pending bytes, as many as the port takes."""
        line, now = self._line, _now()
        while self._device is not None:
            transport = self._transport
            while len(self._wire) < WIRE_BYTES:
                data = line.output(now)
                if data is not None:
                    self._wire += data
                    line.written(len(data))
                    continue
                taken = line.write(bytes(transport.waiting[:WRITE_BYTES]), now) if transport else 0
                if not transport or not taken:
                    break
                del transport.waiting[:taken]
            if transport and transport.closing and not transport.waiting:
                self.end(transport)
            elif transport:
                transport.drained()
            if not self._wire:
                break
            try:
                del self._wire[: os.write(self._fd, self._wire)]
            except BlockingIOError:
                break
            except OSError as error:
                self._lost(error.strerror or str(error))
                return
        if self._device is not None and self._writing != bool(self._wire):
            self._writing = bool(self._wire)
            if self._writing:
                self._loop.add_writer(self._fd, self._guarded, self.pump)
            else:
                self._loop.remove_writer(self._fd)

    def end(self, transport: _Transport) -> None:
        """End this connection, if it is still open."""
        if transport is self._transport:
            self._line.close()
            self._ended()
            self._loop.call_soon(self.pump)

    # ---- inside

    def _guarded(self, act: Callable[[], None]) -> None:
        """Run `act`. An error other than StoreError closes this port, which is then reopened."""
        try:
            act()
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - a defect must not end other connections
            text = "".join(traceback.format_exception(error)).rstrip()
            self._log(serve_log.LogLine(text, serve_log.ERROR, peer=self.settings.name))
            if self._device is not None:
                self._lost(f"a defect, {error!r}")

    def _tell(self, text: str, level: str = serve_log.WARNING) -> None:
        name = self.settings.name
        self._log(serve_log.LogLine(f"{name}: {text}", level, serve_log.NEWS, peer=name))

    def _use(self, device: Any) -> None:
        self._refusal = ""
        self._device = device
        self._fd = device.fileno()
        self._wire.clear()
        self._loop.add_reader(self._fd, self._guarded, self._read)

    def _reopen(self) -> None:
        """Try to open the missing port, in a thread because some ports open slowly."""
        if self._opening is None and self._loop.time() >= self._retry_at:
            self._opening = self._loop.run_in_executor(None, open_device, self.settings)
            self._opening.add_done_callback(self._reopened)

    def _reopened(self, opening: asyncio.Future[Any]) -> None:
        self._opening = None
        if opening.cancelled():
            return
        if error := opening.exception():
            self._retry_at = self._loop.time() + RETRY_S
            if getattr(error, "errno", 0) not in ABSENT and str(error) != self._refusal:
                self._refusal = str(error)
                self._tell(f"cannot open serial port {self.settings.port}: {error}; trying again")
            return
        self._tell(f"serial port {self.settings.port} is there", serve_log.INFO)
        self._use(opening.result())

    def _read(self) -> None:
        """Read the port, and handle its payload and events."""
        line = self._line
        try:
            count = os.readv(self._fd, [line.room()])
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(error.strerror or str(error))
            return
        if not count:
            self._lost("end of file")
            return
        line.received(count)
        payload = bytearray()
        while event := line.read(self._room, _now()):
            if event > 0:
                payload += self._room[:event]
                continue
            self._deliver(payload)
            payload = bytearray()
            if event == OPENED:
                self._began()
            elif event == ENDED:
                self._faults += line.reason not in ("closed by the other end", "opened again")
                self._last_end = line.reason
                self._ended()
        self._deliver(payload)
        self.pump()

    def _deliver(self, payload: bytearray) -> None:
        if payload and self._transport:
            self._transport.protocol.data_received(bytes(payload))

    def _began(self) -> None:
        self._connections += 1
        self._transport = transport = _Transport(self)
        transport.protocol.connection_made(transport)

    def _ended(self) -> None:
        transport, self._transport = self._transport, None
        if transport:
            transport.closing = True
            transport.waiting.clear()
            transport.protocol.connection_lost(None)

    def _release(self) -> None:
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._writing = False
        self._device.close()
        self._device = None

    def _lost(self, reason: str) -> None:
        self._last_end = f"the port is gone, {reason}"
        self._tell(f"serial port {self.settings.port} is gone, {reason}; trying again")
        self._release()
        self._line.close()
        self._retry_at = self._loop.time() + RETRY_S
        self._ended()
