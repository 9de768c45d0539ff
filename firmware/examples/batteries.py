"""A board on batteries: wakes, stores a reading, delivers for a few seconds, sleeps for five minutes."""

import sys

import machine
from ordack.node import Node, OutboxFull
from ordack.node.board import Wifi, deep_sleep, set_clock

SLEEP_MS = 300000


def failed(message):  # class 0x8000: the queue does not exist
    print("not delivered,", message.reason)


def main():
    node = Node("outbox", capacity=262144, on_failed=failed)
    line1 = node.queue("DIRECT=TCP:192.168.1.20\\private$\\line1")
    try:  # on flash before the network is tried
        line1.put(b"%d" % machine.ADC(4).read_u16(), label="raw", ttrq=86400)
    except OutboxFull:
        pass  # readings expire after a day and make room
    wifi = Wifi("NETWORK", "PASSWORD", node=node)
    if node.wait(wifi.poll, 20000):
        set_clock("192.168.1.1", 2000)  # not needed if a battery keeps the clock running
    node.wait(lambda: not node.waiting, 10000)
    print(node.waiting, "to send")
    deep_sleep(node, SLEEP_MS)


try:
    main()
except Exception as error:  # noqa: BLE001 - after any error, staying awake would empty the battery
    sys.print_exception(error)
    machine.deepsleep(SLEEP_MS)
