"""The serial ports of real boards: found by what describes them, and claimed."""

import copy
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pyudev
from labgrid.resource import NetworkSerialPort, Resource
from labgrid.resource.udev import USBResource
from ordack.boards.claim import Claim
from ordack.boards.repl import NoBoard

from hil.boards import BoardMissing

PORT_DEADLINE_S: Final = 15.0


def identity(port: Resource) -> str:
    """What tells this port from others, wherever it is plugged in."""
    if isinstance(port, USBResource):
        match = {key: value for key, value in port.match.items() if not key.endswith("SUBSYSTEM")}
        return ", ".join(f"{key} {match[key]}" for key in sorted(match))
    return f"{port.host}:{port.port}" if isinstance(port, NetworkSerialPort) else str(port.port)


def aliases(port: Resource) -> list[str]:
    """By what else a file of boards may describe a USB port that is there."""
    found = getattr(port, "device", None)
    properties = found.properties if found is not None else {}
    return [f"{key} {properties[key]}" for key in ("ID_SERIAL_SHORT", "ID_PATH") if properties.get(key)]


def claimed(claim: Claim, names: Iterable[str]) -> None:
    """Claim these names, too. Raises BoardMissing."""
    try:
        claim.add(names)
    except NoBoard as error:
        raise BoardMissing(str(error)) from None


def devices(port: USBResource) -> list[str]:
    """Every serial port of this machine that fits the match of this resource, not only the first one."""
    probe, found = copy.copy(port), []
    for device in pyudev.Context().list_devices(subsystem="tty"):
        probe.device, probe.avail = None, False
        if probe.try_match(device):
            found.append(device.device_node)
    return found


def url(port: Resource, deadline_s: float = PORT_DEADLINE_S, stop: threading.Event | None = None) -> str:
    """Where pyserial finds a port, as soon as it is there; empty if it is not there when `stop` is set. Raises
    BoardMissing if it is not by the deadline, or if two ports of this machine fit what describes it.
    """
    if isinstance(port, NetworkSerialPort):
        kind, settings = ("rfc2217", "?ign_set_control") if port.protocol == "rfc2217" else ("socket", "")
        return f"{kind}://{port.host}:{port.port}{settings}"
    end = time.monotonic() + deadline_s
    while True:
        port.poll()
        if port.avail and port.port and Path(port.port).exists():
            break
        if stop is not None and stop.is_set():
            return ""
        if time.monotonic() >= end:
            raise BoardMissing(f"board {port.target.name}: no port {identity(port)} within {deadline_s:g} s")
        time.sleep(0.02)
    if isinstance(port, USBResource) and len(found := devices(port)) > 1:
        shown = ", ".join(sorted(found))
        raise BoardMissing(f"board {port.target.name}: {len(found)} ports have {identity(port)}: {shown}")
    return str(port.port)
