"""What the pages say is so: every shell and Python block of README.md, host/docs and firmware/docs is run here, or
stands behind a comment that says why it is not; and every example program is run by some test.

A page's blocks run one after the other in one folder. `<!-- file: NAME -->` before a block writes it there. A `text`
block says what the shell block before it prints, with `...` for what differs.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from mqqb import confirm
from ordack.client import Client

from firmware import reference as board_reference
from host import reference
from tests.support.command import ENVIRONMENT, INTERPRETERS, Serve, ordack, own_port

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 300
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "host" / "docs").rglob("*.md")),
    *sorted((ROOT / "firmware" / "docs").rglob("*.md")),
]


class Block(NamedTuple):
    """of: its language. mark: "file" or "not run", with what the comment says behind it; "" without a comment."""

    of: str
    text: str
    mark: str
    said: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    found = re.findall(
        r"^(?: *<!-- (file|not run): ([^\n]*) -->\n)?( *)```(\w*)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL
    )
    assert 2 * len(found) == text.count("```"), f"{page}: a block is not understood"
    return [Block(language, textwrap.dedent(text), mark, said) for mark, said, _, language, text in found]


class Shell:
    """Runs shell blocks in a folder that looks like the checkout, with another port for 1801."""

    def __init__(self, folder: Path, *, prepared: bool) -> None:
        self.folder = folder
        self.port = str(own_port())
        self._settings = ""
        self._servers: list[subprocess.Popen[str]] = []
        for name in ("build", "firmware", "host"):
            (folder / name).symlink_to(ROOT / name)
        (folder / ".venv").symlink_to(Path(sys.prefix))
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}" if prepared else os.environ["PATH"]
        self._environment = {"PATH": path, "HOME": str(folder), "COLUMNS": "200"}

    def write(self, name: str, text: str) -> None:
        text = re.sub(r"\b0\.0\.0\.0\b", "127.0.0.1", text.replace("1801", self.port))
        (self.folder / name).write_text(text, encoding="utf-8")

    def run(self, text: str) -> str:
        """What the lines print on standard output. Of a line that ends with & only the first line, when it is there."""
        said = ""
        for line in text.replace("\\\n", " ").replace("1801", self.port).splitlines():
            command = ["bash", "-c", f"{self._settings}{line}"]
            if line.startswith("export "):
                self._settings += f"{line}\n"
            elif line.endswith("&"):
                command[-1] = f"{self._settings}exec {line[:-1]}"
                server = subprocess.Popen(
                    command, cwd=self.folder, env=self._environment, stdout=subprocess.PIPE, text=True
                )
                self._servers.append(server)
                assert server.stdout is not None
                said += server.stdout.readline()
            else:
                said += subprocess.run(
                    command,
                    cwd=self.folder,
                    env=self._environment,
                    check=True,
                    timeout=DEADLINE_S,
                    stdout=subprocess.PIPE,
                    text=True,
                ).stdout
        return said.replace(self.port, "1801")

    def close(self) -> None:
        for server in self._servers:
            server.terminate()
            server.communicate()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Callable[[Path], Shell]]:
    with contextlib.ExitStack() as stack:

        def make(page: Path) -> Shell:
            made = Shell(tmp_path, prepared=page.name != "README.md")  # which says itself how to find the command
            stack.callback(made.close)
            return made

        yield make


def agrees(said: str, told: str) -> bool:
    """Is this what was told, with anything in place of each `...`?"""
    pattern = ".*".join(map(re.escape, told.split("...")))
    return re.fullmatch(pattern, said, re.DOTALL) is not None


def walk(page: Path, shell: Shell) -> list[str]:
    """Run the blocks of a page; what each shell block has printed."""
    outputs: list[str] = []
    expected: str | None = None  # the next text block says what was printed
    for block in blocks(page):
        if block.mark == "file":
            shell.write(block.said, block.text)
        elif block.of == "text" and expected is not None:
            assert agrees(expected, block.text), f"{page.name} says\n{block.text}and it is\n{expected}"
        elif block.of in ("sh", "python") and not block.mark:
            assert block.of == "sh", f"{page.name}: no test runs\n{block.text}"
            outputs.append(shell.run(block.text))
        expected = outputs[-1] if block.of == "sh" and not block.mark else None
    return outputs


@pytest.mark.parametrize(
    ("told", "right"), [("one\n", True), ("two\n", False), ("o...\n", True), ("one\n...\ntwo\n", False), ("", False)]
)
def test_doc_page_with_wrong_command_output_fails(
    told: str, right: bool, tmp_path: Path, shell: Callable[[Path], Shell]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"- item\n\n  ```sh\n  echo one\n  ```\n  ```text\n{textwrap.indent(told, '  ')}  ```\n")
    with contextlib.nullcontext() if right else pytest.raises(AssertionError):
        walk(page, shell(page))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_blocks_of_page_work_as_documented(page: Path, shell: Callable[[Path], Shell]) -> None:
    if not INTERPRETERS["micropython"].exists():
        pytest.skip("there is no MicroPython: make run builds it")
    walk(page, shell(page))


@pytest.mark.parametrize(("queue", "interpreter"), [("line1", "python3"), ("lime1", "micropython")])
def test_the_readme_leads_to_a_reading(queue: str, interpreter: str, shell: Callable[[Path], Shell]) -> None:
    """With both interpreters that it names; with a typo in the queue's name it says that nothing was stored."""
    if not INTERPRETERS[interpreter].exists():
        pytest.skip(f"{INTERPRETERS[interpreter]} is missing: make run builds it")
    here = shell(PAGES[0])
    [program] = [block.text for block in blocks(PAGES[0]) if block.said == "main.py"]
    start, use = [block.text for block in blocks(PAGES[0]) if block.of == "sh" and not block.mark]
    here.write("main.py", program.replace('line1"', f'{queue}"'))
    here.run(start)
    first, _, other = use.splitlines()[0].partition("# or: ")
    said = here.run(first if interpreter == "micropython" else other)
    received = here.run("ordack receive --store plant line1 --json")
    if queue == "lime1":
        assert (said, received) == ("no such queue (class 0x8000)\n", "")
        return
    assert said == "in the queue\n"
    message = json.loads(received)
    assert (message["label"], message["body"], message["tx_sequence_number"]) == ("temperature", "21.5", 1)


