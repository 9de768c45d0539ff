"""Examines a board and advises what to do (`ordack board doctor`)."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from mqqb import core, guids, session

from ordack.boards.deploy import HIDES, MANIFEST, hiding_folder, manifest_of
from ordack.boards.outbox import CLOCK_SET, FILES, Check, fetch_outbox, read_outbox
from ordack.boards.repl import CORE, FREE, Board, BoardError, Info, Progress, dotted

HEAP_NEEDED = {True: 36 * 1024, False: 108 * 1024}  # bytes of a running node, its modules frozen or not
FLASH_NEEDED = 64 * 1024  # bytes: a segment of the outbox
DRIFT_S = 5
NO_WAY = ("(101,)", "(113,)", "(114,)", "(118,)")  # ENETUNREACH, EHOSTUNREACH: Linux and lwIP, newlib
_TIME = "import time\nprint((time.time(),time.gmtime(0)[0]))"
_REACH = """
def _reach(host, port, packet):
    try:
        import socket
    except ImportError:
        return ('no network', b'')
    try:
        places = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
    except OSError as e:
        return ('the name is not found: ' + repr(e), b'')
    for a in places:
        _feed()
        step = 'no connection'
        s = socket.socket(a[0])
        try:
            s.settimeout(5)
            s.connect(a[-1])
            _feed()
            step = 'it does not answer'
            s.send(packet)
            return ('', s.recv(64))
        except OSError as e:
            said = step + ': ' + repr(e)
        finally:
            s.close()
    return (said, b'')
