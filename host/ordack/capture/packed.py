"""Captures packed with gzip or zstd, unpacked into temporary files."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple, cast

import zstandard

SUFFIXES = (".gz", ".zst")
UNPACKED_MAX = 64 << 30  # bytes of one file: what claims to be more would fill the disk
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_STEP = 1 << 12  # bytes that are unpacked at once: zstd makes at most 32,000 times as much of them


class Unpacked(NamedTuple):
    """An open file at its beginning, which is gone when it is closed. damage: why it has not all that was packed."""

    file: BinaryIO
    damage: str


def is_packed(first: bytes) -> bool:
    """Do these first four bytes of a file begin gzip's or zstd's?"""
    return first.startswith((_GZIP, _ZSTD))


def unpack(file: BinaryIO, first: bytes, size: int = UNPACKED_MAX) -> Unpacked:
    """What is packed in a file, of which `first` was read already; about `size` bytes of it at most.

    It is on disk, not in memory, because it can be much more than is packed. Raises OSError, also if there is no room
    for it where temporary files are (TMPDIR).
    """
    target = cast("BinaryIO", tempfile.TemporaryFile(prefix="ordack-"))  # noqa: SIM115 - the caller closes it
    damage = ""
    try:
        for piece in _pieces(file, first):
            target.write(piece)
            size -= len(piece)
            if size <= 0:
                damage = f"there is more in it than {UNPACKED_MAX >> 30} GiB: unpack it yourself"
                break
    except (EOFError, zlib.error, zstandard.ZstdError) as error:
        damage = f"what was packed is damaged or ends early: {error}"
    except BaseException:
        target.close()
        raise
    target.seek(0)
    return Unpacked(target, damage)


def _pieces(file: BinaryIO, first: bytes) -> Iterator[bytes]:
    """One member or frame after another, as the tools read them."""
    decoder: Any = None
    data = first
    while data := data or file.read(_STEP):
        if decoder is None:
            gz = first.startswith(_GZIP)
            decoder = zlib.decompressobj(31) if gz else zstandard.ZstdDecompressor().decompressobj()
        yield decoder.decompress(data)
        data = b""
        if decoder.eof:
            data = decoder.unused_data.lstrip(b"\0")  # gzip's may be filled up
            decoder = None
    if decoder is not None:
        raise EOFError("its end is missing")
