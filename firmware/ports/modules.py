"""Selects the modules of mqqb and ordack.node for boards, and makes the boards' form of them.

    modules.py FOLDER    writes mqqb and ordack/node for boards there
    modules.py FOLDER send_only    for boards that only send

The sources name every constant: `core.USER_MP`, `confirm.Q`. One module defines it, as `USER_MP = const(0x00200000)`.
On CPython a constant is an attribute; a board would pay memory for each name and time for each look-up. So the boards'
form has values instead of names, without unneeded statements and imports. MICROPYTHON becomes True, so that mpy-cross
drops code for CPython. Names of headers' fields, `sent_time = word(core.USER_SENT_TIME)`, are dropped: programs for
boards use `fields[core.USER_SENT_TIME]`. `__slots__` and `__all__` are dropped, because a board would keep and never
read them. All other code keeps its lines. The sources also run on a board, with less free heap.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

FIRMWARE = Path(__file__).resolve().parents[1]
BOARD = FIRMWARE.parent / "build" / "board"
FOLDERS = ("mqqb", "ordack/node")
VERSION = "0.1.0"
CPYTHON = {"mqqb/core_cffi.py"}
HOSTS = {f"mqqb/{name}.py" for name in ("build", "guids", "handshake", "hosts", "problems", "rare")}
TWINS = {"mqqb/core_py.py", "mqqb/line_py.py"}  # replaced by the C core
TLS = {"ordack/node/tls.py"}
RAW_FLASH = {"ordack/node/storage/raw_flash.py"}
UART = {"mqqb/line.py", "ordack/node/uart.py"}
RECEIVING = {"mqqb/acks.py", "mqqb/destination.py", "ordack/node/owed.py"}  # only modules of REFUSING import them
SENDS_ONLY = "this firmware only sends: see docs/how-to/firmware.md"
# What boards that only send refuse: modules, and methods.
REFUSING = {"ordack/node/inbox.py", "ordack/node/storage/sources.py", "ordack/node/talk/listener.py"}
REFUSED = {
    "ordack/node/node.py": ("inbox", "dead_letters", "journal", "read", "take"),
    "ordack/node/outcomes.py": ("let_go",),
    "ordack/node/queue.py": ("conclusion", "received", "dead_lettered", "_flags"),
    "mqqb/confirm.py": ("conclusion",),
}

Constants = dict[str, dict[str, "int | str"]]  # module -> name -> value


def sources() -> list[str]:
    """All modules that MicroPython can run, as paths under firmware/."""
    found = [
        path.relative_to(FIRMWARE).as_posix()
        for folder in FOLDERS
        for path in sorted((FIRMWARE / folder).rglob("*.py"))
    ]
    return [name for name in found if name not in CPYTHON]


def of_boards(
    *, twin: bool = True, tls: bool = True, raw_flash: bool = True, uart: bool = True, send_only: bool = False
) -> list[str]:
    """The modules of a board, as paths in its lib. twin: include the twins of the C core. tls: include modules that
    need MicroPython's TLS. raw_flash: include the log without a file system. uart: include links over a UART.
    send_only: leave out what receives messages."""
    without = HOSTS | (set() if twin else TWINS) | (set() if tls else TLS) | (set() if raw_flash else RAW_FLASH)
    without |= (set() if uart else UART) | (RECEIVING if send_only else set())
    return [name for name in sources() if name not in without and not _only_states(name)]


def package(places: list[tuple[str, str]]) -> str:
    """A package.json for mip: each file's path in lib, and its source."""
    lines = ",\n".join(f"    {json.dumps(pair)}" for pair in places)
    return f'{{\n  "version": "{VERSION}",\n  "urls": [\n{lines}\n  ]\n}}\n'


@functools.cache  # shared by several readers, which do not change it
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def _tree(name: str) -> ast.Module:
    return _parsed((FIRMWARE / name).read_text(encoding="utf-8"))


def _constant(statement: ast.stmt) -> tuple[str, ast.expr] | None:
    """The name and the expression of `NAME = const(expression)`."""
    if (
        isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
        and isinstance(statement.value, ast.Call)
        and isinstance(statement.value.func, ast.Name)
        and statement.value.func.id == "const"
    ):
        return statement.targets[0].id, statement.value.args[0]
    return None


