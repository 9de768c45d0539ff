"""The audit on a cluster of what a tap has written: the same answer as in one process, even if an executor is killed.

`python -m tests.pipeline.test_cluster [SEED]` has two workers, a larger capture, and kills an executor in each stage.
"""

import json
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the pipeline is not installed")

from ordack.audit import tasks

from hil.dice import new_seed
from tests.conftest import BARE, SPARK
from tests.run_all import JVM
from tests.support import capture_fleet

DEADLINE_S = 540.0
# Spark's master and worker are threads of the driver's JVM; executors are processes, whose Python has nothing of this
# checkout: they get the package from the driver.
MASTER = "local-cluster[{},1,512]"  # workers
STAGES = "_route_task", "_divide_task", "_replay_task"
SETTINGS = SPARK | {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": JVM,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}

# Audits the capture. A task of each of these stages kills its executor when it has something to hand on, and with it
# what the stages before have kept there; the file is there before, so that only one does.
DRIVER = """
import json, os, pickle, signal, sys
from ordack.audit import stages, tasks
from ordack.pipeline.spark import spark_session

master, settings, target, paths, *names = sys.argv[1:]
paths = json.loads(paths)
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

for name in names:
    setattr(stages, name, deadly(getattr(stages, name), f"{target}/{name}"))
tasks.SHARE_BYTES = sum(map(os.path.getsize, paths)) // tasks.FEW_SHARES  # a capture that is large enough
result = tasks.run(paths, spark=spark)
with open(f"{target}/result", "wb") as file:
    pickle.dump(result, file)
spark.stop()
"""


def compare(folder: Path, workers: int, packets: int, seed: int, *names: str) -> int:
    """How many violations a cluster of so many workers has found, as has this process, while the stages of these names
    each lost an executor. folder: empty."""
    whole, *paths = (folder / name for name in ("fleet.pcap", "to.pcap", "from.pcap"))
    truth = capture_fleet.write_fleet([whole], packets, packets // 100, seed=seed, each=3)
    capture_fleet.split_by_direction(whole, paths)
    local = tasks.run(paths)
    assert local.summary == tasks.run([whole]).summary
    assert sum(local.summary["violations"].values()) >= len(truth.planted)
    said = json.dumps([*map(str, paths)])
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, MASTER.format(workers), json.dumps(SETTINGS), folder, said, *names],
        # SPARK_TESTING: what executors leave is in a folder that their cluster deletes, not among Spark's own files.
        env=os.environ | BARE | {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_TESTING": ""},
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert all((folder / name).exists() for name in names)
    result = pickle.loads((folder / "result").read_bytes())
    assert result.summary == local.summary
    assert {(one.kind, one.stream, one.number) for one in result.violations} == {
        (one.kind, one.stream, one.number) for one in local.violations
    }
    return len(result.violations)


@pytest.mark.timeout(600)
def test_cluster_result_is_the_same_after_executor_is_killed(tmp_path: Path) -> None:
    assert compare(tmp_path, 1, 20_000, 7, STAGES[-1])


def main(seed: int) -> None:
    """Print what came of it."""
    with tempfile.TemporaryDirectory(prefix="ordack-cluster-") as folder:
        found = compare(Path(folder), 2, 100_000, seed, *STAGES)
    print(json.dumps({"workers": 2, "killed in": STAGES, "seed": seed, "the same violations": found}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else new_seed())
