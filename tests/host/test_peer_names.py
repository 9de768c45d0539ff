"""Names that people know, wherever a GUID shows."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqqb import guids
from ordack.broker.manager import Manager
from ordack.client import Client
from ordack.config.config import Config
from ordack.config.names import PeerNames
from ordack.server.metrics import Metrics
from ordack.store import Store

from tests.support.command import Serve, as_json, converse, ordack, outgoing_of
from tests.support.host_peer import Peer, direct
from tests.support.host_world import Host, exchange, peer_of, world_of

ONE, TWO = bytes([0xAB]) * 16, bytes([2]) * 16  # letters have two cases
TEXT = guids.guid_text(ONE)
NAMES = PeerNames({TEXT[1:-1].lower(): "press 7"})


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"{TEXT} is late", f"{TEXT} (press 7) is late"),
        (f"PRIVATE={TEXT[1:-1]}\\0000000A: on hold", f"PRIVATE={TEXT[1:-1]}\\0000000A (press 7): on hold"),
        (f"{TEXT.lower()}\\12 and {TEXT}", f"{TEXT.lower()}\\12 (press 7) and {TEXT} (press 7)"),
        (f"{TEXT}\\4294967295/3 to line1", f"{TEXT}\\4294967295/3 (press 7) to line1"),
        (guids.guid_text(TWO), guids.guid_text(TWO)),
        (f"{TEXT[1:-1]}0", f"{TEXT[1:-1]}0"),
        (f"f{TEXT[1:-1]}", f"f{TEXT[1:-1]}"),
        ("line1", "line1"),
    ],
)
def test_a_name_stands_behind_its_guid(text: str, shown: str) -> None:
    assert NAMES.added(text) == shown
    assert NAMES.of(text) == ("press 7" if shown != text else None)
    assert PeerNames({}).added(text) == text


def test_board_with_erased_outbox_is_recognized_by_chip_id() -> None:
    board = "0f3a9c52-71d4-8b06-9e21-1a2b3c4d5e6f"
    names = PeerNames({board: "press 3", "0f3a9c52-71d4-4b06-9e21-0a0b0c0d0e0f": "the plant"})
    anew = "{5C11E0D8-0A3B-8F77-A4E0-1A2B3C4D5E6F}"
    assert (
        names.added(f"{anew} is new, {board} is not")
        == f"{anew} (press 3, another outbox) is new, {board} (press 3) is not"
    )
    assert names.of(anew) == "press 3, another outbox"
    assert names.of("5c11e0d8-0a3b-4f77-a4e0-1a2b3c4d5e6f") is None  # of no board
    assert names.of("5c11e0d8-0a3b-8f77-a4e0-0a0b0c0d0e0f") is None  # no board has the other's
    assert names.of("5c11e0d8-0a3b-8f77-a4e0-1a2b3c4d5e60") is None


@given(st.text(), st.text())
def test_nothing_else_of_a_text_changes(before: str, behind: str) -> None:
    text = f"{before} {TEXT} {behind}"
    assert NAMES.added(text) == text.replace(TEXT, f"{TEXT} (press 7)")


def test_boards_behind_one_address_are_counted_by_their_names(tmp_path: Path) -> None:
    names = {guids.guid_text(bytes([number]) * 16)[1:-1].lower(): f"press {number}" for number in (1, 2)}
    host = Host(tmp_path, Config(names=names))
    boards = [peer_of(number) for number in (1, 2, 3)]
    world = world_of([host], boards)
    for board, count in zip(boards, (1, 2, 3), strict=True):
        for _ in range(count):
            board.send(b"x")
    exchange(world)
    for second in (0, 5):
        host.manager.poll(world.now + 1000 * second, world.wall + second)
    shown = Metrics(host.manager, lambda _store: []).text(host.store)[0].decode()
    assert 'ordack_peer_received_total{peer="press 1"} 1.0' in shown
    assert 'ordack_peer_received_total{peer="press 2"} 2.0' in shown
    assert 'ordack_peer_received_total{peer="10.0.0.9"} 3.0' in shown
    for peer in ("press 1", "press 2", "10.0.0.9"):
        assert f'ordack_peer_sessions{{peer="{peer}"}} 1.0' in shown
        assert f'ordack_peer_in_flight{{peer="{peer}"}}' in shown
    for wire in list(world.wires):
        wire.cut()
    shown = Metrics(host.manager, lambda _store: []).text(host.store)[0].decode()
    for peer in ("press 1", "press 2", "10.0.0.9"):
        assert f'ordack_peer_sessions{{peer="{peer}"}} 0.0' in shown
    host.store.close()


def test_log_reports_board_with_erased_outbox(tmp_path: Path) -> None:
    board, anew = "0f3a9c52-71d4-8b06-9e21-1a2b3c4d5e6f", "{5C11E0D8-0A3B-8F77-A4E0-1A2B3C4D5E6F}"
    host = Host(tmp_path, Config(names={board: "press 3"}))
    for guid in (board, anew):
        peer = Peer(guids.guid_bytes(guid), direct("line1"))
        peer.send(b"x")
        exchange(world_of([host], [peer]))
    [line] = host.log
    assert line.startswith(
        f"10.0.0.9: {anew} (press 3, another outbox) has connected: if the outbox of press 3 was erased"
    )
    assert "--replace" in line
    host.store.close()


def test_every_command_that_shows_a_guid_shows_the_name(tmp_path: Path) -> None:
    with Client(tmp_path, create=True) as client:
        client.create_queue("line1", transactional=True)
        client.send(f"PRIVATE={TEXT[1:-1]}\\00000001", b"to a board")
    (tmp_path / "ordack.toml").write_text(f"[names]\n'{TEXT}' = 'press 7'\n")
    running = Serve(tmp_path)
    try:
        for guid, stamp in ((ONE, 100), (TWO, 101)):
            peer = Peer(guid, direct("line1"), time_stamp=stamp)
            peer.send(b"x")
            converse(peer, running.port)
        first, second = as_json("receive", "--store", tmp_path, "line1", "--peek")
        assert (first["source_name"], second["source_name"]) == ("press 7", None)
        assert first["source"] in (TEXT, TEXT[1:-1])
        assert "(press 7) transactional" in ordack("receive", "--store", tmp_path, "line1").stdout
        [queue] = [row for row in outgoing_of(tmp_path) if not row["returns"]]
        assert queue["peer_name"] == "press 7"
        assert "(press 7)" in "".join(ordack("status", "--store", tmp_path).stdout.split("\n"))
        told = json.loads(ordack("status", "--store", tmp_path, "--json").stdout)
        assert any("(press 7): " in problem for problem in told["problems"])
        (tmp_path / "ordack.toml").write_text(f"[names]\n'{TEXT}' = 'press 8'\n")
        running.stop()
        running = Serve(tmp_path)
        assert any(row["peer_name"] == "press 8" for row in outgoing_of(tmp_path))
    finally:
        running.stop()


def test_status_shows_names_and_breaks_no_identifier(tmp_path: Path) -> None:
    (tmp_path / "ordack.toml").write_text(f"[names]\n'{TEXT}' = 'press 7'\n")
    queue = "q" * 120
    running = Serve(tmp_path)
    try:
        with Client(tmp_path) as client:
            client.create_queue(queue)
            client.send(f"press 7/{queue}", b"on")
        told = ordack("status", "--store", tmp_path).stdout
        assert f" press 7/{queue} " in told
        assert f" {queue} " in told
        assert TEXT[1:-1].lower() not in told.partition("waiting")[0].lower()
        with_guids = ordack("status", "--guids", "--store", tmp_path).stdout
        assert f" press 7/{queue} direct=os:{TEXT[1:-1].lower()}\\private$\\{queue} " in with_guids
    finally:
        running.stop()


def test_the_metrics_have_the_name_of_the_destination(tmp_path: Path) -> None:
    board = f"PRIVATE={TEXT[1:-1]}\\00000001"
    with Client(tmp_path, create=True) as client:
        client.send(board, b"1", ttrq=1, dead_letter=True)
        client.send(board, b"2", "waits")
    with Store(tmp_path) as store:
        store.lock_manager()
        manager = Manager(store, 0, Config(names={TEXT[1:-1].lower(): "press 7"}))
        manager.poll(5000, int(time.time()) + 5)
        shown = Metrics(manager, lambda _store: []).text(store)[0].decode().replace("\\\\", "\\")
        assert f'ordack_outgoing_messages{{destination="{board.lower()} (press 7)"}} 1.0' in shown
