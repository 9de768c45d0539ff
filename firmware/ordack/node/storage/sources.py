"""The log's records of received messages; loaded only with arrivals or an inbox."""

from array import array

from mqqb import core
from ordack.node.storage import log


class Arrival(log.Stored):
    """A message received from `source`. message_id: the number of the arrival.

    record: as of a sent message; the state is RECEIVED, TAKEN or confirm.GONE, the other words belong to the owner.
    """

    __slots__ = ("source",)

    def __init__(self, number: int, record: "array[int]", source: "LoggedSource") -> None:
        super().__init__(number, record)
        self.source = source


class LoggedSource(log.LoggedQueue):
    """The source of received messages: a stream from the queue manager `guid` (16 bytes) to the local queue `name`.

    record: counters of accepted messages (mqqb_incoming), which an IncomingStream advances. They become durable with
    `arrive`; if it or the `sync` fails, they return to the logged values.
    """

    __slots__ = ("is_replaced",)
    skip = 0

    def __init__(self, index: int, guid: bytes, name: str, record: "array[int]") -> None:
        super().__init__(index, name, record)
        self.guid = guid
        self.noted = array("I", record)  # as of the last `arrive`
        self.is_replaced = False  # another source takes its place in the log

    def restore(self) -> None:
        super().restore()
        core.copy_words(self.record, self.before)

    def replace(self, guid: bytes, name: str) -> None:
        """Forget this source, which has no kept arrival, and give its place to another one that starts at 0.

        The log gets the new source before its first arrival. A power cut leaves one or the other.
        """
        self.is_replaced = True
        self.guid = guid
        self.name = name
        self.record[:] = self.noted[:] = self.before[:] = array("I", (0, 0, 0, 0))
