"""The options that Spark gives to this package's data sources."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pyspark.sql.types import StructType

_OF_TABLE = "provider"  # is among what Spark gives when a table is made in a catalog, and only then


class OptionError(Exception):
    """An option of the data source cannot be used; the text names it, its value and what to do."""


def options_of(given: Mapping[str, str], known: Sequence[str]) -> dict[str, str]:
    """Those that are meant for the data source, by the names in `known`. Raises OptionError for a name that is not.

    Of a table in a catalog, Spark mixes them with what it keeps of the table (owner, provider, location, whatever
    TBLPROPERTIES says); those that OPTIONS says are there a second time, behind "option.". Names with a dot are
    Spark's and Hive's own, such as serialization.format.
    """
    names = {name.lower(): name for name in known}
    said = {name.lower(): value for name, value in given.items()}
    found = {}
    for name, value in said.items():
        asked = name.removeprefix("option.")
        if asked in names:
            found[names[asked]] = value
        elif asked != name or not (_OF_TABLE in said or "." in name):
            raise OptionError(f"there is no option {asked!r}; there are {', '.join(known)}")
    if _OF_TABLE in said and found.get("path", "").startswith("file:/"):  # made of a path, and nothing in it escaped
        found["path"] = found["path"].removeprefix("file:")
    return found


def noted(given: Mapping[str, str], options: Mapping[str, str]) -> str:
    """What the comment of a column is to say: "" if no table is made. Spark keeps a table's options, but does not
    give them to who reads from it; the columns are all that it gives."""
    return json.dumps(options) if _OF_TABLE in map(str.lower, given) else ""


def recalled(given: Mapping[str, str], schema: StructType, column: str) -> dict[str, str]:
    """The options with which to read: those given, and those noted at this column when the table was made."""
    try:
        kept = json.loads(schema[column].metadata["comment"])
    except (KeyError, ValueError):
        kept = {}
    return {**(kept if isinstance(kept, dict) else {}), **given}
