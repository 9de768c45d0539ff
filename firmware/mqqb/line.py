"""A byte stream over a serial line, for both ends: frames, connections, flow control. No input or output, no clock.

    line = Line(opener, window)   # the board opens, the host accepts
    line.open(now)                # the opener; OPENED comes with the other end's answer
    line.room(), line.received(n) # what came on the wire goes into room(), n bytes of it
    line.read(buffer, now)        # then this, until it gives 0; and check(now) when there is no more
    line.write(data, now)         # the stream's bytes, if OPEN: how many it took
    line.output(now)              # bytes of `out`, from `out_start`, that are to go on the wire; written(n): they have
    line.timeout(now)             # check and output again after so many ms at the latest

The promise: on each connection the reader gets a prefix of what the writer wrote, whatever happens to the bytes in
between; and when the wire is well again a new connection comes up within bounded time. Nothing is sent again here:
whatever is lost, added or changed ends the connection, and the session above it repeats what was not acknowledged.

FRAME. Content and its CRC-32 (as zlib's, little-endian), COBS-encoded, then a zero byte: at most FRAME_MAX bytes, so
no COBS code is 0xFF and the encoding is one byte longer than what it encodes, whatever that is. OPEN, ACCEPT and CLOSE
have a zero in front too, which ends what stood on the line before. A frame of no bytes is none. Content, little-endian:

    u8 kind       1 OPEN or ACCEPT, 2 DATA, 3 CLOSE; 0x80 more if it comes from the end that accepts
    u8 opener     number of the attempt to open, another one for each
    u8 acceptor   number that the accepting end has given the connection; 0 in OPEN
    u16 number    of DATA in its direction, from 0, modulo 65536; in OPEN and ACCEPT the version, 1; in CLOSE 0
    u16 taken     bytes on the wire of all DATA with payload that were taken so far, modulo 65536;
                  in OPEN and ACCEPT the window; in CLOSE 0
    payload       of DATA; none: it only says what was taken, or that this end is alive

OPEN is sent again, each time with the next number, after OPEN_MS, twice that and so on up to OPEN_LIMIT_MS; ACCEPT
gives its number back, or is too old. OPEN ends a connection that stands, and begins the next.

FLOW. The window is how many bytes of DATA with payload a receiver has room for, as they are on the wire. The sender
keeps what was sent and not taken within it, and a frame within half of it. The receiver tells at the latest when half
of it was taken and not told. Frames without payload need no window: keep RESERVE bytes for them.

ENDS. What is no frame, a number that was not due, DATA of another connection, more taken than was sent, and nothing
heard for SILENCE_MS end the connection at once; the other end is told with CLOSE. That end sends DATA at least every
KEEPALIVE_MS, so it hears of it by then too: DATA for a connection that is not there is answered with CLOSE. Without a
connection everything else is passed over: a line may carry a console before, and noise.
"""

import struct

from mqqb import const, core

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Buffer = bytes | bytearray | memoryview

VERSION = 1
OVERHEAD = 13  # bytes of DATA beside its payload
PAYLOAD_MAX = 242
FRAME_MAX = PAYLOAD_MAX + OVERHEAD
WINDOW_MIN = 64
WINDOW_MAX = 32767
RESERVE = 48  # bytes beside the window: as much as frames without payload take in a receiver's buffer
OPEN_MS = 250
OPEN_LIMIT_MS = 2000
KEEPALIVE_MS = 2000
SILENCE_MS = 7000

CLOSED = 0  # what `state` is
OPENING = 1
OPEN = 2
OPENED = -1  # what `read` tells beside payload
ENDED = -2

_OPEN = 1
_DATA = 2
_CLOSE = 3
_FROM_ACCEPTOR = 0x80
_HEADER = 7
_LEAST = _HEADER + 5  # of a frame, without the zero behind it
_ZERO = b"\0"


def _twin() -> object:
    from mqqb import line_py

    return line_py


# Frames are made and taken apart by the C core (c_core/mqqb_line.h), or by its twin.
_functions: "Any" = core.functions if hasattr(core.functions, "seal") else _twin()
seal: "Callable[[bytearray, memoryview, int, int], int]" = _functions.seal
unseal: "Callable[[bytearray, memoryview, int, int], bool]" = _functions.unseal
_put: "Callable[[bytearray, memoryview, bytearray, Buffer, int, int, int], int]" = _functions.frames


