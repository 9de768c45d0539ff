"""`make docs` builds a site that needs nothing from elsewhere, and refuses a broken link."""

from __future__ import annotations

import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from tests.conformance import ROOT

SITE = ROOT / "build" / "docs" / "site"


class Page(HTMLParser):
    """loads: the addresses that a browser asks for by itself. links: those that a reader can follow."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.loads += [given[name] for name in ("src", "srcset", "poster", "data") if name in given]
        if "href" in given:
            (self.loads if tag == "link" else self.links).append(given["href"])
        assert "mermaid" not in given.get("class", ""), "the theme would load mermaid from elsewhere"


def make_docs(*more: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "SETUP=:", "docs", *more]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


def test_site_has_no_external_request_and_no_broken_link(tmp_path: Path) -> None:
    for link in ("absent.md", "#absent", "page.md#absent", "absent.py"):  # first, because all builds have one folder
        (tmp_path / "page.md").write_text(f"# Page\n\n[there]({link})\n")
        refused = make_docs(f"MORE={tmp_path}/page.md")
        assert (refused.returncode, link in refused.stderr) == (2, True), refused.stderr
    done = make_docs()
    assert done.returncode == 0, done.stderr
    pages = list(SITE.rglob("*.html"))
    assert {"index.html", "host/docs/how-to/bridges.html"} <= {str(page.relative_to(SITE)) for page in pages}
    for path in pages:
        page = Page(path)
        assert page.loads
        assert [url for url in page.loads if re.match(r"(\w+:)?//", url)] == [], path
        for url in page.links if path.name != "404.html" else ():
            target = unquote(url.partition("#")[0])
            assert re.match(r"\w+:", url) or (path.parent / target).exists(), (path, url)
    for style in SITE.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(\w+:)?//", style.read_text("utf-8")), style
