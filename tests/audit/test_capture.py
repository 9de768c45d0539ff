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
from ordack.capture import one_by_one

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


def cuts(data: bytes) -> list[one_by_one.Cut]:
    """The packets of a capture; problems have no bytes."""
    items = one_by_one.packets(one_by_one.streams(one_by_one.frames(io.BytesIO(data))))
    return [item for item in items if isinstance(item, one_by_one.Cut)]


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
    assert cut == one_by_one.Cut(name, START, 1, 0, FRAMES[5])


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


def test_pcapng_with_two_sections_interfaces_and_all_kinds_of_packet_blocks() -> None:
    resolution = struct.pack("<HHBxxx", 9, 1, 9) + struct.pack("<HHq", 14, 8, 100)
    binary = struct.pack(">HHBxxx", 9, 1, 0x80 | 10) + struct.pack(">HH", 0, 0)
    data = section() + interface(1) + interface(101, resolution)
    one, two, three, four, five = (segment(1000 + 32 * n, FRAMES[5]) for n in range(5))
    data += enhanced(ETHERNET + b"\x08\x00" + one) + block("<", 5, bytes(8))
    data += enhanced(two, 1, 1_000_000_000)
    data += block("<", 3, struct.pack("<I", 14 + len(three)) + ETHERNET + b"\x08\x00" + three)
    data += section(">") + interface(101, binary, ">", snap=72)
    data += enhanced(four, 0, 1024, ">")
    moment = int(START * 1024)
    head = struct.pack(">HHIIII", 0, 0, moment >> 32, moment & 0xFFFFFFFF, len(five), len(five))
    data += block(">", 2, head + five)
    data += block(">", 3, struct.pack(">I", 500) + segment(1160, FRAMES[5] + bytes(428))[:72])
    found = cuts(data)
    assert [(cut.data, cut.frame) for cut in found] == [(FRAMES[5], number) for number in range(1, 7)]
    times = [START, START + 100, 0.0, START, START, 0.0]  # a simple block has no time
    assert [cut.time for cut in found] == pytest.approx(times, abs=1e-5)


def good_and_end(data: bytes) -> tuple[int, str]:
    """(packets found, why reading ended)."""
    count = 0
    try:
        for item in one_by_one.packets(one_by_one.streams(one_by_one.frames(io.BytesIO(data)))):
            count += isinstance(item, one_by_one.Cut) and not item.problem
    except one_by_one.CaptureError as error:
        return count, str(error)
    return count, ""


def test_a_file_cut_off_anywhere_gives_what_it_has_and_says_where_it_ends() -> None:
    raw = [segment(1000, FRAMES[5]), segment(1032, FRAMES[8])]
    for data, sizes in (
        (pcap(raw), [24 + 16 + len(raw[0]), 24 + 32 + len(raw[0]) + len(raw[1])]),
        (
            section() + interface(101) + enhanced(raw[0]) + enhanced(raw[1]),
            [48 + 32 + len(raw[0]), 48 + 64 + len(raw[0]) + len(raw[1])],
        ),
    ):
        assert len(data) == sizes[1]
        for size in range(len(data)):
            count, error = good_and_end(data[:size])
            assert count == (size >= sizes[0])
            whole = size in (24, 28, 48, sizes[0]) and size in boundaries(data)
            assert bool(error) != whole, size
            assert whole or f"at byte {size}" in error
        assert good_and_end(data) == (2, "")


def boundaries(data: bytes) -> set[int]:
    """Where a record ends."""
    ends, at = set(), 0
    if data[:4] == one_by_one.PCAPNG_MAGIC:
        while at < len(data):
            at += struct.unpack_from("<I", data, at + 4)[0]
            ends.add(at)
        return ends
    at = 24
    while at <= len(data):
        ends.add(at)
        at += 16 + (struct.unpack_from("<I", data, at + 8)[0] if at < len(data) else 1)
    return ends


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"neither", "neither pcap nor pcapng"),
        (pcap([b""])[:-8] + struct.pack("<II", 0x7FFFFFFF, 0), "claims to have 2147483647 bytes"),
        (section()[:8] + b"????" + section()[12:], "no byte order mark"),
        (section() + struct.pack("<II", 1, 8) + bytes(8), "cannot have 8 bytes"),
        (section() + struct.pack("<II", 1, 21) + bytes(20), "cannot have 21 bytes"),
        (section() + struct.pack("<II", 6, 0xFFFFFFFC), "claims to have"),
        (section() + enhanced(b"x"), "unknown interface"),
        (section() + block("<", 3, bytes(4)), "unknown interface"),
        (section() + block("<", 1, b"1234"), "too short"),
        (section() + interface(1)[:-4] + bytes(4), "does not end with its size"),
    ],
)
def test_what_is_no_capture_is_named(data: bytes, reason: str) -> None:
    assert reason in good_and_end(data)[1]


