"""The pipeline through a Spark Connect server: both data sources, the audit, and an ingest over kills.

The server is one out of the pyspark wheel, whose Python does not have this package. A process cannot have a session of
its own and one of a server, so programs of their own are the clients.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the pipeline is not installed")
pytest.importorskip("grpc", reason="Spark Connect needs grpcio: pip install 'ordack[spark]'")
pytest.importorskip("grpc_status", reason="Spark Connect needs grpcio-status: pip install 'ordack[spark]'")
pytest.importorskip("zstandard", reason="Spark Connect needs zstandard: pip install 'ordack[spark]'")

from deltalake import DeltaTable
from ordack.audit import tasks

from tests.conformance import ROOT
from tests.pipeline.spark_cluster import Server, connect_server
from tests.support import capture_generator
from tests.support.segment_files import make_folder, write

DEADLINE_S = 300

# Reads with both sources and audits, in one session; one line of JSON.
READS = """
import json, pickle, sys
from ordack.audit import tasks
from ordack.pipeline.session import session

url, segments, capture, target = sys.argv[1:]
spark = session(url)
frame = spark.read.format("ordack").option("schema", "t DOUBLE").load(segments)
rows = [list(row) for row in frame.where("lookup_id > 2").select("lookup_id", "t", "_malformed").collect()]
packets = spark.read.format("mqqb").load(capture).where("packet = 'UserMessage'").count()
with open(target, "wb") as file:
    pickle.dump(tasks.run([capture], spark=spark, parts=2).summary, file)
problems = []
for name in ("ordack", "mqqb"):
    try:
        spark.read.format(name).load(segments + "/nowhere").count()
    except Exception as error:
        problems.append(str(error))
print(json.dumps({"rows": rows, "packets": packets, "problems": problems}))
"""

# Several commands in one session; the last line has their exit statuses.
COMMANDS = """
import json, sys
from ordack import cli

statuses = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["ordack", *words]
    try:
        cli.main()
        statuses.append(0)
    except SystemExit as ended:
        statuses.append(ended.code or 0)
print(json.dumps(statuses))
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with connect_server() as made:
        yield made


def environment(**others: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": f"{ROOT}/host:{ROOT}/firmware", **others}


def client(folder: Path, *words: object, **others: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a folder."""
    return subprocess.run([*map(str, words)], cwd=folder, env=environment(**others), capture_output=True, text=True,
                          timeout=DEADLINE_S, check=False)  # fmt: skip


def rows(table: Path) -> list[int]:
    return sorted(DeltaTable(table).to_pyarrow_table()["lookup_id"].to_pylist())


@pytest.mark.timeout(600)
def test_a_server_reads_and_audits_with_what_it_was_given(server: Server, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "segments")
    write(folder, 1, 1, 3, body=b'{"t": 1.5}')
    write(folder, 2, 4, 4, body=b'{"t": "x"}')
    capture = tmp_path / "fleet.pcap"
    capture_generator.write_fleet([capture], 3000, 10, seed=7, each=1)
    done = client(tmp_path, sys.executable, "-c", READS, server.url, folder, capture, tmp_path / "summary")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["rows"] == [[3, 1.5, None], [4, None, 't: "x" is a string, the column is DOUBLE']]
    local = tasks.run([str(capture)]).summary
    assert found["packets"] == local["messages"] + local["resends"]
    assert pickle.loads((tmp_path / "summary").read_bytes()) == local
    assert "there is no folder" in found["problems"][0]
    assert "nowhere" in found["problems"][1]


@pytest.mark.timeout(600)
def test_an_ingest_puts_each_message_into_the_table_once_also_if_its_client_is_killed(
    server: Server, tmp_path: Path
) -> None:
    folder = make_folder(tmp_path / "segments")
    write(folder, 1, 1, 3, body=b'{"t": 1.5}')
    words = ["pipeline", "ingest", "segments", "--to", "table", "--schema", "t DOUBLE", "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "ordack", *words, "--continuous", "--interval", "0.1"],
        env=environment(SPARK_REMOTE=server.url),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    ) as killed:
        guard = threading.Timer(DEADLINE_S, killed.kill)
        guard.start()
        assert killed.stdout is not None
        first = json.loads(killed.stdout.readline())
        guard.cancel()
        os.kill(killed.pid, signal.SIGKILL)
    assert (first["batch"], first["rows"], first["malformed"]) == (0, 3, 0)
    write(folder, 2, 4, 5, body=b"{}")
    write(folder, 3, 6, 6)
    follow = ["audit", "--follow", ".", "--checkpoint", "audit", "--once"]
    commands = [words, [*words, "--checkpoint", "other"], follow]
    done = client(tmp_path, sys.executable, "-c", COMMANDS,
                  json.dumps([[*command, "--master", server.url] for command in commands]))  # fmt: skip
    *_, summary, statuses = map(json.loads, done.stdout.splitlines())
    assert (statuses, summary["rows"]) == ([0, 2, 2], 3), done.stderr
    assert rows(tmp_path / "table") == [1, 2, 3, 4, 5, 6]
    refused, not_there = done.stderr.splitlines()
    assert "keeps itself what is in it: leave --checkpoint out" in refused
    assert "the Python of the Spark Connect server does not have this package" in not_there
