"""How fast packets are decoded, beside Python's `struct` in the same run, as JSON lines.

    python -m tests.bench.bench_codec [--rounds N]

Figures are medians over the rounds; `ratio` is more than 1 where ordack is faster. Nothing is asserted: machines
differ.
"""

import argparse
import statistics
import struct
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "firmware"))  # ordack finds ordack.node there, or never

from _mqqb import ffi, lib
from mqqb import build, core, parse
from mqqb.names import parse_format_name

from tests.bench.peers import report

BODY = bytes(range(256)) * 4  # 1 KiB
QUEUE = "line1"
DESTINATION = parse_format_name(f"DIRECT=TCP:127.0.0.1\\private$\\{QUEUE}")
SOURCE = bytes(range(16))
MIN_TIME = 0.2  # seconds that a timed loop runs at least


def nanoseconds(call: Callable[[], object], packets_per_call: int = 1) -> float:
    """Time of one call per packet."""
    count = 1
    while True:
        started = time.perf_counter_ns()
        for _ in range(count):
            call()
        passed = time.perf_counter_ns() - started
        if passed >= MIN_TIME * 1e9:
            return passed / count / packets_per_call
        count *= 2


def message(number: int) -> bytes:
    """A transactional UserMessage of 1 KiB, as the scan and its peers read it."""
    return bytes(build.user_message(SOURCE, number, DESTINATION, BODY, delivery="transactional", label="reading"))


# The same fixed fields by hand, as a careful program would: sizes first, then one unpack for each header.
BASE = struct.Struct("<BBHIII")
USER = struct.Struct("<16s16sIIII")
TRANSACTION = struct.Struct("<IIIII")
PROPERTIES = struct.Struct("<BBH20sIIIIIIII")


def with_struct(data: bytes) -> tuple[Any, ...]:
    """Base, user, transaction and properties headers of `message` by struct; the direct name's length between them."""
    version, _, flags, signature, size, ttrq = BASE.unpack_from(data)
    if version != 0x10 or signature != 0x524F494C or size > len(data):
        raise ValueError("malformed")
    user = USER.unpack_from(data, 16)
    offset = (66 + int.from_bytes(data[64:66], "little") + 3) & ~3
    transaction = TRANSACTION.unpack_from(data, offset)
    return flags, ttrq, user, transaction, PROPERTIES.unpack_from(data, offset + TRANSACTION.size)


def codec(rounds: int) -> None:
    """Header decoding, nanoseconds per packet."""
    one = message(1)
    fields = array("I", bytes(4 * core.part_words(core.BASE_HEADER)))
    run = b"".join(message(number + 1) for number in range(1000))
    capacity = 1100
    columns = ffi.new("mqqb_scan_columns *")
    storage = [ffi.new("uint32_t[]", capacity) for _ in range(lib.MQQB_SCAN_COLUMNS)]
    for index, column in enumerate(storage):
        columns.column[index] = column
    consumed = ffi.new("size_t *")
    status = ffi.new("int32_t *")

    def scan() -> None:
        found = lib.mqqb_scan(ffi.from_buffer(run), len(run), columns, capacity, consumed, status)
        assert found == 1000, found
        assert consumed[0] == len(run)

    def measure(name: str, ours: tuple[str, Callable[[], object], int], peers: dict[str, Callable[[], object]]) -> None:
        times: dict[str, list[float]] = {}
        for _ in range(rounds):
            times.setdefault(ours[0], []).append(nanoseconds(ours[1], ours[2]))
            for peer, call in peers.items():
                times.setdefault(peer, []).append(nanoseconds(call))
        medians = {key: statistics.median(values) for key, values in times.items()}
        for peer in peers:
            report(
                bench=name, unit="ns per packet", ordack=ours[0], ordack_value=medians[ours[0]],
                peer=peer, peer_value=medians[peer], ratio=medians[peer] / medians[ours[0]],
            )  # fmt: skip

    by_struct = {"struct": lambda: with_struct(one)}
    measure(
        "decode the base header",
        ("core.unpack, a call per packet", lambda: core.unpack(core.BASE_HEADER, fields, one, 0, len(one)), 1),
        {"struct": lambda: BASE.unpack_from(one)},
    )
    measure("decode 1 KiB messages into columns", ("mqqb_scan, a call per 1,000 packets", scan, 1000), by_struct)
    measure("decode 1 KiB messages into objects", ("parse.parse", lambda: parse.parse(one), 1), by_struct)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    codec(parser.parse_args().rounds)


if __name__ == "__main__":
    main()
