"""Copies ordack and an application to a board (`ordack board deploy`).

Files come from a folder with a package.json, as mip takes it. Each changed file is written under another name and
checked; all are renamed at the end, and `ordack.json` beside them records the version. A deploy interrupted before the
renaming changes nothing. After an interrupted renaming, `ordack board doctor` reports files of two versions, and the
next deploy repairs them. A deploy removes files of earlier deploys that it does not copy, and no other files.
"""

from __future__ import annotations

import binascii
import json
import runpy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mqqb
from mqqb import core

from ordack.boards.repl import CORE, FREE, Board, BoardError, Info, Progress, error_in, part_of

MPY_VERSION = 6  # of the files that mpy-cross makes
MANIFEST = "ordack.json"
CHECKOUT = Path(mqqb.__file__).resolve().parents[2]
_FOLDERS = "import os\nfor p in {!r}:\n try:\n  os.mkdir(p)\n except OSError:\n  pass"
_REMOVE = "import os\nfor p in {!r}:\n try:\n  os.remove(p)\n except OSError:\n  pass"
_NODE = "try:\n import ordack.node\n print(repr(''))\nexcept Exception as e:\n print(repr(repr(e)))"
_NAMES = "import os\ntry:\n print([f[0] for f in os.ilistdir({!r})])\nexcept OSError:\n print(['node'])"
HIDES = "hides the package ordack from programs", "give that folder another name"
# The compile error of a program, as MicroPython shows it; empty without an error or without a compiler.
_COMPILE = """
import io, sys
s = io.StringIO()
try:
    with open({!r}) as f:
        compile(f.read(), 'main.py', 'exec')
except SyntaxError as e:
    sys.print_exception(e, s)
except (MemoryError, NameError):
    pass
print(repr(s.getvalue()))
"""
_MODULE = "try:\n import {}\n print(True)\nexcept Exception:\n print(False)"
# Renames each FILE.new to FILE, then removes other files, and folders if empty. FAT does not rename over a file.
RENAME = """
import os
for p in {!r}:
    try:
        os.rename(p + '.new', p)
    except OSError:
        os.remove(p)
        os.rename(p + '.new', p)
for p in {!r}:
    for f in (os.remove, os.rmdir):
        try:
            f(p)
        except OSError:
            pass
"""


class Deployed(NamedTuple):
    """The result of a deploy. core: the core in use now; problem: why a node cannot start, or empty."""

    copied: list[str]
    unchanged: int
    removed: list[str]
    bytes: int
    core: str
    problem: str
    frozen: bool


def default_package(info: Info) -> Path:
    """The compiled package if it exists and the board loads it, else the sources. Raises BoardError."""
    compiled, modules = CHECKOUT / "build" / "mip" / "package.json", CHECKOUT / "firmware" / "ports" / "modules.py"
    if info.mpy & 0xFF == MPY_VERSION and compiled.exists():
        seal = compiled.with_name("made-from")
        sources = runpy.run_path(str(modules))["made_from"]() if modules.exists() else ""
        if sources and not (seal.exists() and seal.read_text() == sources):
            raise BoardError(
                f"nothing was copied: the modules in {compiled.parent} are older than the sources in {CHECKOUT}: "
                "run `make firmware`, or name a package with --package"
            )
        return compiled
    if modules.exists():
        folder: Path = runpy.run_path(str(modules))["write"]()
        return folder / "package.json"
    raise BoardError(
        "there is no package: run `make firmware`, which makes build/mip/package.json, or name one with --package"
    )


def chosen_files(package: Path, info: Info, *, own_core: bool) -> dict[str, bytes]:
    """The files of a package for this board: path below lib -> content. own_core: the firmware has the C core. Raises
    BoardError."""
    try:
        listed = [(str(place), str(source)) for place, source in json.loads(package.read_text())["urls"]]
        files = {place: (package.parent / source).read_bytes() for place, source in listed}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BoardError(f"{package} is not a package that can be copied: {error}") from None
    native = {f"mqqb/core_{arch}.mpy" for arch in core.NATIVE if arch}
    wanted = f"mqqb/core_{info.arch}.mpy" if info.arch and not own_core else ""
    files = {place: data for place, data in files.items() if place not in native or place == wanted}
    for place, data in files.items():
        if place.endswith(".mpy") and data[1] != info.mpy & 0xFF:
            raise BoardError(
                f"{place} is of .mpy version {data[1]}, the board loads {info.mpy & 0xFF or 'none'}: "
                f"name the sources with --package {CHECKOUT / 'package.json'}"
            )
    return files


def _other_kind(path: str) -> str:
    """The module's path with the other suffix, .py or .mpy. Such a file would take precedence or waste flash."""
    return path.removesuffix(".mpy") + ".py" if path.endswith(".mpy") else path.removesuffix(".py") + ".mpy"


def _of_user(info: Info, main: Path | None, config: Path | None) -> dict[str, bytes]:
    """The user's own files by their paths on the board. Raises BoardError if one cannot be read."""
    try:
        own = {} if main is None else {info.root("main.py"): main.read_bytes()}
        return own if config is None else own | {info.root(config.name): config.read_bytes()}
    except OSError as error:
        raise BoardError(str(error)) from None


