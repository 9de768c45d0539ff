"""A byte stream over a serial line, for both ends: frames, connections, flow control, resends. No input or output, no
clock.

    line = Line(opener, window)   # the board opens, the host accepts
    line.open(now)                # the opener; OPENED comes with the other end's answer
    line.room(), line.received(n) # what came on the wire goes into room(), n bytes of it
    line.read(buffer, now)        # then this, until it gives 0; and check(now) when there is no more
    line.write(data, now)         # the stream's bytes, if OPEN: how many it took
    line.output(now)              # what is to go on the wire, None: nothing; written(n): so many bytes of it have gone
    line.timeout(now)             # check and output again after so many ms at the latest

The promise: on each connection the reader gets a prefix of what the writer wrote, whatever happens to the bytes in
between. What is lost or changed is sent again, and the connection goes on. A wire that carries nothing ends it in
bounded time; when the wire is well again, a new one comes up in bounded time.

FRAME. Content and its CRC-32 (as zlib's, little-endian), COBS-encoded, then a zero byte: at most FRAME_MAX bytes, so
no COBS code is 0xFF and the encoding is one byte longer than what it encodes, whatever that is. All but DATA with
payload have a zero in front too, which ends what stood on the line before; so has what is sent again. A frame of no
bytes is none. Content, little-endian:

    u8 kind       1 OPEN or ACCEPT, 2 DATA, 3 CLOSE, 4 ASK, 5 MISSING; 0x80 more if it comes from the end that accepts;
                  0x10 to 0x70 more: the round of DATA and ASK; in MISSING that in which something is missing
    u8 opener     number of the attempt to open, another one for each
    u8 acceptor   number that the accepting end has given the connection; 0 in OPEN
    u16 number    of DATA with payload in its direction, from 0, modulo 65536; in other DATA and ASK that of the next;
                  in MISSING the number that this end waits for; in OPEN and ACCEPT the version, 1; in CLOSE 0
    u16 taken     bytes on the wire of all DATA with payload that were taken so far, modulo 65536;
                  in OPEN and ACCEPT the window; in CLOSE 0
    payload       of DATA; none: it only says what was taken, or that this end is alive; of OPEN and ACCEPT u16, the
                  bytes of DATA that this end keeps until they are taken

OPEN is sent again, each time with the next number, after OPEN_MS, twice that and so on up to OPEN_LIMIT_MS; ACCEPT
gives its number back, or is too old. OPEN ends a connection that stands, and begins the next.

FLOW. The window is how many bytes of DATA with payload a receiver has room for, as they are on the wire. The sender
keeps what was sent and not taken within it and within what it can keep, and a frame within half of the window. The
receiver tells at the latest when half of the window, or a quarter of what the sender keeps, was taken and not told,
or TELL_MS after it was taken. What needs no window finds RESERVE bytes.

RESENDS. A receiver takes DATA in the order of their numbers and drops the others. When it sees that one is missing, by
a higher number or by something that is no frame, it says MISSING, once in each round: the sender begins the next round
and sends again all that was not taken. A sender of whose frames nothing was taken for ASK_MS, after each ASK twice
that up to KEEPALIVE_MS, until it hears MISSING, says ASK, and is answered with MISSING, or with DATA without payload
if all is there.

ENDS. DATA of another connection, more taken than was sent, a frame that was sent again TRIES times, and nothing heard
for SILENCE_MS end the connection at once; the other end is told with CLOSE. That end says something at least every
KEEPALIVE_MS, so it hears of it by then too: what belongs to a connection that is not there is answered with CLOSE.
Without a connection everything else is passed over: a line may carry a console before, and noise.

VERSION. An OPEN or ACCEPT of another version is refused: `read` tells ENDED, and `reason` names both versions.
"""

import struct

from mqqb import const, core

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Buffer = bytes | bytearray | memoryview

