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


@pytest.mark.rule("B-021", "B-199")
def test_each_request_has_the_next_cookie_from_1_on() -> None:
    pings = Pings(GUID)
    for cookie in (1, 2, 3):
        assert pings.request(0) == _datagram(0, cookie, GUID)
    pings.cookie = 0xFFFFFFFF
    assert pings.request(0) == _datagram(0, 0, GUID)


@pytest.mark.rule("B-200", "B-201")
@given(flags=st.integers(0, 0xFFFF), cookie=st.integers(0, 4), signature=st.sampled_from([0x5548, 0x5549]))
def test_only_the_answer_to_the_latest_request_counts_and_once(flags: int, cookie: int, signature: int) -> None:
    pings = Pings(GUID)
    answer = _datagram(flags, cookie, signature=signature)
    assert pings.response(answer) is None  # no request waits
    pings.request(0)
    pings.request(0)
    refused = pings.response(answer)
    if cookie == 2 and signature == 0x5548:
        assert refused is bool(flags & 2)
        assert pings.response(answer) is None
        assert not pings.waiting
    else:
        assert refused is None
        assert pings.waiting
    for size in (0, 23, 25):
        assert pings.response((answer + b"x")[:size]) is None


@pytest.mark.rule("B-139", "B-200")
def test_an_answer_that_takes_a_second_is_none() -> None:
    pings = Pings(GUID)
    assert not pings.timed_out(10**6)
    pings.request(500)
    assert not pings.timed_out(1499)
    assert pings.timed_out(1500)
    assert not pings.timed_out(1500)
    assert pings.response(_datagram(0, 1)) is None


@pytest.mark.rule("B-202")
@given(flags=st.integers(0, 0xFFFF), cookie=UINT32, refuse=st.booleans())
def test_an_answer_repeats_rc_and_cookie_and_says_whether_a_session_would_be_refused(
    flags: int, cookie: int, refuse: bool
) -> None:
    answer = Pings(GUID).answer(_datagram(flags, cookie), refuse)
    assert answer == _datagram(flags & 1 | 2 * refuse, cookie, GUID)


@pytest.mark.rule("B-202")
@given(st.binary(max_size=40) | st.integers(0, 0xFFFF).map(lambda signature: _datagram(0, 1, signature=signature)))
def test_what_is_no_request_gets_no_answer(datagram: bytes) -> None:
    is_one = len(datagram) == 24 and datagram[2:4] == b"\x48\x55"
    assert (Pings(GUID).answer(datagram, False) is not None) == is_one


@pytest.mark.rule("B-006")
def test_pings_are_off_and_on_port_3527_unless_told_otherwise() -> None:
    config = Config()
    assert (config.answer_pings, config.send_pings, config.ping_port) == (False, False, 3527)
