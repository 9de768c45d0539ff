"""Generates from mqqb.h all other tables of field offsets. `make format` runs it; a test compares.

The header states each constant, and the fields of each part in wire order with their widths: mqqb_word_u8,
mqqb_word_u16, or four bytes. The script generates the wire offsets in the header, the tables of mqqb.c, and the
constants and formats of the core's Python twin. Two marker lines enclose generated text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
HEADER = "c_core/mqqb.h"
MADE = re.compile(r"([Mm]ade by c_core/layout\.py[^\n]*\n).*?([^\n]*end of what was made)", re.DOTALL)
WIDTHS = {"mqqb_word_u8": 1, "mqqb_word_u16": 2, "uint32_t": 4}

# A structure's prefix in constants, and the part that always precedes it in a packet.
PREFIXES = {
    "base_header": ("BASE", ""),
    "internal_header": ("INTERNAL", "base_header"),
    "session_header": ("ACKS", None),
    "transaction_header": ("TX", None),
    "connection_parameters": ("PARAMETERS", "internal_header"),
    "user_header": ("USER", "base_header"),
    "message_properties_header": ("PROPERTIES", None),
    "security_header": ("SECURITY", None),
    "debug_header": ("DEBUG", None),
    "establish_connection": ("ESTABLISH", "internal_header"),
    "final_ack": ("ACK", None),  # an OrderAck begins alike
    "ping": ("PING", None),
    "session": ("SESSION", None),
    "incoming": ("INCOMING", None),
    "outgoing": ("OUTGOING", None),
}
WHOLE = ("ACKS", "TX", "PARAMETERS", "SECURITY", "DEBUG", "PING")  # Python needs no offsets in these parts
# Fields with another name in constants than in the structure.
NAMES = {
    "ack_sequence_number": "SEQUENCE_NUMBER",
    "recoverable_msg_ack_seq_number": "BASE",
    "session_header.recoverable_msg_ack_flags": "FLAGS",
    "user_msg_sequence_number": "SENT",
    "recoverable_msg_sequence_number": "RECOVERABLE_SENT",
    "tx_sequence_ordinal": "ORDINAL",
    "tx_sequence_time_stamp": "TIME_STAMP",
    "tx_sequence_number": "NUMBER",
    "previous_tx_sequence_number": "PREVIOUS",
    "ping.signature": "SIGNATURE_WORD",  # PING_SIGNATURE is its value
    "message_sent_count": "SENT",
    "recoverable_message_sent_count": "RECOVERABLE_SENT",
    "message_received_count": "RECEIVED",
    "recoverable_message_received_count": "RECOVERABLE_RECEIVED",
    "message_stored_count": "STORED",
    "recoverable_message_stored_count": "RECOVERABLE_STORED",
    "acked_message_count": "ACKED",
    "last_acked_recoverable_msg_seq_number": "RECOVERABLE_ACKED",
    "recoverable_msg_ack_flags": "ACK_FLAGS",
    "peer_acked_message_count": "PEER_ACKED",
}


class Field(NamedTuple):
    """One field of a structure. declared, name: in the structure, and in constants. word, at: offsets from the
    structure's beginning, in words of the structure and in wire bytes."""

    declared: str
    name: str
    width: int
    is_integer: bool
    word: int
    at: int


def structures(header: str) -> dict[str, list[Field]]:
    """The fields of every structure, by its name without mqqb_."""
    header = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    found: dict[str, list[Field]] = {}
    for body, structure in re.findall(r"typedef struct \{([^{}]*)\} mqqb_(\w+);", header):
        fields = found[structure] = []
        word = at = 0
        for kind, declared in re.findall(r"(\w+)\s+([^;]+);", body):
            for name, count in re.findall(r"(\w+)(?:\[(\d+)\])?", declared):
                width = int(count or WIDTHS[kind])
                known = NAMES.get(f"{structure}.{name}") or NAMES.get(name, name.upper())
                fields.append(Field(name, known, width, not count, word, at))
                word += width // 4 if count else 1
                at += width
    return found


