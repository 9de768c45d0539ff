"""The parts of the campaign over the whole way, without its processes: what is killed when, what is seen of the table,
and the verdict. tests/pipeline/test_chain.py runs all of it.
"""

import functools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake", reason="the pipeline is not installed")

import pyarrow as pa
from deltalake import write_deltalake

from hil import pipeline
from hil.pipeline import Figures, PipelineCampaign, main, messages_of, rows_of
from hil.queue_manager import CampaignFailed, Service
from hil.report import Comparison

# The verdict


def figures(**changes: Any) -> Figures:
    """Of a campaign in which all went well."""
    asked = {"board": 2, "ingest": 1}
    well = {"comparison": Comparison(20, 20, 20), "asked": asked, "kills": dict(asked)}
    return Figures(7, 20, **{**well, **changes})


def test_a_campaign_in_which_all_went_well_says_so() -> None:
    assert figures().shortcomings() == []
    assert str(figures().line()).startswith("20 sent, 20 received once, in order, 0 lost, 0 duplicated; 0 segments")
    assert json.loads(figures().to_json())["ok"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"comparison": None}, "there is no verdict"),
        ({"comparison": None, "failure": "the ingest ended by itself"}, "the ingest ended by itself"),
        ({"comparison": Comparison(20, 19, 19, lost=[3])}, "{'lost': [3]}"),
        ({"comparison": Comparison(19, 19, 19)}, "19 sent, 19 received once"),
        ({"left": 2}, "2 messages are still in queues"),
        ({"kills": {"board": 2}}, "0 of 1 kills of the ingest were made"),
        ({"kills": {"board": 3, "ingest": 1}}, "3 of 2 kills of the board were made"),
    ],
)
def test_pipeline_figures_name_each_shortcoming(changes: dict[str, Any], reason: str) -> None:
    found = figures(**changes)
    assert reason in " ".join(found.shortcomings())
    assert not json.loads(found.to_json())["ok"]


# A service


def service(folder: Path, script: str) -> Service:
    """A command that runs until it is killed, and has said that it does."""
    made = Service([sys.executable, "-u", "-c", f"import os, signal, sys, time\n{script}"], folder)
    made.power_up()
    made.log.wait_for(lambda text: text.startswith("ready"), 60)
    return made


def test_killed_service_leaves_children_alive(tmp_path: Path) -> None:
    """They notice, as Java does."""
    child = "if not os.fork():\n while os.path.exists('stay'): time.sleep(0.01)\n print('gone'); os._exit(0)"
    (tmp_path / "stay").touch()
    made = service(tmp_path, f"{child}\nprint('ready'); signal.pause()")
    assert made.has_children()
    assert made.process is not None
    made.process.kill_alone()
    assert not made.alive
    assert not made.has_children()
    assert all(line.text != "gone" for line in made.log.since(0))
    (tmp_path / "stay").unlink()
    made.log.wait_for(lambda text: text == "gone", 60)


# The table


def rows(*numbers: int) -> pa.Table:
    """Messages, the last one first."""
    each = [
        {"lookup_id": k, "label": f"reading {k}", "source_queue_manager": "a", "message_id": k, "delivery": "express"}
        | {"message_class": 0, "body": b"x" * k, "tx_sequence_ordinal": 3, "tx_sequence_time_stamp": 2}
        | {"tx_sequence_number": k}
        for k in reversed(numbers)
    ]
    return pa.Table.from_pylist(each)


def test_the_table_is_seen_without_spark(tmp_path: Path) -> None:
    table = tmp_path / "table"
    assert rows_of(table) == 0
    for count, numbers in ((2, (1, 2)), (4, (3, 4))):
        write_deltalake(table, rows(*numbers), mode="append")
        assert rows_of(table) == count
    received = messages_of(table)
    assert [message.k for message in received] == [1, 2, 3, 4], "in the order of their arrival"
    assert {message.tx[0] for message in received} == {2 << 32 | 3}
    assert [message.size for message in received] == [1, 2, 3, 4]


# The command


def test_a_campaign_that_fails_keeps_its_figures_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail(*_: object) -> None:
        raise CampaignFailed("the export does not make its folder")

    monkeypatch.setattr(PipelineCampaign, "run", fail)
    monkeypatch.setattr(pipeline, "Settings", functools.partial(pipeline.Settings, artefacts=tmp_path))
    assert main(["--board", "cpython", "--messages", "5", "--kills", "0", "--seed", "3", "--json"]) == 1
    captured = capsys.readouterr()
    said = json.loads(captured.out)
    assert "FAILED: the export does not make its folder" in captured.err
    assert Path(said["artefacts"]).parent == tmp_path
    assert json.loads((Path(said["artefacts"]) / "figures.json").read_text())["failure"] == said["failure"]
    assert "--- the last lines of the export:" in (Path(said["artefacts"]) / "logs.txt").read_text()
