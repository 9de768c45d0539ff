"""A board for tests/host/test_serial.py: sends COUNT readings over the pseudo-terminal PORT, from the outbox in FOLDER.

    micropython uart_board.py PORT FOLDER COUNT

Run again after it was killed, it goes on where it was.
"""

import sys

sys.path.insert(0, "tests/mp")

from ordack.node import Node, log
from ordack.node.uart import UartLink
from tty_uart import Uart

log.jump = bytes  # message k has MessageID k in every life


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
