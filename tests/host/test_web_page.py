"""The web page of `ordack serve` in a real Chromium: it shows what is there, as text."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ordack.client import Client, Letter

from tests.support.browser import chromium, watch
from tests.support.dead_letters import HOSTILE, store_with_dead_letters, with_token
from tests.support.watched import Watched, until

pytestmark = pytest.mark.slow
TOKEN = "a-token-that-nobody-guesses"
WIDTHS = pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])

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
def test_web_page_shows_queues_and_updates_them(browser: Any, running: Watched, width: int, scheme: str) -> None:
    opened = Opened(browser, running, width, scheme)
    page = opened.page
    assert opened.row("line1")[1] == "0"
    with Client(running.store) as client:
        for number in range(5):
            client.send("line1", b"%d" % number)
    until(lambda: page.wait_for_timeout(50) or opened.row("line1")[1] == "5", "the depth rises")
    assert "% of 1.05 MB" in opened.row("line1")[3]
    until(lambda: page.wait_for_timeout(50) or page.locator("#depth path.line").count() == 2, "the depth is drawn")
    until(lambda: page.wait_for_timeout(50) or "5 here" in page.get_attribute("#depth svg", "aria-label"), "it rises")
    until(lambda: page.wait_for_timeout(50) or re.search(r"second, in\n[1-9]", page.inner_text("#figures")), "a rate")
    assert " in, 0 out" in page.get_attribute("#rate svg", "aria-label")
    assert "gone" in page.inner_text("#waiting")
    until(lambda: page.wait_for_timeout(50) or "waiting" in page.inner_text("#waiting .why"), "it says why")
    assert "Dead letters\n3" in page.inner_text("#figures")
    until(lambda: page.wait_for_timeout(50) or page.inner_text("#verdict h2") == "2 problems", "it is told")
    assert opened.is_narrow()
    page.fill("#search", "A-queue-whose")
    page.wait_for_selector("#queues tbody tr:nth-child(2)", state="detached")
    assert page.locator("#queues tbody tr").count() == 1
    assert {url.split("/")[2] for url in opened.requests if not url.startswith("data:")} == {
        f"127.0.0.1:{running.http}"
    }
    assert opened.problems == []


def confirm(page: Any, named: str, token: str = "") -> str:
    """Confirm a change whose question names this; returns the page's answer."""
    page.wait_for_selector("#ask[open]")
    assert named in page.inner_text("#ask-title")
    assert page.locator("#ask-token").is_visible() == bool(token)
    if token:
        page.fill("#ask-token", token)
    page.click("#ask-yes")
    page.wait_for_selector("#done:not([hidden])")
    told = str(page.inner_text("#done"))
    page.evaluate("document.getElementById('done').hidden = true")
    return told


@WIDTHS
def test_page_creates_purges_shows_and_moves(browser: Any, running: Watched, width: int, scheme: str) -> None:
    opened = Opened(browser, running, width, scheme)
    page = opened.page
    page.fill("#create-name", "ovens")
    page.click("#create button")
    page.wait_for_selector("#ask[open]")
    assert opened.is_narrow()
    page.fill("#ask-token", "wrong-token-wrong-token")
    page.click("#ask-yes")
    page.wait_for_selector("#ask-error:has-text('The token is missing or wrong')")
    opened.problems.clear()  # Chromium's console names the status 401
    assert confirm(page, "Create the queue ovens?", TOKEN) == "Created the transactional queue ovens."
    page.wait_for_selector("#queues tr:has-text('ovens')")
    page.fill("#create-name", "ovens")
    page.click("#create button")
    page.click("#ask-yes")
    page.wait_for_selector("#ask-error:has-text('ovens')")
    opened.problems.clear()
    page.click("#ask-no")
    with Client(running.store) as client:
        client.send_many([Letter("ovens", b"reading %d" % number) for number in range(25)])
    until(lambda: page.wait_for_timeout(50) or opened.row("ovens")[1] == "25", "the messages are shown")
    page.click("tr:has-text('ovens') button:text('Messages')")
    page.wait_for_selector("#messages li:nth-child(20)")
    page.click("#pages button:text('Next')")
    page.wait_for_selector("#messages pre:text('reading 24')")
    assert (page.locator("#messages li").count(), page.inner_text("#pages")) == (5, "First messages")
    page.click("tr:has-text('ovens') button:text('Purge')")
    assert confirm(page, "Remove 25 messages from ovens?") == "Removed 25 messages from ovens."
    page.click("tr:has-text('deadxact') button:text('Messages')")
    page.wait_for_selector("#messages pre:text('ff 00')")
    assert HOSTILE in page.inner_text("#messages")
    assert page.locator("body img").count() == 0
    assert opened.is_narrow()
    page.click("#messages li:has-text('press 7') button")
    assert "of " + str(len(HOSTILE)) in page.inner_text("#ask-text")
    assert "line1" in page.inner_text("#ask-text")
    assert "Moved 1 message from" in confirm(page, "Move 1 message back?")
    page.wait_for_selector("#messages li:nth-child(3)", state="detached")
    with Client(running.store) as client:
        assert [message.label for message in client.queue("line1").peek()] == ["press 7"]
    assert opened.problems == []


