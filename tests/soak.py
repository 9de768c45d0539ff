"""Everything is killed again and again under load: python -m tests.soak [--kills N] [--seed N]

Eight programs send from `ordack serve` A to B, in transactions that also hold how far each has come; four programs at B
move what arrives into queues of their own, in transactions. Kills, SIGKILL without a warning, hit any of the fourteen
processes, which start again. In the end each sender's numbers must be in its queue at B once and in order, all that its
own state says were sent. Prints one JSON object; exits with 1 and says what is wrong if something is.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ordack.client import Client

from hil.dice import new_seed
from tests.support.command import ENVIRONMENT, own_port

SENDERS, CONSUMERS = 8, 4
DEADLINE_S = 600  # for a program to end
STILL_S = 60  # without a message that arrives: what has not come by then is lost

SENDER = """
import sys
from pathlib import Path
from ordack.client import Client
from ordack.store import StoreError
store, number, stop = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
destination = f"DIRECT=OS:plant\\\\private$\\\\in{int(number) % 4}"
with Client(store) as client:
    print("ready", flush=True)
    while not stop.exists():
        try:
            with client.transaction() as transaction:
                first = int(transaction.receive("state" + number, timeout=10).body)
                count = 1 + first % 7
                for value in range(first, first + count):
                    transaction.send(destination, f"{number} {value}".encode())
                transaction.send("state" + number, str(first + count).encode())
        except StoreError as error:
            print(f"sender {number}: {error}", file=sys.stderr)
"""
CONSUMER = """
import sys
from pathlib import Path
from ordack.client import Client
from ordack.store import StoreError
store, number, stop = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
with Client(store) as client:
    print("ready", flush=True)
    while not stop.exists():
        try:
            with client.transaction() as transaction:
                for message in transaction.receive_batch("in" + number, 20, timeout=1):
                    transaction.send("out" + number, message.body)
        except StoreError as error:
            print(f"consumer {number}: {error}", file=sys.stderr)
