"""What a running queue manager goes by, and what of a file that has changed it can take up while it runs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from ordack.config.config import SERIAL_PORT, Config
from ordack.config.config_file import ConfigFile, with_serial
from ordack.config.settings import NUMBERS, RESTART, TABLES

OF_TABLE = {"capture_size": "capture", "tls_hops": "next-hops"}  # fields of a file that share a table with another


@dataclass(frozen=True)
class Running:
    """A file, with what options say in its place."""

    file: ConfigFile

    def config(self, listening: tuple[tuple[str, int], ...]) -> Config:
        """The Config that this means. listening: addresses and ports."""
        file = self.file
        return Config.of(
            file.numbers,
            listening=listening,
            next_hops=file.next_hops,
            tls_hops=file.tls_hops,
            public_queues=file.public_queues,
            own_names=frozenset(file.own_names),
            sessions_per_address=file.sessions_per_address,
            access=file.queues,
            names=file.names,
        )

    def taking_up(self, file: ConfigFile) -> Running:
        """The same with what can be taken up of this file. Raises ValueError if it has another way to one of the
        serial lines."""
        numbers = {name: value for name, value in file.numbers.items() if NUMBERS[name].reload != RESTART}
        numbers |= {name: value for name, value in self.file.numbers.items() if NUMBERS[name].reload == RESTART}
        fixed = {name: getattr(self.file, name) for name in _fixed_fields()}
        hops = with_serial(_said(file, "next_hops"), self.file.serial)
        return Running(dataclasses.replace(file, **fixed, next_hops=hops, numbers=numbers))

    def differences(self, file: ConfigFile) -> list[str]:
        """The tables and keys in which this file is another than this."""
        names = [_table(name) for name in _fields() if _said(file, name) != _said(self.file, name)]
        names += [name for name in NUMBERS if file.numbers.get(name) != self.file.numbers.get(name)]
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
