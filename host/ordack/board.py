"""Deploy ordack to MicroPython boards on a serial port, and examine them (`ordack board deploy`, `doctor`).

Both commands interrupt the board's program, use its raw REPL, and start the program again at the end. `deploy` copies
from a folder with a package.json, as mip does. It writes each changed file under another name, checks it, and renames
all of them at the end; `ordack.json` beside them records the version. A deploy that is interrupted before the renaming
has changed nothing. If it is interrupted during the renaming, `doctor` reports files of two versions, and the next
deploy repairs them.

A program that feeds a watchdog is interrupted, too, and most watchdogs cannot be stopped. When the watchdog has reset
the board, `attended` repeats the work and feeds it.
"""

from __future__ import annotations

import ast
import binascii
import contextlib
import io
import json
import re
import runpy
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import mqqb
import serial
from mpremote.transport import TransportError
from mpremote.transport_serial import SerialTransport
from mqqb import confirm, core, guids, session

from ordack import classes

MINIMUM = (1, 25)  # of MicroPython
MPY_VERSION = 6  # of the files that mpy-cross makes
HEAP_NEEDED = {True: 36 * 1024, False: 108 * 1024}  # bytes of a running node, its modules frozen or not
SMALL_MESSAGE = 512  # bytes: with less room than that an outbox is full
FLASH_NEEDED = 64 * 1024  # bytes: a segment of the outbox
CLOCK_SET = 1700000000  # s since 1970; an earlier time is no time (node.CLOCK_SET)
DRIFT_S = 5
NO_WAY = ("(101,)", "(113,)", "(114,)", "(118,)")  # ENETUNREACH, EHOSTUNREACH: Linux and lwIP, newlib
ENTER_S = 5
BOOT_S = 20  # boot.py may join a network
RETURN_S = 10  # a USB port is away while its board starts
QUIET_S = 0.3
CHUNK_BYTES = 1024
MANIFEST = "ordack.json"
CHECKOUT = Path(mqqb.__file__).resolve().parents[2]

Progress = Callable[[str, int, int], None]  # what, bytes done, bytes in all
Result = TypeVar("Result")


class BoardError(Exception):
    """The board does not do what was asked. The text says what to do."""


class NoBoard(BoardError):
    """There is nothing to talk to: no port, a port in use, no answer, no MicroPython."""


class Info(NamedTuple):
    """What a board says of itself. heap_free: bytes, after a collection. mpy: sys.implementation._mpy, 0 without."""

    version: tuple[int, ...]
    machine: str
    mpy: int
    heap_free: int
    heap: int
    path: list[str]
    folder: str

    @property
    def arch(self) -> str:
        """The native modules that it loads; empty if it takes none."""
        return core.NATIVE[self.mpy >> 10 & 15]

    @property
    def lib(self) -> str:
        """Where modules go: the folder that mip takes, else the one in which the board starts."""
        found = [path for path in self.path if path.endswith("/lib") and not path.startswith("/rom")]
        return found[0] if found else self.folder.rstrip("/")

    def root(self, name: str) -> str:
        """A file in the folder in which the board starts."""
        return f"{self.folder.rstrip('/')}/{name}"


