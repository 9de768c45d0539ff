"""The confirmation process on the board: tests/mp/test_node.py, and a node against a destination over TCP."""

from __future__ import annotations

import asyncio
from typing import Any

import power
import pytest
import test_node as boards
import test_node_callbacks
from mqqb import confirm, core, guids, headers
from ordack.node import Node, OutboxError, OutboxMessage
from ordack.node.storage import outbox

from tests.node.destination import ALARMS, LINE, Destination, until
from tests.support.confirm_rules import RULES

T0 = 1700000000


# What the cases show besides, on a board.
ALSO = {"5": ["B-313"], "7": ["B-314", "B-315"], "8": ["B-243", "B-394"], "12": ["B-242", "B-393"]}
OTHER_RULES = {
    "test_case_6_not_sent_when_the_link_comes_up": ["C-18", "C-21", "C-41", "B-403", "A-44"],
    "test_case_11_jn_is_in_the_packet": ["C-02", "B-400"],
    "test_case_14_dead_lettered_at_start_up": ["C-33", "C-84", "C-86", "A-44"],
    "test_what_is_held_is_not_sent_any_more_and_its_gap_is_bridged": ["C-22", "B-316", "B-318", "B-403", "A-34"],
    "test_what_is_held_can_still_be_confirmed": ["C-25", "C-27", "B-245"],
    "test_what_is_held_does_not_come_back_in_the_way_of_a_newer_sequence": ["C-22"],
    "test_a_full_quota_discards_the_copy_and_says_so": ["C-37", "B-397"],
    "test_a_dead_letter_stays_until_it_is_taken": ["B-391", "B-394", "C-34", "C-35", "C-85", "C-86"],
    "test_what_is_on_its_way_cannot_be_taken_and_what_has_ended_not_deleted": ["C-29", "B-371"],
    "test_a_final_ack_is_acknowledged_only_when_its_outcome_is_durable": ["B-098", "B-242", "B-243", "B-393"],
    "test_each_start_begins_a_sequence_and_the_older_one_goes_first": ["A-22", "B-079", "B-093"],
    "test_a_copy_that_is_put_back_is_told_by_what_its_destination_has": ["A-04", "B-426"],
    "test_what_an_old_copy_has_of_an_ended_sequence_ended_in_a_way_that_is_not_known": ["B-426", "C-84"],
    "test_what_an_old_copy_has_of_an_earlier_start_does_not_wait_for_ever": ["B-426", "B-093", "B-275"],
    "test_two_copies_never_use_the_same_numbers": ["B-020", "B-079", "A-22", "B-426"],
    "test_who_is_ahead_is_told_once_and_overtaken": ["A-04", "B-426", "B-056"],
    "test_a_sequence_that_is_used_up_is_followed_by_another": ["A-24"],
    "test_power_goes_at_every_change_of_the_disk": ["C-09", "C-33"],
}


@pytest.mark.parametrize(
    ("test", "arguments"),
    [
        pytest.param(*case[1:], id=case[0], marks=pytest.mark.rule(*RULES[number], *ALSO.get(number, [])))
        for case in boards.CASES
        for number in (case[0].split()[0],)
    ]
    + [
        pytest.param(
            test,
            (),
            id=test.__name__,
            marks=pytest.mark.rule(*OTHER_RULES[test.__name__]) if test.__name__ in OTHER_RULES else (),
        )
        for test in boards.OTHERS + test_node_callbacks.TESTS
    ],
)
def test_as_on_boards(test: Any, arguments: Any) -> None:
    test(*arguments)


