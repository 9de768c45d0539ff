"""Makes cases.h: calls of the core with what they must give, for test_mqqb.c.

Usage: cases.py CASES.h [SEED]

The Python twin, which tests/core holds to the specification, answers the worked cases of tests/mp/test_core.py, every
field of every part at the edges of every range, and sessions and streams by chance. The C core has to do the same.
"""

import contextlib
import os
import random
import sys
from array import array
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "firmware"), str(ROOT / "tests" / "mp")]

import test_core  # noqa: E402
from mqqb import constants as c  # noqa: E402
from mqqb import core_py  # noqa: E402

from c_core import layout  # noqa: E402

# The arguments of functions: a number, or a structure of so many words.
SHAPES = {
    "part_size": (1,), "part_words": (1,), "packet_total": (1, 1), "serial_after": (1, 1), "is_acked": (1, 1, 1),
    "session_init": (12, 1), "session_can_send": (12,), "session_sent": (12, 1), "session_received": (12, 1),
    "session_stored": (12, 1), "session_unacked_received": (12,), "session_unacked_sent": (12,),
    "session_fill": (12, 7), "session_check": (12, 7, 1), "tx_compare": (1, 1, 1, 1), "accept": (4, 5),
    "stamp": (4, 1, 5), "order_ack_received": (4, 9), "roll": (4,),
}  # fmt: skip
FUNCTIONS = ("unpack", "pack", "frame", *SHAPES)
ASSERTED = (
    "part_size",
    "part_words",
    "session_init",
    "session_stored",
    "stamp",
)  # where the C core asserts what the twin refuses
MOST = 5000  # cases of one function
EDGES = [
    0, 1, 2, 3, 4, 5, 7, 8, 0x10, 0x11, 0x12, 0x13, 19, 20, 0x1D, 0x1E, 0x20, 0x40, 0xFA, 0xFB, 0xFF, 119,
    120, 499, 500, 0x310, 0x1000, 0x5548, 19999, 20000, 0x7FFF, 0x8000, 0xFFF2, 0xFFFE, 0xFFFF, 0x10000,
    120000, 120001, 0x3FFFFF, 0x400000, 0x400001, 0x524F494C, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF,
]  # fmt: skip
ZEROED = (c.INTERNAL_HEADER, c.SECURITY_HEADER, c.DEBUG_HEADER, c.MESSAGE_PROPERTIES_HEADER, c.BASE_HEADER)
VALID: dict[int, dict[int, int]] = {  # words that are not free: something in range
    c.BASE_HEADER: {c.BASE_VERSION_NUMBER: c.VERSION_NUMBER, c.BASE_SIGNATURE: c.SIGNATURE, c.BASE_PACKET_SIZE: 4096},
    c.INTERNAL_HEADER: {c.INTERNAL_FLAGS: c.PT_ESTABLISH_CONNECTION},
    c.SESSION_HEADER: {c.ACKS_WINDOW_SIZE: 64},
    c.TRANSACTION_HEADER: {c.TX_NUMBER: 6, c.TX_PREVIOUS: 5},
    c.CONNECTION_PARAMETERS: {c.PARAMETERS_RECOVERABLE_ACK_TIMEOUT: 500, c.PARAMETERS_ACK_TIMEOUT: 20000},
    c.USER_HEADER: {c.USER_FLAGS: 0x00201C20},
    c.MESSAGE_PROPERTIES_HEADER: {c.PROPERTIES_MESSAGE_SIZE: 500, c.PROPERTIES_ALLOCATION_BODY_SIZE: 500},
    c.SECURITY_HEADER: {c.SECURITY_SENDER_ID_SIZE: 28},
    c.ESTABLISH_CONNECTION: {c.ESTABLISH_OPERATING_SYSTEM: 0x0310},
    c.ORDER_ACK: {c.ACK_NUMBER: 1},
    c.FINAL_ACK: {c.ACK_NUMBER: 1},
    c.PING: {c.PING_SIGNATURE_WORD: c.PING_SIGNATURE},
}


