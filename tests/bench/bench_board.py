"""Speed of a board: instructions on a Cortex-M3, messages per second on MicroPython's unix port beside an MQTT client.

    .venv/bin/python -m tests.bench.bench board

Each line is a JSON object, as those of bench.py.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests import on_mps2
from tests.conformance import ROOT
from tests.support import emulated

sys.path += [str(ROOT / "firmware"), str(ROOT / "tests" / "mp")]
from tests.node.slow_lines import TO_HOST, OverUart

FIGURE = re.compile(r"^(\w+) (-?[\d.]+)\r?$", re.MULTILINE)
MICROPYTHON = ROOT / "build" / "micropython" / "unix-c" / "micropython"
PEERS = ROOT / "build" / "bench"
DEADLINE = 120  # s for one measurement
QUEUE = "bench"
BODY_BYTES = 64
STEADY_S = 12  # longer than an OrderAck may be put off
LINE_READINGS = 300
STEADY_RATES = (5, 10, 30, 100, 300)  # readings a second
NS_PER_INSTRUCTION = 64  # QEMU's -icount shift=6

# ---- Cortex-M3

# Behind tests/mp/steady.py: microseconds of virtual time that each step of a message takes, in place of bytes.
INSTRUCTIONS = """
import mps2, time

ROUNDS = 20

def timed(name, step, *arguments):
    gc.collect()
    gc.disable()
    begin = time.ticks_us()
    result = step(*arguments)
    TAKEN[name] = TAKEN.get(name, 0) + time.ticks_diff(time.ticks_us(), begin)
    gc.enable()
    return result

taken = timed
MESSAGES = ROUNDS * BATCH
WARM_UP = 0
main()
mps2.power_off(0)
"""


def microseconds(folder: Path) -> dict[str, float]:
    """Virtual microseconds per message of each step, on the firmware in `folder`."""
    program = (on_mps2.board() / "tests" / "mp" / "steady.py").read_text(encoding="utf-8")
    program = program.replace('if __name__ == "__main__":\n    main()\n', INSTRUCTIONS)
    with tempfile.TemporaryDirectory() as name:
        flash = Path(name) / "flash"
        emulated.write_flash(flash, program)
        memory = f"memory-backend-file,id=psram,size=16M,mem-path={flash},share=on"
        command = [
            *("qemu-system-arm", "-machine", "mps2-an385,memory-backend=psram", "-object", memory),
            *("-display", "none", "-monitor", "none", "-semihosting", "-kernel", str(folder / "firmware.elf")),
            *("-append", "heap=128", "-serial", "stdio", "-icount", "shift=6"),
        ]
        result = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE, check=False
        )
    found = {name: float(value) for name, value in FIGURE.findall(result.stdout)}
    if "done" not in found:
        raise RuntimeError(result.stdout)
    return found


def instructions(report: Callable[..., None]) -> None:
    """Instructions of the engine per message, ten in a batch with one OrderAck, with the C core and with its twin."""
    native, twin = (microseconds(folder) for folder in (emulated.MPS2, emulated.TWIN))
    steps = {
        "message made and numbered": ("number",),
        "message sent": ("send",),
        "message acknowledged": ("hear", "room"),
        "message, in all": ("number", "send", "hear", "room", "time", "say"),
    }
    for name, parts in steps.items():
        values = [sum(found[part] for part in parts) * 1000 / NS_PER_INSTRUCTION for found in (native, twin)]
        report(
            bench=f"Cortex-M3, {name}", unit="instructions", ordack="C core", ordack_value=round(values[0]),
            peer="twin in Python", peer_value=round(values[1]), ratio=values[1] / values[0],
        )  # fmt: skip


# ---- MicroPython's unix port

OURS = """
import sys, time
from ordack.node import Node
folder, port, count, batch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
board = Node(folder, connect=("127.0.0.1", port), capacity=1 << 26)
queue = board.queue("DIRECT=TCP:127.0.0.1\\\\private$\\\\bench")
body = b"x" * 64
def wait():
    while board.waiting:
        pause = board.poll()
        if pause:
            time.sleep_ms(min(pause, 1))
queue.put(body)
wait()
begin = time.ticks_us()
if batch == 1:
    for _ in range(count):
        queue.put(body)
        board.poll()
