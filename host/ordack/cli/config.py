"""The commands `ordack config` and `ordack tls`: the configuration file of `serve`, and its certificates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ordack.cli.common import JsonOption, StoreOption, complain, local, local_file, print_table, report, report_done

if TYPE_CHECKING:
    from ordack.config.config_file import ConfigFile
    from ordack.server.certificates import Made

AUTHORITY, AUTHORITY_DAYS, DAYS = "ordack", 7300, 3650

tls_app = typer.Typer(
    no_args_is_help=True, help="Create certificates: one authority for the plant, one certificate for each machine."
)
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        parser=local_file,
        help="Configuration file. Default: ordack.toml in the folder of the store.",
    ),
]


def read_file(store: Path | None, named: Path | None) -> ConfigFile:
    """Read the configuration file for a store. Mistakes end the command with status 2, after a line for each."""
    from ordack.config import config_file

    try:
        return config_file.read(config_file.find(store, named) if store else named)
    except config_file.BadConfigFile as error:
        for problem in error.problems:
            complain(problem)
        raise typer.Exit(2) from None


def _file(text: str) -> Path:
    """A file. If the text is the name of a setting, the error says where to change the setting."""
    from ordack.config.settings import FLAG, NUMBERS

    if (setting := NUMBERS.get(text)) is not None:
        value = "true" if setting.kind == FLAG else setting.default
        raise typer.BadParameter(f"{text} is a setting: write `{text} = {value}` into [settings] of ordack.toml")
    return local_file(text)


def config(
    store: StoreOption,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", parser=_file, help="Default: ordack.toml of the store.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check the configuration file, and show all settings.

    The command lists every mistake, then each setting with its value and source: file or default. Exit status: 2 the
    file has mistakes.
    """
    from ordack.config import config_file
    from ordack.config.tls import BadTls, Tls
    from ordack.server.certificates import warnings
    from ordack.server.monitor import BadToken, read_token

    path = file or config_file.find(store, None)
    problems: list[str] = []
    doubts: list[str] = []
    try:
        read = config_file.read(path)
        if read.tls:
            Tls(read.tls)
            doubts = warnings(read.tls.certificate, read.tls.authority)
            for text in doubts:
                complain(text)
        read_token(read.http_token_file)
    except config_file.BadConfigFile as error:
        problems = error.problems
    except BadTls as error:
        problems = [f"{path}: [tls]: {error}"]
    except BadToken as error:
        problems = [f"{path}: http-token-file: {error}"]
    if problems:
        if as_json:
            report(True, "", file=str(path), problems=problems)
        for problem in problems if not as_json else ():
            complain(problem)
        raise typer.Exit(2)
    if not as_json:
        report(
            False,
            f"{path}: {'valid, see the warning' if doubts else 'nothing is wrong'}"
            if path
            else f"{store} has no ordack.toml: all settings are defaults",
        )
    _show(path, read.names, as_json)


def _show(path: Path | None, names: Mapping[str, str], as_json: bool) -> None:
    """Show each setting from the file, or its default."""
    import tomllib

    from ordack.config.names import PeerNames
    from ordack.config.settings import FLAG, LISTEN, NUMBERS, TABLES

    said = tomllib.loads(path.read_text("utf-8-sig")) if path else {}
    numbers = said.pop("settings", {})
    rows: list[tuple[str, Any, str, bool]] = []
    for name in [*TABLES[""].keys, *(table for table in TABLES if table not in ("", "settings"))]:
        default = TABLES[""].keys[name].default if name in TABLES[""].keys else None
        default = [dict(zip(("address", "port"), LISTEN, strict=True))] if name == "listen" else default
        rows.append((name, said.get(name, default), "", name in said))
    for name, setting in NUMBERS.items():
        default = bool(setting.default) if setting.kind == FLAG else setting.default
        rows.append((name, numbers.get(name, default), setting.unit, name in numbers))
    sources = ("default", "file")
    if as_json:
        for name, value, unit, is_said in rows:
            report(True, "", name=name, value=value, unit=unit, **{"from": sources[is_said]})
        return
    known = {name: PeerNames({} if name == "names" else names) for name, *_ in rows}
    shown = [(name, known[name].added(_text(value)), unit, sources[is_said]) for name, value, unit, is_said in rows]
    print_table(("setting", "value", "unit", "from"), (), shown)


def _text(value: object) -> str:
    if isinstance(value, list):
        return "\n".join(_text(one).replace("\n", ", ") for one in value)
    if isinstance(value, dict):
        return "\n".join(f"{name} = {_text(one)}" for name, one in value.items())
    if isinstance(value, bool):
        return str(value).lower()
    return "absent" if value is None else str(value)


FolderArgument = Annotated[Path, typer.Argument(metavar="FOLDER", parser=local, help="Folder of the certificates.")]


@contextmanager
def _told() -> Iterator[None]:
    """End the command with a message on a certificate error."""
    from ordack.server.certificates import BadCertificate

    try:
        yield
    except BadCertificate as error:
        raise typer.BadParameter(str(error)) from None
    except OSError as error:
        complain(f"{error.filename}: {error.strerror or error}")
        raise typer.Exit(1) from None


def _report(made: Made, what: str, as_json: bool) -> None:
    files, until = [*map(str, made.files)], f"{made.until:%Y-%m-%d}"
    report_done(as_json, f"{what}, until {until}: {', '.join(files)}", files=files, until=until)


@tls_app.command("init")
def tls_init(folder: FolderArgument, as_json: JsonOption = False) -> None:
    """Create a certificate authority: ca.pem and ca.key.

    Every queue manager and board gets a copy of ca.pem. Keep ca.key secret: its owner can sign certificates that the
    plant trusts. The command overwrites nothing.
    """
    from ordack.server import certificates

    with _told():
        _report(certificates.init(folder, AUTHORITY, AUTHORITY_DAYS), f"made the authority {AUTHORITY}", as_json)


@tls_app.command("certificate")
def tls_certificate(
    folder: FolderArgument,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the machine, such as press-3, for allow-certificates.")
    ],
    host: Annotated[
        list[str] | None, typer.Option(metavar="HOST", help="Other address or host name of the machine. Repeatable.")
    ] = None,
    board: Annotated[bool, typer.Option("--board", help="Also write DER files, for MicroPython.")] = False,
    renew: Annotated[bool, typer.Option("--renew", help="Replace an existing certificate and its key.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Create a certificate and its key, signed by the authority.

    Copy NAME.pem, NAME.key and ca.pem to the machine of that name, and name them in [tls] of its ordack.toml. A board
    gets NAME.der, NAME.key.der and ca.der.
    """
    from ordack.server import certificates

    with _told():
        made = certificates.issue(folder, name, host or (), DAYS, board, renew)
        _report(made, f"made a certificate for {name}", as_json)