def test_magic_numbers() -> None:
    assert one_by_one.is_capture(pcap([]))
    assert one_by_one.is_capture(section())
    assert not one_by_one.is_capture(FRAMES[3])


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


def test_other_ports_and_pings() -> None:
    other = dpkt.tcp.TCP(sport=PORT, dport=1802, seq=1, data=FRAMES[5])
    ping = dpkt.udp.UDP(sport=4057, dport=3527, ulen=32, data=FRAMES[1])
    answer = dpkt.udp.UDP(sport=3527, dport=4057, ulen=32, data=FRAMES[2])
    noise = dpkt.udp.UDP(sport=53, dport=4057, ulen=32, data=FRAMES[2])
    icmp = dpkt.icmp.ICMP(data=dpkt.icmp.ICMP.Echo())
    records = [
        bytes(dpkt.ip.IP(src=CLIENT, dst=SERVER, p=protocol, len=20 + len(data), data=data))
        for protocol, data in ((6, other), (17, ping), (17, answer), (17, noise), (1, icmp))
    ]
    items = list(one_by_one.packets(one_by_one.streams(one_by_one.frames(io.BytesIO(pcap(records))))))
    assert items == [
        one_by_one.Datagram("10.0.0.1:4057>10.0.0.2:3527", START + 1, 2, FRAMES[1]),
        one_by_one.Datagram("10.0.0.1:3527>10.0.0.2:4057", START + 2, 3, FRAMES[2]),
    ]
    found = list(one_by_one.packets(one_by_one.streams(one_by_one.frames(io.BytesIO(pcap(records))), tcp_port=1802)))
    assert [item.data for item in found if isinstance(item, one_by_one.Cut)] == [FRAMES[5]]


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
def test_segments_in_any_order_and_number_give_the_packets_that_were_sent(
    case: tuple[list[bytes], list[bytes]],
) -> None:
    sent, records = case
    found = cuts(pcap(records))
    assert [cut.data for cut in found] == sent
    assert not any(cut.problem for cut in found)
    offsets = [sum(map(len, sent[:index])) for index in range(len(sent))]
    assert [cut.offset for cut in found] == offsets


@given(case=deliveries(), lost=st.integers(1, 8))
def test_a_lost_segment_is_reported_and_what_follows_is_found(case: tuple[list[bytes], list[bytes]], lost: int) -> None:
    sent, records = case
    del records[lost : lost + 1]
    found = cuts(pcap([*records, segment(0)]))
    good = [cut.data for cut in found if not cut.problem]
    assert good == sent or len(good) < len(sent)
    assert all(data in sent for data in good)
    assert [cut.offset for cut in found] == sorted(cut.offset for cut in found)


def test_a_hole_is_one_problem_and_decoding_goes_on_at_the_next_packet() -> None:
    pieces = segments(b"".join([FRAMES[5], FRAMES[7], FRAMES[5], FRAMES[8]]), 500)
    del pieces[2]
    found = cuts(pcap([syn(999), *pieces]))
    assert [(cut.offset, cut.data, bool(cut.problem)) for cut in found] == [
        (0, FRAMES[5], False),
        (32, b"", True),
        (2256, FRAMES[5], False),
        (2288, FRAMES[8], False),
    ]
    assert "500 bytes from offset 1000 on" in found[1].problem
    assert found[1].frame == 2  # where the packet that is incomplete begins


