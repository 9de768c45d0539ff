"""Paths in options: files and folders on this machine or in an S3 bucket.

`local_path` takes local paths only. `path_of` takes both kinds and returns a pathlib.Path or a RemotePath. The S3
server and keys come from the environment, because keys in a path would appear in logs and in Spark's plans.
"""

from __future__ import annotations

import errno
import functools
import io
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from glob import glob, has_magic
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeVar, cast
from urllib.parse import urlsplit

S3 = ("s3", "s3a", "s3n")
LEAST_BYTES, MOST_BYTES = 1 << 14, 4 << 20  # of a request: few at a file's beginning, more later
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):[/\\]")
_BUCKET = re.compile(r"[A-Za-z0-9]+://([A-Za-z0-9][A-Za-z0-9._-]+(/.*)?)", re.DOTALL)
_ATTEMPTS = 5  # of a request; each retry waits up to 20 s
_AT_ONCE = 16  # files

Item = TypeVar("Item")


def is_local(master: str) -> bool:
    """Test whether a Spark master runs in one JVM on this machine."""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


class NotLocal(Exception):
    """The name is not a usable path. The text gives the reason and the remedy."""


def scheme_of(text: str) -> str:
    """Return a URL's scheme in lower case, such as "s3a" or "file"; "" for a path."""
    found = _URL.match(text)
    return found[1].lower() if found else "file" if text.lower().startswith("file:") else ""


def local_path(text: str, where: str = "files and folders of this machine can be named here") -> str:
    """Return a path unchanged, or the path of file:/path and file:///path.

    Raise NotLocal for other URLs and for Windows paths, which would create new folders here. where: the allowed names,
    for the message.
    """
    scheme = scheme_of(text)
    if not text:
        raise NotLocal("it has no name")
    if scheme == "file":
        parts = urlsplit(text)
        if parts.netloc in ("", "localhost") and parts.path.startswith("/") and not set("%?#") & set(text):
            return parts.path
        raise NotLocal(f"{text} is not of the form file:///PATH, without a host and without %, ? and #: name the path")
    if scheme or re.match(r"[A-Za-z]:|\\\\", text):
        what = f"a URL of {scheme}" if scheme else "a path of Windows"
        raise NotLocal(f"{text} is {what}, and only {where}; a path that begins like this is ./{text}")
    return text


def path_of(text: str) -> AnyPath:
    """Return the path of a file or folder, local or in a bucket. Raises NotLocal."""
    scheme = scheme_of(text)
    if scheme not in S3:
        return Path(local_path(text, "paths of this machine and of S3 (s3a://BUCKET/...) can be named here"))
    if found := _BUCKET.fullmatch(text):
        return RemotePath(found[1])
    if "@" in text.partition("://")[2].partition("/")[0]:
        raise NotLocal(
            f"{scheme}://...@{text.partition('@')[2]} has a key in it, which logs would show: name only the bucket, "
            "and give the key in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    raise NotLocal(f"{text} is not of the form {scheme}://BUCKET/NAME")


def matching(pattern: str) -> list[AnyPath]:
    """Return the paths that match a pattern, sorted; `**` matches nested folders. Raises NotLocal, OSError."""
    path = path_of(pattern)
    found = glob(str(path), recursive=True) if isinstance(path, Path) else path.ask("glob")  # noqa: PTH207 - absolute
    return sorted(map(type(path), found))


def is_pattern(text: str) -> bool:
    """Test whether this is a pattern and not the name of an existing file. Raises NotLocal, OSError."""
    return has_magic(text) and not path_of(text).exists()


def each(do: Callable[[str], Item], paths: Iterable[str]) -> list[Item]:
    """Return the results of `do` for the paths, in order. Calls overlap, because servers respond slowly."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(do, paths))


def total_size(paths: Iterable[str]) -> int:
    """Return the total bytes of files. Raises OSError."""
    return sum(each(lambda path: path_of(path).stat().st_size, paths))


def sync(path: str | os.PathLike[str]) -> None:
    """Make a local file or folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- S3


def _endpoint() -> str:
    """Return the server's URL; "" for Amazon's."""
    found = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    if found and not re.fullmatch(r"https?://[^/@?#]+/?", found):
        raise OSError(errno.EINVAL, "it is not of the form http://HOST:PORT or https://HOST:PORT", "AWS_ENDPOINT_URL")
    return found


@functools.cache
def _file_system(endpoint: str, *_: object) -> Any:
    """Return fsspec's file system around pyarrow's. Its connections hold keys, so each process has its own."""
    from fsspec.implementations.arrow import ArrowFSWrapper
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

    server = urlsplit(endpoint)
    retries = AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS)
    inner = S3FileSystem(scheme=server.scheme or "https", endpoint_override=server.netloc or None, connect_timeout=10,
                         request_timeout=60, retry_strategy=retries)  # fmt: skip
    return ArrowFSWrapper(inner, skip_instance_cache=True)


