"""The HTML report of an audit: in a browser it says what the result says, and no text from the network runs."""

from __future__ import annotations

import os
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from mqqb import confirm
from ordack.audit import html_page
from ordack.audit.result import (
    KINDS,
    ConnectionReport,
    Latency,
    Packet,
    Result,
    SenderReport,
    SequenceId,
    SequenceReport,
    StreamKey,
    StreamReport,
    Unknown,
    Violation,
)
from ordack.config import classes

from tests.support.browser import chromium, watch

START = 1_763_700_000_123_456_789
HOSTILE = (
    "DIRECT=OS:plant\\private$\\<script>document.title='pwned'</script><img src=x onerror=alert(1)>"
    "&lt;b&gt;\u202e\ud800"
)


def latencies(chance: random.Random, messages: int) -> tuple[dict[str, Latency], dict[str, dict[float, int]]]:
    found, histograms = {}, {}
    bounds = [1.125**power for power in range(-60, 140)]
    for which, middle in (("session", 4), ("order", 12), ("final", 800)):
        values = sorted(middle * chance.lognormvariate(0, 0.6) for _ in range(messages))
        ranks = [values[int(len(values) * part)] for part in (0.5, 0.9, 0.99)]
        found[which] = Latency(len(values), *ranks, values[-1])
        histograms[which] = dict(Counter(next(bound for bound in bounds if bound >= value) for value in values))
    return found, histograms


