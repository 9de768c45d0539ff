"""Do the tests notice a broken engine? Breaks session.py, streams.py, confirm.py and others in one place at a time.

The changes are those of mutmut, but for texts; each is tried in a copy of the engine and its fast tests, in a process
of its own, two at a time. mutants.txt lists the survivors that are known, each with the reason why no test can tell it,
or need not. Exit status 1 if there is another one, or if one of the list is no longer made.
"""

from __future__ import annotations

import argparse
import ast
import multiprocessing
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import hypothesis
import libcst
import pytest
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators, operator_string
from rich.progress import Progress

ROOT = Path(__file__).resolve().parent.parent
ENGINE = Path("firmware/mqqb")
TESTS = {
    "connection.py": ("engine/test_engine.py", "engine/test_engine_board.py", "engine/test_streams.py"),
    "hosts.py": ("engine/test_streams.py", "engine/test_engine.py"),
    "session.py": ("engine/test_engine.py", "engine/test_engine_board.py", "engine/test_streams.py"),
    "streams.py": ("engine/test_streams.py", "engine/test_engine.py"),
    "lives.py": ("engine/test_source.py",),
    "destination.py": ("engine/test_destination.py", "engine/test_streams.py", "engine/test_engine.py"),
    "confirm.py": ("engine/test_confirm.py", "engine/test_source.py"),
}
# What reads bytes is not tried here: its tests, test_packets.py and test_layouts.py, take too long.
WITHOUT = {"connection.py": ("read_internal", "is_order_queue", "order_ack_body"), "streams.py": ("OrderAckBody",)}
COPIED = ("pyproject.toml", "tests/mp", "tests/support/confirm_rules.py", "firmware/mqqb")
JOBS = 2
SECONDS = 60  # of processor time for the tests of one mutant; without one they take a third
PATIENCE = 20 * SECONDS  # that the clock may take for it, however busy the machine is
MEMORY = 4 << 30


class Mutant(NamedTuple):
    """One change. key: file, place and change, without line numbers, as mutants.txt has it."""

    file: str
    line: int
    key: str
    source: str


class _Finder(libcst.CSTVisitor):
    """Collects (the node with its range, behind all that it is in with theirs; changed node)."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.around: list[tuple[CodeRange | None, libcst.CSTNode]] = []
        self.found: list[tuple[list[tuple[CodeRange | None, libcst.CSTNode]], libcst.CSTNode]] = []

    def on_visit(self, node: libcst.CSTNode) -> bool:
        position = self.get_metadata(PositionProvider, node, None)
        self.around.append((position if isinstance(position, CodeRange) else None, node))
        if isinstance(node, (libcst.Annotation, libcst.Decorator, libcst.Assert, libcst.Raise)):
            return False
        if isinstance(node, libcst.Assign) and _is_name(node.value):
            return False
        target = node.targets[0].target if isinstance(node, libcst.Assign) else None
        if isinstance(target, libcst.Name) and target.value == "TYPE_CHECKING":
            return False  # read by mypy alone
        for kind, operator in mutation_operators:
            if self.around[-1][0] and isinstance(node, kind) and operator is not operator_string:
                self.found += [([*self.around], changed) for changed in operator(node) if not _is_alike(node, changed)]
        return True

    def on_leave(self, original_node: libcst.CSTNode) -> None:
        self.around.pop()


def _is_name(value: libcst.BaseExpression) -> bool:
    """Of a state or an event, such as const("OPEN"): all that counts is that it is not another's."""
    if isinstance(value, libcst.Call) and len(value.args) == 1:
        value = value.args[0].value
    return isinstance(value, libcst.SimpleString)


def _is_alike(node: libcst.CSTNode, changed: libcst.CSTNode) -> bool:
    """None in place of False: as false as that."""
    return (
        isinstance(node, libcst.Assign)
        and isinstance(changed, libcst.Assign)
        and isinstance(node.value, libcst.Name)
        and isinstance(changed.value, libcst.Name)
        and (node.value.value, changed.value.value) == ("False", "None")
    )


