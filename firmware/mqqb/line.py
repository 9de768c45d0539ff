"""A byte stream over a serial line, for both ends: frames, connections, flow control, resends. No input or output, no
clock.

    line = Line(opener, window)   # the board opens, the host accepts
    line.open(now)                # the opener; OPENED follows the other end's answer
    line.room(), line.received(n) # put wire bytes into room(), then report n bytes
    line.read(buffer, now)        # repeat until it gives 0; then check(now)
    line.write(data, now)         # bytes of the stream, if OPEN; gives the number accepted
    line.output(now)              # bytes for the wire, or None; written(n): n of them are on the wire
    line.timeout(now)             # ms until check and output are due again

Guarantee: on each connection the reader gets a prefix of the writer's bytes, whatever the wire does. Lost or changed
bytes are resent, and the connection continues. A dead wire ends the connection in bounded time; a working wire brings
up a new one in bounded time.

FRAME. Content and its CRC-32 (as zlib's, little-endian), COBS-encoded, then a zero byte: at most FRAME_MAX bytes. So
no COBS code is 0xFF, and the encoding always adds one byte. A zero also precedes resent frames and all frames except
DATA with payload; it ends garbage on the line. Empty frames are ignored. Content, little-endian:

    u8 kind       1 OPEN or ACCEPT, 2 DATA, 3 CLOSE, 4 ASK, 5 MISSING; plus 0x80 from the accepting end;
                  plus 0x10 to 0x70: the round of DATA and ASK; in MISSING the round with the gap
    u8 opener     number of the attempt to open, a new one for each
    u8 acceptor   number that the accepting end has given the connection; 0 in OPEN
    u16 number    of DATA with payload in its direction, from 0, modulo 65536; in other DATA and ASK the next one;
                  in MISSING the expected number; in OPEN and ACCEPT the version, 1; in CLOSE 0
    u16 taken     wire bytes of all DATA with payload taken so far, modulo 65536;
                  in OPEN and ACCEPT the window; in CLOSE 0
    payload       of DATA; without it DATA only reports taken bytes, or keeps the connection alive;
                  of OPEN and ACCEPT u16, the bytes of DATA that this end keeps until they are taken

OPEN is resent, each time with the next number, after OPEN_MS, twice that and so on up to OPEN_LIMIT_MS. ACCEPT returns
its number; an ACCEPT with an older number is ignored. OPEN ends an open connection, and begins the next.

FLOW. The window is a receiver's room for DATA with payload, in wire bytes. The sender's untaken bytes stay within the
window and its own buffer, and a frame within half of the window. The receiver reports taken bytes after TELL_MS, or
earlier when half of the window, or a quarter of the sender's buffer, is unreported. Frames without payload use RESERVE
bytes beside the window.

RESENDS. A receiver takes DATA in order of number and drops the rest. A higher number or a damaged frame shows a gap.
The receiver then sends MISSING, once in each round; the sender begins the next round and resends all untaken frames. A
sender without progress for ASK_MS sends ASK, then after twice the interval, up to KEEPALIVE_MS, until MISSING arrives.
The answer is MISSING, or DATA without payload if no frame is missing.

ENDS. A connection ends at once on DATA of another connection or on more bytes taken than sent. It also ends after
TRIES resends of a frame, and after a silence of SILENCE_MS. CLOSE informs the other end. Each end sends at least every
KEEPALIVE_MS, and a frame of an unknown connection is answered with CLOSE. Without a connection all other bytes are
ignored: a line may carry a console before, and noise.

VERSION. An OPEN or ACCEPT of another version is refused: `read` gives ENDED, and `reason` names both versions.
"""

import struct

from mqqb import const, core

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Buffer = bytes | bytearray | memoryview

OVERHEAD = 13  # bytes of DATA without its payload
PAYLOAD_MAX = 242
FRAME_MAX = PAYLOAD_MAX + OVERHEAD
WINDOW_MIN = 64
WINDOW_MAX = 32767
RESERVE = 48  # bytes beside the window, about a receiver's share for frames without payload
OPEN_MS = 250
OPEN_LIMIT_MS = 2000
ASK_MS = 250
TELL_MS = 100
KEEPALIVE_MS = 2000
SILENCE_MS = 7000
TRIES = 40

CLOSED = 0  # values of `state`
OPENING = 1
OPEN = 2
OPENED = -1  # events of `read`
ENDED = -2

