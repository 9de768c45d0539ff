"""`ordack interop windows` against a second ordack in Windows' place: what holds, and that each row can fail.

The other half is the script for Windows, which nothing here can run: it is read, and compared with this side.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ordack.client import Client
from ordack.interop import language
from ordack.interop.claims import BROKEN, CLAIMS, HELD, UNJUDGED, Row, out_of_sequence
from ordack.interop.run import Outcome, direct, run, settings_of
from ordack.net.cuts import FIN, OPENING_BYTES, RST, Cuts

from hil.signals import heed
from tests.support.command import DEADLINE_S, ENVIRONMENT, ROOT, ordack, own_port
from tests.support.windows_standin import FAULTS, HERE, HOST, Standin, body_of, interop

SCRIPT = ROOT / "host" / "examples" / "windows" / "ordack-interop.ps1"
MEETING = ("port", "handshake", "answers", "clocks")


class Found:
    """What the command has said: its rows by key, and what it says at the end."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert lines, done.stderr
        self.status = done.returncode
        self.end = lines.pop()
        self.rows: dict[str, dict[str, Any]] = {line["claim"]: line for line in lines}

    def verdicts(self, verdict: str) -> set[str]:
        return {key for key, row in self.rows.items() if row["verdict"] == verdict}

    def found(self, key: str) -> tuple[str, str]:
        return self.rows[key]["verdict"], self.rows[key]["found"]


@pytest.fixture
def back() -> int:
    return own_port(HERE)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standin]:
    """One for many trials; it connects again sooner than Windows does."""
    standin = Standin(tmp_path_factory.mktemp("windows"), own_port(HERE), settings={"TryConnectInterval": 200})
    yield standin
    standin.stop()


@pytest.fixture
def windows(shared: Standin) -> Iterator[Standin]:
    yield shared
    shared.faults = set()


def tried(windows: Standin, folder: Path, *faults: str, messages: int = 6, patience: float = 60, keys: Any) -> Outcome:
    """What a trial in this process finds, of these claims, while the other side has these faults."""
    assert set(faults) <= set(FAULTS)
    windows.faults = set(faults)
    settings = settings_of(
        f"{HOST}:{windows.port}", f"{HERE}:{windows.back}", None, folder, messages, None, patience, 1, keys
    )
    return run(settings, lambda _text: None, lambda: 0)


def row_of(outcome: Outcome, key: str) -> Row:
    return next(row for row in outcome.rows if row.claim.key == key)


def only(*keys: str) -> list[str]:
    return [word for key in keys for word in ("--only", key)]


@contextlib.contextmanager
def standing_in(folder: Path, back: int, *faults: str, **more: Any) -> Iterator[Standin]:
    standin = Standin(folder / "there", back, *faults, **more)
    try:
        yield standin
    finally:
        standin.stop()


# ---- everything holds ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.rule("B-003", "B-011", "B-361", "B-242", "B-243", "B-311", "B-313")
def test_against_a_second_ordack_with_windows_timing_everything_holds(tmp_path: Path, back: int) -> None:
    with standing_in(tmp_path, back) as standin:
        found = Found(interop(standin, back, tmp_path / "out", "--messages", 30, "--cuts", 3, "--seed", 7))
        left = standin.queues(), standin.kept()
    assert {row["claim"]: row["found"] for row in found.rows.values() if row["verdict"] != HELD} == {}
    assert list(found.rows) == list(CLAIMS)
    assert (found.status, found.end["verdict"], found.end["seed"]) == (0, HELD, 7)
    assert found.found("to-cuts") == found.found("from-cuts") == (HELD, "30 messages, 3 cuts")
    assert found.end["windows"]["computer"] == "STANDIN"
    assert left == ([], [])
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {"audit", "capture.pcapng", "report.json", "report.txt", "serve.log"}
    assert json.loads((tmp_path / "out/audit/summary.json").read_text())["verdict"] == "no violations"
    kept = json.loads((tmp_path / "out/report.json").read_text())
    assert kept["rows"] == list(found.rows.values())
    table = (tmp_path / "out/report.txt").read_text()
    assert all(claim.title.split(" ")[0] in table for claim in CLAIMS.values())
    assert "27 of 27 claims held, 0 did not, 0 could not be judged" in table