@pytest.mark.rule("C-11", "C-12", "C-13", "C-40", "C-80", "C-81")
@pytest.mark.parametrize(("settings", "after"), [(None, 20), (confirm.Settings(xact_delay_receive_nack=3), 13)])
async def test_handle_shows_deadline_and_whether_state_is_final(settings: confirm.Settings | None, after: int) -> None:
    plant = await Plant(confirmation=settings).start()
    queue = plant.node.queue(LINE)
    plain, endless = await queue.send(b"0", ttbr=10), await queue.send(b"1", dead_letter=True)
    held = await queue.send(b"2", dead_letter=True, ttbr=10)
    assert [message.conclusion().deadline for message in (plain, endless, held)] == [None, None, T0 + after]
    assert not held.conclusion().is_final
    assert await held.stored()
    assert [message.conclusion().is_final for message in (plain, endless, held)] == [True, False, False]
    assert held.conclusion().deadline == T0 + after
    plant.destination.final_ack(plant.destination.queue[2], 0x4000)
    assert await held.received()
    assert held.conclusion().is_final
    await plant.stop()
    assert held.conclusion().deadline is None, "the settings went with the node"


async def test_a_board_that_does_not_know_the_time_says_no_deadline() -> None:
    plant = Plant()
    plant.time = 0
    await plant.start()
    message = await plant.node.queue(LINE).send(b"0", dead_letter=True, ttbr=10)
    assert message.conclusion().deadline is None
    await plant.stop()


# ---- over TCP -----------------------------------------------------------------------------------------


