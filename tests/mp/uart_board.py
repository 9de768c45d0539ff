"""A board for tests/test_uart.py: sends COUNT readings over the pseudo-terminal PORT, from the outbox in FOLDER.

    micropython uart_board.py PORT FOLDER COUNT

Run again after it was killed, it goes on where it was.
"""

import select
import sys

sys.path.insert(0, "tests/mp")

from node import Node
from node.uart import UartLink


class Uart:
    """machine.UART's methods that a link needs, on a terminal with VMIN and VTIME 0."""

    def __init__(self, port):
        self.file = open(port, "r+b")  # noqa: SIM115
        self.poll = select.poll()
        self.poll.register(self.file, select.POLLIN)

    def any(self):
        return 100 if self.poll.poll(0) else 0

    def readinto(self, buffer):
        return self.file.readinto(buffer) or None

    def write(self, data):
        return self.file.write(data)


def main(port, folder, count):
    node = Node(folder, connect=UartLink(Uart(port), 2000))
    queue = node.queue("DIRECT=OS:gateway\\private$\\line1")
    while node.next_message_id <= count:
        if node.waiting < 20:
            queue.put(b"reading %d" % node.next_message_id)
        node.poll()
    while node.waiting:
        node.poll()
    print("done", node.stats.connects)


main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
