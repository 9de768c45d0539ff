"""The application on the board: sends readings, and keeps its own ledger of the readings that the node accepted.

It runs on MicroPython, where a heap of 64 KiB is enough, and on CPython: `sensor.py config.json`, a JSON object with
    outbox                  folder of the node's outbox
    capacity                the outbox's limit, in bytes (default: the node's)
    queue                   format name of the queue for the readings
    host, port              address of the queue manager on a network
    lan                     start the network first, by DHCP over Ethernet (default: false)
    tls                     use TLS: `authority`, `certificate` and `key` in hexadecimal, and `name`, the name in the
                            queue manager's certificate
    uart, baud, rxbuf       or the UART to the queue manager: its number, speed and bytes of receive buffer
    seed, count, max_size   readings 1 to `count`, bodies of 0 to `max_size` bytes (default: 65536)
    ahead                   maximum of accepted readings not stored yet (default: 64)
    keeps                   readings whose number is a multiple of this stay in the outbox until received (0: none)
    erasures                the outbox may be erased or restored from an old copy; the node gets no time then, as on
                            a board whose clock is at its epoch (default: false)
    guid                    the node's fixed GUID in hexadecimal (default: its own)

Reading k has the label "reading k", and a body made from `seed` and `k`. The ledger `ledger.txt` has one line per
accepted reading, `k size crc32 MessageID`, written after `send()` returned. A power cut between the two leaves the
ledger behind the node. After the restart the sensor asks the node for the last MessageID and adds the missing line,
ending in `found`. If the outbox was erased, or is older than the ledger, the sensor continues after the ledger's last
reading. `base` then names the reading behind which its knowledge of stored readings begins anew.

Prints JSON lines, each with `campaign`, the identity from the configuration (the rig ignores other lines), and
`starts`, the number of starts since the deployment. Events: {"event": "started", ...} first, {"accepted": n, "stored":
n} as the figures grow, {"event": "done"} every second once all is stored, {"event": "error", "reason": ...} before a
fatal end, and for a refused reading; with `erasures` {"event": "failed", "message_id": ...} for a reading refused or in
doubt. All but these have the node's `damage` and `ahead`, its `sessions` in this life, and `full`: it has refused a
reading in this life, which was sent again when there was room.
"""

import asyncio
import binascii
import gc
import json
import os
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LEDGER = "ledger.txt"
BASE = "base.txt"
STARTS = "starts.txt"
POLL_S = 0.005
ALWAYS: "dict[str, Any]" = {}
"""In each line on the board's output."""


def mix(seed: int, k: int) -> int:
    """A 32-bit number, never 0, from `seed` and `k`: neighbours differ in about half of the bits."""
    x = (seed * 0x9E3779B1 + k * 0x85EBCA77 + 0xC2B2AE3D) & 0xFFFFFFFF
    for _ in range(4):
        x = step(x or 1)
    return x


def step(x: int) -> int:
    """The 32-bit xorshift generator's next state (Marsaglia's 13, 17, 5)."""
    x ^= (x << 13) & 0xFFFFFFFF
    x ^= x >> 17
    return x ^ ((x << 5) & 0xFFFFFFFF)


