"""Two ends of a line, and a wire between them that does whatever a wire can do to bytes. Runs on MicroPython too.

Each end writes as much as it can on every connection; `World` raises AssertionError when a reader gets anything that is
not a prefix of what was written for that connection, or when the line does not come back after the last fault.
"""

import struct

from mqqb import line

WELL_MS = line.SILENCE_MS + line.KEEPALIVE_MS + 2 * line.OPEN_LIMIT_MS
"""After this at the latest a line that is well again has a connection that carries bytes both ways."""


class Random:
    """A few random numbers, the same on every machine."""

    def __init__(self, seed):
        self.state = seed * 2654435761 + 1 & 0xFFFFFFFF

    def below(self, limit):
        """A number from 0, less than limit."""
        self.state = self.state * 1664525 + 1013904223 & 0xFFFFFFFF
        return (self.state >> 8) % limit


class End:
    """One end: a line, what was written on each of its connections, what was read."""

    def __init__(self, opener, window, number, size):
        self.line = line.Line(opener, window, number, size)
        self.opener = opener
        self.written = []  # of each connection: its key, the bytes
        self.read = []
        self.events = []
        self.buffer = bytearray(100)

    def key(self):
        """What both ends know of the connection."""
        return self.line._opener, self.line._acceptor

    def opened(self):
        """A connection has begun."""
        self.written.append((self.key(), bytearray()))
        self.read.append((self.key(), bytearray()))
        self.source = None  # what of the other end's may be what is read

    def write(self, count, now):
        """Write up to so many bytes, as one call; returns how many were taken."""
        if self.line.state != line.OPEN:
            return 0
        done = self.written[-1][1]
        data = bytearray()
        at = len(done) // 8
        while len(data) < count + 8:  # words that differ in all connections, with zeros in them
            data += struct.pack("<HHHH", at & 0xFFFF, len(self.written), self.opener, at * 251 & 0xFF)
            at += 1
        skip = len(done) % 8
        taken = self.line.write(memoryview(data)[skip : skip + count], now)
        done += data[skip : skip + taken]
        return taken


