"""Peers that do what [MS-MQQB] says to the letter, and no more, against the command and against a board's node.

They know an OrderAck and a FinalAck by every field that has a value in 2.2.4 and 2.2.5, and delete a message only where
3.1.5.5 to 3.1.5.7 say so. Nothing of mqqb is imported.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from firmware.ports import modules
from tests.support.command import INTERPRETERS, ROOT
from tests.support.foreign_peer import (
    DEADLINE_S,
    FINAL_ACK,
    LINE1,
    MESSAGE,
    NOWHERE,
    NULL,
    ORDER_ACK,
    SESSION_ACK,
    Hop,
    Line,
    Seen,
    Server,
    Tx,
    acknowledgement,
    message,
    numbered,
)

pytestmark = pytest.mark.slow

JN = 0x100  # UserHeader.Flags: keep the message until its FinalAck
NUMBER = 0x1F  # of the board's private queue
BOARD = """
import sys
from ordack.node import Node

folder, port, what, early = sys.argv[1:5]
node = Node(folder + "/outbox", connect=("127.0.0.1", int(port)))
if what == "send":
    message = node.queue("DIRECT=TCP:127.0.0.1\\\\private$\\\\q").put(b"21.5")
    assert node.wait(message.is_stored, 60000)
    node.close_now()
else:
    inbox = node.inbox("commands", 0x1F)
    node.inboxes.early_order_ack = int(early)
    while True:
        node.wait(lambda: len(inbox), 1000)
        if len(inbox):
            inbox.take(inbox.get())
"""


class Waiting(NamedTuple):
    """An entry of OutgoingMessageTable."""

    tx: Tx
    message_id: int
    sequence_number: int
    keeps: bool  # JN or JP


class LiteralSender:
    """Sends transactional messages on a line, and deletes them by the letter.

    table: OutgoingMessageTable; awaiting: AwaitingFinalACKTable; classes: of the FinalAcks that it knew as such;
    unknown: packets that it did not know. named: the number in the last OrderAck, known by its label alone.
    """

    def __init__(self, line: Line) -> None:
        self.line = line
        self.table: list[Waiting] = []
        self.awaiting: list[Waiting] = []
        self.classes: list[int] = []
        self.unknown: list[Seen] = []
        self.named = 0
        self._session_acked = 0

    def send(self, where: Where, *places: Tx, flags: int = 0) -> None:
        packets = [
            message(self.line.guid, where.destination, b"x", tx, user_flags=flags, address=where.address)
            for tx in places
        ]
        for packet, tx in zip(packets, places, strict=True):
            identifier = int.from_bytes(packet[56:60], "little")
            self.line.send(packet)
            self.table.append(Waiting(tx, identifier, self.line.sent, bool(flags)))

    def hear(self) -> None:
        """The next packet."""
        seen = self.line.read()
        if seen.kind == ORDER_ACK and seen.tx:
            self.named = seen.tx.number
        if seen.kind != SESSION_ACK and not self._acknowledges(seen):
            self.unknown.append(seen)
        elif seen.kind == ORDER_ACK:
            self._order_ack(seen)
        elif seen.kind == FINAL_ACK:
            self.classes.append(seen.message_class)
            self._final_ack(int.from_bytes(seen.body[32:36], "little"))
        if seen.header:
            self._session_acked = seen.header[0]  # 3.1.5.5.1: ReceivedSessionAck

    def hear_until(self, is_enough: Callable[[], object]) -> None:
        while not is_enough():
            self.hear()

    def _acknowledges(self, seen: Seen) -> bool:
        """Is it an OrderAck or a FinalAck by 3.1.5.1.1, with the fields of 2.2.4 and 2.2.5 (B-175, B-176)?"""
        by_name = seen.destination == "TCP:127.0.0.1\\PRIVATE$\\order_queue$" and seen.address == NULL
        by_guid = seen.destination == 4 and seen.address == self.line.guid
        is_final = seen.message_class != 0x00FF
        return (
            seen.flags == 0
            and (by_name or by_guid)
            and seen.user_flags == (0x00201C00 if by_name else 0x00200C00) + 0x20 * is_final
            and (seen.label, len(seen.body), seen.ack, seen.body_type) == ("QM Ordering Ack", 0x24, 0, 0)
            and (seen.message_class >= 0x4000 or not is_final)
        )

    def _order_ack(self, seen: Seen) -> None:
        """3.1.5.6: what has no session acknowledgement yet stays, until it is sent again."""
        tx = seen.tx
        assert tx
        gone = [e for e in self.table if e.tx.number <= tx.number and e.sequence_number <= self._session_acked]
        self.table = [entry for entry in self.table if entry not in gone]
        self.awaiting += [entry for entry in gone if entry.keeps]

    def _final_ack(self, message_id: int) -> None:
        """3.1.5.7: a message that asks for none stays (A-16)."""
        self.awaiting = [entry for entry in self.awaiting if entry.message_id != message_id]
        self.table = [entry for entry in self.table if entry.message_id != message_id or not entry.keeps]


class LiteralReceiver:
    """Takes transactional messages from a line in order, and acknowledges them when it is told to."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.last: Tx | None = None
        self._acked = 0  # recoverable messages that a SessionHeader has named

    def take(self) -> None:
        """The next message, which has to be the next of its stream (3.1.5.8.6)."""
        seen = self.line.until(MESSAGE)
        assert seen.tx
        assert (seen.message_class, seen.recoverable) == (0, True)
        assert seen.tx.previous == (self.last.number if self.last else 0) < seen.tx.number
        self.last = seen.tx

    def session_ack(self) -> None:
        count = self.line.recoverable_received - self._acked
        self.line.confirm(first=self._acked + 1, bits=(1 << count) - 1)
        self._acked += count

    def order_ack(self) -> None:
        assert self.last
        self.line.send(acknowledgement(self.line.guid, self.last._replace(previous=self.last.number - 1)))


