"""The bridges of host/examples lose no message and repeat none, wherever a kill stops them."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue

import pytest
from ordack.client import Client
from paho.mqtt import publish
from paho.mqtt.client import Client as Subscriber
from paho.mqtt.client import MQTTv5
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.command import DEADLINE_S, ROOT, own_port
from tests.support.killed import Program

pytestmark = pytest.mark.slow

COMMIT = "ordack.client Transaction commit"
EXAMPLES = ROOT / "host" / "examples"
ACK, TAKE = "paho.mqtt.client Client _send_puback", "ordack.client Queue begin_receive"


class Mosquitto:
    """A broker that keeps its sessions over a restart."""

    def __init__(self, folder: Path, more: str = "") -> None:
        folder.mkdir()
        self.port, self._settings = own_port(), folder / "mosquitto.conf"
        self._settings.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\nuser root\n"
            f"persistence true\npersistence_location {folder}/\n{more}"
        )
        self.start()

    def start(self) -> None:
        path = f"{os.environ['PATH']}:/usr/sbin"
        command = ["mosquitto", "-c", self._settings]
        self._process = subprocess.Popen(command, env={"PATH": path}, stderr=subprocess.DEVNULL)
        while self._process.poll() is None:
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", self.port)):
                return

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()

    def publish(self, topic: str, *bodies: str, retain: bool = False) -> None:
        messages = [{"topic": topic, "payload": body, "qos": 1, "retain": retain} for body in bodies]
        publish.multiple(messages, "127.0.0.1", self.port)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    broker = Mosquitto(tmp_path / "broker")
    yield broker
    broker.stop()


@pytest.fixture
def plant(tmp_path: Path) -> Path:
    with Client(tmp_path / "plant", create=True) as client:
        for name in ("readings", "readings-seen", "readings-keys", "readings-refused"):
            client.create_queue(name)
    return tmp_path / "plant"


def take(plant: Path, count: int) -> list[bytes]:
    """The next bodies, when they are there."""
    bodies = []
    with Client(plant) as client:
        for _ in range(count):
            with client.queue("readings").receive(timeout=DEADLINE_S) as message:
                bodies.append(message.body)
    return bodies


def left(plant: Path) -> list[tuple[str, bytes]]:
    with Client(plant) as client:
        return [(message.label, message.body) for message in client.queue("readings").peek()]


def test_mqtt_message_is_in_the_queue_once_whenever_the_bridge_is_killed(plant: Path, broker: Mosquitto) -> None:
    bridge = EXAMPLES / "bridge_mqtt.py", "in", plant, "127.0.0.1", broker.port, "plant/+", "readings"
    broker.publish("plant/a", "0", retain=True)
    Program(*bridge, until=f"{ACK} 1 before").end()  # the broker has its session now
    broker.publish("plant/b", "21.5", "21.5", "21.5", *"45678")
    for until in (f"{ACK} 2 after", f"{COMMIT} 1 before", f"{COMMIT} 1 after", f"{ACK} 3 before", f"{COMMIT} 1 before"):
        Program(*bridge, until=until).end()
    with Program(*bridge):
        bodies = take(plant, 9)
        broker.stop()
        broker.start()
        broker.publish("plant/b", "9")
        bodies += take(plant, 1)
    assert (bodies, left(plant)) == ([b"0", b"21.5", b"21.5", b"21.5", *map(str.encode, "456789")], [])


def test_only_a_redelivery_is_dropped_when_a_broker_repeats_packet_identifiers(plant: Path) -> None:
    def read() -> bytes:
        return stream.read(stream.read(2)[1])

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with Program(EXAMPLES / "bridge_mqtt.py", "in", plant, "127.0.0.1", port, "t", "readings"):
            link, _ = server.accept()
            with link, link.makefile("rb") as stream:
                read()
                link.sendall(b"\x20\3\0\0\0")  # CONNACK, a new session
                link.sendall(b"\x90\4" + read()[:2] + b"\0\1")  # SUBACK
                for flags in (2, 10, 2):  # QoS 1; the second one is a redelivery
                    link.sendall(bytes((0x30 | flags, 10)) + b"\0\1t\0\1\x0021.5")
                    read()
    assert left(plant) == [("t", b"21.5")] * 2


def test_queue_reaches_mqtt_in_order_and_repeats_have_a_known_key(plant: Path, broker: Mosquitto) -> None:
    bridge = EXAMPLES / "bridge_mqtt.py", "out", plant, "127.0.0.1", broker.port, "plant/out", "readings"
    heard: SimpleQueue[tuple[str, bytes]] = SimpleQueue()
    subscribed = threading.Event()
    subscriber = Subscriber(CallbackAPIVersion.VERSION2, protocol=MQTTv5)
    subscriber.on_subscribe = lambda *_: subscribed.set()
    subscriber.on_message = lambda _client, _data, message: heard.put(
        (dict(message.properties.UserProperty)["message-key"], message.payload)
    )
    subscriber.connect("127.0.0.1", broker.port)
    subscriber.loop_start()
    subscriber.subscribe("plant/out", 1)
    assert subscribed.wait(DEADLINE_S)
    bodies = [b"%d" % number for number in range(8)]
    with Client(plant) as client:
        client.queue("readings").send_many(bodies)
    for until in (f"{TAKE} 1 after", f"{TAKE} 2 before", f"{TAKE} 4 before", f"{TAKE} 3 after"):
        Program(*bridge, until=until).end()
    got: list[tuple[str, bytes]] = []
    with Program(*bridge):
        while len(dict(got)) < len(bodies):
            got.append(heard.get(timeout=DEADLINE_S))
    subscriber.loop_stop()
    assert list(dict(got).values()) == bodies
    assert len(got) > len(bodies), "no kill came between the broker's acknowledgement and the removal"


def test_message_that_the_broker_refuses_stays_in_the_queue(plant: Path, tmp_path: Path) -> None:
    (tmp_path / "acl").write_text("topic read #\n")
    broker = Mosquitto(tmp_path / "strict", f"acl_file {tmp_path}/acl\n")
    with Client(plant) as client:
        client.queue("readings").send(b"0", label="r")
    try:
        said = Program(
            EXAMPLES / "bridge_mqtt.py", "out", plant, "127.0.0.1", broker.port, "plant/out", "readings"
        ).end(1)
    finally:
        broker.stop()
    assert "refuses a message on plant/out: Not authorized. It stays in readings." in said
    assert left(plant) == [("r", b"0")]


def test_webhook_posts_in_order_and_repeats_have_a_known_key(plant: Path) -> None:
    got: list[tuple[str, bytes]] = []
    answers = iter([503, 302, 200, 200, 422])
    all_here = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = next(answers, 200)
            if status == 200:
                got.append((self.headers["Idempotency-Key"], body))
            self.send_response(status)
            self.send_header("Location", "/")
            self.end_headers()
            if body == b"7":
                all_here.set()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        bridge = EXAMPLES / "webhook.py", "post", plant, "readings", f"http://127.0.0.1:{server.server_port}/"
        with Client(plant) as client:
            client.queue("readings").send_many([b"%d" % number for number in range(8)], label="r")
        for until in (f"{COMMIT} 1 before", f"{COMMIT} 1 after", f"{COMMIT} 3 before"):
            Program(*bridge, until=until).end()
        with Program(*bridge):
            assert all_here.wait(DEADLINE_S)
        server.shutdown()
    assert list(dict(got).values()) == [b"0", *(b"%d" % number for number in range(2, 8))]
    assert len(got) > 7, "no kill came between the answer and the removal"
    with Client(plant) as client:
        assert [(m.label, m.body) for m in client.queue("readings-refused").peek()] == [("422 r", b"1")]


def test_webhook_stores_a_repeated_post_once(plant: Path) -> None:
    port = own_port()
    bridge = EXAMPLES / "webhook.py", "listen", plant, "readings", port

    def post(body: bytes, **headers: str) -> int:
        while True:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
                connection.request("POST", "/press-7", body, {k.replace("_", "-"): v for k, v in headers.items()})
                return connection.getresponse().status
            except ConnectionRefusedError:
                continue

    with Program(*bridge):
        assert post(b"1", Idempotency_Key="1") == 204
        assert post(b"1") == post(b"1", Idempotency_Key="2", Content_Length="x") == 400
    for key, side in ("2", "before"), ("3", "after"):
        with Program(*bridge, until=f"{COMMIT} 1 {side}"), pytest.raises(http.client.RemoteDisconnected):
            post(key.encode(), Idempotency_Key=key)
    with Program(*bridge):
        assert [post(key.encode(), Idempotency_Key=key) for key in "3142"] == [204] * 4
    assert left(plant) == [("/press-7", body) for body in (b"1", b"3", b"4", b"2")]
