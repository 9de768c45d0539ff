"""The radio that always says that it is connected, as the node's Wi-Fi and the campaign see it."""

import json

import pytest

from hil.boards import Line, Log
from hil.progress import Progress
from hil.radio import Radio
from hil.sensor import ALWAYS, say


def test_it_is_connected_from_when_it_associates_until_it_is_told_to_leave() -> None:
    """Whatever its access point does: it is never asked."""
    radio = Radio(say)
    assert (radio.isconnected(), radio.status(), radio.ifconfig()[0]) == (False, 0, "0.0.0.0")
    radio.active(True)
    assert not radio.isconnected(), "its power alone does not associate it"
    radio.config(pm=Radio.PM_NONE)
    for leave in (radio.disconnect, lambda: radio.active(False)):
        radio.connect("plant", "secret")
        radio.active(True)
        assert (radio.isconnected(), radio.status(), radio.ifconfig()[0]) == (True, 3, "127.0.0.1")
        leave()
        assert (radio.isconnected(), radio.status()) == (False, 0)


def test_the_campaign_hears_each_association_and_no_password(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALWAYS, "campaign", "a1")
    radio, log, progress = Radio(say), Log(), Progress("a1")
    for life in (1, 2):
        radio.connect("plant", "secret")
        for line in capsys.readouterr().out.splitlines():
            assert json.loads(line) == {"associated": "plant", "campaign": "a1"}
            log.append(Line(life, line))
        progress.read(log)
        assert progress.associations == life
