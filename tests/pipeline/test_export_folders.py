"""`ordack table export` to folders that are full, gone, moved, damaged or of others."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from ordack.client import Client
from ordack.pipeline.export import Exporter, Folder
from ordack.pipeline.segments import MARKER, FolderError, file_name, hidden, segments
from ordack.store import Store

from tests.pipeline.exports import exported_ids, fill, make_store, queued_ids, run_export
from tests.support.command import DEADLINE_S, ENVIRONMENT, as_json, ordack


def test_a_recorded_segment_of_a_deleted_queue_becomes_visible(store: Path, to: Path) -> None:
    ids = fill(store, 2)
    _leave_pending(store, to)
    with Client(store) as client:
        client.delete_queue("line1")
    assert [(made.queue, made.recovered) for made in run_export(store, to, "plain")] == [("line1", True)]
    assert exported_ids(to) == ids


def test_exporters_that_make_the_folder_at_the_same_time_agree(store: Path, to: Path) -> None:
    fill(store, 3)
    fill(store, 3, 11, "plain")
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "ordack", "table", "export", queue, "--store", store, "--to", to],
            env=ENVIRONMENT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for queue in ("line1", "plain")
    ]
    for process in running:
        _, errors = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, errors) == (0, "")
    assert exported_ids(to) == [1, 2, 3, 11, 12, 13]
    assert not [path for path in to.iterdir() if path.name.startswith(".")]


def _refused(store: Path, to: Path, text: str, *options: str) -> None:
    """The export says this, and the messages stay."""
    with Store(store) as opened:
        before = opened.queues.named("line1").messages
    done = ordack("table", "export", "line1", "--store", store, "--to", to, *options)
    assert done.returncode == 1
    assert text in done.stderr, done.stderr
    with Store(store) as opened:
        assert opened.queues.named("line1").messages == before


def test_new_store_identity_needs_new_export_folder(store: Path, to: Path) -> None:
    fill(store, 2)
    _leave_pending(store, to)
    with Store(store) as opened:
        opened.renew_identity()
    fill(store, 1, 3)
    _refused(store, to, "was given a new identifier since: export to a new folder")
    assert exported_ids(to) == [1, 2]


@pytest.mark.parametrize(
    ("content", "text"),
    [(b"", "is damaged"), (b"[]", "is damaged"), (b'{"version": 2}', "version 2"), (b"\xff", "is damaged")],
)
def test_folder_with_unreadable_marker_is_refused(store: Path, to: Path, content: bytes, text: str) -> None:
    to.mkdir()
    (to / MARKER).write_bytes(content)
    fill(store, 1)
    _refused(store, to, text)


def test_export_to_a_non_folder_is_refused(store: Path, to: Path) -> None:
    to.write_text("a file")
    fill(store, 1)
    _refused(store, to, f"cannot open the folder {to}: Not a directory")
    _refused(store, Path("/proc/self"), "holds other files")


def test_a_folder_of_other_files_is_refused(store: Path, to: Path) -> None:
    to.mkdir()
    (to / "thesis.txt").touch()
    fill(store, 1)
    _refused(store, to, f"{to} holds other files, such as thesis.txt, and no {MARKER} of an export")
    assert [path.name for path in to.iterdir()] == ["thesis.txt"]
    (to / "thesis.txt").unlink()
    (to / "lost+found").mkdir()  # the root of a new file system
    run_export(store, to)
    (to / "notes.txt").touch()
    fill(store, 1, 2)
    run_export(store, to)
    assert exported_ids(to) == [1, 2], "what comes into a folder of ours does not matter"


def _leave_pending(store: Path, to: Path) -> Path:
    """A segment that is recorded and not visible; its hidden file."""
    real = os.replace

    def fail(old: Any, new: Any) -> None:
        if str(new).endswith(".parquet"):  # else it is the store's
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(old, new)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "replace", fail)
        with pytest.raises(FolderError, match="no longer in the queue"):
            run_export(store, to)
    (path,) = [path for path in to.iterdir() if path.name.endswith(".parquet.new")]
    return path


def test_a_recorded_segment_goes_with_its_folder(store: Path, to: Path, tmp_path: Path) -> None:
    ids = fill(store, 3)
    _leave_pending(store, to)
    to.rename(tmp_path / "moved")
    _refused(store, to, "was it moved?")
    _refused(
        store,
        tmp_path / "other",
        "3 messages of the queue line1, lookup ids 1 to 3: in the segment "
        f"line1-0000000001-1-3.parquet, which has not become visible: its folder was {to}, and this is another",
    )
    assert as_json("table", "export", "line1", "--store", store, "--to", tmp_path / "moved")[0]["recovered"] is True
    assert exported_ids(tmp_path / "moved") == ids


def test_export_reports_lost_segment_and_anew_discards_it(store: Path, to: Path, tmp_path: Path) -> None:
    fill(store, 3)
    _leave_pending(store, to).unlink()
    fill(store, 1, 4)
    _refused(
        store,
        to,
        "3 messages of the queue line1, lookup ids 1 to 3: in the segment "
        "line1-0000000001-1-3.parquet, which has not become visible: the file",
    )
    _refused(store, tmp_path / "other", "its folder was")
    done = ordack("table", "export", "line1", "--store", store, "--to", to, "--anew")
    assert done.returncode == 0
    assert "given up: 3 messages of the queue line1, lookup ids 1 to 3" in done.stderr
    assert [segment.serial for segment in segments(to)] == [1, 2], "readers that wait for the next one go on"
    assert exported_ids(to) == [4]


def test_export_anew_replaces_missing_folder(store: Path, to: Path, tmp_path: Path) -> None:
    fill(store, 3)
    _leave_pending(store, to)
    to.rename(tmp_path / "away")
    fill(store, 1, 4)
    _refused(store, to, "that folder is not there any more")
    assert not to.exists(), "where it is looked for, nothing is made"
    done = ordack("table", "export", "line1", "--store", store, "--to", to, "--anew")
    assert (done.returncode, "given up: 3 messages" in done.stderr) == (0, True)
    assert exported_ids(to) == [4]
    fill(store, 1, 5)
    assert [made.serial for made in run_export(store, to)] == [2]
    fill(store, 1, 6)
    run_export(store, tmp_path / "away")
    assert exported_ids(tmp_path / "away") == [1, 2, 3, 6], "it had not been lost"


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(bytes(path.stat().st_size)),
        lambda path: pq.write_table(pq.read_table(path, partitioning=None), path, compression="none"),
        lambda path: (path.unlink(), path.mkdir()),
    ],
    ids=["short", "zeros", "another", "folder"],
)
def test_export_reports_damaged_recorded_file(store: Path, to: Path, damage: Callable[[Path], Any]) -> None:
    fill(store, 3)
    path = _leave_pending(store, to)
    damage(path)
    _refused(store, to, f"the file {path.name} in {to} is damaged")
    assert path.exists()


def test_export_removes_own_unrecorded_file(store: Path, to: Path) -> None:
    fill(store, 1)
    run_export(store, to)
    garbage = to / hidden(file_name("line1", 2, 7, 9))
    foreign = to / hidden(file_name("plain", 1, 7, 9))
    for path in (garbage, foreign):
        path.write_bytes(b"garbage")
    run_export(store, to)
    assert (garbage.exists(), foreign.exists()) == (False, True), "another queue's may be in the making"
    garbage.mkdir()
    fill(store, 1, 2)
    _refused(store, to, f"cannot delete {garbage.name} in the folder")


def test_export_stops_when_folder_is_moved(store: Path, to: Path, tmp_path: Path) -> None:
    ids = fill(store, 4)
    with Client(store) as client, Exporter(client, ["line1"], to, rows=2) as exporter:
        running = exporter.run()
        next(running)
        to.rename(tmp_path / "moved")
        to.mkdir()
        with pytest.raises(FolderError, match="was moved, deleted or replaced"):
            next(running)
    assert list(to.iterdir()) == []
    assert queued_ids(store) == ids[2:]


def test_folder_moved_during_segment_write_keeps_messages_queued(
    store: Path, to: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = fill(store, 4)
    write = Folder.write

    def write_and_move(folder: Folder, name: str, content: bytes) -> None:
        write(folder, name, content)
        if "line1" in name:
            to.rename(tmp_path / "moved")

    monkeypatch.setattr(Folder, "write", write_and_move)
    with pytest.raises(FolderError, match="was moved, deleted or replaced"):
        run_export(store, to)
    assert queued_ids(store) == ids


def test_export_refuses_folder_of_other_or_unknown_manager(store: Path, to: Path, tmp_path: Path) -> None:
    make_store(tmp_path / "other")
    fill(tmp_path / "other", 1)
    run_export(tmp_path / "other", to)
    fill(store, 1)
    _refused(store, to, "holds segments of the queue manager ")
    (to / MARKER).unlink()
    _refused(store, to, "that says whose they are")
    assert len(segments(to)) == 1
