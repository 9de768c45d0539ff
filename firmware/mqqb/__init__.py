"""The MSMQ binary protocol: core, packets, session and streams. Runs unchanged on CPython and MicroPython."""

from sys import implementation

# firmware/ports/modules.py replaces MICROPYTHON by True in a board's modules, and drops code for CPython.
MICROPYTHON = implementation.name == "micropython"


def const(value: "Constant") -> "Constant":
    """The value. MicroPython folds a private name for a const into the code: the name takes no memory and no look-up.
    Code under `if TYPE_CHECKING` is dropped where TYPE_CHECKING is const(0).
    """
    return value


TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from typing import TypeVar

    Constant = TypeVar("Constant", int, str)
