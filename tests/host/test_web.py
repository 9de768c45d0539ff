"""The web page of `ordack serve` as HTTP has it: who sees what, who may move dead letters, and that it costs little."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import socket
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from ordack.broker.manager import Manager
from ordack.client import Client
from ordack.config.names import DEAD_XACT
from ordack.server import guard as guarding
from ordack.server import kept, monitor, tcp
from ordack.server.guard import BadToken, Guard, read_token
from ordack.server.overview import ROWS_MAX, Overview
from ordack.store import Store

from tests.support.command import DEADLINE_S, ordack, set_numbers
from tests.support.dead_letters import HOSTILE, store_with_dead_letters, with_token
from tests.support.host_peer import Peer, direct
from tests.support.watched import Watched, answering, until, watched_serve

TOKEN = "a-token-that-nobody-guesses"
GIVEN = {"Authorization": f"Bearer {TOKEN}"}


def ask(
    port: int, path: str, method: str = "GET", body: str | bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], str]:
    """Status, headers with names in lower case, and body."""
    with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)) as connection:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()


def letters_of(port: int, query: str) -> dict[str, Any]:
    status, _, text = ask(port, f"/dead-letters?{query}", **GIVEN)
    assert status == 200, text
    found: dict[str, Any] = json.loads(text)
    return found


def move(port: int, **wanted: object) -> dict[str, Any]:
    status, _, text = ask(port, "/dead-letters", "POST", json.dumps({"queue": DEAD_XACT, **wanted}), **GIVEN)
    assert status == 200, text
    found: dict[str, Any] = json.loads(text)
    return found


@contextlib.contextmanager
def page_of(store: Path, guard: Guard | None = None) -> Iterator[int]:
    """The port of a page, of a queue manager in this process that does nothing else."""
    with Store(store, create=True) as opened, answering(Manager(opened, tcp.now()), guard) as port:
        yield port


@contextlib.contextmanager
def serving(store: Path, more: str = "") -> Iterator[Watched]:
    """An `ordack serve` with a token."""
    with_token(store, TOKEN, more)
    with watched_serve(store) as running:
        yield running


@pytest.fixture
def dead(tmp_path: Path) -> tuple[Path, list[int]]:
    """A store with three dead letters, and their lookup ids."""
    letters = [("press 7", b"reading 21.5"), (HOSTILE, "Förderband <b>1</b>".encode()), ("", bytes(range(256)))]
    return tmp_path / "store", store_with_dead_letters(tmp_path / "store", letters)


# ---- the page --------------------------------------------------------------------------------------------


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
    ("method", "path", "status", "allow"),
    [
        ("PUT", "/", 405, "GET, HEAD"),
        ("POST", "/", 405, "GET, HEAD"),
        ("POST", "/overview", 405, "GET, HEAD"),
        ("DELETE", "/dead-letters", 405, "GET, HEAD, POST"),
        ("GET", "/page.html", 404, None),
        ("GET", "/dead-letters/", 404, None),
        ("GET", "/?" + "x" * 8000, 200, None),
        ("GET", "/?" + "x" * monitor.REQUEST_BYTES, 431, None),
    ],
)
def test_what_is_not_there_and_what_cannot_be_done(
    tmp_path: Path, method: str, path: str, status: int, allow: str | None
) -> None:
    with page_of(tmp_path) as port:
        found = ask(port, path, method)
        assert (found[0], found[1].get("allow")) == (status, allow)
        assert ask(port, "/")[0] == 200


@pytest.mark.parametrize(
    ("host", "path", "status"),
    [
        ("127.0.0.1:9180", "/", 200),
        ("10.0.0.5", "/overview", 200),
        ("[::1]:9180", "/", 200),
        ("LOCALHOST:9180", "/page.js", 200),
        (socket.gethostname(), "/", 200),
        ("Plant.Example.com", "/", 200),
        ("plant.example.com.:443", "/", 200),
        ("evil.example", "/", 421),
        ("evil.example", "/overview", 421),
        ("plant.example.com.evil.example", "/overview", 421),
        ("127.0.0.1.evil.example:9180", "/dead-letters", 421),
        ("evil.example", "/healthz", 200),  # programs may call it what they like
    ],
)
def test_a_name_that_somebody_else_has_given_this_machine_shows_nothing(
    tmp_path: Path, host: str, path: str, status: int
) -> None:
    with Store(tmp_path, create=True) as store:
        manager = Manager(store, tcp.now())
        manager.links.counters.turned = time.monotonic() + DEADLINE_S
        with answering(manager, Guard(["plant.example.com"])) as port:
            found = ask(port, path, Host=host)
    assert found[0] == status
    assert ("http-names" in found[2]) == (status == 421)


def test_the_overview_has_a_bounded_number_of_rows_and_true_counts(tmp_path: Path) -> None:
    with Store(tmp_path, create=True) as store:
        with store.transaction():
            for number in range(ROWS_MAX + 100):
                store._database.all(
                    "INSERT INTO queues (name, transactional, kind, messages, bytes, quota) VALUES (?, 1, 0, ?, 30, ?)",
                    (f"line{number}", number, 10 if number == 3 else None),
                )
        found = Overview(Manager(store, 0)).shown(store, False)
    assert (len(found["queues"]), found["queue_count"]) == (ROWS_MAX, ROWS_MAX + 100)
    assert [queue["name"] for queue in found["queues"][:3]] == ["line3", "line299", "line298"]  # what is full first
    assert found["problem_count"] == 2


@pytest.mark.slow
def test_who_is_connected_and_who_was_is_shown_by_name(tmp_path: Path) -> None:
    with Client(tmp_path / "store", create=True) as client:
        client.create_queue("line1", transactional=True)
    name = '[names]\n"01010101-0101-0101-0101-010101010101" = "press 7 <b>"\n'
    with serving(tmp_path / "store", name) as running:

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


# ---- who may see and do more -----------------------------------------------------------------------------


def test_without_a_token_nobody_sees_dead_letters_and_is_told_how_to(dead: tuple[Path, list[int]]) -> None:
    store, keys = dead
    with page_of(store) as port:
        for method, body in (("GET", None), ("POST", json.dumps({"queue": DEAD_XACT, "keys": keys}))):
            status, headers, text = ask(port, f"/dead-letters?queue={DEAD_XACT}", method, body, **GIVEN)
            assert (status, "http-token-file" in text) == (403, True)
            assert "www-authenticate" not in headers
        overview = json.loads(ask(port, "/overview")[2])
    assert (overview["can_act"], overview["kept"]) == (False, [{"name": DEAD_XACT, "messages": 3}])
    assert "press 7" not in json.dumps(overview)
    assert "reading 21.5" not in json.dumps(overview)


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN, "Bearer \xff\xfe"],
)
def test_a_wrong_token_shows_and_moves_nothing(dead: tuple[Path, list[int]], authorization: str) -> None:
    store, keys = dead
    with page_of(store, Guard((), TOKEN.encode())) as port:
        for method, body in (("GET", None), ("POST", json.dumps({"queue": DEAD_XACT, "keys": keys}))):
            status, headers, text = ask(
                port, f"/dead-letters?queue={DEAD_XACT}", method, body, Authorization=authorization
            )
            assert (status, headers["www-authenticate"]) == (401, "Bearer")
            assert "press 7" not in text
    with Client(store) as client:
        assert len(list(client.queue(DEAD_XACT).peek())) == 3


def test_wrong_tokens_are_counted_told_and_make_the_next_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(guarding, "SLOWER_S", 0.0)
    with Store(tmp_path, create=True) as store:
        manager = Manager(store, 0)
        watching = monitor.Monitor(
            manager, monitor.socket.create_server(("127.0.0.1", 0)), told.append, Guard((), TOKEN.encode())
        )
        watching.start()
        port = int(watching.address.rpartition(":")[2])
        for _ in range(3):
            assert ask(port, "/dead-letters", Authorization="Bearer wrong")[0] == 401
        assert ask(port, "/dead-letters")[0] == 401
        assert manager.links.counters.http_refused == 3
        watching.close()
    assert told == ["127.0.0.1: a wrong token for the web page"] * 3


def test_guesses_from_an_address_become_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    now = [1000.0]

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(guarding.time, "monotonic", lambda: now[0])
    right, wrong = f"Bearer {TOKEN}".encode(), b"Bearer guess"
    guard = Guard((), TOKEN.encode())

    def waits(authorization: bytes, address: str) -> tuple[float, bool]:
        slept.clear()
        refusal = asyncio.run(guard.refusal(authorization, address))
        return sum(slept), refusal is None

    assert [waits(wrong, "10.0.0.9")[0] for _ in range(4)] == [0, 0.5, 1.0, 1.5]
    assert waits(right, "10.0.0.5") == (0, True)  # others do not wait for that
    assert waits(right, "10.0.0.9") == (2.0, True)
    assert waits(wrong, "10.0.0.9") == (0, False)
    assert max(waits(wrong, "10.0.0.9")[0] for _ in range(30)) == guarding.SLOWEST_S
    now[0] += guarding.FORGET_S
    assert waits(right, "10.0.0.9") == (0, True)
    for number in range(3 * guarding.ADDRESSES_MAX):
        waits(wrong, f"2001:db8::{number:x}")
    assert len(guard._failed) <= guarding.ADDRESSES_MAX


@pytest.mark.parametrize(
    ("origin", "host", "status"),
    [
        ("http://127.0.0.1:9180", "127.0.0.1:9180", 400),
        ("https://plant.example.com", "127.0.0.1:9180", 400),  # of a reverse proxy that has changed Host
        ("http://evil.example", "127.0.0.1:9180", 403),
        ("http://10.0.0.66", "127.0.0.1:9180", 403),
        ("http://127.0.0.1:8000", "127.0.0.1:9180", 403),
        ("null", "127.0.0.1:9180", 403),
    ],
)
def test_a_page_from_elsewhere_may_ask_for_nothing(tmp_path: Path, origin: str, host: str, status: int) -> None:
    with page_of(tmp_path, Guard(["plant.example.com"], TOKEN.encode())) as port:
        assert ask(port, "/dead-letters", "POST", "{}", Origin=origin, Host=host, **GIVEN)[0] == status


def test_a_file_that_is_no_token_is_refused_with_what_to_do(tmp_path: Path) -> None:
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


def test_serve_and_config_check_refuse_a_token_that_others_may_read(tmp_path: Path) -> None:
    with_token(tmp_path, TOKEN)
    assert ordack("config", "check", "--store", tmp_path).returncode == 0
    (tmp_path / "http-token").chmod(0o644)
    done = ordack("config", "check", "--store", tmp_path)
    assert (done.returncode, "http-token-file: " in done.stderr, "chmod 600" in done.stderr) == (2, True, True)
    done = ordack("serve", "--store", tmp_path, "--listen", "127.0.0.1:0", "--http", "0")
    assert (done.returncode, "http-token-file: " in done.stderr) == (1, True)
    assert not (tmp_path / "ordack.sqlite").exists()


# ---- the list --------------------------------------------------------------------------------------------


def test_dead_letters_are_shown_with_reason_and_beginning(dead: tuple[Path, list[int]]) -> None:
    store, keys = dead
    with page_of(store, Guard((), TOKEN.encode())) as port:
        found = letters_of(port, f"queue={DEAD_XACT}")
    rows = found["rows"]
    assert (found["messages"], found["next"], [row["key"] for row in rows]) == (3, None, keys)
    assert [row["label"] for row in rows] == ["press 7", HOSTILE, ""]
    assert [row["text"] for row in rows] == ["reading 21.5", "Förderband <b>1</b>", None]
    assert rows[2]["hex"] == bytes(range(kept.HEX_MAX)).hex(" ")
    assert [row["size"] for row in rows] == [12, 20, 256]
    assert {row["class_name"] for row in rows} == {"NACK_RECEIVE_TIMEOUT"}
    assert "no application is known to have received it in time" in rows[0]["words"]
    assert rows[0]["destination"] == "DIRECT=OS:.\\private$\\line1"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"x" * 1000, "x" * kept.TEXT_MAX),
        ("ö".encode() * 5000, "ö" * kept.TEXT_MAX),
        (b"x" + "\U0001f600".encode() * 5000, "x" + "\U0001f600" * (kept.TEXT_MAX - 1)),
        ("ö".encode()[:1], None),
        (b"a\x00b", None),
        (b"a\x1b[2Jb", None),
        ("\u202eabc".encode(), None),
        (b"a\tb\r\nc", "a\tb\r\nc"),
        (b"", ""),
        (b"\xff" * 5000, None),
    ],
)
def test_a_body_is_shown_as_text_if_all_that_is_shown_of_it_can_be(body: bytes, text: str | None) -> None:
    assert kept._text(body) == text


def test_pages_follow_each_other_without_a_gap(tmp_path: Path) -> None:
    count = 2 * kept.ROWS_MAX + 20
    keys = store_with_dead_letters(tmp_path, [("", b"%d" % number) for number in range(count)])
    found: list[int] = []
    with Store(tmp_path) as store:
        after, pages = "", 0
        while after is not None:
            one = kept.page(store, f"queue={DEAD_XACT}{after and '&after=' + after}", int(time.time()))
            found += [row["key"] for row in one["rows"]]
            assert len(one["rows"]) <= kept.ROWS_MAX
            after, pages = one["next"], pages + 1
    assert (found, pages) == (keys, 3)


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("", 400),
        ("queue=", 400),
        ("queue=nothing", 404),
        ("queue=line1", 400),
        (f"queue={DEAD_XACT}&queue={DEAD_XACT}", 400),
        (f"queue={DEAD_XACT}&limit=100000", 400),
        (f"queue={DEAD_XACT}&after=", 400),
        (f"queue={DEAD_XACT}&after=x.y", 400),
        (f"queue={DEAD_XACT}&after=-1.-1", 400),
        (f"queue={DEAD_XACT}&after=7.{'9' * 30}", 400),
        (f"queue={DEAD_XACT}&after=%ff", 400),
        (f"queue={'x' * 4000}", 400),
        ("&" * 1000, 400),
        (f"queue={DEAD_XACT}&after=7.999999999", 200),
        ("queue=%3Cimg%20src%3Dx%3E", 404),
    ],
)
def test_a_query_that_is_none_is_refused(dead: tuple[Path, list[int]], query: str, status: int) -> None:
    with page_of(dead[0], Guard((), TOKEN.encode())) as port:
        found = ask(port, f"/dead-letters?{query}", **GIVEN)
    assert found[0] == status, found[2]
    assert found[1]["content-type"].startswith("application/json" if status == 200 else "text/plain")


# ---- moving ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_was_moved_is_in_its_queue_whatever_happens_next(dead: tuple[Path, list[int]]) -> None:
    store, keys = dead
    with serving(store) as running:
        done = move(running.http, keys=keys[:2])
        running.serve.process.send_signal(signal.SIGKILL)
    assert [one["key"] for one in done["moved"]] == keys[:2]
    assert done["stayed"] == []
    with Client(store) as client:
        there = list(client.queue("line1").peek())
        assert [message.body for message in there] == [b"reading 21.5", "Förderband <b>1</b>".encode()]
        assert [message.message_id for message in there] == [one["message_id"] for one in done["moved"]]
        assert [message.lookup_id for message in client.queue(DEAD_XACT).peek()] == keys[2:]


@pytest.mark.slow
def test_each_message_that_stays_has_its_reason_and_the_log_says_who_moved(dead: tuple[Path, list[int]]) -> None:
    store, keys = dead
    with Client(store) as client:
        client.create_queue("plain", transactional=False)
        client.store._database.all("UPDATE messages SET in_doubt = 1 WHERE lookup_id = ?", (keys[1],))
    with serving(store) as running:
        port = running.http
        assert [one["reason"][:25] for one in move(port, keys=keys, destination="nowhere")["stayed"]] == [
            "there is no queue nowhere",
            "it is in doubt: it may ha",
            "there is no queue nowhere",
        ]
        done = move(port, keys=[keys[0], 999_999, keys[0]], destination="plain")
        assert [one["key"] for one in done["moved"]] == keys[:1]
        [stayed] = done["stayed"]
        assert (stayed["key"], "not there any more" in stayed["reason"]) == (999_999, True)
        assert "not there any more" in move(port, keys=keys[:1])["stayed"][0]["reason"]
        assert move(port, keys=keys[1:], in_doubt=True)["stayed"] == []
        assert letters_of(port, f"queue={DEAD_XACT}")["rows"] == []
        assert running.samples()["ordack_application_sent_total", ""] == 3
        errors = running.serve.stop()[2]
    with Client(store) as client:
        assert [message.body for message in client.queue("plain").peek()] == [b"reading 21.5"]
        assert len(list(client.queue("line1").peek())) == 2
    moved = [line for line in errors.splitlines() if "over HTTP" in line]
    assert len(moved) == 4
    assert (
        f"info: 127.0.0.1 has moved 1 message of {DEAD_XACT} over HTTP to plain (lookup ids {keys[0]}); 1 s" in moved[1]
    )


@pytest.mark.slow
def test_a_poison_message_goes_back_to_its_queue_as_it_is(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with Client(store, create=True) as client:
        client.create_queue("line1", transactional=True)
        set_numbers(client.store, PoisonAfter=1)
        client.send("line1", b"bad")
        queue = client.queue("line1")
        with contextlib.suppress(ZeroDivisionError), queue.receive():
            raise ZeroDivisionError
        assert queue.begin_receive(1, 0, True) == []
        [before] = client.queue("line1;poison").peek()
    with serving(store) as running:
        [row] = letters_of(running.http, "queue=line1%3Bpoison")["rows"]
        assert (row["class_name"], row["text"]) == ("NORMAL", "bad")
        done = move(running.http, queue="line1;poison", keys=[row["key"]])
    assert done["moved"] == [{"key": row["key"], "destination": "line1", "message_id": before.message_id}]
    with Client(store) as client:
        assert [message.message_key for message in client.queue("line1").peek()] == [before.message_key]


def test_only_the_queue_manager_moves_and_if_it_takes_nothing_nothing_happens(dead: tuple[Path, list[int]]) -> None:
    store, keys = dead
    with page_of(store, Guard((), TOKEN.encode())) as port:  # nobody listens on the socket in its folder
        body = json.dumps({"queue": DEAD_XACT, "keys": keys})
        status, _, text = ask(port, "/dead-letters", "POST", body, **GIVEN)
    assert (status, "takes no applications now" in text) == (503, True)
    with Client(store) as client:
        assert len(list(client.queue(DEAD_XACT).peek())) == 3


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[" * 9000,
        b"[]",
        b"{}",
        b'{"queue": "system$;deadxact"}',
        b'{"queue": "system$;deadxact", "keys": []}',
        b'{"queue": "system$;deadxact", "keys": ["1"]}',
        b'{"queue": "system$;deadxact", "keys": [true]}',
        b'{"queue": "system$;deadxact", "keys": [-1]}',
        b'{"queue": "system$;deadxact", "keys": [1e400]}',
        b'{"queue": "system$;deadxact", "keys": [4611686018427387904]}',
        b'{"queue": "system$;deadxact", "keys": [' + b", ".join([b"1"] * (kept.ROWS_MAX + 1)) + b"]}",
        b'{"queue": "system$;deadxact", "keys": [1], "destination": ""}',
        b'{"queue": "system$;deadxact", "keys": [1], "destination": 5}',
        b'{"queue": "system$;deadxact", "keys": [1], "in_doubt": 1}',
        b'{"queue": "system$;deadxact", "keys": [1], "all": true}',
        b'{"queue": "line1", "keys": [1]}',
        b"\xff\xfe",
    ],
)
def test_a_request_that_says_something_else_is_refused(dead: tuple[Path, list[int]], body: bytes) -> None:
    with page_of(dead[0], Guard((), TOKEN.encode())) as port:
        status, _, text = ask(port, "/dead-letters", "POST", body, **GIVEN)
    assert status == 400, text
    assert text.strip()


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_long_is_not_read(dead: tuple[Path, list[int]], chunked: bool) -> None:
    with page_of(dead[0], Guard((), TOKEN.encode())) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as client:
            length = "Transfer-Encoding: chunked" if chunked else "Content-Length: 1000000000"
            client.sendall(f"POST /dead-letters HTTP/1.1\r\nHost: 127.0.0.1\r\n{length}\r\n\r\n".encode())
            received = b""
            with contextlib.suppress(ConnectionError):
                for _ in range(1000):
                    client.sendall(b"400\r\n" + b" " * 1024 + b"\r\n" if chunked else b" " * 1024)
            with contextlib.suppress(ConnectionError):
                received = client.recv(1 << 16)
            assert received == b"" or received.startswith(b"HTTP/1.1 431 ")
        assert ask(port, "/")[0] == 200
