"""Host names, on MicroPython and CPython: what a name server on this machine may do to a look-up, and to a node with a
watchdog. Prints `N passed, N failed`.
"""

import errno
import os
import select
import socket
import struct
import sys

sys.path.insert(0, "tests/mp")

import power
import virtual
from engine_cases import run_calls, tests_of
from mqqb import connection
from ordack.node import Node, board
from ordack.node.talk import dns, link, listener
from virtual import Ticks

A, CNAME, AAAA = 1, 5, 28
NAME = "gateway.example"
LABELS = b"\x07gateway\x07example\0"
POINTER = b"\xc0\x0c"  # to the name in the question
SECOND = 1000


def bound():
    """A UDP socket at a port of this machine, and its port."""
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    virtual.opened.append(made)
    for port in range(20300, 20400):
        try:
            made.bind(socket.getaddrinfo("127.0.0.1", port)[0][-1])
            return made, port
        except OSError:
            continue
    raise OSError("no port is free")


def saying(*records):
    """A server's answer of these records."""
    return lambda request: [reply(request, *records)]


def once(change):
    return lambda request: [change(request)]


def record(name, kind, ttl, data):
    return name + struct.pack(">HHIH", kind, 1, ttl, len(data)) + data


def address(last=5, ttl=300, name=POINTER):
    return record(name, A, ttl, bytes([10, 0, 0, last]))


def reply(request, *records, flags=0x8180):
    return request[:2] + struct.pack(">HHHHH", flags, 1, len(records), 0, 0) + request[12:] + b"".join(records)


class Server:
    """A name server of a node's. say: makes a list of answers of a request; it is dead while that is None."""

    def __init__(self, say=None):
        self.socket, self.port = bound()
        self.say = say
        self.requests = []
        dns.SERVERS.append(("127.0.0.1", self.port))

    def serve(self, source=None):
        """Wait for a request, and answer it."""
        wait_for(self.socket)
        request, where = self.socket.recvfrom(512)
        self.requests.append(request)
        for answer in self.say(request) if self.say else ():
            (source or self.socket).sendto(answer, where)

    def asked(self):
        """Is there a request that was not read?"""
        return is_ready(self.socket, 0)


def is_ready(stream, ms):
    poller = select.poll()
    poller.register(stream, select.POLLIN)
    return bool(poller.poll(ms))


def wait_for(stream):
    assert is_ready(stream, 60000), "nothing came"


def served(*servers, again=False, name=NAME):
    """Look the name up, while these servers serve once each, one after the other."""
    looking = dns.Lookup(name, "", again)
    virtual.opened.append(looking)
    found = looking.poll()
    for server in servers:
        assert found is None, found
        server.serve()
        wait_for(looking._socket)
        found = looking.poll()
    return found


def error_of(call, *arguments):
    """The error that a call raises, if it does; else it says nothing."""
    try:
        assert call(*arguments) is None
    except (OSError, ValueError) as error:
        return error


def refused(call, *arguments):
    """The error that a call raises."""
    error = error_of(call, *arguments)
    assert error is not None
    return error


def test_a_local_name_needs_no_server():
    server = Server()
    assert dns.Lookup("LocalHost").poll() == "127.0.0.1"
    for name in ("10.0.0.5", "255.0.0.1", "fe80::1", "::"):
        assert link.is_address(name), name
    assert not server.asked()
    for name in ("10.0.0", "10.0.0.256", "10.0.0.x", "1.2.3.4.5", "gateway"):
        assert not link.is_address(name), name


def test_servers_come_from_the_network():
    dns.SERVERS[:] = []
    path = "/tmp/ordack-resolv-" + str(int.from_bytes(os.urandom(6), "big"))
    with open(path, "w") as file:
        file.write("nameserver 10.0.0.1\nsearch plant.example\nnameserver 10.0.0.2 # second\noptions x\n")
    real = dns.RESOLV
    network = sys.modules.get("network")
    try:
        dns.RESOLV = path
        assert dns.Lookup("press7")._servers == [("10.0.0.1", 53), ("10.0.0.2", 53)]
        dns.RESOLV = "/nowhere"
        sys.modules["network"] = Network("10.0.0.3")
        assert dns.Lookup("press7")._servers == [("10.0.0.3", 53)]
        sys.modules["network"] = Network("0.0.0.0")
        assert "no name server" in str(refused(dns.Lookup("press7").poll))
        sys.modules["network"] = WifiAlone()
        assert dns.Lookup("press7")._servers == [("10.0.0.4", 53)]
    finally:
        dns.RESOLV = real
        os.remove(path)
        if network is None:
            sys.modules.pop("network", None)
        else:
            sys.modules["network"] = network


