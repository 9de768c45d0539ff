"""Read `ordack.toml`, the configuration file of `ordack serve`. `settings.py` lists its tables and keys.

The reader reports all mistakes of a file at once, each with the file, the key, the value and the correct form.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from mqqb import guids

from ordack.config import config, settings
from ordack.config.config import (
    EVERY_QUEUE,
    SERIAL_PORT,
    Access,
    Network,
    Networks,
    SerialSettings,
    TlsFiles,
    format_address,
    parse_network,
)
from ordack.config.names import local_queue, queue_name
from ordack.config.paths import NotLocal, local_path
from ordack.config.settings import CAPTURE_SIZE, FILE_NAME, LISTEN, LONGEST_LABEL, TABLES, Setting, Table, nearest

LISTENERS = "listen", "applications"
_BARE = re.compile(r"[A-Za-z0-9_-]+")
Key = TypeVar("Key")


class BadConfigFile(ValueError):
    """A file with mistakes. problems: a sentence for each."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


class Listen(NamedTuple):
    """A listener. allow: networks that may connect. certificates: names in lower case that may connect with TLS. None
    allows all."""

    address: str
    port: int
    allow: Networks | None = None
    tls: bool = False
    certificates: frozenset[str] | None = None

    def __str__(self) -> str:
        return format_address(self.address, self.port)


@dataclass(frozen=True)
class ConfigFile:
    """The content of a file. A field is empty if the file has nothing for it. next_hops, tls_hops, public_queues: see
    Config. queues: by name in lower case; EVERY_QUEUE: all others. names: by GUID in lower case. capture: the first
    file. numbers: of settings.NUMBERS, by name."""

    path: Path | None = None
    listen: tuple[Listen, ...] = ()
    applications: tuple[Listen, ...] = ()
    tls: TlsFiles | None = None
    serial: tuple[SerialSettings, ...] = ()
    own_names: tuple[str, ...] = ()
    log_format: str = ""
    http: Listen | None = None
    http_token_file: Path | None = None
    next_hops: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    tls_hops: frozenset[tuple[str, int]] = frozenset()
    public_queues: Mapping[str, str] = field(default_factory=dict)
    queues: Mapping[str, Access] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    capture: Path | None = None
    capture_size: int = CAPTURE_SIZE
    numbers: Mapping[str, int] = field(default_factory=dict)

    def config(self, listening: tuple[tuple[str, int], ...]) -> config.Config:
        """Return the queue manager's Config. listening: its addresses and ports."""
        return config.Config.of(
            self.numbers,
            listening=listening,
            next_hops=self.next_hops,
            tls_hops=self.tls_hops,
            public_queues=self.public_queues,
            own_names=frozenset(self.own_names),
            access=self.queues,
            names=self.names,
        )


def find(store: Path, named: Path | None) -> Path | None:
    """Return the file for a store: `named`, or an existing `ordack.toml` in the store's folder."""
    path = named or store / FILE_NAME
    return path if named or os.path.lexists(path) else None


def read(path: Path | None) -> ConfigFile:
    """Read a file; None reads as empty. Raises BadConfigFile."""
    if path is None:
        return ConfigFile()
    try:
        return parse(path.read_text(encoding="utf-8-sig"), path)
    except OSError as error:
        raise BadConfigFile([f"{path}: it cannot be read: {error.strerror or error}"]) from None
    except UnicodeDecodeError as error:
        raise BadConfigFile([f"{path}: byte {error.start} is no UTF-8: save the file as UTF-8"]) from None


def parse(text: str, path: Path) -> ConfigFile:
    """Parse a file's text. path: of the file; relative paths begin in its folder. Raises BadConfigFile."""
    try:
        document = tomllib.loads(f"{text}\n")  # so that errors have a line number
    except RecursionError:
        raise BadConfigFile([f"{path}: it is nested too deeply"]) from None
    except ValueError as error:
        raise BadConfigFile([f"{path}: it is no TOML: {error}"]) from None
    reader = _Reader(path)
    found = reader.file(document)
    if reader.problems:
        raise BadConfigFile(reader.problems)
    return found


def is_loopback(host: str) -> bool:
    """Test whether an address reaches this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _shown(value: object) -> str:
    """Format a value as in the file."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _shown(name)


