"""Segments: Parquet files with messages that `ordack table export` moved out of queues.

A folder of segments belongs to the queue manager that its MARKER names. It has one file for each segment, without
subfolders:

    <queue, percent-encoded>-<serial, 10 digits>-<lowest lookup id>-<highest lookup id>.parquet

A file of such a name is final: it never changes, and no other segment and no queue has its messages. Readers ignore
MARKER and hidden files (leading dot). A hidden file becomes a segment by a rename, or is deleted.

Serials count the segments of one queue in one folder from 1, without gaps, in the order in which they become visible.
So one serial for each queue records a reader's progress. Segments may be deleted, oldest first; serials are not reused.
Lookup ids grow in the order of arrival, and rows are in that order. Ranges of two segments of a queue may overlap if
priorities differ, or if an application locked a message while later ones were exported.

MESSAGE_KEY identifies a message across stores and segments; `client.Message` defines it. A journal copy or a dead
letter has its message's key, so across queues the key is (queue, MESSAGE_KEY). A lookup id is unique within a store
until the store is restored from a backup.

Times are UTC; times of the protocol are whole seconds.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Collection, Mapping
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ordack.config.paths import AnyPath, RemotePath, path_of

MARKER = "_ordack.json"  # Spark and Hadoop ignore names that begin with _ or .
MARKER_VERSION = 1
SUFFIX = ".parquet"
NAME_MAX = 255  # bytes of a file's name on all common file systems
TIME = pa.timestamp("us", "UTC")
QUEUE_MANAGER, MESSAGE_KEY = "queue_manager", "message_key"

SCHEMA = pa.schema(
    [
        # place
        pa.field(QUEUE_MANAGER, pa.string(), False),  # GUID of the exporting queue manager
        pa.field("queue", pa.string(), False),  # as in the segment's name, with its case
        pa.field("lookup_id", pa.int64(), False),  # order of arrival in the store
        pa.field("arrived", TIME, False),
        pa.field("in_doubt", pa.bool_(), False),  # of a dead letter: it may have been received
        # identity
        pa.field(MESSAGE_KEY, pa.string(), False),  # unique within queue
        pa.field("source_queue_manager", pa.string(), False),  # GUID, as `ordack receive` shows it
        pa.field("message_id", pa.int64(), False),
        pa.field("destination_queue", pa.string()),  # format name, as all queues below
        pa.field("queue_manager_address", pa.string()),  # GUID; null for a direct name
        # stream; null if not transactional
        pa.field("tx_sequence_ordinal", pa.int64()),
        pa.field("tx_sequence_time_stamp", pa.int64()),
        pa.field("tx_sequence_number", pa.int64()),
        pa.field("previous_tx_sequence_number", pa.int64()),
        pa.field("first_in_transaction", pa.bool_()),
        pa.field("last_in_transaction", pa.bool_()),
        # set by the application
        pa.field("label", pa.string(), False),
        pa.field("body", pa.binary(), False),
        pa.field("body_type", pa.int64(), False),
        pa.field("priority", pa.int32(), False),  # 0 to 7; 0 if transactional
        pa.field("delivery", pa.string(), False),  # express, recoverable, transactional
        pa.field("message_class", pa.int32(), False),  # 0: from an application
        pa.field("correlation_id", pa.binary(), False),  # 20 bytes
        pa.field("application_tag", pa.int64(), False),
        pa.field("extension", pa.binary(), False),
        pa.field("sent_time", TIME, False),
        pa.field("time_to_reach_queue", pa.int64()),  # seconds after sent_time; null: no limit
        pa.field("time_to_be_received", pa.int64()),
        pa.field("journal", pa.bool_(), False),  # copy to the sender's journal requested
        pa.field("dead_letter", pa.bool_(), False),  # copy to the sender's dead-letter queue requested
        pa.field("acknowledge", pa.int32(), False),  # requested administration acknowledgements: bits of wire.md 2.5
        pa.field("administration_queue", pa.string()),
        pa.field("response_queue", pa.string()),
        pa.field("connector_type", pa.string()),  # GUID
        # route
        pa.field("hop_count", pa.int32(), False),
        pa.field("over_http", pa.bool_(), False),
        pa.field("report_queue", pa.string()),  # of a traced message: GUID of a public queue
        # security fields as received; unchecked
        pa.field("privacy_level", pa.int64(), False),
        pa.field("sender_id", pa.binary()),
        # for several destinations; format names separated by commas
        pa.field("destination_queues", pa.string()),
        pa.field("administration_queues", pa.string()),
        pa.field("response_queues", pa.string()),
    ]
)

_KEPT = re.compile(r"[A-Za-z0-9_.$@!^()-]")  # kept in a file's name; no Hadoop pattern has these
_NAME = re.compile(r"(?P<queue>[^/]+)-(?P<serial>\d{10,})-(?P<first>\d+)-(?P<last>\d+)\.parquet")


class FolderError(Exception):
    """The folder cannot be used as a folder of segments. The text gives the reason and the remedy."""


class FolderMissing(FolderError):
    """The folder is missing or unreadable. It may return if its file system is not mounted."""


class FolderBusy(FolderMissing):
    """The folder's server does not answer, or answers with an error."""


class OptionError(Exception):
    """An option or name is invalid. The text names it and gives the remedy."""


def unreadable(path: object, error: OSError) -> FolderMissing:
    """Return the error for an unreadable folder."""
    return (FolderBusy if error.errno == errno.EAGAIN else FolderMissing)(f"cannot read {path}: {error.strerror}")