class Network:
    """The module network of a board, as far as names go."""

    def __init__(self, server):
        self.ipconfig = lambda what: server


class WifiAlone:
    """The same of an older one."""

    STA_IF = 0

    def WLAN(self, kind):  # noqa: N802 - its name
        return self

    def ifconfig(self):
        return ("10.0.0.9", "255.255.255.0", "10.0.0.1", "10.0.0.4")


def unknown(request):
    return reply(request, flags=0x8183)


def test_a_name_is_asked_for_once_while_it_is_good():
    ticks = Ticks()
    for ttl, good in ((0, 30), (300, 300), (1 << 31, 86400)):
        dns._cache.clear()
        dns.SERVERS[:] = []
        server = Server(saying(address(ttl=ttl)))
        assert served(server) == "10.0.0.5"
        ticks.now += 1000 * good - 1
        assert served() == "10.0.0.5", "it is still good"
        ticks.now += 1
        assert served(server, name=NAME.upper()) == "10.0.0.5"
        assert [request[12:].lower() for request in server.requests] == [LABELS + b"\0\1\0\1"] * 2


def test_an_address_at_which_nobody_answers_is_asked_for_anew():
    ticks = Ticks()
    server = Server(lambda request: [reply(request, address(5 + len(server.requests)))])
    assert served(server) == "10.0.0.6"
    ticks.now += 30 * SECOND - 1
    assert served(again=True) == "10.0.0.6", "not at once"
    ticks.now += 1
    assert served() == "10.0.0.6"
    assert served(server, again=True) == "10.0.0.7"


def test_aliases_are_followed():
    press, line = b"\x05press\xc0\x14", b"\x04line\xc0\x14"  # behind them: example
    for order in ((0, 1, 2), (2, 1, 0)):
        for last, found in ((line, "10.0.0.5"), (b"\x05other\0", None), (press, None)):
            dns._cache.clear()
            dns.SERVERS[:] = []
            chain = (record(POINTER, CNAME, 500, press), record(press, CNAME, 40, last), address(name=line))
            server = Server(saying(*[chain[k] for k in order]))
            if found:
                assert served(server) == found
                assert dns._cache[NAME][2] == 40 * SECOND, "the least of the chain"
            else:
                assert "no IPv4 address" in str(refused(served, server))


def test_only_the_answer_to_the_question_counts():
    """Answers with another id, to another question, and what is no answer are passed over."""

    def say(request):
        other = bytes([request[0] ^ 1]) + request[1:]
        return [
            reply(other, address(66)),
            reply(request[:12] + request[12:].replace(b"gateway", b"getaway"), address(66)),
            reply(request, address(66), flags=0x0180),
            reply(request[:-3] + b"\x1c" + request[-2:], address(66)),
            request[:5],
            b"",
            reply(request, address()),
        ]

    server = Server(say)
    looking = dns.Lookup(NAME)
    assert looking.poll() is None
    server.serve()
    for _ in range(6):
        wait_for(looking._socket)
        assert looking.poll() is None
    wait_for(looking._socket)
    assert looking.poll() == "10.0.0.5"


def test_an_answer_from_elsewhere_is_passed_over():
    ticks = Ticks()
    server = Server(saying(address(66)))
    elsewhere, _ = bound()
    looking = dns.Lookup(NAME)
    assert looking.poll() is None
    server.serve(elsewhere)
    assert not is_ready(looking._socket, 20)
    assert looking.poll() is None
    ticks.now += SECOND
    server.say = saying(address())
    assert looking.poll() is None
    server.serve()
    wait_for(looking._socket)
    assert looking.poll() == "10.0.0.5"


def test_dead_servers_are_asked_later_and_later():
    ticks = Ticks()
    servers = [Server(), Server()]
    looking = dns.Lookup(NAME)
    asked = []
    began = ticks.now
    error = None
    while error is None:
        error = error_of(looking.poll)
        for k in range(2):
            if servers[k].asked():
                servers[k].serve()
                asked.append((k, ticks.now - began))
        ticks.now += 100
    assert (error.errno, NAME in str(error)) == (errno.ETIMEDOUT, True)
    assert asked == [(0, 0), (1, 1000), (0, 2000), (1, 4000), (0, 6000), (1, 10000)], asked
    assert ticks.now - began == 14100
    assert looking._socket is None


