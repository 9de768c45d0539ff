"""`capture audit --follow`: whatever happens on the way, it says what `capture audit` says of all files."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import pickle
import random
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

import dpkt
import pyarrow as pa
from ordack.audit import follow, tasks
from ordack.audit.follow import Follower
from ordack.audit.result import AuditResult
from ordack.capture import columnar

from tests.support.capture_files import pcap, segment, syn
from tests.support.capture_generator import FORMS, capture_files
from tests.support.command import ordack
from tests.support.watched import until

if TYPE_CHECKING:
    pass

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 250
FIN = dpkt.tcp.TH_FIN | dpkt.tcp.TH_ACK


def several_files(seed: int, folder: Path) -> list[Path]:
    """More than three."""
    return next(
        sources
        for number in itertools.count(seed, 100)
        if len(sources := capture_files(number, folder / f"made-{number}", 8)) > 3
    )


def follow_all(follower: Follower) -> AuditResult | None:
    try:
        return [result for _, result in follower.reports(once=True)][-1]
    except tasks.CaptureUnusable:
        return None


def same(found: AuditResult | None, paths: list[Path]) -> None:
    """All that there is, except what has no frame: that is read when it has one."""
    try:
        wanted = tasks.run([path for path in paths if columnar.first_time(str(path)) != float("inf")])
    except tasks.CaptureUnusable:
        assert found is None
        return
    assert found is not None
    for field in dataclasses.fields(AuditResult):
        assert getattr(found, field.name) == getattr(wanted, field.name), field.name


@pytest.mark.parametrize(
    ("seed", "form"), [*((seed, "") for seed in range(6)), *((seed, form) for seed in range(3) for form in FORMS[1:])]
)
def test_follower_handles_unordered_growing_files_and_kills(
    tmp_path: Path, seed: int, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    print(f"seed {seed}")
    folder = tmp_path / "captures"
    folder.mkdir()
    sources = capture_files(seed + 1000, tmp_path / "made", 9, form=form)
    waiting = list(sources)
    if seed % 3:
        chance.shuffle(waiting)
    found = None
    killed = 0

    class Killed(BaseException):
        pass

    def dying(real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal killed
            if chance.random() < 0.2:
                killed += 1
                raise Killed
            return real(*arguments, **options)

        return call

    for name in ("replace", "unlink"):
        monkeypatch.setattr(Path, name, dying(getattr(Path, name)))
    monkeypatch.setattr(follow.os, "fsync", dying(os.fsync))
    pieces: dict[Path, int] = {}
    while waiting:
        for _ in range(chance.randrange(1, 4)):
            if waiting:
                path = waiting.pop(0)
                data = path.read_bytes()
                begin = pieces.get(path, 0)
                end = len(data)
                if not begin and chance.random() < 0.3:  # it will grow, after it was read
                    end = pieces[path] = chance.randrange(1, len(data))
                    waiting.insert(chance.randrange(len(waiting) + 1), path)
                with (folder / path.name).open("ab") as file:
                    file.write(data[begin:end])
        while True:
            try:
                follower = Follower(folder, tmp_path / "checkpoint", step_bytes=chance.choice([1, 20_000, 1 << 30]))
                found = follow_all(follower)
                break
            except Killed:
                continue
    print(f"killed {killed} times")
    same(found, sorted(folder.iterdir()))
    assert follow_all(Follower(folder, tmp_path / "checkpoint")) == found  # nothing new


def test_follower_allows_removed_or_renamed_files(tmp_path: Path) -> None:
    sources = several_files(2000, tmp_path)
    folder = tmp_path / "captures"
    folder.mkdir()
    wanted = tasks.run(sources)
    for number, path in enumerate(sources):
        (folder / path.name).write_bytes(path.read_bytes())
        found = follow_all(Follower(folder, tmp_path / "checkpoint"))
        if number % 2:
            (folder / path.name).unlink()
        else:
            (folder / path.name).rename(folder / f"old-{path.name}")
    assert found is not None
    assert found.summary == wanted.summary
    assert found.streams == wanted.streams
    assert found.violations == wanted.violations
    assert found.damages == wanted.damages == []
    assert len(found.paths) == len(sources)


@pytest.mark.parametrize("seed", range(4))
def test_unplaceable_late_capture_adds_no_false_violations(tmp_path: Path, seed: int) -> None:
    sources = several_files(3000 + seed, tmp_path)
    folder = tmp_path / "captures"
    folder.mkdir()
    late = sources[2]
    for path in sources:
        if path != late:
            (folder / path.name).write_bytes(path.read_bytes())
    assert follow_all(Follower(folder, tmp_path / "checkpoint", step_bytes=1)) is not None
    for path in folder.iterdir():
        path.unlink()
    for path in sorted((tmp_path / "checkpoint").glob("state-*"))[:-1]:
        path.unlink()
    (folder / late.name).write_bytes(late.read_bytes())
    found = follow_all(Follower(folder, tmp_path / "checkpoint"))
    assert found is not None
    assert [path for path, text in found.damages if "no more" in text] == [str(folder / late.name)]
    wanted = tasks.run(sources)
    assert {(one.kind, one.stream) for one in found.violations} <= {(one.kind, one.stream) for one in wanted.violations}


@pytest.mark.parametrize(("seed", "lost"), [(3022, 4), (3035, 1), (3035, 3), (3035, 6), (3042, 1)])
def test_deleted_capture_is_reported_without_false_violations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, lost: int
) -> None:
    folder = tmp_path / "captures"
    folder.mkdir()
    sources = capture_files(seed, tmp_path / "made", 8)
    for path in sources:
        (folder / path.name).write_bytes(path.read_bytes())
    follower = Follower(folder, tmp_path / "checkpoint", settled=0)
    present = follower.present()
    monkeypatch.setattr(follower, "present", lambda: present)
    (folder / sources[lost].name).unlink()
    found = follow_all(follower)
    assert found is not None
    assert found.damages[-1] == (str(folder / sources[lost].name), "was removed before it was read")
    wanted = tasks.run(sources)
    assert 0 < found.summary["packets"] < wanted.summary["packets"]
    assert {(one.kind, one.stream) for one in found.violations} <= {(one.kind, one.stream) for one in wanted.violations}


class _Touch:
    """A pickle that does something when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_state_that_would_run_code_is_refused(tmp_path: Path) -> None:
    folder, ran = tmp_path / "captures", tmp_path / "ran"
    folder.mkdir()
    for path in capture_files(3042, tmp_path / "made", 8):
        (folder / path.name).write_bytes(path.read_bytes())
    follower = Follower(folder, tmp_path / "checkpoint")
    assert follow_all(follower) is not None
    state = next((tmp_path / "checkpoint").glob("state-*"))
    with pa.CompressedInputStream(str(state), "lz4") as source:
        size = source.read(8)
        head = source.read(int.from_bytes(size))
    with pa.CompressedOutputStream(str(state), "lz4") as target:
        target.write(size + head)
        pickle.dump(_Touch(ran), target)
    with pytest.raises(follow.FollowError, match="is no part of a state; begin a new one"):
        follow_all(Follower(folder, tmp_path / "checkpoint"))
    assert not ran.exists()
    pickle.loads(pickle.dumps(_Touch(ran)))
    assert ran.exists()


