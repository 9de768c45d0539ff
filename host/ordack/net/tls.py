"""How a connection that has come to a listener with TLS gets there."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

HANDSHAKE_TIMEOUT_S = 10.0
SHUT_TIMEOUT_S = 5.0  # for the last bytes to a peer that does not read, and its goodbye


class Handshake(asyncio.Protocol):
    """A connection that has come to a listener with TLS, until that is agreed on. begun: is called when it is there,
    and calls `secure`, or ends it."""

    def __init__(self, begun: Callable[[Handshake, asyncio.Transport], None]) -> None:
        self._begun = begun
        self._early = bytearray()  # what the peer has sent right behind its last word of the handshake
        self._is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()  # what comes is not for this protocol
        self._begun(self, transport)

    def data_received(self, data: bytes) -> None:
        self._early += data

    def connection_lost(self, _error: Exception | None) -> None:
        self._is_lost = True

    async def secure(self, transport: asyncio.Transport, context: ssl.SSLContext) -> asyncio.Transport:
        """Agree on TLS; the transport that speaks it. Raises what `words` has words for."""
        secured = await asyncio.get_running_loop().start_tls(
            transport,
            self,
            context,
            server_side=True,
            ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
            ssl_shutdown_timeout=SHUT_TIMEOUT_S,
        )
        if secured is None or self._is_lost:
            raise ConnectionResetError
        return secured

    def hand_over(self, transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
        """Let this protocol go on with what `secure` has given."""
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if self._early:
            protocol.data_received(bytes(self._early))
