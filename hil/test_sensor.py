"""The sensor application: its readings, and a ledger that agrees with the node whenever the power went."""

import asyncio
import binascii
import gc
import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ordack.node import OutboxFull

from firmware.ports.modules import BOARD
from hil import sensor
from hil.boards import FIRMWARE, SENSOR, BoardMissing
from hil.report import read_ledger
from hil.targets import MICROPYTHON, interpreter

TOLD = {"damage": ["a bit was changed"], "ahead": False, "sessions": 5, "full": False}
CONFIG = {"seed": 3, "count": 8, "queue": "DIRECT=TCP:127.0.0.1\\private$\\line1", "ahead": 3}


class PowerCut(BaseException):
    """The power goes."""


class StandinNode:
    """A node whose flash is `accepted`; every 7th look at `waiting`, one more of them is stored at the destination.

    `cut_in` is the reading in whose `send` the power goes, after it was accepted.
    """

    def __init__(self, accepted: list[tuple[bytes, str]], stored: int = 0, cut_in: int = 0) -> None:
        self.accepted = accepted
        self.destination_has = stored
        self.most_waiting = 0
        self.looks = 0
        self.cut_in = cut_in
        self.damage = ["a bit was changed"]
        self.outbox = self
        self.ahead = False
        self.stats = self
        self.connects = 5
        self.error: Exception | None = None

    @property
    def next_message_id(self) -> int:
        return len(self.accepted) + 1

    @property
    def last_message_id(self) -> int:
        return len(self.accepted)

    @property
    def waiting(self) -> int:
        waiting = len(self.accepted) - self.destination_has
        self.most_waiting = max(self.most_waiting, waiting)
        self.looks += 1
        self.destination_has += waiting > 0 and self.looks % 7 == 0
        return waiting

    def queue(self, name: str) -> "StandinNode":
        assert name == CONFIG["queue"]
        return self

    async def send(self, body: bytes, label: str, **_: bool) -> None:
        self.accepted.append((bytes(body), label))
        if len(self.accepted) == self.cut_in:
            raise PowerCut


@pytest.fixture(autouse=True)
def flash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def live(node: StandinNode, **changes: object) -> None:
    """One life of the sensor on `node`."""
    asyncio.run(sensor.Sensor({**CONFIG, **changes}, node, "stand-in").run())


def ledger() -> bytes:
    return Path(sensor.LEDGER).read_bytes()


def said(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


# Readings


@given(st.integers(0, 2**31), st.integers(2, 300), st.sampled_from([1, 2, 100, 4096, 65536]))
def test_sizes_stay_in_range_and_hold_both_ends(seed: int, count: int, max_size: int) -> None:
    sizes = [sensor.size_of(seed, k, count, max_size) for k in range(1, count + 1)]
    assert min(sizes) == 0
    assert max(sizes) == max_size
    assert sizes == [sensor.size_of(seed, k, count, max_size) for k in range(1, count + 1)]


@pytest.mark.parametrize("target", [*MICROPYTHON, "cpython"])
def test_readings_are_the_same_on_every_interpreter(target: str) -> None:
    try:
        command = interpreter(target)
    except BoardMissing as reason:
        pytest.skip(str(reason))
    code = """
import sys, binascii
sys.path.insert(0, sys.argv[1])
import sensor
for k in range(1, 41):
    body = sensor.body_of(123456789, k, sensor.size_of(123456789, k, 40))
    print(sensor.line_of(k, body, k).decode(), end="")
"""
    Path("script.py").write_text(code)
    environment = {"MICROPYPATH": f".frozen:{BOARD}", "PYTHONPATH": str(FIRMWARE)}
    command = [*command, "script.py", str(SENSOR.parent)]
    output = subprocess.run(command, capture_output=True, env=environment, timeout=60, check=True).stdout
    bodies = {k: sensor.body_of(123456789, k, sensor.size_of(123456789, k, 40)) for k in range(1, 41)}
    assert output == b"".join(sensor.line_of(k, body, k) for k, body in bodies.items())
    sensor_lines = [(one.k, one.size, one.crc32) for one in read_ledger(output)]
    assert sensor_lines == [(k, len(body), binascii.crc32(body)) for k, body in bodies.items()]


# Ledger


def test_every_accepted_reading_is_in_the_ledger_once(capsys: pytest.CaptureFixture[str]) -> None:
    node = StandinNode([])
    live(node)
    entries = read_ledger(ledger())
    assert [(e.k, e.size, e.crc32, e.found) for e in entries] == [
        (k, len(body), binascii.crc32(body), False) for k, (body, _) in enumerate(node.accepted, 1)
    ]
    assert [label for _, label in node.accepted] == [f"reading {k}" for k in range(1, 9)]
    assert node.most_waiting == 3
    lines = said(capsys)
    started = {"event": "started", "accepted": 0, "stored": 0, "found": False, "base": 0, "core": "stand-in"}
    assert lines[0] == {**started, **TOLD}
    assert lines[-1] == {"event": "done", "accepted": 8, "stored": 8, "core": "stand-in", **TOLD}
    figures = [(line["accepted"], line["stored"]) for line in lines[1:-1]]
    assert sorted(set(figures)) == figures


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 8))
def test_power_cut_between_acceptance_and_ledger(cut_in: int) -> None:
    Path(sensor.LEDGER).unlink(missing_ok=True)
    flash: list[tuple[bytes, str]] = []
    with pytest.raises(PowerCut):
        live(StandinNode(flash, cut_in=cut_in))
    assert len(read_ledger(ledger()) if Path(sensor.LEDGER).exists() else []) == cut_in - 1
    live(StandinNode(flash))
    entries = read_ledger(ledger())
    assert [entry.k for entry in entries] == list(range(1, 9))
    assert [entry.k for entry in entries if entry.found] == [cut_in]
    assert [entry.crc32 for entry in entries] == [binascii.crc32(body) for body, _ in flash]


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_power_cut_within_a_line_of_the_ledger(data: st.DataObject) -> None:
    Path(sensor.LEDGER).unlink(missing_ok=True)
    flash: list[tuple[bytes, str]] = []
    live(StandinNode(flash), count=5)
    whole = ledger()
    last = len(whole.splitlines(keepends=True)[-1])
    Path(sensor.LEDGER).write_bytes(whole[: len(whole) - data.draw(st.integers(1, last))])
    live(StandinNode(flash), count=5)
    assert ledger() == whole[:-1] + b" found\n"


