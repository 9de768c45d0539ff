"""The board's queue manager: outbox and inboxes on flash, links, `Node`. Runs unchanged on MicroPython and CPython."""

import sys

from mqqb import MICROPYTHON

if MICROPYTHON:  # MicroPython searches the flash at each import of a built-in module: import these without a path
    _path = sys.path[:]
    sys.path.clear()
    _taken = []
    _those = "array", "binascii", "select", "struct", "vfs", "collections", "errno", "os", "random", "socket", "time"
    for _name in _those:
        if _name not in sys.modules:
            try:
                sys.modules[_name] = __import__(_name)
                _taken.append(_name)
            except ImportError:
                pass  # missing on this board
    sys.path.extend(_path)

from ordack.node.node import Node
from ordack.node.queue import DestinationQueue, OutboxMessage
from ordack.node.storage.log import OutboxDamaged, OutboxError, OutboxFull, OutboxWriteFailed

if MICROPYTHON:
    for _name in _taken:
        if _name not in _those[:5]:  # a program may have its own, extended versions of the others
            del sys.modules[_name]

__all__ = [
    "DestinationQueue",
    "Node",
    "OutboxDamaged",
    "OutboxError",
    "OutboxFull",
    "OutboxMessage",
    "OutboxWriteFailed",
]
