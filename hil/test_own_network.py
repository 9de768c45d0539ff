"""What a test sends stays on this machine, and no test beside it takes its ports."""

import errno
import socket
from pathlib import Path

import pytest

from hil import own_network

ELSEWHERE = ("192.0.2.1", 9)  # RFC 5737: nobody's


def test_nothing_leads_out_of_the_network_of_a_test() -> None:
    if not own_network.is_own():
        pytest.skip("this user may not make a network")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker, pytest.raises(OSError) as refused:
        asker.connect(ELSEWHERE)
    assert refused.value.errno == errno.ENETUNREACH


def test_who_asks_a_registry_has_the_network_of_the_machine_for_that_time_alone() -> None:
    if not own_network.is_own():
        pytest.skip("this user may not make a network")
    own = _network()
    with own_network.of_machine():
        machine = _network()
    assert machine != own == _network()


def _network() -> str:
    return str(Path(own_network.NETWORK).readlink())
