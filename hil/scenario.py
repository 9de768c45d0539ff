"""What a campaign is to do: its settings, the faults that its seed plans, and the file in which a person can read both.

    campaign: {board: unix, seed: 7, messages: 40, max_size: 200}
    events:
    - {cut: rst, up: 900, after: 2000}
    - {board: power, at: 12, off_s: 0.1}
    - {queue manager: kill, at: 30}

hil/README.md explains the entries. A file that is wrong is refused with its line, the value and the rule.
"""

import math
import random
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from hil import sensor
from hil.boards import MISHAP, POWER, RESET, ROOT, SENSOR, Board, BoardMissing, Limits
from hil.faults import BLOCKED, DOWN, GOES_ON, ONE_WAY, OPENING_BYTES, TCP_KINDS, UP, Cut, plan_cuts
from hil.serial_faults import SERIAL_KINDS, UNPLUG

ERASE, ERASE_FIXED, COPY, FLIP, REFLASH, DEPLOY = BEFALL = (
    *("erase", "erase-fixed", "copy", "flip", "reflash", "deploy"),
)
OFFLINE, DEAD_DNS, FULL = WITHHELD = ("offline", "dead-dns", "full")
RESTORE = "restore"
MISHAPS = (*BEFALL, *WITHHELD, RESTORE)
VICTIMS = BOARD, MANAGER = ("board", "queue manager")
NAME_SERVER = "name server"
ENDS = (*VICTIMS, NAME_SERVER)
CLOCK, DEAD, DIP = ("clock", "dead", "dip")
KILLS = (POWER, RESET, MISHAP)
"""Ways that end a life of a victim; the others are `CLOCK`, which steps, `DIP`, each further cut of a power that browns
out, and what else befalls an end.
"""
ARTEFACTS = ROOT / "build" / "campaign"
ORDACK = (str(ROOT / ".venv" / "bin" / "ordack"),)
HEADER_BYTES = 230
"""What a message of the sensor takes on the link besides its body, at least."""
WINDOW = 64
"""Messages that a session has on its way at most."""
KEPT = 25
"""So many readings of a long campaign stay in the outbox, about."""
SEGMENT_BYTES = 65536

KILL_DELAY_MAX_S = 0.03
KILL_BYTES_MAX = 4096
BYTES_PATIENCE_S = 1.0
DIPS = (2, 4)
"""A power that browns out, which is every second one, is cut so many times at least, and at most."""
DEAD_S = 2.0
"""So long a name server says nothing, if its line does not say it."""
CLOCK_STEPS_S = (-400 * 86400.0, -3600.0, -2.0, 2.0, 3600.0, 400 * 86400.0)
EACH = 3
"""Of so many kills, one comes with a name server that is dead."""
OFF_TIME_MAX_S = 0.2
DOWN_LIMIT_BYTES: Final = OPENING_BYTES + 4096
"""`up_limit` of a cut `down` whose line does not say it."""

_WAYS: Final = {
    BOARD: {way: way for way in (*KILLS, CLOCK)},
    MANAGER: {"kill": POWER, MISHAP: MISHAP, CLOCK: CLOCK},
    NAME_SERVER: {DEAD: DEAD},
}
_RELAYED_KINDS: Final = tuple(kind for kind in TCP_KINDS if kind != BLOCKED)
_KINDS: Final = tuple(dict.fromkeys((*TCP_KINDS, *SERIAL_KINDS)))
_LASTING: Final = (*GOES_ON, UNPLUG)
_KEYS: Final = {  # of `campaign`: what a value has to be
    "board": str,
    "seed": int,
    "messages": int,
    "max_size": int,
    "ahead": int,
    "commands": int,
    "mishap": str,
    "tls": bool,
    "patience_s": float,
    "deadline_s": float,
    "ordack": str,
    "application": str,
}
_TYPES: Final = {
    str: "a text",
    int: "a whole number of 0 or more",
    float: "a number of 0 or more",
    bool: "true or false",
}


class BadScenario(Exception):
    """The file is no scenario; the text has the line, what is wrong there, and what is right."""


