"""The queue manager of a campaign: its commands, its lives and its port, with a small program in place of `ordack`."""

import asyncio
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hil import queue_manager
from hil.queue_manager import CampaignFailed, QueueManager

DEADLINE_S = 60.0
PROGRAM = """
import os, pathlib, signal, socket, sys, time
word, here = sys.argv[1], pathlib.Path()
if word == "serve":
    with (here / "asked").open("a") as file:
        print(*sys.argv[1:], file=file)
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    address, _, port = sys.argv[sys.argv.index("--listen") + 1].rpartition(":")
    server.bind((address, int(port)))
    server.listen()
    print("starting\\nnobody listens on 127.0.0.1:9", flush=True)
    print("listening on", f"{address}:{server.getsockname()[1]}", flush=True)
    signal.pause()
elif word == "echo":
    print(os.getcwd(), *sys.argv[1:])
elif word == "fail":
    sys.stderr.buffer.write(b"ordack: no queue \\xff\\n")
    sys.exit(3)
elif word == "hang":
    (here / "pid").write_text(str(os.getpid()))
    (here / "pid").rename("hanging")
    time.sleep(600)
"""


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[QueueManager]:
    (tmp_path / "ordack.py").write_text(PROGRAM)
    made = QueueManager((sys.executable, str(tmp_path / "ordack.py")), tmp_path)
    yield made
    made.close()


def said(manager: QueueManager, text: str, mark: int = 0) -> str:
    return manager.log.wait_for(lambda line: line.startswith(text), DEADLINE_S, mark).text


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_command_runs_on_store_in_folder_and_returns_output(manager: QueueManager, tmp_path: Path) -> None:
    assert asyncio.run(manager.command("echo", "a b")) == f"{tmp_path} echo a b --store store\n"


def test_failed_command_is_reported_with_status_and_stderr(manager: QueueManager) -> None:
    with pytest.raises(CampaignFailed, match=r"^`ordack fail x` ended with status 3: ordack: no queue \ufffd$"):
        asyncio.run(manager.command("fail", "x"))


def hanging(folder: Path) -> int:
    return int((folder / "hanging").read_text())


def test_a_command_that_hangs_is_ended_at_its_deadline(
    manager: QueueManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_manager, "COMMAND_DEADLINE_S", 2.0)
    with pytest.raises(CampaignFailed, match="`ordack hang` did not end within 2 s"):
        asyncio.run(manager.command("hang"))
    assert not (tmp_path / "hanging").exists() or not is_running(hanging(tmp_path))


def test_a_command_is_ended_with_the_campaign_that_runs_it(manager: QueueManager, tmp_path: Path) -> None:
    async def test() -> None:
        command = asyncio.create_task(manager.command("hang"))
        end = time.monotonic() + DEADLINE_S
        while not (tmp_path / "hanging").exists():
            assert time.monotonic() < end
            await asyncio.sleep(0.01)
        assert is_running(hanging(tmp_path))
        command.cancel()
        await asyncio.gather(command, return_exceptions=True)

    asyncio.run(test())
    assert not is_running(hanging(tmp_path))


def test_restarted_queue_manager_keeps_its_port_reserved(manager: QueueManager, tmp_path: Path) -> None:
    manager.links = ["--serial", "board=/dev/pts/9"]
    assert (manager.alive, manager.listening()) == (False, False)
    for life in (1, 2):
        mark = manager.log.mark()
        manager.power_up()
        assert said(manager, "listening on", mark) == f"listening on 127.0.0.1:{manager.address[1]}"
        assert (manager.alive, manager.listening(), manager.life) == (True, True, life)
        manager.kill()
        assert not manager.alive
        assert {line.life for line in manager.log.since(mark)} == {life}
        with socket.socket() as other, pytest.raises(OSError):
            other.bind(manager.address)
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == [f"serve --store store --listen 127.0.0.1:{manager.address[1]} --serial board=/dev/pts/9"] * 2
    manager.power_up()
    assert not manager.listening() or len(manager.log.since(0)) > 6, "what a life before has said does not count"
    manager.close()
    with socket.socket() as other:
        other.bind(manager.address)


def test_unclean_exit_of_queue_manager_fails_campaign(manager: QueueManager) -> None:
    manager.power_up()
    said(manager, "listening on")
    with pytest.raises(CampaignFailed, match=r"ended with status -15 after SIGTERM$"):
        manager.stop()
