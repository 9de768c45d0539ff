"""An application over an outbox that knows what must survive, on a disk that loses power (power_disk.py)."""

import errno
from array import array

from mqqb import confirm, core
from ordack.node.storage import log, outbox, replay
from power_disk import KEEP_ALL as KEEP_ALL
from power_disk import KEEP_SYNCED as KEEP_SYNCED
from power_disk import KILL as KILL
from power_disk import TEAR as TEAR
from power_disk import WAYS as WAYS
from power_disk import Dice as Dice
from power_disk import Disk as Disk
from power_disk import PowerCut as PowerCut
from power_inward import SOURCES as SOURCES
from power_inward import Inward

log.jump = bytes  # MessageIDs and sequences go on as if there had been no start; jumps have tests of their own
CONFIRMATION = confirm.Settings()
JOURNAL = (0, core.USER_JN, core.USER_JP, core.USER_JN | core.USER_JP)
GUID = bytes(range(16))
NAMES = ("DIRECT=TCP:10.0.0.5\\private$\\line1", "DIRECT=OS:plant\\private$\\alarms")


class Sent:
    """What the application knows of one message: what never changes of it, and which records of it may be durable."""

    def __init__(self, name, handle, tx_sequence_id, number, packet):
        self.name = name
        self.handle = handle
        self.facts = (name, handle.message_id, tx_sequence_id, number, bytes(packet))
        self.is_cold = False  # on the flash only,
        self.is_aside = False  # there, too, stored while its fate is open
        self.records = [bytes(handle.record)]  # the oldest is durable, any newer one may be
        self.logged = 0  # this one will be durable with the next sync


