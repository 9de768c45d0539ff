"""Violations of the protocol, planted in the exchange of two hosts."""

from tests.support.capture_bytes import ACK_RECEIVE, ORDER_ACK
from tests.support.capture_exchange import Exchange
from tests.support.capture_model import OLDER, Connection, Entry, Line, Packet, Planted


class Pair(Exchange):
    """Two hosts whose exchange goes on by chance, with violations planted in it."""

    def step(self) -> None:
        """One thing happens."""
        rng = self.rng
        line = rng.choice(self.lines)
        if rng.random() < 0.005:
            self._older_connection(line, False)
        connection = line.connection
        if connection is None or not connection.open:
            if rng.random() < 0.5:
                self._open(line.sender, 0)
                if self.quiet_start:
                    self.quiet_start = False
                    self.clock += rng.randrange(1_100_000_000, 3_000_000_000)
            return
        what = rng.random()
        if what < 0.25:
            self._send_messages(line, rng.randint(1, 6))
        elif what < 0.30 and line.order_ack_due:
            self._order_ack(line)
        elif what < 0.36 and line.received:
            self._take(line)
        elif what < 0.37 and line.hops and line.acknowledged and self._room(connection, 0):
            # The one that forwards has the OrderAck, the source may not have it yet. And it keeps what it has no
            # session acknowledgement for, also if the source has gone on to the next sequence.
            entry, _ = rng.choice(line.acknowledged[-5:])
            self._transmit_as(line, connection, entry, entry.number - 1)
        elif what < 0.38:
            self._plain_message(connection, rng.randrange(2))
        elif what < 0.385:  # the resend timer, 30 s (B-151)
            self.clock += 30_000_000_000
            for entry in line.table:
                entry.in_flight = False
        elif what < 0.40 and line.table and not line.stubborn:  # expired (B-311)
            line.table.pop(rng.randrange(len(line.table)))
            self._roll(line)
        elif what < 0.40 + self.breaks:
            self._break(rng.choice([one for one in self.current.values() if one.open]))
        else:
            moving = rng.choice([one for one in self.current.values() if one.open])
            direction = rng.randrange(2)
            # Near the sender of this direction packets pass at once, near the receiver they are received at once.
            end = moving.opener ^ direction
            near = 1 - self.observer if end == 0 else self.observer
            half = moving.halves[direction]
            if half.before and rng.random() < near:
                self._pass(moving, direction, rng.randint(1, len(half.before)))
                if half.behind and rng.random() > near:
                    self._receive(moving, direction, len(half.behind))
            elif half.behind:
                self._receive(moving, direction, rng.randint(1, len(half.behind)))
            elif half.before:
                self._pass(moving, direction, rng.randint(1, len(half.before)))
            if moving.open:
                self._session_ack_if_due(moving)

    # -- violations

    def plant(self, kind: str, line: Line) -> bool:
        """Commits a violation now, if that is possible now."""
        if line.planted is not None or line.connection is None or not line.connection.open:
            return False
        violation = getattr(self, f"_plant_{kind}")(line)
        if violation is None:
            return False
        line.planted = violation
        self.planted.append(violation)
        return True

    def _violation(
        self, kind: str, variant: str, line: Line, number: int, *evidence: list[Packet], own: bool = True
    ) -> Planted:
        connection = evidence[-1][-1].connection
        return Planted(kind, variant, self.number, line if own else None, connection, number, list(evidence))

    def _transmissions(self, line: Line, message_id: int, number: int = 0) -> list[Packet]:
        return [
            packet
            for packet in self.packets
            if packet.line is line
            and packet.kind == "message"
            and packet.message_id == message_id
            and number in (0, packet.number)
        ]

    def _numbered(self, line: Line) -> list[Entry]:
        """Messages of the current sequence that the observer has seen."""
        return [entry for entry in line.table if entry.number and self._transmissions(line, entry.message_id)]

    def _plant_renumbered(self, line: Line) -> Planted | None:
        entries = self._numbered(line)
        connection = line.connection
        if not entries or connection is None or not self._room(connection, 0):
            return None
        variant = self.rng.choice(["new number", "new message id", "new sequence"])
        entry = self.rng.choice(entries)
        seen = self._transmissions(line, entry.message_id)
        if variant == "new number":
            line.table.remove(entry)
            line.table.append(entry)
            entry.number = 0
            for other in line.table[:-1]:  # numbers stay in table order
                if not other.number:
                    other.number, other.sequence, other.previous = line.next_number, line.sequence, line.next_number - 1
                    line.next_number += 1
            again = self._transmit(line, connection, len(line.table) - 1)
        elif variant == "new message id":
            entry.message_id = line.source.message_id()
            again = self._transmit(line, connection, line.table.index(entry))
        else:
            line.sequence, line.next_number = line.source.sequence(), 1
            for other in line.table:
                other.number, other.in_flight = 0, False
            for index, other in enumerate(line.table):
                again = self._transmit(line, connection, index)
                if other is entry:
                    break
        return self._violation("renumbered", variant, line, entry.number, seen, [again])

    def _plant_ack_beyond_receipt(self, line: Line) -> Planted | None:
        sequence, number = line.incoming
        path = self._ack_path(line)
        if not number or path is None or not self._room(*path):
            return None
        variant = self.rng.choice(["order", "final", "session", "bits", "sequence order", "sequence final"])
        if variant.startswith("sequence"):
            return self._plant_stray(line, variant)
        if variant in ("order", "final"):
            beyond = line.highest_sent[sequence] + self.rng.randint(1000, 2000)
            message_class = ORDER_ACK if variant == "order" else ACK_RECEIVE
            packet = self._acknowledge(line, message_class, sequence, beyond, beyond - 1, line.source.next_id + 100_000)
            return None if packet is None else self._violation("ack_beyond_receipt", variant, line, beyond, [packet])
        connection, direction = path
        far = self.rng.randint(300, 1000)
        packet = self._session_ack(connection, direction, **({"ack": far} if variant == "session" else {"base": far}))
        return self._violation("ack_beyond_receipt", variant, line, 0, [packet], own=False)

    def _plant_stray(self, line: Line, variant: str) -> Planted | None:
        """An acknowledgement of a sequence that the sender has not begun."""
        if line.hops:
            return None
        sequence = (line.source.ordinal + self.rng.randint(1000, 2000), line.source.stamp)
        message_class = ORDER_ACK if variant == "sequence order" else ACK_RECEIVE
        packet = self._acknowledge(line, message_class, sequence, 1, 0, line.source.next_id + 100_000)
        return None if packet is None else self._violation("ack_beyond_receipt", variant, line, 1, [packet])

    def _older_connection(self, line: Line, violation: bool) -> Planted | None:
        """A message of a lower sequence on a connection that is older than the higher one's, behind the higher one.

        violation: sent when the sender had an OrderAck for the higher one, and had shown it; else it was under way.
        """
        old = line.connection
        if old is None or not old.open or line.hops or line.stubborn or line.planted or self.own_ack_connection:
            return None
        self.settle()
        numbered = [entry for entry in line.table if entry.number]
        if not old.open or not numbered or line.incoming != (line.sequence, numbered[-1].number):
            return None
        if not self._room(old, 0) or not self._room(old, 1) or any(not entry.in_flight for entry in numbered):
            return None
        entry, lower = numbered[0], line.sequence
        if not violation:
            self._transmit_as(line, old, entry, 0)
        self._order_ack(line)
        self._arrive(old, 1)
        if line.sequence == lower:
            if any(other.number for other in line.table):
                return None
            line.sequence, line.next_number = line.source.sequence(), 1
        line.connection = new = self._open(line.sender, 2)
        self._send_messages(line, 1)
        self._arrive(new, 0)
        planted = None
        line.connection = old
        if violation and line.incoming == (line.sequence, 1) and self._room(old, 0) and self._room(old, 1):
            self._order_ack(line)
            order_ack = old.halves[1].log[-1]
            self._arrive(old, 1)
            shown = self._session_ack(old, 0)
            higher = [p for p in self.packets if p.line is line and p.kind == "message" and p.connection is new]
            again = self._transmit_as(line, old, entry, 0)
            planted = self._violation("id_went_back", OLDER, line, entry.number, higher, [order_ack], [shown], [again])
        self._pass(old, 0, len(old.halves[0].before))
        self._break(new)
        for other in line.table:
            other.in_flight = False
        return planted

    def _arrive(self, connection: Connection, direction: int) -> None:
        self._pass(connection, direction, len(connection.halves[direction].before))
        self._receive(connection, direction, len(connection.halves[direction].behind))

    def _plant_id_went_back(self, line: Line) -> Planted | None:
        connection = line.connection
        if line.hops:
            return None
        if self.rng.random() < 0.5:
            return self._older_connection(line, True)
        seen = [
            packet
            for packet in self.packets
            if packet.line is line and packet.sequence == line.sequence and packet.kind == "message"
        ]
        if not seen or connection is None or not self._room(connection, 0):
            return None
        line.sequence = (self.rng.randint(1, 5), line.source.stamp - self.rng.randint(1, 10**6))
        line.next_number, line.table = 1, [self._new_entry(line)]
        packet = self._transmit(line, connection, 0)
        line.stubborn = True  # never rolls
        return self._violation("id_went_back", "", line, 1, seen, [packet])

    def _plant_skipped(self, line: Line) -> Planted | None:
        """The sender leaves a number out; finish_skipped() looks for the acknowledgement past it."""
        seen = line.highest_sent.get(line.sequence)
        if not seen or seen != line.next_number - 1 or line.incoming[0] != line.sequence:
            return None
        connection = line.connection
        if connection is None or not self._room(connection, 0) or any(entry.number == 0 for entry in line.table):
            return None
        before = [
            p
            for p in self.packets
            if p.line is line and p.sequence == line.sequence and p.number == seen and p.kind == "message"
        ]
        if not before or any(not entry.in_flight for entry in line.table):
            return None
        line.stubborn = line.lenient = True
        line.next_number += 1
        line.table.append(self._new_entry(line))
        packet = self._transmit(line, connection, len(line.table) - 1)
        return self._violation("skipped", "", line, packet.number, before, [packet])

    def finish_skipped(self, violation: Planted) -> None:
        """Adds the acknowledgements past the hole to the evidence."""
        line, number = violation.line, violation.number
        assert line is not None
        sequence = violation.evidence[-1][0].sequence
        resent = [
            p
            for p in self.packets
            if p.line is line and p.kind == "message" and p.sequence == sequence and p.number == number
        ]
        violation.evidence[-1] = resent
        violation.evidence.append(
            [
                packet
                for packet in self.packets
                if packet.line is line
                and packet.sequence == sequence
                and packet.number >= number
                and (packet.kind == "order" or (packet.kind == "final" and packet.message_class & 0x4000))
            ]
        )

    def _plant_count_mismatch(self, line: Line) -> Planted | None:
        connection = line.connection
        direction = self.rng.randrange(2)
        if connection is None or not connection.halves[direction].sent:
            return None
        variant = self.rng.choice(["sent", "recoverable"])
        packet = self._session_ack(connection, direction, **{variant: self.rng.choice([-1, 1, 2, 7])})
        violation = self._violation("count_mismatch", variant, line, 0, [packet], own=False)
        self._pass(connection, direction, len(connection.halves[direction].before))
        self._break(connection)
        return violation

    def _plant_resent_after_ack(self, line: Line) -> Planted | None:
        connection = line.connection
        if connection is None or not self._room(connection, 0) or line.hops:
            return None
        for entry, order_ack in reversed(line.acknowledged):
            if entry.sequence != max(line.highest_sent, key=lambda sequence: sequence[::-1]):
                continue
            used = order_ack.connection
            half = used.halves[1 - order_ack.direction]
            if order_ack not in half.receipts or used is not connection:
                continue
            place = half.receipts.index(order_ack) + 1
            shown = [
                packet
                for packet in self.packets
                if packet.connection is used
                and packet.direction == 1 - order_ack.direction
                and packet.header
                and packet.header[0] >= place
            ]
            known = self._known(
                used, line, entry, max((packet.header[0] for packet in shown if packet.header), default=0)
            )
            if shown and known:
                packet = self._transmit_as(line, connection, entry, entry.number - 1)
                return self._violation(
                    "resent_after_ack", "", line, entry.number, [order_ack], [known], shown[-1:], [packet]
                )
        return None

    @staticmethod
    def _known(connection: Connection, line: Line, entry: Entry, acked: int) -> Packet | None:
        """A SessionHeader that covers the message and that the sender has had: A-17 asks for it besides the OrderAck.

        acked: how many counted packets of the receiver the sender has acknowledged.
        """
        sent = connection.halves[0].log
        own = line, entry.message_id, entry.sequence  # another line may have the same MessageIDs and sequences
        places = [at for at, one in enumerate(sent, 1) if (one.line, one.message_id, one.sequence) == own]
        place = max(places, default=0)
        stream = connection.halves[1].everything
        counted = 0
        for at, packet in enumerate(stream):
            counted += packet.counted
            if place and packet.header and packet.header[0] >= place:
                later = any(other.counted for other in stream[at + 1 :])
                return packet if later and counted + 1 <= acked else None
        return None

    def _plant_delivered_twice(self, line: Line) -> Planted | None:
        if not line.finals:
            return None
        sequence, number, previous, message_id = self.rng.choice(line.finals)
        first = [p for p in self.packets if p.line is line and p.kind == "final" and p.message_id == message_id]
        if not first:
            return None
        packet = self._acknowledge(line, ACK_RECEIVE, sequence, number, previous, message_id)
        return None if packet is None else self._violation("delivered_twice", "", line, number, first, [packet])
