"""A UART as a link: the line protocol of mqqb.line over any object with readinto and write.

    link = UartLink(UART(1, 115200, rxbuf=1024), rxbuf=1024)

The other end is `ordack serve --serial PORT@115200`.
"""

import errno
import gc
import os

from mqqb import MICROPYTHON, const, line
from ordack.node.clock import Clock, ticks_diff, ticks_ms

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from typing import Any

OPEN_TIMEOUT_MS = 10000
WRITE_MS = 20  # about as long as one write lasts
_FRAME_OF_HEAP = const(8192)  # bytes of free heap per frame kept until acknowledged
_NOTHING = bytearray(0)


class UartLink:
    """The board's end of a serial line (link.Link). No call waits, except inside `uart`.

    uart: a machine.UART, or a non-blocking stream such as a file or a socket; data from before `open` does no harm.
    rxbuf: size of its receive buffer in bytes, 112 or more. The other end never sends more than fits, so a busy program
    loses nothing. Bytes are lost while interrupts stop, as during an erase of flash (RP2: 45 ms for 4 KiB); they are
    resent.

    Sent frames are kept until the other end has them, in a thirty-second of the free heap, 2 to 8 KB.

    A machine.UART takes at most 1020 bytes per write, at once or as they leave, by its txbuf and timeout.
    """

    def __init__(self, uart: "Any", rxbuf: int = 256) -> None:
        self.stream: "Any" = None
        self.wants_write = False
        self._uart = uart
        self._any = getattr(uart, "any", None)
        self._clock = Clock()
        self._began: "Any" = 0  # ticks
        window = min(rxbuf - line.RESERVE, line.WINDOW_MAX)
        heap = gc.mem_free() if MICROPYTHON else 1 << 20  # type: ignore[attr-defined,unused-ignore]
        frames = min(max(heap // _FRAME_OF_HEAP, 8), 32)
        self.line = line.Line(True, window, os.urandom(1)[0], frames=frames)

    def open(self) -> None:
        """See link.Link."""
        self.stream = self._uart
        self._began = ticks_ms()
        now = self._clock.now()
        self.line.open(now)
        self._flush(now)

    def is_open(self) -> bool:
        """See link.Link. Raises OSError after OPEN_TIMEOUT_MS."""
        if self.line.state == line.OPENING:
            now = self._clock.now()
            while not self.line.read(_NOTHING, now) and self._fill():
                pass
            self._flush(now)
            if self.line.state == line.OPENING and ticks_diff(ticks_ms(), self._began) > OPEN_TIMEOUT_MS:
                raise OSError(errno.ETIMEDOUT, "nobody answers on the line")
        return self.line.state == line.OPEN

    def readinto(self, buffer: memoryview) -> int:
        """See link.Link."""
        now = self._clock.now()
        done = 0
        while done < len(buffer):
            count = self.line.read(buffer[done:] if done else buffer, now)
            if count > 0:
                done += count
            elif count < 0 or not self._fill():
                break
        if not done:
            self.line.check(now)
        self._flush(now)
        if not done and self.line.state != line.OPEN:
            raise OSError(errno.ECONNRESET, self.line.reason)
        return done

    def write(self, data: memoryview) -> int:
        """See link.Link."""
        now = self._clock.now()
        out = self.line
        began = ticks_ms()
        done = 0
        while self._flush(now):
            count = out.write(data, now, done)
            if not count:
                break
            done += count
            if ticks_diff(ticks_ms(), began) > WRITE_MS:
                self.wants_write = not self._flush(now) or done < len(data)
                break
        return done

    def close(self) -> None:
        """See link.Link."""
        self.line.close()
        self.stream = None
        try:
            self._flush(self._clock.now())
        except OSError:
            pass
        self.wants_write = False

    def _flush(self, now: int) -> bool:
        """Write the line's output. False: the UART takes no more now."""
        out = self.line
        data = out.output(now)
        while data is not None:
            taken = self._uart.write(data) or 0
            out.written(taken)
            if taken < len(data):
                self.wants_write = True
                return False
            data = out.output(now)
        self.wants_write = False
        return True

    def _fill(self) -> int:
        """Read bytes from the UART; return their number, 0 if there are none."""
        if self._any is None:
            count = self._uart.readinto(self.line.room())
        else:
            waiting = self._any()
            if not waiting:
                return 0
            count = self._uart.readinto(self.line.room()[:waiting])  # more would block
        if count is None:
            return 0
        if not count:
            raise OSError(errno.ECONNRESET)
        self.line.received(count)
        return int(count)
