"""Consumers that commit one message at a time, and a lone board that waits until each of its messages is stored."""

import contextlib
import os
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.bench.fleet import Kinds, Load, medians, running
from tests.bench.peers import Ordack, program, report, step, throughput
from tests.conformance import ROOT
from tests.support.command import INTERPRETERS

LEAST = "the least in Python with SQLite"
PRELOADED_S = 3.0
RATE = 1000  # of the one board that fills a queue
ALONE = 300  # messages, one at a time

# Each is between a line that it prints and one that it reads, and ends with a line: tests.bench.peers.program.
CONSUMERS = {
    "ordack": """
from ordack.client import Client
with Client(where) as client:
    queue = client.queue("line1")
    begin()
    for message in queue.receive():
        message.body
        count -= 1
    assert not count
""",
    "redis": """
import redis
peer, stream = redis.Redis(port=int(where)), "b000000"
peer.xgroup_create(stream, "readers", id="0")
begin()
found = peer.xreadgroup("readers", "one", {stream: ">"}, count=1)
for _ in range(count):
    [[_, [[key, entry]]]] = found
    with peer.pipeline() as pipe:  # MULTI: one sync; asks for the next entry, as ordack's client does
        pipe.xack(stream, "readers", key)
        pipe.xdel(stream, key)
        pipe.xreadgroup("readers", "one", {stream: ">"}, count=1)
        found = pipe.execute()[2]
""",
    "nats": """
import socket
link = socket.create_connection(("127.0.0.1", int(where)))
lines = link.makefile("rb")
def ask(subject, body):
    link.sendall(b"PUB %b in %d\\r\\n%b\\r\\n" % (subject, len(body), body))
    while not (line := lines.readline()).startswith(b"MSG"):
        pass
    lines.read(int(line.split()[-1]) + 2)
    return line.split()[3]
link.sendall(b'CONNECT {"verbose":false}\\r\\nSUB in 1\\r\\n')
ask(b"$JS.API.CONSUMER.DURABLE.CREATE.boards.c",
    b'{"stream_name":"boards","config":{"durable_name":"c","ack_policy":"explicit"}}')
begin()
for _ in range(count):
    ask(ask(b"$JS.API.CONSUMER.MSG.NEXT.boards.c", b"1"), b"+ACK")
""",
    "mqtt": """
import threading
import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
left = threading.Semaphore(0)
client = mqtt.Client(CallbackAPIVersion.VERSION2, "keep", clean_session=False)
client.on_message = lambda *_: left.release()
begin()
client.connect("127.0.0.1", int(where))
client.loop_start()
for _ in range(count):
    left.acquire()
""",
}
# The least that an exactly-once consumer needs of SQLite: its message removed, counted and answered for, and the next
# one found, in one commit. No other question, no second consumer, no check, no lock.
LEAST_SERVER = """
import socket, struct, sys
import apsw, cbor2
folder, count = sys.argv[1], int(sys.argv[2])
store = apsw.Connection(f"{folder}/least.sqlite", statementcachesize=256)
store.pragma("journal_mode", "wal")
store.pragma("synchronous", "full")
store.execute("CREATE TABLE queues (id INTEGER PRIMARY KEY, messages, bytes); INSERT INTO queues VALUES (1, 0, 0);"
    "CREATE TABLE answers (application BLOB PRIMARY KEY, number, answer) WITHOUT ROWID;"
    "CREATE TABLE messages (id INTEGER PRIMARY KEY AUTOINCREMENT, queue, rank, packet, expires);"
    "CREATE INDEX messages_order ON messages (queue, rank, id)")
with store:
    store.executemany("INSERT INTO messages (queue, rank, packet) VALUES (1, 4, ?)", [(bytes(260),)] * (count + 1))
listening = socket.socket(socket.AF_UNIX)
listening.bind(f"{folder}/least.sock")
listening.listen()
print(flush=True)
link = listening.accept()[0]
while data := link.recv(1 << 16):
    number, key = cbor2.loads(data[4:])
    store.execute("BEGIN IMMEDIATE")
    for queue, size in store.execute(
        "DELETE FROM messages WHERE id = ? RETURNING queue, length(packet)", (key,)).fetchall():
        store.execute("UPDATE queues SET messages = messages - 1, bytes = bytes - ? WHERE id = ?", (size, queue))
        store.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", (bytes(16), number, b"done"))
    found = store.execute("SELECT id, packet FROM messages WHERE queue = ? AND (expires IS NULL OR expires > ?) "
        "ORDER BY rank, id LIMIT 1", (1, 0)).fetchall()
    store.execute("COMMIT")
    answer = cbor2.dumps(["done", found])
    link.sendall(struct.pack("<I", len(answer)) + answer)
"""
LEAST_CLIENT = """
import socket, struct
import cbor2
link = socket.socket(socket.AF_UNIX)
link.connect(f"{where}/least.sock")
begin()
key = 0
for number in range(count):
    question = cbor2.dumps([number, key])
    link.sendall(struct.pack("<I", len(question)) + question)
    [[key, packet]] = cbor2.loads(link.recv(1 << 16)[4:])[1]
"""
BOARD = """
import asyncio, sys, time
from ordack.node import Node
async def main():
    node = Node(sys.argv[1], connect=("127.0.0.1", int(sys.argv[2])))
    node.start()
    line1 = node.queue("DIRECT=TCP:127.0.0.1\\\\private$\\\\line1")
    for number in range(int(sys.argv[3]) + 20):
        began = time.ticks_us()
        reading = await line1.send(b"21.5")
        sent = time.ticks_us()
        assert await reading.stored()
        if number >= 20:
            print(time.ticks_diff(sent, began), time.ticks_diff(time.ticks_us(), sent))
    await node.close()
asyncio.run(main())
"""


