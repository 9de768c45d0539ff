"""What an honest sender still gets of `ordack serve` while others do it harm, in processes of their own.

    python -m tests.bench.bench_hostile [--rounds N] [--seconds N] [--connections N] [--seed N]

One stream over one session, with the protocol's window, sends as fast as it may; alone, and then beside each kind of
harm in turn. `ratio` is its rate beside the harm, by its rate alone before and after that. The attackers are as many as
the machine lets one process be, and take processor time of it themselves: `attacks` tells how often each did its worst.
Memory is the most that `serve` had until half of the attack's time was over, and until its end, above what it had
alone: where it is bounded, it does not go on growing. Of malformed shapes that shows with `--seconds 40` (11.1 MiB both
times), for it takes some ten thousand of them. Nothing is asserted: machines differ.
"""

import argparse
import contextlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ordack.client import Client

from tests.bench.bench import QUEUE, Sender, report
from tests.bench.bench_service import Service, resident_kib

ATTACKER = '''
import random, selectors, socket, sys, time
from mqqb.connection import OPEN
from mqqb.session import Session
from mqqb import build, compose, names
from ordack.net import tcp
kind, port, connections, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
dice = random.Random(seed)
ADDRESS = "127.0.0.66"  # not the honest one's: limits are by address

def connect():
    made = socket.socket()
    made.bind((ADDRESS, 0))
    made.settimeout(5)
    made.connect(("127.0.0.1", port))
    return made

def opened():
    """A session."""
    made = connect()
    session = Session(True, dice.randbytes(16), tcp.now())
    session.connected(tcp.now(), False)
    while session.state != OPEN:
        made.sendall(session.data_to_send())
        data = made.recv(1 << 16)
        if not data:
            return None
        session.receive_data(data, tcp.now())
    return made

def greeting():
    session = Session(True, bytes(16), tcp.now())
    session.connected(tcp.now(), False)
    return session.data_to_send()

def message(size):
    name = names.DirectQueueFormatName("TCP:127.0.0.1\\\\private$\\\\line1")
    return bytes(build.user_message(dice.randbytes(16), 1, name, bytes(size), delivery="transactional"))

def tell(count):
    print(count, flush=True)

def worst(kind):
    """Does one kind of harm for ever; after each turn, how often it has."""
    done = 0
    if kind in ("drip", "half"):
        whole = message(1 << 20)
        there = []
        while True:
            while len(there) < min(connections, 100):
                made = opened()
                if made is None:
                    break
                there.append([made, 0])
            for one in list(there):
                size = 1 if kind == "drip" else len(whole) // 2
                try:
                    if kind == "drip" or not one[1]:
                        one[0].sendall(whole[one[1] : one[1] + size])
                        one[1] += size
                        done += 1
                except OSError:
                    there.remove(one)
            yield done
            time.sleep(0.01)
    elif kind == "connections":
        there = []
        while True:
            for _ in range(200):
                if len(there) >= connections:
                    there.pop(0).close()
                made = socket.socket()
                made.bind((ADDRESS, 0))
                made.setblocking(False)
                made.connect_ex(("127.0.0.1", port))
                there.append(made)
                done += 1
            yield done
            time.sleep(0.01)
    else:
        shapes = []
        valid = [message(64), greeting()]
        for _ in range(2000):
            shape = bytearray(dice.choice(valid))
            for _ in range(dice.randint(1, 4)):
                shape[dice.randrange(len(shape))] = dice.randrange(256)
            shapes.append(bytes(shape[: dice.choice([len(shape), dice.randrange(1, len(shape))])]))
        while True:
            for shape in shapes:
                try:
                    made = opened() if dice.random() < 0.5 else connect()
                    if made:
                        made.sendall(shape)
                        made.close()
                except OSError:
                    pass
                done += 1
                if done % 20 == 0:
                    yield done

last = 0
for done in worst(kind):
    if time.monotonic() - last > 0.2:
        last = time.monotonic()
        tell(done)
'''


KINDS = {
    "drip": "packets of 1 MiB that come byte by byte, on 100 sessions",
    "half": "100 sessions with half a packet of 1 MiB each",
    "connections": "connections that say nothing",
    "shapes": "2,000 malformed shapes, each on a connection of its own",
}


def rate(sender: Sender, seconds: float) -> float:
    """Messages a second of an honest sender."""
    began = time.monotonic()
    done = 0
    while time.monotonic() - began < seconds:
        sender.send_all(64)
        done += 64
    return done / (time.monotonic() - began)


def peak_kib(pid: int) -> int:
    """The most memory that a process has had."""
    found = re.search(r"^VmHWM:\s*(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1])


@contextlib.contextmanager
def harm(kind: str, port: int, connections: int, seed: int) -> Iterator[list[int]]:
    """A process that does it until the end of the block; what it gives is then how often it has."""
    done: list[int] = []
    command = [sys.executable, "-c", ATTACKER, kind, str(port), str(connections), str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            process.stdout.readline()  # it has begun
            yield done
        finally:
            process.kill()
            done += [int(line) for line in process.stdout.read().split()[-1:]]


def hostile(rounds: int, seconds: float, connections: int, seed: int) -> None:
    """Each kind of harm in turn, alone before and after it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for kind, what in KINDS.items():
        alone: list[float] = []
        beside: list[float] = []
        attacks: list[int] = []
        peaks: list[tuple[float, float]] = []
        for number in range(rounds):
            with tempfile.TemporaryDirectory(prefix="ordack-bench-") as name, contextlib.ExitStack() as stack:
                service = Service(Path(name), stack)
                with Client(service.b) as client:
                    if QUEUE != "line1":
                        client.create_queue(QUEUE, transactional=True)
                sender = Sender(("127.0.0.1", service.port), 1)
                rate(sender, 1)
                before = rate(sender, seconds)
                pid = service.processes[0].pid
                least = resident_kib(pid)
                Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins anew
                with harm(kind, service.port, connections, seed + number) as done:
                    first = rate(sender, seconds / 2)
                    half = peak_kib(pid)
                    beside.append(statistics.mean([first, rate(sender, seconds / 2)]))
                    peaks.append(((half - least) / 1024, (peak_kib(pid) - least) / 1024))
                attacks += done
                alone.append(statistics.mean([before, rate(sender, seconds)]))
                sender.close()
        ours, free = statistics.median(beside), statistics.median(alone)
        half_mib, most_mib = (statistics.median(column) for column in zip(*peaks, strict=True))
        report(
            bench=f"one sender beside {what}",
            unit="messages per second",
            bar="ratio >= 0.5, ordack_peak_mib bounded",
            seed=seed,
            ordack_value=ours,
            peer="the same sender alone",
            peer_value=free,
            ratio=ours / free,
            ordack_peak_mib=most_mib,
            ordack_peak_at_half_mib=half_mib,
            attacks=attacks,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    hostile(options.rounds, options.seconds, options.connections, options.seed)


if __name__ == "__main__":
    main()