_OPEN = const(1)
_DATA = const(2)
_CLOSE = const(3)
_ASK = const(4)
_MISSING = const(5)
_ROUNDS = const(0x70)
_ROUND = const(0x10)
_FROM_ACCEPTOR = const(0x80)
_VERSION = const(1)
_HEADER = const(7)
_GREETING = const(2)  # the payload of OPEN and ACCEPT
_LEAST = const(12)  # bytes of a frame, without the final zero
_BATCH = const(8)  # frames made together
_BATCH_BYTES = const(1020)
_BASE = const(2)  # offset of the first frame in the buffer; zeros precede it
_ZERO = b"\0"

_OWE_CLOSE = const(1)  # duties of `output`
_OWE_ACCEPT = const(2)
_OWE_AGAIN = const(4)
_OWE_MISSING = const(8)
_OWE_TAKEN = const(16)
_OWE_BEFORE = const(7)  # duties that precede DATA


def _twin() -> object:
    from mqqb import line_py

    return line_py


# The C core (c_core/mqqb_line.h) or its twin encodes and decodes frames.
_functions: "Any" = core.functions if hasattr(core.functions, "seal") else _twin()
seal: "Callable[[bytearray, memoryview, int, int], int]" = _functions.seal
unseal: "Callable[[bytearray, memoryview, int, int], bool]" = _functions.unseal
_put: "Callable[[bytearray, memoryview, int, bytearray, Buffer, int, int, int], int]" = _functions.frames


