"""The command `ordack` as other programs use it: what it prints, its exit status, signals."""

from __future__ import annotations

import base64
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mqqb import build
from ordack.client import Client
from ordack.server import tcp
from ordack.store import Store
from ordack.store.messages import NewMessage

from tests.support.command import (
    DEADLINE_S,
    ENVIRONMENT,
    Running,
    Serve,
    as_json,
    converse,
    guid_of,
    news,
    ordack,
    outgoing_of,
    own_port,
    serve_in_shell,
    settle,
    write_settings,
)
from tests.support.host_peer import Peer, direct

pytestmark = pytest.mark.slow

# ---- queues ---------------------------------------------------------------------------------------


def test_queues_are_made_listed_purged_and_deleted(tmp_path: Path) -> None:
    store = tmp_path / "new"
    assert ordack("init", "--store", store).stdout.startswith(f"store created in {store}; next: ")
    assert as_json("queue", "create", "--store", store, "line1")[0]["transactional"] is True
    plain = ordack("queue", "create", "--store", store, "private$\\plain", "--non-transactional")
    assert plain.stdout == "created plain\n"
    ordack("send", "--store", store, "plain", "--body", "x")
    listed = {queue["name"]: queue for queue in as_json("queue", "list", "--store", store)}
    assert listed.keys() == {"line1", "plain"}
    assert listed["line1"]["transactional"]
    assert not listed["plain"]["transactional"]
    assert listed["plain"]["messages"] == 1
    table = ordack("queue", "list", "--store", store).stdout
    assert "line1" in table
    assert "transactional" in table
    assert as_json("message", "purge", "--yes", "--store", store, "plain") == [
        {"name": "plain", "removed": 1, "kept": 0}
    ]
    assert ordack("queue", "delete", "--store", store, "plain").returncode == 0
    assert [queue["name"] for queue in as_json("queue", "list", "--store", store)] == ["line1"]


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["queue", "create", "LINE1"], 1, "exists already"),
        (["queue", "create", "a+b"], 2, "'+' is not allowed"),
        (["queue", "delete", "none"], 1, "there is no queue none"),
        (["queue", "delete", "order_queue$"], 1, "system queue"),
        (["message", "purge", "a;b"], 2, "';' is not allowed"),
        (["receive", "none"], 1, "there is no queue none; `ordack queue list` shows them"),
        (["receive", "plain", "--peek", "--follow"], 2, "do not go together"),
        (["receive", "plain", "--count", "-1"], 2, "count"),
        (["receive", "plain", "--count", "1", "--all"], 2, "--count and --all do not go together"),
        (["send", "none", "--body", "x"], 1, "there is no queue none"),
        (["send", "--body", "x"], 2, "Missing argument 'DESTINATION'"),
        (["send", "plain", "--body", "x", "--rate", "5"], 2, "--rate needs --count"),
        (["send", "DIRECT=nonsense", "--body", "x"], 2, "is not of the form"),
        (["send", "plain", "--body", "x", "--delivery", "transactional"], 2, "not transactional"),
        (["send", "plain", "--body", "x", "--label", "l" * 250], 2, "the label has 250 UTF-16 characters; at most 249"),
        (["send", "DIRECT=OS:a..b\\private$\\q", "--body", "x"], 2, "'a..b' is neither"),
        (["send", "order_queue$", "--body", "x"], 1, "not open to applications"),
        (["send", "DIRECT=OS:plant\\private$\\Order_Queue$", "--body", "x"], 1, "not open to applications"),
        (["receive", "order_queue$"], 1, "not open to applications"),
        (["serve", "--listen", "nowhere"], 2, "not HOST:PORT"),
        (["serve", "--listen", "::1:1801"], 2, "brackets"),
        (["serve", "--listen", "a..b:0"], 1, "no name of a machine"),
        (["serve", "--listen", "192.0.2.1:0"], 1, "cannot listen on"),
        (["serve", "--listen", "127.0.0.1:0", "--next-hop", "plant"], 2, "ADDRESS=HOST:PORT"),
    ],
)
def test_cli_explains_mistake_in_one_sentence(store: Path, arguments: list[str], status: int, text: str) -> None:
    done = ordack("--store", store, *arguments)
    assert done.returncode == status, done.stderr
    assert text in done.stderr
    assert done.stdout == ""


