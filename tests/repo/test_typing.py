"""A program's type checker knows what ordack has, from the wheel alone: what is right passes `mypy --strict`, and what
is not is found."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.wheel import make_wheel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

RIGHT = """
from typing import Any, assert_type

import ordack
from mqqb.confirm import Conclusion
from ordack import Body, Message, Received, Sent
from ordack.client import Client


def work(client: Client) -> None:
    assert_type(client.send("line1", b"1", "label", ttrq=5, acknowledge=["receive"], administration_queue="p"), Sent)
    assert_type(client.state(1), Conclusion | None)
    queue = client.queue("line1")
    queue.send(Body.xml(21.5, "float"), priority=5)
    with queue.receive(timeout=None) as message:
        assert_type(message, Received)
        assert_type(message.value("json"), Any)
        client.reply(message, Body.json({"t": 1}), label="answer")
    for message in queue.receive(correlation_id=message.identifier):
        with message:
            raise ordack.Reject
    with queue.receive(lookup_id=7) as message:
        print(message.body.decode(), message.tx_sequence_number)
    with client.transaction() as transaction:
        assert_type(transaction.receive(queue), Message)
        transaction.send("line2", b"2", ttbr=60)
    assert_type(transaction.sent, list[Sent])


async def work_async() -> None:
    async with ordack.connect_async("plant") as client:
        assert_type(await client.send("line1", b"1", ttrq=5), Sent)
        async for message in client.queue("line1").receive():
            async with message:
                assert_type(message.body, bytes)
        async for peeked in client.queue("line1").peek():
            assert_type(peeked, Message)
        async with client.transaction() as transaction:
            assert_type(await transaction.receive("line1", timeout=None), Message)


with ordack.connect("plant") as connected:
    work(connected)
"""
WRONG = """
import ordack

with ordack.connect("plant") as client:
    client.send("line1", b"1", lable="typo")
    client.send("line1", "text")
    client.queue("line1").send(b"1", ttrq="5")
    next(client.queue("line1").peek()).vaule()
    with client.queue("line1").receive() as message:
        message.value("yaml")
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has nothing but ordack, unpacked from a wheel of this checkout."""
    folder = tmp_path_factory.mktemp("typing")
    venv.create(folder / "venv")
    [packages] = (folder / "venv" / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(make_wheel(folder)) as archive:
        archive.extractall(packages)
    return folder / "venv" / "bin" / "python"


def _check(python: Path, program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(program)
    return subprocess.run(
        [
            sys.executable, "-m", "mypy", "--strict", "--python-executable", python,
            "--cache-dir", python.parent / "cache", "program.py",
        ],
        cwd=folder, capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip


def test_correct_program_passes_mypy_strict(python: Path, tmp_path: Path) -> None:
    done = _check(python, RIGHT, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_mistake_of_a_program_is_found(python: Path, tmp_path: Path) -> None:
    found = _check(python, WRONG, tmp_path).stdout
    lines = [number for number in range(1, 20) if f"program.py:{number}: error" in found]
    assert lines == [5, 6, 7, 8, 10], found
