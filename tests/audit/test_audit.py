"""The audit's rules, on rows made by hand: no capture files, no Spark."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import typer
from typer.testing import CliRunner

pytest.importorskip("pyarrow", reason="the pipeline is not installed")

from ordack.audit import replay, stages, tasks
from ordack.audit.result import KINDS, REJECTS, AuditResult, Word
from ordack.capture import columnar
from ordack.cli import audit
from ordack.pipeline import spark
from ordack.pipeline.spark import SparkMissing

from tests.support import capture_fleet, capture_generator, shares
from tests.support.command import ordack

START = 1_800_000_000  # s since 1970: the capture's first frame


def kinds(result: AuditResult) -> list[str]:
    return [item.kind for item in result.violations]


def audited(paths: list[Path], rows: int) -> AuditResult:
    """In batches of so many rows."""
    files = list(map(str, paths))
    auditor = replay.Auditor(replay.start_of(files))
    for batch in columnar.batches(files, rows=rows, columns=replay.COLUMNS, ordered=True):
        auditor.feed(batch)
    return tasks.result_of(files, [auditor.partial()])


def test_batches_may_end_anywhere(tmp_path: Path) -> None:
    capture = capture_generator.generate(40, tmp_path, violations=True, faults=[])
    whole = audited(capture.paths, 1 << 16)
    assert whole.violations
    assert audited(capture.paths, 16) == whole
    assert audited(capture.paths, 17) == whole


def test_tables_grow(tmp_path: Path) -> None:
    path = tmp_path / "fleet.pcap"
    truth = capture_fleet.write_fleet([path], 60_000, 6000, seed=7, each=1)
    result = audited([path], 4096)
    assert truth.streams > 2000
    names = ("packets", "connections", "streams", "messages", "resends")
    assert {name: result.summary[name] for name in names} == {name: getattr(truth, name) for name in names}
    assert sum(stream.messages for stream in result.streams) == truth.messages
    assert {one["kind"] for one in truth.planted} <= set(kinds(result))


# ---- files, command -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "missing"),
    [
        ("plant.pcap", "plant.pcap1", 0),
        ("plant.pcap", "plant.pcap2", 1),
        ("plant.pcap09", "plant.pcap12", 2),
        ("plant.pcap9", "plant.pcap0", 0),
        ("plant1.pcap", "plant3.pcap", 0),
        ("plant.pcap", "plant-000002.pcap", 0),
        ("plant.pcap", "plant-000004.pcap", 2),
        ("plant-000002.pcap", "plant-000003.pcap", 0),
        ("plant.pcapng", "plant-000002.pcapng", 0),
        ("plant-000002.pcapng", "plant-000004.pcapng", 1),
        ("plant-000002.pcap", "plant-000005.pcap", 2),
        ("p_00001_20261121210000.pcap", "p_00002_20261121220000.pcap", 0),
        ("p_00001_20261121210000.pcap", "p_00004_20261121220000.pcap", 2),
        ("p-20261121-210000.pcap", "p-20261121-210100.pcap", 0),
        ("p-2026-11-20.pcap", "p-2026-11-22.pcap", 0),
        ("a1.pcap", "b3.pcap", 0),
        ("x/plant1.pcap", "y/plant3.pcap", 0),
        ("plant1.pcap", "plant20261.pcap", 0),
        ("one.pcap", "two.pcap", 0),
    ],
)
def test_file_numbers_reveal_missing_captures(before: str, after: str, missing: int) -> None:
    minute = 60 * 10**9
    assert replay.missing_between(before, (0, minute), after, (5 * minute, 6 * minute)) == missing
    # Nothing that long is in a pause that short, whatever the names say; and these are two places at the same time.
    assert replay.missing_between(before, (0, minute), after, (minute + 10**7, 2 * minute)) == 0
    assert replay.missing_between(before, (0, minute), after, (minute - 1, 2 * minute)) == 0


@pytest.mark.parametrize("seed", [38, 118, 1069])
def test_audit_shares_agree_on_unsent_sequences(tmp_path: Path, seed: int) -> None:
    """Which sequences began within the capture, and which were sent at all, no share knows alone.

    By these seeds a share that trusts itself invents a violation (38, 118) or does not find one (1069).
    """
    capture = capture_generator.generate(seed, tmp_path, violations=True, faults=[])
    verdicts = []
    for parts in (1, 2, 5):
        result = shares.run(capture.paths, parts)
        verdicts.append([(item.text, item.stream, item.packets) for item in result.violations if item.stream])
    assert verdicts[0] == verdicts[1] == verdicts[2]


def test_sequences_and_rejects_of_streams(tmp_path: Path) -> None:
    """The last sequence of a stream is the youngest, and a negative FinalAck counts as rejected."""
    rolled = 0
    for seed in range(12):
        capture = capture_generator.generate(seed, tmp_path / str(seed), faults=[])
        result = tasks.run(capture.paths)
        for stream in result.streams:
            ages = [(one.sequence.time_stamp, one.sequence.ordinal) for one in stream.sequences]
            assert ages == sorted(ages)
            assert stream.sequence == stream.sequences[-1].sequence
            rejected = {name for name in stream.final_acks if name[:2] == "0x" and not int(name, 16) & 0x4000}
            assert {name for name in stream.rejects if name[:2] == "0x"} == rejected
            rolled += sorted(ages, key=lambda age: age[1]) != ages
    assert rolled


@pytest.mark.parametrize("size", [1000, 1 << 30])
def test_audit_shares_match_result_of_single_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """size: of what comes to the driver at once."""
    monkeypatch.setattr(stages, "_BATCH_BYTES", size)
    monkeypatch.setattr(stages, "_PIECE_BYTES", 5 * size)
    monkeypatch.setattr(stages, "FRAMES", 100)
    capture = capture_generator.generate(3, tmp_path, faults=[])
    whole, parts = tasks.run(capture.paths), shares.run(capture.paths, 3)
    assert parts.summary == whole.summary
    assert parts.streams == whole.streams
    assert [replace(one, connection=0) for one in parts.violations] == [
        replace(one, connection=0) for one in whole.violations
    ]
    assert len(whole.streams) > 3
    assert whole.streams == sorted(whole.streams, key=lambda report: report.stream)
    worst = [(-sum(one.violations.values()), -sum(one.unknowns.values()), -one.resends) for one in whole.worst]
    assert worst == sorted(worst)
    assert len(worst) == len(whole.streams)


def told_of_divisions(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What the driver decides from now on: do tasks know too little of each other?"""
    told: list[bool] = []
    divides = stages.divides_streams
    monkeypatch.setattr(stages, "divides_streams", lambda found: told.append(divides(found)) or told[-1])
    return told


