"""`ordack status --watch`: on a terminal, into a pipe, as JSON lines; how it ends. And names that look like markup."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ordack.client import Client

from hil.signals import heed
from tests.support.command import DEADLINE_S, ENVIRONMENT, Running, Serve, as_json, ordack

pytestmark = pytest.mark.slow

LEAVES_SCREEN, SHOWS_CURSOR = "\x1b[?1049l", "\x1b[?25h"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with Client(tmp_path / "store", create=True) as client:
        client.create_queue("line1", transactional=True)
    return tmp_path / "store"


@contextlib.contextmanager
def _watching(store: Path, *arguments: str) -> Iterator[Running]:
    process = Running("status", "--store", str(store), "--watch", *arguments)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


class Screen:
    """A terminal of that size with the command in it; text: all that it was sent."""

    def __init__(self, store: Path, rows: int, columns: int, **environment: str) -> None:
        self.text = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        ours = {name: value for name, value in ENVIRONMENT.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ordack", "status", "--store", str(store), "--watch"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**ours, "TERM": "xterm-256color", **environment},
            preexec_fn=heed,
            start_new_session=True,
        )
        os.close(slave)

    def until(self, shown: str) -> None:
        """Until this is shown, from now on."""
        self.text = ""
        deadline = time.monotonic() + DEADLINE_S
        while shown not in self.text:
            assert time.monotonic() < deadline, self.text
            self._take()

    def end(self) -> str:
        """What comes until the command has ended."""
        self.text = ""
        while self.process.poll() is None or select.select([self._master], [], [], 0)[0]:
            if not self._take():
                break
        self.process.wait(DEADLINE_S)
        return self.text

    def _take(self) -> bool:
        if select.select([self._master], [], [], 0.1)[0]:
            try:
                self.text += self._decoder.decode(os.read(self._master, 1 << 16))
            except OSError:  # nobody has the other end any more
                return False
        return True

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def screen(store: Path) -> Iterator[Callable[..., Screen]]:
    with contextlib.ExitStack() as stack:

        def make(rows: int, columns: int, **environment: str) -> Screen:
            made = Screen(store, rows, columns, **environment)
            stack.callback(made.close)
            return made

        yield make


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_terminal_shows_what_changes_and_is_left_as_it_was(
    store: Path, screen: Callable[..., Screen], number: signal.Signals
) -> None:
    shown = screen(40, 240)  # no sentence is folded
    shown.until("not served")
    shown.until("line1")
    with Client(store) as client:
        for _ in range(3):
            client.send("line1", b"x")
    shown.until("│        3 │")
    serve = Serve(store)
    try:
        shown.until(f"listening on 127.0.0.1:{serve.port}")
    finally:
        serve.stop()
    shown.until("no queue manager runs on this store")
    shown.process.send_signal(number)
    last = shown.end()
    assert shown.process.returncode == 0
    assert LEAVES_SCREEN in last
    assert SHOWS_CURSOR in last
    assert "Traceback" not in last


def test_a_small_terminal_shows_first_what_is_wrong(store: Path, screen: Callable[..., Screen]) -> None:
    with Client(store) as client:
        for number in range(50):
            client.create_queue(f"press{number}", transactional=False)
        client.send("press49", b"x")
    small = screen(8, 60)
    small.until("no queue manager runs")
    screens = re.split(r"\x1b\[H", small.text)
    assert all(one.count("\n") < 8 for one in screens)
    large = screen(60, 100)
    large.until("press49")  # the fullest first
    large.until("more")
    assert "and 35 more" in large.text


def test_json_lines_are_those_of_status_with_the_time(store: Path) -> None:
    with _watching(store, "--json") as process:
        assert process.stdout

        def next_line() -> dict[str, Any]:
            assert process.stdout
            found: dict[str, Any] = json.loads(process.stdout.readline())
            return found

        first = next_line()
        once = json.loads(ordack("status", "--store", store, "--json").stdout)
        assert {name: value for name, value in first.items() if name not in ("time", "room")} == {
            name: value for name, value in once.items() if name != "room"
        }
        with Client(store) as client:
            client.send("line1", b"x")
        while next_line()["queues"][0]["messages"] != 1:
            pass
        process.send_signal(signal.SIGTERM)
        for line in process.stdout:
            json.loads(line)
        assert process.wait(DEADLINE_S) == 0


def test_a_reader_that_goes_ends_it_quietly(store: Path) -> None:
    with _watching(store) as process:
        assert process.stdout
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(DEADLINE_S) == 1
        assert process.stderr
        assert process.stderr.read() == ""


@pytest.mark.parametrize("name", ["a[/b]", "[red]x", ":smile:", "[link=http://x]y[/link]"])
def test_a_name_that_looks_like_markup_is_a_name(store: Path, name: str) -> None:
    ordack("queue", "create", "--store", store, name)
    assert name in ordack("queue", "list", "--store", store).stdout
    assert name in ordack("status", "--store", store).stdout
    assert name in [queue["name"] for queue in as_json("queue", "list", "--store", store)]


def test_a_name_from_elsewhere_moves_no_terminal(store: Path) -> None:
    evil = "DIRECT=OS:plant\\private$\\x\x1b[2J[/b]"
    with Client(store) as client:
        client.send("DIRECT=OS:plant\\private$\\x", b"x")
        client.store._database.all("UPDATE outgoing SET format_name = ?", (evil,))
    said = ordack("status", "--store", store).stdout
    assert "\x1b" not in said
    assert said.count("\\x1b[2J[/b]") == 2  # in the table, and why it waits
