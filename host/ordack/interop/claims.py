"""What a trial claims of two queue managers, row by row: what is expected, by which rule, and what came of it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

HELD, BROKEN, UNJUDGED = "held", "did not hold", "not judged"


class Claim(NamedTuple):
    """One row. title: for people. expected: what the specification asks for. rules: by their numbers."""

    key: str
    title: str
    expected: str
    rules: tuple[str, ...]


class Row(NamedTuple):
    """What came of a claim: HELD, BROKEN or UNJUDGED, what was found, and what to do."""

    claim: Claim
    verdict: str
    found: str
    advice: str = ""

    def as_json(self) -> dict[str, Any]:
        """The row as `--json` and report.json have it."""
        return {
            "claim": self.claim.key,
            "title": self.claim.title,
            "verdict": self.verdict,
            "found": self.found,
            "advice": self.advice,
            "expected": self.claim.expected,
            "rules": list(self.claim.rules),
        }


_ONCE = "each message is in the queue once, in the order of sending, byte for byte"
_IN_ORDER = ("B-008", "B-270", "B-271")

CLAIMS = {
    claim.key: claim
    for claim in (
        Claim("port", "the port takes connections", "the acceptor listens on TCP port 1801", ("B-001",)),
        Claim(
            "handshake",
            "the handshake ends in a session",
            "EstablishConnection and ConnectionParameters are answered, then the session is open",
            ("B-002", "B-208", "B-209", "B-215", "B-216"),
        ),
        Claim(
            "answers",
            "the script there answers",
            "a recoverable message goes each way",
            ("B-003", "B-264", "B-278"),
        ),
        Claim(
            "clocks",
            "both clocks agree to 5 s",
            "TimeToReachQueue is counted from the sender's clock to the receiver's",
            ("B-265", "B-267", "A-33"),
        ),
        Claim("to-express", "express messages to there", _ONCE, ("B-007", "B-221")),
        Claim("from-express", "express messages from there", _ONCE, ("B-007", "B-252")),
        Claim("to-recoverable", "recoverable messages to there", _ONCE, ("B-222", "B-248")),
        Claim("from-recoverable", "recoverable messages from there", _ONCE, ("B-248", "B-278")),
        Claim("to-transactional", "transactional messages to there", _ONCE, _IN_ORDER),
        Claim("from-transactional", "transactional messages from there", _ONCE, _IN_ORDER),
        Claim("to-large", "a message of 1,000,000 bytes to there", _ONCE, ("B-013",)),
        Claim("from-large", "a message of 1,000,000 bytes from there", _ONCE, ("B-013",)),
        Claim(
            "to-properties",
            "what applications write on a message, to there",
            "label, priority, application tag, extension, correlation identifier and body are as they were sent",
            ("B-302", "B-304"),
        ),
        Claim(
            "from-properties",
            "the same from there",
            "label, priority, application tag, extension, correlation identifier and body are as they were sent",
            ("B-282",),
        ),
        Claim(
            "to-cuts",
            "transactional messages to there, connections cut",
            _ONCE,
            ("B-299", "B-301", "B-217", "B-318", *_IN_ORDER),
        ),
        Claim(
            "from-cuts",
            "transactional messages from there, connections cut",
            _ONCE,
            ("B-299", "B-301", "B-217", "B-318", *_IN_ORDER),
        ),
        Claim(
            "to-no-queue",
            "a dead letter here: no such queue there",
            "a negative FinalAck of class 0x8000 comes, and the message goes to the dead-letter queue here",
            ("B-256", "B-260", "C-26", "C-55"),
        ),
        Claim(
            "to-plain-queue",
            "a dead letter here: the queue there is not transactional",
            "a negative FinalAck of class 0x8009 comes, and the message goes to the dead-letter queue here",
            ("B-257", "B-260", "C-26", "C-56"),
        ),
        Claim(
            "from-no-queue",
            "a dead letter there: no such queue here",
            "the message goes to the transactional dead-letter queue there, with class 0x8000",
            ("B-243", "B-394", "C-26", "C-55"),
        ),
        Claim(
            "from-plain-queue",
            "a dead letter there: the queue here is not transactional",
            "the message goes to the transactional dead-letter queue there, with class 0x8009",
            ("B-243", "B-394", "C-26", "C-56"),
        ),
        Claim(
            "to-ttrq",
            "TimeToReachQueue runs out here",
            "what could not be delivered in time is a dead letter here, class 0x8002, and never comes there",
            ("B-311", "B-313", "C-20"),
        ),
        Claim(
            "from-ttrq",
            "TimeToReachQueue runs out there",
            "what could not be delivered in time is a dead letter there, class 0x8002, and never comes here",
            ("B-311", "B-313", "C-20"),
        ),
        Claim(
            "to-received",
            "FinalAck when an application there receives",
            "nothing before the receive, then a positive FinalAck of class 0x4000",
            ("B-009", "B-338", "C-25", "C-50"),
        ),
        Claim(
            "from-received",
            "FinalAck when an application here receives",
            "the copy in the journal there appears after the receive, and not before",
            ("B-242", "B-338", "B-393", "C-25"),
        ),
        Claim(
            "to-purged",
            "FinalAck when the queue there is purged",
            "a negative FinalAck of class 0xC001, and a dead letter here",
            ("C-26", "C-53"),
        ),
        Claim(
            "acknowledgements",
            "administration acknowledgements from there",
            "class 0x0002 when it reaches its queue, 0x4000 when it is received, with its identifier",
            ("B-291", "B-336", "B-352", "C-50", "C-65"),
        ),
        Claim(
            "audit",
            "the audit of the capture",
            "every transactional stream in the capture is exactly once and in order",
            ("B-270", "B-271", "B-275"),
        ),
    )
}


def out_of_sequence(sent: Sequence[str], found: Sequence[str]) -> str:
    """What is wrong with what was found, in words; "" if it is what was sent, once and in order."""
    if list(sent) == list(found):
        return ""
    counts, known = Counter(found), set(sent)
    parts = []
    for what, which in (
        ("lost", [one for one in sent if not counts[one]]),
        ("more than once", [one for one in sent if counts[one] > 1]),
        ("never sent", [one for one in counts if one not in known]),
    ):
        if which:
            parts.append(f"{len(which):,} {what} (first: {which[0]})")
    once = [one for one in dict.fromkeys(found) if one in known]
    place = {one: at for at, one in enumerate(sent)}
    late = [one for before, one in itertools.pairwise(once) if place[one] < place[before]]
    if late:
        parts.append(f"out of order (first: {late[0]})")
    return "; ".join(parts)


def worst(rows: Sequence[Row]) -> str:
    """The verdict of all rows together."""
    verdicts = {row.verdict for row in rows}
    return BROKEN if BROKEN in verdicts else UNJUDGED if UNJUDGED in verdicts else HELD
