"""Folders of segments as `ordack table export` leaves them, without queues, for tests of their readers."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from ordack.pipeline import segments

BEGIN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
SOURCE = "11111111-1111-1111-1111-111111111111"
_ABSENT: dict[pa.DataType, Any] = {pa.string(): "", pa.binary(): b"", pa.bool_(): False, segments.TIME: BEGIN}


def make_folder(folder: Path, identifier: str = "folder-1", queue_manager: str = SOURCE) -> Path:
    """An empty folder of segments."""
    folder.mkdir()
    (folder / segments.MARKER).write_bytes(segments.marker_content(segments.Marker(queue_manager, identifier)))
    return folder


def key(number: int) -> str:
    """The message key of the `number`th message."""
    return f"{SOURCE}\\{(1 << 32) + 1}/{number}"


def row(number: int, queue: str = "line1", body: bytes = b"", **properties: Any) -> dict[str, Any]:
    """A transactional message, the `number`th of its stream; it arrived so many seconds after BEGIN."""
    values = {column.name: None if column.nullable else _ABSENT.get(column.type, 0) for column in segments.SCHEMA}
    values |= {
        "queue_manager": SOURCE, "queue": queue, "lookup_id": number,
        "message_id": number, "source_queue_manager": SOURCE, "body": body,
        "message_key": key(number),
        "arrived": BEGIN + datetime.timedelta(seconds=number), "delivery": "transactional",
        "label": f"reading {number}", "tx_sequence_ordinal": 1, "tx_sequence_time_stamp": 1,
        "tx_sequence_number": number, "previous_tx_sequence_number": number - 1,
    }  # fmt: skip
    return values | properties


def write_rows(folder: Path, serial: int, rows: Sequence[dict[str, Any]], **how: Any) -> Path:
    """One segment of these rows, which are of one queue, in a folder of a queue manager."""
    marker = segments.read_marker(folder)
    rows = [{**row, "queue_manager": row["queue_manager"] if marker is None else marker.queue_manager} for row in rows]
    name = segments.file_name(rows[0]["queue"], serial, rows[0]["lookup_id"], rows[-1]["lookup_id"])
    pq.write_table(pa.Table.from_pylist(list(rows), segments.SCHEMA), folder / name, compression="zstd", **how)
    return folder / name


def write(folder: Path, serial: int, first: int, last: int, queue: str = "line1", body: bytes = b"") -> Path:
    """One segment of the messages `first` to `last`."""
    return write_rows(folder, serial, [row(number, queue, body) for number in range(first, last + 1)])
