"""The application on the board: sends readings, and keeps a ledger of its own of what the node accepted.

Runs on MicroPython, where a heap of 64 KiB is enough, and on CPython: `sensor.py config.json`, a JSON object with
    outbox                  folder of the node's outbox
    capacity                the outbox's bound, in bytes (the node's own if left out)
    queue                   format name of the queue where the readings go
    host, port              where the queue manager is found, on a network
    lan                     bring the network up first, by DHCP over Ethernet (false if left out)
    tls                     the link is over TLS: `authority`, `certificate` and `key` in hexadecimal, and `name`, for
                            which the queue manager's certificate has to be
    uart, baud, rxbuf       or the UART to the queue manager: its number, speed and bytes of receive buffer
    seed, count, max_size   readings 1 to `count`, bodies of 0 to `max_size` bytes (65536 if left out)
    ahead                   at most so many accepted readings that are not stored yet (64 if left out)
    keeps                   each reading whose number this divides stays in the outbox until it is received (none if 0)
    erasures                the outbox may be found erased, or put back from an old copy; the node gets no time then, as
                            on a board whose clock is at its epoch (false if left out)
    guid                    the node's GUID in hexadecimal, fixed (its own if left out)

Reading k has the label "reading k", and a body made from `seed` and `k`. The ledger `ledger.txt` has one line per
accepted reading, `k size crc32 MessageID`, written after `send()` returned. If the power goes between the two, the node
knows more than the ledger: after the restart the sensor asks the node for the last MessageID and adds the missing
line, with `found` at its end. If the outbox was erased, or is older than the ledger, the sensor goes on behind the last
reading in the ledger, and says with `base` behind which one its knowledge of what is stored begins anew.

Prints JSON lines, each with `campaign`, the identity that its configuration gives, for the rig counts no other lines,
and with `starts`: how often the application has started since it was deployed. They are {"event": "started", ...}
first, {"accepted": n, "stored": n} as the figures grow, {"event": "done"}
when all is stored, from then on every second, and {"event": "error", "reason": ...} before it gives up, and of a
reading that was refused; with `erasures` {"event": "failed", "message_id": ...} of one that was, or is in doubt. What
the node says of its outbox is in `damage` and `ahead` of all but these, how many sessions it has had in this life in
`sessions`; `full`: it has refused a reading in this life, which was sent again when there was room.
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
    """Body size of reading k in bytes: every power of two is as likely, one reading has exactly `max_size`, another
    exactly 0.
    """
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
    """The body of reading k: a block of 64 pseudo-random bytes over and over, with k and the offset every 256 bytes."""
    body = bytearray(size)
    fill(memoryview(body), seed, k)
    return body


def fill(body: memoryview, seed: int, k: int) -> None:
    """Make this the body of reading k."""
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
    """The last reading in the ledger and its MessageID, zeros if there is none. Cuts off a torn last line."""
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
    """Behind which reading the outbox began anew, and the last MessageID that it had given then; zeros: it did not."""
    try:
        with open(BASE, "rb") as file:
            base, last = file.read().split()
    except OSError:
        return 0, 0
    return int(base), int(last)


def append(path: str, line: bytes) -> None:
    """Append a line to a ledger, for good."""
    with open(path, "ab") as ledger:
        ledger.write(line)
        sync(ledger)


def sync(file: "Any") -> None:
    """Make durable what was written; a close does that on LittleFS and FAT only."""
    file.flush()  # which MicroPython takes for a sync
    if hasattr(os, "fsync"):
        os.fsync(file.fileno())


def without_torn_line(path: str) -> None:
    """Copy the whole lines of a ledger, and put the copy in its place."""
    with open(path, "rb") as ledger, open(path + ".new", "wb") as copy:
        for line in ledger:
            if line.endswith(b"\n"):
                copy.write(line)
        sync(copy)
    os.rename(path + ".new", path)


def say(**figures: object) -> None:
    """One JSON line on the board's output."""
    figures.update(ALWAYS)
    print(json.dumps(figures))


