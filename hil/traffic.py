"""The traffic of a campaign, captured at the link and judged by the specification.

Ledger and queue show the outcome of the readings. They hide protocol faults that the other end repaired. The capture
shows such faults: `ordack capture audit` reads the transactional streams, and `window_faults` checks the windows and
acknowledgements of each connection.
"""

import json
import subprocess
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ordack.server.record import RecordedConnection, Recorder

CAPTURE = "link.pcapng"
CAPTURE_BYTES = 1 << 30
DEADLINE_S = 120.0
_SHOWN = 3
_WORD = 0x10000


class Tap:
    """Writes each forwarded byte to captures in `folder`, as packets between the board and the queue manager."""

    def __init__(self, folder: Path) -> None:
        self.failure = ""
        self._recorder = Recorder(folder / CAPTURE, CAPTURE_BYTES, self._fail)

    def _fail(self, reason: str) -> None:
        self.failure = str(reason)

    def open(self, board: tuple[str, int], manager: tuple[str, int]) -> RecordedConnection:
        """Begin the connection of the board at this address."""
        return self._recorder.connection(board, manager, opened_here=False)

    def close(self) -> None:
        """Write the remaining packets."""
        self._recorder.close()


def judge(ordack: Sequence[str], folder: Path) -> list[str]:
    """The violations of the specification in the captures in `folder`, a sentence each. Raises OSError, ValueError,
    subprocess.SubprocessError if the `ordack` commands cannot read them."""
    captures = sorted(folder.glob(f"{Path(CAPTURE).stem}*{Path(CAPTURE).suffix}"))
    packets = [packet for capture in captures for packet in _json_lines((0, 3), *ordack, "capture", "decode", capture)]
    if not packets:
        return []
    found = window_faults(packets)[:_SHOWN]
    if find_spec("pyspark") is not None:  # `ordack capture audit` needs pyspark, which `make run` does not install
        (summary,) = _json_lines((0, 1, 3), *ordack, "capture", "audit", *captures, "--no-spark")
        found += [
            f"{count} times {kind} (`ordack capture audit`)" for kind, count in summary["violations"].items() if count
        ]
    return found


def _json_lines(statuses: Sequence[int], *command: str | Path) -> list[dict[str, Any]]:
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    if done.returncode not in statuses:
        raise ValueError(f"`ordack {command[1]}` ended with status {done.returncode}: {done.stderr.strip()}")
    return [json.loads(line) for line in done.stdout.splitlines()]


class _Direction:
    """One end's messages on a connection. acknowledged: messages acknowledged by the other end. window: this end's."""

    def __init__(self) -> None:
        self.sent = 0
        self.acknowledged = 0
        self.window: int | None = None


def window_faults(packets: Iterable[dict[str, Any]]) -> list[str]:
    """Violations of the window (B-118), and SessionHeaders that acknowledge without their base message (B-102, B-103,
    B-107). packets: as `ordack capture decode --json` prints them."""
    ends: dict[str, _Direction] = {}
    found = []
    for packet in packets:
        name, fields = packet.get("connection", ""), packet.get("fields", {})
        if packet["packet"] == "EstablishConnection":
            ends[name] = _Direction()  # a port may be reused
        end = ends.setdefault(name, _Direction())
        other = ends.setdefault(">".join(reversed(name.split(">"))), _Direction())
        if parameters := fields.get("ConnectionParametersHeader"):
            end.window = parameters["WindowSize"]
        if header := fields.get("SessionHeader"):
            newly = (header["AckSequenceNumber"] - other.acknowledged) % _WORD
            other.acknowledged += newly if newly < _WORD // 2 else 0
            base, flags = header["RecoverableMsgAckSeqNumber"], header["RecoverableMsgAckFlags"]
            if bool(base) != bool(flags & 1):
                place = f"frame {packet['frame']} of {name}"
                found.append(f"a SessionHeader acknowledges base {base} with the bits {flags:#x} ({place})")
        if "UserHeader" in fields:
            end.sent += 1
            windows = [one.window for one in (end, other) if one.window is not None]
            if len(windows) == 2 and end.sent - end.acknowledged > min(windows):
                waiting, place = end.sent - end.acknowledged, f"frame {packet['frame']} of {name}"
                found.append(f"{waiting} messages wait for a SessionHeader, the window is {min(windows)} ({place})")
    return found
