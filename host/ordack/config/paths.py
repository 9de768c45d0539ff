"""Paths of files and folders as options name them: of this machine, or in a bucket of S3.

`local_path` takes only what is on this machine. `path_of` takes all: a pathlib.Path, or a RemotePath, which has of
that what captures and segments need. Servers and keys of S3 come from the environment, never from a path: it would tell
them in logs and in plans of Spark.
"""

from __future__ import annotations

import errno
import functools
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from glob import glob, has_magic
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar, cast
from urllib.parse import urlsplit

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):[/\\]")
_WINDOWS = re.compile(r"[A-Za-z]:|\\\\")
S3 = ("s3", "s3a", "s3n")
_KEY_CODES = ("ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "INVALID_CLIENT_TOKEN_ID",
              "UNRECOGNIZED_CLIENT", "HTTP status 403", "HTTP status 401")  # fmt: skip
_AMAZON = "Amazon's S3"
_BUSY_CODES = ("HTTP status 5", "SLOW_DOWN", "SERVICE_UNAVAILABLE", "INTERNAL_FAILURE", "THROTTLING", "REQUEST_TIMEOUT")
_ATTEMPTS = 5  # of a request; those after the first wait up to 20 s each
_CONNECT_S, _ANSWER_S = 10.0, 60.0  # until a connection is there; and while nothing comes
LEAST, MOST = 1 << 14, 4 << 20  # bytes that are fetched at once: few for the beginning of a file, more behind it
_AT_ONCE = 16  # requests for many files

Item = TypeVar("Item")


def is_local(master: str) -> bool:
    """Does this Spark master run everything in one JVM on this machine?"""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


class NotLocal(Exception):
    """What was named is no path of this machine; the text says what it is and what to do."""


class RemoteError(OSError):
    """A file of another machine cannot be used; `strerror` says why, and what to do."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(errno.EIO, reason, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.filename, self.strerror)

    def __str__(self) -> str:
        return f"cannot use {self.filename}: {self.strerror}"


class RemoteBusy(RemoteError):
    """Its server cannot be reached, or does not answer as it should: another time it may."""


class RemoteMissing(RemoteError, FileNotFoundError):
    """It is not there, or not there any more."""


def scheme_of(text: str) -> str:
    """In lower case, of what is a URL: "s3a", "file"; "" of a path."""
    found = _URL.match(text)
    return found[1].lower() if found else "file" if text.lower().startswith("file:") else ""


def local_path(text: str, where: str = "files and folders of this machine can be named here") -> str:
    """The path that this names: a path as it is, file:/path and file:///path without their beginning.

    Raises NotLocal for other URLs and for paths of Windows: taken as paths they would name new folders here, with the
    bucket's or the drive's name. where: what it says can be named instead.
    """
    scheme = scheme_of(text)
    if not text:
        raise NotLocal("it has no name")
    if scheme == "file":
        parts = urlsplit(text)
        if parts.netloc in ("", "localhost") and parts.path.startswith("/") and not set("%?#") & set(text):
            return parts.path
        raise NotLocal(f"{text} is not of the form file:///PATH, without a host and without %, ? and #: name the path")
    if scheme or _WINDOWS.match(text):
        what = f"a URL of {scheme}" if scheme else "a path of Windows"
        raise NotLocal(f"{text} is {what}, and only {where}; a path that begins like this is ./{text}")
    return text


def path_of(text: str) -> AnyPath:
    """What this names, here or elsewhere. Raises NotLocal for other URLs."""
    if scheme_of(text) in S3:
        return RemotePath(text)
    return Path(local_path(text, "paths of this machine and of S3 (s3a://BUCKET/...) can be named here"))


def is_same(one: AnyPath, other: AnyPath) -> bool:
    """Do both name the same file or folder, which is there? Raises OSError."""
    if isinstance(one, RemotePath) or isinstance(other, RemotePath):
        return isinstance(one, RemotePath) and isinstance(other, RemotePath) and one.inside == other.inside
    return one.samefile(other)


def open_path(text: str) -> tuple[Any, str]:
    """The pyarrow.fs.FileSystem of a file or folder, and its path there. Raises NotLocal, RemoteError."""
    from pyarrow.fs import LocalFileSystem

    path = path_of(text)
    return (path.system(), path.inside) if isinstance(path, RemotePath) else (LocalFileSystem(), str(path))


def matching(pattern: str) -> list[AnyPath]:
    """What a pattern matches, in order, as a shell has it; `**`: folders in folders, too. Raises NotLocal, OSError."""
    path = path_of(pattern)
    if isinstance(path, RemotePath):
        return sorted(path.matching())
    return [Path(name) for name in sorted(glob(str(path), recursive=True))]  # noqa: PTH207 - Path's takes no absolute


def is_pattern(text: str) -> bool:
    """Is this a pattern, and no path of what is there with such a name? Raises NotLocal, OSError."""
    return has_magic(text) and not path_of(text).exists()


def each(do: Callable[[str], Item], paths: Iterable[str]) -> list[Item]:
    """What `do` gives for each of these paths, in order: some at once, where each waits for a server."""
    names = list(paths)
    if any(scheme_of(name) in S3 for name in names):
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(do, names))
    return [do(name) for name in names]


def size_of(text: str) -> int:
    """Bytes of a file. Raises OSError."""
    return path_of(text).stat().st_size


def sync(path: str | os.PathLike[str]) -> None:
    """Have a file or folder of this machine on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- S3


