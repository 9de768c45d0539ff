"""Those with whom a node talks: whom it connects to, by the addresses of its queues, and who connects to it."""

from mqqb import const

from node.link import TICK_MS, Backoff, TcpLink
from node.peer import Peer

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from node.interfaces import Link, Waitable
    from node.listener import TcpListener
    from node.peer import Source

PORT = 1801  # B-001
ACCEPTED_MAX = 4  # connections that others have made to this node, at a time


class Peers:
    """The peers of a node. connect, listen, random: as Node has them. `links`: all that may become ready."""

    def __init__(
        self,
        source: "Source",
        connect: "tuple[str, int] | Link | None",
        listen: "tuple[str, int] | None",
        random: "Callable[[], float]",
    ) -> None:
        self.links: "list[Waitable]" = []
        self.all: "list[Peer]" = []
        self._source = source
        self.connect = connect
        self._random = random
        self._listener: "TcpListener | None" = None
        if listen:
            from node.listener import TcpListener  # not before a program uses it

            self._listener = TcpListener(listen[0], listen[1], Backoff(random))
            self.links.append(self._listener)

    def add(self, link: "Link", backoff: "Backoff | None") -> Peer:
        """Another one, at the other end of this link. backoff: as Peer has it."""
        peer = Peer(self._source, link, backoff)
        self.all.append(peer)
        self.links.append(link)
        return peer

    def address(self, name: str) -> "tuple[str, int] | Link":
        """Where messages for that format name go. Raises ValueError: nowhere."""
        if not name.upper().startswith(("DIRECT=TCP:", "DIRECT=OS:")):
            raise ValueError("only direct format names are supported, DIRECT=TCP:... or DIRECT=OS:...")
        return self.connect or (name[name.index(":") + 1 : name.index("\\")], PORT)

    def at(self, address: "tuple[str, int] | Link") -> Peer:
        """The peer that is reached there."""
        for peer in self.all:
            known: "Any" = peer.link
            if peer.backoff and (known is address or (peer.address and (known.host, known.port) == address)):
                return peer
        link: "Link" = TcpLink(address[0], address[1]) if isinstance(address, tuple) else address
        return self.add(link, Backoff(self._random))

    def poll(self, now: int) -> int:
        """Do what they need now; ms until it wants to be called again at the latest."""
        wait = TICK_MS
        if self._listener is not None:
            link = self._listener.poll(now, self._source)
            if link is not None:
                if len([peer for peer in self.all if peer.backoff is None]) >= ACCEPTED_MAX:
                    link.close()
                else:
                    self.add(link, None)
        for peer in self.all:
            wait = min(wait, peer.poll(now))
            if peer.backoff is None and peer.session is None:  # another one connected, and has gone
                self.all.remove(peer)
                self.links.remove(peer.link)
                return 0  # the list has changed
        return wait

    def close(self, now: int) -> None:
        """End all connections."""
        for peer in self.all:
            peer.end(now, "closed")
        if self._listener is not None:
            self._source.leave(self._listener)
            self._listener.close()
