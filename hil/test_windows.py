"""MSMQ on Windows and this queue manager: what each sends, the other has once, in order, or says why not.

    ORDACK_WINDOWS=192.168.1.20 .venv/bin/python -m pytest hil/test_windows.py

There, host/examples/windows/ordack-trial.ps1 runs and does what messages ask for: see host/docs/how-to/windows.md.
Without the variable a second `ordack serve` stands in Windows' place, with the timing of the specification.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mqqb import confirm
from ordack.broker.message import Letter, Message, letter_of
from ordack.client import Client, Empty
from ordack.config.config import PORT, parse_address
from ordack.store import packet_fields

from tests.support.command import ROOT, Serve, ordack, own_port

pytestmark = pytest.mark.timeout(600)

WINDOWS = os.environ.get("ORDACK_WINDOWS", "")
SCRIPT = ROOT / "host" / "examples" / "windows" / "ordack-trial.ps1"
CONTROL = "ordack-trial"  # the queue there that commands go to; the names of all others begin with it
DEAD, JOURNAL = "system$;deadxact", "system$;journal"
PATIENCE_S = 60.0  # that anything may take
LIFE_S = 600  # TimeToReachQueue of what is sent: nothing stays for long where it is in the way
LARGE = 1_000_000  # bytes
COMMANDS = {
    "hello": (),
    "create": ("queue", "transactional"),
    "send": ("to", "key", "delivery", "first", "count", "size", "deadletter", "journal", "ttrq"),
    "receive": ("queue", "count", "seconds"),
    "echo": ("queue", "to", "seconds", "ttrq"),
    "look": ("place", "key"),
    "purge": ("queue",),
    "end": (),
}


def body_of(number: int, size: int) -> bytes:
    """As New-Body of the script."""
    return bytes((number + at) % 251 for at in range(size - number * 37 % min(size, 500)))


class Trial:
    """Both sides: `client` sends and receives here, `ask` lets the script on the other machine do something."""

    def __init__(self, folder: Path, host: str, port: int, own: str, own_port: int) -> None:
        self.store = folder / "store"
        self.capture = folder / "capture.pcapng"
        self.run = secrets.token_hex(3)
        self.there, self.own = _direct(host), _direct(own)
        self._words = ("--next-hop", f"{host}={host}:{port}", "--capture", str(self.capture))
        self._listen = f"{own}:{own_port}"
        with Client(self.store, create=True) as client:
            client.create_queue(f"{CONTROL}-answers", transactional=False)
        (self.store / "ordack.toml").write_text(f"own-names = ['{own}']\n")
        self._number = 0
        self.start()

    def start(self) -> None:
        self.serve = Serve(self.store, *self._words, listen=self._listen)
        self.client = Client(self.store)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.client.close()
        self.serve.stop(number)

    def restart(self) -> None:
        """With SIGKILL: all connections end where they are."""
        self.stop(signal.SIGKILL)
        self.start()

    def post(self, command: str, **fields: Any) -> int:
        """Send a command; its number."""
        assert set(fields) == set(COMMANDS[command]), (command, fields)
        self._number += 1
        reply = f"{self.own}\\private$\\{CONTROL}-answers"
        asked = {"number": self._number, "run": self.run, "reply": reply, "command": command, **fields}
        self.client.send(
            f"{self.there}\\private$\\{CONTROL}",
            json.dumps(asked).encode(),
            f"{self.run} {command} {self._number}",
            delivery="recoverable",
        )
        return self._number

    def answer(self, number: int, seconds: float = PATIENCE_S) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while True:
            try:
                with self.client.queue(f"{CONTROL}-answers").receive(max(0.0, deadline - time.monotonic())) as message:
                    found: dict[str, Any] = json.loads(message.body.decode("utf-8-sig"))
            except Empty:
                pytest.fail(f"the script there has not answered in {seconds:.0f} s; connections: {self.connections()}")
            if found["number"] == number:
                assert found["ok"], f"the script there says: {found['error']}"
                return found

    def ask(self, command: str, **fields: Any) -> dict[str, Any]:
        return self.answer(self.post(command, **fields), PATIENCE_S + fields.get("seconds", 0))

    def connections(self) -> str:
        return ordack("status", "--store", self.store).stdout

    def queue_there(self, key: str, transactional: bool = True) -> str:
        """A new queue there: its name."""
        name = f"{CONTROL}-{self.run}-{key}"
        self.ask("create", queue=name, transactional=transactional)
        return name

    def queue_here(self, key: str, transactional: bool = True) -> str:
        return str(self.client.create_queue(f"{CONTROL}-{self.run}-{key}", transactional).name)

    def letter(self, queue: str, number: int, size: int = 500, **more: Any) -> Letter:
        """A message for a queue there."""
        label, to = f"{self.run} {queue} {number}", f"{self.there}\\private$\\{queue}"
        return letter_of(
            to, body_of(number, size), label=label, **{"delivery": "transactional", "ttrq": LIFE_S, **more}
        )

    def send_back(
        self, queue: str, numbers: range, delivery: str = "transactional", size: int = 500, **more: Any
    ) -> int:
        """Let the script send messages to a queue here; the number of the command."""
        return self.post(
            "send",
            to=f"{self.own}\\private$\\{queue}",
            key=queue,
            delivery=delivery,
            first=numbers.start,
            count=len(numbers),
            size=size,
            **{"deadletter": False, "journal": False, "ttrq": LIFE_S, **more},
        )

    def take_there(self, queue: str, count: int) -> tuple[list[int], str]:
        """Let an application there receive: the numbers in the labels, and the hash of all bodies."""
        numbers: list[int] = []
        bodies = []
        deadline = time.monotonic() + PATIENCE_S
        while len(numbers) < count and time.monotonic() < deadline:
            found = self.ask("receive", queue=queue, count=count - len(numbers), seconds=5)
            numbers += [int(label.rpartition(" ")[2]) for label in found["labels"]]
            bodies.append(found["sha256"].lower())
        return numbers, bodies[0] if len(bodies) == 1 else ""

    def take_here(self, queue: str, count: int) -> list[Message]:
        found: list[Message] = []
        while len(found) < count:
            with self.client.queue(queue).receive_batch(count - len(found), PATIENCE_S) as messages:
                found += messages
            if not messages:
                break
        return found

    def state(self, message: int, is_right: Callable[[str], bool]) -> confirm.Conclusion:
        """What is known of a message that was sent from here, once this is right."""
        found = self.client.state(message)
        deadline = time.monotonic() + PATIENCE_S
        while (found is None or not is_right(found.answer)) and time.monotonic() < deadline:
            time.sleep(0.05)
            found = self.client.state(message)
        assert found is not None
        assert is_right(found.answer), found
        return found

    def look(self, place: str, key: str) -> list[int]:
        """The classes of messages of this key in the dead-letter queue or journal there, once there is one."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := self.ask("look", place=place, key=key)["classes"]) and time.monotonic() < deadline:
            time.sleep(0.2)
        return list(map(int, found))