def _places(source: str) -> Iterator[tuple[int, int, str]]:
    """First line, last line and qualified name of each function, the inner ones last."""

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[int, int, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                name = prefix + child.name
                yield child.lineno, child.end_lineno or child.lineno, name
                yield from walk(child, name + ".")

    yield from walk(ast.parse(source), "")


def _is_python(lines: list[str], more: int, around: list[tuple[int, int, str]]) -> bool:
    """Are these, of which `more` are new, in the innermost of these places? To parse all of a file takes long."""
    top, bottom, _ = around[-1] if around else (1, len(lines) - more, "")
    part = lines[top - 1 : bottom + more]
    try:
        ast.parse("\n".join(["if 1:", *part] if part[0].startswith(" ") else part))
    except SyntaxError:
        return False
    return True


def _changed(
    module: libcst.Module,
    source: str,
    lines: list[str],
    around: list[tuple[CodeRange | None, libcst.CSTNode]],
    changed: libcst.CSTNode,
) -> str:
    """The source with this in place of the last of these, by way of the innermost one that stands where it says: a few
    kinds of nodes do not, and to make the whole module anew takes long."""
    node = around[-1][1]
    for position, outer in reversed(around):
        if position is None or position.end.line > len(lines):
            continue
        first, end = position.start, position.end
        before = "\n".join(lines[: first.line - 1]) + "\n" + lines[first.line - 1][: first.column]
        behind = lines[end.line - 1][end.column :] + "\n" + "\n".join(lines[end.line :]) + "\n"
        if before + module.code_for_node(outer).strip() + behind == source:
            other = outer.deep_replace(node, changed)
            assert isinstance(other, libcst.CSTNode)
            return before + module.code_for_node(other).strip() + behind
    return str(module.deep_replace(node, changed).code)  # type: ignore[attr-defined]


def mutants(file: str) -> list[Mutant]:
    """All changes of one file that are still Python."""
    source = (ROOT / ENGINE / file).read_text(encoding="utf-8")
    wrapper = MetadataWrapper(libcst.parse_module(source), unsafe_skip_copy=True)
    finder = _Finder()
    wrapper.visit(finder)
    places = list(_places(source))
    lines = source.splitlines()
    made: dict[str, Mutant] = {}
    for outer, changed in finder.found:
        line = outer[-1][0].start.line if outer[-1][0] else 0
        after = _changed(wrapper.module, source, lines, outer, changed)
        around = [(top, bottom, name) for top, bottom, name in places if top <= line <= bottom]
        new_lines = after.splitlines()
        if not _is_python(new_lines, len(new_lines) - len(lines), around):
            continue
        same = next(place for place, (old, new) in enumerate(zip(lines, new_lines, strict=False)) if old != new)
        behind_same = next(
            place
            for place, (old, new) in enumerate(zip(reversed(lines), reversed(new_lines), strict=False))
            if old != new
        )
        old, new = (" ".join(" ".join(part[same : len(part) - behind_same]).split()) for part in (lines, new_lines))
        place = [name for _, _, name in around]
        if place and place[0] in WITHOUT.get(file, ()):
            continue
        key = f"{file} {place[-1] if place else '-'}: {old} ==> {new}"
        made.setdefault(after, Mutant(file, same + 1, key, after))
    return list(made.values())


def accepted() -> dict[str, str]:
    """Key -> reason, from mutants.txt: a reason is the comment above one or more keys."""
    reasons: dict[str, str] = {}
    reason: list[str] = []
    is_key = True
    for text in (ROOT / "tests" / "mutants.txt").read_text(encoding="utf-8").splitlines():
        if text.startswith("#"):
            reason = [*([] if is_key else reason), text[1:].strip()]
            is_key = False
        elif text:
            reasons[text] = " ".join(reason)
            is_key = True
    return reasons


def scratch(folder: Path) -> None:
    """Make a copy in which tests can run."""
    for name in (*COPIED, *{f"tests/{test}" for tests in TESTS.values() for test in tests}):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(ROOT / name, target)


def _is_long(item: pytest.Item) -> bool:
    """A model, or another long walk."""
    return item.get_closest_marker("untraced") is not None


class _ModelsLast:
    """A pytest plugin: what takes long comes after what finds most, or not at all."""

    def __init__(self, models: bool) -> None:
        self.models = models

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=_is_long)
        items[:] = [item for item in items if self.models or not _is_long(item)]


def run_tests(folder: Path, file: str, models: bool) -> None:
    """In a process of its own: exit status 0 if all tests pass. Compiled files are not left: they outlive a mutant."""
    os.chdir(folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "mqqb"]:
        del sys.modules[name]  # else the copy's package would not be looked for
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]  # a failure need not be small
    hypothesis.settings.register_profile("mutants", derandomize=True, database=None, phases=phases, deadline=None)
    hypothesis.settings.load_profile("mutants")
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:labgrid", "--assert=plain", "--rootdir", str(folder)]
    tests = [str(folder / "tests" / test) for test in TESTS[file]]
    os._exit(int(pytest.main([*options, *tests], plugins=[_ModelsLast(models)])))


