"""Messages that were put aside, as the web page of `serve` shows them: dead letters and poison messages, a page at a
time; and how they are moved back. Moving is asked of the queue manager as applications ask it, over the socket in the
store's folder: one message, one question, so that it never works on this for long; each is durable when it is answered.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from ordack.api import remote
from ordack.broker import service
from ordack.broker.commits import Commit, Request
from ordack.broker.message import Message
from ordack.broker.orders import Order
from ordack.broker.peer_names import PeerNames
from ordack.broker.sending import open_queue
from ordack.broker.status import is_kept
from ordack.config import classes
from ordack.store import Store, StoreError
from ordack.store.messages import FIRST, RECEIVE_BYTES
from ordack.store.queues import Queue
from ordack.text import legible

ROWS_MAX = 50  # that are shown, or moved, with one request
TEXT_MAX = 300  # characters of a body that are shown
HEX_MAX = 64  # bytes of one that is no text
MOVE_S = 6.0  # that one request may take; what is left then stays


class Wanted(NamedTuple):
    """What is to be moved: messages of this queue with these lookup ids, to this destination, or back if None."""

    queue: str
    keys: tuple[int, ...]
    destination: str | None
    in_doubt: bool


def _queue(store: Store, name: str) -> Queue:
    """The queue of that name, if messages are put aside in it. Raises NoSuchQueue, ValueError, StoreError."""
    found = open_queue(store, name)
    if not is_kept(found.name):
        raise ValueError(f"{found.name} holds no dead letters or poison messages: the page shows no others")
    return found


def page(store: Store, query: str, now: int) -> dict[str, Any]:
    """Up to ROWS_MAX messages, ready for JSON. query: `queue=NAME`, and `after=RANK.LOOKUPID` for those behind that
    place. now: seconds since 1970. next: the place for the following page, None if there is none. Raises NoSuchQueue,
    ValueError, StoreError."""
    given = parse_qs(query, keep_blank_values=True, strict_parsing=True, max_num_fields=2, errors="strict")
    if not given.keys() <= {"queue", "after"} or any(len(values) > 1 for values in given.values()):
        raise ValueError("write queue=NAME, and after=PLACE for those behind a place, each once")
    queue = _queue(store, given.get("queue", [""])[0])
    after = _place(given["after"][0]) if "after" in given else FIRST
    found = store.messages.peek(queue.identifier, ROWS_MAX + 1, after, now)
    rows = found[:ROWS_MAX]
    is_cut = len(found) > ROWS_MAX or sum(len(stored.packet) for stored in found) >= RECEIVE_BYTES
    names = PeerNames.kept(store.names())
    return {
        "queue": queue.name,
        "messages": queue.messages,
        "rows": [_row(Message(stored), names) for stored in rows],
        "next": f"{rows[-1].rank}.{rows[-1].lookup_id}" if is_cut else None,
    }


def _place(text: str) -> tuple[int, int]:
    rank, _, lookup_id = text.partition(".")
    if not (rank.isascii() and rank.isdigit() and lookup_id.isascii() and lookup_id.isdigit()) or len(text) > 20:
        raise ValueError("a place is what `next` of the page before says")
    return int(rank), int(lookup_id)


def _row(message: Message, names: PeerNames) -> dict[str, Any]:
    body = message.body
    text = _text(body)
    return {
        "key": message.lookup_id,
        "message_key": message.message_key,
        "label": message.label,
        "class": message.message_class,
        "class_name": classes.name(message.message_class),
        "words": classes.words(message.message_class, message.destination) if message.message_class else "",
        "in_doubt": message.in_doubt,
        "destination": message.destination,
        "destination_name": names.of(message.destination),
        "source": message.source,
        "source_name": names.of(message.source),
        "sent": message.sent_time,
        "arrived": message.arrived,
        "size": len(body),
        "text": text,
        "hex": None if text is not None else body[:HEX_MAX].hex(" "),
    }


def _text(body: bytes) -> str | None:
    """The beginning of a body, if it is text that can be shown."""
    begin = body[: 4 * TEXT_MAX]
    try:
        text = begin.decode()
    except UnicodeDecodeError as error:
        if error.start < len(begin) - 3 or len(begin) == len(body):
            return None
        text = begin[: error.start].decode()
    text = legible(text[:TEXT_MAX])
    return text if all(sign.isprintable() or sign in "\r\n\t" for sign in text) else None


def wanted_in(body: bytes) -> Wanted:
    """What a request asks to move. Raises ValueError that says what is wrong with it."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("the request is no JSON") from None
    if not isinstance(given, dict) or not given.keys() <= {"queue", "keys", "destination", "in_doubt"}:
        raise ValueError("write an object with queue, keys, and if they are wanted destination and in_doubt")
    queue, keys, destination = given.get("queue"), given.get("keys"), given.get("destination")
    if not isinstance(queue, str):
        raise ValueError("queue: write the name of the queue that they are in")
    if not isinstance(keys, list) or not 1 <= len(keys) <= ROWS_MAX:
        raise ValueError(f"keys: write a list of 1 to {ROWS_MAX} lookup ids")
    if not all(type(key) is int and 0 <= key < 1 << 62 for key in keys):
        raise ValueError("keys: a lookup id is a whole number, as `key` of the messages shows it")
    if destination is not None and not (isinstance(destination, str) and 0 < len(destination) <= service.NAME_MAX):
        raise ValueError("destination: write a queue's name, or null for where each was sent")
    if not isinstance(given.get("in_doubt", False), bool):
        raise ValueError("in_doubt: write true or false")
    return Wanted(queue, tuple(dict.fromkeys(keys)), destination, given.get("in_doubt", False))


