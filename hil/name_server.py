"""A name server on this machine's loopback that answers or says nothing, as it is told: every name has one address."""

import asyncio
import socket
import struct
from typing import cast

from hil.boards import Mortal

_HEADER_BYTES = 12
_ANSWERED = 0x8180
_POINTER_TO_QUESTION = 0xC00C
_TYPE_A = 1
_CLASS_IN = 1
_TTL_S = 60


class NameServer(Mortal, asyncio.DatagramProtocol):
    """`asked` counts questions, `unanswered` those that it did not answer.
    `port`: where it listens once it is. It is a victim of campaigns, which is killed when it does not answer any more.
    """

    alive = True

    def __init__(self, address: str, answers: bool = False) -> None:
        self.asked = self.unanswered = 0
        self.answers = answers
        self._owed = False
        self.port = 0
        self._address = socket.inet_aton(address)
        self._transport: asyncio.DatagramTransport | None = None

    async def open(self, host: str) -> None:
        """Listen on a port of its own. Raises OSError."""
        loop = asyncio.get_running_loop()
        await loop.create_datagram_endpoint(lambda: self, local_addr=(host, 0))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It listens."""
        self._transport = cast(asyncio.DatagramTransport, transport)
        self.port = transport.get_extra_info("sockname")[1]

    def kill(self) -> None:
        self.answers, self._owed = False, True

    def power_up(self) -> None:
        """Answer again, but not the next question if there was none meanwhile: a board may take long to start."""
        self.answers = True

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        """Count a question, and answer it if it answers."""
        is_answered = self.answers and not self._owed
        self.asked += 1
        self.unanswered += not is_answered
        self._owed = False
        if is_answered and self._transport is not None:
            header = data[:2] + struct.pack(">HHHHH", _ANSWERED, 1, 1, 0, 0)
            record = struct.pack(">HHHIH", _POINTER_TO_QUESTION, _TYPE_A, _CLASS_IN, _TTL_S, 4) + self._address
            self._transport.sendto(header + data[_HEADER_BYTES:] + record, address)
