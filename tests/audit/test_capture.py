"""Captures: what is in the file comes out as the packets that were sent, whatever happened to their segments."""

import io
import itertools
import struct
import tracemalloc
from collections.abc import Iterable, Iterator

import dpkt
import packet_samples as samples  # type: ignore[import-not-found]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqqb import build
from ordack.capture.reading import FoundPacket, packets

from tests.support.capture_files import (
    ETHERNET,
    FRAMES,
    START,
    pcap,
    segment,
    syn,
)

SESSION = [FRAMES[3], FRAMES[5], FRAMES[7], bytes(build.user_message(samples.SENDER, 1, samples.DIRECT, b"x" * 300))]


class Pipe(io.BytesIO):
    """Gives what it has in small pieces."""

    def __init__(self, data: bytes, piece: int) -> None:
        super().__init__(data)
        self._piece = piece

    def read1(self, size: int | None = -1, /) -> bytes:
        return super().read1(self._piece)


def cuts(data: bytes) -> list[FoundPacket]:
    """What is in a capture; problems have no bytes. It is the same if the file comes in pieces."""
    found = list(packets(io.BytesIO(data)))
    for piece in (7, 1000):
        assert list(packets(Pipe(data, piece))) == found
    return found


def segments(stream: bytes, size: int, first: int = 1000) -> list[bytes]:
    return [segment(first + at, stream[at : at + size]) for at in range(0, len(stream), size)]


# ---- files --------------------------------------------------------------------------------------


def test_ethernet_padding_is_no_data() -> None:
    data = pcap(
        [ETHERNET + b"\x08\x00" + segment(1000) + bytes(6), ETHERNET + b"\x08\x00" + segment(1000, FRAMES[5])], 1
    )
    assert [cut.data for cut in cuts(data)] == [FRAMES[5]]


def test_files_that_dpkt_writes() -> None:
    for writer in (dpkt.pcap.Writer, dpkt.pcapng.Writer):
        file = io.BytesIO()
        out = writer(file, linktype=1) if writer is dpkt.pcap.Writer else writer(file)
        for data in segments(b"".join(SESSION), 700):
            out.writepkt(ETHERNET + b"\x08\x00" + data, ts=START)
        found = cuts(file.getvalue())
        assert [cut.data for cut in found] == SESSION
        assert {cut.time for cut in found} == {START}


# ---- streams ------------------------------------------------------------------------------------


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[list[bytes], list[bytes]]:
    """(packets sent, IP packets in the capture): cut anywhere, overlapping, repeated, out of order."""
    sent = draw(st.lists(st.sampled_from([*SESSION, FRAMES[8]]), min_size=1, max_size=4))
    stream = b"".join(sent)
    first = draw(st.sampled_from([0, 1000, 0xFFFFFFFE, 0xFFFFFF00, 0x7FFFFFF0]))
    bounds = sorted({0, len(stream), *draw(st.lists(st.integers(1, len(stream) - 1), max_size=8))})
    pieces = list(itertools.pairwise(bounds))
    for _ in range(draw(st.integers(0, 6))):
        begin = draw(st.integers(0, len(stream) - 1))
        pieces.append((begin, draw(st.integers(begin + 1, len(stream)))))
    pieces = draw(st.permutations(pieces))
    records = [segment(first + begin, stream[begin:end]) for begin, end in pieces]
    return sent, [syn(first - 1), *records]


@given(case=deliveries())
def test_reassembly_restores_packets_from_any_segment_order(case: tuple[list[bytes], list[bytes]]) -> None:
    sent, records = case
    found = cuts(pcap(records))
    assert [cut.data for cut in found] == sent
    assert not any(cut.problem for cut in found)
    offsets = [sum(map(len, sent[:index])) for index in range(len(sent))]
    assert [cut.offset for cut in found] == offsets


@given(case=deliveries(), lost=st.integers(1, 8))
def test_lost_tcp_segment_is_reported_and_later_packets_found(case: tuple[list[bytes], list[bytes]], lost: int) -> None:
    sent, records = case
    del records[lost : lost + 1]
    found = cuts(pcap([*records, segment(0)]))
    good = [cut.data for cut in found if not cut.problem]
    assert good == sent or len(good) < len(sent)
    assert all(data in sent for data in good)
    assert [cut.offset for cut in found] == sorted(cut.offset for cut in found)


@pytest.mark.parametrize("size", [3000, 50, 20, 11, 1])
def test_signature_in_body_is_not_parsed_as_packet_after_gap(size: int) -> None:
    body = b"....LIOR" + bytes(20) + b"\x10\0\3\0LIOR\xff\xff\xff\xff" + bytes(12) + b"LIOR"
    stream = bytes(build.user_message(samples.SENDER, 1, samples.DIRECT, body)) + FRAMES[5]
    found = cuts(pcap([syn(999), *segments(stream[10:], size, 1010)]))
    assert [cut.data for cut in found] == [b"", FRAMES[5]]


