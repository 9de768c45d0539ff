"""The status of a store for people: served or not, sessions, waiting messages and the reasons. It only reads.

It combines the report of a running `ordack serve` (`report`) with the store's content.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from mqqb import confirm, core, guids

from ordack.broker.sending import address
from ordack.config import classes
from ordack.config.config import Config, format_address, split_direct
from ordack.config.names import DEAD_LETTER, DEAD_XACT, HERE, counted, is_guid
from ordack.store import Store
from ordack.store.disk import Room, megabytes
from ordack.store.outgoing import OutgoingCount
from ordack.store.packet_fields import is_return_queue
from ordack.store.schema import POISON, PRIVATE

LARGE_MESSAGE = 5_000_000  # bytes; with less room, large messages are refused
PATIENCE_S = 60  # wait for a session before it counts as a problem
REFUSED_S = 3600  # age up to which a refused or lost message counts as a problem
LOST_S = 7 * 86400  # age up to which a lost message is told,
LATELY_S = 25 * 3600  # and up to which `ordack send` tells it: a daily job hears of its last message


def span(seconds: float) -> str:
    """Return a duration in days, h, min or s."""
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def why(count: OutgoingCount, running: Mapping[str, Any], served: bool, now: float) -> str:
    """Return a sentence why messages wait in an outgoing queue; "" if none does.

    running: the queue manager's report on this queue, or empty. now: seconds since 1970.
    """
    if not count.messages:
        return ""
    if count.oldest_sent is None:
        return "arrived; kept until it is known that an application has received it"
    waiting = f"waiting {span(now - count.oldest_sent)}"
    if count.on_hold:
        return f"{waiting}: on hold, `ordack queue resume` lets it go on"
    if not served:
        return f"{waiting}: no queue manager runs on this store, start `ordack serve`"
    connection = running.get("connection")
    where = _where(count.format_name, connection)
    if running.get("state") == "Connected":
        resent = running["resend_count"]
        return f"{waiting} for {where}: connected, " + (
            f"but not acknowledged as stored after {counted(resent, 'repetition')}; see the log there"
            if resent
            else "being sent, or not acknowledged yet"
        )
    if not connection:
        return f"{waiting} for {where}: it is not connected; if it never connects, name its address in [next-hops]"
    if "serial" in connection:
        return f"{waiting} for {where}: nothing answers on {connection['serial']}"
    if connection["tries"]:
        left = connection["next_try"] - now
        tries = "1 try" if connection["tries"] == 1 else f"{connection['tries']} tries"
        return f"{waiting} for {where}: {connection['reason']} ({tries}, next in {span(left)})"
    return f"{waiting} for {where}: connecting"


def _where(name: str, connection: Mapping[str, Any] | None) -> str:
    if connection:
        if "serial" in connection:
            return f"the board {connection['host']}"
        return format_address(connection["host"], connection["port"])
    direct = split_direct(name)
    return direct[0] if direct else name.partition("=")[2].partition("\\")[0]


def outgoing(store: Store, shown: Mapping[str, Any] | None, now: float) -> list[dict[str, Any]]:
    """Return the outgoing queues: content, the queue manager's report, and `why` their messages wait."""
    running = {queue["format_name"]: queue for queue in (shown or {}).get("outgoing", ())}
    names = store.peer_names()
    found = []
    for count in store.outgoing.counts():
        if count.format_name.startswith(HERE.lower()):
            continue  # messages to a local queue never wait
        told = running.get(count.format_name, {"state": "OnHold" if count.on_hold else ""})
        found.append(
            {
                **count._asdict(),
                **told,
                "returns": is_return_queue(count.format_name),
                "peer_name": names.of(count.format_name),
                "why": names.added(why(count, told, shown is not None, now)),
            }
        )
    return found


def incoming(store: Store) -> list[dict[str, Any]]:
    """Return the progress of incoming streams (B-081), and their refusals since the last accepted message."""
    names = store.peer_names()
    return [
        {
            "source": (source := guids.guid_text(stream.source)),
            "peer_name": names.of(source),
            "destination": stream.destination,
            "sequence_id": stream.record[core.INCOMING_TIME_STAMP] << 32 | stream.record[core.INCOMING_ORDINAL],
            "sequence_number": stream.record[core.INCOMING_NUMBER],
            "reject_count": stream.record[core.INCOMING_REJECT_COUNT],
            "last_access": stream.last_access,
        }
        for stream in store.memory.incoming()
    ]


