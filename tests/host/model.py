"""Queue managers, their applications, the wires between them and their power supply, with everything that can happen
to them as numbered actions, and what must hold whatever happens.

    .venv/bin/python -m tests.host.model --steps 1000000 --seed 7        a random walk
    .venv/bin/python -m tests.host.model --seed 7 --episode 31 --trace   one episode of it again

The managers, stores and clients are the real ones. The wires, the clocks and the deaths are the model's. What must come
out is kept in a plain record of each message (`Message`), which knows nothing of how the queue manager works.

After every action:
  - a message arrives at most once, in its own queue, and those of one stream in the order in which they were sent;
  - nothing is acknowledged that a second connection to the store does not see settled (B-098, B-281);
  - a packet keeps its number once it has left, and no number names two messages (A-08, B-079);
  - a source forgets a message only with an answer for its application, and the answer is true (C-80 to C-87);
  - journal, dead-letter and administration queues get what was asked for, once, and nothing else;
  - a queue hands out what is in it, in its order, and nothing leaves it unasked;
  - no session between two of us ends with a protocol error, nor for a line that takes its bytes slowly;
  - what an operator has withdrawn is gone when the queue manager has looked, and does not leave any more (C-29);
  - of what waits for one connection, the highest priority leaves first, but for each 16th turn (B-305).
Once a backup was put back somewhere, or a folder was emptied, less is asked of the messages sent before: some of them
are lost with a life.
When the accidents stop, everything comes to its end within a bounded time, and every accepted message has one.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import shutil
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

import apsw
from mqqb import confirm, guids
from mqqb.session import Settings

from tests.host.model_actions import Actions
from tests.host.model_hosts import Crash, Host, Message, _trap, clean
from tests.host.model_lines import Violation

TICKS = (1, 20, 100, 500, 600, 3000, 11_000, 31_000, 45_000, 310_000, 2_000_000)  # ms
JUMPS = (-100_000, -3600, -61, -2, 2, 61, 3600, 100_000)  # s
STARTS = (0, 1, 5, 30, 20_000)
WINDOWS = (64, 64, 7, 2)
SETTLE = (0, *[600] * 40, *[5000] * 30, *[60_000] * 30, *[600_000] * 20, *[21_600_000] * 3)  # ms, until all is settled
EPISODE_STEPS = 300


class World(Actions):
    """Everything, with what time and power do. The actions are listed in ACTIONS."""

    # ---- time and power

    def poll(self, where: int) -> None:
        """A queue manager looks at its timers and its store."""
        self._poll(self.hosts[where % self.size])

    def _poll(self, host: Host) -> None:
        """It looks, unless it dies or its disk fails: what was withdrawn is gone then, wherever it was (C-29)."""
        manager, withdrawn, host.failed = host.manager, frozenset(host.withdrawn), False
        host.known_key = host.last_key
        self._act(host, lambda: host.manager.poll(host.now, self.wall))
        if host.manager is not manager:
            return
        if self.wall != host.looked_at and not host.failed:
            left = [host.outgoing[key] for key in withdrawn & host.outgoing.keys()]
            if left:
                raise Violation(f"host {host.index} still has what was withdrawn: {left}")
            host.withdrawn -= withdrawn
        host.looked_at = self.wall  # also if its disk has failed: it may have looked before

    def tick(self, amount: int, who: int) -> None:
        """Time passes, and those of `who` notice."""
        self.now += TICKS[amount]
        for host in self.hosts:
            if who >> host.index & 1:
                self._poll(host)

    def jump(self, amount: int) -> None:
        """Somebody sets the clock."""
        self.wall_offset += JUMPS[amount]

    def crash(self, where: int, reboot: int) -> None:
        """A queue manager dies between two of its acts, alone or with the whole machine."""
        host = self.hosts[where % self.size]
        host.restart(reboot=bool(reboot))
        self._collect(host)

    def stop(self, where: int) -> None:
        """A queue manager is stopped in order, and started again."""
        host = self.hosts[where % self.size]
        self._act(host, lambda: host.manager.close())
        host.restart(reboot=False)

    def runs(self, where: int, target: int, count: int) -> None:
        """In each of several runs of a queue manager that has no connection, an application sends a message."""
        for _ in range(count):
            self.stop(where)
            self.send(where, target, 0, 0, 0, 0, 400)

    def back_up(self, where: int) -> None:
        """Somebody copies the store of a queue manager that runs."""
        self.hosts[where % self.size].back_up()

    def put_back(self, where: int) -> None:
        """Somebody puts the backup back; without one, the copy is made now, and started instead: nothing is lost."""
        host = self.hosts[where % self.size]
        if host.backup.exists():
            for message in self.messages.values():
                message.blurred = True
            host.put_back_at = self.step + 1  # nothing later is blurred by it
            host.put_back()
            host.look_anew()
            for other in self.hosts:
                other.forget_orphaned()  # it may have been another identity's
        else:
            for application in host.applications:
                host.kill(application)
            host.look()
            host.back_up()
            host.put_back()
        shutil.rmtree(host.backup)
        self._collect(host)

    def empty(self, where: int) -> None:
        """Somebody empties the folder of a queue manager, and makes its queues again: nobody knows it any more. Where
        messages are routed by GUID, operators would have to tell the others of its new one."""
        host = self.hosts[where % self.size]
        if host.config.route:
            return
        for message in self.messages.values():
            message.blurred |= host in (message.source, message.target)
        host.put_back_at = self.step + 1
        host.empty()
        host.look_anew()
        for other in self.hosts:
            other.forget_orphaned()
        self._collect(host)

    def arm(self, where: int, statements: int, how: int) -> None:
        """A queue manager will die, or its disk will fail, in the middle of something."""
        error, repeat = ((Crash, 1), (apsw.FullError, 1), (apsw.IOError, 2), (Crash, 1))[how]
        host = self.hosts[where % self.size]
        _trap(host.store, statements, error, repeat, host.fails)

    def quota(self, where: int, amount: int) -> None:
        """The quota of a queue manager changes: nothing more, a little more, or no limit."""
        host = self.hosts[where % self.size]
        self.limited |= amount < 2
        limit = (0, host.applications[0].client.store.usage() + 1500, 8 << 30)[amount]
        host.manager.config = host.config = dataclasses.replace(host.config, quota=limit)

    def begin(self, start: int, window: int, routed: int) -> None:
        """First action of an episode. Connections begin with counts so far below their end, and so do MessageIDs. If
        routed, the first and the last of three hosts reach each other through the second only."""
        self.wrap = ((0x10000 - start) & 0xFFFF, (0x10003 - start) & 0xFFFF, (0x10001 - 2 * start) & 0xFFFF, 0xFFFF)
        for host in self.hosts:
            hops = {}
            for other in self.hosts:
                via = self.hosts[1] if routed and abs(host.index - other.index) == 2 else other
                names = [other.address, f"host{other.index}"]
                if routed:
                    names.append(guids.guid_text(other.guid).lower().strip("{}"))
                hops |= dict.fromkeys(names, (via.address, 1801))
            host.config = dataclasses.replace(
                host.config, next_hops=hops, route=bool(routed), session=Settings(window_size=window)
            )
            host.manager = host._manager()
            host.store._database.connection.execute(
                "UPDATE settings SET value = ? WHERE name = 'message_id_ordinal'", (-3 * start % 0xFFFFFFFF,)
            )

    # ---- the end

    def settle(self) -> None:
        """No more accidents, and the clock is put forward to the latest time that it has shown: all must come to its
        end. Then every message must have one."""
        self.wall_offset += self.highest_wall(0) - self.wall
        for host in self.hosts:
            host.manager.config = host.config = dataclasses.replace(host.config, quota=8 << 30)
            host.store._database.connection.exec_trace = None
            for queue in host.store.outgoing.queues():
                host.applications[0].client.store.outgoing.set_on_hold(queue.format_name, False)
            for link in host.links:
                if not link.writable:
                    self._act(host, lambda host=host, link=link: host.manager.resume(link, host.now, self.wall))
        self._settle(lambda message: message.arrived and bool(message.journal))
        for host in self.hosts:
            self._receive_everything(host)
        self.now += 1000
        if any(host.given_up for host in self.hosts):  # some wait for what nobody will say: operators end that
            for host in self.hosts:
                for number in range(len(host.store.outgoing.queues())):
                    self._withdraw(host, number)
        self._settle(lambda message: False)
        for host in self.hosts:
            left = [message for *_, message in host.content.values() if not message.blurred]  # those may come late
            if left:
                raise Violation(f"host {host.index} still has {left}")
        for message in self.messages.values():
            if message.acknowledge and message.message_id and not (self.limited or message.blurred):
                self._must_be_acknowledged(message)
            ended = message.received or message.removed or message.refused or message.told or not message.message_id
            if (
                not ended
                and not message.blurred
                and (
                    message.arrived
                    or message.transactional
                    or not (message.withdrawn or self.may_be_unfit(message) or self.may_be_late(message))
                )
            ):
                raise Violation(f"it has no end: {message}")

    def _must_be_acknowledged(self, message: Message) -> None:
        wanted = set()
        if message.arrived:
            wanted.add(confirm.ACK_REACH_QUEUE)
        if message.received:
            wanted.add(confirm.ACK_RECEIVE)
        if wanted - message.acknowledgements or (
            (message.removed or message.refused)
            and not message.received
            and not any(message_class >= confirm.NACK_Q_DELETED for message_class in message.acknowledgements)
        ):
            raise Violation(f"it was not acknowledged, only with {message.acknowledgements}: {message}")

    def _settle(self, may_wait: Callable[[Message], bool]) -> None:
        for waited in SETTLE:
            self.now += waited
            self.walls.append((self.step, self.wall))
            for _ in range(100):
                if not self._everything_moves():
                    break
            else:
                raise Violation("the wires never fall silent")
            left = [
                message
                for host in self.hosts
                for message in host.outgoing.values()
                if message is None or not (may_wait(message) or (message.blurred and message.journal))
            ]
            if not left:
                return
        raise Violation(f"{len(left)} messages or acknowledgements (None) are not settled: {left[:5]}")

    def _everything_moves(self) -> bool:
        moved = False
        for host in self.hosts:
            self._poll(host)
            if self._hops(host):
                self.connect(host.index)
                moved = True
        for host in self.hosts:
            moved |= self._deliver(host, 1 << 22, list(host.links.items()))
        return moved

    def _receive_everything(self, host: Host) -> None:
        for application in range(2):
            self.finish(host.index, application, 0)
            host.look()
        for queue in range(4):
            self.receive(host.index, queue, 0, 1 << 20)
            self.finish(host.index, 0, 0)
            host.look()


# Each action: how often, and the bounds of its arguments.
ACTIONS: dict[str, tuple[int, tuple[tuple[int, int], ...]]] = {
    "send": (24, ((0, 2), (0, 2), (0, 23), (0, 14), (0, 4), (0, 1200), (1, 400))),
    "deliver": (30, ((0, 2), (0, 6), (0, 7))),
    "flow": (8, ((1, 4),)),
    "connect": (14, ((0, 2),)),
    "poll": (10, ((0, 2),)),
    "tick": (8, ((0, 10), (0, 7))),
    "receive": (6, ((0, 2), (0, 3), (0, 1), (1, 4))),
    "finish": (7, ((0, 2), (0, 1), (0, 7))),
    "cut": (4, ((0, 5), (0, 16), (0, 16), (0, 3))),
    "block": (2, ((0, 5), (0, 1))),
    "slow": (1, ((0, 5), (0, 1), (0, 2), (0, 49))),
    "peek": (1, ((0, 2), (0, 3))),
    "purge": (1, ((0, 2), (0, 3))),
    "change_queue": (2, ((0, 2), (0, 3), (0, 1))),
    "jump": (1, ((0, 7),)),
    "crash": (1, ((0, 2), (0, 1))),
    "stop": (1, ((0, 2),)),
    "runs": (1, ((0, 2), (0, 2), (1, 4))),
    "back_up": (1, ((0, 2),)),
    "put_back": (1, ((0, 2),)),
    "empty": (1, ((0, 2),)),
    "withdraw": (2, ((0, 2), (0, 7), (0, 20))),
    "pause": (2, ((0, 2), (0, 7))),
    "stranger": (1, ((0, 2), (1, 3))),
    "arm": (2, ((0, 2), (1, 30), (0, 3))),
    "quota": (2, ((0, 2), (0, 2))),
}


class Walk:
    """Random episodes of a seed, each from a new world. often: actions that are to be so many times more frequent."""

    def __init__(self, seed: int, managers: int, often: dict[str, int] | None = None) -> None:
        self.seed = seed
        self.managers = managers
        self.often = often or {}
        self.figures: Counter[str] = Counter()

    def episode(self, number: int, steps: int = EPISODE_STEPS) -> World:
        """Play one; raises Violation with its trace in `trace`."""
        pick = random.Random(f"{self.seed}/{number}")
        names = list(ACTIONS)
        weights = [ACTIONS[name][0] for name in names]
        for index, name in enumerate(names):  # every episode has its own weather
            if name not in ("send", "deliver", "connect", "poll", "flow", "tick"):
                weights[index] *= pick.choice((0, 1, 1, 2))
            weights[index] *= self.often.get(name, 1)
        world = World(self.managers or 2 + number % 2, self.figures)
        try:
            world.do("begin", pick.choice(STARTS), pick.choice(WINDOWS), number // 2 % 2)
            for name in pick.choices(names, weights, k=steps):
                world.do(name, *[pick.randint(low, high) for low, high in ACTIONS[name][1]])
            world.do("settle")
        except BaseException as error:
            error.trace = world.trace  # type: ignore[attr-defined]
            raise
        finally:
            self.figures["steps"] += world.step
            world.close()
        return world


def play(size: int, trace: list[tuple[str, tuple[int, ...]]]) -> None:
    """Do these actions again."""
    world = World(size)
    try:
        for name, arguments in trace:
            world.do(name, *arguments)
    finally:
        world.close()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, help="of the walk; by default another each time")
    parser.add_argument(
        "--managers", type=int, choices=(2, 3), help="in every episode; by default two and three in turn"
    )
    parser.add_argument("--episode", type=int, help="only this one")
    parser.add_argument("--trace", action="store_true", help="print the actions of the episode that failed")
    parser.add_argument("--json", action="store_true", help="the figures as one JSON object")
    return parser.parse_args()


def main() -> int:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    arguments = _arguments()
    seed = arguments.seed if arguments.seed is not None else int.from_bytes(os.urandom(4), "big")
    console = Console(stderr=True)
    console.print(f"seed {seed}")
    walk = Walk(seed, arguments.managers or 0)
    began = time.monotonic()
    failure: BaseException | None = None
    number = arguments.episode or 0
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=arguments.json) as progress:
        task = progress.add_task("steps", total=arguments.steps, speed="")
        while walk.figures["steps"] < arguments.steps:
            try:
                walk.episode(number)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the end of the walk, and is shown
                failure = error
                break
            speed = walk.figures["steps"] / (time.monotonic() - began)
            progress.update(task, completed=walk.figures["steps"], speed=f"{speed:,.0f}/s")
            if arguments.episode is not None:
                break
            number += 1
    clean()
    seconds = time.monotonic() - began
    figures: dict[str, Any] = {
        "seed": seed,
        "episodes": number + (failure is None),
        **walk.figures,
        "seconds": round(seconds, 1),
        "steps_per_s": round(walk.figures["steps"] / seconds),
    }
    if failure:
        trace = getattr(failure, "trace", [])
        figures |= {"violation": str(failure) or repr(failure), "episode": number, "step": len(trace)}
        if arguments.trace:
            for place, (name, values) in enumerate(trace, 1):
                console.print(f"{place:4} {name}{values}", highlight=False)
        if not isinstance(failure, Violation):
            console.print("".join(traceback.format_exception(failure)), highlight=False)
    if arguments.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            console.print(
                f"{name:>12}  {value:,}" if isinstance(value, (int, float)) else f"{name:>12}  {value}", highlight=False
            )
    if failure:
        again = f"--managers {arguments.managers} " if arguments.managers else ""
        console.print(f"again: .venv/bin/python -m tests.host.model --seed {seed} {again}--episode {number} --trace")
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main())