# ---- those who receive ----------------------------------------------------------------------------


class Where(NamedTuple):
    """The queue of a message: a direct format name, or a number and the queue manager's GUID."""

    destination: str | int
    address: bytes = NULL


class Far(NamedTuple):
    """Who receives: a connection to it, its queue, and what takes the messages out of that."""

    line: Line
    where: Where
    take: Callable[[], object]


@contextlib.contextmanager
def board(interpreter: str, folder: Path, hop: Hop, what: str, early: int = 0) -> Iterator[subprocess.Popen[str]]:
    """A program with a node, which connects to the hop."""
    if not INTERPRETERS[interpreter].exists():
        pytest.skip(f"{interpreter} is missing; `make firmware` builds it")
    program = folder / "main.py"
    program.write_text(BOARD)
    process = subprocess.Popen(
        [INTERPRETERS[interpreter], program, folder, hop.option.rpartition(":")[2], what, str(early)],
        env={**os.environ, "MICROPYPATH": f".frozen:{modules.BOARD}", "PYTHONPATH": str(ROOT / "firmware")},
        stdout=subprocess.PIPE,
        stderr=sys.stderr,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()
            hop.listener.close()


@pytest.fixture(params=[0, 20], ids=["500 ms", "early"])
def early(request: pytest.FixtureRequest) -> int:
    """ms of quiet before an OrderAck goes out early. Else it does when its timer asks, and a SessionAck is as late."""
    return int(request.param)


@pytest.fixture(params=["host, direct", "python3, direct", "python3, private", "micropython, direct"])
def far(request: pytest.FixtureRequest, early: int, tmp_path: Path) -> Iterator[Far]:
    who, _, how = request.param.partition(", ")
    if who == "host":
        server = Server(tmp_path / "store", early=early)
        with server.connect() as line:
            yield Far(line, Where(LINE1), server.received)
        server.stop()
        return
    hop = Hop(0)
    with board(who, tmp_path, hop, "receive", early), hop.open() as line:
        direct = Where("TCP:127.0.0.1\\private$\\commands")
        yield Far(line, direct if how == "direct" else Where(NUMBER, line.server), lambda: None)


@pytest.mark.rule("B-175", "B-235", "B-236", "B-437", "B-438", "B-440", "B-441", "B-442", "B-443", "A-17", "A-36")
def test_first_order_ack_settles_lone_message_of_literal_sender(far: Far) -> None:
    sender = LiteralSender(far.line)
    sender.send(far.where, Tx(100, 1, 1, 0))
    sender.hear_until(lambda: sender.named)
    assert (sender.unknown, sender.table) == ([], [])


@pytest.mark.rule("B-175", "B-236", "B-437", "B-443")
def test_last_order_ack_settles_messages_of_literal_sender(far: Far) -> None:
    sender = LiteralSender(far.line)
    sender.send(far.where, *numbered(1, 60))
    sender.hear_until(lambda: sender.named == 60)
    assert (sender.unknown, sender.table) == ([], [])


@pytest.mark.rule("B-176", "B-437", "B-439", "B-440", "B-441", "B-442", "B-443")
def test_literal_sender_accepts_final_ack_of_rejected_message(early: int, tmp_path: Path) -> None:
    server = Server(tmp_path / "store", early=early)
    with server.connect() as line:
        sender = LiteralSender(line)
        sender.send(Where(NOWHERE), Tx(100, 1, 1, 0))
        sender.hear_until(lambda: sender.named)
        assert (sender.unknown, sender.table, sender.classes) == ([], [], [0x8000])
    server.stop()


@pytest.mark.rule("B-176", "B-237", "B-245", "B-437", "B-439", "B-440", "B-441", "B-442")
def test_literal_sender_accepts_final_ack_of_received_message(far: Far) -> None:
    sender = LiteralSender(far.line)
    sender.send(far.where, Tx(100, 1, 1, 0), flags=JN)
    if far.where.destination == LINE1:  # a board's program takes it at once
        sender.hear_until(lambda: sender.named)
        assert [entry.tx.number for entry in sender.awaiting] == [1]
    far.take()
    sender.hear_until(lambda: sender.classes or sender.unknown)
    assert (sender.unknown, sender.table, sender.awaiting, sender.classes) == ([], [], [], [0x4000])


# ---- those who send -------------------------------------------------------------------------------


@pytest.fixture(params=["SessionAck first", "OrderAck first"])
def acknowledge(request: pytest.FixtureRequest) -> Callable[[LiteralReceiver], None]:
    """Both acknowledgements of what has come, in this order."""
    both = (LiteralReceiver.session_ack, LiteralReceiver.order_ack)
    order = both if request.param == "SessionAck first" else both[::-1]

    def acknowledge(receiver: LiteralReceiver) -> None:
        for one in order:
            one(receiver)

    return acknowledge


@pytest.mark.rule("B-096", "B-236", "B-238", "A-17")
def test_host_message_settles_after_literal_receiver_acks(
    acknowledge: Callable[[LiteralReceiver], None], tmp_path: Path
) -> None:
    hop = Hop(0)
    server = Server(tmp_path / "store", "--next-hop", hop.option)
    hop.store = server.store
    hop.order(b"21.5")
    with hop.open() as line:
        receiver = LiteralReceiver(line)
        receiver.take()
        acknowledge(receiver)
        line.works()
        hop.order(b"21.6")  # the stream is drained: a new sequence begins
        receiver.last = None
        receiver.take()
    server.stop()
    hop.listener.close()


@pytest.mark.rule("B-236", "A-17")
@pytest.mark.parametrize("interpreter", ["python3", "micropython"])
def test_board_message_settles_after_literal_receiver_acks(
    interpreter: str, acknowledge: Callable[[LiteralReceiver], None], tmp_path: Path
) -> None:
    hop = Hop(0)
    with board(interpreter, tmp_path, hop, "send") as program, hop.open() as line:
        receiver = LiteralReceiver(line)
        receiver.take()
        acknowledge(receiver)
        assert program.wait(DEADLINE_S) == 0