def test_a_fleet_behind_one_address_is_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, path = tmp_path / "own.pcap", tmp_path / "one.pcap"
    capture_fleet.write_fleet([own], 20_000, 600, seed=4)
    assert capture_fleet.behind_one_address(own, path) > 100
    told = told_of_divisions(monkeypatch)
    assert shares.run([path], 8).streams == tasks.run([path]).streams
    assert told == [False]


def test_one_task_judges_a_wrong_ack_that_a_gap_of_another_may_excuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = capture_generator.generate(202, tmp_path, faults=["loss"], violations=True, length=60)
    told = told_of_divisions(monkeypatch)
    found = shares.run(capture.paths, 3)
    assert kinds(found) == ["ack_beyond_receipt"]
    assert found.summary["holes"]
    assert told == [True]


@pytest.mark.parametrize("violations", [False, True])
def test_the_command(tmp_path: Path, violations: bool) -> None:
    import pyarrow.parquet as pq

    capture = capture_generator.generate(21, tmp_path / "captures", violations=violations, faults=[])
    found = tasks.run(capture.paths)
    assert bool(found.violations) is violations
    out, html = tmp_path / "out", tmp_path / "report.html"
    done = ordack("capture", "audit", tmp_path / "captures", "--json", "--out", out, "--html", html)
    assert done.returncode == (1 if violations else 0), done.stderr
    assert json.loads(done.stdout) == found.summary == json.loads((out / "summary.json").read_text())
    lines = [json.loads(line) for line in (out / "violations.json").read_text().splitlines()]
    assert [line["kind"] for line in lines] == kinds(found)
    assert all(Path(packet["file"]).exists() for line in lines for packet in line["packets"])
    tables = {path.stem: pq.read_table(path).to_pylist() for path in out.glob("*.parquet")}
    for name in ("streams", "sequences"):
        assert sum(row["messages"] for row in tables[name]) == found.summary["messages"], name
        assert len(tables[name]) == len(getattr(found, name, tables[name]))
    assert [row["text"] for row in tables["violations"]] == [item.text for item in found.violations]
    assert [row["text"] for row in tables["unknown"]] == [item.reason for item in found.unknowns]
    first = min(report.first_time for report in found.streams)
    assert min(row["first_time"].timestamp() for row in tables["streams"]) == pytest.approx(first / 1e9, abs=1e-5)
    assert html.stat().st_size > 1000
    text = ordack("capture", "audit", tmp_path / "captures")
    assert text.returncode == done.returncode
    assert ("no violations" in text.stdout) is not violations


