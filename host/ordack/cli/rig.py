"""The command `ordack rig`. The rig stands above ordack and is no part of what is installed: it is looked for when this
command runs, in the checkout that ordack itself runs from.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from ordack.cli.common import complain, needs

CHECKOUT = Path(__file__).resolve().parents[3]
PASSED_ON: dict[str, Any] = {"add_help_option": False, "context_settings": {"ignore_unknown_options": True}}
"""How this command is added: its options are those of the rig's own parser."""


def rig(
    words: Annotated[list[str] | None, typer.Argument(metavar="COMMAND [BOARD]...", show_default=False)] = None,
) -> None:
    """Find, check or flash the boards of a lab: scan, check, flash, status. In a checkout only."""
    if not (CHECKOUT / "hil" / "rig.py").is_file():
        complain("the rig is no part of an installed ordack: in a checkout, `make setup-test` and .venv/bin/ordack rig")
        raise typer.Exit(2)
    sys.path.insert(0, str(CHECKOUT))
    with needs("hil"):
        command = import_module("hil.rig")
    raise typer.Exit(command.main(words or []))