def test_a_hole_between_packets_is_where_it_is() -> None:
    pieces = [segment(1000 + 32 * n, FRAMES[5]) for n in range(4)]
    found = cuts(pcap([syn(999), pieces[0], pieces[3]]))
    assert [(cut.offset, bool(cut.problem)) for cut in found] == [(0, False), (32, True), (96, False)]
    found = cuts(pcap([syn(999), pieces[1]]))  # the first is lost
    assert [(cut.offset, bool(cut.problem)) for cut in found] == [(0, True), (32, False)]


@pytest.mark.parametrize("size", [3000, 50, 20, 11, 1])
def test_a_false_signature_in_a_body_is_not_taken_for_a_packet_after_a_hole(size: int) -> None:
    body = b"....LIOR" + bytes(20) + b"\x10\0\3\0LIOR\xff\xff\xff\xff" + bytes(12) + b"LIOR"
    stream = bytes(build.user_message(samples.SENDER, 1, samples.DIRECT, body)) + FRAMES[5]
    found = cuts(pcap([syn(999), *segments(stream[10:], size, 1010)]))
    assert [cut.data for cut in found] == [b"", FRAMES[5]]


@pytest.mark.parametrize("skip", [0, 1, 31, 700, 2100])
@pytest.mark.parametrize("size", [7, 500])
def test_a_connection_older_than_the_capture_begins_at_its_next_packet(skip: int, size: int) -> None:
    stream = (FRAMES[5] + FRAMES[7] + FRAMES[8])[skip:]
    found = cuts(pcap(segments(stream, size)))
    good = [cut.data for cut in found if not cut.problem]
    assert good == (
        [FRAMES[5], FRAMES[7], FRAMES[8]] if skip == 0 else [FRAMES[7], FRAMES[8]] if skip < 32 else [FRAMES[8]]
    )
    assert [cut.offset for cut in found if cut.problem] == ([0] if skip else [])


def test_an_old_connection_without_any_packet_is_a_problem() -> None:
    (found,) = cuts(pcap([segment(1000, b"no packet at all")]))
    assert "older than the capture" in found.problem


def test_a_new_syn_begins_a_new_stream_and_a_repeated_one_does_not() -> None:
    records = [syn(999), segment(1000, FRAMES[7][:300]), syn(999), segment(1300, FRAMES[7][300:350])]
    records += [syn(4999), segment(5000, FRAMES[5]), segment(5032, FRAMES[8])]
    found = cuts(pcap(records))
    assert [(cut.offset, cut.data, bool(cut.problem)) for cut in found] == [
        (0, b"", True),
        (0, FRAMES[5], False),
        (32, FRAMES[8], False),
    ]
    assert "350 of 2224 bytes" in found[0].problem


def test_a_wrong_header_ends_its_stream_only() -> None:
    wrong = b"GET / HTTP/1.1\r\n" + FRAMES[5]
    records = [syn(999), segment(1000, FRAMES[8] + wrong), segment(1084, FRAMES[5]), segment(7, FRAMES[5], port=50001)]
    found = cuts(pcap(records))
    assert [cut.data for cut in found] == [FRAMES[8], wrong[:16], FRAMES[5]]


def test_both_directions_and_data_on_a_syn() -> None:
    back = dpkt.tcp.TCP(sport=1801, dport=PORT, seq=77, flags=dpkt.tcp.TH_SYN | dpkt.tcp.TH_ACK)
    reply = dpkt.tcp.TCP(sport=1801, dport=PORT, seq=78, data=FRAMES[8])
    records = [segment(999, FRAMES[5], dpkt.tcp.TH_SYN)]
    records += [bytes(dpkt.ip.IP(src=SERVER, dst=CLIENT, p=6, len=20 + len(data), data=data)) for data in (back, reply)]
    found = cuts(pcap(records))
    assert [(cut.connection, cut.data) for cut in found] == [
        (NAME, FRAMES[5]),
        ("10.0.0.2:1801>10.0.0.1:50000", FRAMES[8]),
    ]


# ---- IP fragments -------------------------------------------------------------------------------


def fragments(whole: bytes, size: int, number: int = 7) -> list[bytes]:
    """An IP packet cut into fragments of at most size bytes of payload, a multiple of 8."""
    six = whole[0] >> 4 == 6
    head, payload = (whole[:40], whole[40:]) if six else (whole[:20], whole[20:])
    pieces = []
    for at in range(0, len(payload), size):
        piece = payload[at : at + size]
        more = at + size < len(payload)
        if six:
            extension = struct.pack(">BxHI", 6, at | more, number)
            size_field = struct.pack(">HB", len(piece) + 8, 44)
            pieces.append(head[:4] + size_field + head[7:] + extension + piece)
        else:
            fields = struct.pack(">HHH", 20 + len(piece), number, more << 13 | at >> 3)
            pieces.append(head[:2] + fields + head[8:] + piece)
    return pieces


