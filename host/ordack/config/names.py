r"""Names of queues as people write them: every spelling of MSMQ, in any case.

`line1`, `private$\line1`, `.\private$\line1`, `thismachine\private$\line1` and `DIRECT=OS:.\private$\line1` name
the same queue, also with the prefix `FormatName:`. The error for any other name shows a valid spelling.

Also: names of boards, and formatting of names and numbers in texts for people.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
import socket
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cached_property

from mqqb.names import check_queue

DEAD_LETTER = "system$;deadletter"
DEAD_XACT = "system$;deadxact"
JOURNAL = "system$;journal"
HERE = "DIRECT=OS:.\\private$\\"  # prefix of a local queue's format name
_SYSTEM = {"deadletter$": DEAD_LETTER, "xactdeadletter$": DEAD_XACT, "journal$": JOURNAL}  # by their path names
_LABEL = re.compile(r"formatname:\s*", re.IGNORECASE)
_PLACE = re.compile(r"(?:(?:DIRECT=)?(?:TCP|OS):)?(?P<host>[^\\]+)\\(?P<rest>.+)", re.IGNORECASE)
_KIND = re.compile(r"(DIRECT|PUBLIC|PRIVATE|MULTICAST|DL|MACHINE|CONNECTOR)=", re.IGNORECASE)
_PRIVATE = "private$\\"


class BadName(ValueError):
    """A queue name or address that breaks a rule of wire.md 1.5. The text names the rule."""


def is_own_address(address: str) -> bool:
    """Test whether an IP address or host name, in lower case, belongs to this machine. Addresses change (DHCP), so the
    kernel is asked each time. Only `localhost` and the machine's own name, with or without domain, count: nothing is
    looked up or sent."""
    try:
        ip = ipaddress.ip_address(address.strip("[]"))
    except ValueError:
        own = socket.gethostname().lower()
        return address in ("localhost", own, own.partition(".")[0])
    with socket.socket(socket.AF_INET if ip.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as asker:
        try:
            asker.connect((str(ip), 9))  # a datagram socket only asks the kernel for the route
            source = asker.getsockname()[0]
        except OSError:
            return False
    return ipaddress.ip_address(source.partition("%")[0]) == ip  # the route to an own address starts there


def queue_name(text: str) -> str:
    """Return the bare name of `line1` or `private$\\line1`. Raise BadName with the mistake."""
    name = _bare(text)
    if not 1 <= len(name) <= 124:
        raise BadName(f"queue name {text!r}: has {len(name)} characters; 1 to 124 are allowed")
    try:
        check_queue(name)
    except ValueError as error:
        raise BadName(f'{error} (all are but \\ ; + , " and control characters)') from None
    if legible(name) != name:
        raise BadName(f"queue name {text!r}: it is not UTF-8")
    return name


def local_queue(text: str) -> str:
    """Return the store's name of the local queue that a person means. The queue need not exist, and the name may be
    invalid for a new queue. Raises BadName."""
    name = _bare(_LABEL.sub("", text, 1))
    _check_backslashes(text, name)
    if "\\" not in name:
        if _KIND.match(name):
            raise BadName(f"{text} is no name of a queue here: use the queue's name; `ordack queue list` shows them")
        return name
    place = _PLACE.fullmatch(name)
    host = place["host"] if place else ""
    if not place or "=" in host:
        raise BadName(f"{text} is no name of a queue here: name it as line1, private$\\line1 or .\\private$\\line1")
    if host != "." and not is_own_address(host.lower()):
        raise BadName(
            f"{text} is a queue of the machine {host}: this command is about queues here, such as line1 or "
            ".\\private$\\line1"
        )
    return _on_machine(text, host, place["rest"])


def destination(text: str) -> str:
    """Return a local queue's name or a format name (DIRECT= or PRIVATE=) for a person's destination. Raises BadName."""
    name = _LABEL.sub("", text, 1)
    _check_backslashes(text, name)
    kind = _KIND.match(name)
    if kind and kind[1].upper() in ("DIRECT", "PRIVATE"):
        return name
    if kind:
        raise BadName(
            f"{text}: {kind[1].upper()} names need a directory service or multicast; name a queue as "
            "DIRECT=OS:host\\private$\\queue"
        )
    place = _PLACE.fullmatch(name)
    if not place or name.lower().startswith(_PRIVATE) or place["host"] == ".":
        return local_queue(name)
    queue = _on_machine(text, place["host"], place["rest"])
    if is_own_address(place["host"].lower()) and ":" not in name:
        return queue
    try:
        ipaddress.ip_address(place["host"])
    except ValueError:
        return f"DIRECT=OS:{place['host']}\\private$\\{queue}"
    return f"DIRECT=TCP:{place['host']}\\private$\\{queue}"


def split_address(text: str) -> tuple[str, str] | None:
    """Split `press-7/commands` into the name of a board or queue manager, and its queue; None for other names."""
    name, slash, queue = text.partition("/")
    return (name, queue) if slash and "\\" not in text and not _KIND.match(_LABEL.sub("", text, 1)) else None


def _bare(name: str) -> str:
    return name[len(_PRIVATE) :] if name.lower().startswith(_PRIVATE) else name


def _on_machine(text: str, host: str, rest: str) -> str:
    """Return the queue's name from the text after the machine."""
    if rest.lower().startswith(_PRIVATE):
        return rest[len(_PRIVATE) :]
    if rest.lower().startswith("system$;"):
        return rest.lower()
    if rest.lower() in _SYSTEM:
        return _SYSTEM[rest.lower()]
    raise BadName(
        f"{text} names a public queue, which needs a directory service; the private one of that name is "
        f"{host}\\private$\\{rest}"
    )


