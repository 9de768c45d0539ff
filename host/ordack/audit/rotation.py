"""Whether files of a rotation are missing, judged by their names and by the times inside."""

from __future__ import annotations

import os
import re

# How rotated files are numbered: tcpdump -C (a.pcap, a.pcap1; with -W from a.pcap0), dumpcap -b
# (a_00001_20261121210000.pcap), ordack (a.pcap, a-000002.pcap). Other digits in names may be times.
_PACKED = r"(?:\.(?:gz|zst))?"
_ENDING = r"\.(?:p?cap|pcapng|dmp|dump)"
_OWN_NUMBERS = 2  # the place of ordack's form
_NUMBERED = (
    re.compile(rf"(.+{_ENDING})(\d{{0,5}}){_PACKED}"),
    re.compile(rf"(.+_)(\d{{5}})_\d{{14}}(?:\.\w+)?{_PACKED}"),
    re.compile(rf"(.+-)(000\d{{3}})(?:{_ENDING})?{_PACKED}"),
)
_FILES_MISSING = 1000  # more are no gap, but other numbers
_ROOM = 1000  # a pause in which so small a share of the missing files would find room


def _numbers(path: str) -> dict[str, str]:
    """{what its siblings have in common: number} of a file."""
    folder, name = os.path.split(path)
    found = {}
    for form, pattern in enumerate(_NUMBERED):
        match = pattern.fullmatch(name)
        if match is not None:
            found[f"{form} {folder} {match[1]}"] = match[2] or "0"
    stem, dot, _ = name.rpartition(".")
    if dot:  # the first one of ordack's
        found.setdefault(f"{_OWN_NUMBERS} {folder} {stem}-", "1")
    return found


def missing_between(before: str, its: tuple[int, int], after: str, others: tuple[int, int]) -> int:
    """How many files of a rotation are missing between these two. its, others: times of their first and last frames,
    ns since 1970; of the second one, which may not be read yet, only the first counts.

    0 if none, or if that is not known: after the highest number, it begins with the lowest again; they are of different
    places at the same time; or what is said to be missing would not find room in the pause between them.
    """
    known = _numbers(before)
    for name, digits in _numbers(after).items():
        low, high = int(known.get(name, digits)), int(digits)
        if high > low:
            gap = high - low - 1
            pause = others[0] - its[1]
            small = pause * _ROOM < gap * (its[1] - its[0])
            return gap if gap <= _FILES_MISSING and pause >= 0 and not small else 0
    return 0
