"""A network namespace for the tests of one process, if root may make one. It has a loopback and nothing else.

No parallel test uses its ports, so a restarted program gets its port again; and packets stay on this machine.
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
_machine: int | None = None  # the original network of this process


def enter(config: pytest.Config) -> None:
    """Give this thread, its new threads and their programs a separate network. Does nothing without the right to make
    one, in a pytest process that only distributes tests, and for boards of a file or a Windows machine."""
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
    """Activate the loopback of a new network. Raises OSError."""
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP))


def is_own() -> bool:
    """Does this process have its own network?"""
    return _machine is not None


@contextlib.contextmanager
def of_machine() -> Iterator[None]:
    """Use the machine's network in this block, for this thread and its children: to ask a package registry."""
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
