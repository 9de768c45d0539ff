"""Looks at a store by somebody who may read it and not write it; and what a person meets first: options, new stores."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ordack.cli import COMMANDS
from ordack.cli.common import default_store
from ordack.client import Client
from ordack.store import StoreBusy
from ordack.store.look import ReadOnlyStore
from ordack.store.schema import FILE_NAME

from tests.support.command import DEADLINE_S, ENVIRONMENT, Serve, as_json, guid_of, ordack

pytestmark = pytest.mark.slow

LOOKS = (["queue", "list"], ["queue", "quota", "line1"], ["receive", "line1", "--peek"], ["status"], ["config"])


@pytest.fixture
def others() -> Iterator[Path]:
    """A store whose files everybody may read, in folders that everybody may pass, with three messages."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    with Client(folder / "store", create=True) as client:
        client.create_queue("line1", transactional=True)
        for number in range(3):
            client.send("line1", b"%d" % number)
        client.send("DIRECT=OS:plant\\private$\\q", b"x")
        client.store.outgoing.set_on_hold(
            "direct=os:plant\\private$\\q", True
        )  # else its history grows between two looks
    yield folder / "store"
    shutil.rmtree(folder)


# Runs commands, with the path of the store for STORE, and shows how each ended: as nobody. They are run before as who
# started it, on another store or on this one, so that all modules are there: nobody may not read them.
RUN = """
import json, os, sys
from ordack.cli import main
before, real, commands = sys.argv[1:]
def run(store):
    for command in json.loads(commands):
        sys.argv = ["ordack", *(word.replace("STORE", store) for word in command)]
        os.environ["ORDACK_STORE"] = store
        try:
            main()
            status = 0
        except SystemExit as error:
            status = error.code
        os.write(1, f"--- {command} ended with {status}\\n".encode())
run(before)
os.write(1, b"=== nobody\\n")
os.write(2, b"=== nobody\\n")
os.setgroups([]), os.setgid(65534), os.setuid(65534)
run(real)
"""


def _run(before: Path, store: Path, *commands: list[str]) -> list[tuple[str, str]]:
    """Standard output and standard error of these commands: before, and as nobody."""
    if os.geteuid():
        pytest.skip("only root can run a command as another user")
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(before), str(store), json.dumps(commands)],
        text=True,
        capture_output=True,
        check=False,
        env=ENVIRONMENT,
        timeout=DEADLINE_S,
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == 0
    shown = re.sub(r"waiting \d+ s", "waiting", re.sub(r'"room": \d+', "", done.stdout))
    return [*zip(shown.split("=== nobody\n"), done.stderr.split("=== nobody\n"))]


def _as_nobody(store: Path, *commands: list[str]) -> tuple[str, str]:
    """Standard output and standard error of these commands."""
    other = store.parent / "other"
    if not other.exists():
        with Client(other, create=True) as client:
            client.create_queue("line1", transactional=True)
            client.send("line1", b"x")
            client.send("DIRECT=OS:plant\\private$\\q", b"x")
    return _run(other, store, *commands)[1]


def _same_for_nobody(store: Path, *more: list[str]) -> None:
    looks = [[*look, "--json"] for look in (*LOOKS, *more)]
    root, nobody = _run(store, store, *looks)
    assert nobody == root
    assert nobody[0].count("ended with 0") == len(looks) - 1, "status: a queue is on hold"


def test_looks_need_no_permission_to_write_and_see_the_same(others: Path) -> None:
    """While nobody has it open, while serve runs, and when that was killed."""
    [sent] = as_json("send", "--store", others, "line1", "--body", "3")
    state = ["message", "state", str(sent["message_id"])]
    _same_for_nobody(others, state)
    shown, _ = _as_nobody(others, ["status"])
    assert "no queue manager runs" in shown
    running = Serve(others)
    _same_for_nobody(others, state)
    running.process.kill()
    running.process.communicate()
    _same_for_nobody(others, state)
    shown, errors = _as_nobody(others, ["receive", "line1"])
    assert "ended with 1" in shown
    assert "check the permissions" in errors


def test_backup_of_read_only_store_is_complete(others: Path, tmp_path: Path) -> None:
    if os.geteuid():
        others.chmod(0o500)
        [made] = as_json("store", "backup", "--store", others, tmp_path / "backup")
        others.chmod(0o700)  # to be removed
    else:
        others.parent.chmod(0o777)
        shown = _as_nobody(others, ["store", "backup", "STORE.ordack", "--json"])[0]
        made = json.loads(shown.splitlines()[0])
        assert Path(f"{others}.ordack").owner() == "nobody"
    assert (made["messages"], made["outgoing"]) == (3, 1)


