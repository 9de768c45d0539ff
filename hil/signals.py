"""Make child processes heed signals, however this process was started.

A shell without job control starts background processes with SIGINT and SIGQUIT ignored, nohup with SIGHUP ignored.
Children inherit ignored signals, so the rig starts children with `preexec_fn=heed`.
"""

import signal

NUMBERS = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE)


def heed() -> None:
    """Restore the default actions of the signals, in this process."""
    for number in NUMBERS:
        signal.signal(number, signal.SIG_DFL)