def test_every_claim_names_what_is_expected_and_rules_that_there_are() -> None:
    rules = set(re.findall(r"^([ABC]-\d+)\b", (ROOT / "tests" / "rules.txt").read_text("utf-8"), re.MULTILINE))
    for key, claim in CLAIMS.items():
        assert claim.key == key
        assert claim.expected
        assert set(claim.rules) <= rules, key
        assert claim.rules, key


# ---- each row can fail --------------------------------------------------------------------------

BREAKS: list[tuple[tuple[str, ...], int, dict[str, str]]] = [  # with patience in seconds: short where it runs out
    (
        ("disorder there", "disorder", "renames", "early journal"),
        60,
        {
            "to-express": "out of order",
            "from-express": "out of order",
            "to-transactional": "out of order",
            "to-properties": "label is 'another'",
            "from-properties": "label is 'another'",
            "from-received": "before the message was received",
        },
    ),
    (
        ("twice there", "twice"),
        60,
        {
            "to-recoverable": "1 more than once",
            "from-recoverable": "1 more than once",
            "from-transactional": "1 more than once",
            "from-cuts": "1 more than once",
        },
    ),
    (
        ("damages there", "damages", "again"),
        60,
        {
            "to-transactional": "a body among those from",
            "to-large": "a body among those from",
            "from-transactional": "is not as it was sent",
            "from-large": "is not as it was sent",
            "to-ttrq": "1 message more afterwards",
        },
    ),
    (("express",), 60, {"from-recoverable": "is express"}),
    (
        ("no plain queue", "another class"),
        60,
        {
            "to-plain-queue": "class 0x8000 NACK_BAD_DST_Q, not 0x8009",
            "from-no-queue": "class 0x8001 NACK_DELETED there, not 0x8000",
        },
    ),
    (("loses",), 3, {"from-express": "1 lost"}),
    (
        ("no dead letters", "keeps"),
        3,
        {"from-no-queue": "it is not in the dead-letter queue there", "to-purged": "no dead letter here"},
    ),
    (
        ("no FinalAck",),
        3,
        {
            "to-received": "after the receive it is stored at destination",
            "acknowledgements": "0x0002 ACK_REACH_QUEUE came",
        },
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("faults", "patience", "broken"), BREAKS, ids=[faults[-1] for faults, *_ in BREAKS])
def test_what_the_other_side_does_wrong_is_a_row_that_does_not_hold(
    faults: tuple[str, ...], patience: int, broken: dict[str, str], tmp_path: Path, windows: Standin
) -> None:
    outcome = tried(windows, tmp_path / "out", *faults, messages=10, patience=patience, keys=[*broken])
    assert outcome.verdict == BROKEN
    assert {row.claim.key for row in outcome.rows} == {*MEETING, *broken}
    for key, text in broken.items():
        row = row_of(outcome, key)
        assert row.verdict == BROKEN, row
        assert text in row.found
        assert row.advice


@pytest.mark.slow
def test_clocks_that_differ_are_said_and_times_are_not_judged_then(tmp_path: Path, windows: Standin) -> None:
    outcome = tried(windows, tmp_path / "out", "clock", keys=["from-ttrq"])
    clocks = row_of(outcome, "clocks")
    assert clocks.verdict == BROKEN
    assert 3540 < float(clocks.found.split()[0]) < 3660
    assert clocks.found.endswith("s ahead there")
    assert row_of(outcome, "from-ttrq").verdict == UNJUDGED


@pytest.mark.slow
def test_without_cuts_there_is_no_proof_about_cuts(
    tmp_path: Path, windows: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = row_of(tried(windows, tmp_path / "few", messages=9, keys=["to-cuts"]), "to-cuts")
    assert (few.verdict, few.found) == (UNJUDGED, "no connection was to be cut")
    monkeypatch.setattr(Cuts, "plan", lambda *_: None)
    none = row_of(tried(windows, tmp_path / "none", messages=10, keys=["to-cuts"]), "to-cuts")
    assert (none.verdict, none.found) == (UNJUDGED, "all there, but only 0 of 1 cuts fell")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "what"), [("pyarrow", "not run: the package pyarrow is missing"), ("", "there is no capture")]
)
def test_an_audit_that_cannot_run_says_why(missing: str, what: str, tmp_path: Path) -> None:
    program = (
        f"import sys; sys.modules.update({dict.fromkeys([missing]) if missing else {}}); from pathlib import Path\n"
        "from ordack.interop.run import audit_row\n"
        f"row = audit_row(Path({str(tmp_path)!r}), str); print(row.verdict, row.found, row.advice, sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=ENVIRONMENT, timeout=DEADLINE_S, check=True
    )
    verdict, found, advice = done.stdout.split("\n")[:3]
    assert (verdict, found) == (UNJUDGED, what)
    assert ("pip install 'ordack[spark]'" in advice) == bool(missing)