def test_cli_reports_missing_or_damaged_store(tmp_path: Path) -> None:
    for command in (["queue", "list"], ["receive", "q"], ["send", "q", "--body", "x"]):
        done = ordack(*command, "--store", tmp_path / "typo")
        assert (done.returncode, "there is no store" in done.stderr) == (1, True)
    assert not (tmp_path / "typo").exists()
    (tmp_path / "ordack.sqlite").write_bytes(b"something else" * 100)
    done = ordack("serve", "--store", tmp_path, "--listen", "127.0.0.1:0")
    assert (done.returncode, "damaged" in done.stderr) == (1, True)


def test_cli_reports_empty_or_too_long_store_path(tmp_path: Path) -> None:
    for arguments in (["queue", "create", "q"], ["queue", "list"], ["serve", "--listen", "127.0.0.1:0"]):
        done = ordack(*arguments, "--store", "")
        assert (done.returncode, "has no name" in done.stderr) == (2, True)
        done = ordack(*arguments, "--store", tmp_path / ("n" * 300))
        assert (done.returncode, "File name too long" in done.stderr) == (1, True)
    assert not Path("ordack.sqlite").exists()


# ---- send and receive -----------------------------------------------------------------------------


def test_a_message_is_sent_and_received_as_json(store: Path) -> None:
    (sent,) = as_json("send", "--store", store, "line1", "--label", "caf\u00e9 \U0001f321", stdin=b"\x00\xff body")
    (received,) = as_json("receive", "--store", store, "private$\\LINE1")
    with Store(store) as opened:
        guid = opened.guid
    assert received.keys() >= {
        "source",
        "message_id",
        "label",
        "body_base64",
        "class",
        "priority",
        "delivery",
        "tx_sequence_id",
        "tx_sequence_number",
    }
    assert received["source"][1:9].lower() == guid[3::-1].hex()
    assert received["source"][0] + received["source"][-1] == "{}"
    assert received["label"] == "caf\u00e9 \U0001f321"
    assert base64.b64decode(received["body_base64"]) == b"\x00\xff body"
    assert (received["class"], received["priority"], received["delivery"]) == (0, 0, "transactional")
    assert received["message_id"] == sent["message_id"]
    assert received["tx_sequence_id"] == sent["tx_sequence_id"] > 1 << 32
    assert received["tx_sequence_number"] == sent["tx_sequence_number"] == 1


def test_messages_that_are_not_transactional_have_no_sequence(store: Path) -> None:
    ordack("send", "--store", store, "plain", "--body", "low", "--priority", 1, "--delivery", "express")
    ordack("send", "--store", store, "plain", "--body", "high", "--priority", 6)
    high, low = as_json("receive", "--store", store, "plain", "--all")
    assert (high["delivery"], high["priority"], high["tx_sequence_id"], high["tx_sequence_number"]) == (
        "recoverable",
        6,
        None,
        None,
    )
    assert (low["delivery"], low["priority"]) == ("express", 1)
    assert as_json("receive", "--store", store, "plain", "--all") == []


def test_an_empty_standard_input_is_sent_only_if_asked_for(store: Path) -> None:
    done = ordack("send", "plain", "--store", store)
    assert (done.returncode, done.stdout, "--empty" in done.stderr) == (2, "", True)
    assert ordack("send", "plain", "--store", store, "--empty").returncode == 0
    assert ordack("send", "plain", "--store", store, stdin=b"x").returncode == 0
    shown = ordack("receive", "plain", "--store", store, "--all").stdout
    assert [word for word in ("2 bytes", "1 bytes", "1 byte", "0 bytes") if word in shown] == ["1 byte", "0 bytes"]


