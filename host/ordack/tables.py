"""An outgoing message table that may have a million places: whatever is taken out of it, nobody walks over the rest."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from mqqb import core
from mqqb.reader import OrderAckBody
from mqqb.streams import Entry, OutgoingStream
from mqqb.transfer import TransferInfo


def key_of(entry: Entry) -> int:
    """The key of the message in the store."""
    assert isinstance(entry.key, int)
    return entry.key


class LongStream(OutgoingStream):
    """An OutgoingStream whose entries have the keys of the store, which rise along the table, and that does not begin
    new sequences by itself. numbered: how many in the table are transactional."""

    numbered = 0

    def append(self, entry: Entry) -> None:
        """As OutgoingStream.append."""
        super().append(entry)
        self.numbered += entry.tx_sequence_number > 0

    def extend(self, entries: list[Entry]) -> None:
        """As `append`, for each of these, which are all of one priority."""
        self.append(entries[0])
        for entry in entries[1:]:
            entry.stream = self
        self.table += entries[1:]
        self.numbered += sum(entry.tx_sequence_number > 0 for entry in entries[1:])

    def hold_again(self, entries: list[Entry]) -> None:
        """These are not to be sent any more, and no OrderAck can prove them stored: at the start."""
        for entry in entries:
            entry.stream = self
        self.awaiting_final_ack += entries

    def remove(self, entries: list[Entry]) -> None:
        """As OutgoingStream.remove."""
        count = len(entries)
        if self._held or self.awaiting_final_ack[:count] != entries:
            super().remove(entries)
        else:
            del self.awaiting_final_ack[:count]  # as a rule the oldest

    def is_progress(self, body: OrderAckBody) -> bool:
        """As OutgoingStream.is_progress. Each of many streams is asked, and as a rule this tells."""
        time_stamp = self.record[core.OUTGOING_TIME_STAMP]
        return time_stamp == body.fields[core.ACK_TIME_STAMP] and super().is_progress(body)

    def entries(self, keys: Iterable[int]) -> list[Entry]:
        """The entries with these keys: those in the table, then those that await their FinalAck."""
        others = set(keys)
        found = [self.table[place] for place in self._places(sorted(others))]
        others.difference_update(key_of(entry) for entry in found)
        for entry in self.awaiting_final_ack if others else ():
            if entry.key in others:
                found.append(entry)
                others.remove(entry.key)
                if not others:
                    break
        return found

    def transfer_info(self) -> TransferInfo:
        """How far the stream is, for an operator."""
        return TransferInfo(self, self.numbered)

    def _take(self, entries: list[Entry]) -> int:
        table = self.table
        places = self._places(sorted(map(key_of, entries)))
        if places:
            first, end = places[0], places[-1] + 1
            gone = set(places)
            self.numbered -= sum(table[place].tx_sequence_number > 0 for place in places)
            for cursor in self._cursors:
                cursor[1] -= bisect_left(places, cursor[1])
            table[first:end] = [table[place] for place in range(first, end) if place not in gone]
        if not self.numbered:
            self._resend_time = None  # B-240
        return len(places)

    def _places(self, keys: list[int]) -> list[int]:
        """Where the entries with these keys, which rise, are in the table; those that are in it."""
        table = self.table
        places = []
        place = 0
        for key in keys:
            if place == len(table) or table[place].key != key:  # as a rule it is the next
                place = bisect_left(table, key, place, key=key_of)
            if place < len(table) and table[place].key == key:
                places.append(place)
                place += 1
        return places
