"""kill -9 of `ordack serve` under load: every message of 8 senders is then in the queue once, in order, and no other.

    python -m tests.bench.kills [--kills N] [--rate MESSAGES_A_SECOND] [--seed N]

A sender keeps a message until it is acknowledged and never sends it again afterwards, so an acknowledged message that
a kill took would be missing in the queue. The bench ends with 1 if one is missing, doubled, out of order or unknown.
"""

import argparse
import contextlib
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from ordack.client import Client, Queue

from tests.bench.fleet import Load
from tests.bench.peers import Ordack, report

SENDERS = 8
LIFE_MAX_S = 0.5  # of a serve, from when it listens
FOREVER_S = 1e6


class Counted:
    """What the queue gave so far. lost: numbers that it left out. wrong: messages doubled, out of order or unknown."""

    def __init__(self) -> None:
        self.last = [0] * SENDERS
        self.lost = 0
        self.wrong: list[str] = []

    def take(self, queue: Queue, timeout: float) -> int:
        """Receive what is there; the number of messages."""
        with queue.receive_batch(256, timeout) as messages:
            bodies = [message.body for message in messages]
        for body in bodies:
            sender, number = (int.from_bytes(body[at : at + 4], "little") for at in (0, 4))
            if sender >= SENDERS or number <= self.last[sender]:
                self.wrong.append(f"sender {sender}: message {number}")
            else:
                self.lost += number - self.last[sender] - 1
                self.last[sender] = number
        return len(bodies)


def run(kills: int, rate: float, seed: int) -> bool:
    """Whether all was well."""
    dice = random.Random(seed)
    counted = Counted()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ordack-kills-") as name, contextlib.ExitStack() as stack:
        server = Ordack(Path(name) / "ordack", stack)
        load = Load(stack, server, SENDERS, rate, FOREVER_S, retry=True, warm_up_s=0)
        queue = stack.enter_context(Client(server.folder)).queue("line1")
        load.order()
        load.line()
        for _ in range(kills):
            end = time.monotonic() + dice.uniform(0, LIFE_MAX_S)
            while (left := end - time.monotonic()) > 0:
                counted.take(queue, left)
            server.end(signal.SIGKILL)
            server.start()
        load.order()
        load.line()
        figures = load.figures()
        while counted.take(queue, 1):
            pass
    ends = [made - last for made, last in zip(figures["made"], counted.last, strict=True)]
    lost = counted.lost + sum(max(end, 0) for end in ends)
    counted.wrong += [f"sender {sender}: {-end} more than it made" for sender, end in enumerate(ends) if end < 0]
    report(
        bench=f"kill -9 of serve under load of {SENDERS} senders",
        unit="messages that were lost, or were doubled, reordered or unknown",
        bar="lost 0, wrong 0, settled",
        kills=kills,
        seed=seed,
        messages=sum(figures["made"]),
        lost=lost,
        wrong=len(counted.wrong),
        settled=figures["settled"],
        connections_lost=figures["lost"],
        seconds=time.monotonic() - began,
    )
    for line in counted.wrong[:10]:
        print(line, file=sys.stderr)
    return not lost and not counted.wrong and figures["settled"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rate", type=float, default=2000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    sys.exit(not run(options.kills, options.rate, options.seed))


if __name__ == "__main__":
    main()
