"""Emulated machines that end with their test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.emulated import MPS2, Machine, write_flash


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
    """Starts an MPS2; a flash is made for `main`, else the last one is used again."""

    def start(main: "str | None" = None, *more: str, folder: Path = MPS2, settings: str = "heap=64") -> Machine:
        flash = tmp_path / "flash"
        if main is not None:
            write_flash(flash, main)
        memory = f"memory-backend-file,id=psram,size=16M,mem-path={flash},share=on"
        return machines(
            *("qemu-system-arm", "-machine", "mps2-an385,memory-backend=psram", "-object", memory),
            *("-display", "none", "-monitor", "none", "-semihosting", "-kernel", folder / "firmware.elf"),
            *("-append", settings, "-serial", "stdio"),
            *more,
        )

    return start
