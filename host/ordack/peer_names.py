"""What people call boards and queue managers: the names of `[names]`, shown wherever a GUID shows."""

from __future__ import annotations

import re
from collections.abc import Mapping

_GUID = re.compile(
    r"(?<![0-9A-Fa-f-])\{?([0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12})\}?(?![0-9A-Fa-f-])(?:\\[0-9A-Fa-f]+)?"
)


class PeerNames:
    """names: by GUID in lower case without braces."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    @classmethod
    def kept(cls, names: Mapping[str, Mapping[str, str]]) -> PeerNames:
        """Those that the queue manager has kept in the store (`Store.names`)."""
        return cls(names.get("names", {}))

    def of(self, text: str) -> str | None:
        """The name for the first GUID of a text, such as a GUID or a format name; None: it has none."""
        found = _GUID.search(text)
        return self._names.get(found[1].lower()) if found else None

    def added(self, text: str) -> str:
        """The text with the name in parentheses behind each GUID that has one, behind its queue number if there is
        one."""
        return _GUID.sub(self._with_name, text) if self._names else text

    def _with_name(self, found: re.Match[str]) -> str:
        name = self._names.get(found[1].lower())
        return f"{found[0]} ({name})" if name else found[0]
