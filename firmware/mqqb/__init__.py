"""The MSMQ binary protocol: core, packets, session and streams. Runs unchanged on CPython and MicroPython."""


def const(value: int) -> int:
    """The value. MicroPython folds a private name for it into the code: it takes no memory, and no look-up."""
    return value
