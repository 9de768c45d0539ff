"""Names that boards and queue managers announce as they connect, so that no line in [names] is needed.

A name is claimed, not proved. The first peer keeps a name that two peers claim, and so does each GUID its former names:
whoever repeats a GUID, which every packet shows, frees no name. A certificate with the name proves more than an earlier
claim. [names] overrides. Times: `wall` seconds since 1970.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from typing import Protocol

from mqqb import guids

from ordack.broker.serve_log import Operator
from ordack.broker.streams import FastSession
from ordack.config.config import Config
from ordack.config.names import PeerNames, folded, is_guid
from ordack.store import Claim, Store, StoreError, shown


class Announcing(Protocol):
    """A new session's link (links.PeerLink)."""

    address: str
    certificate: str
    session: FastSession

    @property
    def peer(self) -> bytes:
        """The GUID of the peer."""


CLAIMS_MAX = 20_000
CLAIMS_OF_PEER = 4  # names of one GUID, former ones included
IDLE_S = 30 * 86400  # a claim gives way to others after this time, if there is no room
RENEWED_S = 86400  # between two writes of the time of a claim
DISPUTES_MAX = 20  # shown
NAME = re.compile(r"\w(?:[\w .-]{0,62}[\w.-])?")  # nothing that ends a name in a line of the log, or in an address


class Announced:
    """The claims of a store. names: of all peers. disputes: sentences about the last peers that announced a name which
    another one has, by their GUIDs."""

    def __init__(self, store: Store, config: Config, operator: Operator) -> None:
        self._store = store
        self._operator = operator
        self._configured = config.names
        self._reserved = set(map(folded, config.names.values()))
        self._claims = {claim.folded: claim for claim in store.claims.all()}
        self._count = Counter(claim.guid for claim in self._claims.values())
        self._shown = shown(self._claims.values(), config.names)  # names by GUID
        self._full_until = 0
        self._changed: set[str] = set()  # folded names, not in the store yet
        self.names = PeerNames(config.names, self._shown)
        self.disputes: dict[bytes, str] = {}

    def take(self, link: Announcing, wall: int) -> None:
        """Take the name that the peer of this new session has announced, if any and if it may have the name."""
        guid = guids.guid_text(link.peer)
        if not link.session.announced or guid[1:-1].lower() in self._configured or link.peer == self._store.guid:
            return
        self.disputes.pop(link.peer, None)
        name = link.session.announced.decode("utf-8", "replace")
        key = folded(name)
        if not NAME.fullmatch(name) or is_guid(name):
            self._refuse(link, f"{guid} announces {name!r}, which is no name: use letters, digits, spaces and . - _")
            return
        held = self._claims.get(key)
        is_certified = bool(link.certificate) and folded(link.certificate) == key
        if key in self._reserved or (held and held.guid != link.peer and not is_certified):
            owner = "another one has in [names]" if held is None else f"{guids.guid_text(held.guid)} has"
            text = (
                f"{guid} at {link.address} announces the name {name}, which {owner}: give it another one with `ordack "
                f'board provision --replace`, or give it this one in ordack.toml: [names], "{guid}" = "{name}"'
            )
            self.disputes[link.peer] = text
            if len(self.disputes) > DISPUTES_MAX:
                del self.disputes[next(iter(self.disputes))]
            self._refuse(link, text)
        elif held and held.guid == link.peer:
            if self._shown.get(guid[1:-1].lower()) != name or is_certified > held.certified or self._is_old(held, wall):
                self._hold(Claim(key, name, link.peer, held.certified or is_certified, wall))
        elif held or self._has_room(link.peer, wall):
            if held:
                self._operator.tell(
                    f"{guid} at {link.address} has the name {name} now, which its certificate proves; "
                    f"{guids.guid_text(held.guid)} had it before",
                    peer=link.address,
                )
                self._drop(held)
            self._hold(Claim(key, name, link.peer, is_certified, wall))
        else:
            self._refuse(link, f"{guid} announces the name {name}: there is no room for it; write it into [names]")

    def save(self) -> None:
        """Write the changes to the store; if it refuses, the next call does."""
        if self._changed:
            with contextlib.suppress(StoreError), self._store.transaction():
                held = [self._claims[key] for key in self._changed if key in self._claims]
                self._store.claims.save(held, self._changed)
                self._changed = set()

    def _refuse(self, link: Announcing, text: str) -> None:
        self._operator.tell(text, fact=f"names announced by {link.address}", peer=link.address)

    def _is_old(self, claim: Claim, wall: int) -> bool:
        return not 0 <= wall - claim.heard < RENEWED_S

    def _hold(self, claim: Claim) -> None:
        if claim.folded not in self._claims:
            self._count[claim.guid] += 1
        self._claims[claim.folded] = claim
        self._shown[guids.guid_text(claim.guid)[1:-1].lower()] = claim.name
        self._changed.add(claim.folded)

    def _drop(self, claim: Claim) -> None:
        del self._claims[claim.folded]
        self._count[claim.guid] -= 1
        self._changed.add(claim.folded)
        guid = guids.guid_text(claim.guid)[1:-1].lower()
        if folded(self._shown.get(guid, "")) == claim.folded:
            del self._shown[guid]

    def _has_room(self, guid: bytes, wall: int) -> bool:
        """Is there room for another name of this GUID? The claim that is idle longest may give way."""
        if len(self._claims) < CLAIMS_MAX and self._count[guid] < CLAIMS_OF_PEER:
            return True
        if wall < self._full_until:
            return False
        of_peer = self._count[guid] >= CLAIMS_OF_PEER
        oldest = min(
            (claim for claim in self._claims.values() if not of_peer or claim.guid == guid),
            key=lambda claim: claim.heard,
        )
        if wall - oldest.heard <= IDLE_S:
            self._full_until = 0 if of_peer else wall + 60
            return False
        self._drop(oldest)
        return True
