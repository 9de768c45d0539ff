"""More messages than a node has memory for: a model of a board that sends, restarts, expires, gives up and asks."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mqqb import core
from node_board import LINE, Board
from ordack.node.storage import log

NAMES = [LINE.replace("line1", f"line{number}") for number in range(3)]
FOREVER = 0xFFFFFFFF


class Told(list[Any]):
    """What on_failed says goes to the model at once."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def append(self, told: Any) -> None:
        self.model.end(self.model.bodies[told[0]], "failed")


class Model:
    """What was accepted, in order; how each message has ended; which were transmitted, and the handles of this life."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.hold = self.dice.choice((2, 3, 4, 8))
        self.names = NAMES[: self.dice.randint(1, 3)]
        self.accepted: dict[str, list[bytes]] = {name: [] for name in self.names}
        self.seen: dict[str, list[bytes]] = {name: [] for name in self.names}
        self.ended: dict[bytes, str] = {}
        self.bodies: dict[int, bytes] = {}
        self.handles: dict[bytes, Any] = {}
        capacity, segment_size = self.dice.choice((9000, 40000)), self.dice.choice((600, 1500, 5000))
        self.board = Board(hold=self.hold, segment_size=segment_size, capacity=capacity)
        self.board._told = Told(self)

    def queue(self, name: str) -> Any:
        return self.board.node.queue(name)

    def end(self, body: bytes, how: str) -> None:
        assert body not in self.ended, "it ends twice"
        self.ended[body] = how

    def put(self, name: str) -> None:
        ttrq = self.dice.choice((FOREVER, FOREVER, FOREVER, 5, 50))
        for _ in range(self.dice.randint(1, 5)):
            body = b"%d" % len(self.bodies)
            size = self.dice.choice((0, 30, 200))
            try:
                message = self.queue(name).put(bytes(size), label=body.decode(), ttrq=ttrq)
            except log.OutboxFull:
                continue
            assert message.message_id not in self.bodies, "a MessageID is given twice"
            self.accepted[name].append(body)
            self.bodies[message.message_id] = body
            self.handles[body] = message

    def send(self, name: str, everything: bool = False) -> None:
        """What may go out does, and the destination has the first of it, or all."""
        self.board.queue = self.queue(name)
        packets = self.board.transmit()
        order = self.accepted[name]
        for packet in packets:
            body = packet.properties.label.encode()
            assert self.bodies[packet.user.fields[core.USER_MESSAGE_ID]] == body
            assert body not in self.ended, "it is sent after its end"
            if body not in self.seen[name]:
                assert not self.seen[name] or order.index(body) > order.index(self.seen[name][-1]), "out of order"
                self.seen[name].append(body)
        if packets and (everything or self.dice.random() < 0.8):
            count = len(packets) if everything else self.dice.randint(1, len(packets))
            last = packets[count - 1].transaction
            self.board.order_ack(last.tx_sequence_id, last.fields[core.TX_NUMBER])
            for packet in packets[:count]:
                if packet.transaction.tx_sequence_id == last.tx_sequence_id:
                    self.end(packet.properties.label.encode(), "stored")

    def restart(self, _: str) -> None:
        """What fails just then is told after it, and no other."""
        self.board.node.deadlines.check()
        self.board.node.commit_now()
        self.board.restart()
        self.handles.clear()

    def ask(self, _: str) -> None:
        if self.handles:
            self.check(self.dice.choice(list(self.handles)))

    def check(self, body: bytes) -> None:
        message = self.handles[body]
        try:
            settled = message.is_settled()
        except log.OutboxError:
            assert body in self.ended, "nobody knows, though it waits"
            return
        assert settled == (body in self.ended)
        assert message.is_stored() == (self.ended.get(body) == "stored")

    def find(self, _: str) -> None:
        if self.bodies:
            number = self.dice.choice(list(self.bodies))
            found = self.board.node.find(number)
            assert (found is None) == (self.bodies[number] in self.ended)
            if found is not None:
                assert self.board.node.read(found).properties.label.encode() == self.bodies[number]

    def give_up(self, _: str) -> None:
        waiting = [body for body in self.handles if body not in self.ended]
        if waiting:
            body = self.dice.choice(waiting)
            self.board.node.delete(self.handles[body])
            self.board.node.notices.deliver()
            assert self.ended[body] == "failed"

    def later(self, _: str) -> None:
        self.board.time += self.dice.choice((1, 10, 100))

    def work(self, _: str) -> None:
        self.board.node.deadlines.check()
        self.board.node.backlog.refill()

    def step(self) -> None:
        ways = [self.put] * 5 + [self.send] * 4 + [self.work] * 4 + [self.ask] * 2
        self.dice.choice([*ways, self.restart, self.restart, self.find, self.give_up, self.later])(
            self.dice.choice(self.names)
        )
        self.board.node.notices.deliver()
        waiting = sum(body not in self.ended for order in self.accepted.values() for body in order)
        assert self.board.node.waiting == waiting
        held = sum(len(self.queue(name).stream.table) for name in self.names)
        assert held <= len(self.names) * (self.hold + 2), "memory"
        for queue in self.board.node._queues:
            assert queue.stream.rolls == (not queue.logged.deferred), "a sequence ends only when nothing of it waits"


@pytest.mark.rule("A-08", "B-093", "B-096", "B-317", "B-318", "C-29", "C-33")
@pytest.mark.parametrize("jumps", [False, True])
@given(seed=st.integers(0, 2**32 - 1))
@example(seed=59)  # a look for what has ended went on behind all that was left
@settings(max_examples=30)
def test_each_message_ends_once_in_order_and_is_reported(jumps: bool, seed: int) -> None:
    """jumps: MessageIDs go on at a distance with each start, as they do outside of tests."""
    dice = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "jump", dice.randbytes if jumps else bytes)
        model = Model(seed)
        for _ in range(dice.randint(40, 160)):
            model.step()
        while model.board.node.waiting:
            model.work("")
            for name in model.names:
                model.send(name, everything=True)
            model.board.node.notices.deliver()
        for body in model.handles:
            model.check(body)
        assert model.board.node.outbox.live == 0
        assert sorted(model.ended) == sorted(body for order in model.accepted.values() for body in order)
