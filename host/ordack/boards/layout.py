"""Boards of the time when `ordack.node` was `node`: what is left of it there, and programs that still name it so.

No module `node` stands for the old name: it would take from users the name that was given back to them, and MicroPython
takes no modules of a package, `node.board`, from another one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from ordack.boards.repl import Board

_OLD_IMPORT = re.compile(r"\s*(?:from\s+node\b|import\s+(?:[\w.]+(?:\s+as\s+\w+)?\s*,\s*)*node\b)")
_LOOK = """
import os
def _in(p):
    try:
        return [f[0] + '/' * (f[1] >> 14 & 1) for f in os.ilistdir(p or '/')] # a folder: 0x4000
    except OSError:
        return []
try:
    import ordack
    is_there = True
except ImportError:
    is_there = False
print(([(p, _in(p), _in(p + '/node'), _in(p + '/ordack')) for p in {!r}], is_there))
"""


class Layout(NamedTuple):
    """old: the folder of the modules that were `node`. old_firmware: it has them. new: `ordack.node` is there.
    programs: what imports `node`, as `/main.py, line 3`. hidden_by: a folder that MicroPython takes for our package.
    """

    old: str
    old_firmware: bool
    new: bool
    programs: list[str]
    hidden_by: str


def look(board: Board, main: Path | None = None, *, frozen: bool) -> Layout:
    """Look at the folders of modules and at the programs beside main.py. main: what main.py is going to be. frozen: the
    firmware has our modules. Raises BoardError, OSError."""
    root, lib = board.info.folder.rstrip("/"), board.info.lib
    old = hidden_by = ""
    folders, is_there = board.run(_LOOK.format(sorted({root, lib})))
    is_theirs, is_new = False, frozen and is_there
    programs: list[str] = []
    for folder, names, node, ordack in folders:
        stems = {name.partition(".")[0] for name in node}
        if {"outbox", "peer"} <= stems:
            old = f"{folder}/node"
        elif node or {"node.py", "node.mpy"} & set(names):
            is_theirs = True
        is_new = is_new or "node/" in ordack
        if "ordack/" in names and "node/" not in ordack and (frozen or folder != lib) and folder == root:
            hidden_by = f"{folder}/ordack"
        if folder == root:
            programs = sorted(name for name in names if name.endswith(".py") and not (main and name == "main.py"))
    texts = {str(main): main.read_bytes()} if main else {}
    if not is_theirs:
        texts |= {f"{root}/{name}": board.read(f"{root}/{name}") for name in programs}
    lines = {path: line_of_old_import(text.decode(errors="replace")) for path, text in texts.items()}
    found = [f"{path}, line {line}" for path, line in lines.items() if line and not is_theirs]
    return Layout(old, frozen and not is_there, is_new, found, hidden_by)


def line_of_old_import(program: str) -> int:
    """The first line that imports `node`; 0: there is none, or the program knows `ordack.node` as well."""
    if "ordack.node" in program:
        return 0
    lines = enumerate(program.splitlines(), 1)
    return next((number for number, line in lines if _OLD_IMPORT.match(line)), 0)


def problem(found: Layout) -> tuple[str, str] | None:
    """Why a node or its program cannot start, and what to do."""
    if found.hidden_by:
        return f"{found.hidden_by} hides the package ordack from programs", "give that folder another name"
    if found.old_firmware:
        return (
            "the firmware has the modules of before: node is ordack.node now",
            "flash a firmware that is made with this ordack, and write `from ordack.node import Node` in programs",
        )
    if found.programs:
        advice = "write `from ordack.node import Node`, and so on, then run ordack board deploy --main FILE"
        return f"{'; '.join(found.programs)}: node is ordack.node now", advice
    return None


def leftover(found: Layout) -> str:
    """What to do about modules that were `node` and that no deploy knows of."""
    return f"remove {found.old}, the modules of before: mpremote rm -r :{found.old}"