def start(folder: Path, mutant: Mutant, sources: dict[str, str], models: bool) -> BaseProcess:
    """Run the tests in this scratch copy with the mutant in it, the other files as in `sources`."""
    for file, source in sources.items():
        (folder / ENGINE / file).write_text(mutant.source if file == mutant.file else source, encoding="utf-8")
    process = multiprocessing.get_context("fork").Process(target=run_tests, args=(folder, mutant.file, models))
    process.start()
    return process


def survivors(
    folders: list[Path],
    sources: dict[str, str],
    chosen: list[Mutant],
    tell: Callable[[Mutant, bool], None],
    models: bool = True,
) -> list[Mutant]:
    """Those with which the tests pass, one scratch copy for each that runs at a time. tell: called after each. models:
    with them among the tests, which take longest."""
    waiting = list(reversed(chosen))
    running: dict[Path, tuple[BaseProcess, Mutant, float]] = {}
    result = []
    while waiting or running:
        for folder in folders:
            if folder not in running and waiting:
                mutant = waiting.pop()
                running[folder] = start(folder, mutant, sources, models), mutant, time.monotonic() + PATIENCE
        wait([process.sentinel for process, _, _ in running.values()], timeout=1)
        for folder, (process, mutant, until) in list(running.items()):
            if process.is_alive() and time.monotonic() < until:
                continue
            process.kill()
            process.join()
            del running[folder]
            if process.exitcode == 0:
                result.append(mutant)
            tell(mutant, process.exitcode == 0)
    return result


def main() -> int:
    """Tries the mutants; 0 if every survivor is in the list."""
    parser = argparse.ArgumentParser(description="break the engine in many ways: its tests must fail each time")
    parser.add_argument("files", nargs="*", help=f"which of {', '.join(TESTS)} (default: all)")
    parser.add_argument("--sample", type=int, help="try that many, chosen at random (default: all)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the choice")
    options = parser.parse_args()
    files = [file for file in TESTS if file in options.files or not options.files]
    made = [mutant for file in files for mutant in mutants(file)]
    chosen = made
    if options.sample is not None and options.sample < len(made):
        print(f"mutants: seed {options.seed}")
        chosen = random.Random(options.seed).sample(made, options.sample)
    known = accepted()
    gone = [key for key in known if key.split()[0] in files and key not in {mutant.key for mutant in made}]
    with tempfile.TemporaryDirectory(prefix="mutants-") as place, Progress(auto_refresh=False) as progress:
        folders = [Path(place) / str(number) for number in range(JOBS)]
        for folder in folders:
            scratch(folder)
        sources = {file: (folders[0] / ENGINE / file).read_text(encoding="utf-8") for file in TESTS}
        # Without any mutant all pass; in `make test`, which has a sample, other parts show the models. What an earlier
        # file runs already need not run again.
        tried = [file for file in files if any(mutant.file == file for mutant in chosen)]
        most = [
            file for place, file in enumerate(tried)
            if not any(set(TESTS[file]) <= set(TESTS[other]) for other in tried[:place])
        ]  # fmt: skip
        whole = [Mutant(file, 0, file, sources[file]) for file in most]
        well = survivors(folders, sources, whole, lambda _mutant, _survived: None, models=options.sample is None)
        broken = set(most) - {mutant.file for mutant in well}
        if broken:
            print(f"mutants: without any, the tests of {', '.join(sorted(broken))} fail", file=sys.stderr)
            return 1
        dead = [Mutant(file, 0, file, "raise SystemError\n") for file in tried]
        if survivors(folders, sources, dead, lambda _mutant, _survived: None):
            print("mutants: the tests do not run the copy of the engine", file=sys.stderr)
            return 1
        task = progress.add_task("mutants", total=len(chosen))

        def tell(mutant: Mutant, survived: bool) -> None:
            if survived and mutant.key not in known:
                text = f"{ENGINE / mutant.file}:{mutant.line}: SURVIVED\n{mutant.key}"
                progress.console.print(text, highlight=False, markup=False, soft_wrap=True)
            progress.update(task, advance=1, refresh=True)
            done = int(progress.tasks[task].completed)
            if not progress.console.is_terminal and done % 50 == 0:
                print(f"{done} of {len(chosen)}", flush=True)

        found = survivors(folders, sources, chosen, tell)
    for key in gone:
        print(f"mutants.txt: this change is no longer made: {key}")
    excused = sum(mutant.key in known for mutant in found)
    failed = len(found) - excused + len(gone)
    print(f"mutants: {len(chosen) - len(found)} passed, {failed} failed, {excused} known to survive")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
