"""What cuts.py knows of each message, what it finds in a store, and whether the two agree."""

from __future__ import annotations

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

import apsw
from mqqb import headers, parse
from ordack.config.names import DEAD_XACT
from ordack.store.schema import POISON

from tests.support.host_world import each_message, each_packet, wrong_columns

TAG = re.compile(rb"<(\d+)>")


class Violation(AssertionError):
    """Something that must hold does not."""


class Note:
    """What is known of one message. source: index of its host, or None: the peer's. target, queue: where it is to
    arrive. place: of the peer's, TxSequenceID and number. sent, ended: None if that is not known. expires: from that
    time on it may go. moved: it was sent again, behind others."""

    def __init__(self, tag: int, source: int | None, target: int, queue: str) -> None:
        self.tag = tag
        self.source = source
        self.target = target
        self.queue = queue
        self.place = 0, 0
        self.sent: bool | None = None
        self.ended: bool | None = False
        self.expires: int | None = None
        self.moved = False

    def __repr__(self) -> str:
        source = "the peer" if self.source is None else f"host {self.source}"
        return (
            f"message {self.tag} from {source} to {self.queue} of host {self.target} "
            f"(sent: {self.sent}, ended: {self.ended})"
        )


class Doubt:
    """A commit of one host of which it is not known whether it has happened. together: it is all or nothing."""

    def __init__(self, host: int, taken: Sequence[Note], letters: Sequence[Note], together: bool = True) -> None:
        self.host = host
        self.taken = taken
        self.letters = letters
        self.together = together


class Contents:
    """What is in a store. here: tags in each queue, in its order. dead: dead letters; certain: those of them that were
    not received. out: in outgoing queues; to_send: those of them that nobody has acknowledged. incoming: how far the
    streams of each source have come."""

    def __init__(self, store: apsw.Connection) -> None:
        self.here: dict[str, list[int]] = defaultdict(list)
        self.dead: Counter[int] = Counter()
        self.certain: set[int] = set()
        self.out: Counter[int] = Counter()
        self.to_send: set[int] = set()
        self.numbers: list[tuple[tuple[object, ...], int]] = []
        queues = "JOIN queues ON queues.id = queue ORDER BY rank, lookup_id"
        for _, packet, name, in_doubt in each_message(store, "name, in_doubt", queues):
            tag = tag_of(packet)
            if tag is not None:
                if name == DEAD_XACT:
                    self.dead[tag] += 1
                    self.certain |= set() if in_doubt else {tag}
                else:
                    self.here[name].append(tag)
                    self.numbers += [(number, tag) for number in numbers_of(packet)]
        for packets, held in store.execute("SELECT packet, held FROM outgoing_messages"):
            for packet in each_packet(packets):
                tag = tag_of(packet)
                if tag is not None:
                    self.out[tag] += 1
                    self.to_send |= set() if held else {tag}
        self.inbox = Counter(tag for tags in self.here.values() for tag in tags)
        self.incoming: dict[bytes, tuple[int, int]] = {
            source: (time_stamp << 32 | ordinal, number)
            for source, time_stamp, ordinal, number in store.execute(
                "SELECT source, time_stamp, ordinal, number FROM incoming"
            )
        }

    def has(self, tag: int) -> bool:
        """Is it anywhere?"""
        return bool(self.inbox[tag] or self.out[tag] or self.dead[tag])


@functools.lru_cache(10_000)
def _parsed(packet: bytes) -> object:
    return parse.parse(packet)


def tag_of(packet: bytes) -> int | None:
    """Which message it is; None: none with a tag. Identifiers in its headers are random: they look like a tag, too."""
    message = _parsed(packet)
    found = TAG.match(bytes(message.properties.body)) if isinstance(message, headers.UserMessage) else None
    return int(found[1]) if found else None


def numbers_of(packet: bytes) -> tuple[tuple[object, ...], ...]:
    """What no other message may have."""
    message = _parsed(packet)
    assert isinstance(message, headers.UserMessage)
    source, sequence = bytes(message.user.source_queue_manager), message.transaction
    return (
        (source, "MessageID", message.user.message_id),
        *([(source, sequence.tx_sequence_id, sequence.tx_sequence_number)] if sequence else []),
    )


def damage(store: apsw.Connection) -> list[str]:
    """What is wrong with a database, whatever was done with it."""
    found = [str(row[0]) for row in store.execute("PRAGMA integrity_check")]
    return wrong_columns(store) if found == ["ok"] else found


