"""Why is it stuck? One command, one sentence: `message state`, `status`, and the log of `serve`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mqqb import confirm, guids
from ordack.broker import status
from ordack.client import Client
from ordack.store.outgoing import NewOutgoing

from tests.support.command import DEADLINE_S, ENVIRONMENT, Serve, as_json, ordack, outgoing_of, write_settings
from tests.support.dead_letters import store_with_dead_letters
from tests.support.watched import Watched, watched_serve

pytestmark = pytest.mark.slow

AWAY = "DIRECT=TCP:10.0.0.5\\private$\\lime1"
CONNECTING = {"host": "10.0.0.5", "port": 1801, "tries": 0}


@contextlib.contextmanager
def _serving(store: Path, *arguments: str) -> Iterator[Serve]:
    running = Serve(store, *arguments)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.communicate()


def _status(store: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(ordack("status", "--store", store, "--json").stdout)
    return told


def _until(true: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while not (found := true()):
        assert time.monotonic() < deadline, what
    return found


def _why(store: Path, message_id: int, pattern: str) -> str:
    """What `state` says of a message, as soon as that is like the pattern."""

    def matching() -> str:
        said = re.sub(r"; (not )?final.*\n", "", ordack("message", "state", "--store", store, message_id).stdout)
        return said if re.fullmatch(pattern, said) else ""

    found: str = _until(matching, pattern)
    return found


def _send(store: Path, destination: str = AWAY, sent_ago: float = 0, body: bytes = b"x", **properties: Any) -> int:
    with Client(store, clock=lambda: time.time() - sent_ago) as client:
        return client.send(destination, body, **properties).message_id


def test_status_reports_unserved_store(store: Path) -> None:
    message_id = _send(store, sent_ago=8000)
    said = ordack("message", "state", "--store", store, message_id).stdout
    assert said == "waiting 2 h: no queue manager runs on this store, start `ordack serve`; not final\n"
    done = ordack("status", "--store", store)
    assert done.returncode == 1
    assert "not served" in done.stdout
    assert f"start `ordack serve --store {store}`" in done.stdout
    told = _status(store)
    assert (told["served"], told["since"], told["sessions"]) == (False, None, [])
    assert [queue["messages"] for queue in told["outgoing"]] == [1]


def test_command_in_problem_text_is_quoted_for_shell(tmp_path: Path) -> None:
    store = tmp_path / "line 1's store"
    with Client(store, create=True):
        pass
    [problem] = _status(store)["problems"]
    [command] = re.findall("`(.*)`", problem)
    assert shlex.split(command) == ["ordack", "serve", "--store", str(store)]


def test_status_reports_hung_queue_manager(store: Path) -> None:
    with _serving(store) as serve:
        assert ordack("status", "--store", store).returncode == 0
        os.kill(serve.process.pid, signal.SIGSTOP)
        done = ordack("status", "--store", store, "--json")
        assert done.returncode == 1
        told = json.loads(done.stdout)
        assert told["served"]  # it has the store, and nobody else can
        [problem] = told["problems"]
        assert problem == (
            f"nothing moves: process {serve.process.pid} has the store, and it has not answered for 10 s; if it hangs, "
            "end it and start it again"
        )
        os.kill(serve.process.pid, signal.SIGCONT)
        assert ordack("status", "--store", store).returncode == 0


def _verdict(running: Watched) -> list[str]:
    """The problems that `ordack status`, /healthz, the web page and the metric agree on."""

    def agreed() -> list[str] | None:
        done = ordack("status", "--store", running.store, "--json")
        code, body = running.get("/healthz")
        health = json.loads(body)
        told = [json.loads(found)["problems"] for found in (done.stdout, body, running.get("/overview")[1])]
        told = [[re.sub(r"\d+ (s|min)\b", "", problem) for problem in problems] for problems in told]
        is_well = not told[0]
        found = done.returncode == 0, code == 200, health["healthy"], running.samples()["ordack_healthy", ""] == 1
        return told[0] if told == [told[0]] * 3 and set(found) == {is_well} else None

    found: list[str] = _until(lambda: (agreed_on := agreed()) is not None and (agreed_on,), "they agree")[0]
    return found


def test_status_healthz_and_the_page_give_one_verdict(tmp_path: Path) -> None:
    store, there = tmp_path / "store", tmp_path / "there"
    store_with_dead_letters(store, [("", b"x"), ("", b"y")])
    with Client(there, create=True):
        pass
    with watched_serve(there) as refusing:
        assert _verdict(refusing) == []
        with watched_serve(store, "--next-hop", f"10.0.0.5=127.0.0.1:{refusing.serve.port}") as running:
            [problem] = _verdict(running)
            assert problem.startswith("2 dead letters in system$;deadxact: ")
            assert running.get("/livez") == (200, '{"healthy": true, "problems": []}\n')
            ordack("message", "purge", "--yes", "--store", store, "system$;deadxact")
            assert _until(lambda: not _verdict(running), "it is gone")
            _why(store, _send(store), "discarded: .*")
            [problem] = _until(lambda: _verdict(refusing), "it is told")
            assert re.search("a message was refused .* own-names .* 0x8000 NACK_BAD_DST_Q", problem)
        assert refusing.get("/livez")[0] == 200, "a restart would not help"


def test_lost_messages_of_a_burst_are_a_problem_after_later_successes(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, now = tmp_path / "there", time.time()
    with Client(there, create=True) as client:
        client.create_queue("lime1")
    ordack("queue", "quota", "--store", there, "lime1", 1000)
    sent = [_send(store, body=bytes(300)) for _ in range(6)]
    kept = _send(store, body=bytes(300), dead_letter=True)
    with _serving(there) as away, watched_serve(store, "--next-hop", f"10.0.0.5=127.0.0.1:{away.port}") as running:
        _why(store, sent[0], "stored at destination")
        _why(store, sent[-1], "discarded: .* is full; .*")
        _why(store, kept, "dead-lettered: .*")
        ordack("message", "purge", "--yes", "--store", there, "lime1")
        _why(store, _send(store), "stored at destination")
        [_of_the_dead_letter, problem] = _verdict(running)
        lost = [one for one in sent if as_json("message", "state", "--store", store, one)[0]["state"] == "discarded"]
        assert problem.startswith(f"{len(lost)} messages to direct=tcp:10.0.0.5")
        assert "lime1 at 10.0.0.5 is full" in problem
        assert any(f"`ordack message state {one}`" in problem for one in lost)
    monkeypatch.setattr(time, "time", lambda: now + 5 * 3600)
    with Client(store, look=True) as client:
        told = status.glance(client.store, shown={})
    assert len(told["lost"]) == 1
    assert not [text for text in told["problems"] if text in told["lost"]], "it is still told, but no problem any more"


@pytest.mark.parametrize(("hours", "warns"), [(24, True), (26, False)])
def test_lost_messages_that_share_a_row_are_all_counted(store: Path, hours: int, warns: bool) -> None:
    """Also by `ordack send`, for a day, although a later message has arrived."""
    lost, good = array("I", bytes(24)), array("I", bytes(24))
    lost[confirm.STATE], lost[confirm.CLASS] = confirm.GONE, confirm.NACK_REACH_QUEUE_TIMEOUT
    at = int(time.time()) - hours * 3600
    with Client(store) as client:
        rows = (70, lost.tobytes(), at, AWAY.lower(), 64), (71, good.tobytes(), at + 1, None, 1)
        client.store.memory.add_outcomes(rows)
        [told] = status.glance(client.store, shown={})["lost"]
    assert told.startswith("64 messages")
    said = [
        ordack("send", "--store", store, *more, "--body", "x").stderr
        for more in ([AWAY], [AWAY, "--dead-letter"], [AWAY.replace("lime1", "line1")])
    ]
    assert ["64 messages" in text and "--dead-letter" in text for text in said] == [warns, False, False]


@pytest.mark.parametrize(("hours", "problems"), [(0.5, 1), (5, 0)])
def test_status_says_when_each_reason_for_a_refusal_last_occurred(store: Path, hours: float, problems: int) -> None:
    """And has a remedy for the recent ones only."""
    reason, now = "0x8000 NACK_BAD_DST_Q", time.time()
    shown = {
        "refused": {"connections": {"tls": 2}, "messages": {reason: 3, "no room": 1}},
        "refused_at": {"tls": now - 4 * 86400, reason: now - hours * 3600, "no room": now - 1200},
        "refused_last": {"tls": "from 10.0.0.5: it has no certificate"},
    }
    with Client(store, look=True) as client:
        told = status.glance(client.store, shown=shown)
    ages = re.findall(r"(\w+): (\d), last (\d+ \w+) ago", status.refused_text(told))
    assert ages == [
        ("tls", "2", "4 days"),
        ("NACK_BAD_DST_Q", "3", status.span(hours * 3600)),
        ("room", "1", "20 min"),
    ]
    assert ["make it there" in problem for problem in told["problems"]] == [True] * problems


@pytest.mark.parametrize(("waits", "problems"), [(status.PATIENCE_S / 2, 0), (status.PATIENCE_S + 1, 1)])
def test_long_wait_for_first_connection_is_a_problem(store: Path, waits: float, problems: int) -> None:
    _send(store, sent_ago=waits)
    told = {"format_name": AWAY.lower(), "state": "WaitingForConnection", "connection": CONNECTING}
    with Client(store, look=True) as client:
        assert len(status.glance(client.store, shown={"outgoing": [told]})["problems"]) == problems


def test_status_names_refusing_peer_with_tries_and_next_try(store: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        port = nobody.getsockname()[1]
        message_id = _send(store, sent_ago=8000)
        with _serving(store, "--next-hop", f"10.0.0.5=127.0.0.1:{port}") as serve:
            said = rf"waiting 2 h for 127\.0\.0\.1:{port}: connection refused \((\d+) tries, next in \d s\)"
            _why(store, message_id, said)
            [queue] = outgoing_of(store)
            assert re.fullmatch(said, queue["why"])
            assert queue["connection"]["reason"] == "connection refused"
            assert re.search(said.replace(" ", r"\s"), ordack("status", "--store", store).stdout)
            told = _status(store)
            assert [re.sub(".*: waiting", "waiting", problem) for problem in told["problems"]] == [
                told["outgoing"][0]["why"]
            ]
            assert told["served"]
            assert told["process"] == serve.process.pid
            assert time.time() - told["since"] < DEADLINE_S * 2
            assert told["listening"] == f"127.0.0.1:{serve.port}"
            _, _, errors = serve.stop()
    first = errors.splitlines()[0]
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z warning: ", first)
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (
            b"HTTP/1.1 400 Bad Request\r\nServer: nginx\r\nConnection: close\r\n\r\n",
            "what answers at that address is not MSMQ: .*",
        ),
        (b"", "it closes the connection without a word: .*"),
    ],
)
def test_something_else_at_the_address_is_said(store: Path, answer: bytes, reason: str) -> None:
    def serve_something_else() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve_something_else, daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        message_id = _send(store)
        with _serving(store, "--next-hop", f"10.0.0.5=127.0.0.1:{port}"):
            _why(store, message_id, rf"waiting .* for 127\.0\.0\.1:{port}: {reason} \(\d+ (try|tries), next in \d s\)")
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(DEADLINE_S)


@pytest.mark.rule("B-256", "B-370")
def test_unknown_queue_name_is_reported_at_both_ends(store: Path, tmp_path: Path) -> None:
    with (
        _serving(tmp_path / "there") as there,
        _serving(store, "--next-hop", f"10.0.0.5=127.0.0.1:{there.port}") as here,
    ):
        first, second = _send(store, dead_letter=True), _send(store, dead_letter=True)
        for message_id in (first, second):
            assert _why(store, message_id, "dead-lettered: .*") == (
                "dead-lettered: there is no queue lime1 at 10.0.0.5; make it there, or correct its name, or add "
                "10.0.0.5 to own-names there (class 0x8000 NACK_BAD_DST_Q)"
            )
        shown = ordack("receive", "--store", store, "system$;deadxact").stdout
        assert "there is no queue lime1 at 10.0.0.5; make it there" in shown
        [told] = as_json("message", "state", "--store", store, first)
        assert (told["class"], told["class_name"]) == (0x8000, "NACK_BAD_DST_Q")
        errors = here.stop()[2], there.stop()[2]
    for log in errors:
        lines = [line for line in log.splitlines() if "no queue lime1 at 10.0.0.5" in line]
        assert len(lines) == 2
        assert " 1 time more from " in lines[1]
    assert "127.0.0.1: a message for DIRECT=TCP:10.0.0.5\\private$\\lime1 is refused: " in errors[1]


@pytest.mark.rule("B-257", "B-379", "B-419")
def test_wrong_queue_type_refusal_names_repair_commands(store: Path, tmp_path: Path) -> None:
    with _serving(tmp_path / "there") as there, _serving(store, "--next-hop", f"10.0.0.5=127.0.0.1:{there.port}"):
        create = ("queue", "create", "lime1", "--store", tmp_path / "there")
        ordack(*create, "--non-transactional")
        refused = _why(store, _send(store), "discarded: .* and the queue lime1 at 10.0.0.5 is not; .*")
        commands = [("ordack", "queue", "delete", "lime1"), ("ordack", "queue", "create", "lime1")]
        assert [tuple(shlex.split(text)) for text in refused.split("`")[1::2]] == commands
        _until(
            lambda: "`ordack queue delete NAME`" in ordack("status", "--store", tmp_path / "there").stdout,
            "the status says what to do",
        )
        for _, *words in commands:
            assert ordack(*words, "--store", tmp_path / "there").returncode == 0
        _why(store, _send(store), "stored at destination")
        log = there.stop()[2]
    [line] = [line for line in log.splitlines() if "lime1 is refused" in line]
    assert all(f"`{' '.join(words)}`" in line for words in commands)


def test_status_names_sessions_and_reports_queue_on_hold(store: Path, tmp_path: Path) -> None:
    with _serving(tmp_path / "there") as there, _serving(store, "--next-hop", f"10.0.0.5=127.0.0.1:{there.port}"):
        ordack("queue", "create", "--store", tmp_path / "there", "lime1", "--transactional")
        message_id = _send(store)
        _why(store, message_id, "stored at destination")
        [session] = _until(lambda: _status(store)["sessions"], "the session is shown")
        assert session["name"] == session["address"] == "127.0.0.1"
        done = ordack("status", "--store", store)
        assert (done.returncode, _status(store)["problems"]) == (0, [])
        assert "served since " in done.stdout
        [queue] = outgoing_of(store)
        assert (queue["messages"], queue["why"]) == (0, "")
        ordack("queue", "pause", "--store", store, queue["format_name"])
        assert _why(store, _send(store), "waiting .*").endswith(": on hold, `ordack queue resume` lets it go on")
        assert ordack("status", "--store", store).returncode == 1


@pytest.mark.parametrize("is_served", [True, False])
def test_incoming_streams_are_listed_and_can_be_reset(store: Path, tmp_path: Path, is_served: bool) -> None:
    away = tmp_path / "away"
    with Client(away, create=True) as client:
        guid = guids.guid_text(client.store.guid)
    with watched_serve(store) as running, _serving(away, "--next-hop", f"10.0.0.5=127.0.0.1:{running.serve.port}"):
        message_id = _send(away, AWAY.replace("lime1", "line1"))
        _why(away, message_id, "stored at destination")
        [stream] = _status(store)["incoming"]
        assert (stream["source"], stream["sequence_number"], stream["reject_count"]) == (guid, 1, 0)
        assert as_json("store", "streams", "--store", store) == [stream]
        assert guid in ordack("store", "streams", "--store", store).stdout
        label = f"{guid} {stream['destination']}"
        assert running.samples()["ordack_incoming_refused", label] == 0
        if is_served:
            _reset(store, guid, stream["destination"])
    if not is_served:
        _reset(store, guid, stream["destination"])


def _reset(store: Path, source: str, destination: str) -> None:
    wanted = "store", "reset-stream", "--store", store, source.strip("{}"), destination.upper()
    refused = ordack(*wanted)
    assert refused.returncode == 1
    assert "--yes" in refused.stderr
    assert len(_status(store)["incoming"]) == 1
    narrow = {**ENVIRONMENT, "COLUMNS": "80"}
    assert "\N{HORIZONTAL ELLIPSIS}" not in ordack("store", "streams", "--store", store, environment=narrow).stdout
    assert ordack(*wanted, "--yes").returncode == 0
    assert _status(store)["incoming"] == []
    assert "there is no stream" in ordack(*wanted, "--yes").stderr


def test_pending_ack_for_sleeping_machine_is_no_problem(store: Path) -> None:
    name = "PRIVATE=01020304-0506-0708-090a-0b0c0d0e0f10\\00000004"
    with Client(store) as client, client.store.transaction():
        message_id = client.send(AWAY, b"x").message_id
        [(packet, _)] = [client.store.outgoing.packet(entry.key) for entry in client.store.outgoing.messages()]
        client.store.outgoing.delete([entry.key for entry in client.store.outgoing.messages()])
        queue = client.store.outgoing.queue(name, int(time.time()))
        client.store.outgoing.add([NewOutgoing(queue.identifier, message_id, 0, 0, 0, True, 0, packet, own=False)])
    with _serving(store):
        told = _status(store)
        [waiting] = [queue for queue in told["outgoing"] if queue["messages"]]
        assert waiting["returns"]
        assert waiting["why"].endswith("name its address in [next-hops]")
        assert told["problems"] == []


def test_message_to_local_queue_uses_no_outgoing_queue(store: Path) -> None:
    with Client(store) as client:
        client.create_queue("here", transactional=True)
    _send(store, "here")
    _send(store)
    assert [queue["format_name"] for queue in outgoing_of(store)] == [AWAY.lower()]


def test_a_full_queue_and_a_full_store_are_problems(store: Path) -> None:
    _send(store, "line1")
    with _serving(store):
        assert _status(store)["problems"] == []
        ordack("queue", "quota", "--store", store, "line1", 10)
        [problem] = _status(store)["problems"]
        assert re.fullmatch(r"the queue line1 is full: \d+ of 10 bytes", problem)
        ordack("queue", "quota", "--store", store, "line1", "none")
    write_settings(store, Quota=1000)
    with _serving(store):
        [problem] = _status(store)["problems"]
        assert problem.startswith("the quota is 1000 bytes")
