"""Segments and tables in buckets of an S3 server: exported, read, loaded, reconciled and pruned as those of a disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from ordack.client import Client
from ordack.config import paths
from ordack.config.paths import path_of
from ordack.pipeline import export as export_module
from ordack.pipeline import segments
from ordack.pipeline.export import Exporter
from ordack.pipeline.folders import Folders, in_turn
from ordack.pipeline.ingest import rows_of
from ordack.pipeline.lake import Decoding
from ordack.pipeline.segments import MARKER, FolderBusy, FolderError, Marker, marker_content

from tests.support.command import ENVIRONMENT, ordack
from tests.support.s3 import DONE, S3
from tests.support.segment_files import make_folder, write

FOLDER = "s3a://plant/segments"
WAIT_S = 500  # for what takes Spark a minute on a busy machine


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with Client(tmp_path / "store", create=True) as client:
        client.create_queue("line1", transactional=True)
        for number in range(5):
            client.send("line1", b"%d" % number)
    return tmp_path / "store"


def export(store: Path, **options: object) -> None:
    with Client(store) as client, Exporter(client, ["line1"], FOLDER, rows=2, tell=lambda _: None, **options) as made:  # type: ignore[arg-type]
        list(made.run())


def bodies(store: Path) -> list[bytes]:
    """Of all messages, in segments and then in the queue."""
    found: list[bytes] = []
    if path_of(FOLDER).exists():
        for segment in segments.segments(FOLDER):
            with path_of(str(segment.path)).open() as file:
                found += pq.read_table(file)["body"].to_pylist()
    with Client(store) as client:
        return found + [message.body for message in client.queue("line1").peek()]


def upload(s3: S3, folder: Path) -> None:
    """All files in it, under the same names."""
    for file in folder.rglob("*"):
        if file.is_file():
            s3.put(str(file.relative_to(folder)), file.read_bytes())


def test_an_export_to_a_bucket(s3: S3, store: Path) -> None:
    done = ordack(
        "table", "export", "line1", "--store", store, "--to", FOLDER, environment={**ENVIRONMENT, **s3.environment}
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "5 messages exported" in done.stdout
    names = [name for name in s3.names() if not name.endswith("/")]
    assert [name for name in names if "line1" in name] == ["segments/line1-0000000001-1-5.parquet"]
    assert len(names) == 2  # and the marker
    assert bodies(store) == [b"%d" % number for number in range(5)]


@pytest.mark.slow
def test_export_cut_at_any_request_loses_and_doubles_nothing(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a kill, or by a network that fails: before the answer to a request that changes something came back, or
    before any other request. Two segments are enough: the next ones are made as the second is."""
    monkeypatch.setattr(export_module, "CLAIM_S", 0)
    cut = 0
    while True:
        place = tmp_path / f"{cut}"
        with Client(place, create=True) as client:
            client.create_queue("line1", transactional=True)
            for number in range(3):
                client.send("line1", b"%d" % number)
        s3.clear()
        count = [0]

        def fail(method: str, _: str, count: list[int] = count, cut: int = cut) -> str | None:
            count[0] += 1
            done = DONE if count[0] == cut + 1 and method not in ("GET", "HEAD") else ""
            return f"403 Forbidden{done}" if count[0] > cut else None

        s3.before = fail
        failed = False
        try:
            export(place)
        except FolderError:
            failed = True
        s3.before = lambda *_: None
        export(place, anew=not any("_ordack" in name for name in s3.names()))
        assert bodies(place) == [b"%d" % number for number in range(3)], f"cut before request {cut + 1}"
        assert not [name for name in s3.names() if "line1" in name and name.endswith(".new")]
        if not failed:
            break
        cut += 1
    print("requests:", cut)
    assert cut > 15