class Plant:
    """A destination, a node on a disk that survives it, and the clock that both have."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.time = T0
        self.disk = power.Disk()
        self.told: list[tuple[int, int]] = []
        self.seen: list[headers.UserMessage] = []
        self.destination = Destination(seen=self.seen.append)

    async def start(self) -> Plant:
        await self.destination.start()
        self.open()
        return self

    def open(self) -> None:
        self.node = Node(
            "",
            files=self.disk,
            connect=("127.0.0.1", self.destination.port),
            random=lambda: 0.99,
            clock=lambda: self.time,
            on_failed=lambda message: self.told.append((message.message_id, message.conclusion().message_class)),
            **self.options,
        )
        self.node.start()

    async def restart(self) -> None:
        """The power of the board goes and comes back."""
        left = self.disk.after_cut(power.KEEP_SYNCED, power.Dice(1))
        await self.node.close()
        self.disk = left
        self.open()

    async def stop(self) -> None:
        await self.node.close()
        await self.destination.stop()

    async def arrived(self, count: int) -> None:
        await until(lambda: len(self.destination.queue) == count)


@pytest.mark.rule("C-01", "C-04", "C-05", "B-237", "B-389")
async def test_three_answers() -> None:
    plant = await Plant().start()
    queue = plant.node.queue(LINE)
    plain, held, journaled = [
        await queue.send(body, **flags)
        for body, flags in ((b"0", {}), (b"1", {"dead_letter": True}), (b"2", {"journal": True}))
    ]
    assert plain.conclusion().answer == confirm.WAITING
    waiting = [asyncio.create_task(message.received()) for message in (held, journaled)]
    for message in (plain, held, journaled):
        assert await message.stored()
        assert message.conclusion().answer == confirm.STORED
    assert plant.node.waiting == 0
    with pytest.raises(ValueError, match="dead_letter or journal"):
        await plain.received()
    assert await plain.dead_lettered() == 0
    assert not any(task.done() for task in waiting)
    assert [message.transaction.flags for message in plant.seen if message.transaction] == [0x1C, 0x2C, 0x3C]
    assert [message.user.flags & (core.USER_JN | core.USER_JP) for message in plant.seen] == [
        0,
        core.USER_JN,
        core.USER_JP,
    ]
    plant.destination.final_ack(plant.destination.queue[1], 0xC001)
    plant.destination.final_ack(plant.destination.queue[2], 0x4000)
    assert [await task for task in waiting] == [False, True]
    assert await held.stored(), "it was, before it was purged"
    assert await held.dead_lettered() == 0xC001
    assert await journaled.dead_lettered() == 0
    assert held.conclusion().answer == confirm.DEAD_LETTERED
    assert journaled.conclusion().answer == confirm.RECEIVED
    assert plant.told == [(2, 0xC001)]
    assert [bytes(plant.node.read(message).properties.body) for message in plant.node.journal()] == [b"2"]
    stats = plant.node.stats
    assert (stats.accepted, stats.stored, stats.received, stats.failed) == (3, 3, 1, 1)
    await plant.stop()


@pytest.mark.rule("B-405")
async def test_zero_ttrq_lasts_as_long_as_connect_timeout() -> None:
    plant = await Plant().start()
    await plant.destination.stop()
    queue = plant.node.queue(LINE)
    late = await queue.send(b"1", ttrq=0)
    plant.time += 10
    assert not await late.stored()
    early = await queue.send(b"2", ttrq=0)
    plant.time += 3
    await plant.destination.start(plant.destination.port)
    assert await early.stored()
    await plant.stop()


@pytest.mark.rule("C-20", "C-21", "B-311", "B-313")
async def test_deadlines_expire_offline_and_wake_waiters() -> None:
    plant = await Plant().start()
    await plant.destination.stop()
    queue = plant.node.queue(LINE)
    messages = [
        await queue.send(b"", dead_letter=True, ttrq=5, ttbr=10),
        await queue.send(b"", dead_letter=True, ttrq=60, ttbr=10),
        await queue.send(b"", ttbr=10),
    ]
    waiting = [asyncio.create_task(message.stored()) for message in messages]
    plant.time += 5
    assert await messages[0].dead_lettered() == 0x8002
    assert plant.told == [(1, 0x8002)]
    plant.time += 5
    assert [await message.dead_lettered() for message in messages] == [0x8002, 0xC003, 0xC003]
    assert [await task for task in waiting] == [False] * 3
    assert [message.conclusion().answer for message in messages] == [
        confirm.DEAD_LETTERED,
        confirm.DEAD_LETTERED,
        confirm.DISCARDED,
    ]
    assert not any(message.conclusion().in_doubt for message in messages)
    assert [letter.message_id for letter in plant.node.dead_letters()] == [1, 2]
    await plant.node.close()


@pytest.mark.rule("B-094", "B-316", "B-318", "B-319", "A-34")
async def test_stream_continues_behind_expired_messages() -> None:
    plant = await Plant().start()
    port = plant.destination.port
    await plant.destination.stop()
    queue = plant.node.queue(LINE)
    for k in range(9):
        await queue.send(b"%d" % k, ttrq=5 if k % 3 != 2 else 500, dead_letter=k % 2 == 0)
    plant.time += 6
    await plant.destination.start(port)
    assert await (await queue.send(b"9")).stored()
    assert plant.destination.bodies == [b"2", b"5", b"8", b"9"]
    assert plant.destination.duplicates == 0, "none was refused"
    assert sorted(plant.told) == [(k + 1, 0x8002) for k in (0, 1, 3, 4, 6, 7)]
    assert [letter.message_id for letter in plant.node.dead_letters()] == [1, 5, 7]
    await plant.stop()


@pytest.mark.rule("C-09", "C-27", "C-33", "B-055")
@pytest.mark.parametrize("durable", [False, True])
async def test_the_power_goes_between_order_ack_and_final_ack(durable: bool) -> None:
    """Whether the OrderAck was durable or not: the node asks for a session, gets the FinalAck, and settles."""
    plant = await Plant().start()
    queue = plant.node.queue(LINE)
    for body in (b"0", b"1"):
        assert await (await queue.send(body, dead_letter=True, ttbr=100)).stored()
    if durable:
        plant.node.commit_now()
    await plant.restart()
    assert plant.node.waiting == (not durable), "what stands before a newer message is durable with it"
    await until(lambda: plant.node.stats.connects == 1 and plant.node.waiting == 0)
    messages = [plant.node.find(message_id) for message_id in (1, 2)]
    assert all(message is not None and message.conclusion().answer == confirm.STORED for message in messages)
    plant.destination.final_ack(plant.destination.queue[0], 0x4000)
    assert messages[0] is not None
    assert await messages[0].received()
    await plant.restart()
    assert plant.node.find(1) is None
    plant.time += 200
    await plant.restart()
    await until(lambda: bool(plant.told))
    assert plant.told == [(2, 0xC002)]
    assert plant.node.dead_letters()[0].conclusion().in_doubt
    assert len(plant.destination.queue) == 2
    await plant.stop()


@pytest.mark.rule("B-275", "B-426", "A-22")
@pytest.mark.rule("C-18", "B-318")
@pytest.mark.parametrize("how", ["while it waited", "about to be sent"])
async def test_failed_message_is_not_reported_stored_after_power_cut(how: str) -> None:
    """The OrderAck of what went out behind its gap would cover it, if the board came back without knowing of it, and
    with no clock.
    """
    plant = await Plant().start()
    queue = plant.node.queue(LINE)
    assert await (await queue.send(b"0")).stored()
    plant.destination.cut()
    await queue.send(b"1", ttrq=5)
    await queue.send(b"2")
    if how == "about to be sent":
        plant.node.deadlines.check = lambda: False  # type: ignore[method-assign]
    plant.time += 6
    await until(lambda: plant.destination.bodies == [b"0", b"2"])
    assert plant.told == [(2, 0x8002)]
    plant.time = 0
    await plant.restart()
    await until(lambda: plant.node.waiting == 0 and plant.node.find(2) is None)
    assert set(plant.told) == {(2, 0x8002)}
    assert plant.node.stats.stored == 1
    await plant.stop()


async def test_old_sequence_is_acked_durably_before_new_one_is_sent() -> None:
    """Else it could come back after a cut, would be refused for ever, and hold up what is behind it."""
    plant = await Plant().start()
    port = plant.destination.port
    await plant.destination.stop()
    for name in (LINE, ALARMS):
        await plant.node.queue(name).send(b"old", dead_letter=name == ALARMS)
    await plant.restart()
    for name in (LINE, ALARMS):
        await plant.node.queue(name).send(b"new")
    left: list[list[int]] = []

    def seen(message: headers.UserMessage) -> None:
        if bytes(message.properties.body) == b"new":
            box = outbox.Outbox(plant.disk.after_cut(power.KEEP_SYNCED, power.Dice(1)))
            name = guids.format_name(message.user.destination_queue)  # type: ignore[arg-type]
            left.append(
                [
                    restored.handle.record[confirm.STATE]
                    for restored in box.restored
                    if restored.queue.name == name and restored.handle.message_id < 3
                ]
                + [confirm.O] * bool(box.queue(name).open)
            )

    plant.destination.seen = seen
    await plant.destination.start(port)
    await until(lambda: plant.node.waiting == 0)
    assert sorted(left) == [[], [ord("O")]]
    await plant.restart()
    assert await (await plant.node.queue(LINE).send(b"newest")).stored()
    assert plant.destination.bodies.count(b"old") == 2
    await plant.stop()


async def test_a_dead_letter_that_cannot_be_taken_durably_says_so() -> None:
    plant = await Plant().start()
    message = await plant.node.queue(LINE).send(b"", dead_letter=True)
    assert await message.stored()
    plant.destination.final_ack(plant.destination.queue[0], 0xC001)
    assert await message.dead_lettered() == 0xC001

    def full(disk: Any, step: str, data: Any) -> None:
        if step != "remove":
            raise OSError(28, "no space")

    plant.disk.before = full
    with pytest.raises(OutboxError, match="not durable"):
        plant.node.take(message)
    plant.disk.before = None
    await plant.restart()
    [again] = plant.node.dead_letters()
    plant.node.take(again)
    await plant.restart()
    assert plant.node.dead_letters() == []
    await plant.stop()


@pytest.mark.parametrize("step", ["append", "sync"])
async def test_nothing_is_sent_while_it_cannot_be_noted(step: str) -> None:
    plant = await Plant().start()
    broken = [True]

    def full(disk: Any, what: str, data: Any) -> None:
        if what == step and broken[0]:
            raise OSError(28, "no space")

    queue = plant.node.queue(LINE)
    message: OutboxMessage = await queue.send(b"1")
    plant.disk.before = full
    await until(lambda: "28" in queue.peer.reason)
    assert plant.seen == []
    broken[0] = False
    assert await message.stored()
    await plant.stop()
