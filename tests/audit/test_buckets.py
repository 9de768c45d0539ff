"""Captures in buckets of an S3 server: read once, listed as a whole, or told in one sentence why not."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the pipeline is not installed")

from ordack.audit import tasks
from ordack.capture import columnar
from ordack.config.paths import NotLocal, path_of
from ordack.pipeline.packets import find_files
from ordack.pipeline.segments import OptionError

from tests.support import capture_fleet, capture_generator, shares
from tests.support.command import ENVIRONMENT, ordack
from tests.support.s3 import S3

SEED = 10


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nothing is wrong in it."""
    folder = tmp_path_factory.mktemp("plain")
    return Path(capture_generator.generate(10, folder, violations=False, faults=[], length=1500).paths[0])


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """16 MB."""
    path = tmp_path_factory.mktemp("long") / "plant.pcap"
    capture_fleet.write_fleet([path], 75_000, 800, seed=SEED)
    return path


def said(s3: S3, *command: object, status: int) -> str:
    """What a command complains of, in one line."""
    done = ordack(*command, environment={**ENVIRONMENT, **s3.environment, "COLUMNS": "400"})
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    assert s3.environment["AWS_SECRET_ACCESS_KEY"] not in done.stdout + done.stderr
    return done.stderr


def test_audit_of_capture_in_bucket_equals_local_audit(s3: S3, plain: Path) -> None:
    url = s3.put("captures/plant.pcap", plain.read_bytes())
    here = tasks.run([plain]).summary
    assert find_files("s3a://plant/captures") == find_files("s3a://plant/cap*/*.pcap*") == [url]
    assert tasks.run([url]).summary == here
    assert shares.run([url], 3).summary == here


def test_commands_read_a_bucket(s3: S3, plain: Path) -> None:
    url = s3.put("captures/plant.pcap", plain.read_bytes())
    s3.put("captures/notes.txt", b"of the night shift")
    with_s3 = {**ENVIRONMENT, **s3.environment}
    done = ordack("capture", "audit", "--no-spark", "--json", "s3a://plant/captures/", environment=with_s3)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["packets"] == tasks.run([plain]).summary["packets"]
    assert "notes.txt" in done.stderr
    there, here = (ordack("capture", "decode", "--json", path, environment=with_s3) for path in (url, plain))
    assert (there.returncode, there.stdout) == (here.returncode, here.stdout)


def test_each_byte_is_fetched_once(s3: S3, long: Path) -> None:
    url = s3.put("plant.pcap", long.read_bytes())
    s3.asked.clear()
    assert shares.run([url], 4).summary == tasks.run([long]).summary
    assert s3.got("plant.pcap") <= long.stat().st_size + (1 << 17)  # the times of the beginning, for the order of files


def test_a_beginning_is_fetched_only(s3: S3, long: Path) -> None:
    url = s3.put("plant.pcap", long.read_bytes())
    s3.asked.clear()
    assert columnar.first_time(url) == columnar.first_time(str(long))
    assert s3.got("plant.pcap") <= 1 << 15


def test_more_objects_than_a_server_lists_at_once(s3: S3, plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "60")
    s3.fill([f"captures/{number:04}.pcap" for number in range(110)], plain.read_bytes()[:24])
    assert len(find_files("s3a://plant/captures")) == 110
    of_objects = Counter(method for method, path, _ in s3.asked if path.endswith(".pcap"))
    assert of_objects == {"HEAD": 110, "GET": 110}  # how many bytes it has, and the first of them
    assert len(s3.asked) < 220 + 6
    assert len(find_files("s3a://plant/captures/*7.pcap")) == 11


def test_audit_retries_busy_bucket_server(s3: S3, plain: Path) -> None:
    url = s3.put("plant.pcap", plain.read_bytes())
    refusals: list[str] = []

    def busy(method: str, path: str) -> str | None:
        if method == "GET" and len(refusals) < 2:
            refusals.append(path)
            return "503 Slow Down"
        return None

    s3.before = busy
    assert tasks.run([url]).summary == tasks.run([plain]).summary
    assert len(refusals) == 2


def test_a_slow_server_is_waited_for(s3: S3, plain: Path) -> None:
    url = s3.put("plant.pcap", plain.read_bytes())
    never = threading.Event()

    def late(method: str, _: str) -> None:
        if method == "GET":
            never.wait(4)

    s3.before = late
    assert columnar.first_time(url) == columnar.first_time(str(plain))
    assert len(s3.asked) < 8


