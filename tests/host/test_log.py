"""The log of `serve`: each fact once, what comes again counted."""

from __future__ import annotations

from ordack.log import AGAIN_S, ERROR, FACTS_MAX, Line, Log


class _World:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.now = 1_800_000_000.0
        self.log = Log(self.lines.append, lambda: self.now)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.log.tick()


def test_a_line_has_time_level_and_text() -> None:
    world = _World()
    world.log("a plain text")
    world.log(Line("the store failed", ERROR))
    assert world.lines == ["2027-01-15T08:00:00Z warning: a plain text", "2027-01-15T08:00:00Z error: the store failed"]


def test_what_comes_again_is_counted_and_told_less_and_less_often() -> None:
    world = _World()
    for number in range(1000):
        world.log(Line(f"refused, {number} MB free", fact="refused"))
        world.pass_time(1)
    assert world.lines[0].endswith("warning: refused, 0 MB free")
    assert len(world.lines) == 5  # after 60, 180, 420, 900 seconds
    assert world.lines[1].endswith("warning: refused, 59 MB free (59 times more since 08:00:00)")
    world.log.close()
    told = [int(line.rpartition("(")[2].split()[0]) for line in world.lines[1:]]
    assert sum(told) == 999


def test_what_does_not_come_again_is_new_when_it_comes_later() -> None:
    world = _World()
    world.log("it is gone")
    world.pass_time(AGAIN_S)
    world.log("it is gone")
    world.pass_time(AGAIN_S / 2)
    world.log("it is gone")
    world.log.close()
    assert [line.partition(" ")[2] for line in world.lines] == [
        "warning: it is gone",
        "warning: it is gone",
        "warning: it is gone (once more since 08:01:00)",
    ]


def test_different_facts_are_told_at_once_and_take_no_more_memory_than_is_bounded() -> None:
    world = _World()
    for number in range(2 * FACTS_MAX):
        world.log(f"{number}")
    assert len(world.lines) == 2 * FACTS_MAX
    assert len(world.log._facts) == FACTS_MAX


def test_a_clock_that_goes_back_hides_nothing() -> None:
    world = _World()
    world.log("it is gone")
    world.pass_time(-86400)
    world.log("it is gone")
    assert len(world.lines) == 2
