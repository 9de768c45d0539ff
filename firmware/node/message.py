"""A message that the node has accepted, and the answers about what became of it."""

from mqqb import confirm, const

from node import log

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    import asyncio
    from array import array
    from typing import Protocol

    class Follower(Protocol):
        """A queue with messages on the flash only."""

        def follow(self, message: "Message") -> None:
            """Somebody asks about it: say what is known, and use this handle when it comes into memory."""


class Message(log.Stored):
    """A message on its way, or kept in the dead-letter queue or the journal.

    `error`: what kept it from being accepted. `failure`: what ended delivery while it was on its way. One that waits on
    the flash only, behind many others, is not known to the node any more until somebody asks.
    """

    # Of the class, until a message differs: one that waits takes less memory so.
    twin: "Message | None" = None  # the handle by which the node knows it
    elsewhere: "Follower | None" = None  # who knows of it while it waits on the flash only
    error: "Exception | None" = None
    event: "asyncio.Event | None" = None
    failure: "Exception | None" = None
    packet: "bytearray | None" = None  # it, until it is sent for the first time, if there is room in memory

    def conclusion(self) -> confirm.Conclusion:
        """What may be said of it now: answer, message_class, in_doubt (C-80 to C-87)."""
        return confirm.Confirmation(self.current(), confirm.Settings()).conclusion()

    @property
    def state(self) -> str:
        """The answer of `conclusion`."""
        return self.conclusion().answer

    def is_settled(self) -> bool:
        """Is it known whether it is stored at the destination?"""
        return self.current()[confirm.STATE] not in (confirm.Q, confirm.S)

    def is_stored(self) -> bool:
        """Does the destination have it, once and in order (OrderAck)?"""
        message_class = self.current()[confirm.CLASS]
        if message_class & confirm.CLASS_NEGATIVE:
            return (
                bool(message_class & confirm.CLASS_RECEIVING)
                and message_class != confirm.NACK_RECEIVE_TIMEOUT_AT_SENDER
            )
        return self.is_settled()

    def is_received(self) -> bool:
        """Is it known that an application there has received it (positive FinalAck)?"""
        return self.current()[confirm.CLASS] == confirm.ACK_RECEIVE

    def is_ended(self) -> bool:
        """Will nothing more be learned of it?"""
        return self.current()[confirm.STATE] not in (confirm.Q, confirm.S, confirm.O)

    async def stored(self) -> bool:
        """Wait until the destination has it, once and in order (OrderAck): True. False: it failed before.

        Raises what ended delivery (Node.error): the message is still in the outbox, and goes out after a restart.
        """
        while not self.is_settled():
            await self.changed()
        return self.is_stored()

    async def received(self) -> bool:
        """Wait until an application there has received it (positive FinalAck): True. False: it failed, or may have;
        `conclusion` says how. Raises as `stored`; ValueError without JN and JP, for nobody will say (C-05).
        """
        if not self.record[confirm.MARKS] & confirm.JOURNAL_BITS:
            raise ValueError("nobody will say whether it is received: send it with dead_letter or journal")
        return await self.dead_lettered() == 0

    async def dead_lettered(self) -> int:
        """Wait for its end: the class with which it is dead-lettered, or discarded if nothing keeps it (no JN, or the
        quota is used up); 0: it has ended well. Raises as `stored`.
        """
        while not self.is_ended():
            await self.changed()
        message_class = self.current()[confirm.CLASS]
        return 0 if message_class == confirm.ACK_RECEIVE else message_class

    def tell(self) -> None:
        """Wake whoever waits for a change of this message."""
        if self.event is not None:
            self.event.set()
            self.event = None

    def current(self) -> "array[int]":
        """Its record as it is now, also where it was on the flash only. Raises as `outcome` of Node."""
        return self.known().record

    def known(self) -> "Message":
        """The handle by which the node knows it, as it is now. Raises as `outcome` of Node."""
        if self.elsewhere is not None:
            self.elsewhere.follow(self)
        return self if self.twin is None else self.twin.known()

    async def changed(self) -> None:
        """Wait until something is known of it. Raises what ended delivery."""
        if self.twin is not None:
            await self.twin.changed()
            return
        if self.failure is not None:
            raise self.failure
        if self.event is None:
            import asyncio  # not before a program uses it

            self.event = asyncio.Event()
        await self.event.wait()