class World:
    """An application that sends, is acknowledged, rolls over, renews, and knows what has to and may survive a cut."""

    def __init__(self, disk, dice, sizes=(0, 3, 17, 40), segment_size=500, capacity=100000, hold=100, write_bytes=8192):
        self.dice = dice
        self.write_bytes = write_bytes
        self.sizes = sizes
        self.segment_size = segment_size
        self.capacity = capacity
        self.found = 0  # out of turn
        self.hold = hold  # of so many messages of each queue in memory the others are left on the flash
        self.serial = 0
        self.starts = 0
        self.by_id = {}  # released, that is accepted or restored: MessageID -> facts
        self.transmitted = set()  # facts
        self.after = {}  # facts -> facts of those that were gone before
        self.by_number = {}  # (TxSequenceID, TxSequenceNumber) -> facts
        self.highest = {}  # queue -> highest released (TxSequenceID, TxSequenceNumber)
        self.unsynced = []
        self.failed = []  # refused by an error, may come back until the next one is logged
        self.gone = []  # perhaps not durably
        self.tables = {}
        self.inward = Inward()
        self.refused = 0
        self.open(disk)

    # ---- life -------------------------------------------------------------------------------------

    def open(self, disk):
        self.disk = disk
        self.outbox = outbox.Outbox(
            disk, GUID, self.segment_size, self.capacity, self.hold, write_bytes=self.write_bytes
        )
        must = [sent.facts for name in self.tables for sent in self.tables[name] if sent not in self.unsynced]
        may = [sent.facts for sent in self.gone + self.unsynced + self.failed]
        records = {}
        for some in [self.gone, self.unsynced, self.failed] + list(self.tables.values()):
            for sent in some:
                records[sent.facts] = sent.records + records.get(sent.facts, [])
        assert self.outbox.starts > self.starts or not self.by_id, "a start was not counted"
        self.starts = max(self.starts, self.outbox.starts - 1)
        seen = []
        tables = {name: [] for name in NAMES}
        # All of them, as a start with memory for them would find them.
        every = log.Log(disk, 0, 0, 1024, None)
        more = [queue for queue in self.outbox.queues if queue.flash_only]
        found = replay.recover(every) if more or self.dice.below(4) == 0 else self.outbox
        every = self.outbox.log if found is self.outbox else every
        packets = [bytes(every.load(restored.handle)) for restored in found.restored]
        for restored, packet in zip(found.restored, packets):
            name = restored.queue.name
            sent = Sent(name, restored.handle, restored.tx_sequence_id, restored.tx_sequence_number, packet)
            assert sent.facts in must or sent.facts in may, ("came from nowhere", sent.facts)
            assert restored.flags == log.TRANSACTIONAL | log.RECOVERABLE
            # What was in memory counts as sent if it may have been, which no record says. A snapshot has it so.
            as_sent = array("I", restored.handle.record)
            confirm.Confirmation(as_sent, CONFIRMATION).sent()
            known = records[sent.facts]
            assert sent.records[0] in known or bytes(as_sent) in known, ("a record of no time", sent.facts)
            if restored.sent:
                self._sent(sent)
            elif bytes(as_sent) in known:
                sent.records.append(bytes(as_sent))
            state = restored.handle.record[confirm.STATE]
            assert state != ord("Q") or sent.facts not in self.transmitted, "it was sent, and nobody knows"
            tables[name].append(sent)
            self._released(sent)
            seen.append(sent.facts)
        for facts in must:
            assert facts in seen, ("accepted, not gone, and lost", facts)
        assert len({facts[1] for facts in seen}) == len(seen), "restored twice"
        for facts in seen:
            for other in self.after.get(facts, ()):
                assert other not in seen, ("it was gone before a message that is there", other, facts)
        self.inward.open(self.outbox)
        self.tables = tables
        self._check_memory()
        self.unsynced = []
        self.failed = []
        self.gone = []
        self.records = {}
        for name in NAMES:
            queue = self.outbox.queue(name)
            self.records[name] = array("I", queue.record)
            last = (0, 0)
            for sent in self.tables[name]:
                assert last < sent.facts[2:4] < (self._id(name), queue.record[2]), ("out of order", sent.facts)
                last = sent.facts[2:4]
            assert (self._id(name), queue.record[2] - 1) >= self.highest.get(name, (0, 0)), "the counters went back"
        for message_id in self.by_id:
            assert message_id < self.outbox.next_message_id, "a MessageID would be used again"

    def _check_memory(self):
        """Of each queue no more is in memory than there was, and what is on the flash only is behind it."""
        warm = {restored.handle.message_id: restored for restored in self.outbox.restored}
        some = self.outbox.flash_only
        for name in NAMES:
            queue = self.outbox.queue(name)
            stored = {}
            for number in queue.flash_only:
                for found in some.walk(queue, number):
                    restored = some.restored(queue, found)
                    if restored.is_open:
                        assert found[3][2] not in stored, "it is open twice"
                        stored[found[3][2]] = bytes(restored.handle.record)
            kept = 0
            for sent in self.tables[name]:
                sent.is_aside = sent.facts[1] in stored
                sent.is_cold = sent.facts[1] not in warm and not sent.is_aside
                if sent.is_aside:
                    assert stored.pop(sent.facts[1]) in sent.records, "a record of no time"
                elif not sent.is_cold:
                    self._warm(sent, warm.pop(sent.facts[1]))
                    assert sent.handle.record[confirm.STATE] != confirm.O, "what is stored is in memory"
                    kept += 1
            assert not stored, "it is aside, and a start with more memory does not find it"
            cold = [sent for sent in self.tables[name] if sent.is_cold]
            assert len(cold) == self.outbox.queue(name).deferred, "what is on the flash is not counted"
            # A start takes `hold` before it comes to those that had been copied behind all others; the next one, again.
            assert kept <= 3 * self.hold + self.found, (kept, "of a queue are in memory")
            for sent in self.tables[name]:
                if not sent.is_cold and not sent.is_aside and cold and sent.facts[1] > cold[0].facts[1]:
                    assert sent.handle.record[confirm.STATE] in (ord("X"), ord("J")), "out of turn"
        assert not warm, "it is in memory, and a start with more memory does not find it"
        segments = self.outbox.log.segments
        there = [sent for name in NAMES for sent in self.tables[name] if sent.is_aside or sent.is_cold]
        assert sum(segment.flash_only for segment in segments) == len(there), "what is on the flash is not counted"

    def _warm(self, sent, restored):
        """The message is in memory from now on."""
        assert bytes(self.outbox.log.load(restored.handle)) == sent.facts[4], "another message came from the flash"
        assert (restored.tx_sequence_id, restored.tx_sequence_number) == sent.facts[2:4]
        sent.handle = restored.handle
        sent.is_cold = False
        if restored.sent or self.outbox.may_have_been_sent(sent.facts[1]):
            self._sent(sent)
        assert bytes(restored.handle.record) in sent.records, "a record of no time"

    def take_from_flash(self, name):
        """What the owner of an outbox does when there is memory again; and sometimes out of turn."""
        queue = self.outbox.queue(name)
        table = self.tables[name]
        cold = [sent for sent in table if sent.is_cold]
        if not cold or self.unsynced or self.inward.unsynced:
            return
        room = self.hold - len([sent for sent in table if not sent.is_cold and not sent.is_aside])
        if room > 0:
            found = [self.outbox.flash_only.next(queue) for _ in cold[: 1 + self.dice.below(room)]]
            assert [one.handle.message_id for one in found] == [sent.facts[1] for sent in cold[: len(found)]]
            for sent, restored in zip(cold, found):
                self._warm(sent, restored)
            del cold[: len(found)]
        if cold and self.dice.below(3) == 0:
            sent = cold[self.dice.below(len(cold))]
            self._warm(sent, take_back(self.outbox, queue, sent.facts[1]))
            self.found += 1
            self.change([sent], "failed", 0x8001)
            assert self.outbox.flash_only.find(queue, sent.facts[1]) is None, "it was found twice"

    def check_cut(self, how, partial):
        """Would everything be there if the power went now? Does not change this world."""
        self.fork().open(self.disk.after_cut(how, self.dice, partial))

    def fork(self):
        """This world as it knows itself now, for a test of what would become of it: open it next."""
        other = object.__new__(World)
        for name in (
            "dice",
            "sizes",
            "segment_size",
            "write_bytes",
            "capacity",
            "found",
            "hold",
            "serial",
            "starts",
            "unsynced",
            "failed",
            "gone",
            "tables",
        ):
            setattr(other, name, getattr(self, name))
        other.refused = 0
        other.inward = self.inward.copy()
        other.transmitted = set(self.transmitted)
        for name in ("by_id", "by_number", "highest", "after"):
            setattr(other, name, dict(getattr(self, name)))
        return other

    # ---- actions ----------------------------------------------------------------------------------

    def act(self):
        """One random action."""
        name = NAMES[self.dice.below(len(NAMES))]
        self.take_from_flash(name)
        some = [sent for sent in self.tables[name] if sent not in self.unsynced and not sent.is_cold]
        one = some[self.dice.below(len(some)) :][:1] if some else []
        what = self.dice.below(22)
        if what < 7:
            self.send(name, 1 + self.dice.below(3))
        elif what < 9:  # an OrderAck
            for sent in some[: self.dice.below(len(some) + 1)]:
                self.change([sent], "order_ack")
        elif what < 11:
            self.change(one, "final_ack", 0x4000)
        elif what == 11:
            self.change(one, "final_ack", 0x8003)
        elif what == 12:
            self.change(one, "handle_deadline", 1 << 33)
        elif what == 13:  # the application takes dead letters and what the journal has
            self.take([sent for sent in some if sent.handle.record[confirm.STATE] in (ord("X"), ord("J"))])
        elif what == 14:
            if self.dice.below(4) == 0:  # what the first message after a start does
                self.records[name] = array("I", (1, self.outbox.time_stamp(), 1, 0))
            elif one and one[0].handle.record[confirm.STATE] == ord("Q"):
                try:
                    self.outbox.will_send()
                    self._sent(one[0])
                    self.transmitted.add(one[0].facts)
                except log.OutboxWriteFailed:
                    self._take_back_failed()
        elif what == 15:
            self.sync()
        elif what < 20:
            self.receive(1 + self.dice.below(3))
        else:
            self.inward.take(self.dice)

    def receive(self, count):
        for _ in range(count):
            try:
                self.inward.arrive(self.dice, self.sizes)
                self._cut_off()
            except log.OutboxFull:
                self.refused += 1
                break
            except log.OutboxWriteFailed:
                self.refused += 1
                self._take_back_failed()
                break
        self.sync()

    def send(self, name, count):
        for _ in range(count):
            self.serial += 1
            packet = b"%d:" % self.serial
            body = bytes(self.sizes[self.dice.below(len(self.sizes))])
            whole = packet + body
            if log.HEAD_BYTES + len(whole) <= len(self.outbox.log.out):
                packet, body = whole, b""
            else:  # as a queue has it: in two parts, and to a whole number of words
                whole += bytes(-len(whole) & 3)
            record = self.records[name]
            journal = JOURNAL[self.dice.below(4)]
            handle = log.Stored(
                self.outbox.next_message_id, confirm.new(self.serial, CONFIRMATION, journal, ttbr=self.dice.below(99))
            )
            sent = Sent(name, handle, self._id(name), record[2], whole)
            assert sent.facts[2:4] > self.highest.get(name, (0, 0)), "a number would be used again"
            record[2] += 1
            self.unsynced.append(sent)
            self.tables[name].append(sent)
            flags = log.TRANSACTIONAL | log.RECOVERABLE
            queue = self.outbox.queue(name)
            self.after[sent.facts] = [gone.facts for gone in self.gone]
            warm = [one for one in self.tables[name] if not one.is_cold and not one.is_aside]
            sent.is_cold = queue.deferred > 0 or len(warm) > self.hold
            try:
                self.outbox.append(handle, queue, flags, record, packet, sent.is_cold, body)
                self._cut_off()
            except log.OutboxFull:
                self.refused += 1
                self._take_back(sent)
                self.failed.pop()  # nothing of it was written
                break
            except log.OutboxWriteFailed:
                self.refused += 1
                handle.segment = None
                self._take_back_failed()
                break
        self.sync()

    def sync(self):
        durable = False
        try:
            durable = self.outbox.sync()
            if durable:
                self.gone = []
                for name in NAMES:
                    for sent in self.tables[name]:
                        sent.records = sent.records[sent.logged :]
                        sent.logged = 0
        except log.OutboxWriteFailed:
            self._take_back_failed()  # others of them were durable already, because a segment was full
        assert not [sent for sent in self.unsynced if sent.handle.segment is None]
        for sent in self.unsynced:
            self._released(sent)
        self.unsynced = []
        self.inward.synced(durable)

    def change(self, some, event, *arguments):
        """Something happens to these messages."""
        for sent in some:
            if sent.is_aside and event != "order_ack":
                sent.handle = take_back(self.outbox, self.outbox.queue(sent.name), sent.facts[1]).handle
                sent.is_aside = False
                assert bytes(self.outbox.log.load(sent.handle)) == sent.facts[4], "another message came from the flash"
                assert bytes(sent.handle.record) in sent.records, "a record of no time"
            if getattr(confirm.Confirmation(sent.handle.record, CONFIRMATION), event)(*arguments) & confirm.STORE:
                self._log(sent)

    def take(self, some):
        for sent in some:
            sent.handle.record[confirm.STATE] = confirm.GONE
            self._log(sent)

    def _log(self, sent):
        sent.records.append(bytes(sent.handle.record))
        sent.logged = len(sent.records) - 1
        table = self.tables[sent.name]
        if sent.handle.record[confirm.STATE] == confirm.GONE:
            table.remove(sent)
            self.gone.append(sent)
        self.outbox.change([sent.handle])
        sent.is_aside = sent.handle.record[confirm.STATE] == confirm.O
        record = self.records[sent.name]
        if record[2] != 1 and not [sent for sent in table if sent.handle.record[confirm.STATE] in (ord("Q"), ord("S"))]:
            record[0] += 1  # B-096
            record[2] = 1
            record[3] = 0

    # ---- bookkeeping ------------------------------------------------------------------------------

    def _sent(self, sent):
        if confirm.Confirmation(sent.handle.record, CONFIRMATION).sent():
            sent.records.append(bytes(sent.handle.record))  # that is not logged, but a copy may have it

    def _id(self, name):
        record = self.records[name]
        return record[1] << 32 | record[0]

    def _released(self, sent):
        name, message_id, tx_sequence_id, number, _ = sent.facts
        assert self.by_id.setdefault(message_id, sent.facts) == sent.facts, "a MessageID was used twice"
        assert self.by_number.setdefault((tx_sequence_id, number), sent.facts) == sent.facts, "a number was used twice"
        self.highest[name] = max(self.highest.get(name, (0, 0)), (tx_sequence_id, number))

    def _cut_off(self):
        self.failed = []  # the new segment, begun after the error, has cut them off
        self.inward.failed = []

    def _take_back_failed(self):
        self.inward.take_back()
        for sent in reversed(list(self.unsynced)):
            if sent.handle.segment is None:
                self._take_back(sent)

    def _take_back(self, sent):
        self.unsynced.remove(sent)
        self.tables[sent.name].remove(sent)
        self.records[sent.name][2] = sent.facts[3]
        self.failed.append(sent)


