"""Which readings a board loses or repeats through power cuts, link cuts and kills of the server.

    python -m tests.bench.bench_loss [ROUNDS]

Beside ordack's node runs the MQTT client of MicroPython, in the same run. A sensor takes numbered readings. It notes
each number in a file before it hands the reading to its client, and goes on from there after a power cut. The program
with umqtt.simple connects and publishes again what was not acknowledged, as the page of umqtt.simple says; the program
with a node asks the node whether the last reading was accepted. Both go through the same proxy, which cuts the link at
bytes that a seed has planned.
"""

from __future__ import annotations

import asyncio
import io
import json
import random
import re
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ordack.client import Client

from hil.faults import CutSchedule, TcpFaultProxy, plan_cuts
from tests import on_mps2
from tests.conformance import ROOT
from tests.support.command import Serve, own_port
from tests.support.command import ordack as command

if TYPE_CHECKING:
    import paho.mqtt.client as mqtt

FIGURE = re.compile(r"^(\w+) (-?[\d.]+)\r?$", re.MULTILINE)
MICROPYTHON = ROOT / "build" / "micropython" / "unix-c" / "micropython"
PEERS = ROOT / "build" / "bench"
QUEUE = "bench"
READINGS = 1000
UNDISTURBED = 250
CUTS = 25
POWER_CUTS = 25
SERVER_KILLS = 3
SEED = 15
PATIENCE_S = 120
POLL_S = 0.001
# How both programs begin: `number` is the reading that was taken last, `behind` what was noted with it.
NOTES = """
import gc, sys, time
folder, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
try:
    with open(folder + "/taken") as file:
        number, behind = [int(word) for word in file.read().split()[-2:]]
except (OSError, ValueError):
    number = behind = 0
taken = open(folder + "/taken", "a")
def note(what):
    taken.write("%d %d\\n" % (number, what))
    taken.flush()
gc.collect()
before = gc.mem_alloc()
"""

OURS = """
from ordack.node import Node
node = Node(folder + "/outbox", connect=("127.0.0.1", port), capacity=1 << 24)
queue = node.queue("DIRECT=TCP:127.0.0.1\\\\private$\\\\bench")
if number and node.last_message_id == behind:
    queue.put(b"%064d" % number)  # the power failed before it was accepted
gc.collect()
print("memory", gc.mem_alloc() - before)
begin = time.ticks_us()
while number < count:
    number += 1
    note(node.last_message_id)
    queue.put(b"%064d" % number)
    node.poll()
while node.waiting:
    node.wait(lambda: not node.waiting, 1000)
print("seconds", time.ticks_diff(time.ticks_us(), begin) / 1000000)
"""

UMQTT = """
from umqtt.simple import MQTTClient
client = MQTTClient("sensor", "127.0.0.1", port)
BROKEN = (OSError, AssertionError, IndexError)  # the last two: the connection ended within an answer
def connect():
    while True:
        try:
            return client.connect(clean_session=False)
        except BROKEN:
            time.sleep_ms(20)
def publish():
    while True:
        try:
            return client.publish(b"bench", b"%064d" % number, qos=1)
        except BROKEN:
            connect()
connect()
if number:
    publish()  # the power failed, perhaps before it was acknowledged
gc.collect()
print("memory", gc.mem_alloc() - before)
begin = time.ticks_us()
while number < count:
    number += 1
    note(0)
    publish()
print("seconds", time.ticks_diff(time.ticks_us(), begin) / 1000000)
"""


def umqtt_simple() -> Path:
    """A folder with umqtt.simple as it is on the package index. It has no set-up file, so pip only fetches it."""
    folder = PEERS / "umqtt.simple"
    if not (folder / "umqtt" / "simple.py").exists():
        from pip._internal.commands import create_command

        command = create_command("download")
        options, _ = command.parse_args(["--no-deps", "--quiet", "micropython-umqtt.simple"])
        with command.main_context():
            session = command.get_default_session(options)  # type: ignore[attr-defined]
            finder = command._build_package_finder(options, session)  # type: ignore[attr-defined]
            best = finder.find_best_candidate("micropython-umqtt.simple").best_candidate
            if best is None:
                raise RuntimeError("umqtt.simple is not on the package index that pip uses")
            answer = session.get(best.link.url_without_fragment)
        answer.raise_for_status()
        with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
            member = next(member for member in archive.getmembers() if member.name.endswith("umqtt/simple.py"))
            content = archive.extractfile(member)
            assert content is not None
            (folder / "umqtt").mkdir(parents=True, exist_ok=True)
            (folder / "umqtt" / "simple.py").write_bytes(content.read())
    return folder


class QueueManager:
    """`ordack serve`, whose queue is read at the end."""

    name = "ordack's node and ordack serve"
    reading = 250  # bytes that it takes on its way up, at least
    program = NOTES + OURS

    def __init__(self, folder: Path) -> None:
        self.path = f".frozen:{on_mps2.board()}"
        self.port = own_port()
        self._store = folder / "store"
        command("init", "--store", str(self._store))
        command("queue", "create", "--store", str(self._store), QUEUE, "--transactional")

    def start(self) -> None:
        """Start it, again at the same port."""
        self._serve = Serve(self._store, listen=f"127.0.0.1:{self.port}")

    def kill(self) -> None:
        """As a power cut of its machine."""
        self._serve.process.kill()
        self._serve.process.wait()

    async def received(self, _: int) -> Counter[int]:
        """How often each number is in the queue. Nothing runs any more."""
        self._serve.stop()
        with Client(self._store) as client:
            return Counter(int(message.body) for message in client.queue(QUEUE).peek())


