"""The core: the C core bound by cffi and its twin in Python, against the header, the specification and each other.

The worked cases are in tests/mp/test_core.py, so that MicroPython runs the same ones.
"""

from __future__ import annotations

import runpy
import struct
import subprocess
import sys
import types
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _mqqb import lib
from hypothesis import example, given
from hypothesis import strategies as st
from mqqb import core, core_cffi, core_py

ROOT = Path(__file__).parents[2]
MP = runpy.run_path(str(ROOT / "tests" / "mp" / "test_core.py"))
LAYOUT = runpy.run_path(str(ROOT / "c_core" / "layout.py"))
HOST = "capture_", "audit_", "run_", "fast_", "sockets_"  # functions of host/native
CORES = [pytest.param(core_cffi, id="c"), pytest.param(core_py, id="python")]
U16 = st.one_of(st.sampled_from([0, 1, 2, 31, 32, 33, 0x7FFF, 0x8000, 0x8001, 0xFFFE, 0xFFFF]), st.integers(0, 0xFFFF))
U32 = st.one_of(st.sampled_from([0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF]), st.integers(0, 0xFFFFFFFF))


def words(count: int) -> array[int]:
    return array("I", bytes(4 * count))


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a call gives, ValueError being a result like others."""
    try:
        return function(*arguments)
    except ValueError:
        return "ValueError"


# ---- what tests/mp/test_core.py holds -------------------------------------------------------------

RULES = {
    "test_captured_frames": ["B-005", "B-168", "OP-1", "OP-18", "A-51"],
    "test_bits_of_the_worked_example": [
        "B-101",
        "B-102",
        "B-103",
        "B-105",
        "B-106",
        "B-107",
        "B-108",
        "B-280",
        "OP-15",
    ],
    "test_nothing_is_acknowledged_before_it_is_stored": ["B-098", "B-281", "A-31", "A-32"],
    "test_a_full_bit_field_asks_for_an_acknowledgement": ["B-108", "B-123", "B-277", "A-11"],
    "test_counters_wrap": ["B-087", "B-088", "B-090", "A-23", "OP-16"],
    "test_windows_close": ["B-118", "B-119", "B-120", "B-129", "B-130", "A-25", "A-10"],
    "test_session_headers_are_checked": ["B-219", "B-227", "B-229", "B-436", "A-12", "OP-14"],
    "test_acceptance_table": ["B-092", "B-094", "B-270", "B-271", "B-272", "B-275", "A-01"],
    "test_sequence_ids_compare_as_64_bits": ["B-078"],
    "test_numbers_are_given_once_and_acknowledged_in_order": [
        "B-092",
        "B-096",
        "B-230",
        "B-233",
        "B-317",
        "A-04",
        "A-05",
        "A-08",
    ],
    "test_a_stream_fills_up": ["A-24"],
    "test_mistakes_are_refused": ["B-436"],
}


def _check(check: Any) -> Any:
    rules = RULES.get(check.__name__)
    return pytest.param(check, id=check.__name__, marks=pytest.mark.rule(*rules) if rules else ())


@pytest.mark.parametrize("c", CORES)
@pytest.mark.parametrize("check", [_check(check) for check in MP["CHECKS"]])
def test_worked_case(check: Callable[[Any], None], c: Any) -> None:
    check(c)


# ---- names ------------------------------------------------------------------------------------------


def test_nothing_is_left_to_make_of_the_header() -> None:
    for name, text in LAYOUT["made"]().items():
        assert (ROOT / name).read_text() == text, f"{name} is not as c_core/mqqb.h has it: run make format"


@pytest.mark.parametrize("c", CORES)
def test_functions_are_those_of_the_header(c: Any) -> None:
    functions = {name.removeprefix("mqqb_") for name in dir(lib) if name.startswith("mqqb_")}
    functions = {name for name in functions - {"pack_checked", "scan"} if not name.startswith(HOST)}
    assert {name for name in functions if not callable(getattr(core, name, None))} == set()
    assert {name for name in functions if not callable(getattr(c, name, None))} == set()


# ---- the choice of the core -------------------------------------------------------------------------


def chosen(monkeypatch: pytest.MonkeyPatch, environment: str = "", **modules: Any) -> dict[str, Any]:
    """The globals of a freshly run core.py, with these modules (None: missing) and ORDACK_CORE."""
    monkeypatch.setenv("ORDACK_CORE", environment)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return runpy.run_path(core.__file__)


def test_the_c_core_is_taken_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    found = chosen(monkeypatch, mqqb_force_twin=None)
    assert (found["implementation"], found["unpack"]) == ("c", core_cffi.unpack)


def test_core_uses_user_c_module_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("_mqqb")
    for name in (name for name in dir(core_py) if name in vars(core)):
        setattr(module, name, getattr(core_py, name))
    module.unpack = object()
    found = chosen(monkeypatch, mqqb_force_twin=None, _mqqb=module)
    assert (found["implementation"], found["unpack"]) == ("c-module", module.unpack)


def test_a_native_module_is_taken_where_the_firmware_has_no_core(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("mqqb.core_armv7m")
    for name in (name for name in dir(core_py) if name in vars(core)):
        setattr(module, name, getattr(core_py, name))
    module.unpack = object()
    alone = {"mqqb_force_twin": None, "_mqqb": None}
    monkeypatch.setattr(sys.implementation, "_mpy", 5 << 10 | 3 << 8 | 6, raising=False)
    found = chosen(monkeypatch, **alone, **{"mqqb.core_armv7m": module})
    assert (found["implementation"], found["unpack"]) == ("native-module", module.unpack)
    found = chosen(monkeypatch, **alone, **{"mqqb.core_armv7m": None})
    assert (found["implementation"], found["unpack"]) == ("python", core_py.unpack)


@pytest.mark.parametrize(
    "how",
    [
        {"environment": "python"},
        {"mqqb_force_twin": types.ModuleType("mqqb_force_twin")},
        {"mqqb_force_twin": None, "_mqqb": None},
    ],
)
def test_the_twin_is_taken_when_told_or_alone(monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]) -> None:
    found = chosen(monkeypatch, **how)
    assert (found["implementation"], found["unpack"]) == ("python", core_py.unpack)
    assert found["USER_JN"] == core.USER_JN


# ---- layouts, from wire.md --------------------------------------------------------------------------

# Section 2.1, 5.1, 2.9, 2.3, 5.3, 2.2, 2.5, 2.4, 2.6, 5.2, 6, 6, 7. "16s" and "20s" are GUIDs, CorrelationID, Reserved.
LAYOUTS = {
    core.BASE_HEADER: "<BBH I I I",
    core.INTERNAL_HEADER: "<HH",
    core.SESSION_HEADER: "<HH I HHHH",
    core.TRANSACTION_HEADER: "<I II I I",
    core.CONNECTION_PARAMETERS: "<I I HH",
    core.USER_HEADER: "<16s 16s I I I I",
    core.MESSAGE_PROPERTIES_HEADER: "<BBH 20s I I I I I I I I",
    core.SECURITY_HEADER: "<HHHH I I",
    core.DEBUG_HEADER: "<HH",
    core.ESTABLISH_CONNECTION: "<16s 16s I HH",
    core.ORDER_ACK: "<II I I 20s",
    core.FINAL_ACK: "<II I I 16s I",
    core.PING: "<HH I 16s",
}


def from_memory(part: int, fields: array[int]) -> list[Any]:
    """The members of a structure as it lies in memory: words, and byte strings."""
    native = LAYOUTS[part].replace("<", "=").replace("B", "I").replace("H", "I")
    return list(struct.unpack(native, fields.tobytes()))


GOOD: dict[int, dict[int, Any]] = {  # members that are not free, by position: something in range
    core.BASE_HEADER: {0: 0x10, 2: 0, 3: 0x524F494C, 4: 120},
    core.INTERNAL_HEADER: {1: 2},
    core.SESSION_HEADER: {5: 64},
    core.TRANSACTION_HEADER: {3: 1, 4: 0},
    core.CONNECTION_PARAMETERS: {0: 500, 1: 20000},
    core.USER_HEADER: {5: 0x00201C20},
    core.MESSAGE_PROPERTIES_HEADER: {1: 0xFA, 6: 10, 7: 10},
    core.SECURITY_HEADER: {0: 1, 1: 28, 4: 0},
    core.DEBUG_HEADER: {0: 1},
    core.ESTABLISH_CONNECTION: {3: 0x0310},
    core.ORDER_ACK: {2: 1},
    core.FINAL_ACK: {2: 1},
    core.PING: {1: 0x5548},
}
GREATEST = {"B": 0xFF, "H": 0xFFFF, "I": 0xFFFFFFFF}


def members(part: int) -> list[str]:
    """The struct code of each member of a part."""
    return (
        LAYOUTS[part][1:]
        .replace("BBH", "B B H")
        .replace("HHHH", "H H H H")
        .replace("HH", "H H")
        .replace("II", "I I")
        .split()
    )


@st.composite
def parts(draw: st.DrawFn) -> tuple[int, list[Any]]:
    """A part and members in range."""
    part = draw(st.sampled_from(sorted(LAYOUTS)))
    values: list[Any] = []
    for code in members(part):
        if code.endswith("s"):
            values.append(draw(st.binary(min_size=int(code[:-1]), max_size=int(code[:-1]))))
        else:
            values.append(draw(U32) & GREATEST[code])
    for place, value in GOOD[part].items():
        values[place] = value
    return part, values


@pytest.mark.rule("B-005", "OP-18")
@pytest.mark.parametrize("c", CORES)
@given(drawn=parts(), offset=st.integers(0, 9))
def test_layout(c: Any, drawn: tuple[int, list[Any]], offset: int) -> None:
    part, values = drawn
    wire = struct.pack(LAYOUTS[part], *values)
    assert c.part_size(part) == len(wire)
    fields = words(c.part_words(part))
    for data in (bytes(offset) + wire, bytearray(bytes(offset) + wire), memoryview(bytes(offset) + wire + b"more")):
        assert c.unpack(part, fields, data, offset, len(data)) == core.OK
        assert from_memory(part, fields) == values
    out = bytearray(b"\xa5" * (offset + len(wire) + 1))
    c.pack(part, fields, out, offset)
    assert out == b"\xa5" * offset + wire + b"\xa5"
    c.pack(part, fields, memoryview(out)[offset:], 0)
    for size in range(len(wire)):
        fields = array("I", [7] * len(fields))
        assert c.unpack(part, fields, wire, 0, size) == core.NEED_MORE
        assert set(fields) == {7}


# ---- ranges, from wire.md and behaviour.md ------------------------------------------------------------

# part, member, values and what they must give. Values of other members: GOOD.
RANGES = [
    (core.BASE_HEADER, 0, core.BAD_VERSION_NUMBER, [0x10], [0, 0x0F, 0x11, 0xFF]),
    (core.BASE_HEADER, 1, core.OK, [0, 0x5A, 0xFF], []),
    (core.BASE_HEADER, 3, core.BAD_SIGNATURE, [0x524F494C], [0, 0x4C494F52, 0x524F494D, 0xD24F494C]),
    (core.BASE_HEADER, 4, core.BAD_PACKET_SIZE, [120, 121, 0x400000], [0, 119, 0x400001, 0xFFFFFFFF]),
    (core.INTERNAL_HEADER, 1, core.BAD_PACKET_TYPE, [1, 2, 3, 0x12, 0x13, 0xFFE1], [0, 4, 15, 0x10, 0xFFF4]),
    (core.INTERNAL_HEADER, 1, core.BAD_REFUSED_FLAG, [1], [0x11, 0xFFF1]),
    (core.SESSION_HEADER, 5, core.BAD_WINDOW_SIZE, [1, 0xFFFF], [0]),
    (core.TRANSACTION_HEADER, 3, core.BAD_TX_SEQUENCE_NUMBER, [1, 0xFFFFFFFF], [0]),
    (core.TRANSACTION_HEADER, 4, core.BAD_PREVIOUS_NUMBER, [0, 0xFFFFFFFE], [0xFFFFFFFF]),
    (core.CONNECTION_PARAMETERS, 0, core.BAD_RECOVERABLE_ACK_TIMEOUT, [500, 120000], [0, 499, 120001, 0xFFFFFFFF]),
    (core.CONNECTION_PARAMETERS, 1, core.BAD_ACK_TIMEOUT, [20000, 120000], [0, 19999, 120001, 0xFFFFFFFF]),
    (core.CONNECTION_PARAMETERS, 3, core.OK, [0, 64, 0xFFFF], []),
    (core.USER_HEADER, 5, core.BAD_HOP_COUNT, [0x20001D], [0x20001E, 0x20001F]),
    (core.USER_HEADER, 5, core.BAD_DELIVERY_MODE, [0x200000, 0x200020], [0x200040, 0x200060]),
    (
        core.USER_HEADER,
        5,
        core.BAD_DESTINATION_TYPE,
        [0x200000 | dq << 10 for dq in (0, 3, 5, 7)],
        [0x200000 | dq << 10 for dq in (1, 2, 4, 6)],
    ),
    (
        core.USER_HEADER,
        5,
        core.BAD_ADMIN_TYPE,
        [0x200000 | aq << 13 for aq in (0, 2, 3, 5, 6, 7)],
        [0x200000 | aq << 13 for aq in (1, 4)],
    ),
    (core.USER_HEADER, 5, core.OK, [0x200000 | rq << 16 for rq in range(8)], []),
    (core.USER_HEADER, 5, core.BAD_TRANSACTION_MODE, [0x300020], [0x300000]),
    (core.USER_HEADER, 5, core.BAD_PROPERTIES_FLAG, [0x201C20], [0x001C20, 0]),
    (core.USER_HEADER, 5, core.BAD_HTTP_FLAG, [0x201C20], [0x02200000]),
    (core.USER_HEADER, 5, core.OK, [0xFDFFFFBD], []),  # every bit that may be set
    (core.MESSAGE_PROPERTIES_HEADER, 1, core.BAD_LABEL_LENGTH, [0, 0xFA], [0xFB, 0xFF]),
    (core.MESSAGE_PROPERTIES_HEADER, 6, core.BAD_BODY_SIZE, [0, 9, 10], [11, 0xFFFFFFFF]),
    (core.SECURITY_HEADER, 0, core.BAD_SENDER_ID_TYPE, [0, 1, 2, 0xFFF2], [3, 4, 8, 15]),
    (core.SECURITY_HEADER, 4, core.BAD_SECURITY_SIZE, [0, 0xFFFF], [0x10000, 0xFFFFFFFF]),
    (core.SECURITY_HEADER, 1, core.BAD_SECURITY_SIZE, [1], [0]),  # all five sizes 0
    (core.DEBUG_HEADER, 0, core.BAD_QUEUE_TYPE, [0, 1, 0xFFFC, 0xFFFD], [2, 3, 0xFFFE]),
    (core.ESTABLISH_CONNECTION, 3, core.BAD_OPERATING_SYSTEM, [0x10, 0x0310, 0xFF10], [0, 0x11, 0x1000, 0xFF00]),
    (core.ORDER_ACK, 2, core.BAD_ACK_NUMBER, [1, 0xFFFFFFFF], [0]),
    (core.FINAL_ACK, 2, core.BAD_ACK_NUMBER, [1, 0xFFFFFFFF], [0]),
    (core.PING, 1, core.BAD_PING_SIGNATURE, [0x5548], [0, 0x4855, 0x5549]),
]


@pytest.mark.rule("B-168", "B-169", "B-170", "B-171", "B-173", "B-200", "B-213", "B-429", "B-431", "B-432", "A-51")
@pytest.mark.parametrize("c", CORES)
@pytest.mark.parametrize(("part", "member", "status", "good", "bad"), RANGES)
def test_range(c: Any, part: int, member: int, status: int, good: list[int], bad: list[int]) -> None:
    values: list[Any] = [b"" if code.endswith("s") else 0 for code in members(part)]
    for place, value in GOOD[part].items():
        values[place] = value
    for value in good + bad:
        values[member] = value
        wire = struct.pack(LAYOUTS[part], *values)
        fields = array("I", [7] * c.part_words(part))
        expected = core.OK if value in good else status
        assert c.unpack(part, fields, wire, 0, len(wire)) == expected, hex(value)
        if expected != core.OK:
            assert set(fields) == {7}, "a bad part leaves the fields as they were"
            fields = array("I", struct.pack("=" + LAYOUTS[part][1:].replace("B", "I").replace("H", "I"), *values))
            out = bytearray(len(wire))
            with pytest.raises(ValueError, match="field out of range"):
                c.pack(part, fields, out, 0)
            assert out == bytes(len(wire))


@pytest.mark.parametrize("c", CORES)
def test_one_size_in_a_security_header_is_enough(c: Any) -> None:
    for member in range(5):
        sizes = [int(member == k) for k in range(5)]
        wire = struct.pack("<HHHHII", 0, *sizes)
        assert c.unpack(core.SECURITY_HEADER, words(6), wire, 0, 16) == core.OK, sizes


@pytest.mark.rule("B-429", "B-433")
@pytest.mark.parametrize("c", CORES)
@pytest.mark.parametrize(("flags", "least"), [(0, 120), (core.BASE_SH, 120), (core.BASE_IN, 20), (0xFFFF, 20)])
def test_least_packet_size(c: Any, flags: int, least: int) -> None:
    fields = words(6)
    for size, status in ((least, core.OK), (least - 1, core.BAD_PACKET_SIZE), (16, core.BAD_PACKET_SIZE)):
        wire = struct.pack("<BBHIII", 0x10, 0, flags, 0x524F494C, size, 0)
        assert c.unpack(core.BASE_HEADER, fields, wire, 0, 16) == status


@pytest.mark.rule("B-429", "A-51", "OP-1")
@pytest.mark.parametrize("c", CORES)
@given(flags=U16, size=st.integers(0, core.PACKET_SIZE_MAX), have=st.integers(0, 300))
@example(flags=core.BASE_SH, size=120, have=135)
@example(flags=core.BASE_SH, size=120, have=136)
@example(flags=core.BASE_SH | core.BASE_IN, size=36, have=36)
def test_frame(c: Any, flags: int, size: int, have: int) -> None:
    outside = 16 if flags & core.BASE_SH and not flags & core.BASE_IN else 0
    assert c.packet_total(flags, size) == size + outside
    data = struct.pack("<BBHIII", 0x10, 0, flags, 0x524F494C, size, 0).ljust(300, b"\0")
    total = array("I", [7])
    status = c.frame(data, 0, have, total)
    if have < 16:
        assert (status, total[0]) == (core.NEED_MORE, 16)
    elif size < (20 if flags & core.BASE_IN else 120):
        assert (status, total[0]) == (core.BAD_PACKET_SIZE, 7)
    else:
        assert (status, total[0]) == (core.OK if have >= size + outside else core.NEED_MORE, size + outside)


# ---- C against its twin -----------------------------------------------------------------------------


@pytest.mark.rule("B-090", "B-103", "B-107", "B-222", "B-223", "A-23", "OP-15")
@pytest.mark.parametrize("c", CORES)
@given(base=U16, flags=U32, behind=st.integers(0, 0x8000), beyond=st.integers(1, 0x7FFF))
@example(base=0xFFFF, flags=3, behind=0, beyond=1)
def test_session_ack_bits_name_acknowledged_numbers(c: Any, base: int, flags: int, behind: int, beyond: int) -> None:
    named = {(base + k) & 0xFFFF for k in range(1, 32) if flags >> k & 1}
    assert {n & 0xFFFF for n in range(base + 1, base + 64) if c.is_acked(base, flags, n & 0xFFFF)} == named
    assert c.is_acked(base, flags, (base - behind) & 0xFFFF) is (flags != 0)
    assert c.is_acked(base, flags, (base + beyond) & 0xFFFF) is ((base + beyond) & 0xFFFF in named)
    assert c.serial_after((base + beyond) & 0xFFFF, base)
    assert not c.serial_after((base - behind) & 0xFFFF, base)


@pytest.mark.rule("B-087", "B-088", "B-090", "B-101", "B-103", "B-108", "B-118", "A-23", "A-25", "A-32")
@pytest.mark.untraced
@pytest.mark.parametrize("c", CORES)
@given(
    window=st.integers(1, 80),
    start=st.sampled_from([0, 65500]),
    steps=st.lists(st.tuples(st.sampled_from(["send", "store", "acknowledge"]), st.integers(1, 40), U32), max_size=40),
)
def test_sender_and_receiver_agree_on_stored_messages(
    c: Any, window: int, start: int, steps: list[tuple[str, int, int]]
) -> None:
    """A sender forgets exactly what its receiver has stored, in whatever rhythm things happen."""
    sender, receiver, header = words(core.SESSION_WORDS), words(core.SESSION_WORDS), words(7)
    for s in (sender, receiver):
        c.session_init(s, window)
        for place in range(core.SESSION_WINDOW_SIZE):
            if place != core.SESSION_ACK_FLAGS:
                s[place] = start
    waiting: list[bool] = []  # received, not stored
    in_doubt: list[int] = []  # recoverable numbers that the sender keeps
    stored = start  # recoverable

    def acknowledge() -> None:
        c.session_fill(receiver, header)
        assert c.session_check(sender, header, False) == core.OK
        in_doubt[:] = [n for n in in_doubt if not c.is_acked(header[core.ACKS_BASE], header[core.ACKS_FLAGS], n)]

    for step, times, kinds in [*steps, ("store", 1000, 0), ("acknowledge", 1, 0)]:
        for k in range(times):
            if step == "send" and c.session_can_send(sender):
                recoverable = bool(kinds >> k % 32 & 1)
                c.session_sent(sender, recoverable)
                c.session_received(receiver, recoverable)
                waiting.append(recoverable)
                if recoverable:
                    in_doubt.append(sender[core.SESSION_RECOVERABLE_SENT])
            elif step == "store" and waiting:
                if c.session_stored(receiver, waiting[0]) == core.ACK_FIRST:
                    acknowledge()
                    assert c.session_stored(receiver, waiting[0]) == core.OK
                stored += waiting.pop(0)
        if step == "acknowledge":
            acknowledge()
            assert c.session_unacked_sent(sender) == len(waiting)
            assert [(n - stored) & 0xFFFF for n in in_doubt] == [k + 1 for k in range(sum(waiting))]
    assert in_doubt == []
    assert c.session_unacked_sent(sender) == 0


# ---- files that two programs would use


OTHER_PROGRAM = """
import fcntl, sys
file = open(sys.argv[1], "ab")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("its own", flush=True)
    sys.stdin.read()
except BlockingIOError:
    print("another's")
"""


def test_a_file_of_another_program_is_refused_until_that_ends(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", OTHER_PROGRAM, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "its own\n"
        with pytest.raises(OSError, match=f"another program holds {path}: end it, or use another folder"):
            core.lock(str(path))
        other.kill()
    for _ in range(2):
        core.lock(str(path))
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "another's\n"
    path.unlink()
    core.lock(str(path))
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "another's\n", "a new file"