class Status(NamedTuple):
    """Of a file or folder elsewhere, what os.stat_result has of one here; times in s since 1970."""

    st_size: int
    st_mtime: float
    is_folder: bool

    @property
    def st_ctime(self) -> float:
        return self.st_mtime


def file_system() -> Any:
    """The pyarrow.fs.S3FileSystem that the variables AWS_... describe."""
    variables = (os.environ.get(name, "") for name in ("AWS_ACCESS_KEY_ID", "AWS_REGION"))
    return _file_system(os.getpid(), _endpoint(), *variables)


@functools.cache
def _file_system(_process: int, endpoint: str, *_variables: str) -> Any:
    """Connections, and the keys in them, go to no other process."""
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

    parts = urlsplit(endpoint)
    return S3FileSystem(
        scheme=parts.scheme or "https",
        endpoint_override=parts.netloc or None,
        connect_timeout=_CONNECT_S,
        request_timeout=_ANSWER_S,
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
    )


def _endpoint() -> str:
    """The URL of the server, "" if it is Amazon's."""
    found = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    if found and not re.fullmatch(r"https?://[^/@?#]+/?", found):
        raise RemoteError("AWS_ENDPOINT_URL", "it is not of the form http://HOST:PORT or https://HOST:PORT")
    return found


@contextmanager
def _in_words(path: RemotePath) -> Iterator[None]:
    """Raises RemoteError for what pyarrow says, which is of no use to who reads it."""
    from pyarrow import ArrowException

    try:
        yield
    except RemoteError:
        raise
    except FileNotFoundError:
        raise path.missing() from None
    except (OSError, ArrowException) as error:
        raise _error(path, str(error)) from None


def _error(path: RemotePath, said: str) -> RemoteError:
    code = re.search(r"AWS Error ([A-Z_]+(?: \(HTTP status \d+\))?)", said)
    name = code[1] if code else said.partition("\n")[0]
    server = _endpoint() or _AMAZON
    kind = RemoteError
    if "NO_SUCH_BUCKET" in name:
        text = f"there is no bucket {path.bucket} at {server}: check its name, and AWS_ENDPOINT_URL"
    elif any(one in name for one in _KEY_CODES):
        text = f"{server} refuses this key ({name}): set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to one that may"
    elif "Not a regular file" in name:
        text = "it is a folder: name a file in it"
    elif "NETWORK_CONNECTION" in name:
        kind, text = RemoteBusy, f"no server answers at {server}: start it, or name another in AWS_ENDPOINT_URL"
    elif any(one in name for one in _BUSY_CODES):
        kind, text = RemoteBusy, f"{server} has not done this in {_ATTEMPTS} tries ({name}): try again later"
    else:
        text = f"{server} does not do this ({name}): look whether AWS_REGION is that of the bucket, and ask who runs it"
    return kind(str(path), text)