"""


class Cast:
    """The processes, by name, each of which can be killed and started again."""

    def __init__(self, folder: Path, log: Path) -> None:
        self.a, self.b = folder / "a", folder / "b"
        self.stop_sending, self.stop = folder / "stop-sending", folder / "stop"
        self.port = own_port()
        self._log = log.open("ab")
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        with Client(self.a, create=True) as client:
            for number in range(SENDERS):
                client.create_queue(f"state{number}", transactional=True)
                client.send(f"state{number}", b"0")
        with Client(self.b, create=True) as client:
            for number in range(CONSUMERS):
                client.create_queue(f"in{number}", transactional=True)
                client.create_queue(f"out{number}", transactional=True)
        serve = [sys.executable, "-m", "ordack", "serve", "--store"]
        self._commands = {
            "serve a": [*serve, str(self.a), "--listen", "127.0.0.1:0", "--next-hop", f"plant=127.0.0.1:{self.port}"],
            "serve b": [*serve, str(self.b), "--listen", f"127.0.0.1:{self.port}"],
        }
        for number in range(SENDERS):
            self._commands[f"sender {number}"] = self._program(SENDER, self.a, number, self.stop_sending)
        for number in range(CONSUMERS):
            self._commands[f"consumer {number}"] = self._program(CONSUMER, self.b, number, self.stop)
        self.names = list(self._commands)

    @staticmethod
    def _program(text: str, store: Path, number: int, stop: Path) -> list[str]:
        return [sys.executable, "-c", text, str(store), str(number), str(stop)]

    def start(self, name: str) -> None:
        """Start it, or start it again."""
        self._running[name] = subprocess.Popen(
            self._commands[name], stdout=subprocess.PIPE, stderr=self._log, env=ENVIRONMENT
        )

    def is_ready(self, name: str) -> bool:
        """Wait until it says that it works; False if it ends without that."""
        shown = self._running[name].stdout
        assert shown
        return bool(shown.readline())

    def kill(self, name: str) -> None:
        """Kill it at once. AssertionError if it has ended by itself."""
        process = self._running[name]
        assert process.poll() is None, f"{name} has ended with status {process.returncode}"
        process.kill()
        process.communicate()

    def wait(self, kind: str) -> None:
        """Wait until all of this kind have ended by themselves. AssertionError if one has failed."""
        for name in self.names:
            if name.startswith(kind):
                assert self._running[name].wait(DEADLINE_S) == 0, f"{name} has failed"

    def end(self) -> None:
        """End all that run."""
        for process in self._running.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._running.values():
            try:
                process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
        self._log.close()


def sent(cast: Cast) -> list[int]:
    """How many messages each sender has sent, as its state says."""
    with Client(cast.a) as client:
        states = [client.queue(f"state{number}").peek() for number in range(SENDERS)]
        return [int(message.body) for state in states for message in state]


def arrived(cast: Cast) -> list[list[int]]:
    """The numbers of each sender in the queue where they end, in its order."""
    found: list[list[int]] = [[] for _ in range(SENDERS)]
    with Client(cast.b) as client:
        for number in range(CONSUMERS):
            for message in client.queue(f"out{number}").peek():
                sender, value = map(int, message.body.split())
                found[sender].append(value)
    return found


def count_at_the_end(cast: Cast) -> int:
    with Client(cast.b) as client:
        return sum(queue.messages for queue in client.store.queues.all() if queue.name.startswith("out"))


def soak(kills: int, seed: int, folder: Path) -> dict[str, object]:
    """Run it; what there is to say of it. AssertionError if something is wrong."""
    dice = random.Random(seed)
    cast = Cast(folder, folder / "log")
    began = time.monotonic()
    try:
        for name in cast.names:
            cast.start(name)
        for name in cast.names:
            assert cast.is_ready(name), f"{name} does not start"
        hit: dict[str, int] = {}
        for number in range(kills):
            time.sleep(dice.uniform(0.05, 0.6))
            name = dice.choice(cast.names)
            cast.kill(name)
            cast.start(name)
            if dice.randrange(4):  # else it may be killed again while it starts
                assert cast.is_ready(name), f"{name} does not start"
            hit[name.split()[0]] = hit.get(name.split()[0], 0) + 1
            if sys.stderr.isatty() or number % 50 == 49:
                print(f"{number + 1} of {kills} kills, {count_at_the_end(cast)} messages", file=sys.stderr)
        cast.stop_sending.touch()
        cast.wait("sender")
        total = sum(sent(cast))
        here, moved = -1, time.monotonic()
        while here < total and time.monotonic() < moved + STILL_S:
            if (count := count_at_the_end(cast)) != here:
                here, moved = count, time.monotonic()
            time.sleep(0.2)
        cast.stop.touch()
        cast.wait("consumer")
    finally:
        cast.end()
    counts, found = sent(cast), arrived(cast)
    assert len(counts) == SENDERS, f"of {SENDERS} senders {len(counts)} have a state"
    for number, (count, values) in enumerate(zip(counts, found, strict=True)):
        assert values == list(range(count)), _difference(number, count, values)
    return {
        "kills": kills, "seed": seed, "killed": hit, "messages": total, "seconds": round(time.monotonic() - began),
    }  # fmt: skip


def _difference(number: int, count: int, values: list[int]) -> str:
    wrong = next((at for at, value in enumerate(values) if at != value), len(values))
    return (
        f"sender {number} has sent {count}; {len(values)} have arrived, of which number {wrong} is "
        f"{values[wrong : wrong + 3]}: lost, twice or out of order"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()
    seed = new_seed() if options.seed is None else options.seed
    print(f"seed {seed}", file=sys.stderr, flush=True)
    folder = Path(tempfile.mkdtemp(prefix="ordack-soak-"))
    try:
        print(json.dumps(soak(options.kills, seed, folder)))
    except AssertionError as error:
        print(f"{error}; everything is in {folder}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
