"""The HTML report of an audit says what the result says, and text from the network stays text."""

from __future__ import annotations

import html
import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from ordack.audit import html_page, tasks
from ordack.audit.result import AuditResult

from tests.support import capture_generator

HOSTILE = "DIRECT=OS:plant\\private$\\<script>alert(1)</script><img src=x onerror=alert(1)>&lt;b&gt;\u202e\ud800"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> AuditResult:
    capture = capture_generator.generate(21, tmp_path_factory.mktemp("captures"), violations=True, faults=[])
    return tasks.run(capture.paths)


def _table(page: str, section: str) -> list[list[str]]:
    """The texts of the first table's cells in a section."""
    body = page.partition(f'<section id="{section}">')[2].partition("<tbody>")[2].partition("</tbody>")[0]
    return [
        [html.unescape(re.sub("<.*?>", "\n", cell)) for cell in re.findall("<td.*?>(.*?)</td>", row, re.DOTALL)]
        for row in re.findall("<tr>(.*?)</tr>", body, re.DOTALL)
    ]


def test_audit_html_page_matches_result(result: AuditResult, tmp_path: Path) -> None:
    path = tmp_path / "audit.html"
    html_page.write(result, path)
    page = path.read_text("utf-8")
    assert f"<dt>Messages</dt><dd>{result.summary['messages']:,}</dd>" in page
    assert [row[0] for row in _table(page, "violations")] == [item.kind for item in result.violations]
    for row, item in zip(_table(page, "violations"), result.violations, strict=True):
        assert item.text in row[5]
        assert [line.partition(",")[0] for line in row[6].splitlines()] == [
            f"{result.paths[packet.file]} frame {packet.frame}" for packet in item.packets
        ]
    streams = _table(page, "streams")
    assert [row[1] for row in streams] == [report.stream.destination_queue for report in result.worst]
    assert sum(int(row[5].replace(",", "")) for row in streams) == result.summary["messages"]
    assert [row[0] for row in _table(page, "files")] == result.paths


def test_a_hostile_name_stays_text(result: AuditResult, tmp_path: Path) -> None:
    path = tmp_path / "audit.html"
    [first, *others] = result.worst
    stream = first.stream._replace(destination_queue=HOSTILE)
    violation = replace(result.violations[0], stream=stream)
    html_page.write(replace(result, violations=[violation], worst=[replace(first, stream=stream), *others]), path)
    page = path.read_text("utf-8")
    assert not re.search("<(script|img)", page)
    shown = HOSTILE.replace("\ud800", "\\ud800")
    assert _table(page, "violations")[0][2] == _table(page, "streams")[0][1] == shown
    assert """content="default-src 'none'; style-src 'unsafe-inline'">""" in page


def test_a_report_is_written_whole_or_not_at_all(
    result: AuditResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.html"
    path.write_text("the last one")

    def refuse(_self: Path, _target: Path) -> None:
        raise OSError("no")

    with monkeypatch.context() as broken:
        broken.setattr(Path, "replace", refuse)
        with pytest.raises(OSError, match="no"):
            html_page.write(result, path)
    assert path.read_text() == "the last one"
    assert list(tmp_path.iterdir()) == [path]


def test_a_report_takes_the_place_of_no_link_and_of_no_device(result: AuditResult, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("the last one")
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to("page.html")
    html_page.write(result, link)
    assert link.is_symlink()
    assert (tmp_path / "page.html").read_text("utf-8").startswith("<!DOCTYPE html>")
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as reader:
        told = reader.submit(pipe.read_text, "utf-8")
        html_page.write(result, pipe)
        assert told.result().endswith("</html>\n")
    assert pipe.is_fifo()
