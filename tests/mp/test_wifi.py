"""Wi-Fi on MicroPython and CPython, with a scripted station in place of a driver: its faults.
Prints `N passed, N failed`.
"""

import asyncio
import errno
import sys

sys.path.insert(0, "tests/mp")

import power
import virtual
from engine_cases import run_calls, tests_of
from mqqb import compose
from ordack.node import Node, board
from ordack.node.storage import log
from virtual import Ticks

# What each chip's status says: joining, without an address, connected, no such network, wrong key.
CHIPS = {"cyw43": (1, 2, 3, -2, -3), "esp32": (1001, 1001, 1010, 201, 202)}
JOIN_MS = 2000  # an association takes so long
HERE = ("10.0.0.9", "255.255.255.0", "10.0.0.1", "10.0.0.1")
STATIC = ("10.0.0.7", "255.255.255.0", "10.0.0.1", "10.0.0.1")


class Wlan:
    """A station. fault: "away" (there is no such network), "key", "stuck" (it joins for ever), "address" (DHCP gives
    none), "mute" (connected, but nothing passes), "busy" (connect raises). cure: what ends it: "connect", a new
    association; "radio", a restart; "" nothing. calls: the methods that were called.
    """

    PM_NONE = 7

    def __init__(self, ticks, chip, fault="", cure=""):
        self.ticks = ticks
        self.is_esp32 = chip == "esp32"
        self.codes = CHIPS[chip]
        self.fault = fault
        self.cure = cure
        self.calls = []
        self.began = None
        self.was_up = False
        self.last = 0  # why the last attempt failed, which an ESP32 says until the next success
        self.networks = []
        self.static = None
        if not self.is_esp32:
            self.deinit = lambda: self.calls.append("deinit")

    def active(self, on):
        self.calls.append("on" if on else "off")
        if not on:
            self._end("radio")

    def config(self, pm):
        self.calls.append(("pm", pm))

    def connect(self, ssid, password):
        self.calls.append("connect")
        self.networks.append((ssid, password))
        if self.fault == "busy":
            raise OSError("Wifi Internal State Error")
        if self.fault == "mute" and self.was_up:
            self._end("connect")
        self.began = self.ticks.now

    def disconnect(self):
        self.calls.append("disconnect")
        self.began = None

    def isconnected(self):
        self.status()
        is_up = self.began is not None and self.ticks.now - self.began >= JOIN_MS
        is_up = is_up and self.fault in ("", "mute", "address" if self.is_esp32 and self.was_up else "")
        self.was_up = self.was_up or is_up
        return is_up

    def status(self):
        joining, without, up, away, key = self.codes
        if self.began is None:
            return self.last
        if self.ticks.now - self.began < JOIN_MS:
            return self.last or joining
        if self.fault in ("away", "key"):
            code = away if self.fault == "away" else key
            self.last = code if self.is_esp32 else 0
            return code
        if self.fault in ("stuck", "address"):
            return without if self.fault == "address" else joining
        self.last = 0
        return up

    def ifconfig(self, given=None):
        if given is not None:
            self.calls.append("static")
            self.static = given
        return self.static or (HERE if self.fault != "address" else ("0.0.0.0",) * 4)

    def _end(self, cure):
        self.began = None
        if cure == self.cure:
            self.fault = ""

    @property
    def passes(self):
        return self.isconnected() and self.fault != "mute"


class Line:
    """A node's link over the station. Somebody refuses, or, if nothing passes, nobody answers for 10 s."""

    host = "10.0.0.5"
    port = 1801
    stream = None
    wants_write = False

    def __init__(self, wlan):
        self.wlan = wlan
        self.began = 0

    def open(self):
        self.began = self.wlan.ticks.now

    def is_open(self):
        if self.wlan.passes:
            raise OSError(errno.ECONNREFUSED)
        if self.wlan.ticks.now - self.began > 10000:
            raise OSError(errno.ETIMEDOUT)
        return False

    def close(self):
        pass


def polled(ticks, wifi, until, node, limit):
    """Poll until that holds, at most `limit` ms."""
    end = ticks.now + limit
    while ticks.now < end and not until():
        wifi.poll()
        if node is not None:
            node.poll()
        ticks.now += 200


