"""What all tests share."""

import asyncio
import gc
import inspect
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from ordack.client import Client

from hil.quick_spark import INTERPRETED
from tests import on_mps2
from tests.conformance import UnknownRule, check_known, cited_by, load_rules
from tests.run_all import JVM
from tests.support import own_network
from tests.support.command import Serve
from tests.support.host_world import Host

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.s3 import S3

# Less work for the two processors: small jobs gain nothing from the second compiler, from threads that collect garbage,
# from many partitions, from code that is made for each query, from plans that are made anew while they run, and from
# what is kept of earlier ones. What starts `ordack table` has the defaults of Spark; for its JVM see
# tests/run_all.py.
SPARK = {
    "spark.driver.extraJavaOptions": f"{JVM} -Xms1g -Xmn400m",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    **INTERPRETED,
    "spark.default.parallelism": "2",
    "spark.sql.ui.retainedExecutions": "1",
    "spark.ui.retainedJobs": "1",
    "spark.ui.retainedStages": "1",
    "spark.ui.retainedTasks": "10",
}

# A Python for workers that has the packages that are installed here, but nothing of this checkout: in PYTHONPATH .pth
# files, which lead here, are not heeded.
BARE = {
    "PYSPARK_PYTHON": str(Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}")),
    "PYTHONPATH": sysconfig.get_path("purelib"),
}

# No deadline: the machine is shared, and pytest-timeout ends what hangs. A failure prints how to repeat it.
settings.register_profile("ordack", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("ordack")


def pytest_configure(config: pytest.Config) -> None:
    on_mps2.board()
    own_network.enter(config)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rules = load_rules()
    for item in items:
        try:
            check_known(rules, cited_by(item), item.nodeid)
        except UnknownRule as problem:
            raise pytest.UsageError(str(problem)) from None


def pytest_collection_finish() -> None:
    """What is there before the first test stays to the end: collecting garbage, which emulated power cuts do after each
    of them, would look at all of it each time, 0.2 s of processor. And of the garbage of tests there is little, which
    is looked for more seldom than after each 700 objects: that took a twentieth of all."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


def pytest_unconfigure() -> None:
    gc.unfreeze()  # what is never collected some packages call leaked, at length


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is `async def` runs in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in arguments}))
    return True


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A queue manager with the queues line1, transactional, and plain."""
    made = Host(tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with the queues line1, transactional, and plain."""
    folder = tmp_path / "store"
    with Client(folder, create=True) as client:
        client.create_queue("line1", transactional=True)
        client.create_queue("plain", transactional=False)
    return folder


@pytest.fixture
def serve(store: Path) -> Iterator[Serve]:
    """That store, served."""
    running = Serve(store)
    yield running
    running.process.kill()
    running.process.communicate()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """A SparkSession with two workers on this machine, for all tests of this process."""
    from ordack.pipeline.spark import spark_session

    warehouse = tmp_path_factory.mktemp("warehouse")
    made = spark_session("local[2]", settings={**SPARK, "spark.sql.warehouse.dir": str(warehouse)})
    yield made
    made.stop()


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> "Iterator[S3]":
    """An S3 server, which the environment names."""
    from tests.support.s3 import server  # what it needs takes half a second

    with server() as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running
