"""Pings: what is sent, what is answered, what is ignored."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ordack.config.config import Config
from ordack.server.ping import Pings

GUID = bytes(range(16))
OTHER = bytes(range(16, 32))
UINT32 = st.integers(0, 0xFFFFFFFF)


def _datagram(flags: int, cookie: int, guid: bytes = OTHER, signature: int = 0x5548) -> bytes:
    return struct.pack("<HHI", flags, signature, cookie) + guid


def _pings() -> Pings:
    return Pings(GUID, 3527, lambda _address: False, lambda _text: None, lambda _hop, _refused: None)


@pytest.mark.rule("B-021", "B-199")
def test_each_request_has_the_next_cookie_from_1_on() -> None:
    pings = _pings()
    for cookie in (1, 2, 3):
        assert pings.request() == _datagram(0, cookie, GUID)
    pings.cookie = 0xFFFFFFFF
    assert pings.request() == _datagram(0, 0, GUID)


@pytest.mark.rule("B-200", "B-201")
@given(flags=st.integers(0, 0xFFFF), cookie=st.integers(0, 4), signature=st.sampled_from([0x5548, 0x5549]))
def test_only_the_answer_to_the_latest_request_counts(flags: int, cookie: int, signature: int) -> None:
    pings = _pings()
    answer = _datagram(flags, cookie, signature=signature)
    pings.request()
    pings.request()
    assert pings.response(answer) is (bool(flags & 2) if cookie == 2 and signature == 0x5548 else None)
    for size in (0, 23, 25):
        assert pings.response((answer + b"x")[:size]) is None


@pytest.mark.rule("B-202")
@given(flags=st.integers(0, 0xFFFF), cookie=UINT32, refuse=st.booleans())
def test_ping_answer_repeats_cookie_and_signals_refusal(flags: int, cookie: int, refuse: bool) -> None:
    answer = _pings().answer(_datagram(flags, cookie), refuse)
    assert answer == _datagram(flags & 1 | 2 * refuse, cookie, GUID)


@pytest.mark.rule("B-202")
@given(st.binary(max_size=40) | st.integers(0, 0xFFFF).map(lambda signature: _datagram(0, 1, signature=signature)))
def test_invalid_ping_request_gets_no_answer(datagram: bytes) -> None:
    is_one = len(datagram) == 24 and datagram[2:4] == b"\x48\x55"
    assert (_pings().answer(datagram, False) is not None) == is_one


@pytest.mark.rule("B-006")
def test_pings_are_off_and_on_port_3527_unless_told_otherwise() -> None:
    config = Config()
    assert (config.answer_pings, config.send_pings, config.ping_port) == (False, False, 3527)
