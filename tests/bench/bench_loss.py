"""What a board loses: readings through power cuts, link cuts and kills of the server, with ordack's node and with the
MQTT client that MicroPython has, in the same run.

    [MQTT_AS_DIR=FOLDER] .venv/bin/python -m tests.bench.bench loss

With mqtt_as too, if MQTT_AS_DIR names the folder that has mqtt_as.py, or the package mqtt_as, in it, which no package
index that pip uses has; or with what was made of it, mqtt_async.py, of `pip download --no-deps micropython-mqtt`.

A sensor takes numbered readings. Before it hands one to its client it notes the number in a file, which survives;
after a power cut it goes on from there. Each program does what the page of its client says: the one with umqtt.simple
connects again and publishes again what was not acknowledged; mqtt_as does that by itself, but after a power cut; the
one with a node asks it whether the last reading counted. All go through the same proxy, which cuts the link at bytes
that a seed has planned.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

from ordack.client import Client

from hil.faults import CutSchedule, TcpFaultProxy, plan_cuts
from tests import on_mps2
from tests.bench.bench_board import FIGURE, MICROPYTHON, QUEUE, umqtt_simple
from tests.conformance import ROOT
from tests.support.command import Serve, own_port
from tests.support.command import ordack as command

if TYPE_CHECKING:
    import paho.mqtt.client as mqtt

READINGS = 4000
UNDISTURBED = 1000
CUTS = 100
POWER_CUTS = 100
SERVER_KILLS = 10
SEED = 15
PATIENCE_S = 120
POLL_S = 0.001
WEAR = """
import sys
sys.path.insert(0, "tests/mp")
import wear, flash
print("bytes", wear.measure(flash.LITTLEFS_256, 1, packet_size=200)[0])
"""

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

# All readings of a client of MQTT, when it is connected.
PUBLISHED = """gc.collect()
print("memory", gc.mem_alloc() - before)
begin = time.ticks_us()
while number < count:
    number += 1
    note(0)
    PUBLISH
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
"""
UMQTT += PUBLISHED.replace("PUBLISH", "publish()")

# On a host there is no radio, so one stands here that is always connected; the seconds for which mqtt_as waits until it
# is stable are hundredths. mqtt_async has the same interface; it gets a log, for the one that it makes itself raises.
MQTT_AS = """
class Radio:
    def __getattr__(self, name):
        return lambda *arguments, **options: True
class Module:
    STA_IF = STAT_CONNECTING = 0
    def WLAN(*_):
        return Radio()
    def unique_id():
        return b"sensor"
    def getLogger(_):
        return Radio()
sys.modules["network"] = sys.modules["machine"] = sys.modules["logging"] = Module
import asyncio
asyncio.sleep = lambda seconds: asyncio.sleep_ms(int(seconds * 10))
sys.modules["uasyncio"] = asyncio
try:
    import mqtt_as
except ImportError:
    import mqtt_async as mqtt_as
    async def open_connection(_):  # in place of its own, which takes an address apart that here is bytes
        return (await asyncio.open_connection("127.0.0.1", port))[0]
    mqtt_as.open_connection = open_connection
settings = {"server": "127.0.0.1", "port": port, "client_id": "sensor", "clean": False, "ssid": "lab", "wifi_pw": ""}
for name in settings:
    mqtt_as.config[name] = settings[name]
async def main():
    global number
    client = mqtt_as.MQTTClient(mqtt_as.config)
    while True:
        try:
            await client.connect()
            break
        except OSError:
            await asyncio.sleep_ms(20)
    if number:
        await client.publish("bench", b"%064d" % number, qos=1)  # the power failed, perhaps before it was acknowledged
"""
MQTT_AS += indent(PUBLISHED.replace("PUBLISH", 'await client.publish("bench", b"%064d" % number, qos=1)'), "    ")
MQTT_AS += "asyncio.run(main())\n"


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
        self.path = f".frozen:{self.client()}"
        self.port = own_port()
        self._heard: Counter[int] = Counter()
        self._settings = folder / "mosquitto.conf"
        kept = f"persistence true\npersistence_location {folder}/\nuser root\n"
        self._settings.write_text(f"listener {self.port} 127.0.0.1\nallow_anonymous true\n{kept}")
        self._subscribed = threading.Event()
        self._subscriber: mqtt.Client | None = None

    def client(self) -> Path:
        """The folder with the client's modules."""
        return umqtt_simple()

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


class OtherClient(Broker):
    """The same with mqtt_as, or with mqtt_async."""

    name = "mqtt_as at QoS 1 and mosquitto as shipped"
    program = NOTES + MQTT_AS

    def client(self) -> Path:
        return Path(os.environ["MQTT_AS_DIR"]).resolve()


