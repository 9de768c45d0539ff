"""Boards that are computers with Linux, such as a Raspberry Pi: labgrid reaches them over SSH, and the node is a
process there. A file of boards has `imports: [hil.computer]`; hil/README.md shows one.
"""

import ast
import io
import json
import shlex
import socket
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final

import attr
from attr.validators import instance_of, optional
from labgrid.driver import Driver, SSHDriver
from labgrid.factory import target_factory
from labgrid.protocol import PowerProtocol

from hil import wiring
from hil.boards import FIRMWARE, POWER, ROOT, Board, Process
from hil.drivers import NodeProtocol, number, whole
from hil.real import RealBoard, Switch

DEADLINE_S: Final = 120.0
SILENT_S: Final = 3.0
MODULES: Final = "modules"
INTERPRETER: Final = "interpreter"
OURS: Final = ".ordack-rig"  # what else has no such file in it is not removed

_STARTED: Final = "process "
_BOOT: Final = "cat /proc/sys/kernel/random/boot_id"
_VERSION: Final = "import sys; print(sys.implementation.name, *sys.implementation.version[:3])"


@target_factory.reg_driver
@attr.s(eq=False)
class SSHNodeDriver(Driver, NodeProtocol):  # type: ignore[misc]
    """A computer whose application is a node; a switch of its power, if it has one, how it reaches the queue manager,
    and what it can bear.

    `command` starts the interpreter there, MicroPython or Python; `interpreter` is one of this machine that is copied
    there, before the words of `command`. All is in `folder`, below the user's home, which belongs to the rig: one that
    has files of others is refused. It finds this machine at `host`, where the fault proxy listens at `listen`.
    `off_s`: seconds that it must at least be off. `dips_s`: as `Board` has it. The others are those of `Limits`.
    Without a switch a cut of the power is SIGKILL of the process.
    """

    bindings: ClassVar[dict[str, Any]] = {"ssh": SSHDriver, "power": {PowerProtocol, None}}
    power: Any
    host: str = attr.ib(validator=instance_of(str))
    listen: str | None = attr.ib(default=None, validator=optional(instance_of(str)))
    command: str = attr.ib(default="", validator=instance_of(str))
    interpreter: str | None = attr.ib(default=None, validator=optional(instance_of(str)))
    folder: str = attr.ib(default="ordack-rig", validator=instance_of(str))
    off_s: float = number(0.0)
    dips_s: float = number(0.0)
    max_size: int = whole(65536, least=0)
    ahead: int = whole(80)
    patience_s: float = number(120.0)
    deadline_s: float = number(1800.0)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if not self.command and self.interpreter is None:
            raise ValueError("either command (there) or interpreter (a file of this machine) says what runs the node")
        if self.folder.strip("/.") == "":
            raise ValueError(f"folder: {self.folder!r} is no folder of its own: what it holds is removed")

    @property
    def identity(self) -> str:
        service = self.ssh.networkservice
        return f"{service.username}@{service.address}:{service.port}"

    def open(self, folder: Path, application: Path) -> Board:
        del folder
        return SSHBoard(self, application)


