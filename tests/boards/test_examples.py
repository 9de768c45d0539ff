"""The programs of firmware/examples on a Cortex-M3 in QEMU do what their texts say (tests/support/examples.py)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from ordack.client import Client

from hil.emulated import HOST
from tests.support.command import DEADLINE_S, Serve, own_port
from tests.support.command import ordack as command
from tests.support.examples import LAN, STARTS, Boards, guid_of_board, line_at, to


def received(store: Path, count: int) -> list[str]:
    """The bodies of so many messages, in their order."""
    bodies: list[str] = []
    with Client(store) as client:
        while len(bodies) < count:
            with client.queue("line1").receive_batch(count - len(bodies), DEADLINE_S) as messages:
                assert messages, bodies
                bodies += [message.body.decode() for message in messages]
    return bodies


def test_battery_board_delivers_all_readings_across_sleeps(boards: Boards, store: Path) -> None:
    port = own_port()
    place = f'"outbox", connect=("{HOST}", {port}), '
    board = boards.run("batteries.py", ('"outbox", ', place), ("2000)", "50)"), ("10000", "1000"), ("300000", "500"))
    board.until("1 to send")
    board.until("2 to send")
    there = Serve(store, listen=f"127.0.0.1:{port}")
    try:
        board.until("\n0 to send")
        assert board.output.count(STARTS) >= 3, "each sleep ends in a start"
        assert received(store, 3) == ["14022"] * 3
    finally:
        there.stop()


def test_battery_board_reports_missing_queue(boards: Boards, serve: Serve) -> None:
    place = f'"outbox", connect=("{HOST}", {serve.port}), '
    board = boards.run("batteries.py", ('line1")', 'lime1")'), ('"outbox", ', place), ("2000)", "50)"))
    assert board.until("to send").splitlines() == [STARTS, "not delivered, no such queue (class 0x8000)", "0 to send"]


def test_battery_board_reports_queue_that_is_not_transactional(boards: Boards, store: Path, serve: Serve) -> None:
    name, place = ('line1")', 'plain")'), ('"outbox", ', f'"outbox", connect=("{HOST}", {serve.port}), ')
    pauses = ("2000)", "50)"), ("300000", "500")
    board = boards.run("batteries.py", name, place, *pauses)
    assert "not delivered, queue not transactional (class 0x8009)" in board.until("0 to send").splitlines()
    for change in ("delete", "create"):
        assert command("queue", change, "plain", "--store", store).returncode == 0
    with Client(store) as client, client.queue("plain").receive(DEADLINE_S) as message:
        assert message is not None
        assert message.body == b"14022"


def test_a_board_without_asyncio_sends_one_reading_and_a_batch(boards: Boards, store: Path, serve: Serve) -> None:
    board = boards.run("without_asyncio.py", to(serve.port, "127.0.0.1"))
    assert board.until("all stored").splitlines() == [STARTS, "stored", "all stored"]
    assert received(store, 3) == ["21.5", "21.6", "21.7"]


@pytest.mark.parametrize(("name", "count"), [("interrupts.py", 40), ("fast.py", 120)])
def test_endless_example_sends_readings_in_order(
    boards: Boards, store: Path, serve: Serve, name: str, count: int
) -> None:
    board = boards.run(name, to(serve.port))
    assert received(store, count) == ["14022"] * count
    board.kill()
    assert board.output.split() == [STARTS]


def test_a_watchdog_is_fed_between_two_readings(boards: Boards, store: Path, serve: Serve) -> None:
    """Its time passes three times until the second one."""
    board = boards.run("watchdog.py", to(serve.port), ("8000", "1000"), ("10000", "3500"))
    assert received(store, 2) == ["14022"] * 2
    board.kill()
    assert board.output.split() == [STARTS]


APP = """
def main(node, pause):
    node.queue("DIRECT=TCP:127.0.0.1\\\\private$\\\\line1").put_all([b"{0} first", b"{0} second"])
    while {1}:
        pause(20000)
