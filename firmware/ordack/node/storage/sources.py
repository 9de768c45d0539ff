"""What the log knows of messages that others send: in memory where there are any, or an inbox."""

from array import array

from mqqb import core
from ordack.node.storage import log


class Arrival(log.Stored):
    """A message received, from `source`. `message_id` is the number of the arrival.

    record: as of a message that is sent; the state is RECEIVED, TAKEN or confirm.GONE, the other words are the owner's.
    """

    __slots__ = ("source",)

    def __init__(self, number: int, record: "array[int]", source: "LoggedSource") -> None:
        super().__init__(number, record)
        self.source = source


class LoggedSource(log.LoggedQueue):
    """Where messages come from: a stream of the queue manager `guid` (16 bytes) to the own queue `name`.

    `record`: the counters of what was accepted from it (mqqb_incoming), for an IncomingStream to move on. They become
    durable with `arrive`, and go back to what the log knows if that or the `sync` fails.
    """

    __slots__ = ("is_replaced",)
    skip = 0

    def __init__(self, index: int, guid: bytes, name: str, record: "array[int]") -> None:
        super().__init__(index, name, record)
        self.guid = guid
        self.noted = array("I", record)  # as of the last `arrive`
        self.is_replaced = False  # the log has another one in its place

    def restore(self) -> None:
        super().restore()
        core.copy_words(self.record, self.before)

    def replace(self, guid: bytes, name: str) -> None:
        """Forget this one, of which no arrival is kept: its place in the log becomes that of another one, from 0 on.

        It is written before anything that arrives from there. A power cut before leaves the one or the other.
        """
        self.is_replaced = True
        self.guid = guid
        self.name = name
        self.record[:] = self.noted[:] = self.before[:] = array("I", (0, 0, 0, 0))
