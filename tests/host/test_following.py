"""Messages that follow each other on a link are made ready in C as its twin in Python makes them."""

from __future__ import annotations

from struct import pack_into

import packet_samples as samples  # type: ignore[import-not-found]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqqb import build, core
from mqqb.parse import transaction_offset
from ordack.broker.streams import ready_to_follow


@pytest.mark.rule("B-318")
@given(st.data())
def test_c_and_its_twin_make_the_same_ready_to_follow(data: st.DataObject) -> None:
    first = build.user_message(samples.SENDER, 7, samples.DIRECT, b"first", delivery="transactional")
    at = transaction_offset(first)
    packets = []
    for number in range(8, 8 + data.draw(st.integers(0, 6))):
        body = bytes(data.draw(st.integers(0, 9)))
        packet = build.user_message(samples.SENDER, number, samples.DIRECT, body, delivery="transactional")
        pack_into("<I", packet, at + core.TX_NUMBER_IN_PART, number)
        if data.draw(st.integers(0, 3)) == 0:
            place = data.draw(st.sampled_from((2, 3, 12, 60, 64, at - 1, at, at + 20)))
            packet[place] ^= 1 << data.draw(st.integers(0, 7))
        packets.append(bytes(packet))
    found = ready_to_follow(first, at, 7, packets)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "implementation", "python")
        assert ready_to_follow(first, at, 7, packets) == found