_WHO = "import sys\ni=sys.implementation\nprint((i.name,tuple(i.version)[:3]))"
_INFO = """
import gc, os, sys
gc.collect()
i = sys.implementation
m = getattr(i, '_machine', sys.platform)
print((m, getattr(i, '_mpy', 0), gc.mem_free(), gc.mem_alloc(), list(sys.path), os.getcwd()))
"""
# Every command begins with _feed(). What holds it is gone after a reset.
_UNWATCHED = "_feed = int"
# A second WDT takes over the first with a longer time: 30 s is about an STM32's limit, 8.388 s is an RP2's.
_WATCHED = """
import machine
try:
    _feed = machine.WDT(timeout=30000).feed
except ValueError:
    _feed = machine.WDT(timeout=8388).feed
"""
# Was the board reset since it was told _feed, and not by its power?
_BITTEN = """
try:
    import machine
    print('_feed' not in globals() and hasattr(machine, 'WDT') and machine.reset_cause() != machine.PWRON_RESET)
except (ImportError, AttributeError):
    print(False)
"""
# Size and CRC of files; None: not there.
_SUMS = """
import binascii
def _sum(path):
    n = crc = 0
    b = memoryview(bytearray(512))
    try:
        f = open(path, 'rb')
    except OSError:
        return None
    with f:
        while True:
            k = f.readinto(b)
            if not k:
                return (n, crc & 0xFFFFFFFF)
            crc = binascii.crc32(b[:k], crc)
            n += k
"""
_OPEN = """
import binascii, os
try:
    f = open({0!r}, 'rb')
    print(os.stat({0!r})[6])
except OSError:
    print(None)
"""
_FREE = "import os\ns=os.statvfs({!r})\nprint((s[0],s[0]*s[3],s[0]*s[2]))"
_FOLDERS = "import os\nfor p in {!r}:\n try:\n  os.mkdir(p)\n except OSError:\n  pass"
# FAT does not rename over a file.
_RENAME = """
import os
for p in {!r}:
    try:
        os.rename(p + '.new', p)
    except OSError:
        os.remove(p)
        os.rename(p + '.new', p)
for p in {!r}:
    try:
        os.remove(p)
    except OSError:
        pass
"""
# Which core a node would use, and whether its modules are frozen into the firmware.
_CORE = """
import gc, os
def _core():
    try:
        import mqqb
    except ImportError:
        return (None, '', False)
    file = getattr(mqqb, '__file__', None)
    if not file:
        return (None, '', False) # an empty folder
    try:
        os.stat(file)
        frozen = False
    except OSError:
        frozen = True
    try:
        from mqqb import core
        return (core.implementation, '', frozen)
    except Exception as e:
        return ('', repr(e), frozen)
print(_core())
"""
_NODE = "try:\n import node\n print(repr(''))\nexcept Exception as e:\n print(repr(repr(e)))"
_MODULE = "try:\n import {}\n print(True)\nexcept Exception:\n print(False)"
_TIME = "import time\nprint((time.time(),time.gmtime(0)[0]))"
_WIFI = """
try:
    import network
    w = network.WLAN(network.STA_IF)
    print((w.isconnected(), w.ifconfig()[0] if w.isconnected() else ''))
except (ImportError, AttributeError):
    print(None)
"""
_REACH = """
def _reach(host, port, packet):
    try:
        import socket
    except ImportError:
        return ('no network', b'')
    s = None
    step = 'the name is not found'
    try:
        a = socket.getaddrinfo(host, port)[0][-1]
        _feed()
        step = 'no connection'
        s = socket.socket()
        s.settimeout(5)
        s.connect(a)
        _feed()
        step = 'it does not answer'
        s.send(packet)
        return ('', s.recv(16))
    except OSError as e:
        return (step + ': ' + repr(e), b'')
    finally:
        if s:
            s.close()
"""
FILES = """
import os
try:
    print([(f[0], os.stat({0!r} + '/' + f[0])[6]) for f in os.ilistdir({0!r})])
except OSError:
    print(None)
"""


class _Line(SerialTransport):  # type: ignore[misc]
    """One on which no wait is without end: mpremote's own looks at the time only while the board says nothing."""

    limit = float(ENTER_S)  # s

    def read_until(self, _: int, ending: bytes, *__: Any, timeout_overall: Any = None, **___: Any) -> bytes:
        """What the board says up to `ending`, or until the time is over."""
        until = time.monotonic() + (timeout_overall or self.limit)
        data = b""
        while not data.endswith(ending) and time.monotonic() < until:
            if self.is_pty or self.serial.in_waiting:
                data += self.serial.read(1)
            else:
                time.sleep(0.01)
        return data


