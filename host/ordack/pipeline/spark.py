"""Start a SparkSession on this machine or on a cluster."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import mqqb

from ordack.config.paths import is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN = 17  # of Spark 4
LOCAL = "local[*]"
PARTITIONS = "spark.sql.shuffle.partitions"
PARTITIONS_A_CORE = 4  # on one machine; Spark's 200 take twice the time for 200,000 messages on two cores
TASKS_MAX = 200  # on a cluster, for a job that reads files

_PACKAGE = Path(__file__).resolve().parent.parent
_LOGGING = Path(__file__).with_name("log4j2.properties")


class SparkMissing(Exception):
    """No usable Spark. The text names the missing part and the remedy."""


def spark_session(
    master: str | None = None, name: str = "ordack", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the active SparkSession, or start one, with this package's data source.

    master: Spark's master URL. settings: override the defaults chosen here. On one machine, a new session shuffles into
    a few partitions per core unless spark-defaults.conf sets a number. Remote workers receive this package. They need
    Python at the same path or at PYSPARK_PYTHON, and the packages of the extra "spark". Raises SparkMissing.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    chosen = master or LOCAL
    if chosen.startswith("sc://"):
        raise SparkMissing(f"{chosen} is a Spark Connect server, which is not used: name a master such as {LOCAL}")
    _check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.pop("SPARK_REMOTE", None)  # pyspark refuses both settings together
    values = {"spark.sql.session.timeZone": "UTC", "spark.ui.showConsoleProgress": "false"}
    builder = SparkSession.builder.appName(name).master(chosen)
    if "SPARK_CONF_DIR" not in os.environ:
        values["spark.driver.defaultJavaOptions"] = f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"
    if is_local(chosen):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # also for a machine whose name has no address
        values |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
        }
    for key, value in {**values, **(settings or {})}.items():
        builder = builder.config(key, value)
    found = SparkSession.getActiveSession()
    try:
        spark = builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        raise SparkMissing(f"Spark does not start on {chosen}: {_first_line(error)}") from None
    if found is None and is_local(chosen) and spark.sparkContext.getConf().get(PARTITIONS) is None:
        spark.conf.set(PARTITIONS, str(PARTITIONS_A_CORE * spark.sparkContext.defaultParallelism))
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Register `spark.read.format("mqqb")` with a session made elsewhere, and ship this package to its remote
    workers."""
    from ordack.pipeline.packets import PacketSource

    if not is_local(spark.sparkContext.master or LOCAL):
        _ship(spark)
    spark.dataSource.register(PacketSource)


def task_count(spark: SparkSession, files: int) -> int:
    """Return the number of tasks for reading `files` files. A cluster does not know its capacity: executors may
    register later."""
    context = spark.sparkContext
    places = context.defaultParallelism if is_local(context.master or LOCAL) else TASKS_MAX
    return max(1, min(files, places))


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    where = f"JAVA_HOME is {home}" if home else "JAVA_HOME is not set, and there is no `java` on the PATH"
    try:
        done = subprocess.run([java or "java", "-version"], capture_output=True, text=True, timeout=30, check=False)
        version = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    except (OSError, subprocess.TimeoutExpired):
        version = None
    if version is None or int(version[1]) < JAVA_MIN:
        found = f"Java {version[1]}" if version else "no Java that runs"
        raise SparkMissing(
            f"Spark needs a Java runtime, {JAVA_MIN} or newer, and there is {found} ({where}): install one (Debian: "
            f"openjdk-{JAVA_MIN}-jre-headless), or set JAVA_HOME"
        )


def _ship(spark: SparkSession) -> None:
    """Ship this package to the workers of a cluster, because both ends must be the same version."""
    folder = Path(tempfile.mkdtemp(prefix="ordack-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # the driver serves the folder to its workers
    archive = folder / "ordack.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as package:
        for root in (_PACKAGE, Path(mqqb.__file__).resolve().parent):
            for file in sorted(root.rglob("*.py")):
                package.write(file, Path(root.name) / file.relative_to(root))
    core = find_spec("_mqqb")
    compiled = None if core is None else core.origin  # placed next to the archive, on the workers' path
    spark.sparkContext.addPyFile(str(archive))
    if compiled is not None:
        spark.sparkContext.addFile(compiled)


def words(error: Exception) -> str:
    """Return this package's own reason in a Spark exception, or its first line."""
    text = _text(error)
    own = re.findall(r"^(?:\w+: )?ordack\.[\w.]+: (.+)$", text, re.MULTILINE)
    return str(own[-1]) if own else _first_line(error)


def _text(error: Exception) -> str:
    """Return Java's message, or the error's."""
    java = getattr(error, "java_exception", None)
    return str(error if java is None else java.toString())


def _first_line(error: Exception) -> str:
    return _text(error).strip().partition("\n")[0]