def cuts_within(data, stride):
    """(how, part of a write) of each cut in it, at every stride-th byte, that leaves another disk than the others.

    What was not synced is lost however much of it was written; after KILL one start finds the same as after KEEP_ALL.
    """
    yield KEEP_SYNCED, b""
    for size in range(0, len(data) + 1, stride):
        yield KEEP_ALL, bytes(data[:size])
        yield TEAR, bytes(data[:size])


def every_cut(seed, actions, stride=1, **options):
    """Run a workload; at every change of the disk, and at every stride-th byte of it, see what a cut there leaves.

    Returns the number of cuts, all of which left everything in order (else AssertionError or an outbox error).
    """
    dice = Dice(seed)
    cuts = [0]

    def before(disk, step, data):
        for how, partial in cuts_within(data, stride):
            world.check_cut(how, partial)
            cuts[0] += 1

    world = World(Disk(), dice, **options)
    world.disk.before = before
    for _ in range(actions):
        world.act()
    return cuts[0]


def many_lives(seed, lives, errors=True, **options):
    """A workload that is cut again and again, at random places, and each time goes on from what was left.

    Returns (messages released, refusals).
    """
    dice = Dice(seed)
    world = None

    def before(disk, step, data):
        budget[0] -= 1 + len(data)
        if budget[0] < 0:
            partial.append(bytes(data[: dice.below(len(data) + 1)]))
            raise PowerCut
        if errors and dice.below(12) == 0:
            if step == "append":
                disk.tail.data += data[: dice.below(len(data) + 1)]
            if step in ("append", "sync"):  # LittleFS: a sync behind a write that has failed says nothing
                disk.tail.unreliable = True
            raise OSError(errno.EIO if step == "sync" else errno.ENOSPC if hasattr(errno, "ENOSPC") else 28)

    disk = Disk()
    for _ in range(lives):
        budget = [dice.below(3000)]
        partial = []
        try:
            if world is None:
                world = World(disk, dice, **options)
            else:
                disk.before = None  # what a start may do without: being cut itself is the next test's matter
                if dice.below(2):
                    disk.before = before
                try:
                    world.open(disk)
                except log.OutboxWriteFailed:
                    disk.before = None
                    world.open(disk)
            disk.before = before
            while True:
                world.act()
        except PowerCut:
            pass
        except OSError:
            partial.append(b"")
        how = (KEEP_ALL, KEEP_SYNCED, TEAR, KILL)[dice.below(4)]
        disk = disk.after_cut(how, dice, partial[0])
    return len(world.by_id), world.refused


# ---- single messages


def put(box, body, name=NAMES[0], journal=0):
    """Send one message; its handle."""
    queue = box.queue(name)
    handle = log.Stored(box.next_message_id, confirm.new(1, CONFIRMATION, journal))
    record = array("I", queue.record)
    record[2] += 1
    box.append(handle, queue, log.TRANSACTIONAL | log.RECOVERABLE, record, body)
    box.sync()
    return handle


def take_back(box, queue, message_id):
    """Take a message from the flash into memory."""
    restored = box.flash_only.find(queue, message_id)
    box.flash_only.attach(restored)
    return restored


def fill(box):
    while True:
        put(box, bytes(200))


def end(box, handles):
    """Nobody needs these messages any more."""
    for handle in handles:
        handle.record[confirm.STATE] = confirm.GONE
    box.change(handles)


def bodies(box):
    return [bytes(box.log.load(restored.handle)) for restored in box.restored]


def raises(kind, call, *arguments):
    """The exception of that kind which the call must raise."""
    try:
        call(*arguments)
    except kind as error:
        return error
    raise AssertionError("it should have raised " + str(kind))
