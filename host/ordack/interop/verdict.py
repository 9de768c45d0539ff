"""What a trial has found, as files that people can send on."""

from __future__ import annotations

import importlib.metadata
import json
from datetime import UTC, datetime

from ordack.interop.claims import BROKEN, HELD, UNJUDGED
from ordack.interop.run import Outcome, Settings
from ordack.text import legible


def summary(outcome: Outcome) -> str:
    """How many claims held, in a sentence."""
    counts = [sum(row.verdict == verdict for row in outcome.rows) for verdict in (HELD, BROKEN, UNJUDGED)]
    return "{} of {} claims held, {} did not, {} could not be judged".format(counts[0], sum(counts), *counts[1:])


def save(outcome: Outcome, settings: Settings, table: str) -> None:
    """Write report.json and, with the table, report.txt. Raises OSError."""
    whole = {
        "ordack": importlib.metadata.version("ordack"),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        **outcome.as_json(settings),
        "rows": [row.as_json() for row in outcome.rows],
    }
    (settings.folder / "report.json").write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    lines = [table.rstrip(), summary(outcome), *outcome.notes]
    (settings.folder / "report.txt").write_text(legible("\n".join(lines)) + "\n", encoding="utf-8")
