"""The README's example does what the README says: on the MicroPython that `make run` has built, and on CPython."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ORDACK = [sys.executable, "-m", "ordack"]
INTERPRETERS = {
    "micropython": ROOT / "build" / "micropython" / "unix-c" / "micropython",
    "python3": Path(sys.executable),
}


def _block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found
    return found.group(1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _words(interpreter: str, port: str) -> tuple[str, list[str]]:
    """The commands that set the shell up, and the others, with the program's in the form for this interpreter."""
    setting, *lines = _block("sh").replace("1801", port).splitlines()
    (place,) = (place for place, line in enumerate(lines) if "main.py" in line)
    first, _, other = lines[place].partition("# or: ")
    lines[place] = first if interpreter == "micropython" else other
    return setting, lines


@pytest.mark.parametrize("interpreter", sorted(INTERPRETERS))
@pytest.mark.parametrize("queue", ["line1", "lime1"])
def test_the_words_of_the_readme_do_what_it_says(queue: str, interpreter: str, tmp_path: Path) -> None:
    """In a checkout, by a shell. With a typo in the queue's name the program says that nothing was stored."""
    program = INTERPRETERS[interpreter]
    if not program.exists():
        pytest.skip(f"{program} is missing: make run builds it")
    port = str(_free_port())
    for name in ("build", "firmware"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").symlink_to(Path(sys.prefix))
    (tmp_path / "main.py").write_text(_block("python").replace("1801", port).replace("line1\"", f"{queue}\""))
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    setting, lines = _words(interpreter, port)
    said = []
    server = None
    try:
        for line in lines:
            command = ["bash", "-c", f"{setting}\n{line}"]
            if line.endswith("&"):
                command[-1] = f"{setting}\nexec {line[:-1]}"
                server = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
                assert server.stdout is not None
                assert server.stdout.readline() == f"listening on 127.0.0.1:{port}\n"
                continue
            said.append(subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=300,
                                       stdout=subprocess.PIPE, text=True).stdout)
    finally:
        if server is not None:
            server.terminate()
            server.communicate()
    _, program_said, received = said
    if queue == "lime1":
        assert (program_said, received) == ("refused, class 0x8000\n", "")
        return
    assert program_said == "in the queue\n"
    message = json.loads(received)
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
