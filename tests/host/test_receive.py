"""`ordack receive` in front of other programs: what it removes, and only that, is what they have got."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from ordack.broker.message import Message
from ordack.cli.output import Drain
from ordack.client import Client
from ordack.store import Store

from tests.support.command import DEADLINE_S, ENVIRONMENT, Running, Serve, as_json, ordack

pytestmark = pytest.mark.slow

SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
FORMS = pytest.mark.parametrize("form", ["", "--json"])


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """What `thousand` is a copy of, and what `receive` calls the messages in it."""
    store = tmp_path_factory.mktemp("template") / "store"
    with Client(store, create=True) as client, client.store.transaction():
        client.create_queue("plain", transactional=False)
        for number in range(1000):
            client.send("plain", b"%d" % number)
    lines = as_json("receive", "--store", store, "plain", "--peek")
    return store, [f"{line['source']}\\{line['message_id']}" for line in lines]


@pytest.fixture
def thousand(template: tuple[Path, list[str]], tmp_path: Path) -> Path:
    """A store with 1,000 messages in the queue plain, whose bodies are 0 to 999."""
    return Path(shutil.copytree(template[0], tmp_path / "store"))


@pytest.fixture
def ids(template: tuple[Path, list[str]]) -> list[str]:
    """What `receive` calls them."""
    return template[1]


def _left(store: Path) -> list[int]:
    """The bodies that are still in the queue plain."""
    with Client(store) as client:
        return [int(message.body) for message in client.queue("plain").peek()]


def _start(store: Path, *options: str, stdout: IO[str] | None = None) -> Running:
    """`receive` on the queue plain."""
    return Running("receive", "--store", str(store), "plain", *options, stdout=stdout)


# ---- how many ---------------------------------------------------------------------------------------


def test_receive_takes_one_message_and_all_takes_the_rest(thousand: Path) -> None:
    (line,) = as_json("receive", "--store", thousand, "plain")
    assert base64.b64decode(line["body_base64"]) == b"0"
    assert _left(thousand) == list(range(1, 1000))
    assert len(as_json("receive", "--store", thousand, "plain", "--count", 9)) == 9
    assert len(as_json("receive", "--store", thousand, "plain", "--peek")) == 990
    assert len(as_json("receive", "--store", thousand, "plain", "--all")) == 990
    done = ordack("receive", "--store", thousand, "plain")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_receive_follow_runs_until_interrupted(store: Path) -> None:
    process = _start(store, "--json", "--follow")
    with Client(store) as client:
        for number in range(3):
            client.send("plain", b"%d" % number)
            line = json.loads(process.stdout.readline())
            assert base64.b64decode(line["body_base64"]) == b"%d" % number
    deadline = time.monotonic() + DEADLINE_S
    with Store(store) as opened:
        while opened.queues.named("plain").messages:  # a message is removed after its line was written
            assert time.monotonic() < deadline
            opened.wait(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=DEADLINE_S)
    assert errors == f"ordack: 3 messages were removed from plain, the last {line['source']}\\{line['message_id']}\n"
    assert process.returncode == 130
    assert _left(store) == []


def test_receive_follow_survives_the_end_of_serve(store: Path) -> None:
    """A message that was shown and not removed before `serve` ended is shown again."""
    serve, shown = Serve(store), []
    with Client(store) as client:
        for body in (b"0", b"1"):
            client.send("plain", body)

        def show(message: Message) -> None:
            shown.append(message.body)
            if len(shown) == 1:
                serve.stop()

        Drain(client.queue("plain"), show, str, print).run(2, float("inf"))
    assert shown in ([b"0", b"0", b"1"], [b"0", b"1"] * 2)  # the latter if pytest writes to a file: two in a commit
    assert _left(store) == []


def test_receive_and_peek_tell_of_messages_in_another_receive(store: Path) -> None:
    with Client(store) as client:
        client.send("plain", b"0")
        with client.queue("plain").receive():
            for option in ("--all", "--peek"):
                done = ordack("receive", "--store", store, "plain", option)
                assert (done.returncode, done.stdout) == (0, "")
                assert "1 message of plain" in done.stderr


# ---- a reader that goes away -----------------------------------------------------------------------------


@FORMS
@pytest.mark.parametrize("options", ["--all", "--follow"])
def test_head_takes_two_of_a_thousand_and_the_others_stay(
    thousand: Path, ids: list[str], options: str, form: str
) -> None:
    lines = 2 if form else 4
    with subprocess.Popen(["head", f"-{lines}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as head:
        process = _start(thousand, *options.split(), *form.split(), stdout=head.stdin)
        shown, _ = head.communicate(timeout=DEADLINE_S)
    assert process.wait(DEADLINE_S) == 1
    assert len(shown.splitlines()) == lines
    assert _left(thousand) == list(range(2, 1000))
    assert process.communicate()[1] == (
        f"ordack: the reader of standard output has gone; 2 messages were removed from plain, the last {ids[1]}\n"
    )


def test_a_slow_reader_that_dies_has_left_nothing_in_the_pipe(thousand: Path) -> None:
    process = _start(thousand, "--all", "--json")
    line = os.read(process.stdout.fileno(), 1 << 16).decode()
    assert line.count("\n") == 1  # the next one is written when this one was taken
    with Store(thousand) as opened:
        while opened.queues.named("plain").messages == 1000:
            opened.wait(0.1)
    process.stdout.close()
    assert process.wait(DEADLINE_S) == 1
    with process.stderr:
        assert "1 message was removed from plain" in process.stderr.read()
    assert _left(thousand) == list(range(1, 1000))


@pytest.mark.parametrize(("unbuffered", "form"), [("", ""), ("1", "--json")])
def test_messages_unread_by_closed_pipe_stay_in_queue(store: Path, unbuffered: str, form: str) -> None:
    with Client(store) as client:
        for _ in range(8):
            client.send("plain", bytes(1 << 20), label="l" * 200)
    process = subprocess.Popen(
        [sys.executable, "-m", "ordack", "receive", "--store", str(store), "plain", "--all", *form.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, "PYTHONUNBUFFERED": unbuffered},
    )
    assert process.stdout
    assert len(os.read(process.stdout.fileno(), 10)) == 10
    process.stdout.close()
    assert process.stderr
    with process.stderr:
        assert process.stderr.read() == (
            "ordack: the reader of standard output has gone; nothing was removed from plain\n"
        )
    assert process.wait(DEADLINE_S) == 1
    with Client(store) as client:
        assert len(list(client.queue("plain").peek())) == 8


# ---- a disk that is full, signals ---------------------------------------------------------------------


@FORMS
def test_a_full_disk_behind_standard_output_removes_nothing(thousand: Path, form: str) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        process = _start(thousand, "--all", *form.split(), stdout=full)
        errors = process.communicate(timeout=DEADLINE_S)[1]
    assert (process.returncode, errors) == (
        1,
        "ordack: cannot write to standard output: No space left on device; nothing was removed from plain\n",
    )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["/bin/mount", "-t", "tmpfs", "-o", "size=8k", "none", disk], check=False, stderr=subprocess.DEVNULL
    ).returncode:
        pytest.skip("this user cannot mount a small file system")
    yield disk
    subprocess.run(["/bin/umount", disk], check=True)


@FORMS
def test_receive_to_full_disk_removes_only_printed_messages(
    thousand: Path, ids: list[str], small_disk: Path, form: str
) -> None:
    with (small_disk / "shown").open("w", encoding="utf-8") as file:
        process = _start(thousand, "--all", *form.split(), stdout=file)
        errors = process.communicate(timeout=DEADLINE_S)[1]
    whole = (small_disk / "shown").read_bytes().count(b"\n")
    assert process.returncode == 1
    count = whole // (1 if form else 2)
    assert 0 < count < 256  # in the middle of a batch
    assert _left(thousand) == list(range(count, 1000))
    assert errors == (
        "ordack: cannot write to standard output: No space left on device; "
        f"{count} messages were removed from plain, the last {ids[count - 1]}\n"
    )


@SIGNALS
@FORMS
def test_signal_during_receive_removes_and_reports_read_messages(
    thousand: Path, ids: list[str], number: signal.Signals, form: str
) -> None:
    process = _start(thousand, "--all", *form.split())
    lines = [process.stdout.readline() for _ in range(100)]  # it goes on meanwhile
    process.send_signal(number)
    rest, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + number
    shown = ("".join(lines) + rest).count("\n") // (1 if form else 2)
    left = _left(thousand)
    removed = 1000 - len(left)
    assert left == list(range(removed, 1000))
    assert shown - 1 <= removed <= shown  # the last line may come once more
    assert errors == f"ordack: {removed} messages were removed from plain, the last {ids[removed - 1]}\n"


@SIGNALS
def test_a_signal_ends_a_receive_that_waits_for_its_reader(thousand: Path, number: signal.Signals) -> None:
    process = _start(thousand, "--all")
    with Client(thousand) as client:
        while client.store.messages.locked(client.queue("plain").identifier) != 1:
            client.store.wait(0.1)
    process.send_signal(number)
    assert process.wait(DEADLINE_S) == 128 + number  # nobody has read until then
    assert process.communicate()[1] == "ordack: nothing was removed from plain\n"
    assert len(_left(thousand)) == 1000


@FORMS
@pytest.mark.parametrize("to", ["a file", "a pipe"])
def test_kill_9_at_any_time_loses_nothing(thousand: Path, tmp_path: Path, form: str, to: str) -> None:
    """Each message was shown, and at most those of the last commit of each round are shown more than once."""
    shown = tmp_path / "shown"
    rounds = 0
    while _left(thousand):
        with shown.open("a") as file:
            process = _start(thousand, "--all", *form.split(), stdout=file if to == "a file" else None)
            if to == "a pipe":
                for line in process.stdout:
                    file.write(line)
                    if rounds < 3 and json.dumps(line).count("7") > 8:
                        break
            elif rounds < 3:
                with Store(thousand) as opened:
                    before = opened.queues.named("plain").messages
                    while opened.queues.named("plain").messages == before:
                        opened.wait(0.05)
            else:
                process.wait(DEADLINE_S)
            process.kill()
            file.writelines(process.stdout)  # it may have been ahead
            process.communicate()
        rounds += 1
    bodies = [
        base64.b64decode(json.loads(line)["body_base64"]).decode() if form else line.strip()
        for line in shown.read_text().splitlines()[0 if form else 1 :: 1 if form else 2]
    ]
    assert {int(body) for body in bodies} == set(range(1000))


# ---- what is shown --------------------------------------------------------------------------------------


def test_text_body_is_shown_as_text(store: Path) -> None:
    with Client(store) as client:
        for body in ("grün 21.5".encode(), b"\xff\x00", b""):
            client.send("plain", body)
    lines = as_json("receive", "--store", store, "plain", "--peek")
    assert [line["body"] for line in lines] == ["grün 21.5", None, ""]
    assert [base64.b64decode(line["body_base64"]) for line in lines] == ["grün 21.5".encode(), b"\xff\x00", b""]
