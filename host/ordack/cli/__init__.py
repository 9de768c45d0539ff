"""The command `ordack`. host/docs/reference/commands.md has the exit statuses.

A command imports its own modules when it runs: a receive in a script should cost milliseconds.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ordack.cli.common import complain, local
from ordack.cli.output import OutputError, write
from ordack.config.names import BadName
from ordack.store import StoreError, StoreUnknown

# Purpose -> command -> its module and name there, and its help.
PURPOSES = {
    "Run a queue manager": {
        "init": ("stores.init", "Create a store."),
        "serve": ("serve.serve", "Run the queue manager."),
        "status": ("status.status", "Show connections, queues and problems."),
        "store": ("stores.app", "Check, back up or restore a store."),
        "config": ("config.config", "Check the configuration file."),
        "tls": ("config.tls_app", "Create certificates."),
        "bench": ("bench.bench", "Measure throughput and latency of this machine."),
    },
    "Use queues": {
        "send": ("messages.send", "Send a message to a queue, here or elsewhere."),
        "receive": ("messages.receive", "Receive messages from a queue."),
        "queue": ("queues.app", "Create, list, pause or delete queues."),
        "message": ("status.app", "Track, move or purge messages."),
    },
    "Connect boards": {"board": ("board.app", "Set up, check or rescue a board.")},
    "Analyze": {
        "table": ("table.app", "Export messages and load them into tables with Spark."),
        "capture": ("decode.app", "Decode and audit network captures."),
    },
}
COMMANDS = {name: place for commands in PURPOSES.values() for name, (place, _) in commands.items()}


def _help() -> str:
    """The help of `ordack` itself: one screen."""
    lines = ["Usage: ordack [--store FOLDER] COMMAND ...", ""]
    for purpose, commands in PURPOSES.items():
        lines += [f"{purpose}:", *(f"  {name:<9} {text}" for name, (_, text) in commands.items())]
    lines += ["", "The default store is ORDACK_STORE, else that of a plain `ordack init`."]
    return "\n".join([*lines, "Also: COMMAND --help, --version, --install-completion, --show-completion.\n"])


@functools.cache
def command(name: str) -> Any:
    """The typer command or group called `name`. Building the others would dominate its start-up."""
    module, _, attribute = COMMANDS[name].partition(".")
    made = getattr(importlib.import_module(f"ordack.cli.{module}"), attribute)
    if not isinstance(made, typer.Typer):
        function, made = made, typer.Typer(add_completion=False)
        made.command(name, context_settings=_HELP_OPTIONS)(function)
    made.rich_markup_mode = None
    made._add_completion = False  # noqa: SLF001 - only `ordack` itself has that option
    made.info.context_settings = _HELP_OPTIONS
    found = typer.main.get_command(made)
    found.name = name
    return found


_HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}


def _suggestion(words: list[str]) -> str:
    """The command that most resembles one of the first two words, also one in a group: `message move` for `move`."""
    paths = {name: name for name in COMMANDS}
    for group in COMMANDS:
        paths = {name: f"{group} {name}" for name in getattr(command(group), "commands", ())} | paths
    for word in words[:2]:
        if near := get_close_matches(word, paths, 1):
            return f" Did you mean '{paths[near[0]]}'?"
    return " `ordack --help` lists the commands."


class _Commands(TyperGroup):
    """Imports a command when somebody uses it."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer calls it with that
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        return command(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in COMMANDS and not ctx.resilient_parsing:
            ctx.fail(f"No such command '{args[0]}'.{_suggestion(args)}")
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        formatter.write(_help())


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        try:
            write(f"ordack {metadata.version('ordack')}\n")
        except metadata.PackageNotFoundError:
            write("ordack, run from a folder and not installed\n")
        raise typer.Exit


def ordack(
    store: Annotated[Path | None, typer.Option(metavar="FOLDER", parser=local)] = None,
    _version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True)] = False,
) -> None:
    """A queue manager for the MSMQ binary protocol."""
    if store:
        os.environ["ORDACK_STORE"] = str(store)  # the default of each command's own --store


def command_line() -> typer.Typer:
    """All commands."""
    app = typer.Typer(
        cls=_Commands,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings=_HELP_OPTIONS,
    )
    app.callback()(ordack)
    return app


def main() -> None:
    """Entry point of the console script. Typer ends it quietly, with status 1, when the reader of a pipe has gone."""
    try:
        command_line()(prog_name="ordack")
    except (StoreError, OutputError, BadName) as error:
        complain(str(error))
        sys.exit(6 if isinstance(error, StoreUnknown) else 2 if isinstance(error, BadName) else 1)
