"""Fixtures of the rig's tests: the stand-in pair, a quick campaign with it, and the boards of the file of --lg-env.

Without --lg-env the rig's own tests run, with a short campaign on every available board that needs no hardware. With it
only tests of boards run, in their long form, on each board of the file.
"""

import asyncio
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hil import boards, part, queue_manager, targets
from hil.boards import BoardMissing
from hil.campaign import run_campaign
from hil.dice import new_seed
from hil.report import Comparison, Figures
from hil.scenario import ORDACK, Settings
from tests.support import own_network

STANDIN = Path(__file__).with_name("test_standin.py")
BOARD = "place"
"""A test with this argument is one of boards, and runs for each."""
SHORT = ("unix", *targets.MICROCONTROLLERS)
"""Boards with a short campaign each. Those on `unix-twin` and `cpython` are in `test_several_boards.py`, at once."""
OVER_TLS = {"unix"}
"""Boards whose short campaign is over TLS; `make hil` has one without and one with it."""

RunStandin = Callable[..., Figures]
Play = Callable[..., tuple[Figures, Comparison]]

FILE = pytest.StashKey[list[str] | None]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rig", "campaigns on the boards of --lg-env, or in a long form on those without hardware")
    group.addoption("--messages", type=int, help="on each board: asks for the long form (200 on those of a file)")
    for name, count in (("cuts", 20), ("kills", 3)):
        group.addoption(f"--{name}", type=int, default=count, help="on each board in its long form (%(default)s)")
    group.addoption("--seed", type=int, help="the same seed makes the same plans (default: a new one)")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FILE] = None
    own_network.enter(config)
    path = config.getoption("lg_env", None) or os.environ.get("LG_ENV")
    if path is None or not config.pluginmanager.hasplugin("labgrid"):
        from hypothesis import HealthCheck, settings  # slow to import

        # As in tests/conftest.py: a slow machine is no failure.
        settings.register_profile(
            "ordack", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
        )
        settings.load_profile("ordack")
        return
    from hil import drivers

    try:  # labgrid's plugin reads the file later, and would show a traceback
        config.stash[FILE] = drivers.names(Path(path))
    except BoardMissing as reason:
        raise pytest.UsageError(str(reason)) from None
    os.environ["LG_ENV"] = str(Path(path).absolute())  # for open_board, also in processes of xdist


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if BOARD in metafunc.fixturenames:
        named = metafunc.config.stash[FILE]
        is_long = named or metafunc.config.option.messages is not None
        mark = pytest.mark.timeout(0 if is_long else 300)  # campaigns have their own deadlines
        boards = named or (targets.EMULATED if is_long else SHORT)
        metafunc.parametrize(BOARD, [pytest.param(name, marks=mark) for name in boards])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.stash[FILE] is not None or config.option.messages is not None:
        others = [item for item in items if BOARD not in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


@pytest.fixture(autouse=True)
def forked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the queue managers of campaigns in this process: a tenth of the cost of a new interpreter."""
    if request.config.stash[FILE] is None and Path(ORDACK[0]).exists():
        from tests.support import forked_manager  # a lab lacks the package tests

        monkeypatch.setattr(boards, "Popen", forked_manager.popen)
        for module in (part, queue_manager):
            monkeypatch.setattr(module, "create_subprocess_exec", forked_manager.create_subprocess_exec)


@pytest.fixture
def application(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The module's APPLICATION, as a file."""
    path = tmp_path / "application.py"
    path.write_text(request.module.APPLICATION)
    return path


@pytest.fixture
def run_standin(tmp_path: Path) -> RunStandin:
    """Run a small campaign of the stand-in pair: `run(fault="lose:7", messages=30)`; returns its figures."""

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
    """Run a campaign that must succeed, with a new seed: `play("unix", messages=40, cuts=0)`; returns its figures and
    the comparison of the readings. Skips the test if a requirement is missing."""

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
def campaign_on(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str, tuple[int, int, int]], Figures]:
    """Run a campaign on a board: `campaign_on("unix", (60, 12, 2))` with messages, cuts and kills of the short form.
    Skips the test if the board is missing and was not requested."""

    def run(board: str, short: tuple[int, int, int]) -> Figures:
        option, asked = request.config.option, request.config.stash[FILE] is not None
        seed = new_seed() if option.seed is None else option.seed
        print(f"seed {seed}")
        wanted = Settings(option.messages or 200, option.cuts, option.kills, seed, board)
        if not asked and option.messages is None:
            deadline_s = 250.0
            tls = board in OVER_TLS
            wanted = Settings(*short, seed, board, None, deadline_s, deadline_s, artefacts=tmp_path, tls=tls)
        try:
            return asyncio.run(run_campaign(wanted, Console()))
        except BoardMissing as reason:
            if not asked:
                pytest.skip(str(reason))
            pytest.fail(str(reason))

    return run


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], Path]:
    """Makes the file of boards."""
    import yaml

    def make(described: dict[str, Any]) -> Path:
        path = tmp_path / "rig.yaml"
        path.write_text(yaml.safe_dump({"imports": ["hil.drivers"], "targets": described}, sort_keys=False))
        monkeypatch.setenv("LG_ENV", str(path))
        return path

    return make
