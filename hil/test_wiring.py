"""Whether a board reaches this machine, tried with programs of this machine in place of its REPL. test_lab.py has the
same with a Cortex-M3 in QEMU, test_computer.py over SSH.
"""

import ast
import io
import socket
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

import pytest
from ordack.boards.repl import BoardError

from hil import wiring
from hil.boards import LOOPBACK


class Repl:
    """Runs what a board is given, in which `change` may put one text in the place of another."""

    def __init__(self, change: Callable[[str], str] = str) -> None:
        self._change = change

    def run(self, code: str, _: float = 0.0) -> Any:
        out = io.StringIO()
        with redirect_stdout(out):
            exec(self._change(code), {})
        return ast.literal_eval(out.getvalue())


class Dead:
    def run(self, *_: object) -> Any:
        raise BoardError("the board does not answer")


def test_a_board_that_connects_with_its_word_reaches_this_machine() -> None:
    assert wiring.reach(Repl(), LOOPBACK, LOOPBACK) == f"reaches this machine at {LOOPBACK}"


@pytest.mark.parametrize(
    ("repl", "reason"),
    [
        (Dead(), "the board does not answer"),
        (
            Repl(lambda code: code.replace("up, ordack", "GET / HTTP/1.0")),
            "what came is not its word",
        ),  # that is somebody else
        (Repl(lambda code: code.replace("link = ", "import no_such_module\n    link = ")), "no_such_module"),
    ],
)
def test_one_that_does_not_is_told_with_what_it_said_and_what_to_look_at(repl: Any, reason: str) -> None:
    with pytest.raises(OSError, match=f"^it does not reach this machine at {LOOPBACK}: .*{reason}.*firewall"):
        wiring.reach(repl, LOOPBACK, LOOPBACK)


def test_an_address_that_this_machine_has_not_is_told_and_the_board_is_not_asked() -> None:
    with pytest.raises(OSError, match=r"^this machine has no address 192\.0\.2\.1: listen of its NodeDriver"):
        wiring.reach(Dead(), "192.0.2.1", "192.0.2.1")


def test_the_port_that_was_tried_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    servers: list[socket.socket] = []
    create = socket.create_server

    def note(*arguments: Any) -> socket.socket:
        servers.append(create(*arguments))
        return servers[0]

    monkeypatch.setattr(socket, "create_server", note)
    wiring.reach(Repl(), LOOPBACK, LOOPBACK)
    assert [server.fileno() for server in servers] == [-1]
