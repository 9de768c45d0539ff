"""The requests of the web page that need its token: look into a queue, create or purge one, move a message back, pause
or resume an outgoing queue.

A request runs in a thread, as a `Client` of the store: the same code as the commands. The client reads on a connection
of its own and asks the queue manager over the socket of applications.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ordack.broker.message import Message
from ordack.client import Client
from ordack.config import classes
from ordack.config.names import PeerNames, counted
from ordack.store import StoreError
from ordack.store.look import StoreBeside
from ordack.store.messages import FIRST

PAGE_MESSAGES = 20
TEXT_CHARACTERS = 2000
HEX_BYTES = 512
TEXT_MAX = 1000  # characters of a value in a request
NUMBER_MAX = 1 << 62
RULES: dict[type, str] = {
    str: f"a text of 1 to {TEXT_MAX} characters", int: "a number that this page shows", bool: "true or false",
}  # fmt: skip


def run(folder: Path, body: bytes, address: str) -> dict[str, Any]:
    """Carry out one request: a JSON object with `action` and its values, as in ACTIONS. Returns the answer, ready for
    JSON. address: of the operator, for the log. Raises ValueError, StoreError and its subclasses."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("The request is not JSON: send an object with `action`.") from None
    action = given.get("action") if isinstance(given, dict) else None
    if not isinstance(action, str) or action not in ACTIONS:
        raise ValueError(f"The request names no action: send `action` as one of {', '.join(ACTIONS)}.")
    function, defaults = ACTIONS[action]
    values = {name: given.get(name, default) for name, default in defaults.items()}
    for name, value in values.items():
        least = defaults[name]
        if type(value) is not type(least) or not (
            0 < len(value) <= TEXT_MAX if isinstance(value, str) else least <= value < NUMBER_MAX
        ):
            raise ValueError(f"`{name}` of {action} is not valid: send {RULES[type(least)]}.")
    with Client(StoreBeside(folder)) as client:
        answer = function(client, **values)
        if done := answer.get("done"):
            client.access.note(values["queue"], f"{address} by HTTP: {done}")
            answer["done"] = client.store.peer_names().added(done)
        return answer


def _create(client: Client, queue: str, transactional: bool) -> dict[str, Any]:
    name = client.create_queue(queue, transactional).name
    return {"done": f"Created the {'transactional ' if transactional else ''}queue {name}."}


def _purge(client: Client, queue: str) -> dict[str, Any]:
    return {"done": f"Removed {counted(client.purge_queue(queue), 'message')} from {queue}."}


def _move(client: Client, queue: str, key: int, in_doubt: bool) -> dict[str, Any]:
    moved = client.order("move", client.queue(queue).identifier, key, None, in_doubt)
    if moved is None:
        raise StoreError(
            f"The message is not available in {queue}: it was removed, or an application receives it. Look into the "
            "queue again."
        )
    return {"done": f"Moved 1 message from {queue} to {moved[0]}, as message {moved[1]}."}


def _hold(client: Client, queue: str, hold: bool) -> dict[str, Any]:
    if not client.order("set_on_hold", queue, hold):
        raise StoreError(f"There is no outgoing queue {queue}: the name is wrong, or its last message was settled.")
    if not hold:
        client.order("request_resend", queue)
    waiting = sum(found.messages for found in client.store.outgoing.queues("format_name = ?", (queue,)))
    return {"done": f"{'Paused' if hold else 'Resumed'} the outgoing queue {queue} with {counted(waiting, 'message')}."}


def _look(client: Client, queue: str, rank: int, lookup_id: int) -> dict[str, Any]:
    """The messages behind a place, which `next` of the page before says."""
    opened, names = client.queue(queue), client.store.peer_names()
    found = opened.look((rank, lookup_id), PAGE_MESSAGES)
    end = (found[-1].rank, found[-1].lookup_id) if found else (rank, lookup_id)
    return {
        "queue": opened.name,
        "messages": [_shown(Message(stored), names) for stored in found],
        "next": end if found and opened.look(end, 1) else None,
    }


def _shown(message: Message, names: PeerNames) -> dict[str, Any]:
    """A message as `ordack receive --json` has it, with the beginning of its body as text, else in hexadecimal
    digits."""
    told, body = message.as_json(), message.body
    text = (told.pop("body") or "")[:TEXT_CHARACTERS]
    is_text = message.text() is not None and all(sign.isprintable() or sign in "\r\n\t" for sign in text)
    del told["body_base64"]
    return {
        **told,
        "source": names.of(message.source) or message.source,
        "destination": names.added(message.destination),
        "size": len(body),
        "is_text": is_text,
        "body": text if is_text else body[:HEX_BYTES].hex(" "),
        "is_cut": len(body) > (len(text.encode()) if is_text else HEX_BYTES),
        "why": classes.words(message.message_class, message.destination) if message.message_class else "",
    }


# Functions, and their values with defaults, which are also the least numbers. An empty text is refused.
ACTIONS: dict[str, tuple[Callable[..., dict[str, Any]], dict[str, Any]]] = {
    "look": (_look, {"queue": "", "rank": FIRST[0], "lookup_id": FIRST[1]}),
    "create": (_create, {"queue": "", "transactional": False}),
    "purge": (_purge, {"queue": ""}),
    "move": (_move, {"queue": "", "key": 0, "in_doubt": False}),
    "pause": (functools.partial(_hold, hold=True), {"queue": ""}),
    "resume": (functools.partial(_hold, hold=False), {"queue": ""}),
}
