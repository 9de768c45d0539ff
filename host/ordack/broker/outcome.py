"""The end of a message: acknowledgements, journal copies, dead letters, the sender's answer.

Everything happens in the caller's transaction, and is therefore as durable as the end itself (B-344). The queue manager
and applications without `ordack serve` use this module. An acknowledgement for another queue manager waits in the
outgoing queue of the peer that sent the message here, until a session with that peer takes it.

Times: seconds since 1970.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from mqqb import acks, build, compose, confirm, core, guids, headers, names
from mqqb.confirm import Confirmation
from mqqb.destination import ENCRYPTED_BODY

from ordack.config.config import Config, split_direct
from ordack.config.names import DEAD_LETTER, DEAD_XACT, JOURNAL, legible
from ordack.config.settings import NEVER
from ordack.store import Store, messages, packet_fields
from ordack.store.disk import Room
from ordack.store.outgoing import NewOutgoing, Run, Waiting
from ordack.store.queues import QueueState
from ordack.store.schema import PRIVATE

INSECURE = (  # B-349, all that occur
    confirm.NACK_BAD_DST_Q,
    confirm.NACK_ACCESS_DENIED,
    confirm.NACK_BAD_ENCRYPTION,
    confirm.NACK_BAD_SIGNATURE,
)
SOURCE_HOST, DESTINATION_HOST = 2, 3  # UserHeader.Flags.AQ (B-351)
PIECE = 1000  # messages that one statement handles, to bound memory


class ReturnPath(NamedTuple):
    """Where acknowledgements go: the GUID and IP address of the peer that delivered the message. direct: address them
    by the IP address (B-361); not if the peer only forwarded the message (A-20)."""

    peer: bytes
    address: str
    direct: bool


class Settlements:
    """Ends messages at `now`; every method writes to the store in the running transaction.

    sent: an outgoing queue has a message that the queue manager has not read yet. room: bytes that may still be stored
    (B-398), read from the store at first use.
    """

    def __init__(self, store: Store, now: int, config: Config) -> None:
        self.store = store
        self.now = now
        self.config = config
        self.sent = False

    @cached_property
    def _room(self) -> Room:
        return self.store.room(self.config.quota)

    @cached_property
    def room(self) -> int:
        return self._room.bytes

    @property
    def why_full(self) -> str:
        """As Store.why_full."""
        return self.store.why_full(self._room)

    # ---- messages in local queues

    def remove(self, lookup_ids: Collection[int], message_class: int, is_receive: bool = False) -> None:
        """Remove messages from their queues, with the acknowledgements and copies that they ask for (B-336 to B-342).
        message_class: the reason. is_receive: as Messages.delete."""
        told = messages.FINAL_ACK | (messages.POSITIVE if message_class == confirm.ACK_RECEIVE else messages.NEGATIVE)
        outcomes = []
        alike: dict[tuple[int, ...], tuple[Confirmation, int]] = {}
        for leaving in self.store.messages.delete(lookup_ids, is_receive):
            if leaving.wants & told:
                self._tell(leaving, leaving.wants & told, message_class)
            if leaving.wants & messages.OWN:
                outcomes.append(self._end_own(leaving, message_class, alike))
            if leaving.wants & messages.ON_EXPIRY and message_class == confirm.NACK_RECEIVE_TIMEOUT:
                self.copy(DEAD_LETTER, leaving.packet, message_class)
        if outcomes:
            self.store.memory.add_outcomes(outcomes)

    def _tell(self, leaving: messages.Leaving, what: int, message_class: int) -> None:
        message = packet_fields.parse(leaving.packet)
        back = None
        if leaving.peer is not None and leaving.address is not None:
            back = ReturnPath(leaving.peer, leaving.address, bool(leaving.wants & messages.DIRECT))
        if what & messages.FINAL_ACK:
            assert back is not None
            self.final_ack(message, message_class, back)
        if what & (messages.POSITIVE | messages.NEGATIVE):
            self.administer(message, message_class, back)

    def _end_own(
        self, leaving: messages.Leaving, message_class: int, alike: dict[tuple[int, ...], tuple[Confirmation, int]]
    ) -> tuple[int, bytes, int, str | None, int]:
        """End a transactional message from this queue manager to itself (C-70, C-71); return its outcome. alike: cache
        of confirmations and actions by record."""
        message_id, new = packet_fields.of_local(leaving.packet, self.config.confirmation)
        key = tuple(new)
        if key not in alike:
            confirmation = Confirmation(new, self.config.confirmation)
            alike[key] = confirmation, confirmation.final_ack(message_class)
        confirmation, action = alike[key]
        if action & confirm.JOURNAL:
            self.copy(JOURNAL, leaving.packet, None)
        if action & confirm.DEAD_LETTER:
            confirmation = Confirmation(confirmation.record[:], self.config.confirmation)  # others share it
            self.dead_letter(leaving.packet, leaving.dead_letter, confirmation)
        is_missed = confirmation.record[confirm.CLASS] >= confirm.NACK_BAD_DST_Q
        missed = packet_fields.format_name(packet_fields.parse(leaving.packet).user) if is_missed else None
        return message_id, confirmation.record.tobytes(), self.now, missed, 1

    def empty(self, queue: int, message_class: int, limit: int, last: int = NEVER) -> int:
        """Remove up to `limit` messages of a purged or deleted queue (B-339, B-340), with lookup ids up to `last`;
        return the count."""
        keys = self.store.messages.unlocked(queue, limit, last)
        self.remove(keys, message_class)
        return len(keys)

    def remove_over(self, limit: int = PIECE) -> int:
        """Remove messages whose TimeToBeReceived has expired (B-341, B-407), and purged ones whose receive has ended,
        up to `limit` of each; return the count."""
        expired, purged = self.store.messages.over(self.now, limit)
        if expired:
            self.remove(expired, confirm.NACK_RECEIVE_TIMEOUT)
        if purged:
            self.remove(purged, confirm.NACK_Q_PURGED)
        return len(expired) + len(purged)

    # ---- outgoing messages

    def settle(self, settled: Iterable[tuple[Waiting, Confirmation, int]]) -> list[int]:
        """Run the actions of the confirmation process: (message, its confirmation, action). Equal messages may share a
        confirmation unless they are dead-lettered. Return the keys that have left their outgoing queue."""
        gone: list[int] = []
        kept = []
        outcomes = []
        names: dict[int, str] = {}
        last: Confirmation | None = None
        for waiting, confirmation, action in settled:
            if action & (confirm.JOURNAL | confirm.DEAD_LETTER | confirm.NACK):
                packet, _ = self.store.outgoing.packet(waiting.key)
                if action & confirm.JOURNAL:
                    self.copy(JOURNAL, packet, None)
                if action & confirm.DEAD_LETTER:
                    self.dead_letter(packet, waiting.dead_letter, confirmation)
                if action & confirm.NACK:
                    self.administer(packet_fields.parse(packet), confirm.NACK_REACH_QUEUE_TIMEOUT, None)
            if action & (confirm.DELETE | confirm.JOURNAL | confirm.DEAD_LETTER):
                gone.append(waiting.key)
                if confirmation is not last:
                    end, record = confirmation.conclusion(), confirmation.record.tobytes()
                    last = confirmation
                missed = None
                if end.message_class >= confirm.NACK_BAD_DST_Q:
                    if waiting.outgoing not in names:
                        found = self.store.outgoing.some([waiting.outgoing])
                        names |= {queue.identifier: queue.format_name for queue in found}
                    missed = names.get(waiting.outgoing)
                outcomes.append((waiting.message_id, record, self.now, missed, 1))
            elif action & confirm.STORE:
                deadline = packet_fields.due(confirmation, waiting.send_until, held=True)
                kept.append((confirmation.record.tobytes(), deadline, True, waiting.key))
        self.store.outgoing.delete(gone)
        self.store.outgoing.keep(kept)
        self.store.memory.add_outcomes(outcomes)
        return gone

    def settle_runs(self, settled: Sequence[tuple[Run, int, Confirmation]]) -> None:
        """Delete the first messages of runs, which arrived and need nothing else: (run, number of messages, their
        confirmation)."""
        self.store.outgoing.shorten((run, count) for run, count, _ in settled)
        self.store.memory.add_outcomes(
            (run.state.message_id - run.messages + count, confirmation.record.tobytes(), self.now, None, count)
            for run, count, confirmation in settled
        )

    def give_up(self, waiting: Waiting, message_class: int) -> bytearray:
        """End an undeliverable message that is forwarded or not transactional (B-311 to B-313, B-390); return its
        packet."""
        packet, _ = self.store.outgoing.packet(waiting.key)
        self.undelivered(packet, message_class, None)
        self.store.outgoing.delete([waiting.key])
        return packet

    def undelivered(self, packet: bytes | bytearray, message_class: int, back: ReturnPath | None) -> None:
        """Report a message that this queue manager cannot deliver: administration acknowledgement if requested, and a
        dead-letter copy unless it is transactional (B-312, B-313, B-390, B-391)."""
        message = packet_fields.parse(packet)
        if message.properties.flags & headers.WANT_NA:
            self.administer(message, message_class, back)
        if message.user.flags & core.USER_JN and message.transaction is None:
            self.copy(DEAD_LETTER, packet, message_class)

    def dead_letter(self, packet: bytes | bytearray, named: str | None, confirmation: Confirmation) -> None:
        """Put a transactional message sent here into the dead-letter queue that the application named, if that is a
        local transactional queue, else into the system's (C-36, B-243, B-396)."""
        queue = None if named is None else self.store.queues.find(named)
        is_fit = queue is not None and queue.kind == PRIVATE and queue.transactional
        name = named if named is not None and is_fit else DEAD_XACT
        if not self.copy(name, packet, confirmation.record[confirm.CLASS], confirmation.conclusion().in_doubt):
            confirmation.record[confirm.STATE] = confirm.GONE  # no dead letter exists, so none is reported

    def copy(self, name: str, packet: bytes | bytearray, message_class: int | None, in_doubt: bool = False) -> bool:
        """Put a copy into a journal or dead-letter queue, with message_class if given (B-394). Return False, without a
        copy, if the queue's quota is full (B-397, C-37)."""
        queue = self.store.queues.find(name)
        assert queue is not None, name
        if not queue.has_room(len(packet)):
            return False
        copied = bytearray(packet)
        if message_class is not None:
            build.set_message_class(copied, message_class)
        priority = copied[2] & core.BASE_PR
        self.room -= len(packet)
        correlation = messages.correlation_of(packet_fields.parse(copied))
        self.store.messages.add(
            [messages.NewMessage(queue.identifier, 7 - priority, copied, in_doubt=in_doubt, correlation=correlation)]
        )
        return True

    # ---- acknowledgements

    def final_ack(self, message: headers.UserMessage, message_class: int, back: ReturnPath) -> None:
        """File a FinalAck for the peer that delivered the message (B-356, B-360 to B-362)."""
        transaction = message.transaction
        assert transaction is not None
        source = bytes(message.user.source_queue_manager)
        destination, host = acks.to_source(source, back.address if back.direct else "")
        message_id = self.store.numbers.reserve_message_ids()
        packet = acks.final_ack(
            destination,
            self.store.guid,
            message_id,
            self.now,
            transaction.tx_sequence_ordinal,
            transaction.tx_sequence_time_stamp,
            transaction.tx_sequence_number,
            transaction.previous_tx_sequence_number,
            source,
            message.user.message_id,
            message_class,
            host,
        )
        self._file(packet_fields.return_queue(back.peer), message_id, packet, True, 0, back.address)

    def administer(self, message: headers.UserMessage, message_class: int, back: ReturnPath | None) -> None:
        """Send Administration Acknowledgment (B-348 to B-355). back: None if the message was sent here."""
        user, properties = message.user, message.properties
        name = user.admin_queue
        if name is None or (message_class in INSECURE and not self.config.send_insecure_nacks):
            return
        selector = user.flags >> compose.ADMIN_SHIFT & 7
        host = names.NULL_GUID
        if isinstance(name, headers.PrivateQueueFormatName):  # AQ 6; a destination is the pair of its parts
            host = name.source_queue_manager
            name = headers.PrivateQueueFormatNameId(name.private_queue_identifier)
        elif selector == SOURCE_HOST:
            host = bytes(user.source_queue_manager)
        elif selector == DESTINATION_HOST:
            host = bytes(user.queue_manager_address)
        negative = message_class >= confirm.NACK_BAD_DST_Q
        encrypted = message.security is not None and bool(message.security.flags & ENCRYPTED_BODY)
        self._post(
            name,
            host,
            back,
            bytes(user.source_queue_manager),
            message_class=message_class,
            label=properties.label,
            body=properties.body if negative and not encrypted else b"",  # B-354
            body_type=properties.body_type if negative else 0,
            delivery="recoverable" if user.flags & core.USER_DM else "express",
            response=self._response_queue(user),
            correlation=packet_fields.identifier(bytes(user.source_queue_manager), user.message_id),
        )

    def _response_queue(self, user: headers.UserHeader) -> names.QueueName | None:
        """Return the acknowledged message's destination as a full address (B-352)."""
        name = user.destination_queue
        if isinstance(name, headers.PrivateQueueFormatNameId):
            host = bytes(user.queue_manager_address)
            return headers.PrivateQueueFormatName(
                self.store.guid if host == names.NULL_GUID else host, name.private_queue_identifier
            )
        return name

    def report(self, message: headers.UserMessage, next_hop: str | None = None) -> None:
        """Tell the report queue of a traced message that it has arrived, or leaves for next_hop, an IP address (B-294
        to B-296; wire.md 8)."""
        debug = message.debug
        if (
            not self.config.report_messages
            or not message.base.flags & core.BASE_TR
            or debug is None
            or debug.queue_identifier is None
        ):
            return
        user = message.user
        hops = user.flags & core.USER_RC
        source = guids.guid_text(bytes(user.source_queue_manager))[1:5]
        when = time.strftime("%I:%M:%S %p %m/%d/%Y", time.gmtime(self.now))
        target = (
            ""
            if user.destination_queue is None
            else guids.format_name(user.destination_queue, bytes(user.queue_manager_address))
        )
        lines = [f"<MESSAGE ID>{user.message_id:08X}</MESSAGE ID>", f"<TARGET QUEUE>{target}</TARGET QUEUE>"]
        if next_hop is not None:
            lines += [f"<NEXT HOP>{next_hop}</NEXT HOP>", f"<HOP COUNT>{hops:02X} </HOP COUNT>"]
        self._post(
            headers.PublicQueueFormatName(bytes(debug.queue_identifier)),
            names.NULL_GUID,
            None,
            names.NULL_GUID,
            message_class=confirm.REPORT,
            body=names.utf16_encode("".join(line + "\r\n" for line in lines)),
            label=f"{source}:{user.message_id:08X}:{hops:02X} received by {guids.guid_text(self.store.guid)} at {when}",
        )

    def _post(
        self,
        name: names.QueueName,
        host: bytes,
        back: ReturnPath | None,
        source: bytes,
        *,
        body: bytes | Any,
        **properties: Any,
    ) -> None:
        """Send a message of the queue manager itself; drop it if the queue cannot be opened (B-296, B-355).

        name, host: destination and QueueManagerAddress. back: the way to `source`; None: the source is local.
        """
        if isinstance(name, headers.PublicQueueFormatName):
            known = self.config.public_queues.get(guids.guid_text(name.public_queue_identifier)[1:-1].lower())
            if known is None:
                return
            name, host = packet_fields.destination(known)
        queue = self._here(name, host)
        if queue is False:
            return
        recoverable = properties.get("delivery") == "recoverable"
        message_id = self.store.numbers.reserve_message_ids()
        properties |= {"ttrq": compose.FOREVER, "sent_time": self.now, "address": host}
        try:
            packet = build.user_message(self.store.guid, message_id, name, body, **properties)
        except ValueError:  # other names made the packet too large
            packet = build.user_message(self.store.guid, message_id, name, b"", **properties)
        if self.room < len(packet):
            return
        priority = packet[core.BASE_FLAGS_AT] & core.BASE_PR
        if isinstance(queue, QueueState):
            if queue.has_room(len(packet)):
                self.room -= len(packet)
                correlation = messages.correlation_of(packet_fields.parse(packet))
                self.store.messages.add(
                    [messages.NewMessage(queue.identifier, 7 - priority, packet, correlation=correlation)]
                )
        elif isinstance(name, names.DirectQueueFormatName):
            self._file(guids.format_name(name).lower(), message_id, packet, recoverable, priority)
        elif back is not None and host == source:
            self._file(packet_fields.return_queue(back.peer), message_id, packet, recoverable, priority, back.address)
        else:
            self._file(packet_fields.return_queue(host), message_id, packet, recoverable, priority)

    def _here(self, name: names.QueueName, host: bytes) -> QueueState | bool | None:
        """Return the local queue of a destination; None if it is remote, False if it takes no such message."""
        if isinstance(name, headers.PrivateQueueFormatNameId):
            if host not in (names.NULL_GUID, self.store.guid):
                return None
            queue = self.store.queues.find(name.private_queue_identifier)
        else:
            address, queue_name = split_direct(legible(guids.format_name(name))) or ("", "")
            if address != "." and not self.config.is_own(address):
                return None if address else False
            queue = self.store.queues.find(queue_name)
        return queue if queue and queue.kind == PRIVATE and not queue.transactional else False

    def _file(
        self,
        format_name: str,
        message_id: int,
        packet: bytearray,
        recoverable: bool,
        priority: int,
        address: str | None = None,
    ) -> None:
        outgoing = self.store.outgoing.queue(format_name, self.now, address)
        self.room -= len(packet)
        due = self.now + self.config.acknowledgement_lifetime
        message = NewOutgoing(
            outgoing.identifier, message_id, 0, 0, 0, recoverable, 0, packet, priority, own=False, due=due
        )
        self.store.outgoing.add([message])
        self.sent = True


# Long work runs in short transactions, so that other writers wait only briefly.

PIECE_S = 0.015  # of work before the commit; the design allows 50 ms
CHUNK = 100  # messages between two looks at the clock


def piece(work: Callable[[int], int]) -> tuple[int, bool]:
    """Repeat `work(limit)` until it finds nothing or PIECE_S has passed; return the count, and whether more may be
    left. A count below the limit means large messages, and ends the piece."""
    total = 0
    until = time.monotonic() + PIECE_S
    while done := work(CHUNK):
        total += done
        if done < CHUNK or time.monotonic() >= until:
            return total, True
    return total, False


def in_pieces(store: Store, work: Callable[[int], int]) -> int:
    """Repeat `work(limit)` until it finds nothing, one piece per transaction; return the count. Committed pieces stay
    if a later one fails. Other writers get their turn between pieces."""
    total = 0
    while True:
        began = time.monotonic()
        with store.transaction():
            done, is_more = piece(work)
        total += done
        if not is_more:
            return total
        time.sleep(time.monotonic() - began)
