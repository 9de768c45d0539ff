"""The commands `ordack board`: provision, deploy, doctor and rescue."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from ordack.cli import common
from ordack.config.names import counted
from ordack.store import StoreError

if TYPE_CHECKING:
    from ordack.boards.outbox import Check
    from ordack.boards.repl import Board

Result = TypeVar("Result")

app = typer.Typer(no_args_is_help=True, help="Set up, check or rescue a MicroPython board on a serial port.")
PortOption = Annotated[
    str,
    typer.Option(
        "--port",
        metavar="PORT",
        help="Serial port, pseudo-terminal or pyserial URL: /dev/ttyACM0, COM3, socket://HOST:PORT.",
    ),
]
PASSWORD_VARIABLE = "ORDACK_WIFI_PASSWORD"
NameOption = Annotated[str, typer.Option(metavar="NAME", help="Name of the board, such as press-7.")]
QueueOption = Annotated[
    str,
    typer.Option(metavar="FORMATNAME", help=r"Destination queue, such as 'DIRECT=TCP:192.168.1.20\private$\line1'."),
]
WayOption = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Address of the queue manager. Default: the host of FORMATNAME, port 1801."),
]
WifiOption = Annotated[
    str | None,
    typer.Option(
        metavar="SSID",
        help=f"Wi-Fi network. The command reads its password from {PASSWORD_VARIABLE}, the terminal or standard "
        "input. An empty password means an open network. Default: the board keeps its network.",
    ),
]
NtpOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST",
        help="NTP server for the board's clock. Default: asked for at a terminal; else the board's current server.",
    ),
]
TlsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", parser=common.local, help="Use TLS, with ca.der, NAME.der and NAME.key.der from FOLDER."
    ),
]
TlsNameOption = Annotated[
    str, typer.Option(metavar="NAME", help="Name in the queue manager's certificate. Default: the host.")
]
ReplaceOption = Annotated[bool, typer.Option("--replace", help="Allow a new name, or the end of TLS.")]
OutboxOption = Annotated[str, typer.Option(metavar="FOLDER", help="Folder of the outbox on the board.")]


@app.command("provision")
def board_provision(
    port: PortOption,
    name: NameOption,
    queue: QueueOption,
    queue_manager: WayOption = None,
    wifi: WifiOption = None,
    ntp: NtpOption = None,
    tls: TlsOption = None,
    tls_name: TlsNameOption = "",
    replace: ReplaceOption = False,
    as_json: common.JsonOption = False,
) -> None:
    """Configure a board, and prove the configuration with a message.

    The command copies ordack's modules and writes config.json; unknown entries stay. The new configuration takes effect
    when the queue manager has stored a message from the board. Otherwise the board keeps its old one: correct the cause
    and run the command again.
    """
    with common.needs("boards"):
        from ordack.boards import provision as provisioning
        from ordack.boards.repl import attended
    from ordack.config.config import format_address, parse_address

    try:
        provisioning.check_name(name)
        host = provisioning.host_of(queue)
        address = (host, 1801) if queue_manager is None else parse_address(queue_manager)
        files = None if tls is None else (provisioning.tls_files(tls, name), tls_name or address[0])
        network = None if wifi is None else provisioning.check_wifi(wifi, _password(wifi))
        if ntp is None and sys.stdin is not None and sys.stdin.isatty():
            ntp = (
                typer.prompt("NTP server, empty to keep the board's", default="", show_default=False, err=True) or None
            )
        server = None if ntp is None else provisioning.check_ntp(ntp)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    wanted = provisioning.Wanted(name, queue, *address, network, files, replace, server)
    with _asking() as progress:
        done = attended(port, lambda board: provisioning.provision(board, wanted, progress), reset=True)
    text = f"{name} is provisioned, its message is stored in {queue}; GUID {done.guid}"
    text += f"; its old name was {done.before}" if done.before not in ("", name) else ""
    values = {"name": name, "queue": queue, "queue_manager": format_address(*address), **done._asdict()}
    common.report_done(as_json, "\n".join([text, *done.told]), **values)


@app.command("deploy")
def board_deploy(
    port: PortOption,
    main: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=common.local_file, help="Copy FILE to the board as main.py, and start it."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=common.local_file, help="Copy FILE to the board under its own name."),
    ] = None,
    package: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=common.local_file,
            help="Package to copy. Default: the modules that `make firmware` compiled, else the sources.",
        ),
    ] = None,
    as_json: common.JsonOption = False,
) -> None:
    """Copy ordack's modules and your program to a board. Unchanged files are not copied.

    The command restarts the board's program, and reports an error that ends main.py within five seconds. It copies no
    file that the board cannot compile. If it was interrupted, run it again. Exit status: 1 not done, a node cannot run,
    or main.py ended with an error.
    """
    with common.needs("boards"):
        from ordack.boards.deploy import Deployed, deploy
        from ordack.boards.repl import attended

    with _asking() as progress:

        def work(board: Board) -> tuple[str, Deployed, str | None]:
            done = deploy(board, package, main, config, progress)
            return ".".join(map(str, board.version)), done, board.start() if main else None

        version, done, error = attended(port, work, reset=True)
    text = f"{port}: copied {len(done.copied)} files, {counted(done.bytes, 'byte')}; {done.unchanged} were there"
    text += f"; removed {len(done.removed)}" if done.removed else ""
    text += "; the modules are frozen into the firmware" if done.frozen else ""
    text += f"; MicroPython {version}, core: {done.core or 'none'}"
    common.report_done(
        as_json,
        text
        + (f"; a node cannot start: {done.problem}" if done.problem else "")
        + (f"; main.py ends with an error: {error}" if error else ""),
        port=port,
        version=version,
        **done._asdict(),
        error=error or "",
    )
    if done.problem or error:
        raise typer.Exit(1)


@app.command("doctor")
def board_doctor(
    port: PortOption,
    queue_manager: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Test the connection from the board to this queue manager.")
    ] = None,
    outbox: OutboxOption = "outbox",
    as_json: common.JsonOption = False,
) -> None:
    """Check a board, and name a remedy for each problem.

    The checks cover firmware, heap, flash, clock, network and pending messages. The command restarts the board's
    program and changes nothing.
    """
    with common.needs("boards"):
        from ordack.boards.doctor import examine, program
        from ordack.boards.repl import attended
    from ordack.config.config import parse_address

    try:
        address = None if queue_manager is None else parse_address(queue_manager)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    with _asking() as progress:

        def work(board: Board) -> list[Check]:
            return [*examine(board, address, outbox, progress), *program(board)]

        checks = attended(port, work, reset=False)
    if as_json:
        for check in checks:
            common.report(True, "", **check.as_json())
    else:
        rows = [(check.name, check.verdict, check.text, check.advice) for check in checks]
        common.print_table(("check", "verdict", "found", "what to do"), (), rows)
    if any(check.verdict == "bad" for check in checks):
        raise typer.Exit(1)


@app.command("rescue")
def board_rescue(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FOLDER]", parser=common.local, help="Copy of an outbox on this machine, instead of a board."
        ),
    ] = None,
    port: Annotated[
        str | None, typer.Option(metavar="PORT", help="Serial port of the board, pseudo-terminal or pyserial URL.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", parser=common.local, help="New folder for the copy.")
    ] = None,
    outbox: OutboxOption = "outbox",
    as_json: common.JsonOption = False,
) -> None:
    """Copy a board's outbox, and list its messages.

    The list shows states and damaged records. `ordack board rescue FOLDER` lists a copy on this machine. Board and copy
    stay unchanged. Exit status: 1 records are damaged, or nothing was done.
    """
    with common.needs("boards"):
        from ordack.boards import outbox as outboxes
        from ordack.boards.repl import attended

    if (port is None) == (folder is None) or (port is not None and to is None):
        raise typer.BadParameter("name a board with --port PORT and the folder for the copy with --to DIR, or a FOLDER")
    with _asking() as progress:
        if to is not None:
            outboxes.make_folder(to)
        if folder is not None and to is not None:
            outboxes.copy_of(folder, to)
        elif port is not None and to is not None:
            attended(port, lambda board: outboxes.copy_from_board(board, outbox, to, progress), reset=False)
        found = list(outboxes.listing(to or folder or Path()))
    summary = found.pop()
    for message in found:
        state = message["state"] + (f", class 0x{message['class']:04X}" if message.get("class") else "")
        if whose := message.get("from"):
            state += f", from {whose}"
        what = f"{message['message_id']} {message['queue']} {message['label']!r}: {counted(message['size'], 'byte')}"
        common.report(as_json, f"{what}, {state}", **message)
    about = f"{summary['name']}, GUID {summary['guid']}" if summary["name"] else f"GUID {summary['guid']}"
    text = "\n".join([f"{len(found)} messages; {about}", *summary["damage"]])
    common.report(as_json, text, **summary, messages=len(found))
    if summary["damage"]:
        raise typer.Exit(1)


def _password(wifi: str) -> str:
    """The Wi-Fi password, from a source that no shell history and no process list records."""
    given = os.environ.get(PASSWORD_VARIABLE)
    if given is not None:
        return given
    if sys.stdin is not None and sys.stdin.isatty():
        return str(typer.prompt(f"Password of {wifi}", default="", hide_input=True, show_default=False, err=True))
    line = "" if sys.stdin is None else sys.stdin.readline()
    if not line:
        raise ValueError(f"there is no password for {wifi}: set {PASSWORD_VARIABLE}, or give a line of standard input")
    return line.rstrip("\r\n")


@contextlib.contextmanager
def _asking() -> Iterator[Callable[[str, int, int], None]]:
    """Show the progress of a transfer on standard error, if that is a terminal. A board error ends the command with a
    message."""
    from ordack.boards.repl import BoardError, NoBoard

    try:
        with common.activity("asking the board") as show:
            yield lambda what, done, total: show(f"{what}: {done:,} of {total:,} bytes")
    except NoBoard as error:
        common.complain(str(error))
        raise typer.Exit(5) from None
    except BoardError as error:
        raise StoreError(str(error)) from None
