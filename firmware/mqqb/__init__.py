"""The MSMQ binary protocol: core, packets, session and streams. Runs unchanged on CPython and MicroPython."""
