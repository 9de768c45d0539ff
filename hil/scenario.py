"""The settings of a campaign, and the faults that its seed plans."""

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
    """One planned kill of `victim`, `delay_s` after `count` readings were accepted; for the queue manager, stored. The
    victim is off for `off_s`, 0 for a `RESET`. With `bytes`, the kill comes after that many upstream bytes, and
    `delay_s` limits the wait for them."""

    count: int
    delay_s: float
    off_s: float
    way: str = POWER
    bytes: int = 0
    victim: str = BOARD


Event = Cut | Kill


@dataclass(frozen=True)
class Settings:
    """The settings of a campaign. `patience_s`: seconds without progress until it fails; `deadline_s`: seconds in all.
    `ahead`: maximum of accepted readings not stored yet. For None, these and `max_size` come from the kind of board.
    `mishap`: one of `MISHAPS`, applied at the first, third ... kill of the board. It erases the outbox, without or with
    a fixed GUID; or copies the outbox once, and restores that copy later. The clock is then never set. Or the queue
    manager stays away until all readings wait on the board, or its outbox is full, and one more power cut has followed.
    Or the queue manager's store is backed up once, and restored later. `tls`: use TLS. `plan`: faults, instead of those
    that the seed plans for `cuts` and `kills`."""

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
        """These settings, completed with the limits of the kind of board. Raises BoardMissing beyond a limit."""
        if self.max_size is not None and self.max_size > limits.max_size:
            raise BoardMissing(f"board {self.board} takes bodies of at most {limits.max_size} bytes")
        max_size = limits.max_size if self.max_size is None else self.max_size
        patience_s = limits.patience_s if self.patience_s is None else self.patience_s
        deadline_s = limits.deadline_s if self.deadline_s is None else self.deadline_s
        ahead = (self.messages if self.mishap in WITHHELD else limits.ahead) if self.ahead is None else self.ahead
        return replace(self, max_size=max_size, ahead=ahead, patience_s=patience_s, deadline_s=deadline_s)

    @property
    def is_long(self) -> bool:
        """Do more readings than a window holds wait on the board, at least twice?"""
        ahead = self.ahead or 0
        return ahead > WINDOW and self.messages >= 2 * ahead and self.application == SENSOR

    @property
    def keeps(self) -> int:
        """Readings whose number is a multiple of this stay in the outbox, unreceived while the board is on. 0: none."""
        return max(8, self.messages // KEPT) if self.is_long and not self.mishap else 0

    def of_outbox(self) -> dict[str, object]:
        """The application's outbox settings. The small capacity forces it to free segments that hold messages."""
        return {"keeps": self.keeps, "capacity": self.traffic(self.ahead) + 4 * SEGMENT_BYTES} if self.keeps else {}

    def traffic(self, count: int | None = None) -> int:
        """Least bytes of all messages on the link, or of the first `count`. All sizes must be set."""
        assert self.max_size is not None
        count = self.messages if count is None else count
        sizes = (sensor.size_of(self.seed, k, self.messages, self.max_size) for k in range(1, count + 1))
        return sum(sizes) + count * self.header_bytes


def plan_kills(
    seed: int, victim: str, kills: int, messages: int, ways: Sequence[str] = (POWER,), by_bytes: bool = False
) -> list[Kill]:
    """Plan `kills` kills of one victim over the first nine tenths of `messages`, by `ways` in turn. Same arguments,
    same plan. by_bytes: power cuts come at a planned byte."""
    rng = random.Random(f"kills/{victim}/{seed}")
    bytes_rng = random.Random(f"bytes/{victim}/{seed}")
    span = 0.9 * messages / max(1, kills)
    planned = []
    for turn in range(kills):
        count = int(span * (turn + rng.random()))
        delay_s, off_s = round(rng.uniform(0, KILL_DELAY_MAX_S), 4), round(rng.uniform(0, OFF_TIME_MAX_S), 4)
        way = ways[turn % len(ways)]
        count = max(count, min(messages, int(way == MISHAP)))  # an accepted reading means that there is an outbox
        wanted = bytes_rng.randint(1, KILL_BYTES_MAX) if by_bytes and way == POWER else 0
        planned.append(Kill(count, BYTES_PATIENCE_S if wanted else delay_s, off_s, way, wanted, victim))
    return planned


def plan_window(settings: Settings, kinds: Sequence[str]) -> tuple[int, list[Cut]]:
    """Plan the start of a long campaign: the readings that the board sends before other faults, more than a window,
    while no acknowledgement reaches it; and their cut. (0, []) if the board, the readings or the cuts do not allow it.
    """
    first = settings.ahead or 0
    if not settings.is_long or not settings.cuts or settings.tls or ONE_WAY not in kinds:  # TLS: its opening is longer
        return 0, []
    return first, [Cut(OPENING_BYTES + settings.traffic(1), DOWN, 1, ONE_WAY, 1)]


def planned(settings: Settings, board: Board) -> Settings:
    """These settings, which set all sizes, with a plan: their own, or that of their seed."""
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
