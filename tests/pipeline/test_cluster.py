"""The audit on a cluster: the same answer as in one process, even if an executor is killed."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the pipeline is not installed")

from ordack.audit import tasks

from tests.conftest import BARE, SPARK
from tests.run_all import JVM
from tests.support import capture_generator

PACKETS = 20_000
DEADLINE_S = 540.0
# Spark's master and worker are threads of the driver's JVM; executors are processes, whose Python has nothing of this
# checkout: they get the package from the driver.
MASTER = "local-cluster[1,1,512]"
SETTINGS = SPARK | {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": JVM,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}

# Audits the capture. A task of the last stage kills its executor when it has something to hand on, and with it what
# the stages before have kept there; the file is there before, so that only one does.
DRIVER = """
import json, os, pickle, signal, sys
from ordack.audit import stages, tasks
from ordack.pipeline.spark import spark_session

master, settings, target, path = sys.argv[1:]
spark = spark_session(master, settings=json.loads(settings))

def deadly(work, mark):
    def task(*arguments):
        for batch in work(*arguments):
            daemon = open(f"/proc/{os.getppid()}/stat").read()
            executor = int(daemon.rpartition(")")[2].split()[1])
            try:
                open(mark, "x").close()
            except FileExistsError:
                pass
            else:
                os.kill(executor, signal.SIGKILL)
            yield batch
    return task

stages._replay_task = deadly(stages._replay_task, f"{target}/killed")
result = tasks.run([path], spark=spark, parts=4)
with open(f"{target}/result", "wb") as file:
    pickle.dump(result, file)
spark.stop()
"""


@pytest.mark.timeout(600)
def test_a_cluster_gives_the_same_answer_even_if_an_executor_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "fleet.pcap"
    truth = capture_generator.write_fleet([path], PACKETS, 200, seed=7, each=3)
    local = tasks.run([path])
    assert sum(local.summary["violations"].values()) >= len(truth.planted)
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, MASTER, json.dumps(SETTINGS), tmp_path, path],
        # SPARK_TESTING: what executors leave is in a folder that their cluster deletes, not among Spark's own files.
        env=os.environ | BARE | {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_TESTING": ""},
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "killed").exists()
    result = pickle.loads((tmp_path / "result").read_bytes())
    assert result.summary == local.summary
    assert {(one.kind, one.stream, one.number) for one in result.violations} == {
        (one.kind, one.stream, one.number) for one in local.violations
    }
