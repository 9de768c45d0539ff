"""The MSMQ binary protocol: core, packets, session and streams. Runs unchanged on CPython and MicroPython."""

from sys import implementation

# A board's form of a module has True in its place, and not what is for CPython (firmware/ports/modules.py).
MICROPYTHON = implementation.name == "micropython"


def const(value: "Constant") -> "Constant":
    """The value. MicroPython folds a private name for it into the code: it takes no memory, and no look-up. What stands
    under `if TYPE_CHECKING` is left out where TYPE_CHECKING is const(0).
    """
    return value


TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from typing import TypeVar

    Constant = TypeVar("Constant", int, str)
