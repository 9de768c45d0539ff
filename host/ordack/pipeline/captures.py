"""Captures to column batches: the C core's mqqb_capture behind numpy arrays."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]


class Connection(NamedTuple):
    """One incarnation of a TCP connection.

    ends: address and port, as text, of the end that opened it (or, if no SYN was seen, of the lower end), and of the
    other. syn: its beginning was seen.
    """

    ends: tuple[str, str]
    syn: bool


class QueueName(NamedTuple):
    """A queue as packets name it: selector as in UserHeader.Flags.DQ, bytes of the wire, format name as text."""

    selector: int
    raw: bytes
    text: str


class Damage(NamedTuple):
    """Why a file could be read only in part."""

    path: str
    text: str


class Decoder:
    """What the codes in batches mean. It grows while batches are taken."""

    paths: list[str]
    damages: list[Damage]

    def queue_manager(self, code: int) -> bytes:
        """GUID of 16 bytes."""
        raise NotImplementedError

    def queue(self, code: int) -> QueueName:
        """Name of a queue."""
        raise NotImplementedError

    def connection(self, number: int) -> Connection:
        """Ends of a connection."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows in the order in which packets were completed. All arrays have `rows` items.

    columns: {name: uint32 array}; names are those of MQQB_SCAN_* and MQQB_CAPTURE_* in lower case. time: int64, ns since
    1970. pointers: `mqqb_capture_columns *` of the same arrays, for C. Arrays are used again for the next batch: copy
    what has to last.
    """

    rows: int
    columns: dict[str, Words]
    time: NDArray[np.int64]
    pointers: Any
    decoder: Decoder

    def __getitem__(self, name: str) -> Words:
        return self.columns[name]


def batches(
    paths: Sequence[str | Path],
    part: int = 0,
    parts: int = 1,
    rows: int = 65536,
    columns: Sequence[str] | None = None,
) -> Iterator[Batch]:
    """The packets of a capture that is in one or more files, in the order of their first frames.

    Of the connections, those whose hash modulo parts is part. columns: only these (None: those up to ack_source).
    """
    raise NotImplementedError
