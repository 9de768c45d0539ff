"""The commands `ordack capture`. Packets are decoded as JSON, or as text for people."""

import contextlib
import functools
import io
import json
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from ordack.capture import decoder
from ordack.cli.audit import audit
from ordack.cli.common import NamesOption
from ordack.cli.config import read_file
from ordack.config.names import PeerNames, counted, printable
from ordack.config.paths import NotLocal, path_of

app = typer.Typer(no_args_is_help=True, help="Decode and audit network captures.")
app.command("audit")(audit)


def _number(value: object) -> str:
    return f"{value} (0x{value:X})" if isinstance(value, int) and value > 9 else printable(str(value))


class _Page:
    """A packet as text for people: one field per line, indented by depth."""

    def __init__(self, called: PeerNames) -> None:
        self._called = called
        self._lines: list[str] = []

    def text(self, decoded: decoder.Decoded) -> str:
        self._lines = []
        self._add(decoded)
        return "\n".join(self._lines) + "\n"

    def _put(self, depth: int, line: str) -> None:
        self._lines.append("    " * depth + line)

    def _branch(self, depth: int, offset: int, name: str, text: str, note: str = "") -> None:
        line = f"{offset:06X}  {name}: {text}"
        if note:
            line += f"  {printable(note)}"
        if self._called and (called := self._called.of(f"{name}: {text}  {note}")):
            line += f"  {called}"
        self._put(depth, line)

    def _add(self, decoded: decoder.Decoded) -> None:
        kind = "malformed" if decoded.packet is None else type(decoded.packet).__name__
        head = f"  offset {decoded.offset} (0x{decoded.offset:X})"
        if decoded.connection:
            moment = datetime.fromtimestamp(decoded.time, UTC).strftime("%Y-%m-%d %H:%M:%S.%f UTC")
            head += f"  frame {decoded.frame}  {decoded.connection}  {moment}"
        self._put(0, kind + head)
        if decoded.packet is None:
            self._put(1, printable(str(decoded.error)))
            return
        for section in decoder.sections(decoded.packet):
            self._put(1, section.name)
            for field in section.fields:
                self._value(2, field.offset, field.name, field.value, field.note)
        if trailing := decoder.trailing_hex(decoded.packet):
            self._put(1, f"{counted(len(trailing) // 2, 'byte')} behind the last known header: {trailing}")

    def _bits(self, depth: int, offset: int, name: str, word: dict[str, int]) -> None:
        self._branch(depth, offset, name, f"0x{word['raw']:X}")
        for bit, value in word.items():
            meanings = decoder.BIT_VALUES.get(bit, ())
            if bit != "raw" and (value or meanings):
                self._branch(depth + 1, offset, bit, str(value), meanings[value] if value < len(meanings) else "")

    def _bytes(self, depth: int, offset: int, name: str, value: dict[str, Any]) -> None:
        self._branch(depth, offset, name, f"{counted(value['length'], 'byte')}")
        raw = bytes.fromhex(value["hex"][:512])
        for at in range(0, len(raw), 16):
            row = raw[at : at + 16]
            letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
            self._put(depth + 1, f"{offset + at:06X}  {row.hex(' '):47}  {letters}")
        if value["length"] > len(raw):
            self._put(depth + 1, f"... {counted(value['length'] - len(raw), 'byte')} more")

    def _value(self, depth: int, offset: int, name: str, value: Any, note: str) -> None:
        if isinstance(value, dict) and "raw" in value:
            self._bits(depth, offset, name, value)
        elif isinstance(value, dict) and "packet_offset" in value:
            self._bytes(depth, offset, name, value)
        elif isinstance(value, dict):
            self._branch(depth, offset, name, "", note)
            for key, inner in value.items():
                self._branch(depth + 1, offset, key, _number(inner))
        elif isinstance(value, tuple):
            self._branch(depth, offset, name, "".join(field.value for field in value if field.name == "type"), note)
            for field in value:
                if field.name != "type":
                    self._value(depth + 1, field.offset, field.name, field.value, field.note)
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                self._value(depth, inner[0].offset, f"{name}[{index}]", inner, "")
        else:
            self._branch(depth, offset, name, _number(value), note)


def _with_names(value: Any, names: PeerNames) -> Any:
    """The JSON value, with a name field behind each GUID that has a name."""
    if isinstance(value, list):
        return [_with_names(inner, names) for inner in value]
    if not isinstance(value, dict):
        return value
    found = {}
    for key, inner in value.items():
        found[key] = _with_names(inner, names)
        if isinstance(inner, str) and (name := names.of(inner)):
            found[f"{key}_name"] = name
    return found


def _complain(name: str, text: str) -> None:
    typer.echo(printable(f"ordack capture decode: {name}: {text}"), err=True)


def _items(name: str) -> Iterator[decoder.Decoded]:
    """The packets of a file. Raises decoder.InputError if the file cannot be opened, read or decoded."""
    if name == "-" and sys.stdin is None:
        raise decoder.InputError("standard input is closed")
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if name == "-" else path_of(name).open("rb") as file:
            yield from decoder.decode(file, functools.partial(_complain, name))
    except NotLocal as error:
        raise decoder.InputError(str(error)) from None
    except ModuleNotFoundError as error:
        raise decoder.InputError(
            f"a bucket needs the Python module {error.name}: run `pip install '.[spark]'` in a checkout"
        ) from None
    except OSError as error:
        raise decoder.InputError(error.strerror or str(error)) from error


def _show(items: Iterator[decoder.Decoded], as_json: bool, called: PeerNames) -> tuple[int, int]:
    """Print the packets; returns (packets, malformed packets)."""
    page = _Page(called)
    found = malformed = 0
    for decoded in items:
        found += 1
        malformed += decoded.packet is None
        if as_json:
            said = decoded.as_json()
            sys.stdout.write(json.dumps(_with_names(said, called) if called else said) + "\n")
        else:
            sys.stdout.write(page.text(decoded))
    return found, malformed


def _decode_files(names: list[str], as_json: bool, called: PeerNames) -> int:
    """Print the packets of all files; returns the exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # The terminal's encoding may lack characters of a text. Packets from a pipe are shown as they arrive.
        sys.stdout.reconfigure(errors="backslashreplace", line_buffering="-" in names)
    status = 0
    for name in names:
        try:
            found, malformed = _show(_items(name), as_json, called)
        except decoder.InputError as error:
            _complain(name, str(error))
            status = status or 2
            continue
        if not found:
            _complain(name, "no packets found")
        if malformed:
            status = 3  # overrides status 2
    sys.stdout.flush()
    return status


@app.command("decode")
def decode(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="Captures or raw packets, also s3a://BUCKET/FILE. -: standard input."),
    ],
    names: NamesOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object per packet.")] = False,
) -> None:
    """Print the MSMQ packets of captures.

    The command reads pcap and pcapng files (TCP 1801, UDP 3527) and raw packets. Link types: Ethernet, Linux cooked,
    BSD loopback, raw IP. Exit status: 1 the output cannot be written; 2 a file is unreadable; 3 a packet is malformed.
    With several files, 3 precedes 2.
    """
    if sys.stdout is None:
        _complain("standard output", "closed")
        raise typer.Exit(1)
    called = PeerNames(read_file(None, names).names)
    try:
        status = _decode_files(files, as_json, called)
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # the reader of the pipe has closed it
            _complain("standard output", error.strerror or str(error))
        # Otherwise Python would fail to flush the buffered rest at exit, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    raise typer.Exit(status)