def _guid(text: str) -> bytes | None:
    try:
        return guids.guid_bytes(text)
    except ValueError:
        return None


# ---- values by kind: each function raises ValueError, with a text if the kind's description is not enough


def _flag(value: Any) -> int:
    if type(value) not in (bool, int) or value not in (0, 1):
        raise ValueError
    return int(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError
    return value


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list):
        raise ValueError
    return [_text(one) for one in value]


def _form(value: Any) -> str:
    if value not in ("text", "json"):
        raise ValueError
    return str(value)


def _host(value: Any) -> str:
    config.check_host(_text(value))
    return str(value).lower()


def _hosts(value: Any) -> tuple[str, ...]:
    return tuple(map(_host, _texts(value or None)))


def _place(value: Any) -> Listen:
    return Listen(*config.parse_local_address(str(value) if type(value) is int else _text(value)))


def _label(value: Any) -> str:
    text = _text(value)
    if len(text) > LONGEST_LABEL or not text.isprintable() or text != text.strip() or "/" in text or _guid(text):
        raise ValueError
    return text


_KINDS: dict[str, tuple[Callable[[Any], Any], str]] = {
    settings.FLAG: (_flag, "true or false"),
    settings.FORM: (_form, '"text" or "json"'),
    settings.HOST: (_host, 'an IP address or the name of a machine, in quotation marks, as "10.0.0.5"'),
    settings.HOSTS: (_hosts, 'a list of addresses, as ["plant", "10.0.0.5"]'),
    settings.PLACE: (_place, 'a port from 0 to 65535, as 9180, or an address with it, as "10.0.0.5:9180"'),
    settings.PLACES: (_texts, 'a list of texts, as ["10.0.0.0/8"]'),
    settings.SOURCES: (_texts, 'a list of texts, as ["press 7"]'),
    settings.LABEL: (_label, f'a name of 1 to {LONGEST_LABEL} printable characters without /, as "press 7"'),
    settings.NETWORKS: (
        lambda value: Networks(tuple(map(parse_network, _texts(value)))),
        'a list of texts, as ["::1"]',
    ),
    settings.CERTIFICATES: (lambda value: frozenset(one.lower() for one in _texts(value)), 'a list, as ["press7"]'),
}
_OTHERS = _text, "a text in quotation marks"


