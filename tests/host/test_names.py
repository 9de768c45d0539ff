"""Queues are found under every name that MSMQ's users have for them, or the name to use is told."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ordack.client import Client
from ordack.config.names import BadName, destination, local_queue, queue_name

from tests.support.command import DEADLINE_S, Serve, as_json, ordack, outgoing_of

pytestmark = pytest.mark.slow

HERE = socket.gethostname()
NAMES = st.text(
    st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters='\\;+,"'), min_size=1, max_size=20
).filter(lambda name: "private$" not in name.lower() and "=" not in name and ":" not in name)
PLACES = st.sampled_from(
    [
        "",
        "private$\\",
        ".\\private$\\",
        "localhost\\private$\\",
        f"{HERE}\\private$\\",
        "DIRECT=OS:.\\private$\\",
        "DIRECT=TCP:127.0.0.1\\private$\\",
        "OS:.\\private$\\",
    ]
)


def _in_any_case(text: str, upper: list[bool]) -> str:
    return "".join(letter.upper() if big else letter.lower() for letter, big in zip(text, upper))


@given(NAMES, PLACES, st.booleans(), st.lists(st.booleans(), min_size=80, max_size=80))
def test_every_spelling_of_local_queue_names_it(name: str, place: str, labelled: bool, upper: list[bool]) -> None:
    text = _in_any_case(("FormatName:" if labelled else "") + place, upper) + name
    assert local_queue(text) == name
    assert queue_name(name) == name


@given(NAMES, st.sampled_from(["plant", "10.0.0.5", "plant.example"]), st.booleans(), st.booleans(), st.booleans())
def test_every_spelling_of_remote_queue_names_it(
    name: str, host: str, labelled: bool, kind: bool, protocol: bool
) -> None:
    protocol = protocol or kind
    said = "TCP" if host[0] == "1" else "OS"
    place = f"{'Direct=' if kind else ''}{said + ':' if protocol else ''}{host}\\PRIVATE$\\{name}"
    text = ("FORMATNAME:" if labelled else "") + place
    meant = destination(text)
    assert meant.upper() == f"DIRECT={said}:{host}\\private$\\{name}".upper()
    assert meant.endswith(name)
    with pytest.raises(BadName, match=rf"is a queue of the machine {host}: .*such as line1 or "):
        local_queue(text)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("private$line1", "no backslash, perhaps because a shell took it away: write the name in single quotes"),
        (".private$line1", "no backslash"),
        ("DIRECT=TCP:10.0.0.5private$line1", "no backslash"),
        (".\\line1", r"a public queue, which needs a directory service; .* name is \.\\private\$\\line1"),
        ("plant\\line1", r"the private one of that name is plant\\private\$\\line1"),
        ("PUBLIC=01010101-0101-0101-0101-010101010101", r"directory service|use the queue's name"),
        ("MULTICAST=234.1.1.1:8001", r"multicast|use the queue's name"),
    ],
)
def test_invalid_queue_name_error_suggests_valid_name(text: str, advice: str) -> None:
    with pytest.raises(BadName, match=advice):
        destination(text)
    with pytest.raises(BadName):
        local_queue(text)


@pytest.mark.parametrize("name", ["Halle 2", "Töpferei", "a'b/c%$&=#<>|*?", "日本 \U0001f321"])
def test_a_queue_has_any_name_that_msmq_allows(store: Path, name: str) -> None:
    assert ordack("queue", "create", "--store", store, name).returncode == 0
    assert ordack("queue", "create", "--store", store, name.upper()).returncode == 1
    serve, far = Serve(store), store / "far"
    with Client(far, create=True):
        pass
    sender = Serve(far, "--next-hop", f"plant=127.0.0.1:{serve.port}")
    ordack("send", "--store", far, f"DIRECT=OS:plant\\private$\\{name.lower()}", "--body", "21.5")
    with Client(store) as client, client.queue(name).receive(DEADLINE_S) as message:
        assert message.body == b"21.5"
    assert [sender.stop()[0], serve.stop()[0]] == [0, 0]
    assert as_json("send", "--store", store, name.upper(), "--body", "x")[0]["delivery"] == "transactional"
    assert ordack("table", "export", name, "--store", store, "--to", store / "segments").returncode == 0
    assert ordack("queue", "delete", "--yes", "--store", store, name).returncode == 0


def test_the_commands_take_the_spellings_of_msmq(store: Path) -> None:
    assert ordack("queue", "create", "--store", store, ".\\private$\\Here").stdout == "created Here\n"
    for place in ("FormatName:DIRECT=OS:.\\Private$\\here", ".\\PRIVATE$\\here", f"{HERE}\\private$\\HERE"):
        as_json("send", "--store", store, place, "--body", "x")
    assert len(as_json("receive", "--store", store, "DIRECT=OS:.\\private$\\here", "--all")) == 3
    assert as_json("receive", "--store", store, ".\\XactDeadLetter$") == []
    assert as_json("receive", "--store", store, "FormatName:DIRECT=OS:.\\SYSTEM$;DEADXACT") == []
    assert ordack("queue", "quota", "--store", store, ".\\private$\\here", "5").returncode == 0
    for command in (["queue", "create"], ["message", "purge"], ["receive"]):
        swallowed = ordack(*command, "--store", store, "private$line2")
        assert swallowed.returncode == 2
        assert "in single quotes, as in 'private$\\line1'" in swallowed.stderr
    as_json("send", "--store", store, "plant\\private$\\q", "--body", "x")
    assert [queue["format_name"] for queue in outgoing_of(store)] == ["direct=os:plant\\private$\\q"]
    assert ordack("queue", "pause", "--store", store, "FormatName:Direct=OS:PLANT\\private$\\Q").returncode == 0
    with Client(store) as client:
        client.send("line1", b"x", acknowledge=["receive"], administration_queue="plant\\private$\\admin")
        assert client.queue(".\\private$\\LINE1").name == "line1"
