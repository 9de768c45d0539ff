"""The board's queue manager: outbox and inboxes on flash, links, `Node`. Runs unchanged on MicroPython and CPython."""

from node.log import OutboxDamaged, OutboxError, OutboxFull, OutboxWriteFailed
from node.message import Message
from node.node import Node
from node.queue import Queue

__all__ = ["Message", "Node", "OutboxDamaged", "OutboxError", "OutboxFull", "OutboxWriteFailed", "Queue"]
