"""`ordack.toml`: what `ordack serve` reads at its start. What may stand there is in `settings.py`.

All that is wrong with a file is told at once, each with the file, the key, the value, the rule and what to do.
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
from typing import Any, NamedTuple, TypeGuard

from mqqb import guids

from ordack.config.access import Access, Network, Networks, parse_network
from ordack.config.config import (
    EVERY_QUEUE,
    SERIAL_PORT,
    TLS_SCHEME,
    SerialSettings,
    TlsFiles,
    check_host,
    format_address,
    parse_local_address,
    parse_next_hop,
    parse_public_queue,
    parse_serial,
    tls_places,
)
from ordack.config.names import BadName, local_queue, queue_name
from ordack.config.paths import NotLocal, local_path
from ordack.config.settings import (
    CAPTURE_SIZE,
    CERTIFICATES,
    FILE_NAME,
    FLAG,
    FORM,
    HOST,
    HOSTS,
    LABEL,
    LISTEN,
    LONGEST_LABEL,
    NAME,
    NETWORKS,
    NUMBER,
    PATH,
    PLACE,
    PLACES,
    SOURCES,
    TABLES,
    TEXT,
    WAY,
    Setting,
    Table,
    in_range,
    nearest,
)

LONGEST_FILE = 4 << 20  # bytes
_PLACE = re.compile(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)")
_TWICE = re.compile(r"Cannot (?:declare|overwrite|mutate)", re.IGNORECASE)
_BARE = re.compile(r"[A-Za-z0-9_-]+")


class BadConfigFile(ValueError):
    """A file that cannot be used. problems: a sentence for each thing that is wrong with it."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


class Listen(NamedTuple):
    """Where connections are taken, and from whom; None: from everybody. tls: is TLS spoken? certificates: the names in
    those that may connect then, in lower case; None: all."""

    address: str
    port: int
    allow: Networks | None = None
    tls: bool = False
    certificates: frozenset[str] | None = None

    def __str__(self) -> str:
        return format_address(self.address, self.port)


@dataclass(frozen=True)
class ConfigFile:
    """What a file says. listen, serial, own_names, log_format: empty if it says nothing of them. applications: where
    those of other machines are taken. http: where HTTP is answered, if that is wanted; http_token_file: as
    settings.TABLES has it. tls: what it is spoken with. next_hops, tls_hops, public_queues: as in Config.
    sessions_per_address: networks, and how many sessions each of their addresses may have. queues: who may write to
    them, by their names in lower case; EVERY_QUEUE: to all others. names: what people call queue managers, by GUID in
    lower case. capture: the first file. numbers: of settings.NUMBERS, by name."""

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
    sessions_per_address: tuple[tuple[Network, int], ...] = ()
    queues: Mapping[str, Access] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    capture: Path | None = None
    capture_size: int = CAPTURE_SIZE
    numbers: Mapping[str, int] = field(default_factory=dict)


def find(store: Path, named: Path | None) -> Path | None:
    """The file for a store: the one that somebody has named, else `ordack.toml` in the store's folder if it is
    there."""
    if named is not None:
        return named
    path = store / FILE_NAME
    return path if os.path.lexists(path) else None


def read(path: Path | None) -> ConfigFile:
    """What this file says; nothing without one. Raises BadConfigFile, also for a file that cannot be read."""
    if path is None:
        return ConfigFile()
    try:
        with path.open("rb") as file:
            data = file.read(LONGEST_FILE + 1)
    except OSError as error:
        raise BadConfigFile([f"{path}: it cannot be read: {error.strerror or error}"]) from None
    if len(data) > LONGEST_FILE:
        raise BadConfigFile([f"{path}: it is larger than {LONGEST_FILE} bytes: is it another file?"])
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadConfigFile([f"{path}: byte {error.start} is no UTF-8: save the file as UTF-8"]) from None
    return parse(text.replace("\r\n", "\n"), path)


def parse(text: str, path: Path) -> ConfigFile:
    """What a file with this text says; `path`: its name, from whose folder relative paths go. Raises BadConfigFile."""
    try:
        document = tomllib.loads(f"{text}\n")  # so that its errors have a line
    except (ValueError, RecursionError) as error:
        raise BadConfigFile([f"{path}: {_not_toml(error)}"]) from None
    reader = _Reader(path)
    found = reader.file(document)
    if reader.problems:
        raise BadConfigFile(reader.problems)
    return found


