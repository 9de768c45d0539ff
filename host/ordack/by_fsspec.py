"""File systems of other machines that packages of fsspec reach: HDFS by its WebHDFS, Google's and Azure's stores."""

from __future__ import annotations

import getpass
import os
from importlib.util import find_spec
from typing import Any

import fsspec
from pyarrow import PythonFile
from pyarrow.fs import FSSpecHandler, PyFileSystem

# By scheme: the package that has it, and what brings that.
PACKAGES = {"webhdfs": ("requests", "spark"), "swebhdfs": ("requests", "spark"), "gs": ("gcsfs", "gs"),
            "abfs": ("adlfs", "azure"), "abfss": ("adlfs", "azure")}  # fmt: skip
_ATTEMPTS = 5  # of a request that reads
_CONNECT_S, _ANSWER_S = 10.0, 60.0


class _Handler(FSSpecHandler):  # type: ignore[misc]
    """What pyarrow asks of a file system of fsspec, where these say it in another way."""

    @staticmethod
    def _create_file_info(path: str, info: dict[str, Any]) -> Any:
        when = info.get("mtime") or info.get("last_modified") or info.get("modificationTime", 0) / 1000
        return FSSpecHandler._create_file_info(path, {**info, "mtime": when})  # noqa: SLF001

    def open_input_file(self, path: str) -> Any:
        """Of which as much is fetched as is asked for."""
        return PythonFile(self.fs.open(path, "rb", block_size=1, cache_type="none"), mode="r")

    def move(self, src: str, dest: str) -> None:
        """HDFS puts nothing in the place of what is there, and calls that no error."""
        if self.fs.exists(dest):
            self.fs.rm(dest)
        self.fs.mv(src, dest)
        if self.fs.exists(src):
            raise OSError(f"it is not renamed to {dest}")


def file_system(scheme: str, place: str) -> Any:
    """The pyarrow.fs.FileSystem. place: HOST:PORT of a name node, or of Azure CONTAINER@ACCOUNT. Raises ImportError,
    with a sentence."""
    package, extra = PACKAGES[scheme]
    if find_spec(package) is None:
        raise ImportError(f"{scheme}: needs the package {package}: pip install 'ordack[{extra}]'")
    if package == "requests":
        return PyFileSystem(_Handler(_web_hdfs(place, scheme == "swebhdfs")))
    account = {"account_name": place.partition("@")[2].partition(".")[0]} if package == "adlfs" else {}
    return PyFileSystem(_Handler(fsspec.filesystem(scheme, **account)))


def _web_hdfs(place: str, https: bool) -> Any:
    from fsspec.implementations.webhdfs import WebHDFS
    from requests.adapters import HTTPAdapter
    from urllib3.util import Retry

    class Patient(HTTPAdapter):
        def send(self, *words: Any, **how: Any) -> Any:
            return super().send(*words, **{**how, "timeout": (_CONNECT_S, _ANSWER_S)})

    host, _, port = place.rpartition(":")
    user = os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    system = WebHDFS(host, int(port), user=user, use_https=https, skip_instance_cache=True)
    again = Retry(_ATTEMPTS - 1, status_forcelist=(502, 503, 504), backoff_factor=0.5)
    for scheme in ("http://", "https://"):
        system.session.mount(scheme, Patient(max_retries=again))
    return system


def is_busy(error: Exception) -> bool:
    """Could the server not be reached, or has it not answered in all tries? HTTPError: it has, and refuses."""
    return type(error).__module__ == "requests.exceptions" and type(error).__name__ != "HTTPError"
