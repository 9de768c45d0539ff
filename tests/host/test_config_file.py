"""`ordack.toml`: what it may say, what is told of mistakes, and what `serve` and the commands make of it."""

from __future__ import annotations

import json
import os
import random
import re
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqqb import guids
from ordack.broker.serve_log import ServeLog
from ordack.cli import serve as serve_command
from ordack.client import Client
from ordack.config import config_file, settings
from ordack.config.config import Access, Config, Networks, SerialSettings, parse_network
from ordack.config.config_file import BadConfigFile, ConfigFile, Listen
from ordack.config.settings import FLAG, NUMBER, NUMBERS, TABLES

from tests.support.command import DEADLINE_S, Serve, as_json, ordack

FILE = Path("/etc/ordack.toml")
OTHER = "0b2c6a4e-3d55-4e2f-9b7a-2c1d5e8f9a10"
GUID = "8a6a9e0c-1b5c-4d1e-9a62-3f0d0c7f4a11"


def _networks(*texts: str) -> Networks:
    return Networks(tuple(map(parse_network, texts)))


def parse(text: str) -> ConfigFile:
    return config_file.parse(text, FILE)


def problems(text: str) -> list[str]:
    with pytest.raises(BadConfigFile) as caught:
        parse(text)
    return caught.value.problems


def understood(text: str) -> tuple[ConfigFile | None, list[str]]:
    """What a file says, or what is wrong with it."""
    try:
        return parse(text), []
    except BadConfigFile as error:
        return None, error.problems


