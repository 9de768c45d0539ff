"""Paths of files and folders of this machine, as options name them, and what is there on disk."""

from __future__ import annotations

import os
import re
from urllib.parse import urlsplit

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):[/\\]")
_WINDOWS = re.compile(r"[A-Za-z]:|\\\\")


class NotLocal(Exception):
    """What was named is no path of this machine; the text says what it is and what to do."""


def scheme_of(text: str) -> str:
    """In lower case, of what is a URL: "s3a", "file"; "" of a path."""
    found = _URL.match(text)
    return found[1].lower() if found else "file" if text.lower().startswith("file:") else ""


def local_path(text: str) -> str:
    """The path that this names: a path as it is, file:/path and file:///path without their beginning.

    Raises NotLocal for other URLs and for paths of Windows: taken as paths they would name new folders here, with the
    bucket's or the drive's name.
    """
    scheme = scheme_of(text)
    if not text:
        raise NotLocal("it has no name")
    if scheme == "file":
        parts = urlsplit(text)
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/") or set("%?#") & set(text):
            raise NotLocal(
                f"{text} is not of the form file:///PATH, without a host and without %, ? and #: name the path itself"
            )
        return parts.path
    if scheme:
        raise NotLocal(
            f"{text} is a URL of {scheme}, and only files and folders of this machine can be named here: "
            f"copy or mount what is there; a path that begins like this is ./{text}"
        )
    if _WINDOWS.match(text):
        raise NotLocal(
            f"{text} is a path of Windows, and this machine has no drives: name a path such as /data/plant; "
            f"a path that begins like this is ./{text}"
        )
    return text


def sync(path: str | os.PathLike[str]) -> None:
    """Have a file or folder of this machine on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
