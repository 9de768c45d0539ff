"""Where a message goes: the queue here that its destination means, or the hop on the way to another queue manager. It
reads addresses and the configuration, and changes nothing."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from mqqb import guids, headers, names

from ordack.broker import outcome
from ordack.broker.links import Hop
from ordack.config.config import Config, split_direct
from ordack.text import legible

LONGEST_KEY = 512  # any name of a queue that can be here fits


class Way(NamedTuple):
    """How an outgoing queue is served: by a session to its hop, or by any with its peer if it is for one by GUID; then
    whoever answers at its hop must be that peer, unless messages for it are `routed` there."""

    hop: Hop | None
    peer: bytes | None = None
    routed: bool = False


class Routing:
    """The ways from the queue manager with this GUID."""

    def __init__(self, guid: bytes, config: Config) -> None:
        self._guid = guid
        self._here = (names.NULL_GUID, guid)  # a QueueManagerAddress that means this one
        self._config = config

    # ---- to queues here

    def is_here(self, user: headers.UserHeader) -> bool:
        """Does the message end here, as far as its destination says (B-264)?"""
        if user.queue_manager_address not in self._here:
            return False
        name = user.destination_queue
        if not isinstance(name, names.DirectQueueFormatName):
            return True
        address = (split_direct(legible(name.direct_format_name)) or ("", ""))[0]
        return not address or self._may_be_own(address)

    def _may_be_own(self, address: str) -> bool:
        return not self._config.own_names or address in self._config.own_names  # B-416

    def target(self, user: headers.UserHeader) -> tuple[str, str | int]:
        """What a message's stream is filed under, and the queue that it means here, "" if none (B-264)."""
        name = user.destination_queue
        here = user.queue_manager_address in self._here
        if isinstance(name, names.DirectQueueFormatName):
            key = legible("DIRECT=" + name.direct_format_name).lower()
            if len(key) > LONGEST_KEY:
                key = key[: LONGEST_KEY - 64] + hashlib.sha256(key.encode()).hexdigest()
        elif isinstance(name, headers.PrivateQueueFormatNameId) and here:
            key = f"#{name.private_queue_identifier}"
        else:
            return guids.format_name(name, user.queue_manager_address) if name is not None else "", ""
        return key, self.meaning(key) if here else ""

    def meaning(self, key: str) -> str | int:
        """Name or identifier of the queue that a stream's key means here, "" if none."""
        if key.startswith("#"):
            return int(key[1:])
        address, queue_name = split_direct(key) or ("", "")
        return queue_name if self._may_be_own(address) else ""

    # ---- to other queue managers

    def way(self, format_name: str) -> Way:
        """How the outgoing queue of this format name is served."""
        kind, _, rest = format_name.partition("=")
        if kind.upper() != "PRIVATE":
            return Way(self._config.way((split_direct(format_name) or ("", ""))[0]))
        guid = rest.partition("\\")[0]
        peer = guids.guid_bytes(guid)
        hop = self._config.own_hop if peer == self._guid else self._config.next_hops.get(guid.lower())
        return Way(hop, peer, hop is not None)  # to this queue manager itself, too

    def hop(self, address: str | None) -> Hop | None:
        """Where the configuration says to connect to for a peer that was last at this address. Nobody else says that
        the peer takes connections there."""
        return self._config.next_hops.get(address or "")

    def has_hop(self, guid: bytes) -> bool:
        """Does the configuration say where this queue manager is?"""
        return guids.guid_text(guid)[1:-1].lower() in self._config.next_hops

    def onward(self, user: headers.UserHeader) -> str:
        """The format name of the outgoing queue for a message that does not end here (B-012); "" if there is nowhere to
        send it to."""
        name = user.destination_queue
        if isinstance(name, headers.PrivateQueueFormatNameId):
            return outcome.return_queue(bytes(user.queue_manager_address))
        if isinstance(name, names.DirectQueueFormatName) and split_direct(legible(name.direct_format_name)):
            return guids.format_name(name).lower()
        return ""
