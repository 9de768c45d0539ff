"""Commands that a queue manager sends to the board of a campaign while its readings come: what was given, and what
became of it by the board's own record.
"""

import asyncio
import binascii
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

from mqqb import guids

from hil import sensor
from hil.queue_manager import CampaignFailed, QueueManager
from hil.report import Comparison, Entry

GUID = "6f726461636b2d63616d706169676e21"
"""Of a board whose GUID the program fixes."""
TO = f"PRIVATE={guids.guid_text(bytes.fromhex(GUID))[1:-1]}\\{sensor.INBOX[1]:X}"
TIME_S = 10**9
"""To reach the board: its clock and that of the queue manager may step by years."""
LOOK_S = 0.01


class Accepting(Protocol):
    """What tells how many readings the board has accepted."""

    accepted: int


@dataclass
class Commands:
    """`given`: those that `ordack send` has accepted. `perhaps`: those that may be executed or not, because the queue
    manager was killed before the command could say that it was accepted, or its store was put back from a backup.
    """

    count: int
    given: list[int] = field(default_factory=list)
    perhaps: set[int] = field(default_factory=set)
    in_backup: int = 0

    async def give(self, manager: QueueManager, progress: Accepting, messages: int) -> None:
        """Give all of them, spread over so many readings. Raises CampaignFailed if one is refused, and no kill is the
        reason.
        """
        doubts = number = 0
        while len(self.given) < self.count:
            while progress.accepted < (len(self.given) + 1) * messages // (self.count + 1):
                await asyncio.sleep(LOOK_S)
            number += 1
            async with manager.using:
                try:
                    await manager.command("send", TO, "--body", str(number), "--dead-letter", "--ttrq", str(TIME_S))
                    self.given.append(number)
                except CampaignFailed:
                    doubts += 1
                    self.perhaps.add(number)
                    if doubts > manager.kills:
                        raise

    def store_saved(self) -> None:
        """A backup of the store has been made."""
        self.in_backup = len(self.given)

    def store_put_back(self) -> None:
        """What was given since is not in the store any more."""
        self.perhaps.update(self.given[self.in_backup :])

    def executed(self, last: int) -> bool:
        """All have been given, and `last` is the last one, or one behind it, of which the board has noted that."""
        return len(self.given) == self.count and last >= max(
            (number for number in self.given if number not in self.perhaps), default=0
        )

    def judge(self, result: Comparison, record: list[Entry]) -> None:
        """Write into the comparison what the board's record says."""
        times = Counter(entry.k for entry in record)
        result.commands = sum(count == 1 for count in times.values())
        result.unexecuted = [k for k in self.given if k not in self.perhaps and not times[k]]
        result.misexecuted = [f"command {k}: {count} times" for k, count in times.items() if count > 1]
        highest = 0
        for entry in record:
            result.misexecuted += _differences(entry, highest, {*self.given, *self.perhaps})
            highest = max(highest, entry.k)


def _differences(entry: Entry, highest: int, given: Collection[int]) -> list[str]:
    """What is wrong about one that was executed."""
    if entry.k not in given:
        return [f"command {entry.k}: nobody gave it"]
    wrong = [f"command {entry.k}: after command {highest}"] if entry.k < highest else []
    body = str(entry.k).encode()
    altered = (entry.size, entry.crc32) != (len(body), binascii.crc32(body))
    return [*wrong, *([f"command {entry.k}: another body"] if altered else [])]