@given(data=st.data(), size=st.integers(1, 60), six=st.booleans(), cut=st.integers(100, 1500))
def test_fragments_in_any_order_and_number_are_put_together(
    data: st.DataObject, size: int, six: bool, cut: int
) -> None:
    stream = b"".join(SESSION)
    records = []
    for number, at in enumerate(range(0, len(stream), cut)):
        records += fragments(segment(1000 + at, stream[at : at + cut], six=six), 8 * size, number)
    records += data.draw(st.lists(st.sampled_from(records), max_size=3))
    if len(records) < 40:
        records = data.draw(st.permutations(records))
    elif data.draw(st.booleans()):
        records.reverse()
    found = cuts(pcap([segment(999, flags=dpkt.tcp.TH_SYN, six=six), *records]))
    assert [(cut.data, cut.problem) for cut in found] == [(data, "") for data in SESSION]


@pytest.mark.parametrize("six", [False, True])
def test_lost_fragments_are_a_hole_that_says_so(six: bool) -> None:
    stream = FRAMES[5] + FRAMES[7] + FRAMES[5]
    pieces = fragments(segment(1000, stream[:2256], six=six), 1480)
    assert len(pieces) == 2
    records = [segment(999, flags=dpkt.tcp.TH_SYN, six=six), pieces[0], segment(3256, stream[2256:], six=six)]
    found = cuts(pcap(records))
    assert [(cut.data, cut.offset) for cut in found] == [(FRAMES[5], 0), (b"", 32), (FRAMES[5], 2256)]
    assert "796 bytes from offset 1460 on are missing" in found[1].problem
    assert "fragmented" in found[1].problem


@pytest.mark.parametrize(("size", "whole"), [(72, 1), (24, 0)])
def test_lost_fragments_at_the_end_of_a_stream_are_said(size: int, whole: int) -> None:
    first = fragments(segment(1000, FRAMES[5] + FRAMES[5] + FRAMES[7]), size)[0]
    *good, problem = cuts(pcap([syn(999), first]))
    assert [cut.data for cut in good] == [FRAMES[5]] * whole
    assert problem.offset == 32 * whole
    assert "the stream ends after" in problem.problem
    assert "fragmented" in problem.problem


def test_a_packet_boundary_does_not_hide_lost_fragments() -> None:
    options = dpkt.tcp.TCP(sport=PORT, dport=1801, seq=1000, off=6, data=FRAMES[5] + FRAMES[7])
    options.opts = bytes(4)
    whole = bytes(dpkt.ip.IP(src=CLIENT, dst=SERVER, p=6, len=20 + len(options), data=options))
    for size, count in ((56, 1), (24, 0)):
        found = cuts(pcap([syn(999), fragments(whole, size)[0]]))
        assert [(cut.offset, cut.data) for cut in found] == [(0, FRAMES[5])] * count + [(32 * count, b"")]
        assert "what follows is missing in the capture: fragmented" in found[-1].problem


def test_a_hole_is_not_laid_to_fragments_that_came() -> None:
    pieces = fragments(segment(1000, FRAMES[5] * 4), 48)
    found = cuts(pcap([syn(999), *pieces, segment(1160, FRAMES[5])]))
    assert "32 bytes from offset 128 on are missing" in found[4].problem
    assert "fragmented" not in found[4].problem


def test_a_number_that_is_used_again_begins_another_datagram() -> None:
    first = fragments(segment(1000, FRAMES[7]), 1480)
    second = fragments(segment(1000 + len(FRAMES[7]), FRAMES[7]), 1480)
    found = cuts(pcap([syn(999), first[0], *second, segment(1000, FRAMES[7])]))
    assert [cut.data for cut in found] == [FRAMES[7], FRAMES[7]]


