"""The board's queue manager: outbox and inboxes on flash, links, `Node`. Runs unchanged on MicroPython and CPython."""

from ordack.node.log import OutboxDamaged, OutboxError, OutboxFull, OutboxWriteFailed
from ordack.node.message import Message
from ordack.node.node import Node
from ordack.node.queue import Queue

__all__ = ["Message", "Node", "OutboxDamaged", "OutboxError", "OutboxFull", "OutboxWriteFailed", "Queue"]
