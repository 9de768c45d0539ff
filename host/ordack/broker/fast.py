"""The fast path: common packets of open sessions are taken, collected and acknowledged in C (host/native/mqqb_fast.h).

A packet that the C code leaves goes to its session, which makes the same decisions. After the session's owner has
accepted a message, FastPath learns its stream. Any change that could change a decision makes it forget the stream.

Times: `now` monotonic milliseconds, `wall` seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from mqqb import compose, core, headers, parse
from mqqb.connection import OPEN, MessageReceived

from ordack.broker.acceptance import LOWEST_PRIORITY_RANK

if core.implementation == "c":
    from _mqqb import ffi, lib

    BYTES = ffi.typeof("uint8_t[]")
    RECORD = ffi.typeof("mqqb_incoming[]")
    COUNTS = ffi.typeof("mqqb_session[]")

if TYPE_CHECKING:
    from ordack.broker.acceptance import Batch
    from ordack.broker.incoming import IncomingState, IncomingStreams
    from ordack.broker.links import Arrived, Links, PeerLink
    from ordack.config.config import Config
    from ordack.store import Store

PATIENCE = 16  # streams learned in a row without a taken message; then only each PATIENCE-th
MESSAGE_ID_BLOCK = 4096  # reserved at once for OrderAcks
NEWS_MAX = 256  # slots reported at once
NEWS_WORDS = 6


class Run(NamedTuple):
    """Taken messages of a queue: their packets in a row, and size and stream of each."""

    queue: int
    packets: bytes
    sizes: list[int]
    streams: list[int]

    def each(self) -> list[bytes]:
        """Return the single packets."""
        found, at = [], 0
        for size in self.sizes:
            found.append(self.packets[at : at + size])
            at += size
        return found


class FastPath:
    """The fast slots of all links. send: writes the acknowledgements of links with an owner, after a commit."""

    def __init__(self, store: Store, links: Links, incoming: IncomingStreams, config: Config) -> None:
        self.send: Callable[[], None] | None = None
        self._store = store
        self._links = links
        self._incoming = incoming
        self._config = config
        self.is_on = core.implementation == "c" and config.early_order_ack > 0
        self.waiting: list[Arrived] = []  # messages to decide about by the full path
        self._slots: dict[int, tuple[PeerLink, Any]] = {}  # with the session's words, which C uses
        self._streams: dict[int, tuple[IncomingState, Any]] = {}  # with the record that C uses
        self._numbers: dict[IncomingState, set[int]] = {}
        self._moved: list[int] = []  # streams of the running transaction
        self._unwritten: list[Run] = []  # messages of the running transaction
        self._is_doubtful = False  # the taken messages need other decisions
        self._message_ids = range(0)
        if self.is_on:
            header = core.words(core.SESSION_HEADER)
            header[core.ACKS_WINDOW_SIZE] = 1
            ack = compose.session_ack(header)
            self.fast = ffi.gc(lib.mqqb_fast_new(ffi.from_buffer(BYTES, ack)), lib.mqqb_fast_free)
            self._run = ffi.new("mqqb_fast_run *")
            self._id = ffi.new("int32_t *")
            self._out = ffi.new("uint8_t[]", lib.MQQB_FAST_OUT_MIN)
            self._news = ffi.new("mqqb_fast_news[]", NEWS_MAX)
            self._words = ffi.cast("uint32_t *", self._news)
            incoming.changed = self.forget

    # ---- learning

    def learn_all(self, learned: Mapping[IncomingState, tuple[PeerLink, headers.UserMessage, bytes]]) -> None:
        """Learn the streams of stored messages whose end nobody has to hear of. Packets are without SessionHeader."""
        for state, (link, message, raw) in learned.items():
            self._learn(link, state, message, raw)

    def _learn(self, link: PeerLink, state: IncomingState, message: headers.UserMessage, raw: bytes) -> None:
        session, stream = link.session, state.stream
        queue = self._incoming.queue(state.target)
        if (
            not self.is_on
            or session.state != OPEN
            or session.round_trip
            or session.window.is_paused
            or state.link is not link
            or queue is None
            or stream.limit is not None
            or stream.record[core.INCOMING_REJECT_COUNT]
            or (state.final_acks is not None and any(True for _ in state.final_acks.rejecting))
        ):
            return
        link.learned += 1
        if link.learned > PATIENCE and link.learned % PATIENCE:
            return
        if link.slot < 0 and not self._open(link):
            return
        life = message.base.time_to_reach_queue
        ack = self._incoming.order_ack_template(link, state)
        record = ffi.from_buffer(RECORD, stream.record, True)
        number = lib.mqqb_fast_learn(
            self.fast,
            link.slot,
            ffi.from_buffer(BYTES, raw),
            len(raw),
            record,
            queue.identifier,
            min(life + self._config.clock_skew, compose.FOREVER),
            ffi.from_buffer(BYTES, ack),
            len(ack),
        )
        if number >= 0:
            if number in self._streams and (others := self._numbers.get(self._streams[number][0])):
                others.discard(number)
            self._streams[number] = state, record
            self._numbers.setdefault(state, set()).add(number)

    def _open(self, link: PeerLink) -> bool:
        counts = ffi.from_buffer(COUNTS, link.session.window.counts, True)
        link.slot = lib.mqqb_fast_open(self.fast, link.owner, counts)
        link.was_direct = link.session.direct_format_session
        if link.slot >= 0:
            self._slots[link.slot] = link, counts
        return link.slot >= 0

    def forget(self, state: IncomingState) -> None:
        """Leave further messages of a stream to the full path; its OrderAck, too."""
        for number in self._numbers.pop(state, ()):
            lib.mqqb_fast_forget(self.fast, number)

    def forget_all(self) -> None:
        """Leave the messages of all streams to the full path, also those that were taken."""
        if self.is_on:
            lib.mqqb_fast_forget(self.fast, -1)
            self._numbers.clear()
            self._is_doubtful = self.pending > 0

    def close(self, link: PeerLink) -> None:
        """Forget an ended link. Its taken messages will be stored."""
        if link.slot >= 0:
            lib.mqqb_fast_close(self.fast, link.slot)
            link.slot = -1

    def hold(self, link: PeerLink) -> None:
        """Leave SessionHeaders to the session: a message of this side is in flight."""
        if link.slot >= 0:
            lib.mqqb_fast_hold(self.fast, link.slot)

    def go_on(self, links: Iterable[PeerLink]) -> None:
        """Take packets again of links whose sessions have handled all their bytes."""
        for link in links:
            self._go_on(link)

    def _go_on(self, link: PeerLink) -> None:
        session = link.session
        link.is_split = session.reader.begin != session.reader.end
        if link.slot >= 0 and not link.is_split:
            self._unblock(link)

    def _unblock(self, link: PeerLink) -> None:
        session = link.session
        if session.direct_format_session != link.was_direct:  # OrderAcks get another address
            link.was_direct = session.direct_format_session
            for number in range(link.slot * lib.MQQB_FAST_STREAMS, (link.slot + 1) * lib.MQQB_FAST_STREAMS):
                lib.mqqb_fast_forget(self.fast, number)
        is_held = bool(session.window.awaiting_bits) or any(session.window.in_flight)
        lib.mqqb_fast_continue(self.fast, link.slot, is_held)

    # ---- a batch

    def take(self, link: PeerLink, data: bytes, now: int, wall: int) -> bytes:
        """Take the common packets at the beginning of received bytes; return the rest."""
        if link.slot < 0:
            return data
        if link.is_split:  # since the batch before: nothing of this link is undecided
            link.is_split = False
            if whole := self._links.completed(link, data, now):
                data = whole
                self._unblock(link)
        taken = lib.mqqb_fast_take(self.fast, link.slot, ffi.from_buffer(BYTES, data), len(data), wall)
        return data[taken:] if taken else data

    @property
    def pending(self) -> int:
        """The number of taken messages that are not stored."""
        return lib.mqqb_fast_pending(self.fast) if self.is_on else 0

    def put(self, batch: Batch, now: int, wall: int) -> list[Arrived]:
        """Let the running transaction store the taken messages in front of all others. If they do not all fit, or may
        need other decisions, return them as events of their sessions instead."""
        self._moved, self._unwritten = [], []
        if not self.pending:
            self._is_doubtful = False
            return []
        runs = list(self._runs())
        if self._is_doubtful or not self._fit(batch, runs):
            self.give_up(now)
            return [arrived for arrived in self.waiting if arrived[0].slot >= 0]  # until the commit: it may fail
        self._unwritten = runs
        for run in runs:
            batch.queued[run.queue] = batch.queued.get(run.queue, 0) + len(run.packets)
            batch.outcomes.room -= len(run.packets)
            batch.fast += len(run.sizes)
        numbers = ffi.new("int32_t[]", self.pending)
        self._moved = ffi.unpack(numbers, lib.mqqb_fast_moved(self.fast, numbers, self.pending))
        for number in self._moved:
            state = self._streams[number][0]
            state.last_access = wall  # B-274
            batch.incoming[state] = None
        if len(self._message_ids) < len(self._moved):
            count = max(MESSAGE_ID_BLOCK, len(self._moved))
            first_id = self._store.numbers.reserve_message_ids(count)
            self._message_ids = range(first_id, first_id + count)
        return []

    def write(self) -> None:
        """Write these messages."""
        for run in self._unwritten:
            self._store.messages.add_run(run.queue, LOWEST_PRIORITY_RANK, run.packets, run.sizes)

    def _runs(self) -> Iterator[Run]:
        run = self._run
        index = 0
        while lib.mqqb_fast_rows(self.fast, index, run):
            index += 1
            if run.count:
                sizes, streams = ffi.unpack(run.sizes, run.count), ffi.unpack(run.streams, run.count)
                yield Run(run.queue, ffi.buffer(run.packets, run.size)[:], sizes, streams)

    def _fit(self, batch: Batch, runs: list[Run]) -> bool:
        """Is there room for all runs (B-283, B-284)?"""
        if batch.outcomes.room < sum(len(run.packets) for run in runs):
            return False
        for run in runs:
            queue = self._incoming.queue(run.queue)
            if queue is None:
                return False
            if queue.quota is not None:
                state = self._store.queues.find(run.queue)
                if state is None or not state.has_room(batch.queued.get(run.queue, 0) + len(run.packets)):
                    return False
        return True

    def given_back(self) -> list[Arrived]:
        """Remove and return the waiting messages, as events of their sessions."""
        waiting, self.waiting = self.waiting, []
        return [arrived for arrived in waiting if arrived[0].slot >= 0]

    def give_up(self, now: int) -> None:
        """Leave the taken messages to the full path, and set their streams back."""
        self._is_doubtful = False
        self._message_ids = range(0)  # a transaction that failed has reserved them
        self._moved, self._unwritten = [], []
        if self.pending:
            for run in self._runs():
                for number, raw in zip(run.streams, run.each(), strict=True):
                    link = self._slots[number // lib.MQQB_FAST_STREAMS][0]
                    if link.slot == number // lib.MQQB_FAST_STREAMS:
                        packet = parse.parse(raw)
                        assert isinstance(packet, headers.UserMessage)
                        self.waiting.append((link, MessageReceived(packet, raw, True), now))
            lib.mqqb_fast_undo(self.fast)

    def acknowledge(self, now: int, wall: int) -> None:
        """Acknowledge the messages that `put` wrote, after the commit. Call it before the sessions acknowledge others,
        so that counts leave in order."""
        self.waiting.clear()
        moved, self._moved, self._unwritten = self._moved, [], []
        if not moved:
            return
        first, self._message_ids = self._message_ids[0], self._message_ids[len(moved) :]
        lib.mqqb_fast_commit(self.fast, wall, first)
        if self.send:
            for link in self._links.touched:
                if link.slot >= 0 and link.session.has_output:
                    lib.mqqb_fast_defer(self.fast, link.slot)
            self.send()
        else:
            lib.mqqb_fast_next_ack(self.fast, 1, self._id, self._out, lib.MQQB_FAST_OUT_MIN)  # there is none
        while size := lib.mqqb_fast_next_ack(self.fast, 0, self._id, self._out, lib.MQQB_FAST_OUT_MIN):
            link = self._slots[self._id[0]][0]
            link.session.put(ffi.buffer(self._out, size)[:])
            self._links.touch(link)
        owed = self.tell(now)
        for number in moved:
            state = self._streams[number][0]
            stream = state.stream
            link = self._slots[number // lib.MQQB_FAST_STREAMS][0]
            if link.slot < 0 or link.slot in owed:
                stream.schedule_order_ack(now, link.session, self._config.early_order_ack)
                self._incoming.owe(state)
            else:
                if stream.next_timeout() is not None:
                    self._incoming.settle(state)
                stream.order_ack_sent(now)

    def tell(self, now: int) -> set[int]:
        """Tell links and sessions what was taken and acknowledged; return the slots that owe an OrderAck."""
        owed: set[int] = set()
        while self.is_on and (count := lib.mqqb_fast_report(self.fast, self._news, NEWS_MAX)):
            words = iter(ffi.unpack(self._words, NEWS_WORDS * count))
            for slot, size, messages, order_acks, sent, flags in zip(*[words] * NEWS_WORDS, strict=True):
                link = self._slots[slot][0]
                link.heard = now
                counts = link.counts
                counts.received_bytes += size
                if messages:
                    counts.received += messages
                    link.history.received += messages
                    link.learned = 0
                if link.owner >= 0:
                    counts.sent_bytes += sent
                if flags & lib.MQQB_FAST_OWED:
                    owed.add(slot)
                if link.slot == slot and link.session.went_fast(order_acks, flags, now):
                    self._links.touch(link)
        return owed
