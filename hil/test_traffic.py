"""Traffic is judged by the rules of windows and acknowledgements, whatever the queue holds in the end."""

import re
from pathlib import Path
from typing import Any

import pytest

from hil.scenario import ORDACK
from hil.traffic import CAPTURE, judge, window_faults
from tests.support import capture_generator

UP, DOWN = "10.0.0.7:50000>10.0.0.1:1801", "10.0.0.1:1801>10.0.0.7:50000"
WINDOW = 4
Packet = dict[str, Any]


def packet(connection: str, kind: str = "UserMessage", **fields: Packet) -> Packet:
    return {"packet": kind, "connection": connection, "frame": 1, "fields": fields}


def opening() -> list[Packet]:
    parameters = {"WindowSize": WINDOW}
    packets = [packet(way, "EstablishConnection") for way in (UP, DOWN)]
    return packets + [packet(way, "ConnectionParameters", ConnectionParametersHeader=parameters) for way in (UP, DOWN)]


def messages(count: int) -> list[Packet]:
    return [packet(UP, UserHeader={})] * count


def acknowledgement(number: int, base: int, flags: int) -> Packet:
    names = ("AckSequenceNumber", "RecoverableMsgAckSeqNumber", "RecoverableMsgAckFlags")
    return packet(DOWN, "SessionAck", SessionHeader=dict(zip(names, (number, base, flags), strict=True)))


@pytest.mark.rule("B-118")
def test_full_window_is_no_fault_but_one_more_message_is() -> None:
    full = [*opening(), *messages(WINDOW), acknowledgement(2, 1, 0b11), *messages(2)]
    assert window_faults(full) == []
    assert len(window_faults([*full, *messages(1)])) == 1


@pytest.mark.rule("B-102", "B-103", "B-107")
@pytest.mark.parametrize(("base", "flags", "faults"), [(1, 0b101, 0), (0, 0, 0), (1, 0b100, 1), (1, 0, 1), (0, 1, 1)])
def test_an_acknowledgement_has_its_base_message(base: int, flags: int, faults: int) -> None:
    assert len(window_faults([*opening(), *messages(3), acknowledgement(3, base, flags)])) == faults


def test_reused_tcp_port_starts_new_window_check() -> None:
    assert window_faults([*opening(), *messages(WINDOW)] * 2) == []


@pytest.mark.skipif(not Path(ORDACK[0]).exists(), reason="`make setup` installs ordack")
def test_a_violation_that_the_audit_finds_is_found(tmp_path: Path) -> None:
    kinds = set()
    for violations in (False, True):
        folder = tmp_path / str(violations)
        made = capture_generator.generate(3, folder, violations=violations, faults=[])
        made.paths[0].rename(folder / CAPTURE)
        found = [sentence for sentence in judge(ORDACK, folder) if "`ordack capture audit`" in sentence]
        assert bool(found) is violations
        kinds = {planted.kind for planted in made.planted if planted.certain}
    assert kinds, "the capture has a planted violation"
    assert kinds <= {match[1] for sentence in found if (match := re.match(r"\d+ times (\w+)", sentence))}
