"""The options that Spark gives to this package's data sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class OptionError(Exception):
    """An option of the data source cannot be used; the text names it, its value and what to do."""


def options_of(given: Mapping[str, str], known: Sequence[str]) -> dict[str, str]:
    """The options, by their names in `known`. Raises OptionError for any other."""
    names = {name.lower(): name for name in known}
    unknown = next((name for name in given if name.lower() not in names), None)
    if unknown is not None:
        raise OptionError(f"there is no option {unknown.lower()!r}; there are {', '.join(known)}")
    return {names[name.lower()]: value for name, value in given.items()}
