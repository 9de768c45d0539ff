"""Captures of MSMQ traffic with known faults, written byte by byte from the protocol's layouts.

Independent of the engine and of the C core on purpose: readers of captures are tested with bytes that they had no hand
in.

`generate(seed, folder)` simulates a few queue managers in detail: sessions, streams, acknowledgements, breaks and
resends, as one observation point between the hosts sees them. Some senders are behind a router: an address and a port
say nothing of who has them. Then the capture itself suffers (lost, doubled and cut frames, a late start, rotated
files). Violations of the protocol can be planted; what they are and what shows them is in the result.
"""

import itertools
import random
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from ordack.capture import columnar

from tests.support.capture_bytes import ACK, _link, direct_name, ip_packet, padded, ping
from tests.support.capture_evidence import mark_evidence
from tests.support.capture_model import KINDS, Capture, Frame, Line, Manager
from tests.support.capture_violations import Pair

FAULTS = ("loss", "duplicates", "late start", "snap length", "file end", "rotation", "lost file")
FORMED = ("loss", "duplicates", "late start", "snap length", "rotation")
FORMS = ("", "tap", "queues")


def _lines(rng: random.Random, ends: tuple[Manager, Manager], both_ways: bool) -> Iterator[Line]:
    senders = [0, 1] if both_ways else [0]
    for sender in senders:
        target = ends[1 - sender]
        for index in range(rng.choice([1, 1, 2, 3])):
            source = ends[sender]
            hops = int(rng.random() < 0.1)
            if hops:
                source = Manager(rng.randbytes(16), source.address, rng.randrange(1000), source.stamp)
            selector = rng.choice([3, 5] if hops else [3, 5, 7, 7])
            if selector == 3:
                queue, name = f"private {index + 7}", struct.pack("<I", index + 7)
            elif selector == 5:
                name = rng.randbytes(16)
                queue = f"public {name.hex()}"
            else:
                host = f"[{target.text}]" if ":" in target.text else target.text
                queue = f"TCP:{host}\\PRIVATE$\\line{index}"
                name = direct_name(queue)
            yield Line(sender, source, target, selector, name, queue, source.sequence(), hops=hops)


