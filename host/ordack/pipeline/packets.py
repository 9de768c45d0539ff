"""Captures: their files, and rows of the packets that show messages and their receipt.

`packet` is the kind of a row: EstablishConnection, UserMessage, OrderAck, FinalAck, or

| `packet` | meaning |
|---|---|
| `malformed` | an unreadable packet |
| `hole` | `size` bytes of the connection were not captured; the bytes up to the next packet are lost, too |
| `older` | the connection has earlier data that was not captured |
| `damage` | this file is damaged; frames behind `frame` were not read |
| `unreadable` | in all files, `size` frames have an unsupported link type or truncated headers |

Columns have the names of the protocol's specification. A field that a packet lacks is null.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from _mqqb import lib
from mqqb import guids

from ordack.capture import columnar, reading
from ordack.capture.columnar import Decoder, PacketColumns, Words
from ordack.config.names import first_of, legible
from ordack.config.paths import AnyPath, NotLocal, each, is_pattern, matching, path_of, total_size
from ordack.pipeline.segments import TIME, OptionError

PART_BYTES = 128 << 20  # of captures for each task
PARTS_MAX = 16  # each task reads all captures, so more tasks mostly read other tasks' packets
NAMED_MAX = 10  # files of a folder that are passed over
BATCH_ROWS = 16384  # columns of a batch fit the processor's L2 cache

DAMAGE, UNREADABLE = "damage", "unreadable"
_KINDS = {
    lib.MQQB_KIND_ESTABLISH_CONNECTION: "EstablishConnection",
    lib.MQQB_KIND_USER_MESSAGE: "UserMessage",
    lib.MQQB_KIND_ORDER_ACK: "OrderAck",
    lib.MQQB_KIND_FINAL_ACK: "FinalAck",
    reading.MALFORMED: "malformed",
    reading.HOLE: "hole",
    reading.OLDER: "older",
}
_GUIDS = ("source_queue_manager", "queue_manager_address", "ack_source", "client_guid", "server_guid")
_NUMBERS = {  # {column: a capture column that is not 0 if a packet has the number}
    **dict.fromkeys(("message_id", "message_class", "body_crc"), "source_offset"),
    **dict.fromkeys(("tx_sequence_ordinal", "tx_sequence_time_stamp", "tx_sequence_number"), "tx_sequence_number"),
    **dict.fromkeys(
        ("ack_tx_sequence_ordinal", "ack_tx_sequence_time_stamp", "ack_tx_sequence_number"), "ack_tx_sequence_number"
    ),
    "ack_message_id": "ack_source_offset",
}
SCHEMA = pa.schema(
    {
        "file": pa.string(),
        **dict.fromkeys(("frame", "connection", "direction"), pa.int64()),
        "time": TIME,
        "receiver": pa.string(),
        "packet": pa.string(),
        "size": pa.int64(),
        "destination_queue": pa.string(),
        **dict.fromkeys(_GUIDS, pa.string()),
        **dict.fromkeys(_NUMBERS, pa.int64()),
    }
)
_NEEDED = (
    "kind", "file", "frame", "connection", "direction", "total_size", "destination_queue", "source_offset",
    "ack_source_offset", *_GUIDS, *_NUMBERS,
)  # fmt: skip


# ---- rows


def plan(paths: Sequence[str]) -> tuple[list[str], int]:
    """Return the files by first frame, and the number of tasks that read them. The planner does not know how many
    tasks a cluster runs at once. Raise OSError."""
    return columnar.in_order(paths), max(1, min(PARTS_MAX, total_size(paths) // PART_BYTES))


def packet_rows(paths: Sequence[str], part: int, parts: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task, which reads some connections of all files. paths: see plan."""
    decoder = Decoder(paths, part, parts)
    for batch in decoder.batches(BATCH_ROWS, _NEEDED):
        yield _rows(batch, part, parts)
    if part == 0:  # all tasks know the damages; one reports them
        told: list[dict[str, Any]] = [
            {"file": damage.path, "frame": damage.frame, "packet": DAMAGE} for damage in decoder.damages
        ]
        if decoder.unread:
            told.append({"packet": UNREADABLE, "size": decoder.unread})
        yield pa.RecordBatch.from_pylist(told, SCHEMA)