def test_fragments_that_never_become_whole_take_little_memory() -> None:
    def records() -> Iterator[bytes]:
        yield syn(999)
        for number in range(2000):
            yield fragments(segment(1000, bytes(60000)), 30000, number)[1]
        yield segment(1000, FRAMES[5])

    tracemalloc.start()
    found = [item.data for item in one_by_one.packets(one_by_one.streams(frames_of(records())))]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == [FRAMES[5]]
    assert peak < 8 << 20


def test_fragments_of_other_protocols_are_passed_over() -> None:
    ping = dpkt.udp.UDP(sport=4057, dport=3527, ulen=32, data=FRAMES[1])
    whole = bytes(dpkt.ip.IP(src=CLIENT, dst=SERVER, p=17, len=20 + len(ping), data=ping))
    deceptive = struct.pack(">HHHHIHHHH", 4057, 1801, 52, 0, 0, 0x5000, 0, 0, 0) + FRAMES[5]  # as TCP, it has a packet
    other = bytes(dpkt.ip.IP(src=CLIENT, dst=SERVER, p=17, len=20 + len(deceptive), data=deceptive))
    records = [*fragments(other, 24), fragments(whole, 16)[1], whole]
    items = list(one_by_one.packets(one_by_one.streams(frames_of(records))))
    assert [item.data for item in items] == [FRAMES[1]]


@pytest.mark.parametrize("extension", [43, 50, 51, 60])
def test_ip_headers_that_nobody_sends_are_passed_over(extension: int) -> None:
    odd = struct.pack(">IHBB", 6 << 28, 72, 44, 9) + CLIENT_6 + SERVER_6
    odd += struct.pack(">BxHI", extension, 0, 1) + bytes([6, 0]) + bytes(62)
    nested = b""
    for _ in range(1500):
        nested = struct.pack(">BBHHHBBH", 0x45, 0, 0, 1, 0, 9, 4, 0) + CLIENT + SERVER + nested
    assert [cut.data for cut in cuts(pcap([odd, nested, segment(1000, FRAMES[5])]))] == [FRAMES[5]]


def frames_of(records: Iterable[bytes]) -> Iterator[one_by_one.Frame]:
    for number, data in enumerate(records, 1):
        yield one_by_one.Frame(number, START, 101, data)


def test_a_missing_segment_is_given_up_when_too_much_waits_for_it() -> None:
    def records() -> Iterator[bytes]:
        yield syn(999)
        for at in range(200):
            yield segment(1000 + 100 + at * 65000, bytes(65000))

    tracemalloc.start()
    first = next(iter(one_by_one.streams(frames_of(records()))))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(first, one_by_one.Chunk)
    assert (first.offset, first.missing) == (100, 100)
    assert first.frame == 2
    assert peak < 6 << 20


def test_what_was_early_and_is_delivered_waits_no_longer() -> None:
    def records() -> Iterator[bytes]:
        yield syn(999)
        for at in range(0, 200 * 65000, 130000):
            yield segment(1000 + at + 65000, bytes(65000))
            yield segment(1000 + at, bytes(65000))

    chunks = [item for item in one_by_one.streams(frames_of(records())) if isinstance(item, one_by_one.Chunk)]
    assert not any(chunk.missing for chunk in chunks)
    assert sum(len(chunk.data) for chunk in chunks) == 200 * 65000


def test_the_connection_that_is_silent_for_longest_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_by_one, "_STREAMS_MAX", 2)
    records = [segment(0, FRAMES[7][:100], port=port) for port in (1, 2)] + [segment(100, FRAMES[7][100:], port=1)]
    records += [segment(0, FRAMES[5], port=3)]
    found = cuts(pcap(records))
    assert [(cut.connection.split(":")[1].split(">")[0], bool(cut.problem)) for cut in found] == [
        ("1", False),
        ("3", False),
        ("2", True),
    ]


def test_a_large_capture_is_read_in_little_memory() -> None:
    def records() -> Iterator[bytes]:
        yield syn(999)
        message = bytes(build.user_message(samples.SENDER, 1, samples.DIRECT, bytes(10000)))
        for at in range(2000):
            yield segment(1000 + at * len(message), message)

    tracemalloc.start()
    count = sum(1 for _ in one_by_one.packets(one_by_one.streams(frames_of(records()))))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 2000
    assert peak < 1 << 20