def test_config_file_accepts_every_option() -> None:
    found = parse(
        f"""
        own-names = ["Plant", "10.0.0.5"]
        log-format = "json"
        http = 9180
        [[listen]]
        [[listen]]
        address = "::1"
        port = 0
        [[listen]]
        address = "::1"
        port = 0
        allow = ["10.0.0.0/8", "10.0.0.5"]
        [[applications]]
        port = 1804
        allow = ["127.0.0.1"]
        [[applications]]
        address = "0.0.0.0"
        port = 1804
        allow-plain = true
        [[applications]]
        address = "::1"
        port = 1804
        [[applications]]
        address = "localhost"
        port = 1805
        [[serial]]
        port = "/dev/ttyACM0"
        [[serial]]
        port = "socket://localhost:7"
        name = "Press7"
        baud = 9600
        [next-hops]
        office = "10.0.0.7:1802"
        "{GUID.upper()}" = "[::1]:5"
        [public-queues]
        "{{{GUID.upper()}}}" = 'DIRECT=OS:plant\\private$\\admin'
        [capture]
        file = "captures/plant.pcap"
        size = 0x200000
        [queues.'.\\private$\\Line1']
        allow-addresses = ["10.0.0.0/8", "Press7", "::1"]
        allow-sources = ["{{{GUID}}}", "press ßeven", "{OTHER}"]
        [queues.line2]
        [queues.'*']
        allow-sources = []
        [names]
        "{OTHER.upper()}" = "Press SSeven"
        [settings]
        Quota = 5_000_000
        RouteMessages = true
        SendPings = 0
        """
    )
    assert found == ConfigFile(
        path=FILE,
        listen=(Listen("127.0.0.1", 1801), Listen("::1", 0), Listen("::1", 0, _networks("10.0.0.0/8", "10.0.0.5"))),
        applications=(
            Listen("127.0.0.1", 1804, _networks("127.0.0.1")),
            Listen("0.0.0.0", 1804),
            Listen("::1", 1804),
            Listen("localhost", 1805),
        ),
        queues={
            "line1": Access(
                _networks("10.0.0.0/8", "::1"),
                frozenset({"press7"}),
                frozenset({guids.guid_bytes(GUID), guids.guid_bytes(OTHER)}),
            ),
            "line2": Access(),
            "*": Access(sources=frozenset()),
        },
        names={OTHER: "Press SSeven"},
        serial=(
            SerialSettings("ttyacm0", "/dev/ttyACM0", 115200),
            SerialSettings("press7", "socket://localhost:7", 9600),
        ),
        own_names=("plant", "10.0.0.5"),
        log_format="json",
        http=Listen("127.0.0.1", 9180),
        next_hops={"office": ("10.0.0.7", 1802), GUID: ("::1", 5)},
        public_queues={GUID: "DIRECT=OS:plant\\private$\\admin"},
        capture=Path("/etc/captures/plant.pcap"),
        capture_size=0x200000,
        numbers={"Quota": 5_000_000, "RouteMessages": 1, "SendPings": 0},
    )
    assert parse("") == ConfigFile(path=FILE)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("AckTimeout = 20000", "AckTimeout: there is no such key or table; there are own-names, http, "),
        ("own_names = ['x']", "own_names: there is no such key or table; did you mean own-names?"),
        ("[listeners]\nport = 5", "listeners: there is no such key or table; did you mean [listen]?"),
        ("[listen]\nport = 5", "[listen]: it may stand there several times: write [[listen]] in double brackets"),
        ("[[listen]]\n[[listen]]\nport = 5\nprt = 5", "[[listen]] number 2 prt: there is no such key here; did"),
        ("[[listen]]\nport = 65536", "[[listen]] port = 65536: write a whole number from 0 to 65535"),
        ("[[listen]]\nport = true", "[[listen]] port = true: write a whole number from 0 to 65535"),
        ("[[listen]]\naddress = 'a..b'", 'address = "a..b": \'a..b\' is neither an IP address nor the name'),
        ("[[listen]]\n[[listen]]", "[[listen]]: 127.0.0.1:1801 stands there twice"),
        ("[[applications]]", "[[applications]]: it needs the key port"),
        ("[[applications]]\nport = 1804\naddress = '0.0.0.0'", "it is not this machine's alone, so write tls = true"),
        ("[[applications]]\nport = 1804\ntls = true", "[[applications]] tls: it needs the table [tls]"),
        ("[[applications]]\nport = 5\n[[applications]]\nport = 5", "[[applications]]: 127.0.0.1:5 stands there twice"),
        ("[[applications]]\nport = 5\nallow-certificates = []", "[[applications]] 127.0.0.1:5: allow-certificates"),
        ("own-names = 'plant'", 'own-names = "plant": write a list of addresses'),
        ("log-format = 'xml'", 'log-format = "xml": write "text" or "json"'),
        ("http = 70000", "http = 70000: '127.0.0.1:70000': the port is a number from 0"),
        ("settings = 5", "settings = 5: it is a table: write [settings], and its keys below"),
        ("[settings]\n[settings]", "it is no TOML: Cannot declare ('settings',) twice (at line 2"),
        ("[settings]\nQuota = 5 bytes\n", "(at line 2, column 11)"),
        ("a = " + "[" * 100_000, "it is nested too deeply"),
        ("a = " + "1" * 5000, "it is no TOML"),
        ("[capture]\nsize = 2000000", "[capture]: it needs the key file"),
        ("[capture]\nfile = 's3a://bucket/x'", 'file = "s3a://bucket/x": s3a://bucket/x is a URL of s3a'),
        ("[[serial]]\nname = 'press7'", "[[serial]]: it needs the key port"),
        ("[[serial]]\nport = '/dev/a b'", "[[serial]] port = \"/dev/a b\": "),
        ("[[serial]]\nport = 'a'\n[[serial]]\nport = '/dev/a'", "[[serial]] a: two lines have this name"),
        ("[[serial]]\nport = 'a'\n[next-hops]\na = 'b:5'", "[[serial]] a: [next-hops] has another way to it"),
        ("[next-hops]\na = 'tls://b:5'", "[next-hops] a: it needs the table [tls]"),
        ("[next-hops]\na = 'ssl://b:5'", "[next-hops] a = "),
        ("[next-hops]\na = 'b'", "[next-hops] a = \"b\": 'b' is not HOST:PORT"),
        ("[next-hops]\na = 'b:1'\nA = 'b:2'", '[next-hops] A = "b:2": it stands there twice, spelled in two ways'),
        ("[[listen]]\nallow = '10.0.0.5'", '[[listen]] allow = "10.0.0.5": write a list of texts'),
        ("[[listen]]\nallow = ['10.0.0.5/8']", "write 10.0.0.0/8, or 10.0.0.5 for this one address"),
        ("[queues]\nline1 = 5", "queues.line1 = 5: it is a table: write [queues.line1], and its keys below"),
        ("[queues.line1]\nallow = []", "[queues.line1] allow: there is no such key here; there are allow-addresses, "),
        ("[queues.'a;b']\n", "[queues.\"a;b\"]: queue name 'a;b'"),
        ("[queues.a]\n[queues.'private$\\A']", "stands there twice, spelled in two ways"),
        ("[queues.a]\nallow-addresses = ['press7']", "or fd00::/8; it is no line of [[serial]] either"),
        ("[queues.'*']\nallow-sources = ['prss']\n[names]\n" + GUID + " = 'press'", 'did you mean "press"?'),
        ("[queues.'*']\nallow-sources = ['press']", '"press" is neither a GUID nor a name of [names]'),
        ("[names]\npress = 'press'", "what is named is a GUID"),
        ("[names]\n" + GUID + " = ''", "write a name of 1 to 64 printable characters"),
        ("[names]\n" + GUID + " = 'a\\tb'".replace("'", '"'), "write a name of 1 to 64 printable characters"),
        ("[names]\n" + GUID + f" = '{GUID}'", "write a name of 1 to 64 printable characters"),
        ("[names]\n" + GUID + " = 'a'\n" + GUID.upper() + " = 'b'", "stands there twice, spelled in two ways"),
        ("[names]\n" + GUID + " = 'a'\n" + OTHER + " = 'A'", "two have this name: give one another"),
        ("[public-queues]\nx = 'DIRECT=OS:p\\private$\\q'", "not a GUID: x"),
        (f"[public-queues]\n{GUID} = 'PUBLIC={GUID}'", "PUBLIC names need a directory service"),
    ],
)  # fmt: skip
def test_config_error_names_file_key_value_rule_and_fix(text: str, said: str) -> None:
    [problem] = problems(text)
    assert problem.startswith(f"{FILE}: ")
    assert said in problem