class Line:
    """One end of a line, and its connection, if it has one.

    opener: this end opens. window: bytes of DATA that there is room for, WINDOW_MIN to WINDOW_MAX. number: where the
    numbers of connections begin, best at random. size: of the buffer for what comes, two frames or more. frames: as
    many go out together, which saves time.

    state: CLOSED, OPENING, OPEN. reason: why the last connection ended. out: what is to go on the wire, from out_start
    to out_end. keepalive, silence: KEEPALIVE_MS and SILENCE_MS of this end.
    """

    def __init__(self, opener: bool, window: int, number: int = 0, size: int = 2 * FRAME_MAX, frames: int = 4) -> None:
        if not WINDOW_MIN <= window <= WINDOW_MAX or size < 2 * FRAME_MAX:
            raise ValueError("window or size")
        self.opener = opener
        self.state = CLOSED
        self.reason = ""
        self.keepalive = KEEPALIVE_MS
        self.silence = SILENCE_MS
        self.out = bytearray(1 + frames * FRAME_MAX)
        self.out_start = self.out_end = 0
        self._out_view = memoryview(self.out)
        self._frames = frames
        self._head = bytearray(_HEADER)  # of the next DATA
        self._kinds_out = 0 if opener else _FROM_ACCEPTOR  # what is added to the kinds of this end
        self._in = bytearray(size)
        self._in_view = memoryview(self._in)
        self._filled = 0
        self._start = 0  # of the frame that is coming
        self._searched = 0  # before this it has no end
        self._payload = self._payload_end = 0  # what is left of the last frame's
        self._payload_wire = 0
        self._window = window
        self._number = number & 0xFF  # that this end has given last
        self._offer = 0  # the window in an OPEN that was not accepted yet
        self._accept_owed = False
        self._close_owed = False
        self._close_opener = self._close_acceptor = 0  # of the connection that is to be closed
        self._open_due = self._open_wait = 0
        self._opener = self._acceptor = 0  # of the connection
        self._peer_window = self._payload_max = 0
        self._number_in = 0  # of the next DATA
        self._sent = self._acked = 0  # bytes of DATA with payload: those that went out, those that were then taken
        self._taken = self._told = 0  # and those of the other end: taken here, said to be
        self._heard = self._spoke = 0  # when

    # ---- connections

    def open(self, now: int) -> None:
        """Ask for a connection, again and again until there is one, or until close()."""
        self.close()
        self.state = OPENING
        self._open_due = now
        self._open_wait = OPEN_MS

    def close(self, reason: str = "closed here") -> None:
        """End the connection, if there is one. What `output` then gives tells the other end."""
        if self.state == OPEN:
            self._owe_close(self._opener, self._acceptor)
            self._end(reason)
        self.state = CLOSED

    # ---- what comes

    def room(self) -> memoryview:
        """Where to put what comes on the wire. Not empty after `read` has given 0."""
        start = self._start
        if start and self._payload == self._payload_end and len(self._in) - self._filled < FRAME_MAX:
            waiting = self._filled - start
            self._in[:waiting] = self._in_view[start : self._filled]
            self._searched -= start
            self._filled = waiting
            self._start = 0
        return self._in_view[self._filled :]

    def received(self, count: int) -> None:
        """So many bytes are in `room`."""
        self._filled += count

    def read(self, buffer: "bytearray | memoryview", now: int) -> int:
        """Bytes of payload that were put in the buffer, which is not empty; OPENED, ENDED; 0: more must come first."""
        while self._payload == self._payload_end:
            if self._offer:
                self._accept(now)
                return OPENED
            end = self._in.find(_ZERO, self._searched, self._filled)
            if end < 0:
                self._searched = self._filled
                if self._filled - self._start < FRAME_MAX:
                    return 0
                self._start = self._filled
                return self._fault("no frame")
            start = self._start
            self._start = self._searched = end + 1
            if start < end:
                event = self._frame(start, end, now)
                if event:
                    return event
        count = min(len(buffer), self._payload_end - self._payload)
        buffer[:count] = self._in_view[self._payload : self._payload + count]
        self._payload += count
        if self._payload == self._payload_end:
            self._taken = self._taken + self._payload_wire & 0xFFFF
        return count

    def check(self, now: int) -> int:
        """ENDED if the other end has been silent for too long, else 0. To be called when all that came was read."""
        if self.state == OPEN and now - self._heard >= self.silence:
            return self._fault("nothing heard")
        return 0

    # ---- what goes

    def write(self, data: "Buffer", now: int, start: int = 0) -> int:
        """Put data[start:], or what there is room for, into `out` as payload: how many bytes. 0: the window is used up,
        or there is something else in it.
        """
        count = len(data) - start
        if count <= 0 or self.out_end or self.state != OPEN or self._close_owed or self._accept_owed:
            return 0
        most = self._payload_max
        sent = self._sent
        room = self._peer_window - (sent - self._acked & 0xFFFF)
        frames = min(room // (most + OVERHEAD), self._frames)
        if count > frames * most:
            if frames:
                count = frames * most
            elif count + OVERHEAD > room:
                return 0
        self._sent = sent + count + OVERHEAD * ((count + most - 1) // most) & 0xFFFF
        self._data(data, start, count, now)
        return count

    def output(self, now: int) -> int:
        """How many bytes of `out` are to go on the wire; tell with `written` how many have."""
        if self.out_end:
            pass
        elif self._close_owed:
            self._close_owed = False
            self._greet(_CLOSE, self._close_opener, self._close_acceptor, 0, 0)
        elif self._accept_owed:
            self._accept_owed = False
            self._greet(_OPEN, self._opener, self._acceptor, VERSION, self._window)
        elif self.state == OPENING:
            if now >= self._open_due:
                self._number = self._number + 1 & 0xFF
                self._greet(_OPEN, self._number, 0, VERSION, self._window)
                self._open_due = now + self._open_wait
                self._open_wait = min(2 * self._open_wait, OPEN_LIMIT_MS)
        elif self.state == OPEN and (
            2 * (self._taken - self._told & 0xFFFF) >= self._window or now - self._spoke >= self.keepalive
        ):
            self._data(_ZERO, 0, 0, now)
        return self.out_end - self.out_start

    def written(self, count: int) -> None:
        """So many bytes of `out` have gone on the wire."""
        self.out_start += count
        if self.out_start == self.out_end:
            self.out_start = self.out_end = 0

    def timeout(self, now: int) -> "int | None":
        """ms until `check` or `output` has something to do by itself, 0 or more; None: nothing is due."""
        if self.state == OPENING:
            return max(self._open_due - now, 0)
        if self.state == OPEN:
            return max(min(self._spoke + self.keepalive, self._heard + self.silence) - now, 0)
        return None

    # ---- inside

    def _begin(self, window: int, now: int) -> None:
        """A connection begins; window: the other end's."""
        self._peer_window = window
        self._payload_max = min(PAYLOAD_MAX, window // 2 - OVERHEAD)
        self._number_in = 0
        struct.pack_into("<BBBHH", self._head, 0, _DATA | self._kinds_out, self._opener, self._acceptor, 0, 0)
        self._sent = self._acked = 0
        self._taken = self._told = 0
        self._heard = self._spoke = now

    def _end(self, reason: str) -> None:
        """The connection is over: nothing of it is read or goes out any more."""
        self.reason = reason
        self.state = CLOSED
        self._accept_owed = False
        self._payload = self._payload_end = 0
        self.out_start = self.out_end = 0

    def _fault(self, reason: str) -> int:
        if self.state != OPEN:
            return 0
        self.close(reason)
        return ENDED

    def _owe_close(self, opener: int, acceptor: int) -> None:
        self._close_owed = True
        self._close_opener = opener
        self._close_acceptor = acceptor

    def _frame(self, start: int, end: int, now: int) -> int:
        """Take a frame: the event that it is, or 0."""
        frame = self._in
        if end - start < _LEAST or not unseal(frame, self._in_view, start, end):
            return self._fault("no frame")
        kind = frame[start + 1] ^ self._kinds_out ^ _FROM_ACCEPTOR
        opener = frame[start + 2]
        acceptor = frame[start + 3]
        number = frame[start + 4] | frame[start + 5] << 8
        taken = frame[start + 6] | frame[start + 7] << 8
        if kind == _OPEN:
            return self._greeted(opener, acceptor, number, taken, now)
        is_ours = self.state == OPEN and opener == self._opener and acceptor == self._acceptor
        if kind == _CLOSE:
            if not is_ours:
                return 0
            self._end("closed by the other end")
            return ENDED
        if kind != _DATA or not is_ours:
            if kind == _DATA and self.state == CLOSED:
                self._owe_close(opener, acceptor)
            return self._fault("of another connection")
        if number != self._number_in:
            return self._fault("frames are missing")
        if self._sent - taken & 0xFFFF > self._sent - self._acked & 0xFFFF:
            return self._fault("more taken than sent")
        self._number_in = number + 1 & 0xFFFF
        self._acked = taken
        self._heard = now
        self._payload = start + 1 + _HEADER
        self._payload_end = end - 4
        self._payload_wire = end - start + 1
        return 0

    def _greeted(self, opener: int, acceptor: int, version: int, window: int, now: int) -> int:
        """OPEN or ACCEPT has come."""
        if version != VERSION or not WINDOW_MIN <= window <= WINDOW_MAX:
            return self._fault("another version")
        if not self.opener:
            self._offer = window
            if self.state == OPEN:
                self._end("opened again")
                self._opener = opener
                return ENDED
            self._opener = opener
        elif self.state == OPENING and opener == self._number:
            self._opener = opener
            self._acceptor = acceptor
            self._begin(window, now)
            self.state = OPEN
            return OPENED
        elif self.state == OPEN:
            return self._fault("accepted again")
        return 0

    def _accept(self, now: int) -> None:
        self._number = self._acceptor = self._number + 1 & 0xFF
        self._begin(self._offer, now)
        self._offer = 0
        self._accept_owed = True
        self.state = OPEN

    def _greet(self, kind: int, opener: int, acceptor: int, number: int, taken: int) -> None:
        struct.pack_into("<BBBHH", self.out, 2, kind | self._kinds_out, opener, acceptor, number, taken)
        self.out_start = 0
        self.out_end = seal(self.out, self._out_view, 1, 2 + _HEADER)

    def _data(self, data: "Buffer", start: int, count: int, now: int) -> None:
        head = self._head
        taken = self._told = self._taken
        head[5] = taken & 0xFF
        head[6] = taken >> 8
        self.out_start = 1
        self.out_end = _put(self.out, self._out_view, head, data, start, count, self._payload_max)
        self._spoke = now
