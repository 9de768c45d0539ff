"""Copies and lists the outbox of a board that cannot do so itself any more (`ordack board rescue`)."""

from __future__ import annotations

import base64
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mqqb import confirm, guids, headers, parse

from ordack.boards.outbox import FILES, PIECE_BYTES, fetch_outbox, node_modules, taken
from ordack.boards.repl import Board, BoardError, Progress


def make_folder(to: Path) -> None:
    """Make the folder that takes the copy. Raises BoardError if something is in it already, or it cannot be made."""
    try:
        to.mkdir(parents=True, exist_ok=True)
        if any(to.iterdir()):
            raise BoardError(f"{to} is not empty: name a new folder with --to")
    except OSError as error:
        raise BoardError(f"{to} cannot be made: {error.strerror}") from None


def copy_from_board(board: Board, folder: str, to: Path, progress: Progress) -> None:
    """Copy the outbox in `folder` off a board, as it is. Raises BoardError, NoBoard."""
    path = folder if folder.startswith("/") else board.info.root(folder)
    found = board.run(FILES.format(path))
    if not found:
        raise BoardError(f"there is no outbox in {path} on the board: name its folder with --outbox")
    fetch_outbox(board, path, found, to, progress)


def copy_of(folder: Path, to: Path) -> None:
    """Copy an outbox of this machine. Raises BoardError if there is none, or it cannot be copied."""
    files = sorted(folder.glob("*.log"))
    if not files:
        raise BoardError(f"there is no outbox in {folder}: it has no files like 00000001.log")
    with taken(to):
        for file in files:
            shutil.copy(file, to)


def listing(folder: Path) -> Iterator[dict[str, Any]]:
    """Each message in an outbox, then, without `message_id`, whose it is and what cannot be read. No file is changed.

    Raises BoardError if nothing of it can be read.
    """
    try:
        log, replay = node_modules()
    except ImportError:
        raise BoardError("this ordack has no node to read an outbox with: use a checkout") from None
    with tempfile.TemporaryDirectory() as copy:
        copy_of(folder, Path(copy))
        files = log.Files(copy)
        try:
            opened = log.Log(files, 0, 0, PIECE_BYTES, None)
            found = replay.recover(opened)
            for message in found.restored:
                process = confirm.Confirmation(message.handle.record, confirm.Settings())
                if message.sent and process.state == confirm.Q:
                    process.sent()  # the log says of a whole start whether it may have sent
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