def _is_for_cpython(statement: ast.stmt) -> bool:
    """Is it useless on a board? `NAME = word(PLACE)`, `__slots__`, `__all__`, MICROPYTHON, word(), and const(), which
    mpy-cross has built in."""
    if not isinstance(statement, ast.Assign):
        return isinstance(statement, ast.FunctionDef) and statement.name in ("const", "word")
    target, value = statement.targets[0], statement.value
    return (isinstance(target, ast.Name) and target.id in ("__slots__", "__all__", "MICROPYTHON")) or (
        isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "word"
    )


def _only_states(name: str) -> bool:
    """Does the module contain only constants and their import?"""
    body = _tree(name).body[1:]
    return any(map(_constant, body)) and all(_constant(part) or isinstance(part, ast.ImportFrom) for part in body)


def stated() -> Constants:
    """The public constants of every module, by the module's dotted name."""
    every: Constants = {}
    for name in sorted(sources(), key=lambda name: not _only_states(name)):
        values: dict[str, int | str] = {}
        every[_dotted(name)] = values
        known: dict[str, object] = {"__builtins__": {}}
        for statement in _tree(name).body:
            if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
                values |= every[statement.module or ""]
            elif pair := _constant(statement):
                # may use the module's own constants: const(A | B)
                value = eval(compile(ast.Expression(pair[1]), name, "eval"), known)
                known[pair[0]] = value
                if not pair[0].startswith("_"):
                    values[pair[0]] = value
    return every


def _dotted(name: str) -> str:
    return name.removesuffix(".py").replace("/", ".")


class _Text:
    """A source, changed from its end to its beginning, so that offsets stay valid."""

    def __init__(self, text: str) -> None:
        self._lines = [line.encode() for line in text.splitlines(keepends=True)]
        self._changes: list[tuple[int, int, int, int, bytes]] = []

    def put(self, node: ast.expr | ast.stmt, text: str) -> None:
        """Replace the node by the text, and keep its lines."""
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or 0
        self._changes.append((node.lineno, node.col_offset, end_line, end_column, text.encode()))

    def at(self, node: ast.expr) -> str:
        """The node's text."""
        return self._lines[node.lineno - 1][node.col_offset : node.end_col_offset].decode()

    def result(self) -> str:
        for line, column, end_line, end_column, text in sorted(self._changes, reverse=True):
            head, tail = self._lines[line - 1][:column], self._lines[end_line - 1][end_column:]
            self._lines[line - 1 : end_line] = [head + text + b"\n" * (end_line - line) + tail]
        return b"".join(self._lines).decode()