def test_missing_bucket_or_capture_is_reported(s3: S3, plain: Path) -> None:
    s3.put("captures/plant.pcap", plain.read_bytes())
    for command in ("audit", "decode"):
        text = said(s3, "capture", command, "s3a://plant/captures/none.pcap", status=2)
        assert "s3a://plant/captures/none.pcap" in text
        assert "not there" in text
        text = said(s3, "capture", command, "s3a://planet/captures/plant.pcap", status=2)
        assert "the bucket planet" in text
    text = said(s3, "capture", "audit", "s3a://plant/captures/*.pcapng", status=2)
    assert "there are no pcap or pcapng files at s3a://plant/captures/*.pcapng" in text
    text = said(s3, "capture", "audit", "s3a://plant/other/", status=2)
    assert "s3a://plant/other" in text


def test_s3_key_without_access_is_reported(s3: S3, plain: Path) -> None:
    url = s3.put("plant.pcap", plain.read_bytes())
    with s3.keys_checked():
        for command in (
            ("capture", "audit", url),
            ("capture", "decode", url),
            ("capture", "audit", "s3a://plant/"),
            ("capture", "audit", "s3a://plant/*.pcap"),
        ):
            text = said(s3, *command, status=2)
            assert "refuses this key" in text
            assert "AWS_SECRET_ACCESS_KEY" in text
        with pytest.raises(OSError, match="refuses this key"):
            path_of("s3a://plant/other").write_bytes(b"x")
    text = said(s3, "capture", "audit", "s3a://key:secret@plant/plant.pcap", status=2)
    assert "has a key in it" in text
    assert "secret@" not in text


def test_bucket_in_another_region_is_reported(s3: S3, plain: Path) -> None:
    url = s3.put("plant.pcap", plain.read_bytes())
    s3.before = lambda *_: "301 Moved Permanently"
    with pytest.raises(OptionError, match="AWS_REGION"):
        find_files(url)


def test_audit_reports_full_temporary_folder(s3: S3, plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = s3.put("plant.pcap", plain.read_bytes())

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="more room in TMPDIR"):
        tasks.run([url])


@pytest.mark.slow
def test_audit_reports_unreachable_bucket_server(s3: S3, plain: Path) -> None:
    s3.put("plant.pcap", plain.read_bytes())
    nobody = {**ENVIRONMENT, **s3.environment, "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "COLUMNS": "400"}
    done = ordack("capture", "audit", "--no-spark", "s3a://plant/plant.pcap", environment=nobody)
    assert done.returncode == 2
    assert "no server answers at http://127.0.0.1:9" in done.stderr


def test_an_object_of_no_bytes_is_passed_over_or_told(s3: S3, plain: Path) -> None:
    s3.put("captures/plant.pcap", plain.read_bytes())
    url = s3.put("captures/empty.pcap", b"")
    assert "is neither a pcap nor a pcapng file" in said(s3, "capture", "audit", url, status=2)
    assert "empty.pcap" in said(s3, "capture", "audit", "--no-spark", "s3a://plant/captures", status=0)


@pytest.mark.parametrize("then", ["other", "gone", "shorter"])
def test_an_object_that_changes_while_it_is_read_gives_no_result(s3: S3, long: Path, then: str) -> None:
    """`other` has the same size and is put there in the same second: only its ETag tells."""
    data = long.read_bytes()
    url = s3.put("plant.pcap", data)
    count = [0]

    def change(method: str, path: str) -> None:
        if method == "GET" and path.endswith("plant.pcap"):
            count[0] += 1
            if count[0] == 6:
                s3.before = lambda *_: None
                if then == "gone":
                    s3.client.delete_object(Bucket="plant", Key="plant.pcap")
                else:
                    s3.put("plant.pcap", data[: len(data) // 2] + (data[len(data) // 2 :] if then == "other" else b""))
                    if then == "other":
                        s3.put("plant.pcap", data[:-1] + b"?")

    s3.before = change
    with pytest.raises(OSError, match="not any more" if then == "gone" else "was replaced while it was read"):
        tasks.run([url])
    assert count[0] == 6


@pytest.mark.parametrize("name", ["s3a:/plant/x", "s3a://", "s3a:///x", "s3a://pla nt/x", "s3://a/x"])
def test_invalid_bucket_name_is_refused(name: str) -> None:
    with pytest.raises(NotLocal, match="BUCKET"):
        path_of(name)
    with pytest.raises(OptionError):
        find_files(name)
