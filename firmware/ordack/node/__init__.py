"""The board's queue manager: outbox and inboxes on flash, links, `Node`. Runs unchanged on MicroPython and CPython."""

import sys

from mqqb import MICROPYTHON

if MICROPYTHON:  # which else looks for a built-in module on the flash at each import, before it takes its own
    for _name in ("array", "binascii", "errno", "os", "select", "struct"):
        sys.modules[_name] = __import__(_name)

from ordack.node.log import OutboxDamaged, OutboxError, OutboxFull, OutboxWriteFailed
from ordack.node.message import Message
from ordack.node.node import Node
from ordack.node.queue import Queue

__all__ = ["Message", "Node", "OutboxDamaged", "OutboxError", "OutboxFull", "OutboxWriteFailed", "Queue"]
