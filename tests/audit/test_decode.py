"""`ordack capture decode`: the JSON, the text for people, every kind of input, exit statuses."""

import io
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import packet_build
import packet_samples as samples  # type: ignore[import-not-found]
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from mqqb import acks, build, guids, headers, names, parse, rare
from ordack.capture import decoder
from ordack.cli import decode
from ordack.config import classes
from typer.testing import CliRunner

from tests.conformance import ROOT
from tests.support.capture_files import ETHERNET, NAME, START, enhanced, interface, pcap, section, segment, syn
from tests.support.command import ENVIRONMENT

VECTORS = ROOT / "tests/vectors.json"
FRAMES = samples.frames(str(VECTORS))
DOCUMENT = {frame["frame"]: frame for frame in json.loads(VECTORS.read_text())["frames"]}
FULL = bytes(packet_build.build(samples.full_message()))

app = typer.Typer()
app.command()(decode.decode)


def run(*arguments: str | Path, stdin: bytes = b"") -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin, terminal_width=200)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.stderr
    return result.exit_code, result.stdout, result.stderr


def objects(*arguments: str | Path, stdin: bytes = b"") -> tuple[int, list[dict[str, Any]]]:
    status, out, _ = run("--json", *arguments, stdin=stdin)
    return status, [json.loads(line) for line in out.splitlines()]


def one(data: bytes) -> dict[str, Any]:
    (decoded,) = decoder.decode_bytes(data)
    return decoded.as_json()


def test_a_packet_as_text_takes_about_as_many_steps_as_json() -> None:
    steps = Counter[bool]()

    def count(*_: object) -> None:
        steps[as_json] += 1

    for as_json in (False, True):
        run(*["--json"] * as_json, "-", stdin=FRAMES[7])
        sys.setprofile(count)
        run(*["--json"] * as_json, "-", stdin=FRAMES[7] * 100)
        sys.setprofile(None)
    assert steps[False] < 5 * steps[True]


# ---- the JSON form ------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0x4000, 0x8000, 0x8008, 0x800C, 0xC003, 0x7FFF])
def test_a_class_has_its_name_beside_it(number: int) -> None:
    message = build.user_message(bytes(16), 1, names.DirectQueueFormatName(NAME), b"x", message_class=number)
    properties = one(bytes(message))["fields"]["MessagePropertiesHeader"]
    assert properties["MessageClass"] == number
    assert properties["MessageClass_name"] == classes.NAMES.get(number)


@pytest.mark.rule("A-47", "B-005", "OP-18", "OP-20", "OP-23", "OP-27")
@pytest.mark.parametrize("number", sorted(FRAMES))
def test_captured_frames_have_the_stated_fields(number: int) -> None:
    expected = DOCUMENT[number]["fields"]
    found = one(FRAMES[number])
    assert found["packet"] == DOCUMENT[number]["packet"].split()[0]
    assert found["offset"] == 0
    if properties := found["fields"].get("MessagePropertiesHeader"):  # what we compute, vectors.json does not have
        assert properties.pop("MessageClass_name") == "NORMAL"
    if number == 7:  # the document shows 1428 of its body's 2000 bytes
        shown = expected["MessagePropertiesHeader"].pop("MessageBody")
        body = found["fields"]["MessagePropertiesHeader"].pop("MessageBody")
        assert body == {"length": 2000, "packet_offset": shown["packet_offset"], "hex": "6100" * 1000}
        assert shown["shown_pattern_hex"] * shown["shown_repeats"] == body["hex"][: 2 * shown["bytes_shown"]]
    assert found["fields"] == expected
    assert {name: list(fields) for name, fields in found["fields"].items()} == {
        name: list(fields) for name, fields in expected.items()
    }


WIDTHS = {
    **dict.fromkeys(("VersionNumber", "LabelLength"), 1),
    **dict.fromkeys(("Ordinal", "TimeStamp", "PrivateQueueIdentifier", "ProviderType"), 4),
    **dict.fromkeys(("ElementCount", "HeaderSize"), 4),
}