# ---- the two sides do not meet ------------------------------------------------------------------


def test_where_nothing_listens_the_row_of_the_port_says_so(tmp_path: Path, back: int) -> None:
    found = Found(interop(None, back, tmp_path / "out", port=own_port(HERE)))
    verdict, what = found.found("port")
    assert (verdict, found.status) == (BROKEN, 5)
    assert what.endswith("connection refused")
    assert "Get-Service MSMQ" in found.rows["port"]["advice"]
    assert found.verdicts(UNJUDGED) == set(CLAIMS) - {"port"}
    table = (tmp_path / "out" / "report.txt").read_text()
    assert CLAIMS["port"].title in table
    assert CLAIMS["to-express"].title not in table  # nobody reads two dozen rows that say the same
    assert "0 of 27 claims held, 1 did not, 26 could not be judged" in table


def test_a_name_that_nobody_knows_is_said(tmp_path: Path, back: int) -> None:
    done = ordack(
        "interop", "windows", "no-such-machine.invalid", "--listen", f"{HERE}:{back}", "--out", tmp_path / "o"
    )
    assert done.returncode == 5
    assert "not known" in done.stdout or "resolution" in done.stdout


def answering(what: bytes) -> socket.socket:
    """Something that listens, says this on each connection, and closes it."""
    listener = socket.create_server((HOST, 0))

    def answer() -> None:
        with contextlib.suppress(OSError):
            while True:
                taken, _ = listener.accept()
                with taken, contextlib.suppress(OSError):
                    taken.sendall(what)

    threading.Thread(target=answer, daemon=True).start()
    return listener


def test_what_listens_and_is_not_msmq_is_told_from_msmq(tmp_path: Path, back: int) -> None:
    with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as listener:
        port = listener.getsockname()[1]
        found = Found(interop(None, back, tmp_path / "out", "--patience", 20, port=port))
        listener.shutdown(socket.SHUT_RDWR)
    assert found.found("port")[0] == HELD
    assert found.found("handshake")[0] == BROKEN
    assert "not MSMQ" in found.found("handshake")[1]
    assert found.status == 5


@pytest.mark.slow
@pytest.mark.rule("B-256", "B-257", "C-55", "C-58")
@pytest.mark.parametrize(
    ("more", "what", "advice"),
    [
        ({"script": False}, "0x8000 NACK_BAD_DST_Q", "the script does not run"),
        (
            {"file": "[every-queue]\nallow-sources = []\n"},
            "0x8004 NACK_ACCESS_DENIED",
            "ANONYMOUS LOGON may not send",
        ),
    ],
    ids=["no script", "no access"],
)
def test_why_the_script_does_not_answer_is_found_out(
    more: dict[str, Any], what: str, advice: str, tmp_path: Path, back: int
) -> None:
    with standing_in(tmp_path, back, **more) as standin:
        found = Found(interop(standin, back, tmp_path / "out"))
    assert found.verdicts(HELD) == {"port", "handshake"}
    assert what in found.found("answers")[1]
    assert advice in found.rows["answers"]["advice"]
    assert found.status == 5


