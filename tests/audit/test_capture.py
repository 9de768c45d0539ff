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
from ordack.capture.reading import WRAPPED, FoundPacket, Tally, packets

from tests.support.capture_files import (
    CLIENT,
    CLIENT_6,
    ETHERNET,
    FRAMES,
    NAME,
    PORT,
    SERVER,
    SERVER_6,
    START,
    block,
    enhanced,
    interface,
    pcap,
    section,
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


# ---- files and links ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("link", "head", "six"),
    [
        (1, ETHERNET + b"\x08\x00", False),
        (1, ETHERNET + b"\x86\xdd", True),
        (1, ETHERNET + b"\x81\x00\x00\x05\x08\x00", False),
        (1, ETHERNET + b"\x88\xa8\x00\x05\x81\x00\x00\x07\x08\x00", False),
        (101, b"", False),
        (101, b"", True),
        (12, b"", False),
        (228, b"", False),
        (229, b"", True),
        (0, b"\x02\0\0\0", False),
        (0, b"\x1e\0\0\0", True),
        (108, b"\0\0\0\x02", False),
        (113, b"\0\0\0\1\0\6" + bytes(8) + b"\x08\x00", False),
        (113, b"\0\0\0\1\0\6" + bytes(8) + b"\x86\xdd", True),
        (276, b"\x08\x00" + bytes(18), False),
        (276, b"\x86\xdd" + bytes(18), True),
    ],
)
def test_packets_are_found_on_every_kind_of_link(link: int, head: bytes, six: bool) -> None:
    data = pcap([head + segment(1000, FRAMES[5], six=six)], link)
    (cut,) = cuts(data)
    name = "[::1]:50000>[::2]:1801" if six else NAME
    assert cut == FoundPacket(name, START, 1, 0, FRAMES[5])


def test_ethernet_padding_is_no_data() -> None:
    data = pcap(
        [ETHERNET + b"\x08\x00" + segment(1000) + bytes(6), ETHERNET + b"\x08\x00" + segment(1000, FRAMES[5])], 1
    )
    assert [cut.data for cut in cuts(data)] == [FRAMES[5]]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("nano", [False, True])
def test_pcap_in_all_its_forms(order: str, nano: bool) -> None:
    found = cuts(pcap(segments(b"".join(SESSION), 500), order=order, nano=nano))
    assert [cut.data for cut in found] == SESSION
    assert found[0].time == START
    assert [cut.frame for cut in found] == [1, 2, 2, 6]  # the frame in which each begins


def test_files_that_dpkt_writes() -> None:
    for writer in (dpkt.pcap.Writer, dpkt.pcapng.Writer):
        file = io.BytesIO()
        out = writer(file, linktype=1) if writer is dpkt.pcap.Writer else writer(file)
        for data in segments(b"".join(SESSION), 700):
            out.writepkt(ETHERNET + b"\x08\x00" + data, ts=START)
        found = cuts(file.getvalue())
        assert [cut.data for cut in found] == SESSION
        assert {cut.time for cut in found} == {START}


def test_pcapng_with_two_sections_and_interfaces() -> None:
    nanoseconds = struct.pack("<HHBxxx", 9, 1, 9) + struct.pack("<HH", 0, 0)
    one, two, three = (segment(1000 + 32 * n, FRAMES[5]) for n in range(3))
    data = section() + interface(1) + interface(101, nanoseconds)
    data += enhanced(ETHERNET + b"\x08\x00" + one) + block("<", 5, bytes(8))
    data += enhanced(two, 1, 1_000_000_000)
    data += section(">") + interface(101, b"", ">") + enhanced(three, 0, 10**6, ">")
    found = cuts(data)
    assert [(cut.data, cut.frame) for cut in found] == [(FRAMES[5], number) for number in (1, 2, 3)]
    assert [cut.time for cut in found] == pytest.approx([START] * 3, abs=1e-5)


@given(junk=st.binary(max_size=80), link=st.sampled_from([0, 1, 12, 101, 108, 113, 276, 105]))
def test_frames_that_are_no_ip_are_passed_over(junk: bytes, link: int) -> None:
    head = {
        0: b"\x02\0\0\0",
        1: ETHERNET + b"\x08\x00",
        108: bytes(4),
        113: bytes(14) + b"\x08\x00",
        276: b"\x08\x00" + bytes(18),
    }
    records = [junk, b"", head.get(link, b"") + segment(1000, FRAMES[5])]
    assert [cut.data for cut in cuts(pcap(records, link))] == ([] if link == 105 else [FRAMES[5]])