@WIDTHS
def test_page_pauses_and_resumes_an_outgoing_queue(browser: Any, running: Watched, width: int, scheme: str) -> None:
    opened = Opened(browser, running, width, scheme)
    page = opened.page
    page.click("#waiting button:text('Pause')")
    assert "In the queue: 1 message." in page.inner_text("#ask-text")
    assert "Paused the outgoing queue" in confirm(page, "gone", TOKEN)
    page.wait_for_selector("#waiting .why:has-text('on hold')")
    page.focus("#waiting button:text('Resume')")
    figures = page.inner_text("#fresh")
    until(lambda: page.wait_for_timeout(50) or page.inner_text("#fresh") != figures, "the page is renewed")
    assert page.evaluate("document.activeElement.textContent") == "Resume …"
    page.keyboard.press("Enter")
    assert "Resumed the outgoing queue" in confirm(page, "gone")
    page.wait_for_selector("#waiting button:text('Pause')")
    assert opened.is_narrow()
    assert opened.problems == []


def test_the_page_asks_for_the_token_where_it_needs_one(browser: Any, running: Watched) -> None:
    page = browser.new_page()

    def as_from_elsewhere(route: Any) -> None:
        if route.request.headers.get("authorization") == f"Bearer {TOKEN}":
            route.continue_()
        else:
            route.fulfill(status=401, body="the page shows this to whoever has the token")

    page.route("**/overview", as_from_elsewhere)
    page.goto(f"http://127.0.0.1:{running.http}/")
    for token in ("wrong-token-wrong-token", TOKEN):
        page.wait_for_selector("#unlock:not([hidden])")
        assert page.locator("#queues tbody tr").count() == 0
        page.fill("#token", token)
        page.click("#unlock button")
    page.wait_for_selector("#queues tbody tr")
    assert page.locator("#unlock").is_hidden()


def test_page_reports_lost_serve_and_does_not_poll_while_hidden(browser: Any, running: Watched) -> None:
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
    assert "The figures below are from" in page.inner_text("#verdict")
    assert "old" in (page.get_attribute("body", "class") or "")


def test_names_that_others_chose_are_text_wherever_they_stand(browser: Any, running: Watched) -> None:
    """Whatever the queue manager might tell of them."""
    told = json.loads(running.get("/overview")[1])
    told |= {"problems": [HOSTILE], "problem_count": 1, "refused": HOSTILE, "store": HOSTILE, "listening": HOSTILE}
    told["queues"] = [{**queue, "name": HOSTILE + queue["name"]} for queue in told["queues"]]
    told["outgoing"] = [
        {**queue, "format_name": HOSTILE, "peer_name": None, "why": HOSTILE} for queue in told["outgoing"]
    ]
    peer = {
        "guid": HOSTILE,
        "name": HOSTILE,
        "via": HOSTILE,
        "address": HOSTILE,
        "sessions": 1,
        "silent_s": 5,
        "history": [0, 7],
    }
    told |= {
        "peers": [peer],
        "peer_count": 1,
        "found_count": 1,
        "serial": [{"host": HOSTILE, "serial": HOSTILE, "state": HOSTILE}],
    }
    page = browser.new_page(viewport={"width": 400, "height": 900})
    problems = watch(page)
    page.route("**/overview", lambda route: route.fulfill(json=told))
    page.goto(f"http://127.0.0.1:{running.http}/")
    page.wait_for_selector("#queues tbody tr")
    for place in ("#verdict", "#queues", "#waiting", "#peers", "#store", "#served"):
        assert HOSTILE in page.inner_text(place), place
    assert page.locator("body img").count() == 0
    assert page.get_attribute("#peers .spark", "aria-label") == "7 messages in 20 min, at most 7 in 10 min"
    assert page.locator("#peers .spark rect").count() == 2
    assert page.title() == "(1) ordack"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert problems == []
