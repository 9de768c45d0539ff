"""`ordack serve --http`: what Prometheus and a probe are told, that it is true, and that no client of it costs much."""

from __future__ import annotations

import contextlib
import json
import queue
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqqb import confirm
from ordack.broker.manager import FAILURE_MS, Manager
from ordack.client import Client
from ordack.server import health, monitor, tcp
from ordack.server.listener import Listener
from ordack.server.metrics import LABEL_MAX, NAMED_MAX, Metrics, safe_label
from ordack.store import OTHER, PEERS_MAX, CountsByPeer, Store
from ordack.store.disk import Spread
from ordack.store.look import StoreBeside

from tests.support.command import DEADLINE_S, ENVIRONMENT, ROOT, converse, ordack
from tests.support.host_peer import Peer, direct
from tests.support.watched import Samples, Watched, answering, families_of, get, samples_of, until, watched_serve


@pytest.fixture
def watched(store: Path) -> Iterator[Watched]:
    with watched_serve(store) as running:
        yield running


# ---- counters --------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 12), max_size=50))
def test_each_number_is_counted_in_the_first_range_that_holds_it(numbers: list[int]) -> None:
    spread = Spread((1, 5, 10))
    for number in numbers:
        spread.add(number)
    for place, bound in enumerate(spread.bounds):
        assert sum(spread.counts[: place + 1]) == sum(number <= bound for number in numbers)
    assert (sum(spread.counts), spread.total) == (len(numbers), sum(numbers))