def check_offsets(raw: bytes, fields: Iterable[decoder.Field]) -> list[str]:
    """Every field has its value where it says; the names of those that were compared."""
    compared = []
    for field in fields:
        here = raw[field.offset :]
        if isinstance(field.value, tuple):
            compared += check_offsets(raw, field.value)
        elif isinstance(field.value, list):
            for item in field.value:
                compared += check_offsets(raw, item)
        elif isinstance(field.value, dict) or field.name[0].islower():
            continue  # names in small letters are not of the wire
        elif field.name == "SecurityID_text":
            assert here.startswith(samples.SID)
        elif isinstance(field.value, int):
            size = WIDTHS.get(field.name, 1 if field.name == "Reserved" and field.offset == 1 else 2)
            assert int.from_bytes(here[:size], "little") == field.value & (1 << 8 * size) - 1, field
        elif field.name.endswith("_hex"):
            assert here.startswith(bytes.fromhex(field.value)), field
        elif field.value.startswith("{"):
            assert guids.guid_text(here[:16]) == field.value, field
        else:
            assert here.startswith(field.value.encode("utf-16-le")), field
        compared.append(field.name)
    return compared


@pytest.mark.parametrize("aligned", [True, False])
def test_every_offset_of_the_tree_is_where_the_field_is(aligned: bool) -> None:
    message = samples.full_message()
    if not aligned:  # the other reading of a public name in a list (OP-9)
        part = message.multi_queue_format.response
        part.raw, part.element_count, part.aligned = (b"\1\0" + samples.SENDER) * 2, 2, False
    raw = bytes(packet_build.build(message))
    compared = [name for part in decoder.sections(parse.parse(raw)) for name in check_offsets(raw, part.fields)]
    nested = (
        "DirectFormatName", "Ordinal", "TimeStamp", "SecurityID_hex", "EncryptionKey_hex", "Signature_hex",
        "SenderCert_hex", "ProviderType", "ProviderName", "FormatType", "PublicQueueIdentifier", "SourceQueueManager",
        "PrivateQueueIdentifier", "DistributionList", "ElementCount", "Size",
    )  # fmt: skip
    assert set(nested) <= set(compared)
    assert compared.count("FormatType") == (5 if aligned else 6)


@pytest.mark.parametrize("is_final", [False, True])
def test_every_offset_of_an_acknowledgment_is_where_the_field_is(is_final: bool) -> None:
    queue = acks.order_queue("10.0.0.1")
    raw = (
        acks.final_ack(queue, samples.SENDER, 8, 9, 1, 2, 3, 2, samples.RECEIVER, 7, 0x4000)
        if is_final
        else acks.order_ack(queue, samples.SENDER, 8, 9, 1, 2, 3)
    )
    compared = [name for part in decoder.sections(parse.parse(raw)) for name in check_offsets(bytes(raw), part.fields)]
    assert {"Ordinal", "TimeStamp", "TxSequenceNumber"} <= set(compared)
    assert ("SourceGUID" in compared) == is_final


def test_other_forms_of_some_fields() -> None:
    raw = bytearray(FRAMES[3])
    raw[60] = 0
    padding = one(bytes(raw))["fields"]["EstablishConnectionHeader"]["Padding"]
    assert padding == {"length": 512, "hex": "00" + "5A" * 511}
    message = parse.parse(build.user_message(samples.SENDER, 1, headers.PublicQueueFormatName(samples.SENDER), b""))
    assert isinstance(message, headers.UserMessage)
    message.security = headers.SecurityHeader()
    message.security.flags = 2
    message.security.security_id = samples.SENDER
    message.debug = rare.DebugHeader()
    fields = one(bytes(packet_build.build(message)))["fields"]
    guid = guids.guid_text(samples.SENDER)
    assert fields["UserHeader"]["DestinationQueue"] == {"type": "PublicQueueFormatName", "PublicQueueIdentifier": guid}
    assert fields["SecurityHeader"]["SecurityData"]["SecurityID_text"] == guid
    assert list(fields["DebugHeader"]) == ["Flags", "Reserved"]


