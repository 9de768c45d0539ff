"""What is in the outbox of a board, read from a copy of it on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

from mqqb import confirm, guids

import ordack
from ordack.boards.check import Check
from ordack.boards.deploy import CHECKOUT
from ordack.boards.repl import Board, BoardError, Progress, part_of
from ordack.config import classes

PIECE_BYTES = 8192  # that are read at once
SMALL_MESSAGE = 512  # bytes: with less room than that an outbox is full
CLOCK_SET = 1700000000  # s since 1970; an earlier time is no time (node.CLOCK_SET)
FILES = """
import os
try:
    print([(f[0], os.stat({0!r} + '/' + f[0])[6]) for f in os.ilistdir({0!r})])
except OSError:
    print(None)
"""


def fetch_outbox(board: Board, path: str, found: list[tuple[str, int]], to: Path, progress: Progress) -> None:
    """Copy the files of an outbox off a board, as they are. They get their names when all are here: a part of an outbox
    would read as a whole one with fewer messages. Raises BoardError, NoBoard.
    """
    total, done = sum(size for _, size in found), 0
    with taken(to):
        for name, size in found:
            data = board.read(f"{path}/{name}", part_of(progress, "the outbox", done, total))
            (to / f"{name}.part").write_bytes(data)
            done += size
        for name, _ in found:
            (to / f"{name}.part").rename(to / name)


@contextmanager
def taken(to: Path) -> Iterator[None]:
    """Raises BoardError where the folder does not take the copy that is made of an outbox."""
    try:
        yield
    except OSError as error:
        raise BoardError(f"{to} has not got the whole outbox: {error.strerror or error}: copy it elsewhere") from None


def node_modules() -> tuple[Any, Any]:
    """The modules log and replay of ordack.node, of the checkout. ImportError: this ordack has none."""
    if (folder := str(CHECKOUT / "firmware" / "ordack")) not in ordack.__path__:
        ordack.__path__.append(folder)
    from ordack.node import log, replay

    return log, replay


def _full(limits: Mapping[str, int], size: int) -> str:
    """Why an outbox takes nothing more; "" if it does. limits: as in read_outbox. size: bytes."""
    for name, text in (("capacity", "of its capacity"), ("flash", "that the flash has for it")):
        if name in limits and size + SMALL_MESSAGE > limits[name]:
            return f"full, {size} bytes {text}, {limits[name]}, are used"
    return ""


def read_outbox(
    copy: str,
    name: str,
    now: float,
    *,
    clock_is_set: bool = True,
    reached: Check | None = None,
    limits: Mapping[str, int] = {},
) -> Iterator[Check]:
    """Say what is in a copy of an outbox. now: s since 1970. limits: capacity and flash (bytes that it can have), as
    far as they are known."""
    try:
        log, replay = node_modules()
    except ImportError:
        yield Check("outbox", "warning", "not looked at: this ordack has no node to read it with", "use a checkout")
        return
    files = log.Files(copy)
    try:
        found = replay.recover(log.Log(files, 0, 0, PIECE_BYTES, None))
    except (log.OutboxError, OSError) as error:
        yield Check("outbox", "bad", f"{name}: {error}", "`ordack board rescue` copies it, before anything is deleted")
        return
    finally:
        files.close()
    yield _identity(found, log.AHEAD)
    if found.damage:
        more = f", and {len(found.damage) - 1} more" if found.damage[1:] else ""
        yield Check(
            "damage",
            "warning",
            f"{found.damage[0]}{more}",
            "`ordack board rescue` copies the outbox, and lists what is in it; flash that does this again wears out",
            {"damage": found.damage},
        )
    queues = _by_queue(found.restored)
    kept = sum(map(len, queues.values()))
    emptied = takewhile(lambda segment: not segment.handles, found.segments[:-1])  # the next start removes them
    used = sum(segment.bytes() for segment in found.segments) - sum(segment.bytes() for segment in emptied)
    untaken = sum(arrival.record[confirm.STATE] == log.RECEIVED for arrival in found.arrivals)
    full = _full(limits, used)
    yield Check(
        "outbox",
        "bad" if full else "ok",
        f"{name}: {kept} messages" + (f"; {full}" if full else ""),
        "send() raises OutboxFull until some of them are gone: see below what they wait for" if full else "",
        {"messages": kept, "bytes": used, "full": bool(full)},
    )
    if untaken:
        yield Check(
            "inbox",
            "ok",
            f"{untaken} received and not handled yet",
            "does main.py ask for them?",
            {"messages": untaken},
        )
    before = {queue.name: queue.guid for queue in found.queues}
    for queue, processes in queues.items():
        yield from _queue(queue, processes, now, clock_is_set, reached, _other(reached, before[queue]))


def _by_queue(restored: Iterable[Any]) -> dict[str, list[confirm.Confirmation]]:
    """The confirmation processes of the messages of an outbox."""
    settings = confirm.Settings()
    queues: dict[str, list[confirm.Confirmation]] = {}
    for message in restored:
        process = confirm.Confirmation(message.handle.record, settings)
        if message.sent and process.state == confirm.Q:
            process.sent()  # the log says of a whole start whether it may have sent
        queues.setdefault(message.queue.name, []).append(process)
    return queues


def _queue(
    queue: str,
    all_of_it: list[confirm.Confirmation],
    now: float,
    clock_is_set: bool,
    reached: Check | None,
    other: str,
) -> Iterator[Check]:
    """What is there for one queue: waiting, not known to be received, dead-lettered. other: as from `_other`."""
    waiting = [process for process in all_of_it if process.state in (confirm.Q, confirm.S)]
    dead = [process for process in all_of_it if process.state == confirm.X]
    if waiting:
        yield _waiting(queue, waiting, now, clock_is_set, reached, other)
    unread = sum(process.state == confirm.O for process in all_of_it)
    if unread:
        yield Check(
            "unread",
            "ok",
            f"{queue}: {unread} stored at the destination, not known to be received",
            "",
            {"queue": queue, "messages": unread},
        )
    if dead:
        numbers = sorted({process.record[confirm.CLASS] for process in dead})
        yield Check(
            "dead letters",
            "warning",
            f"{queue}: {len(dead)}: {', or '.join(classes.words(number, queue) for number in numbers)}",
            "node.dead_letters() lists them, node.take() removes one",
            {"queue": queue, "messages": len(dead), "classes": list(map(classes.label, numbers))},
        )


def _other(reached: Check | None, before: bytes) -> str:
    """The GUID of the queue manager that was reached, if another one has answered before: as the board has it in its
    log, where zeros are none."""
    guid = "" if reached is None else str(reached.values.get("guid", ""))
    return guid if guid and before.strip(b"\0") and not guids.guid_bytes(guid).startswith(before) else ""


def _identity(found: Any, ahead: str) -> Check:
    """Who the board is to others; the name is for people."""
    guid = guids.guid_text(found.guid)
    values = {"guid": guid, "name": found.name, "ahead": found.ahead}
    text = f"{found.name}, GUID {guid}" if found.name else f"GUID {guid}"
    if found.ahead:
        return Check(
            "identity",
            "warning",
            f"{text}: {ahead}",
            "let nothing else send under this GUID; when all that "
            "waits is delivered or given up, erase the outbox: it begins anew under another GUID",
            values,
        )
    return Check("identity", "ok", text, "", values)


def _waiting(
    queue: str,
    waiting: list[confirm.Confirmation],
    now: float,
    clock_is_set: bool,
    reached: Check | None,
    other: str,
) -> Check:
    oldest = min(process.record[confirm.SENT_TIME] for process in waiting)
    deadlines = [deadline for deadline in map(confirm.Confirmation.next_deadline, waiting) if deadline is not None]
    never = sum(process.state == confirm.Q for process in waiting)
    text = f"{queue}: {len(waiting)} wait"
    values: dict[str, Any] = {"queue": queue, "messages": len(waiting), "never_sent": never}
    if oldest >= CLOCK_SET:
        values["oldest"] = round(now - oldest)
        text += f", the oldest {_span(now - oldest)} old"
    if deadlines and clock_is_set:
        values["next_deadline"] = round(min(deadlines) - now)
        left = min(deadlines) - now
        text += f", the first expires in {_span(left)}" if left > 0 else f", the first expired {_span(-left)} ago"
    if never:
        text += f"; {never} never sent"
    if other:
        advice = f"they are for the queue manager before, not for {other}: bring that one back, or see accept= of Node"
    elif reached is not None and reached.verdict == "ok":
        advice = "the queue manager answers: let the board run; if they stay, does the queue exist there, is it full?"
    elif reached is not None:
        advice = "they go when the queue manager can be reached"
    else:
        advice = "look whether it can be reached: --queue-manager HOST:PORT"
    if never < len(waiting):
        text += f"; {len(waiting) - never} sent, and no acknowledgement in the log"
    return Check("waiting", "warning", text, advice, values)


def _span(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if abs(seconds) >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
