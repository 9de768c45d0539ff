"""Fleets of boards: tests/bench/boards.c as the load of ordack and of its peers, in turn in the same run."""

import contextlib
import json
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tests.bench.peers import Ordack, Server, cpu_s, report, resident_kib
from tests.conformance import ROOT

PROGRAM = ROOT / "build" / "bench" / "boards"
WARM_UP_S = 2
RATES = 1_000, 2_500, 5_000, 10_000, 20_000, 30_000, 40_000, 60_000, 80_000
BAR_P99_MS = 1000
STORM_S = 60
STAYING = 1_000  # boards that keep their connections in a storm

Figures = dict[str, Any]
Kinds = Sequence[type[Server]]
AnyServer = TypeVar("AnyServer", bound=Server)


class Load:
    """boards.c as a process, from when all of its boards are connected."""

    def __init__(self, stack: contextlib.ExitStack, server: Server, boards: int, rate: float, seconds: float,
                 size: int = 64, cut: int = 0, retry: bool = False, warm_up_s: float = WARM_UP_S) -> None:  # fmt: skip
        subprocess.run(["make", "-s", "-C", ROOT, PROGRAM.relative_to(ROOT)], check=True)
        words = server.kind, server.port, boards, rate, seconds, warm_up_s, size, cut, int(retry)
        self._process = stack.enter_context(
            subprocess.Popen(
                [PROGRAM, *map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
            )
        )
        stack.callback(self._process.kill)
        self.opened = self.line()

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


def measure(server: Server, boards: int, rate: float, seconds: float, size: int = 64, **more: Any) -> Figures:
    """The figures of boards.c, and those of the server: cpu_us and syncs of a message, kib of a session."""
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
        figures = load.line()
    messages = max(figures["messages"], 1)
    return figures | {
        "cpu_us": 1e6 * spent / messages,
        "cores": spent / (messages / max(figures["rate"], 1)),
        "syncs": None if synced is None else synced / messages,
        "kib_a_session": kib,
        "least_of_median": figures["least"] / max(figures["median"], 1),
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
                runs[kind.name].append(measure(server, boards, rate, seconds, size))
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
        found[kind.name] = {"rate": 0.0}
        with running(kind) as server:
            for rate in RATES:
                figures = measure(server, boards, rate, seconds, size)
                late = figures.get("p99_ms", BAR_P99_MS) >= BAR_P99_MS or figures["rate"] < 0.97 * rate
                if late or figures["skipped"]:
                    break
                found[kind.name] = {key: figures[key] for key in ("rate", "p99_ms", "cpu_us", "cores")}
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
            figures = measure(server, boards + STAYING, STAYING, STORM_S, cut=boards, warm_up_s=warm_up_s)
        keys = "cut_stored_s", "cut_waiting", "p50_ms", "p99_ms", "max_ms", "least_of_median"
        found[kind.name] = {key: figures.get(key) for key in keys}
    report(
        bench=f"{boards} boards reconnect within 1 s, {STAYING} stay connected",
        unit="seconds from the cut until each board has a message stored; ms of boards that stayed",
        bar="cut_stored_s <= 30, cut_waiting 0, least_of_median >= 0.5",
        **found,
    )
