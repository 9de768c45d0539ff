"""The network side of a queue manager: TCP, serial ports, attempts to connect, pings, captures of its traffic."""
