"""The command `ordack` for tests: run to its end, or as a running `ordack serve`.

`ordack` starts each command in a process of its own, forked from one that has the modules already: an interpreter that
begins anew takes ten times as long. What a test sees is the same: pipes, exit status, files, the environment.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any

from ordack.server import tcp
from ordack.store import Store

from hil.held_port import hold_port
from tests.support.host_peer import Peer

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'firmware'}{os.pathsep}{ROOT / 'host'}", "COLUMNS": "200"}
INTERPRETERS = {
    "micropython": ROOT / "build" / "micropython" / "unix-c" / "micropython",
    "python3": Path(sys.executable),
}
DEADLINE_S = 60
REQUEST_MAX = 1 << 20

# Takes (arguments, environment, folder, limits), with standard input, output, error and where number and status go, and
# forks. What takes a command most of its time is done once, or not: a help imports here what typer imports late; what
# typer finds in the functions of all commands is kept; and a command that ends by itself (not by an exception or a
# signal) flushes and leaves, instead of taking every object apart.
NURSERY = f"""
import atexit, contextlib, functools, gc, io, json, os, resource, select, signal, socket, sys, typer.main
ended = []
@atexit.register  # the first one is the last to run
def leave():
    if ended:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(ended[0])
import ordack.server.health, ordack.server.listener, ordack.server.tcp
import ordack.server.notify
import ordack.pipeline.export, ordack.config.config_file
from ordack.cli import COMMANDS, command, main
from hil.signals import heed
typer.main.get_params_from_function = functools.cache(typer.main.get_params_from_function)
for name in COMMANDS:
    command(name)
door = socket.socket(fileno=int(sys.argv[1]))
sys.argv[1:] = ["queue", "list", "--help"]
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main()
gc.freeze()
running = {{}}  # descriptor that is ready when a command has ended -> its number, and where its status goes
events = select.poll()
events.register(door, select.POLLIN)
while True:
    [(ready, _), *_] = events.poll()
    if ready in running:
        number, fate = running.pop(ready)
        events.unregister(ready)
        with contextlib.suppress(BrokenPipeError):
            os.write(fate, b"%d\\n" % os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]))
        os.close(fate)
        os.close(ready)
        continue
    request, places, _, _ = socket.recv_fds(door, {REQUEST_MAX}, 4)
    if not request:
        for number, _ in running.values():
            os.kill(number, signal.SIGKILL)
        break
    child = os.fork()
    if child:
        *given, fate = places
        os.setpgid(child, child)
        os.write(fate, b"%d\\n" % child)
        end = os.pidfd_open(child)
        events.register(end, select.POLLIN)
        running[end] = child, fate
        for place in given:
            os.close(place)
        continue
    door.close()
    for number in range(3):
        os.dup2(places[number], number)
    os.closerange(3, max([*places, *running, *(fate for _, fate in running.values())]) + 1)
    heed()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    arguments, environment, folder, limits = json.loads(request)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for limit in limits:
        resource.setrlimit(limit[0], limit[1:] * 2)
    sys.argv = ["ordack", *arguments]
    try:
        main()
    except SystemExit as end:
        if isinstance(end.code, int):
            ended.append(end.code)
        raise
    break
"""


@functools.cache
def _nursery(before: str) -> socket.socket:
    """The door of the process that has the modules; it ends when this process does. before: what it does first."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pipe = subprocess.PIPE  # Python's streams ask only once whether what they are on can be sought in
    process = subprocess.Popen(
        [sys.executable, "-c", before + NURSERY, str(there.fileno())],
        pass_fds=[there.fileno()],
        env=ENVIRONMENT,
        cwd=ROOT,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
    )
    there.close()
    atexit.register(process.communicate)
    atexit.register(here.close)
    return here


def send(
    arguments: list[str],
    environment: dict[str, str],
    folder: Path,
    places: list[int],
    before: str = "",
    limits: dict[int, int] | None = None,
) -> None:
    """Starts the command, in a group of processes of its own. places: its standard input, output, error, and where its
    number and exit status go. limits: of its process, as `resource` numbers them."""
    request = json.dumps((arguments, environment, str(folder), [*(limits or {}).items()])).encode()
    assert len(request) < REQUEST_MAX
    socket.send_fds(_nursery(before), [request], places)


