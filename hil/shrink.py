"""The shortest scenario that still fails, found by running shorter ones:

    python -m hil.shrink build/campaign/seed-7-ab12cd/scenario.yaml [--runs 3] [--to FILE] [--json]

With kills that wait for nothing, with half of the messages while that fails, then without whole kinds of
events, with fewer of them (Zeller's ddmin), with fewer dips of a power that browns out, and with half of
the messages again. Scheduling differs from run to run, so a scenario fails if two runs break the promise in a way in
which one of the first `--runs` did before so many do not: one alone would lead to scenarios that fail ever more seldom.
That a fault found no bytes to fall on is no failure.
The best so far is in the file of `--to` at any time, also after Ctrl-C.
Exit status: 0 the shortest was found; 1 the scenario does not fail; 2 wrong use; 3 the rig failed; 130
interrupted.
"""

import argparse
import asyncio
import io
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console

from hil.boards import RigFailed
from hil.campaign import replay, run_campaign
from hil.ending import ending, to_the_end
from hil.report import RIG_FAILED
from hil.scenario import Event, Kill, Settings, read, write

RUNS = 3
CONFIRMED = 2
"""So many runs have to fail."""

Test = Callable[[Settings], bool]


def plainer(scenario: Settings, fails: Test) -> Settings:
    """The scenario whose kills come as soon as it is their turn, if that fails: less of it is left to chance."""
    events = scenario.plan or ()
    plan = tuple(replace(event, delay_s=0.0, bytes=0) if isinstance(event, Kill) else event for event in events)
    shorter = replace(scenario, plan=plan)
    return shorter if plan != events and fails(shorter) else scenario