def test_settings_are_passed_to_spark(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def session(*said: object) -> None:
        given.append(said)
        raise SparkMissing("there is none")

    monkeypatch.setattr(spark, "spark_session", session)
    app = typer.Typer()
    app.command()(audit.audit)
    words = [str(sound), "--master", "spark://h:1", "--conf", "spark.x=1=2", "--conf", "spark.y="]
    assert CliRunner().invoke(app, words).exit_code == 2
    assert given == [("spark://h:1", "ordack capture audit", {"spark.x": "1=2", "spark.y": ""})]


def test_the_command_with_unusable_input(tmp_path: Path) -> None:
    text = tmp_path / "text.pcap"
    text.write_text("no capture at all")
    empty = tmp_path / "empty"
    empty.mkdir()
    for path in (text, empty, tmp_path / "missing"):
        done = ordack("capture", "audit", path)
        assert done.returncode == 2
        assert path.name in done.stderr


def _pcap(path: Path, frames: list[bytes]) -> Path:
    """A capture of these Ethernet frames, a second apart."""
    records = b"".join(
        struct.pack("<IIII", START + number, 0, len(frame), len(frame)) + frame for number, frame in enumerate(frames)
    )
    path.write_bytes(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1) + records)
    return path


def _tcp(port: int, body: bytes, sequence: int = 1, flags: int = 0x18, source: int = 40000) -> bytes:
    """A frame from port 40000 to this port of the same machine."""
    tcp = struct.pack(">HHIIBBHHH", source, port, sequence, 1, 5 << 4, flags, 65535, 0, 0) + body
    ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0) + bytes([127, 0, 0, 1]) * 2
    return bytes(12) + b"\x08\x00" + ip + tcp


