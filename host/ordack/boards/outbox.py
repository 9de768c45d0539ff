"""Copies the outbox of a board to this machine, and reports its content from the copy."""

from __future__ import annotations

import base64
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from mqqb import confirm, guids, headers, parse

import ordack
from ordack.boards.deploy import CHECKOUT
from ordack.boards.repl import Board, BoardError, Progress, part_of
from ordack.config import classes

PIECE_BYTES = 8192  # per read
SMALL_MESSAGE = 512  # bytes; an outbox with less room counts as full
CLOCK_SET = 1700000000  # s since 1970; earlier times are invalid (node.CLOCK_SET)
FILES = """
import os
try:
    print([(f[0], os.stat({0!r} + '/' + f[0])[6]) for f in os.ilistdir({0!r})])
except OSError:
    print(None)
"""


class Check(NamedTuple):
    """One line of a report. verdict: "ok", "warning" or "bad". advice: the next step, or empty."""

    name: str
    verdict: str
    text: str
    advice: str = ""
    values: dict[str, Any] = {}  # noqa: RUF012 - never changed

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {"check": self.name, "verdict": self.verdict, "found": self.text, "advice": self.advice, **self.values}


def fetch_outbox(board: Board, path: str, found: list[tuple[str, int]], to: Path, progress: Progress) -> None:
    """Copy the files of an outbox off a board unchanged. They get their names when all are here: a partial outbox would
    read as a whole one with fewer messages. Raises BoardError, NoBoard."""
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
    """Turn an OSError while copying an outbox to the folder into a BoardError."""
    try:
        yield
    except OSError as error:
        raise BoardError(
            f"the copy in {to} is incomplete: {error.strerror or error}; copy the outbox to another folder"
        ) from None


def node_modules() -> tuple[Any, Any]:
    """The modules log and replay of ordack.node, from the checkout. Raises ImportError without a checkout."""
    if (folder := str(CHECKOUT / "firmware" / "ordack")) not in ordack.__path__:
        ordack.__path__.append(folder)
    from ordack.node.storage import log, replay

    return log, replay


def read_outbox(
    copy: str, name: str, now: float, flash: int = 1 << 31, *, clock_is_set: bool = True, reached: Check | None = None
) -> Iterator[Check]:
    """Report the content of a copy of an outbox. now: s since 1970. flash: the outbox's size limit, in bytes."""
    try:
        log, replay = node_modules()
    except ImportError:
        yield Check("outbox", "warning", "not read: this installation lacks ordack.node", "run ordack from a checkout")
        return
    files = log.Files(copy)
    try:
        found = replay.recover(log.Log(files, 0, 0, PIECE_BYTES, None))
    except (log.OutboxError, OSError) as error:
        yield Check(
            "outbox", "bad", f"{name}: {error}", "copy it with `ordack board rescue` before you delete anything"
        )
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
            "`ordack board rescue` copies the outbox and lists its messages; repeated damage means worn flash",
            {"damage": found.damage},
        )
    queues = _by_queue(found.restored)
    kept = sum(map(len, queues.values()))
    emptied = takewhile(lambda segment: not segment.handles, found.segments[:-1])  # the next start removes them
    used = sum(segment.bytes() for segment in found.segments) - sum(segment.bytes() for segment in emptied)
    untaken = sum(arrival.record[confirm.STATE] == log.RECEIVED for arrival in found.arrivals)
    is_full = used + SMALL_MESSAGE > flash
    full = f"; full: {used} of {flash} bytes are used" if is_full else ""
    yield Check(
        "outbox",
        "bad" if full else "ok",
        f"{name}: {kept} messages{full}",
        "send() raises OutboxFull until messages leave or expire: the lines below say why they wait" if full else "",
        {"messages": kept, "bytes": used, "full": is_full},
    )
    if untaken:
        text, advice = f"{untaken} received, not handled yet", "let main.py take messages from the inbox"
        yield Check("inbox", "ok", text, advice, {"messages": untaken})
    before = {queue.name: queue.guid for queue in found.queues}
    for queue, processes in queues.items():
        yield from _queue(queue, processes, now, clock_is_set, reached, _other(reached, before[queue]))


def _process_of(message: Any) -> confirm.Confirmation:
    process = confirm.Confirmation(message.handle.record, confirm.Settings())
    if message.sent and process.state == confirm.Q:
        process.sent()  # the log of a whole start says whether it may have sent
    return process


def _by_queue(restored: Iterable[Any]) -> dict[str, list[confirm.Confirmation]]:
    """The confirmation processes of the messages of an outbox, by queue."""
    queues: dict[str, list[confirm.Confirmation]] = {}
    for message in restored:
        queues.setdefault(message.queue.name, []).append(_process_of(message))
    return queues


def _queue(
    queue: str, all_of_it: list[confirm.Confirmation], now: float, clock_is_set: bool, reached: Check | None, other: str
) -> Iterator[Check]:
    """Report the messages for one queue: waiting, not known to be received, dead-lettered. other: from `_other`."""
    waiting = [process for process in all_of_it if process.state in (confirm.Q, confirm.S)]
    dead = [process for process in all_of_it if process.state == confirm.X]
    if waiting:
        yield _waiting(queue, waiting, now, clock_is_set, reached, other)
    unread = sum(process.state == confirm.O for process in all_of_it)
    if unread:
        text = f"{queue}: {unread} stored at the destination, not received yet"
        yield Check("unread", "ok", text, "", {"queue": queue, "messages": unread})
    if dead:
        numbers = sorted({process.record[confirm.CLASS] for process in dead})
        text = f"{queue}: {len(dead)}: {', or '.join(classes.words(number, queue) for number in numbers)}"
        values = {"queue": queue, "messages": len(dead), "classes": list(map(classes.label, numbers))}
        yield Check("dead letters", "warning", text, "node.dead_letters() lists them, node.take() removes one", values)


