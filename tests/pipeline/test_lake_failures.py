"""Tables of Delta Lake and Iceberg when something fails: commits, disks, mounts, power."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from ordack.pipeline.delta import Delta
from ordack.pipeline.iceberg import Iceberg
from ordack.pipeline.ingest import Progress
from ordack.pipeline.lake import IngestError, IngestUnusable
from ordack.pipeline.prune import serials
from ordack.pipeline.segments import FolderMissing

from tests.conformance import ROOT
from tests.pipeline.lake import both, job, load, numbers
from tests.support.segment_files import row, write, write_rows


@both
def test_commit_is_retried_after_concurrent_table_change(folder: Path, table: Path, table_format: str) -> None:
    """Somebody else changes the table between a look and a commit."""
    write(folder, 1, 1, 1)
    going = load(job(folder, table, table_format))
    read_first = going.read

    def disturbed(*given: Any) -> pa.Table:
        lake: Any = load(job(folder, table)).table
        if isinstance(lake, Delta):
            lake._table.alter.set_table_properties({"delta.appendOnly": "true"})
        else:
            assert isinstance(lake, Iceberg)
            with lake._table.transaction() as transaction:
                transaction.set_properties({"owner": "somebody"})
        return read_first(*given)

    going.read = disturbed
    assert going.run(False).rows == 1
    assert numbers(table, table_format) == [1]


@pytest.fixture
def disk() -> Iterator[Path]:
    """A file system of 4 MiB."""
    folder = Path(tempfile.mkdtemp(prefix="ordack-disk-"))
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this process cannot mount a file system: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
    folder.rmdir()


def test_a_commit_that_fails_says_why(folder: Path, disk: Path) -> None:
    """delta-rs has the reason in a line of its own. There is room for the rows' file, and for no other."""
    write(folder, 1, 1, 1)
    load(job(folder, disk / "table")).run(False)
    write(folder, 2, 2, 2)
    going = load(job(folder, disk / "table"))
    status = os.statvfs(disk)
    for files in (status.f_files - status.f_ffree + 1, status.f_files):
        subprocess.run(["mount", "-o", f"remount,nr_inodes={files}", str(disk)], check=True)
        if files != status.f_files:
            with pytest.raises(IngestError, match=r"cannot commit to the table .*: No space left on device"):
                going.run(False)
    assert going.run(False).rows == 1
    assert numbers(disk / "table") == [1, 2]


def test_serials_are_read_from_read_only_table(folder: Path, disk: Path) -> None:
    """reconcile and `prune --dry-run` need to write to no table. Some serials are in a checkpoint, some behind it."""
    write(folder, 1, 1, 1)
    write(folder, 1, 7, 7, "line2")
    load(job(folder, disk / "table")).run(False)
    for serial in (2, 3):
        write(folder, serial, serial, serial)
    assert load(job(folder, disk / "table", segments_max=1)).run(False).batches == 2
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    told = {place.queue: serial for place, serial in serials(str(disk / "table")).items()}
    assert told == {"line1": 3, "line2": 1}


@both
def test_ingest_stops_on_full_disk_and_resumes_with_room(folder: Path, disk: Path, table_format: str) -> None:
    table = disk / "table"
    write(folder, 1, 1, 1)
    load(job(folder, table, table_format)).run(False)
    write_rows(folder, 2, [row(number, body=os.urandom(50_000)) for number in range(2, 32)])
    going = load(job(folder, table))
    filler = disk / "filler"
    filler.write_bytes(bytes(3_000_000))
    with pytest.raises(IngestError, match=r"cannot commit to the table .*No space left on device"):
        going.run(False)
    filler.unlink()
    assert numbers(table, table_format) == [1]
    read_first = going.read

    def filled(*given: Any) -> pa.Table:
        done = read_first(*given)
        with contextlib.suppress(OSError), filler.open("wb", 0) as file:
            while True:
                file.write(bytes(512))
        return done

    going.read = filled
    with pytest.raises(IngestError, match="cannot commit to the table"):
        going.run(False)
    filler.unlink()
    assert load(job(folder, table)).run(False).rows == 30
    assert numbers(table, table_format) == [*range(1, 32)]


def test_ingest_killed_at_any_step_writes_each_row_once() -> None:
    """`make pipeline` has the long form. In a process that has not used delta-rs: that does not survive a fork."""
    command = [sys.executable, "-m", "tests.pipeline.lake_kills", "--kills=5", "--format=delta", "--format=iceberg"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False,
                          env=os.environ | {"PYTHONPATH": f"{ROOT}/host:{ROOT}/firmware"})  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("left", ["nothing", "an empty file"])