@pytest.mark.parametrize("skip", [0, 1, 31, 700, 2100])
@pytest.mark.parametrize("size", [7, 500])
def test_connection_older_than_capture_starts_at_next_packet(skip: int, size: int) -> None:
    stream = (FRAMES[5] + FRAMES[7] + FRAMES[8])[skip:]
    found = cuts(pcap(segments(stream, size)))
    good = [cut.data for cut in found if not cut.problem]
    assert good == (
        [FRAMES[5], FRAMES[7], FRAMES[8]] if skip == 0 else [FRAMES[7], FRAMES[8]] if skip < 32 else [FRAMES[8]]
    )
    assert [cut.offset for cut in found if cut.problem] == ([0] if skip else [])


def test_new_syn_starts_new_stream_and_repeated_syn_does_not() -> None:
    records = [syn(999), segment(1000, FRAMES[7][:300]), syn(999), segment(1300, FRAMES[7][300:350])]
    records += [syn(4999), segment(5000, FRAMES[5]), segment(5032, FRAMES[8])]
    found = cuts(pcap(records))
    assert [(cut.offset, cut.data, bool(cut.problem)) for cut in found] == [
        (0, b"", True),
        (0, FRAMES[5], False),
        (32, FRAMES[8], False),
    ]
    assert found[0].problem == "the stream ends after 350 bytes of this packet"
    assert found[0].frame == 2


def test_a_wrong_header_ends_its_stream_only() -> None:
    wrong = b"GET / HTTP/1.1\r\n" + FRAMES[5]
    records = [syn(999), segment(1000, FRAMES[8] + wrong), segment(1084, FRAMES[5]), segment(7, FRAMES[5], port=50001)]
    found = cuts(pcap(records))
    assert [cut.data for cut in found] == [FRAMES[8], wrong[:16], FRAMES[5]]


# ---- pipes --------------------------------------------------------------------------------------


class Endless(io.BytesIO):
    """A pipe into which somebody writes frames for as long as they are read."""

    def __init__(self, records: Iterable[bytes]) -> None:
        super().__init__()
        self._records = iter(records)
        self._head = pcap([])

    def read1(self, size: int | None = -1, /) -> bytes:
        data, self._head = self._head, b""
        for record in itertools.islice(self._records, 20):
            data += struct.pack("<IIII", int(START), 0, len(record), len(record)) + record
        return data


def test_each_packet_comes_as_soon_as_the_pipe_has_it() -> None:
    size = len(FRAMES[5])
    source = Endless([syn(999), *(segment(1000 + size * number, FRAMES[5]) for number in range(59))])
    found = packets(source)
    assert [cut.offset for cut in itertools.islice(found, 19)] == [size * number for number in range(19)]
    assert len(list(found)) == 40


@pytest.mark.parametrize("stuck", [False, True])
def test_a_pipe_is_read_for_ever_in_little_memory(stuck: bool) -> None:
    """stuck: among the first connections are some that never end, in the middle of a packet."""

    def records() -> Iterator[bytes]:
        for port in range(200 if stuck else 0):
            yield segment(1000, FRAMES[7][:100], port=port + 1)
        yield syn(999)
        message = bytes(build.user_message(samples.SENDER, 1, samples.DIRECT, bytes(10000)))
        for at in range(2000):
            yield segment(1000 + at * len(message), message)

    tracemalloc.start()
    count = sum(not cut.problem for cut in packets(Endless(records())))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 2000
    assert peak < 12 << 20


def test_missing_tcp_segment_is_skipped_when_buffer_is_full() -> None:
    def records() -> Iterator[bytes]:
        yield syn(999)
        for at in range(200):
            yield segment(1000 + 100 + at * 65000, bytes(65000))

    tracemalloc.start()
    first = next(packets(Endless(records())))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (first.offset, first.problem) == (0, "100 bytes from offset 0 on are missing in the capture")
    assert peak < 24 << 20


def test_reassembly_releases_early_segments_after_delivery() -> None:
    message = bytes(build.user_message(samples.SENDER, 1, samples.DIRECT, bytes(60000)))

    def records() -> Iterator[bytes]:
        yield syn(999)
        for at in range(0, 200, 2):
            yield segment(1000 + (at + 1) * len(message), message)
            yield segment(1000 + at * len(message), message)

    assert [found.data for found in packets(Endless(records()))] == [message] * 200