@pytest.mark.slow
def test_a_way_back_that_is_closed_is_told_from_a_script_that_does_not_run(tmp_path: Path, back: int) -> None:
    with standing_in(tmp_path, own_port(HERE)) as standin:  # it connects elsewhere
        found = Found(interop(standin, back, tmp_path / "out", "--patience", 6))
    verdict, what = found.found("answers")
    assert verdict == BROKEN
    assert what.startswith("no answer; connections from there: 0")
    assert "Test-NetConnection" in found.rows["answers"]["advice"]
    assert found.status == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "keys", "verdict", "what"),
    [
        ("old", ["answers"], BROKEN, f"version {language.VERSION + 1}, this side {language.VERSION}"),
        ("stops", ["to-express"], UNJUDGED, "has not answered in 3 s"),
        ("stops", ["to-purged", "to-express"], UNJUDGED, "does not answer any more"),
        ("refuses", ["to-express"], UNJUDGED, "Access to Message Queuing system is denied"),
        ("incomplete", ["to-express"], UNJUDGED, "says nothing of labels"),
    ],
)
def test_a_script_that_cannot_do_it_leaves_claims_unjudged(
    fault: str, keys: list[str], verdict: str, what: str, tmp_path: Path, windows: Standin
) -> None:
    outcome = tried(windows, tmp_path / "out", fault, patience=3 if fault == "stops" else 60, keys=keys)
    row = row_of(outcome, keys[0])
    assert row.verdict == verdict
    assert what in row.found


@pytest.mark.slow
def test_what_is_broken_and_what_is_not_known_have_exit_statuses_of_their_own(tmp_path: Path, windows: Standin) -> None:
    for fault, status in (("loses", 1), ("refuses", 3)):
        windows.faults = {fault}
        words = ["--messages", 5, "--patience", 4, *only("from-express" if status == 1 else "to-express")]
        assert interop(windows, windows.back, tmp_path / fault, *words).returncode == status


# ---- what people get wrong ----------------------------------------------------------------------


def test_a_port_that_another_queue_manager_has_is_said(tmp_path: Path, back: int) -> None:
    with socket.create_server((HERE, back)), socket.create_server((HOST, 0)) as there:
        done = interop(None, back, tmp_path / "out", port=there.getsockname()[1])
    assert done.returncode == 2
    assert f"cannot listen on {HERE}:{back}" in done.stderr
    assert "--listen" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["10.0.0.9:0"], "port 0"),
        (["10.0.0.9:x"], "the port is a number"),
        (["a machine"], "neither an IP address nor the name"),
        (["127.0.0.1", "--listen", "127.0.0.1"], "cannot be both sides"),
        (["10.0.0.9", "--listen", "127.0.0.1:0"], "must know the port"),
        (["nowhere.invalid"], "is the name right?"),
        (["10.0.0.9", "--listen", HERE, "--address", "a b"], "neither an IP address nor the name"),
        (["10.0.0.9", "--only", "everything"], "there is no such claim"),
        (["10.0.0.9", "--messages", "0"], "--messages"),
        (["10.0.0.9", "--listen", "127.0.0.1", "--messages", "20", "--cuts", "3"], "at most one for 10 messages"),
    ],
)
def test_wrong_usage_is_one_sentence_and_leaves_nothing(words: list[str], text: str, tmp_path: Path) -> None:
    done = ordack("interop", "windows", *words, folder=tmp_path)
    assert done.returncode == 2
    assert text in re.sub(r"\s*│?\n│?\s*", " ", done.stderr)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    done = ordack("interop", "windows", "10.0.0.9", "--listen", HERE, "--out", tmp_path)
    assert done.returncode == 2
    assert "not empty" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_defaults_are_port_1801_the_address_of_the_way_and_a_new_folder() -> None:
    settings = settings_of("127.0.0.9", None, None, None, 1000, 10, 60, None)
    assert (settings.hop, settings.listen) == (("127.0.0.9", 1801), (settings.address, 1801))
    assert settings.address.startswith("127.")
    assert not settings.folder.exists()
    wide = settings_of("127.0.0.9:1802", "0.0.0.0", "plant", None, 1, 0, 60, 3)
    assert (wide.hop[1], wide.listen, wide.address, wide.seed) == (1802, ("0.0.0.0", 1801), "plant", 3)
    six = settings_of("[::2]", "[::1]:1801", None, None, 20, None, 60, 3)
    assert (six.hop, six.listen, six.cuts) == (("::2", 1801), ("::1", 1801), 2)
    assert direct("10.0.0.9") == "DIRECT=TCP:10.0.0.9"
    assert direct("plant") == "DIRECT=OS:plant"