def _direct(host: str) -> str:
    """The beginning of a direct format name of this machine."""
    return f"DIRECT={'TCP' if re.fullmatch('[0-9.]+', host) else 'OS'}:{host}"


class Standin(threading.Thread):
    """The commands of the script, done by an `ordack serve` in Windows' place."""

    def __init__(self, store: Path) -> None:
        super().__init__(daemon=True)
        self.store = store
        self.ended = threading.Event()

    def run(self) -> None:
        with Client(self.store) as client:
            while not self.ended.is_set():
                try:
                    with client.queue(CONTROL).receive(0.2) as message:
                        c = json.loads(message.body)
                except Empty:
                    continue
                answer = {"number": c["number"], "ok": True, **getattr(self, f"_{c['command']}")(client, c)}
                client.send(c["reply"], json.dumps(answer).encode(), delivery="recoverable", ttrq=LIFE_S)

    def _hello(self, _client: Client, _c: dict[str, Any]) -> dict[str, Any]:
        return {"system": "a second ordack", "hardened": False, "time": time.time()}

    def _create(self, client: Client, c: dict[str, Any]) -> dict[str, Any]:
        client.create_queue(c["queue"], c["transactional"])
        return {}

    def _send(self, client: Client, c: dict[str, Any]) -> dict[str, Any]:
        more = {"delivery": c["delivery"], "dead_letter": c["deadletter"], "journal": c["journal"], "ttrq": c["ttrq"]}
        for n in range(c["first"], c["first"] + c["count"]):
            client.send(c["to"], body_of(n, c["size"]), f"{c['run']} {c['key']} {n}", **more)
        return {}

    def _receive(self, client: Client, c: dict[str, Any]) -> dict[str, Any]:
        found: list[Message] = []
        while len(found) < c["count"]:
            with client.queue(c["queue"]).receive_batch(c["count"] - len(found), c["seconds"]) as messages:
                found += messages
            if not messages:
                break
        total = hashlib.sha256(b"".join(message.body for message in found))
        return {"labels": [message.label for message in found], "sha256": total.hexdigest()}

    def _echo(self, client: Client, c: dict[str, Any]) -> dict[str, Any]:
        names = ("label", "priority", "correlation_id", "application_tag", "extension")
        with client.queue(c["queue"]).receive(c["seconds"]) as came:
            same: dict[str, Any] = {name: getattr(came, name) for name in names}
            client.send(c["to"], came.body, delivery="recoverable", ttrq=c["ttrq"], **same)
            number = int.from_bytes(came.correlation_id[16:], "little")
            correlation = f"{uuid.UUID(bytes_le=came.correlation_id[:16])}\\{number}"
        return {
            "label": came.label,
            "priority": came.priority,
            "tag": came.application_tag,
            "extension": came.extension.hex(),
            "correlation": correlation,
            "recoverable": came.delivery == "recoverable",
        }

    def _look(self, client: Client, c: dict[str, Any]) -> dict[str, Any]:
        found = client.queue(DEAD if c["place"] == "deadletters" else JOURNAL).peek()
        start = f"{c['run']} {c['key']} "
        return {"classes": [message.message_class for message in found if message.label.startswith(start)]}

    def _purge(self, client: Client, c: dict[str, Any]) -> dict[str, Any]:
        client.purge_queue(c["queue"])
        return {}

    def _end(self, _client: Client, _c: dict[str, Any]) -> dict[str, Any]:
        return {}


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    folder = tmp_path_factory.mktemp("windows")
    print(f"{folder} has the capture")
    if WINDOWS:
        host, port = parse_address(WINDOWS if ":" in WINDOWS else f"{WINDOWS}:{PORT}")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
            asker.connect((host, 9))
            made = Trial(folder, host, port, os.environ.get("ORDACK_HERE") or asker.getsockname()[0], PORT)
        yield made
        made.ask("end")
        made.stop()
        return
    host, own = "127.0.0.2", "127.0.0.3"
    back, there = own_port(own), folder / "there"
    with Client(there, create=True) as client:
        client.create_queue(CONTROL, transactional=False)
    (there / "ordack.toml").write_text(f"own-names = ['{host}']\n[settings]\nEarlyOrderAck = 0\n")
    serve = Serve(there, "--next-hop", f"{own}={own}:{back}", listen=f"{host}:0")
    script = Standin(there)
    script.start()
    made = Trial(folder, host, serve.port, own, back)
    yield made
    made.stop()
    script.ended.set()
    script.join()
    serve.stop()


