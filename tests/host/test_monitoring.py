"""The Grafana dashboard and the alert rules of host/examples fit the metrics of a running `ordack serve`."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from ordack.client import Client

from tests.support.command import DEADLINE_S, ROOT
from tests.support.watched import watched_serve

pytestmark = pytest.mark.slow
EXAMPLES = ROOT / "host" / "examples" / "monitoring"
SUFFIXES = {"histogram": ("_bucket", "_count", "_sum")}  # else the name alone
OF_PROMETHEUS = {"instance", "job"}  # labels that a scrape adds
LATER = {"rule", "stream"}  # labels that come with the first session that ends, and the first stream


def promtool(*arguments: object, given: str = "") -> None:
    command = ["promtool", *map(str, arguments)]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The metrics of a `serve` that is given one message for another queue manager."""
    store = tmp_path_factory.mktemp("monitoring") / "store"
    with Client(store, create=True) as client:
        client.create_queue("line1")
        client.send("DIRECT=OS:gone\\private$\\reports", b"waits")
    with watched_serve(store) as running:
        yield running.get("/metrics")[1]


def expressions() -> list[str]:
    """The expressions of all panels and rules."""
    dashboard = json.loads((EXAMPLES / "grafana-dashboard.json").read_text())
    of_panels = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    of_panels.append(dashboard["templating"]["list"][1]["query"]["query"])
    rules = re.findall(r"^ +expr: (.+)$", (EXAMPLES / "alerts.yml").read_text(), re.MULTILINE)
    assert (len(of_panels) > 20, len(rules) > 10) == (True, True)
    return of_panels + rules


def test_every_metric_and_label_of_dashboard_and_rules_exists(metrics: str) -> None:
    kinds = re.findall(r"^# TYPE (\S+) (\S+)$", metrics, re.MULTILINE)
    known = {name + suffix for name, kind in kinds for suffix in SUFFIXES.get(kind, ("",))}
    assert {name for text in expressions() for name in re.findall(r"\b(?:ordack|process)_\w+", text)} <= known
    texts = (EXAMPLES / "alerts.yml").read_text() + (EXAMPLES / "grafana-dashboard.json").read_text()
    named = re.findall(r"[{,](\w+)(?:=|!=|=~|!~)\\?\"|labels\.(\w+)|\{\{(\w+)\}\}|by \(([\w, ]+)\)", texts)
    labels = {label for found in named for one in found for label in one.split(", ")} - {""}
    assert {"instance", "queue", "destination", "peer", "stream", "reason", "rule", "le"} <= labels
    assert labels <= set(re.findall(r'[{,](\w+)="', metrics)) | OF_PROMETHEUS | LATER


def test_promtool_accepts_metrics_rules_and_expressions(metrics: str, tmp_path: Path) -> None:
    promtool("check", "metrics", given=metrics)
    promtool("check", "config", EXAMPLES / "prometheus.yml")
    panels = [text.replace("$__rate_interval", "1m") for text in expressions() if not text.startswith("label_values")]
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(panels)]
    (tmp_path / "panels.json").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", tmp_path / "panels.json")  # JSON is YAML


def test_each_alert_fires_for_its_fault_only() -> None:
    promtool("test", "rules", ROOT / "tests" / "host" / "alerts_test.yml")
