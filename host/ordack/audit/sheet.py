"""What pages with tables and plots share: HTML files that stand alone.

sheet.html is what is around them, sheet.css their style, sheet.js their tables and plots. plotly.js is in the file too,
so nothing is fetched, and the content security policy forbids it. Text from the network reaches a page as JSON whose
markup characters are escaped, or through `markup`.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from ordack.text import legible


def page(package: str, parts: Mapping[str, str], data: Any) -> str:
    """page.html of a package, with these parts in the place of their names, and page.js, which finds `data`. parts:
    `title` too, and all as markup."""
    own = resources.files(package)
    shared = resources.files("ordack.audit")
    script = (shared / "sheet.js").read_text("utf-8") + (own / "page.js").read_text("utf-8")
    plotly = get_plotlyjs()
    hashes = (base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in (plotly, script))
    whole = {
        **parts,
        "css": (shared / "sheet.css").read_text("utf-8"),
        "data": _json(data),
        "plotly": plotly,
        "script": script,
        "hashes": " ".join(f"'sha256-{one}'" for one in hashes),
    }
    text = (shared / "sheet.html").read_text("utf-8").replace("@body@", (own / "page.html").read_text("utf-8"))
    return re.sub(r"@([a-z]+)@", lambda match: whole[match[1]], text)


def markup(text: str) -> str:
    """Text as a page has it."""
    return html.escape(legible(text))


def table(caption: str, headings: Sequence[str], rows: Sequence[Sequence[str | int]]) -> str:
    """The first column is text, the others are aligned as numbers where they are."""
    if not rows:
        return f'<p class="quiet">{markup(caption)}: none.</p>'
    head = "".join(
        f'<th scope="col"{"" if at == 0 else _align(rows[0][at])}>{markup(heading)}</th>'
        for at, heading in enumerate(headings)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{'' if at == 0 else _align(cell)}>{markup(f'{cell:,}' if isinstance(cell, int) else cell)}</td>"
            for at, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><caption>{markup(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _align(cell: str | int) -> str:
    return ' class="number"' if isinstance(cell, int) or re.fullmatch(r"[\d,.e+-]+", cell) else ""


def _json(data: Any) -> str:
    """JSON that no parser of HTML takes for anything else."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Names once instead of in every row."""
    return {key: [row[key] for row in rows] for key in (rows[0] if rows else ())}
