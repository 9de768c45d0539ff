"""The example of the C core, c_core/examples/sender.c, against `ordack serve`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import DEADLINE_S, ROOT
from tests.support.foreign_peer import Server

pytestmark = pytest.mark.slow

CORE = ROOT / "c_core"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("sender") / "store", early=20)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("c") / "sender"
    strict = ("-std=gnu99", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-fsanitize=address,undefined")
    sources = (CORE / "examples" / "sender.c", CORE / "mqqb.c")
    subprocess.run(["gcc", *strict, f"-I{CORE}", *sources, "-o", made], check=True)
    return made


def run(program: Path, server: Server, queue: str, body: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, "127.0.0.1", str(server.port), f"TCP:127.0.0.1\\private$\\{queue}", body],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_its_message_is_stored_once(program: Path, server: Server) -> None:
    done = run(program, server, "line1", "21.5 C")
    assert (done.returncode, done.stdout, done.stderr) == (0, "stored as number 1\n", "")
    assert server.received() == [b"21.5 C"]


def test_a_message_that_is_rejected_is_no_success(program: Path, server: Server) -> None:
    done = run(program, server, "nowhere", "21.5 C")
    assert (done.returncode, done.stdout) == (1, "")
    assert "rejected" in done.stderr


def test_a_message_that_does_not_fit_is_refused(program: Path, server: Server) -> None:
    done = run(program, server, "line1", "x" * 1000)
    assert (done.returncode, done.stdout) == (1, "")
    assert "too long" in done.stderr
    assert server.received() == []
