"""A name server on this machine's loopback that says nothing until it is told to answer: one name, one address."""

import asyncio
import socket
import struct

_HEADER_BYTES = 12
_ANSWERED = 0x8180
_POINTER_TO_QUESTION = 0xC00C
_TYPE_A = 1
_CLASS_IN = 1
_TTL_S = 60


class NameServer(asyncio.DatagramProtocol):
    """Every name has the address that it answers; `asked` counts questions. `port`: where it listens once it is."""

    def __init__(self, address: str) -> None:
        self.asked = 0
        self.answers = False
        self.port = 0
        self._address = socket.inet_aton(address)
        self._transport: asyncio.DatagramTransport | None = None

    async def open(self, host: str) -> None:
        """Listen on a port of its own. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=(host, 0))
        self.port = self._transport.get_extra_info("sockname")[1]

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        """Count a question, and answer it if it answers."""
        self.asked += 1
        if self.answers and self._transport is not None:
            header = data[:2] + struct.pack(">HHHHH", _ANSWERED, 1, 1, 0, 0)
            record = struct.pack(">HHHIH", _POINTER_TO_QUESTION, _TYPE_A, _CLASS_IN, _TTL_S, 4) + self._address
            self._transport.sendto(header + data[_HEADER_BYTES:] + record, address)