class Ledger:
    """All messages of an episode, and the doubts that are left. wall: gives the time. unsent: tags that the peer has
    yet to bring to an acknowledgement."""

    def __init__(self, wall: Callable[[], int], peer: bytes, unsent: Callable[[], set[int]]) -> None:
        self.notes: dict[int, Note] = {}
        self.doubts: list[Doubt] = []
        self.numbers: dict[tuple[object, ...], int] = {}
        self._wall = wall
        self._peer = peer
        self._unsent = unsent

    def note(self, source: int | None, target: int, queue: str) -> Note:
        """Of a new message."""
        made = Note(len(self.notes) + 1, source, target, queue)
        self.notes[made.tag] = made
        return made

    def in_queue(self, host: int, queue: str) -> list[Note]:
        """Those that may be in a queue."""
        return [note for note in self.notes.values() if (note.target, note.queue) == (host, queue)]

    def doubt(self, host: int, taken: Sequence[Note], letters: Sequence[Note], together: bool = True) -> Doubt:
        """A commit of a host begins."""
        for note in letters:
            note.sent = None
        for note in taken:
            note.ended = None
        self.doubts.append(Doubt(host, taken, letters, together))
        return self.doubts[-1]

    def told(self, doubt: Doubt, happened: bool) -> None:
        """It has happened, or not."""
        self.doubts.remove(doubt)
        for note in doubt.letters:
            note.sent = happened
        for note in doubt.taken:
            note.ended = happened

    def settle(self, host: int, contents: Contents) -> None:
        """Take for true what this store says of the doubts of its host."""
        for doubt in [doubt for doubt in self.doubts if doubt.host == host]:
            self.doubts.remove(doubt)
            for note in doubt.letters:
                note.sent = contents.has(note.tag)
            for note in doubt.taken:
                note.ended = not contents.inbox[note.tag]

    # ---- what must hold

    def check(self, host: int, contents: Contents, others: Sequence[Contents]) -> None:
        """Raise Violation unless the store of this host has what it must have. others: of all hosts, with this one in
        its place."""
        unsent = self._unsent()
        for note in self.notes.values():
            self._check_note(note, others, unsent)
        for doubt in self.doubts:
            if doubt.host == host and doubt.together:
                self._check_doubt(doubt, contents)
        for name, tags in contents.here.items():
            self._check_order(name, tags)
        for number, tag in contents.numbers:
            if self.numbers.setdefault(number, tag) != tag:
                raise Violation(f"messages {tag} and {self.numbers[number]} have the number {number}")
        self._check_stream(host, contents)

    def _check_note(self, note: Note, stores: Sequence[Contents], unsent: set[int]) -> None:
        tag = note.tag
        inbox = stores[note.target].inbox[tag]
        if note.source is None:
            out, to_send, dead = 0, tag in unsent, 0
        else:
            source = stores[note.source]
            out, to_send, dead = source.out[tag], tag in source.to_send, source.dead[tag]
            if tag in source.certain and (inbox or note.ended is True):
                raise Violation(f"a dead letter that was not received is there, and it was: {note}")
        may_go = note.expires is not None and self._wall() >= note.expires
        wrong = ""
        if inbox > 1 or out + dead > 1:
            wrong = "there twice"
        elif note.sent is False and (inbox or out or dead):
            wrong = "there, and was not sent"
        elif note.ended is True and inbox:
            wrong = "back"
        elif note.sent is True and note.ended is False and not may_go and not (inbox or to_send or dead):
            wrong = "lost"
        if wrong:
            where = f"in its queue {inbox} times, in outgoing queues {out}, in the dead-letter queue {dead}"
            raise Violation(f"it is {wrong}, {where}: {note}")

    def _check_doubt(self, doubt: Doubt, contents: Contents) -> None:
        elsewhere = [note for other in self.doubts if other is not doubt for note in other.taken]  # purged, perhaps
        happened = [contents.has(note.tag) for note in doubt.letters if note.expires is None]
        happened += [
            not contents.inbox[note.tag] for note in doubt.taken if note.expires is None and note not in elsewhere
        ]
        if len(set(happened)) > 1:
            raise Violation(f"a commit has happened in part: {happened} of {[*doubt.letters, *doubt.taken]}")

    def _check_order(self, name: str, tags: Iterable[int]) -> None:
        last: dict[int | None, int] = {}
        for tag in tags:
            note = self.notes[tag]
            if note.queue != name.removesuffix(POISON):
                raise Violation(f"it is in {name}: {note}")
            if not note.moved:
                if tag < last.get(note.source, 0):
                    raise Violation(f"it is in {name} behind message {last[note.source]}: {note}")
                last[note.source] = tag

    def _check_stream(self, host: int, contents: Contents) -> None:
        come = contents.incoming.get(self._peer, (0, 0))
        for note in self.notes.values():
            if note.source is None and note.target == host:
                is_there = contents.inbox[note.tag] > 0
                if is_there if note.place > come else note.ended is False and not is_there:
                    raise Violation(f"its stream has come to {come}, it is {note.place}: {note}")