def test_other_ports() -> None:
    other = dpkt.tcp.TCP(sport=PORT, dport=1802, seq=1, data=FRAMES[5])
    ping = dpkt.udp.UDP(sport=4057, dport=3527, ulen=32, data=FRAMES[1])
    icmp = dpkt.icmp.ICMP(data=dpkt.icmp.ICMP.Echo())
    records = [
        bytes(dpkt.ip.IP(src=CLIENT, dst=SERVER, p=protocol, len=20 + len(data), data=data))
        for protocol, data in ((6, other), (17, ping), (1, icmp))
    ]
    assert cuts(pcap(records)) == []


def ethernet(inner: bytes) -> bytes:
    return ETHERNET + (b"\x86\xdd" if inner[0] >> 4 == 6 else b"\x08\x00") + inner


def outer(protocol: int, data: bytes) -> bytes:
    """An IP datagram between two switches."""
    return bytes(dpkt.ip.IP(src=b"\x0a\1\0\1", dst=b"\x0a\1\0\2", p=protocol, len=20 + len(data), data=data))


def vxlan(inner: bytes) -> bytes:
    data = bytes([8, 0, 0, 0, 0, 0, 42, 0]) + ethernet(inner)
    return outer(17, bytes(dpkt.udp.UDP(sport=50123, dport=4789, ulen=8 + len(data), data=data)))


def fragment(whole: bytes) -> bytes:
    """The first part of an IP packet."""
    if whole[0] >> 4 == 6:
        return whole[:4] + struct.pack(">HB", 68, 44) + whole[7:40] + struct.pack(">BxHI", 6, 1, 7) + whole[40:100]
    return whole[:2] + struct.pack(">HHH", 80, 7, 0x2000) + whole[8:80]


@pytest.mark.parametrize("six", [False, True])
def test_encapsulated_and_fragmented_frames_count_as_unread(six: bool) -> None:
    inner = segment(1000, FRAMES[7], six=six)
    tally = Tally()
    gre = outer(47, struct.pack(">HH", 0, 0x0800) + inner)
    records = [vxlan(inner), gre, fragment(inner), outer(17, b"1234567"), outer(4, inner)]
    assert [found.data for found in packets(io.BytesIO(pcap([*records, inner])), tally=tally)] == [FRAMES[7]]
    assert (tally.frames, tally.unread, tally.unread_link) == (6, 3, WRAPPED)


@pytest.mark.parametrize(("size", "protocol", "unread"), [
    (0, 6, 1), (19, 6, 1), (22, 6, 1), (24, 6, 1), (39, 6, 1), (40, 6, 0),
    (24, 17, 1), (28, 17, 0), (22, 47, 1), (24, 47, 1), (20, 1, 0),
])  # fmt: skip
@pytest.mark.parametrize("port", [1801, 1802])
def test_frame_with_truncated_headers_counts_as_unread(size: int, protocol: int, unread: int, port: int) -> None:
    """A capture of such frames was called sound: none of them seemed to be of the protocol. Those are none of which the
    ports are there, and others."""
    frame = bytearray(segment(1000, FRAMES[5]))
    frame[9] = protocol
    if protocol == 6:
        frame[20:24] = struct.pack(">HH", 50000, port)
    tally = Tally()
    head = struct.pack("<IIIII", 0, 0, 0, size, len(frame))
    list(packets(io.BytesIO(section() + interface(101) + block("<", 6, head + frame[:size])), tally=tally))
    seen = protocol == 6 and size >= 24 and port != 1801
    assert (tally.frames, tally.unread) == (1, 0 if seen else unread)


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


# ---- IP headers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("extension", [43, 50, 51, 60])
def test_unusual_ip_headers_are_skipped(extension: int) -> None:
    odd = struct.pack(">IHBB", 6 << 28, 72, 44, 9) + CLIENT_6 + SERVER_6
    odd += struct.pack(">BxHI", extension, 0, 1) + bytes([6, 0]) + bytes(62)
    nested = b""
    for _ in range(1500):
        nested = struct.pack(">BBHHHBBH", 0x45, 0, 0, 1, 0, 9, 4, 0) + CLIENT + SERVER + nested
    assert [cut.data for cut in cuts(pcap([odd, nested, segment(1000, FRAMES[5])]))] == [FRAMES[5]]


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