def fewer_messages(scenario: Settings, fails: Test) -> Settings:
    """The scenario with half of the messages, as often as that fails: the runs after that take so much less time. There
    is one for each event: a kill that comes before the first one finds nothing.
    """
    while (count := scenario.messages // 2) >= max(1, len(scenario.plan or ())):
        if not fails(shorter := shortened(scenario, count)):
            break
        scenario = shorter
    return scenario


def fewer_kinds(scenario: Settings, fails: Test) -> Settings:
    """The scenario without all the events of a kind that it does not need."""
    for kind in dict.fromkeys(map(kind_of, scenario.plan or ())):
        rest = tuple(event for event in scenario.plan or () if kind_of(event) != kind)
        if fails(shorter := replace(scenario, plan=rest)):
            scenario = shorter
    return scenario


def kind_of(event: Event) -> tuple[str, ...]:
    """What is left out together: all cuts of the link, or what befalls one end in one way."""
    return (event.victim, event.way) if isinstance(event, Kill) else ()


def fewer_dips(scenario: Settings, fails: Test) -> Settings:
    """The scenario whose power, where it browns out, is cut as seldom as it can be: once, if that fails."""
    for place, event in enumerate(scenario.plan or ()):
        while isinstance(event, Kill) and event.dips:
            event = replace(event, dips=event.dips - 1) if event.dips > 2 else replace(event, dips=0, on_s=0.0)
            plan = scenario.plan or ()
            if not fails(shorter := replace(scenario, plan=(*plan[:place], event, *plan[place + 1 :]))):
                break
            scenario = shorter
    return scenario


def fewer_events(scenario: Settings, fails: Test) -> Settings:
    """The scenario with events of which none can be left out alone; those that are left keep their order."""
    kept: tuple[Event, ...] = scenario.plan or ()
    parts = 2
    while kept:
        size = -(-len(kept) // parts)
        for start in range(0, len(kept), size):
            rest = kept[:start] + kept[start + size :]
            if fails(replace(scenario, plan=rest)):
                kept, parts = rest, max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(2 * parts, len(kept))
    return replace(scenario, plan=kept)


def shortened(scenario: Settings, count: int) -> Settings:
    """The scenario with `count` messages; events come after the same share of them."""
    plan = tuple(earlier(event, count, scenario.messages) for event in scenario.plan or ())
    return replace(scenario, messages=count, plan=plan)


def earlier(event: Event, count: int, of: int) -> Event:
    """The same event of a campaign with `count` messages, not `of`."""
    if isinstance(event, Kill):
        return replace(event, count=event.count * count // of)
    return replace(event, after=event.after * count // of)


def shrink(scenario: Settings, fails: Test) -> Settings:
    """The shortest scenario that `fails`, as far as leaving out finds it; this one does."""
    for shorter in plainer, fewer_messages, fewer_kinds, fewer_events, fewer_dips, fewer_messages:
        scenario = shorter(scenario, fails)
    return scenario


@dataclass
class Found:
    """What became of a scenario: its `symptoms`, the shortest so far, and in how many of the last runs that failed."""

    symptoms: list[str]
    events: int
    messages: int
    failed: int = 0
    runs: int = 0
    steps: int = 0
    interrupted: bool = False


class Shrinker:
    """Runs scenarios, shows what became of each, and keeps the best one in a file. Raises BoardMissing, OSError."""

    def __init__(self, scenario: Settings, runs: int, to: Path, console: Console) -> None:
        self.best = scenario
        self.found = Found([], 0, 0)
        self._runs = runs
        self._to = to
        self._console = console
        self._passed: set[Settings] = set()
        self._folder = Path()

    def symptoms(self, scenario: Settings) -> set[str]:
        """Of one run. Raises RigFailed, KeyboardInterrupt, asyncio.CancelledError."""
        self.found.steps += 1
        wanted, silent = replace(scenario, artefacts=self._folder), Console(file=io.StringIO())
        figures = to_the_end(run_campaign(wanted, silent))
        if figures.status == RIG_FAILED:
            raise RigFailed(figures.failure)
        return figures.symptoms()

    def fails(self, scenario: Settings) -> bool:
        """Whether it fails in a way in which the first scenario did; if so, it is the best one."""
        if scenario in self._passed:
            return False
        failed = passed = 0
        while failed < CONFIRMED and passed < self._runs:
            is_failure = not self.symptoms(scenario).isdisjoint(self.found.symptoms)
            failed, passed = failed + is_failure, passed + (not is_failure)
        self._tell(scenario, f"failed in {failed} of {failed + passed} runs")
        if failed < CONFIRMED:
            self._passed.add(scenario)
            return False
        self.best = scenario
        self._to.write_text(write(scenario))
        return True

    def _tell(self, scenario: Settings, what: str) -> None:
        size = f"{len(scenario.plan or ())} events, {scenario.messages} messages"
        self._console.print(f"run {self.found.steps}: {size}: {what}", markup=False)

    def run(self) -> bool:
        """Shrink it; False if it does not fail. After an interrupt the best so far is what is found."""
        with tempfile.TemporaryDirectory() as folder:
            self._folder = Path(folder)
            try:
                found = set[str]()
                for _ in range(self._runs):
                    found |= self.symptoms(self.best)
                    self.found.symptoms = sorted(found)
                if not found:
                    return False
                self._tell(self.best, f"fails: {', '.join(self.found.symptoms)}")
                self._to.write_text(write(self.best))
                shrink(self.best, self.fails)
                for _ in range(self._runs):
                    self.found.runs += 1
                    self.found.failed += bool(self.symptoms(self.best).intersection(self.found.symptoms))
            except (KeyboardInterrupt, asyncio.CancelledError):
                self.found.interrupted = True
        self.found.events, self.found.messages = len(self.best.plan or ()), self.best.messages
        return True


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What the command line asks for. Exits with 2 on wrong use."""
    parser = argparse.ArgumentParser(prog="python -m hil.shrink", description="The shortest scenario that still fails.")
    parser.add_argument("scenario", type=Path, help="a file, as hil.campaign keeps it of a run that failed")
    parser.add_argument(
        "--runs", type=int, default=RUNS, help="without a failure show that there is none (%(default)s)"
    )
    parser.add_argument("--to", type=Path, help="the file for the shortest one (default: beside it, .shortest.yaml)")
    parser.add_argument("--json", action="store_true", help="write the result to standard output as one JSON object")
    chosen = parser.parse_args(arguments)
    if chosen.runs < 1:
        parser.error(f"--runs {chosen.runs}: at least one run tells whether a scenario fails")
    chosen.to = chosen.to or chosen.scenario.with_suffix(".shortest.yaml")
    if not chosen.to.parent.is_dir():
        parser.error(f"--to {chosen.to}: no folder {chosen.to.parent}")
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit status."""
    chosen = parse_arguments(arguments)
    console = Console(stderr=chosen.json, highlight=False, soft_wrap=True)
    return ending(console, lambda: _obey(chosen, console))


def _obey(chosen: argparse.Namespace, console: Console) -> int:
    shrinker = Shrinker(read(chosen.scenario), chosen.runs, chosen.to, console)
    fails = shrinker.run()
    found = shrinker.found
    if not fails:
        console.print(f"{chosen.scenario} does not fail in {chosen.runs} runs", markup=False)
    elif found.symptoms:
        how = "the best so far" if found.interrupted else f"fails in {found.failed} of {found.runs} runs"
        console.print(f"{found.events} events, {found.messages} messages, {how}, in {chosen.to}:", markup=False)
        console.print(write(shrinker.best).rstrip(), markup=False)
        console.print(f"replay it: {replay(chosen.to)}", markup=False)
    if chosen.json:
        print(json.dumps({"ok": fails and not found.interrupted, "to": str(chosen.to), **asdict(found)}))
    return 130 if found.interrupted else 0 if fails else 1


if __name__ == "__main__":
    sys.exit(main())
