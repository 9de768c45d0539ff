"""Who may have what of the HTTP port: by which names browsers may know this machine, and who has the token.

A web page of somebody else, opened in a browser that reaches this port, must not read or do anything here. It cannot
give the token, which no browser adds by itself. And if the name of its own machine is made to mean this one (DNS
rebinding), that name still stands in the request.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import os
import re
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ordack.config import machine

TOKEN_MIN, TOKEN_MAX = 16, 256
ADDRESSES_MAX = 256  # of which wrong tokens are remembered
FORGET_S = 60.0  # after the last one
SLOWER_S = 0.5  # that each wrong token makes the next answer wait,
SLOWEST_S = 4.0  # up to this
NO_TOKEN = (
    'this needs a token, and none is set: write `http-token-file = "http-token"` into ordack.toml, make that file with '
    "`(umask 077; python3 -c 'import secrets; print(secrets.token_urlsafe())' > http-token)` in the same folder, and "
    "let `ordack serve` read its file again (SIGHUP), or start it again"
)


class BadToken(ValueError):
    """A file that holds no token; the text says why, and what to do."""


def read_token(path: Path | None) -> bytes:
    """The token in a file; b"" without one. Raises BadToken."""
    if path is None:
        return b""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise BadToken(f"{path}: it is no file: name one with the token in its only line")
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(TOKEN_MAX + 3)
    except OSError as error:
        raise BadToken(f"{path}: it cannot be read: {error.strerror or error}") from None
    if mode & 0o077:
        raise BadToken(
            f"{path}: others than its owner may use it (mode {stat.S_IMODE(mode):03o}): `chmod 600` it, and write a "
            "new token if somebody may have read it"
        )
    token = data.strip()
    if not TOKEN_MIN <= len(token) <= TOKEN_MAX or not re.fullmatch(rb"[!-~]+", token):
        raise BadToken(
            f"{path}: write one line of {TOKEN_MIN} to {TOKEN_MAX} visible ASCII characters without spaces, that "
            "nobody can guess"
        )
    return token


class Refusal(NamedTuple):
    """A status of HTTP, and why. is_guess: a token was given, and is the wrong one."""

    code: int
    reason: str
    is_guess: bool = False


class Guard:
    """names: by which browsers may know this machine, besides its addresses and its own names. token: what must be
    given to see or do more than others; b"": nobody can. For the thread of one event loop; `become` is for any."""

    def __init__(self, names: Iterable[str] = (), token: bytes = b"") -> None:
        self.become(names, token)
        self._failed: dict[str, tuple[int, float]] = {}  # by address: how often, and when last

    def become(self, names: Iterable[str], token: bytes) -> bool:
        """Go by these from now on. Is the token another one than before?"""
        before = getattr(self, "_token", token)
        self._names = frozenset(names)
        self._token = token
        return token != before

    @property
    def has_token(self) -> bool:
        """Can somebody see and do more than others?"""
        return bool(self._token)

    def is_here(self, host: bytes) -> bool:
        """Does the header Host name this machine? An IP address always does: no name was looked up for it."""
        name = _name_in(host)
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._names or machine.has(name)
        return True

    def is_from_here(self, origin: bytes, host: bytes) -> bool:
        """Is the header Origin, if there is one, that of a page which came from this port, with this header Host? A
        reverse proxy may have changed Host: then the page's name must be one of the configured ones."""
        place = origin.rpartition(b"://")[2].lower()
        return not origin or place == host.lower() or _name_in(place) in self._names

    async def refusal(self, authorization: bytes, address: str) -> Refusal | None:
        """Why whoever gives this header Authorization may not have more than others; None if he may. A wrong token
        makes the next answer to its address later, whatever token that has."""
        if not self._token:
            return Refusal(403, NO_TOKEN)
        kind, _, given = authorization.partition(b" ")
        if kind.lower() != b"bearer":
            return Refusal(401, "this needs the token in the file that http-token-file in ordack.toml names")
        failed, last = self._failed.get(address, (0, 0.0))
        if failed and time.monotonic() - last < FORGET_S:
            await asyncio.sleep(min(failed * SLOWER_S, SLOWEST_S))
        if hmac.compare_digest(given.strip(), self._token):
            self._failed.pop(address, None)
            return None
        failed = self._failed.pop(address, (0, 0.0))[0]
        if len(self._failed) >= ADDRESSES_MAX:
            del self._failed[next(iter(self._failed))]
        self._failed[address] = failed + 1, time.monotonic()
        return Refusal(401, "this is not the token", True)


def _name_in(place: bytes) -> str:
    """The host in HOST:PORT."""
    text = place.decode("latin-1").lower()
    return text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0].rstrip(".")