def numbered_anew(value: Any) -> Any:
    """Without the connections' numbers."""
    if isinstance(value, list):
        return [numbered_anew(item) for item in value]
    if hasattr(value, "connection"):
        return {
            field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.name != "connection"
        }
    return value


@pytest.mark.parametrize("seed", range(5))
def test_follower_discards_ended_connection_and_keeps_verdicts(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "ENDED_S", 0.0)
    folder = tmp_path / "captures"
    folder.mkdir()
    sources = [path for path in several_files(seed, tmp_path) if columnar.first_time(str(path)) != float("inf")]
    for path in sources:
        (folder / path.name).write_bytes(path.read_bytes())
    found = follow_all(Follower(folder, tmp_path / "checkpoint", step_bytes=1))
    wanted = tasks.run([folder / path.name for path in sources])
    assert found is not None
    for field in dataclasses.fields(AuditResult):
        if field.name != "connections":
            assert numbered_anew(getattr(found, field.name)) == numbered_anew(getattr(wanted, field.name)), field.name


@pytest.mark.parametrize("ends", [True, False])
def test_follow_state_does_not_grow_with_closed_connections(tmp_path: Path, ends: bool) -> None:
    """A board wakes each half hour, for two weeks: it takes leave, or its battery is taken out."""
    folder = tmp_path / "captures"
    folder.mkdir()
    follower = Follower(folder, tmp_path / "checkpoint", step_bytes=1)
    for day in range(14):
        records = []
        for wake in range(48):
            port = 1024 + 48 * day + wake
            frames = [syn(99, port), segment(100, bytes(20), port=port)]
            frames += [segment(120, flags=FIN, port=port)] if ends else []
            seconds = 1_700_000_000 + 86400 * day + 1800 * wake
            records += [struct.pack("<IIII", seconds, 0, len(data), len(data)) + data for data in frames]
        (folder / f"{day:02}.pcap").write_bytes(pcap([]) + b"".join(records))
    result = [result for _, result in follower.reports(once=True)][-1]
    sizes = [path.stat().st_size for path in sorted((tmp_path / "checkpoint").glob("state-*"))]
    assert max(sizes) < 1.1 * min(sizes)
    assert result.summary["foreign_connections"] == 14 * 48


