"""ordack where it is installed by pip, without a checkout."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import own_network
from tests.support.command import DEADLINE_S
from tests.support.wheel import PLAIN, ROOT, make_wheel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
CONSTRAINTS = ROOT / "tests" / "constraints.txt"


def pip(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    with own_network.of_machine():
        return subprocess.run(command, env=PLAIN, capture_output=True, text=True, timeout=1200, check=False)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What ordack needs can be had here."""
    folder = tmp_path_factory.mktemp("registry")
    asked = pip("download", "-q", "--no-deps", "-c", CONSTRAINTS, "-d", folder, "h11")
    if asked.returncode:
        pytest.skip(f"no registry of packages answers: {asked.stderr.strip().splitlines()[-1]}")


@pytest.fixture(scope="module")
def programs(registry: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an environment's programs, where ordack was installed without an extra."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv")  # the pip of this Python installs there: its own would take seconds to be made
    programs = folder / "venv" / "bin"
    # Python compiles what it imports; of all that is installed that is a part
    to = "--python", programs / "python"
    done = pip(*to, "install", "-q", "--no-compile", "-c", CONSTRAINTS, make_wheel(folder))
    assert done.returncode == 0, done.stderr
    return programs


def run(programs: Path, folder: Path, line: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    """`ordack` there, in a folder; status: which it must end with."""
    done = subprocess.run(
        [programs / "ordack", *line.split()],
        cwd=folder, env=PLAIN, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    return done


def test_pip_brings_the_service_alone(programs: Path) -> None:
    found = {path.name.partition("-")[0] for path in programs.parent.glob("lib/*/site-packages/*.dist-info")}
    assert {"ordack", "apsw", "cbor2", "h11", "typer"} <= found
    assert found.isdisjoint(
        {"mpremote", "pyserial", "cobs", "littlefs_python", "pyspark", "pyarrow", "numpy", "pytest"}
    )


@contextlib.contextmanager
def served(programs: Path, folder: Path, line: str) -> Iterator[int]:
    """`ordack serve` there; its port."""
    command = [programs / "ordack", "serve", "--listen", "127.0.0.1:0", *line.split()]
    serve = subprocess.Popen(
        command, cwd=folder, env=PLAIN, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip
    try:
        assert serve.stdout
        yield int(serve.stdout.readline().rpartition(":")[2])
    finally:
        serve.terminate()
        _, errors = serve.communicate(timeout=DEADLINE_S)
    assert (serve.returncode, "Traceback" in errors) == (0, False), errors


def test_installed_ordack_receives_from_another_queue_manager(programs: Path, tmp_path: Path) -> None:
    assert "serve" in run(programs, tmp_path, "--help").stdout
    run(programs, tmp_path, "init --store plant")
    run(programs, tmp_path, "queue create --store plant line1 --transactional")
    run(programs, tmp_path, "init --store far")
    run(programs, tmp_path, r"send --store far DIRECT=OS:plant\private$\line1 --body 21.5")
    with served(programs, tmp_path, "--store plant --capture c.pcapng") as port:
        with served(programs, tmp_path, f"--store far --next-hop plant=127.0.0.1:{port}"):
            received = run(programs, tmp_path, "receive --store plant line1 --follow --count 1 --json").stdout
        assert json.loads(received)["body"] == "21.5"
        status = json.loads(run(programs, tmp_path, "status --store plant --json").stdout)
        assert [queue["messages"] for queue in status["queues"] if queue["name"] == "line1"] == [0]
    shown = run(programs, tmp_path, "capture decode c.pcapng --json").stdout
    assert "UserMessage" in {json.loads(line)["packet"] for line in shown.splitlines()}


@pytest.mark.parametrize(
    ("line", "extra"),
    [("board doctor --port /dev/null", "boards"), ("table export line1 --store plant --to folder", "spark")],
)
def test_missing_extra_is_named_with_pip_command(programs: Path, tmp_path: Path, line: str, extra: str) -> None:
    said = run(programs, tmp_path, line, 2).stderr
    assert said.endswith(f"which is not installed: run `pip install '.[{extra}]'` in a checkout\n")
