"""What `ordack board doctor` and `rescue` tell of an outbox, from a copy of it on this machine."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shutil
import time
from array import array
from pathlib import Path
from typing import Any

import pytest
from ordack.boards import outbox, repl
from ordack.boards.outbox import Check
from ordack.boards.repl import NoBoard
from ordack.node import Node
from ordack.node.storage import log, sources
from ordack.node.storage.outbox import Outbox

from tests.support.command import ordack


def test_board_outbox_lists_each_message_with_its_reason(tmp_path: Path) -> None:
    queue = "DIRECT=TCP:10.0.0.5\\private$\\line1"

    async def fill() -> None:
        node = Node(str(tmp_path), name="press 7")
        line1 = node.queue(queue)
        node.delete(await line1.send(b"given up", dead_letter=True))
        await line1.send(b"waits", ttrq=3600)
        await line1.send(b"waits", ttrq=7200)
        await node.close()

    def command() -> None:
        """A message for the board arrives."""
        files = log.Files(str(tmp_path))
        opened = Outbox(files)
        source = opened.source(bytes(range(16)), "commands")
        arrival = sources.Arrival(opened.next_arrival, array("I", (log.RECEIVED, 0, 0, 0, 0, 0)), source)
        opened.arrive(arrival, source, b"packet")
        opened.sync()
        files.close()

    def told(**how: Any) -> dict[str, Check]:
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        before = {file.name: file.read_bytes() for file in tmp_path.glob("*.log")}
        for name in before:
            shutil.copy(tmp_path / name, copy)
        found = {check.name: check for check in outbox.read_outbox(str(copy), "outbox", time.time() + 600, **how)}
        for folder in (tmp_path, copy):
            assert {file.name: file.read_bytes() for file in folder.glob("*.log")} == before, "to look changes nothing"
        return found

    asyncio.run(fill())
    for flash, verdict in ((700, "bad"), (65536, "ok")):
        check = told(flash=flash)["outbox"]
        assert (check.verdict, check.values["full"], "OutboxFull" in check.advice) == (
            verdict, verdict == "bad", verdict == "bad"
        )  # fmt: skip
    command()
    found = told()
    identity = found["identity"]
    assert identity.values["name"] == "press 7"
    assert identity.verdict == "ok"
    assert identity.text == f"press 7, GUID {identity.values['guid']}"
    assert found["inbox"].values == {"messages": 1}
    assert found["outbox"].values["messages"] == 3
    assert found["dead letters"].values == {"queue": queue, "messages": 1, "classes": ["0x8001 NACK_DELETED"]}
    waiting = found["waiting"]
    assert (waiting.values["messages"], waiting.values["never_sent"]) == (2, 2)
    assert 595 <= waiting.values["oldest"] <= 605
    assert 2995 <= waiting.values["next_deadline"] <= 3005
    assert "oldest 10 min old, the first expires in 50 min; 2 never sent" in waiting.text
    assert "--queue-manager" in waiting.advice
    assert "next_deadline" not in told(clock_is_set=False)["waiting"].values
    reached = Check("queue manager", "ok", "")
    assert "check that the queue exists" in told(reached=reached)["waiting"].advice
    assert "is reachable" in told(reached=reached._replace(verdict="bad"))["waiting"].advice
    files = log.Files(str(tmp_path))
    opened = Outbox(files)
    opened.is_ahead(1 << 31)
    opened.will_send()  # from here on they may have been transmitted
    files.close()
    assert told()["waiting"].values["never_sent"] == 0
    assert told()["identity"].verdict == "warning"
    assert "has a twin" in told()["identity"].text
    assert "the board gets a new GUID" in told()["identity"].advice
    # A byte of the first message changes on the flash.
    (segment,) = tmp_path.glob("*.log")
    data = segment.read_bytes()
    segment.write_bytes(data.replace(b"given up", b"given uq"))
    damaged = told()
    assert damaged["damage"].verdict == "warning"
    assert re.match(r"00000001\.log at byte \d+: a bit was changed", damaged["damage"].text)
    assert damaged["outbox"].values["messages"] == 3
    segment.write_bytes(bytes(len(data)))
    (lost,) = told().values()
    assert (lost.name, lost.verdict) == ("outbox", "bad")
    assert "keep a copy of the folder" in lost.text


class Holding:
    """A board with an outbox of two files, whose second one may be the last that is heard of it."""

    info = repl.Info((1, 25, 0), "", 0, 0, 0, [], "/flash")

    def __init__(self, *, dies: bool) -> None:
        self._dies = dies

    def run(self, _: str) -> list[tuple[str, int]]:
        return [("00000001.log", 5000), ("00000002.log", 5000)]

    def read(self, path: str, _: object) -> bytes:
        if self._dies and path.endswith("2.log"):
            raise NoBoard("it went away")
        return bytes(5000)


def test_a_part_of_an_outbox_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    with pytest.raises(NoBoard):
        outbox.copy_from_board(Holding(dies=True), "outbox", tmp_path, lambda *_: None)  # type: ignore[arg-type]
    done = ordack("board", "rescue", tmp_path)
    assert done.returncode == 1
    assert "there is no outbox in" in done.stderr


def test_board_outbox_is_rescued_and_listed(tmp_path: Path) -> None:
    queue = "DIRECT=TCP:10.0.0.5\\private$\\line1"
    folder = tmp_path / "outbox"

    async def fill() -> None:
        node = Node(str(folder), name="press 7")
        line1 = node.queue(queue)
        await line1.send_all([b"\xff\x00", b"21.5", b"x" * 300], label="reading")
        node.delete(await line1.send(b"given up", dead_letter=True))
        await node.close()

    asyncio.run(fill())
    (segment,) = folder.glob("*.log")
    whole = segment.read_bytes()
    to = tmp_path / "copy"
    done = ordack("board", "rescue", str(folder), "--to", str(to), "--json")
    assert done.returncode == 0, done.stderr
    *messages, summary = map(json.loads, done.stdout.splitlines())
    assert [message["message_id"] for message in messages] == [1, 2, 3, 4]
    assert [message["state"] for message in messages] == ["waiting"] * 3 + ["dead-lettered"]
    assert [message.get("body") for message in messages] == [None, "21.5", "x" * 300, "given up"]
    assert base64.b64decode(messages[0]["body_base64"]) == b"\xff\x00"
    assert {message["queue"] for message in messages} == {queue}
    assert (summary["name"], summary["messages"], summary["damage"]) == ("press 7", 4, [])
    assert (to / segment.name).read_bytes() == segment.read_bytes() == whole, "nothing is changed"
    again = ordack("board", "rescue", str(folder), "--to", str(to))
    assert again.returncode == 1
    assert "is not empty" in again.stderr
    segment.write_bytes(whole.replace(b"x" * 300, b"x" * 100 + bytes(100) + b"x" * 100))
    done = ordack("board", "rescue", str(folder))
    assert done.returncode == 1
    assert "4 DIRECT=TCP" in done.stdout
    assert "21.5" not in done.stdout
    assert "bytes cannot be read\nmessage 3 cannot be read, and is not known to have ended" in done.stdout
    assert ordack("board", "rescue").returncode == 2
    assert ordack("board", "rescue", "--port", "x").returncode == 2
    empty = ordack("board", "rescue", str(tmp_path / "nothing"))
    assert (empty.returncode, empty.stdout) == (1, "")
    assert "there is no outbox" in empty.stderr
