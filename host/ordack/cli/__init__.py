"""The command `ordack`. host/docs/commands.md has the exit statuses.

A command imports its own modules when it runs: a receive in a script should cost milliseconds.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from ordack.cli import audit, board, config, messages, pipeline, queues, serve, status, stores
from ordack.cli.common import complain
from ordack.cli.output import OutputError, write
from ordack.config.names import BadName
from ordack.store import StoreError, StoreUnknown

GROUPS: dict[str, typer.Typer] = {
    "queue": queues.queue_app,
    "store": stores.app,
    "outgoing": queues.outgoing_app,
    "incoming": queues.incoming_app,
    "board": board.app,
    "pipeline": pipeline.app,
    "tls": config.tls_app,
}
COMMANDS: dict[str, Callable[..., None]] = {
    "state": status.state,
    "status": status.status,
    "send": messages.send,
    "receive": messages.receive,
    "move": messages.move,
    "purge": queues.purge,
    "backup": stores.backup,
    "export": pipeline.export,
    "audit": audit.audit,
    "config": config.config,
    "init": stores.init,
    "serve": serve.serve,
}


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        try:
            write(f"ordack {metadata.version('ordack')}\n")
        except metadata.PackageNotFoundError:
            write("ordack, run from a folder and not installed\n")
        raise typer.Exit


def ordack(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """A queue manager for the MSMQ binary protocol."""


def command_line(word: str = "") -> typer.Typer:
    """All commands, or only the command or group called `word`, because building unused commands dominates start-up."""
    app = typer.Typer(
        callback=ordack,
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    known: dict[str, typer.Typer | Callable[..., None]] = {**GROUPS, **COMMANDS}
    if word not in known:
        from ordack.cli.decode import decode  # slow to import

        known["decode"] = decode
    made = [app]
    for name, one in {word: known[word]}.items() if word in known else known.items():
        if isinstance(one, typer.Typer):
            app.add_typer(one, name=name)
            made.append(one)
        else:
            app.command(name)(one)
    for command in (one for group in made for one in group.registered_commands):
        if command.callback and command.callback.__doc__:  # rich keeps line breaks and reads [words] as markup
            text = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(command.callback.__doc__))
            command.help = text.replace("[", "\\[")
    return app


def main() -> None:
    """Entry point of the console script. Typer ends it quietly, with status 1, when the reader of a pipe has gone."""
    app = command_line(*sys.argv[1:2])
    try:
        app()
    except StoreError as error:
        complain(str(error))
        sys.exit(6 if isinstance(error, StoreUnknown) else 1)
    except OutputError as error:
        complain(str(error))
        sys.exit(1)
    except BadName as error:
        complain(str(error))
        sys.exit(2)
