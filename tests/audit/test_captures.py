"""Captures to columns: the same packets as a reader in plain Python finds, whatever happened to the frames.

The captures are conversations of two hosts over TCP, cut into segments by chance, of which frames are lost, doubled,
cut off, exchanged with their neighbours or sent again in other pieces.
"""

import itertools
import struct
import tracemalloc
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import packet_samples as samples  # type: ignore[import-not-found]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mqqb import build, connection, core, guids, handshake, headers, parse
from mqqb.names import parse_format_name
from ordack.capture import columnar, reading

from tests.audit.generated_packets import internals, messages
from tests.support import capture_generator
from tests.support.capture_files import FRAMES, START, block, enhanced, interface, pcap, section
from tests.support.conversation import (
    ACK,
    CLIENT,
    FULL,
    ONE,
    OPENING,
    SERVER,
    SYN,
    THREE,
    TWO,
    End,
    ip,
    message,
    put,
    there,
)

HOLE, FOREIGN, MALFORMED = reading.HOLE, reading.FOREIGN, reading.MALFORMED


# ---- what is in them ----------------------------------------------------------------------------

Row = dict[str, int]
Rows = dict[str, list[Row]]


def rows_of(batch: columnar.PacketColumns) -> Iterator[Row]:
    names = list(batch.columns)
    for number, values in enumerate(zip(*(batch[name].tolist() for name in names))):
        yield dict(zip(names, values)) | {"time": int(batch.time[number])}


def taken(paths: Sequence[str], part: int = 0, parts: int = 1, **options: Any) -> tuple[Rows, list[columnar.Damage]]:
    """The rows of each direction, in their order; what was wrong with the files."""
    found: Rows = defaultdict(list)
    decoder = None
    for batch in columnar.batches(paths, part, parts, **options):
        decoder = batch.decoder
        for row in rows_of(batch):
            ends = decoder.connection(row["connection"]).ends
            found[f"{ends[row['direction']]}>{ends[1 - row['direction']]}"].append(row)
    return found, [] if decoder is None else decoder.damages


def taken_from(files: Sequence[bytes], folder: Path, **options: Any) -> Rows:
    return taken(put(folder, files), **options)[0]


def of_captures(found: Rows) -> Counter[tuple[Any, ...]]:
    """Rows without the numbers of connections and the codes, which are a task's own."""
    own = {"connection", "source_queue_manager", "destination_queue", "ack_source"}
    return Counter((name, *(value for key, value in row.items() if key not in own))
                   for name, rows in found.items() for row in rows)  # fmt: skip


@pytest.mark.parametrize("parts", [2, 3, 5])
def test_parts_are_a_division_and_batches_do_not_matter(parts: int, tmp_path: Path) -> None:
    paths = list(map(str, capture_generator.generate(parts, tmp_path).paths))
    whole, _ = taken(paths)
    assert taken(paths, rows=17)[0] == whole
    shares = [taken(paths, part, parts)[0] for part in range(parts)]
    assert sum(map(of_captures, shares), Counter()) == of_captures(whole)
    for one, other in itertools.combinations(shares, 2):
        assert not set(one) & set(other)


# ---- files --------------------------------------------------------------------------------------

THERE = "10.0.0.1:50000>10.0.0.2:1801"


def test_a_file_cut_off_anywhere(tmp_path: Path) -> None:
    raw = [there(-1, flags=SYN, ack=0), there(0, ONE), there(32, TWO)]
    records = [*map(enhanced, raw)]
    blocks = [section(), interface(101), *records]
    for data, parts in ((pcap(raw), [pcap([]), *(16 * b"." + frame for frame in raw)]), (b"".join(blocks), blocks)):
        wholes = [*itertools.accumulate(map(len, parts), initial=0)]
        for size in range(len(data)):
            there_is = sum(size >= end for end in wholes[-2:])
            cut = size not in wholes
            paths = put(tmp_path, [data[:size]])
            damages = []
            rows: Rows = {}
            for batch in columnar.batches(paths):
                rows, damages = taken(paths)
                assert batch.decoder.damages == damages
            assert len(damages) == cut or not there_is
            if damages:
                assert f"behind frame {damages[0].frame}" in damages[0].text
            assert [row["kind"] for row in rows.get(THERE, []) if row["kind"] < HOLE] == [2, 3][:there_is]


