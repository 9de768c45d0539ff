"""The commands `ordack config`: the configuration file of `serve`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from ordack.cli.common import (
    JsonOption,
    StoreOption,
    complain,
    local,
    local_file,
    print_table,
    report,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ordack.config.config_file import ConfigFile, Listen


class _Group(TyperGroup):
    """Tells where a setting is changed to whoever gives its name as a command."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        from ordack.config.settings import FLAG, NUMBERS

        name = {known.lower(): known for known in NUMBERS}.get(args[0].lower())
        if name:
            value = args[1] if len(args) > 1 else "true" if NUMBERS[name].kind == FLAG else "NUMBER"
            ctx.fail(
                f"{name} is a setting: write `{name} = {value}` in the table [settings] of ordack.toml, and "
                "check it with `ordack config check`"
            )
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_Group,
    help="Check a configuration file, and show what `ordack serve` would go by. To change a setting, edit the file.",
)
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        parser=local_file,
        help="Configuration file. Default: ordack.toml in the folder of the store, if it is there.",
    ),
]


def load_file(store: Path | None, named: Path | None) -> ConfigFile:
    """The configuration file for a store. Raises BadConfigFile."""
    from ordack.config import config_file

    return config_file.read(config_file.find(store, named) if store else named)


def read_file(store: Path | None, named: Path | None) -> ConfigFile:
    """The configuration file for a store. One that cannot be used ends the command with status 2, and all that is
    wrong with it is told."""
    from ordack.config.config_file import BadConfigFile

    try:
        return load_file(store, named)
    except BadConfigFile as error:
        for problem in error.problems:
            complain(problem)
        raise typer.Exit(2) from None


@app.command("check")
def check(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", parser=local_file, help="Default: ordack.toml of the store.")
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option("--store", metavar="FOLDER", parser=local, envvar="ORDACK_STORE", help="Folder of the store."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check a configuration file, and say all that is wrong with it. Exit status 2: it cannot be used."""
    from ordack.config import config_file
    from ordack.config.settings import FILE_NAME
    from ordack.config.tls import BadTls, Tls
    from ordack.server.certificates import ending
    from ordack.server.monitor import BadToken, read_token

    path = file or (config_file.find(store, None) if store else None)
    if path is None:
        where = f"there is no {FILE_NAME} in {store}" if store else "neither a file nor a store is named"
        raise typer.BadParameter(f"{where}: name the file, as in `ordack config check plant/ordack.toml`")
    problems: list[str] = []
    try:
        read = config_file.read(path)
        if read.tls:
            Tls(read.tls)
            for text in ending(read.tls.certificate):
                complain(text)
        read_token(read.http_token_file)
    except config_file.BadConfigFile as error:
        problems = error.problems
    except BadTls as error:
        problems = [f"{path}: [tls]: {error}"]
    except BadToken as error:
        problems = [f"{path}: http-token-file: {error}"]
    if as_json:
        report(True, "", file=str(path), problems=problems)
    elif not problems:
        report(False, f"{path}: nothing is wrong")
    for problem in problems if not as_json else ():
        complain(problem)
    if problems:
        raise typer.Exit(2)


@app.command("show")
def show(store: StoreOption, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show what `ordack serve` would go by if it were started now without other options: the configuration file, then
    defaults."""
    from ordack.broker.peer_names import PeerNames
    from ordack.config.settings import NUMBERS

    file = read_file(store, config)
    rows = [{"name": name, **told, "unit": ""} for name, told in _others(file).items()]
    rows += [_row(name, file.numbers) for name in NUMBERS]
    for row in rows if as_json else ():
        report(True, "", **{key: row[key] for key in ("name", "value", "unit", "from")})
    if not as_json:
        names = {row["name"]: PeerNames({} if row["name"] == "names" else file.names) for row in rows}
        print_table(
            ("setting", "value", "unit", "from"),
            (),
            [(row["name"], names[row["name"]].added(_text(row["value"])), row["unit"], row["from"]) for row in rows],
        )


def _row(name: str, stated: Mapping[str, int]) -> dict[str, Any]:
    """A number or flag, as the file or nobody states it."""
    from ordack.config.settings import FLAG, NUMBERS

    setting = NUMBERS[name]
    value = stated.get(name, setting.default)
    return {
        "name": name,
        "value": bool(value) if setting.kind == FLAG else value,
        "unit": setting.unit,
        "from": "file" if name in stated else "default",
    }


def _others(file: ConfigFile) -> dict[str, dict[str, Any]]:
    """What is no number: value and where it is from, by the name of its table or key."""
    from ordack.config.config import TLS_SCHEME, format_address
    from ordack.config.config_file import Listen
    from ordack.config.settings import LISTEN, TABLES

    values: dict[str, Any] = {
        "listen": list(map(_listen_text, file.listen)),
        "applications": list(map(_listen_text, file.applications)),
        "tls": {key: str(path) for key, path in file.tls._asdict().items()} if file.tls else {},
        "sessions-per-address": {str(network): limit for network, limit in file.sessions_per_address},
        "queues": {name: access.shown(file.names) for name, access in file.queues.items()},
        "names": dict(file.names),
        "serial": [f"{line.name}={line.port}@{line.baud}" for line in file.serial],
        "own-names": list(file.own_names),
        "http": str(file.http) if file.http else None,
        "http-token-file": str(file.http_token_file) if file.http_token_file else None,
        "log-format": file.log_format,
        "next-hops": {
            name: f"{TLS_SCHEME if hop in file.tls_hops else ''}{format_address(*hop)}"
            for name, hop in file.next_hops.items()
        },
        "public-queues": dict(file.public_queues),
        "capture": {"file": str(file.capture), "size": file.capture_size} if file.capture else {},
    }
    told = {name: {"value": value, "from": "file" if value else "default"} for name, value in values.items()}
    for name, default in (("listen", [str(Listen(*LISTEN))]), ("log-format", TABLES[""].keys["log-format"].default)):
        told[name]["value"] = told[name]["value"] or default
    return told


def _listen_text(place: Listen) -> str:
    tls = " with TLS" if place.tls else ""
    certificates = "" if place.certificates is None else f", certificates of {', '.join(sorted(place.certificates))}"
    return f"{place}{tls}{'' if place.allow is None else f' for {place.allow}'}{certificates}"


def _text(value: object) -> str:
    if isinstance(value, list):
        return "\n".join(map(str, value))
    if isinstance(value, dict):
        return "\n".join(f"{name} = {one}" for name, one in value.items())
    if isinstance(value, bool):
        return str(value).lower()
    return "absent" if value is None else str(value)