def test_a_body_from_a_terminal_is_asked_for(store: Path) -> None:
    leader, follower = pty.openpty()
    sending = [sys.executable, "-m", "ordack", "send", "plain", "--store", str(store)]
    with subprocess.Popen(sending, stdin=follower, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        assert process.stderr
        assert "standard input, until Ctrl-D" in process.stderr.readline()
        os.write(leader, b"21.5\n\4")
        assert process.wait(DEADLINE_S) == 0
    os.close(leader)
    os.close(follower)
    assert as_json("receive", "plain", "--store", store)[0]["body"] == "21.5\n"


@pytest.mark.parametrize(
    "arguments",
    ["receive plain --json", "receive plain --peek", "queue list", "message purge line1", "serve --listen 127.0.0.1:0"],
)
def test_full_standard_output_is_reported_and_loses_no_message(store: Path, arguments: str) -> None:
    with Client(store) as client:
        client.send("plain", b"x")
    changes = "purge" in arguments  # and has done that by then
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        process = Running(*arguments.split(), "--store", str(store), stdout=full)
        errors = process.communicate(timeout=DEADLINE_S)[1]
    assert process.returncode == (4 if changes else 1)
    told = "removed 0 messages from line1; standard output did not" if changes else "cannot write to standard output"
    assert told in errors
    assert news(errors).count("\n") == 1
    assert len(as_json("receive", "--store", store, "plain", "--all")) == 1


def test_closed_stdout_fails_receive_without_losing_message(store: Path) -> None:
    with Client(store) as client:
        client.send("plain", b"x")
    done = subprocess.run(
        f"{sys.executable} -m ordack receive plain --json --store {store} >&-",
        shell=True,
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 1
    assert "cannot write to standard output" in done.stderr
    assert len(as_json("receive", "--store", store, "plain", "--all")) == 1


def test_send_count_is_exact_and_an_interrupt_tells_how_many_were_accepted(store: Path) -> None:
    said = ordack("send", "plain", "--store", store, "--body", "x", "--count", 5).stdout
    assert said.startswith("sent 5 messages to plain, ")
    assert len(as_json("receive", "plain", "--store", store, "--all")) == 5
    words = ("--body", "x", "--count", "1000000", "--rate", "100", "--json")
    process = Running("send", "plain", "--store", str(store), *words)
    for _ in range(3):
        process.stdout.readline()
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=DEADLINE_S)[1]
    assert process.returncode == 128 + signal.SIGINT
    accepted = len(as_json("receive", "plain", "--store", store, "--all"))
    assert accepted >= 3
    assert f"interrupted: {accepted} of 1000000 messages accepted" in errors


def test_send_count_tells_how_many_were_accepted_before_a_failure(store: Path) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        words = ("--body", "x", "--count", "9", "--json")
        process = Running("send", "plain", "--store", str(store), *words, stdout=full)
        errors = process.communicate(timeout=DEADLINE_S)[1]
    assert (process.returncode, "1 of 9 messages accepted" in errors) == (1, True)
    assert len(as_json("receive", "plain", "--store", store, "--all")) == 1


def test_the_bytes_of_an_argument_are_sent_as_they_are(store: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "ordack", "send", "--store", str(store), "plain", "--body", b"\xff\xc3\xa9"],
        env=ENVIRONMENT,
        timeout=DEADLINE_S,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (message,) = as_json("receive", "--store", store, "plain")
    assert base64.b64decode(message["body_base64"]) == b"\xff\xc3\xa9"


def test_start_up_is_quick(store: Path) -> None:
    program = (
        "import atexit, sys; atexit.register(lambda: print(sorted(sys.modules), file=sys.stderr));"
        "from ordack.cli import main; main()"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", program, "receive", "--store", str(store), "plain"],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=DEADLINE_S,
        check=False,
    )
    assert loaded.returncode == 0, loaded.stderr
    for module in ("asyncio", "rich.table", "ordack.server.tcp", "ordack.broker.manager", "ordack.capture.decoder"):
        assert f"'{module}'" not in loaded.stderr


def test_half_a_character_in_a_label_is_shown_escaped_everywhere(store: Path) -> None:
    with Client(store) as client:
        queue = client.store.queues.named("plain")
        packet = build.user_message(client.store.guid, 1, direct("plain"), b"x", label="a\ud800")
        client.store.messages.add([NewMessage(queue.identifier, 0, packet)])
    assert repr("a\\ud800") in ordack("receive", "--store", store, "plain", "--peek").stdout
    done = ordack("receive", "--store", store, "plain", "--json")
    assert json.loads(done.stdout)["label"].encode() == b"a\\ud800"
    for arguments in (
        ["receive", "\udcff"],
        ["send", "\udcff", "--body", "x"],
        ["queue", "create", "\udcff"],
        ["send", "plain", "--body", "x", "--label", "\udcff"],
    ):
        assert ordack(*arguments, "--store", store).returncode == 2


# ---- serve ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_says_where_it_listens_and_stops_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    running = Serve(tmp_path / "new")
    assert running.line == f"listening on 127.0.0.1:{running.port}\n"
    assert running.port > 0
    with socket.create_connection(("127.0.0.1", running.port)) as connection:
        status, output, errors = running.stop(number)
        assert (status, output) == (0, "")
        assert errors.endswith(f"Z info: new store made in {tmp_path}/new\n")
        assert connection.recv(1) == b""


def test_serve_on_an_ipv6_address_and_in_json(tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    running = Serve(tmp_path, "--json", listen="[::1]:0")
    assert json.loads(running.line) == {"listening": f"[::1]:{running.port}"}
    assert running.stop()[0] == 0


def test_second_serve_on_store_fails_and_first_keeps_serving(store: Path, serve: Serve) -> None:
    for port in (0, serve.port):
        done = ordack("serve", "--store", store, "--listen", f"127.0.0.1:{port}")
        assert done.returncode == 1
        assert f"process {serve.process.pid}" in done.stderr
    peer = Peer(b"\1" * 16, direct("line1"))
    peer.send(b"x")
    converse(peer, serve.port)
    assert peer.acked == [1]


def test_queues_are_used_while_serve_runs(store: Path, serve: Serve) -> None:
    ordack("queue", "create", "--store", store, "late", "--transactional")
    peer = Peer(b"\1" * 16, direct("late"))
    for number in range(100):
        peer.send(b"%d" % number * 100)
    converse(peer, serve.port)
    received = as_json("receive", "--store", store, "late", "--all")
    assert [base64.b64decode(message["body_base64"]) for message in received] == [b"%d" % n * 100 for n in range(100)]
    assert {message["source"] for message in received} == {"{01010101-0101-0101-0101-010101010101}"}
    assert [message["tx_sequence_number"] for message in received] == list(range(1, 101))
    status, out, log = serve.stop()
    assert (status, out, log.count("\n"), "created late" in log) == (0, "", 1, True)


@pytest.mark.rule("B-001", "B-302", "B-133")
def test_sender_waits_for_receiving_queue_manager(store: Path, tmp_path: Path) -> None:
    port = own_port()
    near = tmp_path / "near"
    with Client(near, create=True):
        pass
    sender = Serve(near, "--next-hop", f"plant=127.0.0.1:{port}")
    for body in ("one", "two"):
        (sent,) = as_json("send", "--store", near, "DIRECT=OS:plant\\private$\\line1", "--body", body)
        assert sent["delivery"] == "transactional"
    receiver = Serve(store, listen=f"127.0.0.1:{port}")
    deadline = time.monotonic() + DEADLINE_S
    with Store(near) as opened:
        while opened.outgoing.messages():
            assert time.monotonic() < deadline
            opened.wait(0.1)
    received = as_json("receive", "--store", store, "line1", "--all")
    assert [base64.b64decode(message["body_base64"]) for message in received] == [b"one", b"two"]
    assert receiver.stop()[0] == 0
    status, _, errors = sender.stop()
    assert status == 0
    failed, connected = errors.splitlines()  # each once
    assert f" warning: 127.0.0.1:{port}: no connection" in failed
    assert f" info: 127.0.0.1:{port}: connected after " in connected


@pytest.mark.parametrize("errors", ["2>&-", "a pipe that nobody reads"])
def test_serve_continues_with_unwritable_stderr(store: Path, errors: str) -> None:
    piped = errors.startswith("a pipe")
    process = serve_in_shell(store, after="" if piped else errors)
    assert process.stdout
    port = int(process.stdout.readline().rpartition(":")[2])
    assert process.stderr
    process.stderr.close()
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert connection.recv(1) == b""
    peer = Peer(b"\1" * 16, direct("line1"))
    peer.send(b"x")
    converse(peer, port)
    assert peer.acked == [1]
    process.terminate()
    assert process.wait(DEADLINE_S) == 0
    process.stdout.close()


@pytest.mark.rule("B-435")
@pytest.mark.parametrize(("limit", "crowd"), [("-Sn 64", 250), ("-n 40", 400)])
def test_serve_refuses_connections_beyond_file_limit(store: Path, limit: str, crowd: int) -> None:
    process = serve_in_shell(store, before=f"ulimit {limit};")
    assert process.stdout
    port = int(process.stdout.readline().rpartition(":")[2])
    good = Peer(b"\1" * 16, direct("line1"))
    good.connect(tcp.now())
    deadline = time.monotonic() + DEADLINE_S

    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as connection:
        good.send(b"before")
        settle(good, connection)
        idle = []
        for number in range(crowd):
            line = socket.socket()
            line.bind((f"127.0.1.{1 + number % 4}", 0))
            line.setblocking(False)
            line.connect_ex(("127.0.0.1", port))
            idle.append(line)
        good.send(b"meanwhile")
        settle(good, connection)
        for line in idle:
            line.close()
    while True:
        try:
            late = Peer(b"\2" * 16, direct("line1"))
            late.send(b"after")
            converse(late, port)
            break
        except (AssertionError, OSError):
            assert time.monotonic() < deadline
            time.sleep(0.2)
    received = as_json("receive", "--store", store, "line1", "--all")
    assert [base64.b64decode(message["body_base64"]) for message in received][:2] == [b"before", b"meanwhile"]
    process.terminate()
    _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, errors
    assert errors.count("refused") <= 3
    assert errors.count("a connection failed") <= 3


# ---- what became of messages -----------------------------------------------------------------------


@pytest.mark.rule("B-423", "B-239", "B-082", "B-345", "B-346", "B-425", "C-29")
def test_outgoing_commands_list_pause_resume_resend_and_purge(store: Path, tmp_path: Path) -> None:
    port = own_port()  # nobody listens there
    [sent] = as_json("send", "--store", store, "DIRECT=OS:plant\\private$\\q", "--body", "x", "--dead-letter")
    name = "direct=os:plant\\private$\\q"
    [before] = outgoing_of(store)
    assert (before["format_name"], before["messages"], before["not_order_acked"]) == (name, 1, 1)
    running = Serve(store, "--next-hop", f"plant=127.0.0.1:{port}")
    deadline = time.monotonic() + DEADLINE_S
    seen: list[str] = []
    while "SocketConnectFailure" not in seen:
        assert time.monotonic() < deadline
        connection = outgoing_of(store)[0].get("connection") or {"history": []}
        seen = [event["status"] for event in connection["history"]]
    for command, done in (("pause", "on hold"), ("resume", "resumed"), ("pause", "on hold")):
        assert ordack("queue", command, "--store", store, name).stdout == f"{name}: {done}\n"
    with Client(store, look=True) as client:
        assert [queue.resends for queue in client.store.outgoing.queues()] == [1]  # a resume waits for no interval
    while outgoing_of(store)[0].get("state") != "OnHold":
        assert time.monotonic() < deadline
    assert "OnHold" in ordack("status", "--store", store).stdout
    assert as_json("message", "purge", "--yes", "--store", store, name) == [{"name": name, "removed": 1, "kept": 0}]
    while (found := as_json("message", "state", "--store", store, sent["message_id"])[0])["state"] == "waiting":
        assert time.monotonic() < deadline
    assert found == {
        "message_id": sent["message_id"],
        "state": "dead-lettered",
        "in_doubt": False,
        "deadline": None,
        "final": True,
        "class": 0x8001,
        "class_name": "NACK_DELETED",
        "why": "dead-lettered: an operator has removed it before it arrived (class 0x8001 NACK_DELETED)",
    }
    assert running.stop()[0] == 0
    [letter] = as_json("receive", "--store", store, "system$;deadxact")
    assert (letter["class"], letter["message_id"], letter["in_doubt"]) == (0x8001, sent["message_id"], False)
    text = ordack("message", "state", "--store", store, sent["message_id"])
    assert (text.returncode, text.stdout) == (
        0,
        "dead-lettered: an operator has removed it before it arrived (class 0x8001 NACK_DELETED); final\n",
    )


@pytest.mark.parametrize("command", [["queue", "pause"], ["queue", "resume"], ["message", "purge"]], ids=" ".join)
def test_cli_reports_missing_outgoing_queue(store: Path, command: list[str]) -> None:
    done = ordack(*command, "--store", store, "DIRECT=OS:nobody\\private$\\q")
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no outgoing queue" in done.stderr


def test_nothing_known_of_a_message_is_a_negative_answer(store: Path) -> None:
    done = ordack("message", "state", "--store", store, 5, "--json")
    assert (done.returncode, json.loads(done.stdout)) == (1, {"message_id": 5, "state": None})


@pytest.mark.rule("C-70", "B-338", "B-291", "B-352")
def test_sender_sees_received_state_and_acknowledgements(store: Path) -> None:
    asked = {"acknowledge": ["receive", "reach-queue"], "administration_queue": "plain"}
    with Client(store) as client:
        message_id = client.send("line1", b"x", journal=True, **asked).message_id  # type: ignore[arg-type]
    assert as_json("message", "state", "--store", store, message_id)[0]["state"] == "stored at destination"
    as_json("receive", "--store", store, "line1")
    assert as_json("message", "state", "--store", store, message_id)[0]["state"] == "received"
    acknowledgements = as_json("receive", "--store", store, "plain", "--all")
    assert [ack["class"] for ack in acknowledgements] == [0x0002, 0x4000]
    assert len({ack["correlation_id"] for ack in acknowledgements}) == 1
    copies = as_json("receive", "--store", store, "system$;journal", "--all")
    assert [copy["body_base64"] for copy in copies] == ["eA=="]


@pytest.mark.rule("B-023", "B-413")
def test_identity_is_renewed_only_while_serve_is_stopped(store: Path) -> None:
    old = guid_of(store)
    running = Serve(store)
    refused = ordack("store", "renew-identity", "--store", store)
    assert refused.returncode == 1
    assert "is running" in refused.stderr
    running.stop()
    [new] = as_json("store", "renew-identity", "--store", store)
    assert new["guid"] == guid_of(store) != old


@pytest.mark.rule("B-084", "B-398", "C-73")
def test_journal_copies_that_fill_the_quota_are_named(store: Path, tmp_path: Path) -> None:
    write_settings(store, Quota=20_000)
    serve = Serve(store)
    for _ in range(3):
        ordack("send", "--store", store, "line1", "--journal", stdin=bytes(5_000))
        assert len(as_json("receive", "--store", store, "line1")) == 1
    done = ordack("send", "--store", store, "line1", stdin=bytes(5_000))
    with Client(tmp_path / "sender", create=True) as sender:
        sender.send("DIRECT=TCP:127.0.0.1\\private$\\line1", bytes(5_000))
    away = Serve(tmp_path / "sender", "--next-hop", f"127.0.0.1=127.0.0.1:{serve.port}")
    assert serve.process.stderr
    said = next(line for line in serve.process.stderr if "the quota is" in line)
    shown = ordack("status", "--store", store).stdout
    away.stop()
    serve.stop()
    for text in (done.stderr, said, shown):
        assert re.search(r"the quota is 20000 bytes.*system\$;journal has most.*3 messages.*message purge", text), text
    table = ordack("queue", "list", "--store", store).stdout
    assert re.search(r"system\$;journal *│ *│ *3 │", table), table
    [journal] = [queue for queue in as_json("queue", "list", "--store", store) if queue["system"]]
    assert (journal["name"], journal["messages"]) == ("system$;journal", 3)


@pytest.mark.rule("B-084", "B-398", "C-73")
def test_a_queue_has_a_quota(store: Path) -> None:
    assert as_json("queue", "quota", "--store", store, "line1", "10") == [{"name": "line1", "quota": 10}]
    done = ordack("send", "--store", store, "line1", "--body", "x")
    assert done.returncode == 1
    assert "quota of 10 bytes" in done.stderr
    assert {queue["name"]: queue["quota"] for queue in as_json("queue", "list", "--store", store)} == {
        "line1": 10,
        "plain": None,
    }
    assert as_json("queue", "quota", "--store", store, "line1") == [{"name": "line1", "quota": 10}]  # shown, not lifted
    assert ordack("queue", "quota", "--store", store, "line1", "none").stdout == "line1: no limit\n"
    assert ordack("send", "--store", store, "line1", "--body", "x").returncode == 0
    for quota in ("-1", "ten", "9" * 20):
        assert ordack("queue", "quota", "--store", store, "--", "line1", quota).returncode == 2
    assert ordack("queue", "quota", "--store", store, "order_queue$", "5").returncode == 1


def test_completed_command_with_full_stdout_gives_status_4(store: Path) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        for command in (["send", "plain", "--body", "x"], ["queue", "create", "new"]):
            process = Running(*command, "--store", str(store), stdout=full)
            errors = process.communicate(timeout=DEADLINE_S)[1]
            assert process.returncode == 4
            assert "standard output did not take this report" in errors
    assert {queue["name"]: queue["messages"] for queue in as_json("queue", "list", "--store", store)} == {
        "line1": 0,
        "plain": 1,
        "new": 0,
    }


def test_each_change_by_a_command_leaves_one_log_line(store: Path) -> None:
    away = "plant\\private$\\lime1"
    serve = Serve(store)
    changes = [
        ("queue", "create", "ovens"),
        ("queue", "create", "ovens", "--if-not-exists"),
        ("queue", "quota", "ovens", "5000"),
        ("queue", "quota", "ovens"),
        ("send", away, "--body", "x"),
        *(("queue", action, f"DIRECT=OS:{away}") for action in ("pause", "resume") * 2),
        ("message", "purge", "ovens", "--yes"),
        ("queue", "delete", "ovens", "--yes"),
    ]
    said = [ordack(*change[:2], "--store", store, *change[2:]).stdout for change in changes]
    assert ordack("queue", "delete", "--store", store, "ovens").returncode
    told = [line.partition(" by command: ")[2] for line in serve.stop()[2].splitlines() if " by command: " in line]
    assert told == [said[place].rstrip() for place in (0, 2, 5, 6, 7, 8, 9, 10)]


def test_send_without_dead_letter_warns_after_lost_message(store: Path, tmp_path: Path) -> None:
    near, to = tmp_path / "near", "plant\\private$\\lime1"
    receiver = Serve(store)
    sender = Serve(near, "--next-hop", f"plant=127.0.0.1:{receiver.port}")

    def send(*options: str) -> str:
        done = ordack("send", "--store", near, to, "--body", "x", "--json", *options)
        message_id = json.loads(done.stdout)["message_id"]
        deadline = time.monotonic() + DEADLINE_S
        with Client(near) as client:
            while (state := client.state(message_id)) is None or state.answer in ("waiting", "stored at destination"):
                assert time.monotonic() < deadline
                if state is not None and state.answer == "stored at destination":
                    break
                client.store.wait(0.1)
        return done.stderr

    assert send() == ""
    warning = send()
    assert f"ordack: 1 message to direct=os:{to} got lost " in warning
    assert "NACK_BAD_DST_Q" in warning
    assert "--dead-letter keeps it" in warning
    assert send("--dead-letter") == ""
    assert "2 messages" in send(), "the one before was kept"
    ordack("queue", "create", "--store", store, "lime1", "--transactional")
    assert "3 messages" in send()
    assert "3 messages" in send(), "a delivery afterwards recovers none of them"
    assert receiver.stop()[0] == sender.stop()[0] == 0


@pytest.mark.parametrize("name", ["a[/b]", "[red]x", ":smile:", "[link=http://x]y[/link]"])
def test_a_name_that_looks_like_markup_is_a_name(store: Path, name: str) -> None:
    ordack("queue", "create", "--store", store, name)
    assert name in ordack("queue", "list", "--store", store).stdout
    assert name in ordack("status", "--store", store).stdout
    assert name in [queue["name"] for queue in as_json("queue", "list", "--store", store)]


def test_status_escapes_control_characters_in_foreign_names(store: Path) -> None:
    evil = "DIRECT=OS:plant\\private$\\x\x1b[2J[/b]"
    with Client(store) as client:
        client.send("DIRECT=OS:plant\\private$\\x", b"x")
        client.store._database.all("UPDATE outgoing SET format_name = ?", (evil,))
    said = ordack("status", "--store", store).stdout
    assert "\x1b" not in said
    assert said.count("\\x1b[2J[/b]") == 2  # in the table, and why it waits
