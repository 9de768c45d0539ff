"""The table of guarantees as a page: one HTML file that stands alone, with the figures of every board and plots of its
campaign. page.html is the page, page.js its plots; the rest is that of an audit's report. Needs plotly.
"""

from collections import Counter
from datetime import UTC, datetime
from typing import Any

from ordack.audit import sheet

from hil.boards import Wear
from hil.matrix import ABSENT, BROKEN, GUARANTEES, NOT_SHOWN, SHOWN, Matrix, measured
from hil.report import flash_written

_BADGES = {SHOWN: "b3", BROKEN: "b0", NOT_SHOWN: "b1", ABSENT: "b2"}


def page(matrix: Matrix) -> str:
    """The whole file."""
    verdicts = Counter(cell.verdict for cells in matrix.columns.values() for cell in cells.values())
    verdict = "clean" if matrix.ok else "violations" if verdicts[BROKEN] else "unknown"
    count = len(matrix.columns)
    headline = {
        "clean": f"Every guarantee is shown on {count} board{'s' if count != 1 else ''}.",
        "violations": f"{verdicts[BROKEN]} of {sum(verdicts.values())} guarantees are broken.",
        "unknown": f"{verdicts[NOT_SHOWN]} of {sum(verdicts.values())} guarantees are not shown.",
    }[verdict]
    if not verdicts.keys() - {ABSENT}:
        headline = "No board was tried."
    if matrix.missing:
        headline = f"The run was stopped: {matrix.missing} rounds are missing. {headline}"
    parts = {
        "title": sheet.markup(matrix.title),
        "span": sheet.markup(", ".join(matrix.columns)),
        "verdict": verdict,
        "headline": sheet.markup(headline),
        "guarantees": _guarantees(matrix),
        "figures": sheet.table("A row for each board", _HEADINGS, [_figures(*one) for one in _present(matrix)]),
        "footer": f"Written by pytest hil --report, {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC.",
    }
    data = [{"board": board, **figures["timeline"]} for board, figures in _present(matrix)]
    return sheet.page("hil", parts, data)


def _present(matrix: Matrix) -> list[tuple[str, dict[str, Any]]]:
    return [(board, figures) for board, figures in matrix.figures.items() if figures is not None]


def _guarantees(matrix: Matrix) -> str:
    heads = "".join(f'<th scope="col">{sheet.markup(name)}</th>' for name in ("guarantee", *matrix.columns))
    rows = []
    for name in GUARANTEES:
        cells = (cells[name] for cells in matrix.columns.values())
        row = "".join(
            f'<td><span class="badge {_BADGES[cell.verdict]}">{cell.verdict}</span> {sheet.markup(cell.ground)}</td>'
            for cell in cells
        )
        rows.append(f'<tr><th scope="row">{sheet.markup(name)}</th>{row}</tr>')
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


_HEADINGS = (
    *("board", "readings", "once", "link cut", "board killed", "queue manager killed", "other faults"),
    *("worst recovery, s", "readings a second", "bytes up", "bytes down", "flash written", "seconds", "core"),
    *("SHA-256", "seed", "what it is"),
)


def _counts(found: dict[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(found.items())) or "0"


def _figures(board: str, figures: dict[str, Any]) -> list[str | int]:
    comparison = figures["comparison"] or {}
    worst_s, rate, hashes = measured(figures)
    return [
        board,
        comparison.get("sent", 0),
        comparison.get("once", 0),
        _counts(Counter(cut["kind"] for cut in figures["cuts"])),
        figures["board_kills"],
        figures["manager_kills"],
        _counts(figures["others"]),
        worst_s,
        rate,
        figures["bytes_up"],
        figures["bytes_down"],
        flash_written(Wear(**figures["wear"]), figures["messages"]) if figures["wear"] else "not counted",
        f"{figures['seconds']:.1f}",
        figures["core"],
        hashes,
        str(figures["seed"]),
        figures["description"],
    ]