def _rows(batch: PacketColumns, part: int, parts: int) -> pa.RecordBatch:
    decoder = batch.decoder
    chosen = np.flatnonzero(np.isin(batch["kind"], list(_KINDS)))
    found = {name: batch[name][chosen] for name in _NEEDED}
    connections = found["connection"]
    columns = {
        "file": _texts(found["file"], decoder.paths.__getitem__),
        "frame": found["frame"],
        "connection": connections.astype(np.int64) * parts + part,  # unique across tasks
        "direction": found["direction"],
        "time": pa.array(batch.time[chosen] // 1000).cast(TIME),
        "receiver": _texts(
            2 * connections + (1 - found["direction"]), lambda end: decoder.connection(end // 2).ends[end % 2]
        ),
        "packet": _texts(found["kind"], _KINDS.__getitem__),
        "size": found["total_size"],
        "destination_queue": _texts(
            found["destination_queue"], lambda code: legible(decoder.queue(code).text) if code else None
        ),
    }
    for name in _GUIDS:
        columns[name] = _texts(found[name], lambda code: guids.guid_text(decoder.queue_manager(code)) if code else None)
    for name, shown_by in _NUMBERS.items():
        columns[name] = pa.array(found[name], pa.int64(), mask=found[shown_by] == 0)
    return pa.RecordBatch.from_pydict(columns, SCHEMA)


def _texts(codes: Words, text: Callable[[int], str | None]) -> pa.Array:
    """Return the text of each code. Each distinct code is converted once."""
    distinct, places = np.unique(codes, return_inverse=True)
    return pa.array([text(code) for code in distinct.tolist()], pa.string()).take(pa.array(places))


# ---- files


def _is_capture(path: str) -> bool:
    try:
        return columnar.is_capture(path)
    except OSError as error:
        raise OptionError(f"cannot read the capture {path}: {error.strerror}; mend that, or leave it out") from None


def find_files(path: str, tell: Callable[[str], None] = lambda _: None) -> list[str]:
    """Return the captures at a path, pattern or folder, here or in a bucket. Raise OptionError if there are none.

    tell: receives a message about files ignored in a folder.
    """
    try:
        where = path_of(path)
        found = _in_folder(where, tell) if where.is_dir() else _like(path, where)
    except NotLocal as error:
        raise OptionError(str(error)) from None
    except OSError as error:
        raise OptionError(f"cannot read {error.filename}: {error.strerror}") from None
    if not found:
        raise OptionError(f"there are no pcap or pcapng files at {path}")
    return [str(path_of(file).absolute()) for file in found]  # workers may have another current folder


def _in_folder(folder: AnyPath, tell: Callable[[str], None]) -> list[str]:
    entries: list[AnyPath] = sorted(folder.iterdir())
    visible = [str(entry) for entry in entries if entry.is_file() and not entry.name.startswith(".")]
    found = [file for file, is_one in zip(visible, each(_is_capture, visible), strict=True) if is_one]
    known = set(found)
    others = [entry.name for entry in entries if str(entry) not in known]
    if others:
        tell(
            f"passed over in {folder}: {first_of(others, NAMED_MAX)} (no pcap or pcapng file, compressed, "
            "hidden, or a folder)"
        )
    return found


def _like(path: str, where: AnyPath) -> list[str]:
    found = matching(path) if is_pattern(path) else [where]
    for file in found:
        if not stat.S_ISREG(file.stat().st_mode):
            raise OptionError(f"{file} is no file: name captures")
    names = [str(file) for file in found]
    for name, is_one in zip(names, each(_is_capture, names), strict=True):
        if not is_one:
            raise OptionError(f"{name} is neither a pcap nor a pcapng file; unpack a compressed capture first")
    return names