"""


def test_over_the_air_update_keeps_outbox(boards: Boards, store: Path, serve: Serve) -> None:
    """Three programs: the second comes as a message while the readings of the first wait; the third fails at once."""
    board = boards.run("update.py", to(serve.port), app=APP.format(1, "True"))
    address = f"PRIVATE={guid_of_board(store)}\\9"
    for number, (program, bodies) in enumerate(
        [(APP.format(2, "True"), ["1", "1", "2", "2"]), (APP.format(3, "None.nothing"), ["3", "3", "2", "2"])]
    ):
        done = command("send", "--store", store, address, "--body", program, "--dead-letter")
        assert done.returncode == 0, done.stderr
        there = received(store, 4)
        assert there == [f"{body} {('first', 'second')[place % 2]}" for place, body in enumerate(bodies)]
        assert command("message", "state", "--store", store, done.stdout.split()[2]).stdout.startswith("received")
        assert board.output.count("AttributeError") == 0 or number
    board.kill()
    assert "AttributeError" in board.output
    assert board.output.count(STARTS) == 4, "one for each new program, and one for the way back"


def send_update(store: Path, program: str) -> str:
    """The MessageID of an update to the only board that is connected."""
    guid_of_board(store)  # waits until it is connected
    done = command("send", "--store", store, "press-7/update", "--body", program, "--dead-letter")
    assert done.returncode == 0, done.stderr
    return str(done.stdout.split()[2])


def test_the_first_application_of_a_board_comes_over_the_air(boards: Boards, store: Path, serve: Serve) -> None:
    board = boards.run("update.py", to(serve.port))
    send_update(store, APP.format(1, "True"))
    assert received(store, 2) == ["1 first", "1 second"]
    board.kill()


def test_update_without_flash_room_is_rejected(boards: Boards, store: Path, serve: Serve) -> None:
    """Nor is the way back another one, for which there was room."""
    full = (
        "        file.write(data)",
        '        name == "app.py" and os.stat("what is not there")\n        file.write(data)',
    )
    tell = 'no update:", error', 'no update, and a way back:", "app_before.py" in os.listdir()'
    board = boards.run("update.py", to(serve.port), full, tell, app=APP.format(1, "True"))
    assert received(store, 2) == ["1 first", "1 second"]
    for _ in range(2):
        number = send_update(store, APP.format(2, "True"))
        deadline = time.monotonic() + DEADLINE_S
        while (
            "0xC004" not in command("message", "state", "--store", store, number).stdout and time.monotonic() < deadline
        ):
            pass
        assert "0xC004" in command("message", "state", "--store", store, number).stdout
    board.kill()
    assert board.output.count(STARTS) == 1
    assert board.output.count("a way back: False") == 2


def test_repeated_update_after_reset_keeps_previous_application(boards: Boards, store: Path, serve: Serve) -> None:
    """Which is the way back, if the new one fails later."""
    reset = "        updates.take(update)", "        update.again or machine.reset()\n        updates.take(update)"
    board = boards.run("update.py", to(serve.port), reset, app=APP.format(1, "True"))
    tell = 'print("before:", open("app_before.py").read().count("1 first")) or True'
    send_update(store, APP.format(2, tell))
    board.often("before: ", 2)
    board.kill()
    assert board.output.count(STARTS) == 3, "the first, the reset, and the one with which it was taken"
    assert "before: 0" not in board.output


def test_battery_board_sleeps_after_any_failure(boards: Boards) -> None:
    """Else it would be awake until they are empty."""
    board = boards.run("batteries.py", ("capacity=262144", "capacity=1"), ("300000", "500"))
    board.often(STARTS, 3)
    board.kill()
    assert "ValueError: capacity is a whole number" in board.output


def test_a_board_on_a_uart_sends_its_reading(boards: Boards, store: Path) -> None:
    port = own_port()
    board = boards.run("uart.py", links=("-nic", LAN, *line_at(port)))
    board.until(STARTS)
    there = Serve(store, "--serial", f"gateway=socket://127.0.0.1:{port}")
    try:
        assert board.until("stored").splitlines() == [STARTS, "stored"]
        assert received(store, 1) == ["21.5"]
    finally:
        there.stop()