"""


def examine(
    board: Board,
    queue_manager: tuple[str, int] | None = None,
    outbox: str = "outbox",
    progress: Progress = lambda *_: None,
) -> Iterator[Check]:
    """Examine a board without changing it."""
    info = board.info
    if board.watched:
        yield Check("watchdog", "ok", "the program uses one; ordack board fed it during the check")
    version = dotted(info.version)
    values = {"version": version, "machine": info.machine, "native": info.arch}
    yield Check("firmware", "ok", f"MicroPython {version} on {info.machine}", "", values)
    implementation, problem, frozen = board.run(CORE)
    yield _modules(board, implementation, problem, frozen)
    if implementation:
        yield _core(implementation, info)
    if folder := hiding_folder(board, frozen):
        yield Check("layout", "bad", f"{folder} {HIDES[0]}", HIDES[1], {"hidden_by": folder})
    needed = HEAP_NEEDED[frozen]
    advice = f"a node needs about {needed} bytes" + ("" if frozen else ": freeze the modules into the firmware")
    yield _room("heap", info.heap_free, info.heap, needed, advice)
    _, free, size = board.run(FREE.format(info.folder))
    advice = "the outbox needs room: set a capacity below the size of the file system"
    yield _room("flash", free, size, FLASH_NEEDED, advice)
    clock = _clock(board)
    yield clock
    reached = None
    if queue_manager is not None:
        reached = reach(board, *queue_manager)
        yield reached
    yield from _outbox(board, info, outbox, clock.verdict == "ok", reached, progress)


def program(board: Board) -> Iterator[Check]:
    """How main.py starts, if it exists. Ask this last, because the program runs afterwards."""
    (there,) = board.sums([board.info.root("main.py")])
    if there is None or board.watched:
        return
    error = board.start()
    if error is None:
        yield Check("program", "ok", "main.py runs", "", {"runs": True, "error": ""})
    elif error:
        advice = "correct it, then run ordack board deploy --main FILE"
        yield Check("program", "bad", f"main.py ends with an error: {error}", advice, {"runs": False, "error": error})
    else:
        advice = "a node stops with its program: keep main.py running, as with asyncio.run"
        yield Check("program", "warning", "main.py ends at once", advice, {"runs": False, "error": ""})


def _modules(board: Board, implementation: str | None, problem: str, frozen: bool) -> Check:
    if implementation is None:
        return Check("modules", "bad", "mqqb and ordack.node are missing", "run ordack board deploy")
    if problem:
        return Check("modules", "bad", f"mqqb cannot be imported: {problem}", "run ordack board deploy")
    if frozen:
        return Check("modules", "ok", "frozen into the firmware", "", {"frozen": True})
    deploy = "run ordack board deploy"
    manifest = manifest_of(board, f"{board.info.lib}/{MANIFEST}")
    if not manifest:
        text = "version unknown: copied by hand or by mip"
        return Check("modules", "warning", text, deploy, {"frozen": False})
    files = manifest.get("files", {})
    sums = board.sums(list(files))
    wrong = [path for path, there in zip(files, sums, strict=True) if there is None or list(there) != files[path]]
    values = {"frozen": False, "version": manifest.get("version"), "wrong": wrong}
    if not manifest.get("complete"):
        return Check("modules", "bad", "files of two versions: a deploy was interrupted", deploy, values)
    if wrong:
        return Check("modules", "bad", f"changed since the deploy: {', '.join(wrong)}", deploy, values)
    return Check("modules", "ok", f"{len(files)} files of ordack {manifest.get('version')}", "", values)


def _core(implementation: str, info: Info) -> Check:
    values = {"core": implementation}
    if implementation != "python":
        where = "as a native module" if implementation == "native-module" else "in the firmware"
        return Check("core", "ok", f"the C core, {where}", "", values)
    if info.arch:
        advice = "run ordack board deploy, or build the firmware with the C core"
        return Check("core", "warning", "the Python twin", advice, values)
    advice = "no native modules load here; a firmware built with the C core is faster"
    return Check("core", "ok", "the Python twin", advice, values)


def _room(name: str, free: int, size: int, needed: int, advice: str) -> Check:
    """Whether enough bytes of heap or flash are free; advice: what to do if not."""
    text, values = f"{free} bytes free of {size}", {"free": free, "size": size}
    return Check(name, "ok", text, "", values) if free >= needed else Check(name, "warning", text, advice, values)


def _clock(board: Board) -> Check:
    began = time.time()
    try:
        told, year = board.run(_TIME)
    except BoardError:
        return Check("clock", "warning", "this firmware has no clock", "messages do not expire until it is set")
    now = told + (946684800 if year == 2000 else 0)
    drift = round(now - (began + time.time()) / 2, 1)
    if now < CLOCK_SET:
        advice = "messages do not expire until it is set: use NetworkTime, or mpremote rtc --set"
        return Check("clock", "warning", "not set", advice, {"set": False})
    text, values = f"{drift:+g} s against this computer", {"set": True, "drift": drift}
    if abs(drift) <= DRIFT_S:
        return Check("clock", "ok", text, "", values)
    return Check("clock", "warning", text, "messages may expire too early or too late: set the clock", values)


def reach(board: Board, host: str, port: int) -> Check:
    asking = session.Session(True, b"ordack doctor..."[:16], 0)
    asking.connected(0)
    board.run(_REACH)
    problem, answer = board.run(f"print(_reach({host!r}, {port}, {bytes(asking.data_to_send())!r}))", 40)
    text, advice = f"{host}:{port}: {problem}", ""
    if problem.endswith(NO_WAY):
        text += ", no route"
        advice = "check that main.py joins a network, the address, and that the machine is on"
    elif problem:
        advice = "check that `ordack serve` runs, the address, and the firewall"
    elif answer[4:8] != b"LIOR":
        text, advice = f"{host}:{port}: another service answers, no queue manager", "check the port"
    if advice:
        return Check("queue manager", "bad", text, advice, {"reached": False})
    guid = answer[core.ESTABLISH_SERVER_GUID_AT : core.ESTABLISH_SERVER_GUID_AT + 16]
    values = {"reached": True, "guid": guids.guid_text(guid) if len(guid) == 16 else ""}
    return Check("queue manager", "ok", f"{host}:{port} answers", "", values)


def _outbox(
    board: Board, info: Info, folder: str, clock_is_set: bool, reached: Check | None, progress: Progress
) -> Iterator[Check]:
    path = folder if folder.startswith("/") else info.root(folder)
    found = board.run(FILES.format(path))
    if not found:
        yield Check("outbox", "ok", f"{path} is empty", "", {"messages": 0})
        return
    with tempfile.TemporaryDirectory() as copy:
        fetch_outbox(board, path, found, Path(copy), progress)
        flash = sum(size for _, size in found) + board.run(FREE.format(info.folder))[1]
        yield from read_outbox(copy, path, time.time(), flash, clock_is_set=clock_is_set, reached=reached)