class Board:
    """A board's raw REPL; the program there is interrupted. `look` comes first. Raises NoBoard, BoardError.

    again: the attempt before was cut off. `watched`: a watchdog has done that; each command feeds it now.
    """

    def __init__(self, port: str, baud: int = 115200, *, again: bool = False) -> None:
        self.port = port
        self.watched = False
        try:
            self._line = _Line(port, baudrate=baud, timeout=2)
        except (TransportError, OSError, ValueError):
            raise NoBoard(_why_not_opened(port, baud)) from None
        try:
            self._enter(reset=False)
            self.watched = again and self._exec(_BITTEN) is True
            self._feed()
        except BaseException:
            self.close(restart=False)
            raise

    def look(self, *, reset: bool) -> Board:
        """Learn what it is. reset: after a soft reset, which frees the heap. Lets go of the port if it raises."""
        try:
            if reset:
                self.reset()
            name, version = self.run(_WHO)
            if name != "micropython":
                raise NoBoard(
                    f"the board at {self.port} runs {name}, not MicroPython: install MicroPython 1.25 or newer"
                )
            self.version: tuple[int, ...] = version
            if version < MINIMUM:
                raise BoardError(
                    f"the board at {self.port} has MicroPython {_dotted(version)}: 1.25 or newer is needed"
                )
            machine, mpy, free, used, path, folder = self.run(_INFO)
            self.info = Info(version, machine, mpy, free, free + used, path, folder)
        except BaseException:
            self.close(restart=False)
            raise
        return self

    def __enter__(self) -> Board:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(restart=True)

    def _enter(self, *, reset: bool) -> None:
        said = io.StringIO()
        self._line.serial.write_timeout = ENTER_S
        until = time.monotonic() + (BOOT_S if reset else ENTER_S)
        while True:  # a program may have caught the first interrupt
            try:
                with contextlib.redirect_stdout(said):
                    self._line.enter_raw_repl(soft_reset=reset, timeout_overall=BOOT_S if reset else ENTER_S / 4)
                return
            except TransportError:
                if time.monotonic() > until:
                    break
                self._calm()
            except OSError as error:
                raise NoBoard(f"the board at {self.port} went away: {error}") from None
        heard = said.getvalue().splitlines()
        data = ast.literal_eval(heard[-1]) if heard and heard[-1].startswith("b") else b""
        if data.strip():
            raise NoBoard(f"what answers at {self.port} is not MicroPython: {data[-60:]!r}")
        raise NoBoard(f"the board at {self.port} does not answer: is it the right port, and does it have MicroPython?")

    def _calm(self) -> None:
        """Interrupt again, and hear out what the attempt before has caused: what it sent may be obeyed only now."""
        with contextlib.suppress(OSError):
            for key in (b"\x03\x03", b"\x02"):
                self._line.serial.write(key)
                until = time.monotonic() + QUIET_S
                end = until + QUIET_S
                while time.monotonic() < min(until, end):
                    if waiting := self._line.serial.in_waiting:
                        self._line.serial.read(waiting)
                        until = time.monotonic() + QUIET_S
                    time.sleep(0.01)

    def reset(self) -> None:
        """A soft reset: nothing is imported any more, the heap is free, main.py does not run."""
        self._enter(reset=True)
        self._feed()

    def _feed(self) -> None:
        self._exec(_WATCHED if self.watched else _UNWATCHED)

    def run(self, code: str, seconds: float = 10) -> Any:
        """Run code there; what it prints, as a Python value, None if nothing. seconds: at most so long."""
        return self._exec("_feed()\n" + code, seconds)

    def _exec(self, code: str, seconds: float = 10) -> Any:
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                self._line.limit = ENTER_S
                self._line.exec_raw_no_follow(code)
                self._line.limit = seconds
                output, errors = self._line.follow(seconds)
        except (TransportError, OSError) as error:
            raise NoBoard(f"the board at {self.port} stopped answering: {error}") from None
        if errors:
            raise BoardError(f"the board at {self.port}: {errors.decode(errors='replace').splitlines()[-1]}")
        text = output.decode(errors="replace").strip()
        try:
            return ast.literal_eval(text) if text else None
        except (SyntaxError, ValueError):
            raise BoardError(f"the board at {self.port} prints what is not asked: {text[:60]!r}") from None

    def sums(self, paths: Sequence[str]) -> list[tuple[int, int] | None]:
        """Size and CRC-32 of each file; None: it is not there."""
        self.run(_SUMS)
        return [self.run(f"print(_sum({path!r}))", 30) for path in paths]

    def read(self, path: str, told: Callable[[int, int], None] = lambda *_: None) -> bytes:
        """All of a file. Raises FileNotFoundError. told: bytes so far, bytes in all."""
        size = self.run(_OPEN.format(path))
        if size is None:
            raise FileNotFoundError(path)
        data = b""
        while len(data) < size:
            part = binascii.a2b_base64(self.run(f"print(binascii.b2a_base64(f.read({CHUNK_BYTES})))"))
            if not part:
                raise BoardError(f"{path} became shorter while it was read")
            data += part
            told(len(data), size)
        self.run("f.close()")
        return data

    def write(self, path: str, data: bytes, told: Callable[[int, int], None] = lambda *_: None) -> None:
        """Make a file, or take away what was in it. told: as in `read`."""
        self.run(f"import binascii\nf=open({path!r},'wb')")
        for start in range(0, len(data), CHUNK_BYTES):
            part = data[start : start + CHUNK_BYTES]
            self.run(f"f.write(binascii.a2b_base64({binascii.b2a_base64(part, newline=False)!r}))")
            told(start + len(part), len(data))
        self.run("f.close()")

    def close(self, *, restart: bool) -> None:
        """Let go of the port. restart: with a soft reset, after which the board runs its main.py; a watched one with a
        hard reset, which stops the watchdog.
        """
        with contextlib.suppress(OSError, TransportError):
            if restart and self.watched:
                self._line.exec_raw_no_follow("import machine\nmachine.reset()")
                self._line.serial.flush()
                restart = False
            elif self._line.in_raw_repl:
                self._line.exit_raw_repl()
            if restart:
                self._line.serial.write(b"\x04")
                self._line.serial.flush()
        with contextlib.suppress(OSError):
            self._line.close()


