"""The verdict cannot say OK wrongly: every planted fault, alone, turns it, and each is named."""

import base64
import binascii
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hil.faults import DOWN, FIN, RST, UP, Cut, CutMade
from hil.report import Comparison, Entry, Erased, Figures, compare, read_ledger, read_received

SOURCE = "00000000-0000-0000-0000-000000000001"
COUNT = 12


def body(k: int) -> bytes:
    return bytes([k]) * (k % 5)


def entry(k: int) -> Entry:
    return Entry(k, len(body(k)), binascii.crc32(body(k)), k)


def message(k: int, **changes: Any) -> dict[str, Any]:
    """What `ordack receive --json` prints for reading k."""
    return {
        "source": SOURCE,
        "message_id": k,
        "label": f"reading {k}",
        "body_base64": base64.b64encode(body(k)).decode(),
        "class": 0,
        "priority": 0,
        "delivery": "transactional",
        "tx_sequence_id": (7 << 32) + 1,
        "tx_sequence_number": k,
        **changes,
    }


def judge(messages: list[dict[str, Any]], ledger: list[Entry] | None = None) -> Comparison:
    """The comparison of the queue's messages, as printed, with the ledger of `COUNT` readings."""
    text = "".join(json.dumps(one) + "\n" for one in messages)
    return compare(COUNT, [entry(k) for k in range(1, COUNT + 1)] if ledger is None else ledger, read_received(text))


def good() -> list[dict[str, Any]]:
    return [message(k) for k in range(1, COUNT + 1)]


def figures(comparison: Comparison | None = None, **changes: Any) -> Figures:
    """The figures of a campaign in which everything went well."""
    cut = Cut(0, UP, 10, RST, 10)
    made = [CutMade(n, way, 10, kind, cut) for n, (way, kind) in enumerate([(UP, RST), (DOWN, FIN), (UP, RST)])]
    wanted: dict[str, Any] = {
        "comparison": comparison or judge(good()),
        "cuts": made,
        "board_kills": 2,
        "manager_kills": 2,
    }
    return Figures(7, COUNT, "unix", "unix: a board", 3, 2, 2, **{**wanted, **changes})


# Comparison


def test_once_and_in_order() -> None:
    result = judge(good())
    assert result.faults == {}
    assert result.line() == "12 sent, 12 received once, in order, 0 lost, 0 duplicated"
    assert figures(result).ok


@given(st.data())
def test_lost(data: st.DataObject) -> None:
    gone = data.draw(st.sets(st.integers(1, COUNT), min_size=1))
    result = judge([one for one in good() if one["message_id"] not in gone])
    assert result.faults == {"lost": sorted(gone)}
    assert f"{COUNT - len(gone)} received once, in order, {len(gone)} lost, 0 duplicated" in result.line()
    assert not figures(result).ok


@given(st.integers(0, COUNT - 1), st.integers(0, COUNT))
def test_duplicated(which: int, where: int) -> None:
    messages = good()
    messages.insert(where, messages[which])
    result = judge(messages)
    assert result.duplicated == [which + 1]
    assert result.once == COUNT - 1
    assert set(result.faults) <= {"duplicated", "reordered"}
    assert not figures(result).ok


@given(st.permutations(range(COUNT)).filter(lambda order: order != list(range(COUNT))))
def test_reordered(order: list[int]) -> None:
    result = judge([good()[index] for index in order])
    assert set(result.faults) == {"reordered"}
    assert "not in order" in result.line()
    assert not figures(result).ok


@pytest.mark.parametrize("number", [5, 4, 0])
def test_transactional_numbers_must_rise_even_if_readings_do(number: int) -> None:
    messages = good()
    messages[5]["tx_sequence_number"] = number
    result = judge(messages)
    assert result.reordered == [6]
    assert not figures(result).ok


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"body_base64": base64.b64encode(b"\x04" * 3).decode()}, "reading 4: 3 bytes instead of 4"),
        ({"body_base64": base64.b64encode(b"\x04" * 5).decode()}, "reading 4: 5 bytes instead of 4"),
        ({"body_base64": ""}, "reading 4: 0 bytes instead of 4"),
        ({"body_base64": base64.b64encode(b"\x04\x04\x05\x04").decode()}, "reading 4: CRC-32 "),
        ({"message_id": 5}, "reading 4: MessageID 5"),
        ({"source": SOURCE[:-1] + "2"}, "reading 4: source 00000000-0000-0000-0000-000000000002"),
        ({"delivery": "express"}, "reading 4: express, class 0"),
        ({"class": 2}, "reading 4: transactional, class 2"),
    ],
)
def test_corrupt(changes: dict[str, Any], reason: str) -> None:
    messages = good()
    messages[3].update(changes)
    result = judge(messages)
    assert list(result.faults) == ["corrupt"]
    assert result.corrupt[0].startswith(reason)
    assert "1 corrupt" in result.line()
    assert not figures(result).ok