def test_config_reports_all_mistakes_at_once() -> None:
    told = problems("own-names = 5\n[[listen]]\nport = -1\nadress = 'x'\n[settings]\nQuota = -1\n[sttings]\n")
    assert [problem.split(" ")[1:3] for problem in told] == [
        ["own-names", "="], ["sttings:", "there"], ["[[listen]]", "port"], ["[[listen]]", "adress:"],
        ["[settings]", "Quota"],
    ]  # fmt: skip


@given(st.sampled_from(sorted(NUMBERS)), st.data())
def test_numbers_are_taken_up_to_their_limits_and_no_further(name: str, data: st.DataObject) -> None:
    setting = NUMBERS[name]
    good = data.draw(st.integers(setting.minimum, setting.maximum))
    assert parse(f"[settings]\n{name} = {good}").numbers == {name: good}
    if setting.kind == NUMBER:
        for edge in (setting.minimum, setting.maximum):
            assert parse(f"[settings]\n{name} = {edge}").numbers == {name: edge}
    bad = data.draw(
        st.integers(max_value=setting.minimum - 1) | st.integers(setting.maximum + 1)
        if setting.kind == FLAG
        else st.sampled_from([setting.minimum - 1, setting.maximum + 1])
    )
    [problem] = problems(f"[settings]\n{name} = {bad}")
    assert f"[settings] {name} = {bad}: write " in problem


@given(st.sampled_from(sorted(NUMBERS)), st.data())
def test_misspelled_setting_gets_suggestion(name: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(name) - 1))
    slip = data.draw(
        st.sampled_from([name[:place] + name[place + 1 :], name[:place] + "x" + name[place:], name.swapcase()])
    )
    if slip not in NUMBERS:
        [problem] = problems(f"[settings]\n{slip} = 20000")
        assert any(f"did you mean {meant}?" in problem for meant in NUMBERS), problem
        assert f"did you mean {name}?" in problem or name[:4] in problem


VALUES = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from([key for table in TABLES.values() for key in table.keys if key]) | st.text(max_size=10)
DOCUMENTS = st.dictionaries(
    st.sampled_from([*filter(None, TABLES), "own-names"]) | st.text(max_size=10),
    VALUES
    | st.dictionaries(KEYS, VALUES, max_size=4)
    | st.lists(st.dictionaries(KEYS, VALUES, max_size=3), max_size=3),
    max_size=5,
)


