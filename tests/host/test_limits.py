"""More files, queues and segments than descriptors."""

from __future__ import annotations

import json
import resource
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ordack.audit import tasks
from ordack.client import Client
from ordack.pipeline.export import Exporter
from ordack.store import StoreBusy

from tests.support.capture_generator import capture_files
from tests.support.command import ordack

pytestmark = pytest.mark.slow

DESCRIPTORS = 128
FILES = 600
QUEUES = 150


def _ordack(*arguments: object) -> subprocess.CompletedProcess[str]:
    return ordack(*arguments, limits={resource.RLIMIT_NOFILE: DESCRIPTORS}, seconds=600)


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder with a capture in thousands of files, and what the audit says of it in one: packets begin in one file
    and end in another, and bytes that came too early wait over many."""
    made = tmp_path_factory.mktemp("limits")
    paths = capture_files(7, made / "captures", FILES, 1000)
    assert len(paths) == FILES
    whole = made / "whole.pcap"
    whole.write_bytes(paths[0].read_bytes()[:24] + b"".join(path.read_bytes()[24:] for path in paths))
    return made / "captures", tasks.run([whole]).summary


def test_an_audit_of_thousands_of_files(captured: tuple[Path, dict[str, Any]]) -> None:
    folder, expected = captured
    done = _ordack("capture", "audit", folder, "--json")
    assert done.returncode in (0, 1, 3), done.stderr
    assert json.loads(done.stdout) == json.loads(json.dumps(expected))


def test_an_export_of_many_queues(tmp_path: Path) -> None:
    names = [f"line{number}" for number in range(QUEUES)]
    with Client(tmp_path / "store", create=True) as client:
        for name in names:
            client.create_queue(name, transactional=False)
            client.send(name, name.encode())
    done = _ordack("table", "export", *names, "--store", tmp_path / "store", "--to", tmp_path / "segments", "--json")
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["queue"] for line in done.stdout.splitlines()] == names
    assert len(list((tmp_path / "segments").glob("*.parquet"))) == QUEUES


def test_only_one_exporter_may_export_a_queue(tmp_path: Path) -> None:
    with Client(tmp_path / "store", create=True) as client, Client(tmp_path / "store") as other:
        for name in ("a", "b", "c"):
            client.create_queue(name, transactional=False)
        with Exporter(client, ["a", "b"], tmp_path / "one"):
            with pytest.raises(StoreBusy, match="the queue b"), Exporter(other, ["c", "b"], tmp_path / "two"):
                pass
            with Exporter(other, ["c"], tmp_path / "two"):
                pass
        with Exporter(other, ["b"], tmp_path / "one"):
            pass