def test_answers_that_are_of_no_use_are_errors_with_words():
    for change, words in (
        (lambda request: reply(request, address(), flags=0x8380), "truncated"),
        (lambda request: reply(request, flags=0x8182), "refuses, code 2"),
        (lambda request: reply(request, flags=0x8185), "refuses, code 5"),
        (lambda request: reply(request, address())[:-1], "malformed"),
        (lambda request: reply(request, address())[:-14], "malformed"),
        (lambda request: reply(request, address(name=b"\xc0\x20")), "malformed"),  # it points to itself
        (lambda request: reply(request, address(name=b"\xff\xff")), "malformed"),
        (lambda request: reply(request, address(name=b"\x80a\0")), "malformed"),
        (unknown, "no such name"),
        (lambda request: reply(request), "no IPv4 address"),
        (lambda request: reply(request, record(POINTER, AAAA, 300, bytes(16))), "no IPv4 address"),
        (lambda request: reply(request, record(POINTER, A, 300, bytes(16))), "no IPv4 address"),
        (lambda request: reply(request, address(name=b"\x05other\0")), "no IPv4 address"),
    ):
        dns._cache.clear()
        dns.SERVERS[:] = []
        server = Server(once(change))
        rounds = 1 if words.startswith("no ") else 3  # what the server knows is not asked for again
        error = refused(served, *[server] * rounds)
        assert words in str(error), error
        assert NAME in str(error)
        assert len(server.requests) == rounds


def test_no_answer_whatever_is_in_it_does_harm():
    query = b"\1\2" + dns._QUERY + dns._question(NAME)
    whole = reply(query, record(POINTER, CNAME, 40, b"\x05press\xc0\x14"), address(name=b"\x05press\xc0\x14"))
    dice = power.Dice(7)
    tried = 0
    for size in range(len(whole)):
        try:
            assert dns._read(whole[:size], query) is None
        except OSError:
            tried += 1
    for _ in range(2000):
        broken = bytearray(whole)
        for _ in range(1 + dice.below(3)):
            broken[len(query) + dice.below(len(whole) - len(query))] = dice.below(256)
        try:
            dns._read(bytes(broken), query)
        except OSError:
            tried += 1
    assert tried > 100
    for name in ("", ".", "a..b", "a" * 64 + ".example"):
        Server()
        assert "not a host name" in str(refused(dns.Lookup(name).poll)), name


def test_what_was_found_is_kept_while_nobody_answers():
    ticks = Ticks()
    server = Server(saying(address()))
    assert served(server) == "10.0.0.5"
    server.say = None
    ticks.now += 300 * SECOND
    began = ticks.now
    looking = dns.Lookup(NAME)
    while looking.poll() is None:
        ticks.now += 100
    assert looking.poll() == "10.0.0.5"
    assert ticks.now - began == SECOND, "one question"
    assert served(again=True) == "10.0.0.5", "and none for a while"
    server.serve()
    ticks.now += 30 * SECOND
    server.say = lambda request: [unknown(request)]
    assert "no such name" in str(refused(served, server)), "that is an answer"


# ---- links, the clock and a node with a watchdog ------------------------------------------------


