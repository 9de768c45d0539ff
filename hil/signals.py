"""Signals that a child process heeds, whatever this one was started with.

What a shell without job control starts in the background ignores SIGINT and SIGQUIT, what nohup starts SIGHUP; so do
its children. Who sends such a signal to a child starts it with `preexec_fn=heed`.
"""

import signal

NUMBERS = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE)


def heed() -> None:
    """Give them their default action, in this process."""
    for number in NUMBERS:
        signal.signal(number, signal.SIG_DFL)