class _Connection:
    """The state of one end of a line, and the begin and end of its connections."""

    def __init__(self, opener: bool, window: int, number: int = 0, size: int = 2 * FRAME_MAX, frames: int = 8) -> None:
        if not WINDOW_MIN <= window <= WINDOW_MAX or size < 2 * FRAME_MAX or frames < _BATCH:
            raise ValueError("window, size or frames")
        self.opener = opener
        self.state = CLOSED
        self.reason = ""
        self.resent = self.damaged = 0
        self.keepalive = KEEPALIVE_MS
        self.silence = SILENCE_MS
        self._out = bytearray(_BASE + frames * FRAME_MAX)  # DATA with payload
        self._out_view = memoryview(self._out)
        self._first = self._next = self._end = _BASE  # offsets in it: first kept byte, next byte to send, end
        self._word = bytearray(2 + _HEADER + _GREETING + 5)  # a frame of any other kind,
        self._word_view = memoryview(self._word)
        self._word_at = self._word_end = 0  # and its unsent part
        self._owed = 0
        self._head = bytearray(_HEADER)  # of the next DATA
        self._kinds_out = 0 if opener else _FROM_ACCEPTOR  # added to the kinds of this end
        self._in = bytearray(size)
        self._in_view = memoryview(self._in)
        self._filled = 0
        self._start = 0  # of the incoming frame
        self._searched = 0  # no frame ends before this offset
        self._payload = self._payload_end = 0  # the unread rest of the last frame
        self._payload_wire = 0
        self._window = window
        self._number = number & 0xFF  # last number given by this end
        self._offer = 0  # the window of an OPEN not accepted yet,
        self._offer_kept = 0  # and its end's buffer in bytes
        self._close_opener = self._close_acceptor = 0  # of the connection to close
        self._opener = self._acceptor = 0  # of the connection
        self._hold = self._payload_max = 0  # limits of untaken bytes, and of payload in a frame
        self._tell = 0  # limit of taken but unreported bytes
        self._number_in = 0  # of the next DATA
        self._round_in = 0  # of the last DATA,
        self._missed = -1  # and of the last MISSING
        self._sent = self._acked = 0  # bytes of DATA with payload: made here, and taken there
        self._taken = self._told = 0  # bytes from the other end: taken here, and reported
        self._heard = 0  # time of the last frame
        self._due = 0  # when this end has to send, if OPENING or OPEN
        self._ask_at = 0  # time of the next ASK, if sent bytes are untaken
        self._wait = 0  # ms between OPENs; from the last progress to ASK
        self._tries = 0

    def open(self, now: int) -> None:
        """Request a connection repeatedly, until it opens or until close()."""
        self.close()
        self.state = OPENING
        self._due = now
        self._wait = OPEN_MS

    def close(self, reason: str = "closed here") -> None:
        """End the connection, if any. The next `output` informs the other end."""
        if self.state == OPEN:
            self._owe_close(self._opener, self._acceptor)
            self._over(reason)
        self.state = CLOSED

    def _begin(self, window: int, kept: int, now: int) -> None:
        """Begin a connection; window, kept: the other end's."""
        self._wait = ASK_MS
        self._hold = min(window, len(self._out) - _BASE)
        self._payload_max = min(PAYLOAD_MAX, window // 2 - OVERHEAD)
        self._tell = min((self._window + 1) // 2, max(kept // 4, WINDOW_MIN))
        self._number_in = self._round_in = self._tries = 0
        self._missed = -1
        struct.pack_into("<BBBHH", self._head, 0, _DATA | self._kinds_out, self._opener, self._acceptor, 0, 0)
        self._sent = self._acked = 0
        self._taken = self._told = 0
        self._heard = now
        self._due = now + self.keepalive

    def _over(self, reason: str) -> None:
        """End the connection: nothing of it is read or sent any more."""
        self.reason = reason
        self.state = CLOSED
        self._owed &= _OWE_CLOSE
        self._payload = self._payload_end = 0
        self._first = self._next = self._end = _BASE
        self._word_end = 0

    def _fault(self, reason: str) -> int:
        if self.state != OPEN:
            return 0
        self.close(reason)
        return ENDED

    def _owe_close(self, opener: int, acceptor: int) -> None:
        self._owed |= _OWE_CLOSE
        self._close_opener = opener
        self._close_acceptor = acceptor

    def _greeted(self, opener: int, acceptor: int, version: int, window: int, kept: int, now: int) -> int:
        """Handle OPEN or ACCEPT."""
        if version != _VERSION:  # support for earlier versions belongs here
            reason = "line protocol: version {} at the other end, version {} here".format(version, _VERSION)
            self.close(reason)
            self.reason = reason
            return ENDED
        if not WINDOW_MIN <= window <= WINDOW_MAX:
            return self._fault("a window that cannot be")
        if not self.opener:
            self._offer = window
            self._offer_kept = kept
            if self.state == OPEN:
                self._over("opened again")
                self._opener = opener
                return ENDED
            self._opener = opener
        elif self.state == OPENING and opener == self._number:
            self._opener = opener
            self._acceptor = acceptor
            self._begin(window, kept, now)
            self.state = OPEN
            return OPENED
        elif self.state == OPEN:
            return self._fault("accepted again")
        return 0

    def _accept(self, now: int) -> None:
        self._number = self._acceptor = self._number + 1 & 0xFF
        self._begin(self._offer, self._offer_kept, now)
        self._offer = 0
        self._owed |= _OWE_ACCEPT
        self.state = OPEN

    def _say(self, kind: int, opener: int, acceptor: int, number: int, taken: int, greets: bool = False) -> None:
        word = self._word
        word[0] = 0
        struct.pack_into("<BBBHH", word, 2, kind | self._kinds_out, opener, acceptor, number, taken)
        end = 2 + _HEADER
        if greets:
            struct.pack_into("<H", word, end, min(len(self._out) - _BASE, WINDOW_MAX))
            end += _GREETING
        self._word_at = 0
        self._word_end = seal(word, self._word_view, 1, end)


class Line(_Connection):
    """One end of a line, and its connection, if any.

    opener: this end opens. window: room for DATA in bytes, WINDOW_MIN to WINDOW_MAX. number: start of the connection
    numbers, best random. size: of the receive buffer, two frames or more. frames: frames of the largest size kept
    until they are taken, at least 8.

    state: CLOSED, OPENING, OPEN. reason: of the last connection's end. resent, damaged: resent frames, and damaged
    received frames, since the object was made. keepalive, silence: KEEPALIVE_MS and SILENCE_MS of this end.
    """

    # ---- receiving

    def room(self) -> memoryview:
        """The buffer for bytes from the wire. Not empty after `read` has given 0."""
        start = self._start
        if start and self._payload == self._payload_end and len(self._in) - self._filled < FRAME_MAX:
            waiting = self._filled - start
            self._in[:waiting] = self._in_view[start : self._filled]
            self._searched -= start
            self._filled = waiting
            self._start = 0
        return self._in_view[self._filled :]

    def received(self, count: int) -> None:
        """Report bytes put into `room`."""
        self._filled += count

    def read(self, buffer: "bytearray | memoryview", now: int) -> int:
        """Read payload into the buffer, which is not empty. Returns its bytes; OPENED, ENDED; 0: more bytes are
        needed."""
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
                self._spoiled()
                continue
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
            if self._taken - self._told & 0xFFFF >= self._tell:
                self._owed |= _OWE_TAKEN
            elif self._due > now + TELL_MS:
                self._due = now + TELL_MS
        return count

    def check(self, now: int) -> int:
        """ENDED if the other end has been silent for too long, else 0. Call it when all received bytes are read."""
        if self.state == OPEN and now - self._heard >= self.silence:
            return self._fault("nothing heard")
        return 0

    # ---- sending

    def write(self, data: "Buffer", now: int, start: int = 0) -> int:
        """Accept as much of data[start:] as fits, and return the number of bytes. 0: the window is full, or `output`
        has other duties.
        """
        count = len(data) - start
        if count <= 0 or self._next < self._end or self.state != OPEN or self._owed & _OWE_BEFORE:
            return 0
        most = self._payload_max
        sent = self._sent
        held = sent - self._acked & 0xFFFF
        room = self._hold - held
        frames = min(room // (most + OVERHEAD), _BATCH)
        if count > frames * most:
            if frames:
                count = frames * most
            elif count + OVERHEAD > room:
                return 0
        size = count + OVERHEAD * ((count + most - 1) // most)
        first, end = self._first, self._end
        if first == end:
            self._first = end = _BASE
        elif end + size > len(self._out):
            self._out[_BASE : _BASE + end - first] = self._out_view[first:end]
            self._first = _BASE
            end = _BASE + end - first
        if not held:
            self._ask_at = now + self._wait
        self._due = self._ask_at
        self._sent = sent + size & 0xFFFF
        head = self._head
        taken = self._told = self._taken
        self._owed &= ~_OWE_TAKEN
        head[5] = taken & 0xFF
        head[6] = taken >> 8
        self._next = end
        self._end = _put(self._out, self._out_view, end, head, data, start, count, most)
        return count

    def output(self, now: int) -> "memoryview | None":
        """Bytes for the wire, or None. Report the bytes put on the wire with `written`."""
        at = self._next
        if not self._word_end:
            if at < self._end and self._out[at - 1]:  # in the middle of a frame
                return self._out_view[at : self._out.find(_ZERO, at) + 1]
            if self._owed or (now >= self._due and self.state != CLOSED):
                self._speak(now)
                at = self._next
        if self._word_end:
            return self._word_view[self._word_at : self._word_end]
        if at == self._end:
            return None
        if at < self._first - 1:
            at = self._next = self._first - 1  # the buffer has a zero there
        return self._out_view[at : min(self._end, at + _BATCH_BYTES)]

    def written(self, count: int) -> None:
        """Report bytes of `output` put on the wire."""
        if self._word_end:
            self._word_at += count
            if self._word_at == self._word_end:
                self._word_end = 0
            return
        self._next += count

    def timeout(self, now: int) -> "int | None":
        """ms until `check` or `output` is due, 0 or more; None: never."""
        if self.state == CLOSED:
            return None
        due = min(self._due, self._heard + self.silence) if self.state == OPEN else self._due
        return max(due - now, 0)

    # ---- internals

    def _spoiled(self) -> None:
        """The received bytes are not a frame."""
        if self.state == OPEN:
            self.damaged += 1
            self._miss(self._round_in)

    def _miss(self, number: int) -> None:
        """A frame of this round is missing."""
        if number != self._missed:
            self._missed = number
            self._owed |= _OWE_MISSING

    def _frame(self, start: int, end: int, now: int) -> int:
        """Handle a frame. Returns its event, or 0."""
        frame = self._in
        if end - start < _LEAST or not unseal(frame, self._in_view, start, end):
            self._spoiled()
            return 0
        kind = frame[start + 1] ^ self._kinds_out ^ _FROM_ACCEPTOR
        of_round = kind & _ROUNDS
        kind ^= of_round
        opener = frame[start + 2]
        acceptor = frame[start + 3]
        number = frame[start + 4] | frame[start + 5] << 8
        taken = frame[start + 6] | frame[start + 7] << 8
        if kind == _OPEN:
            kept = frame[start + 8] | frame[start + 9] << 8  # another version may have other bytes here
            return self._greeted(opener, acceptor, number, taken, kept, now)
        is_ours = self.state == OPEN and opener == self._opener and acceptor == self._acceptor
        if kind == _CLOSE:
            if not is_ours:
                return 0
            self._over("closed by the other end")
            return ENDED
        is_known = _DATA <= kind <= _MISSING
        if not is_ours or not is_known:
            if self.state == CLOSED and is_known:
                self._owe_close(opener, acceptor)
            return self._fault("of another connection")
        if kind == _MISSING:
            self._heard = now
            return self._take(taken, now) or (self._go_back(number) if of_round == self._head[0] & _ROUNDS else 0)
        ahead = number - self._number_in & 0xFFFF
        self._heard = now
        if ahead >= 0x8000:
            return 0  # a duplicate
        event = self._take(taken, now)
        if event:
            return event
        self._round_in = of_round
        if kind == _ASK:
            self._missed = -1
            if not ahead:
                self._owed |= _OWE_TAKEN
        if ahead:
            self._miss(of_round)
        elif end - start > _LEAST:
            self._number_in = number + 1 & 0xFFFF
            self._payload = start + 1 + _HEADER
            self._payload_end = end - 4
            self._payload_wire = end - start + 1
        return 0

    def _take(self, taken: int, now: int) -> int:
        """Drop the bytes that the other end has taken. ENDED if the number is impossible, else 0."""
        count = taken - self._acked & 0xFFFF
        if not count or count >= 0x8000:
            return 0  # no progress
        if count > self._sent - self._acked & 0xFFFF or self._out[self._first + count - 1]:
            return self._fault("more taken than sent")
        self._acked = taken
        self._first += count
        self._tries = 0
        self._rest(now)
        return 0

    def _go_back(self, number: int) -> int:
        """Begin the next round from this expected number. ENDED after too many rounds, else 0."""
        head = self._head
        head[0] = head[0] & ~_ROUNDS | head[0] + _ROUND & _ROUNDS
        self._wait = ASK_MS
        if number != head[3] | head[4] << 8:
            self._owed |= _OWE_AGAIN
            self._tries += 1
            if self._tries > TRIES:
                return self._fault("sent again and again, and never taken")
        return 0

    def _send_again(self, now: int) -> None:
        """Resend all untaken frames in this round."""
        out, view, head = self._out, self._out_view, self._head
        taken = self._told = self._taken
        at = self._first
        while at < self._end:
            end = out.find(_ZERO, at)
            unseal(out, view, at, end)
            out[at + 1] = head[0]
            out[at + 6] = taken & 0xFF
            out[at + 7] = taken >> 8
            self.resent += at < self._next
            at = seal(out, view, at, end - 4)
        self._next = self._first - 1  # the buffer has a zero there
        self._rest(now)

    def _rest(self, now: int) -> None:
        """Delay keepalive and ASK, because sent frames may still be on the wire."""
        self._ask_at = now + self._wait
        self._due = self._ask_at if self._sent != self._acked else now + self.keepalive
        if self._taken != self._told:
            self._due = min(self._due, now + TELL_MS)

    def _speak(self, now: int) -> None:
        """Make the due frame without payload, if any, and start due resends."""
        owed = self._owed
        if owed & _OWE_CLOSE:
            self._owed = owed ^ _OWE_CLOSE
            self._say(_CLOSE, self._close_opener, self._close_acceptor, 0, 0)
        elif owed & _OWE_ACCEPT:
            self._owed = owed ^ _OWE_ACCEPT
            self._say(_OPEN, self._opener, self._acceptor, _VERSION, self._window, True)
        elif self.state == OPENING:  # it is due: without a connection no other duty exists
            self._number = self._number + 1 & 0xFF
            self._say(_OPEN, self._number, 0, _VERSION, self._window, True)
            self._due = now + self._wait
            self._wait = min(2 * self._wait, OPEN_LIMIT_MS)
        else:
            self._go_on(owed, now)

    def _go_on(self, owed: int, now: int) -> None:
        """As `_speak`, on a connection."""
        if owed & _OWE_AGAIN:
            self._send_again(now)
        head = self._head
        number = head[3] | head[4] << 8
        kind = _DATA | head[0] & _ROUNDS
        is_due = now >= self._due
        is_asking = self._sent != self._acked
        self._owed = 0
        if owed & _OWE_MISSING:
            kind = _MISSING | self._round_in
            number = self._number_in
        elif is_asking and now >= self._ask_at:
            kind ^= _DATA ^ _ASK
            self._wait = min(2 * self._wait, KEEPALIVE_MS)
            self._ask_at = now + self._wait
        elif not is_due and not owed & _OWE_TAKEN:
            return
        self._due = self._ask_at if is_asking else now + self.keepalive
        self._told = self._taken
        self._say(kind, self._opener, self._acceptor, number, self._taken)
