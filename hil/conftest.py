"""What the rig's tests share: the stand-in pair, a quick campaign of it, and the boards of the file of --lg-env.

Without it the rig's own tests run, with a short campaign on every board that needs no hardware, where it is here. With
it each board of the file is asked for: only tests of boards run, in their long form, and a table is made of them.
"""

import asyncio
import io
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hil import boards, machines, mishaps, own_network, queue_manager
from hil.boards import BoardMissing, Quarantined
from hil.campaign import run_campaign
from hil.dice import new_seed
from hil.matrix import Matrix, told
from hil.report import Comparison, Figures
from hil.scenario import ORDACK, Settings

STANDIN = Path(__file__).with_name("standin.py")
BOARD = "place"
"""A test with this argument is one of boards, and runs for each."""
SEED = "seed"
"""What processes of xdist are told the seed by."""
OVER_TLS = {"unix"}
"""Boards whose short campaign is over TLS; `make hil` has one without and one with it."""

RunStandin = Callable[..., Figures]
Play = Callable[..., tuple[Figures, Comparison]]


FILE = pytest.StashKey[dict[str, str] | None]()


class Report:
    """The table of all boards, made of what their tests record, also in the processes of xdist."""

    def __init__(self, config: pytest.Config, boards: Iterable[str]) -> None:
        self._path: Path | None = config.option.report
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        self._matrix = Matrix(config.option.seed)
        self._boards = list(boards)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties if report.when == "call" else ():
            if name == "column":
                self._matrix.add(str(value))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._matrix.columns:
            self._matrix.columns = dict(
                sorted(self._matrix.columns.items(), key=lambda one: self._boards.index(one[0]))
            )
            out = io.StringIO()
            Console(file=out, width=200).print(self._matrix.table())
            terminalreporter.write(f"\n{out.getvalue()}")
            if self._path is not None:
                self._matrix.write(self._path)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rig", "campaigns on the boards of --lg-env")
    for name, count in (("messages", 200), ("cuts", 20), ("kills", 3), ("commands", 10)):
        group.addoption(f"--{name}", type=int, default=count, help="on each board (default %(default)s)")
    group.addoption("--seed", type=int, help="the same seed makes the same plans (default: a new one)")
    group.addoption("--shrink", action="store_true", help="shrink what the planted faults break, too")
    group.addoption("--report", type=Path, help="write the table of guarantees to this file, as .md and .json")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FILE] = None
    own_network.enter(config)
    path = config.getoption("lg_env", None) or os.environ.get("LG_ENV")
    if path is None or not config.pluginmanager.hasplugin("labgrid"):
        from hypothesis import HealthCheck, settings  # slow to import

        # As in tests/conftest.py: what a busy machine makes slow has not failed.
        settings.register_profile(
            "ordack", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
        )
        settings.load_profile("ordack")
        return
    from hil import lab

    try:  # labgrid's plugin reads it after this one, and would show a traceback
        boards = config.stash[FILE] = lab.names(Path(path))
    except BoardMissing as reason:
        raise pytest.UsageError(str(reason)) from None
    os.environ["LG_ENV"] = str(Path(path).absolute())  # for open_board, in processes of xdist, too
    option = config.option
    try:
        Settings(option.messages, option.cuts, option.kills, option.seed or 0, commands=option.commands)
        # What cannot be written is told now, and not after the hours of its campaigns
        given = getattr(config, "workerinput", None)
        option.seed = given[SEED] if given else new_seed() if option.seed is None else option.seed
        config.pluginmanager.register(Report(config, boards))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    except OSError as error:
        raise pytest.UsageError(f"--report: {error.filename}: {error.strerror}") from None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """A process of xdist has the seed that the table shows."""
    node.workerinput[SEED] = node.config.option.seed


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if BOARD in metafunc.fixturenames:
        boards = metafunc.config.stash[FILE]
        mark = pytest.mark.timeout(0 if boards else 300)  # a campaign has deadlines of its own
        metafunc.parametrize(BOARD, [pytest.param(name, marks=mark) for name in boards or machines.EMULATED])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.stash[FILE] is not None:
        others = [item for item in items if BOARD not in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


@pytest.fixture(autouse=True)
def forked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue managers of campaigns in this process are forked, which costs a tenth of an interpreter that begins."""
    if request.config.stash[FILE] is None and Path(ORDACK[0]).exists():
        from tests.support import forked_manager  # a lab has no tests but these

        monkeypatch.setattr(boards, "Popen", forked_manager.popen)
        for module in (mishaps, queue_manager):
            monkeypatch.setattr(module, "create_subprocess_exec", forked_manager.create_subprocess_exec)


@pytest.fixture
def application(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """APPLICATION of the test's module, as a file."""
    path = tmp_path / "application.py"
    path.write_text(request.module.APPLICATION)
    return path


@pytest.fixture
def run_standin(tmp_path: Path) -> RunStandin:
    """Run a small campaign of the stand-in pair: `run(fault="lose:7", messages=30)`; its figures."""

    def run(fault: str = "none:0", **settings: Any) -> Figures:
        wanted: dict[str, Any] = {
            "messages": 30,
            "cuts": 4,
            "kills": 1,
            "seed": 5,
            "board": "cpython",
            "max_size": 4096,
            "header_bytes": 8,
            "patience_s": 60.0,
            "ordack": (sys.executable, str(STANDIN), "--fault", fault),
            "application": STANDIN,
            "artefacts": tmp_path / "campaign",
            **settings,
        }
        return asyncio.run(run_campaign(Settings(**wanted), Console(file=io.StringIO())))

    return run


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Run a campaign in which all has to go well, with a new seed: `play("unix", messages=40, cuts=0)`; its figures,
    and what became of the readings. Skips the test if something that it needs is not here.
    """

    def run(board: str, **settings: Any) -> tuple[Figures, Comparison]:
        seed = new_seed()
        print(f"seed {seed}")
        times = {"patience_s": 180.0, "deadline_s": 280.0}
        wanted = Settings(board=board, **{"seed": seed, "artefacts": tmp_path, **times, **settings})
        try:
            figures = asyncio.run(run_campaign(wanted, Console()))
        except BoardMissing as reason:
            pytest.skip(str(reason))
        assert figures.shortcomings() == [], f"seed {seed}"
        assert figures.comparison is not None
        return figures, figures.comparison

    return run


@pytest.fixture
def campaign_on(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str, tuple[int, int, int, int]], Figures]:
    """Run a campaign on a board: `campaign_on("unix", (60, 12, 2, 3))`; messages, cuts, kills and commands are those of
    the short form. Skips the test if the board is in quarantine, or is not here and was not asked for.
    """

    def run(board: str, short: tuple[int, int, int, int]) -> Figures:
        option, asked = request.config.option, request.config.stash[FILE] is not None
        seed = new_seed() if option.seed is None else option.seed
        print(f"seed {seed}")
        tls, deadline_s = board in OVER_TLS, 250.0  # for a Pi on a busy machine most of it goes into its start
        wanted = Settings(
            *short[:3], seed, board, None, deadline_s, deadline_s, artefacts=tmp_path, tls=tls, commands=short[3]
        )
        if asked:
            wanted = Settings(option.messages, option.cuts, option.kills, seed, board, commands=option.commands)
        if board in machines.WITHOUT_INBOX:
            wanted = replace(wanted, commands=0)
        figures: Figures | str = "broken off: pytest says by what"
        try:
            figures = asyncio.run(run_campaign(wanted, Console()))
        except BoardMissing as reason:
            figures = str(reason)
            if not asked or isinstance(reason, Quarantined):
                pytest.skip(figures)
            pytest.fail(figures)
        except OSError as error:
            faults = wanted.cuts, wanted.kills, wanted.kills
            figures = Figures(seed, board, board, wanted.messages, *faults, failure=str(error))
        finally:
            # Not by record_property: with --junitxml that warns, and a warning is an error here.
            request.node.user_properties.append(("column", told(board, figures)))
        return figures

    return run


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], Path]:
    """Makes the file of boards that is used. No test meets a board that is in use here, or that another one has loaded
    a firmware into.
    """
    import yaml
    from ordack.boards import claim

    from hil import drivers

    monkeypatch.setattr(drivers, "_LOADED", {})
    monkeypatch.setattr(claim, "FOLDER", tmp_path)

    def make(described: dict[str, Any]) -> Path:
        path = tmp_path / "rig.yaml"
        path.write_text(yaml.safe_dump({"imports": ["hil.drivers"], "targets": described}, sort_keys=False))
        monkeypatch.setenv("LG_ENV", str(path))
        return path

    return make
