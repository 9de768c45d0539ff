"""One list of message classes, complete, with a name and plain words for each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ordack.config import classes

RULES = Path(__file__).parents[1] / "rules.txt"


@pytest.mark.rule("B-365", "B-366", "B-368", "B-374", "B-378", "B-381", "B-382", "B-386")
def test_every_class_of_the_specification_has_its_name_and_words() -> None:
    known = {
        int(number, 16): name
        for name, number in re.findall(r"MQMSG_CLASS_(\w+)[^=]*= (0x[0-9A-F]{4})", RULES.read_text())
    }
    assert len(known) == 23
    assert known == classes.NAMES
    for number in known.keys() - {0}:
        said = classes.words(number)
        assert said.endswith(f" (class 0x{number:04X} {known[number]})")
        assert "class" not in said.partition(" (class")[0]
        assert "{" not in said


@pytest.mark.rule("B-388")
def test_unknown_message_class_is_shown_as_number() -> None:
    assert classes.name(0x80E1) is None
    assert classes.words(0x80E1) == "it failed for a reason of another program (class 0x80E1)"
    assert classes.words(0x0003) == "a message of a kind of its application's own (class 0x0003)"
