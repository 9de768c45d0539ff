"""Whether a board and this machine hear each other, over the wires or the network that the file of boards says."""

import contextlib
import socket
import time
from pathlib import Path
from typing import Any, Final

import serial
from ordack.boards.repl import BoardError

CROSSES_WITHIN_S: Final = 5.0
REACHES_WITHIN_S: Final = 30.0
_UP: Final = b"up, ordack"
_DOWN: Final = b"down, ordack"
_SEND: Final = """
import machine
uart = machine.UART({uart}, {baud})
uart.read()
uart.write({word!r})
"""
_HEAR: Final = """
import time
heard, begun = b"", time.ticks_ms()
while {word!r} not in heard and time.ticks_diff(time.ticks_ms(), begun) < {within_ms}:
    heard += uart.read() or b""
    time.sleep_ms(5)
print(repr(heard))
"""
_CONNECT: Final = """
import socket, time
end = time.time() + {within_s}
try:
    if {lan}:
        import network
        lan = network.LAN()
        lan.active(True)
        lan.ipconfig(dhcp4=True)
        while not lan.isconnected() and time.time() < end:
            time.sleep_ms(50)
    link = socket.socket()
    link.settimeout({within_s})
    link.connect(socket.getaddrinfo({host!r}, {port})[0][-1])
    link.send({word!r})
    link.close()
    print(repr(""))
except Exception as error:
    print(repr(repr(error)))
"""


def cross(repl: Any, line: Path, uart: int, baud: int) -> str:
    """A word crosses the line each way. Raises OSError, with what to look at."""
    heard, end = b"", time.monotonic() + CROSSES_WITHIN_S
    with serial.serial_for_url(str(line), baud, timeout=0.05, exclusive=True) as port:
        repl.run(_SEND.format(uart=uart, baud=baud, word=_UP))
        while _UP not in heard and time.monotonic() < end:
            heard += port.read(max(1, port.in_waiting))
        port.write(_DOWN)
        within = int(1000 * CROSSES_WITHIN_S)
        at_board = repl.run(_HEAR.format(word=_DOWN, within_ms=within), CROSSES_WITHIN_S + 10.0)
    came, went = _UP in heard, _DOWN in at_board
    if came and went:
        return f"UART {uart} and {line}: a word came both ways"
    if came:
        raise OSError(f"what {line} sends does not come to its UART {uart}: look at the wire from TX there to RX here")
    if went:
        raise OSError(f"what it sends at UART {uart} does not come to {line}: look at the wire from its TX to RX there")
    raise OSError(
        f"nothing passes between its UART {uart} and {line}: TX and RX may be swapped, the ground may be missing, or "
        f"line or uart name others; {baud} baud are asked for"
    )


def reach(repl: Any, host: str, listen: str, lan: bool = False) -> str:
    """The board, or what runs a program elsewhere, connects to this machine where the fault proxy would listen. Raises
    OSError, with what to look at.
    """
    try:
        server = socket.create_server((listen, 0))
    except OSError:
        raise OSError(f"this machine has no address {listen}: listen of its NodeDriver names where to listen") from None
    with server:
        words = {"host": host, "port": server.getsockname()[1], "word": _UP, "lan": lan, "within_s": REACHES_WITHIN_S}
        try:
            said = repl.run(_CONNECT.format(**words), 3 * REACHES_WITHIN_S)
        except (BoardError, OSError) as error:
            said = str(error)
        server.settimeout(1.0)
        with contextlib.suppress(OSError):
            link, _ = server.accept()
            with link:
                link.settimeout(1.0)
                if link.recv(100) == _UP:
                    return f"reaches this machine at {host}"
    said = said or "what came is not its word"
    raise OSError(
        f"it does not reach this machine at {host}: {said}; is it in the network (a microcontroller's boot.py brings "
        "Wi-Fi up, lan: true its Ethernet), is that an address of this machine, and does a firewall let it in?"
    )
