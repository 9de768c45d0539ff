"""The program of `make bench` for mqtt_as, with a client and a broker of ours in place of its own: it publishes what it
has noted, whichever file MQTT_AS_DIR has.
"""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer

import pytest

from tests.bench import bench_loss
from tests.bench.bench_board import FIGURE, MICROPYTHON

# As much of mqtt_as as the program uses. A line is a message, and its echo the acknowledgement.
CLIENT = """
import asyncio, network
from machine import unique_id
assert network.WLAN(network.STA_IF).isconnected() and unique_id()
class MQTTClient:
    def __init__(self, config):
        assert config["clean"] is False and config["client_id"] == "sensor"
        self.config = config
    async def connect(self):
        self.stream = (await asyncio.open_connection(self.config["server"], self.config["port"]))[0]
    async def publish(self, topic, message, qos):
        line = b"%s %d %s\\n" % (topic.encode(), qos, message)
        self.stream.write(line)
        await self.stream.drain()
        assert await self.stream.readline() == line
"""
DICTIONARY = CLIENT + "config = {}\n"
# mqtt_async has an object, a log, and a way of its own to connect, which does not work on a host
OBJECT = """
import logging
logging.getLogger(__name__).warning("told", 1)
async def open_connection(address):
    raise OSError("the bench has one that works")
class Config:
    client_id = clean = server = port = ssid = wifi_pw = None
    def __setitem__(self, name, value):
        assert hasattr(self, name)
        setattr(self, name, value)
    __getitem__ = lambda self, name: getattr(self, name)
config = Config()
"""
OBJECT += CLIENT.replace(
    '(await asyncio.open_connection(self.config["server"], self.config["port"]))[0]', "await open_connection(0)"
)


class Echo(StreamRequestHandler):
    """Takes messages and acknowledges them."""

    def handle(self) -> None:
        for line in self.rfile:
            heard.append(line)
            self.wfile.write(line)


heard: list[bytes] = []


def expected(*numbers: int) -> list[bytes]:
    return [b"bench 1 %064d\n" % number for number in numbers]


@pytest.mark.parametrize(
    ("name", "text"), [("mqtt_as.py", DICTIONARY), ("mqtt_as/__init__.py", DICTIONARY), ("mqtt_async.py", OBJECT)]
)
def test_the_program_for_mqtt_as_publishes_what_it_has_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    if not MICROPYTHON.exists():
        pytest.skip(f"{MICROPYTHON} is missing: make firmware builds it")
    there = tmp_path / "peer" / name
    there.parent.mkdir(parents=True)
    there.write_text(text)
    monkeypatch.setenv("MQTT_AS_DIR", str(tmp_path / "peer"))
    assert bench_loss.mqtt_as() == [name]
    assert bench_loss.code_bytes(tmp_path / "peer", [name]) > 100
    heard.clear()
    program = tmp_path / "sensor.py"
    program.write_text(bench_loss.OtherClient.program)
    with ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def live(count: int) -> dict[str, str]:
            done = subprocess.run(
                [MICROPYTHON, program, tmp_path, str(server.server_address[1]), str(count)],
                env={"MICROPYPATH": f".frozen:{os.environ['MQTT_AS_DIR']}"},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            return dict(FIGURE.findall(done.stdout))

        assert {"memory", "seconds"} <= live(3).keys()
        assert heard == expected(1, 2, 3)
        live(5)  # the power has failed since: the last one counts as not acknowledged
        assert heard == expected(1, 2, 3, 3, 4, 5)
        server.shutdown()


def test_a_folder_without_mqtt_as_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MQTT_AS_DIR", raising=False)
    assert bench_loss.mqtt_as() == []
    monkeypatch.setenv("MQTT_AS_DIR", str(tmp_path))
    with pytest.raises(SystemExit, match=r"has neither mqtt_as\.py, .* name the folder with one"):
        bench_loss.mqtt_as()
