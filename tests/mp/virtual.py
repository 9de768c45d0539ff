"""Time that passes when a test says so, in all modules of a node."""

from ordack.node import clock, timer
from ordack.node.talk import dns, link

MODULES = (clock, dns, link, timer)
REAL = (clock.ticks_ms, clock.ticks_diff)


opened = []  # sockets of the test, which `run` closes


class Ticks:
    """Time passes when a test says so, until the test that `run` runs is over."""

    def __init__(self):
        self.now = (1 << 29) - 5000  # where MicroPython's ticks wrap on a small board is not far
        _set(lambda: self.now, lambda later, earlier: later - earlier)


class Nowhere:
    """A link that is never open."""

    stream = None
    wants_write = False

    def open(self):
        pass

    def is_open(self):
        return False

    def close(self):
        pass


class Started:
    """In place of the tasks of a node that a test polls itself."""

    def wake(self):
        pass

    def leave(self, link):
        pass


def _set(ticks_ms, ticks_diff):
    for module in MODULES:
        module.ticks_ms, module.ticks_diff = ticks_ms, ticks_diff


def run(test):
    """Run a test; after it its sockets are closed, time is real again, and no name is known."""
    try:
        test()
    finally:
        while opened:
            opened.pop().close()
        _set(*REAL)
        dns._cache.clear()
        dns.SERVERS[:] = []
