"""Segments: the Parquet files to which `ordack export` moves messages of queues.

A folder of segments belongs to one queue manager; MARKER in it says to which. It holds one file a segment, flat:

    <queue, percent-encoded>-<serial, 10 digits>-<lowest lookup id>-<highest lookup id>.parquet

A file of such a name is final: it never changes, and its messages are in no other segment and no queue. Readers ignore
MARKER and hidden files (a dot in front). A hidden file becomes a segment by being renamed, or vanishes.

Serial numbers count the segments of one queue in one folder from 1, without gaps, in the order in which they become
visible. So one number for each queue tells how far a reader has read. Segments may be deleted, the oldest first; their
serials are not given again. Lookup ids grow in the order of arrival, and the rows of a segment are in that order.
Ranges of two segments of a queue may overlap: where priorities differ, and where an application held a lock on a
message while later ones were exported.

MESSAGE_KEY identifies a message across stores and segments; `client.Message` says how it is made. A journal copy or a
dead letter has the key of its message, so across queues the key is (queue, MESSAGE_KEY). A lookup id is unique within a
store until the store is restored from a backup.

Times in the columns are UTC; those of the protocol are whole seconds.
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

MARKER = "_ordack.json"  # Spark and Hadoop pass over names with _ or . in front
MARKER_VERSION = 1
SUFFIX = ".parquet"
NAME_MAX = 255  # bytes, of a file's name on every file system that matters
TIME = pa.timestamp("us", "UTC")
QUEUE_MANAGER, MESSAGE_KEY = "queue_manager", "message_key"

SCHEMA = pa.schema(
    [
        # where it was
        pa.field(QUEUE_MANAGER, pa.string(), False),  # GUID of the one that has exported it
        pa.field("queue", pa.string(), False),  # as in the segment's name: names differ by more than case
        pa.field("lookup_id", pa.int64(), False),  # order of arrival in the store
        pa.field("arrived", TIME, False),
        pa.field("in_doubt", pa.bool_(), False),  # of a dead letter: it may have been received all the same
        # which one it is
        pa.field(MESSAGE_KEY, pa.string(), False),  # unique within queue
        pa.field("source_queue_manager", pa.string(), False),  # GUID, as `ordack receive` shows it
        pa.field("message_id", pa.int64(), False),
        pa.field("destination_queue", pa.string()),  # format name; so are the other queues
        pa.field("queue_manager_address", pa.string()),  # GUID; null for a direct name
        # its stream; null if it is not transactional
        pa.field("tx_sequence_ordinal", pa.int64()),
        pa.field("tx_sequence_time_stamp", pa.int64()),
        pa.field("tx_sequence_number", pa.int64()),
        pa.field("previous_tx_sequence_number", pa.int64()),
        pa.field("first_in_transaction", pa.bool_()),
        pa.field("last_in_transaction", pa.bool_()),
        # what the application has said
        pa.field("label", pa.string(), False),
        pa.field("body", pa.binary(), False),
        pa.field("body_type", pa.int64(), False),
        pa.field("priority", pa.int32(), False),  # 0 to 7; 0 of a transactional message
        pa.field("delivery", pa.string(), False),  # express, recoverable, transactional
        pa.field("message_class", pa.int32(), False),  # 0: of an application
        pa.field("correlation_id", pa.binary(), False),  # 20 bytes
        pa.field("application_tag", pa.int64(), False),
        pa.field("extension", pa.binary(), False),
        pa.field("sent_time", TIME, False),
        pa.field("time_to_reach_queue", pa.int64()),  # seconds after sent_time; null: no limit
        pa.field("time_to_be_received", pa.int64()),
        pa.field("journal", pa.bool_(), False),  # a copy for the sender's journal was asked for,
        pa.field("dead_letter", pa.bool_(), False),  # one for its dead-letter queue,
        pa.field("acknowledge", pa.int32(), False),  # and these administration acknowledgements: bits of wire.md 2.5
        pa.field("administration_queue", pa.string()),
        pa.field("response_queue", pa.string()),
        pa.field("connector_type", pa.string()),  # GUID
        # its way
        pa.field("hop_count", pa.int32(), False),
        pa.field("over_http", pa.bool_(), False),
        pa.field("report_queue", pa.string()),  # of a traced message: GUID of a public queue
        # security, as it came; nothing of it was checked
        pa.field("privacy_level", pa.int64(), False),
        pa.field("sender_id", pa.binary()),
        # of several destinations; format names separated by commas
        pa.field("destination_queues", pa.string()),
        pa.field("administration_queues", pa.string()),
        pa.field("response_queues", pa.string()),
    ]
)

_KEPT = re.compile(r"[A-Za-z0-9_.$@!^()-]")  # in a file's name; no Hadoop path makes a pattern of these
_NAME = re.compile(r"(?P<queue>[^/]+)-(?P<serial>\d{10,})-(?P<first>\d+)-(?P<last>\d+)\.parquet")


class FolderError(Exception):
    """The folder cannot be used as a folder of segments; the text says why and what to do."""


class FolderMissing(FolderError):
    """The folder is not there, or cannot be read: its file system may not be mounted, and come back."""


class FolderBusy(FolderMissing):
    """The server that has the folder does not answer, or not as it should."""


class OptionError(Exception):
    """An option, or a name that is given, cannot be used; the text names it and says what to do."""


def unreadable(path: object, error: OSError) -> FolderMissing:
    """The error for a folder that cannot be read."""
    return (FolderBusy if error.errno == errno.EAGAIN else FolderMissing)(f"cannot read {path}: {error.strerror}")


class ExportedSegment(NamedTuple):
    """One visible segment. `first_lookup_id` and `last_lookup_id`: the lowest and the highest in it."""

    folder: AnyPath
    name: str
    queue: str
    serial: int
    first_lookup_id: int
    last_lookup_id: int

    @property
    def path(self) -> AnyPath:
        """Made when it is needed: of 100,000 segments, paths take most of the time to list them."""
        return self.folder / self.name


class Marker(NamedTuple):
    """Whose folder it is: the queue manager's GUID as text, and the folder's own identifier, which moves with it."""

    queue_manager: str
    folder: str


def message_keys(columns: Mapping[str, pa.Array]) -> pa.Array:
    """The values of MESSAGE_KEY (see client.Message) for these columns of SCHEMA, which are there but for that one."""

    def text(column: pa.Array) -> pa.Array:
        return column.cast(pa.string())

    halves = [columns[f"tx_sequence_{half}"].cast(pa.uint64()) for half in ("time_stamp", "ordinal")]
    sequence = pc.bit_wise_or(pc.shift_left(halves[0], pa.scalar(32, pa.uint64())), halves[1])
    place = pc.binary_join_element_wise(text(sequence), text(columns["tx_sequence_number"]), "/")
    return pc.binary_join_element_wise(
        columns["source_queue_manager"], pc.coalesce(place, text(columns["message_id"])), "\\"
    )


def encode(queue: str) -> str:
    """A queue's name as the front of file names: percent-encoded. It begins with no dot and no underscore."""
    text = "".join(
        letter if _KEPT.fullmatch(letter) else "".join(f"%{byte:02X}" for byte in letter.encode()) for letter in queue
    )
    return f"%{ord(text[0]):02X}{text[1:]}" if text[:1] in ("_", ".") else text


