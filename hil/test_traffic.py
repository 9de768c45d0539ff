"""Traffic is judged by the rules of windows and acknowledgements, whatever the queue holds in the end."""

from typing import Any

import pytest

from hil.traffic import window_faults

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
def test_a_window_that_is_full_is_no_fault_and_one_message_more_is() -> None:
    full = [*opening(), *messages(WINDOW), acknowledgement(2, 1, 0b11), *messages(2)]
    assert window_faults(full) == []
    assert len(window_faults([*full, *messages(1)])) == 1


@pytest.mark.rule("B-102", "B-103", "B-107")
@pytest.mark.parametrize(("base", "flags", "faults"), [(1, 0b101, 0), (0, 0, 0), (1, 0b100, 1), (1, 0, 1), (0, 1, 1)])
def test_an_acknowledgement_has_its_base_message(base: int, flags: int, faults: int) -> None:
    assert len(window_faults([*opening(), *messages(3), acknowledgement(3, base, flags)])) == faults


def test_a_port_that_is_used_again_begins_anew() -> None:
    assert window_faults([*opening(), *messages(WINDOW)] * 2) == []
