"""Names that boards announce as they connect: remembered, bounded, and never taken over by another peer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqqb import compose, core, guids, names
from ordack.broker import announced
from ordack.broker.announced import Announced
from ordack.broker.serve_log import Operator
from ordack.broker.status import glance
from ordack.config.config import Config
from ordack.config.names import BadName, folded
from ordack.store import Store

from tests.support.host_peer import Peer, direct
from tests.support.host_world import Host, exchange, world_of

DAY_S = 86400
GUIDS = [bytes([number]) * 16 for number in range(1, 5)]
TEXTS = [guids.guid_text(guid)[1:-1].lower() for guid in GUIDS]


class Claimant:
    """Announces names to a store without sessions."""

    def __init__(self, folder: Path, **configured: str) -> None:
        self.log: list[str] = []
        self.store = Store(folder, create=True)
        self.config = Config(names=configured)
        self.store.keep_names(self.config.to_keep())
        self.start()

    def start(self) -> None:
        self.names = Announced(self.store, self.config, Operator(self.log.append, lambda text: text))

    def say(self, guid: bytes, name: str | bytes, wall: int = 0, certificate: str = "") -> None:
        said = name.encode() if isinstance(name, str) else name
        link: Any = SimpleNamespace(
            peer=guid, address="10.0.0.9", certificate=certificate, session=SimpleNamespace(announced=said)
        )
        self.names.take(link, wall)
        self.names.save()

    def owner(self, name: str) -> str:
        try:
            return self.store.guid_named(name)
        except BadName:
            return ""


def test_request_announces_the_name_in_its_padding() -> None:
    plain = compose.establish_connection(GUIDS[0], names.NULL_GUID, 1)
    named = compose.establish_connection(GUIDS[0], names.NULL_GUID, 1, name=b"ordack name:press-7\0")
    assert len(plain) == len(named) == core.PACKET_SIZE_ESTABLISH_CONNECTION
    assert plain[: core.ESTABLISH_END] == named[: core.ESTABLISH_END]
    assert named[core.ESTABLISH_END :].rstrip(b"\x5a") == b"ordack name:press-7\0"
    assert set(plain[core.ESTABLISH_END :]) == {0x5A}


def test_announced_name_is_an_address_and_survives_a_restart(tmp_path: Path) -> None:
    host = Host(tmp_path)
    board = Peer(GUIDS[0], direct("line1"))
    board.name = "press-7"
    board.send(b"reading")
    world = world_of([host], [board])
    exchange(world)
    host.manager.poll(world.now, world.wall + 1)
    assert [session["peer_name"] for session in host.manager.report()["sessions"]] == ["press-7"]
    host.restart(world.now)
    assert host.manager.announced.names.of(TEXTS[0]) == "press-7"
    with host.client() as client:
        client.send("Press-7/commands", b"on")
    board.disconnect()
    exchange(world_of([host], [board]))
    assert [bytes(message.properties.body) for message in board.received] == [b"on"]
    host.store.close()


def test_name_of_two_boards_is_a_problem_while_the_second_is_connected(tmp_path: Path) -> None:
    host = Host(tmp_path)
    boards = [Peer(guid, direct("line1")) for guid in GUIDS[:2]]
    for board in boards:
        board.name = "press-7"
    world = world_of([host], boards)
    exchange(world)
    for second in range(1, 12):
        host.manager.poll(world.now + 1000 * second, world.wall + second)
    problems = glance(host.store, shown=host.manager.report())["problems"]
    assert len([problem for problem in problems if "announces the name press-7, which" in problem]) == 1
    assert len([line for line in host.log if "announces the name press-7, which" in line]) == 1
    for wire in list(world.wires):
        wire.cut()
    assert host.manager.report()["disputes"] == []
    host.store.close()


def test_certificate_with_the_name_overrides_an_earlier_claim(tmp_path: Path) -> None:
    claims = Claimant(tmp_path)
    claims.say(GUIDS[0], "press-7")
    claims.say(GUIDS[1], "press-7", certificate="press-8")
    assert claims.owner("press-7") == TEXTS[0]
    claims.say(GUIDS[1], "press-7", certificate="PRESS-7")
    assert claims.owner("press-7") == TEXTS[1]
    assert "which its certificate proves" in claims.log[-1]
    assert claims.names.names.of(TEXTS[0]) is None
    claims.say(GUIDS[0], "press-7")
    assert claims.owner("press-7") == TEXTS[1]


def test_configured_names_override_claims(tmp_path: Path) -> None:
    claims = Claimant(tmp_path, **{TEXTS[0]: "press-7"})
    claims.say(GUIDS[1], "PRESS-7", certificate="press-7")
    claims.say(GUIDS[0], "boiler")
    assert (claims.owner("press-7"), claims.owner("boiler")) == (TEXTS[0], "")
    assert (claims.names.names.of(TEXTS[0]), claims.names.names.of(TEXTS[1])) == ("press-7", None)
    claims.say(GUIDS[2], "press-9")
    claims.config = Config(names={TEXTS[3]: "press-9"})
    claims.store.keep_names(claims.config.to_keep())
    claims.start()
    assert claims.owner("press-9") == TEXTS[3]
    assert claims.names.names.of(TEXTS[2]) is None
    assert claims.store.peer_names().of(TEXTS[2]) is None


def test_former_names_of_a_guid_stay_its_own(tmp_path: Path) -> None:
    """Whoever repeats a GUID cannot free its name for another one."""
    claims = Claimant(tmp_path)
    claims.say(GUIDS[0], "press-7", 0)
    for number in range(announced.CLAIMS_OF_PEER + 3):
        claims.say(GUIDS[0], f"other{number}", 1 + number)
    claims.say(GUIDS[1], "press-7", 10)
    assert claims.owner("press-7") == TEXTS[0]
    assert len(claims.store.claims.all()) == announced.CLAIMS_OF_PEER
    claims.say(GUIDS[0], "press-7", 20)
    assert claims.names.names.of(TEXTS[0]) == claims.store.peer_names().of(TEXTS[0]) == "press-7"
    claims.say(GUIDS[0], "other9", 21 + announced.IDLE_S)
    assert claims.owner("other9") == TEXTS[0]


def test_full_store_takes_no_name_until_one_is_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announced, "CLAIMS_MAX", 3)
    claims = Claimant(tmp_path)
    for place, guid in enumerate(GUIDS):
        claims.say(guid, f"press-{place}", place)
    assert [claims.owner(f"press-{place}") for place in range(4)] == [*TEXTS[:3], ""]
    assert "there is no room for it" in claims.log[-1]
    claims.say(GUIDS[0], "press-0", 2 * DAY_S)
    claims.say(GUIDS[3], "press-3", announced.IDLE_S + 2)
    assert [claims.owner(f"press-{place}") for place in range(4)] == [TEXTS[0], "", TEXTS[2], TEXTS[3]]


@given(st.binary(min_size=1, max_size=100) | st.text(min_size=1, max_size=80).map(lambda text: text.encode()))
def test_any_bytes_give_a_plain_name_or_none(said: bytes) -> None:
    names: Any = SimpleNamespace(
        _store=SimpleNamespace(guid=b""), _configured={}, disputes={}, _claims={}, _reserved=set(), _shown={}, taken=[]
    )
    names._refuse = lambda _link, text: names.taken.append(None)
    names._has_room = lambda _guid, _wall: True
    names._hold = lambda claim: names.taken.append(claim.name)
    link: Any = SimpleNamespace(peer=GUIDS[0], address="", certificate="", session=SimpleNamespace(announced=said))
    Announced.take(names, link, 0)
    [name] = names.taken
    if name is not None:
        assert name.encode() == said
        assert name.isprintable()
        assert name == name.strip()
        assert not set(name) & set("/\\()=,;{}'\"")
        assert len(name) <= 64


@given(
    st.lists(
        st.tuples(st.sampled_from(GUIDS), st.sampled_from(["a", "A", "ä", "A\u0308", "b"]), st.integers(0, 3)),
        max_size=20,
    )
)
def test_first_peer_keeps_a_name_in_any_order_of_claims(
    tmp_path_factory: Any, said: list[tuple[bytes, str, int]]
) -> None:
    claims = Claimant(tmp_path_factory.mktemp("claims"))
    first: dict[str, bytes] = {}
    current: dict[bytes, str] = {}
    for wall, (guid, name, restarts) in enumerate(said):
        claims.say(guid, name, wall)
        is_name = name != "A\u0308"  # a combining mark is no letter
        if is_name and first.setdefault(folded(name), guid) == guid:
            current[guid] = name
        if not restarts:
            claims.start()
        for one, owner in first.items():
            assert claims.owner(one) == guids.guid_text(owner)[1:-1].lower()
        for guid_, text in zip(GUIDS, TEXTS, strict=True):
            assert claims.names.names.of(text) == claims.store.peer_names().of(text) == current.get(guid_)
    claims.store.close()