@pytest.mark.parametrize(
    "data",
    [
        b"no capture at all",
        pcap([]) + struct.pack("<IIII", 0, 0, 1 << 25, 1 << 25) + bytes(100),
        section() + struct.pack("<II", 6, 13) + bytes(100),
        section() + struct.pack("<II", 6, 8) + bytes(100),
        section() + block("<", 1, bytes(4)),
        section() + interface(101) + block("<", 3, bytes(40)),
        section() + interface(101, struct.pack("<HHBxxx", 9, 1, 0x8A)),
        section() + enhanced(ONE),
        section() + interface(101) + enhanced(there(0, ONE))[:-4] + bytes(4),
        section() + interface(101) + block("<", 6, bytes(8)),
        struct.pack("<IIIHH", 0x0A0D0D0A, 28, 0x12345678, 1, 0) + bytes(12),
    ],
)
def test_file_without_capture_is_reported_and_skipped(tmp_path: Path, data: bytes) -> None:
    """The good file behind it is read nevertheless."""
    paths = put(tmp_path, [data, pcap([there(0, ONE)])])
    decoder = None
    kinds = []
    for batch in columnar.batches(paths):
        decoder = batch.decoder
        kinds += batch["kind"].tolist()
    assert decoder is not None
    assert [damage.path for damage in decoder.damages] == [paths[0]]
    assert 2 in kinds


def test_capture_times_are_exact_and_order_files_by_first_frame(tmp_path: Path) -> None:
    units = {3: 10**3, 6: 10**6, 9: 10**9}
    names = []
    for number, (code, per_second) in enumerate(units.items()):
        option = struct.pack("<HHBxxx", 9, 1, code)
        moment = (1_700_000_000 - number) * per_second + per_second // 4
        head = struct.pack("<IIIII", 0, moment >> 32 & 0xFFFFFFFF, moment & 0xFFFFFFFF, 72, 72)
        raw = ip(CLIENT, SERVER, 1000 + 32 * (len(units) - number), 0, ACK, ONE)
        data = section() + interface(101, option) + block("<", 6, head + raw)
        names.append(put(tmp_path, [data])[0])
        names[-1] = str(Path(names[-1]).rename(tmp_path / f"{number}.pcapng"))
    found = [(batch.decoder.paths[row["file"]], row["time"]) for batch in columnar.batches(names)
             for row in rows_of(batch) if row["kind"] == 2]  # fmt: skip
    assert found == [(names[number], (1_700_000_000 - number) * 10**9 + 250_000_000)
                     for number in reversed(range(len(units)))]  # fmt: skip


def test_packet_and_its_order_continue_in_next_capture_file(tmp_path: Path) -> None:
    first = pcap([*OPENING, there(0, THREE[:100]), there(200, THREE[200:] + ONE)])
    second = bytearray(pcap([there(100, THREE[100:200])]))
    second[24:28] = struct.pack("<I", 1_800_000_000)
    rows = taken_from([first, bytes(second)], tmp_path)[THERE]
    assert [(row["file"], row["frame"], row["kind"]) for row in rows[1:3]] == [(0, 3, 4), (0, 4, 2)]


def test_link_types_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    data = section() + interface(147) + interface(101) + enhanced(b"wireless") * 3 + enhanced(there(0, ONE), 1)
    (batch,) = columnar.batches(put(tmp_path, [data]))
    assert (batch.decoder.frames, batch.decoder.unread) == (4, 3)


# ---- tables that grow ---------------------------------------------------------------------------


def test_more_of_everything_than_the_tables_have_at_first(tmp_path: Path) -> None:
    """Connections, segments that wait, names and GUIDs."""
    count = 5000
    large = message(70000)
    frames = [there(at, large[at : at + 7]) for at in range(0, len(large), 7)]
    for number in range(count):
        end = End(bytes([10, 1, number >> 8, number & 0xFF]), 40000)
        guid = struct.pack("<IIQ", number, 1, 2)
        name = parse_format_name(f"DIRECT=TCP:10.0.0.5\\private$\\line{number}{'x' * (number % 100)}")
        frames += [ip(end, SERVER, 9, 0, SYN), ip(end, SERVER, 10, 0, ACK,
                                                 bytes(build.user_message(guid, number, name, b"")))]  # fmt: skip
    found = {}
    total = 0
    for batch in columnar.batches(put(tmp_path, [pcap(frames)])):
        for row in rows_of(batch):
            total += row["kind"] == 4
            manager, queue = row["source_queue_manager"], row["destination_queue"]
            if row["kind"] == 4:
                found[row["message_id"]] = (manager, queue, row["connection"])
        decoder = batch.decoder
    assert total == count + 1
    for number in range(2, count):
        manager, queue, connection = found[number]
        assert decoder.queue_manager(manager) == struct.pack("<IIQ", number, 1, 2)
        assert decoder.queue(queue).text == f"DIRECT=TCP:10.0.0.5\\private$\\line{number}{'x' * (number % 100)}"
        assert decoder.connection(connection).ends[0] == f"10.1.{number >> 8}.{number & 0xFF}:40000"
    for wrong in (0, -1, 1 << 31):
        with pytest.raises(IndexError):
            decoder.queue(wrong)
        with pytest.raises(IndexError):
            decoder.queue_manager(wrong)
        if wrong:
            with pytest.raises(IndexError):
                decoder.connection(wrong)


