"""Seeds: those that a person names, and others."""

import pytest

from hil.dice import new_seed


def test_seed_variable_sets_seed_and_invalid_seed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEED", "71")
    assert new_seed() == 71
    monkeypatch.setenv("SEED", "7l")
    with pytest.raises(SystemExit, match="SEED is '7l'"):
        new_seed()
    monkeypatch.setenv("SEED", "")
    assert len({new_seed() for _ in range(9)}) > 1
