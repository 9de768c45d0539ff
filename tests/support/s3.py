"""An S3 server on loopback: moto's, over HTTP, with what servers and networks do to a client in front of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import moto.backends
import moto.settings
from moto.core import DEFAULT_ACCOUNT_ID
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

BUCKET = "plant"
KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "not-a-secret"}
DONE = " done"
App = Callable[[dict[str, Any], Any], Iterable[bytes]]


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits 40 ms for the acknowledgement of its head

    def log(self, *_: object) -> None:
        pass


class S3:
    """before: called with method and path of each request, which may be answered by what it returns: a status such as
    "503 Slow Down"; that is done all the same if DONE is behind it. asked: method, path and bytes of the answers."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[tuple[str, str, int]] = []
        self.before: Callable[[str, str], str | None] = lambda _method, _path: None
        self.client = boto3.client("s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id="testing",
                                   aws_secret_access_key="not-a-secret")  # fmt: skip
        self.client.create_bucket(Bucket=BUCKET)

    def put(self, name: str, content: bytes) -> str:
        """Its URL."""
        self.client.put_object(Bucket=BUCKET, Key=name, Body=content)
        return f"s3a://{BUCKET}/{name}"

    def fill(self, names: Iterable[str], content: bytes) -> None:
        """All of them with this content."""
        for name in names:
            _held().put_object(BUCKET, name, content)

    def names(self) -> list[str]:
        return sorted(_held().buckets[BUCKET].keys)

    def clear(self) -> None:
        _held().buckets[BUCKET].keys.clear()

    def got(self, name: str) -> int:
        """Bytes of an object that were sent."""
        return sum(size for method, path, size in self.asked if (method, path) == ("GET", f"/{BUCKET}/{name}"))

    @contextmanager
    def keys_checked(self) -> Iterator[None]:
        """Meanwhile the server asks who it is, and knows nobody."""
        moto.settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
        try:
            yield
        finally:
            moto.settings.INITIAL_NO_AUTH_ACTION_COUNT = float("inf")

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to use it. AWS_ALLOW_HTTP: for delta-rs."""
        return {**KEYS, "AWS_ENDPOINT_URL": self.url, "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true",
                "AWS_EC2_METADATA_DISABLED": "true"}  # fmt: skip


def _held() -> Any:
    """What the server of this process holds, which no request is needed for."""
    return moto.backends.get_backend("s3")[DEFAULT_ACCOUNT_ID]["aws"]


@contextmanager
def server() -> Iterator[S3]:
    """One without any object, for as long as this lasts."""
    inner: App = DomainDispatcherApplication(create_backend_app)
    there: list[S3] = []

    def app(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if there and (refusal := there[0].before(method, path)):
            if refusal.endswith(DONE):
                b"".join(inner(environ, lambda *_: None))
            start(refusal.removesuffix(DONE), [("Content-Length", "0")])
            return [b""]
        answer = b"".join(inner(environ, start))
        if there:
            there[0].asked.append((method, path, len(answer)))
        return [answer]

    running = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_Quiet)
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    try:
        there.append(S3(f"http://127.0.0.1:{running.server_port}"))
        there[0].client.list_buckets()
        yield there[0]
    finally:
        for backend in moto.backends.get_backend("s3").values():
            for one in backend.values():
                one.reset()
        running.shutdown()
        thread.join()
        running.server_close()
