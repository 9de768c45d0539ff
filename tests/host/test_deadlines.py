"""When it is known at the latest whether a message was received; and clocks that are not set."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from ordack.broker.serve_log import ServeLog
from ordack.cli import serve
from ordack.client import Client
from ordack.store import StoreError

from tests.support.command import as_json, ordack, set_numbers

AWAY, HERE = "DIRECT=OS:plant\\private$\\q", "line1"
LATER_S = 600  # that a busy machine may need between two looks at the clock


def _shown(store: Path, message_id: int) -> dict[str, Any]:
    [told] = as_json("message", "state", "--store", store, message_id)
    return {name: told[name] for name in ("state", "deadline", "final")}


@pytest.mark.rule("C-11", "C-12", "C-13", "C-14", "C-71", "C-80", "C-81", "C-87")
@pytest.mark.parametrize(
    ("destination", "properties", "numbers", "after"),
    [
        (AWAY, {"dead_letter": True, "ttbr": 6000}, {}, 12000),
        (AWAY, {"journal": True, "ttbr": 6000, "ttrq": 1000}, {}, 7000),
        (AWAY, {"dead_letter": True, "ttbr": 6000, "ttrq": 36000}, {}, 12000),
        (AWAY, {"dead_letter": True, "ttbr": 6000}, {"XactDelayReceiveNack": 3000}, 9000),
        (HERE, {"dead_letter": True, "ttbr": 6000}, {}, 6000),
        (AWAY, {"dead_letter": True}, {}, None),
        (AWAY, {"ttbr": 6000}, {}, None),
        (HERE, {}, {}, None),
    ],
)
def test_the_deadline_is_shown_to_operators_and_applications(
    store: Path, destination: str, properties: dict[str, Any], numbers: dict[str, int], after: int | None
) -> None:
    with Client(store) as client:
        set_numbers(client.store, **numbers)
        begin = int(time.time())
        message_id = client.send(destination, b"x", **properties).message_id
        state = client.state(message_id)
    assert state
    shown = _shown(store, message_id)
    assert (shown["deadline"], shown["final"]) == (state.deadline, state.is_final)
    assert not state.is_final
    text = ordack("message", "state", "--store", store, message_id).stdout
    assert "; not final" in text
    if after is None:
        assert state.deadline is None
    else:
        assert state.deadline is not None
        assert begin + after <= state.deadline < begin + after + LATER_S
        assert datetime.fromtimestamp(state.deadline).astimezone().isoformat(" ") in text


def test_nothing_is_sent_while_the_clock_is_not_set(store: Path) -> None:
    with Client(store, clock=lambda: 1000) as client:
        with pytest.raises(StoreError, match="set it first"):
            client.send(HERE, b"x")
        assert list(client.queue(HERE).peek()) == []


def test_serve_waits_until_the_clock_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = [2e9, 5.0, 4.0]
    said: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: shown.pop() if len(shown) > 1 else shown[0])
        patch.setattr(time, "sleep", lambda _seconds: None)
        serve._open_when_there_is_room(tmp_path / "store", True, ServeLog(said.append)).close()
    assert shown == [2e9]
    assert "the clock of this machine is not set" in said[0]
