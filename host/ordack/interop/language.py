r"""What this side can ask of the script on the other machine, and what the script answers.

host/examples/windows/ordack-interop.ps1 has the same commands; a test compares both. They travel as MSMQ messages: a
command is a recoverable message to the private queue CONTROL there, an answer one to a queue here that the command
names. So nothing but port 1801 is needed, and a machine where only a part of it works can still say which.

A command is a JSON object with `number`, which counts up, `run`, `reply` (the format name for the answer), `command`
and its own fields; an answer is one with `number`, `ok`, and its own fields or, if it is not ok, `error`.

Messages that are sent for a trial have the label `RUN KEY NUMBER`, and their bodies follow from number and size.
"""

from __future__ import annotations

VERSION = 1  # of what both sides say to each other
CONTROL = "ordack-interop"  # the queue there that commands go to; the names of all others begin with it, too
PROBE = f"{CONTROL}-probe"  # a transactional queue there that nobody reads: what becomes of a message to it tells much
ALWAYS = ("number", "run", "reply", "command")

COMMANDS: dict[str, tuple[str, ...]] = {
    "hello": (),
    "create": ("queue", "transactional"),
    "send": ("to", "key", "delivery", "first", "count", "size", "deadletter", "journal", "ttrq"),
    "receive": ("queue", "count", "seconds"),
    "echo": ("queue", "to", "seconds", "ttrq"),
    "look": ("place", "key"),
    "purge": ("queue",),
    "end": (),
}
ANSWERS: dict[str, tuple[str, ...]] = {
    "hello": ("version", "computer", "system", "powershell", "workgroup", "hardened", "time", "queues"),
    "create": (),
    "send": (),
    "receive": ("labels", "sha256"),
    "echo": ("label", "priority", "tag", "extension", "correlation", "recoverable", "sha256"),
    "look": ("classes",),
    "purge": (),
    "end": ("queues", "messages"),
}
PLACES = ("deadletters", "journal")  # that `look` knows: dead letters of transactional messages, and copies

_PERIOD = 251  # bytes of a body count up to it


def body_of(number: int, size: int) -> bytes:
    """The body of a message of a trial: `size` bytes for number 0, else fewer, which differs from one to the next."""
    length = size - number * 37 % min(size, 500)
    start = number % _PERIOD
    pattern = bytes(range(_PERIOD))
    return (pattern[start:] + pattern * (length // _PERIOD + 1))[:length]


def label_of(run: str, key: str, number: int) -> str:
    return f"{run} {key} {number}"