def mqtt_as() -> list[str]:
    """The files of mqtt_as in MQTT_AS_DIR, which has to have it; none: there is no MQTT_AS_DIR."""
    folder = os.environ.get("MQTT_AS_DIR")
    if not folder:
        return []
    for pattern in ("mqtt_as.py", "mqtt_as/*.py", "mqtt_async.py"):
        if found := sorted(Path(folder).glob(pattern)):
            return [str(path.relative_to(folder)) for path in found]
    sys.exit(
        f"MQTT_AS_DIR={folder} has neither mqtt_as.py, mqtt_as/__init__.py nor mqtt_async.py: name the folder with one"
    )


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


def code_bytes(folder: Path, names: list[str]) -> int:
    """Bytes of modules as mpy-cross compiles them."""
    total = 0
    with tempfile.NamedTemporaryFile(suffix=".mpy") as compiled:
        for name in names:
            cross = ROOT / "build" / "micropython" / "mpy-cross" / "mpy-cross"
            subprocess.run([cross, "-o", compiled.name, folder / name], check=True)
            total += Path(compiled.name).stat().st_size
    return total


def loaded(path: str) -> list[str]:
    """The modules of the board's form of the checkout that a program with a node has loaded."""
    program = (
        "import sys\nfrom ordack import node\n"
        "print(*[getattr(module, '__file__', '') for module in sys.modules.values()])"
    )
    result = subprocess.run(
        [MICROPYTHON, "-c", program], env={"MICROPYPATH": path}, capture_output=True, text=True, check=True
    )
    return [name for name in result.stdout.split() if name.startswith(str(on_mps2.board()))]


def flash_bytes() -> float:
    """Bytes that a message of 200 writes to LittleFS, one sync for each."""
    result = subprocess.run(
        [MICROPYTHON, "-X", "heapsize=16M", "-c", WEAR],
        cwd=on_mps2.board(), env={"MICROPYPATH": ".frozen:.:tests/mp"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return float(dict(FIGURE.findall(result.stdout))["bytes"])


def loss(report: Callable[..., None], rounds: int) -> None:
    """Both systems: undisturbed in interleaved rounds, then once through all faults. The guarantees stand beside."""
    others = mqtt_as()
    OtherClient.name = OtherClient.name.replace("mqtt_as", "mqtt_async" if others == ["mqtt_async.py"] else "mqtt_as")
    kinds: tuple[type[QueueManager] | type[Broker], ...] = (Broker, QueueManager, *([OtherClient] if others else []))
    rates: dict[str, list[float]] = {kind.name: [] for kind in kinds}
    memory: dict[str, float] = {}
    for kind in kinds * rounds:
        with tempfile.TemporaryDirectory(prefix="ordack-bench-") as name:
            _, figures = asyncio.run(campaign(kind(Path(name)), Path(name), UNDISTURBED, 0, 0, 0))
            rates[kind.name].append(UNDISTURBED / figures["seconds"][0])
            memory[kind.name] = figures["memory"][0]
    code = {
        Broker.name: code_bytes(umqtt_simple(), ["umqtt/simple.py"]),
        QueueManager.name: code_bytes(Path("/"), loaded(f".frozen:{on_mps2.board()}")),
        OtherClient.name: code_bytes(Path(os.environ.get("MQTT_AS_DIR", "")), others),
    }
    guarantee = {
        Broker.name: "at least once while the board and the broker run",
        QueueManager.name: "exactly once, in order, or the sender is told",
        OtherClient.name: "at least once while the board and the broker run",
    }
    for kind in kinds:
        with tempfile.TemporaryDirectory(prefix="ordack-bench-") as name:
            received, _ = asyncio.run(campaign(kind(Path(name)), Path(name), READINGS, CUTS, POWER_CUTS, SERVER_KILLS))
        report(
            bench=f"{READINGS} readings, {CUTS} link cuts, {POWER_CUTS} power cuts, {SERVER_KILLS} kills of the server",
            system=kind.name, guarantee=guarantee[kind.name], seed=SEED,
            lost=sum(not received[number] for number in range(1, READINGS + 1)),
            repeated=sum(received[number] > 1 for number in range(1, READINGS + 1)),
            readings_per_second=round(statistics.median(rates[kind.name])),
            heap_bytes_64_bit=memory[kind.name], code_bytes=code[kind.name],
            flash_bytes_per_message=round(flash_bytes()) if kind is QueueManager else 0,
            **({"source": os.environ["MQTT_AS_DIR"]} if kind is OtherClient else {}),
        )  # fmt: skip
    if not others:
        report(
            bench="the same", system="mqtt_as", left_out="MQTT_AS_DIR does not name a folder with it",
            published="QoS 0 and 1; a reset forgets what was not acknowledged", source="its README",
        )  # fmt: skip


if __name__ == "__main__":
    loss(lambda **values: print(json.dumps(values), flush=True), int((sys.argv[1:] or ["1"])[0]))