def attended(port: str, baud: int, work: Callable[[Board], Result], *, reset: bool) -> Result:
    """What `work` gives for the board at a port, whose program is interrupted, and started again after it.

    If a watchdog resets the board meanwhile, `work` is done once more, and the watchdog fed. reset: as in `Board.look`.
    Raises NoBoard, BoardError, and what `work` raises.
    """
    board = Board(port, baud)
    try:
        try:
            return work(board.look(reset=reset))
        except BoardError as error:
            board.close(restart=False)
            board = _returned(port, baud, error)
            if not board.watched:
                raise
        return work(board.look(reset=reset))
    finally:
        board.close(restart=True)


def _returned(port: str, baud: int, failure: BoardError) -> Board:
    """The board that may have been reset just now. Raises `failure` if it does not come back."""
    until = time.monotonic() + RETURN_S
    while True:
        try:
            return Board(port, baud, again=True)
        except NoBoard:
            if time.monotonic() > until:
                raise failure from None
            time.sleep(0.1)


def _why_not_opened(port: str, baud: int) -> str:
    try:
        serial.serial_for_url(port, baud, exclusive=True).close()
    except serial.SerialException as error:
        text = str(error)
        if "lock" in text or "busy" in text:
            return f"{port} is in use by another program: end it (a terminal, `ordack serve`, mpremote)"
        if "ermission" in text:
            return f"{port} may not be opened by this user: join the group that owns it (often dialout)"
        if "No such file" in text:
            return f"there is no port {port}; there are: {', '.join(_ports()) or 'none'}"
        return f"{port} cannot be opened: {text}"
    except (ValueError, OSError) as error:
        return f"{port} cannot be opened: {error}"
    return f"{port} could not be opened a moment ago: try again"


def _ports() -> list[str]:
    from serial.tools import list_ports

    return sorted(found.device for found in list_ports.comports())


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


# ---- deploy -----------------------------------------------------------------------------------------


class Deployed(NamedTuple):
    """What a deploy did. core: which one the board uses now; problem: why a node cannot start there, or empty."""

    copied: list[str]
    unchanged: int
    removed: list[str]
    bytes: int
    core: str
    problem: str
    frozen: bool


def default_package(info: Info) -> Path:
    """The compiled package if there is one that the board loads, else the sources. Raises BoardError."""
    compiled, modules = CHECKOUT / "build" / "mip" / "package.json", CHECKOUT / "firmware" / "ports" / "modules.py"
    if info.mpy & 0xFF == MPY_VERSION and compiled.exists():
        return compiled
    if modules.exists():
        folder: Path = runpy.run_path(str(modules))["write"]()
        return folder / "package.json"
    raise BoardError("there is no package here: name one with --package (make natmod makes build/mip/package.json)")


def chosen_files(package: Path, info: Info, *, own_core: bool) -> dict[str, bytes]:
    """The files of a package that are for this board: place in lib -> content. own_core: the firmware has the C core.

    Raises BoardError.
    """
    try:
        listed = [(str(place), str(source)) for place, source in json.loads(package.read_text())["urls"]]
        files = {place: (package.parent / source).read_bytes() for place, source in listed}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BoardError(f"{package} is not a package that can be copied: {error}") from None
    native = {f"mqqb/core_{arch}.mpy" for arch in core.NATIVE if arch}
    wanted = f"mqqb/core_{info.arch}.mpy" if info.arch and not own_core else ""
    files = {place: data for place, data in files.items() if place not in native or place == wanted}
    for place, data in files.items():
        if place.endswith(".mpy") and data[1] != info.mpy & 0xFF:
            raise BoardError(
                f"{place} is of .mpy version {data[1]}, the board loads {info.mpy & 0xFF or 'none'}: "
                f"name the sources with --package {CHECKOUT / 'package.json'}"
            )
    return files