def size_of(seed: int, k: int, count: int, max_size: int = 65536) -> int:
    """Body size of reading k in bytes: every power of two is equally likely. One reading has exactly `max_size`,
    another exactly 0."""
    if k == 1 + seed % count:
        return max_size
    if k == 1 + (seed + count // 2) % count:
        return 0
    octaves = 0
    while 1 << octaves < max_size:
        octaves += 1
    if not octaves:
        return max_size
    x = mix(seed, k)
    low = 1 << x % octaves
    return min(max_size, low + (x >> 5) % low)


def body_of(seed: int, k: int, size: int) -> bytearray:
    """The body of reading k: a repeated block of 64 pseudo-random bytes, with k and the offset every 256 bytes."""
    body = bytearray(size)
    fill(memoryview(body), seed, k)
    return body


def fill(body: memoryview, seed: int, k: int) -> None:
    """Fill the buffer with the body of reading k."""
    x = mix(seed ^ 0x5BD1E995, k)
    block = bytearray(64)
    for offset in range(0, 64, 4):
        struct.pack_into("<I", block, offset, x)
        x = step(x)
    size = len(body)
    for offset in range(0, size, 64):
        body[offset : offset + 64] = block[: size - offset]
    for offset in range(0, size - 7, 256):
        struct.pack_into("<II", body, offset, k, offset)


def line_of(k: int, body: "bytes | bytearray | memoryview", message_id: int, found: bool = False) -> bytes:
    """The ledger's line of one accepted reading."""
    return ("%d %d %08x %d%s\n" % (k, len(body), binascii.crc32(body), message_id, " found" if found else "")).encode()


def last_noted(path: str) -> "tuple[int, int]":
    """The last reading in the ledger and its MessageID, or zeros. Cuts off a torn last line."""
    last = b""
    try:
        with open(path, "rb") as ledger:
            for line in ledger:
                if line.endswith(b"\n"):
                    last = line
                else:
                    without_torn_line(path)
    except OSError:
        return 0, 0
    if not last:
        return 0, 0
    words = last.split()
    return int(words[0]), int(words[3])


def last_base() -> "tuple[int, int]":
    """The reading behind which the outbox began anew, and the outbox's last MessageID then; zeros if none."""
    try:
        with open(BASE, "rb") as file:
            base, last = file.read().split()
    except OSError:
        return 0, 0
    return int(base), int(last)


def append(path: str, line: bytes) -> None:
    """Append a line to a ledger durably."""
    with open(path, "ab") as ledger:
        ledger.write(line)
        sync(ledger)


def sync(file: "Any") -> None:
    """Make a file durable; closing it does so on LittleFS and FAT only."""
    file.flush()  # MicroPython treats this as a sync
    if hasattr(os, "fsync"):
        os.fsync(file.fileno())


def without_torn_line(path: str) -> None:
    """Replace a ledger by a copy of its whole lines."""
    with open(path, "rb") as ledger, open(path + ".new", "wb") as copy:
        for line in ledger:
            if line.endswith(b"\n"):
                copy.write(line)
        sync(copy)
    os.rename(path + ".new", path)


def say(**figures: object) -> None:
    """Print one JSON line."""
    figures.update(ALWAYS)
    print(json.dumps(figures))


def begin(config: "dict[str, Any]") -> None:
    """Count this start. Each later line names the campaign and the number of starts."""
    append(STARTS, b".")
    ALWAYS["campaign"] = config.get("campaign", "")
    ALWAYS["starts"] = os.stat(STARTS)[6]


class Sensor:
    """The readings of one configuration, sent through `node` (an ordack.node.Node). core: name of the node's protocol
    core."""

    def __init__(self, config: "dict[str, Any]", node: "Any", core: str) -> None:
        self.config = config
        self.node = node
        self.core = core
        self.accepted = 0
        self.base = 0
        self.full = False
        self.shown: "Any" = None
        # Allocated once for all bodies: later the heap may have no free block of this size.
        self.body = memoryview(bytearray(config.get("max_size", 65536)))

    def stored(self) -> int:
        """The number of accepted readings that the destination has stored."""
        return self.accepted - int(self.node.waiting)

    def reading(self, k: int) -> memoryview:
        """The body of reading k, valid until the next call."""
        seed = self.config["seed"]
        body = self.body[: size_of(seed, k, self.config["count"], len(self.body))]
        fill(body, seed, k)
        return body

    def note(self, k: int, body: memoryview, found: bool = False) -> None:
        """Append reading k, the last one accepted, to the ledger durably."""
        append(LEDGER, line_of(k, body, self.node.last_message_id, found))

    def resume(self) -> None:
        """Make the ledger agree with the node. Raises ValueError if the node forgot or invented an acceptance."""
        self.accepted, noted = last_noted(LEDGER)
        last = self.node.last_message_id
        found = False
        if self.config.get("erasures"):
            self.base, begun = last_base()
            if self.base == self.accepted:
                noted = begun  # nothing since
            if not last or 0 < (noted - last) & 0xFFFFFFFF < 0x80000000:
                self.base, noted = self.accepted, last
                with open(BASE, "wb") as file:
                    file.write(b"%d %d" % (self.base, last))
                    sync(file)
        if last != noted:
            found = (last - noted) & 0xFFFFFFFF < 0x80000000 and last != 0
            if not found:
                raise ValueError(
                    "the ledger ends at reading %d, MessageID %d, but the node's last is %d"
                    % (self.accepted, noted, last)
                )
            self.accepted += 1
            self.note(self.accepted, self.reading(self.accepted), True)
        self.shown = self.now()
        self.figures(event="started", found=found, base=self.base, core=self.core)

    def now(self) -> "tuple[object, ...]":
        """The figures to print when they change."""
        return self.accepted, self.stored(), self.full

    def show(self) -> None:
        """Print the figures if they have changed. Raises the node's fatal error, which nobody else would report."""
        if self.node.error is not None:
            raise self.node.error
        figures = self.now()
        if figures != self.shown:
            self.shown = figures
            self.figures()

    def figures(self, **more: object) -> None:
        """Print the progress, and the node's reports on its outbox and its sessions."""
        damage, ahead, sessions = self.node.damage, self.node.outbox.ahead, self.node.stats.connects
        found = {"damage": damage, "ahead": ahead, "sessions": sessions, "full": self.full}
        say(accepted=self.accepted, stored=self.stored(), **found, **more)

    async def run(self) -> None:
        """Resume, send the remaining readings, wait until all are stored. Raises ValueError as `resume`, and for
        MessageIDs out of step; also the node's fatal error."""
        from ordack.node import OutboxFull

        config = self.config
        keeps = config.get("keeps", 0)
        self.resume()
        queue = self.node.queue(config["queue"])
        while self.accepted < config["count"]:
            while self.accepted - self.stored() >= config.get("ahead", 64):
                await asyncio.sleep(POLL_S)
                self.show()
            k = self.accepted + 1
            message_id = self.node.next_message_id
            try:
                body = self.reading(k)
                await queue.send(body, label="reading %d" % k, journal=keeps > 0 and k % keeps == 0)
            except (MemoryError, OutboxFull) as error:
                if self.node.next_message_id != message_id:
                    raise
                self.full = self.full or isinstance(error, OutboxFull)
                gc.collect()  # not accepted: there is room when others are stored
                await asyncio.sleep(POLL_S)
                self.show()
                continue
            self.note(k, body)
            self.accepted = k
            if self.node.last_message_id != message_id:
                raise ValueError(
                    "reading %d was accepted as MessageID %d, but the last is %d"
                    % (k, message_id, self.node.last_message_id)
                )
            self.show()
        while self.stored() < config["count"]:
            await asyncio.sleep(POLL_S)
            self.show()
        self.finish()

    def finish(self) -> None:
        """Report that all is done."""
        self.figures(event="done", core=self.core)


async def lan_up() -> None:
    """Start the board's Ethernet; returns when it has an address."""
    import network  # type: ignore[import-not-found,unused-ignore]

    lan = network.LAN()
    lan.active(True)
    lan.ipconfig(dhcp4=True)
    while not lan.isconnected():
        await asyncio.sleep(POLL_S)


def failed(message: "Any") -> None:
    """Report that a reading will not be in the queue."""
    say(event="error", reason="refused, class 0x%04X" % message.conclusion().message_class)


def told(message: "Any") -> None:
    """Report that a reading is not in the queue, or in doubt."""
    say(event="failed", message_id=message.message_id)


def secured(host: str, port: int, tls: "dict[str, str]") -> "Any":
    """A TLS link with its files."""
    from ordack.node.tls import TlsLink

    files = ("authority", "certificate", "key")
    for name in files:
        with open(name, "wb") as file:
            file.write(binascii.unhexlify(tls[name]))
    return TlsLink(host, port, *files, tls["name"])


async def open_node(config: "dict[str, Any]") -> "Any":
    """The configured node, with its link."""
    from ordack.node import Node

    connect: Any
    if "uart" in config:
        from machine import UART  # type: ignore[import-not-found,unused-ignore]
        from ordack.node.uart import UartLink  # type: ignore[import-not-found,unused-ignore]

        rxbuf = config["rxbuf"]
        connect = UartLink(UART(config["uart"], config["baud"], rxbuf=rxbuf), rxbuf)
    else:
        connect = (config["host"], config["port"])
        if config.get("lan"):
            await lan_up()
        if config.get("tls"):
            connect = secured(config["host"], config["port"], config["tls"])
    bounds: "dict[str, Any]" = {name: config[name] for name in ("capacity",) if name in config}
    tell = failed
    if config.get("erasures"):
        tell = told
        bounds["clock"] = lambda: 0
    if config.get("guid"):
        bounds["guid"] = binascii.unhexlify(config["guid"])
    return Node(config["outbox"], connect=connect, on_failed=tell, **bounds)


async def main(path: str) -> None:
    """Run the sensor of the configuration file at `path`, and idle when it is done."""
    from mqqb import core

    with open(path) as file:
        config = json.load(file)
    begin(config)
    node = await open_node(config)
    sensor = Sensor(config, node, core.implementation)
    node.start()
    try:
        await sensor.run()
    except Exception as error:
        say(event="error", reason=str(error) or repr(error))
        raise
    while True:
        await asyncio.sleep(1)
        sensor.finish()  # for late listeners on a port


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