MANY = 1000 if WINDOWS else 100
KINDS = pytest.mark.parametrize(
    ("delivery", "numbers", "size"),
    [
        ("express", range(1, 21), 500),
        ("recoverable", range(1, 21), 500),
        ("transactional", range(1, MANY + 1), 500),
        pytest.param("transactional", range(1), LARGE, id="large"),
    ],
)


def test_both_sides_meet_and_their_clocks_agree(trial: Trial) -> None:
    before = time.time()
    there = trial.ask("hello")
    print(there)
    assert not there["hardened"], "hardened_msmq is set there: after its next restart it does not speak this protocol"
    assert before - 5 < there["time"] < time.time() + 5, "set the clocks: TimeToReachQueue counts from the sender's"


@KINDS
def test_messages_to_there_come_once_in_order_and_whole(trial: Trial, delivery: str, numbers: range, size: int) -> None:
    queue = trial.queue_there(f"to-{delivery}-{size}", delivery == "transactional")
    trial.client.send_many(trial.letter(queue, n, size, delivery=delivery) for n in numbers)
    found, bodies = trial.take_there(queue, len(numbers))
    assert found == list(numbers)
    if bodies:
        assert bodies == hashlib.sha256(b"".join(body_of(n, size) for n in numbers)).hexdigest()


