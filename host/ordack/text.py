"""Words for people: text that anything takes, numbers with their nouns, the first of many names."""

from __future__ import annotations

from collections.abc import Sequence


def legible(text: str) -> str:
    r"""Text that anything takes, SQLite, JSON, a terminal: a lone surrogate, which the wire and an argument may hold,
    becomes the six characters \udXXX. Whatever came from outside passes here on its way to one of these."""
    return text.encode("utf-8", "backslashreplace").decode()


def printable(text: str, line_end: str = "\\n") -> str:
    """Text that moves no terminal and passes for no other line, whoever has chosen names in it: what cannot be printed
    is escaped, and a line ends as line_end says."""
    return "".join(
        sign if sign.isprintable() else line_end if sign == "\n" else sign.encode("unicode_escape").decode()
        for sign in legible(text)
    )


def first_of(names: Sequence[str], at_most: int) -> str:
    """So many of the names, and how many more there are."""
    return ", ".join(names[:at_most]) + (f" and {len(names) - at_most:,} more" if len(names) > at_most else "")


def counted(number: int, noun: str, grouped: bool = False) -> str:
    """1 message, 2 messages, 2 batches; 2,000 messages if grouped."""
    text = f"{number:,}" if grouped else str(number)
    return f"{text} {noun}{'' if number == 1 else 'es' if noun.endswith('ch') else 's'}"