class Board:
    """A board with a station of a chip. with_node: and with a node that has a message."""

    def __init__(self, chip, fault="", cure="", with_node=False, **options):
        self.ticks = Ticks()
        self.wlan = Wlan(self.ticks, chip, fault, cure)
        self.node = None
        if with_node:
            self.disk = power.Disk()
            self.node = Node("", files=self.disk, connect=Line(self.wlan), random=lambda: 0)
            self.queue = self.node.queue(power.NAMES[0])
            self.queue.put(b"1")
        self.wifi = board.Wifi("plant", "secret", self.wlan, node=self.node, **options)

    def go(self, until, limit=3600000):
        """Run until that holds; ms that it took. False, if it does not within `limit`."""
        began = self.ticks.now
        polled(self.ticks, self.wifi, until, self.node, limit)
        return until() and self.ticks.now - began

    def rest(self, ms):
        self.go(lambda: False, ms)

    def count(self, call):
        return self.wlan.calls.count(call)


def for_each_chip(test):
    def run():
        for chip in CHIPS:
            test(chip)

    return test.__name__, run


def test_a_task_keeps_it(chip):
    made = Board(chip)

    async def main():
        task = asyncio.create_task(made.wifi.keep())
        while not made.wlan.isconnected():
            made.ticks.now += 200
            await asyncio.sleep(0)
        task.cancel()

    asyncio.run(main())
    assert made.wifi.attempts == 1


def test_it_connects_once_and_stays(chip):
    made = Board(chip)
    assert 2000 <= made.go(lambda: made.wifi.poll()) <= 2400
    made.rest(600000)
    assert made.wlan.calls == ["on", ("pm", 7), "connect"], "power saving is off"
    assert (made.wifi.attempts, made.wifi.losses, made.wifi.restarts) == (1, 0, 0)


def test_what_it_is_told_is_set_before_it_connects(chip):
    said = []

    class Network:
        STA_IF = 0
        country = said.append
        hostname = said.append

        def WLAN(self, kind):  # noqa: N802 - its name
            said.append("made")
            return wlan

    wlan = Wlan(Ticks(), chip)
    real = sys.modules.get("network")
    sys.modules["network"] = Network()
    try:
        wifi = board.Wifi("plant", "secret", country="DE", hostname="press7", static=STATIC, saves_power=True)
    finally:
        del sys.modules["network"]
        if real is not None:
            sys.modules["network"] = real
    assert said == ["DE", "press7", "made"]
    polled(wlan.ticks, wifi, wifi.poll, None, 10000)
    assert wlan.calls == ["on", "static", "connect"], "it may save power"
    assert wlan.static == STATIC


def test_a_driver_without_power_saving_is_used_all_the_same(chip):
    made = Board(chip)

    def config(pm):
        raise ValueError("unknown config param")

    made.wlan.config = config
    assert made.go(lambda: made.wifi.poll())


def test_an_access_point_that_goes_is_found_when_it_is_back(chip):
    """An ESP32 goes on to say why the attempt before failed: that ends none before it has begun."""
    made = Board(chip)
    made.go(lambda: made.wifi.poll())
    made.wlan.fault = "away"
    made.wlan.began = None
    made.go(lambda: made.wifi.losses)
    assert made.wifi.losses == 1
    attempts = made.wifi.attempts
    made.rest(2000)
    assert made.wifi.attempts <= attempts + 1
    made.go(lambda: made.wifi.restarts)
    assert "no such network" in made.wifi.reason
    made.rest(600000)
    attempts = made.wifi.attempts
    made.wlan.fault = ""
    assert made.go(lambda: made.wifi.poll(), 100000), "the wait has a limit"
    assert made.wifi.attempts - attempts <= 2


def test_a_lost_association_is_begun_anew_at_once(chip):
    made = Board(chip)
    made.go(lambda: made.wifi.poll())
    made.wlan.began = None
    assert 2000 <= made.go(lambda: made.wifi.losses and made.wifi.poll()) <= 2800


def test_a_wrong_key_is_tried_again_later_and_later(chip):
    made = Board(chip, "key", attempt_ms=4000, first_ms=1000, limit_ms=4000, restart_after=100)
    began = []

    def note():
        if len(began) < made.wifi.attempts:
            began.append(made.ticks.now)
        return len(began) == 5

    assert made.go(note)
    waits = [began[k + 1] - began[k] for k in range(4)]
    # the driver of an ESP32 says the same as before until the attempt is over
    took = [2000, 4000, 4000, 4000] if chip == "esp32" else [2000] * 4
    for k in range(4):
        assert 0 <= waits[k] - took[k] - (1000, 2000, 4000, 4000)[k] <= 800, waits
    assert "key" in made.wifi.reason
    assert made.wifi.poll() is False


def test_a_driver_that_is_busy_is_tried_again(chip):
    made = Board(chip, "busy")
    made.go(lambda: made.wifi.attempts == 2)
    assert "Internal" in made.wifi.reason
    made.wlan.fault = ""
    assert made.go(lambda: made.wifi.poll(), 10000)