def test_arguments_are_checked(tmp_path: Path) -> None:
    for part, parts, rows in ((1, 1, 16), (-1, 2, 16), (0, 0, 16), (0, 1, 15)):
        with pytest.raises(ValueError, match="counts from 0"):
            next(columnar.batches([], part, parts, rows))
    with pytest.raises(FileNotFoundError):
        next(columnar.batches([tmp_path / "none"]))
    assert list(columnar.batches([])) == []


@pytest.mark.parametrize(
    ("data", "known", "time"),
    [
        (b"", False, None),
        (b"GIF89a" + bytes(40), False, None),
        (pcap([])[:10], True, None),
        (pcap([]), True, None),
        (pcap([FRAMES[3]])[:-1], True, None),
        (pcap([FRAMES[3], FRAMES[3]]), True, 1_700_000_000.25),
        (pcap([FRAMES[3]], order=">", nano=True), True, 1_700_000_000.25),
        (pcap([FRAMES[3]], link=147), True, 1_700_000_000.25),
        (section(), True, None),
        (section() + block("<", 10, bytes(90)) + interface(101) + enhanced(FRAMES[3]), True, START),
    ],
)
def test_capture_is_recognised_by_its_first_bytes(data: bytes, known: bool, time: float | None, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    assert columnar.is_capture(str(path)) is known
    assert columnar.first_time(str(path)) == pytest.approx(float("inf") if time is None else time, abs=1e-6)


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        paths = put(tmp_path, [pcap([there(len(THREE) * at, THREE) for at in range(count)])])
        tracemalloc.start()
        for batch in columnar.batches(paths, rows=256):
            assert batch.rows <= 256
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    peak(1)  # what is made once
    assert peak(30_000) < peak(10_000) + 100_000


# ---- the other columns --------------------------------------------------------------------------


def wire_name(name: Any) -> bytes:
    return b"" if name is None else bytes(name.raw)


def parsed(raw: bytes) -> dict[str, Any] | None:
    """What parse.parse finds of the columns that mqqb_scan leaves out; None if it finds the packet malformed."""
    try:
        packet = parse.parse(raw)
    except core.Malformed:
        return None
    if isinstance(packet, handshake.EstablishConnection):
        header = packet.header
        return {"client_guid": bytes(header.client_guid), "server_guid": bytes(header.server_guid),
                "time_stamp": header.time_stamp, "operating_system": header.operating_system}  # fmt: skip
    if isinstance(packet, handshake.ConnectionParameters):
        return {"recoverable_ack_timeout": packet.header.recoverable_ack_timeout,
                "ack_timeout": packet.header.ack_timeout,
                "parameters_window_size": packet.header.window_size}  # fmt: skip
    if isinstance(packet, handshake.SessionAck):
        return {}
    message = packet.message if isinstance(packet, (connection.OrderAck, headers.FinalAck)) else packet
    user, properties = message.user, message.properties
    found = {
        "source_queue_manager": bytes(user.source_queue_manager),
        "queue_manager_address": bytes(user.queue_manager_address),
        "destination_queue": wire_name(user.destination_queue),
        "administration_queue": wire_name(user.admin_queue),
        "response_queue": wire_name(user.response_queue),
        "label": properties.label.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"),
        "correlation_id": bytes(properties.correlation_id),
    }
    for name in ("body_type", "application_tag", "allocation_body_size", "privacy_level", "hash_algorithm",
                 "encryption_algorithm", "extension_size"):  # fmt: skip
        found[name] = getattr(properties, name)
    if message.transaction is not None and message.transaction.connector_qm_guid is not None:
        found["connector_queue_manager"] = bytes(message.transaction.connector_qm_guid)
    if message.security is not None:
        found["security_flags"] = message.security.flags
        for name in columnar.DETAIL_COLUMNS[5:10]:
            found[name] = getattr(message.security, name)
    if isinstance(packet, headers.FinalAck):
        found["ack_source"] = bytes(packet.body.source_guid)
    return found


GUIDS = {"source_queue_manager", "queue_manager_address", "connector_queue_manager", "client_guid", "server_guid",
         "ack_source"}  # fmt: skip
QUEUES = {"destination_queue", "administration_queue", "response_queue"}


def details(raw: bytes, folder: Path) -> dict[str, Any]:
    """The same of the one packet in a capture; what is 0 or empty left out."""
    frames = [there(-1, flags=SYN, ack=0), *(there(at, raw[at : at + 9000]) for at in range(0, len(raw), 9000))]
    (batch,) = columnar.batches(put(folder, [pcap(frames)]), columns=columnar.COLUMNS, labels=True, correlations=True)
    assert batch.label_end is not None
    assert batch.label_text is not None
    assert batch.correlation_id is not None
    row = batch["kind"].tolist().index(min(batch["kind"].tolist()))
    begin, size = int(batch["body_offset"][row]), int(batch["body_size"][row])
    assert batch["body_crc"][row] == zlib.crc32(raw[begin : begin + size])
    found: dict[str, Any] = {}
    for name in (*{*columnar.DETAIL_COLUMNS} - {"body_crc"}, "source_queue_manager", "destination_queue", "ack_source"):
        value = int(batch[name][row])
        if value and name in GUIDS:
            found[name] = batch.decoder.queue_manager(value)
        elif value and name in QUEUES:
            found[name] = batch.decoder.queue(value).raw
        elif value:
            found[name] = value
    first, last = batch.label_end[row : row + 2].tolist()
    found["label"] = batch.label_text[first:last].tobytes().decode()
    found["correlation_id"] = batch.correlation_id[row].tobytes()
    assert not batch.correlation_id[0].any()
    return {name: value for name, value in found.items() if value and value != bytes(20)}


@settings(max_examples=150)
@given(raw=st.one_of(messages(), messages(), internals()))
def test_detail_columns_match_twin_parser(raw: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    wanted = parsed(raw)
    found = details(raw, tmp_path_factory.mktemp("details"))
    if wanted is not None:
        assert found == {name: value for name, value in wanted.items() if value and value != bytes(20)}


def test_most_generated_packets_are_well_formed() -> None:
    """The generator must reach the far end of the walk: no optional header, and no kind, may be missing."""
    kinds = set()
    bits = 0

    @settings(derandomize=True, max_examples=1200)
    @given(raw=st.one_of(internals(), messages()))
    def collect(raw: bytes) -> None:
        nonlocal bits
        if parsed(raw) is not None:
            kinds.add(type(packet := parse.parse(raw)))
            bits |= int.from_bytes(raw[2:4], "little") << 32
            bits |= packet.user.flags if isinstance(packet, headers.UserMessage) else 0

    collect()
    assert len(kinds) == 6
    for bit in (core.USER_TH, core.USER_CQ, core.USER_HH, core.USER_MQ, core.BASE_SH << 32, core.BASE_DH << 32):
        assert bits & bit


@pytest.mark.parametrize("label", ["", "é", "ൠ", "😀x", "\ud800", "a\udc00b", "\ud800\ud800", "x" * 249, "ൠ" * 249])
def test_labels_are_utf_8(label: str, tmp_path: Path) -> None:
    raw = bytes(build.user_message(samples.SENDER, 1, samples.DIRECT, b"", label=label))
    assert details(raw, tmp_path).get("label", "") == label.encode("utf-16-le", "surrogatepass").decode(
        "utf-16-le", "replace"
    )


def test_everything_in_one_message(tmp_path: Path) -> None:
    found = details(FULL, tmp_path)
    assert found == {name: value for name, value in (parsed(FULL) or {}).items() if value and value != bytes(20)}
    assert {"connector_queue_manager", "sender_id_size", "provider_info_size", "extension_size"} <= set(found)


def test_names_as_text() -> None:
    guid = bytes(range(16))
    text = guids.guid_text(guid)[1:-1]
    for selector, raw, name in (
        (3, b"\4\0\0\0", f"PRIVATE={guids.guid_text(bytes(16))[1:-1]}\\00000004"),
        (5, guid, f"PUBLIC={text}"),
        (6, guid + b"\x2a\0\0\0", f"PRIVATE={text}\\0000002A"),
        (7, "OS:a\\q\0".encode("utf-16-le"), "DIRECT=OS:a\\q"),
    ):
        assert columnar._queue_name(selector, raw) == columnar.PacketQueue(selector, raw, name)