OVERHEAD = 13  # bytes of DATA beside its payload
PAYLOAD_MAX = 242
FRAME_MAX = PAYLOAD_MAX + OVERHEAD
WINDOW_MIN = 64
WINDOW_MAX = 32767
RESERVE = 48  # bytes beside the window: about as much as frames without payload take in a receiver's buffer
OPEN_MS = 250
OPEN_LIMIT_MS = 2000
ASK_MS = 250
TELL_MS = 100
KEEPALIVE_MS = 2000
SILENCE_MS = 7000
TRIES = 40

CLOSED = 0  # what `state` is
OPENING = 1
OPEN = 2
OPENED = -1  # what `read` tells beside payload
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
_LEAST = const(12)  # bytes of a frame, without the zero behind it
_BATCH = const(8)  # frames that are made together
_BATCH_BYTES = const(1020)
_BASE = const(2)  # where frames begin in the buffer: there are zeros before
_ZERO = b"\0"

_OWE_CLOSE = const(1)  # what `output` has to do before it goes on
_OWE_ACCEPT = const(2)
_OWE_AGAIN = const(4)
_OWE_MISSING = const(8)
_OWE_TAKEN = const(16)
_OWE_BEFORE = const(7)  # before it makes DATA, too


def _twin() -> object:
    from mqqb import line_py

    return line_py


# Frames are made and taken apart by the C core (c_core/mqqb_line.h), or by its twin.
_functions: "Any" = core.functions if hasattr(core.functions, "seal") else _twin()
seal: "Callable[[bytearray, memoryview, int, int], int]" = _functions.seal
unseal: "Callable[[bytearray, memoryview, int, int], bool]" = _functions.unseal
_put: "Callable[[bytearray, memoryview, int, bytearray, Buffer, int, int, int], int]" = _functions.frames


