"""A scenario says in a file what a seed says: it comes back as it was written, and a file that is wrong is refused."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hil.boards import MISHAP, POWER, RESET, ROOT, Board, BoardMissing, Limits
from hil.campaign import main
from hil.faults import BLOCKED, DOWN, ONE_WAY, RST, TCP_KINDS, UP, Cut
from hil.scenario import (
    BOARD,
    BYTES_PATIENCE_S,
    CLOCK,
    DEAD,
    DOWN_LIMIT_BYTES,
    MISHAPS,
    NAME_SERVER,
    VICTIMS,
    WINDOW,
    BadScenario,
    Kill,
    Settings,
    cuts_of,
    is_kill,
    kills_of,
    planned,
    read,
    write,
)

(FIVE_LINES,) = re.findall("```yaml\n(campaign.*?)```", (ROOT / "hil" / "README.md").read_text(), re.DOTALL)


def board(line: Path | None = None, *ways: str) -> Board:
    """What a plan wants to know of one."""
    return cast(Board, SimpleNamespace(ways=(POWER, *ways), line=line, dips_s=0.5, is_direct=True))


@settings(max_examples=30)
@given(
    *(st.integers(0, 2**31), st.integers(1, 30), st.integers(0, 9), st.integers(0, 7)),
    *(st.sampled_from(["", *MISHAPS]), st.sampled_from([None, Path("line")])),
)
def test_what_a_seed_plans_is_the_same_in_a_file(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    messages: int,
    cuts: int,
    kills: int,
    mishap: str,
    line: Path | None,
) -> None:
    made = planned(Settings(messages, cuts, kills, seed, "mps2-uart", 512, mishap=mishap), board(line, RESET))
    path = tmp_path_factory.mktemp("scenario") / "scenario.yaml"
    path.write_text(write(made))
    assert read(path) == made
    events = [text.split(",")[0].strip("- {}") for text in path.read_text().splitlines()[2:]]
    counts = Counter(text for text in events if not text.startswith("cut"))
    assert len(events) - counts.total() == cuts
    assert (
        counts["queue manager: kill"] + counts["queue manager: mishap"]
        == sum(map(is_kill, kills_of(made.plan or (), BOARD)))
        == kills
    )
    others = {f"{victim}: clock": -(-kills // 2) for victim in VICTIMS}
    others |= {"name server: dead": 0 if line else kills // 3}
    assert {name: counts[name] for name in others} == (dict.fromkeys(others, 0) if mishap else others)


@given(st.integers(0, 2**31))
@example(7)
def test_a_board_behind_an_emulated_network_is_planned_no_slow_reader_and_refused_one(seed: int) -> None:
    near, far = board(), board()
    far.is_direct = False
    kinds = [
        {cut.kind for cut in cuts_of(planned(Settings(90, 90, 0, seed, "x", 99), one).plan or ())}
        for one in (near, far)
    ]
    assert all(found <= set(TCP_KINDS) for found in kinds)
    assert BLOCKED not in kinds[1]
    assert seed != 7 or kinds == [set(TCP_KINDS), {*TCP_KINDS} - {BLOCKED}]
    with pytest.raises(BoardMissing, match=r"board x knows no blocked here: rst, fin, half-open, late, slow, one-way$"):
        planned(Settings(90, board="x", max_size=99, plan=(Cut(0, UP, 9, BLOCKED, 9),)), far)


def test_in_a_long_campaign_nothing_happens_before_the_window_was_full() -> None:
    of_hil = Settings(200, 20, 3, 1, "unix").for_board(Limits())
    ahead = of_hil.ahead or 0
    assert ahead > WINDOW
    plan = planned(of_hil, board()).plan or ()
    first, *cuts = cuts_of(plan)
    assert (first.kind, first.direction, len(cuts)) == (ONE_WAY, DOWN, 19)
    assert min(cut.after for cut in cuts) >= of_hil.traffic(ahead)
    assert min(event.count for event in plan if isinstance(event, Kill)) >= ahead
    for short in (
        replace(of_hil, messages=2 * ahead - 1),
        replace(of_hil, ahead=WINDOW),
        replace(of_hil, tls=True),
    ):
        assert first not in (planned(short, board()).plan or ())


def test_a_person_writes_one_in_five_lines(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(FIVE_LINES)
    settings = read(path)
    assert (settings.board, settings.seed, settings.messages, settings.max_size) == ("unix", 7, 40, None)
    assert settings.plan == (
        Cut(2000, UP, 900, RST, 900),
        Kill(12, 0.0, 0.1, POWER, 0, "board"),
        Kill(30, 0.0, 0.0, POWER, 0, "queue manager"),
    )
    path.write_text("campaign: {messages: 3}\nevents:\n- {cut: late, down: 7}\n- {board: power, at: 2, bytes: 9}\n")
    late, power = Cut(0, DOWN, 7, "late", DOWN_LIMIT_BYTES), Kill(2, BYTES_PATIENCE_S, 0.0, POWER, 9)
    assert read(path).plan == (late, power)
    path.write_text("campaign: {messages: 3}\nevents:\n- {cut: one-way, up: 7, for_s: 30}\n")
    assert read(path).plan == (Cut(0, UP, 7, "one-way", 7, 30.0),)
    assert "for_s: 30.0" in write(read(path))
    path.write_text("campaign: {messages: 3}\nevents:\n- {queue manager: clock, at: 1, step_s: -90}\n")
    assert read(path).plan == (Kill(1, 0.0, 0.0, CLOCK, 0, "queue manager", -90.0),)
    path.write_text("campaign: {messages: 3}\nevents:\n- {name server: dead, at: 1}\n")
    assert read(path).plan == (Kill(1, 0.0, 2.0, DEAD, 0, NAME_SERVER),)
    path.write_text("campaign: {messages: 3}\nevents:\n- {board: power, at: 1, dips: 3, on_s: 2}\n")
    assert read(path).plan == (Kill(1, 0.0, 0.0, dips=3, on_s=2.0),)


@pytest.mark.parametrize(
    ("line", "instead", "said"),
    [
        (1, "campaign: {mesages: 40}", ":1: 'mesages' is not known here: board, seed, messages"),
        (1, "campaign: {messages: -4}", ":1: messages: -4 is not a whole number of 0 or more"),
        (1, "campaign: {messages: forty}", ":1: messages: forty is not a whole number"),
        (1, "campaign: {messages: 4.5}", ":1: messages: 4.5 is not a whole number"),
        (1, "campaign: {messages: yes}", ":1: messages: yes is not a whole number"),
        (1, "campaign: {seed: 2026-13-45}", ":1: seed: 2026-13-45 is not a whole number"),
        (1, "campaign: {seed: !!python/name:os.system }", ":1: seed:  is not a whole number"),
        (1, "campaign: {messages: [4]}", ":1: messages: a list or table is not a whole number"),
        (1, "campaign: {patience_s: .inf}", ":1: patience_s: .inf is not a number of 0 or more"),
        (1, "campaign: {mishap: fire}", ":1: mishap: 'fire' is none of erase, erase-fixed"),
        (1, 'campaign: {ordack: "\'"}', ":1: ordack: No closing quotation"),
        (1, "campaign: {seed: 1, seed: 2}", ":1: seed stands twice"),
        (1, "campaign: 7", ":1: campaign has to be a table"),
        (1, "board: unix", ":1: 'board' is not known here: campaign, events"),
        (1, "campaign: {messages: 0}", ":3: a link over which no message goes cannot be cut"),
        (2, "events: 7", ":3: no YAML"),
        (3, "- {cut: rts, up: 900}", ":3: cut: 'rts' is none of rst, fin, half-open"),
        (3, "- {cut: rst}", ":3: a cut falls at one byte, up: or down:"),
        (3, "- {cut: rst, up: 1, down: 1}", ":3: a cut falls at one byte"),
        (3, "- {cut: rst, up: 0}", ":3: up: 0 is not a whole number of 1 or more"),
        (3, "- {cut: rst, up: 9, up_limit: 9}", ":3: up_limit is for a cut down"),
        (
            3,
            "- {cut: rst, up: 9, for_s: 2}",
            ":3: for_s is for a cut that ends by itself: late, slow, one-way, blocked, unplug",
        ),
        (3, "- cut", ":3: an event has to be a table"),
        (3, "- {cat: rst}", ":3: an event begins with cut, board, queue manager or name server"),
        (4, "- {board: power, at: 41}", ":4: at: has to say after how many of the 40 messages; 41 is none"),
        (4, "- {board: power}", ":4: at: has to say after how many of the 40 messages; is missing"),
        (4, "- {board: mishap, at: 4}", ":4: a mishap needs mishap: in campaign, one of erase"),
        (5, "- {queue manager: mishap, at: 4}", ":5: a mishap needs mishap: in campaign, one of restore"),
        (1, "campaign: {commands: 3, mishap: erase}", ":1: with the mishap erase commands would go with the outbox"),
        (4, "- {board: kill, at: 4}", ":4: board: 'kill' is none of power, reset, mishap, clock"),
        (4, "- {board: clock, at: 4}", ":4: step_s: has to say by how many seconds the clock goes on"),
        (4, "- {board: clock, at: 4, step_s: soon}", ":4: step_s: soon is not a number"),
        (4, "- {board: clock, at: 4, step_s: .nan}", ":4: step_s: .nan is not a number"),
        (4, "- {board: power, at: 4, step_s: 9}", ":4: 'step_s' is not known here: board, at, delay_s, off_s, bytes"),
        (4, "- {board: power, at: 4, dips: 1}", ":4: dips: 1 is not a whole number of 2 or more"),
        (4, "- {board: power, at: 4, on_s: 1}", ":4: on_s: is for a power that browns out: dips: says how often"),
        (4, "- {board: reset, at: 4, dips: 3}", ":4: 'dips' is not known here: board, at, delay_s, off_s, bytes"),
        (4, "- {name server: gone, at: 4}", ":4: name server: 'gone' is none of dead"),
        (5, "- {queue manager: reset, at: 4}", ":5: queue manager: 'reset' is none of kill, mishap, clock"),
        (5, "- {queue manager: kill, at: 4, of_s: 1}", ":5: 'of_s' is not known here: queue manager, at"),
        (5, "- {queue manager: kill, at: 4", ":6: no YAML"),
    ],
)
def test_a_wrong_file_is_refused_with_line_value_and_rule(
    tmp_path: Path, line: int, instead: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = FIVE_LINES.splitlines()
    lines[line - 1] = instead
    path = tmp_path / "mine.yaml"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(BadScenario) as raised:
        read(path)
    assert str(raised.value).startswith(f"{path}{said}")
    assert main(["--scenario", str(path)]) == 2
    assert f"{path}{said}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file or directory"),
        (b"", ":1: a scenario has to be a table"),
        (b"\xff\xfe\x80", "no text in UTF-8"),
        (b"events: []", ":1: campaign: is missing"),
        (b"campaign: {messages: 3}\nevents: 7", ":2: events has to be a list"),
        (b"a: 1\n---\nb: 2", "no YAML"),
        (b"a: \x07", "no YAML"),
        (b"[" * 1000, "no YAML"),
    ],
)
def test_no_scenario_at_all_is_refused(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "mine.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadScenario, match=said):
        read(path)


@pytest.mark.parametrize(
    ("event", "known"), [("cut: flip, up: 9", "rst, fin"), ("board: reset, at: 1", "power, clock$")]
)
def test_faults_that_the_board_does_not_know_are_refused(tmp_path: Path, event: str, known: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"campaign: {{messages: 3}}\nevents:\n- {{{event}}}\n")
    with pytest.raises(BoardMissing, match=f"board unix knows no (flip|reset) here: {known}"):
        planned(read(path), board())


def test_a_mishap_is_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("campaign: {messages: 3, mishap: erase}\nevents:\n- {board: mishap, at: 1}\n")
    assert read(path).plan == (Kill(1, 0.0, 0.0, MISHAP),)


def test_the_plan_is_written_and_nothing_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.yaml"
    words = ["--board", "cpython", "--messages", "9", "--cuts", "2", "--kills", "1", "--seed", "7"]
    assert main([*words, "--write-plan", str(path)]) == 0
    assert f"-m hil.campaign --scenario {path}" in capsys.readouterr().out
    settings = read(path)
    assert (settings.board, settings.messages, settings.seed, len(cuts_of(settings.plan or ()))) == ("cpython", 9, 7, 2)
    assert main([*words, "--write-plan", str(path / "plan.yaml")]) == 2
    assert f"{path}/plan.yaml: Not a directory" in capsys.readouterr().out


def test_options_that_the_file_says_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["--scenario", "mine.yaml", "--seed", "4"])
    assert raised.value.code == 2
    assert "the scenario says all but --json: write seed into mine.yaml" in capsys.readouterr().err
