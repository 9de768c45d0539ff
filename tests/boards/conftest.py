"""Emulated machines that end with their test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import power  # noqa: F401 - it ends the jumps of numbers at a start, for all tests here, whichever of them run
import pytest

from hil.emulated import M3
from tests.support.emulated import Machine, write_flash
from tests.support.examples import Boards


@pytest.fixture
def machines() -> Iterator[Callable[..., Machine]]:
    """Starts machines, and ends those that the test has left on."""
    started: list[Machine] = []

    def start(*command: "str | Path") -> Machine:
        started.append(Machine(*command))
        return started[-1]

    yield start
    for machine in started:
        machine.kill()


@pytest.fixture
def mps2(machines: Callable[..., Machine], tmp_path: Path) -> Callable[..., Machine]:
    """Starts a board, a Cortex-M3; a flash is made for `main`, else the last one is used."""

    def start(
        main: "str | None" = None, *more: str, firmware: "Path | None" = None, settings: str = "heap=64"
    ) -> Machine:
        flash = tmp_path / "flash"
        if main is not None:
            write_flash(flash, main)
        return machines(*M3.command(flash, settings, firmware), "-serial", "stdio", *more)

    return start


@pytest.fixture
def boards(machines: Callable[..., Machine], tmp_path: Path) -> Boards:
    """Boards that run examples."""
    return Boards(machines, tmp_path)