@KINDS
def test_messages_from_there_come_once_in_order_and_whole(
    trial: Trial, delivery: str, numbers: range, size: int
) -> None:
    queue = trial.queue_here(f"from-{delivery}-{size}", delivery == "transactional")
    trial.answer(trial.send_back(queue, numbers, delivery, size))
    found = trial.take_here(queue, len(numbers))
    assert [message.body for message in found] == [body_of(n, size) for n in numbers]
    assert {message.delivery for message in found} == {delivery}


@pytest.mark.rule("B-003", "B-011", "B-361")
@pytest.mark.parametrize("way", ["to", "from"])
def test_queue_manager_kills_lose_and_double_nothing(trial: Trial, way: str) -> None:
    numbers = range(1, MANY + 1)
    queue = trial.queue_there("to-kills") if way == "to" else trial.queue_here("from-kills")
    if way == "to":
        trial.client.send_many(trial.letter(queue, n) for n in numbers)
    else:
        trial.send_back(queue, numbers)
    for _ in range(3):
        trial.restart()
    if way == "to":
        assert trial.take_there(queue, len(numbers))[0] == list(numbers)
        assert trial.ask("receive", queue=queue, count=1, seconds=0)["labels"] == []
    else:
        assert [message.body for message in trial.take_here(queue, MANY)] == [body_of(n, 500) for n in numbers]
        assert not list(trial.client.queue(queue).peek())


def test_message_properties_survive_round_trip_with_windows(trial: Trial) -> None:
    queue, back = trial.queue_there("properties", False), trial.queue_here("properties", False)
    said: dict[str, Any] = {
        "label": "Gr\u00f6\u00dfe \u2192 \u6e29\u5ea6",
        "priority": 6,
        "correlation_id": bytes(range(1, 21)),
        "application_tag": 4711,
        "extension": b"\0\1\xff",
    }
    to = f"{trial.there}\\private$\\{queue}"
    trial.client.send(to, bytes(range(256)), delivery="recoverable", ttrq=LIFE_S, **said)
    found = trial.ask("echo", queue=queue, to=f"{trial.own}\\private$\\{back}", seconds=5, ttrq=LIFE_S)
    names = ("label", "priority", "tag", "extension", "correlation", "recoverable")
    correlation = f"{uuid.UUID(bytes_le=bytes(range(1, 17)))}\\{int.from_bytes(bytes(range(17, 21)), 'little')}"
    assert [found[name] for name in names] == [said["label"], 6, 4711, "0001ff", correlation, True]
    [message] = trial.take_here(back, 1)
    assert {name: getattr(message, name) for name in said} == said
    assert message.body == bytes(range(256))


@pytest.mark.rule("B-256", "B-257", "C-55", "C-58")
@pytest.mark.parametrize("wanted", [confirm.NACK_BAD_DST_Q, confirm.NACK_NOT_TRANSACTIONAL_Q])
def test_message_refused_by_windows_is_dead_letter_on_ordack(trial: Trial, wanted: int) -> None:
    queue = f"{CONTROL}-{trial.run}-nowhere"
    if wanted == confirm.NACK_NOT_TRANSACTIONAL_Q:
        queue = trial.queue_there("plain", False)
    [sent] = trial.client.send_many([trial.letter(queue, 1, dead_letter=True)])
    found = trial.state(sent.message_id, lambda answer: answer == confirm.DEAD_LETTERED)
    assert found.message_class == wanted


@pytest.mark.rule("B-243")
@pytest.mark.parametrize("wanted", [confirm.NACK_BAD_DST_Q, confirm.NACK_NOT_TRANSACTIONAL_Q])
def test_message_refused_by_ordack_is_dead_letter_on_windows(trial: Trial, wanted: int) -> None:
    queue = f"{CONTROL}-{trial.run}-nowhere"
    if wanted == confirm.NACK_NOT_TRANSACTIONAL_Q:
        queue = trial.queue_here("plain", False)
    trial.answer(trial.send_back(queue, range(1, 2), deadletter=True))
    assert trial.look("deadletters", queue) == [wanted]