class SSHBoard(RealBoard):
    """A computer. To connect may take as long as it starts: who has an event loop calls from a thread."""

    ways: tuple[str, ...] = (POWER,)

    def __init__(self, node: SSHNodeDriver, application: Path) -> None:
        super().__init__(node, application, node.power)
        self._folder = shlex.quote(node.folder)
        self._life = 0
        self._pid = ""
        self._boot = b""
        self._process: Process | None = None
        self._switch = None if node.power is None else Switch(node.power, node.off_s, self.target)

    @property
    def life(self) -> int:
        return self._life

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.alive

    def describe(self) -> str:
        what = self._node.interpreter or self._node.command
        return f"{self.target}: {self._node.identity}, {what}, {'a switch' if self._switch else 'SIGKILL'} cuts it off"

    def files(self) -> dict[str, Path]:
        ours = {} if self._node.interpreter is None else {INTERPRETER: Path(self._node.interpreter)}
        return {**ours, "engine": FIRMWARE / "mqqb", "node": FIRMWARE / "ordack", "application": self._application}

    def deploy(self, settings: dict[str, object]) -> None:
        self.kill()
        packed = {
            **{f"{MODULES}/{name}": FIRMWARE / name for name in ("mqqb", "ordack")},
            "application.py": self._application,
        }
        if self._node.interpreter is not None:
            packed[INTERPRETER] = Path(self._node.interpreter)
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w") as archive:
            for name, path in packed.items():
                archive.add(path, name, filter=_without_caches)
            text = json.dumps(settings).encode()
            information = tarfile.TarInfo("config.json")
            information.size = len(text)
            archive.addfile(information, io.BytesIO(text))
        there = self._folder
        with self._connected():
            self._refuse_what_others_have()
            made = f"rm -rf {there} && mkdir -p {there} && touch {there}/{OURS}"
            self._run(f"{made} && tar -xf - -C {there}", content.getvalue())

    def _refuse_what_others_have(self) -> None:
        found = self._run(f"if test -e {self._folder}; then ls -A {self._folder}; fi").decode().split("\n")[:-1]
        if found and OURS not in found:
            raise OSError(
                f"board {self.target}: the folder {self._node.folder} is not the rig's, {found[0]} is in it: name "
                "another one, or remove it"
            )

    def kill(self) -> None:
        process, self._process = self._process, None
        if self._switch is not None:
            self._off()
        elif process is not None and process.alive:
            gone = f"while kill -0 {self._pid}; do sleep 0.1; done"  # until then it may write to its files
            self._run(f"{{ kill -9 {self._pid}; {gone}; }} 2>/dev/null || true")
        if process is not None:
            process.kill()

    def power_up(self) -> None:
        self._life += 1
        self._connect()
        words = f"cd {self._folder} && echo {_STARTED}$$ && exec {self._command} application.py config.json"
        mark = self.log.mark()
        self._process = Process(self._words(words), self.log, self._life, ROOT)
        self._pid = self.log.wait_for(lambda text: text.startswith(_STARTED), DEADLINE_S, mark).text.split()[1]

    def read_file(self, name: str) -> bytes:
        path = f"{self._folder}/{shlex.quote(name)}"
        with self._connected():
            return self._run(f"if test -e {path}; then cat {path}; fi")

    def erase(self, folder: str, to: Path) -> None:
        path = f"{self._folder}/{shlex.quote(folder)}"
        with self._connected():
            content = self._run(f"if test -d {path}; then tar -cf - -C {path} .; fi")
            self._run(f"rm -rf {path}")
        if not content:
            raise FileNotFoundError(f"board {self.target}: {folder} is not there")
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            archive.extractall(to, filter="data")

    def put(self, folder: str, files: Path) -> None:
        path = f"{self._folder}/{shlex.quote(folder)}"
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w") as archive:
            archive.add(files, ".")
        with self._connected():
            self._run(f"mkdir -p {path} && tar -xf - -C {path}", content.getvalue())

    def look(self) -> Iterator[str]:
        """What is found of it, a sentence each. Raises OSError for what is not as it must be."""
        with self._connected():
            yield f"{self._run('uname -srm').decode().strip()}"
            if self._node.interpreter is None:
                version = self._run(f"{self._node.command} -c {shlex.quote(_VERSION)}").decode()
                yield f"{self._node.command} is {version.strip()}"
            yield wiring.reach(self, self.host, self.listen)
        if self._switch is None:
            return
        service = self._node.ssh.networkservice
        try:
            socket.create_connection((service.address, service.port), SILENT_S).close()
        except OSError:
            yield "silent when its power is off"
            return
        raise OSError("it answers although its power is off: the switch is another board's")

    def run(self, code: str, _: float = 0.0) -> object:
        """What a program prints there, as a value. Raises OSError if it fails."""
        words, given = self._node.command, b""
        begin, end = "", ""
        if self._node.interpreter is not None:  # in no folder that anybody has
            words, given = f"$at/{INTERPRETER} {words}", Path(self._node.interpreter).read_bytes()
            begin = f"at=$(mktemp -d); cat > $at/{INTERPRETER}; chmod +x $at/{INTERPRETER}; "
            end = "; status=$?; rm -r $at; exit $status"
        said = self._run(f"{begin}{words} -c {shlex.quote(code)}{end}", given).decode(errors="replace").strip()
        try:
            return ast.literal_eval(said.rpartition("\n")[2])  # before it may be what a login shell says
        except (ValueError, SyntaxError):
            raise OSError(f"what {self._node.command} printed there is no value: {said!r}") from None

    @property
    def _command(self) -> str:
        """The interpreter with what it needs to find the modules and to say at once what it prints."""
        paths = f"env MICROPYPATH=.frozen:{MODULES} PYTHONPATH={MODULES} PYTHONUNBUFFERED=1"
        ours = "" if self._node.interpreter is None else f"./{INTERPRETER} "
        return f"{paths} {ours}{self._node.command}"

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """While the board is off as far as the campaign knows."""
        self._connect()
        yield
        if self._switch is not None:
            self._run("sync")
            self._off()

    def _connect(self) -> None:
        """Raises OSError if it does not answer within the SSHDriver's `connection_timeout`, or if its power was not
        off since the last time.
        """
        if self._switch is not None:
            self._switch.on()
        try:
            self._node.target.activate(self._node.ssh)
        except Exception as error:  # noqa: BLE001 - labgrid raises Exception itself
            raise OSError(f"board {self.target}: {self._node.identity}: {error}: {error.__cause__}") from None
        if self._switch is not None:
            before, self._boot = self._boot, self._run(_BOOT)
            if before == self._boot:
                raise OSError(
                    f"board {self.target} was switched off and on and did not boot: does the switch switch this board?"
                )

    def _off(self) -> None:
        assert self._switch is not None
        self._switch.off()
        self._node.target.deactivate(self._node.ssh)

    def _words(self, command: str) -> list[str]:
        """Of this machine, to run a command of a shell there."""
        ssh = self._node.ssh
        service = ssh.networkservice
        tool = self._node.target.env.config.get_tool("ssh")
        user = ssh.username or service.username
        return [tool, "-x", *ssh.ssh_prefix, "-p", str(service.port), "-l", user, service.address, command]

    def _run(self, command: str, given: bytes = b"") -> bytes:
        """What it prints. Raises OSError if it fails, or does not end."""
        try:
            done = subprocess.run(
                self._words(command), input=given, capture_output=True, timeout=DEADLINE_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise OSError(f"board {self.target}: `{command}` takes longer than {DEADLINE_S:g} s") from None
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()
            raise OSError(f"board {self.target}: `{command}` ended with {done.returncode}: {said}")
        return done.stdout


def _without_caches(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if member.name.endswith("__pycache__") else member
