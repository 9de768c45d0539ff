"""Messages that arrive at an outbox in memory, and the facts about them that must survive."""

from array import array

from mqqb import confirm
from ordack.node.storage import log, sources

SOURCES = ((bytes(range(16, 32)), "commands"), (bytes(16), "commands"), (bytes(16), "settings"))


class Come:
    """What is known of one arrival: source, place in its stream, packet; and which records of it may be durable."""

    def __init__(self, handle, index, number, packet):
        self.handle = handle
        self.facts = (index, number, bytes(packet), handle.message_id)
        self.records = [bytes(handle.record)]
        self.logged = 0


class Inward:
    """The other way: peers that send again what is not acknowledged, and what of theirs has to and may survive.

    Every sixth message of a source is rejected: it counts, and is not kept.
    """

    def __init__(self):
        self.kept = []
        self.unsynced = []  # of those
        self.failed = []  # refused by an error, may come back until the next message is logged
        self.gone = []  # perhaps not durably
        self.acknowledged = [0] * len(SOURCES)  # numbers that the source will never send again
        self.highest = [0] * len(SOURCES)
        self.by_number = {}  # number of the arrival -> facts

    def copy(self):
        other = Inward()
        for name in ("kept", "unsynced", "failed", "gone", "acknowledged", "highest"):
            setattr(other, name, list(getattr(self, name)))
        other.by_number = dict(self.by_number)
        return other

    def open(self, box):
        self.box = box
        must = [come for come in self.kept if come not in self.unsynced]
        may = self.unsynced + self.gone + self.failed
        sources = [box.source(*source) for source in SOURCES]
        indices = {id(source): index for index, source in enumerate(sources)}
        kept = []
        for handle in box.restored_arrivals:
            index = indices[id(handle.source)]
            packet = bytes(box.log.load(handle))
            found = [come for come in must + may if come.facts[2:] == (packet, handle.message_id)]
            found = [come for come in found if come.facts[0] == index]
            assert found, ("arrived from nowhere, or was taken before", index, packet, handle.message_id)
            assert bytes(handle.record) in [record for come in found for record in come.records], "a record of no time"
            kept.append(Come(handle, index, found[0].facts[1], packet))
        facts = [come.facts for come in kept]
        assert len(facts) == len({one[:2] for one in facts}), "arrived twice"
        for come in must:
            assert come.facts in facts, ("received, acknowledged, not taken, and lost", come.facts)
        there = [one[:2] for one in facts] + [come.facts[:2] for come in self.gone]
        for come in self.unsynced + self.failed:
            index, number, _, _ = come.facts
            assert number > sources[index].record[2] or (index, number) in there, ("counted, and lost", come.facts)
        for index, source in enumerate(sources):
            assert self.acknowledged[index] <= source.record[2] <= self.highest[index], "its counters are wrong"
            assert source.record[3] == source.record[2] % 5, "half of its counters"
            mine = [come.facts for come in kept if come.facts[0] == index]
            assert mine == sorted(mine), "out of order"
            assert not mine or mine[-1][1] <= source.record[2], "it is there and does not count"
        assert facts == sorted(facts, key=lambda one: one[3]), "out of order"
        assert not facts or facts[-1][3] < box.next_arrival, "a number would be used again"
        self.kept = kept
        self.unsynced = []
        self.failed = []
        self.gone = []
        for come in kept:
            self._released(come)
        for number in self.by_number:
            assert number < box.next_arrival, "a number would be used again"
        self.acknowledged = [source.record[2] for source in sources]

    def arrive(self, dice, sizes):
        """The next message of some source."""
        index, source, number = self._next(dice)
        packet = b"%d<%d:" % (index, number) + bytes(sizes[number % len(sizes)])
        record = confirm.new(number, confirm.Settings())
        record[confirm.STATE] = log.RECEIVED
        before = array("I", source.noted)
        come = Come(sources.Arrival(self.box.next_arrival, record, source), index, number, packet)
        self.unsynced.append(come)
        self.kept.append(come)
        try:
            self.box.arrive(come.handle, source, packet)
        except log.OutboxFull:
            assert source.record == before, "a message that was refused counts"
            self.unsynced.remove(come)
            self.kept.remove(come)
            raise
        except log.OutboxWriteFailed:
            assert source.record[2] <= before[2], "a message that was refused counts"
            raise

    def take(self, dice):
        """Some are taken, of some a FinalAck is owed."""
        some = [come for come in self.kept if come not in self.unsynced]
        some = some[: dice.below(len(some) + 1)]
        for come in some:
            record = come.handle.record
            owed = record[confirm.STATE] == log.RECEIVED and dice.below(2)
            record[confirm.STATE] = log.TAKEN if owed else confirm.GONE
            record[confirm.CLASS] = confirm.ACK_RECEIVE
            come.records.append(bytes(record))
            come.logged = len(come.records) - 1
            if not owed:
                self.kept.remove(come)
                self.gone.append(come)
        self.box.change([come.handle for come in some])

    def synced(self, durable):
        """All that is not taken back is accepted; durable: the counters too, so OrderAcks may go out."""
        for come in self.unsynced:
            assert come.handle.segment is not None
            self._released(come)
        self.unsynced = []
        if durable:
            self.gone = []
            for come in self.kept:
                come.records = come.records[come.logged :]
                come.logged = 0
            self.acknowledged = [self.box.source(*source).record[2] for source in SOURCES]

    def take_back(self):
        for come in list(self.unsynced):
            if come.handle.segment is None:
                self.unsynced.remove(come)
                self.kept.remove(come)
                self.failed.append(come)

    def _next(self, dice):
        index = dice.below(len(SOURCES))
        source = self.box.source(*SOURCES[index])
        number = source.record[2] + 1
        for i, word in enumerate((1, 77, number, number % 5)):
            source.record[i] = word
        self.highest[index] = max(self.highest[index], number)
        return index, source, number

    def _released(self, come):
        assert self.by_number.setdefault(come.facts[3], come.facts) == come.facts, "a number was used twice"