@pytest.mark.rule("B-311", "B-313")
def test_message_expired_on_ordack_never_reaches_windows(trial: Trial) -> None:
    queue = trial.queue_there("expires")
    trial.stop()
    with Client(trial.store) as client:
        [sent] = client.send_many([trial.letter(queue, 1, ttrq=1, dead_letter=True)])
        time.sleep(2)  # of TimeToReachQueue, a time of the machine's clock
    trial.start()
    found = trial.state(sent.message_id, lambda answer: answer == confirm.DEAD_LETTERED)
    assert found.message_class == confirm.NACK_REACH_QUEUE_TIMEOUT
    assert trial.ask("receive", queue=queue, count=1, seconds=1)["labels"] == []


def test_receive_ack_arrives_only_after_remote_receive(trial: Trial) -> None:
    queue = trial.queue_there("received")
    [sent] = trial.client.send_many([trial.letter(queue, 1, dead_letter=True)])
    trial.state(sent.message_id, lambda answer: answer == confirm.STORED)
    trial.take_there(queue, 1)
    trial.state(sent.message_id, lambda answer: answer == confirm.RECEIVED)


@pytest.mark.rule("B-242")
def test_receive_on_ordack_is_confirmed_on_windows_afterwards(trial: Trial) -> None:
    queue = trial.queue_here("received")
    trial.answer(trial.send_back(queue, range(1, 2), journal=True))
    with trial.client.queue(queue).receive(PATIENCE_S):
        assert trial.ask("look", place="journal", key=queue)["classes"] == []
    assert len(trial.look("journal", queue)) == 1


def test_purge_on_windows_is_reported_to_ordack(trial: Trial) -> None:
    queue = trial.queue_there("purged")
    [sent] = trial.client.send_many([trial.letter(queue, 1, dead_letter=True)])
    trial.state(sent.message_id, lambda answer: answer == confirm.STORED)
    trial.ask("purge", queue=queue)
    found = trial.state(sent.message_id, lambda answer: answer == confirm.DEAD_LETTERED)
    assert found.message_class == confirm.NACK_Q_PURGED


def test_administration_acknowledgements_come_from_there(trial: Trial) -> None:
    queue, told = trial.queue_there("acknowledged"), trial.queue_here("told", False)
    admin = f"{trial.own}\\private$\\{told}"
    [sent] = trial.client.send_many(
        [trial.letter(queue, 1, acknowledge=("reach-queue", "receive"), administration_queue=admin)]
    )
    came = trial.take_here(told, 1)
    trial.take_there(queue, 1)
    came += trial.take_here(told, 1)
    assert [one.message_class for one in came] == [confirm.ACK_REACH_QUEUE, confirm.ACK_RECEIVE]
    assert {one.correlation_id for one in came} == {packet_fields.identifier(trial.client.store.guid, sent.message_id)}


def test_the_capture_of_all_of_it_has_no_violation(trial: Trial) -> None:
    queue = trial.queue_there("captured")
    trial.client.send_many(trial.letter(queue, n) for n in range(1, MANY + 1))
    assert trial.take_there(queue, MANY)[0] == list(range(1, MANY + 1))
    trial.stop()
    done = ordack("capture", "audit", "--no-spark", "--json", *sorted(trial.capture.parent.glob("capture*.pcapng")))
    trial.start()
    said = json.loads(done.stdout.splitlines()[-1])
    assert not any(said["violations"].values()), done.stdout  # a kill costs the end of its file
    assert said["packets"] > MANY


def test_the_script_knows_the_commands_of_this_side() -> None:
    text = SCRIPT.read_text(encoding="utf-8")
    blocks = dict(re.findall(r"^    '(\w+)' = \{\n(.*?)^    \}", text, re.DOTALL | re.MULTILINE))
    assert set(blocks) == set(COMMANDS)
    for command, fields in COMMANDS.items():
        used = set(re.findall(r"\$c\.(\w+)", blocks[command])) - {"run"}
        assert used == set(fields), command
    assert f"$prefix = '{CONTROL}'" in text
