"""A standalone Spark cluster on this machine, out of the pyspark wheel: a master, and a worker for two executors of one
core each; and a Spark Connect server.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from hil.quick_spark import INTERPRETED
from tests.run_all import JVM

HOME = Path(pyspark.__file__).parent
DEADLINE_S = 60.0
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
WORKER_MEMORY = "1g"
EXECUTOR_MEMORY = "512m"


class ClusterError(Exception):
    """The cluster did not come up; the text has the log."""


@dataclass
class _Daemon:
    """A master or worker: its process, and what it logs."""

    process: subprocess.Popen[str]
    log: list[str] = field(default_factory=list)
    found: str = ""
    ready: threading.Event = field(default_factory=threading.Event)

    def follow(self, pattern: str) -> None:
        """Reads the log to its end; ready is set when a line has the pattern, or there are no more lines."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.log.append(line)
            match = re.search(pattern, line)
            if match and not self.found:
                self.found = match[0]
                self.ready.set()
        self.ready.set()

    def wait(self) -> str:
        """What the pattern has found."""
        self.ready.wait(DEADLINE_S)
        if not self.found:
            raise ClusterError("".join(self.log[-50:]) or "no output")
        return self.found


@dataclass
class Cluster:
    """master: its URL. settings: of its drivers. With a folder of settings (SPARK_CONF_DIR) a JVM would not take its
    classes from the file of tests/run_all.py, which is for one path of classes. worker: its process id."""

    master: str
    settings: dict[str, str]
    worker: int

    def executors(self) -> list[int]:
        """Process ids of the executors that run now."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or parent(int(entry.name)) != self.worker:
                continue
            with contextlib.suppress(OSError):
                if b"CoarseGrainedExecutorBackend" in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
        return found


def parent(process: int) -> int:
    """Process id of the parent; 0 if the process is gone."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def _start(daemons: list[_Daemon], name: str, arguments: list[str], pattern: str) -> _Daemon:
    command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1"]
    return _run(daemons, [*command, "--port", "0", "--webui-port", "0", *arguments], pattern, {
        "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": f"{JVM} -Dspark.master.rest.enabled=false",
        "PYSPARK_PYTHON": sys.executable,
    })  # fmt: skip


def _run(daemons: list[_Daemon], command: list[str], pattern: str, others: dict[str, str]) -> _Daemon:
    environment = os.environ | {
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        **others,
    }
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    )
    daemon = _Daemon(process)
    daemons.append(daemon)
    threading.Thread(target=daemon.follow, args=(pattern,), daemon=True).start()
    return daemon


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """A cluster that is up. Raises ClusterError."""
    daemons: list[_Daemon] = []
    with tempfile.TemporaryDirectory(prefix="spark-cluster-", ignore_cleanup_errors=True) as folder:
        settings = {
            "spark.executor.cores": "1",
            "spark.executor.memory": EXECUTOR_MEMORY,
            "spark.executor.extraJavaOptions": JVM,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
        }
        try:
            url = _start(daemons, "master.Master", [], r"spark://127\.0\.0\.1:\d+$").wait()
            options = ["--cores", "2", "--memory", WORKER_MEMORY, "--work-dir", folder, url]
            worker = _start(daemons, "worker.Worker", options, "Successfully registered with master")
            worker.wait()
            yield Cluster(url, settings, worker.process.pid)
        finally:
            _stop(daemons)


def _stop(daemons: list[_Daemon]) -> None:
    for daemon in reversed(daemons):  # a worker that is asked to end ends its executors
        daemon.process.send_signal(signal.SIGTERM)
    for daemon in daemons:
        try:
            daemon.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(daemon.process.pid, signal.SIGKILL)
            daemon.process.wait()
        assert daemon.process.stdout is not None
        daemon.process.stdout.close()


@dataclass
class Server:
    """A Spark Connect server. url: what SPARK_REMOTE and --master take. process: its JVM."""

    url: str
    process: int


@contextlib.contextmanager
def connect_server() -> Iterator[Server]:
    """A server that is up, for tests of what reaches it from its clients: its Python has the packages that are
    installed here, but nothing of this checkout. Raises ClusterError."""
    daemons: list[_Daemon] = []
    with tempfile.TemporaryDirectory(prefix="spark-connect-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        settings = {
            "spark.master": "local[2]",
            "spark.driver.memory": "512m",
            "spark.driver.extraJavaOptions": JVM,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            **INTERPRETED,
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
        }
        options = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
        bare = {
            "PYSPARK_PYTHON": str(Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}")),
            "PYTHONPATH": sysconfig.get_path("purelib"),  # this way its .pth files, which lead here, are not heeded
        }
        command = [str(HOME / "bin" / "spark-submit"), "--class", SERVER, *options, "spark-internal"]
        try:
            daemon = _run(daemons, command, r"(?<=server started at: )127\.0\.0\.1:\d+", bare)
            yield Server(f"sc://{daemon.wait()}", daemon.process.pid)
        finally:
            _stop(daemons)