def deploy(
    board: Board,
    package: Path | None = None,
    main: Path | None = None,
    config: Path | None = None,
    progress: Progress = lambda *_: None,
) -> Deployed:
    """Copy the missing and changed files. main becomes main.py, config keeps its name. Raises BoardError."""
    info = board.info
    _, _, frozen = board.run(CORE)
    if folder := hiding_folder(board, frozen):
        raise BoardError(f"nothing was copied: {folder} {HIDES[0]}: {HIDES[1]}")
    files: dict[str, bytes] = {}
    if not frozen:
        chosen = chosen_files(package or default_package(info), info, own_core=board.run(_MODULE.format("_mqqb")))
        files = {f"{info.lib}/{place}": data for place, data in chosen.items()}
    modules = list(files)
    files |= _of_user(info, main, config)
    manifest = f"{info.lib}/{MANIFEST}"
    before = manifest_of(board, manifest)
    sums = {path: (len(data), binascii.crc32(data)) for path, data in files.items()}
    found = dict(zip(files, board.sums(list(files)), strict=True))
    changed = [path for path in files if found[path] != sums[path]]
    stale = ({_other_kind(path) for path in modules} | set(before.get("files", ()))) - set(files)
    removed = sorted(path for path, size in zip(sorted(stale), board.sums(sorted(stale)), strict=True) if size)
    if before and not modules:  # the firmware has frozen modules now
        removed.append(manifest)
    ours = {path: sums[path] for path in modules}
    complete = {"version": version(), "complete": True, "files": ours}
    if changed or removed or (modules and before != json.loads(json.dumps(complete))):
        board.run(_REMOVE.format([f"{path}.new" for path in changed]), 30)  # remains of an interrupted deploy take room
        _make_room(board, info, [len(files[path]) for path in changed])
        board.run(_FOLDERS.format(_parents([*changed, manifest], info.folder)))
        copy_aside(board, {path: files[path] for path in changed}, sums, progress)
        if info.root("main.py") in changed and (
            mistake := error_in(board.run(_COMPILE.format(f"{info.root('main.py')}.new"), 30))
        ):
            board.run(_REMOVE.format([f"{path}.new" for path in changed]), 30)
            raise BoardError(
                f"nothing was replaced: {main} does not compile: {mistake}; correct the file, then deploy again"
            )
        # From here to the last line an interruption leaves mixed versions, and the manifest says so.
        if modules:
            listed = {**ours, **dict.fromkeys(removed, (0, 0))}  # the next deploy removes leftovers
            _put(board, manifest, {**complete, "complete": False, "files": listed})
        board.run(RENAME.format(changed, removed + _parents(removed, info.lib)[::-1]), 30)
        if modules:
            _put(board, manifest, complete)
        board.reset()  # unloads the old modules
    chosen_core, problem, _ = board.run(CORE)
    problem = problem or board.run(_NODE)
    return Deployed(
        changed,
        len(files) - len(changed),
        removed,
        sum(len(files[path]) for path in changed),
        chosen_core or "",
        problem,
        frozen,
    )


def hiding_folder(board: Board, frozen: bool) -> str:
    """A folder beside main.py that MicroPython takes for the package ordack; "" if there is none."""
    root = board.info.folder.rstrip("/")
    folder = f"{root}/ordack"
    if not frozen and root == board.info.lib:
        return ""
    return "" if "node" in board.run(_NAMES.format(folder)) else folder


def copy_aside(
    board: Board, files: Mapping[str, bytes], sums: Mapping[str, tuple[int, int]], progress: Progress
) -> None:
    """Write each file under another name, and check it. sums: size and CRC-32. Raises BoardError."""
    total, done = sum(map(len, files.values())), 0
    for path, data in files.items():
        board.write(f"{path}.new", data, part_of(progress, path, done, total))
        done += len(data)
    arrived = board.sums([f"{path}.new" for path in files])
    for path, got in zip(files, arrived, strict=True):
        if got != sums[path]:
            raise BoardError(f"{path} arrived damaged: check the cable, then try again")


def version() -> str:
    from importlib import metadata

    return metadata.version("ordack")


def manifest_of(board: Board, path: str) -> dict[str, Any]:
    try:
        read = json.loads(board.read(path))
    except (FileNotFoundError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}


def _put(board: Board, path: str, value: dict[str, Any]) -> None:
    board.write(f"{path}.new", json.dumps(value).encode())
    board.run(RENAME.format([path], []))


def _parents(paths: Sequence[str], folder: str) -> list[str]:
    """The folders of these files, outermost first, without `folder` and its parents."""
    found = {"/".join(path.split("/")[:depth]) for path in paths for depth in range(2, path.count("/") + 1)}
    return sorted(one for one in found if not f"{folder}/".startswith(f"{one}/"))


def _make_room(board: Board, info: Info, sizes: Sequence[int]) -> None:
    block, free, _ = board.run(FREE.format(info.folder))
    needed = sum(-(-size // block) * block for size in sizes) + 4 * block
    if needed > free:
        raise BoardError(f"the copy needs {needed} bytes of flash, {free} are free: remove files from the board")