def _check_backslashes(text: str, name: str) -> None:
    if "\\" not in name and "private$" in name.lower():
        raise BadName(
            f"{text} has no backslash, perhaps because a shell took it away: write the name in single "
            "quotes, as in 'private$\\line1'"
        )


# Names of boards and queue managers from [names], shown with each GUID. The last group of a board's GUID identifies its
# chip. So a board with an erased outbox is still known: "press-3, another outbox".

_GUID = re.compile(
    r"(?<![0-9A-Fa-f-])\{?([0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12})\}?(?![0-9A-Fa-f-])(?:\\[0-9A-Fa-f]+(?:/\d+)?)?"
)


def is_guid(text: str) -> bool:
    """Test for a GUID, which is the host in a direct name of a queue manager that is reached by any session with it."""
    return _GUID.fullmatch(text) is not None


def folded(name: str) -> str:
    """Return the form in which names are compared: without case, and without the ways to encode a character."""
    return unicodedata.normalize("NFKC", name).casefold()


class PeerNames:
    """Names by GUID in lower case without braces. names: those of the configuration, which override. claimed: those
    that peers have announced."""

    def __init__(self, names: Mapping[str, str], claimed: Mapping[str, str] | None = None) -> None:
        self._names = names
        self._claimed = {} if claimed is None else claimed

    @cached_property
    def _boards(self) -> dict[str, str]:
        """Names by chip. Computed on demand: the log makes one object for each line, and most never need it."""
        return {_chip(guid): name for guid, name in self._names.items() if _is_board(guid)}

    def guid_of(self, name: str) -> str:
        """Return the GUID of a name in any case, or of a GUID; "" if there is none."""
        if found := _GUID.fullmatch(name):
            return found[1].lower()
        return self._guids.get(folded(name), "")

    @cached_property
    def _guids(self) -> dict[str, str]:
        """GUIDs by folded name."""
        return {folded(name): guid for names in (self._claimed, self._names) for guid, name in names.items()}

    def known(self) -> list[str]:
        """Return all names, sorted."""
        return sorted({*self._claimed.values(), *self._names.values()})

    def unknown(self, name: str) -> BadName:
        """Return the error for a name that nobody has, with the known names most like it."""
        known = {folded(one): one for one in self.known()}
        like = [known[one] for one in difflib.get_close_matches(folded(name), known, 3)]
        meant = f"known names are {first_of(like or list(known.values()), 3)}" if known else "no name is known"
        return BadName(
            f"no board or queue manager has the name {name!r}: {meant}; `ordack status` shows them. [names] in "
            "ordack.toml names a GUID, --next-hop of `ordack serve` an address. For a host, write "
            f"'{name}\\private$\\QUEUE'"
        )

    def __bool__(self) -> bool:
        """Test whether there are names."""
        return bool(self._names or self._claimed)

    def of(self, text: str) -> str | None:
        """Return the name for the first GUID of a text, such as a GUID or a format name; None if it has none."""
        found = _GUID.search(text)
        return self._name(found[1].lower()) if found else None

    def added(self, text: str) -> str:
        """Add the name in parentheses behind each GUID that has one, and behind the number of a queue or message that
        follows the GUID."""
        return _GUID.sub(self._with_name, text) if self else text

    def _with_name(self, found: re.Match[str]) -> str:
        name = self._name(found[1].lower())
        return f"{found[0]} ({name})" if name else found[0]

    def of_chip(self, text: str) -> str | None:
        """Return the name of a board with another GUID on the same chip; None if there is none."""
        guid = text.strip("{}").lower()
        known = guid in self._names or guid in self._claimed or not _is_board(guid)
        return None if known else self._boards.get(_chip(guid))

    def _name(self, guid: str) -> str | None:
        board = self.of_chip(guid)
        return self._names.get(guid) or self._claimed.get(guid) if board is None else f"{board}, another outbox"


def _is_board(guid: str) -> bool:
    """Test for a UUID of version 8 (`fresh_guid` in firmware/ordack/node/storage/replay.py)."""
    return guid[14:15] == "8"


def _chip(guid: str) -> str:
    return guid[-12:]


# ---- text for people


def legible(text: str) -> str:
    r"""Make text valid for SQLite, JSON and terminals: a lone surrogate, as in packets and arguments, becomes the six
    characters \udXXX. All external text passes here."""
    return text.encode("utf-8", "backslashreplace").decode()


def printable(text: str, line_end: str = "\\n") -> str:
    """Make text safe for terminals and line-based logs: escape unprintable characters, and replace line ends by
    `line_end`."""
    return "".join(
        sign if sign.isprintable() else line_end if sign == "\n" else sign.encode("unicode_escape").decode()
        for sign in legible(text)
    )


def first_of(names: Sequence[str], at_most: int) -> str:
    """Return the first names and the number of the rest."""
    return ", ".join(names[:at_most]) + (f" and {len(names) - at_most:,} more" if len(names) > at_most else "")


def counted(number: int, noun: str, grouped: bool = False) -> str:
    """Return 1 message, 2 messages, 2 batches; 2,000 messages if grouped."""
    text = f"{number:,}" if grouped else str(number)
    return f"{text} {noun}{'' if number == 1 else 'es' if noun.endswith('ch') else 's'}"
