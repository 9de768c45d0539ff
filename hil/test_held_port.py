"""A port that is held is nobody else's while who listens there is away."""

import subprocess
import sys

import pytest

from hil.boards import ROOT

PORTS = 50
PROGRAM = """
import socket, sys
from hil.held_port import hold_port
from hil.own_network import bring_up

bring_up()
with open("/proc/sys/net/ipv4/ip_local_port_range", "w") as file:
    file.write("40000 %d" % (40000 + int(sys.argv[1]) - 1))
held = hold_port()
port = held.getsockname()[1]
if sys.argv[2] == "let go":
    held.close()

def listening():
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("127.0.0.1", port))
    made.listen()
    return made

listening().close()
with socket.create_server(("127.0.0.1", 39999), backlog=100) as busy:
    for taking in ("listen", "connect"):
        taken = []
        try:
            while True:
                taken.append(socket.socket())
                if taking == "listen":
                    taken[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    taken[-1].bind(("127.0.0.1", 0))
                    taken[-1].listen()
                else:
                    taken[-1].connect(busy.getsockname())
        except OSError:
            print(taking, port in [one.getsockname()[1] for one in taken])
        for one in taken:
            one.close()
listening().close()
"""


@pytest.mark.parametrize(("held", "is_taken"), [("held", False), ("let go", True)])
def test_a_held_port_is_given_to_nobody_even_if_all_others_are_taken(held: str, is_taken: bool) -> None:
    """Without the socket that holds it, it is: that is what befell campaigns beside each other."""
    command = [sys.executable, "-c", PROGRAM, str(PORTS), held]
    done = subprocess.run(["unshare", "--net", *command], cwd=ROOT, capture_output=True, text=True, timeout=60)
    if "unshare failed" in done.stderr:
        pytest.skip(f"this machine gives no network of one's own: {done.stderr.strip()}")
    assert (done.stdout, done.stderr) == (f"listen {is_taken}\nconnect {is_taken}\n", "")
