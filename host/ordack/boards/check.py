"""What is found out about a board, in lines of a report."""

from __future__ import annotations

from typing import Any, NamedTuple


class Check(NamedTuple):
    """One line of a report. verdict: "ok", "warning" or "bad". advice: what to do, if there is something to do."""

    name: str
    verdict: str
    text: str
    advice: str = ""
    values: dict[str, Any] = {}  # noqa: RUF012 - never changed

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {"check": self.name, "verdict": self.verdict, "found": self.text, "advice": self.advice, **self.values}
