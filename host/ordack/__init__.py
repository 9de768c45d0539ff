"""ordack: a queue manager for the MSMQ binary protocol, and the Python API of applications on the same machine."""

from ordack.client import Client, Empty, Message, Queue
from ordack.names import BadName
from ordack.store import StoreBusy, StoreError, StoreFull, StoreUnknown
from ordack.store.queues import NoSuchQueue, QueueExists

__all__ = [
    "BadName",
    "Client",
    "Empty",
    "Message",
    "NoSuchQueue",
    "Queue",
    "QueueExists",
    "StoreBusy",
    "StoreError",
    "StoreFull",
    "StoreUnknown",
]
