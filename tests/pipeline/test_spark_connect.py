"""The pipeline through a Spark Connect server: both data sources, the audit, and an ingest over a kill.

The server is in the JVM of the other tests' session. A process cannot have a session of its own and one of a server, so
programs of their own are the clients.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the pipeline is not installed")
pytest.importorskip("grpc", reason="Spark Connect needs grpcio: pip install 'ordack[spark]'")
pytest.importorskip("grpc_status", reason="Spark Connect needs grpcio-status: pip install 'ordack[spark]'")
pytest.importorskip("zstandard", reason="Spark Connect needs zstandard: pip install 'ordack[spark]'")

from deltalake import DeltaTable
from ordack.audit import tasks
from pyspark.sql import SparkSession

from tests.conformance import ROOT
from tests.support import capture_generator
from tests.support.segment_files import make_folder, write

DEADLINE_S = 500

# Several commands, reading with both sources, and an audit, in one session; one line of JSON for all.
PROGRAM = """
import json, pickle, sys
from ordack import cli
from ordack.audit import tasks
from ordack.pipeline.spark import spark_session

url, commands, segments, capture, target = sys.argv[1:]
statuses = []
for words in json.loads(commands):
    sys.argv = ["ordack", *words, "--master", url]
    try:
        cli.main()
        statuses.append(0)
    except SystemExit as ended:
        statuses.append(ended.code or 0)
spark = spark_session(url)
frame = spark.read.format("ordack").option("schema", "t DOUBLE").load(segments)
rows = [list(row) for row in frame.where("lookup_id between 3 and 4").select("lookup_id", "t", "_malformed").collect()]
packets = spark.read.format("mqqb").load(capture).where("packet = 'UserMessage'").count()
with open(target, "wb") as file:
    pickle.dump(tasks.run([capture], spark=spark, parts=2).summary, file)
problems = []
for name in ("ordack", "mqqb"):
    try:
        spark.read.format(name).load(segments + "/nowhere").count()
    except Exception as error:
        problems.append(str(error))
print(json.dumps({"statuses": statuses, "rows": rows, "packets": packets, "problems": problems}))
"""


@pytest.fixture
def server(spark: SparkSession) -> str:
    """The URL of a server."""
    package = spark.sparkContext._jvm.org.apache.spark.sql.connect.service
    package.SparkConnectService.start(spark.sparkContext._jsc.sc())
    service = getattr(getattr(package, "SparkConnectService$"), "MODULE$")
    return f"sc://127.0.0.1:{service.bindingAddress().getPort()}"


@pytest.mark.timeout(600)
def test_an_ingest_whose_client_was_killed_is_gone_on_with_and_a_server_reads_and_audits_with_what_it_was_given(
    server: str, tmp_path: Path
) -> None:
    folder = make_folder(tmp_path / "segments")
    write(folder, 1, 1, 3, body=b'{"t": 1.5}')
    words = ["pipeline", "ingest", "segments", "--to", "table", "--schema", "t DOUBLE", "--json"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}/host:{ROOT}/firmware"}
    with subprocess.Popen(
        [sys.executable, "-m", "ordack", *words, "--continuous", "--interval", "0.1"],
        env=environment | {"SPARK_REMOTE": server},
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
    write(folder, 2, 4, 4, body=b'{"t": "x"}')
    write(folder, 3, 5, 6)
    capture = tmp_path / "fleet.pcap"
    capture_generator.write_fleet([capture], 3000, 10, seed=7, each=1)
    follow = ["audit", "--follow", ".", "--checkpoint", "audit", "--once"]
    commands = json.dumps([words, follow])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, server, commands, folder, capture, "summary"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *_, summary, found = map(json.loads, done.stdout.splitlines())
    assert (found["statuses"], summary["rows"]) == ([0, 2], 3), done.stderr
    assert sorted(DeltaTable(tmp_path / "table").to_pyarrow_table()["lookup_id"].to_pylist()) == [1, 2, 3, 4, 5, 6]
    assert "the Python of the Spark Connect server does not have this package" in done.stderr
    assert found["rows"] == [[3, 1.5, None], [4, None, 't: "x" is a string, the column is DOUBLE']]
    local = tasks.run([capture]).summary
    assert found["packets"] == local["messages"] + local["resends"]
    assert pickle.loads((tmp_path / "summary").read_bytes()) == local
    assert "there is no folder" in found["problems"][0]
    assert "nowhere" in found["problems"][1]
