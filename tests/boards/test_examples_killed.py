"""The programs of firmware/examples while power goes, again and again: at the board, at its neighbour, at the Pi
between, at the queue manager. What they send are numbers that grow from life to life, and they print which of them are
kept: all of these arrive, each once, in order. Power goes at a line that a board prints, which a seed draws, never at a
time."""

from __future__ import annotations

import itertools
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ordack.client import Client

from hil.dice import new_seed
from hil.emulated import HOST
from tests.support.command import DEADLINE_S, Serve, own_port
from tests.support.examples import EXAMPLES, LAN, PLANT, SENSOR, STARTS, Boards, guid_of_board, line_at, to

CUTS = 3
COUNTING = SENSOR.replace("class ADC:", "class ADC:\n    count = 0\n").replace(
    "return 14022", "ADC.count += 1\n        return 100000 * LIFE + ADC.count"
)
NUMBER = '__import__("machine").ADC(4).read_u16()'


@pytest.fixture
def dice() -> random.Random:
    seed = new_seed()
    print("seed", seed)
    return random.Random(seed)


class Lives:
    """A board with an example, and what it has printed in each of its lives. lines: which it prints in each of them."""

    def __init__(
        self,
        boards: Boards,
        dice: random.Random,
        name: str,
        *changes: tuple[str, str],
        lines: tuple[str, ...],
        links: tuple[str, ...] = ("-nic", LAN),
    ) -> None:
        self._lines = (STARTS, *lines)
        self._again = lambda: boards.again(name, links)
        self._dice = dice
        self._before: list[str] = []
        self.board = boards.run(name, *changes, links=links, machine=COUNTING)

    def cut(self) -> None:
        """Its power goes when it has printed one of its lines, and comes again."""
        printed = self._lines[: self._dice.randint(1, len(self._lines))]
        self.board.often(printed[-1], printed.count(printed[-1]))
        self.board.kill()
        self._before.append(self.board.output)
        self.board = self._again()

    def said(self, pattern: str) -> list[list[Any]]:
        """What stands in its whole lines that are like this, a list for each life."""
        return [re.findall(rf"^{pattern}\r?\n", text, re.M) for text in (*self._before, self.board.output)]

    def kept(self) -> set[int]:
        """The numbers that it said to be kept."""
        return {int(number) for life in self.said(r"kept (\d+)") for number in life}


class Plant:
    """A queue manager that is killed, and comes again at the same port."""

    def __init__(self, store: Path, *arguments: str) -> None:
        self.port = own_port()
        self._again = lambda: Serve(store, *arguments, listen=f"127.0.0.1:{self.port}")
        self.serve = self._again()

    def cut(self) -> None:
        self.serve.stop(signal.SIGKILL)
        self.serve = self._again()


@pytest.fixture
def plant(store: Path) -> Iterator[Plant]:
    there = Plant(store)
    yield there
    there.serve.stop(signal.SIGKILL)


def arrived(store: Path, last: int) -> list[int]:
    """What is in the queue, up to this number."""
    numbers: list[int] = []
    with Client(store) as client:
        while last not in numbers:
            with client.queue("line1").receive_batch(100, DEADLINE_S) as messages:
                assert messages, numbers
                numbers += [int(message.body) for message in messages]
    return numbers


def check(numbers: list[int], kept: set[int], last: int) -> None:
    """Each once, in order, and none missing of those that were kept before this one."""
    assert numbers == sorted(set(numbers))
    assert {number for number in kept if number <= last} <= set(numbers)


def test_readings_of_a_fast_sensor(boards: Boards, store: Path, plant: Plant, dice: random.Random) -> None:
    kept = "when it returns", "when it returns\n                print('kept', int(batch[-1]))"
    sensor = Lives(boards, dice, "fast.py", to(plant.port), kept, lines=("kept",) * 3)
    for _ in range(CUTS):
        sensor.cut()
        plant.cut()
    sensor.board.until("kept")
    last = max(sensor.kept())
    batches = {number - place for number in sensor.kept() for place in range(100)}
    check(arrived(store, last), batches, last)