class World:
    """Two ends and the wire. wire[0]: what the opener has sent."""

    def __init__(self, window_up=512, window_down=200, number=0, size=512):
        self.now = 0
        self.ends = [End(True, window_down, number, size), End(False, window_up, number + 7, size)]
        self.wire = [bytearray(), bytearray()]

    def emit(self, which, limit=1 << 20):
        """Up to so many bytes of what an end has to send go on the wire."""
        end = self.ends[which].line
        while limit > 0:
            data = end.output(self.now)
            if data is None:
                return
            data = bytes(data[:limit])
            self.wire[which] += data
            end.written(len(data))
            limit -= len(data)

    def deliver(self, which, limit=1 << 20):
        """Up to so many bytes that end `which` has sent arrive at the other."""
        data = bytes(self.wire[which][:limit])
        self.wire[which] = self.wire[which][len(data) :]
        self.arrive(1 - which, data)

    def arrive(self, which, data):
        """These bytes come to an end; it reads all it can."""
        end = self.ends[which]
        at = 0
        self._read(end)
        while at < len(data):
            room = end.line.room()
            assert len(room)
            count = min(len(room), len(data) - at)
            room[:count] = data[at : at + count]
            end.line.received(count)
            at += count
            self._read(end)

    def check(self, which):
        """Tell an end that there is nothing more to read."""
        if self.ends[which].line.check(self.now):
            self._ended(self.ends[which], line.ENDED)

    def wait(self, ms):
        """Time passes."""
        self.now += ms

    def restart(self, which, number):
        """An end was switched off and on: it knows nothing of before, and begins with this number."""
        before = self.ends[which]
        fresh = End(before.opener, before.line._window, number, len(before.line._in))
        fresh.written = before.written  # what the other end may still read
        self.ends[which] = fresh

    def connected(self):
        """Both ends have the same connection."""
        one, other = self.ends
        return one.line.state == other.line.state == line.OPEN and one.key() == other.key()

    def turn(self, ms=10, size=100, fault=None, ends=(0, 1)):
        """Both ends do what they do all the time, over a good wire; or fault(data) is what arrives from `ends`."""
        for which in (0, 1):
            if self.ends[0].line.state == line.CLOSED:
                self.ends[0].line.open(self.now)
            self.emit(which)
            for _ in range(3):
                if size and self.ends[which].write(size, self.now):
                    self.emit(which)
            if fault and which in ends:
                self.wire[which] = bytearray(fault(bytes(self.wire[which])))
            self.deliver(which)
        for which in (0, 1):
            self.check(which)
        self.wait(ms)

    def recover(self):
        """The wire is well again: a connection comes that carries bytes both ways, in bounded time. Returns the ms."""
        began = self.now
        while True:
            self.turn()
            if self.connected():
                before = [len(end.read[-1][1]) for end in self.ends]
                keys = [len(end.read) for end in self.ends]
                for _ in range(20):
                    self.turn(1)
                after = [len(end.read[-1][1]) for end in self.ends]
                if keys == [len(end.read) for end in self.ends] and after[0] > before[0] and after[1] > before[1]:
                    return self.now - began
            assert self.now - began <= WELL_MS, (self.ends[0].line.reason, self.ends[1].line.reason)

    def _read(self, end):
        while True:
            count = end.line.read(end.buffer, self.now)
            if count == line.OPENED:
                end.events.append(count)
                end.opened()
            elif count == line.ENDED:
                self._ended(end, count)
            elif count:
                key, got = end.read[-1]
                if end.source is None:
                    other = self.ends[0 if end is self.ends[1] else 1]
                    end.source = [sent for k, sent in other.written if k == key]
                at = len(got)
                got += end.buffer[:count]
                end.source = [sent for sent in end.source if sent[at : at + count] == got[at:]]
                assert end.source, (key, bytes(got[at:]))
            else:
                return

    def _ended(self, end, event):
        end.events.append(event)
        assert end.line.state == line.CLOSED


def fault(world, kind, which, at, count, value):
    """Do something to the bytes that end `which` has on the wire.

    kind: 0 lose, 1 change, 2 add, 3 repeat, 4 swap, 5 lose everything.
    """
    wire = world.wire[which]
    if not wire:
        return
    at %= len(wire)
    piece = bytes(wire[at : at + count])
    head, tail = bytes(wire[:at]), bytes(wire[at + len(piece) :])
    if kind == 0:
        piece = b""
    elif kind == 1:
        piece = bytes([piece[0] ^ (value or 1)]) + piece[1:]
    elif kind == 2:
        piece = bytes([value]) * count + piece
    elif kind == 3:
        piece += piece
    elif kind == 4:
        half = len(piece) // 2
        piece = piece[half:] + piece[:half]
    else:
        head = piece = tail = b""
    world.wire[which] = bytearray(head + piece + tail)


def act(world, action, which, at, count, value):
    """One step of a world of accidents. action: 0 to 5 a fault, else what ends and wires do."""
    end = world.ends[which]
    if action <= 5:
        fault(world, action, which, at, count, value)
    elif action <= 9:
        end.write(1 + at % 300, world.now)
        world.emit(which, 1 + at)
    elif action <= 13:
        world.deliver(which, 1 + at)
    elif action == 14:
        world.wait(at)
        world.check(which)
    elif action == 15:
        world.wait(at * 20)
        world.emit(which)
        world.check(which)
    elif action == 16:
        end.line.close()
        world.emit(which, at)
    elif action == 17:
        world.arrive(1 - which, bytes([value]) * count)
    elif action == 19:
        world.restart(which, end.line._number + 1 + value % 250)
    else:
        world.turn()
    if world.ends[0].line.state == line.CLOSED and at % 3:
        world.ends[0].line.open(world.now)
