"""What a board needs around the node, on MicroPython and CPython, with machine and network made up. Prints
`N passed, N failed`.
"""

import asyncio
import select
import socket
import struct
import sys

sys.path.insert(0, "tests/mp")

import power
import virtual
from engine_cases import run_calls, tests_of
from inbox_world import Sender, World
from ordack.node import Node, board
from ordack.node.storage import log, replay
from virtual import Nowhere, Ticks

T0 = 1800000000


def test_a_guid_is_of_the_chip_and_of_a_nonce():
    """Two boards with the same poor randomness differ, and a chip whose folder was erased is another queue manager."""
    first, second = replay.fresh_guid(), replay.fresh_guid()
    assert first != second
    assert len(first) == 16
    assert first[7] >> 4 == 8, "the version"
    assert first[8] >> 6 == 2, "the variant"
    sys.modules["machine"] = Machine()
    nonce = replay.nonce
    replay.nonce = bytes
    try:
        of_this_chip = replay.fresh_guid()
        replay.nonce = nonce
        again = replay.fresh_guid()
        assert again[:10] != of_this_chip[:10]
        assert again[10:] == of_this_chip[10:], "which tells whose it is"
        assert len(again) == 16
        del sys.modules["machine"]
        replay.nonce = bytes
        without, replay.nonce = replay.fresh_guid(), nonce
        assert without != of_this_chip
        assert replay.fresh_guid()[10:] != without[10:]
    finally:
        replay.nonce = nonce
        sys.modules.pop("machine", None)


class Server:
    """An SNTP server on this machine; change: what it does to an answer."""

    def __init__(self, seconds, change=lambda answer: answer):
        self.seconds = seconds
        self.change = change
        self.asked = 0
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.port = 0
        for port in range(20123, 20200):
            try:
                self.socket.bind(socket.getaddrinfo("127.0.0.1", port)[0][-1])
            except OSError:
                continue
            self.port = port
            break
        self.socket.setblocking(False)
        self.poller = select.poll()
        self.poller.register(self.socket, select.POLLIN)

    def answer(self, wait=0):
        """Answer what has been asked, if anything."""
        if not self.poller.poll(wait):
            return
        request, address = self.socket.recvfrom(100)
        self.asked += 1
        assert len(request) == 48
        assert request[0] & 7 == 3
        answer = bytearray(48)
        answer[0] = 0x24  # version 4, a server
        answer[1] = 2
        answer[24:32] = request[40:48]
        struct.pack_into(">II", answer, 40, (self.seconds + 2208988800) & 0xFFFFFFFF, 0x40000000)
        answer = self.change(answer)
        if answer:
            self.socket.sendto(answer, address)

    def close(self):
        self.socket.close()


def changed(place, value):
    def change(answer):
        assert answer[place] != value
        answer[place] = value
        return answer

    return change


def ask(server, polls=200):
    """Ask until there is an answer; what the clock was set to."""
    found = []
    asking = board.NetworkTime("127.0.0.1", server.port, set_clock=found.append)
    for _ in range(polls):
        was_set = asking.poll()
        assert was_set == bool(found)
        if found:
            break
        server.answer(5)
    asking.close()
    server.close()
    return found


def test_the_time_comes_from_the_network():
    for seconds in (T0, 2085978496, 2085978495 + 1000000):  # NTP's seconds begin anew in 2036
        assert ask(Server(seconds)) == [seconds]


def test_answers_that_are_none_set_no_clock():
    Ticks()
    for change in (
        changed(0, 0x23),  # not a server
        changed(0, 0xE4),  # it does not know the time
        changed(1, 0),  # it wants to be left alone
        changed(1, 16),
        changed(30, 0),  # to another question
        lambda answer: answer[:40] + bytes(8),  # it does not know when it answered (RFC 4330, 5)
        lambda answer: answer[:40],
        lambda answer: None,
    ):
        assert ask(Server(T0, change), 6) == []
    assert ask(Server(1600000000), 6) == [], "before this program was written"