def deploy(
    board: Board,
    package: Path | None = None,
    main: Path | None = None,
    config: Path | None = None,
    progress: Progress = lambda *_: None,
) -> Deployed:
    """Copy what is not there as it should be. main becomes main.py, config keeps its name. Raises BoardError."""
    info = board.info
    _, _, frozen = board.run(_CORE)
    files: dict[str, bytes] = {}
    if not frozen:
        chosen = chosen_files(package or default_package(info), info, own_core=board.run(_MODULE.format("_mqqb")))
        files = {f"{info.lib}/{place}": data for place, data in chosen.items()}
    modules = list(files)
    try:
        if main is not None:
            files[info.root("main.py")] = main.read_bytes()
        if config is not None:
            files[info.root(config.name)] = config.read_bytes()
    except OSError as error:
        raise BoardError(str(error)) from None
    manifest = f"{info.lib}/{MANIFEST}"
    before = _manifest(board, manifest)
    sums = {path: (len(data), binascii.crc32(data)) for path, data in files.items()}
    found = dict(zip(files, board.sums(list(files)), strict=True))
    changed = [path for path in files if found[path] != sums[path]]
    # A module of the other kind beside it would be taken instead, or waste flash.
    stale = {
        path.removesuffix(".mpy") + ".py" if path.endswith(".mpy") else path.removesuffix(".py") + ".mpy"
        for path in modules
    }
    stale = (stale | set(before.get("files", ()))) - set(files) if modules else set()
    removed = sorted(path for path, size in zip(sorted(stale), board.sums(sorted(stale)), strict=True) if size)
    complete = {"version": _version(), "complete": True, "files": {path: sums[path] for path in modules}}
    if changed or removed or (modules and before != json.loads(json.dumps(complete))):
        _make_room(board, info, [len(files[path]) for path in changed])
        board.run(_FOLDERS.format(_parents([*changed, manifest], info.folder)))
        total, done = sum(len(files[path]) for path in changed), 0
        for path in changed:
            board.write(f"{path}.new", files[path], _part_of(progress, path, done, total))
            done += len(files[path])
        arrived = board.sums([f"{path}.new" for path in changed])
        for path, got in zip(changed, arrived, strict=True):
            if got != sums[path]:
                raise BoardError(f"{path} did not arrive as it was sent: try again; is the line good?")
        # From here to the last line a cut leaves a mixture, and the manifest says so.
        if modules:
            _put(board, manifest, {**complete, "complete": False})
        board.run(_RENAME.format(changed, removed), 30)
        if modules:
            _put(board, manifest, complete)
        board.reset()  # what was imported is the old
    chosen_core, problem, _ = board.run(_CORE)
    problem = problem or board.run(_NODE)
    return Deployed(
        changed,
        len(files) - len(changed),
        removed,
        sum(len(files[path]) for path in changed),
        chosen_core or "",
        problem,
        frozen,
    )


def _part_of(progress: Progress, what: str, start: int, total: int) -> Callable[[int, int], None]:
    """Tells of one file of several: `start` bytes of `total` were before it."""
    return lambda done, _: progress(what, start + done, total)


def _version() -> str:
    from importlib import metadata

    return metadata.version("ordack")


def _manifest(board: Board, path: str) -> dict[str, Any]:
    try:
        read = json.loads(board.read(path))
    except (FileNotFoundError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}


def _put(board: Board, path: str, value: dict[str, Any]) -> None:
    board.write(f"{path}.new", json.dumps(value).encode())
    board.run(_RENAME.format([path], []))


def _parents(paths: Sequence[str], folder: str) -> list[str]:
    """The folders in which these files are, outermost first."""
    found = {"/".join(path.split("/")[:depth]) for path in paths for depth in range(2, path.count("/") + 1)}
    return sorted(found - {folder, ""})


