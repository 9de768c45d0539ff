"""Fleets of boards: tests/bench/boards.c as the load of ordack and of its peers, in turn in the same run."""

import contextlib
import json
import re
import statistics
import struct
import subprocess
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from mqqb import compose, core, parse
from mqqb.session import Session

from tests.bench.peers import DEADLINE_S, Ordack, Server, cpu_s, report, resident_kib
from tests.conformance import ROOT
from tests.support.host_peer import Peer, direct

PROGRAM = ROOT / "build" / "bench" / "boards"
WARM_UP_S = 2
RATES = 1_000, 2_500, 5_000, 10_000, 20_000, 30_000, 40_000, 60_000, 80_000
BAR_P99_MS = 1000
STORM_S = 40
STAYING = 1_000  # boards that keep their connections in a storm
BOARD, NUMBER, PLACE, PREVIOUS, ORDINAL, TIME = range(6)  # values and forms of boards.c
LITTLE, BIG, DIGITS = range(3)

Figures = dict[str, Any]
Kinds = Sequence[type[Server]]
AnyServer = TypeVar("AnyServer", bound=Server)


def template(text: bytes, *patches: tuple[int, int, int, int, int]) -> bytes:
    """Bytes that boards.c sends. patches: offset, bytes, value, form, what to add to the value."""
    words = [word for patch in patches for word in patch]
    return struct.pack("<82I4096s", len(text), len(patches), *words, *[0] * (80 - len(words)), text)


def marked(text: bytes) -> bytes:
    """A template in which six @ are the board's index."""
    places = [match.start() for match in re.finditer(b"@@@@@@", text)]
    return template(text, *[(place, 6, BOARD, DIGITS, 0) for place in places])


def templates(kind: str, size: int) -> bytes:
    """What a board sends: its first packet, an answer, a message, a SessionAck. ordack's body: board, number."""
    body = bytes(size)
    nothing = template(b"")
    if kind == "redis":
        words = b"XADD", b"b@@@@@@", b"*", b"body", body
        text = b"*5\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
        return nothing + nothing + marked(text) + nothing
    if kind == "nats":
        hello = b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB a.@@@@@@ 1\r\nPING\r\n'
        return nothing + marked(hello) + marked(b"PUB b.@@@@@@ a.@@@@@@ %d\r\n%b\r\n" % (size, body)) + nothing
    if kind == "mqtt":
        left = 2 + 8 + 2 + size
        head = b"\x34" + (bytes([left]) if left < 128 else bytes([left & 127 | 128, left >> 7]))
        # the second is never sent: a board waits for CONNACK
        publish = head + b"\0\x08b/@@@@@@\0\0" + body
        place = len(head) + 4
        hello = marked(b"\x10\x12\0\4MQTT\4\2\0\0\0\x06@@@@@@")  # clean session; only CONNACK follows
        return (
            hello
            + template(b"-")
            + template(publish, (place, 6, BOARD, DIGITS, 0), (place + 6, 2, NUMBER, BIG, 0))
            + nothing
        )
    life = int(time.time())  # of the streams
    session = Session(True, bytes(16), 0)
    session.connected(0)
    hello = bytes(session.data_to_send())
    answer = bytes(compose.connection_parameters(500, 20000, 64))
    peer = Peer(bytes(16), direct("line1"), time_stamp=life)
    peer.send(body)
    message = bytes(peer.packets[1])
    tx, end = parse.transaction_offset(message), len(message) - (size + 3 & ~3)
    patches = (
        (core.USER_SOURCE_QUEUE_MANAGER_AT, 4, BOARD, LITTLE, 1),
        (core.USER_SENT_TIME_AT, 4, TIME, LITTLE, 0),
        (core.USER_MESSAGE_ID_AT, 4, NUMBER, LITTLE, life % 2000 * 2_000_000),
        (tx + 1, 2, NUMBER, LITTLE, 0),  # the transaction's index
        (tx + 4, 4, ORDINAL, LITTLE, 0),
        (tx + 12, 4, PLACE, LITTLE, 0),
        (tx + 16, 4, PREVIOUS, LITTLE, 0),
        (end, 4, BOARD, LITTLE, 0),
        (end + 4, 4, NUMBER, LITTLE, 0),
    )
    ack = bytes(compose.session_ack(array("I", [0, 0, 0, 0, 0, 64, 0])))[: -core.SESSION_HEADER_SIZE]
    establish = template(hello, (core.ESTABLISH_CLIENT_GUID_AT, 4, BOARD, LITTLE, 1))
    return establish + template(answer) + template(message, *patches) + template(ack)