def test_of_two_first_exports_at_once_the_last_marker_counts(
    s3: S3, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = marker_content(Marker("other", "folder-2"))
    monkeypatch.setattr(export_module.time, "sleep", lambda _: s3.put(f"segments/{MARKER}", other))
    with pytest.raises(FolderError, match="holds segments of the queue manager other"):
        export(store)
    assert bodies(store) == [b"%d" % number for number in range(5)]


def test_export_to_bucket_stops_when_marker_is_replaced(s3: S3, store: Path) -> None:
    with Client(store) as client, Exporter(client, ["line1"], FOLDER, rows=2, tell=print) as exporter:
        made = exporter.run()
        next(made)
        s3.put(f"segments/{MARKER}", marker_content(Marker("other", "folder-2")))
        with pytest.raises(FolderError, match="was moved, deleted or replaced"):
            next(made)
    assert bodies(store) == [b"%d" % number for number in range(5)]


def test_export_refused_by_server_keeps_messages_queued(s3: S3, store: Path) -> None:
    for url, reason in ((FOLDER.replace("plant", "planet"), "the bucket planet"), (FOLDER, "refuses this key")):
        s3.before = lambda *_, url=url: "403 Forbidden" if url == FOLDER else None  # type: ignore[misc]
        done = ordack("table", "export", "line1", "--store", store, "--to", url,
                      environment={**ENVIRONMENT, **s3.environment, "COLUMNS": "400"})  # fmt: skip
        assert done.returncode == 1, done.stderr
        assert reason in done.stderr
        assert "Traceback" not in done.stderr
    s3.before = lambda *_: None
    assert bodies(store) == [b"%d" % number for number in range(5)]


# delta-rs does not let other threads of its process answer it.
UPKEEP = """
from deltalake import DeltaTable
from ordack.pipeline import prune
from ordack.pipeline.folders import Folders, in_turn
from ordack.pipeline.ingest import Job
from tests.pipeline.lake import load

folder, table = "s3a://plant/plant-*/segments", "s3a://plant/table"
for most in 4, 500:
    load(Job([folder], table, segments_max=most)).run(False)
print(DeltaTable(table).to_pyarrow_dataset().to_table(use_threads=False).num_rows)  # threads may abort the exit
for days, dry in (0, True), (1, False), (0, False):
    (pruned,) = prune.prune(Folders([folder]), [table], days, dry=dry)
    print(pruned.segments, pruned.too_new, pruned.newest, sep=",")
"""


@pytest.mark.slow
def test_more_segments_than_a_server_lists_at_once(s3: S3, tmp_path: Path) -> None:
    make_folder(tmp_path / "segments")
    upload(s3, tmp_path)
    s3.fill([f"segments/line1-{serial:010d}-{serial}-{serial}.parquet" for serial in range(1, 1101)], b"x")
    source = Folders([FOLDER])
    assert len(source.waiting(source.beginning(()))) == 1100
    s3.asked.clear()
    assert len(in_turn(source.waiting({}), 1100, 1 << 30)) == 1100
    assert len(s3.asked) < 20  # their sizes are in the listing


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ingest_and_prune_of_folders_in_buckets(s3: S3, tmp_path: Path) -> None:
    (tmp_path / "plant-1").mkdir()
    folder = make_folder(tmp_path / "plant-1" / "segments")
    for serial in range(1, 7):
        write(folder, serial, serial, serial)
    upload(s3, tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", UPKEEP], env={**ENVIRONMENT, **s3.environment, "PYTHONPATH": str(Path.cwd())},
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # rows in the table; then of the segments those that were deleted, that are too new and that are the newest
    assert done.stdout.split() == ["6", "5,0,1", "0,5,1", "5,0,1"]
    source = Folders(["s3a://plant/plant-1/segments"])
    source.look()
    assert [one.serial for one in source.listed({})] == [6]


def test_a_segment_that_goes_before_it_is_read_is_named(s3: S3, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "segments")
    write(folder, 1, 1, 3)
    write(folder, 2, 4, 6)
    upload(s3, tmp_path)
    paths = [str(one.segment.path) for one in Folders([FOLDER]).waiting({})]
    assert sum(map(len, rows_of(Decoding([]), paths))) == 6
    s3.client.delete_object(Bucket="plant", Key="segments/line1-0000000002-4-6.parquet")
    with pytest.raises(FolderError, match="segment 2 of the queue line1 is missing in s3a://plant/segments"):
        list(rows_of(Decoding([]), paths))


def test_bucket_path_without_segments_is_reported(s3: S3, tmp_path: Path) -> None:
    s3.put("notes/x.txt", b"x")
    for name, reason in (
        ("s3a://plant/none", "not there"),
        ("s3a://planet/none", "the bucket planet"),
        ("s3a://plant/notes", "is no folder of segments"),
        ("s3a://plant/none-*", "no folder of segments matches"),
    ):
        with pytest.raises(FolderError, match=reason):
            Folders([name])
        done = ordack(
            "table", "ingest", name, "--to", tmp_path / "table", environment={**ENVIRONMENT, **s3.environment}
        )
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr


def test_busy_bucket_server_raises_folder_busy(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "_ATTEMPTS", 1)
    monkeypatch.setenv("AWS_REGION", "eu-central-1")  # another one: connections of their own
    s3.before = lambda *_: "503 Slow Down"
    with pytest.raises(FolderBusy, match="try again later"):
        Folders([FOLDER])


@pytest.mark.slow
def test_bucket_path_unusable_for_table_is_reported(s3: S3, tmp_path: Path) -> None:
    """Upkeep of a table among segments would delete them."""
    folder = make_folder(tmp_path / "segments")
    write(folder, 1, 1, 3)
    upload(s3, tmp_path)
    s3.put("file", b"x")
    cases = (
        ("open", FOLDER, "holds files that no ingest has written"),
        ("open", "s3a://plant/file", "holds files that no ingest has written"),
        ("open", "s3a://planet/table", "the bucket planet"),
        ("read", "s3a://planet/table", "the bucket planet"),
        ("read", "s3a://plant/none", "there is no table of Delta Lake in s3a://plant/none"),
    )
    words = [word for what, name, _ in cases for word in (what, name)]
    done = subprocess.run(
        [sys.executable, "-c", OPEN, str(folder), *words], env={**ENVIRONMENT, **s3.environment},
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    for (_, _, reason), line in zip(cases, done.stdout.splitlines(), strict=True):
        assert line.startswith("IngestUnusable"), done.stderr
        assert reason in line
    assert not [name for name in s3.names() if "_delta_log" in name]


OPEN = """
import sys
from ordack.pipeline.ingest import Job
from ordack.pipeline.lake import IngestError
from ordack.pipeline.prune import serials
for what, name in zip(sys.argv[2::2], sys.argv[3::2]):
    try:
        job = Job([sys.argv[1]], name, "delta")
        job.open() if what == "open" else serials(job.table)
    except IngestError as error:
        print(type(error).__name__, error)
"""
