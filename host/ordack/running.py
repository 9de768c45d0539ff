"""What a running queue manager goes by, and what of a file that has changed it can take up while it runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ordack.config import SERIAL_PORT, Config
from ordack.config_file import ConfigFile, with_serial
from ordack.settings import NUMBERS, RESTART, TABLES

OF_TABLE = {"capture_size": "capture", "tls_hops": "next-hops"}  # fields of a file that share a table with another


@dataclass(frozen=True)
class Running:
    """A file, with what options say in its place, and all numbers, those that the store keeps among them. options:
    fields of the Config that go before both."""

    file: ConfigFile
    numbers: Mapping[str, int]
    options: Mapping[str, Any]

    def config(self, listening: tuple[tuple[str, int], ...]) -> Config:
        """The Config that this means. listening: addresses and ports."""
        file = self.file
        return Config.of(
            self.numbers,
            listening=listening,
            next_hops=file.next_hops,
            tls_hops=file.tls_hops,
            public_queues=file.public_queues,
            own_names=frozenset(file.own_names),
            numbers=file.numbers,
            sessions_per_address=file.sessions_per_address,
            access=file.queues,
            every_access=file.every_queue,
            names=file.names,
            **self.options,
        )

    def taking_up(self, file: ConfigFile, held: Mapping[str, int]) -> Running:
        """The same with what can be taken up of this file, and of the numbers that the store holds now. Raises
        ValueError if it has another way to one of the serial lines."""
        numbers = {**held, **file.numbers}
        for name in _fixed_numbers():
            numbers.pop(name, None)
            if name in self.numbers:
                numbers[name] = self.numbers[name]
        fixed = {name: getattr(self.file, name) for name in _fixed_fields()}
        hops = with_serial(_said(file, "next_hops"), self.file.serial)
        return Running(dataclasses.replace(file, **fixed, next_hops=hops), numbers, self.options)

    def differences(self, file: ConfigFile, held: Mapping[str, int]) -> list[str]:
        """The tables and keys in which this file, with what the store holds now, is another than this."""
        names = [_table(name) for name in _fields() if _said(file, name) != _said(self.file, name)]
        now = {**held, **file.numbers}
        names += [name for name in NUMBERS if now.get(name) != self.numbers.get(name)]
        return list(dict.fromkeys(names))


def _fields() -> list[str]:
    return [one.name for one in dataclasses.fields(ConfigFile) if one.name not in ("path", "numbers")]


def _said(file: ConfigFile, field: str) -> Any:
    """What the file says in this field; a serial line is no next hop there."""
    value = getattr(file, field)
    return {name: hop for name, hop in value.items() if hop[1] != SERIAL_PORT} if field == "next_hops" else value


def _table(field: str) -> str:
    """Of which table this field is, or which key at the top."""
    return OF_TABLE.get(field, field.replace("_", "-"))


def _fixed_fields() -> list[str]:
    """Those that stay as they are until the next start."""
    settings = [(name or key, setting) for name, table in TABLES.items() for key, setting in table.keys.items()]
    fixed = {name for name, setting in settings if setting.reload == RESTART}
    return [name for name in _fields() if _table(name) in fixed]


def _fixed_numbers() -> list[str]:
    return [name for name, setting in NUMBERS.items() if setting.reload == RESTART]
