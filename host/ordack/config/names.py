r"""Names of queues as people write them, in every spelling of MSMQ and any case of letters.

`line1`, `private$\line1`, `.\private$\line1`, `thismachine\private$\line1` and `DIRECT=OS:.\private$\line1` name
the same queue, each also with `FormatName:` in front. A name that can mean nothing here is refused with the spelling
that can.
"""

from __future__ import annotations

import ipaddress
import re

from mqqb.names import check_queue

from ordack.config import machine
from ordack.text import legible

DEAD_LETTER = "system$;deadletter"
DEAD_XACT = "system$;deadxact"
JOURNAL = "system$;journal"
HERE = "DIRECT=OS:.\\private$\\"  # and the name of a queue: its format name for who sends to it from here
_SYSTEM = {"deadletter$": DEAD_LETTER, "xactdeadletter$": DEAD_XACT, "journal$": JOURNAL}  # as path names have them
_LABEL = re.compile(r"formatname:\s*", re.IGNORECASE)
_PLACE = re.compile(r"(?:(?:DIRECT=)?(?:TCP|OS):)?(?P<host>[^\\]+)\\(?P<rest>.+)", re.IGNORECASE)
_KIND = re.compile(r"(DIRECT|PUBLIC|PRIVATE|MULTICAST|DL|MACHINE|CONNECTOR)=", re.IGNORECASE)
_PRIVATE = "private$\\"


class BadName(ValueError):
    """A queue name or address that breaks the rules of wire.md 1.5; the text says which."""


def queue_name(text: str) -> str:
    """The bare name in `line1` or `private$\\line1`; raises BadName with what is wrong with it."""
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
    """The name in the store of the queue here that a person means; whether there is one, and whether a new one may be
    called so, is not looked at. Raises BadName."""
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
    if host != "." and not machine.has(host.lower()):
        raise BadName(
            f"{text} is a queue of the machine {host}: this command is about queues here, such as line1 or "
            ".\\private$\\line1"
        )
    return _on_machine(text, host, place["rest"])


def destination(text: str) -> str:
    """What a person means to send to: the name of a queue here, or a format name (DIRECT= or PRIVATE=)."""
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
    if machine.has(place["host"].lower()) and ":" not in name:
        return queue
    try:
        ipaddress.ip_address(place["host"])
    except ValueError:
        return f"DIRECT=OS:{place['host']}\\private$\\{queue}"
    return f"DIRECT=TCP:{place['host']}\\private$\\{queue}"


def _bare(name: str) -> str:
    return name[len(_PRIVATE) :] if name.lower().startswith(_PRIVATE) else name


def _on_machine(text: str, host: str, rest: str) -> str:
    """The name of a queue by what stands behind the machine."""
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