def parts(header: str) -> list[str]:
    """The wire structures, in the order of mqqb_part."""
    found = re.search(r"typedef enum \{([^}]*)MQQB_PARTS[^}]*\} mqqb_part;", header)
    assert found
    return [name.lower() for name in re.findall(r"MQQB_(\w+),", found[1])]


def wire(header: str) -> Iterator[tuple[str, int]]:
    """Wire offsets by name: from the packet's beginning for parts at a fixed offset, else from the part's."""
    every, ends = structures(header), {"": 0}
    for part in parts(header):
        size = every[part][-1].at + every[part][-1].width
        yield f"{part.upper()}_SIZE", size
        prefix, before = PREFIXES.get(part, (None, None))
        start = 0 if before is None else ends[before]
        suffix = "IN_PART" if before is None else "AT"
        if prefix:
            yield from ((f"{prefix}_{field.name}_{suffix}", start + field.at) for field in every[part])
        if before is not None:
            ends[part] = start + size
            yield f"{prefix}_END", ends[part]


def constants(header: str) -> Iterator[tuple[str, str | int]]:
    """The constants of mqqb.h that Python needs, and the word indices of integers in its structures."""
    for name, value in re.findall(r"^#define MQQB_(\w+) (\w+)u\b", header, re.MULTILINE):
        if not (name.startswith(WHOLE) and name.endswith(("_IN_PART", "_AT", "_END"))):
            yield name, value
    yield from re.findall(r"^ *MQQB_(\w+) = (-?\d+)\b", header, re.MULTILINE)
    yield from ((part.upper(), number) for number, part in enumerate([*parts(header), "parts"]))
    every = structures(header)
    for structure, (prefix, _) in PREFIXES.items():
        yield from ((f"{prefix}_{field.name}", field.word) for field in every[structure] if field.is_integer)
        if structure not in parts(header):
            yield f"{prefix}_WORDS", every[structure][-1].word + 1


def tables(header: str) -> Iterator[str]:
    """The lines of the tables of mqqb.c."""
    widths, layouts, first = [], [], 0
    for part in parts(header):
        fields = structures(header)[part]
        widths.append(f"    {', '.join(str(field.width) for field in fields)}, /* {first}: {part} */")
        layouts.append(f"    {{{first}, MQQB_{part.upper()}_SIZE, sizeof(mqqb_{part}) / 4}},")
        first += len(fields)
    yield from ("static const uint8_t widths[] = {", *widths, "};", "")
    yield from ("static const struct {", "    uint8_t first, size, words;", "} layouts[] = {", *layouts, "};", "")


def formats(header: str) -> Iterator[str]:
    """The parts as formats of the module struct, one letter a word; byte strings become words."""
    for part in parts(header):
        letters = ({1: "B", 2: "H"}.get(field.width, "I" * (field.width // 4)) for field in structures(header)[part])
        yield f'    "<{"".join(letters)}",'


def made() -> dict[str, str]:
    """The generated files, by path."""
    header = _filled(HEADER, (f"#define MQQB_{name} {value}u" for name, value in wire(_read(HEADER))))
    return {
        HEADER: header,
        "c_core/mqqb.c": _filled("c_core/mqqb.c", tables(header)),
        "firmware/mqqb/constants.py": _filled(
            "firmware/mqqb/constants.py", (f"{name} = const({value})" for name, value in constants(header))
        ),
        "firmware/mqqb/core_py.py": _filled("firmware/mqqb/core_py.py", ("_FORMATS = (", *formats(header), ")")),
    }


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _filled(name: str, lines: Iterable[str]) -> str:
    text, count = MADE.subn(lambda found: found[1] + "".join(f"{line}\n" for line in lines) + found[2], _read(name))
    assert count == 1, name
    return text


if __name__ == "__main__":
    for name, text in made().items():
        if text != _read(name):
            (ROOT / name).write_text(text, encoding="utf-8")