class ExportedSegment(NamedTuple):
    """A visible segment. first_lookup_id, last_lookup_id: its lowest and highest lookup ids."""

    folder: AnyPath
    name: str
    queue: str
    serial: int
    first_lookup_id: int
    last_lookup_id: int

    @property
    def path(self) -> AnyPath:
        """Computed on demand: for 100,000 segments, paths take most of the time of a listing."""
        return self.folder / self.name


class Marker(NamedTuple):
    """The owner of a folder: the queue manager's GUID as text. folder: the folder's identifier, which moves with it."""

    queue_manager: str
    folder: str


def message_keys(columns: Mapping[str, pa.Array]) -> pa.Array:
    """Compute MESSAGE_KEY (see client.Message) from the other columns of SCHEMA."""

    def text(column: pa.Array) -> pa.Array:
        return column.cast(pa.string())

    halves = [columns[f"tx_sequence_{half}"].cast(pa.uint64()) for half in ("time_stamp", "ordinal")]
    sequence = pc.bit_wise_or(pc.shift_left(halves[0], pa.scalar(32, pa.uint64())), halves[1])
    place = pc.binary_join_element_wise(text(sequence), text(columns["tx_sequence_number"]), "/")
    return pc.binary_join_element_wise(
        columns["source_queue_manager"], pc.coalesce(place, text(columns["message_id"])), "\\"
    )


def encode(queue: str) -> str:
    """Percent-encode a queue's name for file names. The result begins with neither a dot nor an underscore."""
    text = "".join(
        letter if _KEPT.fullmatch(letter) else "".join(f"%{byte:02X}" for byte in letter.encode()) for letter in queue
    )
    return f"%{ord(text[0]):02X}{text[1:]}" if text[:1] in ("_", ".") else text


def file_name(queue: str, serial: int, first_lookup_id: int, last_lookup_id: int) -> str:
    """Return the name of a segment's file. Raise FolderError if it is too long for a file."""
    name = f"{encode(queue)}-{serial:010d}-{first_lookup_id}-{last_lookup_id}{SUFFIX}"
    if len(hidden(name)) > NAME_MAX:
        raise FolderError(f"the queue name {queue} is too long for the name of a segment's file")
    return name


def hidden(name: str) -> str:
    """Return the name of a segment's file before it is final."""
    return f".{name}.new"


def parse_name(name: str) -> tuple[str, int, int, int] | None:
    """Return (queue, serial, lowest, highest lookup id) from a segment's file name; None for other names."""
    found = _NAME.fullmatch(name)
    if found is None or name[0] in "._":
        return None
    return unquote(found["queue"]), int(found["serial"]), int(found["first"]), int(found["last"])


def segments(folder: str | AnyPath, queues: Collection[str] | None = None) -> list[ExportedSegment]:
    """Return a folder's visible segments, ordered by queue and serial. queues: only these, ignoring case. Raises
    FolderError if the folder is unreadable.

    During an export, a segment that became visible during the call may be missing although a later one is present."""
    wanted = None if queues is None else {queue.lower() for queue in queues}
    path = path_of(str(folder))
    found = (of_name(path, name) for name in names(path))
    return sorted(
        (segment for segment in found if segment and (wanted is None or segment.queue.lower() in wanted)),
        key=lambda segment: (segment.queue, segment.serial),
    )


def names(folder: AnyPath) -> list[str]:
    """Return the names of all files in a folder. Raises FolderError."""
    try:
        if isinstance(folder, RemotePath):
            return [path.name for path in folder.iterdir()]
        return os.listdir(folder)  # noqa: PTH208 - for 100,000 segments, paths take most of the time
    except OSError as error:
        raise unreadable(folder, error) from None


def of_name(folder: AnyPath, name: str) -> ExportedSegment | None:
    """Return the segment of a file name; None for other names."""
    parsed = parse_name(name)
    return None if parsed is None else ExportedSegment(folder, name, *parsed)


def read_marker(folder: AnyPath) -> Marker | None:
    """Return a folder's marker; None if the marker or the folder is missing. Raises FolderError."""
    path = folder / MARKER
    try:
        with path.open("rb") as file:
            content = json.load(file)
        if content["version"] != MARKER_VERSION:
            raise FolderError(f"{path} is of version {content['version']}; this ordack reads version {MARKER_VERSION}")
        return Marker(str(content["queue_manager"]), str(content["folder"]))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from None
    except (ValueError, KeyError, TypeError):
        raise FolderError(f"{path} is damaged: it does not say whose segments these are") from None


def marker_content(marker: Marker) -> bytes:
    """Return the content of the MARKER file."""
    return (json.dumps({"version": MARKER_VERSION, **marker._asdict()}) + "\n").encode()


def read_segment(path: AnyPath) -> pa.Table:
    """Return a segment's rows, in order. Raise FileNotFoundError, or FolderError if it is unreadable or damaged."""
    try:
        with path.open("rb") as opened:
            content = opened.read()
        file = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
        groups = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        rows = file.read(use_threads=False)
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException, ValueError) as error:  # pyarrow raises each of them
        if isinstance(error, OSError) and error.errno:
            raise FolderError(f"cannot read the segment {path}: {error.strerror}") from None
        raise FolderError(f"the segment {path} is damaged: {str(error).partition(chr(10))[0]}") from None
    if not rows.schema.equals(SCHEMA):
        raise FolderError(f"the segment {path} is damaged: its columns are not those of a segment")
    if not len(rows) == file.metadata.num_rows == sum(groups):
        raise FolderError(f"the segment {path} is damaged: it has not as many rows as it says")
    return rows