def _simulate(rng: random.Random, violations: bool, length: int, power_cuts: bool) -> list[Pair]:
    start = rng.randrange(1_600_000_000, 1_900_000_000) * 1_000_000_000 + rng.randrange(10**9)
    six = rng.random() < 0.15

    def manager(index: int, receiver: bool) -> Manager:
        place = bytes([10, 0, int(receiver), index + 1])
        stamp = start // 1_000_000_000 if rng.random() < 0.5 else start // 1_000_000_000 - rng.randrange(10**7)
        return Manager(rng.randbytes(16), bytes(12) + place if six else place, rng.randrange(1000), stamp)

    receivers = [manager(index, True) for index in range(rng.choice([1, 1, 2]))]
    senders = [manager(index, False) for index in range(rng.choice([1, 2, 3]))]
    pairs: list[Pair] = []
    connections = 0
    for sender in senders:
        for receiver in receivers:
            pair = Pair(rng, len(pairs), (sender, receiver), start + rng.randrange(10**10), connections)
            pair.power_cuts = power_cuts
            pair.lines = list(_lines(rng, pair.ends, rng.random() < 0.3))
            plan = {id(line): rng.choice(KINDS) for line in pair.lines if violations and rng.random() < 0.5}
            due = {id(line): rng.randrange(length // 4, length) for line in pair.lines}
            for moment in range(length):
                pair.step()
                for line in pair.lines:
                    if id(line) in plan and moment >= due[id(line)] and pair.plant(plan[id(line)], line):
                        del plan[id(line)]
            pair.settle()
            for violation in pair.planted:
                skipping = violation.line
                if violation.kind == "skipped" and skipping is not None:
                    if skipping.connection is not None and skipping.connection.open:
                        pair._order_ack(skipping)
                        pair.settle()
                    pair.finish_skipped(violation)
            connections += len(pair.connections)
            pairs.append(pair)
    return pairs


def _translate(rng: random.Random, pairs: list[Pair]) -> None:
    """Some senders are behind a router (NAT): each connection that they open comes from one of its few addresses and
    from a port that no open one has, maybe one that another sender's had."""
    own = pairs[0].ends[0].address
    outer = [own[:-4] + bytes([100, 64, 0, index]) for index in range(rng.choice([1, 1, 2, 4]))]
    share = rng.choice([0, 0, 0.5, 1])
    behind = {id(sender) for sender in dict.fromkeys(pair.ends[0] for pair in pairs) if rng.random() < share}
    ends = {frame.connection.number: frame.time for pair in pairs for frame in pair.frames}
    opened = (one for pair in pairs for one in pair.connections if id(one.ends[0]) in behind)
    until: dict[tuple[bytes, int], int] = {}  # when an address and port were last used
    for connection in sorted(opened, key=lambda one: one.begin):
        connection.outer = rng.choice(outer)
        mine = {port: end for (address, port), end in until.items() if address == connection.outer}
        free = [port for port, end in mine.items() if end + 10**6 < connection.begin]
        fresh = next(port for port in iter(lambda: rng.randrange(2000, 65000), 0) if port not in mine)
        port = rng.choice(free) if free and rng.random() < 0.3 else fresh
        connection.ports = port, 1801
        until[connection.outer, port] = ends[connection.number]


def tcp_packet(frame: Frame, number: int) -> bytes:
    """The IP packet of a frame; its TCP checksum is 0, as where the network card fills it in."""
    if frame.noise:
        return frame.noise
    connection, direction = frame.connection, frame.direction
    initial = connection.initial[direction]
    sequence = initial if frame.sequence < 0 else initial + 1 + frame.sequence & 0xFFFFFFFF
    ack = connection.initial[1 - direction] + 1 + frame.ack & 0xFFFFFFFF if frame.flags & ACK else 0
    options = connection.options
    source, target = connection.ports if direction == 0 else connection.ports[::-1]
    head = struct.pack(
        ">HHIIBBHHH", source, target, sequence, ack, 5 + len(options) // 4 << 4, frame.flags, 64000, 0, 0
    )
    addresses = connection.addresses if direction == 0 else connection.addresses[::-1]
    return ip_packet(*addresses, 6, head + options + frame.payload, number)


LINKS = (1, 1, 1, 101, 113, 276, 0)


class Writer:
    """One capture file of a random format, but with the clock of the first: else a file may seem to begin too early."""

    def __init__(self, rng: random.Random, path: Path, clocks: list[bool]) -> None:
        self.path = path
        self.order = rng.choice("<<>")
        clocks.append(rng.random() < 0.4)
        self.nano = clocks[0]
        self.ng = rng.random() < 0.4
        self.links = [rng.choice(LINKS) for _ in range(rng.choice([1, 2]) if self.ng else 1)]
        self.count = 0
        if self.ng:
            self.parts = [self._block(0x0A0D0D0A, struct.pack(self.order + "IHHq", 0x1A2B3C4D, 1, 0, -1))]
            option = struct.pack(self.order + "HHB3xHH", 9, 1, 9, 0, 0) if self.nano else b""
            self.parts += [self._block(1, struct.pack(self.order + "HHI", link, 0, 0) + option) for link in self.links]
        else:
            magic = 0xA1B23C4D if self.nano else 0xA1B2C3D4
            self.parts = [struct.pack(self.order + "IHHiIII", magic, 2, 4, 0, 0, 262144, self.links[0])]

    def _block(self, kind: int, body: bytes) -> bytes:
        body = padded(body)
        size = struct.pack(self.order + "I", 12 + len(body))
        return struct.pack(self.order + "I", kind) + size + body + size

    def add(self, rng: random.Random, time: int, packet: bytes, vlan: int, snap: int) -> tuple[int, int]:
        """Writes one frame; returns its number and how many bytes of the IP packet are kept."""
        interface = rng.randrange(len(self.links))
        data = _link(self.links[interface], packet, vlan)
        kept = data[:snap] if snap else data
        units = time if self.nano else time // 1000
        if self.ng:
            head = struct.pack(self.order + "IIIII", interface, units >> 32, units & 0xFFFFFFFF, len(kept), len(data))
            self.parts.append(self._block(6, head + kept))
        else:
            per_second = 10**9 if self.nano else 10**6
            head = struct.pack(self.order + "IIII", units // per_second, units % per_second, len(kept), len(data))
            self.parts.append(head + kept)
        self.count += 1
        header = len(data) if len(data) == len(packet) else data.index(packet[:12])
        header = 0 if len(data) == len(packet) else header
        return self.count, max(0, min(len(packet), len(kept) - header))

    def close(self, cut: int = 0) -> None:
        """Writes the file without its last cut bytes."""
        data = b"".join(self.parts)
        self.path.write_bytes(data[: len(data) - cut])


def _noise(rng: random.Random, pair: Pair) -> bytes:
    a, b = pair.ends
    what = rng.randrange(3)
    if what == 0:  # a ping
        data = ping(rng.getrandbits(16), a.guid)
        return ip_packet(
            a.address, b.address, 17, struct.pack(">HHHH", 4057, 3527, 8 + len(data), 0) + data, rng.getrandbits(16)
        )
    if what == 1:  # another port
        return ip_packet(
            a.address, b.address, 6, struct.pack(">HHIIBBHHH", 40000, 80, 1, 1, 0x50, 0x18, 100, 0, 0) + b"LIOR" * 9, 1
        )
    return ip_packet(a.address, b.address, 1, bytes(8), 2)


def _faults(rng: random.Random, frames: list[Frame], faults: list[str]) -> tuple[list[Frame], int]:
    """What the capture suffers: the frames that are left, and the snap length."""
    snap = 0
    if "duplicates" in faults:
        doubled = []
        for frame in frames:
            doubled.append(frame)
            if rng.random() < 0.1:
                copy = Frame(
                    frame.time + 500,
                    frame.connection,
                    frame.direction,
                    frame.sequence,
                    frame.payload,
                    frame.flags,
                    frame.ack,
                )
                copy.noise = frame.noise
                doubled.append(copy)
        frames = doubled
    if "loss" in faults:
        rate = rng.choice([0.003, 0.01, 0.05])
        lost = [frame for frame in frames if rng.random() < rate]
        # A copy of the same bytes is lost too: once the peer has acknowledged them, a late copy helps no reader.
        gone: dict[tuple[int, int], set[int]] = defaultdict(set)
        for f in lost:
            gone[id(f.connection), f.direction].update(range(f.sequence, f.sequence + len(f.payload)))
        dropped = {id(frame) for frame in lost}
        frames = [
            f
            for f in frames
            if id(f) not in dropped
            and gone[id(f.connection), f.direction].isdisjoint(range(f.sequence, f.sequence + len(f.payload)))
        ]
    if "late start" in faults:
        frames = frames[rng.randrange(1, max(2, len(frames) // 2)) :]
    if "snap length" in faults:
        snap = rng.choice([68, 96, 150, 250, 400, 1000])
    return frames, snap


def _queued(rng: random.Random, frames: list[Frame]) -> list[Frame]:
    """As several queues of a network card write them: each in pieces, all that came since the one before."""
    count, by_flow = rng.randint(2, 4), rng.random() < 0.7
    period = rng.choice([1, 10, 100, 400]) * 10**6
    phases = [rng.randrange(period) for _ in range(count)]

    def written(frame: Frame) -> int:
        flow = 2 * frame.connection.number + frame.direction
        phase = phases[flow * 7919 % count if by_flow else rng.randrange(count)]
        return phase - (phase - frame.time) // period * period

    return sorted(frames, key=written)


def _tapped(frames: list[Frame]) -> list[list[Frame]]:
    """As a tap writes them: a file for each direction of the wire."""
    sides: tuple[list[Frame], list[Frame]] = [], []
    for frame in frames:
        addresses = frame.connection.addresses
        sides[addresses[frame.direction] > addresses[1 - frame.direction]].append(frame)
    return [side for side in sides if side]


def generate(
    seed: int,
    folder: Path,
    *,
    violations: bool | None = None,
    faults: Iterable[str] | None = None,
    length: int = 0,
    form: str = "",
    power_cuts: bool = False,
) -> Capture:
    """A capture, its seed deciding everything that is not given.

    violations: whether some are planted. faults: of the capture, out of FAULTS; with a form, those of FORMED. length:
    steps for each pair of hosts. form: out of FORMS, of which the first is in one file and in order. power_cuts:
    senders may forget acknowledgements.
    """
    rng = random.Random(seed)
    if violations is None:
        violations = rng.random() < 0.7
    if faults is None:
        faults = [] if rng.random() < 0.35 else [fault for fault in FAULTS if rng.random() < 0.25]
    faults = [fault for fault in faults if not form or fault in FORMED]
    pairs = _simulate(rng, violations, length or rng.choice([60, 150, 400]), power_cuts)
    _translate(random.Random(f"router {seed}"), pairs)
    everything = [frame for pair in pairs for frame in pair.frames]
    vlans = {connection.number: pair.vlan for pair in pairs for connection in pair.connections}
    for pair in pairs:
        for _ in range(rng.randrange(4)):
            moment = rng.choice(pair.frames)
            everything.append(Frame(moment.time + 1, moment.connection, 0, 0, b"", 0, 0, _noise(rng, pair)))
    everything.sort(key=lambda frame: frame.time)
    frames, snap = _faults(rng, everything, faults)
    folder.mkdir(parents=True, exist_ok=True)
    parts = rng.randint(2, 4) if "rotation" in faults or "lost file" in faults else 1
    borders = [0, *sorted(rng.randrange(len(frames) + 1) for _ in range(parts - 1)), len(frames)]
    missing = rng.randrange(parts) if "lost file" in faults else -1
    paths: list[Path] = []
    clocks: list[bool] = []
    cuts: list[int] = []
    number = 0
    for part in range(parts):
        mine = frames[borders[part] : borders[part + 1]]
        if not mine:
            continue
        number += 1
        if part == missing:
            cuts += [mine[0].time] if paths else []  # the next file's number tells
            continue
        for side, own in enumerate(_tapped(mine) if form == "tap" else [mine]):
            name = f"capture-{seed}{'-ab'[side + 1] if form == 'tap' else ''}-{number:06}"
            writer = Writer(rng, folder / f"{name}.{rng.choice(['pcap', 'pcapng', 'cap'])}", clocks)
            for frame in _queued(random.Random(f"queues {seed}"), own) if form == "queues" else own:
                packet = tcp_packet(frame, rng.getrandbits(16))
                place, kept = writer.add(rng, frame.time, packet, vlans[frame.connection.number], snap)
                frame.file, frame.number = len(paths), place
                if frame.noise:
                    continue
                frame.kept = max(0, len(frame.payload) - (len(packet) - kept))
            if "file end" in faults and rng.random() < 0.5:
                writer.close(rng.randint(1, 15))
                mine[-1].kept = -1
                cuts.append(mine[-1].time)
            else:
                writer.close()
            paths.append(writer.path)
    capture = Capture(
        seed,
        paths,
        [violation for pair in pairs for violation in pair.planted],
        [packet for pair in pairs for packet in pair.packets],
        frames,
        faults,
        set(),
        {pair.number: pair.lines for pair in pairs},
        sorted((connection for pair in pairs for connection in pair.connections), key=lambda one: one.begin),
        cuts,
    )
    mark_evidence(capture, pairs, everything)
    return capture


def capture_files(seed: int, folder: Path, pieces: int, length: int = 0, form: str = "") -> list[Path]:
    """A generated capture in so many files, or in as many as it has, in the order of time. With a form, each of its
    files is cut by itself."""
    chance = random.Random(seed)
    folder.mkdir(parents=True)
    capture = generate(seed, folder, length=length, form=form)
    paths = [Path(path) for path in columnar.in_order(capture.paths)]
    made = []
    for side, path in enumerate(paths):
        data = path.read_bytes()
        order = {
            b"\xd4\xc3\xb2\xa1": "<",
            b"\x4d\x3c\xb2\xa1": "<",
            b"\xa1\xb2\xc3\xd4": ">",
            b"\xa1\xb2\x3c\x4d": ">",
        }.get(data[:4])
        if order is None or (len(paths) > 1 and not form):
            made.append(path)
            continue
        records, at = [], 24
        while at + 16 <= len(data):
            size = 16 + struct.unpack_from(order + "I", data, at + 8)[0]
            records.append(data[at : at + size])
            at += size
        cuts = [0, *sorted(chance.sample(range(1, len(records)), min(pieces, len(records)) - 1)), len(records)]
        path.unlink()
        for number, (begin, end) in enumerate(itertools.pairwise(cuts)):
            made.append(folder / f"plant{f'-{side}' if form else ''}-{number:06}.pcap")
            made[-1].write_bytes(data[:24] + b"".join(records[begin:end]))
    return made if not form else [Path(path) for path in columnar.in_order(made)]
