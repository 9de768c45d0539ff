"""A sender that notes what it is told, and applications by the clock of a world in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import packet_build
from mqqb import connection, core, headers, names, parse
from ordack.client import Client, Reject

from tests.support.beside import client_beside
from tests.support.host_peer import Peer, direct
from tests.support.host_world import Host, World, exchange

JN, JP = core.USER_JN, core.USER_JP
PA, PR, NA, NR = headers.WANT_PA, headers.WANT_PR, headers.WANT_NA, headers.WANT_NR
ADMIN = headers.PrivateQueueFormatNameId(77)  # a queue of the sender, who takes whatever comes


class Sender(Peer):
    """A peer that notes every FinalAck, and whose packets can be changed before they leave."""

    def __init__(self, guid: bytes, destination: names.QueueName, address: bytes = names.NULL_GUID) -> None:
        super().__init__(guid, destination, address)
        self.final_acks: list[headers.FinalAck] = []

    def _message(self, packet: headers.UserMessage | connection.OrderAck | headers.FinalAck, now: int) -> None:
        if isinstance(packet, headers.FinalAck):
            self.final_acks.append(packet)
        super()._message(packet, now)

    def edit(self, message_id: int, change: Callable[[headers.UserMessage], None]) -> None:
        message = parse.parse(self.packets[message_id])
        assert isinstance(message, headers.UserMessage)
        change(message)
        self.packets[message_id] = packet_build.build(message)

    @property
    def classes(self) -> list[int]:
        return [ack.message.properties.message_class for ack in self.final_acks]

    @property
    def told(self) -> list[int]:
        """Classes of the messages that came; one that came again is the same."""
        return list({message.user.message_id: message.properties.message_class for message in self.received}.values())


@contextlib.contextmanager
def application(world: World, host: Host) -> Iterator[Client]:
    """An application in another process, by the world's clock."""
    client = client_beside(host._life, lambda: world.wall)
    with contextlib.closing(client.store._database.connection), client:  # also if it dies while it closes
        yield client


def run(world: World, milliseconds: int) -> None:
    """Let time pass, in small steps."""
    for _ in range(milliseconds // 100):
        world.pass_time(100)
        exchange(world)


def copies(host: Host, queue: str) -> list[tuple[int, bytes]]:
    """Class and body of what is in a queue."""
    found = []
    for stored in host.store.messages.peek(host.store.queues.named(queue).identifier, -1):
        message = parse.parse(stored.packet)
        assert isinstance(message, headers.UserMessage)
        found.append((message.properties.message_class, bytes(message.properties.body)))
    return found


def sender_to(queue: str = "line1", number: int = 1) -> Sender:
    """A sender of messages to this queue."""
    return Sender(bytes([number]) * 16, direct(queue))


def received(world: World, host: Host) -> None:
    """An application receives a message of line1."""
    with application(world, host) as client, client.queue("line1").receive():
        pass


def rejected(world: World, host: Host) -> None:
    """An application rejects a message of line1."""
    with application(world, host) as client, client.queue("line1").receive():
        raise Reject