# ---- input --------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", pcap([]), pcap([b"no ip"])])
def test_a_file_without_packets_is_said_and_no_failure(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "nothing"
    file.write_bytes(data)
    status, out, error = run("--json", file)
    assert (status, out) == (0, "")
    assert "nothing: no packets found" in error
    assert ("the file is empty" in error) == (not data)


def test_raw_packets_and_a_raw_ping(tmp_path: Path) -> None:
    file = tmp_path / "raw.bin"
    file.write_bytes(FRAMES[3] + FRAMES[5] + FULL + FRAMES[8])
    status, found = objects(file)
    assert status == 0
    assert [item["packet"] for item in found] == [
        "EstablishConnection",
        "ConnectionParameters",
        "UserMessage",
        "SessionAck",
    ]
    assert [item["offset"] for item in found] == [0, 572, 604, 604 + len(FULL)]
    for number in (1, 2):
        file.write_bytes(FRAMES[number])
        assert objects(file) == (0, [one(FRAMES[number])])


@pytest.mark.parametrize("form", ["pcap", "pcapng"])
def test_captures(tmp_path: Path, form: str) -> None:
    stream = FRAMES[3] + FRAMES[5]
    records = [
        ETHERNET + b"\x08\x00" + data for data in (syn(999), segment(1000, stream[:100]), segment(1100, stream[100:]))
    ]
    file = tmp_path / "capture"
    file.write_bytes(
        pcap(records, 1) if form == "pcap" else section() + interface(1) + b"".join(enhanced(data) for data in records)
    )
    status, found = objects(file)
    assert status == 0
    places = [(item["packet"], item["offset"], item["connection"], item["frame"]) for item in found]
    assert places == [("EstablishConnection", 0, NAME, 2), ("ConnectionParameters", 572, NAME, 3)]
    assert [item["time"] for item in found] == ([START + 1, START + 2] if form == "pcap" else [START, START])
    assert found[0]["fields"] == one(FRAMES[3])["fields"]


def test_a_capture_with_a_hole() -> None:
    data = pcap([syn(999), segment(1000, FRAMES[5]), segment(1064, FRAMES[8])])
    status, found = objects("-", stdin=data)
    assert status == 3
    assert [(item["packet"], item["offset"]) for item in found] == [
        ("ConnectionParameters", 0),
        ("malformed", 32),
        ("SessionAck", 64),
    ]
    assert "32 bytes from offset 32" in found[1]["error"]["reason"]


# ---- exit statuses ------------------------------------------------------------------------------


@pytest.mark.rule("B-169", "B-171", "B-429")
def test_malformed_packets_are_reported_and_the_next_one_is_read(tmp_path: Path) -> None:
    wrong = bytearray(FULL)
    wrong[61] = 0x04  # DQ 1
    status, found = objects("-", stdin=FRAMES[5] + wrong + FRAMES[8])
    assert status == 3
    assert [item["packet"] for item in found] == ["ConnectionParameters", "malformed", "SessionAck"]
    error = found[1]["error"]
    assert (error["rule"], error["field"], found[1]["offset"]) == ("B-171", "UserHeader.Flags", 32)
    assert error["reason"]
    assert set(found[1]) == {"packet", "offset", "error"}


@pytest.mark.rule("B-168", "B-429")
@pytest.mark.parametrize("tail", [FRAMES[5][:31], FRAMES[5][:5], b"noise that is no packet", FRAMES[1][:10]])
def test_packet_without_valid_end_ends_the_stream(tail: bytes) -> None:
    status, found = objects("-", stdin=FRAMES[5] + tail)
    assert status == 3
    assert [(item["packet"], item["offset"]) for item in found] == [("ConnectionParameters", 0), ("malformed", 32)]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"hello", "neither a capture nor raw packets"),
        (b"\x1f\x8b" + bytes(20), "unpack a compressed capture first"),
        (pcap([segment(0, FRAMES[5])])[:-5], "at byte 24, behind frame 0: the file ends inside"),
        (section()[:20], "at byte 0, behind frame 0: the file ends inside"),
        (b"\xd4\xc3\xb2\xa1", "at byte 0, behind frame 0: the file ends inside"),
    ],
)
def test_decode_reports_undecodable_input(tmp_path: Path, data: bytes, reason: str) -> None:
    file = tmp_path / "input"
    file.write_bytes(data)
    status, _, error = run(file)
    assert status == 2
    assert reason in error
    assert "input" in error


