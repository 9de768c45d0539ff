"""The dissector for Wireshark, in tshark, against `ordack capture decode`: every field, and bytes of no kind."""

from __future__ import annotations

import functools
import os
import random
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import dpkt
import packet_build
import packet_samples as samples  # type: ignore[import-not-found]
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from mqqb import acks, build, handshake, headers, names, parse, rare
from ordack.capture import decoder

from hil.dice import new_seed
from tests.conformance import ROOT
from tests.support import layouts
from tests.support.capture_files import CLIENT, FRAMES, SERVER, pcap, segment, syn

pytestmark = pytest.mark.slow

DISSECTOR = ROOT / "host" / "ordack" / "wireshark" / "mqqb.lua"
PLUGINS = Path(".local") / "lib" / "wireshark" / "plugins"
SEED = new_seed()
DEADLINE_S = 120
QUEUES = ("UserHeader.DestinationQueue", "UserHeader.AdminQueue", "UserHeader.ResponseQueue")
# What decode does not tell, or tells in parts; and what is bytes in the dissector.
OF_THE_DISSECTOR = ("Packet", "Trailing", "Unread", "OrderAckBody.Reserved", "SecurityHeader.SecurityData")
PADDING = "MessagePropertiesHeader.Padding"
OF_DECODE = ("DebugHeader", "SoapHeader", "MultiQueueFormatHeader", "SecurityHeader.SecurityData")


@pytest.fixture(autouse=True)
def _tell_seed() -> None:
    print(f"SEED={SEED}")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder that has the dissector where operating.md says."""
    home = tmp_path_factory.mktemp("home")
    (home / PLUGINS).mkdir(parents=True)
    shutil.copy(DISSECTOR, home / PLUGINS)
    return home


# ---- what tshark says ---------------------------------------------------------------------------


class Shown(NamedTuple):
    """A field. place: bytes from the packet's beginning. value: its bytes in hex, of bits their number."""

    path: str
    place: int
    show: str
    value: str


class Dissected(NamedTuple):
    """A packet, or what stands in its place. frame: in which it ends. problems: expert infos."""

    frame: int
    fields: list[Shown]
    problems: list[str]

    def kind(self) -> str:
        return next((field.show for field in self.fields if field.path == "Packet"), "")