def glance(store: Store, silence: str = "", shown: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the store's status, ready for JSON; see `_problems`. shown: a report of the queue manager newer than the
    store's."""
    now = time.time()
    shown = store.status() if shown is None else shown
    receiving, names = store.messages.receiving(), store.peer_names()
    queues: list[dict[str, Any]] = [
        {key: getattr(queue, key) for key in ("name", "transactional", "messages", "bytes", "quota")}
        | {"system": queue.kind != PRIVATE, "receiving": receiving[queue.identifier]}
        for queue in store.queues.all()
        if queue.kind == PRIVATE or queue.messages
    ]
    waiting = outgoing(store, shown, now)
    sessions = (shown or {}).get("sessions", [])
    connected = {session.get("peer_name") for session in sessions}
    quota = (shown or {}).get("quota")
    room = store.room(Config.kept(store.names()).quota if quota is None else quota)
    lost = list(_lost(store, now, LOST_S))
    return {
        "store": str(store.folder),
        "guid": guids.guid_text(store.guid),
        "served": shown is not None,
        **{key: shown and shown.get(key) for key in ("since", "process", "listening")},
        "queues": queues,
        **{key: (shown or {}).get(key, {}) for key in ("refused", "refused_at", "refused_last")},
        "sessions": sessions,
        "offline": [name for name in names.known() if name not in connected],
        "serial": (shown or {}).get("serial", []),
        "outgoing": waiting,
        "incoming": incoming(store),
        "lost": [text for _, text in lost],
        "room": room.bytes,
        "problems": [
            *_problems(store, shown, silence, room, queues, waiting, now),
            *(text for last, text in lost if now - last < REFUSED_S),
        ],
    }


def lost_lately(store: Store, destination: str) -> list[str]:
    """Return a sentence for each reason why messages to this destination got lost lately. Raises BadName."""
    return [text for _, text in _lost(store, time.time(), LATELY_S, address(store, destination).lower())]


def _lost(store: Store, now: float, age: int, destination: str = "") -> Iterator[tuple[int, str]]:
    """Yield the latest time of lost messages, and a sentence, by destination and class. Messages that arrived, or that
    an operator has removed, are not lost. age: at most, in seconds. destination: "" for all."""
    names = store.peer_names()
    for name, word, count, first, last, message_id in store.memory.lost(int(now) - age, destination):
        number = int.from_bytes(word, sys.byteorder)
        if number == confirm.NACK_RECEIVE_TIMEOUT_AT_SENDER or confirm.NACK_DELETED != number < confirm.NACK_Q_DELETED:
            when = " to ".join(dict.fromkeys((span(now - first), span(now - last))))
            text = f"{counted(count, 'message')} to {names.added(name)} got lost {when} ago"
            yield last, f"{text}: {classes.words(number, name)}; `ordack message state {message_id}` tells more"


def _problems(
    store: Store,
    shown: Mapping[str, Any] | None,
    silence: str,
    room: Room,
    queues: Sequence[Mapping[str, Any]],
    waiting: Iterable[Mapping[str, Any]],
    now: float,
) -> Iterator[str]:
    """Yield the problems that `ordack status`, /healthz and the web page show; none: all is well. silence: why the
    running `serve` does not work."""
    if shown is None:
        yield (
            "no queue manager runs on this store, so nothing comes in and nothing goes out; start "
            f"`ordack serve --store {shlex.quote(str(store.folder))}`"
        )
    elif silence:
        yield f"nothing moves: process {shown.get('process')} has the store, and {silence}"
    if shown and shown.get("failure"):
        yield f"the store refuses changes: {shown['failure']}"
    if room.bytes < LARGE_MESSAGE:
        yield store.why_full(room)
    if pinned := store.why_pinned():
        yield pinned
    for queue in queues:
        if is_full(queue):
            yield f"the queue {queue['name']} is full: {queue['bytes']} of {queue['quota']} bytes"
        if is_kept(queue["name"]) and queue["messages"]:
            kind = "poison message" if queue["name"].endswith(POISON) else "dead letter"
            name = shlex.quote(queue["name"])
            yield (
                f"{counted(queue['messages'], kind)} in {queue['name']}: `ordack receive {name} --peek` shows why, "
                f"`ordack message move {name} --back --all` resends them, `ordack message purge {name}` deletes them"
            )
    yield from (f"{named(queue)}: {queue['why']}" for queue in waiting if shown and _is_stuck(queue, now))
    names = store.peer_names()
    yield from (shown or {}).get("disputes", ())
    for stream in (shown or {}).get("refusing", ()):
        yield (
            f"{names.added(stream['source'])} to {stream['destination']}: all messages were refused for "
            f"{span(now - stream['since'])}, because none was the next one of the stream; if the source was restored "
            f"from an older copy, let it begin anew: `ordack store reset-stream {stream['source']} "
            f"{shlex.quote(stream['destination'])}`"
        )
    for reason, at in (shown or {}).get("refused_at", {}).items():
        if reason.startswith("0x") and now - at < REFUSED_S:
            said = classes.words(int(reason.split()[0], 16))
            yield f"a message was refused {span(now - at)} ago: {said}; the log of `ordack serve` names its sender"


def is_kept(queue: str) -> bool:
    """Is the queue for dead letters or poison messages?"""
    return queue in (DEAD_LETTER, DEAD_XACT) or queue.endswith(POISON)


def is_full(queue: Mapping[str, Any]) -> bool:
    """Has the queue reached its quota?"""
    return queue["quota"] is not None and queue["bytes"] >= queue["quota"]


def named(queue: Mapping[str, Any]) -> str:
    """Return the name of an outgoing queue for people: press-7/commands, or its format name with the peer's name."""
    name: str = queue["format_name"]
    host, there = split_direct(name) or ("", "")
    if is_guid(host) and queue.get("peer_name"):
        return f"{queue['peer_name']}/{there}"
    return f"{name} ({queue['peer_name']})" if queue.get("peer_name") else name


def _is_stuck(queue: Mapping[str, Any], now: float) -> bool:
    if queue["oldest_sent"] is None or queue["returns"]:  # an acknowledgement may wait for a sleeping peer
        return False
    connection = queue.get("connection")
    return bool(
        queue["on_hold"]
        or not connection
        or connection.get("tries")
        or queue.get("resend_count")
        or (queue["state"] != "Connected" and ("serial" in connection or now - queue["oldest_sent"] > PATIENCE_S))
    )


def served_text(told: Mapping[str, Any]) -> str:
    """Return whether, since when and where a store is served."""
    if not told["served"]:
        return f"{told['store']}: not served; room for {megabytes(told['room'])}"
    text = f"{told['store']}: served"
    if told["since"]:
        text += datetime.fromtimestamp(told["since"], UTC).strftime(" since %Y-%m-%d %H:%M:%S UTC")
    if told["listening"]:
        text += f" by process {told['process']}, listening on {told['listening']}"
    return f"{text}; room for {megabytes(told['room'])}"


def refused_text(told: Mapping[str, Any]) -> str:
    """Return a summary of refusals since the start, and when and for whom each reason last occurred; "" if none."""
    now, at, last = time.time(), told["refused_at"], told["refused_last"]
    return "; ".join(
        f"{counted(sum(by.values()), what[:-1])} ("
        + ", ".join(f"{why}: {n}, last {span(now - at[why])} ago {last.get(why, '')}".rstrip() for why, n in by.items())
        + ")"
        for what, by in told["refused"].items()
        if by
    )


def of_message(
    store: Store, message_id: int, conclusion: confirm.Conclusion | None, now: float | None = None
) -> dict[str, Any] | None:
    """Return the state of a transactional message sent here from its conclusion (Client.state), ready for JSON; `why`
    is a sentence. None: unknown."""
    now = time.time() if now is None else now
    if conclusion is None:
        return None
    number = conclusion.message_class
    said = conclusion.answer + (", in doubt: it may have been received" if conclusion.in_doubt else "")
    told: dict[str, Any] = {
        "message_id": message_id,
        "state": conclusion.answer,
        "in_doubt": conclusion.in_doubt,
        "deadline": conclusion.deadline,
        "final": conclusion.is_final,
        "class": number,
        "class_name": classes.name(number) if number else None,
        "why": f"{said}: {classes.words(number, store.memory.missed(message_id))}" if number else said,
    }
    waiting = store.outgoing.waiting_own(message_id) if conclusion.answer == confirm.WAITING else None
    if waiting:
        shown = store.status()
        [name] = [queue.format_name for queue in store.outgoing.queues() if queue.identifier == waiting.outgoing]
        [queue] = [queue for queue in outgoing(store, shown, now) if queue["format_name"] == name]
        told |= {"outgoing": name, "why": queue["why"], "connection": queue.get("connection")}
    return told
