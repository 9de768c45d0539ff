"""MicroPython's unix port as a board on a pseudo-terminal: a raw REPL, a soft reset, boot.py and main.py."""

from __future__ import annotations

import os
import signal
import subprocess
import termios
import tty
from pathlib import Path

from tests.conformance import ROOT
from tests.support.emulated import FIRMWARE

# What a port's C does. 10: a soft reset in the raw REPL; 11: one outside of it, which starts main.py.
REPL = r"""
import io, sys
def say(data):
    sys.stdout.buffer.write(data)
def start(name):
    try:
        with open(name) as file:
            text = file.read()
    except OSError:
        return
    try:
        exec(text, {'__name__': '__main__'})
    except Exception as error:
        sys.print_exception(error)
def obey(program):
    say(b'OK')
    told = io.StringIO()
    try:
        exec(program, space)
    except Exception as error:
        sys.print_exception(error, told)
    say(b'\x04' + told.getvalue().encode() + b'\x04>')
space = {'__name__': '__main__'}
raw = sys.argv[1] == 'raw'
start('boot.py')
if raw:
    say(b'raw REPL; CTRL-B to exit\r\n>')
else:
    start('main.py')
program = b''
while True:
    key = sys.stdin.buffer.read(1)
    if key == b'\x01' and program == b'\x05A':
        say(b'R\x00')
        program = b''
    elif key == b'\x01':
        raw = True
        program = b''
        say(b'raw REPL; CTRL-B to exit\r\n>')
    elif key == b'\x02':
        raw = False
    elif key == b'\x04' and not (raw and program):
        say(b'OK\r\nMPY: soft reboot\r\n')
        sys.exit(10 if raw else 11)
    elif key == b'\x04':
        obey(program)
        program = b''
    elif raw and key != b'\x03':
        program = program.lstrip(b'\r') + key
"""
LOOP = 'mode=main; while :; do "$0" "$1" $mode; case $? in 10) mode=raw;; 11) mode=main;; *) exit;; esac; done'


class UnixBoard:
    """`folder`: its flash. `port`: what `--port` takes. Its network is this machine's loopback. stock: its firmware has
    nothing of ours but the C core, and takes modules from lib."""

    def __init__(self, folder: Path, *, stock: bool = False) -> None:
        self.folder = folder
        self._firmware = (ROOT / "build" / "micropython" / "unix-c" if stock else FIRMWARE / "unix") / "micropython"
        folder.mkdir(exist_ok=True)
        self._end, there = os.openpty()
        self._held = there  # else the line hangs up whenever nobody listens
        tty.setraw(there)
        self.port = os.ttyname(there)
        self._script = folder.with_name(f"{folder.name}-repl.py")
        self._script.write_text(REPL)
        self.start()

    def start(self) -> None:
        """Power on. What it was told before, nobody has heard."""
        for end in (self._held, self._end):
            termios.tcflush(end, termios.TCIOFLUSH)
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", LOOP, self._firmware, self._script],
            cwd=self.folder,
            env={"MICROPYPATH": f"{self.folder}:.frozen:{self.folder}/lib"},
            stdin=self._end,
            stdout=self._end,
            start_new_session=True,
        )

    def cut(self) -> None:
        """The power fails."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        self.cut()
        os.close(self._end)
        os.close(self._held)
