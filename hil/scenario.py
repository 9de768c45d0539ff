"""What a campaign is to do: its settings, and the faults that its seed plans."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hil import sensor
from hil.boards import MISHAP, POWER, ROOT, SENSOR, Board, BoardMissing, Limits
from hil.faults import DOWN, ONE_WAY, OPENING_BYTES, TCP_KINDS, Cut, plan_cuts
from hil.serial_faults import SERIAL_KINDS

ERASE, ERASE_FIXED, COPY = BEFALL = ("erase", "erase-fixed", "copy")
OFFLINE, FULL = WITHHELD = ("offline", "full")
RESTORE = "restore"
MISHAPS = (*BEFALL, *WITHHELD, RESTORE)
BOARD, MANAGER = "board", "queue manager"
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
OFF_TIME_MAX_S = 0.2


@dataclass(frozen=True)
class Kill:
    """One planned kill of `victim`: `delay_s` after `count` readings have been accepted (stored, of the queue manager),
    off for `off_s`, which is nothing if it is a `RESET`. With `bytes` it comes as soon as so many more have
    gone upstream, and `delay_s` is how long it waits for them.
    """

    count: int
    delay_s: float
    off_s: float
    way: str = POWER
    bytes: int = 0
    victim: str = BOARD


Event = Cut | Kill


@dataclass(frozen=True)
class Settings:
    """What a campaign is to do. `patience_s`: seconds without any progress until it fails; `deadline_s`: seconds for
    all of it. `ahead`: so many readings at most are accepted and not stored yet. It, `max_size` and both times are of
    the kind of board if they are None. `mishap`: one of `MISHAPS`, what befalls the board the first, third ... time
    that it is killed, too. Its outbox is erased, without a fixed GUID or with one; or copied, and from then on put back
    from that copy. The clock is never set then. Or the queue manager is away until all readings wait on the board, or
    its outbox is full, and its power has been cut once more. Or it befalls the queue manager: a backup is made of its
    store, which is put back from then on. `tls`: the link is over TLS. `plan`: the faults, in place of those that the
    seed plans for `cuts` and `kills`.
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
    plan: tuple[Event, ...] | None = None

    def __post_init__(self) -> None:
        if min(self.messages, self.cuts, self.kills, self.seed, self.max_size or 0, self.ahead or 0) < 0:
            raise ValueError("messages, cuts, kills, the seed and sizes are numbers of 0 or more")
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


def plan_kills(
    seed: int, victim: str, kills: int, messages: int, ways: Sequence[str] = (POWER,), by_bytes: bool = False
) -> list[Kill]:
    """Plan `kills` kills of one victim, spread over the first nine tenths of `messages`, by `ways` in turn; same
    arguments, same plan. `by_bytes`: cuts of its power come at a planned byte.
    """
    rng = random.Random(f"kills/{victim}/{seed}")
    bytes_rng = random.Random(f"bytes/{victim}/{seed}")
    span = 0.9 * messages / max(1, kills)
    planned = []
    for turn in range(kills):
        count = int(span * (turn + rng.random()))
        delay_s, off_s = round(rng.uniform(0, KILL_DELAY_MAX_S), 4), round(rng.uniform(0, OFF_TIME_MAX_S), 4)
        way = ways[turn % len(ways)]
        count = max(count, min(messages, int(way == MISHAP)))  # who has accepted one has an outbox
        wanted = bytes_rng.randint(1, KILL_BYTES_MAX) if by_bytes and way == POWER else 0
        planned.append(Kill(count, BYTES_PATIENCE_S if wanted else delay_s, off_s, way, wanted, victim))
    return planned


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
    """These settings, which leave no size open, with a plan: their own, or that of their seed."""
    if settings.plan is not None:
        return settings
    kinds = SERIAL_KINDS if board.line is not None else TCP_KINDS
    first, of_window = plan_window(settings, kinds)
    seed, kills, messages = settings.seed, settings.kills, settings.messages - first
    turns = (MISHAP, POWER) if settings.mishap in BEFALL else board.ways
    of_manager = (MISHAP, POWER) if settings.mishap == RESTORE else (POWER,)
    events = plan_kills(seed, BOARD, kills, messages, turns, by_bytes=True)
    events += plan_kills(seed, MANAGER, kills, messages, of_manager)
    passed = settings.traffic(first)
    cuts = plan_cuts(seed, settings.cuts - len(of_window), settings.traffic() - passed, len(events), kinds)
    later = [replace(cut, after=cut.after + passed) for cut in cuts]
    return replace(settings, plan=(*of_window, *later, *(replace(kill, count=kill.count + first) for kill in events)))


def cuts_of(plan: Sequence[Event]) -> list[Cut]:
    """The cuts of a plan, in its order."""
    return [event for event in plan if isinstance(event, Cut)]


def kills_of(plan: Sequence[Event], *victims: str) -> list[Kill]:
    """The kills of these victims, in the order of the plan."""
    return [event for event in plan if isinstance(event, Kill) and event.victim in victims]