def test_a_node_that_forgot_an_acceptance_is_found_out() -> None:
    node = StandinNode([])
    live(node)
    with pytest.raises(ValueError, match="ends at reading 8, MessageID 8, but the node's last is 7"):
        live(StandinNode(node.accepted[:-1]))
    with pytest.raises(ValueError, match="ends at reading 8, MessageID 8, but the node's last is 0"):
        live(StandinNode([]))


def test_readings_continue_after_erasure_with_new_base(capsys: pytest.CaptureFixture[str]) -> None:
    live(StandinNode([]), count=5)
    capsys.readouterr()

    node = StandinNode([])
    live(node, erasures=True)
    assert [entry.k for entry in read_ledger(ledger())] == list(range(1, 9))
    assert [label for _, label in node.accepted] == ["reading 6", "reading 7", "reading 8"]
    assert said(capsys)[0]["base"] == 5


def test_after_an_old_copy_too_and_a_cut_before_the_ledger_then(capsys: pytest.CaptureFixture[str]) -> None:
    node = StandinNode([])
    live(node, count=5, erasures=True)
    capsys.readouterr()
    copy = node.accepted[:3]
    with pytest.raises(PowerCut):
        live(StandinNode(copy, cut_in=4), erasures=True)
    live(StandinNode(copy), erasures=True)
    assert [(entry.k, entry.found) for entry in read_ledger(ledger())][4:] == [
        (5, False),
        (6, True),
        (7, False),
        (8, False),
    ]
    assert [line["base"] for line in said(capsys) if line.get("event") == "started"] == [5, 5]


@pytest.mark.parametrize("refusal", [OutboxFull("no room"), MemoryError("no room")])
def test_reading_refused_for_lack_of_room_is_retried(
    refusal: Exception, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc, "collect", lambda: 0)  # slow in the large heap of a test run, once for each attempt

    class Small(StandinNode):
        async def send(self, body: bytes, label: str, **options: bool) -> None:
            if len(self.accepted) - self.destination_has == 2:
                raise refusal
            await super().send(body, label, **options)

    node = Small([])
    live(node)
    assert [label for _, label in node.accepted] == [f"reading {k}" for k in range(1, 9)]
    assert [entry.k for entry in read_ledger(ledger())] == list(range(1, 9))
    assert [line["full"] for line in said(capsys)][-1] == isinstance(refusal, OutboxFull)


def test_sensor_raises_error_of_ended_node_while_waiting() -> None:
    node = StandinNode([])
    node.error = OSError("the flash is gone")
    with pytest.raises(OSError, match="the flash is gone"):
        live(node)