def toml(value: Any) -> str:
    """A value as TOML, tables in one line; what JSON and TOML write alike."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


@given(DOCUMENTS)
def test_random_config_document_is_accepted_or_reported(document: dict[str, Any]) -> None:
    text = "\n".join(f"{json.dumps(key)} = {toml(value)}" for key, value in document.items())
    found, told = understood(text)
    assert bool(found) != bool(told)
    assert all(problem.startswith(f"{FILE}: ") for problem in told)
    if not found:
        return
    assert set(document) <= {*TABLES, "own-names"}
    for name, value in found.numbers.items():
        assert NUMBERS[name].minimum <= value <= NUMBERS[name].maximum
    Config.of(found.numbers)


@given(st.text())
def test_random_config_text_is_accepted_or_reported(text: str) -> None:
    found, told = understood(text)
    assert bool(found) != bool(told)


def test_files_as_other_editors_save_them(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes("\ufeffown-names = ['plant']\r\n[settings]\r\nQuota = 5\r\n".encode())
    assert config_file.read(path).numbers == {"Quota": 5}
    path.write_bytes("# Stra\u00dfe\n".encode("latin-1"))
    with pytest.raises(BadConfigFile, match="byte 6 is no UTF-8: save the file as UTF-8"):
        config_file.read(path)


# ---- the commands --------------------------------------------------------------------------------------


def test_a_file_is_checked_by_name_or_by_its_store(tmp_path: Path) -> None:
    path = tmp_path / "ordack.toml"
    assert "has no ordack.toml: all settings are defaults" in ordack("--store", tmp_path, "config").stdout
    assert ordack("config", path).returncode == 2
    path.write_text("\ufeff[settings]\nQuota = 5\n", "utf-8")
    for arguments in ((path,), ("--store", tmp_path)):
        done = ordack("config", *arguments)
        assert (done.returncode, done.stderr) == (0, "")
    path.write_text("[settings]\nQota = 5\nClockSkew = -1\n")
    done = ordack("config", path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 2)
    first, second = json.loads(ordack("config", path, "--json").stdout)["problems"]
    assert ("[settings] Qota" in first, "[settings] ClockSkew = -1" in second) == (True, True)
    path.unlink()
    path.symlink_to("nowhere")
    assert "cannot be read: No such file" in ordack("config", "--store", tmp_path).stderr


def test_config_shows_effective_settings_with_their_source(tmp_path: Path) -> None:
    store = tmp_path / "store"
    shown = {row["name"]: row for row in as_json("config", "--store", store)}
    listen = {"address": "127.0.0.1", "port": 1801}
    assert shown["listen"] == {"name": "listen", "value": [listen], "unit": "", "from": "default"}
    assert not store.exists()
    store.mkdir()
    path = store / "ordack.toml"
    path.write_text(
        "[[listen]]\naddress = '::1'\n[settings]\nQuota = 5\nRouteMessages = true\n[next-hops]\na = 'b:5'\n"
    )
    shown = {row["name"]: row for row in as_json("config", "--store", store)}
    names = ("listen", "Quota", "RouteMessages", "IdleAckDelay")
    assert [(shown[name]["value"], shown[name]["from"]) for name in names] == [
        ([{"address": "::1"}], "file"), (5, "file"), (True, "file"), (500, "default"),
    ]  # fmt: skip
    assert shown["SendPings"]["value"] is False
    assert shown["next-hops"]["value"] == {"a": "b:5"}
    assert set(shown) == {*filter(None, TABLES), *TABLES[""].keys, *NUMBERS} - {"settings"}
    text = ordack("config", "--store", store).stdout
    assert "::1" in text
    assert re.search(r"RouteMessages\W+true", text)
    path.write_text(f"[names]\n{GUID} = 'press'\n[next-hops]\n{GUID} = 'b:5'\n")
    assert f"{GUID.lower()} (press) = b:5" in ordack("config", path).stdout.lower()


def test_config_command_names_file_section_for_setting() -> None:
    done = ordack("config", "RouteMessages", "true")
    assert done.returncode == 2
    said = " ".join(done.stderr.replace("\u2502", " ").split())
    assert "write `RouteMessages = true` into [settings] of ordack.toml" in said


# ---- serve ---------------------------------------------------------------------------------------------


def test_serve_with_invalid_config_exits_and_creates_no_store(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text("[settings]\nQota = 5\n")
    done = ordack("serve", "--store", tmp_path / "store", "--config", path, "--listen", "127.0.0.1:0")
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean Quota?" in done.stderr
    assert not (tmp_path / "store").exists()
    done = ordack("serve", "--store", tmp_path / "store", "--config", tmp_path / "nowhere", "--listen", "127.0.0.1:0")
    assert done.returncode == 2
    assert not (tmp_path / "store").exists()


def test_serve_and_applications_use_config_file_of_store(tmp_path: Path) -> None:
    with Client(tmp_path, create=True) as client:
        client.create_queue("line1", transactional=True)
    (tmp_path / "ordack.toml").write_text(
        "own-names = ['plant']\n[[listen]]\nport = 0\n[settings]\nQuota = 5_000_000\nPoisonAfter = 2\nClockSkew = 3\n"
        "[next-hops]\noffice = '127.0.0.1:5'\n"
    )
    running = Serve(tmp_path, listen=None)
    assert running.line == f"listening on 127.0.0.1:{running.port}\n"
    with Client(tmp_path) as client:
        config = client.config()
    assert (config.quota, config.poison_after, config.clock_skew) == (5_000_000, 2, 3)
    assert (config.own_names, config.next_hops) == ({"plant"}, {"office": ("127.0.0.1", 5)})
    running.stop()
    (tmp_path / "ordack.toml").unlink()  # what no file says any more, holds no more
    Serve(tmp_path).stop()
    with Client(tmp_path) as client:
        assert client.config().quota == 8 << 30
        assert client.config().poison_after is None


def test_options_go_before_the_file(tmp_path: Path) -> None:
    path = tmp_path / "plant.toml"
    path.write_text(
        "own-names = ['plant']\n[[listen]]\naddress = '192.0.2.1'\n[settings]\nQuota = 5_000_000\n"
        "[next-hops]\na = '127.0.0.1:5'\nb = '127.0.0.1:6'\n"
    )
    running = Serve(tmp_path / "store", "--config", str(path), "--next-hop", "b=127.0.0.1:7")
    with Client(tmp_path / "store") as client:
        told = client.store.names()
    assert told["own"] == ["plant"]
    assert told["hops"] == {"a": ["127.0.0.1", 5], "b": ["127.0.0.1", 7]}
    assert running.stop()[0] == 0


@pytest.mark.rule("B-418")
def test_several_listeners(tmp_path: Path) -> None:
    (tmp_path / "ordack.toml").write_text("[[listen]]\nport = 0\n[[listen]]\naddress = '127.0.0.2'\nport = 0\n")
    for options, listen in (((), None), (("--listen", "127.0.0.2:0"), "127.0.0.1:0")):
        running = Serve(tmp_path, *options, listen=listen)
        assert running.process.stdout
        second = running.process.stdout.readline().rstrip()
        assert second.startswith("listening on 127.0.0.2:")
        port = int(second.rpartition(":")[2])
        socket.create_connection(("127.0.0.1", running.port), 5).close()
        socket.create_connection(("127.0.0.2", port), 5).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", running.port), 5)
        listening = f"127.0.0.1:{running.port}, 127.0.0.2:{port}"
        deadline = time.monotonic() + DEADLINE_S
        while json.loads(ordack("status", "--store", tmp_path, "--json").stdout)["listening"] != listening:
            assert time.monotonic() < deadline
        assert running.stop()[0] == 0


def test_one_listener_that_cannot_be_keeps_serve_from_starting(tmp_path: Path) -> None:
    done = ordack("serve", "--store", tmp_path / "store", "--listen", "127.0.0.1:0", "--listen", "192.0.2.1:1801")
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot listen on 192.0.2.1:1801" in done.stderr
    assert not (tmp_path / "store").exists()


def test_every_ipv6_address_and_every_ipv4_address_do_not_meet(tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    port = random.SystemRandom().randrange(20_000, 30_000)  # the kernel gives those to nobody who asks for any
    running = Serve(tmp_path, listen=f"[::]:{port}")
    socket.create_connection(("::1", port), 5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)
    running.stop()
    both = Serve(tmp_path / "other", "--listen", f"[::]:{port}", listen=f"0.0.0.0:{port}")
    assert both.stop()[0] == 0


@pytest.mark.rule("B-001")
def test_serve_listens_on_localhost_by_default_and_logs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings.LISTEN == ("127.0.0.1", 1801)
    monkeypatch.setattr(settings, "LISTEN", ("127.0.0.1", 0))
    said: list[str] = []
    [listener] = serve_command._open_listeners((), ServeLog(said.append))
    assert listener.place[0] == "127.0.0.1"
    listener.close()
    assert "--listen 0.0.0.0:" in said.pop()
    [listener] = serve_command._open_listeners([Listen("127.0.0.1", 0)], ServeLog(said.append))
    listener.close()
    assert not said


def test_a_relative_path_of_a_capture_goes_from_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    (folder / "plant.toml").write_text("[capture]\nfile = 'plant.pcap'\n")
    running = Serve(tmp_path / "store", "--config", os.path.relpath(folder / "plant.toml"))
    assert running.stop()[0] == 0
    assert (folder / "plant.pcap").exists()
