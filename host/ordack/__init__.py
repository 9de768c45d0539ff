"""ordack: a queue manager for the MSMQ binary protocol, and the Python API of applications on the same machine.

with ordack.connect("/var/lib/ordack") as client: ...
async with ordack.connect_async("/var/lib/ordack") as client: ...
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ordack.client import Client, Queue, Transaction
from ordack.formatters import Body, BodyError
from ordack.message import Message
from ordack.names import BadName
from ordack.receiving import Cursor, Empty, Received, Receiving, Reject
from ordack.sending import Letter, Sent
from ordack.store import StoreBusy, StoreError, StoreFull, StoreUnknown
from ordack.store.queues import NoSuchQueue, QueueExists

if TYPE_CHECKING:
    from ordack.aio import AsyncClient

__all__ = [
    "BadName",
    "Body",
    "BodyError",
    "Client",
    "Cursor",
    "Empty",
    "Letter",
    "Message",
    "NoSuchQueue",
    "Queue",
    "QueueExists",
    "Received",
    "Receiving",
    "Reject",
    "Sent",
    "StoreBusy",
    "StoreError",
    "StoreFull",
    "StoreUnknown",
    "Transaction",
    "connect",
    "connect_async",
]


def connect(folder: str | os.PathLike[str]) -> Client:
    """A Client of the store in `folder`. Raises StoreError if there is none."""
    return Client(folder)


def connect_async(folder: str | os.PathLike[str]) -> AsyncClient:
    """A Client for asyncio of the store in `folder`; entering it raises StoreError if there is none."""
    from ordack.aio import AsyncClient  # who does not use asyncio does not wait for it

    return AsyncClient(folder)