def test_lost_delta_commit_loses_rows_and_serials_together(folder: Path, table: Path, left: str) -> None:
    write(folder, 1, 1, 1)
    load(job(folder, table)).run(False)
    write(folder, 2, 2, 2)
    load(job(folder, table)).run(False)
    newest = max((table / "_delta_log").glob("*.json"))
    newest.unlink()
    if left != "nothing":
        newest.touch()
    assert numbers(table) == [1]
    write(folder, 3, 3, 3)
    assert load(job(folder, table)).run(False).rows == 2
    assert numbers(table) == [1, 2, 3]


def _away(path: Path) -> None:
    path.rename(path.with_name("away"))


def _unmounted(path: Path) -> None:
    _away(path)
    path.mkdir()


def _back(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)
    path.with_name("away").rename(path)


@both
@pytest.mark.parametrize("leave", [_away, _unmounted])
@pytest.mark.parametrize("what", ["segments", "segments while they are read", "table", "table before a commit"])
def test_continuous_ingest_waits_for_unmounted_file_system(
    folder: Path, table: Path, table_format: str, what: str, leave: Callable[[Path], None]
) -> None:
    place = folder if what.startswith("segments") else table
    write(folder, 1, 1, 1)
    going = load(job(folder, table, table_format))
    told: list[str] = []
    done: list[int] = []
    read_rows = going.read

    def written(*given: Any) -> pa.Table:
        going_on = done and not told
        if going_on and "while" in what:
            leave(place)
        rows = read_rows(*given)
        if going_on and "before" in what:
            leave(place)
        return rows

    def tell(batch: Progress) -> None:
        done.append(batch.rows)
        if len(done) == 1:
            write(folder, 2, 2, 3)
            if "while" not in what and "before" not in what:
                leave(place)

    def warn(text: str) -> None:
        told.append(text)
        if len(told) == 1:
            _back(place)

    going.read, going.tell, going.warn = written, tell, warn
    going.run(True, 0.001, lambda: len(done) == 2 and len(told) == 2)
    assert done == [1, 2]
    assert numbers(table, table_format) == [1, 2, 3]
    assert "Until it is there again, nothing is loaded" in told[0]
    assert told[1:] == ["it is there again: the ingest goes on"]


def test_one_shot_ingest_fails_if_folder_is_missing(folder: Path, table: Path) -> None:
    write(folder, 1, 1, 1)
    going = load(job(folder, table))
    _unmounted(folder)
    with pytest.raises(FolderMissing, match="is no folder of segments"):
        going.run(False)
    with pytest.raises(FolderMissing, match="is no folder of segments"):
        job(folder, table)


def _empty(log: Path) -> None:
    _newest(log).write_bytes(b"")


def _torn(log: Path) -> None:
    _newest(log).write_bytes(_newest(log).read_bytes()[:100])


def _gone(log: Path) -> None:
    _newest(log).unlink()


def _all_empty(log: Path) -> None:
    for path in (*log.glob("*.checkpoint.parquet"), log / "_last_checkpoint"):
        path.write_bytes(b"")


def _newest(log: Path) -> Path:
    return max(log.glob("*.checkpoint.parquet"))


@pytest.mark.parametrize("damage", [_empty, _torn, _gone, _all_empty])
def test_ingest_ignores_delta_checkpoint_damaged_by_power_cut(
    folder: Path, table: Path, damage: Callable[[Path], None]
) -> None:
    """Every commit is whole."""
    for serial in (1, 2, 3):
        write(folder, serial, serial, serial)
    load(job(folder, table, segments_max=1)).run(False)
    DeltaTable(table).create_checkpoint()
    damage(table / "_delta_log")
    write(folder, 4, 4, 4)
    assert load(job(folder, table)).run(False).rows == 1
    assert numbers(table) == [1, 2, 3, 4], "others read it again, too"


def test_damaged_delta_checkpoint_without_commits_is_reported(folder: Path, table: Path) -> None:
    for serial in (1, 2, 3):
        write(folder, serial, serial, serial)
    load(job(folder, table, segments_max=1)).run(False)
    DeltaTable(table).create_checkpoint()
    log = table / "_delta_log"
    newest = _newest(log)
    kept = newest.read_bytes()
    for path in (*log.glob("*0[012].json"), *(set(log.glob("*.checkpoint.parquet")) - {newest})):
        path.unlink()
    newest.write_bytes(kept[:100])
    with pytest.raises(IngestUnusable, match=f"{newest.name} is damaged"):
        load(job(folder, table))
    assert newest.read_bytes() == kept[:100], "as it was"
