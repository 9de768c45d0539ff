"""Imports run one way: hil -> cli -> server, pipeline, boards -> audit -> api -> broker -> store -> config ->
mqqb -> core.

Between cli and pipeline stands reconcile, which takes pipeline and audit. Of those behind cli pipeline alone takes
audit, whose results it shows. On boards: ordack.node -> its log -> mqqb. ordack.node and mqqb import nothing else of
ordack, and that nothing of ordack.node but the log, of which it reads copies. Imports for types alone count, and those
inside functions; but within the rooms of a board, whose parts name each other as types, only the order of rooms counts
for them.
"""

import ast
import functools
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

import pytest

from tests.conformance import ROOT

PACKAGES = {
    "hil": ROOT / "hil",
    "ordack": ROOT / "host" / "ordack",
    "mqqb": ROOT / "firmware" / "mqqb",
    "ordack.node": ROOT / "firmware" / "ordack" / "node",
}
# Room -> the beginnings of its modules' names, of which the longest counts; and the rooms that it may import from.
ENGINE = {"engine", "core", "constants"}
STORE = {"store", "formatters", "config", *ENGINE}
API = {"api", "broker", *STORE}
ROOMS: dict[str, tuple[set[str], set[str]]] = {
    "rig": ({"hil"}, {"program on a board", "cli", "server", "boards", "capture", "pipeline", "audit", *API}),
    "program on a board": ({"hil.sensor"}, {"board", *ENGINE}),
    "cli": ({"ordack.cli", "ordack.__main__"}, {"server", "reconcile", "pipeline", "audit", "boards", "capture", *API}),
    "reconcile": ({"ordack.reconcile"}, {"pipeline", "audit", *API}),
    "pipeline": ({"ordack.pipeline"}, {"audit", "capture", *API}),
    "audit": ({"ordack.audit"}, {"capture", *API}),
    "boards": ({"ordack.boards"}, {"log of a board", *API}),
    "server": ({"ordack.server"}, API),
    "api": ({"ordack", "ordack.api"}, {"broker", *STORE}),
    "broker": ({"ordack.broker"}, STORE),
    "store": ({"ordack.store"}, {"config", *ENGINE}),
    "capture": ({"ordack.capture"}, {"formatters", "config", *ENGINE}),
    "formatters": ({"ordack.formatters"}, {"config", *ENGINE}),
    "config": ({"ordack.config"}, ENGINE),
    "board": ({"ordack.node"}, {"log of a board", *ENGINE}),
    "log of a board": (
        {f"ordack.node.storage.{name}" for name in ("files", "log", "sources", "flash_only", "records", "replay")},
        ENGINE,
    ),
    "engine": ({"mqqb"}, {"core", "constants"}),
    "core": ({"mqqb.core", "mqqb.core_cffi", "mqqb.core_py", "mqqb.problems"}, {"constants"}),
    "constants": ({"mqqb.constants", "mqqb.__init__"}, set()),
}
PREFIXES = {prefix: room for room, (prefixes, _) in ROOMS.items() for prefix in prefixes}
WAITS = "who waits asks at run time whether the node that made it was started"
EXCEPTIONS = {("ordack.node.inbox", "ordack.node.node"): WAITS, ("ordack.node.queue", "ordack.node.node"): WAITS}

Graph = Mapping[str, Set[str]]


@functools.cache
def modules() -> dict[str, Path]:
    """Every product module by its full name; that of a package ends in __init__."""
    return {
        ".".join([package, *path.relative_to(folder).with_suffix("").parts]): path
        for package, folder in PACKAGES.items()
        for path in sorted(folder.rglob("*.py"))
        if not path.name.startswith("test_") and path.name != "conftest.py"
    }


