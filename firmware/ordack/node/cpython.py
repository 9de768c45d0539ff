"""What the node does differently on CPython. Boards do not have this file."""

import asyncio
import errno
import os
import ssl
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from io import FileIO
    from typing import Any

    Buffer = bytes | bytearray | memoryview


def in_forked(call: "Callable[[], None]") -> None:
    """Call it in each process that is forked from this one."""
    os.register_at_fork(after_in_child=call)


def ticks_ms() -> int:
    """Milliseconds from any start; what is between two of them tells ticks_diff."""
    return time.monotonic_ns() // 1000000


def ticks_diff(later: int, earlier: int) -> int:
    """Milliseconds between two ticks_ms."""
    return later - earlier


def append(file: "Any", data: "Buffer", size: int) -> int:
    """Write the beginning of data; how much of it was."""
    return int(file.write(memoryview(data)[:size]))


def sync(file: "FileIO") -> None:
    """Make a file durable as it is."""
    os.fsync(file.fileno())


def sync_folder(folder: str) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def readinto(link: "Any", buffer: memoryview) -> int:
    """TcpLink.readinto."""
    try:
        count = int(link.stream.recv_into(buffer))
    except BlockingIOError:
        return 0
    if not count:
        raise ConnectionResetError(errno.ECONNRESET, "the peer closed the connection")
    return count


def write(link: "Any", data: memoryview) -> int:
    """TcpLink.write."""
    try:
        count = int(link.stream.send(data))
    except BlockingIOError:
        count = 0
    link.wants_write = count < len(data)
    return count


def tls_context(authority: str, certificate: str, key: str) -> "Any":
    """What a TlsLink speaks TLS with."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority)
    context.load_cert_chain(certificate, key)
    return context


def tls_readinto(link: "Any", buffer: memoryview) -> int:
    """TlsLink.readinto."""
    try:
        return readinto(link, buffer)
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return 0


def tls_write(link: "Any", data: memoryview) -> int:
    """TlsLink.write."""
    try:
        return write(link, data)
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
        link.wants_write = isinstance(error, ssl.SSLWantWriteError)
        return 0


async def sleep(tasks: "Any", wait: int) -> None:
    """Tasks._sleep: for so many ms, or until `wake`."""
    loop = asyncio.get_running_loop()
    tasks.sleeping = loop.create_future()
    timer = loop.call_later(wait / 1000, tasks.wake)
    try:
        await tasks.sleeping
    finally:
        timer.cancel()
        tasks.sleeping = None


def wake(sleeping: "Any") -> None:
    """End a `sleep`."""
    if sleeping is not None and not sleeping.done():
        sleeping.set_result(None)


def start_watching(tasks: "Any", link: "Any") -> "Any":
    """Tasks._start_watching."""
    loop = asyncio.get_running_loop()
    loop.add_reader(link.stream, tasks.wake)
    if link.wants_write:
        loop.add_writer(link.stream, tasks.wake)
    return loop


def unwatch(watched: "tuple[Any, ...]") -> None:
    """End what `start_watching` began."""
    watched[3].remove_reader(watched[1])
    watched[3].remove_writer(watched[1])