def listening():
    """A TCP socket that listens, and its port."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    virtual.opened.append(made)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for port in range(20400, 20500):
        try:
            made.bind(socket.getaddrinfo("127.0.0.1", port)[0][-1])
            made.listen(1)
            return made, port
        except OSError:
            continue
    raise OSError("no port is free")


here = saying(record(POINTER, A, 300, bytes([127, 0, 0, 1])))


two = saying(record(POINTER, A, 300, bytes([127, 0, 0, 2])), record(POINTER, A, 300, bytes([127, 0, 0, 1])))


def goes_on(closes):
    """The first address of two refuses, or something there closes the connection: the node goes on to the second."""
    server = Server(two)
    there, port = listening()
    other = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    virtual.opened.append(other)
    if closes:
        other.bind(socket.getaddrinfo("127.0.0.2", port)[0][-1])
        other.listen(1)
    node = Node("", files=power.Disk(), connect=(NAME, port), random=lambda: 0.5)
    peer = node.queue(power.NAMES[0]).peer
    node.queue(power.NAMES[0]).put(b"1")
    node.poll()
    server.serve()
    if closes:
        assert node.wait(lambda: is_ready(other, 0), 60000)
        other.accept()[0].close()
    assert node.wait(lambda: is_ready(there, 0), 60000), peer.reason
    assert node.wait(lambda: peer.session, 60000)
    peer._take(connection.Opened())
    there.accept()[0].close()
    assert node.wait(lambda: not peer.session, 60000)
    assert node.wait(lambda: is_ready(there, 0) or (closes and is_ready(other, 0)), 60000)
    assert is_ready(there, 0), "it stays where there was a session"
    node.close_now()


def test_a_stale_address_of_a_name_is_passed_over():
    goes_on(False)


def test_an_address_of_another_program_is_passed_over():
    goes_on(True)


def test_a_board_does_not_listen_at_a_name():
    assert "localhost" in str(refused(listener.TcpListener, "localhost", 1801, None))


def test_the_time_comes_from_a_server_with_a_name():
    ticks = Ticks()
    server = Server()
    clock, port = bound()
    found = []
    asking = board.NetworkTime(NAME, port, retry_ms=2000, set_clock=found.append)
    for _ in range(75):  # 7 s until nobody has answered
        asking.poll()
        ticks.now += 100
    while server.asked():
        server.serve()
    assert not is_ready(clock, 0)
    server.say = here
    for _ in range(20):
        asking.poll()
        ticks.now += 100
    server.serve()
    wait_for(asking._looking._socket)
    asking.poll()
    wait_for(clock)
    request, where = clock.recvfrom(100)
    answer = bytearray(48)
    answer[0], answer[1] = 0x24, 2
    answer[24:32] = request[40:48]
    struct.pack_into(">II", answer, 40, (1800000000 + 2208988800) & 0xFFFFFFFF, 0)
    clock.sendto(answer, where)
    wait_for(asking._socket)
    assert asking.poll()
    assert found == [1800000000]
    asking.close()


class Spy:
    """In place of the module socket: counts calls that may wait, of which each takes 7 s."""

    def __init__(self, ticks):
        self.ticks = ticks
        self.waits = 0

    def wait(self):
        self.waits += 1
        self.ticks.now += 7000

    def getaddrinfo(self, host, *arguments):
        if not link.is_address(host):
            self.wait()
            raise OSError(-2)
        return socket.getaddrinfo(host, *arguments)

    def socket(self, *kinds):
        return Spied(self, socket.socket(*kinds))

    def __getattr__(self, name):
        return getattr(socket, name)


class Spied:
    """A socket; each call waits unless it was told not to."""

    def __init__(self, spy, made):
        self.spy = spy
        self.made = made
        self.waits = True

    def setblocking(self, waits):
        self.waits = waits
        self.made.setblocking(waits)

    def __getattr__(self, name):
        if self.waits and name != "close":
            self.spy.wait()
        return getattr(self.made, name)


class Hardware:
    """A watchdog: the longest time between two feedings."""

    def __init__(self, ticks):
        self.ticks = ticks
        self.fed = ticks.now
        self.longest = 0

    def feed(self):
        self.longest = max(self.longest, self.ticks.now - self.fed)
        self.fed = self.ticks.now


def watched(do):
    """Let a node work with a dead name server; do: works for a minute. No call may wait, and the watchdog be hungry."""
    ticks = Ticks()
    server = Server()
    spy = dns.socket = link.socket = board.socket = Spy(ticks)
    hardware = Hardware(ticks)
    try:
        node = Node("", files=power.Disk(), connect=(NAME, 1801), random=lambda: 0.5)
        queue = node.queue(power.NAMES[0])
        queue.put(b"1")
        asking = board.NetworkTime("clock.example", set_clock=None)
        do(ticks, board.Watchdog(node, wdt=hardware), node, asking)
        reason = queue.peer.reason
        asking.close()
        node.close_now()
    finally:
        dns.socket = link.socket = board.socket = socket
    assert spy.waits == 0, spy.waits
    assert hardware.longest <= 100, hardware.longest
    assert NAME in reason, reason
    asked = 0
    while server.asked():
        server.serve()
        asked += b"gateway" in server.requests[-1]
    assert asked > 12, asked


def test_a_dead_name_server_does_not_keep_a_node_from_its_watchdog():
    def work(ticks, watchdog, node, asking):
        for _ in range(600):
            watchdog.poll()
            asking.poll()
            ticks.now += 100

    watched(work)


TESTS = tests_of(globals())


if __name__ == "__main__":
    run_calls([(test.__name__, virtual.run, (test,), {}) for test in TESTS])