def test_a_status_that_is_stuck_costs_an_attempt_and_then_the_radio(chip):
    made = Board(chip, "stuck", "radio")
    took = made.go(lambda: made.wifi.poll())
    assert 3 * 15000 < took < 60000, took
    assert made.wifi.restarts == 1
    calls = made.wlan.calls
    assert calls.index("off") > calls.index("disconnect")
    assert ("deinit" in calls) == (chip == "cyw43")
    assert made.count(("pm", 7)) == made.count("on") == 4, "the radio begins with power saving"
    assert "no association" in made.wifi.reason


def test_an_association_without_an_address_is_none(chip):
    made = Board(chip, "address", "radio")
    made.go(lambda: made.wifi.attempts == 2)
    assert made.wifi.poll() is False
    assert made.go(lambda: made.wifi.poll()), "after a restart of the radio"
    made.wlan.fault = "address"  # the lease is not renewed: an ESP32 still says that it is connected
    made.wlan.cure = "radio"
    assert made.wlan.isconnected() == (chip == "esp32")
    assert made.wifi.poll() is False
    assert made.wifi.losses == 1
    assert made.go(lambda: made.wifi.poll())
    assert made.wifi.restarts == 2


def test_one_network_after_the_other_is_tried(chip):
    made = Board(chip, "away", first_ms=1000, restart_after=100, more=(("hall", "key2"), ("yard", "key3")))
    made.go(lambda: made.wifi.attempts == 3)
    made.wlan.fault = ""
    assert made.go(lambda: made.wifi.poll())
    assert made.wlan.networks == [("plant", "secret"), ("hall", "key2"), ("yard", "key3")]
    made.wlan.began = None
    assert made.go(lambda: made.wifi.losses and made.wifi.poll())
    assert made.wlan.networks[3:] == [("yard", "key3")], "that which worked first"


# ---- connected, but nothing passes ---------------------------------------------------------------


def test_a_connection_through_which_nothing_passes_is_begun_anew(chip):
    made = Board(chip, "mute", "connect", with_node=True)
    took = made.go(lambda: made.wlan.passes)
    assert 60000 < took < 80000, took
    assert (made.wifi.attempts, made.wifi.restarts) == (2, 0)
    assert "nothing passes" in made.wifi.reason
    made.rest(1000000)
    assert made.wifi.attempts == 2, "somebody refuses: something passes"


def test_a_node_that_has_nothing_to_send_says_nothing_of_the_network(chip):
    made = Board(chip, "mute", "connect", with_node=True)
    made.go(lambda: made.node.is_unheard)
    assert made.node.is_unheard
    made.node.delete(made.node.find(made.node.last_message_id))
    made.rest(600000)
    assert not made.node.is_unheard
    assert made.wifi.attempts == 1


def test_then_it_waits_longer_each_time_and_restarts_the_radio(chip):
    """It may be the queue manager that is away."""
    made = Board(chip, "mute", with_node=True)
    began = []

    def note():
        if len(began) < made.wifi.attempts:
            began.append(made.ticks.now)
        return len(began) == 9

    assert made.go(note, 100000000)
    waits = [(began[k + 1] - began[k]) // 10000 for k in range(8)]
    assert waits == [7, 12, 24, 48, 96, 192, 192, 192], waits
    assert made.wifi.restarts == 2


def test_the_board_is_reset_when_what_it_accepted_is_durable(chip):
    told = []
    made = Board(chip, "mute", with_node=True, reset_after=4, reset=lambda: told.append(made.wifi.attempts))
    forever = compose.FOREVER

    def refuse(disk, step, data):
        raise OSError(28)

    made.go(lambda: made.wifi.attempts == 4)
    made.queue._accept(b"2", "", forever, forever, False, False)
    made.go(lambda: told, 100000000)
    assert told == [4]
    assert made.wifi.restarts == 1
    assert not made.node.commits.uncommitted
    after = Node("", files=made.disk.after_cut(power.KEEP_SYNCED, power.Dice(1)), connect=Line(made.wlan))
    assert after.waiting == 2
    made.disk.before = refuse
    try:
        made.node.delete(made.node.find(made.node.last_message_id))
    except log.OutboxError:
        pass
    made.go(lambda: made.wifi.attempts == 7, 100000000)
    assert told == [4], "the file system refuses"
    made.disk.before = None
    made.go(lambda: len(told) == 2, 100000000)
    assert told == [4, 7]


TESTS = [for_each_chip(test) for test in tests_of(globals())]


if __name__ == "__main__":
    run_calls([(name, virtual.run, (test,), {}) for name, test in TESTS])
