"""Fixed-size headers, session counters, acknowledgement bits, transactional order: names, and the choice of the core.

The C core is used if it exists. ``_mqqb`` is a cffi module on CPython, and a user C module on boards. A board without
it tries the native module ``mqqb.core_ARCH`` of its processor. Otherwise the twin ``core_py`` is used. All cores have
the same functions and names: those of c_core/mqqb.h without the prefix. That header documents the functions.
``implementation`` is "c", "c-module", "native-module" or "python". An importable module ``mqqb_force_twin``, or
``ORDACK_CORE=python`` in the environment (CPython), forces the twin.

A C structure is an ``array("I")`` of 32-bit words; constants such as ``BASE_FLAGS`` are the indices of its integers.
Byte strings (GUIDs, CorrelationID) take words as raw memory: slice the packet instead of reading them.

    part_size(part) -> int                              bytes on the wire
    part_words(part) -> int                             words of the structure
    unpack(part, fields, data, offset, end) -> status   data[offset:end] to fields; not OK: fields is untouched
    pack(part, fields, data, offset)                    ValueError if fields would not pass unpack
    packet_total(flags, packet_size) -> int             bytes on the stream (OP-1, A-51)
    frame(data, offset, end, total) -> status           total[0] becomes the size of the packet at offset
    serial_after(a, b) -> bool                          modulo 65536 (B-090)
    is_acked(base, flags, seq) -> bool                  B-103, B-107, B-222, B-223
    session_init(s, window_size)                        s: SESSION_WORDS words
    session_can_send(s) -> bool                         B-118
    session_sent(s, recoverable)                        B-320
    session_received(s, recoverable)                    B-252, B-278
    session_stored(s, recoverable) -> status            OK or ACK_FIRST (B-123, B-280)
    session_unacked_received(s) -> int                  B-037
    session_unacked_sent(s) -> int                      B-038
    session_fill(s, h)                                  h: a SESSION_HEADER (B-101 to B-108)
    session_check(s, h, carried) -> status              B-219, B-227, B-229, OP-14
    tx_compare(ordinal_a, time_stamp_a, ordinal_b, time_stamp_b) -> int     -1, 0, 1 (B-078)
    accept(incoming, h) -> bool                         incoming: INCOMING_WORDS words (B-270 to B-272)
    stamp(outgoing, previous, h) -> status              outgoing: OUTGOING_WORDS words; h: a TRANSACTION_HEADER (B-317)
    order_ack_received(outgoing, ack) -> status         ack: an ORDER_ACK (B-230, B-233)
    roll(outgoing)                                      B-096

Functions that save memory on boards:

    copy(to, at, data, begin, end)                      bytes: data[begin:end] to to[at:]
    copy_words(to, words)                               an array to the beginning of another
    put_words(to, at, words, begin, end)                words[begin:end] little-endian to to[at:]
    drop(items, count)                                  removes the first items of a list
    put_crc(data, at, begin, end, value)                CRC-32 of data[begin:end], continued from value, to data[at:]

Protection against a second program that uses the same files:

    lock(name)                                          locks a file for this process; OSError if another holds it

Wire input is answered with a status. A caller's mistake (short array, range outside the buffer, number out of range)
raises ValueError and changes nothing.
"""

from array import array

from mqqb import MICROPYTHON, const
from mqqb.constants import *  # noqa: F403 - this is where all take them from

# ---- the functions ----------------------------------------------------------------------------


# By the board's native architecture number: the suffix of its native module.
NATIVE = ("", "", "x64", "", "armv6m", "armv7m", "armv7m", "armv7m", "armv7m", "", "", "", "", "", "", "")


def _native() -> object:
    """The native module for this board, or None."""
    import sys

    name = NATIVE[getattr(sys.implementation, "_mpy", 0) >> 10 & 15]
    try:
        return __import__("mqqb.core_" + name, None, None, (name,)) if name else None
    except (ImportError, ValueError):  # missing, or for another version of MicroPython
        return None


def _choose() -> str:
    import os

    if not MICROPYTHON and os.getenv("ORDACK_CORE") == "python":
        return "python"
    try:
        __import__("mqqb_force_twin")
        return "python"
    except ImportError:
        pass
    try:
        import _mqqb
    except ImportError:
        return "native-module" if _native() else "python"  # noqa: F821 - it is there until this has run
    return "c" if hasattr(_mqqb, "lib") else "c-module"


implementation = _choose()
TYPE_CHECKING = const(0)
# The core's functions. A C core may have more functions than its twin.
if TYPE_CHECKING or implementation == "python":
    from mqqb import core_py

    functions = core_py
elif implementation == "c":
    from mqqb import core_cffi

    functions = core_cffi
elif implementation == "native-module":
    functions = _native()
else:
    import _mqqb as functions
del _choose, _native  # saves memory on boards

part_size = functions.part_size
part_words = functions.part_words
unpack = functions.unpack
pack = functions.pack
packet_total = functions.packet_total
frame = functions.frame
serial_after = functions.serial_after
is_acked = functions.is_acked
session_init = functions.session_init
session_can_send = functions.session_can_send
session_sent = functions.session_sent
session_received = functions.session_received
session_stored = functions.session_stored
session_unacked_received = functions.session_unacked_received
session_unacked_sent = functions.session_unacked_sent
session_fill = functions.session_fill
session_check = functions.session_check
tx_compare = functions.tx_compare
accept = functions.accept
stamp = functions.stamp
order_ack_received = functions.order_ack_received
roll = functions.roll
copy = functions.copy
copy_words = functions.copy_words
put_words = functions.put_words
drop = functions.drop
put_crc = functions.put_crc
lock = functions.lock


def words(part: int) -> "array[int]":
    """The words of a part, all 0."""
    return array("I", bytes(4 * part_words(part)))


class Malformed(Exception):
    """The peer's bytes break a rule: discard the packet, close the session (B-168, B-169).

    rule: "B-nnn" or a section of wire.md. field: "Header.Field". reason: a sentence. status: the core's, or None.
    """

    def __init__(self, rule: str, field: str, reason: str, status: "int | None" = None) -> None:
        super().__init__(field + ": " + reason + " (" + rule + ")")
        self.rule = rule
        self.field = field
        self.reason = reason
        self.status = status


def malformed(problem: int, place: "int | str") -> Malformed:
    """The error for a status of the core, or of problems.py, whose texts only hosts have; boards show numbers.

    place: of problems.PLACES, or its name; some problems need it.
    """
    try:
        from mqqb import problems
    except ImportError:
        return Malformed("wire.md", "place " + str(place), "problem " + str(problem), problem)
    rule, field, reason = problems.words(problem, place)
    return Malformed(rule, field, reason, problem if problem < 0 else None)
