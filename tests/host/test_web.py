"""The web page of `ordack serve` as HTTP has it: who sees what, and that it is only to be read."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from ordack.broker.manager import Manager
from ordack.client import Client
from ordack.server import monitor, tcp
from ordack.server.health import ROWS_MAX, Overview
from ordack.server.monitor import BadToken, read_token
from ordack.store import Store

from tests.support.command import DEADLINE_S, ordack
from tests.support.dead_letters import with_token
from tests.support.host_peer import Peer, direct
from tests.support.watched import answering, until, watched_serve

TOKEN = "a-token-that-nobody-guesses"


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    """Status, headers with names in lower case, and body."""
    with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()


@contextlib.contextmanager
def page_of(store: Path, token: bytes = b"") -> Iterator[int]:
    """The port of a page, of a queue manager in this process that does nothing else."""
    with Store(store, create=True) as opened, answering(Manager(opened, tcp.now()), token) as port:
        yield port


@pytest.mark.parametrize(
    ("path", "media_type"), [("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/javascript")]
)
def test_the_page_is_static_and_runs_nothing_but_its_own_file(tmp_path: Path, path: str, media_type: str) -> None:
    with page_of(tmp_path) as port:
        status, headers, text = ask(port, path)
        head = ask(port, path, "HEAD")
    assert (status, headers["content-type"]) == (200, f"{media_type}; charset=utf-8")
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert (policy["default-src"], policy["script-src"], policy["style-src"]) == ("'none'", "'self'", "'self'")
    assert (policy["connect-src"], policy["frame-ancestors"]) == ("'self'", "'none'")
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert (head[0], head[2], head[1]["content-length"]) == (200, "", str(len(text.encode())))
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text) == []
    assert not re.search(r"\b(innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval|Function)\b", text)
    assert not re.search(r"<script(?! src=\"page\.js\" defer></script>)|<style|\son\w+=\"", text)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", "/", 405),
        ("POST", "/overview", 405),
        ("GET", "/page.html", 404),
        ("GET", "/dead-letters", 404),
        ("GET", "/?" + "x" * 8000, 200),
        ("GET", "/?" + "x" * monitor.REQUEST_BYTES, 431),
    ],
)
def test_web_request_gets_expected_error_status(tmp_path: Path, method: str, path: str, status: int) -> None:
    with page_of(tmp_path) as port:
        found = ask(port, path, method)
        assert (found[0], found[1].get("allow")) == (status, "GET, HEAD" if status == 405 else None)
        assert ask(port, "/")[0] == 200


@pytest.mark.parametrize(
    ("host", "authorization", "status"),
    [
        ("127.0.0.1:9180", "", 200),
        ("[::1]:9180", "", 200),
        ("LOCALHOST:9180", "", 200),
        (socket.gethostname(), "Bearer wrong", 200),
        ("evil.example", "", 401),
        ("127.0.0.1.evil.example:9180", "Bearer", 401),
        ("plant.example.com", f"Bearer {TOKEN}x", 401),
        ("plant.example.com", f"Basic {TOKEN}", 401),
        ("plant.example.com", "Bearer \xff\xfe", 401),
        ("plant.example.com", f"Bearer {TOKEN}", 200),
    ],
)
def test_web_page_requires_local_host_name_or_token(tmp_path: Path, host: str, authorization: str, status: int) -> None:
    with page_of(tmp_path, TOKEN.encode()) as port:
        found = ask(port, "/overview", Host=host, Authorization=authorization)
        assert (found[0], found[1].get("www-authenticate")) == (status, "Bearer" if status == 401 else None)
        assert ask(port, "/livez", Host=host)[0] != 401  # programs may call it what they like
    assert ("http-token-file" in found[2]) == (status == 401)


def test_another_machine_sees_the_page_with_the_token_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "is_loopback", lambda _address: False)
    with page_of(tmp_path, TOKEN.encode()) as port:
        assert [ask(port, path)[0] for path in ("/", "/overview")] == [200, 401]
        assert ask(port, "/overview", Authorization=f"Bearer {TOKEN}")[0] == 200
    with page_of(tmp_path) as port:
        assert ask(port, "/overview", Authorization="Bearer ")[0] == 401


def test_overview_limits_rows_and_reports_true_counts(tmp_path: Path) -> None:
    with Store(tmp_path, create=True) as store:
        for number in range(ROWS_MAX + 100):
            store.queues.create(f"line{number}", transactional=True)
        found = Overview(Manager(store, 0)).shown(store)
    assert (len(found["queues"]), found["queue_count"]) == (ROWS_MAX, ROWS_MAX + 100)


@pytest.mark.slow
def test_web_overview_shows_present_and_past_peers_by_name(tmp_path: Path) -> None:
    with Client(tmp_path / "store", create=True) as client:
        client.create_queue("line1", transactional=True)
    name = '[names]\n"01010101-0101-0101-0101-010101010101" = "press 7 <b>"\n'
    (tmp_path / "store" / "ordack.toml").write_text(name)
    with watched_serve(tmp_path / "store") as running:

        def peers() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = json.loads(running.get("/overview")[1])["peers"]
            return found

        peer = Peer(b"\1" * 16, direct("line1"))
        peer.connect(tcp.now())
        with socket.create_connection(("127.0.0.1", running.serve.port), timeout=DEADLINE_S) as connection:
            connection.settimeout(0.05)
            deadline = time.monotonic() + DEADLINE_S
            while not peers():
                assert time.monotonic() < deadline
                connection.sendall(peer.output(tcp.now()))
                with contextlib.suppress(TimeoutError):
                    peer.receive(connection.recv(1 << 16), tcp.now())
            [there] = peers()
            assert (there["name"], there["sessions"], there["address"]) == ("press 7 <b>", 1, "127.0.0.1")
            assert there["guid"] == "{01010101-0101-0101-0101-010101010101}"
            assert there["silent_s"] < DEADLINE_S
        gone = until(lambda: (found := peers()[0])["sessions"] == 0 and found, "it is seen to go")
        assert (gone["name"], gone["guid"]) == (there["name"], there["guid"])
        until(lambda: peers()[0]["silent_s"] > 0.5, "its silence is told")


def test_invalid_token_file_is_refused_with_fix(tmp_path: Path) -> None:
    path = tmp_path / "token"
    for content, mode, said in (
        (b"a" * 16, 0o600, ""),
        (b"a" * 256 + b"\r\n", 0o400, ""),
        (b"a" * 15, 0o600, "16 to 256"),
        (b"a" * 257, 0o600, "16 to 256"),
        (b"a" * 300, 0o600, "16 to 256"),
        (b"a" * 20 + b"\n" + b"b" * 20, 0o600, "one line"),
        ("ö" * 20, 0o600, "ASCII"),
        (b"", 0o600, "16 to 256"),
        (b"a" * 16, 0o640, "mode 640"),
        (b"a" * 16, 0o604, "chmod 600"),
    ):
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        path.chmod(mode)
        if not said:
            assert read_token(path) == content.strip()  # type: ignore[union-attr]
            continue
        with pytest.raises(BadToken, match=said):
            read_token(path)
        path.chmod(0o600)
    with pytest.raises(BadToken, match="No such file"):
        read_token(tmp_path / "missing")
    with pytest.raises(BadToken, match="it is no file"):
        read_token(tmp_path)


def test_serve_and_config_refuse_token_file_readable_by_others(tmp_path: Path) -> None:
    with_token(tmp_path, TOKEN)
    assert ordack("config", "--store", tmp_path).returncode == 0
    (tmp_path / "http-token").chmod(0o644)
    done = ordack("config", "--store", tmp_path)
    assert (done.returncode, "http-token-file: " in done.stderr, "chmod 600" in done.stderr) == (2, True, True)
    done = ordack("serve", "--store", tmp_path, "--listen", "127.0.0.1:0", "--http", "0")
    assert (done.returncode, "http-token-file: " in done.stderr) == (1, True)
    assert not (tmp_path / "ordack.sqlite").exists()
