"""The HTTP side of the web page: who sees it, who may act, and what the actions do."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from ordack.broker import peer_history
from ordack.broker.manager import Manager
from ordack.broker.peer_history import PeerHistories
from ordack.client import Client
from ordack.server import monitor, tcp
from ordack.server.health import ROWS_MAX
from ordack.server.monitor import BadToken, read_token
from ordack.store import Store

from tests.support.command import DEADLINE_S, converse, ordack, settle
from tests.support.dead_letters import store_with_dead_letters, with_token
from tests.support.host_peer import Peer, direct
from tests.support.watched import answering, until, watched_serve

TOKEN = "a-token-that-nobody-guesses"


def ask(
    port: int, path: str, method: str = "GET", body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], str]:
    """Status, headers with names in lower case, and body."""
    with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)) as connection:
        connection.request(method, path, body, headers)
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
        assert [ask(port, *request)[1]["allow"] for request in ((path, "PUT"), ("/act",))] == ["GET, HEAD", "POST"]
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


def act(port: int, request: object, **headers: str) -> tuple[int, Any]:
    """Status, and the answer, or an error's text."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json", **headers}
    body = request if isinstance(request, bytes) else json.dumps(request).encode()
    status, told, text = ask(port, "/act", "POST", body, **headers)
    return status, json.loads(text) if told["content-type"] == "application/json" else text


@pytest.mark.parametrize(
    ("headers", "status", "told"),
    [
        ({"Authorization": ""}, 401, "the token that `ordack serve` prints"),
        ({"Authorization": f"Bearer {TOKEN}x"}, 401, "the token"),
        ({"Authorization": "", "Cookie": f"token={TOKEN}"}, 401, "the token"),
        ({"Content-Type": "text/plain"}, 415, "application/json"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415, "application/json"),
        ({"Origin": "http://evil.example"}, 403, "another site"),
        ({"Origin": "null"}, 403, "another site"),
        ({"Origin": "http://127.0.0.1:1"}, 403, "another site"),
        ({"Host": "plant.example.com", "Origin": "https://evil.example"}, 403, "Host"),
        ({"Host": "plant.example.com", "Origin": "https://plant.example.com"}, 400, "names no action"),
        ({}, 400, "names no action"),
    ],
)
def test_request_of_another_site_or_without_token_does_nothing(
    tmp_path: Path, headers: dict[str, str], status: int, told: str
) -> None:
    with page_of(tmp_path, TOKEN.encode()) as port:
        found = act(port, {}, **headers)
    assert (found[0], told in found[1]) == (status, True)


def test_generated_token_permits_changes_from_this_machine_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor.secrets, "token_urlsafe", lambda _size: TOKEN)
    with page_of(tmp_path) as port:
        assert [act(port, {}, Host=host)[0] for host in ("localhost", "evil.example")] == [400, 401]
        assert ask(port, "/overview", Host="evil.example", Authorization=f"Bearer {TOKEN}")[0] == 401
        monkeypatch.setattr(monitor, "is_loopback", lambda _address: False)
        assert act(port, {})[0] == 401


def test_a_long_action_goes_on_and_others_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end = threading.Event()
    monkeypatch.setattr(monitor, "ANSWER_S", 0.1)
    monkeypatch.setattr(monitor.actions, "run", lambda *_: end.wait(DEADLINE_S) and {"done": "purged"})
    with page_of(tmp_path, TOKEN.encode()) as port:
        status, told = act(port, {"action": "purge"})
        assert (status, "still running" in told["done"]) == (202, True)
        assert act(port, {})[0] == 503
        assert ask(port, "/livez")[0] == 503  # of a manager whose loop does not run, but the port answers
        end.set()
        until(lambda: act(port, {})[0] == 200, "it is over")