def imported(name: str, source: str, known: Mapping[str, Path]) -> Iterator[str]:
    """The product modules that a module imports, wherever in its text. Raises ValueError for a relative import."""
    for statement in ast.walk(ast.parse(source)):
        if isinstance(statement, ast.Import):
            names = [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom):
            if statement.level:
                raise ValueError(f"{name} imports relatively: write the whole name")
            names = [f"{statement.module}.{alias.name}" for alias in statement.names]
        else:
            continue
        for one in names:
            parts = one.split(".")
            while parts and ".".join(parts) not in known and ".".join([*parts, "__init__"]) not in known:
                parts.pop()  # an attribute of a module
            if parts:
                found = ".".join(parts)
                yield found if found in known else f"{found}.__init__"


def room_of(name: str) -> str:
    while name not in PREFIXES:
        name = name.rpartition(".")[0]
    return PREFIXES[name]


@functools.cache
def arrows() -> dict[str, frozenset[str]]:
    known = modules()
    return {
        name: frozenset(imported(name, path.read_text(encoding="utf-8"), known)) - {name}
        for name, path in known.items()
    }


def backwards(graph: Graph) -> list[tuple[str, str]]:
    return sorted(
        (name, other)
        for name, others in graph.items()
        for other in others
        if room_of(other) not in {room_of(name), *ROOMS[room_of(name)][1]}
    )


def at_run_time(name: str, source: str) -> frozenset[str]:
    """What a module of a board imports on a board: not what stands under TYPE_CHECKING."""
    tree = ast.parse(source)
    tree.body = [
        part
        for part in tree.body
        if not (isinstance(part, ast.If) and isinstance(part.test, ast.Name) and part.test.id == "TYPE_CHECKING")
    ]
    return frozenset(imported(name, ast.unparse(tree), modules())) - {name}


def circle(graph: Graph) -> list[str]:
    """The modules of a circle, in order; empty if there is none."""
    done: set[str] = set()

    def walk(name: str, way: list[str]) -> list[str]:
        if name in way:
            return [*way[way.index(name) :], name]
        if name not in done:
            for other in sorted(graph.get(name, ())):
                if found := walk(other, [*way, name]):
                    return found
            done.add(name)
        return []

    return next(filter(None, (walk(name, []) for name in sorted(graph))), [])


def test_no_arrow_runs_back() -> None:
    found = backwards(arrows())
    assert [arrow for arrow in found if arrow not in EXCEPTIONS] == []


def test_there_is_no_circle() -> None:
    graph = dict(arrows())
    for name, path in modules().items():
        if room_of(name) in {"board", "log of a board"}:
            graph[name] = at_run_time(name, path.read_text(encoding="utf-8"))
    for name, other in EXCEPTIONS:
        assert other in graph[name], "repaired: no exception any more"
        graph[name] -= {other}
    assert circle(graph) == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("ordack.store", "from ordack.broker import manager"),
        ("ordack.broker.manager", "def later():\n    from ordack.server.tcp import serve"),
        ("ordack.server.tcp", "if TYPE_CHECKING:\n    from ordack.cli import main"),
        ("ordack.audit.replay", "import ordack.pipeline.segments"),
        ("ordack.client", "from ordack.node import Node"),
        ("ordack.broker.manager", "from ordack.node.storage import log"),
        ("ordack.boards.outbox", "from ordack.node.storage.outbox import Outbox"),
        ("ordack.node.storage.log", "if TYPE_CHECKING:\n    from ordack.node.storage.outbox import Outbox"),
        ("ordack.node.storage.replay", "def later():\n    from ordack.node.storage import outbox"),
        ("mqqb.session", "from ordack.config.config import Config"),
        ("mqqb.session", "from ordack.node.node import Node"),
        ("ordack.node.node", "from ordack.config.names import queue_name"),
        ("ordack.cli", "from hil import signals"),
        ("ordack.cli.rig", "def rig():\n    from hil.campaign import main"),
        ("ordack.server.tcp", "from hil.faults import plan_cuts"),
    ],
)
def test_backward_import_is_detected(name: str, source: str) -> None:
    assert len(backwards({name: set(imported(name, source, modules()))})) == 1


def test_a_circle_is_found() -> None:
    graph = dict(arrows())
    graph["mqqb.core"] = graph["mqqb.core"] | {"mqqb.session"}
    assert circle(graph)
