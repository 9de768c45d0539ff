"""Which packets are in a generated capture, and which of its violations an audit must find."""

from bisect import bisect_right
from collections import defaultdict
from itertools import combinations

from tests.support.capture_bytes import FIN, SYN
from tests.support.capture_model import OLDER, STANDING_ALONE, Capture, Frame, Line, Packet, Planted
from tests.support.capture_violations import Pair


def is_syn(frame: Frame) -> bool:
    return frame.kept >= 0 and not frame.noise and bool(frame.flags & SYN)


def _seen_at(capture: Capture, packet: Packet) -> int:
    """When does a reader have the packet? Behind a hole it waits for the acknowledgement that tells of the hole."""
    one, begin = packet.connection, capture.begins.get((packet.connection.number, packet.direction), 0)
    if not any(is_syn(frame) for frame in capture.frames if frame.connection is one):
        ports = one.addresses, one.ports
        if any((old.addresses, old.ports) == ports and old.begin < one.begin for old in capture.connections):
            return 2**63  # it may take what it sees for more of the old connection, behind a hole
    before = [p for p in capture.packets if p.connection is one and p.direction == packet.direction]
    told = 0
    if any(not other.visible for other in before if begin <= other.start < packet.start):
        answers = (f for f in capture.frames if f.connection is one and f.direction != packet.direction and f.kept >= 0)
        told = min((f.time for f in answers if not f.noise and f.ack > packet.start), default=2**63)
    return max(packet.frames[-1].time, told)


def _within_reach(capture: Capture, violation: Planted) -> bool:
    """Do both packets that show it come close enough together, and in an order that the capture shows?"""
    line, last = violation.line, violation.evidence[-1][-1]
    if violation.kind == "id_went_back" and violation.variant != OLDER:
        syns = {
            frame.direction: frame.time
            for frame in capture.frames
            if frame.connection is last.connection and is_syn(frame)
        }
        higher = [packet for packet in violation.evidence[0] if packet.visible]
        same = any(packet.connection is last.connection for packet in higher)
        first = min((_seen_at(capture, packet) for packet in higher), default=0)
        return same or (len(syns) == 2 and min(syns.values()) > first)
    if violation.kind in ("delivered_twice", "resent_after_ack"):
        moment = last.frames[0].time
        sent = [
            packet
            for packet in capture.packets
            if packet.line is line
            and packet.kind == "message"
            and packet is not last
            and packet.frames
            and packet.frames[0].time <= moment
        ]
        newest = max((packet.sequence[::-1] for packet in sent), default=(0, 0))[::-1]
        highest = max((packet.number for packet in sent if packet.sequence == last.sequence), default=0)
        seen = any(packet.visible and packet.message_id == last.message_id for packet in sent)
        if violation.kind == "delivered_twice":  # what is acknowledged of a sequence not yet seen is not judged
            first = [packet.frames[0].time for packet in violation.evidence[0] if packet.visible]
            of_sequence = [one for one in sent if one.visible and one.sequence == last.sequence]
            seen &= min((_seen_at(capture, one) for one in of_sequence), default=moment) < max(first, default=0)
        return seen and newest == last.sequence and highest < violation.number + WINDOW
    return True