class _Connection:
    """What an end of a line knows, and how its connections begin and end."""

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
        self._first = self._next = self._end = _BASE  # in it: what is kept, what is to go on the wire, and to where
        self._word = bytearray(2 + _HEADER + _GREETING + 5)  # a frame of any other kind,
        self._word_view = memoryview(self._word)
        self._word_at = self._word_end = 0  # and what of it is to go on the wire
        self._owed = 0
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
        self._offer = 0  # the window in an OPEN that was not accepted yet,
        self._offer_kept = 0  # and the bytes that its end keeps
        self._close_opener = self._close_acceptor = 0  # of the connection that is to be closed
        self._opener = self._acceptor = 0  # of the connection
        self._hold = self._payload_max = 0  # bytes that may be sent and not taken, and of payload in a frame
        self._tell = 0  # bytes that may be taken and not told
        self._number_in = 0  # of the next DATA
        self._round_in = 0  # of the last,
        self._missed = -1  # and that in which MISSING was said
        self._sent = self._acked = 0  # bytes of DATA with payload: those that were made, those that were then taken
        self._taken = self._told = 0  # and those of the other end: taken here, said to be
        self._heard = 0  # when
        self._due = 0  # when this end has to say something by itself, if it is OPENING or OPEN
        self._ask_at = 0  # when it asks, if something was sent and not taken
        self._wait = 0  # ms from one OPEN to the next; from what was sent or taken to ASK
        self._tries = 0

    def open(self, now: int) -> None:
        """Ask for a connection, again and again until there is one, or until close()."""
        self.close()
        self.state = OPENING
        self._due = now
        self._wait = OPEN_MS

    def close(self, reason: str = "closed here") -> None:
        """End the connection, if there is one. What `output` then gives tells the other end."""
        if self.state == OPEN:
            self._owe_close(self._opener, self._acceptor)
            self._over(reason)
        self.state = CLOSED

    def _begin(self, window: int, kept: int, now: int) -> None:
        """A connection begins; window, kept: the other end's."""
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
        """The connection is over: nothing of it is read or goes out any more."""
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
        """OPEN or ACCEPT has come."""
        if version != _VERSION:  # the one place where an earlier version could be understood
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
    """One end of a line, and its connection, if it has one.

    opener: this end opens. window: bytes of DATA that there is room for, WINDOW_MIN to WINDOW_MAX. number: where the
    numbers of connections begin, best at random. size: of the buffer for what comes, two frames or more. frames: of the
    largest as many are kept until they are taken, at least 8.

    state: CLOSED, OPENING, OPEN. reason: why the last connection ended. resent, damaged: frames that this end has sent
    again, and what came to it that was no frame, since it was made. keepalive, silence: KEEPALIVE_MS and SILENCE_MS of
    this end.
    """

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
        """ENDED if the other end has been silent for too long, else 0. To be called when all that came was read."""
        if self.state == OPEN and now - self._heard >= self.silence:
            return self._fault("nothing heard")
        return 0

    # ---- what goes

    def write(self, data: "Buffer", now: int, start: int = 0) -> int:
        """Take data[start:], or what there is room for, as payload: how many bytes. 0: the window is used up, or
        `output` has something else.
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
        """What is to go on the wire, None: nothing. Tell with `written` how many bytes of it have."""
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
            at = self._next = self._first - 1  # there is a zero
        return self._out_view[at : min(self._end, at + _BATCH_BYTES)]

    def written(self, count: int) -> None:
        """So many bytes of what `output` gave have gone on the wire."""
        if self._word_end:
            self._word_at += count
            if self._word_at == self._word_end:
                self._word_end = 0
            return
        self._next += count

    def timeout(self, now: int) -> "int | None":
        """ms until `check` or `output` has something to do by itself, 0 or more; None: nothing is due."""
        if self.state == CLOSED:
            return None
        due = min(self._due, self._heard + self.silence) if self.state == OPEN else self._due
        return max(due - now, 0)

    # ---- inside

    def _spoiled(self) -> None:
        """What came is no frame."""
        if self.state == OPEN:
            self.damaged += 1
            self._miss(self._round_in)

    def _miss(self, number: int) -> None:
        """Something of this round is missing."""
        if number != self._missed:
            self._missed = number
            self._owed |= _OWE_MISSING

    def _frame(self, start: int, end: int, now: int) -> int:
        """Take a frame: the event that it is, or 0."""
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
            kept = frame[start + 8] | frame[start + 9] << 8  # of another version these may be anything
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
            return 0  # it was there already
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
        """The other end has taken all up to there: forget it. ENDED if that cannot be, else 0."""
        count = taken - self._acked & 0xFFFF
        if not count or count >= 0x8000:
            return 0  # no news
        if count > self._sent - self._acked & 0xFFFF or self._out[self._first + count - 1]:
            return self._fault("more taken than sent")
        self._acked = taken
        self._first += count
        self._tries = 0
        self._rest(now)
        return 0

    def _go_back(self, number: int) -> int:
        """The other end waits for this number: the next round begins. ENDED if that was so too often, else 0."""
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
        """All that was not taken goes on the wire again, in this round."""
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
        self._next = self._first - 1  # there is a zero
        self._rest(now)

    def _rest(self, now: int) -> None:
        """Say nothing for a while by itself: for so long what was sent may be on its way."""
        self._ask_at = now + self._wait
        self._due = self._ask_at if self._sent != self._acked else now + self.keepalive
        if self._taken != self._told:
            self._due = min(self._due, now + TELL_MS)

    def _speak(self, now: int) -> None:
        """Make the frame without payload that is due, if one is; send again what has to be."""
        owed = self._owed
        if owed & _OWE_CLOSE:
            self._owed = owed ^ _OWE_CLOSE
            self._say(_CLOSE, self._close_opener, self._close_acceptor, 0, 0)
        elif owed & _OWE_ACCEPT:
            self._owed = owed ^ _OWE_ACCEPT
            self._say(_OPEN, self._opener, self._acceptor, _VERSION, self._window, True)
        elif self.state == OPENING:  # and it is due: without a connection nothing else is owed
            self._number = self._number + 1 & 0xFF
            self._say(_OPEN, self._number, 0, _VERSION, self._window, True)
            self._due = now + self._wait
            self._wait = min(2 * self._wait, OPEN_LIMIT_MS)
        else:
            self._go_on(owed, now)

    def _go_on(self, owed: int, now: int) -> None:
        """The same, on a connection."""
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