class RemotePath:
    """A file or folder in a bucket of S3, as s3a://BUCKET/KEY. Its methods are those of pathlib.Path, and raise
    RemoteError. Raises NotLocal."""

    def __init__(self, text: str, known: Status | None = None) -> None:
        self.scheme = scheme_of(text)
        found = re.fullmatch(r"[A-Za-z0-9]+://([A-Za-z0-9][A-Za-z0-9._-]+)(?:/+(.*))?", text, re.DOTALL)
        if found is None:
            if "@" in text.partition("://")[2].partition("/")[0]:
                text = f"{self.scheme}://...@{text.partition('@')[2]}"
                raise NotLocal(
                    f"{text} has a key in it, which logs would show: name only the bucket, and give the key in "
                    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
                )
            raise NotLocal(f"{text} is not of the form {self.scheme}://BUCKET/NAME")
        self.bucket, self._key = found[1], (found[2] or "").rstrip("/")
        self._text = f"{self.scheme}://{self.bucket}/{self._key}".rstrip("/")
        self._known = known
        self._listed: dict[str, Status] = {}

    @property
    def inside(self) -> str:
        """As pyarrow names it: BUCKET/KEY."""
        return f"{self.bucket}/{self._key}".rstrip("/")

    def system(self) -> Any:
        """Its pyarrow.fs.FileSystem. Raises RemoteError."""
        return file_system()

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"RemotePath({self._text!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return RemotePath, (self._text, self._known)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __lt__(self, other: RemotePath) -> bool:
        return self._text < other._text

    def __truediv__(self, name: str) -> RemotePath:
        """What is known of it from the last listing comes along."""
        return RemotePath(f"{self._text}/{name}", self._listed.get(name))

    @property
    def name(self) -> str:
        return self._text.rpartition("/")[2]

    @property
    def parent(self) -> RemotePath:
        return RemotePath(self._text.rpartition("/")[0]) if self._key else self

    def absolute(self) -> RemotePath:
        return self

    def missing(self) -> RemoteMissing:
        """What to say when it is not there."""
        try:
            there = self._look(self.bucket) is not None
        except RemoteError:
            there = True
        gone = "" if there else f"there is no bucket {self.bucket} at {_endpoint() or _AMAZON}: "
        return RemoteMissing(str(self), f"{gone}it is not there, or not any more")

    def require_bucket(self) -> None:
        """Raises RemoteMissing if there is none of this name."""
        if self._look(self.bucket) is None:
            raise self.missing()

    def _look(self, inside: str) -> Status | None:
        from pyarrow.fs import FileType

        with _in_words(self):
            found = self.system().get_file_info(inside)
        return None if found.type == FileType.NotFound else _status(found)

    def _status(self) -> Status | None:
        return self._known or self._look(self.inside)

    def exists(self) -> bool:
        return self._status() is not None

    def is_dir(self) -> bool:
        found = self._status()
        return found is not None and found.is_folder

    def is_file(self) -> bool:
        found = self._status()
        return found is not None and not found.is_folder

    def stat(self) -> Status:
        found = self._status()
        if found is None:
            raise self.missing()
        return found

    def iterdir(self) -> Iterator[RemotePath]:
        """A server lists a thousand at once; these are all."""
        from pyarrow.fs import FileSelector

        with _in_words(self):
            found = self.system().get_file_info(FileSelector(self.inside))
        self._listed = {one.base_name: _status(one) for one in found}
        return (self / name for name in self._listed)

    def matching(self) -> list[RemotePath]:
        """What this matches as a pattern; names that begin with a dot only where it does. Raises RemoteError."""
        from fsspec.implementations.arrow import ArrowFSWrapper

        if has_magic(self.bucket):
            raise NotLocal(f"{self} is a pattern of buckets: name one")
        with _in_words(self):
            names = ArrowFSWrapper(self.system(), skip_instance_cache=True).glob(self.inside)
        found = [RemotePath(f"{self.scheme}://{name}") for name in names]
        return found if "/." in self._key else [path for path in found if "/." not in path.inside]

    def open(self, mode: str = "rb") -> BinaryIO:
        """For reading, from its beginning or in any order."""
        assert mode == "rb", "files in buckets are made as a whole"
        return cast("BinaryIO", io.BufferedReader(RemoteFile(self), LEAST))

    def read_text(self, encoding: str = "utf-8") -> str:
        with self.open() as file:
            return file.read().decode(encoding)

    def write_bytes(self, content: Any) -> None:
        """As a whole, in the place of what may be there: nobody sees a part of it."""
        with _in_words(self), self.system().open_output_stream(self.inside) as file:
            file.write(content)

    def replace(self, target: RemotePath) -> None:
        """In S3 it is copied, and deleted then. The other one is there as a whole or not at all."""
        with _in_words(self):
            self.system().move(self.inside, target.inside)

    def unlink(self) -> None:
        with _in_words(self):
            self.system().delete_file(self.inside)


AnyPath = Path | RemotePath


def _status(found: Any) -> Status:
    from pyarrow.fs import FileType

    return Status(found.size or 0, found.mtime_ns / 1e9 if found.mtime_ns else 0.0, found.type == FileType.Directory)


class RemoteFile(io.RawIOBase):
    """An object in a bucket, as it is now: if it changes, it is not read on. size, in bytes; version: tells it from
    what was or will be there under its name. Raises RemoteError."""

    def __init__(self, path: RemotePath) -> None:
        self._path = path
        self._file, self.size, self.version = self._opened()
        self._at = self._step = 0
        self._held, self._begin = b"", 0

    def _opened(self) -> tuple[Any, int, str]:
        with _in_words(self._path):
            system = self._path.system()
            file = system.open_input_file(self._path.inside)
            tag = file.metadata().get("ETag") or system.get_file_info(self._path.inside).mtime_ns
            return file, file.size(), f"{file.size()} {tag!r}"

    def read_at(self, begin: int, size: int) -> bytes:
        """These bytes of it, in one request."""
        with _in_words(self._path):
            try:
                data: bytes = self._file.read_at(size, begin)
            except OSError:
                self.check()
                raise
        if len(data) != size:
            self.check()
            raise RemoteError(str(self._path), f"{len(data)} bytes came of {size} from byte {begin} on: try again")
        return data

    def check(self) -> None:
        """Raises RemoteError if it is another one than when it was opened: what was read may be of both."""
        if self._opened()[2] != self.version:
            raise RemoteError(str(self._path), "it was replaced while it was read: begin again when it is final")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self.size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        size = min(len(buffer), self.size - self._at)
        if size <= 0:
            return 0
        if not self._begin <= self._at < self._begin + len(self._held):
            self._step = min(max(2 * self._step, LEAST), MOST)
            self._held = self.read_at(self._at, min(max(size, self._step), self.size - self._at))
            self._begin = self._at
            if self._begin and self._begin + len(self._held) == self.size:
                self.check()  # what came in one request is of one object
        piece = memoryview(self._held)[self._at - self._begin :][:size]
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)