def test_peers_are_bounded_and_nothing_that_they_did_is_lost() -> None:
    peers = CountsByPeer()
    board = peers.of("board")
    board.received = 7
    board.sessions = 1
    for number in range(3 * PEERS_MAX):
        passing = peers.of(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
        passing.received += 1
        passing.sent_bytes += 10
        passing.refuse(confirm.NACK_BAD_DST_Q)
        assert len(list(peers)) <= PEERS_MAX + 1
    assert peers.of("board") is board
    assert sum(counts.received for _, counts in peers) == 3 * PEERS_MAX + 7
    assert sum(counts.sent_bytes for _, counts in peers) == 30 * PEERS_MAX
    assert sum(counts.refused.get(confirm.NACK_BAD_DST_Q, 0) for _, counts in peers) == 3 * PEERS_MAX
    assert peers.other.received > PEERS_MAX


# ---- what is shown ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_pages_document_each_metric_with_kind_and_label(watched: Watched) -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "host" / "docs").rglob("*.md")))
    rows = re.findall(r"^\* `(\w+)(?:\{(\w+)\})?` \((counter|gauge|histogram)\): ", pages, re.MULTILINE)
    told = {name: (kind, {label, "le"}) for name, label, kind in rows}
    families = families_of(watched.get("/metrics")[1])
    shown = {family.name + ("_total" if family.type == "counter" else ""): family for family in families}
    shown = {name: family for name, family in shown.items() if not name.startswith("process_")}
    assert shown.keys() == told.keys()
    for name, family in shown.items():
        kind, labels = told[name]
        assert (family.type, {label for sample in family.samples for label in sample.labels} - labels) == (kind, set())


@pytest.mark.slow
def test_metrics_count_actual_traffic(watched: Watched, store: Path, tmp_path: Path) -> None:
    port = watched.serve.port
    assert watched.samples()["ordack_healthy", ""] == 1
    with Client(tmp_path / "near", create=True) as client:
        for number in range(20):
            client.send("DIRECT=OS:plant\\private$\\line1", b"%d" % number * 100)
        client.send("DIRECT=OS:plant\\private$\\lime1", b"x")
        client.send("DIRECT=OS:gone\\private$\\line1", b"waits")
    near = Watched(tmp_path / "near", "--next-hop", f"plant=127.0.0.1:{port}", "--next-hop", "gone=127.0.0.1:9")
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as nonsense:
        nonsense.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert nonsense.recv(1) == b""
    try:

        def arrived() -> Samples | None:
            found = watched.samples()
            return found if found["ordack_queue_messages", "line1"] == 20 else None

        there = until(arrived, "all have arrived")
        peer = "127.0.0.1"
        assert there["ordack_batch_messages_sum", ""] == 20
        assert there["ordack_peer_received_total", peer] >= 21
        assert there["ordack_refused_total", "NACK_BAD_DST_Q"] == there["ordack_peer_refused_total", peer] >= 1
        assert there["ordack_sessions_ended_total", "B-168"] == 1
        assert there["ordack_peer_sessions", peer] == 1
        assert there["ordack_peer_received_bytes_total", peer] > there["ordack_queue_bytes", "line1"] > 20 * 100
        assert 0 <= there["ordack_queue_oldest_seconds", "line1"] < 2 * DEADLINE_S
        assert there["ordack_syncs_total", ""] >= there["ordack_commit_seconds_count", ""] > 0
        assert there["ordack_commit_seconds_sum", ""] > 0
        assert there["ordack_wal_bytes", ""] > 0
        until(lambda: watched.samples()["ordack_healthy", ""] == 0, "a refused message is a problem")

        def acknowledged() -> Samples | None:
            found = near.samples()
            return found if found["ordack_outgoing_messages", "direct=os:plant\\private$\\line1"] == 0 else None

        here = until(acknowledged, "all are acknowledged")
        gone = "direct=os:gone\\private$\\line1"
        assert here["ordack_peer_sent_total", peer] >= 21
        assert here["ordack_peer_resent_total", peer] == here["ordack_peer_sent_total", peer] - 21
        assert here["ordack_outgoing_messages", gone] == here["ordack_outgoing_unacknowledged", gone] == 1
        assert 0 <= here["ordack_outgoing_oldest_seconds", gone] < 2 * DEADLINE_S
        assert here["ordack_peer_sessions", peer] == 1
        ordack("receive", "--store", store, "line1", "--all")
        until(lambda: watched.samples()["ordack_queue_messages", "line1"] == 0, "the queue is empty")
    finally:
        near.serve.process.kill()
        near.serve.process.communicate()


@pytest.mark.slow
def test_application_metrics_count_durable_operations(watched: Watched, store: Path) -> None:
    with Client(store) as client:
        client.send("line1", b"one")
        client.send("line1", b"two")
        until(lambda: watched.samples()["ordack_applications", ""] == 1, "it is seen")
        with contextlib.suppress(ZeroDivisionError), client.queue("line1").receive():
            raise ZeroDivisionError  # it is put back
        with client.queue("line1").receive() as message:
            assert message.body == b"one"
    found = until(lambda: (now := watched.samples())["ordack_applications", ""] == 0 and now, "it is gone")
    assert (found["ordack_application_sent_total", ""], found["ordack_application_removed_total", ""]) == (2, 1)


@pytest.mark.slow
def test_http_status_equals_status_command_output(watched: Watched, store: Path) -> None:
    def both() -> tuple[dict[str, Any], dict[str, Any]]:
        return json.loads(watched.get("/status")[1]), json.loads(ordack("status", "--store", store, "--json").stdout)

    until(lambda: (shown := both())[0] == shown[1] and shown[0]["served"], "they agree")


def test_labels_are_bounded_and_their_sums_true(tmp_path: Path) -> None:
    with Store(tmp_path, create=True) as store:
        with store.transaction():
            for number in range(NAMED_MAX + 100):
                name = f"line{number}"
                store._database.all(
                    "INSERT INTO queues (name, transactional, kind, messages, bytes) VALUES (?, 1, 0, 3, 30)", (name,)
                )
        text, media_type = Metrics(Manager(store, 0), lambda _store: []).text(store)
        found = samples_of(text.decode())
    assert media_type.startswith("text/plain")
    messages = {label: value for (name, label), value in found.items() if name == "ordack_queue_messages"}
    assert len(messages) == NAMED_MAX + 1
    assert sum(messages.values()) == 3 * (NAMED_MAX + 100)
    assert messages[OTHER] >= 300


EVIL = 'a"b\\c\nordack_healthy 0\r\x1b[2J\u202e\ud800\x85'


@pytest.mark.parametrize(
    "text", [EVIL, "x" * 500, "\x1b" * 500, "", "Förderband 1", "DIRECT=TCP:10.0.0.5\\private$\\line1"]
)
def test_metric_label_of_foreign_name_is_printable_and_short(text: str) -> None:
    label = safe_label(text)
    assert label.isprintable()
    assert len(label) <= LABEL_MAX
    label.encode()
    assert (label == text) == (text.isprintable() and len(text) <= LABEL_MAX)


# ---- health ----------------------------------------------------------------------------------------------


def test_a_stuck_loop_and_a_store_that_fails_are_problems(tmp_path: Path) -> None:
    with Store(tmp_path, create=True) as store:
        manager = Manager(store, 0)
        made = manager.links.counters
        made.turned = time.monotonic() + DEADLINE_S
        assert health.glance(manager, store)["problems"] == []
        made.turned = time.monotonic() - health.STUCK_S - 1
        [problem] = health.glance(manager, store)["problems"]
        assert "event loop has not run for 11 s" in problem
        assert "event loop has not run for 11 s" in health.restart_helps(manager, time.monotonic())
        made.turned = time.monotonic() + DEADLINE_S
        made.store_failed("the disk is on fire", 1000)
        assert health.glance(manager, store)["problems"] == ["the store refuses changes: the disk is on fire"]
        manager.poll(1000 + FAILURE_MS, 1_800_000_000)
        assert health.glance(manager, store)["problems"] == ["the store refuses changes: the disk is on fire"]
        manager.poll(1001 + FAILURE_MS, 1_800_000_000)
        assert health.glance(manager, store)["problems"] == []


def test_monitor_logs_defect_and_answers_500(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    with Store(tmp_path, create=True) as store:
        watching = monitor.Monitor(Manager(store, 0), Listener("127.0.0.1", 0).socket, told.append)
        monkeypatch.setattr("ordack.server.health.glance", lambda _manager, _store: {}["x"])
        watching.start()
        port = int(watching.address.rpartition(":")[2])
        assert get(port, "/status") == (500, "This is a defect of ordack: its log has the details.\n")
        assert get(port, "/")[0] == 200
        watching.close()
    assert len(told) == 1
    assert "KeyError: 'x'" in told[0]


# ---- the thread beside -----------------------------------------------------------------------------------


def test_a_look_beside_keeps_the_locks_of_the_process(tmp_path: Path) -> None:
    """Another process that comes and goes must not take itself for the last one, and remove the log."""
    with Store(tmp_path, create=True) as store:
        store.keep_names({"own": ["x"]})
        store._database._log.empty()
        beside = StoreBeside(tmp_path)
        assert beside.names() == {"own": ["x"]}
        store.keep_names({"own": ["y"]})
        assert beside.names() == {"own": ["y"]}
        beside.close()
        program = "import sys; from ordack.store import Store; Store(sys.argv[1]).close()"
        subprocess.run([sys.executable, "-c", program, tmp_path], env=ENVIRONMENT, check=True, timeout=DEADLINE_S)
        assert (tmp_path / "ordack.sqlite-wal").exists()
        store.keep_names({"own": ["z"]})
        with Store(tmp_path) as other:
            assert other.names() == {"own": ["z"]}


# ---- clients ---------------------------------------------------------------------------------------------


def _answer(client: socket.socket) -> tuple[int, bytes]:
    """What comes until the end: status and body; (0, b"") if the connection is reset, or ends without an answer."""
    try:
        answer = HTTPResponse(client)
        answer.begin()
        return answer.status, answer.read()
    except (HTTPException, ConnectionError):
        return 0, b""


def _client(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"GET / HTTP/1.0\r\n\r\n", 200),
        (b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 405),
        (b"DELETE /status HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n", 405),
        (b"GET /act HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"GET /page.html HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"GET /?" + b"x" * 8000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 200),
        (b"GET /?" + b"x" * monitor.REQUEST_BYTES + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
        (b"POST /act HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n" + b"x" * monitor.REQUEST_BYTES, 431),
        (b"GET /healthz?now=1 HTTP/1.1\r\nHost: x\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /status HTTP/1.1\r\nHost: x\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
        (b"\x00\x01\x02\x03\r\n\r\n", 400),
        (b"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", 404),
    ],
)
def test_http_request_variants_get_expected_status(tmp_path: Path, request_: bytes, status: int) -> None:
    with Store(tmp_path, create=True) as store:
        manager = Manager(store, tcp.now())
        manager.links.counters.turned = time.monotonic() + DEADLINE_S
        with answering(manager) as port, _client(port) as client:
            client.sendall(request_)
            assert _answer(client)[0] == status


def test_monitor_drops_stalled_http_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "CONNECTION_S", 0.3)
    let_go: queue.SimpleQueue[object] = queue.SimpleQueue()
    lost = monitor.Monitor.lost

    def noted(watching: monitor.Monitor, connection: Any) -> None:
        lost(watching, connection)
        let_go.put(connection)

    monkeypatch.setattr(monitor.Monitor, "lost", noted)
    with Store(tmp_path, create=True) as store, answering(Manager(store, 0)) as port:
        monkeypatch.setattr("ordack.server.health.glance", lambda _manager, _store: {"much": "x" * (32 << 20)})
        with _client(port) as half, _client(port) as deaf:
            half.sendall(b"GET /status HTT")
            deaf.sendall(b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n")
            assert _answer(half) == (0, b"")
            for _ in (half, deaf):
                let_go.get(timeout=DEADLINE_S)
            received = 0
            with contextlib.suppress(ConnectionError):
                while data := deaf.recv(1 << 20):
                    received += len(data)
            assert received < 32 << 20


@pytest.mark.slow
def test_1000_connections_delay_no_message_or_client(watched: Watched) -> None:
    files = Path(f"/proc/{watched.serve.process.pid}/fd")
    assert watched.get("/healthz")[0] == 200
    before = len(list(files.iterdir()))
    crowd = []
    try:
        for number in range(1000):
            client = socket.socket()
            crowd.append(client)
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", watched.http))
            with contextlib.suppress(OSError):
                client.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" if number % 2 else b"GET /met")
        peer = Peer(b"\1" * 16, direct("line1"))
        for number in range(50):
            peer.send(b"%d" % number)
        converse(peer, watched.serve.port)
        assert len(list(files.iterdir())) <= before + monitor.FILES + 5
        status = until(lambda: _got(watched.http), "an honest client is answered")
        assert status == 200
    finally:
        for client in crowd:
            client.close()
    found = until(lambda: _got(watched.http) == 200 and watched.samples(), "it goes on")
    assert found["ordack_queue_messages", "line1"] == 50
    status, _, errors = watched.serve.stop()
    assert (status, errors) == (0, "")


def _got(port: int) -> int:
    """The status of /healthz, or 0 if this client was one too many."""
    try:
        return get(port, "/healthz")[0]
    except (HTTPException, OSError):
        return 0


# ---- the option ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_occupied_http_port_fails_before_store_is_created(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = ordack("serve", "--store", tmp_path / "store", "--listen", "127.0.0.1:0", "--http", port)
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}: " in done.stderr
    assert not (tmp_path / "store").exists()


@pytest.mark.slow
@pytest.mark.parametrize("text", ["http://x", "70000"])
def test_invalid_http_address_is_usage_error(tmp_path: Path, text: str) -> None:
    done = ordack("serve", "--store", tmp_path / "store", "--http", text)
    assert (done.returncode, "--http: " in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "store").exists()