def _other(reached: Check | None, before: bytes) -> str:
    """The GUID of the reached queue manager, if another one has answered before; else "". before: the other's GUID
    prefix in the board's log, zeros for none."""
    guid = "" if reached is None else str(reached.values.get("guid", ""))
    return guid if guid and before.strip(b"\0") and not guids.guid_bytes(guid).startswith(before) else ""


def _identity(found: Any, ahead: str) -> Check:
    """The board's GUID and name; the name is for people."""
    guid = guids.guid_text(found.guid)
    values = {"guid": guid, "name": found.name, "ahead": found.ahead}
    text = f"{found.name}, GUID {guid}" if found.name else f"GUID {guid}"
    if found.ahead:
        advice = (
            "let no other board use this GUID; once no message waits, erase the outbox, and the board gets a new GUID"
        )
        return Check("identity", "warning", f"{text}: {ahead}", advice, values)
    return Check("identity", "ok", text, "", values)


def _waiting(
    queue: str, waiting: list[confirm.Confirmation], now: float, clock_is_set: bool, reached: Check | None, other: str
) -> Check:
    oldest = min(process.record[confirm.SENT_TIME] for process in waiting)
    deadlines = [deadline for deadline in map(confirm.Confirmation.next_deadline, waiting) if deadline is not None]
    never = sum(process.state == confirm.Q for process in waiting)
    text = f"{queue}: {len(waiting)} pending"
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
        advice = f"the messages are for the previous queue manager, not for {other}: restore it, or set accept= of Node"
    elif reached is not None and reached.verdict == "ok":
        advice = (
            "the queue manager answers: let the board run; if messages stay, check that the queue exists and has room"
        )
    elif reached is not None:
        advice = "the messages leave when the queue manager is reachable"
    else:
        advice = "test the connection with --queue-manager HOST:PORT"
    if never < len(waiting):
        text += f"; {len(waiting) - never} sent, not acknowledged"
    return Check("waiting", "warning", text, advice, values)


def _span(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if abs(seconds) >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


# ---- outboxes of boards that can no longer send (`ordack board rescue`)


def make_folder(to: Path) -> None:
    """Make the folder for the copy. Raises BoardError if the folder is not empty or cannot be made."""
    try:
        to.mkdir(parents=True, exist_ok=True)
        if any(to.iterdir()):
            raise BoardError(f"{to} is not empty: name a new folder with --to")
    except OSError as error:
        raise BoardError(f"{to} cannot be created: {error.strerror}") from None


def copy_from_board(board: Board, folder: str, to: Path, progress: Progress) -> None:
    """Copy the outbox in `folder` off a board unchanged. Raises BoardError, NoBoard."""
    path = folder if folder.startswith("/") else board.info.root(folder)
    found = board.run(FILES.format(path))
    if not found:
        raise BoardError(f"there is no outbox in {path} on the board: name its folder with --outbox")
    fetch_outbox(board, path, found, to, progress)


def copy_of(folder: Path, to: Path) -> None:
    """Copy an outbox of this machine. Raises BoardError if it is missing or cannot be copied."""
    files = sorted(folder.glob("*.log"))
    if not files:
        raise BoardError(f"there is no outbox in {folder}: it has no files like 00000001.log")
    with taken(to):
        for file in files:
            shutil.copy(file, to)


def listing(folder: Path) -> Iterator[dict[str, Any]]:
    """Each message in an outbox; then, without `message_id`, the outbox's identity and unreadable records. Changes no
    file. Raises BoardError if nothing is readable."""
    try:
        log, replay = node_modules()
    except ImportError:
        raise BoardError(
            "this installation lacks ordack.node, which reads an outbox: run ordack from a checkout"
        ) from None
    with tempfile.TemporaryDirectory() as copy:
        copy_of(folder, Path(copy))
        files = log.Files(copy)
        try:
            opened = log.Log(files, 0, 0, PIECE_BYTES, None)
            found = replay.recover(opened)
            for message in found.restored:
                process = _process_of(message)
                said = process.conclusion()
                yield {
                    "message_id": message.handle.message_id,
                    "queue": message.queue.name,
                    "state": said.answer,
                    "class": said.message_class,
                    "in_doubt": said.in_doubt,
                    "sent": process.state != confirm.Q,
                    **_content(opened.load(message.handle)),
                }
            for arrival in sorted(found.arrivals, key=lambda one: one.message_id - found.next_arrival & 0xFFFFFFFF):
                if arrival.record[confirm.STATE] == log.RECEIVED:
                    yield {
                        "message_id": arrival.message_id,
                        "queue": arrival.source.name,
                        "state": "not handled",
                        "from": guids.guid_text(arrival.source.guid),
                        **_content(opened.load(arrival)),
                    }
            yield {
                "guid": guids.guid_text(found.guid),
                "name": found.name,
                "ahead": found.ahead,
                "damage": found.damage,
            }
        except (log.OutboxError, OSError) as error:
            raise BoardError(str(error)) from None
        finally:
            files.close()


def _content(packet: bytes) -> dict[str, Any]:
    message = parse.parse(bytes(packet))
    assert isinstance(message, headers.UserMessage)
    body = bytes(message.properties.body)
    try:
        text = {"body": body.decode()}
    except UnicodeDecodeError:
        text = {}
    return {
        "label": message.properties.label,
        "size": len(body),
        **text,
        "body_base64": base64.b64encode(body).decode(),
    }
