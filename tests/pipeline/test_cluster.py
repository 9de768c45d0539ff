"""The audit on a real cluster: the same answer as in one process, and no executor is missed that is killed."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the pipeline is not installed")

from ordack.audit import tasks

from tests.pipeline.spark_cluster import Cluster, cluster, parent
from tests.support import capture_generator

PACKETS = 600_000
PARTS = 4
DEADLINE_S = 60.0

# Audits the capture twice, in one session; between the two it says so and waits for a line.
DRIVER = """
import pickle, sys
from ordack.audit import tasks
from ordack.pipeline.session import session

master, target, *paths = sys.argv[1:]
spark = session(master)
for name in ("calm", "killed"):
    result = tasks.run(paths, spark=spark, parts=PARTS)
    with open(f"{target}/{name}", "wb") as file:
        pickle.dump(result, file)
    print(name, flush=True)
    sys.stdin.readline()
spark.stop()
"""


def executor_at_work(made: Cluster, path: Path) -> int:
    """An executor of which a Python worker has the capture open: its task has begun."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        executors = made.executors()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                if str(path) not in (entry / "maps").read_text():
                    continue
                above = parent(int(entry.name))
                while above > 1 and above not in executors:
                    above = parent(above)
                if above in executors:
                    return above
    raise AssertionError("no task has begun")


@pytest.mark.timeout(240)
def test_a_cluster_gives_the_same_answer_even_if_an_executor_is_killed(tmp_path: Path) -> None:
    paths = [tmp_path / "fleet.pcap"]
    truth = capture_generator.write_fleet(paths, PACKETS, 1000, seed=7, each=3)
    local = tasks.run(paths)
    assert sum(local.summary["violations"].values()) >= len(truth.planted)
    with cluster(2) as made:
        command = [sys.executable, "-c", DRIVER.replace("PARTS", str(PARTS)), made.master, str(tmp_path)]
        environment = os.environ | {"SPARK_CONF_DIR": str(made.folder / "conf"), "SPARK_LOCAL_IP": "127.0.0.1"}
        with subprocess.Popen(
            [*command, *map(str, paths)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        ) as driver:
            assert driver.stdin is not None
            assert driver.stdout is not None
            guard = threading.Timer(2 * DEADLINE_S, driver.kill)
            guard.start()
            assert driver.stdout.readline() == "calm\n"
            before = made.executors()
            assert len(before) == 2
            driver.stdin.write("\n")
            driver.stdin.flush()
            victim = executor_at_work(made, paths[0])
            os.kill(victim, signal.SIGKILL)
            assert driver.stdout.readline() == "killed\n"
            after = made.executors()
            driver.communicate("\n")
            guard.cancel()
        assert driver.returncode == 0
        assert victim in before
        assert victim not in after
    for name in ("calm", "killed"):
        result = pickle.loads((tmp_path / name).read_bytes())
        assert result.summary == local.summary, name
        assert {(one.kind, one.stream, one.number) for one in result.violations} == {
            (one.kind, one.stream, one.number) for one in local.violations
        }
