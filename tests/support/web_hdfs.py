"""A stand-in for HDFS's name node and data node on loopback, as WebHDFS says that they answer, over a folder."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

PREFIX = "/webhdfs/v1"
REDIRECTED = {"OPEN", "CREATE", "APPEND"}  # by the name node, to a data node


class WebHdfs:
    """before: called with each request's operation and path, which may be answered by what it returns: a status and an
    exception of Java's. asked: operation, path and bytes of the answers; user: who has asked last."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.url = folder, f"webhdfs://127.0.0.1:{port}"
        self.asked: list[tuple[str, str, int]] = []
        self.before: Callable[[str, str], tuple[int, str] | None] = lambda _operation, _path: None
        self.user = ""

    def put(self, name: str, content: bytes) -> str:
        """Its URL."""
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        return f"{self.url}/{name}"

    def got(self, name: str) -> int:
        """Bytes of a file that were sent."""
        return sum(size for operation, path, size in self.asked if (operation, path) == ("OPEN", f"/{name}"))

    def status(self, file: Path, suffix: str) -> dict[str, Any]:
        found = file.stat()
        return {"pathSuffix": suffix, "type": "DIRECTORY" if file.is_dir() else "FILE",
                "length": 0 if file.is_dir() else found.st_size,
                "modificationTime": found.st_mtime_ns // 1_000_000}  # fmt: skip

    def answer(self, operation: str, file: Path, asked: dict[str, str], content: bytes) -> Any:
        """What is to be sent, as JSON or as it is. Raises OSError."""
        if operation == "GETFILESTATUS":
            return {"FileStatus": self.status(file, "")}
        if operation == "LISTSTATUS":
            found = [(one, one.name) for one in sorted(file.iterdir())] if file.is_dir() else [(file, "")]
            return {"FileStatuses": {"FileStatus": [self.status(*one) for one in found]}}
        if operation == "OPEN":
            begin = int(asked.get("offset", 0))
            return file.read_bytes()[begin : begin + int(asked.get("length", 1 << 40))]
        if operation in ("CREATE", "APPEND"):
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("wb" if operation == "CREATE" else "ab") as out:
                out.write(content)
            return b""
        if operation == "RENAME":
            target = self.folder / asked["destination"].lstrip("/")
            done = file.exists() and not target.exists() and target.parent.exists()
            if done:
                file.rename(target)
            return {"boolean": done}
        assert operation == "DELETE"
        file.unlink()
        return {"boolean": True}


@contextmanager
def server(folder: Path) -> Iterator[WebHdfs]:
    """One over this folder, for as long as this lasts."""
    there: list[WebHdfs] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *_: object) -> None:
            pass

        def _send(self, status: int, content: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def _refuse(self, status: int, exception: str) -> None:
            said = {"exception": exception, "message": f"{exception} of {self.path}"}
            self._send(status, json.dumps({"RemoteException": said}).encode())

        def _do(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = urlsplit(self.path)
            asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
            path, operation = unquote(parts.path.removeprefix(PREFIX)), asked["op"]
            hdfs = there[0]
            hdfs.user = asked.get("user.name", hdfs.user)
            if refusal := hdfs.before(operation, path):
                self._refuse(*refusal)
            elif operation in REDIRECTED and "datanode" not in asked:
                self._send(307, Location=f"http://{self.headers['Host']}{self.path}&datanode=1")
            else:
                try:
                    answer = hdfs.answer(operation, hdfs.folder / path.lstrip("/"), asked, content)
                except FileNotFoundError:
                    self._refuse(404, "FileNotFoundException")
                    return
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                hdfs.asked.append((operation, path, len(data)))
                self._send(201 if operation == "CREATE" else 200, data)

        do_GET = do_PUT = do_POST = do_DELETE = _do  # noqa: N815 - as http.server has it

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    try:
        there.append(WebHdfs(folder, running.server_port))
        yield there[0]
    finally:
        running.shutdown()
        thread.join()
        running.server_close()
