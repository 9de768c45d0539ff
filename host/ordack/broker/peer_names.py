"""What people call boards and queue managers: the names of `[names]`, shown wherever a GUID shows.

The last group of a board's GUID is of its chip. So a board whose outbox was erased, or that has several, is known by
its name, too: "press-3, another outbox"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property

_GUID = re.compile(
    r"(?<![0-9A-Fa-f-])\{?([0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12})\}?(?![0-9A-Fa-f-])(?:\\[0-9A-Fa-f]+(?:/\d+)?)?"
)


class PeerNames:
    """names: by GUID in lower case without braces."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    @cached_property
    def _boards(self) -> dict[str, str]:
        """By the chip; most never ask for it, and the log makes one of this for each line."""
        return {_chip(guid): name for guid, name in self._names.items() if _is_board(guid)}

    @classmethod
    def kept(cls, names: Mapping[str, Mapping[str, str]]) -> PeerNames:
        """Those that the queue manager has kept in the store (`Store.names`)."""
        return cls(names.get("names", {}))

    def __bool__(self) -> bool:
        """Are there any?"""
        return bool(self._names)

    def of(self, text: str) -> str | None:
        """The name for the first GUID of a text, such as a GUID or a format name; None: it has none."""
        found = _GUID.search(text)
        return self._name(found[1].lower()) if found else None

    def added(self, text: str) -> str:
        """The text with the name in parentheses behind each GUID that has one, behind the number of a queue
        or message that follows it."""
        return _GUID.sub(self._with_name, text) if self._names else text

    def _with_name(self, found: re.Match[str]) -> str:
        name = self._name(found[1].lower())
        return f"{found[0]} ({name})" if name else found[0]

    def of_chip(self, text: str) -> str | None:
        """The name of the board whose GUID this is not, but whose chip it is; None: there is none."""
        guid = text.strip("{}").lower()
        known = guid in self._names or not _is_board(guid)
        return None if known else self._boards.get(_chip(guid))

    def _name(self, guid: str) -> str | None:
        board = self.of_chip(guid)
        return self._names.get(guid) if board is None else f"{board}, another outbox"


def _is_board(guid: str) -> bool:
    """Is it a UUID of version 8 (`fresh_guid` in firmware/ordack/node/replay.py)?"""
    return guid[14:15] == "8"


def _chip(guid: str) -> str:
    return guid[-12:]
