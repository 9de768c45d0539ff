"""The README's example does what the README says: on CPython, and on MicroPython with and without the C core."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ORDACK = [sys.executable, "-m", "ordack"]
UNIX = ROOT / "build" / "micropython"
INTERPRETERS = {
    "cpython": Path(sys.executable),
    "unix-c": UNIX / "unix-c" / "micropython",
    "unix-twin": UNIX / "unix-twin" / "micropython",
}


def _block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found
    return found.group(1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("interpreter", sorted(INTERPRETERS))
def test_the_example_sends_and_receives(interpreter: str, tmp_path: Path) -> None:
    program = INTERPRETERS[interpreter]
    if not program.exists():
        pytest.skip(f"{program} is missing: make firmware builds it")
    port = str(_free_port())
    environment = dict(
        os.environ, PYTHONPATH=f"{ROOT / 'firmware'}:{ROOT / 'host'}", MICROPYPATH=f".frozen:{ROOT / 'firmware'}"
    )
    create, serve, receive = (
        ORDACK + shlex.split(line.rstrip("& "))[1:] for line in _block("sh").replace("1801", port).splitlines()
    )
    subprocess.run(create, cwd=tmp_path, env=environment, check=True, timeout=30)
    with subprocess.Popen(serve, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == f"listening on 127.0.0.1:{port}\n"
            (tmp_path / "main.py").write_text(_block("python").replace("1801", port), encoding="utf-8")
            subprocess.run([program, "main.py"], cwd=tmp_path, env=environment, check=True, timeout=30)
            lines = subprocess.run(
                receive, cwd=tmp_path, env=environment, check=True, timeout=30, stdout=subprocess.PIPE, text=True
            ).stdout.splitlines()
        finally:
            server.terminate()
    (message,) = map(json.loads, lines)
    assert message["label"] == "temperature"
    assert message["body_base64"] == "MjEuNQ=="
    assert message["tx_sequence_number"] == 1


def test_the_commands_that_the_readme_names_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^    make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    help_text = subprocess.run(
        [*ORDACK, "--help"],
        env=dict(os.environ, PYTHONPATH=f"{ROOT / 'firmware'}:{ROOT / 'host'}"),
        check=True,
        timeout=30,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    for command in re.findall(r"^\| `ordack (\w+)", README, re.MULTILINE):
        assert re.search(rf"\b{command}\b", help_text)


def test_every_module_of_the_pipeline_is_in_the_table_of_the_host() -> None:
    table = (ROOT / "host" / "README.md").read_text(encoding="utf-8")
    files = {f"`pipeline/{path.name}`" for path in (ROOT / "host" / "ordack" / "pipeline").iterdir()
             if path.is_file() and path.suffix in (".py", ".html", ".js", ".properties") and path.name != "__init__.py"}
    assert [name for name in sorted(files) if name not in table] == []
