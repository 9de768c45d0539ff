"""The web page of `ordack serve` in a real Chromium: it shows what is there, as text, and moves dead letters."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ordack.client import Client
from ordack.config.names import DEAD_XACT

from tests.support.browser import chromium, watch
from tests.support.dead_letters import HOSTILE, store_with_dead_letters, with_token
from tests.support.watched import Watched, until

pytestmark = pytest.mark.slow
TOKEN = "a-token-that-nobody-guesses"
WIDTHS = pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])

browser = pytest.fixture(scope="module")(chromium)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Watched]:
    """A `serve` with a few queues, dead letters with labels that mean harm, and messages for nobody."""
    store = tmp_path / "store"
    store_with_dead_letters(store, [(HOSTILE, b"21.5"), ("press 7", HOSTILE.encode()), ("oven", b"\xff\x00")])
    with Client(store) as client:
        client.create_queue("a-queue-whose-name-is-as-long-as-" + "names-may-be-" * 7, transactional=True)
        client.order("set_quota", "line1", 1 << 20)
        client.send("DIRECT=OS:gone\\private$\\reports", b"waits")
    with_token(store, TOKEN)
    found = Watched(store)
    yield found
    found.serve.process.kill()
    found.serve.process.communicate()


class Opened:
    """The page in a tab; `problems` has what should not happen."""

    def __init__(self, browser: Any, running: Watched, width: int = 1280, scheme: str = "light") -> None:
        self.page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 900})
        self.problems = watch(self.page)
        self.requests: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(f"http://127.0.0.1:{running.http}/")
        self.page.wait_for_selector("#queues tbody tr")

    def unlock(self, token: str = TOKEN) -> None:
        self.page.fill("#token", token)
        self.page.click("#unlock button")

    def row(self, queue: str) -> list[str]:
        """The texts of the cells in a queue's row."""
        found: list[str] = self.page.evaluate(
            "queue => [...document.querySelectorAll('#queues tbody tr')].map(row => [...row.children].map("
            "cell => cell.textContent)).find(row => row[0].split(' ')[0] === queue)",
            queue,
        )
        return found

    def is_narrow(self) -> bool:
        """Does everything fit without scrolling sideways?"""
        return bool(self.page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


@WIDTHS
def test_what_is_there_is_shown_and_changes(browser: Any, running: Watched, width: int, scheme: str) -> None:
    opened = Opened(browser, running, width, scheme)
    page = opened.page
    assert opened.row("line1")[1] == "0"
    with Client(running.store) as client:
        for number in range(5):
            client.send("line1", b"%d" % number)
    until(lambda: page.wait_for_timeout(50) or opened.row("line1")[1] == "5", "the depth rises")
    assert "% of 1.05 MB" in opened.row("line1")[4]
    until(lambda: page.wait_for_timeout(50) or page.locator("#depth path.line").count() == 2, "the depth is drawn")
    assert page.locator("#commits path.line").count() == 2
    until(lambda: page.wait_for_timeout(50) or "5 here" in page.get_attribute("#depth svg", "aria-label"), "it rises")
    assert "gone" in page.inner_text("#waiting")
    until(lambda: page.wait_for_timeout(50) or "waiting" in page.inner_text("#waiting .why"), "it says why")
    assert "Dead letters\n3" in page.inner_text("#figures")
    until(lambda: page.wait_for_timeout(50) or page.inner_text("#verdict h2") == "2 things to look at", "it is told")
    assert page.locator("#letters li").count() == 0
    assert opened.is_narrow()
    page.fill("#search", "a-queue-whose")
    assert page.locator("#queues tbody tr").count() == 1
    assert {url.split("/")[2] for url in opened.requests if not url.startswith("data:")} == {
        f"127.0.0.1:{running.http}"
    }
    assert opened.problems == []


def test_a_dead_letter_is_moved_back_with_the_token(browser: Any, running: Watched) -> None:
    opened = Opened(browser, running, 400, "dark")
    page = opened.page
    opened.unlock("wrong-token-wrong-token")
    page.wait_for_selector("#refused:not([hidden])")
    assert "not the token" in page.inner_text("#refused")
    assert page.locator("#letters li").count() == 0
    assert len(opened.problems) == 1  # Chromium tells of the status 401 itself
    opened.problems.clear()
    opened.unlock()
    page.wait_for_selector("#letters li")
    letters = page.locator("#letters li")
    assert letters.count() == 3
    assert HOSTILE in letters.nth(0).inner_text()  # as text
    assert HOSTILE in letters.nth(1).locator("pre").inner_text()
    assert letters.nth(2).locator("pre").inner_text() == "ff 00"
    assert page.locator("main img").count() == 0
    assert "no application is known to have received it" in letters.nth(0).inner_text()
    assert opened.is_narrow()
    assert page.locator("#move").is_disabled()
    letters.nth(0).locator("input").check()
    assert page.inner_text("#move") == "Move 1 message back"
    page.click("#move")
    until(lambda: page.wait_for_timeout(50) or page.locator("#letters li").count() == 2, "it goes")
    assert page.inner_text("#told") == "1 message moved."
    until(lambda: page.wait_for_timeout(50) or opened.row("line1")[1] == "1", "it is in its queue")
    page.fill("#to", "nowhere")
    page.check("#all")
    page.click("#move")
    until(lambda: page.wait_for_timeout(50) or "2 stayed" in page.inner_text("#told"), "it says that they stayed")
    assert "there is no queue nowhere" in page.inner_text("#told")
    page.fill("#to", "")
    page.click("#move")
    until(lambda: page.wait_for_timeout(50) or opened.row("line1")[1] == "3", "all are back")
    page.reload()  # the tab keeps the token
    page.wait_for_selector("#queues tbody tr")
    assert "There are none." in page.inner_text("#kept-part")
    until(lambda: page.wait_for_timeout(50) or page.title() == "(1) ordack", "nobody is called gone")
    assert opened.problems == []
    with Client(running.store) as client:
        assert [message.body for message in client.queue("line1").peek()] == [b"21.5", HOSTILE.encode(), b"\xff\x00"]
        assert list(client.queue(DEAD_XACT).peek()) == []


def test_a_page_says_that_serve_is_gone_and_asks_nothing_while_nobody_looks(browser: Any, running: Watched) -> None:
    opened = Opened(browser, running)
    page = opened.page
    page.evaluate(
        "Object.defineProperty(document, 'hidden', {get: () => window.isAway, configurable: true});"
        "window.isAway = true; document.dispatchEvent(new Event('visibilitychange')); look()"  # as if it was under way
    )
    before = len(opened.requests)
    page.wait_for_timeout(2500)  # longer than it takes to ask again
    assert len(opened.requests) == before
    page.evaluate("window.isAway = false; document.dispatchEvent(new Event('visibilitychange'))")
    until(lambda: page.wait_for_timeout(50) or len(opened.requests) > before + 1, "it asks again")
    assert opened.problems == []
    running.serve.stop(signal.SIGTERM)
    page.wait_for_selector("#verdict:has-text('No answer since')")
    assert "as of" in page.inner_text("#verdict")
    assert "old" in (page.get_attribute("body", "class") or "")


def test_names_that_others_chose_are_text_wherever_they_stand(browser: Any, running: Watched) -> None:
    """Whatever the queue manager might tell of them."""
    told = json.loads(running.get("/overview")[1])
    told |= {"problems": [HOSTILE], "problem_count": 1, "refused": HOSTILE, "store": HOSTILE, "listening": HOSTILE}
    told["queues"] = [{**queue, "name": HOSTILE + queue["name"]} for queue in told["queues"]]
    told["outgoing"] = [
        {**queue, "format_name": HOSTILE, "peer_name": None, "why": HOSTILE} for queue in told["outgoing"]
    ]
    peer = {"guid": HOSTILE, "name": HOSTILE, "via": HOSTILE, "address": HOSTILE, "sessions": 1, "silent_s": 5}
    told |= {"peers": [peer], "peer_count": 1, "serial": [{"host": HOSTILE, "serial": HOSTILE, "state": HOSTILE}]}
    told["kept"] = [{"name": HOSTILE, "messages": 1}]
    page = browser.new_page(viewport={"width": 400, "height": 900})
    problems = watch(page)
    page.route("**/overview", lambda route: route.fulfill(json=told))
    page.goto(f"http://127.0.0.1:{running.http}/")
    page.wait_for_selector("#queues tbody tr")
    for place in ("#verdict", "#queues", "#waiting", "#peers", "#store", "#served", "#tabs"):
        assert HOSTILE in page.inner_text(place), place
    assert page.locator("body img").count() == 0
    assert page.title() == "(1) ordack"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert problems == []