def tshark(home: Path, *arguments: str | Path) -> str:
    done = subprocess.run(
        ["tshark", *arguments],
        env={**os.environ, "HOME": str(home), "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for text in (done.stdout, done.stderr):
        assert "Lua Error:" not in text, text[max(0, text.index("Lua Error:") - 500) :][:1500]
        assert "Dissector bug," not in text
    assert "mqqb.lua" not in done.stderr, done.stderr
    return done.stdout


def _walk(element: ElementTree.Element, begin: int) -> Iterator[Shown]:
    for field in element.findall("field"):
        name = field.get("name", "")
        if name.startswith(("_ws.", "mqqb.malformed", "mqqb_ping.malformed")):
            continue
        value = field.get("value", "")
        path = name.removeprefix("mqqb.").removeprefix("mqqb_ping.")
        yield Shown(path, int(field.get("pos", 0)) - begin, field.get("show", ""), value)
        yield from _walk(field, begin)


def dissect(home: Path, file: Path, *options: str) -> list[Dissected]:
    text = tshark(home, "-n", "-r", file, "-T", "pdml", "-J", "mqqb mqqb_ping", *options)
    text = re.sub(r"[^\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)  # tshark leaves what XML forbids
    found = []
    for packet in ElementTree.fromstring(text).iter("packet"):
        frame = next(int(field.get("show", 0)) for field in packet.iter("field") if field.get("name") == "num")
        for proto in packet.iter("proto"):
            if proto.get("name") in ("mqqb", "mqqb_ping"):
                fields = list(_walk(proto, int(proto.get("pos", 0))))
                infos = [field for field in proto.iter("field") if field.get("name") == "_ws.expert.message"]
                found.append(Dissected(frame, fields, [info.get("show", "") for info in infos]))
    return found


# ---- what decode says ---------------------------------------------------------------------------


def _leaves(fields: Iterable[decoder.Field], above: str) -> Iterator[tuple[str, int, Any]]:
    for name, at, value, note in fields:
        path = f"{above}.{name.removesuffix('_hex')}"
        if name[0].islower():  # not of the wire
            if name == "padding_length" and value:
                yield f"{above}.Padding", at, value
        elif isinstance(value, tuple):
            if path in QUEUES:
                yield path, at, ("text", note)
            yield from _leaves(value, path)
        elif isinstance(value, list):
            continue
        elif isinstance(value, dict) and "raw" in value:
            for bit, number in value.items():
                yield path if bit == "raw" else f"{path}.{bit}", at, number
        elif isinstance(value, dict):
            raw = value.get("hex", f"{value.get('all_bytes', 0):02x}" * value["length"])
            if raw:
                yield path, at, bytes.fromhex(raw)
        elif name.endswith("_hex"):
            if value:
                yield path, at, bytes.fromhex(value)
        else:
            yield path, at, value


def _agrees(expected: Any, shown: Shown) -> bool:
    if isinstance(expected, bytes):
        return shown.value == expected.hex()
    if isinstance(expected, int) and shown.path.endswith("Padding"):
        return len(shown.value) == 2 * expected
    if isinstance(expected, int):
        return {"True": 1, "False": 0}.get(shown.show) == expected or int(shown.show, 0) == expected
    if isinstance(expected, tuple):  # with a host that decode leaves out
        text = expected[1]
        return shown.show.endswith(text.rpartition("\\")[2]) if text.isascii() and text.isprintable() else True
    if len(expected) == 38 and expected[0] == "{":  # a GUID
        return shown.show == expected[1:-1].lower()
    same = shown.value == names.terminated(expected).hex()
    return same and (shown.show == expected or not expected.isascii() or not expected.isprintable())


def _compare(expected: decoder.Decoded, found: Dissected) -> set[str]:
    """Every field has the name, the place and the value that decode says. The paths of those that were compared."""
    assert expected.packet is not None
    packet = expected.packet
    wanted = []
    for section in decoder.sections(packet):
        if section.name not in OF_DECODE:
            wanted += _leaves(section.fields, section.name)
    wanted = [item for item in wanted if not item[0].startswith(OF_DECODE)]
    if getattr(getattr(packet, "properties", None), "surplus", b""):  # where it ends, the headers behind it decide
        wanted = [item for item in wanted if item[0] != PADDING]
    if any(path.endswith(".LabelLength") and value == 0 for path, _, value in wanted):  # 1: the label is its end
        wanted = [item for item in wanted if not item[0].endswith(".Label")]
    wanted.sort(key=lambda item: (item[1], item[0]))
    headings = {path.rpartition(".")[0] for path, _, _ in wanted}
    headings |= {heading.rpartition(".")[0] for heading in headings}
    known = {path for path, _, _ in wanted}
    shown = [
        field
        for field in found.fields
        if not field.path.startswith(OF_THE_DISSECTOR)
        and (field.path in known or field.path not in headings or field.show)
        and (field.path in known or field.path != PADDING)
    ]
    shown.sort(key=lambda field: (field.place, field.path))
    assert [(field.path, field.place) for field in shown] == [item[:2] for item in wanted]
    for field, (_, _, value) in zip(shown, wanted, strict=True):
        assert _agrees(value, field), (field, value)
    trailing = decoder.trailing_hex(packet).lower()
    assert "".join(field.value for field in found.fields if field.path == "Trailing").endswith(trailing)
    assert not isinstance(packet, handshake.Ping) or not found.kind()
    assert isinstance(packet, handshake.Ping) or found.kind() == type(packet).__name__
    return {field.path for field in found.fields}


def decoded(file: Path) -> list[decoder.Decoded]:
    with file.open("rb") as opened:
        return list(decoder.decode(opened, pytest.fail))


# ---- packets ------------------------------------------------------------------------------------


def _generated(strategy: st.SearchStrategy[Any], count: int, first: int = SEED) -> list[bytes]:
    made: list[bytes] = []

    @seed(first)
    @settings(
        max_examples=count,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    @given(strategy)
    def collect(packet: Any) -> None:
        made.append(bytes(packet if isinstance(packet, bytearray) else packet_build.build(packet)))

    collect()
    return made


def _surplus() -> bytes:
    """More is allocated for the body than it has, and that is in the packet (OP-4)."""
    raw = bytearray(build.user_message(samples.SENDER, 5, samples.DIRECT, b"123456789"))
    at = parse.names_end(raw, 0x1C00)
    raw[at + 36 : at + 40] = (21).to_bytes(4, "little")
    raw += bytes(12)
    raw[8:12] = len(raw).to_bytes(4, "little")
    return bytes(raw)


def _unusual() -> list[bytes]:
    no_server = parse.parse(build.user_message(samples.SENDER, 1, headers.PublicQueueFormatName(samples.SENDER), b""))
    assert isinstance(no_server, headers.UserMessage)
    no_server.security = headers.SecurityHeader()
    no_server.security.flags = 2
    no_server.security.security_id = samples.SENDER
    no_server.debug = rare.DebugHeader()
    queues = (
        samples.DIRECT,
        headers.PublicQueueFormatName(samples.SENDER),
        headers.PrivateQueueFormatName(samples.RECEIVER, 5),
        headers.PrivateQueueFormatNameId(3),
    )
    return [
        *(FRAMES[number] for number in sorted(FRAMES) if len(FRAMES[number]) != 24),
        bytes(packet_build.build(samples.full_message())),
        bytes(packet_build.build(no_server)),
        _surplus(),
        bytes(acks.order_ack(acks.order_queue("10.0.0.1"), samples.SENDER, 8, 9, 1, 2, 3)),
        *(build.user_message(samples.SENDER, 2, samples.DIRECT, b"", admin=name, response=name) for name in queues),
        *(build.user_message(samples.SENDER, 2, name, b"") for name in (*queues[:2], queues[3])),
    ]


@functools.cache
def _all_kinds(count: int = 100) -> list[bytes]:
    return [
        *_unusual(),
        *_generated(layouts.user_messages(), count),
        *_generated(layouts.internal_packets(), count // 4),
        *_generated(layouts.acknowledgments(), count // 4),
    ]


def _datagram(data: bytes, port: int = 3527) -> bytes:
    udp = dpkt.udp.UDP(sport=4000, dport=port, data=data)
    udp.ulen = len(udp)
    return bytes(dpkt.ip.IP(src=CLIENT, dst=SERVER, p=17, len=20 + len(udp), data=udp))


def _connections(file: Path, raws: Sequence[bytes]) -> Path:
    """Each packet, or what it may be, in a connection of its own; from 1024 on, the port is its number."""
    file.write_bytes(pcap(frame for port, raw in enumerate(raws, 1024) for frame in _pieces(raw, port)))
    return file


def _pieces(raw: bytes, port: int) -> list[bytes]:
    size = 60_000
    return [syn(0, port), *(segment(1 + at, raw[at : at + size], port=port) for at in range(0, len(raw), size))]


# ---- tests --------------------------------------------------------------------------------------


def test_wireshark_fields_match_decode(home: Path, tmp_path: Path) -> None:
    raws = _all_kinds()
    file = _connections(tmp_path / "packets.pcap", raws)
    pings = [FRAMES[1], FRAMES[2], *(os.urandom(2) + b"HU" + os.urandom(20) for _ in range(20))]
    ping_file = tmp_path / "pings.pcap"
    ping_file.write_bytes(pcap(map(_datagram, pings)))
    compared: set[str] = set()
    for captured, count in ((file, len(raws)), (ping_file, len(pings))):
        found = dissect(home, captured)
        expected = decoded(captured) if captured == file else list(decoder.decode_bytes(b"".join(pings)))
        assert len(expected) == len(found) == count
        for number, (one, other) in enumerate(zip(expected, found, strict=True)):
            try:
                compared |= _compare(one, other)
                assert not [problem for problem in other.problems if " is refused: " not in problem]
            except AssertionError:
                print((raws if captured == file else pings)[number].hex())
                raise
    registered = {
        line.split("\t")[2].partition(".")[2]
        for line in tshark(home, "-G", "fields").splitlines()
        if line.startswith("F\t") and line.split("\t")[2].startswith(("mqqb.", "mqqb_ping."))
    }
    assert registered - compared == {"Unread", "malformed", "incomplete", "refused"}  # every other was seen


def _broken(raw: bytes, chance: random.Random) -> bytes:
    """Some bytes are others, the packet is shorter or longer, or a size field says so."""
    broken = bytearray(raw)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        at = chance.choice((chance.randrange(len(raw)), chance.randrange(min(120, len(raw)))))
        broken[at] = chance.choice((0, 1, 0xFF, chance.randrange(256), broken[at] ^ 1 << chance.randrange(8)))
    if chance.random() < 0.3:
        size = chance.randrange(16, len(raw) + 40)
        broken = broken[:size] + bytes(max(0, size - len(broken)))
        broken[8:12] = (size - 16 * (broken[2] & 0x18 == 0x10)).to_bytes(4, "little", signed=True)
    return bytes(broken)


def test_wireshark_accepts_same_broken_packets_as_decode(home: Path, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    good = _all_kinds()
    raws = [_broken(chance.choice(good), chance) for _ in range(700)]
    file = _connections(tmp_path / "broken.pcap", raws)
    expected = {item.frame: item for item in reversed(decoded(file))}
    found = {item.frame: item for item in reversed(dissect(home, file))}
    compared = 0
    for frame, raw in zip(range(2, 2 * len(raws) + 2, 2), raws, strict=True):  # behind its SYN
        if expected[frame].packet is None:
            continue
        try:
            _compare(expected[frame], found[frame])
            assert not [problem for problem in found[frame].problems if " is refused: " not in problem]
        except AssertionError:
            print(raw.hex())
            raise
        compared += 1
    assert 100 < compared < len(raws)


def test_packets_are_put_together_from_segments(home: Path, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    raws = chance.sample(_all_kinds(), 40)
    stream = b"".join(raws)
    pieces = []
    at = 0
    while at < len(stream):
        size = chance.choice((1, 15, 16, 17, 100, 1460))
        pieces.append(segment(1 + at, stream[at : at + size]))
        at += size
    for number in range(10, len(pieces) - 1, 10):
        pieces[number], pieces[number + 1] = pieces[number + 1], pieces[number]
    pieces[20:20] = pieces[15:18]  # and some are there twice
    file = tmp_path / "stream.pcap"
    file.write_bytes(pcap([syn(0), *pieces]))
    found = dissect(home, file, "-o", "tcp.reassemble_out_of_order:TRUE")
    expected = decoded(file)
    assert len(expected) == len(found) == len(raws)
    for one, other in zip(expected, found, strict=True):
        _compare(one, other)


def _hostile(chance: random.Random) -> list[bytes]:
    """Bytes of no kind, packets cut at every place, the greatest numbers in every place."""
    full, small = bytes(packet_build.build(samples.full_message())), FRAMES[8]
    made = [chance.randbytes(chance.randrange(1, 300)) for _ in range(100)]
    made += [b"\x10" + chance.randbytes(3) + b"LIOR" + chance.randbytes(chance.randrange(300)) for _ in range(100)]
    first = 1 + chance.randrange(5)
    for raw in (full, small, FRAMES[3][:80], bytes(acks.order_ack(samples.DIRECT, samples.SENDER, 1, 1, 1, 1, 1))):
        made += [raw[:size] for size in range(first, len(raw), 5)]
        made += [raw[:at] + b"\xff\xff\xff\xff" + raw[at + 4 :] for at in range(first, len(raw) - 4, 5)]
        made += [raw[:at] + bytes(4) + raw[at + 4 :] for at in range(first, len(raw) - 4, 5)]
    return made


@pytest.mark.parametrize("way", ["whole", "not put together", "cut by the capture", "datagrams"])
def test_no_bytes_are_too_much(home: Path, tmp_path: Path, way: str) -> None:
    raws = _hostile(random.Random(SEED))
    file = tmp_path / "hostile.pcap"
    options: list[str] = []
    if way == "whole":
        _connections(file, raws)
    elif way == "not put together":
        _connections(file, raws)
        options = ["-o", "tcp.desegment_tcp_streams:FALSE"]
    elif way == "datagrams":
        file.write_bytes(pcap(map(_datagram, raws)))
    else:
        file.write_bytes(_cut(raws))
    text = tshark(home, "-n", "-r", file, "-V", "-O", "mqqb,mqqb_ping", *options)
    assert text.count("Message Queuing") >= len(raws) // 2
    assert text.count("Malformed") >= 100
    if way in ("not put together", "cut by the capture"):
        assert "bytes of the packet are there" in text


def _cut(raws: list[bytes]) -> bytes:
    """A capture that has only the beginning of each frame, as with `tcpdump -s`."""
    chance = random.Random(SEED)
    out = pcap([])
    for number, raw in enumerate(raws):
        frame = segment(1, raw, port=1024 + number)
        size = chance.randrange(40, len(frame) + 1)
        out += b"".join(value.to_bytes(4, "little") for value in (number, 0, size, len(frame))) + frame[:size]
    return out


def test_a_capture_that_begins_inside_a_packet(home: Path, tmp_path: Path) -> None:
    raw = bytes(packet_build.build(samples.full_message()))
    file = tmp_path / "late.pcap"
    file.write_bytes(pcap([segment(1, raw[500:] + FRAMES[5] + FRAMES[8])]))
    first, *others = dissect(home, file)
    assert first.problems == ["BaseHeader.VersionNumber: not 0x10 (B-168)"]
    assert [other.kind() for other in others if other.kind()] == ["ConnectionParameters", "SessionAck"]


def test_other_ports_are_read_by_decode_as(home: Path, tmp_path: Path) -> None:
    tcp = dpkt.tcp.TCP(sport=5000, dport=2801, seq=1, flags=dpkt.tcp.TH_ACK, data=FRAMES[5])
    file = tmp_path / "other.pcap"
    ip = bytes(dpkt.ip.IP(src=CLIENT, dst=SERVER, p=6, len=20 + len(tcp), data=tcp))
    file.write_bytes(pcap([ip, _datagram(FRAMES[1], 4527)]))
    assert dissect(home, file) == []
    found = dissect(home, file, "-d", "tcp.port==2801,mqqb", "-d", "udp.port==4527,mqqb_ping")
    assert [one.kind() for one in found] == ["ConnectionParameters", ""]
    wanted = "mqqb.ConnectionParametersHeader.WindowSize == 64"
    filtered = tshark(home, "-r", file, "-d", "tcp.port==2801,mqqb", "-Y", wanted)
    assert "ConnectionParameters" in filtered


def test_wireshark_info_column_describes_each_packet(home: Path, tmp_path: Path) -> None:
    raws = [FRAMES[3], FRAMES[7], bytes(acks.order_ack(acks.order_queue("10.0.0.1"), samples.SENDER, 8, 9, 1, 2, 3))]
    raws.append(bytes(acks.final_ack(acks.order_queue("::1"), samples.SENDER, 8, 9, 1, 2, 4, 3, bytes(16), 7, 0x8003)))
    refused = bytearray(FRAMES[4])
    refused[18] |= 0x10
    broken = bytearray(FRAMES[8])
    broken[18] = 9
    file = tmp_path / "lines.pcap"
    file.write_bytes(pcap([segment(1, b"".join([*raws, bytes(refused), bytes(broken)]))]))
    (line,) = tshark(home, "-n", "-r", file, "-T", "fields", "-e", "_ws.col.Info").splitlines()
    assert line.split("; ") == [
        "EstablishConnection",
        r"UserMessage 2286 to DIRECT=OS:a04bm02\q 'mqsender label' 2000 bytes",
        "OrderAck 3",
        "FinalAck 4 NACK_Q_EXCEED_QUOTA",
        "EstablishConnection refused",
        "malformed, InternalHeader.Flags: PT is not 1, 2 or 3 (B-170)",
    ]
    problems = [problem for one in dissect(home, file) for problem in one.problems]
    assert "the session is refused: CS is set" in problems
    assert "the message is refused: NACK_Q_EXCEED_QUOTA" in problems