@pytest.mark.slow
def test_actions_do_what_the_commands_do(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store_with_dead_letters(store, [("press 7", b"21.5"), ("oven", b"\xff\x00" * 1000)])
    with watched_serve(store) as running:
        assert running.serve.process.stdout
        token = running.serve.process.stdout.readline().split()[-1]

        def done(action: str, **values: object) -> tuple[int, Any]:
            return act(running.http, {"action": action, **values}, Authorization=f"Bearer {token}")

        assert done("create", queue="ovens", transactional=True) == (
            200,
            {"done": "Created the transactional queue ovens."},
        )
        for action, values, named in (
            ("create", {"queue": "ovens"}, "ovens"),
            ("create", {"queue": "a\\b"}, "a\\b"),
            ("create", {"queue": 7}, "`queue`"),
            ("create", {"queue": "\ud800"}, r"\ud800"),
            ("pause", {"queue": "\ud800"}, r"\ud800"),
            ("move", {"queue": "ovens", "key": -1}, "`key`"),
            ("create", {"queue": "x", "transactional": 1}, "`transactional`"),
            ("purge", {"queue": "missing"}, "missing"),
            ("look", {"queue": "ovens", "rank": "1"}, "`rank`"),
            ("look", {"queue": "ovens", "lookup_id": 1 << 70}, "`lookup_id`"),
            ("move", {"queue": "ovens", "key": True}, "`key`"),
            ("move", {"queue": "ovens", "key": 10**6}, "Look into the queue again"),
            ("pause", {"queue": "direct=os:nowhere\\private$\\x"}, "no outgoing queue"),
        ):
            found = done(action, **values)
            assert (found[0], named in found[1]) == (400, True), (action, found)
        oven = done("look", queue="system$;deadxact")[1]["messages"][1]
        assert (oven["size"], oven["is_text"], oven["is_cut"]) == (2000, False, True)
        assert oven["body"].startswith("ff 00 ff")
        assert "NACK_RECEIVE_TIMEOUT" in oven["why"]
        assert done("move", queue="system$;deadxact", key=oven["lookup_id"], in_doubt=oven["in_doubt"])[0] == 200
        assert done("purge", queue="system$;deadxact") == (200, {"done": "Removed 1 message from system$;deadxact."})
        with Client(store) as client:
            assert [message.body for message in client.queue("line1").peek()] == [b"\xff\x00" * 1000]
            client.send("DIRECT=OS:gone\\private$\\reports", b"waits")
            for action, on_hold in (("pause", True), ("resume", False)):
                assert done(action, queue="direct=os:gone\\private$\\reports")[0] == 200
                counts = client.store.outgoing.counts()
                assert [queue.on_hold for queue in counts if "gone" in queue.format_name] == [on_hold]


@pytest.mark.slow
def test_each_change_on_the_web_page_leaves_one_log_line(tmp_path: Path) -> None:
    store, away = tmp_path / "store", "direct=os:gone\\private$\\reports"
    store_with_dead_letters(store, [("", b"1"), ("", b"2"), ("", b"3")])
    with Client(store) as client:
        dead = next(client.queue("system$;deadxact").peek())
        client.send(away, b"waits")
    with_token(store, TOKEN, "log-format = 'json'\n")
    changes: list[dict[str, Any]] = [
        {"action": "create", "queue": "ovens"},
        {"action": "move", "queue": "system$;deadxact", "key": dead.lookup_id, "in_doubt": dead.in_doubt},
        {"action": "purge", "queue": "system$;deadxact"},
        *({"action": action, "queue": away} for action in ("pause", "resume") * 2),
    ]
    with watched_serve(store) as running:
        act(running.http, {"action": "look", "queue": "ovens"})
        answers = [act(running.http, change)[1]["done"] for change in changes]
        assert act(running.http, {"action": "purge", "queue": "missing"})[0] == 400
        log = [json.loads(line) for line in running.serve.stop()[2].splitlines()]
    told = [line for line in log if line["text"].startswith("127.0.0.1 by HTTP")]
    assert [(line["level"], line["queue"]) for line in told] == [("info", change["queue"]) for change in changes]
    assert not any("again" in line for line in told)
    assert [line["text"].partition(": ")[2] for line in told] == answers
    counts = [re.search(r"(\d+) messages?\b", answer) for answer in answers]
    assert [found and int(found[1]) for found in counts] == [None, 1, 2, 1, 1, 1, 1]


def test_overview_limits_rows_and_finds_each_queue_and_board(tmp_path: Path) -> None:
    with Store(tmp_path, create=True) as store:
        manager = Manager(store, tcp.now())
        manager.links.counters.turned = time.monotonic() + DEADLINE_S
        for number in range(ROWS_MAX + 100):
            store.queues.create(f"Line{number:04}", transactional=True)
            manager.links.histories.of(number.to_bytes(16, "big")).name = f"Press{number:04}"
        with answering(manager) as port:
            answers = [
                ask(port, path)[2] for path in ("/overview", "/overview?queues=lINE0299&peers=press029%39", "/overview")
            ]
    first, found, last = map(json.loads, answers)
    for told, queues, peers in (
        (first, ROWS_MAX + 100, ROWS_MAX + 100),
        (found, 1, 1),
        (last, ROWS_MAX + 100, ROWS_MAX + 100),
    ):
        assert (len(told["queues"]), told["queue_count"]) == (min(queues, ROWS_MAX), queues)
        assert (len(told["peers"]), told["found_count"]) == (min(peers, ROWS_MAX), peers)


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
        for number in range(2):
            peer.send(b"%d" % number)
        peer.connect(tcp.now())
        with socket.create_connection(("127.0.0.1", running.serve.port), timeout=DEADLINE_S) as connection:
            settle(peer, connection)
            until(peers, "it is shown")
            [there] = peers()
            assert (there["name"], there["sessions"], there["address"]) == ("press 7 <b>", 1, "127.0.0.1")
            assert there["guid"] == "{01010101-0101-0101-0101-010101010101}"
            assert there["silent_s"] < DEADLINE_S
        peer.send(b"2")
        converse(peer, running.serve.port)  # too short for the sampling to see the session
        until(lambda: sum(peers()[0]["history"]) == 3, "each message is counted")
        gone = until(lambda: (found := peers()[0])["sessions"] == 0 and found, "it is seen to go")
        assert (gone["name"], gone["guid"]) == (there["name"], there["guid"])
        until(lambda: peers()[0]["silent_s"] > 0.5, "its silence is told")


def test_histories_of_ten_thousand_boards_are_small_and_the_oldest_gives_way() -> None:
    histories, guids = PeerHistories(), [number.to_bytes(16, "big") for number in range(peer_history.PEERS_MAX + 1)]
    tracemalloc.start()
    for guid in guids:
        histories.of(guid).received += 1000
    histories.sample(0)
    assert tracemalloc.get_traced_memory()[0] < 600 * peer_history.PEERS_MAX
    tracemalloc.stop()
    assert histories.copy().keys() == set(guids[1:])


def test_history_counts_each_message_in_its_span_and_forgets_old_spans() -> None:
    histories, last = PeerHistories(), [0] * peer_history.SPANS
    history = histories.of(bytes(16))
    for elapsed, received, tail in (
        (0, 5, [5]),
        (1, 2, [7]),
        (peer_history.SPAN_S, 3, [7, 3]),
        (4 * peer_history.SPAN_S, 1, [7, 3, 0, 0, 1]),
        ((peer_history.SPANS + 1) * peer_history.SPAN_S, 4, [0, 0, 1, *[0] * (peer_history.SPANS - 4), 4]),
        (9 * peer_history.SPANS * peer_history.SPAN_S, 6, [6]),
    ):
        assert histories.of(bytes(16)) is history
        history.received += received
        histories.sample(10**6 * peer_history.SPAN_S + elapsed)
        assert histories.spans(history) == [*last, *tail][-peer_history.SPANS :]


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
    with pytest.raises(BadToken, match="not a file"):
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
