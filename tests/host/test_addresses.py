"""`press-7/commands` as an address: the queue of a board or queue manager, wherever it connects from."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqqb import guids
from ordack.broker.sending import address
from ordack.client import Client
from ordack.config.config import Config
from ordack.config.names import BadName, split_address
from ordack.store import Store

from tests.support.command import ordack, outgoing_of
from tests.support.host_peer import Peer, direct
from tests.support.host_world import Host, exchange, world_of

GUID = bytes([0xAB]) * 16
TEXT = guids.guid_text(GUID)[1:-1].lower()
THERE = f"DIRECT=OS:{TEXT}\\private$\\commands"
NAMES = {TEXT: "press 7", TEXT.replace("ab", "cd"): "Press-8"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    with Client(tmp_path, create=True) as client:
        client.create_queue("line/1")
        client.create_queue("press-8/own")
        hops = dict.fromkeys(("plantb", "10.0.0.5", "press-8"), ("10.0.0.9", 1802))
        client.store.keep_names(Config(names=NAMES, next_hops=hops).to_keep())
    return Store(tmp_path)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("press 7/commands", THERE),
        ("PRESS 7/commands", THERE),
        (f"{TEXT.upper()}/commands", THERE),
        (f"{{{TEXT}}}/commands", THERE),
        ("press 7/a/b", f"DIRECT=OS:{TEXT}\\private$\\a/b"),
        ("press-8/x", f"DIRECT=OS:{TEXT.replace('ab', 'cd')}\\private$\\x"),
        ("PlantB/line1", "DIRECT=OS:PlantB\\private$\\line1"),
        ("10.0.0.5/line1", "DIRECT=TCP:10.0.0.5\\private$\\line1"),
        ("line/1", "line/1"),
        ("press-8/own", "press-8/own"),  # a queue here of exactly this name
        ("line1", "line1"),
        (r"plant\private$\a/b", r"DIRECT=OS:plant\private$\a/b"),
        (r"FormatName: DIRECT=OS:plant\private$\a/b", r"DIRECT=OS:plant\private$\a/b"),
    ],
)
def test_name_and_queue_resolve_to_an_address(store: Store, text: str, meant: str) -> None:
    with store:
        assert address(store, text) == meant


def test_own_guid_resolves_to_a_local_queue(store: Store) -> None:
    with store:
        assert address(store, f"{guids.guid_text(store.guid)}/line1") == "line1"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("press-7/commands", r"the name 'press-7': known names are .*press 7.*\[names\]"),
        ("boiler/commands", "known names are Press-8, press 7"),
        ("/commands", "no board or queue manager has the name ''"),
        ("press 7/", "has 0 characters"),
        ("press 7/a;b", "';' is not allowed"),
    ],
)
def test_unknown_name_or_bad_queue_is_an_error(store: Store, text: str, said: str) -> None:
    with store, pytest.raises(BadName, match=said):
        address(store, text)


@given(st.text())
def test_only_a_slash_without_backslash_makes_an_address(text: str) -> None:
    found = split_address(text)
    assert found is None or "/".join(found) == text
    if "/" not in text or "\\" in text:
        assert found is None


def test_named_board_receives_over_its_own_sessions(tmp_path: Path) -> None:
    """The board connects, leaves and connects again. The messages wait in one queue in between."""
    host = Host(tmp_path, Config(names=NAMES))
    board = Peer(GUID, direct("line1"))
    bodies = []
    for number in range(3):
        with host.client() as client:
            sent = client.send("press 7/commands", b"%d" % number)
            assert sent.delivery == "transactional"
        board.send(b"reading")
        exchange(world_of([host], [board]))
        bodies = [body.properties.body.tobytes() for body in board.received]
        board.disconnect()
    assert bodies[-1] == b"2"
    assert [body for k, body in enumerate(bodies) if body not in bodies[:k]] == [b"0", b"1", b"2"]
    assert len([row for row in host.store.outgoing.queues() if row.format_name == THERE.lower()]) == 1
    host.store.close()


@pytest.mark.parametrize("own_names", [frozenset(), frozenset({"plant"})])
def test_queue_manager_accepts_its_own_guid_as_host(tmp_path: Path, own_names: frozenset[str]) -> None:
    host = Host(tmp_path, Config(own_names=own_names))
    guid = guids.guid_text(host.store.guid)[1:-1]
    peer = Peer(GUID, guids.parse_format_name(f"DIRECT=OS:{guid}\\private$\\line1"))
    peer.send(b"x")
    exchange(world_of([host], [peer]))
    assert host.content("line1") == [b"x"]
    host.store.close()


def test_commands_take_the_name_of_a_board(store: Store, tmp_path: Path) -> None:
    store.close()

    def run(*arguments: str, status: int = 0) -> str:
        done = ordack(*arguments, "--store", tmp_path)
        assert done.returncode == status, done.stderr
        return " ".join((done.stdout + done.stderr).split())

    assert "to press 7/commands, transactional" in run("send", "press 7/commands", "--body", "on")
    run("queue", "pause", "press 7/commands")
    [queue] = outgoing_of(tmp_path)
    assert (queue["format_name"], queue["on_hold"], queue["peer_name"]) == (THERE.lower(), True, "press 7")
    run("queue", "resume", "PRESS 7/commands")
    assert not outgoing_of(tmp_path)[0]["on_hold"]
    assert "known names are" in run("send", "press-9/commands", "--body", "on", status=2)
    assert "known names are" in run("queue", "pause", "boiler/commands", status=2)
    run("send", "line/1", "--body", "on")
    assert "removed 1 message" in run("message", "purge", "press 7/commands", "--yes")
    with Client(tmp_path) as client:
        client.send("line/1", b"moved")
        queue_of = client.queue("line/1")
        first = next(iter(queue_of.peek()))
        told = client.order("move", queue_of.identifier, first.lookup_id, "press 7/commands", False)
        assert told[0].lower() == THERE.lower()
        sent = client.send("line/1", b"asks", response_queue="press 7/answers")
        assert sent.delivery == "transactional"
        assert [message.response_queue for message in queue_of.peek()][-1] == THERE.replace("commands", "answers")