def test_follow_rebuilds_state_of_other_version_or_reports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "captures"
    folder.mkdir()
    sources = capture_files(2002, tmp_path / "made", 4)
    for path in sources:
        (folder / path.name).write_bytes(path.read_bytes())
    found = follow_all(Follower(folder, tmp_path / "checkpoint"))
    monkeypatch.setattr(follow, "_layout", lambda: "new")
    assert follow_all(Follower(folder, tmp_path / "checkpoint")) == found
    monkeypatch.setattr(follow, "_layout", lambda: "newer")
    (folder / sources[0].name).unlink()
    with pytest.raises(follow.FollowError, match="another version"):
        follow_all(Follower(folder, tmp_path / "checkpoint"))


def test_two_cannot_work_on_a_checkpoint(tmp_path: Path) -> None:
    follower = Follower(tmp_path, tmp_path / "checkpoint")
    with follower.lock():
        with pytest.raises(follow.FollowError, match="another process"):
            follower.lock()
    follower.lock().close()


def test_follow_reports_unusable_folder_or_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(follow.FollowError, match="there is no folder"):
        Follower(tmp_path / "no", tmp_path / "checkpoint")
    (tmp_path / "other").mkdir()
    Follower(tmp_path, tmp_path / "checkpoint")
    with pytest.raises(follow.FollowError, match="is the checkpoint for the folder"):
        Follower(tmp_path / "other", tmp_path / "checkpoint")
    with pytest.raises(tasks.CaptureUnusable, match="no capture with a frame"):
        list(Follower(tmp_path / "other", tmp_path / "empty").reports(once=True))


def test_files_count_when_they_have_not_changed_for_a_while(tmp_path: Path) -> None:
    sources = capture_files(2003, tmp_path / "made", 2)
    follower = Follower(tmp_path / "made", tmp_path / "checkpoint", settled=1000)
    assert follower.present() == []
    os.utime(sources[0], (time.time() - 2000,) * 2)
    assert [file.path for file in follower.present()] == [str(sources[0])]


# ---- the command --------------------------------------------------------------------------------