def move(store: Store, wanted: Wanted) -> dict[str, Any]:
    """Have the queue manager of this process move them, one after the other: `moved`, each with its destination and new
    message id, and `stayed`, each with the reason. Raises NoSuchQueue, ValueError, StoreError."""
    queue = _queue(store, wanted.queue)
    deadline = time.monotonic() + MOVE_S
    moved: list[dict[str, Any]] = []
    stayed: list[dict[str, Any]] = []
    with_queue_manager = _connected(store)
    try:
        for place, key in enumerate(wanted.keys):
            left = deadline - time.monotonic()
            if left <= 0:
                stayed += _left(wanted.keys[place:], "there was no time for it: try again")
                break
            order = Order("move", (queue.identifier, key, wanted.destination, wanted.in_doubt))
            question = service.commit_question(Request(b"", 1 + place, Commit(order=order)))
            try:
                _, done = with_queue_manager.ask(question, left + 1)
            except (StoreError, ValueError) as error:
                stayed += _left([key], str(error))
            except remote.Lost:
                stayed += _left([key], "no answer came: it may have been moved, or not; look again")
                stayed += _left(wanted.keys[place + 1 :], "the queue manager ended the connection")
                break
            else:
                if done is None:
                    stayed += _left([key], "it is not there any more, or somebody is receiving it")
                else:
                    moved.append({"key": key, "destination": done[0], "message_id": done[1]})
    finally:
        with_queue_manager.close()
    return {"queue": queue.name, "moved": moved, "stayed": stayed}


def _left(keys: Iterable[int], reason: str) -> list[dict[str, Any]]:
    return [{"key": key, "reason": reason} for key in keys]


def _connected(store: Store) -> remote.Connection:
    connected = service.connect(store.folder)
    if connected is None:
        raise StoreError("the queue manager takes no applications now; `ordack move` does it")
    try:
        return remote.Connection(connected, secrets.token_bytes(service.APPLICATION_SIZE))
    except (remote.Lost, StoreError) as error:
        connected.close()
        raise StoreError(f"the queue manager takes no applications now ({error}); `ordack move` does it") from None
