"""ordack: a queue manager for the MSMQ binary protocol, and the Python API of applications.

with ordack.connect("/var/lib/ordack") as client: ...
with ordack.connect("tls://plant:1804", certificate=..., key=..., authority=...) as client: ...
async with ordack.connect_async("/var/lib/ordack") as client: ...
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from pkgutil import extend_path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ordack.api.aio import AsyncClient
    from ordack.api.remote import StoreUnreachable
    from ordack.broker.message import Letter, Message
    from ordack.broker.sending import Sent
    from ordack.client import Client, Empty, Queue, Received, Receiving, Reject, Transaction
    from ordack.config.config import TlsFiles
    from ordack.config.names import BadName
    from ordack.formatters import Body, BodyError
    from ordack.store import StoreBusy, StoreError, StoreFull, StoreUnknown
    from ordack.store.queues import NoSuchQueue, QueueExists, QueueNotEmpty

__all__ = [
    "BadName", "Body", "BodyError", "Client", "Empty", "Letter", "Message", "NoSuchQueue", "Queue", "QueueExists",
    "QueueNotEmpty", "Received", "Receiving", "Reject", "Sent", "StoreBusy", "StoreError", "StoreFull", "StoreUnknown",
    "StoreUnreachable", "Transaction", "connect", "connect_async",
]  # fmt: skip


__path__ = extend_path(__path__, __name__)  # ordack.node, the part for boards, is in firmware/ of a checkout

File = str | os.PathLike[str]

_MODULES = (
    "client",
    "api.remote",
    "formatters",
    "broker.message",
    "config.names",
    "broker.sending",
    "store",
    "store.queues",
)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import the applications' API on first use: other users of the package, such as Spark tasks, need not wait."""
        for module in _MODULES if name in __all__ else ():
            found = vars(import_module(f"ordack.{module}"))
            if name in found:
                return found[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def connect(
    place: File, *, certificate: File | None = None, key: File | None = None, authority: File | None = None
) -> Client:
    """A Client of the store in the folder `place`, or of the `ordack serve` for applications at `tcp://HOST:PORT` or
    `tls://HOST:PORT`. certificate, key, authority: PEM files for TLS. Raises StoreError if there is none, ValueError
    for an unusable address or file."""
    from ordack.client import Client

    return Client(place, tls=_files(place, certificate, key, authority))


def connect_async(
    place: File, *, certificate: File | None = None, key: File | None = None, authority: File | None = None
) -> AsyncClient:
    """A Client for asyncio; arguments as `connect`. Entering it raises the errors of `connect`."""
    from ordack.api.aio import AsyncClient  # slow to import
    from ordack.client import Client

    files = _files(place, certificate, key, authority)
    return AsyncClient(str(place), lambda: Client(place, tls=files))


def _files(place: File, *files: File | None) -> TlsFiles | None:
    from ordack.config.config import TlsFiles

    found = [Path(file) for file in files if file is not None]
    if found and len(found) < len(files):
        raise ValueError(f"{place}: certificate, key and authority go together: give all three files")
    return TlsFiles(*found) if found else None