def test_look_shows_messages_of_dead_receiver_not_of_live_one(others: Path) -> None:
    program = (
        "import os, sys\nfrom ordack.client import Client\nclient = Client(sys.argv[1])\n"
        "with client.queue('line1').receive():\n    print('taken', flush=True)\n    sys.stdin.read()\n"
        "    os.kill(os.getpid(), 9)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(others)],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdin
    assert process.stdout.readline() == "taken\n"
    peek = ["receive", "line1", "--peek", "--json"]
    assert _as_nobody(others, peek)[0].count("message_key") == 2
    process.stdin.close()
    process.wait(DEADLINE_S)
    process.stdout.close()
    assert _as_nobody(others, peek)[0].count("message_key") == 3


def test_store_change_during_read_raises_store_busy(others: Path) -> None:
    look = ReadOnlyStore(others)
    assert look.queues.named("line1").messages == 3
    with Client(others) as client:
        client.send("line1", b"new")
    with pytest.raises(StoreBusy, match="was changed while it was looked at: look again"):
        look.queues.named("line1")
    look.close()


# ---- options, new stores, deletion -----------------------------------------------------------------------


def test_init_and_serve_create_make_a_store(tmp_path: Path) -> None:
    running = Serve(tmp_path / "typo", "--create")
    assert running.stop()[2].endswith(f"Z info: new store made in {tmp_path}/typo\n")
    made = ordack("init", "--store", tmp_path / "new")
    assert (made.returncode, made.stderr) == (0, "")
    assert f"ordack serve --store {tmp_path}/new" in made.stdout
    guid = guid_of(tmp_path / "new")
    again = ordack("init", "--store", tmp_path / "new")
    assert (again.returncode, "already contains a store" in again.stderr) == (1, True)
    assert ordack("serve", "--create", "--store", tmp_path / "new", "--listen", "nowhere").returncode == 2
    assert guid_of(tmp_path / "new") == guid


@pytest.mark.parametrize("words", [["init"], ["serve", "--create", "--listen", "127.0.0.1:0"]], ids=" ".join)
def test_creating_a_store_refuses_empty_database_file(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / FILE_NAME).touch()
    done = ordack(*words, "--store", tmp_path)
    assert (done.returncode, f"{FILE_NAME} is empty" in done.stderr) == (1, True)
    assert [(path.name, path.stat().st_size) for path in tmp_path.iterdir()] == [(FILE_NAME, 0)]


def test_the_store_comes_from_the_environment_too(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENVIRONMENT, "ORDACK_STORE", str(store))
    assert [queue["name"] for queue in as_json("queue", "list")] == ["line1", "plain"]
    assert ordack("queue", "list", "--store", store / "other").returncode == 1
    monkeypatch.setitem(ENVIRONMENT, "ORDACK_STORE", "s3a://bucket/x")
    assert ordack("queue", "create", "q").returncode == 2
    assert [queue["name"] for queue in as_json("--store", store, "queue", "list")] == ["line1", "plain"]


def test_plain_init_makes_the_default_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("ORDACK_STORE", raising=False)
    assert default_store() == str(tmp_path / "ordack")


def test_help_fits_one_screen() -> None:
    lines = ordack("--help").stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert all(any(line.startswith(f"  {name} ") for line in lines) for name in COMMANDS)


def test_every_command_has_one_line_of_help_and_json() -> None:
    for name in COMMANDS:
        lines = ordack(name, "--help").stdout.splitlines()
        below = [line.split()[0] for line in lines[lines.index("Commands:") + 1 :]] if "Commands:" in lines else []
        assert not any(line.endswith("...") for line in lines[1:]), lines
        for words in [[name, one] for one in below] or [[name]]:
            assert "--json" in ordack(*words, "--help").stdout, words


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("staus", "Did you mean 'status'?"),
        ("move line1 --back", "Did you mean 'message move'?"),
        ("outgoing pause press-7", "Did you mean 'queue pause'?"),
        ("queue lsit", "Did you mean 'list'?"),
        ("unheard-of", "`ordack --help` lists the commands"),
        ("queue list --jsno", "Possible options: --json"),
    ],
)
def test_unknown_words_are_answered_with_the_nearest(words: str, advice: str) -> None:
    done = ordack(*words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert advice in done.stderr


@pytest.mark.parametrize(
    ("words", "name", "lost"),
    [
        (["queue", "delete"], "plain", "2 messages in plain would be deleted, too"),
        (["message", "purge"], "plain", "2 messages in plain would be removed"),
        (["message", "purge"], "DIRECT=OS:a\\private$\\b", "2 messages in DIRECT=OS:a\\private$\\b would be removed"),
    ],
)
def test_destructive_command_needs_confirmation(store: Path, words: list[str], name: str, lost: str) -> None:
    with Client(store) as client:
        for _ in range(2):
            client.send(name, b"x")
    command = (*words, "--store", store, name)
    refused = ordack(*command)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"{lost}; --yes " in refused.stderr
    for answer, status in ((b"\n", 1), (b"y\n", 0)):
        leader, follower = pty.openpty()
        with subprocess.Popen(
            [sys.executable, "-m", "ordack", *map(str, command)],
            stdin=follower,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        ) as process:
            while process.poll() is None:  # a serial line of another test, on a terminal of this name, may take one
                os.write(leader, answer)
                time.sleep(0.1)
            output, errors = process.communicate(timeout=DEADLINE_S)
        os.close(leader)
        os.close(follower)
        assert process.returncode == status, errors
        assert f"{lost}. " in errors
    assert "2 messages" in output