def _run(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes except those for type checkers, parents first."""
    waiting = list(ast.iter_child_nodes(tree))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            waiting += [node.test, *node.orelse]
        else:
            yield node
            waiting += ast.iter_child_nodes(node)


def _imports(tree: ast.AST) -> Iterator[tuple[ast.ImportFrom, ast.alias, str]]:
    for node in _run(tree):
        if isinstance(node, ast.ImportFrom):
            yield from ((node, alias, f"{node.module}.{alias.name}") for alias in node.names)


def inlined(text: str, constants: Constants, name: str) -> str:
    """The boards' form of a module, or of a program for boards. name: the module's dotted name.

    Raises ValueError if a constant stands in an f-string or is imported by its own name.
    """
    tree, changed = _parsed(text), _Text(text)
    own = constants.get(name, {})
    modules = {alias.asname or alias.name: constants[full] for _, alias, full in _imports(tree) if full in constants}
    dropped = [part for part in tree.body if (_constant(part) or ("",))[0] in own]
    dropped += [part for part in tree.body if _is_for_cpython(part)]
    classes = [part for part in tree.body if isinstance(part, ast.ClassDef)]
    dropped += [
        part for kind in classes for part in kind.body if isinstance(part, ast.Assign) and _is_for_cpython(part)
    ]
    gone = [node for statement in dropped for node in ast.walk(statement)]
    named = {node.id for node in gone if isinstance(node, ast.Name)}  # names whose imports may be unneeded
    left: set[str] = set()  # names still needed
    inner = {id(node) for node in gone}
    for node in _run(tree):
        if id(node) in inner:
            continue
        value: int | str | None = None
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            value = modules.get(node.value.id, {}).get(node.attr)
            if value is not None:
                expected = f"{node.value.id}.{node.attr}"
                inner.add(id(node.value))
                named.add(node.value.id)
        elif isinstance(node, ast.Name) and node.id == "MICROPYTHON":
            value, expected = True, node.id
            named.add(node.id)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            left.add(node.id)
            value, expected = own.get(node.id), node.id
        if value is not None:
            assert isinstance(node, ast.expr)
            if changed.at(node) != expected:
                raise ValueError(f"{name}, line {node.lineno}: {expected} stands in an f-string")
            changed.put(node, repr(value))
    for statement in dropped:
        changed.put(statement, "")
    _drop(tree, changed, constants, named - left | {"const"})
    return changed.result()


def refusing(text: str, name: str) -> str:
    """This module of boards as a board has it that only sends. name: its path."""
    refusal = f"raise NotImplementedError({SENDS_ONLY!r})"
    if name in REFUSING:
        return refusal + "\n"
    tree, changed = ast.parse(text), _Text(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in REFUSED.get(name, ()):
            for part in node.body:
                changed.put(part, refusal if part is node.body[0] else "")
    return changed.result()


def _drop(tree: ast.Module, changed: _Text, constants: Constants, needless: set[str]) -> None:
    """Drop the imports of unneeded modules, and imports of constants only."""
    for node in {id(node): node for node, _, _ in _imports(tree)}.values():
        kept = [alias for alias in node.names if (alias.asname or alias.name) not in needless]
        if node.names[0].name == "*" and node.module in constants and _only_states(_path(node.module)):
            kept = []
        for alias in kept:
            if alias.name in constants.get(node.module or "", {}):
                raise ValueError(f"line {node.lineno}: import the module of {alias.name}, not the constant")
        if len(kept) != len(node.names):
            text = f"from {node.module} import {', '.join(ast.unparse(alias) for alias in kept)}"
            changed.put(node, text if kept else "pass" if node.col_offset else "")


def _path(dotted: str) -> str:
    return dotted.replace(".", "/") + ".py"


@functools.cache  # takes half a second, and the rig calls it at each start of a board
def write(folder: Path = BOARD, others: tuple[str, ...] = (), send_only: bool = False) -> Path:
    """Write the boards' form of the modules under `folder`, with a package.json. Returns the folder.

    send_only: of boards that only send.
    others: patterns of files of the checkout to copy to the same path, programs in their boards' form. Correct files
    stay; other files are replaced atomically, because several processes may write at once.
    """
    root = FIRMWARE.parent
    wanted = {name: FIRMWARE / name for name in sources() if not _only_states(name)}
    for path in folder.rglob("*.py"):
        name = path.relative_to(folder).as_posix()
        if name not in wanted and not name.startswith("tests/"):
            path.unlink(missing_ok=True)
    wanted |= {path.relative_to(root).as_posix(): path for pattern in others for path in sorted(root.glob(pattern))}
    constants = stated()
    for name, path in wanted.items():
        text = path.read_text(encoding="utf-8")
        if name.endswith(".py"):
            text = inlined(text, constants, _dotted(name))
        _put(folder / name, refusing(text, name) if send_only else text)
    _put(folder / "package.json", package([(name, name) for name in of_boards(send_only=send_only)]))
    return folder


def made_from() -> str:
    """A digest of the sources of build/mip: the modules, the C core, and their build scripts."""
    ports, core = FIRMWARE / "ports", FIRMWARE.parent / "c_core"
    read = [Path(__file__), *(FIRMWARE / name for name in sources()), *sorted(core.glob("*.[ch]"))]
    read += [
        ports / "usermod" / "mqqb" / "modmqqb.c",
        *(ports / "natmod" / name for name in ("Makefile", "package.py")),
    ]
    return hashlib.sha256(repr([(path.name, path.read_bytes()) for path in read]).encode()).hexdigest()


def _put(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
            file.write(text)
        Path(file.name).chmod(0o644)
        os.replace(file.name, path)


if __name__ == "__main__":
    write(Path(sys.argv[1]), send_only="send_only" in sys.argv)