@dataclass(frozen=True)
class Kill:
    """One planned kill of `victim`: `delay_s` after `count` readings have been accepted (stored, of the queue manager),
    off for `off_s`, which is nothing if it is a `RESET`. With `bytes` it comes as soon as so many more have
    gone upstream, and `delay_s` is how long it waits for them. With `dips` the power browns out: it is cut so often,
    and on for a share of `on_s` between, each time for longer. A `CLOCK` is not killed, but goes on by `step_s`; a name
    server is dead for `off_s`.
    """

    count: int
    delay_s: float
    off_s: float
    way: str = POWER
    bytes: int = 0
    victim: str = BOARD
    step_s: float = 0.0
    dips: int = 0
    on_s: float = 0.0

    def lives(self) -> "Iterator[Kill]":
        """It, and a `DIP` for each time that the power is cut again."""
        yield self
        for turn in range(1, self.dips):
            yield replace(self, way=DIP, delay_s=self.on_s * turn / (self.dips - 1), bytes=0, dips=0)


Event = Cut | Kill


@dataclass(frozen=True)
class Settings:
    """What a campaign is to do. `patience_s`: seconds without any progress until it fails; `deadline_s`: seconds for
    all of it. `ahead`: so many readings at most are accepted and not stored yet. It, `max_size` and both times are of
    the kind of board if they are None. `mishap`: one of `MISHAPS`, what befalls the board the first, third ... time
    that it is killed, too. Its outbox is erased, without a fixed GUID or with one; copied, and from then on put back
    from that copy; one bit of it is flipped. The clock is never set then. Or another firmware is flashed, or the
    program deployed anew while a watchdog watches it. Or the queue manager is away, or the name server silent while a
    watchdog watches the board, until all readings wait on it, or its outbox is full, and its power has been cut once
    more. Or it befalls the queue manager: a backup is made of its store, which is put back from then on. `tls`: the
    link is over TLS. `commands`: so many are sent to the board meanwhile. `plan`: the faults, in place of those that
    the seed plans for `cuts` and `kills`, and beside these, if `others` are wanted.
    """

    messages: int = 1000
    cuts: int = 50
    kills: int = 5
    seed: int = 1
    board: str = "unix"
    max_size: int | None = None
    patience_s: float | None = None
    deadline_s: float | None = None
    ordack: tuple[str, ...] = ORDACK
    header_bytes: int = HEADER_BYTES
    application: Path = SENSOR
    artefacts: Path = ARTEFACTS
    mishap: str = ""
    tls: bool = False
    ahead: int | None = None
    commands: int = 0
    others: bool = True
    plan: tuple[Event, ...] | None = None

    def __post_init__(self) -> None:
        counts = self.messages, self.cuts, self.kills, self.commands
        if min(*counts, self.seed, self.max_size or 0, self.ahead or 0) < 0:
            raise ValueError("messages, cuts, kills, commands, the seed and sizes are numbers of 0 or more")
        if self.commands and self.mishap in (ERASE, ERASE_FIXED, COPY, FLIP):
            raise ValueError(f"with the mishap {self.mishap} commands would go with the outbox")
        if (self.cuts if self.plan is None else cuts_of(self.plan)) and not self.messages:
            raise ValueError("a link over which no message goes cannot be cut")

    def for_board(self, limits: Limits) -> "Settings":
        """These settings, with what they leave open taken from the kind of board. Raises BoardMissing if they ask more
        than it can.
        """
        if self.max_size is not None and self.max_size > limits.max_size:
            raise BoardMissing(f"board {self.board} takes bodies of at most {limits.max_size} bytes")
        max_size = limits.max_size if self.max_size is None else self.max_size
        patience_s = limits.patience_s if self.patience_s is None else self.patience_s
        deadline_s = limits.deadline_s if self.deadline_s is None else self.deadline_s
        ahead = (self.messages if self.mishap in WITHHELD else limits.ahead) if self.ahead is None else self.ahead
        return replace(self, max_size=max_size, ahead=ahead, patience_s=patience_s, deadline_s=deadline_s)

    @property
    def is_long(self) -> bool:
        """More readings than fit into a window wait on the board, twice and more often."""
        ahead = self.ahead or 0
        return ahead > WINDOW and self.messages >= 2 * ahead and self.application == SENSOR

    @property
    def keeps(self) -> int:
        """Each reading whose number this divides stays in the outbox: nobody receives it as long as the board is on.
        0: none does.
        """
        return max(8, self.messages // KEPT) if self.is_long and not self.mishap else 0

    def of_outbox(self) -> dict[str, object]:
        """What the application is told of it. It is so small that it gives up segments while messages are in them."""
        return {"keeps": self.keeps, "capacity": self.traffic(self.ahead) + 4 * SEGMENT_BYTES} if self.keeps else {}

    def traffic(self, count: int | None = None) -> int:
        """Bytes that all messages take on the link, or the first `count`, at least; of settings that leave no size
        open.
        """
        assert self.max_size is not None
        count = self.messages if count is None else count
        sizes = (sensor.size_of(self.seed, k, self.messages, self.max_size) for k in range(1, count + 1))
        return sum(sizes) + count * self.header_bytes


# The plan of a seed


def plan_kills(
    seed: int,
    victim: str,
    kills: int,
    messages: int,
    ways: Sequence[str] = (POWER,),
    by_bytes: bool = False,
    on_s: float = 0.0,
) -> list[Kill]:
    """Plan `kills` kills of one victim, spread over the first nine tenths of `messages`, by `ways` in turn; same
    arguments, same plan. `by_bytes`: cuts of its power come at a planned byte. `on_s`: how long a power that browns out
    is on between at most; 0: none does.
    """
    rng = random.Random(f"kills/{victim}/{seed}")
    bytes_rng = random.Random(f"bytes/{victim}/{seed}")
    dips_rng = random.Random(f"dips/{victim}/{seed}")
    span = 0.9 * messages / max(1, kills)
    planned = []
    for turn in range(kills):
        count = int(span * (turn + rng.random()))
        delay_s, off_s = round(rng.uniform(0, KILL_DELAY_MAX_S), 4), round(rng.uniform(0, OFF_TIME_MAX_S), 4)
        way = ways[turn % len(ways)]
        count = max(count, min(messages, int(way == MISHAP)))  # who has accepted one has an outbox
        wanted = bytes_rng.randint(1, KILL_BYTES_MAX) if by_bytes and way == POWER else 0
        kill = Kill(count, BYTES_PATIENCE_S if wanted else delay_s, off_s, way, wanted, victim)
        if on_s and way == POWER and dips_rng.random() < 0.5:
            kill = replace(kill, dips=dips_rng.randint(*DIPS), on_s=round(dips_rng.uniform(0, on_s), 4))
        planned.append(kill)
    return planned


def plan_others(seed: int, kills: Sequence[Kill], messages: int) -> list[Kill]:
    """Plan what else befalls a campaign with these kills of the board: steps of both clocks, a name server that is dead
    when the board starts; same arguments, same plan.
    """
    rng = random.Random(f"others/{seed}")

    def count() -> int:
        return int(0.9 * messages * rng.random())

    steps = [(victim, count(), rng.choice(CLOCK_STEPS_S)) for victim in VICTIMS for _ in range(-(-len(kills) // 2))]
    planned = [Kill(at, 0.0, 0.0, CLOCK, 0, victim, step_s) for victim, at, step_s in steps]
    cold = [kill for kill in kills if kill.way == POWER][: len(kills) // EACH]
    return planned + [Kill(kill.count, 0.0, DEAD_S, DEAD, 0, NAME_SERVER) for kill in cold]


def plan_window(settings: Settings, kinds: Sequence[str]) -> tuple[int, list[Cut]]:
    """So many readings the board sends before anything else befalls it, while no acknowledgement reaches it: as many as
    it has, more than the window takes. Their cut. Nothing if the board cannot have so many, or there are too few
    readings or cuts.
    """
    first = settings.ahead or 0
    if not settings.is_long or not settings.cuts or settings.tls or ONE_WAY not in kinds:  # TLS: its opening is longer
        return 0, []
    return first, [Cut(OPENING_BYTES + settings.traffic(1), DOWN, 1, ONE_WAY, 1)]


def planned(settings: Settings, board: Board) -> Settings:
    """These settings, which leave no size open, with a plan: their own, or that of their seed. Raises BoardMissing if
    their own asks for what such a board has not.
    """
    kinds = SERIAL_KINDS if board.line is not None else TCP_KINDS if board.is_direct else _RELAYED_KINDS
    known = {
        BOARD: (*board.ways, *((MISHAP,) if settings.mishap in BEFALL else ()), CLOCK),
        MANAGER: (
            *((POWER, CLOCK) if settings.ordack == ORDACK else (POWER,)),  # by stepped.py
            *((MISHAP,) if settings.mishap == RESTORE else ()),
        ),
        NAME_SERVER: (DEAD,) if board.line is None else (),
    }
    if settings.plan is not None:
        for event in settings.plan:
            what, all_of_it = (event.kind, kinds) if isinstance(event, Cut) else (event.way, known[event.victim])
            if what not in all_of_it:
                raise BoardMissing(f"board {settings.board} knows no {what} here: {', '.join(all_of_it)}")
        return settings
    first, of_window = plan_window(settings, kinds)
    seed, kills, messages = settings.seed, settings.kills, settings.messages - first
    turns = (MISHAP, POWER) if settings.mishap in BEFALL else board.ways
    on_s = board.dips_s if settings.others else 0.0
    of_board = plan_kills(seed, BOARD, kills, messages, turns, by_bytes=True, on_s=on_s)
    of_manager = (MISHAP, POWER) if settings.mishap == RESTORE else (POWER,)
    events = [*of_board, *plan_kills(seed, MANAGER, kills, messages, of_manager)]
    if settings.others and not settings.mishap and settings.application == SENSOR:  # another application knows of none
        of_clocks = CLOCK if settings.tls else ""  # certificates have their times
        others = plan_others(seed, of_board, messages)
        events += [kill for kill in others if kill.way in known[kill.victim] and kill.way != of_clocks]
    events = [replace(kill, count=kill.count + first) for kill in events]
    passed = settings.traffic(first)
    interruptions = sum(life.way not in (CLOCK, DEAD) for kill in events for life in kill.lives())
    cuts = plan_cuts(seed, settings.cuts - len(of_window), settings.traffic() - passed, interruptions, kinds)
    return replace(
        settings,
        plan=(
            *of_window,
            *(replace(cut, after=cut.after + passed) for cut in cuts),
            *(kill for end in ENDS for kill in sorted(kills_of(events, end), key=lambda kill: kill.count)),
        ),
    )


def cuts_of(plan: Sequence[Event]) -> list[Cut]:
    """The cuts of a plan, in its order."""
    return [event for event in plan if isinstance(event, Cut)]


def is_kill(event: Event) -> bool:
    """Whether it ends a life of a victim."""
    return isinstance(event, Kill) and event.way in KILLS


def kills_of(plan: Sequence[Event], victim: str) -> list[Kill]:
    """What befalls one end, in the order of the plan."""
    return [event for event in plan if isinstance(event, Kill) and event.victim == victim]


# The file


def write(settings: Settings) -> str:
    """The text of a scenario: what differs from the default, and the plan, one event a line."""
    assert settings.plan is not None
    defaults = Settings()
    wanted = {name: getattr(settings, name) for name in _KEYS}
    wanted = {
        name: value
        for name, value in wanted.items()
        if name in ("board", "seed", "messages", "max_size") or value != getattr(defaults, name)
    }
    if "ordack" in wanted:
        wanted["ordack"] = shlex.join(wanted["ordack"])
    if settings.max_size is None:
        del wanted["max_size"]
    if "application" in wanted:
        wanted["application"] = str(wanted["application"])
    lines = [f"campaign: {_flow(wanted)}", "events:" if settings.plan else "events: []"]
    return "\n".join([*lines, *(f"- {_flow(_entry(event))}" for event in settings.plan)]) + "\n"


def _flow(entries: dict[str, Any]) -> str:
    return str(yaml.safe_dump(entries, default_flow_style=True, sort_keys=False, width=1 << 30)).strip()


def _entry(event: Event) -> dict[str, Any]:
    if isinstance(event, Cut):
        limit: dict[str, float] = {} if event.direction == UP else {"up_limit": event.up_limit}
        limit |= {"for_s": event.for_s} if event.for_s else {}
        return {"cut": event.kind, event.direction: event.position, "after": event.after, **limit}
    (name,) = (name for name, way in _WAYS[event.victim].items() if way == event.way)
    figures = {key: getattr(event, key) for key in ("delay_s", "off_s", "bytes", "step_s", "dips", "on_s")}
    return {
        event.victim: name,
        "at": event.count,
        **{key: value for key, value in figures.items() if value},
    }


def read(path: Path) -> Settings:
    """The settings of the scenario in a file, with its plan. Raises BadScenario."""
    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except OSError as error:
        raise BadScenario(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadScenario(f"{path}: no text in UTF-8") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise BadScenario(f"{path}:{line}: no YAML: {error.problem}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise BadScenario(f"{path}: no YAML: {error}") from None
    try:
        return _settings(root)
    except _Wrong as error:
        raise BadScenario(f"{path}:{error.line}: {error}") from None


class _Wrong(Exception):
    """What is wrong at a node."""

    def __init__(self, node: yaml.Node | None, text: str) -> None:
        super().__init__(text)
        self.line = node.start_mark.line + 1 if node else 1


class _Table:
    """The entries of a mapping; every one has to be asked for."""

    def __init__(self, node: yaml.Node | None, what: str) -> None:
        if not isinstance(node, yaml.MappingNode):
            raise _Wrong(node, f"{what} has to be a table, such as {{name: value}}")
        self.node = node
        self._nodes: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = str(key.value)
            if name in self._nodes:
                raise _Wrong(key, f"{name} stands twice")
            self._nodes[name] = value

    def __contains__(self, name: str) -> bool:
        return name in self._nodes

    def only(self, names: Sequence[str]) -> None:
        for name, node in self._nodes.items():
            if name not in names:
                raise _Wrong(node, f"{name!r} is not known here: {', '.join(names)}")

    def sub(self, name: str) -> yaml.Node:
        return self._nodes[name]

    def take(self, name: str, kind: type[Any], default: Any = None, least: float = 0) -> Any:
        """The value of an entry, of this kind."""
        node = self._nodes.get(name)
        if node is None:
            return default
        wanted = _TYPES[kind] if not least else "a number" if kind is float else f"a whole number of {least} or more"
        value: Any = None
        with suppress(ValueError, yaml.YAMLError):  # a date that is none, a tag that nobody knows
            value = yaml.SafeLoader("").construct_object(node)
        if kind is float and type(value) is int:
            value = float(value)
        is_number = kind in (int, float)
        if type(value) is not kind or (is_number and not least <= value < math.inf):
            shown = node.value if isinstance(node, yaml.ScalarNode) else "a list or table"
            raise _Wrong(node, f"{name}: {shown} is not {wanted}")
        return value

    def choose(self, name: str, known: Sequence[str]) -> str:
        value = str(self.take(name, str))
        if value not in known:
            raise _Wrong(self._nodes[name], f"{name}: {value!r} is none of {', '.join(known)}")
        return value


def _settings(root: yaml.Node | None) -> Settings:
    top = _Table(root, "a scenario")
    top.only(("campaign", "events"))
    if "campaign" not in top:
        raise _Wrong(root, "campaign: is missing, such as campaign: {board: unix, seed: 7, messages: 40}")
    table = _Table(top.sub("campaign"), "campaign")
    table.only(tuple(_KEYS))
    wanted = {name: table.take(name, kind) for name, kind in _KEYS.items() if name in table}
    if "mishap" in wanted:
        table.choose("mishap", MISHAPS)
    try:
        wanted |= {"ordack": tuple(shlex.split(wanted["ordack"]))} if "ordack" in wanted else {}
    except ValueError as error:
        raise _Wrong(table.sub("ordack"), f"ordack: {error}") from None
    if "application" in wanted:
        wanted["application"] = Path(wanted["application"])
    try:
        plain = Settings(**wanted, plan=())
    except ValueError as error:
        raise _Wrong(table.node, str(error)) from None
    nodes = top.sub("events") if "events" in top else None
    if nodes is not None and not isinstance(nodes, yaml.SequenceNode):
        raise _Wrong(nodes, "events has to be a list, one line each: - {board: power, at: 12}")
    plan = tuple(_event(node, plain) for node in (nodes.value if nodes else ()))
    return replace(plain, cuts=len(cuts_of(plan)), kills=sum(map(is_kill, kills_of(plan, BOARD))), plan=plan)


def _kill(node: yaml.Node, table: _Table, victim: str, settings: Settings) -> Kill:
    way = _WAYS[victim][table.choose(victim, tuple(_WAYS[victim]))]
    lasts = ("off_s", "bytes") if way in KILLS else {CLOCK: ("step_s",), DEAD: ("off_s",)}[way]
    lasts = (*lasts, "dips", "on_s") if way == POWER else lasts
    table.only((victim, "at", "delay_s", *lasts))
    of_victim = BEFALL if victim == BOARD else (RESTORE,)
    if way == MISHAP and settings.mishap not in of_victim:
        raise _Wrong(node, f"a mishap needs mishap: in campaign, one of {', '.join(of_victim)}")
    count = table.take("at", int, -1)
    if not 0 <= count <= settings.messages:
        found = "is missing" if count < 0 else f"{count} is none of them"
        raise _Wrong(node, f"at: has to say after how many of the {settings.messages} messages; {found}")
    wanted = table.take("bytes", int, 0)
    delay_s = table.take("delay_s", float, BYTES_PATIENCE_S if wanted else 0.0)
    off_s = table.take("off_s", float, DEAD_S if way == DEAD else 0.0)
    step_s = table.take("step_s", float, 0.0, least=-math.inf)
    if way == CLOCK and not step_s:
        raise _Wrong(node, "step_s: has to say by how many seconds the clock goes on; back, if it is negative")
    dips, on_s = table.take("dips", int, 0, least=2), table.take("on_s", float, 0.0)
    if on_s and not dips:
        raise _Wrong(node, "on_s: is for a power that browns out: dips: says how often it is cut")
    return Kill(count, delay_s, off_s, way, wanted, victim, step_s, dips, on_s)


def _event(node: yaml.Node, settings: Settings) -> Event:
    table = _Table(node, "an event")
    for victim in _WAYS:
        if victim in table:
            return _kill(node, table, victim, settings)
    if "cut" not in table:
        raise _Wrong(node, f"an event begins with cut, {', '.join(ENDS[:-1])} or {ENDS[-1]}")
    table.only(("cut", UP, DOWN, "after", "up_limit", "for_s"))
    kind = table.choose("cut", _KINDS)
    if not settings.messages:
        raise _Wrong(node, "a link over which no message goes cannot be cut")
    if (UP in table) == (DOWN in table):
        raise _Wrong(node, f"a cut falls at one byte, {UP}: or {DOWN}:")
    direction = UP if UP in table else DOWN
    position, after = table.take(direction, int, least=1), table.take("after", int, 0)
    limit = position if direction == UP else table.take("up_limit", int, DOWN_LIMIT_BYTES, least=1)
    if direction == UP and "up_limit" in table:
        raise _Wrong(node, f"up_limit is for a cut {DOWN}")
    for_s = table.take("for_s", float, 0.0)
    if for_s and kind not in _LASTING:
        raise _Wrong(node, f"for_s is for a cut that ends by itself: {', '.join(_LASTING)}")
    return Cut(after, direction, position, kind, limit, for_s)