def consume(kinds: Kinds, rounds: int, size: int) -> None:
    """Rates of consumers that take and remove one message a commit."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in (*(kind.name for kind in kinds), LEAST)}
    for _ in range(rounds):
        runs[LEAST].append(_least(3000))
        for kind in kinds:
            with running(kind) as server, contextlib.ExitStack() as stack:
                load = Load(stack, server, 1, RATE, PRELOADED_S, size)
                load.order()
                load.line()
                load.line()
                count = load.figures()["made"][0]
                where = server.folder if kind is Ordack else server.port
                consumer = stack.enter_context(program(CONSUMERS[kind.kind], where, count))
                rate, cost = throughput([consumer], [server.process.pid], count)
                runs[kind.name].append({"rate": rate, "server_cpu_us": cost[0], "consumer_cpu_us": cost[1]})
    found = {name: medians(figures, "rate", "server_cpu_us", "consumer_cpu_us") for name, figures in runs.items()}
    ours = found[Ordack.name]["rate"]
    report(
        bench=f"consumer, one message of {size} bytes a commit",
        unit="messages per second",
        bar="ratio >= 1.2",
        **found,
        ratio={name: ours / figures["rate"] for name, figures in found.items() if name != Ordack.name},
    )


def _least(count: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="ordack-least-") as folder:
        command = [sys.executable, "-c", LEAST_SERVER, folder, str(count)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            step(server)
            with program(LEAST_CLIENT, folder, count) as consumer:
                rate, cost = throughput([consumer], [server.pid], count)
    return {"rate": rate, "server_cpu_us": cost[0], "consumer_cpu_us": cost[1]}


def bare(folder: Path, count: int, size: int, syncs: int, commits: bool = False) -> list[float]:
    """Seconds for some syncs of so many bytes, each appended to a file, and one round trip over the loopback. commits:
    each sync is the commit of a row in SQLite, with a round trip of its own."""
    took = []
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as stack:
        file = stack.enter_context((folder / "bare").open("wb", buffering=0))
        database = sqlite3.connect(folder / "bare.sqlite", isolation_level=None)
        stack.callback(database.close)
        for sql in ("PRAGMA journal_mode = wal", "PRAGMA synchronous = full", "CREATE TABLE IF NOT EXISTS bare (data)"):
            database.execute(sql)
        near = stack.enter_context(socket.create_connection(server.getsockname()))
        far = stack.enter_context(server.accept()[0])
        for link in (near, far):
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trips = syncs if commits else 1
        echo = threading.Thread(target=lambda: [far.sendall(_read(far, size)) for _ in range(count * trips)])
        echo.start()
        for _ in range(count):
            began = time.perf_counter()
            for _ in range(syncs):
                if commits:
                    database.execute("INSERT INTO bare VALUES (?)", (bytes(size),))
                else:
                    file.write(bytes(size))
                    os.fdatasync(file.fileno())
            for _ in range(trips):
                near.sendall(bytes(size))
                _read(near, size)
            took.append(time.perf_counter() - began)
        echo.join()
    return took


def _read(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += link.recv(size - len(data))
    return data


def lone_board(rounds: int) -> None:
    """A board on MicroPython that sends a message when the one before is stored."""
    sending: list[int] = []
    storing: list[int] = []
    least: list[float] = []
    committing: list[float] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="ordack-board-") as name, running(Ordack) as server:
            (Path(name) / "main.py").write_text(BOARD)
            done = subprocess.run(
                [INTERPRETERS["micropython"], f"{name}/main.py", f"{name}/outbox", str(server.port), str(ALONE)],
                env={**os.environ, "MICROPYPATH": f".frozen:{ROOT}/firmware"},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            times = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
            sending += [sent for sent, _ in times]
            storing += [stored for _, stored in times]
            least += bare(Path(name), ALONE, 264, 2)
            committing += bare(Path(name), ALONE, 264, 2, True)
    ours, floor, sqlite = statistics.median(storing), *(statistics.median(times) * 1e6 for times in (least, committing))
    report(
        bench="a lone board on loopback, from send() until stored()",
        unit="microseconds, median",
        bar="ratio <= 1",
        ordack_value=ours,
        ordack_send=statistics.median(sending),
        least="two syncs and a round trip",
        least_value=floor,
        ratio=ours / floor,
        sqlite="two commits of a row and a round trip for each",
        sqlite_value=sqlite,
        sqlite_ratio=ours / sqlite,
    )
