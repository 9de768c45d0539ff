"""The page of the guarantees in Chromium: it stands alone, says what the table says, and no text of a board runs."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("plotly", reason="plotly is not installed")

from hil.boards import Wear
from hil.matrix import GUARANTEES, Matrix, told
from hil.page import page
from hil.report import Comparison, Figures, Timeline
from hil.test_matrix import CUT
from tests.support.browser import chromium, watch

HOSTILE = "</script><script>document.title='pwned'</script><img src=x onerror=alert(1)>"
FAULTS = ("link: rst up", "board: power", "queue manager: clock", "name server: dead", "access point: gone")

browser = pytest.fixture(scope="module")(chromium)


def figures(board: str, count: int, **changes: Any) -> Figures:
    timeline = Timeline()
    for k in range(1, count + 1):
        timeline.note(k / 10, (min(count, k + 5), k, k), [FAULTS[k // 7 % 5]] if k % 7 == 0 else [])
    wanted = {"comparison": Comparison(count, count, count), "timeline": timeline, "hashes": {"firmware": "ab" * 32}}
    wanted |= {"wear": Wear(90000, 60, 7), "others_asked": {"board: clock": 1}, "others": {"board: clock": 1}}
    return Figures(7, board, f"{board}: {HOSTILE}", count, 4, 2, 2, **{**wanted, **changes})


def matrix() -> Matrix:
    made = Matrix(7)
    made.add(told("unix", figures("unix", 30, cuts=[CUT] * 4, board_kills=2, manager_kills=2)))
    made.add(told("m33", figures("m33", 40, comparison=None, failure=HOSTILE, timeline=Timeline())))
    made.add(told("pi", "qemu-aarch64 is not installed"))
    return made


def test_it_stands_alone_and_shows_every_board(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "hil.html"
    path.write_text(page(matrix()), "utf-8")
    tab = browser.new_page()
    problems, requests = watch(tab), list[str]()
    tab.on("request", lambda request: requests.append(request.url))
    for width, scheme in ((1280, "light"), (400, "dark")):
        tab.set_viewport_size({"width": width, "height": 900})
        tab.emulate_media(color_scheme=scheme)
        tab.goto(path.as_uri())
        shows_every_board(tab)
        assert tab.evaluate("document.documentElement.scrollWidth") == width
    assert (problems, requests) == ([], [path.as_uri()] * 2)
    tab.close()


def shows_every_board(tab: Any) -> None:
    tab.wait_for_selector("#recovery-plot .main-svg")

    def texts(selector: str) -> list[str]:
        found: list[str] = tab.eval_on_selector_all(selector, "all => all.map(one => one.textContent)")
        return found

    assert texts("#guarantees thead th") == ["guarantee", "unix", "m33", "pi"]
    assert texts("#guarantees tbody th") == list(GUARANTEES)
    cells = texts("#guarantees tbody tr:first-child td")
    assert cells == ["shown 30 readings", f"not shown {HOSTILE}", "absent qemu-aarch64 is not installed"]
    assert "10 of 33 guarantees are not shown." in texts(".verdict h2")
    rows = texts("#figures tbody tr")
    assert len(rows) == 2
    assert "firmware abababababab" in rows[0]
    assert "4 rst" in rows[0]
    assert "1 board: clock" in rows[0]
    assert "90,000 bytes, 60 erases: 2.0 a reading; of one block 7 at most" in rows[0]
    assert "unix: " + HOSTILE in rows[0]

    def traces(plot: str) -> dict[str, list[float]]:
        found: list[Any] = json.loads(tab.evaluate(f"JSON.stringify(document.getElementById('{plot}').data)"))
        return {one.get("name", ""): one["y"] for one in found}

    over_time = traces("time-plot")
    assert over_time["acknowledged"] == list(range(1, 31))
    ends = [fault.split(":")[0] for fault in FAULTS]
    assert [len(over_time[end]) for end in ends] == [0, 1, 1, 1, 1], "of 7, 14, 21 and 28"
    assert traces("recovery-plot")["access point"] == [pytest.approx(0.1)]
    rates = traces("rate-plot")
    assert max(rates["acknowledged"]) > 0
    assert [len(rates[end]) for end in ends] == [0, 1, 1, 1, 1]
    assert {rates[end][0] for end in ends[1:]} <= set(rates["acknowledged"]), "on the bars"
    tab.select_option("#board", label="m33")
    assert traces("time-plot")["acknowledged"] == []
    assert tab.title() == "Guarantees by board, seed 7"


def test_no_name_of_a_board_is_markup_or_a_script() -> None:
    made = Matrix(7)
    made.add(told(HOSTILE, figures(HOSTILE, 30)))
    made.add(told(f"{HOSTILE} 2", HOSTILE))
    for part in ("</script><script>document", "<img src=x"):
        assert part not in page(made)


def test_without_a_board_that_was_tried_the_page_says_so() -> None:
    made = Matrix(7)
    assert "No board was tried." in page(made)
    made.add(told("pi", "qemu-aarch64 is not installed"))
    assert "No board was tried." in page(made)
    made.add(told("m33", figures("m33", 40, comparison=None, failure="it is silent", timeline=Timeline())))
    assert "No board was tried." not in page(made)


def test_the_verdict_is_the_worst_that_was_found() -> None:
    made = matrix()
    assert "10 of 33 guarantees are not shown." in page(made)
    made.add(told("cpython", figures("cpython", 9, comparison=Comparison(9, 9, 8, lost=[3]))))
    assert "1 of 44 guarantees are broken." in page(made)
    good = Matrix(7)
    good.add(told("unix", figures("unix", 30, cuts=[CUT] * 4, board_kills=2, manager_kills=2)))
    assert "Every guarantee is shown on 1 board." in page(good)