def _start(
    arguments: list[str],
    environment: dict[str, str],
    folder: Path,
    stdin: IO[bytes],
    stdout: IO[Any] | None = None,
    limits: dict[int, int] | None = None,
    before: str = "",
) -> list[IO[bytes]]:
    """What can be read of the command: standard output, unless that goes elsewhere, standard error, and its number and
    exit status."""
    pipes = [os.pipe() for _ in range(3)]
    (_, output), *others = pipes
    output = stdout.fileno() if stdout else output
    places = [stdin.fileno(), output, *(theirs for _, theirs in others)]
    send(arguments, environment, folder, places, before, limits)
    for _, theirs in pipes:
        os.close(theirs)
    return [os.fdopen(ours, "rb") for ours, _ in pipes]


def ordack(
    *arguments: object,
    stdin: bytes = b"",
    folder: Path = ROOT,
    environment: dict[str, str] = ENVIRONMENT,
    seconds: float = DEADLINE_S,
    limits: dict[int, int] | None = None,
    before: str = "",
) -> subprocess.CompletedProcess[str]:
    """One command, to its end; killed, and TimeoutExpired, after `seconds`. AssertionError if it shows a traceback.
    before: statements that its process runs first."""
    words = [str(argument) for argument in arguments]
    with tempfile.TemporaryFile() as given:
        given.write(stdin)
        given.seek(0)
        output, errors, fate = _start(words, environment, folder, given, limits=limits, before=before)
    with output, errors, fate:
        number = int(fate.readline())
        late = threading.Timer(seconds, os.kill, (number, signal.SIGKILL))
        late.start()
        texts: list[bytes] = []
        reader = threading.Thread(target=lambda: texts.append(errors.read()))
        reader.start()
        shown = output.read()
        reader.join()
        status = int(fate.readline())
        late.cancel()
    if status == -signal.SIGKILL:
        raise subprocess.TimeoutExpired(words, seconds, shown, texts[0])
    done = subprocess.CompletedProcess(words, status, shown.decode(), texts[0].decode())
    assert "Traceback" not in done.stderr, done.stderr
    return done


def as_json(*arguments: object, stdin: bytes = b"") -> list[dict[str, Any]]:
    """What a command that must succeed prints with --json."""
    done = ordack(*arguments, "--json", stdin=stdin)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def status_of(store: object) -> dict[str, Any]:
    """What `ordack status` tells of a store, whether all is well or not."""
    told: dict[str, Any] = json.loads(ordack("status", "--store", store, "--json").stdout)
    return told


def outgoing_of(store: object) -> list[dict[str, Any]]:
    """Its outgoing queues."""
    found: list[dict[str, Any]] = status_of(store)["outgoing"]
    return found


def guid_of(store: object) -> str:
    """The GUID of its queue manager."""
    return str(status_of(store)["guid"])


_held: list[socket.socket] = []


def own_port(address: str = "127.0.0.1") -> int:
    """A TCP port of this address, 0.0.0.0: of every one, that is for this test alone, also while who listens there is
    not there yet, or killed."""
    _held.append(hold_port(address))
    return int(_held[-1].getsockname()[1])