def test_a_capture_without_a_packet_of_the_protocol_is_unusable(tmp_path: Path) -> None:
    http = _pcap(tmp_path / "http.pcap", [_tcp(1801, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")])
    done = ordack("capture", "audit", http, "--out", tmp_path / "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert "nothing to judge: no packet of the protocol in " in done.stderr
    assert (
        "http.pcap (1 connection to TCP port 1801, 0 connections of another protocol, 0 malformed packets, 0 holes)"
        in done.stderr
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("option", "path", "text"),
    [
        ("--out", "file", "is a file"),
        ("--out", "file/below", "cannot write --out"),
        ("--html", "no/x.html", "there is no folder"),
        ("--html", ".", "is a folder"),
    ],
)
def test_audit_reports_unwritable_output_path_without_errno(tmp_path: Path, option: str, path: str, text: str) -> None:
    (tmp_path / "file").touch()
    capture = capture_generator.generate(21, tmp_path / "captures", violations=False, faults=[])
    done = ordack("capture", "audit", *capture.paths, option, tmp_path / path)
    assert done.returncode == 2
    said = " ".join(done.stderr.replace("│", " ").split())
    assert text in said
    assert option in said
    assert "Errno" not in said


def _shortened(path: Path, target: Path, snap: int) -> None:
    """The same capture with no more than so many bytes of each frame."""
    data, at = path.read_bytes(), 24
    assert data[:4] == b"\xd4\xc3\xb2\xa1"
    made = bytearray(data[:24])
    while at < len(data):
        seconds, rest, size, whole = struct.unpack_from("<IIII", data, at)
        made += struct.pack("<IIII", seconds, rest, min(size, snap), whole) + data[at + 16 : at + 16 + min(size, snap)]
        at += 16 + size
    target.write_bytes(made)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture without violations in which nothing is missing."""
    return Path(
        capture_generator.generate(
            10, tmp_path_factory.mktemp("sound"), violations=False, faults=[], length=1500
        ).paths[0]
    )


@pytest.mark.parametrize(
    ("damage", "status", "reason"),
    [
        ("none", 0, ""),
        ("snap 120", 3, "hole"),
        ("snap 96", 3, "hole"),
        ("link", 3, "unreadable frames"),
        ("heads", 3, "unreadable frames"),
        ("cut", 3, "1 damaged or missing file"),
        ("between", 3, "1 damaged or missing file"),
    ],
)
def test_incomplete_evidence_has_an_exit_status_of_its_own(
    sound: Path, tmp_path: Path, damage: str, status: int, reason: str
) -> None:
    folder = tmp_path / "captures"
    folder.mkdir()
    data = sound.read_bytes()
    if damage.startswith("snap"):
        _shortened(sound, folder / "a.pcap", int(damage[5:]))
    else:
        (folder / "a.pcap").write_bytes(data[:-5] if damage == "cut" else data)
    if damage == "heads":  # so much as tells no ports
        _shortened(sound, folder / "b.pcap", 30)
    if damage == "link":  # and nine times as much that cannot be read
        (folder / "b.pcap").write_bytes(data[:20] + struct.pack("<I", 147) + 9 * data[24:])
    if damage == "between":
        (folder / "a.pcap").rename(folder / "a.pcap2")
        (folder / "a.pcap").write_bytes(data[:24] + struct.pack("<IIII", 1, 0, 0, 0))
    done = ordack("capture", "audit", folder, "--json", "--html", tmp_path / "page.html")
    assert done.returncode == status, done.stderr
    [said] = map(json.loads, done.stdout.splitlines())
    assert said["verdict"] == ("incomplete" if status else "no violations")
    assert any(reason in text for text in said["incomplete"]) is bool(reason)
    page = re.search(
        r'<section class="verdict (\w+)".*?<h2>(.*?)</h2>', (tmp_path / "page.html").read_text(), re.DOTALL
    )
    assert page
    assert page[1] == ("unknown" if status else "clean")
    text = ordack("capture", "audit", folder)
    assert text.returncode == status
    sentence = text.stdout.splitlines()[-1]
    assert (
        sentence == "no violations" + status // 3 * f", but the evidence is incomplete: {', '.join(said['incomplete'])}"
    )
    assert page[2].lower().startswith(sentence.lower())


HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(194)  # with which TLS begins


@pytest.mark.parametrize(("said", "status"), [(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 0), (HELLO, 3)])
@pytest.mark.parametrize("form", ["in this process", "parts"])
def test_connections_of_another_protocol_are_counted_apart(
    sound: Path, tmp_path: Path, said: bytes, status: int, form: str
) -> None:
    """A request by HTTP says nothing of the streams; what is said in TLS may be of a stream."""
    folder = tmp_path / "captures"
    folder.mkdir()
    (folder / "a.pcap").write_bytes(sound.read_bytes())
    answer = _tcp(40000, b"HTTP/1.1 400 Bad Request\r\n\r\n", 1, source=1801)
    opening = [_tcp(1801, b"", 0, 2), _tcp(40000, b"", 0, 0x12, 1801)]
    _pcap(folder / "b.pcap", [*opening, _tcp(1801, said), *([] if status else [answer]), _tcp(1801, b"", 1, 4)])
    before = tasks.run([folder / "a.pcap"]).summary
    if form == "parts":
        summary = shares.run(sorted(folder.iterdir()), 3).summary
    else:
        done = ordack("capture", "audit", folder, "--json", "--html", tmp_path / "page.html")
        assert done.returncode == status, done.stdout
        summary = json.loads(done.stdout)
        text = ordack("capture", "audit", folder)
        assert text.returncode == status
        for shown in (text.stdout, (tmp_path / "page.html").read_text()):
            assert ("1 other connection never spoke the protocol" in shown) == (not status)
    foreign = not status
    assert summary["foreign_connections"] == foreign
    assert summary["connections"] == before["connections"] + (not foreign)
    assert summary["malformed"] == (not foreign)
    assert summary["incomplete"] == ([] if foreign else ["1 malformed packet"])


@pytest.mark.parametrize("form", capture_generator.FORMS[1:])
def test_audit_sorts_frames_of_unordered_captures(tmp_path: Path, form: str) -> None:
    """A tap writes a file for each direction; queues of a network card write late, each in pieces."""
    plain = capture_generator.generate(10, tmp_path / "plain", violations=False, faults=[])
    wanted = tasks.run(plain.paths).summary
    folder = tmp_path / form
    capture = capture_generator.generate(10, folder, violations=False, faults=[], form=form)
    assert sum(map(columnar.is_capture, map(str, capture.paths))) == (2 if form == "tap" else 1)
    done = ordack("capture", "audit", folder, "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, wanted)
    assert shares.run(capture.paths, 5).summary == wanted


def test_violations_count_more_than_incomplete_evidence(tmp_path: Path) -> None:
    for seed in range(100, 130):
        made = capture_generator.generate(seed, tmp_path / str(seed), violations=True)
        result = tasks.run(made.paths)
        if any(result.summary["violations"].values()) and result.summary["incomplete"]:
            assert result.summary["verdict"] == "violations"
            assert ordack("capture", "audit", *made.paths).returncode == 1
            return
    pytest.fail("no capture has both")


@pytest.mark.parametrize(
    ("gib", "places", "wanted"),
    [
        (0.5, 64, 1),
        (100, 7, 1),
        (0.99, 8, 1),
        (1, 8, 8),
        (1, 64, 8),
        (100, 64, 64),
        (0.99, None, 1),
        (8, None, 64),
        (999, None, 512),
    ],
)
def test_an_audit_is_divided_only_where_that_pays(gib: float, places: int | None, wanted: int) -> None:
    assert tasks.shares(int(gib * (1 << 30)), places) == wanted


def test_audit_glossary_matches_audit_words_exactly() -> None:
    pages = ["how-to/audit.md", "reference/audit.md"]
    text = "".join(Path(__file__).parents[2].joinpath("host/docs", page).read_text() for page in pages)
    words = re.findall(r"^(?:\| |\* )([^|:]+)(?: \||:)", text, re.MULTILINE)
    assert {*get_args(Word), *KINDS, *REJECTS} <= set(words)