def test_the_time_is_asked_for_again():
    ticks = Ticks()
    found = []
    server = Server(T0, lambda answer: None)
    asking = board.NetworkTime(
        "127.0.0.1", server.port, interval_s=100, answer_ms=500, retry_ms=2000, set_clock=found.append
    )

    def go(ms, wait=0):
        for _ in range(ms // 100):
            asking.poll()
            server.answer(wait)
            ticks.now += 100

    go(400)
    assert server.asked == 1
    go(2000)
    assert server.asked == 1, "the answer is lost, it waits"
    server.change = lambda answer: answer
    go(600, 5)
    assert server.asked == 2
    assert found == [T0]
    go(99000)
    assert server.asked == 2
    go(2000, 5)
    assert found == [T0, T0]
    asking.close()
    server.close()


class Sleeping:
    """In place of the module time: while a program sleeps, this happens."""

    def __init__(self, happens):
        self.sleep = lambda seconds: happens()
        self._real = board.time

    def __getattr__(self, name):
        return getattr(self._real, name)


def test_the_clock_is_set_within_a_bound():
    found = []
    server = Server(T0)
    real = board.time
    board.time = Sleeping(lambda: None)
    assert not board.set_clock("127.0.0.1", 30, port=server.port, set_clock=found.append), "nobody answers"
    assert found == []
    server.answer()
    board.time = Sleeping(server.answer)
    assert board.set_clock("127.0.0.1", 5000, port=server.port, set_clock=found.append)
    assert found == [T0]
    board.time = real
    server.close()


class Machine:
    """The module of that name. RTC, deepsleep and WDT note what they are told."""

    def __init__(self):
        self.told = []

    def unique_id(self):
        return b"12345678"

    def RTC(self):  # noqa: N802 - its name
        return self

    def datetime(self, moment):
        self.told.append(("datetime", moment))

    def deepsleep(self, ms):
        self.told.append(("deepsleep", ms))

    def feed(self):
        self.told.append("feed")


def test_the_clock_of_a_board_is_set():
    machine = sys.modules["machine"] = Machine()
    board._set_rtc(T0)
    del sys.modules["machine"]
    assert machine.told == [("datetime", (2027, 1, 15, 4, 8, 0, 0, 0))], machine.told  # a Friday


def test_a_node_sleeps_when_all_is_on_flash_and_goes_on_after_it():
    disk = power.Disk()
    machine = Machine()
    node = Node("", files=disk, clock=lambda: 0)
    messages = node.queue(power.NAMES[0]).put_all([b"1", b"2"])
    assert len(messages) == 2
    board.deep_sleep(node, 60000, machine=machine)
    assert machine.told == [("deepsleep", 60000)]
    first = node.queue(power.NAMES[0]).stream.tx_sequence_id
    node = Node("", files=disk.after_cut(power.KEEP_SYNCED, power.Dice(1)), clock=lambda: 0)
    assert node.waiting == 2
    queue = node.queue(power.NAMES[0])
    queue.put(b"3")
    assert queue.stream.tx_sequence_id >> 32 > first >> 32, "the TimeStamp rises without a clock"
    assert [entry.tx_sequence_number for entry in queue.stream.table] == [1, 2, 1]


def test_what_was_received_is_there_after_sleep():
    sender = Sender(1)
    world = World([sender])
    for k in range(3):
        sender.send(b"%d" % k)
    world.run(1000)
    world.inbox.take(world.inbox.get())
    board.deep_sleep(world.node, 1000, machine=Machine())
    world.restart()
    assert (len(world.inbox), len(world.node.inboxes.owed.final_acks)) == (2, 1)


def test_a_node_does_not_sleep_while_the_flash_refuses():
    disk = power.Disk()
    machine = Machine()
    node = Node("", files=disk, clock=lambda: 0)
    message = node.queue(power.NAMES[0]).put(b"1")
    node.delete(message)
    message = node.queue(power.NAMES[0]).put(b"2", dead_letter=True)

    def refuse(disk, step, data):
        raise OSError(28)

    disk.before = refuse
    try:
        node.delete(message)
    except log.OutboxError:
        pass
    try:
        board.deep_sleep(node, 1000, machine=machine)
    except log.OutboxError:
        pass
    else:
        raise AssertionError("asleep")
    assert machine.told == []
    disk.before = None
    board.deep_sleep(node, 1000, machine=machine)
    assert machine.told == [("deepsleep", 1000)]


def test_a_node_that_is_not_through_in_time_sleeps_too():
    machine = Machine()
    node = Node("", files=power.Disk(), connect=Nowhere())
    node.queue(power.NAMES[0]).put(b"1")
    board.deep_sleep(node, 1000, 30, machine)
    assert machine.told == [("deepsleep", 1000)]


def test_the_watchdog_is_fed_while_the_node_is_well():
    machine = Machine()
    node = Node("", files=power.Disk(), connect=Nowhere())
    watchdog = board.Watchdog(node, wdt=machine)
    watchdog.poll()
    assert machine.told == ["feed"]
    assert not watchdog.wait(lambda: False, 5)
    assert len(machine.told) > 1
    node.commits.error = ValueError("a mistake in here")
    machine.told = []
    try:
        watchdog.poll()
    except ValueError:
        pass
    else:
        raise AssertionError("it went on")
    watchdog.feed()
    assert machine.told == []


def test_the_watchdog_is_fed_from_a_task():
    machine = Machine()
    node = Node("", files=power.Disk(), connect=Nowhere())

    async def main():
        task = asyncio.create_task(board.Watchdog(node, 40, machine).watch())
        while len(machine.told) < 3:
            await asyncio.sleep(0.001)
        node.commits.error = ValueError("a mistake in here")
        await task

    asyncio.run(main())


TESTS = tests_of(globals())


if __name__ == "__main__":
    run_calls([(test.__name__, virtual.run, (test,), {}) for test in TESTS])