def example(streams: int = 300, seed: int = 7) -> Result:
    """A result as an audit could give it; every eighth stream has a violation or something unknown."""
    chance = random.Random(seed)
    shapes = [latencies(chance, 200) for _ in range(8)]
    made, violations, unknowns = [], [], []
    connections = {}
    for number in range(streams):
        manager = f"{{{chance.randrange(1 << 128):032x}}}"
        queue = HOSTILE if number == 3 else f"DIRECT=TCP:10.1.{number % 7}.2\\private$\\line{number}"
        key = StreamKey(manager, queue, 0)
        messages = chance.randrange(50, 400)
        half = messages // 2
        resends = chance.randrange(40) if number % 3 == 0 else 0
        odd = number % 8 == 3
        first = START + number * 3_000_000
        last = first + messages * 40_000_000
        one, two = SequenceId(number + 1, 100), SequenceId(number + 1, 200)
        packets = tuple(Packet(number % 2, 100 + at, first + at * 1_000_000) for at in range(2))
        kinds: dict[str, int] = {}
        doubts: dict[str, int] = {}
        if number % 16 == 3:
            kind = KINDS[number // 16 % len(KINDS)]
            kinds[kind] = 1
            text = f"number 12 of {one.ordinal}/{one.time_stamp} was there before"
            violations.append(Violation(kind, key, one, number, 12, text, "B-309, B-317", packets))
        elif odd:
            doubts["skipped"] = 1
            unknowns.append(Unknown("skipped", key, one, number, 9, "4096 bytes are missing in frame 77", packets))
        rejects = {"duplicate": resends} if resends else {}
        made.append(
            StreamReport(
                stream=key,
                sequence=two,
                sequence_count=2,
                connections=1 + number % 3,
                messages=messages,
                first_transmissions=messages,
                resends=resends,
                rejects=rejects,
                order_acked=messages,
                final_acked=messages - 7 * odd,
                unsettled=7 * odd,
                holes=int(number % 5 == 0),
                violations=kinds,
                unknowns=doubts,
                first_time=first,
                last_time=last,
                latency=shapes[number % 8][0],
                histograms=shapes[number % 8][1],
                outcomes={"received": messages - 9, "waiting": 4, "sent": 3, "0x8003": 2}
                if odd
                else {"received": messages},
                sequences=(
                    SequenceReport(one, half, half, resends, rejects, half, half, 0, half, half, first, first + 1),
                    SequenceReport(two, half, half, 0, {}, half, half, 0, half, half, first + 2, last),
                ),
            )
        )
        connections[number] = ConnectionReport(
            ends=(f"10.0.{number % 9}.{number % 250}:{50000 + number}", "10.1.0.2:1801"),
            syn=number % 11 != 0,
            first_time=first,
            last_time=last,
            packets=(messages + resends, messages // 4),
            messages=(messages + resends, 9),
            holes=(int(number % 5 == 0), 0),
            malformed=(int(number % 50 == 0), 0),
            queue_managers=(manager, ""),
            end=("FIN", "RST", "the capture ends")[number % 3],
        )
    totals: Counter[str] = Counter()
    for stream in made:
        totals.update(stream.violations)
    messages, resends, unsettled = (
        sum(getattr(stream, name) for stream in made) for name in ("messages", "resends", "unsettled")
    )
    summary: dict[str, Any] = {
        "packets": 3 * messages,
        "connections": len(connections),
        "foreign_connections": 0,
        "streams": streams,
        "sequences": 2 * streams,
        "messages": messages,
        "resends": resends,
        "rejects": {"duplicate": resends},
        "settled": messages - unsettled,
        "unsettled": unsettled,
        "holes": 60,
        "malformed": 6,
        "unsupported_frames": 0,
        "unknown": dict(Counter(kind for stream in made for kind in stream.unknowns)),
        "violations": {kind: totals[kind] for kind in KINDS},
        "latency_ms": {},
    }
    senders = [
        SenderReport(
            stream.stream.source_queue_manager,
            1,
            stream.messages,
            stream.resends,
            0,
            stream.unsettled,
            sum(stream.violations.values()),
            0,
            stream.latency,
        )
        for stream in made
    ]
    return Result(
        summary=summary,
        paths=["/var/captures/plant-000001.pcap", "/var/captures/plant-000002.pcap"],
        damages=[("/var/captures/plant-000002.pcap", "the file ends at byte 123456, inside <frame> 78")],
        violations=violations,
        unknowns=unknowns,
        streams=made,
        senders=senders,
        connections=connections,
        histograms=shapes[0][1],
        latency=shapes[0][0],
    )


# ---- without a browser --------------------------------------------------------------------------


def test_a_report_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.html"
    path.write_text("the last one")

    def replace(_self: Path, _target: Path) -> None:
        raise OSError("no")

    with monkeypatch.context() as broken:
        broken.setattr(Path, "replace", replace)
        with pytest.raises(OSError, match="no"):
            html_page.write(example(8), path)
    assert path.read_text() == "the last one"
    assert list(tmp_path.iterdir()) == [path]
    html_page.write(example(8), path)
    assert path.read_text("utf-8").startswith("<!DOCTYPE html>")


def test_a_report_takes_the_place_of_no_link_and_of_no_device(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("the last one")
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to("page.html")
    html_page.write(example(8), link)
    assert link.is_symlink()
    assert (tmp_path / "page.html").read_text("utf-8").startswith("<!DOCTYPE html>")
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as reader:
        told = reader.submit(pipe.read_text, "utf-8")
        html_page.write(example(8), pipe)
        assert told.result().startswith("<!DOCTYPE html>")
        assert told.result().endswith("</html>\n")
    assert pipe.is_fifo()
    with (tmp_path / "all").open("w") as out:
        print("before", file=out, flush=True)
        place = (tmp_path / "all").stat().st_ino
        html_page.write(example(8), Path(f"/dev/fd/{out.fileno()}"))
    assert (tmp_path / "all").stat().st_ino == place


# ---- in a browser -------------------------------------------------------------------------------


browser = pytest.fixture(scope="module")(chromium)


class Opened:
    """A report in a page; `problems` has what should not happen."""

    def __init__(self, browser: Any, result: Result, path: Path, scheme: str = "light") -> None:
        html_page.write(result, path)
        self.page = browser.new_page(color_scheme=scheme)
        self.problems = watch(self.page)
        self.requests: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())

    def rows(self, place: str) -> list[list[str]]:
        """The texts of the cells that a table shows."""
        found: list[list[str]] = self.page.evaluate(
            "place => [...document.querySelectorAll(`#${place} tbody tr`)]"
            ".map(row => [...row.children].map(cell => cell.textContent))",
            place,
        )
        return found

    def column(self, place: str, at: int) -> list[str]:
        return [row[at] for row in self.rows(place)]


def test_a_report_in_a_browser(browser: Any, tmp_path: Path) -> None:
    result = example()
    opened = Opened(browser, result, tmp_path / "audit.html")
    page = opened.page

    # What the page says is what the result says.
    figures = dict(
        zip(
            *(
                page.eval_on_selector_all(f"#figures {tag}", "all => all.map(one => one.textContent)")
                for tag in ("dt", "dd")
            )
        )
    )
    for title, number in (
        ("Messages", result.summary["messages"]),
        ("Packets", result.summary["packets"]),
        ("Violations", 19),
        ("Not known", 19),
        ("Unsettled", 266),
        ("Malformed", 6),
    ):
        assert figures[title] == f"{number:,}"
    assert page.locator("#verdict h2").inner_text() == "19 violations in 19 of 300 streams"
    assert len(opened.rows("violations-table")) == 19
    first = opened.rows("violations-table")[0]
    assert first[0] == "renumbered"
    assert "plant-000002.pcap frame 100, 2025-11-21 04:40:00.132456" in first[5]
    outcomes = {row[0]: row[1] for row in opened.rows("outcomes")}
    assert outcomes["received by an application"] == f"{sum(one.outcomes['received'] for one in result.streams):,}"
    assert outcomes[f"not received: {classes.words(confirm.NACK_Q_EXCEED_QUOTA)}"] == "76"
    assert opened.rows("files")[1] == [
        "/var/captures/plant-000002.pcap",
        "the file ends at byte 123456, inside <frame> 78",
    ]
    assert [row[0] for row in opened.rows("latency .scroll")][:3] == [
        f"{which} acknowledgement" for which in ("session", "order", "final")
    ]

    # The fleet: sorted by trouble, then as wanted; pages; search; filter.
    assert opened.column("fleet-table", 0) == ["violation"] * 19 + ["not known"]
    most = sorted((stream.messages for stream in result.streams), reverse=True)
    page.locator("#fleet-table").get_by_role("button", name="Messages").click()
    assert opened.column("fleet-table", 5) == [f"{number:,}" for number in most[:20]]
    assert page.locator("#fleet-table th[aria-sort]").get_attribute("aria-sort") == "descending"
    page.locator("#fleet-table").get_by_role("button", name="Next").click()
    assert opened.column("fleet-table", 5) == [f"{number:,}" for number in most[20:40]]
    page.locator("#fleet-table").get_by_role("button", name="Messages").click()
    assert opened.column("fleet-table", 5) == [f"{number:,}" for number in most[:-21:-1]]
    page.locator("#fleet-table input").fill("LINE27")
    assert sorted(row[2].rpartition("\\")[2] for row in opened.rows("fleet-table")) == sorted(
        ["line27", *(f"line27{number}" for number in range(10))]
    )
    assert page.locator("#fleet-table [role=status]").inner_text() == "Rows 1 to 11 of 11"
    page.locator("#fleet-table input").fill("")
    page.locator("#fleet-table select").select_option(label="with something not known")
    assert set(opened.column("fleet-table", 0)) == {"not known"}
    assert page.locator("#fleet-table [role=status]").inner_text() == "Rows 1 to 19 of 19"

    page.locator("#connections-table input").fill(":50120")
    assert len(opened.rows("connections-table")) == 1
    assert opened.problems == []
    assert opened.requests == [(tmp_path / "audit.html").as_uri()]


def test_a_hostile_name_stays_text(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, example(), tmp_path / "audit.html")
    page = opened.page
    page.locator("#fleet-table input").fill("<script>")
    shown = HOSTILE.replace("\ud800", "\\ud800")
    assert opened.column("fleet-table", 2) == [shown]
    assert page.evaluate("document.querySelectorAll('img[src=x], script:not([type])').length") == 1  # page.js
    assert page.title() == "Audit of /var/captures/plant-000001.pcap, /var/captures/plant-000002.pcap"
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=http://10.0.0.1/x onerror=alert(1)>')")
    page.wait_for_function("document.querySelector('img[src^=http]').complete")
    assert [problem for problem in opened.problems if "Content Security Policy" not in problem] == []
    assert len(opened.problems) >= 1  # the policy would have stopped it


@pytest.mark.parametrize("streams", [0, 1, 3000])
def test_few_and_many_streams_and_the_dark(browser: Any, tmp_path: Path, streams: int) -> None:
    opened = Opened(browser, example(streams), tmp_path / "audit.html", "dark")
    assert (tmp_path / "audit.html").stat().st_size < 3 << 20
    assert len(opened.rows("fleet-table")) == min(streams, 20)
    assert opened.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    names = opened.page.evaluate(
        "[...document.querySelectorAll('input, select, button')].filter(one => one.offsetParent && !one.labels?.length "
        "&& !one.textContent && !one.ariaLabel).length"
    )
    assert names == 0  # every control has a name
    assert opened.problems == []