def test_the_command_once_and_for_ever(tmp_path: Path) -> None:
    folder, html = tmp_path / "captures", tmp_path / "audit.html"
    folder.mkdir()
    sources = capture_files(2005, tmp_path / "made", 4)
    wanted = tasks.run(sources).summary
    for path in sources[:2]:
        (folder / path.name).write_bytes(path.read_bytes())
    arguments = ["capture", "audit", "--follow", folder, "--checkpoint", tmp_path / "checkpoint", "--json"]
    done = ordack(*arguments, "--once")
    assert json.loads(done.stdout)["packets"] < wanted["packets"]
    for path in sources[2:]:
        (folder / path.name).write_bytes(path.read_bytes())
        os.utime(folder / path.name, (0, 0))
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'firmware'}{os.pathsep}{ROOT / 'host'}"}
    with subprocess.Popen(
        [sys.executable, "-m", "ordack", *map(str, arguments), "--html", str(html)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout
        told = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert told == {"step": told["step"], "files": len(sources), **wanted}
    assert (process.returncode, errors) == (
        int(any(wanted["violations"].values())),
        f"ordack: going on in {tmp_path / 'checkpoint'} behind step 1: 2 files read\n",
    )
    assert "<h1>Audit of" in html.read_text()
    once = ordack(*arguments, "--once")
    assert (json.loads(once.stdout), once.returncode) == (wanted, process.returncode)


@pytest.mark.parametrize("number", [None, 0, 3])
def test_a_stop_before_there_was_anything_to_judge_says_so(tmp_path: Path, number: int | None) -> None:
    """It ended with the status of `no violations`. Three frames open a connection."""
    folder, checkpoint = tmp_path / "captures", tmp_path / "checkpoint"
    folder.mkdir()
    if number is not None:
        frames = [syn(1), segment(2), segment(2)][:number] or [segment(2)[:30]]
        path = folder / "a.pcap"
        path.write_bytes(pcap(frames))
        os.utime(path, (0, 0))
    program = [sys.executable, "-m", "ordack", *f"capture audit --follow {folder} --checkpoint {checkpoint}".split()]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'firmware'}{os.pathsep}{ROOT / 'host'}"}
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True, env=environment) as process:
        until((checkpoint / ("lock" if number is None else f"state-{1:010}")).exists, "at work")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, "there was nothing to judge: no packet of the protocol in" in errors) == (2, True)


def test_a_folder_of_other_files_is_no_checkpoint(tmp_path: Path) -> None:
    folder, checkpoint = tmp_path / "captures", tmp_path / "checkpoint"
    for made in (folder, checkpoint):
        made.mkdir()
    (checkpoint / "thesis.txt").touch()
    done = ordack("capture", "audit", "--follow", folder, "--checkpoint", checkpoint, "--once")
    assert done.returncode == 2
    assert f"{checkpoint} holds other files, and is no checkpoint" in done.stderr
    assert [path.name for path in checkpoint.iterdir()] == ["thesis.txt"]
    with pytest.raises(follow.FollowError, match="is no folder, or is below a file"):
        Follower(folder, checkpoint / "thesis.txt")
    with pytest.raises(follow.FollowError, match="is the folder of the captures, where others write"):
        Follower(folder, checkpoint / ".." / folder.name)
    assert not [*folder.iterdir()]
    (checkpoint / follow.MARK).write_text("[]")
    with pytest.raises(follow.FollowError, match="does not say what the checkpoint"):
        Follower(folder, checkpoint)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--follow", "."], "--checkpoint"),
        (["--once", "x.pcap"], "--follow"),
        (["--follow", ".", "--checkpoint", "c", "--master", "local"], "excludes --master"),
        (["x.pcap", "--follow", ".", "--checkpoint", "c"], "either captures or --follow"),
        (["x.pcap", "--conf", "spark.x"], "--conf spark.x is not of the form KEY=VALUE"),
        (["x.pcap", "--conf", "spark.x=1", "--no-spark"], "--no-spark excludes"),
    ],
)
def test_wrong_usage_of_the_command(arguments: list[str], text: str) -> None:
    done = ordack("capture", "audit", *arguments)
    assert done.returncode == 2
    assert text in " ".join(done.stderr.replace("│", " ").split())