def test_a_reading_that_a_pi_passes_on(boards: Boards, store: Path, dice: random.Random, tmp_path: Path) -> None:
    (store / "ordack.toml").write_text("own-names = ['plant']\n")
    plant = Plant(store)
    gateway = tmp_path / "gateway"
    with Client(gateway, create=True):
        pass
    settings = (EXAMPLES / "gateway" / "ordack.toml").read_text()
    (gateway / "ordack.toml").write_text(settings.replace(f"{PLANT}:1801", f"127.0.0.1:{plant.port}"))
    line = own_port()
    kept = "dead_letter=True)", f"dead_letter=True)\nprint('kept', {NUMBER} - 1)"
    links = ("-nic", LAN, *line_at(line))
    board = Lives(boards, dice, "gateway/main.py", kept, lines=("kept", "the Pi has it"), links=links)
    board.board.until(STARTS)
    pi = Plant(gateway, "--serial", f"press7=socket://127.0.0.1:{line}")
    try:
        for _ in range(CUTS):
            board.cut()
            dice.choice((pi, plant)).cut()
        board.board.until("the Pi has it")
        last = max(board.kept())
        check(arrived(store, last), board.kept(), last)
        board.board.until("received")
    finally:
        plant.serve.stop(signal.SIGKILL)
        pi.serve.stop(signal.SIGKILL)


def test_commands_to_a_board(boards: Boards, store: Path, plant: Plant, dice: random.Random) -> None:
    """One that is handled comes again where the power went before it was taken, and says that it may."""
    board = Lives(boards, dice, "commands.py", to(plant.port), lines=("b'",) * 5)
    queue = f"PRIVATE={guid_of_board(store)}\\7"
    sent = []
    with Client(store) as client:
        for _ in range(CUTS + 1):
            sent += [client.send(queue, b"%d" % number, dead_letter=True) for number in range(len(sent), len(sent) + 5)]
            if len(sent) <= 5 * CUTS:
                board.cut()
                plant.cut()
        board.board.until(f"b'{len(sent) - 1}'")
        deadline = time.monotonic() + DEADLINE_S
        while any((state := client.state(one.message_id)) is None or state.answer != "received" for one in sent):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    handled = [
        (int(number), again == "True") for life in board.said(r"b'(\d+)'  (True|False)") for number, again in life
    ]
    assert sorted({number for number, _ in handled}) == list(range(len(sent)))
    for (before, _), (number, again) in itertools.pairwise(handled):
        assert number == before + 1 or (number == before and again), handled


def test_board_delivers_to_neighbour_across_power_cuts(boards: Boards, dice: random.Random) -> None:
    port = own_port()
    to_it = f"{LAN},hostfwd=tcp:127.0.0.1:{port}-:1801"
    receiver = Lives(boards, dice, "neighbour_receives.py", lines=("b'",), links=("-nic", to_it))
    sender = Lives(
        boards,
        dice,
        "neighbour_sends.py",
        ('"outbox", ', f'"outbox", connect=("{HOST}", {port}), '),
        ('b"open"', f'b"%d" % {NUMBER}'),
        ("ttrq=60, ttbr=60)", f"ttrq=3600, ttbr=3600)\n        print('kept', {NUMBER} - 1)"),
        lines=("kept", "received"),
    )
    for _ in range(CUTS):
        sender.cut()
        receiver.cut()
    sender.board.until("received")
    receiver.board.kill()
    lives = [[int(number) for number in life] for life in receiver.said(r"b'(\d+)'")]
    handled = [number for life in lives for number in life]
    assert sender.kept() <= set(handled)
    assert handled == sorted(handled)
    assert all(len(life) == len(set(life)) for life in lives), "again only where the power went before it was taken"
