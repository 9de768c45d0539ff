"""The programs of firmware/examples on a Cortex-M3 in QEMU: flash, clock, network, UART, watchdog and resets are the
machine's own. What it has not, a sensor, a timer and a radio, stands in two modules beside them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ordack.client import Client

from hil.emulated import HOST, M3, MPS2_PSRAM_SIZE, mps2_flash
from tests.support.command import DEADLINE_S, ROOT
from tests.support.emulated import Machine

EXAMPLES = ROOT / "firmware" / "examples"
PLANT = "192.168.1.20"  # of the examples
HEAP_KIB = 160  # a Pico W has 185; fast.py takes 50 for its batch
SENSOR = """
import os
from umachine import *

LIFE = 1  # so often it was switched on
if "life" in os.listdir():
    with open("life") as file:
        LIFE += int(file.read())
with open("life", "w") as file:
    file.write(str(LIFE))

class ADC:
    def __init__(self, pin):
        pass

    def read_u16(self):
        return 14022

class Timer:  # what an interrupt does, in a task: between two steps of the program
    def __init__(self, number, period, callback):
        import asyncio

        async def call():
            while True:
                callback(self)
                await asyncio.sleep_ms(period)

        asyncio.create_task(call())
"""
RADIO = """
STA_IF = 0

class WLAN:
    PM_NONE = 0
    tries = 0

    def __init__(self, kind):
        pass

    def isconnected(self):
        self.tries += 1
        return self.tries > 3

    def ifconfig(self):
        return ("10.0.0.9", "255.255.255.0", "10.0.0.1", "10.0.0.1")

    def config(self, pm):
        assert pm == self.PM_NONE

    def status(self):
        return 1

    def active(self, on):
        pass

    def connect(self, ssid, password):
        assert (ssid, password) == ("NETWORK", "PASSWORD")
"""
STARTS = "starts"
MAIN = f"""
import network, sys, time
lan = network.LAN()
lan.active(True)
while not lan.isconnected():
    time.sleep_ms(10)
import radio
sys.modules["network"] = radio
print("{STARTS}")
import example
"""
LAN = "user,model=lan9118"


class Boards:
    """Boards that run examples, each with a flash of its own."""

    def __init__(self, machines: Callable[..., Machine], folder: Path) -> None:
        self._machines = machines
        self._folder = folder

    def run(self, name: str, *changes: tuple[str, str], links: tuple[str, ...] = ("-nic", LAN), **more: str) -> Machine:
        """Switches a board on with an example, some of whose text is changed; more: files beside it."""
        program = (EXAMPLES / name).read_text()
        for there, here in changes:
            assert there in program
            program = program.replace(there, here)
        files = {"main": MAIN, "machine": SENSOR, "radio": RADIO, "example": program, **more}
        flash = self._flash(name)
        mps2_flash(flash).create({f"{file}.py": text.encode() for file, text in files.items()}, MPS2_PSRAM_SIZE)
        return self.again(name, links)

    def again(self, name: str, links: tuple[str, ...] = ("-nic", LAN)) -> Machine:
        """Switches that board on again, with what was on its flash when it went off."""
        return self._machines(*M3.command(self._flash(name), f"heap={HEAP_KIB}"), "-serial", "stdio", *links)

    def _flash(self, name: str) -> Path:
        return self._folder / f"{name.replace('/', '-')}.flash"


def to(port: int, host: str = PLANT) -> tuple[str, str]:
    """What leads an example to this machine."""
    return f'"{host}", 1801', f'"{HOST}", {port}'


def line_at(port: int) -> tuple[str, ...]:
    """UART 1, at this port of this machine."""
    return "-chardev", f"socket,id=uart1,host=127.0.0.1,port={port},server=on,wait=off", *M3.line


def guid_of_board(store: Path) -> str:
    """Of the only one that is connected."""
    deadline = time.monotonic() + DEADLINE_S
    with Client(store) as client:
        while time.monotonic() < deadline:
            for session in (client.store.status() or {}).get("sessions", []):
                if session["state"] == "OPEN":
                    return str(session["guid"])[1:-1]
            time.sleep(0.05)
    raise AssertionError("no board is connected")
