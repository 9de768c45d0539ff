"""SIGHUP: `serve` reads its file again; what can be taken up is, what cannot is told, and a mistake changes nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from mqqb import guids
from ordack.client import Client
from ordack.config.config import parse_serial
from ordack.config.config_file import ConfigFile, Running, parse, with_serial
from ordack.config.settings import TABLES

from tests.support.command import DEADLINE_S, Serve, converse, outgoing_of, own_port
from tests.support.host_peer import Peer, direct
from tests.support.watched import until

ONE, TWO = bytes([1]) * 16, bytes([2]) * 16
START = "[[listen]]\nport = 0\n"


class Plant:
    """A running `serve` with a file, and what it logs."""

    def __init__(self, store: Path, text: str | None = START, *arguments: str, listen: str | None = None) -> None:
        self.store = store
        with Client(store, create=True) as client:
            client.create_queue("line1", transactional=True)
        self.file = store / "ordack.toml"
        if text is not None:
            self.file.write_text(text)
        self.serve = Serve(store, *arguments, listen=listen)
        self.port = self.serve.port
        self.lines: list[str] = []
        self._came = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.serve.process.stderr
        for line in self.serve.process.stderr:
            with self._came:
                self.lines.append(line)
                self._came.notify_all()

    def until(self, said: str) -> str:
        """The first line with this that was not asked for before; all up to it are gone then."""
        deadline = time.monotonic() + DEADLINE_S
        with self._came:
            while not any(said in line for line in self.lines):
                assert self._came.wait(deadline - time.monotonic()), self.lines
            place = next(number for number, line in enumerate(self.lines) if said in line)
            found = self.lines[place]
            del self.lines[: place + 1]
            return found

    def reload(self, text: str, first: str = "") -> str:
        """Write the file and ask for it; what is told of it. first: something that is told before."""
        self.file.write_text(text)
        self.serve.process.send_signal(signal.SIGHUP)
        if first:
            self.until(first)
        return self.until(" again; taken up: ")

    def send(self, guid: bytes, body: bytes, stamp: int) -> dict[int, int]:
        """Send a message to line1 from a new peer; its negative FinalAcks."""
        peer = Peer(guid, direct("line1"), time_stamp=stamp)
        peer.send(body)
        converse(peer, self.port)
        return peer.rejected


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[Callable[..., Plant]]:
    made: list[Plant] = []

    def make(*arguments: Any, **options: Any) -> Plant:
        made.append(Plant(tmp_path / "store", *arguments, **options))
        return made[-1]

    yield make
    for one in made:
        one.serve.process.kill()
        one.serve.process.wait()


def test_every_part_of_a_file_is_a_difference_when_it_has_changed() -> None:
    text = f"""
        own-names = ["plant"]
        log-format = "json"
        http = 9180
        http-token-file = "http-token"
        [[listen]]
        [[applications]]
        port = 1804
        [tls]
        certificate = "plant.pem"
        key = "plant.key"
        authority = "ca.pem"
        [queues.line1]
        [queues.'*']
        allow-sources = []
        [names]
        "{guids.guid_text(ONE)}" = "press 7"
        [[serial]]
        port = "/dev/ttyACM0"
        [next-hops]
        a = "tls://b:5"
        [public-queues]
        "{guids.guid_text(ONE)}" = 'DIRECT=OS:plant\\private$\\line1'
        [capture]
        file = "x.pcap"
        [settings]
        Quota = 5
        """
    before, file = Running(ConfigFile()), parse(text, Path("x.toml"))
    told = before.differences(file)
    assert set(told) == {*filter(None, TABLES), *TABLES[""].keys, "Quota"} - {"settings"}
    waits = {"own-names", "log-format", "http", "serial", "capture", "listen", "applications"}
    assert set(before.taking_up(file).differences(file)) == waits
    fields = {one.name for one in dataclasses.fields(ConfigFile)} - {"path", "numbers", "capture_size", "tls_hops"}
    assert {name.replace("-", "_") for name in told} - {"Quota"} == fields


def test_rights_limits_and_numbers_are_taken_up(plant: Callable[..., Plant]) -> None:
    here = plant()
    assert here.send(ONE, b"1", 100) == {}
    told = here.reload(
        START + f"[queues.line1]\nallow-sources = ['{guids.guid_text(TWO)}']\n[settings]\nQuota = 7777777\n"
    )
    assert "taken up: queues, Quota" in told
    assert list(here.send(ONE, b"2", 101).values()) == [0x8004]
    assert here.send(TWO, b"3", 102) == {}
    with Client(here.store) as client:
        assert client.config().quota == 7_777_777
        assert [message.body for message in client.queue("line1").peek()] == [b"1", b"3"]
    assert "taken up: queues, Quota" in here.reload(START)
    here.send(ONE, b"4", 103)  # the FinalAck of b"2" may come once more
    with Client(here.store) as client:
        assert client.config().quota == 8 << 30
        assert [message.body for message in client.queue("line1").peek()] == [b"1", b"3", b"4"]
    assert "nothing has changed" in here.reload(START)
    assert "nothing has changed" in here.reload(START)  # told again, although it was told a moment ago


def test_a_limit_of_sessions_is_taken_up(plant: Callable[..., Plant]) -> None:
    here = plant()
    assert "taken up: MaxInSessionsPerAddress" in here.reload(START + "[settings]\nMaxInSessionsPerAddress = 1\n")
    with socket.create_connection(("127.0.0.1", here.port), DEADLINE_S):
        with socket.create_connection(("127.0.0.1", here.port), DEADLINE_S) as second:
            here.until("127.0.0.1: refused, 1 sessions from there")
            assert second.recv(1) == b""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (START + "[settings]\nQota = 5\n", "did you mean Quota?"),
        ("[[listen]\n", "it is no TOML"),
        (START + "[[serial]]\nport = 'a'\n", "a: there are two ways to it"),
    ],
)
def test_a_mistake_leaves_all_as_it_was_and_is_told_each_time(
    plant: Callable[..., Plant], text: str, said: str
) -> None:
    closed = START + "[queues.line1]\nallow-sources = []\n"
    here = plant(closed, "--next-hop", "a=127.0.0.1:5")
    for stamp in (100, 101):
        here.file.write_text(text)
        here.serve.process.send_signal(signal.SIGHUP)
        here.until(said)
        here.until("the running settings stay as they were")
        assert list(here.send(ONE, b"x", stamp).values()) == [0x8004]  # same place, same right
    here.file.unlink()
    here.serve.process.send_signal(signal.SIGHUP)
    here.until("ordack.toml is not there any more")
    assert list(here.send(ONE, b"x", 102).values()) == [0x8004]
    assert "nothing has changed" in here.reload(closed)


def test_who_may_connect_is_taken_up_and_where_waits_for_the_next_start(plant: Callable[..., Plant]) -> None:
    here = plant(START + "[[listen]]\naddress = '127.0.0.2'\nport = 0\n")
    assert here.serve.process.stdout
    other = int(here.serve.process.stdout.readline().rpartition(":")[2])
    with (
        socket.create_connection(("127.0.0.1", here.port), DEADLINE_S) as one,
        socket.create_connection(("127.0.0.2", other), DEADLINE_S) as two,
    ):
        assert "taken up: nothing" in here.reload(START)
        here.until("listen: what is new there counts from the next start of `serve`")
        text = START + "[[listen]]\naddress = '127.0.0.2'\nport = 0\nallow = ['127.0.0.3']\n"
        here.reload(text, "127.0.0.1: session closed, it may not connect to 127.0.0.2")
        assert two.recv(1) == b""
        one.settimeout(0.0)
        with pytest.raises(BlockingIOError):
            one.recv(1)
    with socket.create_connection(("127.0.0.2", other), DEADLINE_S) as refused:
        assert refused.recv(1) == b""
    assert here.send(ONE, b"x", 100) == {}


def test_what_counts_from_the_next_start_is_told_and_options_stay(plant: Callable[..., Plant]) -> None:
    here = plant(START, listen="127.0.0.1:0")
    told = here.reload("own-names = ['x']\n[settings]\nTryConnectInterval = 7\nQuota = 5\n[[listen]]\nport = 1\n")
    assert "taken up: Quota" in told
    here.until("own-names, TryConnectInterval: what is new there counts from the next start of `serve`")
    with Client(here.store) as client:
        assert client.store.names()["own"] == []
    socket.create_connection(("127.0.0.1", here.port), DEADLINE_S).close()  # the option --listen stays in force


def test_a_file_that_was_not_there_is_found(plant: Callable[..., Plant]) -> None:
    here = plant(None, listen="127.0.0.1:0")
    assert "taken up: queues" in here.reload("[queues.'*']\nallow-sources = []\n")
    assert list(here.send(ONE, b"x", 100).values()) == [0x8004]


def test_what_waits_and_what_follows_goes_the_new_way(plant: Callable[..., Plant], tmp_path: Path) -> None:
    offices = [Plant(tmp_path / name, listen="127.0.0.1:0") for name in ("first", "second")]
    here = plant(START + f"[next-hops]\noffice = '127.0.0.1:{own_port()}'\n")

    def send(body: bytes) -> None:
        with Client(here.store) as client:
            client.send("DIRECT=OS:office\\private$\\line1", body)

    def settled() -> bool:
        return not any(row["messages"] for row in outgoing_of(here.store))

    def received(office: Plant) -> bytes:
        with Client(office.store) as client, client.queue("line1").receive(timeout=DEADLINE_S) as message:
            return message.body

    try:
        send(b"1")
        for office, body in zip(offices, (b"2", b"3"), strict=True):
            told = here.reload(START + f"[next-hops]\noffice = '127.0.0.1:{office.port}'\n")
            assert "taken up: next-hops" in told
            if body == b"2":
                assert received(office) == b"1"
            send(body)
            assert received(office) == body
            until(settled, "no acknowledgement: what is in flight goes the next way, too")
        here.file.write_text(START + f"[next-hops]\noffice = '127.0.0.1:{offices[0].port}'\nplant = 'nowhere'\n")
        here.serve.process.send_signal(signal.SIGHUP)
        here.until("the running settings stay as they were")
        send(b"4")
        assert received(offices[1]) == b"4"
    finally:
        for office in offices:
            office.serve.process.kill()


def test_a_serial_line_that_waits_for_the_next_start_is_no_way_yet_and_keeps_its_own() -> None:
    def of(line: str, hop: int) -> ConfigFile:
        lines = (parse_serial(line),)
        return ConfigFile(serial=lines, next_hops=with_serial({"a": ("b", hop)}, lines))

    taken = Running(of("old=/dev/ttyACM0", 1)).taking_up(of("new=/dev/ttyACM0", 2))
    assert dict(taken.file.next_hops) == {"a": ("b", 2), "old": ("old", 0)}
    assert taken.differences(of("new=/dev/ttyACM0", 2)) == ["serial"]
    with pytest.raises(ValueError, match="old: there are two ways to it"):
        taken.taking_up(ConfigFile(next_hops={"old": ("b", 1)}))


def test_a_new_token_of_the_page_is_taken_up(plant: Callable[..., Plant]) -> None:
    here = plant(START, "--http", "0")
    assert here.serve.process.stdout
    port = int(here.serve.process.stdout.readline().rpartition(":")[2].partition("/")[0])
    file = here.store / "http-token"

    def status(token: str) -> int:
        with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)) as connection:
            connection.request("GET", "/overview", headers={"Authorization": f"Bearer {token}", "Host": "plant.test"})
            return connection.getresponse().status

    def write(token: str, mode: int = 0o600) -> None:
        file.write_text(token)
        file.chmod(mode)

    assert status("first" * 4) == 401
    write("first" * 4)
    text = f"http-token-file = 'http-token'\n{START}[queues.'*']\nallow-sources = []\n"
    assert "taken up: http-token-file" in here.reload(f"http-token-file = 'http-token'\n{START}")
    assert status("first" * 4) == 200
    write("second" * 4, 0o644)
    here.file.write_text(text)
    here.serve.process.send_signal(signal.SIGHUP)
    assert "http-token-file: " in here.until("chmod 600")
    here.until("the running settings stay as they were")
    assert status("first" * 4) == 200
    assert here.send(ONE, b"1", 100) == {}
    file.chmod(0o600)
    assert "taken up: queues, the token in http-token-file" in here.reload(text)
    assert (status("second" * 4), status("first" * 4)) == (200, 401)
    assert list(here.send(ONE, b"2", 101).values()) == [0x8004]
    assert "taken up: http-token-file" in here.reload(START)
    assert status("second" * 4) == 401