def test_decode_prints_readable_part_of_damaged_capture() -> None:
    status, found = objects("-", stdin=pcap([segment(0, FRAMES[5]), b"x" * 50])[:-5])
    assert (status, [item["packet"] for item in found]) == (2, ["ConnectionParameters"])


def test_files_that_cannot_be_read_do_not_stop_the_others(tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.write_bytes(FRAMES[5])
    bad = tmp_path / "bad"
    bad.write_bytes(FRAMES[5] + b"?")
    status, out, error = run("--json", tmp_path / "none", good, tmp_path, bad)
    assert status == 3
    assert [json.loads(line)["packet"] for line in out.splitlines()] == [
        "ConnectionParameters",
        "ConnectionParameters",
        "malformed",
    ]
    assert "none: No such file" in error
    assert "directory" in error
    assert run("--json", bad, good)[0] == 3
    assert run()[0] == 2


def test_link_types_that_cannot_be_read_are_named_and_counted() -> None:
    wanted = segment(1000, FRAMES[5])
    status, out, error = run("--json", "-", stdin=pcap([wanted, wanted, wanted], 147))
    assert (status, out) == (2, "")
    assert "3 of 3 frames could not be read: link type 147, which the first of them has, is not supported" in error
    assert "nothing of this capture could be read" in error

    two = section() + interface(147) + interface(101) + interface(105)
    two += enhanced(wanted) + enhanced(wanted, 2) + enhanced(wanted, 1) + enhanced(wanted)
    status, out, error = run("--json", "-", stdin=two)
    assert (status, [json.loads(line)["packet"] for line in out.splitlines()]) == (0, ["ConnectionParameters"])
    assert "3 of 4 frames could not be read: link type 147, which the first of them has, is not supported" in error
    assert "nothing" not in error

    status, _, error = run("--json", "-", stdin=pcap([wanted, wanted], 147)[:-5])
    assert status == 2
    assert "1 of 1 frames could not be read" in error
    assert "the file ends inside" in error


@pytest.mark.parametrize("options", [["--json"], []])
def test_decode_shows_piped_packets_immediately(options: list[str]) -> None:
    """`tcpdump -U -w - | ordack capture decode -`, which ends when somebody ends it."""
    data = pcap([syn(999), segment(1000, FRAMES[5]), segment(1000 + len(FRAMES[5]), FRAMES[8])])
    last = len(FRAMES[8]) + 56
    buffered = {key: value for key, value in ENVIRONMENT.items() if key != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-m", "ordack", "capture", "decode", *options, "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=buffered) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(data[:-last])
        process.stdin.flush()
        assert b"ConnectionParameters" in process.stdout.readline()
        process.stdin.write(data[-last:])
        process.stdin.close()
        assert b"SessionAck" in process.stdout.read()
    assert process.returncode == 0


def test_a_closed_standard_input_is_said() -> None:
    command = f"exec {sys.executable} -m ordack capture decode - <&-"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=ENVIRONMENT, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr == "ordack capture decode: -: standard input is closed\n"


# ---- the text -----------------------------------------------------------------------------------


def test_names_stand_beside_their_guids(tmp_path: Path) -> None:
    (tmp_path / "ordack.toml").write_text(f"[names]\n'{guids.guid_text(samples.SENDER)}' = 'press 7 [b]'\n")
    message = bytes(build.user_message(samples.SENDER, 1, samples.DIRECT, b"x"))
    status, out, _ = run("--names", tmp_path / "ordack.toml", "-", stdin=message)
    assert status == 0
    guid = guids.guid_text(samples.SENDER)
    assert len(re.findall(rf"SourceQueueManager: {re.escape(guid)}  press 7 \[b\]\n", out)) == 1
    _, [shown] = objects("--names", tmp_path / "ordack.toml", "-", stdin=message)
    user = shown["fields"]["UserHeader"]
    assert (user["SourceQueueManager"], user["SourceQueueManager_name"]) == (guid, "press 7 [b]")
    assert "QueueManagerAddress_name" not in user
    _, [plain] = objects("-", stdin=message)
    assert "SourceQueueManager_name" not in plain["fields"]["UserHeader"]
    (tmp_path / "ordack.toml").write_text("[names]\n'press 7' = 'press 7'\n")
    status, out, _ = run("--names", tmp_path / "ordack.toml", "-", stdin=message)
    assert (status, out) == (2, "")


def test_decode_prints_capture_tree_and_malformed_packet() -> None:
    status, out, _ = run("-", stdin=pcap([segment(0, FRAMES[5] + b"no packet follows")]))
    assert status == 3
    assert f"ConnectionParameters  offset 0 (0x0)  frame 1  {NAME}  2023-11-14 22:13:20.250000 UTC" in out
    assert "malformed  offset 32 (0x20)" in out
    assert "BaseHeader.VersionNumber: not 0x10 (B-168)" in out


LABEL = "\x1b]0;t\x07\x7f\x9b\u202e\ud800 \u00e4\u4e2d\udfff\n"


def process(
    *arguments: str | Path, stdout: int | io.IOBase = subprocess.PIPE, **environment: str
) -> "subprocess.Popen[bytes]":
    """The command as a process of its own."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    path = os.pathsep.join([str(ROOT / "host"), str(ROOT / "firmware")])
    return subprocess.Popen(
        [sys.executable, "-m", "ordack", "capture", "decode", *map(str, arguments)],
        stdout=stdout,  # type: ignore[arg-type]
        stderr=subprocess.PIPE,
        env={**env, "PYTHONPATH": path, **environment},
    )


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16"])
def test_any_text_can_be_printed_in_any_encoding(tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "raw\x1b[31m"
    file.write_bytes(build.user_message(samples.SENDER, 1, samples.DIRECT, b"", label=LABEL))
    with process("--json", file, PYTHONIOENCODING=encoding) as running:
        out, error = running.communicate(timeout=60)
    assert (running.returncode, error) == (0, b"")
    found = json.loads(out.decode(encoding))
    assert found["fields"]["MessagePropertiesHeader"]["Label"] == LABEL

    with process(file, tmp_path / "none\x1b[31m", PYTHONIOENCODING=encoding) as running:
        out, error = running.communicate(timeout=60)
    assert running.returncode == 2
    text = out.decode(encoding)
    assert all(char.isprintable() or char == "\n" for char in text)
    assert "Label: \\x1b]0;t\\x07\\x7f\\x9b\\u202e\\ud800 " in text
    assert ("\u4e2d" if encoding.startswith("utf") else "\\u4e2d") in text
    assert b"\x1b" not in error
    assert "No such file" in error.decode(encoding)


@pytest.mark.parametrize(("form", "unbuffered", "count"), [("--json", "", 1), ("--", "1", 200), ("--json", "", 200)])
def test_a_reader_that_has_seen_enough_ends_it_quietly(tmp_path: Path, form: str, unbuffered: str, count: int) -> None:
    file = tmp_path / "raw"
    file.write_bytes(FRAMES[7] * count)
    read_end, write_end = os.pipe()
    os.close(read_end)
    with process(form, file, stdout=write_end, PYTHONUNBUFFERED=unbuffered) as running:
        os.close(write_end)
        _, error = running.communicate(timeout=60)
    assert (running.returncode, error) == (1, b"")


@pytest.mark.parametrize(("form", "unbuffered", "count"), [("--json", "", 1), ("--", "1", 200), ("--json", "", 200)])
def test_a_full_disk_is_said_once(tmp_path: Path, form: str, unbuffered: str, count: int) -> None:
    file = tmp_path / "raw"
    file.write_bytes(FRAMES[7] * count)
    with Path("/dev/full").open("wb") as full:
        with process(form, file, file, stdout=full, PYTHONUNBUFFERED=unbuffered) as running:
            _, error = running.communicate(timeout=60)
    assert running.returncode == 1
    assert error.decode().splitlines() == ["ordack capture decode: standard output: No space left on device"]


@settings(max_examples=60)
@given(
    data=st.binary(max_size=120),
    head=st.sampled_from([b"", FRAMES[5], FULL, FRAMES[7][:150], b"\xd4\xc3\xb2\xa1", section()]),
)
def test_no_input_is_answered_with_a_traceback(data: bytes, head: bytes) -> None:
    status, out, _ = run("-", stdin=head + data)
    assert status in (0, 2, 3)
    assert isinstance(out, str)
