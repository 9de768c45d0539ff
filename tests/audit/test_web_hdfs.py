"""Captures and segments on HDFS, by its WebHDFS: read, listed and written as those of a disk, or told why not."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the pipeline is not installed")

import pyarrow.parquet as pq
from ordack.audit import tasks
from ordack.capture import columnar
from ordack.client import Client
from ordack.paths import NotLocal, RemoteError, RemotePath, path_of
from ordack.pipeline import folders, segments
from ordack.pipeline.export import Exporter
from ordack.pipeline.packets import find_files
from ordack.pipeline.segment_source import Rows, Settings
from pyspark.sql.pandas.types import from_arrow_schema

from tests.support import web_hdfs
from tests.support.command import ENVIRONMENT, ordack
from tests.support.web_hdfs import WebHdfs


@pytest.fixture
def hdfs(tmp_path: Path) -> Iterator[WebHdfs]:
    (tmp_path / "hdfs").mkdir()
    with web_hdfs.server(tmp_path / "hdfs") as made:
        yield made


def said(*command: object, status: int) -> str:
    """What a command complains of, in one line."""
    done = ordack(*command, environment={**ENVIRONMENT, "COLUMNS": "400"})
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_capture_says_on_hdfs_what_it_says_here(hdfs: WebHdfs, plain: Path, ending: str) -> None:
    url = hdfs.put(f"captures/plant.pcap{ending}", (gzip.compress if ending else bytes)(plain.read_bytes()))
    here = tasks.run([plain]).summary
    assert find_files(f"{hdfs.url}/captures") == find_files(f"{hdfs.url}/cap*/*.pcap*") == [url]
    assert tasks.run([url]).summary == here
    assert tasks.run([url], parts=3, range_bytes=20_000).summary == here


def test_commands_read_hdfs(hdfs: WebHdfs, plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENVIRONMENT, "HADOOP_USER_NAME", "plant")
    url = hdfs.put("captures/plant.pcap", plain.read_bytes())
    done = ordack("audit", "--no-spark", "--json", f"{hdfs.url}/captures/", environment=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["packets"] == tasks.run([plain]).summary["packets"]
    assert hdfs.user == "plant"
    there, here = (ordack("decode", "--json", path, environment=ENVIRONMENT) for path in (url, plain))
    assert (there.returncode, there.stdout) == (here.returncode, here.stdout)


def test_a_beginning_is_fetched_only(hdfs: WebHdfs, plain: Path) -> None:
    url = hdfs.put("plant.pcap", plain.read_bytes() + bytes(1 << 20))
    assert columnar.first_time(url) == columnar.first_time(str(plain))
    assert hdfs.got("plant.pcap") <= 1 << 15


def test_an_export_to_hdfs_and_segments_from_there(hdfs: WebHdfs, tmp_path: Path) -> None:
    url = f"{hdfs.url}/plant/segments"
    with Client(tmp_path / "store", create=True) as client:
        client.create_queue("line1", transactional=True)
        for number in range(5):
            client.send("line1", b"%d" % number)
        for _ in range(2):  # another export goes on
            with Exporter(client, ["line1"], url, rows=2, tell=lambda _: None) as exporter:
                next(exporter.run())
    found = segments.segments(url)
    assert [(one.first_lookup_id, one.last_lookup_id) for one in found] == [(1, 2), (3, 4)]
    assert not [file.name for file in (tmp_path / "hdfs/plant/segments").iterdir() if file.name.endswith(".new")]
    rows = Rows(Settings.of({"path": f"{hdfs.url}/*/segments", "since": "2020-01-01"}),
                from_arrow_schema(segments.SCHEMA))  # fmt: skip
    parts = folders.parts(rows.settings.folders.waiting({}))
    read = [body for part in parts for batch in rows.read(part) for body in batch.column("body").to_pylist()]
    assert read == [b"0", b"1", b"2", b"3"]
    with path_of(str(found[0].path)).open() as file:
        assert pq.read_table(file).num_rows == 2


def test_a_file_is_put_in_the_place_of_another(hdfs: WebHdfs) -> None:
    """HDFS renames nothing over what is there, and says so with a status of 200."""
    old, new = (path_of(hdfs.put(name, name.encode())) for name in ("old", "new"))
    assert isinstance(old, RemotePath)
    assert isinstance(new, RemotePath)
    new.replace(old)
    assert (old.read_text(), new.exists()) == ("new", False)
    old.write_bytes(b"x")
    with pytest.raises(RemoteError, match="is not renamed"):
        old.replace(path_of(f"{hdfs.url}/none/old"))  # type: ignore[arg-type]
    assert old.read_text() == "x"


def test_a_file_that_changes_while_it_is_read_gives_no_result(hdfs: WebHdfs, plain: Path) -> None:
    url = hdfs.put("plant.pcap", plain.read_bytes())

    def change(operation: str, _: str) -> None:
        if operation == "OPEN" and len(hdfs.asked) > 6:
            hdfs.before = lambda *_: None
            hdfs.put("plant.pcap", plain.read_bytes()[:-1])

    hdfs.before = change
    with pytest.raises(RemoteError, match="was replaced while it was read"):
        tasks.run([url])


def test_what_does_not_go_is_told(hdfs: WebHdfs, plain: Path) -> None:
    url = hdfs.put("plant.pcap", plain.read_bytes())
    for command in ("audit", "decode"):
        assert "not there" in said(command, f"{hdfs.url}/none.pcap", status=2)
    hdfs.before = lambda *_: (403, "AccessControlException")
    assert "AccessControlException" in said("audit", url, status=2)
    assert "does not answer" in said("audit", "webhdfs://127.0.0.1:9/plant.pcap", status=2)
    for name in ("webhdfs://namenode/x", "webhdfs:///x", "webhdfs://user@namenode:9870/x", "abfss://plant/x"):
        with pytest.raises(NotLocal, match=r"HOST:PORT|CONTAINER@ACCOUNT|has a key in it"):
            path_of(name)
    assert "webhdfs://HOST:9870/" in said("audit", "hdfs://namenode:8020/plant.pcap", status=2)


@pytest.mark.parametrize(("url", "extra"), [("gs://plant/x.pcap", "gs"), ("abfss://plant@site/x.pcap", "azure")])
def test_a_package_that_is_missing_is_named(url: str, extra: str) -> None:
    assert f"pip install 'ordack[{extra}]'" in said("audit", url, status=2)


def test_names_with_all_kinds_of_letters(hdfs: WebHdfs, plain: Path) -> None:
    url = hdfs.put("späte Schicht/#1 100% [a] +b=c&d.pcap", plain.read_bytes())
    assert find_files(url) == find_files(f"{hdfs.url}/späte Schicht") == find_files(f"{hdfs.url}/*/#1*") == [url]
    assert columnar.first_time(url) == columnar.first_time(str(plain))
