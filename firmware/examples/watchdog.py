"""A board on mains power under a hardware watchdog, which restarts it after any hang or fatal failure."""

from machine import ADC
from ordack.node import Node, OutboxFull
from ordack.node.board import Watchdog

node = Node("outbox", connect=("192.168.1.20", 1801), capacity=262144)
line1 = node.queue("DIRECT=TCP:192.168.1.20\\private$\\line1")
watchdog = Watchdog(node, 8000)  # after Node(...): a start with a full flash may exceed the watchdog's timeout
sensor = ADC(4)
while True:
    try:
        line1.put(b"%d" % sensor.read_u16(), ttrq=86400)
    except OutboxFull:
        pass
    watchdog.wait(lambda: False, 10000)  # delivers for ten seconds, and feeds the watchdog while the node is well