def _make_room(board: Board, info: Info, sizes: Sequence[int]) -> None:
    block, free, _ = board.run(_FREE.format(info.folder))
    needed = sum(-(-size // block) * block for size in sizes) + 4 * block
    if needed > free:
        raise BoardError(f"the copy needs {needed} bytes of flash, {free} are free: remove files from the board")


# ---- doctor -----------------------------------------------------------------------------------------


class Check(NamedTuple):
    """One line of a report. verdict: "ok", "warning" or "bad". advice: what to do, if there is something to do."""

    name: str
    verdict: str
    text: str
    advice: str = ""
    values: dict[str, Any] = {}  # noqa: RUF012 - never changed

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {"check": self.name, "verdict": self.verdict, "found": self.text, "advice": self.advice, **self.values}


def examine(
    board: Board,
    queue_manager: tuple[str, int] | None = None,
    outbox: str = "outbox",
    progress: Progress = lambda *_: None,
) -> Iterator[Check]:
    """Look at a board, and change nothing there."""
    info = board.info
    if board.watched:
        yield Check("watchdog", "ok", "the program feeds one; ordack board did, meanwhile")
    yield Check(
        "firmware",
        "ok",
        f"MicroPython {_dotted(info.version)} on {info.machine}",
        "",
        {"version": _dotted(info.version), "machine": info.machine, "native": info.arch},
    )
    implementation, problem, frozen = board.run(_CORE)
    yield _modules(board, implementation, problem, frozen)
    if implementation:
        yield _core(implementation, info)
    needed = HEAP_NEEDED[frozen]
    verdict = "ok" if info.heap_free >= needed else "warning"
    yield Check(
        "heap",
        verdict,
        f"{info.heap_free} bytes free of {info.heap}",
        ""
        if verdict == "ok"
        else f"a node needs about {needed}" + ("" if frozen else ": freeze the modules into the firmware"),
        {"free": info.heap_free, "size": info.heap},
    )
    yield _flash(board)
    clock = _clock(board)
    yield clock
    wifi = board.run(_WIFI)
    if wifi is not None:
        connected, address = wifi
        yield Check(
            "wifi",
            *(
                ("ok", f"connected as {address}", "")
                if connected
                else ("warning", "not connected", "main.py connects it: are the network's name and password right?")
            ),
            {"connected": connected, "address": address},
        )
    reached = None
    if queue_manager is not None:
        reached = _reach(board, *queue_manager)
        yield reached
    yield from _outbox(board, info, outbox, clock.verdict == "ok", reached, progress)


def _modules(board: Board, implementation: str | None, problem: str, frozen: bool) -> Check:
    if implementation is None:
        return Check("modules", "bad", "mqqb and node are not there", "run ordack board deploy")
    if problem:
        return Check("modules", "bad", f"mqqb cannot be imported: {problem}", "run ordack board deploy")
    if frozen:
        return Check("modules", "ok", "frozen into the firmware", "", {"frozen": True})
    manifest = _manifest(board, f"{board.info.lib}/{MANIFEST}")
    if not manifest:
        return Check(
            "modules",
            "warning",
            "copied by hand or by mip: their version is not known",
            "run ordack board deploy",
            {"frozen": False},
        )
    files = manifest.get("files", {})
    sums = board.sums(list(files))
    wrong = [path for path, there in zip(files, sums, strict=True) if there is None or list(there) != files[path]]
    values = {"frozen": False, "version": manifest.get("version"), "wrong": wrong}
    if not manifest.get("complete"):
        return Check("modules", "bad", "a deploy was cut: files of two versions", "run ordack board deploy", values)
    if wrong:
        text = f"not as they were deployed: {', '.join(wrong)}"
        return Check("modules", "bad", text, "run ordack board deploy", values)
    return Check("modules", "ok", f"{len(files)} files of ordack {manifest.get('version')}", "", values)


def _core(implementation: str, info: Info) -> Check:
    values = {"core": implementation}
    if implementation == "python":
        advice = (
            "run ordack board deploy, or build the firmware with the C core"
            if info.arch
            else ("no native modules load here; a firmware built with the C core is faster")
        )
        return Check("core", "warning" if info.arch else "ok", "the Python twin", advice, values)
    return Check(
        "core",
        "ok",
        "the C core, " + ("as a native module" if implementation == "native-module" else "in the firmware"),
        "",
        values,
    )


def _flash(board: Board) -> Check:
    _, free, size = board.run(_FREE.format(board.info.folder))
    verdict = "ok" if free >= FLASH_NEEDED else "warning"
    return Check(
        "flash",
        verdict,
        f"{free} bytes free of {size}",
        "" if verdict == "ok" else "the outbox needs room: make its capacity smaller than the file system",
        {"free": free, "size": size},
    )


def _clock(board: Board) -> Check:
    began = time.time()
    try:
        told, year = board.run(_TIME)
    except BoardError:
        return Check("clock", "warning", "this firmware has no clock", "messages have no deadlines until it is set")
    now = told + (946684800 if year == 2000 else 0)
    drift = round(now - (began + time.time()) / 2, 1)
    if now < CLOCK_SET:
        return Check(
            "clock",
            "warning",
            "not set",
            "nothing expires until it is: set it from the network (ntptime), or with mpremote rtc --set",
            {"set": False},
        )
    return Check(
        "clock",
        "ok" if abs(drift) <= DRIFT_S else "warning",
        f"{drift:+g} s against this computer",
        "" if abs(drift) <= DRIFT_S else "deadlines are measured by both ends: set the clock",
        {"set": True, "drift": drift},
    )


def _reach(board: Board, host: str, port: int) -> Check:
    asking = session.Session(True, b"ordack doctor..."[:16], 0)
    asking.connected(0)
    board.run(_REACH)
    problem, answer = board.run(f"print(_reach({host!r}, {port}, {bytes(asking.data_to_send())!r}))", 40)
    where = f"{host}:{port}"
    if problem.endswith(NO_WAY):
        return Check(
            "queue manager",
            "bad",
            f"{where}: {problem}, no way there",
            "does main.py join a network, is the address right, is that machine on?",
            {"reached": False},
        )
    if problem:
        return Check(
            "queue manager",
            "bad",
            f"{where}: {problem}",
            "is it running (ordack serve), is the address right, does a firewall stand between?",
            {"reached": False},
        )
    if answer[4:8] != b"LIOR":
        return Check(
            "queue manager",
            "bad",
            f"{where}: what answers is no queue manager",
            "is the port right?",
            {"reached": False},
        )
    return Check("queue manager", "ok", f"{where} answers", "", {"reached": True})


# ---- what waits in the outbox -----------------------------------------------------------------------


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
        flash = sum(size for _, size in found) + board.run(_FREE.format(info.folder))[1]
        limits = {**_limits(board, info), "flash": flash}
        yield from read_outbox(copy, path, time.time(), clock_is_set=clock_is_set, reached=reached, limits=limits)


def fetch_outbox(board: Board, path: str, found: list[tuple[str, int]], to: Path, progress: Progress) -> None:
    """Copy the files of an outbox off a board, as they are."""
    total, done = sum(size for _, size in found), 0
    for name, size in found:
        (to / name).write_bytes(board.read(f"{path}/{name}", _part_of(progress, "the outbox", done, total)))
        done += size


def node_log() -> Any:
    """The module node.outbox, of the checkout. Raises ImportError: this ordack has none."""
    if str(CHECKOUT / "firmware") not in sys.path:
        sys.path.append(str(CHECKOUT / "firmware"))
    from node import outbox

    return outbox


def _limits(board: Board, info: Info) -> dict[str, int]:
    """What main.py gives a Node as capacity and waiting_max, where it says so in figures."""
    try:
        main = board.read(info.root("main.py")).decode(errors="replace")
    except FileNotFoundError:
        return {}
    found = re.findall(r"\b(capacity|waiting_max)\s*=\s*(\d[\d_]*)(?:\s*(\*|<<)\s*(\d+))?", main)
    return {
        name: int(number) * int(more) if by == "*" else int(number) << int(more or 0)
        for name, number, by, more in found
    }


def _full(limits: Mapping[str, int], kept: int, size: int) -> str:
    """Why an outbox takes nothing more; "" if it does. limits: as in read_outbox. kept: messages. size: bytes."""
    if kept >= limits.get("waiting_max", kept + 1):
        return f"full, waiting_max lets {limits['waiting_max']} be kept"
    for name, text in (("capacity", "of its capacity"), ("flash", "that the flash has for it")):
        if name in limits and size + SMALL_MESSAGE > limits[name]:
            return f"full, {size} bytes {text}, {limits[name]}, are used"
    return ""


def read_outbox(
    copy: str,
    name: str,
    now: float,
    *,
    clock_is_set: bool = True,
    reached: Check | None = None,
    limits: Mapping[str, int] = {},
) -> Iterator[Check]:
    """Say what is in a copy of an outbox, which is changed by this. now: s since 1970. limits: waiting_max, capacity
    and flash (bytes that it can have), as far as they are known."""
    try:
        log = node_log()
    except ImportError:
        yield Check("outbox", "warning", "not looked at: this ordack has no node to read it with", "use a checkout")
        return
    files = log.Files(copy)
    try:
        opened = log.Outbox(files, capacity=1 << 31, waiting_max=1 << 24)
        restored = opened.restored
        used = opened.size
        untaken = sum(arrival.record[confirm.STATE] == log.RECEIVED for arrival in opened.restored_arrivals)
    except (log.OutboxError, OSError) as error:
        yield Check("outbox", "bad", f"{name}: {error}", "`ordack board rescue` copies it, before anything is deleted")
        return
    finally:
        files.close()
    yield _identity(opened, log.AHEAD)
    if opened.damage:
        more = f", and {len(opened.damage) - 1} more" if opened.damage[1:] else ""
        yield Check(
            "damage",
            "warning",
            f"{opened.damage[0]}{more}",
            "`ordack board rescue` copies the outbox, and lists what is in it; flash that does this again wears out",
            {"damage": opened.damage},
        )
    settings = confirm.Settings()
    queues: dict[str, list[confirm.Confirmation]] = {}
    for message in restored:
        process = confirm.Confirmation(message.handle.record, settings)
        if message.sent and process.state == confirm.Q:
            process.sent()  # the log says of a whole start whether it may have sent
        queues.setdefault(message.queue.name, []).append(process)
    kept = sum(map(len, queues.values()))
    full = _full(limits, kept, used)
    yield Check(
        "outbox",
        "bad" if full else "ok",
        f"{name}: {kept} messages" + (f"; {full}" if full else ""),
        "send() raises OutboxFull until some of them are gone: see below what they wait for" if full else "",
        {"messages": kept, "bytes": used, "full": bool(full)},
    )
    if untaken:
        yield Check(
            "inbox",
            "ok",
            f"{untaken} received and not handled yet",
            "does main.py ask for them?",
            {"messages": untaken},
        )
    for queue, all_of_it in queues.items():
        waiting = [process for process in all_of_it if process.state in (confirm.Q, confirm.S)]
        dead = [process for process in all_of_it if process.state == confirm.X]
        if waiting:
            yield _waiting(queue, waiting, now, clock_is_set, reached)
        unread = sum(process.state == confirm.O for process in all_of_it)
        if unread:
            yield Check(
                "unread",
                "ok",
                f"{queue}: {unread} stored at the destination, not known to be received",
                "",
                {"queue": queue, "messages": unread},
            )
        if dead:
            numbers = sorted({process.message_class for process in dead})
            yield Check(
                "dead letters",
                "warning",
                f"{queue}: {len(dead)}: {', or '.join(classes.words(number, queue) for number in numbers)}",
                "node.dead_letters() lists them, node.take() removes one",
                {"queue": queue, "messages": len(dead), "classes": list(map(classes.label, numbers))},
            )


def _identity(opened: Any, ahead: str) -> Check:
    """Who the board is to others; the name is for people."""
    guid = guids.guid_text(opened.guid)
    values = {"guid": guid, "name": opened.name, "ahead": opened.ahead}
    text = f"{opened.name}, GUID {guid}" if opened.name else f"GUID {guid}"
    if opened.ahead:
        return Check(
            "identity",
            "warning",
            f"{text}: {ahead}",
            "let nothing else send under this GUID; when all that "
            "waits is delivered or given up, erase the outbox: it begins anew under another GUID",
            values,
        )
    return Check("identity", "ok", text, "", values)


def _waiting(
    queue: str, waiting: list[confirm.Confirmation], now: float, clock_is_set: bool, reached: Check | None
) -> Check:
    oldest = min(process.record[confirm.SENT_TIME] for process in waiting)
    deadlines = [deadline for deadline in map(confirm.Confirmation.next_deadline, waiting) if deadline is not None]
    never = sum(process.state == confirm.Q for process in waiting)
    text = f"{queue}: {len(waiting)} wait"
    values: dict[str, Any] = {"queue": queue, "messages": len(waiting), "never_sent": never}
    if oldest >= CLOCK_SET:
        values["oldest"] = round(now - oldest)
        text += f", the oldest {_span(now - oldest)} old"
    if deadlines and clock_is_set:
        values["next_deadline"] = round(min(deadlines) - now)
        left = min(deadlines) - now
        text += f", the first expires in {_span(left)}" if left > 0 else f", the first expired {_span(-left)} ago"
    if never:
        text += f"; {never} never sent"
    if reached is not None and reached.verdict == "ok":
        advice = "the queue manager answers: let the board run; if they stay, does the queue exist there, is it full?"
    elif reached is not None:
        advice = "they go when the queue manager can be reached"
    else:
        advice = "look whether it can be reached: --queue-manager HOST:PORT"
    if never < len(waiting):
        text += f"; {len(waiting) - never} sent, and no acknowledgement in the log"
    return Check("waiting", "warning", text, advice, values)


def _span(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if abs(seconds) >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


__all__ = [
    "Board",
    "BoardError",
    "Check",
    "Deployed",
    "Info",
    "NoBoard",
    "attended",
    "chosen_files",
    "default_package",
    "deploy",
    "examine",
    "read_outbox",
]