class _Reader:
    """Reads a document and collects mistakes. A wrong value counts as absent."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[str] = []

    def wrong(self, where: str, said: str) -> None:
        self.problems.append(f"{self.path}: {where}: {said}")

    def file(self, document: dict[str, Any]) -> ConfigFile:
        """Read the whole document."""
        top = self._keys("", TABLES[""], {key: value for key, value in document.items() if key not in TABLES})
        tables = {name: self._table(name, TABLES[name], document[name]) for name in TABLES if name in document}
        listeners = {name: tables.get(name, []) for name in LISTENERS}
        given: Mapping[str, str] = tables.get("next-hops", {})
        hops = self._mapped("next-hops", given, _as_option(config.parse_next_hop))
        serial = self._serial(tables.get("serial", []))
        for line in serial:
            if line.name in hops:
                self.wrong(f"[[serial]] {line.name}", "[next-hops] has another way to it: give one another name")
        names = self._mapped("names", tables.get("names", {}), _board)
        texts = [name.casefold() for name in names.values()]
        for text in {text for text in texts if texts.count(text) > 1}:
            self.wrong(f"[names] {_shown(text)}", "two have this name: give one another")
        lines = {line.name for line in serial}
        capture, tls = tables.get("capture", {}), tables.get("tls", {})
        if "tls" not in document:
            self._refuse_tls(listeners, given)
        return ConfigFile(
            path=self.path,
            listen=self._listen("listen", listeners["listen"]),
            applications=self._listen("applications", listeners["applications"]),
            tls=TlsFiles(*(tls[key] for key in TlsFiles._fields)) if len(tls) == len(TlsFiles._fields) else None,
            serial=serial,
            own_names=top.get("own-names", ()),
            log_format=top.get("log-format", ""),
            http=top.get("http"),
            http_token_file=top.get("http-token-file"),
            next_hops=hops,
            tls_hops=self._tls_hops(given, hops),
            public_queues=self._mapped(
                "public-queues", tables.get("public-queues", {}), _as_option(config.parse_public_queue)
            ),
            queues={
                name: self._access(name, keys, lines, names)
                for name, keys in self._mapped("queues", tables.get("queues", {}), _queue).items()
            },
            names=names,
            capture=capture.get("file"),
            capture_size=capture.get("size", CAPTURE_SIZE),
            numbers=tables.get("settings", {}),
        )

    # ---- tables of settings.py

    def _table(self, name: str, table: Table, value: object) -> Any:
        """Return a table's values by key, or a list of them for a table that may be repeated."""
        if table.many:
            if isinstance(value, list) and all(isinstance(one, dict) for one in value):
                several = len(value) > 1
                return [
                    self._keys(f"[[{name}]]{f' number {number}' if several else ''} ", table, one)
                    for number, one in enumerate(value, 1)
                ]
            self.wrong(f"[{name}]", f"it may stand there several times: write [[{name}]] in double brackets")
            return []
        if not isinstance(value, dict):
            self.wrong(f"{name} = {_shown(value)}", f"it is a table: write [{name}], and its keys below")
            return {}
        if not table.each:
            return self._keys(f"[{name}] ", table, value)
        found = {}
        for key, one in value.items():
            if "" in table.keys:
                read = self._value(f"[{name}] {_key(key)}", table.keys[""], one)
            else:
                read = self._table(f"{name}.{_key(key)}", Table("", table.keys), one)
            if read is not None:
                found[key] = read
        return found

    def _keys(self, where: str, table: Table, given: Mapping[str, object]) -> dict[str, Any]:
        """Read the keys of a table. where: the table's name for messages."""
        found = {}
        for key, value in given.items():
            if key not in table.keys:
                known = {name: name for name in table.keys} | {
                    name: f"[{name}]" for name in TABLES if name and not where
                }
                meant = nearest(key, known)
                hint = f"did you mean {known[meant]}?" if meant else f"there are {', '.join(known.values())}"
                self.wrong(f"{where}{_key(key)}", f"there is no such {'key here' if where else 'key or table'}; {hint}")
            elif (read := self._value(f"{where}{key}", table.keys[key], value)) is not None:
                found[key] = read
        for key in table.needed:
            if key not in given:
                self.wrong(where.rstrip(), f"it needs the key {key}: {table.keys[key].meaning}")
        return found

    def _value(self, where: str, setting: Setting, value: object) -> Any:
        read, words = _KINDS.get(setting.kind, _OTHERS)
        if setting.kind == settings.NUMBER:
            read, unit = setting.checked, f", in {setting.unit}" if setting.unit else ""
            words = f"a whole number from {setting.minimum} to {setting.maximum}{unit}"
        try:
            found = read(value)
            return self.path.parent / local_path(found) if setting.kind == settings.PATH else found
        except (ValueError, NotLocal) as error:
            self.wrong(f"{where} = {_shown(value)}", str(error) or f"write {words}")
            return None

    def _mapped(
        self, name: str, given: Mapping[str, Any], read: Callable[[str, Any], tuple[Key, Any]]
    ) -> dict[Key, Any]:
        """Read a table's pairs with `read`, which raises ValueError for mistakes."""
        found: dict[Key, Any] = {}
        for text, value in given.items():
            where = f"[{name}.{_key(text)}]" if isinstance(value, dict) else f"[{name}] {_key(text)} = {_shown(value)}"
            try:
                key, meant = read(text, value)
            except ValueError as error:
                self.wrong(where, str(error))
                continue
            if key in found:
                self.wrong(where, "it stands there twice, spelled in two ways: remove one")
            found[key] = meant
        return found

    # ---- checks of several values

    def _listen(self, table: str, given: list[dict[str, Any]]) -> tuple[Listen, ...]:
        found: list[Listen] = []
        for one in given:
            place = Listen(
                one.get("address", LISTEN[0]),
                one.get("port", LISTEN[1]),
                one.get("allow"),
                bool(one.get("tls")),
                one.get("allow-certificates"),
            )
            where = f"[[{table}]] {place}"
            if table == "applications" and not (place.tls or one.get("allow-plain") or is_loopback(place.address)):
                self.wrong(
                    where,
                    "it is not this machine's alone, so write tls = true; with allow-plain = true instead anybody on "
                    "the way reads, changes and takes messages",
                )
            if place.certificates is not None and not place.tls:
                self.wrong(where, "allow-certificates needs tls = true: without TLS nobody shows one")
            if place.port and place[:2] in [other[:2] for other in found]:
                self.wrong(f"[[{table}]]", f"{place} stands there twice: remove one")
            found.append(place)
        return tuple(found)

    def _refuse_tls(self, listeners: Mapping[str, list[dict[str, Any]]], hops: Mapping[str, str]) -> None:
        """Report TLS settings in a file without the table [tls]."""
        asks = [f"[[{name}]] tls" for name, given in listeners.items() for one in given if one.get("tls")]
        asks += [f"[next-hops] {_key(key)}" for key, value in hops.items() if value.startswith(config.TLS_SCHEME)]
        for where in asks:
            self.wrong(where, "it needs the table [tls], with certificate, key and authority; `ordack tls` makes them")

    def _tls_hops(self, given: Mapping[str, str], hops: Mapping[str, tuple[str, int]]) -> frozenset[tuple[str, int]]:
        """hops: the valid ones of `given`."""
        try:
            return config.tls_places(f"{key}={value}" for key, value in given.items() if key.lower() in hops)
        except ValueError as error:
            self.wrong("[next-hops]", str(error))
            return frozenset()

    def _serial(self, given: list[dict[str, Any]]) -> tuple[SerialSettings, ...]:
        found: dict[str, SerialSettings] = {}
        for one in given:
            if "port" not in one:
                continue
            name = f"{one['name']}=" if "name" in one else ""
            baud = f"@{one['baud']}" if "baud" in one else ""
            try:
                line = config.parse_serial(f"{name}{one['port']}{baud}")
            except ValueError as error:
                self.wrong(f"[[serial]] port = {_shown(one['port'])}", f"{error}; give it a name with the key name")
                continue
            if line.name in found:
                self.wrong(f"[[serial]] {line.name}", "two lines have this name: give one another with the key name")
            found[line.name] = line
        return tuple(found.values())

    def _access(self, queue: str, keys: Mapping[str, Any], lines: Collection[str], names: Mapping[str, str]) -> Access:
        """lines: names of serial lines. names: {GUID: name} of queue managers."""
        where = f"[queues.{_key(queue)}]"
        networks: list[Network] = []
        for text in keys.get("allow-addresses", ()):
            try:
                networks += [] if text.lower() in lines else [parse_network(text)]
            except ValueError as error:
                self.wrong(f"{where} allow-addresses", f"{error}; it is no line of [[serial]] either")
        guid_of = {name.casefold(): guids.guid_bytes(guid) for guid, name in names.items()}
        sources: list[bytes] = []
        for text in keys.get("allow-sources", ()):
            if guid := _guid(text) or guid_of.get(text.casefold()):
                sources.append(guid)
                continue
            meant = nearest(text, names.values())
            hint = f"; did you mean {_shown(meant)}?" if meant else ""
            self.wrong(f"{where} allow-sources", f"{_shown(text)} is neither a GUID nor a name of [names]{hint}")
        return Access(
            Networks(tuple(networks)) if "allow-addresses" in keys else None,
            frozenset(text.lower() for text in keys.get("allow-addresses", ()) if text.lower() in lines),
            frozenset(sources) if "allow-sources" in keys else None,
            keys.get("allow-certificates"),
        )


# ---- pairs of tables


def _as_option(parse: Callable[[str], tuple[str, Any]]) -> Callable[[str, Any], tuple[str, Any]]:
    return lambda key, value: parse(f"{key}={value}")


def _board(text: str, value: str) -> tuple[str, str]:
    guid = _guid(text)
    if guid is None:
        raise ValueError("what is named is a GUID: `ordack status` shows those of whoever is connected")
    return guids.guid_text(guid)[1:-1].lower(), value


def _queue(text: str, value: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return (text if text == EVERY_QUEUE else queue_name(local_queue(text)).lower()), value


def with_serial(hops: Mapping[str, tuple[str, int]], lines: Iterable[SerialSettings]) -> dict[str, tuple[str, int]]:
    """Add serial lines to the next hops. Raise ValueError for two ways to a name."""
    found = dict(hops)
    for line in lines:
        if line.name in found:
            raise ValueError(f"{line.name}: there are two ways to it; NAME=PORT gives a serial line another name")
        found[line.name] = (line.name, SERIAL_PORT)
    return found
