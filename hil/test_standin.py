"""The smallest pair that keeps the campaign's promise, and breaks it on request: for the harness's own tests.

* `standin.py config.json` is the application on the board: the sensor's readings, ledger and output, over a protocol of
  its own (an opening, then readings one way and the number of the last stored reading the other way).
* `standin.py [--fault NAME:K] queue create|queue list|serve|receive ...` stands for `ordack`; its store is one file.

Faults of the queue manager at reading K: `lose`, `deaf` (stores and acknowledges nothing from there on), `port` (it
listens somewhere else), `dirty` (status 3 after SIGTERM), `slow` (never listens), `crash`. What else could be wrong
with a queue is shown by test_report.py.
"""

import argparse
import base64
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OPENING = 620
AHEAD = 20


def receive_exactly(link: socket.socket, count: int, *listeners: socket.socket) -> bytes:
    """`count` bytes; raises ConnectionError if the connection ends before, or another one has come."""
    data = bytearray()
    while len(data) < count:
        if {*listeners} & {*select.select([link, *listeners], [], [])[0]}:
            raise ConnectionError("the other end has begun anew")
        chunk = link.recv(count - len(data))
        if not chunk:
            raise ConnectionError("ended")
        data += chunk
    return bytes(data)


class Store:
    """Messages in a file, a JSON object per line, each durable before the next; a torn last line does not count."""

    def __init__(self, folder: str) -> None:
        Path(folder).mkdir(exist_ok=True)
        self.path = Path(folder) / "messages"
        self.messages: list[dict[str, Any]] = []
        data = self.path.read_bytes() if self.path.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        self.messages = [json.loads(line) for line in whole.splitlines()]
        self._end: int | None = len(whole)

    def add(self, k: int, body: bytes) -> None:
        self.messages.append(
            {
                "source": "00000000-0000-0000-0000-000000000001",
                "message_id": k,
                "label": f"reading {k}",
                "body_base64": base64.b64encode(body).decode(),
                "class": 0,
                "priority": 0,
                "delivery": "transactional",
                "tx_sequence_id": (1 << 32) + 1,
                "tx_sequence_number": len(self.messages) + 1,
            }
        )
        with self.path.open("ab") as file:
            if self._end is not None:  # what a kill has left of a line: a reader that cut it could cut a living one
                file.truncate(self._end)
                self._end = None
            file.write(json.dumps(self.messages[-1]).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def serve(store: Store, listen: str, fault: tuple[str, int]) -> None:
    """Serve one connection after the other, always the newest, until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3 if fault[0] == "dirty" else 0))
    host, port = listen.split(":")
    if fault[0] == "slow":
        time.sleep(60)
    with socket.create_server((host, 0 if fault[0] == "port" else int(port))) as listener:
        print(f"listening on {host}:{listener.getsockname()[1]}", flush=True)
        last = max((message["message_id"] for message in store.messages), default=0)
        while True:
            link, _ = listener.accept()
            try:
                receive_exactly(link, OPENING, listener)
                link.sendall(bytes(OPENING - 4) + struct.pack("<I", last))
                while True:
                    k, size = struct.unpack("<II", receive_exactly(link, 8, listener))
                    body = receive_exactly(link, size, listener)
                    if k != last + 1 or (fault[0] == "deaf" and k >= fault[1]):
                        continue
                    if fault == ("crash", k):
                        sys.exit(1)
                    if fault != ("lose", k):
                        store.add(k, body)
                    last = k
                    link.sendall(struct.pack("<I", last))
            except ConnectionError:
                pass
            finally:
                link.close()


def board(config: dict[str, Any]) -> None:
    """Send the readings that are not stored yet, noting each in the ledger before the first time."""
    sys.path.insert(0, str(ROOT))
    from hil import sensor

    sensor.begin(config)
    accepted, _ = sensor.last_noted(sensor.LEDGER)
    stored = 0
    count = config["count"]

    def reading(k: int) -> bytearray:
        return sensor.body_of(config["seed"], k, sensor.size_of(config["seed"], k, count, config["max_size"]))

    sensor.say(event="started", accepted=accepted, stored=stored, core="stand-in")
    while stored < count:
        try:
            with socket.create_connection((config["host"], config["port"]), timeout=5) as link:
                link.sendall(bytes(OPENING))
                stored = sent = struct.unpack("<I", receive_exactly(link, OPENING)[-4:])[0]
                while stored < count:
                    while select.select([link], [], [], 0 if sent < min(count, stored + AHEAD) else None)[0]:
                        stored = struct.unpack("<I", receive_exactly(link, 4))[0]
                        sensor.say(accepted=accepted, stored=stored)
                        if stored == count:
                            break
                    if sent < count:
                        sent += 1
                        body = reading(sent)
                        if sent > accepted:
                            accepted = sent
                            sensor.append(sensor.LEDGER, sensor.line_of(sent, body, sent))
                            sensor.say(accepted=accepted, stored=stored)
                        link.sendall(struct.pack("<II", sent, len(body)) + body)
        except OSError:
            time.sleep(0.01)
    sensor.say(event="done", accepted=accepted, stored=stored)
    signal.pause()


def main() -> None:
    if sys.argv[1].endswith(".json"):
        board(json.loads(Path(sys.argv[1]).read_text()))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none:0")
    parser.add_argument("words", nargs="+")
    parser.add_argument("--store")
    parser.add_argument("--listen")
    parser.add_argument("--transactional", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--all", action="store_true")
    arguments = parser.parse_args()
    name, _, k = arguments.fault.partition(":")
    store = Store(arguments.store)
    if arguments.words == ["serve"]:
        serve(store, arguments.listen, (name, int(k)))
    elif arguments.words[:2] == ["queue", "list"]:
        print(json.dumps({"name": "line1", "messages": len(store.messages)}))
    elif arguments.words[0] == "receive":
        for message in store.messages:
            print(json.dumps(message))


if __name__ == "__main__":
    main()
