"""A network for the tests of one process alone, where root may make one: with a loopback, and nothing else.

No test beside them has its ports, so what is restarted gets its own again; and what a test sends stays on this machine.
"""

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_SET_FLAGS = 0x8914  # SIOCSIFFLAGS
_UP = 1  # IFF_UP
NETWORK = "/proc/thread-self/ns/net"
_machine: int | None = None  # the network that this process had at first


def enter(config: pytest.Config) -> None:
    """From now on this thread, those that it starts, and their programs have a network of their own. Nothing changes
    where this user may not make one, in a process of pytest that leaves the tests to others, and for what is outside:
    boards of a file, a Windows machine.
    """
    global _machine
    leaves_tests = getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput")
    has_others = getattr(config.option, "lg_env", None) or {"LG_ENV", "ORDACK_WINDOWS"} & os.environ.keys()
    if _machine is not None or leaves_tests or has_others or not Path(NETWORK).exists():
        return
    machine = os.open(NETWORK, os.O_RDONLY | os.O_CLOEXEC)
    if ctypes.CDLL(None).unshare(_NEW_NETWORK):
        os.close(machine)
        return
    _machine = machine
    bring_up()


def bring_up() -> None:
    """The loopback of a new network passes on what is sent there: at first it does not. Raises OSError."""
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP))


def is_own() -> bool:
    """Has this process a network of its own?"""
    return _machine is not None


@contextlib.contextmanager
def of_machine() -> Iterator[None]:
    """Within this, this thread and what it starts have the network of the machine: to ask a registry of packages."""
    if _machine is None:
        yield
        return
    own = os.open(NETWORK, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _join(_machine)
        try:
            yield
        finally:
            _join(own)
    finally:
        os.close(own)


def _join(network: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(network, _NEW_NETWORK):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
