"""The audit on a real cluster: the same answer as in one process, and no executor is missed that is killed."""

import json
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the pipeline is not installed")

from ordack.audit import tasks

from tests.conftest import SPARK
from tests.pipeline.spark_cluster import cluster
from tests.support import capture_generator

PACKETS = 100_000
PARTS = 4
DEADLINE_S = 540.0

# Audits the capture. In each stage a task kills its executor when it has something to hand on, and with it what that
# executor had kept; the file is there before, so that only one does.
DRIVER = """
import json, os, pickle, signal, sys
from ordack.audit import stages, tasks
from ordack.pipeline.session import session

master, settings, target, *paths = sys.argv[1:]
spark = session(master, settings=json.loads(settings))

def deadly(work, mark):
    def task(*arguments):
        for batch in work(*arguments):
            daemon = open(f"/proc/{os.getppid()}/stat").read()
            executor = int(daemon.rpartition(")")[2].split()[1])
            try:
                with open(mark, "x") as file:
                    file.write(str(executor))
            except FileExistsError:
                pass
            else:
                os.kill(executor, signal.SIGKILL)
            yield batch
    return task

for name in ("_route_task", "_replay_task"):
    setattr(stages, name, deadly(getattr(stages, name), f"{target}/{name}"))
result = tasks.run(paths, spark=spark, parts=PARTS)
with open(f"{target}/result", "wb") as file:
    pickle.dump(result, file)
print("done", flush=True)
sys.stdin.readline()
spark.stop()
"""


@pytest.mark.timeout(600)
def test_a_cluster_gives_the_same_answer_even_if_an_executor_is_killed_in_each_stage(tmp_path: Path) -> None:
    paths = [tmp_path / "fleet.pcap"]
    truth = capture_generator.write_fleet(paths, PACKETS, 1000, seed=7, each=3)
    local = tasks.run(paths)
    assert sum(local.summary["violations"].values()) >= len(truth.planted)
    with cluster() as made:
        command = [sys.executable, "-c", DRIVER.replace("PARTS", str(PARTS)), made.master]
        command += [json.dumps(SPARK | made.settings), str(tmp_path)]
        with subprocess.Popen(
            [*command, *map(str, paths)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
        ) as driver:
            guard = threading.Timer(DEADLINE_S, driver.kill)
            guard.start()
            assert driver.stdout is not None
            assert driver.stdout.readline() == "done\n"
            left = made.executors()
            driver.communicate("\n")
            guard.cancel()
        assert driver.returncode == 0
    killed = {int((tmp_path / name).read_text()) for name in ("_route_task", "_replay_task")}
    assert len(killed) == 2, "an executor for each stage"
    assert left
    assert killed.isdisjoint(left)
    result = pickle.loads((tmp_path / "result").read_bytes())
    assert result.summary == local.summary
    assert {(one.kind, one.stream, one.number) for one in result.violations} == {
        (one.kind, one.stream, one.number) for one in local.violations
    }
