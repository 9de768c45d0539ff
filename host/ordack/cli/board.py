"""The commands `ordack board`: deploy, doctor and rescue."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from ordack.cli.common import JsonOption, complain, local, local_file, needs, print_table, report, report_done
from ordack.store import StoreError

app = typer.Typer(no_args_is_help=True, help="Set up, check or rescue a board with MicroPython on a serial port.")
PortOption = Annotated[
    str,
    typer.Option(
        "--port",
        metavar="PORT",
        help="Serial port, pseudo-terminal or pyserial URL: /dev/ttyACM0, COM3, socket://HOST:PORT.",
    ),
]
BaudOption = Annotated[int, typer.Option(help="Speed of a serial line; USB ports ignore it.")]


@app.command("deploy")
def board_deploy(
    port: PortOption,
    main: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=local_file, help="Copy this file to the board as main.py, which it runs."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=local_file, help="Copy this file to the board under its own name."),
    ] = None,
    package: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=local_file,
            help="The package.json to copy from. Default: what `make natmod` compiled, else the sources.",
        ),
    ] = None,
    baud: BaudOption = 115200,
    as_json: JsonOption = False,
) -> None:
    """Copy ordack's modules and your program to a board. Copies only what the board does not have yet.

    The command stops the board's program and starts it again. If it is interrupted, the board keeps its old modules, or
    `ordack board doctor` reports files of two versions; the next deploy repairs them. Exit status: 0 a node can run
    there; 1 not done, or a node cannot run; 5 no board with MicroPython answers.
    """
    with needs("boards"):
        from ordack.boards.deploy import deploy
        from ordack.boards.repl import attended

    with _board_errors(), _progress() as progress:
        version, done = attended(
            port,
            baud,
            lambda board: (".".join(map(str, board.version)), deploy(board, package, main, config, progress)),
            reset=True,
        )
    text = f"{port}: copied {len(done.copied)} files, {done.bytes} bytes; {done.unchanged} were there"
    text += f"; removed {len(done.removed)}" if done.removed else ""
    text += "; the modules are frozen into the firmware" if done.frozen else ""
    text += f"; MicroPython {version}, core: {done.core or 'none'}"
    report_done(
        as_json,
        text + (f"; a node cannot start: {done.problem}" if done.problem else ""),
        port=port,
        version=version,
        **done._asdict(),
    )
    if done.problem:
        raise typer.Exit(1)


@app.command("doctor")
def board_doctor(
    port: PortOption,
    queue_manager: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Let the board connect to this queue manager.")
    ] = None,
    outbox: Annotated[str, typer.Option(metavar="FOLDER", help="Folder of the node's outbox on the board.")] = "outbox",
    baud: BaudOption = 115200,
    as_json: JsonOption = False,
) -> None:
    """Check a board and say what to do: firmware, core, heap, flash, clock, network, what waits and why.

    The command stops the board's program and starts it again. It changes nothing on the board. Exit status: 0 nothing
    is bad; 1 something is; 5 no board with MicroPython answers.
    """
    with needs("boards"):
        from ordack.boards.doctor import examine
        from ordack.boards.repl import attended
    from ordack.config import parse_address

    try:
        address = None if queue_manager is None else parse_address(queue_manager)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    with _board_errors(), _progress() as progress:
        checks = attended(port, baud, lambda board: list(examine(board, address, outbox, progress)), reset=False)
    if as_json:
        for check in checks:
            report(True, "", **check.as_json())
    else:
        print_table(
            ("check", "verdict", "found", "what to do"),
            (),
            [(check.name, check.verdict, check.text, check.advice) for check in checks],
        )
    if any(check.verdict == "bad" for check in checks):
        raise typer.Exit(1)


@app.command("rescue")
def board_rescue(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[FOLDER]", parser=local, help="An outbox on this machine, instead of a board."),
    ] = None,
    port: Annotated[
        str | None, typer.Option(metavar="PORT", help="The board: serial port, pseudo-terminal or pyserial URL.")
    ] = None,
    to: Annotated[Path | None, typer.Option(metavar="DIR", parser=local, help="New folder for the copy.")] = None,
    outbox: Annotated[str, typer.Option(metavar="FOLDER", help="Folder of the node's outbox on the board.")] = "outbox",
    baud: BaudOption = 115200,
    as_json: JsonOption = False,
) -> None:
    """Copy an outbox off a board, and list its messages with their states, and what cannot be read.

    `ordack board rescue FOLDER` does the same with a copy on this machine. The command changes nothing there or on the
    board. Exit status: 0 everything could be read; 1 something could not, or nothing was done; 5 no board with
    MicroPython answers.
    """
    with needs("boards"):
        from ordack.boards import rescue
        from ordack.boards.repl import attended

    if (port is None) == (folder is None) or (port is not None and to is None):
        raise typer.BadParameter("name a board with --port PORT and the folder for the copy with --to DIR, or a FOLDER")
    with _board_errors(), _progress() as progress:
        if to is not None:
            rescue.make_folder(to)
        if folder is not None and to is not None:
            rescue.copy_of(folder, to)
        elif port is not None and to is not None:
            attended(port, baud, lambda board: rescue.copy_from_board(board, outbox, to, progress), reset=False)
        found = list(rescue.listing(to or folder or Path()))
    summary = found.pop()
    for message in found:
        state = message["state"] + (f", class 0x{message['class']:04X}" if message.get("class") else "")
        what = f"{message['message_id']} {message['queue']} {message['label']!r}: {message['size']} bytes"
        report(as_json, f"{what}, {state}", **message)
    about = f"{summary['name']}, GUID {summary['guid']}" if summary["name"] else f"GUID {summary['guid']}"
    report(as_json, "\n".join([f"{len(found)} messages; {about}", *summary["damage"]]), **summary, messages=len(found))
    if summary["damage"]:
        raise typer.Exit(1)


@contextlib.contextmanager
def _board_errors() -> Iterator[None]:
    from ordack.boards.repl import BoardError, NoBoard

    try:
        yield
    except NoBoard as error:
        complain(str(error))
        raise typer.Exit(5) from None
    except BoardError as error:
        raise StoreError(str(error)) from None


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show the progress of a transfer on standard error, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as shown:
        tasks: dict[int, Any] = {}

        def told(what: str, done: int, total: int) -> None:
            if total not in tasks:
                tasks[total] = shown.add_task(what, total=total)
            shown.update(tasks[total], description=what, completed=done)

        yield told
