"""Whether files of a rotation are missing, judged by their names and by the times inside."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta

# How rotated files are numbered: tcpdump -C (a.pcap, a.pcap1; with -W from a.pcap0), dumpcap -b
# (a_00001_20261121210000.pcap), ordack (a.pcap, a-000002.pcap), and whoever ends the names with numbers. Dates are no
# such numbers, and what can be a time of day is none if the times inside say so.
_PACKED = r"(?:\.(?:gz|zst))?"
_ENDING = r"\.(?:p?cap|pcapng|dmp|dump)"
_OWN_NUMBERS = 2  # the forms before this one are counters, whatever the number
_NUMBERED = (
    re.compile(rf"(.+{_ENDING})(\d{{0,5}}){_PACKED}"),
    re.compile(rf"(.+_)(\d{{5}})_\d{{14}}(?:\.\w+)?{_PACKED}"),
    re.compile(rf"(.*?(?<!\d))(?<!\d{{4}}-\d\d-)(\d{{1,5}}|000\d{{3}})(?:{_ENDING})?{_PACKED}"),
)
_FILES_MISSING = 1000  # more are no gap, but other numbers
# What digits at the end of a name can be of a time, by how many they are: units in s, the largest first.
_CLOCKS = {2: ((3600,), (60,), (1,)), 4: ((3600, 60), (60, 1)), 6: ((3600, 60, 1),)}
_LATE = 120  # s; a file's first frame comes at the time in its name, or so much later
_ZONE = 900  # s; times in names are of some zone, and zones differ by quarters of an hour
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
    places at the same time; the numbers are times of day; or what is said to be missing would not find room in the
    pause between them.
    """
    known = _numbers(before)
    for name, digits in _numbers(after).items():
        low, high = int(known.get(name, digits)), int(digits)
        if high > low:
            gap = high - low - 1
            pause = others[0] - its[1]
            small = pause * _ROOM < gap * (its[1] - its[0])
            clock = name.startswith(f"{_OWN_NUMBERS} ") and _is_clock(name, known[name], its[0], digits, others[0])
            return gap if gap <= _FILES_MISSING and pause >= 0 and not small and not clock else 0
    return 0


def _is_clock(name: str, before: str, then: int, after: str, now: int) -> bool:
    """Whether these digits are times of day, because the times inside agree. then, now: of the first frames, ns."""
    if len(before) != len(after):
        return False
    moments = then // 10**9, now // 10**9
    dated = any(_has_date(name, moment) for moment in moments)
    for units in _CLOCKS.get(len(before), ()):
        said = [_seconds(digits, units) for digits in (before, after)]
        if None in said:
            continue
        late = [moment - (seconds or 0) for moment, seconds in zip(moments, said)]
        tolerance = max(_LATE, 2 * units[-1])
        agree = abs(late[1] - late[0]) <= tolerance
        if agree and (dated or (len(units) > 1 and all(moment % _ZONE <= tolerance for moment in late))):
            return True
    return False


def _seconds(digits: str, units: tuple[int, ...]) -> int | None:
    """None: that is no time."""
    parts = [int(digits[at : at + 2]) for at in range(0, len(digits), 2)]
    if any(part >= (24 if unit == 3600 else 60) for part, unit in zip(parts, units)):
        return None
    return sum(part * unit for part, unit in zip(parts, units))


def _has_date(name: str, moment: int) -> bool:
    """Whether the name has this day in it, in whatever zone."""
    digits = re.sub(r"\D", "", name)
    days = [datetime.fromtimestamp(moment, UTC) + timedelta(days) for days in (-1, 0, 1)]
    return any(day.strftime(form) in digits for day in days for form in ("%y%m%d", "%d%m%Y", "%m%d%Y"))
