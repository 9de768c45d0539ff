"""A TCP port that stays the same while who listens there is killed and started again."""

import socket


def hold_port(address: str = "127.0.0.1") -> socket.socket:
    """A socket that is bound to a free port of this address, 0.0.0.0: of every one, and never listens. As long as it
    is open, the system gives the port to nobody who wants any free one: not to listen, nor to connect from. Who asks
    for it by its number, with SO_REUSEADDR, listens there, and again after being killed. Raises OSError.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((address, 0))
    return held
