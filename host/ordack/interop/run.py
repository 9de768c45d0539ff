"""A whole trial: this side is started, the other one greeted, every claim judged, everything put away, and reported."""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import shutil
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from ordack.config import PORT, check_host, format_address, parse_address
from ordack.interop.claims import BROKEN, CLAIMS, HELD, UNJUDGED, Row, worst
from ordack.interop.far import Far, NoAnswer, Refused, Stopped
from ordack.interop.here import Here, TrialError, address_towards
from ordack.interop.meeting import Meeting
from ordack.interop.trial import Plan, Trial
from ordack.links import Hop
from ordack.store import StoreError

CUTS = 10  # unless somebody wants others,
CUT_EVERY = 10  # and one for so many messages at most

STOPPED = "the trial was stopped"
NOT_MET = "the two sides have not met: see the rows above"
AUDIT_VERDICTS = {"no violations": HELD, "violations": BROKEN, "incomplete": UNJUDGED}


class Settings(NamedTuple):
    """host: the other machine in direct names, hop: where it is. address: this one in direct names there, listen: where
    it takes connections. folder: for capture, log and report. patience: s. only: keys of the claims to
    judge; empty: all."""

    host: str
    hop: Hop
    address: str
    listen: Hop
    folder: Path
    messages: int
    cuts: int
    patience: float
    seed: int
    only: frozenset[str]


class Outcome(NamedTuple):
    """rows: one for each claim, in their order. notes: what else people should know. greeting: what the script says of
    its machine, empty if it has not answered. stopped: the number of the signal that has ended it, or 0."""

    run: str
    rows: list[Row]
    notes: list[str]
    greeting: dict[str, Any]
    stopped: int

    @property
    def verdict(self) -> str:
        return worst(self.rows)

    def as_json(self, settings: Settings) -> dict[str, Any]:
        """What is not in the rows."""
        return {
            "verdict": self.verdict,
            "run": self.run,
            "seed": settings.seed,
            "host": format_address(*settings.hop),
            "address": settings.address,
            "folder": str(settings.folder),
            "notes": self.notes,
            "windows": self.greeting,
        }