@pytest.mark.parametrize("extra", [message(13), message(4, label="hello"), message(4, label="reading 4 "), message(0)])
@pytest.mark.parametrize("where", [0, 5, COUNT])
def test_unexpected(extra: dict[str, Any], where: int) -> None:
    messages = good()
    messages.insert(where, extra)
    result = judge(messages)
    assert list(result.faults) == ["unexpected"]
    assert (result.received, result.once) == (COUNT + 1, COUNT)
    assert "1 unexpected" in result.line()
    assert not figures(result).ok


@pytest.mark.parametrize("missing", [1, 6, COUNT])
def test_a_reading_that_the_application_did_not_record(missing: int) -> None:
    ledger = [entry(k) for k in range(1, COUNT + 1) if k != missing]
    result = judge(good(), ledger)
    assert result.unrecorded == [missing]
    assert result.unexpected
    assert not figures(result).ok
    neither = judge([one for one in good() if one["message_id"] != missing], ledger)
    assert neither.unrecorded == [missing]
    assert not figures(neither).ok


def test_duplicate_or_misordered_ledger_entry_fails_report() -> None:
    entries = [entry(k) for k in range(1, COUNT + 1)]
    assert judge(good(), [*entries, entry(COUNT)]).misrecorded == [COUNT]
    assert judge(good(), [entries[1], entries[0], *entries[2:]]).misrecorded == [2, 1]
    assert not figures(judge(good(), [*entries, entry(COUNT)])).ok


# Erased outboxes

OTHER = "00000000-0000-0000-0000-000000000002"


def after_an_erasure(messages: list[dict[str, Any]], **known: set[int]) -> Comparison:
    """Reading 6 was accepted last before; what followed came from another source."""
    erased = Erased(bases=frozenset({6}), **{name: frozenset(value) for name, value in known.items()})
    late = [one | {"source": OTHER, "tx_sequence_id": 1} if one["message_id"] > 6 else one for one in messages]
    text = "".join(json.dumps(one) + "\n" for one in late)
    return compare(COUNT, [entry(k) for k in range(1, COUNT + 1)], read_received(text), erased)


def test_readings_lost_with_erased_outbox_are_no_fault() -> None:
    left = [one for one in good() if one["message_id"] not in (5, 6)]
    result = after_an_erasure(left, held={4, 5, 6}, claimed={1, 2, 3, 4})
    assert (result.faults, result.erased) == ({}, [5, 6])
    assert result.line().endswith("0 lost, 0 duplicated, 2 gone with an outbox or a store")
    assert figures(result).ok
    assert after_an_erasure(left, held={5}).faults == {"lost": [6]}
    assert after_an_erasure(left, held={5, 6}, claimed={1, 6}).faults == {"false": [6]}
    assert not figures(after_an_erasure(left, held={5, 6}, claimed={6})).ok


def test_only_an_erasure_begins_another_source_and_only_once() -> None:
    assert after_an_erasure(good()).faults == {}
    assert "corrupt" in judge([one | {"source": OTHER} if one["message_id"] > 6 else one for one in good()]).faults
    back = [*good()[:9], *(one | {"source": SOURCE[:-1] + "3"} for one in good()[9:])]
    text = "".join(json.dumps(one) + "\n" for one in back)
    erased = Erased(bases=frozenset({9}))
    assert "corrupt" not in compare(COUNT, [entry(k) for k in range(1, 13)], read_received(text), erased).faults
    assert "corrupt" in judge(back).faults


def test_in_flight_reading_may_duplicate_after_erasure() -> None:
    before = [*good()[:6], message(7, message_id=99), *good()[6:]]
    assert after_an_erasure(before).faults == {}
    assert "duplicated" in judge(before).faults


# Reading


def test_ledger() -> None:
    text = b"1 0 00000000 7\n2 65536 deadbeef 8\n3 5 0000000a 4294967295 found\n4 77 01"
    last = Entry(3, 5, 10, 4294967295, found=True)
    assert read_ledger(text) == [Entry(1, 0, 0, 7), Entry(2, 65536, 0xDEADBEEF, 8), last]
    assert read_ledger(b"") == []
    assert read_ledger(b"1 0 00000000 7") == []


@pytest.mark.parametrize("line", [b"1 2\n", b"\n", b"1 0 00000000 lost\n", b"x 0 00000000\n", b"1 0 0000000G\n"])
def test_a_ledger_with_a_broken_line_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match="not a line of a ledger"):
        read_ledger(b"1 0 00000000\n" + line)


# Figures


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"cuts": []}, "0 cuts instead of 3"),
        ({"board_kills": 1}, "the board was killed 1 times instead of 2"),
        ({"manager_kills": 3}, "the queue manager was killed 3 times instead of 2"),
        ({"failure": "no progress"}, "no progress"),
    ],
)
def test_too_few_faults_prove_nothing(changes: dict[str, Any], reason: str) -> None:
    result = figures(**changes)
    assert result.shortcomings() == [reason]
    assert not result.ok


def test_without_a_comparison_nothing_is_well() -> None:
    result = figures()
    result.comparison = None
    assert result.shortcomings() == ["the queue was not compared with the ledger"]
    assert json.loads(result.to_json())["line"] is None
