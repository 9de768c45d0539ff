"""A TCP port that stays reserved while its listener is killed and restarted."""

import socket


def hold_port(address: str = "127.0.0.1") -> socket.socket:
    """A socket bound to a free port of this address, 0.0.0.0 for all addresses. It never listens. While the socket is
    open, the system assigns the port to no program that asks for any free port. A program that asks for its number,
    with SO_REUSEADDR, can listen there, also after a restart. Raises OSError."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((address, 0))
    return held