class Recorder:
    """The twin, with a note of each call: function, words, bytes, result (None: refused), words and bytes after it."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int], bytes, int | None, list[int], bytes]] = []

    def __getattr__(self, name: str) -> Any:
        if name not in SHAPES:
            return getattr(core_py, name)

        def call(*arguments: Any) -> Any:
            before, refused = self._flat(name, arguments), name in ASSERTED
            try:
                result = getattr(core_py, name)(*arguments)
                refused = False
                return result
            finally:
                after = self._flat(name, arguments)
                if before is not None and after is not None:
                    if refused:
                        self.calls.append((name, before, b"", None, after, b""))
                    elif sys.exc_info()[0] is None:
                        self.calls.append((name, before, b"", int(result or 0), after, b""))

        return call

    @staticmethod
    def _flat(name: str, arguments: tuple[Any, ...]) -> list[int] | None:
        """The words of the arguments; None if C could not be given them."""
        flat: list[int] = []
        for argument, size in zip(arguments, SHAPES[name], strict=True):
            words = list(argument[:size]) if isinstance(argument, array) else [int(argument)]
            if len(words) != size or not all(0 <= word <= 0xFFFFFFFF for word in words):
                return None
            flat += words
        return flat

    def unpack(self, part: int, fields: "array[int]", data: bytes, offset: int, end: int) -> int:
        status = core_py.unpack(part, fields, data, offset, end)
        after = list(fields[: core_py.part_words(part)]) if status == c.OK else [7] * core_py.part_words(part)
        self.calls.append(("unpack", [part], bytes(data[offset:end]), status, after, b""))
        return status

    def pack(self, part: int, fields: "array[int]", data: bytearray, offset: int) -> None:
        count = core_py.part_words(part)
        room = bytearray(core_py.part_size(part))
        if len(fields) >= count:
            try:
                core_py.pack(part, fields, room, 0)
                self.calls.append(("pack", [part, *fields[:count]], b"", 0, [], bytes(room)))
            except ValueError:
                self.calls.append(("pack", [part, *fields[:count]], b"", None, [], b""))
        core_py.pack(part, fields, data, offset)

    def frame(self, data: bytes, offset: int, end: int, total: "array[int]") -> int:
        before = total[0] if len(total) else 0
        status = core_py.frame(data, offset, end, total)
        self.calls.append(("frame", [before], bytes(data[offset:end]), status, [total[0]], b""))
        return status


def parts(core: Recorder, dice: random.Random) -> None:
    """Every field at every edge, cut off everywhere, and UserHeader.Flags in all their kinds."""
    for part in range(c.PARTS):
        widths = [{"B": 0xFF, "H": 0xFFFF, "I": 0xFFFFFFFF}[letter] for letter in core_py._FORMATS[part][1:]]
        valid = [dice.getrandbits(32) & width for width in widths]
        for word in range(len(widths)):
            if part in (
                c.INTERNAL_HEADER,
                c.SECURITY_HEADER,
                c.DEBUG_HEADER,
                c.MESSAGE_PROPERTIES_HEADER,
                c.BASE_HEADER,
            ):
                valid[word] = 0
        for place, value in VALID.get(part, {}).items():
            valid[place] = value
        changed = [(place, value) for place in range(len(valid)) for value in EDGES]
        if part == c.USER_HEADER:
            changed += [(c.USER_FLAGS, value << shift | 0x200020) for shift in (10, 13, 16) for value in range(8)]
            changed += [(c.USER_FLAGS, dice.getrandbits(32) & 0xF9FFFFFF | c.USER_MP) for _ in range(200)]
            changed += [
                (c.USER_FLAGS, flags) for flags in (0x300000, 0x300020, 0x1C20, 0x2201C20, 0x20001E, 0xFDFFFFBD)
            ]
        if part == c.BASE_HEADER:
            changed += [(c.BASE_FLAGS, 1 << bit) for bit in range(16)]
        for place, value in changed:
            fields = array("I", valid)
            fields[place] = value
            for size in (19, 20, 119, 120, 4096) if part == c.BASE_HEADER and place == c.BASE_FLAGS else (120,):
                if part == c.BASE_HEADER and place != c.BASE_PACKET_SIZE:
                    fields[c.BASE_PACKET_SIZE] = size
                packed(core, part, fields, widths)
        wire = bytearray(core_py.part_size(part))
        core_py.pack(part, array("I", valid), wire, 0)
        for size in (*range(len(wire)), len(wire), len(wire) + 4):
            core.unpack(part, array("I", [7] * len(widths)), bytes(wire).ljust(size, b"?"), 0, size)
        for place in range(len(wire)):  # two faults at once: the first counts
            damaged = bytearray(wire)
            for at in (place, dice.randrange(len(wire))):
                damaged[at] = dice.randrange(256)
            core.unpack(part, array("I", [7] * len(widths)), bytes(damaged), 0, len(damaged))


def packed(core: Recorder, part: int, fields: "array[int]", widths: list[int]) -> None:
    """Write the part and read it, and read it also if writing is refused."""
    with contextlib.suppress(ValueError):
        core.pack(part, fields, bytearray(64), 0)
    wire = bytearray()
    for value, width in zip(fields, widths, strict=True):
        wire += (value & width).to_bytes({0xFF: 1, 0xFFFF: 2}.get(width, 4), "little")
    core.unpack(part, array("I", [7] * len(widths)), bytes(wire), 0, len(wire))
    if part == c.BASE_HEADER:
        total = fields[c.BASE_PACKET_SIZE] & 0xFFF
        for size in {15, 16, max(16, total - 1), total, total + 15, total + 16}:
            core.frame(bytes(wire).ljust(size, b"?")[:size], 0, size, array("I", [7]))


def near(dice: random.Random, others: list[int]) -> int:
    """A 16-bit number, often close to one of the others."""
    if dice.randrange(4) == 0:
        return dice.choice((0, 1, 0x7FFF, 0x8000, 0xFFFE, 0xFFFF, dice.randrange(0x10000)))
    return dice.choice(others) + dice.choice((-33, -32, -31, -1, 0, 0, 1, 2, 31, 32, 33, 0x7FFF, 0x8000)) & 0xFFFF


def sessions(core: Recorder, dice: random.Random) -> None:
    """Numbers, acknowledgement bits, and sessions in any state."""
    for _ in range(1500):
        base = near(dice, [0])
        flags = dice.choice((0, 1, 0x80000000, 0xFFFFFFFF, dice.getrandbits(32)))
        core.is_acked(base, flags, near(dice, [base]))
        core.serial_after(near(dice, [base]), base)
    for _ in range(600):
        counts = array("I", bytes(48))
        for place in range(12):
            counts[place] = near(dice, list(counts[: place + 1]))
        counts[c.SESSION_ACK_FLAGS] = dice.choice((0, 1, 1 << 31, 0x7FFFFFFF, dice.getrandbits(32)))
        header = array("I", [near(dice, list(counts)) for _ in range(7)])
        header[c.ACKS_FLAGS] = dice.choice((0, 1, 3, 1 << 31, dice.getrandbits(32)))
        session(core, dice, counts, header)
    for start in (0, 0xFFF0):
        for window in (1, 3, 64, 0xFFFF):
            counts, header = array("I", bytes(48)), array("I", bytes(28))
            core.session_init(counts, window)
            for place in range(c.SESSION_WINDOW_SIZE):
                counts[place] = start if place != c.SESSION_ACK_FLAGS else 0
            for _ in range(60):
                session(core, dice, counts, header)


def session(core: Recorder, dice: random.Random, counts: "array[int]", header: "array[int]") -> None:
    """Some calls in one session."""
    for name in dice.sample([name for name in SHAPES if name.startswith("session_") and name != "session_init"], 4):
        yes = dice.randrange(2)
        arguments = {"session_fill": (header,), "session_check": (header, yes)}.get(name, (yes,))
        with contextlib.suppress(ValueError):
            getattr(core, name)(counts, *arguments[: len(SHAPES[name]) - 1])


def streams(core: Recorder, dice: random.Random) -> None:
    """Streams in any state."""
    for _ in range(800):
        record = array("I", [dice.choice((0, 1, 5, 0xFFFFFFFE, 0xFFFFFFFF, dice.getrandbits(32))) for _ in range(4)])
        words = [
            record[0] + dice.choice((0, 0, 1, -1)) & 0xFFFFFFFF,
            record[1] + dice.choice((0, 0, 1, -1)) & 0xFFFFFFFF,
        ]
        numbers = [record[dice.choice((2, 3))] + dice.randint(-2, 2) & 0xFFFFFFFF for _ in range(2)]
        header = array("I", [dice.getrandbits(4), *words, *numbers])
        core.accept(array("I", record), array("I", header))
        core.order_ack_received(array("I", record), array("I", [*words, *numbers, 0, 0, 0, 0, 0]))
        core.tx_compare(*words, record[0], record[1])
        core.roll(array("I", record))
        with contextlib.suppress(ValueError):
            core.stamp(array("I", record), dice.choice((0, numbers[0])), header)


def main() -> None:
    recorder, seed = Recorder(), int(sys.argv[2]) if len(sys.argv) > 2 else 1801
    dice, made = random.Random(seed), Path(sys.argv[1]).absolute()
    os.chdir(ROOT)  # where the worked cases find tests/vectors.json
    parts(recorder, dice)
    sessions(recorder, dice)
    streams(recorder, dice)
    for check in test_core.CHECKS:
        check(recorder)
    calls = list({repr(call): call for call in recorder.calls}.values())
    calls = [one for name in FUNCTIONS for one in [call for call in calls if call[0] == name][:MOST]]
    header = (ROOT / "c_core" / "mqqb.h").read_text(encoding="utf-8")
    every, words = layout.structures(header), []
    for part in layout.parts(header):
        first = next((field.word for field in every[part] if not field.is_integer), 0)
        words.append((first, sum(field.width // 4 for field in every[part] if not field.is_integer)))
    lines = [f"/* Made by tests/c/cases.py with seed {seed}. */", f"#define CASES {len(calls)}"]
    lines.append(f"enum {{ {', '.join(name.upper() for name in FUNCTIONS)} }};")
    lines.append("/* Words of each structure that are bytes: the first, how many. */")
    lines.append(
        f"static const uint8_t byte_words[][2] = {{{', '.join(f'{{{first}, {count}}}' for first, count in words)}}};"
    )
    lines.append("/* Function; refused; counts of words, bytes, words and bytes afterwards; result; and these. */")
    lines.append("static const uint32_t cases[] = {")
    for name, before, data, result, after, out in calls:
        refused, value = int(result is None), (result or 0) & 0xFFFFFFFF
        row = [FUNCTIONS.index(name), refused, len(before), len(data), len(after), len(out), value]
        lines.append("".join(f"{word}u," for word in (*row, *before, *data, *after, *out)))
    lines.append("};")
    made.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
