"""`ordack table prune`: which segments go, and which stay."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from ordack import cli
from ordack.pipeline.segments import FolderError

from tests.pipeline.lake import job, load, numbers
from tests.support.segment_files import make_folder, write


def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: object) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["ordack", "table", *map(str, words)])
    try:
        cli.main()
        status = 0
    except SystemExit as ended:
        status = int(ended.code or 0)
    return (status, *capfd.readouterr())


def test_prune_deletes_oldest_segments_present_in_every_table(
    folder: Path, table: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = table.with_name("other")
    for serial in range(1, 5):
        write(folder, serial, serial, serial)
    load(job(folder, other, "iceberg")).run(False)
    for serial in (1, 2):
        write(folder, serial, serial, serial, "late")
    write(folder, 5, 5, 5)
    load(job(folder, table)).run(False)
    write(folder, 6, 6, 6)
    before = sorted(folder.iterdir())
    words = ["prune", folder, "--in", table, "--in", other]
    status, output, _ = run(capfd, monkeypatch, *words)
    assert (status, sorted(folder.iterdir())) == (0, before), "all of them are new"
    assert output.endswith("0 segments deleted, 0 bytes; what stays: 4 not in every table, 4 too new\n")
    words += ["--days", "0"]
    assert "4 segments would be deleted" in run(capfd, monkeypatch, *words, "--dry-run")[1]
    assert sorted(folder.iterdir()) == before
    done = json.loads(run(capfd, monkeypatch, *words, "--json")[1])
    assert (done["segments"], done["missing_in_table"], done["too_new"], done["newest"]) == (4, 4, 0, 0)
    assert [path.name[:16] for path in sorted(folder.glob("*.parquet"))] == [
        "late-0000000001-", "late-0000000002-", "line1-0000000005", "line1-0000000006"]  # fmt: skip
    load(job(folder, table)).run(False)
    done = json.loads(run(capfd, monkeypatch, "prune", folder, "--in", table, "--days", "0", "--json")[1])
    assert (done["segments"], done["newest"]) == (2, 2), "the newest of each queue stays"
    with pytest.raises(FolderError, match="segment 1 of the queue late is missing"):
        load(job(folder, other)).run(False)  # this table was not named, and says what it has missed
    assert numbers(table) == [1, 1, 2, 2, 3, 4, 5, 6]


def test_optimize_merges_files_and_keeps_every_message(
    folder: Path, table: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(capfd, monkeypatch, "optimize", table)[0] == 2
    for serial in (1, 2, 3):
        write(folder, serial, serial, serial)
    what = job(folder, table, segments_max=1)
    going = load(what)
    going.run(False)
    for path in table.glob("*.parquet"):
        os.utime(path, (0, 0))
    (table / "orphan.parquet").write_bytes(b"of an ingest that was killed")
    os.utime(table / "orphan.parquet", (0, 0))
    done = json.loads(run(capfd, monkeypatch, "optimize", table, "--json")[1])
    assert (done["merged"], done["new"], done["deleted"]) == (3, 1, 1), "the table's old versions need the merged files"
    assert run(capfd, monkeypatch, "optimize", table)[1].endswith("0 files merged into 0, 0 unused files deleted\n")
    write(folder, 4, 4, 4)
    assert (going.run(False).rows, load(what).run(False).rows) == (1, 0)
    assert numbers(table) == [1, 2, 3, 4]


def test_prune_keeps_segment_behind_too_new_segment(
    folder: Path, table: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file may have been copied later than the next one's: without the older, readers would miss it."""
    paths = [write(folder, serial, serial, serial) for serial in (1, 2, 3)]
    load(job(folder, table)).run(False)
    day = paths[1].stat().st_ctime - 1e-3
    monkeypatch.setattr("ordack.pipeline.prune.time.time", lambda: day + 7 * 86_400)
    paths[0].chmod(0o600)  # it has changed last
    done = json.loads(run(capfd, monkeypatch, "prune", folder, "--in", table, "--json")[1])
    assert (done["segments"], done["too_new"], done["newest"]) == (0, 2, 1)


def test_prune_reports_unusable_arguments(
    folder: Path, table: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, 1, 1, 1)
    write(folder, 2, 2, 2)
    for words, text in (
        (["prune", folder, "--in", table], f"there is no table in {table}"),
        (["prune", table, "--in", table], "there is no folder"),
        (["prune", folder], "Missing option '--in'"),
        (["prune", folder, "--in", "C:\\table"], "is a path of Windows"),
    ):
        status, output, errors = run(capfd, monkeypatch, *words)
        assert (status, output) == (2, "")
        assert text in errors
    strange = make_folder(table.with_name("strange"), "folder-2")
    load(job(strange, table)).run(False)
    done = json.loads(run(capfd, monkeypatch, "prune", folder, "--in", table, "--days", "0", "--json")[1])
    assert (done["segments"], done["missing_in_table"]) == (0, 2), "a table that does not know the folder"