class Load:
    """boards.c as a process, from when all of its boards are connected."""

    def __init__(self, stack: contextlib.ExitStack, server: Server, boards: int, rate: float, seconds: float,
                 size: int = 64, cut: int = 0, retry: bool = False, warm_up_s: float = WARM_UP_S) -> None:  # fmt: skip
        subprocess.run(["make", "-s", "-C", ROOT, PROGRAM.relative_to(ROOT)], check=True)
        files = stack.enter_context(tempfile.TemporaryDirectory(prefix="ordack-boards-"))
        self._cut = cut
        self._latencies = Path(files, "latencies")
        Path(files, "templates").write_bytes(templates(server.kind, size))
        words = server.kind, server.port, boards, rate, seconds, warm_up_s, cut, int(retry), f"{files}/templates"
        self._process = stack.enter_context(
            subprocess.Popen(
                [PROGRAM, *map(str, words), self._latencies],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
        )
        stack.callback(self._process.kill)
        self.line()

    def line(self) -> Figures:
        """Its next line."""
        assert self._process.stdout
        text = self._process.stdout.readline()
        if not text:
            raise RuntimeError("the boards ended early")
        return dict(json.loads(text))

    def order(self) -> None:
        """Start to send, or stop."""
        assert self._process.stdin
        self._process.stdin.write("\n")

    def figures(self) -> Figures:
        """Its last line, with the latencies and the slowest board of those that were not cut."""
        found = self.line()
        records = [pair for pair in struct.iter_unpack("ff", self._latencies.read_bytes()) if pair[0] >= self._cut]
        took = sorted(1e3 * seconds for _, seconds in records) or [DEADLINE_S * 1e3]
        each = sorted(Counter(board for board, _ in records).values()) or [0]
        found |= {
            f"{name}_ms": took[(len(took) - 1) * at // 100] for name, at in (("p50", 50), ("p99", 99), ("max", 100))
        }
        staying = len(found["made"]) - self._cut
        return found | {"least_of_median": each[0] / max(statistics.median(each), 1) if len(each) == staying else 0.0}


def measure(server: Server, boards: int, rate: float, seconds: float, size: int = 64, **more: Any) -> Figures:
    """The figures of boards.c, and those of the server: cpu_us and syncs of a message, kib_a_session."""
    pid = server.process.pid
    with contextlib.ExitStack() as stack:
        empty_kib = resident_kib(pid)
        load = Load(stack, server, boards, rate, seconds, size, **more)
        kib = (resident_kib(pid) - empty_kib) / boards
        load.order()
        load.line()
        began, syncs = cpu_s(pid), server.syncs()
        load.line()
        spent = cpu_s(pid) - began
        synced = None if syncs is None else (server.syncs() or 0) - syncs
        figures = load.figures()
    messages = max(figures["messages"], 1)
    return figures | {
        "cpu_us": 1e6 * spent / messages,
        "cores": spent / (messages / max(figures["rate"], 1)),
        "syncs": None if synced is None else synced / messages,
        "kib_a_session": kib,
    }


@contextlib.contextmanager
def running(kind: type[AnyServer]) -> Iterator[AnyServer]:
    """A server with a new store."""
    with tempfile.TemporaryDirectory(prefix="ordack-bench-") as name, contextlib.ExitStack() as stack:
        yield kind(Path(name) / kind.kind, stack)


def medians(runs: Sequence[Figures], *keys: str) -> Figures:
    """The median of each figure over the rounds."""
    return {key: statistics.median(run[key] for run in runs) for key in keys if runs[0].get(key) is not None}


def connected(kinds: Kinds, rounds: int, boards: int, rate: float, seconds: float, size: int) -> None:
    """Boards that send at a steady rate in all."""
    runs: dict[str, list[Figures]] = {kind.name: [] for kind in kinds}
    for _ in range(rounds):
        for kind in kinds:
            with running(kind) as server:
                warm_up_s = 2 * WARM_UP_S + boards / rate  # a message of each board, and what waits since
                runs[kind.name].append(measure(server, boards, rate, seconds, size, warm_up_s=warm_up_s))
    keys = "cpu_us", "rate", "p50_ms", "p99_ms", "max_ms", "syncs", "kib_a_session", "least_of_median", "skipped"
    found = {name: medians(figures, *keys) for name, figures in runs.items()}
    report(
        bench=f"{boards} boards, {rate:.0f} messages of {size} bytes a second in all",
        unit="microseconds of the server's processor a message",
        bar="cpu_us <= 45 and ratio of Redis > 1; with 10,000 boards p99_ms < 250, kib_a_session <= 4",
        **found,
        ratio={name: found[name]["cpu_us"] / found[Ordack.name]["cpu_us"] for name in found if name != Ordack.name},
    )


def highest(kinds: Kinds, boards: int, seconds: float, size: int) -> None:
    """The highest rate with a p99 below the bar, of each server, by steps."""
    found: dict[str, Figures] = {}
    for kind in kinds:
        found[kind.name] = {"asked": 0, "rate": 0.0}
        failed = 0
        with running(kind) as server:
            for rate in (step for step in RATES for _ in range(2)):  # a step that fails is tried once more
                if found[kind.name]["asked"] >= rate:
                    continue
                figures = measure(server, boards, rate, seconds, size, warm_up_s=WARM_UP_S + boards / rate)
                late = figures["p99_ms"] >= BAR_P99_MS or figures["rate"] < 0.97 * rate or figures["skipped"]
                if not late:
                    keys = "rate", "p99_ms", "cpu_us", "cores"
                    found[kind.name] = {"asked": rate} | {key: figures[key] for key in keys}
                elif failed == rate:
                    break
                failed = rate if late else 0
    ours = found[Ordack.name]["rate"]
    report(
        bench=f"{boards} boards, highest rate with p99 below {BAR_P99_MS} ms, {size} bytes",
        unit="messages per second",
        bar="rate >= 30000",
        **found,
        ratio={name: ours / max(figures["rate"], 1) for name, figures in found.items() if name != Ordack.name},
    )


def storm(kinds: Kinds, boards: int) -> None:
    """All boards but some lose their connections and reconnect within 1 s, each with a message to store."""
    found: dict[str, Figures] = {}
    for kind in kinds:
        with running(kind) as server:
            warm_up_s = (boards + STAYING) / STAYING  # a message of each board
            figures = measure(server, boards + STAYING, STAYING, STORM_S, cut=boards, retry=True, warm_up_s=warm_up_s)
        keys = "cut_stored_s", "cut_waiting", "lost", "p50_ms", "p99_ms", "max_ms", "least_of_median"
        found[kind.name] = {key: figures.get(key) for key in keys}
    report(
        bench=f"{boards} boards reconnect within 1 s, {STAYING} stay connected",
        unit="seconds from the cut until each board has a message stored; ms of boards that stayed",
        bar="cut_stored_s <= 30, cut_waiting 0, least_of_median >= 0.5",
        **found,
    )