# ---- it is stopped, and tried again -------------------------------------------------------------


def started(standin: Standin, back: int, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ordack", "interop", "windows", f"{HOST}:{standin.port}", "--json"]
    return subprocess.Popen(
        [*command, "--listen", f"{HERE}:{back}", "--out", str(folder), "--only", "from-cuts"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        preexec_fn=heed,
    )


def wait_for(standin: Standin, command: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while command not in standin.done:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_it_ends_in_order_and_after_a_kill_the_next_trial_says_what_is_left(tmp_path: Path, windows: Standin) -> None:
    standin, back = windows, windows.back
    standin.done.clear()
    process = started(standin, back, tmp_path / "first")
    wait_for(standin, "send", process)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + signal.SIGINT, errors
    rows = [json.loads(line) for line in output.splitlines()]
    assert (rows[-2]["claim"], rows[-2]["found"]) == ("from-cuts", "the trial was stopped")
    assert "stopping in order" in errors
    assert standin.done[-1] == "end"
    assert not (tmp_path / "first" / "store").exists()
    assert standin.queues() == []

    with Client(standin.store) as client:
        client.create_queue(f"{language.CONTROL}-abc123-killed")
    found = Found(interop(standin, back, tmp_path / "second", "--messages", 5, *only("to-express")))
    assert found.status == 0
    assert f"{language.CONTROL}-abc123-killed" in found.end["notes"][0]
    assert standin.queues() == [f"{language.CONTROL}-abc123-killed"]


# ---- what is compared ---------------------------------------------------------------------------


@given(st.lists(st.integers(0, 30), unique=True), st.data())
def test_what_is_not_once_and_in_order_is_said_and_nothing_else(numbers: list[int], data: st.DataObject) -> None:
    sent = [f"run key {number}" for number in numbers]
    found = data.draw(st.lists(st.sampled_from([*sent, "run key 99"]), max_size=40) | st.permutations(sent))
    said = out_of_sequence(sent, found)
    assert (said == "") == (sent == found)
    assert ("lost" in said) == bool(set(sent) - set(found))
    assert ("more than once" in said) == any(found.count(one) > 1 for one in sent)
    assert ("never sent" in said) == bool(set(found) - set(sent))
    if sorted(sent) == sorted(found):
        assert ("out of order" in said) == (sent != found)


@given(st.integers(0, 100_000), st.integers(1, 5000))
def test_bodies_are_what_the_other_side_makes(number: int, size: int) -> None:
    body = language.body_of(number, size)
    assert body == body_of(number, size)
    assert 1 <= len(body) <= size


# ---- cuts ---------------------------------------------------------------------------------------


@given(st.integers(0, 1000), st.integers(1, 20), st.integers(1000, 100_000), st.lists(st.integers(1, 9000), min_size=1))
def test_planned_cuts_fall_at_the_same_bytes_however_they_move(
    seed: int, count: int, size: int, chunks: list[int]
) -> None:
    def falls(sizes: list[int]) -> list[tuple[int, str]]:
        cuts = Cuts(seed)
        cuts.plan(count, size)
        at, found, turn = 0, [], 0
        while at < size:
            left = sizes[turn % len(sizes)]
            turn += 1
            while left:
                passing, kind = cuts.passing(left)
                at, left = at + passing, left - passing
                if kind:
                    found.append((at, kind))
                elif not left:
                    break
        assert cuts.passing(7) == (7, "")
        return found

    made = falls(chunks)
    assert len(made) == count
    assert made[-1][0] <= size
    assert made == falls([1 << 20])
    assert {kind for _, kind in made} <= {RST, FIN}


async def test_a_cut_lets_every_byte_before_it_pass_and_none_behind() -> None:
    cuts = Cuts(1)
    cuts.plan(1, OPENING_BYTES)
    [(place, _)] = cuts._waiting
    cuts._waiting[0] = (place, FIN)
    came, lost = bytearray(), asyncio.Event()

    class Sends(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            transport.write(bytes(place - 1))
            transport.write(b"abcdef")
            transport.write(b"never")

        def connection_lost(self, error: Exception | None) -> None:
            assert isinstance(error, ConnectionAbortedError)
            lost.set()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.extend(await reader.read())
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    await asyncio.get_running_loop().create_connection(lambda: cuts.between(Sends(), True), host, port)
    async with asyncio.timeout(DEADLINE_S):
        await lost.wait()
        while len(came) < place:
            await asyncio.sleep(0.01)
    server.close()
    assert bytes(came) == bytes(place - 1) + b"a"
    assert [(cut.connection, cut.opened_here, cut.direction, cut.kind) for cut in cuts.made] == [(1, True, "sent", FIN)]


async def test_a_side_that_is_blocked_gets_nothing_through_until_it_is_not() -> None:
    cuts = Cuts(1)
    loop = asyncio.get_running_loop()
    ends: asyncio.Queue[str] = asyncio.Queue()

    class Listens(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            ends.put_nowait(data.decode())

        def connection_lost(self, error: Exception | None) -> None:
            ends.put_nowait("lost")

    server = await loop.create_server(lambda: cuts.between(Listens(), False), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()

    async def say(text: str) -> asyncio.StreamWriter:
        _, writer = await asyncio.open_connection(host, port)
        writer.write(text.encode())
        return writer

    async with asyncio.timeout(DEADLINE_S):
        first = await say("one")
        assert await ends.get() == "one"
        cuts.block(opened_here=False)
        assert await ends.get() == "lost"
        second = await say("two")
        assert await ends.get() == "lost"
        cuts.unblock()
        third = await say("three")
        assert await ends.get() == "three"
        assert cuts.opened == {True: 0, False: 3}
        for writer in (first, second, third):
            writer.close()
        assert await ends.get() == "lost"
    server.close()


# ---- the script for Windows ---------------------------------------------------------------------


def tokens(text: str) -> Iterator[tuple[str, str]]:
    """The script as PowerShell reads it, as far as that says where blocks, strings and comments end. Raises ValueError
    for what never ends."""
    at = 0
    pattern = re.compile(
        r"(?P<comment><\#.*?\#>|\#[^\n]*)|(?P<single>'(?:[^']|'')*')|(?P<open>[@$]?[{(\[])|(?P<close>[})\]])"
        r"|(?P<variable>\$[\w:]+)|(?P<word>[\w-]+)|(?P<other>[^'\"])",
        re.DOTALL,
    )
    while at < len(text):
        if text[at] == '"':
            end = _string_end(text, at)
            yield "double", text[at:end]
            at = end
            continue
        match = pattern.match(text, at)
        if not match:
            raise ValueError(f"a string never ends: {text[at : at + 40]!r}")
        yield str(match.lastgroup), match[0]
        at = match.end()


def _string_end(text: str, start: int) -> int:
    """Behind a string in double quotes, in which `$( )` may have others."""
    at, depth = start + 1, 0
    while at < len(text):
        if text[at] == "`":
            at += 1
        elif text.startswith("$(", at):
            depth += 1
        elif depth and text[at] == ")":
            depth -= 1
        elif not depth and text[at] == '"':
            return at + 1
        at += 1
    raise ValueError(f"a string never ends: {text[start : start + 40]!r}")


def unbalanced(text: str) -> str:
    """The bracket that has no partner; "" if all have one."""
    pairs = {"}": "{", ")": "(", "]": "["}
    waiting: list[str] = []
    for kind, token in tokens(text):
        if kind == "open":
            waiting.append(token[-1])
        elif kind == "close" and (not waiting or waiting.pop() != pairs[token]):
            return token
    return "".join(waiting)


def blocks(text: str) -> dict[str, str]:
    """The commands of the script, and what each does."""
    table = text[text.index("$commands = @{") :]
    table = table[: table.index("\n}\n")]
    found = re.split(r"^    '(\w+)' = \{\n        param\(\$c\)\n", table, flags=re.MULTILINE)[1:]
    return dict(zip(found[::2], found[1::2], strict=True))


def test_the_script_does_what_this_side_can_ask_for_and_answers_what_it_reads() -> None:
    text = SCRIPT.read_text("ascii")  # PowerShell 5.1 takes other bytes for those of the machine's code page
    done = blocks(text)
    assert set(done) == set(language.COMMANDS)
    for name, block in done.items():
        fields = set(re.findall(r"\$c\.(\w+)", block)) - set(language.ALWAYS)
        assert fields == set(language.COMMANDS[name]), name
        answer = block[block.rindex("@{") :]
        assert set(re.findall(r"(?:^|[{;]) *(\w+) *= ", answer, re.MULTILINE)) == set(language.ANSWERS[name]), name
    request = text[text.index("function Invoke-Request") :]
    assert set(re.findall(r"\$c\.(\w+)", request)) == set(language.ALWAYS)
    places = text[text.index("$places = @{") :].partition("\n}")[0]
    assert tuple(re.findall(r"^    '(\w+)'", places, re.MULTILINE)) == language.PLACES
    assert f"$version = {language.VERSION}\n" in text
    assert f"$prefix = '{language.CONTROL}'\n" in text
    assert '$message.Label = "$($c.run) $($c.key) $n"' in text
    assert language.label_of("run", "key", 7) == "run key 7"


def test_the_stand_in_does_all_that_the_script_does() -> None:
    for name in language.COMMANDS:
        assert hasattr(Standin, f"_{name}"), name


def test_the_brackets_and_strings_of_the_script_end_and_its_functions_are_there_before_they_are_used() -> None:
    text = SCRIPT.read_text("ascii")
    assert unbalanced(text) == ""
    words = [
        word for kind, token in tokens(text) if kind in ("word", "double") for word in re.findall(r"[\w-]+", token)
    ]
    made = set(re.findall(r"^function ([\w-]+)", text, re.MULTILINE))
    used = {word for word in words if re.fullmatch(r"[A-Z]\w+-[A-Z]\w+", word)}
    cmdlets = {
        "Add-Type", "ConvertFrom-Json", "ConvertTo-Json", "ForEach-Object", "Get-Date", "Get-ItemProperty",
        "Get-Service", "New-Object", "Set-StrictMode", "Where-Object", "Write-Host",
    }  # fmt: skip
    assert used - made == cmdlets
    assert made <= used
    variables = {token for kind, token in tokens(text) if kind == "variable"}
    assert not {name for name in variables if name.lower() in ("$input", "$args", "$host", "$matches", "$error")}


@pytest.mark.parametrize("wrong", ["@{ a = (1 }", "if ($x) { 'a' ", '"$(Get-Date) and', "'never", "}"])
def test_a_script_that_does_not_end_is_noticed(wrong: str) -> None:
    with contextlib.suppress(ValueError):
        assert unbalanced(wrong)


@pytest.mark.skipif(not shutil.which("powershell") and not shutil.which("pwsh"), reason="there is no PowerShell")
def test_powershell_reads_the_script() -> None:
    program = shutil.which("powershell") or shutil.which("pwsh") or ""
    parse = (
        "$e = $null; [void][Management.Automation.Language.Parser]::ParseFile("
        f"'{SCRIPT}', [ref]$null, [ref]$e); $e | ForEach-Object {{ $_.Message }}; exit $e.Count"
    )
    done = subprocess.run(
        [program, "-NoProfile", "-Command", parse], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stdout
