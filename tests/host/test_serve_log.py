"""The log of `serve`: each fact once, what comes again counted; as text, or as JSON for programs."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from mqqb import confirm
from ordack.broker.serve_log import AGAIN_S, ERROR, FACTS_OF_PEER, Form, LogLine, Operator, ServeLog

from tests.support.command import DEADLINE_S, Serve, converse, ordack
from tests.support.host_peer import Peer, direct

TEXT_LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (info|warning|error): .+")


class _World:
    def __init__(self, form: Form = Form.TEXT) -> None:
        self.lines: list[str] = []
        self.now = 1_800_000_000.0
        self.log = ServeLog(self.lines.append, lambda: self.now, form)

    def told(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.log.tick()


def test_a_line_has_time_level_and_text() -> None:
    world = _World()
    world.log("a plain text")
    world.log(LogLine("the store failed", ERROR))
    world.now += 0.0625
    world.log("later")
    assert world.lines == [
        "2027-01-15T08:00:00.000Z warning: a plain text",
        "2027-01-15T08:00:00.000Z error: the store failed",
        "2027-01-15T08:00:00.062Z warning: later",
    ]


def test_json_log_line_has_text_and_context() -> None:
    world = _World(Form.JSON)
    world.log("a plain text")
    world.log(LogLine("refused, 1 MB free", ERROR, "refused", peer="10.0.0.5", queue="line1"))
    world.pass_time(20)
    world.log(LogLine("refused, 2 MB free", ERROR, "refused", peer="10.0.0.5", queue="line1"))
    world.pass_time(AGAIN_S - 20)
    assert world.told() == [
        {"time": "2027-01-15T08:00:00.000Z", "level": "warning", "text": "a plain text"},
        {
            "time": "2027-01-15T08:00:00.000Z",
            "level": "error",
            "text": "refused, 1 MB free",
            "peer": "10.0.0.5",
            "queue": "line1",
        },
        {
            "time": "2027-01-15T08:01:00.000Z",
            "level": "error",
            "text": "refused, 2 MB free",
            "peer": "10.0.0.5",
            "queue": "line1",
            "again": 1,
            "since": "2027-01-15T08:00:00.000Z",
            "until": "2027-01-15T08:00:20.000Z",
        },
    ]


@pytest.mark.parametrize("form", Form)
def test_log_escapes_control_characters_in_foreign_names(form: Form) -> None:
    world = _World(form)
    evil = "line1\n2027-01-15T08:00:00.000Z error: the disk is on fire\r\x1b[2J\u202e\ud800\x85\u2028"
    Operator(world.log).tell(f"10.0.0.5: no queue {evil}", peer="10.0.0.5", queue=evil)
    [line] = world.lines
    assert all(sign.isprintable() or sign == "\n" for sign in line)
    if form is Form.JSON:
        assert "\n" not in line
        assert json.loads(line)["queue"] == evil.replace("\ud800", "\\ud800")
    else:
        first, second = line.split("\n")
        assert first == "2027-01-15T08:00:00.000Z warning: 10.0.0.5: no queue line1"
        assert second.startswith("    2027-")
        assert "\\r\\x1b[2J\\u202e\\ud800\\x85\\u2028" in second


def test_repeated_log_line_is_counted_and_logged_less_often() -> None:
    world = _World()
    for number in range(1000):
        world.log(LogLine(f"refused, {number} MB free", fact="refused"))
        world.pass_time(1)
    assert world.lines[0].endswith("warning: refused, 0 MB free")
    assert len(world.lines) == 5  # after 60, 180, 420, 900 seconds
    assert world.lines[1].endswith("warning: 59 times more from 08:00:00 until 08:00:59: refused, 59 MB free")
    world.log.close()
    told = [int(line.partition("warning: ")[2].split()[0]) for line in world.lines[1:]]
    assert sum(told) == 999


@pytest.mark.parametrize("repetitions", [0, 1, 5])
def test_log_writes_nothing_without_a_new_event(repetitions: int) -> None:
    world = _World(Form.JSON)
    for _ in range(1 + repetitions):
        world.log("refused")
    for _ in range(10):
        world.pass_time(AGAIN_S)
    world.log.close()
    assert [line.get("again", 0) for line in world.told()] == [0, *[repetitions] * (repetitions > 0)]


def test_log_line_after_quiet_interval_counts_as_new() -> None:
    world = _World()
    world.log("it is gone")
    world.pass_time(AGAIN_S)
    world.log("it is gone")
    world.pass_time(AGAIN_S / 2)
    world.log("it is gone")
    world.log.close()
    assert [line.partition(" ")[2] for line in world.lines] == [
        "warning: it is gone",
        "warning: it is gone",
        "warning: 1 time more from 08:01:00 until 08:01:30: it is gone",
    ]


def test_a_peer_that_makes_up_names_fills_no_log() -> None:
    world = _World()
    for number in range(10_000):
        world.log(LogLine(f"10.0.0.5: there is no queue {number}", peer="10.0.0.5"))
    world.log(LogLine("10.0.0.6: there is no queue here", peer="10.0.0.6"))
    assert len(world.lines) == FACTS_OF_PEER + 2
    assert "no queue here" in world.lines[-1]
    world.pass_time(AGAIN_S)
    (more,) = world.lines[FACTS_OF_PEER + 2 :]
    assert more.endswith("no queue 9999")
    assert f" {10_000 - FACTS_OF_PEER - 1} times more " in more
    world.pass_time(AGAIN_S)
    world.log(LogLine("10.0.0.5: there is no queue here", peer="10.0.0.5"))
    assert "10.0.0.5: there is no queue here" in world.lines[-1], "it is heard again when it has calmed down"


# ---- as `serve` writes it --------------------------------------------------------------------------------


def _refused(store: Path, form: str) -> list[str]:
    """The log of a `serve` on a new store that has refused a message, and cut off somebody who talks nonsense."""
    store.mkdir()
    (store / "ordack.toml").write_text(f"log-format = '{form}'\n")
    serve = Serve(store)
    peer = Peer(b"\1" * 16, direct("nowhere"))
    peer.send(b"x")
    peer.connect(0)
    with socket.create_connection(("127.0.0.1", serve.port), timeout=DEADLINE_S) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert connection.recv(1) == b""
    converse(peer, serve.port)
    status, _, errors = serve.stop()
    assert status == 0
    return errors.splitlines()


@pytest.mark.slow
def test_serve_logs_every_line_as_json_if_requested(tmp_path: Path) -> None:
    told = [json.loads(line) for line in _refused(tmp_path / "store", "json")]
    # it may be refused twice, and its answer may find before the end that nobody listens there
    made, nonsense, refused = (line for line in told if "again" not in line and "no connection" not in line["text"])
    assert (made["level"], made["text"]) == ("info", f"new store made in {tmp_path / 'store'}")
    assert (nonsense["peer"], nonsense["rule"]) == ("127.0.0.1", "B-168")
    assert (refused["level"], refused["peer"]) == ("warning", "127.0.0.1")
    assert refused["queue"] == "DIRECT=TCP:127.0.0.1\\private$\\nowhere"
    assert refused["class"] == f"0x{confirm.NACK_BAD_DST_Q:04X} NACK_BAD_DST_Q"
    assert "there is no queue nowhere" in refused["text"]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["text", "json"])
def test_fatal_error_is_last_line_of_serve_log(tmp_path: Path, form: str) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "ordack.toml").write_text(f"log-format = '{form}'\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        done = ordack("serve", "--store", tmp_path / "store", "--listen", where)
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    said = f"cannot listen on {where}: Address already in use"
    if form == "json":
        told = json.loads(line)
        assert told["level"] == "error"
        assert told["text"].startswith(said)
    else:
        assert TEXT_LINE.fullmatch(line)
        assert f"Z error: {said}" in line