class Running:
    """What subprocess.Popen is to other programs, for a command that runs: `ordack` with these arguments. stdout: a
    file that it writes to. limits: of its process."""

    def __init__(self, *arguments: str, stdout: IO[Any] | None = None, limits: dict[int, int] | None = None) -> None:
        with Path(os.devnull).open("rb") as nothing:
            output, errors, fate = _start(list(arguments), ENVIRONMENT, Path.cwd(), nothing, stdout, limits)
        self.stdout, self.stderr = (io.TextIOWrapper(stream, encoding="utf-8") for stream in (output, errors))
        self._fate = fate
        self.pid = int(fate.readline())
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status. Raises subprocess.TimeoutExpired after so many seconds."""
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._fate, select.POLLIN)
            # where the status was read ahead with the number, the end that follows it is seen
            if timeout is not None and not poll.poll(timeout * 1000):
                raise subprocess.TimeoutExpired("ordack", timeout)
            self.returncode = int(self._fate.readline())
            self._fate.close()
        return self.returncode

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Nothing, if it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it has written to standard output and error, when it has ended. Raises subprocess.TimeoutExpired."""
        end = None if timeout is None else time.monotonic() + timeout
        texts = ["", ""]

        def read(number: int, stream: IO[str]) -> None:
            texts[number] = "" if stream.closed else stream.read()

        readers = [
            threading.Thread(target=read, args=pair, daemon=True) for pair in enumerate((self.stdout, self.stderr))
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(None if end is None else max(0.0, end - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired("ordack", timeout or 0)
        self.wait(None if end is None else max(0.0, end - time.monotonic()))
        self.stdout.close()
        self.stderr.close()
        return texts[0], texts[1]


def news(errors: str) -> str:
    """What `serve` says, but that tests have their stores in memory, where they do."""
    return re.sub(r".* is in memory, not on a disk: .*\n", "", errors)


class Serve:
    """A running `ordack serve`; `line` is the first that it printed. The store is made if there is none.
    listen: None for what its file says."""

    def __init__(self, store: Path, *arguments: str, listen: str | None = "127.0.0.1:0") -> None:
        where = ["--listen", listen] if listen else []
        self.process = Running("serve", "--create", "--store", str(store), *where, *arguments)
        atexit.register(self.process.kill)  # a test that fails may not come to `stop`
        self.line = self.process.stdout.readline()
        self.port = int(self.line.rstrip().rstrip('"}').rpartition(":")[2])

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
        """Exit status, standard output, the news on standard error."""
        self.process.send_signal(number)
        output, errors = self.process.communicate(timeout=DEADLINE_S)
        return self.process.wait(), output, news(errors)


def write_settings(folder: Path, **numbers: object) -> None:
    """Write an `ordack.toml` with these settings, where `serve` on that store reads it."""
    folder.mkdir(exist_ok=True)
    lines = [f"{name} = {str(value).lower()}" for name, value in numbers.items()]
    (folder / "ordack.toml").write_text("\n".join(["[settings]", *lines, ""]))


def set_numbers(store: Store, **numbers: int) -> None:
    """Let applications go by these settings, as after a start of `serve` with them."""
    store.keep_names({**store.names(), "numbers": numbers})


def serve_applications(
    store: Path, more: str = "", port: int = 0, listen: str | None = "127.0.0.1:0"
) -> tuple[Serve, str]:
    """An `ordack serve` that takes applications over TCP, and where; more: what its file says besides."""
    (store / "ordack.toml").write_text(f"[[applications]]\nport = {port}\n{more}")
    serve = Serve(store, listen=listen)
    return serve, f"tcp://{serve.process.stdout.readline().split()[-1]}"


def serve_in_shell(store: Path, before: str = "", after: str = "") -> subprocess.Popen[str]:
    """An `ordack serve` that a shell has become, with what stands in its line before and after the command."""
    return subprocess.Popen(
        [
            "/bin/sh",
            "-c",
            f'{before} exec "$0" -m ordack serve --store "$1" --listen 127.0.0.1:0 {after}',
            sys.executable,
            str(store),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )


def converse(peer: Peer, port: int) -> None:
    """Connect, and send all that the peer has, until it is settled."""
    peer.connect(tcp.now())
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as connection:
        settle(peer, connection)


def settle(peer: Peer, connection: socket.socket) -> None:
    """Send all that the peer has over a connection that is there, until it is settled."""
    deadline = time.monotonic() + DEADLINE_S
    poll = select.poll()  # select takes no file above 1023
    poll.register(connection, select.POLLIN)
    while not peer.is_settled:
        assert time.monotonic() < deadline
        connection.sendall(peer.output(tcp.now()))
        if poll.poll(20):
            data = connection.recv(1 << 16)
            assert data, "the queue manager has closed the connection"
            peer.receive(data, tcp.now())