def file_name(queue: str, serial: int, first_lookup_id: int, last_lookup_id: int) -> str:
    """The name of a segment's file; raises FolderError if a name so long is no file's name."""
    name = f"{encode(queue)}-{serial:010d}-{first_lookup_id}-{last_lookup_id}{SUFFIX}"
    if len(hidden(name)) > NAME_MAX:
        raise FolderError(f"the queue name {queue} is too long for the name of a segment's file")
    return name


def hidden(name: str) -> str:
    """The name that a segment's file has until it is final."""
    return f".{name}.new"


def parse_name(name: str) -> tuple[str, int, int, int] | None:
    """(queue, serial, lowest, highest lookup id) from the name of a segment's file; None if it is something else."""
    found = _NAME.fullmatch(name)
    if found is None or name[0] in "._":
        return None
    return unquote(found["queue"]), int(found["serial"]), int(found["first"]), int(found["last"])


def segments(folder: str | AnyPath, queues: Collection[str] | None = None) -> list[ExportedSegment]:
    """The visible segments in a folder, ordered by queue and serial; only of these queues if any are named (as
    applications name them: case does not matter). Raises FolderError if the folder cannot be read.

    While an export runs, one that became visible during the call may be missing although a later one is there."""
    wanted = None if queues is None else {queue.lower() for queue in queues}
    path = path_of(str(folder))
    found = (of_name(path, name) for name in names(path))
    return sorted(
        (segment for segment in found if segment and (wanted is None or segment.queue.lower() in wanted)),
        key=lambda segment: (segment.queue, segment.serial),
    )


def names(folder: AnyPath) -> list[str]:
    """Of all files in a folder. Raises FolderError."""
    try:
        if isinstance(folder, RemotePath):
            return [path.name for path in folder.iterdir()]
        return os.listdir(folder)  # noqa: PTH208 - of 100,000 segments, paths take most of the time
    except OSError as error:
        raise unreadable(folder, error) from None


def of_name(folder: AnyPath, name: str) -> ExportedSegment | None:
    """What a name in a folder says; None if it is no segment's."""
    parsed = parse_name(name)
    return None if parsed is None else ExportedSegment(folder, name, *parsed)


def read_marker(folder: AnyPath) -> Marker | None:
    """Whose folder it is; None if it has no marker, or if there is no such folder. Raises FolderError."""
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
    """The content of MARKER."""
    return (json.dumps({"version": MARKER_VERSION, **marker._asdict()}) + "\n").encode()


def read_segment(path: AnyPath) -> pa.Table:
    """The rows of a segment, in order. Raises FileNotFoundError, and FolderError if it cannot be read or is damaged."""
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
