"""Make child processes heed signals, however this process was started.

A shell without job control starts background processes with SIGINT and SIGQUIT ignored, and nohup with SIGHUP ignored.
Children inherit that. A child that is sent such a signal is therefore started with `preexec_fn=heed`.
"""

import signal

NUMBERS = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE)


def heed() -> None:
    """Give them their default action, in this process."""
    for number in NUMBERS:
        signal.signal(number, signal.SIG_DFL)
