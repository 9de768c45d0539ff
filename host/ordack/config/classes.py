"""Describe message classes: name, event, remedy (B-365 to B-387).

The engine defines the names. Other modules of this package use no class numbers.
"""

from __future__ import annotations

import shlex

from mqqb import compose, confirm

from ordack.config.config import split_direct

NAMES = {0x0000: "NORMAL", compose.CLASS_ORDER_ACK: "ORDER_ACK"} | {
    number: name for name, number in vars(confirm).items() if name.startswith(("REPORT", "ACK_", "NACK_"))
}

# The event, and the remedy if there is one.
_WORDS = {
    confirm.REPORT: ("a report of a traced message", ""),
    confirm.ACK_REACH_QUEUE: ("it arrived in its queue", ""),
    compose.CLASS_ORDER_ACK: ("an acknowledgement of order, between queue managers", ""),
    confirm.ACK_RECEIVE: ("an application has received it", ""),
    confirm.NACK_BAD_DST_Q: ("there is no {name} at {host}", "make it there, or correct its name"),
    confirm.NACK_DELETED: ("an operator has removed it before it arrived", ""),
    confirm.NACK_REACH_QUEUE_TIMEOUT: (
        "it did not reach {queue} in time",
        ("see with `ordack status` whether the destination can be reached, or give messages more time (ttrq)"),
    ),
    confirm.NACK_Q_EXCEED_QUOTA: (
        "{queue} is full",
        "let an application receive from it, or raise the queue's quota there",
    ),
    confirm.NACK_ACCESS_DENIED: ("its sender may not write to {queue}", "give it that right there"),
    confirm.NACK_HOP_COUNT_EXCEEDED: (
        "it went through too many queue managers",
        "look for a circle among the next hops",
    ),
    confirm.NACK_BAD_SIGNATURE: (
        "{host} cannot check its signature",
        "send without one: ordack does not know certificates",
    ),
    confirm.NACK_BAD_ENCRYPTION: ("{host} cannot decrypt it", "send without encryption: ordack has no keys for it"),
    confirm.NACK_COULD_NOT_ENCRYPT: ("its sender could not encrypt it", "send without encryption"),
    confirm.NACK_NOT_TRANSACTIONAL_Q: (
        "it is transactional, as those of boards are, and {queue} is not",
        (
            "make that queue anew, with `ordack queue delete {argument}` and `ordack queue create {argument}`, or send "
            "recoverable messages to it"
        ),
    ),
    confirm.NACK_NOT_TRANSACTIONAL_MSG: (
        "{queue} takes transactional messages only",
        (
            "send transactional ones, or make that queue anew, with `ordack queue delete {argument}` and "
            "`ordack queue create --non-transactional {argument}`"
        ),
    ),
    confirm.NACK_UNSUPPORTED_CRYPTO_PROVIDER: ("{host} does not know its way of encryption", "send without encryption"),
    confirm.NACK_SOURCE_COMPUTER_GUID_CHANGED: (
        "its sender has got a new identifier since, so that nobody can acknowledge it",
        ("send it again if it is still wanted"),
    ),
    confirm.NACK_Q_DELETED: ("{queue} was deleted with the message in it", ""),
    confirm.NACK_Q_PURGED: ("{queue} was purged with the message in it", ""),
    confirm.NACK_RECEIVE_TIMEOUT: (
        "it arrived, and no application is known to have received it in time",
        "see whether one receives there, or give messages more time (ttbr)",
    ),
    confirm.NACK_RECEIVE_TIMEOUT_AT_SENDER: (
        "its time to be received was over before it is known to have arrived",
        ("see with `ordack status` whether the destination can be reached, or give messages more time (ttbr)"),
    ),
    confirm.NACK_RECEIVE_REJECTED: ("an application has rejected it", ""),
}


def name(number: int) -> str | None:
    """Return a name such as NACK_BAD_DST_Q; None for an application's own class (B-388)."""
    return NAMES.get(number)


def label(number: int) -> str:
    """Return a text such as "0x8000 NACK_BAD_DST_Q", for readers who know the protocol."""
    return f"0x{number:04X} {NAMES.get(number, '')}".rstrip()


def reason(number: int) -> str:
    """Return the label of the class of a refused message; class 0 means lack of room."""
    return label(number) if number else "no room"


def words(number: int, destination: str = "") -> str:
    """Return event, remedy and class in a sentence. destination: of the message, if known."""
    host, queue = split_direct(destination) or ("", "")
    if number in _WORDS:
        happened, advice = _WORDS[number]
        happened = happened.format(
            name=f"queue {queue}" if queue else "such queue",
            host="this machine" if host == "." else host or "its destination",
            queue="its queue" if not queue else f"the queue {queue}" if host == "." else f"the queue {queue} at {host}",
        )
        advice = advice.format(argument=shlex.quote(queue) if queue else "NAME")
        if number == confirm.NACK_BAD_DST_Q and host != "." and (host or not destination):
            advice += f", or {f'add {host} to ' if host else ''}own-names there"
    elif number >= confirm.ACK_RECEIVE:
        happened, advice = "it failed for a reason of another program", ""
    else:
        happened, advice = "a message of a kind of its application's own", ""
    return happened + (f"; {advice}" if advice else "") + f" (class {label(number)})"
