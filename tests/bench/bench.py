"""`make bench`: speed against a peer, measured in the same run, one JSON object a line.

    python -m tests.bench.bench [codec] [messaging] [--rounds N]

Figures are medians over the rounds; `ratio` is more than 1 where ordack is faster. Nothing is asserted: machines
differ. Peers: `struct` for the codec; mosquitto at QoS 2 with paho-mqtt for the messaging. mosquitto saves on every
change, without a sync; ordack syncs.
"""

import argparse
import contextlib
import json
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "firmware"))  # ordack finds ordack.node there, or never

import paho.mqtt.client as mqtt
from _mqqb import ffi, lib
from mqqb import build, compose, connection, core, parse, session, streams
from mqqb.connection import Closed, MessageReceived
from mqqb.names import parse_format_name
from ordack.client import Client
from paho.mqtt.enums import CallbackAPIVersion

BODY = bytes(range(256)) * 4  # 1 KiB
QUEUE = "line1"
DESTINATION = parse_format_name(f"DIRECT=TCP:127.0.0.1\\private$\\{QUEUE}")
SOURCE = bytes(range(16))
DEADLINE = 60.0  # seconds for one measurement
MIN_TIME = 0.2  # seconds that a timed loop runs at least


def report(**values: object) -> None:
    """Prints one result; numbers with three digits are enough."""
    rounded = {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in values.items()}
    print(json.dumps(rounded), flush=True)


# ---- codec


def nanoseconds(call: Callable[[], object], packets_per_call: int = 1) -> float:
    """Time of one call per packet."""
    count = 1
    while True:
        started = time.perf_counter_ns()
        for _ in range(count):
            call()
        passed = time.perf_counter_ns() - started
        if passed >= MIN_TIME * 1e9:
            return passed / count / packets_per_call
        count *= 2


def message(number: int) -> bytes:
    """A transactional UserMessage of 1 KiB, as the scan and its peers read it."""
    return bytes(build.user_message(SOURCE, number, DESTINATION, BODY, delivery="transactional", label="reading"))


# The same fixed fields by hand, as a careful program would: sizes first, then one unpack for each header.
BASE = struct.Struct("<BBHIII")
USER = struct.Struct("<16s16sIIII")
TRANSACTION = struct.Struct("<IIIII")
PROPERTIES = struct.Struct("<BBH20sIIIIIIII")


def with_struct(data: bytes) -> tuple[Any, ...]:
    """Base, user, transaction and properties headers of `message` by struct; the direct name's length between them."""
    version, _, flags, signature, size, ttrq = BASE.unpack_from(data)
    if version != 0x10 or signature != 0x524F494C or size > len(data):
        raise ValueError("malformed")
    user = USER.unpack_from(data, 16)
    offset = (66 + int.from_bytes(data[64:66], "little") + 3) & ~3
    transaction = TRANSACTION.unpack_from(data, offset)
    return flags, ttrq, user, transaction, PROPERTIES.unpack_from(data, offset + TRANSACTION.size)


def codec(rounds: int) -> None:
    """Header decoding, nanoseconds per packet."""
    one = message(1)
    fields = array("I", bytes(4 * core.part_words(core.BASE_HEADER)))
    run = b"".join(message(number + 1) for number in range(1000))
    capacity = 1100
    columns = ffi.new("mqqb_scan_columns *")
    storage = [ffi.new("uint32_t[]", capacity) for _ in range(lib.MQQB_SCAN_COLUMNS)]
    for index, column in enumerate(storage):
        columns.column[index] = column
    consumed = ffi.new("size_t *")
    status = ffi.new("int32_t *")

    def scan() -> None:
        found = lib.mqqb_scan(ffi.from_buffer(run), len(run), columns, capacity, consumed, status)
        assert found == 1000, found
        assert consumed[0] == len(run)

    def measure(name: str, ours: tuple[str, Callable[[], object], int], peers: dict[str, Callable[[], object]]) -> None:
        times: dict[str, list[float]] = {}
        for _ in range(rounds):
            times.setdefault(ours[0], []).append(nanoseconds(ours[1], ours[2]))
            for peer, call in peers.items():
                times.setdefault(peer, []).append(nanoseconds(call))
        medians = {key: statistics.median(values) for key, values in times.items()}
        for peer in peers:
            report(
                bench=name, unit="ns per packet", ordack=ours[0], ordack_value=medians[ours[0]],
                peer=peer, peer_value=medians[peer], ratio=medians[peer] / medians[ours[0]],
            )  # fmt: skip

    by_struct = {"struct": lambda: with_struct(one)}
    measure(
        "decode the base header",
        ("core.unpack, a call per packet", lambda: core.unpack(core.BASE_HEADER, fields, one, 0, len(one)), 1),
        {"struct": lambda: BASE.unpack_from(one)},
    )
    measure("decode 1 KiB messages into columns", ("mqqb_scan, a call per 1,000 packets", scan, 1000), by_struct)
    measure("decode 1 KiB messages into objects", ("parse.parse", lambda: parse.parse(one), 1), by_struct)