_REASONS = (  # pattern in the server's answer; errno; text
    ("NO_SUCH_BUCKET|No such file|not exist", errno.ENOENT,
     "it is not there, or not any more: check the name, the bucket {bucket}, and AWS_ENDPOINT_URL"),
    ("regular file", errno.EISDIR, "it is a folder: name a file in it"),
    ("ACCESS_DENIED|ACCESS_KEY|SIGNATURE|TOKEN|UNRECOGNIZED_CLIENT|HTTP status 40[13]", errno.EACCES,
     "{server} refuses this key ({code}): set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to one that may"),
    ("NETWORK_CONNECTION", errno.EAGAIN, "no server answers at {server}: start it, or change AWS_ENDPOINT_URL"),
    ("HTTP status 5|SLOW_DOWN|UNAVAILABLE|INTERNAL_FAILURE|THROTTLING|TIMEOUT", errno.EAGAIN,
     f"{{server}} has not done this in {_ATTEMPTS} tries ({{code}}): try again later"),
    ("", errno.EIO, "{server} does not do this ({code}): check that AWS_REGION is that of the bucket"),
)  # fmt: skip


class RemotePath(PurePosixPath):
    """A file or folder in a bucket, made from BUCKET/KEY and shown as s3a://BUCKET/KEY. The methods are pathlib.Path's.
    In OSErrors, `strerror` has the server's reason and the remedy."""

    _known: Any = None  # entry from the listing of its folder
    _listed: Any = None

    def __str__(self) -> str:
        return f"s3a://{self.inside}"

    def __truediv__(self, name: Any) -> RemotePath:
        child = super().__truediv__(name)
        child._known = (self._listed or {}).get(name)
        return child

    @property
    def inside(self) -> str:
        """BUCKET/KEY."""
        return "/".join(self.parts)

    @property
    def system(self) -> Any:
        """fsspec's file system. Raises OSError."""
        keys = map(os.environ.get, ("AWS_ACCESS_KEY_ID", "AWS_REGION"))
        return _file_system(_endpoint(), os.getpid(), *keys)

    def ask(self, method: str, *more: Any) -> Any:
        """Call a method of the file system on this path. Raises OSError."""
        do = getattr(self.system, method)
        return self.tell(lambda: do(self.inside, *more))

    def tell(self, request: Callable[[], Item]) -> Item:
        """Return a request's answer, or raise OSError with a legible text."""
        try:
            return request()
        except (OSError, ValueError) as error:
            found = re.search(r"AWS Error ([A-Z_]+(?: \(HTTP status \d+\))?)", str(error))
            code = found[1] if found else str(error).partition("\n")[0]
            number, text = next((number, text) for pattern, number, text in _REASONS if re.search(pattern, code))
            text = text.format(bucket=self.parts[0], server=_endpoint() or "Amazon's S3", code=code)
            raise OSError(number, text, str(self)) from None

    def stat(self) -> os.stat_result:
        found = self._known or self.ask("info")
        mode = stat.S_IFREG if found["type"] == "file" else stat.S_IFDIR
        changed = found["mtime"].timestamp() if found["mtime"] else 0.0
        return os.stat_result((mode, 0, 0, 0, 0, 0, found["size"] or 0, changed, changed, changed))

    def _mode(self) -> int:
        try:
            return self.stat().st_mode
        except FileNotFoundError:
            return 0

    def exists(self) -> bool:
        return self._mode() != 0

    def is_file(self) -> bool:
        return stat.S_ISREG(self._mode())

    def is_dir(self) -> bool:
        return stat.S_ISDIR(self._mode())

    def absolute(self) -> RemotePath:
        return self

    def iterdir(self) -> Iterator[RemotePath]:
        self._listed = {one["name"].rpartition("/")[2]: one for one in self.ask("ls", True)}
        return map(self.__truediv__, self._listed)

    def open(self, mode: str = "rb") -> BinaryIO:
        assert mode == "rb", "objects are made as a whole"
        return cast("BinaryIO", io.BufferedReader(RemoteFile(self), MOST_BYTES))

    def write_bytes(self, content: Any) -> None:
        """Write atomically: readers never see a part."""
        self.ask("pipe_file", content)

    def replace(self, target: RemotePath) -> None:
        """Rename: the server copies atomically, then deletes the original."""
        self.ask("mv", target.inside)

    def unlink(self) -> None:
        self.ask("rm_file")


AnyPath = Path | RemotePath


class RemoteFile(io.RawIOBase):
    """An object of `size` bytes. Each read is one request. Reading fails after the object's ETag changes."""

    def __init__(self, path: RemotePath) -> None:
        self._path, self._at = path, 0
        self._file, self.size, self._tag = self._opened()

    def _opened(self) -> tuple[Any, int, str]:
        file = self._path.ask("open")  # closes its stream when it is collected
        return file, file.size, str(file.stream.metadata().get("ETag"))

    def check(self) -> None:
        """Raise OSError if the object has changed since it was opened."""
        if self._opened()[1:] != (self.size, self._tag):
            text = "it was replaced while it was read: begin again when it is final"
            raise OSError(errno.ESTALE, text, str(self._path))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self.size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        size = max(0, min(len(buffer), self.size - self._at))
        try:
            data = self._path.tell(lambda: self._file.stream.read_at(size, self._at)) if size else b""
        except OSError:
            self.check()
            raise
        if len(data) < size or 0 < self._at == self.size - size:
            self.check()  # one request returns data of one object
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
