"""The commands `ordack tls`: a certificate authority for a plant, and certificates for queue managers and boards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ordack.cli.common import JsonOption, complain, local, report_done

if TYPE_CHECKING:
    from ordack.server.certificates import Made

AUTHORITY_DAYS, DAYS = 7300, 3650

app = typer.Typer(
    no_args_is_help=True,
    help="Make the certificates that TLS needs: one authority for a plant, a certificate for each queue "
    "manager and board.",
)
FolderArgument = Annotated[Path, typer.Argument(metavar="FOLDER", parser=local, help="Folder of the certificates.")]


@contextmanager
def _told() -> Iterator[None]:
    """What cannot be done ends the command with a sentence."""
    from ordack.server.certificates import BadCertificate

    try:
        yield
    except BadCertificate as error:
        raise typer.BadParameter(str(error)) from None
    except OSError as error:
        complain(f"{error.filename}: {error.strerror or error}")
        raise typer.Exit(1) from None


def _report(as_json: bool, made: Made, what: str) -> None:
    report_done(
        as_json,
        f"{what}, until {made.until:%Y-%m-%d}: {', '.join(map(str, made.files))}",
        files=[str(path) for path in made.files],
        until=made.until.isoformat(),
    )


@app.command("init")
def init(
    folder: FolderArgument,
    name: Annotated[str, typer.Option(help="Name of the authority.")] = "ordack",
    as_json: JsonOption = False,
) -> None:
    """Make a certificate authority: ca.pem, which everybody gets, and ca.key, which stays here and is kept safe.

    Who has ca.key can make certificates that the whole plant believes. Nothing that is there is overwritten.
    """
    from ordack.server import certificates

    if not 1 <= len(name) <= 64 or not name.isprintable():
        raise typer.BadParameter(f"--name {name!r}: write 1 to 64 printable characters")
    with _told():
        _report(as_json, certificates.init(folder, name, AUTHORITY_DAYS), f"made the authority {name}")


@app.command("certificate")
def certificate(
    folder: FolderArgument,
    name: Annotated[str, typer.Argument(help="Who gets it, as press-3: allow-certificates goes by this name.")],
    host: Annotated[
        list[str] | None,
        typer.Option(help="An address or name at which others connect to it, besides NAME; may be repeated."),
    ] = None,
    board: Annotated[bool, typer.Option("--board", help="Write files for MicroPython, too: DER.")] = False,
    renew: Annotated[bool, typer.Option("--renew", help="Make it and its key new, in place of those there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a certificate and its key, signed by the authority in FOLDER.

    Copy NAME.pem, NAME.key and ca.pem to the machine of that name and name them in [tls] of its ordack.toml; a board
    gets NAME.der, NAME.key.der and ca.der. Keys go nowhere else.
    """
    from ordack.server import certificates

    with _told():
        made = certificates.issue(folder, name, host or (), DAYS, board, renew)
        _report(as_json, made, f"made a certificate for {name}")
