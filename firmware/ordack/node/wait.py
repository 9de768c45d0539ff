"""Waiting for the links of a node without asyncio."""

import select

from mqqb import MICROPYTHON, const

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from typing import Any

    from ordack.node.talk.link import Waitable


class Waiter:
    """Sleeps until a link is ready. Allocates memory only when a link comes, goes or changes."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._watched: "list[list[Any]]" = []  # link, its stream, poll events

    def sleep(self, links: "list[Waitable]", wait: int) -> None:
        """Sleep until a link is ready, at most `wait` ms."""
        for link in links:
            self._watch(link)
        if MICROPYTHON:  # allocates nothing
            for _ in self._poll.ipoll(wait):  # type: ignore[attr-defined,unused-ignore]
                return
        else:
            self._poll.poll(wait)

    def leave(self, link: "Waitable") -> None:
        """Stop watching a link that is about to be closed."""
        for watched in self._watched:
            if watched[0] is link:
                self._watched.remove(watched)
                self._poll.unregister(watched[1])
                return

    def _watch(self, link: "Waitable") -> None:
        stream = link.stream
        if stream is None:
            return
        events = select.POLLIN | select.POLLOUT if link.wants_write else select.POLLIN
        for watched in self._watched:
            if watched[0] is link:
                if watched[2] != events:
                    watched[2] = events
                    self._poll.modify(stream, events)
                return
        self._watched.append([link, stream, events])
        self._poll.register(stream, events)