def _ports_again(capture: Capture, begun: set[tuple[int, int]], seen: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Connections and directions that take ports of an earlier one and cannot be told from it: the SYN is not in the
    capture, and their numbers lie behind those of the one before, as if that one sent again."""
    found, used = set(), set()
    for connection in capture.connections:
        for direction in (0, 1):
            way = connection.number, direction
            ports = connection.addresses, connection.ports, direction
            if ports in used and way not in begun:
                found.add(way)
            if way in seen or way in begun:
                used.add(ports)
    return found


WINDOW = 64  # numbers of a sequence that a reader keeps in detail at least


def _accounted(capture: Capture, violation: Planted) -> bool:
    """May a reader trust that it knows every message of the sequence? What was sent before the capture it cannot know.

    It may if a message seen was handed over after the capture began. Counts of a connection it always knows.
    """
    line = violation.line
    if line is None or violation.kind == "resent_after_ack" or violation.variant == OLDER:
        return True
    evidence = min(frame.time for packet in violation.evidence[-1] for frame in packet.frames)
    if violation.variant.startswith("sequence"):
        left = any(
            _is_left(capture, other, evidence, sequence)
            for other in capture.pairs[violation.pair]
            for sequence in {None, *(packet.sequence for packet in capture.packets if packet.line is other)}
        )
        return not left and _has_begun(capture, violation)
    sequence = violation.evidence[-1][0].sequence
    if violation.kind in ("ack_beyond_receipt", "skipped") and _is_left(capture, line, evidence, sequence):
        return False
    begin = min(frame.time for frame in capture.frames if frame.kept >= 0)
    return any(
        packet.line is line
        and packet.sequence == sequence
        and packet.visible
        and packet.sent_time * 10**9 >= begin
        and packet.number < violation.number  # "skipped" is about the number before
        and packet.frames[-1].time <= evidence
        for packet in capture.packets
        if packet.kind == "message"
    )


def _is_left(
    capture: Capture, line: Line, until: int, sequence: tuple[int, int] | None = None, ever: bool = False
) -> bool:
    """Had the sender begun another connection by then, and is no end of one before it in the capture, of the one that
    carried the line, or this sequence of it, last, or of a later one? Then a reader cannot know what was sent there
    last. ever: or of any one."""
    sent = [
        packet
        for packet in capture.packets
        if packet.line is line and packet.kind == "message" and packet.visible and packet.frames[-1].time <= until
        if sequence in (None, packet.sequence)
    ]
    if not sent:
        return False
    last = max(sent, key=lambda packet: packet.frames[-1].time).connection
    fins = {  # a reset may be told late: what it overtook is waited for
        frame.connection.number: frame.time
        for frame in capture.frames
        if frame.kept >= 0 and not frame.noise and frame.flags & FIN and frame.direction == 0
    }
    peers = [one for one in capture.connections if one.ends == last.ends and one.begin <= until]
    after = [one for one in peers if ever or one.begin >= last.begin]
    return any(fins.get(one.number, until) >= later.begin for one, later in combinations(after, 2))


def _has_begun(capture: Capture, violation: Planted) -> bool:
    """Is there, between these addresses, a sequence of the same source that began within the capture?

    It did if it followed on one with a message seen that was handed over after the capture began. An OrderAck names no
    source: if there are several, it is not certain whose it is.
    """
    line, begin = violation.line, min(frame.time for frame in capture.frames if frame.kept >= 0)
    assert line is not None
    lines = [other for other in capture.pairs[violation.pair] if other.sender == line.sender]
    if violation.variant == "sequence order" and any(other.hops for other in lines):
        return False
    hosts = violation.connection.hosts
    used = {packet.connection.hosts for packet in capture.packets if packet.line in lines and packet.kind == "message"}
    if used != {hosts} or len({end.guid for one in capture.connections if one.hosts == hosts for end in one.ends}) > 2:
        return False  # the sender's address is not the same each time, or not its own
    end = min(frame.time for packet in violation.evidence[-1] for frame in packet.frames)
    for other in lines:
        first: dict[tuple[int, int], int] = {}  # (time stamp, ordinal) -> when its first message was seen
        handed: dict[tuple[int, int], int] = {}  # of one handed over after the capture began
        for packet in capture.packets:
            if packet.line is other and packet.kind == "message" and packet.visible and not other.hops:
                key, time = packet.sequence[::-1], packet.frames[-1].time
                first[key] = min(first.get(key, time), time)
                if packet.sent_time * 10**9 >= begin:
                    handed[key] = min(handed.get(key, time), time)
        if any(lower < key and seen < time < end for key, time in first.items() for lower, seen in handed.items()):
            return True
    return False


def mark_evidence(capture: Capture, pairs: list[Pair], everything: list[Frame]) -> None:
    """Which packets are in the capture, which pairs of hosts have holes, which violations must be found."""
    there = {id(frame) for frame in capture.frames if frame.kept >= 0 and not frame.noise}
    ranges: dict[tuple[int, int], list[tuple[int, int, Frame]]] = defaultdict(list)
    for frame in capture.frames:
        if id(frame) in there and frame.payload:
            ranges[frame.connection.number, frame.direction].append(
                (frame.sequence, frame.sequence + frame.kept, frame)
            )
    # A reader of a connection older than the capture takes the first bytes that it sees for the earliest. The SYN that
    # answers tells where both directions begin.
    syns = [f for f in capture.frames if id(f) in there and f.flags & SYN]
    begun = {(f.connection.number, direction) for f in syns for direction in {0, f.direction}}
    capture.begins = {key: 0 if key in begun else found[0][0] for key, found in ranges.items()}
    capture.unclear = unclear = _ports_again(capture, begun, set(ranges))
    for packet in capture.packets:
        begin, end = packet.start, packet.start + len(packet.data)
        packet.frames = [
            f for low, high, f in ranges[packet.connection.number, packet.direction] if low < end and high > begin
        ]
        covered = begin
        for low, high in sorted((f.sequence, f.sequence + f.kept) for f in packet.frames):
            if low > covered:
                break
            covered = max(covered, high)
        packet.visible = covered >= end and begin >= capture.begins.get((packet.connection.number, packet.direction), 0)
    numbers = {connection.number: pair.number for pair in pairs for connection in pair.connections}
    ends: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)  # of packets, and when each began
    for packet in capture.packets:
        if packet.visible:
            ends[packet.connection.number, packet.direction].append(
                (packet.start + len(packet.data), packet.frames[0].time)
            )
    for places in ends.values():
        places.sort()
    clouded: dict[int, int] = {}  # pair -> since when
    seen_until: dict[tuple[int, int], int] = {}  # connection, direction -> when its last whole packet began
    for frame in everything:
        number = numbers[frame.connection.number]
        harmless = frame.noise or (not frame.payload and not frame.flags & SYN)
        whole = id(frame) in there and frame.kept == len(frame.payload)
        way = (frame.connection.number, frame.direction)
        if not harmless and not whole:
            # A reader cannot tell when the missing bytes were sent: packets of both directions may have overtaken them.
            other = seen_until.get((way[0], 1 - way[1]), frame.connection.begin)
            clouded[number] = min(clouded.get(number, frame.time), seen_until.get(way, 0), other)
        reached = bisect_right(ends[way], (frame.sequence + len(frame.payload), 2**63))
        if whole and not harmless and reached > bisect_right(ends[way], (frame.sequence, 2**63)):
            seen_until[way] = ends[way][reached - 1][1]
    for moment in capture.cuts:  # nobody knows whose frames they were
        for pair in pairs:
            clouded[pair.number] = min(clouded.get(pair.number, moment), moment)
    capture.clouded = set(clouded)
    hosts = {pair.number: {connection.hosts for connection in pair.connections} for pair in pairs}
    for violation in capture.planted:
        groups = [[packet for packet in group if packet.visible] for group in violation.evidence]
        violation.shown = all(groups)
        last = max((frame.time for group in groups[-1:] for packet in group[:1] for frame in packet.frames), default=0)
        standing = violation.kind in STANDING_ALONE and violation.variant != OLDER
        # What is missing may be anybody's behind the address; and the stream's source may have sent it to another, as
        # may the queue manager that forwards for it.
        concerned = {number for number, used in hosts.items() if used & hosts[violation.pair]}
        if (line := violation.line) is not None:
            senders = (line.source, pairs[violation.pair].ends[line.sender])
            concerned |= {pair.number for pair in pairs if any(sender in pair.ends for sender in senders)}
            if _is_left(capture, line, last, ever=True):
                concerned |= set(hosts)
        clear = min(clouded.get(number, last + 1) for number in concerned) > last
        told = [[p for p in group if (p.connection.number, p.direction) not in unclear] for group in groups]
        violation.certain = all(told) and (
            _within_reach(capture, violation) and (standing or (clear and _accounted(capture, violation)))
        )
        shown = [packet for group in groups for packet in group]
        finals = {(id(packet.line), packet.own_id) for packet in shown if packet.kind == "final"}
        again = [p for p in capture.packets if p.kind == "final" and (id(p.line), p.own_id) in finals]  # shows it too
        if violation.kind == "id_went_back":  # and so does each message of either sequence
            either = {packet.sequence for packet in shown if packet.kind == "message"}
            again += [p for p in capture.packets if p.line is violation.line and p.sequence in either]
        violation.frames = {
            (frame.file, frame.number) for packet in (*shown, *again) for frame in packet.frames if frame.kept >= 0
        }
