"""The MSMQ binary protocol: core, packets, session and streams. Runs unchanged on CPython and MicroPython."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    Constant = TypeVar("Constant", int, str)


def const(value: "Constant") -> "Constant":
    """The value. MicroPython folds a private name for it into the code: it takes no memory, and no look-up. What stands
    under `if TYPE_CHECKING` is left out where TYPE_CHECKING is const(0).
    """
    return value