class Broker:
    """mosquitto as shipped, and a subscriber at QoS 2 whose session it keeps."""

    name = "umqtt.simple at QoS 1 and mosquitto as shipped"
    reading = 70
    program = NOTES + UMQTT

    def __init__(self, folder: Path) -> None:
        self.path = f".frozen:{umqtt_simple()}"
        self.port = own_port()
        self._heard: Counter[int] = Counter()
        self._settings = folder / "mosquitto.conf"
        kept = f"persistence true\npersistence_location {folder}/\nuser root\n"
        self._settings.write_text(f"listener {self.port} 127.0.0.1\nallow_anonymous true\n{kept}")
        self._subscribed = threading.Event()
        self._subscriber: mqtt.Client | None = None

    def start(self) -> None:
        """Start it; the subscriber is there before anything is published."""
        self._subscribed.clear()
        self._process = subprocess.Popen(
            ["/usr/sbin/mosquitto", "-c", self._settings], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        if not self._subscriber:
            import paho.mqtt.client as mqtt  # not before the bench runs

            client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, "subscriber", clean_session=False)  # type: ignore[attr-defined]
            client.reconnect_delay_set(1, 1)
            client.on_connect = lambda client, *_: client.subscribe("bench", 2)
            client.on_subscribe = lambda *_: self._subscribed.set()
            client.on_message = lambda _client, _data, message: self._heard.update([int(message.payload)])
            client.connect_async("127.0.0.1", self.port)
            client.loop_start()
            self._subscriber = client
        assert self._subscribed.wait(PATIENCE_S)

    def kill(self) -> None:
        """As a power cut of its machine."""
        self._process.kill()
        self._process.wait()

    async def received(self, last: int) -> Counter[int]:
        """How often each number was heard, when the last one has been."""
        async with asyncio.timeout(PATIENCE_S):
            while last not in self._heard:
                await asyncio.sleep(POLL_S)
        assert self._subscriber
        self._subscriber.loop_stop()
        self._process.terminate()
        self._process.wait()
        return self._heard


async def campaign(server: QueueManager | Broker, folder: Path, count: int, cuts: int, power: int, kills: int) -> Any:
    """(how often each reading came, what the program printed in its lives): with so many cuts of the link, power cuts
    of the board and kills of the server, which fall at readings that SEED has chosen.
    """
    server.start()
    schedule = CutSchedule(plan_cuts(SEED, cuts, count * server.reading, power + kills))
    proxy = TcpFaultProxy(schedule)
    await proxy.open(("127.0.0.1", server.port))
    script = folder / "sensor.py"
    script.write_text(server.program)
    words = [str(MICROPYTHON), "-X", "heapsize=8M", str(script), str(folder), str(proxy.address[1]), str(count)]
    rng = random.Random(SEED)
    turns = ["board"] * power + ["server"] * kills
    due = sorted(zip((rng.randint(1, count - 1) for _ in turns), rng.sample(turns, len(turns)), strict=True))
    taken = folder / "taken"
    output = ""

    async def start() -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *words, env={"MICROPYPATH": server.path}, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def lines() -> int:
        return taken.read_bytes().count(b"\n") if taken.exists() else 0

    board = await start()
    for at, which in due:
        async with asyncio.timeout(PATIENCE_S):
            while lines() < at:
                assert board.returncode is None, output + (await board.communicate())[0].decode()
                await asyncio.sleep(POLL_S)
        await asyncio.sleep(rng.uniform(0, 0.01))
        if which == "board":
            board.kill()
            output += (await board.communicate())[0].decode()
            board = await start()
        else:
            server.kill()
            await asyncio.to_thread(server.start)
    async with asyncio.timeout(PATIENCE_S):
        output += (await board.communicate())[0].decode()
    assert board.returncode == 0, output
    received = await server.received(count)
    await proxy.close()
    assert len(schedule.made) == cuts, f"{len(schedule.made)} of {cuts} cuts were made"
    return received, {
        name: [float(v) for n, v in FIGURE.findall(output) if n == name] for name in ("memory", "seconds")
    }


def loss(report: Callable[..., None], rounds: int) -> None:
    """Both systems: undisturbed in interleaved rounds, then once through all faults. The guarantees stand beside."""
    kinds: tuple[type[QueueManager] | type[Broker], ...] = (Broker, QueueManager)
    rates: dict[str, list[float]] = {kind.name: [] for kind in kinds}
    memory: dict[str, float] = {}
    for kind in kinds * rounds:
        with tempfile.TemporaryDirectory(prefix="ordack-bench-") as name:
            _, figures = asyncio.run(campaign(kind(Path(name)), Path(name), UNDISTURBED, 0, 0, 0))
            rates[kind.name].append(UNDISTURBED / figures["seconds"][0])
            memory[kind.name] = figures["memory"][0]
    guarantee = {
        Broker.name: "at least once while the board and the broker run",
        QueueManager.name: "exactly once, in order, or the sender is told",
    }
    for kind in kinds:
        with tempfile.TemporaryDirectory(prefix="ordack-bench-") as name:
            received, _ = asyncio.run(campaign(kind(Path(name)), Path(name), READINGS, CUTS, POWER_CUTS, SERVER_KILLS))
        report(
            bench=f"{READINGS} readings, {CUTS} link cuts, {POWER_CUTS} power cuts, {SERVER_KILLS} kills of the server",
            system=kind.name, guarantee=guarantee[kind.name], seed=SEED,
            lost=sum(not received[number] for number in range(1, READINGS + 1)),
            repeated=sum(received[number] > 1 for number in range(1, READINGS + 1)),
            readings_per_second=round(statistics.median(rates[kind.name])), heap_bytes_64_bit=memory[kind.name],
        )  # fmt: skip


if __name__ == "__main__":
    loss(lambda **values: print(json.dumps(values), flush=True), int((sys.argv[1:] or ["1"])[0]))