def settings_of(
    host: str,
    listen: str | None,
    address: str | None,
    folder: Path | None,
    messages: int,
    cuts: int | None,
    patience: float,
    seed: int | None,
    only: Sequence[str] = (),
) -> Settings:
    """What the options mean. Raises ValueError for one that cannot be, TrialError for a machine that nobody knows."""
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if host.count(":") != 1 and not host.startswith("["):
        host = format_address(host, PORT)
    for key in only:
        if key not in CLAIMS:
            raise ValueError(f"--only {key}: there is no such claim; there are {', '.join(CLAIMS)}")
    name, port = parse_address(host)
    check_host(name)
    if port == 0:
        raise ValueError(f"{host!r}: port 0 takes no connections")
    own, own_port = "", PORT
    if listen is not None:
        own, own_port = parse_address(listen if ":" in listen else f"{listen}:{PORT}")
        if own_port == 0:
            raise ValueError(f"{listen!r}: the other side must know the port; it connects to {PORT}")
    if not own:
        own = address_towards(name)
    if address is None:
        address = address_towards(name) if own in ("0.0.0.0", "::") else own
    check_host(address)
    if address.lower() == name.lower():
        raise ValueError(
            f"{address} cannot be both sides: HOST is the other machine, --address and --listen are this one"
        )
    if cuts is None:
        cuts = min(CUTS, messages // CUT_EVERY)
    elif cuts * CUT_EVERY > messages:
        raise ValueError(
            f"--cuts {cuts}: at most one for {CUT_EVERY} messages, or connections never come up; raise --messages"
        )
    if folder is None:
        folder = Path(f"ordack-interop-{datetime.now().astimezone():%Y%m%d-%H%M%S}").absolute()
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty: name a new folder")
    number = secrets.randbelow(1_000_000) if seed is None else seed
    return Settings(
        name, (name, port), address, (own, own_port), folder, messages, cuts, patience, number, frozenset(only)
    )


def direct(host: str) -> str:
    """The beginning of a direct format name of this machine."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return f"DIRECT=OS:{host}"
    return f"DIRECT=TCP:{host}"


def run(settings: Settings, show: Callable[[str], None], stopped: Callable[[], int]) -> Outcome:
    """Try everything. show: is told what happens. stopped: the number of a signal that is to end it, else 0.

    Raises TrialError if this side cannot be started, OSError if the folder cannot be written.
    """
    settings.folder.mkdir(parents=True, exist_ok=True)
    name = secrets.token_hex(3)
    meeting = Meeting(settings.hop, show)
    if not meeting.port():
        return _finished(settings, name, meeting, meeting.rows, [], 0)
    here = Here(settings.folder, settings.listen, settings.host.lower(), settings.hop, settings.seed)
    rows = meeting.rows
    notes: list[str] = []
    ended_by = 0
    try:
        here.start()
        far = Far(here, name, direct(settings.host), direct(settings.address), settings.patience, stopped)
        trial = None
        try:
            if meeting.begin(here, far, settings.address, settings.listen[1]):
                notes += _warnings(meeting.greeting, far)
                clocks = rows[-1].verdict == HELD
                trial = Trial(here, far, Plan(settings.messages, settings.cuts, settings.only, clocks), show)
                trial.run()
        except Stopped as error:
            ended_by = error.number
        finally:
            if trial:
                rows = [*rows, *trial.rows]
        if meeting.greeting:
            notes += _put_away(here, far, show)
    except StoreError as error:
        raise TrialError(f"the store of this side: {error}") from None
    finally:
        here.stop()
        shutil.rmtree(here.store, ignore_errors=True)
        with contextlib.suppress(OSError):
            settings.folder.rmdir()  # if nothing has come of it
    if meeting.greeting and (not settings.only or "audit" in settings.only):
        rows = [*rows, audit_row(settings.folder, show)]
    return _finished(settings, name, meeting, rows, notes, ended_by)


def _warnings(greeting: dict[str, Any], far: Far) -> list[str]:
    """What of the other machine people should know."""
    notes = []
    if old := [queue for queue in greeting["queues"] if far.run not in queue]:
        notes.append(
            f"queues of earlier trials are there: {', '.join(map(str, old))}; they do no harm, and the script removes "
            "them when it starts or ends"
        )
    if greeting["hardened"]:
        notes.append("hardened_msmq is set there: Windows sends nothing over this protocol after its next restart")
    return notes


def _put_away(here: Here, far: Far, show: Callable[[str], None]) -> list[str]:
    """Let the script remove the queues and copies of this trial."""
    show("removing the queues of this trial there")
    here.cuts.forget()
    here.cuts.unblock()
    far.stopped = lambda: 0
    try:
        far.answer(far.post("end"), far.patience)
    except (NoAnswer, Refused) as error:
        return [
            f"queues named {far.queue('*')} are still there ({error}): the script removes them when it starts or ends"
        ]
    return []


def audit_row(folder: Path, show: Callable[[str], None]) -> Row:
    """The audit of the capture, as `ordack audit` does it; its files go to the folder."""
    claim = CLAIMS["audit"]
    show("auditing the capture")
    try:
        from ordack.audit import files, tasks
    except ModuleNotFoundError as error:
        return Row(
            claim,
            UNJUDGED,
            f"not run: the package {(error.name or '').partition('.')[0]} is missing",
            f"pip install 'ordack[spark]', then ordack audit {folder}",
        )
    try:
        result = tasks.run(sorted(folder.glob("capture*.pcapng")))
        tasks.require_packets(result)
        files.save(result, folder / "audit")
    except (tasks.CaptureUnusable, OSError) as error:
        return Row(claim, UNJUDGED, str(error))
    lines = files.text_of(result)
    verdict = AUDIT_VERDICTS[result.summary["verdict"]]
    advice = "" if verdict == HELD else f"ordack audit {folder} --html report.html shows where"
    return Row(claim, verdict, f"{result.summary['messages']:,} messages, {lines[-1]}", advice)


def _finished(
    settings: Settings, name: str, meeting: Meeting, rows: list[Row], notes: list[str], ended_by: int
) -> Outcome:
    """A row for every claim that was to be judged."""
    known = {row.claim.key: row for row in rows}
    why = STOPPED if ended_by else NOT_MET
    wanted = settings.only | known.keys() if settings.only else CLAIMS.keys()
    found = [known.get(key) or Row(claim, UNJUDGED, why) for key, claim in CLAIMS.items() if key in wanted]
    return Outcome(name, found, notes, meeting.greeting, ended_by)
