"""The board's queue manager: outbox and inboxes on flash, links, `Node`. Runs unchanged on MicroPython and CPython."""

from node.message import Message
from node.node import Node, Queue
from node.outbox import OutboxDamaged, OutboxError, OutboxFull, OutboxWriteFailed

__all__ = ["Message", "Node", "OutboxDamaged", "OutboxError", "OutboxFull", "OutboxWriteFailed", "Queue"]
