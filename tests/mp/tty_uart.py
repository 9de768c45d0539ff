"""machine.UART's methods that a link needs, on a terminal: for programs of boards that run as processes."""

import select


class Uart:
    """port: a terminal with VMIN and VTIME 0."""

    def __init__(self, port):
        self.file = open(port, "r+b", 0)  # noqa: SIM115
        self.poll = select.poll()
        self.poll.register(self.file, select.POLLIN)

    def any(self):
        return 100 if self.poll.poll(0) else 0

    def readinto(self, buffer):
        return self.file.readinto(buffer) or None

    def write(self, data):
        return self.file.write(data)
