"""A standalone Spark cluster on this machine, out of the pyspark wheel: one master, workers of one core each.

    python -m tests.pipeline.spark_cluster [--workers N | --connect] COMMAND...

runs COMMAND with `@` replaced by the master's URL, and stops the cluster when it ends. With --connect it is a Spark
Connect server instead.
"""

import argparse
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
    """master: its URL. folder: what the daemons keep, and Spark's configuration for drivers (SPARK_CONF_DIR)."""

    master: str
    folder: Path
    workers: list[int]

    def executors(self) -> list[int]:
        """Process ids of the executors that run now."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or parent(int(entry.name)) not in self.workers:
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


def _start(daemons: list[_Daemon], name: str, arguments: list[str], pattern: str, folder: Path) -> _Daemon:
    command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1"]
    return _run(daemons, [*command, "--port", "0", "--webui-port", "0", *arguments], pattern, folder, {
        "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": JVM, "PYSPARK_PYTHON": sys.executable,
    })  # fmt: skip


def _run(daemons: list[_Daemon], command: list[str], pattern: str, folder: Path, others: dict[str, str]) -> _Daemon:
    environment = os.environ | {
        "SPARK_HOME": str(HOME),
        "SPARK_CONF_DIR": str(folder / "conf"),
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
def cluster(workers: int = 2) -> Iterator[Cluster]:
    """A cluster that is up. Raises ClusterError."""
    daemons: list[_Daemon] = []
    with tempfile.TemporaryDirectory(prefix="spark-cluster-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "conf").mkdir()
        settings = {
            "spark.executor.memory": EXECUTOR_MEMORY,
            "spark.executor.extraJavaOptions": JVM,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.master.rest.enabled": "false",
        }
        text = "".join(f"{key} {value}\n" for key, value in settings.items())
        (folder / "conf" / "spark-defaults.conf").write_text(text, encoding="utf-8")
        try:
            url = _start(daemons, "master.Master", [], r"spark://127\.0\.0\.1:\d+$", folder).wait()
            options = ["--cores", "1", "--memory", WORKER_MEMORY]
            started = [
                _start(
                    daemons,
                    "worker.Worker",
                    [*options, "--work-dir", str(folder / f"worker{number}"), url],
                    "Successfully registered with master",
                    folder,
                )
                for number in range(workers)
            ]
            for daemon in started:
                daemon.wait()
            yield Cluster(url, folder, [daemon.process.pid for daemon in started])
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
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
        }
        options = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
        (folder / "conf").mkdir()
        bare = {
            "PYSPARK_PYTHON": str(Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}")),
            "PYTHONPATH": sysconfig.get_path("purelib"),  # this way its .pth files, which lead here, are not heeded
        }
        command = [str(HOME / "bin" / "spark-submit"), "--class", SERVER, *options, "spark-internal"]
        try:
            daemon = _run(daemons, command, r"(?<=server started at: )127\.0\.0\.1:\d+", folder, bare)
            yield Server(f"sc://{daemon.wait()}", daemon.process.pid)
        finally:
            _stop(daemons)


def main() -> int:
    """Runs a command on a cluster."""
    parser = argparse.ArgumentParser(description="Runs a command with a standalone Spark cluster on this machine.")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--connect", action="store_true", help="a Spark Connect server")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="@ in it stands for the master's URL")
    arguments = parser.parse_args()
    if not arguments.command:
        parser.error("no command")
    if arguments.connect:
        with connect_server() as server:
            command = [word.replace("@", server.url) for word in arguments.command]
            return subprocess.run(command, check=False).returncode
    with cluster(arguments.workers) as made:
        command = [word.replace("@", made.master) for word in arguments.command]
        environment = os.environ | {"SPARK_CONF_DIR": str(made.folder / "conf")}
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