else:
    bodies = [body] * batch
    for _ in range(count // batch):
        queue.put_all(bodies)
        board.poll()
accepted = time.ticks_diff(time.ticks_us(), begin)
wait()
stored = time.ticks_diff(time.ticks_us(), begin)
print("accepted", count * 1000000 / accepted)
print("stored", count * 1000000 / stored)
"""

# One reading at a time, then at a steady rate for some seconds: does the outbox of 100 places ever fill?
STORED = """
import asyncio, sys, time
from ordack.node import Node, OutboxFull
folder, port, count, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
rates = [int(rate) for rate in sys.argv[5:]]
async def main():
    node = Node(folder, connect=("127.0.0.1", port), capacity=262144)
    node.start()
    queue = node.queue("DIRECT=TCP:127.0.0.1\\\\private$\\\\bench")
    await (await queue.send(b"21.5")).stored()
    took = []
    for _ in range(count):
        begin = time.ticks_us()
        await (await queue.send(b"21.5")).stored()
        took.append(time.ticks_diff(time.ticks_us(), begin))
    print("stored", sorted(took)[count // 2] / 1000)
    sustained = 0
    for rate in rates:
        begin = time.ticks_ms()
        try:
            for number in range(rate * seconds):
                message = await queue.send(b"21.5")
                due = 1000 * (number + 1) // rate
                await asyncio.sleep_ms(max(due - time.ticks_diff(time.ticks_ms(), begin), 0))
        except OutboxFull:
            break
        sustained = rate
        await message.stored()
    print("sustained", sustained)
    await node.close()
asyncio.run(main())
"""

UMQTT = """
import sys, time
from umqtt.simple import MQTTClient
port, count = int(sys.argv[1]), int(sys.argv[2])
client = MQTTClient("bench", "127.0.0.1", port)
client.connect()
body = b"x" * 64
client.publish(b"bench", body, qos=1)
begin = time.ticks_us()
for _ in range(count):
    client.publish(b"bench", body, qos=1)
print("stored", count * 1000000 / time.ticks_diff(time.ticks_us(), begin))
"""


def micropython(program: str, path: str, *arguments: str | int) -> dict[str, float]:
    """Runs a program; the lines `NAME NUMBER` that it prints."""
    with tempfile.TemporaryDirectory() as alone:  # MicroPython looks for modules beside a program first
        file = Path(alone) / "program.py"
        file.write_text(program, encoding="utf-8")
        command = [str(MICROPYTHON), "-X", "heapsize=16M", str(file), *map(str, arguments)]
        environment = {"MICROPYPATH": path}
        result = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False
        )
    if result.returncode:
        raise RuntimeError(result.stdout + result.stderr)
    return {name: float(value) for name, value in FIGURE.findall(result.stdout)}


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


@contextlib.contextmanager
def mosquitto(folder: Path) -> Iterator[int]:
    """A broker as shipped; its port."""
    program = shutil.which("mosquitto", path="/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin")
    assert program
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    settings = folder / "mosquitto.conf"
    settings.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\n")
    server = subprocess.Popen([program, "-c", settings], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + DEADLINE
        while True:
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                break
            assert time.monotonic() < end
            time.sleep(0.01)
        yield port
    finally:
        server.terminate()
        server.wait(DEADLINE)


@contextlib.contextmanager
def queue_manager(folder: Path, settings: str = "") -> Iterator[int]:
    """`ordack serve` with an empty store; its port. settings: of ordack.toml."""
    ordack = str(Path(sys.executable).parent / "ordack")
    for words in (["init"], ["queue", "create", QUEUE, "--transactional"]):
        subprocess.run([ordack, *words, "--store", str(folder)], check=True, stdout=subprocess.DEVNULL)
    (folder / "ordack.toml").write_text(f"[settings]\n{settings}\n")
    command = [ordack, "serve", "--store", str(folder), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            yield int(server.stdout.readline().rpartition(":")[2])
        finally:
            server.terminate()


def syncs(folder: Path) -> float:
    """Appends of 340 bytes, each synced, that the disk takes in a second: what bounds messages one at a time."""
    count = 1000
    with (folder / "syncs").open("wb", buffering=0) as file:
        begin = time.monotonic()
        for _ in range(count):
            file.write(bytes(340))
            os.fsync(file.fileno())
        return count / (time.monotonic() - begin)


def messages(report: Callable[..., None], rounds: int) -> None:
    """Messages per second of 64 bytes, each synced to its file before it counts as accepted."""
    found: dict[str, list[float]] = {}
    peers = umqtt_simple()
    with tempfile.TemporaryDirectory(prefix="ordack-bench-") as name:
        folder = Path(name)
        for number in range(rounds):
            with mosquitto(folder) as port:
                rates = micropython(UMQTT, f".frozen:{peers}", port, 100)
                found.setdefault("umqtt", []).append(rates["stored"])
            found.setdefault("syncs", []).append(syncs(folder))
            for batch, count in ((1, 2000), (64, 6400)):
                with queue_manager(folder / f"store-{number}-{batch}") as port:
                    outbox = folder / f"outbox-{number}-{batch}"
                    rates = micropython(OURS, f".frozen:{on_mps2.board()}", outbox, port, count, batch)
                    for kind, rate in rates.items():
                        found.setdefault(f"{kind} {batch}", []).append(rate)
    peer = statistics.median(found["umqtt"])
    for batch in (1, 64):
        for kind in ("accepted", "stored"):
            value = statistics.median(found[f"{kind} {batch}"])
            report(
                bench=f"unix port, messages {kind}, {'one at a time' if batch == 1 else 'in batches of 64'}",
                unit="messages per second", ordack="node, each synced to its file", ordack_value=round(value),
                peer="umqtt.simple, QoS 1, mosquitto as shipped", peer_value=round(peer), ratio=value / peer,
            )  # fmt: skip
    report(bench="this disk, appends synced", unit="per second", value=round(statistics.median(found["syncs"])))
    report(bench="unix port", peer="mqtt_as", left_out="bench_loss.py has it, from a checkout that MQTT_AS_DIR names")


def stored(report: Callable[..., None]) -> None:
    """How long stored() takes, and how many readings a second an outbox of 100 places bears: as the specification times
    OrderAcks (B-045, B-047), which is how Windows does it, and with those that come early.
    """
    found = {}
    with tempfile.TemporaryDirectory(prefix="ordack-bench-") as name:
        folder = Path(name)
        for early in ("0", "20"):
            with queue_manager(folder / f"store-{early}", f"EarlyOrderAck = {early}") as port:
                outbox = folder / f"outbox-{early}"
                rates = STEADY_RATES[: 3 if early == "0" else None]
                found[early] = micropython(STORED, f".frozen:{on_mps2.board()}", outbox, port, 20, STEADY_S, *rates)
    rates = f"unix port: rate borne for {STEADY_S} s, of {STEADY_RATES}"
    for figure, bench, unit in (
        ("stored", "unix port, one at a time: p50 until stored() returns", "ms"),
        ("sustained", rates, "readings per second"),
    ):
        report(
            bench=bench, unit=unit, ordack="EarlyOrderAck 20 ms, as installed", ordack_value=found["20"][figure],
            peer="EarlyOrderAck 0, the specification's timing", peer_value=found["0"][figure],
        )  # fmt: skip


def line_bytes(report: Callable[..., None]) -> None:
    """Bytes that a UART carries for each reading, both ways and with everything, in simulated time: with OrderAcks that
    come early, and as the specification times them.
    """
    for baud in (115200, 9600):
        for apart in (1000, 200, 100):
            found = []
            for early in (20, 0):
                with tempfile.TemporaryDirectory(prefix="ordack-bench-") as name:
                    world = OverUart(Path(name), baud // 10, early_order_ack=early)
                    world.step_ms = 10
                    queue = world.node.queue(TO_HOST)
                    queue.put(b"21.5")
                    world.run(lambda world=world: not world.node.waiting, 60)
                    begin, before = world.now, (world.up.total, world.down.total)
                    for number in range(LINE_READINGS):
                        queue.put(b"21.5")
                        world.run(lambda world=world, end=begin + apart * (number + 1): world.now >= end, 3600)
                    world.run(lambda world=world: not world.node.waiting, 3600)
                    found.append(
                        [
                            (now - then) / LINE_READINGS
                            for now, then in zip((world.up.total, world.down.total), before, strict=True)
                        ]
                    )
                    world.host.store.close()
            (up, down), (up_before, down_before) = found
            report(
                bench=f"UART of {baud} baud, a reading every {apart} ms", unit="bytes per reading, up and down",
                ordack="EarlyOrderAck 20 ms, as installed", ordack_value=up, ordack_down=down,
                peer="EarlyOrderAck 0, the specification's timing", peer_value=up_before, peer_down=down_before,
            )  # fmt: skip


def board(report: Callable[..., None], rounds: int) -> None:
    """All of them."""
    stored(report)
    line_bytes(report)
    instructions(report)
    messages(report, rounds)
