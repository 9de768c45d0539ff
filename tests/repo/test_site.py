"""`make docs` builds a site that needs nothing from elsewhere, and refuses a broken link."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.conformance import ROOT

SITE = ROOT / "build" / "docs" / "site"


class Loads(HTMLParser):
    """The addresses that a browser asks for by itself when it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.found += [given[name] for name in ("src", "srcset", "poster", "data") if name in given]
        if tag == "link":
            self.found.append(given["href"])
        assert "mermaid" not in given.get("class", ""), "the theme would load mermaid from elsewhere"


def test_site_is_built_and_makes_no_external_request() -> None:
    done = subprocess.run(
        ["make", "SETUP=:", "docs"], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    pages = list(SITE.rglob("*.html"))
    assert {"index.html", "host/docs/how-to/bridges.html"} <= {str(page.relative_to(SITE)) for page in pages}
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text("utf-8"))
        assert loads.found
        assert [url for url in loads.found if re.match(r"(\w+:)?//", url)] == [], page
    for style in SITE.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(\w+:)?//", style.read_text("utf-8")), style


@pytest.mark.parametrize("link", ["absent.md", "#absent", "index.md#absent", "absent.py"])
def test_site_with_a_broken_link_is_refused(link: str, tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "index.md").write_text(f"# Page\n\n[there]({link})\n")
    (tmp_path / "mkdocs.yml").write_text(f"INHERIT: {ROOT}/mkdocs.yml\ndocs_dir: pages\nsite_dir: site\n")
    command = [sys.executable, "-m", "mkdocs", "build", "-f", tmp_path / "mkdocs.yml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, link.split("#")[-1] in done.stderr) == (1, True), done.stderr