def begin(config: "dict[str, Any]") -> None:
    """Count this start. From now on each line says for which campaign it is, and how many starts there were."""
    append(STARTS, b".")
    ALWAYS["campaign"] = config.get("campaign", "")
    ALWAYS["starts"] = os.stat(STARTS)[6]


class Sensor:
    """The readings of one configuration, sent through `node` (an ordack.node.Node; `core` names the protocol core that
    it runs on).
    """

    def __init__(self, config: "dict[str, Any]", node: "Any", core: str) -> None:
        self.config = config
        self.node = node
        self.core = core
        self.accepted = 0
        self.base = 0
        self.full = False
        self.shown: "Any" = None
        # For all of them, at once: when the board has run for a while, its heap may have no piece as large as that.
        self.body = memoryview(bytearray(config.get("max_size", 65536)))

    def stored(self) -> int:
        """How many of the accepted readings are stored at the destination."""
        return self.accepted - int(self.node.waiting)

    def reading(self, k: int) -> memoryview:
        """The body of reading k, until another one is asked for."""
        seed = self.config["seed"]
        body = self.body[: size_of(seed, k, self.config["count"], len(self.body))]
        fill(body, seed, k)
        return body

    def note(self, k: int, body: memoryview, found: bool = False) -> None:
        """Append reading k, which was accepted last, to the ledger, for good."""
        append(LEDGER, line_of(k, body, self.node.last_message_id, found))

    def resume(self) -> None:
        """Make the ledger agree with the node. Raises ValueError if the node has forgotten, or has made up, an
        acceptance.
        """
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
        """What is shown when it has changed."""
        return self.accepted, self.stored(), self.full

    def show(self) -> None:
        """Print the figures if they have changed. Raises what has ended the node: nobody else would hear of it."""
        if self.node.error is not None:
            raise self.node.error
        figures = self.now()
        if figures != self.shown:
            self.shown = figures
            self.figures()

    def figures(self, **more: object) -> None:
        """Print how far it is, and what the node says of its outbox and its sessions."""
        damage, ahead, sessions = self.node.damage, self.node.outbox.ahead, self.node.stats.connects
        found = {"damage": damage, "ahead": ahead, "sessions": sessions, "full": self.full}
        say(accepted=self.accepted, stored=self.stored(), **found, **more)

    async def run(self) -> None:
        """Resume, send what is left, wait until all is stored. Raises ValueError as `resume`, and if MessageIDs are
        not in step; also what has ended the node.
        """
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
                gc.collect()  # not accepted: when others are stored, there is room
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
        """Say that all is done."""
        self.figures(event="done", core=self.core)


async def lan_up() -> None:
    """Bring the Ethernet of a board up; returns when it has an address."""
    import network  # type: ignore[import-not-found,unused-ignore]

    lan = network.LAN()
    lan.active(True)
    lan.ipconfig(dhcp4=True)
    while not lan.isconnected():
        await asyncio.sleep(POLL_S)


def failed(message: "Any") -> None:
    """Say that a reading will not be in the queue."""
    say(event="error", reason="refused, class 0x%04X" % message.conclusion().message_class)


def told(message: "Any") -> None:
    """Say that nobody knows whether a reading is in the queue, or that it is not."""
    say(event="failed", message_id=message.message_id)


def secured(host: str, port: int, tls: "dict[str, str]") -> "Any":
    """A link over TLS, with the files that it needs."""
    from ordack.node.tls import TlsLink

    files = ("authority", "certificate", "key")
    for name in files:
        with open(name, "wb") as file:
            file.write(binascii.unhexlify(tls[name]))
    return TlsLink(host, port, *files, tls["name"])


async def open_node(config: "dict[str, Any]") -> "Any":
    """The node that the configuration asks for, with its link."""
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
        sensor.finish()  # who listens to a port may have come late


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
