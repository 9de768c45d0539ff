"""A second `ordack serve` in Windows' place, with Windows' defaults and timing, and what the script does there.

host/examples/windows/ordack-interop.ps1 is what runs on Windows; this speaks the same commands through `Client`.
`faults` break it on purpose.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ordack.client import Client, Empty
from ordack.interop import language

from tests.support.command import DEADLINE_S, Serve, ordack, write_settings

HOST = "127.0.0.2"  # of the stand-in, in direct names and for connections
HERE = "127.0.0.3"  # of the side that tries it
DEAD, JOURNAL = "system$;deadxact", "system$;journal"
PLACES = {"deadletters": DEAD, "journal": JOURNAL}
FAULTS = {
    "twice there": "an application there receives a message twice",
    "twice": "sends a message twice",
    "again": "an application there receives a message again, when all is over",
    "disorder there": "receives in another order",
    "disorder": "sends in another order",
    "loses": "does not send one",
    "damages": "sends another body",
    "damages there": "receives another body",
    "express": "sends recoverable messages as express ones",
    "renames": "does not keep a label",
    "no dead letters": "does not ask for dead letters",
    "no FinalAck": "never ends a receive, so that no FinalAck goes out",
    "keeps": "does not purge",
    "no plain queue": "makes no queues without transactions",
    "another class": "writes another class on dead letters",
    "early journal": "puts copies into the journal when it sends",
    "old": "is of another version",
    "clock": "its clock is an hour ahead",
    "stops": "answers nothing after the greeting",
    "refuses": "cannot make queues",
    "incomplete": "its answers have less than they should",
}


def body_of(number: int, size: int) -> bytes:
    """As New-Body of the script."""
    return bytes((number + at) % 251 for at in range(size - number * 37 % min(size, 500)))


class Standin:
    """Runs until `stop`. port: where it listens. back: the port of the side that tries it. script: does the script run?
    settings: of its ordack.toml, beside those that make it keep Windows' timing. file: the other tables of it."""

    def __init__(
        self,
        folder: Path,
        back: int,
        *faults: str,
        script: bool = True,
        settings: dict[str, int] | None = None,
        file: str = "",
    ) -> None:
        assert set(faults) <= set(FAULTS), faults
        self.faults = set(faults)
        self.done: list[str] = []
        self.store = folder
        self.back = back
        with Client(folder, create=True) as client:
            if script:
                client.create_queue(language.CONTROL)
                client.create_queue(language.PROBE, transactional=True)
        write_settings(folder, EarlyOrderAck=0, **(settings or {}))
        with (folder / "ordack.toml").open("a") as more:
            more.write(file)
        hop = f"{HERE}={HERE}:{back}"
        self.serve = Serve(folder, "--own-name", HOST, "--next-hop", hop, listen=f"{HOST}:0")
        self.port = self.serve.port
        self.failures: list[BaseException] = []
        self._stop = threading.Event()
        self._last: dict[str, int] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        if script:
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident:
            self._thread.join(DEADLINE_S)
        self.serve.stop()
        assert not self.failures, self.failures

    def queues(self) -> list[str]:
        """The names of the queues of trials that are there."""
        with Client(self.store) as client:
            return sorted(
                queue.name
                for queue in client.store.queues.all()
                if queue.name.startswith(language.CONTROL) and queue.name not in (language.CONTROL, language.PROBE)
            )

    def kept(self) -> list[str]:
        """Labels in its dead-letter queue and journal."""
        with Client(self.store) as client:
            return [message.label for place in PLACES.values() for message in client.queue(place).peek()]

    def _run(self) -> None:
        try:
            with Client(self.store) as client:
                control = client.queue(language.CONTROL)
                while not self._stop.is_set():
                    try:
                        with control.receive(0.2) as message:
                            body = message.body
                    except Empty:
                        continue
                    self._do(client, json.loads(body))
        except BaseException as error:  # noqa: BLE001 - `stop` shows it
            self.failures.append(error)

    def _do(self, client: Client, c: dict[str, Any]) -> None:
        if c["number"] <= self._last.get(c["run"], 0):
            return
        self._last[c["run"]] = c["number"]
        self.done.append(c["command"])
        if "stops" in self.faults and c["command"] != "hello":
            return
        work: Callable[[Client, dict[str, Any]], dict[str, Any]] = getattr(self, f"_{c['command']}")
        try:
            answer = {"number": c["number"], "ok": True, **work(client, c)}
        except Exception as error:  # noqa: BLE001 - as the script has it
            answer = {"number": c["number"], "ok": False, "error": str(error)}
        if "incomplete" in self.faults and c["command"] == "receive":
            del answer["labels"]
        client.send(c["reply"], json.dumps(answer).encode(), delivery="recoverable", ttrq=600)

    def _hello(self, client: Client, c: dict[str, Any]) -> dict[str, Any]:
        return {
            "version": language.VERSION + ("old" in self.faults),
            "computer": "STANDIN",
            "system": "a second ordack",
            "powershell": "none",
            "workgroup": True,
            "hardened": False,
            "time": time.time() + 3600 * ("clock" in self.faults),
            "queues": self.queues(),
        }

    def _create(self, client: Client, c: dict[str, Any]) -> dict[str, Any]:
        if "refuses" in self.faults:
            raise PermissionError("Access to Message Queuing system is denied.")
        if c["transactional"] or "no plain queue" not in self.faults:
            client.create_queue(c["queue"], c["transactional"])
        return {}

    def _send(self, client: Client, c: dict[str, Any]) -> dict[str, Any]:
        numbers = list(range(c["first"], c["first"] + c["count"]))
        delivery = c["delivery"]
        if "express" in self.faults and delivery == "recoverable":
            delivery = "express"
        if "disorder" in self.faults:
            numbers.reverse()
        if "twice" in self.faults:
            numbers.insert(1, numbers[0])
        if "loses" in self.faults:
            numbers.pop()
        for n in numbers:
            body = body_of(n, c["size"])
            client.send(
                c["to"],
                bytes(len(body)) if "damages" in self.faults else body,
                label=f"{c['run']} {c['key']} {n}",
                delivery=delivery,
                dead_letter=c["deadletter"] and "no dead letters" not in self.faults,
                journal=c["journal"] and "early journal" not in self.faults,
                ttrq=c["ttrq"],
            )
        return {}

    def _receive(self, client: Client, c: dict[str, Any]) -> dict[str, Any]:
        queue = client.queue(c["queue"])
        if "no FinalAck" in self.faults:
            return self._only_look(queue.peek(), c)
        if c["seconds"] == 0 and "again" in self.faults:
            return {"labels": ["one more"], "sha256": ""}
        found = []
        deadline = time.monotonic() + c["seconds"]
        while len(found) < c["count"]:
            with queue.receive_batch(c["count"] - len(found), max(0, deadline - time.monotonic())) as messages:
                found += [(message.label, message.body) for message in messages]
            if not messages:
                break
        if "disorder there" in self.faults:
            found.reverse()
        labels = [label for label, _ in found]
        if "twice there" in self.faults and labels:
            labels.insert(1, labels[0])
        total = hashlib.sha256(b"".join(body for _, body in found) + b"x" * ("damages there" in self.faults))
        return {"labels": labels, "sha256": total.hexdigest()}

    def _only_look(self, messages: Any, c: dict[str, Any]) -> dict[str, Any]:
        found = list(messages)[: c["count"]]
        total = hashlib.sha256(b"".join(message.body for message in found))
        return {"labels": [message.label for message in found], "sha256": total.hexdigest()}

    def _echo(self, client: Client, c: dict[str, Any]) -> dict[str, Any]:
        with client.queue(c["queue"]).receive(c["seconds"]) as message:
            label = "another" if "renames" in self.faults else message.label
            client.send(
                c["to"],
                message.body,
                label=label,
                priority=message.priority,
                delivery="recoverable",
                correlation_id=message.correlation_id,
                application_tag=message.application_tag,
                extension=message.extension,
                ttrq=c["ttrq"],
            )
            guid, number = message.correlation_id[:16], int.from_bytes(message.correlation_id[16:], "little")
            parts = [guid[3::-1], guid[5:3:-1], guid[7:5:-1], guid[8:10], guid[10:]]
            return {
                "label": label,
                "priority": message.priority,
                "tag": message.application_tag,
                "extension": message.extension.hex(),
                "correlation": f"{'-'.join(part.hex() for part in parts)}\\{number}",
                "recoverable": message.delivery == "recoverable",
                "sha256": hashlib.sha256(message.body).hexdigest().upper(),
            }

    def _look(self, client: Client, c: dict[str, Any]) -> dict[str, Any]:
        if "early journal" in self.faults and c["place"] == "journal":
            return {"classes": [0]}
        start = f"{c['run']} {c['key']} "
        found = client.queue(PLACES[c["place"]]).peek()
        more = "another class" in self.faults
        return {"classes": [message.message_class + more for message in found if message.label.startswith(start)]}

    def _purge(self, client: Client, c: dict[str, Any]) -> dict[str, Any]:
        if "keeps" not in self.faults:
            client.purge_queue(c["queue"])
        return {}

    def _end(self, client: Client, c: dict[str, Any]) -> dict[str, Any]:
        mine = [name for name in self.queues() if name.startswith(f"{language.CONTROL}-{c['run']}-")]
        for name in mine:
            client.delete_queue(name)
        count = 0
        for place in PLACES.values():
            queue = client.queue(place)
            for message in list(queue.peek()):
                if message.label.startswith(f"{c['run']} "):
                    with queue.receive(lookup_id=message.lookup_id):
                        count += 1
        return {"queues": len(mine), "messages": count}


def interop(standin: Standin | None, back: int, folder: Path, *options: object, port: int = 0) -> Any:
    """What `ordack interop windows` says of it."""
    where = f"{HOST}:{standin.port if standin else port}"
    return ordack(
        "interop", "windows", where, "--listen", f"{HERE}:{back}", "--out", folder, "--json", *options, seconds=600
    )
