"""What must hold in model.py, whatever happens."""

from __future__ import annotations

import bisect
import re
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from mqqb import confirm, connection, core, handshake, headers, parse
from mqqb.names import NULL_GUID
from ordack.broker.streams import LongStream
from ordack.config.names import DEAD_XACT, JOURNAL

from tests.host.model_hosts import Host, Message, Wire, _template
from tests.host.model_lines import Violation

START = 1_800_000_000  # of the wall clock
TAG = re.compile(rb"<(\d+)>")


class Rules:
    """The hosts and wires of an episode, its messages, and what must hold of them."""

    def __init__(self, size: int, figures: Counter[str] | None = None) -> None:
        self.size = size
        self.figures: Counter[str] = Counter() if figures is None else figures
        self.now = 0
        self.wall_offset = START
        self.step = 0
        self.problem = ""
        self.trace: list[tuple[str, tuple[int, ...]]] = []
        self.messages: dict[int, Message] = {}
        self.by_id: dict[tuple[bytes, int], Message] = {}
        self.numbers: dict[tuple[bytes, int, int], Message] = {}  # source's GUID, TxSequenceID, TxSequenceNumber
        self.sequences: dict[tuple[bytes, int], list[int]] = {}  # source's GUID, TxSequenceID -> numbers
        self.last_arrival: dict[tuple[Any, ...], int] = {}
        self.order_checked: dict[tuple[bytes, int], int] = {}
        self.wires: list[Wire] = []
        self.strangers = 0
        self.limited = False  # a quota was set: there may have been no room for an administration acknowledgement
        self.wrap = (0, 0, 0, 0)
        self.walls = [(0, START)]  # step, what the wall clock said then
        self._in_memory = LongStream.ahead, LongStream.low
        LongStream.ahead, LongStream.low = 2, 1  # so that much of what waits is in the stores alone
        self.folder = Path(tempfile.mkdtemp(prefix="ordack-model-", dir=_template(0).parent))
        self.hosts = []
        for index in range(size):
            shutil.copytree(_template(index), self.folder / str(index))
            self.hosts.append(Host(self, index, self.folder / str(index)))
        for host in self.hosts:
            host.look()

    def close(self) -> None:
        LongStream.ahead, LongStream.low = self._in_memory
        for host in self.hosts:
            host.close()
        shutil.rmtree(self.folder)

    @property
    def wall(self) -> int:
        return self.wall_offset + self.now // 1000

    def do(self, name: str, *arguments: int) -> None:
        """One action by its name, and everything that must hold after it."""
        self.step += 1
        self.trace.append((name, arguments))
        self.walls.append((self.step, self.wall))
        getattr(self, name)(*arguments)
        for host in self.hosts:
            host.look()
        if self.problem:
            raise Violation(self.problem)

    def highest_wall(self, step: int) -> int:
        """The latest time that the wall clock has shown since this step."""
        return max(self.wall, *(wall for _, wall in self.walls[step:]))

    def _pick(self, items: list[Any], number: int) -> Any:
        return items[number % len(items)] if items else None

    # ---- what must hold

    def arrival(self, host: Host, message: Message, queue: str) -> None:
        """A message is in a queue."""
        if message.target is not host or message.queue != queue:
            raise Violation(f"it is in {queue} of host {host.index}: {message}")
        if message.arrived and not message.can_come_again:
            raise Violation(f"it has arrived twice: {message}")
        if message.rejected and not message.blurred:
            raise Violation(f"it has arrived, but was rejected with 0x{message.rejected:04X}: {message}")
        if host.kinds[queue][-1][1] is not message.transactional:
            raise Violation(f"its queue is of the other kind: {message}")
        if not message.message_id:
            raise Violation(f"it was never accepted: {message}")
        message.arrived = True
        self.figures["arrived"] += 1
        if message.blurred:
            message.received = message.removed = message.refused = False
            return
        if message.certain:
            raise Violation(f"it has arrived after all: {message}")
        stream = (message.source.index, message.name, message.delivery, message.priority)
        if self.last_arrival.get(stream, 0) > message.tag:
            raise Violation(f"it comes after message {self.last_arrival[stream]}: {message}")
        self.last_arrival[stream] = message.tag

    def identify(self, packet: object) -> tuple[Message | None, int]:
        """The message that a packet is, and 0; or the one that it acknowledges, and its class."""
        if isinstance(packet, (connection.OrderAck, headers.FinalAck)):
            return None, packet.message.properties.message_class
        assert isinstance(packet, headers.UserMessage)
        if packet.user.admin_queue is None and packet.properties.message_class:
            related = packet.properties.correlation_id
            message = self.by_id.get((bytes(related[:16]), int.from_bytes(related[16:], "little")))
            if message:
                return message, packet.properties.message_class
        found = TAG.search(bytes(packet.properties.body))
        assert found
        return self.messages[int(found[1])], 0

    def acknowledged(self, host: Host, message: Message, message_class: int) -> None:
        """An administration acknowledgement is in its queue."""
        again = message_class in message.acknowledgements
        several = (confirm.NACK_REACH_QUEUE_TIMEOUT, confirm.NACK_DELETED)  # each hop that has a copy may say these
        if message.blurred:
            return
        if message.source is not host or not message.acknowledge or (again and message_class not in several):
            raise Violation(f"it is acknowledged unasked with 0x{message_class:04X}: {message}")
        message.acknowledgements.add(message_class)
        self.figures["administration"] += 1
        if message_class == confirm.ACK_REACH_QUEUE:
            right = message.arrived
        elif message_class == confirm.ACK_RECEIVE:
            right = message.received
        elif message_class == confirm.NACK_REACH_QUEUE_TIMEOUT:
            message.blurred |= message.target.given_up  # it may come before the FinalAck that says the same
            right = message.blurred or self.may_be_late(message)
        elif message_class == confirm.NACK_DELETED:
            right = message.withdrawn
        elif message_class & 0xC000 == 0x8000:
            right = self.may_be_unfit(message) and not message.arrived
        else:
            right = message.removed or message.refused
        if not right:
            raise Violation(f"it is acknowledged with 0x{message_class:04X}: {message}")

    def copied(self, host: Host, message: Message, queue: str) -> None:
        """A copy is in a journal or dead-letter queue."""
        if (host.index, queue) in message.copies and not message.blurred:
            raise Violation(f"{queue} of host {host.index} has it twice: {message}")
        message.copies.add((host.index, queue))
        asked = 2 if queue == JOURNAL else 1
        if not message.journal & asked or (message.transactional and host is not message.source):
            raise Violation(f"{queue} of host {host.index} has it unasked: {message}")
        self.figures["journaled" if asked == 2 else "dead-lettered"] += 1

    def dropped(self, host: Host, message: Message) -> None:
        """A host has a copy less in its outgoing queues."""
        if message.transactional:
            if host is message.source:
                self._told(message)
        elif not (
            message.blurred
            or message.withdrawn
            or message.arrived
            or any(message.holders.values())
            or self.may_be_unfit(message)
            or self.may_be_late(message)
        ):
            raise Violation(f"host {host.index} has dropped it: {message}")

    def _told(self, message: Message) -> None:
        """The source of a transactional message has no copy to send any more: what does it say?"""
        said = message.source.applications[0].client.state(message.message_id)
        if said is None:
            raise Violation(f"its source has forgotten it: {message}")
        message.told = f"{said.answer} 0x{said.message_class:04X}{' in doubt' if said.in_doubt else ''}"
        self.figures[said.answer] += 1
        if message.blurred:
            return
        reason = said.message_class
        dead = (message.source.index, DEAD_XACT) in message.copies
        journaled = (message.source.index, JOURNAL) in message.copies
        timed_out = reason in (
            confirm.NACK_REACH_QUEUE_TIMEOUT,
            confirm.NACK_RECEIVE_TIMEOUT_AT_SENDER,
            confirm.NACK_RECEIVE_TIMEOUT,
        )
        if said.answer == confirm.STORED:
            right = message.arrived and not message.journal
        elif said.answer == confirm.RECEIVED:
            right = message.received and journaled == bool(message.journal & 2)
        elif said.answer in (confirm.DEAD_LETTERED, confirm.DISCARDED):
            right = dead == (said.answer == confirm.DEAD_LETTERED) == bool(message.journal & 1)
            if reason == confirm.NACK_DELETED:
                right &= message.withdrawn and (said.in_doubt or not message.transmitted)
            elif said.in_doubt:  # a clock that is behind that of a life which is lost numbers what is refused
                right &= timed_out and (
                    self.may_be_late(message) or message.source.put_back_at > 0 or self.may_be_mistaken(message)
                )
            elif timed_out and reason != confirm.NACK_RECEIVE_TIMEOUT:
                right &= self.may_be_late(message) and not message.arrived
                message.certain = True
            elif reason & 0xC000 == 0x8000:
                right &= message.rejected == reason and not message.arrived
            else:
                right &= (
                    message.arrived
                    and not message.received
                    and (message.refused if reason == confirm.NACK_RECEIVE_REJECTED else message.removed)
                )
        else:
            right = False
        if not right:
            raise Violation(f"its source says what is not true at {self.wall}: {message}")

    def may_be_late(self, message: Message) -> bool:
        """Has the wall clock, since it was sent, shown a time at which it was not to be on its way any more?"""
        return self.highest_wall(message.step) >= message.sent_time + min(message.ttrq, message.ttbr)

    def may_be_mistaken(self, message: Message) -> bool:
        """May its source take it for refused? A message of a later sequence, in another queue, has ended before it."""
        return any(
            other.told
            and (other.source, other.target) == (message.source, message.target)
            and other.number is not None
            and message.number is not None
            and other.number > message.number
            for other in self.messages.values()
        )

    def may_be_unfit(self, message: Message) -> bool:
        """Was there, since the message was sent, a moment at which its queue would not have taken it?"""
        kinds = message.target.kinds.get(message.queue, [(0, None)])
        first = bisect.bisect_right(kinds, message.step, key=lambda change: change[0]) - 1
        return any(kind is not message.transactional for _, kind in kinds[max(first, 0) :])

    def _leaves(self, host: Host, wire: Wire, end: int, data: bytes) -> None:
        """Bytes go out: nothing in them may say more than what is on the disk."""
        if not host.store._database.connection.get_autocommit():
            raise Violation(f"host {host.index} sends with its transaction open")
        link = wire.links[end]
        sending = wire.sending[end]
        urgent = sending.still_waits(host.urgent(link) if link else {})
        at = 0
        while at < len(data):
            packet = parse.parse(data, at)
            at += core.packet_total(data[at + 2], int.from_bytes(data[at + 8 : at + 12], "little"))
            session: headers.SessionHeader | None = None
            if isinstance(packet, handshake.SessionAck):
                session = packet.session
            elif isinstance(packet, (headers.UserMessage, connection.OrderAck, headers.FinalAck)):
                outer = packet if isinstance(packet, headers.UserMessage) else packet.message
                session = outer.session
                message = None
                if isinstance(packet, connection.OrderAck):
                    self._order_ack_leaves(host, wire, end, packet)
                elif isinstance(packet, headers.FinalAck):
                    self._final_ack_leaves(host, packet)
                else:
                    message, message_class = self.identify(packet)
                    if message_class:
                        message = None
                    elif message:
                        self._message_leaves(host, message, packet)
                        self.figures["out of turn"] += sending.leaves(message, at, host is message.source, urgent)
                if not isinstance(packet, connection.OrderAck) or outer.user.source_queue_manager != host.guid:
                    sending.turn()  # an OrderAck of its own waits in no queue
                wire.sent[end].append(message)
                if outer.user.flags & core.USER_DM:
                    wire.recoverable[end].append(message)
            if session is not None:
                self._session_header_leaves(host, wire, end, session)

    def _message_leaves(self, host: Host, message: Message, packet: headers.UserMessage) -> None:
        self.figures["transmitted"] += 1
        may_be_renumbered = host is message.source and (message.blurred or not message.transmitted)
        if host is message.source:
            if message.recalled and not message.blurred:
                raise Violation(f"it is sent, and had been withdrawn: {message}")
            message.transmitted = True
        transaction = packet.transaction
        if transaction is not None:
            number = transaction.tx_sequence_id, transaction.tx_sequence_number
            if number != message.number:
                if not may_be_renumbered:
                    raise Violation(f"it has another number, {number}: {message}")
                self._number(message, number)

    def _number(self, message: Message, number: tuple[int, int]) -> None:
        """It is given when a message is sent, or before it leaves."""
        if self.numbers.setdefault((message.guid, *number), message) is not message:
            raise Violation(f"two messages have the number {number}: {message}")
        if message.number is not None:
            self.figures["renumbered"] += 1
        message.number = number
        numbers = self.sequences.setdefault((message.guid, number[0]), [])
        if number[1] not in numbers[-1000:]:
            bisect.insort(numbers, number[1])

    def _session_header_leaves(self, host: Host, wire: Wire, end: int, header: headers.SessionHeader) -> None:
        start, start_recoverable = wire.start[2 - 2 * end : 4 - 2 * end]
        theirs = wire.recoverable[1 - end]
        for bit in range(32):
            if header.recoverable_msg_ack_flags >> bit & 1:
                place = (header.recoverable_msg_ack_seq_number + bit - start_recoverable - 1) & 0xFFFF
                if place >= len(theirs):
                    raise Violation(f"host {host.index} acknowledges recoverable message {place}, which was not sent")
                self._must_be_settled(host, theirs[place])
        covered = (header.ack_sequence_number - start) & 0xFFFF
        if covered > len(wire.sent[1 - end]):
            raise Violation(f"host {host.index} acknowledges message {covered}, which was not sent")
        for message in wire.sent[1 - end][wire.checked[end] : covered]:
            if message and message.delivery == "express":
                self._must_be_settled(host, message)
        wire.checked[end] = max(covered, wire.checked[end])
        own = (len(wire.sent[end]) + wire.start[2 * end]) & 0xFFFF
        own_recoverable = (len(wire.recoverable[end]) + wire.start[2 * end + 1]) & 0xFFFF
        if (header.user_msg_sequence_number, header.recoverable_msg_sequence_number) != (own, own_recoverable):
            raise Violation(f"host {host.index} counts {header.user_msg_sequence_number} messages sent, not {own}")

    def _must_be_settled(self, host: Host, message: Message | None) -> None:
        if message is None or message.transactional or message.arrived or message.withdrawn or message.blurred:
            return
        elsewhere = any(count for index, count in message.holders.items() if index != message.source.index)
        if not (elsewhere or self.may_be_unfit(message) or self.may_be_late(message)):
            raise Violation(f"it is acknowledged, but is not on disk: {message}")

    def _order_ack_leaves(self, host: Host, wire: Wire, end: int, packet: connection.OrderAck) -> None:
        body = packet.body
        guid = packet.message.user.queue_manager_address
        key = bytes(guid) if guid != NULL_GUID else wire.guids[1 - end], body.tx_sequence_id
        numbers = self.sequences.get(key, [])
        if body.tx_sequence_number not in numbers[-1000:]:
            raise Violation(f"host {host.index} acknowledges {key} up to {body.tx_sequence_number}, which was not sent")
        first = self.order_checked.get(key, 0)
        for place in range(first, bisect.bisect_right(numbers, body.tx_sequence_number)):
            message = self.numbers[*key, numbers[place]]
            if not (
                message.arrived or message.rejected or message.told or message.blurred or self.may_be_late(message)
            ):
                raise Violation(f"an OrderAck up to {body.tx_sequence_number} covers it: {message}")
            self.order_checked[key] = place + 1

    def _final_ack_leaves(self, host: Host, packet: headers.FinalAck) -> None:
        message = self.by_id[bytes(packet.body.source_guid), packet.body.message_id]
        message_class = packet.message.properties.message_class
        if host.given_up and message_class == confirm.NACK_REACH_QUEUE_TIMEOUT:
            message.blurred = True
        if message.target is host and message_class & 0xC000 == 0x8000:
            reason = (
                self.may_be_late(message)
                if message_class == confirm.NACK_REACH_QUEUE_TIMEOUT
                else self.may_be_unfit(message)
            )
            if (message.arrived or not reason) and not message.blurred:
                raise Violation(f"it is rejected with 0x{message_class:04X} for no reason: {message}")
            message.rejected = message_class
            self.figures["rejected"] += 1