def _not_toml(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    match = _PLACE.fullmatch(str(error))
    said, line = (match[1], match[2]) if match else (str(error), None)
    where = f"line {line}: " if line else "at its end: " if match else ""
    if _TWICE.match(said):
        return f"{where}a table or key stands there twice ({said}): keep one of them, with all that belongs into it"
    return f"{where}it is no TOML ({said}): texts stand in quotation marks, tables in brackets"


def _shown(value: object) -> str:
    """A value as it stands in a file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _shown(name)


def _title(name: str) -> str:
    """A table as it stands in a file."""
    return f"[[{name}]]" if TABLES[name].many else f"[{name}]"


# ---- values by their kind: each raises ValueError that says what to write


def _number(setting: Setting, value: object) -> int:
    if type(value) is int:
        try:
            return in_range(setting, value)
        except ValueError:
            pass
    unit = f", in {setting.unit}" if setting.unit else ""
    raise ValueError(f"write a whole number from {setting.minimum} to {setting.maximum}{unit}")


def _flag(_setting: Setting, value: object) -> int:
    if type(value) in (bool, int) and value in (0, 1):
        return int(bool(value))
    raise ValueError("write true or false")


def _text(_setting: Setting, value: object) -> str:
    if isinstance(value, str) and value:
        return value
    raise ValueError("write a text in quotation marks")


def _form(_setting: Setting, value: object) -> str:
    if value in ("text", "json"):
        return str(value)
    raise ValueError('write "text" or "json"')


def _host(_setting: Setting, value: object) -> str:
    try:
        if isinstance(value, str):
            check_host(value)
            return value.lower()
    except BadName:
        pass
    raise ValueError('write an IP address or the name of a machine, in quotation marks, as "10.0.0.5"')


def is_loopback(host: str) -> bool:
    """Does this address lead to this machine alone?"""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _hosts(setting: Setting, value: object) -> tuple[str, ...]:
    if isinstance(value, list) and value:
        return tuple(_host(setting, one) for one in value)
    raise ValueError('write a list of addresses, as ["plant", "10.0.0.5"]')


def _place(_setting: Setting, value: object) -> Listen:
    try:
        if isinstance(value, str) or type(value) is int:
            return Listen(*parse_local_address(str(value)))
    except ValueError:
        pass
    raise ValueError('write a port from 0 to 65535, as 9180, or an address with it, as "10.0.0.5:9180"')


def _texts(_setting: Setting, value: object) -> list[str]:
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return value
    raise ValueError('write a list of texts, as ["10.0.0.0/8"]')


def _networks(setting: Setting, value: object) -> Networks:
    return Networks(tuple(parse_network(one) for one in _texts(setting, value)))


def _certificates(setting: Setting, value: object) -> frozenset[str]:
    return frozenset(one.lower() for one in _texts(setting, value))


def _label(_setting: Setting, value: object) -> str:
    if (
        isinstance(value, str)
        and 1 <= len(value) <= LONGEST_LABEL
        and value.isprintable()
        and value == value.strip()
        and not _is_guid(value)
    ):
        return value
    raise ValueError(f'write a name of 1 to {LONGEST_LABEL} printable characters, as "press 7"')


def _is_guid(text: str) -> bool:
    try:
        guids.guid_bytes(text)
    except ValueError:
        return False
    return True


_KINDS: dict[str, Callable[[Setting, object], Any]] = {
    NUMBER: _number,
    FLAG: _flag,
    TEXT: _text,
    PATH: _text,
    FORM: _form,
    HOST: _host,
    HOSTS: _hosts,
    PLACE: _place,
    WAY: _text,
    NAME: _text,
    NETWORKS: _networks,
    PLACES: _texts,
    SOURCES: _texts,
    LABEL: _label,
    CERTIFICATES: _certificates,
}


class _Reader:
    """Goes through a document, and notes all that is wrong. A value that is wrong is as if it were not there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[str] = []

    def wrong(self, where: str, said: str) -> None:
        self.problems.append(f"{self.path}: {where}: {said}")

    def file(self, document: dict[str, Any]) -> ConfigFile:
        """What the whole document says."""
        top = self._keys("", TABLES[""], {key: value for key, value in document.items() if key not in TABLES})
        tables = {name: self._table(name, TABLES[name], document.get(name)) for name in TABLES if name}
        hops, serial = self._pairs("next-hops", tables, parse_next_hop), self._serial(tables["serial"])
        for line in serial:
            if line.name in hops:
                self.wrong(
                    f"[[serial]] {line.name}", "[next-hops] has another way to it: give one of them another name"
                )
        capture = tables["capture"]
        lines = {line.name for line in serial}
        names = self._names(tables["names"])
        tls = self._tls(tables["tls"])
        self._needs_tls(document, tables)
        return ConfigFile(
            path=self.path,
            listen=self._listen("listen", tables["listen"]),
            applications=self._applications(tables["applications"]),
            tls=tls,
            serial=serial,
            own_names=top.get("own-names", ()),
            log_format=top.get("log-format", ""),
            http=top.get("http"),
            http_token_file=self._local("http-token-file", top["http-token-file"])
            if "http-token-file" in top
            else None,
            next_hops=hops,
            tls_hops=self._tls_hops(tables["next-hops"], hops),
            public_queues=self._pairs("public-queues", tables, parse_public_queue),
            sessions_per_address=self._sessions(tables["sessions-per-address"]),
            queues=self._queues(tables["queues"], lines, names),
            names=names,
            capture=self._local("[capture] file", capture["file"]) if "file" in capture else None,
            capture_size=capture.get("size", CAPTURE_SIZE),
            numbers=tables["settings"],
        )

    # ---- tables as settings.py describes them

    def _table(self, name: str, table: Table, value: object) -> Any:
        """The values of a table by key; a list of such if it may stand there several times."""
        if table.many:
            if value is None:
                return []
            if not (isinstance(value, list) and all(isinstance(one, dict) for one in value)):
                self.wrong(f"[{name}]", f"it may stand there several times: write [[{name}]] in double brackets")
                return []
            return [
                self._keys(f"[[{name}]]{f' number {number}' if len(value) > 1 else ''} ", table, one)
                for number, one in enumerate(value, 1)
            ]
        if value is None:
            return {}
        if not self._is_table(value, name):
            return {}
        if table.each and "" not in table.keys:
            return {
                key: self._keys(f"[{name}.{_key(key)}] ", table, one)
                for key, one in value.items()
                if self._is_table(one, f"{name}.{_key(key)}")
            }
        if table.each:
            return {
                key: read
                for key, one in value.items()
                if (read := self._value(f"[{name}] {_key(key)}", table.keys[""], one)) is not None
            }
        return self._keys(f"[{name}] ", table, value)

    def _is_table(self, value: object, name: str) -> TypeGuard[dict[str, Any]]:
        if isinstance(value, dict):
            return True
        self.wrong(f"{name} = {_shown(value)}", f"it is a table: write [{name}], and its keys below")
        return False

    def _keys(self, where: str, table: Table, given: Mapping[str, object]) -> dict[str, Any]:
        """where: the table, as it is named in front of its keys."""
        found = {}
        for key, value in given.items():
            if key not in table.keys:
                self._unknown(where, table, key, value)
            elif (read := self._value(f"{where}{key}", table.keys[key], value)) is not None:
                found[key] = read
        for key in table.needed:
            if key not in given:
                self.wrong(where.rstrip(), f"it needs the key {key}: {table.keys[key].meaning}")
        return found

    def _value(self, where: str, setting: Setting, value: object) -> Any:
        try:
            return _KINDS[setting.kind](setting, value)
        except ValueError as error:
            self.wrong(f"{where} = {_shown(value)}", str(error))
            return None

    def _unknown(self, where: str, table: Table, key: str, value: object) -> None:
        places = {known: name for name, other in reversed(TABLES.items()) for known in other.keys}
        is_table = isinstance(value, dict) or (
            isinstance(value, list) and value and all(isinstance(one, dict) for one in value)
        )
        if not where and is_table:
            meant = nearest(key, filter(None, TABLES))
            known = ", ".join(_title(name) for name in TABLES if name)
            hint = f"did you mean {_title(meant)}?" if meant else f"there are {known}"
            self.wrong(f"[{_key(key)}]", f"there is no such table; {hint}")
            return
        meant = nearest(key, table.keys)
        hint = f"did you mean {meant}?"
        if not meant:
            other = nearest(key, filter(None, places))
            hint = f"did you mean {other}, in {_title(places[other])}? " if other and places[other] else ""
            hint += f"there are {', '.join(table.keys)}"
        self.wrong(f"{where}{_key(key)}", f"there is no such key here; {hint}")

    # ---- what takes more than a look at one value

    def _applications(self, given: list[dict[str, Any]]) -> tuple[Listen, ...]:
        for one in given:
            host = one.get("address", LISTEN[0])
            if not (one.get("tls") or one.get("allow-plain") or is_loopback(host)):
                self.wrong(
                    f"[[applications]] address = {_shown(host)}",
                    "it is not this machine's alone, so write tls = true; with allow-plain = true instead anybody on "
                    "the way reads, changes and takes messages",
                )
        return self._listen("applications", [one for one in given if "port" in one])

    def _listen(self, table: str, given: list[dict[str, Any]]) -> tuple[Listen, ...]:
        found = [
            Listen(
                one.get("address", LISTEN[0]),
                one.get("port", LISTEN[1]),
                one.get("allow"),
                bool(one.get("tls")),
                one.get("allow-certificates"),
            )
            for one in given
        ]
        for listen in found:
            if listen.certificates is not None and not listen.tls:
                self.wrong(f"[[{table}]] {listen}", "allow-certificates needs tls = true: without TLS nobody shows one")
        places = [one[:2] for one in found if one.port]
        for place in sorted({format_address(*place) for place in places if places.count(place) > 1}):
            self.wrong(f"[[{table}]]", f"{place} stands there twice: remove one")
        return tuple(found)

    def _tls(self, given: Mapping[str, str]) -> TlsFiles | None:
        paths = [self._local(f"[tls] {key}", given[key]) for key in TlsFiles._fields if key in given]
        found = [path for path in paths if path]
        return TlsFiles(*found) if len(found) == len(TlsFiles._fields) else None

    def _needs_tls(self, document: Mapping[str, Any], tables: Mapping[str, Any]) -> None:
        """Note what asks for TLS in a file without the table for it."""
        if "tls" in document:
            return
        asks = [f"[[{name}]] tls" for name in ("listen", "applications") for one in tables[name] if one.get("tls")]
        asks += [
            f"[next-hops] {_key(key)}" for key, value in tables["next-hops"].items() if value.startswith(TLS_SCHEME)
        ]
        for where in asks:
            self.wrong(where, "it needs the table [tls], with certificate, key and authority; `ordack tls` makes them")

    def _tls_hops(self, given: Mapping[str, str], hops: Mapping[str, tuple[str, int]]) -> frozenset[tuple[str, int]]:
        """hops: those of the given ones that can be read."""
        try:
            return tls_places(f"{key}={value}" for key, value in given.items() if key.lower() in hops)
        except ValueError as error:
            self.wrong("[next-hops]", str(error))
            return frozenset()

    def _serial(self, given: list[dict[str, Any]]) -> tuple[SerialSettings, ...]:
        found: list[SerialSettings] = []
        for one in given:
            if "port" not in one:
                continue
            name = f"{one['name']}=" if "name" in one else ""
            baud = f"@{one['baud']}" if "baud" in one else ""
            try:
                line = parse_serial(f"{name}{one['port']}{baud}")
            except ValueError as error:
                self.wrong(f"[[serial]] port = {_shown(one['port'])}", f"{error}; give it a name with the key name")
                continue
            if any(line.name == other.name for other in found):
                self.wrong(
                    f"[[serial]] {line.name}", "two lines have this name: give one another name with the key name"
                )
            found.append(line)
        return tuple(found)

    def _pairs(self, name: str, tables: Mapping[str, Any], read: Callable[[str], tuple[str, Any]]) -> dict[str, Any]:
        """The pairs of a table, as the option of the same name would have them."""
        found: dict[str, Any] = {}
        for key, value in tables[name].items():
            where = f"[{name}] {_key(key)} = {_shown(value)}"
            try:
                known, meant = read(f"{key}={value}")
            except ValueError as error:
                self.wrong(where, str(error))
                continue
            if known in found:
                self.wrong(where, "it stands there twice, spelled in two ways: remove one")
            found[known] = meant
        return found

    def _sessions(self, given: Mapping[str, int]) -> tuple[tuple[Network, int], ...]:
        found: dict[Network, int] = {}
        for text, limit in given.items():
            where = f"[sessions-per-address] {_key(text)}"
            try:
                network = parse_network(text)
            except ValueError as error:
                self.wrong(where, str(error))
                continue
            if network in found:
                self.wrong(where, "it stands there twice, spelled in two ways: remove one")
            found[network] = limit
        return tuple(found.items())

    def _names(self, given: Mapping[str, str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for text, name in given.items():
            where = f"[names] {_key(text)} = {_shown(name)}"
            if not _is_guid(text):
                self.wrong(where, "what is named is a GUID: `ordack state` shows those of whoever is connected")
                continue
            guid = guids.guid_text(guids.guid_bytes(text))[1:-1].lower()
            if guid in found:
                self.wrong(where, "it stands there twice, spelled in two ways: remove one")
            if name.casefold() in (other.casefold() for other in found.values()):
                self.wrong(where, "two have this name: give one another")
            found[guid] = name
        return found

    def _queues(
        self, given: Mapping[str, dict[str, Any]], lines: Collection[str], names: Mapping[str, str]
    ) -> dict[str, Access]:
        found: dict[str, Access] = {}
        for text, keys in given.items():
            where = f"[queues.{_key(text)}]"
            try:
                name = text if text == EVERY_QUEUE else queue_name(local_queue(text)).lower()
            except BadName as error:
                self.wrong(where, str(error))
                continue
            if name in found:
                self.wrong(where, "it stands there twice, spelled in two ways: remove one")
            found[name] = self._access(where, keys, lines, names)
        return found

    def _access(self, where: str, keys: Mapping[str, Any], lines: Collection[str], names: Mapping[str, str]) -> Access:
        """lines: names of serial lines. names: of queue managers, by GUID."""
        networks: list[Network] = []
        for text in keys.get("allow-addresses", ()):
            if text.lower() in lines:
                continue
            try:
                networks.append(parse_network(text))
            except ValueError as error:
                self.wrong(f"{where} allow-addresses", f"{error}; it is no line of [[serial]] either")
        guid_of = {name.casefold(): guid for guid, name in names.items()}
        sources = []
        for text in keys.get("allow-sources", ()):
            guid = text if _is_guid(text) else guid_of.get(text.casefold())
            if guid:
                sources.append(guids.guid_bytes(guid))
            else:
                meant = nearest(text, names.values())
                hint = f"; did you mean {_shown(meant)}?" if meant else ""
                self.wrong(f"{where} allow-sources", f"{_shown(text)} is neither a GUID nor a name of [names]{hint}")
        return Access(
            Networks(tuple(networks)) if "allow-addresses" in keys else None,
            frozenset(text.lower() for text in keys.get("allow-addresses", ()) if text.lower() in lines),
            frozenset(sources) if "allow-sources" in keys else None,
            keys.get("allow-certificates"),
        )

    def _local(self, where: str, text: str) -> Path | None:
        try:
            return self.path.parent / local_path(text)
        except NotLocal as error:
            self.wrong(f"{where} = {_shown(text)}", str(error))
            return None


def with_serial(hops: Mapping[str, tuple[str, int]], lines: Iterable[SerialSettings]) -> dict[str, tuple[str, int]]:
    """The next hops and those that are serial lines; raises ValueError if there are two ways to a name."""
    found = dict(hops)
    for line in lines:
        if line.name in found:
            raise ValueError(f"{line.name}: there are two ways to it; NAME=PORT gives a serial line another name")
        found[line.name] = line.name, SERIAL_PORT
    return found