# ---- messaging


class Result:
    """Messages per second as received, and the time from send to receive of each where one is in flight, seconds."""

    def __init__(self, rate: float, latencies: list[float]) -> None:
        self.rate = rate
        self.latencies = latencies


class Ordack:
    """A sender on the engine over TCP, `ordack serve` as a process, a consumer that reads the store."""

    name = "ordack, transactional, synchronous=FULL"
    counts = (1000, 10000)  # messages with one in flight, with a full window

    def __init__(self, folder: Path) -> None:
        ordack = str(Path(sys.executable).parent / "ordack")
        self.store = folder / "store"
        for words in (["init"], ["queue", "create", QUEUE, "--transactional"]):
            subprocess.run([ordack, *words, "--store", str(self.store)], check=True, stdout=subprocess.DEVNULL)
        self.server = subprocess.Popen(
            [ordack, "serve", "--store", self.store, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
        )
        assert self.server.stdout
        line = self.server.stdout.readline()
        self.address = ("127.0.0.1", int(line.rpartition(":")[2]))
        self.next_id = 1

    def close(self) -> None:
        self.server.terminate()
        self.server.wait(DEADLINE)
        assert self.server.stdout
        self.server.stdout.close()

    def measure(self, count: int, one_in_flight: bool) -> Result:
        with Client(self.store) as client, contextlib.closing(self.connect()) as sender:
            queue = client.queue(QUEUE)
            bodies = 0
            if one_in_flight:
                latencies = []
                started = time.monotonic()
                for _ in range(count):
                    sent = time.monotonic()
                    sender.put(1)
                    sender.pump()
                    with queue.receive(DEADLINE) as received:
                        assert received.body == BODY
                    latencies.append(time.monotonic() - sent)
                return Result(count / (time.monotonic() - started), latencies)
            started = time.monotonic()
            thread = threading.Thread(target=sender.send_all, args=(count,))
            thread.start()
            while bodies < count:
                with queue.receive_batch(256, DEADLINE) as batch:
                    assert batch, "nothing came in time"
                    bodies += len(batch)
            rate = count / (time.monotonic() - started)
            thread.join(DEADLINE)
            return Result(rate, [])

    def connect(self) -> "Sender":
        sender = Sender(self.address, self.next_id)
        self.next_id += 1_000_000
        return sender


class Sender:
    """One stream over one session with the protocol's window of 64, its messages in memory."""

    def __init__(self, address: tuple[str, int], first_id: int) -> None:
        self.socket = socket.create_connection(address, timeout=DEADLINE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        guid = first_id.to_bytes(16, "little")  # each sender is another queue manager
        self.stream = streams.OutgoingStream(streams.OutgoingStream.new(int(time.time())))
        self.session = session.Session(True, guid, self.now())
        self.guid = guid
        self.next_id = first_id
        self.session.connected(self.now())
        while not self.session.can_send():
            self.flush()
            self.read()

    @staticmethod
    def now() -> int:
        return time.monotonic_ns() // 1_000_000

    def close(self) -> None:
        self.socket.close()

    def put(self, count: int) -> None:
        """Makes and numbers messages."""
        for _ in range(count):
            packet = build.user_message(
                self.guid, self.next_id, DESTINATION, BODY, delivery="transactional", ttrq=compose.FOREVER
            )
            self.stream.number(packet, parse.transaction_offset(packet), packet, self.next_id)
            self.next_id += 1

    def flush(self) -> None:
        if data := self.session.data_to_send():
            self.socket.sendall(data)

    def read(self) -> None:
        """Waits for bytes from the queue manager and handles them."""
        data = self.socket.recv(1 << 16)
        assert data, "the queue manager closed the connection"
        for event in self.session.receive_data(data, self.now()):
            assert not isinstance(event, Closed), (event.rule, event.reason)
            if isinstance(event, MessageReceived):
                assert isinstance(event.packet, connection.OrderAck)
                self.stream.order_ack(event.packet.body, self.now())
                self.session.stored(event.recoverable, self.now())

    def pump(self) -> None:
        """Sends what the window lets through; where it is shut, waits for it to open."""
        while (entry := self.stream.next_to_send()) is not None:
            if not self.session.can_send():
                self.flush()
                self.read()
                continue
            packet = entry.key
            assert isinstance(packet, bytearray)
            self.stream.prepare(entry, packet, parse.transaction_offset(packet))
            self.session.send(entry, packet, True, self.now())
        self.flush()

    def send_all(self, count: int) -> None:
        while count:
            batch = min(count, 64)
            self.put(batch)
            self.pump()
            count -= batch


class Mosquitto:
    """mosquitto as a process with a store of its own, paho-mqtt to publish and to subscribe, QoS 2."""

    name = "mosquitto, QoS 2, autosave on every change"
    counts = (500, 1500)

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        program = shutil.which("mosquitto", path="/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin")
        assert program
        store = folder / "mosquitto"
        store.mkdir()
        store.chmod(0o777)  # as root it becomes the user mosquitto
        settings = folder / "mosquitto.conf"
        settings.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\npersistence true\npersistence_location {store}/\n"
            "autosave_on_changes true\nautosave_interval 1\nmax_inflight_messages 64\nmax_queued_messages 0\n"
        )
        folder.chmod(0o755)
        self.server = subprocess.Popen([program, "-c", settings], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def close(self) -> None:
        self.server.terminate()
        self.server.wait(DEADLINE)

    def client(self, name: str) -> mqtt.Client:
        client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=name, clean_session=False)
        client.max_inflight_messages_set(64)
        deadline = time.monotonic() + DEADLINE
        while True:
            try:
                client.connect("127.0.0.1", self.port)
                return client
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise

    def measure(self, count: int, one_in_flight: bool) -> Result:
        received = threading.Semaphore(0)
        ready = threading.Event()
        subscriber, publisher = self.client("subscriber"), self.client("publisher")
        subscriber.on_message = lambda *_: received.release()
        subscriber.on_subscribe = lambda *_: ready.set()
        subscriber.loop_start()
        publisher.loop_start()
        try:
            subscriber.subscribe(QUEUE, qos=2)
            assert ready.wait(DEADLINE)
            latencies = []
            started = time.monotonic()
            if one_in_flight:
                for _ in range(count):
                    sent = time.monotonic()
                    publisher.publish(QUEUE, BODY, qos=2)
                    assert received.acquire(timeout=DEADLINE)
                    latencies.append(time.monotonic() - sent)
            else:
                for _ in range(count):
                    publisher.publish(QUEUE, BODY, qos=2)
                for _ in range(count):
                    assert received.acquire(timeout=DEADLINE), "nothing came in time"
            return Result(count / (time.monotonic() - started), latencies)
        finally:
            for client in (publisher, subscriber):
                client.disconnect()
                client.loop_stop()


@contextlib.contextmanager
def running(kind: "type[Ordack] | type[Mosquitto]", folder: Path) -> "Iterator[Ordack | Mosquitto]":
    folder.mkdir()
    system = kind(folder)
    try:
        yield system
    finally:
        system.close()


def messaging(rounds: int) -> None:
    """Durable messages of 1 KiB on loopback, one sender, one receiver, messages per second received."""
    results: dict[tuple[str, bool], list[Result]] = {}
    with tempfile.TemporaryDirectory(prefix="ordack-bench-") as name:
        Path(name).chmod(0o755)
        for round_number in range(rounds):
            for kind in (Mosquitto, Ordack):
                with running(kind, Path(name) / f"{kind.__name__}-{round_number}") as system:
                    for one_in_flight in (True, False):
                        result = system.measure(system.counts[0 if one_in_flight else 1], one_in_flight)
                        results.setdefault((kind.name, one_in_flight), []).append(result)
    for one_in_flight in (True, False):
        rates = {}
        latencies = {}
        for kind in (Mosquitto, Ordack):
            those = results[kind.name, one_in_flight]
            rates[kind.name] = statistics.median(result.rate for result in those)
            if one_in_flight:
                latencies[kind.name] = statistics.median(value for result in those for value in result.latencies) * 1e6
        values: dict[str, object] = {
            "bench": f"durable messages of 1 KiB, {'1' if one_in_flight else '64'} in flight",
            "unit": "messages per second",
            "ordack": Ordack.name,
            "ordack_value": rates[Ordack.name],
            "peer": Mosquitto.name,
            "peer_value": rates[Mosquitto.name],
            "ratio": rates[Ordack.name] / rates[Mosquitto.name],
        }
        if one_in_flight:
            values |= {"ordack_p50_us": latencies[Ordack.name], "peer_p50_us": latencies[Mosquitto.name]}
        report(**values)


def main() -> None:
    """Runs the benches named, or all."""
    benches = {"codec": codec, "messaging": messaging}
    parser = argparse.ArgumentParser(description="speed against a peer, one JSON object a line")
    parser.add_argument("benches", nargs="*", metavar="bench", help=f"{', '.join(benches)}; all by default")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for name in options.benches or benches:
        if name not in benches:
            parser.error(f"no bench {name}")
        benches[name](options.rounds)


if __name__ == "__main__":
    main()
