"""`python tests/adopt.py COMMAND...`: runs it, and waits also for what its processes leave to themselves, like Spark's
JVMs: so who waits for this process is told the work of them all. Exit status: that of the command, or its signal.
"""

import ctypes
import os
import signal
import subprocess
import sys

SET_CHILD_SUBREAPER = 36  # of prctl: those that have lost their parent are children of this process
PATIENCE_S = 30  # with what is left when the command has ended


def main() -> int:
    """Runs the command."""
    ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    command = subprocess.Popen(sys.argv[1:])
    code = 1
    signal.signal(signal.SIGALRM, lambda *_: os._exit(code))
    while True:
        try:
            process, status = os.wait()
        except ChildProcessError:
            return code
        if process == command.pid:
            code = command.returncode = min(abs(os.waitstatus_to_exitcode(status)), 255)
            signal.alarm(PATIENCE_S)


if __name__ == "__main__":
    sys.exit(main())