def test_every_example_is_run_by_some_test() -> None:
    tests = "".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    for path in (*(ROOT / "host" / "examples").glob("*"), *(ROOT / "firmware" / "examples").glob("*")):
        assert path.name in tests, path


def test_send_example_reports_outcome_of_its_message(tmp_path: Path) -> None:
    serve = Serve(tmp_path / "there")
    here = Serve(tmp_path / "here", "--next-hop", f"plant=127.0.0.1:{serve.port}")
    try:
        with Client(tmp_path / "there") as client:
            client.create_queue("line1", transactional=True)
        command = [sys.executable, ROOT / "host/examples/send.py", tmp_path / "here"]
        sender = subprocess.Popen(
            [*command, "DIRECT=OS:plant\\private$\\line1", "on"], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
        )
        with Client(tmp_path / "there") as client, client.queue("line1").receive(DEADLINE_S) as message:
            assert message.body == b"on"
        assert sender.communicate(timeout=DEADLINE_S)[0].startswith("received")
        refused = subprocess.run(
            [*command, "DIRECT=OS:plant\\private$\\lime1", "on"],
            env=ENVIRONMENT,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            timeout=DEADLINE_S,
        ).stdout
        assert refused.startswith("dead-lettered: there is no queue lime1 at plant")
    finally:
        serve.stop()
        here.stop()


GROUP = "(?:queue|message|store|table|capture|board|tls)"


def test_the_commands_that_pages_and_sentences_name_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    commands = set()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"`make ([\w-]+)", text):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), (page, target)
        commands |= set(re.findall(rf"`((?:ordack )?{GROUP} [a-z-]+)", text))
    for module in (ROOT / "host" / "ordack").rglob("*.py"):
        commands |= set(re.findall(rf"`(ordack (?:{GROUP} )?[a-z-]+)", module.read_text(encoding="utf-8")))
    for command in sorted(commands):
        words = shlex.split(command.removeprefix("ordack "))
        assert ordack(*words, "--help").returncode == 0, command


def test_the_links_and_settings_that_the_pages_name_are_there() -> None:
    for page in (*PAGES, *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md"))):
        text = page.read_text(encoding="utf-8")
        for target, _, anchor in (found.partition("#") for found in re.findall(r"\]\(([^)]+)\)", text)):
            path = page.parent / target if target else page
            assert path.exists(), (page, target)
            headings = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE) if anchor else []
            assert not anchor or anchor in {re.sub(r"[^\w -]", "", name).lower().replace(" ", "-") for name in headings}


def test_reference_pages_are_up_to_date() -> None:
    for name, text in reference.PAGES.items():
        page = ROOT / "host" / "docs" / "reference" / name
        assert page.read_text(encoding="utf-8") == text(), f"{page} is stale: run `make format`"
    boards = board_reference.PAGE.read_text(encoding="utf-8")
    assert boards == board_reference.page(), "the reference of boards is stale: run `make format`"
    for line in confirm._WORDS.split(";")[1:]:
        number, words = line.split(" ", 1)
        assert f"{words} (0x{number})" in boards, "the reference has all message classes"


def test_the_readme_fits_three_screens() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_every_module_is_in_the_table_of_the_host() -> None:
    text = (ROOT / "host" / "README.md").read_text(encoding="utf-8")
    table = {
        name for row in re.findall(r"^\| (`[^|]+) \|", text, re.MULTILINE) for name in re.findall(r"`([^`]+)`", row)
    }
    package = ROOT / "host" / "ordack"
    files = {
        str(path.relative_to(package))
        for path in package.rglob("*")
        if path.suffix in (".py", ".html", ".css", ".js", ".properties") and not path.name.startswith("__")
    }
    assert sorted(files ^ {name for name in table if not name.endswith("/__init__.py")}) == []
